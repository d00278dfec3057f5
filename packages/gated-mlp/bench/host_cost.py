#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Measures kiln.torch on this machine: microseconds of the host for each call.

    bench/host_cost.py --out bench/results/<gpu>-host-cost.json --layer-call build/release/bin/layer_call \
        --commit <commit>

A call's cost is what the calling thread spends on it: batches of calls on a small shape are enqueued and timed, the
GPU is waited for outside of the time, and the fastest batch counts. Wants KILN_LIBRARY and KILN_REGISTRY; device
"cuda" where PyTorch has one, else "cpu". KILN_OPERATORS, c++ or python, says which road is measured: see kiln.operators.
"""

import argparse
import datetime
import json
import pathlib
import platform
import subprocess
import time

import torch

import kiln
import kiln.operators
import kiln.torch

M, D, H = 1, 64, 128
BATCH, BATCHES = 200, 40
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def cost_us(call):
    """Of the thread, by its own clock: others may use the CPU meanwhile."""
    for _ in range(BATCH):
        call()
    best = float("inf")
    for _ in range(BATCHES):
        wait()
        begin = time.thread_time()
        for _ in range(BATCH):
            call()
        best = min(best, (time.thread_time() - begin) / BATCH)
    wait()
    return round(1e6 * best, 2)


def step(function, x, parameters):
    def call():
        torch.autograd.grad(function(x).sum(), parameters)
    return call


def overhead(layer_call):
    torch.manual_seed(1)
    layer = kiln.torch.GegluMlp(D, H, device=DEVICE, dtype=DTYPE)
    x = torch.randn(M, D).to(DEVICE, DTYPE)
    weights = [w.detach() for w in (layer.gate, layer.up, layer.down)]
    absent = [None] * 4  # the biases and the residual
    y = torch.empty_like(x)
    # On the CPU the thread's own is used: PyTorch aligns to 64 bytes there.
    given = {"workspace": torch.empty(1 << 20, dtype=torch.uint8, device=DEVICE)} if DEVICE == "cuda" else {}
    op = layer.kernel.forward
    compiled, compiled_eager = torch.compile(layer), torch.compile(layer.reference)
    trained = [x.clone().requires_grad_(), *layer.parameters()]
    with torch.no_grad():
        result = {
            "op, output and workspace passed": cost_us(lambda: op(x, *weights, *absent, y, **given)),
            "op, output and workspace allocated": cost_us(lambda: op(x, *weights)),
            "layer, no gradient": cost_us(lambda: layer(x)),
            "layer with a residual, no gradient": cost_us(lambda: layer(x, x)),
            "layer, and PyTorch adds, no gradient": cost_us(lambda: x + layer(x)),
            "operator kiln::gated_mlp": cost_us(lambda: torch.ops.kiln.gated_mlp(x, *weights, *absent, layer._key)),
            "layer under torch.compile, no gradient": cost_us(lambda: compiled(x)),
            "PyTorch eager, no gradient": cost_us(lambda: layer.reference(x)),
            "PyTorch under torch.compile, no gradient": cost_us(lambda: compiled_eager(x)),
        }
    result["layer, forward and backward"] = cost_us(step(layer, trained[0], trained))
    result["layer under torch.compile, forward and backward"] = cost_us(step(compiled, trained[0], trained))
    result["PyTorch under torch.compile, forward and backward"] = cost_us(step(compiled_eager, trained[0], trained))
    result["PyTorch eager, forward and backward"] = cost_us(step(layer.reference, trained[0], trained))
    if layer_call:
        answer = json.loads(subprocess.check_output([layer_call, "geglu-mlp@1", DEVICE, str(M), str(D), str(H)]))
        result["C++ layer, workspace passed"] = round(answer["us"], 2)
    return {"shape": [M, D, H], "operators": kiln.operators.ROAD, "us": result}


def provenance(commit):
    gpu = driver = None
    if DEVICE == "cuda":
        gpu = torch.cuda.get_device_name()
        driver = subprocess.check_output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                                         text=True).split()[0]
    cpu = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo", encoding="utf-8")
                if line.startswith("model name")), platform.machine())
    return {"schema": "kiln.python/1", "gpu": gpu, "driver": driver, "cpu": cpu, "torch": torch.__version__,
            "python": platform.python_version(), "kiln": kiln.__version__, "commit": commit,
            "date": datetime.date.today().isoformat()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--layer-call", help="the C++ program, to compare with")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = provenance(arguments.commit) | {"overhead": overhead(arguments.layer_call)}
    print(json.dumps(result["overhead"], indent=1))
    pathlib.Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
