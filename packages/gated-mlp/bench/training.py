#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times a training step, forward and backward, against PyTorch and its rivals on one GPU.

    bench/training.py --package geglu-mlp@1 --variant <variant> --rivals compile,concatenated \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so --out bench/results/<gpu>-training.json

A step computes y and the gradients of x, gate, up and down. Every contender keeps the products of gate and up from
the forward; kiln_recompute computes them again instead. Each shape is first compared with fp64: the error is that of the
worst of the five. The contenders are timed as in eager.py, as CUDA graphs, round robin in one process.
"""
import torch
import torch.nn.functional as F

import eager as bench
import gates

SHAPES = [(8192, 768, 3072), (1024, 1024, 4096), (4096, 2304, 9216), (2048, 2048, 8192), (4096, 4096, 14336),
          (8192, 3584, 14336)]
REGIME = bench.REGIMES["sustained"]
OURS = ("kiln", "kiln_recompute")
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


def bind_quack(gate):
    activation = gate.quack

    def bind(x, gate, up, down, grad_y):
        layer = bench.quack_layer(activation, x, gate, up, down)
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
    "autotune": lambda gate: step(compiled(bench.eager_of(gate), "max-autotune-no-cudagraphs"), separate),
    "concatenated": lambda gate: step(compiled(bench.concatenated_of(gate)), together),
    "liger": bind_liger,
    "quack": bind_quack,
}


def bind_ours(library, one, outputs, keeps):
    """Forward, then backward."""
    x, gate, up, down, grad_y = one
    y, *gradients = outputs
    kept = [torch.empty(len(x), len(gate), dtype=x.dtype, device="cuda") for _ in range(2)] if keeps else [None, None]
    forward = (library.bind("training_forward", x, gate, up, down, None, None, None, None, y, *kept) if keeps else
               library.forward(x, gate, up, down, y))
    backward = library.bind("backward", grad_y, x, gate, up, down, None, None, *kept, *gradients, *[None] * 9)

    def call():
        forward()
        backward()

    call.keep = (forward, backward)
    return call


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


def compare(gate, library, rivals, m, d, h, rounds):
    count = min(8, 1 + bench.ROTATED_BYTES // (2 * (6 * d * h + m * (4 * d + 2 * h))))
    sets = [(*bench.inputs_of(m, d, h), bench.normal(m, d, 1)) for _ in range(count)]
    def poisoned(*shape):
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")

    ours = {}
    for name in OURS:  # up's gradient follows gate's, as the concatenated weights' do
        ours[name] = [(poisoned(m, d), poisoned(m, d), *poisoned(2 * h, d).chunk(2), poisoned(d, h)) for _ in sets]
    graphs = {name: bench.graph_of([bind_ours(library, one, out, keeps=name == "kiln")
                                    for one, out in zip(sets, outputs)]) for name, outputs in ours.items()}
    rival_graphs, results, notes = bench.bind_rivals(rivals, sets)
    graphs |= rival_graphs
    for name in ours:
        graphs[name].replay()
    errors = errors_of(gate, sets[0], results | {name: outputs[0] for name, outputs in ours.items()})
    bench.drop_wrong(errors, graphs, notes)
    require_right(errors, f"{m}, {d}, {h}")
    figures = bench.round_robin(graphs, rounds, REGIME)
    result = {"m": m, "d": d, "h": h, "sets": count} | notes | bench.summary(figures, errors)
    result["kiln_tflops"] = round(18e-6 * m * d * h / result["kiln_us"], 1)  # of nine products, as the others count
    print(f"{m}, {d}, {h}: {result['kiln_tflops']:.0f} TFLOP/s; " + bench.line_of(result, graphs), flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "training", bench.add_shapes, RIVALS)
    torch.set_grad_enabled(True)
    rivals = bench.chosen_rivals(arguments, RIVALS)
    result["regime"] = f"graph replays, round robin, sustained: {bench.regime_text(REGIME)}; {arguments.rounds} rounds"
    for shape in arguments.shape or SHAPES:
        result["shapes"].append(compare(gates.gate_of(arguments.package), library, rivals, *shape, arguments.rounds))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
