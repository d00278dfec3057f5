#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Advisories from a publisher to a user: published, seen, obeyed, accepted, lifted; found by what made the binaries;
kiln audit of a lock file, the cache, a bundle and a registry.

    advisories_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import pathlib
import shutil

import documents
from world import KILN, KILN_REGISTRY, NO_VARIANT, INTEGRITY, NOT_FOUND, OK, TRUST, USAGE, World, main

CPU, H100, PTX = "cpu-x86-64-v3", "cu12.9-sm_90a-x86_64", "cu11.8-compute_80-x86_64"
HOST = pathlib.Path(__file__).resolve().parent / "fleet/01-h100.json"


class Advisories(World):
    def setUp(self):
        super().setUp()
        self.run_command(KILN_REGISTRY, "publish", "--registry", self.registry, self.built / "fleet", "--records",
                         self.built / "fleet.json", "--allow-untested", "*")
        self.sign()

    def registry_says(self, *words, code=OK, says=()):
        done = self.run_command(KILN_REGISTRY, *words, "--registry", self.registry, "--json", code=code, says=says)
        document = json.loads(done.stdout)
        documents.check(document)
        return document

    def advise(self, id, *words, code=OK, says=()):
        return self.registry_says("advisory", "publish", id, "--text", "wrong sums for odd D", *words, "--key",
                                  self.work / "keys/targets", "--key", self.work / "keys/online", code=code, says=says)

    def lift(self, id, **how):
        return self.registry_says("advisory", "lift", id, "--key", self.work / "keys/targets", "--key",
                                  self.work / "keys/online", **how)

    def listed(self):
        return {each["id"]: each for each in self.registry_says("advisory", "list")["advisories"]}

    def audit(self, *words, code=OK):
        document = self.document("audit", *words, code=code)
        documents.check(document)
        return document

    def settings(self, members):
        (self.work / ".config/kiln/config.json").write_text('{"schema": "kiln.settings/1", %s}' % members)

    # ---- from the publisher to the loader ----

    def test_what_is_refused_is_passed_over_and_comes_back_when_lifted(self):
        self.kiln("install", "fleet-op@1", "--host", HOST)
        self.assertEqual(self.advise("KA-7", "--refuse", "--package", "fleet-*", "--variant", H100, "--link",
                                     "https://example.org/ka-7")["changed"], ["kiln.advisories/KA-7"])
        self.kiln("resolve", "fleet-op@1", "--host", HOST, says=H100)  # no refresh since
        said = self.kiln("install", "fleet-op@1", "--host", HOST, "--refresh")
        self.assertIn(PTX, said)
        said = self.kiln("resolve", "fleet-op@1", "--host", HOST, "--offline", "--explain")
        self.assertIn("its publisher warns of it: advisory KA-7: wrong sums for odd D (https://example.org/ka-7)", said)
        self.kiln("resolve", "fleet-op@1", "--host", HOST, "--variant", H100, code=NO_VARIANT, says="accept_advisories")
        self.lift("KA-7")
        self.assertIn("lifted", self.listed()["KA-7"])
        self.kiln("install", "fleet-op@1", "--host", HOST, "--refresh", says=H100)
        self.lift("KA-9", code=NOT_FOUND, says="there is no advisory")

    def test_a_warning_is_told_and_changes_nothing(self):
        self.advise("KA-8", "--versions", "..1", "--gpu", "9.0")
        done = self.run_command(KILN, "install", "fleet-op@1", "--host", HOST)
        self.assertIn(H100, done.stdout)
        self.assertIn("advisory KA-8: wrong sums for odd D", done.stderr)
        done = self.run_command(KILN, "install", "fleet-op@1", "--device", "cpu")
        self.assertNotIn("KA-8", done.stderr, "it speaks of GPUs")

    def host(self, name, driver):
        """The facts of an H100 with this driver; None: of a Kiln that did not write its version."""
        facts = json.loads(HOST.read_text())
        if driver is not None:
            facts["driver_version"] = driver or None
        file = self.work / f"{name}.json"
        file.write_text(json.dumps(facts))
        return file

    def test_drivers_are_a_range_of_their_own_versions(self):
        self.advise("KA-7", "--refuse", "--variant", H100, "--drivers", "570.86..570.124")
        self.assertEqual(self.listed()["KA-7"]["drivers"], {"from": "570.86", "to": "570.124"})
        self.kiln("lock", "fleet-op@1")
        hosts = {name: self.host(name, driver) for name, driver in (
            ("before", "565.57.01"), ("first", "570.86.10"), ("last", "570.124.06"), ("after", "580.65"),
            ("unknown", ""), ("old", None))}
        expected = {name: H100 if name in ("before", "after") else PTX for name in hosts}
        for name, host in hosts.items():
            self.kiln("install", "fleet-op@1", "--host", host, says=expected[name])
        document = self.document("lock", "--check", "--hosts", *hosts.values())
        documents.check(document)
        self.assertEqual({pathlib.Path(each["file"]).stem: each["kernels"][0]["variant"] for each in document["hosts"]},
                         expected)
        document = self.document("resolve", "fleet-op@1", "--host", hosts["last"])
        documents.check(document)
        self.assertEqual(document["host"]["driver_version"], "570.124.06")
        said = self.kiln("resolve", "fleet-op@1", "--host", hosts["old"], "--explain")
        self.assertIn(f"KA-7: wrong sums for odd D; it is about drivers 570.86 to 570.124, and this machine's "
                      f"driver version is not known: give it as \"driver_version\" in {hosts['old']}", said)
        self.assertNotIn("not known", self.kiln("resolve", "fleet-op@1", "--host", hosts["last"], "--explain"))
        for driver, here, says in (("570.124.06", True, "wrong sums"), ("580.65", False, "not on this machine"),
                                   ("", True, "not known"), (None, True, "not known")):
            host = self.host("audited", driver)
            [hit] = self.audit("--host", host, code=TRUST)["advisories"]
            self.assertEqual((hit["here"], hit["scope"]), (here, f"every package, {H100}, on drivers 570.86 to 570.124"))
            doubts = says == "not known"
            self.assertEqual((hit["doubt"] or "").endswith(f"give it as \"driver_version\" in {host}"), doubts)
            said = self.run_command(KILN, "audit", "--host", host, code=TRUST).stdout
            self.assertIn(says, said)
            self.assertEqual("not known" in said, doubts, said)
        self.kiln("install", "fleet-op@1", "--device", "cpu", says=CPU)

    def test_a_driver_that_does_not_start_is_no_machine_that_is_spared(self):
        self.advise("KA-7", "--refuse", "--variant", H100, "--gpu", "9.0")
        self.kiln("lock", "fleet-op@1")
        host = self.host("broken", "570.124.06")
        facts = json.loads(host.read_text())
        host.write_text(json.dumps(facts | {"gpus": [], "driver_problem": "cuInit says 999"}))
        document = self.document("audit", "--host", host, code=TRUST)
        documents.check(document)
        [hit] = document["advisories"]
        self.assertEqual((hit["here"], hit["doubt"]),
                         (True, "whether it is about this machine is not known: cuInit says 999"))
        self.run_command(KILN, "audit", "--host", host, code=TRUST, says="wrong sums for odd D; whether it is about")
        host.write_text(json.dumps(facts | {"gpus": []}))
        [hit] = self.document("audit", "--host", host, code=TRUST)["advisories"]
        self.assertEqual((hit["here"], hit["doubt"]), (False, None))

    def test_a_machine_says_its_drivers_version_or_that_it_cannot(self):
        self.environment |= {"KILN_OVERRIDE_SM": "9.0", "KILN_OVERRIDE_CUDA": "12.9", "KILN_OVERRIDE_DRIVER": "570.124.06"}
        document = self.document("host")
        documents.check(document)
        self.assertEqual((document["driver"], document["driver_version"]), ("12.9", "570.124.06"))
        self.kiln("host", says="570.124.06 with CUDA 12.9")
        self.advise("KA-7", "--variant", H100, "--drivers", "..570.124")
        warned = lambda: self.run_command(KILN, "install", "fleet-op@1", "--no-jit", "--refresh").stderr
        self.assertIn("advisory KA-7: wrong sums for odd D\n", warned())
        self.environment["KILN_OVERRIDE_DRIVER"] = "570.133.07"
        self.assertNotIn("KA-7", warned())
        for unknown in ("", None):
            self.environment["KILN_OVERRIDE_DRIVER"] = unknown
            if unknown is None:
                del self.environment["KILN_OVERRIDE_DRIVER"]
            document = self.document("host")
            documents.check(document)
            self.assertIsNone(document["driver_version"])
            self.assertIn("KA-7: wrong sums for odd D; it is about drivers up to 570.124, and this machine's "
                          "driver version is not known: set KILN_OVERRIDE_DRIVER to it", warned())
            said = self.document("resolve", "fleet-op@1", "--no-jit")["advisories"]
            self.assertIn("KILN_OVERRIDE_DRIVER", said[0])
        self.kiln("host", says="CUDA 12.9; its own version cannot be told")

    def test_info_shows_what_is_said_of_a_version(self):
        self.assertEqual(self.document("info", "fleet-op@1")["advisories"], [])
        self.advise("KA-8", "--variant", H100, "--gpu", "9.0", "--link", "https://example.org/ka-8")
        self.advise("KA-9", "--refuse", "--package", "tiny-*")
        document = self.document("info", "fleet-op@1", "--refresh")
        documents.check(document)
        self.assertEqual(document["advisories"], [
            {"id": "KA-8", "action": "warns", "text": "wrong sums for odd D", "link": "https://example.org/ka-8",
             "scope": f"every package, {H100}, on GPUs 9.0", "variants": [H100]}])
        self.settings('"advisories": "refuse"')
        self.kiln("info", "fleet-op@1", says=f"advisory  KA-8 refuses every package, {H100}, on GPUs 9.0: advisory KA-8: wrong sums")
        self.settings('"accept_advisories": ["KA-8"]')
        self.assertEqual(self.document("info", "fleet-op@1")["advisories"][0]["action"], "accepted")

    def test_the_user_decides(self):
        self.advise("KA-1", "--refuse", "--variant", H100)
        self.advise("KA-2", "--variant", PTX)
        self.settings('"accept_advisories": ["KA-1"]')
        self.kiln("resolve", "fleet-op@1", "--host", HOST, says=H100)
        self.kiln("install", "fleet-op@1", "--host", HOST, says=H100)
        self.settings('"advisories": "warn"')
        self.assertIn("KA-1", self.run_command(KILN, "install", "fleet-op@1", "--host", HOST).stderr)
        self.settings('"advisories": "refuse"')
        self.kiln("install", "fleet-op@1", "--host", HOST, code=NO_VARIANT, says="KA-1")
        self.settings('"advisories": "ignore"')
        self.kiln("install", "fleet-op@1", code=USAGE, says="expected 'obey', 'warn' or 'refuse'")

    def test_a_lock_file_lifts_no_advisory(self):
        self.kiln("lock", "fleet-op@1")
        self.kiln("install", "--locked", "--host", HOST, says=H100)
        self.advise("KA-1", "--refuse", "--variant", H100)
        self.kiln("install", "--locked", "--host", HOST, says=H100)  # nobody has asked the registry yet
        self.assertEqual(self.audit(code=TRUST)["of"], "kiln.lock")
        for words in (["--locked"], ["--frozen"]):
            self.kiln("install", *words, "--host", HOST, says=PTX)
        machines = self.document("lock", "--check", "--hosts", HOST)["hosts"]
        self.assertEqual(machines[0]["kernels"][0]["variant"], PTX)

    def test_a_load_passes_over_the_advisories_of_others(self):
        self.publish("acme")
        self.sign_again("sign")
        self.advise("KA-1", "--refuse", "--package", "tiny-*")
        self.advise("KA-3", "--refuse", "--variant", H100)
        self.advise("KA-5", "--refuse", "--versions", "2..")
        for _ in range(2):
            self.kiln("install", "fleet-op@1", "--host", HOST, says=PTX)
        [note] = (self.work / "cache/tuf").glob("*/advisories")
        note.chmod(0o644)
        note.write_text(note.read_text().replace("targets * 0 0\n", ""))  # as where KA-3 were none
        self.kiln("install", "fleet-op@1", "--host", HOST, says=H100)
        self.kiln("install", "acme-op@1", "--device", "cpu")  # what stands beside the advisories is read
        verified = self.work / ".config/kiln/verified"
        verified.unlink()  # what nobody has verified is read as a whole
        self.kiln("install", "fleet-op@1", "--host", HOST, says=PTX)
        self.assertTrue(verified.exists())
        self.kiln("install", "fleet-op@1", "--host", HOST, says=H100)
        note.unlink()
        self.kiln("install", "fleet-op@1", "--host", HOST, says=PTX)

    def test_a_locked_load_reads_no_metadata_for_an_advisory_of_others(self):
        self.publish("acme")
        self.sign_again("sign")
        self.kiln("lock", "fleet-op@1")
        self.kiln("install", "--locked", "--host", HOST)
        self.advise("KA-1", "--refuse", "--package", "tiny-*")
        self.advise("KA-2", "--refuse", "--versions", "2..")
        self.advise("KA-3", "--refuse", "--variant", H100)
        self.lift("KA-3")
        self.audit()  # the cache has them
        [targets] = (self.work / "cache/tuf").glob("*/targets.json")
        kept = targets.read_bytes()
        targets.unlink()  # what is not there is not read, and of this package nothing is missed
        self.kiln("install", "--locked", "--host", HOST, says=H100)
        targets.write_bytes(kept)
        for words in (["--package", "fleet-*", "--variant", H100], ["--versions", "1..1", "--variant", H100]):
            self.advise("KA-3", "--refuse", *words)
            self.audit(code=TRUST)
            self.kiln("install", "--locked", "--host", HOST, says=PTX)
        note = targets.with_name("advisories")
        note.chmod(0o644)
        whole = note.read_text()
        self.assertRegex(whole, r"\nend\n$")
        # What is not understood hides nothing, nor what is cut or lost.
        for text in ("\n", "targets fleet-op\n", "targets tiny-* 0 0\n\n", "", "targets tiny-* 0 0\n", "targets tiny-* 0 0\nen"):
            note.write_text(text)
            self.kiln("install", "--locked", "--host", HOST, says=PTX)
        note.unlink()
        self.kiln("install", "--locked", "--host", HOST, says=PTX)
        note.mkdir()
        self.kiln("install", "--locked", "--host", HOST, says=PTX)
        self.kiln("cache", "verify", code=INTEGRITY, says="advisories")
        self.kiln("cache", "repair")
        self.assertFalse(note.exists())
        self.advise("KA-4", "--package", "tiny-*")
        self.audit(code=TRUST)
        self.assertEqual(note.read_text(), "everything\n" + whole)  # of other publishers' it may have said more

    # ---- which binaries ----

    def test_binaries_are_found_by_what_made_them(self):
        manifests = {each["id"]: each["manifest"] for version in self.registry_says("list")["versions"]
                     if version["name"] == "fleet-op" for each in version["variants"]}
        for words, expected in ((["--compiler", "nvrtc@12.9.1"], {H100, "cu12.9-sm_75-x86_64"}),
                                (["--compiler", "zig"], set(manifests)),
                                (["--compiler", "nvrtc@12.9.1", "--code", "sm_90a"], {H100}),
                                (["--code", "compute_80", "--package", "fleet-op"], {PTX}),
                                (["--compiler", "zig@0.15.2", "--variant", CPU], {CPU}),
                                (["--before", "2099-01-01", "--package", "fleet-op"], set(manifests))):
            self.advise("KA-3", *words)
            self.assertEqual(self.listed()["KA-3"]["variants"], sorted(manifests[each] for each in expected), words)
        self.advise("KA-3", "--compiler", "zig@0.15.1", code=NOT_FOUND, says="no variant in")
        self.advise("KA-3", "--before", "2020-01-01", code=NOT_FOUND, says="no variant in")
        self.advise("KA-3", "--before", "soon", code=USAGE, says="a day like")
        self.advise("KA/3", code=USAGE, says="letters, digits")
        self.advise("KA-3", "--versions", "3..1", code=USAGE, says="ends before it begins")
        self.advise("KA-3", "--versions", "two", code=USAGE, says="versions like 2, 1..3 or 2..")
        self.advise("KA-3", "--code", "sm90", code=USAGE, says="device code like sm_90a or compute_80")
        self.advise("KA-3", "--compiler-digest", "ab", code=USAGE, says="sha256:")
        self.advise("KA-3", "--package", "../x", code=USAGE, says="a package's name")
        self.advise("KA-3", "--gpu", "sm_90", code=USAGE, says="two numbers like")
        for drivers, says in (("12.0..12.4", "not CUDA's"), ("570", "like 570.124.06 or 580.65"), ("..R570", "like 570.124.06"),
                              ("580.65..570.124", "ends before it begins")):
            self.advise("KA-3", "--drivers", drivers, code=USAGE, says=says)

    def test_what_nothing_is_is_not_advised_of(self):
        self.advise("KA-1", "--package", "fleet-op", "--variant", H100)
        for words, absent in ((["--package", "flet-op"], "has no flet-op,"), (["--package", "flet-*"], "has no flet-*,"),
                              (["--package", "fleet-op", "--versions", "9"], "has no fleet-op, version"),
                              (["--variant", CPU, "--variant", H100.replace("12.9", "12.8")], "has no variant cu12.8-sm_90a"),
                              (["--variant", "sha256:" + "0" * 64], "has no variant sha256:0")):
            self.advise("KA-1", "--refuse", *words, code=NOT_FOUND, says=[absent, "nothing was signed"])
        self.assertEqual(self.listed()["KA-1"]["action"], "warn")
        shutil.rmtree(self.registry / "tiny-op")  # signed, and in a folder of another publisher
        self.advise("KA-2", "--package", "tiny-op", "--variant", "cpu-x86-64-v9")

    def test_binaries_are_found_by_the_digest_of_a_compiler_in_their_provenance(self):
        self.advise("KA-4", "--compiler-digest", "ab" * 32, code=NOT_FOUND, says="has no provenance here")
        (self.work / "toolchains.lock").write_text(
            f"[zig]\nziglang==0.15.2 --hash=sha256:{'ab' * 32}\n" + "".join(
                f"[cuda-{toolkit}]\nnvidia-cuda-nvrtc=={toolkit}.1 --hash=sha256:{digest * 32}\n"
                for toolkit, digest in (("12.9", "cd"), ("13.0", "ce"), ("11.8", "cf"))))
        self.run_command(KILN_REGISTRY, "attest", "fleet-op@1", "--registry", self.registry, "--key", self.work / "keys/targets",
                         "--source", "https://example.org/kernels", "--commit", "0" * 40, "--builder", "https://ci.example.org",
                         "--toolchains", self.work / "toolchains.lock")
        self.advise("KA-4", "--compiler-digest", "sha256:" + "cf" * 32)
        manifests = {each["manifest"]: each["id"] for version in self.registry_says("list")["versions"]
                     for each in version["variants"]}
        self.assertEqual([manifests[each] for each in self.listed()["KA-4"]["variants"]], [PTX])

    # ---- audit ----

    def test_audit_of_a_lock_file_the_cache_a_bundle_and_a_registry(self):
        self.kiln("lock", "fleet-op@1", "tiny-op@1")
        self.kiln("install", "fleet-op@1", "--host", HOST)
        bundle = self.work / "b.tar"
        self.kiln("bundle", "create", "fleet-op@1", "--host", HOST, "-o", bundle)
        self.assertEqual(self.audit()["advisories"], [])
        self.kiln("audit", says="kiln.lock: 2 kernels, no advisory")
        self.advise("KA-5", "--variant", H100, "--gpu", "9.0", "--package", "fleet-op")
        [hit] = self.audit("--host", HOST)["advisories"]
        self.assertEqual((hit["id"], hit["action"], hit["variants"], hit["here"]), ("KA-5", "warns", [H100], True))
        self.assertEqual(hit["scope"], f"fleet-op, {H100}, on GPUs 9.0")
        [hit] = self.audit("fleet-op")["advisories"]
        self.assertFalse(hit["here"], "this machine has no such GPU")
        self.assertEqual(self.audit("tiny-op@1")["advisories"], [])
        self.kiln("audit", "none@1", code=NOT_FOUND, says="kiln.lock does not have it")
        self.advise("KA-5", "--refuse", "--variant", H100, "--package", "fleet-op")
        [hit] = self.audit("--offline")["advisories"]
        self.assertEqual(hit["action"], "warns", "as the cache has it")
        self.assertEqual(self.audit(code=TRUST)["advisories"][0]["action"], "refuses")
        self.assertEqual(self.audit("--offline", code=TRUST)["advisories"][0]["action"], "refuses")
        (self.project / "kiln.lock").unlink()
        [hit] = self.audit(code=TRUST)["advisories"]  # of the cache
        self.assertEqual(hit["variants"], [H100])
        [hit] = self.audit("--registry", self.registry, code=TRUST)["advisories"]
        self.assertEqual(hit["name"], "fleet-op")
        document = self.audit("--registry", self.registry, "tiny-op@1")
        self.assertEqual((document["kernels"], document["advisories"]), (1, []))
        self.kiln("bundle", "create", "fleet-op@1", "--all-variants", "-o", bundle)
        shutil.rmtree(self.work / "cache")
        [hit] = self.audit("--from", bundle, "--offline", code=TRUST)["advisories"]
        self.assertEqual(hit["variants"], [H100])

    def test_what_is_damaged_is_not_passed_over(self):
        for package in ("fleet-op@1", "tiny-op@1"):
            self.kiln("install", package, "--device", "cpu")
        [ref] = (self.work / "cache/refs").rglob("tiny-op/1.json")
        ref.chmod(0o644)  # a file of the cache is for reading, whoever has it
        ref.write_text("{")
        document = self.audit(code=INTEGRITY)
        self.assertEqual((document["kernels"], [each["name"] for each in document["unknown"]]), (1, ["tiny-op"]))
        self.kiln("audit", code=INTEGRITY, says="not known: tiny-op@1, ref ")
        self.assertEqual(self.audit("tiny-op@1", code=INTEGRITY)["kernels"], 0)
        self.audit("fleet-op@1")
        said = self.document("outdated", code=INTEGRITY)["kernels"]
        self.assertEqual(sorted((each["name"], each["problem"] is None) for each in said), [("fleet-op", True), ("tiny-op", False)])
        self.kiln("cache", "repair")
        self.assertEqual(self.audit()["kernels"], 1)
        self.kiln("install", "tiny-op@1", "--device", "cpu", "--refresh")
        self.assertEqual(self.audit()["kernels"], 2)

    def test_audit_says_what_was_taken_back_and_what_nobody_signs(self):
        self.kiln("lock", "fleet-op@1")
        self.sign_again("yank", "fleet-op@1", "--reason", "leaks")
        document = self.audit(code=TRUST)
        self.assertEqual([(each["name"], each["reason"]) for each in document["yanked"]], [("fleet-op", "leaks")])
        self.environment["KILN_CACHE"] = str(self.work / "other")
        [unknown] = self.audit("--offline")["unknown"]
        self.assertIn("no signed metadata", unknown["why"])
        self.kiln("trust", "remove", self.registry)
        [unknown] = self.audit()["unknown"]
        self.assertIn("no root of", unknown["why"])

    # ---- who signs ----

    def test_too_few_keys_leave_a_draft_that_shows_it(self):
        self.registry_says("advisory", "publish", "KA-6", "--text", "wrong sums", "--key", self.work / "keys/online")
        self.assertEqual(self.listed(), {})
        draft = self.registry_says_file("sign", self.registry / "kiln.tuf/draft", "--root", self.work / "root.json")
        self.assertTrue(any("KA-6" in each and "wrong sums" in each for each in draft["changes"]), draft)
        self.sign_again("sign")
        self.assertEqual(list(self.listed()), ["KA-6"])

    def registry_says_file(self, *words):
        return json.loads(self.run_command(KILN_REGISTRY, *words, "--json").stdout)

    def test_a_publisher_advises_of_its_own_packages(self):
        self.run_command(KILN_REGISTRY, "key", self.work / "keys/acme")
        every = [word for key in ("targets", "online", "acme") for word in ("--key", self.work / "keys" / key)]
        self.publish("acme")
        self.registry_says("delegate", "acme", "--package", "acme-*", "--role-key", self.work / "keys/acme.pub", *every)
        self.registry_says("sign", *every)
        self.registry_says("advisory", "publish", "KA-1", "--text", "leaks", "--refuse", "--role", "acme", *every)
        self.kiln("install", "acme-op@1", "--device", "cpu", code=NO_VARIANT, says="KA-1: leaks")
        self.kiln("install", "fleet-op@1", "--host", HOST, says=H100)
        self.registry_says("delegate", "acme", "--package", "acme-*", "--package", "other-*", *every)  # it may stay
        self.registry_says("advisory", "publish", "KA-1", "--text", "x", "--role", "nobody", *every, code=NOT_FOUND,
                           says="there is no publisher")
        self.assertEqual(self.registry_says("sign", *every)["versions"], 3, "an advisory is no version")

    def test_other_tuf_clients_find_its_bytes(self):
        self.advise("KA-1")
        self.run_command(KILN_REGISTRY, "export-static", "--registry", self.registry, "--out", self.work / "www")
        [target] = (self.work / "www/targets/kiln.advisories").iterdir()
        self.assertEqual(json.loads(target.read_text())["id"], "KA-1")
        self.registry_says("check")
        [blob] = [each for each in (self.registry / "kiln.tuf/blobs/sha256").iterdir()
                  if b'"targets"' in each.read_bytes() and b"KA-1" in each.read_bytes()]
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes().replace(b"KA-1", b"KA-2"))
        done = self.run_command(KILN_REGISTRY, "check", "--registry", self.registry, code=INTEGRITY)
        self.assertIn("blob of kiln.tuf", done.stdout + done.stderr)


if __name__ == "__main__":
    main()
