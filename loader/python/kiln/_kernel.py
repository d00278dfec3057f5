# SPDX-License-Identifier: Apache-2.0
"""get_kernel, has_kernel, prefetch, resolve: kiln.h's requests. The stage before _call.

A call from the main thread runs on a thread of its own, while the main thread waits where Ctrl-C reaches it:
KeyboardInterrupt then stops a download or a wait within a fraction of a second, and leaves nothing half-done.
"""

from __future__ import annotations

import collections.abc
import ctypes
import json
import os
import threading
from typing import Any, Callable, NamedTuple, Optional, Sequence, Union

from ._call import Op
from ._errors import DeviceError, UsageError, throw
from ._library import LIBRARY, Handle, as_flag, as_path, as_text, failure, in_python, in_range, text
from ._schema import plain
from ._structs import EVENT_FUNCTION, CDevice, CError, CEvent, COp, CRequest
from ._tensors import CPU

Path = Union[str, "os.PathLike[str]"]


class Event(NamedTuple):
    """What an install is doing."""

    stage: str  # "index", "manifest", "config", "layer", "unpack", "retry", "wait", "fallback", "compile",
    #            "warning"
    subject: str  # "geglu-mlp@1 cu12.9-sm_90a-x86_64"
    note: str  # one line for people, or "" while bytes arrive
    done: int  # bytes
    total: int  # bytes; 0: not known


class Cancel(Handle):
    """Stops every call that it is given to, with Cancelled. `now()` may be called from any thread."""

    _as_parameter_: Optional[int] = None

    def __init__(self) -> None:
        if self._as_parameter_ is not None:
            return  # a second __init__ of one object
        self._as_parameter_ = LIBRARY.kiln_new_cancel()
        if not self._as_parameter_:
            raise MemoryError("kiln: out of memory")

    def now(self) -> None:
        LIBRARY.kiln_cancel_now(self._as_parameter_)

    def __del__(self) -> None:
        if self._as_parameter_:
            LIBRARY.kiln_release_cancel(self._as_parameter_)


def _device_of(device: Any) -> tuple[int, int]:
    """kiln_device_kind and ordinal of None, "cpu", "cuda", "cuda:1" or a torch.device."""
    if device is None:
        return 0, 0
    words = str(device)
    kind, _, ordinal = words.partition(":")
    if kind == "cpu" and ordinal in ("", "0"):
        return 1, 0
    if kind == "cuda" and (ordinal.isdecimal() or words == "cuda"):
        return 2, in_range(int(ordinal or 0), 32, "get kernel: the device's number")
    raise UsageError(f"get kernel: the device is {words!r}; expected 'cpu', 'cuda', 'cuda:N' or None")


def _texts_of(words: Sequence[str], what: str) -> tuple[bytes, ...]:
    if isinstance(words, (str, bytes)):
        raise UsageError(f"get kernel: {what} {words!r} is one text; expected a list of them")
    if not isinstance(words, collections.abc.Iterable):
        raise UsageError(f"get kernel: {what} is {words!r}; expected a list of texts")
    return tuple(as_text(word, f"get kernel: one of {what}") for word in words)


def _list_of(words: tuple[bytes, ...]) -> Any:
    return (ctypes.c_char_p * (len(words) + 1))(*words, None) if words else None


class _Words(NamedTuple):
    """What a request says, as C takes it. Requests that say the same get the same kernel."""

    name: bytes
    version: int
    device: tuple[int, int]
    registry: Optional[bytes]
    variant: Optional[bytes]
    cache: Optional[bytes]
    allow_jit: bool
    offline: bool
    load_mode: str
    lock: Optional[bytes]
    source: Optional[bytes]
    fallback: tuple[bytes, ...]
    deny: tuple[bytes, ...]
    all_gpus: bool
    threads: int

    def is_the_same_later(self) -> bool:
        """A relative path is another one in another folder."""
        return all(path is None or path.startswith(b"/") or b"://" in path
                   for path in (self.registry, self.cache, self.lock, self.source))


