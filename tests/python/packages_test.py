#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln.packages and how kiln.torch finds a package's layer: bundled, out of a dev layer, spoilt, twice, not there.

    packages_test.py [unittest's options]     wants KILN_LIBRARY and KILN_REGISTRY

A program is a process of its own: what one has imported stays.
"""

import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

if importlib.util.find_spec("torch") is None:
    print("skipped: this Python has no torch")
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# As with a wheel that has no such package: what is not bundled comes out of the registry.
WITHOUT_TORCH = "import pathlib, kiln.packages; kiln.packages._BUNDLED = pathlib.Path('/nowhere'); "
UNBUNDLED = WITHOUT_TORCH + "import kiln.torch; "


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "cache"

    def run_program(self, program, **environment):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "KILN_CACHE": str(self.cache),
                                                "PYTHONDONTWRITEBYTECODE": "1"} | environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def modules(self):
        return sorted(self.cache.glob("unpacked/*/python/*.py"))

    def test_what_came_with_kiln_needs_no_registry(self):
        named = sorted(file.parent.name for file in SOURCE.glob("packages/*/package.json") if '"python"' in file.read_text())
        said = self.run_program(
            "import kiln.packages; print(*kiln.packages.bundled()); import torch, kiln.torch\n"
            "print(kiln.torch.GegluMlp.__module__, kiln.torch.SwigluMlp.__mro__[1] is kiln.torch.GegluMlp.__mro__[1])\n"
            "print(*[name for name in dir(kiln.torch) if not hasattr(kiln.torch, name)])",
            KILN_REGISTRY="/nowhere")
        self.assertEqual(said, [" ".join(named), "kiln.packages.geglu_mlp_1.geglu_mlp True", ""])
        self.assertFalse(self.cache.exists())

    def test_another_comes_out_of_its_dev_layer(self):
        program = UNBUNDLED + (
            "import pickle, torch; module = kiln.torch.package('rms-norm', 1)\n"
            "print(module.__name__, pathlib.Path(module.__file__).parts[-2:])\n"
            "norm = kiln.torch.RmsNorm(8, device='cpu'); x = torch.ones(3, 8)\n"
            "print(norm(x).sum().item(), pickle.loads(pickle.dumps(norm))(x).sum().item())")
        found = self.run_program(program)
        self.assertEqual(found[0], "kiln.packages.rms_norm_1.rms_norm ('python', 'rms_norm.py')")
        for number in found[1].split():
            self.assertAlmostEqual(float(number), 24, places=3)
        # Then no registry is asked, and no bytecode is kept.
        self.assertEqual(self.run_program(program, KILN_OFFLINE="1", PYTHONDONTWRITEBYTECODE=""), found)
        self.assertEqual(list(self.cache.glob("unpacked/**/__pycache__")), [])

    def test_the_lock_file_names_a_version(self):
        program = UNBUNDLED + "print(kiln.torch.RmsNorm.__module__)"
        lock = self.cache.parent / "kiln.lock"
        subprocess.run([pathlib.Path(os.environ["KILN_BIN"]) / "kiln", "add", "rms-norm@1", "--lock", lock,
                        "--cache", self.cache], check=True, capture_output=True)
        self.assertEqual(self.run_program(program, KILN_LOCK=str(lock)), ["kiln.packages.rms_norm_1.rms_norm"])
        said = self.run_program(UNBUNDLED + "print(hasattr(kiln.torch, 'RmsNorm'), hasattr(kiln.torch, 'rms_norm'))")
        self.assertEqual(said, ["False False"])

    def test_a_new_package_has_a_layer_and_nothing_else_is_edited(self):
        kiln, work = pathlib.Path(os.environ["KILN_BIN"]) / "kiln", self.cache.parent
        if not pathlib.Path(os.environ["KILN_TOOLCHAINS"]).is_dir():
            self.skipTest("no compilers")
        for words in (["new", "row-scale"], ["build", "./row-scale", "--only", "cpu-x86-64-v3", "--out", "kernels"],
                      ["registry", "publish", "--registry", "registry", "kernels/row-scale", "--allow-untested", "*"]):
            subprocess.run([kiln, *words], cwd=work, check=True, capture_output=True)
        said = self.run_program(
            "import copy, torch, kiln.torch; kiln.torch.package('row-scale', 1)\n"
            "layer = copy.deepcopy(kiln.torch.RowScale(scale=3.0)); x = torch.ones(2, 5, requires_grad=True)\n"
            "layer(x).sum().backward(); compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')\n"
            "print(layer(x).sum().item(), x.grad.sum().item(), compiled(x).sum().item())\n"
            "print(str(kiln.torch.replace(torch.nn.Linear(2, 2))))",
            KILN_REGISTRY=str(work / "registry"))
        self.assertEqual(said, ["30.0 30.0 30.0", "kiln.torch.replace: 0 swapped, 0 kept"])

    def test_the_stub_has_the_tensors_in_package_jsons_order(self):
        kiln = pathlib.Path(os.environ["KILN_BIN"]) / "kiln"
        subprocess.run([kiln, "install", "--dev", "geglu-mlp@1", "--cache", self.cache], check=True, capture_output=True)
        (stub,) = self.cache.glob("unpacked/*/python/geglu_mlp_ops.pyi")
        classes = {node.name: node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)}
        for op in json.loads((SOURCE / "packages/geglu-mlp/package.json").read_text())["ops"]:
            name = "".join(word.capitalize() for word in op["name"].split("_"))
            call = next(node for node in classes[name].body if isinstance(node, ast.FunctionDef)).args
            self.assertEqual([a.arg for a in call.args], ["self", *(tensor["name"] for tensor in op["tensors"])])
            self.assertEqual([a.arg for a in call.kwonlyargs],
                             [*(a["name"] for a in op["attributes"]), "stream", "workspace"])

    def test_spoilt_files_are_not_imported(self):
        load = WITHOUT_TORCH + ("\ntry: kiln.packages.load('rms-norm', 1)\n"
                                "except kiln.Error as error: print(type(error).__name__, hasattr(__builtins__, 'ran'))\n")
        self.assertEqual(self.run_program(load), [])
        (file,) = self.modules()
        good = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(b"import builtins; builtins.ran = True\n" + good)
        self.assertEqual(self.run_program(load), ["IntegrityError False"])
        # Exchanged after the library has hashed it: the bytes that are compiled are hashed once more.
        file.write_bytes(good)
        exchange = ("kiln.packages._read = lambda file: kiln.packages._Source(str(file), b'import builtins; "
                    "builtins.ran = True')\n")
        self.assertEqual(self.run_program(load.replace("\ntry:", "\n" + exchange + "try:")), ["IntegrityError False"])

    def test_a_version_that_is_not_there_and_one_that_differs(self):
        said = self.run_program(WITHOUT_TORCH + (
            "\nfor name, version in (('rms-norm', 99), ('no-such', 1)):\n"
            "    try: kiln.packages.load(name, version)\n"
            "    except kiln.NotFound as error: print(str(error).splitlines()[0][:40])\n"
            "kiln.packages.load('rms-norm', 1)\n"
            "known = kiln.packages._known['rms-norm', 1]\n"
            "known.sources['rms_norm'] = kiln.packages._Source('elsewhere', b'')\n"
            "try: kiln.packages.load('rms-norm', 1, refresh=True)\n"
            "except kiln.UsageError as error: print(str(error)[:69])\n"
            "try: kiln.packages.of('os.path')\n"
            "except kiln.UsageError as error: print(str(error)[:47])"))
        self.assertEqual(len(said), 4, said)
        self.assertEqual(said[2:], ["load rms-norm@1: this process has other modules of that version, from",
                                    "kiln.packages: os.path belongs to no package; l"])


if __name__ == "__main__":
    unittest.main()
