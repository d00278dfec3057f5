#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times a batch-invariant forward beside one whose sums M may order, and checks its promise.

    bench/invariant.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-invariant.json

At each width a call of the most rows is made first. The first rows of the other calls must have its bits.
"""
import statistics

import torch

import eager as bench

ROWS = (1, 16, 64, 128, 256, 512, 900, 1024, 8192)
WIDTHS = ((768, 3072), (2304, 9216), (3584, 14336))
REGIME = bench.REGIMES["burst"]


def compare(library, sets, whole, rounds):
    m, d = sets[0][0].shape
    h = sets[0][1].shape[0]
    outputs = [torch.full_like(one[0], float("nan")) for one in sets]
    fewest = min(bench.FEWEST_CALLS, int(bench.MOST_OPERATIONS / (6 * m * d * h)))
    graphs, same = {}, {}
    for name in ("no", "yes"):
        calls = [library.forward(*one, y, batch_invariant=name) for one, y in zip(sets, outputs)]
        calls[0]()
        same[name] = torch.equal(outputs[0], whole[:m])
        graphs[name] = bench.graph_of(calls, fewest)
    if not same["yes"]:
        raise SystemExit(f"{m}, {d}, {h}: a batch-invariant call gives other bits than one of {len(whole)} rows")
    figures = bench.round_robin(graphs, rounds, REGIME)
    result = {"m": m, "d": d, "h": h}
    for key, name in (("kiln_us", "no"), ("invariant_us", "yes")):
        result[key] = round(statistics.median(figures[name]), 2)
    result["invariant_over_kiln"] = round(result["invariant_us"] / result["kiln_us"], 3)
    result["kiln_has_the_bits"] = same["no"]
    print(", ".join(f"{key} {value}" for key, value in result.items()), flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "invariant")
    result["regime"] = bench.burst_text(arguments.rounds)
    for d, h in WIDTHS:
        weights = [bench.inputs_of(1, d, h)[1:]
                   for _ in range(1 + bench.ROTATED_BYTES // (6 * d * h))]
        x = bench.normal(max(ROWS), d, 1)
        whole = torch.empty_like(x)
        library.forward(x, *weights[0], whole, batch_invariant="yes")()
        for m in ROWS:
            sets = [(x[:m], *one) for one in weights[:1 if m > 1024 else None]]
            result["shapes"].append(compare(library, sets, whole, arguments.rounds))
            bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
