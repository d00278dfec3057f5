# SPDX-License-Identifier: Apache-2.0
"""replace: makes the gated MLPs of a model compute with Kiln. The stage after gated_mlp_fit, which says which can.

A module stays the one that the user has: it gets a class that is derived from its own and has another forward, as
PyTorch's parametrizations and FSDP do it. So its weights, hooks, attributes and places are what they were, and what
is put on it later is put on it. At each call the new forward looks at what stands between the module and its weights
(kiln.between) and whether it still is what replace() has compared; where not, the module's own forward runs, and a
FallbackWarning says why.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Optional

import torch
from torch import Tensor, nn

from kiln import NoVariant, UsageError, between, layer
from kiln.layer import Report, Swap

from . import gated_mlp as family
from .gated_mlp_fit import Fit, fit, looks_like_an_mlp

Linears = "Mapping[str | type, tuple[str, ...]]"
Tensors = "tuple[Optional[Tensor], ...]"  # gate, up, down and their biases


class _Place:
    """What replace() knows of one module: how it was found, and the kernel that it was given."""

    def __init__(self, name: str, found: Fit, request: tuple[str, int, dict[str, Any], dict[str, Any]],
                 what: str) -> None:
        self.name, self.fit, self.request, self.what = name, found, request, what
        self._bind()

    def _bind(self) -> None:
        family.member_of(*self.request[:2])
        self.key = layer.key_of(*self.request)
        self.told: set[str] = set()  # the reasons that a warning gave
        self.seen: Any = None  # a between.Seen, and the dtype, device and width of the x of its call

    def __getstate__(self) -> dict[str, Any]:
        """The key is of this process; the request is what it stands for."""
        return {name: value for name, value in vars(self).items() if name not in ("key", "told", "seen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    def see(self, module: nn.Module, x: Tensor) -> None:
        """After a call that nothing stands against. The questions are asked once more, of what has been seen: another
        thread may have changed it since."""
        seen = None if layer.casts(x.device) else self.fit.see(module)
        if seen is not None and self.fit.why_not(module, x) == "":
            self.seen = (seen, x.dtype, x.device, x.shape[-1])

    def tensors_as_seen(self, module: nn.Module, x: Any) -> Optional[Tensors]:
        """The weights, where all is as in a call that nothing stood against; None: the questions have to be asked. What
        else a weight may be, sparse or of another shape, the op refuses."""
        before = self.seen
        if before is None or between.on_every_module() or between.in_tensor(x) or between.observer():
            return None
        seen, dtype, device, width = before
        original = self.fit.original
        if (x.dtype is not dtype or x.device != device or x.dim() == 0 or x.size(-1) != width or layer.casts(device)
                or not seen.holds(module) or original.other_in and original.why_another(module, False, False)):
            return None
        try:
            parameters = self.fit.parameters_of(module)
            for tensor in parameters:
                kind = type(tensor)
                if tensor is not None and (kind is not nn.Parameter and kind is not Tensor or tensor.is_meta):
                    return None
            return self.fit.arranged(parameters)
        except (AttributeError, KeyError, RuntimeError):  # a linear has no weight any more, or one without halves
            return None


class ReplacedMlp(layer.Replaced):
    _kiln: Optional[_Place] = None

    @staticmethod
    def members_of(own: type) -> dict[str, Any]:
        return {"forward": _forward_named_as(own.forward)}

    def forward(self, *args: Any, residual: Optional[Tensor] = None, **named: Any) -> Any:
        """The original's, and with a residual [..., D] the sum of both."""
        place = getattr(self, "_kiln", None)
        if layer.enabled() and place is not None:
            found = place.fit
            x = found.input_of(args, named)
            is_short = residual is None and layer.HAS_OPERATORS and not between.compiles()
            if is_short:
                tensors = place.tensors_as_seen(self, x)
                if tensors is not None:
                    try:
                        return family.plain_gated_mlp(x, tensors, place.key)
                    except RuntimeError:  # the questions say what a weight is, or it is thrown again
                        pass
                place.seen = None
            why = found.why_not(self, x)
            parameters = found.parameters_of(self) if why == "" else []
            why = why or layer.why_pytorch(x, residual, *parameters)
            if why == "":
                tensors = found.arranged(parameters)
                why = _why_not_these(x, tensors)
                if why == "":
                    if is_short:
                        place.see(self, x)
                    return family.gated_mlp(x, *tensors, residual, place.key)
            layer.tell(place.told, place.name, why)
        if isinstance(self, ReplacedMlp):
            y = super().forward(*args, **named)
        else:  # somebody has kept the method since before restore()
            y = type(self).forward(self, *args, **named)
        return y if residual is None else residual + y


_DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
_CAST = (torch.float32, torch.bfloat16, torch.float16)  # what torch.autocast casts


