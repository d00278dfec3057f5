#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Device sources that include CUB and CUTLASS (fixtures/block-sums): what is built of them, that every byte of the
headers counts, and what is said where they are missing.

Wants KILN_BIN, and KILN_TOOLCHAINS with `ci/toolchains cccl cutlass`; without those it is skipped.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
TOOLCHAINS = pathlib.Path(os.environ["KILN_TOOLCHAINS"])
FIXTURE = pathlib.Path(__file__).resolve().parent / "fixtures/block-sums"
REFUSED = 15
GPU, PTX = "cu13.5-sm_90-x86_64", "cu12.9-compute_80-x86_64"


class Headers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        cls.package = cls.work / "block-sums"
        shutil.copytree(FIXTURE, cls.package)
        cls.prefix = cls.work / "toolchains"
        cls.prefix.mkdir()
        for component in TOOLCHAINS.iterdir():
            (cls.prefix / component.name).symlink_to(component.resolve())

    def build(self, *words, code=0):
        done = subprocess.run([BIN / "kiln-build", "--toolchains", self.prefix, "-o", self.work / "out", self.package,
                               *words], text=True, capture_output=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def config(self, variant):
        return json.loads((self.work / "out/block-sums" / variant / "config.json").read_text())

    def edit(self, change):
        path = self.package / "package.json"
        text = path.read_text()
        document = json.loads(text)
        change(document["cuda"])
        path.write_text(json.dumps(document))
        self.addCleanup(path.write_text, text)

    def test_both_compile_and_the_variant_says_which_they_were(self):
        self.build("--only", GPU)
        folder = self.work / "out/block-sums" / GPU
        build = self.config(GPU)["build"]
        for name, pin in (("cccl", "nvidia-cuda-cccl"), ("cutlass", "nvidia-cutlass")):
            self.assertIn(f"{pin}=={build[name]} ", (TOOLCHAINS / name / ".pins").read_text())
        images = json.loads((folder / "inspect.json").read_text())["images"]
        self.assertEqual([(image["stem"], image["kernels"]) for image in images],
                         [("smxx_sums", ["running_sums", "sums"]), ("smxx_product", ["product"])])
        report = (folder / "ptxas.txt").read_text()
        self.assertEqual(report.count(" 0 bytes spill stores"), 3, report)
        cubin = next((self.work / "out/.work/block-sums/device").glob("cu13.5-sm_90-*/csrc+smxx_product.cubin"))
        code = subprocess.run([TOOLCHAINS / "bin/nvdisasm", "-c", cubin], text=True, capture_output=True, check=True)
        self.assertIn("HMMA.16816.F32", code.stdout)

    def test_what_they_compute(self):
        self.build("--only", f"{GPU},cu13.5-sm_80-x86_64")
        registry = self.work / "registry"
        environment = os.environ | {"KILN_REGISTRY": str(registry), "KILN_CACHE": str(self.work / "cache"),
                                    "KILN_UNSIGNED": "/"}
        subprocess.run([BIN / "kiln", "registry", "publish", "--registry", registry, "--allow-untested", "*",
                        self.work / "out/block-sums"], check=True, capture_output=True)
        done = subprocess.run([BIN / "block_sums_check", "--device", "cuda"], env=environment, text=True,
                              capture_output=True)
        if done.returncode == 77:
            self.skipTest("no GPU")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_header_of_other_bytes_is_another_build(self):
        self.build("--only", PTX)
        before = self.config(PTX)["build_id"]
        self.assertIn(" steps are up to date", self.build("--only", PTX))
        (self.prefix / "cccl").unlink()
        shutil.copytree(TOOLCHAINS / "cccl", self.prefix / "cccl")
        header = self.prefix / "cccl/include/cccl/cub/block/block_reduce.cuh"
        header.write_text(header.read_text() + "// one more line\n")
        said = self.build("--only", PTX)
        self.assertIn("smxx_sums.ptx", said)
        self.assertNotEqual(self.config(PTX)["build_id"], before)
        shutil.rmtree(self.prefix / "cccl")
        (self.prefix / "cccl").symlink_to((TOOLCHAINS / "cccl").resolve())
        self.build("--only", PTX)
        self.assertEqual(self.config(PTX)["build_id"], before)

    def test_what_is_missing_is_named_with_what_brings_it(self):
        (self.prefix / "cutlass").unlink()
        said = self.build("--only", GPU, code=REFUSED)
        (self.prefix / "cutlass").symlink_to((TOOLCHAINS / "cutlass").resolve())
        self.assertIn("cutlass/include is not in ", said)
        self.assertIn(f"run 'ci/toolchains cutlass {self.prefix}'", said)

    def test_a_name_that_there_is_not_is_refused(self):
        self.edit(lambda cuda: cuda.update(headers=["cub"]))
        self.assertIn('headers "cub" is not in the build matrix, which has cccl, cutlass',
                      self.build("--list", code=REFUSED))

    def test_a_source_that_includes_them_unasked_hears_how_to_ask(self):
        self.edit(lambda cuda: cuda.pop("headers"))
        said = self.build("--only", "cu13.5-sm_90-x86_64", code=REFUSED)
        self.assertIn("cub/block/block_reduce.cuh", said)
        self.assertIn('name them under "headers"', said)

    def test_they_need_cuda_12(self):
        listed = json.loads(self.build("--list", "--json"))
        self.assertEqual({each.split("-")[0] for each in listed["variants"]}, {"cu12.9", "cu13.5"})
        self.assertIn("cu12.9-sm_80-x86_64", listed["variants"])  # 11.8 compiles nothing in its place


if __name__ == "__main__":
    if not all((TOOLCHAINS / name / "include").is_dir() for name in ("cccl", "cutlass")):
        print("skipped: run ci/toolchains cccl cutlass")
        sys.exit(77)
    unittest.main()
