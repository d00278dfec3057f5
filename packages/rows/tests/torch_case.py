# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch tests of packages share: the device, random tensors, a comparison. Ends the test with 77 where this
Python has no torch."""

import os
import sys
import unittest

try:
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

DEVICE = os.environ.get("KILN_TEST_DEVICE", "cpu")
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


class TorchCase(unittest.TestCase):
    def assert_close(self, found, expected, dtype=torch.float32):
        self.assertEqual(len(found), len(expected))
        for a, b in zip(found, expected):
            self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
            error = (a.double() - b.double()).norm() / b.double().norm()
            self.assertLess(error.item(), BOUNDS[dtype])
