# SPDX-License-Identifier: Apache-2.0
"""y = x weight^T + bias, accumulated in fp32 and rounded once."""
import triton
import triton.language as tl


@triton.jit
def _corner(tile, tiles_m, tiles_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """The first row and column of a tile. GROUP rows of tiles go together through the weights, which then stay in L2."""
    group = tile // (GROUP * tiles_n)
    first = group * GROUP
    height = min(tiles_m - first, GROUP)
    within = tile - group * GROUP * tiles_n
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def _add_bias(sums, bias, columns, N):
    if bias is not None:
        sums += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    return sums


@triton.jit
def product(x, weight, bias, y, x_stride, y_stride, M, N, K,
            BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
            MAPPED: tl.constexpr, SWAPPED: tl.constexpr = False):
    """Tiles of BLOCK_M x BLOCK_N, one a program. MAPPED: x, weight and y are descriptors, and a program goes on to further
    tiles, whose first blocks come while it writes the last one. SWAPPED: the tile is computed as its transpose, since the
    tensor cores of Hopper take 64 rows of the left factor at least, and 16 columns of the right one."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    if MAPPED:
        for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
            row, column = _corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
            if SWAPPED:
                sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
                for k in range(0, K, BLOCK_K):
                    sums = tl.dot(weight.load([column, k]), x.load([row, k]).T, sums)
                sums = sums.T
            else:
                sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for k in range(0, K, BLOCK_K):
                    sums = tl.dot(x.load([row, k]), weight.load([column, k]).T, sums)
            sums = _add_bias(sums, bias, column + tl.arange(0, BLOCK_N), N)
            y.store([row, column], sums.to(y.dtype))
    else:
        row, column = _corner(tl.program_id(0), tiles_m, tiles_n, BLOCK_M, BLOCK_N, GROUP)
        rows = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
        columns = (column + tl.arange(0, BLOCK_N)).to(tl.int64)
        depth = tl.arange(0, BLOCK_K)
        # Rows beyond the last are read at the last one's place and not written.
        a = x + tl.minimum(rows, M - 1)[:, None] * x_stride + depth[None, :]
        b = weight + tl.minimum(columns, N - 1)[None, :] * K + depth[:, None]
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            seen = depth[None, :] < K - k
            if BLOCK_M == 16:  # of so few rows the last would be fetched many times over
                seen = seen & (rows[:, None] < M)
            left = tl.load(a, mask=seen, other=0.0)
            right = tl.load(b, mask=depth[:, None] < K - k, other=0.0)
            sums = tl.dot(left, right, sums)
            a += BLOCK_K
            b += BLOCK_K
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        sums = _add_bias(sums, bias, columns, N)
        tl.store(y + rows[:, None] * y_stride + columns[None, :], sums.to(y.dtype.element_ty), mask=inside)


@triton.jit
def one_row(x, weight, bias, y, N, K, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """BLOCK_N columns of the only row. Each weight is read once."""
    columns = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    depth = tl.arange(0, BLOCK_K)
    b = weight + tl.minimum(columns, N - 1)[:, None] * K + depth[None, :]
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        weights = tl.load(b, mask=depth[None, :] < K - k, other=0.0).to(tl.float32)
        values = tl.load(x + k + depth, mask=depth < K - k, other=0.0).to(tl.float32)
        sums += tl.sum(weights * values[None, :], axis=1)
        b += BLOCK_K
    if bias is not None:
        sums += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(y + columns, sums.to(y.dtype.element_ty), mask=columns < N)
