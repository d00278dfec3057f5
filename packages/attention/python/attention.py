# SPDX-License-Identifier: Apache-2.0
"""Attention for PyTorch: kiln.torch.Attention.

    attention = kiln.torch.Attention(causal=True)
    out = attention(q, k, v)                          # q [..., T, HQ, D], k and v [..., S, HK, D]; HQ a multiple of HK
    out = attention(q, k, v, starts, starts)          # sequences one after the other, [T, HQ, D]; starts: int32 {0, ..., T}
    attention.append(k, v, slots, k_pages, v_pages)   # into pages [P, PS, HK, D]
    out = attention.decode(q, k_pages, v_pages, block_table, lengths)     # q [B, HQ, D] or [B, tokens, HQ, D]

bfloat16 and float16, on CPUs float32 too; under torch.autocast in its dtype, as PyTorch's own, and in that of the pages,
where there are some. q, k and v may be views of one projection: heads side by side are read where they are, [T, HQ, D]
with any distance of the rows. PyTorch's own layout, heads before tokens, is copied.

Gradients of q, k and v come from the package's own backward; decode has none, and refuses what requires one. For a second
derivative and where somebody follows PyTorch's operators, PyTorch computes, in float32. Threads: as
nn.Linear.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import Tensor

from kiln import InvalidCall, layer, packages

PACKAGE, VERSION = packages.of(__name__)

Result = Union[Tensor, tuple[Tensor, Tensor]]


def by_pytorch(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int) -> tuple[Tensor, Tensor]:
    """Of sequences of one length, by PyTorch's operators: q [..., T, HQ, D], k and v [..., S, HK, D] -> out, and lse
    [..., HQ, T]."""
    key = torch.arange(k.shape[-3], device=q.device)
    position = torch.arange(q.shape[-3], device=q.device)[:, None] + (k.shape[-3] - q.shape[-3])
    return _masked(q, k, v, scale, _beyond(key, position, left, right))


def _beyond(key: Tensor, position: Tensor, left: int, right: int) -> Tensor:
    """Whether a key is out of the window of a query at this position."""
    unseen = torch.zeros_like(key < position)
    if left >= 0:
        unseen = unseen | (key < position - left)
    if right >= 0:
        unseen = unseen | (key > position + right)
    return unseen


def _masked(q: Tensor, k: Tensor, v: Tensor, scale: float, unseen: Tensor) -> tuple[Tensor, Tensor]:
    """unseen: [..., T, S]."""
    wide = torch.promote_types(q.dtype, torch.float32)
    heads = (q.to(wide) * (scale or 1 / math.sqrt(q.shape[-1]))).unflatten(-2, (k.shape[-2], -1))
    scores = torch.einsum("...thgd,...shd->...hgts", heads, k.to(wide))
    scores = scores.masked_fill(unseen[..., None, None, :, :], -math.inf)
    lse = torch.logsumexp(scores, -1)
    powers = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    out = torch.einsum("...hgts,...shd->...thgd", powers, v.to(wide))
    return out.flatten(-3, -2).to(q.dtype), lse.flatten(-3, -2).to(torch.float32)


def _sequences(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor,
               *window: Any) -> tuple[Tensor, Tensor]:
    """Rows after the last sequence are zeros, and lse -inf."""
    if not layer.knows_numbers(q, k, v, starts_q, starts_k):
        return _of_all_rows(q, k, v, starts_q, starts_k, *window)
    of_q, of_k = starts_q.tolist(), starts_k.tolist()
    results = [by_pytorch(q[a:b], k[c:d], v[c:d], *window) for a, b, c, d in zip(of_q, of_q[1:], of_k, of_k[1:])]
    outs, lses = [out for out, _ in results] or [q[:0]], [lse for _, lse in results]
    rest = q.shape[0] - sum(out.shape[0] for out in outs)
    return (torch.cat([*outs, q.new_zeros(rest, *q.shape[1:])]),
            torch.cat([*lses, q.new_full((q.shape[1], rest), -math.inf, dtype=torch.float32)], 1))


def _of_all_rows(q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, scale: float, left: int,
                 right: int) -> tuple[Tensor, Tensor]:
    """The same for whoever records it, whatever the starts are: scores of all rows with all, whose memory that takes, and
    a NaN of one sequence's values is in all others, too."""
    (of_q, in_q, is_q), (of_k, in_k, is_k) = (_places(t.shape[0], starts) for t, starts in ((q, starts_q), (k, starts_k)))
    behind = starts_k.diff()[of_q] - starts_q.diff()[of_q]
    unseen = _beyond(in_k, (in_q + behind)[:, None], left, right) | (of_q[:, None] != of_k) | ~(is_q[:, None] & is_k)
    q, k, v = (t.masked_fill(~known[:, None, None], 0) for t, known in ((q, is_q), (k, is_k), (v, is_k)))
    return _masked(q, k, v, scale, unseen)


