#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The installed geglu-mlp, loaded from Python: `tvm_ffi.load_module(path)` of the file that
`kiln path` prints runs the CPU ops on numpy arrays, and a wrong shape gives the schema's message.

Wants KILN_BIN and KILN_REGISTRY. Exits with 77 (skipped) without apache-tvm-ffi and numpy.
"""

import math
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import tvm_ffi
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

M, D, H = 37, 96, 200


def kiln(*words):
    return subprocess.run([os.path.join(os.environ["KILN_BIN"], "kiln"), *words, "--device", "cpu"],
                          check=True, text=True, capture_output=True).stdout.strip()


def gelu(z, approximate):
    if approximate == "tanh":
        return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    return 0.5 * z * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))


def relative_error(got, expected):
    return np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected)


class GegluMlp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["KILN_CACHE"] = cache
            kiln("install", "geglu-mlp@1")
            cls.module = tvm_ffi.load_module(kiln("path", "geglu-mlp@1"))

    def setUp(self):
        generator = np.random.default_rng(7)

        def normal(*shape):
            return generator.standard_normal(shape, dtype=np.float32) / math.sqrt(shape[-1])

        self.x = normal(M, D) * math.sqrt(D)
        self.gate, self.up, self.down = normal(H, D), normal(H, D), normal(D, H)
        self.biases = [normal(H), normal(H), normal(D)]
        self.grad_y = normal(M, D) * math.sqrt(D)

    def forward(self, biases, *attributes):
        y = np.full((M, D), np.nan, dtype=np.float32)
        arguments = [self.x, self.gate, self.up, self.down, *biases, None, y, *attributes]
        size = self.module.forward_workspace_bytes(*arguments)
        workspace = np.full(size, 0xFF, dtype=np.uint8)
        attributes = attributes or (None,)
        self.module.forward(*arguments[:9], *attributes, workspace)
        return y

    def test_forward(self):
        x, gate, up, down = (a.astype(np.float64) for a in (self.x, self.gate, self.up, self.down))
        for approximate in ("tanh", "none"):
            bg, bu, bd = self.biases
            plain = (gelu(x @ gate.T, approximate) * (x @ up.T)) @ down.T
            biased = (gelu(x @ gate.T + bg, approximate) * (x @ up.T + bu)) @ down.T + bd
            self.assertLess(relative_error(self.forward([None] * 3, approximate), plain), 1e-6)
            self.assertLess(relative_error(self.forward(self.biases, approximate), biased), 1e-6)

    def test_the_default_attribute_is_tanh(self):
        default = self.forward([None] * 3)
        self.assertTrue(np.array_equal(default, self.forward([None] * 3, "tanh")))
        self.assertFalse(np.array_equal(default, self.forward([None] * 3, "none")))

    def train(self, kept):
        """The gradients in the order of the op: of x, gate, up, down and the three biases."""
        def empty(*shape):
            return np.full(shape, np.nan, dtype=np.float32)

        def run(op, *arguments):
            workspace = np.empty(getattr(self.module, op + "_workspace_bytes")(*arguments), dtype=np.uint8)
            getattr(self.module, op)(*arguments, workspace)

        weights = [self.gate, self.up, self.down]
        products = [None, None]
        if kept:
            products = [empty(M, H), empty(M, H)]
            run("training_forward", self.x, *weights, *self.biases, None, empty(M, D), *products, "tanh")
        gradients = [empty(*a.shape) for a in [self.x, *weights, *self.biases]]
        run("backward", self.grad_y, self.x, *weights, *self.biases[:2], *products, *gradients, *[None] * 6, "tanh")
        return gradients

    def test_backward_computes_the_products_again_or_takes_those_of_training_forward(self):
        x, gate, up, down, bg, bu, dy = (a.astype(np.float64) for a in (
            self.x, self.gate, self.up, self.down, *self.biases[:2], self.grad_y))
        g, u, dh = x @ gate.T + bg, x @ up.T + bu, dy @ down
        step = 1e-5
        slope = (gelu(g + step, "tanh") - gelu(g - step, "tanh")) / (2 * step)
        h = gelu(g, "tanh") * u
        dg, du = dh * u * slope, dh * gelu(g, "tanh")
        expected = [dg @ gate + du @ up, dg.T @ x, du.T @ x, dy.T @ h, dg.sum(0), du.sum(0), dy.sum(0)]
        for kept in (False, True):
            for found, want in zip(self.train(kept), expected):
                self.assertLess(relative_error(found, want), 2e-6)

    def test_geglu_and_its_backward(self):
        g, u, dout = (np.random.default_rng(i).standard_normal((M, H), dtype=np.float32)
                      for i in range(3))
        out, dg, du = (np.full((M, H), np.nan, dtype=np.float32) for _ in range(3))
        self.module.geglu(g, u, out)
        self.module.geglu_backward(dout, g, u, dg, du)
        z = g.astype(np.float64)
        step = 1e-5
        slope = (gelu(z + step, "tanh") - gelu(z - step, "tanh")) / (2 * step)
        self.assertLess(relative_error(out, gelu(z, "tanh") * u), 1e-6)
        self.assertLess(relative_error(dg, dout * u * slope), 1e-6)
        self.assertLess(relative_error(du, dout * gelu(z, "tanh")), 1e-6)

    def test_a_wrong_shape_gets_the_schemas_message(self):
        self.up = self.up[:, : D - 1].copy()
        with self.assertRaises(ValueError) as raised:
            self.forward([None] * 3, "tanh")
        self.assertIn(f"geglu-mlp@1 forward: up has shape [{H}, {D - 1}]; expected [H, D] with D = {D} "
                      "from x", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
