#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the shells offer after `kiln completions`: real bash, zsh and fish, at a terminal where the shell
completes only there. A shell that is not installed is skipped by name.

Wants KILN_BIN, and KILN_REGISTRY with geglu-mlp@1.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

BIN = pathlib.Path(os.environ["KILN_BIN"])
# line typed -> words that must be offered or typed on, words that must not
CASES = [
    ("kiln ins", ["install"], ["resolve"]),
    ("kiln install --ref", ["--refresh"], ["--registry"]),
    ("kiln install --device c", ["cpu", "cuda:N"], ["auto"]),
    ("kiln path geg", ["geglu-mlp@1"], []),
    ("kiln path geglu-mlp@", ["geglu-mlp@1"], []),
    ("kiln completions ", ["bash", "fish", "zsh"], ["install"]),
    ("kiln list --cache fold", ["folder-one"], ["file-one"]),
    ("kiln --vers", ["--version"], []),
    ("kiln regi", ["registry"], ["resolve"]),
    ("kiln registry pub", ["publish"], ["path"]),
    ("kiln registry publish --reg", ["--registry"], ["--records"]),
    ("kiln build --packages fold", ["folder-one"], ["file-one"]),
    ("kiln install geglu-mlp@1 --variant cpu-x86", ["cpu-x86-64-v"], ["cpu-armv8-a"]),  # which all of them begin with
    ("kiln resolve geglu-mlp@1 --explain cpu-a", ["cpu-armv8-a"], ["cpu-x86-64-v3"]),
]


class Completions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        (cls.work / "folder-one").mkdir()
        (cls.work / "file-one").touch()
        cls.environment = {k: v for k, v in os.environ.items() if k == "KILN_UNSIGNED" or not k.startswith("KILN_")} | {
            "PATH": f"{BIN}:{os.environ['PATH']}", "KILN_CACHE": str(cls.work / "cache"), "TERM": "dumb",
            "KILN_REGISTRY": os.environ["KILN_REGISTRY"], "HOME": str(cls.work), "PS1": "", "LC_ALL": "C.UTF-8"}
        subprocess.run([BIN / "kiln", "install", "--quiet", "--device", "cpu", "geglu-mlp@1"], check=True,
                       stdout=subprocess.DEVNULL, env=cls.environment)
        for shell in ("bash", "zsh", "fish"):
            script = subprocess.check_output([BIN / "kiln", "completions", shell], env=cls.environment)
            (cls.work / f"kiln.{shell}").write_bytes(script)

    def need(self, shell):
        if shutil.which(shell) is None:
            self.skipTest(f"{shell} is not installed")

    def at_a_terminal(self, command, setup, line, offered):
        """What appears, up to the words wanted, after the line and two tabs have been typed into an interactive shell."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.work)
            os.execvpe(command[0], command, self.environment)
        shown = ""

        def read(done, seconds):
            nonlocal shown
            end = time.monotonic() + seconds
            while time.monotonic() < end and not done():
                if select.select([terminal], [], [], 0.05)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace")

        try:
            os.write(terminal, (setup + "; echo rea''dy\n").encode())
            read(lambda: re.search(r"(?m)^.*ready\r?$", shown), 60)
            self.assertIn("ready", shown)
            shown = ""
            os.write(terminal, (line + "\t\t").encode())
            read(lambda: all(word in shown for word in offered), 20)
            read(lambda: False, 0.2)  # what comes along with it
            os.write(terminal, b"\x15")  # forget the line
            return shown
        finally:
            os.close(terminal)
            os.waitpid(pid, 0)

    def check_terminal(self, shell, command, setup):
        self.need(shell)
        for line, offered, absent in CASES:
            with self.subTest(shell=shell, line=line):
                shown = self.at_a_terminal(command, setup, line, offered)
                shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|[\x07\x08]", "", shown)
                for word in offered:
                    self.assertIn(word, shown)
                for word in absent:
                    self.assertNotIn(word, shown)

    def test_bash(self):
        self.check_terminal("bash", ["bash", "--norc", "-i"],
                            "bind 'set bell-style none'; source ./kiln.bash")

    def test_zsh(self):
        self.check_terminal("zsh", ["zsh", "-f", "-i"],
                            "autoload -Uz compinit; compinit -u -D; setopt NO_BEEP; PROMPT=; source ./kiln.zsh")

    def test_fish(self):
        self.need("fish")
        for line, offered, absent in CASES:
            with self.subTest(line=line):
                shown = subprocess.check_output(
                    ["fish", "--no-config", "-c", f"source ./kiln.fish; complete -C '{line}'"], text=True,
                    cwd=self.work, env=self.environment)
                words = [row.split("\t")[0].rstrip("/") for row in shown.splitlines()]
                for word in offered:
                    self.assertTrue([each for each in words if each.startswith(word)], words)
                for word in absent:
                    self.assertNotIn(word, words)

    def test_every_command_is_offered_with_its_summary(self):
        help_text = subprocess.check_output([BIN / "kiln", "--help"], text=True)
        commands = re.findall(r"^  ([a-z]+) {2,}\S", help_text.split("Subcommands:")[1], re.M)
        self.assertGreater(len(commands), 6)
        offered = subprocess.check_output([BIN / "kiln", "__complete", ""], text=True, env=self.environment)
        summaries = dict(line.split("\t") for line in offered.splitlines())
        self.assertEqual(set(commands), set(summaries))
        self.assertTrue(all(summaries.values()))

    def test_what_nobody_knows_is_not_offered(self):
        for words in (["resolve", "--variant", ""], ["resolve", "nosuch@1", "--variant", ""], ["resolve", "@", "--variant", ""],
                      ["registry", "push", ""]):
            with self.subTest(words=words):
                self.assertEqual(subprocess.check_output([BIN / "kiln", "__complete", *words], env=self.environment), b"")


if __name__ == "__main__":
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    unittest.main()
