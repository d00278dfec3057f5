#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kiln pack`: libraries that exist become variants that are called as any other, from C++ and from Python, and what is
stated of them and does not hold is refused by name. Wants KILN_BIN and KILN_TOOLCHAINS, and for tvm-ffi's C++ headers a
Python that has them.

    binaries_test.py COMPILER PYTHON LIBKILN LIBRARY…
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent / "binaries"
BIN = pathlib.Path(os.environ["KILN_BIN"])
TOOLCHAINS = pathlib.Path(os.environ["KILN_TOOLCHAINS"])
BUILD = 15

X = {"name": "x", "dtype": ["float32"], "shape": ["N"]}
Y = {"name": "y", "dtype": ["float32"], "shape": ["N"], "output": True}
TWICE = {"name": "twice", "doc": "y = 2 x", "tensors": [X, Y]}
ROWS = {"name": "add", "doc": "y = x + bias + amount * times",
        "tensors": [{**X, "shape": ["M", "N"], "layout": "rows"},
                    {"name": "bias", "dtype": ["float32"], "shape": ["N"], "optional": True},
                    {**Y, "shape": ["M", "N"], "layout": "rows"}],
        "attributes": [{"name": "amount", "type": "float", "default": 1.0},
                       {"name": "mode", "type": "string", "default": "plain",
                        "values": ["plain", "refuse", "break", "missing"]},
                       {"name": "times", "type": "int", "default": 1}]}
TEXT = {"name": "text", "doc": "Not what an op of Kiln does.", "tensors": [X, Y]}

CALL_FROM_PYTHON = """
import sys
for word in sys.argv[1:]:
    __import__(word)
import kiln
import numpy as np

kernel = kiln.get_kernel("add-rows", version=1, device="cpu")
x = np.arange(12, dtype=np.float32).reshape(3, 4)
bias = np.float32([0, 10, 20, 30])
def same(y, expected):
    np.testing.assert_array_equal(y, expected)
same(kernel.add(x), x + 1)
same(kernel.add(x, bias, amount=2.5, times=4), x + bias + 10)
same(kernel.add(x[:, :3], bias[:3]), x[:, :3] + bias[:3] + 1)  # rows with a gap
for mode, kind, text in (("refuse", kiln.InvalidCall, "add-rows@1 add: ValueError: amount 1 is refused"),
                         ("break", kiln.DeviceError, "add-rows@1 add: RuntimeError: broken on purpose"),
                         ("missing", kiln.InvalidCall, "add-rows@1 add: NotImplementedError: not written yet")):
    try:
        kernel.add(x, mode=mode)
        raise SystemExit(f"{mode} was not refused")
    except kind as error:
        assert str(error) == text, error
try:
    kernel.text(bias)
    raise SystemExit("an object was taken")
except kiln.InvalidCall as error:
    assert "returned an object of tvm-ffi" in str(error), error
import tvm_ffi  # another one of it in the process, later
same(kernel.add(x), x + 1)
print("called")
"""


