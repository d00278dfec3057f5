#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch against PyTorch's own operators: values, gradients, torch.compile, CUDA graphs, replace(), training.

torch_test.py [unittest's options]     wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default) or
                                       "cuda". Exits with 77 (skipped) without torch.
"""

import contextlib
import copy
import inspect
import io
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import warnings

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import torch.nn.functional as F
from torch import nn

import kiln
import kiln.torch
from blocks import GeluTanh, Mlp, make, train
from cpus import COUNT, allowed_cpus

try:
    import transformers
except ImportError:
    transformers = None

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"
torch.set_num_threads(1)  # the shapes are small: threads would only wait for each other
if not ON_GPU and hasattr(os, "sched_setaffinity"):  # there Inductor compiles with as many processes as CPUs
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # and so would those of a CPU kernel
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
BOUND = 6e-3 if ON_GPU else 2e-6  # relative L2; PyTorch's own is about the same
D, H = 64, 144
LAYERS = [(kiln.torch.GegluMlp, {"approximate": "tanh"}), (kiln.torch.GegluMlp, {"approximate": "none"}),
          (kiln.torch.SwigluMlp, {"activation": "silu"}), (kiln.torch.SwigluMlp, {"activation": "relu"}),
          (kiln.torch.SwigluMlp, {"activation": "sigmoid"}),
          (kiln.torch.SwigluMlp, {"activation": "silu_clamped", "limit": 1.5})]


def layer_of(kind=kiln.torch.GegluMlp, bias=False, **attributes):
    torch.manual_seed(3)
    return kind(D, H, bias=bias, device=DEVICE, dtype=DTYPE, **attributes)


def normal(*shape, **options):
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, DTYPE).requires_grad_(options.get("grad", False))


def gradients(layer, x, weight):
    """y, and the gradients of x and of every parameter."""
    y = layer(x)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


def exact_gradients(layer, x, weight):
    """The same in fp64, by PyTorch."""
    wide = copy.deepcopy(layer).double()
    with kiln.torch.disabled():
        return gradients(wide, x.detach().double().requires_grad_(), weight.double())


def error_of(found, expected):
    """Relative L2."""
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


class TorchTest(unittest.TestCase):
    def assert_close(self, found, expected, bound=BOUND):
        self.assertEqual(found.shape, expected.shape)
        self.assertLess(error_of(found, expected), bound)  # false for NaN too


class Gradients(TorchTest):
    def test_values_and_gradients_against_fp64(self):
        for kind, attributes in LAYERS:
            for bias in (False, True):
                with self.subTest(attributes=attributes, bias=bias):
                    layer = layer_of(kind, bias, **attributes)
                    x, weight = normal(3, 7, D, grad=True), normal(3, 7, D)
                    with kiln.torch.disabled():
                        own = gradients(layer, x, weight)
                    exact = exact_gradients(layer, x, weight)
                    for found, pytorch, expected in zip(gradients(layer, x, weight), own, exact):
                        # Where an input is clamped the gradient jumps, for PyTorch's bfloat16 too.
                        self.assert_close(found, expected, max(BOUND, 1.5 * error_of(pytorch, expected)))

    def test_without_gradients(self):
        layer, x = layer_of(bias=True), normal(5, D)
        with torch.no_grad():
            y = layer(x)
        self.assertFalse(y.requires_grad)
        self.assert_close(y, layer(x).detach(), 1e-2 if ON_GPU else 1e-6)
        self.assertIsNone(layer.requires_grad_(False)(x).grad_fn)

    def test_only_what_is_wanted(self):
        x, weight = normal(9, D, grad=True), normal(9, D)
        names = ["x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias"]
        layer = layer_of(bias=True)
        expected = dict(zip(names, exact_gradients(layer, x, weight)[1:]))
        for wanted in (["x"], ["gate"], ["up"], ["down"], ["up", "down_bias"], ["gate", "gate_bias"], ["x", "up_bias"]):
            with self.subTest(wanted=wanted):
                given = x.detach().requires_grad_("x" in wanted)
                for name in names[1:]:
                    getattr(layer, name).requires_grad_(name in wanted)
                    getattr(layer, name).grad = None
                (layer(given) * weight).sum().backward()
                for name in names:
                    grad = given.grad if name == "x" else getattr(layer, name).grad
                    if name in wanted:
                        self.assert_close(grad, expected[name])
                    else:
                        self.assertIsNone(grad)

    def test_gradients_add_up_over_two_backwards(self):
        layer, x = layer_of(), normal(9, D)
        layer(x).sum().backward()
        once = layer.up.grad.clone()
        layer(x).sum().backward()
        self.assert_close(layer.up.grad, 2 * once)

    def test_a_second_derivative_is_pytorchs(self):
        layer, x = layer_of(bias=True).float(), normal(9, D).float().requires_grad_()
        wide = copy.deepcopy(layer).double()
        results = []
        for mlp, each in ((layer, x), (wide.reference, x.detach().double().requires_grad_())):
            with kiln.torch.disabled() if ON_GPU else contextlib.nullcontext():
                (grad,) = torch.autograd.grad(mlp(each).square().sum(), each, create_graph=True)
            parameters = list((layer if mlp is layer else wide).parameters())
            results.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), [each, *parameters[:-1]])])
        for found, expected in zip(*results):
            self.assert_close(found, expected, 1e-5)

    def test_any_leading_shape_and_any_strides(self):
        layer = layer_of()
        cases = [normal(D), normal(0, D), normal(2, 3, 4, D), normal(D, 6).t(), normal(4, 2 * D)[:, ::2],
                 normal(1, D).expand(5, D)]
        for x in cases:
            with self.subTest(shape=x.shape, strides=x.stride()), torch.no_grad():
                y = layer(x)
                self.assertEqual(y.shape, x.shape)
                if x.numel() > 0:
                    self.assert_close(y, layer.reference(x), 1e-2 if ON_GPU else 1e-6)

    def test_a_gradient_with_strides(self):
        layer, x = layer_of(), normal(6, D, grad=True)
        found = torch.autograd.grad(layer(x).sum(), x)[0]  # grad_y is one number, expanded
        self.assert_close(found, torch.autograd.grad(layer.double().reference(x.double()).sum(), x)[0])

    def test_autocast_computes_as_nn_linear_does(self):
        layer = layer_of(bias=True).float()
        x = normal(6, D).float().requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16):
            y, expected = layer(x), layer.reference(x)
        self.assertEqual((y.dtype, expected.dtype), (torch.bfloat16, torch.bfloat16))
        self.assert_close(y, expected, 1e-2)
        y.sum().backward()
        self.assertEqual((x.grad.dtype, layer.gate.grad.dtype), (torch.float32, torch.float32))

    def test_an_op_refuses_what_needs_a_gradient(self):
        layer, x = layer_of(), normal(6, D)
        for first in (x, x.detach().requires_grad_()):
            with self.assertRaisesRegex(kiln.InvalidCall, "requires a gradient"):
                layer.kernel.forward(first, layer.gate, layer.up, layer.down)
        with torch.no_grad():
            self.assert_close(layer.kernel.forward(x, layer.gate, layer.up, layer.down), layer.reference(x),
                              1e-2 if ON_GPU else 1e-6)


class Ops(TorchTest):
    """What a kernel's op, which is no operator of PyTorch, makes of PyTorch's tensors."""

    def setUp(self):
        layer = layer_of()
        self.forward = layer.kernel.forward
        self.x, *self.weights = (t.detach() for t in (normal(6, D), layer.gate, layer.up, layer.down))

    def test_a_first_call_imports_no_compiler(self):
        program = ("import sys, torch, kiln\n"
                   "rest = [torch.ones(8, 8) for _ in range(3)]\n"
                   "kiln.get_kernel('geglu-mlp', 1, device='cpu').forward(torch.ones(2, 8), *rest)\n"
                   "import kiln.torch\n"
                   "kiln.torch.GegluMlp(8, 8)(torch.ones(2, 8))\n"
                   "print(sorted(name for name in sys.modules if name.startswith('torch._dynamo.')))")
        self.assertEqual(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout,
                         "[]\n")

    @unittest.skipUnless(DEVICE == "cpu" and allowed_cpus() > 1, "threads are a CPU's")
    def test_set_num_threads_bounds_a_layer(self):
        program = (COUNT + "import kiln.torch, sys, torch\n"
                   "os.sched_setaffinity(0, range(os.cpu_count()))\n"
                   "torch.set_num_threads(1)\n"
                   "x = torch.ones(64, 512)\n"
                   "first = threads()\n"
                   "mlp = kiln.torch.GegluMlp(512, 2048)\n"
                   "with torch.no_grad():\n"
                   "    mlp(x[:1, :])\n"
                   "    torch.set_num_threads(int(sys.argv[1]))\n"
                   "    before = settled(first)\n"
                   "    for _ in range(3): mlp(x)\n"
                   "print(threads() - before)")
        made = [subprocess.run([sys.executable, "-c", program, threads], capture_output=True, text=True, check=True).stdout
                for threads in ("1", "2")]
        self.assertEqual(made, ["0\n", "1\n"])

    def test_who_follows_operators_is_refused(self):
        def call(x):
            return self.forward(x, *self.weights)

        def dual(x):
            with torch.autograd.forward_ad.dual_level():
                return call(x)

        cases = [("torch.jit traces it", lambda: torch.jit.trace(call, self.x)), ("forward-mode", lambda: dual(self.x))]
        if hasattr(torch, "func"):
            from torch.fx.experimental.proxy_tensor import make_fx
            from torch.utils.flop_counter import FlopCounterMode

            def counted():
                with FlopCounterMode(display=False):
                    return call(self.x)

            cases += [("ProxyTorchDispatchMode", lambda: make_fx(call)(self.x)), ("FlopCounterMode", counted),
                      ("torch.func transforms it|not a plain one", lambda: torch.func.vmap(call)(self.x[None]))]
        for words, each in cases:
            with self.subTest(words), self.assertRaisesRegex(kiln.InvalidCall, words):
                each()
        with torch.no_grad():
            self.assert_close(call(self.x), layer_of().reference(self.x), 1e-2 if ON_GPU else 1e-6)

    def test_tensors_that_are_more_than_their_memory_are_refused(self):
        class Named(torch.Tensor):
            pass

        class Loud(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                return super().__torch_function__(function, types, args, kwargs or {})

        freed = self.x.clone()
        freed.untyped_storage().resize_(0)  # as sharding frees what it gathered
        zero = torch._efficientzerotensor(self.x.shape, dtype=DTYPE, device=DEVICE)
        cases = [("negative bit", torch._neg_view(self.x)), ("without memory", zero), ("without memory", freed), ("Loud means more", self.x.as_subclass(Loud)),
                 ("not a plain one|sparse", self.x.to_sparse()), ("not a plain one|sparse", self.x.to_sparse_csr()),
                 ("not a plain one|nested", torch.nested.nested_tensor([self.x, self.x])), ("on meta", self.x.to("meta"))]
        for words, x in cases:
            with self.subTest(words), self.assertRaisesRegex(kiln.InvalidCall, words):
                self.forward(x, *self.weights)
        self.forward(self.x.as_subclass(Named), *self.weights)
        self.forward(nn.Parameter(self.x, requires_grad=False), *self.weights)

    @unittest.skipUnless(hasattr(torch.autograd.graph, "increment_version"), "wants PyTorch 2.1")
    def test_autograd_is_told_what_was_written(self):
        weight, y = torch.ones_like(self.x, requires_grad=True), torch.ones_like(self.x)
        product = (weight * y).sum()  # saves y
        self.forward(self.x, *self.weights, y=y)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()
        with torch.inference_mode():
            self.forward(self.x, *self.weights, y=torch.empty_like(self.x))


def residual_gradients(layer, x, residual, weight):
    """y, and the gradients of x, the residual and every parameter."""
    y = layer(x, residual=residual)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [x, residual, *layer.parameters()])]


def exact_residual_gradients(layer, x, residual, weight):
    wide = copy.deepcopy(layer).double()
    with kiln.torch.disabled():
        return residual_gradients(wide, *(t.detach().double().requires_grad_() for t in (x, residual)),
                                  weight.double())


class Residual(TorchTest):
    def test_values_and_gradients_against_fp64(self):
        for kind, attributes in LAYERS[::2]:
            for bias in (False, True):
                with self.subTest(attributes=attributes, bias=bias):
                    layer = layer_of(kind, bias, **attributes)
                    x, weight = normal(3, 7, D, grad=True), normal(3, 7, D)
                    residual = normal(7, 3, D).transpose(0, 1).requires_grad_()  # of other strides
                    exact = exact_residual_gradients(layer, x, residual, weight)
                    found = residual_gradients(layer, x, residual, weight)
                    for each, expected in zip(found, exact):
                        self.assert_close(each, expected)
                    self.assertTrue(torch.equal(found[2], weight))  # grad_y itself
                    with torch.no_grad():
                        self.assert_close(layer(x, residual), exact[0])

    def test_it_is_added_before_y_is_rounded(self):
        layer, x = layer_of().to(torch.bfloat16), normal(64, D).to(torch.bfloat16)
        with torch.no_grad():
            residual = -layer(x)  # what is left of y is what its rounding took
            exact = copy.deepcopy(layer).double().reference(x.double(), residual.double())
            self.assertEqual(error_of(residual + layer(x), exact), 1)
            # A GPU has rounded the product that `down` multiplies as well, and so has a CPU that multiplies bfloat16.
            rounds = ON_GPU or layer.kernel.variant.endswith(("-bf16", "-amx"))
            self.assertLess(error_of(layer(x, residual), exact), 0.9 if rounds else 0.01)

    def test_the_other_gradients_do_not_see_it(self):
        layer = layer_of(bias=True)
        x, weight = normal(9, D, grad=True), normal(9, D)
        without = gradients(layer, x, weight)
        found = residual_gradients(layer, x, normal(9, D, grad=True), weight)
        del found[2]
        for each, expected in zip(found[1:], without[1:]):
            self.assertTrue(torch.equal(each, expected))

    def test_none_gives_the_bits_of_the_op_without(self):
        layer, x = layer_of(bias=True), normal(9, D, grad=True)
        kept = (layer.gate_bias, layer.up_bias, layer.down_bias)
        with torch.no_grad():
            op = layer.kernel.forward(x, layer.gate, layer.up, layer.down, *kept)
            training_op = layer.kernel.training_forward(x, layer.gate, layer.up, layer.down, *kept).y
            for y in (layer(x), layer(x, None), layer(x, residual=torch.zeros_like(x))):
                self.assertTrue(torch.equal(y, op))
        self.assertTrue(torch.equal(layer(x), training_op))

    def test_only_what_is_wanted(self):
        layer, weight = layer_of(), normal(9, D)
        x, residual = normal(9, D), normal(9, D) + 1
        expected = exact_residual_gradients(layer, x, residual, weight)
        for wanted in (["residual"], ["x"], ["up"], ["residual", "gate"], ["x", "residual"]):
            with self.subTest(wanted=wanted):
                names = {"x": x.clone(), "residual": residual.clone(), "gate": layer.gate, "up": layer.up,
                         "down": layer.down}
                for name, tensor in names.items():
                    tensor.requires_grad_(name in wanted)
                    tensor.grad = None
                (layer(names["x"], names["residual"]) * weight).sum().backward()
                for (name, tensor), grad in zip(names.items(), expected[1:]):
                    if name in wanted:
                        self.assert_close(tensor.grad, grad)
                    else:
                        self.assertIsNone(tensor.grad)

    def test_a_leafs_gradient_is_its_own(self):
        for shape in ((6, D), (2, 3, D)):
            residual, grad_y = normal(*shape, grad=True), normal(*shape)
            layer_of()(normal(*shape), residual=residual).backward(grad_y)
            self.assertNotEqual(residual.grad.data_ptr(), grad_y.data_ptr())
            self.assertTrue(torch.equal(residual.grad, grad_y))

    def test_x_itself(self):
        layer, weight = layer_of(), normal(9, D)
        x = normal(9, D, grad=True)
        y = layer(x, x)
        wide = x.detach().double().requires_grad_()
        exact = copy.deepcopy(layer).double().reference(wide, wide)
        self.assert_close(y, exact)
        self.assert_close(torch.autograd.grad((y * weight).sum(), x)[0],
                          torch.autograd.grad((exact * weight.double()).sum(), wide)[0])

    def test_of_no_rows_and_of_one_dimension(self):
        layer = layer_of()
        self.assertEqual(layer(normal(0, D), normal(0, D)).shape, (0, D))
        x, residual = normal(D), normal(D) + 1
        self.assert_close(layer(x, residual).detach(), layer.reference(x, residual).detach(), 1e-2 if ON_GPU else 1e-6)

    def test_one_that_does_not_fit_is_named(self):
        layer, x = layer_of(), normal(3, 7, D)
        cases = [(normal(7, 3, D), r"residual is \w+ \[7, 3, 64\]"), (normal(D), r"residual is \w+ \[64\]"),
                 (normal(21, D), r"residual is \w+ \[21, 64\]"), (normal(1, 7, D), r"residual is \w+ \[1, 7, 64\]"),
                 (normal(3, 7, D).half(), r"residual is float16 \[3, 7, 64\]"),
                 (normal(3, 7, D).to("meta"), r"residual is \w+ \[3, 7, 64\] on meta")]
        for residual, words in cases:
            for wanted in (False, True):
                with self.subTest(words=words, wanted=wanted), torch.set_grad_enabled(wanted):
                    with self.assertRaisesRegex(kiln.InvalidCall, words + r".*; expected one like x, \w+ \[3, 7, 64\]"):
                        layer(x, residual)

    def test_autocast_adds_as_pytorch_does(self):
        layer = layer_of(bias=True).float()
        x = normal(6, D).float()
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                residual = (normal(6, D) + 1).to(dtype).requires_grad_()
                with torch.autocast(DEVICE, torch.bfloat16):
                    y, expected = layer(x, residual), layer.reference(x, residual)
                self.assertEqual((y.dtype, expected.dtype), (dtype, dtype))
                self.assert_close(y, expected, 1e-2)
                y.sum().backward()
                self.assertTrue(torch.equal(residual.grad, torch.ones_like(residual)))

    def test_disabled_and_replaced(self):
        model = nn.Sequential(Mlp(D, H, nn.SiLU())).to(DEVICE, DTYPE)
        x, residual = normal(5, D), normal(5, D) + 1
        expected = residual + model(x)
        kiln.torch.replace(model)
        found = model[0](x, residual=residual)
        self.assertEqual(type(found.grad_fn).__name__, "_GatedMlpBackward")
        self.assert_close(found, expected, 1e-2 if ON_GPU else 1e-6)
        with kiln.torch.disabled():
            self.assertTrue(torch.equal(model[0](x, residual=residual), expected))
        with self.assertRaises(TypeError):
            model[0](x, residual)  # an Mlp's forward has one argument


class Layers(TorchTest):
    def test_linears_are_shared(self):
        gate, up, down = nn.Linear(D, H), nn.Linear(D, H), nn.Linear(H, D)
        for linear in (gate, up, down):
            linear.to(DEVICE, DTYPE)
        layer = kiln.torch.GegluMlp.from_linears(gate, up, down)
        self.assertIs(layer.gate, gate.weight)
        self.assertIs(layer.down_bias, down.bias)
        x = normal(5, D)
        self.assert_close(layer(x), down(F.gelu(gate(x), approximate="tanh") * up(x)), 1e-2 if ON_GPU else 1e-6)
        up.register_forward_hook(lambda module, args, y: 2 * y)
        for linears, why in (((gate, up, down), "has hooks"), ((nn.Sequential(gate), gate, down), "is a Sequential")):
            with self.assertRaisesRegex(kiln.UsageError, why):
                kiln.torch.GegluMlp.from_linears(*linears)

    def test_state_dict_copy_and_dtype(self):
        layer, x = layer_of(bias=True), normal(5, D)
        other = kiln.torch.GegluMlp(D, H, bias=True, device=DEVICE, dtype=DTYPE)
        other.load_state_dict(layer.state_dict())
        self.assertTrue(torch.equal(other(x), layer(x)))
        self.assertTrue(torch.equal(copy.deepcopy(layer)(x), layer(x)))
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        half = layer.half()
        self.assertEqual(half(x.half()).dtype, torch.float16)

    def test_on_meta(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kiln.torch.FallbackWarning)
            y = layer_of().to("meta")(torch.empty(2, 3, D, dtype=DTYPE, device="meta"))
        self.assertEqual((y.shape, y.is_meta), ((2, 3, D), True))

    def test_disabled_is_pytorch(self):
        layer, x = layer_of(), normal(5, D)
        with kiln.torch.disabled():
            self.assertTrue(torch.equal(layer(x), layer.reference(x)))
            with kiln.torch.disabled():
                pass
            self.assertTrue(torch.equal(layer(x), layer.reference(x)))
        self.assertEqual(type(layer(x).grad_fn).__name__, "_GatedMlpBackward")

    def test_disabled_in_threads_that_overlap(self):
        """The first to begin is the first to end."""
        begun, ended = threading.Barrier(3), threading.Barrier(2)

        def first():
            with kiln.torch.disabled():
                begun.wait(10)
            ended.wait(10)

        def second():
            with kiln.torch.disabled():
                begun.wait(10)
                ended.wait(10)
                self.assertFalse(kiln.layer.enabled())

        threads = [threading.Thread(target=f) for f in (first, second)]
        for thread in threads:
            thread.start()
        begun.wait(10)
        for thread in threads:
            thread.join()
        self.assertTrue(kiln.layer.enabled())
        layer, x = layer_of(), normal(5, D)
        self.assertEqual(type(layer(x).grad_fn).__name__, "_GatedMlpBackward")

    def test_layers_are_made_in_several_threads(self):
        wrong, before = [], sys.getswitchinterval()

        def work(thread):
            try:
                for i in range(40):
                    kiln.layer.key_of("geglu-mlp", 1, {"approximate": "tanh"}, {"deny": [f"{thread}-{i}"]})
            except Exception as error:
                wrong.append(error)

        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, before)
        count = len(kiln.layer._sources)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, len(kiln.layer._sources)), ([], count + 8 * 40))

    def test_a_wrong_width_is_named(self):
        with self.assertRaisesRegex(kiln.InvalidCall, r"gate has shape \[144, 64\]; expected \[H, D\] with D = 63"):
            layer_of()(normal(5, D - 1))

    def test_no_such_version(self):
        with self.assertRaises(kiln.NotFound) as raised:
            kiln.torch.GegluMlp(D, H, version=99, device=DEVICE)
        self.assertEqual(raised.exception.code, 4)

    def test_overflow_reaches_the_kernel(self):
        x = normal(5, D)
        for kind in (kiln.torch.GegluMlp, kiln.torch.SwigluMlp):
            with self.subTest(kind=kind.__name__):
                plain, saturating = layer_of(kind), layer_of(kind, overflow="saturate")
                self.assertTrue(torch.equal(plain(x), saturating(x)))
                self.assertIn("overflow='saturate'", repr(saturating))
                linears = [nn.Linear(*sizes).to(DEVICE, DTYPE) for sizes in ((D, H), (D, H), (H, D))]
                for make_wrong in (lambda: layer_of(kind, overflow="never"),
                                   lambda: kind.from_linears(*linears, overflow="never")):
                    with self.assertRaisesRegex(kiln.InvalidCall, "overflow is 'never'; expected one of 'infinity'"):
                        make_wrong()

    def test_batch_invariant_rows(self):
        def row_results(layer, rows):
            x = rows.clone().requires_grad_()
            y = layer(x)
            y.sum().backward()
            return y.detach(), x.grad

        x = normal(200, D)
        for kind in (kiln.torch.GegluMlp, kiln.torch.SwigluMlp):
            with self.subTest(kind=kind.__name__):
                layer = layer_of(kind, batch_invariant=True)
                self.assertIn("batch_invariant='yes'", repr(layer))
                whole = row_results(layer, x)
                for first, count in ((0, 1), (7, 20), (3, 130)):
                    for found, expected in zip(row_results(layer, x[first:first + count]), whole):
                        self.assertTrue(torch.equal(found, expected[first:first + count]))

    @unittest.skipUnless(ON_GPU, "a CPU keeps the product in float32")
    def test_a_product_that_float16_cannot_hold(self):
        x = torch.full((8, D), 30.0, device=DEVICE, dtype=torch.float16, requires_grad=True)
        for kind in (kiln.torch.GegluMlp, kiln.torch.SwigluMlp):
            for overflow, finite in (("infinity", False), ("saturate", True)):
                with self.subTest(kind=kind.__name__, overflow=overflow):
                    layer = kind(D, H, device=DEVICE, dtype=torch.float16, overflow=overflow)
                    for weight, value in ((layer.gate, 0.5), (layer.up, 0.5), (layer.down, 2.0 ** -10)):
                        weight.data.fill_(value)  # gate and up are 960, their product 921600
                    y = layer(x)
                    self.assertEqual(bool(torch.isfinite(y).all()), finite)
                    with kiln.torch.disabled():
                        self.assertEqual(bool(torch.isfinite(layer(x)).all()), finite)
                    if finite:
                        self.assert_close(y.detach(), torch.full_like(y, 65504 * H / 1024), 1e-3)

    def test_options_reach_get_kernel(self):
        with self.assertRaises(kiln.NotFound):
            kiln.torch.GegluMlp(D, H, device=DEVICE, registry="/nowhere/at/all")
        variant = layer_of().kernel.variant
        one, two = (layer_of(variant=variant) for _ in range(2))
        self.assertEqual((one._key, one.kernel.variant), (two._key, variant))
        self.assertNotEqual(one._key, layer_of()._key)


def give_main_grads(layer):
    """Each parameter a main_grad of random numbers; and what they held."""
    layer.accumulate_into_main_grad = True
    for i, parameter in enumerate(layer.parameters()):
        parameter.main_grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)).to(DEVICE)
    return [parameter.main_grad.clone() for parameter in layer.parameters()]


class MainGrad(TorchTest):
    def assert_added(self, layer, starts, expected, times=1):
        for parameter, start, gradient in zip(layer.parameters(), starts, expected):
            self.assert_close((parameter.main_grad - start) / times, gradient)

    def test_gradients_are_added_and_grad_is_left_alone(self):
        for kind, attributes in LAYERS[::2]:
            for bias in (False, True):
                with self.subTest(attributes=attributes, bias=bias):
                    layer = layer_of(kind, bias, **attributes)
                    x, weight = normal(3, 7, D, grad=True), normal(3, 7, D)
                    expected = exact_gradients(layer, x, weight)
                    starts = give_main_grads(layer)
                    for _ in range(2):
                        x.grad = None
                        (layer(x) * weight).sum().backward()
                    self.assert_close(x.grad, expected[1])
                    self.assert_added(layer, starts, expected[2:], 2)
                    for parameter in layer.parameters():
                        self.assertIsNone(parameter.grad)

    def test_only_what_has_one_and_only_when_asked(self):
        layer, x, weight = layer_of(bias=True), normal(9, D, grad=True), normal(9, D)
        expected = dict(zip(["gate", "up", "down", "gate_bias", "up_bias", "down_bias"],
                            exact_gradients(layer, x, weight)[2:]))
        for names in (["gate", "down_bias"], ["up", "down"], ["up_bias"], []):
            with self.subTest(names=names):
                give_main_grads(layer)
                for name, parameter in layer.named_parameters():
                    parameter.grad = None
                    if name not in names:
                        del parameter.main_grad
                    else:
                        parameter.main_grad.zero_()
                (layer(x) * weight).sum().backward()
                for name, parameter in layer.named_parameters():
                    self.assertEqual(parameter.grad is None, name in names)
                    self.assert_close(parameter.main_grad if name in names else parameter.grad, expected[name])
        starts = give_main_grads(layer)
        layer.accumulate_into_main_grad = False
        (layer(x) * weight).sum().backward()
        for parameter, start in zip(layer.parameters(), starts):
            self.assertTrue(torch.equal(parameter.main_grad, start))

    def test_pytorch_adds_to_them_too(self):
        """Where PyTorch computes the layer, its backward alone, or a second derivative of it."""
        layer, x, weight = layer_of(bias=True), normal(9, D, grad=True), normal(9, D)
        expected = exact_gradients(layer, x, weight)
        arounds = {"disabled": (kiln.torch.disabled, contextlib.nullcontext)}
        if hasattr(torch, "func"):
            from torch.utils.flop_counter import FlopCounterMode

            counted = lambda: FlopCounterMode(display=False)
            arounds |= {"watched": (counted, counted), "watched backward": (contextlib.nullcontext, counted)}
        for what, (forward, backward) in arounds.items():
            with self.subTest(what):
                x.grad = None
                starts = give_main_grads(layer)
                layer.gate.grad_added_to_main_grad = False
                with forward(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    y = (layer(x) * weight).sum()
                with backward():
                    y.backward()
                self.assertTrue(layer.gate.grad_added_to_main_grad)
                layer.gate.grad = None  # the one that runs hooks
                self.assert_added(layer, starts, expected[2:])
                self.assert_close(x.grad, expected[1])
                self.assertEqual([p.grad for p in layer.parameters()], 6 * [None])

    def test_the_words_of_megatron(self):
        layer, x = layer_of(), normal(9, D)
        give_main_grads(layer)
        layer.gate.grad_added_to_main_grad = layer.up.grad_added_to_main_grad = False
        layer.up.zero_out_wgrad = True
        seen = []
        layer.gate.register_hook(lambda grad: seen.append(grad.shape))
        layer(x).sum().backward()
        self.assertTrue(layer.gate.grad_added_to_main_grad and layer.up.grad_added_to_main_grad)
        self.assertEqual(seen, [layer.gate.shape])
        self.assertEqual(layer.up.grad.abs().max().item(), 0)
        self.assertIsNone(layer.down.grad)

    def test_autocast_adds_to_those_of_wide_parameters(self):
        layer = layer_of().float()
        x, weight = normal(9, D).float(), normal(9, D).float()
        expected = exact_gradients(layer, x.requires_grad_(), weight)
        starts = give_main_grads(layer)
        with torch.autocast(DEVICE, torch.bfloat16):
            (layer(x) * weight).sum().backward()
        for parameter, start, gradient in zip(layer.parameters(), starts, expected[2:]):
            self.assert_close(parameter.main_grad - start, gradient, 2e-2)
            self.assertIsNone(parameter.grad)

    def test_one_that_does_not_fit_is_named(self):
        layer, x = layer_of(), normal(9, D)
        for wrong in (torch.zeros(H, D, dtype=torch.float16), torch.zeros(H, D + 1), torch.zeros(D, H).t()):
            give_main_grads(layer)
            layer.up.main_grad = wrong.to(DEVICE)
            with self.assertRaisesRegex(kiln.InvalidCall, "main_grad_up"):
                layer(x).sum().backward()

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "PyTorch 2.4 is needed")
    def test_torch_compile_breaks_the_graph(self):
        layer, x, weight = layer_of(), normal(9, D, grad=True), normal(9, D)
        expected = exact_gradients(layer, x, weight)
        starts = give_main_grads(layer)
        (torch.compile(lambda x: 2 * layer(x))(x) * weight).sum().backward()
        self.assert_added(layer, starts, expected[2:], 2)


@unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
class Compile(TorchTest):
    def setUp(self):
        torch.compiler.reset()  # PyTorch compiles the forward that all layers share at most eight times

    def test_no_graph_breaks_forward_and_backward(self):
        for kind, attributes in LAYERS[::2]:
            layer = layer_of(kind, True, **attributes)
            compiled = torch.compile(layer, fullgraph=True)
            x, weight = normal(6, D, grad=True), normal(6, D)
            for found, expected in zip(gradients(compiled, x, weight), exact_gradients(layer, x, weight)):
                self.assert_close(found, expected)
            with torch.no_grad():
                self.assertTrue(torch.equal(compiled(x), layer(x)))

    def test_no_graph_breaks_with_a_residual(self):
        for kind, attributes in LAYERS[::2]:
            torch.compiler.reset()
            layer = layer_of(kind, True, **attributes)
            compiled = torch.compile(layer, fullgraph=True, dynamic=True)
            for shape in ((6, D), (2, 5, D), (3, 7, D)):
                x, residual, weight = normal(*shape, grad=True), normal(*shape) + 1, normal(*shape)
                residual.requires_grad_()
                y = compiled(x, residual)
                inputs = [x, residual, *layer.parameters()]
                found = [y.detach(), *torch.autograd.grad((y * weight).sum(), inputs)]
                for each, expected in zip(found, exact_residual_gradients(layer, x, residual, weight)):
                    self.assert_close(each, expected)
                with torch.no_grad():
                    self.assertTrue(torch.equal(compiled(x, residual), layer(x, residual)))
                    self.assertTrue(torch.equal(compiled(x), layer(x)))

    def test_the_graph_holds_the_operator(self):
        seen = []

        def backend(graph, _):
            seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
            return graph.forward

        with torch.no_grad():
            torch.compile(layer_of(), fullgraph=True, backend=backend)(normal(6, D))
        self.assertTrue(any("gated_mlp" in target for target in seen), seen)

    def test_a_model_with_many_lengths(self):
        model = make("gemma", DEVICE, DTYPE)
        self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
        compiled = torch.compile(model, fullgraph=True, dynamic=True)
        for length in (5, 9, 14):
            tokens = torch.arange(2 * length, device=DEVICE).view(2, length)
            self.assert_close(compiled(tokens), model(tokens), 2e-2 if ON_GPU else 1e-5)

    def test_what_pytorch_asks_of_an_operator(self):
        layer = layer_of(bias=True)
        weights = [layer.gate, layer.up, layer.down, layer.gate_bias, layer.up_bias, layer.down_bias]
        fresh = [w.detach().clone().requires_grad_() for w in weights]
        tolerance = {"atol": 2e-2, "rtol": 2e-2} if ON_GPU else {}
        for residual in (None, normal(4, D, grad=True)):
            torch.library.opcheck(torch.ops.kiln.gated_mlp_training,
                                  (normal(4, D, grad=True), *fresh, residual, layer._key), **tolerance)
            torch.library.opcheck(torch.ops.kiln.gated_mlp,
                                  (normal(4, D), *(w.detach() for w in weights),
                                   None if residual is None else residual.detach(), layer._key), **tolerance)

    def test_a_graph_of_another_process_is_refused_with_words(self):
        layer, x = layer_of(), normal(4, D)
        with self.assertRaisesRegex(RuntimeError, "was not made in this process"):
            torch.ops.kiln.gated_mlp(x, *(w.detach() for w in (layer.gate, layer.up, layer.down)), None, None, None,
                                     None, "geglu-mlp@1?approximate=tanh#77")


@unittest.skipUnless(ON_GPU, "wants a GPU")
class Streams(TorchTest):
    def test_forward_in_a_cuda_graph(self):
        for with_residual in (False, True):
            layer, x = layer_of(bias=True).requires_grad_(False), normal(8, D)
            residual = normal(8, D) + 1 if with_residual else None
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x, residual)
            for seed in range(3):
                for each in (x, residual) if with_residual else (x,):
                    each.copy_(torch.randn(8, D, generator=torch.Generator().manual_seed(seed)))
                y.fill_(float("nan"))
                graph.replay()
                self.assertTrue(torch.equal(y, layer(x, residual)))

    def test_a_training_step_in_a_cuda_graph(self):
        layer, x, weight = layer_of(), normal(8, D, grad=True), normal(8, D)
        residual = (normal(8, D) + 1).requires_grad_()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # as PyTorch asks for: autograd's streams, made before the capture
            residual_gradients(layer, x, residual, weight)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = residual_gradients(layer, x, residual, weight)
        with torch.no_grad():
            for seed, each in enumerate((x, residual)):
                each.copy_(torch.randn(8, D, generator=torch.Generator().manual_seed(seed)))
        for result in captured:
            result.fill_(float("nan"))
        graph.replay()
        for found, expected in zip(captured, residual_gradients(layer, x, residual, weight)):
            self.assertTrue(torch.equal(found, expected))

    def test_compiled_with_cuda_graphs(self):
        layer = layer_of().requires_grad_(False)
        compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
        for seed in range(4):
            x = torch.randn(8, D, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)
            with torch.no_grad():
                self.assertTrue(torch.equal(compiled(x).clone(), layer(x)))
                self.assertTrue(torch.equal(compiled(x, x + 1).clone(), layer(x, x + 1)))

    def test_the_current_stream_is_the_one(self):
        layer = layer_of().requires_grad_(False)
        x = normal(8, D)
        expected = layer(x)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # about 10 ms, in which the default stream would run ahead
            late = x * 1
            y = layer(late)
        stream.synchronize()
        self.assertTrue(torch.equal(y, expected))

    def test_an_explicit_stream(self):
        layer = layer_of().requires_grad_(False)
        x, stream = normal(8, D), torch.cuda.Stream()
        torch.cuda.synchronize()
        for given in (stream, stream.cuda_stream):
            y = layer.kernel.forward(x, layer.gate, layer.up, layer.down, stream=given)
            stream.synchronize()
            self.assertTrue(torch.equal(y, layer(x)))


class Odd(Mlp):
    def forward(self, x):
        return super().forward(x) * 1.1


class Scaled(Mlp):
    """Each computes what an Mlp does, as long as the tensor that it holds has its first value."""

    def __init__(self, kind):
        super().__init__(D, H, nn.SiLU())
        ones = torch.ones(D, dtype=DTYPE, device=DEVICE)
        self.register_buffer("scale", ones) if kind == "buffer" else setattr(
            self, "scale", nn.Parameter(ones) if kind == "parameter" else ones)

    def forward(self, x):
        return super().forward(x) * self.scale


class ScaledSilu(nn.SiLU):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, z):
        return super().forward(z) * self.scale


class NotThere(nn.Module):
    """Its children say that they are not there by another error than Python's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(D, D)

    @property
    def gate_proj(self):
        raise RuntimeError("load the weights first")


class NoClassBelow(Mlp):
    def __init_subclass__(cls):
        raise ValueError("it is the last of its line")


class ForwardOfInstances(Mlp):
    forward = property(lambda self: self.down_proj)


class Sparse(Mlp):
    """As Gemma 3n's: only the largest of the gate are kept."""

    def forward(self, x):
        gate = self.gate_proj(x)
        gate = torch.relu(gate - gate.mean(-1, keepdim=True))
        return self.down_proj(self.act_fn(gate) * self.up_proj(x))


class Noting(Mlp):
    """Computes what an Mlp does, and notes something: in an attribute, a number, a list, a dict."""

    def __init__(self, kind):
        super().__init__(D, H, nn.SiLU())
        self.kind, self.calls, self.norms, self.seen = kind, 0, [], {}

    def forward(self, x):
        h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        if self.kind == "sparsity":
            self.sparsity = h.abs().mean()
        elif self.kind == "calls":
            self.calls += 1
        elif self.kind == "norms":
            self.norms.append(h.norm())
        else:
            self.seen[x.shape] = h.norm()
        return self.down_proj(h)


class NotingSilu(nn.SiLU):
    def forward(self, z):
        self.largest = z.max()
        return super().forward(z)


class TwoMatrices(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D, H), nn.Linear(H, D)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class PackedMLP(TwoMatrices):
    """Of two linears under names that nobody knows."""


class Fused(nn.Module):
    """As Phi-3's, GLM-4's and ModernBERT's: gate and up in one."""

    def __init__(self, names=("gate_up_proj", "down_proj"), gate_first=True, bias=False, p=0.0):
        super().__init__()
        self.names, self.gate_first = names, gate_first
        setattr(self, names[0], nn.Linear(D, 2 * H, bias=bias))
        setattr(self, names[1], nn.Linear(H, D, bias=bias))
        self.activation_fn, self.drop = nn.SiLU(), nn.Dropout(p)

    def forward(self, hidden_states):
        first, second = getattr(self, self.names[0])(hidden_states).chunk(2, dim=-1)
        if not self.gate_first:
            first, second = second, first
        return getattr(self, self.names[1])(self.drop(self.activation_fn(first) * second))


class Inline(nn.Module):
    """Meta's Llama: the activation is called in forward, the names are numbers."""

    def __init__(self, names=("w1", "w3", "w2"), activation=F.silu):
        super().__init__()
        self.names, self._activation = names, activation
        for name, sizes in zip(names, ((D, H), (D, H), (H, D))):
            setattr(self, name, nn.Linear(*sizes))

    def forward(self, x, **unused):
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self._activation(gate(x)) * up(x))


