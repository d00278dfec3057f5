# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch: kiln.torch.Attention.

    attention = kiln.torch.Attention(causal=True)
    out = attention(q, k, v)                          # q [..., T, HQ, D], k and v [..., S, HK, D]; HQ a multiple of HK
    out = attention(q, k, v, starts, starts)          # sequences one after the other, [T, HQ, D]; starts: int32 {0, ..., T}
    attention.append(k, v, slots, k_pages, v_pages)   # into pages [P, PS, HK, D]
    out = attention.decode(q, k_pages, v_pages, block_table, lengths)     # q [B, HQ, D] or [B, tokens, HQ, D]

bfloat16 and float16, on CPUs float32 too. q, k and v may be views of one projection: heads side by side are read where
they are, [T, HQ, D] with any distance of the rows. PyTorch's own layout, heads before tokens, is copied.

The package has no backward: a tensor that requires a gradient is refused. Where somebody follows PyTorch's operators,
and while kiln.torch.disabled(), PyTorch computes, in float32, with a gradient. Threads: as nn.Linear.
"""

from __future__ import annotations

import math
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn

from kiln import InvalidCall, Kernel, layer, packages

PACKAGE, VERSION = packages.of(__name__)

Result = Union[Tensor, tuple[Tensor, Tensor]]


def by_pytorch(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int) -> tuple[Tensor, Tensor]:
    """Of one sequence, by PyTorch's operators: q [T, HQ, D], k and v [S, HK, D] -> out, lse [HQ, T]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    group = q.shape[1] // k.shape[1]
    k, v = (t.to(wide).repeat_interleave(group, 1) for t in (k, v))
    scores = torch.einsum("thd,shd->hts", q.to(wide) * (scale or 1 / math.sqrt(q.shape[2])), k)
    key = torch.arange(k.shape[0], device=q.device)
    position = torch.arange(q.shape[0], device=q.device)[:, None] + (k.shape[0] - q.shape[0])
    unseen = torch.zeros_like(scores[0], dtype=torch.bool)
    if left >= 0:
        unseen |= key < position - left
    if right >= 0:
        unseen |= key > position + right
    scores = scores.masked_fill(unseen, -math.inf)
    lse = torch.logsumexp(scores, -1)
    powers = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    return torch.einsum("hts,shd->thd", powers, v).to(q.dtype), lse.to(torch.float32)


def _sequences(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor,
               *window: Any) -> tuple[Tensor, Tensor]:
    of_q, of_k = starts_q.tolist(), starts_k.tolist()
    results = [by_pytorch(q[a:b], k[c:d], v[c:d], *window) for a, b, c, d in zip(of_q, of_q[1:], of_k, of_k[1:])]
    return torch.cat([out for out, _ in results] or [q]), torch.cat([lse for _, lse in results] or [q.new_empty(
        q.shape[1], 0, dtype=torch.float32)], 1)


