# SPDX-License-Identifier: Apache-2.0
"""Kiln from Python: prebuilt kernels, found for this machine, verified and loaded by one call.

    kernel = kiln.get_kernel("geglu-mlp", version=1)
    y = kernel.forward(x, gate, up, down)      # torch tensors, numpy arrays, anything with __dlpack__

The same resolver, cache, lock file and errors as C++, over libkiln.so. Needs the standard library only; kiln.torch
has layers for PyTorch. Any function may be called from any thread.
"""

import importlib
from typing import Any

from ._call import Op
from ._errors import (CacheError, Cancelled, DeviceError, Error, IntegrityError, InternalError, InvalidCall, LoadError,
                      LockError, NetworkError, NotFound, NoVariant, OfflineError, TrustError, UpgradeError, UsageError)
from ._kernel import Availability, Cancel, Event, Kernel, get_kernel, has_kernel, prefetch, resolve
from ._library import LIBRARY as _LIBRARY

__version__: str = _LIBRARY.kiln_version().decode()  # of the library, which decides



def __getattr__(name: str) -> Any:
    """kiln.torch is imported when it is first asked for: kiln alone does not need PyTorch."""
    if name == "torch":
        return importlib.import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Availability", "CacheError", "Cancel", "Cancelled", "DeviceError", "Error", "Event", "IntegrityError",
    "InternalError", "InvalidCall", "Kernel", "LoadError", "LockError", "NetworkError", "NoVariant", "NotFound",
    "OfflineError", "Op", "TrustError", "UpgradeError", "UsageError", "get_kernel", "has_kernel", "prefetch",
    "resolve",
]
