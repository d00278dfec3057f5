# SPDX-License-Identifier: Apache-2.0
"""CrossEntropy for PyTorch: kiln.torch.CrossEntropy.

    loss = kiln.torch.CrossEntropy()(logits, targets)        # logits: [..., V]; targets: int64 or int32 [...]
    loss = kiln.torch.CrossEntropy(in_place=True)(logits, targets)    # the logits' memory becomes their gradient's

bfloat16, float16 and float32, on CPU and GPU; the loss is float32. The classes stand last, where
torch.nn.CrossEntropyLoss has them second. Gradients come from the package's own backward. Threads: as nn.Linear.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

import torch
from torch import Tensor

from kiln import InvalidCall, UsageError, layer, packages

PACKAGE, VERSION = packages.of(__name__)


class _CrossEntropy(layer.Differentiable):
    """Of logits [M, V]: each row's loss and lse; keeps logits, targets and lse. The gradient of lse is not computed."""

    name, inputs, gradient_of = "cross_entropy", "logits targets", (0, None)

    def forward(self, inputs: layer.Tensors, key: str) -> list[Tensor]:
        logits, targets = inputs
        result = layer.source_of(key).call(logits.device, "forward", {"logits": logits, "targets": targets})
        return [result.loss, result.lse]

    def like(self, inputs: layer.Tensors) -> list[Tensor]:
        return [torch.empty_like(inputs[1], dtype=torch.float32) for _ in range(2)]

    def keep(self, inputs: layer.Tensors, outputs: Sequence[Tensor]) -> list[Optional[Tensor]]:
        return [*inputs, outputs[1]]

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        logits, targets, lse = kept
        tensors = {"logits": logits, "targets": targets, "lse": lse, "grad_loss": grads[0].contiguous()}
        return [layer.source_of(key).call(logits.device, "backward", tensors)]

    def by_pytorch(self, kept: layer.Tensors, attributes: Mapping[str, Any]) -> list[Tensor]:
        logits, targets = kept[0].float(), kept[1].long()
        classes, smoothing = logits.shape[-1], attributes["label_smoothing"]
        ignored = targets == attributes["ignore_index"]
        known = (targets >= 0) & (targets < classes)
        # An ignored row's gradient is zero, whatever its logits are: 0 times the gradient of NaN would not be.
        logits = torch.where(ignored[:, None], 0.0, logits)
        lse = torch.logsumexp(logits, -1)
        if classes == 0:
            loss = logits.sum(-1)  # zeros with a gradient
        else:
            of_classes = torch.log_softmax(logits, -1)
            loss = (smoothing - 1) * of_classes.gather(-1, torch.where(known, targets, 0)[:, None])[:, 0]
            if smoothing:
                loss = loss - smoothing * of_classes.mean(-1)
        if attributes["z_loss"]:
            loss = loss + attributes["z_loss"] * lse.square()
        # What is no class makes its row NaN, its gradient too.
        loss = loss * torch.ones_like(loss).masked_fill(~(known | ignored), torch.nan)
        return [torch.where(ignored, 0.0, loss), lse]


class _InPlace(_CrossEntropy):
    """In eager mode alone, where no compiler has to hear of it: the gradient takes the logits' memory."""

    def __init__(self) -> None:
        pass

    def backward(self, grads: layer.Tensors, kept: layer.Tensors, wanted: Sequence[bool],
                 key: str) -> list[Optional[Tensor]]:
        logits, targets, lse = kept
        tensors = {"logits": logits, "targets": targets, "lse": lse, "grad_loss": grads[0].contiguous(),
                   "grad_logits": logits}
        # Whoever else kept the logits for a gradient, a second backward too, is told by PyTorch that they changed: but
        # where hooks kept them, of whose tensors PyTorch knows no version. The layer asks for those.
        layer.source_of(key).call(logits.device, "backward", tensors)
        return [logits.detach()]


_cross_entropy, _in_place = _CrossEntropy(), _InPlace()
_CAN_BE_IN_PLACE = hasattr(torch.autograd.graph, "increment_version")
_hooks_of_saved_tensors = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def _is_hooked() -> bool:
    """Whether hooks keep what autograd saves now, as those of torch.utils.checkpoint."""
    if _hooks_of_saved_tensors is not None:
        return _hooks_of_saved_tensors(True) is not None
    try:  # an older PyTorch refuses a second pair
        torch.ones((), requires_grad=True).exp().grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)
    except RuntimeError:
        return True
    return False


class CrossEntropy(layer.Layer):
    """The cross-entropy of the last dimension of logits, with `reduction` "mean" (over rows that are not ignored),
    "sum" or "none".

    z_loss: adds z_loss lse^2 to each row's loss. in_place: backward writes the gradient into the logits' memory, in
    eager mode, where no hooks save tensors (torch.utils.checkpoint, save_on_cpu) and the logits are no part of another
    tensor, as chunks are. A target that is neither ignore_index nor a class makes its row NaN. `options` are those of kiln.get_kernel.
    """

    def __init__(self, *, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
                 reduction: str = "mean", in_place: bool = False, version: int = VERSION, **options: Any) -> None:
        super().__init__(PACKAGE, version, {"ignore_index": ignore_index, "label_smoothing": label_smoothing,
                                            "z_loss": z_loss}, options)
        if reduction not in ("mean", "sum", "none"):
            raise UsageError(f"cross entropy: reduction is {reduction!r}; expected mean, sum or none")
        if not 0 <= label_smoothing <= 1:
            raise UsageError(f"cross entropy: label_smoothing is {label_smoothing}; expected 0 to 1")
        self.reduction, self.in_place = reduction, in_place

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """logits: [..., V]; targets: int64 or int32 [...]."""
        if targets.shape != logits.shape[:-1] or targets.dtype not in (torch.int64, torch.int32):
            raise InvalidCall(f"cross entropy: targets are {layer.words_of(targets)}; expected int64 or int32 "
                              f"{list(logits.shape[:-1])}")
        if self.is_pytorchs(logits, targets):
            return self.reference(logits, targets)
        rows = layer.readable(layer.rows_of(logits))
        # Of chunks of one tensor each would be told that another was written. Its gradient is one of all of it anyway.
        is_whole = rows._base is None or rows._base.numel() == rows.numel()
        in_place = (self.in_place and is_whole and _CAN_BE_IN_PLACE and torch.is_grad_enabled()
                    and not layer.goes_by_operators() and not _is_hooked())
        op = _in_place if in_place else _cross_entropy
        loss = op((rows, targets.contiguous().reshape(-1)), self._key)[0]
        return self._reduced(loss, targets)

    def reference(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The same by PyTorch's operators; what the layer computes while disabled."""
        kept = (layer.rows_of(logits), targets.reshape(-1), None)
        return self._reduced(_cross_entropy.by_pytorch(kept, self.attributes)[0], targets)

    def _reduced(self, loss: Tensor, targets: Tensor) -> Tensor:
        if self.reduction == "none":
            return loss.reshape(targets.shape)
        if self.reduction == "sum":
            return loss.sum()
        return loss.sum() / (targets != self.attributes["ignore_index"]).sum()

    def extra_repr(self) -> str:
        return f"reduction={self.reduction}, {super().extra_repr()}"
