# SPDX-License-Identifier: Apache-2.0
"""Draws a token of each row of logits. Most programs have a part of a row, BLOCK logits; where something is left to do for
the row, the last of them to end does it, so that none waits. Masses are fp32, sums of parts fp64, in the order of the parts.

What top-k, top-p and min-p leave are the logits from some value on, so that equal ones stay or go together. Logits are
compared by keys, integers in the order of the values. The least key that stays is looked for between two keys, `low`, from
which on there is enough, and `high`, from which on there is not:

    measure   each part's greatest logit, and of its GROUPS groups the greatest and, where needed, one by chance
    guess     for a small top-k a key from which on the greatest of groups are enough; else three, of which the outer ones
              enclose, in all likelihood, what is looked for
    narrow    but for a small top-k: the count or mass from these keys on, by which two of them are low and high
    collect   each part's logits between low and high side by side
    find      among these the key itself
    draw      the masses of what stays, part by part, and a token
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-0x7F800000)  # above the key of -inf, which never stays
GROUPS = tl.constexpr(16)
KEYS = tl.constexpr(4)  # the lowest and the three of guess

# A row's state: what is to be done, the greatest logit's place, low, high, how many logits are wanted and how many are from
# high on; between guess and narrow the three keys stand in the last places.
STORE = tl.constexpr(0)  # its token is known
NARROW = tl.constexpr(1)
COLLECT = tl.constexpr(2)
DRAW = tl.constexpr(3)  # from low on


@triton.jit
def key_of(z):
    """Of a logit as float32; 0 and -0 have one key."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def mass_of(z, greatest, scale):
    """In units of the greatest logit's: 1 of that."""
    return tl.where(z == -float("inf"), 0.0, tl.math.exp2((z - greatest) * scale))


@triton.jit
def scale_of(temperature):
    return LOG2E / tl.maximum(temperature, 1e-30)


