#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of CONTRIBUTING.md that no compiler knows, over the sources that git tracks; any finding fails.

    ci/lint_rules.py [FILE…]       default: loader/src and loader/cli
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Of the loader and the command each call of std::filesystem that may fail takes an error code: what it throws
# otherwise has neither an ErrorCode nor a next step, and ends as "internal error".
CALL = re.compile(r"\b(?:fs|std::filesystem)::(absolute|canonical|copy|copy_file|create_directories|create_directory|"
                  r"create_hard_link|create_symlink|current_path|directory_iterator|equivalent|exists|file_size|"
                  r"hard_link_count|is_[a-z_]+|last_write_time|permissions|proximate|read_symlink|"
                  r"recursive_directory_iterator|relative|remove|remove_all|rename|resize_file|space|status|"
                  r"symlink_status|temp_directory_path|weakly_canonical)\(")
OF_A_STATUS = re.compile(r"\s*(?:fs|std::filesystem)::(?:symlink_)?status\(|\s*[a-z_]+\.(?:symlink_)?status\(|\s*type\b")


def arguments(text, begin):
    """The text between the parenthesis that opens before `begin` and the one that closes it."""
    depth = 1
    for at in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return text[begin:]


def findings(name, text):
    text = re.sub(r"//[^\n]*", lambda match: " " * len(match.group()), text)
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
    files = sys.argv[1:] or subprocess.run(["git", "-C", ROOT, "ls-files", "loader/src/*.[ch]pp", "loader/cli/*.[ch]pp"],
                                           check=True, capture_output=True, text=True).stdout.split()
    found = [each for name in files for each in findings(name, (ROOT / name).read_text())]
    print("\n".join(found) or "lint: each call of std::filesystem in the loader takes an error code")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