def _pages(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor,
           *window: Any) -> tuple[Tensor, Tensor]:
    """q: [B, tokens, HQ, D]."""
    results = []
    for one, table, length in zip(q, block_table.long(), lengths.tolist()):
        used = table[:-(-length // k_pages.shape[1])]
        k, v = (pages[used].flatten(0, 1)[:length] for pages in (k_pages, v_pages))
        results.append(by_pytorch(one, k, v, *window))
    return (torch.cat([out for out, _ in results] or [q.flatten(0, 1)]),
            torch.cat([lse for _, lse in results] or [q.new_empty(q.shape[2], 0, dtype=torch.float32)], 1))


# ---- the ops, as the package has them: q [T, HQ D], out [T, HQ, D] ----


def _rows(tensor: Tensor) -> Tensor:
    """[..., H, D] -> [T, H D], a view where the rows have one distance."""
    return tensor.reshape(-1, tensor.shape[-2] * tensor.shape[-1])


def _results(q: Tensor, head: int, with_lse: bool) -> list[Tensor]:
    out = q.new_empty(q.shape[0], q.shape[1] // head, head)
    return [out, q.new_empty(out.shape[1], out.shape[0], dtype=torch.float32)] if with_lse else [out]


def _prefill(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, head: int, with_lse: bool,
             key: str) -> list[Tensor]:
    results = _results(q, head, with_lse)
    layer.source_of(key).call(q.device, "prefill", {
        "q": q, "k": k, "v": v, "cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "out": results[0],
        "lse": results[1] if with_lse else None})
    return results


def _decode(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, with_lse: bool,
            key: str) -> list[Tensor]:
    results = _results(q, k_pages.shape[-1], with_lse)
    layer.source_of(key).call(q.device, "decode", {
        "q": q, "k_pages": k_pages, "v_pages": v_pages, "block_table": block_table, "lengths": lengths,
        "out": results[0], "lse": results[1] if with_lse else None})
    return results


def _append(k: Tensor, v: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, key: str) -> None:
    layer.source_of(key).call(k.device, "append", {"k": k, "v": v, "slots": slots, "k_pages": k_pages,
                                                   "v_pages": v_pages})


if layer.HAS_OPERATORS:
    _prefill_op = torch.library.custom_op(
        layer.operator_name("attention_prefill"), _prefill, mutates_args=(),
        schema="(Tensor q, Tensor k, Tensor v, Tensor starts_q, Tensor starts_k, int head, bool with_lse, str key) "
               "-> Tensor[]")
    _decode_op = torch.library.custom_op(
        layer.operator_name("attention_decode"), _decode, mutates_args=(),
        schema="(Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, Tensor lengths, bool with_lse, "
               "str key) -> Tensor[]")
    _append_op = torch.library.custom_op(
        layer.operator_name("attention_append"), _append, mutates_args=("k_pages", "v_pages"),
        schema="(Tensor k, Tensor v, Tensor slots, Tensor(a!) k_pages, Tensor(b!) v_pages, str key) -> ()")

    @_prefill_op.register_fake
    def _(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, head: int, with_lse: bool,
          key: str) -> list[Tensor]:
        return _results(q, head, with_lse)

    @_decode_op.register_fake
    def _(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, with_lse: bool,
          key: str) -> list[Tensor]:
        return _results(q, k_pages.shape[-1], with_lse)


# ---- the layer ----


class Attention(nn.Module):
    """softmax(scale q k^T) v. The last query of a sequence stands at its last key.

    causal: a query sees no key after its own. window: no more than that many keys, its own and those before it, which
    needs causal. scale: default 1 / sqrt(D). A query that sees no key gets zeros, and lse -inf. `options` are those of
    kiln.get_kernel.
    """

    def __init__(self, *, causal: bool = False, window: Optional[int] = None, scale: Optional[float] = None,
                 version: int = VERSION, **options: Any) -> None:
        super().__init__()
        layer.check_options(type(self).__name__, options)
        if window is not None and (not causal or window < 1):
            raise InvalidCall(f"attention: window is {window} with causal={causal}; expected 1 or more keys, with "
                              "causal=True")
        self.causal, self.window, self.scale, self.version, self._options = causal, window, scale, version, options
        self._bind()

    def _bind(self) -> None:
        left = {} if self.window is None else {"window_left": self.window - 1}
        scale = {} if self.scale is None else {"scale": float(self.scale)}
        right = {"window_right": 0} if self.causal else {}
        self._window = (self.scale or 0.0, -1 if self.window is None else self.window - 1, 0 if self.causal else -1)
        self._prefill_key = layer.key_of(PACKAGE, self.version, {**scale, **left, **right}, self._options)
        self._decode_key = layer.key_of(PACKAGE, self.version, {**scale, **left}, self._options)
        self._append_key = layer.key_of(PACKAGE, self.version, {}, self._options)
        self._told: set[str] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._bind()

    def kernel(self, device: Any) -> Kernel:
        return layer.source_of(self._append_key).kernel(torch.device(device))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Optional[Tensor] = None,
                cu_seqlens_k: Optional[Tensor] = None, *, with_lse: bool = False) -> Result:
        """out, as q; with_lse: and lse [HQ, all tokens of q], float32: log of the sum of the powers of a query's
        scores. cu_seqlens: where each sequence starts in q and in k and v, and where the last one ends, int32."""
        if (cu_seqlens_q is None) != (cu_seqlens_k is None):
            raise InvalidCall("attention: cu_seqlens_q or cu_seqlens_k is missing; expected both, or none of them")
        if cu_seqlens_q is None:
            cu_seqlens_q, cu_seqlens_k = _starts(q), _starts(k)
        if self._is_pytorchs(q, k, v):
            heads = [t.reshape(-1, *t.shape[-2:]) for t in (q, k, v)]
            out, lse = _sequences(*heads, cu_seqlens_q, cu_seqlens_k, *self._window)
            return (out.reshape(q.shape), lse) if with_lse else out.reshape(q.shape)
        call = _prefill_op if layer.goes_by_operators() else _prefill
        results = call(_rows(q), _rows(k), _rows(v), cu_seqlens_q, cu_seqlens_k, q.shape[-1], with_lse,
                       self._prefill_key)
        out = results[0].reshape(q.shape)
        return (out, results[1]) if with_lse else out

    def decode(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
               with_lse: bool = False) -> Result:
        """The last tokens of each sequence, causal: q [B, HQ, D] or [B, tokens, HQ, D] -> out, as q. Key n of sequence
        b is row n % PS of page block_table[b, n // PS], of lengths[b] keys, the new ones among them; both int32. In a
        CUDA graph the values of both may change from one replay to the next."""
        if self._is_pytorchs(q, k_pages, v_pages):
            four = q.reshape(block_table.shape[0], -1, *q.shape[-2:])
            window = (self._window[0], self._window[1], 0)
            out, lse = _pages(four, k_pages, v_pages, block_table, lengths, *window)
            return (out.reshape(q.shape), lse) if with_lse else out.reshape(q.shape)
        call = _decode_op if layer.goes_by_operators() else _decode
        results = call(_rows(q), k_pages, v_pages, block_table, lengths, with_lse, self._decode_key)
        out = results[0].reshape(q.shape)
        return (out, results[1]) if with_lse else out

    def append(self, k: Tensor, v: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
        """Writes k and v, [..., HK, D], into the pages: row n to row slots[n] % PS of page slots[n] // PS, int32; of a
        slot below 0 nothing is written. No two rows may have one slot."""
        if self._is_pytorchs(k, v, k_pages, v_pages):
            kept = slots >= 0
            for rows, pages in ((k, k_pages), (v, v_pages)):
                pages.flatten(0, 1)[slots[kept].long()] = rows.reshape(-1, *rows.shape[-2:])[kept]
            return
        call = _append_op if layer.goes_by_operators() else _append
        call(_rows(k), _rows(v), slots, k_pages, v_pages, self._append_key)

    def _is_pytorchs(self, *tensors: Tensor) -> bool:
        """Whether PyTorch computes a call. Refuses what needs a gradient."""
        if not layer.enabled():
            return True
        why = layer.why_pytorch(*tensors)
        if why != "":
            layer.tell(self._told, f"an {type(self).__name__}", why)
            return True
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise InvalidCall("attention: a tensor requires a gradient, and the package has no backward. Call it under "
                              "torch.no_grad(), or under kiln.torch.disabled(), where PyTorch computes it")
        return False

    def extra_repr(self) -> str:
        return f"causal={self.causal}, window={self.window}, scale={self.scale}, {PACKAGE}@{self.version}"


def _starts(tensor: Tensor) -> Tensor:
    """[..., T, H, D]: where each sequence starts, and where the last one ends."""
    tokens = tensor.shape[-3]
    sequences = tensor.shape[:-3].numel()
    return torch.arange(sequences + 1, dtype=torch.int32, device=tensor.device) * tokens
