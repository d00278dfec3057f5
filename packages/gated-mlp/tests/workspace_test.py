#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what ops ask for, without a GPU: workspace_bytes does no device work.

    tests/workspace_test.py KERNELS

KERNELS is what `kiln build --out` wrote. Backward of a variant for SM 9.0 alone transposes nothing where every tensor is
aligned. Where D or H is no multiple of 8 the tensors are copied, and the call of the copies is asked for what it needs."""
import ctypes
import json
import pathlib
import sys

from kiln._structs import CCall, CDevice, CError, COp, CPackage, CTensor

M, D, H = 64, 16, 32
CUDA, BFLOAT = 2, 4  # DLPack's
ALIGNED, ODD = 4096, 4098


def ops_of(path):
    library = ctypes.CDLL(str(path))
    library.kiln_package_v1.restype = ctypes.POINTER(CPackage)
    package = library.kiln_package_v1().contents
    ops = [COp.from_address(package.ops + i * package.op_stride) for i in range(package.op_count)]
    return {op.name.decode(): op for op in ops}


def bytes_of(op, address_of, d=D, h=H):
    """Of a call that asks for all gradients of weights and of x; `address_of`: of a tensor, by its name."""
    extents, keep = {"M": M, "D": d, "H": h}, []
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
        sys.exit(f"{op.name.decode()}: {error.text.decode()}")
    return size.value


def copies(*elements):
    return sum((2 * count + 255) // 256 * 256 for count in elements)


def check_padded(path, ops):
    """The copies have D 16 and H 40: x, gate, up, down and y; backward's have the four gradients, too."""
    tokens, weights = M * 16, 40 * 16
    forward = copies(tokens, weights, weights, weights, tokens)
    for name, more in (("forward", 0), ("backward", copies(tokens, weights, weights, weights))):
        whole = bytes_of(ops[name], lambda name: ALIGNED, 16, 40)
        for d, h in ((15, 40), (16, 33), (9, 39)):
            found = bytes_of(ops[name], lambda name: ODD, d, h)
            if found != forward + more + whole:
                sys.exit(f"{path}: {name} of {d} x {h} needs {found} bytes; expected {forward + more} and {whole}")


def main():
    seen = set()
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*/cu*-x86_64/lib*lu_mlp.so")):
        variant = path.parent.name
        ops = ops_of(path)
        check_padded(path, ops)
        op = ops["backward"]
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
