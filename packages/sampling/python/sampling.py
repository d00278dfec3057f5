# SPDX-License-Identifier: Apache-2.0
"""Sampling for PyTorch: kiln.torch.Sampling.

    sampler = kiln.torch.Sampling(temperature=0.8, top_p=0.95)
    tokens = sampler(logits, seeds, positions)       # logits: [..., V]; seeds, positions: int64 [...]; tokens: int64 [...]

bfloat16, float16 and float32, on CPU and GPU. A row's token depends on its logits, its parameters, its seed and its
position alone, so that a sequence that is generated again is the same, in whatever batch. Each parameter is a number, or
a tensor of one for each row, which a CUDA graph may be replayed with others of. No gradients; torch.compile breaks its
graph here. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from kiln import InvalidCall, layer, packages

PACKAGE, VERSION = packages.of(__name__)
_DTYPES = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}


def _words_of_product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of a product of two such numbers, in int64."""
    low, high = (a & 0xFFFF) * b, (a >> 16) * b + ((a & 0xFFFF) * b >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def _uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Of each row, in [0, 1): Philox4x32-10 with the seed for a key, of the counter (position, 0)."""
    mask = 0xFFFFFFFF
    low, high = seeds & mask, seeds >> 32 & mask
    counter = [positions & mask, positions >> 32 & mask, torch.zeros_like(positions), torch.zeros_like(positions)]
    for _ in range(10):
        high_a, low_a = _words_of_product(counter[0], 0xD2511F53)
        high_b, low_b = _words_of_product(counter[2], 0xCD9E8D57)
        counter = [high_b ^ counter[1] ^ low, low_b, high_a ^ counter[3] ^ high, low_a]
        low, high = low + 0x9E3779B9 & mask, high + 0xBB67AE85 & mask
    return ((counter[0] << 21) | (counter[1] >> 11)).double() * 2.0**-53


def _by_pytorch(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, seeds: Tensor,
                positions: Tensor) -> Tensor:
    """Tokens of rows, in double precision."""
    z = logits.double()
    ordered = z.sort(-1, descending=True).values
    count = (ordered > -torch.inf).sum(-1)
    scale = temperature.double().clamp(min=1e-30)[:, None].reciprocal()
    masses = torch.where(ordered > -torch.inf, ((ordered - ordered[:, :1]) * scale).exp(), 0.0)
    last = torch.where((top_k > 0) & (top_k < count), top_k, count).long().clamp(min=1) - 1
    least = ordered.gather(-1, last[:, None])
    masses = torch.where(ordered >= least, masses, 0.0)
    sums = masses.cumsum(-1)
    enough = sums >= top_p.double()[:, None] * sums[:, -1:]
    first = torch.where(enough.any(-1), enough.int().argmax(-1), last)
    least = torch.where(top_p < 1, ordered.gather(-1, first[:, None])[:, 0], least[:, 0]).maximum(least[:, 0])
    mass = torch.where(z > -torch.inf, ((z - ordered[:, :1]) * scale).exp(), 0.0)
    most = torch.fmin(min_p.double(), torch.ones_like(sums[:, 0]))  # a NaN is 1
    mass = torch.where((z >= least[:, None]) & (mass >= most[:, None]), mass, 0.0)
    sums = mass.cumsum(-1)
    drawn = (sums > (_uniform(seeds, positions) * sums[:, -1])[:, None]).int().argmax(-1)
    tokens = torch.where(temperature > 0, drawn, z.argmax(-1))
    return torch.where((count > 0) & ~(z.isnan() | (z == torch.inf)).any(-1), tokens, -1)


class Sampling(layer.Layer):
    """temperature 0: the greatest logit, of equal ones the first. top_k 0, top_p 1, min_p 0: all tokens.

    `options` are those of kiln.get_kernel.
    """

    def __init__(self, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 version: int = VERSION, **options: Any) -> None:
        super().__init__(PACKAGE, version, {}, options)
        self.defaults = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}

    def forward(self, logits: Tensor, seeds: Tensor, positions: Tensor, *, temperature: Union[Tensor, float, None] = None,
                top_k: Union[Tensor, int, None] = None, top_p: Union[Tensor, float, None] = None,
                min_p: Union[Tensor, float, None] = None, out: Optional[Tensor] = None) -> Tensor:
        """out: int64 or int32 [...], where the tokens go in place of a new int64 tensor."""
        sample = _uncompiled() if _HAS_COMPILER and torch.compiler.is_compiling() else Sampling._sample
        return sample(self, logits, seeds, positions, out, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)

    @torch.no_grad()
    def _sample(self, logits: Tensor, seeds: Tensor, positions: Tensor, out: Optional[Tensor],
                **given: Union[Tensor, float, None]) -> Tensor:
        rows = logits.shape[:-1]
        tensors = {"seeds": seeds, "positions": positions}
        for name, value in given.items():
            value = self.defaults[name] if value is None else value
            if not isinstance(value, Tensor):
                value = torch.full(rows, value, dtype=_DTYPES[name], device=logits.device)
            tensors[name] = value
        tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
        for name, tensor in {**tensors, "out": tokens}.items():
            wanted = (torch.int64, torch.int32) if name == "out" else (_DTYPES.get(name, torch.int64),)
            if tensor.shape != rows or tensor.dtype not in wanted or name == "out" and not tensor.is_contiguous():
                raise InvalidCall(f"sampling: {name} is {layer.words_of(tensor)}; expected "
                                  f"{' or '.join(str(dtype)[6:] for dtype in wanted)} {list(rows)}")
        if logits.shape[-1] == 0:
            return tokens.fill_(-1)
        matrix = layer.readable(layer.rows_of(logits.detach()))
        call = {name: tensor.contiguous().reshape(-1) for name, tensor in tensors.items()}
        if self.is_pytorchs(logits, *call.values()):
            found = _by_pytorch(matrix, **call).reshape(rows)
            return found if out is None else out.copy_(found)
        layer.source_of(self._key).call(logits.device, "sample",
                                        {"logits": matrix, **call, "tokens": tokens.reshape(-1)})
        return tokens

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.defaults.items()) + f", {super().extra_repr()}"


_HAS_COMPILER = hasattr(getattr(torch, "compiler", None), "is_compiling")
_without_compiler: list[Any] = []


def _uncompiled() -> Any:
    """Sampling._sample behind torch.compiler.disable, which imports the whole compiler: once one is there."""
    if not _without_compiler:
        _without_compiler.append(torch.compiler.disable(Sampling._sample))
    return _without_compiler[0]


if _HAS_COMPILER:
    _uncompiled._torchdynamo_disable = True  # type: ignore[attr-defined]  # the graph breaks here, once a call
