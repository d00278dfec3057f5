#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is no file, in the place of each file that a command reads or writes, is refused at once: a pipe that nobody
writes to, which would be waited for, and a device that never ends. A command line's <(…) is read.

    pipes_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import json
import os
import pathlib
import re
import subprocess

from world import KILN, KILN_REGISTRY, LOCK, OK, USAGE, World, main

# Each option that names a file, by command, with what else the command needs; {} is the file. None: it is not read then.
READ = {
    "kiln add": {"--lock": "tiny-op --lock {}", "--requirements": "tiny-op --requirements {}", "--from": "tiny-op --from {}"},
    "kiln remove": {"--lock": "tiny-op --lock {}", "--requirements": "tiny-op --requirements {}", "--from": None},
    "kiln update": {"--lock": "--lock {}", "--requirements": "--requirements {}", "--from": "--from {}"},
    "kiln lock": {"--lock": "tiny-op@1 --lock {}", "--requirements": "--requirements {}", "--from": "tiny-op@1 --from {}",
                  "--hosts": "--check --hosts {}"},
    "kiln audit": {"--lock": "--lock {}", "--host": "--host {}", "--from": "--from {}"},
    "kiln outdated": {"--lock": "--lock {}"},
    "kiln install": {"--lock": "tiny-op@1 --lock {}", "--host": "tiny-op@1 --host {}", "--from": "tiny-op@1 --from {}"},
    "kiln resolve": {"--lock": "tiny-op@1 --lock {}", "--host": "tiny-op@1 --host {}", "--from": "tiny-op@1 --from {}"},
    "kiln path": {"--lock": "tiny-op@1 --lock {}", "--from": "tiny-op@1 --from {}"},
    "kiln test": {"--lock": "tiny-op@1 --lock {}", "--from": "tiny-op@1 --from {}", "--share": "tiny-op@1 --share {}"},
    "kiln tune": {"--lock": "tiny-op@1 --lock {}", "--from": "tiny-op@1 --from {}", "--shapes": None},
    "kiln diff": {"--from": "tiny-op@1 tiny-op@2 --from {}"},
    "kiln doctor": {"--from": "tiny-op@1 --from {}"},
    "kiln host": {"--from": "tiny-op@1 --from {}"},
    "kiln info": {"--from": "tiny-op@1 --from {}"},
    "kiln search": {"--from": "--from {}"},
    "kiln bundle create": {"--lock": "tiny-op@1 -o out.tar --lock {}", "--host": "tiny-op@1 -o out.tar --host {}",
                           "--output": "tiny-op@1 -o {}", "--from": "tiny-op@1 -o out.tar --from {}"},
    "kiln bundle install": {"--lock": "b.tar --lock {}", "bundle": "{}", "--from": None},
    "kiln trust add": {"--root": "/r --root {}"},
    "kiln trust require": {"--key": "/r --key {}"},
    "kiln-registry publish": {"--records": "{built} --records {}"},
    "kiln-registry key": {"file": "{}"},
    "kiln-registry init": {
        "--root-key": "--root-key {} --targets-key k.pub --online-key k.pub --out o.json",
        "--targets-key": "--root-key k.pub --targets-key {} --online-key k.pub --out o.json",
        "--online-key": "--root-key k.pub --targets-key k.pub --online-key {} --out o.json",
        "--out": "--root-key root.pub --targets-key k.pub --online-key online.pub --out {}"},
    "kiln-registry rotate": {
        "root": "{} --root-key k.pub --targets-key k.pub --online-key k.pub --out o.json",
        "--root-key": "r.json --root-key {} --targets-key k.pub --online-key k.pub --out o.json",
        "--targets-key": "r.json --root-key root.pub --targets-key {} --online-key k.pub --out o.json",
        "--online-key": "r.json --root-key root.pub --targets-key k.pub --online-key {} --out o.json",
        "--out": "r.json --root-key root.pub --targets-key k.pub --online-key online.pub --out {}"},
    "kiln-registry sign": {"file": "{} --key k", "--root": "--root {} --key k", "--key": "--key {}", "--draft": "--draft {} --key k"},
    "kiln-registry delegate": {"--role-key": "them --package 'tiny-*' --role-key {} --key k", "--root": None,
                               "--key": "them --package 'tiny-*' --role-key k.pub --key {}",
                               "--draft": "them --package 'tiny-*' --role-key k.pub --key k --draft {}"},
    "kiln-registry yank": {"--root": None, "--key": "tiny-op@1 --reason x --key {}", "--draft": "tiny-op@1 --reason x --key k --draft {}"},
    "kiln-registry advisory publish": {"--root": None, "--key": "KA-1 --text x --key {}",
                                       "--draft": "KA-1 --text x --key k --draft {}"},
    "kiln-registry advisory lift": {"--root": None, "--key": "KA-1 --key {}",
                                    "--draft": "KA-1 --key k --draft {}"},
    "kiln-registry attest": {"--key": "tiny-op@1 --key {}", "--records": "tiny-op@1 --key p256 --only tests --records {}",
                             "--toolchains": "tiny-op@1 --key p256 --source https://x --commit {commit} --builder https://x --toolchains {}"},
    "kiln-registry describe": {"card": "tiny-op {}"},
}
VARIABLES = {"KILN_LOCK": "kiln install tiny-op@1", "KILN_CONFIG": "kiln search"}


