#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Runs a training step again and again on the same inputs: every output must have the same bits each time.

    tests/repeats.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-repeats.json
"""
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import eager as bench  # noqa: E402
import training  # noqa: E402

SHAPES = [(8192, 768, 3072), (1000, 1152, 6912)]
REPEATS = 1000


def different_repeats(library, m, d, h):
    """How many of REPEATS steps gave other bits than the first one, in any output."""
    one = (*bench.inputs_of(m, d, h), bench.normal(m, d, 1))
    outputs = [torch.empty_like(t) for t in (one[0], *one[:4])]  # y, then the gradients
    call = training.bind_ours(library, one, outputs, keeps=True)
    call()
    first = [t.clone() for t in outputs]
    different = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(REPEATS):
        for t in outputs:
            t.fill_(float("nan"))
        call()
        same = torch.stack([torch.all(t.view(torch.int16) == f.view(torch.int16)) for t, f in zip(outputs, first)])
        different += ~torch.all(same)
    if not all(torch.isfinite(t).all() for t in first):
        raise RuntimeError(f"{m}, {d}, {h}: an output is not finite")
    return different.item()


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "repeats", repeats=REPEATS)
    for shape in SHAPES:
        different = different_repeats(library, *shape)
        result["shapes"].append(dict(zip("mdh", shape)) | {"different": different})
        print(f"{shape}: {different} of {REPEATS} training steps gave other bits", flush=True)
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
