# SPDX-License-Identifier: Apache-2.0
"""One exception class for each code of kiln.h. The text is that of C++: operation, subject, what was found,
what was expected, what to do next."""

from __future__ import annotations

from typing import Optional


class Error(RuntimeError):  # which PyTorch throws where one of its modules is called wrongly, or a compiled graph of ours
    """What Kiln throws. `code` is the exit code of the command `kiln` and the kiln_code of C."""

    code: int = 1


class InternalError(Error):
    """A bug in Kiln."""

    code = 1


class UsageError(Error):
    """The request is not valid."""

    code = 2


class NoVariant(Error):
    """The version exists, and nothing in it fits this machine. The text names every variant and why not."""

    code = 3


class NotFound(Error):
    """No such registry, package, version or op."""

    code = 4


class NetworkError(Error):
    """The registry did not answer, or not in full."""

    code = 5


class IntegrityError(Error):
    """Bytes are not the ones that were promised; nothing was loaded."""

    code = 6


class TrustError(Error):
    """Nobody whom the user trusts vouches for the registry or the version."""

    code = 7


class LockError(Error):
    """The lock file does not hold, or forbids, what was asked for."""

    code = 8


class CacheError(Error):
    """The cache folder cannot be used."""

    code = 9


class OfflineError(Error):
    """Not in the cache, and the network must not be asked."""

    code = 10


class UpgradeError(Error):
    """The package needs a newer Kiln."""

    code = 11


class LoadError(Error):
    """The library does not load."""

    code = 12


class InvalidCall(Error):
    """A tensor, an attribute or the workspace does not fit the op's schema."""

    code = 13


class DeviceError(Error):
    """A call of the CUDA driver failed."""

    code = 14


class Cancelled(Error):
    """The request's Cancel was used."""

    code = 130


_CLASSES = {cls.code: cls for cls in Error.__subclasses__()}


def error_of(code: int, text: str) -> Error:
    """The exception of a code; a code of a later Kiln is an Error with that code."""
    error = _CLASSES.get(code, Error)(text)
    error.code = code
    return error


def throw(error: Optional[BaseException]) -> None:
    """Raises it, if there is one. A frame of its traceback that kept it would keep itself, and its callers, alive."""
    if error is not None:
        try:
            raise error
        finally:
            del error
