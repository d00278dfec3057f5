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

# A script's background job ignores SIGINT, and what it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
        signing = self.signing()
        self.registry_command("key", "release")
        self.registry_command("attest", "tiny-op@1", "--registry", "registry", "--key", "release", "--records",
                              self.record(), "--source", "https://github.com/acme/kernels", "--commit", "0" * 40,
                              "--builder", "https://ci.example.org/<builder>")
        self.publish("acme")
        self.registry_command("sign", *signing)
        body = self.get(page)[1].decode()
        self.assertRegex(body, r"names this index; valid until \d{4}-\d\d-\d\dT")
        for part in ("built by https://ci.example.org/&lt;builder&gt; of", "SPDX-2.3", "that it was signed",
                     "against fp64 on NVIDIA &lt;H200&gt;, 2026-11-21", "bfloat16 &lt;b&gt;",
                     f"kiln trust add {self.url} --root root.json"):
            self.assertIn(part, body)
        self.registry_command("advisory", "publish", "KA-1", "--text", "wrong <sums>", "--link", "https://example.org/?a&b",
                              "--package", "tiny-op", *signing)
        self.registry_command("advisory", "publish", "KA-2", "--text", "of another", "--package", "acme-op", *signing)
        body = self.get(page)[1].decode()
        self.assertIn("Advisory KA-1 warns of tiny-op: wrong &lt;sums&gt; <a href=\"https://example.org/?a&amp;b\">", body)
        self.assertNotIn("KA-2", body)
        self.assertIn("has an advisory", self.get("/")[1].decode())
        self.registry_command("advisory", "lift", "KA-1", *signing)
        self.assertNotIn("KA-1", self.get(page)[1].decode())
        self.registry_command("yank", "tiny-op@1", "--reason", "wrong <sums>", *signing)
        self.assertIn("took this version back: wrong &lt;sums&gt;", self.get(page)[1].decode())
        self.assertIn("taken back", self.get("/")[1].decode())

    def signing(self):
        """Makes the keys and a root; what 'kiln registry sign' is given from then on."""
        for key in ("root", "targets", "online"):
            self.registry_command("key", key)
        self.registry_command("init", "--root-key", "root.pub", "--targets-key", "targets.pub", "--online-key",
                              "online.pub", "--out", "root.json")
        self.registry_command("sign", "root.json", "--key", "root")
        return ("--registry", "registry", "--root", "root.json", "--key", "targets", "--key", "online")

    def test_what_is_signed_stays_on_offer_until_more_is_signed(self):
        """Of a version that gained variants clients get what was signed; a version that was not signed they do not get."""
        signing = self.signing()
        self.registry_command("sign", *signing)
        signed = json.loads((self.registry / "tiny-op/index.json").read_text())["manifests"][0]["digest"]
        self.publish("two")
        self.publish("next")
        body = self.get("/packages/tiny-op/1.html")[1].decode()
        for part in ("kiln install tiny-op@1", f"Another index of this version is signed: clients still get {signed}",
                     f"names another index, which clients get: <code>{signed}</code>"):
            self.assertIn(part, body)
        self.assertNotIn("refuses it", body)
        self.assertEqual(self.get("/packages/tiny-op/")[1].decode(), body)
        body = self.get("/packages/tiny-op/2.html")[1].decode()
        self.assertIn("does not name this version: Kiln refuses it", body)
        self.assertNotIn("kiln install", body)
        self.registry_command("sign", *signing)
        self.assertIn("version 2", self.get("/packages/tiny-op/")[1].decode())

    def test_a_page_of_before_is_not_served_once_the_registry_cannot_be_read(self):
        signing = self.signing()
        self.registry_command("sign", *signing)
        self.assertEqual(self.get("/packages/tiny-op/")[0].status, 200)
        self.registry_command("yank", "tiny-op@1", "--reason", "wrong sums", *signing)
        metadata = self.registry / "kiln.tuf/index.json"
        good = metadata.read_bytes()
        metadata.write_bytes(b"{")
        for _ in range(2):
            self.assertEqual(self.get("/packages/tiny-op/")[0].status, 500)
        metadata.write_bytes(good)
        self.assertIn(b"took this version back: wrong sums", self.get("/packages/tiny-op/")[1])

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

    def test_ranges_past_an_end_and_several_of_them(self):
        layer = self.layer()
        path = "/v2/tiny-op/blobs/" + layer["digest"]
        size, body = layer["size"], self.get(path)[1]
        for asked, status, wanted in ((f"bytes={size}-", 416, b""), (f"bytes=5-{size + 999}", 206, body[5:]),
                                      (f"bytes=-{size + 999}", 206, body), ("bytes=-3", 206, body[-3:]),
                                      ("bytes=0-0", 206, body[:1]), ("bytes=0-0,2-2", 200, body)):
            response, got = self.get(path, Range=asked)
            self.assertEqual((response.status, got), (status, wanted), asked)
        self.assertEqual(self.get(path, Range=f"bytes={size}-")[0].getheader("Content-Range"), f"bytes */{size}")
        self.assertEqual(self.get(path, Range="bytes=5-")[0].getheader("Content-Range"),
                         f"bytes 5-{size - 1}/{size}")

    def layer(self):
        index = json.loads(self.get("/v2/tiny-op/manifests/1")[1])
        return json.loads(self.get("/v2/tiny-op/manifests/" + index["manifests"][0]["digest"])[1])["layers"][0]

    def test_tags_in_order_and_in_pages(self):
        tags = json.loads(self.get("/v2/tiny-op/tags/list")[1])["tags"]
        self.assertEqual(tags, sorted(tags))
        url, found = "/v2/tiny-op/tags/list?n=2", []
        while url:
            response, body = self.get(url)
            page = json.loads(body)["tags"]
            self.assertLessEqual(len(page), 2)
            found += page
            link = response.getheader("Link")
            self.assertTrue(link is None or link.endswith('>; rel="next"'), link)
            url = link and link[1:link.index(">")]
        self.assertEqual(found, tags)
        for query, wanted in (("n=0", []), ("n=99", tags), (f"last={tags[0]}", tags[1:]), ("last=zzz", [])):
            response, body = self.get("/v2/tiny-op/tags/list?" + query)
            self.assertEqual((json.loads(body)["tags"], response.getheader("Link")), (wanted, None), query)
        self.assertEqual(self.get("/v2/tiny-op/tags/list?n=-1")[0].status, 400)

    def test_errors_have_the_codes_of_the_specification(self):
        none = "sha256:" + "0" * 64
        for path, status, code in (("/v2/none/tags/list", 404, "NAME_UNKNOWN"),
                                   ("/v2/tiny-op/manifests/none", 404, "MANIFEST_UNKNOWN"),
                                   ("/v2/tiny-op/manifests/" + none, 404, "MANIFEST_UNKNOWN"),
                                   ("/v2/tiny-op/manifests/%ff%0a", 404, "MANIFEST_UNKNOWN"),
                                   ("/v2/tiny-op/tags/list?n=%ff", 400, "UNSUPPORTED"),
                                   ("/v2/tiny-op/blobs/" + none, 404, "BLOB_UNKNOWN"),
                                   ("/v2/tiny-op/referrers/sha256:00", 400, "DIGEST_INVALID"),
                                   ("/v2/tiny-op/referrers/1", 400, "DIGEST_INVALID")):
            response, body = self.get(path)
            self.assertEqual((response.status, json.loads(body)["errors"][0]["code"]), (status, code), path)
            self.assertEqual(response.getheader("Content-Type"), "application/json")
        for path in ("/v2/tiny-op/referrers/" + none, "/v2/none/referrers/" + none):
            response, body = self.get(path)
            self.assertEqual((response.status, json.loads(body)["manifests"]), (200, []), path)
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response, body = self.get("/v2/tiny-op/manifests/1", method=method)
            self.assertEqual((response.status, json.loads(body)["errors"][0]["code"]), (405, "UNSUPPORTED"))
            self.assertEqual(response.getheader("Allow"), "GET, HEAD")
        for reference in ("1", self.get("/v2/tiny-op/manifests/1")[0].getheader("Docker-Content-Digest")):
            head, nothing = self.get("/v2/tiny-op/manifests/" + reference, method="HEAD")
            got, body = self.get("/v2/tiny-op/manifests/" + reference)
            for name in ("Docker-Content-Digest", "Content-Type", "Content-Length"):
                self.assertEqual(head.getheader(name), got.getheader(name))
            self.assertEqual("sha256:" + hashlib.sha256(body).hexdigest(), head.getheader("Docker-Content-Digest"))

    def test_links_and_what_is_no_file(self):
        """Nothing but what the registry's own files hold, under their own digests."""
        blobs = self.registry / "tiny-op/blobs/sha256"
        digest = self.layer()["digest"].removeprefix("sha256:")
        path, secret = blobs / digest, self.work / "secret"
        body = path.read_bytes()
        secret.write_bytes(body)  # even the right bytes: they are not the registry's

        def in_its_place(make):
            path.unlink()
            make()
            self.assertEqual(self.get("/v2/tiny-op/blobs/sha256:" + digest)[0].status, 404)
            self.assertEqual(self.get("/v2/tiny-op/manifests/sha256:" + digest)[0].status, 404)
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
            path.write_bytes(body)
            self.assertEqual(self.get("/v2/tiny-op/blobs/sha256:" + digest)[1], body)

        in_its_place(lambda: path.symlink_to(secret))
        in_its_place(lambda: path.symlink_to("/etc/passwd"))
        in_its_place(lambda: path.write_bytes(body[:-1] + b"x"))  # after it was hashed
        in_its_place(lambda: os.mkfifo(path))
        in_its_place(path.mkdir)
        for folder in (blobs, blobs.parent, self.registry / "tiny-op"):
            folder.rename(self.work / "away")
            folder.symlink_to(self.work / "away")
            self.assertIn(self.get("/v2/tiny-op/blobs/sha256:" + digest)[0].status, (404, 500), folder)
            for command in (["check"], ["export-static", "--out", self.work / "out"]):
                done = subprocess.run([REGISTRY, *command, "--registry", self.registry], capture_output=True, text=True,
                                      check=False)
                self.assertEqual(done.returncode, 6, done.stderr)
            folder.unlink()
            (self.work / "away").rename(folder)
        self.assertEqual(self.get("/v2/tiny-op/blobs/sha256:" + digest)[1], body)

    def test_signals_end_it_while_it_works(self):
        card = self.work / "CARD.md"
        card.write_text("# x\n" * 20000)
        subprocess.run([REGISTRY, "describe", "-q", "tiny-op", card, "--registry", self.registry], check=True,
                       stdout=subprocess.DEVNULL)
        for how in (signal.SIGINT, signal.SIGTERM):
            server = subprocess.Popen([REGISTRY, "serve", "-q", "--registry", self.registry],
                                      stdout=subprocess.DEVNULL)
            while os.readlink(f"/proc/{server.pid}/exe") != REGISTRY or not self.catches(server.pid):
                pass
            server.send_signal(how)  # while the first page is made
            self.assertEqual(server.wait(10), 0)

    def catches(self, pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        return caught & 1 << (signal.SIGTERM - 1)

    def test_nothing_outside_and_nobody_elsewhere(self):
        (self.work / "secret").write_text("secret")
        for path in ("/../secret", "/..%2fsecret", "/packages/../../secret", "/v2/tiny-op/blobs/..%2f..%2f..%2fsecret",
                     "/v2/%2e%2e/manifests/1", "//etc/passwd", "/style.css/../../secret"):
            response, body = self.get(path)
            self.assertIn(response.status, (400, 404), path)
            self.assertNotIn(b"secret\n", body)
        self.assertEqual(self.get("/", Host="evil.example")[0].status, 421)
        self.assertEqual(self.get("/", method="POST")[0].status, 405)
        # As a client asks that takes it for a proxy: the URL's host counts, whatever the header says.
        for path in ("/", "/v2/", "/v2/tiny-op/tags/list", "/packages/tiny-op/"):
            asked, expected = self.get(self.url.replace("http", "HTTP") + path, Host="evil.example"), self.get(path)
            self.assertEqual((asked[0].status, asked[1]), (200, expected[1]), path)
        self.assertEqual(self.get(self.url)[0].status, 200)
        self.assertEqual(self.get("http://evil.example/", Host=self.url.removeprefix("http://"))[0].status, 421)
        link = self.get(self.url + "/v2/tiny-op/tags/list?n=1")[0].getheader("Link")
        self.assertTrue(link.startswith("</v2/tiny-op/tags/list?n=1&last="), link)
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
        if os.geteuid() == 0 and int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 80:
            self.work.chmod(0o755)
            done = subprocess.run([REGISTRY, "serve", "--registry", self.registry, "--port", "80"], user=65534, group=65534,
                                  capture_output=True, text=True, check=False, timeout=30)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("Permission denied", done.stderr)


if __name__ == "__main__":
    REGISTRY, KILN, FIXTURE = map(os.path.abspath, sys.argv[1:4])
    unittest.main(argv=sys.argv[:1])
