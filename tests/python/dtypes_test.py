#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ops of every dtype and of eight dimensions, called from Python: the sample package of tests/build, loaded as it is.

dtypes_test.py LIBRARY     wants KILN_LIBRARY. Exits with 77 (skipped) without numpy.
"""

import ctypes
import sys
import unittest

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import kiln
from kiln._call import Op
from kiln._structs import COp, CPackage, CTensor
from kiln._schema import DTYPES

SHAPE = (1, 2, 1, 3, 1, 2, 1, 2)
IN_NUMPY = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


class Renamed:
    """An array of bytes, or of two, that says that it has a dtype which numpy has not."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype
        self.__array_interface__ = array.__array_interface__

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__()
        tensor = CTensor.from_address(_pointer_of(capsule, b"dltensor"))
        tensor.code, tensor.bits = DTYPES[self.dtype]
        return capsule


class Dtypes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.library = ctypes.CDLL(LIBRARY)
        cls.library.kiln_package_v1.restype = ctypes.POINTER(CPackage)
        package = cls.library.kiln_package_v1().contents
        ops = [ctypes.cast(package.ops + i * package.op_stride, ctypes.POINTER(COp)) for i in range(package.op_count)]
        cls.keep_op = next(op for op in ops if op.contents.name == b"keep")
        cls.keep = Op(cls.keep_op, (1, 0))
        cls.mask = (np.arange(24) % 3 == 0).reshape(SHAPE)

    def test_the_package_and_python_know_the_same_dtypes(self):
        self.assertEqual(sorted(self.keep.schema.tensors[0].dtypes), sorted(DTYPES))

    def test_numpys_dtypes_and_outputs_of_another_dtype_than_the_input(self):
        for name in IN_NUMPY:
            with self.subTest(name):
                x = (np.arange(24) + 1).astype(name).reshape(SHAPE)
                out, kept = self.keep(x, self.mask)
                self.assertEqual((out.dtype, out.shape, kept.dtype, kept.shape), (x.dtype, SHAPE, np.int64, (1,)))
                np.testing.assert_array_equal(out, np.where(self.mask, x, 0))
                self.assertEqual(kept[0], 8)

    def test_names_that_are_words_of_python(self):
        """The same op, under a schema with such names: each has a _ behind it, as in the package's stub."""
        named = COp.from_buffer_copy(self.keep_op.contents)
        for name, word in (("keep", "in"), ("x", "lambda"), ("mask", "self"), ("out", "from"), ("note", "global")):
            named.schema = named.schema.replace(b'"%s"' % name.encode(), b'"%s"' % word.encode())
        op = Op(ctypes.pointer(named), (1, 0))
        x = np.arange(24, dtype=np.float32).reshape(SHAPE)
        result = op(lambda_=x, self_=self.mask, global_="")
        self.assertEqual((type(result).__name__, result._fields), ("in_", ("from_", "kept")))
        np.testing.assert_array_equal(result.from_, np.where(self.mask, x, 0))
        op(**{"lambda": x, "self": self.mask, "from": result.from_, "kept": result.kept})
        self.assertEqual(op.workspace_bytes(lambda_=x, self_=self.mask), 0)
        with self.assertRaisesRegex(TypeError, "in has no argument 'kept_'"):
            op(lambda_=x, self_=self.mask, kept_=x)

    def test_dtypes_that_numpy_has_not(self):
        for name in set(DTYPES) - set(IN_NUMPY):
            with self.subTest(name):
                x = (np.arange(24) + 1).astype("uint8" if DTYPES[name][1] == 8 else "uint16").reshape(SHAPE)
                out, kept = np.full_like(x, 77), np.zeros(1, np.int64)
                self.keep(Renamed(x, name), self.mask, out=Renamed(out, name), kept=kept)
                np.testing.assert_array_equal(out, np.where(self.mask, x, 0))
                with self.assertRaisesRegex(kiln.InvalidCall, f"out has dtype .*; expected {name}, the dtype of x"):
                    self.keep(Renamed(x, name), self.mask, out=np.zeros(SHAPE, np.float32), kept=kept)

    def test_a_mask_of_bytes_is_no_mask(self):
        x = np.zeros(SHAPE, np.float32)
        with self.assertRaisesRegex(kiln.InvalidCall, "mask has dtype uint8; expected bool"):
            self.keep(x, self.mask.view(np.uint8))

    def test_the_manual_names_a_dtype_and_a_tensor_apart(self):
        manual = self.keep.__doc__
        self.assertIn("mask[A, B, C, D, E, F, G, H]: bool\n", manual)
        self.assertIn("out[A, B, C, D, E, F, G, H]: as x; output", manual)

    def test_pytorch_has_some(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no torch")
        for name in DTYPES:
            if not hasattr(torch, name) or name.startswith("float8"):
                continue
            with self.subTest(name):
                x = torch.arange(1, 25).reshape(SHAPE).to(getattr(torch, name))
                out, kept = self.keep(x, torch.from_numpy(self.mask))
                self.assertEqual((out.dtype, kept.dtype, int(kept)), (x.dtype, torch.int64, 8))
                self.assertTrue(torch.equal(out, torch.where(torch.from_numpy(self.mask), x, torch.zeros_like(x))))


if __name__ == "__main__":
    LIBRARY = sys.argv[1]
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
