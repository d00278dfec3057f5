# SPDX-License-Identifier: Apache-2.0
"""QuantizedMlp for PyTorch: kiln.torch.QuantizedMlp.

    mlp = kiln.torch.QuantizedMlp(4096, 14336, bits=4, group=128, device="cuda", dtype=torch.bfloat16)
    mlp.pack("gate", qweight, scales, qzeros, layout="gptq")     # then "up" and "down", as a model's file has them
    y = mlp(x)                                                   # x: [..., 4096]

bfloat16 and float16, on CPU and GPU; under torch.autocast in its dtype, as nn.Linear. The packed weights are buffers, a
part of the state dict. x and the residual have gradients, which PyTorch computes of the weights that the codes mean; the
codes have none. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kiln import InvalidCall, UsageError, layer, packages

PACKAGE, VERSION = packages.of(__name__)

_MATRICES = ("gate", "up", "down")
_NAMES = ("x", *(f"{matrix}{part}" for matrix in _MATRICES for part in ("", "_scales", "_zeros")),
          "gate_bias", "up_bias", "down_bias", "norm_weight", "residual")
_OPTIONAL = {"gate_zeros", "up_zeros", "down_zeros", "gate_bias", "up_bias", "down_bias", "norm_weight", "residual"}
GATES = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda g: F.gelu(g, approximate="tanh"), "relu": F.relu,
          "sigmoid": torch.sigmoid}


def _codes(packed: Tensor) -> Tensor:
    """[16 row tiles, 64 tiles of k] of layout.h's tiles: uint8, or what FP8 means in float32, for torch.jit.trace follows no
    view of another dtype."""
    tiles = packed.shape[:2]
    if packed.shape[2] == 512:
        # lane / 4, lane % 4, step, part, odd, pair, half
        both = torch.stack((packed & 15, packed >> 4), -1).reshape(*tiles, 8, 4, 2, 2, 2, 2, 2)
        ordered = both.permute(0, 8, 2, 1, 4, 3, 5, 7, 6)
    elif packed.dtype == torch.uint8:
        # step, lane / 4, lane % 4, part, pair, odd, half
        ordered = packed.reshape(*tiles, 2, 8, 4, 2, 2, 2, 2).permute(0, 8, 3, 1, 2, 4, 5, 6, 7)
    else:
        row = torch.arange(8, device=packed.device)[:, None]
        place = row // 2 ^ torch.arange(4, device=packed.device)
        lines = packed.float().reshape(*tiles, 2, 8, 4, 16)[:, :, :, row, place]
        # half, row % 8, lane % 4, step, part, odd, pair
        ordered = lines.reshape(*tiles, 2, 8, 4, 2, 2, 2, 2).permute(0, 2, 3, 1, 5, 4, 6, 8, 7)
    return ordered.reshape(tiles[0] * 16, tiles[1] * 64)


def by_row(words: Tensor) -> Tensor:
    """Of [row tiles, groups, 16]: [rows, groups]."""
    tiles, groups, _ = words.shape
    return words.reshape(tiles, groups, 8, 2).permute(0, 3, 2, 1).reshape(tiles * 16, groups)


def _weight(packed: Tensor, scales: Tensor, zeros: Optional[Tensor], rows: int, columns: int) -> Tensor:
    """float32 [rows, columns]."""
    bits = packed.shape[2] // 128
    groups = scales.shape[1]
    sizes = [size for size in (32, 64, 128) if -(-columns // size) == groups]
    size = sizes[0] if sizes and groups > 1 else max(columns, 1)
    group = torch.arange(columns, device=packed.device) // size
    codes = _codes(packed)[:rows, :columns]
    of_group = by_row(scales)[:rows].float()[:, group]
    if packed.dtype != torch.uint8:
        return codes * of_group
    zero = float(1 << (bits - 1)) if zeros is None else by_row(zeros)[:rows].float()[:, group]
    return (codes.float() - zero) * of_group


def _rounded_to_float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`, each 128 columns of a row rounded to a power of two times float8_e4m3fn: the least power that brings
    the largest finite one down to 448, or that `dtype` has the smallest code of. Gradients pass as if it did nothing."""
    width = x.shape[-1]
    blocks = F.pad(x.detach().to(dtype).float(), (0, -width % 128)).unflatten(-1, (-1, 128))
    finite = torch.where(blocks.isfinite(), blocks, 0)
    mantissa, exponent = torch.frexp(finite.abs().amax(-1, keepdim=True))  # 448 is 0.875 * 2^9
    least = -15 if dtype == torch.float16 else -117
    exponent = torch.clamp(exponent - 9 + (mantissa > 0.875).int(), min=least)
    scaled = torch.ldexp(finite, -exponent).to(torch.float8_e4m3fn).float()
    rounded = torch.where(blocks.isfinite(), torch.ldexp(scaled, exponent), float("nan"))
    return x + (rounded.flatten(-2)[..., :width] - x.detach())


