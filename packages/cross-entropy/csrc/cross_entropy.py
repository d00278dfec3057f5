# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of rows of logits and its gradient, in fp32: a program computes a row.

A thread's logits are a run of neighbours: it keeps their greatest and their sum in units of that, and takes one more
exponential a run to change the unit. A row's result depends on that row alone.
"""

import triton
import triton.language as tl

RUN = tl.constexpr(8)  # 16 bytes of a 2-byte dtype
# The least of float32: finite, so that a logit of -inf is 0 in units of it.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def gradient_of(z, columns, unit, rest, target, weight, n, smoothing, z_loss):
    """weight (softmax(z) (1 + 2 z_loss lse) - the smoothed target), where lse is unit + rest."""
    grad = tl.exp((z - unit) - rest) * (1 + 2 * z_loss * (unit + rest)) - smoothing / n
    return weight * tl.where(columns == target, grad - (1 - smoothing), grad)


@triton.jit
def cross_entropy(logits_ptr, targets_ptr, weight_ptr, loss_ptr, lse_ptr, grad_ptr, logits_stride, grad_stride, n,
                  ignore, smoothing, z_loss, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * logits_stride
    target = tl.load(targets_ptr + row).to(tl.int64)
    ignored = target == ignore
    known = (target >= 0) & (target < n)
    # Before grad is written, which may be logits.
    of_target = tl.load(logits_ptr + target, mask=known & (not ignored), other=float("nan")).to(tl.float32)
    columns = tl.arange(0, BLOCK // RUN)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    greatest = tl.full([BLOCK // RUN], LOWEST, tl.float32)
    sums = tl.zeros([BLOCK // RUN], tl.float32)
    totals = tl.zeros([BLOCK // RUN], tl.float32)
    share = 1.0 / n
    for first in range(0, n, BLOCK):
        inside = columns < n - first
        z = tl.load(logits_ptr + first + columns, mask=inside, other=-float("inf")).to(tl.float32)
        greater = tl.maximum(greatest, tl.max(z, axis=1))
        sums = sums * tl.exp(greatest - greater) + tl.sum(tl.exp(z - greater[:, None]), axis=1)
        totals += tl.sum(tl.where(inside, z * share, 0.0), axis=1)
        greatest = greater
    unit = tl.max(greatest, axis=0)
    # lse in two parts, so that differences of large logits are exact.
    rest = tl.log(tl.sum(sums * tl.exp(greatest - unit), axis=0))
    lse = unit + rest
    loss = (unit - of_target) + rest
    if smoothing > 0:
        loss = (1 - smoothing) * loss + smoothing * ((unit - tl.sum(totals, axis=0)) + rest)
    loss += z_loss * lse * lse
    tl.store(loss_ptr + row, tl.where(ignored, 0.0, loss))
    if lse_ptr is not None:
        tl.store(lse_ptr + row, lse)
    if grad_ptr is not None:
        weight = tl.where(known, tl.load(weight_ptr + row), float("nan"))
        for first in range(0, n, BLOCK):
            inside = columns < n - first
            z = tl.load(logits_ptr + first + columns, mask=inside, other=0.0).to(tl.float32)
            grad = gradient_of(z, first + columns, unit, rest, target, weight, n, smoothing, z_loss)
            tl.store(grad_ptr + row * grad_stride + first + columns, tl.where(ignored, 0.0, grad), mask=inside)


@triton.jit
def gradient(logits_ptr, targets_ptr, lse_ptr, weight_ptr, grad_ptr, logits_stride, grad_stride, n, ignore, smoothing,
             z_loss, BLOCK: tl.constexpr):
    """Of a run of a row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    target = tl.load(targets_ptr + row).to(tl.int64)
    known = (target >= 0) & (target < n)
    weight = tl.where(known, tl.load(weight_ptr + row), float("nan"))
    z = tl.load(logits_ptr + row * logits_stride + columns, mask=inside, other=0.0).to(tl.float32)
    grad = gradient_of(z, columns, tl.load(lse_ptr + row), 0.0, target, weight, n, smoothing, z_loss)
    tl.store(grad_ptr + row * grad_stride + columns, tl.where(target == ignore, 0.0, grad), mask=inside)
