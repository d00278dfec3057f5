# SPDX-License-Identifier: Apache-2.0
"""The schemas of what Kiln prints with --json: docs/schemas/<its "schema" with '-' for '/'>.json."""

import json
import pathlib

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
