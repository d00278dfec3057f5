#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""package.schema.json says what the parser of package.json says: of each package here, and of each of them with one
key taken away, one added, or one value exchanged for another.

    package_schema_test.py KILN_BUILD_BINARY
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import jsonschema

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from sampling import every_nth  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = json.loads((SOURCE / "build-matrix/package.schema.json").read_text())
# All keys that there are stand in here; what is not structure (sources, targets) is valid.
WHOLE = {
    "$schema": "package.schema.json",
    "name": "whole", "version": 2, "license": "MIT", "summary": "y = x", "min_loader": "0.1.0",
    "cpu": {"host": ["a.cpp"], "levels": ["x86-64-v3"]},
    "cuda": {"host": ["b.cpp"], "device": [{"source": "c.cu", "targets": ["sm_90"]}],
             "headers": ["cccl"],
             "needs": ["libx.so.1", {"soname": "liby.so.{cuda_major}", "targets": ["sm_90"]}],
             "workspace_by_address": ["run"]},
    "python": ["python/whole.py"],
    "check": ["tests/whole_check.cpp"],
    "binaries": [{"file": "lib/whole.so", "abi": "tvm-ffi", "cpu": "x86-64-v2", "glibc": "2.28",
                  "needs": ["libstdc++.so.6"], "carries": ["lib/libtvm_ffi.so"],
                  "functions": [{"op": "run", "name": "Run", "arguments": ["y", "x", "b", "s", "mode", "count", "factor"]}]},
                 {"file": "lib/gpu.so", "abi": "kiln", "cpu": "armv8-a",
                  "cuda": {"toolkit": "12.9", "targets": ["sm_90a", "compute_80"]}},
                 {"file": "lib/gpu.cubin", "abi": "cuda", "cpu": "x86-64", "cuda": {"toolkit": "12.8", "targets": ["sm_90"]},
                  "launches": [{"op": "run", "kernel": "run_f32", "grid": ["N", 1], "threads": 64, "shared": 16,
                                "when": "N > 1 and mode == 'a'", "dtypes": {"x": ["float32"]},
                                "arguments": ["x", "b", "s", "y", {"value": "N", "type": "int64"}, "count", "factor"]}]}],
    "ops": [{"name": "run", "doc": "y = x",
             "tensors": [{"name": "x", "dtype": ["float32"], "shape": ["N", 4], "layout": "rows"},
                         {"name": "b", "dtype": "float32", "shape": ["N"], "optional": True},
                         {"name": "s", "dtype": "float32", "shape": ["N"], "inout": True},
                         {"name": "y", "dtype": "x", "shape": ["N"], "output": True}],
             "attributes": [{"name": "mode", "type": "string", "values": ["a", "b"], "default": "a"},
                            {"name": "count", "type": "int", "default": 3},
                            {"name": "factor", "type": "float", "default": 0.5}]}]}
# The same of a package that says how its kernels are launched.
LAUNCHED = copy.deepcopy(WHOLE) | {"cuda": {
    "targets": ["sm_90"],
    "workspace": [{"op": "run", "name": "sums", "dtype": "float32", "count": "2 * N"}],
    "launches": [{
        "op": "run", "source": "c.py", "kernel": "kernel", "grid": ["cdiv(N, BLOCK)", 1], "when": "N > 0",
        "arguments": {"x": "x", "s": "s", "y": "y", "sums": "sums", "n": {"value": "N", "type": "int64"}, "factor": "factor",
                      "count": "count"},
        "constants": {"TYPE": {"dtype": "x"}, "HAS": {"present": "b"}, "MODE": {"attribute": "mode"}, "W": 1.5},
        "aligned": ["x"],
        "instances": [{"name": "small", "when": "N < 8", "constants": {"BLOCK": 8}, "warps": 2, "stages": 1,
                       "registers": 64, "targets": ["sm_90"]}, {"name": "large", "constants": {"BLOCK": 64}, "aligned": False, "descriptors": {"x": ["BLOCK", 16]}}],
        "descriptors": {"x": [16, 32], "s": {"block": [64, 16], "shape": ["N", 1]}}, "expects": "N > 1", "otherwise": "never"}]}}


def places(value, path=()):
    """Where something stands in a document, from the top."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def at(document, path):
    for key in path:
        document = document[key]
    return document


def changed(document, path, value):
    result = copy.deepcopy(document)
    at(result, path[:-1])[path[-1]] = value
    return result


def structures(document, below=()):
    """The document with one key less, or one too many: (what, document)."""
    for path in places(at(document, below), below):
        if isinstance(at(document, path), dict):
            yield f"{path} + unknown", changed(document, (*path, "unknown"), 1)
            for key in at(document, path):
                result = copy.deepcopy(document)
                del at(result, path)[key]
                yield f"{path} - {key}", result


def values(document, below=()):
    for path in places(at(document, below), below):
        if not path:
            continue
        for value in (7, -1, 0.25, "", "Word", "two words", [], {}, True, None):
            if value != at(document, path):
                yield f"{path} = {value!r}", changed(document, path, value)


class PackageSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        cls.schema = jsonschema.Draft202012Validator(SCHEMA)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)

    def accepted(self, documents):
        """Of each document, whether the parser takes it, and what it says."""
        runs = []
        for number, document in enumerate(documents):
            name = document.get("name") if isinstance(document.get("name"), str) else None
            folder = self.work / str(number) / (name if name and "/" not in name else "whole")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "package.json").write_text(json.dumps(document))
            done = subprocess.run([KILN_BUILD, "--list", folder], capture_output=True, text=True, check=False)
            # Past the parser it may go wrong as well: what the matrix does not build.
            runs.append((done.returncode == 0 or "package.json:" not in done.stderr, done.stderr))
        return runs

    def test_every_package_here_holds(self):
        files = [*SOURCE.glob("packages/*/package.json"), *SOURCE.glob("tests/build/**/package.json")]
        self.assertGreaterEqual(len(files), 4)
        for document in [WHOLE, LAUNCHED, *(json.loads(each.read_text()) for each in files)]:
            self.schema.validate(document)
        self.assertEqual([said for good, said in self.accepted([WHOLE, LAUNCHED]) if not good], [])

    def test_both_know_the_same_keys(self):
        cases = [*structures(WHOLE), *structures(LAUNCHED, ("cuda",))]
        self.assertGreater(len(cases), 50)
        for (what, document), (good, said) in zip(cases, self.accepted([each for _, each in cases])):
            if any(rule in said for rule in ("no tensor has", "names sums", "names BLOCK", "not one of the arguments",
                                             "nor an attribute of", "not an argument that is", "not a constant of", "none is given", "is never launched")):
                continue  # a rule between keys
            with self.subTest(what):
                self.assertEqual(self.schema.is_valid(document), good, said)

    def test_what_the_parser_takes_the_schema_takes(self):
        # Of the ten values at each place at least one, also of half a share.
        cases = every_nth([*values(WHOLE), *values(LAUNCHED, ("cuda",))], 3)
        refused = 0
        for (what, document), (good, said) in zip(cases, self.accepted([each for _, each in cases])):
            with self.subTest(what):
                if good:
                    self.assertTrue(self.schema.is_valid(document), f"the parser takes {what}")
                refused += not self.schema.is_valid(document)
        self.assertGreater(refused, len(cases) // 2)


if __name__ == "__main__":
    KILN_BUILD = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