def _words_of(name: str, version: int, device: Any, registry: Optional[Path], variant: Optional[str],
              cache: Optional[Path], allow_jit: bool, offline: bool, load_mode: str, lock: Optional[Path],
              source: Optional[Path], fallback: Sequence[str], deny: Sequence[str], all_gpus: bool,
              threads: int) -> _Words:
    if load_mode not in ("memory", "path"):
        raise UsageError(f"get kernel: load_mode is {load_mode!r}; expected 'memory' or 'path'")

    def path(value: Optional[Path], what: str) -> Optional[bytes]:
        return None if value is None else as_path(value, f"get kernel: {what}")

    def flag(value: bool, what: str) -> bool:
        return as_flag(value, f"get kernel: {what}")

    return _Words(as_text(name, "get kernel: the name"), in_range(version, 32, "get kernel: version"),
                  _device_of(device), path(registry, "registry"),
                  None if variant is None else as_text(variant, "get kernel: variant"), path(cache, "cache"),
                  flag(allow_jit, "allow_jit"), flag(offline, "offline"), load_mode, path(lock, "lock"),
                  path(source, "source"), _texts_of(fallback, "fallback"), _texts_of(deny, "deny"),
                  flag(all_gpus, "all_gpus"), _bound_of(threads))


def _bound_of(threads: int) -> int:
    bound = in_range(threads, 32, "get kernel: threads")
    if bound < 0:
        raise UsageError(f"get kernel: threads is {bound}; expected 1 or more, or 0 for no bound")
    return bound


class _Request:
    """A kiln_request and what it points to."""

    def __init__(self, words: _Words, *, refresh: bool, on_event: Optional[Callable[[Event], None]],
                 cancel: Optional[Cancel]) -> None:
        if cancel is not None and not isinstance(cancel, Cancel):
            raise UsageError(f"get kernel: cancel is {cancel!r}; expected a kiln.Cancel")
        if on_event is not None and not callable(on_event):
            raise UsageError(f"get kernel: on_event is {on_event!r}; expected a function of an Event")
        self.words = words
        self.cancel = Cancel() if cancel is None else cancel
        self.thrown: Optional[BaseException] = None  # by on_event
        self.c = CRequest(struct_size=ctypes.sizeof(CRequest), version=words.version, device_kind=words.device[0],
                          device_ordinal=words.device[1], registry=words.registry, variant=words.variant,
                          cache=words.cache, no_jit=not words.allow_jit,
                          refresh=as_flag(refresh, "get kernel: refresh"), cancel=self.cancel._as_parameter_,
                          offline=words.offline, load_mode=words.load_mode == "path", lock=words.lock,
                          from_=words.source, fallback=_list_of(words.fallback), deny=_list_of(words.deny),
                          all_gpus=words.all_gpus)
        if on_event is not None:
            self.c.on_event = EVENT_FUNCTION(self._teller(on_event))

    def _teller(self, on_event: Callable[[Event], None]) -> Callable[[int, Any], None]:
        def tell(address: int, _: Any) -> None:
            c = CEvent.from_address(address)
            try:
                on_event(Event(text(c.stage), text(c.subject), text(c.note), c.done, c.total))
            except BaseException as error:  # it must not pass through C: run() throws it
                self.thrown = self.thrown or error
                self.cancel.now()

        return tell

    def run(self, function: Callable[..., int], *places: Any) -> Optional[Exception]:
        """None, or what went wrong."""
        answer: list[Any] = []
        done = threading.Event()

        def call() -> None:
            try:
                error = CError()
                code = function(self.words.name, ctypes.byref(self.c), *places, ctypes.byref(error))
                answer.append(failure(code) if code != 0 else None)
            except BaseException as error:
                answer.append(error)
            finally:
                done.set()

        if threading.current_thread() is threading.main_thread():
            worker = threading.Thread(target=call, name="kiln", daemon=True)
            worker.start()
            try:
                done.wait()
            except BaseException:  # KeyboardInterrupt, or what another signal handler throws
                self.cancel.now()
                worker.join()
                raise
            worker.join()
        else:
            call()
        self.c.on_event = EVENT_FUNCTION(0)  # which refers to this object
        thrown, self.thrown = self.thrown, None
        try:
            throw(thrown)
            return answer.pop()
        finally:
            del thrown


