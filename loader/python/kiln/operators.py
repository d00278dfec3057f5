# SPDX-License-Identifier: Apache-2.0
"""Operators of PyTorch that run an op of a package, for those who follow a layer's operators: torch.compile above all.

    forward = operators.Operator("rows_double", "(Tensor x, str key) -> Tensor", function, op="forward")
    forward.register_fake(lambda x, key: torch.empty_like(x))
    y = forward(x, KEY)

Two roads lead from the dispatcher to the kernel, and ROAD says which there is. From PyTorch 2.10 on libkiln_torch.so goes
it in C++, without Python and its lock. Before that, without that library, and with KILN_OPERATORS=python, `function` is
called. Both compute the same. What fails is an exception of kiln.Error on the second; on the first it is that in eager
mode, and a RuntimeError of the same text where the dispatcher was called.

The stage after layer. Needs PyTorch; HAS_OPERATORS of kiln.layer says whether it has operators at all.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from ._errors import UsageError
from ._library import LIBRARY
from ._schema import OpSchema
from ._structs import CAttribute
from .layer import HAS_OPERATORS, operator_name, source_of

_DIMENSIONS = 8  # KILN_TORCH_DIMENSIONS
_BIND = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32,
                         ctypes.c_void_p, ctypes.c_size_t)


class _COperand(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("argument", "result", "part", "wanted")]


class _CResult(ctypes.Structure):
    _fields_ = [("like", ctypes.c_int32), ("parts", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("argument", ctypes.c_int32 * _DIMENSIONS), ("axis", ctypes.c_int32 * _DIMENSIONS)]


class _CBinding(ctypes.Structure):
    _fields_ = [("op", ctypes.c_void_p), ("attributes", ctypes.POINTER(CAttribute)),
                ("operands", ctypes.POINTER(_COperand)), ("results", ctypes.POINTER(_CResult)),
                *((name, ctypes.c_uint32) for name in ("attribute_count", "operand_count", "result_count", "threads"))]


class _CKiln(ctypes.Structure):
    _fields_ = [("run", ctypes.c_void_p), ("workspace_bytes", ctypes.c_void_p), ("bind", _BIND)]


class _Argument(NamedTuple):
    kind: str  # "Tensor", "Tensor?", "bool[]" or "str"
    name: str


_KINDS = {"Tensor": "T", "Tensor?": "?", "bool[]": "b", "str": "s"}


class Operator:
    """kiln::`name`. The arguments of `schema` are tensors of the op `op`, by its names, and the key of a layer; it may
    have one list of truth values, which says of each tensor in `results` whether it is wanted. results: the op's
    outputs, in the operator's order; where several are named together they are parts of one tensor, one behind the
    other. Default: each output that is not optional. function: the same in Python, for the other road."""

    def __init__(self, name: str, schema: str, function: Callable[..., Any], *, op: str,
                 results: Sequence[Sequence[str]] = ()) -> None:
        self.function, self.op, self.results = function, op, results
        self._arguments = [_Argument(*word.split()) for word in schema[1:schema.index(")")].split(", ")]
        self._schema = schema
        self._overload: Any = None
        self._eager: Any = None  # the same without gradients, in C++
        self._custom: Any = None
        if not HAS_OPERATORS:
            return
        self.name = operator_name(name)
        if _library is not None and self._register(schema):
            self._overload = self._eager = getattr(torch.ops.kiln, self.name[6:]).default
        else:
            self._custom = torch.library.custom_op(self.name, function, mutates_args=(), schema=schema)
            self._overload = self._custom._opoverload

    def _register(self, schema: str) -> bool:
        kinds = "".join(_KINDS[argument.kind] for argument in self._arguments)
        listed = schema.endswith("Tensor[]")
        slot = _library.kiln_torch_register(self.name[6:].encode(), kinds.encode(), listed)
        if slot >= 0:
            _slots[slot] = self
            _definitions.define(self.name[6:] + schema, tags=(torch.Tag.pt2_compliant_tag,))
        return slot >= 0

    def __call__(self, *call: Any) -> Any:
        return self._overload(*call)

    def eager(self, *call: Any) -> Any:
        """The same where nobody follows the operators, by the shorter road."""
        if self._eager is None:
            return self.function(*call)
        try:
            return self._eager(*call)
        except RuntimeError:  # which has a text only: the other road throws the exception itself
            return self.function(*call)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        self._fake = fake
        if self._custom is not None:
            self._custom.register_fake(fake)
        elif self._overload is not None:
            torch.library.register_fake(self.name, fake, lib=_definitions)

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """After register_fake; as torch.library.custom_op's. The kernel that differentiates is Python. In C++ it calls
        another operator, without gradients, so that a graph which was differentiated when it was compiled, and eager
        mode, have that one and no Python. Both roads have both: PyTorch keeps compiled graphs for later processes."""
        if self._overload is None:
            return
        inner = Operator(self.name[6:] + "_run", self._schema, self.function, op=self.op, results=self.results)
        inner.register_fake(self._fake)
        if self._custom is not None:
            self._custom.register_autograd(backward, setup_context=setup_context)
            return

        class Differentiated(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *call: Any) -> Any:
                output = inner(*call)
                setup_context(ctx, call, output)
                return output

        Differentiated.backward = staticmethod(backward)
        _definitions.impl(self.name[6:], Differentiated.apply, "Autograd")
        self._eager = inner._overload

    # ---- what C++ asks for ----

    def bind(self, slot: int, key: str, device: torch.device) -> None:
        source = source_of(key)
        op = source.kernel(device).op(self.op)
        attributes = op._attributes_of(source.words)
        operands, results = self._places(op.schema)
        binding = _CBinding(op._pointer, attributes, operands, results, len(attributes), len(operands), len(results),
                            op._threads)
        _library.kiln_torch_bind(slot, key.encode(), device.type == "cuda", device.index or 0, ctypes.byref(binding))

    def _places(self, schema: OpSchema) -> tuple[Any, Any]:
        """Of each tensor of the op and of each result."""
        tensors = {tensor.name: tensor for tensor in schema.tensors}
        given = {argument.name: place for place, argument in enumerate(self._arguments)
                 if argument.kind.startswith("Tensor")}
        groups = self.results or [(t.name,) for t in schema.tensors if t.output and not t.optional]
        made = [name for group in groups for name in group]
        unknown = [name for name in (*given, *made) if name not in tensors]
        if unknown:
            raise UsageError(f"{self.name}: {schema.name} has no tensor {', '.join(unknown)}; it has {', '.join(tensors)}")
        sure = {name: place for name, place in given.items() if self._arguments[place].kind == "Tensor"}
        extents = {extent: (place, axis) for name, place in reversed(sure.items())
                   for axis, extent in enumerate(tensors[name].shape) if isinstance(extent, str)}
        operands = (_COperand * len(tensors))(*[_COperand(given.get(name, -1), -1, 0, -1) for name in tensors])
        results = (_CResult * len(groups))()
        order, choice = list(tensors), any(argument.kind == "bool[]" for argument in self._arguments)
        for number, group in enumerate(groups):
            for part, name in enumerate(group):
                operands[order.index(name)] = _COperand(-1, number, part, made.index(name) if choice else -1)
            first, result = tensors[group[0]], results[number]
            if first.same_as not in sure or not all(isinstance(e, int) or e in extents for e in first.shape):
                raise UsageError(f"{self.name}: no argument says the dtype or the shape of {first.name}")
            result.like, result.parts, result.rank = sure[first.same_as], len(group), len(first.shape)
            for axis, extent in enumerate(first.shape):
                result.argument[axis], result.axis[axis] = (-1, extent) if isinstance(extent, int) else extents[extent]
        return operands, results


_slots: dict[int, Operator] = {}


@_BIND
def _bind(slot: int, key: bytes, on_gpu: int, device: int, text: int, room: int) -> int:
    try:
        _slots[slot].bind(slot, key.decode(), torch.device("cuda", device) if on_gpu else torch.device("cpu"))
        return 0
    except BaseException as error:  # nothing passes through C++: the operator throws its text
        words = str(error).encode()[:room - 1]
        ctypes.memmove(text, words + b"\0", len(words) + 1)
        return 1


class _CPlace(ctypes.Structure):  # Dl_info
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p),
                ("address", ctypes.c_void_p)]


def _folder_of_library() -> str:
    """Where libkiln.so was loaded from: its name alone may be what the system's loader was asked for."""
    place = _CPlace()
    ctypes.CDLL(None).dladdr(ctypes.cast(LIBRARY.kiln_version, ctypes.c_void_p), ctypes.byref(place))
    return os.path.dirname(os.path.abspath(os.fsdecode(place.file)))


