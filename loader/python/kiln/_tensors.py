# SPDX-License-Identifier: Apache-2.0
"""Arrays of any framework as DLPack tensors, without a copy.

A reader takes an array and gives (pointer, layout, owner): the address of its first element; what else a DLTensor
has of it, as a hashable value, from which a call is found that was prepared for such arrays; and what must live
until the call returns, or None. PyTorch's tensors and numpy's arrays have readers of their own, which are faster
than a capsule; every other object is asked for __dlpack__. `describe` turns a layout into a Layout.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, NamedTuple, Optional

from ._errors import InvalidCall
from ._library import CTensor
from ._schema import DTYPES

CPU, CUDA = 1, 2  # DLDeviceType
_HOST_KINDS = (3, 11)  # kDLCUDAHost and kDLROCMHost: pinned, and a CPU reads them
_MANAGED = 13  # kDLCUDAManaged
_NAMES = {number: name for name, number in DTYPES.items()}


class Layout(NamedTuple):
    """What a DLTensor says besides its address."""

    device: tuple[int, int]  # DLDevice
    dtype: tuple[int, int]  # code and bits, one lane
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]]  # in elements; None: compact
    readonly: bool
    framework: str  # the module that makes arrays like it: "torch", "numpy", or another one's name
    own_dtype: Any  # the framework's own dtype and device, to make another such array
    own_device: Any
    requires_grad: bool = False

    def dtype_name(self) -> str:
        return _NAMES.get(self.dtype, f"dtype {self.dtype}")


# ---- PyTorch ----


class _Torch:
    """Readers of torch.Tensor, made when the first one comes: importing kiln does not import torch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        # torch has no public function that says a dtype's DLPack number without making a capsule.
        self.dtypes = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}

    @staticmethod
    def read(tensor: Any) -> tuple[int, Any, None]:
        return tensor.data_ptr(), (tensor.shape, tensor.stride(), tensor.dtype, tensor.device,
                                   tensor.requires_grad), None

    def describe(self, key: Any) -> Layout:
        shape, strides, dtype, device, requires_grad = key
        if device.type not in ("cpu", "cuda") or dtype not in self.dtypes:
            raise InvalidCall(f"call: a torch tensor on {device} with {dtype}; expected one on the CPU or a GPU of "
                              f"CUDA, with one of {', '.join(DTYPES)}")
        where = (CPU, 0) if device.type == "cpu" else (CUDA, device.index or 0)
        return Layout(where, self.dtypes[dtype], tuple(shape), strides, False, "torch", dtype, device,
                      requires_grad)


# ---- numpy ----


def _read_numpy(array: Any) -> tuple[int, Any, None]:
    facts = array.__array_interface__
    pointer, readonly = facts["data"]
    return pointer, (array.shape, facts["strides"], array.dtype, readonly), None


