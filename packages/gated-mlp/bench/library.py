# SPDX-License-Identifier: Apache-2.0
"""A package's library by its C table (kiln/abi.h), whether a registry has it or not."""
import ctypes
import json

import torch

ALIGNMENT = 256  # of a workspace; torch has less on a CPU
DEVICES = {"cpu": 1, "cuda": 2}  # kDLCPU, kDLCUDA
STRING = 3  # KILN_ATTRIBUTE_STRING
CODES = {torch.float16: 2, torch.float32: 2, torch.bfloat16: 4}  # kDLFloat, kDLBfloat


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int32),
                ("dtype", DLDataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class Attribute(ctypes.Structure):
    """Of a string. Zeros: the schema's default."""
    _fields_ = [("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("word", ctypes.c_char_p)]


class Call(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("tensor_count", ctypes.c_uint32),
                ("tensors", ctypes.POINTER(ctypes.POINTER(DLTensor))),
                ("attribute_count", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("attributes", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)]


class Op(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("name", ctypes.c_char_p), ("schema", ctypes.c_char_p),
                ("workspace_bytes", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call),
                                                     ctypes.POINTER(ctypes.c_size_t),
                                                     ctypes.POINTER(Error))),
                ("run", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call),
                                         ctypes.POINTER(Error)))]


class Package(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_major", ctypes.c_uint16),
                ("abi_minor", ctypes.c_uint16), ("name", ctypes.c_char_p),
                ("build_id", ctypes.c_char_p), ("version", ctypes.c_int32),
                ("op_count", ctypes.c_uint32), ("ops", ctypes.c_void_p),
                ("op_stride", ctypes.c_uint32), ("device_type", ctypes.c_int32),
                ("prepare", ctypes.CFUNCTYPE(ctypes.c_int32, DLDevice, ctypes.POINTER(Error)))]


class Library:
    """The ops of one library, through its C table."""
    device = "cuda"

    def __init__(self, path, device="cuda"):
        self.device = device
        library = ctypes.CDLL(path)
        library.kiln_package_v1.restype = ctypes.POINTER(Package)
        package = library.kiln_package_v1().contents
        ops = [Op.from_address(package.ops + i * package.op_stride) for i in range(package.op_count)]
        self.ops = {op.name.decode(): op for op in ops}
        error = Error()
        if package.prepare and package.prepare(DLDevice(DEVICES[device], 0), ctypes.byref(error)) != 0:
            raise RuntimeError(error.text.decode())

    def bind(self, name, *tensors, **words):
        """A call without arguments, which keeps alive everything that it points to. The tensors come in the
        schema's order. None leaves an optional one out. `words`: attributes, each a string of the schema's."""
        op = self.ops[name]
        keep = [None if t is None else tensor_of(t) for t in tensors]
        pointers = (ctypes.POINTER(DLTensor) * len(keep))(
            *[ctypes.pointer(t[0]) if t else None for t in keep])
        call = Call(ctypes.sizeof(Call), len(keep), pointers)
        attributes = attributes_of(op, words) if words else (Attribute * 0)()
        call.attribute_count, call.attributes = len(attributes), ctypes.addressof(attributes)
        error = Error()
        size = ctypes.c_size_t()
        if op.workspace_bytes(ctypes.byref(call), ctypes.byref(size), ctypes.byref(error)):
            raise RuntimeError(error.text.decode())
        workspace = torch.empty(size.value + ALIGNMENT, dtype=torch.uint8, device=self.device)
        call.workspace = workspace.data_ptr() + -workspace.data_ptr() % ALIGNMENT
        call.workspace_bytes = size.value

        def run():
            call.stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None
            if op.run(ctypes.byref(call), ctypes.byref(error)) != 0:
                raise RuntimeError(error.text.decode())

        run.keep = (tensors, keep, pointers, attributes)
        run.workspace = workspace
        return run

    def forward(self, x, gate, up, down, y, residual=None, **words):
        return self.bind("forward", x, gate, up, down, None, None, None, residual, y, **words)


def attributes_of(op, words):
    names = [attribute["name"] for attribute in json.loads(op.schema)["attributes"]]
    attributes = (Attribute * len(names))()
    for name, word in words.items():
        attributes[names.index(name)] = Attribute(STRING, 0, word.encode())
    return attributes


def tensor_of(t):
    shape = (ctypes.c_int64 * t.dim())(*t.shape)
    strides = None if t.is_contiguous() else (ctypes.c_int64 * t.dim())(*t.stride())
    device, dtype = DLDevice(DEVICES[t.device.type], 0), DLDataType(CODES[t.dtype], 8 * t.element_size(), 1)
    return DLTensor(t.data_ptr(), device, t.dim(), dtype, shape, strides), shape, strides
