#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln-tuf against a repository that lies: section 5 of the TUF specification, and known attacks.

Wants KILN_BIN, the folder of the binaries; KILN_TUF names another command to test. One that ends in
python_client.py is the reference: cases where Kiln is stricter are skipped for it alone.
"""

import copy
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from clock import later  # noqa: E402
from repository import FAR, PAST, TOP, Repository, endless, envelope, key_entry  # noqa: E402
from securesystemslib.signer import CryptoSigner  # noqa: E402

COMMAND = shlex.split(os.environ.get("KILN_TUF") or f"{os.environ['KILN_BIN']}/kiln-tuf")
REFERENCE = COMMAND[-1].endswith("python_client.py")
BELOW_ROOT = ("timestamp", "snapshot", "targets")
stricter = unittest.skipIf(REFERENCE, "stricter than the reference")


class ClientTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.start(Repository())

    def start(self, repository):
        self.repository = repository
        self.addCleanup(repository.close)
        self.metadata = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        self.targets = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        root = self.metadata.with_suffix(".root")
        root.write_bytes(repository.bytes("root"))
        self.accept("init", str(root))

    def run_client(self, *command, days=0):
        shift = later(days * 86400) if days else ()
        options = ["--metadata-dir", self.metadata]
        if command[0] != "init":
            options += ["--metadata-url", f"{self.repository.url}/metadata"]
        if command[0] == "download":
            options += ["--target-name", *command[1:], "--target-dir", self.targets,
                        "--target-base-url", f"{self.repository.url}/targets"]
            command = command[:1]
        self.repository.requests.clear()
        return subprocess.run([*shift, *COMMAND, *options, *command], capture_output=True,
                              text=True, timeout=30)

    def accept(self, *command, **how):
        done = self.run_client(*command, **how)
        self.assertEqual(done.returncode, 0, done.stderr)

    def refuse(self, *command, **how):
        done = self.run_client(*command, **how)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def trusted(self, role):
        path = self.metadata / f"{role}.json"
        return path.read_bytes() if path.exists() else None

    def refuse_and_recover(self, kept=()):
        """The attack is refused, `kept` stay trusted, and a good repository is accepted after it."""
        before = {role: self.trusted(role) for role in kept}
        self.refuse("refresh")
        for role, data in before.items():
            self.assertEqual(self.trusted(role), data, role)
        self.repository.restore(self.good)
        self.repository.release()  # The attack's version: a signed part of it may be trusted by now.
        self.repository.release()
        self.accept("refresh")
        for role in BELOW_ROOT:
            self.assertEqual(self.trusted(role), self.repository.bytes(role))

    def remember_good(self):
        self.good = self.repository.state()

    def served(self, name):
        return f"metadata/{name}" in self.repository.requests


class GoodTest(ClientTest):
    def test_files_are_kept_byte_for_byte(self):
        for consistent in (True, False):
            with self.subTest(consistent=consistent):
                self.start(Repository(consistent))
                self.accept("refresh")
                for role in TOP:
                    self.assertEqual(self.trusted(role), self.repository.bytes(role))

    def test_an_unchanged_repository_costs_two_requests(self):
        self.accept("refresh")
        self.accept("refresh")
        self.assertEqual(self.repository.requests,
                         ["metadata/2.root.json", "metadata/timestamp.json"])

    def test_unknown_fields_pass_and_are_signed_over(self):
        root = self.repository.signed["root"]
        root["x-later"] = {"é\x01\n\"\\": [1, None, True]}
        root["version"] = 2
        self.repository.write("root")
        self.accept("refresh")
        self.assertEqual(self.trusted("root"), self.repository.bytes("root"))

    @unittest.skipIf(REFERENCE, "the reference refuses a root with a key of an unknown kind")
    def test_a_key_of_an_unknown_kind_is_passed_over(self):
        root = self.repository.signed["root"]
        root["version"] = 2
        root["keys"]["ab"] = {"keytype": "later", "scheme": "later", "keyval": {"public": "x"}}
        root["roles"]["targets"]["keyids"].append("ab")
        self.repository.write("root")
        self.accept("refresh")
        self.assertEqual(self.trusted("root"), self.repository.bytes("root"))

    def test_each_kind_of_key(self):
        for make in (CryptoSigner.generate_ecdsa, CryptoSigner.generate_rsa):
            with self.subTest(make.__name__):
                repository = Repository()
                repository.signers["root"] = repository.signers["timestamp"] = [make()]
                repository.appoint()
                repository.write("root")
                repository.publish()
                self.start(repository)
                self.accept("refresh")


class RootTest(ClientTest):
    def test_walks_the_chain_one_by_one(self):
        for _ in range(3):
            self.repository.rotate("root", "timestamp")
        self.repository.release()
        self.accept("refresh")
        self.assertEqual(self.trusted("root"), self.repository.bytes("root"))
        self.assertEqual(self.repository.requests[:4],
                         [f"metadata/{n}.root.json" for n in (2, 3, 4, 5)])

    def test_refused_roots(self):
        def old_keys_missing(repository):
            repository.rotate("root")
            repository.write("root")

        def new_keys_missing(repository):
            old = list(repository.signers["root"])
            repository.rotate("root")
            repository.write("root", old)

        def next_version(version):
            def attack(repository):
                repository.signed["root"]["version"] = version
                repository.files["metadata/2.root.json"] = envelope(
                    repository.signed["root"], repository.signers["root"])
            return attack

        attacks = {"old keys missing": old_keys_missing, "new keys missing": new_keys_missing,
                   "skipped": next_version(3), "same": next_version(1), "zero": next_version(0)}
        for name, attack in attacks.items():
            with self.subTest(name):
                self.start(Repository())
                self.remember_good()
                attack(self.repository)
                self.refuse_and_recover(["root"])

    def test_an_expired_last_root_is_refused_and_an_expired_middle_one_passes(self):
        self.repository.signed["root"]["expires"] = PAST
        self.repository.rotate()
        self.refuse("refresh")
        if not REFERENCE:  # It looks at the expiry of the root once it has a timestamp.
            self.assertFalse(self.served("timestamp.json"))
        self.repository.signed["root"]["expires"] = FAR
        self.repository.rotate()
        self.accept("refresh")

    def test_rotated_timestamp_and_snapshot_keys_recover_from_fast_forward(self):
        self.repository.signed["timestamp"]["version"] = 1 << 30
        self.repository.signed["snapshot"]["version"] = 1 << 30
        self.repository.publish()
        self.accept("refresh")
        for role in ("timestamp", "snapshot"):
            self.repository.signed[role]["version"] = 2
        self.repository.rotate("timestamp", "snapshot")
        self.repository.publish()
        self.accept("refresh")
        self.assertEqual(self.trusted("timestamp"), self.repository.bytes("timestamp"))


class AttackTest(ClientTest):
    def setUp(self):
        super().setUp()
        for _ in range(4):
            self.repository.release()
        self.accept("refresh")
        self.remember_good()
        for role in BELOW_ROOT:
            self.repository.signed[role]["version"] += 1

    def each(self, attack):
        for role in BELOW_ROOT:
            with self.subTest(role):
                self.setUp()
                attack(role)
                self.refuse_and_recover([role])

    def test_foreign_keys(self):
        def attack(role):
            self.repository.signers = {**self.repository.signers,
                                       role: [CryptoSigner.generate_ed25519()]}
            self.repository.publish()
        self.each(attack)

    def test_expired(self):
        def attack(role):
            self.repository.signed[role]["expires"] = PAST
            self.repository.publish()
        # An expired timestamp may be kept (its version counts), so nothing is said of what stays.
        for role in BELOW_ROOT:
            with self.subTest(role):
                self.setUp()
                attack(role)
                self.refuse_and_recover()

    def test_rollback(self):
        def attack(role):
            self.repository.signed[role]["version"] = 2
            self.repository.publish()
        self.each(attack)

    def test_altered_bytes(self):
        def attack(role):
            self.repository.publish()
            path = self.repository.name(role)
            self.repository.files[path] = self.repository.files[path].replace(b"2099", b"2098")
        self.each(attack)

    def test_absent_forbidden_and_failing(self):
        for status in (404, 403, 500):
            def attack(role, status=status):
                self.repository.publish()
                self.repository.files[self.repository.name(role)] = status
            self.each(attack)

    def test_endless_data(self):
        def attack(role):
            self.repository.publish()
            self.repository.files[self.repository.name(role)] = endless
        self.each(attack)

    def test_documents_that_are_none(self):
        changes = {"type": {"_type": "root"}, "spec": {"spec_version": "2.0.0"},
                   "version 0": {"version": 0}, "version -1": {"version": -1},
                   "version text": {"version": "9"}, "expires": {"expires": "tomorrow"}}
        for name, change in changes.items():
            with self.subTest(name):
                self.setUp()
                self.repository.publish()
                self.repository.signed["timestamp"].update(change)
                self.repository.write("timestamp")
                self.refuse_and_recover(["timestamp"])

    @stricter
    def test_duplicate_keys_in_json(self):
        self.repository.publish()
        path = self.repository.name("timestamp")
        self.repository.files[path] = self.repository.files[path].replace(
            b'{"signatures"', b'{"signatures": [], "signatures"', 1)
        self.refuse_and_recover(["timestamp"])

    def test_trailing_bytes_and_depth(self):
        for data in (b"{}x", b"[" * 15000, b"", b"null", b"\xff"):
            with self.subTest(data[:4]):
                self.setUp()
                self.repository.files["metadata/timestamp.json"] = data
                self.refuse_and_recover(["timestamp"])

    def test_freeze(self):
        self.repository.signed["timestamp"]["expires"] = "2036-01-01T00:00:00Z"
        self.repository.publish()
        self.accept("refresh")
        self.refuse("refresh", days=9000)

    def test_timestamp_may_not_roll_the_snapshot_back(self):
        self.repository.signed["snapshot"]["version"] = 2
        self.repository.publish()
        self.refuse_and_recover(["timestamp", "snapshot"])


class ThresholdTest(ClientTest):
    def sign_twice(self, same):
        repository = Repository()
        repository.signers["timestamp"].append(CryptoSigner.generate_ed25519())
        repository.thresholds["timestamp"] = 2
        repository.appoint()
        repository.write("root")
        repository.publish()
        self.start(repository)
        if same:
            document = json.loads(repository.bytes("timestamp"))
            document["signatures"][1] = copy.deepcopy(document["signatures"][0])
            repository.files["metadata/timestamp.json"] = json.dumps(document).encode()

    def test_two_of_two(self):
        self.sign_twice(same=False)
        self.accept("refresh")

    def test_a_signature_counts_once(self):
        self.sign_twice(same=True)
        self.refuse("refresh")

    @stricter
    def test_a_key_under_two_names_counts_once(self):
        repository = Repository()
        signer = repository.signers["timestamp"][0]
        root = repository.signed["root"]
        root["keys"]["ab"] = key_entry(signer)
        root["roles"]["timestamp"] = {"keyids": [signer.public_key.keyid, "ab"], "threshold": 2}
        repository.write("root")
        document = json.loads(repository.bytes("timestamp"))
        document["signatures"].append({**document["signatures"][0], "keyid": "ab"})
        repository.files["metadata/timestamp.json"] = json.dumps(document).encode()
        root_path = self.work / "twice.json"
        root_path.write_bytes(repository.bytes("root"))
        self.repository, self.metadata = repository, self.work / "twice"
        self.addCleanup(repository.close)
        self.accept("init", str(root_path))
        self.refuse("refresh")


class TargetTest(ClientTest):
    def got(self):
        return [path.read_bytes() for path in self.targets.rglob("*") if path.is_file()]

    def test_target_in_a_folder(self):
        self.repository.add_target("a/b.bin", b"payload")
        self.repository.release()
        self.accept("download", "a/b.bin")
        self.assertEqual(self.got(), [b"payload"])

    def test_wrong_bytes(self):
        for data in (b"payloa", b"payload+", b"paYload", endless, 404):
            with self.subTest(str(data)):
                self.start(Repository())
                served = self.repository.add_target("t", b"payload")
                self.repository.release()
                self.repository.files[served] = data
                self.refuse("download", "t")
                self.assertEqual(self.got(), [])

    def test_delegations(self):
        cases = [("in-*", "in-x", True), ("*", "in/x", False), ("in/*", "in/x", True),
                 ("in/?", "in/x", True), ("in?x", "in/x", False)]
        for pattern, path, found in cases:
            for role in ("plain", "../x", "a/b", "ü"):
                with self.subTest(pattern=pattern, role=role):
                    self.start(Repository())
                    self.repository.delegate(role, paths=[pattern])
                    self.repository.add_target(path, b"payload", role)
                    self.repository.release()
                    (self.accept if found else self.refuse)("download", path)
                    if role != "plain":
                        self.assertFalse((self.metadata.parent / "x.json").exists())

    def test_several_targets_by_one_state(self):
        for name in ("one", "two"):
            self.repository.add_target(name, name.encode())
        self.repository.release()
        self.accept("download", "one", "--target-name", "two")
        self.assertEqual({path.name: path.read_bytes() for path in self.targets.iterdir()}, {"one": b"one", "two": b"two"})
        self.assertEqual(self.repository.requests.count("metadata/timestamp.json"), 1)

    @unittest.skipIf(REFERENCE, "the reference keeps a role by its name, whoever vouched first")
    def test_who_delegates_vouches_for_itself_alone(self):
        """Two delegate to "shared", with other keys; those of one have signed it."""
        self.repository.delegate("a", paths=["a*"])
        self.repository.delegate("b", paths=["b*"])
        self.repository.delegate("shared", parent="a", paths=["a*"])
        mine = self.repository.signers["shared"]
        self.repository.signers["shared"] = [CryptoSigner.generate_ed25519()]
        self.repository.delegate("shared", parent="b", paths=["b*"])
        self.repository.signers["shared"] = mine
        for name in ("a-one", "b-one"):
            self.repository.add_target(name, name.encode(), role="shared")
        self.repository.release()
        self.accept("download", "a-one")
        self.refuse("download", "b-one")
        self.refuse("download", "a-one", "--target-name", "b-one")

    def test_terminating(self):
        self.repository.delegate("first", paths=["*"], terminating=True)
        self.repository.delegate("second", paths=["*"])
        self.repository.add_target("t", b"payload", "second")
        self.repository.release()
        self.refuse("download", "t")
        self.assertFalse(self.served("1.second.json"))

    def test_a_cycle_ends(self):
        self.repository.delegate("one", paths=["*"])
        self.repository.delegate("two", parent="one", paths=["*"])
        self.repository.delegate("one", parent="two", paths=["*"])
        self.repository.release()
        self.refuse("download", "t")
        self.assertEqual(self.repository.requests.count("metadata/1.one.json"), 1)


class DamagedStateTest(ClientTest):
    def test_damaged_files(self):
        for role in TOP:
            with self.subTest(role):
                self.start(Repository())
                self.accept("refresh")
                path = self.metadata / f"{role}.json"
                path.chmod(0o644)
                path.write_bytes(path.read_bytes()[:-9])
                if role == "root":
                    self.refuse("refresh")
                else:
                    self.accept("refresh")
                    self.assertEqual(self.trusted(role), self.repository.bytes(role))


if __name__ == "__main__":
    sys.exit(unittest.main())
