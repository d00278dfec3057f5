#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one suite of the tests of several builds: one_suite.py OUT [--check NAME COMMAND] BUILD=LABELS...

OUT/CTestTestfile.cmake gets the tests of each BUILD that have a label which the regular expression LABELS matches,
or with BUILD=-LABELS those that have none; and a test for each --check. One run of CTest then has all of them: two
cores share them out to the end, a failure stops none of the others, and the closing line counts everything. A build
that is not the first puts its name before its tests' names.
"""

import argparse
import json
import pathlib
import subprocess


def bracket(text):
    return f"[==[{text}]==]"


def value_of(value):
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return ";".join(value) if isinstance(value, list) else str(value)


def tests_of(build, labels):
    chosen = ["-LE", labels[1:]] if labels.startswith("-") else ["-L", labels]
    shown = subprocess.check_output(["ctest", "--test-dir", build, "--show-only=json-v1", *chosen])
    return json.loads(shown)["tests"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--check", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"))
    parser.add_argument("builds", nargs="+", metavar="BUILD=LABELS")
    arguments = parser.parse_args()
    lines = []
    for number, (build, labels) in enumerate(each.split("=", 1) for each in arguments.builds):
        for test in tests_of(build, labels):
            name = bracket((pathlib.Path(build).name + ":" if number else "") + test["name"])
            words = " ".join(bracket(word) for word in test.get("command", ["false"]))
            properties = " ".join(f"{each['name']} {bracket(value_of(each['value']))}" for each in test["properties"])
            lines.append(f"add_test({name} {words})\nset_tests_properties({name} PROPERTIES {properties})\n")
    for name, command in arguments.check:
        # Long, and with as many processes as there are cores: CTest begins with it.
        lines.append(f"add_test({bracket(name)} sh -c {bracket(command)})\n"
                     f"set_tests_properties({bracket(name)} PROPERTIES COST 500 WORKING_DIRECTORY {bracket(pathlib.Path.cwd())})\n")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "CTestTestfile.cmake").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
