# SPDX-License-Identifier: Apache-2.0
"""RotaryEmbedding for PyTorch: kiln.torch.RotaryEmbedding.

    rope = kiln.torch.RotaryEmbedding(128, positions=8192, base=500000.0, device="cuda")
    q, k = rope(q, positions), rope(k, positions)     # [..., heads, 128]; positions: int64 or int32 [...]

bfloat16, float16 and float32, on CPU and GPU. The tables of cosines and sines are made once, by the package, of angles
in fp64; they are no part of the state dict and stay float32. The gradient is the turn back, by the same op. Threads: as
nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from kiln import InvalidCall, UsageError, between, layer, packages

PACKAGE, VERSION = packages.of(__name__)


def _by_pytorch(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, attributes: Mapping[str, Any]) -> Tensor:
    """Of rows of heads, by PyTorch's operators, in x's dtype at the end alone."""
    head_dim = attributes["head_dim"]
    # By operators that have a rule for batched gradients.
    heads = x.reshape(*x.shape[:-1], x.shape[-1] // head_dim, head_dim)
    half, known = cos.shape[-1], ((positions >= 0) & (positions < cos.shape[0]))[..., None]
    c, s = (torch.where(known, t[positions.clamp(0, cos.shape[0] - 1)], torch.nan)[..., None, :] for t in (cos, sin))
    s = -s if attributes["inverse"] == "yes" else s
    turned, rest = heads.narrow(-1, 0, 2 * half), heads.narrow(-1, 2 * half, head_dim - 2 * half)
    if attributes["interleaved"] == "yes":
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((a * c - b * s, b * c + a * s), -1).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat((a * c - b * s, b * c + a * s), -1)
    return torch.cat((turned.to(x.dtype), rest), -1).reshape(x.shape)


def _back(key: str) -> str:
    """The kernel that turns the other way."""
    source = layer.source_of(key)
    inverse = "no" if source.attributes["inverse"] == "yes" else "yes"
    return layer.key_of(source.package, source.version, {**source.attributes, "inverse": inverse}, source.options)


class _Rotate(layer.Differentiable):
    """x: [N, heads * head_dim]. Linear in x, which it does not keep."""

    name, op, inputs, gradient_of = "rotary_embedding", "rotate", "x positions cos sin", (0, None, None, None)

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        return list(inputs[1:])

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        return self.forward((grads[0].contiguous(), *kept), _back(key))

    def backward_like(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool]) -> layer.Tensors:
        return [torch.empty_like(grads[0], memory_format=torch.contiguous_format)]

    def gradients_by_pytorch(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                             key: str) -> list[Optional[Tensor]]:
        return [_by_pytorch(grads[0], *kept, layer.source_of(_back(key)).attributes)]


_rotate = _Rotate()


class RotaryEmbedding(layer.Layer):
    """Turns pairs of each head's columns by position times frequency.

    rotary_dim: of the head's columns, the first so many are turned; default all. interleaved: the pairs are columns 2i
    and 2i + 1 (GPT-J, RoFormer); else i and rotary_dim / 2 + i (Llama, Gemma, NeoX). frequencies: rotary_dim / 2 of
    them, float64, in place of base^(-2i / rotary_dim): of Llama 3.1's scaling, say. scale: of the tables, for YaRN.
    `options` are those of kiln.get_kernel.
    """

    fixed = ("cos", "sin")

    def __init__(self, head_dim: int, *, positions: int, rotary_dim: Optional[int] = None, base: float = 10000.0,
                 frequencies: Optional[Tensor] = None, scale: float = 1.0, interleaved: bool = False,
                 version: int = VERSION, device: Any = None, **options: Any) -> None:
        attributes = {"head_dim": head_dim, "interleaved": "yes" if interleaved else "no", "inverse": "no"}
        super().__init__(PACKAGE, version, attributes, options)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
            raise UsageError(f"rotary embedding: rotary_dim is {rotary_dim}; expected an even number up to {head_dim}")
        if frequencies is None:
            frequencies = base ** (torch.arange(rotary_dim // 2, dtype=torch.float64, device="cpu") * -2 / rotary_dim)
        elif device is None:
            device = frequencies.device
        if frequencies.shape != (rotary_dim // 2,) or frequencies.is_meta:
            raise UsageError(f"rotary embedding: frequencies are {layer.words_of(frequencies)}; expected "
                             f"{rotary_dim // 2} of them")
        self.frequencies, self.scale = frequencies.detach().to("cpu", torch.float64).contiguous(), scale
        for name in self.fixed:
            table = torch.empty(positions, rotary_dim // 2, dtype=torch.float32, device=device)
            self.register_buffer(name, table, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Makes the tables; on the meta device there are none."""
        if not self.cos.is_meta:
            self.fill(self._buffers)
        self.is_filled = not self.cos.is_meta

    def fill(self, buffers: Mapping[str, Any]) -> None:
        cos, sin = (buffers[name] for name in self.fixed)
        frequencies = self.frequencies.to(cos.device)
        if between.compiles() or layer.why_pytorch(cos) != "":  # of which fake tensors are one case
            angles = torch.arange(len(cos), device=cos.device)[:, None] * frequencies
            cos.copy_(angles.cos() * self.scale)
            sin.copy_(angles.sin() * self.scale)
        else:
            tables = layer.source_of(layer.key_of(self.package, self.version, {"scale": self.scale}, self._options))
            tables.call(cos.device, "tables", {"frequencies": frequencies, "cos": cos, "sin": sin})

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: [..., heads, head_dim]; positions: int64 or int32 [...]. A position beyond the tables gives NaN."""
        head_dim = self.attributes["head_dim"]
        if (x.dim() < 2 or x.shape[-1] != head_dim or positions.shape != x.shape[:-2]
                or positions.dtype not in (torch.int64, torch.int32)):
            raise InvalidCall(f"rotary embedding: x is {layer.words_of(x)}, positions are {layer.words_of(positions)}; "
                              f"expected [..., heads, {head_dim}], and int64 or int32 [...] of the same extents")
        if self.is_pytorchs(x, positions, self.cos, self.sin):
            return self.reference(x, positions)
        rows = layer.readable(layer.rows_of(x.flatten(-2)))
        tables = [self.filled(x)[name] for name in self.fixed]
        return _rotate((rows, positions.contiguous().reshape(-1), *tables), self._key)[0].reshape(x.shape)

    def reference(self, x: Tensor, positions: Tensor) -> Tensor:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        tables = [self.filled(x)[name] for name in self.fixed]
        return _by_pytorch(x.flatten(-2), positions, *tables, self.attributes).reshape(x.shape)