def _places(rows: int, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: its sequence, its place there, and whether it has one."""
    row = torch.arange(rows, device=starts.device)
    after = torch.searchsorted(starts, row, right=True)
    sequence = (after - 1).clamp(0, starts.shape[0] - 2)
    return sequence, row - starts[sequence], (after > 0) & (after < starts.shape[0])


def _pages(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, scale: float, left: int,
           right: int) -> tuple[Tensor, Tensor]:
    """q: [B, tokens, HQ, D]. A page beyond a sequence's length may be none, and have anything in it."""
    page = torch.arange(block_table.shape[1], device=q.device) * k_pages.shape[1]
    table = block_table.long().masked_fill(page >= lengths[:, None], 0)
    key = torch.arange(block_table.shape[1] * k_pages.shape[1], device=q.device)
    is_key = key < lengths[:, None]
    k, v = (pages[table].flatten(1, 2).masked_fill(~is_key[..., None, None], 0) for pages in (k_pages, v_pages))
    position = lengths[:, None, None] - q.shape[1] + torch.arange(q.shape[1], device=q.device)[:, None]
    out, lse = _masked(q, k, v, scale, _beyond(key, position, left, right) | ~is_key[:, None])
    return out, lse.transpose(0, 1).flatten(1)


def _put(rows: Tensor, slots: Tensor, pages: Tensor) -> None:
    """append's part of one cache."""
    kept = slots >= 0
    used = slots[kept]
    pages[used // pages.shape[1], used % pages.shape[1]] = rows[kept]


def _put_recorded(rows: Tensor, slots: Tensor, pages: Tensor) -> None:
    """The same for whoever records it, whatever the slots are: it writes all of the cache."""
    count = pages.shape[0] * pages.shape[1]
    none = torch.full((count + 1,), rows.shape[0], device=slots.device)  # and a slot for what is not written
    of = none.scatter(0, torch.where(slots >= 0, slots, count), torch.arange(rows.shape[0], device=slots.device))[:-1]
    new = torch.cat((rows, rows.new_zeros(1, *rows.shape[1:])))[of].unflatten(0, pages.shape[:2])
    pages.copy_(torch.where((of < rows.shape[0]).view(*pages.shape[:2], 1, 1), new, pages))


# ---- the ops, as the package has them ----


def _rows(tensor: Tensor) -> Tensor:
    """[T, H, D] -> [T, H D], a view where heads lie side by side."""
    return layer.readable(tensor.reshape(tensor.shape[0], tensor.shape[1] * tensor.shape[2]))


class _Prefill(layer.Differentiable):
    """q: [T, HQ, D], k and v: [S, HK, D]. Gives out and lse; keeps all but what PyTorch makes of them again."""

    name, inputs, gradient_of = "attention", "q k v starts_q starts_k", (0, 1, 2, None, None)
    apart = {1: (2,)}

    def forward(self, inputs: layer.Tensors, key: str) -> list[Tensor]:
        q, k, v, starts_q, starts_k = inputs
        out, lse = self.like(inputs)
        layer.source_of(key).call(q.device, "prefill", {
            "q": _rows(q), "k": _rows(k), "v": _rows(v), "cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k, "out": out,
            "lse": lse})
        return [out, lse]

    def like(self, inputs: layer.Tensors) -> list[Tensor]:
        return _results(inputs[0])

    def memory(self, tensor: Tensor) -> Tensor:
        """For a gradient of it: compact, whatever the strides of q, k and v are."""
        return tensor.new_empty(tensor.shape)

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        return [*inputs[:3], *outputs, *inputs[3:]]

    def backward_like(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool]) -> layer.Tensors:
        return [self.memory(t) if want else None for t, want in zip(kept, wanted)]

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        q, k, v, out, lse, starts_q, starts_k = kept
        grad_out = torch.zeros_like(out) if grads[0] is None else grads[0].contiguous()
        found = [self.memory(t) for t in (q, k, v)]
        layer.source_of(key).call(q.device, "backward", {
            "grad_out": grad_out, "q": _rows(q), "k": _rows(k), "v": _rows(v), "out": out, "lse": lse,
            "cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k,
            "grad_lse": None if grads[1] is None else grads[1].contiguous(), "grad_q": _rows(found[0]),
            "grad_k": _rows(found[1]), "grad_v": _rows(found[2])})
        return [t if want else None for t, want in zip(found, wanted)]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        q, k, v, _, _, starts_q, starts_k = kept
        return [*_sequences(q, k, v, starts_q, starts_k, attributes.get("scale", 0.0),
                            attributes.get("window_left", -1), attributes.get("window_right", -1))]


class _Ragged(_Prefill):
    """Of starts that a caller has given. The rows after the last sequence, which no kernel writes and whose number the
    host does not know, are zeros, and lse -inf: who multiplies by them, as a later layer's gradient does, reads no
    memory of others."""

    name = "attention_ragged"

    def like(self, inputs: layer.Tensors) -> list[Tensor]:
        out, lse = super().like(inputs)
        return [out.zero_(), lse.fill_(-math.inf)]

    def memory(self, tensor: Tensor) -> Tensor:
        return tensor.new_zeros(tensor.shape)


_prefill, _ragged = _Prefill(), _Ragged()


def _results(q: Tensor) -> list[Tensor]:
    """out and lse of q [T, HQ, D]."""
    return [q.new_empty(q.shape), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)]


