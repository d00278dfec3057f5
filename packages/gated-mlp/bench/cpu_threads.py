#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward on a CPU beside PyTorch, whose products are oneDNN's, by the number of threads.

    bench/cpu_threads.py --package geglu-mlp@1 --variant <variant> --library <file> \
        --out bench/results/<cpu>-threads.json

Each number of threads is a process of its own, bound to as many CPUs: Kiln takes as many threads as its caller may use,
PyTorch is told. eager is what a user writes, concatenated has gate and up in one weight. They take turns; a figure is
the least time of the rounds. PyTorch's threads spin for up to 20 ms after its last product, on the CPUs that the next
turn wants: a pause before each turn lets them sleep. after_torch is one forward of Kiln right behind a product of
PyTorch's, as in a model that has both. Each shape is first compared with double precision.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

import eager as bench
import gates

SHAPES = [(m, 768, 3072) for m in (1, 8, 64, 512, 4096, 8192)] + [(m, 4096, 14336) for m in (1, 8, 64, 128, 512)]
DTYPES = {"bfloat16": (torch.bfloat16, 3e-3), "float32": (torch.float32, 1e-6)}
LEAST_S = 0.02  # of one turn
PAUSE_S = 0.1


def seconds(call, times):
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def inputs_of(m, d, h, dtype):
    """x, gate, up, down."""
    return [torch.randn(*size).mul_(scale).to(dtype) for size, scale in
            (((m, d), 1), ((h, d), d**-0.5), ((h, d), d**-0.5), ((d, h), h**-0.5))]


def compare(library, gate, dtype, bound, shape, rounds):
    m, d, h = shape
    x, up_gate, up, down = inputs_of(m, d, h, dtype)
    eager, concatenated = bench.eager_of(gate), bench.concatenated_of(gate)
    both, y = torch.cat([up_gate, up]), torch.empty_like(x)
    calls = {"kiln": library.forward(x, up_gate, up, down, y), "eager": lambda: eager(x, up_gate, up, down),
             "concatenated": lambda: concatenated(x, both, down)}
    first = {name: call() for name, call in calls.items()}
    exact = eager(*(t.double() for t in (x[-8:], up_gate, up, down)))
    error = bench.relative_error(y[-8:], exact)
    if not error <= bound:
        raise RuntimeError(f"{shape}: relative L2 error {error}, expected at most {bound}")
    del first
    times = {name: max(1, int(LEAST_S / seconds(call, 1))) for name, call in calls.items()}
    found = {name: [] for name in (*calls, "after_torch")}
    square = torch.randn(256, 256)
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE_S)
            found[name].append(seconds(call, times[name]))
        for _ in range(5):
            torch.mm(square, square)
            found["after_torch"].append(seconds(calls["kiln"], 1))
    result = {"m": m, "d": d, "h": h} | {f"{name}_us": round(1e6 * min(of), 1) for name, of in found.items()}
    return result | {"best_over_kiln": round(min(result["eager_us"], result["concatenated_us"]) / result["kiln_us"], 3)}


def measure(arguments, library):
    """In the process of one number of threads: a line for each shape."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    gate = gates.gate_of(arguments.package)
    for name, (dtype, bound) in DTYPES.items():
        for shape in SHAPES:
            if name == "float32" and shape[0] * shape[1] * shape[2] > 1.2e10:
                continue  # seconds a forward
            result = compare(library, gate, dtype, bound, shape, arguments.rounds)
            print(json.dumps({"dtype": name, "threads": arguments.threads} | result), flush=True)


def main():
    def options(parser):
        parser.add_argument("--most", type=int, default=os.cpu_count(), help="threads")
        parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)

    arguments, library, result = bench.begin(__doc__.splitlines()[0], "cpu_threads", options, device="cpu",
                                             regime="the least of the rounds, a pause before each turn")
    if arguments.threads:
        return measure(arguments, library)
    result["rounds"] = arguments.rounds
    for threads in (*(1 << i for i in range(10) if 1 << i < arguments.most), arguments.most):
        cpus = sorted(os.sched_getaffinity(0))[:threads]
        command = [sys.executable, *sys.argv, "--threads", str(threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment,
                              preexec_fn=lambda: os.sched_setaffinity(0, cpus)) as child:
            for line in child.stdout:
                print(line, end="", flush=True)
                result["shapes"].append(json.loads(line))
        if child.returncode:
            return child.returncode
        bench.write_result(result, arguments.out)
    for name in DTYPES:
        for count in dict.fromkeys(shape["threads"] for shape in result["shapes"]):
            ratios = [s["best_over_kiln"] for s in result["shapes"] if (s["dtype"], s["threads"]) == (name, count)]
            mean = statistics.geometric_mean(ratios)
            print(f"{name}, {count} threads: geometric mean {mean:.3f}, worst {min(ratios)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
