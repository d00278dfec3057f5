#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a terminal gets of the command: no control sequence that came from outside. Wants KILN_BIN."""

import json
import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
# ESC [ 2 J clears the screen; so does CSI as one character; U+202E turns the line; 0xff is not UTF-8.
HOSTILE = b"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb\xff"
SHOWN = rb"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb\xff"


def environment(**more):
    return {k: v for k, v in os.environ.items() if not k.startswith("KILN_")} | more


def at_a_terminal(*words, **more):
    """Exit code and output of the command with both streams on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(BIN / "kiln", ["kiln", *words], environment(**more))
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: the other side is closed
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


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
        for byte in b"\x1b\x9b\xff":
            self.assertNotIn(bytes([byte]), shown)
        self.assertNotIn("\u202e".encode(), shown)

    def test_an_error_shows_a_registry_s_name_as_bytes(self):
        self.check(4, "install", "geglu-mlp@2", "--registry", self.hostile)

    def test_a_result_shows_a_path_as_bytes(self):
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

    def test_a_path_that_is_not_utf_8_is_still_one_json_document(self):
        done = subprocess.run([BIN / "kiln", "cache", "dir", "--json", "--cache", self.hostile],
                              capture_output=True, env=environment(), check=True)
        self.assertTrue(done.stdout.isascii())
        self.assertTrue(json.loads(done.stdout)["cache"].endswith("a\x1b[2J\u009b2J\u202eb\ufffd"))


if __name__ == "__main__":
    unittest.main()
