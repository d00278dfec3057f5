#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kiln from Python with nothing but ctypes and libkiln.so: gets the published geglu-mlp for the CPU,
runs its forward on numpy arrays, and compares with numpy in fp64.

user.py LIBKILN      wants KILN_REGISTRY. Exits with 77 (skipped) without numpy or a registry.
"""

import ctypes as c
import json
import math
import os
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

M, D, H = 37, 96, 200
CPU, STRING = 1, 3  # kDLCPU; KILN_ATTRIBUTE_STRING
EVENT = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p)


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("text", c.c_char * 508)]


class Request(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("version", c.c_int32), ("device_kind", c.c_int32),
                ("device_ordinal", c.c_int32), ("registry", c.c_char_p), ("variant", c.c_char_p),
                ("cache", c.c_char_p), ("no_jit", c.c_int32), ("refresh", c.c_int32), ("on_event", EVENT),
                ("user", c.c_void_p), ("cancel", c.c_void_p)]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32),
                ("ndim", c.c_int32), ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16),
                ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]

    @classmethod
    def of(cls, array):
        tensor = cls(data=array.ctypes.data, device_type=CPU, ndim=array.ndim, code=2, bits=32, lanes=1,
                     shape=(c.c_int64 * array.ndim)(*array.shape))
        tensor.array = array  # keeps the memory
        return tensor


class Attribute(c.Structure):
    _fields_ = [("kind", c.c_int32), ("reserved", c.c_int32), ("text", c.c_char_p)]


class Call(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("tensor_count", c.c_uint32),
                ("tensors", c.POINTER(c.POINTER(Tensor))), ("attribute_count", c.c_uint32),
                ("reserved", c.c_uint32), ("attributes", c.POINTER(Attribute)), ("workspace", c.c_void_p),
                ("workspace_bytes", c.c_size_t), ("stream", c.c_void_p)]


class KilnError(Exception):
    def __init__(self, error):
        super().__init__(error.text.decode())
        self.code = error.status


class Kiln:
    def __init__(self, path):
        self.library = c.CDLL(path)
        for name in ("kiln_version", "kiln_kernel_name", "kiln_kernel_variant", "kiln_kernel_explanation"):
            getattr(self.library, name).restype = c.c_char_p

    def call(self, name, *arguments):
        error = Error()
        if getattr(self.library, name)(*arguments, c.byref(error)) != 0:
            raise KilnError(error)

    def request(self, cache, **fields):
        return Request(struct_size=c.sizeof(Request), version=1, device_kind=1, cache=cache.encode(), **fields)

    def get_kernel(self, name, request):
        kernel = c.c_void_p()
        self.call("kiln_get_kernel", name.encode(), c.byref(request), c.byref(kernel))
        return kernel

    def resolve(self, name, request):
        text = c.c_void_p()
        self.call("kiln_resolve", name.encode(), c.byref(request), c.byref(text))
        document = json.loads(c.string_at(text))
        self.library.kiln_release_text(text)
        return document

    def run(self, kernel, op, arrays, attributes=()):
        found = c.c_void_p()
        self.call("kiln_find_op", kernel, op.encode(), c.byref(found))
        tensors = [None if a is None else Tensor.of(a) for a in arrays]
        pointers = (c.POINTER(Tensor) * len(tensors))(
            *[c.POINTER(Tensor)() if t is None else c.pointer(t) for t in tensors])
        words = (Attribute * len(attributes))(*[Attribute(STRING, 0, a.encode()) for a in attributes])
        call = Call(struct_size=c.sizeof(Call), tensor_count=len(tensors), tensors=pointers,
                    attribute_count=len(words), attributes=words)
        size = c.c_size_t()
        self.call("kiln_workspace_bytes", found, c.byref(call), c.byref(size))
        memory = np.full(size.value + 256, 0xFF, dtype=np.uint8)  # poisoned
        call.workspace = (memory.ctypes.data + 255) // 256 * 256
        call.workspace_bytes = size.value
        self.call("kiln_run", found, c.byref(call))


def gelu(z, approximate):
    if approximate == "tanh":
        return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


class FromPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.kiln = Kiln(LIBRARY)
        cls.request = cls.kiln.request(cls.folder.name + "/cache")
        cls.kernel = cls.kiln.get_kernel("geglu-mlp", cls.request)

    def test_forward_against_fp64(self):
        generator = np.random.default_rng(7)

        def normal(*shape):
            return generator.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(shape[-1]))

        x, gate, up, down = normal(M, D) * np.float32(math.sqrt(D)), normal(H, D), normal(H, D), normal(D, H)
        biases = [normal(H), normal(H), normal(D)]
        wide = [a.astype(np.float64) for a in (x, gate, up, down)]
        for approximate in ("tanh", "none"):
            for given in (biases, [None] * 3):
                bg, bu, bd = (0 if b is None else b.astype(np.float64) for b in given)
                y = np.full((M, D), np.nan, dtype=np.float32)
                self.kiln.run(self.kernel, "forward", [x, gate, up, down, *given, None, y], [approximate])
                expected = (gelu(wide[0] @ wide[1].T + bg, approximate) *
                            (wide[0] @ wide[2].T + bu)) @ wide[3].T + bd
                self.assertLess(np.linalg.norm(y - expected) / np.linalg.norm(expected), 1e-6)

    def test_a_wrong_shape_gives_the_words_of_the_schema(self):
        x, y = np.zeros((M, D), np.float32), np.zeros((M, D), np.float32)
        gate, up, down = (np.zeros(s, np.float32) for s in ((H, D), (H, D - 1), (D, H)))
        with self.assertRaises(KilnError) as raised:
            self.kiln.run(self.kernel, "forward", [x, gate, up, down, None, None, None, None, y])
        self.assertEqual(raised.exception.code, 13)
        self.assertIn("up has shape [200, 95]", str(raised.exception))

    def test_what_was_loaded_and_why(self):
        self.assertEqual(self.kiln.library.kiln_kernel_version(self.kernel), 1)
        variant = self.kiln.library.kiln_kernel_variant(self.kernel).decode()
        self.assertIn("> " + variant, self.kiln.library.kiln_kernel_explanation(self.kernel).decode())
        document = self.kiln.resolve("geglu-mlp", self.request)
        self.assertEqual((document["chosen"], document["schema"]), (variant, "kiln.resolve/1"))

    def test_an_unknown_version(self):
        request = self.kiln.request(self.folder.name + "/cache")
        request.version = 99
        with self.assertRaises(KilnError) as raised:
            self.kiln.get_kernel("geglu-mlp", request)
        self.assertEqual(raised.exception.code, 4)

    def test_a_callback_is_told(self):
        seen = []
        callback = EVENT(lambda event, user: seen.append(event))
        request = self.kiln.request(self.folder.name + "/other", on_event=callback)
        self.kiln.library.kiln_release_kernel(self.kiln.get_kernel("geglu-mlp", request))
        self.assertGreater(len(seen), 3)


if __name__ == "__main__":
    if not os.path.exists(os.environ["KILN_REGISTRY"]):
        print("skipped: there is no registry")
        sys.exit(77)
    LIBRARY = sys.argv.pop(1)
    unittest.main()
