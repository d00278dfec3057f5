# SPDX-License-Identifier: Apache-2.0
"""A layer from Python on a system with nothing but the wheel and numpy: the GeGLU MLP against numpy in fp64."""
import math

import kiln
import numpy as np

random = np.random.default_rng(7)
x, gate, up = (random.standard_normal(shape).astype(np.float32) for shape in [(4, 64), (256, 64), (256, 64)])
down = random.standard_normal((64, 256)).astype(np.float32)
kernel = kiln.get_kernel("geglu-mlp", version=1, device="cpu")
y = np.asarray(kernel.forward(x, gate, up, down, approximate="tanh"))

z, u = (x.astype(np.float64) @ weight.astype(np.float64).T for weight in (gate, up))
gelu = 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
expected = (gelu * u) @ down.astype(np.float64).T
error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
print(f"kiln {kiln.__version__}, {kernel.variant}: relative error {error:.1e} against fp64")
assert error < 1e-5, error
