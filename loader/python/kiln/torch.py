# SPDX-License-Identifier: Apache-2.0
"""The gated MLPs for PyTorch: GegluMlp and SwigluMlp, nn.Modules over the packages geglu-mlp and swiglu-mlp.

    mlp = kiln.torch.GegluMlp(768, 3072, device="cuda", dtype=torch.bfloat16)
    y = mlp(x)                            # x: [..., 768]; gradients come from the package's own backward
    y = mlp(norm(x), residual=x)          # x + mlp(norm(x)), added in fp32 before y is rounded
    report = kiln.torch.replace(model)    # swaps the gated MLPs of a model, and says what it swapped
    with kiln.torch.disabled(): ...       # the same layers computed by PyTorch, to compare
    mlp.accumulate_into_main_grad = True  # adds weights' gradients to weight.main_grad: see GatedMlp

Work is enqueued on PyTorch's current stream, and memory comes from PyTorch's allocator: a layer can be captured in a
CUDA graph once it has been called outside of one, or was made on its GPU. torch.compile (PyTorch 2.4 and later) sees
custom operators, kiln::gated_mlp and its like, and breaks no graph. PyTorch 1.13 and later without it.

bfloat16 and float16, on the CPU also float32; under torch.autocast what it says. Where somebody follows PyTorch's own
operators (torch.jit.trace, a TorchDispatchMode, torch.func, forward-mode gradients, a second derivative) PyTorch
computes the layer, and a FallbackWarning says so once. Threads: as nn.Linear.
"""

from __future__ import annotations

import contextlib
import threading
import urllib.parse
import warnings
from typing import Any, Iterator, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _between
from ._errors import InvalidCall
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


class _Source:
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


# By the text that stands for them in a graph: "geglu-mlp@1?approximate=tanh", and a number for other options.
_sources: dict[str, _Source] = {}


def _key_of(package: str, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> str:
    key = f"{package}@{version}?{urllib.parse.urlencode(sorted(attributes.items()))}"
    with _lock:
        if options:
            for known, source in _sources.items():
                if known.startswith(key + "#") and source.options == options:
                    return known
            key += f"#{len(_sources)}"
        if key not in _sources:
            _sources[key] = _Source(package, version, attributes, options)
    return key


def _source_of(key: str) -> _Source:
    source = _sources.get(key)
    if source is None:
        raise RuntimeError(f"kiln: the layer {key!r} was not made in this process. Make one like it first, so that "
                           "its registry and options are known")
    return source


# ---- forward and backward, as the package has them ----


def _forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
             up_bias: Optional[Tensor], down_bias: Optional[Tensor], residual: Optional[Tensor], key: str) -> Tensor:
    source = _source_of(key)
    values = [x, gate, up, down, gate_bias, up_bias, down_bias, residual, None]
    return source.kernel(x.device).forward.call(values, source.words)


def _training_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
                      up_bias: Optional[Tensor], down_bias: Optional[Tensor], residual: Optional[Tensor],
                      key: str) -> tuple[Tensor, Tensor, Tensor]:
    source = _source_of(key)
    values = [x, gate, up, down, gate_bias, up_bias, down_bias, residual, None, None, None]
    return tuple(source.kernel(x.device).training_forward.call(values, source.words))


_NO_MAINS: tuple[Optional[Tensor], ...] = (None,) * 6


def _backward(grad_y: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
              up_bias: Optional[Tensor], gate_out: Tensor, up_out: Tensor, wanted: Sequence[bool],
              key: str, mains: Sequence[Optional[Tensor]] = ()) -> list[Tensor]:
    """The gradients of x, gate and up in one [2H,D], down and the three biases; of no elements where not wanted.
    In one buffer, the gradients of gate and up are one product. mains: those of weights that are added to instead,
    from gate on."""
    source = _source_of(key)
    gradients = _gradient_buffers(x, gate, wanted)
    grad_x, both, grad_down, *biases = gradients
    halves = both.chunk(2)
    given = [grad_x, halves[0] if wanted[1] else None, halves[-1] if wanted[2] else None, grad_down, *biases]
    given = [g if wanted[i] else None for i, g in enumerate(given)]
    if any(wanted) or any(main is not None for main in mains):
        values = [grad_y, x, gate, up, down, gate_bias, up_bias, gate_out, up_out, *given, *(mains or _NO_MAINS)]
        source.kernel(x.device).backward.call(values, source.words)
    return gradients


