# SPDX-License-Identifier: Apache-2.0
"""replace: makes the gated MLPs of a model with quantized weights compute with Kiln: those whose three linears hold
what GPTQ, AWQ or compressed-tensors wrote, torchao's weights with whole zero points, or FP8 with scales of rows, of
blocks as DeepSeek has them or of all, in a layout that the op pack takes.

compressed-tensors puts a forward on each linear, and makes plain weights of a model at its first call, or here; the
codes are those that its own compression gives.

A module stays the one that the user has, under a class that is derived from its own; its linears stay too, with the
weights as they were, beside a packed copy that is no part of its state dict. At each call the new forward looks
whether the linears and their tensors still are those that were packed; where not, the module's own forward runs, and
a FallbackWarning says why.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import warnings
from typing import Any, Iterator, NamedTuple, Optional, Union

import torch
from torch import Tensor, nn

from kiln import NoVariant, between, layer
from kiln.layer import FallbackWarning, Report, Swap

from . import quantized_mlp_layer as own

_LINEARS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"))
_ACTIVATIONS = ("act_fn", "activation_fn", "act", "activation")
_DTYPES = (torch.bfloat16, torch.float16)
_CLOSE = 3e-2  # relative L2 of a forward against Kiln's: roundings of weights and of h, no more
_CLOSE_FLOAT8 = 8e-2  # and, of a module that does so, of x and h to FP8, which Kiln leaves as they are
_SAME = 1e-2  # of a forward in training against itself in evaluation
_FACTOR = 0.25  # of each of them: how far a forward may be from a multiple of the other, where roundings cancel
_FEW_ROWS = (0.1, 1.0, 10.0, 100.0)  # the scales of the rows that a forward is tried on
_LARGE = 128.0  # what gate and up reach in further rows
_FLOAT8 = getattr(torch, "float8_e4m3fn", None)
_PLAIN = (Tensor, nn.Parameter, type(None))


class Codes(NamedTuple):
    """One linear's weights, as its format has them."""

    layouts: tuple[str, ...]  # those that pack may be told: the forward says which
    bits: int
    rows: int
    columns: int
    groups: int
    codes: Tensor
    scales: Tensor
    zeros: Optional[Tensor]
    bias: Optional[Tensor]


def _tensor(linear: nn.Module, name: str) -> Optional[Tensor]:
    found = getattr(linear, name, None)
    return found if isinstance(found, Tensor) else None


_TOOL = "compressed_tensors"


def _is_of_tool(function: Any) -> bool:
    """Whether it is one of compressed-tensors' functions, which have the names of those that they wrap."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__globals__", {}).get("__name__", "").split(".")[0] == _TOOL


def _forward_of_tool(linear: nn.Module) -> Any:
    """What compressed-tensors put on a linear: the forward of its class, on what its scheme means; or None."""
    forward = vars(linear).get("forward")
    return forward if _is_of_tool(forward) and getattr(linear, "quantization_scheme", None) is not None else None


def _plain_weights(model: nn.Module) -> None:
    """Does at once what compressed-tensors' hook does at a model's first call, by that hook."""
    for hook in list(model._forward_pre_hooks.values()):
        if _is_of_tool(hook):
            hook(model, ())


def _in_files(linear: nn.Module) -> Union[nn.Module, str]:
    """The linear; of one of compressed-tensors' what holds the tensors of its files instead."""
    if _forward_of_tool(linear) is None:
        return linear
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format

    if _tensor(linear, "weight") is None:
        return "is compressed: call the model once, which makes compressed-tensors give it weights, then replace()"
    scheme = linear.quantization_scheme
    if getattr(scheme.input_activations, "type", None) == "int":
        return "has quantized activations, too"
    tool = BaseCompressor.get_value_from_registry((scheme.format or infer_module_format(type(linear), scheme)).value)
    own = {name: getattr(linear, name) for name, _ in (*linear.named_parameters(), *linear.named_buffers())}
    # In 16 bits a weight over its scale may be rounded to another code.
    files = tool.compress({name: t.float() if t.is_floating_point() else t for name, t in own.items()}, scheme)
    files.update((name, own[name]) for name in ("weight_scale", "bias") if name in own)
    if not torch.equal(tool.decompress(dict(files), scheme)["weight"].to(linear.weight.dtype), linear.weight):
        return "has other weights than its scheme gives"
    held = nn.Module()
    vars(held).update(files, quantization_scheme=scheme)
    return held


def _parts(tensor: Any) -> dict[str, Any]:
    """What a tensor of one of torchao's classes is made of, which has no storage of its own."""
    return vars(tensor) if type(tensor) not in _PLAIN and hasattr(tensor, "qdata") else {}


