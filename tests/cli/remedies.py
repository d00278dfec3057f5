# SPDX-License-Identifier: Apache-2.0
"""What the texts of Kiln's sources tell a user to run or to set: found in the string literals of the tree."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("loader/src", "loader/cli", "registry", "build-matrix")
NO_TEXTS = ("build-matrix/sdk/", "build-matrix/codegen/codegen.cpp", "build-matrix/codegen/launch_code.cpp", "build-matrix/schema/image_launch.cpp",
            "registry/site/pages.cpp")

TOKEN = re.compile(r'#[^\n]*|//[^\n]*|R"\(.*?\)"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'|[A-Za-z_0-9]+|\S', re.S)
REMEDY = re.compile(r"""'(kiln\ [a-z][^']*?)'                                    # a command in quotes
    |(?:anew|it|one|packages|name|first):\ (kiln\ [a-z]+(?:\ [a-z]+)?)             # or behind a colon
    |'(chmod\ [^']*)'|(ulimit\ -\w)|((?:docker|podman)\ login)|(nvidia-smi(?:\ -L)?)
    |\b(KILN_[A-Z_]+|CUDA_VISIBLE_DEVICES|XDG_[A-Z_]+)""", re.X)
# The help of an option, a list of examples, what a program is asked with.
NO_PROSE = re.compile(r"Examples:|takes, and examples|default;? \$|\$KILN_KEY_PASSPHRASE opens|(^|…)-{1,2}[a-z-]+(,--[a-z-]+)?…")


def texts(source):
    """The literals of each statement as one text; what stands between them is "…"."""
    text = ""
    for match in TOKEN.finditer(source):
        token = match.group()
        if token.startswith(("//", "#")):
            continue
        if token in (";", "{", "}"):
            yield text
            text = ""
        elif token.startswith('"'):
            text += token[1:-1]
        elif not text.endswith("…") and (token[0].isalnum() or token[0] == "_"):
            text += "…"
    yield text


def named():
    """{"loader/src/store/gc.cpp: kiln cache repair", …}"""
    found = set()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.[ch]pp")):
            name = str(path.relative_to(ROOT))
            if name.startswith(NO_TEXTS):
                continue
            for text in texts(path.read_text()):
                if " " not in text or NO_PROSE.search(text):
                    continue
                for match in REMEDY.finditer(text):
                    found.add(f"{name}: {next(group for group in match.groups() if group)}")
    return found
