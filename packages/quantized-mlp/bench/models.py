#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times slices of real models with quantised weights: as transformers runs them, in bfloat16, and with Kiln.

    models.py --commit HASH --out bench/results/<gpu>-models.json [--slices llama-3-8b,…] [--formats int4,…]
              [--modes eager,graph,compiled]

A slice is a model of its published widths with two of its layers, a small vocabulary and random weights. Its linears are
written in the format of compressed-tensors: int4 in groups of 128 (W4A16), or FP8 in blocks of 128 x 128 (fp8-blocks) or of
rows (fp8-rows), whose models round x to FP8 too. transformers loads that file twice; kiln.torch.replace() takes the MLPs of
one. `original` has the weights before they were quantised. fp8-rows is loaded with transformers' own FP8 products, where a
GPU has them.

  eager      1 token, 16 sequences of one token, and a prompt of 2,048
  graph      1 and 16 of them, as the replay of a CUDA graph
  compiled   1 and 16, by torch.compile's mode reduce-overhead

A result has microseconds of a forward pass, tokens a second, and the relative L2 of Kiln's logits, and of the original's, to
the tool's. Times: packages/rows/bench/timing.py.
"""

import json
import pathlib
import sys
import tempfile
import warnings

import torch
import transformers
from safetensors.torch import save_file

import kiln.torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing

GROUP = 128
COMMON = {"num_hidden_layers": 2, "vocab_size": 1024, "max_position_embeddings": 4096, "use_cache": False}
SLICES = {
    "llama-3-8b": ("LlamaForCausalLM", "LlamaConfig", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "qwen3-14b": ("Qwen3ForCausalLM", "Qwen3Config", {
        "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128}),
    "gemma-3-12b": ("Gemma3ForCausalLM", "Gemma3TextConfig", {
        "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 256}),
    "tiny": ("LlamaForCausalLM", "LlamaConfig", {
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}),
}


# ---- the files of compressed-tensors ----


def int4(weight):
    groups = weight.float().unflatten(1, (-1, GROUP))
    scale = (groups.abs().amax(2) / 7.5).to(torch.bfloat16)
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7).flatten(1).to(torch.int32) + 8
    words = (codes.unflatten(1, (-1, 8)) << torch.arange(0, 32, 4, device=codes.device, dtype=torch.int32)).sum(
        2, dtype=torch.int32)
    return {"weight_packed": words, "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}


def float8(rows, columns):
    def parts(weight):
        blocks = weight.float().unflatten(0, (-1, rows)).unflatten(2, (-1, columns or weight.shape[1]))
        scale = (blocks.abs().amax((1, 3), keepdim=True) / 448).to(torch.bfloat16)
        codes = (blocks / scale.float()).to(torch.float8_e4m3fn).reshape(weight.shape)
        return {"weight": codes, "weight_scale": scale[:, 0, :, 0]}

    return parts


def scheme(kind, bits, strategy, x=None, **more):
    """A group of the file's quantization_config."""
    def arguments(strategy, **more):
        return {"num_bits": bits, "type": kind, "symmetric": True, "strategy": strategy, **more}

    return {"targets": ["Linear"], "weights": arguments(strategy, **more), "input_activations": x and arguments(**x)}


FORMATS = {  # how a weight is written, the format's name and its scheme
    "int4": (int4, "pack-quantized", scheme("int", 4, "group", group_size=GROUP)),
    "fp8-blocks": (float8(128, 128), "float-quantized", scheme(
        "float", 8, "block", {"strategy": "group", "group_size": GROUP, "dynamic": True}, block_structure=[128, 128])),
    "fp8-rows": (float8(1, 0), "float-quantized", scheme("float", 8, "channel", {"strategy": "token", "dynamic": True})),
}


