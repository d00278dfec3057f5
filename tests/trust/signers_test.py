#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several who sign one registry: thresholds, publishers with keys of their own; as Kiln and python-tuf
read them, and what a key does that signs what is not its own.

    signers_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import publisher_test
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner
from publisher_test import CONFLICT, INTEGRITY, NAME, NOT_FOUND, TRUST, USAGE, PublisherTest, serve_folder
from tuf.ngclient import Updater

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "publish"))
from clock import later  # noqa: E402
from oci_server import OciServer  # noqa: E402

ACME = "acme-op"


class SignersTest(PublisherTest):
    def init(self, *words, **keys):
        """A root with these keys by role, made and signed; the first is what clients trust."""
        named = [word for role, names in ({"root": ["root"], "targets": ["targets"], "online": ["online"]} | keys).items()
                 for name in names for word in (f"--{role}-key", self.public(name))]
        root = self.work / "several.json"
        self.kiln("registry", "init", *named, *words, "--out", root)
        self.kiln("registry", "sign", root, "--key", self.private("root"))
        self.root = root
        return root

    def made(self, *names):
        """Keys, and their ids by name."""
        self.ids = {name: self.make_key(name) for name in names}

    def missing(self, done):
        return {each["role"]: (each["signed"], each["needed"]) for each in done["missing"]}

    def draft(self):
        return self.registry / "kiln.tuf/draft"

    def elsewhere(self):
        """A copy of the draft, on the disk of another signer."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        return shutil.copy(self.draft(), folder / "sent")

    def review(self, file, *keys, root=None, **how):
        named = [word for key in keys for word in ("--key", self.private(key))]
        return self.kiln("registry", "sign", file, "--root", root or self.root, *named, **how)

    def index_of(self, name):
        listed = self.kiln("registry", "list", "--registry", self.registry)["versions"]
        [digest] = [v["index"]["digest"] for v in listed if f"{v['name']}/{v['version']}" == name]
        return digest

    def python_tuf(self, name, url):
        """What the reference client says a name is, or None."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        updater = Updater(str(folder / "metadata"), f"{url}/metadata", str(folder), f"{url}/targets",
                          bootstrap=self.root.read_bytes())
        updater.refresh()
        target = updater.get_targetinfo(name)
        if target is None:
            return None
        return "sha256:" + hashlib.sha256(pathlib.Path(updater.download_target(target)).read_bytes()).hexdigest()

    def install_of(self, package, registry, **how):
        for name in ("unpacked", "blobs", "refs", "installed"):
            shutil.rmtree(self.work / "cache" / name, ignore_errors=True)
        return self.kiln("install", f"{package}@1", "--registry", registry, "--device", "cpu", **how)

    def publish(self, built):
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built" / built)

    def document(self, role):
        """The newest of a role, as the registry has it."""
        [title] = [t for t in self.titles() if t.split(".", 1)[1] == f"{role}.json"]
        return json.loads(self.bytes_of(title))

    def manifest(self):
        layout = self.registry / "kiln.tuf"
        [tag] = [m for m in json.loads((layout / "index.json").read_text())["manifests"] if "annotations" in m]
        return json.loads((layout / "blobs/sha256" / tag["digest"][7:]).read_text())

    def layer(self, title):
        [layer] = [each for each in self.manifest()["layers"] if title in each["annotations"].values()]
        return layer["digest"][7:]

    def titles(self):
        return [title for each in self.manifest()["layers"] for title in each["annotations"].values()]

    def bytes_of(self, title):
        return (self.registry / "kiln.tuf/blobs/sha256" / self.layer(title)).read_bytes()