def _decode(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor,
            key: str) -> list[Tensor]:
    """q: [N, HQ, D]."""
    out, lse = _results(q)
    layer.source_of(key).call(q.device, "decode", {
        "q": _rows(q), "k_pages": k_pages, "v_pages": v_pages, "block_table": block_table, "lengths": lengths,
        "out": out, "lse": lse})
    return [out, lse]


def _append(k: Tensor, v: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor, key: str) -> None:
    layer.source_of(key).call(k.device, "append", {
        "k": _rows(k), "v": _rows(v), "slots": slots, "k_pages": k_pages, "v_pages": v_pages})


if layer.HAS_OPERATORS:
    _decode_op = torch.library.custom_op(
        layer.operator_name("attention_decode"), _decode, mutates_args=(),
        schema="(Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, Tensor lengths, str key) -> Tensor[]")
    _append_op = torch.library.custom_op(
        layer.operator_name("attention_append"), _append, mutates_args=("k_pages", "v_pages"),
        schema="(Tensor k, Tensor v, Tensor slots, Tensor(a!) k_pages, Tensor(b!) v_pages, str key) -> ()")

    @_decode_op.register_fake
    def _(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, key: str) -> list[Tensor]:
        return _results(q)


# ---- the layer ----


class Attention(layer.Layer):
    """softmax(scale q k^T) v. The last query of a sequence stands at its last key.

    causal: a query sees no key after its own. window: no more than that many keys, its own and those before it, which
    needs causal. scale: not 0; default 1 / sqrt(D). A query that sees no key gets zeros, and lse -inf. `options` are those of
    kiln.get_kernel.
    """

    def __init__(self, *, causal: bool = False, window: Optional[int] = None, scale: Optional[float] = None,
                 version: int = VERSION, **options: Any) -> None:
        if window is not None and (not causal or window < 1):
            raise InvalidCall(f"attention: window is {window} with causal={causal}; expected 1 or more keys, with "
                              "causal=True")
        if scale == 0:  # which the kernels take for the default
            raise InvalidCall(f"attention: scale is {scale}; expected another number, or None for 1 / sqrt(D)")
        super().__init__(PACKAGE, version, {
            "scale": 0.0 if scale is None else float(scale), "window_left": -1 if window is None else window - 1,
            "window_right": 0 if causal else -1}, options)

    def _bind(self) -> None:
        super()._bind()
        of_decode = {name: self.attributes[name] for name in ("scale", "window_left")}
        self._decode_key = layer.key_of(self.package, self.version, of_decode, self._options)
        self._append_key = layer.key_of(self.package, self.version, {}, self._options)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Optional[Tensor] = None,
                cu_seqlens_k: Optional[Tensor] = None, *, with_lse: bool = False) -> Result:
        """out, as q; with_lse: and lse [HQ, all tokens of q], float32: log of the sum of the powers of a query's
        scores. cu_seqlens: where each sequence starts in q and in k and v, and where the last one ends, int32 or int64.
        Of rows after that out is zeros and lse -inf, and their gradients are zeros."""
        if (cu_seqlens_q is None) != (cu_seqlens_k is None):
            raise InvalidCall("attention: cu_seqlens_q or cu_seqlens_k is missing; expected both, or none of them")
        if min(q.dim(), k.dim()) < 3:
            raise InvalidCall(f"attention: q is {layer.words_of(q)}, k is {layer.words_of(k)}; expected [..., tokens, "
                              "heads, head size]")
        if k.shape != v.shape or k.shape[-1] != q.shape[-1] or cu_seqlens_q is None and k.shape[:-3] != q.shape[:-3]:
            batches = f", and the leading extents of q, {list(q.shape[:-3])}" if cu_seqlens_q is None else ""
            raise InvalidCall(f"attention: k is {layer.words_of(k)}, v is {layer.words_of(v)}; expected k and v of one "
                              f"shape, whose heads are of {q.shape[-1]} as those of q{batches}")
        q, k, v = layer.cast(q, k, v)
        rows = [_tokens(t) for t in (q, k, v)]
        if not self.is_pytorchs(q, k, v):
            call, starts = ((_prefill, (_starts(q), _starts(k))) if cu_seqlens_q is None else
                            (_ragged, (_narrow(cu_seqlens_q), _narrow(cu_seqlens_k))))
            out, lse = call((*rows, *starts), self._key)
        elif cu_seqlens_q is None:
            out, lse = by_pytorch(q, k, v, *self.attributes.values())
            lse = lse.movedim(-2, 0).flatten(1)
        else:
            out, lse = _sequences(*rows, cu_seqlens_q, cu_seqlens_k, *self.attributes.values())
        return (out.reshape(q.shape), lse) if with_lse else out.reshape(q.shape)

    def decode(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, block_table: Tensor, lengths: Tensor, *,
               with_lse: bool = False) -> Result:
        """The last tokens of each sequence, causal: q [B, HQ, D] or [B, tokens, HQ, D] -> out, as q. Key n of sequence
        b is row n % PS of page block_table[b, n // PS], of lengths[b] keys, the new ones among them; both int32 or
        int64. In a CUDA graph the values of both may change from one replay to the next."""
        q, = _like(k_pages, q)
        if self.is_pytorchs(q, k_pages, v_pages):
            out, lse = _pages(q.reshape(block_table.shape[0], -1, *q.shape[-2:]), k_pages, v_pages, block_table, lengths,
                              self.attributes["scale"], self.attributes["window_left"], 0)
        else:
            _refuse_gradients("decode", q, k_pages, v_pages)
            call = _decode_op if layer.goes_by_operators() else _decode
            out, lse = call(_tokens(q), k_pages, v_pages, _narrow(block_table), _narrow(lengths), self._decode_key)
        return (out.reshape(q.shape), lse) if with_lse else out.reshape(q.shape)

    def append(self, k: Tensor, v: Tensor, slots: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
        """Writes k and v, [..., HK, D], into the pages: row n to row slots[n] % PS of page slots[n] // PS, int32 or
        int64; of a slot below 0 nothing is written. No two rows may have one slot."""
        for name, rows, pages in (("k", k, k_pages), ("v", v, v_pages)):
            if rows.shape[-2:] != pages.shape[-2:]:
                raise InvalidCall(f"attention: {name} is {layer.words_of(rows)}; expected heads as the pages have them, "
                                  f"[..., {', '.join(map(str, pages.shape[-2:]))}]")
        k, v = _like(k_pages, k, v)
        if self.is_pytorchs(k, v, k_pages, v_pages):
            put = _put if layer.knows_numbers(k, v, slots, k_pages, v_pages) else _put_recorded
            for rows, pages in ((k, k_pages), (v, v_pages)):
                put(_tokens(rows), slots.long(), pages)
            return
        _refuse_gradients("append", k, v, k_pages, v_pages)
        call = _append_op if layer.goes_by_operators() else _append
        call(_tokens(k), _tokens(v), _narrow(slots), k_pages, v_pages, self._append_key)


def _refuse_gradients(op: str, *tensors: Tensor) -> None:
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise InvalidCall(f"attention: a tensor of {op} requires a gradient, and {op} has none. Call it under "
                          "torch.no_grad(), or under kiln.torch.disabled(), where PyTorch computes it")


def _like(pages: Tensor, *rows: Tensor) -> list[Tensor]:
    """Under torch.autocast in the dtype of the pages, which stay as they are: a copy of all would be one for each call."""
    return [t if layer.autocast_dtype(t.device.type) is None else t.to(pages.dtype) for t in rows]


def _narrow(numbers: Tensor) -> Tensor:
    """As the ops take them: PyTorch's cumsum() gives int64. What counts rows of one memory fits into int32, and what does
    not stays as far from all of them as that has room for."""
    if numbers.dtype == torch.int64:
        limits = torch.iinfo(torch.int32)
        numbers = numbers.clamp(limits.min, limits.max).int()
    return layer.readable(numbers) if numbers.dim() == 2 else numbers.contiguous()


def _tokens(tensor: Tensor) -> Tensor:
    """[..., H, D] -> [T, H, D]."""
    return tensor.reshape(-1, *tensor.shape[-2:])


def _starts(tensor: Tensor) -> Tensor:
    """[..., T, H, D]: where each sequence starts, and where the last one ends."""
    tokens = tensor.shape[-3]
    sequences = tensor.shape[:-3].numel()
    return torch.arange(sequences + 1, dtype=torch.int32, device=tensor.device) * tokens
