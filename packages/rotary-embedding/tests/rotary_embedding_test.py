#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.RotaryEmbedding against PyTorch's operators: values, gradients, both again, torch.compile, copies.

    rotary_embedding_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu"
                                                    (default) or "cuda"
"""

import copy
import pathlib
import pickle
import sys
import threading
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase, normal  # first: it skips where there is no torch
import torch
import kiln.torch

D, P = 24, 64


def places(*shape, dtype=torch.int64):
    return torch.randint(0, P, shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)


def layer_of(**options):
    return kiln.torch.RotaryEmbedding(D, positions=P, device=DEVICE, **options)


def results(function, x, positions):
    x = x.detach().clone().requires_grad_()
    y = function(x, positions)
    (y.float() * normal(*y.shape, seed=9)).sum().backward()
    return [y.detach(), x.grad]


class RotaryEmbedding(TorchCase):
    def test_values_and_gradients(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for shape, index in (((7,), torch.int64), ((2, 5), torch.int32)):
                for options in ({}, {"interleaved": True}, {"rotary_dim": 8}, {"base": 5e5, "scale": 1.5}):
                    with self.subTest(dtype=dtype, shape=shape, options=options):
                        rope, x = layer_of(**options), normal(*shape, 3, D, dtype=dtype)
                        with self.computes("rotate", "rotate"):
                            found = results(rope, x, places(*shape, dtype=index))
                        with kiln.torch.disabled():
                            self.assert_close(found, results(rope, x, places(*shape, dtype=index)), dtype)

    def test_it_is_the_turn_that_models_make(self):
        """Llama's rotate_half, and GPT-J's pairs as complex numbers."""
        x, positions = normal(5, 2, D), places(5)
        angles = positions[:, None].double() * 10000.0 ** (torch.arange(D // 2, device=DEVICE).double() * -2 / D)
        cos, sin = (torch.cat([t, t], -1)[:, None].float() for t in (angles.cos(), angles.sin()))
        turned = torch.cat((-x[..., D // 2:], x[..., :D // 2]), -1)
        self.assert_close([layer_of()(x, positions)], [x * cos + turned * sin])
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        there = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)[:, None]).flatten(-2).float()
        self.assert_close([layer_of(interleaved=True)(x, positions)], [there])

    def test_part_of_a_wider_row(self):
        wide, positions = normal(6, 5 * D), places(6)
        x = wide[:, D:4 * D].unflatten(-1, (3, D))
        self.assert_close([layer_of()(x, positions)], [layer_of()(x.contiguous(), positions)])

    def test_no_heads_and_rows_at_one_place(self):
        rope, x = layer_of(), normal(1, 2, D)
        self.assertEqual(rope(normal(5, 0, D), places(5)).shape, (5, 0, D))
        self.assert_close([rope(x.expand(4, -1, -1), places(4))], [rope(x.repeat(4, 1, 1), places(4))])

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_tables_by_pytorch(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils._python_dispatch import TorchDispatchMode

        class Following(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), named=None):
                return function(*args, **(named or {}))

        with FakeTensorMode():
            self.assertEqual(layer_of().cos.shape, (P, D // 2))
        with Following():
            rope = layer_of(scale=1.5)
        self.assert_close([rope.cos, rope.sin], [layer_of(scale=1.5).cos, layer_of(scale=1.5).sin])
        self.assert_recorded(rope, (normal(5, 2, D), places(5)), (normal(7, 3, D), places(7)))

    def test_positions_beyond_the_tables_are_nan(self):
        y = layer_of()(normal(3, 1, D), torch.tensor([0, P, -1], device=DEVICE))
        self.assertEqual(y.isnan().flatten(1).all(1).tolist(), [False, True, True])
        self.assertEqual(layer_of()(normal(0, 1, D), places(0)).shape, (0, 1, D))

    def test_a_second_derivative_is_pytorchs(self):
        def second(rope):
            x = normal(4, 2, D).requires_grad_()
            (first,) = torch.autograd.grad(rope(x, places(4)).pow(3).sum(), x, create_graph=True)
            return list(torch.autograd.grad(first.square().sum(), x))

        rope = layer_of(interleaved=True)
        found = second(rope)
        with kiln.torch.disabled():
            self.assert_close(found, second(rope))

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compile(self):
        rope, x = layer_of(), normal(2, 5, 3, D)
        compiled = torch.compile(rope, fullgraph=True, backend="aot_eager", dynamic=True)
        self.assert_close(results(compiled, x, places(2, 5)), results(rope, x, places(2, 5)))

    def test_copies(self):
        rope, x = layer_of(rotary_dim=12), normal(4, 2, D)
        self.assertEqual(len(rope.state_dict()), 0)
        for other in (copy.deepcopy(rope), pickle.loads(pickle.dumps(rope))):
            self.assertEqual((other(x, places(4)) - rope(x, places(4))).abs().max().item(), 0)
        self.assertIn("rotary-embedding@1", repr(rope))
        self.assertIn("cpu", rope.kernel.variant if DEVICE == "cpu" else "cpu")

    def test_the_tables_stay_float32(self):
        x = normal(2, 3, D, dtype=torch.bfloat16)
        for change in (lambda rope: rope.to(torch.bfloat16), lambda rope: torch.nn.Sequential(rope).half(),
                       lambda rope: rope.double()):
            rope = layer_of()
            found = rope(x, places(2))
            change(rope)
            self.assertTrue(torch.equal(rope(x, places(2)), found))
            self.assertEqual((rope.cos.dtype, rope.sin.dtype), (torch.float32, torch.float32))
            with kiln.torch.disabled():
                self.assert_close([rope(x, places(2))], [found], torch.bfloat16)

    def test_memory_that_somebody_else_gave(self):
        """As transformers' from_pretrained gives it to buffers that no file has: not through to_empty()."""
        expected = kiln.torch.RotaryEmbedding(16, positions=9, device=DEVICE)
        with torch.device("meta"):
            layer = kiln.torch.RotaryEmbedding(16, positions=9)
        for name in ("cos", "sin"):
            layer.register_buffer(name, torch.full_like(getattr(expected, name), torch.nan), persistent=False)
        x, positions = torch.randn(5, 2, 16, device=DEVICE), torch.arange(5, device=DEVICE)
        self.assertTrue(torch.equal(layer(x, positions), expected(x, positions)))
        own = torch.ones_like(expected.cos)
        expected.cos = own
        expected(x, positions)
        self.assertIs(expected.cos, own, "of a layer that had its tables they are the user's")

    def test_a_first_call_of_two_threads(self):
        """The second waits for the tables that the first writes."""
        x, expected, found, rope = normal(2, 3, D), layer_of()(normal(2, 3, D), places(2)), [], layer_of().to("meta")
        writes, goes_on, call = threading.Event(), threading.Event(), kiln.layer.Source.call

        def slow(source, device, op, tensors):
            if op == "tables":
                writes.set()
                goes_on.wait(60)
            return call(source, device, op, tensors)

        with unittest.mock.patch.object(kiln.layer.Source, "call", slow):
            threads = [threading.Thread(target=lambda: found.append(rope(x, places(2)))) for _ in range(2)]
            threads[0].start()
            self.assertTrue(writes.wait(60))
            threads[1].start()
            threads[1].join(0.2)
            self.assertEqual(found, [])
            goes_on.set()
            for thread in threads:
                thread.join()
        self.assertEqual(len(found), 2)
        for y in found:
            self.assertTrue(torch.equal(y, expected))

    def test_batched_gradients(self):
        x, positions = torch.randn(3, 2, 16, device=DEVICE), torch.arange(3, device=DEVICE)
        for options in ({}, {"interleaved": True}, {"rotary_dim": 8}):
            layer = kiln.torch.RotaryEmbedding(16, positions=9, device=DEVICE, **options)
            rows, batched = (torch.autograd.functional.jacobian(lambda t: layer(t, positions), x, vectorize=v) for v in (False, True))
            self.assertTrue(torch.allclose(rows, batched), options)

    def test_memory_after_the_meta_device(self):
        x, frequencies = normal(2, 3, D), torch.arange(D // 2, device=DEVICE, dtype=torch.float64)
        for options in ({}, {"frequencies": frequencies, "scale": 1.5}):
            expected = layer_of(**options)(x, places(2))
            ropes = [layer_of(**options).to("meta"), kiln.torch.RotaryEmbedding(D, positions=P, device="meta", **options)]
            if hasattr(torch, "set_default_device"):  # PyTorch 2.0
                with torch.device("meta"):
                    ropes.append(kiln.torch.RotaryEmbedding(D, positions=P, device="meta", **options))
            for rope in ropes:
                self.assertTrue(rope.cos.is_meta)
                made = torch.nn.Sequential(copy.deepcopy(rope)).to_empty(device=DEVICE)[0]
                self.assertTrue(torch.equal(made(x, places(2)), expected))
                self.assert_unsaved(rope, x.clone().requires_grad_(), places(2), expected=expected)
                made.cos.zero_()
                made.reset_parameters()
                self.assertTrue(torch.equal(made(x, places(2)), expected))

    def test_what_does_not_fit_is_named(self):
        rope = layer_of()
        for call, error, words in (
                (lambda: rope(normal(3, 2, D), places(4)), kiln.InvalidCall, "expected \\[..., heads, 24\\]"),
                (lambda: rope(normal(3, D + 1), places(3)), kiln.InvalidCall, "x is float32"),
                (lambda: layer_of(rotary_dim=7), kiln.UsageError, "rotary_dim is 7"),
                (lambda: layer_of(frequencies=normal(3)), kiln.UsageError, "expected 12 of them"),
                (lambda: layer_of(frequencies=normal(12).to("meta")), kiln.UsageError, "on meta; expected 12 of them"),
                (lambda: layer_of(theta=1), TypeError, "RotaryEmbedding has no option 'theta'")):
            with self.assertRaisesRegex(error, words):
                call()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    unittest.main()