def _gradient_buffers(x: Tensor, gate: Tensor, wanted: Sequence[bool]) -> list[Tensor]:
    hidden, width = gate.shape
    none = (0,)
    shapes = [x.shape if wanted[0] else none, (2 * hidden, width) if wanted[1] or wanted[2] else none,
              (width, hidden) if wanted[3] else none, (hidden,) if wanted[4] else none,
              (hidden,) if wanted[5] else none, (width,) if wanted[6] else none]
    return [x.new_empty(shape) for shape in shapes]


def _split(gradients: Sequence[Tensor], grad_y: Tensor, needed: Sequence[bool]) -> list[Optional[Tensor]]:
    """As the arguments of forward are, None where not needed. The residual's is grad_y, the key has none."""
    grad_x, both, grad_down, *biases = gradients
    gate, up = both.chunk(2) if needed[1] or needed[2] else (None, None)
    return [g if needed[i] else None for i, g in enumerate([grad_x, gate, up, grad_down, *biases, grad_y, None])]


class _GatedMlp(torch.autograd.Function):
    """How PyTorch calls the package in eager mode: without the dispatcher, whose way through Python costs more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
                up_bias: Optional[Tensor], down_bias: Optional[Tensor], residual: Optional[Tensor],
                key: str, parameters: Sequence[Optional[nn.Parameter]]) -> Tensor:
        y, gate_out, up_out = _training_forward(x, gate, up, down, gate_bias, up_bias, down_bias, residual, key)
        ctx.save_for_backward(x, gate, up, down, gate_bias, up_bias, gate_out, up_out)
        ctx.key, ctx.parameters = key, parameters
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Optional[Tensor], ...]:
        needed = list(ctx.needs_input_grad)
        if torch.is_grad_enabled() or _between.in_gradient(grad_y) or _between.observer():
            return (*_gradients_by_pytorch(grad_y, ctx.saved_tensors, needed, ctx.key, ctx.parameters), None)
        mains = [getattr(parameter, "main_grad", None) if needed[i] else None
                 for i, parameter in enumerate(ctx.parameters, 1)]
        if _goes_by_operators() and not any(main is not None for main in mains):
            return (*_differentiate(ctx, grad_y), None)
        for i, main in enumerate(mains, 1):
            needed[i] = needed[i] and main is None
        gradients = _backward(grad_y.contiguous(), *ctx.saved_tensors, needed[:7], ctx.key, mains)
        results = _split(gradients, grad_y, needed)
        for i, (parameter, main) in enumerate(zip(ctx.parameters, mains), 1):
            if main is not None:
                results[i] = _tell_added(parameter, grad_y)
        return (*results, None)


def _gradients_by_pytorch(grad_y: Tensor, saved: Sequence[Any], needed: Sequence[bool], key: str,
                          parameters: Sequence[Optional[nn.Parameter]] = ()) -> list[Optional[Tensor]]:
    """What _split gives, by operators that others can follow and autograd can differentiate again."""
    again = torch.is_grad_enabled()
    wanted = [i for i in range(6) if needed[i]]
    results: list[Optional[Tensor]] = [None] * 9
    if wanted:
        with torch.enable_grad(), torch.autocast(grad_y.device.type, enabled=False):
            # Views: a tensor that is given twice has two gradients.
            inputs = [t if t is None else t.view_as(t) if again else t.detach().requires_grad_(needed[i])
                      for i, t in enumerate(saved[:6])]
            y = by_pytorch(key, *inputs, None)
            found = torch.autograd.grad(y, [inputs[i] for i in wanted], grad_y, create_graph=again)
        for i, gradient in zip(wanted, found):
            results[i] = gradient
    if needed[6]:
        results[6] = grad_y.sum(0)
    results[7] = grad_y if needed[7] else None
    for i, parameter in enumerate(parameters, 1):
        if results[i] is not None and getattr(parameter, "main_grad", None) is not None:
            parameter.main_grad.add_(results[i].detach())
            results[i] = _tell_added(parameter, grad_y)
    return results


def by_pytorch(key: str, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
               up_bias: Optional[Tensor], down_bias: Optional[Tensor]) -> Tensor:
    """What the package computes, by PyTorch's operators."""
    source = _source_of(key)
    h = combine(source.package, source.attributes, F.linear(x, gate, gate_bias), F.linear(x, up, up_bias))
    if source.attributes["overflow"] == "saturate" and h.dtype == torch.float16:
        largest = torch.finfo(torch.float16).max
        h = h.clamp(-largest, largest)
    return F.linear(h, down, down_bias)


