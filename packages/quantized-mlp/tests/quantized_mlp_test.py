#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.QuantizedMlp against PyTorch's operators on the dequantized weights: layouts, gradients, torch.compile,
copies; on a GPU in a CUDA graph.

    quantized_mlp_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                                 or "cuda"
"""

import copy
import pathlib
import sys
import unittest

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

    def test_disabled_and_residual(self):
        for bits in (4, 8):
            mlp, weights = layer_of(bits, activation="silu")
            x, residual = normal(5, D, dtype=torch.bfloat16), normal(5, D, dtype=torch.bfloat16, seed=1)
            found = mlp(x, residual)
            self.assert_close([found], [expected(x, weights, residual)], torch.bfloat16)
            with kiln.torch.disabled():
                self.assert_close([mlp(x, residual)], [found], torch.bfloat16)

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

    def test_zeros_that_the_layer_has_not(self):
        mlp, _ = layer_of(zeros=False)
        codes = random_codes(H, D, 4, 1).to(torch.uint8)
        scales = torch.ones(H, D // 64, dtype=torch.bfloat16)
        with self.assertRaisesRegex(kiln.InvalidCall, "make the layer with zeros=True"):
            mlp.pack("gate", codes, scales, torch.full((H, D // 64), 3, dtype=torch.uint8))

    @unittest.skipUnless(DEVICE == "cuda", "a GPU's")
    def test_graph(self):
        mlp, weights = layer_of()
        for rows in (1, 16, 40, 200):
            x = normal(rows, D, dtype=torch.bfloat16)
            with torch.no_grad():
                mlp(x)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    y = mlp(x)
                x.copy_(normal(rows, D, dtype=torch.bfloat16, seed=8))
                graph.replay()
            self.assert_close([y], [expected(x, weights)], torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
