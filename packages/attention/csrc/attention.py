# SPDX-License-Identifier: Apache-2.0
"""The GPU's attention: prefill, and its gradients; decode in parts of the keys, and the sum of the parts; append.

Softmax is computed block of keys after block in fp32 with a running maximum, in powers of 2: scores are multiplied by
scale log2(e). A program's rows are queries of one head and one sequence (prefill), or all queries of a sequence in the
heads that share a head of keys (decode). Blocks that are seen as a whole are not looked at key by key; where the GPU has
a copy engine for them, they come by descriptors. What kernels compute with is not read beyond a sequence's last key.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NONE = tl.constexpr(float("-inf"))
FAR = tl.constexpr(0x3FFFFFFF)  # a window without bound; sequences are shorter


@triton.jit
def _scaled(scale, D: tl.constexpr):
    """The sign of scale, and what |scores| are multiplied by. A scale of 0 is 1 / sqrt(D)."""
    return tl.where(scale < 0, -1.0, 1.0), tl.where(scale == 0, 1.0 / (D**0.5), tl.abs(scale)) * LOG2E


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
def _whole(first, end, low, high, SIZE: tl.constexpr):
    """Of the blocks of [first, end), those of [whole, edge) lie in [low, high) as a whole; and how much the others cover,
    whose starts _other() tells."""
    last = tl.maximum(tl.cdiv(end, SIZE) * SIZE, first)
    whole = tl.minimum(tl.cdiv(tl.maximum(low, first), SIZE) * SIZE, last)
    edge = tl.minimum(tl.maximum(tl.maximum(high, 0) // SIZE * SIZE, whole), last)
    return whole, edge, whole - first + last - edge


@triton.jit
def _other(start, whole, edge):
    return tl.where(start < whole, start, start - whole + edge)


@triton.jit
def prefill(q_ptr, k_ptr, v_ptr, k_map, v_map, q_starts, k_starts, out_ptr, lse_ptr, q_stride, k_stride, v_stride, tokens,
            sequences, heads, group, scale, left, right, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
            MAPPED: tl.constexpr):
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
    sign, scale = _scaled(scale, D)
    one_key = tl.arange(0, KEYS)
    k_at = one_key[None, :] * k_stride + column[:, None]
    v_at = one_key[:, None] * v_stride + column[None, :]
    kv_column = head // group * D
    k_ptr += k_begin.to(tl.int64) * k_stride + kv_column
    v_ptr += k_begin.to(tl.int64) * v_stride + kv_column

    position = row + keys - queries
    oldest = begin + keys - queries
    newest = tl.minimum(begin + ROWS, queries) - 1 + keys - queries
    first = tl.maximum(oldest - left, 0) // KEYS * KEYS
    # Whole blocks go without the sign, which costs time, and is rarely asked for.
    by_all = tl.where(sign < 0, 0, tl.minimum(keys, oldest + 1 + right))
    whole, edge, others = _whole(first, tl.minimum(keys, newest + 1 + right), newest - left, by_all, KEYS)

    values = tl.zeros([ROWS, D], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    most = tl.full([ROWS], NONE, tl.float32)
    k_next = k_ptr + whole.to(tl.int64) * k_stride
    v_next = v_ptr + whole.to(tl.int64) * v_stride
    for start in tl.range(whole, edge, KEYS):
        if MAPPED:
            k = tl.trans(k_map.load([k_begin + start, kv_column]))
        else:
            k = tl.load(k_next + k_at)
        scores = tl.dot(q, k)
        if MAPPED:
            v = v_map.load([k_begin + start, kv_column])
        else:
            v = tl.load(v_next + v_at)
        values, total, most = _add_block(values, total, most, scores, v, scale)
        k_next += KEYS * k_stride
        v_next += KEYS * v_stride
    for done in tl.range(0, others, KEYS):
        start = _other(first + done, whole, edge)
        key = start + one_key
        k = tl.load(k_ptr + start.to(tl.int64) * k_stride + k_at, mask=key[None, :] < keys, other=0.0)
        seen = (key[None, :] < keys) & (key[None, :] >= position[:, None] - left)
        seen &= key[None, :] <= position[:, None] + right
        scores = tl.where(seen, tl.dot(q, k) * sign, NONE)
        v = tl.load(v_ptr + start.to(tl.int64) * v_stride + v_at, mask=key[:, None] < keys, other=0.0)
        values, total, most = _add_block(values, total, most, scores, v, scale)

    values = values / tl.where(total == 0, 1.0, total)[:, None]
    row = q_begin + row
    out_at = (row[:, None].to(tl.int64) * heads + head) * D + column[None, :]
    tl.store(out_ptr + out_at, values.to(out_ptr.dtype.element_ty), mask=row[:, None] < q_begin + queries)
    if lse_ptr is not None:
        lse = (most + tl.math.log2(total)) * LN2  # -inf where both are
        tl.store(lse_ptr + head.to(tl.int64) * tokens + row, lse, mask=row < q_begin + queries)


@triton.jit
def delta(grad_out_ptr, out_ptr, grad_lse_ptr, delta_ptr, tokens, heads, D: tl.constexpr, ROWS: tl.constexpr):
    """Of each token and head, sum(grad_out out) less the gradient of lse. Grid: tokens times heads, by blocks."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < tokens.to(tl.int64) * heads
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    grad_out = tl.load(grad_out_ptr + at, mask=is_row[:, None], other=0.0).to(tl.float32)
    of_row = tl.sum(grad_out * tl.load(out_ptr + at, mask=is_row[:, None], other=0.0).to(tl.float32), 1)
    place = row % heads * tokens + row // heads
    if grad_lse_ptr is not None:
        of_row -= tl.load(grad_lse_ptr + place, mask=is_row, other=0.0)
    tl.store(delta_ptr + place, of_row, mask=is_row)


