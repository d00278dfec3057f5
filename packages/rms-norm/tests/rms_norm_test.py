#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.RmsNorm against PyTorch's operators: values, gradients, both again, torch.compile, copies.

    rms_norm_test.py [unittest's options]     wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                              or "cuda"
"""

import contextlib
import copy
import decimal
import pathlib
import pickle
import sys
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase, normal  # first: it skips where there is no torch
import torch
import kiln.torch

D = 40


def layer_of(dtype=torch.float32, **options):
    norm = kiln.torch.RmsNorm(D, device=DEVICE, dtype=dtype, **options)
    with torch.no_grad():
        norm.weight.copy_(normal(D, seed=1))
    return norm


def results(norm, x, residual, function=None):
    """y, h and the gradients of x, weight and the residual."""
    inputs = [t.detach().clone().requires_grad_() for t in (x, residual) if t is not None]
    given = (norm if function is None else function)(*inputs)
    outputs = [given] if residual is None else [*given]
    loss = sum((t.float() * normal(*t.shape, seed=9 + i)).sum() for i, t in enumerate(outputs))
    return outputs + list(torch.autograd.grad(loss, [*inputs, norm.weight]))


class RmsNorm(TorchCase):
    def test_values_and_gradients(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for shape in ((5, D), (2, 3, D), (D,)):
                for with_residual in (False, True):
                    for offset in (0.0, 1.0):
                        with self.subTest(dtype=dtype, shape=shape, residual=with_residual, offset=offset):
                            norm = layer_of(dtype, offset=offset, eps=1e-5)
                            x = normal(*shape, dtype=dtype, seed=2)
                            residual = normal(*shape, dtype=dtype, seed=3) if with_residual else None
                            with self.computes("forward", "backward"):
                                found = results(norm, x, residual)
                            with kiln.torch.disabled():
                                self.assert_close(found, results(norm, x, residual), dtype)

    def test_no_rows_and_no_gradient(self):
        norm = layer_of()
        self.assertEqual(norm(normal(0, D)).shape, (0, D))
        with torch.no_grad():
            self.assertIsNone(norm(normal(3, D)).grad_fn)
        norm.weight.requires_grad_(False)
        x = normal(3, D).requires_grad_()
        norm(x).sum().backward()
        self.assertIsNone(norm.weight.grad)

    def test_a_wrong_attribute_is_no_other_layers(self):
        for wrong in (decimal.Decimal("0.001"), "0.001"):
            with self.assertRaises(kiln.Error):
                layer_of(eps=wrong)
            self.assert_close([layer_of(eps=0.001)(normal(3, D))], [layer_of(eps=0.001).reference(normal(3, D))])

    def test_extents_of_0_and_parameters_again(self):
        for around in (contextlib.nullcontext(), kiln.torch.disabled()):
            norm = kiln.torch.RmsNorm(0, device=DEVICE)
            with around:
                self.assertEqual([t.shape for t in norm(normal(2, 3, 0), normal(2, 3, 0))], 2 * [(2, 3, 0)])
                with self.assertRaisesRegex(kiln.InvalidCall, "expected rows of 0"):
                    norm(normal(1)[0])
        for offset in (0.0, 1.0):
            norm = layer_of(offset=offset)
            norm.reset_parameters()
            self.assertEqual((norm.weight + offset).tolist(), D * [1])

    def test_a_weight_that_is_a_column(self):
        weight, x = torch.randn(32, 2, device=DEVICE)[:, 0], torch.randn(3, 32, device=DEVICE)
        found = torch.func.functional_call(kiln.torch.RmsNorm(32, device=DEVICE), {"weight": weight}, (x,))
        self.assertTrue(torch.allclose(found, torch.nn.functional.rms_norm(x, (32,), weight, 1e-6), atol=1e-5))

    def test_a_loss_of_h_alone(self):
        self.assert_h_is_apart(layer_of())

    def test_strided_rows(self):
        norm, wide = layer_of(), normal(6, 2 * D, seed=4)
        self.assert_close([norm(wide[:, D:])], [norm(wide[:, D:].contiguous())], torch.float32)

    def test_a_second_derivative_is_pytorchs(self):
        norm = layer_of()
        x = normal(3, D).requires_grad_()
        (first,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        with kiln.torch.disabled():
            (first,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
            self.assert_close([second], list(torch.autograd.grad(first.sum(), x)), torch.float32)

    def test_each_leaf_has_a_gradient_of_its_own(self):
        self.assert_gradients_apart(kiln.torch.RmsNorm(16, device=DEVICE))

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compile(self):
        norm, x, residual = layer_of(), normal(5, D, seed=2), normal(5, D, seed=3)
        compiled = torch.compile(norm, fullgraph=True, backend="aot_eager", dynamic=True)
        for with_residual in (None, residual):
            self.assert_close(results(norm, x, with_residual, compiled), results(norm, x, with_residual), torch.float32)

    def test_autocast_adds_as_pytorch_does(self):
        self.assert_adds_a_wider_residual(layer_of())

    def test_what_would_be_passed_over_is_pytorchs(self):
        norm, x = layer_of(), normal(5, D)
        with self.assertWarns(kiln.torch.FallbackWarning):
            found = torch.func.vmap(norm)(x)
        self.assert_close([found], [norm(x)], torch.float32)

    def test_copies(self):
        norm, x = layer_of(eps=1e-3), normal(5, D)
        for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
            self.assertEqual((other(x) - norm(x)).abs().max().item(), 0)
        self.assertIn("rms-norm@1", repr(norm))

    def test_what_does_not_fit_is_named(self):
        norm = layer_of()
        for call, error, words in ((lambda: norm(normal(3, D), normal(4, D)), kiln.InvalidCall, "residual is float32"),
                                   (lambda: norm(normal(3, D + 1)), kiln.InvalidCall, "expected rows of 40"),
                                   (lambda: layer_of(epsilon=1), TypeError, "RmsNorm has no option 'epsilon'")):
            with self.assertRaisesRegex(error, words):
                call()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    unittest.main()
