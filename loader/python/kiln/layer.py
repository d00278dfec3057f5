# SPDX-License-Identifier: Apache-2.0
"""What a package's PyTorch module is made of: which kernel a layer calls, who computes a call, who is told.

    KEY = layer.key_of("rms-norm", 1, {"eps": 1e-6}, options)     # once, when the layer is made
    why = layer.why_pytorch(x, weight)                            # at each call; "": Kiln computes it
    y = layer.source_of(KEY).call(x.device, "forward", {"x": x, "weight": weight})

For the authors of packages; docs/PACKAGES.md has a whole module. The stage before torch, after _call and between. Needs
PyTorch. Threads: as nn.Linear.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
import warnings
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import torch
from torch import Tensor

from . import between
from ._errors import UsageError
from ._kernel import Kernel, get_kernel


class FallbackWarning(UserWarning):
    """A layer is computed by PyTorch's operators, and why. Each layer says each reason once."""


_enabled = True
_disabled = 0  # how many disabled() are open, in all threads
_lock = threading.Lock()  # of _disabled and _sources


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Every layer of Kiln computes with PyTorch's own operators meanwhile, in all threads of the process, until the
    last disabled() that is open ends."""
    _count_disabled(1)
    try:
        yield
    finally:
        _count_disabled(-1)


def enabled() -> bool:
    """Whether no disabled() is open."""
    return _enabled


def _count_disabled(step: int) -> None:
    global _enabled, _disabled
    with _lock:
        _disabled += step
        _enabled = _disabled == 0


def tell(told: set[str], name: str, why: str) -> None:
    """`told`: the reasons that this layer has given already."""
    if HAS_OPERATORS and torch.compiler.is_compiling():
        _warn(name, why)  # once for each time that the call is compiled
    elif why not in told:
        told.add(why)
        _warn(name, why)


def _warn(name: str, why: str) -> None:
    warnings.warn(f"kiln.torch: PyTorch computes {name}: {why}", FallbackWarning, stacklevel=4)


if hasattr(getattr(torch, "compiler", None), "assume_constant_result"):
    _warn = torch.compiler.assume_constant_result(_warn)  # torch.compile runs it instead of breaking the graph


# ---- which kernel ----


class Source:
    """Where a layer's kernels come from, one for each device that it was called on."""

    def __init__(self, package: str, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> None:
        self.package, self.version, self.options = package, version, options
        self.attributes, self.words = dict(attributes), tuple(sorted(attributes.items()))
        self.kernels: dict[torch.device, Kernel] = {}

    def kernel(self, device: torch.device) -> Kernel:
        kernel = self.kernels.get(device)
        if kernel is None:
            named = device
            if device.type == "cuda" and device.index is None:
                named = torch.device("cuda", torch.cuda.current_device())
            if device.type == "cuda":
                with torch.cuda.device(named):
                    torch.cuda.current_stream()  # PyTorch's context, so that the kernel is prepared in it
                    kernel = get_kernel(self.package, self.version, device=named, **self.options)
            else:
                kernel = get_kernel(self.package, self.version, device=named, **self.options)
            self.kernels[device] = self.kernels[named] = kernel
        return kernel

    def call(self, device: torch.device, op: str, tensors: Mapping[str, Optional[Tensor]]) -> Any:
        """Runs an op of the kernel. `tensors` by their names in package.json, whose order counts; one that is left out,
        or None, is not given to it."""
        found = self.kernel(device).op(op)
        if not tensors.keys() <= found.positions.keys():
            raise UsageError(f"{self.package}@{self.version} {op}: has no tensor "
                             f"{', '.join(tensors.keys() - found.positions.keys())}; it has {', '.join(found.positions)}")
        return found.call([tensors.get(name) for name in found.positions], self.words)


# By the text that stands for them in a graph: "geglu-mlp@1?approximate=tanh", and a number for other options.
_sources: dict[str, Source] = {}


def key_of(package: str, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> str:
    key = f"{package}@{version}?{urllib.parse.urlencode(sorted(attributes.items()))}"
    with _lock:
        if options:
            for known, source in _sources.items():
                if known.startswith(key + "#") and source.options == options:
                    return known
            key += f"#{len(_sources)}"
        if key not in _sources:
            _sources[key] = Source(package, version, attributes, options)
    return key


def source_of(key: str) -> Source:
    source = _sources.get(key)
    if source is None:
        raise RuntimeError(f"kiln: the layer {key!r} was not made in this process. Make one like it first, so that "
                           "its registry and options are known")
    return source


# ---- who computes ----

HAS_OPERATORS: bool = hasattr(torch.library, "custom_op")  # PyTorch 2.4


def words_of(tensor: Tensor) -> str:
    """For a message: "bfloat16 [4, 768] on cuda:0"."""
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)} on {tensor.device}"


def goes_by_operators() -> bool:
    """Whether somebody wants to see the layers' operators: a compiler that follows them, a profiler that lists them."""
    return HAS_OPERATORS and (torch.compiler.is_compiling() or between.profiled())


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """What torch.autocast would have nn.Linear compute in, or None."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def why_pytorch(*tensors: Optional[Tensor]) -> str:
    """Why a call of these tensors is PyTorch's; "": Kiln computes it. The first is the input."""
    if torch.compiler.is_compiling() if HAS_OPERATORS else False:
        return "torch.export keeps PyTorch's operators" if _is_exporting() else between.differentiator()
    for tensor in tensors:
        if tensor is not None:
            why = between.in_tensor(tensor)
            if why != "":
                return why
    return between.observer()


def _is_exporting() -> bool:
    """torch.compiler.is_exporting(), which PyTorch's compiler takes to be true whenever it compiles, up to 2.11."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


def check_options(what: str, options: dict[str, Any]) -> None:
    """That these are options of get_kernel: one that is misspelt would else be told by another function's name."""
    known = [name for name in get_kernel.__kwdefaults__ if name != "device"]
    for name in options:
        if name not in known:
            raise TypeError(f"{what} has no option {name!r}; of get_kernel's it takes {', '.join(known)}")




def operator_name(name: str) -> str:
    """"kiln::name" for torch.library: with a number, where a module of another version has registered that one."""
    with _lock:
        _operators[name] = _operators.get(name, 0) + 1
        return f"kiln::{name}" if _operators[name] == 1 else f"kiln::{name}_{_operators[name]}"


_operators: dict[str, int] = {}


# ---- what replace() tells, and what it leaves on a module ----


def is_replaced(module: Any) -> bool:
    """Whether a package's replace() has swapped the module: it has set `_kiln`, and a method kiln_restore()."""
    return getattr(module, "_kiln", None) is not None and hasattr(module, "kiln_restore")


class Swap(NamedTuple):
    """One module of the model."""

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
