#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times kernels of packages beside the same sources by Triton's JIT.

    jit.py --out packages/rows/bench/results/<gpu>-jit.json --commit COMMIT

For each kernel: "graph", what the GPU takes; "call", a call from Python to its return, where the GPU does not hold it up;
and, each in a process of its own that has imported all and has a CUDA context, "first_ms": the first call until its result
is there, with nothing cached and with what the process before has cached. The results of both are compared first. Both
have the same blocks and warps; the compilers differ: Kiln's is pinned, JIT's is the Triton that PyTorch came with.
"""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import timing
import torch
import triton
from timing import DEVICE, normal

import kiln

PACKAGES = pathlib.Path(__file__).resolve().parents[2]


def source_of(package):
    path = PACKAGES / package / "csrc" / f"{package.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer_norm(rows, width):
    x, weight, bias = normal(rows, width), normal(width), normal(width)
    y, found = torch.empty_like(x), torch.empty_like(x)
    block = next(size for size in (1024, 4096, 8192, 16384) if width <= size)
    count, warps = {1024: (4, 4), 4096: (1, 8)}.get(block, (1, 16))

    def jit(kernel):
        kernel.forward[(triton.cdiv(rows, count),)](x, None, weight, bias, y, None, x.stride(0), 0, y.stride(0), 0, rows, width,
                                                    1e-5, ROWS=count, BLOCK=block, num_warps=warps)
        return y

    return jit, lambda kernel: kernel.forward(x, weight, bias, eps=1e-5, y=found)


def rotary_embedding(tokens, heads):
    x, positions = normal(tokens, heads * 128), torch.arange(tokens, device=DEVICE)
    cos, sin = (torch.rand(tokens, 64, device=DEVICE) for _ in range(2))
    out, found = torch.empty_like(x), torch.empty_like(x)

    def jit(kernel):
        kernel.rotate[(tokens, triton.cdiv(heads, 16))](x, positions, cos, sin, out, x.stride(0), out.stride(0), heads, 128, 64,
                                                        tokens, INTERLEAVED=False, INVERSE=False, BLOCK=64, HEADS=16)
        return out

    return jit, lambda kernel: kernel.rotate(x, positions, cos, sin, head_dim=128, out=found)


def cross_entropy(rows, classes):
    logits, targets = normal(rows, classes), torch.randint(0, classes, (rows,), device=DEVICE)
    weight, loss = torch.full((rows,), 1 / rows, device=DEVICE), torch.empty(rows, device=DEVICE)
    grad, found, found_loss = torch.empty_like(logits), torch.empty_like(logits), torch.empty_like(loss)

    def jit(kernel):
        kernel.cross_entropy[(rows,)](logits, targets, weight, loss, None, grad, logits.stride(0), grad.stride(0), classes, -100,
                                      0.0, 0.0, BLOCK=8192, num_warps=8)
        return grad

    def prebuilt(kernel):
        return kernel.forward_backward(logits, targets, weight, loss=found_loss, grad_logits=found).grad_logits

    return jit, prebuilt


CASES = {"layer-norm": (layer_norm, ((8192, 4096),)), "rotary-embedding": (rotary_embedding, ((8192, 32),)),
         "cross-entropy": (cross_entropy, ((4096, 32000),))}


def call_us(call, count=300):
    """The host's time of a call; few enough in flight that the GPU's queue takes all."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    taken = 1e6 * (time.perf_counter() - begin) / count
    torch.cuda.synchronize()
    return taken


def first_ms(package, shape, which):
    """In this process, which does nothing else."""
    calls = dict(zip(("jit", "kiln"), CASES[package][0](*shape)))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    calls[which](source_of(package) if which == "jit" else kiln.get_kernel(package, 1, device=DEVICE))
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def first_calls(package, shape):
    taken = {}
    for which in ("kiln", "jit"):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TRITON_CACHE_DIR": folder, "KILN_CACHE": folder}
            words = [sys.executable, __file__, "--first", package, "x".join(map(str, shape)), which]
            for cache in ("empty", "filled"):
                run = subprocess.run(words, env=environment, check=True, capture_output=True, text=True)
                taken[f"{which} {cache}"] = round(float(run.stdout.split()[-1]), 2)
    return taken


def main():
    if sys.argv[1:2] == ["--first"]:
        print(first_ms(sys.argv[2], tuple(map(int, sys.argv[3].split("x"))), sys.argv[4]))
        return
    arguments = timing.arguments_of(__doc__)
    timing.RIVALS["triton"] = triton.__version__
    results = timing.Results("layer-norm", arguments)
    results.head["package"] = ", ".join(CASES)
    for package, (case, shapes) in CASES.items():
        kernel, source = kiln.get_kernel(package, 1, device=DEVICE), source_of(package)
        for shape in shapes:
            with timing.own_stream():
                jit, prebuilt = case(*shape)
                contenders = {"kiln": lambda call=prebuilt: call(kernel), "jit": lambda call=jit: call(source)}
                errors = timing.errors_of(contenders, [contenders["jit"]().double()])
                calls, _ = timing.prepared(contenders)
                us = timing.times_of(calls)
                host = {name: round(min(call_us(call) for _ in range(5)), 2) for name, call in contenders.items()}
            results.add(f"{package} {' x '.join(map(str, shape))}", us=us, call_us=host, errors=errors,
                        first_ms=first_calls(package, shape))


if __name__ == "__main__":
    main()
