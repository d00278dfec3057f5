# SPDX-License-Identifier: Apache-2.0
"""GegluMlp for PyTorch: kiln.torch.GegluMlp. See gated_mlp for what it shares with other packages."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from kiln import packages

from .gated_mlp import Activation, GatedMlp, Member, promises, register
from .gated_mlp_replace import replace

PACKAGE, VERSION = packages.of(__name__)
__all__ = ["GegluMlp", "replace"]  # kiln.torch has the one, and asks the other


class GegluMlp(GatedMlp):
    """(gelu(gate) * up) down^T, as Gemma has it. approximate: "tanh" or "none"."""

    package = PACKAGE

    def __init__(self, in_features: int, hidden_features: int, *, bias: bool = False, approximate: str = "tanh",
                 overflow: str = "infinity", batch_invariant: bool = False, version: int = VERSION, device: Any = None,
                 dtype: Optional[torch.dtype] = None, **options: Any) -> None:
        attributes = {"approximate": approximate, **promises(overflow, batch_invariant)}
        super().__init__(in_features, hidden_features, bias=bias, version=version, device=device, dtype=dtype,
                         attributes=attributes, options=options)


def _combine(attributes: dict[str, Any], gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate=attributes["approximate"]) * up


register(Member(PACKAGE, VERSION, _combine, "GELU", (
    Activation({"approximate": "tanh"}, lambda z: F.gelu(z, approximate="tanh"), ("gelu", {"approximate": "tanh"})),
    Activation({"approximate": "none"}, F.gelu, ("gelu", {})))))
