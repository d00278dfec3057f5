#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times sampling beside PyTorch's operators, eager and compiled, on one GPU.

    bench/sampling.py --out bench/results/<gpu>.json --commit <commit>

Rivals, compiled at 64 rows alone: softmax, a descending sort and its sums where top-p or top-k is asked for, and exponential
noise whose greatest share is the token, as serving engines write it. How: packages/rows/bench/timing.py.
"""
import pathlib
import sys

import torch

import kiln.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing
from timing import DEVICE

VOCABULARY = 128256
COMPILED_ROWS = 64  # compiling takes seconds for each shape
CASES = {"temperature": {}, "min-p": {"min_p": 0.05}, "top-k": {"top_k": 50}, "top-p": {"top_p": 0.9},
         "top-k, top-p": {"top_k": 50, "top_p": 0.9}}


def by_pytorch(logits, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0):
    z = logits.float() / temperature
    if top_k or top_p < 1:
        z, order = z.sort(-1, descending=True)
        if top_k:
            z = z.masked_fill(z < z[:, top_k - 1:top_k], -torch.inf)
        if top_p < 1:
            share = z.softmax(-1)
            z = z.masked_fill(share.cumsum(-1) - share >= top_p, -torch.inf)
    share = z.softmax(-1)
    if min_p:
        share = torch.where(share >= min_p * share.amax(-1, keepdim=True), share, 0.0)
    token = (share / torch.empty_like(share).exponential_()).argmax(-1, keepdim=True)
    return order.gather(-1, token) if top_k or top_p < 1 else token


def measure(rows, limits):
    logits = (3 * torch.randn(rows, VOCABULARY, device=DEVICE)).bfloat16()
    seeds, positions = (torch.arange(rows, device=DEVICE) for _ in range(2))
    sampler = kiln.torch.Sampling(temperature=0.8, **limits)
    given = {key: torch.full((rows,), value, device=DEVICE, dtype=torch.int32 if key == "top_k" else torch.float32)
             for key, value in sampler.defaults.items()}
    compiled = torch.compile(lambda z: by_pytorch(z, **limits))
    contenders = {"kiln": lambda: sampler(logits, seeds, positions, **given),
                  "eager": lambda: by_pytorch(logits, **limits)}
    if rows == COMPILED_ROWS:
        contenders["compiled"] = lambda: compiled(logits)
    return timing.measure(contenders)


def main():
    arguments = timing.arguments_of(__doc__)
    results = timing.Results("sampling", arguments)
    for rows in (1, 16, 64, 256) if DEVICE == "cuda" else (1,):
        for name, limits in CASES.items():
            with timing.own_stream():
                results.add(f"{rows} rows, {name}", **measure(rows, limits))


if __name__ == "__main__":
    main()
