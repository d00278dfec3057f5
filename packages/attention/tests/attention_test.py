#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.Attention against PyTorch's operators: prefill, ragged sequences, pages, torch.compile, copies, refusals.

    attention_test.py [unittest's options]    wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                              or "cuda"
"""

import contextlib
import copy
import pathlib
import pickle
import sys
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/tests"))
from torch_case import DEVICE, TorchCase  # first: it skips where there is no torch
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import kiln.torch

HQ, HK, D = 8, 2, 64
DTYPES = (torch.float16, torch.bfloat16) if DEVICE == "cuda" else (torch.float32, torch.float16, torch.bfloat16)
BOUNDS = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def normal(*shape, dtype=DTYPES[0], seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def integers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def heads_of(*tokens, dtype=DTYPES[0]):
    """q, k and v, views of one projection."""
    return normal(*tokens, HQ + 2 * HK, D, dtype=dtype).split([HQ, HK, HK], -2)


def pages_of(attention, lengths, page_rows=16, dtype=DTYPES[0]):
    """k_pages, v_pages, block_table, all that was appended; what was not is NaN."""
    table_pages = max(lengths) // page_rows + 1
    table = torch.randperm(len(lengths) * table_pages, generator=torch.Generator().manual_seed(1)).reshape(
        len(lengths), table_pages)
    pages = [torch.full((table.numel(), page_rows, HK, D), torch.nan, dtype=dtype, device=DEVICE) for _ in range(2)]
    rows = [normal(sum(lengths), HK, D, dtype=dtype, seed=seed) for seed in (2, 3)]
    slots = [table[b, n // page_rows].item() * page_rows + n % page_rows
             for b, length in enumerate(lengths) for n in range(length)]
    attention.append(*rows, integers(*slots), *pages)
    return pages, table.to(DEVICE, torch.int32), rows


@contextlib.contextmanager
def torch_fills_with_nan():
    """Memory without numbers has NaN, where PyTorch is 2.2 or later."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Following(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), named=None):
        return function(*args, **(named or {}))


class Attention(TorchCase):
    def assert_close(self, found, expected):
        self.assertEqual((found.shape, found.dtype), (expected.shape, expected.dtype))
        finite = torch.isfinite(expected)
        self.assertTrue(torch.equal(finite, torch.isfinite(found)))
        found, expected = (torch.where(finite, t, 0).double() for t in (found, expected))
        self.assertLessEqual((found - expected).norm().item(), BOUNDS[found.dtype if found.dtype in BOUNDS else
                                                                      DTYPES[-1]] * expected.norm().item() + 1e-12)

    def assert_as_pytorch(self, call, *ops):
        with self.computes(*ops):
            found = call()
        with kiln.torch.disabled():
            expected = call()
        for one, other in zip(found, expected) if isinstance(found, tuple) else ((found, expected),):
            self.assert_close(one, other)

    def test_scaled_dot_product_attention(self):
        for dtype in DTYPES:
            for causal in (False, True):
                for shape in ((2, 37), (70,)):
                    with self.subTest(dtype=dtype, causal=causal, shape=shape):
                        q, k, v = heads_of(*shape, dtype=dtype)
                        found = kiln.torch.Attention(causal=causal)(q, k, v)
                        expected = F.scaled_dot_product_attention(
                            *(t.transpose(-3, -2) for t in (q, k, v)), is_causal=causal, enable_gqa=True)
                        self.assert_close(found, expected.transpose(-3, -2))

    def test_ragged_sequences(self):
        q, k, v = heads_of(60)
        starts_q, starts_k = integers(0, 1, 1, 40, 60), integers(0, 0, 7, 50, 60)
        for options in ({}, {"causal": True}, {"causal": True, "window": 9}, {"causal": True, "scale": 0.3}):
            with self.subTest(options=options):
                attention = kiln.torch.Attention(**options)
                self.assert_as_pytorch(lambda: attention(q, k, v, starts_q, starts_k, with_lse=True), "prefill")

    def test_rows_that_belong_to_no_sequence(self):
        starts = integers(0, 5, 20)
        for dtype in DTYPES:
            attention = kiln.torch.Attention(causal=True)
            fused = normal(33, HQ + 2 * HK, D, dtype=dtype).requires_grad_()
            q, k, v = fused.split([HQ, HK, HK], 1)

            def results():
                out, lse = attention(q, k, v, starts, starts, with_lse=True)
                return out, lse, torch.autograd.grad((out.float() * normal(33, HQ, D, seed=6).float()).sum(), fused)[0]

            with self.subTest(dtype=dtype), torch_fills_with_nan():
                self.assert_as_pytorch(results, "prefill", "backward")
                out, lse, gradient = results()
                self.assertEqual((out[20:].abs().max().item(), gradient[20:].abs().max().item()), (0, 0))
                self.assertTrue(torch.equal(lse[:, 20:], torch.full_like(lse[:, 20:], -torch.inf)))

    def test_heads_whose_numbers_lie_apart(self):
        attention = kiln.torch.Attention(causal=True)
        q, k, v = (t[..., ::2] for t in normal(9, HQ + 2 * HK, 2 * D).split([HQ, HK, HK], 1))
        self.assert_close(attention(q, k, v), attention(q.contiguous(), k.contiguous(), v.contiguous()))

    def test_pages(self):
        for dtype in DTYPES:
            attention = kiln.torch.Attention(causal=True)
            lengths = [5, 0, 70]
            pages, table, rows = pages_of(attention, lengths, dtype=dtype)
            for shape in ((3, HQ, D), (3, 2, HQ, D)):
                with self.subTest(dtype=dtype, shape=shape):
                    q = normal(*shape, dtype=dtype, seed=4)
                    self.assert_as_pytorch(
                        lambda: attention.decode(q, *pages, table, integers(*lengths), with_lse=True), "decode")
            last = attention.decode(normal(3, HQ, D, dtype=dtype, seed=5), *pages, table, integers(*lengths))
            k, v = (t[5:] for t in rows)
            self.assert_close(last[2], attention(normal(3, HQ, D, dtype=dtype, seed=5)[2:], k, v)[0])
            with kiln.torch.disabled():
                by_pytorch, _, _ = pages_of(attention, lengths, dtype=dtype)
            for one, other in zip(pages, by_pytorch):
                self.assertTrue(torch.equal(one.nan_to_num(7), other.nan_to_num(7)))

    def test_pytorch_appends_to_a_part_of_a_cache(self):
        attention, (_, k, v) = kiln.torch.Attention(causal=True), heads_of(20)
        both = torch.zeros(4, 2, 16, HK, D, dtype=k.dtype, device=DEVICE)  # keys, then values of a page
        slots = integers(*range(3, 20), -1, 40, 41)
        pages = [torch.zeros(4, 16, HK, D, dtype=k.dtype, device=DEVICE) for _ in range(2)]
        attention.append(k, v, slots, *pages)
        for around in (kiln.torch.disabled(), Following()):
            both.zero_()
            with around, warnings.catch_warnings():
                warnings.simplefilter("ignore", kiln.torch.FallbackWarning)
                attention.append(k, v, slots, both[:, 0], both[:, 1])
            self.assertTrue(torch.equal(both, torch.stack(pages, 1)))

    def test_integers_of_either_size_and_any_strides(self):
        attention, (q, k, v) = kiln.torch.Attention(causal=True), heads_of(20)
        pages, table, rows = pages_of(attention, [17, 3])
        given = {"starts": integers(0, 17, 20), "table": table, "lengths": integers(17, 3), "slots": integers(*range(20))}

        def results(starts, table, lengths, slots):
            own = [torch.zeros_like(page) for page in pages]
            attention.append(*rows, slots, *own)
            return [attention(q, k, v, starts, starts), attention.decode(q[:2], *pages, table, lengths), *own]

        expected = results(**given)
        for change in (torch.Tensor.long, lambda t: torch.stack((t, t), -1)[..., 0],
                       lambda t: t.long().t().contiguous().t() if t.dim() == 2 else t):
            with self.computes("append", "prefill", "decode"):
                found = results(**{name: change(tensor) for name, tensor in given.items()})
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(found, expected)))
        # Of 64 bits, none is cut: a slot below 0 stays one.
        own = [torch.zeros_like(page) for page in pages]
        attention.append(*rows, torch.arange(20) - 2 ** 32, *own)
        self.assertFalse(any(page.any() for page in own))
        for name, tensor in given.items():
            with self.subTest(name), self.assertRaisesRegex(kiln.InvalidCall, "int16; expected int32"):
                results(**{**given, name: tensor.short()})

    def test_views_are_not_copied(self):
        q, k, v = heads_of(33)
        attention = kiln.torch.Attention()
        self.assertEqual(q.reshape(33, -1).data_ptr(), q.data_ptr())
        self.assert_close(attention(q, k, v), attention(q.contiguous(), k.contiguous(), v.contiguous()))

    def test_no_tokens(self):
        q, k, v = heads_of(0)
        self.assertEqual(kiln.torch.Attention()(q, k, v).shape, (0, HQ, D))
        q, k, v = heads_of(3)
        out = kiln.torch.Attention()(q, k[:0], v[:0])
        self.assertEqual(out.abs().max().item(), 0)

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compile(self):
        attention = kiln.torch.Attention(causal=True)
        q, k, v = heads_of(2, 20)
        pages, table, _ = pages_of(attention, [20, 3])
        lengths = integers(20, 3)

        def step(q, k, v, k_pages, v_pages):
            attention.append(k[:, :1], v[:, :1], integers(0, -1), k_pages, v_pages)
            return attention(q, k, v) + attention.decode(q[:, :1], k_pages, v_pages, table, lengths)

        given = [[page.clone() for page in pages] for _ in range(2)]
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        self.assert_close(compiled(q, k, v, *given[0]), step(q, k, v, *given[1]))
        for one, other in zip(*given):
            self.assertTrue(torch.equal(one.nan_to_num(7), other.nan_to_num(7)))

    def test_what_would_be_passed_over_is_pytorchs(self):
        attention = kiln.torch.Attention()
        q, k, v = heads_of(9)
        with self.assertWarns(kiln.torch.FallbackWarning), Following():
            found = attention(q, k, v)
        self.assert_close(found, attention(q, k, v))

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_what_records_it_is_for_all_lengths(self):
        class Decode(torch.nn.Module):
            def forward(self, q, k_pages, v_pages, table, lengths):
                return attention.decode(q, k_pages, v_pages, table, lengths, with_lse=True)

        class Append(torch.nn.Module):
            def forward(self, k, v, slots, k_pages, v_pages):
                given = k_pages.clone(), v_pages.clone()
                attention.append(k, v, slots, *given)
                return given

        for options in ({}, {"causal": True, "window": 9}):
            attention = kiln.torch.Attention(**options)
            cache = [normal(3, 4, HK, D, seed=seed) for seed in (7, 8)]
            self.assert_recorded(Append(), *((*heads_of(len(slots))[1:], integers(*slots), *cache)
                                             for slots in ((3, 2, 7), (11, -1, -1), (-1, 0, 4), (5, 6, 7, 8, -1))))
            self.assert_recorded(attention, heads_of(2, 20), heads_of(3, 33), heads_of(1, 5))
            q, k, v = heads_of(60)
            calls = [(q, k, v, integers(*of_q), integers(*of_k)) for of_q, of_k in (
                ((0, 20, 60), (0, 20, 60)), ((0, 1, 40), (0, 9, 50)), ((0, 0, 1, 40, 60), (0, 7, 7, 50, 60)))]
            self.assert_recorded(attention, *calls)
            pages, table, _ = pages_of(attention, [20, 3])
            table[1, 1:] = 1 << 20  # of no key
            self.assert_recorded(Decode(), *((normal(2, HQ, D), *pages, table, integers(*lengths))
                                             for lengths in ((20, 3), (7, 0))))
        with self.assertWarns(kiln.torch.FallbackWarning):
            found = torch.func.vmap(lambda q, k, v: attention(q, k, v, integers(0, 7, 20), integers(0, 7, 20)))(
                *heads_of(2, 20))
        self.assert_close(found[1], attention(*(t[1] for t in heads_of(2, 20)), integers(0, 7, 20), integers(0, 7, 20)))

    def test_rows_at_one_place(self):
        q, k, v = (t[:1] for t in heads_of(1, 5))
        for call in ((q.expand(3, -1, -1, -1), *(t.repeat(3, 1, 1, 1) for t in (k, v))),
                     (q, *(t[:, :1].expand(-1, 5, -1, -1) for t in (k, v)))):
            self.assert_as_pytorch(lambda: kiln.torch.Attention()(*call), "prefill")

    def test_gradients(self):
        starts_q, starts_k = integers(0, 1, 1, 20, 30), integers(0, 0, 7, 30, 45)
        for dtype in DTYPES:
            for options in ({}, {"causal": True}, {"causal": True, "window": 9, "scale": 0.3}):
                with self.subTest(dtype=dtype, options=options):
                    attention = kiln.torch.Attention(**options)
                    fused = normal(45, HQ + 2 * HK, D, dtype=dtype).requires_grad_()
                    q, k, v = fused.split([HQ, HK, HK], 1)

                    def gradient():
                        out = attention(q[:30], k, v, starts_q, starts_k)
                        return torch.autograd.grad((out.float() * normal(30, HQ, D, seed=6).float()).sum(), fused)[0]

                    self.assert_as_pytorch(gradient, "prefill", "backward")

    def test_lse_is_apart_from_the_values(self):
        attention, (q, k, v) = kiln.torch.Attention(), heads_of(20)
        given = [t.clone().requires_grad_() for t in (q, k, v)]
        self.assertFalse(attention(q, k, given[2], with_lse=True)[1].requires_grad)
        attention(*given, with_lse=True)[1].sum().backward()
        self.assertIsNone(given[2].grad)
        self.assertTrue(given[0].grad.any() and given[1].grad.any())

    def test_a_gradient_of_lse_and_a_second_derivative(self):
        attention = kiln.torch.Attention(causal=True)
        inputs = [t.detach().clone().requires_grad_() for t in heads_of(9)]

        def of_lse():
            out, lse = attention(*inputs, with_lse=True)
            return torch.autograd.grad(out.float().sum() + lse.sin().sum(), inputs)

        def again():
            (first,) = torch.autograd.grad(attention(*inputs).float().square().sum(), inputs[0], create_graph=True)
            return torch.autograd.grad(first.float().sum(), inputs[1])

        self.assert_as_pytorch(of_lse, "prefill")
        if DEVICE == "cpu":
            self.assert_as_pytorch(again)

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compiled_gradients(self):
        from torch._dynamo.backends.common import aot_autograd

        graphs = []

        def keep(graph, _):
            graphs.append(graph.code)
            return graph.forward

        attention = kiln.torch.Attention(causal=True)
        compiled = torch.compile(attention, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
        inputs = [t.detach().clone().requires_grad_() for t in heads_of(2, 9)]
        found, expected = (torch.autograd.grad(call(*inputs).sum(), inputs) for call in (compiled, attention))
        for one, other in zip(found, expected):
            self.assert_close(one, other)
        self.assertIn("attention_backward", graphs[-1])  # the package's own

    @unittest.skipUnless(kiln.torch.HAS_OPERATORS, "torch.library.custom_op came with PyTorch 2.4")
    def test_compiled_gradients_of_heads_before_tokens(self):
        """A compiler takes a gradient to lie as the operator says: what follows here views it."""
        attention = kiln.torch.Attention(causal=True)

        def heads_first(q, k, v):
            return attention(*(t.view(t.shape[0], 9, D).transpose(0, 1) for t in (q, k, v)))

        inputs = [normal(heads, 9 * D, seed=seed).requires_grad_() for seed, heads in enumerate((HQ, HK, HK))]
        compiled = torch.compile(heads_first, fullgraph=True, backend="aot_eager")
        found, expected = (torch.autograd.grad(call(*inputs).sum(), inputs) for call in (compiled, heads_first))
        for one, other in zip(found, expected):
            self.assert_close(one, other)

    def test_autocast_computes_as_pytorch_does(self):
        attention, (q, k, v) = kiln.torch.Attention(causal=True), heads_of(1, 20, dtype=torch.float32)
        for others in (torch.float32, torch.bfloat16):
            given = [q.clone().requires_grad_(), k.to(others), v.to(others)]
            with torch.autocast(DEVICE, torch.bfloat16), self.computes("prefill"):
                out = attention(*given)
            self.assert_close(out, attention(*(t.bfloat16() for t in given)))
            out.float().sum().backward()
            self.assertEqual(given[0].grad.dtype, torch.float32)
        with self.assertRaises(kiln.InvalidCall):
            attention(*given)
        (k_pages, v_pages), table, rows = pages_of(attention, [20], dtype=torch.bfloat16)
        call = (k_pages, v_pages, table, integers(20))
        expected, pages = attention.decode(q[0, -1:].bfloat16(), *call), [torch.zeros_like(k_pages) for _ in range(2)]
        slots = integers(*range(20))
        with torch.autocast(DEVICE, torch.bfloat16), self.computes("decode", "append"):
            self.assertTrue(torch.equal(attention.decode(q[0, -1:], *call), expected))
            attention.append(rows[0].float(), rows[1].float(), slots, *pages)
        self.assertTrue(all(torch.equal(page.flatten(0, 1)[:20], row) for page, row in zip(pages, rows)))
        for refused in (lambda: attention.decode(q[0, -1:], *call),
                        lambda: attention.append(rows[0].float(), rows[1].float(), slots, *pages)):
            with self.assertRaises(kiln.InvalidCall):
                refused()

    def test_a_gradient_of_decode_is_refused(self):
        attention = kiln.torch.Attention(causal=True)
        pages, table, _ = pages_of(attention, [20])
        q = normal(1, HQ, D).requires_grad_()
        with self.assertRaisesRegex(kiln.InvalidCall, "a tensor of decode requires a gradient"):
            attention.decode(q, *pages, table, integers(20))
        with torch.no_grad():
            self.assertIsNone(attention.decode(q, *pages, table, integers(20)).grad_fn)

    def test_copies(self):
        q, k, v = heads_of(9)
        attention = kiln.torch.Attention(causal=True, window=4, scale=0.2)
        for other in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
            self.assertTrue(torch.equal(other(q, k, v), attention(q, k, v)))
        self.assertIn("attention@1", repr(attention))

    def test_what_does_not_fit_is_named(self):
        q, k, v = heads_of(9)
        attention = kiln.torch.Attention()
        merged, one = [t.reshape(9, HK // 2, 2 * D) for t in (k, v)], q[None]
        pages, slots = [torch.zeros(3, 16, HK, D, dtype=q.dtype, device=DEVICE) for _ in range(2)], integers(*range(9))
        for call, error, words in (
                (lambda: kiln.torch.Attention(window=4), kiln.InvalidCall, "window is 4 with causal=False"),
                (lambda: kiln.torch.Attention(scale=0.0), kiln.InvalidCall, "scale is 0.0"),
                (lambda: kiln.torch.Attention(windows=4), TypeError, "Attention has no option 'windows'"),
                (lambda: attention(q, k, v, integers(0, 9)), kiln.InvalidCall, "cu_seqlens_q or cu_seqlens_k is miss"),
                (lambda: attention(q[0], k[0], v[0]), kiln.InvalidCall, "expected .*tokens, heads, head size"),
                (lambda: attention(q[:, :3], k, v), kiln.Error, "q has 3 heads, k and v have 2|HQ a multiple of HK"),
                (lambda: attention(q, k[..., :32], v), kiln.InvalidCall, "expected k and v of one shape"),
                (lambda: attention(q, *merged), kiln.InvalidCall, "expected k and v of one shape, whose"),
                (lambda: attention(one, k[None], v[None].reshape(9, 1, *v.shape[1:])), kiln.InvalidCall, "of one shape"),
                (lambda: attention(q.expand(2, *q.shape), k.repeat(2, 1, 1), v.repeat(2, 1, 1)), kiln.InvalidCall,
                 r"and the leading extents of q, \[2\]"),
                (lambda: attention.append(*merged, slots, *pages), kiln.InvalidCall, "expected heads as the pages"),
                (lambda: attention.append(k[:1], merged[1][:1], slots, *pages), kiln.InvalidCall, "expected heads")):
            with self.assertRaisesRegex(error, words):
                call()
            with self.assertRaises(Exception if "HQ" in words else error), kiln.torch.disabled():
                call()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*deprecated.*")
    unittest.main()