def _describe_numpy(key: Any) -> Layout:
    shape, strides, dtype, readonly = key
    if dtype.name not in DTYPES or not dtype.isnative:
        raise InvalidCall(f"call: a numpy array of {dtype}; expected one of {', '.join(DTYPES)} in native byte order")
    size = dtype.itemsize
    if strides is not None and any(stride % size for stride in strides):
        raise InvalidCall(f"call: a numpy array whose strides {strides} are not whole elements of {size} bytes. "
                          "Copy it with numpy.ascontiguousarray")
    return Layout((CPU, 0), DTYPES[dtype.name], shape, None if strides is None else tuple(s // size for s in strides),
                  readonly, "numpy", dtype, None)


# ---- everything else, by its __dlpack__ ----

# Of their own: the functions that ctypes.pythonapi has as attributes are shared with the whole process, types too.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))

# DLManagedTensorVersioned: version, context, deleter and flags come before the tensor.
_VERSIONED_FLAGS, _VERSIONED_TENSOR, _READ_ONLY = 24, 32, 1


def _read_dlpack(value: Any, stream: Optional[int]) -> tuple[int, Layout, Any]:
    """Borrows the tensor of a capsule: it stays the capsule's, which frees it when the last reference to it goes.
    A capsule that is consumed instead would have to be freed by hand on every way out."""
    device = tuple(map(int, value.__dlpack_device__()))
    # The producer makes its work visible to this stream; 1 is the legacy default stream, which C calls NULL.
    words: dict[str, Any] = {"stream": stream or 1} if device[0] == CUDA else {}
    try:
        capsule = value.__dlpack__(max_version=(1, 0), **words)
    except TypeError:  # made before DLPack 1.0
        capsule = value.__dlpack__(**words)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        base = _pointer_of(capsule, b"dltensor_versioned")
        major = ctypes.c_uint32.from_address(base).value
        if major != 1:
            raise InvalidCall(f"call: {type(value).__name__} gives a tensor of DLPack {major}; expected DLPack 1")
        readonly = bool(ctypes.c_uint64.from_address(base + _VERSIONED_FLAGS).value & _READ_ONLY)
        base += _VERSIONED_TENSOR
    elif _is_valid(capsule, b"dltensor"):
        base = _pointer_of(capsule, b"dltensor")
    else:
        raise InvalidCall(f"call: __dlpack__ of {type(value).__name__} gives no capsule of a tensor that is unused")
    tensor = CTensor.from_address(base)
    if tensor.lanes != 1:
        raise InvalidCall(f"call: {type(value).__name__} has {tensor.lanes} lanes an element; expected 1")
    kind = tensor.device.type
    where = (CPU, 0) if kind in _HOST_KINDS else (CUDA if kind == _MANAGED else kind, tensor.device.id)
    dimensions = range(tensor.ndim)
    strides = tuple(tensor.strides[i] for i in dimensions) if tensor.strides else None
    layout = Layout(where, (tensor.code, tensor.bits), tuple(tensor.shape[i] for i in dimensions), strides, readonly,
                    type(value).__module__.partition(".")[0], None, None)
    return (tensor.data or 0) + tensor.byte_offset, layout, capsule


def with_dtype(layout: Layout, name: str) -> Optional[Layout]:
    """As `layout`, of another dtype; None where its framework has no such dtype."""
    own: Any = layout.own_dtype
    if DTYPES.get(name) != layout.dtype:
        if layout.framework == "torch":
            own = getattr(torch_module(), name, None)
        elif layout.framework == "numpy":
            numpy = sys.modules["numpy"]
            try:
                own = numpy.dtype(name)
            except TypeError:  # bfloat16, say, unless another module brings it
                own = None
        if own is None:
            return None
    return layout._replace(dtype=DTYPES[name], own_dtype=own)


# ---- which reader ----

Reader = Callable[[Any], "tuple[int, Any, Any]"]
_readers: dict[type, tuple[Reader, Callable[[Any], Layout]]] = {}
_torch: Optional[_Torch] = None


def torch_module() -> Any:
    """torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def _find(kind: type) -> Optional[tuple[Reader, Callable[[Any], Layout]]]:
    global _torch
    torch, numpy = torch_module(), sys.modules.get("numpy")
    if torch is not None and issubclass(kind, torch.Tensor):
        if _torch is None:
            _torch = _Torch(torch)
        return _torch.read, _torch.describe
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return _read_numpy, _describe_numpy
    return None


def read(value: Any, stream: Optional[int]) -> tuple[int, Any, Any]:
    kind = type(value)
    found = _readers.get(kind)
    if found is None:
        found = _find(kind)
        if found is None:
            if not hasattr(value, "__dlpack__"):
                raise InvalidCall(f"call: a {kind.__name__} is not a tensor; expected a torch.Tensor, a numpy.ndarray "
                                  "or an object with __dlpack__")
            return _read_dlpack(value, stream)
        _readers[kind] = found
    return found[0](value)


def describe(value: Any, key: Any) -> Layout:
    found = _readers.get(type(value))
    return key if found is None else found[1](key)
