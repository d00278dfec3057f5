# SPDX-License-Identifier: Apache-2.0
"""A user with an empty home, a project and a registry of synthetic packages, for tests of the command.

    SOMETHING_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "publish")]  # clock, oci_server
import documents  # noqa: E402

KILN_REGISTRY, KILN, FIXTURE = (os.path.abspath(each) for each in sys.argv[1:4])
OK, NO_VARIANT, USAGE, NOT_FOUND, NETWORK, INTEGRITY, TRUST, LOCK, CACHE, OFFLINE, UPGRADE = 0, 3, 2, 4, 5, 6, 7, 8, 9, 10, 11


class World(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.built = pathlib.Path(folder.name) / "built"
        subprocess.run([FIXTURE, cls.built], check=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.registry = self.work / "registry"
        self.project = self.work / "project"
        self.project.mkdir()
        self.environment = {"HOME": str(self.work), "PATH": "/usr/bin:/bin", "KILN_CACHE": str(self.work / "cache"),
                            "KILN_REGISTRY": str(self.registry), "KILN_UNSIGNED": "/,http://127.0.0.1"}
        self.publish("one")

    def run_command(self, program, *words, code=OK, says=()):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=60, errors="surrogateescape",
                              env=self.environment, cwd=self.project)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, done.stdout + done.stderr)
        return done

    def kiln(self, *words, **how):
        return self.run_command(KILN, *words, **how).stdout

    def document(self, *words, **how):
        document = json.loads(self.kiln(*words, "--json", **how))
        documents.check(document)
        return document

    def publish(self, *folders):
        for folder in folders:
            self.run_command(KILN_REGISTRY, "publish", "--registry", self.registry, self.built / folder,
                             "--allow-untested", "*")

    def lock(self):
        return json.loads((self.project / "kiln.lock").read_text())["kernels"]

    def sign(self):
        keys = self.work / "keys"
        keys.mkdir()
        for name in ("root", "targets", "online"):
            self.run_command(KILN_REGISTRY, "key", keys / name)
        self.run_command(KILN_REGISTRY, "init", "--root-key", keys / "root.pub", "--targets-key", keys / "targets.pub",
                         "--online-key", keys / "online.pub", "--out", self.work / "root.json")
        self.run_command(KILN_REGISTRY, "sign", self.work / "root.json", "--key", keys / "root")
        self.sign_again("sign", "--root", self.work / "root.json")
        self.environment["KILN_UNSIGNED"] = ""
        self.kiln("trust", "add", self.registry, "--root", self.work / "root.json")

    def sign_again(self, *words):
        self.run_command(KILN_REGISTRY, *words, "--registry", self.registry, "--key", self.work / "keys/targets",
                         "--key", self.work / "keys/online")


def main():
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
