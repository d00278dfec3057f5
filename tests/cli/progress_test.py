#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a terminal shows of four downloads: a line each, no wider than it, and none of them left behind by a result,
an error or Ctrl-C. Colours where they are wanted. recording.txt has it for a reader; KILN_RECORDING=write writes it anew.

    progress_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from terminal import at_a_terminal, slow_registry

NAMES = ("alpha", "beta", "delta", "gamma")
DOWNLOAD = r"^ *\d+%"
RECORDING = pathlib.Path(__file__).with_name("recording.txt")


class Downloads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        subprocess.run([FIXTURE, cls.folder / "built"], check=True)
        for name in NAMES:
            subprocess.run([KILN_REGISTRY, "publish", "--registry", cls.folder / "registry", cls.folder / "built/four" / name,
                            "--allow-untested", "*"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.environment = {"HOME": folder.name, "PATH": "/usr/bin:/bin", "KILN_CACHE": folder.name + "/cache",
                            "KILN_UNSIGNED": "http://127.0.0.1", "TERM": "xterm"}
        self.words = ["install", "--device", "cpu", *(f"{name}@1" for name in NAMES)]

    def install(self, code, pause=0.08, refuse="", **how):
        """The final screen, and the one that had the most downloads on it."""
        self.environment["KILN_REGISTRY"] = slow_registry(self, self.folder / "registry", pause, refuse)
        fullest = []

        def watch(screen):
            nonlocal fullest
            if len(screen.matching(DOWNLOAD)) >= len([row for row in fullest if "%" in row]):
                fullest = screen.lines()

        status, shown, screen = at_a_terminal(KILN, *self.words, environment=self.environment, watch=watch, **how)
        self.assertEqual(status, code, shown)
        self.assertEqual(screen.matching(DOWNLOAD), [], "a download stands there still")
        return screen, fullest


class Progress(Downloads):
    def test_four_downloads_have_a_line_each(self):
        screen, fullest = self.install(0)
        downloads = [row for row in fullest if "%" in row]
        self.assertEqual([row.split()[-2] for row in downloads], [f"{name}@1" for name in NAMES])
        for row in downloads:
            self.assertRegex(row, r"^ *\d+%  \S+ kB of 201\.7 kB, \S+ kB/s, \d+ s left  \w+@1 cpu-x86-64$")
            self.assertLess(len(row), 78)
        lines = screen.lines()
        self.assertEqual(sorted(lines[:4]), [f"fetched {name}@1 cpu-x86-64, 201.7 kB" for name in NAMES])
        self.assertTrue(lines[4].startswith("alpha@1 cpu-x86-64  /"), lines)

    def test_a_registry_that_lets_wait_is_named_while_it_does(self):
        self.environment["KILN_REGISTRY"] = slow_registry(self, self.folder / "registry", 0, answer=0.5)
        seen = []
        status, shown, screen = at_a_terminal(KILN, "install", "--device", "cpu", "alpha@1", environment=self.environment,
                                              watch=lambda screen: seen.extend(screen.matching("^asking for ")))
        self.assertEqual(status, 0, shown)
        self.assertIn("asking for alpha@1", seen)
        self.assertEqual(screen.matching("asking for"), [])

    def test_a_narrow_terminal_keeps_the_names(self):
        for columns, row in ((50, r"^ *\d+%  \S+ kB/s, \d+ s left  alpha@1 cpu-x86-64$"), (27, r"^ *\d+%  alpha@1 cpu-x86-64$"),
                             (16, r"^ *\d+%  alpha@1?$")):
            with self.subTest(columns=columns):
                self.environment["KILN_CACHE"] += "x"
                _, fullest = self.install(0, pause=0.04, columns=columns)
                self.assertEqual(len([each for each in fullest if "%" in each]), 4, fullest)
                self.assertTrue(all(len(each) < columns - 2 for each in fullest if "%" in each))
                self.assertRegex([each for each in fullest if "%" in each][0], row)

    def test_an_error_in_the_middle_stands_on_a_line_of_its_own(self):
        screen, fullest = self.install(4, refuse="delta")
        self.assertGreaterEqual(len([row for row in fullest if "%" in row]), 3)
        errors = screen.matching("kiln: ")
        self.assertEqual(len(errors), 1)
        self.assertTrue(errors[0].startswith("kiln: get layer of delta@1 cpu-x86-64: status 404"), errors)
        self.assertEqual(screen.colours, ["1;31", "0"])

    def test_ctrl_c_leaves_the_terminal_clean(self):
        screen, _ = self.install(130, interrupt_at=b"s left")
        self.assertTrue(screen.lines()[0].startswith("kiln: "), screen.lines())
        self.assertIn("nothing half-done was installed", "".join(screen.lines()))

    def test_colours_only_where_they_are_wanted(self):
        self.environment["KILN_REGISTRY"] = str(self.folder / "registry")
        self.environment["KILN_UNSIGNED"] = "/"
        for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)):
            environment = self.environment | more
            _, _, screen = at_a_terminal(KILN, "resolve", "alpha@1", "--device", "cpu", environment=environment)
            self.assertEqual(screen.colours, ["1;32", "0"] if coloured else [])
            self.assertEqual(len(screen.matching(r"^> cpu-x86-64 +chosen")), 1)
            _, shown, screen = at_a_terminal(KILN, "fly", environment=environment)
            self.assertEqual(screen.colours, ["1;31", "0"] if coloured else [])
            self.assertEqual(shown.startswith(b"\x1b[1;31mkiln:\x1b[0m read 'kiln'"), coloured)

    def test_no_terminal_gets_a_line_for_each_download_at_its_end(self):
        self.environment["KILN_REGISTRY"] = slow_registry(self, self.folder / "registry", 0.02)
        done = subprocess.run([KILN, *self.words], capture_output=True, text=True, env=self.environment, check=True)
        self.assertEqual(sorted(done.stderr.splitlines()), [f"fetched {name}@1 cpu-x86-64, 201.7 kB" for name in NAMES])
        self.assertNotIn("\x1b", done.stdout + done.stderr)


