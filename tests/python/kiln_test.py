#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package kiln on the CPU: requests, errors, ops over numpy and over bare DLPack capsules.

kiln_test.py [unittest's options]     wants KILN_LIBRARY and KILN_REGISTRY. Exits with 77 (skipped) without numpy or
                                      a registry.
"""

import copy
import ctypes
import gc
import http.server
import math
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import kiln
import kiln.packages
from kiln import _library, _structs
from kiln._call import _attribute_of
from kiln._schema import AttributeSchema
from cpus import COUNT, allowed_cpus

# A script's background job ignores SIGINT, and what it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

M, D, H = 5, 48, 80


def normal(*shape, seed=0):
    generator = np.random.default_rng(seed + sum(shape))
    return generator.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(shape[-1]))


def gelu(z, approximate="tanh"):
    if approximate == "tanh":
        return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def expected_forward(x, gate, up, down, approximate="tanh", biases=(0, 0, 0)):
    x, gate, up, down = (a.astype(np.float64) for a in (x, gate, up, down))
    return (gelu(x @ gate.T + biases[0], approximate) * (x @ up.T + biases[1])) @ down.T + biases[2]


class KilnTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.cache = cls.folder.name + "/cache"
        cls.kernel = kiln.get_kernel("geglu-mlp", version=1, device="cpu", cache=cls.cache)
        cls.x, cls.gate, cls.up, cls.down = normal(M, D), normal(H, D), normal(H, D, seed=1), normal(D, H)
        cls.weights = (cls.gate, cls.up, cls.down)

    def assert_close(self, found, expected, bound=1e-6):
        self.assertEqual(found.shape, expected.shape)
        self.assertLess(np.linalg.norm(found - expected) / np.linalg.norm(expected), bound)


class Requests(KilnTest):
    def test_what_was_loaded_and_why(self):
        kernel = self.kernel
        self.assertEqual((kernel.name, kernel.version, kernel.device), ("geglu-mlp", 1, "cpu"))
        self.assertIn("> " + kernel.variant, kernel.explanation)
        self.assertEqual(kernel.fallback, "")
        self.assertRegex(kernel.build_id, "^[0-9a-f]{16,}$")
        self.assertTrue(pathlib.Path(kernel.library).is_relative_to(self.cache))
        self.assertEqual(kernel.ops, ("forward", "training_forward", "backward", "geglu", "geglu_backward"))
        self.assertIn("forward", dir(kernel))
        self.assertIn("y[M, D]: as x; output", kernel.forward.__doc__)

    def test_has_kernel_and_resolve(self):
        self.assertTrue(kiln.has_kernel("geglu-mlp", 1, device="cpu", cache=self.cache))
        absent = kiln.has_kernel("geglu-mlp", 1, device="cpu", cache=self.folder.name + "/empty")
        self.assertFalse(absent)
        self.assertEqual(absent.reason.code, 10)
        document = kiln.resolve("geglu-mlp", 1, device="cpu", cache=self.cache)
        self.assertEqual((document["schema"], document["chosen"]), ("kiln.resolve/1", self.kernel.variant))
        with self.assertRaisesRegex(kiln.NotFound, "deny nosuch: no variant is called so"):
            kiln.resolve("geglu-mlp", 1, device="cpu", cache=self.cache, deny=["nosuch"])

    def test_has_kernel_writes_what_its_manual_says(self):
        cache = pathlib.Path(self.folder.name, "asked")
        kiln.prefetch("geglu-mlp", 1, device="cpu", cache=cache)
        (cache / "store.lock").unlink()
        before = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
        self.assertTrue(kiln.has_kernel("geglu-mlp", 1, device="cpu", cache=cache))
        after = {path: path.stat().st_mtime_ns for path in cache.rglob("*") if path.is_file()}
        self.assertEqual({path.name for path in after if after[path] != before.get(path)}, {"store.lock"})
        self.assertIn("the lock file of a cache", " ".join(kiln.has_kernel.__doc__.split()))

    def test_prefetch_loads_nothing_and_needs_the_network_once(self):
        cache = self.folder.name + "/prefetched"
        self.assertFalse(kiln.has_kernel("geglu-mlp", 1, device="cpu", cache=cache))
        self.assertIsNone(kiln.prefetch("geglu-mlp", 1, device="cpu", cache=cache))
        self.assertTrue(kiln.has_kernel("geglu-mlp", 1, device="cpu", cache=cache))
        with self.assertRaises(kiln.NotFound):
            kiln.prefetch("geglu-mlp", 99, device="cpu", cache=cache)

    def test_a_bound_on_threads_goes_with_each_call(self):
        bounded = kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.cache, threads=1)
        self.assertIsNot(bounded, self.kernel)
        self.assertEqual(bounded.library, self.kernel.library)
        # In a process of its own, where no call has made workers yet.
        made = subprocess.check_output([sys.executable, "-c", """
import os, sys, numpy, kiln
gate = numpy.ones((512, 8192), dtype=numpy.float32)
def made_by(threads):
    kernel = kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=sys.argv[1], threads=threads)
    before = len(os.listdir("/proc/self/task"))
    kernel.geglu(gate, gate)
    return len(os.listdir("/proc/self/task")) - before
