# SPDX-License-Identifier: Apache-2.0
"""Gated MLPs of experts, of the tokens that a router sends to each.

A slot is one choice of a token: slot // top is the token. sort_slots puts the slots of each expert side by side and
cuts them into tiles of BLOCK_M; gated and down multiply tile by tile; combine adds what a token's slots gave. Numbers
of float8_e4m3fn have scales, of a row and 128 columns on the left, of 128 x 128 weights on the right, and lie in
blocks of 128, which the products' tiles are, too.
"""

import triton
import triton.language as tl


@triton.jit
def sort_slots(experts_ptr, order_ptr, tiles_ptr, slots, tiles, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each expert, which counts the slots of those before it, so that none waits for another.

    The expert whose slots are [first, end) of the order has the tiles first // BLOCK_M + expert to end // BLOCK_M +
    expert. They are enough, and one more at most, which has no rows; the last expert has all that are left."""
    expert = tl.program_id(0)
    first = 0
    own = 0
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        chosen = tl.load(experts_ptr + at, mask=at < slots, other=-1)
        first += tl.sum(((chosen >= 0) & (chosen < expert)).to(tl.int32), axis=0)
        own += tl.sum((chosen == expert).to(tl.int32), axis=0)
    place = first
    for start in range(0, slots, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_own = tl.load(experts_ptr + at, mask=at < slots, other=-1) == expert
        rank = tl.cumsum(is_own.to(tl.int32), axis=0)
        tl.store(order_ptr + place + rank - 1, at, mask=is_own)
        place += tl.sum(is_own.to(tl.int32), axis=0)
    end = first + own
    begin = first // BLOCK_M + expert
    limit = end // BLOCK_M + expert + 1
    if expert == tl.num_programs(0) - 1:
        limit = tiles
    for tile in range(begin, limit):
        row = first + (tile - begin) * BLOCK_M
        tl.store(tiles_ptr + 3 * tile, expert)
        tl.store(tiles_ptr + 3 * tile + 1, row)
        tl.store(tiles_ptr + 3 * tile + 2, tl.maximum(tl.minimum(end - row, BLOCK_M), 0))


@triton.jit
def tile_at(tiles_ptr, tile):
    """Expert, first place in the order, and rows: 0 of a tile that is not needed."""
    place = tiles_ptr + 3 * tile
    return tl.load(place).to(tl.int64), tl.load(place + 1).to(tl.int64), tl.load(place + 2)


@triton.jit
def place_of(tiles, columns, GROUP: tl.constexpr):
    """Tile and block of columns of this program. GROUP tiles take a block of columns after another, so that their rows
    and its weights come from the L2 cache."""
    number = tl.program_id(0)
    first = number // (GROUP * columns) * GROUP
    count = tl.minimum(tiles - first, GROUP)
    number = number % (GROUP * columns)
    return first + number % count, number // count


@triton.jit
def rounded(values):
    """Rows of 128 columns as float8_e4m3fn, and what they are divided by: the least power of two, at least 2^-100, that
    brings them to 448 or below; NaN where one of them is not finite."""
    most = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    exponent = tl.maximum((most + 0x1FFFFF >> 23) - 8, 27)  # of most / 448, rounded up: 448 is 1.75 times 2^8
    by = (254 - exponent << 23).to(tl.float32, bitcast=True)
    scale = tl.where(most < 0x7F800000, exponent << 23, 0x7FC00000).to(tl.float32, bitcast=True)
    return (values * by[:, None]).to(tl.float8e4nv), scale


@triton.jit
def round_rows(x_ptr, codes_ptr, scales_ptr, x_stride, rows, depth, BLOCK_M: tl.constexpr):
    """x as float8_e4m3fn."""
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    k = tl.program_id(1) * 128 + tl.arange(0, 128)
    is_there = (m < rows)[:, None] & (k < depth)[None, :]
    values = tl.load(x_ptr + m[:, None] * x_stride + k[None, :], mask=is_there, other=0.0).to(tl.float32)
    codes, scales = rounded(values)
    tl.store(codes_ptr + m[:, None] * depth + k[None, :], codes, mask=is_there)
    tl.store(scales_ptr + m * tl.num_programs(1) + tl.program_id(1), scales, mask=m < rows)


@triton.jit
def gated(x_ptr, x_scales_ptr, weights_ptr, weights_scales_ptr, order_ptr, tiles_ptr, hidden_ptr, hidden_scales_ptr,
          x_stride, top, tiles, hidden, depth, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
          GROUP: tl.constexpr):
    """A tile's rows of silu(x gate^T) * (x up^T), in the order of the slots."""
    tile, block = place_of(tiles, tl.cdiv(hidden, BLOCK_N), GROUP)
    expert, first, rows = tile_at(tiles_ptr, tile)
    if rows == 0:
        return
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = m < rows
    is_column = (n < hidden)[None, :]
    token = (tl.load(order_ptr + first + m, mask=is_row, other=0) // top).to(tl.int64)
    x = x_ptr + token[:, None] * x_stride + k[None, :]
    gate = weights_ptr + (expert * 2 * hidden + n)[None, :] * depth + k[:, None]
    up = gate + hidden.to(tl.int64) * depth
    blocks = tl.cdiv(depth, 128)
    row_blocks = tl.cdiv(hidden, 128)
    tl.static_assert(x_scales_ptr is None or BLOCK_N == 128 and BLOCK_K == 128)  # a scale for each
    of_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    of_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, depth, BLOCK_K):
        inside = k < depth - start
        a = tl.load(x, mask=is_row[:, None] & inside[None, :], other=0.0)
        b = tl.load(gate, mask=is_column & inside[:, None], other=0.0)
        c = tl.load(up, mask=is_column & inside[:, None], other=0.0)
        if x_scales_ptr is None:
            of_gate = tl.dot(a, b, of_gate)
            of_up = tl.dot(a, c, of_up)
        else:
            at = weights_scales_ptr + (expert * 2 * row_blocks + block) * blocks + start // 128
            scales = tl.load(x_scales_ptr + token * blocks + start // 128, mask=is_row, other=0.0)
            of_gate += tl.dot(a, b) * (scales * tl.load(at))[:, None]
            of_up += tl.dot(a, c) * (scales * tl.load(at + row_blocks * blocks))[:, None]
        x += BLOCK_K
        gate += BLOCK_K
        up += BLOCK_K
    values = of_gate * tl.sigmoid(of_gate) * of_up
    to = hidden_ptr + (first + m)[:, None] * hidden + n[None, :]
    if x_scales_ptr is None:
        tl.store(to, values.to(hidden_ptr.dtype.element_ty), mask=is_row[:, None] & is_column)
    else:
        codes, scales = rounded(values)
        tl.store(to, codes, mask=is_row[:, None] & is_column)
        tl.store(hidden_scales_ptr + (first + m) * row_blocks + block, scales, mask=is_row)


@triton.jit
def down(hidden_ptr, hidden_scales_ptr, weights_ptr, weights_scales_ptr, factors_ptr, order_ptr, tiles_ptr, parts_ptr,
         tiles, hidden, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
         GROUP: tl.constexpr):
    """A tile's rows times down^T and the slot's factor, each to the place of its slot."""
    tile, block = place_of(tiles, tl.cdiv(width, BLOCK_N), GROUP)
    expert, first, rows = tile_at(tiles_ptr, tile)
    if rows == 0:
        return
    m, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = m < rows
    is_column = (n < width)[None, :]
    slot = tl.load(order_ptr + first + m, mask=is_row, other=0).to(tl.int64)
    left = hidden_ptr + (first + m)[:, None] * hidden + k[None, :]
    right = weights_ptr + (expert * width + n)[None, :] * hidden + k[:, None]
    blocks = tl.cdiv(hidden, 128)
    tl.static_assert(hidden_scales_ptr is None or BLOCK_N == 128 and BLOCK_K == 128)  # a scale for each
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, hidden, BLOCK_K):
        inside = k < hidden - start
        a = tl.load(left, mask=is_row[:, None] & inside[None, :], other=0.0)
        b = tl.load(right, mask=is_column & inside[:, None], other=0.0)
        if hidden_scales_ptr is None:
            sums = tl.dot(a, b, sums)
        else:
            at = weights_scales_ptr + (expert * tl.cdiv(width, 128) + block) * blocks + start // 128
            scales = tl.load(hidden_scales_ptr + (first + m) * blocks + start // 128, mask=is_row, other=0.0)
            sums += tl.dot(a, b) * (scales * tl.load(at))[:, None]
        left += BLOCK_K
        right += BLOCK_K
    sums *= tl.load(factors_ptr + slot, mask=is_row, other=0.0)[:, None]
    tl.store(parts_ptr + slot[:, None] * width + n[None, :], sums.to(parts_ptr.dtype.element_ty),
             mask=is_row[:, None] & is_column)


@triton.jit
def combine(parts_ptr, experts_ptr, y_ptr, y_stride, top, experts, width, BLOCK: tl.constexpr):
    """The sum of a token's slots, in their order; those of no expert are left out."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for choice in range(0, top):
        slot = token * top + choice
        expert = tl.load(experts_ptr + slot)
        is_there = (expert >= 0) & (expert < experts)
        sums += tl.load(parts_ptr + slot * width + n, mask=(n < width) & is_there, other=0.0).to(tl.float32)
    tl.store(y_ptr + token * y_stride + n, sums.to(y_ptr.dtype.element_ty), mask=n < width)
