# SPDX-License-Identifier: Apache-2.0
"""RmsNorm for PyTorch: kiln.torch.RmsNorm.

    norm = kiln.torch.RmsNorm(768, eps=1e-6, device="cuda", dtype=torch.bfloat16)
    y = norm(x)                           # x: [..., 768]
    y, h = norm(x, residual)              # h = x + residual, rounded, and y of it: one pass over both

bfloat16, float16 and float32, on CPU and GPU; under torch.autocast in the dtype of x, as torch.nn.RMSNorm. Gradients
come from the package's own backward, for a second derivative and where somebody follows PyTorch's operators from
PyTorch. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from kiln import InvalidCall, Kernel, between, layer, packages

PACKAGE, VERSION = packages.of(__name__)


def by_pytorch(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """What the package computes of h, by PyTorch's operators."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(dtype)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (offset + weight.to(dtype))).to(x.dtype)


# ---- forward and backward, as the package has them; x and h: [M, D] ----


def _forward(x: Tensor, weight: Tensor, residual: Optional[Tensor], key: str) -> list[Tensor]:
    """y, and with a residual h."""
    tensors = {"x": x, "weight": weight, "residual": residual}
    if residual is not None:
        tensors["h_out"] = torch.empty_like(x)
    result = layer.source_of(key).call(x.device, "forward", tensors)
    return [result.y] if residual is None else [result.y, tensors["h_out"]]


def _backward(grad_y: Tensor, h: Tensor, weight: Tensor, wants_weight: bool, key: str) -> list[Tensor]:
    """The gradients of h and weight; the second of no elements where it is not wanted."""
    grad_weight = torch.empty_like(weight) if wants_weight else weight.new_empty(0)
    tensors = {"grad_y": grad_y, "h": h, "weight": weight, "grad_weight": grad_weight if wants_weight else None}
    result = layer.source_of(key).call(h.device, "backward", tensors)
    return [result.grad_h, grad_weight]


class _RmsNorm(torch.autograd.Function):
    """In eager mode, without the dispatcher."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, residual: Optional[Tensor], key: str) -> tuple[Tensor, ...]:
        results = _forward(x, weight, residual, key)
        ctx.save_for_backward(x if residual is None else results[1], weight)
        ctx.key = key
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_h: Optional[Tensor] = None) -> tuple[Optional[Tensor], ...]:
        return _gradients(ctx, grad_y, grad_h, _backward)


def _gradients(ctx: Any, grad_y: Tensor, grad_h: Optional[Tensor], compute: Any) -> tuple[Optional[Tensor], ...]:
    """Those of x, weight and residual."""
    h, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_residual = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled() or between.in_gradient(grad_y) or between.observer():
        found = _gradients_by_pytorch(grad_y, h, weight, ctx.key)
    else:
        found = compute(grad_y.contiguous(), h, weight, needs_weight, ctx.key)
    of_h = found[0] if grad_h is None else found[0] + grad_h
    return of_h if needs_x else None, found[1] if needs_weight else None, of_h if needs_residual else None, None


def _gradients_by_pytorch(grad_y: Tensor, h: Tensor, weight: Tensor, key: str) -> list[Tensor]:
    attributes, again = layer.source_of(key).attributes, torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [t.view_as(t) if again else t.detach().requires_grad_() for t in (h, weight)]
        inputs = [t if t.requires_grad else t.requires_grad_() for t in inputs]
        y = by_pytorch(*inputs, attributes["eps"], attributes["offset"])
        return list(torch.autograd.grad(y, inputs, grad_y, create_graph=again))


if layer.HAS_OPERATORS:
    _forward_op = torch.library.custom_op(
        layer.operator_name("rms_norm"), _forward, mutates_args=(),
        schema="(Tensor x, Tensor weight, Tensor? residual, str key) -> Tensor[]")
    _backward_op = torch.library.custom_op(
        layer.operator_name("rms_norm_backward"), _backward, mutates_args=(),
        schema="(Tensor grad_y, Tensor h, Tensor weight, bool wants_weight, str key) -> Tensor[]")

    @_forward_op.register_fake
    def _(x: Tensor, weight: Tensor, residual: Optional[Tensor], key: str) -> list[Tensor]:
        return [torch.empty_like(x) for _ in range(1 if residual is None else 2)]

    @_backward_op.register_fake
    def _(grad_y: Tensor, h: Tensor, weight: Tensor, wants_weight: bool, key: str) -> list[Tensor]:
        return [torch.empty_like(h), torch.empty_like(weight) if wants_weight else weight.new_empty(0)]

    def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        x, weight, residual, ctx.key = inputs
        ctx.save_for_backward(x if residual is None else output[1], weight)

    def _differentiate(ctx: Any, grads: list[Optional[Tensor]]) -> tuple[Optional[Tensor], ...]:
        return _gradients(ctx, *grads, *[None] * (2 - len(grads)), _backward_op)

    _forward_op.register_autograd(_differentiate, setup_context=_keep)


# ---- the layer ----


class RmsNorm(nn.Module):
    """y = h / sqrt(mean(h^2) + eps) * (offset + weight), over the last dimension of h = x + residual.

    offset: 1 for Gemma, whose weight is stored without its one. `options` are those of kiln.get_kernel.
    """

    def __init__(self, features: int, *, eps: float = 1e-6, offset: float = 0.0, version: int = VERSION,
                 device: Any = None, dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        super().__init__()
        layer.check_options(type(self).__name__, options)
        self.version, self.attributes, self._options = version, {"eps": eps, "offset": offset}, options
        self.weight = nn.Parameter(torch.full((features,), 1.0 - offset, device=device, dtype=dtype))
        self._bind()
        if self.weight.device.type in ("cpu", "cuda"):
            self.kernel.forward.check_attributes(self.attributes)

    def _bind(self) -> None:
        self._key = layer.key_of(PACKAGE, self.version, self.attributes, self._options)
        self._told: set[str] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._bind()

    @property
    def kernel(self) -> Kernel:
        """That of the device which the weight is on."""
        return layer.source_of(self._key).kernel(self.weight.device)

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """y; with a residual, of x's shape and dtype, y and h."""
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype
                                     or residual.device != x.device):
            raise InvalidCall(f"rms norm: residual is {layer.words_of(residual)}; expected one like x, "
                              f"{layer.words_of(x)}")
        if not layer.enabled():
            return self.reference(x, residual)
        why = layer.why_pytorch(x, residual, self.weight)
        if why != "":
            layer.tell(self._told, f"a {type(self).__name__}", why)
            return self.reference(x, residual)
        rows = [None if t is None else t.contiguous().reshape(-1, x.shape[-1]) for t in (x, residual)]
        arguments = (rows[0], self.weight.to(x.dtype), rows[1], self._key)
        if layer.goes_by_operators():
            results = _forward_op(*arguments)
        elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments[:3]):
            results = _RmsNorm.apply(*arguments)
        else:
            results = _forward(*arguments)
        shaped = tuple(t.reshape(x.shape) for t in results)
        return shaped[0] if residual is None else shaped

    def reference(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        h = x if residual is None else x + residual
        y = by_pytorch(h, self.weight.to(x.dtype), self.attributes["eps"], self.attributes["offset"])
        return y if residual is None else (y, h)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.attributes['eps']}, {PACKAGE}@{self.version}"