print(made_by(1), made_by(0))
""", str(self.cache)], text=True)
        bound, free = map(int, made.split())
        self.assertLessEqual(bound, 0)  # the thread that asked for the kernel may still be ending
        if len(os.sched_getaffinity(0)) > 1:
            self.assertGreater(free, 0)
        for wrong in (-1, True, 2**40, "2"):
            with self.assertRaises(kiln.UsageError):
                kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.cache, threads=wrong)

    def test_each_error_has_its_class_and_the_words_of_cpp(self):
        cases = [
            (kiln.UsageError, 2, "version is 0", {"version": 0}),
            (kiln.UsageError, 2, "expected 'cpu'", {"device": "tpu"}),
            (kiln.UsageError, 2, "is one text", {"fallback": "cpu"}),
            (kiln.UsageError, 2, "load_mode is", {"load_mode": "magic"}),
            (kiln.NoVariant, 3, "no-such-variant", {"variant": "no-such-variant"}),
            (kiln.NotFound, 4, "there is no such version; published: 1", {"version": 99}),
            (kiln.NotFound, 4, "/nowhere", {"registry": "/nowhere"}),
            (kiln.NetworkError, 5, "127.0.0.1", {"registry": "http://127.0.0.1:9/kernels"}),
            (kiln.LockError, 8, "lock", {"lock": self.folder.name + "/bad.lock"}),
            (kiln.CacheError, 9, "/proc/no", {"cache": "/proc/no/cache"}),
            (kiln.OfflineError, 10, "offline", {"offline": True, "cache": self.folder.name + "/none"}),
        ]
        pathlib.Path(self.folder.name + "/bad.lock").write_text("{}", encoding="utf-8")
        for kind, code, words, options in cases:
            with self.subTest(options=options):
                request = {"version": 1, "device": "cpu", "cache": self.folder.name + "/errors"} | options
                with self.assertRaises(kind) as raised:
                    kiln.get_kernel("geglu-mlp", **request)
                self.assertEqual(raised.exception.code, code)
                self.assertIn(words, str(raised.exception))
                self.assertIsInstance(raised.exception, kiln.Error)

    def test_options_are_spelt_as_in_python(self):
        with self.assertRaises(kiln.Error) as raised:  # no GPU, or none with this number
            kiln.get_kernel("geglu-mlp", 1, device="cuda:4096", cache=self.cache)
        self.assertNotIn("kiln::", str(raised.exception))
        spelt = []
        for path in pathlib.Path(__file__).resolve().parents[2].glob("loader/src/**/*.cpp"):
            for line in path.read_text(encoding="utf-8").splitlines():
                words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', line))
                if "kiln::Device" in words or re.search(r"[(, ]\.[a-z_]+( =|\))", words):
                    spelt.append(words)
                    self.assertNotRegex(_library.in_python(words), r"kiln::|--|[(, ]\.[a-z_]+( =|\))")
        self.assertGreater(len(spelt), 4)

    def test_an_empty_path_is_no_path(self):
        for name in ("registry", "cache", "lock"):
            with self.assertRaisesRegex(kiln.UsageError, f"get kernel: {name} is ''; expected a path, or None"):
                kiln.get_kernel("geglu-mlp", version=1, **{name: ""})

    def test_nothing_is_cut_on_its_way_into_c(self):
        cases = [
            ("NUL", {"name": "geglu-mlp\0evil"}), ("NUL", {"variant": "cpu\0x"}), ("NUL", {"fallback": ["cpu\0x"]}),
            ("NUL", {"deny": ["cpu\0x"]}), ("NUL", {"registry": "/tmp\0x"}), ("NUL", {"cache": "/tmp\0x"}),
            ("NUL", {"lock": "/tmp\0x"}), ("NUL", {"source": pathlib.Path("/tmp\0x")}),
            ("not Unicode text", {"variant": "\ud800"}), ("expected a string", {"name": b"geglu-mlp"}),
            ("expected a string", {"variant": 3}), ("one of fallback is 2", {"fallback": [2]}),
            ("expected a list of texts", {"fallback": None}), ("expected a path", {"cache": 3}),
            ("integer of 32 bits", {"version": 2**32 + 1}),
            ("expected an integer", {"version": True}), ("expected an integer", {"version": 1.0}),
            ("expected an integer", {"version": "1"}), ("integer of 32 bits", {"device": "cuda:4294967296"}),
            ("expected True or False", {"offline": "no"}), ("expected True or False", {"allow_jit": "false"}),
            ("expected True or False", {"refresh": 2}), ("expected True or False", {"all_gpus": 1}),
            ("expected a kiln.Cancel", {"cancel": threading.Event()}), ("expected a function", {"on_event": "print"}),
        ]
        for words, options in cases:
            for function in (kiln.get_kernel, kiln.has_kernel, kiln.resolve):
                request = {"name": "geglu-mlp", "version": 1, "device": "cpu", "cache": self.cache} | options
                with self.subTest(options=options), self.assertRaisesRegex(kiln.UsageError, words):
                    function(**request)
        with self.assertRaisesRegex(kiln.UsageError, "NUL"):
            self.kernel.op("forward\0x")

    def test_handles_are_one_thing_of_one_process(self):
        cancel = kiln.Cancel()
        for handle in (cancel, self.kernel, self.kernel.forward):
            with self.subTest(type(handle).__name__):
                self.assertIs(copy.copy(handle), handle)
                self.assertIs(copy.deepcopy({"of": [handle]})["of"][0], handle)
                self.assertEqual((handle == handle, handle == copy.copy(handle), hash(handle)),
                                 (True, True, hash(copy.copy(handle))))
                with self.assertRaisesRegex(TypeError, "cannot be pickled: it belongs to its process"):
                    pickle.dumps(handle)
        self.assertNotEqual(cancel, kiln.Cancel())
        del cancel
        gc.collect()
        kiln.Cancel.__new__(kiln.Cancel).__del__()  # one whose __init__ threw

    def test_the_same_request_again_is_the_same_kernel(self):
        def get(**options):
            return kiln.get_kernel("geglu-mlp", **({"version": 1, "device": "cpu", "cache": self.cache} | options))

        first = get()
        begin = time.thread_time()
        for _ in range(1000):
            self.assertIs(get(), first)
        self.assertLess(time.thread_time() - begin, 0.1)  # 100 us each; reading the schemas alone takes more
        self.assertIsNot(get(cache=self.folder.name + "/another"), first)
        self.assertIs(get(refresh=True), get())
        with self.assertRaises(kiln.NoVariant):
            get(variant="no-such-variant")

    def test_a_long_text_is_whole(self):
        lock = "/nowhere" + 5 * ("/" + "x" * 200)
        with self.assertRaises(kiln.LockError) as raised:
            kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.cache, lock=lock)
        self.assertIn(lock, str(raised.exception))  # a kiln_error holds 507 bytes

    def test_a_damaged_library_is_refused(self):
        cache = self.folder.name + "/damaged"
        library = kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=cache).library
        os.chmod(library, 0o644)
        with open(library, "r+b") as file:
            file.write(b"damaged!")
        program = ("import kiln, sys\ntry:\n  kiln.get_kernel('geglu-mlp', 1, device='cpu', cache=sys.argv[1])\n"
                   "except kiln.IntegrityError as error:\n  print(error.code)")
        answer = subprocess.run([sys.executable, "-c", program, cache], capture_output=True, text=True, check=True)
        self.assertEqual(answer.stdout, "6\n")

    def test_events_and_what_the_observer_throws(self):
        seen = []
        kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.folder.name + "/told", on_event=seen.append)
        self.assertIn("layer", {event.stage for event in seen})
        self.assertTrue(all(event.subject.startswith("geglu-mlp@1") for event in seen if event.stage == "layer"))

        def refuse(event):
            raise ZeroDivisionError(event.stage)

        with self.assertRaises(ZeroDivisionError):
            kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.folder.name + "/refused", on_event=refuse)

    def test_what_a_request_threw_or_told_is_let_go(self):
        """Without the garbage collector, which would find a cycle much later: a frame may hold large arrays."""
        def refuse(event):
            raise KeyError(event)

        calls = [lambda: kiln.get_kernel("nothing", 1), lambda: kiln.prefetch("nothing", 1),
                 lambda: kiln.resolve("nothing", 1), lambda: kiln.has_kernel("a b", 1),
                 lambda: kiln.packages.load("nothing", 1),
                 lambda: kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.folder.name + "/go", on_event=refuse)]

        def held_by(call):
            large = np.zeros(1)
            try:
                call()
            except (kiln.Error, KeyError):
                return weakref.ref(large)
            self.fail("it did not throw")

        def held_by_observer():
            large = np.zeros(1)
            kiln.get_kernel("geglu-mlp", 1, device="cpu", on_event=lambda event: large)
            return weakref.ref(large)

        gc.collect()
        gc.disable()
        try:
            for number, call in enumerate(calls):
                with self.subTest(number):
                    self.assertIsNone(held_by(call)())
            self.assertIsNone(held_by_observer()())
        finally:
            gc.enable()

    def test_a_fallback_is_reported(self):
        kernel = kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.cache, variant="none-such", fallback=["cpu"])
        self.assertIn("none-such", kernel.fallback)
        self.assertEqual(kernel.variant, self.kernel.variant)

    def test_an_option_that_there_is_not(self):
        with self.assertRaisesRegex(TypeError, "there is no option 'devise'"):
            kiln.has_kernel("geglu-mlp", 1, devise="cpu")


class Silent(http.server.BaseHTTPRequestHandler):
    """A registry that never answers."""

    def do_GET(self):
        self.server.asked.set()
        self.server.released.wait(60)

    def log_message(self, *_):
        pass


class Stopping(KilnTest):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
        self.server.daemon_threads = True
        self.server.asked, self.server.released = threading.Event(), threading.Event()
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(lambda: (self.server.released.set(), self.server.shutdown(), thread.join(),
                                 self.server.server_close()))
        self.registry = f"http://127.0.0.1:{self.server.server_port}"

    def get(self, **options):
        kiln.get_kernel("geglu-mlp", 1, device="cpu", registry=self.registry, cache=self.folder.name + "/stop",
                        **options)

    def test_ctrl_c_stops_a_download(self):
        program = ("import kiln, sys\ntry:\n  kiln.get_kernel('geglu-mlp', 1, device='cpu', registry=sys.argv[1], "
                   "cache=sys.argv[2])\nexcept KeyboardInterrupt:\n  print('stopped')")
        child = subprocess.Popen([sys.executable, "-c", program, self.registry, self.folder.name + "/stop"],
                                 stdout=subprocess.PIPE, text=True)
        self.assertTrue(self.server.asked.wait(60))
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=30)
        self.assertEqual((output, child.returncode), ("stopped\n", 0))
        self.assertLess(time.monotonic() - begin, 20)  # the request alone would take 60 s

    def test_cancel_from_another_thread(self):
        cancel = kiln.Cancel()
        stopper = threading.Thread(target=lambda: (self.server.asked.wait(60), cancel.now()))
        stopper.start()
        with self.assertRaises(kiln.Cancelled) as raised:
            self.get(cancel=cancel)
        stopper.join()
        self.assertEqual(raised.exception.code, 130)


class Calls(KilnTest):
    def test_values_with_and_without_biases(self):
        biases = (normal(H), normal(H, seed=1), normal(D))
        for approximate in ("tanh", "none"):
            y = self.kernel.forward(self.x, *self.weights, approximate=approximate)
            self.assert_close(y, expected_forward(self.x, *self.weights, approximate))
            y = self.kernel.forward(self.x, *self.weights, *biases, approximate=approximate)
            self.assert_close(y, expected_forward(self.x, *self.weights, approximate, biases))
        by_name = self.kernel.forward(down=self.down, up=self.up, gate=self.gate, x=self.x, down_bias=biases[2])
        self.assert_close(by_name, expected_forward(self.x, *self.weights, biases=(0, 0, biases[2])))

    def test_a_residual(self):
        residual = normal(M, D, seed=2)
        y = self.kernel.forward(self.x, *self.weights, residual=residual)
        self.assert_close(y, expected_forward(self.x, *self.weights) + residual)
        with self.assertRaisesRegex(kiln.InvalidCall, "residual has shape"):
            self.kernel.forward(self.x, *self.weights, residual=residual[1:])

    def test_an_output_that_is_passed_is_written_and_returned(self):
        y = np.full((M, D), np.nan, np.float32)
        self.assertIs(self.kernel.forward(self.x, *self.weights, y=y), y)
        self.assert_close(y, expected_forward(self.x, *self.weights))
        z = np.full((M, D), np.nan, np.float32)
        self.assertIs(self.kernel.forward(self.x, *self.weights, None, None, None, None, z), z)
        self.assertTrue(np.array_equal(y, z))

    def test_several_outputs_and_optional_ones(self):
        kept = self.kernel.training_forward(self.x, *self.weights)
        self.assertEqual(kept._fields, ("y", "gate_out", "up_out"))
        self.assert_close(kept.gate_out, self.x.astype(np.float64) @ self.gate.T)
        grad = self.kernel.backward(normal(M, D, seed=3), self.x, *self.weights, gate_out=kept.gate_out,
                                    up_out=kept.up_out, grad_down=True, grad_x=np.empty_like(self.x))
        hidden = gelu(self.x.astype(np.float64) @ self.gate.T) * (self.x.astype(np.float64) @ self.up.T)
        self.assert_close(grad.grad_down, normal(M, D, seed=3).astype(np.float64).T @ hidden, 1e-5)
        self.assertEqual([name for name in grad._fields if getattr(grad, name) is not None], ["grad_x", "grad_down"])

    def test_an_inout_is_read_and_written(self):
        start = normal(D, H, seed=4)
        main = start.copy()
        grad = self.kernel.backward(normal(M, D, seed=3), self.x, *self.weights, main_grad_down=main)
        self.assertEqual([name for name in grad._fields if getattr(grad, name) is not None], [])
        hidden = gelu(self.x.astype(np.float64) @ self.gate.T) * (self.x.astype(np.float64) @ self.up.T)
        self.assert_close(main, start + normal(M, D, seed=3).astype(np.float64).T @ hidden, 1e-5)
        self.assertIn("main_grad_down[D, H]: float32; inout, optional", self.kernel.backward.__doc__)
        main.flags.writeable = False
        with self.assertRaisesRegex(kiln.InvalidCall, "main_grad_down is read-only"):
            self.kernel.backward(normal(M, D, seed=3), self.x, *self.weights, main_grad_down=main)
        with self.assertRaisesRegex(kiln.InvalidCall, "main_grad_down is True"):
            self.kernel.backward(normal(M, D, seed=3), self.x, *self.weights, main_grad_down=True)

    def test_the_same_shapes_again_and_other_ones(self):
        for rows in (M, 1, M, 64, 0, M):
            for seed in (1, 2):
                x = normal(rows, D, seed=seed)
                y = self.kernel.forward(x, *self.weights)
                self.assertEqual(y.shape, (rows, D))
                if rows > 0:
                    self.assert_close(y, expected_forward(x, *self.weights))
        self.assertLessEqual(len(self.kernel.forward._plans), 16)

    def test_plans_do_not_pile_up(self):
        op = kiln.get_kernel("geglu-mlp", 1, device="cpu", cache=self.cache).geglu
        for rows in range(1, 1400):
            op(np.zeros((rows, 2), np.float32), np.zeros((rows, 2), np.float32))
        self.assertLessEqual(len(op._plans), 1024)

    def test_many_threads_on_one_op(self):
        inputs = [normal(M, D, seed=i) for i in range(8)]
        expected = [expected_forward(x, *self.weights) for x in inputs]
        wrong = []

        def work(i):
            for _ in range(200):
                y = self.kernel.forward(inputs[i], *self.weights)
                if not np.allclose(y, expected[i], atol=1e-5):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    @unittest.skipUnless(allowed_cpus() > 1, "wants two CPUs")
    def test_omp_num_threads_bounds_a_call(self):
        program = (COUNT + "import kiln, sys, numpy as np\n"
                   "os.sched_setaffinity(0, range(os.cpu_count()))\n"
                   "first = threads()\n"
                   "k = kiln.get_kernel('geglu-mlp', 1, device='cpu', cache=sys.argv[1])\n"
                   "before = settled(first)\n"
                   "x, w = np.ones((64, 512), np.float32), np.ones((2048, 512), np.float32)\n"
                   "for _ in range(3): k.forward(x, w, w, np.ones((512, 2048), np.float32))\n"
                   "print(threads() - before)")
        made = []
        for threads in ("1", "2"):
            answer = subprocess.run([sys.executable, "-c", program, self.cache], capture_output=True, text=True,
                                    check=True, env=os.environ | {"OMP_NUM_THREADS": threads})
            made.append(int(answer.stdout))
        self.assertEqual(made, [0, 1])

    def test_half_precision(self):
        half = [a.astype(np.float16) for a in (self.x, *self.weights)]
        y = self.kernel.forward(*half)
        self.assertEqual(y.dtype, np.float16)
        self.assert_close(y, expected_forward(*half), 2e-3)

    def test_strided_rows_where_the_schema_allows_them(self):
        both = normal(M, 2 * H)
        out = self.kernel.geglu(both[:, :H], both[:, H:])
        self.assert_close(out, gelu(both[:, :H].astype(np.float64)) * both[:, H:])
        with self.assertRaisesRegex(kiln.InvalidCall, "gate .*stride"):
            self.kernel.forward(self.x, normal(D, H).T, self.up, self.down)

    def test_read_only_arrays_are_inputs_and_no_outputs(self):
        x, y = self.x.copy(), np.empty_like(self.x)
        x.flags.writeable = y.flags.writeable = False
        self.assert_close(self.kernel.forward(x, *self.weights), expected_forward(x, *self.weights))
        with self.assertRaisesRegex(kiln.InvalidCall, "y is read-only"):
            self.kernel.forward(x, *self.weights, y=y)

    def test_what_does_not_fit_is_named(self):
        forward, x, weights = self.kernel.forward, self.x, self.weights
        cases = [
            (r"up has shape \[80, 47\]; expected \[H, D\] with D = 48",
             lambda: forward(x, self.gate, self.up[:, :-1].copy(), self.down)),
            ("gate is missing", lambda: forward(x)),
            ("gate has dtype float16", lambda: forward(x, self.gate.astype(np.float16), self.up, self.down)),
            ("a numpy array of float64|x has dtype float64", lambda: forward(x.astype(np.float64), *weights)),
            ("native byte order", lambda: forward(x.astype(">f4"), *weights)),
            ("a list is not a tensor", lambda: forward([1.0], *weights)),
            ("x is True", lambda: forward(True, *weights)),
            ("approximate is 'erf'; expected one of 'tanh', 'none'", lambda: forward(x, *weights, approximate="erf")),
            (r"approximate is \['tanh'\]; expected", lambda: forward(x, *weights, approximate=["tanh"])),
            ("approximate is 1; expected one of 'tanh', 'none'", lambda: forward(x, *weights, approximate=1)),
            (r"x has shape \[1, 5, 48\]; expected \[M, D\]", lambda: forward(x[None], *weights)),
            (r"gate has shape \[80\]; expected \[H, D\]", lambda: forward(x, self.gate[:, 0].copy(), *weights[1:])),
            ("the workspace is a float32 array", lambda: forward(x, *weights, workspace=np.zeros(9, np.float32))),
        ]
        for words, call in cases:
            with self.subTest(words=words), self.assertRaisesRegex(kiln.InvalidCall, words) as raised:
                call()
            self.assertEqual(raised.exception.code, 13)
        for words, call in (("has no argument 'gait'", lambda: forward(x, gait=1)),
                            ("given x twice", lambda: forward(x, x=x)),
                            ("has 9 tensors, 10", lambda: forward(*[x] * 10))):
            with self.subTest(words=words), self.assertRaisesRegex(TypeError, words):
                call()
        with self.assertRaisesRegex(AttributeError, "no op 'foreword'; it has forward"):
            self.kernel.foreword
        with self.assertRaises(kiln.NotFound):
            self.kernel.op("foreword")
        self.assert_close(forward(x, *weights), expected_forward(x, *weights))  # and goes on

    def test_attributes_cross_whole(self):
        forward, x, weights = self.kernel.forward, self.x, self.weights
        same = forward(x, *weights, batch_invariant="yes")
        self.assertTrue(np.array_equal(forward(x, *weights, batch_invariant=True), same))
        for words, attributes in (("overflow is True; expected one of", {"overflow": True}),
                                  ("approximate is 'tanh.0none'; expected", {"approximate": "tanh\0none"}),
                                  ("expected an integer of 64 bits", {"wide": 2**63}),
                                  ("expected a number", {"limit": "7"}), ("limit is True", {"limit": True}),
                                  ("too large", {"limit": 10**400})):
            schemas = [AttributeSchema("limit", "float", (), 7.0), AttributeSchema("wide", "int", (), 0)]
            with self.subTest(words), self.assertRaisesRegex(kiln.InvalidCall, words.replace(".0", r"\\x00")):
                name, value = next(iter(attributes.items()))
                schema = next((s for s in schemas if s.name == name), None)
                _attribute_of("op", schema, value) if schema else forward(x, *weights, **attributes)

    def test_arrays_that_mean_more_than_their_memory_are_refused(self):
        class Metres(np.ndarray):
            pass

        masked = np.ma.masked_array(self.x, self.x > 0)
        for words, x in (("its mask would be lost", masked), ("numpy.asarray", self.x.view(Metres))):
            for call in (lambda: self.kernel.forward(x, *self.weights),
                         lambda: self.kernel.forward(self.x, *self.weights, y=x)):
                with self.subTest(words), self.assertRaisesRegex(kiln.InvalidCall, words):
                    call()
        self.kernel.forward(np.asarray(self.x).view(np.memmap), *self.weights)

    def test_what_is_written_overlaps_nothing(self):
        memory = np.zeros((2 * M, D), np.float32)
        x, kept = memory[:M], self.x.copy()
        x[:] = kept
        with self.assertRaisesRegex(kiln.InvalidCall, "y and x overlap in memory, and y is written"):
            self.kernel.forward(x, *self.weights, y=memory[1:M + 1])
        self.assertTrue(np.array_equal(x, kept))
        residual = normal(M, D, seed=2)
        expected = self.kernel.forward(self.x, *self.weights, residual=residual)
        self.assertIs(self.kernel.forward(self.x, *self.weights, residual=residual, y=residual), residual)
        self.assertTrue(np.array_equal(residual, expected))  # the card allows it
        gradient, forward = normal(M, D, seed=3), self.kernel.training_forward(self.x, *self.weights)
        both = np.zeros((H + 8, D), np.float32)
        with self.assertRaisesRegex(kiln.InvalidCall, "grad_gate and grad_up overlap"):
            self.kernel.backward(gradient, self.x, *self.weights, gate_out=forward.gate_out, up_out=forward.up_out,
                                 grad_gate=both[:H], grad_up=both[8:])
        y = memory[M:]
        self.assertIs(self.kernel.forward(x, *self.weights, y=y), y)  # beside it

    def test_streams_and_workspaces_are_checked(self):
        for stream in (True, -1, 2**64, "0", 1.5):
            with self.subTest(stream), self.assertRaisesRegex(kiln.InvalidCall, "stream is"):
                self.kernel.forward(self.x, *self.weights, stream=stream)
        memory = np.zeros(1 << 20, np.uint8)
        memory.flags.writeable = False
        with self.assertRaisesRegex(kiln.InvalidCall, "the workspace is read-only"):
            self.kernel.forward(self.x, *self.weights, workspace=memory)

    def test_a_workspace_that_is_passed(self):
        size = self.kernel.forward.workspace_bytes(self.x, *self.weights)
        memory = np.zeros(max(size, 1) + 256, np.uint8)
        begin = -memory.ctypes.data % 256
        y = self.kernel.forward(self.x, *self.weights, workspace=memory[begin:begin + max(size, 1)])
        self.assert_close(y, expected_forward(self.x, *self.weights))


class Managed(ctypes.Structure):
    _fields_ = [("tensor", _structs.CTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _structs.CTensor)]


_NEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi))
_IS_VALID = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_FREED = []


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule):
    """What a producer must do for a capsule that nobody consumed: free the tensor."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if _IS_VALID(capsule, name):
            _FREED.append(name)