class Pipes(World):
    def setUp(self):
        super().setUp()
        for name, kind in (("k", "ed25519"), ("root", "ed25519"), ("online", "ed25519"), ("p256", "ecdsa")):
            self.run_command(KILN_REGISTRY, "key", self.project / name, "--type", kind)
        self.run_command(KILN_REGISTRY, "init", "--root-key", "root.pub", "--targets-key", "k.pub", "--online-key", "online.pub",
                         "--out", "r.json")
        self.kiln("add", "tiny-op")
        self.kiln("bundle", "create", "tiny-op@1", "--device", "cpu", "-o", "b.tar")
        self.environment["PATH"] = f"{pathlib.Path(KILN).parent}:/usr/bin:/bin"
        self.pipe, self.device = self.work / "p1", self.work / "d1"  # no word of an error
        os.mkfifo(self.pipe)
        self.device.symlink_to("/dev/zero")

    def shell(self, command):
        return subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=20, env=self.environment,
                              cwd=self.project)

    def files_of(self, program, words=()):
        """{"kiln cache gc": its options that name a file}, by what --help says."""
        said = self.run_command(program, *words, "--help").stdout
        name = " ".join([pathlib.Path(program).name, *words])
        found = {}
        taken = re.findall(r"^ +(?:-\w,)?(--[a-z-]+|[a-z_-]+) +(?:FILE|KEY)\b", said, re.M)
        if taken:
            found[name] = set(taken)
        for inner in re.findall(r"^  ([a-z-]+)  ", said.partition("ommands:")[2], re.M):
            if inner not in ("help", "bench", "build", "pack", "new", "registry"):
                found |= self.files_of(program, [*words, inner])
        return found

    def test_each_option_that_names_a_file_has_a_row(self):
        found = self.files_of(KILN) | self.files_of(KILN_REGISTRY)
        self.assertGreater(sum(map(len, found.values())), 40)
        self.assertEqual({name: sorted(taken) for name, taken in found.items()}, {name: sorted(taken) for name, taken in READ.items()})

    def test_what_is_no_file_is_refused_at_once(self):
        for command, options in READ.items():
            for option, words in options.items():
                for place in (self.pipe, self.device):
                    if words is None:
                        continue
                    with self.subTest(command=command, option=option, place=place.name):
                        # A device that is written to, or a link in a new file's place, is another matter.
                        if place == self.device and option in ("--out", "--output", "--share", "file"):
                            continue
                        line = f"{command} {words}".replace("{built}", str(self.built / "one")).replace("{commit}", "0" * 40).replace("{}", str(place))
                        if command.startswith("kiln-registry") and "--registry" in self.run_command(
                                KILN_REGISTRY, command.split()[1], "--help").stdout and "{} --key" not in words:
                            line += f" --registry {self.registry}"
                        done = self.shell(line)
                        self.assertNotIn(done.returncode, (OK, 1), line + done.stdout + done.stderr)
                        # A key's file may be of any kind: none is written over.
                        expected = "is there already" if command == "kiln-registry key" else "pipe|device|not a regular file"
                        self.assertRegex(done.stdout + done.stderr, expected, line)
        self.assertTrue(self.pipe.is_fifo())

    def test_a_dash_is_no_stream_and_no_file(self):
        before = sorted(os.listdir(self.project))
        for command, options in READ.items():
            for option, words in options.items():
                if words is None:
                    continue
                with self.subTest(command=command, option=option):
                    done = self.shell(f"{command} {words}".replace("{built}", "b").replace("{commit}", "0" * 40).replace("{}", "-"))
                    self.assertEqual(done.returncode, USAGE, done.stderr)
                    self.assertRegex(done.stderr, f"{option}: found -, which is no stream here, expected a path; a file of this name is ./-")
        self.assertEqual(sorted(os.listdir(self.project)), before)

    def test_nor_where_a_variable_names_it(self):
        for name, command in VARIABLES.items():
            for place in (self.pipe, self.device):
                self.environment[name] = str(place)
                done = self.shell(command)
                self.assertNotIn(done.returncode, (OK, 1), name + done.stderr)
                self.assertRegex(done.stderr, "pipe|device", name)
                del self.environment[name]
        for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
            (self.work / "config.json").unlink(missing_ok=True)
            os.mkfifo(self.work / "config.json")
            self.environment[name] = str(self.work if name == "DOCKER_CONFIG" else self.work / "config.json")
            self.assertIn("it is a pipe or a device", self.shell("kiln login https://registry.example").stdout)

    def test_what_a_command_line_has_read_is_read(self):
        facts = self.kiln("host", "--json")
        (self.project / "facts.json").write_text(facts)
        (self.project / "stated.json").write_text(json.dumps({"schema": "kiln.requirements/1", "kernels": {"tiny-op": {"version": 1}}}))
        for line in ("kiln resolve tiny-op@1 --device cpu --host <(sleep 0.2; cat facts.json)",
                     "cat facts.json | kiln resolve tiny-op@1 --device cpu --host /dev/stdin",
                     "kiln resolve tiny-op@1 --device cpu --host /dev/stdin < facts.json",
                     "kiln lock --requirements <(cat stated.json)", "kiln trust require /r --key <(cat p256.pub)",
                     "kiln-registry attest tiny-op@1 --registry ../registry --key p256"):
            done = self.shell(line)
            self.assertEqual(done.returncode, OK, line + done.stdout + done.stderr)
        self.assertEqual(self.shell("kiln install tiny-op@1 --lock <(cat kiln.lock)").returncode, LOCK)


if __name__ == "__main__":
    main()
