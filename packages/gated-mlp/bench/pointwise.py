#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times geglu or swiglu and its gradient against PyTorch, Inductor and Liger on one GPU, round robin in one process.

    bench/pointwise.py --package geglu-mlp@1 --variant <variant> --rivals compile,liger \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so --out bench/results/<gpu>-pointwise.json

Each shape is first compared with fp64. Every contender is timed as a CUDA graph over several sets of random
buffers. Each input and output has memory of its own, so the L2 cache holds none of them. Their addresses change
the time by up to 1%. There are therefore at least sixteen sets, and Kiln's outputs are separate allocations, as
the rivals' are. A figure is the median of the rounds. GB/s counts each input and each output once. The share is
relative to a kernel that reads 1 GiB and writes 1 GiB in the same run.

Eager's backward is autograd's: three kernels, with the activated gate kept from the forward. The others compute it
again. Liger writes its gradients over gate and up.
"""
import types

import torch

import eager as bench
import gates

SHAPES = [(8192, 3072), (4096, 9216), (8192, 14336), (1, 14336), (16, 14336), (1000, 6912), (77, 2560),
          (3001, 4864)]
COPIED_BYTES = 1 << 30
REGIME = bench.Regime(timed=20, load=0, rest=0)  # memory holds these back, not the power limit
CHECKED_ROWS = 256
FEWEST_SETS = 16


# Of a gate: an op and its gradient, of as many inputs and outputs as the library's.
def forward_of(gate):
    activate = gate.activate
    return lambda gate, up: (activate(gate) * up,)


def backward_of(gate):
    activate, gradient = gate.activate, gate.gradient
    return lambda grad_out, gate, up: (gradient(grad_out * up, gate), grad_out * activate(gate))


OPS = {"": forward_of, "_backward": backward_of}  # by what the op's name ends with
INPUTS = {"": 2, "_backward": 3}
OUTPUTS = {"": 1, "_backward": 2}


def holding(function):
    """Binds the function to inputs. The call keeps its result alive. Otherwise the graph's calls would all write
    to the same few blocks, which stay in the L2 cache."""
    def bind(*inputs):
        def call():
            call.result = function(*inputs)
            return call.result

        return call

    return bind


def bind_eager(gate, op):
    activate, gradient = gate.activate, gate.gradient

    def from_saved(grad_out, gate, up, activated):
        return gradient(grad_out * up, gate), grad_out * activated

    def bind_backward(grad_out, gate, up):
        return holding(from_saved)(grad_out, gate, up, activate(gate))

    return bind_backward if op == "_backward" else holding(forward_of(gate))


def bind_compiled(gate, op):
    return holding(torch.compile(OPS[op](gate), dynamic=False))


def bind_liger(gate, op):
    fused = gate.liger_function()

    def bind_backward(grad_out, gate, up):
        context = types.SimpleNamespace(saved_tensors=(gate.clone(), up.clone()), gate_multiplier=1.0,
                                        down_multiplier=1.0, dtensor_metadata=None)
        return lambda: fused.backward(context, grad_out)[:2]

    if op == "_backward":
        return bind_backward
    return holding(lambda gate, up: (fused.apply(gate, up),))


# By name, each of the gate: a function of the op that makes what binds a set of inputs.
RIVALS = {name: lambda gate, bind=bind: lambda op: bind(gate, op)
          for name, bind in {"eager": bind_eager, "compile": bind_compiled, "liger": bind_liger}.items()}


def copy_bandwidth():
    """GB/s that an elementwise kernel reads and writes. Not copy_: it calls the driver's memcpy, which reached two
    thirds of that rate on an H200."""
    source = torch.randint(1 << 30, (COPIED_BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    graph = bench.graph_of([lambda: torch.bitwise_not(source, out=target)])
    bench.milliseconds(graph, 20)
    return 2e-6 * COPIED_BYTES / bench.milliseconds(graph, 100)


def errors_of(gate, op, inputs, results):
    """The relative L2 error against fp64 of the worst output."""
    exact = OPS[op](gate)(*(t[:CHECKED_ROWS].double() for t in inputs))
    return {name: max(bench.relative_error(r[:CHECKED_ROWS], e) for r, e in zip(result, exact))
            for name, result in results.items()}


def compare(gate, library, rivals, op, m, h, rounds, copied_gbs):
    # Bytes of gate, up and one output. The backward has more.
    count = max(FEWEST_SETS, 1 + bench.ROTATED_BYTES // (2 * 3 * m * h))

    inputs = [torch.randn(count, m, h, device="cuda", dtype=torch.bfloat16) for _ in range(INPUTS[op])]
    sets = list(zip(*inputs))
    outputs = [[torch.empty_like(one[0]) for _ in range(OUTPUTS[op])] for one in sets]
    graphs = {"kiln": bench.graph_of([library.bind(gate.op + op, *one, *out) for one, out in zip(sets, outputs)])}
    rival_graphs, results, notes = bench.bind_rivals(
        {name: lambda make=make: make()(op) for name, make in rivals.items()}, sets)
    graphs |= rival_graphs
    for output in outputs[0]:
        output.fill_(float("nan"))
    graphs["kiln"].replay()
    errors = errors_of(gate, op, sets[0], results | {"kiln": outputs[0]})
    bench.drop_wrong(errors, graphs, notes)
    bench.require_right(errors, m * h, f"{gate.op}{op} {m}, {h}")
    figures = bench.round_robin(graphs, rounds, REGIME)
    result = {"op": gate.op + op, "m": m, "h": h, "sets": count} | notes | bench.summary(figures, errors)
    least_bytes = 2 * (INPUTS[op] + OUTPUTS[op]) * m * h
    for name in graphs:
        gbs = 1e-3 * least_bytes / result[f"{name}_us"]
        result[f"{name}_gbs"], result[f"{name}_copy_share"] = round(gbs, 1), round(gbs / copied_gbs, 3)
    print(f"{gate.op}{op} {m}, {h}: {result['kiln_gbs']:.0f} GB/s, {100 * result['kiln_copy_share']:.0f}% of a copy; "
          + bench.line_of(result, graphs), flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "pointwise", rivals=RIVALS)
    rivals = bench.chosen_rivals(arguments, RIVALS)
    copied_gbs = copy_bandwidth()
    print(f"copy of 1 GiB: {copied_gbs:.0f} GB/s", flush=True)
    result |= {"regime": "graph replays, round robin, " + bench.regime_text(REGIME), "copy_gbs": round(copied_gbs, 1)}
    gate = gates.gate_of(arguments.package)
    for op in OPS:
        for m, h in SHAPES:
            result["shapes"].append(compare(gate, library, rivals, op, m, h, arguments.rounds, copied_gbs))
            bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
