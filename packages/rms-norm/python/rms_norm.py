# SPDX-License-Identifier: Apache-2.0
"""RmsNorm for PyTorch: kiln.torch.RmsNorm.

    norm = kiln.torch.RmsNorm(768, eps=1e-6, device="cuda", dtype=torch.bfloat16)
    y = norm(x)                           # x: [..., 768]
    y, h = norm(x, residual)              # h = x + residual, rounded, and y of it: one pass over both

bfloat16, float16 and float32, on CPU and GPU; under torch.autocast in the dtype of x, as torch.nn.RMSNorm, or of x +
residual. Gradients come from the package's own backward, for a second derivative and where somebody follows PyTorch's
operators from PyTorch. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from kiln import InvalidCall, layer, packages

PACKAGE, VERSION = packages.of(__name__)


class _RmsNorm(layer.Differentiable):
    """x and residual: [M, D]. Gives y, and with a residual h; keeps h and weight."""

    name, inputs, gradient_of, apart = "rms_norm", "x weight residual?", (0, 1, 0), {1: (1,)}

    def forward(self, inputs: layer.Tensors, key: str) -> list[Tensor]:
        x, weight, residual = inputs
        tensors = {"x": x, "weight": weight, "residual": residual}
        if residual is not None:
            tensors["h_out"] = torch.empty_like(x)
        result = layer.source_of(key).call(x.device, "forward", tensors)
        return [result.y] if residual is None else [result.y, result.h_out]

    def like(self, inputs: layer.Tensors) -> list[Tensor]:
        return [torch.empty_like(inputs[0]) for _ in range(1 if inputs[2] is None else 2)]

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        return [inputs[0] if inputs[2] is None else outputs[1], inputs[1]]

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        if grads[0] is None:
            return [grads[1].clone(), None]
        h, weight = kept
        of_weight = torch.empty_like(weight) if wanted[1] else None
        tensors = {"grad_y": grads[0].contiguous(), "h": h, "weight": weight, "grad_weight": of_weight}
        of_h = layer.source_of(key).call(h.device, "backward", tensors).grad_h
        if len(grads) > 1 and grads[1] is not None:
            of_h = of_h + grads[1]
        return [of_h if wanted[0] else None, of_weight]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        h, weight = kept
        dtype = torch.promote_types(h.dtype, torch.float32)
        wide = h.to(dtype)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + attributes["eps"])
        return [(wide * scale * (attributes["offset"] + weight.to(dtype))).to(h.dtype), h.view_as(h)]


_rms_norm = _RmsNorm()


class RmsNorm(layer.Layer):
    """y = h / sqrt(mean(h^2) + eps) * (offset + weight), over the last dimension of h = x + residual.

    offset: 1 for Gemma, whose weight is stored without its one. `options` are those of kiln.get_kernel.
    """

    def __init__(self, features: int, *, eps: float = 1e-6, offset: float = 0.0, version: int = VERSION,
                 device: Any = None, dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        super().__init__(PACKAGE, version, {"eps": eps, "offset": offset}, options)
        self.weight = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.reset_parameters()
        self.find_kernel()

    def reset_parameters(self) -> None:
        """weight: what multiplies by 1."""
        nn.init.constant_(self.weight, 1.0 - self.attributes["offset"])

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """y; with a residual, of x's shape and dtype, y and h."""
        x, residual = layer.as_added(x, residual)
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype
                                     or residual.device != x.device):
            raise InvalidCall(f"rms norm: residual is {layer.words_of(residual)}; expected one like x, "
                              f"{layer.words_of(x)}")
        if x.shape[-1:] != self.weight.shape:
            raise InvalidCall(f"rms norm: x is {layer.words_of(x)}; expected rows of {len(self.weight)}")
        if self.is_pytorchs(x, residual, self.weight):
            return self.reference(x, residual)
        rows = [None if t is None else layer.rows_of(t.contiguous()) for t in (x, residual)]
        results = _rms_norm((rows[0], self.weight.to(x.dtype).contiguous(), rows[1]), self._key)
        shaped = tuple(t.reshape(x.shape) for t in results)
        return shaped[0] if residual is None else shaped

    def reference(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        h = x if residual is None else x + residual
        y = _rms_norm.by_pytorch((h, self.weight.to(x.dtype)), self.attributes)[0]
        return y if residual is None else (y, h)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {super().extra_repr()}"
