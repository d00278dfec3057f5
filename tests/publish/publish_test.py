#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ci/publish on real cells, to a folder and to Debian's docker-registry on loopback: what lands, what
is refused, and that no reader ever sees half a version, kills included.

Wants KILN_BIN, KILN_TOOLCHAINS and KILN_KERNELS (linear's x86_64 CPU variants, built). Exits with 77
(skipped) without docker-registry, skopeo or nginx.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import sampling  # noqa: E402
from servers import Gate, Nginx, OciRegistry, digest_of, get, read_wholly  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
NAME = "linear"  # of those with two such variants, what compiles in the least time
VERSION = str(json.loads((SOURCE / "packages" / NAME / "package.json").read_text())["version"])
VARIANTS = ["cpu-x86-64-v4", "cpu-x86-64-v3"]
KILLS = 10


class Publish(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        cls.work.chmod(0o755)  # nginx's workers are another user where the master is root
        cls.server = OciRegistry(cls.work / "server")
        cls.addClassCleanup(cls.server.stop)

        # Without the package's own check beside them: one test runs it, the others need not.
        cls.bin = cls.work / "bin"
        cls.bin.mkdir()
        for name in ("kiln", "kiln-build", "kiln-registry"):
            (cls.bin / name).symlink_to(pathlib.Path(os.environ["KILN_BIN"]).resolve() / name)
        cls.cells = cls.work / "cells"
        results = []
        for variant in VARIANTS:
            cell = cls.cells / f"cell-{variant}" / NAME / variant
            shutil.copytree(pathlib.Path(os.environ["KILN_KERNELS"]) / NAME / variant, cell)
            library = digest_of((cell / f"lib{NAME}.so").read_bytes())
            results.append({"variant": variant, "library": library, "cases": 3, "failed": 0})
        cls.results = results
        cls.green = cls.record("green", results)

    @classmethod
    def record(cls, name, results):
        path = cls.work / f"{name}.json"
        path.write_text(json.dumps({"schema": "kiln.record/1", "hardware": "the test's CPU",
                                    "date": "2026-11-21", "results": results}))
        return path

    def setUp(self):
        self.folder = self.work / "registries" / self._testMethodName
        self.url = f"{self.server.url}/{self._testMethodName}"

    def command(self, *words, to=None, cells=None, only=",".join(VARIANTS), records=None):
        command = [SOURCE / "ci/publish", NAME, "--work", self.work / "work", "--only", only,
                   "--json", self.work / "summary.json", *words]
        for registry in to or [self.folder, self.url]:
            command += ["--to", registry]
        for folder in [self.cells] if cells is None else cells:
            command += ["--cells", folder]
        for file in records or [self.green]:
            command += ["--records", file]
        return [str(word) for word in command]

    def publish(self, *words, code=0, environment=None, **more):
        environment = os.environ | {"KILN_BIN": str(self.bin)} | (environment or {})
        done = subprocess.run(self.command(*words, **more), env=environment, text=True, capture_output=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.errors = done.stderr
        return json.loads((self.work / "summary.json").read_text())

    def kiln(self, *words, environment=None):
        done = subprocess.run([self.bin / "kiln", *map(str, words)], text=True, capture_output=True,
                              env=os.environ | (environment or {}))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def versions(self, registry):
        """Index digest by version, as a reader finds them; each is read wholly."""
        if registry == self.url:
            return read_wholly(self.url, NAME)
        if not self.folder.exists():
            return {}
        self.kiln("registry", "check", "--quiet", "--registry", self.folder)
        listed = json.loads(self.kiln("registry", "list", "--json", "--quiet", "--registry", self.folder))
        return {str(v["version"]): v["index"]["digest"] for v in listed["versions"]}

    def assert_nothing_published(self):
        self.assertEqual(self.versions(self.url), {})
        self.assertEqual(self.versions(self.folder), {})

    def other_cell(self):
        """cpu-x86-64-v3 of a source that was changed: valid, and other bytes. Of its check nobody here asks."""
        cell = self.work / "other" / "out" / NAME / VARIANTS[1]
        if not cell.exists():
            package = self.work / "other" / "packages" / NAME
            for folder in (NAME, "gated-mlp"):  # which has what it shares
                shutil.copytree(SOURCE / "packages" / folder, package.parent / folder)
            with open(package / "csrc" / "cpu.cpp", "a", encoding="utf-8") as file:
                file.write('\nextern "C" __attribute__((used)) const int tampered = 1;\n')
            subprocess.run([self.bin / "kiln-build", "--toolchains", os.environ["KILN_TOOLCHAINS"], "--packages",
                            package.parent, "--only", VARIANTS[1], "--no-check", "--out", self.work / "other" / "out"],
                           check=True, capture_output=True)
        return cell

    def make_root(self, *words, targets=("targets",)):
        """A folder with a signed root.json and its keys."""
        keys = self.work / f"keys of {self._testMethodName}"
        keys.mkdir()
        for name in ("root", "online", *targets):
            self.kiln("registry", "key", keys / name)
        self.kiln("registry", "init", "--root-key", f"{keys}/root.pub", "--online-key", f"{keys}/online.pub",
                  *(word for name in targets for word in ("--targets-key", f"{keys}/{name}.pub")), *words,
                  "--out", keys / "root.json")
        self.kiln("registry", "sign", keys / "root.json", "--key", keys / "root")
        return keys

    def test_signed_for_a_stranger_who_trusts_the_root_alone(self):
        keys = self.make_root()
        root = keys / "root.json"
        self.kiln("registry", "key", keys / "attest", "--type", "ecdsa")
        signing = ["--key", keys / "targets", "--key", keys / "online", "--root", root, "--attest", keys / "attest",
                   "--attest-pub", keys / "attest.pub", "--source", "https://git.example/kiln", "--commit", "0" * 40,
                   "--builder", "https://ci.example/"]
        self.publish(*signing)
        self.assertIn("signed: root 1, targets 1, timestamp 1", self.errors)
        summary = self.publish(*signing)
        self.assertIn("signed: root 1, targets 1, timestamp 2", self.errors)
        # The stranger's installs required signature, provenance and SBOM. Nothing was said twice.
        self.assertIn("attested signature, provenance, sbom, tests", self.errors)
        self.assertEqual(self.errors.count("attested"), 2)
        index = summary["registries"][1]["packages"][0]["index"]["digest"]
        host, _, prefix = self.url.removeprefix("http://").partition("/")
        listed = json.loads(get(f"http://{host}/v2/{prefix}/{NAME}/manifests/{index.replace(':', '-')}"))
        self.assertEqual(len(listed["manifests"]), 4)
        for registry in (self.folder, self.url):
            refused = subprocess.run([self.bin / "kiln", "install", f"{NAME}@{VERSION}", "--registry", registry],
                                     env={"HOME": str(self.work / "nobody"), "PATH": "/usr/bin:/bin"},
                                     text=True, capture_output=True)
            self.assertEqual(refused.returncode, 7, refused.stderr)

    def test_fewer_keys_than_must_sign_are_said_before_anything_is_pushed(self):
        keys = self.make_root("--targets-threshold", 2, targets=("targets", "second"))
        signing = ["--root", keys / "root.json", "--key", keys / "online", "--key", keys / "targets"]
        summary = self.publish(*signing, to=[self.url], only=VARIANTS[1],
                               cells=[self.cells / f"cell-{VARIANTS[1]}"], code=7)
        self.assertEqual((summary["status"], summary["registries"]), ("refused", []))
        self.assertRegex(self.errors, rf"sign {NAME}/{VERSION}: .* targets 1 is signed by 1 of 2 needed keys, "
                                      r"may sign: [0-9a-f]{64}\. Give more of these keys with --key")
        self.assert_nothing_published()

    def test_what_lands_is_the_same_everywhere_and_a_second_run_changes_nothing(self):
        summary = self.publish(environment={"KILN_BIN": os.environ["KILN_BIN"]})
        [index] = set(self.versions(self.folder).values())
        self.assertEqual(self.versions(self.url), {VERSION: index})
        self.assertEqual(summary["status"], "published")
        self.assertEqual(summary["reproduced"], [f"{NAME} {variant}" for variant in sorted(VARIANTS)])
        for registry in summary["registries"]:
            [package] = registry["packages"]
            self.assertEqual(package["index"]["digest"], index)
            self.assertEqual(sorted(package["added"]), sorted(VARIANTS))
            self.assertEqual(package["blobs_verified"], 8)  # three a variant, their headers, and the index
            self.assertTrue(package["installed"]["loads"])
            self.assertTrue(package["installed"]["computed"])
        self.assertEqual(self.server.tags(self.url, NAME), [VERSION, *(f"{VERSION}-{v}" for v in sorted(VARIANTS))])
        tags = [p["pushed"][-1] for r in summary["registries"] for p in r["packages"] if "pushed" in p]
        self.assertEqual(tags, [VERSION])

        again = self.publish("--reproduce", "sample")
        self.assertEqual(len(again["reproduced"]), 1)
        for registry in again["registries"]:
            [package] = registry["packages"]
            self.assertEqual((package["changed"], package["added"], package.get("pushed", [])), (False, [], []))
        self.assertEqual(self.versions(self.url), {VERSION: index})

    def test_without_cells_it_builds_them(self):
        self.publish(only=VARIANTS[1], cells=[], to=[self.folder])
        built = self.versions(self.folder)
        shutil.rmtree(self.folder)
        self.publish(only=VARIANTS[1], cells=[self.cells / f"cell-{VARIANTS[1]}"], to=[self.folder])
        self.assertEqual(self.versions(self.folder), built)

    def test_variants_join_a_version_and_the_index_before_stays_readable(self):
        first = self.publish(only=VARIANTS[1], cells=[self.cells / f"cell-{VARIANTS[1]}"])
        before = self.versions(self.url)[VERSION]
        self.publish()
        after = self.versions(self.url)[VERSION]
        self.assertNotEqual(before, after)
        self.assertEqual(self.versions(self.folder), {VERSION: after})
        self.assertEqual(first["registries"][1]["packages"][0]["index"]["digest"], before)
        read_wholly(self.url, NAME, reference=before)

    def test_a_red_record_is_refused_whatever_is_allowed(self):
        red = self.record("red", [self.results[0] | {"failed": 1}])
        self.publish("--allow-untested", "*", records=[self.green, red], code=6)
        self.assertIn("1 of 3 cases failed on the test's CPU", self.errors)
        self.assert_nothing_published()

    def test_a_missing_record_is_refused_unless_that_variant_is_allowed(self):
        half = self.record("half", [self.results[0]])
        summary = self.publish(records=[half], code=4)
        self.assertEqual(summary["status"], "refused")
        self.assertIn(f"--allow-untested '{VARIANTS[1]}'", self.errors)
        self.assert_nothing_published()
        summary = self.publish("--allow-untested", VARIANTS[1], records=[half])
        self.assertEqual(summary["packages"][0]["untested"], [VARIANTS[1]])
        self.versions(self.url)
        tested = {m["annotations"]["dev.kiln.variant"]: m["annotations"]["dev.kiln.tested"]
                  for m in read_wholly(self.url, NAME, reference=VERSION)["manifests"]}
        self.assertEqual(tested, {VARIANTS[0]: "the test's CPU, 2026-11-21, 3 cases", VARIANTS[1]: "untested"})

    def test_a_cell_that_does_not_come_from_this_source_is_refused(self):
        cells = self.work / "tampered"
        shutil.copytree(self.cells / f"cell-{VARIANTS[0]}", cells / "1")
        shutil.copytree(self.other_cell(), cells / "2" / NAME / VARIANTS[1])
        self.publish("--allow-untested", "*", cells=[cells], code=6)
        self.assertIn(f"{NAME}/{VARIANTS[1]}/", self.errors)
        self.assertIn("differs between the two builds", self.errors)
        self.assert_nothing_published()

    def test_other_bytes_than_the_published_ones_are_a_conflict(self):
        self.kiln("registry", "publish", "--quiet", "--registry", self.folder, self.other_cell())
        self.server.copy(self.folder / NAME, VERSION, self.url, NAME)
        before = self.versions(self.url)
        for registry in (self.folder, self.url):
            self.publish(to=[registry], code=16)
            self.assertIn("raise \"version\"", self.errors)
        self.assertEqual((self.versions(self.url), self.versions(self.folder)), (before, before))

    def test_another_publisher_in_between_is_noticed_and_not_overwritten(self):
        theirs = self.work / "theirs"
        self.kiln("registry", "publish", "--quiet", "--registry", theirs, self.other_cell())
        url = self.url
        with Gate(self.server.url, lambda: self.server.copy(theirs / NAME, VERSION, url, NAME),
                  at=f"PUT {VERSION}-{VARIANTS[0]}") as gate:
            self.publish(to=[url.replace(self.server.url, gate.url)], code=16)
        self.assertIn("somebody published meanwhile", self.errors)
        listed = json.loads(self.kiln("registry", "list", "--json", "--quiet", "--registry", theirs))
        self.assertEqual(self.versions(self.url), {VERSION: listed["versions"][0]["index"]["digest"]})

    def test_cells_are_those_of_the_matrix_each_once(self):
        self.publish(cells=[self.cells / f"cell-{VARIANTS[0]}"], code=4)
        self.assertIn(f"none has {NAME} {VARIANTS[1]}", self.errors)
        self.publish(only=VARIANTS[0], code=6)
        self.assertIn(f"the matrix has no {NAME} {VARIANTS[1]}", self.errors)
        twice = self.work / "twice"
        shutil.copytree(self.other_cell(), twice / NAME / VARIANTS[1])
        self.publish(cells=[self.cells, twice], code=6)
        self.assertIn("the same variant in other bytes", self.errors)
        broken = self.work / "broken"
        shutil.copytree(self.cells, broken)
        layer = broken / f"cell-{VARIANTS[0]}" / NAME / VARIANTS[0] / "layer.tar.zst"
        layer.write_bytes(layer.read_bytes()[:-1])
        self.publish(cells=[broken], code=6)
        self.assert_nothing_published()

    def test_what_is_no_registry_is_said_before_anything_is_built(self):
        for place, code in (("ftp://127.0.0.1/x", 2), ("https://user:secret@127.0.0.1/x", 2)):
            summary = self.publish(to=[place], code=code)
            self.assertEqual(summary["steps"], [])
            self.assertNotIn("secret", self.errors)
        self.publish(to=[""], code=2)  # a variable that was not set
        self.publish(to=["http://127.0.0.1:1/x"], code=5)
        self.assertIn("Failed to connect", self.errors)
        self.publish(to=["http://registry.example.org/x"], code=2)
        self.assertIn("plain http is only for this machine", self.errors)

    def test_the_job_matrix_is_what_would_be_built(self):
        command = [SOURCE / "ci/publish", NAME, "--list-cells", "--only", ",".join(VARIANTS)]
        printed = subprocess.run(command, env=os.environ | {"KILN_BIN": str(self.bin)}, check=True,
                                 stdout=subprocess.PIPE).stdout
        self.assertEqual(json.loads(printed), [{"package": NAME, "variant": v} for v in sorted(VARIANTS)])

    def test_a_stranger_installs_from_a_static_export(self):
        self.publish(to=[self.folder])
        self.kiln("registry", "export-static", "--quiet", "--registry", self.folder, "--out", self.work / "www",
                  "--prefix", "kernels")
        server = Nginx(self.work / "www", self.work)
        self.addCleanup(server.stop)
        [digest] = read_wholly(f"{server.url}/kernels", NAME).values()
        self.assertEqual(self.versions(self.folder), {VERSION: digest})
        doctor = json.loads(self.kiln("doctor", f"{NAME}@{VERSION}", "--device", "cpu", "--json", "--registry",
                                      f"{server.url}/kernels",
                                      environment={"KILN_CACHE": str(self.work / "cache")}))
        self.assertTrue(doctor["packages"][0]["loads"])

    def test_kills_never_show_half_a_version(self):
        prefix = self.url
        self.publish()
        whole = self.versions(self.url)
        # A registry of its own for each, and the moments spread over all that the registry is asked.
        self.folder, self.url = self.work / "counted", f"{prefix}/counted"
        process, requests = self.publish_through_gate()
        self.assertEqual(process.returncode, 0)
        seen = []
        for i in sampling.every_nth(range(KILLS), 1, always=(KILLS - 1,)):
            self.folder, self.url = self.work / f"killed-{i}", f"{prefix}/killed-{i}"
            with Watcher(self.url) as watcher:
                process, _ = self.publish_through_gate(kill_at=1 + requests * i // KILLS, heard=i % 4 > 1)
                self.assertEqual(process.returncode, -signal.SIGKILL)
                time.sleep(0.2)  # for the server to finish with what it was sent
                found = (self.versions(self.folder), self.versions(self.url))
                for versions in found:
                    self.assertIn(versions, ({}, whole))
                seen.append(f"folder: {len(found[0])} version; registry: {len(found[1])} version, "
                            f"{len(self.server.tags(self.url, NAME))} tags")
                self.publish()
                self.assertEqual((self.versions(self.folder), self.versions(self.url)), (whole, whole))
            self.assertGreater(watcher.looks, 0)
        print(f"{requests} requests;", "\n".join(f"kill {i}: {text}" for i, text in enumerate(seen)))
        self.assertGreater(len(set(seen)), 2, "the kills all hit the same state")

    def publish_through_gate(self, kill_at=0, heard=False):
        """One run of ci/publish, killed with all that it started at the given request to the registry:
        the process, and how many requests there were."""
        started = threading.Event()

        def kill():
            started.wait()
            os.killpg(process.pid, signal.SIGKILL)

        with Gate(self.server.url, kill, kill_at, heard) as gate:
            through = self.url.replace(self.server.url, gate.url)
            process = subprocess.Popen(self.command(to=[self.folder, through]), start_new_session=True,
                                       env=os.environ | {"KILN_BIN": str(self.bin)}, stderr=subprocess.DEVNULL)
            started.set()
            process.wait()
            return process, gate.requests


class Watcher:
    """A reader that looks all the time: what has a version's name must be readable wholly."""

    def __init__(self, url):
        self.url = url
        self.looks = 0
        self.failure = None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.stopped.is_set():
            try:
                read_wholly(self.url, NAME)
                self.looks += 1
            except LookupError:
                pass
            except Exception as error:  # any: a reader that fails is what is looked for
                self.failure = error
                return
            self.stopped.wait(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()
        if self.failure is not None:
            raise self.failure


if __name__ == "__main__":
    for tool in ("docker-registry", "skopeo", "nginx"):
        if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin"):
            print(f"skipped: {tool} is not installed; run ci/setup test")
            sys.exit(77)
    if not (pathlib.Path(os.environ["KILN_KERNELS"]) / NAME / VARIANTS[0]).is_dir():
        print("skipped: nothing was built; run ci/toolchains")
        sys.exit(77)
    unittest.main(verbosity=2)
