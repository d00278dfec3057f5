# SPDX-License-Identifier: Apache-2.0
"""Arrays of any framework as DLPack tensors, without a copy.

A reader takes an array and gives (pointer, layout, owner): the address of its first element; what else a DLTensor
has of it, as a hashable value, from which a call is found that was prepared for such arrays; and what must live
until the call returns, or None. PyTorch's tensors and numpy's arrays have readers of their own, which are faster
than a capsule; every other object is asked for __dlpack__. `describe` turns a layout into a Layout.

Address and layout are all that a kernel sees. An array that means more than that (a mask, a unit, a sign that is kept
as a bit, memory that is a copy) is refused.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, NamedTuple, Optional

from ._errors import InvalidCall
from ._schema import DTYPES
from ._structs import CTensor

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
    readonly: str  # "": it may be written; else why not
    framework: str  # the module that makes arrays like it: "torch", "numpy", or another one's name
    own_dtype: Any  # the framework's own dtype and device, to make another such array
    own_device: Any
    requires_grad: bool = False

    def bytes_spanned(self) -> int:
        """From the first element's address to behind the last one's."""
        if 0 in self.shape:
            return 0
        count = 1
        if self.strides is None:
            for extent in self.shape:
                count *= extent
        else:
            count += sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        return count * self.dtype[1] // 8

    def dtype_name(self) -> str:
        return _NAMES.get(self.dtype, f"dtype {self.dtype}")


# ---- PyTorch ----


class _Torch:
    """Readers of torch.Tensor, made when the first one comes: importing kiln does not import torch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        # torch has no public function that says a dtype's DLPack number without making a capsule.
        self.dtypes = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}

    def is_plain(self, kind: Any) -> bool:
        """Whether a subclass of Tensor leaves alone what operators do, so that its data is all that it is."""
        own = self.torch.Tensor
        functions = [getattr(kind.__torch_function__, "__func__", kind.__torch_function__),
                     getattr(kind.__torch_dispatch__, "__func__", kind.__torch_dispatch__)]
        return functions[0] in (own.__torch_function__.__func__, self.torch._C._disabled_torch_function_impl) and (
            functions[1] is getattr(own.__torch_dispatch__, "__func__", own.__torch_dispatch__))

    @staticmethod
    def read(tensor: Any) -> tuple[int, Any, None]:
        try:
            address = tensor.data_ptr()
            return address, (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad,
                             tensor.layout, tensor.is_neg(), not address), None
        except RuntimeError as error:  # it has no memory, or no strides: nested, sparse, a transform's
            raise InvalidCall(f"call: a torch tensor is not a plain one: {error}") from None

    def describe(self, key: Any) -> Layout:
        shape, strides, dtype, device, requires_grad, layout, negative, nowhere = key
        if layout is not self.torch.strided:
            raise InvalidCall(f"call: a torch tensor of {layout}; expected a dense one, as to_dense() gives it")
        if negative:
            raise InvalidCall("call: a torch tensor whose negative bit is set: its memory holds other signs. Pass "
                              "what resolve_neg() gives")
        if device.type not in ("cpu", "cuda") or dtype not in self.dtypes:
            raise InvalidCall(f"call: a torch tensor on {device} with {dtype}; expected one on the CPU or a GPU of "
                              f"CUDA, with one of {', '.join(DTYPES)}")
        if nowhere and 0 not in shape:
            raise InvalidCall("call: a torch tensor without memory: a zero tensor, as forward-mode gradients have them, "
                              "or one whose storage was freed")
        where = (CPU, 0) if device.type == "cpu" else (CUDA, device.index or 0)
        return Layout(where, self.dtypes[dtype], tuple(shape), strides, "", "torch", dtype, device,
                      requires_grad)


# ---- numpy ----


def _is_plain_array(numpy: Any, kind: type) -> bool:
    return kind in (numpy.ndarray, numpy.memmap, numpy.matrix)


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
                  "is read-only" if readonly else "", "numpy", dtype, None)


