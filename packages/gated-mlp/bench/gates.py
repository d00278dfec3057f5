# SPDX-License-Identifier: Apache-2.0
"""The gate of each package that these scripts time: as PyTorch has it, and what the rivals call it."""
import importlib
import typing

import torch
import torch.nn.functional as F


class Gate(typing.NamedTuple):
    op: str  # Kiln's elementwise op; its gradient is op + "_backward"
    activate: typing.Callable  # of gate
    gradient: typing.Callable  # of activate: of its result's gradient and of gate
    quack: str
    liger: tuple  # module and function of liger_kernel.ops

    def liger_function(self):
        module, name = self.liger
        return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


GATES = {
    "geglu-mlp": Gate("geglu", lambda gate: F.gelu(gate, approximate="tanh"),
                      lambda grad, gate: torch.ops.aten.gelu_backward(grad, gate, approximate="tanh"),
                      "geglu", ("geglu", "LigerGELUMulFunction")),
    "swiglu-mlp": Gate("swiglu", lambda gate: F.silu(gate), lambda grad, gate: torch.ops.aten.silu_backward(grad, gate),
                       "swiglu", ("swiglu", "LigerSiLUMulFunction")),
}


def name_of(package):
    """NAME@VERSION -> NAME"""
    return package.split("@")[0]


def gate_of(package):
    return GATES[name_of(package)]
