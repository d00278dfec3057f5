#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times packages that work on rows beside PyTorch's operators, eager and compiled, and a bare copy.

    rows.py --out FOLDER --commit COMMIT [PACKAGE…]     FOLDER gets PACKAGE.json, which goes into its bench/results/

Forward, backward of what forward kept, and both as one step, each by PyTorch's autograd in a CUDA graph, so that no time
is the host's. Contenders take turns, several rounds; a time is the median over the rounds of a batch of replays between
two events. `gbps` is what the op must read and write at least, by time. Liger takes part where liger_kernel can be
imported: its cross-entropy computes the gradient in forward, over the logits, so that only its step is timed, and without
a graph; its rotation is of 3/4 of the heads as queries and the others as keys, in place. Wants KILN_LIBRARY and KILN_REGISTRY, and a GPU.
"""
import argparse
import datetime
import importlib
import json
import pathlib
import statistics
import subprocess

import torch
import torch._functorch.config

import kiln.torch

torch._functorch.config.donated_buffer = False  # a graph's backward is replayed
DTYPE = torch.bfloat16
ROUNDS, BATCH_US = 7, 10000


def normal(*shape, **options):
    return torch.randn(*shape, device="cuda", dtype=DTYPE, **options)


def liger(module, name):
    """A function of Liger's with gradients; None where there is no Liger."""
    try:
        return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply
    except ImportError:
        return None


def norm(name, module, function):
    def case(rows, width):
        layer, x = getattr(kiln.torch, name)(width, device="cuda", dtype=DTYPE), normal(rows, width, requires_grad=True)
        size, theirs = 2 * rows * width, liger(module, function)
        eps = layer.attributes["eps"]
        tail = (layer.bias, eps) if name == "LayerNorm" else (eps, 0.0, "llama", False)
        contenders = {"kiln": layer, "eager": layer.reference, "compiled": torch.compile(layer.reference),
                      "liger": theirs and (lambda x: theirs(x, layer.weight, *tail))}
        return contenders, (x,), [x, *layer.parameters()], 2 * size, 3 * size

    return case


def rotary_embedding(tokens, heads):
    rope = kiln.torch.RotaryEmbedding(128, positions=tokens, device="cuda")
    x, positions = normal(tokens, heads, 128, requires_grad=True), torch.arange(tokens, device="cuda")
    size, theirs = 2 * tokens * heads * 128, liger("rope", "LigerRopeFunction")
    contenders = {"kiln": rope, "eager": rope.reference, "compiled": torch.compile(rope.reference)}
    q, k = (normal(1, tokens, count, 128, requires_grad=True) for count in (heads * 3 // 4, heads // 4))
    cos, sin = (torch.cat((t, t), -1)[None].to(DTYPE) for t in (rope.cos, rope.sin))
    contenders["liger"] = theirs and (lambda *_: theirs(q.transpose(1, 2), k.transpose(1, 2), cos, sin))
    return contenders, (x, positions), {"liger": [q, k], "": [x]}, 2 * size, 2 * size


def cross_entropy(rows, classes):
    loss, logits = kiln.torch.CrossEntropy(), normal(rows, classes, requires_grad=True)
    targets, size = torch.randint(0, classes, (rows,), device="cuda"), 2 * rows * classes
    theirs, own = liger("cross_entropy", "LigerCrossEntropyFunction"), normal(rows, classes, requires_grad=True)

    def eager(logits, targets):
        return torch.nn.functional.cross_entropy(logits.float(), targets)

    contenders = {"kiln": loss, "kiln_in_place": kiln.torch.CrossEntropy(in_place=True), "eager": eager,
                  "compiled": torch.compile(eager),
                  "liger": theirs and (lambda *_: theirs(own, targets, None, -100, 0.0, 0.0, "mean")[0])}
    return contenders, (logits, targets), [logits], size, 2 * size


NORMS = ((8192, 768), (8192, 4096), (8192, 8192), (16, 4096))
CASES = {
    "layer-norm": (norm("LayerNorm", "layer_norm", "LigerLayerNormFunction"), NORMS),
    "rms-norm": (norm("RmsNorm", "rms_norm", "LigerRMSNormFunction"), NORMS),
    "rotary-embedding": (rotary_embedding, ((8192, 32), (16, 32))),
    "cross-entropy": (cross_entropy, ((4096, 128256), (8192, 32000))),
}


def graph_of(call):
    """Its replay. A gradient is computed on the stream of what it is of: all is on one that is captured."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call()

    def replay():
        graph.replay()

    replay.reads = call  # whose tensors live as long
    return replay


def microseconds(call):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def batch(count):
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / count

    return batch(max(1, min(200, int(BATCH_US / batch(3)))))


def calls_of(name, contender, inputs, leaves):
    """Forward, backward and both, as replays."""
    leaves = leaves.get(name, leaves[""]) if isinstance(leaves, dict) else leaves
    in_place = name == "kiln_in_place"  # whose second backward PyTorch refuses

    def outputs():
        y = contender(*inputs)
        return y if isinstance(y, tuple) else (y,)

    def forward():
        with torch.no_grad():
            outputs()

    y = outputs()
    grads = [torch.ones_like(each) for each in y]
    if name == "liger" and y[0].dim() == 0:
        return {"step": outputs}  # it asks the GPU for a number, which no graph can hold
    calls = {"step": graph_of(lambda: torch.autograd.grad(outputs(), leaves, grads))}
    if not in_place:
        calls["forward"] = graph_of(forward)
        calls["backward"] = graph_of(lambda: torch.autograd.grad(y, leaves, grads, retain_graph=True))
    return calls


def measure(case, shape):
    contenders, inputs, leaves, forward_bytes, backward_bytes = case(*shape)
    calls, times, result = {}, {}, {"shape": list(shape)}
    for name, contender in contenders.items():
        if contender is None:
            continue
        try:
            calls[name] = calls_of(name, contender, inputs, leaves)
        except Exception as error:  # pylint: disable=broad-exception-caught  # a rival may fail in any way
            if name.startswith("kiln"):
                raise
            result[f"{name}_failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    for _ in range(ROUNDS):
        for name, each in calls.items():
            for what, call in each.items():
                times.setdefault((what, name), []).append(microseconds(call))
    other, source = torch.empty_like(inputs[0]), inputs[0].detach()
    copy = statistics.median(microseconds(lambda: other.copy_(source)) for _ in range(ROUNDS))
    least = {"forward": forward_bytes, "backward": backward_bytes, "step": forward_bytes + backward_bytes}
    result["copy_gbps"] = round(2 * inputs[0].nbytes / copy / 1e3)
    for (what, name), values in sorted(times.items()):
        median = statistics.median(values[1:])
        result[f"{name}_{what}_us"] = round(median, 1)
        result[f"{name}_{what}_gbps"] = round(least[what] / median / 1e3)
    return result


def driver_version():
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("packages", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    for package in arguments.packages:
        case, shapes = CASES[package]
        result = {"schema": "rows.bench/1", "package": package, "gpu": torch.cuda.get_device_name(),
                  "driver": driver_version(), "variant": kiln.get_kernel(package, 1, device="cuda").variant, "dtype": str(DTYPE)[6:],
                  "torch": torch.__version__, "date": datetime.date.today().isoformat(), "commit": arguments.commit,
                  "results": []}
        for shape in shapes:
            with torch.cuda.stream(torch.cuda.Stream()):
                result["results"].append(measure(case, shape))
            print(package, result["results"][-1], flush=True)
            (arguments.out / f"{package}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
