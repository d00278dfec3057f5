# SPDX-License-Identifier: Apache-2.0
"""An op's schema, its entry of package.json, as typed values. Pure."""

from __future__ import annotations

import json
import keyword
from typing import NamedTuple, Optional, Union

# DLPack's code and bits.
DTYPES: dict[str, tuple[int, int]] = {
    "float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "float64": (2, 64),
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "bool": (6, 8),
    "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8),
}


def spelt(name: str) -> str:
    """As Python can have the name: `lambda` and `self`, which are words of its own there, with a _ behind them."""
    return name + "_" if keyword.iskeyword(name) or name == "self" else name


def plain(name: str) -> str:
    """What a schema calls that; no name there ends in _."""
    return name[:-1] if name.endswith("_") and spelt(name[:-1]) == name else name


class TensorSchema(NamedTuple):
    name: str
    dtypes: tuple[str, ...]  # what is allowed; empty where same_as is set
    same_as: Optional[str]  # the earlier tensor whose dtype this one has
    shape: tuple[Union[str, int], ...]
    layout: str  # "compact" or "rows"
    optional: bool
    output: bool
    inout: bool  # read and written; not an output


class AttributeSchema(NamedTuple):
    name: str
    type: str  # "string", "int" or "float"
    values: tuple[str, ...]
    default: Union[str, int, float]


class OpSchema(NamedTuple):
    name: str
    doc: str
    tensors: tuple[TensorSchema, ...]
    attributes: tuple[AttributeSchema, ...]

    def signature(self) -> str:
        """forward(x, gate, up, down, gate_bias?, y -> out; approximate="tanh"), for people."""
        inputs = [t.name + ("?" if t.optional else "") for t in self.tensors if not t.output]
        outputs = [t.name + ("?" if t.optional else "") for t in self.tensors if t.output]
        words = [f"{a.name}={a.default!r}" for a in self.attributes]
        return f"{self.name}({', '.join(inputs + words)}) -> {', '.join(outputs)}"

    def manual(self) -> str:
        """Signature, doc, and a line for each tensor and attribute."""
        lines = [self.signature(), "", self.doc, ""]
        for t in self.tensors:
            dtype = f"as {t.same_as}" if t.same_as else " or ".join(t.dtypes)
            notes = [word for word, holds in (("output", t.output), ("inout", t.inout), ("optional", t.optional),
                                              ("rows may be strided", t.layout == "rows")) if holds]
            lines.append(f"  {t.name}[{', '.join(map(str, t.shape))}]: {dtype}" +
                         (f"; {', '.join(notes)}" if notes else ""))
        for a in self.attributes:
            allowed = f" of {', '.join(map(repr, a.values))}" if a.values else ""
            lines.append(f"  {a.name}: {a.type}{allowed}, default {a.default!r}")
        return "\n".join(lines)


def parse_schema(document: str) -> OpSchema:
    op = json.loads(document)
    names = {tensor["name"] for tensor in op["tensors"]}

    def tensor(value: dict) -> TensorSchema:
        dtype = value["dtype"]
        follows = isinstance(dtype, str) and dtype in names
        allowed = () if follows else (dtype,) if isinstance(dtype, str) else tuple(dtype)
        return TensorSchema(value["name"], allowed, dtype if follows else None,
                            tuple(value["shape"]), value.get("layout", "compact"), value.get("optional", False),
                            value.get("output", False), value.get("inout", False))

    return OpSchema(op["name"], op.get("doc", ""), tuple(map(tensor, op["tensors"])),
                    tuple(AttributeSchema(a["name"], a["type"], tuple(a.get("values", ())), a["default"])
                          for a in op.get("attributes", ())))
