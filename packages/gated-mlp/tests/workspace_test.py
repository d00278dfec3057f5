#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what backward asks for, by the address of its tensors, without a GPU: workspace_bytes does no device work.

    tests/workspace_test.py KERNELS

KERNELS is what `kiln build --out` wrote. A variant for SM 9.0 alone transposes nothing where every tensor is aligned."""
import ctypes
import json
import pathlib
import sys

from kiln._structs import CCall, CDevice, CError, COp, CPackage, CTensor

M, D, H = 64, 16, 32
CUDA, BFLOAT = 2, 4  # DLPack's
ALIGNED, ODD = 4096, 4098


def backward_of(path):
    library = ctypes.CDLL(str(path))
    library.kiln_package_v1.restype = ctypes.POINTER(CPackage)
    package = library.kiln_package_v1().contents
    ops = [COp.from_address(package.ops + i * package.op_stride) for i in range(package.op_count)]
    return next(op for op in ops if op.name == b"backward")


def bytes_of(op, address_of):
    """Of a call that asks for all gradients of weights and of x; `address_of`: of a tensor, by its name."""
    extents, keep = {"M": M, "D": D, "H": H}, []
    schemas = json.loads(op.schema)["tensors"]
    tensors = (ctypes.POINTER(CTensor) * len(schemas))()
    for i, schema in enumerate(schemas):
        name = schema["name"]
        if schema.get("optional") and name not in ("grad_x", "grad_gate", "grad_up", "grad_down"):
            continue
        shape = (ctypes.c_int64 * len(schema["shape"]))(*[extents[extent] for extent in schema["shape"]])
        keep += [shape, CTensor(data=address_of(name), device=CDevice(CUDA, 0), ndim=len(shape), code=BFLOAT, bits=16,
                                lanes=1, shape=shape)]
        tensors[i] = ctypes.pointer(keep[-1])
    call = CCall(struct_size=ctypes.sizeof(CCall), tensor_count=len(schemas), tensors=tensors)
    size, error = ctypes.c_size_t(), CError()
    ask = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(op.workspace_bytes)
    if ask(ctypes.addressof(call), ctypes.addressof(size), ctypes.addressof(error)) != 0:
        sys.exit(f"backward: {error.text.decode()}")
    return size.value


def main():
    seen = set()
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*/cu*-x86_64/lib*lu_mlp.so")):
        variant = path.parent.name
        op = backward_of(path)
        anywhere = bytes_of(op, lambda name: None)
        aligned = bytes_of(op, lambda name: ALIGNED)
        for odd in ("grad_y", "gate", "grad_down"):
            found = bytes_of(op, lambda name: ODD if name == odd else ALIGNED)
            if found != anywhere:
                sys.exit(f"{path}: an odd {odd} needs {found} bytes; expected {anywhere}, as every address")
        expected = 2 * M * 3 * H if "sm_90a" in variant else anywhere
        if aligned != expected or anywhere <= 2 * M * 3 * H:
            sys.exit(f"{path}: aligned tensors need {aligned} bytes, others {anywhere}; expected {expected}")
        seen.add("sm_90a" in variant)
    if seen != {False, True}:
        sys.exit(f"{sys.argv[1]} has no variant for SM 9.0 alone, or no other")


if __name__ == "__main__":
    main()