class _IntoMainGrad(torch.autograd.Function):
    """The parameter itself; its gradient is added to main_grad, as _GatedMlp's backward does."""

    @staticmethod
    def forward(ctx: Any, parameter: nn.Parameter) -> Tensor:
        ctx.parameter = parameter
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Optional[Tensor]:
        ctx.parameter.main_grad.add_(gradient)
        return _tell_added(ctx.parameter, gradient)


def _tell_added(parameter: nn.Parameter, grad_y: Tensor) -> Optional[Tensor]:
    """Megatron-LM's words for a gradient that is in main_grad already: where a parameter has the flag, it is set, and
    a gradient that nobody reads runs the parameter's hooks."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    make = grad_y.new_zeros if getattr(parameter, "zero_out_wgrad", False) else grad_y.new_empty
    return make(parameter.shape)


# ---- as operators, for torch.compile ----

HAS_OPERATORS: bool = hasattr(torch.library, "custom_op")  # PyTorch 2.4

if HAS_OPERATORS:
    _INPUTS = ("Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, Tensor? up_bias, "
               "Tensor? down_bias, Tensor? residual")
    _forward_op = torch.library.custom_op(
        "kiln::gated_mlp", _forward, mutates_args=(), schema=f"({_INPUTS}, str key) -> Tensor")
    _training_forward_op = torch.library.custom_op(
        "kiln::gated_mlp_training", _training_forward, mutates_args=(),
        schema=f"({_INPUTS}, str key) -> (Tensor, Tensor, Tensor)")
    _backward_op = torch.library.custom_op(
        "kiln::gated_mlp_backward", _backward, mutates_args=(),
        schema="(Tensor grad_y, Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, Tensor? up_bias, "
               "Tensor gate_out, Tensor up_out, bool[] wanted, str key) -> Tensor[]")

    @_forward_op.register_fake
    def _(x: Tensor, *_: Any) -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    @_training_forward_op.register_fake
    def _(x: Tensor, gate: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        kept = (x.shape[0], gate.shape[0])
        return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(kept), x.new_empty(kept)

    @_backward_op.register_fake
    def _(grad_y: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
          up_bias: Optional[Tensor], gate_out: Tensor, up_out: Tensor, wanted: Sequence[bool],
          key: str) -> list[Tensor]:
        return _gradient_buffers(x, gate, wanted)

    def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, gate, up, down, gate_bias, up_bias, _, _, ctx.key = inputs  # backward reads no more of them
        _, gate_out, up_out = output
        ctx.mark_non_differentiable(gate_out, up_out)
        ctx.save_for_backward(x, gate, up, down, gate_bias, up_bias, gate_out, up_out)

    def _differentiate(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Optional[Tensor], ...]:
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return tuple(_gradients_by_pytorch(grad_y, ctx.saved_tensors, needed, ctx.key))
        gradients = _backward_op(grad_y.contiguous(), *ctx.saved_tensors, list(needed[:7]), ctx.key)
        return tuple(_split(gradients, grad_y, needed))

    _training_forward_op.register_autograd(_differentiate, setup_context=_keep)


def _goes_by_operators() -> bool:
    """Whether somebody wants to see the layers' operators: a compiler that follows them, a profiler that lists them."""
    return HAS_OPERATORS and (torch.compiler.is_compiling() or _between.profiled())


