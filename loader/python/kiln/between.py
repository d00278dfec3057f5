# SPDX-License-Identifier: Apache-2.0
"""What stands between a module and its weights, and who follows PyTorch's operators. The stage before torch.

A kernel reads weights by their addresses. Whatever PyTorch or its users put on, in or around a module acts at its
call, or at an operator's, and would be passed over. The questions here are asked at each call, and answer "" where
nothing is passed over, else a reason for people: the caller then leaves the call to PyTorch. Those about modules need
not be asked again while a Seen holds.

torch.compile can trace all of it but in_tensor() and observer(): a compiler follows the layers' own operators.
"""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import types
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _module

_LINEAR_FORWARD = nn.Linear.forward
_CALL, _CALL_IMPL = nn.Linear.__call__, nn.Linear._call_impl
_F_LINEAR, _F_GELU, _F_SILU, _F_RELU = F.linear, F.gelu, F.silu, F.relu
_HAS_BACKWARD_PRE_HOOKS = hasattr(nn.Module(), "_backward_pre_hooks")  # PyTorch 2.0
_PLAIN = (Tensor, nn.Parameter)
_STRIDED = torch.strided


def _nobody(*_: Any) -> Any:
    return None


compiles = torch.compiler.is_compiling if hasattr(torch.library, "custom_op") else _nobody  # PyTorch 2.4


# ---- modules ----


def on_module(module: nn.Module, forward: Any, own: Any = None) -> str:
    """What was put on a module, whose class has this forward; the module `own`, where it is known."""
    if (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
            or (_HAS_BACKWARD_PRE_HOOKS and module._backward_pre_hooks)):
        return "has hooks"
    if module.__dict__.get("forward") is not own or type(module).forward is not forward:
        return "has a forward of its own"
    if module.__dict__.get("_compiled_call_impl") is not None:
        return "is compiled by itself"
    return ""


_OWN = frozenset((*vars(nn.Module()), "forward", "_kiln", "_compiled_call_impl"))  # what has questions of its own
_CONTAINERS = (list, tuple, dict, set, frozenset, functools.partial)
_VALUES = (bool, int, float, complex, str, bytes, types.MethodType, type(None))  # a bound method is made anew each time
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, type)


class Facts:
    """What an object held when a replace() compared it: all but nn.Module's own, and what is in containers, one deep.
    Objects in them count as the same while they are the same object. torch.compile follows the questions."""

    def __init__(self, owner: Any) -> None:
        self.facts = tuple((name, value, content_of(value)) for name, value in vars(owner).items() if name not in _OWN)
        self.asked = tuple(sorted(_asked_by(type(owner)) - vars(owner).keys() - _OWN))  # names that it has not itself
        self.absent = tuple(name for name in self.asked if not hasattr(owner, name))
        self.known = _OWN.union(name for name, _, _ in self.facts)

    def first_changed(self, owner: Any, of_class: tuple[tuple[str, Any], ...]) -> str:
        """The name of what vars() no longer has, has anew or has otherwise. `of_class`: its class's _seen_through()."""
        own = owner.__dict__
        for name, value, content in self.facts:
            found = own.get(name, _OWN)
            if found is not value and not _are_same(found, value, content):
                return name
            if content is not None and not have_same(content_of(found), content):
                return name
        if compiles():
            # A compiled graph is made anew where these answers change, but not where vars() has another name.
            for name in self.absent:
                if hasattr(owner, name):
                    return name
            for name, value in of_class:
                found = getattr(owner, name, None)
                # Not by getattr() with a default, which torch.compile answers with the default.
                found = found.__func__ if isinstance(found, types.MethodType) else found
                if found is not value and not _are_same(found, value):
                    return name
            return ""
        for name in list(own):
            if name not in self.known and (not name.startswith("_") or name in self.asked):
                return name
        return ""


def content_of(value: Any) -> Any:
    if not isinstance(value, _CONTAINERS):
        return None
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords, *value.keywords.values())
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    return tuple(value) if isinstance(value, (list, tuple)) else frozenset(value)


