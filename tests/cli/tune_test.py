#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kiln tune: what it finds, which calls take it, and what happens where a table is not what it should be.

    tune_test.py KILN_REGISTRY_BINARY KILN_BINARY WRITE_FIXTURE
"""

import fcntl
import itertools
import json
import os
import pathlib
import signal
import subprocess
import tempfile

import documents
from world import CACHE, INTEGRITY, KILN, NOT_FOUND, OK, TESTS, UPGRADE, USAGE, World, main
import clock  # world says where these are
import forge

CALL = os.environ["TUNE_CALL"]
OFFERED = {"op": "forward", "device": "cpu", "attribute": "kernel", "parts": [["quick", "slow", "wrong", "picky"]],
           "any": ["scale"], "within": {"float32": 1e-6}}
ALL = ["--shape", "M=4,N=64", "--shape", "M=16-64,N=64"]


def compiled(*flags):
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", *os.environ["PROOF_FLAGS"].split(), *flags,
                        "-o", library.name, TESTS / "cli/tunable_package.c", "-lm"], check=True)
        return pathlib.Path(library.name).read_bytes()


class Tune(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.library = compiled()

    def setUp(self):
        super().setUp()
        self.offer(OFFERED)

    def offer(self, *ops, library=None, choices=None):
        dev = {"include/x.hpp": b"#pragma once\n"}
        if ops:
            dev["choices.json"] = choices or json.dumps({"schema": "kiln.choices/1", "ops": ops}).encode()
        files = {"LICENSE": b"Apache-2.0\n", "lib/libsample.so": library or self.library}
        forge.Package(self.registry, files=files, dev=dev).publish()
        self.environment["KILN_CACHE"] = tempfile.mkdtemp(dir=self.work)

    def tuned(self, *words):
        document = self.document("tune", "sample@1", "--device", "cpu", *words)
        documents.check(document)
        return document

    def tuned_past_wrong(self, *words, choice):
        """As tuned; again where the machine was so busy that the wrong kernel did not look fast, so was not checked, or
        that the fast one was not."""
        for _ in range(20):
            document = self.tuned(*words)
            if all((row["wrong"], row["choice"]) == (["wrong"], choice) for row in document["shapes"]):
                break
        return document

    def table_folder(self):
        return self.work / ".config/kiln/tuned"

    def table(self):
        [path] = self.table_folder().glob("*.json")
        return path

    def call(self, *words, code=OK, says=()):
        return self.run_command(CALL, *words, code=code, says=says).stdout

    def rewrite(self, change):
        """The table with a change, under a checksum that is right."""
        table = json.loads(self.table().read_text())
        del table["checksum"]
        change(table)
        table["checksum"] = forge.digest_of(forge.dump(table))
        self.table().write_text(json.dumps(table))

    def test_the_fastest_right_kernel_is_taken_by_the_calls_it_was_measured_for(self):
        self.call(4, 64, says="ran own")
        found = self.tuned_past_wrong(*ALL, choice="quick")
        few, many = found["shapes"]
        self.assertEqual((few["choice"], many["choice"]), ("quick", "quick"))
        self.assertEqual(many["extents"], {"M": [16, 64], "N": [64, 64]})
        self.assertEqual(few["wrong"], ["wrong"])
        self.assertEqual((few["tried"], many["tried"]), (3, 4), "picky needs 8 rows")
        self.assertGreater(few["own_us"], 1.5 * few["best_us"])
        says = f"2 of 2 measured shapes take another kernel, by {self.table()} of"
        for words in ((4, 64), (16, 64), (40, 64), (64, 64), (4, 64, "scale=3"), (4, 64, "kernel=plan", "exact=no")):
            with self.subTest(words):
                self.call(*words, says=["ran quick", "bytes 512", "tuned: " + says])
        # Another shape, another promise, another kernel of the caller's, more tensors: the package's own.
        for words in ((5, 64), (15, 64), (65, 64), (4, 32), (4, 64, "exact=yes"), (4, 64, "kernel=slow"), (4, 64, "bias")):
            with self.subTest(words):
                self.call(*words, says="ran own")
        self.call(4, 64, "unaligned", says=["ran own", "bytes 512"])  # what quick cannot compute
        self.kiln("resolve", "sample@1", says=says)
        self.assertIn(says, self.document("resolve", "sample@1")["tuned"])

    def test_a_call_of_other_dtypes_takes_no_choice(self):
        self.tuned_past_wrong("--shape", "M=5,N=64", "--with", "bias", choice="quick")
        self.call(5, 64, "bias", says="ran quick")
        self.call(5, 64, "bias=float64", says="ran own")

    def test_an_op_may_begin_with_an_optional_tensor(self):
        self.offer(OFFERED | {"op": "biased"})
        self.tuned_past_wrong(*ALL, choice="quick")
        self.call(4, 64, "op=biased", says="ran quick")
        self.call(4, 64, "op=biased", "bias", says="ran own")

    def test_an_op_without_named_extents_has_one_shape(self):
        self.offer(OFFERED | {"op": "fixed"})
        [row] = self.tuned_past_wrong(choice="quick")["shapes"]
        self.assertEqual(row["extents"], {})
        self.call(4, 64, "op=fixed", says="ran quick")
        self.kiln("tune", "sample@1", "--device", "cpu", "--shape", "M=4", code=USAGE,
                  says=["has no extent", "Leave --shape out"])

    def test_of_rows_that_overlap_the_narrowest_counts(self):
        self.tuned("--shape", "M=4,N=64")
        rows = [((37, 37), "quick"), ((30, 60), ""), ((1, 100), "quick")]
        for order in itertools.permutations(rows):
            with self.subTest(order):
                self.rewrite(lambda table: table["ops"][0].update(rows=[
                    table["ops"][0]["rows"][0] | {"extents": {"M": list(extent), "N": [64, 64]}, "choice": choice}
                    for extent, choice in order]))
                self.call(37, 64, says=["ran quick", "2 of 3 measured shapes"])
                self.call(36, 64, says="ran own")
                self.call(29, 64, says="ran quick")

    def test_tuning_again_adds_and_forgetting_ends_it(self):
        self.tuned_past_wrong(*ALL, choice="quick")
        self.tuned("--shape", "M=4,N=64", "--least", "100")  # nothing is twice as fast as itself
        self.call(16, 64, says="2 measured shapes")
        self.tuned_past_wrong("--shape", "M=5,N=64", "--with", "bias", choice="quick")
        self.call(5, 64, "bias", says=["ran quick", "3 measured shapes"])
        self.call(5, 64, says="ran own")
        self.assertTrue(self.tuned("--forget")["removed"])
        said = self.call(16, 64, says="ran own")
        self.assertNotIn("tuned:", said)
        self.assertFalse(self.tuned("--forget")["removed"])

    def test_two_at_once_keep_both_their_rows(self):
        words = [[KILN, "tune", "sample@1", "--device", "cpu"] +
                 [word for rows in range(first, first + 4) for word in ("--shape", f"M={rows},N=64")] for first in (100, 200, 300)]
        running = [subprocess.Popen(each, env=self.environment, cwd=self.project, stdout=subprocess.DEVNULL) for each in words]
        self.assertEqual([each.wait() for each in running], [0, 0, 0])
        self.call(100, 64, says="of 12 measured shapes")

    def test_what_a_killed_tune_left_is_removed(self):
        self.tuned("--shape", "M=4,N=64")
        left = self.table().with_name(f".{self.table().name}-1234-0123456789abcdef")
        left.write_text("half of a ta")
        self.tuned("--shape", "M=5,N=64")
        self.assertTrue(left.exists(), "it may be another's that is writing")
        self.run_command(*clock.later(120, pathlib.Path(KILN).parent), KILN, "tune", "sample@1", "--device", "cpu", "--shape",
                         "M=6,N=64")
        self.assertEqual(list(left.parent.iterdir()), [self.table()])

    def test_a_table_behind_a_link_stays_there(self):
        self.tuned("--shape", "M=4,N=64")
        elsewhere = self.table().rename(self.work / "dotfiles.json")
        link = pathlib.Path(self.tuned("--shape", "M=4,N=64")["file"])
        link.unlink()
        link.symlink_to(elsewhere)
        self.tuned("--shape", "M=5,N=64")
        self.assertTrue(link.is_symlink())
        self.call(5, 64, says="of 2 measured shapes")
        # Another settings folder may have a link to it, too: who changes it holds the folder of the file.
        descriptor = os.open(self.work, os.O_RDONLY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with subprocess.Popen([KILN, "tune", "sample@1", "--device", "cpu", "--shape", "M=6,N=64"], cwd=self.project, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.environment) as run:
            said = run.stderr.readline()
            run.send_signal(signal.SIGINT)
            run.stderr.read()
        self.assertIn(f"waiting for process {os.getpid()}, which holds {elsewhere}", said)
        self.assertEqual(run.returncode, 130)

    def test_a_table_that_would_be_too_large_to_read_is_not_written(self):
        self.tuned("--shape", "M=4,N=64")
        self.rewrite(lambda table: table["ops"][0].update(rows=[
            table["ops"][0]["rows"][0] | {"extents": {"M": [rows, rows], "N": [64, 64]}} for rows in range(5, 4300)]))
        self.call(5, 64, says="of 4295 measured shapes")
        self.kiln("tune", "sample@1", "--device", "cpu", "--shape", "M=4,N=64", code=USAGE,
                  says=["keep the tuned table", "at most 1048576 are read", "What was there before stays"])
        self.call(5, 64, says="of 4295 measured shapes")

    def test_a_call_in_c_with_something_left_out_is_the_packages_to_refuse(self):
        self.tuned(*ALL)
        for null, says in (("tensors", "a list is NULL"), ("attributes", "a list is NULL"), ("shape", "x's shape is NULL")):
            self.call(4, 64, f"null={null}", says=says)

    def test_what_is_not_faster_is_not_taken(self):
        self.offer(OFFERED | {"parts": [["slow", "wrong"]]})
        [row] = self.tuned_past_wrong("--shape", "M=4,N=64", choice="")["shapes"]
        self.assertEqual((row["choice"], row["own_us"]), ("", row["best_us"]))
        self.assertEqual(row["wrong"], ["wrong"])
        self.call(4, 64, says=["ran own", "0 of 1 measured shapes take another kernel"])

    def test_another_build_does_not_take_the_table(self):
        self.tuned_past_wrong(*ALL, choice="quick")
        self.call(4, 64, says="ran quick")
        self.offer(OFFERED, library=compiled("-DOTHER_BUILD=1", "-O2"))
        self.call(4, 64, says=["ran own", f"tuned: {self.table()} was measured with another build and is passed over",
                               "'kiln tune sample@1' measures this one"])
        self.tuned_past_wrong(*ALL, choice="quick")
        self.call(4, 64, says="ran quick")

    def test_a_table_that_is_not_as_it_was_written_is_refused(self):
        self.tuned_past_wrong(*ALL, choice="quick")
        path = self.table()
        text = path.read_text()
        path.write_text(text.replace("quick", "wrong"))
        for words in (("resolve", "sample@1"), ("tune", "sample@1", *ALL)):
            self.kiln(*words, code=INTEGRITY, says=["read tuned table", "is not as 'kiln tune' wrote it", "Remove it"])
        self.call(4, 64, code=INTEGRITY, says="Remove it, and run 'kiln tune' again")
        for broken in ("{", "", "[]", "\0", "[" * 10000):
            path.write_text(broken)
            self.call(4, 64, code=INTEGRITY, says="Remove it")
        path.write_text(text + " " * (1 << 20))
        self.call(4, 64, code=USAGE, says=["it has more than 1048576 bytes", "Remove it"])
        path.write_text(text)
        path.chmod(0o666)
        self.call(4, 64, code=USAGE, says="everyone may write to it")
        path.chmod(0o644)
        path.parent.chmod(0o777)
        self.call(4, 64, code=USAGE, says="where everyone may put another")
        path.parent.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
            self.call(4, 64, code=USAGE, says="12345")
            os.chown(path, 0, 0)
        other = path.rename(path.with_name(path.name.replace("sample", "simple")))
        self.call(4, 64, says="ran own")
        other.rename(path)
        self.call(4, 64, says="ran quick")
        path.write_text("{")
        self.assertTrue(self.tuned("--forget")["removed"], "whatever is in it")
        self.call(4, 64, says="ran own")

    def test_a_table_of_things_that_are_not_there_is_refused(self):
        def row(table):
            return table["ops"][0]["rows"][0]

        changes = {
            "kernel cannot be 'fastest'": lambda table: row(table).update(choice="fastest"),
            "no optional tensor 'x'": lambda table: row(table).update({"with": ["x"]}),
            "no tensor has an extent 'K'": lambda table: row(table)["extents"].update(K=[1, 2]),
            "ends before it begins": lambda table: row(table)["extents"].update(M=[2, 1]),
            "'float31' is no dtype": lambda table: row(table).update(dtype="float31"),
            "no attribute 'kernels'": lambda table: table["ops"][0].update(attribute="kernels"),
            "no attribute 'speed'": lambda table: table["ops"][0].update(any=["speed"]),
            "cannot be among \"any\"": lambda table: table["ops"][0].update(any=["kernel"]),
            "no op 'backward'": lambda table: table["ops"][0].update(op="backward"),
            "\"more\"": lambda table: table.update(more=1),
            "kiln.tuned/1": lambda table: table.update(schema="kiln.tuned/2"),
            "for which its name would be": lambda table: table.update(hardware="Another CPU"),
        }
        for says, change in changes.items():
            with self.subTest(says):
                self.tuned(*ALL)
                self.rewrite(change)
                said = self.call(4, 64, code=INTEGRITY, says=["read tuned table", "Remove it"])
                self.assertIn(says.replace("'", '"'), said.replace("'", '"'))
                self.table().unlink()

    def test_what_cannot_be_tuned_says_why(self):
        tune = ("tune", "sample@1", "--device", "cpu")
        self.kiln(*tune, code=USAGE, says=["no shape is named", "M, N"])
        self.kiln(*tune, "--shape", "M=4", code=USAGE, says=["N is missing", "Write it as M=129-256,N=1024"])
        self.kiln(*tune, "--shape", "M=4,N=8,K=9", code=USAGE, says="has no extent")
        for extent in ("8-4", "0", "004", "2147483649", "1-2147483649", "-", "four"):
            self.kiln(*tune, "--shape", f"M={extent},N=8", code=USAGE,
                      says="neither a number from 1 to 2147483648, without leading zeros, nor a range of two")
        self.kiln(*tune, "--shape", "M=4,M=4,N=8", code=USAGE, says="M is named twice")
        self.kiln(*tune, *ALL, "--dtype", "float16", code=USAGE, says="but in float32")
        self.kiln(*tune, *ALL, "--with", "x", code=USAGE, says="has no optional tensor")
        self.kiln(*tune, *ALL, "--op", "backward", code=NOT_FOUND, says="It does of: forward")
        self.tuned("--shape", "M=5,N=64", "--with", "bias", "--with", "bias")
        self.tuned_past_wrong("--shape", "M=5,N=64", "--with", "bias", choice="quick")
        self.call(5, 64, "bias", says="of 1 measured shapes")
        for words in (("--shape", "M=5,N=64"), ("--shapes", "shapes.txt"), ("--op", "forward"), ("--dtype", "float32"),
                      ("--with", "bias"), ("--least", "3")):
            self.kiln(*tune, "--forget", *words, code=USAGE, says=["--forget", words[0]])
        self.call(5, 64, "bias", says="of 1 measured shapes")
        self.tuned("--forget")
        self.table_folder().rmdir()
        self.table_folder().write_text("")
        said = self.run_command(KILN, *tune, *ALL, code=USAGE, says="it is a file, expected a folder").stdout
        self.assertNotIn("quick", said, "found before the work")
        self.table_folder().unlink()
        self.table_folder().symlink_to("/sys")  # where not even root writes
        said = self.run_command(KILN, *tune, *ALL, code=CACHE, says="make a file in").stdout
        self.assertNotIn("quick", said, "found before the work")
        self.table_folder().unlink()
        shapes = self.work / "shapes.txt"
        self.kiln(*tune, "--shapes", shapes, code=USAGE, says="--shapes")
        shapes.write_bytes(b"M=4,N=8\r\n\n  \t\n M=8,N=8 \n")
        self.kiln(*tune, "--shapes", shapes, says="2 of 2 shapes take another kernel")
        del self.environment["HOME"]
        self.kiln(*tune, *ALL, code=USAGE, says="Set KILN_CONFIG, XDG_CONFIG_HOME or HOME")
        self.environment["HOME"] = str(self.work)
        self.offer()
        self.kiln(*tune, *ALL, code=NOT_FOUND, says="the version offers no choices")
        self.offer(OFFERED | {"device": "cuda"})
        self.kiln(*tune, *ALL, code=NOT_FOUND, says="offers no choices on cpu")
        self.offer(OFFERED | {"attribute": "kernels"})
        self.kiln(*tune, *ALL, code=INTEGRITY, says="Tell its publisher")
        for change, says in (({"any": ["speed"]}, "no attribute"), ({"any": ["kernel"]}, "cannot be among"),
                             ({"parts": [["quick", "fastest"]]}, "not one of the values of kernel"),
                             ({"parts": [["quick"], ["slow"]]}, "a value of kernel is one word"),
                             ({"attribute": "scale", "any": []}, "expected a string or an int"),
                             ({"within": {"float31": 0.1}}, "x can be float32"),
                             ({"op": "biased", "within": {"float64": 0.1}}, "x can be float32"),
                             ({"op": "counted"}, "y is int32, expected bfloat16, float16, float32 or float64"),
                             ({"op": "coarse", "within": {"float8_e4m3fn": 0.1}}, "x is float8_e4m3fn, expected bfloat16"),
                             ({"within": {}}, "names no dtype"), ({"within": {"float32": -1}}, "is no number from 0")):
            self.offer(OFFERED | change)
            self.kiln(*tune, *ALL, code=INTEGRITY, says=["choices", says])
        self.offer(OFFERED, choices=b"{")
        self.kiln(*tune, *ALL, code=INTEGRITY, says="choices of sample@1")
        later = json.dumps({"schema": "kiln.choices/2", "ops": [], "and": 1}).encode()
        self.offer(OFFERED, choices=later)
        self.kiln(*tune, *ALL, code=UPGRADE, says=['found "kiln.choices/2"', "Upgrade kiln"])
        self.offer(OFFERED, choices=b" " * (5 << 20))
        self.kiln(*tune, *ALL, code=INTEGRITY, says="has 5242880 bytes, expected at most 4194304")


if __name__ == "__main__":
    main()
