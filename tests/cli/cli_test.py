#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line, as a user meets it: the real binary on the real, published geglu-mlp.

Wants KILN_BIN (folder of the binaries) and KILN_REGISTRY (a registry that holds geglu-mlp@1).
"""

import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
REGISTRY = pathlib.Path(os.environ["KILN_REGISTRY"])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
SPEC = "geglu-mlp@1"
VERSION = SPEC.partition("@")[2]


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def flip(path, offset=None):
    """Changes one bit in the middle of a read-only file."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if offset is None else offset] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)


class Cli(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.work = pathlib.Path(self.folder.name)
        self.cache = self.work / "cache"
        self.registry = REGISTRY
        self.environment = {"KILN_OVERRIDE_SM": "", "KILN_OVERRIDE_CUDA": ""}  # the CPU variants

    def kiln(self, *words, code=0):
        environment = {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")}
        environment |= {"KILN_CACHE": str(self.cache), "KILN_REGISTRY": str(self.registry)}
        environment |= self.environment
        done = subprocess.run([BIN / "kiln", *words], env=environment, text=True, capture_output=True)
        self.assertEqual(done.returncode, code, f"kiln {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
        return done

    def document(self, *words, code=0):
        return json.loads(self.kiln(*words, "--json", code=code).stdout)

    def copy_registry(self):
        self.registry = self.work / "registry"
        shutil.copytree(REGISTRY, self.registry)
        return self.registry / "geglu-mlp"

    def index(self, layout):
        """Path and content of the image index of the published version."""
        tags = json.loads((layout / "index.json").read_bytes())["manifests"]
        descriptor = next(d for d in tags if d["annotations"]["org.opencontainers.image.ref.name"] == VERSION)
        path = layout / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")
        return path, json.loads(path.read_bytes())

    def replace_index(self, layout, index):
        """Publishes another index under that version, with a digest that is right."""
        data = json.dumps(index).encode()
        (layout / "blobs/sha256" / hashlib.sha256(data).hexdigest()).write_bytes(data)
        tags = json.loads((layout / "index.json").read_bytes())
        for descriptor in tags["manifests"]:
            if descriptor["annotations"]["org.opencontainers.image.ref.name"] == VERSION:
                descriptor |= {"digest": digest_of(data), "size": len(data)}
        (layout / "index.json").write_text(json.dumps(tags))

    # --- the words

    def test_install_list_path_verify(self):
        installed = self.kiln("install", SPEC)
        self.assertRegex(installed.stdout, r"^geglu-mlp@1 cpu-\S+  /\S+/libgeglu_mlp\.so\n$")
        self.assertIn("fetched", installed.stderr)
        library = self.kiln("path", SPEC).stdout.strip()
        self.assertTrue(pathlib.Path(library).is_file())
        self.assertIn(library, self.kiln("list").stdout)
        self.assertIn("0 damaged", self.kiln("cache", "verify").stdout)

    def test_a_second_install_asks_the_registry_nothing(self):
        self.kiln("install", SPEC)
        again = self.document("install", SPEC)["installed"][0]
        self.assertEqual((again["requests"], again["bytes_fetched"]), (0, 0))

    def test_every_command_has_a_json_document_with_a_schema(self):
        self.kiln("install", SPEC)
        for words in (["install", SPEC], ["resolve", SPEC], ["list"], ["path", SPEC], ["info", SPEC],
                      ["doctor", SPEC]):
            self.assertEqual(self.document(*words)["schema"], f"kiln.{words[0]}/1")
        self.assertEqual(self.document("cache", "verify")["schema"], "kiln.verify/1")

    def test_progress_goes_to_stderr_and_quiet_is_quiet(self):
        self.assertEqual(self.kiln("install", "--quiet", SPEC).stderr, "")

    def test_doctor_loads_the_package(self):
        document = self.document("doctor", SPEC)
        self.assertTrue(document["packages"][0]["loads"])
        self.assertEqual(document["host"]["gpus"], [])

    def test_info_lists_every_variant_with_where_it_was_tested(self):
        variants = self.document("info", SPEC)["variants"]
        self.assertIn("cpu-x86-64-v3", [v["variant"] for v in variants])
        records = [json.loads(path.read_text()) for path in (SOURCE / "packages/geglu-mlp/record").glob("*.json")]

        def blob(descriptor):
            return json.loads((REGISTRY / "geglu-mlp/blobs" / descriptor.replace(":", "/")).read_text())
        for variant in variants:
            files = blob(blob(variant["manifest"])["config"]["digest"])["files"]
            digests = {each["digest"] for each in files}
            places = [f"{record['hardware']}, " for record in records for result in record["results"]
                      if result["library"] in digests]
            with self.subTest(variant=variant["variant"]):
                self.assertEqual(variant["tested"] == "untested", not places)
                for place in places:
                    self.assertIn(place, variant["tested"])
        self.assertIn(("cpu-armv8-a", "untested"), [(v["variant"], v["tested"]) for v in variants])

    def test_info_knows_the_ops_before_an_install_and_after_it(self):
        ops = ["forward", "training_forward", "backward", "geglu", "geglu_backward"]
        before = self.document("info", SPEC)
        self.assertEqual([op["name"] for op in before["ops"]], ops)
        self.assertTrue(all(each["download_bytes"] > 10_000 for each in before["variants"]))
        self.kiln("install", SPEC)
        self.assertEqual(self.document("info", "geglu-mlp")["ops"], before["ops"])
        self.assertIn("geglu(gate, up) -> out", self.kiln("info", SPEC).stdout)

    # --- what would another machine get

    def test_a_hopper_gets_the_sm_90a_variant_of_the_newest_toolkit_its_driver_supports(self):
        cases = [("12.9", "cu12.9-sm_90a-x86_64"), ("13.0", "cu13.5-sm_90a-x86_64"), ("11.8", "cu11.8-sm_90-x86_64")]
        if os.environ["KILN_WHOLE_MATRIX"] != "ON":  # then the others were not built
            cases = cases[1:2]
        for driver, expected in cases:
            self.environment = {"KILN_OVERRIDE_SM": "9.0", "KILN_OVERRIDE_CUDA": driver}
            self.assertEqual(self.document("resolve", SPEC)["chosen"], expected)

    def test_no_variant_prints_a_reason_for_each_and_exits_3(self):
        self.environment = {"KILN_OVERRIDE_SM": "7.5", "KILN_OVERRIDE_CUDA": "12.9"}
        done = self.kiln("resolve", SPEC, code=3)
        self.assertIn("sm_90a", done.stdout)
        self.assertIn("NO_DEVICE_CODE", done.stdout)
        document = self.document("resolve", SPEC, code=3)
        self.assertIsNone(document["chosen"])
        self.assertTrue(all(c["refusal"] for c in document["candidates"]))
        message = self.kiln("install", SPEC, code=3).stderr
        self.assertIn("no variant fits this machine", message)
        self.assertIn("--device cpu", message)

    def test_a_table_is_printed_once_and_equal_reasons_share_a_row(self):
        facts = self.work / "facts.json"
        facts.write_text(json.dumps(self.document("host", SPEC) | {"arch": "aarch64", "cpu": "armv8-a"}))
        done = self.kiln("resolve", SPEC, "--host", facts)
        rows = [line for line in done.stdout.splitlines() if "needs x86_64, this machine is aarch64" in line]
        self.assertEqual(len(rows), 1)
        self.assertRegex(rows[0], r"^  \S+ and \d+ more +ARCH ")
        self.assertLess(len(done.stdout.splitlines()), 12)
        self.assertIn("kiln resolve geglu-mlp@1 --explain", done.stdout)
        explained = self.kiln("resolve", SPEC, "--host", facts, "--explain").stdout
        self.assertEqual(explained.count("needs x86_64, this machine is aarch64"), 1 + len(
            [c for c in self.document("resolve", SPEC, "--host", facts)["candidates"] if c.get("refusal") == "ARCH"]))
        self.assertIn("  -    on a GPU it needs driver CUDA >= 1", explained)
        self.environment = {"KILN_OVERRIDE_SM": "7.5", "KILN_OVERRIDE_CUDA": "12.9"}
        refused = self.kiln("resolve", SPEC, code=3)
        self.assertEqual((refused.stdout + refused.stderr).count("host: "), 1)
        self.assertIn("nearest: ", refused.stderr)
        typo = self.kiln("install", SPEC, "--variant", "cu13.5-sm_90a", code=3).stderr
        self.assertIn("no variant \"cu13.5-sm_90a\"; it has ", typo)
        self.assertLess(len(typo.splitlines()), 5)

    # --- the lock file

    def test_a_damaged_lock_file_is_replaced_by_force_alone(self):
        lock = self.work / "kiln.lock"
        lock.write_text("{\n")
        for words in (["lock", SPEC, "--lock", lock], ["lock", "--lock", lock], ["install", "--lock", lock, SPEC]):
            message = self.kiln(*words, code=8).stderr
            self.assertIn(f"Restore it from version control, or replace it: 'kiln lock --force NAME@VERSION --lock {lock}'", message)
        self.kiln("lock", "--force", SPEC, "--lock", lock)
        self.kiln("lock", "--check", SPEC, "--lock", lock)

    def test_a_registry_that_a_lock_file_cannot_name_is_refused(self):
        self.registry = self.work / "a\nb"
        self.registry.symlink_to(REGISTRY)
        message = self.kiln("lock", SPEC, "--lock", self.work / "kiln.lock", code=2).stderr
        self.assertIn("expected 1 to 4096 bytes of printable text", message)
        self.assertFalse((self.work / "kiln.lock").exists())

    def test_of_six_that_lock_at_once_all_succeed(self):
        lock = self.work / "kiln.lock"
        environment = {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | {
            "KILN_CACHE": str(self.cache), "KILN_REGISTRY": str(self.registry)}
        runs = [subprocess.Popen([BIN / "kiln", "lock", "--quiet", SPEC, "--lock", lock], env=environment,
                                 stdout=subprocess.PIPE, text=True) for _ in range(6)]
        said = [run.communicate()[0] for run in runs]
        self.assertEqual([run.returncode for run in runs], [0] * 6)
        self.assertEqual(sorted(said)[0], f"+ {SPEC}\n")  # the first one alone adds it
        self.assertEqual(said.count(f"{lock} holds\n"), 5)

    # --- errors, one a code

    def test_usage(self):
        for words in (["install"], ["install", "Geglu"], ["install", "geglu-mlp@one"], ["fly"],
                      ["install", SPEC, "--device", "tpu"], ["install", "geglu-mlp"]):
            self.kiln(*words, code=2)

    def test_a_mistyped_word_is_named_with_the_nearest_one(self):
        for words, expected in (
                (["instal", SPEC], "unknown command 'instal'; did you mean install? Run 'kiln --help'"),
                (["install", "--refesh", SPEC], "unknown option '--refesh'; did you mean --refresh? Run 'kiln install --help'"),
                (["cache", "verfy"], "did you mean verify? Run 'kiln cache --help'"),
                (["cache", "dir", "extra"], "unexpected word 'extra'. Run 'kiln cache dir --help'"),
                (["path", SPEC, "--registry"], "Run 'kiln path --help'"),
                (["fly"], "unknown command 'fly'; the commands are install, add,"),
                (["fly", "--help"], "unknown command 'fly'"),
                (["rm", SPEC], "unknown command 'rm'; use 'kiln remove'. Run"),
                (["verify"], "use 'kiln cache verify'")):
            self.assertIn(expected, self.kiln(*words, code=2).stderr)

    def test_an_error_of_the_command_line_is_one_json_document_too(self):
        for words in (["fly"], ["install"], ["list", "--nosuch"], ["install", "geglu_mlp@2"]):
            document = self.document(*words, code=2)
            self.assertEqual((document["schema"], document["code"]), ("kiln.error/1", "usage"))

    def test_a_package_without_a_version_names_the_word_to_write(self):
        for words in (["install"], ["resolve"], ["bundle", "create", "-o", "b.tar"], ["host"]):
            message = self.kiln(*words, "geglu-mlp", code=2).stderr
            self.assertIn("no version is named; published: 1. Write it as geglu-mlp@1\n", message)

    def test_the_wrong_half_of_a_package_is_named(self):
        for text, expected in (("geglu_mlp@2", 'the name is "geglu_mlp", expected words of a-z and 0-9'),
                               ("GEGLU-MLP@2", 'the name is "GEGLU-MLP"'), ("@2", 'the name is ""'),
                               ("geglu-mlp@latest", 'the version is "latest", expected a whole number from 1'),
                               ("geglu-mlp@0", 'the version is "0"'), ("geglu-mlp@", 'the version is ""'),
                               ("geglu-mlp@1@3", 'the version is "1@3"')):
            self.assertIn(expected, self.kiln("install", text, code=2).stderr)

    def test_a_bundle_that_cannot_be_written_says_nothing_of_the_cache(self):
        message = self.kiln("bundle", "create", SPEC, "-o", f"{self.work}/none/b.tar", code=4).stderr
        self.assertIn(f"make a file in {self.work}/none: ", message)
        self.assertIn("No such file or directory. Check the path", message)
        self.assertNotIn("KILN_CACHE", message)

    def test_a_host_without_its_scheme_is_asked_about(self):
        message = self.kiln("install", SPEC, "--registry", "ghcr.io/foo", code=4).stderr
        self.assertIn("there is no such folder. Did you mean https://ghcr.io/foo?", message)

    def test_a_bundle_takes_the_place_of_files_alone(self):
        os.mkfifo(self.work / "pipe")
        (self.work / "folder").mkdir()
        for name, kind in (("pipe", "a pipe or a device"), ("folder", "a folder")):
            before = os.lstat(self.work / name)
            message = self.kiln("bundle", "create", SPEC, "-o", str(self.work / name), code=2).stderr
            self.assertIn(f"write {self.work / name}: it is {kind}, expected a file. Name another path", message)
            self.assertEqual(os.lstat(self.work / name).st_ino, before.st_ino)
        self.assertFalse(list(self.work.glob(".kiln-bundle*")))

    def test_a_lock_file_that_is_no_file_is_not_written_by_locking_again(self):
        (self.work / "kiln.lock").mkdir()
        message = self.kiln("lock", SPEC, "--lock", self.work / "kiln.lock", code=8).stderr
        self.assertIn("Is a directory. Remove it or make it readable", message)

    def test_where_no_thread_is_to_be_had_all_is_done_by_one(self):
        def no_threads():  # each would have a stack that is larger than the address space
            resource.setrlimit(resource.RLIMIT_STACK, (1 << 40, resource.getrlimit(resource.RLIMIT_STACK)[1]))
            resource.setrlimit(resource.RLIMIT_AS, (1 << 34, resource.getrlimit(resource.RLIMIT_AS)[1]))

        environment = {"PATH": os.environ["PATH"], "KILN_UNSIGNED": "/", "KILN_CACHE": str(self.cache), "KILN_REGISTRY": str(self.registry)}
        words = [BIN / "kiln", "install", SPEC, "swiglu-mlp@1", "--device", "cpu"]
        done = subprocess.run(words, env=environment, preexec_fn=no_threads, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("cpu-"), 2)

    def test_list_says_that_none_is_installed(self):
        self.kiln("install", SPEC)
        for words in (["nosuch"], ["geglu-mlp@9"]):
            done = self.kiln("list", *words, code=4)
            self.assertEqual(done.stdout, "")
            self.assertIn(f"list {words[0]}: not installed in {self.cache}", done.stderr)
        self.assertEqual(self.kiln("list", "geglu-mlp").stderr, "")

    def test_doctor_tells_a_cache_that_cannot_be_made_from_one_that_is_read_only(self):
        self.assertIn("made by the first install", self.kiln("doctor").stdout)
        if os.geteuid() == 0:
            self.skipTest("root may write anywhere")
        (self.work / "closed").mkdir(mode=0o555)
        self.cache = self.work / "closed/kiln"
        said = self.kiln("doctor", code=9).stdout
        self.assertIn(f"problem   the cache {self.cache} does not exist and cannot be made", said)
        self.assertNotIn("read-only", said)

    def test_every_help_has_examples(self):
        commands = self.kiln("--help").stdout.split("Subcommands:")[1].split("\n\n")[0].splitlines()
        names = [line.split()[0] for line in commands if line.startswith("  ") and line[2] != " "]
        self.assertGreater(len(names), 8)
        for name in names:
            text = self.kiln(name, "--help").stdout
            self.assertTrue("Examples:\n  kiln " + name in text or "Subcommands:" in text, name)
            for package, words in re.findall(r"^  kiln .*?([a-z-]+)@1(.*)", text, re.M):  # what is pasted is there
                levels = json.loads((SOURCE / "packages" / package / "package.json").read_text())["cpu"]["levels"]
                for variant in re.findall(r"\bcpu-(\S+)", words):
                    self.assertIn(variant, levels, f"{package}: kiln {name} --help")
                    self.assertIn("--device cpu", words, "where there is a GPU, its variants are asked for")

    def test_not_found(self):
        self.assertIn("published: 1", self.kiln("install", "geglu-mlp@99", code=4).stderr)
        self.kiln("install", "no-such-package@1", code=4)
        self.kiln("path", SPEC, code=4)
        self.registry = self.work / "nowhere"
        self.kiln("install", SPEC, code=4)

    def test_network(self):
        self.registry = "http://127.0.0.1:9"  # the discard port: nobody listens
        self.assertIn("127.0.0.1:9", self.kiln("install", SPEC, code=5).stderr)

    def test_cache_that_everyone_may_write_to(self):
        self.cache.mkdir()
        self.cache.chmod(0o777)
        self.kiln("install", SPEC, code=9)

    def test_a_newer_index_gives_the_upgrade_hint_and_no_parse_error(self):
        layout = self.copy_registry()
        _, index = self.index(layout)
        index["annotations"]["dev.kiln.min-loader"] = "7.0.0"
        index["manifests"] = {"a shape of the future": True}
        self.replace_index(layout, index)
        self.assertIn("needs kiln >= 7.0.0", self.kiln("install", SPEC, code=11).stderr)

    def test_unknown_fields_pass(self):
        layout = self.copy_registry()
        _, index = self.index(layout)
        index["annotations"]["org.example.new"] = "word"
        index["newField"] = [1, {"x": None}]
        self.replace_index(layout, index)
        self.kiln("install", SPEC)

    def refused(self, path, *words):
        """The command fails with integrity and names the file."""
        message = self.kiln(*words, code=6).stderr
        self.assertIn(path.name, message)
        return message

    def test_one_flipped_byte_anywhere_in_the_registry_is_refused(self):
        chosen = self.document("resolve", SPEC)
        manifest_digest = next(c["digest"] for c in chosen["candidates"] if c["variant"] == chosen["chosen"])
        blobs = REGISTRY / "geglu-mlp/blobs/sha256"
        manifest = json.loads((blobs / manifest_digest.removeprefix("sha256:")).read_bytes())
        index_path, _ = self.index(REGISTRY / "geglu-mlp")
        carried = [digest.removeprefix("sha256:") for digest in (manifest_digest, manifest["config"]["digest"])]
        for what in carried:  # the index has these bytes too, and an install asks for them there
            shutil.rmtree(self.work / "registry", ignore_errors=True)
            shutil.rmtree(self.cache, ignore_errors=True)
            flip(self.copy_registry() / "blobs/sha256" / what)
            self.kiln("install", SPEC)
            self.kiln("cache", "verify")
            self.assertIn(what[:12], self.kiln("registry", "check", code=6).stdout)
        for what in (index_path.name, manifest["layers"][0]["digest"].removeprefix("sha256:")):
            with self.subTest(blob=what):
                shutil.rmtree(self.work / "registry", ignore_errors=True)
                shutil.rmtree(self.cache, ignore_errors=True)
                path = self.copy_registry() / "blobs/sha256" / what
                good = digest_of(path.read_bytes())
                flip(path)
                message = self.refused(path, "install", SPEC)
                self.assertIn(good.removeprefix("sha256:")[:12], message)
                self.assertIn(digest_of(path.read_bytes()).removeprefix("sha256:")[:12], message)
                self.assertFalse(list((self.cache / "unpacked").glob("*/lib/*")))

    def test_one_flipped_byte_in_the_cached_library_is_refused_at_load(self):
        self.kiln("install", SPEC)
        library = pathlib.Path(self.kiln("path", SPEC).stdout.strip())
        good = digest_of(library.read_bytes())
        flip(library)
        message = self.kiln("doctor", SPEC, code=6).stdout
        for digest in (good, digest_of(library.read_bytes())):
            self.assertIn(digest.removeprefix("sha256:")[:12], message)
        self.assertIn(library.name, message)
        self.assertIn("damaged", self.kiln("cache", "verify", code=6).stdout)
        self.kiln("install", "--refresh", SPEC)
        self.kiln("cache", "verify")
        self.kiln("doctor", SPEC)

    def test_a_changed_library_is_neither_named_nor_reported_as_installed(self):
        self.kiln("install", SPEC)
        library = pathlib.Path(self.kiln("path", SPEC).stdout.strip())
        flip(library)
        for word in ("path", "install"):
            done = self.kiln(word, SPEC, code=6)
            self.assertEqual(done.stdout, "")
            self.assertIn(str(library), done.stderr)
            self.assertIn("Run 'kiln cache repair", done.stderr)
            self.assertEqual(self.document(word, SPEC, code=6)["schema"], "kiln.error/1")
        library.chmod(0o644)
        library.unlink()
        self.assertEqual(self.kiln("path", SPEC, code=4).stdout, "")
        self.kiln("install", "--refresh", SPEC)
        self.kiln("path", SPEC)

    def test_one_flipped_byte_in_any_cached_blob_is_found_by_verify(self):
        self.kiln("install", SPEC)
        blobs = sorted((self.cache / "blobs/sha256").iterdir())
        self.assertGreaterEqual(len(blobs), 4)  # index, manifest, config, layer
        for blob in blobs:
            with self.subTest(blob=blob.name):
                flip(blob)
                self.refused_by_verify(blob)
                flip(blob)
                self.kiln("cache", "verify")

    def refused_by_verify(self, blob):
        self.assertIn(blob.name, self.kiln("cache", "verify", code=6).stdout)

    # ---- trust ----

    def test_a_registry_is_installed_from_once_it_is_trusted(self):
        self.environment |= {"KILN_UNSIGNED": "", "HOME": str(self.work), "XDG_CONFIG_HOME": ""}
        refused = self.kiln("install", SPEC, code=7).stderr
        self.assertIn(f"kiln trust add {REGISTRY} --root root.json", refused)
        self.assertIn(f"kiln trust add {REGISTRY} --unsigned", refused)
        self.kiln("trust", "add", REGISTRY, "--unsigned")
        self.assertEqual((self.work / ".config/kiln/trust.json").stat().st_mode & 0o722, 0o600)  # whatever the umask
        self.kiln("install", SPEC)
        self.assertEqual(self.document("trust", "list")["registries"],
                         [{"registry": str(REGISTRY), "unsigned": True}])
        self.kiln("trust", "remove", REGISTRY)
        self.kiln("trust", "remove", REGISTRY, code=4)
        self.kiln("install", SPEC, code=7)
        self.kiln("path", SPEC, code=7)  # what is installed stays, and is not used

    def test_a_root_that_is_none_is_not_added(self):
        self.environment |= {"HOME": str(self.work), "XDG_CONFIG_HOME": ""}
        root = self.work / "root.json"
        for text in ("", "{}", '{"signatures":[],"signed":{}}'):
            root.write_text(text)
            self.assertIn("root.json", self.kiln("trust", "add", "https://example.org", "--root", root, code=7).stderr)
        self.kiln("trust", "add", "https://example.org", "--root", self.work / "absent", code=4)
        self.kiln("trust", "add", "https://example.org", code=2)
        self.kiln("trust", "add", "https://example.org", "--root", root, "--unsigned", code=2)
        self.assertFalse((self.work / ".config").exists())


if __name__ == "__main__":
    if not REGISTRY.exists():
        print(f"skipped: there is no registry at {REGISTRY}")
        sys.exit(77)
    unittest.main()