def write(model, form, folder):
    """The model's files, its layers' linears in this format."""
    parts, name, group = FORMATS[form]
    state = {key: tensor.detach().contiguous() for key, tensor in model.state_dict().items() if key != "lm_head.weight"
             or not model.config.tie_word_embeddings}
    for path, module in model.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear):
            del state[f"model.layers.{path}.weight"]
            state.update({f"model.layers.{path}.{part}": tensor.contiguous()
                          for part, tensor in parts(module.weight.detach()).items()})
    save_file({key: tensor.cpu() for key, tensor in state.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": {
        "quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group}}}
    (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")


def loaded(folder, form):
    more = {}
    if form == "fp8-rows" and timing.DEVICE == "cuda":
        more["quantization_config"] = transformers.CompressedTensorsConfig(use_optimized_inference=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map={"": timing.DEVICE},
                                                              **more).eval()
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=timing.DEVICE))  # which gives int4 plain weights
    return model


def models_of(name, form):
    """original, tool and with kiln; what replace() swapped, and what it kept."""
    kind, config, sizes = SLICES[name]
    torch.manual_seed(1)
    with torch.device(timing.DEVICE):
        original = getattr(transformers, kind)(getattr(transformers, config)(**COMMON, **sizes)).to(torch.bfloat16).eval()
    with tempfile.TemporaryDirectory() as folder:
        write(original, form, pathlib.Path(folder))
        tool, swapped = loaded(folder, form), loaded(folder, form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kiln.torch.FallbackWarning)
        report = kiln.torch.replace(swapped)
    words = sorted({swap.what for swap in report.swaps})
    quantized = any("quantized-mlp" in word for word in words)
    return {"original": original, "tool": tool, "with kiln": swapped if quantized else None}, words


# ---- the times ----


def call_of(model, ids, mode):
    run = torch.compile(model, mode="reduce-overhead", dynamic=False) if mode == "compiled" else model

    def call():
        with torch.no_grad():
            return run(input_ids=ids).logits

    return call


def measure(models, mode, rows, length):
    ids = ((torch.arange(rows * length, device=timing.DEVICE) + 7) % COMMON["vocab_size"]).reshape(rows, length)
    torch.compiler.reset()
    calls = {name: call_of(model, ids, mode) for name, model in models.items() if model is not None}
    logits = {}
    for name, call in calls.items():
        for _ in range(3):  # compilation, and what a graph is recorded from
            logits[name] = call().float().clone()
    facts = timing.measure(calls, prepare=timing.replay_of if mode == "graph" else lambda call: call)
    facts["tokens_a_second"] = {name: round(rows * length * 1e6 / us) for name, us in facts["us"].items()}
    facts["logits_to_tool"] = {name: float(f"{float((found - logits['tool']).norm() / logits['tool'].norm()):.2g}")
                               for name, found in logits.items() if name != "tool"}
    return facts


def main():
    def options(parser):
        parser.add_argument("--slices", default=",".join(name for name in SLICES if name != "tiny"))
        parser.add_argument("--formats", default="int4,fp8-blocks")
        parser.add_argument("--modes", default="eager,graph")
        parser.add_argument("--prompt", type=int, default=2048)

    arguments = timing.arguments_of(__doc__, options)
    results = timing.Results("quantized-mlp", arguments)
    results.head["transformers"] = transformers.__version__
    timing.imported("compressed_tensors")
    with timing.own_stream():
        for name in arguments.slices.split(","):
            for form in arguments.formats.split(","):
                models, words = models_of(name, form)
                for mode in arguments.modes.split(","):
                    for rows, length in ((1, 1), (16, 1), *(((1, arguments.prompt),) if mode == "eager" else ())):
                        try:
                            facts = measure(models, mode, rows, length)
                        except Exception as error:  # one mode's failure is told; the others are measured
                            facts = {"failed": timing.first_line(error)}
                        results.add(f"{name}, {form}, {mode}, {rows} x {length}", slice=name, format=form, mode=mode,
                                    tokens=[rows, length], replaced=words, **facts)
                del models


if __name__ == "__main__":
    main()
