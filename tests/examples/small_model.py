# SPDX-License-Identifier: Apache-2.0
"""A small Llama or Gemma of random weights, as transformers' save_pretrained writes one, and what it computes, in fp64.

    small_model.py llama|gemma FOLDER
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np

SHAPES = {
    "llama": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "gemma": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 97, "rms_norm_eps": 1e-6, "rope_theta": 10000.0},
}


def rounded(values):
    """To bfloat16, to nearest even, as float32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def stored(values, dtype):
    """A tensor of a file, of values that the dtype has: the dtype's name, the shape, the bytes."""
    values = np.asarray(values)
    if dtype == "BF16":
        content = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        content = values.astype({"F16": np.float16, "F32": np.float32, "F8_E4M3": np.uint8, "I8": np.int8,
                                 "I32": np.int32, "I64": np.int64}[dtype])
    return dtype, list(values.shape), content.tobytes()


def save(folder, config, tensors):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def random_model(kind, seed=0, **shape):
    """Its config and its weights, which bfloat16 has, in fp64."""
    config = {"model_type": kind, "tie_word_embeddings": kind == "gemma", "torch_dtype": "bfloat16",
              "architectures": [kind.capitalize() + "ForCausalLM"], "max_position_embeddings": 256, **SHAPES[kind], **shape}
    if kind == "gemma":
        config["hidden_activation"] = "gelu_pytorch_tanh"
    width, hidden = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    random = np.random.default_rng(seed)
    weights = {"model.embed_tokens.weight": random.standard_normal((config["vocab_size"], width)) / math.sqrt(width)}
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}."
        for key, shape in (("self_attn.q_proj", (q, width)), ("self_attn.k_proj", (kv, width)),
                           ("self_attn.v_proj", (kv, width)), ("self_attn.o_proj", (width, q)),
                           ("mlp.gate_proj", (hidden, width)), ("mlp.up_proj", (hidden, width)),
                           ("mlp.down_proj", (width, hidden))):
            weights[f"{name}{key}.weight"] = 1.5 * random.standard_normal(shape) / math.sqrt(shape[1])
        for key in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}{key}.weight"] = 0.1 * random.standard_normal(width) + (kind == "llama")
    weights["model.norm.weight"] = 0.1 * random.standard_normal(width) + (kind == "llama")
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random.standard_normal((config["vocab_size"], width))
    return config, {name: rounded(value).astype(np.float64) for name, value in weights.items()}


def make(kind, folder, seed=0, said=(), **shape):
    """`said`: what config.json has otherwise."""
    config, weights = random_model(kind, seed, **shape)
    save(folder, {**config, **dict(said)}, {name: stored(value, "BF16") for name, value in weights.items()})
    return config, weights


def frequencies(config):
    """Of rotations, as transformers has them."""
    half, said = config["head_dim"] // 2, config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = said.get("rope_theta", config["rope_theta"]) ** (-np.arange(half) / half)
    if said.get("rope_type") != "llama3":
        return found
    length, low, high = (said[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    waves = 2 * math.pi / found
    smooth = (length / waves - low) / (high - low)
    between = (1 - smooth) * found / said["factor"] + smooth * found
    return np.where(waves > length / low, found / said["factor"], np.where(waves < length / high, found, between))


def logits(config, weights, tokens):
    """Of the token after each, [len(tokens), vocabulary]."""
    gemma = config["model_type"] == "gemma"
    heads, kv_heads, size = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    count = len(tokens)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * (gemma + weights[name + ".weight"])

    def turned(x):  # [tokens, heads, size]
        half = size // 2
        angles = np.outer(np.arange(count), frequencies(config))[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def gate(x):
        if gemma:
            return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    hidden = weights["model.embed_tokens.weight"][tokens]
    if gemma:
        hidden = hidden * float(rounded(np.float32(math.sqrt(config["hidden_size"])))[()])
    for i in range(config["num_hidden_layers"]):
        def of(name, x, layer=f"model.layers.{i}."):
            return x @ weights[f"{layer}{name}.weight"].T

        x = norm(hidden, f"model.layers.{i}.input_layernorm")
        q = turned(of("self_attn.q_proj", x).reshape(count, heads, size))
        k = turned(of("self_attn.k_proj", x).reshape(count, kv_heads, size)).repeat(heads // kv_heads, 1)
        v = of("self_attn.v_proj", x).reshape(count, kv_heads, size).repeat(heads // kv_heads, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        hidden = hidden + of("self_attn.o_proj", np.einsum("hqk,khd->qhd", shares, v).reshape(count, -1))
        x = norm(hidden, f"model.layers.{i}.post_attention_layernorm")
        hidden = hidden + of("mlp.down_proj", gate(of("mlp.gate_proj", x)) * of("mlp.up_proj", x))
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(hidden, "model.norm") @ weights[head].T


if __name__ == "__main__":
    make(sys.argv[1], sys.argv[2])
