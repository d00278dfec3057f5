# SPDX-License-Identifier: Apache-2.0
"""Layer norm and its gradients: a program computes a tile of whole rows, in fp32.

A row's sums are added up in one fixed order, so that its result does not depend on the other rows. Sums over rows are
those of parts, in the order of the parts.
"""

import triton
import triton.language as tl


@triton.jit
def add_two(a, b, c, d):
    return a + c, b + d


@triton.jit
def add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def centred(h, mask, n):
    """h less its mean, and the mean of its squares. What rounding left of the mean is taken off, too, so that nothing
    cancels where a row is far from 0."""
    apart = tl.where(mask, h - (tl.sum(h, axis=1) / n)[:, None], 0.0)
    rest, squares = tl.reduce((apart, apart * apart), 1, add_two)
    rest /= n
    return apart - rest[:, None], tl.maximum(squares / n - rest * rest, 0.0)


@triton.jit
def forward(x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, h_ptr, x_stride, residual_stride, y_stride, h_stride,
            m, n, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    mask = (rows < m) & inside[None, :]
    h = tl.load(x_ptr + rows * x_stride + columns[None, :], mask=mask, other=0.0)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + rows * residual_stride + columns[None, :], mask=mask, other=0.0)
        h = (h.to(tl.float32) + residual.to(tl.float32)).to(h.dtype)
    apart, variance = centred(h.to(tl.float32), mask, n)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = apart * tl.rsqrt(variance + eps)[:, None] * weight[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    # After the sums, for which every thread has read: y and h may be x or residual.
    if h_ptr is not None:
        tl.store(h_ptr + rows * h_stride + columns[None, :], h, mask=mask)
    tl.store(y_ptr + rows * y_stride + columns[None, :], y, mask=mask)


@triton.jit
def backward(grad_y_ptr, h_ptr, weight_ptr, more_ptr, grad_h_ptr, weight_sums_ptr, bias_sums_ptr, grad_y_stride,
             h_stride, more_stride, grad_h_stride, m, n, part, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
             STAGES: tl.constexpr):
    """Of a part of the rows; with sums, those of the part's rows, too. Sums that need not wait for each other are one
    reduction: each ends with a barrier."""
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    weight_sums = tl.zeros([BLOCK], tl.float32)
    bias_sums = tl.zeros([BLOCK], tl.float32)
    begin = tl.program_id(0) * part
    for first in tl.range(begin, tl.minimum(begin + part, m), ROWS, num_stages=STAGES):
        places = first + tl.arange(0, ROWS)[:, None]
        rows = places.to(tl.int64)
        mask = (places < tl.minimum(begin + part, m)) & inside[None, :]
        h = tl.load(h_ptr + rows * h_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        grad_y = tl.load(grad_y_ptr + rows * grad_y_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        grad = grad_y * weight
        h_sum, grad_sum = tl.reduce((h, grad), 1, add_two)
        apart = tl.where(mask, h - (h_sum / n)[:, None], 0.0)  # as centred()
        rest, squares, along = tl.reduce((apart, apart * apart, grad * apart), 1, add_three)
        rest /= n
        scale = tl.rsqrt(tl.maximum(squares / n - rest * rest, 0.0) + eps)
        normal = (apart - rest[:, None]) * scale[:, None]
        along = (along - rest * grad_sum) / n * scale
        grad_h = scale[:, None] * (grad - (grad_sum / n)[:, None] - normal * along[:, None])
        if more_ptr is not None:
            grad_h += tl.load(more_ptr + rows * more_stride + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_h_ptr + rows * grad_h_stride + columns[None, :], grad_h, mask=mask)
        if weight_sums_ptr is not None:
            # Of a row beyond the last one scale may be infinite.
            weight_sums += tl.sum(tl.where(mask, grad_y * normal, 0.0), axis=0)
            bias_sums += tl.sum(grad_y, axis=0)
    if weight_sums_ptr is not None:
        at = tl.program_id(0).to(tl.int64) * n + columns
        tl.store(weight_sums_ptr + at, weight_sums, mask=inside)
        tl.store(bias_sums_ptr + at, bias_sums, mask=inside)


@triton.jit
def add_parts(sums_ptr, grad_ptr, parts, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)[:, None]
        values = tl.load(sums_ptr + part.to(tl.int64) * n + columns, mask=(part < parts) & (columns < n), other=0.0)
        total += tl.sum(values, axis=0)
    if grad_ptr is not None:
        tl.store(grad_ptr + columns, total[None, :], mask=columns < n)
