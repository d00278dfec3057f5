#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The schemas of what Kiln prints with --json: docs/schemas/<its "schema" with '-' for '/'>.json.

    kiln build --json … | documents.py     checks what it reads, one document or several
"""

import json
import pathlib
import sys

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMAS = ROOT / "docs/schemas"


def path_of(kind):
    """"kiln.info/1" -> docs/schemas/kiln.info-1.json"""
    return SCHEMAS / (kind.replace("/", "-") + ".json")


def check(document):
    """Throws for a document that its published schema does not describe, or that has none."""
    schema = json.loads(path_of(document["schema"]).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


def documents_in(text):
    """As `kiln build --json` prints them: one after the other."""
    while text := text.lstrip():
        document, end = json.JSONDecoder().raw_decode(text)
        yield document
        text = text[end:]


if __name__ == "__main__":
    seen = 0
    for seen, each in enumerate(documents_in(sys.stdin.read()), 1):
        check(each)
    sys.exit(0 if seen else "documents.py: there is no document")
