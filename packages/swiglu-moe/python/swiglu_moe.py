# SPDX-License-Identifier: Apache-2.0
"""SwiGLU MLPs of experts for PyTorch: kiln.torch.SwigluMoe, and transformers' experts by it.

    moe = kiln.torch.SwigluMoe(2048, 768, 128, device="cuda")     # width, hidden, experts
    y = moe(x, experts, weights)       # x: [..., D]; experts: int64 or int32 [..., K]; weights: [..., K]

    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    ALL_EXPERTS_FUNCTIONS.register("kiln", kiln.torch.package("swiglu-moe").experts_forward)
    model.set_experts_implementation("kiln")

bfloat16 and float16 on CPU and GPU; under torch.autocast in its dtype, as nn.Linear. PyTorch computes gradients, from
the inputs. FP8 is an op of the kernel, without a module: kiln.get_kernel("swiglu-moe", 1, device="cuda").forward_float8.
Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn

from kiln import InvalidCall, between, layer, packages

PACKAGE, VERSION = packages.of(__name__)
_DTYPES = (torch.bfloat16, torch.float16)


def _by_pytorch(x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each expert in turn, of the tokens that chose it: of all tokens, where somebody records it for other choices; sums
    in fp32."""
    # Nothing of each: where no token has an expert, gradients are zeros, as of the op, and not None.
    y = torch.zeros_like(x, dtype=torch.float32) + sum(t[:0].sum() for t in (x, weights, gate_up, down))
    chosen = layer.knows_numbers(x, experts, weights, gate_up, down)
    for expert in range(len(gate_up)):
        tokens, weight = x, weights
        if chosen:
            token, choice = torch.where(experts == expert)
            if len(token) == 0:
                continue
            tokens, weight = x[token], weights[token, choice, None]
        gate, up = nn.functional.linear(tokens, gate_up[expert]).chunk(2, -1)
        part = nn.functional.linear(nn.functional.silu(gate) * up, down[expert]).float()
        if chosen:
            y = y.index_add(0, token, part * weight)
        else:
            is_its = experts == expert
            weight = torch.where(is_its, weights, 0).sum(-1, keepdim=True)
            y = y + torch.where(is_its.any(-1, keepdim=True), part * weight, 0)
    return y.to(x.dtype)


class _SwigluMoe(layer.Differentiable):
    """Of x [M, D]; keeps what it was given."""

    name, inputs, gradient_of = "swiglu_moe", "x experts weights gate_up down", (0, None, 1, 2, 3)

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        x, experts, *others = inputs
        return [x, *others, experts]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        x, weights, gate_up, down, experts = kept
        return [_by_pytorch(x, experts, weights, gate_up, down)]


_swiglu_moe = _SwigluMoe()


def _call(key: str, x: Tensor, experts: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    rows, experts, weights = (layer.rows_of(t) for t in (x, experts, weights))
    others = (t.contiguous() for t in (experts, weights.float(), gate_up, down))
    return _swiglu_moe((layer.readable(rows), *others), key)[0].reshape(x.shape)


class SwigluMoe(layer.Layer):
    """gate_up [experts, 2 hidden, width]: the rows of gate, then those of up; down [experts, width, hidden].

    A token's K experts need not differ; one outside 0 to experts - 1 adds nothing. `options` are those of
    kiln.get_kernel.
    """

    def __init__(self, width: int, hidden: int, experts: int, *, device: Any = None, dtype: torch.dtype = torch.bfloat16,
                 version: int = VERSION, **options: Any) -> None:
        super().__init__(PACKAGE, version, {}, options)
        if dtype not in _DTYPES:
            raise InvalidCall(f"swiglu-moe: dtype is {str(dtype)[6:]}; expected bfloat16 or float16")
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * hidden, width, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(experts, width, hidden, device=device, dtype=dtype))
        for weight in (self.gate_up, self.down):
            nn.init.normal_(weight, std=max(weight.shape[-1], 1) ** -0.5)
        self.find_kernel()

    def forward(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """x: [..., width]; experts: int64 or int32 [..., K]; weights: [..., K]."""
        if (experts.shape != weights.shape or experts.shape[:-1] != x.shape[:-1]
                or experts.dtype not in (torch.int64, torch.int32)):
            raise InvalidCall(f"swiglu-moe: experts are {layer.words_of(experts)}, weights {layer.words_of(weights)}; "
                              f"expected int64 or int32, and a number for each, {list(x.shape[:-1])} and one extent more")
        if self.is_pytorchs(x, experts, weights, self.gate_up, self.down):
            return self.reference(x, experts, weights)
        x, gate_up, down = layer.cast(x, self.gate_up, self.down)
        return _call(self._key, x, experts, weights, gate_up, down)

    def reference(self, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        x, gate_up, down = layer.cast(x, self.gate_up, self.down)
        rows = [layer.rows_of(t) for t in (x, experts, weights)]
        return _by_pytorch(*rows, gate_up, down).reshape(x.shape)

    def extra_repr(self) -> str:
        count, width, hidden = self.down.shape
        return f"{width}, {hidden}, experts={count}, {super().extra_repr()}"


_told: set[str] = set()
_SILU_FORWARD = nn.SiLU.forward


def experts_forward(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """For transformers' ALL_EXPERTS_FUNCTIONS. Experts of another kind, and calls that need a gradient or that somebody
    follows, get transformers' "grouped_mm", and a FallbackWarning once for each reason."""
    enabled = layer.enabled()
    why = _why_not(module, hidden_states, top_k_weights)
    if why == "" and enabled:
        why = layer.why_pytorch(hidden_states, top_k_index, top_k_weights, module.gate_up_proj, module.down_proj)
    if why != "":
        layer.tell(_told, f"a {type(module).__name__}", why)
    if why != "" or not enabled:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, hidden_states, top_k_index, top_k_weights)
    return _call(layer.key_of(PACKAGE, VERSION, {}, {}), hidden_states, top_k_index, top_k_weights,
                 module.gate_up_proj, module.down_proj)


def _why_not(module: nn.Module, x: Tensor, weights: Tensor) -> str:
    """Why this package cannot compute these experts; "": it can."""
    wanted = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True,
              "has_post_expert_norm": False}
    for name, value in wanted.items():
        if getattr(module, name, value) != value:
            return f"{name} is {not value}"
    act = module.act_fn
    if type(act) is not nn.SiLU and type(act).__name__ != "SiLUActivation":
        return f"its activation is {type(act).__name__}, and not SiLU"
    why = between.on_module(act, _SILU_FORWARD if type(act) is nn.SiLU else type(act).forward)
    if why != "":
        return f"its activation {why}"
    why = between.on_every_module()
    if why != "":
        return why
    if getattr(module._apply_gate, "__name__", "") != "_default_apply_gate":
        return "it has a gate of its own"
    if x.dtype not in _DTYPES or module.gate_up_proj.dtype != x.dtype or module.down_proj.dtype != x.dtype:
        return f"x is {str(x.dtype)[6:]}, its weights {str(module.gate_up_proj.dtype)[6:]}; expected bfloat16 or float16"
    if not (module.gate_up_proj.is_contiguous() and module.down_proj.is_contiguous()):
        return "its weights have gaps or another order"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, weights, module.gate_up_proj, module.down_proj)):
        return "the package has no gradients of its own"
    return ""
