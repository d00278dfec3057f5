#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times a training step, forward and backward, against PyTorch and its rivals on one GPU.

    bench/training.py --package geglu-mlp@1 --variant <variant> --rivals compile,concatenated \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so --out bench/results/<gpu>-training.json

A step computes y and the gradients of x, gate, up and down. Every contender keeps the products of gate and up from
the forward; kiln_recompute computes them again instead. Each shape is first compared with fp64: the error is that of the
worst of the five. The contenders are timed as in eager.py, as CUDA graphs, round robin in one process.

peak_mib is the most memory that one step takes beside its inputs, outside of a graph: what is kept, scratch memory, y and
the gradients. A rival's own copy of the weights, gate's and up's in one, stands before and is not counted.
"""
import torch
import torch.nn.functional as F

import eager as bench
import gates

SHAPES = [(8192, 768, 3072), (1024, 1024, 4096), (4096, 2304, 9216), (2048, 2048, 8192), (4096, 4096, 14336),
          (8192, 3584, 14336)]
OURS = ("kiln", "kiln_recompute")
AUTOTUNE = "max-autotune-no-cudagraphs"
BOUND = 6e-3  # relative L2 of bfloat16: several more roundings lie on a gradient's way than on forward's


def step(function, weights):
    """Binds a differentiable function of x and its weights. The call returns y, then the gradients of all."""
    def bind(x, *rest):
        *given, grad_y = rest
        inputs = [t.detach().requires_grad_() for t in (x, *weights(*given))]

        def call():
            y = function(*inputs)
            call.result = (y.detach(), *torch.autograd.grad(y, inputs, grad_y))  # held: it has memory of its own
            return call.result

        return call

    return bind


def separate(gate, up, down):
    return gate, up, down


def together(gate, up, down):
    return torch.cat([gate, up]), down


def bind_liger(gate):
    fused = gate.liger_function()
    return step(lambda x, gate, up, down: F.linear(fused.apply(F.linear(x, gate), F.linear(x, up)), down), separate)


def bind_quack(gate, tuned=False):
    activation = gate.quack

    def bind(x, gate, up, down, grad_y):
        layer = bench.quack_layer(activation, x, gate, up, down, tuned=tuned)
        inputs = [x.detach().requires_grad_(), layer.fc1.weight, layer.fc2.weight]

        def call():
            y = layer(inputs[0])
            call.result = (y.detach(), *torch.autograd.grad(y, inputs, grad_y))
            return call.result

        return call

    return bind


def compiled(function, mode=None):
    return torch.compile(function, mode=mode, dynamic=False)


RIVALS = {
    "eager": lambda gate: step(bench.eager_of(gate), separate),
    "compile": lambda gate: step(compiled(bench.eager_of(gate)), separate),
    "autotune": lambda gate: step(compiled(bench.eager_of(gate), AUTOTUNE), separate),
    "concatenated": lambda gate: step(compiled(bench.concatenated_of(gate)), together),
    "concatenated_autotune": lambda gate: step(compiled(bench.concatenated_of(gate), AUTOTUNE), together),
    "liger": bind_liger,
    "quack": bind_quack,
    "quack_tuned": lambda gate: bind_quack(gate, tuned=True),
}


def empty_pair(x, gate, keeps):
    """For the products of gate and up, where they are kept."""
    return [torch.empty(len(x), len(gate), dtype=x.dtype, device=x.device) if keeps else None for _ in range(2)]


def bind_forward(library, one, y, kept):
    weights = one[1:4]
    if kept[0] is None:
        return library.forward(one[0], *weights, y)
    return library.bind("training_forward", one[0], *weights, None, None, None, None, y, *kept)


def bind_backward(library, one, kept, gradients):
    *inputs, grad_y = one
    return library.bind("backward", grad_y, *inputs, None, None, *kept, *gradients, *[None] * 9)


def bind_ours(library, one, outputs, keeps):
    """Forward, then backward."""
    y, *gradients = outputs
    kept = empty_pair(*one[:2], keeps)
    forward, backward = bind_forward(library, one, y, kept), bind_backward(library, one, kept, gradients)

    def call():
        forward()
        backward()

    call.keep = (forward, backward)
    return call


def our_step(library, one, keeps):
    """As a layer of PyTorch's makes it: each tensor is allocated where it is first written, scratch memory for its call."""
    y, kept = torch.empty_like(one[0]), empty_pair(*one[:2], keeps)
    bind_forward(library, one, y, kept)()
    gradients = [torch.empty_like(t) for t in one[:4]]
    bind_backward(library, one, kept, gradients)()
    return y, gradients