class _QuantizedMlp(layer.Differentiable):
    """x and residual: [M, D]."""

    name = "quantized_mlp"
    inputs = " ".join(each + "?" * (each in _OPTIONAL) for each in _NAMES)
    gradient_of = (0, *[None] * (len(_NAMES) - 2), 1)

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        return list(inputs[:-1])

    def backward_like(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool]) -> layer.Tensors:
        return [torch.empty_like(kept[0]) if want else None for want in wanted]

    def gradients_by_pytorch(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                             key: str) -> list[Optional[Tensor]]:
        """The residual's is that of y, whatever the residual holds."""
        of_x = super().gradients_by_pytorch(grads, kept, wanted[:1], key) if wanted[0] else [None]
        return [of_x[0], grads[0].clone() if wanted[1] else None]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        given = dict(zip(_NAMES, kept))
        x, residual = given["x"], given.get("residual")
        width, hidden = x.shape[-1], given["gate"].shape[0] * 16
        shapes = {"gate": (hidden, width), "up": (hidden, width), "down": (width, hidden)}
        gate, up, down = (_weight(given[name], given[f"{name}_scales"], given[f"{name}_zeros"], *shapes[name])
                          for name in _MATRICES)
        biases = [None if given[f"{name}_bias"] is None else given[f"{name}_bias"].float().reshape(-1)
                  for name in _MATRICES]
        rounds = attributes.get("input_dtype", "x") != "x"
        inputs = x.float()
        if given["norm_weight"] is not None:
            inputs = inputs * torch.rsqrt(inputs.square().mean(-1, keepdim=True) + attributes["eps"])
            inputs = inputs * (attributes["offset"] + given["norm_weight"].float())
        if rounds:
            inputs = _rounded_to_float8(inputs, x.dtype)
        g, u = F.linear(inputs, gate, biases[0]), F.linear(inputs, up, biases[1])
        if attributes["activation"] == "silu_clamped":
            limit = attributes["limit"]
            c = g.clamp(max=limit)
            h = c * torch.sigmoid(1.702 * c) * (u.clamp(-limit, limit) + 1)
        else:
            h = GATES[attributes["activation"]](g) * u
        y = F.linear(_rounded_to_float8(h, x.dtype) if rounds else h, down, biases[2])
        return [(y if residual is None else y + residual.float()).to(x.dtype)]


quantized_mlp = _QuantizedMlp()


