#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward at shapes that nobody chose: widths of published models, numbers of rows drawn by a seed.

    bench/held_out.py --package geglu-mlp@1 --variant <variant> --library <file> --seed 1 \
        --out bench/results/<gpu>-held-out.json

The rows of each width are log-uniform from 65 to 8192. Rivals: eager, and `fused`, cuBLAS's product with concatenated
weights, Kiln's own elementwise op and cuBLAS's product with down; --rivals adds those of eager.py, which compile for each
shape. A figure is the median of the rounds, in bursts.

--kernels FILE also times pinned kernels (host/pins.h), those of one product beside the plan's of the other. Its lines
are {"m", "d", "h", "gated": [name, …], "down": [name, …]}; they take the place of the drawn shapes.
"""
import json
import math
import random
import statistics

import torch
import torch.nn.functional as F

import eager as bench
import gates

WIDTHS = {
    # D and H of Qwen 2.5 0.5B, Qwen 3 0.6B and 1.7B, Gemma 3 1B, Qwen 2.5 1.5B, Llama 3.2 1B, Gemma 2 2B, Qwen 3 4B,
    # Phi 3 mini, Gemma 2 9B, Qwen 2.5 7B, Gemma 3 12B, Qwen 3 8B, Llama 3 8B, Llama 2 13B, Qwen 3 14B. The plan's time
    # model is fitted to times at these.
    "fitted": ((896, 4864), (1024, 3072), (2048, 6144), (1152, 6912), (1536, 8960), (2048, 8192), (2304, 9216),
               (2560, 9728), (3072, 8192), (3584, 14336), (3584, 18944), (3840, 15360), (4096, 12288), (4096, 14336),
               (5120, 13824), (5120, 17408)),
    # MiniCPM 2B, StableLM 3B, Qwen 2.5 3B, Falcon 3 7B, Llama 2 7B, Granite 3 8B, GLM 4 9B, Mistral Nemo, Phi 4,
    # Qwen 3 32B, Gemma 3 27B, Yi 34B.
    "others": ((2304, 5760), (2560, 6912), (2048, 11008), (3072, 23040), (4096, 11008), (4096, 12800), (4096, 13696),
               (5120, 14336), (5120, 17920), (5120, 25600), (5376, 21504), (7168, 20480)),
}
ROWS = (65, 8192)
REGIME = bench.Regime(timed=1.2, load=0, rest=0.02)


def drawn(seed, widths, each):
    chance = random.Random(seed)
    return [(round(math.exp(chance.uniform(*map(math.log, ROWS)))), d, h) for d, h in WIDTHS[widths]
            for _ in range(each)]


def bind_fused(library, op, x, gate, up, down):
    gate_up = torch.cat([gate, up])
    both = F.linear(x, gate_up)
    hidden = torch.empty(x.shape[0], gate.shape[0], dtype=x.dtype, device=x.device)
    unit = library.bind(op, *both.chunk(2, dim=-1), hidden)

    def run():
        torch.mm(x, gate_up.t(), out=both)
        unit()
        return F.linear(hidden, down)

    return run


def compare(arguments, library, gate, rivals, shape, kernels):
    m, d, h = shape
    sets = [bench.inputs_of(m, d, h)
            for _ in range(min(16, 1 + bench.ROTATED_BYTES // (6 * d * h)))]
    outputs = [torch.empty_like(one[0]) for one in sets]
    fewest = max(1, min(4, int(bench.MOST_OPERATIONS / (6 * m * d * h))))
    eager = bench.eager_of(gate)

    def graph(**words):
        return bench.graph_of([library.forward(*one, y, **words) for one, y in zip(sets, outputs)], fewest)

    graphs = {"kiln": graph(), "eager": bench.graph_of([lambda one=one: eager(*one) for one in sets], fewest),
              "fused": bench.graph_of([bind_fused(library, gate.op, *one) for one in sets], fewest)}
    others, results, notes = bench.bind_rivals(rivals, sets, fewest)
    graphs |= others
    for product in ("gated", "down"):
        for name in kernels.get(product, ()):
            try:
                graphs[f"{product}={name}"] = graph(kernels=f"{product}={name}")
            except RuntimeError as error:
                print(f"{m}, {d}, {h}: {error}", flush=True)
    outputs[0].fill_(float("nan"))
    graphs["kiln"].replay()
    exact = eager(*(t.double() for t in (sets[0][0][-64:], *sets[0][1:])))
    found = {"kiln": outputs[0][-64:], "eager": eager(*sets[0])[-64:]}
    errors = {name: bench.relative_error(y, exact) for name, y in found.items()}
    bench.require_right(errors, 64 * min(d, h), f"{m}, {d}, {h}")
    wrong = {name: bench.relative_error(y[-64:], exact) for name, (y,) in results.items()}
    bench.drop_wrong(wrong, graphs, notes)
    figures = bench.round_robin(graphs, arguments.rounds, REGIME)
    times = {name: round(statistics.median(found), 2) for name, found in figures.items()}
    result = {"m": m, "d": d, "h": h, "kiln_us": times["kiln"], "eager_us": times["eager"], "fused_us": times["fused"]}
    result |= notes | {f"{name}_us": times[name] for name in others if name in times}
    result["best_over_kiln"] = round(min(us for name, us in times.items() if name != "kiln" and "=" not in name) /
                                     times["kiln"], 3)
    for product in ("gated", "down"):
        found = [[name.split("=")[1], us] for name, us in times.items() if name.startswith(product + "=")]
        if found:
            result[product] = sorted(found, key=lambda pair: pair[1])
    print({key: value[:2] if isinstance(value, list) else value for key, value in result.items()}, flush=True)
    return result


def summary(shapes):
    ratios = [shape["best_over_kiln"] for shape in shapes]
    return {"shapes": len(ratios), "geometric_mean": round(statistics.geometric_mean(ratios), 3), "worst": min(ratios),
            "below_1": sum(ratio < 1 for ratio in ratios), "below_0.95": sum(ratio < 0.95 for ratio in ratios)}


def main():
    def options(parser):
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--widths", choices=WIDTHS, default="others", help="those of the plan's fit, or others")
        parser.add_argument("--each", type=int, default=6, help="shapes of each width")
        parser.add_argument("--kernels", help="a file of shapes and of kernels to pin")

    rivals = {name: make for name, make in bench.RIVALS.items() if name != "eager"}
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "held_out", options, rivals)
    rivals = {name: make for name, make in bench.chosen_rivals(arguments, bench.RIVALS).items() if name != "eager"}
    gate = gates.gate_of(arguments.package)
    result |= {"seed": arguments.seed, "widths": arguments.widths, "rows": f"log-uniform from {ROWS[0]} to {ROWS[1]}",
               "regime": bench.burst_text(arguments.rounds, REGIME)}
    if arguments.kernels:
        with open(arguments.kernels, encoding="utf-8") as file:
            cases = [json.loads(line) for line in file]
    else:
        cases = [{"m": m, "d": d, "h": h} for m, d, h in drawn(arguments.seed, arguments.widths, arguments.each)]
    for case in cases:
        shape = case["m"], case["d"], case["h"]
        result["shapes"].append(compare(arguments, library, gate, rivals, shape, case))
        result["summary"] = summary(result["shapes"])
        bench.write_result(result, arguments.out)
    print(result["summary"])


if __name__ == "__main__":
    main()
