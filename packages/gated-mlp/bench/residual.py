#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times a forward with a residual beside the same forward and torch.add, and beside PyTorch eager.

    bench/residual.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-residual.json

`kiln` adds the residual in the kernel, `kiln_then_add` in a torch.add of its own, `without` not at all.
"""
import torch

import eager as bench
import gates

SHAPES = [(1, 768, 3072), (1, 3584, 14336), (64, 3584, 14336), (160, 768, 3072), (513, 7880, 728), (1024, 1024, 4096),
          (2048, 3584, 14336), (8192, 768, 3072), (16384, 2048, 8192)]
REGIME = bench.REGIMES["burst"]


def compare(gate, library, m, d, h, rounds):
    set_bytes = 2 * (3 * d * h + m * (3 * d + h))
    count = min(32, 1 + bench.ROTATED_BYTES // set_bytes)
    sets = [bench.inputs_of(m, d, h) for _ in range(count)]
    residuals = [bench.normal(m, d, 1) for _ in sets]
    outputs = [torch.empty_like(residual) for residual in residuals]
    eager = bench.eager_of(gate)

    def then_add(one, y, residual):
        forward = library.forward(*one, y)

        def call():
            forward()
            torch.add(y, residual, out=y)

        call.keep = forward
        return call

    fewest = min(bench.FEWEST_CALLS, int(bench.MOST_OPERATIONS / (6 * m * d * h)))
    ways = {
        "kiln": [library.forward(*one, y, residual) for one, y, residual in zip(sets, outputs, residuals)],
        "kiln_then_add": [then_add(one, y, residual) for one, y, residual in zip(sets, outputs, residuals)],
        "without": [library.forward(*one, y) for one, y in zip(sets, outputs)],
        "eager": [lambda one=one, residual=residual: eager(*one) + residual for one, residual in zip(sets, residuals)],
    }
    graphs = {name: bench.graph_of(calls, fewest) for name, calls in ways.items()}
    exact = eager(*(t.double() for t in sets[0])) + residuals[0].double()
    errors = {}
    for name in ("kiln", "kiln_then_add"):
        outputs[0].fill_(float("nan"))
        ways[name][0]()
        errors[name] = bench.relative_error(outputs[0], exact)
    errors["eager"] = bench.relative_error(ways["eager"][0](), exact)
    errors["without"] = float("nan")  # of another function
    bench.require_right(errors, m * min(d, h), f"{m}, {d}, {h}")
    result = {"m": m, "d": d, "h": h, "sets": count} | bench.summary(bench.round_robin(graphs, rounds, REGIME), errors)
    for name in ("without_error", "best_rival", "best_rival_over_kiln"):  # there is none: each of these is compared
        del result[name]
    print(f"{m}, {d}, {h}: " + ", ".join(f"{name} {result[f'{name}_us']}" for name in graphs), flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "residual")
    result["regime"] = bench.burst_text(arguments.rounds)
    gate = gates.gate_of(arguments.package)
    for shape in SHAPES:
        result["shapes"].append(compare(gate, library, *shape, arguments.rounds))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