class QuantizedMlp(layer.Layer):
    """y = (a(x gate^T) * f(x up^T)) down^T + residual, with weights of 4 or 8 bits; with `norm` the products are of
    x / sqrt(mean(x^2) + eps) * (offset + norm_weight), a buffer, and y = mlp(x, x) is x + mlp(norm(x)).

    float8: weights are torch.float8_e4m3fn, with scales in float32. group: 32, 64, 128, or 0 for one of a whole row.
    zeros: whether codes have zeros of their own, or the middle one; those of float8 have none.
    input_dtype: "x", or "float8_e4m3fn" of a float8 layer, which rounds x and what down multiplies to it, each 128 columns
    of a row by a power of two.
    offset: 1 for Gemma, whose norm's weight is stored without its one. PyTorch's gradients, and y where Kiln is disabled, are
    of the norm in float32; Kiln's kernels round it to the dtype of x, as they do h.
    activation: "silu", "gelu", "gelu_tanh", "relu", "sigmoid" or "silu_clamped", whose limit is `limit`. `options` are
    those of kiln.get_kernel.
    """

    def __init__(self, in_features: int, hidden_features: int, *, bits: Optional[int] = None, group: int = 128,
                 zeros: bool = False, float8: bool = False, activation: str = "silu", limit: float = 7.0,
                 bias: bool = False, overflow: str = "infinity", batch_invariant: bool = False, input_dtype: str = "x",
                 norm: bool = False, eps: float = 1e-6, offset: float = 0.0, version: int = VERSION, device: Any = None,
                 dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        attributes = {"activation": activation, "limit": limit, "overflow": overflow,
                      "batch_invariant": layer.yes_or_no(batch_invariant, "batch_invariant"),
                      "input_dtype": input_dtype, **({"eps": eps, "offset": offset} if norm else {})}
        super().__init__(PACKAGE, version, attributes, options)
        bits = (8 if float8 else 4) if bits is None else bits
        if bits not in ((8,) if float8 else (4, 8)) or group not in (0, 32, 64, 128):
            raise UsageError(f"quantized mlp: bits is {bits} and group {group}; expected {'' if float8 else '4 or '}8, "
                             "and 0, 32, 64 or 128")
        if float8 and zeros:
            raise UsageError("quantized mlp: float8 and zeros; weights in FP8 have no zeros")
        self.in_features, self.hidden_features, self.bits, self.group = in_features, hidden_features, bits, group
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.bfloat16, torch.float16) and (bias or not float8):
            raise UsageError(f"quantized mlp: dtype is {dtype}; expected torch.bfloat16 or torch.float16, that of x")
        buffers: dict[str, Optional[Tensor]] = {}
        for name in _MATRICES:
            rows, columns = self._extents(name)
            tiles, groups = -(-rows // 16), -(-columns // group) if group else 1
            for part, shape, kind in (("", (tiles, -(-columns // 64), 128 * bits),
                                       torch.float8_e4m3fn if float8 else torch.uint8),
                                      ("_scales", (tiles, groups, 16), torch.float32 if float8 else dtype),
                                      ("_zeros", (tiles, groups, 16), torch.uint8)):
                empty = torch.zeros(shape, dtype=kind, device=device)
                buffers[name + part] = empty if part != "_zeros" or zeros else None
            of_bias = (in_features,) if name == "down" else (tiles, 16)
            buffers[f"{name}_bias"] = torch.zeros(of_bias, dtype=dtype, device=device) if bias else None
        buffers["norm_weight"] = torch.full((in_features,), 1.0 - offset, dtype=dtype, device=device) if norm else None
        # Those that are None last: torch.export of PyTorch 2.15 counts each of them before as an input of its graph.
        for name in sorted(buffers, key=lambda name: buffers[name] is None):
            self.register_buffer(name, buffers[name])
        if float8:
            self.fixed = tuple(name + part for name in _MATRICES for part in ("", "_scales"))
        self.find_kernel()

    def pack(self, name: str, codes: Tensor, scales: Tensor, zeros: Optional[Tensor] = None, *,
             layout: str = "plain") -> None:
        """Takes "gate", "up" or "down" as a file has it: `layout` is that of the package's op pack, or "gptq_v2". Zeros
        of GPTQ that are all in the middle mean the same as none, for a layer without zeros. Scales of float8 are of any
        dtype, one for each row, 128 rows or all."""
        if name not in _MATRICES:
            raise UsageError(f"quantized mlp: pack {name!r}; expected one of {', '.join(_MATRICES)}")
        own, own_scales, own_zeros = (getattr(self, name + part) for part in ("", "_scales", "_zeros"))
        if own.dtype == torch.uint8 and own_scales.dtype != scales.dtype:
            raise InvalidCall(f"quantized mlp: scales are {layer.words_of(scales)}; the layer has "
                              f"{layer.words_of(own_scales)}. Make it with that dtype, or convert them")
        self._check_codes(name, codes, layout)
        codes, scales = codes.detach(), scales.detach()
        kernel = self.kernel
        if zeros is not None:
            packed = torch.empty_like(own_scales, dtype=torch.uint8)
            kernel.pack_zeros(zeros.to(own.device).contiguous(), packed, layout=layout, bits=self.bits)
            if own_zeros is not None:
                own_zeros.copy_(packed)
            elif bool((by_row(packed)[:self._extents(name)[0]] != 1 << (self.bits - 1)).any()):
                raise InvalidCall(f"quantized mlp: {name} has zeros of its own; make the layer with zeros=True")
        elif own_zeros is not None:
            own_zeros.fill_(1 << (self.bits - 1))
        kernel.pack(codes.to(own.device).contiguous(), scales.to(own.device).contiguous(), own, own_scales,
                    layout="gptq" if layout == "gptq_v2" else layout)

    def _check_codes(self, name: str, codes: Tensor, layout: str) -> None:
        """The op takes what its tiles have room for, and what is not there for a weight of 0."""
        (rows, columns), of_word = self._extents(name), 32 // self.bits
        shapes = {"plain": (rows, columns), "awq": (columns, -(-rows // of_word)),
                  "compressed_tensors": (rows, -(-columns // of_word))}
        shape = shapes.get(layout, (-(-columns // of_word), rows))
        if codes.shape != shape:
            raise InvalidCall(f"quantized mlp: {name}'s codes are {layer.words_of(codes)}; expected {list(shape)} of {self.bits} "
                              f"bits in the layout {layout}")
        if layout != "plain" or self.bits == 8 or codes.dtype not in (torch.uint8, torch.int8):
            return
        least, most = (0, 15) if codes.dtype == torch.uint8 else (-8, 7)
        if bool(((codes < least) | (codes > most)).any()):
            raise InvalidCall(f"quantized mlp: {name} has codes beyond {least} and {most}; the layer has 4 bits. Make it with "
                              "bits=8")

    def _extents(self, name: str) -> tuple[int, int]:
        """Rows and columns."""
        if name == "down":
            return self.in_features, self.hidden_features
        return self.hidden_features, self.in_features

    def forward(self, x: Tensor, residual: Optional[Tensor] = None) -> Tensor:
        """y, of x's shape and dtype."""
        if x.shape[-1:] != (self.in_features,) or (residual is not None and residual.shape != x.shape):
            raise InvalidCall(f"quantized mlp: x is {layer.words_of(x)}; expected rows of {self.in_features}, and a "
                              "residual like it")
        dtype = layer.autocast_dtype(x.device.type)
        if residual is not None and dtype is not None and residual.dtype != dtype:
            return residual + self.forward(x)  # a stream may be wider than what nn.Linear gives, and stays so
        # Codes and scales mean the same beside an x of either dtype.
        codes, others = ([getattr(self, name) for name in names] for names in (_NAMES[1:10], _NAMES[10:-1]))
        if dtype is not None and codes[0].dtype == torch.uint8:  # but float32, which float() made of theirs
            codes = [t.to(dtype) if t is not None and t.dtype == torch.float32 else t for t in codes]
        x, residual, *others = layer.cast(x, residual, *others)
        rows = [None if t is None else t.contiguous().reshape(-1, self.in_features) for t in (x, residual)]
        inputs = (rows[0], *codes, *others, rows[1])
        if self.is_pytorchs(x, residual):
            return quantized_mlp.by_pytorch(inputs, self.attributes)[0].reshape(x.shape)
        return quantized_mlp(inputs, self._key)[0].reshape(x.shape)

    def extra_repr(self) -> str:
        return (f"{self.in_features}, {self.hidden_features}, bits={self.bits}, group={self.group}, "
                f"{super().extra_repr()}")
