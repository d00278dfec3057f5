#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times swiglu-moe beside PyTorch's grouped products, on one GPU.

    bench/experts.py --out bench/results/<gpu>.json --commit <commit>

grouped_mm: the slots sorted, torch._grouped_mm, silu and a product, torch._grouped_mm, the sums; as transformers has
it. loop: a product for each expert that was chosen, which no CUDA graph can hold: timed with its host. copy: of as many bytes
as the chosen experts' weights have, half read and half written. Four routers' choices take turns. How:
packages/rows/bench/timing.py.
"""
import pathlib
import sys

import torch

import kiln

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing
from timing import DEVICE, normal

ROUTERS = 4
MODELS = {"Qwen3-30B-A3B": (2048, 768, 128, 8), "Mixtral-8x7B": (4096, 14336, 8, 2), "OLMoE-7B": (2048, 1024, 64, 8),
          "DeepSeek-V3": (7168, 2048, 256, 8)}
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
LOOPS = 512  # tokens up to which the loop is timed, and errors are told


def router(tokens, experts, top):
    weights, chosen = torch.randn(tokens, experts, device=DEVICE).softmax(-1).topk(top)
    return chosen.int(), weights / weights.sum(-1, keepdim=True)


def by_groups(x, chosen, weights, gate_up, down):
    flat = chosen.reshape(-1)
    order = flat.argsort(stable=True)
    counts = torch.zeros(len(gate_up), dtype=torch.int32, device=DEVICE)
    offsets = counts.scatter_add_(0, flat.long(), torch.ones_like(flat)).cumsum(0, dtype=torch.int32)
    gate, up = torch._grouped_mm(x[order // chosen.shape[1]], gate_up.transpose(1, 2), offs=offsets).chunk(2, -1)
    parts = torch._grouped_mm(torch.nn.functional.silu(gate) * up, down.transpose(1, 2), offs=offsets)
    parts = parts * weights.reshape(-1)[order, None].to(parts.dtype)
    return torch.empty_like(parts).index_copy_(0, order, parts).view(len(x), -1, x.shape[1]).sum(1)


def by_loop(x, chosen, weights, gate_up, down):
    y = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
    for expert in chosen.unique().tolist():
        token, choice = torch.where(chosen == expert)
        gate, up = torch.nn.functional.linear(x[token], gate_up[expert].to(x.dtype)).chunk(2, -1)
        part = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down[expert].to(x.dtype))
        y.index_add_(0, token, part.to(y.dtype) * weights[token, choice, None].to(y.dtype))
    return y.to(x.dtype)


def float8_weights(*shape):
    count, rows, columns = shape
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    codes = torch.where((codes & 127) == 127, 0, codes).view(torch.float8_e4m3fn)
    scales = torch.full((count, -(-rows // 128), -(-columns // 128)), columns ** -0.5 / 64, device=DEVICE)
    return codes, scales


def in_turn(calls):
    """One contender, of as many calls as there are routers."""
    def run():
        for call in calls:
            result = call()
        return result
    return run


def measure(kernel, model, tokens, float8):
    width, hidden, experts, top = MODELS[model]
    x = normal(tokens, width)
    routers = [router(tokens, experts, top) for _ in range(ROUTERS)]
    y = torch.empty_like(x)
    if float8:
        gate_up, gate_up_scales = float8_weights(experts, 2 * hidden, width)
        down, down_scales = float8_weights(experts, width, hidden)
        ours = [lambda c=c, w=w: kernel.forward_float8(x, c, w, gate_up, gate_up_scales, down, down_scales, y=y)
                for c, w in routers]
        contenders = {"kiln": in_turn(ours)}
        exact = None
    else:
        gate_up, down = normal(experts, 2 * hidden, width), normal(experts, width, hidden)
        gate_up *= width ** -0.5
        down *= hidden ** -0.5
        ours = [lambda c=c, w=w: kernel.forward(x, c, w, gate_up, down, y=y) for c, w in routers]
        groups = [lambda c=c, w=w: by_groups(x, c, w, gate_up, down) for c, w in routers]
        contenders = {"kiln": in_turn(ours), "grouped_mm": in_turn(groups)}
        exact = by_loop(x.double(), *routers[-1], gate_up, down) if tokens <= LOOPS else None
    used = sum(len(chosen.unique()) for chosen, _ in routers) / ROUTERS
    contenders["copy"] = in_turn([timing.copy_of(int(used * 3 * width * hidden * gate_up.element_size()))] * ROUTERS)
    errors = {} if exact is None else {"errors": timing.errors_of({name: call for name, call in contenders.items()
                                                                   if name != "copy"}, (exact,))}
    facts = timing.measure(contenders, parts=ROUTERS)
    if not float8 and tokens <= LOOPS:
        loop = in_turn([lambda c=c, w=w: by_loop(x, c, w, gate_up, down) for c, w in routers])
        facts["us"]["loop"] = timing.times_of({"loop": loop}, ROUTERS)["loop"]
    return {**facts, **errors}


def main():
    arguments = timing.arguments_of(__doc__, lambda parser: parser.add_argument("--models", default=",".join(MODELS)))
    results = timing.Results("swiglu-moe", arguments)
    kernel = kiln.get_kernel("swiglu-moe", 1, device=DEVICE)
    for model in arguments.models.split(","):
        for float8 in (False, True):
            for tokens in TOKENS:
                with timing.own_stream():
                    results.add(f"{model}{', FP8' if float8 else ''}, {tokens} token{'s' * (tokens > 1)}",
                                **measure(kernel, model, tokens, float8))
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
