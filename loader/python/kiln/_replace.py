# SPDX-License-Identifier: Apache-2.0
"""replace: swaps the gated MLPs of a model for Kiln's. The stage after torch, which has the layers.

An MLP is known by what it does, not by its class: it has gate_proj, up_proj and down_proj, its activation is one that
a package computes (compared on a range of numbers), and its forward gives what the formula gives (run once on a few
rows). What differs stays as it is, and the report says why.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import torch as layers
from ._errors import NoVariant

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
# package, attributes, the function of the gate
_ACTIVATIONS: tuple[tuple[str, dict[str, Any], Any], ...] = (
    ("geglu-mlp", {"approximate": "tanh"}, lambda z: F.gelu(z, approximate="tanh")),
    ("geglu-mlp", {"approximate": "none"}, F.gelu),
    ("swiglu-mlp", {"activation": "silu", "limit": 7.0}, F.silu),
    ("swiglu-mlp", {"activation": "relu", "limit": 7.0}, F.relu),
    ("swiglu-mlp", {"activation": "sigmoid", "limit": 7.0}, torch.sigmoid),
)
_DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
# Relative L2 of a forward against the formula in the same dtype: the order of roundings may differ, no more.
_CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_FEW_ROWS = (0.1, 1.0, 10.0, 100.0)  # the scales of the rows that a forward is tried on


class Swap(NamedTuple):
    """One MLP of the model."""

    name: str  # "model.layers.0.mlp"
    kind: str  # its class
    swapped: bool
    what: str  # the kernel that it has now, or why it stays


class Report(NamedTuple):
    """What replace() did. str() is a table for people."""

    swaps: tuple[Swap, ...]

    @property
    def swapped(self) -> tuple[Swap, ...]:
        return tuple(s for s in self.swaps if s.swapped)

    @property
    def kept(self) -> tuple[Swap, ...]:
        return tuple(s for s in self.swaps if not s.swapped)

    def __str__(self) -> str:
        lines = [f"kiln.torch.replace: {len(self.swapped)} swapped, {len(self.kept)} kept"]
        lines += [f"  {'>' if s.swapped else ' '} {s.name} ({s.kind}): {s.what}" for s in self.swaps]
        return "\n".join(lines)


class ReplacedMlp(nn.Module):
    """Stands where an MLP was, with its projections under their names, so that state_dict() has the same keys."""

    def __init__(self, original: nn.Module, key: str, what: str) -> None:
        super().__init__()
        for name in _PROJECTIONS:
            setattr(self, name, getattr(original, name))
        self.training = original.training
        self._key, self._what = key, what
        self._original = (original,)  # in a tuple: its parameters are those above, and counted once

    @property
    def original(self) -> nn.Module:
        return self._original[0]

    def forward(self, x: Tensor, *, residual: Optional[Tensor] = None) -> Tensor:
        """The original's, and with a residual [..., D] the sum of both."""
        if not layers._enabled:
            y = self._original[0](x)
            return y if residual is None else residual + y
        gate, up, down = self.gate_proj, self.up_proj, self.down_proj
        return layers.gated_mlp(x, gate.weight, up.weight, down.weight, gate.bias, up.bias, down.bias, residual,
                                self._key)

    def train(self, mode: bool = True) -> ReplacedMlp:
        self.original.train(mode)
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"{self._what}, in place of {type(self.original).__name__}"


