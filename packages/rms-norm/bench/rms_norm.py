#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times rms-norm's forward and training step against PyTorch's operators, eager and compiled, on one device.

    bench/rms_norm.py --out bench/results/<gpu>.json --commit <commit> [--rows 1 8192] [--width 4096]

Each contender in turn, several rounds; a time is the median of the rounds' fastest calls. On a GPU a call is a batch
between two events. Wants KILN_LIBRARY and KILN_REGISTRY; device "cuda" where PyTorch has one, else "cpu".
"""
import argparse
import datetime
import json
import statistics
import time

import torch

import kiln.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
BATCH, ROUNDS = 50, 7


def microseconds(call):
    if DEVICE == "cpu":
        begin = time.perf_counter()
        for _ in range(BATCH):
            call()
        return 1e6 * (time.perf_counter() - begin) / BATCH
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(BATCH):
        call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / BATCH


def contenders(norm, x):
    """Name -> (forward, training step) of the same layer."""
    def by_pytorch(x):
        with kiln.torch.disabled():
            return norm(x)

    for name, function in (("kiln", norm), ("eager", by_pytorch), ("compiled", torch.compile(norm.reference))):
        def forward(function=function):
            with torch.no_grad():
                function(x)

        def step(function=function):
            torch.autograd.grad(function(x).sum(), (x, norm.weight))

        yield name, {"forward_us": forward, "training_us": step}


def measure(rows, width):
    norm = kiln.torch.RmsNorm(width, device=DEVICE, dtype=DTYPE)
    x = torch.randn(rows, width, device=DEVICE, dtype=DTYPE, requires_grad=True)
    times = {}
    named = dict(contenders(norm, x))
    for _ in range(ROUNDS):
        for name, calls in named.items():
            for what, call in calls.items():
                times.setdefault(f"{name}_{what}", []).append(microseconds(call))
    exact = norm.reference(x.detach().double()).double()
    with torch.no_grad():
        error = ((norm(x).double() - exact).norm() / exact.norm()).item()
    return {"m": rows, "d": width, "error": error,
            **{key: round(statistics.median(values[1:]), 2) for key, values in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 256, 8192])
    parser.add_argument("--width", nargs="+", type=int, default=[768, 4096])
    arguments = parser.parse_args()
    kernel = kiln.get_kernel("rms-norm", 1, device=DEVICE)
    result = {"schema": "rms-norm.eager/1", "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None,
              "device": DEVICE, "variant": kernel.variant, "dtype": str(DTYPE)[6:], "torch": torch.__version__,
              "date": datetime.date.today().isoformat(), "commit": arguments.commit,
              "shapes": [measure(rows, width) for width in arguments.width for rows in arguments.rows]}
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(json.dumps(result["shapes"], indent=1))


if __name__ == "__main__":
    main()
