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
import copy
import itertools
import threading
import urllib.parse
import warnings
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import torch
from torch import Tensor, nn

from . import between
from ._errors import UsageError
from ._kernel import Kernel, get_kernel
from ._library import as_flag


Tensors = Sequence[Optional[Tensor]]


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
    if between.compiles():
        _warn(name, why)  # once for each time that the call is compiled
    elif why not in told:
        told.add(why)
        _warn(name, why)


@between.constant  # torch.compile runs it instead of breaking the graph
def _warn(name: str, why: str) -> None:
    warnings.warn(f"kiln.torch: PyTorch computes {name}: {why}", FallbackWarning, stacklevel=5)


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
            with torch.cuda.device(named) if device.type == "cuda" else contextlib.nullcontext():
                if device.type == "cuda":
                    torch.cuda.current_stream()  # PyTorch's context, so that the kernel is prepared in it
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
        # PyTorch's own operators would have as many threads as torch.set_num_threads says now.
        threads = torch.get_num_threads() if device.type == "cpu" else 0
        return found.call([tensors.get(name) for name in found.positions], self.words, threads)


# By the text that stands for them in a graph: "geglu-mlp@1?approximate='tanh'", and a number for other options.
_sources: dict[str, Source] = {}


def key_of(package: str, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> str:
    # By types, too: what no kernel takes would else be found for what has the same text.
    plain = (bool, int, float, str)
    words = [(name, repr(value) if type(value) in plain else f"{type(value)} {value!r}")
             for name, value in sorted(attributes.items())]
    key = f"{package}@{version}?" + urllib.parse.urlencode(words, safe="'")
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
_AUTOCAST_OF_DEVICE = hasattr(torch, "get_autocast_dtype")


def words_of(tensor: Tensor) -> str:
    """For a message: "bfloat16 [4, 768] on cuda:0"."""
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)} on {tensor.device}"


def goes_by_operators() -> bool:
    """Whether somebody wants to see the layers' operators: a compiler that follows them, a profiler that lists them."""
    return HAS_OPERATORS and (between.compiles() or between.profiled())


def autocast_dtype(device: str) -> Optional[torch.dtype]:
    """What torch.autocast would have nn.Linear compute in, or None."""
    if device == "meta":  # which PyTorch refuses to be asked of
        return None
    if _AUTOCAST_OF_DEVICE:
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


_casts_anywhere = getattr(torch._C, "_is_any_autocast_enabled", None)


def casts(device: torch.device) -> bool:
    """Whether torch.autocast may cast on the device, by the shortest question."""
    return autocast_dtype(device.type) is not None if _casts_anywhere is None else _casts_anywhere()


def cast(*tensors: Optional[Tensor]) -> Tensors:
    """As torch.autocast would have nn.Linear take them."""
    dtype = None if tensors[0] is None else autocast_dtype(tensors[0].device.type)
    return tensors if dtype is None else [None if t is None else t.to(dtype) for t in tensors]


def as_added(x: Tensor, residual: Optional[Tensor]) -> tuple[Tensor, Optional[Tensor]]:
    """For a layer that adds both. Under torch.autocast a stream may be wider than what a linear gives it: of the dtype
    that PyTorch's sum has."""
    if residual is None or residual.dtype == x.dtype or autocast_dtype(x.device.type) is None:
        return x, residual
    dtype = torch.promote_types(x.dtype, residual.dtype)
    return x.to(dtype), residual.to(dtype)


def why_pytorch(*tensors: Optional[Tensor]) -> str:
    """Why a call of these tensors is PyTorch's; "": Kiln computes it. The first is the input."""
    if between.compiles():
        return "torch.export keeps PyTorch's operators" if _is_exporting() else between.differentiator()
    for tensor in tensors:
        if tensor is not None:
            why = between.in_tensor(tensor)
            if why != "":
                return why
    if tensors[0] is not None and tensors[0].is_meta:
        return "the input is on meta"
    return between.observer()


def knows_numbers(*tensors: Optional[Tensor]) -> bool:
    """Whether PyTorch's operators of a layer may be chosen by what is in these: not while somebody records them for other
    numbers, or has shapes alone."""
    return not between.compiles() and why_pytorch(*tensors) == ""


def rows_of(tensor: Tensor) -> Tensor:
    """[..., N] as [M, N], whatever extents are 0."""
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2)


def readable(rows: Tensor) -> Tensor:
    """[M, N] as kernels read it: a row's numbers side by side, and no two rows at one place, as expand() has them."""
    return rows.contiguous() if rows.stride(1) != 1 or rows.stride(0) < rows.shape[1] else rows


