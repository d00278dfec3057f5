#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says which sources CMake may compile together: unity_groups.py BUILD_DIR [OUT]

Most of a compiler's time goes into headers, once for each source. BUILD_DIR is a configured build of
which nothing need be built. Writes OUT for -DKILN_UNITY=OUT; without it build/unity.cmake, which the presets ci, asan
and tsan read where it is there. Sources of one target whose local names clash stay apart, as far as a look at the text says;
what slips through does not compile.
"""

import collections
import json
import pathlib
import re
import shlex
import sys

from lint_batches import called_names, local_names

MOST = 8  # sources of a group: more save little, and two cores want some groups each
ALONE = re.compile(r"^#define DOCTEST_CONFIG_|^using namespace ", re.M)
MACRO = re.compile(r"^#define (\w+)", re.M)
PLACE = re.compile(r"(?:(.*)/)?CMakeFiles/([^/]+)\.dir/")


def targets_by_source(build):
    """By folder of its targets and path, the targets that compile a source."""
    found = collections.defaultdict(list)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        command = shlex.split(entry["command"])
        folder, target = PLACE.match(command[command.index("-o") + 1]).groups()
        if entry["file"].endswith(".cpp") and not entry["file"].endswith(".gen.cpp"):
            found[folder, entry["file"]].append(target)
    return found


def main():
    compiled = targets_by_source(pathlib.Path(sys.argv[1]))
    folders = collections.Counter(source for _, source in compiled)
    by_place = collections.defaultdict(list)  # sources of a folder and the same targets
    for (folder, source), targets in compiled.items():
        if folders[source] == 1:  # else a test compiles it again, to take the place of a library's
            by_place[folder, *sorted(targets)].append(source)
    lines, grouped = [], set()
    for (folder, *targets), sources in sorted(by_place.items(), key=lambda each: str(each[0])):
        groups = []
        for source in sorted(sources):
            text = pathlib.Path(source).read_text(encoding="utf-8")
            local = local_names(text) | set(MACRO.findall(text))
            called = called_names(text) | local
            if ALONE.search(text):
                continue
            for group in groups:
                if len(group) < MOST and not any(local & theirs or ours & called for _, ours, theirs in group):
                    group.append((source, local, called))
                    break
            else:
                groups.append([(source, local, called)])
        for number, group in enumerate(each for each in groups if len(each) > 1):
            grouped.update(targets)
            lines.append(f'set_source_files_properties({" ".join(source for source, _, _ in group)}\n'
                         f'  TARGET_DIRECTORY {targets[0]} PROPERTIES UNITY_GROUP {"_".join(targets)}_{number})\n')
    lines.append(f'set_target_properties({" ".join(sorted(grouped))}\n'
                 "  PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)\n")
    pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "build/unity.cmake").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
