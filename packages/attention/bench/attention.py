#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention's prefill, training step and decode beside PyTorch's own, on one device.

    bench/attention.py --out bench/results/<gpu>.json --commit <commit> [--light]

Prefill: Kiln on rows that are views of one projection; scaled_dot_product_attention by FlashAttention alone, whose
heads come before tokens, and by cuDNN where PyTorch has it; eager matrix products. Decode: Kiln on pages of 16 rows;
scaled_dot_product_attention on keys that lie together, which it could not read from pages, and an eager gather of the
pages before it. Each contender in turn, several rounds; a time is the median of the rounds' fastest batches. Wants
KILN_LIBRARY and KILN_REGISTRY; device "cuda" where PyTorch has one, else "cpu".
"""
import argparse
import datetime
import json
import math
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kiln.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HEADS = {64: (32, 8), 128: (32, 8), 256: (16, 4)}  # of q, and of k and v, by D
PAGE = 16
ROUNDS = 7


def microseconds(call, batch):
    if DEVICE == "cpu":
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        return 1e6 * (time.perf_counter() - begin) / batch
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(batch):
        call()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end) / batch


def in_graph(call):
    """The call, replayed: what a GPU does, without what the host does for it."""
    if DEVICE == "cpu":
        return call
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def times(contenders, prepare=in_graph):
    """Name -> median in microseconds of each that runs here."""
    calls, found, once = {}, {}, {}
    for name, call in contenders.items():
        try:
            calls[name] = prepare(call)
            once[name] = microseconds(calls[name], 1)
            found[name] = []
        except RuntimeError as error:
            print(f"  {name}: {str(error).splitlines()[0]}", flush=True)
            calls.pop(name, None)
    for _ in range(ROUNDS):
        for name, call in calls.items():
            batch = max(1, min(50, int(20_000 / max(once[name], 1)))) if DEVICE == "cuda" else 1
            found[name].append(microseconds(call, batch))
    return {f"{name}_us": round(statistics.median(values), 2) for name, values in found.items()}


def by_backend(backend, *tensors, **options):
    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*tensors, enable_gqa=True, **options)

    return call


def relative_error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def measure_prefill(sequences, tokens, causal, d):
    attention = kiln.torch.Attention(causal=causal)
    heads, kv_heads = HEADS[d]
    fused = torch.randn(sequences, tokens, heads + 2 * kv_heads, d, device=DEVICE, dtype=DTYPE)
    q, k, v = fused.split([heads, kv_heads, kv_heads], 2)
    flash = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=DEVICE) * tokens
    rows = [t.flatten(0, 1) for t in (q, k, v)]
    contenders = {"kiln": lambda: attention(*rows, starts, starts)}
    if DEVICE == "cuda":
        contenders["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, *flash, is_causal=causal)
        contenders["cudnn"] = by_backend(SDPBackend.CUDNN_ATTENTION, *flash, is_causal=causal)
    else:
        contenders["sdpa"] = lambda: F.scaled_dot_product_attention(*flash, is_causal=causal, enable_gqa=True)
    with torch.no_grad():
        result = times(contenders)
        few = min(tokens, 64)  # the last rows of the last sequence, in double precision
        with kiln.torch.disabled():
            exact = attention(q[-1, -few:].double(), k[-1].double(), v[-1].double())
        result["error"] = relative_error(attention(*rows, starts, starts)[-few:], exact)
    products = 4 * sequences * tokens * tokens * heads * d * (0.5 if causal else 1)
    result["kiln_tflops"] = round(products / result["kiln_us"] / 1e6, 1)
    return {"op": "prefill", "d": d, "sequences": sequences, "tokens": tokens, "causal": causal, **result}


def measure_training(sequences, tokens, d):
    """Forward and backward, causal, with what the host does for them."""
    attention = kiln.torch.Attention(causal=True)
    heads, kv_heads = HEADS[d]
    inputs = [torch.randn(sequences, tokens, count, d, device=DEVICE, dtype=DTYPE, requires_grad=True)
              for count in (heads, kv_heads, kv_heads)]
    turned = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in inputs]
    grad = torch.randn_like(inputs[0])
    of_turned = grad.transpose(1, 2).contiguous()
    contenders = {"kiln": lambda: torch.autograd.grad(attention(*inputs), inputs, grad)}
    rivals = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION} if DEVICE == "cuda" else {}
    for name, backend in rivals.items():
        call = by_backend(backend, *turned, is_causal=True)
        contenders[name] = lambda call=call: torch.autograd.grad(call(), turned, of_turned)
    result = times(contenders, lambda call: call)
    return {"op": "training", "d": d, "sequences": sequences, "tokens": tokens, "causal": True, **result}


def measure_decode(sequences, keys, d):
    attention = kiln.torch.Attention(causal=True)
    heads, kv_heads = HEADS[d]
    pages_each = keys // PAGE
    pages = [torch.randn(sequences * pages_each, PAGE, kv_heads, d, device=DEVICE, dtype=DTYPE) for _ in range(2)]
    table = torch.randperm(sequences * pages_each, device=DEVICE).reshape(sequences, pages_each).int()
    lengths = torch.full((sequences,), keys, dtype=torch.int32, device=DEVICE)
    q = torch.randn(sequences, heads, d, device=DEVICE, dtype=DTYPE)

    def gathered():
        return [p[table.long().flatten()].reshape(sequences, keys, kv_heads, d).transpose(1, 2) for p in pages]

    k, v = (t.contiguous() for t in gathered())
    one = q[:, :, None]
    contenders = {"kiln": lambda: attention.decode(q, *pages, table, lengths)}
    if DEVICE == "cuda":
        contenders["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, one, k, v)
        contenders["cudnn"] = by_backend(SDPBackend.CUDNN_ATTENTION, one, k, v)
    contenders["sdpa_of_pages"] = lambda: F.scaled_dot_product_attention(one, *gathered(), enable_gqa=True)
    with torch.no_grad():
        result = times(contenders)
        with kiln.torch.disabled():
            exact = attention(one[-1].transpose(0, 1).double(), k[-1].transpose(0, 1).double(),
                              v[-1].transpose(0, 1).double())
        result["error"] = relative_error(attention.decode(q, *pages, table, lengths)[-1:], exact)
    read = 2 * sequences * keys * kv_heads * d * q.element_size()
    result["kiln_gb_per_s"] = round(read / result["kiln_us"] / 1e3)
    return {"op": "decode", "d": d, "sequences": sequences, "keys": keys, **result}


def driver_version():
    if DEVICE == "cpu":
        return None
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--light", action="store_true", help="few and small shapes")
    arguments = parser.parse_args()
    prefills = [(*shape, causal, 128) for shape in ((1, 512), (1, 4096), (4, 1024), (8, 2048)) for causal in (True, False)]
    prefills += [(1, 4096, causal, d) for d in (64, 256) for causal in (True, False)]
    trainings = [(1, 4096, 128), (8, 2048, 128), (1, 4096, 64), (1, 4096, 256)]
    decodes = [(sequences, keys, 128) for sequences in (1, 8, 64) for keys in (1024, 8192, 32768)]
    decodes += [(8, 8192, 64), (8, 8192, 256)]
    if arguments.light:
        prefills, trainings, decodes = [(1, 512, True, 128)], [(1, 512, 128)], [(1, 1024, 128), (4, 1024, 128)]
    kernel = kiln.get_kernel("attention", 1, device=DEVICE)
    shapes = []
    calls = [(measure_prefill, prefills), (measure_training, trainings), (measure_decode, decodes)]
    for call in (lambda m=measure, s=shape: m(*s) for measure, chosen in calls for shape in chosen):
        shapes.append(call())
        print(json.dumps(shapes[-1]), flush=True)
    result = {"schema": "attention.bench/1", "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None,
              "driver": driver_version(),
              "device": DEVICE, "variant": kernel.variant, "dtype": str(DTYPE)[6:], "heads": HEADS,
              "page_rows": PAGE, "torch": torch.__version__,
              "date": datetime.date.today().isoformat(), "commit": arguments.commit, "shapes": shapes}
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    rivals = [key for key in ("flash_us", "cudnn_us", "sdpa_us", "sdpa_of_pages_us") if any(key in s for s in shapes)]
    print(f"{'':32}{'kiln us':>10}" + "".join(f"{key[:-3]:>16}" for key in rivals))
    for shape in shapes:
        words = f"{shape['op']} D {shape['d']} {shape['sequences']} x {shape.get('tokens', shape.get('keys'))}"
        words += {True: " causal", False: " whole", None: ""}[shape.get("causal")]
        ratios = [f"{shape[key] / shape['kiln_us']:>15.2f}x" if key in shape else f"{'-':>16}" for key in rivals]
        print(f"{words:32}{shape['kiln_us']:>10.1f}" + "".join(ratios))
    worst = max((s["error"] for s in shapes if "error" in s), default=math.nan)
    print(f"largest error against double precision: {worst:.1e}")


if __name__ == "__main__":
    main()
