#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes csrc/sm90_measured.h, the kernels for the shapes of models, from measured times of pairs of kernels.

    bench/measured.py [--check]

It reads the forwards of 65 to 768 rows in results/nvidia-h200-gemms.json, with and without a second of load, and those
of 769 to 1152 rows in results/nvidia-h100-gemms.json. Shapes with the same number of blocks of 16 rows take the same
pair: the one with the least geometric mean over them. At a shape where a pair was not measured, or took more than
LIMIT times the best time, it counts as LIMIT.
--check writes nothing. It fails where the header differs.
"""
import collections
import json
import math
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
RESULTS = PACKAGE / "bench/results"
LIMIT = 1.12
MOST_ROWS = 1152  # above, no other kernel of down than the plan's was 2% faster

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
//
// Sm90_measured: the rows of kSm90Measured, for sm90_plan.h to include. Written by
// bench/measured.py from bench/results/nvidia-h200-gemms.json and nvidia-h100-gemms.json.
// clang-format off
"""


def named(tile, parts):
    across = "_across_" in tile
    return f'{{"{tile.replace("_across", "")}", {parts}, {"true" if across else "false"}}}'


def best_pair(shapes):
    """`shapes`: for each shape, pair -> time."""
    bests = [min(times.values()) for times in shapes]

    def loss(pair):
        return sum(math.log(min(times.get(pair, math.inf) / best, LIMIT)) for times, best in zip(shapes, bests))

    return min({pair for times in shapes for pair in times}, key=lambda pair: (loss(pair), pair))


def header(forwards):
    groups = collections.defaultdict(list)
    for forward in forwards:
        m = forward["m"]
        if 64 < m <= MOST_ROWS:
            times = {tuple(row[:4]): row[4] for row in forward["times"]}
            groups[-(-m // 16) * 16, forward["d"], forward["h"]].append(times)
    rows = []
    for (most, d, h), shapes in sorted(groups.items()):
        gated_tile, gated_parts, plain_tile, plain_parts = best_pair(shapes)
        rows.append(f"{{{most}, {d}, {h}, {named(gated_tile, gated_parts)}, {named(plain_tile, plain_parts)}}},\n")
    return HEAD + "".join(rows)


def main():
    h200 = json.loads((RESULTS / "nvidia-h200-gemms.json").read_text())
    h100 = json.loads((RESULTS / "nvidia-h100-gemms.json").read_text())
    text = header(h200["forwards"] + h200["loaded"] + h100["forwards"])
    path = PACKAGE / "csrc/sm90_measured.h"
    if sys.argv[1:] == ["--check"]:
        if path.read_text() != text:
            sys.exit(f"{path}: not what bench/measured.py writes; run it")
    else:
        path.write_text(text)


if __name__ == "__main__":
    main()
