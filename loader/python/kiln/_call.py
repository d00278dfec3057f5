# SPDX-License-Identifier: Apache-2.0
"""Op: one operation of a kernel, called with arrays. The last stage, after _kernel.

A call's structs are prepared once for each combination of shapes, dtypes and attributes (a Plan) and kept; a later
call of the same shapes only writes addresses into them. A Plan is taken out of its place while it is in use, so
that two threads, or a signal handler in the middle of a call, never share one.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import threading
from typing import Any, NamedTuple, Optional

from . import _tensors
from ._errors import InvalidCall, UsageError
from ._library import LIBRARY, Handle, as_text, failure, in_range
from ._schema import DTYPES, AttributeSchema, OpSchema, TensorSchema, parse_schema, plain, spelt
from ._structs import CAttribute, CCall, CError, CTensor
from ._tensors import CUDA, Layout

# Of each op: a program whose shapes keep changing would otherwise collect them without end.
MAX_PLANS = 1024
_ALIGNMENT = 256
_KINDS = {"int": 1, "float": 2, "string": 3}  # kiln_attribute_kind

_run = LIBRARY.kiln_run


class _Output(NamedTuple):
    """How an output is made that the caller did not bring."""

    position: int
    shape: tuple[int, ...]
    dtype: Any
    device: Any


class _Plan:
    """A kiln_call with everything that it points to, ready but for addresses and stream."""

    __slots__ = ("call", "reference", "tensors", "made", "written", "spans", "workspace_bytes", "by_address",
                 "of_torch", "requires_grad", "keep")

    call: CCall
    reference: Any
    tensors: list[CTensor]  # of those that the call has: the caller's, then those in `made`
    made: list[_Output]
    written: list[int]  # the positions of those of the caller that are outputs or inouts
    spans: list[tuple[int, int]]  # position and bytes of the caller's, as their addresses come
    workspace_bytes: int  # wherever the tensors lie
    by_address: Optional[bool]  # whether some addresses need less; None: no call has told yet
    of_torch: bool
    requires_grad: bool
    keep: Any


class _HostScratch(threading.local):
    """Host memory for the workspaces of a thread's calls; grows to the largest."""

    buffer: Any = None

    def take(self, size: int) -> Any:
        buffer, self.buffer = self.buffer, None
        if buffer is None or len(buffer) < size + _ALIGNMENT:
            buffer = (ctypes.c_char * (size + _ALIGNMENT))()
        return buffer


_scratch = _HostScratch()


def _aligned(address: int) -> int:
    return (address + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _current_stream(index: int) -> int:
    """The stream that PyTorch enqueues on now, or the legacy default stream where torch is not in use."""
    torch = _tensors.torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return torch.cuda.current_stream(index).cuda_stream


def _bind_current_stream() -> None:
    """PyTorch's own way to the bare handle, which torch.compile's code calls too, costs a tenth of the object."""
    global _stream_of
    torch = _tensors.torch_module()
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None) if torch is not None else None
    if raw is not None and torch.cuda.is_initialized():
        _stream_of = raw


_stream_of: Any = None


def _stream_on(index: int) -> int:
    if _stream_of is None:
        _bind_current_stream()
        if _stream_of is None:
            return _current_stream(index)
    return _stream_of(index)