def _open() -> tuple[Optional[ctypes.CDLL], str]:
    """libkiln_torch.so beside libkiln.so or in a prefix, ready; and which road there is."""
    if not HAS_OPERATORS:
        return None, "Python: this PyTorch has no operators of one's own"
    asked = os.environ.get("KILN_OPERATORS", "")
    if asked not in ("", "c++", "python"):
        raise UsageError(f"kiln.operators: $KILN_OPERATORS is {asked!r}; expected c++ or python")
    if asked == "python":
        return None, "Python: $KILN_OPERATORS says so"
    folder = _folder_of_library()
    beside, in_prefix = os.path.join(folder, "libkiln_torch.so"), os.path.join(folder, "kiln", "libkiln_torch.so")
    try:
        library = ctypes.CDLL(in_prefix if os.path.exists(in_prefix) else beside)
    except OSError as error:
        return None, f"Python: {error}"
    library.kiln_torch_open.restype = ctypes.c_char_p
    run, workspace_bytes = (ctypes.cast(getattr(LIBRARY, name), ctypes.c_void_p)
                            for name in ("kiln_run", "kiln_workspace_bytes"))
    missing = library.kiln_torch_open(ctypes.byref(_CKiln(run, workspace_bytes, _bind)))
    if missing is not None:
        return None, f"Python: this PyTorch lacks {missing.decode()}"
    return library, "C++"


_library: Any
_library, ROAD = _open()
_definitions: Any = None if _library is None else torch.library.Library("kiln", "FRAGMENT")
