# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch tests of packages share: the device, random tensors, a comparison, and that Kiln computes what is
compared. Ends the test with 77 where this Python has no torch."""

import collections
import contextlib
import copy
import itertools
import os
import sys
import unittest
import unittest.mock
import warnings

try:
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)
import kiln.torch
from kiln import layer

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


class TorchCase(unittest.TestCase):
    def setUp(self):
        """A layer that falls back is an error: PyTorch would be compared with itself."""
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        warnings.simplefilter("error", kiln.torch.FallbackWarning)
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()  # which compiles a few kinds of calls of one function, and then no more

    @contextlib.contextmanager
    def computes(self, *ops):
        """Kiln runs these ops meanwhile, one as often as it is named or more."""
        found, call = collections.Counter(), layer.Source.call

        def noting(source, device, op, tensors):
            found[op] += 1
            return call(source, device, op, tensors)

        with unittest.mock.patch.object(layer.Source, "call", noting):
            yield
        self.assertFalse(collections.Counter(ops) - found)

    def assert_gradients_apart(self, module):
        """Of x and a residual that are leaves, views of them or sums: each .grad is its own, also after a second
        backward."""
        width = next(module.parameters()).shape[-1]
        ways = [lambda t: t, lambda t: t.view(6, width), lambda t: t.transpose(0, 1)[None], lambda t: t.view_as(t) + 1]
        for compiled, way in itertools.product((False, True) if layer.HAS_OPERATORS else (False,), ways):
            x, residual = (normal(2, 3, width, seed=seed).requires_grad_() for seed in (1, 2))
            y, h = (torch.compile(module, backend="aot_eager") if compiled else module)(way(x), way(residual))
            loss = (y * normal(*y.shape, seed=3)).sum() + h.square().sum()
            loss.backward(retain_graph=True)
            once = x.grad.clone()
            self.assertNotEqual(x.grad.data_ptr(), residual.grad.data_ptr())
            loss.backward()
            self.assert_close([x.grad, residual.grad], [2 * once, 2 * once])

    def assert_h_is_apart(self, module):
        """The sum of x and the residual does not depend on the parameters: nor does it require a gradient for them, and a
        loss of it gives them none."""
        width = next(module.parameters()).shape[0]
        x, residual = (normal(2, 3, width, seed=seed) for seed in (1, 2))
        x[0, 0, 0] = torch.inf  # the norm's gradient would be NaN
        for backend in (None, "eager", "aot_eager") if layer.HAS_OPERATORS else (None,):
            call = module if backend is None else torch.compile(module, backend=backend)
            y, h = call(x, residual)
            self.assertEqual((y.requires_grad, h.requires_grad), (True, False))
            given = x.clone().requires_grad_()
            call(given, residual)[1].sum().backward()
            self.assertTrue(torch.equal(given.grad, torch.ones_like(x)) or backend == "aot_eager")
            if backend != "aot_eager":  # which has zeros for a loss that y has not, of PyTorch's modules as well
                self.assertEqual({p.grad for p in module.parameters()}, {None})
            module.zero_grad()

    def assert_adds_a_wider_residual(self, module):
        """Under torch.autocast, as x + residual does it: what a linear gives is narrower than the stream."""
        width = next(module.parameters()).shape[0]
        x, residual = normal(2, 3, width, dtype=torch.bfloat16), normal(2, 3, width, seed=1)
        for given in ((x, residual), (residual, x)):
            own = [t.clone().requires_grad_() for t in given]
            with torch.autocast(DEVICE, torch.bfloat16):
                y, h = module(*own)
            self.assert_close([y, h], [t.detach() for t in module(*(t.float() for t in given))])
            (y + h).sum().backward()
            self.assertEqual([t.grad.dtype for t in own], [t.dtype for t in given])
            with self.assertRaisesRegex(kiln.InvalidCall, "expected one like x"):
                module(*given)

    def assert_unsaved(self, module, *call, expected):
        """Buffers that no state dict has are right whatever became of their memory, and whoever called first. x has
        gradients."""
        self.assertFalse(module.state_dict())
        firsts = [(contextlib.nullcontext, None), (torch.inference_mode, lambda each: each)]
        if layer.HAS_OPERATORS:
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.fx.experimental.proxy_tensor import make_fx

            def gradient(each):
                return torch.func.grad(lambda *call: each(*call).sum())

            firsts += [(torch.no_grad, lambda each: torch.compile(each, fullgraph=True, backend="eager")),
                       (torch.no_grad, torch.func.vmap), (contextlib.nullcontext, gradient),
                       (lambda: FakeTensorMode(allow_non_fake_inputs=True), lambda each: each),
                       (torch.no_grad, lambda each: torch.jit.trace(each, call, check_trace=False)),
                       (torch.no_grad, lambda each: make_fx(each)(*call))]
            firsts += [(contextlib.nullcontext, lambda each, backend=backend: torch.compile(
                gradient(each), fullgraph=True, backend=backend)) for backend in ("eager", "aot_eager")]
        torch.use_deterministic_algorithms(True)  # PyTorch 2.2 then fills memory without numbers with NaN
        self.addCleanup(torch.use_deterministic_algorithms, False)
        for around, way in firsts:
            assigned = copy.deepcopy(module).to("meta")
            assigned.load_state_dict({}, assign=True)
            if way is not None:
                with around(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    way(assigned)(*call)
            for change in (copy.deepcopy, lambda each: each, lambda each: each.to_empty(device=DEVICE)):
                y = change(assigned)(*call)
                self.assert_close([y.detach()], [expected])
                y.sum().backward()

    def assert_recorded(self, module, given, *others):
        """PyTorch computes the module where shapes alone are known, and what is recorded of the call `given` is right for
        the calls `others`, too: of torch.jit.trace for any shape, of make_fx and torch.export for one like given's."""
        if not layer.HAS_OPERATORS:
            return
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        def shapes(result):
            return [t.shape for t in (result if isinstance(result, tuple) else (result,))]

        with kiln.torch.disabled():
            expected = [module(*call) for call in (given, *others)]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            meta = copy.deepcopy(module).to("meta")(*(t.to("meta") for t in given))
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = module(*(mode.from_tensor(t) for t in given))
            self.assertEqual([shapes(meta), shapes(fake)], 2 * [shapes(expected[0])])
            recorded = [torch.jit.trace(module, given, check_trace=False), make_fx(module)(*given),
                        torch.export.export(module, given).module()]
            for call, result in zip((given, *others), expected):
                for record in recorded if [t.shape for t in call] == [t.shape for t in given] else recorded[:1]:
                    found = record(*call)
                    self.assertEqual(shapes(found), shapes(result))
                    pairs = zip(found, result) if isinstance(result, tuple) else ((found, result),)
                    for a, b in pairs:
                        self.assertTrue(torch.allclose(a, b, rtol=BOUNDS[torch.bfloat16], atol=1e-5, equal_nan=True))

    def assert_close(self, found, expected, dtype=torch.float32):
        self.assertEqual(len(found), len(expected))
        for a, b in zip(found, expected):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
            error = (a.double() - b.double()).norm() / b.double().norm()
            self.assertLess(error.item(), BOUNDS[dtype])
