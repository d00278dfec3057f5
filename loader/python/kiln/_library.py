# SPDX-License-Identifier: Apache-2.0
"""libkiln.so as ctypes sees it, and where the library is found.

The library is looked for beside this file (as a wheel has it), then at $KILN_LIBRARY, then where the system's
loader finds libkiln.so.0.
"""

from __future__ import annotations

import ctypes
import operator
import os
import pathlib
import re
from typing import Any

from ._errors import UsageError, error_of
from ._structs import CDevice, CError, COp, CPackage, CRequest

_POINTER = ctypes.c_void_p
_ERROR = ctypes.POINTER(CError)
_FUNCTIONS = {
    "kiln_version": (ctypes.c_char_p, []),
    "kiln_failure_text": (ctypes.c_char_p, []),
    "kiln_new_cancel": (_POINTER, []),
    "kiln_cancel_now": (None, [_POINTER]),
    "kiln_release_cancel": (None, [_POINTER]),
    "kiln_get_kernel": (ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(CRequest), ctypes.POINTER(_POINTER), _ERROR]),
    "kiln_release_kernel": (None, [_POINTER]),
    "kiln_has_kernel": (ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(CRequest), _ERROR]),
    "kiln_prefetch": (ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(CRequest), _ERROR]),
    "kiln_kernel_name": (ctypes.c_char_p, [_POINTER]),
    "kiln_kernel_version": (ctypes.c_int32, [_POINTER]),
    "kiln_kernel_variant": (ctypes.c_char_p, [_POINTER]),
    "kiln_kernel_device": (CDevice, [_POINTER]),
    "kiln_kernel_library": (ctypes.c_char_p, [_POINTER]),
    "kiln_kernel_explanation": (ctypes.c_char_p, [_POINTER]),
    "kiln_kernel_fallback": (ctypes.c_char_p, [_POINTER]),
    "kiln_kernel_package": (ctypes.POINTER(CPackage), [_POINTER]),
    "kiln_find_op": (ctypes.c_int32, [_POINTER, ctypes.c_char_p, ctypes.POINTER(ctypes.POINTER(COp)), _ERROR]),
    "kiln_workspace_bytes": (ctypes.c_int32, [_POINTER, _POINTER, ctypes.POINTER(ctypes.c_size_t), _ERROR]),
    # Without types that ctypes would convert to at each call: what is passed are ready pointers.
    "kiln_run": (ctypes.c_int32, None),
    "kiln_resolve": (ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(CRequest), ctypes.POINTER(_POINTER), _ERROR]),
    "kiln_release_text": (None, [_POINTER]),
    "kiln_dev_files": (ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(CRequest), ctypes.POINTER(_POINTER), _ERROR]),
}


def _candidates() -> list[str]:
    beside = pathlib.Path(__file__).resolve().parent / "libkiln.so"
    named = os.environ.get("KILN_LIBRARY")
    return ([str(beside)] if beside.exists() else []) or ([named] if named else []) or ["libkiln.so.0"]


def _load() -> ctypes.CDLL:
    (path,) = _candidates()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"kiln: the library does not load: {error}. Install libkiln, or set KILN_LIBRARY to "
                          "the path of libkiln.so") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"kiln: {path} has no function {name}, so it is older than this Python package. "
                              "Install the libkiln that belongs to it") from None
        function.restype = result
        if arguments is not None:
            function.argtypes = arguments
    return library


LIBRARY = _load()


class Handle:
    """What holds a pointer of C. It stands for one thing of this process: a copy is the object itself, == is `is`,
    and it cannot be pickled."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _: Any) -> Any:
        return self

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError(f"kiln: a {type(self).__name__} cannot be pickled: it belongs to its process. Send what "
                        "get_kernel was asked for, or a layer of kiln.torch, which finds its kernel again")


# ---- what crosses into C is whole, or refused ----


def as_text(value: Any, what: str) -> bytes:
    """C ends a text at its first NUL."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is {value!r}; expected a string")
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is {value!r}, which is not Unicode text: {error.reason}") from None
    if b"\0" in encoded:
        raise UsageError(f"{what} is {value!r}, which holds a NUL character; expected a text without one")
    return encoded


def as_path(value: Any, what: str) -> bytes:
    try:
        encoded = os.fsencode(value)
    except TypeError:
        raise UsageError(f"{what} is {value!r}; expected a path") from None
    if not encoded:  # of a variable that is not set, say: that would be as if nobody had named one
        raise UsageError(f"{what} is {value!r}; expected a path, or None")
    if b"\0" in encoded:
        raise UsageError(f"{what} is {value!r}, which holds a NUL character; expected a path without one")
    return encoded


def in_range(value: Any, bits: int, what: str) -> int:
    """ctypes cuts an integer to the field's width; a truth value is refused as a number."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{what} is {value!r}; expected an integer")
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise UsageError(f"{what} is {value!r}; expected an integer of {bits} bits")
    return number


def as_flag(value: Any, what: str) -> bool:
    """A text is true as a condition, "false" as well."""
    if value is not True and value is not False:
        raise UsageError(f"{what} is {value!r}; expected True or False")
    return value


def failure(code: int) -> Exception:
    """The exception for what a function of kiln.h has just answered on this thread."""
    return error_of(code, in_python(LIBRARY.kiln_failure_text().decode(errors="replace")))


# The library names an option as the command and C++ spell it: "drop --no-jit, .allow_jit = true".
_SPELLINGS = (
    (re.compile(r"--device cpu \((?:\.device = )?kiln::Device::cpu\(\)\)"), "device='cpu'"),
    (re.compile(r"drop --[a-z-]+, \.([a-z_]+) = true"), r"\1=True"),
    (re.compile(r"drop --[a-z-]+, \.([a-z_]+) = false"), r"\1=False"),
    (re.compile(r"--[a-z-]+ \(\.([a-z_]+)\)"), r"\1"),
    (re.compile(r"--[a-z-]+, \.([a-z_]+)"), r"\1"),
)


def in_python(words: str) -> str:
    """A text of the library for people who call it from Python."""
    for spelling, python in _SPELLINGS:
        words = spelling.sub(python, words)
    return words


def text(value: bytes | None) -> str:
    if value is None:
        raise MemoryError("kiln: out of memory")
    return value.decode(errors="replace")
