# SPDX-License-Identifier: Apache-2.0
"""GatedMlp: the PyTorch module that the packages of the family derive theirs from, and how it calls them.

Each package registers what its gate computes (register), so that PyTorch can compute the layer where a kernel would be
passed over, and replace() can tell its MLPs. The stage after kiln.layer; gated_mlp_fit and gated_mlp_replace come after.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kiln import InvalidCall, UsageError, between, layer, packages
from kiln.operators import Operator


# ---- the packages of the family ----


class Activation(NamedTuple):
    """One gate of a package: how replace() tells it from others."""

    attributes: dict[str, Any]  # of the package's ops
    function: Callable[[Tensor], Tensor]  # of the gate's product
    operator: tuple[str, dict[str, Any]]  # the same as PyTorch's operator, with its words


class Member(NamedTuple):
    package: str
    version: int
    combine: Callable[[dict[str, Any], Tensor, Tensor], Tensor]  # a(gate) * f(up), by PyTorch's operators
    gates: str  # "a GELU", for people
    activations: tuple[Activation, ...]


_members: dict[tuple[str, int], Member] = {}


def register(member: Member) -> None:
    _members[member.package, member.version] = member


def members() -> list[Member]:
    return list(_members.values())


def member_of(package: str, version: int) -> Member:
    """Loads the package's module where this process has it not yet: what was pickled may come before it."""
    if (package, version) not in _members:
        packages.load(package, version)
    return _members[package, version]


# ---- forward and backward, as the package has them ----


_WEIGHTS = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
_INPUTS = ("x", *_WEIGHTS, "residual")


def _forward(*call: Any) -> Tensor:
    """Of the inputs in their order, and the key."""
    return layer.source_of(call[-1]).call(call[0].device, "forward", dict(zip(_INPUTS, call)))


def _training_forward(*call: Any) -> tuple[Tensor, Tensor, Tensor]:
    """y, and what backward reads of the first two products."""
    return tuple(layer.source_of(call[-1]).call(call[0].device, "training_forward", dict(zip(_INPUTS, call))))


_GRADIENTS = ("grad_x", *(f"grad_{name}" for name in _WEIGHTS))
_MAINS = tuple(f"main_grad_{name}" for name in _WEIGHTS)


def _backward(grad_y: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
              up_bias: Optional[Tensor], gate_out: Tensor, up_out: Tensor, wanted: Sequence[bool],
              key: str, mains: Sequence[Optional[Tensor]] = ()) -> list[Tensor]:
    """The gradients of x, gate and up in one [2H,D], down and the three biases; of no elements where not wanted.
    In one buffer, the gradients of gate and up are one product. mains: those of weights that are added to instead,
    from gate on."""
    gradients = _gradient_buffers(x, gate, wanted)
    grad_x, both, grad_down, *biases = gradients
    halves = both.chunk(2)
    if any(wanted) or any(main is not None for main in mains):
        tensors = {"grad_y": grad_y, "x": x, "gate": gate, "up": up, "down": down, "gate_bias": gate_bias,
                   "up_bias": up_bias, "gate_out": gate_out, "up_out": up_out}
        for name, gradient, is_wanted in zip(_GRADIENTS, (grad_x, halves[0], halves[-1], grad_down, *biases), wanted):
            if is_wanted:
                tensors[name] = gradient
        tensors.update(zip(_MAINS, mains))
        layer.source_of(key).call(x.device, "backward", tensors)
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
    def forward(ctx: Any, *call: Any) -> Tensor:
        *inputs, key, parameters = call
        y, gate_out, up_out = _training_forward_op.eager(*inputs, key)
        ctx.save_for_backward(*inputs[:6], gate_out, up_out)
        ctx.key, ctx.parameters = key, parameters
        return y

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Optional[Tensor], ...]:
        needed = list(ctx.needs_input_grad)
        if torch.is_grad_enabled() or between.in_gradient(grad_y) or between.observer():
            return (*_gradients_by_pytorch(grad_y, ctx.saved_tensors, needed, ctx.key, ctx.parameters), None)
        mains = [getattr(parameter, "main_grad", None) if needed[i] else None
                 for i, parameter in enumerate(ctx.parameters, 1)]
        in_main = any(main is not None for main in mains)
        if layer.goes_by_operators() and not in_main:
            return (*_differentiate(ctx, grad_y), None)
        for i, main in enumerate(mains, 1):
            needed[i] = needed[i] and main is None
        call = (grad_y.contiguous(), *ctx.saved_tensors, needed[:7], ctx.key)
        gradients = _backward(*call, mains) if in_main else _backward_op.eager(*call)
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
    source = layer.source_of(key)
    member = member_of(source.package, source.version)
    h = member.combine(source.attributes, F.linear(x, gate, gate_bias), F.linear(x, up, up_bias))
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

