#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packages of Triton kernels, as kiln build makes them: two targets of a small one, what its images are proven to be,
the same bytes again, and what a compiler's failure tells. Wants KILN_BIN and KILN_TOOLCHAINS."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
TOOLCHAINS = pathlib.Path(os.environ["KILN_TOOLCHAINS"])
ONLY = "cu12.9-sm_80-x86_64"
KERNEL = '''import triton
import triton.language as tl


@triton.jit
def double(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + places, 2 * tl.load(x_ptr + places, mask=places < n), mask=places < n)
'''
PACKAGE = {
    "name": "double", "version": 1, "license": "Apache-2.0", "summary": "out = 2 x", "min_loader": "0.1.0",
    "cuda": {"targets": ["sm_80", "sm_90", "sm_120", "compute_80"],
             "launches": [{"op": "twice", "source": "csrc/double.py", "kernel": "double", "grid": ["cdiv(N, BLOCK)"],
                           "arguments": {"x_ptr": "x", "out_ptr": "out", "n": "N"},
                           "instances": [{"name": "any", "constants": {"BLOCK": 256}}]}]},
    "ops": [{"name": "twice", "doc": "out = 2 x, elementwise.",
             "tensors": [{"name": "x", "dtype": ["float32"], "shape": ["N"]},
                         {"name": "out", "dtype": "x", "shape": ["N"], "output": True}]}]}
# Each form's module declares more than its entry: a function, formats, shared memory.
MORE = '''    tl.device_assert(n > 0, "n is positive")
    tl.device_print("n", n)
    order = tl.sort(tl.load(x_ptr + places, mask=places < n))
    tl.atomic_add(out_ptr + places, order * thrice(n), mask=places < n)


@triton.jit(noinline=True)
def thrice(n):
    return 3 * n
'''
FENCE = """    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(out_ptr + places, tl.inline_asm_elementwise("wgmma.fence.sync.aligned; mov.b32 $0, $1;", "=r,r", [x], tl.float32, False, 1))
"""
HELD_BACK = KERNEL.replace("@triton.jit", """@triton.autotune([triton.Config({"BLOCK": 256}, pre_hook=lambda values: values["out_ptr"].zero_())], key=["n"])
@triton.jit""")
DESCRIPTOR = """    whole = tl.make_tensor_descriptor(x_ptr, shape=[n, 64], strides=[64, 1], block_shape=[64, 64])
    tl.store(out_ptr + places, tl.sum(whole.load([0, 0])), mask=places < n)
"""
# A package of its own, since a descriptor is of a matrix.
SQUARES = '''import triton
import triton.language as tl


@triton.jit
def squares(a, b, out, K, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS
    column = tl.program_id(1) * BLOCK
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        if ROWS >= 16:
            sums = tl.dot(a.load([row, k]), b.load([column, k]).T, sums)
        else:
            sums += a.load([row, k]).to(tl.float32)
    out.store([row, column], sums.to(out.dtype))
'''
DOT = '''    tile = tl.arange(0, 64)
    a = tl.load(x_ptr + tile[:, None] * 64 + tile[None, :]).to(tl.float16)
    tl.store(out_ptr + tile[:, None] * 64 + tile[None, :], tl.dot(a, a))
'''