def _is_exporting() -> bool:
    """torch.compiler.is_exporting(), which PyTorch's compiler takes to be true whenever it compiles, up to 2.11."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


def check_options(what: str, options: dict[str, Any]) -> None:
    """That these are options of get_kernel: one that is misspelt would else be told by another function's name."""
    known = [name for name in get_kernel.__kwdefaults__ if name != "device"]
    for name in options:
        if name not in known:
            raise TypeError(f"{what} has no option {name!r}; of get_kernel's it takes {', '.join(known)}")




def yes_or_no(value: Any, what: str) -> str:
    return "yes" if as_flag(value, what) else "no"


def operator_name(name: str) -> str:
    """"kiln::name" for torch.library: with a number, where a module of another version has registered that one."""
    with _lock:
        _operators[name] = _operators.get(name, 0) + 1
        return f"kiln::{name}" if _operators[name] == 1 else f"kiln::{name}_{_operators[name]}"


_operators: dict[str, int] = {}


# ---- what a package derives its op and its module from ----


def with_a_gradient_of_its_own(residual: Optional[Tensor]) -> Optional[Tensor]:
    """For an input whose gradient is what the caller gave, before a view of it is taken: PyTorch makes what a view of a
    leaf is given its .grad without a copy, so that both would have one memory, and each would be added to twice."""
    if residual is not None and residual.is_leaf and residual.requires_grad and torch.is_grad_enabled():
        return residual * 1
    return residual


