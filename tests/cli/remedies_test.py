#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an error tells a user to do cures that error: each command, folder and variable that a text of Kiln's sources
names has a row here, which makes the error, does what is printed, as it is printed, and runs the first command again.

    remedies_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import base64
import functools
import http.server
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import threading

import remedies
from world import (CACHE, INTEGRITY, KILN, KILN_REGISTRY, LOCK, NETWORK, NOT_FOUND, OFFLINE, OK, TRUST,
                   USAGE, World, main)
from oci_server import OciServer  # world says where it is

CONFLICT = 16
ROWS = {}
# Rows of other tests, and why no row here can do what is printed. The text is in that file.
ELSEWHERE = {
    # It needs a disk that is full.
    "loader/src/core/base/posix.cpp: kiln cache gc": ("tests/store/room_test.cpp", "Make room"),
    # They need a library that loads, and a process that may not have it in memory.
    "loader/src/call/load.cpp: KILN_LOAD_MODE": ("tests/hostile/host_test.py", '"KILN_LOAD_MODE": "path"'),
    "loader/src/core/base/process.cpp: KILN_LOAD_MODE": ("tests/hostile/host_test.py", '"umount -l /proc", OK, "loads", environment={"KILN_LOAD_MODE": "path"}'),
    "loader/src/call/load.cpp: ulimit -n": ("tests/hostile/host_test.py", "descriptors"),
    # They need a driver that does not start, and the vendor's program.
    "loader/src/probe/driver_error.cpp: CUDA_VISIBLE_DEVICES": ("tests/loader/probe_test.cpp", "CUDA_ERROR_"),
    "loader/src/probe/driver_error.cpp: nvidia-smi": ("tests/loader/probe_test.cpp", "CUDA_ERROR_"),
    "loader/src/probe/driver_error.cpp: nvidia-smi -L": ("tests/loader/probe_test.cpp", "CUDA_ERROR_"),
    # They need a machine for which nothing is built.
    "build-matrix/cli/build.cpp: kiln build --list": ("tests/build/end_to_end_test.cpp", '"--list"'),
    "build-matrix/cli/build.cpp: kiln host": ("tests/build/end_to_end_test.cpp", '"--here"'),
    # They need the pinned compilers.
    "build-matrix/compilers/toolchain.cpp: KILN_TOOLCHAINS": (
        "tests/install/quickstart_test.sh", "a shell with build/env does not build a package elsewhere"),
    "build-matrix/cli/pack.cpp: kiln build": ("tests/build/binaries_test.py", 'has no "binaries"'),
    "build-matrix/steps/trial.cpp: KILN_CACHE": ("tests/build/rms_norm_test.sh", "KILN_CACHE="),
    "build-matrix/steps/trial.cpp: KILN_REGISTRY": ("tests/build/rms_norm_test.sh", "KILN_CACHE="),
    "build-matrix/steps/trial.cpp: KILN_UNSIGNED": ("tests/build/rms_norm_test.sh", "KILN_CACHE="),
    "registry/folder/build_output.cpp: kiln build": ("tests/matrix/copied_package_test.sh", "build"),
    "loader/src/store/build_output.cpp: kiln build": ("tests/loader/cache_test.cpp", "what was built last"),
    # It needs a folder in which root may not make one either.
    "loader/cli/verbs/doctor.cpp: KILN_CACHE": ("tests/cli/cli_test.py", "does not exist and cannot be made"),
    # It needs a locked index that lacks what its registry has by now.
    "loader/src/install/choose.cpp: kiln lock…": ("tests/lock/lock_test.cpp", "pins this index"),
    # They need a ref that is damaged.
    "loader/cli/verbs/audit.cpp: kiln cache repair": ("tests/cli/advisories_test.py", 'self.kiln("cache", "repair")'),
    "loader/cli/verbs/outdated.cpp: kiln cache repair": ("tests/cli/advisories_test.py", 'self.kiln("cache", "repair")'),
    # It needs an advisory about drivers.
    "loader/src/core/documents/advisory.cpp: KILN_OVERRIDE_DRIVER": (
        "tests/cli/advisories_test.py", 'self.environment["KILN_OVERRIDE_DRIVER"] = "570.133.07"'),
    # They need a version that brings a check.
    "loader/src/core/resolve/rules.cpp: kiln test": ("tests/cli/proof_test.py", "run its check on that machine ('kiln test'), or"),
    "loader/cli/verbs/test.cpp: kiln registry publish --records": ("tests/cli/proof_test.py", '"--records", shared'),
    "loader/src/install/kept.cpp: KILN_CONFIG": ("tests/cli/proof_test.py", '("KILN_CONFIG", "there/config.json")'),
    "loader/src/install/kept.cpp: XDG_CONFIG_HOME": ("tests/cli/proof_test.py", '("XDG_CONFIG_HOME", "xdg")'),
    "loader/src/install/tested_here.cpp: kiln test": ("tests/cli/proof_test.py", "run 'kiln test' again"),
    "loader/src/install/tuned.cpp: kiln tune …": ("tests/cli/tune_test.py", "'kiln tune sample@1' measures this one"),
    # They need a server with more than a thousand packages, and a document of four mebibytes of them.
    "loader/cli/verbs/search.cpp: kiln info": ("tests/cli/verbs_test.py", "kiln info NAME"),
    "registry/trust/draft.cpp: kiln registry delegate": ("tests/trust/signers_test.py", '"delegate"'),
}

def cures(*keys):
    def mark(test):
        for key in keys:
            assert key not in ROWS, key
            ROWS[key] = test.__name__
        return test
    return mark