_TENSORS = ("Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, Tensor? up_bias, Tensor? down_bias, "
            "Tensor? residual, str key")
_forward_op = Operator("gated_mlp", f"({_TENSORS}) -> Tensor", _forward, op="forward")
_training_forward_op = Operator("gated_mlp_training", f"({_TENSORS}) -> (Tensor, Tensor, Tensor)", _training_forward,
                                op="training_forward")
_backward_op = Operator(
    "gated_mlp_backward", "(Tensor grad_y, Tensor x, Tensor gate, Tensor up, Tensor down, Tensor? gate_bias, "
    "Tensor? up_bias, Tensor gate_out, Tensor up_out, bool[] wanted, str key) -> Tensor[]", _backward, op="backward",
    results=[_GRADIENTS[:1], _GRADIENTS[1:3], *((name,) for name in _GRADIENTS[3:])])


def _like_training_forward(x: Tensor, gate: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    kept = (x.shape[0], gate.shape[0])
    return torch.empty_like(x, memory_format=torch.contiguous_format), x.new_empty(kept), x.new_empty(kept)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.key = inputs[-1]
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*inputs[:6], *output[1:])  # backward reads no more of them


def _differentiate(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Optional[Tensor], ...]:
    needed = ctx.needs_input_grad
    if torch.is_grad_enabled():
        return tuple(_gradients_by_pytorch(grad_y, ctx.saved_tensors, needed, ctx.key))
    gradients = _backward_op(grad_y.contiguous(), *ctx.saved_tensors, list(needed[:7]), ctx.key)
    return tuple(_split(gradients, grad_y, needed))


_forward_op.register_fake(lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format))
_training_forward_op.register_fake(_like_training_forward)
_backward_op.register_fake(lambda _, x, gate, *rest: _gradient_buffers(x, gate, rest[-2]))
_training_forward_op.register_autograd(_differentiate, setup_context=_keep)


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, gate_bias: Optional[Tensor],
              up_bias: Optional[Tensor], down_bias: Optional[Tensor], residual: Optional[Tensor],
              key: str, parameters: Sequence[Optional[nn.Parameter]] = ()) -> Tensor:
    """What the layers below call; x and residual: [..., D]. parameters: whose main_grad is added to, from gate on."""
    dtype = layer.autocast_dtype(x.device.type)
    shape = x.shape
    if residual is not None:
        # The op sees rows: that the leading dimensions agree is seen here alone.
        if (residual.shape != shape or residual.device != x.device
                or (dtype is None and residual.dtype != x.dtype)):
            raise InvalidCall(f"gated mlp: residual is {layer.words_of(residual)}; expected one like x, {layer.words_of(x)}")
        if dtype is not None and residual.dtype != dtype:
            # Under torch.autocast a stream may be wider than what nn.Linear gives, and stays so: PyTorch adds.
            return residual + gated_mlp(x, gate, up, down, gate_bias, up_bias, down_bias, None, key, parameters)
    tensors = [x, gate, up, down, gate_bias, up_bias, down_bias, residual]
    if dtype is not None:
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    tensors = [None if t is None else t.contiguous() for t in tensors]
    if len(shape) != 2:
        tensors[0] = tensors[0].reshape(-1, shape[-1])
        residual = layer.with_a_gradient_of_its_own(tensors[7])
        tensors[7] = None if residual is None else residual.reshape(-1, shape[-1])
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if differentiable and parameters:
        # torch.compile would have to follow what backward writes.
        apply = torch.compiler.disable(_GatedMlp.apply) if between.compiles() else _GatedMlp.apply
        y = apply(*tensors, key, parameters)
    elif layer.goes_by_operators():
        y = _training_forward_op(*tensors, key)[0] if differentiable else _forward_op(*tensors, key)
    elif differentiable:
        y = _GatedMlp.apply(*tensors, key, ())
    else:
        y = _forward_op.eager(*tensors, key)
    return y if len(shape) == 2 else y.reshape(shape)


