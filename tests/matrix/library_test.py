#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sm_100 variants of geglu-mlp need cuBLASLt, each the one of its toolkit's major version: on a machine
without it the resolver says so and takes the PTX. No other variant needs a library.

Wants KILN_BIN and KILN_REGISTRY. The machines are facts files: nothing here depends on this one's libraries.
"""

import json
import os
import subprocess
import tempfile

CUBLASLT = {"cu12.9-sm_100-x86_64": "libcublasLt.so.12", "cu13.5-sm_100-x86_64": "libcublasLt.so.13"}


def resolve(capability, libraries):
    host = {"schema": "kiln.host/1", "arch": "x86_64", "cpu": "x86-64-v3", "glibc": "2.36", "driver": "13.0",
            "gpus": [{"ordinal": 0, "name": "", "capability": capability}], "overridden": [],
            "libraries": {soname: soname in libraries for soname in CUBLASLT.values()}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as facts:
        json.dump(host, facts)
        facts.flush()
        command = [os.path.join(os.environ["KILN_BIN"], "kiln"), "resolve", "geglu-mlp@1", "--host", facts.name,
                   "--json"]
        answer = json.loads(subprocess.run(command, check=True, text=True, capture_output=True).stdout)
    return answer["chosen"], {variant.pop("variant"): variant for variant in answer["candidates"]}


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


for libraries, expected in [(["libcublasLt.so.12", "libcublasLt.so.13"], "cu13.5-sm_100-x86_64"),
                            (["libcublasLt.so.13"], "cu13.5-sm_100-x86_64"),
                            (["libcublasLt.so.12"], "cu12.9-sm_100-x86_64"),
                            ([], "cu11.8-compute_80-x86_64")]:
    chosen, candidates = resolve("10.0", libraries)
    expect(chosen, expected)
    for variant, soname in CUBLASLT.items():
        expect(candidates[variant]["accepted"], soname in libraries)
        if soname not in libraries:
            expect(candidates[variant]["refusal"], "LIBRARY")
            expect(candidates[variant]["detail"], f"needs {soname}, which the dynamic linker does not find")

for capability, expected in [("8.0", "cu13.5-sm_80-x86_64"), ("9.0", "cu13.5-sm_90a-x86_64"),
                             ("12.0", "cu13.5-sm_120-x86_64")]:
    chosen, candidates = resolve(capability, [])
    expect(chosen, expected)
    expect([name for name, variant in candidates.items() if variant.get("refusal") == "LIBRARY"], [])