class Remedies(World):
    def setUp(self):
        super().setUp()
        self.environment["PATH"] = f"{pathlib.Path(KILN).parent}:/usr/bin:/bin"
        self.cache = self.work / "cache"

    def shell(self, command, code=OK):
        return self.run_command("/bin/sh", "-c", command, code=code)

    def cured(self, first, code, remedy, fill=(), after=OK, more=""):
        """`remedy` is what the text has in quotes, as a pattern; `fill` replaces NAME, FILE and the like. `more`: what
        only the user knows, such as where the keys are."""
        done = self.shell(first, code)
        printed = re.findall(f"'({remedy}(?: --(?:cache|registry|lock) (?:\\\\.|[^ '])+)*)'", done.stdout + done.stderr)
        self.assertTrue(printed, f"{first} does not say {remedy}:\n{done.stdout}{done.stderr}")
        command = printed[0]
        for placeholder, value in dict(fill).items():
            command = command.replace(placeholder, str(value))
        self.shell(command + more)
        self.shell(first, after)
        return command

    def cured_by(self, first, code, says, after=OK, **environment):
        """By what a variable says from then on; None unsets it."""
        done = self.shell(first, code)
        self.assertIn(says, done.stdout + done.stderr)
        for name, value in environment.items():
            self.environment.pop(name, None)
            if value is not None:
                self.environment[name] = str(value)
        self.shell(first, after)

    def install(self, *more):
        self.kiln("install", "tiny-op@1", "--device", "cpu", *more)

    def ref(self, version=1):
        [path] = self.cache.glob(f"refs/*/tiny-op/{version}.json")
        return path

    def replace(self, path, text):
        path.chmod(0o644)
        path.write_text(text)

    # ---- the table is whole ----

    def test_every_remedy_that_a_source_names_has_a_row(self):
        found = remedies.named()
        self.assertGreater(len(found), 100)
        self.assertEqual(sorted(found - set(ROWS) - set(ELSEWHERE)), [], "name what cures, and give it a row")
        self.assertEqual(sorted((set(ROWS) | set(ELSEWHERE)) - found), [], "rows of what no source says any more")
        for key, (file, text) in ELSEWHERE.items():
            self.assertIn(text, (remedies.ROOT / file).read_text(), key)

    def test_what_stands_in_one_literal_or_in_several_is_found(self):
        self.assertEqual(list(remedies.texts('f("a " + x + "b" "c"); // "no"\n#include "no.hpp"\ng(\'"\', "d");')),
                         ["…a …bc", "…d", ""])

    # ---- the cache ----

    @cures("loader/src/store/gc.cpp: kiln cache repair", "loader/src/store/repair.cpp: kiln install …@…")
    def test_gc_beside_a_damaged_ref(self):
        self.install()
        self.replace(self.ref(), "{}")
        self.cured("kiln cache gc", INTEGRITY, "kiln cache repair")
        self.install()
        self.replace(self.ref(), "{}")
        said = self.kiln("cache", "repair")
        self.shell(re.search("run '(kiln install tiny-op@1)'", said).group(1))
        self.kiln("list", "tiny-op@1", says="tiny-op@1")

    @cures("loader/cli/verbs/uninstall.cpp: kiln cache repair")
    def test_uninstall_of_a_damaged_ref(self):
        self.install()
        self.publish("next")
        self.kiln("install", "tiny-op@2", "--device", "cpu")
        self.replace(self.ref(), "{}")
        self.cured("kiln uninstall tiny-op", INTEGRITY, "kiln cache repair")
        self.assertEqual(list(self.cache.glob("refs/*/tiny-op/*")), [])

    @cures("loader/src/store/repair.cpp: kiln install --locked")
    def test_gc_beside_a_damaged_entry_of_a_project(self):
        self.kiln("add", "tiny-op")
        self.kiln("install", "--locked")
        [entry] = self.cache.glob("roots/*.json")
        self.replace(entry, "{}")
        self.kiln("cache", "verify", code=INTEGRITY)
        said = self.kiln("cache", "repair")
        self.shell(re.search("run '(kiln install --locked)'", said).group(1))
        self.assertEqual(json.loads(entry.read_text())["path"], str(self.project / "kiln.lock"))
        self.replace(entry, "{}")
        self.cured("kiln cache gc", INTEGRITY, "kiln cache repair")

    @cures("loader/src/store/inside.cpp: kiln cache repair")
    def test_a_link_in_the_place_of_a_folder(self):
        self.install()
        for folder in ("blobs", "refs", "unpacked", "locks"):
            shutil.rmtree(self.cache / folder)
            (self.cache / folder).symlink_to(self.work)
            self.cured("kiln install --refresh tiny-op@1", INTEGRITY, "kiln cache repair")

    @cures("loader/src/core/base/posix.cpp: kiln cache repair")
    def test_a_folder_in_the_place_of_metadata(self):
        self.sign()
        self.install()
        [timestamp] = self.cache.glob("tuf/*/timestamp.json")
        timestamp.unlink()
        (timestamp / "x").mkdir(parents=True)
        self.cured("kiln install --refresh tiny-op@1", CACHE, "kiln cache repair")

    @cures("loader/src/core/verify/verify.hpp: kiln cache repair", "loader/cli/verbs/kernel_command.cpp: kiln cache repair%s")
    def test_a_damaged_library_in_a_cache_that_is_named(self):
        cache = self.work / "another cache"
        for words in ("", f" --cache '{cache}'"):
            self.install(*(["--cache", cache] if words else []))
            for first in ("kiln path tiny-op@1" + words, "kiln cache verify" + words):
                library = pathlib.Path(self.shell("kiln path tiny-op@1" + words).stdout.strip())
                self.replace(library, "other bytes")
                command = self.cured(first, INTEGRITY, r"kiln cache repair(?: --cache [^']*)?")
                self.assertEqual("--cache" in command, bool(words))

    @cures("loader/src/store/ref.cpp: kiln cache repair")
    def test_a_ref_of_another_version(self):
        self.publish("next")
        self.install()
        self.kiln("install", "tiny-op@2")
        self.ref(1).unlink()
        self.ref(2).rename(self.ref(2).with_name("1.json"))
        self.cured("kiln install tiny-op@1", INTEGRITY, "kiln cache repair")

    @cures("loader/src/store/repair.cpp: kiln cache repair")
    def test_a_repair_without_network(self):
        self.install()
        for blob in (self.cache / "blobs/sha256").iterdir():
            self.replace(blob, "other bytes")
        self.cured("kiln cache repair --offline", OFFLINE, "kiln cache repair")

    @cures("loader/src/store/repair.cpp: KILN_CACHE", "loader/src/store/repair.cpp: kiln list",
           "loader/src/store/repair.cpp: kiln install NAME@VERSION")
    def test_a_cache_that_is_not_there(self):
        self.cured_by("kiln cache verify", NOT_FOUND, "Check KILN_CACHE or --cache; the first install makes it",
                      after=NOT_FOUND, KILN_CACHE=self.work / "mistyped")
        self.install()
        self.kiln("cache", "verify")
        self.assertIn("tiny-op@1", self.shell("kiln list").stdout)
        self.publish("next")
        self.cured("kiln cache verify tiny-op@2", NOT_FOUND, "kiln install NAME@VERSION", {"NAME@VERSION": "tiny-op@2"})

    @cures("loader/src/store/cache.cpp: KILN_CACHE", "loader/src/store/cache.cpp: XDG_CACHE_HOME")
    def test_a_cache_without_a_place(self):
        for name, value in (("KILN_CACHE", self.cache), ("XDG_CACHE_HOME", self.work), ("HOME", self.work)):
            for each in ("KILN_CACHE", "XDG_CACHE_HOME", "HOME"):
                self.environment.pop(each, None)
            self.cured_by("kiln cache dir", CACHE, "Set KILN_CACHE to a folder of your own", **{name: value})
        self.cured_by("KILN_CACHE=relative kiln cache dir; kiln cache dir", OK, "Give the full path in KILN_CACHE",
                      KILN_CACHE=self.cache)

    def test_a_word_of_a_variable_that_could_never_count(self):
        for variable, wrong, right in (("KILN_UNSIGNED", "registry", self.registry),
                                       ("KILN_INSECURE_HTTP", "http://mirror.lan", "mirror.lan"),
                                       ("KILN_INSECURE_HTTP", "http://mirror.lan", None)):
            self.environment[variable] = wrong
            self.cured_by("kiln install tiny-op@1", USAGE, "Correct or unset it", **{variable: right})

    @cures("loader/src/store/inside.cpp: KILN_CACHE")
    def test_a_folder_of_something_else(self):
        (self.work / "mine").mkdir()
        (self.work / "mine/notes").write_text("mine")
        self.environment["KILN_CACHE"] = str(self.work / "mine")
        self.cured_by("kiln install tiny-op@1", CACHE, "Set KILN_CACHE to a new or an empty folder", KILN_CACHE=self.cache)

    @cures("loader/src/store/inside.cpp: chmod o-w …", "loader/src/settings/owners.cpp: chmod +t …",
           "loader/src/settings/owners.cpp: chmod o-w …", "loader/src/store/inside.cpp: KILN_SAFE_FOLDERS",
           "loader/src/settings/owners.cpp: KILN_SAFE_FOLDERS",
           "loader/src/store/inside.cpp: kiln cache verify")
    def test_folders_that_everyone_may_write_to(self):
        self.install()
        for folder, remedy in ((self.cache, "chmod o-w"), (self.work, "chmod o-w"), (self.work, r"chmod \+t"),
                               (self.cache / "blobs", "chmod o-w")):
            mode = folder.stat().st_mode
            folder.chmod(0o777)
            self.cured("kiln path tiny-op@1", CACHE, remedy + " " + re.escape(str(folder)))
            folder.chmod(mode)
        for folder in (self.cache, self.work):
            folder.chmod(0o777)
            self.cured_by("kiln path tiny-op@1", CACHE, f"KILN_SAFE_FOLDERS={folder}", KILN_SAFE_FOLDERS=folder)
            folder.chmod(0o755)
            del self.environment["KILN_SAFE_FOLDERS"]
        (self.cache / "refs").chmod(0o777)
        said = self.shell("kiln list", CACHE).stderr
        for command in re.findall("'([^']*)'", said):
            self.shell(command)
        self.kiln("list")

    @cures("loader/src/core/base/posix.cpp: KILN_CACHE", "loader/src/core/base/posix.cpp: ulimit -f",
           "loader/src/core/base/posix.cpp: ulimit -n")
    def test_limits_of_a_process(self):
        self.install()
        said = self.with_few_files("kiln cache gc")
        self.assertIn("Too many open files. Raise the limit of open files (ulimit -n)", said)
        self.assertNotIn("Kiln's", said)
        self.environment["KILN_CACHE"] = str(self.work / "empty")
        done = self.shell("ulimit -f 1; kiln install tiny-op@1", CACHE)
        self.assertIn("Raise the limit of a file's size (ulimit -f), or set KILN_CACHE", done.stderr)
        self.shell("ulimit -f unlimited; kiln install tiny-op@1")
        file = self.work / "file"
        file.write_text("")
        self.environment["KILN_CACHE"] = str(file / "cache")
        self.cured_by("kiln install tiny-op@1", CACHE, "or set KILN_CACHE to another folder", KILN_CACHE=self.work / "other")

    @cures("loader/src/core/base/draft.cpp: ulimit -f", "loader/src/core/base/draft.cpp: ulimit -n")
    def test_limits_where_a_user_keeps_files(self):
        done = self.shell(f"ulimit -f 0; kiln trust add {self.registry} --unsigned", CACHE)
        self.assertIn("Raise the limit of a file's size (ulimit -f) and run the command again", done.stderr)
        said = self.with_few_files(f"kiln trust add {self.registry} --unsigned")
        self.assertIn("Too many open files. Raise the limit of open files (ulimit -n)", said)
        self.assertNotIn("Correct the file", said)

    def with_few_files(self, command):
        """What it says with ever more descriptors, from those that its libraries need, until it goes well."""
        said = ""
        for most in range(4, 64):
            done = subprocess.run(["/bin/sh", "-c", f"ulimit -n {most}; {command}"], text=True, capture_output=True,
                                  env=self.environment, cwd=self.project)
            if done.returncode == OK:
                return said
            if done.returncode != 127:
                self.assertEqual(done.returncode, CACHE, done.stderr)
                said += done.stderr
        self.fail(said)

    # ---- what is not there ----

    @cures("loader/cli/verbs/install.cpp: kiln list", "loader/cli/verbs/install.cpp: kiln install …",
           "loader/cli/verbs/info.cpp: kiln install %s", "loader/cli/verbs/uninstall.cpp: kiln list")
    def test_what_is_not_installed(self):
        self.cured("kiln path tiny-op@1", NOT_FOUND, "kiln install tiny-op@1")
        self.assertIn("tiny-op@1", self.shell("kiln list").stdout)
        self.cured("kiln list tiny-op@7", NOT_FOUND, "kiln list", after=NOT_FOUND)
        self.cured("kiln uninstall tiny-op@7", NOT_FOUND, "kiln list", after=NOT_FOUND)
        self.publish("next")
        self.shell("kiln install tiny-op@2")
        shutil.rmtree(self.cache / "unpacked")
        for blob in (self.cache / "blobs/sha256").iterdir():
            if not blob.read_bytes().startswith(b"{"):  # the archive
                blob.unlink()
        said = self.shell("kiln info tiny-op@2 --offline").stdout
        self.shell(re.search("not known before '([^']*)'", said).group(1))
        self.assertNotIn("not known before", self.shell("kiln info tiny-op@2 --offline").stdout)

    @cures("loader/src/install/source.cpp: kiln install …", "loader/src/install/source.cpp: kiln install --from FILE …",
           "loader/src/store/bundle.cpp: kiln bundle create")
    def test_what_was_never_fetched(self):
        registry = f"--registry {self.registry}"
        self.cured(f"kiln install tiny-op@1 --offline {registry}", OFFLINE, "kiln install tiny-op@1")
        self.shell(f"kiln bundle create tiny-op@1 -o {self.work}/b.tar")
        self.environment["KILN_CACHE"] = str(self.work / "empty")
        done = self.shell("kiln install tiny-op@1 --offline", OFFLINE)
        command = re.search("'(kiln install --from FILE tiny-op@1)'", done.stderr).group(1).replace("FILE", f"{self.work}/b.tar")
        self.shell(command)
        self.shell("kiln install tiny-op@1 --offline")
        self.environment["KILN_CACHE"] = "/dev/null/cache"
        self.assertNotIn("chmod", self.shell("kiln install tiny-op@1", CACHE).stderr, "/dev/null is everyone's to write")
        (self.work / "b.tar").write_text("no tar")
        self.environment["KILN_CACHE"] = str(self.work / "empty too")
        done = self.shell(f"kiln bundle install {self.work}/b.tar", INTEGRITY)
        self.assertIn("make it anew: kiln bundle create", done.stderr)
        self.shell(f"kiln bundle create tiny-op@1 -o {self.work}/b.tar")
        self.shell(f"kiln bundle install {self.work}/b.tar")

    @cures("loader/cli/verbs/bundle.cpp: kiln bundle install %s%s")
    def test_a_bundle_that_a_lock_file_alone_vouches_for(self):
        self.sign()
        self.kiln("add", "tiny-op")
        self.kiln("install", "--locked", "--device", "cpu")
        shutil.copy(self.project / "kiln.lock", self.project / "held.lock")
        for held in ("--locked", "--lock held.lock"):
            said = self.shell(f"kiln bundle create {held} --offline --device cpu -o '{self.work}/b of mine.tar'").stderr
            self.assertIn("note: tiny-op@1 has no signed metadata in the bundle: offline nobody is asked", said)
            shutil.rmtree(self.cache)
            self.shell(f"kiln bundle install '{self.work}/b of mine.tar' --device cpu", NOT_FOUND)
            command = re.search("'(kiln bundle install [^']*)'", said).group(1)
            self.assertTrue(command.endswith(held))
            self.shell(command + " --device cpu")

    @cures("loader/cli/verbs/bundle.cpp: kiln trust add … --root root.json", "loader/cli/verbs/bundle.cpp: kiln trust add … --unsigned",
           "loader/cli/verbs/bundle.cpp: KILN_REGISTRY")
    def test_a_bundle_of_a_registry_that_is_not_known_here(self):
        file = self.work / "b.tar"
        for is_signed in (False, True):
            self.environment |= {"KILN_REGISTRY": str(self.registry), "HOME": str(self.work), "KILN_CACHE": str(self.work / "cache")}
            if is_signed:
                self.sign()
            self.kiln("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", file)
            there = self.work / f"there-{is_signed}"
            self.environment |= {"HOME": str(there), "KILN_CACHE": str(there / "cache"), "KILN_UNSIGNED": ""}
            del self.environment["KILN_REGISTRY"]
            self.registry.rename(self.work / "elsewhere")  # this machine has never had it
            done = self.shell(f"kiln bundle install {file} --device cpu", TRUST)
            commands = re.findall("'(kiln [^']*)'", done.stderr)
            self.assertGreaterEqual(len(commands), 2, done.stderr)
            for command in commands:
                self.shell(command.replace("root.json", str(self.work / "root.json")))
            self.environment["KILN_REGISTRY"] = str(self.registry)
            self.shell("kiln path tiny-op@1 --device cpu")
            (self.work / "elsewhere").rename(self.registry)

    @cures("loader/src/install/source.cpp: kiln registry publish")
    def test_a_build_that_others_would_rely_on(self):
        for first in ("kiln lock tiny-op@1", "kiln bundle create tiny-op@1 --device cpu -o b.tar"):
            other = self.work / first.split()[1]
            self.environment["KILN_REGISTRY"] = str(other)
            done = self.shell(f"{first} --from {self.built}/one", USAGE)
            command = re.search("'(kiln registry publish)'", done.stderr).group(1)
            self.shell(f"{command} {self.built}/one --allow-untested '*' && {first}")

    @cures("loader/src/store/folder.cpp: KILN_REGISTRY", "loader/src/install/vouch.cpp: KILN_REGISTRY")
    def test_a_registry_that_is_not_there(self):
        for unsigned in ("/", ""):
            self.environment["KILN_UNSIGNED"] = unsigned
            self.environment["KILN_REGISTRY"] = str(self.work / "none")
            self.cured_by("kiln search", NOT_FOUND, "in KILN_REGISTRY", KILN_REGISTRY=self.registry, KILN_UNSIGNED="/")

    @cures("loader/src/install/catalog.cpp: kiln list", "loader/src/http/url.cpp: KILN_INSECURE_HTTP")
    def test_a_registry_that_is_not_asked(self):
        self.environment["KILN_UNSIGNED"] = "https://registry.invalid"
        self.cured("kiln search --offline --registry https://registry.invalid", OFFLINE, "kiln list", after=OFFLINE)
        self.cured_by("kiln search --registry http://registry.invalid", USAGE, "list registry.invalid in KILN_INSECURE_HTTP",
                      after=NETWORK, KILN_INSECURE_HTTP="registry.invalid", KILN_UNSIGNED="http://registry.invalid")

    @cures("loader/src/install/dev.cpp: kiln info …")
    def test_a_package_without_headers(self):
        done = self.shell("kiln install --dev tiny-op@1", NOT_FOUND)
        self.shell(re.search("'(kiln info [^']*)' lists them", done.stderr).group(1))

    @cures("loader/src/install/catalog.cpp: kiln search")
    def test_what_signed_metadata_does_not_speak_of(self):
        self.sign()
        self.cured("kiln add nosuch", NOT_FOUND, "kiln search", after=NOT_FOUND)

    def test_a_folder_of_any_name_is_pasted_as_it_is(self):
        odd = self.work / "caf\u00e9 & $(touch pasted); it's"
        odd.mkdir()
        odd.chmod(0o777)
        self.environment["KILN_CACHE"] = str(odd)
        install = "kiln install tiny-op@1 --device cpu"
        said = self.shell(install, CACHE).stderr
        self.shell(re.search(r"(KILN_SAFE_FOLDERS=(?:\\.|[^\\\s])*)", said)[1] + " " + install)
        self.shell(re.search(r"'(chmod o-w (?:\\.|[^\\'])*)'", said)[1])
        self.shell(install)
        # A command that takes over --cache, and one that has the name of a file.
        library = next(odd.glob("unpacked/*/lib/*"))
        self.replace(library, "damaged")
        del self.environment["KILN_CACHE"]
        said = self.shell(f"kiln cache verify --cache {shlex.quote(str(odd))}", INTEGRITY).stderr
        self.shell(re.search(r"'(kiln cache repair --cache (?:\\.|[^\\'])*)'", said)[1])
        self.assertNotEqual(library.read_text(errors="replace"), "damaged")
        self.shell(f"kiln bundle create tiny-op@1 --device cpu -o {shlex.quote(str(odd / 'b.tar'))}")
        self.environment["KILN_UNSIGNED"] = ""
        del self.environment["KILN_REGISTRY"]  # of which the bundle says it is
        said = self.shell(f"kiln bundle install {shlex.quote(str(odd / 'b.tar'))}", TRUST).stderr
        commands = re.findall(r"'(kiln (?:\\.|[^\\'])*)'", said)
        self.assertEqual(len(commands), 2, said)
        for command in commands:
            self.shell(command)
        self.assertEqual(list(self.work.rglob("pasted")), [])

    # ---- what was typed ----

    @cures("loader/cli/verbs/kernel_command.cpp: kiln info NAME", "loader/cli/verbs/kernel_command.cpp: kiln add NAME")
    def test_a_version_that_is_none(self):
        for remedy in ("kiln info NAME", "kiln add NAME"):
            done = self.shell("kiln install tiny-op@latest", USAGE)
            self.shell(re.search(f"'({remedy})'", done.stderr).group(1).replace("NAME", "tiny-op"))
        self.assertIn("Usage: kiln install", self.shell("kiln help install").stdout)

    @cures("loader/cli/verbs/kernel_command.cpp: kiln host --json", "loader/src/core/documents/host.cpp: kiln host --json",
           "loader/src/install/choose.cpp: kiln host … --json", "loader/cli/verbs/host.cpp: kiln resolve --host cluster.json")
    def test_facts_of_another_machine(self):
        first = "kiln resolve tiny-op@1 --host facts.json --device cpu"
        for facts, code in ((None, USAGE), ('{"schema": "kiln.other/1"}', INTEGRITY)):
            if facts:
                (self.project / "facts.json").write_text(facts)
            done = self.shell(first, code)
            self.shell(re.search("'(kiln host --json)'", done.stderr).group(1) + " > facts.json")
            self.shell(first)
        self.shell("kiln host --json > cluster.json && kiln resolve --host cluster.json tiny-op@1 --device cpu")

    @cures("loader/src/core/resolve/explain.cpp: kiln resolve …", "loader/src/core/resolve/explain.cpp: kiln resolve … --explain",
           "loader/src/install/choose.cpp: kiln resolve …")
    def test_a_variant_that_is_none(self):
        self.publish("two")
        said = self.shell("kiln resolve tiny-op@1 --device cpu").stdout
        shown = re.search("'(kiln resolve [^']* --explain)' shows each", said)
        explained = self.shell(shown.group(1) if shown else "kiln resolve tiny-op@1 --explain").stdout
        self.assertIn("compute_80", explained)
        self.cured("kiln install tiny-op@1 --deny nosuch-x86_64", NOT_FOUND, "kiln resolve tiny-op@1", after=NOT_FOUND)
        self.cured("kiln resolve tiny-op@1 --explain nosuch", USAGE, "kiln resolve tiny-op@1", after=USAGE)

    @cures("loader/cli/frame/program.cpp: chmod +x …")
    def test_a_program_beside_that_may_not_be_run(self):
        beside = self.work / "bin"
        beside.mkdir()
        for program in (KILN, KILN_REGISTRY):
            shutil.copy(program, beside)
        (beside / "kiln-registry").chmod(0o644)
        self.cured(f"{beside}/kiln registry --help", NOT_FOUND, "chmod .x " + re.escape(f"{beside}/kiln-registry"))

    @cures("loader/cli/frame/program.cpp: ulimit -v")
    def test_a_process_without_memory(self):
        (self.project / "facts.json").write_text("[" + "0," * (2 << 20) + "0]")
        for most in range(20, 400, 10):  # MiB, from what the program itself needs on
            done = subprocess.run(["/bin/sh", "-c", f"ulimit -v {most << 10}; kiln lock --requirements facts.json"],
                                  capture_output=True, text=True, env=self.environment, cwd=self.project)
            if "ulimit -v" in done.stderr:
                return
        self.fail("no limit between what the program needs and what it asks for")

    def test_another_machine_in_the_environment(self):
        self.environment["KILN_OVERRIDE_SM"] = "many"
        self.cured_by("kiln resolve tiny-op@1", USAGE, "KILN_OVERRIDE_SM is \"many\"", KILN_OVERRIDE_SM=None)
        self.environment["KILN_OVERRIDE_CUDA"] = "new"
        self.cured_by("kiln resolve tiny-op@1", USAGE, "KILN_OVERRIDE_CUDA is \"new\"", KILN_OVERRIDE_CUDA=None)
        self.environment["KILN_OVERRIDE_DRIVER"] = "12.4"
        self.cured_by("kiln resolve tiny-op@1", USAGE, "KILN_OVERRIDE_DRIVER is \"12.4\"", KILN_OVERRIDE_DRIVER=None)

    @cures("loader/src/core/resolve/resolve.cpp: nvidia-smi", "loader/src/core/resolve/resolve.cpp: CUDA_VISIBLE_DEVICES",
           "loader/src/core/resolve/hint.cpp: CUDA_VISIBLE_DEVICES", "loader/cli/verbs/doctor.cpp: CUDA_VISIBLE_DEVICES",
           "loader/cli/verbs/doctor.cpp: nvidia-smi -L")
    def test_a_machine_that_shows_no_gpu(self):
        """A GPU is asked of the environment's words for it; what a driver hides is in tests/loader/probe_test.cpp."""
        self.environment |= {"KILN_OVERRIDE_SM": "", "KILN_OVERRIDE_CUDA": ""}
        self.cured_by("kiln resolve tiny-op@1 --device cuda:0", USAGE, "Check nvidia-smi and CUDA_VISIBLE_DEVICES",
                      KILN_OVERRIDE_SM="9.0", KILN_OVERRIDE_CUDA="12.9")
        self.assertIn("CUDA_VISIBLE_DEVICES", (remedies.ROOT / "tests/loader/probe_test.cpp").read_text())

    # ---- a project ----

    @cures("loader/cli/verbs/add.cpp: kiln add NAME", "loader/cli/verbs/add.cpp: kiln uninstall %s", "loader/cli/verbs/uninstall.cpp: kiln remove …",
           "loader/cli/verbs/lock.cpp: kiln add …", "loader/cli/verbs/lock.cpp: kiln lock")
    def test_kernels_of_a_project(self):
        self.shell("kiln add tiny-op; kiln remove tiny-op")
        done = self.shell("kiln update", LOCK)
        self.assertIn("Add one: 'kiln add NAME'", done.stderr)
        self.cured("kiln lock tiny-op", USAGE, "kiln add tiny-op", after=USAGE)
        self.shell("kiln update; kiln install --locked")
        self.cured("kiln uninstall tiny-op", LOCK, "kiln remove tiny-op")
        self.install()
        self.shell("kiln add tiny-op")
        said = self.shell("kiln remove tiny-op").stdout
        self.shell(re.search("'(kiln uninstall [^']*)'", said).group(1))
        self.shell("kiln list tiny-op", NOT_FOUND)
        (self.project / "kiln.lock").unlink()
        done = self.shell("kiln lock --requirements nosuch.json", USAGE)
        self.assertIn("or packages: kiln lock NAME@VERSION", done.stderr)
        self.shell("kiln lock", USAGE)
        self.shell("kiln lock tiny-op@1 && kiln lock --check")

    @cures("loader/cli/verbs/outdated.cpp: kiln update…", "loader/cli/verbs/outdated.cpp: kiln install NAME@VERSION")
    def test_a_project_that_is_behind(self):
        self.install()
        self.shell("kiln add tiny-op")
        self.publish("next")
        held = (self.project / "kiln.lock").rename(self.project / "held.lock")
        self.environment["KILN_LOCK"] = str(held)
        self.assertIn("has the newest", self.cured_text("kiln outdated", f"kiln update --lock {held}"))
        self.environment["KILN_LOCK"] = ""
        self.assertIn("has the newest", self.cured_text("kiln outdated", "kiln install NAME@VERSION"))

    def cured_text(self, first, remedy):
        done = self.shell(first)
        self.shell(re.search(f"'({remedy})'", done.stderr).group(1).replace("NAME@VERSION", "tiny-op@2"))
        done = self.shell(first)
        return done.stdout + done.stderr

    @cures("loader/src/install/lock.cpp: kiln lock NAME@VERSION…", "loader/src/install/lock.cpp: kiln lock …",
           "loader/src/install/lock.cpp: kiln lock …@VERSION…", "loader/src/install/lock.cpp: kiln lock…",
           "loader/src/install/lock.cpp: kiln lock --force NAME@VERSION…", "loader/src/install/install.cpp: kiln lock…")
    def test_lock_files(self):
        """Named by an option, by the variable, and as the project's own: what is printed is of that file."""
        self.publish("next", "four/alpha")
        held = self.project / "held here.lock"
        named = " --lock held\\ here.lock"
        for option, lock, variable in ((named, held, ""), ("", held, str(held)), (" --locked", self.project / "kiln.lock", "")):
            with self.subTest(option=option, variable=variable):
                self.environment |= {"KILN_LOCK": variable, "KILN_CACHE": str(self.work / "cache")}
                self.lock_files(option, lock)
                lock.unlink()
                self.assertEqual(list(self.project.glob("*.lock")), [])  # no other was written

    def lock_files(self, option, lock):
        fill = {"NAME@VERSION": "tiny-op@1", "VERSION": "1"}
        first = "kiln install tiny-op@1" + option
        self.cured(first, LOCK, "kiln lock NAME@VERSION", fill)
        self.cured("kiln install tiny-op@2" + option, LOCK, "kiln lock tiny-op@2")
        self.cured("kiln install alpha@1" + option, LOCK, "kiln lock alpha@VERSION", fill)
        lock.write_text("{")
        self.cured(first, LOCK, "kiln lock --force NAME@VERSION", fill)
        # A lock file whose index the registry no longer has.
        text = lock.read_text()
        index = json.loads(text)["kernels"]["tiny-op"]["index"]
        digest = index["digest"] if isinstance(index, dict) else index
        self.environment["KILN_CACHE"] = str(self.work / "fresh")
        shutil.rmtree(self.work / "fresh", ignore_errors=True)
        lock.write_text(text.replace(digest, "sha256:" + "0" * 64))
        self.cured(first, LOCK, "kiln lock")
        # One that was changed by hand.
        changed = json.loads(lock.read_text())
        for variant in changed["kernels"]["tiny-op"]["variants"].values():
            variant["config"]["size"] += 1
        lock.write_text(json.dumps(changed))
        self.assertIn("was changed by hand", self.shell(first, LOCK).stderr)
        self.cured(first, LOCK, "kiln lock --force NAME@VERSION", fill)

    # ---- trust and settings ----

    @cures("loader/src/install/vouch.cpp: kiln trust add … --root root.json", "loader/src/install/vouch.cpp: kiln trust add … --unsigned",
           "loader/cli/verbs/trust.cpp: kiln trust remove …", "loader/cli/verbs/trust.cpp: kiln trust add --help",
           "loader/cli/verbs/trust.cpp: kiln trust list")
    def test_a_registry_that_nobody_vouches_for(self):
        self.registry = self.registry.rename(self.work / "registry of mine")
        registry = shlex.quote(str(self.registry))
        self.environment |= {"KILN_UNSIGNED": "", "KILN_REGISTRY": str(self.registry)}
        self.assertIn("--unsigned", self.shell(re.search("'(kiln trust add --help)'", self.shell("kiln trust list").stdout).group(1)).stdout)
        self.cured("kiln install tiny-op@1", TRUST, "kiln trust add [^']* --unsigned")
        self.shell(f"kiln trust remove {registry}")
        self.sign()
        self.shell(f"kiln trust remove {registry}")
        self.cured("kiln install tiny-op@1", TRUST, "kiln trust add [^']* --root root.json", {"root.json": self.work / "root.json"})
        self.cured(f"kiln trust add {registry} --unsigned", CONFLICT, "kiln trust remove [^']*")
        self.cured("kiln trust remove /nosuch", NOT_FOUND, "kiln trust list", after=NOT_FOUND)

    @cures("loader/src/settings/trust_file.hpp: kiln trust add", "loader/src/settings/owners.cpp: chmod g-w …", "loader/src/settings/trust_file.cpp: KILN_CONFIG",
           "loader/src/settings/trust_file.cpp: XDG_CONFIG_HOME", "loader/src/settings/settings.cpp: KILN_CONFIG")
    def test_files_of_settings(self):
        add = f"kiln trust add {self.registry} --unsigned"
        self.shell(add)
        file = self.work / ".config/kiln/trust.json"
        for mode, remedy in ((0o664, "chmod g-w"), (0o646, "chmod o-w")):
            file.chmod(mode)
            self.cured("kiln trust list", USAGE, remedy + " " + re.escape(str(file)))
        file.write_text("{")
        self.assertIn("or remove it, and 'kiln trust add' makes it anew", self.shell(add, USAGE).stderr)
        file.unlink()
        self.shell(add)
        (self.work / "mine.json").write_text('{"schema": "kiln.settings/1"}')
        for name, value in (("KILN_CONFIG", self.work / "mine.json"), ("XDG_CONFIG_HOME", self.work / "xdg"), ("HOME", self.work)):
            for each in ("KILN_CONFIG", "XDG_CONFIG_HOME", "HOME"):
                self.environment.pop(each, None)
            self.cured_by(add, USAGE, "Set KILN_CONFIG, XDG_CONFIG_HOME or HOME", **{name: value})
        (self.work / "config.json").write_text("{")
        self.environment["KILN_CONFIG"] = str(self.work / "config.json")
        self.cured_by("kiln search", USAGE, "name another in KILN_CONFIG", KILN_CONFIG=self.work / "mine.json")

    # ---- a registry ----

    def key(self, name, kind="ed25519", **how):
        self.run_command(KILN_REGISTRY, "key", self.work / name, "--type", kind, **how)
        return self.work / name

    @cures("registry/trust/keys.cpp: KILN_KEY_PASSPHRASE", "registry/cli/root.cpp: KILN_KEY_PASSPHRASE",
           "registry/trust/keys.cpp: chmod 600 …", "registry/trust/keys.cpp: kiln registry key", "registry/trust/root_draft.cpp: kiln registry key")
    def test_keys(self):
        self.environment["KILN_KEY_PASSPHRASE"] = "x" * 1025
        first = f"kiln registry key {self.work}/k --type ecdsa"
        self.cured_by(first, USAGE, "Set KILN_KEY_PASSPHRASE to a shorter one", KILN_KEY_PASSPHRASE="x" * 1024)
        attest = f"kiln registry attest tiny-op@1 --key {self.work}/k"
        self.shell(attest)
        del self.environment["KILN_KEY_PASSPHRASE"]
        self.cured_by(attest, TRUST, "Set KILN_KEY_PASSPHRASE", KILN_KEY_PASSPHRASE="x" * 1024)
        for mode in (0o640, 0o604, 0o620):
            (self.work / "k").chmod(mode)
            self.cured(attest, TRUST, f"chmod 600 {self.work}/k")
        del self.environment["KILN_KEY_PASSPHRASE"]
        self.assertIn("not encrypted: KILN_KEY_PASSPHRASE is not set", self.shell(f"kiln registry key {self.work}/plain").stdout)
        init = "kiln registry init --out root.json --root-key {0}/plain.pub --targets-key {0}/plain.pub --online-key {0}/{1}.pub"
        self.cured(init.format(self.work, "plain"), USAGE, "kiln registry key", more=f" {self.work}/other", after=USAGE)
        self.shell(init.format(self.work, "other"))
        self.cured(init.format(self.work, "no").replace("no.pub", "root.json").replace(str(self.work) + "/root", str(self.project) + "/root"),
                   TRUST, "kiln registry key", more=f" {self.work}/third", after=TRUST)

    @cures("registry/attest/attest.cpp: kiln registry key FILE --type ecdsa", "registry/folder/package_versions.cpp: kiln registry list")
    def test_what_is_attested(self):
        key = self.key("rsa", "rsa")
        done = self.shell(f"kiln registry attest tiny-op@1 --key {key}", TRUST)
        self.shell(re.search("'(kiln registry key FILE --type ecdsa)'", done.stderr).group(1).replace("FILE", "p256"))
        self.shell("kiln registry attest tiny-op@1 --key p256")
        (self.project / "CARD.md").write_text("# tiny-op\n")
        for first in ("attest tiny-op@9 --key p256", "describe tiny-op@9 CARD.md", "push tiny-op@9 --to http://127.0.0.1:9"):
            self.cured("kiln registry " + first, NOT_FOUND, "kiln registry list", after=NOT_FOUND)

    @cures("registry/cli/registry_command.cpp: KILN_REGISTRY", "registry/cli/site.cpp: KILN_REGISTRY")
    def test_a_registry_that_is_not_named(self):
        self.sign()
        key = self.key("p256", "ecdsa")
        signing = f"kiln registry sign --key {self.work}/keys/targets --key {self.work}/keys/online"
        for first in (f"kiln registry attest tiny-op@1 --key {key}", "kiln registry check", "kiln registry list", signing,
                      "kiln registry site out"):
            self.environment["KILN_REGISTRY"] = ""
            self.cured_by(first, USAGE, "set KILN_REGISTRY", KILN_REGISTRY=self.registry)

    @cures("registry/folder/layout.cpp: kiln registry publish", "registry/folder/layout.cpp: kiln registry push --to",
           "registry/cli/publish.cpp: kiln registry publish", "registry/cli/publish.cpp: kiln registry check", "registry/server/push.cpp: KILN_OFFLINE")
    def test_a_folder_is_no_server(self):
        done = self.shell("kiln registry list --registry https://registry.invalid", USAGE)
        self.assertIn("'kiln registry publish' and 'kiln registry push --to' take a URL", done.stderr)
        other = self.work / "other"
        done = self.shell(f"kiln registry push --to {other}", USAGE)
        self.assertIn("For a folder there is 'kiln registry publish'", done.stderr)
        publish = f"kiln registry publish --registry {other} {self.built}/one --allow-untested '*'"
        done = self.shell(publish + " --verify", USAGE)
        self.shell(publish)
        self.shell(re.search("'(kiln registry check)'", done.stderr).group(1) + f" --registry {other}")
        self.environment["KILN_OFFLINE"] = "1"
        self.cured_by("kiln registry push --to http://127.0.0.1:9", OFFLINE, "Unset it", after=NETWORK, KILN_OFFLINE=None)

    @cures("registry/folder/check.cpp: kiln registry sign", "registry/folder/publish.cpp: kiln registry sign --registry …",
           "registry/trust/sign/plan.cpp: kiln registry list", "registry/trust/sign/plan.cpp: kiln registry rotate",
           "registry/trust/sign/plan.cpp: kiln registry check", "registry/trust/draft.cpp: kiln registry sign",
           "registry/trust/sign/edits.cpp: kiln registry sign --registry … --key KEY")
    def test_a_signed_registry(self):
        self.sign()
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        publish = f"kiln registry publish --registry {self.registry} {self.built}/next --allow-untested '*'"
        done = self.shell(publish)
        said = done.stdout + done.stderr
        self.cured("kiln registry check", INTEGRITY, "kiln registry sign", more=keys)
        self.shell(re.search("'(kiln registry sign --registry [^']*)'", said).group(1) + keys)
        self.cured("kiln registry yank tiny-op@9 --reason x" + keys, NOT_FOUND, "kiln registry list", after=NOT_FOUND)
        other = self.key("other")
        done = self.shell(f"kiln registry sign --key {other}" + keys, TRUST)
        self.assertIn("Leave it out, or name it in the next root: 'kiln registry rotate'", done.stderr)
        self.shell("kiln registry sign" + keys)
        self.publish("four/alpha")
        self.shell(f"kiln registry sign --key {self.work}/keys/targets")
        online = f"{self.work}/keys/online"
        self.cured(f"kiln registry yank tiny-op@1 --reason x --key {online}", CONFLICT, "kiln registry sign .* --key KEY",
                   {"KEY": online})
        self.shell("kiln registry sign" + keys)
        (self.project / "junk").write_text("kiln.registry-draft/1\njunk")
        self.cured("kiln registry sign --draft junk" + keys, TRUST, "kiln registry sign", more=keys, after=TRUST)
        file = self.registry / "tiny-op/index.json"
        tags = json.loads(file.read_text())
        for annotations in [each["annotations"] for each in tags["manifests"] if "annotations" in each]:
            for name, version in annotations.items():
                annotations[name] = {"1": "2", "2": "1"}.get(version, version)
        self.replace(file, json.dumps(tags))
        done = self.shell("kiln registry sign" + keys, INTEGRITY)
        self.shell(re.search("'(kiln registry check)'", done.stderr).group(1), INTEGRITY)

    @cures("registry/cli/advisory.cpp: kiln registry sign", "registry/cli/advisory.cpp: kiln registry attest",
           "registry/cli/advisory.cpp: kiln registry list",
           "registry/trust/sign/plan.cpp: kiln registry advisory list", "loader/cli/verbs/audit.cpp: kiln audit")
    def test_advisories(self):
        done = self.shell("kiln registry advisory list", TRUST)
        self.assertIn("Sign it: 'kiln registry sign'", done.stderr)
        self.sign()
        self.shell("kiln registry advisory list")
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        self.cured("kiln registry advisory lift KA-9" + keys, NOT_FOUND, "kiln registry advisory list", after=NOT_FOUND)
        self.cured("kiln registry advisory publish KA-1 --text x --package none" + keys, NOT_FOUND, "kiln registry list",
                   after=NOT_FOUND)
        find = f"kiln registry advisory publish KA-1 --text x --compiler-digest {'ab' * 32}" + keys
        done = self.shell(find, NOT_FOUND)
        self.assertIn("tiny-op@1 has no provenance here, so it is not named: 'kiln registry attest'", done.stderr)
        (self.project / "toolchains.lock").write_text("")
        self.shell(f"kiln registry attest tiny-op@1 --key {self.work}/keys/targets --source https://example.org/k --commit "
                   f"{'0' * 40} --builder https://ci.example.org --toolchains toolchains.lock")
        self.assertNotIn("no provenance", self.shell(find, NOT_FOUND).stderr)
        self.install()
        self.cured("kiln audit none@1", NOT_FOUND, "kiln audit", after=NOT_FOUND)

    @cures("registry/trust/sign/start.cpp: kiln registry init", "registry/trust/sign/start.cpp: kiln registry rotate",
           "registry/cli/root.cpp: kiln registry init")
    def test_a_registry_without_a_root(self):
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        key = self.key("other")
        done = self.shell(f"kiln registry sign --key {key}", USAGE)
        self.assertIn("Make one with 'kiln registry init'", done.stderr)
        self.sign()
        self.shell("kiln registry sign" + keys)
        self.shell(f"kiln registry init --out other.json --root-key {self.work}/keys/root.pub --root-days 9"
                   f" --targets-key {self.work}/keys/targets.pub --online-key {self.work}/keys/online.pub")
        self.shell(f"kiln registry sign other.json --key {self.work}/keys/root")
        done = self.shell("kiln registry sign --root other.json" + keys, CONFLICT)
        self.assertIn("Make its successor: 'kiln registry rotate'", done.stderr)

    # ---- servers ----

    def pushed(self, **how):
        """A server that has the registry. What it then does with a request, `self.answers` says: None is honest."""
        self.answers = None
        server = OciServer(self, meddle=lambda request, serve: serve() if self.answers is None else self.answers(request, serve),
                           **how)
        self.run_command(KILN_REGISTRY, "push", "--registry", self.registry, "--to", server.url)
        return server

    @cures("loader/src/http/auth.cpp: docker login", "loader/src/http/auth.cpp: podman login",
           "loader/cli/verbs/login.cpp: docker login")
    def test_a_registry_that_wants_a_login(self):
        """By programs that write what docker and podman write."""
        server = self.pushed()
        word = base64.b64encode(b"user:word").decode()
        self.answers = lambda request, serve: serve() if request.headers["Authorization"] == f"Basic {word}" else (
            401, {"WWW-Authenticate": 'Basic realm="x"'}, b"{}")
        programs = self.work / "programs"
        programs.mkdir()
        for name, file in (("docker", "$HOME/.docker/config.json"), ("podman", "$XDG_RUNTIME_DIR/containers/auth.json")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nset -eu\n[ "$1" = login ]\nmkdir -p "$(dirname "{file}")"\n'
                               f'printf \'{{"auths": {{"%s": {{"auth": "{word}"}}}}}}\' "$2" >"{file}"\n')
            program.chmod(0o755)
        self.environment |= {"PATH": f"{programs}:{self.environment['PATH']}", "XDG_RUNTIME_DIR": str(self.work / "run")}
        for program, file in (("docker", self.work / ".docker/config.json"), ("podman", self.work / "run/containers/auth.json")):
            first = f"kiln info tiny-op --registry {server.url}"
            done = self.shell(first, NETWORK)
            self.shell(re.search(f"{program} login [^ ,]*[^ ,.]", done.stderr).group())
            self.shell(first)
            file.unlink()
        said = self.shell(f"kiln login {server.url}").stdout
        self.shell(re.search("docker login [^ ]*[^ .,\n]", said).group())
        self.assertIn(str(self.work / ".docker/config.json"), self.shell(f"kiln login {server.url}").stdout)

    @cures("loader/src/store/remote.cpp: kiln info NAME")
    def test_a_server_without_a_list(self):
        server = self.pushed()
        self.answers = lambda request, serve: (404, {}, b"{}") if request.path == "/v2/_catalog" else serve()
        self.cured(f"kiln search --registry {server.url}", NOT_FOUND, "kiln info NAME", {"NAME": "tiny-op"}, after=NOT_FOUND)

    @cures("loader/cli/verbs/doctor.cpp: KILN_REGISTRY")
    def test_what_doctor_finds(self):
        for offline in ("", "1"):  # to look for a folder asks nobody
            self.environment |= {"KILN_REGISTRY": str(self.work / "none"), "KILN_OFFLINE": offline}
            self.cured_by("kiln doctor", NOT_FOUND, "KILN_REGISTRY", KILN_REGISTRY=self.registry)

    @cures("loader/src/install/signature_policy.cpp: kiln trust require", "loader/src/install/signature_policy.cpp: kiln trust list")
    def test_a_statement_that_is_required(self):
        key, other = self.key("p256", "ecdsa"), self.key("other", "ecdsa")
        self.shell(f"kiln registry attest tiny-op@1 --key {key}")
        first = "kiln install tiny-op@1 --device cpu"
        required = f" {self.registry} --package 'tiny-*' --key "
        self.shell(f"kiln trust require{required}{other}.pub")
        self.cured(first, TRUST, "kiln trust list", after=TRUST)
        self.shell(f"kiln trust require{required}{key}.pub")
        file = self.work / ".config/kiln/trust.json"
        good = file.read_text()
        for spoilt in (good.replace('"signature"', '"nonsense"'), good.replace("BEGIN PUBLIC", "BEGIN NO")):
            self.assertNotEqual(spoilt, good)
            file.write_text(spoilt)
            self.cured(first, USAGE, "kiln trust require", more=f"{required}{key}.pub")

    @cures("registry/cli/list.cpp: kiln registry sign", "registry/server/push.cpp: kiln registry sign",
           "registry/server/push.cpp: kiln registry sign --onto URL", "registry/server/push.cpp: kiln registry sign --onto …")
    def test_a_signed_registry_and_its_server(self):
        self.sign()
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        server = self.pushed()
        push = f"kiln registry push --to {server.url}"
        # Another folder signs, and has sent it.
        shutil.copytree(self.registry, self.work / "other")
        for _ in range(2):
            self.shell(f"kiln registry sign --registry {self.work}/other{keys}")
        self.shell(f"{push} --registry {self.work}/other")
        self.shell("kiln registry sign" + keys)
        self.cured(push, CONFLICT, "kiln registry sign --onto URL", {"URL": server.url}, more=keys)
        # A version that was published and not signed.
        self.publish("next")
        said = self.shell("kiln registry list").stdout
        self.assertIn("not signed", said)
        self.cured(push, TRUST, "kiln registry sign", more=keys)
        self.assertNotIn("not signed", self.shell("kiln registry list").stdout)
        # The same, by who has no metadata.
        alone = self.work / "alone"
        self.run_command(KILN_REGISTRY, "publish", "--registry", alone, self.built / "four/alpha", "--allow-untested", "*")
        done = self.shell(f"{push} --registry {alone}")
        command = re.search("'(kiln registry sign --onto [^']*)'", done.stdout + done.stderr).group(1)
        self.shell(f"{command} --registry {alone} --root {self.work}/root.json{keys}")
        self.assertNotIn("clients do not see this", self.shell(f"{push} --registry {alone}").stderr)

    def served(self, folder):
        """A web server's URL for a folder."""
        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    @cures("registry/trust/sign/start.cpp: kiln registry sign … --root ROOT")
    def test_a_draft_and_a_server_that_moved_on(self):
        self.sign()
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        server = self.pushed()
        other = shutil.copytree(self.registry, self.work / "other")
        self.publish("next")
        self.shell("kiln registry sign" + keys)
        self.shell(f"kiln registry push --to {server.url}")
        self.shell(f"kiln registry yank tiny-op@1 --reason leaks --registry {other} --key {self.work}/keys/targets")
        first = f"kiln registry sign --registry {other} --onto {server.url}{keys}"
        said = self.shell(first, CONFLICT).stderr
        self.assertIn("the yank of tiny-op/1", said)
        shown, removed = re.search("'(kiln registry sign [^']* --root ROOT)', give it up, '(rm [^']*)'", said).groups()
        self.assertIn("yanked: ", self.shell(shown.replace("ROOT", f"{self.work}/root.json")).stdout)
        self.shell(removed)
        self.shell(first)

    @cures("registry/server/export.cpp: kiln registry sign --registry … --onto URL")
    def test_an_export_into_a_newer_one(self):
        self.sign()
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        other = shutil.copytree(self.registry, self.work / "other")
        self.shell("kiln registry yank tiny-op@1 --reason leaks" + keys)
        self.shell(f"kiln registry export-static --out {self.work}/www")
        self.cured(f"kiln registry export-static --registry {other} --out {self.work}/www", CONFLICT,
                   "kiln registry sign --registry [^ ]* --onto URL", {"URL": self.served(self.work / "www")}, more=keys)

    @cures("registry/folder/standing.cpp: kiln registry sign --registry … --onto URL --root ROOT")
    def test_two_folders_that_signed_apart(self):
        self.sign()
        keys = f" --key {self.work}/keys/targets --key {self.work}/keys/online"
        server = self.pushed()
        other = shutil.copytree(self.registry, self.work / "other")
        self.publish("next")
        self.shell("kiln registry sign" + keys)
        self.shell(f"kiln registry push --to {server.url}")
        self.shell(f"kiln registry yank tiny-op@1 --reason leaks --registry {other}{keys}")
        push = f"kiln registry push --registry {other} --to {server.url}"
        remedy = "kiln registry sign --registry [^ ]* --onto URL --root ROOT"
        said = self.shell(push, CONFLICT).stderr
        self.assertIn("this folder alone has: the yank of tiny-op/1", said)
        removed = re.search("remove ([^ ]*) and sign", said).group(1)
        self.assertEqual(re.search("remove ([^ ]*) and sign",
                                   self.shell(f"kiln registry sign --registry {other} --onto {server.url}{keys}", CONFLICT).stderr
                                   ).group(1), removed)
        self.cured(push, CONFLICT, remedy, {"kiln registry": f"rm -r {removed}; kiln registry", "URL": server.url,
                                            "ROOT": self.work / "root.json"}, more=keys)

    @cures("registry/trust/sign/edits.cpp: kiln registry sign FILE",
           "registry/cli/sign.cpp: kiln registry sign FILE --root ROOT --key KEY",
           "registry/cli/sign.cpp: kiln registry sign --registry %s --key KEY")
    def test_a_registry_that_two_must_sign(self):
        for name in ("root", "one", "two", "online"):
            self.key(name)
        root = self.work / "root.json"
        self.shell("kiln registry init --targets-threshold 2 --root-key {0}/root.pub --targets-key {0}/one.pub --targets-key"
                   " {0}/two.pub --online-key {0}/online.pub --out {0}/root.json".format(self.work))
        self.shell(f"kiln registry sign {root} --key {self.work}/root")
        keys = f" --key {self.work}/one --key {self.work}/online"
        said = self.shell(f"kiln registry sign --root {root}{keys}").stdout
        self.assertIn("clients see nothing yet", said)
        here, elsewhere = re.findall("'(kiln registry sign [^']*)'", said)
        file = self.work / "taken along"
        shutil.copy(self.registry / "kiln.tuf/draft", file)
        # The folder goes on meanwhile, so that the draft is another.
        self.publish("next")
        self.shell("kiln registry sign" + keys)
        first = f"kiln registry sign --draft '{file}' --key {self.work}/online"
        done = self.shell(first, CONFLICT)
        shown = re.search("'(kiln registry sign FILE)'", done.stderr).group(1)
        self.shell(shown.replace("FILE", f"'{file}'") + f" --root {root}")
        self.shell(elsewhere.replace("FILE", f"'{file}'").replace("ROOT", str(root)).replace("KEY", f"{self.work}/two"))
        self.assertIn("signed tiny-op/1", self.shell(first).stdout)
        self.shell("kiln registry sign" + keys)
        self.assertIn("signed tiny-op/2", self.shell(here.replace("KEY", f"{self.work}/two") + f" --key {self.work}/online").stdout)


if __name__ == "__main__":
    main()
