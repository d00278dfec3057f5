# SPDX-License-Identifier: Apache-2.0
"""The layers of packages as PyTorch modules, and the swap of a model's own for them.

    mlp = kiln.torch.GegluMlp(768, 3072, device="cuda", dtype=torch.bfloat16)    # of the package geglu-mlp
    y = mlp(x)                            # x: [..., 768]; gradients come from the package's own backward
    norms = kiln.torch.package("rms-norm", 1)      # the module of a version, out of its dev layer: kiln.packages
    report = kiln.torch.replace(model)    # swaps what packages compute, and says what it swapped
    with kiln.torch.disabled(): ...       # the same layers computed by PyTorch, to compare

kiln.torch.SomeName is the class SomeName of the package some-name: of the one that came with this Kiln, of one that
package() has loaded, else of the version that the lock file names. Nothing here knows a package.

Work is enqueued on PyTorch's current stream, and memory comes from PyTorch's allocator: a layer can be captured in a
CUDA graph once it has been called outside of one, or was made on its GPU. torch.compile (PyTorch 2.4 and later) sees
custom operators and breaks no graph. PyTorch 1.13 and later without it.

Where somebody follows PyTorch's own operators (torch.jit.trace, a TorchDispatchMode, torch.func, forward-mode
gradients, a second derivative) PyTorch computes the layer, and a FallbackWarning says so once. Threads: as nn.Linear.
"""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from torch import nn

from . import packages
from ._errors import Error, NotFound, throw
from ._kernel import get_kernel
from .layer import HAS_OPERATORS, FallbackWarning, Report, Swap, disabled, is_replaced


def package(name: str, version: int = 0, **options: Any) -> ModuleType:
    """The PyTorch module of a package: kiln.packages.load. Afterwards kiln.torch has its layer, and replace() asks it."""
    return packages.load(name, version, **options)


def __getattr__(name: str) -> Any:
    """The layer that a package is named after: GegluMlp is that of geglu-mlp."""
    if not re.fullmatch("([A-Z][a-z0-9]*)+", name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    wanted = "-".join(re.findall("[A-Z][a-z0-9]*", name)).lower()
    try:
        module = next((m for m in packages.loaded() if packages.of(m.__name__)[0] == wanted), None)
        return getattr(module or packages.load(wanted), name)
    except Error as error:
        raise AttributeError(f"kiln.torch has no {name}: {error}. Of another registry or version: "
                             f"kiln.torch.package({wanted!r}, version)") from error


def __dir__() -> list[str]:
    layers = ["".join(word.capitalize() for word in name.split("-")) for name in packages.bundled()]
    return sorted([*__all__, *layers])


def replace(model: nn.Module, *, version: int = 0, **options: Any) -> Report:
    """Makes the modules of `model` that packages compute compute with Kiln. restore() undoes it.

    Asks the packages that came with this Kiln and those that package() has loaded, by the function `replace` of their
    modules. version: of the packages; 0: of each the one that its module came with. The other options are those of
    their functions, and of kiln.get_kernel, which may throw; where no variant fits the machine the report says so.
    """
    functions = {id(f): f for f in (getattr(module, "replace", None) for module in _modules(version, options)) if f}
    known = {id_: [*inspect.signature(f).parameters] for id_, f in functions.items()}
    asked = set(get_kernel.__kwdefaults__) - {"device"}
    for option in options:
        if option not in asked and not any(option in names for names in known.values()):
            own = sorted(set().union(*known.values()) - {"model", "options"})
            raise TypeError(f"replace has no option {option!r}; of get_kernel's it takes {', '.join(sorted(asked))}, of "
                            f"its own {', '.join(own)}")
    swaps: dict[str, Swap] = {}
    before = {id(module) for module in model.modules() if is_replaced(module)}
    try:
        for id_, function in functions.items():
            mine = {key: value for key, value in options.items() if key in asked or key in known[id_]}
            for swap in function(model, version=version, **mine).swaps:
                other = swaps.get(swap.name)
                if other is not None and not other.swapped and not swap.swapped and swap.what != other.what:
                    swap = other._replace(what=f"{other.what}; {swap.what}")
                if other is None or not other.swapped:
                    swaps[swap.name] = swap
    except BaseException:  # not half a model
        for module in model.modules():
            if is_replaced(module) and id(module) not in before:
                module.kiln_restore()
        raise
    return Report(tuple(swaps.values()))


def _modules(version: int, options: dict[str, Any]) -> list[ModuleType]:
    """Those of this version. What came with Kiln is not looked for in a registry."""
    request = {key: value for key, value in options.items() if key in get_kernel.__kwdefaults__}
    known = {packages.of(module.__name__): module for module in packages.loaded()}
    found: dict[str, ModuleType] = {}
    missing = None
    for name in dict.fromkeys([*packages.bundled(), *(name for name, _ in known)]):
        own = packages.bundled_version(name)
        try:
            if own and version in (0, own):
                found[name] = packages.load(name)
            elif version == 0:
                found[name] = next(module for key, module in known.items() if key[0] == name)
            else:
                found[name] = known.get((name, version)) or packages.load(name, version, **request)
        except NotFound as error:
            missing = error  # another package may have the version
    try:
        if missing is not None:
            missing = NotFound(f"replace: no package has version {version}; of the last that was asked: {missing}")
        throw(None if found else missing)
        return list(found.values())
    finally:
        del missing


def restore(model: nn.Module) -> int:
    """Gives the modules that replace() has swapped their own forward back, with all that was put on them since; how
    many."""
    swapped = [module for module in model.modules() if is_replaced(module)]
    for module in swapped:
        module.kiln_restore()
    return len(swapped)


__all__ = ["FallbackWarning", "HAS_OPERATORS", "Report", "Swap", "disabled", "package", "replace", "restore"]
