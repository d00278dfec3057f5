#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""decoder_test.py DECODER: docs/examples/decoder on a small Llama and a small Gemma, on the CPU: the logits of a prompt
and of every token after it against fp64, tokens that are drawn, and what it says of files that are none."""
import copy
import functools
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np

import quantized_model
import small_model

PROMPT, FRESH = [5, 17, 88, 3, 42, 42, 0], 12


def run(decoder, folder, *options):
    return subprocess.run([decoder, folder, "--device", "cpu", *options], capture_output=True, text=True)


def check_draws(decoder, folder, greatest):
    def drawn(*options):
        found = run(decoder, folder, "--tokens", ",".join(map(str, PROMPT)), "--new", str(FRESH), "--temperature", "1.5",
                    *options)
        assert found.returncode == 0, found.stderr
        return found.stdout

    assert drawn("--top-k", "1") == greatest
    first = drawn("--seed", "1")
    assert drawn("--seed", "1") == first
    assert drawn("--seed", "2") != first


# As Llama 3.1 has it, of a sequence of which a few tokens are a part.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


# What one model's config.json may say otherwise, of the same numbers. None: null.
SAME = {
    "rope_theta beside rope_parameters": ("llama", {"rope_parameters": {"rope_type": "default"}}, {}),
    "a theta of null": ("llama", {"rope_theta": 10000.0}, {"rope_parameters": {"rope_theta": None}, "rope_theta": None}),
    "heads of width / heads": ("llama", {"num_key_value_heads": 4, "seed": 1}, {"num_key_value_heads": None, "head_dim": None}),
    "a tied Llama": ("llama", {"tie_word_embeddings": True}, {}),
    "a Gemma that is not tied": ("gemma", {"tie_word_embeddings": False}, {}),
    "defaults of a Llama": ("llama", {}, {"tie_word_embeddings": None, "hidden_act": None}),
    "an old Gemma": ("gemma", {}, {"tie_word_embeddings": None, "hidden_activation": None, "hidden_act": "gelu"}),
    "silu": ("llama", {"hidden_act": "silu"}, {}),
}


def check(decoder, kind, folder, label="", said=(), **shape):
    config, weights = small_model.make(kind, folder, said=said, **shape)
    found = run(decoder, folder, "--tokens", ",".join(map(str, PROMPT)), "--new", str(FRESH), "--logits",
                folder / "logits")
    assert found.returncode == 0, found.stderr
    tokens = [int(word) for word in found.stdout.split(",")]
    assert len(tokens) == FRESH, found.stdout
    logits = np.fromfile(folder / "logits", np.float32).reshape(FRESH, config["vocab_size"])
    assert (logits.argmax(-1) == tokens).all(), "it does not take the greatest logit"
    # The reference goes the way that the program went, so that a near tie does not part the two.
    expected = small_model.logits(config, weights, PROMPT + tokens[:-1])[len(PROMPT) - 1:]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert error < 0.05, f"{kind}: the logits differ by {error:.3f} of the largest"
    # Numbers are not so near each other that this would hold by chance: another position's differ.
    other = np.abs(logits[1:] - expected[:-1]).max() / np.abs(expected).max()
    assert other > 0.3, f"{kind}: the logits of neighbours differ by {other:.3f} alone"
    check_draws(decoder, folder, found.stdout)
    print(f"decoder: {label}{kind}: logits within {error:.4f} of fp64, in {FRESH} tokens after {len(PROMPT)}")


# As models of the wild have them: what is quantized, how, and what else stands beside it.
INT4 = {"format": "pack-quantized", "group": 128}
ALL = r"_proj\.weight"
QUANTIZED = {
    "int4, groups of 128": ("llama", "BF16", (ALL, INT4)),
    "int4, groups of 64 with zeros": ("llama", "BF16", (ALL, {**INT4, "group": 64, "symmetric": False})),
    "int4, channels": ("llama", "F16", (ALL, {**INT4, "group": 0})),
    "int4, a Gemma": ("gemma", "BF16", (ALL, {**INT4, "group": 32})),
    "int8, channels with zeros": ("llama", "BF16", (ALL, {**INT4, "bits": 8, "group": 0, "symmetric": False})),
    "int8, not packed": ("llama", "BF16", (ALL, {"format": "int-quantized", "bits": 8})),
    "FP8, channels": ("llama", "BF16", (ALL, {"format": "float-quantized"})),
    "FP8, groups of 64": ("llama", "BF16", (ALL, {"format": "float-quantized", "strategy": "group", "group": 64})),
    "FP8, tensors": ("llama", "BF16", (ALL, {"format": "float-quantized", "strategy": "tensor"})),
    "FP8, blocks": ("llama", "BF16", (ALL, {"format": "float-quantized", "strategy": "block"})),
    "two schemes, and a plain MLP": ("llama", "BF16", (r"attn.*_proj\.weight", {"format": "float-quantized"}),
                                     (r"layers\.1.*_proj\.weight", INT4)),
    "two schemes of one shape": ("llama", "BF16", (r"attn.*_proj\.weight", {**INT4, "symmetric": False}), (ALL, INT4)),
    "GPTQ": ("llama", "F16", (ALL, {"format": "gptq", "group": 128})),
    "GPTQ with zeros and lm_head": ("llama", "F16", (ALL + r"|lm_head", {"format": "gptq", "group": 32, "symmetric": False})),
    "GPTQ, second form, with zeros": ("llama", "BF16", (ALL, {"format": "gptq_v2", "group": 64, "symmetric": False})),
    "GPTQ of 8 bits, one group": ("llama", "F16", (ALL, {"format": "gptq", "bits": 8})),
    "AWQ": ("llama", "F16", (ALL, {"format": "awq", "group": 128, "symmetric": False})),
}
SHAPE = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "head_dim": 64, "vocab_size": 96}


def decoded(decoder, folder, config):
    """Its tokens and logits."""
    found = run(decoder, folder, "--tokens", ",".join(map(str, PROMPT)), "--new", str(FRESH), "--logits",
                folder / "logits")
    assert found.returncode == 0, found.stderr
    tokens = [int(word) for word in found.stdout.split(",")]
    return tokens, np.fromfile(folder / "logits", np.float32).reshape(FRESH, config["vocab_size"]), found.stderr


def check_quantized(decoder, label, work):
    """Beside the same weights on the plain road, and in fp64."""
    kind, dtype, *rules = QUANTIZED[label]
    plain_config, weights = small_model.random_model(kind, **SHAPE)
    config, tensors, meant = quantized_model.model(plain_config, weights, dtype, *rules)
    small_model.save(work / "quantized", config, tensors)
    small_model.save(work / "plain", plain_config,
                     {name: small_model.stored(value, dtype) for name, value in meant.items()})
    tokens, logits, said = decoded(decoder, work / "quantized", config)
    plain_tokens, plain, plain_said = decoded(decoder, work / "plain", config)
    assert "quantized-mlp" in said and "quantized-mlp" not in plain_said, said
    assert ("swiglu-mlp" in said) == ("plain MLP" in label), said
    assert ("activations are not rounded" in said) == any("float" in scheme["format"] for _, scheme in rules), said
    same = next((i for i in range(FRESH) if tokens[i] != plain_tokens[i]), FRESH - 1) + 1  # they had the same to read
    largest = np.abs(plain[:same]).max()
    apart = np.abs(logits[:same] - plain[:same]).max() / largest
    assert apart < 0.03, f"{label}: the logits differ by {apart:.4f} of the largest from the plain road's"
    best = np.sort(plain[same - 1])[-2:]
    assert tokens == plain_tokens or best[1] - best[0] < 2 * apart * largest, f"{label}: {tokens}, plain {plain_tokens}"
    expected = small_model.logits(config, meant, PROMPT + tokens[:-1])[len(PROMPT) - 1:]
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    assert error < 0.03, f"{label}: the logits differ by {error:.4f} of the largest from fp64"
    # Codes that are not rounded exactly, or a zero that is another, would be seen.
    other = np.abs(small_model.logits(config, weights, PROMPT + tokens[:-1])[len(PROMPT) - 1:] - expected).max()
    assert other > 2 * error * np.abs(expected).max(), f"{label}: the weights that were rounded give nearly the same"
    print(f"decoder: {label}: logits within {apart:.4f} of the plain road's, {error:.4f} of fp64; {same} tokens the same")


def check_files(decoder, work):
    """What a file says that is not of its format, or a config of another model."""
    def refused(kind, said, words, tensors=(), shape=()):
        config, weights = small_model.random_model(kind, **dict(shape))
        stored = {name: small_model.stored(value, "BF16") for name, value in weights.items()}
        stored.update(tensors)
        small_model.save(work, {**config, **said}, {name: tensor for name, tensor in stored.items() if tensor})
        found = run(decoder, work, "--tokens", "1")
        assert found.returncode == 2 and all(word in found.stderr for word in ("read ", *words)), (words, found)

    def config_refused(kind, key, value, expected, file="config.json"):
        refused(kind, {key: value}, (file, f"{key} is {json.dumps(value, separators=(',', ':'))}, expected {expected}"))

    whole = "a whole number of at least 1"
    config_refused("llama", "model_type", "mistral", "llama or gemma")
    for key, value in (("num_attention_heads", 0), ("num_hidden_layers", -1), ("num_key_value_heads", 0), ("head_dim", 0),
                       ("hidden_size", None), ("vocab_size", "x"), ("intermediate_size", 1.5), ("num_hidden_layers", 2**63)):
        config_refused("llama", key, value, whole)
    config_refused("llama", "rope_theta", "x", "a number")
    config_refused("llama", "rms_norm_eps", "x", "a number")
    config_refused("llama", "rope_scaling", "x", "an object")
    config_refused("llama", "rope_parameters", [1], "an object")
    config_refused("llama", "tie_word_embeddings", "no", "true or false")
    config_refused("llama", "hidden_act", "gelu", "silu")
    config_refused("gemma", "hidden_act", "silu", "gelu_pytorch_tanh or gelu")
    config_refused("gemma", "hidden_activation", "gelu", "gelu_pytorch_tanh")
    config_refused("llama", "head_dim", 2**62, "rows of q, k and v that can be counted")
    refused("llama", {"rope_scaling": {"rope_type": "llama3"}}, ("config.json", "factor is null, expected a number"))
    refused("llama", {"head_dim": 2**60 - 2, "num_attention_heads": 1, "num_key_value_heads": 1},
            ("config.json", f",{2**59 - 1}], expected one that has a size"))
    embeddings = "model.embed_tokens.weight"
    for shape in ([2**62, 4], [2**62, 2**62]):
        refused("llama", {"vocab_size": shape[0], "hidden_size": shape[1]},
                ("model.safetensors", f"{embeddings} has 0 bytes, which are not its shape's"),
                {embeddings: ("BF16", shape, b"")})
    head = small_model.stored(np.ones((97, 64)), "BF16")
    refused("llama", {}, ("model.safetensors", "lm_head.weight is not there, expected it where tie_word_embeddings is false"),
            {"lm_head.weight": None})
    refused("gemma", {}, ("model.safetensors", f"lm_head.weight differs from {embeddings}, expected the same"),
            {"lm_head.weight": head})
    _, weights = small_model.make("gemma", work)  # the same twice is the same model
    twice = {name: small_model.stored(value, "BF16") for name, value in weights.items()}
    plain = run(decoder, work, "--tokens", "1,2,3")
    small_model.save(work, json.loads((work / "config.json").read_text()), {**twice, "lm_head.weight": twice[embeddings]})
    found = run(decoder, work, "--tokens", "1,2,3")
    assert found.returncode == 0 and found.stdout == plain.stdout, (plain, found)

    entry = {"dtype": "BF16", "shape": [97, 64]}
    for text in ("", "{", "null", "[1]", json.dumps({"x": entry}), json.dumps({"x": {**entry, "data_offsets": [0]}}),
                 json.dumps({"x": {**entry, "data_offsets": [0, 0], "shape": "x"}}), json.dumps({"x": 1})):
        (work / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode())
        found = run(decoder, work, "--tokens", "1")
        name = "'s x" if '"x"' in text else ""
        assert found.returncode == 2 and f"read {work / 'model.safetensors'}: its header{name} is" in found.stderr, (text, found)
    for text in ("", "{", "[1]", '"x"'):
        (work / "config.json").write_text(text)
        found = run(decoder, work, "--tokens", "1")
        assert found.returncode == 2 and f"read {work / 'config.json'}: " in found.stderr, (text, found)
    print("decoder: what is of another format or model it refuses")


def check_refusals(decoder, work):
    """What cannot be read as it was meant is an error that says where, what was found, and what would do."""
    gate = "model.layers.0.mlp.gate_proj."
    stored, first = small_model.stored, lambda config: config["quantization_config"]["config_groups"]["group_0"]

    @functools.cache
    def made(label):
        kind, dtype, *rules = QUANTIZED[label]
        return quantized_model.model(*small_model.random_model(kind, **SHAPE), dtype, *rules)

    def changed(label, change):
        config, tensors, _ = copy.deepcopy(made(label))
        change(config, tensors)
        small_model.save(work, config, tensors)
        return run(decoder, work, "--tokens", "1")

    def read(label, change):
        found, usual = changed(label, change), changed(label, lambda config, tensors: None)
        assert found.returncode == 0 and found.stdout == usual.stdout, (found, usual)

    def refused(label, change, *words):
        found = changed(label, change)
        assert found.returncode == 2 and all(word in found.stderr for word in words), (words, found)

    def says(**words):
        return lambda config, tensors: config["quantization_config"].update(words)

    def weights_say(**words):
        return lambda config, tensors: first(config)["weights"].update(words)

    def has(**changed):
        return lambda config, tensors: tensors.update({gate + name: tensor for name, tensor in changed.items()})

    def lacks(*names):
        return lambda config, tensors: [tensors.pop(gate + name) for name in names]

    def nothing_said(config, tensors):
        del config["quantization_config"]

    def one_plain(config, tensors):
        lacks("weight_packed", "weight_scale", "weight_shape")(config, tensors)
        tensors[gate + "weight"] = stored(np.ones((384, 256)), "BF16")

    def acting(config, tensors):
        first(config)["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}

    packed, gptq, awq = "int4, groups of 128", "GPTQ", "AWQ"
    refused(packed, nothing_said, ".weight_packed is quantized, expected a quantization_config")
    refused(packed, says(quant_method="bitsandbytes"),
            'quant_method is "bitsandbytes", expected compressed-tensors, gptq or awq')
    refused(packed, says(kv_cache_scheme={"num_bits": 8}), 'kv_cache_scheme is {"num_bits":8}, expected none')
    refused(packed, says(transform_config={"config_groups": {"u": {}}}), "transform_config is", "expected none")
    refused(packed, says(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config is", "expected none")
    refused(packed, says(config_groups={}), "config_groups is {}, expected one at least")
    refused(packed, weights_say(num_bits=3), "num_bits is 3, expected 4 or 8")
    refused(packed, weights_say(type="float"), 'type is "float", expected int')
    refused(packed, weights_say(strategy="tensor_group"), 'strategy is "tensor_group", expected group or channel')
    refused(packed, lambda config, tensors: first(config).update(format="marlin-24"), 'format is "marlin-24"', "pack-quantized")
    refused(packed, acting, "input_activations is", '"type":"int"', "expected none, or of FP8 weights FP8")
    refused(packed, weights_say(group_size=48), "q_proj has groups of 48 columns, expected 32, 64, 128 or all")
    for order in ("group", "dynamic", "x", True):
        refused(packed, weights_say(actorder=order), "q_proj.weight_g_idx is not there", "act-order")
    for order in (False, "weight", "static"):
        read(packed, weights_say(actorder=order))
    read(packed, says(sparsity_config={"format": "dense", "ignore": [], "targets": []}))
    refused(packed, weights_say(symmetric=False), "it has no model.layers.0.self_attn.q_proj.weight_zero_point")
    refused(packed, one_plain, "gate_proj is not quantized, expected all linears of this MLP to be")
    refused(packed, has(weight_shape=stored([384, 255], "I64")), "gate_proj.weight_shape says [384,255], expected [384,256]")
    refused(packed, has(weight_scale=stored(np.ones((384, 2)), "F32")),
            "gate_proj.weight_scale is F32 [384,2], expected BF16 or F16 [384,2]")
    refused(packed, has(weight_zero_point=stored(np.zeros((384, 2)), "I8")),
            "gate_proj.weight_zero_point is I8 [384,2], expected I32 [48,2]")
    refused(packed, has(bias=stored(np.ones(384), "BF16")), "gate_proj.bias is not zero, expected no bias")
    refused(packed, lacks("weight_scale"), f"it has no {gate}weight_scale")
    refused("int4, groups of 64 with zeros", lambda config, tensors: tensors.update(
        {gate + "weight_scale": stored(np.ones((384, 1)), "BF16")}), "is BF16 [384,1], expected BF16 or F16 [384,4]")
    refused("int8, not packed", has(weight_zero_point=stored(np.ones((384, 1)), "I8")),
            "weight_zero_point is there, expected none")
    refused("FP8, blocks", weights_say(block_structure=[1, 128]), "block_structure is [1,128], expected [128,128]")
    refused("FP8, channels", has(weight_scale=stored(np.ones(3), "BF16")),
            "gate_proj.weight_scale is BF16 [3], expected BF16 or F16 or F32 [384,1]")
    refused(gptq, has(g_idx=stored(np.arange(256) % 2, "I32")),
            "gate_proj.g_idx has column 1 in group 1, expected 0: act-order is not read")
    refused(gptq, lambda config, tensors: (says(desc_act=True)(config, tensors),
                                           tensors.pop("model.layers.0.self_attn.q_proj.g_idx")),
            "self_attn.q_proj.g_idx is not there, expected it where config.json says act-order")
    refused(gptq, says(bits=3), "bits is 3, expected 4 or 8")
    refused(gptq, says(checkpoint_format="marlin"), 'checkpoint_format is "marlin", expected gptq or gptq_v2')
    refused(gptq, says(group_size=64), ".scales is F16 [2,256], expected BF16 or F16 [4,256]")
    refused(gptq, says(bits=8), ".qweight is I32 [32,256], expected I32 [64,256]")
    refused(gptq, lacks("qzeros"), f"it has no {gate}qzeros")
    refused(gptq, has(qzeros=stored(np.zeros((2, 384)), "I32")), "qzeros is I32 [2,384], expected I32 [2,48]")
    refused(awq, says(version="GEMV"), 'version is "gemv", expected gemm')
    refused(awq, says(bits=8), "bits is 8, expected 4")
    refused(awq, has(scales=stored(np.ones((384, 2)), "F16")), "scales is F16 [384,2], expected BF16 or F16 [2,384]")
    print("decoder: what it does not read it refuses")


def main():
    decoder = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for kind in ("llama", "gemma"):
            check(decoder, kind, work / kind)
        check(decoder, "llama", work / "scaled", rope_scaling=LLAMA3)
        check(decoder, "llama", work / "parameters", rope_parameters={**LLAMA3, "rope_theta": 10000.0})
        for label, (kind, shape, said) in SAME.items():
            check(decoder, kind, work / "same", label + ", ", said, **shape)
        small_model.make("llama", work / "yarn", rope_scaling={"type": "yarn", "factor": 4.0})
        found = run(decoder, work / "yarn", "--tokens", "1")
        assert found.returncode == 2 and 'rope_type is "yarn", expected default or llama3' in found.stderr, found
        whole = (work / "llama/model.safetensors").read_bytes()
        for content, words in ((b"", "too short"), (whole[:100], "its header is longer"), (whole[:-2], "outside of the file"),
                               (whole.replace(b"q_proj", b"x_proj", 1), "has no model.layers.0.self_attn.q_proj")):
            (work / "llama/model.safetensors").write_bytes(content)
            found = run(decoder, work / "llama", "--tokens", "1")
            assert found.returncode == 2 and words in found.stderr, (words, found)
        found = run(decoder, work / "gemma", "--tokens", "1,97")
        assert found.returncode == 2 and "token 97 is not one of the 97" in found.stderr, found
        for label in QUANTIZED:
            check_quantized(decoder, label, work)
        check_files(decoder, work / "files")
        check_refusals(decoder, work / "refused")


main()