@triton.jit
def _powers(scores, lse, scale, seen):
    """exp2(scores scale - lse), and 0 where a key is not seen."""
    powers = tl.math.exp2(scores * scale - lse)
    if seen is not None:
        powers = tl.where(seen, powers, 0.0)
    return powers


@triton.jit
def _add_queries(grad_k, grad_v, k, v, q, grad_out, lse, deltas, seen, scale, OF_K: tl.constexpr, OF_V: tl.constexpr):
    """The gradients of a block of keys with a block of queries more. Scores are [keys, queries], so that what is made of
    them goes on into the next product without a way through shared memory."""
    powers = _powers(tl.dot(k, tl.trans(q)), (lse * LOG2E)[None, :], scale, seen)
    if OF_V:
        grad_v = tl.dot(powers.to(k.dtype), grad_out, grad_v)
    if OF_K:
        of_powers = tl.dot(v, tl.trans(grad_out))
        grad_k = tl.dot((powers * (of_powers - deltas[None, :])).to(k.dtype), q, grad_k)
    return grad_k, grad_v


@triton.jit
def backward_keys(q_ptr, k_ptr, v_ptr, grad_out_ptr, q_map, grad_out_map, lse_ptr, delta_ptr, q_starts, k_starts, grad_k_ptr,
                  grad_v_ptr, q_stride, k_stride, v_stride, grad_k_stride, grad_v_stride, tokens, sequences, heads, group,
                  scale, left, right, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, OF_K: tl.constexpr,
                  OF_V: tl.constexpr, MAPPED: tl.constexpr):
    """The gradients of k and v, or of one of them. Grid: the numbers of blocks of keys times the heads of keys. A program
    adds up all queries of all heads that share its keys, in one order."""
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
    by_all = tl.where(begin + KEYS <= keys, tl.minimum(queries, begin + left + 1 - behind), 0)
    whole, edge, others = _whole(first, end, begin + KEYS - 1 - right - behind, by_all, ROWS)
    grad_k = tl.zeros([KEYS, D], tl.float32)
    grad_v = tl.zeros([KEYS, D], tl.float32)
    one_row = tl.arange(0, ROWS)
    q_at = one_row[:, None] * q_stride + column[None, :]
    grad_out_at = one_row[:, None] * (heads * D) + column[None, :]
    for number in tl.range(0, group):
        head = kv_head * group + number
        q_head = q_ptr + q_begin.to(tl.int64) * q_stride + head * D
        grad_out_head = grad_out_ptr + (q_begin.to(tl.int64) * heads + head) * D
        lse_head = lse_ptr + head.to(tl.int64) * tokens + q_begin
        delta_head = delta_ptr + head.to(tl.int64) * tokens + q_begin
        for start in tl.range(whole, edge, ROWS):
            if MAPPED:
                q = q_map.load([q_begin + start, head * D])
                grad_out = grad_out_map.load([q_begin + start, head * D])
            else:
                q = tl.load(q_head + start.to(tl.int64) * q_stride + q_at)
                grad_out = tl.load(grad_out_head + start.to(tl.int64) * heads * D + grad_out_at)
            lse = tl.load(lse_head + start + one_row)
            deltas = tl.load(delta_head + start + one_row)
            grad_k, grad_v = _add_queries(grad_k, grad_v, k, v, q, grad_out, lse, deltas, None, exponent * LOG2E, OF_K, OF_V)
        for done in tl.range(0, others, ROWS):
            start = _other(first + done, whole, edge)
            row = start + one_row
            is_row = row < queries
            q = tl.load(q_head + start.to(tl.int64) * q_stride + q_at, mask=is_row[:, None], other=0.0)
            grad_out = tl.load(grad_out_head + start.to(tl.int64) * heads * D + grad_out_at, mask=is_row[:, None], other=0.0)
            lse = tl.load(lse_head + row, mask=is_row, other=0.0)
            deltas = tl.load(delta_head + row, mask=is_row, other=0.0)
            position = row + behind
            seen = is_row[None, :] & is_key[:, None] & (key[:, None] >= position[None, :] - left)
            seen &= key[:, None] <= position[None, :] + right
            grad_k, grad_v = _add_queries(grad_k, grad_v, k, v, q, grad_out, lse, deltas, seen, exponent * LOG2E, OF_K, OF_V)
    grad_k_at = key_row[:, None] * grad_k_stride + kv_head * D + column[None, :]
    grad_v_at = key_row[:, None] * grad_v_stride + kv_head * D + column[None, :]
    if OF_K:
        tl.store(grad_k_ptr + grad_k_at, (grad_k * exponent).to(grad_k_ptr.dtype.element_ty), mask=is_key[:, None])
    if OF_V:
        tl.store(grad_v_ptr + grad_v_at, grad_v.to(grad_v_ptr.dtype.element_ty), mask=is_key[:, None])


