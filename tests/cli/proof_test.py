#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln test: what it runs, what its record counts for, and what happens where a kernel or its check goes wrong.

    proof_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE COMPILER_FLAGS...
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import documents
from world import INTEGRITY, KILN, KILN_REGISTRY, NO_VARIANT, NOT_FOUND, OFFLINE, OK, TESTS, USAGE, World, main
import forge  # world says where it is

FLAGS = os.environ["PROOF_FLAGS"].split()
CHECK = f"check/{forge.ARCH}.so"


def compiled(source, *flags, compiler=os.environ.get("CC", "cc")):
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", *FLAGS, *flags, "-o", library.name,
                        TESTS / source, "-lm"], check=True)
        return pathlib.Path(library.name).read_bytes()


class Proof(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.good = compiled("loader/sample_package.c")
        cls.check = compiled("cli/sample_check.c")

    def forged(self, library=None, check=None, version=1, schema=None):
        files = {"LICENSE": b"Apache-2.0\n", "lib/libsample.so": library or self.good}
        if schema:
            files["package.json"] = json.dumps(schema).encode()
        dev = {"include/x.hpp": b"#pragma once\n"}
        if check != "none":
            dev[CHECK] = check or self.check
        layout = self.registry / "sample/index.json"
        before = json.loads(layout.read_text())["manifests"] if version > 1 else []
        forge.Package(self.registry, version=version, files=files, dev=dev).publish()
        written = json.loads(layout.read_text())
        layout.write_text(json.dumps(written | {"manifests": before + written["manifests"]}))

    def checked(self, *words, code=OK, says=()):
        document = self.document("test", "sample@1", *words, code=code, says=says)
        documents.check(document)
        return document

    def ask_for(self, tested):
        config = self.work / ".config/kiln/config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"schema": "kiln.settings/1", "tested": tested}))

    def records(self):
        return sorted((self.work / ".config/kiln/tested").glob("*.json"))

    def test_a_check_that_passes_makes_its_variant_tested_here(self):
        self.forged()
        for policy in ("here", "somewhere"):
            self.ask_for(policy)
            self.kiln("install", "sample@1", code=NO_VARIANT, says=["it is untested, and the settings ask for tested variants",
                                                                    "run its check on that machine ('kiln test'), or"])
        quick = self.checked()
        self.assertEqual((quick["passed"], quick["cases"], quick["failed"], quick["end"]), (True, 3, 0, "done"))
        self.assertEqual(quick["checks"], [{"name": "y float32", "cases": 3, "failed": 0, "bound": 1e-6,
                                            "worst": quick["checks"][0]["worst"]}])
        self.assertGreater(quick["bytes_fetched"], len(self.good) + len(self.check))
        for policy in ("here", "somewhere"):
            self.ask_for(policy)
            said = self.document("install", "sample@1")["installed"][0]["tested"]
            self.assertRegex(said, r"^here on .*, \d{4}-\d\d-\d\d, 3 cases$")
            self.kiln("info", "sample@1", says=["here it passed its check: ", "  untested\n"])
        self.kiln("resolve", "sample@1", "--explain")
        full = self.checked("--full")
        self.assertEqual((full["cases"], full["bytes_fetched"]), (7, 0))
        self.assertEqual(len(self.records()), 1, "one of this hardware and driver")
        said = self.kiln("test", "sample@1", says=["y float32", "3 cases, error at most", "passed: 3 cases in"])
        self.assertNotIn("no result", said)

    def test_columns_are_as_wide_as_the_names(self):
        long = compiled("cli/sample_check.c", '-DCHECK_NAME(count)=((count)==1?"y":"the gradient of x, once more, in float32")')
        self.two_versions(check=long)
        for words, end in ((["test", "sample@1"], " cases"), (["diff", "sample@1", "sample@2"], " values")):
            said = [line for line in self.kiln(*words).splitlines() if line.strip().startswith(("y  ", "the gradient of x")) and end in line]
            self.assertEqual([len(said), len({line.index(end) for line in said})], [2, 1], said)

    def test_a_record_counts_for_no_other_machine(self):
        self.forged()
        self.checked()
        self.ask_for("here")
        [path] = self.records()
        record = json.loads(path.read_text())
        del record["checksum"]
        record["hardware"] = "Another CPU"
        record["checksum"] = forge.digest_of(forge.dump(record))
        manifest = record["results"][0]["manifest"].removeprefix("sha256:")
        place = hashlib.sha256(b"Another CPU\n").hexdigest()[:16]
        path.unlink()
        path.with_name(f"{manifest}.{place}.json").write_text(json.dumps(record))
        has_model = "model name" in pathlib.Path("/proc/cpuinfo").read_text()
        self.kiln("install", "sample@1", code=NO_VARIANT if has_model else OK)

    def test_a_changed_record_is_refused(self):
        self.forged()
        self.checked()
        self.ask_for("here")
        [path] = self.records()
        text = path.read_text()
        path.write_text(text.replace('"cases": 3', '"cases": 4'))
        self.kiln("install", "sample@1", code=INTEGRITY, says=["it is not as 'kiln test' wrote it", "Remove it"])
        path.write_text("{")
        self.kiln("install", "sample@1", code=INTEGRITY, says="Remove it, and run 'kiln test' again")
        path.write_text(text)
        self.kiln("install", "sample@1")
        path.chmod(0o666)
        self.kiln("install", "sample@1", code=USAGE, says="everyone may write to it")
        path.chmod(0o644)
        name = path.name
        other = path.rename(path.with_name(name.replace(name.split(".")[1], "0" * 16)))
        self.kiln("install", "sample@1", code=INTEGRITY, says="for which its name would be")
        other.unlink()
        self.kiln("install", "sample@1", code=NO_VARIANT)
        self.checked()
        self.kiln("install", "sample@1")

    def test_a_record_needs_a_folder_of_ones_own(self):
        self.forged()
        del self.environment["HOME"]
        self.kiln("test", "sample@1", code=USAGE, says="Set KILN_CONFIG, XDG_CONFIG_HOME or HOME")
        (self.work / "there").mkdir()
        (self.work / "there/config.json").write_text('{"schema": "kiln.settings/1"}')
        for name, value in (("KILN_CONFIG", "there/config.json"), ("XDG_CONFIG_HOME", "xdg")):
            self.environment[name] = str(self.work / value)
            self.assertTrue(self.checked()["record"].startswith(str(self.work / value.partition("/")[0])))
            del self.environment[name]
        self.environment["HOME"] = str(self.work)
        folder = self.work / ".config/kiln/tested"
        self.checked()
        folder.chmod(0o777)
        self.kiln("test", "sample@1", code=USAGE, says="where everyone may put another folder in its place")

    def test_the_file_itself_is_loaded_where_memory_is_no_place_for_code(self):
        self.forged()
        self.environment["KILN_LOAD_MODE"] = "path"
        self.assertTrue(self.checked()["passed"])

    def test_a_kernel_with_another_constant_is_found(self):
        self.forged(library=compiled("loader/sample_package.c", "-DSAMPLE_ADDEND=1.001"))
        found = self.checked(code=INTEGRITY)
        self.assertEqual((found["passed"], found["failed"], found["end"]), (False, 3, "done"))
        self.assertEqual(found["failures"], ["y float32: error too large"] * 3)
        self.kiln("test", "sample@1", code=INTEGRITY, says=["3 FAILED", "3 of 3 cases differ from double precision"])
        again = "'kiln test sample@1 --device cpu --variant cpu-base' runs it again"
        self.kiln("doctor", code=INTEGRITY, says=["sample@1 cpu-base failed its check here", "3 of 3 cases failed", again])
        for policy in ("here", "somewhere"):
            self.ask_for(policy)
            said = self.run_command(KILN, "install", "sample@1", code=NO_VARIANT, says=["its check failed here: ", "3 of 3 cases failed; " + again])
            self.assertNotIn("untested", said.stderr)
            self.kiln("resolve", "sample@1", "--explain", code=NO_VARIANT, says=again)
        self.kiln("info", "sample@1", says="here IT FAILED its check: ")
        document = self.document("info", "sample@1")
        documents.check(document)
        [variant] = document["variants"]
        self.assertEqual((variant["tested"], [each["passed"] for each in variant["tested_here"]]), ("untested", [False]))
        self.checked("--share", self.work / "red.json", code=INTEGRITY)
        self.assertEqual(json.loads((self.work / "red.json").read_text())["results"][0]["failed"], 3)

    def test_a_check_that_hangs_crashes_or_ends_early_is_a_result(self):
        for flag, end, says in (("HANGS", "out of time", "it did not end within 10 s after 1 cases"),
                                ("CRASHES", "crashed", "it was ended by signal 6 (Aborted) after 1 cases"),
                                ("EXITS", "failed", "it ended with code 9 after 1 cases"),
                                ("WRITES", "failed", "the check wrote a line of more than 4096 bytes"),
                                ("FAILS", "failed", "the check lost its way")):
            with self.subTest(flag):
                self.environment["KILN_CACHE"] = str(self.work / flag)
                self.forged(check=compiled("cli/sample_check.c", f"-DCHECK_{flag}"))
                begin = time.monotonic()
                found = self.checked("--limit", "10" if flag == "HANGS" else "50", code=INTEGRITY)
                self.assertLess(time.monotonic() - begin, 45)
                self.assertEqual((found["passed"], found["end"], found["cases"]), (False, end, 1))
                self.assertIn(says, found["problem"])
                self.ask_for("here")
                self.kiln("install", "sample@1", code=NO_VARIANT)

    def test_ctrl_c_ends_a_check(self):
        self.forged(check=compiled("cli/sample_check.c", "-DCHECK_HANGS"))
        mark = self.work / "mark"
        process = subprocess.Popen([KILN, "test", "sample@1"], env=self.environment | {"CHECK_MARK": str(mark)}, cwd=self.project,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        while not mark.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("test: cancelled", said)
        self.assertEqual(self.records(), [], "it is no result")

    def test_what_failed_once_and_passes_is_taken(self):
        """The line that the refusal prints is the cure, whatever the publisher tested."""
        self.forged(check=compiled("cli/sample_check.c", "-DCHECK_EXITS_ONCE"))
        self.environment["CHECK_MARK"] = str(self.work / "mark")
        self.checked(code=INTEGRITY)
        self.ask_for("here")
        said = self.run_command(KILN, "install", "sample@1", code=NO_VARIANT).stderr
        [command] = set(re.findall(r"'(kiln test .*?)' runs it again", said))
        self.kiln(*command.split()[1:])
        self.kiln("install", "sample@1")

    def test_what_failed_of_all_cases_is_not_forgotten_by_a_short_run(self):
        self.forged(check=compiled("cli/sample_check.c", "-DCHECK_FULL"))
        self.ask_for("here")
        self.checked()
        self.kiln("install", "sample@1")
        self.kiln("test", "sample@1", "--full", code=INTEGRITY, says="4 of 7 cases differ")
        again = "kiln test sample@1 --device cpu --variant cpu-base --full"
        self.kiln("test", "sample@1", code=INTEGRITY, says=["these 3 cases pass, but of all cases some failed here: ",
                                                            f"4 of 7 cases failed. That record stays until '{again}' passes"])
        self.kiln("install", "sample@1", code=NO_VARIANT, says=f"'{again}' runs it again")
        self.kiln("doctor", code=INTEGRITY, says=f"'{again}' runs it again")

    def test_offline_its_check_is_in_the_cache_by_the_line_that_the_error_names(self):
        self.forged()
        self.kiln("install", "sample@1")
        said = self.run_command(KILN, "test", "sample@1", "--offline", code=OFFLINE).stderr
        [command] = re.findall(r"Run 'kiln (install --dev sample@1)' online once", said)
        self.kiln(*command.split())
        self.kiln("test", "sample@1", "--offline")

    def test_a_version_without_a_check_says_so(self):
        self.forged(check="none")
        self.kiln("test", "sample@1", code=NOT_FOUND, says=["the version brings no check for this machine", "Its publisher says: untested"])
        self.kiln("test", "tiny-op@1", "--device", "cpu", code=NOT_FOUND, says="the version brings no check")

    def test_bytes_that_differ_are_not_run(self):
        self.forged()
        self.checked()
        [check] = (self.work / "cache/unpacked").glob(f"*/{CHECK}")
        check.chmod(0o644)
        check.write_bytes(compiled("cli/sample_check.c", "-DCHECK_EXITS"))
        self.kiln("test", "sample@1", code=INTEGRITY, says="kiln cache repair")
        self.kiln("cache", "repair")
        self.checked()

    def test_doctor_offers_what_was_never_tested_here(self):
        self.forged()
        self.kiln("install", "sample@1")
        [one] = self.document("doctor")["untested"]
        self.assertEqual((one["name"], one["variant"], one["device"]), ("sample", "cpu-base", "cpu"))
        self.kiln("doctor", says=f"was never tested on {one['hardware']}: run '{one['command']}'")
        self.kiln(*one["command"].split()[1:])
        self.assertEqual(self.document("doctor")["untested"], [])

    def test_what_is_shared_is_a_record_for_a_publisher(self):
        self.forged()
        shared = self.work / "tested.json"
        self.checked("--share", shared)
        record = json.loads(shared.read_text())
        self.assertEqual(record["schema"], "kiln.record/1")
        self.assertEqual(record["results"][0]["library"], forge.digest_of(self.good))
        self.assertNotIn("manifest", record["results"][0])
        self.run_command(KILN_REGISTRY, "publish", "--registry", self.registry, self.built / "two", "--records", shared,
                         "--allow-untested", "*")


    # ---- kiln diff ----

    def schema(self, version, summary, *attributes):
        return {"name": "sample", "version": version, "license": "Apache-2.0", "summary": summary, "ops": [
            {"name": "add", "doc": summary, "attributes": list(attributes), "tensors": [
                {"name": "x", "dtype": ["float32"], "shape": ["M", "N"]},
                {"name": "y", "dtype": "x", "shape": ["M", "N"], "output": True}]}]}

    def differ(self, *words, code=OK):
        document = self.document("diff", *words, code=code)
        documents.check(document)
        return document

    def two_versions(self, *flags, check=None):
        self.forged(schema=self.schema(1, "y = x + 1"), check=check)
        amount = {"name": "amount", "type": "float", "default": 1.0}
        self.forged(compiled("loader/sample_package.c", "-DSAMPLE_VERSION=2", *flags), version=2, check=check,
                    schema=self.schema(2, "y = x + amount", amount))

    def test_diff_says_what_changed_and_which_bits(self):
        self.two_versions("-DSAMPLE_ADDEND=1.0000002")
        found = self.differ("sample@1", "sample@2")
        changes = {each["what"]: (each["before"], each["after"]) for each in found["changes"]}
        self.assertEqual(changes["summary"], ("y = x + 1", "y = x + amount"))
        self.assertIn("amount: float = 1.0", changes["op add"][1])
        self.assertIn("library", changes)
        self.assertNotIn("glibc", changes)
        self.assertIsNone(found["computed"]["problem"])
        [y] = found["computed"]["outputs"]
        self.assertEqual((y["name"], y["cases"], y["values"]), ("y float32", 3, 7))
        self.assertEqual(sum(y["ulps"].values()), y["values"])
        self.assertLess(y["equal"], 7)
        self.assertGreater(y["ulps"]["1"] + y["ulps"]["2"], 0)
        self.assertLess(y["error_before"], y["error_after"])
        [add] = found["computed"]["times"]
        self.assertEqual((add["op"], add["calls"]), ("add", 3))
        self.kiln("diff", "sample@1", "sample@2", "--full", says=["op add\n  - sample.add(", "127 values", "time of add"])
        self.assertIsNone(self.differ("sample@1", "sample@2", "--documents")["computed"])

    def test_diff_reads_no_documents_that_were_changed(self):
        self.two_versions()
        self.differ("sample@1", "sample@2", "--documents")
        for schema in (self.work / "cache/unpacked").glob("*/package.json"):
            schema.chmod(0o644)
            schema.write_text(schema.read_text().replace("y = x", "y = 2 * x"))
        self.kiln("diff", "sample@1", "sample@2", "--documents", code=INTEGRITY, says=["package.json of sample@", "kiln cache repair"])

    def test_one_slow_call_is_no_time_of_the_kernel(self):
        self.two_versions("-DSAMPLE_STALLS")
        [add] = self.differ("sample@1", "sample@2")["computed"]["times"]
        self.assertLess(add["seconds_after"], 0.1)

    def test_diff_of_the_same_bytes_finds_nothing(self):
        self.two_versions()
        [y] = self.differ("sample@1", "sample@2")["computed"]["outputs"]
        self.assertEqual((y["equal"], y["ulps"]["0"]), (y["values"], y["values"]))
        same = self.differ("sample@1", "--variant", "cpu-base", "--against", "cpu-base")
        self.assertEqual(same["changes"], [])
        self.kiln("diff", "sample@1", "--against", "cpu-base", says="what the documents say is the same")

    @unittest.skipUnless(shutil.which("clang"), "one compiler")
    def test_diff_of_two_compilers(self):
        self.forged()
        self.forged(compiled("loader/sample_package.c", "-DSAMPLE_VERSION=2", compiler="clang"), version=2)
        found = self.differ("sample@1", "sample@2", "--full")
        self.assertIn("library", [each["what"] for each in found["changes"]])
        [y] = found["computed"]["outputs"]
        self.assertEqual((y["cases"], y["equal"], y["ulps"]["0"]), (7, 127, 127))

    def test_diff_says_why_it_did_not_compute(self):
        self.two_versions(check="none")
        self.assertEqual(self.differ("sample@1", "sample@2")["computed"]["problem"],
                         "neither version brings a check for this machine")
        self.environment["KILN_CACHE"] = str(self.work / "other")
        self.two_versions(check=compiled("cli/sample_check.c", "-DCHECK_CRASHES"))
        found = self.differ("sample@1", "sample@2")["computed"]
        self.assertIn("the check of sample@2 cpu-base: it was ended by signal 6", found["problem"])
        for each in found["times"]:
            self.assertGreater(min(each["seconds_before"], each["seconds_after"]), 0)
        self.assertEqual(found["outputs"][0]["cases"], 1)
        for words, says in (("sample@1", "diff: name two versions of a package"),
                            ("sample@1 tiny-op@1", "diff sample@1 tiny-op@1: these are two packages"),
                            ("sample@1 sample@2 --against cpu-base", "diff: name two versions of a package")):
            self.kiln("diff", *words.split(), code=USAGE, says=says)


if __name__ == "__main__":
    main()
