#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the decoder beside PyTorch, eager, compiled, and on a GPU compiled and captured in a CUDA graph by hand: the same
random weights in the shape of Llama-3.2-1B or of Gemma-2B, a prompt of 512 tokens, then one token at a time.

    bench.py DECODER FOLDER --commit <commit> --out results/<gpu>.json
    bench.py DECODER FOLDER --shape gemma --commit <commit> --out results/<gpu>-gemma.json
    bench.py DECODER FOLDER --device cpu --commit <commit> --out results/<cpu>.json
    bench.py DECODER FOLDER --weights int4 --commit <commit> --out results/<gpu>-int4.json
    bench.py DECODER FOLDER --weights float8 --commit <commit> --out results/<gpu>-float8.json

FOLDER gets the model, 2.5 GB, or 5 GB of Gemma's shape. Wants KILN_REGISTRY. PyTorch takes the decoder's tokens, so that both compute the same
steps and their logits can be compared.

With --weights the linears of the layers are quantized as compressed-tensors does it: int4 in groups of 128, or FP8 with
scales of rows. The decoder runs them, and in a second folder the same weights in bfloat16, as does PyTorch, eager.
"""
import argparse
import datetime
import json
import math
import pathlib
import re
import struct
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F

SHAPES = {
    "llama": ("Llama-3.2-1B", {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                               "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
                               "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True}),
    "gemma": ("Gemma-2B", {"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
                           "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 256000,
                           "rms_norm_eps": 1e-6, "rope_theta": 10000.0}),
}
CONFIG = {}
PROMPT, FRESH, LONGEST = 512, 129, 1024


def make_weights(device):
    width, hidden = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    queries, kv = (CONFIG[f"num_{name}_heads"] * CONFIG["head_dim"] for name in ("attention", "key_value"))
    shapes = {"self_attn.q_proj": (queries, width), "self_attn.k_proj": (kv, width), "self_attn.v_proj": (kv, width),
              "self_attn.o_proj": (width, queries), "mlp.gate_proj": (hidden, width), "mlp.up_proj": (hidden, width),
              "mlp.down_proj": (width, hidden)}
    torch.manual_seed(0)

    def random(*shape):
        return (torch.randn(*shape, device=device) / math.sqrt(shape[-1])).bfloat16()

    def norm():  # Gemma keeps a norm's weights less 1
        return torch.full((width,), 0.0 if CONFIG["model_type"] == "gemma" else 1.0, device=device).bfloat16()

    weights = {"model.embed_tokens.weight": random(CONFIG["vocab_size"], width)}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, shape in shapes.items():
            weights[f"model.layers.{layer}.{name}.weight"] = random(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = norm()
    weights["model.norm.weight"] = norm()
    return weights


WEIGHTS = {
    "int4": ("int4 in groups of 128, of compressed-tensors",
             {"format": "pack-quantized", "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
    "float8": ("FP8 with scales of rows, of compressed-tensors",
               {"format": "float-quantized", "num_bits": 8, "type": "float", "strategy": "channel"}),
}
DTYPES = {torch.bfloat16: "BF16", torch.int32: "I32", torch.int64: "I64", torch.float8_e4m3fn: "F8_E4M3"}


def quantized(weights, kind):
    """The tensors that a quantized model has, and the weights that they mean."""
    tensors, meant = {}, dict(weights)
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        parts = weight.float().unflatten(1, (-1, 128 if kind == "int4" else weight.shape[1]))
        largest = 7 if kind == "int4" else torch.finfo(torch.float8_e4m3fn).max
        scales = (parts.abs().amax(2) / largest).bfloat16()
        codes = (parts / scales.float()[..., None]).clamp(-largest, largest)
        if kind == "int4":
            codes = codes.round()
            words = (codes.long() + 8).reshape(len(weight), -1, 8) << torch.arange(0, 32, 4, device=weight.device)
            words = words.sum(2)
            tensors[name + "_packed"] = (words - (words >> 31 << 32)).int()
            tensors[name + "_shape"] = torch.tensor(weight.shape)
        else:
            codes = codes.to(torch.float8_e4m3fn)
            tensors[name] = codes.flatten(1)
        tensors[name + "_scale"] = scales
        meant[name] = (codes.float() * scales.float()[..., None]).flatten(1).bfloat16()
    return tensors, meant


def save(weights, folder, kind=None):
    folder.mkdir(parents=True, exist_ok=True)
    config = dict(CONFIG)
    if kind is not None:
        scheme = dict(WEIGHTS[kind][1])
        form = scheme.pop("format")
        config["quantization_config"] = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
                                         "config_groups": {"group_0": {"targets": ["Linear"], "weights": scheme}}}
    (folder / "config.json").write_text(json.dumps(config))
    header, end = {}, 0
    for name, value in weights.items():
        begin, end = end, end + value.element_size() * value.numel()
        header[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            file.write(value.contiguous().view(torch.uint8).cpu().numpy().tobytes())


class Reference:
    """The same model by PyTorch's operators, with a cache of keys and values that is written in place."""

    def __init__(self, weights, device):
        self.weights, self.device = weights, device
        half = CONFIG["head_dim"] // 2
        frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, half, device=device).double() / half)
        angles = torch.outer(torch.arange(LONGEST, device=device).double(), frequencies)
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        shape = CONFIG["num_hidden_layers"], 1, CONFIG["num_key_value_heads"], LONGEST, CONFIG["head_dim"]
        self.keys = torch.zeros(shape, device=device, dtype=torch.bfloat16)
        self.values = torch.zeros_like(self.keys)

    def turned(self, x, positions):
        cos, sin = self.cos[positions][:, None, :], self.sin[positions][:, None, :]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).bfloat16()

    def step(self, tokens, positions, mask):
        count, size = tokens.shape[0], CONFIG["head_dim"]
        gemma = CONFIG["model_type"] == "gemma"
        x = self.weights["model.embed_tokens.weight"][tokens]
        if gemma:
            x = x * torch.tensor(CONFIG["hidden_size"] ** 0.5, dtype=torch.bfloat16)
        for layer in range(CONFIG["num_hidden_layers"]):
            def of(name, layer=layer):
                return self.weights[f"model.layers.{layer}.{name}.weight"]

            n = self.norm(x, of("input_layernorm"))
            q, k, v = (F.linear(n, of(f"self_attn.{name}_proj")).view(count, -1, size) for name in "qkv")
            self.keys[layer, 0, :, positions] = self.turned(k, positions).transpose(0, 1)
            self.values[layer, 0, :, positions] = v.transpose(0, 1)
            a = F.scaled_dot_product_attention(self.turned(q, positions).transpose(0, 1)[None], self.keys[layer],
                                               self.values[layer], attn_mask=mask, enable_gqa=True)
            x = x + F.linear(a[0].transpose(0, 1).reshape(count, -1), of("self_attn.o_proj"))
            n = self.norm(x, of("post_attention_layernorm"))
            g = F.linear(n, of("mlp.gate_proj"))
            active = F.gelu(g, approximate="tanh") if gemma else F.silu(g)
            x = x + F.linear(active * F.linear(n, of("mlp.up_proj")), of("mlp.down_proj"))
        return F.linear(self.norm(x[-1:], self.weights["model.norm.weight"]), self.weights["model.embed_tokens.weight"])

    @staticmethod
    def norm(x, weight):
        if CONFIG["model_type"] == "gemma":
            return F.rms_norm(x.float(), weight.shape, 1 + weight.float(), CONFIG["rms_norm_eps"]).bfloat16()
        return F.rms_norm(x, weight.shape, weight, CONFIG["rms_norm_eps"])

    @torch.no_grad()
    def run(self, one, prompt, tokens):
        """The logits of all steps, and tokens a second behind the prompt."""
        def inputs(tokens, first):
            positions = torch.arange(first, first + len(tokens), device=self.device)
            mask = torch.arange(LONGEST, device=self.device)[None, :] <= positions[:, None]
            return torch.tensor(tokens, device=self.device), positions, mask

        logits = [self.step(*inputs(prompt, 0)).float().cpu()]
        for i in range(3):
            one(*inputs([tokens[i]], len(prompt) + i))
        if self.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for i, token in enumerate(tokens[:-1]):
            logits.append(one(*inputs([token], len(prompt) + i)).float().cpu())
        return torch.cat(logits).numpy(), (len(tokens) - 1) / (time.perf_counter() - begin)


