#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward of few rows beside a bare read of as many bytes as the weights have.

    bench/decode.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-decode.json

The read is a kernel that adds up its part of the bytes, 16 a load, and writes one number: the fastest of several block
sizes and loads in flight. It is one launch where forward is two. Eager is beside them. Each figure is the median of the
rounds, of graph replays in bursts, over as many sets of weights as exceed the L2 cache.
"""
import statistics

import torch
import triton
import triton.language as tl

import eager as bench
import gates

WIDTHS = ((768, 3072), (1024, 4096), (2048, 8192), (2304, 9216), (3584, 14336), (4096, 14336))
ROWS = (1, 4, 16, 32, 64)
REGIME = bench.Regime(timed=1.2, load=0, rest=0.02)
READS = [(block, warps) for block in (2048, 4096, 8192, 16384) for warps in (4, 8)]  # int32 a program


@triton.jit
def read_words(words, count, sums, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(words + place, mask=place < count, other=0)))


def bind_read(weights, block, warps):
    """Reads one tensor that has the bytes of all three weights."""
    words = weights.view(-1).view(torch.int32)
    grid = (triton.cdiv(words.numel(), block),)
    sums = torch.empty(grid[0], dtype=torch.int32, device="cuda")
    return lambda: read_words[grid](words, words.numel(), sums, BLOCK=block, num_warps=warps)


def compare(arguments, library, gate, d, h):
    """The shapes of one width: the reads, which do not depend on the rows, take part in each."""
    count = min(32, 1 + bench.ROTATED_BYTES // (6 * d * h))
    together = [bench.normal(3 * h, d, 1).view(3, h, d) for _ in range(count)]  # one block of memory for the read
    weights = [(gate.mul_(d**-0.5), up.mul_(d**-0.5), down.mul_(h**-0.5).view(d, h)) for gate, up, down in together]
    reads = {f"read_{block}_{warps}": bench.graph_of([bind_read(one, block, warps) for one in together],
                                                     bench.FEWEST_CALLS) for block, warps in READS}
    eager = bench.eager_of(gate)
    for m in ROWS:
        xs = [bench.normal(m, d, 1) for _ in weights]
        outputs = [torch.empty_like(x) for x in xs]
        graphs = reads | {
            "kiln": bench.graph_of([library.forward(x, *one, y) for x, one, y in zip(xs, weights, outputs)],
                                   bench.FEWEST_CALLS),
            "eager": bench.graph_of([lambda x=x, one=one: eager(x, *one) for x, one in zip(xs, weights)],
                                    bench.FEWEST_CALLS)}
        outputs[0].fill_(float("nan"))
        graphs["kiln"].replay()
        exact = eager(*(t.double() for t in (xs[0], *weights[0])))
        found = {"kiln": outputs[0], "eager": eager(xs[0], *weights[0])}
        errors = {name: bench.relative_error(y, exact) for name, y in found.items()}
        bench.require_right(errors, m * min(d, h), f"{m}, {d}, {h}")
        figures = bench.round_robin(graphs, arguments.rounds, REGIME)
        times = {name: statistics.median(found) for name, found in figures.items()}
        read = min(times[name] for name in reads)
        yield {"m": m, "d": d, "h": h, "kiln_us": round(times["kiln"], 2), "read_us": round(read, 2),
               "eager_us": round(times["eager"], 2), "of_a_read": round(read / times["kiln"], 3),
               "read": min(reads, key=lambda name: times[name])}


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "decode")
    result["regime"] = bench.burst_text(arguments.rounds, REGIME)
    for d, h in WIDTHS:
        for shape in compare(arguments, library, gates.gate_of(arguments.package), d, h):
            print(shape, flush=True)
            result["shapes"].append(shape)
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