def _autocast_dtype(device: str) -> Optional[torch.dtype]:
    """What torch.autocast would have nn.Linear compute in, or None."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


def why_pytorch(*tensors: Optional[Tensor]) -> str:
    """Why a call of these tensors is PyTorch's; "": Kiln computes it. The first is the input."""
    if torch.compiler.is_compiling() if HAS_OPERATORS else False:
        return "torch.export keeps PyTorch's operators" if _is_exporting() else _between.differentiator()
    for tensor in tensors:
        if tensor is not None:
            why = _between.in_tensor(tensor)
            if why != "":
                return why
    return _between.observer()


def _is_exporting() -> bool:
    """torch.compiler.is_exporting(), which PyTorch's compiler takes to be true whenever it compiles, up to 2.11."""
    return getattr(torch.compiler, "_is_exporting_flag", False)


def _words_of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)} on {tensor.device}"


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
              up_bias: Optional[Tensor], down_bias: Optional[Tensor], residual: Optional[Tensor],
              key: str, parameters: Sequence[Optional[nn.Parameter]] = ()) -> Tensor:
    """What the layers below call; x and residual: [..., D]. parameters: whose main_grad is added to, from gate on."""
    dtype = _autocast_dtype(x.device.type)
    shape = x.shape
    if residual is not None:
        # The op sees rows: that the leading dimensions agree is seen here alone.
        if (residual.shape != shape or residual.device != x.device
                or (dtype is None and residual.dtype != x.dtype)):
            raise InvalidCall(f"gated mlp: residual is {_words_of(residual)}; expected one like x, {_words_of(x)}")
        if dtype is not None and residual.dtype != dtype:
            # Under torch.autocast a stream may be wider than what nn.Linear gives, and stays so: PyTorch adds.
            return residual + gated_mlp(x, gate, up, down, gate_bias, up_bias, down_bias, None, key, parameters)
    tensors = [x, gate, up, down, gate_bias, up_bias, down_bias, residual]
    if dtype is not None:
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    tensors = [None if t is None else t.contiguous() for t in tensors]
    if len(shape) != 2:
        tensors[0] = tensors[0].reshape(-1, shape[-1])
        tensors[7] = None if residual is None else tensors[7].reshape(-1, shape[-1])
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if differentiable and parameters:
        # torch.compile would have to follow what backward writes.
        compiling = HAS_OPERATORS and torch.compiler.is_compiling()
        apply = torch.compiler.disable(_GatedMlp.apply) if compiling else _GatedMlp.apply
        y = apply(*tensors, key, parameters)
    elif _goes_by_operators():
        y = _training_forward_op(*tensors, key)[0] if differentiable else _forward_op(*tensors, key)
    elif differentiable:
        y = _GatedMlp.apply(*tensors, key, ())
    else:
        y = _forward(*tensors, key)
    return y if len(shape) == 2 else y.reshape(shape)


# ---- the layers ----


