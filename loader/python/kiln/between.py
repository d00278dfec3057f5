# SPDX-License-Identifier: Apache-2.0
"""What stands between a module and its weights, and who follows PyTorch's operators. The stage before torch.

A kernel reads weights by their addresses. Whatever PyTorch or its users put on, in or around a module acts at its
call, or at an operator's, and would be passed over. The questions here are asked at each call, cost some 100 ns each,
and answer "" where nothing is passed over, else a reason for people: the caller then leaves the call to PyTorch.

torch.compile can trace all of it but in_tensor() and observer(): a compiler follows the layers' own operators.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _module

_LINEAR_FORWARD = nn.Linear.forward
_CALL = nn.Linear.__call__
_F_LINEAR, _F_GELU, _F_SILU, _F_RELU = F.linear, F.gelu, F.silu, F.relu
_HAS_BACKWARD_PRE_HOOKS = hasattr(nn.Module(), "_backward_pre_hooks")  # PyTorch 2.0
_PLAIN = (Tensor, nn.Parameter)
_STRIDED = torch.strided


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


class Original:
    """What a module is beside its weights, when a replace() compares it with a kernel: the forward of its class, its
    activation, its plain attributes, which that forward may read, and how many children it has. why_not() says at a
    call what has changed since. It is copied and pickled with the module, and what had changed stays so."""

    changed = ""  # in a copy: what its classes were no longer when it was made

    def __init__(self, module: nn.Module, activation: str) -> None:
        """`activation`: its name in the module; "": forward calls it by itself."""
        self.own = type(module)
        self.children, self.facts = len(module._modules), _facts_of(module)
        self.act = activation
        self.act_is = getattr(module, activation) if activation != "" else None
        self.act_facts = _facts_of(self.act_is) if isinstance(self.act_is, nn.Module) else ()
        self._bind()

    def _bind(self) -> None:
        """To the classes of this process, whose forward others may exchange."""
        self.own_forward = self.own.forward
        self.act_forward = type(self.act_is).forward if isinstance(self.act_is, nn.Module) else None

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in ("own_forward", "act_forward")}
        return {**state, "changed": self._first_changed()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    def _first_changed(self) -> str:
        """Of what _bind() takes as it finds it."""
        if self.changed != "":
            return self.changed
        if self.own.forward is not self.own_forward:
            return "the forward of its class was replaced"
        if self.act_forward is not None and type(self.act_is).forward is not self.act_forward:
            return f"{self.act} has a forward of its own"
        return ""

    def act_learns(self) -> bool:
        """Whether the activation has tensors or children: what it computes today is not what it computes."""
        act = self.act_is
        return isinstance(act, nn.Module) and (tensor_of(act) != "" or next(act.children(), None) is not None)

    def why_not(self, module: nn.Module) -> str:
        why = self._first_changed()
        if why != "":
            return why
        if len(module._modules) != self.children:
            return "it has other children than when it was swapped"
        if self.act != "":
            why = self.why_not_act(module._modules.get(self.act) or getattr(module, self.act, None))
            if why != "":
                return why
        for name, value in self.facts:
            if _fact_of(getattr(module, name, None)) != value:
                return f"its {name} is no longer {value!r}"
        return ""

    def why_not_act(self, act: Any) -> str:
        if act is not self.act_is and act != self.act_is:  # a bound method is made anew each time, and equal
            return f"{self.act} was replaced"
        if self.act_forward is not None:
            why = on_module(act, self.act_forward)
            if why != "":
                return f"{self.act} {why}"
            for name, value in self.act_facts:
                if _fact_of(getattr(act, name, None)) != value:
                    return f"{self.act}.{name} is no longer {value!r}"
        return ""


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


def _fact_of(value: Any) -> Any:
    """What equals itself where torch.compile follows the comparison, too: a partial equals none there."""
    if isinstance(value, functools.partial):
        return (value.func, value.args, tuple(value.keywords.items()))
    return value


def _facts_of(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    return tuple((name, _fact_of(value)) for name, value in vars(module).items()
                 if not name.startswith("_") and name != "training"
                 and (value is None or isinstance(value, (bool, int, float, str)) or callable(value)))


def tensor_of(module: nn.Module) -> str:
    """The name of a tensor that the module itself holds. Its forward may read it, and another value is no other tensor."""
    held = (*module._parameters.items(), *module._buffers.items(), *vars(module).items())
    return next((name for name, value in held if isinstance(value, Tensor)), "")


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
    if nn.Linear.__call__ is not _CALL:
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


def _nobody(*_: Any) -> Any:
    return None


_is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", _nobody)
_tracing = torch._C._get_tracing_state
# Names of PyTorch 2.0, with those of 1.13 beside them.
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", None) or getattr(
    torch._C, "_get_torch_dispatch_mode", _nobody)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", None) or getattr(
    torch._C, "_get_torch_function_mode", _nobody)
_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _nobody)
profiled = getattr(torch.autograd, "_profiler_enabled", _nobody)


def constant(function: Any) -> Any:
    """What torch.compile calls when it compiles, and follows no part of: the mark of torch.compiler's
    assume_constant_result, which imports the whole compiler, seconds of a first call."""
    function._dynamo_marked_constant = True
    return function


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
