#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kiln new` to a kernel that was called: the folder, its build for the CPU, a registry, and the numeric check that
came with it, compiled against the loader of this build and run. Wants KILN_BIN and KILN_TOOLCHAINS.

    new_test.py BUILD_FOLDER
"""

import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
TOOLCHAINS = pathlib.Path(os.environ["KILN_TOOLCHAINS"])
SOURCES = pathlib.Path(__file__).resolve().parents[2]


class New(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.environment = {"HOME": folder.name, "PATH": f"{BIN}:{os.environ['PATH']}", "KILN_CACHE": folder.name + "/cache",
                            "KILN_TOOLCHAINS": str(TOOLCHAINS), "KILN_UNSIGNED": "/",
                            "KILN_REGISTRY": folder.name + "/registry"}

    def run_command(self, *words, code=0):
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=self.work, env=self.environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def take_environment(self, said):
        """What `kiln build --try` says to export."""
        line = next(line for line in said.splitlines() if line.startswith("  export "))
        self.environment.update(word.split("=", 1) for word in shlex.split(line)[1:])

    def test_from_nothing_to_a_called_kernel(self):
        if not TOOLCHAINS.is_dir():
            self.skipTest(f"no compilers at {TOOLCHAINS}")
        said = self.run_command(BIN / "kiln", "new", "row-scale/")  # as a shell completes it
        self.assertIn("row-scale/csrc/smxx_forward.cu\n", said)
        self.assertIn("kiln build ./row-scale --here --try", said)
        build = [BIN / "kiln", "build", "./row-scale", "--out", "build/kernels", "--only", "cpu-x86-64-v3", "--try"]
        self.take_environment(self.run_command(*build))
        self.assertIn("row-scale@1  out = scale x", self.run_command(BIN / "kiln", "search"))
        # What the package's README tells to do next, after that build, which is of one variant here.
        try_it, *lines = re.search("```sh\n(.*?)```", (self.work / "row-scale/README.md").read_text(), re.S)[1].splitlines()
        self.assertRegex(try_it, r"^kiln build \./row-scale --here --try --out build/kernels +# ")
        self.run_command("cmake", "--install", BUILD, "--prefix", self.work / "prefix")
        self.environment |= {"CMAKE_PREFIX_PATH": str(self.work / "prefix"), "CXXFLAGS": "-Wall -Wextra -Werror"}
        told = {name: self.environment.pop(name) for name in ("KILN_REGISTRY", "KILN_UNSIGNED", "KILN_CACHE")}
        said = self.run_command("bash", "-euo", "pipefail", "-c", "\n".join(lines))
        self.environment |= told
        self.assertIn("row-scale cpu-x86-64-v3: agrees with double precision in 10 cases", said)
        self.check = [self.work / "build/check/row_scale_check", "row-scale/record"]
        record = json.loads((self.work / "row-scale/record/cpu-x86-64-v3.json").read_text())
        self.assertEqual((record["schema"], record["results"][0]["cases"], record["results"][0]["failed"]),
                         ("kiln.record/1", 10, 0))
        # The record speaks for these bytes: a publisher takes it in the place of --allow-untested.
        self.run_command(BIN / "kiln", "registry", "publish", "build/kernels/row-scale", "--registry", "registry", "--records",
                         "row-scale/record/cpu-x86-64-v3.json")

        # The header of the ops follows package.json.
        header = self.work / "row-scale/include/kiln/ops/row_scale.hpp"
        made = header.read_text()
        self.assertIn("double scale = 2.0;", made)
        schema = self.work / "row-scale/package.json"
        schema.write_text(schema.read_text().replace('"default": 2.0', '"default": 4.0'))
        self.assertIn("wrote ", self.run_command(*build))
        self.assertIn("double scale = 4.0;", header.read_text())
        schema.write_text(schema.read_text().replace('"default": 4.0', '"default": 2.0'))
        self.run_command(*build)
        self.assertEqual(header.read_text(), made)

        # What was edited is what runs, under the same version and in the same environment.
        source = self.work / "row-scale/csrc/cpu.cpp"
        good = source.read_text()
        source.write_text(good.replace("out[i] = scale * x[i]", "out[i] = scale + x[i]"))
        self.run_command(*build)
        said = self.run_command(*self.check, code=1)
        self.assertIn("row-scale cpu-x86-64-v3: DIFFERS from double precision", said)
        self.assertIn("FAILED float32: error", said)
        self.assertIn("cases failed", self.run_command(
            BIN / "kiln", "registry", "publish", "build/kernels/row-scale", "--registry", "other", "--records",
            "row-scale/record/cpu-x86-64-v3.json", code=6))
        source.write_text(good)
        self.run_command(*build)
        self.run_command(*self.check)
        # Of CPU time: what else the machine does counts for nothing.
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertLess(used.ru_utime + used.ru_stime, 120)

    def test_each_kind_is_a_package(self):
        for kinds, sections in ((["--cpu"], {"cpu"}), (["--cuda"], {"cuda"}), (["--cpu", "--cuda"], {"cpu", "cuda"}),
                                (["--triton"], {"cuda"}), (["--cpu", "--triton"], {"cpu", "cuda"})):
            name = "x" + "".join(kinds).replace("--", "-")
            self.run_command(BIN / "kiln", "new", name, *kinds)
            schema = json.loads((self.work / name / "package.json").read_text())
            self.assertEqual(set(schema) & {"cpu", "cuda"}, sections)
            self.run_command(BIN / "kiln-build", f"./{name}", "--list")
            self.assertTrue((self.work / name / "tests/check.cpp").is_file())
            for section in sections:
                sources = schema[section].get("host", [])
                for each in schema[section].get("device", []) + schema[section].get("launches", []):
                    sources.append(each["source"])
                self.assertTrue(sources)
                for source in sources:
                    self.assertTrue((self.work / name / source).is_file(), source)
            for file in (self.work / name).rglob("*"):
                self.assertNotRegex(file.read_text() if file.is_file() else "", "@[A-Za-z]+@")

    def test_a_name_of_any_length_or_of_python(self):
        for name in ("a" * 28, "b" * 32, "json", "copy"):
            for kind, sources in (("--cuda", {"gpu.cpp", "smxx_forward.cu"}), ("--triton", {"kernels.py"})):
                with self.subTest(name, kind=kind):
                    self.run_command(BIN / "kiln", "new", name, kind)
                    self.run_command(BIN / "kiln-build", f"./{name}", "--list")
                    self.assertEqual({each.name for each in (self.work / name / "csrc").iterdir()}, sources)
                shutil.rmtree(self.work / name)

    def test_a_name_that_the_build_might_have_for_itself(self):
        if not TOOLCHAINS.is_dir():
            self.skipTest(f"no compilers at {TOOLCHAINS}")
        names = ("lock", "running", "tools")
        for name in names:
            self.run_command(BIN / "kiln", "new", name, "--cpu")
        for _ in range(2):
            self.run_command(BIN / "kiln", "build", *(f"./{name}" for name in names), "--out", "out", "--only", "cpu-x86-64-v3",
                             "--no-check")
        for name in names:
            self.assertTrue((self.work / "out" / name / "cpu-x86-64-v3/descriptor.json").is_file())

    def test_a_name_that_a_namespace_of_cpp_has(self):
        for name in ("std", "kiln"):
            self.run_command(BIN / "kiln", "new", name, "--cpu")
            self.run_command(os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Werror", f"-I{name}/include",
                             f"-I{SOURCES}/loader/include", f"{name}/tests/check.cpp")

    def test_it_is_named_by_its_path(self):
        self.run_command(BIN / "kiln", "new", "row-scale", "--cpu")
        self.assertIn("there is no ./nothing/package.json; name the folder of a package",
                      self.run_command(BIN / "kiln", "build", "./nothing", code=4))
        self.work /= "row-scale"
        for folder in (".", "./", "../row-scale"):
            self.assertIn("row-scale@1: ", self.run_command(BIN / "kiln", "build", folder, "--list"))
        self.assertIn("name a folder, as ./row-scale", self.run_command(BIN / "kiln", "build", code=4))

    def test_its_help_has_its_own_examples(self):
        for verb in ("new", "pack"):
            examples = self.run_command(BIN / "kiln", verb, "--help").split("Examples:\n")[1]
            self.assertRegex(examples, rf"^(  kiln build {verb} .*\n)+$")

    def test_the_next_command_can_be_pasted(self):
        (self.work / "my kernels").mkdir()
        said = self.run_command(BIN / "kiln", "new", "my kernels/row-scale", "--cpu")
        [_, command] = said.rsplit("the first one:\n  ", 1)
        self.run_command("sh", "-c", command.replace(" --here --try", " --list"))

    def test_what_was_cut_is_not_there(self):
        def short_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))  # SIGXFSZ ends it within a file

        cut = subprocess.run([BIN / "kiln-build", "new", "row-scale"], capture_output=True, text=True, cwd=self.work,
                             preexec_fn=short_files)
        self.assertNotEqual(cut.returncode, 0)
        self.assertFalse((self.work / "row-scale").exists())
        self.run_command(BIN / "kiln-build", "new", "row-scale")
        # A draft that was left behind is no package.
        self.run_command(BIN / "kiln-build", "--packages", ".", "--list")

    def test_what_cannot_be_one_is_refused(self):
        for name, code, said in (("Row", 2, "not a package name"), ("2x", 2, "is not snake_case"), ("for", 2, "keeps for itself"),
                                 ("none", 2, "its layer would be the class None, which Python keeps for itself"),
                                 ("a" * 33, 2, "has more than 32 characters. Take a name that begins with a letter, has at most 32")):
            self.assertIn(said, self.run_command(BIN / "kiln", "new", name, code=code))
            self.assertFalse((self.work / name).exists())
        self.assertIn("ask for one of them", self.run_command(BIN / "kiln", "new", "x", "--cuda", "--triton", code=2))
        (self.work / "taken").mkdir()
        self.assertIn("is there already", self.run_command(BIN / "kiln", "new", "taken", code=16))


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv[1])
    unittest.main(argv=sys.argv[:1])
