#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times attention's prefill, training step and decode beside PyTorch's own, on one device.

    bench/attention.py --out bench/results/<gpu>.json --commit <commit>

Prefill: Kiln on rows that are views of one projection; scaled_dot_product_attention by FlashAttention alone, whose
heads come before tokens, and by cuDNN where PyTorch has it. Decode: Kiln on pages of 16 rows; scaled_dot_product_attention
on keys that lie together, which it could not read from pages, and an eager gather of the pages before it. FlashInfer, where
it can be imported, on the rows and pages that Kiln reads: prefill by FlashAttention 3's and 2's kernels, decode by tensor
cores and without; its plan is made before. A training step is timed with what the host does for it; FlashInfer has none on
Hopper. How: packages/rows/bench/timing.py.
"""
import functools
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kiln.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing
from timing import DEVICE

DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
HEADS = {64: (32, 8), 128: (32, 8), 256: (16, 4)}  # of q, and of k and v, by D
PAGE = 16
WORKSPACE = 256 << 20  # of FlashInfer, whose examples take half


def by_backend(backend, *tensors, **options):
    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*tensors, enable_gqa=True, **options)

    return call


def by_flashinfer(kinds, wrapper, plan, options, tensors):
    """Contenders by name, of one wrapper made in several ways; each is planned at its first call, outside of a graph."""
    flashinfer = timing.imported("flashinfer") if DEVICE == "cuda" else None

    def contender(how):
        @functools.cache
        def run():
            workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=DEVICE)
            found = getattr(flashinfer, wrapper)(workspace, "NHD", **how)
            found.plan(*plan, q_data_type=DTYPE, kv_data_type=DTYPE, **options)
            return found.run

        return lambda: run()(*tensors)

    return {f"flashinfer_{name}": contender(how) for name, how in kinds.items()} if flashinfer else {}


def measure_prefill(sequences, tokens, causal, d):
    attention = kiln.torch.Attention(causal=causal)
    heads, kv_heads = HEADS[d]
    fused = torch.randn(sequences, tokens, heads + 2 * kv_heads, d, device=DEVICE, dtype=DTYPE)
    q, k, v = fused.split([heads, kv_heads, kv_heads], 2)
    flash = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    starts = torch.arange(sequences + 1, dtype=torch.int32, device=DEVICE) * tokens
    rows = [t.flatten(0, 1) for t in (q, k, v)]
    contenders = {"kiln": lambda: attention(*rows, starts, starts)}
    theirs = by_flashinfer({"fa3": {"backend": "fa3"}, "fa2": {"backend": "fa2"}}, "BatchPrefillWithRaggedKVCacheWrapper",
                           (starts, starts, heads, kv_heads, d), {"causal": causal}, rows)
    if DEVICE == "cuda":
        contenders["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, *flash, is_causal=causal)
        contenders["cudnn"] = by_backend(SDPBackend.CUDNN_ATTENTION, *flash, is_causal=causal)
    else:
        contenders["sdpa"] = lambda: F.scaled_dot_product_attention(*flash, is_causal=causal, enable_gqa=True)
    contenders |= theirs
    few = min(tokens, 64)  # the last rows of the last sequence, in double precision
    with torch.no_grad():
        with kiln.torch.disabled():
            exact = attention(q[-1, -few:].double(), k[-1].double(), v[-1].double())
        ours = {"kiln": contenders["kiln"], **theirs}
        errors = timing.errors_of({name: lambda call=call: call()[-few:] for name, call in ours.items()}, (exact,))
        name = f"prefill {sequences} x {tokens}, D {d}, {'causal' if causal else 'not causal'}"
        return name, {**timing.measure(contenders), "errors": errors}


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
    name = f"forward and backward {sequences} x {tokens}, D {d}, causal"
    return name, timing.measure(contenders, lambda call: call)


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
    firsts = torch.arange(sequences + 1, dtype=torch.int32) * pages_each
    theirs = by_flashinfer({"tensor_cores": {"use_tensor_cores": True, "backend": "fa2"}, "cuda_cores": {"backend": "fa2"}},
                           "BatchDecodeWithPagedKVCacheWrapper",
                           (firsts, table.flatten(), torch.full_like(firsts[1:], PAGE), heads, kv_heads, d, PAGE), {},
                           (q, tuple(pages)))
    if DEVICE == "cuda":
        contenders["flash"] = by_backend(SDPBackend.FLASH_ATTENTION, one, k, v)
        contenders["cudnn"] = by_backend(SDPBackend.CUDNN_ATTENTION, one, k, v)
    contenders |= theirs
    contenders["sdpa_of_pages"] = lambda: F.scaled_dot_product_attention(one, *gathered(), enable_gqa=True)
    with torch.no_grad():
        with kiln.torch.disabled():
            exact = attention(one[-1].transpose(0, 1).double(), k[-1].transpose(0, 1).double(),
                              v[-1].transpose(0, 1).double())
        ours = {"kiln": contenders["kiln"], **theirs}
        errors = timing.errors_of({name: lambda call=call: call()[-1:] for name, call in ours.items()}, (exact,))
        return f"decode {sequences} x {keys} keys, D {d}", {**timing.measure(contenders), "errors": errors}


def main():
    arguments = timing.arguments_of(__doc__)
    prefills = [(*shape, causal, 128) for shape in ((1, 512), (1, 4096), (4, 1024), (8, 2048)) for causal in (True, False)]
    prefills += [(1, 4096, causal, d) for d in (64, 256) for causal in (True, False)]
    trainings = [(1, 4096, 128), (8, 2048, 128), (1, 4096, 64), (1, 4096, 256)]
    decodes = [(sequences, keys, 128) for sequences in (1, 8, 64) for keys in (1024, 8192, 32768)]
    decodes += [(8, 8192, 64), (8, 8192, 256)]
    if DEVICE == "cpu":
        prefills, trainings, decodes = [(1, 512, True, 128)], [(1, 512, 128)], [(1, 1024, 128), (4, 1024, 128)]
    results = timing.Results("attention", arguments, str(DTYPE)[6:])
    calls = [(measure_prefill, prefills), (measure_training, trainings), (measure_decode, decodes)]
    for measure, shapes in calls:
        for shape in shapes:
            with timing.own_stream():
                case, facts = measure(*shape)
            results.add(case, **facts)


if __name__ == "__main__":
    main()
