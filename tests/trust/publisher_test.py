#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What kiln-registry signs: read by python-tuf, and installed by kiln from a folder, a web server and a
registry, by who trusts the root and nothing else.

    publisher_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import base64
import fcntl
import functools
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from securesystemslib.formats import encode_canonical
from tuf.api.metadata import Metadata
from tuf.ngclient import Updater

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "publish")]
from clock import later  # noqa: E402
from oci_server import OciServer  # noqa: E402

OK, USAGE, NOT_FOUND, INTEGRITY, TRUST, CONFLICT = 0, 2, 4, 6, 7, 16
NAME = "tiny-op"
# A script's background job ignores SIGINT, and what it starts would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def serve_folder(test, folder):
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    test.addCleanup(server.server_close)
    test.addCleanup(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


def python_tuf_reads(test, url):
    """What the reference client says the version is."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=test.work))
    updater = Updater(str(folder / "metadata"), f"{url}/metadata", str(folder), f"{url}/targets",
                      bootstrap=test.root.read_bytes())
    updater.refresh()
    target = updater.get_targetinfo(f"{NAME}/1")
    return digest_of(pathlib.Path(updater.download_target(target)).read_bytes())


class PublisherTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.environment = {"HOME": str(self.work), "PATH": "/usr/bin:/bin", "KILN_CACHE": str(self.work / "cache"),
                            "KILN_KEY_PASSPHRASE": "correct horse"}
        subprocess.run([FIXTURE, self.work / "built"], check=True)
        self.registry = self.work / "registry"
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one")
        for name in ("root", "targets", "online"):
            self.make_key(name)
        self.root = self.work / "1.root.json"
        self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("targets"),
                  "--online-key", self.public("online"), "--out", self.root)
        self.kiln("registry", "sign", self.root, "--key", self.private("root"))

    def run_command(self, program, *words, code=OK, says=(), **environment):
        done = subprocess.run([program, *map(str, words), "--json"], capture_output=True, text=True, timeout=60,
                              env=self.environment | environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in [says] if isinstance(says, str) else says:
            self.assertIn(word, done.stderr + done.stdout)
        self.assertNotIn("PRIVATE", done.stdout + done.stderr)
        return json.loads(done.stdout) if code == OK else None

    def kiln(self, *words, **how):
        if words[0] == "registry":
            return self.run_command(KILN_REGISTRY, *words[1:], **how)
        return self.run_command(KILN, *words, **how)

    def make_key(self, name, *words):
        (self.work / "keys").mkdir(exist_ok=True)
        return self.kiln("registry", "key", self.private(name), *words)["id"]

    def private(self, name):
        return self.work / "keys" / name

    def public(self, name):
        return self.work / "keys" / f"{name}.pub"

    def sign(self, *words, keys=("targets", "online"), **how):
        named = [word for key in keys for word in ("--key", self.private(key))]
        return self.kiln("registry", "sign", "--registry", self.registry, *words, *named, **how)

    def yank(self, reason, **how):
        return self.kiln("registry", "yank", f"{NAME}@1", "--reason", reason, "--registry", self.registry, "--key",
                         self.private("targets"), "--key", self.private("online"), **how)

    def trust(self, registry, root=None):
        self.kiln("trust", "add", registry, "--root", root or self.root)

    def install(self, registry, **how):
        shutil.rmtree(self.work / "lock", ignore_errors=True)
        return self.kiln("install", f"{NAME}@1", "--registry", registry, "--device", "cpu", **how)

    def refresh_of(self, registry, **how):
        """Installs into a cache that has nothing but the metadata that it saw."""
        for name in ("unpacked", "blobs", "refs", "installed"):
            shutil.rmtree(self.work / "cache" / name, ignore_errors=True)
        return self.install(registry, **how)

    def export(self):
        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www")
        return serve_folder(self, self.work / "www")

    def index(self):
        [version] = self.kiln("registry", "list", "--registry", self.registry)["versions"]
        return version["index"]["digest"]


class AirGap(PublisherTest):
    """docs/AIR_GAP.md, on two machines: the other one has a home, a cache and a trust of its own."""

    def carried(self, registry):
        file = self.work / "kernels.tar"
        self.kiln("bundle", "create", f"{NAME}@1", "--all-variants", "-o", file, "--registry", registry)
        there = self.work / "there"
        there.mkdir()
        self.there = {"HOME": str(there), "KILN_CACHE": str(there / "cache")}
        return shutil.copy(file, there / "kernels.tar")

    def test_of_a_signed_registry(self):
        self.sign("--root", self.root)
        url = self.export()
        self.trust(url)
        file = self.carried(url)
        self.kiln("bundle", "install", file, "--device", "cpu", code=TRUST, **self.there, says=[
            f"bundle {file} has {NAME}@1 of {url}, signed", f"kiln trust add {url} --root root.json"])
        self.kiln("trust", "add", url, "--root", self.root, **self.there)
        done = self.kiln("bundle", "install", file, "--device", "cpu", **self.there, says=f"KILN_REGISTRY={url}")
        self.assertEqual(done["installed"][0]["registry"], url)
        self.kiln("resolve", f"{NAME}@1", "--device", "cpu", **self.there, KILN_REGISTRY=url, KILN_OFFLINE="1")

    def test_of_an_unsigned_folder(self):
        self.kiln("trust", "add", self.registry, "--unsigned")
        file = self.carried(self.registry)
        words = ("bundle", "install", file, "--device", "cpu")
        self.kiln(*words, code=TRUST, **self.there, says=[f"{NAME}@1 of {self.registry}, unsigned",
                                                         f"kiln trust add {self.registry} --unsigned"])
        self.kiln("trust", "add", self.registry, "--unsigned", **self.there)
        self.kiln(*words, code=TRUST, **self.there, says=f"kiln bundle install {file} --registry {self.registry}")
        self.kiln(*words, "--registry", self.registry, **self.there)


class Waits(PublisherTest):
    """Somebody else holds what is to be changed."""

    def wait_and_stop(self, held, *words):
        held.parent.mkdir(parents=True, exist_ok=True)
        with open(held, "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for stop in (signal.SIGINT, signal.SIGTERM):
                with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                      env=self.environment) as run:
                    said = run.stderr.readline()
                    self.assertIn(f"waiting for process {os.getpid()}, which holds {held}", said)
                    run.send_signal(stop)
                    run.stderr.read()
                self.assertEqual(run.returncode, 130)

    def test_trust(self):
        """Whoever changes the file holds its folder; where it is a link, that of the file behind it."""
        for linked in (False, True):
            with self.subTest(linked=linked):
                self.trust_waits(linked)

    def trust_waits(self, linked):
        folder = self.work / ".config/kiln"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "trust.json"
        if linked:
            shared = self.work / "shared"
            shared.mkdir()
            file.symlink_to(shared / "trust")
            folder, file = shared, shared / "trust"
        # A directory is locked by its descriptor.
        descriptor = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for stop in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([KILN, "trust", "add", "/srv", "--unsigned"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, env=self.environment) as run:
                said = run.stderr.readline()
                run.send_signal(stop)
                run.stderr.read()
            self.assertIn(f"waiting for process {os.getpid()}, which holds {file}", said)
            self.assertEqual(run.returncode, 130)
        self.assertFalse(file.exists())

    def test_sign_and_publish(self):
        self.wait_and_stop(self.registry / "kiln.tuf/.lock", KILN_REGISTRY, "sign", "--registry", self.registry,
                           "--root", self.root, "--key", self.private("targets"), "--key", self.private("online"))
        self.assertFalse((self.registry / "kiln.tuf/index.json").exists())
        self.wait_and_stop(self.registry / NAME / ".lock", KILN_REGISTRY, "publish", "--quiet", "--registry",
                           self.registry, self.work / "built/two")

    def test_who_signs_a_file_waits_for_who_signs_it_too_and_loses_no_signature(self):
        """A root; a registry's draft that was sent; and that draft where it lies."""
        for name in ("other", "second"):
            self.make_key(name)
        both = self.work / "both.json"
        self.kiln("registry", "init", "--threshold", 2, "--root-key", self.public("root"), "--root-key", self.public("other"),
                  "--targets-threshold", 2, "--targets-key", self.public("targets"), "--targets-key", self.public("second"),
                  "--online-key", self.public("online"), "--out", both)
        self.meanwhile(both, "root", "other")
        self.assertEqual(self.kiln("registry", "sign", both)["missing"], [])
        self.sign("--root", both, keys=())
        draft = self.registry / "kiln.tuf/draft"
        sent = pathlib.Path(shutil.copy(draft, self.work / "sent"))
        for file in (sent, draft):
            self.meanwhile(file, "targets", "second", "--root", both)
            self.assertEqual(self.kiln("registry", "sign", file, "--root", both)["missing"], [])

    def meanwhile(self, file, first, second, *words):
        """`first` signs while somebody else, who holds the file, adds what `second` has signed."""
        other = shutil.copy(file, self.work / "copy")
        self.kiln("registry", "sign", other, *words, "--key", self.private(second))
        place = file.parent / ".lock" if file.name == "draft" else file.parent
        descriptor = os.open(place, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        words = [KILN_REGISTRY, "sign", file, *words, "--key", self.private(first)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=self.environment) as run:
            self.assertIn(f"waiting for process {os.getpid()}, which holds", run.stderr.readline())
            run.send_signal(signal.SIGINT)
            run.stderr.read()
        self.assertEqual(run.returncode, 130)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=self.environment) as run:
            self.assertIn(f"waiting for process {os.getpid()}, which holds", run.stderr.readline())
            os.replace(other, file)
            os.close(descriptor)
            self.assertEqual(run.stderr.read(), "")
        self.assertEqual(run.returncode, OK)


class Keys(PublisherTest):
    def test_each_type_signs_a_registry(self):
        for kind in ("ed25519", "ecdsa", "rsa"):
            with self.subTest(kind):
                registry = self.registry = self.work / kind
                shutil.copytree(self.work / "registry", registry)
                root = self.work / f"{kind}.json"
                names = [f"{kind}-{role}" for role in ("root", "targets", "online")]
                for name in names:
                    self.make_key(name, "--type", kind)
                self.kiln("registry", "init", "--root-key", self.public(names[0]), "--targets-key", self.public(names[1]),
                          "--online-key", self.public(names[2]), "--out", root)
                self.kiln("registry", "sign", root, "--key", self.private(names[0]))
                self.sign("--root", root, keys=names[1:])
                self.trust(registry, root)
                self.install(registry)

    def test_a_key_is_private_encrypted_and_never_written_over(self):
        file = self.private("root")
        self.assertEqual(file.stat().st_mode & 0o777, 0o600)
        self.assertIn("ENCRYPTED PRIVATE KEY", file.read_text())
        before = file.read_bytes()
        self.kiln("registry", "key", file, code=CONFLICT, says="cannot be made again")
        self.assertEqual(file.read_bytes(), before)
        self.kiln("registry", "sign", self.root, "--key", file, code=TRUST, says="KILN_KEY_PASSPHRASE",
                  KILN_KEY_PASSPHRASE="wrong")
        self.kiln("registry", "sign", self.root, "--key", self.public("root"), code=TRUST)

    def test_what_may_sign_nothing_is_refused_and_what_is_not_enough_is_no_metadata(self):
        self.make_key("other")
        self.sign("--root", self.root, keys=("targets", "online", "other"), code=TRUST, says="lets key")
        for key, lacks in (("online", ["targets"]), ("targets", ["snapshot", "timestamp"])):
            self.assertEqual([each["role"] for each in self.sign("--root", self.root, keys=(key,))["missing"]], lacks)
            self.assertFalse((self.registry / "kiln.tuf/index.json").exists())
        (self.registry / "kiln.tuf/draft").unlink()
        self.sign(code=USAGE, says="kiln registry init")


    def test_what_is_to_be_signed_next_is_said_though_nothing_became_visible(self):
        before = self.sign("--root", self.root, "--days", 3)
        # Until when, and what renews it, stands under what list and check say.
        for verb in ("list", "check"):
            said = subprocess.run([KILN_REGISTRY, verb, "--registry", self.registry], capture_output=True, text=True,
                                  env=self.environment, check=True).stdout
            self.assertRegex(said, rf"signed: timestamp 1 holds until {before['expires']}, [23] days more\n"
                                   rf"  renew it: kiln registry sign --registry {self.registry} --key ONLINE\n")
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        after = self.sign(keys=("targets",))  # no key that says what is newest
        self.assertFalse(after["visible"])
        self.assertEqual(after["expires"], before["expires"])


class Roots(PublisherTest):
    def test_a_threshold_is_signed_in_two_places_at_two_times(self):
        self.make_key("second")
        both = self.work / "both.json"
        self.kiln("registry", "init", "--root-key", self.public("root"), "--root-key", self.public("second"), "--threshold", 2,
                  "--targets-key", self.public("targets"), "--online-key", self.public("online"), "--out", both)
        self.assertEqual(self.kiln("registry", "sign", both, "--key", self.private("root"))["missing"],
                         [self.id_of("second")])
        self.sign("--root", both, code=TRUST, says="signed by 1 of the keys that may, expected 2")
        self.assertEqual(self.kiln("registry", "sign", both, "--key", self.private("second"))["signed"], 2)
        self.sign("--root", both)
        self.trust(self.registry, both)
        self.install(self.registry)
        self.kiln("registry", "init", "--root-key", self.public("root"), "--threshold", 2, "--targets-key",
                  self.public("targets"), "--online-key", self.public("online"), "--out", self.work / "x", code=USAGE)

    def test_without_keys_a_root_is_shown_and_stays_as_it_is(self):
        self.root.write_text(json.dumps(json.loads(self.root.read_bytes()), indent=1))  # as another tool may write it
        before = self.root.read_bytes()
        ids = {name: self.id_of(name) for name in ("root", "targets", "online")}
        seen = self.kiln("registry", "sign", self.root)
        until = json.loads(before)["signed"]["expires"]
        self.assertEqual((seen["signed"], seen["changes"]), (1, [
            f"root 1 has root: 1 of keys {ids['root']}", f"root 1 has targets: 1 of keys {ids['targets']}",
            f"root 1 has snapshot: 1 of keys {ids['online']}", f"root 1 has timestamp: 1 of keys {ids['online']}",
            f"root 1 holds until {until}"]))
        self.assertEqual(self.root.read_bytes(), before)
        self.sign("--root", self.root)
        second = self.make_key("second")
        after = self.rotate("--targets-key", self.public("targets"), "--targets-key", self.public("second"),
                            "--targets-threshold", 2, signers=())
        both = " ".join(sorted([ids["targets"], second]))
        for keys in ((), ("--key", self.private("root"))):
            seen = self.kiln("registry", "sign", after, "--root", self.root, *keys)
            self.assertEqual(seen["changes"][:-1],
                             [f"root 2 changes targets: 2 of keys {both}; before 1 of keys {ids['targets']}"])
        third = self.rotate(before=after)
        self.kiln("registry", "sign", third, "--root", self.root, code=USAGE, says="expected version 2, the one before it")
        said = subprocess.run([KILN_REGISTRY, "sign", third, "--root", after], capture_output=True, text=True, check=True,
                              env=self.environment).stdout
        self.assertRegex(said, r"root 3: signed by 1 of 1 .*\n  root 3 changes no key\n  root 3 holds until ")

    def test_what_a_link_leads_to_is_signed(self):
        link, real = self.work / "link.json", self.work / "far/real.json"
        real.parent.mkdir()
        link.symlink_to("far/real.json")
        self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("targets"),
                  "--online-key", self.public("online"), "--out", link)
        self.kiln("registry", "sign", link, "--key", self.private("root"))
        self.assertTrue(link.is_symlink())
        self.assertEqual(len(json.loads(real.read_text())["signatures"]), 1)
        self.sign("--root", real, keys=("online",))
        sent = pathlib.Path(shutil.copy(self.registry / "kiln.tuf/draft", self.work / "far/sent"))
        link = self.work / "sent"
        link.symlink_to("far/sent")
        self.kiln("registry", "sign", link, "--root", real, "--key", self.private("targets"))
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.kiln("registry", "sign", sent, "--root", real)["missing"], [])

    def test_what_a_file_does_not_take_is_refused(self):
        self.sign("--root", self.root, keys=("targets",))
        for file in (self.root, self.registry / "kiln.tuf/draft"):
            for words in (("--onto", "https://example.org"), ("--only", NAME), ("--days", 3), ("--draft", "none")):
                self.kiln("registry", "sign", file, *words, code=USAGE, says=words[0])

    def id_of(self, name):
        text = self.public(name).read_text()
        raw = base64.b64decode("".join(text.splitlines()[1:-1]))[-32:]
        key = {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": raw.hex()}}
        return hashlib.sha256(encode_canonical(key).encode()).hexdigest()

    def rotate(self, *words, signers=("root",), before=None):
        after = self.work / f"{len(list(self.work.glob('*.root.json'))) + 1}.root.json"
        self.kiln("registry", "rotate", before or self.root, *words, "--out", after)
        for key in signers:
            self.kiln("registry", "sign", after, "--key", self.private(key))
        return after

    def test_another_root_takes_the_place_of_one_that_is_trusted_by_replace_alone(self):
        self.trust(self.registry)
        other = self.rotate()
        self.kiln("trust", "add", self.registry, "--root", other, code=CONFLICT,
                  says=[f"trust {self.registry}: another root is trusted, ", "to exchange it, add --replace"])
        self.kiln("trust", "add", self.registry, "--unsigned", code=CONFLICT, says="a root of it is trusted")
        self.kiln("trust", "add", self.registry, "--root", other, "--replace")
        self.kiln("trust", "add", self.registry, "--root", self.root, code=CONFLICT, says="another root is trusted")

    def test_stolen_online_and_targets_keys_are_replaced_and_clients_follow(self):
        self.sign("--root", self.root)
        self.trust(self.registry)
        self.install(self.registry)
        for name in ("targets2", "online2"):
            self.make_key(name)
        second = self.rotate("--targets-key", self.public("targets2"), "--online-key", self.public("online2"))
        self.sign("--root", second, code=TRUST, says="lets key")
        done = self.sign("--root", second, keys=("targets2", "online2"))
        self.assertEqual((done["root"], done["targets"]), (2, 2))  # other keys: signed anew
        self.refresh_of(self.registry)
        [trusted] = self.kiln("trust", "list")["registries"]
        self.assertEqual((trusted["trusted_version"], trusted["root"]["version"]), (1, 2))
        said = subprocess.run([KILN, "trust", "list"], capture_output=True, text=True, env=self.environment, check=True).stdout
        self.assertRegex(said, rf"^{self.registry}  root version 2, .*, followed from version 1\n")
        self.sign(code=TRUST)  # the stolen ones say nothing any more

    def test_a_root_key_is_replaced_by_both(self):
        self.sign("--root", self.root)
        self.trust(self.registry)
        self.make_key("next")
        alone = self.rotate("--root-key", self.public("next"), signers=("next",))
        self.sign("--root", alone, code=TRUST, says="signed by 0 of the keys that may")
        both = self.rotate("--root-key", self.public("next"), signers=("next", "root"))
        self.sign("--root", both)
        self.install(self.registry)
        third = self.rotate(signers=("next",), before=both)
        self.sign("--root", third)
        self.refresh_of(self.registry)
        forked = self.rotate("--threshold", 1, "--root-days", 10, signers=("next",), before=both)
        self.sign("--root", forked, code=CONFLICT, says="another root of version 3")
        gap = self.rotate(signers=("next",), before=self.rotate(signers=("next",), before=third))
        self.sign("--root", gap, code=TRUST, says="root 4 is missing")


class Signing(PublisherTest):
    def test_who_trusts_the_root_installs_what_was_signed_and_nothing_else(self):
        self.install(self.registry, code=TRUST, says="no root of it is trusted")
        done = self.sign("--root", self.root)
        self.assertEqual((done["root"], done["targets"], done["timestamp"], done["changed"]), (1, 1, 1, [f"{NAME}/1"]))
        self.trust(self.registry)
        self.install(self.registry)
        # More variants, not signed yet: who asks gets what was signed.
        signed = self.index()
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.assertNotEqual(self.index(), signed)
        self.kiln("registry", "check", "--registry", self.registry, code=INTEGRITY, says="Run 'kiln registry sign'")
        self.assertEqual(self.locked(), signed)
        self.assertEqual(self.sign()["changed"], [f"{NAME}/1"])
        self.kiln("registry", "check", "--registry", self.registry)
        self.assertEqual(self.locked(), self.index())

    def check(self, **how):
        self.kiln("registry", "check", "--registry", self.registry, **how)

    def test_what_is_signed_and_no_longer_listed_is_damage(self):
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.sign("--root", self.root)
        index = self.registry / NAME / "index.json"
        listed = index.read_bytes()
        lost = f"which {index} does not list"
        index.unlink()
        self.check(code=INTEGRITY, says=[f"verify {NAME}@1: ", f"verify {NAME}@2: ", lost])
        every = json.loads(listed)
        every["manifests"] = [each for each in every["manifests"]
                              if each["annotations"]["org.opencontainers.image.ref.name"] != "2"]
        index.write_text(json.dumps(every))
        self.check(code=INTEGRITY, says=[f"verify {NAME}@2: ", lost])
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.check()
        index.unlink()
        index.symlink_to("gone.json")
        self.check(code=INTEGRITY, says=f"open {index}: found a link")
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one", code=INTEGRITY,
                  says=f"open {index}: found a link")
        self.assertTrue(index.is_symlink())

    def test_a_folder_may_have_a_part_of_what_is_signed(self):
        """It signed on top of a server that has the rest: packages, and versions of its own ones."""
        for built in ("next", "acme"):
            self.kiln("registry", "publish", "--registry", self.registry, self.work / "built" / built)
        self.sign("--root", self.root)
        url = OciServer(self).url
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)
        self.registry = self.work / "theirs"
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.sign("--root", self.root, "--onto", url)
        self.assertEqual(self.kiln("registry", "check", "--registry", self.registry)["elsewhere"],
                         ["acme-op@1", f"{NAME}@1"])
        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www")
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)

    def test_a_registry_that_lost_its_metadata_does_not_pass_as_unsigned(self):
        self.sign("--root", self.root)
        lost = self.registry / "kiln.tuf/index.json"
        lost.rename(self.work / "kept")
        self.check(code=INTEGRITY, says=f"{lost} is missing")
        (self.work / "kept").rename(lost)
        self.check()
        # Of a folder without any of it only who trusts its root can tell.
        lost.parent.rename(self.work / "kept")
        self.check()
        self.trust(self.registry)
        self.check(code=INTEGRITY, says=[f"{lost} is missing", "a root of this registry is trusted here"])
        (self.work / "kept").rename(lost.parent)
        self.check()
        shutil.rmtree(self.registry / NAME)
        self.check(code=INTEGRITY, says="none of the versions that are signed is here")

    def locked(self):
        file = self.work / "kiln.lock"
        file.unlink(missing_ok=True)
        self.kiln("lock", f"{NAME}@1", "--registry", self.registry, "--lock", file)
        [kernel] = json.loads(file.read_text())["kernels"].values()
        return kernel["index"]["digest"]

    def test_signing_again_renews_what_is_newest_with_the_online_key_alone(self):
        self.sign("--root", self.root)
        done = self.sign(keys=("online",))
        self.assertEqual((done["targets"], done["timestamp"], done["changed"]), (1, 2, []))
        self.assertEqual(self.sign("--root", self.root)["root"], 1)  # there already

    def test_expired_metadata_is_refused_until_it_is_signed_again(self):
        self.sign("--root", self.root, "--days", 3)
        self.trust(self.registry)
        url = self.export()
        self.trust(url)
        later = self.run_later(4, "install", f"{NAME}@1", "--registry", url, "--device", "cpu")
        self.assertEqual(later.returncode, TRUST, later.stderr)
        self.assertIn("timestamp", later.stderr)

    def test_each_role_that_has_expired_is_named_with_what_renews_it(self):
        self.sign("--root", self.root)
        for days, roles, ends in ((1, ["timestamp"], ["--key ONLINE"]), (20, ["timestamp", "snapshot"], ["--key ONLINE"]),
                                  (370, ["timestamp", "snapshot", "root", "targets"],
                                   ["--key ONLINE", "--root NEXT.json --key TARGETS --key ONLINE", "--key TARGETS --key ONLINE"])):
            said = self.run_later(days, "list", "--registry", self.registry, program=KILN_REGISTRY).stdout
            self.assertEqual(re.findall(r"^signed: (\w+) 1 ", said, re.M), roles, said)
            self.assertEqual(re.findall(rf"renew it: kiln registry .*--registry {self.registry} (.*)", said), ends, said)

    def run_later(self, days, *words, program=None):
        return subprocess.run([*later(days * 86400, pathlib.Path(KILN).parent), program or KILN, *words],
                              env=self.environment, capture_output=True, text=True, timeout=60)

    def test_a_yanked_version_is_refused_with_its_reason_offline_too(self):
        self.yank("never signed", code=USAGE)
        self.sign("--root", self.root)
        self.trust(self.registry)
        self.install(self.registry)
        self.kiln("registry", "yank", f"{NAME}@7", "--reason", "no such version", "--registry", self.registry, "--key",
                  self.private("targets"), "--key", self.private("online"), code=NOT_FOUND)
        self.kiln("registry", "yank", NAME, "--reason", "no version", "--registry", self.registry, "--key",
                  self.private("targets"), code=USAGE)
        for reason in ("x" * 301, "two\nlines"):
            self.kiln("registry", "yank", f"{NAME}@1", "--reason", reason, "--registry", self.registry, "--key",
                      self.private("targets"), code=USAGE, says="expected one line of at most 300 bytes; nothing was signed")
        self.assertEqual(self.yank("adds wrong numbers")["changed"], [f"{NAME}/1"])
        self.refresh_of(self.registry, code=TRUST, says="adds wrong numbers")
        self.refresh_of(self.registry, code=TRUST, says="adds wrong numbers", KILN_OFFLINE="1")
        self.assertEqual(self.sign()["changed"], [])  # and stays so