class Thresholds(SignersTest):
    def setUp(self):
        super().setUp()
        self.made("second", "third")

    def two_of_three(self):
        self.init("--targets-threshold", 2, targets=["targets", "second", "third"])

    def test_two_of_three_sign_in_two_places_at_two_times(self):
        self.two_of_three()
        done = self.sign("--root", self.root)
        self.assertEqual((done["visible"], done["timestamp"], done["waiting"]), (False, 0, [f"{NAME}/1"]))
        self.assertEqual(self.missing(done), {"targets": (1, 2)})
        self.assertEqual(sorted(done["missing"][0]["may_sign"]), sorted(self.ids.values()))
        self.assertFalse((self.registry / "kiln.tuf/index.json").exists())
        self.trust(self.registry)
        self.install(self.registry, code=NOT_FOUND)
        # Elsewhere: what it says, seen before it is signed.
        sent = self.elsewhere()
        self.kiln("registry", "sign", sent, code=USAGE, says="--root")
        seen = self.review(sent)
        self.assertEqual((len(seen["changes"]), self.missing(seen)), (1, {"targets": (1, 2)}))
        self.assertIn(f"targets 1 adds {NAME}/1: {self.index()}", seen["changes"][0])
        self.assertEqual(self.review(sent, "second")["missing"], [])
        # Back, and the online key last.
        done = self.sign("--draft", sent, keys=())
        self.assertEqual((done["visible"], self.missing(done)), (False, {"snapshot": (0, 1), "timestamp": (0, 1)}))
        done = self.sign(keys=("online",))
        self.assertEqual((done["visible"], done["targets"], done["changed"], done["waiting"]), (True, 1, [f"{NAME}/1"], []))
        self.assertFalse(self.draft().exists())
        self.install(self.registry)
        self.assertEqual(self.python_tuf(f"{NAME}/1", self.export()), self.index())
        self.kiln("registry", "check", "--registry", self.registry)

    def test_the_second_may_sign_at_the_same_place_later(self):
        self.two_of_three()
        self.sign("--root", self.root, keys=("third",))
        self.assertTrue(self.sign(keys=("second", "online"))["visible"])

    def test_one_who_signs_twice_is_one(self):
        self.two_of_three()
        self.sign("--root", self.root)
        self.assertEqual(self.missing(self.sign()), {"targets": (1, 2)})

    def test_who_signed_less_has_not_signed_more(self):
        """A version that came after a signature is not under it."""
        self.two_of_three()
        self.sign("--root", self.root)
        self.publish("acme")
        done = self.sign(keys=("second", "online"))
        self.assertEqual((done["visible"], self.missing(done)), (False, {"targets": (1, 2)}))
        self.assertEqual(self.sign(keys=("targets", "online"))["changed"], [f"{ACME}/1", f"{NAME}/1"])

    def test_what_all_have_signed_becomes_visible_though_the_folder_has_more_by_then(self):
        self.two_of_three()
        self.sign("--root", self.root)
        sent = self.elsewhere()
        self.review(sent, "second")
        self.publish("acme")
        done = self.sign("--draft", sent, keys=("online",))
        self.assertEqual((done["visible"], done["changed"], done["waiting"]), (True, [f"{NAME}/1"], [f"{ACME}/1"]))

    def test_keys_here_do_not_sign_what_was_written_elsewhere(self):
        self.two_of_three()
        self.sign("--root", self.root)
        sent = self.elsewhere()
        mine, self.registry = self.registry, self.work / "other"
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/acme")
        self.sign("--root", self.root, keys=("second",))
        theirs = self.elsewhere()
        self.registry = mine
        before = self.draft().read_bytes()
        self.sign("--draft", theirs, code=CONFLICT, says="fewer have signed it than must")
        self.assertEqual(self.draft().read_bytes(), before)
        self.review(sent, "second")
        self.assertTrue(self.sign("--draft", sent)["visible"])
        self.sign("--draft", sent, code=CONFLICT, says="begun on other metadata")  # again

    def test_a_draft_is_signed_only_under_a_root_that_its_signer_knows(self):
        self.two_of_three()
        self.sign("--root", self.root)
        sent, known = self.elsewhere(), self.root
        other = self.work / "foreign.json"
        self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("second"),
                  "--online-key", self.public("online"), "--out", other)
        self.kiln("registry", "sign", other, "--key", self.private("root"))
        self.review(sent, "second", root=other, code=TRUST, says="does not follow from root 1")
        self.review(sent, "root", root=known, code=TRUST, says="none of the keys")
        pathlib.Path(sent).write_bytes(pathlib.Path(sent).read_bytes()[:-40])
        self.review(sent, "second", root=known, code=TRUST, says="cut short")

    def test_two_online_keys_sign_both_documents_in_one_round(self):
        self.made("online2")
        self.init("--online-threshold", 2, online=["online", "online2"])
        done = self.sign("--root", self.root)
        self.assertEqual((done["visible"], self.missing(done)), (False, {"snapshot": (1, 2), "timestamp": (1, 2)}))
        sent = self.elsewhere()
        self.review(sent, "online2")
        self.assertTrue(self.sign("--draft", sent, keys=())["visible"])
        self.trust(self.registry)
        self.install(self.registry)
        self.sign(keys=("online2",))
        self.assertEqual(self.sign(keys=("online",))["timestamp"], 2)
        self.assertEqual(self.python_tuf(f"{NAME}/1", self.export()), self.index())

    def test_a_new_root_waits_for_those_whom_it_lets_sign(self):
        self.sign("--root", self.root)
        self.trust(self.registry)
        after = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, "--targets-key", self.public("second"), "--targets-key",
                  self.public("third"), "--targets-threshold", 2, "--out", after)
        self.kiln("registry", "sign", after, "--key", self.private("root"))
        done = self.sign("--root", after, keys=("second", "online"))
        self.assertEqual((done["visible"], done["root"], done["targets"], self.missing(done)),
                         (True, 1, 1, {"targets": (1, 2)}))  # renewed, nothing else
        self.assertEqual(done["waiting_root"], 2)
        self.install(self.registry)
        sent = self.elsewhere()
        self.assertIn(f"targets 2 adds {NAME}/1", self.review(sent, "third", root=after)["changes"][0])
        done = self.sign("--draft", sent, keys=("online",))
        self.assertEqual((done["visible"], done["root"], done["changed"]), (True, 2, []))
        self.install_of(NAME, self.registry)

    def test_the_online_key_alone_renews_while_others_are_awaited(self):
        self.two_of_three()
        self.sign("--root", self.root, keys=("targets", "second", "online"))
        self.publish("acme")
        self.sign(keys=("targets",))
        done = self.sign(keys=("online",))
        self.assertEqual((done["visible"], done["targets"], done["timestamp"]), (True, 1, 2))
        self.assertEqual((done["waiting"], self.missing(done)), ([f"{ACME}/1"], {"targets": (1, 2)}))
        self.assertEqual(self.sign(keys=("second", "online"))["changed"], [f"{ACME}/1"])

    def next_root(self, *words):
        after = self.work / "2.root.json"
        self.kiln("registry", "rotate", self.root, *words, "--out", after)
        self.kiln("registry", "sign", after, "--key", self.private("root"))
        return after

    def test_an_online_key_is_replaced_while_others_are_awaited(self):
        self.two_of_three()
        self.sign("--root", self.root, keys=("targets", "second", "online"))
        self.trust(self.registry)
        self.install(self.registry)
        self.make_key("online2")
        after = self.next_root("--online-key", self.public("online2"))
        for waits in (False, True):  # a version that nobody has signed, and a draft
            with self.subTest(waits):
                shutil.copytree(self.registry, self.work / "before", dirs_exist_ok=True)
                self.publish("acme")
                if waits:
                    self.sign(keys=("targets",))
                done = self.sign("--root", after, keys=("online2",))
                self.assertEqual((done["root"], done["targets"], done["timestamp"], done["waiting"]), (2, 1, 2, [f"{ACME}/1"]))
                self.assertNotIn("waiting_root", done)
                self.sign(keys=("online",), code=TRUST, says="root 2 lets key")
                self.assertEqual(self.sign(keys=("online2",))["timestamp"], 3)
                self.install_of(NAME, self.registry)
                if not waits:
                    shutil.rmtree(self.registry)
                    (self.work / "before").rename(self.registry)
        self.assertEqual(self.sign(keys=("second", "online2"))["changed"], [f"{ACME}/1"])

    def test_who_renews_until_a_new_root_is_seen(self):
        """It has other targets keys, who have not signed, and another online key."""
        self.two_of_three()
        self.sign("--root", self.root, keys=("targets", "second", "online"))
        for key in ("fourth", "fifth", "online2"):
            self.make_key(key)
        after = self.next_root("--online-key", self.public("online2"), "--targets-key", self.public("fourth"),
                               "--targets-key", self.public("fifth"))
        done = self.sign("--root", after, keys=("fourth", "online2"))
        self.assertEqual((done["visible"], done["root"], done["waiting_root"], self.missing(done)),
                         (False, 1, 2, {"targets": (1, 2)}))
        said = subprocess.run([publisher_test.KILN_REGISTRY, "sign", "--registry", self.registry, "--key", self.private("online")],
                              capture_output=True, text=True, env=self.environment, check=True).stdout
        self.assertIn("root 1, targets 1 with 1 versions, timestamp 2", said)
        self.assertIn("  not visible yet: root 2\n", said)
        self.sign(keys=("targets",), code=TRUST, says="root 2 lets key")
        self.trust(self.registry)
        self.install(self.registry)
        done = self.sign(keys=("fifth", "online2"))
        self.assertEqual((done["root"], done["targets"], done["timestamp"], done["missing"]), (2, 2, 3, []))
        self.sign(keys=("online",), code=TRUST, says="root 2 lets key")
        self.install_of(NAME, self.registry)

    def change(self, *words, keys, **how):
        named = [word for key in keys for word in ("--key", self.private(key))]
        return self.kiln("registry", *words, "--registry", self.registry, *named, **how)

    CHANGES = (("yank", f"{NAME}@1", "--reason", "it leaks"),
               ("advisory", "publish", "KA-1", "--text", "slow", "--package", NAME),
               ("delegate", "acme", "--package", "b-*", "--role-key"))

    def test_what_all_have_signed_is_not_thrown_away_for_another_change(self):
        self.two_of_three()
        self.sign("--root", self.root, keys=("targets", "second", "online"))
        self.publish("acme")
        self.sign(keys=("targets",))
        self.assertEqual(self.missing(self.sign(keys=("second",))), {"snapshot": (0, 1), "timestamp": (0, 1)})
        self.make_key("acme")
        draft = self.draft().read_bytes()
        for words in self.CHANGES:
            with self.subTest(words):
                words += (self.public("acme"),) if words[0] == "delegate" else ()
                self.change(*words, keys=("targets", "online"), code=CONFLICT, says=[
                    "targets 2 waits with every signature that it needs", "nothing was signed",
                    f"kiln registry sign --registry {self.registry} --key KEY"])
                self.assertEqual(self.draft().read_bytes(), draft)
        # Who can sign it anew loses nothing.
        done = self.change(*self.CHANGES[0], keys=("targets", "third", "online"))
        self.assertEqual((done["changed"], done["waiting"]), ([f"{ACME}/1", f"{NAME}/1"], []))

    def served(self, *words, **keys):
        """A signed registry that two must sign, on a server, and a copy of it elsewhere."""
        self.init("--targets-threshold", 2, *words, targets=["targets", "second", "third"], **keys)
        online = ("targets", "second", *keys.get("online", ["online"]))
        self.sign("--root", self.root, keys=online)
        url = OciServer(self).url
        self.push(url)
        return url, shutil.copytree(self.registry, self.work / "other")

    def push(self, url):
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)

    def moves_on(self, url, other, *words, built="acme", keys=("targets", "second", "online")):
        """The other folder signs, and sends it."""
        mine, self.registry = self.registry, other
        if built:
            self.publish(built)
        self.sign(*words, keys=keys)
        self.push(url)
        self.registry = mine

    def test_an_open_draft_is_not_lost_on_top_of_a_server(self):
        url, other = self.served()
        self.change(*self.CHANGES[0], keys=("targets",))
        self.change(*self.CHANGES[1], keys=("targets",))
        self.make_key("acme")
        self.change(*self.CHANGES[2], self.public("acme"), keys=("targets",))
        self.moves_on(url, other)
        draft = self.draft().read_bytes()
        for keys in (("online",), ("targets", "online"), ("targets", "second", "online")):
            self.sign("--onto", url, keys=keys, code=CONFLICT, says=[
                f"lost with the advisory KA-1, the yank of {NAME}/1, the publisher acme, and nothing was signed",
                f"kiln registry sign {self.draft()} --root ROOT", f"rm {self.draft()}"])
            self.assertEqual(self.draft().read_bytes(), draft)
        self.draft().unlink()
        self.assertEqual(self.sign("--onto", url, keys=("online",))["targets"], 2)
        done = self.change(*self.CHANGES[0], keys=("targets", "second", "online"))
        self.assertEqual(done["changed"], [f"{NAME}/1"])
        self.push(url)

    def test_a_version_whose_draft_others_have_signed_is_not_lost(self):
        url, other = self.served()
        self.publish("next")
        self.sign(keys=("targets",))
        self.moves_on(url, other)
        self.sign("--onto", url, keys=("online",), code=CONFLICT, says=f"lost with {NAME}/2, and")
        done = self.sign("--onto", url, keys=("targets",))  # who has signed it signs it again
        self.assertEqual((done["waiting"], self.missing(done)), ([f"{NAME}/2"], {"targets": (1, 2)}))

    def test_of_an_open_draft_each_document_is_judged_alone(self):
        self.make_key("online2")
        url, other = self.served("--online-threshold", 2, online=["online", "online2"])
        self.change(*self.CHANGES[0], keys=("targets", "online"))
        self.moves_on(url, other, built=None, keys=("online", "online2"))
        done = self.sign("--onto", url, keys=("second",))
        self.assertEqual((done["waiting"], self.missing(done)), ([f"{NAME}/1"], {"snapshot": (0, 2), "timestamp": (0, 2)}))
        done = self.sign("--onto", url, keys=("online", "online2"))
        self.assertEqual((done["changed"], done["timestamp"]), ([f"{NAME}/1"], 3))

    def test_a_draft_that_a_server_has_taken_in_is_done(self):
        url, other = self.served()
        self.change(*self.CHANGES[0], keys=("targets",))
        sent = self.elsewhere()
        self.review(sent, "second")
        self.moves_on(url, other, "--draft", sent, built=None, keys=("online",))
        self.moves_on(url, other)
        done = self.sign("--onto", url, keys=("online",))
        self.assertEqual((done["targets"], done["missing"], self.draft().exists()), (3, [], False))

    def test_a_change_is_not_lost_in_a_draft_that_came_back(self):
        self.two_of_three()
        self.sign("--root", self.root)
        sent = self.elsewhere()
        self.review(sent, "second")
        self.make_key("acme")
        for draft, keys in ((self.draft().read_bytes(), ("targets", "online")), (None, ("targets", "second", "online"))):
            if draft is None:
                self.draft().unlink()
            for words in self.CHANGES:
                with self.subTest(words, own=draft is not None):
                    words += (self.public("acme"),) if words[0] == "delegate" else ()
                    self.change(*words, "--draft", sent, "--root", self.root, keys=keys, code=CONFLICT,
                                says=["targets 1 waits with every signature that it needs", f" --draft {sent} --key KEY'"])
                    self.assertEqual(self.draft().read_bytes() if draft else None, draft)
        self.assertTrue(self.change("sign", "--draft", sent, keys=("online",))["visible"])


