#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times a backward that adds weights' gradients to float32 tensors, beside one that writes them and torch's sum.

    bench/main_grad.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<gpu>-main-grad.json

`kiln` adds, `kiln_then_torch` writes in bfloat16 and leaves the sums to torch, `kiln_written` writes and adds nothing.
--against NAME=FILE: what another library takes that adds.

First everything that is added is compared, at shapes with ragged edges and without: with fp64; and bit by bit with
the float32 sum of what was there and what a first call adds to zeros, which rounded is what a call writes.
"""
import statistics

import torch

import eager as bench
import gates
import training

SHAPES = [(8192, 768, 3072), (4096, 2304, 9216), (4096, 4096, 14336)]
CHECKED = [(8192, 768, 3072), (1000, 1152, 6912), (2061, 72, 2088), (300, 264, 520), (131, 8, 24), (8, 4096, 1048)]
REPEATS = 3
REGIME = bench.REGIMES["sustained"]
GUARD = 1024  # elements


def inputs_of(m, d, h):
    """x, gate, up, down, grad_y and the gradients of all but the last."""
    one = (*bench.inputs_of(m, d, h), bench.normal(m, d, 1))
    return one, [torch.full_like(t, float("nan")) for t in one[:4]]


def guarded(values, shift):
    """The values in the middle of a larger tensor, `shift` elements off; and that tensor."""
    whole = torch.full((GUARD + shift + values.numel() + GUARD,), 7.0, device="cuda")
    view = whole[GUARD + shift : GUARD + shift + values.numel()].view(values.shape)
    return view.copy_(values), whole


def bind(library, one, gradients, mains):
    """A backward without biases: of mains those that are there, of gradients the others."""
    x, gate, up, down, grad_y = one
    written = [gradients[0], *(None if main is not None else g for g, main in zip(gradients[1:], mains))]
    return library.bind("backward", grad_y, x, gate, up, down, *[None] * 4, *written, *[None] * 3, *mains, *[None] * 3)


def check_biases(library, one):
    """The sums of columns: of grad_y they are known."""
    start = torch.randn(one[0].shape[1], device="cuda")
    main = start.clone()
    x, gate, up, down, grad_y = one
    library.bind("backward", grad_y, x, gate, up, down, *[None] * 16, main)()
    expected = start.double() + grad_y.double().sum(0)
    if not (main.double() - expected).norm() <= 1e-6 * expected.norm():
        raise RuntimeError("main_grad_down_bias is wrong")


def check(gate, library, m, d, h, shift=0):
    """Of all weights, and of those of gate and down beside up's, which is written. Returns the worst error."""
    one, gradients = inputs_of(m, d, h)
    *leaves, grad_y = (t.double() for t in one)
    leaves = [t.requires_grad_() for t in leaves]
    with torch.enable_grad():
        exact = torch.autograd.grad(bench.eager_of(gate)(*leaves), leaves, grad_y)
    bind(library, one, gradients, [None] * 3)()
    worst = 0.0
    for chosen in ((0, 1, 2), (0, 2), (1,)):
        def mains_of(make):
            pairs = [guarded(make(g), shift) if i in chosen else (None, None) for i, g in enumerate(gradients[1:])]
            return [view for view, _ in pairs], [whole for _, whole in pairs if whole is not None]

        zeros, _ = mains_of(lambda g: torch.zeros(g.shape, device="cuda"))
        bind(library, one, gradients, zeros)()
        starts = [torch.randn(g.shape, device="cuda") * g.float().std() for g in gradients[1:]]
        for _ in range(REPEATS):
            fresh = iter(start for i, start in enumerate(starts) if i in chosen)
            mains, wholes = mains_of(lambda g: next(fresh))
            others = [torch.full_like(g, float("nan")) for g in gradients]
            run = bind(library, one, others, mains)
            run.workspace.fill_(255)
            run()
            for i, (main, zero, start) in enumerate(zip(mains, zeros, starts), 1):
                name = f"{m}, {d}, {h}: {('gate', 'up', 'down')[i - 1]} of {chosen}, {shift} elements off"
                if main is None:
                    if shift == 0 and not torch.equal(others[i], gradients[i]):
                        raise RuntimeError(f"{name}: written beside those that are added, it has other bits")
                    continue
                if not torch.equal(main, start + zero):
                    raise RuntimeError(f"{name}: {(main != start + zero).sum().item()} sums are not exact")
                if shift == 0 and min(d, h) > 16 and not torch.equal(zero.bfloat16(), gradients[i]):
                    raise RuntimeError(f"{name}: not what is written")
                worst = max(worst, ((zero.double() - exact[i]).norm() / exact[i].norm()).item())
            for whole in wholes:
                if not (torch.all(whole[:GUARD] == 7) and torch.all(whole[-GUARD:] == 7)):
                    raise RuntimeError(f"{m}, {d}, {h}: wrote beside a main gradient")
    check_biases(library, one)
    if not worst <= training.BOUND:
        raise RuntimeError(f"{m}, {d}, {h}: relative L2 error {worst}")
    return worst


def compare(libraries, m, d, h, rounds):
    count = min(8, 1 + bench.ROTATED_BYTES // (2 * (12 * d * h + m * (4 * d + 2 * h))))
    sets = [inputs_of(m, d, h) for _ in range(count)]
    mains = [[torch.zeros(g.shape, device="cuda") for g in gradients[1:]] for _, gradients in sets]
    kiln = libraries["kiln"]

    def then_torch(one, gradients, sums):
        backward = bind(kiln, one, gradients, [None] * 3)

        def call():
            backward()
            for total, gradient in zip(sums, gradients[1:]):
                total.add_(gradient)

        call.keep = backward
        return call

    ways = {name: [bind(library, *one, sums) for one, sums in zip(sets, mains)] for name, library in libraries.items()}
    ways["kiln_then_torch"] = [then_torch(*one, sums) for one, sums in zip(sets, mains)]
    ways["kiln_written"] = [bind(kiln, *one, [None] * 3) for one in sets]
    figures = bench.round_robin({name: bench.graph_of(calls) for name, calls in ways.items()}, rounds, REGIME)
    result = {"m": m, "d": d, "h": h, "sets": count}
    result |= {f"{name}_us": round(statistics.median(values), 2) for name, values in figures.items()}
    print(f"{m}, {d}, {h}: " + ", ".join(f"{name} {result[f'{name}_us']}" for name in ways), flush=True)
    return result


def main():
    def options(parser):
        parser.add_argument("--against", action="append", default=[], metavar="NAME=FILE")

    arguments, kiln, result = bench.begin(__doc__.splitlines()[0], "main-grad", options)
    libraries = {"kiln": kiln}
    libraries |= {name: bench.Library(path) for name, path in (one.split("=", 1) for one in arguments.against)}
    gate = gates.gate_of(arguments.package)
    for name, library in libraries.items():
        errors = [check(gate, library, *shape) for shape in CHECKED]
        errors.append(check(gate, library, 300, 264, 520, shift=1))
        print(f"{name}: exact sums; worst relative L2 error against fp64 {max(errors):.2e}", flush=True)
    result["regime"] = ("backward alone, graph replays, round robin, sustained: "
                        f"{bench.regime_text(REGIME)}; {arguments.rounds} rounds")
    for shape in SHAPES:
        result["shapes"].append(compare(libraries, *shape, arguments.rounds))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
