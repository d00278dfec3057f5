#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times sampling beside PyTorch's operators, eager and compiled, and FlashInfer's on one GPU.

    bench/sampling.py --out bench/results/<gpu>.json --commit <commit>

Rivals, compiled at 64 rows alone: softmax, a descending sort and its sums where top-p or top-k is asked for, and exponential
noise whose greatest share is the token, as serving engines write it. FlashInfer, where it can be imported, by each of its
roads: from logits over the temperature, and from the shares of its own softmax. Each contender's tokens are checked to be
among those that the limits keep. How: packages/rows/bench/timing.py.
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


def by_flashinfer(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """Contenders by name; its seeds are tensors, since a graph is captured."""
    found = timing.imported("flashinfer.sampling") if DEVICE == "cuda" else None
    if found is None:
        return {}
    seeds = {"seed": torch.ones(1, dtype=torch.int64, device=DEVICE), "offset": torch.zeros(1, dtype=torch.int64, device=DEVICE)}

    def shares():
        return found.softmax(logits, temperature=temperature)

    def of_logits(name, *arguments):
        return {"flashinfer_logits": lambda: getattr(found, name)(logits / temperature[:, None], *arguments, **seeds)}

    def of_shares(name, *arguments):
        return {"flashinfer_shares": lambda: getattr(found, name)(shares(), *arguments, **seeds)}

    if min_p:
        return of_shares("min_p_sampling_from_probs", min_p)
    if top_k:
        both = of_shares("top_k_top_p_sampling_from_probs", top_k, top_p)
        return of_logits("top_k_top_p_sampling_from_logits", top_k, top_p) | (
            both if top_p < 1 else of_shares("top_k_sampling_from_probs", top_k))
    if top_p < 1:
        return of_shares("top_p_sampling_from_probs", top_p)
    return of_logits("sampling_from_logits") | of_shares("sampling_from_probs")


def least_of(logits, temperature=0.8, top_k=0, top_p=1.0, min_p=0.0):
    """Of each row the least logit that the limits keep, of what is at a limit in double precision, too."""
    z = (logits.double() / temperature).sort(-1, descending=True).values
    share = (z.masked_fill(z < z[:, top_k - 1:top_k], -torch.inf) if top_k else z).softmax(-1)
    left = (share.cumsum(-1) - share < top_p + 1e-4) & (share > (min_p - 1e-4) * share[:, :1]) & (share > 0)
    return temperature * z.gather(-1, left.sum(-1, keepdim=True) - 1) - 1e-4


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
    contenders |= by_flashinfer(logits, given["temperature"], **limits)
    least = least_of(logits, **limits)

    def checked(call):
        off = (logits.gather(-1, call().reshape(-1, 1).long()) < least).sum().item()
        if off:
            raise ArithmeticError(f"{off} of {rows} tokens are none that the limits keep")
        return timing.replay_of(call)

    return timing.measure(contenders, checked)


def main():
    arguments = timing.arguments_of(__doc__)
    results = timing.Results("sampling", arguments)
    for rows in (1, 16, 64, 256) if DEVICE == "cuda" else (1,):
        for name, limits in CASES.items():
            with timing.own_stream():
                results.add(f"{rows} rows, {name}", **measure(rows, limits))


if __name__ == "__main__":
    main()
