#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward beside what eager.py does not have, as CUDA graphs, in bursts or sustained.

    bench/forwards.py WHAT --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-WHAT.json

held-out: shapes that nobody chose: widths of published models, numbers of rows that --seed draws, log-uniform from 1 to
16384. Rivals: eager and those of --rivals, which are `fused`, cuBLAS's product with concatenated weights, Kiln's own
elementwise op and cuBLAS's product with down, and those of eager.py, which compile for each shape. Default: fused.
--widths unaligned and odd draw rows for widths that the kernels for SM 9.0 have to pad or leave to others. --part 0/2 takes
every second shape, for two GPUs or two runs. --kernels FILE also times pinned kernels (host/pins.h), those of one product
beside the plan's of the other. Its lines are {"m", "d", "h", "gated": [name, …], "down": [name, …]}; they take the place of
the drawn shapes.

holes: shapes at which a user's own measurements found Kiln slow, and some of unaligned and odd widths.

decode: few rows, beside a bare read of as many bytes as the weights have. The read is a kernel that adds up its part of the
bytes, 16 a load, and writes one number: the fastest of several block sizes and loads in flight. It is one launch where
forward is two.

invariant: a batch-invariant forward beside one whose sums M may order. At each width a call of the most rows is made
first; the first rows of the other calls must have its bits.

residual: `kiln` adds the residual in the kernel, `kiln_then_add` in a torch.add of its own, `without` not at all.
"""
import json
import math
import random
import statistics

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

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
    # Multiples of 8 and not of 64.
    "unaligned": ((1000, 2744), (1160, 3096), (2056, 5496), (2600, 6936), (3304, 8808), (4040, 10776)),
    "odd": ((767, 3071), (1001, 2745), (1002, 2746), (2049, 5463), (4095, 10923)),
}
DRAWN_ROWS = (1, 16384)
HOLES = {"plan": ((333, 5120, 17408), (1800, 5120, 17408), (333, 3072, 8192), (700, 3072, 8192)),
         "unaligned": ((8191, 1000, 2744), (1000, 1000, 2744), (64, 1000, 2744), (1, 1000, 2744), (2048, 4040, 10776)),
         "odd": ((1000, 1001, 2745), (64, 1001, 2745), (1, 1001, 2745), (1000, 1002, 2746), (2048, 4095, 10923))}
DECODE_WIDTHS = ((768, 3072), (1024, 4096), (2048, 8192), (2304, 9216), (3584, 14336), (4096, 14336))
DECODE_ROWS = (1, 4, 16, 32, 64)
READS = [(block, warps) for block in (2048, 4096, 8192, 16384) for warps in (4, 8)]  # int32 a program
INVARIANT_WIDTHS = ((768, 3072), (2304, 9216), (3584, 14336))
INVARIANT_ROWS = (1, 16, 64, 128, 256, 512, 900, 1024, 8192)
RESIDUAL_SHAPES = [(1, 768, 3072), (1, 3584, 14336), (64, 3584, 14336), (160, 768, 3072), (513, 7880, 728),
                   (1024, 1024, 4096), (2048, 3584, 14336), (8192, 768, 3072), (16384, 2048, 8192)]
BURST, SHORT = bench.REGIMES["burst"], bench.Regime(timed=1.2, load=0, rest=0.02)


def fewest_of(m, d, h, most=bench.FEWEST_CALLS):
    return max(1, min(most, int(bench.MOST_OPERATIONS / (6 * m * d * h))))


def weight_sets(d, h):
    """How many sets of weights together exceed the L2 cache."""
    return 1 + bench.ROTATED_BYTES // (6 * d * h)


def forwards(library, sets, outputs, fewest, **words):
    return bench.graph_of([library.forward(*one, y, **words) for one, y in zip(sets, outputs)], fewest)


def errors_of(shape, exact, **found):
    """Relative L2 by name; Kiln's is refused where it is too large."""
    errors = {name: bench.relative_error(y, exact) for name, y in found.items()}
    bench.require_right(errors, len(exact) * min(shape[1:]), ", ".join(map(str, shape)))
    return errors


def regime_of(arguments, burst, m=bench.POWER_ROWS):
    """What --regime says: `burst`, or bench's sustained one, which has no load where power limits nothing."""
    if arguments.regime == "burst":
        return burst
    return bench.REGIMES["sustained"]._replace(**{} if m >= bench.POWER_ROWS else {"load": 0})


def medians(graphs, rounds, regime):
    return {name: statistics.median(found) for name, found in bench.round_robin(graphs, rounds, regime).items()}


# ---- held-out ----