def _are_same(found: Any, value: Any, content: Any = None) -> bool:
    if type(found) is not type(value):
        return False
    return content is not None or isinstance(value, _VALUES) and found == value


def have_same(found: Any, content: Any) -> bool:
    if isinstance(content, frozenset):
        return found == content
    return len(found) == len(content) and all(a is b or _are_same(a, b) for a, b in zip(found, content))


_CALLED = ("__call__", "__getattr__", "__getattribute__")


def _of_classes(kind: type) -> tuple[tuple[Mapping[str, Any], str, Any], ...]:
    """What the classes of an object have below nn.Module, whose forward and its helpers others may exchange."""
    return tuple((vars(each), name, vars(each)[name]) for each in below_module(kind) for name in _names_of(each))


def below_module(*kinds: type) -> tuple[type, ...]:
    """Each of their classes once, but for nn.Module, which has questions of its own."""
    found = dict.fromkeys(each for kind in kinds for each in kind.__mro__)
    return tuple(each for each in found if each not in (nn.Module, object))


def _names_of(kind: type) -> list[str]:
    return [name for name in vars(kind) if name in _CALLED or not name.startswith("__") and name != "extra_repr"]


def _exchanged(classes: tuple[tuple[Mapping[str, Any], str, Any], ...]) -> str:
    """The name of what a class no longer has as it was."""
    for own, name, value in classes:
        found = own.get(name)
        if found is not value and not _are_same(found, value):
            return name
    return ""


def _seen_through(classes: tuple[tuple[Mapping[str, Any], str, Any], ...]) -> tuple[tuple[str, Any], ...]:
    """What an attribute of the object itself would hide."""
    first = {name: value for _, name, value in reversed(classes)}
    return tuple((name, value) for name, value in first.items() if name not in ("forward", "__call__")
                 and isinstance(value, (types.FunctionType, *_VALUES)))


def _names_in(code: Any) -> Iterator[str]:
    """The attributes, and the texts by which getattr may ask, of a function's code; not those of globals, as of torch in
    torch.nn.functional: a compiled graph would ask the object for each before every call."""
    of_global = False
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            of_global = True
        elif each.opcode in dis.hasname:
            of_global = of_global and each.opname in ("LOAD_ATTR", "LOAD_METHOD") and not each.is_jump_target
            if not of_global:
                yield each.argval
        elif each.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            of_global = False
    for each in code.co_consts:
        if isinstance(each, str) and each.isidentifier():
            yield each
        elif isinstance(each, types.CodeType):
            yield from _names_in(each)


def _asked_by(kind: type) -> frozenset[str]:
    functions = [inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
                 for _, _, value in _of_classes(kind) if callable(value) or hasattr(value, "fget")]
    return frozenset(name for each in functions if hasattr(each, "__code__") for name in _names_in(each.__code__))


def constant(function: Any) -> Any:
    """What torch.compile calls when it compiles, and follows no part of: the mark of torch.compiler's
    assume_constant_result, which imports the whole compiler, seconds of a first call."""
    function._dynamo_marked_constant = True
    return function


@constant  # a compiler asks again where the class is another
def _before(kind: type, own: type, names: tuple[str, ...]) -> str:
    """Which of the names a class that was derived from the swapped one has."""
    before = kind.__mro__[:kind.__mro__.index(own)]
    return next((name for each in before for name in vars(each) if name in names), "")


