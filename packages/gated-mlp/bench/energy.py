#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Measures the energy of a forward, at the power limit and below it, beside QuACK and concatenated cuBLAS.

    bench/energy.py --package geglu-mlp@1 --variant <variant> --rivals quack,concatenated \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so --out bench/results/<gpu>-energy.json

The driver counts the GPU's energy (nvmlDeviceGetTotalEnergyConsumption). Sustained: forwards follow each other, after
a load of the same contender, and the power limit slows the clock. Duty cycle: a burst, then a rest, so that the mean
power stays below the limit and the clock near its highest. `idle_w` is the power of the same cycle with next to no
work in its bursts; `net_mj` is what a forward takes beyond that power.
"""
import time

import pynvml
import torch

import eager as bench
import gates

SHAPES = [(8192, 768, 3072)]
LOAD = 1.0  # seconds before a sustained measurement
MEASURED = 3.0  # seconds
BURST, REST = 0.010, 0.030  # seconds of a duty cycle


class Gpu:
    """The counters of one GPU."""

    def __init__(self):
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)

    def millijoules(self):
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)

    def sm_mhz(self):
        return pynvml.nvmlDeviceGetClockInfo(self.handle, pynvml.NVML_CLOCK_SM)

    def limit_watts(self):
        return pynvml.nvmlDeviceGetEnforcedPowerLimit(self.handle) / 1000


def measure(gpu, graph, burst, rest):
    """Replays for MEASURED seconds, with a rest after each burst of so many seconds. Returns the forwards, seconds,
    millijoules, the median time of a forward in microseconds and the median clock."""
    each = bench.milliseconds(graph, 3) / 1e3
    times = max(1, round(burst / each))
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    micros, clocks, bursts = [], [], 0
    torch.cuda.synchronize()
    begin, before = time.monotonic(), gpu.millijoules()
    while time.monotonic() - begin < MEASURED:
        starts[0].record()
        for _ in range(times):
            graph.replay()
        starts[1].record()
        clocks.append(gpu.sm_mhz())  # while it runs
        starts[1].synchronize()
        micros.append(1e3 * starts[0].elapsed_time(starts[1]) / times / len(graph.calls))
        bursts += 1
        if rest:
            time.sleep(rest)
    used, seconds = gpu.millijoules() - before, time.monotonic() - begin
    return {"forwards": bursts * times * len(graph.calls), "seconds": seconds, "millijoules": used,
            "us": sorted(micros)[len(micros) // 2], "sm_mhz": sorted(clocks)[len(clocks) // 2]}


def load(graph, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        bench.milliseconds(graph, 20)


def figures_of(one, idle_watts):
    watts = one["millijoules"] / 1e3 / one["seconds"]
    net = one["millijoules"] - 1e3 * idle_watts * one["seconds"]
    return {"us": round(one["us"], 2), "sm_mhz": one["sm_mhz"], "watts": round(watts, 1),
            "mj": round(one["millijoules"] / one["forwards"], 2), "net_mj": round(net / one["forwards"], 2)}


def compare(gate, gpu, library, rivals, m, d, h):
    count = 1 + bench.ROTATED_BYTES // (2 * (3 * d * h + m * (2 * d + h)))
    sets = [bench.inputs_of(m, d, h) for _ in range(count)]
    outputs = [torch.empty(m, d, dtype=torch.bfloat16, device="cuda") for _ in sets]
    graphs = {"kiln": bench.graph_of([library.forward(*one, y) for one, y in zip(sets, outputs)], bench.FEWEST_CALLS)}
    rival_graphs, results, notes = bench.bind_rivals(rivals, sets, bench.FEWEST_CALLS)
    graphs |= rival_graphs
    errors = bench.errors_of(gate, sets[0], outputs[0], graphs, results)
    bench.drop_wrong(errors, graphs, notes)
    bench.require_right(errors, m * min(d, h), f"{m}, {d}, {h}")
    nothing = torch.zeros(1, device="cuda")
    idle = measure(gpu, bench.graph_of([lambda: nothing.add_(1)]), 1e-5, BURST + REST)
    idle_watts = idle["millijoules"] / 1e3 / idle["seconds"]
    result = {"m": m, "d": d, "h": h, "sets": count, "idle_w": round(idle_watts, 1)} | notes
    for regime in ("duty cycle", "sustained"):
        result[regime] = {}
        for name, graph in graphs.items():
            if regime == "sustained":
                load(graph, LOAD)
                one = measure(gpu, graph, BURST, 0)
            else:
                time.sleep(0.3)
                one = measure(gpu, graph, BURST, REST)
            result[regime][name] = figures_of(one, idle_watts)
            print(f"{m}, {d}, {h}, {regime}, {name}: {result[regime][name]}", flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "energy", rivals=bench.RIVALS)
    rivals = bench.chosen_rivals(arguments, bench.RIVALS)
    gpu = Gpu()
    result |= {
        "limit_w": gpu.limit_watts(),
        "regime": f"graph replays; {MEASURED} s of each; sustained: after {LOAD} s of the same; duty cycle: bursts of "
                  f"{1e3 * BURST:.0f} ms, rests of {1e3 * REST:.0f} ms"}
    for shape in SHAPES:
        result["shapes"].append(compare(gates.gate_of(arguments.package), gpu, library, rivals, *shape))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
