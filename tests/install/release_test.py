#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ci/release's dry run: every file of a release, with the command that was built here in the place of ci/package's, and
empty files in the place of the other packages; then what a user runs of docs/INSTALL.md refuses each file that changed.

    release_test.py BIN REGISTRY      exit status 77: no registry, or no openssl
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from installer_test import load_release

SOURCE = pathlib.Path(__file__).resolve().parents[2]
VERSION = next(line.split()[2] for line in (SOURCE / "CMakeLists.txt").read_text().splitlines() if line.startswith("project("))
TOP = f"kiln-{VERSION}-linux-x86_64"
COSIGN = SOURCE / "build/oci-tools/cosign"


def run(*words, **more):
    return subprocess.run([str(word) for word in words], check=False, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)


def sha256sums(folder):
    return run("sha256sum", *sorted(os.listdir(folder)), cwd=folder).stdout


class ReleaseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.work)
        packages = cls.work / "packages"
        packages.mkdir()
        with tarfile.open(packages / f"{TOP}.tar.gz", "w:gz", compresslevel=1) as tar:
            for program in ("kiln", "kiln-registry"):
                stripped = cls.work / program
                subprocess.run(["strip", "-o", stripped, BIN / program], check=True)
                tar.add(stripped, f"{TOP}/bin/{program}")
        for name in (f"kiln_{VERSION}-1_amd64.deb", f"kiln_hub-{VERSION}-py3-none-manylinux_2_28_x86_64.whl"):
            (packages / name).touch()
        (packages / "SHA256SUMS").write_text(sha256sums(packages))
        (packages / "COMMIT").write_text(run("git", "-C", SOURCE, "rev-parse", "HEAD").stdout)
        registry = cls.work / "registry"
        shutil.copytree(REGISTRY / "rms-norm", registry / "rms-norm")
        cls.release = cls.work / "release"
        cls.arguments = ["--packages", packages, "--registry", registry]
        done = run(SOURCE / "ci/release", cls.release, "--dry-run", *cls.arguments)
        assert done.returncode == 0, done.stdout
        cls.said = done.stdout

    def test_it_has_every_file(self):
        self.assertEqual(sorted(os.listdir(self.release)), sorted([
            "NOTES.md", "SHA256SUMS", "SHA256SUMS.sig", "install.sh", "release.pub", f"kiln-{VERSION}.tar.gz", f"{TOP}.tar.gz",
            f"kiln-{VERSION}.provenance.json", f"kiln-{VERSION}.spdx.json", f"kiln_{VERSION}-1_amd64.deb",
            f"kiln_hub-{VERSION}-py3-none-manylinux_2_28_x86_64.whl", f"kiln-kernels-{VERSION}.tar.gz", f"kiln-recipes-{VERSION}.tar.gz",
            f"kiln-kernels_{VERSION}-1_all.deb", f"kiln_kernels-{VERSION}-py3-none-any.whl"]))
        self.assertIn("rms-norm", self.said)  # of the registry that install.sh brought, by kiln search
        with tarfile.open(self.release / f"kiln-{VERSION}.tar.gz") as sources:
            self.assertIn(f"kiln-{VERSION}/CMakeLists.txt", sources.getnames())
        self.assertNotRegex((self.release / "install.sh").read_text(), "@[A-Z]+@")

    def test_its_kernels_for_a_program_that_lies_elsewhere(self):
        home = self.work / "a home"
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KILN_DOWNLOAD": str(self.release), "KILN": str(BIN / "kiln")}
        home.mkdir()
        done = run("sh", "install.sh", "--kernels", cwd=self.release, env=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        (line,) = (each.partition("build:")[2] for each in done.stdout.splitlines() if "programs that you build" in each)
        self.assertNotEqual(run("sh", "-c", '"$KILN" install rms-norm@1 --device cpu', env=environment).returncode, 0)
        done = run("sh", "-ec", f'{line}; "$KILN" install rms-norm@1 --device cpu', env=environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(f"{home}/.cache", done.stdout)
        self.assertNotIn("programs that you build", run("sh", "install.sh", "--prefix", home / "other", cwd=self.release, env=environment).stdout)

    def test_what_it_says_of_itself(self):
        files = dict(reversed(line.split("  ")) for line in (self.release / "SHA256SUMS").read_text().splitlines())
        bundle = json.loads((self.release / f"kiln-{VERSION}.provenance.json").read_text())
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        self.assertEqual({each["name"]: each["digest"]["sha256"] for each in statement["subject"]}, files)
        commit = run("git", "-C", SOURCE, "rev-parse", "HEAD").stdout.strip()
        self.assertEqual(statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"], {"gitCommit": commit})
        sbom = json.loads((self.release / f"kiln-{VERSION}.spdx.json").read_text())
        said = {each["fileName"][2:]: each["checksums"][1]["checksumValue"] for each in sbom["files"]}
        self.assertEqual(said, {name: digest for name, digest in files.items() if not name.endswith(".spdx.json")})
        names = {each["name"] for each in sbom["packages"]}
        self.assertLessEqual({"kiln", "openssl", "curl", "libarchive", "libzstd", "md4c", "cpp-httplib"}, names)
        identities = {each["SPDXID"] for each in [*sbom["packages"], *sbom["files"], sbom]}
        for relation in sbom["relationships"]:
            self.assertLessEqual({relation["spdxElementId"], relation["relatedSpdxElement"]}, identities)

    def changed(self, name):
        """A copy of the release in which a byte of this file differs."""
        copy = self.work / "changed"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.release, copy)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        return copy

    def test_what_changed_is_refused(self):
        sums = ("sha256sum", "--check", "--quiet", "SHA256SUMS")
        signature = ("openssl", "dgst", "-sha256", "-verify", "release.pub", "-signature", "SHA256SUMS.sig", "SHA256SUMS")
        for name in (f"{TOP}.tar.gz", "install.sh", f"kiln-{VERSION}.spdx.json"):
            done = run(*sums, cwd=self.changed(name))  # whose words are the user's language
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"\n{name}: ", "\n" + done.stdout)
        for name in ("SHA256SUMS", "SHA256SUMS.sig"):
            self.assertNotEqual(run(*signature, cwd=self.changed(name)).returncode, 0, name)
        if COSIGN.exists():
            attested = (COSIGN, "verify-blob-attestation", "--key", "release.pub", "--bundle", f"kiln-{VERSION}.provenance.json",
                        "--type", "slsaprovenance1", "--insecure-ignore-tlog=true", f"{TOP}.tar.gz")
            done = run(*attested, cwd=self.release)
            self.assertEqual(done.returncode, 0, done.stdout)
            for name in (f"{TOP}.tar.gz", f"kiln-{VERSION}.provenance.json"):
                self.assertNotEqual(run(*attested, cwd=self.changed(name)).returncode, 0, name)

    def test_the_metadata_goes_on_from_the_release_before(self):
        keys = self.work / "keys"
        keys.mkdir()
        registry = BIN / "kiln-registry"
        for key in ("root", "targets", "online"):
            self.assertEqual(run(registry, "key", keys / key).returncode, 0)
        root = keys / "root.json"
        made = [word for key in ("root", "targets", "online") for word in (f"--{key}-key", keys / f"{key}.pub")]
        for words in (["init", *made, "--out", root], ["sign", root, "--key", keys / "root"]):
            done = run(registry, *words)
            self.assertEqual(done.returncode, 0, done.stdout)
        before = []
        for number in (1, 2):
            release = self.work / f"release {number}"
            done = run(SOURCE / "ci/release", release, "--dry-run", *self.arguments, "--root", root,
                       "--registry-key", keys / "targets", "--registry-key", keys / "online", *before)
            self.assertEqual(done.returncode, 0, done.stdout)
            kernels = release / f"kiln-kernels-{VERSION}.tar.gz"
            before = ["--before", kernels]
            with tarfile.open(kernels) as tar:
                documents = [tar.extractfile(each).read() for each in tar.getmembers() if "/kiln.tuf/blobs/" in each.name and each.isfile()]
            signed = [json.loads(each).get("signed", {}) for each in documents if each.startswith(b"{")]
            self.assertEqual({each["version"] for each in signed if each.get("_type") == "timestamp"}, {number})

    def refused(self, text, *words):
        done = run(SOURCE / "ci/release", *words)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(text, done.stdout)

    def test_what_is_no_release(self):
        self.refused("is not empty", self.release, "--dry-run", *self.arguments)
        new = self.work / "new"
        self.refused("a release needs --key", new)
        self.refused("no registry in", new, "--dry-run", "--registry", self.work / "nowhere")
        key = ["--key", "k", "--root", "r", "--registry-key", "k", "--url", "https://a.b", "--source", "https://a.b", "--builder", "b"]
        self.refused("a release needs either --before or --first", new, *key)
        key.append("--first")
        if f"## Unreleased: {VERSION}" in (SOURCE / "CHANGELOG.md").read_text():
            self.refused(f"CHANGELOG.md has no part '## {VERSION}'", new, *key, *self.arguments)
        self.assertFalse(new.exists())
        other = self.work / "other"
        shutil.copytree(self.work / "packages", other)
        (other / "COMMIT").write_text("0" * 40)
        self.refused("the packages of another commit", new, "--dry-run", "--packages", other, *self.arguments[2:])
        shutil.copyfile(self.work / "packages/COMMIT", other / "COMMIT")
        deb = other / f"kiln_{VERSION}-1_amd64.deb"
        deb.write_bytes(b"other")
        self.refused("is not what ci/package made", new, "--dry-run", "--packages", other, *self.arguments[2:])
        deb.rename(other / "kiln_0.0.9-1_amd64.deb")
        (other / "SHA256SUMS").write_text(run("sha256sum", "kiln_0.0.9-1_amd64.deb", cwd=other).stdout)
        self.refused(f"is no file of version {VERSION}", new, "--dry-run", "--packages", other, *self.arguments[2:])
        (other / "COMMIT").unlink()
        self.refused("run ci/package", new, "--dry-run", "--packages", other, *self.arguments[2:])

    def test_packages_that_a_release_has_and_this_one_lacks(self):
        lacks = [line for line in self.said.splitlines() if "which a release has" in line]
        self.assertEqual(len(lacks), 2, self.said)  # a dry run goes on without those of aarch64
        for name in (f"kiln-{VERSION}-linux-aarch64.tar.gz", "manylinux_2_28_aarch64.whl"):
            self.assertTrue(any(name in line for line in lacks), lacks)
        release = load_release()
        commit = (self.work / "packages/COMMIT").read_text().strip()
        with self.assertRaisesRegex(SystemExit, "has no kiln-.*-linux-aarch64.tar.gz"):
            release.check_packages(self.work / "packages", VERSION, commit, False)

    def test_what_another_commit_made_is_not_taken_for_this_ones(self):
        """ci/package, with stand-ins, up to the build, which fails."""
        copy = self.work / "copy"
        package = copy / "build/package"
        for name in ("ci/setup", "ci/dependencies", "build/toolchains/zig/zig"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text("#!/bin/sh\ncase $0 in *setup) ;; *) exit 1 ;; esac\n")
            (copy / name).chmod(0o755)
        shutil.copy(SOURCE / "ci/package", copy / "ci")
        shutil.copy(SOURCE / "CMakeLists.txt", copy)
        git = ("git", "-C", copy, "-c", "user.name=test", "-c", "user.email=test@localhost")
        for words in (["init", "-q"], ["add", "ci", "CMakeLists.txt"], ["commit", "-q", "-m", "first"]):
            subprocess.run([*git, *words], check=True)
        package.mkdir()
        names = ("COMMIT", "SHA256SUMS", "kiln-0.0.1-linux-aarch64.tar.gz", "kiln_0.0.1-1_amd64.deb", "libkiln0_0.0.1-1_amd64.deb",
                 "kiln_hub-0.0.1-py3-none-manylinux_2_28_aarch64.whl", "kiln-kernels-0.0.1.tar.gz", "kiln-kernels_0.0.1-1_all.deb")
        for made, left in ((run(*git, "rev-parse", "HEAD").stdout, set(names)), ("0" * 40, set(names[-2:]))):
            for name in names:
                (package / name).write_text(made)
            self.assertNotEqual(run(copy / "ci/package", "x86_64").returncode, 0)
            self.assertEqual({file.name for file in package.iterdir()} - {"work"}, left)


if __name__ == "__main__":
    BIN, REGISTRY = map(pathlib.Path, sys.argv[1:3])
    if not (REGISTRY / "rms-norm").is_dir() or not shutil.which("openssl"):
        print(f"skipped: no rms-norm in {REGISTRY}, or no openssl")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
