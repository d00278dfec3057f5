#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The manual pages say what --help says, and man renders them without a warning.

    man_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}


def words_of(text):
    """All words, however the lines are broken."""
    return " ".join(re.sub("[‐−]", "-", text).split())


class Man(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "man1"
        subprocess.run([KILN, "__man", self.folder], check=True, env=ENVIRONMENT)
        self.pages = {page.stem: page for page in self.folder.iterdir()}

    def help_of(self, name):
        return subprocess.run([KILN, *name.split("-")[1:], "--help"], check=True, capture_output=True, text=True,
                              env=ENVIRONMENT).stdout

    def test_every_command_has_a_page(self):
        own = self.help_of("kiln").split("Subcommands:")[1].split("Builders, ")[0]
        listed = re.findall(r"^  ([a-z]+)  +\S", own, re.M)
        self.assertGreaterEqual(len(listed), 20)
        for name in listed:
            self.assertIn(f"kiln-{name}", self.pages)
        self.assertIn("kiln-cache-gc", self.pages)
        self.assertNotIn("kiln-build", self.pages)  # a program of its own

    def test_a_page_says_what_help_says(self):
        if shutil.which("man") is None:
            self.skipTest("man is not installed")
        for name, page in self.pages.items():
            done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True,
                                  env=ENVIRONMENT, check=True)
            self.assertEqual(done.stderr, "", name)
            shown = words_of(done.stdout)
            said = self.help_of(name)
            one = r"^  (?:-\w,)?(--[a-z-]+)(?: (?!Excludes)[A-Z|:a-z]+(?: \.\.\.)?)?(?: REQUIRED)?\s+(\S.*)$"
            for option, meaning in re.findall(one, said, re.M):
                self.assertIn(option, shown, name)
                if meaning.startswith("Excludes: "):
                    excluded, _, meaning = meaning.removeprefix("Excludes: ").partition("  ")
                    self.assertIn(f"Not with {', '.join(sorted(excluded.split()))}.", shown, name)
                self.assertIn(words_of(meaning), shown, name)
            for example in re.findall(r"^  (kiln .*)$", said.partition("Examples:")[2], re.M):
                self.assertIn(words_of(example), shown, name)
            self.assertIn(words_of(said.splitlines()[0]), shown, name)


if __name__ == "__main__":
    KILN = os.path.abspath(sys.argv[2])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