class Recording(Downloads):
    """recording.txt is what is printed today, but for what is another in each run."""

    HEAD = """\
What kiln prints, which tests/cli/progress_test.py compares with this. What each run has anew is #, NAME or ~, and
lines that come in any order are sorted. Written anew by

    KILN_RECORDING=write ctest --preset dev -R cli.progress
"""

    def masked(self, line):
        for pattern, mask in ((r"^ *\d+%", " ##%"), (r"\S+ kB of", "##.# kB of"), (r"\S+ kB/s", "### kB/s"),
                              (r"\d+ s left", "# s left"), (r"127\.0\.0\.1:\d+", "127.0.0.1:#"),
                              (r"^kiln: (get \S+|copy a blob): stopped", "kiln: ~: stopped"),  # as Ctrl-C finds it
                              (r"/v2/\w+/", "/v2/NAME/"), (r"[0-9a-f]{12,}", "#"), (re.escape(self.environment["HOME"]), "~")):
            line = re.sub(pattern, mask, line)
        return line.rstrip()

    def test_it_is_what_is_printed(self):
        self.parts = [self.HEAD]
        install = " ".join(["kiln", *self.words])

        def add(what, lines):
            lines = [self.masked(line) for line in lines if line]
            fetched = [line for line in lines if line.startswith("fetched")]
            self.parts.append("\n".join([f"==== {what}", *sorted(fetched), *(each for each in lines if each not in fetched), ""]))

        for code, how, title in ((0, {}, "a terminal of 80 columns"), (0, {"columns": 50}, "50 columns"),
                                 (0, {"columns": 27}, "27 columns"), (4, {"refuse": "delta", "pause": 0.2}, "the registry has lost a layer"),
                                 (130, {"interrupt_at": b"s left"}, "Ctrl-C")):
            self.environment["KILN_CACHE"] += "x"
            screen, fullest = self.install(code, **how)
            if code != 130:
                add(f"{install}: {title}, while it runs", [row for row in fullest if "%" in row])
            if not how.get("columns"):
                add(f"{title}, at its end: exit code {code}", screen.text())
        for more in ({}, {"NO_COLOR": "1"}):
            _, shown, _ = at_a_terminal(KILN, "list", "--fly", environment=self.environment | more)
            add(" ".join([*(f"{key}={value}" for key, value in more.items()), "kiln list --fly: the bytes"]), [repr(shown)[2:-1]])
        self.environment["KILN_CACHE"] += "x"
        done = subprocess.run([KILN, *self.words], capture_output=True, text=True, env=self.environment, check=True)
        add(f"{install} 2>&1 >/dev/null | cat", done.stderr.splitlines())
        found = "\n".join(self.parts)
        if os.environ.get("KILN_RECORDING") == "write":
            RECORDING.write_text(found, encoding="utf-8")
        self.maxDiff = None
        self.assertEqual(RECORDING.read_text(encoding="utf-8"), found, "write it anew: KILN_RECORDING=write")


if __name__ == "__main__":
    KILN_REGISTRY, KILN, FIXTURE = (os.path.abspath(each) for each in sys.argv[1:4])
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