class Kernel(Handle):
    """A loaded kernel. Its ops are attributes: kernel.forward(…); `ops` lists them. The library stays in the process
    until it ends, and a second get of the same request touches neither disk nor network."""

    def __init__(self, pointer: Any, threads: int = 0) -> None:
        self._pointer = pointer
        self._threads = threads  # the bound of get_kernel
        self.name: str = text(LIBRARY.kiln_kernel_name(pointer))
        self.version: int = LIBRARY.kiln_kernel_version(pointer)
        self.variant: str = text(LIBRARY.kiln_kernel_variant(pointer))
        self.library: str = text(LIBRARY.kiln_kernel_library(pointer))  # the file in the cache
        package = self._package = LIBRARY.kiln_kernel_package(pointer).contents
        self.build_id: str = text(package.build_id)
        found: CDevice = LIBRARY.kiln_kernel_device(pointer)
        self._dl_device = (found.type, found.id)
        self.device: str = "cpu" if found.type == CPU else f"cuda:{found.id}"
        self._prepare()
        self._ops: dict[str, Op] = {}
        for index in range(package.op_count):
            op = ctypes.cast(package.ops + index * package.op_stride, ctypes.POINTER(COp)).contents
            self._ops[text(op.name)] = self._find(op.name)
        # As attributes, unless the name is one that a kernel has already: op() has those.
        self.__dict__.update({k: v for k, v in self._ops.items() if not hasattr(type(self), k) and k not in vars(self)})

    def _prepare(self) -> None:
        """The install ran on another thread, in the device's primary context; this one may have a context of its
        own."""
        error = CError()
        if self._package.prepare(CDevice(*self._dl_device), ctypes.byref(error)) != 0:
            raise DeviceError(f"prepare {self.name}@{self.version} on {self.device}: {text(error.text)}")

    def _find(self, name: bytes) -> Op:
        op, error = ctypes.POINTER(COp)(), CError()
        code = LIBRARY.kiln_find_op(self._pointer, name, ctypes.byref(op), ctypes.byref(error))
        if code != 0:
            raise failure(code)
        return Op(op, self._dl_device, self._threads)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(self._ops)

    def op(self, name: str) -> Op:
        """NotFound lists the ops that there are."""
        return self._ops[name] if name in self._ops else self._find(as_text(name, "find op: the name"))

    def __getattr__(self, name: str) -> Op:
        ops = self.__dict__.get("_ops", {})
        name = plain(name)
        if name not in ops:
            raise AttributeError(f"{self.__dict__.get('name', 'the kernel')} has no op {name!r}; it has "
                                 f"{', '.join(ops) or 'none'}")
        return ops[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._ops]

    @property
    def explanation(self) -> str:
        """Every variant, and why it was taken or not: a table for people."""
        return in_python(text(LIBRARY.kiln_kernel_explanation(self._pointer)))

    @property
    def fallback(self) -> str:
        """The same tables of what did not fit before a fallback was taken; "": none was needed."""
        return in_python(text(LIBRARY.kiln_kernel_fallback(self._pointer)))

    def __repr__(self) -> str:
        return f"<kiln kernel {self.name}@{self.version} {self.variant} on {self.device}: {', '.join(self._ops)}>"

    def __del__(self) -> None:
        pointer = self.__dict__.get("_pointer")
        if pointer:
            LIBRARY.kiln_release_kernel(pointer)


