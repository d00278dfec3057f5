#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a signed registry is asked for, counted, and what an install makes of servers that fail in the middle:
requests cold, warm and of 64 processes at once; a registry that is killed while a layer comes, and a mirror
that goes on from there; a server that drops every third request.

Wants KILN_BIN, and the Python of build/python; docker-registry and skopeo for the kill of a real registry.
"""

import collections
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "trust"), str(HERE.parent / "publish")]
import forge  # noqa: E402
from misbehave import Server  # noqa: E402
from servers import OciRegistry, get  # noqa: E402
from signed_registry import SignedRegistry  # noqa: E402

KILN = pathlib.Path(os.environ["KILN_BIN"]) / "kiln"
LIBRARY = random.Random(7).randbytes(4 << 20)  # it is not loaded here
CROWD = 64
QUICK = {"tries": 4, "backoff_ms": 20, "connect_seconds": 2, "stall_seconds": 2, "deadline_seconds": 30}


class Counting(Server):
    """Notes, by path, which bytes of a body it has sent: pairs of the first and the one behind the last."""

    def __init__(self, root, behave=None):
        self.sent = collections.defaultdict(list)
        self.lock = threading.Lock()
        self.killed = False
        super().__init__(root, "", self.count)
        self.change = behave or (lambda connection: False)

    def count(self, connection):
        if self.killed:
            connection.reset()
        elif connection.body is None:
            connection.honest()
        elif not self.change(connection):
            self.give(connection, len(connection.body))

    def give(self, connection, until):
        """The body as it was asked for, up to byte `until`; then the connection ends."""
        wanted = connection.headers.get("range")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        with self.lock:
            self.sent[connection.path].append((start, until))
        total = len(connection.body)
        head = [f"Content-Range: bytes {start}-{total - 1}/{total}"] if wanted else []
        connection.answer(206 if wanted else 200, *head, body=connection.body[start:until], length=total - start)

    def kill(self):
        self.killed = True
        self.close()


class Door(Counting):
    """The same before a registry that is a process of its own."""

    def __init__(self, url, behave=None):
        self.url = url
        super().__init__("/", behave)

    def content(self, path):
        try:
            return get(self.url + path)
        except OSError:  # it was killed
            return None


class Faults(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.root = self.work / "registry"
        self.package = forge.Package(self.root, files={"LICENSE": b"x\n", "lib/libsample.so": LIBRARY})
        self.package.carries = True
        self.package.publish()
        self.layer = f"/v2/sample/blobs/{forge.digest_of(self.package.layer)}"
        signed = SignedRegistry(self.root)
        signed.close()
        signed.vouch(signed.index())
        (self.work / "root.json").write_bytes(signed.first_root)
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.work), "KILN_CACHE": str(self.work / "cache"),
                            "KILN_CONFIG": str(self.work / "config.json")}
        self.settings()

    def settings(self, **members):
        (self.work / "config.json").write_text(json.dumps({"schema": "kiln.settings/1", "network": QUICK} | members))

    def kiln(self, *words):
        done = subprocess.run([KILN, *map(str, words)], env=self.environment, capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stderr

    def trust(self, url):
        self.kiln("trust", "add", url, "--root", self.work / "root.json")

    def command(self, url):
        return [KILN, "install", "sample@1", "--device", "cpu", "--registry", url]

    def serve(self, behave=None):
        server = Counting(self.root, behave)
        self.addCleanup(server.close)
        url = f"http://127.0.0.1:{server.port}"
        self.trust(url)
        return server, url

    def assert_each_byte_once(self, *servers):
        """Of the layer, as all of these servers sent it."""
        pieces = sorted(piece for server in servers for piece in server.sent[self.layer])
        at = 0
        for start, end in pieces:
            self.assertEqual(start, at, pieces)
            at = end
        self.assertEqual(at, len(self.package.layer))

    def test_requests_cold_warm_and_of_a_refresh(self):
        server, url = self.serve()
        self.kiln(*self.command(url)[1:])
        cold = list(server.asked)
        trust = [path for path in cold if "/kiln.tuf/" in path]
        self.assertEqual(trust[0], "/v2/kiln.tuf/manifests/latest")
        self.assertEqual(len(trust), 4)  # the artifact; timestamp, snapshot, targets: nothing is inside it here
        [index, layer] = [path for path in cold if "/sample/" in path]
        self.assertTrue(index.startswith("/v2/sample/manifests/sha256:"), index)
        self.assertEqual(layer, self.layer)
        self.assertEqual(len(cold), 6)
        self.assert_each_byte_once(server)
        self.kiln(*self.command(url)[1:])
        self.assertEqual(server.asked, cold)
        self.kiln(*self.command(url)[1:], "--refresh")
        self.assertEqual(server.asked[len(cold):], [
            "/v2/kiln.tuf/manifests/latest", trust[1]])  # the timestamp is the same: nothing else is asked for
        print(f"requests: {len(cold)} cold ({len(trust)} of them for trust), 0 warm, "
              f"{len(server.asked) - len(cold)} of a refresh")

    def test_a_crowd_of_processes_downloads_once(self):
        server, url = self.serve()
        self.settings(network=QUICK | {"connect_seconds": 30, "stall_seconds": 30, "deadline_seconds": 100})
        started = time.monotonic()
        crowd = [subprocess.Popen(self.command(url), env=self.environment, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) for _ in range(CROWD)]
        for process in crowd:
            _, errors = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, errors.decode())
        self.assert_each_byte_once(server)
        counts = collections.Counter(server.asked)
        for path, count in counts.items():
            if "/kiln.tuf/manifests/" not in path and "/kiln.tuf/blobs/" not in path:
                self.assertLessEqual(count, CROWD if "/manifests/" in path else 1, path)
        print(f"{CROWD} processes at once: {len(server.asked)} requests, {counts[self.layer]} of the layer, "
              f"{time.monotonic() - started:.1f} s")

    def test_a_registry_that_is_killed_while_a_layer_comes_and_a_mirror_that_goes_on(self):
        half = len(self.package.layer) // 2
        for who in ("the next mirror", "the registry"):
            with self.subTest(who):
                def die(connection):
                    if connection.path != self.layer:
                        return False
                    first.give(connection, half)
                    first.kill()
                    return True

                first = Counting(self.root, die)
                second, url = self.serve()
                mirrors = [f"http://127.0.0.1:{first.port}"]
                if who == "the next mirror":
                    mirrors.append(url)
                    url = "https://registry.invalid"
                    self.trust(url)
                self.settings(mirrors={url: mirrors})
                errors = self.kiln(*self.command(url)[1:], "--cache", self.work / who)
                self.assertIn("is left", errors)
                self.assertEqual(first.sent[self.layer], [(0, half)])
                self.assertEqual(second.sent[self.layer], [(half, len(self.package.layer))])
                self.assert_each_byte_once(first, second)

    @unittest.skipUnless(shutil.which("docker-registry") and shutil.which("skopeo"), "run ci/setup test")
    def test_docker_registry_is_killed_while_a_layer_comes_and_another_goes_on(self):
        registries = []
        for name in ("killed", "other"):
            registries.append(OciRegistry(self.work / name))
            self.addCleanup(registries[-1].stop)
            for package, tag in (("sample", "1"), ("kiln.tuf", "latest")):
                registries[-1].copy(self.root / package, tag, registries[-1].url, package)
        half = len(self.package.layer) // 2

        def die(connection):
            if connection.path != self.layer:
                return False
            first.give(connection, half)
            registries[0].process.kill()
            first.kill()
            return True

        first, second = Door(registries[0].url, die), Door(registries[1].url)
        url = f"http://127.0.0.1:{second.port}"
        self.addCleanup(second.close)
        self.trust(url)
        self.settings(mirrors={url: [f"http://127.0.0.1:{first.port}"]})
        self.assertIn("is left", self.kiln(*self.command(url)[1:]))
        self.assertEqual(first.sent[self.layer], [(0, half)])
        self.assert_each_byte_once(first, second)

    def test_every_third_request_is_dropped(self):
        most = 0
        for first in range(3):
            with self.subTest(first=first):
                def drop(connection):
                    with server.lock:
                        dropped = len(server.asked) % 3 == first
                    if not dropped:
                        return False
                    if connection.path == self.layer:  # in the middle of what is left
                        start = int(connection.headers.get("range", "bytes=0-")[6:-1])
                        server.give(connection, start + (len(connection.body) - start) // 2)
                    else:
                        connection.reset()
                    return True

                server, url = self.serve(drop)
                errors = self.kiln(*self.command(url)[1:], "--cache", self.work / f"cache-{first}")
                self.assertIn("again in", errors)
                self.assert_each_byte_once(server)
                most = max(most, len(server.sent[self.layer]))
                print(f"every third request dropped: {len(server.asked)} requests, "
                      f"{len(server.sent[self.layer])} of the layer, no byte twice")
        self.assertGreater(most, 1)


if __name__ == "__main__":
    unittest.main()
