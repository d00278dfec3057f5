# SPDX-License-Identifier: Apache-2.0
"""The Python modules that packages bring: found, verified, imported.

    module = kiln.packages.load("rms-norm", 1)     # kiln.packages.rms_norm_1.rms_norm

A package names its modules in its package.json; the one that it is known by has its name. They come from one of two places:

1. `bundled`, the folder beside this file: the packages that were built with this Kiln, so that a program can import,
   unpickle and compile a layer where there is no registry yet. They are as trusted as this file, which lies beside them.
2. The version's dev layer, as `kiln install --dev` has it: named by the index that the registry's metadata vouches for,
   held to the lock file, fetched, hashed. What is imported is compiled from the bytes that were compared with those
   digests: no file is opened twice, and no bytecode is kept.

A module is imported as kiln.packages.NAME_VERSION.MODULE, and so is what it imports of its own package, by
`from .other import …`. Modules of the same bytes in several packages are one module. Any function may be called from
any thread.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import pathlib
import re
import sys
import threading
from types import ModuleType
from typing import Any, NamedTuple, Optional, Sequence

from ._errors import IntegrityError, NotFound, UsageError, throw
from ._kernel import request_for
from ._library import LIBRARY

__path__: list[str] = []  # of this module, as if it were a folder: the finder below has what is in it

_BUNDLED = pathlib.Path(__file__).resolve().parent / "bundled"
_lock = threading.Lock()  # of _known
_known: dict[tuple[str, int], "_Modules"] = {}
_shared: dict[str, ModuleType] = {}  # by digest: modules that several packages may share


class _Source(NamedTuple):
    origin: str
    text: bytes

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.text).hexdigest()


class _Modules(NamedTuple):
    """Of one version of a package."""

    name: str
    version: int
    sources: dict[str, _Source]

    @property
    def own(self) -> str:
        return own_module(self.name)


def own_module(name: str) -> str:
    """"geglu-mlp" -> "geglu_mlp": the module that a package's name stands for."""
    return name.replace("-", "_")


def load(name: str, version: int = 0, **options: Any) -> ModuleType:
    """The package's own module. version 0: the bundled one, else the lock file's. `options` are those of get_kernel.
    Throws the classes of kiln.Error: NotFound, where the package has no Python module."""
    modules = _find(name, version, options)
    return importlib.import_module(f"{__name__}.{modules.own}_{modules.version}.{modules.own}")


def bundled() -> list[str]:
    """The names of the packages that came with this Kiln and have Python modules."""
    return [folder.name for folder in sorted(_BUNDLED.glob("*/")) if _listed(folder.name)]


def bundled_version(name: str) -> int:
    """0: it is not there."""
    return _listed(name).get("version", 0)


def loaded() -> list[ModuleType]:
    """The own module of each package of which this process has one."""
    names = [f"{__name__}.{modules.own}_{modules.version}.{modules.own}" for modules in list(_known.values())]
    return [sys.modules[name] for name in names if name in sys.modules]


def of(module_name: str) -> tuple[str, int]:
    """Name and version of the package that a module belongs to: of(__name__)."""
    found = _PATTERN.fullmatch(module_name)
    if found is None:
        raise UsageError(f"kiln.packages: {module_name} belongs to no package; load it by kiln.packages.load")
    return found[1].replace("_", "-"), int(found[2])


# ---- where they come from ----


@functools.lru_cache(maxsize=None)
def _listed(name: str) -> dict[str, Any]:
    """The package.json of a bundled package that has modules, else {}: read once, as the modules are imported once."""
    try:
        document = json.loads((_BUNDLED / name / "package.json").read_bytes())
    except FileNotFoundError:
        return {}
    return document if document.get("python") else {}


def _find(name: str, version: int, options: dict[str, Any]) -> _Modules:
    document = {} if options.get("registry") else _listed(name)
    if document and version in (0, document["version"]):
        known = _known.get((name, document["version"]))
        return known or _keep(_Modules(name, document["version"], {
            pathlib.PurePath(path).stem: _read(_BUNDLED / name / path) for path in document["python"]}))
    known = None if options else _known.get((name, version))
    return known or _keep(_of_dev_layer(name, version, options))


def _keep(modules: _Modules) -> _Modules:
    with _lock:
        known = _known.setdefault((modules.name, modules.version), modules)
    if {name: s.digest for name, s in known.sources.items()} != {name: s.digest for name, s in modules.sources.items()}:
        raise UsageError(f"load {modules.name}@{modules.version}: this process has other modules of that version, from "
                         f"{known.sources[known.own].origin}. A process imports one of them")
    return known


def _of_dev_layer(name: str, version: int, options: dict[str, Any]) -> _Modules:
    text = ctypes.c_void_p()
    throw(request_for(name, version, options).run(LIBRARY.kiln_dev_files, ctypes.byref(text)))
    try:
        dev = json.loads(ctypes.string_at(text.value or 0))
    finally:
        LIBRARY.kiln_release_text(text)
    sources = {}
    for file in dev["files"]:
        path = pathlib.PurePath(file["path"])
        if path.parent.name != "python" or path.suffix != ".py":
            continue
        source = _read(pathlib.Path(dev["folder"]) / path)
        if source.digest != file["digest"]:
            raise IntegrityError(f"load {name}@{dev['version']}: {source.origin} is {source.digest}, the version's config "
                                 f"says {file['digest']}. Nothing was imported; run 'kiln cache repair'")
        sources[path.stem] = source
    if own_module(name) not in sources:
        raise NotFound(f"load {name}@{dev['version']}: the package has no Python module {own_module(name)}; call its ops "
                       "by name, with kiln.get_kernel")
    return _Modules(name, dev["version"], sources)


def _read(file: pathlib.Path) -> _Source:
    return _Source(str(file), file.read_bytes())


# ---- how they are imported ----

_PATTERN = re.compile(re.escape(__name__) + r"\.([a-z0-9_]+)_([0-9]+)(?:\.([A-Za-z_]\w*))?")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Optional[Sequence[Any]] = None,
                  target: Optional[ModuleType] = None) -> Optional[importlib.machinery.ModuleSpec]:
        named = _PATTERN.fullmatch(fullname)
        if named is None:
            return None
        modules = _find(named[1].replace("_", "-"), int(named[2]), {})
        if named[3] is None:
            return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)
        source = modules.sources.get(named[3])
        if source is None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, _Loader(source, named[3] != modules.own), origin=source.origin)
        spec.has_location = True
        return spec


class _Loader(importlib.abc.Loader):
    """Of one module; without a source, of the package around it."""

    def __init__(self, source: Optional[_Source] = None, shared: bool = False) -> None:
        self._source, self._shared = source, shared

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Optional[ModuleType]:
        return _shared.get(self._source.digest) if self._source is not None and self._shared else None

    def exec_module(self, module: ModuleType) -> None:
        if self._source is None or _shared.get(self._source.digest) is module:
            return
        exec(compile(self._source.text, self._source.origin, "exec"), module.__dict__)
        if self._shared:
            _shared[self._source.digest] = module

    def get_source(self, _: str) -> Optional[str]:
        """For tracebacks and inspect.getsource."""
        return None if self._source is None else self._source.text.decode()


sys.meta_path.append(_Finder())