def _is_quantized(linear: Any) -> bool:
    if not isinstance(linear, nn.Module):
        return False
    if _forward_of_tool(linear) is not None:
        return True
    weight = _tensor(linear, "weight")
    return bool(_parts(weight)) or any(_tensor(linear, name) is not None for name in ("qweight", "weight_packed", "weight_scale_inv")) or (
        weight is not None and "float8" in str(weight.dtype))


def _is_in_order(order: Optional[Tensor], columns: int, groups: int) -> bool:
    """Whether column k is in group k / size; -1 stands for an order that nobody has set."""
    if order is None or order.numel() == 0 or bool((order < 0).all()):
        return True
    size = -(-columns // groups)
    return torch.equal(order.long().cpu(), torch.arange(columns, device="cpu") // size)


def codes_of(linear: nn.Module) -> Union[Codes, str]:
    """A text says why pack does not take them."""
    if _tensor(linear, "qweight") is not None:
        found = _of_qweight(linear)
    elif _tensor(linear, "weight_packed") is not None:
        found = _of_compressed_tensors(linear)
    elif _parts(_tensor(linear, "weight")):
        found = _of_torchao(linear)
    elif _is_quantized(linear):
        found = _of_float8(linear)
    else:
        return f"is a {type(linear).__name__} without codes that pack takes"
    if isinstance(found, str):
        return found
    sizes = {-(-found.columns // size) for size in (32, 64, 128)} | {1}
    if found.bits not in (4, 8):
        return f"has {found.bits} bits; pack takes 4 and 8"
    if found.groups not in sizes:
        return f"has {found.groups} groups of {found.columns} columns; pack takes groups of 32, 64, 128 or all"
    if found.scales.dtype not in (*_DTYPES, *((torch.float32,) if found.codes.dtype == _FLOAT8 else ())):
        return f"has scales in {found.scales.dtype}; pack takes bfloat16 and float16"
    return found


def _of_qweight(linear: nn.Module) -> Union[Codes, str]:
    qweight, scales, qzeros = (_tensor(linear, name) for name in ("qweight", "scales", "qzeros"))
    if scales is None or qzeros is None or qweight.dim() != 2 or scales.dim() != 2 or qweight.dtype != torch.int32:
        return "has a qweight without the scales and qzeros of GPTQ or AWQ"
    groups, rows = scales.shape
    bits = 32 * qzeros.shape[-1] // max(rows, 1)
    bias = _tensor(linear, "bias")
    if qzeros.shape[0] == groups and qweight.shape[1] * 8 == rows:
        return Codes(("awq",), bits, rows, qweight.shape[0], groups, qweight, scales, qzeros, bias)
    if qzeros.shape[0] != groups or qweight.shape[1] != rows or bits == 0:
        return (f"has a qweight {list(qweight.shape)} with scales {list(scales.shape)} and qzeros "
                f"{list(qzeros.shape)}: neither GPTQ's nor AWQ's layout")
    columns = qweight.shape[0] * 32 // bits
    if not _is_in_order(_tensor(linear, "g_idx"), columns, groups):
        return "has columns in an order of their own (act-order, g_idx), which pack does not take"
    return Codes(("gptq", "gptq_v2"), bits, rows, columns, groups, qweight, scales, qzeros, bias)


def _of_torchao(linear: nn.Module) -> Union[Codes, str]:
    weight, bias = _tensor(linear, "weight"), _tensor(linear, "bias")
    kind, codes, scales, zeros = type(weight).__name__, *(_tensor(weight, name) for name in
                                                         ("qdata", "scale", "zero_point"))
    if kind in ("Int4Tensor", "Int4TilePackedTo4dTensor", "Int4PreshuffledTensor"):
        return f"has torchao's {kind}, whose zero points are floating-point; pack takes whole ones"
    if kind not in ("IntxUnpackedToInt8Tensor", "Int8Tensor", "Float8Tensor"):
        return f"has torchao's {kind}, which pack does not take"
    if codes.dim() != 2 or scales is None or scales.dim() != 2:
        return f"has torchao's {kind} with codes {list(codes.shape)}; pack takes a matrix with scales of its rows"
    rows, columns = codes.shape
    if kind == "Float8Tensor":
        held = nn.Module()
        vars(held).update(weight=codes, weight_scale=scales, bias=bias)
        return _of_float8(held)
    if any(getattr(weight, name, None) is not None for name in
           ("activation_quantization", "act_quant_kwargs", "act_quant_scale", "act_pre_scale")):
        return "has quantized activations, too"
    if zeros is not None and zeros.is_floating_point() and bool((zeros != 0).any()):
        return f"has zero points in {zeros.dtype}; pack takes whole ones"
    bits = int(str(getattr(weight, "target_dtype", torch.int8))[len("torch.int"):])
    if scales.shape[0] != rows:
        return f"has scales {list(scales.shape)} of {rows} rows; pack takes one for each row"

    def unsigned(values: Tensor) -> Tensor:
        return (values.detach().to(torch.int16) + (1 << (bits - 1))).to(torch.uint8)

    return Codes(("plain",), bits, rows, columns, scales.shape[1], unsigned(codes), scales,
                 None if zeros is None else unsigned(zeros), bias)


def _of_float8(linear: nn.Module) -> Union[Codes, str]:
    weight = _tensor(linear, "weight")
    scales = next((found for name in ("weight_scale_inv", "weight_scale") for found in (_tensor(linear, name),)
                   if found is not None), None)
    if weight is None or weight.dtype != _FLOAT8 or weight.dim() != 2 or scales is None:
        kind = "no weight" if weight is None else f"weights in {weight.dtype} and {'no ' * (scales is None)}scales"
        return f"has {kind}; pack takes torch.float8_e4m3fn with weight_scale_inv or weight_scale"
    rows, columns = weight.shape
    is_row = tuple(scales.shape) == (1, rows) and all(-(-columns // size) != rows for size in (32, 64, 128))
    if scales.dim() < 2 or is_row:  # transformers' linears with FP8 products have the scales of rows in one row
        scales = scales.reshape(-1, 1)
    if scales.shape[0] not in (1, -(-rows // 128), rows):
        return f"has scales {list(scales.shape)} of {rows} rows; pack takes one for each row, 128 rows or all"
    return Codes(("plain",), 8, rows, columns, scales.shape[1], weight, scales, None, _tensor(linear, "bias"))


def _of_compressed_tensors(linear: nn.Module) -> Union[Codes, str]:
    packed, scales = _tensor(linear, "weight_packed"), _tensor(linear, "weight_scale")
    shape, zeros = _tensor(linear, "weight_shape"), _tensor(linear, "weight_zero_point")
    if packed.dtype != torch.int32 or scales is None or shape is None or shape.numel() != 2 or scales.dim() != 2:
        return "has a weight_packed that is not of the format pack-quantized"
    scheme = getattr(linear, "quantization_scheme", None)
    if getattr(scheme, "input_activations", None) is not None:
        return "has quantized activations, too"
    rows, columns = (int(extent) for extent in shape)
    groups = scales.shape[1]
    bits = 32 * packed.shape[1] // max(columns, 1)
    if zeros is not None and zeros.dtype != torch.int32:
        return f"has zero points in {zeros.dtype}; pack takes int32 words"
    if not _is_in_order(_tensor(linear, "weight_g_idx"), columns, groups):
        return "has columns in an order of their own (act-order, weight_g_idx), which pack does not take"
    return Codes(("compressed_tensors",), bits, rows, columns, groups, packed, scales, zeros, _tensor(linear, "bias"))


def _packed(kernel: Any, found: Codes, layout: str) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    tiles, device = -(-found.rows // 16), found.codes.device
    is_float8 = found.codes.dtype == _FLOAT8
    codes = torch.empty((tiles, -(-found.columns // 64), 128 * found.bits),
                        dtype=_FLOAT8 if is_float8 else torch.uint8, device=device)
    scales = torch.empty((tiles, found.groups, 16), dtype=torch.float32 if is_float8 else found.scales.dtype,
                         device=device)
    kernel.pack(found.codes.detach().contiguous(), found.scales.detach().contiguous(), codes, scales,
                layout="gptq" if layout == "gptq_v2" else layout)
    if found.zeros is None:
        return codes, scales, None
    zeros = torch.empty((tiles, found.groups, 16), dtype=torch.uint8, device=device)
    kernel.pack_zeros(found.zeros.detach().contiguous(), zeros, layout=layout, bits=found.bits)
    is_middle = bool((own.by_row(zeros)[:found.rows] == 1 << (found.bits - 1)).all())
    return codes, scales, None if is_middle else zeros


def _padded(bias: Optional[Tensor]) -> Optional[Tensor]:
    """[N / 16, 16], zeros beyond N."""
    if bias is None:
        return None
    return nn.functional.pad(bias.detach(), (0, -bias.numel() % 16)).reshape(-1, 16)


def _means_float8(linear: nn.Module, found: Codes, dtype: torch.dtype) -> bool:
    """Whether the linear has the weights that its codes and scales mean: of unit vectors, which FP8 rounds to
    themselves, it gives columns."""
    rows, columns, lines = found.rows, found.columns, found.scales.shape[0]
    some = torch.tensor([0, columns // 2, columns - 1], device=found.codes.device)
    size = next((each for each in (32, 64, 128) if -(-columns // each) == found.groups), columns)
    line = torch.arange(rows, device=some.device) // (1 if lines == rows else rows if lines == 1 else 128)
    meant = found.codes.detach()[:, some].float() * found.scales.detach().float()[line][:, some // size]
    columns_of = linear(nn.functional.one_hot(some, columns).to(dtype)).float()
    if found.bias is not None:
        columns_of = columns_of - found.bias.float()
    return bool((columns_of.T - meant).norm() <= 1e-2 * meant.norm())


class _Seen(NamedTuple):
    """A tensor that was packed, and how to see that it still is: set_() and `.data =` change where it lies, all else
    that PyTorch's operators write its version."""

    name: str
    held: dict[str, Any]  # by the linear: its attributes, parameters or buffers
    before: dict[str, Any]  # its attributes, which come before the others
    tensor: Optional[Tensor]  # None: an attribute that is None
    version: int
    address: int

    @classmethod
    def all_of(cls, linear: nn.Module) -> Iterator[_Seen]:
        own = vars(linear)
        for held in (own, linear._parameters, linear._buffers):
            for name, tensor in held.items():
                if isinstance(tensor, Tensor) or held is not own:
                    yield cls._of(name, held, {} if held is own else own, tensor)
                for part, value in _parts(tensor).items():
                    if value is None or isinstance(value, Tensor):
                        yield cls._of(part, vars(tensor), {}, value)

    @classmethod
    def _of(cls, name: str, held: dict[str, Any], before: dict[str, Any], tensor: Optional[Tensor]) -> _Seen:
        return cls(name, held, before, tensor, *((0, 0) if tensor is None else (_version_of(tensor), tensor.data_ptr())))


def _version_of(tensor: Tensor) -> int:
    """-1 of one that was made in torch.inference_mode(), where PyTorch counts no writes."""
    return -1 if tensor.is_inference() else tensor._version


def _first_changed(seen: tuple[_Seen, ...]) -> str:
    """"": all tensors are those that were packed."""
    for name, held, before, tensor, version, address in seen:
        if (held.get(name) is not tensor or name in before
                or tensor is not None and (version < 0 or _version_of(tensor) != version
                                           or tensor.data_ptr() != address)):
            return name
    return ""


def _forwards(linear: nn.Module) -> tuple[Any, Any]:
    """Its class's, and its own where compressed-tensors put one there, or that of the class, when it took one away."""
    own = vars(linear).get("forward")
    is_class_s = getattr(own, "__func__", None) is type(linear).forward and own.__self__ is linear
    return type(linear).forward, own if is_class_s else _forward_of_tool(linear)


def _count(linear: nn.Module) -> tuple[int, int]:
    return len(linear._parameters), len(linear._buffers)


def _beneath(tensors: Any) -> Any:
    """A linear's parameters or buffers as a dict. compressed-tensors keeps them in a mapping that moves each to its device
    at each access; where none has to move, what is beneath is as good."""
    if type(tensors) is dict:
        return tensors
    held = vars(tensors).get("offloaded_values") if hasattr(tensors, "__dict__") else None
    moves = not isinstance(held, dict) or any(held.get(name) is not tensor for name, tensor in tensors.items())
    return tensors if moves else held


def _objects_of(linears: tuple[nn.Module, ...], classes: tuple[Any, ...], held: tuple[Any, ...]) -> list[Any]:
    found: list[Any] = []
    for members in classes:
        found += members.values()
    for linear in linears:
        found.append(type(linear))
        found += linear.__dict__.values()
    for tensors, beneath in held:
        if tensors is not beneath:
            found += tensors.__dict__.values()
        found += beneath.values()
        for tensor in beneath.values():
            found += _parts(tensor).values()
    return found


def _why_not_as_packed(changed: str, place: _Place) -> str:
    dynamo = sys.modules.get("torch._dynamo")
    return (_why_not_these if dynamo is None else _untraced(dynamo))(changed, place)


# torch.compile breaks the graph here, once a call, and asks at each: torch.compiler.disable, which imports the whole
# compiler, sets this mark.
_why_not_as_packed._torchdynamo_disable = True


@functools.lru_cache(maxsize=None)
def _untraced(dynamo: Any) -> Any:
    """The compiler, where there is one, compiles none of what is called below, either."""
    return dynamo.disable(_why_not_these)


def _why_not_these(changed: str, place: _Place) -> str:
    seen = place.seen
    if changed != "" or not place.is_as_before():
        name = changed or _first_changed(seen)
        if name != "":
            if any(each.version < 0 for each in seen):
                return _INFERENCE
            return f"{name} has changed since replace(); call restore() and replace() again"
        for name, linear, original, forward, count, held in zip(place.names, place.linears, place.originals, place.forwards,
                                                                place.counts, place.held):
            why = between.on_module(linear, *forward)
            if why != "":
                return f"{name} {why}"
            if linear._parameters is not held[0] or linear._buffers is not held[1]:
                return f"{name} holds its tensors in another dict than when it was packed"
            if _count(linear) != count:
                return f"{name} has other parameters or buffers than when it was packed"
            why = original.why_not(linear)
            if why != "":
                return f"{name}: {why}"
        place.beneath = tuple((tensors, _beneath(tensors)) for held in place.held for tensors in held)
        place.hooks = tuple(vars(linear)[name] for linear in place.linears for name in between.HOOKS if name in vars(linear))
        place.before = _objects_of(place.linears, place.classes, place.beneath)
    if torch.is_grad_enabled():
        name = next((each.name for each in seen if each.tensor is not None and each.tensor.requires_grad), "")
        if name != "":
            return f"{name} requires a gradient, and what was packed has none. Call it under torch.no_grad()"
    return ""


_INFERENCE = ("its tensors were made in torch.inference_mode(), where PyTorch counts no writes to them; make or copy "
              "the model outside")


class _Place:
    """What replace() knows of one module: its linears, their tensors, and what was packed of them. It is copied and
    pickled with the module, and what had changed stays so."""

    changed = ""  # in a copy: which of what _bind() takes as it finds it was another when it was made

    def __init__(self, name: str, module: nn.Module, names: tuple[str, ...], request: tuple[Any, ...],
                 tensors: tuple[Optional[Tensor], ...], width: int, what: str, original: between.Original) -> None:
        self.original = original
        self.name, self.names, self.request, self.tensors, self.what = name, names, request, tensors, what
        self.linears = tuple(module._modules[each] for each in names)
        self.originals = tuple(between.Original(linear, "") for linear in self.linears)
        self.width = width
        self._bind()

    def _bind(self) -> None:
        self.key = layer.key_of(*self.request)
        self.told: set[str] = set()
        self.module_seen: Optional[between.Seen] = None
        self.forwards = tuple(_forwards(linear) for linear in self.linears)
        self.seen = tuple(seen for linear in self.linears for seen in _Seen.all_of(linear))
        self.counts = tuple(_count(linear) for linear in self.linears)
        self.before: list[Any] = []  # _objects_of the linears, when they were found to be as packed
        self.watched = tuple((t, version, address) for _, _, _, t, version, address in self.seen if t is not None)
        self.classes = tuple(vars(kind) for kind in between.below_module(*map(type, self.linears)))
        self.held = tuple((linear._parameters, linear._buffers) for linear in self.linears)
        self.beneath: tuple[Any, ...] = ()  # of those, when `before` was
        self.hooks: tuple[Any, ...] = ()  # the linears' dicts of them, as well
        self.contents = tuple((value, content) for original in self.originals
                              for _, value, content in original.facts.facts if isinstance(value, (list, dict, set)))
        self.codes = tuple({code for original in self.originals for code in original.codes})

    def is_as_before(self) -> bool:
        """A quick answer to what the calls before have asked one by one: the same objects, nothing written to them."""
        now, before = _objects_of(self.linears, self.classes, self.beneath), self.before
        if len(now) != len(before) or not all(map(operator.is_, now, before)):
            return False
        for value, content in self.contents:
            if not between.have_same(between.content_of(value), content):
                return False
        for function, code in self.codes:
            if function.__code__ is not code:
                return False
        for tensor, version, address in self.watched:
            if version < 0 or tensor._version != version or tensor.data_ptr() != address:
                return False
        return not any(self.hooks)

    def __getstate__(self) -> dict[str, Any]:
        own = ("key", "told", "module_seen", "forwards", "seen", "counts", "before", "watched", "classes", "held", "beneath",
               "contents", "hooks", "codes")
        changed = self.changed or _first_changed(self.seen) or next(
            (name for name, linear, *was in zip(self.names, self.linears, self.forwards, self.counts)
             if [_forwards(linear), _count(linear)] != was), "")
        return {**{name: value for name, value in vars(self).items() if name not in own}, "changed": changed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._bind()

    def why_not(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any],
                residual: Optional[Tensor]) -> str:
        """Why the module's own forward must run."""
        why = between.on_every_module()
        if why != "":
            return why
        if len(args) != 1 or named or not isinstance(args[0], Tensor):
            return "it is called with something else than its input"
        x, packed = args[0], self.tensors[0]
        cast = layer.autocast_dtype(packed.device.type)
        dtype = x.dtype if cast is None or x.dtype not in (torch.float32, *_DTYPES) else cast
        if dtype not in _DTYPES:
            return f"x is {x.dtype}, computed in {dtype}; quantized-mlp takes bfloat16 and float16"
        if x.device != packed.device or x.dim() == 0 or x.shape[-1] != self.width:
            # The same words for x of all lengths, which are told once.
            return f"x is {str(x.dtype)[6:]} on {x.device}; expected rows of {self.width} on {packed.device}"
        if residual is not None and (residual.shape != x.shape or cast is None and residual.dtype != x.dtype
                                     or residual.device != x.device):
            return f"residual is {str(residual.dtype)[6:]} on {residual.device}; expected one like x, of its shape"
        if between.compiles() or self.module_seen is None or not self.module_seen.holds(module):
            why = self._why_not_modules(module)
            if not between.compiles():
                self.module_seen = None
                if why == "":
                    self._see(module)
        why = why or self.original.why_another(module, x.requires_grad and torch.is_grad_enabled(), cast is not None)
        why = why or _why_not_as_packed(self.changed, self)
        if why != "":
            return why
        if cast is not None and x.dtype != cast and "cast" in self.original.other_in:
            return f"torch.autocast casts x, {x.dtype}, of which its forward gives something else"
        if cast is None and any(bias is not None and bias.dtype != x.dtype for bias in self.tensors[9:12]):
            return f"x is {x.dtype} and a bias is not"
        return layer.why_pytorch(x, residual)

    def _see(self, module: nn.Module) -> None:
        """The questions are asked once more, of what has been seen: another thread may have changed it since. What the
        linears have is_as_before() looks at."""
        seen = self.original.see(module, {})
        self.module_seen = seen if seen is not None and self._why_not_modules(module) == "" else None

    def _why_not_modules(self, module: nn.Module) -> str:
        why = self.original.why_not(module)
        if why != "":
            return why
        changed = (name for name, linear in zip(self.names, self.linears) if module._modules.get(name) is not linear)
        name = next(changed, "")
        return "" if name == "" else f"{name} was replaced"


class ReplacedQuantizedMlp(layer.Replaced):
    _kiln: Optional[_Place] = None

    def forward(self, *args: Any, residual: Optional[Tensor] = None, **named: Any) -> Any:
        """The original's, and with a residual, of x's shape and dtype, the sum of both."""
        place = self._kiln
        if place is not None and layer.enabled():
            why = place.why_not(self, args, named, residual)
            if why == "":
                return _call(place.tensors, args[0], place.key, residual)
            layer.tell(place.told, place.name, why)
        y = super().forward(*args, **named)
        return y if residual is None else residual + y


def _call(tensors: tuple[Optional[Tensor], ...], x: Tensor, key: str, residual: Optional[Tensor] = None) -> Tensor:
    dtype = layer.autocast_dtype(x.device.type)
    if residual is not None and dtype is not None and residual.dtype != dtype:
        return residual + _call(tensors, x, key)
    x, residual, *biases = layer.cast(x, residual, *tensors[9:])
    rows = [None if t is None else t.contiguous().reshape(-1, x.shape[-1]) for t in (x, residual)]
    return own.quantized_mlp((rows[0], *tensors[:9], *biases, None, rows[1]), key)[0].reshape(x.shape)


def _activation_of(original: between.Original) -> Optional[str]:
    """Of those that the package has, by its values on a range; silu, where forward calls it by itself."""
    act = original.act_is
    if act is None:
        return "silu"
    if original.act_learns():
        return None
    x = torch.linspace(-512, 512, 16385, device="cpu", dtype=torch.float32)  # clamps too, at 10 or 100
    try:
        values = act(x)
    except Exception:  # noqa: BLE001  whatever a stranger's function throws
        return None
    return next((name for name, gate in own.GATES.items() if torch.allclose(gate(x), values, atol=1e-6)), None)


def _with_large_rows(linears: list[nn.Module], biases: list[Optional[Tensor]], x: Tensor) -> Tensor:
    """x [4, D] and rows of it that are scaled so that gate and up reach _LARGE, by which a clamp shows. None where a
    linear takes no values that large: what it rounds to FP8 by a scale of its own ends at what it was made for."""

    def product(place: int, rows: Tensor) -> Tensor:
        y = linears[place](rows)
        return y if biases[place] is None else y - biases[place]

    def takes(place: int, rows: Tensor, factor: float) -> bool:
        y, meant = product(place, rows * factor).float(), product(place, rows).float() * factor
        return bool((y - meant).norm() <= _CLOSE_FLOAT8 * meant.norm())

    try:
        of_x = [product(place, x) for place in (0, 1)]
        hidden = (of_x[0].float() * of_x[1].float()).to(x.dtype)
        result = [x]
        for product_of_x, rows in zip(of_x, (slice(0, 2), slice(2, 4))):
            some, most = x[rows], float(product_of_x[rows].float().abs().max())
            factor = _LARGE / most if most > 0 else 0.0
            if factor > 1 and takes(0, some, factor) and takes(1, some, factor) and takes(2, hidden[rows], factor**2):
                result.append(some * factor)
        return torch.cat(result)
    except Exception:  # noqa: BLE001  linears that are not called alone
        return x


def _layouts(found: list[Codes]) -> Iterator[tuple[str, ...]]:
    yield tuple(each.layouts[0] for each in found)
    if any(len(each.layouts) > 1 for each in found):
        yield tuple(each.layouts[-1] for each in found)


def _agree(found: Tensor, expected: Tensor, close: float) -> bool:
    return found.dtype == expected.dtype and layer.agree(found.flatten(0, -2), expected.flatten(0, -2), close,
                                                         _FACTOR * close)


def _gives(module: nn.Module, x: Tensor, expected: Tensor, close: float) -> bool:
    """Whether its forward gives this; a stranger's may throw."""
    with contextlib.suppress(Exception):
        y = module.forward(x)
        return isinstance(y, Tensor) and _agree(y, expected, close)
    return False


def _has_gradients_of(module: nn.Module, call: Any, x: Tensor, close: float) -> bool:
    """Whether the gradient of x is that of `call`, of x in three dimensions."""
    grads = []
    with contextlib.suppress(Exception), torch.enable_grad():  # linears without a backward, and one beyond the memory
        for function in (module, call):
            own = x.detach().clone().requires_grad_()
            y = function(own)
            weights = torch.randn(y.shape, generator=torch.Generator("cpu").manual_seed(1), device="cpu").to(y)
            grads.append(torch.autograd.grad(y, own, weights)[0])
        return _agree(*grads, close)
    return False


@torch.inference_mode(False)
@torch.no_grad()
def _fit(name: str, module: nn.Module, names: tuple[str, ...], attributes: dict[str, Any], version: int,
         options: dict[str, Any]) -> Union[_Place, str]:
    if "forward" in vars(module):
        return "it has a forward of its own, that would no longer run"
    if "residual" in inspect.signature(type(module).forward).parameters:
        return "its forward takes residual"
    idle = [child for key, child in module._modules.items() if key not in names and key not in _ACTIVATIONS]
    if idle:
        return f"it holds a {type(idle[0]).__name__} beside its linears"
    if between.tensor_of(module) != "":
        return f"it holds a tensor beside its linears, {between.tensor_of(module)}"
    if any(t.is_inference() for each in names for t in (*module._modules[each].parameters(),
                                                        *module._modules[each].buffers())):
        return _INFERENCE
    found = []
    for each in names:
        why = between.on_module(module._modules[each], *_forwards(module._modules[each]))
        if why != "":
            return f"{each} {why}"
        linear = _in_files(module._modules[each])
        codes = linear if isinstance(linear, str) else codes_of(linear)
        if isinstance(codes, str):
            return f"{each} {codes}"
        found.append(codes)
    gate, up, down = found
    if (gate.bits, gate.groups, gate.rows, gate.columns) != (up.bits, up.groups, up.rows, up.columns):
        return f"{names[0]} and {names[1]} have other shapes, bits or groups"
    if (down.columns, down.rows) != (gate.rows, gate.columns):
        return f"{names[2]} is [{down.rows}, {down.columns}]; expected [{gate.columns}, {gate.rows}]"
    if len({(each.codes.dtype == _FLOAT8, each.scales.dtype) for each in found}) > 1:
        return "its linears have codes or scales of several dtypes"
    original = between.Original(module, next((each for each in _ACTIVATIONS if hasattr(module, each)), ""))
    held = between.Held(module, original)
    activation = _activation_of(original)
    if activation is None:
        return f"its activation is none of {', '.join(own.GATES)}"
    attributes = {**attributes, "activation": activation}
    request = (own.PACKAGE, version or own.VERSION, attributes, options)
    device = gate.codes.device
    source = layer.source_of(layer.key_of(*request))
    kernel = source.kernel(device)
    is_float8 = gate.codes.dtype == _FLOAT8
    like = gate.bias if gate.bias is not None else gate.scales
    # A module that rounds x to FP8 may do so by a scale that it has, for x as large as usual.
    scales = torch.tensor([1.0] if is_float8 else _FEW_ROWS, device="cpu")[:, None]
    x = (torch.randn(4, gate.columns, generator=torch.Generator("cpu").manual_seed(0), device="cpu") * scales).to(
        device, like.dtype if like.dtype in _DTYPES else torch.bfloat16)
    linears = [module._modules[each] for each in names]
    close = _CLOSE_FLOAT8 if is_float8 else _CLOSE
    trials = []  # a zero of 8 bits that is one less is hardly another weight: the layout that is closest counts
    other_in = []
    key = layer.key_of(*request)
    try:
        with layer.as_it_is(module, device), torch.autocast(device.type, enabled=False):
            layer.set_mode(module, False)
            for each, linear, codes in zip(names, linears, found):
                # _in_files has compared the weights of those of compressed-tensors
                if is_float8 and _forward_of_tool(linear) is None and not _means_float8(linear, codes, x.dtype):
                    return f"{each} gives something else than its codes and scales mean"
            few, x = x, _with_large_rows(linears, [each.bias for each in found], x)
            deep = x.reshape(2, -1, x.shape[1])
            expected = module.forward(deep)
            if not isinstance(expected, Tensor) or expected.dtype != x.dtype:
                return f"its forward gives something else than {x.dtype} of it"
            expected = expected.flatten(0, -2)
            # In two dimensions compressed-tensors rounds all tokens by one scale: large rows would hide the usual ones.
            of_few = module.forward(few)
            for layouts in _layouts(found):
                packed = [_packed(kernel, codes, layout) for codes, layout in zip(found, layouts)]
                tensors = (*packed[0], *packed[1], *packed[2], _padded(gate.bias), _padded(up.bias),
                           None if down.bias is None else down.bias.detach())
                y = _call(tensors, x, key)
                if _agree(y, expected, close) and _agree(y[:len(few)], of_few, close):
                    trials.append((float((y[0].float() - expected[0].float()).norm()), layouts[0], tensors))
            if not trials:
                return "its forward gives something else than its codes mean"
            _, layout, tensors = min(trials, key=lambda trial: trial[0])
            if not _has_gradients_of(module.forward, lambda x: _call(tensors, x, key), deep, close):
                other_in.append("gradients")
            with torch.autocast(device.type, x.dtype, cache_enabled=False):
                other_in += [word for word, given in (("autocast", deep), ("cast", deep.float()))
                             if not _gives(module, given, expected, close)]
            layer.set_mode(module, True)
            if not _gives(module, deep, expected, _SAME):
                other_in.append("training")
    finally:
        written = held.put_back()
    if written != "":
        return f"its forward writes {written}, which would no longer be written"
    original.other_in = tuple(other_in)
    codes = "float8_e4m3fn" if is_float8 else f"int{gate.bits} of {layout}"
    note = ", in evaluation: in training its forward is another" if "training" in other_in else ""
    if "gradients" in other_in:
        note += ", without gradients: its forward has others"
    if "autocast" in other_in:
        note += ", but not under torch.autocast"
    what = f"{own.PACKAGE}@{request[1]} {kernel.variant}, {activation}, {codes}{note}"
    return _Place(name, module, names, request, tensors, gate.columns, what, original)


def replace(model: nn.Module, *, version: int = 0, overflow: str = "infinity", batch_invariant: bool = False,
            **options: Any) -> Report:
    """Makes the MLPs of `model` whose weights are in FP8, or GPTQ's, AWQ's, compressed-tensors' or torchao's codes,
    compute with Kiln.

    An MLP has three linears, named as Llama, T5 or Meta's Llama has them, which hold codes in a layout that pack takes;
    its forward is compared on a few rows. What stays as it is has its reason in the report, and one FallbackWarning.
    The linears keep their weights, so that restore() gives them back: the packed copy is as large again.
    """
    layer.check_options("replace", options)
    attributes = {"limit": 7.0, "overflow": overflow,
                  "batch_invariant": layer.yes_or_no(batch_invariant, "batch_invariant")}
    swaps = []
    for name, module in list(model.named_modules()):
        names = next((each for each in _LINEARS if all(part in module._modules for part in each)), None)
        if names is None or layer.is_replaced(module):
            continue
        name, kind = name or "the model", type(module).__name__
        try:
            if not any(_is_quantized(module._modules[n]) for n in names):
                continue
            _plain_weights(model)
            place = _fit(name, module, names, attributes, version, options)
            made = layer.replaced_class(ReplacedQuantizedMlp, type(module)) if isinstance(place, _Place) else None
        except NoVariant as error:
            place = str(error).splitlines()[0]
        except Exception as error:  # what a foreign class, its forward or a call of the package throws
            place = f"a trial of it failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if isinstance(place, str):
            swaps.append(Swap(name, kind, False, place))
            continue
        module.__class__ = made
        module._kiln = place
        swaps.append(Swap(name, kind, True, place.what))
    kept = [swap for swap in swaps if not swap.swapped]
    if kept:
        warnings.warn(f"kiln.torch.replace keeps {len(kept)} quantized MLPs as they are; {kept[0].name}: "
                      f"{kept[0].what}", FallbackWarning, stacklevel=3)
    return Report(tuple(swaps))
