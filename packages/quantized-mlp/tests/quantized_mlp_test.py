#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.QuantizedMlp against PyTorch's operators on the dequantized weights: layouts, gradients, torch.compile,
copies; on a GPU in a CUDA graph;
and kiln.torch.replace of modules that hold what public quantisers write.

    quantized_mlp_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                                 or "cuda"
"""

import collections.abc
import contextlib
import copy
import functools
import io
import pathlib
import pickle
import sys
import types
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase, normal  # first: it skips where there is no torch
import torch
import torch.nn.functional as F
import kiln.torch

D, H = 128, 192
SHAPES = {"gate": (H, D), "up": (H, D), "down": (D, H)}


def random_codes(rows, columns, bits, seed):
    return torch.randint(0, 1 << bits, (rows, columns), generator=torch.Generator().manual_seed(seed))


def words_of(values, bits):
    """int32, codes along the last dimension."""
    count = 32 // bits
    parts = values.to(torch.int64).unflatten(-1, (-1, count)) << torch.arange(0, 32, bits)
    total = parts.sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def layer_of(bits=4, group=64, zeros=True, dtype=torch.bfloat16, layout="gptq", **options):
    """A layer, and the weights that its codes mean."""
    mlp = kiln.torch.QuantizedMlp(D, H, bits=bits, group=group, zeros=zeros, dtype=dtype, device=DEVICE, **options)
    weights = {}
    for seed, (name, (rows, columns)) in enumerate(SHAPES.items()):
        codes = random_codes(rows, columns, bits, seed)
        groups = columns // group
        scales = (normal(rows, groups, seed=10 + seed).cpu().abs() / (1 << bits) / 8).to(dtype)
        zero = random_codes(rows, groups, bits, 20 + seed)
        spread = [t.repeat_interleave(group, 1) for t in (zero, scales.float())]
        middle = 1 << (bits - 1)
        weights[name] = ((codes - (spread[0] if zeros else middle)).float() * spread[1]).to(DEVICE)
        given = (zero if zeros else torch.full_like(zero, middle))
        if layout == "plain":
            mlp.pack(name, codes.to(torch.uint8), scales, given.to(torch.uint8) if zeros else None)
        elif layout == "compressed_tensors":
            mlp.pack(name, words_of(codes, bits), scales, words_of(given.T, bits).T.contiguous(), layout=layout)
        else:
            less = 1 if layout == "gptq" else 0
            stored = (given - less) & ((1 << bits) - 1)
            mlp.pack(name, words_of(codes, bits).T, scales.T, words_of(stored.T, bits), layout=layout)
    return mlp, weights


def float8_layer_of(group=0, scale_rows=1, scales_in=torch.float32, dtype=torch.bfloat16, **options):
    """A layer in FP8, and its weights. A scale is for a row, for 128 rows or, with 0, for all."""
    mlp = kiln.torch.QuantizedMlp(D, H, float8=True, group=group, dtype=dtype, device=DEVICE, **options)
    weights = {}
    for seed, (name, (rows, columns)) in enumerate(SHAPES.items()):
        codes = normal(rows, columns, seed=seed).cpu().clamp(-4, 4).mul(100).to(torch.float8_e4m3fn)
        lines, groups = -(-rows // (scale_rows or rows)), -(-columns // (group or columns))
        scales = (normal(lines, groups, seed=10 + seed).cpu().abs() / 1200).to(scales_in)
        spread = scales.float().repeat_interleave(scale_rows or rows, 0)[:rows]
        weights[name] = (codes.float() * spread.repeat_interleave(group or columns, 1)[:, :columns]).to(DEVICE)
        mlp.pack(name, codes, scales)
    return mlp, weights


W8A8 = {"input_dtype": "float8_e4m3fn"}
KINDS = {  # of a layer in bfloat16
    "int4": layer_of, "int4, plain": functools.partial(layer_of, zeros=False, layout="plain"),
    "int8": functools.partial(layer_of, 8), "FP8, rows": float8_layer_of,
    "FP8, blocks": functools.partial(float8_layer_of, 128, 128), "W8A8, rows": functools.partial(float8_layer_of, **W8A8),
    "W8A8, blocks": functools.partial(float8_layer_of, 128, 128, **W8A8)}


def expected(x, weights, residual=None):
    h = F.silu(x.float() @ weights["gate"].T) * (x.float() @ weights["up"].T)
    y = h @ weights["down"].T
    return (y if residual is None else y + residual.float()).to(x.dtype)


class QuantizedMlp(TorchCase):
    def test_layouts(self):
        for layout in ("plain", "gptq", "gptq_v2", "compressed_tensors"):
            for bits in (4, 8):
                for zeros in (False, True):
                    for dtype in (torch.bfloat16, torch.float16):
                        with self.subTest(layout=layout, bits=bits, zeros=zeros, dtype=dtype):
                            mlp, weights = layer_of(bits, zeros=zeros, dtype=dtype, layout=layout)
                            for shape in ((3, D), (2, 20, D), (D,)):
                                x = normal(*shape, dtype=dtype, seed=3)
                                self.assert_close([mlp(x)], [expected(x, weights)], dtype)

    def test_float8(self):
        for group, scale_rows in ((0, 1), (0, 0), (128, 128), (64, 1)):
            for scales_in in (torch.float32, torch.bfloat16):
                for dtype in (torch.bfloat16, torch.float16):
                    with self.subTest(group=group, scale_rows=scale_rows, scales_in=scales_in, dtype=dtype):
                        mlp, weights = float8_layer_of(group, scale_rows, scales_in, dtype)
                        for rows in (1, 20, 70):
                            x = normal(rows, D, dtype=dtype, seed=3)
                            found = mlp(x)
                            self.assert_close([found], [expected(x, weights)], dtype)
                            with kiln.torch.disabled():
                                self.assert_close([mlp(x)], [found], dtype)
        with torch.no_grad():
            fresh, _ = float8_layer_of(64, 0)
            fresh.load_state_dict(mlp.state_dict())
            self.assertTrue(torch.equal(copy.deepcopy(fresh)(x), found))
            self.assertTrue(torch.equal(torch.compile(mlp, fullgraph=True, backend="eager")(x), found))
            state = mlp.state_dict()
            torch.nn.Sequential(mlp.bfloat16()).to(DEVICE, x.dtype)
            self.assertTrue(torch.equal(mlp(x), found))
            for name, tensor in mlp.state_dict().items():
                self.assertEqual(tensor.dtype, state[name].dtype)
        with self.assertRaisesRegex(kiln.UsageError, "FP8 have no zeros"):
            kiln.torch.QuantizedMlp(D, H, float8=True, zeros=True)

    def test_float8_input(self):
        def relative(a, b):
            return float((a.float() - b.float()).norm() / b.float().norm())

        def rounded(t, dtype):
            width = t.shape[-1]
            values = F.pad(t.to(dtype).float(), (0, -width % 128)).unflatten(-1, (-1, 128))
            scale = torch.exp2(torch.ceil(torch.log2(values.abs().amax(-1, keepdim=True) / 448)))
            return ((values / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)[..., :width]

        for dtype in (torch.bfloat16, torch.float16):
            for rows in (1, 20, 70):
                with self.subTest(dtype=dtype, rows=rows):
                    mlp, weights = float8_layer_of(dtype=dtype, input_dtype="float8_e4m3fn")
                    x = normal(rows, D, dtype=dtype, seed=3)
                    inputs = rounded(x, dtype)
                    h = F.silu(inputs @ weights["gate"].T) * (inputs @ weights["up"].T)
                    meant = rounded(h, dtype) @ weights["down"].T
                    found = mlp(x)
                    self.assertLess(relative(found, meant), 1e-2)
                    self.assertGreater(relative(found, expected(x, weights)), 1e-2)
                    with kiln.torch.disabled():
                        self.assertLess(relative(mlp(x), found), 1e-2)
                    some = x.clone().requires_grad_()
                    mlp(some).float().sum().backward()
                    self.assertTrue(bool(some.grad.isfinite().all()))
        with self.assertRaisesRegex(kiln.InvalidCall, "input_dtype is float8_e4m3fn, and gate is uint8"):
            layer_of(input_dtype="float8_e4m3fn")[0](normal(3, D, dtype=torch.bfloat16, seed=3))

    def test_norm(self):
        for name, make in KINDS.items():
            for offset in (0.0, 1.0):
                with self.subTest(kind=name, offset=offset):
                    mlp, weights = make(norm=True, eps=1e-5, offset=offset)
                    mlp.norm_weight.copy_(normal(D, seed=5).abs() + 0.5 - offset)
                    for rows in (1, 12, 40):
                        x = normal(rows, D, dtype=torch.bfloat16, seed=rows) * 3
                        wide = x.float()
                        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
                        normed = (normed * (offset + mlp.norm_weight.float())).to(x.dtype)
                        found = mlp(x, x)
                        if "W8A8" not in name:
                            self.assert_close([found], [expected(normed, weights, x)], torch.bfloat16)
                        with kiln.torch.disabled():
                            self.assert_close([mlp(x, x)], [found], torch.bfloat16)
        mlp, _ = layer_of(norm=True)
        x = normal(3, D, dtype=torch.bfloat16, seed=1).requires_grad_()
        mlp(x).sum().backward()
        along = (x.grad.float() * x.detach().float()).sum(-1)  # a norm does not see how large a row is
        self.assertLess(along.abs().max(), 2e-2 * x.grad.float().norm())

    def test_disabled_and_residual(self):
        for bits in (4, 8):
            mlp, weights = layer_of(bits, activation="silu")
            x, residual = normal(5, D, dtype=torch.bfloat16), normal(5, D, dtype=torch.bfloat16, seed=1)
            found = mlp(x, residual)
            self.assert_close([found], [expected(x, weights, residual)], torch.bfloat16)
            with kiln.torch.disabled():
                self.assert_close([mlp(x, residual)], [found], torch.bfloat16)

    def test_autocast_computes_as_nn_linear_does(self):
        for name, make in {**KINDS, "norm and bias": functools.partial(layer_of, norm=True, bias=True)}.items():
            mlp, _ = make()
            x, stream = normal(5, D, seed=1), normal(5, D, seed=2)
            with self.subTest(kind=name), torch.no_grad():
                wanted = mlp(x.bfloat16())
                for of_dtype in (x, x.bfloat16()):
                    with torch.autocast(DEVICE, torch.bfloat16), self.computes("forward"):
                        self.assertTrue(torch.equal(mlp(of_dtype), wanted))
                        self.assertTrue(torch.equal(mlp(of_dtype, stream), stream + wanted))
                        self.assertEqual(mlp(of_dtype, stream.bfloat16()).dtype, torch.bfloat16)
                with torch.autocast(DEVICE, torch.float16), self.computes("forward"):
                    of_scales = mlp(x)
                self.assertEqual(of_scales.dtype, torch.float16)
                if "W8A8" not in name:  # which rounds another x to other codes
                    self.assert_close([of_scales.bfloat16()], [wanted], torch.bfloat16)
                wide = copy.deepcopy(mlp).float()
                with torch.autocast(DEVICE, torch.bfloat16), self.computes("forward"):
                    self.assertTrue(torch.equal(wide(x), wanted))
                for call in ((x,), (x.bfloat16(), stream)):
                    with self.assertRaises(kiln.InvalidCall):
                        mlp(*call)
        if kiln.torch.HAS_OPERATORS:
            compiled = torch.compile(mlp, fullgraph=True, backend="aot_eager")
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                self.assertTrue(torch.equal(compiled(x, stream), stream + wanted))

    def test_gates(self):
        for activation in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "silu_clamped"):
            mlp, _ = layer_of(activation=activation, limit=0.7)
            x = normal(5, D, dtype=torch.bfloat16)
            found = mlp(x)
            with kiln.torch.disabled():
                self.assert_close([found], [mlp(x)], torch.bfloat16)

    def test_gradients(self):
        mlp, weights = layer_of()
        x = normal(4, D, dtype=torch.bfloat16).requires_grad_()
        other = x.detach().clone().requires_grad_()
        mlp(x).sum().backward()
        expected(other, weights).sum().backward()
        self.assert_close([x.grad], [other.grad], torch.bfloat16)
        if not kiln.torch.HAS_OPERATORS:
            return
        for way, around in ((torch.compile(mlp, fullgraph=True, backend="aot_eager"), contextlib.nullcontext()),
                            (mlp, torch.profiler.profile())):
            some, residual = x.detach().clone().requires_grad_(), x.detach().clone().requires_grad_()
            with around:
                way(some, residual).sum().backward()
            self.assertTrue(torch.equal(some.grad, x.grad))
            self.assertTrue(torch.equal(residual.grad, torch.ones_like(x)))

    def test_the_residual_is_not_kept(self):
        for name, make in {**KINDS, "norm": functools.partial(layer_of, norm=True)}.items():
            mlp, _ = make()
            ways = [mlp]
            if kiln.torch.HAS_OPERATORS:
                ways.append(torch.compile(mlp, fullgraph=True, backend="aot_eager"))
            for way in ways:
                with self.subTest(kind=name, compiled=way is not mlp):
                    saved, given = [], [normal(4, D, dtype=torch.bfloat16, seed=seed).requires_grad_() for seed in (1, 2)]
                    x, residual = (t * 1 for t in given)
                    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
                        y = way(x, residual)
                    self.assertEqual([saved.count(t.data_ptr()) for t in (x, residual)], [1, 0])
                    weights = normal(4, D, dtype=torch.bfloat16, seed=3).requires_grad_()
                    found = torch.autograd.grad(y, given, weights, create_graph=way is mlp)
                    self.assertTrue(torch.equal(found[1], weights))
                    with kiln.torch.disabled():
                        expected = torch.autograd.grad(mlp(*given), given, weights, create_graph=True)
                    self.assert_close(found, expected, torch.bfloat16)
                    if way is mlp:
                        again = [torch.autograd.grad(sum((t.float() ** 2).sum() for t in grads), (given[0], weights))
                                 for grads in (found, expected)]
                        self.assert_close(*again, torch.bfloat16)

    def test_compile_and_copies(self):
        mlp, _ = layer_of()
        x = normal(4, D, dtype=torch.bfloat16)
        with torch.no_grad():
            y = mlp(x)
            self.assertTrue(torch.equal(copy.deepcopy(mlp)(x), y))
            fresh, _ = layer_of(layout="plain")
            fresh.load_state_dict(mlp.state_dict())
            self.assertTrue(torch.equal(fresh(x), y))
            self.assertTrue(torch.equal(torch.compile(mlp, fullgraph=True, backend="eager")(x), y))

    def test_what_records_it(self):
        for name, make in {**KINDS, "norm and bias": functools.partial(layer_of, norm=True, bias=True)}.items():
            with self.subTest(kind=name):
                calls = [(normal(4, D, dtype=torch.bfloat16, seed=seed),) for seed in (1, 2)]
                self.assert_recorded(make()[0], *calls)

    def test_codes_that_are_not_the_layers(self):
        mlp, _ = layer_of()
        scales = torch.ones(H, D // 64, dtype=torch.bfloat16)

        def refused(codes, says, layout="plain"):
            before = mlp.gate.clone()
            with self.assertRaisesRegex(kiln.InvalidCall, says):
                mlp.pack("gate", codes, scales, layout=layout)
            self.assertTrue(torch.equal(mlp.gate, before))

        for rows, columns in ((H - 1, D), (H, D - 1), (1, 1)):
            refused(torch.zeros(rows, columns, dtype=torch.uint8), rf"expected \[{H}, {D}\] of 4 bits in the layout plain")
        refused(torch.zeros(H, D, dtype=torch.int32), rf"expected \[{-(-D // 8)}, {H}\]", "gptq")
        refused(torch.zeros(H, D, dtype=torch.int32), rf"expected \[{H}, {-(-D // 8)}\]", "compressed_tensors")
        for code, dtype in ((16, torch.uint8), (-9, torch.int8), (8, torch.int8)):
            codes = torch.zeros(H, D, dtype=dtype)
            codes[H // 2, D // 2] = code
            refused(codes, "the layer has 4 bits. Make it with bits=8")
        with self.assertRaisesRegex(kiln.UsageError, "expected torch.bfloat16 or torch.float16"):
            kiln.torch.QuantizedMlp(D, H)
        mlp.pack("gate", torch.zeros(H, D, dtype=torch.uint8), torch.nn.Parameter(scales))

    def test_zeros_that_the_layer_has_not(self):
        mlp, _ = layer_of(zeros=False)
        codes = random_codes(H, D, 4, 1).to(torch.uint8)
        scales = torch.ones(H, D // 64, dtype=torch.bfloat16)
        with self.assertRaisesRegex(kiln.InvalidCall, "make the layer with zeros=True"):
            mlp.pack("gate", codes, scales, torch.full((H, D // 64), 3, dtype=torch.uint8))

    def test_rows_alone(self):
        """With batch_invariant a row's bits depend on that row alone: not on how many there are, nor on the others."""
        for name, make in KINDS.items():
            with self.subTest(kind=name), torch.no_grad():
                mlp, _ = make(batch_invariant=True)
                x, others = (normal(150, D, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
                expected_rows = mlp(x)
                for rows in (1, 2, 7, 16, 17, 33, 64, 100):
                    self.assertTrue(torch.equal(mlp(x[:rows]), expected_rows[:rows]), rows)
                    self.assertTrue(torch.equal(mlp(torch.cat((others[:rows], x[:5])))[rows:], expected_rows[:5]), rows)

    @unittest.skipUnless(DEVICE == "cuda", "a GPU's")
    def test_graph(self):
        for name, make in KINDS.items():
            mlp, weights = make()
            for rows in (1, 16, 40, 200):
                with self.subTest(kind=name, rows=rows), torch.no_grad():
                    x = normal(rows, D, dtype=torch.bfloat16)
                    mlp(x)
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        y = mlp(x)
                    x.copy_(normal(rows, D, dtype=torch.bfloat16, seed=8))
                    graph.replay()
                    self.assertTrue(torch.equal(y, mlp(x)))
                    if mlp.attributes["input_dtype"] == "x":
                        self.assert_close([y], [expected(x, weights)], torch.bfloat16)


class Quantized(torch.nn.Module):
    """What the linears of public formats hold, with a forward of the weights that their codes mean."""

    def __init__(self, rows, columns, seed, bits=4, group=64, dtype=torch.bfloat16, middle=False):
        super().__init__()
        groups = columns // group
        self.codes = random_codes(rows, columns, bits, seed)
        self.zero = torch.full((rows, groups), 1 << (bits - 1)) if middle else random_codes(rows, groups, bits, seed + 9)
        self.scale = (normal(rows, groups, seed=seed + 5).cpu().abs() / (1 << bits) / 8).to(dtype)
        spread = [t.repeat_interleave(group, 1) for t in (self.zero, self.scale.float())]
        self.meant = ((self.codes - spread[0]).float() * spread[1]).to(DEVICE)
        self.fill(bits, group)
        self.to(DEVICE)

    def forward(self, x):
        return F.linear(x.float(), self.meant).to(x.dtype)


class Gptq(Quantized):
    less, layout = 1, "gptq"

    def fill(self, bits, group):
        stored = (self.zero - self.less) & ((1 << bits) - 1)
        self.register_buffer("qweight", words_of(self.codes.T.contiguous().T, bits).T.contiguous())
        self.register_buffer("qzeros", words_of(stored.T, bits))
        self.register_buffer("scales", self.scale.T.contiguous())
        self.register_buffer("g_idx", (torch.arange(self.codes.shape[1]) // group).to(torch.int32))


class Dequantized(Gptq):
    def forward(self, x):
        return F.linear(x, self.meant.to(x.dtype), getattr(self, "bias", None))


class GptqV2(Gptq):
    less, layout = 0, "gptq_v2"


class Awq(Quantized):
    layout = "awq"

    def fill(self, bits, group):
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

        def ordered(values):
            return words_of(values.unflatten(-1, (-1, 8))[..., order].flatten(-2), bits)

        self.register_buffer("qweight", ordered(self.codes.T))
        self.register_buffer("qzeros", ordered(self.zero.T))
        self.register_buffer("scales", self.scale.T.contiguous())


class CompressedTensors(Quantized):
    layout = "compressed_tensors"

    def fill(self, bits, group):
        self.weight_packed = torch.nn.Parameter(words_of(self.codes, bits), requires_grad=False)
        self.weight_scale = torch.nn.Parameter(self.scale, requires_grad=False)
        self.weight_shape = torch.nn.Parameter(torch.tensor(self.codes.shape), requires_grad=False)
        self.weight_zero_point = torch.nn.Parameter(words_of(self.zero.T, bits).T.contiguous(), requires_grad=False)


class Float8(torch.nn.Module):
    """FP8 in blocks of 128 x 128, as DeepSeek has it; x is rounded to FP8, too."""

    rows, group, name = 128, 128, "weight_scale_inv"

    def __init__(self, rows, columns, seed, dtype=torch.bfloat16):
        super().__init__()
        weight = normal(rows, columns, seed=seed).cpu() / columns ** 0.5
        lines, groups = -(-rows // self.rows), -(-columns // (self.group or columns))
        size = self.group or columns
        blocks = F.pad(weight, (0, groups * size - columns, 0, lines * self.rows - rows))
        scale = blocks.reshape(lines, self.rows, groups, size).abs().amax((1, 3)) / 448
        spread = scale.repeat_interleave(self.rows, 0).repeat_interleave(size, 1)[:rows, :columns]
        codes = (weight / spread).to(torch.float8_e4m3fn)
        self.meant = (codes.float() * spread).to(DEVICE)
        self.weight = torch.nn.Parameter(codes, requires_grad=False)
        setattr(self, self.name, torch.nn.Parameter(scale, requires_grad=False))
        self.to(DEVICE)

    def forward(self, x):
        most = x.abs().amax(-1, keepdim=True).float() / 448
        return F.linear((x.float() / most).to(torch.float8_e4m3fn).float() * most, self.meant).to(x.dtype)


class Float8Rows(Float8):
    rows, group, name = 1, 0, "weight_scale"


class Float8ScaledMm(Float8Rows):
    """As transformers' CompressedTensorsFP8Linear has its scales, and its forward since compressed-tensors put it back."""

    def __init__(self, rows, columns, seed):
        super().__init__(rows, columns, seed)
        self.weight_scale.data = self.weight_scale.reshape(1, rows)
        self.forward = type(self).forward.__get__(self)


class Float8Tokens(Float8Rows):
    """As compressed-tensors rounds x: of three dimensions each token, of two all by one scale. Its gates are small."""

    def __init__(self, rows, columns, seed):
        super().__init__(rows, columns, seed)
        self.meant *= 0.02
        self.weight_scale.data = self.weight_scale * 0.02

    def forward(self, x):
        most = (x.abs().amax(-1, keepdim=True) if x.dim() > 2 else x.abs().max()).float() / 448
        return F.linear((x.float() / most).to(torch.float8_e4m3fn).float() * most, self.meant).to(x.dtype)


# What compressed-tensors 0.20 does, under its names: a linear has a forward of its own, and its weights are plain ones
# from the model's first call on; compress() gives what its files have.
TOOL = """
import functools, torch

def set_forward_quantized(linear):
    @functools.wraps(linear.forward.__func__)
    def quantized_forward(self, input):
        return self.__class__.forward(self, input)

    linear.forward = quantized_forward.__get__(linear)

def add_decompress_hook(model):
    def ct_decompress_hook(model, args):
        for module in model.modules():
            if hasattr(module, "quantization_scheme"):
                state = {name: getattr(module, name).detach() for name, _ in module.named_parameters()}
                module.weight = torch.nn.Parameter(BaseCompressor.decompress(state, module.quantization_scheme)["weight"])
                del module.weight_packed
        handle.remove()

    handle = model.register_forward_pre_hook(ct_decompress_hook)

class BaseCompressor:
    @classmethod
    def get_value_from_registry(cls, name):
        return {"pack-quantized": cls}[name]

    @staticmethod
    def compress(state, scheme):
        scale = state["weight_scale"].float().repeat_interleave(scheme.group, 1)
        return {"weight_packed": words_of((state["weight"].float() / scale).round() + (1 << (scheme.bits - 1)), scheme.bits),
                "weight_scale": state["weight_scale"], "weight_shape": torch.tensor(state["weight"].shape)}

    @staticmethod
    def decompress(state, scheme):
        parts = state["weight_packed"].unsqueeze(-1) >> torch.arange(0, 32, scheme.bits)
        codes = (parts & ((1 << scheme.bits) - 1)).flatten(-2) - (1 << (scheme.bits - 1))
        return {"weight": (codes * state["weight_scale"].float().repeat_interleave(scheme.group, 1)).to(torch.bfloat16)}

def infer_module_format(kind, scheme):
    raise AssertionError("the scheme has its format")
"""


def tool():
    """Modules of these names."""
    names = ("compressed_tensors", "compressed_tensors.compressors", "compressed_tensors.compressors.format")
    of_tool = types.ModuleType(names[1])
    of_tool.words_of = words_of
    exec(TOOL, vars(of_tool))  # so that its functions' globals have the name
    return {names[0]: types.ModuleType(names[0]), names[1]: of_tool, names[2]: of_tool}


def linear_of_tool(rows, columns, seed, of_tool, bits=4, group=64):
    linear = torch.nn.Linear(columns, rows, bias=False)
    scale = (normal(rows, columns // group, seed=seed + 5).cpu().abs() / (1 << bits) / 8).to(torch.bfloat16)
    linear.weight_packed = torch.nn.Parameter(words_of(random_codes(rows, columns, bits, seed), bits), False)
    linear.weight_scale = torch.nn.Parameter(scale, False)
    linear.weight_shape = torch.nn.Parameter(torch.tensor([rows, columns]), False)
    del linear.weight
    linear.quantization_scheme = types.SimpleNamespace(
        format=types.SimpleNamespace(value="pack-quantized"), input_activations=None, bits=bits, group=group)
    of_tool.set_forward_quantized(linear)
    return linear


class IntxUnpackedToInt8Tensor(torch.Tensor):
    """As torchao 0.18 has it, by name: a weight without storage, of tensors that its operators go through to."""

    facts = ("qdata", "scale", "zero_point", "target_dtype", "block_size", "activation_quantization")

    @staticmethod
    def __new__(cls, qdata, scale, *others):
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=scale.dtype, device=qdata.device)

    def __init__(self, *facts):
        vars(self).update(zip(self.facts, facts))

    def of_parts(self, function):
        own = vars(self)
        return type(self)(*(function(own[name]) if isinstance(own[name], torch.Tensor) else own[name]
                            for name in self.facts))

    def meant(self):
        scale, zero = (t.float().repeat_interleave(self.block_size[1], 1) for t in (self.scale, self.zero_point))
        return (self.qdata.float() - zero) * scale

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            return F.linear(args[0].float(), args[1].meant()).to(args[0].dtype)
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return args[0].of_parts(lambda t: function(t, *args[1:], **(kwargs or {})))

    def __reduce_ex__(self, protocol):
        return type(self), tuple(vars(self)[name] for name in self.facts)


def linear_of_torchao(rows, columns, seed, bits=4, group=64, dtype=torch.bfloat16, zeros=True, rounds=None,
                      cls=IntxUnpackedToInt8Tensor):
    codes = random_codes(rows, columns, bits, seed) - (1 << (bits - 1))
    scale = (normal(rows, columns // group, seed=seed + 5).cpu().abs() / (1 << bits) / 8).to(dtype)
    zero = random_codes(rows, columns // group, bits, seed + 9) - (1 << (bits - 1)) if zeros is True else (
        torch.full_like(scale, zeros))
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight = torch.nn.Parameter(
        cls(codes.to(DEVICE, torch.int8), scale.to(DEVICE), zero.to(DEVICE, torch.int8 if zeros is True else dtype),
             getattr(torch, f"int{bits}"), (1, group), rounds), requires_grad=False)
    return linear


class Mlp(torch.nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            kind(*shape, seed, **options) for seed, shape in enumerate(SHAPES.values(), 31))
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Biased(Gptq):
    def forward(self, x):
        return super().forward(x) + self.bias


class Offloaded(collections.abc.MutableMapping):
    """As compressed-tensors keeps a module's tensors: each access asks where the tensor shall be."""

    def __init__(self, tensors):
        self.onload_device, self.offloaded_values, self.asked = torch.device(DEVICE), dict(tensors), 0

    def __getitem__(self, name):
        self.asked += 1
        return self.offloaded_values[name]

    def __setitem__(self, name, tensor):
        self.offloaded_values[name] = tensor

    def __delitem__(self, name):
        del self.offloaded_values[name]

    def __iter__(self):
        return iter(self.offloaded_values)

    def __len__(self):
        return len(self.offloaded_values)


def copies(model):
    """A copy, a copy of it and, where what is in the model allows that, one that was saved."""
    once = copy.deepcopy(model)
    made, file = [once, copy.deepcopy(once)], io.BytesIO()
    try:
        torch.save(model, file)
    except (AttributeError, pickle.PicklingError):  # a function without a name
        return made
    file.seek(0)
    return [*made, torch.load(file, weights_only=False)]


class Replace(TorchCase):
    def replaced(self, mlp, **options):
        model = torch.nn.ModuleDict({"mlp": mlp})
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            report = kiln.torch.replace(model, **options)
        return report, [str(each.message) for each in told if issubclass(each.category, kiln.torch.FallbackWarning)]

    def test_formats(self):
        for kind in (Gptq, GptqV2, Awq, CompressedTensors):
            for bits in (4,) if kind is Awq else (4, 8):
                for dtype in (torch.bfloat16, torch.float16):
                    # Without zeros of their own those of 8 bits that are one less are nearly the same weights.
                    middle = bits == 8
                    with self.subTest(kind=kind.__name__, bits=bits, dtype=dtype), torch.no_grad():
                        mlp = Mlp(kind, bits=bits, dtype=dtype, middle=middle)
                        x = normal(2, 5, D, dtype=dtype)
                        own, state = mlp(x), dict(mlp.state_dict())
                        report, told = self.replaced(mlp)
                        self.assertEqual([swap.name for swap in report.swapped], ["mlp"], str(report))
                        self.assertEqual(told, [])
                        self.assertIn("quantized-mlp@1", report.swapped[0].what)
                        self.assertIn("quantized-mlp@1", repr(mlp))
                        self.assertEqual(report.swapped[0].what.split()[-1], kind.layout)
                        found = mlp(x)
                        self.assert_close([found], [own], dtype)
                        self.assertEqual(mlp.state_dict().keys(), state.keys())
                        self.assertTrue(torch.equal(copy.deepcopy(mlp)(x), found))
                        self.assertTrue(torch.equal(torch.compile(mlp, backend="eager")(x), found))
                        with kiln.torch.disabled():
                            self.assertTrue(torch.equal(mlp(x), own))
                        self.assertEqual(kiln.torch.restore(mlp), 1)
                        self.assertTrue(torch.equal(mlp(x), own))
                        self.assertIs(type(mlp), Mlp)

    @unittest.skipUnless(DEVICE == "cpu", "which device it is says nothing of the tool")
    def test_linears_of_compressed_tensors(self):
        modules = tool()
        of_tool = modules["compressed_tensors.compressors"]
        with unittest.mock.patch.dict(sys.modules, modules), torch.no_grad():
            for bits in (4, 8):
                model = torch.nn.ModuleDict({"mlp": Mlp(linear_of_tool, of_tool=of_tool, bits=bits)})
                mlp = model["mlp"]
                of_tool.add_decompress_hook(model)
                part, _ = self.replaced(mlp)
                self.assertIn("gate_proj is compressed: call the model once", part.kept[0].what)
                report = kiln.torch.replace(model)
                self.assertEqual([swap.name for swap in report.swapped], ["mlp"], str(report))
                x = normal(5, D, dtype=torch.bfloat16)
                weights = {name: getattr(mlp, f"{name}_proj").weight.float() for name in SHAPES}
                found = mlp(x)
                self.assert_close([found], [expected(x, weights)], torch.bfloat16)
                self.assertTrue(torch.equal(copy.deepcopy(mlp)(x), found))
                with kiln.torch.disabled():
                    self.assertFalse(torch.equal(mlp(x), found))
                mlp.up_proj.forward = lambda x: x
                with self.assertWarnsRegex(kiln.torch.FallbackWarning, "up_proj has a forward of its own"):
                    with self.assertRaises(RuntimeError):
                        mlp(x)

            def other_weights(linear):
                linear.weight.mul_(1.01)

            def activations(linear):
                linear.quantization_scheme.input_activations = types.SimpleNamespace(type="int")

            def other_format(linear):
                linear.quantization_scheme.format.value = "of tomorrow"

            for change, words in ((other_weights, "up_proj has other weights than its scheme gives"),
                                  (activations, "up_proj has quantized activations"), (other_format, "of tomorrow")):
                model = torch.nn.ModuleDict({"mlp": Mlp(linear_of_tool, of_tool=of_tool)})
                of_tool.add_decompress_hook(model)
                next(iter(model._forward_pre_hooks.values()))(model, ())
                change(model["mlp"].up_proj)
                with self.assertWarns(kiln.torch.FallbackWarning):
                    self.assertIn(words, kiln.torch.replace(model).kept[0].what)

    def test_tensors_of_torchao(self):
        for bits, group, zeros in ((4, 32, True), (4, 64, 0), (8, 64, True)):
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(bits=bits, group=group, zeros=zeros, dtype=dtype), torch.no_grad():
                    mlp = Mlp(linear_of_torchao, bits=bits, group=group, zeros=zeros, dtype=dtype)
                    x = normal(2, 5, D, dtype=dtype)
                    own = mlp(x)
                    weights = {name: getattr(mlp, f"{name}_proj").weight.meant() for name in SHAPES}
                    report, told = self.replaced(mlp)
                    self.assertEqual([swap.name for swap in report.swapped], ["mlp"], str(report))
                    self.assertIn(f"int{bits} of plain", report.swapped[0].what)
                    self.assertEqual(told, [])
                    with self.computes("forward", "forward"):
                        found = mlp(x)
                        self.assertTrue(torch.equal(copy.deepcopy(mlp)(x), found))
                    self.assert_close([found], [expected(x, weights)], dtype)
                    mlp.up_proj.weight.scale.mul_(2)
                    for made in (mlp, copy.deepcopy(mlp)):
                        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "scale has changed since replace"):
                            self.assertFalse(torch.equal(made(x), found))
                    self.assertEqual(kiln.torch.restore(mlp), 1)
                    mlp.up_proj.weight.scale.div_(2)
                    self.assertTrue(torch.equal(mlp(x), own))
        mlp = Mlp(linear_of_torchao)
        self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
        mlp.gate_proj.weight.qdata = mlp.gate_proj.weight.qdata.clone()
        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "qdata has changed since replace"), torch.no_grad():
            mlp(normal(3, D, dtype=torch.bfloat16))

        def named(name):
            return type(name, (IntxUnpackedToInt8Tensor,), {})

        for options, words in (
                ({"zeros": 0.5}, "gate_proj has zero points in torch.bfloat16; pack takes whole ones"),
                ({"rounds": "int8_asym_per_token"}, "gate_proj has quantized activations, too"),
                ({"bits": 3}, "gate_proj has 3 bits; pack takes 4 and 8"),
                ({"group": 16}, "gate_proj has 8 groups of 128 columns"),
                ({"cls": named("Int4Tensor")}, "gate_proj has torchao's Int4Tensor, whose zero points are floating-point"),
                ({"cls": named("Int4PlainInt32Tensor")}, "gate_proj has torchao's Int4PlainInt32Tensor, which pack does")):
            with self.subTest(words=words):
                report, told = self.replaced(Mlp(linear_of_torchao, **options))
                self.assertEqual(report.swapped, ())
                self.assertIn(words, report.kept[0].what)
                self.assertEqual(len(told), 1)

    def test_float8(self):
        for kind in (Float8, Float8Rows, Float8ScaledMm, Float8Tokens):
            with self.subTest(kind=kind.__name__), torch.no_grad():
                mlp = Mlp(kind)
                x = normal(2, 40, D, dtype=torch.bfloat16)
                weights = {name: getattr(mlp, f"{name}_proj").meant for name in SHAPES}
                own = mlp(x)
                report, told = self.replaced(mlp)
                self.assertEqual([swap.name for swap in report.swapped], ["mlp"], str(report))
                self.assertEqual(told, [])
                self.assertIn("float8_e4m3fn", report.swapped[0].what)
                for made in (mlp, *copies(mlp)):
                    with self.computes("forward"):
                        self.assert_close([made(x)], [expected(x, weights)], torch.bfloat16)
                kiln.torch.restore(mlp)
                self.assertTrue(torch.equal(mlp(x), own))

    def test_kept_with_a_reason(self):
        def reordered(mlp):
            mlp.up_proj.g_idx.copy_(mlp.up_proj.g_idx.flip(0))

        def three_bits(mlp):
            mlp.gate_proj.qzeros = torch.zeros(D // 64, H * 3 // 32, dtype=torch.int32)

        def other_activation(mlp):
            mlp.act_fn = torch.nn.Tanh()

        def other_forward(mlp):
            mlp.down_proj.meant *= 2

        def clamped(mlp):  # at values that usual ones do not reach
            own = type(mlp).forward
            mlp.__class__ = type("Clamped", (Mlp,), {"forward": lambda self, x: own(self, x).clamp(-500, 500)})

        def scaled(mlp):
            mlp.register_buffer("scale", torch.ones(()))

        def raising(mlp):
            mlp.__class__ = type("Raising", (Mlp,), {"forward": lambda self, x: {}[x.shape]})

        def clamped_act(mlp):
            del mlp.act_fn
            mlp.act_fn = lambda g: F.silu(g.clamp(max=10))

        def float8(mlp):
            mlp.gate_proj = torch.nn.Module()
            mlp.gate_proj.weight = torch.nn.Parameter(torch.zeros(H, D).to(torch.float8_e5m2), requires_grad=False)
            mlp.gate_proj.weight_scale_inv = torch.nn.Parameter(torch.ones(2, 1))

        def other_blocks(mlp):
            for name in SHAPES:
                rows, columns = SHAPES[name]
                setattr(mlp, f"{name}_proj", Float8(rows, columns, 5))
            mlp.up_proj.weight_scale_inv.data = mlp.up_proj.weight_scale_inv * 1.03

        def float32_scales(mlp):
            mlp.down_proj.scales = mlp.down_proj.scales.float()

        def hooked(mlp):
            mlp.up_proj.register_forward_hook(lambda module, inputs, y: y)

        def own_forward(mlp):
            mlp.up_proj.forward = lambda x: x

        def noting(mlp):
            def forward(self, x):
                self.last = x
                return own(self, x)

            own = type(mlp).forward
            mlp.__class__ = type("Noting", (Mlp,), {"forward": forward})

        for change, words in ((noting, "its forward writes last"), (hooked, "up_proj has hooks"),
                              (own_forward, "up_proj has a forward of its own"),
                              (reordered, "up_proj has columns in an order of their own"),
                              (three_bits, "gate_proj has "), (other_activation, "its activation is none of silu"),
                              (clamped_act, "its activation is none of silu"),
                              (other_forward, "its forward gives something else"),
                              (clamped, "its forward gives something else"), (scaled, "a tensor beside its linears, scale"),
                              (raising, "a trial of it failed: KeyError"), (float8, "gate_proj has weights in torch.float8_e5m2"),
                              (other_blocks, "up_proj gives something else than its codes and scales mean"),
                              (float32_scales, "down_proj has scales in torch.float32")):
            with self.subTest(change=change.__name__):
                mlp = Mlp(Gptq)
                change(mlp)
                kind = type(mlp)
                report, told = self.replaced(mlp)
                self.assertEqual(report.swapped, ())
                self.assertIn(words, report.kept[0].what)
                self.assertEqual(len(told), 1)
                self.assertIn(words, told[0])
                self.assertIs(type(mlp), kind)
                self.assertFalse(hasattr(mlp, "last"))

    def test_clamped_gates(self):
        """A clamp that usual values do not reach; where a linear rounds x by a scale that it has, larger ones say
        nothing, and it is swapped by the usual ones alone."""

        class Clamped(Mlp):
            def forward(self, x):
                gate, up = self.gate_proj(x), self.up_proj(x)
                return self.down_proj(F.silu(gate.clamp(max=10)) * up.clamp(-10, 10))

        class Up(Mlp):
            def forward(self, x):
                return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x).clamp(-60, 60))

        class Weak(Float8Rows):  # gates of a hundredth
            def __init__(self, rows, columns, seed):
                super().__init__(rows, columns, seed)
                self.meant *= 0.01 if rows == H else 1
                self.weight_scale.data = self.weight_scale * (0.01 if rows == H else 1)

        class WeakGptq(Gptq):
            def fill(self, bits, group):
                factor = 0.01 if self.codes.shape[0] == H else 1
                self.scale, self.meant = self.scale * factor, self.meant * factor
                super().fill(bits, group)

        class Static(Float8Rows):
            def forward(self, x):
                codes = (x.float() * 64).clamp(-448, 448).to(torch.float8_e4m3fn)
                return F.linear(codes.float() / 64, self.meant).to(x.dtype)

        class Plain(Float8):
            def forward(self, x):
                return F.linear(x.float(), self.meant).to(x.dtype)

        for form in (Clamped, Up):
            for kind in (Float8, Float8Rows, Weak, Plain, Gptq, WeakGptq):
                with self.subTest(form=form.__name__, kind=kind.__name__), torch.no_grad():
                    report, _ = self.replaced(form(kind))
                    self.assertEqual(report.swapped, ())
                    self.assertIn("its forward gives something else", report.kept[0].what)
        for kind in (Weak, Plain, Static, WeakGptq):
            with self.subTest(kind=kind.__name__), torch.no_grad():
                self.assertEqual(len(self.replaced(Mlp(kind))[0].swapped), 1)

    def test_dropout_in_training(self):
        class Dropping(Mlp):
            def forward(self, x):
                return self.down_proj(F.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x), 0.5, self.training))

        class Raising(Mlp):
            def forward(self, x):
                assert not self.training
                return super().forward(x)

        x = normal(3, D, dtype=torch.bfloat16)
        for form in (Dropping, Raising):
            for training in (False, True):
                with self.subTest(form=form.__name__, training=training), torch.no_grad():
                    mlp = form(Gptq).train(training)
                    torch.manual_seed(4)
                    state = torch.random.get_rng_state()
                    report, _ = self.replaced(mlp)
                    self.assertTrue(torch.equal(torch.random.get_rng_state(), state))
                    self.assertEqual({part.training for part in mlp.modules()}, {training})
                    self.assertIn("in evaluation: in training its forward is another", report.swapped[0].what)
                    mlp.eval()
                    with self.computes("forward"):
                        found = mlp(x)
                    mlp.train()
                    for made in (mlp, copy.deepcopy(mlp)):
                        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "in training its forward is another"):
                            if form is Raising:
                                with self.assertRaises(AssertionError):
                                    made(x)
                            else:
                                self.assertFalse(torch.equal(made(x), found))
        mlp = Mlp(Gptq)
        self.assertNotIn("evaluation", self.replaced(mlp)[0].swapped[0].what)
        with self.computes("forward"):
            mlp.train()(x)

    def test_a_tensor_of_a_linear_that_learns(self):
        for name in ("bias", "scales"):
            mlp = Mlp(Gptq)
            for part in SHAPES:
                linear = getattr(mlp, f"{part}_proj")
                if name == "bias":
                    linear.bias = torch.nn.Parameter(torch.ones(SHAPES[part][0], dtype=torch.bfloat16, device=DEVICE))
                    linear.__class__ = Biased
                elif part == "down":
                    linear.scales = torch.nn.Parameter(linear._buffers.pop("scales"))
            with self.subTest(name=name):
                report, _ = self.replaced(mlp)
                self.assertEqual(len(report.swapped), 1, str(report))
                x = normal(3, D, dtype=torch.bfloat16)
                with torch.no_grad(), self.computes("forward"):
                    found = mlp(x)
                with self.assertWarnsRegex(kiln.torch.FallbackWarning, f"{name} requires a gradient"):
                    y = mlp(x)
                self.assert_close([y.detach()], [found], torch.bfloat16)
                if name == "bias":
                    y.sum().backward()
                    self.assertIsNotNone(mlp.gate_proj.bias.grad)
                mlp.requires_grad_(False)
                with self.computes("forward"):
                    self.assertTrue(torch.equal(mlp(x), found))

    def test_autocast_is_asked_of_the_device(self):
        mlp, x = Mlp(Gptq), normal(3, D, dtype=torch.bfloat16)
        self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
        with torch.no_grad():
            found = mlp(x)
            with torch.autocast("cuda" if DEVICE == "cpu" else "cpu", torch.bfloat16), self.computes("forward"):
                self.assertTrue(torch.equal(mlp(x), found))

    def test_autocast(self):
        """The dtypes of the weights, of x, of a residual and of autocast in all ways. What autocast makes of the original
        is what Kiln gives, where the original's forward is one of its operators."""
        sixteen = (torch.bfloat16, torch.float16)

        def called(mlp, cast, of_x, of_residual):
            x, weights = normal(2, 3, D, dtype=of_x).requires_grad_(), normal(2, 3, D, seed=2)
            residual = normal(2, 3, D, dtype=of_residual, seed=1).requires_grad_()
            with torch.autocast(DEVICE, cast):
                y = mlp(x, residual=residual) if hasattr(mlp, "_kiln") else residual + mlp(x)
            return y, *torch.autograd.grad((y * weights).sum(), (x, residual))

        for kind, dtype in ((Gptq, torch.bfloat16), *((Dequantized, dtype) for dtype in sixteen)):
            mlp = Mlp(kind, dtype=dtype)
            if kind is Dequantized:
                for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
                    linear.register_buffer("bias", normal(linear.codes.shape[0], dtype=dtype, seed=3))
            ways = [(cast, of_x, of_residual) for cast in sixteen for of_x in (torch.float32, *sixteen)
                    for of_residual in (torch.float32, cast) if kind is Dequantized or of_x == cast]
            expected = [called(mlp, *way) for way in ways]
            self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
            for way, wanted in zip(ways, expected):
                with self.subTest(kind=kind.__name__, dtype=dtype, way=way), self.computes("forward"):
                    self.assert_close(called(mlp, *way), wanted, torch.bfloat16)
        if kiln.torch.HAS_OPERATORS:
            compiled = torch.compile(mlp, backend="aot_eager")
            self.assert_close(called(compiled, *ways[0]), expected[0], torch.bfloat16)

    def test_autocast_that_its_forward_asks_for(self):
        class Asking(Mlp):
            def forward(self, x):
                return super().forward(x) * (1 if kiln.layer.autocast_dtype(DEVICE) is None else 2)

        x = normal(3, D, dtype=torch.bfloat16)
        for make, says in ((lambda: Asking(Dequantized), "its forward is another"), (lambda: Mlp(Gptq), "casts x")):
            mlp = make()
            what = self.replaced(mlp)[0].swapped[0].what
            self.assertEqual("but not under torch.autocast" in what, says != "casts x")
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
                with self.assertWarnsRegex(kiln.torch.FallbackWarning, says):
                    found = mlp(x.float())
                self.assertTrue(torch.equal(found, type(mlp).__bases__[1].forward(mlp, x.float())))

    def test_residual(self):
        mlp, x = Mlp(Gptq), normal(2, 3, D, dtype=torch.bfloat16)
        residual = normal(2, 3, D, dtype=torch.bfloat16, seed=1)
        self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
        weights = {name: getattr(mlp, f"{name}_proj").meant for name in SHAPES}
        with self.computes("forward"):
            self.assert_close([mlp(x, residual=residual)], [expected(x, weights, residual)], torch.bfloat16)
        given = [t.clone().requires_grad_() for t in (x, residual)]
        mlp(given[0], residual=given[1]).sum().backward()
        self.assertTrue(torch.equal(given[1].grad, torch.ones_like(x)))
        with kiln.torch.disabled():
            self.assert_close([mlp(x, residual=residual)], [mlp(x) + residual], torch.bfloat16)
        for other in (residual.float(), residual[:1]):
            with self.assertWarnsRegex(kiln.torch.FallbackWarning, "residual is"):
                self.assertEqual(mlp(x, residual=other).dtype, torch.promote_types(x.dtype, other.dtype))

    def test_tensors_in_a_mapping(self):
        def write(linear):
            linear._buffers.offloaded_values["scales"].mul_(2)

        def other(linear):
            linear._buffers.offloaded_values["scales"] = linear.scales * 2

        def other_dict(linear):
            linear._buffers.offloaded_values = {**linear._buffers.offloaded_values, "scales": linear.scales * 2}

        def other_mapping(linear):
            vars(linear)["_buffers"] = Offloaded({**linear._buffers, "scales": linear.scales * 2})

        for change in (write, other, other_dict, other_mapping):
            mlp = Mlp(Gptq)
            for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
                vars(linear)["_buffers"] = Offloaded(linear._buffers)
            report, told = self.replaced(mlp)
            self.assertEqual((len(report.swapped), told), (1, []), str(report))
            x = normal(3, D, dtype=torch.bfloat16)
            with torch.no_grad():
                found = mlp(x)
                asked = mlp.up_proj._buffers.asked
                self.assertTrue(torch.equal(mlp(x), found))
                self.assertEqual(mlp.up_proj._buffers.asked, asked)
                if change is other_dict:  # first one of the same tensors
                    mlp.up_proj._buffers.offloaded_values = {**mlp.up_proj._buffers.offloaded_values}
                    self.assertTrue(torch.equal(mlp(x), found))
                change(mlp.up_proj)
                words = "up_proj holds its tensors in another dict" if change is other_mapping else "scales has changed since replace"
                with self.assertWarnsRegex(kiln.torch.FallbackWarning, words):
                    self.assertFalse(torch.equal(mlp(x), found))

    def test_what_changes_later(self):
        def other_weights(mlp):
            mlp.gate_proj.scales.mul_(2)

        def hook(mlp):
            mlp.down_proj.register_forward_hook(lambda module, inputs, y: y + 1)

        def other_linear(mlp):
            mlp.up_proj = Gptq(H, D, 77)

        def weights_elsewhere(mlp):
            mlp.up_proj.scales.data = mlp.up_proj.scales * 2

        def bias(mlp):
            mlp.up_proj.register_buffer("bias", torch.ones(H))

        def other_activation(mlp):
            mlp.act_fn = torch.nn.Tanh()

        def hook_of_activation(mlp):
            mlp.act_fn.register_forward_hook(lambda module, inputs, y: y + 1)

        def fact(mlp):
            mlp.scale = 2.0

        def other_forward_of_class(mlp):
            self.addCleanup(setattr, Mlp, "forward", Mlp.forward)
            Mlp.forward = lambda self, x: x

        def child(mlp):
            mlp.drop = torch.nn.Dropout(1.0)

        def other_forward_of_linears(mlp):
            before = Gptq.forward
            self.addCleanup(setattr, Gptq, "forward", before)
            Gptq.forward = lambda self, x: before(self, x) * 2

        def other_code_of_linears(mlp):
            self.addCleanup(setattr, Gptq.forward, "__code__", Gptq.forward.__code__)
            Gptq.forward.__code__ = (lambda self, x: (x.float() @ self.meant.T * 2).to(x.dtype)).__code__

        def forward_of_a_linear(mlp):
            mlp.up_proj.forward = functools.partial(F.linear, weight=normal(H, D, dtype=torch.bfloat16))

        def hook_of_a_linear(mlp):
            mlp.up_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))

        def attribute_of_a_linear(mlp):
            mlp.up_proj.meant = mlp.up_proj.meant * 2

        def inside_an_attribute_of_a_linear(mlp):
            mlp.up_proj.meant.mul_(2)

        def inside_a_list_of_a_linear(mlp):
            mlp.up_proj.block[0] = 2

        def late(mlp):
            mlp.late = torch.ones(())

        for change in (other_weights, hook, other_linear, weights_elsewhere, bias, other_activation, hook_of_activation,
                       fact, child, other_forward_of_class, other_forward_of_linears, other_code_of_linears,
                       forward_of_a_linear, hook_of_a_linear, attribute_of_a_linear,
                       inside_an_attribute_of_a_linear, inside_a_list_of_a_linear, late):
            with self.subTest(change=change.__name__), torch.no_grad():
                self.doCleanups()
                mlp = Mlp(Gptq)
                mlp.scale, mlp.up_proj.block = 1.0, [1, 1]
                self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
                x = normal(3, D, dtype=torch.bfloat16)
                for _ in range(2):
                    with self.computes("forward"):
                        mlp(x)
                change(mlp)
                with self.assertWarns(kiln.torch.FallbackWarning):
                    found = mlp(x)
                for made in copies(mlp):
                    with self.assertWarns(kiln.torch.FallbackWarning):
                        self.assertTrue(torch.equal(found, made(x)))
                kiln.torch.restore(mlp)
                self.assertTrue(torch.equal(found, mlp(x)))

    def test_an_input_that_the_original_folds(self):
        own = Mlp.forward
        mlp, x = Mlp(Gptq), normal(3, 2, D // 2, dtype=torch.bfloat16)
        mlp.__class__ = type("Folds", (Mlp,), {"forward": lambda self, x: own(self, x.reshape(-1, D)).reshape(x.shape)})
        expected = mlp(x)
        self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "x is bfloat16 on .*; expected rows of 128"):
            self.assertTrue(torch.equal(mlp(x), expected))

    def test_a_forward_of_other_gradients(self):
        """No gradients at all, as kernels of inference have none, and others: without gradients Kiln computes."""
        own = Mlp.forward
        for forward in (torch.no_grad()(own), lambda self, x: own(self, x.detach()),
                        lambda self, x: own(self, 0.1 * x + (0.9 * x).detach())):
            mlp, x = Mlp(Gptq), normal(3, D, dtype=torch.bfloat16)
            mlp.__class__ = type("Other", (Mlp,), {"forward": forward})
            report, _ = self.replaced(mlp)
            self.assertIn("without gradients", report.swapped[0].what)
            with self.computes("forward"):
                found = mlp(x)
            with self.assertWarnsRegex(kiln.torch.FallbackWarning, "its forward has other gradients"):
                y = mlp(x.clone().requires_grad_())
            self.assert_close([found], [y.detach()], torch.bfloat16)
        for forward in (lambda self, x: own(self, x).float(), lambda self, x: own(self, x) * 1.01,
                        lambda self, x: own(self, x.flip(1)) if x.dim() == 3 else own(self, x)):
            mlp = Mlp(Gptq)
            mlp.__class__ = type("Other", (Mlp,), {"forward": forward})
            self.assertIn("its forward gives something else", self.replaced(mlp)[0].kept[0].what)

    def test_inference_mode(self):
        """PyTorch counts no writes to what is made in it."""
        mlp, x = Mlp(Gptq), normal(3, D, dtype=torch.bfloat16)
        with torch.inference_mode():
            self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
            with self.computes("forward"):
                expected = mlp(x)
            for made in copies(mlp):
                with self.assertWarnsRegex(kiln.torch.FallbackWarning, "made in torch.inference_mode"):
                    self.assert_close([made(x)], [expected], torch.bfloat16)
            self.assertIn("made in torch.inference_mode", self.replaced(Mlp(Gptq))[0].kept[0].what)
        given = x.clone().requires_grad_()
        mlp(given).sum().backward()
        self.assertIsNotNone(given.grad)

    def test_gradients_of_x(self):
        mlp = Mlp(Gptq)
        x = normal(4, D, dtype=torch.bfloat16).requires_grad_()
        other = x.detach().clone().requires_grad_()
        mlp(other).sum().backward()
        self.assertEqual(len(self.replaced(mlp)[0].swapped), 1)
        mlp(x).sum().backward()
        self.assert_close([x.grad], [other.grad], torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
