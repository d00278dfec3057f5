#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM while a download stands still: exit code 130 in short time, a whole cache, and the
next install succeeds. Wants KILN_BIN, and KILN_REGISTRY with geglu-mlp@1.
"""

import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
REGISTRY = pathlib.Path(os.environ["KILN_REGISTRY"])
BLOBS = REGISTRY / "geglu-mlp/blobs/sha256"
# A script's background job ignores SIGINT, and what it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Registry(http.server.BaseHTTPRequestHandler):
    """The pull side of an OCI registry over the folder. Stands still where `stall` says so: "index" before
    the first answer, "layer" in the middle of a layer."""

    protocol_version = "HTTP/1.1"
    stall = ""
    stalled = threading.Event()
    go_on = threading.Event()

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        if name == "1":
            tags = json.loads((REGISTRY / "geglu-mlp/index.json").read_bytes())["manifests"]
            name = next(d["digest"] for d in tags
                        if d["annotations"]["org.opencontainers.image.ref.name"] == "1")
        body = (BLOBS / name.removeprefix("sha256:")).read_bytes()
        layer = "/blobs/" in self.path and not body.startswith(b"{")
        if self.stall == "index":
            self.stand_still()
        self.send_response(200)
        kind = "application/octet-stream" if "/blobs/" in self.path else json.loads(body)["mediaType"]
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        self.wfile.flush()
        if layer and self.stall == "layer":
            self.stand_still()
        self.wfile.write(body[half:])

    def stand_still(self):
        type(self).stalled.set()
        type(self).go_on.wait(60)

    def log_message(self, *_):
        pass


class Interrupt(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "cache"
        Registry.stalled.clear()
        Registry.go_on.clear()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.server.handle_error = lambda *_: None  # clients that hang up are what this test is about
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(Registry.go_on.set)
        self.environment = {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | {
            "KILN_CACHE": str(self.cache), "KILN_REGISTRY": f"http://127.0.0.1:{self.server.server_port}"}

    def kiln(self, *words):
        return subprocess.Popen([BIN / "kiln", *words], env=self.environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def test_a_signal_stops_a_download_that_stands_still(self):
        for stall in ("index", "layer"):
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(stall=stall, signal=number.name):
                    Registry.stall = stall
                    Registry.stalled.clear()
                    Registry.go_on.clear()
                    child = self.kiln("install", "--device", "cpu", "geglu-mlp@1")
                    self.assertTrue(Registry.stalled.wait(30))
                    begin = time.monotonic()
                    child.send_signal(number)
                    _, errors = child.communicate(timeout=60)
                    self.assertLess(time.monotonic() - begin, 20)
                    self.assertEqual(child.returncode, 130, errors)
                    Registry.go_on.set()
                    if self.cache.exists():  # before the first document there is none
                        verify = self.kiln("cache", "verify")
                        self.assertIn("0 damaged", verify.communicate()[0])
                    self.assertFalse(list(self.cache.glob("unpacked/*")))
        Registry.stall = ""
        again = self.kiln("install", "--device", "cpu", "geglu-mlp@1")
        _, errors = again.communicate(timeout=60)
        self.assertEqual(again.returncode, 0, errors)

    def test_a_hangup_that_is_ignored_stops_nothing(self):
        Registry.stall = "layer"
        child = subprocess.Popen(["sh", "-c", f"trap '' HUP; exec '{BIN}/kiln' install --device cpu geglu-mlp@1"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self.environment)
        self.assertTrue(Registry.stalled.wait(30))
        child.send_signal(signal.SIGHUP)
        Registry.go_on.set()
        self.assertIn(b"geglu-mlp@1", child.communicate(timeout=60)[0])
        self.assertEqual(child.returncode, 0)


if __name__ == "__main__":
    if not REGISTRY.exists():
        print(f"skipped: there is no registry at {REGISTRY}")
        sys.exit(77)
    unittest.main()
