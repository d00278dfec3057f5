#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times quantized-mlp on a GPU beside a bare read of the packed bytes, PyTorch's bfloat16 and its int4 products.

    decode.py --commit HASH --out FILE [--rows 1,2,4] [--shapes 4096x14336,…]

A contender's calls, on three sets of weights that together do not fit the L2 cache, are replays of one CUDA graph;
contenders take turns, the median of the rounds counts. `read` is the share of the time that a kernel takes which
reads the same packed bytes and does nothing else. tinygemm: torch._weight_int4pack_mm thrice, beside silu and product.
"""

import argparse
import datetime
import json
import pathlib
import statistics

import torch
import triton
import triton.language as tl

import kiln

SHAPES = ((2048, 8192), (3072, 8192), (3584, 14336), (4096, 14336), (5120, 17408), (8192, 28672))
ROWS = (1, 2, 4, 8, 16, 32, 64)
SETS = 3
ROUNDS = 5
GROUP = 128


@triton.jit
def bare_read(source, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(source + at, mask=at < count, other=0), axis=0)
    if total == 123456789:
        tl.store(out, total)


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")


class Packed:
    """Random codes in the packed form: it needs no pack to be timed."""

    def __init__(self, kernel, bits, rows, columns):
        tiles = (rows // 16, columns // 64)
        self.codes = random_bytes(*tiles, 128 * bits)
        scale = 1.0 / (2 ** bits * columns ** 0.5)
        self.scales = torch.full((rows // 16, columns // GROUP, 16), scale, dtype=torch.bfloat16, device="cuda")
        self.bytes = self.codes.nbytes + self.scales.nbytes


class Quantized:
    def __init__(self, kernel, bits, width, hidden):
        self.kernel = kernel
        self.matrices = [Packed(kernel, bits, *shape) for shape in ((hidden, width), (hidden, width), (width, hidden))]
        self.bytes = sum(matrix.bytes for matrix in self.matrices)

    def __call__(self, x, y):
        gate, up, down = self.matrices
        self.kernel.forward(x, gate.codes, gate.scales, None, up.codes, up.scales, None, down.codes, down.scales, None,
                            y=y)


class Read:
    """The same bytes in one buffer."""

    def __init__(self, size):
        self.data = random_bytes(size // 4 * 4).view(torch.int32)
        self.out = torch.zeros(1, dtype=torch.int32, device="cuda")

    def __call__(self, x, y):
        count = self.data.numel()
        bare_read[(triton.cdiv(count, 8192),)](self.data, self.out, count, BLOCK=8192, num_warps=8)


class Eager:
    def __init__(self, width, hidden):
        self.gate, self.up, self.down = (torch.randn(*shape, dtype=torch.bfloat16, device="cuda") * shape[1] ** -0.5
                                         for shape in ((hidden, width), (hidden, width), (width, hidden)))

    def __call__(self, x, y):
        linear = torch.nn.functional.linear
        y.copy_(linear(torch.nn.functional.silu(linear(x, self.gate)) * linear(x, self.up), self.down))


class Tinygemm:
    def __init__(self, width, hidden):
        self.weights = []
        for rows, columns in ((hidden, width), (hidden, width), (width, hidden)):
            packed = torch._convert_weight_to_int4pack(random_bytes(rows, columns // 2), 8)
            scales = torch.full((columns // GROUP, rows, 2), 0.01, dtype=torch.bfloat16, device="cuda")
            self.weights.append((packed, scales))

    def product(self, x, number):
        packed, scales = self.weights[number]
        return torch._weight_int4pack_mm(x, packed, GROUP, scales)

    def __call__(self, x, y):
        y.copy_(self.product(torch.nn.functional.silu(self.product(x, 0)) * self.product(x, 1), 2))


def graph_of(calls, x, y):
    """One replay calls each twice."""
    def run():
        for _ in range(2):
            for call in calls:
                call(x, y)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        run()
    return graph


def microseconds(graph, calls):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    replays = 4
    graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / (replays * 2 * calls)


def measure(kernel, width, hidden, rows):
    makers = {"int4": lambda: Quantized(kernel, 4, width, hidden), "int8": lambda: Quantized(kernel, 8, width, hidden),
              "bfloat16": lambda: Eager(width, hidden), "tinygemm": lambda: Tinygemm(width, hidden)}
    contenders, why = {}, {}
    for name, maker in makers.items():
        try:
            contenders[name] = [maker() for _ in range(SETS)]
        except RuntimeError as error:
            why[name] = str(error).splitlines()[0][:120]
    for name in ("int4", "int8"):
        size = contenders[name][0].bytes
        contenders[f"read {name}"] = [Read(size) for _ in range(SETS)]
    lines = []
    for count in rows:
        x = torch.randn(count, width, dtype=torch.bfloat16, device="cuda")
        y = torch.empty_like(x)
        graphs, times = {}, {}
        for name, calls in contenders.items():
            try:
                graphs[name] = graph_of(calls, x, y)
            except RuntimeError as error:
                why[name] = str(error).splitlines()[0][:120]
        for _ in range(ROUNDS):
            for name, graph in graphs.items():
                times.setdefault(name, []).append(microseconds(graph, SETS))
        us = {name: round(statistics.median(each), 2) for name, each in times.items()}
        line = {"shape": [count, width, hidden], "us": us, "megabytes": round(contenders["int4"][0].bytes / 1e6, 1),
                "read": {name: round(us[f"read {name}"] / us[name], 3) for name in ("int4", "int8")}}
        lines.append(line)
        print(count, width, hidden, us, line["read"], flush=True)
    if why:
        print("left out:", why, flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--shapes", default=",".join(f"{width}x{hidden}" for width, hidden in SHAPES))
    arguments = parser.parse_args()
    kernel = kiln.get_kernel("quantized-mlp", 1, device="cuda")
    result = {"schema": "quantized-mlp.bench/1", "gpu": torch.cuda.get_device_name(), "variant": kernel.variant,
              "dtype": "bfloat16", "group": GROUP, "torch": torch.__version__, "commit": arguments.commit,
              "date": datetime.date.today().isoformat(), "results": []}
    with torch.cuda.stream(torch.cuda.Stream()):
        for shape in arguments.shapes.split(","):
            width, hidden = map(int, shape.split("x"))
            result["results"] += measure(kernel, width, hidden, [int(each) for each in arguments.rows.split(",")])
            arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