def drawn(seed, widths, each):
    chance = random.Random(seed)
    return [{"m": round(math.exp(chance.uniform(*map(math.log, DRAWN_ROWS)))), "d": d, "h": h} for d, h in WIDTHS[widths]
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


def held_out_shape(arguments, library, gate, rivals, case):
    shape = m, d, h = case["m"], case["d"], case["h"]
    sets = [bench.inputs_of(*shape) for _ in range(min(16, weight_sets(d, h)))]
    outputs = [torch.empty_like(one[0]) for one in sets]
    fewest = fewest_of(*shape, most=4)
    graphs = {"kiln": forwards(library, sets, outputs, fewest)}
    others, results, notes = bench.bind_rivals(rivals, sets, fewest)
    graphs |= others
    for kernels in [f"{product}={name}" for product in ("gated", "down") for name in case.get(product, ())]:
        try:
            graphs[kernels] = forwards(library, sets, outputs, fewest, kernels=kernels)
        except RuntimeError as error:
            print(f"{m}, {d}, {h}: {error}", flush=True)
    outputs[0].fill_(float("nan"))
    graphs["kiln"].replay()
    exact = bench.eager_of(gate)(*(t.double() for t in (sets[0][0][-64:], *sets[0][1:])))
    errors = errors_of(shape, exact, kiln=outputs[0][-64:], **{name: y[-64:] for name, (y,) in results.items()})
    bench.drop_wrong(errors, graphs, notes)
    times = {name: round(us, 2) for name, us in medians(graphs, arguments.rounds, regime_of(arguments, SHORT, m)).items()}
    result = case | notes | {f"{name}_us": us for name, us in times.items() if "=" not in name}
    result["best_over_kiln"] = round(min(times[name] for name in others if name in times) / times["kiln"], 3)
    for product in ("gated", "down"):
        found = [[name.split("=")[1], us] for name, us in times.items() if name.startswith(product + "=")]
        if found:
            result[product] = sorted(found, key=lambda pair: pair[1])
    return result


def held_out(arguments, library, gate, result):
    cases = drawn(arguments.seed, arguments.widths, arguments.each)
    result |= {"seed": arguments.seed, "widths": arguments.widths, "rows": "log-uniform from {} to {}".format(*DRAWN_ROWS)}
    if arguments.kernels:
        with open(arguments.kernels, encoding="utf-8") as file:
            cases = [json.loads(line) for line in file]
    return beside_rivals(arguments, library, gate, result, cases)


def holes(arguments, library, gate, result):
    cases = [{"group": group} | dict(zip("mdh", shape)) for group, shapes in HOLES.items() for shape in shapes]
    return beside_rivals(arguments, library, gate, result, cases)


def beside_rivals(arguments, library, gate, result, cases):
    fused = {"fused": lambda _: lambda *one: bind_fused(library, gate.op, *one)}
    arguments.rivals = arguments.rivals or "fused"
    rivals = bench.chosen_rivals(arguments, bench.RIVALS | fused)
    first, step = map(int, arguments.part.split("/"))
    ratios = []
    for case in cases[first::step]:
        shape = held_out_shape(arguments, library, gate, rivals, case)
        ratios.append(shape["best_over_kiln"])
        result["summary"] = {
            "shapes": len(ratios), "geometric_mean": round(statistics.geometric_mean(ratios), 3), "worst": min(ratios),
            "below_1": sum(ratio < 1 for ratio in ratios), "below_0.95": sum(ratio < 0.95 for ratio in ratios)}
        yield shape
    print(result["summary"])


# ---- decode ----


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


def decode(arguments, library, gate, _):
    eager = bench.eager_of(gate)
    for d, h in DECODE_WIDTHS:
        # One block of memory for the read, which does not depend on the rows and takes part in each shape.
        together = [bench.normal(3 * h, d, 1).view(3, h, d) for _ in range(min(32, weight_sets(d, h)))]
        weights = [(gate.mul_(d**-0.5), up.mul_(d**-0.5), down.mul_(h**-0.5).view(d, h)) for gate, up, down in together]
        reads = {f"read_{block}_{warps}": bench.graph_of([bind_read(one, block, warps) for one in together],
                                                         bench.FEWEST_CALLS) for block, warps in READS}
        for m in DECODE_ROWS:
            sets = [(bench.normal(m, d, 1), *one) for one in weights]
            outputs = [torch.full_like(one[0], float("nan")) for one in sets]
            graphs = reads | {
                "kiln": forwards(library, sets, outputs, bench.FEWEST_CALLS),
                "eager": bench.graph_of([lambda one=one: eager(*one) for one in sets], bench.FEWEST_CALLS)}
            exact = eager(*(t.double() for t in sets[0]))
            errors_of((m, d, h), exact, kiln=outputs[0], eager=eager(*sets[0]))
            times = medians(graphs, arguments.rounds, regime_of(arguments, SHORT, m))
            fastest = min(reads, key=times.get)
            yield {"m": m, "d": d, "h": h, "kiln_us": round(times["kiln"], 2), "read_us": round(times[fastest], 2),
                   "eager_us": round(times["eager"], 2), "of_a_read": round(times[fastest] / times["kiln"], 3),
                   "read": fastest}


# ---- invariant, residual ----


def invariant(arguments, library, *_):
    for d, h in INVARIANT_WIDTHS:
        weights = [bench.inputs_of(1, d, h)[1:] for _ in range(weight_sets(d, h))]
        x = bench.normal(max(INVARIANT_ROWS), d, 1)
        whole = torch.empty_like(x)
        library.forward(x, *weights[0], whole, batch_invariant="yes")()
        for m in INVARIANT_ROWS:
            sets = [(x[:m], *one) for one in weights[:1 if m > 1024 else None]]
            outputs = [torch.full_like(one[0], float("nan")) for one in sets]
            graphs, same = {}, {}
            for name in ("no", "yes"):
                graphs[name] = forwards(library, sets, outputs, fewest_of(m, d, h), batch_invariant=name)
                same[name] = torch.equal(outputs[0], whole[:m])
            if not same["yes"]:
                raise SystemExit(f"{m}, {d}, {h}: a batch-invariant call gives other bits than one of {len(whole)} rows")
            times = {name: round(us, 2) for name, us in medians(graphs, arguments.rounds, regime_of(arguments, BURST, m)).items()}
            yield {"m": m, "d": d, "h": h, "kiln_us": times["no"], "invariant_us": times["yes"],
                   "invariant_over_kiln": round(times["yes"] / times["no"], 3), "kiln_has_the_bits": same["no"]}


def residual(arguments, library, gate, _):
    eager = bench.eager_of(gate)

    def then_add(one, y, residual):
        forward = library.forward(*one, y)

        def call():
            forward()
            torch.add(y, residual, out=y)

        call.keep = forward
        return call

    for shape in RESIDUAL_SHAPES:
        m, d, h = shape
        count = min(32, 1 + bench.ROTATED_BYTES // (2 * (3 * d * h + m * (3 * d + h))))
        sets = [bench.inputs_of(*shape) for _ in range(count)]
        residuals = [bench.normal(m, d, 1) for _ in sets]
        outputs = [torch.empty_like(each) for each in residuals]
        ways = {
            "kiln": [library.forward(*one, y, each) for one, y, each in zip(sets, outputs, residuals)],
            "kiln_then_add": [then_add(*each) for each in zip(sets, outputs, residuals)],
            "without": [library.forward(*one, y) for one, y in zip(sets, outputs)],
            "eager": [lambda one=one, each=each: eager(*one) + each for one, each in zip(sets, residuals)]}
        graphs = {name: bench.graph_of(calls, fewest_of(*shape)) for name, calls in ways.items()}
        exact = eager(*(t.double() for t in sets[0])) + residuals[0].double()
        found = {"eager": ways["eager"][0]()}
        for name in ("kiln", "kiln_then_add"):
            outputs[0].fill_(float("nan"))
            ways[name][0]()
            found[name] = outputs[0].clone()
        errors = errors_of(shape, exact, **found) | {"without": None}  # of another function
        result = bench.summary(bench.round_robin(graphs, arguments.rounds, regime_of(arguments, BURST, m)), errors)
        for name in ("without_error", "best_rival", "best_rival_over_kiln"):  # there is none: each of these is compared
            del result[name]
        yield {"m": m, "d": d, "h": h, "sets": count} | result


WHATS = {"held-out": (held_out, SHORT), "holes": (holes, SHORT), "decode": (decode, SHORT), "invariant": (invariant, BURST),
         "residual": (residual, BURST)}


def main():
    def options(parser):
        parser.add_argument("what", choices=WHATS)
        parser.add_argument("--regime", choices=bench.REGIMES, default="burst")
        parser.add_argument("--seed", type=int, default=1, help="of held-out")
        parser.add_argument("--widths", choices=WIDTHS, default="others", help="those of the plan's fit, or others")
        parser.add_argument("--each", type=int, default=6, help="shapes of each width")
        parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth shape of held-out and holes, from I on")
        parser.add_argument("--kernels", help="a file of shapes and of kernels to pin")

    rivals = ["fused", *(name for name in bench.RIVALS if name != "eager")]
    arguments, library, result = bench.begin(__doc__.splitlines()[0], None, options, rivals)
    measure, burst = WHATS[arguments.what]
    result["regime"] = bench.regime_line(arguments.regime, regime_of(arguments, burst), f"{arguments.rounds} rounds")
    for shape in measure(arguments, library, gates.gate_of(arguments.package), result):
        print({key: value[:2] if isinstance(value, list) else value for key, value in shape.items()}, flush=True)
        result["shapes"].append(shape)
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