class Differentiable:
    """An op with gradients: called without the dispatcher in eager mode, by operators where somebody follows those.

    A package derives from it and makes one object: its name, its inputs, and what of the methods is not as here. backward
    gives the gradients of the first tensors that were kept of a call; input i gets number gradient_of[i] of them.
    """

    name = ""  # of the operator, "layer_norm"
    op = "forward"  # of the package
    inputs = ""  # "x weight? residual?": the op's tensors by name, "?" where one may be None
    gradient_of: tuple[Optional[int], ...] = ()  # for each input; None: it has no gradient
    apart: Mapping[int, Sequence[int]] = {}  # by output: the gradients of what it does not depend on

    def forward(self, inputs: Tensors, key: str) -> list[Tensor]:
        """The outputs, in memory of their own. Here: of an op with one."""
        first = inputs[0]
        assert first is not None  # it says where the call computes
        return [source_of(key).call(first.device, self.op, dict(zip(self._names, inputs)))]

    def like(self, inputs: Tensors) -> list[Tensor]:
        """Tensors as forward's outputs are, with anything in them. Here: one like the first input."""
        return [torch.empty_like(inputs[0], memory_format=torch.contiguous_format)]

    def keep(self, inputs: Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        raise NotImplementedError

    def backward(self, grads: Tensors, kept: Tensors, wanted: Sequence[bool], key: str) -> list[Optional[Tensor]]:
        """For each of `wanted` a gradient, or None; one of `grads` that is None is zero. Here: by PyTorch's operators."""
        return [None if t is None else t.detach() for t in self.gradients_by_pytorch(grads, kept, wanted, key)]

    def by_pytorch(self, kept: Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        """The outputs, of what was kept and by PyTorch's operators."""
        raise NotImplementedError

    def backward_like(self, grads: Tensors, kept: Tensors, wanted: Sequence[bool]) -> Tensors:
        """Tensors as backward's gradients are, with anything in them."""
        return [None if t is None or not want else torch.empty_like(t) for t, want in zip(kept, wanted)]

    def gradients_by_pytorch(self, grads: Tensors, kept: Tensors, wanted: Sequence[bool],
                             key: str) -> list[Optional[Tensor]]:
        """What backward gives, by PyTorch's operators, and differentiable again where gradients are recorded."""
        attributes = source_of(key).attributes
        again = torch.is_grad_enabled()
        device = next(t for t in (*kept, *grads) if t is not None).device.type
        # The caller's autocast was no part of forward, or of what a kernel's backward computes.
        with torch.enable_grad(), torch.autocast(device, enabled=False):
            own = [None if t is None else t.view_as(t) if again else t.detach() for t in kept]
            asked = [t for t, want in zip(own, wanted) if want and t is not None]
            for tensor in asked:
                if not tensor.requires_grad:
                    tensor.requires_grad_()
            pairs = [(y, grad) for y, grad in zip(self.by_pytorch(own, attributes), grads)
                     if grad is not None and y.requires_grad]
            found = torch.autograd.grad([y for y, _ in pairs], asked, [grad for _, grad in pairs], create_graph=again,
                                        allow_unused=True) if pairs else [None] * len(asked)
        # Zeros where these inputs gave nothing: an operator has a gradient of each that it was asked for.
        gradients = iter([torch.zeros_like(t) if g is None else g for t, g in zip(asked, found)])
        return [next(gradients) if want and t is not None else None for t, want in zip(own, wanted)]

    def __init__(self) -> None:
        self._names = [word.rstrip("?") for word in self.inputs.split()]
        if not HAS_OPERATORS:
            return
        names = [f"Tensor{'?' * word.endswith('?')} {word.rstrip('?')}" for word in self.inputs.split()]
        forward = torch.library.custom_op(operator_name(self.name), lambda *call: self.forward(call[:-1], call[-1]),
                                          mutates_args=(), schema=f"({', '.join(names)}, str key) -> Tensor[]")
        backward = torch.library.custom_op(
            operator_name(self.name + "_backward"), self._whole_backward, mutates_args=(),
            schema="(Tensor?[] grads, Tensor?[] kept, bool[] wanted, str key) -> Tensor[]")
        forward.register_fake(lambda *call: self.like(call[:-1]))
        backward.register_fake(lambda grads, kept, wanted, key: [
            _nothing(grads, kept) if t is None else t for t in self.backward_like(grads, kept, wanted)])
        forward.register_autograd(self._differentiate, setup_context=self._set_up)
        self._forward, self._backward = forward._opoverload, backward._opoverload
        _READERS.add(f"GeneratedBackwardFor_{self._forward.name().replace('::', '_')}_defaultBackward")

    def __call__(self, inputs: Tensors, key: str) -> Sequence[Tensor]:
        recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        if goes_by_operators():
            outputs = self._forward(*inputs, key)
        elif recorded:
            outputs = _Eager.apply(self, key, *inputs)
        else:
            return self.forward(inputs, key)
        if not recorded or not self.apart:
            return outputs
        needed = [of for t, of in zip(inputs, self.gradient_of) if of is not None and t is not None and t.requires_grad]
        return [t if any(of not in self.apart.get(place, ()) for of in needed) else t.detach()
                for place, t in enumerate(outputs)]

    def _set_up(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        ctx.key = inputs[-1]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*self.keep(inputs[:-1], output))

    def _differentiate(self, ctx: Any, grads: Tensors) -> tuple[Optional[Tensor], ...]:
        return (*self.gradients(ctx, grads, ctx.needs_input_grad, self._backward), None)

    def _whole_backward(self, grads: Tensors, kept: Tensors, wanted: Sequence[bool], key: str) -> list[Tensor]:
        """An operator gives tensors: an empty one where there is no gradient."""
        with _recorded():
            found = self.backward(grads, kept, wanted, key)
        return [_nothing(grads, kept) if t is None else t for t in found]

    def gradients(self, ctx: Any, grads: Tensors, needs: Sequence[bool], compute: Any) -> list[Optional[Tensor]]:
        """Of the inputs that need one, by `compute`, which is backward or its operator."""
        kept = ctx.saved_tensors
        places = range(1 + max(of for of in self.gradient_of if of is not None))
        given_of = [output for output, grad in enumerate(grads) if grad is not None]
        wanted = [any(place not in self.apart.get(output, ()) for output in given_of)
                  and any(need and of == place for need, of in zip(needs, self.gradient_of)) for place in places]
        if not any(wanted):
            return [None for _ in needs]
        if torch.is_grad_enabled() or not _is_traced(grads) and (
                between.observer() or any(g is not None and between.in_gradient(g) for g in grads)):
            found = self.gradients_by_pytorch(grads, kept, wanted, ctx.key)
        else:
            found = compute(list(grads), list(kept), wanted, ctx.key)
        given = [found[of] if need and of is not None and wanted[of] else None
                 for need, of in zip(needs, self.gradient_of)]
        # One tensor for two inputs may become the .grad of two leaves, behind views without a copy: each would be added
        # to twice. The last input is the second, and what another of these ops reads there becomes no .grad.
        if given[-1] is not None and any(g is given[-1] for g in given[:-1]) and not _is_read_by_an_op(ctx):
            given[-1] = given[-1].clone()
        return given


def _is_read_by_an_op(ctx: Any) -> bool:
    """Whether the gradient of the last input goes to an op of these, behind views alone."""
    node = ctx.next_functions[-1][0]
    while node is not None and node.name() in ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"):
        node = node.next_functions[0][0]
    return node is not None and node.name() in _READERS


_READERS = {"_EagerBackward"}  # and the nodes of the operators, by the names that PyTorch gives them


def _is_traced(grads: Tensors) -> bool:
    """Whether a compiler follows the backward, by modes and tensors of its own: it knows the operator."""
    return HAS_OPERATORS and (between.compiles() or any(
        type(grad).__module__.startswith("torch._subclasses.") for grad in grads))


def _recorded() -> Any:
    """Autograd records meanwhile what asks for it, below an operator as well, where PyTorch passes over autograd's keys.
    torch.func.vjp, which would be public, throws where there are hooks of saved tensors."""
    keys = torch._C.DispatchKey
    exclude = torch._C._dispatch_tls_local_exclude_set().remove(keys.AutogradFunctionality).remove(keys.ADInplaceOrView)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude)


def _nothing(grads: Tensors, kept: Tensors) -> Tensor:
    return next(t for t in (*kept, *grads) if t is not None).new_empty(0)


class _Eager(torch.autograd.Function):
    """Of any Differentiable, without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, op: Differentiable, key: str, *inputs: Optional[Tensor]) -> tuple[Tensor, ...]:
        outputs = op.forward(inputs, key)
        ctx.op, ctx.key = op, key
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*op.keep(inputs, outputs))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> tuple[Optional[Tensor], ...]:
        return (None, None, *ctx.op.gradients(ctx, grads, ctx.needs_input_grad[2:], ctx.op.backward))


_filling: Any = threading.RLock()


class Layer(nn.Module):
    """The frame of a package's module: which kernel its calls take, and whether PyTorch computes them. It is copied and
    pickled with its weights, and finds its kernel again. A package with buffers that no state dict has says what is in them
    in fill(); reset_parameters() fills its own, and sets is_filled: they may be on the meta device at first."""

    fixed: tuple[str, ...] = ()  # buffers that have one dtype, whatever the module is converted to
    is_filled = True  # False: the buffers that no state dict has had no memory when they should have been written

    def __init__(self, package: str, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__()
        check_options(type(self).__name__, options)
        self.package, self.version, self.attributes, self._options = package, version, attributes, options
        self._bind()

    def _bind(self) -> None:
        self._key = key_of(self.package, self.version, self.attributes, self._options)
        self._told: set[str] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._bind()

    def _apply(self, fn: Any, *recurse: Any, **named: Any) -> Any:
        """What to(), half() and to_empty() call."""
        before = {name: tensor for name, tensor in self._buffers.items() if tensor is not None}
        super()._apply(fn, *recurse, **named)
        own = {name: tensor for name, tensor in before.items() if name in self._non_persistent_buffers_set}
        for name, tensor in before.items():
            moved = self._buffers[name]
            # to_empty() gives memory as it lies, and nothing is loaded there.
            is_lost = name in own and moved is not tensor and not tensor.is_meta
            if is_lost or name in self.fixed and moved.dtype != tensor.dtype:
                self._buffers[name] = tensor.to(moved.device, tensor.dtype if name in self.fixed else moved.dtype)
        if any(tensor.is_meta or self._buffers[name].is_meta for name, tensor in own.items()):
            self.reset_parameters()
        return self

    def fill(self, buffers: Mapping[str, Any]) -> None:
        """Writes into them, by their names, what those that no state dict has hold."""
        raise NotImplementedError

    def filled(self, x: Tensor) -> Mapping[str, Any]:
        """For forward of a layer whose buffers no state dict has: its buffers for x. Made on the meta device, they have no
        memory where a state dict was assigned; what transformers' from_pretrained gives them holds what lay there."""
        if self.is_filled or x.is_meta:
            return self._buffers
        # Another thread waits, which would fill them, too; another call may have gradients.
        with contextlib.nullcontext() if between.compiles() else _filling, torch.inference_mode(False):
            if self.is_filled:
                return self._buffers
            made = {}
            for name in self._non_persistent_buffers_set:
                tensor = self._buffers[name]
                device = x.device if tensor.is_meta else tensor.device
                made[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
            self.fill(made)
            # What a transform of torch.func, a trace or a FakeTensorMode makes is of this call alone.
            if (between.differentiator() if between.compiles() else between.observer()) == "":
                self._buffers.update(made)
                self.is_filled = True
            return made

    @property
    def kernel(self) -> Kernel:
        """The kernel for the device of the parameters or buffers; for the CPU, where there are none."""
        return source_of(self._key).kernel(self._device())

    def _device(self) -> torch.device:
        own = next(itertools.chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if own is None else own.device

    def find_kernel(self) -> None:
        """For __init__, after the parameters: what the first call would throw is thrown now, and it fetches nothing."""
        if self._device().type in ("cpu", "cuda"):
            self.kernel.forward.check_attributes(self.attributes)

    def __dir__(self) -> list[str]:
        """Without kernel: torch.jit.trace reads what is named here, and no trace has to fetch one, or to throw."""
        return [name for name in super().__dir__() if name != "kernel"]

    def is_pytorchs(self, *tensors: Optional[Tensor]) -> bool:
        """Whether PyTorch computes a call of these; tells why, unless it was disabled."""
        if not enabled():
            return True
        why = why_pytorch(*tensors)
        if why != "":
            tell(self._told, f"a {type(self).__name__}", why)
        return why != ""

    def extra_repr(self) -> str:
        return ", ".join([*(f"{name}={value!r}" for name, value in self.attributes.items()),
                          f"{self.package}@{self.version}"])


# ---- what replace() tells, and what it leaves on a module ----


def is_replaced(module: Any) -> bool:
    """Whether a package's replace() has swapped the module: it has set `_kiln`, and a method kiln_restore()."""
    return getattr(module, "_kiln", None) is not None and hasattr(module, "kiln_restore")


def set_mode(module: nn.Module, training: bool) -> None:
    """By the flags: a train() of its own may do more than that."""
    for part in module.modules():
        part.training = training


@contextlib.contextmanager
def as_it_is(module: nn.Module, device: torch.device) -> Iterator[None]:
    """While a replace() tries a forward: neither the modes nor the random numbers of the program change."""
    modes = [(part, part.training) for part in module.modules()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            for part, training in modes:
                part.training = training


def agree(found: Tensor, expected: Tensor, close: float, factor: float) -> bool:
    """Whether each row of both is the same but for roundings: `close` as relative L2. Roundings have no direction:
    `factor` is how far the one may be from a multiple of the other, in the mean of the rows. A row beyond the dtype's
    range is so in both; of one at least that is not, something must be left to compare."""
    found, expected = found.double(), expected.double()
    norms = expected.norm(dim=1)
    beyond = ~torch.isfinite(norms)
    same = torch.where(beyond, ~torch.isfinite(found).all(dim=1), (found - expected).norm(dim=1) <= close * norms)
    some = ~beyond & (norms > 0)
    if not same.all() or not some.any():
        return False
    ratios = (found * expected).sum(1)[some] / norms[some].square()
    return bool((ratios.mean() - 1).abs() <= factor)


class Replaced(nn.Module):
    """The first base of the classes that swapped modules have; the second is the module's own class. A package derives
    from it, with a forward and a `_kiln` whose `what` says the kernel."""

    _kiln: Any = None  # None: restored, under a class that others made of this one

    @staticmethod
    def members_of(own: type) -> dict[str, Any]:
        """What the class has beside its bases."""
        return {}

    def extra_repr(self) -> str:
        words = [super().extra_repr(), "" if self._kiln is None else self._kiln.what]
        return ", ".join(word for word in words if word)

    def __prepare_scriptable__(self) -> nn.Module:
        """torch.jit.script compiles the original's forward."""
        plain = copy.copy(self)
        plain.__dict__ = dict(vars(self))
        if plain._kiln is not None:
            plain.kiln_restore()
        return plain

    def kiln_restore(self) -> None:
        """Its own forward again, with all that was put on it since. A class that others made of this one stays."""
        del self._kiln
        own = vars(type(self)).get(_MADE_OF)
        if own is not None:
            self.__class__ = own

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Classes that are made here have no name to be found by: the original's is pickled."""
        made = type(self)
        own = vars(made).get(_MADE_OF)
        function, arguments, *rest = reduced = super().__reduce_ex__(protocol)
        if own is None:
            return reduced
        return (_remake, (made.__bases__[0], function, tuple(own if a is made else a for a in arguments)), *rest)


_MADE_OF = "_kiln_made_of"  # in the classes that are made here
_making = threading.RLock()


def replaced_class(base: type[Replaced], own: type) -> type:
    """The class that a module of the class `own` has while it is swapped; `base` derives from Replaced, and its
    members_of(own) are what else the class has. `own` knows it, as every class knows those below it, and keeps none
    that nobody has."""
    with _making:
        for made in type.__subclasses__(own):
            if vars(made).get(_MADE_OF) is own and made.__bases__[0] is base:
                return made
        name = "Kiln" + own.__name__
        return type(name, (base, own), {"__module__": own.__module__, "__qualname__": name, "__doc__": own.__doc__,
                                        _MADE_OF: own, **base.members_of(own)})


def _remake(base: type[Replaced], function: Any, arguments: tuple[Any, ...]) -> nn.Module:
    module = function(*arguments)
    module.__class__ = replaced_class(base, type(module))
    return module


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
