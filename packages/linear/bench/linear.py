#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times linear's forward beside PyTorch's, which is cuBLAS, on one GPU, and compares both with double precision.

    bench/linear.py --out bench/results/<gpu>.json --commit <commit> [--rows 1,16] [--shapes 4096x4096]

A CUDA graph multiplies by several weights in turn, together larger than the L2 cache; a time is the median over rounds
of a batch of replays, by the weights. Wants KILN_LIBRARY and KILN_REGISTRY.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

import torch

import kiln

ROUNDS, BATCH_US, BEYOND_CACHE = 7, 20000, 200 << 20
ROWS = "1,4,8,16,32,64,128,256,512,2048,8192"
SHAPES = "4096x4096,6144x4096,14336x4096,4096x14336"  # columns of y x columns of x


def graph_of(calls):
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for call in calls:
            call()
    return graph


def microseconds(graph):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def batch(count):
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / count

    return batch(max(1, min(200, int(BATCH_US / batch(2)))))


def error_of(y, x, weight):
    """The largest, as a part of the terms of an element; of up to 64 rows."""
    exact = x[:64].double() @ weight.double().T
    terms = x[:64].double().abs() @ weight.double().abs().T
    return ((y[:64].double() - exact).abs() / terms).max().item()


def measure(kernel, rows, columns, depth):
    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    x, y = normal(rows, depth), torch.full((rows, columns), torch.nan, device="cuda", dtype=torch.bfloat16)
    weights = [normal(columns, depth) for _ in range(max(1, BEYOND_CACHE // (2 * columns * depth)))]
    contenders = {"kiln": lambda weight: kernel.forward(x, weight, y=y),
                  "cublas": lambda weight: torch.mm(x, weight.T, out=y)}
    result, graphs, times = {"rows": rows, "columns": columns, "depth": depth}, {}, {}
    for name, call in contenders.items():
        graphs[name] = graph_of([lambda weight=weight: call(weight) for weight in weights])
        y.fill_(torch.nan)
        call(weights[0])
        result[f"{name}_error"] = float(f"{error_of(y, x, weights[0]):.2g}")
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times.setdefault(name, []).append(microseconds(graph) / len(weights))
    for name, values in times.items():
        result[f"{name}_us"] = round(statistics.median(values), 2)
    result["ratio"] = round(result["cublas_us"] / result["kiln_us"], 3)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--shapes", default=SHAPES)
    arguments = parser.parse_args()
    kernel = kiln.get_kernel("linear", 1, device="cuda")
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"], check=True,
                            capture_output=True, text=True).stdout.strip()
    result = {"schema": "linear.bench/1", "gpu": torch.cuda.get_device_name(), "driver": driver,
              "variant": kernel.variant, "dtype": "bfloat16", "torch": torch.__version__,
              "date": datetime.date.today().isoformat(), "commit": arguments.commit, "results": []}
    for shape in arguments.shapes.split(","):
        columns, depth = (int(number) for number in shape.split("x"))
        for rows in arguments.rows.split(","):
            with torch.cuda.stream(torch.cuda.Stream()):
                result["results"].append(measure(kernel, int(rows), columns, depth))
            print(result["results"][-1], flush=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