def get_kernel(name: str, version: int = 0, *, device: Any = None, registry: Optional[Path] = None,
               variant: Optional[str] = None, cache: Optional[Path] = None, allow_jit: bool = True,
               refresh: bool = False, offline: bool = False, load_mode: str = "memory", lock: Optional[Path] = None,
               source: Optional[Path] = None, fallback: Sequence[str] = (), deny: Sequence[str] = (),
               all_gpus: bool = False, threads: int = 0, on_event: Optional[Callable[[Event], None]] = None,
               cancel: Optional[Cancel] = None) -> Kernel:
    """Finds, installs, verifies and loads one version of a package for this machine.

    version      one published integer, which pins the exact build; 0: the lock file's
    device       "cpu", "cuda", "cuda:1" or a torch.device, never exchanged for another; None: GPU 0 where there is
                 one, else the CPU
    registry     folder or http(s) URL; default: $KILN_REGISTRY, else the settings', else that of Kiln's prefix
    variant      take this one only; default: the best that fits
    cache        absolute folder; default: $KILN_CACHE, else ~/.cache/kiln
    allow_jit    False: never a PTX variant, which the driver compiles at load
    refresh      ask the registry although the cache can answer; replace what is damaged
    offline      fetch nothing: what is not in the cache is an OfflineError
    load_mode    "path" loads the file itself, for gdb, perf and nsys; weaker
    lock         lock file that the request is held to; default: $KILN_LOCK
    source       mirror, folder or bundle file to fetch from in place of `registry`
    fallback     "cpu" or "version:2": tried in this order where no variant fits, the GPU is not there or its driver fails
    deny         variants never taken, by id or by digest
    all_gpus     only a variant that runs on every visible GPU
    threads      the most CPU threads that a call computes with, the caller's counted; 0: no bound beside the affinity
                 mask, the control groups' quota and $OMP_NUM_THREADS
    on_event     told what happens, on a thread of the install; what it throws ends the call
    cancel       stops the call from another thread

    Throws the classes of kiln.Error. Ctrl-C stops it with KeyboardInterrupt.
    """
    words = _words_of(name, version, device, registry, variant, cache, allow_jit, offline, load_mode, lock, source,
                      fallback, deny, all_gpus, threads)
    request = _Request(words, refresh=refresh, on_event=on_event, cancel=cancel) if (
        refresh is not False or on_event is not None or cancel is not None) else None
    known = _kernels.get(words) if request is None else None
    if known is not None:
        if known.device != "cpu":
            known._prepare()
        return known
    request = request or _Request(words, refresh=False, on_event=None, cancel=None)
    pointer = ctypes.c_void_p()
    throw(request.run(LIBRARY.kiln_get_kernel, ctypes.byref(pointer)))
    kernel = Kernel(pointer, words.threads)
    if words.is_the_same_later():
        if refresh:
            _kernels[words] = kernel
        return _kernels.setdefault(words, kernel)
    return kernel


_kernels: dict[_Words, Kernel] = {}  # as the library remembers them: for as long as the process


class Availability(NamedTuple):
    """What has_kernel found: true where get_kernel would not need the network."""

    available: bool
    reason: Optional[Exception]  # why not, with its code

    def __bool__(self) -> bool:
        return self.available


def has_kernel(name: str, version: int = 0, **options: Any) -> Availability:
    """Whether get_kernel would find this offline, up to the load. Reads the cache, asks no network, installs nothing.
    All that it may write is what it remembers: which signatures held, beside trust.json, and the lock file of a cache
    that lacks it. Takes the options of get_kernel; throws UsageError for a request that is not valid."""
    wrong = request_for(name, version, options).run(LIBRARY.kiln_has_kernel)
    try:
        throw(wrong if isinstance(wrong, UsageError) else None)
        return Availability(wrong is None, wrong)
    finally:
        del wrong


def prefetch(name: str, version: int = 0, **options: Any) -> None:
    """What get_kernel does up to the load: finds, installs and verifies, so that a later get_kernel of this request
    needs no network. Loads nothing and starts no CUDA. Takes the options of get_kernel and throws what it throws."""
    throw(request_for(name, version, options).run(LIBRARY.kiln_prefetch))


def resolve(name: str, version: int = 0, **options: Any) -> dict[str, Any]:
    """Which variant this machine would get, and why not the others: the document of `kiln resolve --json`, whose
    "chosen" is None where none fits. Installs and loads nothing; asks the registry as get_kernel would. Takes the
    options of get_kernel."""
    document = ctypes.c_void_p()
    wrong = request_for(name, version, options).run(LIBRARY.kiln_resolve, ctypes.byref(document))
    try:
        if not document.value:
            throw(wrong or MemoryError("kiln: out of memory"))
        return json.loads(ctypes.string_at(document.value or 0))
    finally:
        del wrong
        LIBRARY.kiln_release_text(document)


def request_for(name: str, version: int, options: dict[str, Any]) -> _Request:
    given = dict(get_kernel.__kwdefaults__ or {})
    unknown = set(options) - set(given)
    if unknown:
        raise TypeError(f"there is no option {sorted(unknown)[0]!r}; there are {', '.join(sorted(given))}")
    given.update(options)
    rest = {key: given.pop(key) for key in ("refresh", "on_event", "cancel")}
    return _Request(_words_of(name, version, **given), **rest)
