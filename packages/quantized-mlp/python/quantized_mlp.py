# SPDX-License-Identifier: Apache-2.0
"""What quantized-mlp adds to kiln.torch."""

from .quantized_mlp_layer import QuantizedMlp
from .quantized_mlp_replace import replace

__all__ = ["QuantizedMlp", "replace"]  # kiln.torch has the one, and asks the other
