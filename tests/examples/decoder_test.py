#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""decoder_test.py DECODER: docs/examples/decoder on a small Llama and a small Gemma, on the CPU: the logits of a prompt
and of every token after it against fp64, tokens that are drawn, and what it says of files that are none."""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

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


def check(decoder, kind, folder):
    config, weights = small_model.make(kind, folder)
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
    print(f"decoder: {kind}: logits within {error:.4f} of fp64, in {FRESH} tokens after {len(PROMPT)}")


def main():
    decoder = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for kind in ("llama", "gemma"):
            check(decoder, kind, work / kind)
        whole = (work / "llama/model.safetensors").read_bytes()
        for content, words in ((b"", "too short"), (whole[:100], "its header is longer"), (whole[:-2], "outside of the file"),
                               (whole.replace(b"q_proj", b"x_proj", 1), "has no model.layers.0.self_attn.q_proj")):
            (work / "llama/model.safetensors").write_bytes(content)
            found = run(decoder, work / "llama", "--tokens", "1")
            assert found.returncode == 2 and words in found.stderr, (words, found)
        found = run(decoder, work / "gemma", "--tokens", "1,97")
        assert found.returncode == 2 and "token 97 is not one of the 97" in found.stderr, found


main()