def _why_not_these(x: Tensor, tensors: tuple[Optional[Tensor], ...]) -> str:
    """A device or a dtype that no package has: the model may move, and torch.autocast begins and ends. An x that does not
    belong to the weights may be one that the original converts; else PyTorch refuses it."""
    device = x.device.type
    known = _DTYPES.get(device)
    if known is None:
        return f"no package computes on {device}"
    dtype = layer.autocast_dtype(device)
    gate, up, down = tensors[:3]
    if (x.device != gate.device or x.dim() == 0 or x.shape[-1] != gate.shape[1]
            or dtype is None and x.dtype != gate.dtype):
        # The same words for x of all lengths: they are told once, and torch.compile has no number for a length.
        return (f"x is {str(x.dtype)[6:]} on {x.device}; expected rows of {gate.shape[1]}, {str(gate.dtype)[6:]} on "
                f"{gate.device}")
    if up.device != gate.device or down.device != gate.device:
        return "its weights are on several devices"
    # Of as many elements, but another shape: PyTorch refuses it, too.
    if not up.numel() == gate.numel() == down.numel():
        return "its weights have shapes that do not belong together"
    for place in (3, 4, 5):
        bias = tensors[place]
        if bias is not None and bias.shape != tensors[place - 3].shape[:1]:
            return "its biases have shapes that do not belong to its weights"
    if dtype is None:
        dtype = x.dtype
    else:
        for tensor in (x, *tensors):
            if tensor is not None and tensor.dtype not in _CAST:
                return f"torch.autocast does not cast {tensor.dtype}"
    if dtype not in known:
        return f"no package computes in {dtype} on {device}"
    return ""


def _forward_named_as(own: Any) -> Any:
    """ReplacedMlp.forward, with the signature of the original's for those who ask: torch.export names inputs by it."""
    function = ReplacedMlp.forward
    named = types.FunctionType(function.__code__, function.__globals__, "forward", function.__defaults__,
                               function.__closure__)
    named.__kwdefaults__, named.__doc__ = function.__kwdefaults__, function.__doc__
    signature = inspect.signature(own)
    parameters = list(signature.parameters.values())
    rest = [parameters.pop()] if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    residual = inspect.Parameter("residual", inspect.Parameter.KEYWORD_ONLY, default=None)
    named.__signature__ = signature.replace(parameters=[*parameters, residual, *rest])
    return named


def replace(model: nn.Module, *, version: int = 0, overflow: str = "infinity", batch_invariant: bool = False,
            linears: Optional[Linears] = None, **options: Any) -> Report:
    """Makes every gated MLP of `model` that a package computes compute with Kiln. restore() undoes it.

    An MLP has three nn.Linear, or two of which the first has the rows of gate and up one after the other, and its
    forward is down(a(gate(x)) * up(x)), which is compared on a few rows. The names that Llama, Gemma, T5, Phi-3,
    GLM-4 and ModernBERT give are known; `linears` has those of other classes: {"FeedForward": ("w1", "w3", "w2")},
    gate, up and down, or ("gate_up", "down"), by the class or its name.

    version: of the packages; 0: of each the one that its module came with.

    Call it when the model has its weights. `overflow` and `batch_invariant` are those of the layers. `options` are
    those of kiln.get_kernel, which may throw; where no variant fits the machine the report says so.
    """
    layer.check_options("replace", options)
    if linears is not None and not isinstance(linears, Mapping):
        raise UsageError(f"replace: linears is a {type(linears).__name__}; expected a dict, of names by class")
    named = {key if isinstance(key, str) else key.__qualname__: tuple(names) for key, names in (linears or {}).items()}
    for key, names in named.items():
        if len(names) not in (2, 3):
            raise UsageError(f"replace: linears names {names} of {key}; expected (gate, up, down) or (gate_up, down)")
    members = [member for member in family.members() if version in (0, member.version)]
    swaps = []
    for name, module in list(model.named_modules()):
        kind = type(module).__name__
        names = named.get(type(module).__qualname__) or named.get(kind)
        try:
            if isinstance(module, ReplacedMlp) or layer.is_replaced(module) or not (names or looks_like_an_mlp(module)):
                continue
            found = fit(module, members, names)
        except Exception as error:  # whatever a property or a descriptor of a foreign class throws
            found = f"it cannot be looked at: {type(error).__name__}: {error}"
        name = name or "the model"
        if isinstance(found, str):
            swaps.append(Swap(name, kind, False, found))
            continue
        attributes = {**found.attributes, **family.promises(overflow, batch_invariant)}
        request = (found.package, found.version, attributes, options)
        try:
            kernel = layer.source_of(layer.key_of(*request)).kernel(found.tensors_of(module)[0].device)
            kernel.forward.check_attributes(attributes)
        except NoVariant as error:
            swaps.append(Swap(name, kind, False, str(error).splitlines()[0]))
            continue
        what = f"{found.package}@{found.version} {kernel.variant}, {next(iter(attributes.values()))}{found.note}"
        try:
            module.__class__ = layer.replaced_class(ReplacedMlp, type(module))
        except Exception as error:  # a class with __slots__, or one that allows no other below it
            swaps.append(Swap(name, kind, False, f"its class cannot be derived from: {error}"))
            continue
        module._kiln = _Place(name, found, request, what)
        swaps.append(Swap(name, kind, True, what))
    return Report(tuple(swaps))
