#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sample package, called from Python through tvm-ffi: the same file that C++ loads.

tvm_ffi_test.py LIBRARY. Needs apache-tvm-ffi and numpy; exits with 77 (skipped) without them.
"""

import ctypes
import sys
import unittest

try:
    import numpy as np
    import tvm_ffi
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LIBRARY = None
M, D, H = 3, 4, 2


def tensor(array):
    return tvm_ffi.from_dlpack(array)


def inputs():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((M, D), dtype=np.float32)
    w = generator.standard_normal((H, D), dtype=np.float32)
    y = np.full((M, H), np.nan, dtype=np.float32)
    return x, w, y


def workspace(size):
    return np.zeros(size, dtype=np.uint8)


class Mix(unittest.TestCase):
    def setUp(self):
        self.module = tvm_ffi.load_module(LIBRARY)
        self.x, self.w, self.y = inputs()

    def size(self, *attributes):
        arguments = [tensor(self.x), tensor(self.w), None, None, tensor(self.y), *attributes]
        return self.module["mix_workspace_bytes"](*arguments)

    def mix(self, *rest, bias=None):
        return self.module["mix"](
            tensor(self.x),
            tensor(self.w),
            None if bias is None else tensor(bias),
            None,
            tensor(self.y),
            *rest,
        )

    def expect(self, scale=0.5, shift=-3.0, half=0.0, bias=0.0):
        product = self.x.astype(np.float64) @ self.w.astype(np.float64).T
        np.testing.assert_allclose(self.y, scale * product + bias + shift + half, rtol=1e-5)

    def refuse(self, kind, text, *rest, **named):
        with self.assertRaises(kind) as caught:
            self.mix(*rest, **named)
        self.assertIn(text, str(caught.exception))

    def test_defaults_hold_for_missing_attributes(self):
        self.assertIsNone(self.mix(tensor(workspace(self.size()))))
        self.expect()

    def test_attributes_come_after_the_tensors(self):
        self.mix("half-up", 5, 2.0, tensor(workspace(self.size())))
        self.expect(scale=2.0, shift=5, half=0.5)

    def test_none_takes_an_attributes_default(self):
        self.mix(None, 1, None, tensor(workspace(self.size())))
        self.expect(shift=1)

    def test_a_whole_number_is_a_float(self):
        self.mix(None, None, 2, tensor(workspace(self.size())))
        self.expect(scale=2.0)

    def test_an_optional_tensor_is_read(self):
        bias = np.array([10, 20], dtype=np.float32)
        self.mix(tensor(workspace(self.size())), bias=bias)
        self.expect(bias=bias.astype(np.float64))

    def test_a_workspace_of_any_address_does(self):
        size = self.size()
        memory = workspace(size + 300)
        for start in range(300):
            self.y[:] = np.nan
            self.mix(tensor(memory[start : start + size]))
            self.expect()

    def test_a_missing_workspace_names_the_function_that_sizes_it(self):
        self.refuse(ValueError, "sample@7 mix: needs a workspace of ")
        self.refuse(ValueError, "mix_workspace_bytes", None, None, None)

    def test_a_small_workspace_is_refused(self):
        text = "sample@7 mix: the workspace has "
        self.refuse(ValueError, text, tensor(workspace(M * H * 4 - 1)))

    def test_a_workspace_of_another_dtype_is_refused(self):
        wrong = tensor(np.zeros(4096, dtype=np.float32))
        text = "the workspace is a tensor of float32 with 1 dimensions; expected uint8"
        self.refuse(ValueError, text, wrong)

    def test_the_checkers_message_arrives(self):
        self.w = np.zeros((H, D - 1), dtype=np.float32)
        text = "sample@7 mix: w has shape [2, 3]; expected [H, D] with D = 4 from x"
        self.refuse(ValueError, text)

    def test_wrong_attributes_are_refused(self):
        text = 'sample@7 mix: mode is "up"; expected "none", "half-up" or "down"'
        self.refuse(ValueError, text, "up")
        self.refuse(ValueError, "sample@7 mix: mode is an int; expected a string", 1)
        self.refuse(ValueError, "mode is \"" + "u" * 40 + "\"", "u" * 100)
        self.refuse(ValueError, "sample@7 mix: mode is neither a string", [1])

    def test_too_many_arguments_are_refused(self):
        text = "9 arguments given; expected (x, w, bias, table, y, mode, shift, scale, workspace)"
        self.refuse(ValueError, text, tensor(workspace(512)), None, None, None)

    def test_too_few_tensors_are_refused(self):
        with self.assertRaises(ValueError) as caught:
            self.module["mix"](tensor(self.x))
        self.assertIn("sample@7 mix: 1 tensors given; expected 5: x, w,", str(caught.exception))

    def test_a_number_in_a_tensors_place_is_refused(self):
        with self.assertRaises(ValueError) as caught:
            self.module["mix"](tensor(self.x), 5, None, None, tensor(self.y))
        self.assertIn("sample@7 mix: w is neither a tensor nor None", str(caught.exception))

    def test_what_the_package_lacks_is_a_runtime_error(self):
        columns = np.zeros((1, 1, 101), dtype=np.float32)
        with self.assertRaises(RuntimeError) as caught:
            self.module["copy_rows"](tensor(columns), tensor(columns.copy()))
        text = "sample@7 copy_rows: has 101 columns; at most 100"
        self.assertIn(text, str(caught.exception))

    def test_an_op_without_workspace_needs_none(self):
        columns = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
        out = np.zeros_like(columns)
        self.assertEqual(self.module["copy_rows_workspace_bytes"](tensor(columns), tensor(out)), 0)
        self.module["copy_rows"](tensor(columns), tensor(out))
        np.testing.assert_array_equal(out, columns)


class Layout(unittest.TestCase):
    def test_the_library_does_not_link_tvm_ffi(self):
        # Loads in a process image of its own name space: nothing but libc is needed.
        ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_LOCAL)
        with open(LIBRARY, "rb") as file:
            self.assertNotIn(b"libtvm_ffi", file.read())


if __name__ == "__main__":
    LIBRARY = sys.argv.pop(1)
    unittest.main()
