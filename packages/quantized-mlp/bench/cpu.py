#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times quantized-mlp on one CPU beside PyTorch's products in bfloat16 and int8, which are oneDNN's, and in int4.

    cpu.py --commit HASH --out FILE [--also LINES] [--rows 1,8,64,512] [--shapes 2048x5632,…] [--seconds 2]

Every call runs on one pinned thread; what counts is that thread's CPU time, the least of the rounds, in which contenders
take turns. An error is relative L2 against fp64 on the weights that a contender's codes mean. LINES: a file of such
lines, {"what", "m", "d", "h", "least_ms", "median_ms", "error"}, that another program measured. With --table FILE it only
prints the table of a result.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import kiln

KINDS = {"int4": (4, 128, False), "int4, groups of 32": (4, 32, False), "int8": (8, 128, False), "e4m3": (8, 128, True)}


def thread_ms():
    return 1e3 * time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)


class Kiln:
    def __init__(self, kernel, kind, shapes):
        bits, group, is_float8 = KINDS[kind]
        self.kernel, self.packed, self.weights = kernel, [], []
        for rows, columns in shapes:
            codes = torch.randint(0, 256, (rows // 16, columns // 64, 128 * bits), dtype=torch.uint8)
            dtype = torch.float32 if is_float8 else torch.bfloat16
            if is_float8:
                codes = torch.where((codes & 127) >= 120, 0, codes).view(torch.float8_e4m3fn)
            spread = {4: 4.6, 8: 74.0}[bits] if not is_float8 else 60.0
            scales = torch.full((rows // 16, columns // group, 16), 1 / (spread * columns ** 0.5), dtype=dtype)
            self.packed.append((codes, scales))

    def __call__(self, x):
        (gate, up, down), y = self.packed, torch.empty_like(x)
        return self.kernel.forward(x, *gate, None, *up, None, *down, None, y=y)

    def meant(self, number, shape):
        codes, scales = self.packed[number]
        weight = torch.empty(shape)
        self.kernel.unpack(codes, scales, None, codes=torch.empty(shape, dtype=codes.dtype), weight=weight)
        return weight.double()


class Bfloat16:
    def __init__(self, shapes):
        self.weights = [torch.randn(shape).mul_(shape[1] ** -0.5).bfloat16() for shape in shapes]

    def product(self, x, number):
        return F.linear(x, self.weights[number])

    def __call__(self, x):
        return self.product(F.silu(self.product(x, 0)) * self.product(x, 1), 2)

    def meant(self, number, shape):
        return self.weights[number].double()


class Int8(Bfloat16):
    """x in int8 by one scale of all its values, which each call finds; scales of rows."""

    def __init__(self, shapes):
        self.weights, self.packed = [], []
        for rows, columns in shapes:
            weight = torch.randn(rows, columns).mul_(columns ** -0.5)
            codes = torch.quantize_per_channel(weight, weight.abs().amax(1).double() / 127,
                                               torch.zeros(rows, dtype=torch.int64), 0, torch.qint8)
            self.weights.append(codes.dequantize())
            self.packed.append(torch.ops.quantized.linear_prepack(codes, None))

    def product(self, x, number):
        return torch.ops.quantized.linear_dynamic(x.float(), self.packed[number], False)

    def __call__(self, x):
        return super().__call__(x).to(x.dtype)


class Int4(Bfloat16):
    def __init__(self, shapes):
        self.weights, self.packed = [], []
        for rows, columns in shapes:
            codes = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
            scales = torch.full((columns // 128, rows, 2), 1 / (4.6 * columns ** 0.5), dtype=torch.bfloat16)
            scales[..., 1] = 0
            self.weights.append(((codes - 8).float() * scales[0, 0, 0].float()).bfloat16())
            self.packed.append((torch._convert_weight_to_int4pack_for_cpu(codes, 1), scales))

    def product(self, x, number):
        packed, scales = self.packed[number]
        return torch._weight_int4pack_mm_for_cpu(x, packed, 128, scales)


def error_of(contender, shapes, x):
    gate, up, down = (contender.meant(number, shape) for number, shape in enumerate(shapes))
    exact = (F.silu(x.double() @ gate.T) * (x.double() @ up.T)) @ down.T
    return float((contender(x).double() - exact).norm() / exact.norm())


def measure(kernel, width, hidden, rows, seconds):
    shapes = ((hidden, width), (hidden, width), (width, hidden))
    makers = {f"Kiln {kind}": lambda kind=kind: Kiln(kernel, kind, shapes) for kind in KINDS}
    makers |= {"PyTorch bfloat16": lambda: Bfloat16(shapes), "PyTorch int8": lambda: Int8(shapes),
               "PyTorch int4": lambda: Int4(shapes)}
    contenders, errors = {}, {}
    for name, make in makers.items():
        try:
            contenders[name] = make()
            errors[name] = error_of(contenders[name], shapes, torch.randn(2, width).bfloat16())
        except (RuntimeError, AttributeError) as error:
            contenders.pop(name, None)
            print("left out:", name, str(error).splitlines()[0], flush=True)
    for count in rows:
        x = torch.randn(count, width).bfloat16()
        times = {name: [] for name in contenders}
        end = time.monotonic() + seconds * len(contenders)
        while time.monotonic() < end or min(map(len, times.values())) < 4:
            for name, call in contenders.items():
                begin = thread_ms()
                call(x)
                times[name].append(thread_ms() - begin)
        for name, of in times.items():
            line = {"what": name, "m": count, "d": width, "h": hidden, "least_ms": round(min(of), 3),
                    "median_ms": round(statistics.median(of), 3), "error": float(f"{errors[name]:.2e}")}
            print(line, flush=True)
            yield line


def table(result):
    """Tokens a second, by the least time."""
    names = list(dict.fromkeys(line["what"] for line in result["results"]))
    found = {(line["what"], line["m"], line["d"]): line for line in result["results"]}
    places = list(dict.fromkeys((line["m"], line["d"], line["h"]) for line in result["results"]))
    print("| M, D, H | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
    for m, d, h in places:
        cells = [found.get((name, m, d)) for name in names]
        print(f"| {m}, {d}, {h} | " + " | ".join(f"{1e3 * m / cell['least_ms']:.4g}" if cell else "" for cell in cells)
              + " |")
    largest = (max(line["error"] for line in result["results"] if line["what"] == name) for name in names)
    print("| error | " + " | ".join(f"{each:.1e}" for each in largest) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--also", type=pathlib.Path)
    parser.add_argument("--commit")
    parser.add_argument("--note", default="")
    parser.add_argument("--rows", default="1,8,64,512")
    parser.add_argument("--shapes", default="2048x5632,4096x14336")
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    if arguments.table:
        table(json.loads(arguments.table.read_text(encoding="utf-8")))
        return
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    kernel = kiln.get_kernel("quantized-mlp", 1, device="cpu")
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line)
    result = {"schema": "quantized-mlp.cpu/1", "cpu": cpu, "variant": kernel.variant, "dtype": "bfloat16", "threads": 1,
              "torch": torch.__version__, "note": arguments.note, "commit": arguments.commit,
              "date": datetime.date.today().isoformat(), "results": []}
    for shape in arguments.shapes.split(","):
        width, hidden = map(int, shape.split("x"))
        for line in measure(kernel, width, hidden, [int(each) for each in arguments.rows.split(",")], arguments.seconds):
            result["results"].append(line)
    if arguments.also:
        kept = ("what", "m", "d", "h", "least_ms", "median_ms", "error")
        lines = map(json.loads, arguments.also.read_text(encoding="utf-8").splitlines())
        result["results"] += [{key: line[key] for key in kept} for line in lines]
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table(result)


if __name__ == "__main__":
    main()
