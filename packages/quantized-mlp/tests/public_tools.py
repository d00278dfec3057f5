#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares kiln.torch.replace with what public quantisers make of a small Llama: the logits before and after it.

    public_tools.py --commit HASH --out bench/results/<cpu>-public-tools.json [--only gptqmodel,…]

Run by hand, as the tools are large: pip install llmcompressor gptqmodel torchao transformers. Wants KILN_LIBRARY and
KILN_REGISTRY; GPTQModel on two cores GPTQMODEL_CPU_WORKERS=2. Each scheme quantises the same random weights by the tool's
own program. llm-compressor and GPTQModel write files, which their loaders read again. A row has the relative L2 of the
logits, the share of tokens with the same largest one and the report's words, or why the tool did not run here.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import tempfile
import warnings

import torch
import transformers

import kiln.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, HIDDEN, WORDS, GROUP = 256, 512, 512, 64
SAMPLES, LENGTH = 32, 64


def ids_of(seed, rows=1):
    return torch.randint(0, WORDS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))


def saved(folder):
    """A random Llama in files, with a tokenizer, which tools load although they need none here."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2 * LENGTH, bos_token_id=0, eos_token_id=1, pad_token_id=2)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0", eos_token="w1", pad_token="w2",
                                         unk_token="w2").save_pretrained(folder)
    return str(folder)


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE).eval()


# ---- a tool's schemes: name -> what makes a model of the folder's ----


def llm_compressor(modifier, scheme, calibrated=False, **options):
    def made(source, folder):
        from llmcompressor import oneshot
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.quantization import QuantizationModifier

        kind = {"quantization": QuantizationModifier, "gptq": GPTQModifier}[modifier]
        recipe = kind(targets="Linear", scheme=scheme, ignore=["lm_head"], **options)
        rows = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in ids_of(5, SAMPLES)]
        more = {"dataset": torch.utils.data.DataLoader(rows), "num_calibration_samples": SAMPLES} if (
            calibrated or modifier == "gptq") else {}
        oneshot(model=loaded(source), tokenizer=source, recipe=recipe, output_dir=str(folder), max_seq_length=LENGTH, **more)
        return loaded(folder)

    return made


def gptq_model(backend="TORCH", **options):
    def made(source, folder):
        from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

        rows = [{"input_ids": ids.tolist(), "attention_mask": [1] * LENGTH} for ids in ids_of(5, SAMPLES)]
        model = GPTQModel.load(source, QuantizeConfig(bits=4, group_size=GROUP, **options), device=DEVICE)
        model.quantize(rows, batch_size=1)
        model.save(str(folder))
        return GPTQModel.load(str(folder), device=DEVICE, backend=BACKEND[backend], dtype=torch.bfloat16).model

    return made


def torchao(config, **options):
    def made(source, folder):
        from torchao import quantization
        from torchao.quantization.granularity import PerAxis, PerGroup

        groups = {"granularity": PerGroup(GROUP) if options.get("weight_dtype") == torch.int4 else PerAxis(0)}
        model = loaded(source)
        quantization.quantize_(model.model.layers, getattr(quantization, config)(
            **options, **(groups if config == "IntxWeightOnlyConfig" else {})))
        return model

    return made


TOOLS = {
    "llmcompressor": {
        "W4A16": llm_compressor("quantization", "W4A16"), "W8A16": llm_compressor("quantization", "W8A16"),
        "W4A16, GPTQ": llm_compressor("gptq", "W4A16"),
        "W4A16, GPTQ, actorder static": llm_compressor("gptq", "W4A16", actorder="static"),
        "FP8": llm_compressor("quantization", "FP8", True),
        "FP8_DYNAMIC": llm_compressor("quantization", "FP8_DYNAMIC"),
        "FP8_BLOCK": llm_compressor("quantization", "FP8_BLOCK"),
        "W8A8": llm_compressor("gptq", "W8A8"), "NVFP4A16": llm_compressor("quantization", "NVFP4A16")},
    "gptqmodel": {
        "GPTQ": gptq_model(desc_act=False, sym=True), "GPTQ, without symmetry": gptq_model(desc_act=False, sym=False),
        "GPTQ, the linears that it chooses": gptq_model("AUTO", desc_act=False),
        "GPTQ, act-order": gptq_model(desc_act=True), "AWQ": gptq_model(quant_method="awq", format="gemm")},
    "torchao": {
        "IntxWeightOnlyConfig, int4": torchao("IntxWeightOnlyConfig", weight_dtype=torch.int4),
        "IntxWeightOnlyConfig, int8": torchao("IntxWeightOnlyConfig", weight_dtype=torch.int8),
        "Int8WeightOnlyConfig": torchao("Int8WeightOnlyConfig"),
        "Float8WeightOnlyConfig": torchao("Float8WeightOnlyConfig"),
        "Int4WeightOnlyConfig": torchao("Int4WeightOnlyConfig", group_size=GROUP)},
}


def compared(model):
    ids = ids_of(9, 2).to(DEVICE)
    with torch.no_grad():
        own = model(input_ids=ids).logits.float()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kiln.torch.FallbackWarning)
            report = kiln.torch.replace(model)
        found = model(input_ids=ids).logits.float()
        with kiln.torch.disabled():
            again = model(input_ids=ids).logits.float()
    if not torch.equal(own, again):
        raise AssertionError("the tool's own forward has changed")
    if not report.swapped:
        return {"swapped": 0, "why": report.kept[0].what.split("; ", 1)[-1]}
    apart = float((found - own).norm() / own.norm())
    same = float((found.argmax(-1) == own.argmax(-1)).float().mean())
    return {"swapped": len(report.swapped), "what": report.swapped[0].what, "logits": float(f"{apart:.2g}"),
            "same_largest": round(same, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default=",".join(TOOLS))
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    lines = () if DEVICE == "cuda" else pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    processor = torch.cuda.get_device_name() if DEVICE == "cuda" else next(
        (line.split(": ")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    result = {"schema": "kiln.public-tools/1", "device": processor,
              "variant": kiln.get_kernel("quantized-mlp", 1, device=DEVICE).variant, "dtype": "bfloat16",
              "model": f"Llama of 2 layers, {WIDTH} x {HIDDEN}, random weights", "group": GROUP,
              "date": datetime.date.today().isoformat(), "commit": arguments.commit, "versions": {}, "results": []}
    for name in ("torch", "transformers", "compressed-tensors", *arguments.only.split(",")):
        try:
            result["versions"][name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            result["versions"][name] = None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # tools write logs where they are
        source = saved(pathlib.Path(folder) / "plain")
        for tool in arguments.only.split(","):
            for number, (scheme, made) in enumerate(TOOLS[tool].items()):
                try:
                    model = made(source, pathlib.Path(folder) / f"{tool}-{number}")
                except Exception as error:  # a tool that is not there, or does not run on this device
                    facts = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
                else:
                    facts = compared(model)
                result["results"].append({"tool": tool, "scheme": scheme} | facts)
                print(json.dumps(result["results"][-1]), flush=True)
                out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