class Graph:
    """A step of one token, compiled and captured in a CUDA graph, whose inputs are copied in."""

    def __init__(self, step):
        self.step, self.graph = torch.compile(step), None

    def __call__(self, *inputs):
        if self.graph is None:
            self.inputs = [value.clone() for value in inputs]
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.step(*self.inputs)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = self.step(*self.inputs)
        for own, value in zip(self.inputs, inputs):
            own.copy_(value)
        self.graph.replay()
        return self.logits


class Decoded:
    """What the decoder says of a prompt."""

    def __init__(self, decoder, folder, device, prompt):
        found = subprocess.run([decoder, folder, "--device", device, "--tokens", ",".join(map(str, prompt)),
                                "--new", str(FRESH), "--logits", folder / "logits"],
                               capture_output=True, text=True, check=False)
        if found.returncode != 0:
            raise SystemExit(found.stderr)
        self.tokens = [int(word) for word in found.stdout.split(",")]
        self.logits = np.fromfile(folder / "logits", np.float32).reshape(FRESH, -1)
        times = re.search(r"loaded in ([\d.]+) s; \d+ tokens in ([\d.]+) ms; then ([\d.]+) tokens", found.stderr)
        self.load_s, self.prompt_ms, self.rate = (float(each) for each in times.groups())
        self.variants = found.stderr.splitlines()[:-1]