class Triton(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.out = pathlib.Path(folder.name)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        # What is kept beside it has the objects of the SDK, which take longer than a kernel.
        shutil.rmtree(self.out / "double", ignore_errors=True)

    def build(self, package, only=ONLY, out=None, words=()):
        return subprocess.run([os.environ["KILN_BIN"] + "/kiln", "build", package, "--toolchains", TOOLCHAINS, "--only",
                               only, "--out", out or self.out, *words], capture_output=True, text=True, check=False)

    def built(self, package, only=ONLY, out=None):
        done = self.build(package, only, out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def written(self, launch=None, kernel=KERNEL, folder="packages"):
        """The package double, with other members of its launch, or with another kernel."""
        document = json.loads(json.dumps(PACKAGE))
        document["cuda"]["launches"][0].update(launch or {})
        package = self.work / folder / "double"
        (package / "csrc").mkdir(parents=True, exist_ok=True)
        (package / "package.json").write_text(json.dumps(document))
        (package / "csrc/double.py").write_text(kernel)
        for name in ("copy", "triton", "double.v2"):
            (package / f"csrc/{name}.py").write_text(kernel)
        (package / "csrc/entry.py").write_text("from double import double\n")
        return package

    def test_two_targets(self):
        package = self.work / "row-softmax"
        shutil.copytree(SOURCE / "tests/build/fixtures/row-softmax", package)
        self.built(package, "cu12.9-sm_80-x86_64,cu13.5-sm_90-x86_64,cu11.8-compute_80-x86_64")
        out = self.out / "row-softmax"
        for variant, code in (("cu12.9-sm_80-x86_64", "sm_80"), ("cu13.5-sm_90-x86_64", "sm_90"),
                              ("cu11.8-compute_80-x86_64", "compute_80")):
            with self.subTest(variant):
                images = json.loads((out / variant / "inspect.json").read_text())["images"]
                self.assertEqual([(each["stem"], each["code"], len(each["kernels"])) for each in images],
                                 [("row_softmax", code, 16), ("row_sums", code, 2), ("sum_up", code, 1)])
                log = (out / variant / "ptxas.txt").read_text()
                self.assertEqual(log.count("Used "), 19 if code != "compute_80" else 0)
                self.assertNotIn("Compile time", log)
                config = json.loads((out / variant / "config.json").read_text())
                self.assertRegex(json.dumps(config["build"]), r'"triton-3\.\d+": "3\.9\.0"')
                self.assertNotIn("nvrtc", config["build"])
        # Of a driver of CUDA 11.8 on; what Triton writes unasked needs a later one.
        ptx = (self.out / ".work/row-softmax/device/cu11.8-compute_80/row_softmax.ptx").read_text()
        self.assertEqual(re.findall(r"^\.(version|target) (.*)$", ptx, re.M), [("version", "7.8"), ("target", "sm_80")])
        self.assertNotIn(str(self.work), ptx)
        # A byte of a file that the kernel imports is a byte of the package; nothing else is compiled again.
        parts = package / "csrc/row_parts.py"
        before = (out / ONLY / "descriptor.json").read_bytes()
        self.assertNotIn("triton ", self.built(package))
        parts.write_text(parts.read_text() + "\n# another byte\n")
        self.assertEqual(self.built(package).count("] triton "), 3)
        self.assertNotEqual((out / ONLY / "descriptor.json").read_bytes(), before)

    def test_the_package_of_the_manual(self):
        text = (SOURCE / "docs/TRITON.md").read_text()
        files = re.findall(r"^```\w+ (row-softmax/\S+)\n(.*?)^```$", text, re.M | re.S)
        self.assertEqual(len(files), 2)
        for name, content in files:
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.built(self.work / "row-softmax")
        images = json.loads((self.out / "row-softmax" / ONLY / "inspect.json").read_text())["images"]
        self.assertEqual([len(each["kernels"]) for each in images], [24])  # as the page says

    def test_descriptors_of_the_host(self):
        """Maps for the copy engine where Triton uses it, addresses elsewhere; and what is not made."""
        def squares(rows, columns):
            document = json.loads(json.dumps(PACKAGE))
            document["cuda"]["targets"] = ["sm_80", "sm_90a"]
            document["cuda"]["launches"] = [{
                "op": "twice", "source": "csrc/double.py", "kernel": "squares", "grid": ["cdiv(M, ROWS)", "cdiv(M, BLOCK)"],
                "arguments": {"a": "x", "b": "x", "out": "out", "K": "N"}, "constants": {"ROWS": rows, "BLOCK": columns},
                "descriptors": {"a": ["ROWS", "BLOCK"], "b": ["BLOCK", "BLOCK"],
                                "out": {"block": ["ROWS", "BLOCK"], "shape": ["M", "M"]}},
                "instances": [{"name": "all", "when": "x.describable"}], "otherwise": "x is not aligned"}]
            x, out = document["ops"][0]["tensors"]
            x.update({"dtype": ["float16"], "shape": ["M", "N"], "layout": "rows"})
            out["shape"] = ["M", "M", 1]
            package = self.written(kernel=SQUARES)
            (package / "package.json").write_text(json.dumps(document))
            return package

        self.built(squares(64, 64), "cu13.5-sm_90a-x86_64,cu12.9-sm_80-x86_64")
        for code, maps, used in (("sm_90a", True, "kernel.map("), ("sm_80", False, "kernel.described(")):
            with self.subTest(code):
                toolkit = "cu13.5" if maps else "cu12.9"
                facts = json.loads((self.out / f".work/double/device/{toolkit}-{code}/squares.json").read_text())
                self.assertEqual(facts["maps"], maps)
                self.assertEqual([form["scratch"] for form in facts["forms"].values()], [2])
                launches = next(self.out.glob(f".work/**/{toolkit}-{code}-x86_64/launches.gen.cpp")).read_text()
                self.assertEqual(launches.count(used), 3)
        for rows, columns, found in ((4, 64, "4 rows of 128 bytes"), (8, 8, "8 rows of 16 bytes")):
            with self.subTest(found):
                done = self.build(squares(rows, columns), "cu13.5-sm_90a-x86_64")
                self.assertEqual(done.returncode, 15)
                self.assertRegex(done.stderr + done.stdout, rf"squares, as squares_all, for sm_90a wants a descriptor that is not made: .*, {found}, "
                                 r".*; expected 8 rows or more, each of 32 bytes or more (.*\n)*.*pass the tensor as a pointer")

    def test_what_kiln_new_writes(self):
        done = subprocess.run([os.environ["KILN_BIN"] + "/kiln", "new", self.work / "row-scale", "--triton"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([os.environ["KILN_BIN"] + "/kiln", "build", "row-scale"], capture_output=True, text=True,
                              cwd=self.work, check=False)
        self.assertEqual(done.returncode, 4)
        self.assertIn("there is no packages/row-scale/package.json; name a folder, as ./row-scale, or", done.stderr)
        self.built(self.work / "row-scale", "cu13.5-sm_120-x86_64")

    def test_the_same_bytes_elsewhere(self):
        self.built(self.written())
        self.built(self.written(folder="another folder"), out=self.work / "another out")
        for name in ("layer.tar.zst", "config.json", "ptxas.txt"):
            self.assertEqual((self.out / "double" / ONLY / name).read_bytes(),
                             (self.work / "another out/double" / ONLY / name).read_bytes(), name)

    def test_a_matrix_product_needs_no_sm_90a(self):
        self.built(self.written(kernel=KERNEL + DOT), "cu12.9-sm_90-x86_64")

    def test_forms_that_declare_more_are_one_module(self):
        self.built(self.written({"aligned": ["x_ptr", "out_ptr"]}, KERNEL + MORE))
        images = json.loads((self.out / "double" / ONLY / "inspect.json").read_text())["images"]
        self.assertEqual(images[0]["kernels"], ["double_any", "double_any_x16"])

    def test_what_does_not_compile(self):
        arguments = PACKAGE["cuda"]["launches"][0]["arguments"]
        rows = [
            ("an argument that is none", {"arguments": {**arguments, "m": "N"}}, KERNEL, ONLY,
             r"double\.py: double, as double_any, for sm_80 has no parameter m; its parameters are x_ptr, out_ptr, n, BLOCK"),
            ("a missing constant", {"grid": ["N"], "instances": [{"name": "any"}]}, KERNEL, ONLY,
             r"has a parameter BLOCK, which is neither an argument nor a constant"),
            ("a constant as an argument", {"grid": ["N"], "arguments": {**arguments, "BLOCK": "N"},
                                           "instances": [{"name": "any"}]}, KERNEL, ONLY,
             r'has BLOCK as tl\.constexpr; it belongs into "constants"'),
            ("no such function", {"kernel": "triple"}, KERNEL, ONLY,
             r"double\.py: triple for sm_80 has no @triton\.jit function triple\nThose at the file's first level are double: one that"),
            ("a descriptor of the host", {}, KERNEL + "    tl.store(out_ptr + places, x_ptr.load([0]))\n", ONLY,
             r"has no attribute 'load'(.*\n)*An argument is one pointer or one number: that it is a descriptor"),
            ("a tuple", {}, KERNEL + "    tl.store(out_ptr + places, x_ptr[0])\n", ONLY, r"unsupported tensor index(.*\n)*.*of a tuple one by one"),
            ("a tuple's length", {}, KERNEL + "    for i in tl.static_range(len(x_ptr)):\n        tl.store(out_ptr + places, i)\n", ONLY,
             r"has no len\(\)(.*\n)*.*of a tuple one by one"),
            ("a tuple, unpacked", {}, KERNEL + "    a, b = x_ptr\n", ONLY, r"cannot unpack(.*\n)*.*of a tuple one by one"),
            ("assertions", {}, KERNEL.replace("@triton.jit", "@triton.jit(debug=True)"), ONLY,
             r"double has debug=True, for tl\.device_assert, which is not compiled: take it out"),
            ("a kernel of Gluon", {}, KERNEL.replace("@triton.jit", "@gluon.jit").replace(
                "import triton\n", "import triton\nfrom triton.experimental import gluon\n"), ONLY,
             r"double\.py:8: double, as double_any, for sm_80 does not compile(.*\n)*A kernel of Gluon is not compiled"),
            ("Triton's own message, and its line", {}, KERNEL.replace("< n)", "< m)"), ONLY,
             r"double\.py:8: double, as double_any, for sm_80 does not compile:\n(.*\n)*.*m is not defined"),
            ("a function that it calls: where, and what is wrong in there", {}, KERNEL + MORE.replace("3 * n", "3 * m"), ONLY,
             r"double\.py:12: double, as double_any, for sm_80 does not compile:\n(.*\n)*.*m is not defined"),
            ("a file that is no Python", {}, KERNEL + "\nx = = 1\n", ONLY, r"double\.py:10: double for sm_80 does not compile:\nSyntaxError"),
            ("a module that is not there", {}, "import torch\n" + KERNEL, ONLY,
             r"double\.py:1: double for sm_80 does not compile:\n.*No module named 'torch'\nA kernel is compiled without site-packages"),
            ("a name that is not there", {}, "import triton\n\n\ndef count():\n    return COUNT\n\n\ncount()\n" + KERNEL, ONLY,
             r"double\.py:5: double for sm_80 does not compile:\nNameError"),
            ("a kernel of another file", {"source": "csrc/entry.py"}, KERNEL.replace("< n)", "< m)"), ONLY,
             r"double\.py:8: double, as double_any, for sm_80 does not compile:\n"),
            ("an extent that is a constant", {"arguments": {**arguments, "n": "N"}}, KERNEL.replace(" n,", " n: tl.constexpr,"), ONLY,
             r'it belongs into "constants"\nWhere it is no size of a block.*take the annotation away'),
            ("what a decorator would choose", {"grid": ["N"], "instances": [{"name": "any"}]},
             KERNEL.replace("@triton.jit", '@triton.heuristics({"BLOCK": lambda values: 256})\n@triton.jit'), ONLY,
             r"neither an argument nor a constant\nAlso what @triton\.autotune or @triton\.heuristics would choose is stated"),
            ("a parameter that is not passed", {}, KERNEL.replace(" n,", " n, bias_ptr,"), ONLY,
             r'neither an argument nor a constant\nWhere it is None in every call, "constants" has \{"bias_ptr": null\}'),
            ("what is None and counted with", {"constants": {"bias_ptr": None}},
             KERNEL.replace(" n,", " n, bias_ptr,").replace("    places", "    bias_ptr += n\n    places"), ONLY,
             r"double\.py:7: .*\n(.*\n)*In this form None are bias_ptr, .*if bias_ptr is not None:\" \(no \"when\" of"),
            ("a function of libdevice", {}, KERNEL.replace("2 * tl", "tl.math.tanh(1.0) * tl"), ONLY,
             r"no attribute 'tanh'(.*\n)*Functions of libdevice come by"),
            ("what a decorator would choose in place of a default", {"grid": ["N"], "instances": [{"name": "any"}]},
             KERNEL.replace("tl.constexpr)", "tl.constexpr = 64)").replace(
                 "@triton.jit", '@triton.heuristics({"BLOCK": lambda values: 256})\n@triton.jit'), ONLY,
             r"double has BLOCK with a default, and a decorator that would choose another value: state it"),
            ("a number that Triton's launcher passes", {}, KERNEL.replace("tl.constexpr)", "tl.constexpr, scale=3.1)").replace("2 *", "scale *"), ONLY,
             r"double has scale with the default 3\.1, which Triton's launcher passes as a number: state it in \"arguments\", what"),
            ("a number that one instance states",
             {"instances": [{"name": "narrow", "when": "N <= 64", "constants": {"BLOCK": 64, "scale": 2.0}},
                            {"name": "any", "constants": {"BLOCK": 64}}]},
             KERNEL.replace("tl.constexpr)", "tl.constexpr, scale=3.1)").replace("2 *", "scale *"), ONLY,
             r"double has scale with the default 3\.1.*\"constants\" of each instance"),
            ("a 1 that has a type", {}, KERNEL.replace("tl.constexpr)", "tl.constexpr, scale: tl.float32 = 1)").replace("2 *", "scale *"), ONLY,
             r"double has scale with the default 1, which Triton's launcher passes as a number"),
            ("a hook", {}, HELD_BACK, ONLY, r"double has a triton\.Config with a pre_hook, which would run before each launch"),
            ("a descriptor", {}, KERNEL + DESCRIPTOR, "cu13.5-sm_120-x86_64",
             r"bytes of global scratch memory.*\nTensor descriptors that a kernel makes need it here"),
            ("an instruction's name", {"kernel": "add"}, KERNEL.replace("def double", "def add"), ONLY,
             r"Not a name of any known instruction(.*\n)*Its name is that of an instruction of PTX"),
            ("an instruction's name, in PTX", {"kernel": "add"}, KERNEL.replace("def double", "def add"), "cu11.8-compute_80-x86_64",
             r"double\.py: add ends in PTX that no driver takes\nIts name is that of an instruction of PTX"),
            ("a block pointer", {}, KERNEL + "    tl.make_block_ptr(x_ptr, (n,), (1,), (0,), (64,), (0,))\n", ONLY,
             r"Block pointers have been removed(.*\n)*Load by pointers in their place"),
            ("a dtype that a GPU lacks", {}, KERNEL + "    tl.store(out_ptr + places, places.to(tl.float32).to(tl.float8e4nv).to(tl.float32))\n", ONLY,
             r"not supported in this architecture(.*\n)*Where sm_80 is to have other dtypes, give this one an op of its own"),
            ("a block size", {"instances": [{"name": "any", "constants": {"BLOCK": 100}}]}, KERNEL, ONLY,
             r"does not compile:\n(.*\n)*.*power of 2"),
            ("what sm_90a alone has", {}, KERNEL + FENCE, "cu12.9-sm_90-x86_64",
             r"ends in PTX that ptxas refuses:\n(.*\n)*It uses what sm_90a alone has"),
            ("a type that is not passed", {}, KERNEL.replace(" n,", " n: tl.int64,"), ONLY,
             r"double\.py:6: double has n: tl\.int64, and package\.json passes i32: state the type there"),
            ("a type that is not passed, in another file", {"source": "csrc/entry.py"}, KERNEL.replace(" n,", " n: tl.int64,"), ONLY,
             r"double\.py:6: double has n: tl\.int64, and package\.json passes i32: state the type there"),
            ("a type that is not passed, as Triton spells it", {}, KERNEL.replace(" n,", " n: 'i64',"), ONLY,
             r"double\.py:6: double has n: i64, and package\.json passes i32: state the type there"),
            ("a type that no integer has", {}, KERNEL.replace(" n,", " n: float,"), ONLY,
             r"double\.py:6: double has n: float, and package\.json passes i32: pass a float attribute there, or take"),
            ("a type that no launch passes", {}, KERNEL.replace(" n,", " n: tl.int1,"), ONLY,
             r"double\.py:6: double has n: tl\.int1, and package\.json passes i32: no launch passes that type: take the annotation away"),
            ("a leading dot", {}, "from .parts import thrice\n" + KERNEL, ONLY,
             r"double\.py:1: double imports by a leading dot.*write \"from parts import.*beside that: \"from folder\.double import"),
            ("a name of Python's own", {"source": "csrc/copy.py"}, KERNEL, ONLY,
             r"copy\.py: has the name of a module of Python's own, copy: rename it"),
            ("Triton's name", {"source": "csrc/triton.py"}, KERNEL, ONLY, r"triton\.py: has the name of a module of Triton's own, triton: rename"),
            ("a source that is not there", {"source": "csrc/duoble.py"}, KERNEL, ONLY,
             r"csrc/duoble\.py: is not there: \"source\" of package\.json is its path"),
            ("a dot in the name", {"source": "csrc/double.v2.py"}, KERNEL, ONLY, r"double\.v2\.py: is imported by its name, which has a dot: rename"),
            ("a module of Python's own", {}, "import copy\n" + KERNEL, ONLY,
             r"double\.py:1: double imports copy, which is Python's own"),
            ("the driver, at import", {}, KERNEL + "\n\nCOUNT = triton.runtime.driver.active.get_current_device()\n", ONLY,
             r"active drivers.*\n(.*\n)*It asks for the active driver, and there is no GPU when it is compiled"),
            ("a file of elsewhere", {}, "import pathlib\npathlib.Path(__file__).parent.parent.joinpath('package.json').read_text()\n"
             + KERNEL, ONLY, r"the compiler read .*package\.json, which is no \.py file of the source's folder.*\. Let such a file"),
        ]
        for what, launch, kernel, only, message in rows:
            with self.subTest(what):
                done = self.build(self.written(launch, kernel), only, words=["-q"])  # the compiler's words are in the error
                self.assertEqual(done.returncode, 15, done.stdout + done.stderr)
                self.assertRegex(done.stdout + done.stderr, message)
                self.assertFalse((self.out / "double" / only / "descriptor.json").exists())

    def test_defaults_that_are_no_numbers(self):
        self.built(self.written(kernel=KERNEL.replace("tl.constexpr)", "tl.constexpr, bias_ptr=None, step=1, half=False)").replace(
            "2 *", "(1 if half else 2) * step *")))

    def test_helpers_in_folders_and_types_that_are_stated(self):
        package = self.written({"arguments": {"x_ptr": "x", "out_ptr": "out", "n": {"value": "N", "type": "int64"}}},
                               "from parts.sums import twice\n" + KERNEL.replace(" n,", " n: tl.int64,").replace("2 * tl", "twice() * tl"))
        parts = package / "csrc/parts/sums.py"
        parts.parent.mkdir()
        parts.write_text("import triton\n\n\n@triton.jit\ndef twice():\n    return 2\n")
        self.built(package)
        before = (self.out / "double" / ONLY / "descriptor.json").read_bytes()
        parts.write_text(parts.read_text() + "\n# another byte\n")
        self.assertEqual(self.built(package).count("] triton "), 1)
        self.assertNotEqual((self.out / "double" / ONLY / "descriptor.json").read_bytes(), before)

    def test_a_file_of_a_project_stays_as_it_is(self):
        package = self.written({"source": "csrc/entry.py", "constants": {"bias_ptr": None}})
        files = {"entry.py": "from project.ops.double import double\n",
                 "project/sums.py": "import triton\n\n\n@triton.jit\ndef twice():\n    return 2\n",
                 "project/ops/double.py": "from ..sums import twice\n\n\nclass Kept:\n    def __init__(self, fn):\n        self.fn = fn\n\n\n" + KERNEL.replace("2 * tl", "twice() * tl").replace(
                     " n,", " n, bias_ptr,").replace("@triton.jit", "@Kept\n@triton.autotune([triton.Config({'BLOCK': 64, 'kpack': 2})], key=['n'])\n@triton.jit")}
        for name, content in files.items():
            (package / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
            (package / "csrc" / name).write_text(content)
        self.built(package)

    def test_no_compiler_outlives_the_build(self):
        package = self.written(kernel="import time\ntime.sleep(600)\n" + KERNEL)
        build = subprocess.Popen([os.environ["KILN_BIN"] + "/kiln-build", package, "--toolchains", TOOLCHAINS, "--only", ONLY,
                                  "--out", self.out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(build.wait)
        steps = self.wait_for(lambda: self.steps() or None)
        build.terminate()
        self.wait_for(lambda: not self.steps() or None)
        self.assertTrue(steps)

    def steps(self):
        """The compilers that work for this test."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if "triton_said.py" in words and str(self.out) in words:
                found.append(process.name)
        return found

    def wait_for(self, call):
        while (found := call()) is None:
            time.sleep(0.1)
        return found

    def test_without_the_wheel(self):
        prefix = self.work / "toolchains"
        prefix.mkdir()
        for each in TOOLCHAINS.iterdir():
            if not each.name.startswith("triton-"):
                (prefix / each.name).symlink_to(each)
        done = subprocess.run([os.environ["KILN_BIN"] + "/kiln", "build", self.written(), "--toolchains", prefix, "--out",
                               self.out], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 15)
        self.assertIn(f"triton is not in {prefix}; run 'ci/toolchains triton {prefix}' in Kiln's source, or name another folder in "
                      "KILN_TOOLCHAINS", done.stderr)


if __name__ == "__main__":
    if not any(TOOLCHAINS.glob("triton-*/python3")):
        print(f"skipped: no Triton in {TOOLCHAINS}; run ci/toolchains triton")
        sys.exit(77)
    unittest.main()