class Publishers(SignersTest):
    def setUp(self):
        super().setUp()
        self.made("acme", "acme2")
        self.sign("--root", self.root)
        self.trust(self.registry)

    def delegate(self, *words, keys=("targets", "online"), role="acme", **how):
        named = [word for key in keys for word in ("--key", self.private(key))]
        return self.kiln("registry", "delegate", role, "--registry", self.registry, *words, *named, **how)

    def appoint(self, *words, **how):
        return self.delegate("--package", "acme-*", "--role-key", self.public("acme"), *words, **how)

    def appoint_and_accept(self):
        """The publisher signs its first document, which has no version yet."""
        self.appoint()
        sent = self.elsewhere()
        self.assertEqual(self.review(sent, "acme")["missing"], [])
        self.assertTrue(self.sign("--draft", sent)["visible"])

    def test_a_delegation_is_seen_with_its_role_s_first_document_and_hides_nothing_before(self):
        before = self.titles()
        done = self.appoint()
        self.assertEqual((done["visible"], self.missing(done)), (True, {"acme": (0, 1)}))  # renewed, nothing else
        self.assertEqual([title for title in self.titles() if title.endswith("targets.json")],
                         [title for title in before if title.endswith("targets.json")])
        found = self.kiln("search", "--registry", self.registry)
        self.assertEqual(([each["name"] for each in found["packages"]], found["unread"]), ([NAME], []))
        self.kiln("registry", "check", "--registry", self.registry)
        sent = self.elsewhere()
        self.review(sent, "acme")
        self.assertTrue(self.sign("--draft", sent)["visible"])
        self.assertEqual(self.document("acme")["signed"]["targets"], {})
        self.assertEqual([each["name"] for each in self.kiln("search", "--registry", self.registry)["packages"]], [NAME])
        checked = self.kiln("registry", "check", "--registry", self.registry)
        self.assertEqual([each["role"] for each in checked["metadata"]],
                         ["root", "timestamp", "snapshot", "targets", "acme"])
        self.assertIsNone(self.python_tuf("acme-op/1", self.export()))

    def test_a_publisher_who_never_answers_is_dismissed_again(self):
        self.appoint()
        self.publish("acme")
        self.delegate("--dismiss")
        self.assertFalse(self.draft().exists())
        self.install_of(ACME, self.registry)  # by the registry's own keys

    def test_a_publisher_signs_its_own_packages_with_its_own_key(self):
        self.appoint()
        self.publish("acme")
        done = self.sign()  # not with the registry's keys
        self.assertEqual((done["waiting"], self.missing(done)), ([f"{ACME}/1"], {"acme": (0, 1)}))
        self.install_of(ACME, self.registry, code=NOT_FOUND)
        done = self.sign(keys=("acme", "online"))
        self.assertEqual((done["changed"], done["targets"]), ([f"{ACME}/1"], 2))
        self.install_of(ACME, self.registry)
        self.install_of(NAME, self.registry)
        self.kiln("registry", "check", "--registry", self.registry)
        url = self.export()
        self.assertEqual(self.python_tuf(f"{ACME}/1", url), self.index_of(f"{ACME}/1"))
        self.assertEqual(self.python_tuf(f"{NAME}/1", url), self.index_of(f"{NAME}/1"))
        self.trust(url)
        self.install_of(ACME, url)

    def test_a_publisher_signs_elsewhere_and_the_registry_takes_it_in(self):
        """It has the server's metadata, its own packages and its own key, and nothing else."""
        self.appoint_and_accept()
        server = OciServer(self)
        url = getattr(server, "url")
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)
        mine, self.registry = self.registry, self.work / "theirs"
        self.publish("acme")
        self.kiln("registry", "push", "--registry", self.registry, "--to", url, says="clients do not see this acme-op@1 yet")
        self.trust(url)
        self.install_of(ACME, url, code=NOT_FOUND)
        done = self.sign("--root", self.root, "--onto", url, keys=("acme",))
        self.assertEqual((done["visible"], done["waiting"]), (False, [f"{ACME}/1"]))
        sent = self.elsewhere()
        self.registry = mine
        self.assertEqual(self.review(sent)["missing"], [])
        done = self.sign("--draft", sent, keys=("online",))
        self.assertEqual((done["changed"], done["versions"]), ([f"{ACME}/1"], 2))
        self.kiln("registry", "push", "--registry", self.registry, "--to", url)
        self.install_of(ACME, url)

    def test_a_yank_is_the_publisher_s_own(self):
        self.appoint()
        self.publish("acme")
        self.sign(keys=("acme", "online"))
        yank = ("registry", "yank", f"{ACME}@1", "--reason", "it leaks", "--registry", self.registry)
        done = self.kiln(*yank, "--key", self.private("targets"), "--key", self.private("online"))
        self.assertEqual(self.missing(done), {"acme": (0, 1)})
        self.install_of(ACME, self.registry)
        done = self.kiln(*yank, "--key", self.private("acme"), "--key", self.private("online"))
        self.assertEqual(done["changed"], [f"{ACME}/1"])
        self.install_of(ACME, self.registry, code=TRUST, says="it leaks")

    def test_a_yank_or_an_advisory_that_waits_for_a_publisher_is_named(self):
        self.appoint()
        yank = ("registry", "yank", f"{NAME}@1", "--reason", "it leaks", "--registry", self.registry)
        keys = ("--key", self.private("targets"), "--key", self.private("online"))
        done = self.kiln(*yank, *keys)
        self.assertEqual((done["changed"], done["waiting"], self.missing(done)), ([], [f"{NAME}/1"], {"acme": (0, 1)}))
        said = subprocess.run([publisher_test.KILN_REGISTRY, *map(str, yank[1:] + keys)], capture_output=True, text=True,
                              env=self.environment, check=True).stdout
        self.assertIn(f"  not visible yet: {NAME}/1 (yank)\n", said)
        done = self.kiln("registry", "advisory", "publish", "KA-1", "--text", "slow", "--refuse", "--package", NAME,
                         "--registry", self.registry, *keys)
        self.assertEqual((done["changed"], done["waiting"]), ([], ["kiln.advisories/KA-1", f"{NAME}/1"]))
        self.assertEqual(self.sign(keys=("online",))["waiting"], ["kiln.advisories/KA-1", f"{NAME}/1"])  # until it is seen
        self.install_of(NAME, self.registry)
        done = self.sign(keys=("acme", "online"))
        self.assertEqual((done["changed"], done["waiting"]), (["kiln.advisories/KA-1", f"{NAME}/1"], []))
        self.install_of(NAME, self.registry, code=TRUST, says="it leaks")

    def test_other_keys_take_over_when_the_new_ones_have_signed(self):
        self.appoint()
        self.publish("acme")
        self.sign(keys=("acme", "online"))
        done = self.delegate("--role-key", self.public("acme2"))
        self.assertEqual((done["visible"], self.missing(done)), (True, {"acme": (0, 1)}))  # renewed, nothing else
        self.install_of(ACME, self.registry)
        self.assertTrue(self.sign(keys=("acme2", "online"))["visible"])
        self.assertFalse(self.draft().exists())
        self.install_of(ACME, self.registry)
        self.sign(keys=("acme", "online"), code=TRUST, says="no publisher has it")

    def test_what_would_leave_a_version_to_nobody_or_to_two_is_refused(self):
        self.delegate("--package", "tiny-*", "--role-key", self.public("acme"), code=CONFLICT, says="would be nobody's")
        self.appoint()
        self.publish("acme")
        self.sign(keys=("acme", "online"))
        other = ("--role-key", self.public("acme2"))
        for patterns, code, says in ((("acme-op",), CONFLICT, "is \"acme\"'s already"), (("a*",), CONFLICT, "already"),
                                     (("*",), USAGE, "neither"), (("b*c",), USAGE, "neither"), ((), USAGE, "no package")):
            with self.subTest(patterns):
                words = [word for pattern in patterns for word in ("--package", pattern)]
                self.delegate(*words, *other, role="other", code=code, says=says)
        self.delegate("--package", "beta-*", code=CONFLICT, says="would be nobody's")
        self.delegate("--package", "b-*", *other, "--threshold", 2, role="other", code=USAGE, says="asked of 1 keys")
        for role in ("targets", "A"):
            self.delegate("--package", "b-*", *other, role=role, code=USAGE, says="cannot be the name")

    def test_a_publisher_is_dismissed(self):
        self.appoint()
        self.publish("acme")
        self.sign(keys=("acme", "online"))
        self.install_of(ACME, self.registry)
        shutil.rmtree(self.registry / ACME)
        self.delegate("--dismiss")
        self.install_of(ACME, self.registry, code=NOT_FOUND)
        self.install_of(NAME, self.registry)
        self.delegate("--dismiss", code=NOT_FOUND)