class Binaries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()  # one for all: the compiler makes its start-up objects once in it
        cls.addClassCleanup(folder.cleanup)
        cls.kernels = pathlib.Path(folder.name) / "kernels"

    def setUp(self):
        if not TOOLCHAINS.is_dir():
            self.skipTest(f"no compilers at {TOOLCHAINS}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.environment = {"HOME": folder.name, "PATH": os.environ["PATH"], "KILN_TOOLCHAINS": str(TOOLCHAINS)}

    def run_command(self, *words, code=0):
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=self.work, env=self.environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def package(self, name, binary, *ops):
        folder = self.work / name
        (folder / "lib").mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(json.dumps({
            "name": name, "version": 1, "license": "Apache-2.0", "summary": "For the test", "min_loader": "0.1.0",
            "binaries": [{"cpu": "x86-64", "glibc": "2.34", **binary}], "ops": list(ops)}))
        return folder

    def compile(self, source, library, *flags):
        library.parent.mkdir(parents=True, exist_ok=True)
        self.run_command(*COMPILER_OF_C, "-shared", "-fPIC", "-O1", HERE / source, "-o", library, "-I",
                         SOURCE / "loader/include", "-I", DLPACK, *flags)
        return library

    def pack(self, folder, code=0):
        """Packs and, where that is right, takes the environment in which programs load it."""
        said = self.run_command(BIN / "kiln", "pack", f"./{folder.name}", "--out", self.kernels, "--try", code=code)
        for line in said.splitlines():
            if line.startswith("  export "):
                self.environment.update(word.split("=", 1) for word in shlex.split(line)[1:])
        return said

    def call(self, *words, code=0):
        program = self.work / "call"
        if not program.exists():
            self.run_command(COMPILER, "-std=c++20", "-I", SOURCE / "loader/include", HERE / "call.cpp", "-o", program,
                             *LIBRARIES, "-lcurl", "-lssl", "-lcrypto", "-larchive", "-ldl", "-pthread")
        return self.run_command(program, *words, code=code)

    def test_a_library_of_kilns_abi_is_packed_as_it_is(self):
        folder = self.package("twice", {"file": "lib/table.so", "abi": "kiln"}, TWICE)
        # Pointers by symbols, by relative relocations, and by packed ones, where this linker makes them.
        for flags in ((), ("-Wl,-Bsymbolic",), ("-Wl,-Bsymbolic", "-Wl,-z,pack-relative-relocs")):
            if not self.has_flags(flags):
                continue
            library = self.compile("table.c", folder / "lib/table.so", *flags)
            self.package("twice", {"file": "lib/table.so", "abi": "kiln", "glibc": "2.36"}, TWICE)
            self.pack(folder)
            packed = self.kernels / "twice/cpu-x86-64"
            self.assertEqual((packed / "libtwice.so").read_bytes(), library.read_bytes())
            self.assertEqual(json.loads((packed / "config.json").read_text())["build_id"], "by-hand-7")
            self.assertEqual(self.call("twice", "twice", 4), "0 2 4 6 \n")
        self.assertIn("up to date", self.pack(folder))

    def has_flags(self, flags):
        said = subprocess.run([*COMPILER_OF_C, "/dev/null", "-shared", *flags, "-o", "/dev/null"], capture_output=True,
                              text=True)
        return said.returncode == 0 and "ignored" not in said.stderr

    def test_a_function_that_needs_nothing_of_tvm_ffi(self):
        folder = self.package("twice", {"file": "lib/plain.so", "abi": "tvm-ffi"}, TWICE)
        self.compile("plain.c", folder / "lib/plain.so")
        self.pack(folder)
        self.assertEqual(self.call("twice", "twice", 4), "0 2 4 6 \n")
        self.assertIn("twice@1 twice: __tvm_ffi_twice returned -1 and raised no error that says why",
                      self.call("twice", "twice", 13, code=14))
        archive = (self.kernels / "twice/cpu-x86-64/layer.tar.zst").read_bytes()
        self.run_command("rm", "-r", self.kernels / "twice", self.kernels / ".work/twice")
        self.pack(folder)
        self.assertEqual((self.kernels / "twice/cpu-x86-64/layer.tar.zst").read_bytes(), archive)
        # Other bytes are another build.
        self.compile("plain.c", folder / "lib/plain.so", "-O0")
        self.pack(folder)
        self.assertNotEqual((self.kernels / "twice/cpu-x86-64/layer.tar.zst").read_bytes(), archive)

    def test_a_library_of_tvm_ffis_headers(self):
        found = subprocess.run([PYTHON, "-c", "import numpy, tvm_ffi; print(tvm_ffi.__path__[0])"], capture_output=True,
                               text=True)
        if found.returncode != 0:
            self.skipTest(f"{PYTHON} has no tvm_ffi")
        home = pathlib.Path(found.stdout.strip())
        folder = self.package(
            "add-rows",
            {"file": "lib/add_one.so", "abi": "tvm-ffi", "needs": ["libstdc++.so.6", "libgcc_s.so.1"],
             "carries": ["lib/libtvm_ffi.so"],
             "functions": [{"op": "add", "name": "AddRows", "arguments": ["y", "x", "bias", "amount", "times", "mode"]}]},
            ROWS, TEXT)
        self.run_command(COMPILER, "-shared", "-fPIC", "-std=c++17", HERE / "add_one.cc", "-I", home / "include", "-I",
                         home / "3rdparty/dlpack/include", "-L", home / "lib", "-ltvm_ffi", "-o", folder / "lib/add_one.so")
        (folder / "lib/libtvm_ffi.so").write_bytes((home / "lib/libtvm_ffi.so").read_bytes())
        self.pack(folder)
        self.environment |= {"PYTHONPATH": str(SOURCE / "loader/python"), "KILN_LIBRARY": LIBKILN}
        script = self.work / "script.py"
        script.write_text(CALL_FROM_PYTHON)
        self.assertIn("called", self.run_command(PYTHON, script))
        self.assertIn("called", self.run_command(PYTHON, script, "tvm_ffi"))  # which has one of its own
        # The resolver asks for what it needs of the machine.
        stated = json.loads((folder / "package.json").read_text())
        stated["binaries"][0]["needs"].append("libnowhere.so.9")
        (folder / "package.json").write_text(json.dumps(stated))
        self.pack(folder)
        self.assertIn("needs libnowhere.so.9, which the dynamic linker does not find",
                      self.run_command(BIN / "kiln", "resolve", "add-rows@1", "--device", "cpu", code=3))

    def test_what_does_not_hold_is_refused(self):
        good = {"file": "lib/plain.so", "abi": "tvm-ffi"}
        table = {"file": "lib/plain.so", "abi": "kiln"}
        other = {**TWICE, "name": "thrice"}
        rows = [  # what is stated, its op, the source, its flags, what is said
            (good, TWICE, "plain.c", ["-DFUNCTION=__tvm_ffi_twice_cpu"],
             "does not export __tvm_ffi_twice, which the op twice calls; the functions that it exports: twice_cpu"),
            ({**good, "cpu": "armv8-a"}, TWICE, "plain.c", [], "is for x86_64, expected aarch64"),
            ({**good, "glibc": "2.17"}, TWICE, "plain.c", ["-DFAULT_GLIBC"],
             "needs GLIBC_2.34 (symbol pthread_create), allowed is 2.17"),
            (good, TWICE, "plain.c", ["-Wl,-rpath,$ORIGIN/../lib"], "has the run path $ORIGIN/../lib, expected none"),
            (good, TWICE, "plain.c", ["-Wl,-z,execstack"], "asks for an executable stack"),
            (good, TWICE, "plain.c", ["-DFAULT_TEXT", "-Wl,-z,notext"], "has text relocations"),
            (good, TWICE, "plain.c", ["-DFAULT_SYMBOL"],
             "needs the symbol elsewhere, which none of its libraries provides"),
            (good, TWICE, "plain.c", ["-Wl,--no-as-needed", "-Llib", "-l:libcudart.so.12"],
             'links libcudart.so.12; name it in "needs", so that the resolver looks for it, or bring its file along in '
             '"carries"'),
            (good, TWICE, "plain.c", ["-Wl,-z,x86-64-v3"],
             "is for x86-64-v3, by its GNU property note; stated is x86-64"),
            (table, TWICE, "plain.c", [], "does not export kiln_package_v1"),
            (table, TWICE, "table.c", ['-DNAME="thrice"'], 'its table has the name "thrice", stated is "twice"'),
            (table, other, "table.c", [], 'its table has no op thrice, which is stated, but "twice"'),
            (table, TWICE, "table.c", ['-DEXTENT="M"'],
             "its op twice has another signature than package.json: twice.twice(x: float32 [N], y!: float32 [N])"),
            (table, TWICE, "table.c", ["-DFAULT_CONSTANT"], "has no constant kiln_package of ABI 1 in its data"),
            ({**table, "cuda": {"toolkit": "12.9", "targets": ["sm_90"]}}, TWICE, "table.c", [],
             "its table has the device type 1, stated is 2"),
        ]
        self.compile("plain.c", self.work / "lib/libcudart.so.12", "-Wl,-soname,libcudart.so.12")
        for stated, op, source, flags, says in rows:
            with self.subTest(says):
                folder = self.package("twice", stated, op)
                self.compile(source, folder / "lib/plain.so", *flags)
                self.assertIn(f"pack twice lib/plain.so: {says}", self.pack(folder, code=BUILD))
        library = self.compile("plain.c", self.package("twice", good, TWICE) / "lib/plain.so")
        whole = library.read_bytes()
        for bytes_, says in ((whole[:len(whole) // 2], "lies outside of the file's"), (b"", "is not an ELF file"),
                             (whole[:4] + b"\1" + whole[5:], "is not a 64-bit little-endian ELF file")):
            library.write_bytes(bytes_)
            self.assertIn(says, self.pack(self.work / "twice", code=BUILD))
        library.unlink()
        self.assertIn("lib/plain.so", self.pack(self.work / "twice", code=BUILD))

    def test_a_package_without_binaries(self):
        self.run_command(BIN / "kiln", "new", "row-scale", "--cpu")
        self.assertIn('has no "binaries"', self.pack(self.work / "row-scale", code=BUILD))


if __name__ == "__main__":
    COMPILER, PYTHON, LIBKILN, DLPACK, *LIBRARIES = sys.argv[1:]
    COMPILER_OF_C = [COMPILER, "-x", "c"]
    unittest.main(argv=sys.argv[:1])