def replace(model: nn.Module, *, version: int = 1, overflow: str = "infinity", batch_invariant: bool = False,
            **options: Any) -> Report:
    """Swaps every gated MLP below `model` that a package computes, and shares its weights. restore() undoes it.

    Gemma's and Llama's layouts: gate_proj, up_proj and down_proj are nn.Linear, act_fn is a GELU, SiLU, ReLU or
    sigmoid, and forward is down_proj(act_fn(gate_proj(x)) * up_proj(x)). Call it when the model is on its device, has
    its dtype and its weights. `overflow` and `batch_invariant` are those of the layers. `options` are those of
    kiln.get_kernel, which may throw; where no variant fits the machine the report says so.
    """
    found: dict[int, tuple[Swap, Optional[nn.Module]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, ReplacedMlp) or not _looks_like_an_mlp(module):
            continue
        kind = type(module).__name__
        if module is model:
            found[id(module)] = Swap(name or "the model", kind, False, "it is the model itself: pass its parent"), None
            continue
        why, chosen = _fit(module)
        if chosen is None:
            found[id(module)] = Swap(name, kind, False, why), None
            continue
        package, attributes = chosen[0], {**chosen[1], **layers._promises(overflow, batch_invariant)}
        key = layers._key_of(package, version, attributes, options)
        try:
            kernel = layers._source_of(key).kernel(module.gate_proj.weight.device)
        except NoVariant as error:
            found[id(module)] = Swap(name, kind, False, str(error).splitlines()[0]), None
            continue
        what = f"{package}@{version} {kernel.variant}, {next(iter(attributes.values()))}"
        found[id(module)] = Swap(name, kind, True, what), ReplacedMlp(module, key, what)
    for parent, name, child in list(_children(model)):
        swapped = found.get(id(child), (None, None))[1]
        if swapped is not None:
            setattr(parent, name, swapped)
    return Report(tuple(swap for swap, _ in found.values()))


def restore(model: nn.Module) -> int:
    """Puts the MLPs back that replace() has swapped; how many."""
    places = [(parent, name, child) for parent, name, child in _children(model) if isinstance(child, ReplacedMlp)]
    for parent, name, child in places:
        setattr(parent, name, child.original)
    return len(places)


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() gives a shared one once
            if child is not None:
                yield parent, name, child


def _looks_like_an_mlp(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    has_children = next(module.children(), None) is not None
    return any(hasattr(module, p) for p in _PROJECTIONS) or (
        has_children and name.endswith(("mlp", "glu", "feedforward", "ffn")))


def _fit(module: nn.Module) -> tuple[str, Optional[tuple[str, dict[str, Any]]]]:
    """Why a module stays; or package and attributes."""
    missing = [name for name in _PROJECTIONS if not isinstance(getattr(module, name, None), nn.Module)]
    if missing:
        return f"has no {', '.join(missing)}", None
    linears = [getattr(module, name) for name in _PROJECTIONS]
    for name, linear in zip(_PROJECTIONS, linears):
        if type(linear) is not nn.Linear:
            return f"{name} is a {type(linear).__name__}, not an nn.Linear", None
        if type(linear.weight) is not nn.Parameter or type(linear.weight.data) is not Tensor:
            return f"{name}.weight is a {type(linear.weight.data).__name__}, not a plain tensor", None
    gate, up, down = (linear.weight for linear in linears)
    if gate.shape != up.shape or gate.shape != down.shape[::-1]:
        return f"gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)} do not belong together", None
    for part in (module, *linears):
        hooks = itertools.chain(part._forward_hooks, part._forward_pre_hooks, part._backward_hooks)
        if next(hooks, None) is not None or "forward" in vars(part):
            return "it has hooks, or a forward of its own, that would no longer run", None
    if any(isinstance(part, nn.Dropout) and part.p > 0 for part in module.modules()):
        return "it has dropout", None
    where = {(p.device.type, p.dtype) for p in (gate, up, down)}
    device, dtype = next(iter(where))
    if len(where) > 1 or dtype not in _DTYPES.get(device, ()):
        return f"its weights are {', '.join(f'{t} on {d}' for d, t in sorted(where, key=str))}", None
    chosen = _activation_of(module)
    if chosen is None:
        return "its activation is not a GELU, SiLU, ReLU or sigmoid", None
    package, attributes = chosen
    rows = torch.tensor(_FEW_ROWS, device=gate.device, dtype=dtype)[:, None]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(_FEW_ROWS), gate.shape[1], generator=generator).to(gate.device, dtype) * rows
    with torch.no_grad():
        try:
            found = module(x)
        except Exception as error:  # whatever a foreign forward throws is the reason
            return f"its forward throws for [M, D]: {type(error).__name__}: {error}", None
        expected = linears[2](layers.combine(package, attributes, linears[0](x), linears[1](x)))
    if not isinstance(found, Tensor) or found.shape != expected.shape:
        return "its forward gives something else than [M, D]", None
    errors = (found.double() - expected.double()).norm(dim=1)
    if not bool((errors <= _CLOSE[dtype] * expected.double().norm(dim=1)).all()):
        return "its forward is not down_proj(act_fn(gate_proj(x)) * up_proj(x))", None
    return "", chosen


def _activation_of(module: nn.Module) -> Optional[tuple[str, dict[str, Any]]]:
    for name in ("act_fn", "activation_fn", "act", "activation"):
        function = getattr(module, name, None)
        if callable(function):
            break
    else:
        return None
    if isinstance(function, nn.Module) and next(function.parameters(), None) is not None:
        return None
    z = torch.linspace(-12, 12, 961)
    with torch.no_grad():
        try:
            found = function(z)
        except Exception:  # not a function of a tensor: none that a package has
            return None
        for package, attributes, known in _ACTIVATIONS:
            # tanh's approximation of GELU differs from it by 4.7e-4.
            if isinstance(found, Tensor) and found.shape == z.shape and (found - known(z)).abs().max() < 2e-6:
                return package, attributes
    return None
