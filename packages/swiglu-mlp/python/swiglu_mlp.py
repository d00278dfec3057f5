# SPDX-License-Identifier: Apache-2.0
"""SwigluMlp for PyTorch: kiln.torch.SwigluMlp. See gated_mlp for what it shares with other packages."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from kiln import packages

from .gated_mlp import Activation, GatedMlp, Member, promises, register
from .gated_mlp_replace import replace

PACKAGE, VERSION = packages.of(__name__)
__all__ = ["SwigluMlp", "replace"]  # kiln.torch has the one, and asks the other


class SwigluMlp(GatedMlp):
    """(silu(gate) * up) down^T, as Llama has it. activation: "silu", "relu", "sigmoid" or "silu_clamped", which is
    gpt-oss's, with its limit."""

    package = PACKAGE

    def __init__(self, in_features: int, hidden_features: int, *, bias: bool = False, activation: str = "silu",
                 limit: float = 7.0, overflow: str = "infinity", batch_invariant: bool = False, version: int = VERSION,
                 device: Any = None, dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        attributes = {"activation": activation, "limit": limit, **promises(overflow, batch_invariant)}
        super().__init__(in_features, hidden_features, bias=bias, version=version, device=device, dtype=dtype,
                         attributes=attributes, options=options)


def _combine(attributes: dict[str, Any], gate: Tensor, up: Tensor) -> Tensor:
    activation, limit = attributes["activation"], attributes["limit"]
    if activation == "silu_clamped":
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-limit, limit) + 1)
    return _FUNCTIONS[activation](gate) * up


_FUNCTIONS = {"silu": F.silu, "relu": F.relu, "sigmoid": torch.sigmoid}
register(Member(PACKAGE, VERSION, _combine, "SiLU, ReLU or sigmoid", tuple(
    Activation({"activation": name, "limit": 7.0}, function, (name, {})) for name, function in _FUNCTIONS.items())))
