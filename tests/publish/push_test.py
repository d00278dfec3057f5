#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln registry push, and publish to a URL, on synthetic variants: to Debian's docker-registry, killed
at requests all along, and to registries that do wrong what can be done wrong.

    push_test.py KILN_REGISTRY_BINARY WRITE_FIXTURE

Exits with 77 (skipped) without docker-registry or openssl.
"""

import base64
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import forge  # noqa: E402
import sampling  # noqa: E402
from mannered_server import ManneredServer  # noqa: E402
from oci_server import OciServer  # noqa: E402
from servers import Gate, OciRegistry, read_wholly  # noqa: E402

OK, USAGE, NOT_FOUND, NETWORK, INTEGRITY, OFFLINE, CONFLICT = 0, 2, 4, 5, 6, 10, 16
NAME = "tiny-op"
LOGIN = "Basic " + base64.b64encode(b"user:SECRET-password").decode()
QUICK = {"tries": 4, "backoff_ms": 10, "connect_seconds": 2, "stall_seconds": 1, "deadline_seconds": 5}


def tree(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*")}


class PushTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        subprocess.run([FIXTURE, cls.work / "built"], check=True)
        cls.one, cls.two, cls.clash = (cls.work / "built" / name for name in ("one", "two", "clash"))
        cls.local = cls.work / "local"
        (cls.work / "config.json").write_text(json.dumps({"schema": "kiln.settings/1", "network": QUICK}))
        cls.home = cls.work / "home"
        cls.scratch = cls.work / "scratch"
        cls.scratch.mkdir()
        (cls.home / ".docker").mkdir(parents=True)
        cls.environment = {"HOME": str(cls.home), "TMPDIR": str(cls.scratch), "PATH": "/usr/bin:/bin",
                           "KILN_CONFIG": str(cls.work / "config.json")}
        subprocess.run([KILN_REGISTRY, "publish", "--quiet", "--registry", cls.local, cls.one], check=True,
                       stdout=subprocess.DEVNULL)

    def run_kiln(self, *words, code=OK, says=(), **environment):
        """stdout's document; stderr stays in self.errors. Nothing is left on this machine's disk."""
        before = tree(self.work)
        done = subprocess.run([KILN_REGISTRY, *map(str, words), "--json"], capture_output=True, text=True,
                              env=self.environment | environment, timeout=60)
        self.errors = done.stderr
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in says:
            self.assertIn(word, done.stderr)
        self.assertNotIn("SECRET", done.stdout + done.stderr)
        self.assertEqual({path for path in tree(self.work) if "server" not in str(path)},
                         {path for path in before if "server" not in str(path)})
        return json.loads(done.stdout)["packages"] if code == OK else None

    def shown(self, *words):
        """What a person reads: a line for a version and what moved, whatever number of variants it has."""
        return subprocess.run([KILN_REGISTRY, *map(str, words)], capture_output=True, text=True, check=True, timeout=60,
                              env=self.environment).stdout

    def push(self, url, *words, folder=None, **more):
        return self.run_kiln("push", "--registry", folder or self.local, "--to", url, *words, **more)

    def publish(self, url, built, *words, **more):
        return self.run_kiln("publish", "--registry", url, built, *words, **more)

    def log_in(self, host, password="SECRET-password"):
        auth = base64.b64encode(f"user:{password}".encode()).decode()
        (self.home / ".docker" / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))


class Honest(PushTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = OciRegistry(cls.work / "server")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.url = f"{self.server.url}/{self._testMethodName}/nested"

    def test_what_a_folder_has_lands_whole_and_a_second_push_is_one_request(self):
        [pushed] = self.push(self.url)
        index = pushed["index"]["digest"]
        self.assertEqual(read_wholly(self.url, NAME), {"1": index})
        self.assertEqual((pushed["changed"], pushed["blobs_sent"]), (True, 10))  # three a variant, an index
        self.assertEqual(pushed["blobs_verified"], 10)
        self.assertEqual(pushed["pushed"][-1], "1")
        self.assertEqual(sorted(pushed["pushed"]), self.server.tags(self.url, NAME))
        with Gate(self.server.url) as gate:
            [again] = self.push(self.url.replace(self.server.url, gate.url))
            self.assertEqual(gate.requests, 1)
        self.assertEqual((again["changed"], again["pushed"], again["blobs_sent"]), (False, [], 0))
        said = self.shown("push", "--registry", self.local, "--to", self.url, "--verify")
        self.assertEqual(said.splitlines(), [
            f"{NAME}@1 {index}", "  0 variants added, 0 retested, 3 unchanged",
            "  0 blobs sent, 0 bytes; 10 read back and verified; " + said.split("; ")[-1].strip()])
        [verified] = self.push(self.url, "--verify")
        self.assertEqual((verified["changed"], verified["blobs_sent"], verified["blobs_verified"]), (False, 0, 10))

    def test_publish_straight_to_a_server_is_what_a_folder_would_become(self):
        [first] = self.publish(self.url, self.one)
        self.assertEqual(first["index"], self.push(self.url)[0]["index"])
        [second] = self.publish(self.url, self.two)
        self.assertEqual((len(second["added"]), second["unchanged"]), (2, []))
        both = self.work / "both"
        self.run_kiln_into(both, self.one, self.two)
        self.assertEqual(read_wholly(self.url, NAME), {"1": second["index"]["digest"]})
        self.assertEqual(self.push(self.url, folder=both)[0]["index"], second["index"])
        # A folder that has less than the server takes nothing away.
        [less] = self.push(self.url)
        self.assertEqual((less["changed"], less["index"], len(less["unchanged"])), (False, second["index"], 3))
        read_wholly(self.url, NAME, reference=first["index"]["digest"])  # a lock file may name it

    def run_kiln_into(self, folder, *built):
        subprocess.run([KILN_REGISTRY, "publish", "--quiet", "--registry", folder, *built], check=True,
                       stdout=subprocess.DEVNULL)

    def test_other_bytes_under_a_published_variant_are_a_conflict(self):
        [before] = self.publish(self.url, self.one)
        with Gate(self.server.url) as gate:
            through = self.url.replace(self.server.url, gate.url)
            self.publish(through, self.clash, code=CONFLICT, says=["is published as sha256:", 'raise "version"'])
            self.assertEqual(gate.requests, 1)
        self.assertEqual(len(set(word for word in self.errors.replace(",", " ").replace(";", " ").split()
                                 if word.startswith("sha256:"))), 2)
        self.assertEqual(read_wholly(self.url, NAME), {"1": before["index"]["digest"]})

    def test_test_records_join_and_stay(self):
        [first] = self.publish(self.url, self.one)
        config = json.loads((self.one / "cpu-x86-64-v3" / "config.json").read_text())
        [library] = [each["digest"] for each in config["files"] if each["path"].endswith(".so")]
        record = self.work / "record.json"
        record.write_text(json.dumps({"schema": "kiln.record/1", "hardware": "a CPU", "date": "2026-11-24",
                                      "results": [{"variant": "cpu-x86-64-v3", "library": library, "cases": 3,
                                                   "failed": 0}]}))
        [tested] = self.publish(self.url, self.one, "--records", record)
        self.assertEqual((tested["retested"], tested["blobs_sent"]), (["cpu-x86-64-v3"], 1))  # the index alone
        self.assertNotEqual(tested["index"], first["index"])
        [again] = self.push(self.url)  # the folder knows of no test
        self.assertEqual((again["changed"], again["index"]), (False, tested["index"]))
        self.publish(self.url, self.two, "--allow-untested", "", code=NOT_FOUND, says=["no test record"])

    def test_which_packages_and_versions(self):
        self.assertEqual(len(self.push(self.url, f"{NAME}@1")), 1)
        self.push(self.url, f"{NAME}@2", code=NOT_FOUND, says=[f"{NAME}@2", "has no such version"])
        self.push(self.url, "absent", code=NOT_FOUND)
        for word in ("../x", f"{NAME}@", f"{NAME}@x", f"{NAME}@0", "@1"):
            self.push(self.url, word, code=USAGE, says=["expected a package"])

    def test_what_is_no_registry(self):
        self.push("ftp://127.0.0.1/x", code=USAGE)
        self.push("https://user:SECRET@127.0.0.1/x", code=USAGE)
        self.push("http://registry.example.org", code=USAGE, says=["plain http is only for this machine"])
        self.push(self.work / "elsewhere", code=USAGE, says=["this is not a URL", "kiln registry publish"])
        self.push("http://127.0.0.1:1/x", code=NETWORK, says=["gave up after 4 tries"])
        self.push(self.url, code=OFFLINE, KILN_OFFLINE="1")

    def test_killed_at_any_request_the_version_is_the_old_or_the_new_one(self):
        base = self.url
        [old] = self.publish(base + "/whole", self.one)
        requests = self.publish_through_gate(base + "/whole")
        [new] = self.publish(base + "/whole", self.two)
        self.assertGreaterEqual(requests, 40)
        seen = {old["index"]["digest"]: 0, new["index"]["digest"]: 0}
        tag = range(requests - 2, requests + 1)  # it moves in one of the last
        kills = sampling.every_nth(range(1, requests + 1), 5, always=tag)
        for at in kills:
            url = f"{base}/killed-{at}"
            self.publish(url, self.one)
            # Before the registry hears of it, when it has heard half of it, and when it has answered.
            self.publish_through_gate(url, kill_at=at, heard=at % 3 == 0, halved=at % 3 == 1)
            found = read_wholly(url, NAME)["1"]
            seen[found] += 1
            [after] = self.publish(url, self.two)
            self.assertEqual(after["index"], new["index"])
            self.assertEqual(read_wholly(url, NAME), {"1": new["index"]["digest"]})
        print(f"{len(kills)} kills at {requests} requests: {list(seen.values())} times the old and the new version")
        self.assertGreater(min(seen.values()), 0)

    def publish_through_gate(self, url, kill_at=0, **when):
        """Publishes `two` and is killed at the given request; how many there were."""
        started = threading.Event()

        def kill():
            started.wait()
            process.kill()
            process.wait()

        with Gate(self.server.url, kill, kill_at, **when) as gate:
            process = subprocess.Popen([KILN_REGISTRY, "publish", "--quiet", "--registry",
                                        url.replace(self.server.url, gate.url), self.two],
                                       env=self.environment, stdout=subprocess.DEVNULL)
            started.set()
            self.assertEqual(process.wait(), -signal.SIGKILL if kill_at else OK)
            return gate.requests


class Mannered(PushTest):
    """To a registry as the large ones are."""

    def test_blobs_behind_addresses_that_are_signed_for_get_alone_are_not_sent_again(self):
        server = ManneredServer(self)
        self.push(server.url)
        blobs = len(server.blobs)
        del server.documents[NAME, "1"]  # cut before the tag
        server.requests.clear()
        [again] = self.push(server.url)
        self.assertTrue(again["changed"])
        self.assertFalse([each for each in server.sent() if "/blobs/" in each], server.sent())
        self.assertEqual(len(server.blobs), blobs)
        self.assertIn(("HEAD", 403), server.store.asked)

    def test_a_store_that_refuses_is_named_and_no_login_is_asked_for(self):
        server = ManneredServer(self)
        self.push(server.url)
        del server.documents[NAME, "1"]
        server.store.refuses = True
        self.push(server.url, code=NETWORK, says=[f"status 403 from http://{server.store.host}/",
                                                 f"the store to which the registry {server.host} sends"])
        self.assertNotIn("docker login", self.errors)

    def test_a_tag_that_may_not_move_is_told_in_the_server_s_words(self):
        server = ManneredServer(self, immutable=lambda tag: True)
        [before] = self.publish(server.url, self.one)
        self.publish(server.url, self.two, code=NETWORK, says=[
            "TAG_INVALID: The image tag '1' already exists", "the tag is immutable", "exempt those that Kiln moves"])
        self.assertEqual(server.tags(NAME)["1"], before["index"]["digest"])
        # With these exempt, a version grows: its variants' tags never move.
        server = ManneredServer(self, immutable=lambda tag: tag not in ("1", "latest"))
        self.publish(server.url, self.one)
        self.assertTrue(self.publish(server.url, self.two)[0]["changed"])


class Wrong(PushTest):
    """Servers that do wrong. The index of what is pushed is known from a server that does not."""

    def setUp(self):
        (self.home / ".docker" / "config.json").unlink(missing_ok=True)
        honest = OciServer(self)
        [pushed] = self.push(honest.url)
        self.index = pushed["index"]["digest"]

    def assert_whole(self, server):
        self.assertEqual(server.tags(NAME)["1"], self.index)

    def assert_untouched(self, server):
        self.assertNotIn("1", server.tags(NAME))

    def test_every_third_request_is_dropped(self):
        def meddle(request, serve):
            if request.number % 3:
                return serve()
            if request.number % 2:
                serve()  # heard, and not answered
            return None

        server = OciServer(self, meddle)
        self.push(server.url)
        self.assert_whole(server)

    def test_too_many_requests(self):
        waited = set()

        def meddle(request, serve):
            if str(request) not in waited and request.method in ("POST", "PUT") and "manifests/1" in request.path:
                waited.add(str(request))
                return 429, {"Retry-After": "1"}, b""
            return serve()

        server = OciServer(self, meddle)
        started = time.monotonic()
        self.push(server.url)
        self.assertGreaterEqual(time.monotonic() - started, len(waited))
        self.assertEqual(len(waited), 4)  # the tags
        self.assertIn("status 429", self.errors)
        self.assert_whole(server)

    def test_a_server_in_trouble_is_left_alone_after_some_tries(self):
        server = OciServer(self, lambda request, serve: (503, {}, b"") if request.method == "PUT" else serve())
        self.push(server.url, code=NETWORK, says=["status 503", "gave up after 4 tries"])
        self.assertEqual(len([each for each in server.requests if each.method == "PUT"]), 4)
        self.assertEqual(len([each for each in server.requests if each.method == "POST"]), 4)  # each anew
        self.assert_untouched(server)

    def test_a_server_that_says_nothing(self):
        def meddle(request, serve):
            if request.method == "PUT":
                time.sleep(2)
                return None
            return serve()

        started = time.monotonic()
        self.push(OciServer(self, meddle).url, code=NETWORK)
        self.assertLess(time.monotonic() - started, 60)

    def test_an_upload_that_the_server_lost_is_begun_anew(self):
        lost = []

        def meddle(request, serve):
            if request.is_a("PUT", "/uploads/") and not lost:
                lost.append(request.path)
                return 404, {}, b'{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN"}]}'
            return serve()

        server = OciServer(self, meddle)
        self.push(server.url)
        self.assertEqual(sum(each.path == lost[0] for each in server.requests), 1)
        self.assert_whole(server)

    def test_an_upload_that_is_cut_is_begun_anew(self):
        key, certificate = self.work / "key.pem", self.work / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                        certificate, "-days", "2", "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        root = self.work / "cut"
        forge.Package(root, files={"lib/libsample.so": os.urandom(8 << 20)}).publish()
        for tls in (None, context):
            with self.subTest(tls=bool(tls)):
                cut = []

                def cuts(method, path):
                    if method == "PUT" and "/uploads/" in path and len(cut) < 2:
                        cut.append(path)
                        return True
                    return False

                server = OciServer(self, context=tls, cuts=cuts)
                self.push(server.url, folder=root, SSL_CERT_FILE=str(certificate))
                self.assertEqual(len(cut), 2)
                self.assertFalse(set(cut) & {f"{each.path}?state=a%2Fb&digest={each.query['digest'][0]}"
                                             for each in server.requests if each.is_a("PUT", "/uploads/")})
                self.assertIn("1", server.tags("sample"))

    def test_an_upload_may_go_to_another_server_which_hears_no_login(self):
        store = OciServer(self)
        store.meddle = lambda request, serve: store.keep(request)

        def meddle(request, serve):
            if request.headers["Authorization"] != LOGIN:
                return 401, {"WWW-Authenticate": 'Basic realm="tests"'}, b""
            if request.method == "POST":
                return 202, {"Location": f"{store.url}/elsewhere?signed=a%2Bb"}, b""
            return serve()

        server = OciServer(self, meddle)
        server.blobs = store.blobs
        self.log_in(server.host)
        self.push(server.url)
        self.assert_whole(server)
        self.assertEqual(len(store.requests), 6)
        for request in store.requests:
            self.assertIsNone(request.headers["Authorization"])
            self.assertEqual(request.query["signed"], ["a+b"])

    def test_a_401_of_another_server_is_not_answered(self):
        store = OciServer(self, lambda request, serve: (401, {"WWW-Authenticate": 'Basic realm="evil"'}, b""))
        server = OciServer(self)
        server.meddle = lambda request, serve: (202, {"Location": store.url + "/x"}, b"") \
            if request.method == "POST" else serve()
        self.log_in(store.host)
        self.push(server.url, code=NETWORK, says=["status 401"])
        self.assertEqual([each.headers["Authorization"] for each in store.requests], [None])

    def test_addresses_that_no_upload_goes_to(self):
        for location in ("", "ftp://127.0.0.1/x", "file:///etc/passwd", "http://registry.example.org/x", "//"):
            with self.subTest(location):
                server = OciServer(self)
                server.meddle = lambda request, serve: (202, {"Location": location}, b"") \
                    if request.method == "POST" else serve()
                if location == "":  # the page itself: the upload is not known there
                    self.push(server.url, code=NETWORK)
                else:
                    self.push(server.url, code=NETWORK, says=["wants it at"])
                self.assert_untouched(server)

    def test_an_absolute_address_of_the_same_server(self):
        def meddle(request, serve):
            status, headers, body = serve()
            if "Location" in headers:
                headers["Location"] = server.url + headers["Location"]
            return status, headers, body

        server = OciServer(self, meddle)
        self.push(server.url)
        self.assert_whole(server)

    def test_no_body_follows_a_redirect(self):
        elsewhere = OciServer(self)
        for method in ("POST", "PUT"):
            server = OciServer(self)
            server.meddle = lambda request, serve: (307, {"Location": elsewhere.url + request.path}, b"") \
                if request.method == method else serve()
            self.push(server.url, code=NETWORK, says=["it redirects an upload to"])
            self.assert_untouched(server)
        self.assertEqual(elsewhere.requests, [])

    def test_other_bytes_than_were_sent_are_noticed_before_the_tag_moves(self):
        def flip(data):
            return bytes([data[0] ^ 1]) + data[1:]

        def blobs(request, serve):
            answer = serve()
            if request.is_a("PUT", "/uploads/"):
                [digest] = request.query["digest"]
                server.blobs[digest] = flip(server.blobs[digest])
            return answer

        def documents(request, serve):
            answer = serve()
            if request.is_a("PUT", "/manifests/sha256:"):
                key = NAME, request.path.rsplit("/", 1)[1]
                server.documents[key] = (server.documents[key][0], flip(server.documents[key][1]))
            return answer

        def nothing(request, serve):
            return (201, {}, b"") if request.is_a("PUT", "/uploads/") else serve()

        for meddle in (blobs, documents, nothing):
            with self.subTest(meddle.__name__):
                server = OciServer(self, meddle)
                self.push(server.url, code=INTEGRITY, says=["verify "])
                server.meddle = lambda request, serve: serve()
                if meddle is nothing:
                    self.push(server.url)
                    self.assert_whole(server)
                else:  # what is there now is not what its name says: the next push looks closer than HEAD
                    self.push(server.url, code=INTEGRITY, says=["verify "])
                    self.assert_untouched(server)

    def test_a_tag_that_does_not_move_is_noticed(self):
        def meddle(request, serve):
            return (201, {}, b"") if request.is_a("PUT", "/manifests/1") and request.path.endswith("/1") else serve()

        self.push(OciServer(self, meddle).url, code=INTEGRITY, says=["it names nothing", "as pushed"])

    def test_another_publisher_in_between_is_noticed_and_not_overwritten(self):
        theirs = OciServer(self)
        self.publish(theirs.url, self.two)
        for when in ("first", "last"):
            with self.subTest(when):
                def meddle(request, serve):
                    answer = serve()
                    wanted = "/uploads/" if when == "first" else "/manifests/1-"
                    if request.is_a("PUT", wanted) and "1" not in server.tags(NAME):
                        server.documents |= theirs.documents
                        server.blobs |= theirs.blobs
                    return answer

                server = OciServer(self, meddle)
                self.push(server.url, code=CONFLICT, says=["somebody published meanwhile", "Run it again"])
                self.assertEqual(server.tags(NAME)["1"], theirs.tags(NAME)["1"])
                [after] = self.push(server.url)
                self.assertEqual(len(after["added"]), 3)

    def test_a_variant_that_the_server_lost_is_sent_again(self):
        server = OciServer(self)
        self.push(server.url)
        [layer] = json.loads(server.documents[NAME, "1-cpu-x86-64-v3"][1])["layers"]
        digest = layer["digest"]
        del server.blobs[digest]
        [repaired] = self.push(server.url, "--verify")
        self.assertEqual((repaired["changed"], repaired["blobs_sent"]), (False, 1))
        self.assertIn(digest, server.blobs)
        del server.blobs[digest]
        self.publish(server.url, self.two, code=INTEGRITY, says=["was not given here", "left alone"])
        self.assert_whole(server)

    def test_a_token_that_ends_in_the_middle_is_replaced(self):
        used = {}

        def give(request, serve):
            if request.headers["Authorization"] != LOGIN:
                return 403, {}, b"{}"
            used[f"Bearer SECRET-{request.number}"] = 0
            return 200, {}, json.dumps({"token": f"SECRET-{request.number}"}).encode()

        tokens = OciServer(self, give)

        def meddle(request, serve):
            token = request.headers["Authorization"]
            if token not in used or used[token] >= 5:
                return 401, {"WWW-Authenticate": f'Bearer realm="{tokens.url}/t",service="s",'
                             f'scope="repository:{request.path.split("/")[2]}:pull"'}, b""
            used[token] += 1
            return serve()

        server = OciServer(self, meddle)
        self.log_in(server.host)
        self.push(server.url)
        self.assert_whole(server)
        self.assertGreater(len(used), 8)
        *pushing, asking = [request.query["scope"] for request in tokens.requests]
        self.assertEqual(pushing, [[f"repository:{NAME}:pull,push"]] * len(pushing))
        self.assertEqual(asking, ["repository:kiln.tuf:pull"])  # whether the registry is signed: a read

    def test_a_refusal_is_answered_once(self):
        server = OciServer(self, lambda request, serve: (401, {"WWW-Authenticate": 'Basic realm="x"'}, b""))
        self.push(server.url, code=NETWORK, says=["wants a user and a password", "docker login"])
        self.log_in(server.host)
        self.push(server.url, code=NETWORK, says=["status 401", "with the login of"])
        self.assertEqual(len(server.requests), 3)
        server = OciServer(self, lambda request, serve: (403, {}, b"") if request.method == "POST" else serve())
        self.push(server.url, code=NETWORK, says=["status 403", "begin the upload"])

    def test_a_page_of_something_else_is_no_version(self):
        server = OciServer(self, lambda request, serve: (200, {"Content-Type": "text/html"}, b"<html>"))
        self.push(server.url, code=INTEGRITY)
        self.assertEqual(server.sent(), [])

    def test_a_large_layer_is_never_whole_in_memory(self):
        peaks = []

        def meddle(request, serve):
            if request.is_a("PUT", "/manifests/1") and request.path.endswith("/1"):  # all else was sent
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peaks.append(int(re.search(r"VmHWM:\s*([0-9]+) kB", status)[1]) >> 10)
            return serve()

        for size in (1 << 16, 48 << 20):
            root = self.work / f"large-{size}"
            forge.Package(root, files={"lib/libsample.so": os.urandom(size)}).publish()
            server = OciServer(self, meddle)
            process = subprocess.Popen([KILN_REGISTRY, "push", "--quiet", "--registry", root, "--to", server.url],
                                       env=self.environment, stdout=subprocess.DEVNULL)
            self.assertEqual(process.wait(), OK)
            self.assertGreaterEqual(max(map(len, server.blobs.values())), size)
            shutil.rmtree(root)
        print(f"peak memory: {peaks[0]} MiB for a small layer, {peaks[1]} MiB for one of 48 MiB")
        self.assertLess(peaks[1] - peaks[0], 24)


if __name__ == "__main__":
    KILN_REGISTRY, FIXTURE = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    for tool in ("docker-registry", "openssl"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is not installed; run ci/setup test")
            sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
