#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times sampling beside PyTorch's operators, eager and compiled, on one GPU.

    bench/sampling.py --out bench/results/<gpu>.json --commit <commit>

Rivals, compiled at 64 rows alone: softmax, a descending sort and its sums where top-p or top-k is asked for, and exponential noise whose greatest
share is the token, as serving engines write it. Each in a CUDA graph; a time is the median over rounds of a batch of
replays. Wants KILN_LIBRARY and KILN_REGISTRY.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess

import torch

import kiln.torch

VOCABULARY = 128256
ROUNDS, BATCH_US = 7, 20000
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


def graph_of(call):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
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


def measure(rows, name, limits):
    logits = (3 * torch.randn(rows, VOCABULARY, device="cuda")).bfloat16()
    seeds, positions = (torch.arange(rows, device="cuda") for _ in range(2))
    sampler = kiln.torch.Sampling(temperature=0.8, **limits)
    given = {key: torch.full((rows,), value, device="cuda", dtype=torch.int32 if key == "top_k" else torch.float32)
             for key, value in sampler.defaults.items()}
    compiled = torch.compile(lambda z: by_pytorch(z, **limits))
    contenders = {"kiln": lambda: sampler(logits, seeds, positions, **given),
                  "eager": lambda: by_pytorch(logits, **limits)}
    if rows == COMPILED_ROWS:
        contenders["compiled"] = lambda: compiled(logits)
    graphs, result = {}, {"rows": rows, "limits": name}
    for each, call in contenders.items():
        try:
            graphs[each] = graph_of(call)
        except Exception as error:  # pylint: disable=broad-exception-caught  # a compiler fails in any way
            if each == "kiln":
                raise
            result[f"{each}_failed"] = str(error).strip().splitlines()[0][:200]
    times = {each: [] for each in graphs}
    for _ in range(ROUNDS):
        for each, graph in graphs.items():
            times[each].append(microseconds(graph))
    return {**result, **{f"{each}_us": round(statistics.median(values), 1) for each, values in times.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    arguments = parser.parse_args()
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"], check=True,
                            capture_output=True, text=True).stdout.strip()
    result = {"schema": "sampling.bench/1", "gpu": torch.cuda.get_device_name(), "driver": driver,
              "variant": kiln.get_kernel("sampling", 1, device="cuda").variant, "dtype": "bfloat16",
              "vocabulary": VOCABULARY, "torch": torch.__version__, "date": datetime.date.today().isoformat(),
              "commit": arguments.commit, "results": []}
    for rows in (1, 16, 64, 256):
        for name, limits in CASES.items():
            with torch.cuda.stream(torch.cuda.Stream()):
                result["results"].append(measure(rows, name, limits))
            print(result["results"][-1], flush=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