def plain_gated_mlp(x: Tensor, tensors: Sequence[Optional[Tensor]], key: str) -> Tensor:
    """The same of weights and biases like x, where torch.autocast casts nothing: without gradients by the shortest way."""
    if between.profiled() or torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *tensors)):
        return gated_mlp(x, *tensors, None, key)
    shape, rows = x.shape, x.contiguous()
    if len(shape) != 2:
        rows = rows.view(-1, shape[-1])
    y = _forward_op.eager(rows, *[t if t is None else t.contiguous() for t in tensors], None, key)
    return y if len(shape) == 2 else y.view(shape)


# ---- the layers ----


class GatedMlp(layer.Layer):
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
        super().__init__(self.package, version, attributes, options)
        make = {"device": device, "dtype": dtype}
        self.gate = nn.Parameter(torch.empty(hidden_features, in_features, **make))
        self.up = nn.Parameter(torch.empty(hidden_features, in_features, **make))
        self.down = nn.Parameter(torch.empty(in_features, hidden_features, **make))
        for name, size in (("gate_bias", hidden_features), ("up_bias", hidden_features), ("down_bias", in_features)):
            setattr(self, name, nn.Parameter(torch.empty(size, **make)) if bias else None)
        self.reset_parameters()
        self.find_kernel()

    def reset_parameters(self) -> None:
        """As nn.Linear does: uniform, within 1 / sqrt(fan in)."""
        for weight, bias in ((self.gate, self.gate_bias), (self.up, self.up_bias), (self.down, self.down_bias)):
            bound = weight.shape[1] ** -0.5 if weight.shape[1] else 0.0
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    @classmethod
    def from_linears(cls, gate: nn.Linear, up: nn.Linear, down: nn.Linear, **words: Any) -> Any:
        """A layer that shares the parameters of three nn.Linear. `words`: the class's own, but for sizes, bias, device
        and dtype, which are those of the linears."""
        for name, linear in (("gate", gate), ("up", up), ("down", down)):
            why = between.on_linear(linear)
            if why != "":
                raise UsageError(f"from_linears: {name} {why}; a layer would have its weights alone")
        self = cls(gate.in_features, gate.out_features, device="meta", **words)
        for name, linear in (("gate", gate), ("up", up), ("down", down)):
            setattr(self, name, linear.weight)
            setattr(self, f"{name}_bias", linear.bias)
        self.find_kernel()
        return self

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Tensor:
        parameters = (self.gate, self.up, self.down, self.gate_bias, self.up_bias, self.down_bias)
        if self.is_pytorchs(x, residual, *parameters):
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
        return f"{self.gate.shape[1]}, {self.gate.shape[0]}, {super().extra_repr()}"


def promises(overflow: str, batch_invariant: bool) -> dict[str, str]:
    """The attributes that all packages of the family have."""
    return {"overflow": overflow, "batch_invariant": layer.yes_or_no(batch_invariant, "batch_invariant")}
