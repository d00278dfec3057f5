#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ci/recipes as a release has them: each names the sources by their digest and every library that CMakeLists.txt looks for,
and is read by what understands it. vcpkg's portfile configures the sources. Nothing is compiled; the Conan recipe is built by
hand: ci/recipes/README.md.

    recipes_test.py      without nix or PyYAML, that part says it is skipped
"""

import ast
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import types
import unittest

from installer_test import SOURCE, load_release

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "1.2.3"
# What CMakeLists.txt looks for -> its names in Conan, vcpkg, conda-forge and nixpkgs.
LIBRARIES = {"OpenSSL": ["openssl"] * 4, "CURL": ["libcurl", "curl", "libcurl", "curl"], "LibArchive": ["libarchive"] * 4,
             "nlohmann_json": ["nlohmann_json", "nlohmann-json", "nlohmann_json", "nlohmann_json"], "dlpack": ["dlpack"] * 4,
             "CLI11": [None, None, "cli11", "cli11"]}  # of the command


class RecipesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.work)
        release = load_release()
        cls.sources = cls.work / f"kiln-{VERSION}.tar.gz"
        cls.sources.write_bytes(release.output("git", "archive", "--format=tar.gz", f"--prefix=kiln-{VERSION}/", "HEAD"))
        options = types.SimpleNamespace(url=cls.work.as_uri(), source="https://example.org/kiln")
        for name in ("first", "second"):  # the same bytes each time
            (cls.work / name).mkdir()
            release.recipes(VERSION, options, cls.work / name, cls.work)
            shutil.move(cls.work / f"kiln-recipes-{VERSION}.tar.gz", cls.work / f"{name}.tar.gz")
        assert (cls.work / "first.tar.gz").read_bytes() == (cls.work / "second.tar.gz").read_bytes()
        with tarfile.open(cls.work / "first.tar.gz") as tar:
            tar.extractall(cls.work / "recipes")
        cls.recipes = cls.work / "recipes" / f"kiln-recipes-{VERSION}"
        cls.sha256 = hashlib.sha256(cls.sources.read_bytes()).hexdigest()

    def text(self, name):
        return (self.recipes / name).read_text()

    def needs(self, column, found):
        """A recipe's libraries are those of the table, and the table's are CMakeLists.txt's."""
        listed = (SOURCE / "CMakeLists.txt").read_text()
        looked_for = set(re.findall(r"find_package\((\w+) [^)]*REQUIRED", listed)) - {"doctest"}
        self.assertEqual(looked_for | {"dlpack"}, set(LIBRARIES))
        self.assertEqual(set(found), {names[column] for names in LIBRARIES.values() if names[column]})

    def test_all_is_filled_in(self):
        for file in self.recipes.rglob("*"):
            if file.is_file() and file.name != "README.md":
                self.assertEqual(re.findall(r"@[A-Z0-9]+@", file.read_text()), [], file)

    def test_conan(self):
        text = self.text("conan/conanfile.py")
        ast.parse(text)
        self.assertIn(f'sha256="{self.sha256}"', text)
        self.needs(0, re.findall(r'self\.requires\("(\w+)/', text))

    def vcpkg(self, name):
        work = self.work / name
        work.mkdir()
        return work, subprocess.run(
            ["cmake", f"-DPORT_FOLDER={self.recipes / 'vcpkg/kiln'}", f"-DVERSION={VERSION}", f"-DWORK={work}", "-P",
             HERE / "vcpkg.cmake"], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_vcpkg(self):
        said = json.loads(self.text("vcpkg/kiln/vcpkg.json"))
        self.assertEqual(said["version"], VERSION)
        names = [each if isinstance(each, str) else each["name"] for each in said["dependencies"]]
        self.needs(1, [name for name in names if not name.startswith("vcpkg-")])
        work, done = self.vcpkg("configured")
        self.assertEqual(done.returncode, 0, done.stdout)
        made = sorted(str(file.relative_to(work / "packages")) for file in (work / "packages").rglob("*") if file.is_file())
        self.assertEqual(made, [f"share/kiln/{name}" for name in (
            "copyright", "kiln-config-version.cmake", "kiln-config.cmake", "usage")])
        warnings = {flag for file in work.rglob("build.ninja") for flag in re.findall(r" (-W[a-z]+)", file.read_text())}
        self.assertIn("-Wconversion", warnings)
        self.assertNotIn("-Werror", warnings)  # a packager's compiler has warnings that ours has not

    def test_other_sources_are_refused(self):
        content = self.sources.read_bytes()
        self.addCleanup(self.sources.write_bytes, content)
        self.sources.write_bytes(content + b"\0")
        _, done = self.vcpkg("refused")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("HASH mismatch", done.stdout)

    def test_conda_forge(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("no PyYAML")
        said = yaml.safe_load(self.text("conda-forge/recipe.yaml"))
        self.assertEqual((said["context"]["version"], said["source"]["sha256"]), (VERSION, self.sha256))
        self.needs(2, said["requirements"]["host"])

    def test_nix(self):
        if not shutil.which("nix-instantiate"):
            self.skipTest("no nix-instantiate")
        done = subprocess.run(
            ["nix-instantiate", "--eval", "--strict", "--store", f"dummy://{self.work}", "-E",
             f"import {HERE / 'recipe.nix'} {self.recipes / 'nix/package.nix'}"], check=False, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(json.loads(done.stdout))
        self.assertEqual(said["src"], {"url": f"{self.work.as_uri()}/kiln-{VERSION}.tar.gz", "sha256": self.sha256})
        self.needs(3, said["buildInputs"] + said["propagatedBuildInputs"])


if __name__ == "__main__":
    unittest.main()