class Op(Handle):
    """One op of a Kernel. Call it with arrays, in the schema's order or by name:

        y = kernel.forward(x, gate, up, down, approximate="none")
        kernel.forward(x, gate, up, down, y=y)

    An output that is left out is allocated by the framework of the first input (torch or numpy) and returned; an
    output that was passed is written and returned. An optional output is computed where it is passed, or asked for
    with True. Several outputs come as a named tuple, None for those that were not asked for. An inout, which the
    manual of the op names so, is read and written where it is passed: what it held counts. An op that writes nothing
    else returns None.

    `stream`: a CUstream as int, or an object with `cuda_stream`; default: PyTorch's current stream, else the legacy
    default stream. A call on a GPU is asynchronous: what it reads and writes must live until the stream has passed
    it, which PyTorch's allocator guarantees for its tensors. `workspace`: a uint8 array of at least
    workspace_bytes(...) bytes, 256-byte aligned; default: torch's allocator on a GPU, memory of the thread on a CPU.

    Throws InvalidCall and DeviceError. Any thread may call it. Gradients do not flow through it: kiln.torch has
    layers for that.
    """

    def __init__(self, pointer: Any, device: tuple[int, int], threads: int = 0) -> None:
        self._pointer = ctypes.cast(pointer, ctypes.c_void_p)
        self.schema: OpSchema = parse_schema(pointer.contents.schema.decode())
        self.name: str = self.schema.name
        self.__doc__ = self.schema.manual()
        self._device = device
        self._threads = threads
        self._on_gpu = device[0] == CUDA
        self._count = len(self.schema.tensors)
        self.positions = {t.name: i for i, t in enumerate(self.schema.tensors)}
        self._attributes = {a.name: a for a in self.schema.attributes}
        self._outputs = [i for i, t in enumerate(self.schema.tensors) if t.output]
        self._absent = (None,) * self._count
        self._result = (None if len(self._outputs) <= 1 else
                        collections.namedtuple(spelt(self.name), [spelt(self.schema.tensors[i].name) for i in self._outputs]))
        self._plans: dict[Any, list[_Plan]] = {}

    def __repr__(self) -> str:
        return f"<kiln op {self.schema.signature()}>"

    def __call__(self, /, *tensors: Any, stream: Any = None, workspace: Any = None, **named: Any) -> Any:
        if named or len(tensors) != self._count:
            values, words = self._bind(tensors, named)
        else:
            values, words = list(tensors), ()
        if stream is None:
            stream = _stream_on(self._device[1]) if self._on_gpu else None
            return self._run(values, words, stream, workspace, True)
        handle = _handle_of(stream, self.name)
        with _allocating_on(handle, self._device):
            return self._run(values, words, handle, workspace, True)

    def call(self, values: list[Any], words: tuple[Any, ...], threads: int = 0) -> Any:
        """For layers: all tensors in a list, None for those left out, and the attributes as sorted pairs. `threads`: as
        get_kernel's, for this call."""
        return self._run(values, words, _stream_on(self._device[1]) if self._on_gpu else None, None, False, threads)

    def workspace_bytes(self, /, *tensors: Any, **named: Any) -> int:
        """How much scratch memory a call with these arguments needs; outputs may be left out."""
        values, words = self._bind(tensors, named)
        _, keys, _ = _read(values, None)
        return self._prepare(values, keys, words).workspace_bytes

    def check_attributes(self, attributes: dict[str, Any]) -> None:
        """Throws InvalidCall for a value that a call with these attributes would be refused for."""
        self._attributes_of(tuple(attributes.items()))

    def _bind(self, tensors: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """The arguments in the schema's order, and the attributes by name."""
        if len(tensors) > self._count:
            raise TypeError(f"{self.name} has {self._count} tensors, {len(tensors)} are given; attributes are passed "
                            f"by name. {self.schema.signature()}")
        values = [*tensors, *self._absent[len(tensors):]]
        words: list[Any] = []
        for name, value in named.items():
            name = plain(name)
            position = self.positions.get(name)
            if position is None:
                if name not in self._attributes:
                    raise TypeError(f"{self.name} has no argument {name!r}. {self.schema.signature()}")
                words.append((name, value))
            elif position < len(tensors):
                raise TypeError(f"{self.name} is given {name} twice. {self.schema.signature()}")
            else:
                values[position] = value
        words.sort()
        return values, tuple(words)

    def _run(self, values: list[Any], words: tuple[Any, ...], stream: Optional[int], workspace: Any,
             by_user: bool, threads: int = 0) -> Any:
        addresses, key, owners = _read(values, stream)
        key.append(words)
        place = tuple(key)
        try:
            plans = self._plans.get(place)
        except TypeError:  # no attribute takes a value that has no hash
            self._attributes_of(words)
            raise
        if plans is None:
            plan = self._prepare(values, key, words)
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plans = self._plans[place] = []
        else:
            try:
                plan = plans.pop()
            except IndexError:  # another thread has it
                plan = self._prepare(values, key, words)
        if by_user:
            if plan.of_torch:
                _refuse_unseen(self.name)
            if plan.written:
                self._refuse_overlaps(plan, addresses)
        if plan.requires_grad and _tensors.torch_module().is_grad_enabled():
            raise InvalidCall(f"{self.name}: a tensor requires a gradient, and none flows through an op. Use the "
                              "layers of kiln.torch, or call it under torch.no_grad()")
        for made in plan.made:
            value = values[made.position] = _make(made)
            addresses.append(_tensors.read(value, stream)[0])
        for struct, address in zip(plan.tensors, addresses):
            struct.data = address
        call = plan.call
        call.stream = stream or None
        call.threads = min(threads, self._threads) if threads and self._threads else threads or self._threads
        if workspace is not None:
            call.workspace, key, owner = _tensors.read(workspace, stream)
            call.workspace_bytes = _bytes_of(_tensors.describe(workspace, key), self._device, self.name)
            owners.append(owner)
            code = _run(self._pointer, plan.reference, None)
        elif plan.workspace_bytes == 0:
            code = _run(self._pointer, plan.reference, None)
        elif self._on_gpu:
            size = plan.workspace_bytes
            if plan.by_address is not False:
                size = self._workspace_of(plan)
                plan.by_address = plan.by_address or size < plan.workspace_bytes
            scratch = _device_scratch(size, self._device, self.name)
            call.workspace, call.workspace_bytes = scratch.data_ptr(), size
            code = _run(self._pointer, plan.reference, None)
        else:
            buffer = _scratch.take(plan.workspace_bytes)
            call.workspace, call.workspace_bytes = _aligned(ctypes.addressof(buffer)), plan.workspace_bytes
            code = _run(self._pointer, plan.reference, None)
            _scratch.buffer = buffer
        if code != 0:
            raise failure(code)
        for position in plan.written:
            _tensors.tell_written(values[position])
        plans.append(plan)
        if self._result is None:
            return values[self._outputs[0]] if self._outputs else None
        return self._result(*[values[i] for i in self._outputs])

    def _prepare(self, values: list[Any], keys: list[Any], words: tuple[Any, ...]) -> _Plan:
        """Throws InvalidCall in the package's own words where the arguments do not fit the schema."""
        layouts: list[Optional[Layout]] = [
            None if key is None or key is True else _tensors.describe(value, key) for value, key in zip(values, keys)]
        schemas = self.schema.tensors
        extents: dict[str, int] = {}
        for schema, layout, key in zip(schemas, layouts, keys):
            if layout is None:
                if key is True and not schema.output:
                    raise InvalidCall(f"{self.name}: {schema.name} is True; expected a tensor: it is not an output")
                if not schema.output and not schema.optional:
                    raise InvalidCall(f"{self.name}: {schema.name} is missing; expected a tensor. "
                                      f"{self.schema.signature()}")
                continue
            if (schema.output or schema.inout) and layout.readonly != "":
                raise InvalidCall(f"{self.name}: {schema.name} {layout.readonly}; expected memory that may be written")
            if len(layout.shape) != len(schema.shape):
                raise InvalidCall(f"{self.name}: {schema.name} has shape {list(layout.shape)}; expected "
                                  f"[{', '.join(map(str, schema.shape))}]")
            for name, extent in zip(schema.shape, layout.shape):
                if isinstance(name, str):
                    extents.setdefault(name, extent)
        plan = _Plan()
        plan.tensors, plan.made = [], []
        for position, schema in enumerate(schemas):
            if schema.output and layouts[position] is None and (not schema.optional or keys[position] is True):
                layout = layouts[position] = self._layout_of(schema, layouts, extents)
                plan.made.append(_Output(position, layout.shape, layout.own_dtype, layout.own_device))
        made = {output.position for output in plan.made}
        order = [i for i in range(self._count) if layouts[i] is not None and i not in made] + sorted(made)
        keep: list[Any] = []
        pointers = (ctypes.POINTER(CTensor) * self._count)()
        for position in order:  # as their addresses come: the caller's, then what is made here
            layout = layouts[position]
            assert layout is not None  # as order has it
            struct = _struct_of(layout, keep)
            pointers[position] = ctypes.pointer(struct)
            plan.tensors.append(struct)
        attributes = self._attributes_of(words)
        plan.call = CCall(struct_size=ctypes.sizeof(CCall), tensor_count=self._count, tensors=pointers,
                          attribute_count=len(attributes), threads=self._threads, attributes=attributes)
        plan.keep = (keep, pointers, attributes, words)
        plan.reference = ctypes.pointer(plan.call)
        plan.spans = [(i, layout.bytes_spanned()) for i, layout in enumerate(layouts)
                      if layout is not None and i not in made]
        plan.written = [i for i, _ in plan.spans if schemas[i].output or schemas[i].inout]
        plan.of_torch = any(layout is not None and layout.framework == "torch" for layout in layouts)
        plan.requires_grad = any(layout is not None and layout.requires_grad for layout in layouts)
        plan.workspace_bytes = self._workspace_of(plan)
        plan.by_address = None
        return plan

    def _workspace_of(self, plan: _Plan) -> int:
        size, error = ctypes.c_size_t(), CError()
        code = LIBRARY.kiln_workspace_bytes(self._pointer, ctypes.cast(plan.reference, ctypes.c_void_p),
                                            ctypes.byref(size), ctypes.byref(error))
        if code != 0:
            raise failure(code)
        return size.value

    def _refuse_overlaps(self, plan: _Plan, addresses: list[int]) -> None:
        """What is written may be another tensor itself, where the package's card says so; never a part of one."""
        places = [(i, address, size) for (i, size), address in zip(plan.spans, addresses)]
        for i, begin, size in places:
            if i not in plan.written:
                continue
            for j, other, length in places:
                same = begin == other and size == length and j not in plan.written
                if j != i and not same and begin < other + length and other < begin + size:
                    names = (self.schema.tensors[i].name, self.schema.tensors[j].name)
                    raise InvalidCall(f"{self.name}: {names[0]} and {names[1]} overlap in memory, and {names[0]} is "
                                      "written; expected memory of its own")

    def _layout_of(self, schema: TensorSchema, layouts: list[Optional[Layout]], extents: dict[str, int]) -> Layout:
        """Of an output that is allocated here: as the input whose dtype it has."""
        first = next((layout for layout in layouts if layout is not None), None)
        model = layouts[self.positions[schema.same_as]] if schema.same_as is not None else None
        if model is None and first is not None and len(schema.dtypes) == 1:
            model = _tensors.with_dtype(first, schema.dtypes[0])
        unknown = [name for name in schema.shape if isinstance(name, str) and name not in extents]
        if model is None or unknown or model.framework not in ("torch", "numpy"):
            why = (f"no input says how large {unknown[0]} is" if unknown else "no input says its dtype" if model is None
                   else f"Kiln allocates for torch and numpy, and {model.framework} is neither")
            raise InvalidCall(f"{self.name}: {schema.name} cannot be allocated: {why}. Pass {schema.name}=")
        shape = tuple(extents[e] if isinstance(e, str) else e for e in schema.shape)
        return model._replace(shape=shape, strides=None, readonly="")

    def _attributes_of(self, words: tuple[Any, ...]) -> Any:
        given = dict(words)
        row = (CAttribute * len(self.schema.attributes))()
        for struct, schema in zip(row, self.schema.attributes):
            if schema.name not in given:
                continue  # zero is "take the default"
            value = _attribute_of(self.name, schema, given.pop(schema.name))
            struct.kind = _KINDS[schema.type]
            if schema.type == "int":
                struct.value.as_int = value
            elif schema.type == "float":
                struct.value.as_float = value
            else:
                struct.value.as_string = value
        if given:
            raise InvalidCall(f"{self.name}: has no attribute {sorted(given)[0]!r}. {self.schema.signature()}")
        return row

def _attribute_of(op: str, schema: AttributeSchema, value: Any) -> Any:
    """As ctypes takes it, whole; or InvalidCall. True and False are the words of an attribute that is "yes" or "no"."""
    if isinstance(value, bool) and sorted(schema.values) == ["no", "yes"]:
        value = "yes" if value else "no"
    kinds: Any = {"int": int, "float": (int, float), "string": str}[schema.type]
    expected = f"one of {', '.join(map(repr, schema.values))}" if schema.values else _EXPECTED[schema.type]
    if isinstance(value, bool) or not isinstance(value, kinds) or (schema.values and value not in schema.values):
        raise InvalidCall(f"{op}: {schema.name} is {value!r}; expected {expected}")
    try:
        if schema.type == "string":
            return as_text(value, f"{op}: {schema.name}")
        return in_range(value, 64, f"{op}: {schema.name}") if schema.type == "int" else float(value)
    except (UsageError, OverflowError) as error:
        raise InvalidCall(str(error)) from None


_EXPECTED = {"int": "an integer", "float": "a number", "string": "a string"}


def _read(values: list[Any], stream: Optional[int]) -> tuple[list[int], list[Any], list[Any]]:
    """Addresses of the tensors that are there, the key of a plan, and what must live during the call."""
    addresses, keys, owners = [], [], []
    for value in values:
        if value is None or value is True:
            keys.append(value)
        else:
            address, key, owner = _tensors.read(value, stream)
            addresses.append(address)
            keys.append(key)
            if owner is not None:
                owners.append(owner)
    return addresses, keys, owners


def _struct_of(layout: Layout, keep: list[Any]) -> CTensor:
    dimensions = len(layout.shape)
    extents = (ctypes.c_int64 * max(dimensions, 1))(*layout.shape)
    strides = None if layout.strides is None else (ctypes.c_int64 * max(dimensions, 1))(*layout.strides)
    struct = CTensor(ndim=dimensions, code=layout.dtype[0], bits=layout.dtype[1], lanes=1, shape=extents,
                     strides=strides)
    struct.device.type, struct.device.id = layout.device
    keep.append((struct, extents, strides))
    return struct


def _refuse_unseen(op: str) -> None:
    """PyTorch does not see an op: a tracer of its operators would keep the result as a number that never changes."""
    from .between import observer  # imports torch, which the caller has

    why = observer()
    if why != "":
        raise InvalidCall(f"{op}: {why}, and an op is not one of them. Use the layers of kiln.torch")


def _make(output: _Output) -> Any:
    if output.device is not None:
        return _tensors.torch_module().empty(output.shape, dtype=output.dtype, device=output.device)
    import numpy

    return numpy.empty(output.shape, output.dtype)


def _handle_of(stream: Any, op: str) -> int:
    handle = getattr(stream, "cuda_stream", stream)
    if isinstance(handle, bool) or not isinstance(handle, int) or not 0 <= handle < 1 << 64:
        raise InvalidCall(f"{op}: stream is {stream!r}; expected a CUstream as int, or an object with cuda_stream")
    return handle


def _allocating_on(handle: int, device: tuple[int, int]) -> Any:
    """What is allocated for a call on another stream than PyTorch's current one must belong to that stream."""
    torch = _tensors.torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return _NOTHING
    return torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device[1]))


_NOTHING = contextlib.nullcontext()


def _device_scratch(size: int, device: tuple[int, int], op: str) -> Any:
    torch = _tensors.torch_module()
    if torch is None:
        raise InvalidCall(f"{op}: needs {size} bytes of scratch memory on the GPU, which Kiln allocates through torch "
                          "only. Pass workspace=, a uint8 array of that size")
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device[1]}")


def _bytes_of(layout: Layout, device: tuple[int, int], op: str) -> int:
    if layout.readonly != "":
        raise InvalidCall(f"{op}: the workspace {layout.readonly}; expected memory that may be written")
    if layout.device != device or layout.dtype != DTYPES["uint8"] or len(layout.shape) != 1 or (
            layout.strides not in (None, (1,))):
        raise InvalidCall(f"{op}: the workspace is a {layout.dtype_name()} array of shape {list(layout.shape)} on "
                          f"device {layout.device}; expected uint8, one dimension, compact, on device {device}")
    return layout.shape[0]
