# SPDX-License-Identifier: Apache-2.0
"""Draws a token of each row of logits: a program computes a row, masses in fp32 and their sums in fp64.

What top-k, top-p and min-p leave are the logits from some value on, so that equal ones stay or go together. Logits are
compared by keys, integers in the order of the values. The least key that stays is found by taking a range of keys in
four, until one logit is left in it or one key.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
RUN = tl.constexpr(8)  # neighbours that one thread reads: 16 bytes of a 2-byte dtype


@triton.jit
def key_of(z, SHIFT: tl.constexpr):
    """Of a logit as float32, of which SHIFT bits are none of its dtype's; 0 and -0 have one key."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def mass_of(z, greatest, scale):
    """In units of the greatest logit's: 1 of that."""
    return tl.where(z == -float("inf"), 0.0, tl.math.exp2((z - greatest) * scale))


@triton.jit
def from_keys(logits_ptr, n, greatest, scale, a, b, c, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """How many logits have keys of at least a, b and c, and their masses."""
    columns = tl.arange(0, BLOCK // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    count_a = tl.zeros([BLOCK // RUN], tl.int32)
    count_b, count_c = count_a, count_a
    mass_a = tl.zeros([BLOCK // RUN], tl.float32)
    mass_b, mass_c = mass_a, mass_a
    for first in range(0, n, BLOCK):
        z = tl.load(logits_ptr + first + columns, mask=columns < n - first, other=-float("inf")).to(tl.float32)
        key = key_of(z, SHIFT)
        mass = mass_of(z, greatest, scale)
        count_a += tl.sum((key >= a).to(tl.int32), axis=1)
        count_b += tl.sum((key >= b).to(tl.int32), axis=1)
        count_c += tl.sum((key >= c).to(tl.int32), axis=1)
        mass_a += tl.sum(tl.where(key >= a, mass, 0.0), axis=1)
        mass_b += tl.sum(tl.where(key >= b, mass, 0.0), axis=1)
        mass_c += tl.sum(tl.where(key >= c, mass, 0.0), axis=1)
    return (tl.sum(count_a, axis=0), tl.sum(count_b, axis=0), tl.sum(count_c, axis=0),
            tl.sum(mass_a.to(tl.float64), axis=0), tl.sum(mass_b.to(tl.float64), axis=0),
            tl.sum(mass_c.to(tl.float64), axis=0))


@triton.jit
def search(logits_ptr, n, greatest, scale, low, count, mass, wanted, share, BLOCK: tl.constexpr,
           SHIFT: tl.constexpr):
    """The greatest key from which on there are `wanted` logits and `share` of mass, and how many and how much there are
    then. From `low` on there are enough: `count` logits and `mass`."""
    high = key_of(greatest, SHIFT) + 1
    beyond = count - count  # logits from `high` on
    while (high > low + 1) & (count > beyond + 1):
        step = (high.to(tl.int64) - low + 3) // 4
        a = (low + step).to(tl.int32)
        b = tl.minimum(low + 2 * step, high.to(tl.int64)).to(tl.int32)
        c = tl.minimum(low + 3 * step, high.to(tl.int64)).to(tl.int32)
        count_a, count_b, count_c, mass_a, mass_b, mass_c = from_keys(logits_ptr, n, greatest, scale, a, b, c, BLOCK,
                                                                      SHIFT)
        holds_a = (a < high) & (count_a >= wanted) & (mass_a >= share)
        holds_b = (b < high) & (count_b >= wanted) & (mass_b >= share)
        holds_c = (c < high) & (count_c >= wanted) & (mass_c >= share)
        beyond = tl.where(holds_c, beyond, tl.where(holds_b, count_c, tl.where(holds_a, count_b, count_a)))
        high = tl.where(holds_c, high, tl.where(holds_b, c, tl.where(holds_a, b, a)))
        count = tl.where(holds_c, count_c, tl.where(holds_b, count_b, tl.where(holds_a, count_a, count)))
        mass = tl.where(holds_c, mass_c, tl.where(holds_b, mass_b, tl.where(holds_a, mass_a, mass)))
        low = tl.where(holds_c, c, tl.where(holds_b, b, tl.where(holds_a, a, low)))
    return low, count, mass


@triton.jit
def uniform(seed, position):
    """In [0, 1), of 53 bits: Philox4x32-10 with the seed for a key, of the counter (position, 0)."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, low - low, low - low)
    bits = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
    return (bits >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def kept(logits_ptr, first, n, greatest, scale, low, least, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """Columns of a block, and the masses of those that stay; 0 of the others."""
    columns = first + tl.arange(0, BLOCK)
    z = tl.load(logits_ptr + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
    mass = mass_of(z, greatest, scale)
    return columns, tl.where((key_of(z, SHIFT) >= low) & (mass >= least), mass, 0.0)


@triton.jit
def draw(logits_ptr, n, greatest, scale, low, least, share, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """The first column up to which `share` of the mass that stays is exceeded."""
    total = tl.zeros([], tl.float64)
    for first in range(0, n, BLOCK):
        _, mass = kept(logits_ptr, first, n, greatest, scale, low, least, BLOCK, SHIFT)
        total += tl.sum(mass, axis=0).to(tl.float64)
    target = share * total
    before = tl.zeros([], tl.float64)
    token = tl.full([], -1, tl.int32)
    for first in range(0, n, BLOCK):
        if before <= target:
            columns, mass = kept(logits_ptr, first, n, greatest, scale, low, least, BLOCK, SHIFT)
            end = before + tl.sum(mass, axis=0).to(tl.float64)
            last = tl.max(tl.where(mass > 0, columns, -1), axis=0)
            if end > target:
                until = before + tl.cumsum(mass, axis=0).to(tl.float64)
                # Of sums in two orders the one may end below the target: then it is the last.
                token = tl.minimum(tl.min(tl.where((mass > 0) & (until > target), columns, n), axis=0), last)
            else:
                token = tl.where(last >= 0, last, token)
            before = end
    return token


@triton.jit
def sample(logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, seeds_ptr, positions_ptr, tokens_ptr,
           logits_stride, n, BLOCK: tl.constexpr):
    dtype: tl.constexpr = logits_ptr.dtype.element_ty
    SHIFT: tl.constexpr = 16 if dtype == tl.bfloat16 else 13 if dtype == tl.float16 else 0
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    greatest = tl.full([], -float("inf"), tl.float32)
    token = tl.full([], -1, tl.int32)
    wrong = tl.zeros([], tl.int32)
    for first in range(0, n, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        z = tl.load(logits_ptr + columns, mask=columns < n, other=-float("inf")).to(tl.float32)
        wrong += tl.sum(((z != z) | (z == float("inf"))).to(tl.int32), axis=0)
        most = tl.max(z, axis=0)
        if most > greatest:
            token = tl.min(tl.where(z == most, columns, n), axis=0)
            greatest = most
    temperature = tl.load(temperature_ptr + row)
    if (wrong == 0) & (token >= 0) & (temperature > 0):
        scale = LOG2E / tl.maximum(temperature, 1e-30)
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        low = key_of(tl.full([], -float("inf"), tl.float32), SHIFT) + 1  # -inf never stays
        some_k = (top_k > 0) & (top_k < n)
        if some_k | (top_p < 1):
            count, _, _, mass, _, _ = from_keys(logits_ptr, n, greatest, scale, low, low, low, BLOCK, SHIFT)
            if some_k & (count > top_k):
                low, count, mass = search(logits_ptr, n, greatest, scale, low, count, mass, top_k, -1.0, BLOCK, SHIFT)
            if top_p < 1:
                low, _, _ = search(logits_ptr, n, greatest, scale, low, count, mass, 1, top_p.to(tl.float64) * mass,
                                BLOCK, SHIFT)
        share = uniform(tl.load(seeds_ptr + row), tl.load(positions_ptr + row))
        token = draw(logits_ptr, n, greatest, scale, low, tl.minimum(tl.load(min_p_ptr + row), 1.0), share, BLOCK,
                     SHIFT)
    tl.store(tokens_ptr + row, tl.where(wrong == 0, token, -1))
