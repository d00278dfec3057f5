# SPDX-License-Identifier: Apache-2.0
"""The GPU's attention: prefill, and its gradients; decode in parts of the keys, and the sum of the parts; append.

Softmax is computed block of keys after block in fp32 with a running maximum, in powers of 2: scores are multiplied by
scale log2(e). A program's rows are queries of one head and one sequence (prefill), or all queries of a sequence in the
heads that share a head of keys (decode). No kernel reads a key beyond a sequence's last.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NONE = tl.constexpr(float("-inf"))
FAR = tl.constexpr(0x3FFFFFFF)  # a window without bound; sequences are shorter


@triton.jit
def _scaled(q, scale, D: tl.constexpr):
    """q, and what its scores are multiplied by, which is not negative. A scale of 0 is 1 / sqrt(D)."""
    q = tl.where(scale < 0, -q, q)
    return q, tl.where(scale == 0, 1.0 / (D**0.5), tl.abs(scale)) * LOG2E


@triton.jit
def _add_block(values, total, most, scores, v, scale):
    """The sums of rows with a block of keys more. A row that has seen no key has a most of -inf."""
    larger = tl.maximum(most, tl.max(scores, 1) * scale)
    base = tl.where(larger == NONE, 0.0, larger)
    powers = tl.math.exp2(scores * scale - base[:, None])
    shrink = tl.math.exp2(most - base)
    values = tl.dot(powers.to(v.dtype), v, values * shrink[:, None])
    return values, total * shrink + tl.sum(powers, 1), larger


@triton.jit
def _sequence_of(block, starts, sequences, ROWS: tl.constexpr):
    """Blocks are numbered so that sequence b's begin at starts[b] // ROWS + b: some numbers are none's."""
    first = 0
    end = sequences
    while end - first > 1:
        middle = (first + end) // 2
        if tl.load(starts + middle) // ROWS + middle <= block:
            first = middle
        else:
            end = middle
    return first


@triton.jit
def prefill(q_ptr, k_ptr, v_ptr, q_starts, k_starts, out_ptr, lse_ptr, q_stride, k_stride, v_stride, tokens, sequences,
            heads, group, scale, left, right, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Grid: the numbers of blocks times the heads. A sequence's last blocks, which have most to do, come first."""
    program = tl.program_id(0)
    head = program % heads
    block = tokens // ROWS + sequences - 1 - program // heads
    sequence = _sequence_of(block, q_starts, sequences, ROWS)
    q_begin = tl.load(q_starts + sequence)
    queries = tl.load(q_starts + sequence + 1) - q_begin
    k_begin = tl.load(k_starts + sequence)
    keys = tl.load(k_starts + sequence + 1) - k_begin
    begin = (block - (q_begin // ROWS + sequence)) * ROWS
    if begin >= queries:
        return

    row = begin + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    q_ptr += q_begin.to(tl.int64) * q_stride + head * D
    q = tl.load(q_ptr + row[:, None].to(tl.int64) * q_stride + column[None, :], mask=row[:, None] < queries, other=0.0)
    q, scale = _scaled(q, scale, D)
    one_key = tl.arange(0, KEYS)
    k_at = one_key[None, :] * k_stride + column[:, None]
    v_at = one_key[:, None] * v_stride + column[None, :]

    # Keys [first, whole) are seen by all rows, and not looked at one by one; those of [whole, end) by some.
    position = row + keys - queries
    newest = tl.minimum(begin + ROWS, queries) - 1 + keys - queries
    oldest = begin + keys - queries
    first = tl.maximum(oldest - left, 0) // KEYS * KEYS
    end = tl.minimum(keys, newest + 1 + right)
    whole = tl.maximum(tl.minimum(keys, oldest + 1 + right), 0) // KEYS * KEYS
    whole = tl.where(left == FAR, whole, first)
    k_ptr += (k_begin + first).to(tl.int64) * k_stride + head // group * D
    v_ptr += (k_begin + first).to(tl.int64) * v_stride + head // group * D

    values = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    most = tl.full([ROWS], NONE, tl.float32)
    for start in tl.range(first, whole, KEYS):
        k = tl.load(k_ptr + k_at)
        scores = tl.dot(q, k)
        v = tl.load(v_ptr + v_at)
        values, total, most = _add_block(values, total, most, scores, v, scale)
        k_ptr += KEYS * k_stride
        v_ptr += KEYS * v_stride
    for start in tl.range(whole, end, KEYS):
        key = start + one_key
        k = tl.load(k_ptr + k_at, mask=key[None, :] < keys, other=0.0)
        seen = (key[None, :] < keys) & (key[None, :] >= position[:, None] - left)
        seen &= key[None, :] <= position[:, None] + right
        scores = tl.where(seen, tl.dot(q, k), NONE)
        v = tl.load(v_ptr + v_at, mask=key[:, None] < keys, other=0.0)
        values, total, most = _add_block(values, total, most, scores, v, scale)
        k_ptr += KEYS * k_stride
        v_ptr += KEYS * v_stride

    values = values / tl.where(total == 0, 1.0, total)[:, None]
    row = q_begin + row
    out_at = (row[:, None].to(tl.int64) * heads + head) * D + column[None, :]
    tl.store(out_ptr + out_at, values.to(out_ptr.dtype.element_ty), mask=row[:, None] < q_begin + queries)
    if lse_ptr is not None:
        lse = (most + tl.math.log2(total)) * LN2  # -inf where both are
        tl.store(lse_ptr + head.to(tl.int64) * tokens + row, lse, mask=row < q_begin + queries)


@triton.jit
def delta(grad_out_ptr, out_ptr, grad_lse_ptr, delta_ptr, tokens, heads, D: tl.constexpr):
    """Of each token and head, sum(grad_out out) less the gradient of lse. Grid: tokens times heads."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * D + tl.arange(0, D)
    products = tl.load(grad_out_ptr + at).to(tl.float32) * tl.load(out_ptr + at).to(tl.float32)
    of_row = tl.sum(products, 0)
    row = (program % heads).to(tl.int64) * tokens + program // heads
    if grad_lse_ptr is not None:
        of_row -= tl.load(grad_lse_ptr + row)
    tl.store(delta_ptr + row, of_row)


@triton.jit
def _gradients(q, k, v, grad_out, lse, deltas, seen, scale):
    """Of a block: the powers, and the gradients of the scores, both [rows, keys]. lse is in powers of 2."""
    powers = tl.where(seen, tl.math.exp2(tl.dot(q, tl.trans(k)) * scale - lse[:, None]), 0.0)
    of_powers = tl.dot(grad_out, tl.trans(v))
    return powers.to(q.dtype), (powers * (of_powers - deltas[:, None])).to(q.dtype)


@triton.jit
def backward_keys(q_ptr, k_ptr, v_ptr, grad_out_ptr, lse_ptr, delta_ptr, q_starts, k_starts, grad_k_ptr, grad_v_ptr,
                  q_stride, k_stride, v_stride, grad_k_stride, grad_v_stride, tokens, sequences, heads, group,
                  scale, left, right, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """The gradients of k and v. Grid: the numbers of blocks of keys times the heads of keys. A program adds up all
    queries of all heads that share its keys, in one order."""
    program = tl.program_id(0)
    kv_heads = heads // group
    kv_head = program % kv_heads
    block = program // kv_heads
    sequence = _sequence_of(block, k_starts, sequences, KEYS)
    q_begin = tl.load(q_starts + sequence)
    queries = tl.load(q_starts + sequence + 1) - q_begin
    k_begin = tl.load(k_starts + sequence)
    keys = tl.load(k_starts + sequence + 1) - k_begin
    begin = (block - (k_begin // KEYS + sequence)) * KEYS
    if begin >= keys:
        return

    key = begin + tl.arange(0, KEYS)
    is_key = key < keys
    column = tl.arange(0, D)
    key_row = (k_begin + key).to(tl.int64)
    k = tl.load(k_ptr + key_row[:, None] * k_stride + kv_head * D + column[None, :], mask=is_key[:, None], other=0.0)
    v = tl.load(v_ptr + key_row[:, None] * v_stride + kv_head * D + column[None, :], mask=is_key[:, None], other=0.0)
    exponent = tl.where(scale == 0, 1.0 / (D**0.5), scale)
    behind = keys - queries
    first = tl.maximum(begin - right - behind, 0) // ROWS * ROWS
    end = tl.minimum(queries, tl.minimum(begin + KEYS, keys) + left - behind)
    grad_k = tl.zeros([KEYS, D], tl.float32)
    grad_v = tl.zeros([KEYS, D], tl.float32)
    for number in tl.range(0, group):
        head = kv_head * group + number
        for start in tl.range(first, end, ROWS):
            row = start + tl.arange(0, ROWS)
            is_row = row < queries
            token = (q_begin + row).to(tl.int64)
            q = tl.load(q_ptr + token[:, None] * q_stride + head * D + column[None, :], mask=is_row[:, None], other=0.0)
            grad_out = tl.load(grad_out_ptr + (token[:, None] * heads + head) * D + column[None, :],
                               mask=is_row[:, None], other=0.0)
            lse = tl.load(lse_ptr + head.to(tl.int64) * tokens + token, mask=is_row, other=0.0) * LOG2E
            deltas = tl.load(delta_ptr + head.to(tl.int64) * tokens + token, mask=is_row, other=0.0)
            position = row + behind
            seen = is_row[:, None] & is_key[None, :] & (key[None, :] >= position[:, None] - left)
            seen &= key[None, :] <= position[:, None] + right
            powers, of_scores = _gradients(q, k, v, grad_out, lse, deltas, seen, exponent * LOG2E)
            grad_v = tl.dot(tl.trans(powers), grad_out, grad_v)
            grad_k = tl.dot(tl.trans(of_scores), q, grad_k)
    grad_k_at = key_row[:, None] * grad_k_stride + kv_head * D + column[None, :]
    grad_v_at = key_row[:, None] * grad_v_stride + kv_head * D + column[None, :]
    tl.store(grad_k_ptr + grad_k_at, (grad_k * exponent).to(grad_k_ptr.dtype.element_ty), mask=is_key[:, None])
    tl.store(grad_v_ptr + grad_v_at, grad_v.to(grad_v_ptr.dtype.element_ty), mask=is_key[:, None])


@triton.jit
def backward_queries(q_ptr, k_ptr, v_ptr, grad_out_ptr, lse_ptr, delta_ptr, q_starts, k_starts, grad_q_ptr, q_stride,
                     k_stride, v_stride, grad_q_stride, tokens, sequences, heads, group, scale, left, right,
                     D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """The gradient of q. Grid: as prefill's."""
    program = tl.program_id(0)
    head = program % heads
    block = tokens // ROWS + sequences - 1 - program // heads
    sequence = _sequence_of(block, q_starts, sequences, ROWS)
    q_begin = tl.load(q_starts + sequence)
    queries = tl.load(q_starts + sequence + 1) - q_begin
    k_begin = tl.load(k_starts + sequence)
    keys = tl.load(k_starts + sequence + 1) - k_begin
    begin = (block - (q_begin // ROWS + sequence)) * ROWS
    if begin >= queries:
        return

    row = begin + tl.arange(0, ROWS)
    is_row = row < queries
    column = tl.arange(0, D)
    token = (q_begin + row).to(tl.int64)
    q = tl.load(q_ptr + token[:, None] * q_stride + head * D + column[None, :], mask=is_row[:, None], other=0.0)
    grad_out_at = (token[:, None] * heads + head) * D + column[None, :]
    grad_out = tl.load(grad_out_ptr + grad_out_at, mask=is_row[:, None], other=0.0)
    lse = tl.load(lse_ptr + head.to(tl.int64) * tokens + token, mask=is_row, other=0.0) * LOG2E
    deltas = tl.load(delta_ptr + head.to(tl.int64) * tokens + token, mask=is_row, other=0.0)
    exponent = tl.where(scale == 0, 1.0 / (D**0.5), scale)
    position = row + keys - queries
    newest = tl.minimum(begin + ROWS, queries) - 1 + keys - queries
    first = tl.maximum(begin + keys - queries - left, 0) // KEYS * KEYS
    end = tl.minimum(keys, newest + 1 + right)
    grad_q = tl.zeros([ROWS, D], tl.float32)
    for start in tl.range(first, end, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = key < keys
        key_row = (k_begin + key).to(tl.int64)
        at = head // group * D + column
        k = tl.load(k_ptr + key_row[:, None] * k_stride + at[None, :], mask=is_key[:, None], other=0.0)
        v = tl.load(v_ptr + key_row[:, None] * v_stride + at[None, :], mask=is_key[:, None], other=0.0)
        seen = is_row[:, None] & is_key[None, :] & (key[None, :] >= position[:, None] - left)
        seen &= key[None, :] <= position[:, None] + right
        _, of_scores = _gradients(q, k, v, grad_out, lse, deltas, seen, exponent * LOG2E)
        grad_q = tl.dot(of_scores, k, grad_q)
    grad_q_at = token[:, None] * grad_q_stride + head * D + column[None, :]
    tl.store(grad_q_ptr + grad_q_at, (grad_q * exponent).to(grad_q_ptr.dtype.element_ty), mask=is_row[:, None])


@triton.jit
def decode(q_ptr, k_pages, v_pages, table_ptr, lengths, values_ptr, lse_ptr, q_stride, table_stride, page_rows, tokens,
           kv_heads, group, parts, scale, left, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """Grid: sequences times heads of keys times parts. A part has the same number of keys, a multiple of KEYS, in each
    sequence as the others but the last. values and lse, in powers of 2, are those of the part alone."""
    program = tl.program_id(0)
    part = program % parts
    kv_head = program // parts % kv_heads
    sequence = program // parts // kv_heads
    keys = tl.load(lengths + sequence)
    size = tl.cdiv(tl.cdiv(keys, parts), KEYS) * KEYS
    first = part * size
    end = tl.minimum(first + size, keys)
    first = tl.maximum(first, (keys - tokens - left) // KEYS * KEYS)

    row = tl.arange(0, ROWS)
    token = row // group
    is_row = token < tokens
    head = kv_head * group + row % group
    column = tl.arange(0, D)
    query = sequence * tokens + token
    q_at = query[:, None].to(tl.int64) * q_stride + head[:, None] * D + column[None, :]
    q = tl.load(q_ptr + q_at, mask=is_row[:, None], other=0.0)
    q, scale = _scaled(q, scale, D)
    position = keys - tokens + token
    table_ptr += sequence.to(tl.int64) * table_stride

    values = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    most = tl.full([ROWS], NONE, tl.float32)
    for start in tl.range(first, end, KEYS):
        key = start + tl.arange(0, KEYS)
        is_key = key < end
        page = tl.load(table_ptr + key // page_rows, mask=is_key, other=0).to(tl.int64)
        at = ((page * page_rows + key % page_rows) * kv_heads + kv_head) * D
        k = tl.load(k_pages + at[None, :] + column[:, None], mask=is_key[None, :], other=0.0)
        seen = is_key[None, :] & (key[None, :] <= position[:, None]) & (key[None, :] >= position[:, None] - left)
        scores = tl.where(seen, tl.dot(q, k), NONE)
        v = tl.load(v_pages + at[:, None] + column[None, :], mask=is_key[:, None], other=0.0)
        values, total, most = _add_block(values, total, most, scores, v, scale)

    values = values / tl.where(total == 0, 1.0, total)[:, None]
    place = (query.to(tl.int64) * (kv_heads * group) + head) * parts + part
    tl.store(values_ptr + place[:, None] * D + column[None, :], values, mask=is_row[:, None])
    tl.store(lse_ptr + place, most + tl.math.log2(total), mask=is_row)


@triton.jit
def sum_parts(values_ptr, lses_ptr, out_ptr, lse_ptr, tokens, heads, parts, D: tl.constexpr, PARTS: tl.constexpr,
              AT_ONCE: tl.constexpr):
    """Grid: tokens times heads; PARTS is at least `parts`."""
    program = tl.program_id(0)
    first = program.to(tl.int64) * parts
    every = tl.arange(0, PARTS)
    most = tl.max(tl.load(lses_ptr + first + every, mask=every < parts, other=NONE), 0)
    base = tl.where(most == NONE, 0.0, most)
    column = tl.arange(0, D)
    values = tl.zeros([D], tl.float32)
    total = 0.0
    for start in tl.range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        lse = tl.load(lses_ptr + first + part, mask=part < parts, other=NONE)
        power = tl.math.exp2(lse - base)
        at = (first + part)[:, None] * D + column[None, :]
        values += tl.sum(tl.load(values_ptr + at, mask=(lse > NONE)[:, None], other=0.0) * power[:, None], 0)
        total += tl.sum(power, 0)
    values = values / tl.where(total == 0, 1.0, total)
    tl.store(out_ptr + program.to(tl.int64) * D + column, values.to(out_ptr.dtype.element_ty))
    if lse_ptr is not None:
        lse_at = (program % heads).to(tl.int64) * tokens + program // heads
        tl.store(lse_ptr + lse_at, (base + tl.math.log2(total)) * LN2)


@triton.jit
def append(k_ptr, v_ptr, slots, k_pages, v_pages, k_stride, v_stride, width, COLUMNS: tl.constexpr):
    """Grid: rows, by blocks of columns."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < tl.where(slot < 0, 0, width)
    k = tl.load(k_ptr + row * k_stride + column, mask=mask)
    v = tl.load(v_ptr + row * v_stride + column, mask=mask)
    tl.store(k_pages + slot * width + column, k, mask=mask)
    tl.store(v_pages + slot * width + column, v, mask=mask)
