#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln registry serve under a real client: what it serves installs, and the site follows what is published and signed.

    serve_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import hashlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest


class Serve(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.registry = self.work / "registry"
        subprocess.run([FIXTURE, self.work], check=True)
        self.publish("one")
        self.environment = {"HOME": str(self.work), "PATH": "/usr/bin:/bin", "KILN_CACHE": str(self.work / "cache")}
        self.server = subprocess.Popen([REGISTRY, "serve", "--registry", self.registry], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.end)
        self.url = self.server.stdout.readline().strip()
        self.assertRegex(self.url, r"^http://127\.0\.0\.1:\d+$")

    def end(self, how=signal.SIGTERM):
        if self.server.poll() is None:
            self.server.send_signal(how)
        self.assertEqual(self.server.wait(30), 0)

    def publish(self, built):
        subprocess.run([REGISTRY, "publish", "-q", "--registry", self.registry, self.work / built], check=True,
                       stdout=subprocess.DEVNULL)

    def get(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=30)
        connection.request(method, path, headers={key.replace("_", "-"): value for key, value in headers.items()})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    def kiln(self, *arguments):
        return subprocess.run([KILN, *arguments], capture_output=True, text=True, check=False,
                              env=dict(self.environment, KILN_REGISTRY=self.url, KILN_UNSIGNED=self.url))

    def test_what_it_serves_installs(self):
        found = self.kiln("search")
        self.assertEqual((found.returncode, found.stdout.split()[0]), (0, "tiny-op@1"), found.stderr)
        done = self.kiln("install", "tiny-op@1", "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.publish("next")
        self.assertIn("tiny-op@2", self.kiln("info", "tiny-op").stdout)

    def test_the_site_follows_what_is_published(self):
        response, body = self.get("/")
        self.assertEqual((response.status, response.getheader("Content-Type")), (200, "text/html; charset=utf-8"))
        self.assertIn(b"version 1", body)
        self.assertIn(f"export KILN_REGISTRY={self.url}".encode(), self.get("/packages/tiny-op/")[1])
        self.assertEqual(self.get("/packages/tiny-op/2.html")[0].status, 404)
        self.publish("next")
        self.assertEqual(self.get("/packages/tiny-op/2.html")[0].status, 200)
        self.assertIn(b"version 2", self.get("/")[1])

    def registry_command(self, *arguments):
        done = subprocess.run([REGISTRY, *arguments], capture_output=True, text=True, check=False, cwd=self.work)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_is_signed_is_shown(self):
        page = "/packages/tiny-op/1.html"
        self.assertIn(b"this registry is not signed", self.get(page)[1])
        self.assertIn(b"Nobody signed a statement", self.get(page)[1])
        for key in ("root", "targets", "online", "release"):
            self.registry_command("key", key)
        self.registry_command("init", "--root-key", "root.pub", "--targets-key", "targets.pub", "--online-key",
                              "online.pub", "--out", "root.json")
        self.registry_command("sign", "root.json", "--key", "root")
        self.registry_command("attest", "tiny-op@1", "--registry", "registry", "--key", "release", "--records",
                              self.record(), "--source", "https://github.com/acme/kernels", "--commit", "0" * 40,
                              "--builder", "https://ci.example.org/<builder>")
        signing = ("--registry", "registry", "--root", "root.json", "--key", "targets", "--key", "online")
        self.registry_command("sign", *signing)
        body = self.get(page)[1].decode()
        self.assertRegex(body, r"names this index; valid until \d{4}-\d\d-\d\dT")
        for part in ("built by https://ci.example.org/&lt;builder&gt; of", "SPDX-2.3", "that it was signed",
                     "against fp64 on NVIDIA &lt;H200&gt;, 2026-11-21", "bfloat16 &lt;b&gt;",
                     f"kiln trust add {self.url} --root root.json"):
            self.assertIn(part, body)
        self.registry_command("yank", "tiny-op@1", "--reason", "wrong <sums>", *signing)
        self.assertIn("took this version back: wrong &lt;sums&gt;", self.get(page)[1].decode())
        self.assertIn("taken back", self.get("/")[1].decode())
        self.publish("two")  # another index: the signed one is not this one
        self.assertIn("does not name this index", self.get(page)[1].decode())

    def record(self):
        """Of the CPU variant, as its tests would write it."""
        descriptor = json.loads((self.work / "one/cpu-x86-64-v3/config.json").read_text())
        library = next(each for each in descriptor["files"] if each["path"].endswith(".so"))
        path = self.work / "record.json"
        path.write_text(json.dumps({
            "schema": "kiln.record/1", "hardware": "NVIDIA <H200>", "driver": "1", "date": "2026-11-21",
            "results": [{"variant": "cpu-x86-64-v3", "library": library["digest"], "cases": 9, "failed": 0,
                         "worst": {"bfloat16 <b>": 2e-3, "float32": 7e-7}}]}))
        return path

    def test_ranges_heads_digests(self):
        index = json.loads(self.get("/v2/tiny-op/manifests/1")[1])
        manifest = json.loads(self.get("/v2/tiny-op/manifests/" + index["manifests"][0]["digest"])[1])
        layer = manifest["layers"][0]
        path = "/v2/tiny-op/blobs/" + layer["digest"]
        whole, body = self.get(path)
        self.assertEqual("sha256:" + hashlib.sha256(body).hexdigest(), layer["digest"])
        self.assertEqual(whole.getheader("Docker-Content-Digest"), layer["digest"])
        part, rest = self.get(path, Range="bytes=5-")
        self.assertEqual((part.status, rest), (206, body[5:]))
        head, nothing = self.get(path, method="HEAD")
        self.assertEqual((head.status, head.getheader("Content-Length"), nothing), (200, str(layer["size"]), b""))

    def test_nothing_outside_and_nobody_elsewhere(self):
        (self.work / "secret").write_text("secret")
        for path in ("/../secret", "/..%2fsecret", "/packages/../../secret", "/v2/tiny-op/blobs/..%2f..%2f..%2fsecret",
                     "/v2/%2e%2e/manifests/1", "//etc/passwd", "/style.css/../../secret"):
            response, body = self.get(path)
            self.assertIn(response.status, (400, 404), path)
            self.assertNotIn(b"secret\n", body)
        self.assertEqual(self.get("/", Host="evil.example")[0].status, 421)
        self.assertEqual(self.get("/", method="POST")[0].status, 404)
        listening = pathlib.Path("/proc/net/tcp").read_text().split()
        port = f"{int(self.url.rsplit(':', 1)[1]):04X}"
        self.assertIn(f"0100007F:{port}", listening)
        self.assertNotIn(f"00000000:{port}", listening)

    def test_it_ends_and_says_what_is_wrong(self):
        self.end(signal.SIGINT)
        for arguments, code in (([], 2), (["--registry", self.work / "none"], 4), (["--registry", "https://x.org"], 2)):
            done = subprocess.run([REGISTRY, "serve", *arguments], capture_output=True, text=True, check=False,
                                  env=self.environment, timeout=30)
            self.assertEqual(done.returncode, code, done.stderr)

    def test_a_port_that_is_taken(self):
        done = subprocess.run([REGISTRY, "serve", "--registry", self.registry, "--port", self.url.rsplit(":", 1)[1]],
                              capture_output=True, text=True, check=False, timeout=30)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("is taken", done.stderr)


if __name__ == "__main__":
    REGISTRY, KILN, FIXTURE = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=sys.argv[:1])
