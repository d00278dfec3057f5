#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kiln pack`: libraries that exist become variants that are called as any other, from C++ and from Python, and what is
stated of them and does not hold is refused by name. Wants KILN_BIN and KILN_TOOLCHAINS, and for tvm-ffi's C++ headers a
Python that has them.

    binaries_test.py COMPILER PYTHON LIBKILN DLPACK FAKE_DRIVER LIBRARY…
"""

import json
import os
import pathlib
import re
import shlex
import struct
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

SCALE = {"name": "scale", "doc": "out = factor x",
         "tensors": [{**X, "dtype": ["float32", "float16"]}, {**Y, "name": "out", "dtype": "x"}],
         "attributes": [{"name": "factor", "type": "float", "default": 2.0}]}
SOURCE_OF_SCALE = """
template <class Element>
__device__ void scale(const Element* x, Element* out, int n, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = factor * x[i];
}
extern "C" __global__ void __launch_bounds__(256) scale_f32(const float* x, float* out, int n, float factor) { scale(x, out, n, factor); }
extern "C" __global__ void fill(long long n, double value, float* out) { if (n > 0) out[0] = value; }
"""


def fatbin(*entries):
    """What NVIDIA's fatbinary writes of (kind, SM, bytes): 1 is PTX, 2 a cubin."""
    body = b""
    for kind, sm, code in entries:
        code += b"\0" * (-len(code) % 8)
        options = struct.pack("<4I", 0x48, 0, 0, 0) if kind == 1 else b""
        body += struct.pack("<HHIQIIHHIIIQQQ", kind, 0x0101, 64 + len(options), len(code), 0, 64 if options else 0,
                            0, 9 if kind == 1 else 1, sm, 0, 0, 0x11, 0, 0) + options + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


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
        # The package of docs/PACK.md, as it stands there.
        written, image = re.findall(r"^```json\n(.*?)^```$", (SOURCE / "docs/PACK.md").read_text(), re.M | re.S)
        self.assertEqual(json.loads(image)["abi"], "cuda")
        example = self.work / "add-one"
        (example / "lib/x86_64").mkdir(parents=True)
        (example / "package.json").write_text(written)
        for name in ("add_one.so", "libtvm_ffi.so"):
            (example / "lib/x86_64" / name).write_bytes((folder / "lib" / name).read_bytes())
        self.pack(example)
        self.assertEqual(self.call("add-one", "add_one", 4), "1 2 3 4 \n")
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

    def images(self):
        """A cubin for sm_90, and PTX, of the pinned NVRTC."""
        (self.work / "scale.cu").write_text(SOURCE_OF_SCALE)
        made = []
        for toolkit, target in (("12.9", "sm_90"), ("11.8", "compute_80")):
            nvrtc = min((TOOLCHAINS / f"cuda-{toolkit}/lib").glob("libnvrtc.so*"))
            self.run_command(BIN / "kiln-build", "step", "nvrtc", "--nvrtc", nvrtc, "--source", "scale.cu", "--name",
                             "scale.cu", "--subject", "test", "--target", target, "--out", target, "--log", "log")
            made.append((self.work / target).read_bytes())
        return made

    def launch(self, library, count, bits):
        program = self.work / "launch"
        if not program.exists():
            self.run_command(COMPILER, "-std=c++20", "-I", SOURCE / "loader/include", "-I", DLPACK, HERE / "launch.cpp",
                             "-o", program, "-ldl")
        self.environment["LD_LIBRARY_PATH"] = FAKE_DRIVER
        said = self.run_command(program, library, count, bits)
        del self.environment["LD_LIBRARY_PATH"]
        return said

    def test_images_with_kernels(self):
        cubin, ptx = self.images()
        launch = {"op": "scale", "kernel": "scale_f32", "dtypes": {"x": ["float32"]}, "grid": ["cdiv(N, 256)"],
                  "threads": 256, "arguments": ["x", "out", "N", "factor"]}

        def pack(code, targets, toolkit="12.9", code_of=0, **changes):
            folder = self.package("scale", {"file": "lib/scale.bin", "abi": "cuda", "glibc": "2.17",
                                            "cuda": {"toolkit": toolkit, "targets": targets},
                                            "launches": [{**launch, **changes}]}, SCALE)
            (folder / "lib/scale.bin").write_bytes(code)
            return self.pack(folder, code=code_of)

        both = fatbin((2, 90, cubin), (1, 80, ptx + b"\0"))
        required = ptx.replace(b".maxntid 256, 1, 1", b".reqntid 256, 1, 1")
        head, rest = ptx.split(b".entry scale_f32(", 1)
        parameters, rest = rest.split(b")", 1)
        one_line = head + b".entry scale_f32 (" + b" ".join(parameters.split()) + b")" + rest
        for code in (required, one_line):
            self.assertNotEqual(code, ptx)
            pack(code, ["compute_80"])
        for code, targets in ((cubin, ["sm_90"]), (ptx, ["compute_80"]), (both, ["sm_90", "compute_80"])):
            pack(code, targets)
            packed = self.kernels / f"scale/cu12.9-{'.'.join(targets)}-x86_64"
            images = json.loads((packed / "inspect.json").read_text())["images"]
            self.assertEqual([image["code"] for image in images], targets)
            self.assertEqual({tuple(image["kernels"]) for image in images}, {("fill", "scale_f32")})
            needs = json.loads((packed / "config.json").read_text())["cuda"]
            self.assertEqual(needs["sass"] + needs["ptx"], sorted(targets, reverse=True))
            self.assertIn(code, (packed / "libscale.so").read_bytes())
            # What is launched of it, for a driver that records it.
            launched = self.launch(packed / "libscale.so", 1000, 32)
            self.assertEqual(launched, "grid 4 1 1 block 256 1 1 shared 0 arguments 1000 2000 1000 40000000\n")
        self.assertEqual(self.launch(packed / "libscale.so", 1000, 16),
                         "2 scale@1 scale: none of the kernels is for these dtypes, extents and attributes\n")

        rows = [
            (cubin, ["sm_80"], {}, "has no device code for sm_80, which is stated, but sm_90"),
            (cubin, ["sm_90"], {"arguments": ["x", "x", "N", "factor"]}, "launches: none is given out, which scale writes"),
            (cubin, ["sm_90"], {"arguments": ["x", "out", "N", 2]}, "launches: none is given factor, an attribute of scale"),
            (both, ["sm_90", "compute_90"], {}, "has no device code for compute_90, which is stated, but compute_80, sm_90"),
            (cubin, ["sm_90"], {"kernel": "scale_f16"}, "has no kernel scale_f16 for sm_90; its kernels: "),
            (ptx, ["compute_80"], {"kernel": "scale_f16"}, "has no kernel scale_f16 for compute_80; its kernels: "),
            (cubin, ["sm_90"], {"arguments": ["x", "out", "factor"]},
             "its kernel scale_f32 for sm_90 has 4 parameters, of 8, 8, 4, 4 bytes; stated are 3, of 8, 8, 4"),
            (ptx, ["compute_80"], {"arguments": ["x", "out", {"value": "N", "type": "int64"}, "factor"]},
             "its kernel scale_f32 for compute_80 has 4 parameters, of 8, 8, 4, 4 bytes; stated are 4, of 8, 8, 8, 4"),
            (ptx.replace(b".version 7.8", b".version 8.8"), ["compute_80"], {"toolkit": "12.4"},
             "has PTX 8.8 for compute_80, which needs a driver of CUDA 12.9; stated is the toolkit 12.4"),
            (cubin, ["sm_90"], {"toolkit": "11.8"},
             "has machine code for sm_90 of CUDA 12.9; stated is the toolkit 11.8"),
            (cubin, ["sm_90"], {"threads": 512}, "its kernel scale_f32 for sm_90 is compiled for blocks of at most 256 x 1 x 1 "
                                                 "threads; stated are 512"),
            (ptx, ["compute_80"], {"threads": 512},
             "its kernel scale_f32 for compute_80 is compiled for blocks of at most 256 x 1 x 1 threads; stated are 512"),
            (required, ["compute_80"], {"threads": 128},
             "its kernel scale_f32 for compute_80 is compiled for blocks of 256 x 1 x 1 threads; stated are 128"),
            (one_line, ["compute_80"], {"arguments": ["x", "out", "factor"]},
             "its kernel scale_f32 for compute_80 has 4 parameters, of 8, 8, 4, 4 bytes; stated are 3, of 8, 8, 4"),
            (cubin[:2000], ["sm_90"], {}, "lies outside of the file's 2000"),
            (both[:4000], ["sm_90"], {}, "Invalid fatbin header"),
            (b"words", ["sm_90"], {}, "is neither a cubin nor PTX nor a fatbin"),
        ]
        for code, targets, changes, says in rows:
            with self.subTest(says):
                self.assertIn(says, pack(code, targets, code_of=BUILD, **changes))

    def test_a_package_without_binaries(self):
        self.run_command(BIN / "kiln", "new", "row-scale", "--cpu")
        self.assertIn('has no "binaries"', self.pack(self.work / "row-scale", code=BUILD))
        self.run_command(BIN / "kiln", "build", "./row-scale", "--out", self.kernels, "--only", "cpu-x86-64-v3")


if __name__ == "__main__":
    COMPILER, PYTHON, LIBKILN, DLPACK, FAKE_DRIVER, *LIBRARIES = sys.argv[1:]
    COMPILER_OF_C = [COMPILER, "-x", "c"]
    unittest.main(argv=sys.argv[:1])