class Elsewhere(PublisherTest):
    def setUp(self):
        super().setUp()
        self.sign("--root", self.root)

    def test_python_tuf_reads_a_static_export(self):
        url = self.export()
        self.assertEqual(python_tuf_reads(self, url), self.index())
        self.make_key("targets2")
        after = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--targets-key", self.public("targets2"), "--out", after)
        self.kiln("registry", "sign", after, "--key", self.private("root"))
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.sign("--root", after, keys=("targets2", "online"))
        self.export()
        self.assertEqual(python_tuf_reads(self, url), self.index())

    def test_an_export_only_adds(self):
        def files():
            return {file: file.read_bytes() for file in (self.work / "www").rglob("*") if file.is_file()}

        moves = {"timestamp.json", "latest", "list", "1", "nginx.conf"}  # these alone name something else
        self.export()
        first = files()
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.sign()
        self.export()
        second = files()
        self.assertLess(first.keys(), second.keys())
        changed = {file.name for file, data in first.items() if second[file] != data}
        self.assertTrue({"timestamp.json", "latest"} <= changed <= moves, changed)
        self.export()
        self.assertEqual(files(), second)

    def test_an_export_takes_no_newer_one_back(self):
        older = self.other_folder()
        self.publish_and_yank()
        url = self.export()
        self.trust(url)
        out = self.work / "www"

        def tree():
            return {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}

        def refused(*words, says):
            self.kiln("registry", "export-static", "--registry", self.registry, "--out", out, *words, code=CONFLICT, says=says)
            self.assertEqual(tree(), newest)

        newest, self.registry = tree(), older
        refused(says=["targets 1, ", "the tree has targets ", f"kiln registry sign --registry {older} --onto URL"])
        refused("--prefix", "kernels", says="the tree has targets ")
        for _ in range(4):
            self.sign(keys=("online",))
        refused(says="the tree has targets ")
        self.takes_back(url)
        self.sign("--onto", url, keys=("online",))
        self.export()
        self.takes_back(url)
        newest = tree()
        foreign = self.work / "foreign"
        self.kiln("registry", "publish", "--registry", foreign, self.work / "built/one")
        root = self.work / "foreign.json"
        self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("targets"),
                  "--online-key", self.public("online"), "--root-days", 9, "--out", root)
        self.kiln("registry", "sign", root, "--key", self.private("root"))
        self.registry = foreign
        self.sign("--root", root)
        refused(says="another 1.root.json, of another registry")
        [(out / "v2/kiln.tuf/manifests/latest").unlink(), (out / "v2/kiln.tuf/manifests/latest").write_text("{}")]
        newest, self.registry = tree(), older
        refused(says="whether it is newer cannot be told: ")

    def test_an_export_that_was_killed_among_the_plain_files_is_gone_on_with(self):
        url = self.export()
        timestamp = (self.work / "www/metadata/timestamp.json").read_bytes()
        self.make_key("online2")
        after = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--online-key", self.public("online2"), "--out", after)
        self.kiln("registry", "sign", after, "--key", self.private("root"))
        self.sign("--root", after, keys=("online2",))
        self.export()
        (self.work / "www/metadata/timestamp.json").write_bytes(timestamp)
        self.export()
        self.assertEqual(python_tuf_reads(self, url), self.index())

    def test_an_export_beside_a_publish_names_no_version_that_it_has_not(self):
        """It stands still on its way: who reads what it says has not come yet."""
        tree = self.work / "www/v2/tiny-op/tags/list"
        ours, its = os.pipe()
        self.addCleanup(os.close, ours)
        fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
        os.write(its, b"x" * fcntl.fcntl(its, fcntl.F_GETPIPE_SZ))
        with subprocess.Popen([KILN_REGISTRY, "export-static", "--registry", self.registry, "--out", self.work / "www"],
                              stdout=subprocess.DEVNULL, stderr=its, env=self.environment) as run:
            os.close(its)
            while not tree.exists() and run.poll() is None:
                time.sleep(0.01)
            self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
            self.sign()
            while os.read(ours, 65536):
                pass
        self.assertEqual(run.returncode, OK)
        self.trust(url := serve_folder(self, self.work / "www"))
        self.assertEqual(self.signed_in_www(), [f"{NAME}/1"])
        self.install(url)

    def signed_in_www(self):
        newest = max((self.work / "www/metadata").glob("*.targets.json"), key=lambda path: int(path.name.split(".")[0]))
        return sorted(json.loads(newest.read_text())["signed"]["targets"])

    def test_an_export_of_a_version_that_is_signed_and_not_listed_is_refused(self):
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.sign()
        index = self.registry / NAME / "index.json"
        listed = json.loads(index.read_text())
        kept = [each for each in listed["manifests"]
                if each["annotations"]["org.opencontainers.image.ref.name"].split("-")[0] == "1"]
        index.write_text(json.dumps(listed | {"manifests": kept}))
        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www", code=INTEGRITY,
                  says=[f"verify {NAME}@2: signed is", "index.json does not list"])
        self.assertFalse((self.work / "www/metadata").exists())
        self.assertFalse((self.work / "www/v2/kiln.tuf").exists())
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.export()
        self.assertEqual(self.signed_in_www(), [f"{NAME}/1", f"{NAME}/2"])

    def test_each_document_is_what_python_tuf_would_sign(self):
        files = self.work / "www/metadata"
        self.export()
        documents = {role: Metadata.from_file(str(files / f"1.{role}.json")) for role in ("root", "targets", "snapshot")}
        documents["timestamp"] = Metadata.from_file(str(files / "timestamp.json"))
        root = documents["root"].signed
        for role, document in documents.items():
            root.verify_delegate(role, document.signed_bytes, document.signatures)
            self.assertEqual(json.loads(document.to_bytes())["signed"],
                             json.loads((files / ("timestamp.json" if role == "timestamp" else f"1.{role}.json"))
                                        .read_text())["signed"])
        self.assertEqual(documents["targets"].signed.targets[f"{NAME}/1"].hashes["sha256"],
                         self.index().removeprefix("sha256:"))

    def test_a_static_export_installs_with_its_root_alone(self):
        url = self.export()
        self.install(url, code=TRUST, says="no root of it is trusted")
        self.trust(url)
        self.install(url)

    def serve(self):
        server = OciServer(self)
        return server, getattr(server, "url")

    def push(self, url, **how):
        return self.kiln("registry", "push", "--registry", self.registry, "--to", url, **how)

    def test_a_push_brings_the_metadata_last(self):
        server, url = self.serve()
        self.assertEqual(self.push(url)["timestamp"], 1)
        puts = [r.path for r in server.requests if r.method == "PUT" and "/manifests/" in r.path]
        self.assertTrue(puts[-1].endswith("/kiln.tuf/manifests/latest"), puts)
        self.trust(url)
        self.install(url)
        before = len(server.requests)
        self.push(url)
        sent = [str(r) for r in server.requests[before:] if r.method in ("PUT", "POST", "PATCH")]
        self.assertEqual(sent, [])

    def test_a_push_of_what_is_not_signed_sends_nothing(self):
        server, url = self.serve()
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.push(url, code=TRUST, says="kiln registry sign")
        self.assertEqual([str(r) for r in server.requests if r.method in ("PUT", "POST", "PATCH")], [])

    def test_a_push_of_some_versions_leaves_none_that_is_signed_behind(self):
        for built in ("next", "acme"):
            self.kiln("registry", "publish", "--registry", self.registry, self.work / "built" / built)
        self.sign()
        server, url = self.serve()
        push = ("registry", "push", "--registry", self.registry, "--to", url)
        self.kiln(*push, f"{NAME}@1", code=TRUST, says=[f"names acme-op@1, {NAME}@2, which the server lacks",
                                                       "nothing was sent. Push them too"])
        self.assertEqual([str(r) for r in server.requests if r.method in ("PUT", "POST", "PATCH")], [])
        self.kiln(*push, f"{NAME}@1", "acme-op", code=TRUST, says=f"names {NAME}@2, which")
        self.kiln(*push, NAME, "acme-op")
        self.trust(url)
        self.install(url)
        # What the server has by now need not be named again, and is asked for once.
        for renewed in (lambda: self.yank("wrong sums"), lambda: self.sign(keys=("online",))):
            renewed()
            before = len(server.requests)
            self.kiln(*push, "acme-op")
            self.assertFalse([str(r) for r in server.requests[before:] if f"/{NAME}/" in r.path])
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
        self.kiln(*push, "acme-op")  # nobody signed that yet
        self.sign()
        self.kiln(*push, "acme-op", code=TRUST, says=f"names {NAME}@1, which")

    def test_two_folders_take_turns_on_one_server(self):
        server, url = self.serve()
        other = self.work / "other"
        shutil.copytree(self.registry, other)
        self.push(url)
        self.sign(keys=("online",))
        self.push(url)
        self.trust(url)
        self.install(url)
        self.registry = other
        self.sign("--days", 20, keys=("online",))
        self.push(url, code=CONFLICT, says="--onto")  # the same number, other bytes
        done = self.sign("--onto", url)
        self.assertEqual(done["timestamp"], 3)
        self.push(url)
        self.refresh_of(url)

    def other_folder(self):
        """A copy of the folder as it is now, on another machine."""
        return shutil.copytree(self.registry, self.work / "other")

    def publish_and_yank(self):
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
        self.yank("it leaks")
        return self.sign()

    def takes_back(self, url):
        """Its clients refuse the first version, whether they know more than the root or not, and find the second."""
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        self.install(url, code=TRUST, says="it leaks")
        self.kiln("install", f"{NAME}@2", "--registry", url, "--device", "cpu")

    def test_an_older_state_with_a_higher_timestamp_takes_nothing_back(self):
        _, url = self.serve()
        older = self.other_folder()
        self.publish_and_yank()
        self.push(url)
        self.trust(url)
        self.takes_back(url)
        self.registry = older
        for _ in range(4):  # the cron of a second machine
            last = self.sign(keys=("online",))
        self.push(url, code=CONFLICT, says=["the folder has targets 1, ", "has targets ", "kiln registry sign --onto URL"])
        done = self.sign("--onto", url, keys=("online",))
        self.assertEqual((done["targets"] > 1, done["timestamp"]), (True, last["timestamp"] + 1))
        self.push(url)
        self.refresh_of(url, code=TRUST, says="it leaks")
        self.takes_back(url)
        self.assertEqual(self.sign("--onto", url)["timestamp"], last["timestamp"] + 2)  # and the folder has it all

    def test_what_a_folder_has_alone_stays_above_the_numbers_of_its_server(self):
        _, url = self.serve()
        self.push(url)
        self.trust(url)
        mine, self.registry = self.registry, self.other_folder()
        for _ in range(3):
            self.sign(keys=("online",))
        self.push(url)
        self.install(url)
        self.registry = mine
        self.publish_and_yank()
        self.push(url, code=CONFLICT, says="kiln registry sign --onto URL")
        done = self.sign("--onto", url, keys=("online",))
        self.assertEqual((done["targets"] > 1, done["timestamp"]), (True, 5))
        self.push(url)
        self.refresh_of(url, code=TRUST, says="it leaks")

    def test_a_server_with_a_newer_root_is_signed_onto(self):
        _, url = self.serve()
        other = self.other_folder()
        self.make_key("root2")
        second = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--root-key", self.public("root2"), "--out", second)
        for key in ("root", "root2"):
            self.kiln("registry", "sign", second, "--key", self.private(key))
        self.sign("--root", second)
        self.push(url)
        self.registry = other
        for _ in range(4):
            self.sign(keys=("online",))
        self.push(url, code=CONFLICT, says=["the folder has root 1, ", "has root 2, ", "kiln registry sign --onto URL"])
        done = self.sign("--onto", url, keys=("online",))
        self.assertEqual((done["root"], done["timestamp"]), (2, 6))
        self.push(url)
        # A newer root here, and newer targets there: neither is lost.
        older = self.registry
        self.registry = shutil.copytree(older, self.work / "third")
        self.publish_and_yank()
        self.push(url)
        self.registry = older
        third = self.work / "3.root.json"
        self.kiln("registry", "rotate", second, "--root-days", 9, "--out", third)
        self.kiln("registry", "sign", third, "--key", self.private("root2"))
        self.sign("--root", third, keys=("online",))
        self.push(url, code=CONFLICT, says="kiln registry sign --onto URL")
        done = self.sign("--onto", url, keys=("online",))
        self.assertEqual((done["root"], done["targets"] > 1), (3, True))
        self.push(url)
        self.trust(url)
        self.takes_back(url)

    def test_two_folders_that_signed_apart_lose_nothing_without_a_word(self):
        _, url = self.serve()
        for more in (0, 1):  # targets of the same number, and of a higher one than the server's
            with self.subTest(more):
                shutil.rmtree(self.work / "other", ignore_errors=True)
                mine, other = self.registry, self.other_folder()
                self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/next")
                self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/acme")
                self.sign()
                self.push(url)
                self.registry = other
                self.yank(f"it leaks {more}")
                for _ in range(more):
                    self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two")
                    self.sign()
                lost = [f"yank of {NAME}/1", "signed apart", f"(with acme-op/1, {NAME}/2"]
                self.push(url, code=CONFLICT, says=lost + ["nothing was sent"])
                self.sign("--onto", url, code=CONFLICT, says=lost + ["nothing was signed", f"remove {other}/kiln.tuf "])
                shutil.rmtree(other / "kiln.tuf")
                self.sign("--root", self.root, "--onto", url)
                self.yank(f"it leaks {more}")
                self.push(url)
                self.trust(url)
                self.refresh_of(url, code=TRUST, says=f"it leaks {more}")
                self.kiln("install", "acme-op@1", "--registry", url, "--device", "cpu")
                server, url = self.serve()
                shutil.rmtree(mine)
                self.registry = mine
                self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one")
                self.sign("--root", self.root)

    def test_another_registry_is_not_signed_onto(self):
        server, url = self.serve()
        self.push(url)
        self.registry = self.work / "foreign"
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/one")
        root = self.work / "foreign.json"
        self.make_key("foreign")
        self.kiln("registry", "init", "--root-key", self.public("foreign"), "--targets-key", self.public("targets"),
                  "--online-key", self.public("online"), "--out", root)
        self.kiln("registry", "sign", root, "--key", self.private("foreign"))
        self.sign("--root", root)
        self.push(url, code=CONFLICT, says="has another 1.root.json")
        self.sign("--onto", url, code=CONFLICT, says="does not follow from a root that is known here")

    def test_an_empty_folder_signs_onto_a_server_only_from_a_known_root(self):
        """Else the publisher's keys would sign the targets of whoever made a root that names them."""
        server, url = self.serve()
        self.push(url)
        shutil.rmtree(self.registry / "kiln.tuf")
        self.sign("--onto", url, code=CONFLICT, says="known here")
        self.assertFalse((self.registry / "kiln.tuf/index.json").exists())
        self.assertEqual(self.sign("--root", self.root, "--onto", url)["timestamp"], 2)
        forged = self.work / "forged.json"
        self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("targets"),
                  "--online-key", self.public("online"), "--root-days", 9, "--out", forged)
        self.kiln("registry", "sign", forged, "--key", self.private("root"))
        shutil.rmtree(self.registry / "kiln.tuf")
        self.sign("--root", forged, "--onto", url, code=CONFLICT, says="known here")

    def test_a_folder_whose_metadata_somebody_changed_is_not_signed_on(self):
        evil = Metadata.from_bytes(self.file("1.targets.json"))
        evil.signed.targets["evil/1"] = evil.signed.targets[f"{NAME}/1"]
        self.replace("1.targets.json", evil.to_bytes())
        before = (self.registry / "kiln.tuf/index.json").read_bytes()
        self.sign(code=TRUST)
        self.assertEqual((self.registry / "kiln.tuf/index.json").read_bytes(), before)

    def layers(self):
        layout = self.registry / "kiln.tuf"
        [tag] = json.loads((layout / "index.json").read_text())["manifests"]
        return layout, tag, json.loads((layout / "blobs/sha256" / tag["digest"][7:]).read_text())

    def file(self, title):
        layout, _, manifest = self.layers()
        [layer] = [each for each in manifest["layers"] if title in each["annotations"].values()]
        return (layout / "blobs/sha256" / layer["digest"][7:]).read_bytes()

    def replace(self, title, data):
        """The artifact with other bytes of one file, and every digest right."""
        layout, tag, manifest = self.layers()
        [layer] = [each for each in manifest["layers"] if title in each["annotations"].values()]
        layer.pop("data", None)
        for described, content in ((layer, data), (tag, None)):
            content = json.dumps(manifest).encode() if content is None else content
            described |= {"digest": "sha256:" + hashlib.sha256(content).hexdigest(), "size": len(content)}
            (layout / "blobs/sha256" / described["digest"][7:]).write_bytes(content)
        index = json.loads((layout / "index.json").read_text())
        index["manifests"] = [tag]
        (layout / "index.json").write_text(json.dumps(index))

    def test_after_a_stolen_online_key_counted_far_ahead_a_new_root_takes_over(self):
        server, url = self.serve()
        thief = self.work / "thief"
        shutil.copytree(self.registry, thief)
        mine, self.registry = self.registry, thief
        for _ in range(3):
            self.sign(keys=("online",))
        self.push(url)
        self.trust(url)
        self.install(url)
        self.registry = mine
        self.make_key("online2")
        second = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--online-key", self.public("online2"), "--out", second)
        self.kiln("registry", "sign", second, "--key", self.private("root"))
        self.assertEqual(self.sign("--root", second, keys=("targets", "online2"))["timestamp"], 2)  # the thief's: 4
        self.push(url)
        self.refresh_of(url)

    def test_a_new_online_key_takes_nothing_from_what_the_targets_keys_signed(self):
        _, url = self.serve()
        older = self.other_folder()
        self.publish_and_yank()
        self.push(url)
        self.registry = older
        self.make_key("online2")
        second = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--online-key", self.public("online2"), "--out", second)
        self.kiln("registry", "sign", second, "--key", self.private("root"))
        self.sign("--root", second, keys=("online2",))
        self.push(url, code=CONFLICT, says="kiln registry sign --onto URL")
        self.assertEqual(self.sign("--onto", url, keys=("online2",))["root"], 2)
        self.push(url)
        self.trust(url)
        self.takes_back(url)


if __name__ == "__main__":
    KILN_REGISTRY, KILN, FIXTURE = map(os.path.abspath, sys.argv[1:4])
    sys.exit(0 if unittest.main(argv=sys.argv[:1] + sys.argv[4:], exit=False).result.wasSuccessful() else 1)
