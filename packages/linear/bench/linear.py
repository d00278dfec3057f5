#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times linear's forward beside PyTorch's, which is cuBLAS, on one GPU.

    bench/linear.py --out bench/results/<gpu>.json --commit <commit>

A CUDA graph multiplies by several weights in turn, together larger than the L2 cache. DRAWN are shapes that the choice of
kernels was not fitted to: rows by the logarithm, widths among those of models. How: packages/rows/bench/timing.py.
"""
import pathlib
import sys

import torch

import kiln

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing
from timing import normal

BEYOND_CACHE = 200 << 20
ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192)
SHAPES = ((4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336))  # columns of y x columns of x
DRAWN = ((23, 4608, 5632), (1370, 6144, 5632), (19, 3584, 2880), (37, 5120, 18944), (617, 18944, 3072),
         (20, 4608, 18944), (354, 2048, 2880), (3050, 3584, 7168), (21, 13824, 5632), (7728, 2880, 13824),
         (77, 11008, 6144), (5777, 2304, 5120))


def measure(kernel, rows, columns, depth):
    x, y = normal(rows, depth), torch.empty(rows, columns, device=timing.DEVICE, dtype=torch.bfloat16)
    weights = [normal(columns, depth) for _ in range(max(1, BEYOND_CACHE // (2 * columns * depth)))]
    by = {"kiln": lambda weight: kernel.forward(x, weight, y=y), "cublas": lambda weight: torch.mm(x, weight.T, out=y)}

    def filled(call):
        y.fill_(torch.nan)
        call(weights[0])
        return y[:64].clone()

    exact = x[:64].double() @ weights[0].double().T
    errors = timing.errors_of({name: lambda call=call: filled(call) for name, call in by.items()}, (exact,))
    contenders = {name: lambda call=call: [call(weight) for weight in weights] for name, call in by.items()}
    return {**timing.measure(contenders, parts=len(weights)), "errors": errors}


def main():
    arguments = timing.arguments_of(__doc__)
    results = timing.Results("linear", arguments)
    kernel = kiln.get_kernel("linear", 1, device=timing.DEVICE)
    cases = [(rows, *shape) for shape in SHAPES for rows in ROWS] + list(DRAWN)
    for case in cases if timing.DEVICE == "cuda" else [(8, 256, 512)]:
        with timing.own_stream():
            results.add("{} rows, {} x {}".format(*case) + (", drawn" if case in DRAWN else ""), **measure(kernel, *case))


if __name__ == "__main__":
    main()
