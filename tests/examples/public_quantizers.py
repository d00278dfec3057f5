#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""public_quantizers.py DECODER --commit HASH --out FILE [--only gptqmodel,…]: docs/examples/decoder on folders that public
quantisers wrote, beside the model that the tool gives of each: its logits along the decoder's tokens.

Run by hand, as packages/quantized-mlp/tests/public_tools.py, whose tools and small Llama these are, and which says what they
want. Wants KILN_REGISTRY.
"""
import argparse
import datetime
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "packages/quantized-mlp/tests"))
import public_tools as tools  # noqa: E402

PROMPT, FRESH = [5, 17, 88, 3, 42, 42, 0], 32


def compared(decoder, folder, model):
    found = subprocess.run([decoder, folder, "--device", tools.DEVICE, "--tokens", ",".join(map(str, PROMPT)),
                            "--new", str(FRESH), "--logits", folder / "logits"], capture_output=True, text=True)
    if found.returncode != 0:
        return {"refused": found.stderr.strip().rpartition("/")[2]}
    tokens = [int(word) for word in found.stdout.split(",")]
    logits = np.fromfile(folder / "logits", np.float32).reshape(FRESH, -1)
    with torch.no_grad():
        own = model(input_ids=torch.tensor([PROMPT + tokens[:-1]], device=tools.DEVICE)).logits[0, len(PROMPT) - 1:]
    own = own.float().cpu().numpy()
    return {"logits": float(f"{np.linalg.norm(logits - own) / np.linalg.norm(own):.2g}"),
            "same_largest": [int((logits.argmax(1) == own.argmax(1)).sum()), FRESH]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("decoder", type=pathlib.Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="llmcompressor,gptqmodel")
    arguments = parser.parse_args()
    decoder, out, names = arguments.decoder.resolve(), arguments.out.resolve(), arguments.only.split(",")
    result = {"model": f"Llama of 2 layers, {tools.WIDTH} x {tools.HIDDEN}, random weights, bfloat16", "group": tools.GROUP,
              "device": tools.DEVICE, "date": datetime.date.today().isoformat(), "commit": arguments.commit,
              "versions": {name: importlib.metadata.version(name)
                           for name in ("torch", "transformers", "compressed-tensors", *names)}, "results": []}
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        source = tools.saved(work / "plain")
        for tool in names:
            for number, (scheme, made) in enumerate(tools.TOOLS[tool].items()):
                folder = work / f"{tool}-{number}"
                try:
                    model = made(source, folder)
                except Exception as error:  # a tool that does not run on this device
                    facts = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
                else:
                    facts = compared(decoder, folder, model)
                result["results"].append({"tool": tool, "scheme": scheme} | facts)
                print(json.dumps(result["results"][-1]), flush=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
