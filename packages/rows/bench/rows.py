#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a package that works on rows beside PyTorch's operators, eager and compiled, Liger, FlashInfer and a bare copy.

    rows.py PACKAGE --out PACKAGE/bench/results/<gpu>.json --commit COMMIT

Forward, backward of what forward kept, and both as one step, each by PyTorch's autograd in a CUDA graph (timing.py). Liger
takes part where liger_kernel can be imported: its cross-entropy computes the gradient in forward, over the logits, so that
only its step is timed, and without a graph; its rotation is of 3/4 of the heads as queries and the others as keys, in place.
FlashInfer's forward takes part where flashinfer can be imported; on Hopper it has no backward, and it has no cross-entropy.
Its layer norm takes weight and bias in float32; its rotation turns views of the same rows, 3/4 of the heads as queries. Of
its two kinds of norms FLASHINFER_USE_CUDA_NORM=1 takes the one without CuTe's compiler.
"""
import copy

import timing
import torch
import torch._functorch.config
from timing import DEVICE, normal

import kiln.torch

torch._functorch.config.donated_buffer = False  # a graph's backward is replayed


def liger(module, name):
    """A function of Liger's with gradients; None where there is no Liger."""
    found = timing.imported(f"liger_kernel.ops.{module}")
    return found and getattr(found, name).apply


def flashinfer(module, name):
    """A function of FlashInfer's on what needs no gradients; None where there is no FlashInfer."""
    found = timing.imported(f"flashinfer.{module}")
    return found and getattr(found, name)


def compiled(function):
    return torch.compile(function, dynamic=False) if DEVICE == "cuda" else None


def norm(name, module, function):
    def case(rows, width):
        layer, x = getattr(kiln.torch, name)(width, device=DEVICE, dtype=torch.bfloat16), normal(rows, width, requires_grad=True)
        size, theirs, infers = 2 * rows * width, liger(module, function), flashinfer("norm", name.lower())
        eps, weights = layer.attributes["eps"], [p.detach() for p in layer.parameters()]
        if name == "LayerNorm":
            tail, weights = (layer.bias, eps), [p.float() for p in weights]
        else:
            tail = (eps, 0.0, "llama", False)
        contenders = {"kiln": layer, "eager": layer.reference, "compiled": compiled(layer.reference),
                      "liger": theirs and (lambda x: theirs(x, layer.weight, *tail)),
                      "flashinfer": infers and (lambda x: infers(x.detach(), *weights, eps))}
        exact = copy.deepcopy(layer).double()
        return contenders, (x,), [x, *layer.parameters()], (2 * size, 3 * size), (exact.reference, list(exact.parameters()))

    return case


