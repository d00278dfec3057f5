#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that no compiler knows, over the sources that git tracks; any finding fails.

    ci/lint_rules.py [FILE…]       default: the loader, the registry, the build matrix
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["loader/src", "loader/cli", "registry", "build-matrix"]

# Of the loader and the command each call of std::filesystem that may fail takes an error code: what it throws
# otherwise has neither an ErrorCode nor a next step, and ends as "internal error".
CALL = re.compile(r"\b(?:fs|std::filesystem)::(absolute|canonical|copy|copy_file|create_directories|create_directory|"
                  r"create_hard_link|create_symlink|current_path|directory_iterator|equivalent|exists|file_size|"
                  r"hard_link_count|is_[a-z_]+|last_write_time|permissions|proximate|read_symlink|"
                  r"recursive_directory_iterator|relative|remove|remove_all|rename|resize_file|space|status|"
                  r"symlink_status|temp_directory_path|weakly_canonical)\(")
# What changes with the locale of the program that libkiln runs in: classes of characters, and a fraction's point. What
# CHECKS name runs in kiln's own program alone, which sets no locale.
CLASSES = re.compile(r"\b(is(?:al(?:num|pha)|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit)|to(?:lower|upper)"
                     r"|str(?:n?casecmp|casestr|coll|to(?:d|f|ld))|sto(?:d|f|ld)|atof|setlocale)\s*\(|std::locale\b")
FRACTION = re.compile(r'"[^"\n]*%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?l?[aefgAEFG]\b[^"\n]*"')
CHECKS = "loader/src/call/testing"
OF_A_STATUS = re.compile(r"\s*(?:fs|std::filesystem)::(?:symlink_)?status\(|\s*[a-z_]+\.(?:symlink_)?status\(|\s*type\b")


def arguments(text, begin):
    """The text between the parenthesis that opens before `begin` and the one that closes it."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return text[begin:]


def by_locale(name, text):
    if name.startswith("build-matrix/sdk/"):  # what a package's own sources compile with
        return
    for match in CLASSES.finditer(text):
        yield match.start(), f"{match.group().rstrip(' (')} changes with the locale: see base/ascii.hpp"
    if name.startswith("loader/src/") and not name.startswith(CHECKS):
        for match in FRACTION.finditer(text):
            yield match.start(), "a fraction of printf changes with the locale: use fixed_text of base/ascii.hpp"


def findings(name, text):
    text = re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), text)
    for at, found in by_locale(name, text):
        yield f"{name}:{text.count(chr(10), 0, at) + 1}: {found}"
    if not name.startswith(("loader/src/", "loader/cli/")):
        return
    codes = set(re.findall(r"std::error_code&? (\w+)", text))
    for match in CALL.finditer(text):
        inside = arguments(text, match.end())
        last = inside.rpartition(",")[2].strip()
        if last in codes or OF_A_STATUS.match(inside):
            continue
        yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: std::filesystem::{match.group(1)} without an error code"
    for match in re.finditer(r"for \([^;{}]*:\s*(?:fs|std::filesystem)::(?:recursive_)?directory_iterator", text):
        yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: this loop throws where a folder cannot be read: use increment(error)"


def main():
    files = sys.argv[1:] or subprocess.run(["git", "-C", ROOT, "ls-files", *(f"{folder}/*.[ch]pp" for folder in FOLDERS)],
                                           check=True, capture_output=True, text=True).stdout.split()
    found = [each for name in files for each in findings(name, (ROOT / name).read_text())]
    print("\n".join(found) or "lint: each call of std::filesystem in the loader takes an error code, and no locale decides")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
