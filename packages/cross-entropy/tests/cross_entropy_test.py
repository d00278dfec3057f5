#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.CrossEntropy against torch.nn.functional.cross_entropy: values, gradients, in place, torch.compile.

    cross_entropy_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                                 or "cuda"
"""

import contextlib
import copy
import pathlib
import pickle
import sys
import unittest
import unittest.mock
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase  # first: it skips where there is no torch
import torch
import torch.utils.checkpoint
import kiln.torch

V = 50


def logits_of(*shape, dtype=torch.float32, seed=0):
    return (4 * torch.randn(*shape, V, generator=torch.Generator().manual_seed(seed))).to(DEVICE, dtype)


def targets_of(*shape, dtype=torch.int64):
    """Each third row is ignored."""
    targets = torch.randint(0, V, shape, generator=torch.Generator().manual_seed(1))
    targets.view(-1)[::3] = -100
    return targets.to(DEVICE, dtype)


def results(function, logits, targets):
    logits = logits.detach().clone().requires_grad_()
    given = logits.view_as(logits)  # what a layer gives is no leaf
    loss = function(given, targets)
    (2 * loss.sum()).backward()
    return [loss.detach(), logits.grad]


class CrossEntropy(TorchCase):
    def test_values_and_gradients(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for shape, index in (((7,), torch.int64), ((2, 5), torch.int32)):
                for options in ({}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1},
                                {"z_loss": 1e-2}, {"in_place": True}, {"ignore_index": 3}):
                    with self.subTest(dtype=dtype, shape=shape, options=options):
                        logits, targets = logits_of(*shape, dtype=dtype), targets_of(*shape, dtype=index)
                        targets[targets == -100] = options.get("ignore_index", -100)
                        loss = kiln.torch.CrossEntropy(**options)
                        with self.computes("forward", "backward"):
                            found = results(loss, logits, targets)
                        with kiln.torch.disabled():
                            self.assert_close(found, results(loss, logits, targets), dtype)

    def test_it_is_pytorchs_function(self):
        logits, targets = logits_of(9), targets_of(9)
        self.assert_close(results(kiln.torch.CrossEntropy(label_smoothing=0.2), logits, targets), results(
            lambda z, t: torch.nn.functional.cross_entropy(z, t, label_smoothing=0.2), logits, targets))

    def test_in_place_takes_the_logits_memory_once(self):
        logits = logits_of(6).requires_grad_()
        given = logits * 1
        loss = kiln.torch.CrossEntropy(in_place=True)(given, targets_of(6))
        self.assertEqual((given - logits).abs().max().item(), 0)
        loss.backward(retain_graph=True)
        self.assertEqual((given - logits.grad).abs().max().item(), 0)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_in_place_is_left_where_logits_are_a_part_of_others(self):
        x, targets = logits_of(6), targets_of(6)
        ways = (lambda t: t.chunk(2), lambda t: (t[:3], t[3:]), lambda t: t.view(2, 3, -1).unbind(0))
        for way in ways:
            found = []
            for options in ({}, {"in_place": True}):
                loss, given = kiln.torch.CrossEntropy(reduction="sum", **options), x.clone().requires_grad_()
                sum(loss(part, of_part) for part, of_part in zip(way(given * 1), targets.chunk(2))).backward()
                found.append(given.grad)
            self.assertTrue(torch.equal(*found))

    def test_a_gradient_in_place_is_no_part_of_a_graph(self):
        logits = logits_of(6).requires_grad_()
        given, seen = logits * 1, []
        given.register_hook(lambda gradient: seen.append(gradient.requires_grad))
        found, = torch.autograd.grad(kiln.torch.CrossEntropy(in_place=True)(given, targets_of(6)), given)
        self.assertEqual((found.requires_grad, seen), (False, [False]))
        self.assertEqual(found.data_ptr(), given.data_ptr())

    def test_in_place_is_left_where_hooks_keep_the_logits(self):
        def same(tensor):
            return tensor

        module, checkpoint = sys.modules[kiln.torch.CrossEntropy.__module__], torch.utils.checkpoint.checkpoint
        ways = ((torch.autograd.graph.save_on_cpu(), lambda f, x: f(x)),
                (torch.autograd.graph.saved_tensors_hooks(same, same), lambda f, x: f(x)),
                (contextlib.nullcontext(), lambda f, x: checkpoint(f, x, use_reentrant=False)))
        for asked in (module._hooks_of_saved_tensors, None):
            for options in ({}, {"in_place": True}):
                loss, found = kiln.torch.CrossEntropy(**options), []
                for around, way in ways if options else ways[:1]:
                    x = logits_of(6).requires_grad_()

                    def call(x):
                        logits = torch.tanh(x)  # which keeps them, too
                        return loss(logits, targets_of(6)) + logits.square().sum()

                    with unittest.mock.patch.object(module, "_hooks_of_saved_tensors", asked):
                        with around:
                            result = way(call, x)
                        result.backward(retain_graph=True)
                        result.backward()
                    found.append(x.grad)
                if not options:
                    expected, = found
            for gradient in found:
                self.assertTrue(torch.equal(gradient, expected))

    def test_strided_rows_and_no_rows(self):
        wide = torch.cat([logits_of(5), logits_of(5, seed=3)], -1)
        loss = kiln.torch.CrossEntropy()
        self.assert_close([loss(wide[:, V:], targets_of(5))], [loss(wide[:, V:].contiguous(), targets_of(5))])
        self.assertEqual(kiln.torch.CrossEntropy(reduction="none")(logits_of(0), targets_of(0)).shape, (0,))

    def test_rows_at_one_place(self):
        for options in ({}, {"in_place": True}):
            loss, found = kiln.torch.CrossEntropy(**options), []
            for given in (lambda row: row.expand(4, -1), lambda row: row.repeat(4, 1)):
                row = logits_of(1).requires_grad_()
                loss(given(row), targets_of(4)).backward()
                found.append([row.grad])
            self.assert_close(*found)

    def test_what_records_it_is_for_all_batches(self):
        for reduction in ("mean", "none"):
            self.assert_recorded(kiln.torch.CrossEntropy(reduction=reduction), (logits_of(2, 3), targets_of(2, 3)),
                                 (logits_of(5, 7, seed=2), targets_of(5, 7)))

    def test_no_classes(self):
        for options in ({}, {"z_loss": 1e-2}, {"label_smoothing": 0.1}):
            loss = kiln.torch.CrossEntropy(reduction="none", **options)
            for around in (contextlib.nullcontext(), kiln.torch.disabled()):
                logits = torch.zeros(2, 2, 0, device=DEVICE, requires_grad=True)
                targets = torch.tensor([[0, -100], [5, -100]], device=DEVICE)
                with around:
                    found = loss(logits, targets)
                    found.sum().backward()
                self.assertEqual(found[:, 1].tolist(), [0, 0])
                self.assertTrue(found[:, 0].isnan().all())
                self.assertEqual(logits.grad.shape, logits.shape)

    def test_targets_that_are_no_class_and_rows_that_are_ignored(self):
        for options in ({}, {"z_loss": 1e-2}, {"label_smoothing": 0.1}, {"ignore_index": 0}):
            ignored = options.get("ignore_index", -100)
            targets = torch.tensor([V, -1, 7, *4 * [ignored], 3], device=DEVICE)
            logits = logits_of(8)
            for row, value in ((3, torch.nan), (4, torch.inf), (5, -torch.inf)):
                logits[row, 2] = value
            logits[6] = -torch.inf
            loss = kiln.torch.CrossEntropy(reduction="none", **options)
            found = results(loss, logits, targets)
            with kiln.torch.disabled():
                expected = results(loss, logits, targets)
            for one, other in zip(found, expected):
                with self.subTest(options=options):
                    self.assertTrue(other[:2].isnan().all())
                    self.assertEqual(other[3:7].abs().max().item(), 0)
                    self.assertTrue(torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))

    def test_a_second_derivative_is_pytorchs(self):
        def second(function):
            logits = logits_of(4).requires_grad_()
            (first,) = torch.autograd.grad(function(logits, targets_of(4)), logits, create_graph=True)
            return list(torch.autograd.grad(first.square().sum(), logits))

        loss = kiln.torch.CrossEntropy(z_loss=1e-2)
        found = second(loss)
        with kiln.torch.disabled():
            self.assert_close(found, second(loss))

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compile(self):
        for options in ({}, {"in_place": True}):
            loss = kiln.torch.CrossEntropy(**options)
            compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
            given = logits_of(7), targets_of(7)
            self.assert_close(results(compiled, *given), results(loss, *given))

    def test_copies(self):
        loss = kiln.torch.CrossEntropy(label_smoothing=0.3)
        for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
            self.assert_close([other(logits_of(4), targets_of(4))], [loss(logits_of(4), targets_of(4))])
        self.assertIn("cross-entropy@1", repr(loss))
        self.assertIn("cpu", loss.kernel.variant if DEVICE == "cpu" else "cpu")

    def test_what_does_not_fit_is_named(self):
        loss = kiln.torch.CrossEntropy()
        for call, error, words in (
                (lambda: loss(logits_of(3), targets_of(4)), kiln.InvalidCall, r"expected int64 or int32 \[3\]"),
                (lambda: loss(logits_of(3), targets_of(3).float()), kiln.InvalidCall, "targets are float32"),
                (lambda: kiln.torch.CrossEntropy(reduction="max"), kiln.UsageError, "reduction is 'max'"),
                (lambda: kiln.torch.CrossEntropy(label_smoothing=2), kiln.UsageError, "label_smoothing is 2"),
                (lambda: kiln.torch.CrossEntropy(smoothing=1), TypeError, "CrossEntropy has no option 'smoothing'")):
            with self.assertRaisesRegex(error, words):
                call()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    unittest.main()
