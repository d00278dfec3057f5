#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What can be done to a model after kiln.torch.replace(): each row does it to a swapped model and to one that is not,
and compares y and the gradients of x and of every parameter. docs/PYTHON.md has the table in short.

after_replace_test.py [unittest's options]     wants KILN_LIBRARY and KILN_REGISTRY. KILN_TEST_DEVICE: "cpu" (default)
                                               or "cuda". Exits with 77 (skipped) without torch; before PyTorch
                                               2.4 the rows and modes that it has not are left out.
"""

import contextlib
import copy
import gc
import io
import math
import os
import pickle
import sys
import tempfile
import threading
import unittest
import unittest.mock
import warnings
import weakref

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)
import torch.nn.functional as F
from torch import Tensor, nn

import torch.autograd.forward_ad as fwAD
import torch.nn.utils.parametrizations as parametrizations
import torch.nn.utils.parametrize as parametrize
import torch.nn.utils.prune as prune
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

NEW = hasattr(torch.library, "custom_op")  # PyTorch 2.4
if NEW:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.func import functional_call, grad, jvp, vmap
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.flop_counter import FlopCounterMode
COMPILES = NEW and hasattr(nn.Module, "compile")
new = unittest.skipUnless(NEW, "wants PyTorch 2.4")

import kiln
import kiln.torch
from kiln import between
from blocks import GeluTanh, Mlp, PartialGeluTanh

try:
    import peft
except ImportError:
    peft = None

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
ON_GPU = DEVICE != "cpu"
torch.set_num_threads(1)
if not ON_GPU and hasattr(os, "sched_setaffinity"):  # as in torch_test.py
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
BOUND = 2e-2 if ON_GPU else 1e-5
D, H, ROWS = 32, 80, 6


class Model(nn.Module):
    """Two MLPs of two kinds in a row."""

    def __init__(self, gelu):
        super().__init__()
        self.first, self.second = Mlp(D, H, nn.SiLU()), Mlp(D, H, gelu(), bias=True)

    def forward(self, x):
        return self.second(x + self.first(x))


def make(gelu=GeluTanh):
    torch.manual_seed(4)
    return Model(gelu).to(DEVICE, DTYPE)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


class Kilns:
    """How often Kiln computed, while it is open."""

    def __enter__(self):
        self.family = sys.modules[kiln.torch.GegluMlp.__mro__[1].__module__]
        self.count, self.real = 0, {name: getattr(self.family, name) for name in ("gated_mlp", "plain_gated_mlp")}

        inner = threading.local()

        def counting(function):
            def call(*arguments, **named):
                if getattr(inner, "is_on", False):  # one calls the other
                    return function(*arguments, **named)
                self.count, inner.is_on = self.count + 1, True
                try:
                    return function(*arguments, **named)
                finally:
                    inner.is_on = False

            return call

        for name, function in self.real.items():
            setattr(self.family, name, counting(function))
        return self

    def __exit__(self, *_):
        for name, function in self.real.items():
            setattr(self.family, name, function)


def results(model, around=contextlib.nullcontext, x=None):
    """y and gradients, by name."""
    dtype = next(model.parameters()).dtype
    x = (numbers(ROWS, D) if x is None else x).to(dtype).requires_grad_()
    for parameter in model.parameters():
        parameter.grad = None
    with around():
        y = model(x)
    found = {"y": y.detach()}
    if y.requires_grad:
        (y * numbers(*y.shape, seed=1).to(y.dtype)).sum().backward()
    found["x"] = torch.zeros_like(x) if x.grad is None else x.grad
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            found[name.replace("_orig_mod.", "")] = gradient
    return found


# ---- what is put on, in or around ----


class LowRank(nn.Module):
    """As peft's Linear: around the one that was there."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        torch.manual_seed(base.weight.shape[0])
        self.a = nn.Parameter(torch.randn(2, base.in_features, device=DEVICE, dtype=DTYPE))
        self.b = nn.Parameter(torch.randn(base.out_features, 2, device=DEVICE, dtype=DTYPE))

    @property
    def weight(self):
        return self.base.weight

    @property
    def bias(self):
        return self.base.bias

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Scaled(nn.Linear):
    """Another nn.Linear, as quantised ones are."""

    def forward(self, x):
        return 0.5 * super().forward(x)


class Doubling(Tensor):
    """A weight whose operators do something else."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        y = super().__torch_function__(function, types, args, kwargs or {})
        return 2 * y if function is F.linear else y


def each_linear(model, change):
    for mlp in (model.first, model.second):
        for name in ("gate_proj", "up_proj", "down_proj"):
            change(mlp, name, getattr(mlp, name))


def wrap(model):
    each_linear(model, lambda mlp, name, linear: setattr(mlp, name, LowRank(linear)))


def wrap_and_take_off(model):
    wrap(model)
    each_linear(model, lambda mlp, name, wrapped: setattr(mlp, name, wrapped.base))


def subclass(model):
    def change(mlp, name, linear):
        linear.__class__ = Scaled

    each_linear(model, change)


def lora(dora=False, merge=False):
    def put_on(model):
        torch.manual_seed(6)
        config = peft.LoraConfig(r=2, target_modules=["gate_proj", "up_proj", "down_proj"], init_lora_weights=False,
                                 use_dora=dora)
        model = peft.get_peft_model(model, config)
        return model.merge_and_unload() if merge else model

    return put_on


def on_linears(put_on):
    return lambda model: each_linear(model, lambda mlp, name, linear: put_on(linear)) and None


def hook_output(module):
    module.register_forward_hook(lambda module, args, y: 2 * y)


def hook_input(module):
    module.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))


def hook_named(module):
    module.register_forward_hook(lambda module, args, named, y: y + 1, with_kwargs=True)


def hook_gradient(module):
    module.register_full_backward_hook(lambda module, inputs, outputs: tuple(3 * g for g in inputs))


def hook_gradient_before(module):
    module.register_full_backward_pre_hook(lambda module, outputs: tuple(3 * g for g in outputs))


def hooks_on_the_mlp(model):
    for hook in (hook_output, hook_input, hook_gradient, *((hook_named, hook_gradient_before) if NEW else ())):
        hook(model.first)


def state_dict_hooks(model):
    for module in (model.first, model.first.up_proj):
        module.register_state_dict_post_hook(lambda module, state, prefix, _: state.update({prefix + "seen": 1}))
        module.register_state_dict_pre_hook(lambda *_: None)
    assert model.state_dict()["first.seen"] == model.state_dict()["first.up_proj.seen"] == 1
    assert isinstance(model.first, Mlp)


def prune_all(model):
    each_linear(model, lambda mlp, name, linear: prune.l1_unstructured(linear, "weight", 0.5))


def prune_for_good(model):
    prune_all(model)
    each_linear(model, lambda mlp, name, linear: prune.remove(linear, "weight"))


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


def parametrized(linear):
    parametrize.register_parametrization(linear, "weight", Half())


def parametrized_for_good(linear):
    parametrized(linear)
    parametrize.remove_parametrizations(linear, "weight")


def spectral_seeded(function):
    def put_on(linear):
        torch.manual_seed(8)
        function(linear.float(), "weight") if ON_GPU else function(linear)

    return put_on


def new_activation(model):
    model.first.act_fn = nn.ReLU()


def other_gelu(model):
    model.second.act_fn = nn.GELU()


def hooked_activation(model):
    hook_output(model.first.act_fn)


def forward_of_its_own(module):
    before = module.forward
    module.forward = lambda x: 0.5 * before(x)


def doubling(graph, _):
    return lambda *inputs: [2 * y for y in graph.forward(*inputs)]


def compiled_alone(model):
    torch.compiler.reset()
    each_linear(model, lambda mlp, name, linear: linear.compile(backend=doubling, dynamic=True))


def forward_of_the_mlp(model):
    forward_of_its_own(model.first)


def subclass_weight(model):
    each_linear(model, lambda mlp, name, linear: setattr(
        linear, "weight", nn.Parameter(linear.weight.data.as_subclass(Doubling))))


def tied_modules(model):
    model.first.up_proj = model.first.gate_proj
    model.second.gate_proj = model.first.gate_proj


def tied_weights(model):
    model.first.up_proj.weight = model.first.gate_proj.weight
    model.second.down_proj.weight = nn.Parameter(model.second.gate_proj.weight.t())


def new_weights(model):
    model.first.up_proj.weight = nn.Parameter(numbers(H, D, seed=5))
    with torch.no_grad():
        model.second.down_proj.weight.mul_(2)
        model.second.up_proj.bias.data = numbers(H, seed=7)


def frozen(model):
    model.first.requires_grad_(False)
    model.second.up_proj.requires_grad_(False)


def wrapped_whole(model):
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *arguments):
            return 2 * self.inner(*arguments)

    model.first = Outer(model.first)


def plain_attributes(model):
    """As a sharded data parallel wrapper leaves them during a forward."""
    def change(mlp, name, linear):
        weight = linear.weight
        del linear.weight
        linear.shard = nn.Parameter(weight.detach().flatten())
        linear.weight = linear.shard.view_as(weight)

    each_linear(model, change)


def hidden_weights(model):
    """An attribute is found before a parameter."""
    each_linear(model, lambda mlp, name, linear: vars(linear).update(weight=linear.weight.detach() * 2))


def prepared_for_quantisation(model):
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig("x86")
    torch.ao.quantization.prepare_qat(model, inplace=True)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def doubled(model):
    return model.double() and None


def dropout_in_between(model):
    model.first.drop = nn.Dropout(0.5)


KILN, PYTORCH, MIXED = "Kiln", "PyTorch", "Kiln or PyTorch"
PUT_ON = [  # what, who computes afterwards, how
    ("nothing", KILN, lambda model: None),
    ("a wrapper around each linear", PYTORCH, wrap),
    ("such a wrapper, taken off again", KILN, wrap_and_take_off),
    ("LoRA of peft", PYTORCH, peft and lora()),
    ("DoRA of peft", PYTORCH, peft and lora(dora=True)),
    ("LoRA of peft, merged", KILN, peft and lora(merge=True)),
    ("another subclass of nn.Linear", PYTORCH, subclass),
    ("a forward hook on each linear", PYTORCH, on_linears(hook_output)),
    ("a forward hook with keywords", PYTORCH, NEW and on_linears(hook_named)),
    ("a forward pre-hook", PYTORCH, on_linears(hook_input)),
    ("a full backward hook", PYTORCH, on_linears(hook_gradient)),
    ("a full backward pre-hook", PYTORCH, NEW and on_linears(hook_gradient_before)),
    ("hooks of all kinds on the MLP itself", KILN, hooks_on_the_mlp),
    ("state-dict hooks", KILN, NEW and state_dict_hooks),
    ("pruning", PYTORCH, prune_all),
    ("pruning, made permanent", KILN, prune_for_good),
    ("a parametrization", PYTORCH, on_linears(parametrized)),
    ("a parametrization, removed", KILN, on_linears(parametrized_for_good)),
    ("weight_norm of hooks", PYTORCH, on_linears(spectral_seeded(nn.utils.weight_norm))),
    ("weight_norm", PYTORCH, NEW and on_linears(spectral_seeded(parametrizations.weight_norm))),
    ("spectral_norm of hooks", PYTORCH, on_linears(spectral_seeded(nn.utils.spectral_norm))),
    ("spectral_norm", PYTORCH, on_linears(spectral_seeded(parametrizations.spectral_norm))),
    ("another activation", MIXED, new_activation),
    ("another GELU", MIXED, other_gelu),
    ("a hook on the activation", MIXED, hooked_activation),
    ("a forward of its own, of each linear", PYTORCH, on_linears(forward_of_its_own)),
    ("a forward of its own, of the MLP", KILN, forward_of_the_mlp),
    ("a backend of its own, of each linear", PYTORCH, COMPILES and compiled_alone),
    ("weights of a tensor subclass", PYTORCH, subclass_weight),
    ("one module at two places", KILN, tied_modules),
    ("one weight at two places", KILN, tied_weights),
    ("other weights", KILN, new_weights),
    ("frozen weights", KILN, frozen),
    ("a wrapper around an MLP", KILN, wrapped_whole),
    ("weights that are plain attributes", PYTORCH, plain_attributes),
    ("attributes before the weights", PYTORCH, hidden_weights),
    ("a quantised linear", PYTORCH, None if ON_GPU else prepared_for_quantisation),
    ("float64", PYTORCH, None if ON_GPU else doubled),
    ("bfloat16", KILN, lambda model: model.bfloat16() and None),
    ("a dropout", MIXED, dropout_in_between),
    ("deepcopy", KILN, copy.deepcopy),
    ("pickle", KILN, pickled),
    ("torch.save of the model", KILN, saved),
]


class AfterReplace(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore", kiln.torch.FallbackWarning)

    def assert_close(self, found, expected, bound=BOUND, name="y"):
        self.assertEqual((found.shape, found.dtype), (expected.shape, expected.dtype), name)
        difference = (found.double() - expected.double()).norm()
        self.assertLessEqual(difference.item(), bound * max(expected.double().norm().item(), 1e-3), name)

    def assert_same(self, found, expected, bound=BOUND):
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assert_close(found[name], value, bound, name)

    def assert_who(self, who, count, calls=2):
        if who == KILN:
            self.assertEqual(count, calls)
        elif who == PYTORCH:
            self.assertEqual(count, 0)
        else:
            self.assertTrue(0 < count < calls, count)

    def swapped(self, gelu=GeluTanh):
        model = make(gelu)
        self.assertEqual(len(kiln.torch.replace(model).swapped), 2)
        return model

    def test_what_is_put_on_in_or_around(self):
        for what, who, put_on in PUT_ON:
            if not put_on:
                continue
            with self.subTest(what), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain, swapped = make(), self.swapped()
                swapped(numbers(ROWS, D))  # what has been seen there before must not be taken for what is there
                plain, swapped = put_on(plain) or plain, put_on(swapped) or swapped
                bound = 2e-2 if what == "bfloat16" else BOUND
                with Kilns() as kilns:
                    self.assert_same(results(swapped), results(plain), bound)
                self.assert_who(who, kilns.count)
                with torch.inference_mode(), Kilns() as kilns:
                    x = numbers(ROWS, D).to(next(plain.parameters()).dtype)
                    self.assert_close(swapped(x), plain(x), bound)
                self.assert_who(who, kilns.count)
                # Off again: what stands there now stays.
                kiln.torch.restore(swapped)
                with Kilns() as kilns:
                    self.assert_same(results(swapped), results(plain), 0)
                self.assertEqual(kilns.count, 0)

    def test_a_call_asks_again_only_where_something_changed(self):
        model, x = self.swapped(), numbers(ROWS, D)
        fit = type(next(each for each in model.modules() if hasattr(each, "_kiln"))._kiln.fit)
        asked, real = [], fit.why_not

        def questions():
            asked.clear()
            with torch.no_grad():
                model(x)
            return len(asked)

        fit.why_not = lambda *call: asked.append(call) or real(*call)
        try:
            self.assertEqual([questions(), questions(), questions()], [4, 0, 0])  # once more of what has been seen
            model.eval()
            self.assertEqual([questions(), questions()], [4, 0])
            hook = next(each for each in model.modules() if type(each) is nn.Linear).register_forward_hook(lambda *_: None)
            self.assertEqual([questions(), questions()], [1, 1])
            hook.remove()
            self.assertEqual([questions(), questions()], [2, 0])
            model = copy.deepcopy(model)
            self.assertEqual([questions(), questions()], [4, 0])
        finally:
            fit.why_not = real

    def test_weights_that_change_in_place(self):
        """As the original: the same numbers, or an exception of the same kind."""
        def other(model, change):
            linear = next(each for each in model.modules() if type(each) is nn.Linear)
            linear.weight.data = change(linear.weight.data)
            try:
                with torch.no_grad():
                    return model(numbers(ROWS, D))
            except Exception as error:
                return type(error)

        for name, change in (("another dtype", lambda w: w.double()), ("fewer rows", lambda w: w[:5]),
                             ("other strides", lambda w: w.t().contiguous().t()), ("signs of a bit", torch._neg_view),
                             ("no memory", lambda w: torch._efficientzerotensor(w.shape, dtype=w.dtype, device=w.device))):
            with self.subTest(name):
                plain, swapped = self.both()
                with torch.no_grad():
                    swapped(numbers(ROWS, D))
                found, expected = other(swapped, change), other(plain, change)
                if isinstance(expected, type):
                    self.assertIs(found, expected)
                else:
                    self.assert_close(found, expected)

    def test_what_changes_after_a_call(self):
        """A call that nothing stood against, then the change: as the same module that was not swapped."""
        class Late(Mlp):
            def forward(self, x):
                return super().forward(x) * getattr(self, "late", 1.0)

        class LateGelu(GeluTanh):
            def forward(self, z):
                late = getattr(self, "late", None)
                return super().forward(z) if late is None else super().forward(z) * 2

        class Moody(GeluTanh):
            def forward(self, z):
                return super().forward(z) * (2 if self.training else 1)

        class Coded(nn.Module):
            def forward(self, z):
                return F.gelu(z, approximate="tanh")

        class Found(Mlp):  # its activation by a property
            known = {"gelu": lambda z: F.gelu(z, approximate="tanh"), "relu": F.relu}
            named = {"name": "gelu"}

            def __init__(self, *sizes):
                super().__init__(*sizes, None)

            @property
            def act_fn(self):
                return self.known[self.named["name"]]

            @act_fn.setter
            def act_fn(self, value):
                pass

        class Fused(nn.Module):  # as Phi-3's
            def __init__(self, width, hidden, act_fn):
                super().__init__()
                self.gate_up_proj, self.down_proj = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
                self.act_fn = act_fn

            def forward(self, x):
                gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
                return self.down_proj(up * self.act_fn(gate))

        class Ordered(Mlp):
            def __init__(self, *words):
                super().__init__(*words)
                self.scales = {"a": 1.0, "b": 2.0}

            def forward(self, x):
                return super().forward(x) * next(iter(self.scales.values()))

        class Strict(dict):
            def __getitem__(self, key):
                raise RuntimeError(f"nobody may ask for {key}")

        class Asked(Mlp):
            def __init__(self, *words):
                super().__init__(*words)
                self.table = Strict(a=1)

        class Doubled(Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), named=None):
                with torch._C.DisableTorchFunctionSubclass():
                    y = function(*args, **(named or {}))
                return 2 * y if function is F.linear else y

        def another_name(module):
            del module.up_proj.tag
            module.up_proj.forward = lambda x, before=module.up_proj.forward: 2 * before(x)

        def late(owner):
            return lambda module: setattr(owner(module), "late", 2.0)

        def up_of(module):
            return getattr(module, "up_proj", None) or module.gate_up_proj

        def of_the_weight(make):
            def change(module):
                up_of(module)._parameters["weight"] = make(up_of(module).weight.detach())

            return change

        def other_activation(module):
            type(module).named["name"] = "relu"

        cases = [
            ("an attribute goes, a forward comes", Mlp, GeluTanh, another_name),
            ("an attribute that its forward asks for", Late, GeluTanh, late(lambda module: module)),
            ("one of its class", Late, GeluTanh, late(type)),
            ("one of its activation", Mlp, LateGelu, late(lambda module: module.act_fn)),
            ("a parameter of its activation", Mlp, LateGelu,
             lambda module: setattr(module.act_fn, "late", nn.Parameter(torch.ones((), device=DEVICE)))),
            ("an activation that a property finds", Found, None, other_activation),
            ("the order of a dict", Ordered, GeluTanh,
             lambda module: module.scales.update(a=module.scales.pop("a"))),
            ("a dict of a class of its own", Asked, GeluTanh, lambda module: None),
            ("a partial's function", Mlp, PartialGeluTanh,
             lambda module: module.act_fn.act.__setstate__((F.relu, (), {}, {}))),
            ("a partial's words", Mlp, PartialGeluTanh,
             lambda module: module.act_fn.act.__setstate__((module.act_fn.act.func, (), {"approximate": "none"}, {}))),
            ("the code of its activation, as autoreload does it", Mlp, Coded,
             lambda module: setattr(Coded.forward, "__code__", (lambda self, z: 2 * z).__code__)),
            ("a mode of its activation alone", Mlp, Moody, lambda module: module.act_fn.train()),
            ("a weight of another class", Mlp, GeluTanh, of_the_weight(lambda w: w.as_subclass(Doubled))),
            ("a weight of another class, of two in one", Fused, GeluTanh, of_the_weight(lambda w: w.as_subclass(Doubled))),
            ("a sparse weight of two in one", Fused, GeluTanh,
             of_the_weight(lambda w: nn.Parameter(w.float().to_sparse_csr().to(w.dtype), False))),
            ("a bias for all of two in one", Fused, GeluTanh,
             lambda module: setattr(module.gate_up_proj, "bias", nn.Parameter(torch.ones(1, device=DEVICE, dtype=DTYPE)))),
            ("a sparse weight", Mlp, GeluTanh, of_the_weight(lambda w: nn.Parameter(w.float().to_sparse_csr().to(w.dtype), False))),
            ("__call__ of its activation's class", Mlp, LateGelu,
             lambda module: setattr(type(module.act_fn), "__call__", lambda self, z: 2 * self.forward(z))),
        ]
        for name, kind, gelu, change in cases:
            with self.subTest(name):
                torch.manual_seed(4)
                plain = kind(D, H, *([gelu()] if gelu else [])).to(DEVICE, DTYPE).eval()
                swapped = copy.deepcopy(plain)
                for module in (plain, swapped):
                    up_of(module).tag = 1
                self.assertEqual(len(kiln.torch.replace(swapped).swapped), 1, name)
                x = numbers(ROWS, D)
                with torch.no_grad():
                    for _ in range(2):
                        self.assert_close(swapped(x), plain(x))
                    for module in (plain, swapped):
                        change(module)
                    try:
                        expected = plain(x)
                    except Exception as error:
                        self.assertRaises(type(error), swapped, x)
                    else:
                        self.assert_close(swapped(x), expected)

    def test_what_is_taken_out_goes(self):
        """A module that was called keeps nothing that is no part of it any more."""
        module = make().first
        self.assertEqual(len(kiln.torch.replace(module).swapped), 1)
        x = numbers(ROWS, D)
        module(x)
        weights = [weakref.ref(each) for each in module.parameters()]
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(module, name)
            setattr(module, name, nn.Sequential(nn.Linear(linear.in_features, linear.out_features, False, DEVICE, DTYPE)))
        del linear
        gc.collect()
        self.assertEqual([each() for each in weights], [None] * len(weights))

    def test_what_was_seen_keeps_no_weights(self):
        module = make()
        kiln.torch.replace(module)
        with torch.no_grad():
            module(numbers(ROWS, D))
        weights = [weakref.ref(each) for each in module.parameters()]
        gc.collect()
        gc.disable()
        try:
            del module
            self.assertEqual([each() for each in weights], [None] * len(weights))
        finally:
            gc.enable()

    @new
    def test_what_is_put_on_a_compiled_model(self):
        """As the compiled original, which may throw for what PyTorch does not compile, and up to PyTorch 2.11 goes on
        as before where a linear's class changes. Then as the original that is not compiled."""
        def run(model, put_on):
            torch.compiler.reset()
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            first = results(compiled)
            outer = put_on(model)
            try:
                return first, results(compiled if outer is None else torch.compile(outer, backend="aot_eager"))
            except (TypeError, RuntimeError) as error:
                return first, error

        for what, _, put_on in PUT_ON:
            if not put_on or what not in (
                    "a wrapper around each linear", "LoRA of peft", "another activation", "a parametrization",
                    "another subclass of nn.Linear", "pruning", "weights of a tensor subclass", "other weights"):
                continue
            with self.subTest(what), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain, swapped = self.both()
                (first, after), (expected_first, expected_after) = run(swapped, put_on), run(plain, put_on)
                self.assert_same(first, expected_first)
                if isinstance(expected_after, Exception):
                    self.assertIsInstance(after, type(expected_after))
                else:
                    self.assertNotIsInstance(after, Exception, after)
                    try:
                        self.assert_same(after, expected_after)
                    except AssertionError:
                        self.assert_same(after, results(plain))

    # ---- in every mode of PyTorch ----

    def both(self):
        return make(), self.swapped()

    def test_a_trace_computes_and_is_saved(self):
        plain, swapped = self.both()
        x, other = numbers(ROWS, D), numbers(2 * ROWS, D, seed=9)
        for grad_enabled in (False, True):
            with torch.set_grad_enabled(grad_enabled), Kilns() as kilns:
                traced = torch.jit.trace(swapped, x, check_trace=False)
            self.assertEqual(kilns.count, 0)
            file = io.BytesIO()
            torch.jit.save(traced, file)
            file.seek(0)
            with torch.no_grad():
                for each in (traced, torch.jit.load(file)):
                    self.assert_close(each(other), plain(other))

    @new
    def test_a_graph_of_make_fx(self):
        plain, swapped = self.both()
        x, other = numbers(ROWS, D), numbers(ROWS, D, seed=9)
        for mode in ("real", "fake", "symbolic"):
            graph = make_fx(swapped, tracing_mode=mode, _allow_non_fake_inputs=True)(x)
            self.assertNotIn("kiln", graph.code)
            self.assert_close(graph(other), plain(other))

    @new
    def test_an_exported_program(self):
        plain, swapped = self.both()
        x, other = numbers(ROWS, D), numbers(ROWS, D, seed=9)
        for strict in (False, True):
            with self.subTest(strict=strict), torch.no_grad():
                program = torch.export.export(swapped, (x,), strict=strict)
                self.assertNotIn("kiln", str(program.graph))
                self.assert_close(program.module()(other), plain(other))

    def test_symbolic_trace(self):
        plain, swapped = self.both()
        x = numbers(ROWS, D)
        self.assert_close(torch.fx.symbolic_trace(swapped)(x), plain(x))

    def test_script(self):
        swapped = nn.Sequential(self.swapped())
        x = numbers(ROWS, D)
        expected = make()(x)
        self.assert_close(torch.jit.script(swapped)(x), expected)

    @new
    def test_compiled(self):
        """Kiln's operators are in the graph, and nothing else is."""
        for dynamic, gelu in ((None, GeluTanh), (True, GeluTanh), (None, PartialGeluTanh)):
            torch.compiler.reset()
            plain, swapped = make(gelu), self.swapped(gelu)
            compiled = torch.compile(swapped, backend="aot_eager", fullgraph=True, dynamic=dynamic)
            self.assert_same(results(compiled), results(plain))
            for grad_enabled, name in ((True, "gated_mlp_training"), (False, "gated_mlp")):
                seen = []

                def backend(graph, _):
                    seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
                    return graph.forward

                torch.compiler.reset()
                with torch.set_grad_enabled(grad_enabled):
                    torch.compile(swapped, backend=backend, fullgraph=True, dynamic=dynamic)(numbers(ROWS, D))
                self.assertEqual([each for each in seen if "kiln" in str(each)],
                                 2 * [getattr(torch.ops.kiln, name).default])
                self.assertEqual(len(seen), 3 + 2 * grad_enabled, seen)  # the sum; y of its three results

    @new
    def test_forward_mode_gradients(self):
        plain, swapped = self.both()
        x, tangent = numbers(ROWS, D), numbers(ROWS, D, seed=2)

        def dual(model):
            with fwAD.dual_level():
                return fwAD.unpack_dual(model(fwAD.make_dual(x, tangent)))

        for found, expected in zip(dual(swapped), dual(plain)):
            self.assert_close(found, expected)
        for found, expected in zip(jvp(swapped, (x,), (tangent,)), jvp(plain, (x,), (tangent,))):
            self.assert_close(found, expected)

    @new
    def test_transforms(self):
        plain, swapped = self.both()
        x = numbers(3, ROWS, D)

        def per_sample(model):
            parameters = {k: v.detach() for k, v in model.named_parameters()}

            def loss(parameters, one):
                return functional_call(model, parameters, (one,)).square().sum()

            return vmap(grad(loss), (None, 0))(parameters, x)

        self.assert_close(vmap(swapped)(x), vmap(plain)(x))
        self.assert_same(per_sample(swapped), per_sample(plain))

    @new
    def test_transforms_that_are_compiled(self):
        plain, swapped = self.both()
        x = numbers(ROWS, D)

        def of(model):
            return lambda x: grad(lambda one: model(one).square().sum())(x)

        self.assert_close(torch.compile(of(swapped), backend="aot_eager")(x), of(plain)(x))

    @new
    def test_batched_gradients(self):
        plain, swapped = self.both()
        x = numbers(ROWS, D)
        jacobian = torch.autograd.functional.jacobian
        for words in ({"vectorize": True}, {"vectorize": False}, {"vectorize": True, "strategy": "forward-mode"}):
            with self.subTest(words):
                self.assert_close(jacobian(swapped, x, **words), jacobian(plain, x, **words))

    @new
    def test_in_threads(self):
        """What one thread observes is no other one's."""
        plain, swapped = self.both()
        x, found = numbers(ROWS, D), {}

        def work(name, around):
            with around, torch.no_grad():
                barrier.wait(10)
                found[name] = [swapped(x) for _ in range(20)]

        barrier = threading.Barrier(3)
        threads = [threading.Thread(target=work, args=case) for case in (
            ("watched", Watching()), ("free", contextlib.nullcontext()), ("device", torch.device(DEVICE)))]
        with Kilns() as kilns:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(kilns.count, 2 * 2 * 20)
        with torch.no_grad():
            expected = plain(x)
        for each in found.values():
            for y in each:
                self.assert_close(y, expected)

    @new
    def test_sharded_and_parallel(self):
        import torch.distributed as dist

        if ON_GPU or not dist.is_available() or not hasattr(dist, "fsdp") or not hasattr(dist.fsdp, "fully_shard"):
            self.skipTest("wants fully_shard, on a CPU")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        with tempfile.NamedTemporaryFile() as file:
            dist.init_process_group("gloo", init_method="file://" + file.name, rank=0, world_size=1)
            self.addCleanup(dist.destroy_process_group)
            mesh = init_device_mesh("cpu", (1,))
            columns = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
            cases = {
                "fully_shard": (KILN, lambda model: fully_shard(
                    fully_shard(model.first, mesh=mesh) and model, mesh=mesh)),
                "fully_shard of linears": (MIXED, lambda model: fully_shard(
                    fully_shard(model.first.up_proj, mesh=mesh) and model, mesh=mesh)),
                "tensor parallel": (MIXED, lambda model: parallelize_module(model.first, mesh, columns) and model),
                "FSDP": (KILN, lambda model: FullyShardedDataParallel(model, use_orig_params=True,
                                                                      device_id=torch.device("cpu"))),
                "DDP": (KILN, nn.parallel.DistributedDataParallel),
            }
            for what, (who, shard) in cases.items():
                with self.subTest(what), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    plain, swapped = (shard(model) for model in self.both())
                    with Kilns() as kilns:
                        found = results(swapped)
                    self.assert_who(who, kilns.count)
                    expected = results(plain)
                    for each in (found, expected):
                        each.update({k: v.full_tensor() for k, v in each.items() if hasattr(v, "full_tensor")})
                    self.assert_same(found, expected)
                    kiln.torch.restore(swapped)
                    self.assertEqual(results(swapped)["y"].sub(expected["y"]).abs().max().item(), 0)

    @new
    def test_functional_call(self):
        plain, swapped = self.both()
        given = {k: numbers(*v.shape, seed=11).requires_grad_() for k, v in plain.named_parameters()}
        x = numbers(ROWS, D)

        def run(model):
            y = functional_call(model, given, (x,))
            return [y.detach(), *torch.autograd.grad(y.sum(), list(given.values()))]

        with Kilns() as kilns:
            found = run(swapped)
        self.assertEqual(kilns.count, 2)
        for each, expected in zip(found, run(plain)):
            self.assert_close(each, expected)

    def test_second_derivatives(self):
        plain, swapped = self.both()

        def penalty(model):
            x = numbers(ROWS, D).requires_grad_()
            (first,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            inputs = [x, *model.parameters()]
            second = torch.autograd.grad(first.square().sum(), inputs, allow_unused=True)
            return [first.detach(), *(torch.zeros_like(t) if g is None else g for g, t in zip(second, inputs))]

        tied_modules(plain), tied_modules(swapped)
        with Kilns() as kilns:
            found = penalty(swapped)
        self.assertEqual(kilns.count, 2)
        for each, expected in zip(found, penalty(plain)):
            self.assert_close(each, expected, 10 * BOUND)

    def test_modes_that_change_what_operators_do(self):
        class Dispatch(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                y = function(*args, **(kwargs or {}))
                return 2 * y if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default) else y

        class Function(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                y = function(*args, **(kwargs or {}))
                return 2 * y if function is F.linear else y

        for mode in (Dispatch, Function):
            with self.subTest(mode.__name__):
                plain, swapped = self.both()
                self.assert_same(results(swapped, mode), results(plain, mode))

    @new
    def test_flops_are_counted(self):
        plain, swapped = self.both()

        def count(model):
            with FlopCounterMode(display=False) as counter:
                model(numbers(ROWS, D).requires_grad_()).sum().backward()
            return counter.get_total_flops()

        self.assertEqual(count(swapped), count(plain))

        def count_backward(model):
            y = model(numbers(ROWS, D).requires_grad_()).sum()
            with FlopCounterMode(display=False) as counter:
                y.backward()
            return counter.get_total_flops()

        self.assertGreaterEqual(count_backward(swapped), count_backward(plain))  # it computes the forward again

    def test_hooks_on_all_modules(self):
        plain, swapped = self.both()
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, args, y: 2 * y if isinstance(module, nn.Linear) else y)
        try:
            self.assert_same(results(swapped), results(plain))
        finally:
            handle.remove()

    def test_what_is_put_in_the_place_of_functions(self):
        linear, forward, mlp_forward, gelu_forward = F.linear, nn.Linear.forward, Mlp.forward, GeluTanh.forward
        silu, call = F.silu, nn.Module.__call__
        plain, swapped = self.both()

        def of_linear(self, x):
            return 2 * forward(self, x)

        try:
            F.linear = lambda x, weight, bias=None: 2 * linear(x, weight, bias)
            self.assert_same(results(swapped), results(plain))
            F.linear = linear
            nn.Linear.forward = of_linear
            self.assert_same(results(swapped), results(plain))
            nn.Linear.forward = forward
            F.silu = lambda z, inplace=False: 2 * silu(z)
            self.assert_same(results(swapped), results(plain))
            F.silu = silu
            nn.Linear.__call__ = lambda self, x: 2 * call(self, x)
            self.assert_same(results(swapped), results(plain))
            del nn.Linear.__call__
            nn.Module.__call__ = lambda self, *x: (2 if isinstance(self, nn.Linear) else 1) * call(self, *x)
            self.assert_same(results(swapped), results(plain))
            nn.Module.__call__ = call
            Mlp.forward = lambda self, x: 3 * mlp_forward(self, x)
            for model in (swapped, copy.deepcopy(copy.deepcopy(swapped)), pickled(swapped), saved(swapped)):
                self.assert_same(results(model), results(plain))
            Mlp.forward = mlp_forward
            GeluTanh.forward = lambda self, z: 3 * gelu_forward(self, z)
            for model in (swapped, copy.deepcopy(copy.deepcopy(swapped)), pickled(swapped), saved(swapped)):
                self.assert_same(results(model), results(plain))
        finally:
            F.linear, nn.Linear.forward, Mlp.forward = linear, forward, mlp_forward
            GeluTanh.forward = gelu_forward
            F.silu, nn.Module.__call__ = silu, call
            if "__call__" in vars(nn.Linear):
                del nn.Linear.__call__
        with Kilns() as kilns:
            self.assert_same(results(swapped), results(plain))
        self.assertEqual(kilns.count, 2)

    @new
    def test_a_profiler_sees_an_operator(self):
        plain, swapped = self.both()
        with Kilns() as kilns, torch.profiler.profile(record_shapes=True) as profile:
            found = results(swapped)
        self.assertEqual(kilns.count, 2)
        seen = {event.name for event in profile.events()}
        self.assertLessEqual({"kiln::gated_mlp_training", "kiln::gated_mlp_backward"}, seen)
        self.assert_same(found, results(plain))

    @new
    def test_checkpoints(self):
        def policy(ctx, op, *args, **kwargs):
            keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return checkpoint.CheckpointPolicy.MUST_SAVE if keep else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

        def contexts():
            return checkpoint.create_selective_checkpoint_contexts(policy)

        for words in ({"use_reentrant": True}, {"use_reentrant": False},
                      {"use_reentrant": False, "context_fn": contexts}):
            with self.subTest(words):
                plain, swapped = self.both()

                def run(model):
                    x = numbers(ROWS, D).requires_grad_()
                    y = checkpoint.checkpoint(model, x, **words)
                    y.square().sum().backward()
                    return [y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]

                for found, expected in zip(run(swapped), run(plain)):
                    self.assert_close(found, expected)

    @new
    def test_fake_and_meta_tensors(self):
        plain, swapped = self.both()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            y = swapped(mode.from_tensor(numbers(ROWS, D)))
        self.assertEqual((y.shape, y.device.type), ((ROWS, D), DEVICE))
        y = swapped.to("meta")(torch.empty(ROWS, D, dtype=DTYPE, device="meta"))
        self.assertEqual((y.shape, y.device.type), ((ROWS, D), "meta"))

    @new
    def test_tensors_that_are_more_than_their_memory(self):
        plain, swapped = self.both()
        x = numbers(ROWS, D)
        twice = x.as_subclass(Doubling)
        zero = torch._efficientzerotensor(x.shape, dtype=DTYPE, device=DEVICE)
        cases = {"negative bit": torch._neg_view(x), "a zero tensor": zero, "a subclass": twice, "strided": numbers(D, ROWS).t(),
                 "expanded": numbers(1, D).expand(4, D), "a leading shape": numbers(2, 3, D), "one row": numbers(D),
                 "no rows": numbers(0, D), "a parameter": nn.Parameter(x)}
        for what, given in cases.items():
            with self.subTest(what), torch.no_grad():
                self.assert_close(swapped(given).as_subclass(Tensor), plain(given).as_subclass(Tensor))
        with torch.no_grad():
            jagged = torch.nested.nested_tensor([numbers(2, D), numbers(3, D)], layout=torch.jagged)
            self.assert_close(swapped(jagged).values(), plain(jagged).values())

    def test_autocast(self):
        plain, swapped = make().float(), make().float()
        self.assertEqual(len(kiln.torch.replace(swapped).swapped), 2)  # on a GPU, where no package has float32, too
        with Kilns() as kilns:
            self.assert_same(results(swapped), results(plain))
        self.assertEqual(kilns.count, 0 if ON_GPU else 2)
        for dtype in (torch.bfloat16, torch.float16) if NEW or ON_GPU else (torch.bfloat16,):
            def around():
                return torch.autocast(DEVICE, dtype)

            with Kilns() as kilns:
                self.assert_same(results(swapped, around), results(plain, around), 3e-2)
            self.assertEqual(kilns.count, 2)
        if not ON_GPU:
            plain, swapped = plain.double(), swapped.double()  # which torch.autocast leaves alone
            with torch.autocast(DEVICE, torch.bfloat16), torch.no_grad():
                x = numbers(ROWS, D).double()
                self.assertEqual(swapped(x).sub(plain(x)).abs().max().item(), 0)

    @new
    def test_a_default_device_is_no_observer(self):
        swapped, x = self.swapped(), numbers(ROWS, D)
        with torch.device(DEVICE), Kilns() as kilns:
            swapped(x)
        self.assertEqual(kilns.count, 2)

    def test_dropout_in_the_formula(self):
        class Dropping(Mlp):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                self.dropout = nn.Dropout(0.5)

            def forward(self, x):
                return self.down_proj(self.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x)))

        class Functional(Mlp):
            p = 0.5

            def forward(self, x):
                h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
                return self.down_proj(F.dropout(h, self.p, self.training))

        for kind in (Dropping, Functional):
            with self.subTest(kind.__name__):
                torch.manual_seed(3)
                plain = nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, DTYPE)
                swapped = copy.deepcopy(plain)
                state = torch.random.get_rng_state()
                report = kiln.torch.replace(swapped)
                self.assertTrue(torch.equal(state, torch.random.get_rng_state()))
                self.assertIn("in evaluation", report.swapped[0].what)
                for training, count in ((True, 0), (False, 1)):
                    plain.train(training), swapped.train(training)
                    x = numbers(ROWS, D)
                    torch.manual_seed(1)
                    expected = plain(x)
                    torch.manual_seed(1)
                    with Kilns() as kilns:
                        self.assert_close(swapped(x), expected)
                    self.assertEqual(kilns.count, count)

    # ---- what the trial of a forward sees, and what is remembered of it ----

    def compare_forward(self, kind, change=None, dtype=None, shapes=((ROWS, D), (2, 3, D)), kilns=None):
        """An Mlp of this kind, as it is and swapped, in each mode; `change`: what happens to it after replace()."""
        torch.manual_seed(3)
        plain = nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, dtype or DTYPE)
        swapped = copy.deepcopy(plain)
        report = kiln.torch.replace(swapped)
        for model in (plain, swapped):
            if change is not None:
                change(model[0])
        bound = BOUND if (dtype or DTYPE) == torch.float32 else 2e-2
        with Kilns() as counted:
            for shape in shapes:
                self.assert_same(results(swapped, x=numbers(*shape)), results(plain, x=numbers(*shape)), bound)
        if kilns is not None:
            self.assertEqual(counted.count, kilns, str(report))

        def around():
            return torch.autocast(DEVICE, torch.bfloat16)

        self.assert_same(results(swapped, around), results(plain, around), 3e-2)
        with torch.no_grad():
            x = numbers(ROWS, D).to(dtype or DTYPE)
            self.assert_close(swapped(x), plain(x), bound)
        return report

    def test_forwards_that_are_the_formula_in_values_alone(self):
        core = Mlp.forward

        class Tenth(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, gradient):
                return 0.1 * gradient

        def island(self, x):
            with torch.autocast(DEVICE, enabled=False):
                return core(self, x.to(self.up_proj.weight.dtype))

        forwards = {
            "no_grad": torch.no_grad()(core), "detach": lambda self, x: core(self, x.detach()),
            "other gradients": lambda self, x: core(self, Tenth.apply(x)),
            "other gradients of y": lambda self, x: Tenth.apply(core(self, x)),
            "other gradients of h": lambda self, x: self.down_proj(Tenth.apply(
                self.act_fn(self.gate_proj(x)) * self.up_proj(x))),
            "an island": island, "to x.dtype": lambda self, x: core(self, x).to(x.dtype),
            "three dimensions": lambda self, x: core(self, 2 * x.flip(1) if x.dim() == 3 else x)}
        for name, forward in forwards.items():
            with self.subTest(name):
                self.compare_forward(type("Other", (Mlp,), {"forward": forward}))

        def frozen(self, x):  # in training the gradients of x are the formula's, too
            if not self.training:
                return core(self, x)
            up = nn.functional.linear(x, self.up_proj.weight.detach())
            return self.down_proj(self.act_fn(self.gate_proj(x)) * up)

        (swap,) = self.compare_forward(type("Frozen", (Mlp,), {"forward": frozen})).swapped
        self.assertIn("in evaluation", swap.what)
        wide = type("Wide", (Mlp,), {"forward": lambda self, x: core(self, x).float()})
        self.assertEqual(self.compare_forward(wide, dtype=torch.bfloat16, shapes=()).swapped, ())

    def test_factors_and_clamps_that_usual_numbers_hide(self):
        core = Mlp.forward
        for dtype, factor in ((torch.bfloat16, 1.01), (torch.float16, 1.0015)):
            for each, count in ((1.0, 1), (factor, 0)):
                kind = type("Times", (Mlp,), {"forward": lambda self, x, each=each: core(self, x) * each})
                report = kiln.torch.replace(nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, dtype))
                self.assertEqual(len(report.swapped), count, (factor, str(report)))
        clamps = {"gate": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x).clamp(max=7)) * self.up_proj(x)),
                  "up": lambda self, x: self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x).clamp(-7, 7)),
                  "bias": lambda self, x: core(self, x) + 0.5 * self.down_proj.bias}
        for name, forward in clamps.items():
            with self.subTest(name):
                mlp = type("Clamped", (Mlp,), {"forward": forward})(D, H, nn.SiLU(), bias=name == "bias")
                for parameter in mlp.parameters():
                    nn.init.normal_(parameter, std=1e-3) if parameter.dim() == 2 else nn.init.zeros_(parameter)
                self.assertEqual(kiln.torch.replace(nn.Sequential(mlp).to(DEVICE, DTYPE)).swapped, ())

    def test_what_a_class_asks_its_objects(self):
        class Asks(nn.Module):
            def forward(self, z):
                z = torch.nn.functional.silu(z) * getattr(self, "late", 1.0) * (self if self.training else torch).one
                return math.sqrt(self.two) * (torch if self.training else self).three * math.floor(self).four

        self.assertEqual(between.Facts(Asks()).asked, ("four", "late", "one", "three", "two"))

    def test_what_a_forward_reads_may_change(self):
        class Reads(Mlp):
            gain = 1.0

            def __init__(self, *arguments):
                super().__init__(*arguments)
                self._gain, self.limits, self.words, self.adapters, self.none = 1.0, (1.0,), {"m": 1.0}, [], None
                self.scale, self.lock = 1.0, object()

            def inner(self, x):
                return self.act_fn(self.gate_proj(x)) * self.up_proj(x)

            def forward(self, x):
                y = self.down_proj(self.inner(x)) * self._gain * self.limits[0] * self.words["m"]
                y = y * self.gain * self.scale
                for adapter in self.adapters:
                    y = y + adapter(x)
                for each in (self.none, getattr(self, "late", None), getattr(self, "_late", None)):
                    y = y if each is None else y * each
                return y

        class Swish(nn.Module):
            beta = 1.0

            def forward(self, z):
                return z * torch.sigmoid(self.beta * z)

        class Callable:
            beta = 1.0

            def __call__(self, z):
                return z * torch.sigmoid(self.beta * z)

        def with_act(act_fn):
            class With(Reads):
                def __init__(self, *arguments):
                    super().__init__(*arguments)
                    del self.act_fn
                    self.act_fn = act_fn()
                    self.act_fn.alpha = 1.0
            return With

        def of_class(name, value):
            def change(mlp):
                self.addCleanup(setattr, Reads, name, vars(Reads)[name])
                setattr(Reads, name, value)
            return change

        two, many = torch.tensor(2.0, device=DEVICE, dtype=DTYPE), torch.full((D,), 2.0, device=DEVICE, dtype=DTYPE)
        twice = lambda self, x: 2 * self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        changes = {
            "nothing": lambda mlp: None,
            "a private attribute": lambda mlp: setattr(mlp, "_gain", 2.0),
            "a tuple": lambda mlp: setattr(mlp, "limits", (2.0,)),
            "a dict": lambda mlp: mlp.words.update(m=2.0),
            "a list": lambda mlp: mlp.adapters.append(torch.tanh),
            "a method put on": lambda mlp: setattr(mlp, "inner", lambda x: 2 * type(mlp).inner(mlp, x)),
            "an attribute before that of the class": lambda mlp: setattr(mlp, "gain", 2.0),
            "a method of the class": of_class("inner", twice), "a value of the class": of_class("gain", 2.0),
            "a tensor that was none": lambda mlp: setattr(mlp, "late", two),
            "a private tensor": lambda mlp: setattr(mlp, "_late", two),
            "a parameter that was none": lambda mlp: mlp.register_parameter("late", nn.Parameter(two.clone())),
            "a number that becomes a tensor": lambda mlp: setattr(mlp, "scale", many),
            "None that becomes a tensor": lambda mlp: setattr(mlp, "none", many),
            "a class derived again": lambda mlp: setattr(mlp, "__class__", type("Sub", (type(mlp),), {"inner": twice})),
        }
        of_act = {"nothing": lambda mlp: None,
                  "an attribute before that of the class": lambda mlp: setattr(mlp.act_fn, "beta", 2.0)}
        for kind, table in ((Reads, changes), (with_act(Swish), of_act), (with_act(Callable), of_act)):
            for name, change in table.items():
                with self.subTest(name, kind=kind.__name__):
                    self.doCleanups()
                    self.compare_forward(kind, change, shapes=((ROWS, D),), kilns=int(name == "nothing"))
                    if NEW and not name.startswith("a number"):
                        self.doCleanups()
                        torch.compiler.reset()
                        swapped = nn.Sequential(kind(D, H, nn.SiLU()).to(DEVICE, DTYPE))
                        self.assertEqual(len(kiln.torch.replace(swapped).swapped), 1)
                        compiled, x = torch.compile(swapped, backend="eager"), numbers(ROWS, D)
                        with torch.no_grad():
                            compiled(x)
                            change(swapped[0])
                            found = compiled(x)
                            with kiln.torch.disabled():
                                self.assert_close(found, swapped(x))

    def test_weights_of_other_shapes(self):
        def wider(mlp):
            mlp.down_proj.weight = nn.Parameter(numbers(2 * D, H))

        def one_bias(mlp):
            mlp.up_proj.bias = nn.Parameter(numbers(1))

        for change in (wider, one_bias):
            plain, swapped = self.both()
            with torch.no_grad():
                change(plain.first), change(swapped.first)
                self.assert_close(swapped.first(numbers(ROWS, D)), plain.first(numbers(ROWS, D)))

    def test_a_class_that_is_derived_again(self):
        class Mixin:
            pass

        for bases in (lambda kind: (kind,), lambda kind: (Mixin, kind)):
            for restored in (False, True):
                swapped, x = self.swapped(), numbers(ROWS, D)
                swapped.first.__class__ = type("Sub", bases(type(swapped.first)), {})
                if restored:
                    kiln.torch.restore(swapped)
                with Kilns() as kilns, torch.no_grad():
                    self.assert_close(copy.deepcopy(swapped)(x), swapped(x))
                self.assertEqual(kilns.count, 0 if restored else 4)

    def test_a_class_gets_what_it_had_from_its_base(self):
        class Gelu(GeluTanh):
            pass

        class Derived(Mlp):
            pass

        def build():
            torch.manual_seed(4)
            return Derived(D, H, Gelu()).to(DEVICE, DTYPE)

        for kind, base in ((Derived, Mlp), (Gelu, GeluTanh)):
            with self.subTest(kind.__name__):
                plain, swapped = build(), build()
                self.assertEqual(len(kiln.torch.replace(swapped).swapped), 1)
                with torch.no_grad():
                    swapped(numbers(ROWS, D))
                kind.forward = lambda self, x, base=base: 3 * base.forward(self, x)
                try:
                    for model in (swapped, copy.deepcopy(swapped)):
                        self.assert_same(results(model), results(plain))
                finally:
                    del kind.forward
                with Kilns() as kilns:
                    self.assert_same(results(swapped), results(plain))
                self.assertEqual(kilns.count, 1)

    def test_a_class_that_nobody_has_any_more_goes(self):
        def made():
            kind = type("Local", (Mlp,), {})
            model = nn.Sequential(kind(D, H, nn.SiLU())).to(DEVICE, DTYPE)
            self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
            return weakref.ref(kind)

        kind = made()
        gc.collect()
        self.assertIsNone(kind())

    @new
    def test_a_default_device_or_dtype_of_another_kind(self):
        model = make()
        with torch.device("meta"):
            self.assertEqual(len(kiln.torch.replace(model).swapped), 2)
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        for dtype in (torch.float64, torch.bfloat16):
            model = make()
            torch.set_default_dtype(dtype)
            self.assertEqual(len(kiln.torch.replace(model).swapped), 2)
            torch.set_default_dtype(torch.float32)

    def test_one_reason_for_all_lengths(self):
        class Casts(Mlp):
            def forward(self, x):
                return super().forward(x.to(self.up_proj.weight.dtype))

        model = nn.Sequential(Casts(D, H, nn.SiLU())).to(DEVICE, DTYPE)
        self.assertEqual(len(kiln.torch.replace(model).swapped), 1)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for rows in range(1, 5):
                model(numbers(rows, D).double())
        self.assertEqual(len(told), 1)
        if NEW:
            torch.compiler.reset()
            compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
            for rows in (3, 5):
                compiled(numbers(rows, D).double())

    def test_a_replace_that_throws_swaps_nothing(self):
        model = make()
        replaced = kiln.torch.package("geglu-mlp").replace.__globals__
        fit, calls = replaced["fit"], []

        def failing(module, *rest):
            calls.append(module)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return fit(module, *rest)

        with unittest.mock.patch.dict(replaced, fit=failing), self.assertRaises(KeyboardInterrupt):
            kiln.torch.replace(model)
        self.assertEqual([type(model.first), type(model.second)], [Mlp, Mlp])

    def test_words_that_replace_does_not_take(self):
        with self.assertRaisesRegex(kiln.UsageError, "linears"):
            kiln.torch.replace(make(), linears=[1])
        with self.assertRaisesRegex(kiln.NotFound, "version 7"):
            kiln.torch.replace(make(), version=7)

    # ---- what is said ----

    def test_one_warning_for_each_layer_and_reason(self):
        swapped = self.swapped()
        wrap(swapped)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                swapped(numbers(ROWS, D))
        texts = sorted(str(warning.message) for warning in told)
        self.assertEqual([warning.category for warning in told], [kiln.torch.FallbackWarning] * 2)
        self.assertIn("computes first: gate_proj is a LowRank, not an nn.Linear", texts[0])
        self.assertIn("computes second", texts[1])
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with Watching():
                each_linear(swapped, lambda mlp, name, wrapped: setattr(mlp, name, wrapped.base))
                swapped(numbers(ROWS, D))
        self.assertEqual(len(told), 2)
        self.assertIn("Watching follows PyTorch's operators", str(told[0].message))

    @new
    def test_a_compiled_model_says_it_too(self):
        torch.compiler.reset()
        swapped = self.swapped()
        wrap(swapped)
        compiled = torch.compile(swapped, backend="aot_eager", fullgraph=True)
        with warnings.catch_warnings(record=True) as told, torch.no_grad():
            warnings.simplefilter("always")
            for _ in range(3):
                compiled(numbers(ROWS, D))
        self.assertEqual(len([w for w in told if w.category is kiln.torch.FallbackWarning]), 2)

    @new
    def test_the_layers_themselves(self):
        """GegluMlp and SwigluMlp: PyTorch computes them where operators are followed."""
        layer = kiln.torch.GegluMlp(D, H, bias=True, device=DEVICE, dtype=DTYPE)
        x, other = numbers(3, ROWS, D), numbers(3, ROWS, D, seed=2)
        with torch.no_grad():
            expected = layer.reference(other)
            self.assert_close(torch.jit.trace(layer, x)(other), expected)
            self.assert_close(vmap(layer)(other), expected)
            self.assert_close(make_fx(layer)(x)(other), expected)
        prune.l1_unstructured(layer, "gate", 0.5)
        with Kilns() as kilns, torch.no_grad():
            self.assert_close(layer(other), layer.reference(other))
        self.assertEqual(kilns.count, 1)
        layer = pickle.loads(pickle.dumps(kiln.torch.SwigluMlp(D, H, device=DEVICE, dtype=DTYPE, activation="relu",
                                                               fallback=["cpu"])))
        with torch.no_grad():
            self.assert_close(layer(other), layer.reference(other))


if __name__ == "__main__":
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    unittest.main()