@constant  # as _before()
def _gained(kinds: tuple[type, ...], had: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> str:
    """Which of the names a class has that had it not."""
    return next((name for kind, own in zip(kinds, had) for name in list(vars(kind))
                 if name in names and name not in own), "")


class Original:
    """What a module is beside its weights, when a replace() compares it with a kernel: its class and what that has, its
    activation, its attributes, which forward may read, and how many children it has. why_not() says at a call what has
    changed since. It is copied and pickled with the module, and what had changed stays so."""

    changed = ""  # in a copy: what its classes were no longer when it was made
    other_in: tuple[str, ...] = ()  # "training", "gradients", "autocast": where its forward is another

    def __init__(self, module: nn.Module, activation: str) -> None:
        """`activation`: its name in the module; "": forward calls it by itself."""
        self.own = type(module)
        self.children, self.facts = len(module._modules), Facts(module)
        self.has_tensors = tensor_of(module) != ""  # the caller looks after them
        self.act = activation
        self.act_is = act = getattr(module, activation) if activation != "" else None
        has_facts = act is not None and not isinstance(act, _FUNCTIONS) and hasattr(act, "__dict__")
        self.act_facts = Facts(act) if has_facts else None
        self.act_content = content_of(act) if isinstance(act, functools.partial) else None
        self.act_holds = _held_by(act)
        self._bind()

    def _bind(self) -> None:
        """To the classes of this process."""
        self.classes = _of_classes(self.own)
        self.forward = self.own.forward
        self.act_classes = () if self.act_facts is None else _of_classes(type(self.act_is))
        self.act_forward = type(self.act_is).forward if isinstance(self.act_is, nn.Module) else None
        self.codes = tuple((value, value.__code__) for _, _, value in (*self.classes, *self.act_classes)
                           if isinstance(value, types.FunctionType))
        self.of_class, self.act_of_class = _seen_through(self.classes), _seen_through(self.act_classes)
        self.kinds = below_module(self.own, *(() if self.act_facts is None else (type(self.act_is),)))
        self.had = tuple(tuple(_names_of(kind)) for kind in self.kinds)
        names = {*self.facts.asked, *(name for _, name, _ in self.classes)}
        self.names = tuple(sorted(names - {"forward"}))
        asked = () if self.act_facts is None else self.act_facts.asked
        self.all_names = tuple(sorted({*_CALLED, *names, *asked, *(name for _, name, _ in self.act_classes)}))

    def __getstate__(self) -> dict[str, Any]:
        bound = ("classes", "forward", "codes", "act_classes", "of_class", "act_of_class", "act_forward", "names",
                 "kinds", "had", "all_names")
        state = {name: value for name, value in vars(self).items() if name not in bound}
        return {**state, "changed": self._first_changed()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    def _first_changed(self) -> str:
        """Of what _bind() takes as it finds it."""
        if self.changed != "":
            return self.changed
        name = "forward" if self.own.forward is not self.forward else _exchanged(self.classes)
        if name != "":
            return f"the {name} of its class was replaced"
        name = _exchanged(self.act_classes)
        if name != "":
            return f"the {name} of the class of {self.act} was replaced"
        name = _gained(self.kinds, self.had, self.all_names)
        if name == "" and not compiles():  # as autoreload does it; a compiler looks at codes by itself
            name = next((each.__name__ for each, code in self.codes if each.__code__ is not code), "")
        return "" if name == "" else f"a class has another {name} than when it was swapped"

    def act_learns(self) -> bool:
        """Whether the activation has tensors or children: what it computes today is not what it computes."""
        act = self.act_is
        if isinstance(act, nn.Module) and next(act.children(), None) is not None:
            return True
        return self.act_facts is not None and tensor_of(act) != ""

    def why_not(self, module: nn.Module) -> str:
        why = self._first_changed()
        if why != "":
            return why
        kind = type(module)
        name = "" if kind is self.own else _before(kind, self.own, self.names)
        if name != "":
            return f"its class has another {name}"
        if len(module._modules) != self.children:
            return "it has other children than when it was swapped"
        if not self.has_tensors and (module._parameters or module._buffers):
            name = next((name for name, value in (*module._parameters.items(), *module._buffers.items())
                         if value is not None), "")
            if name != "":
                return f"it has a tensor beside its linears, {name}"
        if self.act != "":
            act = module._modules.get(self.act) or getattr(module, self.act, None)
            why = self.why_not_act(act)
            if why != "":
                return why
            if isinstance(act, nn.Module) and act.training is not module.training:
                return f"{self.act} is in {'training' if act.training else 'evaluation'} alone"
        name = self.facts.first_changed(module, self.of_class)
        return "" if name == "" else f"its {name} is another than when it was swapped"

    def why_not_act(self, act: Any) -> str:
        if act is not self.act_is and not _are_same(act, self.act_is):
            return f"{self.act} was replaced"
        if self.act_forward is not None:
            why = on_module(act, self.act_forward)
            if why != "":
                return f"{self.act} {why}"
            if _held_by(act) != self.act_holds:
                return f"{self.act} has other tensors or children than when it was swapped"
        if self.act_facts is not None:
            name = self.act_facts.first_changed(act, self.act_of_class)
            if name != "":
                return f"{self.act}.{name} is another than when it was swapped"
        if self.act_content is not None and not have_same(content_of(act), self.act_content):
            return f"{self.act} has changed"
        return ""

    def see(self, module: nn.Module, linears: Mapping[str, nn.Module],
            idle: Sequence[nn.Module] = ()) -> Optional[Seen]:
        """idle: children that do nothing while what they have is the same. None: some of it has to be asked each time,
        an activation that its class finds, or what a linear has before its weight."""
        if (self.act != "" and self.act not in module._modules and self.act not in vars(module)
                or any(name in vars(each) for each in linears.values() for name in ("weight", "bias", "_compiled_call_impl"))):
            return None
        others: list[tuple[Any, tuple[str, ...]]] = [(each, ("p", "training")) for each in idle]
        if self.act_facts is not None:
            names = (name for name, _, _ in self.act_facts.facts)
            others.append((self.act_is, (*names, "training", *_TENSORS)))
        try:
            return Seen(module, [name for name, _, _ in self.facts.facts], linears, others, self.codes)
        except KeyError:  # another thread has just taken it away
            return None

    def why_another(self, module: nn.Module, recorded: bool, autocast: bool) -> str:
        """Whether this call is one of those in which forward is another. `recorded`: whether it has gradients."""
        if module.training and "training" in self.other_in:
            return "in training its forward is another"
        if recorded and "gradients" in self.other_in:
            return "its forward has other gradients. Call it under torch.no_grad()"
        if autocast and "autocast" in self.other_in:
            return "under torch.autocast its forward is another"
        return ""


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TENSORS = ("_modules", "_parameters", "_buffers")


class Seen:
    """What the questions about a module and its parts have read, and found nothing. While it holds, none is asked again. Its
    steps are few and plain, and compare objects by identity: the rest of a model puts whatever else there is of Python
    out of a processor's caches. For eager mode alone: a compiler follows the questions. Its linears may be others of their
    kind; it keeps neither them nor the module."""

    def __init__(self, module: nn.Module, facts: Sequence[str], linears: Mapping[str, nn.Module],
                 others: Sequence[tuple[Any, tuple[str, ...]]], codes: Sequence[tuple[Any, Any]]) -> None:
        """facts: the attributes that were read of the module. others: the parts but for linears, with those of each. codes:
        of the functions of all classes."""
        own = vars(module)
        self.kind, self.names, self.children = type(module), list(own), list(module._modules)
        self.facts = tuple((name, own[name]) for name in (*facts, "training", *_TENSORS))
        self.linears = tuple((name, type(part), vars(part).get("forward")) for name, part in linears.items())
        parts = [part for part, _ in others]
        self.others = tuple((part, type(part), vars(part)) for part in parts)
        self.hooks = tuple((vars(part), name) for part in parts for name in HOOKS if name in vars(part))
        kinds = below_module(*map(type, (module, *linears.values(), *parts)))
        reads = [(vars(part), [name for name in names if name in vars(part)]) for part, names in others]
        reads += [(vars(kind), _names_of(kind)) for kind in kinds if not kind.__module__.startswith("kiln.")]
        values = [*(value for name, value in self.facts if name != "_modules"),
                  *(where[name] for where, names in reads for name in names)]
        self.partials = tuple((each, each.func, each.args, each.keywords) for each in values
                              if isinstance(each, functools.partial))
        values += [each.keywords for each, *_ in self.partials]
        dicts = [each for each in values if type(each) is dict]  # another kind has ways of its own
        self.empty = tuple(each for each in dicts if not each)
        reads += [(each, list(each)) for each in dicts if each]
        self.contents = tuple((value, content_of(value)) for value in values if isinstance(value, _CONTAINERS)
                              and type(value) is not dict and not isinstance(value, functools.partial))
        self.keys = tuple((where, list(where)) for where, _ in reads)
        reads.append((module._modules, [name for name in module._modules if name not in linears]))
        self.reads = tuple((where, name, where[name]) for where, names in reads for name in names)
        self.codes = codes

    def holds(self, module: nn.Module) -> bool:
        own = module.__dict__
        modules = own["_modules"]
        if type(module) is not self.kind or list(own) != self.names or list(modules) != self.children:
            return False
        for part, kind, where in self.others:
            if part.__class__ is not kind or part.__dict__ is not where:
                return False
        for where, keys in self.keys:
            if list(where) != keys:
                return False
        for each in self.empty:
            if each:
                return False
        try:
            for name, kind, forward in self.linears:
                part = modules[name]
                if part.__class__ is not kind:
                    return False
                where = part.__dict__
                if (where["_forward_hooks"] or where["_forward_pre_hooks"] or where["_backward_hooks"]
                        or where["_backward_pre_hooks"] or "weight" in where or "bias" in where
                        or "_compiled_call_impl" in where
                        or ("forward" in where if forward is None else where["forward"] is not forward)):
                    return False
            for where, name in self.hooks:
                if where[name]:
                    return False
            for name, value in self.facts:
                if own[name] is not value:
                    return False
            for where, name, value in self.reads:
                if where[name] is not value:
                    return False
        except KeyError:  # another thread has just taken it away, or PyTorch is one of before 2.0
            return False
        for function, code in self.codes:
            if function.__code__ is not code:
                return False
        for partial, function, arguments, keywords in self.partials:
            if partial.func is not function or partial.args is not arguments or partial.keywords is not keywords:
                return False
        return not self.contents or all(have_same(content_of(value), content) for value, content in self.contents)


def _held_by(act: Any) -> list[tuple[str, ...]]:
    """The names of what an activation holds as a module: of none the tensors count."""
    return [tuple(vars(act)[name]) for name in _TENSORS] if isinstance(act, nn.Module) else []


class Held:
    """What a module and its activation hold before a replace() tries their forward."""

    def __init__(self, module: nn.Module, original: Original) -> None:
        parts = [("", module), (f"{original.act}.", original.act_is)]
        self.parts = [(name, vars(part), dict(vars(part))) for name, part in parts if isinstance(part, nn.Module)]
        self.contents = [(part, name, value, copy.copy(value)) for part, _, held in self.parts
                         for name, value in held.items() if isinstance(value, (list, dict, set))]

    def put_back(self) -> str:
        """Undoes what was written since; the name of one attribute that was, or ""."""
        written = ""
        for part, own, before in self.parts:
            for name in {**before, **own}:
                if name not in own or name not in before or own[name] is not before[name]:
                    written = written or part + name
            own.clear()
            own.update(before)
        for part, name, value, content in self.contents:
            if _objects_in(value) != _objects_in(content):
                written = written or part + name
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(content)
        return written


def _objects_in(value: Any) -> list[int]:
    """What can be compared of a container, whatever is in it."""
    return [id(each) for each in ((*value.keys(), *value.values()) if isinstance(value, dict) else value)]


def tensor_of(owner: Any) -> str:
    """The name of a tensor that a module, or another object, holds itself or in a list or the like. Its forward may
    read it, and another value is no other tensor."""
    held = [*vars(owner).items()]
    if isinstance(owner, nn.Module):
        held = [*owner._parameters.items(), *owner._buffers.items(), *(each for each in held if each[0] not in _OWN)]
    for name, value in held:
        content = content_of(value) or ()
        if isinstance(value, Tensor) or any(isinstance(each, (Tensor, nn.Module)) for each in content):
            return name
    return ""


def on_linear(linear: Any) -> str:
    """The same of what should be an nn.Linear that holds its weights."""
    if type(linear) is not nn.Linear:
        return f"is a {_name_of(type(linear))}, not an nn.Linear"
    parameters = linear._parameters
    own = linear.__dict__
    if "weight" not in parameters or "bias" not in parameters:
        return "computes its weight"
    weight, bias = parameters["weight"], parameters["bias"]
    if ("weight" in own and own["weight"] is not weight) or ("bias" in own and own["bias"] is not bias):
        return "has an attribute before its weight"
    if type(weight) not in _PLAIN:
        return f"has a weight that is a {_name_of(type(weight))}"
    if bias is not None and type(bias) not in _PLAIN:
        return f"has a bias that is a {_name_of(type(bias))}"
    return on_module(linear, _LINEAR_FORWARD)


def on_every_module() -> str:
    """What was put on all modules, or on what nn.Linear calls."""
    if (_module._global_forward_hooks or _module._global_forward_pre_hooks or _module._global_backward_hooks
            or (_HAS_BACKWARD_PRE_HOOKS and _module._global_backward_pre_hooks)):
        return "there are hooks on all modules"
    if nn.Linear.__call__ is not _CALL or nn.Linear._call_impl is not _CALL_IMPL:
        return "the call of modules was replaced"
    if F.linear is not _F_LINEAR or F.silu is not _F_SILU or F.gelu is not _F_GELU or F.relu is not _F_RELU:
        return "a function of torch.nn.functional was replaced"
    return ""


def _name_of(kind: type) -> str:
    module = kind.__module__
    short = module in ("builtins", "__main__") or module.startswith("torch.nn.")
    return kind.__qualname__ if short else f"{module}.{kind.__qualname__}"


# ---- tensors ----


def in_tensor(tensor: Any) -> str:
    """What the address of an input or a weight does not carry."""
    if type(tensor) not in _PLAIN:
        return f"a {_name_of(type(tensor))} is not a plain tensor"
    if tensor.layout is not _STRIDED or tensor.is_nested or tensor.is_neg():
        return f"a tensor is not a plain one ({tensor.layout}, nested {tensor.is_nested}, negative bit {tensor.is_neg()})"
    if tensor._is_zerotensor():
        return "a tensor is zero without memory"
    return ""


def in_gradient(gradient: Tensor) -> str:
    """The same of what a backward is given: many at once, where they are batched."""
    if _is_batched(gradient):
        return "gradients are batched"
    return in_tensor(gradient)


# ---- who follows the operators ----


_is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", _nobody)
_tracing = torch._C._get_tracing_state
# Names of PyTorch 2.0, with those of 1.13 beside them.
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None) or getattr(
    torch._C, "_get_torch_dispatch_mode", _nobody)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", None) or getattr(
    torch._C, "_get_torch_function_mode", _nobody)
