#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times slices of real models, built by transformers, with and without Kiln.

    models.py --commit COMMIT --out bench/results/<gpu>-models.json [--slices llama-3.2-1b,…] [--modes prefill,…]

A slice is a model of its published widths with two of its layers, or --layers, a small vocabulary and random weights;
kiln.torch.replace() makes the second of two equal ones. Nothing else differs, so a figure holds attention, norms and all
that the host does, too; so `operators` says whether calls take the C++ of libkiln_torch.so or Python. Time is of the wall clock between two
synchronisations. The contenders take turns, for moments, since a host's speed changes within seconds; the median of the
rounds counts, of the times and of without over with in one round. `rounds` has each round's times, `quartiles` those of
the ratios.

  prefill      2,048 tokens, eager                decode                one token, eager
  compiled     the same by torch.compile          decode_compiled       by torch.compile
                                                  decode_graphs         by its mode reduce-overhead
                                                  decode_captured       the eager one, in a CUDA graph by hand
  train        forward and backward of 2,048      train_checkpointed    the same, each layer computed again
               tokens                             train_compiled        by torch.compile
"""
import argparse
import copy
import datetime
import pathlib
import statistics
import time

import torch
import transformers

import eager as bench
import kiln.operators
import kiln.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS, ROUND_S = 2048, 0.06
COMMON = {"vocab_size": 1024, "max_position_embeddings": 4096, "use_cache": False}
SLICES = {
    "llama-3.2-1b": ("LlamaForCausalLM", "LlamaConfig", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "qwen3-8b": ("Qwen3ForCausalLM", "Qwen3Config", {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128}),
    "gemma-2-2b": ("Gemma2ForCausalLM", "Gemma2Config", {
        "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256}),
    "tiny": ("LlamaForCausalLM", "LlamaConfig", {
        "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}),
}


def pair_of(name, layers):
    """The slice as it is, and with Kiln; what replace() swapped."""
    model, config, sizes = SLICES[name]
    torch.manual_seed(1)
    config = getattr(transformers, config)(**COMMON, **sizes, num_hidden_layers=layers)
    with torch.device(DEVICE):
        plain = getattr(transformers, model)(config).to(torch.bfloat16)
    swapped = copy.deepcopy(plain)
    report = kiln.torch.replace(swapped)
    if not report.swapped:
        raise RuntimeError(f"{name}: nothing was swapped: {report}")
    kinds = [type(swapped.get_submodule(swap.name)).__name__ for swap in report.swaps if swap.swapped]
    return {"without": plain, "with": swapped}, {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def inference(tokens, mode=None):
    def call_of(model):
        ids = (torch.arange(tokens, device=DEVICE) + 7)[None] % COMMON["vocab_size"]
        run = model if mode is None else torch.compile(model, mode=mode, dynamic=False)
        model.eval()

        def call():
            with torch.no_grad():
                return run(input_ids=ids).logits

        return call

    return call_of


def captured(tokens):
    def call_of(model):
        call, stream, graph = inference(tokens)(model), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        synchronize()
        with torch.cuda.graph(graph, stream=stream):
            logits = call()

        def replay():
            graph.replay()
            return logits

        replay.call = call  # the graph reads its tokens
        return replay

    return call_of


def training(checkpointed=False, mode=None):
    def call_of(model):
        run = model if mode is None else torch.compile(model, mode=mode, dynamic=False)
        ids = (torch.arange(TOKENS, device=DEVICE) + 7)[None] % COMMON["vocab_size"]
        model.train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        else:
            model.gradient_checkpointing_disable()

        def call():
            model.zero_grad(set_to_none=True)
            loss = run(input_ids=ids, labels=ids).loss
            loss.backward()
            return loss.detach()

        return call

    return call_of


MODES = {
    "prefill": inference(TOKENS), "compiled": inference(TOKENS, "default"), "decode": inference(1),
    "decode_compiled": inference(1, "default"), "decode_graphs": inference(1, "reduce-overhead"),
    "decode_captured": captured(1), "train": training(), "train_checkpointed": training(checkpointed=True),
    "train_compiled": training(mode="default"),
}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(call, times):
    synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    synchronize()
    return (time.perf_counter() - begin) / times


def measure(models, call_of, rounds):
    calls, result, outputs = {}, {}, {}
    for name, model in models.items():
        calls[name] = call_of(model)
        for _ in range(3):  # compilation, and what a graph is captured from
            outputs[name] = calls[name]().float().clone()
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            calls[name]()
            synchronize()
            result[f"{name}_peak_mib"] = round((torch.cuda.max_memory_allocated() - before) / 2**20)
    times = {name: max(1, int(ROUND_S / seconds(call, 3))) for name, call in calls.items()}
    found = {name: [] for name in calls}
    for number in range(rounds):
        for name in (list(calls) if number % 2 else list(calls)[::-1]):
            found[name].append(seconds(calls[name], times[name]))
    apart = (outputs["with"] - outputs["without"]).norm() / outputs["without"].norm()
    us = {f"{name}_us": round(1e6 * statistics.median(of), 1) for name, of in found.items()}
    spread = max((max(of) - min(of)) / statistics.median(of) for of in found.values())
    ratios = [without / swapped for without, swapped in zip(found["without"], found["with"])]
    low, middle, high = (round(each, 3) for each in statistics.quantiles(ratios))
    return us | {"without_over_with": middle, "quartiles": [low, high], "spread": round(spread, 3),
                 "apart": float(f"{apart.item():.2g}")} | result | {
                     "rounds": {name: [round(1e6 * each, 1) for each in of] for name, of in found.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--slices", default=",".join(name for name in SLICES if name != "tiny"))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--layers", type=int, default=2, help="of each slice")
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    result = {"schema": "kiln.models/1", "gpu": gpu, "torch": torch.__version__, "transformers": transformers.__version__,
              "date": datetime.date.today().isoformat(), "commit": arguments.commit, "tokens": TOKENS,
              "layers": arguments.layers, "operators": kiln.operators.ROAD, "results": []}
    for name in arguments.slices.split(","):
        models, swapped = pair_of(name, arguments.layers)
        for mode in arguments.modes.split(","):
            torch.compiler.reset()
            try:
                facts = measure(models, MODES[mode], arguments.rounds)
            except Exception as error:  # one mode's failure is told; the others are measured
                facts = {"failed": f"{type(error).__name__}: {error}"[:300]}
            result["results"].append({"slice": name, "mode": mode, "swapped": swapped} | facts)
            print({key: value for key, value in result["results"][-1].items() if key != "rounds"}, flush=True)
            bench.write_result(result, arguments.out, "results")


if __name__ == "__main__":
    main()
