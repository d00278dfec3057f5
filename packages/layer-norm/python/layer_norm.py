# SPDX-License-Identifier: Apache-2.0
"""LayerNorm for PyTorch: kiln.torch.LayerNorm.

    norm = kiln.torch.LayerNorm(768, device="cuda", dtype=torch.bfloat16)
    y = norm(x)                           # x: [..., 768]
    y, h = norm(x, residual)              # h = x + residual, rounded, and y of it: one pass over both

bfloat16, float16 and float32, on CPU and GPU; under torch.autocast in the dtype of x, or of x + residual, where
torch.nn.LayerNorm takes float32. Gradients come from the package's own backward. Parameters are named as those of
torch.nn.LayerNorm, whose state dict it loads. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor, nn

from kiln import InvalidCall, layer, packages

PACKAGE, VERSION = packages.of(__name__)


class _LayerNorm(layer.Differentiable):
    """x and residual: [M, D]. Gives y, and with a residual h; keeps h, weight and bias."""

    name, inputs, gradient_of, apart = "layer_norm", "x weight bias? residual?", (0, 1, 2, 0), {1: (1, 2)}

    def forward(self, inputs: layer.Tensors, key: str) -> list[Tensor]:
        x, weight, bias, residual = inputs
        tensors = {"x": x, "weight": weight, "bias": bias}
        if residual is None:
            return [layer.source_of(key).call(x.device, "forward", tensors)]
        result = layer.source_of(key).call(x.device, "forward_residual", {**tensors, "residual": residual})
        return [result.y, result.h]

    def like(self, inputs: layer.Tensors) -> list[Tensor]:
        return [torch.empty_like(inputs[0]) for _ in range(1 if inputs[3] is None else 2)]

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        x, weight, bias, residual = inputs
        return [x if residual is None else outputs[1], weight, bias]

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        if grads[0] is None:
            return [grads[1].clone(), None, None]
        h, weight, bias = kept
        grad_h_more = grads[1].contiguous() if len(grads) > 1 and grads[1] is not None else None
        of_weight, of_bias = (torch.empty_like(t) if want and t is not None else None
                              for t, want in zip((weight, bias), wanted[1:]))
        tensors = {"grad_y": grads[0].contiguous(), "h": h, "weight": weight, "grad_h_more": grad_h_more, "grad_weight": of_weight,
                   "grad_bias": of_bias}
        of_h = layer.source_of(key).call(h.device, "backward", tensors).grad_h
        return [of_h if wanted[0] else None, of_weight, of_bias]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        h, weight, bias = kept
        y = nn.functional.layer_norm(h, h.shape[-1:], weight, bias, attributes["eps"])
        return [y.to(h.dtype), h.view_as(h)]  # torch.autocast gives float32


_layer_norm = _LayerNorm()


class LayerNorm(layer.Layer):
    """y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias, over the last dimension of h = x + residual.

    `options` are those of kiln.get_kernel.
    """

    def __init__(self, features: int, *, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 version: int = VERSION, device: Any = None, dtype: Optional[torch.dtype] = None,
                 **options: Any) -> None:
        super().__init__(PACKAGE, version, {"eps": eps}, options)
        self.features = features
        like = {"device": device, "dtype": dtype}
        if elementwise_affine:
            self.weight = nn.Parameter(torch.empty(features, **like))
        else:
            self.register_buffer("weight", torch.empty(features, **like), persistent=False)
        self.bias = nn.Parameter(torch.empty(features, **like)) if elementwise_affine and bias else None
        self.reset_parameters()
        self.find_kernel()

    def reset_parameters(self) -> None:
        """weight: ones; bias: zeros."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self.is_filled = isinstance(self.weight, nn.Parameter) or not self.weight.is_meta

    def fill(self, buffers: Mapping[str, Any]) -> None:
        nn.init.ones_(buffers["weight"])

    def _weight(self, x: Tensor) -> Tensor:
        return self.filled(x).get("weight", self.weight)

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """y; with a residual, of x's shape and dtype, y and h."""
        x, residual = layer.as_added(x, residual)
        if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype
                                     or residual.device != x.device):
            raise InvalidCall(f"layer norm: residual is {layer.words_of(residual)}; expected one like x, "
                              f"{layer.words_of(x)}")
        if x.shape[-1:] != (self.features,):
            raise InvalidCall(f"layer norm: x is {layer.words_of(x)}; expected rows of {self.features}")
        if self.is_pytorchs(x, residual, self.weight, self.bias):
            return self.reference(x, residual)
        rows = [None if t is None else layer.rows_of(t.contiguous()) for t in (x, residual)]
        weight, bias = (None if t is None else t.to(x.dtype).contiguous() for t in (self._weight(x), self.bias))
        results = tuple(t.reshape(x.shape) for t in _layer_norm((rows[0], weight, bias, rows[1]), self._key))
        return results[0] if residual is None else results

    def reference(self, x: Tensor, residual: Optional[Tensor] = None) -> Union[Tensor, tuple[Tensor, Tensor]]:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        weight, bias = (None if t is None else t.to(x.dtype) for t in (self._weight(x), self.bias))
        h = x if residual is None else x + residual
        y = _layer_norm.by_pytorch((h, weight, bias), self.attributes)[0]
        return y if residual is None else (y, h)

    def extra_repr(self) -> str:
        return f"{self.features}, {super().extra_repr()}"