def rotary_embedding(tokens, heads):
    rope = kiln.torch.RotaryEmbedding(128, positions=tokens, device=DEVICE)
    x, positions = normal(tokens, heads, 128, requires_grad=True), torch.arange(tokens, device=DEVICE)
    size, theirs = 2 * tokens * heads * 128, liger("rope", "LigerRopeFunction")
    contenders = {"kiln": rope, "eager": rope.reference, "compiled": compiled(rope.reference)}
    q, k = (normal(1, tokens, count, 128, requires_grad=True) for count in (heads * 3 // 4, heads // 4))
    cos, sin = (torch.cat((t, t), -1)[None].to(torch.bfloat16) for t in (rope.cos, rope.sin))
    contenders["liger"] = theirs and (lambda *_: theirs(q.transpose(1, 2), k.transpose(1, 2), cos, sin))
    views, table = x.detach().flatten(1).split([q[0, 0].numel(), k[0, 0].numel()], -1), torch.cat((rope.cos, rope.sin), -1)
    infers = flashinfer("rope", "apply_rope_with_cos_sin_cache")
    contenders["flashinfer"] = infers and (lambda *_: infers(positions, *views, 128, table))
    return contenders, (x, positions), {"liger": [q, k], "": [x]}, (2 * size, 2 * size), (rope.reference, [])


def cross_entropy(rows, classes):
    loss, logits = kiln.torch.CrossEntropy(), normal(rows, classes, requires_grad=True)
    targets, size = torch.randint(0, classes, (rows,), device=DEVICE), 2 * rows * classes
    theirs, own = liger("cross_entropy", "LigerCrossEntropyFunction"), logits.detach().clone().requires_grad_()

    def eager(logits, targets):
        return torch.nn.functional.cross_entropy(logits.float(), targets)

    contenders = {"kiln": loss, "kiln_in_place": kiln.torch.CrossEntropy(in_place=True), "eager": eager,
                  "compiled": compiled(eager),
                  "liger": theirs and (lambda *_: theirs(own, targets, None, -100, 0.0, 0.0, "mean")[0])}
    exact = torch.nn.functional.cross_entropy
    return contenders, (logits, targets), [logits], (size, 2 * size), (exact, [])


NORMS = ((8192, 768), (8192, 4096), (8192, 8192), (16, 4096))
CASES = {
    "layer-norm": (norm("LayerNorm", "layer_norm", "LigerLayerNormFunction"), NORMS),
    "rms-norm": (norm("RmsNorm", "rms_norm", "LigerRMSNormFunction"), NORMS),
    "rotary-embedding": (rotary_embedding, ((8192, 32), (16, 32))),
    "cross-entropy": (cross_entropy, ((4096, 128256), (8192, 32000))),
}


def calls_of(name, contender, inputs, leaves):
    """Forward, backward and both, as what is timed."""
    leaves = leaves.get(name, leaves[""]) if isinstance(leaves, dict) else leaves
    in_place = name == "kiln_in_place"  # whose second backward PyTorch refuses

    def outputs():
        return timing.tensors_of(contender(*inputs))

    def forward():
        with torch.no_grad():
            outputs()

    if name == "flashinfer":
        return {"forward": timing.replay_of(forward)}
    y = outputs()
    grads = [torch.ones_like(each) for each in y]
    if name == "liger" and y[0].dim() == 0:
        return {"step": outputs}  # it asks the GPU for a number, which no graph can hold
    calls = {"step": timing.replay_of(lambda: torch.autograd.grad(outputs(), leaves, grads))}
    if not in_place:
        calls["forward"] = timing.replay_of(forward)
        calls["backward"] = timing.replay_of(lambda: torch.autograd.grad(y, leaves, grads, retain_graph=True))
    return calls


def errors_of(contenders, inputs, leaves, exact):
    """Of outputs and gradients, of a contender that has the same as the exact function."""
    function, parameters = exact
    leaf, *others = inputs
    twin = leaf.detach().double().requires_grad_()

    def all_of(call, inputs, leaves):
        y = timing.tensors_of(call(*inputs))
        torch.manual_seed(1)
        grads = [torch.randn(t.shape, device=DEVICE).bfloat16().to(t.dtype) for t in y]
        return [*(t.detach() for t in y), *torch.autograd.grad(y, leaves, grads)]

    expected = all_of(function, [twin, *others], [twin, *parameters])
    leaves = leaves[""] if isinstance(leaves, dict) else leaves
    alike = {name: call and (lambda call=call: all_of(call, inputs, leaves)) for name, call in contenders.items()
             if name in ("kiln", "eager", "compiled")}
    errors = timing.errors_of(alike, expected)
    if infers := contenders.get("flashinfer"):
        errors |= timing.errors_of({"flashinfer": lambda: torch.cat(timing.tensors_of(infers(*inputs)), -1).reshape(leaf.shape)},
                                   expected[:1])
    return errors


def main():
    arguments = timing.arguments_of(__doc__, lambda parser: parser.add_argument("package", choices=list(CASES)))
    case, shapes = CASES[arguments.package]
    results = timing.Results(arguments.package, arguments)
    for shape in shapes:
        with timing.own_stream():
            contenders, inputs, leaves, least, exact = case(*shape)
            errors = errors_of(contenders, inputs, leaves, exact)
            calls, failed = timing.prepared(
                {name: call and (lambda name=name, call=call: calls_of(name, call, inputs, leaves))
                 for name, call in contenders.items()}, lambda make: make())
            for what, size in zip(("forward", "backward", "step"), (*least, sum(least))):
                those = {name: each[what] for name, each in calls.items() if what in each}
                those["copy"] = timing.replay_of(timing.copy_of(size))
                facts = {"us": timing.times_of(those), "errors": errors, **({"failed": failed} if failed else {})}
                results.add(f"{what} {' x '.join(map(str, shape))}", **facts)


if __name__ == "__main__":
    main()