class Limits(SignersTest):
    """What each key may say, and no more."""

    def test_an_online_key_is_no_other_key(self):
        for role in ("root", "targets"):
            self.kiln("registry", "init", "--root-key", self.public("root"), "--targets-key", self.public("targets"),
                      "--online-key", self.public("online"), "--online-key", self.public(role), "--out", self.work / "x",
                      code=USAGE, says=f"is a {role} key too")
        self.sign("--root", self.root)
        self.kiln("registry", "delegate", "acme", "--package", "acme-*", "--role-key", self.public("online"), "--registry",
                  self.registry, "--key", self.private("targets"), "--key", self.private("online"), code=USAGE,
                  says="is an online key")

    def signer(self, name):
        """The key of a file, as another program would use it."""
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        private = load_pem_private_key(self.private(name).read_bytes(), b"correct horse")
        return CryptoSigner(private)

    def forge(self, changes, signers):
        """The registry's newest metadata with documents changed, each signed by whom `signers` says, and all that names
        them made to fit: what somebody can write who has these keys."""
        files = {title: self.bytes_of(title) for title in self.titles()}

        def write(title, role, change):
            [before] = [t for t in files if t.split(".", 1)[-1] == title or t == title]
            signed = json.loads(files.pop(before))["signed"]
            signed["version"] += 1
            change(signed)
            keys = [self.signer(name) for name in signers.get(role, ("online",))]
            canonical = encode_canonical(signed).encode()
            data = json.dumps({"signed": signed, "signatures": [
                {"keyid": key.public_key.keyid, "sig": key.sign(canonical).signature} for key in keys]}).encode()
            name = title if role == "timestamp" else f"{signed['version']}.{title}"
            files[name] = data
            return {"version": signed["version"], "length": len(data),
                    "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}

        meta = {f"{role}.json": write(f"{role}.json", role, change) for role, change in changes.items()}
        named = write("snapshot.json", "snapshot", lambda signed: signed["meta"].update(meta))
        write("timestamp.json", "timestamp", lambda signed: signed["meta"].update({"snapshot.json": named}))
        layout = self.registry / "kiln.tuf"
        manifest = self.manifest()
        manifest["layers"] = []
        for title, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            (layout / "blobs/sha256" / digest).write_bytes(data) if not (layout / "blobs/sha256" / digest).exists() else None
            manifest["layers"].append({"mediaType": "application/vnd.tuf.metadata+json", "digest": f"sha256:{digest}",
                                       "size": len(data), "annotations": {"org.opencontainers.image.title": title}})
        data = json.dumps(manifest).encode()
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs/sha256" / digest).write_bytes(data)
        index = json.loads((layout / "index.json").read_text())
        [tag] = [m for m in index["manifests"] if "annotations" in m]
        tag |= {"digest": f"sha256:{digest}", "size": len(data)}
        (layout / "index.json").write_text(json.dumps(index))

    def leave_acme_to_itself(self):
        """acme signs its own packages, and a user trusts the registry."""
        self.sign("--root", self.root)
        self.kiln("registry", "delegate", "acme", "--package", "acme-*", "--role-key", self.public("acme"), "--registry",
                  self.registry, "--key", self.private("targets"), "--key", self.private("online"))
        self.publish("acme")
        self.sign(keys=("acme", "online"))
        self.trust(self.registry)

    def test_no_key_says_what_another_role_says(self):
        self.made("acme", "other")
        self.leave_acme_to_itself()
        evil = {"length": 7, "hashes": {"sha256": "0" * 64}}
        cases = {
            # which document, what is forged in it, signed by whom, and what the client says
            "the online key signs targets": ("targets", f"{NAME}/1", ("online",), TRUST),
            "a publisher signs targets": ("targets", f"{NAME}/1", ("acme",), TRUST),
            "the targets key signs a publisher's": ("acme", f"{NAME}/1", ("targets",), TRUST),
            "the online key signs a publisher's": ("acme", f"{NAME}/1", ("online",), TRUST),
            "one of no role signs targets": ("targets", f"{NAME}/1", ("other",), TRUST),
        }
        good = self.work / "good"
        shutil.copytree(self.registry, good)
        for what, (role, name, signers, code) in cases.items():
            with self.subTest(what):
                shutil.rmtree(self.registry)
                shutil.copytree(good, self.registry)
                shutil.rmtree(self.work / "cache", ignore_errors=True)
                self.forge({role: lambda signed: signed["targets"].update({name: evil})}, {role: signers})
                self.install_of(ACME if role == "acme" else NAME, self.registry, code=code, says="signed by 0 of the keys")
                # Nor does a publisher go on from there.
                package = ACME if role == "acme" else NAME
                self.kiln("registry", "yank", f"{package}@1", "--reason", "no", "--registry", self.registry, "--key",
                          self.private(role), "--key", self.private("online"), code=TRUST)

    def test_a_publisher_s_word_on_others_packages_is_not_asked(self):
        self.made("acme")
        self.leave_acme_to_itself()
        evil = {"length": 7, "hashes": {"sha256": "0" * 64}}
        self.forge({"acme": lambda signed: signed["targets"].update({f"{NAME}/1": evil, "new-op/1": evil})},
                   {"acme": ("acme",)})
        self.install_of(NAME, self.registry)
        self.kiln("install", "new-op@1", "--registry", self.registry, "--device", "cpu", code=NOT_FOUND)

    def test_a_publisher_s_document_that_has_expired_hides_no_other_s(self):
        self.made("acme")
        self.init("--root-days", 3000)
        self.leave_acme_to_itself()

        def then(program, *words, **how):
            binaries = pathlib.Path(publisher_test.KILN).parent
            return self.run_command(*later(400 * 86400, binaries), program, *words, **how)

        def registry_then(verb, *words, **how):
            return then(publisher_test.KILN_REGISTRY, verb, "--registry", self.registry, *words, **how)

        registry_then("sign", "--key", self.private("targets"), "--key", self.private("online"))
        said = "clients do not learn what acme publishes: "
        registry_then("export-static", "--out", self.work / "www", says=[said, "version 1 expired at"])
        registry_then("site", self.work / "site")
        server = OciServer(self)
        pushed = getattr(server, "url")
        registry_then("push", "--to", pushed, NAME)
        for url in (serve_folder(self, self.work / "www"), pushed):
            with self.subTest(url):
                self.trust(url)
                then(publisher_test.KILN, "install", f"{NAME}@1", "--registry", url, "--device", "cpu")
                then(publisher_test.KILN, "install", f"{ACME}@1", "--registry", url, "--device", "cpu", code=TRUST,
                     says="expired at")

    def test_a_publisher_s_document_that_is_damaged_hides_no_other_s(self):
        self.made("acme")
        self.leave_acme_to_itself()
        self.forge({"acme": lambda signed: None}, {"acme": ("targets",)})
        said = "clients do not learn what acme publishes: "
        self.kiln("registry", "export-static", "--registry", self.registry, "--out", self.work / "www", says=said)
        self.kiln("registry", "site", self.work / "site", "--registry", self.registry, code=INTEGRITY, says=said)
        self.assertIn(f"kiln install {NAME}@1", (self.work / f"site/packages/{NAME}/1.html").read_text())
        self.assertNotIn("kiln install", (self.work / f"site/packages/{ACME}/1.html").read_text())

    def test_a_timestamp_or_snapshot_of_the_targets_key_is_refused(self):
        self.sign("--root", self.root)
        self.trust(self.registry)
        good = self.work / "good"
        shutil.copytree(self.registry, good)
        for role in ("snapshot", "timestamp"):
            with self.subTest(role):
                shutil.rmtree(self.registry)
                shutil.copytree(good, self.registry)
                shutil.rmtree(self.work / "cache", ignore_errors=True)
                self.forge({}, {role: ("targets",)})
                self.install_of(NAME, self.registry, code=TRUST, says=f"verify {role}.json")


class Housekeeping(SignersTest):
    def blobs(self):
        return {path.name for path in (self.registry / "kiln.tuf/blobs/sha256").iterdir()}

    def test_blobs_that_no_state_names_go_and_the_state_before_stays(self):
        self.sign("--root", self.root)
        first = self.blobs()
        self.sign()
        second = self.blobs()
        self.assertLess(first, second)
        for _ in range(3):
            before = self.blobs()
            names = {layer["digest"][7:] for layer in self.manifest()["layers"]}
            self.sign()
            self.assertLess(names, self.blobs())  # who reads the state before finds all of it
            self.assertEqual(len(self.blobs()), len(before))
        self.kiln("registry", "check", "--registry", self.registry)

    def test_what_others_tagged_in_the_layout_stays(self):
        self.sign("--root", self.root)
        index = self.registry / "kiln.tuf/index.json"
        listed = json.loads(index.read_text())
        [tag] = listed["manifests"]
        kept = tag | {"annotations": {"org.opencontainers.image.ref.name": "kept"}}
        listed["manifests"].append(kept)
        index.write_text(json.dumps(listed))
        for _ in range(3):
            self.sign()
        self.assertIn(kept["digest"][7:], self.blobs())
        self.assertIn(kept, json.loads(index.read_text())["manifests"])

    def test_a_publish_into_a_signed_folder_says_that_nobody_sees_it_yet(self):
        say = "clients do not see this yet"
        done = self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/acme")
        self.assertTrue(done)
        self.sign("--root", self.root)
        self.kiln("registry", "publish", "--registry", self.registry, self.work / "built/two", says=say)
        self.kiln("registry", "check", "--registry", self.registry, code=INTEGRITY, says="kiln registry sign")

    def test_only_the_packages_that_are_named_are_signed(self):
        self.sign("--root", self.root)
        self.publish("two")
        self.publish("acme")
        before = (self.registry / "kiln.tuf/index.json").read_bytes()
        self.sign("--only", ACME, "--only", "acmeop", code=NOT_FOUND, says=["no package \"acmeop\"", "kiln registry list"])
        self.assertEqual((self.registry / "kiln.tuf/index.json").read_bytes(), before)
        self.assertEqual(self.sign("--only", ACME)["changed"], [f"{ACME}/1"])
        self.assertEqual(self.sign()["changed"], [f"{NAME}/1"])


if __name__ == "__main__":
    publisher_test.KILN_REGISTRY, publisher_test.KILN, publisher_test.FIXTURE = map(os.path.abspath, sys.argv[1:4])
    sys.exit(0 if unittest.main(argv=sys.argv[:1] + sys.argv[4:], exit=False).result.wasSuccessful() else 1)