def machine(device):
    if device == "cuda":
        driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"],
                                capture_output=True, text=True, check=True).stdout.strip()
        return {"hardware": torch.cuda.get_device_name(), "driver": driver}
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return {"hardware": names[0], "threads": torch.get_num_threads()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("decoder", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=list(SHAPES), default="llama")
    parser.add_argument("--weights", choices=list(WEIGHTS))
    options = parser.parse_args()
    name, config = SHAPES[options.shape]
    CONFIG.update(config)
    weights = make_weights(options.device)
    prompt = np.random.default_rng(1).integers(0, CONFIG["vocab_size"], PROMPT).tolist()
    rates, of_weights = {}, "bfloat16"
    if options.weights is None:
        save(weights, options.folder)
    else:
        of_weights = WEIGHTS[options.weights][0]
        tensors, weights = quantized(weights, options.weights)
        save(tensors, options.folder, options.weights)
        plain = options.folder / "plain"
        save(weights, plain)
        rates["kiln, bfloat16"] = Decoded(options.decoder, plain, options.device, prompt).rate
    found = Decoded(options.decoder, options.folder, options.device, prompt)
    reference = Reference(weights, options.device)
    expected, rates["eager"] = reference.run(reference.step, prompt, found.tokens)
    if options.weights is None:  # those of quantized weights are as many
        mode = "reduce-overhead" if options.device == "cuda" else "default"
        rates["compiled"] = reference.run(torch.compile(reference.step, mode=mode), prompt, found.tokens)[1]
        if options.device == "cuda":
            torch._dynamo.reset()
            rates["compiled, CUDA graph"] = reference.run(Graph(reference.step), prompt, found.tokens)[1]
    result = {
        **machine(options.device), "torch": torch.__version__, "commit": options.commit,
        "date": datetime.date.today().isoformat(), "model": f"the shape of {name}, random weights, {of_weights}",
        "model_bytes": (options.folder / "model.safetensors").stat().st_size,
        "variants": found.variants, "load_s": found.load_s, "prompt_tokens": PROMPT, "prompt_ms": found.prompt_ms,
        "tokens_per_second": {name: round(rate, 1) for name, rate in {"kiln": found.rate, **rates}.items()},
        "largest_difference": round(float(np.abs(found.logits - expected).max() / np.abs(expected).max()), 4),
        "same_token": [int((found.logits.argmax(1) == expected.argmax(1)).sum()), FRESH]}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["tokens_per_second"]))


if __name__ == "__main__":
    main()
