#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.torch.SwigluMoe against PyTorch's operators: values, gradients, torch.compile; and as experts of transformers.

    swiglu_moe_test.py [unittest's options]   wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default) or
                                              "cuda"
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

WIDTH, HIDDEN, EXPERTS, TOP = 48, 40, 5, 3


def router(*shape, dtype=torch.int64):
    generator = torch.Generator().manual_seed(3)
    experts = torch.randint(0, EXPERTS, (*shape, TOP), generator=generator).to(DEVICE, dtype)
    return experts, torch.rand(*shape, TOP, generator=generator).to(DEVICE)


def gradients(function, x, weights, parameters):
    x, weights = (t.detach().clone().requires_grad_() for t in (x, weights))
    function(x, weights).float().square().sum().backward()
    found = [x.grad, weights.grad, *(p.grad for p in parameters)]
    for parameter in parameters:
        parameter.grad = None
    return found


class SwigluMoe(TorchCase):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        self.moe = kiln.torch.SwigluMoe(WIDTH, HIDDEN, EXPERTS, device=DEVICE)

    def test_values(self):
        for dtype in (torch.bfloat16, torch.float16):
            moe = self.moe.to(dtype)
            for shape, index in (((7,), torch.int64), ((2, 5), torch.int32), ((0,), torch.int64), ((), torch.int64)):
                with self.subTest(dtype=dtype, shape=shape):
                    x, (experts, weights) = normal(*shape, WIDTH, dtype=dtype), router(*shape, dtype=index)
                    with torch.no_grad():
                        y = moe(x, experts, weights)
                        self.assertEqual((y.shape, y.dtype), (x.shape, dtype))
                        if 0 not in shape:
                            self.assert_close([y], [moe.reference(x, experts, weights)], dtype)

    def test_numbers_that_are_no_expert_add_nothing(self):
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        experts[:, 1:] = torch.tensor([-1, EXPERTS])
        with torch.no_grad():
            y = self.moe(x, experts, weights)
            self.assertTrue(torch.equal(y, self.moe(x, experts[:, :1], weights[:, :1])))
            self.assertFalse(self.moe(x, torch.full_like(experts, EXPERTS), weights).any())

    def test_extents_of_0(self):
        with torch.no_grad():
            for width, experts, top in ((WIDTH, EXPERTS, 0), (0, EXPERTS, TOP), (WIDTH, 0, TOP)):
                moe = kiln.torch.SwigluMoe(width, HIDDEN, experts, device=DEVICE)
                chosen = torch.zeros(4, top, dtype=torch.int64, device=DEVICE)
                y = moe(normal(4, width, dtype=torch.bfloat16), chosen, chosen.float())
                self.assertEqual(y.shape, (4, width))
                self.assertFalse(y.any())

    def test_gradients(self):
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        parameters = list(self.moe.parameters())
        found = gradients(lambda x, w: self.moe(x, experts, w), x, weights, parameters)
        expected = gradients(lambda x, w: self.moe.reference(x, experts, w), x, weights, parameters)
        self.assert_close(found[:1] + found[2:], expected[:1] + expected[2:], torch.bfloat16)
        self.assert_close([found[1].bfloat16()], [expected[1].bfloat16()], torch.bfloat16)

    def test_what_records_it_is_for_all_choices(self):
        if not kiln.torch.HAS_OPERATORS:
            self.skipTest("PyTorch without custom operators")
        given = [(normal(tokens, WIDTH, dtype=torch.bfloat16), torch.full((tokens, TOP), expert, device=DEVICE), weights)
                 for tokens, expert, (_, weights) in ((6, 0, router(6)), (6, 3, router(6)), (9, 7, router(9)))]
        self.assert_recorded(self.moe, *given, (given[0][0], *router(6)))
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        with torch.no_grad(), self.assertWarns(kiln.torch.FallbackWarning):
            found = torch.func.vmap(self.moe)(x, experts, weights)
        self.assert_close([found], [self.moe(x, experts, weights)], torch.bfloat16)

    def test_rows_at_one_place(self):
        x, (experts, weights) = normal(1, WIDTH, dtype=torch.bfloat16).expand(3, -1), router(3)
        with torch.no_grad():
            self.assert_close([self.moe(x, experts, weights)], [self.moe(x.contiguous(), experts, weights)])

    def test_weights_that_are_columns(self):
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        call = lambda x, w: self.moe(x, experts, w)  # noqa: E731
        expected = gradients(call, x, weights, self.moe.parameters())
        for name in ("gate_up", "down"):
            of_columns = getattr(self.moe, name).data.transpose(1, 2).contiguous().transpose(1, 2)
            setattr(self.moe, name, torch.nn.Parameter(of_columns))
        with self.computes("forward"):
            found = gradients(call, x, weights, self.moe.parameters())
        for a, b in zip(found, expected):
            self.assertTrue(torch.equal(a, b))

    def test_autocast_computes_as_nn_linear_does(self):
        for wide in (self.moe, copy.deepcopy(self.moe).float(), copy.deepcopy(self.moe).half()):
            x, (experts, weights) = normal(6, WIDTH).requires_grad_(), router(6)
            with torch.autocast(DEVICE, torch.bfloat16):
                with self.computes("forward"):
                    y = wide(x, experts, weights)
                with kiln.torch.disabled():
                    expected = wide(x, experts, weights)
            self.assert_close([y], [expected], torch.bfloat16)
            y.float().sum().backward()
            self.assertEqual({t.grad.dtype for t in (x, wide.down)}, {x.dtype, wide.down.dtype})
            if kiln.torch.HAS_OPERATORS:
                compiled = torch.compile(wide, fullgraph=True, backend="aot_eager")
                with torch.autocast(DEVICE, torch.bfloat16), torch.no_grad():
                    self.assertTrue(torch.equal(compiled(x, experts, weights), y))
        with torch.autocast(DEVICE, torch.bfloat16, enabled=False), self.assertRaises(kiln.InvalidCall):
            self.moe(x, experts, weights)

    def test_gradients_under_autocast_are_of_the_dtype_without(self):
        moe, x, (experts, weights) = self.moe.half(), normal(6, WIDTH, dtype=torch.float16), router(6)
        found = []
        for enabled in (False, True):
            given = x.clone().requires_grad_()
            y = moe(given, experts, weights).float().sum()
            with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
                y.backward()
            found.append(given.grad)
        self.assertTrue(torch.equal(*found))

    def test_compiled_in_one_graph(self):
        if not kiln.torch.HAS_OPERATORS:
            self.skipTest("PyTorch without custom operators")
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        with torch.no_grad():
            compiled = torch.compile(self.moe, fullgraph=True, backend="aot_eager")
            self.assertTrue(torch.equal(compiled(x, experts, weights), self.moe(x, experts, weights)))

    def test_gradients_where_somebody_follows_operators(self):
        if not kiln.torch.HAS_OPERATORS:
            self.skipTest("PyTorch without custom operators")
        x, (experts, weights) = normal(6, WIDTH, dtype=torch.bfloat16), router(6)
        parameters = list(self.moe.parameters())
        expected = gradients(lambda x, w: self.moe(x, experts, w), x, weights, parameters)
        compiled = torch.compile(self.moe, fullgraph=True, backend="aot_eager")
        with torch.profiler.profile() as profile:
            profiled = gradients(lambda x, w: self.moe(x, experts, w), x, weights, parameters)
        self.assertLessEqual({"kiln::swiglu_moe", "kiln::swiglu_moe_backward"}, {event.name for event in profile.events()})
        with torch.autograd.graph.save_on_cpu():
            saved = gradients(lambda x, w: compiled(x, experts, w), x, weights, parameters)
        for found in (profiled, saved, gradients(lambda x, w: compiled(x, experts, w), x, weights, parameters)):
            for a, b in zip(found, expected):
                self.assertTrue(torch.equal(a, b))

    def test_gradients_where_no_token_has_an_expert(self):
        none = kiln.torch.SwigluMoe(WIDTH, HIDDEN, 0, device=DEVICE)
        for moe, tokens, top, first in ((self.moe, 6, TOP, EXPERTS), (self.moe, 0, TOP, 0), (self.moe, 6, 0, 0),
                                        (none, 6, TOP, 0)):
            parameters = list(moe.parameters())
            x, (experts, weights) = normal(tokens, WIDTH, dtype=torch.bfloat16), (t[:, :top] for t in router(tokens))
            ways = {"eager": moe, "PyTorch": moe.reference}
            if kiln.torch.HAS_OPERATORS:
                ways["compiled"] = torch.compile(moe, fullgraph=True, backend="aot_eager")
            for name, way in ways.items():
                with self.subTest(tokens=tokens, top=top, way=name, experts=len(moe.down)):
                    found = gradients(lambda x, w: way(x, experts + first, w), x, weights, parameters)
                    for tensor, like in zip(found, (x, weights, *parameters)):
                        self.assertEqual(tensor.shape, like.shape)
                        self.assertFalse(tensor.any())

    def test_copied_and_pickled(self):
        x, (experts, weights) = normal(3, WIDTH, dtype=torch.bfloat16), router(3)
        with torch.no_grad():
            y = self.moe(x, experts, weights)
            for other in (copy.deepcopy(self.moe), pickle.loads(pickle.dumps(self.moe))):
                self.assertTrue(torch.equal(other(x, experts, weights), y))

    def test_what_does_not_fit(self):
        x, (experts, weights) = normal(3, WIDTH, dtype=torch.bfloat16), router(3)
        with self.assertRaisesRegex(kiln.InvalidCall, "expected int64 or int32"):
            self.moe(x, experts.float(), weights)
        with self.assertRaisesRegex(kiln.InvalidCall, "expected bfloat16 or float16"):
            kiln.torch.SwigluMoe(WIDTH, HIDDEN, EXPERTS, dtype=torch.float32)


class Experts(TorchCase):
    """As transformers has them, without transformers."""

    def test_what_is_on_the_activation(self):
        class Mine(torch.nn.SiLU):
            def forward(self, z):
                return 2 * super().forward(z)

        def _default_apply_gate(self, gate_up):
            raise AssertionError

        experts = type("Experts", (torch.nn.Module,), {"_apply_gate": _default_apply_gate})()
        experts.gate_up_proj, experts.down_proj = (normal(EXPERTS, *shape, dtype=torch.bfloat16) for shape in (
            (2 * HIDDEN, WIDTH), (WIDTH, HIDDEN)))
        why_not = kiln.torch.package("swiglu-moe", 1)._why_not
        given = experts, normal(3, WIDTH, dtype=torch.bfloat16), router(3)[1]
        experts.act_fn = torch.nn.SiLU()
        self.assertEqual(why_not(*given), "")
        hook = experts.act_fn.register_forward_hook(lambda module, args, y: 2 * y)
        self.assertEqual(why_not(*given), "its activation has hooks")
        hook.remove()
        hook = torch.nn.modules.module.register_module_forward_hook(lambda module, args, y: 2 * y)
        self.assertEqual(why_not(*given), "there are hooks on all modules")
        hook.remove()
        experts._apply_gate = lambda gate_up: gate_up
        self.assertEqual(why_not(*given), "it has a gate of its own")
        del experts._apply_gate
        experts.act_fn = Mine()
        self.assertEqual(why_not(*given), "its activation is Mine, and not SiLU")


class Transformers(TorchCase):
    def setUp(self):
        try:
            from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
            from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        except ImportError:
            self.skipTest("no transformers that has experts' functions")
        self.module = kiln.torch.package("swiglu-moe", 1)
        ALL_EXPERTS_FUNCTIONS.register("kiln", self.module.experts_forward)
        torch.manual_seed(0)
        self.model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
            hidden_size=64, intermediate_size=64, moe_intermediate_size=40, num_hidden_layers=2, num_experts=EXPERTS,
            num_experts_per_tok=TOP, num_attention_heads=2, num_key_value_heads=1, head_dim=32, vocab_size=50)).to(
                DEVICE, torch.bfloat16).eval()
        self.tokens = torch.arange(14, device=DEVICE).reshape(2, 7)

    def test_logits(self):
        self.module._told.clear()
        with torch.no_grad(), warnings.catch_warnings():
            expected = self.model(self.tokens).logits
            self.model.set_experts_implementation("kiln")
            warnings.simplefilter("error", kiln.torch.FallbackWarning)
            self.assert_close([self.model(self.tokens).logits], [expected], torch.bfloat16)

    def test_a_router_that_learns_alone(self):
        self.module._told.clear()
        self.model.set_experts_implementation("kiln")
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("gate.weight" in name)
        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "no gradients of its own"):
            self.model(self.tokens).logits.float().sum().backward()

    def test_what_it_cannot_compute_is_transformers(self):
        self.module._told.clear()
        self.model.set_experts_implementation("kiln")
        with self.assertWarnsRegex(kiln.torch.FallbackWarning, "no gradients of its own"):
            self.model(self.tokens).logits.float().sum().backward()
        self.assertTrue(all(p.grad is not None for name, p in self.model.named_parameters() if "experts" in name))


if __name__ == "__main__":
    unittest.main()