class GatedMlp(nn.Module):
    """y = (a(x gate^T + gate_bias) * f(x up^T + up_bias)) down^T + down_bias + residual over [..., in_features].

    gate, up: [hidden_features, in_features]; down: [in_features, hidden_features], as nn.Linear holds them. The
    kernel is found when the layer is made, and again for another device at its first call there: that may throw
    the classes of kiln.Error. `options` are those of kiln.get_kernel. overflow: in float16 a GPU keeps the product
    that `down` multiplies as float16; beyond 65504 it becomes infinity, or 65504 with "saturate". batch_invariant:
    a row's bits, in y and in x's gradient, do not depend on the number of rows or on the others. residual: as x in
    shape, dtype and device, or None; added in fp32 before y is rounded. Under torch.autocast it may be of another
    dtype, and PyTorch adds it then.

    accumulate_into_main_grad: backward adds the gradient of each parameter that has a float32 `main_grad` to it, and
    leaves `.grad` alone, as Megatron-LM and Transformer Engine do; where the parameter has the flag
    grad_added_to_main_grad, it is set. A parameter without main_grad gets its `.grad`. torch.compile breaks the graph
    at such a layer.
    """

    package: str
    accumulate_into_main_grad: bool = False

    def __init__(self, in_features: int, hidden_features: int, *, bias: bool = False, version: int = 1,
                 device: Any = None, dtype: Optional[torch.dtype] = None, attributes: dict[str, Any],
                 options: dict[str, Any]) -> None:
        super().__init__()
        make = {"device": device, "dtype": dtype}
        self.gate = nn.Parameter(torch.empty(hidden_features, in_features, **make))
        self.up = nn.Parameter(torch.empty(hidden_features, in_features, **make))
        self.down = nn.Parameter(torch.empty(in_features, hidden_features, **make))
        for name, size in (("gate_bias", hidden_features), ("up_bias", hidden_features), ("down_bias", in_features)):
            setattr(self, name, nn.Parameter(torch.empty(size, **make)) if bias else None)
        self.reset_parameters()
        self._bind(version, attributes, options)

    def _bind(self, version: int, attributes: dict[str, Any], options: dict[str, Any]) -> None:
        check_options(type(self).__name__, options)
        self.version, self.attributes, self._options = version, attributes, options
        self._key = _key_of(self.package, version, attributes, options)
        self._told: set[str] = set()
        if self.gate.device.type in ("cpu", "cuda"):
            self.kernel.forward.check_attributes(attributes)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In another process, too: the kernel is found at the first call."""
        super().__setstate__(state)
        self._key = _key_of(self.package, self.version, self.attributes, self._options)
        self._told = set()

    @property
    def kernel(self) -> Kernel:
        """That of the device which the weights are on."""
        return _source_of(self._key).kernel(self.gate.device)

    def reset_parameters(self) -> None:
        """As nn.Linear does: uniform, within 1 / sqrt(fan in)."""
        for weight, bias in ((self.gate, self.gate_bias), (self.up, self.up_bias), (self.down, self.down_bias)):
            bound = weight.shape[1] ** -0.5 if weight.shape[1] else 0.0
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    @classmethod
    def _from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, version: int, attributes: dict[str, Any],
                      options: dict[str, Any]) -> Any:
        """Shares the weights of three nn.Linear."""
        self = cls.__new__(cls)
        nn.Module.__init__(self)
        for name, linear in (("gate", gate), ("up", up), ("down", down)):
            setattr(self, name, linear.weight)
        for name, linear in (("gate_bias", gate), ("up_bias", up), ("down_bias", down)):
            self.register_parameter(name, linear.bias)
        self._bind(version, attributes, options)
        return self

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Tensor:
        parameters = (self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias)
        why = "" if _enabled else "Kiln is disabled"
        if why == "":
            why = why_pytorch(x, residual, *parameters)
            if why != "":
                tell(self._told, f"a {type(self).__name__}", why)
        if why != "":
            return self.reference(x, residual)
        return gated_mlp(x, *parameters, residual, self._key, parameters if self.accumulate_into_main_grad else ())

    def reference(self, x: Tensor, residual: Optional[Tensor] = None) -> Tensor:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        parameters = (self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias)
        if self.accumulate_into_main_grad:
            parameters = tuple(p if getattr(p, "main_grad", None) is None or not p.requires_grad
                               else _IntoMainGrad.apply(p) for p in parameters)
        y = by_pytorch(self._key, x, *parameters)
        return y if residual is None else residual + y

    def extra_repr(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.attributes.items())
        return f"{self.gate.shape[1]}, {self.gate.shape[0]}, {words}, {self.package}@{self.version}"


def _promises(overflow: str, batch_invariant: bool) -> dict[str, str]:
    """The attributes that both packages have."""
    return {"overflow": overflow, "batch_invariant": "yes" if batch_invariant else "no"}


class GegluMlp(GatedMlp):
    """(gelu(gate) * up) down^T, as Gemma has it. approximate: "tanh" or "none"."""

    package = "geglu-mlp"

    def __init__(self, in_features: int, hidden_features: int, *, bias: bool = False, approximate: str = "tanh",
                 overflow: str = "infinity", batch_invariant: bool = False, version: int = 1, device: Any = None,
                 dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        attributes = {"approximate": approximate, **_promises(overflow, batch_invariant)}
        super().__init__(in_features, hidden_features, bias=bias, version=version, device=device, dtype=dtype,
                         attributes=attributes, options=options)

    @classmethod
    def from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, *, approximate: str = "tanh",
                     overflow: str = "infinity", batch_invariant: bool = False, version: int = 1,
                     **options: Any) -> GegluMlp:
        """A layer that shares the parameters of three nn.Linear."""
        attributes = {"approximate": approximate, **_promises(overflow, batch_invariant)}
        return cls._from_linears(gate, up, down, version, attributes, options)


class SwigluMlp(GatedMlp):
    """(silu(gate) * up) down^T, as Llama has it. activation: "silu", "relu", "sigmoid" or "silu_clamped", which is
    gpt-oss's, with its limit."""

    package = "swiglu-mlp"

    def __init__(self, in_features: int, hidden_features: int, *, bias: bool = False, activation: str = "silu",
                 limit: float = 7.0, overflow: str = "infinity", batch_invariant: bool = False, version: int = 1,
                 device: Any = None, dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        attributes = {"activation": activation, "limit": limit, **_promises(overflow, batch_invariant)}
        super().__init__(in_features, hidden_features, bias=bias, version=version, device=device, dtype=dtype,
                         attributes=attributes, options=options)

    @classmethod
    def from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, *, activation: str = "silu",
                     limit: float = 7.0, overflow: str = "infinity", batch_invariant: bool = False,
                     version: int = 1, **options: Any) -> SwigluMlp:
        """A layer that shares the parameters of three nn.Linear."""
        attributes = {"activation": activation, "limit": limit, **_promises(overflow, batch_invariant)}
        return cls._from_linears(gate, up, down, version, attributes, options)


def check_options(what: str, options: dict[str, Any]) -> None:
    """That these are options of get_kernel: one that is misspelt would else be told by another function's name."""
    known = [name for name in get_kernel.__kwdefaults__ if name != "device"]
    for name in options:
        if name not in known:
            raise TypeError(f"{what} has no option {name!r}; of get_kernel's it takes {', '.join(known)}")


def combine(package: str, attributes: dict[str, Any], gate: Tensor, up: Tensor) -> Tensor:
    """a(gate) * f(up) of a package, by PyTorch's operators."""
    if package == GegluMlp.package:
        return F.gelu(gate, approximate=attributes["approximate"]) * up
    activation, limit = attributes["activation"], attributes["limit"]
    if activation == "silu_clamped":
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)
    return {"silu": F.silu, "relu": F.relu, "sigmoid": torch.sigmoid}[activation](gate) * up


from ._replace import Report, Swap, replace, restore  # noqa: E402  it builds on the layers above

__all__ = ["GatedMlp", "GegluMlp", "Report", "Swap", "SwigluMlp", "FallbackWarning", "disabled", "replace", "restore"]