class Producer:
    """An object with nothing but DLPack, over a numpy array's memory from its second element on."""

    def __init__(self, array, versioned=True, flags=0, device=(1, 0), major=1, strides=True):
        self.array, self.versioned, self.device, self.given = array, versioned, device, []
        self.c = ManagedVersioned(major=major, flags=flags) if versioned else Managed()
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*[s // array.itemsize for s in array.strides])
        self.c.tensor = _structs.CTensor(data=array.ctypes.data - 4, ndim=array.ndim, code=2, bits=32, lanes=1,
                                         shape=self.shape, strides=self.strides if strides else None, byte_offset=4)
        self.c.tensor.device.type, self.c.tensor.device.id = device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, **words):
        if not self.versioned and words:
            raise TypeError("made before DLPack 1.0")
        self.given.append((stream, words))
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self.name = name  # a capsule does not copy it
        return _NEW(ctypes.addressof(self.c), name, ctypes.cast(_destroy, ctypes.c_void_p).value)


class Capsules(KilnTest):
    def test_old_and_versioned_capsules_are_read_and_freed_once(self):
        expected = expected_forward(self.x, *self.weights)
        for versioned in (False, True):
            for strides in (False, True):
                y = np.full((M, D), np.nan, np.float32)
                _FREED.clear()
                inputs = [Producer(a, versioned, strides=strides) for a in (self.x, *self.weights)]
                result = self.kernel.forward(*inputs, y=Producer(y) if versioned else y)
                del inputs
                gc.collect()
                self.assertIsInstance(result, Producer if versioned else np.ndarray)
                self.assert_close(y, expected)
                self.assertEqual(len(_FREED), 4 + versioned)

    def test_a_failing_call_frees_them_too(self):
        _FREED.clear()
        with self.assertRaises(kiln.InvalidCall):
            self.kernel.forward(Producer(self.x), Producer(self.gate[:, :-1].copy()), self.up, self.down,
                                y=np.empty_like(self.x))
        gc.collect()
        self.assertEqual(len(_FREED), 2)

    def test_a_read_only_capsule_is_an_input(self):
        self.assert_close(self.kernel.forward(Producer(self.x, flags=1), *self.weights, y=np.empty_like(self.x)),
                          expected_forward(self.x, *self.weights))
        with self.assertRaisesRegex(kiln.InvalidCall, "y is read-only"):
            self.kernel.forward(self.x, *self.weights, y=Producer(np.empty_like(self.x), flags=1))

    def test_an_input_that_is_left_out_is_named(self):
        for arguments in ((None, *self.weights), ()):
            with self.assertRaisesRegex(kiln.InvalidCall, r"^forward: x is missing; expected a tensor\. forward\("):
                self.kernel.forward(*arguments)
        with self.assertRaisesRegex(kiln.InvalidCall, "^forward: gate is missing"):
            self.kernel.forward(self.x, up=self.up, down=self.down, y=np.empty_like(self.x))

    def test_a_copy_is_no_output(self):
        copied = Producer(np.empty_like(self.x), flags=2)
        with self.assertRaisesRegex(kiln.InvalidCall, "y is a copy that its producer made"):
            self.kernel.forward(self.x, *self.weights, y=copied)
        self.assertIs(copied.given[0][1]["copy"], False)
        self.assert_close(self.kernel.forward(Producer(self.x, flags=2), *self.weights, y=np.empty_like(self.x)),
                          expected_forward(self.x, *self.weights))

    def test_an_old_producer_gives_an_output_only_where_it_says_whose_memory_it_is(self):
        """Before DLPack 1.0 a capsule could not say that it is a copy."""
        def old(memory, says=None):
            producer = Producer(memory, versioned=False)
            if says is not None:
                setattr(producer, says[0], {"data": says[1]})
            return producer

        memory = np.zeros_like(self.x)
        address = memory.ctypes.data
        for name in ("__array_interface__", "__cuda_array_interface__"):
            for says in (None, (name, (address + 4, False)), (name, (address, True)), (name, None)):
                with self.subTest(says), self.assertRaisesRegex(kiln.InvalidCall, "^forward: y comes as DLPack had it be"
                                                                "fore 1.0, which cannot tell that it is a copy"):
                    self.kernel.forward(self.x, *self.weights, y=old(memory, says))
            self.assertFalse(memory.any())
            self.kernel.forward(self.x, *self.weights, y=old(memory, (name, (address, False))))
            self.assert_close(memory, expected_forward(self.x, *self.weights))
            memory[:] = 0
        with self.assertRaisesRegex(kiln.InvalidCall, "the workspace comes as DLPack had it before 1.0"):
            self.kernel.forward(self.x, *self.weights, workspace=old(np.zeros(1 << 20, np.float32)))

    def test_pinned_memory_is_the_cpus(self):
        y = self.kernel.forward(Producer(self.x, device=(3, 0)), *self.weights, y=np.empty_like(self.x))
        self.assert_close(y, expected_forward(self.x, *self.weights))

    def test_what_is_refused(self):
        for words, x in (("DLPack 2", Producer(self.x, major=2)), ("x is on", Producer(self.x, device=(2, 0)))):
            with self.subTest(words=words), self.assertRaisesRegex(kiln.InvalidCall, words):
                self.kernel.forward(x, *self.weights, y=np.empty_like(self.x))
        nowhere = Producer(self.x)
        nowhere.c.tensor.data, nowhere.c.tensor.byte_offset = None, 0
        with self.assertRaisesRegex(kiln.InvalidCall, "x has shape .* but its data pointer is NULL"):
            self.kernel.forward(nowhere, *self.weights, y=np.empty_like(self.x))
        with self.assertRaisesRegex(kiln.InvalidCall, "y cannot be allocated: Kiln allocates for torch and numpy"):
            self.kernel.forward(Producer(self.x), *self.weights)

    def test_a_gpus_producer_is_told_the_stream(self):
        from kiln import _tensors

        for stream, told in ((None, 1), (0, 1), (0x7F, 0x7F)):
            producer = Producer(self.x, device=(2, 0))
            _tensors.read(producer, stream)
            self.assertEqual(producer.given, [(told, {"max_version": (1, 0), "copy": False})])


