#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a terminal gets of the command: no control sequence that came from outside, and progress on one line.
Wants KILN_BIN, and KILN_REGISTRY with geglu-mlp@1.
"""

import fcntl
import http.server
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

REGISTRY = pathlib.Path(os.environ["KILN_REGISTRY"])
BIN = pathlib.Path(os.environ["KILN_BIN"])
# ESC [ 2 J clears the screen; so does CSI as one character; U+202E turns the line; 0xff is not UTF-8.
HOSTILE = b"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb"
SHOWN = rb"a\x1b[2J\xc2\x9b2J\xe2\x80\xaeb"


def environment(**more):
    return {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | more


def at_a_terminal(*words, columns=80, interrupt_at=None, **more):
    """Exit code and output of the command with both streams on a terminal. Ctrl-C once a text is shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
        if interrupt_at and interrupt_at in shown:
            interrupt_at = None
            os.write(terminal, b"\x03")
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
        self.check(4, "install", "geglu-mlp@1", "--registry", self.hostile)

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


class SlowRegistry(http.server.BaseHTTPRequestHandler):
    """The pull side of an OCI registry over the folder; a layer comes in ten pieces, each after `pause` s."""

    pause = 0.15

    def do_GET(self):
        blobs = REGISTRY / "geglu-mlp/blobs/sha256"
        name = self.path.rsplit("/", 1)[1]
        if name == "1":
            name = json.loads((REGISTRY / "geglu-mlp/index.json").read_bytes())["manifests"][0]["digest"]
        body = (blobs / name.removeprefix("sha256:")).read_bytes()
        document = body.startswith(b"{")
        self.send_response(200)
        kind = "application/octet-stream" if "/blobs/" in self.path else json.loads(body)["mediaType"]
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        size = len(body) if document else len(body) // 10 + 1
        try:
            for at in range(0, len(body), size):
                time.sleep(0 if document else self.pause)
                self.wfile.write(body[at:at + size])
        except OSError:
            pass  # the client went

    def log_message(self, *_):
        pass


class Progress(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowRegistry)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.more = {"KILN_CACHE": folder.name + "/cache", "KILN_REGISTRY": f"http://127.0.0.1:{server.server_port}"}

    def check_lines(self, shown, columns):
        """Each drawing is shorter than the terminal is wide; what is not progress begins a line."""
        text = shown.decode()
        drawn = re.findall(r"\r\x1b\[K([^\r\n\x1b]*%[^\r\n\x1b]*)", text)
        self.assertGreater(len(drawn), 1, text)
        for line in drawn:
            self.assertLess(len(line), columns)
            self.assertRegex(line, r"^ *\d+%  \S+ k?M?B of \S+ k?M?B")
        self.assertTrue(any(re.search(r"B/s, \d+ s left", line) for line in drawn), drawn)
        for match in re.finditer(r"fetched |kiln: ", text):
            before = text[:match.start()]
            self.assertTrue(before.endswith(("\x1b[K", "\n")) or not before, text)
        return drawn

    def test_one_line_within_the_width_and_then_the_result(self):
        for columns in (80, 50):
            words = ["install", "--refresh", "--device", "cpu", "geglu-mlp@1", "--cache",
                     f"{self.more['KILN_CACHE']}-{columns}"]
            status, shown = at_a_terminal(*words, columns=columns, **self.more)
            self.assertEqual(status, 0, shown)
            self.check_lines(shown, columns)
            self.assertIn(b"\x1b[Kfetched geglu-mlp@1 cpu-", shown)

    def test_an_error_does_not_stand_behind_the_progress(self):
        status, shown = at_a_terminal("install", "--device", "cpu", "geglu-mlp@1", interrupt_at=b"s left", **self.more)
        self.assertEqual(status, 130, shown)
        self.check_lines(shown, 80)
        self.assertIn(b"\x1b[Kkiln: ", shown)

    def test_a_file_gets_a_line_for_each_download_and_no_control_sequence(self):
        done = subprocess.run([BIN / "kiln", "install", "--device", "cpu", "geglu-mlp@1"], capture_output=True,
                              env=environment(**self.more), check=True)
        self.assertRegex(done.stderr, rb"^fetched geglu-mlp@1 cpu-\S+, \S+ kB\n$")


if __name__ == "__main__":
    if not REGISTRY.exists():
        print(f"skipped: there is no registry at {REGISTRY}")
        sys.exit(77)
    unittest.main()
