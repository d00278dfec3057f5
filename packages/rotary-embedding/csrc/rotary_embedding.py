# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding: a program turns some heads of one row, in fp32; and the tables of its cosines and sines."""

import triton
import triton.language as tl


@triton.jit
def rotate(x_ptr, positions_ptr, cos_ptr, sin_ptr, out_ptr, x_stride, out_stride, heads, head_dim, half, length,
           INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    x_ptr += row * x_stride + head * head_dim
    out_ptr += row * out_stride + head * head_dim
    pair = tl.arange(0, BLOCK)
    position = tl.load(positions_ptr + row).to(tl.int64)
    known = pair < tl.where((position >= 0) & (position < length), half, 0)
    cos = tl.load(cos_ptr + position * half + pair, mask=known, other=float("nan"))[None, :]
    sin = tl.load(sin_ptr + position * half + pair, mask=known, other=float("nan"))[None, :]
    if INVERSE:
        sin = -sin
    mask = (head < heads) & (pair < half)[None, :]
    if INTERLEAVED:
        columns = tl.arange(0, 2 * BLOCK)[None, :]
        both = (head < heads) & (columns < 2 * half)
        x = tl.load(x_ptr + columns, mask=both, other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, [HEADS, BLOCK, 2]))
        y = tl.reshape(tl.join(a * cos - b * sin, b * cos + a * sin), [HEADS, 2 * BLOCK])
        tl.debug_barrier()  # every thread has read: out may be x
        tl.store(out_ptr + columns, y, mask=both)
    else:
        a = tl.load(x_ptr + pair[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x_ptr + half + pair[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.debug_barrier()
        tl.store(out_ptr + pair[None, :], a * cos - b * sin, mask=mask)
        tl.store(out_ptr + half + pair[None, :], b * cos + a * sin, mask=mask)
    for first in range(2 * half, head_dim, BLOCK):  # what is not turned
        rest = first + pair[None, :]
        inside = (head < heads) & (rest < head_dim)
        tl.store(out_ptr + rest, tl.load(x_ptr + rest, mask=inside), mask=inside)


@triton.jit
def tables(frequencies_ptr, cos_ptr, sin_ptr, half, count, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    frequency = tl.load(frequencies_ptr + at % half, mask=inside, other=0.0)
    angle = (at // half).to(tl.float64) * frequency
    turn: tl.constexpr = 6.283185307179586
    angle = (angle - tl.floor(angle / turn + 0.5) * turn).to(tl.float32)  # within a half turn fp32 is enough
    tl.store(cos_ptr + at, tl.cos(angle) * scale, mask=inside)
    tl.store(sin_ptr + at, tl.sin(angle) * scale, mask=inside)
