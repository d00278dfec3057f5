#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a terminal gets of the command: no control sequence that came from outside.

Wants KILN_BIN, and KILN_REGISTRY with geglu-mlp@1.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import terminal

REGISTRY = pathlib.Path(os.environ["KILN_REGISTRY"])
BIN = pathlib.Path(os.environ["KILN_BIN"])
# ESC [ 2 J clears the screen; so does CSI as one character; U+202E turns the line; 0xff is not UTF-8.
HOSTILE = b"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb"
SHOWN = rb"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb"


def environment(**more):
    return {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | more


def at_a_terminal(*words, **more):
    """Exit code and output of the command with both streams on a terminal, without colours."""
    status, shown, _ = terminal.at_a_terminal(BIN / "kiln", *words, environment=environment(NO_COLOR="1", **more))
    return status, shown


class Quoting(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.hostile = os.path.join(os.fsencode(self.work), HOSTILE)

    def check(self, code, *words, **more):
        status, shown = at_a_terminal(*words, KILN_CACHE=str(self.work / "cache"), **more)
        self.assertEqual(status, code, shown)
        self.assertIn(SHOWN, shown)
        shown = shown.replace(b"\r\x1b[K", b"")  # by which the line of progress is drawn
        for byte in b"\x1b\x9b\xff":
            self.assertNotIn(bytes([byte]), shown)
        self.assertNotIn("\u202e".encode(), shown)

    def test_an_error_shows_a_registry_s_name_as_bytes(self):
        self.check(4, "install", "geglu-mlp@1", "--registry", self.hostile)

    def test_a_result_shows_a_path_as_bytes(self):
        self.check(4, "list", "--cache", self.hostile)
        os.mkdir(self.hostile)
        self.check(0, "list", "--cache", self.hostile)
        self.check(0, "cache", "dir", "--cache", self.hostile)
        self.check(0, "doctor", "--cache", self.hostile, KILN_REGISTRY=str(self.work))

    def test_a_word_that_is_not_known_is_shown_as_bytes(self):
        self.check(2, b"x" + HOSTILE)
        self.check(2, "list", b"--x" + HOSTILE)

    def test_a_program_gets_the_very_bytes_of_a_path(self):
        done = subprocess.run([BIN / "kiln", "cache", "dir", "--cache", self.hostile], capture_output=True,
                              env=environment(), check=True)
        self.assertEqual(done.stdout, self.hostile + b"\n")

    def test_a_result_is_one_json_document_of_ascii(self):
        done = subprocess.run([BIN / "kiln", "cache", "dir", "--json", "--cache", self.hostile],
                              capture_output=True, env=environment(), check=True)
        self.assertTrue(done.stdout.isascii())
        self.assertTrue(json.loads(done.stdout)["cache"].endswith("a\x1b[2J\u009b2J\u202eb"))

    def test_a_path_that_is_not_utf_8_is_refused_and_shown_as_bytes(self):
        for words in (("list", "--cache"), ("install", "geglu-mlp@1", "--registry")):
            status, shown = at_a_terminal(*words, self.hostile + b"\xff",
                                          KILN_CACHE=str(self.work / "cache"))
            self.assertEqual(status, 2, shown)
            self.assertIn(rb"b\xff", shown)
            self.assertIn(b"not UTF-8", shown)


if __name__ == "__main__":
    if not REGISTRY.exists():
        print(f"skipped: there is no registry at {REGISTRY}")
        sys.exit(77)
    unittest.main()