class Library(KilnTest):
    def load(self, package, **environment):
        environment = dict(os.environ, PYTHONPATH=str(package)) | environment
        return subprocess.run([sys.executable, "-c", "import kiln; print(kiln.__version__)"], env=environment,
                              capture_output=True, text=True, check=False)

    def test_where_it_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            copied = pathlib.Path(folder) / "kiln"
            shutil.copytree(pathlib.Path(kiln.__file__).parent, copied, ignore=shutil.ignore_patterns("__pycache__"))
            self.assertEqual(self.load(folder).stdout, kiln.__version__ + "\n")
            answer = self.load(folder, KILN_LIBRARY="/nowhere/libkiln.so")
            self.assertIn("/nowhere/libkiln.so", answer.stderr)
            self.assertIn("set KILN_LIBRARY", answer.stderr)
            library = os.environ.get("KILN_LIBRARY")
            if library is not None:
                (copied / "libkiln.so").symlink_to(library)  # beside it, as a wheel has it: first
                self.assertEqual(self.load(folder, KILN_LIBRARY="/nowhere/libkiln.so").returncode, 0)

    def test_structs_are_those_of_the_headers(self):
        structs = (_structs.CRequest, _structs.CEvent, _structs.CError, _structs.CCall, _structs.CAttribute,
                   _structs.CTensor, _structs.CPackage)
        self.assertEqual([ctypes.sizeof(s) for s in structs], [120, 48, 512, 56, 16, 48, 56])
        self.assertEqual(_structs.CRequest.all_gpus.offset, 112)
        self.assertEqual(_structs.CCall.stream.offset, 48)


if __name__ == "__main__":
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # small calls: threads would only wait
    unittest.main()
