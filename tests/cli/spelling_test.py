#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the commands of kiln, kiln build and kiln registry are spelled: what each of them takes, which older spellings
work, and what is said of those that do not.

    spelling_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import os
import pathlib
import re

from world import KILN, KILN_REGISTRY, NOT_FOUND, OK, USAGE, World, main

PROGRAMS = {"kiln": KILN, "kiln registry": KILN_REGISTRY, "kiln build": pathlib.Path(KILN).with_name("kiln-build")}
# It prints a script.
WITHOUT_DOCUMENT = {"kiln completions"}

# Program, words, exit code, what is said. REGISTRY is a folder with tiny-op@1.
SPELLINGS = [
    ("kiln registry", "list --registry REGISTRY --json", OK, "kiln.registry-list/1"),
    ("kiln registry", "list --json --quiet", OK, "kiln.registry-list/1"),
    ("kiln registry", "key k -q", OK, "key "),
    ("kiln registry", "key k --type dsa", USAGE, 'found "dsa", expected one of ed25519, ecdsa, rsa'),
    ("kiln registry", "sign --key a --key b -q", NOT_FOUND, "open key a"),
    ("kiln registry", "sign REGISTRY/none --key k", NOT_FOUND, "none"),
    ("kiln registry", "yank tiny-op --reason slow -q", USAGE, "expected one version, like geglu-mlp@1"),
    ("kiln registry", "yank tiny-op@1", USAGE, "--reason is required"),
    ("kiln registry", "sign --days 0", USAGE, '--days: found "0", expected a whole number from 1 to 3650'),
    ("kiln registry", "init --threshold 1001 --out f", USAGE, "expected a whole number from 1 to 1000"),
    ("kiln registry", "serve --port 65536", USAGE, '--port: found "65536", expected a whole number from 0 to 65535'),
    ("kiln registry", "attest tiny-op@1 --key k --only sbom,song", USAGE, 'found "song"'),
    ("kiln registry", "bins 16", USAGE, "unknown command 'bins'"),
    ("kiln registry", "help yank", OK, "Usage: kiln registry yank"),
    ("kiln registry", "publsh", USAGE, "did you mean publish?"),
    ("kiln build", "--jobs 0", USAGE, '--jobs: found "0", expected a whole number from 1 to 4096'),
    ("kiln build", "-j many", USAGE, '--jobs: found "many"'),
    ("kiln build", "--list ./row-scale --json", OK, "kiln.build.list/1"),
    ("kiln build", "-o taken ./row-scale --only cpu-*-v3", USAGE, "which is a file; expected a folder"),
    ("kiln build", "--out taken --out a:b ./row-scale --only cpu-*-v3", USAGE, "with a colon or a comma in its name"),
    ("kiln build", "--out a,b ./row-scale --only cpu-*-v3", USAGE, "with a colon or a comma in its name"),
    ("kiln build", "--outt x", USAGE, "did you mean --out?"),
    ("kiln build", "pack ./row-scale", 15, 'has no "binaries"'),
    ("kiln build", "pack", USAGE, "package is required"),
    ("kiln build", "pack nowhere", NOT_FOUND, "name the folder of a package"),
    ("kiln", "new other --json", OK, "kiln.new/1"),
    ("kiln", "list --json list.json", USAGE, "list.json"),
    ("kiln", "cache dir --json dir.json", USAGE, "--json prints on stdout, as in '--json > dir.json'"),
    ("kiln", "trust list --quiet", OK, ""),
    ("kiln", "login REGISTRY -q", OK, "needs no login"),
]


class Spelling(World):
    def offered(self, name, *words):
        done = self.run_command(PROGRAMS[name], "__complete", *words)
        return [line.split("\t")[0] for line in done.stdout.splitlines()]

    def test_every_command_takes_quiet_and_json(self):
        def commands(name, path):
            below = re.findall(r"^  ([a-z-]+)\b", self.run_command(PROGRAMS[name], *path, "--help").stdout.partition(
                "Subcommands:")[2].partition("\n\n")[0], re.M)
            yield from ([path] if not below or name == "kiln build" else [])
            for word in below:
                yield from commands(name, [*path, word])

        seen = 0
        for name in PROGRAMS:
            for path in ([[], ["new"], ["pack"]] if name == "kiln build" else commands(name, [])):
                if path == ["help"]:  # its words are another command's
                    continue
                with self.subTest(program=name, command=path):
                    flags = self.offered(name, *path, "-")
                    self.assertIn("-q", flags)
                    self.assertIn("--quiet", flags)
                    self.assertEqual("--json" in flags, " ".join([name, *path]) not in WITHOUT_DOCUMENT)
                    seen += 1
        self.assertGreater(seen, 40)

    def test_spellings(self):
        self.kiln("new", "row-scale")
        (self.project / "taken").touch()
        for name, words, code, says in SPELLINGS:
            with self.subTest(program=name, words=words):
                words = words.replace("REGISTRY", str(self.registry)).split()
                done = self.run_command(PROGRAMS[name], *words, code=code, says=says)
                if "--json" in words and code == OK:
                    json.loads(done.stdout)
                if code != OK:
                    self.assertTrue(done.stderr.startswith(name + ": "), done.stderr)

    def test_every_program_opens_nothing_in_the_place_of_a_closed_stream(self):
        for name, words in (("kiln", "list"), ("kiln registry", "list"), ("kiln build", "--list ./row-scale")):
            with self.subTest(program=name):
                if name == "kiln build":
                    self.kiln("new", "row-scale")
                self.run_command("/bin/sh", "-c", f'"$0" {words} >&- 2>&-', PROGRAMS[name])

    def test_every_program_says_which_file_grew_over_its_limit(self):
        for name, words, file, code in (("kiln", f"trust add {self.registry} --unsigned", self.work / ".config/kiln/trust.json", 9),
                                        ("kiln registry", "key k", self.project / "k", 9), ("kiln build", "new other", self.project, 15)):
            with self.subTest(program=name):
                done = self.run_command("/bin/bash", "-c", f'ulimit -f 0; "$0" {words}', PROGRAMS[name], code=code,
                                        says="File too large. Raise the limit of a file's size (ulimit -f)")
                self.assertIn(f"write {file}", done.stderr)
                self.assertEqual(os.listdir(self.project), [])


if __name__ == "__main__":
    main()
