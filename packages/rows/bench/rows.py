#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times packages that work on rows beside PyTorch's operators, eager and compiled, and a bare copy.

    rows.py --out FOLDER --commit COMMIT [PACKAGE…]     FOLDER gets PACKAGE.json, which goes into its bench/results/

Forward, and backward of what forward kept, each by PyTorch's autograd in a CUDA graph, so that no time is the host's.
Contenders take turns, several rounds; a time is the median over the rounds of a batch of replays between two events.
`gbps` is what the op must read and write at least, by time. Wants KILN_LIBRARY and KILN_REGISTRY, and a GPU.
"""
import argparse
import datetime
import json
import pathlib
import statistics

import torch
import torch._functorch.config

import kiln.torch

torch._functorch.config.donated_buffer = False  # a graph's backward is replayed
DTYPE = torch.bfloat16
ROUNDS, BATCH_US = 7, 10000


def normal(*shape, **options):
    return torch.randn(*shape, device="cuda", dtype=DTYPE, **options)


def norm(name):
    def case(rows, width):
        layer, x = getattr(kiln.torch, name)(width, device="cuda", dtype=DTYPE), normal(rows, width, requires_grad=True)
        size = 2 * rows * width
        return layer, layer.reference, (x,), [x, *layer.parameters()], 2 * size, 3 * size

    return case


def rotary_embedding(tokens, heads):
    rope = kiln.torch.RotaryEmbedding(128, positions=tokens, device="cuda")
    x, positions = normal(tokens, heads, 128, requires_grad=True), torch.arange(tokens, device="cuda")
    size = 2 * tokens * heads * 128
    return rope, rope.reference, (x, positions), [x], 2 * size, 2 * size


def cross_entropy(rows, classes):
    loss, logits = kiln.torch.CrossEntropy(), normal(rows, classes, requires_grad=True)
    targets, size = torch.randint(0, classes, (rows,), device="cuda"), 2 * rows * classes

    def eager(logits, targets):
        return torch.nn.functional.cross_entropy(logits.float(), targets)

    return loss, eager, (logits, targets), [logits], size, 2 * size


NORMS = ((8192, 768), (8192, 4096), (8192, 8192), (16, 4096))
CASES = {
    "layer-norm": (norm("LayerNorm"), NORMS),
    "rms-norm": (norm("RmsNorm"), NORMS),
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


def calls_of(contender, inputs, leaves):
    """Forward and backward, as replays."""
    def forward():
        with torch.no_grad():
            contender(*inputs)

    y = contender(*inputs)
    grad = torch.ones_like(y)
    return {"forward": graph_of(forward),
            "backward": graph_of(lambda: torch.autograd.grad(y, leaves, grad, retain_graph=True))}


def measure(case, shape):
    function, eager, inputs, leaves, forward_bytes, backward_bytes = case(*shape)
    contenders, times = {"kiln": function, "eager": eager, "compiled": torch.compile(eager)}, {}
    calls = {name: calls_of(contender, inputs, leaves) for name, contender in contenders.items()}
    for _ in range(ROUNDS):
        for name, each in calls.items():
            for what, call in each.items():
                times.setdefault((what, name), []).append(microseconds(call))
    other, source = torch.empty_like(inputs[0]), inputs[0].detach()
    copy = statistics.median(microseconds(lambda: other.copy_(source)) for _ in range(ROUNDS))
    least = {"forward": forward_bytes, "backward": backward_bytes}
    result = {"shape": list(shape), "copy_gbps": round(2 * inputs[0].nbytes / copy / 1e3)}
    for (what, name), values in times.items():
        median = statistics.median(values[1:])
        result[f"{name}_{what}_us"] = round(median, 1)
        result[f"{name}_{what}_gbps"] = round(least[what] / median / 1e3)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("packages", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    for package in arguments.packages:
        case, shapes = CASES[package]
        result = {"schema": "rows.bench/1", "package": package, "gpu": torch.cuda.get_device_name(),
                  "variant": kiln.get_kernel(package, 1, device="cuda").variant, "dtype": str(DTYPE)[6:],
                  "torch": torch.__version__, "date": datetime.date.today().isoformat(), "commit": arguments.commit,
                  "results": []}
        for shape in shapes:
            with torch.cuda.stream(torch.cuda.Stream()):
                result["results"].append(measure(case, shape))
            print(package, result["results"][-1], flush=True)
            (arguments.out / f"{package}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
