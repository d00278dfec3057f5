# SPDX-License-Identifier: Apache-2.0
"""A package's library by its C table (kiln/abi.h), whether a registry has it or not."""
import ctypes
import importlib.util
import json
import pathlib

import torch

# By its path: the package kiln wants libkiln.so where it is imported.
PLACE = pathlib.Path(__file__).resolve().parents[3] / "loader/python/kiln/_structs.py"
SPEC = importlib.util.spec_from_file_location("kiln_structs", PLACE)
structs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(structs)

ALIGNMENT = 256  # of a workspace; torch has less on a CPU
DEVICES = {"cpu": 1, "cuda": 2}  # kDLCPU, kDLCUDA
STRING = 3  # KILN_ATTRIBUTE_STRING
CODES = {torch.float16: 2, torch.float32: 2, torch.bfloat16: 4}  # kDLFloat, kDLBfloat
CALL, ERROR = ctypes.POINTER(structs.CCall), ctypes.POINTER(structs.CError)


class Op:
    def __init__(self, op):
        self.schema = op.schema
        self.workspace_bytes = ctypes.CFUNCTYPE(ctypes.c_int32, CALL, ctypes.POINTER(ctypes.c_size_t),
                                                ERROR)(op.workspace_bytes)
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, CALL, ERROR)(op.run)


class Library:
    """The ops of one library, through its C table."""
    device = "cuda"

    def __init__(self, path, device="cuda"):
        self.device = device
        library = ctypes.CDLL(path)
        library.kiln_package_v1.restype = ctypes.POINTER(structs.CPackage)
        package = library.kiln_package_v1().contents
        ops = [structs.COp.from_address(package.ops + i * package.op_stride) for i in range(package.op_count)]
        self.ops = {op.name.decode(): Op(op) for op in ops}
        error = structs.CError()
        if package.prepare and package.prepare(structs.CDevice(DEVICES[device], 0), ctypes.byref(error)) != 0:
            raise RuntimeError(error.text.decode())

    def bind(self, name, *tensors, **words):
        """A call without arguments, which keeps alive everything that it points to. The tensors come in the
        schema's order. None leaves an optional one out. `words`: attributes, each a string of the schema's."""
        op = self.ops[name]
        keep = [None if t is None else tensor_of(t) for t in tensors]
        pointers = (ctypes.POINTER(structs.CTensor) * len(keep))(
            *[ctypes.pointer(t[0]) if t else None for t in keep])
        attributes = attributes_of(op, words) if words else (structs.CAttribute * 0)()
        call = structs.CCall(struct_size=ctypes.sizeof(structs.CCall), tensor_count=len(keep), tensors=pointers,
                             attribute_count=len(attributes), attributes=attributes)
        error = structs.CError()
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
    attributes = (structs.CAttribute * len(names))()  # zeros: the schema's default
    for name, word in words.items():
        attributes[names.index(name)] = structs.CAttribute(STRING, 0, structs.CValue(as_string=word.encode()))
    return attributes


def tensor_of(t):
    shape = (ctypes.c_int64 * t.dim())(*t.shape)
    strides = None if t.is_contiguous() else (ctypes.c_int64 * t.dim())(*t.stride())
    return structs.CTensor(t.data_ptr(), structs.CDevice(DEVICES[t.device.type], 0), t.dim(), CODES[t.dtype],
                           8 * t.element_size(), 1, shape, strides), shape, strides