class Replace(TorchTest):
    def test_what_is_swapped(self):
        for act_fn, word in ((nn.SiLU(), "silu"), (GeluTanh(), "tanh"), (nn.GELU(), "none"), (nn.ReLU(), "relu"),
                             (torch.sigmoid, "sigmoid")):
            for bias in (False, True):
                with self.subTest(word=word, bias=bias):
                    model = nn.Sequential(Mlp(D, H, act_fn, bias)).to(DEVICE, DTYPE)
                    before, keys = [id(p) for p in model.parameters()], list(model.state_dict())
                    x, weight = normal(5, D, grad=True), normal(5, D)
                    expected = gradients(copy.deepcopy(model).double(), x.detach().double().requires_grad_(),
                                         weight.double())
                    report = kiln.torch.replace(model)
                    self.assertEqual([(s.name, s.kind, s.swapped) for s in report.swaps], [("0", "Mlp", True)])
                    self.assertIn(word, report.swaps[0].what)
                    self.assertEqual(before, [id(p) for p in model.parameters()])
                    self.assertEqual(keys, list(model.state_dict()))
                    for found, wide in zip(gradients(model, x, weight), expected):
                        self.assert_close(found, wide)

    def test_what_stays_and_why(self):
        hooked, patched, dropping = (Mlp(D, H, nn.SiLU()) for _ in range(3))
        hooked.up_proj.register_forward_hook(lambda *_: None)
        patched.forward = patched.forward
        dropping.norm = nn.LayerNorm(H)
        wrapped, uneven = Mlp(D, H, nn.SiLU()), Mlp(D, H, nn.SiLU())
        wrapped.up_proj = nn.Sequential(wrapped.up_proj)
        uneven.up_proj = nn.Linear(D, H + 1)
        cases = [(Odd(D, H, nn.SiLU()), "its forward is not"), (Sparse(D, H, nn.SiLU()), "its forward is not"),
                 (Mlp(D, H, nn.Tanh()), "its activation is not"), (Mlp(D, H, nn.PReLU()), "its activation is not"),
                 (PackedMLP(), "has no gate_proj, up_proj, down_proj; linears= names others"), (hooked, "hooks"),
                 (patched, "a forward of its own"), (dropping, "a LayerNorm beside"),
                 (wrapped, "up_proj is a Sequential"),
                 (uneven, "do not belong together"), *((Scaled(kind), "a tensor beside its linears, scale")
                                                       for kind in ("parameter", "buffer", "attribute")),
                 (Mlp(D, H, ScaledSilu()), "its activation is not"), (NotThere(), "RuntimeError: load the weights first"),
                 (NoClassBelow(D, H, nn.SiLU()), "it is the last of its line"),
                 (ForwardOfInstances(D, H, nn.SiLU()), "TypeError"), (Mlp(D, H, nn.SiLU()), "torch.float64")]
        model = nn.Sequential(*(nn.Sequential(module) for module, _ in cases), TwoMatrices()).to(DEVICE, DTYPE)
        cases[-1][0].double()
        reasons = [why for _, why in cases]
        report = kiln.torch.replace(model)
        self.assertEqual(report.swapped, ())
        self.assertEqual(len(report.kept), len(reasons), str(report))
        for swap, why in zip(report.kept, reasons):
            self.assertIn(why, swap.what)

    def test_a_forward_that_writes_stays_and_nothing_is_written(self):
        cases = {kind: Noting(kind) for kind in ("sparsity", "calls", "norms", "seen")}
        cases["act_fn.largest"] = Mlp(D, H, NotingSilu())
        for name, module in cases.items():
            with self.subTest(name):
                report = kiln.torch.replace(nn.Sequential(module).to(DEVICE, DTYPE))
                self.assertEqual([swap.what for swap in report.kept],
                                 [f"its forward writes {name}, which would no longer be written"])
                for part in (module, module.act_fn):
                    self.assertFalse({"sparsity", "largest"} & vars(part).keys())
        for module in list(cases.values())[:-1]:
            self.assertEqual((module.calls, module.norms, module.seen), (0, [], {}))

    def test_weights_that_are_zero_hide_no_other_forward(self):
        for name in ("gate_proj", "up_proj", "down_proj"):
            for kind, swapped in ((Mlp, 1), (Odd, 0)):
                with self.subTest(name=name, kind=kind):
                    model = nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, DTYPE)
                    weight = nn.init.zeros_(model[0].get_submodule(name).weight)
                    report = kiln.torch.replace(model)
                    self.assertEqual(len(report.swapped), swapped, str(report))
                    self.assertIs(model[0].get_submodule(name).weight, weight)
                    self.assertFalse(weight.any())

    def test_rows_beyond_float16_are_no_other_forward(self):
        for kind, swapped in ((Mlp, 1), (Odd, 0)):
            with self.subTest(kind=kind):
                model = nn.Sequential(kind(D, H, nn.SiLU()))
                for parameter in model.parameters():  # x of 100 then gives a gate and an up of 10,000
                    nn.init.normal_(parameter, std=100 / D ** 0.5)
                report = kiln.torch.replace(model.to(DEVICE, torch.float16))
                self.assertEqual(len(report.swapped), swapped, str(report))

    def test_the_model_itself_and_a_shared_mlp(self):
        mlp = Mlp(D, H, nn.SiLU()).to(DEVICE, DTYPE)
        self.assertEqual(kiln.torch.replace(mlp).swapped[0].name, "the model")
        self.assertIsInstance(mlp, Mlp)
        self.assertIn("swiglu-mlp@1", repr(mlp))
        self.assertEqual((kiln.torch.restore(mlp), kiln.torch.restore(mlp), type(mlp)), (1, 0, Mlp))
        model = nn.Sequential(mlp, nn.ModuleList([mlp]), mlp)
        self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
        self.assertIs(model[0], model[2])
        self.assertIs(model[0], model[1][0])
        self.assertEqual(kiln.torch.replace(model).swaps, ())
        self.assertEqual(kiln.torch.restore(model), 1)
        self.assertIs(model[1][0], mlp)

    def assert_swapped(self, module, words="", **options):
        """Values and gradients are the original's, and names, keys and parameters stay."""
        model = nn.Sequential(module).to(DEVICE, DTYPE)
        before, keys = [id(p) for p in model.parameters()], list(model.state_dict())
        x, weight = normal(5, D, grad=True), normal(5, D)
        expected = gradients(copy.deepcopy(model).double(), x.detach().double().requires_grad_(), weight.double())
        report = kiln.torch.replace(model, **options)
        self.assertEqual(len(report.swapped), 1, str(report))
        self.assertIn(words, report.swapped[0].what)
        self.assertEqual((before, keys), ([id(p) for p in model.parameters()], list(model.state_dict())))
        for found, wide in zip(gradients(model, x, weight), expected):
            self.assert_close(found, wide)
        with torch.no_grad():
            self.assert_close(model(x), expected[0])
        return model

    def test_gate_and_up_in_one(self):
        for gate_first in (True, False):
            for bias in (False, True):
                for names in (("gate_up_proj", "down_proj"), ("Wi", "Wo"), ("w12", "w3")):
                    with self.subTest(gate_first=gate_first, bias=bias, names=names):
                        model = self.assert_swapped(Fused(names, gate_first, bias), "silu")
                        module = model[0]
                        first, second = module._kiln.fit.tensors_of(module)[:2]
                        whole = getattr(module, names[0]).weight
                        self.assertEqual({first.data_ptr(), second.data_ptr()},
                                         {whole.data_ptr(), whole[H:].data_ptr()})  # nothing is copied
                        self.assertTrue(torch.equal(model(normal(5, D)), module(hidden_states=normal(5, D))))

    def test_linears_of_other_names(self):
        for activation, words in ((F.silu, "swiglu-mlp"), (F.gelu, "none"), (torch.relu, "relu"),
                                  (lambda z: F.gelu(z, approximate="tanh"), "tanh"), (torch.sigmoid, "sigmoid")):
            with self.subTest(words):
                self.assert_swapped(Inline(activation=activation), words)
        names = ("inner", "outer", "back")
        for key in (Inline, "Inline"):
            self.assert_swapped(Inline(names), linears={key: names})
        self.assert_swapped(Fused(("both", "back")), linears={"Fused": ("both", "back")})
        model = nn.Sequential(Inline(names)).to(DEVICE, DTYPE)
        for wrong, why in ((("inner", "outer"), "do not belong together"),
                           (("outer", "inner", "back"), "its forward is not"),
                           (("inner", "outer", "nothing"), "has no nothing")):
            self.assertIn(why, kiln.torch.replace(model, linears={Inline: wrong}).kept[0].what)
        for wrong in (("inner",), ("a", "b", "c", "d")):
            with self.assertRaisesRegex(kiln.UsageError, r"expected \(gate, up, down\) or \(gate_up, down\)"):
                kiln.torch.replace(model, linears={Inline: wrong})
        self.assertIn("not a GELU", kiln.torch.replace(nn.Sequential(Inline(activation=torch.tanh))).kept[0].what)

    def test_an_input_that_the_original_converts(self):
        class Casts(Mlp):
            def forward(self, x):
                return super().forward(x.to(self.up_proj.weight.device, self.up_proj.weight.dtype)).to(x.dtype)

        class Folds(Mlp):
            def forward(self, x):
                return super().forward(x.reshape(-1, D)).reshape(x.shape)

        for kind, given, why in ((Casts, normal(5, D).half(), "x is float16 "), (Folds, normal(5, 2, D // 2), "x is ")):
            model = nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, DTYPE)
            expected = model(given)
            self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
            with self.assertWarnsRegex(kiln.torch.FallbackWarning, why):
                self.assertTrue(torch.equal(model(given), expected))

    def test_more_than_the_input_runs_the_original(self):
        model = self.assert_swapped(Inline())
        x = normal(5, D)
        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "called with something else than its input"):
            y = model[0](x, layer=3)
        self.assert_close(y, model(x))
        self.assertEqual(list(inspect.signature(model[0].forward).parameters), ["x", "residual", "unused"])

    def test_what_is_misspelt_is_told_where_it_is_said(self):
        for call in (lambda: layer_of(biass=True), lambda: kiln.torch.replace(nn.Sequential(), biass=True)):
            with self.assertRaisesRegex(TypeError, "(GegluMlp|replace) has no option 'biass'; of get_kernel's it"):
                call()
        for kind, words in ((kiln.torch.GegluMlp, {"approximate": "erf"}),
                            (kiln.torch.SwigluMlp, {"activation": "mish"}),
                            (kiln.torch.SwigluMlp, {"limit": "7"}), (kiln.torch.GegluMlp, {"overflow": True})):
            with self.subTest(words), self.assertRaisesRegex(kiln.InvalidCall, next(iter(words)) + " is .*; expected"):
                layer_of(kind, **words)
        for call in (lambda: layer_of(batch_invariant="no"),
                     lambda: kiln.torch.replace(nn.Sequential(Mlp(D, H, nn.SiLU())), batch_invariant="no")):
            with self.assertRaisesRegex(kiln.UsageError, "batch_invariant is 'no'; expected True or False"):
                call()
        with self.assertRaisesRegex(kiln.InvalidCall, "overflow is 'no'; expected one of 'infinity', 'saturate'"):
            kiln.torch.replace(nn.Sequential(Mlp(D, H, nn.SiLU())).to(DEVICE, DTYPE), overflow="no")

    def test_another_process_finds_its_kernels(self):
        model = nn.Sequential(Mlp(D, H, nn.SiLU()), kiln.torch.GegluMlp(D, H, fallback=["cpu"])).to(DEVICE, DTYPE)
        kiln.torch.replace(model, fallback=["cpu"])
        x = normal(5, D)
        program = ("import sys, torch, kiln.torch\n"
                   "model, x, y = torch.load(sys.argv[1], weights_only=False)\n"
                   "assert type(model[0]).__name__ == 'KilnMlp' and model[0]._kiln.told == set()\n"
                   "with torch.no_grad(): error = (model(x) - y).norm() / y.norm()\n"
                   "assert error < 1e-2, error\n"
                   "y = model(x); y.sum().backward()\n"
                   "print(type(y.grad_fn).__name__, kiln.torch.restore(model), type(model[0]).__name__)")
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            torch.save((model, x, model(x)), folder + "/model")
            answer = subprocess.run([sys.executable, "-W", "error::kiln.torch.FallbackWarning", "-c", program,
                                     folder + "/model"], capture_output=True, text=True, check=False,
                                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual((answer.stdout, answer.returncode), ("_GatedMlpBackward 1 Mlp\n", 0), answer.stderr)

    def test_disabled_runs_the_original(self):
        model = nn.Sequential(Mlp(D, H, nn.SiLU())).to(DEVICE, DTYPE)
        x = normal(5, D)
        expected = model(x)
        kiln.torch.replace(model)
        with kiln.torch.disabled():
            self.assertTrue(torch.equal(model(x), expected))
        self.assertEqual(type(model(x).grad_fn).__name__, "_GatedMlpBackward")
        copied = copy.deepcopy(model)
        with torch.no_grad():
            copied[0].up_proj.weight.zero_()
            self.assertEqual(copied(x).abs().max().item(), 0)
            with kiln.torch.disabled():
                self.assertEqual(copied(x).abs().max().item(), 0)  # the copy's original has the copy's weights

    def test_a_missing_kernel_is_thrown(self):
        model = nn.Sequential(Mlp(D, H, nn.SiLU())).to(DEVICE, DTYPE)
        with self.assertRaises(kiln.NotFound):
            kiln.torch.replace(model, version=99)
        self.assertIs(type(model[0]), Mlp)

    @unittest.skipUnless(transformers, "wants transformers")
    def test_models_of_other_layouts(self):
        of_t5 = {"d_model": D, "d_ff": H, "d_kv": 16, "num_heads": 4, "num_layers": 1, "vocab_size": 96,
                 "feed_forward_proj": "gated-gelu"}
        of_others = {"hidden_size": D, "intermediate_size": H, "num_hidden_layers": 1, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96, "pad_token_id": 0}
        for name, kind, package, count in (("Phi3", "ForCausalLM", "swiglu-mlp", 1),
                                           ("Glm4", "ForCausalLM", "swiglu-mlp", 1),
                                           ("ModernBert", "Model", "geglu-mlp", 1),
                                           ("T5", "ForConditionalGeneration", "geglu-mlp", 2)):
            if not hasattr(transformers, name + "Config"):
                continue
            with self.subTest(name):
                torch.manual_seed(0)
                config = getattr(transformers, name + "Config")(**(of_t5 if name == "T5" else of_others))
                model = getattr(transformers, name + kind)(config).to(DEVICE, DTYPE).eval()
                other = copy.deepcopy(model)
                tokens = torch.arange(24, device=DEVICE).view(2, 12)
                inputs = {"input_ids": tokens, **({"decoder_input_ids": tokens} if name == "T5" else {})}
                report = kiln.torch.replace(other)
                self.assertEqual((len(report.swapped), report.kept), (count, ()), str(report))
                self.assertTrue(all(package in s.what for s in report.swapped))
                self.assertEqual("in evaluation" in report.swapped[0].what, name == "T5")
                grads = []
                for each in (model, other):
                    y = each(**inputs)[0]
                    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
                    (y.float() * weight).sum().backward()
                    grads.append([y.detach(), *(p.grad for p in each.parameters() if p.grad is not None)])
                for found, expected in zip(*reversed(grads)):
                    self.assert_close(found, expected, 5e-2 if ON_GPU else 1e-4)
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    results = []
                    for each in (model.train(), other.train()):
                        torch.manual_seed(1)
                        results.append(each(**inputs)[0].detach())
                self.assert_close(*results, 5e-2 if ON_GPU else 1e-5)
                drops = [w for w in told if w.category is kiln.torch.FallbackWarning]
                self.assertEqual(len(drops), 2 if name == "T5" else 0)
                self.assertTrue(all("drops in training" in str(w.message) for w in drops))

    @unittest.skipUnless(transformers, "wants transformers")
    def test_the_models_of_transformers(self):
        sizes = {"hidden_size": D, "intermediate_size": H, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96}
        for name, package in (("Gemma", "geglu-mlp"), ("Gemma2", "geglu-mlp"), ("Llama", "swiglu-mlp")):
            with self.subTest(name=name):
                torch.manual_seed(0)
                config = getattr(transformers, name + "Config")(**sizes)
                model = getattr(transformers, name + "ForCausalLM")(config).to(DEVICE, DTYPE).eval()
                tokens = torch.arange(24, device=DEVICE).view(2, 12)
                expected = model(tokens, labels=tokens)
                report = kiln.torch.replace(model)
                self.assertEqual([s.name for s in report.swapped], ["model.layers.0.mlp", "model.layers.1.mlp"])
                self.assertTrue(all(package in s.what for s in report.swapped), str(report))
                self.assertEqual(report.kept, ())
                found = model(tokens, labels=tokens)
                self.assert_close(found.logits, expected.logits, 2e-2 if ON_GPU else 1e-5)
                found.loss.backward()
                self.assertGreater(model.model.layers[0].mlp.gate_proj.weight.grad.float().norm().item(), 0)


class Training(TorchTest):
    def test_200_steps_have_the_same_losses_with_and_without(self):
        for layout in ("gemma", "llama"):
            with self.subTest(layout=layout):
                model = make(layout, DEVICE, DTYPE)
                without = train(copy.deepcopy(model), DEVICE)
                self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
                losses = train(model, DEVICE)
                self.assertLess(losses[-1], losses[0] / 3)  # it learns
                worst = max(abs(a - b) for a, b in zip(losses, without))
                self.assertLess(worst, 0.1 if ON_GPU else 0.01)
                self.assertNotEqual(losses, without)  # or nothing was compared


if __name__ == "__main__":
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    unittest.main()