_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _nobody)
profiled = getattr(torch.autograd, "_profiler_enabled", _nobody)


@constant  # PyTorch's transforms are active then; which functions of functorch it follows differs by release
def _is_transformed() -> bool:
    return _transform() is not None


def differentiator() -> str:
    """Who differentiates or vectorises in another way than by autograd's graph; a compiler's trace asks it, too."""
    if forward_ad._current_level >= 0:
        return "forward-mode gradients are computed"
    if _is_transformed():
        return "torch.func transforms it"
    return ""


def observer() -> str:
    """Who follows the operators that run on this thread, instead of only taking their results."""
    if _tracing() is not None:
        return "torch.jit traces it"
    if _dispatch_modes():
        return f"{_mode_names()} follows PyTorch's operators"
    if _function_modes() and _strangers():
        return f"{', '.join(_strangers())} follows PyTorch's functions"
    if forward_ad._current_level >= 0 or _transform() is not None:
        return differentiator()
    return ""


def _mode_names() -> str:
    try:
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as stack

        return ", ".join(_name_of(type(mode)) for mode in stack())
    except ImportError:
        return "a TorchDispatchMode"


def _strangers() -> list[str]:
    """Function modes but those of torch.set_default_device, which change no result."""
    try:
        from torch.overrides import _get_current_function_mode_stack as stack
        from torch.utils._device import DeviceContext
    except ImportError:
        return ["a TorchFunctionMode"]
    return [_name_of(type(mode)) for mode in stack() if type(mode) is not DeviceContext]