@triton.jit
def _add_keys(grad_q, q, grad_out, lse, deltas, k, v, seen, scale):
    """The gradient of a block of queries with a block of keys more."""
    powers = _powers(tl.dot(q, tl.trans(k)), lse[:, None], scale, seen)
    of_powers = tl.dot(grad_out, tl.trans(v))
    return tl.dot((powers * (of_powers - deltas[:, None])).to(k.dtype), k, grad_q)


@triton.jit
def backward_queries(q_ptr, k_ptr, v_ptr, grad_out_ptr, k_map, v_map, lse_ptr, delta_ptr, q_starts, k_starts, grad_q_ptr,
                     q_stride, k_stride, v_stride, grad_q_stride, tokens, sequences, heads, group, scale, left, right,
                     D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, MAPPED: tl.constexpr):
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
    oldest = begin + keys - queries
    newest = tl.minimum(begin + ROWS, queries) - 1 + keys - queries
    first = tl.maximum(oldest - left, 0) // KEYS * KEYS
    end = tl.minimum(keys, newest + 1 + right)
    whole, edge, others = _whole(first, end, newest - left, tl.minimum(keys, oldest + 1 + right), KEYS)
    one_key = tl.arange(0, KEYS)
    k_at = one_key[:, None] * k_stride + column[None, :]
    v_at = one_key[:, None] * v_stride + column[None, :]
    kv_column = head // group * D
    k_ptr += k_begin.to(tl.int64) * k_stride + kv_column
    v_ptr += k_begin.to(tl.int64) * v_stride + kv_column
    grad_q = tl.zeros([ROWS, D], tl.float32)
    for start in tl.range(whole, edge, KEYS):
        if MAPPED:
            k = k_map.load([k_begin + start, kv_column])
            v = v_map.load([k_begin + start, kv_column])
        else:
            k = tl.load(k_ptr + start.to(tl.int64) * k_stride + k_at)
            v = tl.load(v_ptr + start.to(tl.int64) * v_stride + v_at)
        grad_q = _add_keys(grad_q, q, grad_out, lse, deltas, k, v, None, exponent * LOG2E)
    for done in tl.range(0, others, KEYS):
        start = _other(first + done, whole, edge)
        key = start + one_key
        is_key = key < keys
        k = tl.load(k_ptr + start.to(tl.int64) * k_stride + k_at, mask=is_key[:, None], other=0.0)
        v = tl.load(v_ptr + start.to(tl.int64) * v_stride + v_at, mask=is_key[:, None], other=0.0)
        seen = is_key[None, :] & (key[None, :] >= position[:, None] - left)
        seen &= key[None, :] <= position[:, None] + right
        grad_q = _add_keys(grad_q, q, grad_out, lse, deltas, k, v, seen, exponent * LOG2E)
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
    sign, scale = _scaled(scale, D)
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
        scores = tl.where(seen, tl.dot(q, k) * sign, NONE)
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