# ---- everything else, by its __dlpack__ ----

# Of their own: the functions that ctypes.pythonapi has as attributes are shared with the whole process, types too.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))

# DLManagedTensorVersioned: version, context, deleter and flags come before the tensor.
_VERSIONED_FLAGS, _VERSIONED_TENSOR, _READ_ONLY, _IS_COPIED = 24, 32, 1, 2


def _capsule_of(value: Any, stream: Optional[int]) -> Any:
    device = int(value.__dlpack_device__()[0])
    # The producer makes its work visible to this stream; 1 is the legacy default stream, which C calls NULL.
    words: dict[str, Any] = {"stream": stream or 1} if device == CUDA else {}
    # From the newest words to those of producers before DLPack 1.0.
    tries: tuple[dict[str, Any], ...] = ({"max_version": (1, 0), "copy": False}, {"max_version": (1, 0)})
    for more in tries:
        try:
            return value.__dlpack__(**more, **words)
        except TypeError:
            pass
        except BufferError:
            if "copy" not in more:
                raise  # else: it cannot without a copy, and what reads it may have one
    return value.__dlpack__(**words)


def _is_own_memory(value: Any, address: int) -> bool:
    """Whether the object says by numpy's words, or by CUDA's, that it lies there and may be written."""
    for name in ("__array_interface__", "__cuda_array_interface__"):
        try:
            if getattr(value, name)["data"] == (address, False):
                return True
        except Exception:  # pylint: disable=broad-exception-caught  # it has no such words
            pass
    return False


def _read_dlpack(value: Any, stream: Optional[int]) -> tuple[int, Layout, Any]:
    """Borrows the tensor of a capsule: it stays the capsule's, which frees it when the last reference to it goes.
    A capsule that is consumed instead would have to be freed by hand on every way out."""
    capsule = _capsule_of(value, stream)
    readonly = ""
    if _is_valid(capsule, b"dltensor_versioned"):
        base = _pointer_of(capsule, b"dltensor_versioned")
        major = ctypes.c_uint32.from_address(base).value
        if major != 1:
            raise InvalidCall(f"call: {type(value).__name__} gives a tensor of DLPack {major}; expected DLPack 1")
        flags = ctypes.c_uint64.from_address(base + _VERSIONED_FLAGS).value
        if flags & _READ_ONLY:
            readonly = "is read-only"
        elif flags & _IS_COPIED:
            readonly = "is a copy that its producer made, in which nobody would see a result"
        base += _VERSIONED_TENSOR
    elif _is_valid(capsule, b"dltensor"):
        base = _pointer_of(capsule, b"dltensor")
        tensor = CTensor.from_address(base)
        if not _is_own_memory(value, (tensor.data or 0) + tensor.byte_offset):
            readonly = "comes as DLPack had it before 1.0, which cannot tell that it is a copy"
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


def tell_written(value: Any) -> None:
    """PyTorch's autograd refuses a backward over a tensor that was changed since it was saved, and is told so here."""
    torch = torch_module()
    if torch is not None and isinstance(value, torch.Tensor) and not value.is_inference():
        increment = getattr(getattr(torch.autograd, "graph", None), "increment_version", None)
        if increment is not None:  # PyTorch 2.1
            increment(value)


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
        if not _torch.is_plain(kind):
            raise InvalidCall(f"call: a {kind.__module__}.{kind.__qualname__} means more than its memory; pass a plain "
                              "torch.Tensor")
        return _torch.read, _torch.describe
    if numpy is not None and issubclass(kind, numpy.ndarray):
        if not _is_plain_array(numpy, kind):
            hint = "its mask would be lost: pass .filled(…)" if issubclass(kind, numpy.ma.MaskedArray) else (
                "pass numpy.asarray of it if its numbers are all that counts")
            raise InvalidCall(f"call: a {kind.__module__}.{kind.__qualname__} means more than its memory; {hint}")
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
