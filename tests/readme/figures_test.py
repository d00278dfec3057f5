#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ci/figures and ci/record_quickstart on a small tree: a document whose figure differs from its data is
refused and rewritten, and so is a figure that has no data. figures_test.py runs without arguments."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = "On 2 cores that takes 6 minutes\nand leaves 700 MB in `build/`."


class Figures(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path in ("README.md", "docs", "ci/toolchains.lock", "ci/quickstart", "ci/results", "loader/bench/results",
                     "tests/http/results", "tests/trust/results",
                     *(each.relative_to(SOURCE) for each in SOURCE.glob("packages/*/bench/results"))):
            copy = self.root / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", SOURCE / path, copy], check=True)
        self.readme = self.root / "README.md"
        self.text = self.readme.read_text(encoding="utf-8")

    def figures(self, *words):
        done = subprocess.run([SOURCE / "ci/figures", "--root", self.root, *words], text=True,
                              capture_output=True, check=False)
        return done.returncode, done.stderr

    def edit(self, old, new):
        self.assertIn(old, self.text)
        self.text = self.text.replace(old, new)
        self.readme.write_text(self.text, encoding="utf-8")

    def test_the_documents_say_what_the_data_say(self):
        self.assertEqual(self.figures("--check"), (0, ""))

    def test_another_figure_is_refused_and_rewritten(self):
        before = self.text
        self.edit("MB of pinned compilers", "MB  of pinned\ncompilers")  # line breaks do not matter
        self.assertEqual(self.figures("--check")[0], 0)
        self.edit("fetches 123 MB", "fetches 124 MB")
        code, error = self.figures("--check")
        self.assertEqual(code, 1)
        self.assertIn("says 124, the data say 123", error)
        self.assertEqual(self.figures(), (0, ""))
        self.assertEqual(self.readme.read_text(encoding="utf-8").split(), before.split())

    def test_new_data_are_refused_until_the_document_has_them(self):
        results = self.root / "packages/geglu-mlp/bench/results/nvidia-h200-sweep.json"
        data = json.loads(results.read_text(encoding="utf-8"))
        data["shapes"][0]["eager_us"] *= 100
        results.write_text(json.dumps(data), encoding="utf-8")
        self.assertIn("says 1.27, the data say 1.3", self.figures("--check")[1])

    def test_a_figure_without_data_is_refused(self):
        self.edit("## Limits", "It takes 17 ms.\n\n## Limits")
        code, error = self.figures("--check")
        self.assertEqual(code, 1)
        self.assertIn("\"17 ms\" has no data file", error)

    def test_a_sentence_that_is_gone_is_refused(self):
        self.edit("MB of pinned compilers", "MB of compilers")
        code, error = self.figures("--check")
        self.assertEqual(code, 1)
        self.assertIn("has this sentence 0 times, expected once: \"fetches 123 MB of pinned compilers\"", error)

    def test_a_sentence_before_its_data_is_refused(self):
        self.text = re.sub(r"On \d+\s+cores\s+that\s+takes[^`]*`build/`\.", "", self.text)
        self.edit("## Limits", QUICKSTART + "\n\n## Limits")
        (self.root / "ci/results/quickstart.json").unlink(missing_ok=True)
        self.assertIn("but there is no", self.figures("--check")[1])
        self.record_quickstart()
        self.edit(QUICKSTART, "On 1 cores that takes 1 minutes and leaves 1 MB in `build/`.")
        self.figures()
        self.assertIn(f"On {os.cpu_count()} cores that takes 5 minutes and leaves",
                      self.readme.read_text(encoding="utf-8"))
        self.assertEqual(self.figures("--check"), (0, ""))

    def record_quickstart(self):
        notes = self.root / "notes"
        notes.write_text("0\tDebian packages\n10\tpinned compilers\n40\tthe matrix\n300\tdone\n", encoding="utf-8")
        out = self.root / "ci/results/quickstart.json"
        subprocess.run([SOURCE / "ci/record_quickstart", notes, self.root / "docs", out], check=True, cwd=SOURCE,
                       stdout=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))

    def test_the_record_of_a_quickstart(self):
        record = self.record_quickstart()
        self.assertEqual(record["seconds"], 300)
        self.assertEqual([step["name"] for step in record["steps"]],
                         ["Debian packages", "pinned compilers", "the matrix"])
        self.assertEqual(record["steps"][1], {"name": "pinned compilers", "seconds": 30})
        self.assertGreater(record["disk_bytes"], 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
