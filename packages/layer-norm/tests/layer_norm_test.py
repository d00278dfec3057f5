#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.LayerNorm against PyTorch's operators: values, gradients, both again, torch.compile, copies.

    layer_norm_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                              or "cuda"
"""

import copy
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
    norm = kiln.torch.LayerNorm(D, device=DEVICE, dtype=dtype, **options)
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter.copy_(normal(D, seed=10 + seed))
    return norm


def results(norm, x, residual, function=None):
    """y, h and the gradients of x, the residual and the parameters."""
    inputs = [t.detach().clone().requires_grad_() for t in (x, residual) if t is not None]
    given = (norm if function is None else function)(*inputs)
    outputs = [given] if residual is None else [*given]
    loss = sum((t.float() * normal(*t.shape, seed=9 + i)).sum() for i, t in enumerate(outputs))
    return outputs + list(torch.autograd.grad(loss, [*inputs, *norm.parameters()]))


class LayerNorm(TorchCase):
    def test_values_and_gradients(self):
        options = ({}, {"bias": False}, {"elementwise_affine": False})
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for shape in ((5, D), (2, 3, D), (D,)):
                for with_residual in (False, True):
                    for of in options:
                        with self.subTest(dtype=dtype, shape=shape, residual=with_residual, options=of):
                            norm = layer_of(dtype, eps=1e-3, **of)
                            x = normal(*shape, dtype=dtype, seed=2)
                            residual = normal(*shape, dtype=dtype, seed=3) if with_residual else None
                            with self.computes("forward_residual" if with_residual else "forward", "backward"):
                                found = results(norm, x, residual)
                            with kiln.torch.disabled():
                                self.assert_close(found, results(norm, x, residual), dtype)

    def test_it_loads_what_torch_saves(self):
        own = torch.nn.LayerNorm(D, device=DEVICE)
        with torch.no_grad():
            own.weight.copy_(normal(D, seed=5))
        norm = layer_of()
        norm.load_state_dict(own.state_dict())
        self.assert_close([norm(normal(3, D))], [own(normal(3, D))])

    def test_memory_after_the_meta_device(self):
        for affine in (True, False):
            own = torch.nn.LayerNorm(D, elementwise_affine=affine, device=DEVICE)
            model = torch.nn.Sequential(layer_of(elementwise_affine=affine).to("meta"))
            torch.use_deterministic_algorithms(True)  # PyTorch 2.2 then fills memory without numbers with NaN
            try:
                model.to_empty(device=DEVICE)[0].load_state_dict(own.state_dict())
            finally:
                torch.use_deterministic_algorithms(False)
            self.assert_close([model(normal(3, D))], [own(normal(3, D))])
            if not affine:
                self.assert_unsaved(model[0], normal(3, D).requires_grad_(), expected=own(normal(3, D)))
            model[0].reset_parameters()
            self.assert_close([model(normal(3, D))], [own(normal(3, D))])

    def test_ones_that_no_state_dict_has(self):
        x = torch.randn(3, 32, device=DEVICE)
        expected = torch.nn.functional.layer_norm(x, (32,))
        with torch.device("meta"):
            assigned, given = (kiln.torch.LayerNorm(32, elementwise_affine=False) for _ in range(2))
        assigned.load_state_dict({}, assign=True)
        given.register_buffer("weight", torch.full((32,), torch.nan, device=DEVICE), persistent=False)
        for layer in (assigned, given):
            self.assertTrue(torch.allclose(layer(x), expected, atol=1e-5))

    def test_weights_that_are_columns(self):
        weights = torch.randn(32, 2, device=DEVICE)
        x = torch.randn(3, 32, device=DEVICE)
        named = {"weight": weights[:, 0], "bias": weights[:, 1]}
        found = torch.func.functional_call(kiln.torch.LayerNorm(32, device=DEVICE), named, (x,))
        self.assertTrue(torch.allclose(found, torch.nn.functional.layer_norm(x, (32,), *named.values()), atol=1e-5))

    def test_no_rows_and_no_gradient(self):
        norm = layer_of()
        self.assertEqual(norm(normal(0, D)).shape, (0, D))
        self.assertEqual(kiln.torch.LayerNorm(0, device=DEVICE)(normal(2, 3, 0)).shape, (2, 3, 0))
        with torch.no_grad():
            self.assertIsNone(norm(normal(3, D)).grad_fn)
        norm.requires_grad_(False)
        x = normal(3, D).requires_grad_()
        norm(x).sum().backward()
        self.assertIsNone(norm.weight.grad)

    def test_a_loss_of_h_alone(self):
        self.assert_h_is_apart(layer_of())

    def test_strided_rows(self):
        norm, wide = layer_of(), normal(6, 2 * D, seed=4)
        self.assert_close([norm(wide[:, D:])], [norm(wide[:, D:].contiguous())])

    def test_a_second_derivative_is_pytorchs(self):
        norm = layer_of()
        x, residual = normal(3, D).requires_grad_(), normal(3, D, seed=1)

        def second(*inputs):
            outputs = norm(*inputs)
            loss = sum(t.pow(3).sum() for t in (outputs if len(inputs) == 2 else [outputs]))
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            return list(torch.autograd.grad(first.square().sum(), [x, norm.weight]))

        for inputs in ((x,), (x, residual)):
            found = second(*inputs)
            with kiln.torch.disabled():
                self.assert_close(found, second(*inputs))

    def test_on_meta(self):
        norm = kiln.torch.LayerNorm(16, device="meta")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            y, h = norm(*(torch.empty(2, 16, device="meta") for _ in range(2)))
        self.assertEqual((y.shape, y.is_meta, h.is_meta), ((2, 16), True, True))
        self.assertIn("is on meta", str(told[0].message))

    def test_each_leaf_has_a_gradient_of_its_own(self):
        self.assert_gradients_apart(kiln.torch.LayerNorm(16, device=DEVICE))

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compile(self):
        norm, x, residual = layer_of(), normal(5, D, seed=2), normal(5, D, seed=3)
        compiled = torch.compile(norm, fullgraph=True, backend="aot_eager", dynamic=True)
        for other in (None, residual):
            self.assert_close(results(norm, x, other, compiled), results(norm, x, other))

    def test_what_would_be_passed_over_is_pytorchs(self):
        norm, x = layer_of(), normal(5, D)
        with self.assertWarns(kiln.torch.FallbackWarning):
            found = torch.func.vmap(norm)(x)
        self.assert_close([found], [norm(x)])

    def test_autocast_adds_as_pytorch_does(self):
        self.assert_adds_a_wider_residual(layer_of())

    def test_autocast_leaves_the_dtype_of_x(self):
        for dtype in (torch.bfloat16, torch.float16):
            norm, x, residual = layer_of(), normal(5, D, dtype=dtype), normal(5, D, dtype=dtype, seed=1)
            with torch.autocast(DEVICE, torch.bfloat16):
                found = [norm(x), *norm(x, residual)]
                with kiln.torch.disabled():
                    self.assert_close([norm(x), *norm(x, residual)], found, dtype)

    def test_copies(self):
        norm, x = layer_of(eps=1e-3), normal(5, D)
        for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
            self.assertEqual((other(x) - norm(x)).abs().max().item(), 0)
        self.assertIn("layer-norm@1", repr(norm))

    def test_what_does_not_fit_is_named(self):
        norm = layer_of()
        for call, error, words in ((lambda: norm(normal(3, D), normal(4, D)), kiln.InvalidCall, "residual is float32"),
                                   (lambda: norm(normal(3, D + 1)), kiln.InvalidCall, "expected rows of 40"),
                                   (lambda: layer_of(epsilon=1), TypeError, "LayerNorm has no option 'epsilon'")):
            with self.assertRaisesRegex(error, words):
                call()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    unittest.main()
