#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The verbs of a project and of a cache, on registries of synthetic packages: a folder, a signed one, a server.

    verbs_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import datetime
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import time
import unittest

from world import CACHE, INTEGRITY, KILN, KILN_REGISTRY, LOCK, NETWORK, NOT_FOUND, OK, TRUST, USAGE, World, main
import clock  # world says where these are
import documents
from oci_server import OciServer


class Verbs(World):
    # ---- a project's kernels ----

    def test_add_takes_the_newest_and_remove_takes_it_out(self):
        self.publish("next", "four/alpha")
        said = self.kiln("add", "tiny-op", "alpha@1")
        self.assertIn('kiln::get_kernel("tiny-op", {.version = 2, .lock = "kiln.lock"})', said)
        self.assertIn("kiln_require(tiny-op VERSION 2)", said)
        self.assertEqual({name: each["requested"]["version"] for name, each in self.lock().items()},
                         {"alpha": 1, "tiny-op": 2})
        self.assertEqual(self.document("add", "tiny-op@1")["added"][0]["version"], 1)
        self.assertEqual(self.lock()["tiny-op"]["requested"]["version"], 1)
        self.assertEqual(self.document("remove", "tiny-op")["differences"], ["- tiny-op@1"])
        self.assertEqual(list(self.lock()), ["alpha"])
        self.kiln("remove", "tiny-op", code=LOCK, says="it has alpha@1")
        self.kiln("remove", "alpha@7", code=LOCK, says="find alpha@7 in kiln.lock")
        self.kiln("add", "nosuch", code=NOT_FOUND, says="published: alpha, tiny-op")
        self.kiln("add", "tiny-op@9", code=NOT_FOUND, says="published: 1, 2")

    def test_a_verb_of_a_program_that_is_not_installed(self):
        alone = self.project / "kiln"
        shutil.copy(KILN, alone)
        for verb, says in (("build", "comes with a build of Kiln's source"), ("new", "comes with a build of Kiln's source"),
                           ("pack", "comes with a build of Kiln's source"), ("registry", "Install Kiln anew")):
            self.run_command(alone, verb, code=NOT_FOUND, says=[f"kiln {verb}: there is no {self.project}/kiln-", says])

    def test_add_check_writes_nothing(self):
        self.kiln("add", "tiny-op", "--check", code=LOCK, says="+ tiny-op@1")
        self.assertFalse((self.project / "kiln.lock").exists())

    def test_a_project_that_states_its_kernels_states_them_after_add_and_remove(self):
        stated = self.project / "kiln.json"
        stated.write_text('{"schema": "kiln.requirements/1", "note": "mine", "kernels": {}}')
        self.publish("four/alpha")
        self.kiln("add", "tiny-op", "alpha")
        self.kiln("lock", "--check")  # what kiln.json states is what is locked
        self.assertEqual(json.loads(stated.read_text())["kernels"], {"alpha": {"version": 1}, "tiny-op": {"version": 1}})
        self.publish("next")
        self.kiln("update")
        self.kiln("lock", "--check")
        self.kiln("remove", "alpha")
        self.kiln("lock", "--check")
        self.assertEqual(json.loads(stated.read_text()),
                         {"schema": "kiln.requirements/1", "note": "mine", "kernels": {"tiny-op": {"version": 2}}})

    def test_outdated_and_update(self):
        self.kiln("add", "tiny-op")
        self.kiln("outdated", says="kiln.lock has the newest of all 1")
        self.publish("two")
        [kernel] = self.document("outdated")["kernels"]
        self.assertEqual((kernel["version"], kernel["newest"], kernel["outdated"]), (1, 1, True))
        self.assertEqual(kernel["new_variants"], ["cu12.9-sm_80-x86_64", "cpu-x86-64-v4"])
        self.publish("next")
        self.kiln("outdated", says="tiny-op  1 -> 2  2 new variants of 1")
        same = self.document("update", "--same-version")["differences"]
        self.assertIn("tiny-op@1: + variant cpu-x86-64-v4", same)
        self.assertEqual(self.document("update", "--check", code=LOCK)["differences"], ["tiny-op: version 1 -> 2"])
        self.assertEqual(self.document("update", "tiny-op")["differences"], ["tiny-op: version 1 -> 2"])
        self.kiln("update", says="kiln.lock holds")
        self.kiln("update", "alpha", code=LOCK, says="it has tiny-op@2")

    def test_outdated_of_what_is_installed(self):
        self.kiln("outdated", says="has no kernel")
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        self.publish("next")
        [kernel] = self.document("outdated")["kernels"]
        self.assertEqual((kernel["version"], kernel["newest"]), (1, 2))
        self.kiln("outdated", "--registry", "x", code=USAGE)
        self.kiln("outdated", "nosuch", code=NOT_FOUND, says="has no such kernel; name one of tiny-op")
        for words in (["outdated"], ["audit"]):  # what was named is there, whatever its name
            self.kiln(*words, "--lock", "kiln.lock", code=LOCK, says="kiln.lock")
        self.kiln("lock", "--requirements", "kiln.json", code=USAGE, says="read requirements kiln.json")
        self.kiln("add", "tiny-op", "--requirements", "kiln.json", code=USAGE, says="read requirements kiln.json")
        for words in (["list"], ["outdated"], ["cache", "gc"], ["cache", "repair"], ["cache", "verify"], ["uninstall", "tiny-op"]):
            self.kiln(*words, "--cache", self.work / "mistyped", code=NOT_FOUND, says=f"{self.work}/mistyped")

    def test_a_registry_that_does_not_answer_is_said_of_each_kernel(self):
        self.kiln("add", "tiny-op")
        self.registry.rename(self.work / "gone")
        document = self.document("outdated", code=NOT_FOUND)
        self.assertIn("no such folder", document["kernels"][0]["problem"])

    def test_a_project_whose_folder_is_gone(self):
        self.project.rmdir()
        for words in (["add", "tiny-op"], ["lock", "tiny-op@1"], ["install", "--locked"], ["update"], ["remove", "tiny-op"]):
            done = subprocess.run(["/bin/sh", "-c", 'mkdir "$0"; cd "$0"; rmdir "$0"; exec "$@"', self.project, KILN, *words],
                                  capture_output=True, text=True, env=self.environment)
            self.assertNotIn(done.returncode, (OK, 1), words)
            self.assertIn("the current folder was removed", done.stderr, words)
            self.assertIn("Go to another one (cd)", done.stderr, words)
        self.project.mkdir()

    def test_drafts_that_a_killed_command_left_are_swept(self):
        """Of the name that a command writes, and not those of a command that runs: those are locked, or young."""
        out = self.work / "out"
        commands = {
            "bundle": ([KILN, "bundle", "create", "tiny-op@1", "--device", "cpu", "-o", out / "b.tar"], [out / ".kiln-bundle"]),
            "lock": ([KILN, "lock", "tiny-op@1", "--lock", out / "kiln.lock"], [out / ".kiln.lock"]),
            "export": ([KILN_REGISTRY, "export-static", "--registry", self.registry, "--out", out],
                       [out / ".nginx.conf", out / "v2/tiny-op/.draft", out / "v2/tiny-op/manifests/.link", out / "v2/tiny-op/tags/.list"]),
        }
        (out / "v2/tiny-op/manifests").mkdir(parents=True)
        (out / "v2/tiny-op/tags").mkdir()
        others = [out / ".mine-1-0123456789abcdef", out / "v2/tiny-op/.draft", out / "kiln.lock-1-0123456789abcdef"]
        for name, (command, drafts) in commands.items():
            left = [each.with_name(each.name + "-1-0123456789abcdef") for each in drafts]
            held = left[0].with_name(left[0].name.replace("-1-", "-2-"))
            for each in [*left, held, *others]:
                each.write_text("left")
            link = out / "v2/tiny-op/manifests/.draft-1-0123456789abcdef"
            if name == "export":
                link.symlink_to("nothing")
            with open(held) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self.run_command(*command)
                self.assertEqual([each for each in left if not each.exists()], [], name)
                (out / "kiln.lock").unlink(missing_ok=True)  # what does not change is not written
                self.run_command(*clock.later(120, pathlib.Path(KILN).parent), *command)
                self.assertEqual([each for each in left if each.exists()], [], name)
                self.assertFalse(link.is_symlink())
                self.assertTrue(held.exists())
            self.assertEqual([each for each in others if not each.exists()], [])
            (out / "kiln.lock").unlink(missing_ok=True)
            self.run_command(*clock.later(120, pathlib.Path(KILN).parent), *command)
            self.assertFalse(held.exists())

    # ---- newest_after: only what was published so long ago counts as the newest ----

    def at(self, days, program, *words, **how):
        """The same command, that many days later."""
        return self.run_command(*clock.later(days * 86400, pathlib.Path(KILN).parent), program, *words, **how)

    def signed_in_two_steps(self):
        """tiny-op@1 signed today, tiny-op@2 six days later; the settings want seven."""
        self.sign()
        self.publish("next")
        keys = ["--key", self.work / "keys/targets", "--key", self.work / "keys/online"]
        self.at(6, KILN_REGISTRY, "sign", "--registry", self.registry, *keys)
        settings = self.work / ".config/kiln/config.json"
        settings.write_text('{"schema": "kiln.settings/1", "newest_after": "7 days"}')

    def at_day(self, days, *words, **how):
        return json.loads(self.at(days, KILN, *words, "--json", **how).stdout)

    def test_a_young_version_is_passed_over_and_counts_later(self):
        self.signed_in_two_steps()
        said = self.at(8, KILN, "add", "tiny-op").stdout
        self.assertRegex(said, r"tiny-op@2 is passed over: newest_after is 7 days; published 20\S+Z, it counts from 20\S+Z")
        self.assertEqual(self.lock()["tiny-op"]["requested"]["version"], 1)
        document = self.at_day(8, "update")
        documents.check(document)
        [young] = document["young"]
        self.assertEqual((young["name"], young["version"], young["taken"]), ("tiny-op", 2, False))
        moments = [datetime.datetime.fromisoformat(young[each].removesuffix("Z")) for each in ("published", "counts_from")]
        self.assertEqual(moments[1] - moments[0], datetime.timedelta(days=7))
        self.assertEqual(self.at_day(8, "update", "--newest-after", "1 day", "--check", code=LOCK)["differences"],
                         ["tiny-op: version 1 -> 2"])
        self.assertEqual(self.at_day(14, "update")["differences"], ["tiny-op: version 1 -> 2"])
        self.assertEqual(self.at_day(14, "update")["young"], [])

    def test_a_version_that_is_named_is_taken_and_called_young(self):
        self.signed_in_two_steps()
        for verb in ("add", "lock"):
            (self.project / "kiln.lock").unlink(missing_ok=True)
            [young] = self.at_day(8, verb, "tiny-op@2")["young"]
            self.assertEqual((young["version"], young["taken"]), (2, True))
            self.assertEqual(self.lock()["tiny-op"]["requested"]["version"], 2)
        self.assertEqual(self.at_day(8, "lock")["young"], [], "what is locked already is not told again")
        self.assertEqual(self.at_day(8, "update")["differences"], [], "nothing goes back")

    def test_newest_after_and_versions_that_were_taken_back(self):
        self.signed_in_two_steps()
        self.at(8, KILN, "add", "tiny-op@1")
        keys = ["--key", self.work / "keys/targets", "--key", self.work / "keys/online"]
        self.at(8, KILN_REGISTRY, "yank", "tiny-op@1", "--reason", "wrong sums", "--registry", self.registry, *keys)
        said = self.at(8, KILN, "update", code=TRUST).stdout  # no version counts, and this one is refused
        self.assertIn("tiny-op@1 was taken back", said)
        self.assertIn("tiny-op@2 is passed over", said)
        self.assertEqual(self.at_day(8, "update", "--newest-after", "0")["differences"], ["tiny-op: version 1 -> 2"])

    def test_versions_that_no_signature_dates(self):
        settings = self.work / ".config/kiln/config.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text('{"schema": "kiln.settings/1", "newest_after": "7 days"}')
        self.kiln("add", "tiny-op", code=TRUST, says=["newest_after is 7 days, and no signature says here when", "--newest-after 0"])
        self.kiln("add", "tiny-op@1", says="tiny-op@1 is taken, as it is named")
        self.publish("next")
        self.kiln("update", says="tiny-op@2 is passed over: newest_after is 7 days; no signature says when it was published")
        self.kiln("add", "tiny-op", "--newest-after", "0", says="tiny-op@2 is in kiln.lock")
        self.kiln("add", "tiny-op", "--newest-after", "soon", code=USAGE, says="a time like '7 days'")
        self.sign()
        settings.write_text('{"schema": "kiln.settings/1", "newest_after": "7 days"}')
        self.kiln("add", "tiny-op", code=NOT_FOUND, says="every version is younger. Name the version that you want, tiny-op@2")

    def test_a_version_that_gains_variants_keeps_its_date(self):
        self.signed_in_two_steps()
        self.publish("two")  # more variants of tiny-op@1
        keys = ["--key", self.work / "keys/targets", "--key", self.work / "keys/online"]
        self.at(7, KILN_REGISTRY, "sign", "--registry", self.registry, *keys)
        self.at(8, KILN, "add", "tiny-op")
        self.assertEqual(self.lock()["tiny-op"]["requested"]["version"], 1)

    def test_paths_that_cannot_be_meant(self):
        file = self.work / "file"
        file.write_text("")
        for words in (["publish", self.built / "two", "--allow-untested", "*", "--registry", file], ["export-static", "--out", file],
                      ["site", file]):
            more = [] if words[0] == "publish" else ["--registry", self.registry]
            self.run_command(KILN_REGISTRY, *words, *more, code=USAGE, says="it is a file, expected a folder. Name another path")
        self.run_command(KILN_REGISTRY, "key", "", code=USAGE, says="file: found an empty word, expected a value")
        for words in (["lock", "tiny-op@1", "--lock"], ["bundle", "create", "tiny-op@1", "--device", "cpu", "-o"]):
            self.kiln(*words, "/dev/stdout", code=USAGE, says="write /dev/stdout: it is a pipe or a device, expected a file")

    def test_a_folder_in_the_place_of_a_blob_is_one_problem_of_a_check(self):
        [first, second, *_] = sorted((self.registry / "tiny-op/blobs/sha256").iterdir())
        for blob in (first, second):
            blob.unlink()
            blob.mkdir()
        done = self.run_command(KILN_REGISTRY, "check", "--registry", self.registry, code=INTEGRITY)
        for blob in (first, second):
            self.assertIn(f"{blob}: found a link or another kind of file, expected a regular file", done.stdout + done.stderr)

    # ---- the cache ----

    def test_uninstall_frees_what_nothing_holds(self):
        self.publish("next")
        for version in (1, 2):
            self.kiln("install", f"tiny-op@{version}", "--device", "cpu")
        would = self.document("uninstall", "tiny-op", "--dry-run")
        self.assertEqual([each["version"] for each in would["uninstalled"]], [1, 2])
        done = self.document("uninstall", "tiny-op@1")
        self.assertEqual([each["version"] for each in done["uninstalled"]], [1])
        self.assertGreater(done["bytes"], 1000)
        self.assertLess(done["bytes"], would["bytes"])
        self.assertEqual([each["version"] for each in self.document("list")["installed"]], [2])
        self.kiln("uninstall", "tiny-op@1", code=NOT_FOUND, says="not installed in")
        self.kiln("uninstall", "tiny-op@2", "nosuch", code=NOT_FOUND, says="nothing was removed")
        self.kiln("uninstall", "tiny-op", "--registry", self.work / "other", code=NOT_FOUND)
        self.kiln("uninstall", "tiny-op")
        self.kiln("cache", "verify")
        files = [each for each in (self.work / "cache").rglob("*") if each.is_file() and "unpacked" in each.parts]
        self.assertEqual(files, [])

    def test_what_a_lock_file_holds_is_not_uninstalled(self):
        self.kiln("add", "tiny-op")
        self.kiln("install", "--locked", "--device", "cpu")
        kept = self.document("uninstall", "tiny-op", code=LOCK)["kept"]
        self.assertEqual(kept[0]["holder"], str(self.project / "kiln.lock"))
        self.kiln("uninstall", "tiny-op", code=LOCK, says="Run 'kiln remove tiny-op' in that project")
        self.assertEqual(len(self.document("list")["installed"]), 1)
        self.kiln("remove", "tiny-op")
        self.kiln("uninstall", "tiny-op", says="uninstalled tiny-op@1")

    def test_a_variant_that_was_mistyped_is_not_denied_in_silence(self):
        for command in ("install", "resolve"):
            self.kiln(command, "tiny-op@1", "--device", "cpu", "--deny", "cpu-x86-64-v33", code=NOT_FOUND,
                      says="deny cpu-x86-64-v33: no variant is called so")
            self.kiln(command, "tiny-op@1", "--device", "cpu", "--deny", "cpu-x86-64-v3", code=3)

    def test_of_several_packages_one_must_have_what_is_denied(self):
        self.publish("four/alpha")
        [alpha] = self.document("install", "alpha@1", "--device", "cpu")["installed"]
        words = ["install", "tiny-op@1", "alpha@1", "--device", "cpu", "--deny"]
        self.kiln(*words, alpha["manifest"], code=3, says="deny list")
        self.kiln(*words, "nosuch", code=NOT_FOUND, says="deny nosuch: no variant is called so")

    def test_a_place_that_was_mistyped_is_looked_at(self):
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        for place in (self.work / "nosuch", "nosuch", f"file://{self.work}/nosuch"):
            for words in (["install", "tiny-op@1", "--device", "cpu"], ["add", "tiny-op"], ["info", "tiny-op"], ["search"]):
                self.kiln(*words, "--from", place, code=NOT_FOUND, says="nosuch: there is no such f")
        self.assertFalse((self.project / "kiln.lock").exists())
        self.kiln("install", "tiny-op@1", "--device", "cpu", "--from", self.registry)

    def test_a_folder_that_was_mistyped_is_told_of(self):
        """And may be that of a bundle, which was made elsewhere."""
        for folder in ("nosuch", self.work / "nosuch"):
            said = self.kiln("trust", "add", folder, "--unsigned")
            self.assertIn("nosuch: there is no such folder. Check its name", said)
        said = self.kiln("trust", "add", self.registry, "--unsigned")
        self.assertNotIn("no such folder", said)

    @unittest.skipIf(os.geteuid(), "only root may become nobody")
    def test_what_is_no_cache_is_not_told_of_one(self):
        os.chmod(self.work, 0o755)
        self.environment["HOME"] = self.environment["KILN_CACHE"] = "/nonexistent"
        (self.work / "closed").mkdir(mode=0o700)
        nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups"
        for command in (f"{KILN_REGISTRY} key {self.work}/closed/k", f"{KILN} audit", f"{KILN} outdated", f"{KILN} lock"):
            words = ["/bin/sh", "-c", f"cd {self.work}/closed && exec {nobody} {command}"]
            done = self.run_command(*words, code=9, says="Permission denied")
            self.assertNotIn("KILN_CACHE", done.stderr, command)

    def test_a_key_that_is_not_there(self):
        done = self.run_command(KILN_REGISTRY, "attest", "tiny-op@1", "--registry", self.registry, "--key", "nosuch",
                                code=NOT_FOUND, says="open key nosuch: No such file or directory. Check the path")
        self.assertNotIn("OpenSSL", done.stderr)

    def test_a_name_that_json_cannot_say(self):
        name = os.fsdecode(b"q\xff.key")
        self.run_command(KILN_REGISTRY, "key", name, "--json", code=USAGE, says=['"q\\xff.key"', "not UTF-8"])
        self.assertEqual(list(self.project.iterdir()), [])
        self.run_command(KILN_REGISTRY, "key", name)
        self.assertEqual(sorted(os.listdir(os.fsencode(self.project))), [b"q\xff.key", b"q\xff.key.pub"])

    def test_who_waits_says_for_whom(self):
        descriptor = os.open(self.project, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for words in (["add", "tiny-op"], ["lock", "tiny-op@1"]):
            with subprocess.Popen([KILN, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                  env=self.environment, cwd=self.project) as run:
                said = run.stderr.readline()
                run.send_signal(signal.SIGINT)
                run.stderr.read()
            self.assertIn(f"waiting for process {os.getpid()}, which holds {self.project}/kiln.lock", said)
            self.assertEqual(run.returncode, 130)

    # ---- a registry ----

    def test_search_a_folder(self):
        self.publish("next", "four/alpha")
        self.assertEqual([(each["name"], each["version"], each["summary"]) for each in self.document("search")["packages"]],
                         [("alpha", 1, ""), ("tiny-op", 2, "out = 2 x, for tests")])
        self.assertIn("tiny-op@2  out = 2 x, for tests", self.kiln("search", "FOR", "2"))
        self.assertEqual(self.document("search", "nosuch")["packages"], [])
        self.kiln("search", "--registry", self.work / "none", code=NOT_FOUND)
        self.environment["KILN_UNSIGNED"] = ""
        for words in (["search"], ["info", "tiny-op"], ["install", "tiny-op@1"]):
            self.kiln(*words, "--registry", self.work / "none", code=NOT_FOUND,
                      says="none: there is no such folder, and no root of it is trusted here. Name a registry")

    @unittest.skipIf(os.geteuid(), "only root may become nobody")
    def test_what_may_not_be_read_is_not_absent(self):
        os.chmod(self.work, 0o755)
        self.environment["HOME"] = self.environment["KILN_CACHE"] = "/nonexistent"
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", KILN]
        os.chmod(self.registry, 0o711)  # its packages may be opened, and not listed
        self.run_command(*nobody, "search", code=NETWORK, says=f"read {self.registry}: Permission denied. Give this user")
        self.run_command(*nobody, "info", "nosuch", code=NOT_FOUND, says="published: not known, the folder may not be listed")
        os.chmod(self.registry, 0o755)
        os.chmod(self.registry / "tiny-op", 0o700)
        for words in ([], ["nosuch"]):  # what it says of itself is not known
            done = self.run_command(*nobody, "search", *words, code=NETWORK)
            self.assertIn("tiny-op  not readable: read", done.stdout)

    def test_an_index_that_may_not_be_read_is_not_absent(self):
        """Which signed metadata names by its digest. Root may read all: as nobody then."""
        self.sign()
        blobs = self.registry / "tiny-op/blobs/sha256"
        cache = self.work / "cache"
        cache.mkdir()
        subprocess.run(["chmod", "-R", "go+rX", self.work], check=True)  # whatever the umask
        nobody = []
        if os.geteuid() == 0:
            os.chown(cache, 65534, 65534)
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chmod(blobs, 0o600)  # its names may be listed, and nothing opened
        self.addCleanup(os.chmod, blobs, 0o755)
        self.run_command(*nobody, KILN, "install", "tiny-op@1", "--device", "cpu", code=NETWORK,
                         says=[f"read {blobs}/", ": Permission denied. Give this user the right"])
        os.chmod(blobs, 0o755)
        self.run_command(*nobody, KILN, "install", "tiny-op@1", "--device", "cpu")

    def test_search_a_server_page_by_page_below_its_path(self):
        self.publish("four/alpha", "four/beta", "four/gamma")
        server = OciServer(self)
        for path in ("/kernels", "/others"):
            self.run_command(KILN_REGISTRY, "push", "--registry", self.registry, "--to", server.url + path)
        found = self.document("search", "--registry", server.url + "/kernels")
        self.assertEqual([each["name"] for each in found["packages"]], ["alpha", "beta", "gamma", "tiny-op"])
        self.assertEqual(len([each for each in server.requests if each.path == "/v2/_catalog"]), 4)
        self.assertEqual(self.document("search", "--registry", server.url)["packages"], [])

    def test_a_server_without_a_list_is_refused_kindly(self):
        for status in (404, 405, 403):
            server = OciServer(self, meddle=lambda request, serve, status=status: (status, {}, b""))
            self.kiln("search", "--registry", server.url, code=NOT_FOUND,
                      says=[f"its server gives no list (status {status} from", "kiln info NAME"])
        endless = OciServer(self, meddle=lambda request, serve: (
            200, {"Link": '</v2/_catalog?more>; rel="next"'}, b'{"repositories":["a"]}'))
        self.kiln("search", "--registry", endless.url, code=NETWORK, says="more than 100 pages")

    def test_a_damaged_version_is_not_taken_for_none(self):
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        [ref] = (self.work / "cache").glob("refs/*/tiny-op/1.json")
        ref.chmod(0o644)
        ref.write_text(ref.read_text()[:40])
        for words in (["tiny-op"], ["tiny-op@1", "--dry-run"], ["tiny-op", "--registry", self.registry]):
            self.kiln("uninstall", *words, code=INTEGRITY, says=["nothing was removed. Run 'kiln cache repair' first"])
        self.kiln("uninstall", "tiny-op@2", code=NOT_FOUND)
        self.kiln("uninstall", "tiny-op", "--registry", self.work / "other", code=NOT_FOUND)
        self.kiln("cache", "repair")
        self.kiln("uninstall", "tiny-op", code=NOT_FOUND, says="not installed")

    def test_an_install_of_a_signed_version_lists_it_again(self):
        self.sign()
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        cache = self.work / "cache"
        [ref] = cache.glob("refs/*/tiny-op/1.json")
        ref.chmod(0o644)
        ref.write_text("{}")
        self.kiln("cache", "repair")
        self.assertFalse(ref.exists())
        closed = f"mount --bind {cache} {cache}; mount -o remount,bind,ro {cache}; exec \"$@\""
        if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0:
            said = "it is here, and not in the cache's list: "
            self.run_command("unshare", "-m", "sh", "-ec", closed, "sh", KILN, "install", "tiny-op@1", "--device", "cpu", says=said)
        self.assertFalse(ref.exists())
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        self.assertTrue(ref.exists())
        self.assertIn("tiny-op", self.kiln("list"))
        self.kiln("cache", "gc", "--unlocked")
        self.kiln("install", "tiny-op@1", "--device", "cpu")

    def test_of_a_signed_registry_the_metadata_has_the_word(self):
        self.publish("next", "four/alpha")
        self.sign()
        self.publish("four/beta")  # nobody signed it
        found = self.document("search")
        self.assertEqual((found["signed"], [(each["name"], each["version"]) for each in found["packages"]]),
                         (True, [("alpha", 1), ("tiny-op", 2)]))
        self.kiln("add", "beta", code=NOT_FOUND, says="its signed metadata does not speak of it")
        self.kiln("add", "tiny-op")
        self.kiln("install", "tiny-op@2", "--device", "cpu")
        self.sign_again("yank", "tiny-op@2", "--reason", "wrong sums")
        [kernel] = self.document("outdated")["kernels"]
        self.assertEqual((kernel["version"], kernel["newest"], kernel["yanked"]), (2, 1, "wrong sums"))
        self.kiln("outdated", says='2 -> 1  taken back: "wrong sums"')
        self.assertEqual(self.document("info", "tiny-op@1")["yanked"], {"2": "wrong sums"})
        self.kiln("info", "tiny-op", says='versions  1 2 (taken back: "wrong sums")')
        self.assertEqual([(each["version"], each["yanked"]) for each in self.document("list")["installed"]],
                         [(2, "wrong sums")])
        self.kiln("list", says='taken back: "wrong sums"')
        self.assertEqual(self.document("search", "tiny")["packages"][0]["version"], 1)
        self.kiln("info", "tiny-op", says="tiny-op@1  from")
        self.kiln("install", "tiny-op", code=USAGE, says="Write it as tiny-op@1")
        self.assertEqual(self.document("update")["differences"], ["tiny-op: version 2 -> 1"])
        self.kiln("add", "tiny-op", says="kiln.lock holds")
        self.sign_again("yank", "tiny-op@1", "--reason", "slow")
        self.kiln("add", "tiny-op", code=TRUST, says="its publisher took back every version")

    def test_offline_the_metadata_in_the_cache_has_the_word(self):
        self.publish("next")
        self.sign()
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        said = "offline: nothing is asked, and versions that this cache does not know of are not seen"
        self.environment["KILN_OFFLINE"] = "1"
        self.assertIn("1 -> 2", self.kiln("outdated", says=said))
        self.kiln("add", "tiny-op", says=[said, "tiny-op@1 is in kiln.lock"])  # what can be had
        self.kiln("update", says=[said, "kiln.lock holds"])
        self.environment["KILN_OFFLINE"] = ""
        self.assertNotIn("offline", self.run_command(KILN, "outdated").stderr)
        self.kiln("update")
        self.kiln("install", "--locked", "--device", "cpu")
        self.sign_again("yank", "tiny-op@2", "--reason", "wrong sums")
        self.kiln("outdated", says='2 -> 1  taken back: "wrong sums"')
        self.environment["KILN_OFFLINE"] = "1"
        self.kiln("outdated", says='2 -> 1  taken back: "wrong sums"')
        self.assertEqual(self.document("update")["differences"], ["tiny-op: version 2 -> 1"])
        self.kiln("outdated", says="kiln.lock has the newest of all 1")  # which is not the one that was taken back

    def test_search_offline_asks_no_server(self):
        self.kiln("search", "--offline")
        self.kiln("search", "--offline", "--registry", "http://127.0.0.1:9", code=10, says="offline nothing is asked")

    def test_info_before_install_has_the_schema_the_licence_and_the_sizes(self):
        self.publish("next")
        document = self.document("info", "tiny-op")
        self.assertEqual((document["version"], document["license"], document["summary"]),
                         (2, "Apache-2.0", "out = 2 x, for tests"))
        self.assertEqual(document["ops"][0]["tensors"][0]["dtype"], ["float32", "float16"])
        self.assertGreater(document["variants"][0]["download_bytes"], 100)
        said = self.kiln("info", "tiny-op@2")
        for line in ("op        twice(x, [bias]) -> out", "out = 2 x", "  x     float32, float16  [N, 4]  rows",
                     "  bias  as x              [N]     optional", "  out   as x              [N]     output",
                     "  mode  string: fast, slow, default \"fast\""):
            self.assertIn(line + "\n", said)
        self.assertEqual(self.document("list")["installed"], [])
        self.assertEqual(self.document("install", "tiny-op@2", "--device", "cpu")["installed"][0]["bytes_fetched"],
                         self.registry_index_bytes())

    def registry_index_bytes(self):
        """All but the index is in the cache already, from info."""
        index = json.loads((self.registry / "tiny-op/index.json").read_text())["manifests"]
        tags = {each["annotations"]["org.opencontainers.image.ref.name"]: each for each in index if "annotations" in each}
        return (self.registry / "tiny-op/index.json").stat().st_size + tags["2"]["size"]

    # ---- words ----

    def test_login_says_the_line_and_never_the_secret(self):
        self.kiln("login", says="is a folder: it needs no login")
        document = self.document("login", "https://registry.example/kernels")
        self.assertEqual((document["server"], document["origin"]), ("registry.example", None))
        self.assertRegex(document["command"], r"^(docker|podman|skopeo) login (--authfile \S+ )?registry\.example$")
        (self.work / ".docker").mkdir()
        (self.work / ".docker/config.json").write_text(
            json.dumps({"auths": {"registry.example": {"auth": "bWU6c2VjcmV0LXdvcmQ="}}}))
        said = self.kiln("login", "https://registry.example/kernels")
        self.assertIn(f"login     of me, from {self.work}/.docker/config.json", said)
        self.assertNotIn("secret-word", said + json.dumps(self.document("login", "https://registry.example")))
        self.kiln("login", "ftp://x", code=USAGE)

    def test_help_of_a_command_is_its_help(self):
        for words in (["add"], ["cache", "gc"], ["registry"], []):
            self.assertEqual(self.kiln("help", *words), self.kiln(*words, "--help"))
        self.kiln("help", "--help", says="kiln help cache gc")
        self.kiln("help", "nosuch", code=USAGE, says="unknown command 'nosuch'")
        self.assertEqual(self.kiln("__complete", "help", "ca"), self.kiln("__complete", "ca"))

    def test_what_other_tools_call_it_is_named(self):
        for word, ours in (("rm", "kiln remove"), ("upgrade", "kiln update"), ("ls", "kiln list"),
                           ("find", "kiln search"), ("sync", "kiln install --locked")):
            self.kiln(word, "tiny-op", code=USAGE, says=f"unknown command '{word}'; use '{ours}'")
        for word, ours in (("uninstal", "uninstall"), ("remov", "remove"), ("serch", "search"), ("updat", "update")):
            self.kiln(word, code=USAGE, says=f"did you mean {ours}?")
        for word, ours in (("publsh", "did you mean publish?"), ("site", "'kiln registry site': out is required. Run '"),
                           ("nosuch", "unknown command 'nosuch'; the commands are")):
            self.run_command(KILN_REGISTRY, word, code=USAGE, says=ours)

    def test_each_folder_of_a_bundle_has_an_entry_before_what_is_in_it(self):
        # Else skopeo and podman make it, as root's: of whoever is not root they read no bundle.
        self.document("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", "b.tar")
        with tarfile.open(self.project / "b.tar") as tar:
            members = tar.getmembers()
        folders = {each.name for each in members if each.isdir()}
        self.assertEqual([each.name for each in members[:2]], ["blobs", "blobs/sha256"])
        self.assertEqual({os.path.dirname(each.name) for each in members} - folders, {""})
        self.kiln("bundle", "install", "b.tar", "--device", "cpu", "--registry", self.registry, "--cache", "other")

    def test_a_variable_that_is_not_set_is_no_value(self):
        for words in (["install", "tiny-op@1", "--lock", ""], ["install", "tiny-op@1", "--registry", ""], ["install", ""],
                      ["cache", "gc", "--cache="], ["resolve", "tiny-op@1", "--deny", ""], ["trust", "add", "", "--unsigned"],
                      ["registry", "publish", self.built / "one", "--registry", ""], ["bundle", "create", "tiny-op@1", "-o", ""]):
            program, words = (KILN_REGISTRY, words[1:]) if words[0] == "registry" else (KILN, words)
            self.run_command(program, *words, code=USAGE)
        self.kiln("install", "tiny-op@1", "--lock", "", code=USAGE, says="--lock: found an empty word, expected a value. Run")
        self.assertFalse((self.work / "cache").exists() or (self.work / ".config").exists())

    def test_an_option_of_one_value_is_given_once(self):
        self.kiln("resolve", "tiny-op@1", "--device", "cpu", "--device", "cpu", code=USAGE,
                  says="--device is given 2 times, expected once. Run 'kiln resolve --help'")

    def test_a_cache_is_named_as_a_shell_completes_it(self):
        self.kiln("install", "tiny-op@1", "--device", "cpu", "--cache", "here")
        self.assertEqual(self.document("list", "--cache", "./here")["installed"][0]["version"], 1)
        self.assertTrue((self.project / "here/CACHEDIR.TAG").is_file())

    def test_what_kiln_wrote_it_takes_under_any_umask(self):
        del self.environment["KILN_CACHE"]
        self.environment["KILN_UNSIGNED"] = ""
        for words in ("trust add " + str(self.registry) + " --unsigned", "add tiny-op", "add tiny-op", "install --locked --device cpu",
                      "trust list", "cache verify"):
            self.run_command("/bin/sh", "-c", f"umask 000; exec {KILN} {words}")
        for path in [self.project / "kiln.lock", *(self.work / ".config").rglob("*"), *(self.work / ".cache").rglob("*")]:
            self.assertFalse(path.stat().st_mode & 0o002, path)

    def test_a_cache_that_is_a_link_to_nowhere(self):
        (self.work / "cache").symlink_to(self.work / "nowhere")
        for words in (["install", "tiny-op@1"], ["list"], ["cache", "verify"], ["doctor"]):
            self.kiln(*words, code=CACHE, says="cache: it is a symbolic link to a place that is not there. Make that folder")
        (self.work / "nowhere").mkdir(0o755)
        self.kiln("install", "tiny-op@1", "--device", "cpu")

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_a_first_install_beside_a_clean_up_of_what_another_one_made(self):
        # The first one is held before its mark has a name; the second makes the cache, and cleans it up.
        first = subprocess.Popen(["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=rename,renameat,renameat2", "-e",
                                  "inject=rename,renameat,renameat2:delay_enter=3000000:when=1", KILN, "install", "tiny-op@1",
                                  "--device", "cpu", "-q"],
                                 env=self.environment, cwd=self.project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while not list((self.work / "cache").glob(".tmp-*")):
            self.assertIsNone(first.poll(), "it wrote no draft")
            time.sleep(0.01)
        self.kiln("install", "tiny-op@1", "--device", "cpu")
        self.kiln("cache", "gc")
        self.assertEqual(list((self.work / "cache").glob(".tmp-*")), [])
        self.assertEqual((first.wait(), first.stderr.read()), (OK, ""))

    def test_a_command_line_without_a_command_is_helped(self):
        for program, words in ((KILN, []), (KILN, ["cache"]), (KILN, ["trust"]), (KILN_REGISTRY, [])):
            done = self.run_command(program, *words, code=USAGE)
            helped = self.run_command(program, *words, "--help").stdout
            self.assertEqual((done.stdout, done.stderr), ("", helped))
            self.assertIn("Examples:\n", helped)

    def test_help_says_what_only_a_build_of_the_source_has(self):
        said = self.kiln("--help")
        of_source = said.split("Builders, in a build of Kiln's source:\n")[1].split("\n\n")[0]
        self.assertEqual(re.findall(r"^  ([a-z]+) ", of_source.split("Publishers:")[0], re.M), ["bench", "build", "pack", "new"])
        self.assertRegex(said, r"Publishers:\n  registry ")

    def test_every_help_of_a_registry_has_examples_and_no_machinery(self):
        listed = self.run_command(KILN_REGISTRY, "--help").stdout.split("Subcommands:")[1]
        names = re.findall(r"^  ([a-z-]+)  ", listed, re.M)
        self.assertGreaterEqual(len(names), 14)
        for name in names:
            text = self.run_command(KILN_REGISTRY, name, "--help").stdout
            self.assertIn(f"Examples:\n  kiln registry {name}", text)
            self.assertNotRegex(text, r"ENUM|:value|\{0,")

    # ---- where it runs ----

    def test_a_folder_that_is_gone_is_said(self):
        commands = [line.split()[0] for line in self.kiln("--help").split("Subcommands:")[1].splitlines() if line[:2] == "  "]
        commands += ["cache gc", "cache verify", "cache repair", "bundle create -o b.tar", "bundle install b.tar", "trust list",
                     "trust add x --unsigned", "lock tiny-op@1", "add tiny-op", "install tiny-op@1", "install --locked", "install tiny-op@1 --registry x"]
        registry = ["publish x", "check --registry x", "list --registry x", "key k", "push --to http://127.0.0.1:9 --registry x",
                    "export-static --out x", "init --out r --root-key k --targets-key k --online-key k", "sign --registry x --key k"]
        here = self.work / "here"
        for command in [f"{KILN} {each}" for each in commands] + [f"{KILN_REGISTRY} {each}" for each in registry]:
            here.mkdir()
            done = subprocess.run(["/bin/sh", "-c", f"rmdir {here}; exec {command} </dev/null"], capture_output=True, text=True,
                                  env=self.environment, cwd=here)
            self.assertNotEqual(done.returncode, 1, command + done.stderr)
            self.assertNotIn("internal error", done.stderr, command)

    def test_a_project_in_a_folder_that_is_not_utf8(self):
        self.project = pathlib.Path(os.fsdecode(os.fsencode(self.work) + b"/caf\xe9"))
        self.project.mkdir()
        self.kiln("add", "tiny-op")
        self.kiln("install", "--locked", "--device", "cpu")
        self.kiln("install", "--locked", "--device", "cpu")
        [kept] = self.document("uninstall", "tiny-op", code=LOCK)["kept"]
        self.assertTrue(kept["holder"].endswith("/caf\ufffd/kiln.lock"), kept)
        self.kiln("cache", "verify")
        self.kiln("cache", "gc", "--unlocked")
        self.assertEqual(len(self.document("list")["installed"]), 1)
        self.document("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", "b.tar")
        self.kiln("bundle", "install", self.project / "b.tar", code=USAGE, says="its name is not UTF-8")
        self.run_command(KILN_REGISTRY, "key", self.work / "p256", "--type", "ecdsa")
        self.kiln("trust", "require", self.registry, "--package", os.fsdecode(b"caf\xe9"), "--key", self.work / "p256.pub",
                  code=USAGE, says='"caf\\xe9" is not UTF-8')

    def test_what_is_a_link_stays_one(self):
        mine = self.work / "mine"
        mine.mkdir()
        config = self.work / ".config/kiln"
        config.mkdir(parents=True)
        (mine / "kiln.json").write_text('{"schema": "kiln.requirements/1", "kernels": {}}')
        for link, target in ((config / "trust.json", "trust"), (self.project / "kiln.lock", "lock"),
                             (self.project / "kiln.json", "kiln.json"), (self.project / "b.tar", "bundle")):
            link.symlink_to(mine / target)
        self.kiln("trust", "add", self.registry, "--unsigned")
        self.kiln("add", "tiny-op")
        self.kiln("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", "b.tar")
        for link in (config / "trust.json", *self.project.iterdir()):
            self.assertTrue(link.is_symlink(), link)
            self.assertGreater(link.stat().st_size, 60)
        self.assertEqual(sorted(each.name for each in mine.iterdir()), ["bundle", "kiln.json", "lock", "trust"])

    def test_links_that_lead_in_a_circle_lead_to_no_file(self):
        (self.project / "one").symlink_to("two")
        (self.project / "two").symlink_to("one")
        self.kiln("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", "one", code=USAGE,
                  says="find one: its links lead to no file. Remove the link, or point it to one")
        self.assertTrue((self.project / "one").is_symlink())

    def test_a_version_that_is_missing_is_named_for_the_word_that_lacks_it(self):
        words = ["diff", "tiny-op", "tiny-op@1", "--documents", "--registry", self.registry]
        del self.environment["KILN_REGISTRY"]
        said = self.run_command(KILN, *words, code=USAGE).stderr
        self.kiln(*[re.search("Write it as (.*)", said)[1] if each == "tiny-op" else each for each in words])

    def test_a_name_may_be_as_long_as_names_are(self):
        name = "n" * os.pathconf(self.project, "PC_NAME_MAX")
        left = self.project / f".{name[:222]}-1-0123456789abcdef"  # of a writer that was killed
        left.touch()
        self.run_command(*clock.later(120, pathlib.Path(KILN).parent), KILN, "lock", "tiny-op@1", "--lock", name)
        self.assertFalse(left.exists())
        self.kiln("lock", "--check", "--lock", name)
        self.run_command(KILN_REGISTRY, "key", name[:-4])

    def test_of_projects_that_share_their_kernels_none_loses_what_another_adds(self):
        names = ["alpha", "beta", "gamma", "delta", "acme-op", "tiny-op"]
        self.publish("four/alpha", "four/beta", "four/gamma", "four/delta", "acme")
        shared = self.work / "kiln.json"
        shared.write_text('{"schema": "kiln.requirements/1", "kernels": {}}')
        runs = []
        for name in names:
            (self.work / name).mkdir()
            runs.append(subprocess.Popen([KILN, "add", "-q", name, "--requirements", "../kiln.json"], cwd=self.work / name,
                                         env=self.environment, stdout=subprocess.DEVNULL))
        self.assertEqual([run.wait() for run in runs], [OK] * 6)
        self.assertEqual(sorted(json.loads(shared.read_text())["kernels"]), sorted(names))

    def test_doctor_asks_the_registry(self):
        self.environment["KILN_UNSIGNED"] = "/,https://registry.invalid,http://127.0.0.1"
        for registry in ("https://registry.invalid", "http://127.0.0.1:9"):
            self.environment["KILN_REGISTRY"] = registry
            document = self.document("doctor", code=NETWORK)
            self.assertIn(registry.partition("//")[2], document["problems"][-1])
            self.kiln("doctor", "--offline", says="offline: not asked")
        self.environment["KILN_REGISTRY"] = OciServer(self).url
        self.kiln("doctor")

    def test_an_error_is_one_document_with_json(self):
        for program, words, code in ((KILN, ["info", "nosuch"], NOT_FOUND), (KILN, ["fly"], USAGE),
                                     (KILN_REGISTRY, ["list", "--registry", "none"], NOT_FOUND), (KILN_REGISTRY, ["fly"], USAGE)):
            done = self.run_command(program, *words, "--json", code=code)
            document = json.loads(done.stdout)
            self.assertEqual((document["schema"], document["exit"]), ("kiln.error/1", code))
            self.assertIn(document["message"], done.stderr)


if __name__ == "__main__":
    main()
