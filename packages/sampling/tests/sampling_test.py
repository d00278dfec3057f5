#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.Sampling against the same by PyTorch's operators: tokens, parameters for each row, what is refused.

    sampling_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default) or
                                            "cuda"
"""

import contextlib
import copy
import pathlib
import pickle
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase, normal  # first: it skips where there is no torch
import torch
import kiln.torch

ROWS, V = 64, 500


def numbers(*shape, start=0):
    return torch.arange(start, start + torch.Size(shape).numel(), device=DEVICE).reshape(shape)


class Sampling(TorchCase):
    def test_tokens_are_those_of_pytorchs_operators(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            logits = 3 * normal(ROWS, V, dtype=dtype)
            logits[1], logits[2, 3], logits[4, ::2] = -torch.inf, torch.nan, -torch.inf
            for options in ({}, {"temperature": 0.0}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1},
                            {"temperature": 1.7, "top_k": 100, "top_p": 0.9, "min_p": 0.02}):
                with self.subTest(dtype=dtype, options=options):
                    sampler, given = kiln.torch.Sampling(**options), (logits, numbers(ROWS), numbers(ROWS, start=1 << 40))
                    with self.computes("sample"):
                        found = sampler(*given)
                    with kiln.torch.disabled():
                        expected = sampler(*given)
                    self.assertEqual((found.dtype, found.shape), (torch.int64, (ROWS,)))
                    self.assertEqual(found[1:3].tolist(), [-1, -1])
                    # A sum in fp32 may fall on the other side of a limit.
                    self.assertLessEqual((found != expected).sum().item(), 1)

    def test_seeds_and_positions_of_any_sign(self):
        sampler, logits = kiln.torch.Sampling(), normal(ROWS, V)
        for given in ((numbers(ROWS), -numbers(ROWS, start=1)), (-numbers(ROWS, start=1 << 40), numbers(ROWS)),
                      (numbers(ROWS), -numbers(ROWS, start=1 << 40))):
            found = sampler(logits, *given)
            with kiln.torch.disabled():
                self.assertLessEqual((found != sampler(logits, *given)).sum().item(), 1)

    def test_no_logits(self):
        sampler = kiln.torch.Sampling()
        for shape in ((3,), (2, 3), ()):
            for out in (None, torch.zeros(shape, dtype=torch.int32, device=DEVICE)):
                for around in (contextlib.nullcontext(), kiln.torch.disabled()):
                    with around:
                        found = sampler(normal(*shape, 0), numbers(*shape), numbers(*shape), out=out)
                    self.assertEqual(found.tolist(), torch.full(shape, -1).tolist())

    def test_a_compiler_is_not_loaded_and_breaks_its_graph(self):
        script = ("import sys, torch; had = 'torch._dynamo' in sys.modules; import kiln.torch; kiln.torch.Sampling; "
                  "sys.exit('torch._dynamo' in sys.modules and not had)")
        subprocess.run([sys.executable, "-c", script], check=True)
        if not hasattr(torch, "compile"):
            return
        graphs, sampler = [], kiln.torch.Sampling()

        def keep(graph, _):
            graphs.append([node.name for node in graph.graph.nodes if node.op.startswith("call")])
            return graph.forward

        given = normal(3, V), numbers(3), numbers(3)
        compiled = torch.compile(lambda logits, *more: sampler(logits * 2, *more) + 1, backend=keep)
        self.assertTrue(torch.equal(compiled(*given), sampler(given[0] * 2, *given[1:]) + 1))
        self.assertEqual([len(names) for names in graphs], [1, 1])

    def test_each_row_has_parameters_of_its_own(self):
        logits = normal(4, V)
        rows = {"temperature": torch.tensor([0, 1, 0.5, 2.0]), "top_k": torch.tensor([0, 1, 5, 0]).int(),
                "top_p": torch.tensor([1, 1, 0.5, 0.9]), "min_p": torch.zeros(4)}
        sampler, seeds, positions = kiln.torch.Sampling(), numbers(4), numbers(4, start=9)
        found = sampler(logits, seeds, positions, **{name: value.to(DEVICE) for name, value in rows.items()})
        self.assertEqual(found[:2].tolist(), logits[:2].argmax(-1).tolist())
        for m in range(4):
            own = {name: value[m].item() for name, value in rows.items()}
            self.assertEqual(sampler(logits[m], seeds[m], positions[m], **own).item(), found[m].item())

    def test_a_parameter_that_is_no_number(self):
        sampler, given = kiln.torch.Sampling(), (normal(6, V), numbers(6), numbers(6))
        for name in ("temperature", "top_p", "min_p"):
            with self.computes("sample"):
                found = sampler(*given, **{name: torch.nan})
            with kiln.torch.disabled():
                self.assertTrue(torch.equal(sampler(*given, **{name: torch.nan}), found), name)

    def test_shapes_and_out(self):
        sampler, logits = kiln.torch.Sampling(top_p=0.9), normal(2, 3, V)
        out = torch.full((2, 3), -5, dtype=torch.int32, device=DEVICE)
        self.assertIs(sampler(logits, numbers(2, 3), numbers(2, 3), out=out), out)
        self.assertTrue(torch.equal(sampler(logits.flatten(0, 1), numbers(6), numbers(6)), out.flatten().long()))
        self.assertEqual(sampler(normal(0, V), numbers(0), numbers(0)).shape, (0,))
        wide = torch.cat([logits[0], logits[1]], -1)
        self.assertTrue(torch.equal(sampler(wide[:, V:], numbers(3, start=3), numbers(3, start=3)), out[1].long()))

    def test_vectorised_and_rows_at_one_place(self):
        sampler, given = kiln.torch.Sampling(), (normal(6, V), numbers(6), numbers(6))
        with self.assertWarns(kiln.torch.FallbackWarning):
            self.assertTrue(torch.equal(torch.func.vmap(sampler)(*given), sampler(*given)))
        row = given[0][:1]
        self.assertTrue(torch.equal(sampler(row.expand(6, -1), *given[1:]), sampler(row.repeat(6, 1), *given[1:])))

    @unittest.skipUnless(hasattr(torch.autograd.graph, "increment_version"), "wants PyTorch 2.1")
    def test_autograd_is_told_what_was_written(self):
        sampler, logits = kiln.torch.Sampling(), normal(4, V)
        out = sampler(logits, numbers(4), numbers(4))
        rows = normal(V, 3).requires_grad_()[out]  # saves out
        sampler(-logits, numbers(4), numbers(4), out=out)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            rows.sum().backward()

    def test_copies_and_words(self):
        sampler, given = kiln.torch.Sampling(top_k=9), (normal(8, V), numbers(8), numbers(8))
        for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
            self.assertTrue(torch.equal(other(*given), sampler(*given)))
        self.assertIn("top_k=9", repr(sampler))

    def test_what_does_not_fit_is_named(self):
        sampler, logits = kiln.torch.Sampling(), normal(3, V)
        for call, words in (
                (lambda: sampler(logits, numbers(2), numbers(3)), r"seeds is int64 \[2\].*expected int64 \[3\]"),
                (lambda: sampler(logits, numbers(3), numbers(3).int()), "positions is int32"),
                (lambda: sampler(logits, numbers(3), numbers(3), out=normal(3)), "out is float32.*int64 or int32"),
                (lambda: sampler(logits, numbers(3), numbers(3), top_k=numbers(3)), r"top_k is int64.*expected int32 \[3\]")):
            for around in (contextlib.nullcontext(), kiln.torch.disabled()):
                with around, self.assertRaisesRegex(kiln.InvalidCall, words):
                    call()


if __name__ == "__main__":
    unittest.main()