@triton.jit
def place_of(logits_ptr, logits_stride, parts, BLOCK: tl.constexpr):
    """Row, part, the row's logits, and the part's columns."""
    row = (tl.program_id(0) // parts).to(tl.int64)
    part = tl.program_id(0) % parts
    return row, part, logits_ptr + row * logits_stride, part * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def logits_at(logits_ptr, columns, n):
    return tl.load(logits_ptr + columns, mask=columns < n, other=-float("inf")).to(tl.float32)


@triton.jit
def is_last(arrived_ptr, parts):
    """Whether all other programs of the row have stored what they had to."""
    tl.debug_barrier()
    last = tl.atomic_add(arrived_ptr, 1) == parts - 1
    tl.debug_barrier()
    return last


@triton.jit
def log_of(x):
    """Of base 2, to 0.09: between powers of two a line."""
    return x.to(tl.int32, bitcast=True).to(tl.float32) * (1.0 / 8388608.0) - 127.0


@triton.jit
def chance_of(columns):
    """About the logarithm of an exponentially distributed number for each column, times -1."""
    x = columns.to(tl.uint32) * 0x9E3779B1
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    return -log_of(-log_of(((x >> 8).to(tl.float32) + 0.5) * (1.0 / 16777216.0)))


@triton.jit
def how(temperature, top_k, top_p, n, parts):
    """What a row is limited by: whether a count, whether the greatest of its groups are many for that, whether anything."""
    by_count = (top_k > 0) & (top_k < n)
    return by_count, by_count & (top_k <= parts * GROUPS // 2), (temperature > 0) & (by_count | (top_p < 1))


@triton.jit
def measure(logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, greatest_ptr, first_ptr, maxima_ptr, sample_ptr, weights_ptr,
            arrived_ptr, logits_stride, n, parts, BLOCK: tl.constexpr):
    """A part's greatest logit, NaN where one is NaN or +inf, and its first place. By a count each logit of a group has the
    same chance to be in the sample, else one by its mass; a weight is the logit that has the mass of the group."""
    GROUP: tl.constexpr = BLOCK // GROUPS
    row, part, logits_ptr, _ = place_of(logits_ptr, logits_stride, parts, BLOCK)
    group = tl.arange(0, GROUPS)
    columns = part * BLOCK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    z = logits_at(logits_ptr, columns, n)
    maxima = tl.max(z, axis=1)
    greatest = tl.max(maxima, axis=0)
    wrong = tl.sum(tl.sum(((z != z) | (z == float("inf"))).to(tl.int32), axis=1), axis=0)
    first = tl.min(tl.min(tl.where(z == greatest, columns, n), axis=1), axis=0)
    number = row * parts + part
    group += number * GROUPS
    tl.store(first_ptr + number, first)
    tl.store(greatest_ptr + number, tl.where(wrong > 0, float("nan"), greatest))
    tl.store(maxima_ptr + group, maxima)
    if part == 0:
        tl.store(arrived_ptr + row * 2 + tl.arange(0, 2), tl.zeros([2], tl.int32))
    temperature = tl.load(temperature_ptr + row)
    by_count, is_small, is_limited = how(temperature, tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), n, parts)
    if is_limited & (is_small == 0):
        scale = scale_of(temperature)
        weight = tl.where(z > -float("inf"), (z - greatest) * scale, -float("inf"))
        chance = tl.where(by_count & (z > -float("inf")), 0.0, weight) + chance_of(columns)
        chosen = tl.where(chance == tl.max(chance, axis=1)[:, None], z, -float("inf"))
        tl.store(sample_ptr + group, tl.max(chosen, axis=1))
        tl.store(weights_ptr + group, greatest + tl.log2(tl.sum(tl.exp2(weight), axis=1)) / scale)


@triton.jit
def sums_from(list_ptr, weights_ptr, counts_ptr, length, parts, most, greatest, scale, a, b, c, d, AT_ONCE: tl.constexpr,
              RUN: tl.constexpr):
    """How many of a list's logits have keys of at least a, b, c and d, and their masses, or those of the weights. A list has
    parts of `length` places each, in which counts_ptr has how many logits there are, at most `most`; or each has all."""
    count_a = tl.zeros([AT_ONCE], tl.int32)
    count_b, count_c, count_d = count_a, count_a, count_a
    mass_a = tl.zeros([AT_ONCE], tl.float32)
    mass_b, mass_c, mass_d = mass_a, mass_a, mass_a
    number = tl.arange(0, AT_ONCE)
    for first in range(0, parts, AT_ONCE // RUN):
        part = first + number // RUN
        end = length
        if counts_ptr is not None:
            end = tl.load(counts_ptr + part, mask=part < parts, other=0)
        for begin in range(0, most, RUN):
            places = begin + number % RUN
            z = logits_at(list_ptr + part * length, places, end)
            key = key_of(z)
            mass = mass_of(z if weights_ptr is None else logits_at(weights_ptr, places, end), greatest, scale)
            count_a += (key >= a).to(tl.int32)
            count_b += (key >= b).to(tl.int32)
            count_c += (key >= c).to(tl.int32)
            count_d += (key >= d).to(tl.int32)
            mass_a += tl.where(key >= a, mass, 0.0)
            mass_b += tl.where(key >= b, mass, 0.0)
            mass_c += tl.where(key >= c, mass, 0.0)
            mass_d += tl.where(key >= d, mass, 0.0)
    counts = tl.sum(tl.join(tl.join(count_a, count_c), tl.join(count_b, count_d)), axis=0)
    masses = tl.sum(tl.join(tl.join(mass_a, mass_c), tl.join(mass_b, mass_d)).to(tl.float64), axis=0)
    return tl.reshape(counts, [KEYS]), tl.reshape(masses, [KEYS])


@triton.jit
def at(values, place):
    """One of KEYS values; 0 at -1."""
    return tl.sum(tl.where(tl.arange(0, KEYS) == place, values, 0), axis=0)


@triton.jit
def above(key, SHIFT: tl.constexpr):
    """The least key above it that is a multiple of 2^SHIFT."""
    return ((key >> SHIFT) + 1) << SHIFT


@triton.jit
def search(list_ptr, weights_ptr, counts_ptr, length, parts, most, greatest, scale, low, high, beyond, mass_beyond, wanted,
           share, SHIFT: tl.constexpr, AT_ONCE: tl.constexpr, RUN: tl.constexpr):
    """The greatest key, a multiple of 2^SHIFT as low and high are, from which on there are `wanted` logits and `share` of
    mass, and how much mass there is then. From low on there are enough, from high on not. The list has all that are between
    them; `beyond` and `mass_beyond` are those from high on that it has not."""
    number = tl.arange(0, KEYS)
    mass = tl.zeros([], tl.float64)
    from_high = tl.zeros([], tl.int32)
    left = from_high + 2  # between low and high: not counted yet
    is_first = True
    while is_first | ((high.to(tl.int64) - low > (1 << SHIFT)) & (left > 1)):
        is_first = False
        step = above(tl.cdiv(high.to(tl.int64) - low, KEYS) - 1, SHIFT)
        keys = tl.minimum(low + number * step, high.to(tl.int64)).to(tl.int32)
        count, each = sums_from(list_ptr, weights_ptr, counts_ptr, length, parts, most, greatest, scale, low, at(keys, 1),
                                at(keys, 2), at(keys, 3), AT_ONCE, RUN)
        enough = (keys < high) & (count + beyond >= wanted) & (each + mass_beyond >= share)
        place = tl.max(tl.where(enough, number, 0), axis=0)
        from_high = tl.where(place == KEYS - 1, from_high, at(count, place + 1))
        high = tl.where(place == KEYS - 1, high, at(keys, place + 1))
        low = at(keys, place)
        mass = at(each, place)
        left = at(count, place) - from_high
    return low, mass


@triton.jit
def greatest_of(greatest_ptr, first_ptr, parts, PARTS: tl.constexpr):
    """A row's greatest logit and its first place; -1 where nothing can be drawn."""
    greatest = tl.full([], -float("inf"), tl.float32)
    token = tl.full([], -1, tl.int32)
    wrong = tl.zeros([], tl.int32)
    for begin in range(0, parts, PARTS):
        part = begin + tl.arange(0, PARTS)
        each = tl.load(greatest_ptr + part, mask=part < parts, other=-float("inf"))
        first = tl.load(first_ptr + part, mask=part < parts, other=0)
        wrong += tl.sum((each != each).to(tl.int32), axis=0)
        most = tl.max(each, axis=0)
        if most > greatest:
            token = tl.min(tl.where(each == most, first, 0x7FFFFFFF), axis=0)
            greatest = most
    return greatest, tl.where(wrong == 0, token, -1)


@triton.jit
def guess(temperature_ptr, top_k_ptr, top_p_ptr, greatest_ptr, first_ptr, maxima_ptr, sample_ptr, weights_ptr, state_ptr,
          most_ptr, shares_ptr, n, parts, PARTS: tl.constexpr, AT_ONCE: tl.constexpr):
    """A program for each of three keys; the first one begins the row's state, too."""
    row = (tl.program_id(0) // 3).to(tl.int64)
    number = tl.program_id(0) % 3
    state_ptr += row * 8
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    by_count, is_small, is_limited = how(temperature, top_k, top_p, n, parts)
    if (number > 0) & (is_small | (is_limited == 0)):
        return
    greatest, token = greatest_of(greatest_ptr + row * parts, first_ptr + row * parts, parts, PARTS)
    is_drawn = (token >= 0) & (temperature > 0)
    if number == 0:
        tl.store(state_ptr, tl.where(is_drawn, tl.where(is_limited, NARROW, DRAW), STORE))
        tl.store(state_ptr + 1, token)
        tl.store(state_ptr + 2, LOWEST)
        tl.store(most_ptr + row, greatest)
    if is_drawn & is_limited:
        scale = scale_of(temperature)
        length = parts * GROUPS
        first = row * length
        list_ptr = tl.where(is_small, maxima_ptr, sample_ptr) + first
        masses_ptr = tl.where(is_small, maxima_ptr, weights_ptr) + first
        total = tl.zeros([], tl.float64)
        if is_small == 0:
            masses = tl.zeros([AT_ONCE], tl.float32)
            for begin in range(0, length, AT_ONCE):
                masses += mass_of(logits_at(weights_ptr + first, begin + tl.arange(0, AT_ONCE), length), greatest, scale)
            total = tl.sum(masses.to(tl.float64), axis=0)
        # A sample is off by more of its standard deviations with a chance of 1 to 100,000.
        side = tl.where(number == 0, 0.0, tl.where(number == 1, 4.5, -4.5))
        expected = tl.where(is_small, top_k.to(tl.float32), top_k * (length / tl.maximum(n, 1).to(tl.float32)))
        wanted = tl.where(by_count, (expected + side * (tl.sqrt(expected) + 1)).to(tl.int32), 1)
        p = tl.maximum(top_p, 0.0)
        share = tl.where(by_count, -1.0, (p + side * tl.sqrt(p * (1 - p) / length)) * total)
        # 16 bits of a logit are enough for a guess.
        low = tl.full([], LOWEST, tl.int32)
        high = above(key_of(greatest), 16)
        low, _ = search(list_ptr, masses_ptr, None, length, 1, length, greatest, scale, low, high, 0, 0.0, wanted, share, 16,
                        AT_ONCE, AT_ONCE)
        if is_small:
            tl.store(state_ptr, COLLECT)
            tl.store(state_ptr + 2, low)
            tl.store(state_ptr + 3, high)
            tl.store(state_ptr + 4, top_k)
            tl.store(state_ptr + 5, 0)
            tl.store(shares_ptr + row * 2 + tl.arange(0, 2), tl.arange(0, 2).to(tl.float64) - 1)
        else:
            tl.store(state_ptr + 5 + number, tl.where(number == 2, low + 0x10000, low))


@triton.jit
def narrow(logits_ptr, temperature_ptr, top_k_ptr, top_p_ptr, amounts_ptr, arrived_ptr, state_ptr,
           most_ptr, shares_ptr, logits_stride, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr, AT_ONCE: tl.constexpr):
    dtype: tl.constexpr = logits_ptr.dtype.element_ty
    SHIFT: tl.constexpr = 16 if dtype == tl.bfloat16 else 13 if dtype == tl.float16 else 0
    row, part, logits_ptr, _ = place_of(logits_ptr, logits_stride, parts, BLOCK)
    state_ptr += row * 8
    if tl.load(state_ptr) != NARROW:
        return
    greatest = tl.load(most_ptr + row)
    top = above(key_of(greatest), SHIFT)
    number = tl.arange(0, KEYS)
    guessed = tl.load(state_ptr + 4 + number, mask=number > 0, other=0)
    keys = tl.where(number == 0, LOWEST, tl.minimum(guessed, top))
    scale = scale_of(tl.load(temperature_ptr + row))
    top_k = tl.load(top_k_ptr + row)
    by_count = (top_k > 0) & (top_k < n)
    b, c, d = at(keys, 1), at(keys, 2), at(keys, 3)
    from_a = tl.zeros([AT_ONCE], tl.float32)
    from_b, from_c, from_d = from_a, from_a, from_a
    for begin in range(0, BLOCK, AT_ONCE):
        z = logits_at(logits_ptr, part * BLOCK + begin + tl.arange(0, AT_ONCE), n)
        key = key_of(z)
        amount = tl.where(by_count, (key >= LOWEST).to(tl.float32), mass_of(z, greatest, scale))
        from_a += amount
        from_b += tl.where(key >= b, amount, 0.0)
        from_c += tl.where(key >= c, amount, 0.0)
        from_d += tl.where(key >= d, amount, 0.0)
    own = tl.reshape(tl.sum(tl.join(tl.join(from_a, from_c), tl.join(from_b, from_d)), axis=0), [KEYS])
    amounts_ptr += row * parts * KEYS
    tl.store(amounts_ptr + part * KEYS + number, own)
    if is_last(arrived_ptr + row * 2, parts):
        amount = tl.zeros([KEYS], tl.float64)
        for begin in range(0, parts, PARTS):
            place = begin + tl.arange(0, PARTS)[:, None]
            each = tl.load(amounts_ptr + place * KEYS + number[None, :], mask=place < parts, other=0.0, cache_modifier=".cg")
            amount += tl.sum(each.to(tl.float64), axis=0)
        top_p = tl.load(top_p_ptr + row)
        wanted = tl.where(by_count, top_k.to(tl.float64), top_p * at(amount, 0))
        # With both, all from low on is collected: how much top-p wants is known when top-k is.
        is_both = by_count & (top_p < 1)
        enough = (number == 0) | ((keys < top) & (amount >= wanted))
        low = tl.max(tl.where(enough, keys, LOWEST), axis=0)
        high = tl.min(tl.where(enough, top, keys), axis=0)
        from_high = tl.max(tl.where((keys == high) & (enough == 0) & (is_both == 0), number, -1), axis=0)
        beyond = at(amount, from_high)
        is_found = (is_both == 0) & (high.to(tl.int64) - low <= (1 << SHIFT))
        tl.store(state_ptr, tl.where(is_found, DRAW, COLLECT))
        tl.store(state_ptr + 2, low)
        tl.store(state_ptr + 3, tl.where(is_both, top, high))
        tl.store(state_ptr + 4, tl.where(by_count, top_k, 1))
        tl.store(state_ptr + 5, tl.where(by_count, beyond.to(tl.int32), 0))
        tl.store(shares_ptr + row * 2, tl.where(by_count, -1.0, wanted))
        tl.store(shares_ptr + row * 2 + 1, tl.where(by_count, 0.0, beyond))


@triton.jit
def collect(logits_ptr, list_ptr, collected_ptr, state_ptr, logits_stride, n, parts, BLOCK: tl.constexpr):
    row, part, logits_ptr, columns = place_of(logits_ptr, logits_stride, parts, BLOCK)
    state_ptr += row * 8
    if tl.load(state_ptr) != COLLECT:
        return
    low = tl.load(state_ptr + 2)
    high = tl.load(state_ptr + 3)
    z = tl.load(logits_ptr + columns, mask=columns < n, other=-float("inf"))
    key = key_of(z.to(tl.float32))
    is_between = ((key >= low) & (key < high)).to(tl.int32)
    count = tl.sum(is_between, axis=0)
    number = row * parts + part
    tl.store(collected_ptr + number, count)
    if count > 0:
        tl.store(list_ptr + number * BLOCK + tl.cumsum(is_between, axis=0) - 1, z, mask=is_between > 0)


@triton.jit
def find(temperature_ptr, top_p_ptr, list_ptr, collected_ptr, state_ptr, most_ptr, shares_ptr, parts, BLOCK: tl.constexpr,
         AT_ONCE: tl.constexpr, PARTS: tl.constexpr):
    """A program a row."""
    dtype: tl.constexpr = list_ptr.dtype.element_ty
    SHIFT: tl.constexpr = 16 if dtype == tl.bfloat16 else 13 if dtype == tl.float16 else 0
    row = tl.program_id(0).to(tl.int64)
    state_ptr += row * 8
    if tl.load(state_ptr) != COLLECT:
        return
    low = tl.load(state_ptr + 2)
    high = tl.load(state_ptr + 3)
    wanted = tl.load(state_ptr + 4)
    beyond = tl.load(state_ptr + 5)
    share = tl.load(shares_ptr + row * 2)
    mass_beyond = tl.load(shares_ptr + row * 2 + 1)
    greatest = tl.load(most_ptr + row)
    scale = scale_of(tl.load(temperature_ptr + row))
    top_p = tl.load(top_p_ptr + row)
    list_ptr += row * parts * BLOCK
    collected_ptr += row * parts
    most = tl.zeros([], tl.int32)
    for begin in range(0, parts, PARTS):
        part = begin + tl.arange(0, PARTS)
        most = tl.maximum(most, tl.max(tl.load(collected_ptr + part, mask=part < parts, other=0), axis=0))
    RUN: tl.constexpr = AT_ONCE // PARTS
    low, mass = search(list_ptr, None, collected_ptr, BLOCK, parts, most, greatest, scale, low, high, beyond, mass_beyond,
                       wanted, share, SHIFT, AT_ONCE, RUN)
    if (share < 0) & (top_p < 1):
        low, _ = search(list_ptr, None, collected_ptr, BLOCK, parts, most, greatest, scale, low, high, beyond, mass_beyond, 1,
                        top_p * mass, SHIFT, AT_ONCE, RUN)
    tl.store(state_ptr, DRAW)
    tl.store(state_ptr + 2, low)


@triton.jit
def uniform(seed, position):
    """In [0, 1), of 53 bits: Philox4x32-10 with the seed for a key, of the counter (position, 0)."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = (position >> 32).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, low, high, low - low, low - low)
    bits = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
    return (bits >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def kept(logits_ptr, columns, n, greatest, scale, low, least):
    """Masses of those that stay; 0 of the others."""
    z = logits_at(logits_ptr, columns, n)
    mass = mass_of(z, greatest, scale)
    return tl.where((key_of(z) >= low) & (mass >= least), mass, 0.0)


@triton.jit
def draw(logits_ptr, temperature_ptr, min_p_ptr, seeds_ptr, positions_ptr, tokens_ptr, masses_ptr, arrived_ptr, state_ptr,
         most_ptr, logits_stride, n, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """The first column up to which the row's share of the mass that stays is exceeded."""
    row, part, logits_ptr, columns = place_of(logits_ptr, logits_stride, parts, BLOCK)
    state_ptr += row * 8
    if tl.load(state_ptr) != DRAW:
        if part == 0:
            tl.store(tokens_ptr + row, tl.load(state_ptr + 1))
        return
    low = tl.load(state_ptr + 2)
    greatest = tl.load(most_ptr + row)
    scale = scale_of(tl.load(temperature_ptr + row))
    least = tl.minimum(tl.load(min_p_ptr + row), 1.0)
    masses_ptr += row * parts
    tl.store(masses_ptr + part, tl.sum(kept(logits_ptr, columns, n, greatest, scale, low, least), axis=0))
    if is_last(arrived_ptr + row * 2 + 1, parts):
        total = tl.zeros([], tl.float64)
        for begin in range(0, parts, PARTS):
            number = begin + tl.arange(0, PARTS)
            each = tl.load(masses_ptr + number, mask=number < parts, other=0.0, cache_modifier=".cg").to(tl.float64)
            total += tl.sum(each, axis=0)
        target = uniform(tl.load(seeds_ptr + row), tl.load(positions_ptr + row)) * total
        ended = tl.zeros([], tl.float64)  # the mass of the parts so far, and of those ahead of the one that has the token
        before = tl.zeros([], tl.float64)
        chosen = tl.full([], -1, tl.int32)
        for begin in range(0, parts, PARTS):
            if (chosen < 0) | (ended <= target):
                number = begin + tl.arange(0, PARTS)
                each = tl.load(masses_ptr + number, mask=number < parts, other=0.0, cache_modifier=".cg").to(tl.float64)
                last = tl.max(tl.where(each > 0, number, -1), axis=0)
                if last >= 0:
                    # Of sums in two orders the one may end below the target: then it is the last.
                    exceeds = (each > 0) & (ended + tl.cumsum(each, axis=0) > target)
                    chosen = tl.minimum(tl.min(tl.where(exceeds, number, parts), axis=0), last)
                    before = ended + tl.sum(tl.where(number < chosen, each, 0), axis=0)
                ended += tl.sum(each, axis=0)
        columns = chosen * BLOCK + tl.arange(0, BLOCK)
        mass = kept(logits_ptr, columns, n, greatest, scale, low, least)
        last = tl.max(tl.where(mass > 0, columns, -1), axis=0)
        exceeds = (mass > 0) & (before + tl.cumsum(mass, axis=0).to(tl.float64) > target)
        tl.store(tokens_ptr + row, tl.minimum(tl.min(tl.where(exceeds, columns, n), axis=0), last))