def peak_of(step_once):
    """The memory that a step takes beside what is there before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step_once()
    torch.cuda.synchronize()
    return {"peak_mib": round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)}


def errors_of(gate, one, results):
    """The relative L2 error against fp64 of the worst of y and the gradients."""
    *inputs, grad_y = (t.double() for t in one)
    inputs = [t.requires_grad_() for t in inputs]
    y = bench.eager_of(gate)(*inputs)
    exact = (y.detach(), *torch.autograd.grad(y, inputs, grad_y))

    def worst(result):
        if len(result) < len(exact):  # gate and up in one
            first, grad_x, gate_up, grad_down = result
            result = (first, grad_x, *gate_up.chunk(2), grad_down)
        return max(map(bench.relative_error, result, exact))

    return {name: worst(result) for name, result in results.items()}


def require_right(errors, what):
    if not all(errors[name] <= BOUND for name in OURS):  # false for NaN too
        raise RuntimeError(f"{what}: relative L2 errors {errors}, expected at most {BOUND}")


def compare(gate, library, rivals, m, d, h, rounds, regime):
    count = min(8, 1 + bench.ROTATED_BYTES // (2 * (6 * d * h + m * (4 * d + 2 * h))))
    sets = [(*bench.inputs_of(m, d, h), bench.normal(m, d, 1)) for _ in range(count)]
    def poisoned(*shape):
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")

    facts = {f"{name}_{fact}": value for name in OURS
             for fact, value in peak_of(lambda: our_step(library, sets[0], name == "kiln")).items()}
    ours = {}
    for name in OURS:  # up's gradient follows gate's, as the concatenated weights' do
        ours[name] = [(poisoned(m, d), poisoned(m, d), *poisoned(2 * h, d).chunk(2), poisoned(d, h)) for _ in sets]
    graphs = {name: bench.graph_of([bind_ours(library, one, out, keeps=name == "kiln")
                                    for one, out in zip(sets, outputs)]) for name, outputs in ours.items()}
    rival_graphs, results, notes = bench.bind_rivals(rivals, sets, facts_of=peak_of)
    graphs |= rival_graphs
    for name in ours:
        graphs[name].replay()
    errors = errors_of(gate, sets[0], results | {name: outputs[0] for name, outputs in ours.items()})
    bench.drop_wrong(errors, graphs, notes)
    require_right(errors, f"{m}, {d}, {h}")
    figures = bench.round_robin(graphs, rounds, regime)
    result = {"m": m, "d": d, "h": h, "sets": count} | facts | notes | bench.summary(figures, errors)
    result["kiln_tflops"] = round(18e-6 * m * d * h / result["kiln_us"], 1)  # of nine products, as the others count
    memory = ", ".join(f"{name} {result[f'{name}_peak_mib']:.0f}" for name in graphs)
    print(f"{m}, {d}, {h}: {result['kiln_tflops']:.0f} TFLOP/s; MiB {memory}; " + bench.line_of(result, graphs), flush=True)
    return result


def main():
    def options(parser):
        bench.add_shapes(parser)
        parser.add_argument("--regime", choices=bench.REGIMES, default="sustained")

    arguments, library, result = bench.begin(__doc__.splitlines()[0], "training", options, RIVALS)
    torch.set_grad_enabled(True)
    rivals, regime = bench.chosen_rivals(arguments, RIVALS), bench.REGIMES[arguments.regime]
    result["regime"] = bench.regime_line(arguments.regime, regime, f"{arguments.rounds} rounds")
    gate = gates.gate_of(arguments.package)
    for shape in arguments.shape or SHAPES:
        result["shapes"].append(compare(gate, library, rivals, *shape, arguments.rounds, regime))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
