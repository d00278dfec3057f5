# SPDX-License-Identifier: Apache-2.0
"""fit: which package of the family computes what a module computes, and how to see later that it still does. The stage
before gated_mlp_replace.

An MLP is known by what it does, not by its class: it holds nn.Linear under known names, its activation is one that a
package computes (compared on a range of numbers), and its forward gives what the formula gives, in values, dtype and
gradients (run on a few rows, of two shapes, in evaluation and in training, and under torch.autocast).
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Iterator, Optional, Sequence, Union

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kiln import between, layer

from .gated_mlp import Activation, Member

# gate, up and down; or the first two in one, and down
_LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("gate_proj", "up_proj", "down_proj"),  # Llama, Gemma, Qwen, Mistral
    ("gate_up_proj", "down_proj"),  # Phi-3, GLM-4
    ("Wi", "Wo"),  # ModernBERT
    ("wi_0", "wi_1", "wo"),  # T5 v1.1
    ("w1", "w3", "w2"),  # Meta's Llama
    ("w12", "w3"),  # DINOv2
)
_ACTIVATION_NAMES = ("act_fn", "activation_fn", "act", "activation")
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # float32 on a GPU: under torch.autocast
# Relative L2 of a forward against the formula in the same dtype: the order of roundings may differ, no more.
_CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_FACTOR = {torch.float32: 1e-6, torch.float16: 2e-4, torch.bfloat16: 1e-3}  # and in the mean, where roundings cancel
_FEW_ROWS = (0.1, 1.0, 10.0, 100.0)  # the scales of the rows that a forward is tried on
_LARGE = 128.0  # what gate and up reach in further rows: a clamp shows
# Children that an MLP may have beside its linears and its activation, with their forward.
_IDLE = {nn.Dropout: nn.Dropout.forward, nn.Identity: nn.Identity.forward}


class Fit:
    """How one module was found to be a package's MLP. It can be pickled with the module."""

    package: str
    version: int
    attributes: dict[str, Any]
    note: str  # "" or what people should know, ", in evaluation: in training it has dropout"
    linears: tuple[str, ...]
    second_is_gate: bool  # of two linears in one: "up" comes first
    original: between.Original
    idle: tuple[str, ...]  # children of _IDLE
    input_name: str

    def input_of(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What forward was called with; None where that is not one input."""
        if len(args) == 1 and not named:
            return args[0]
        if not args and len(named) == 1:
            return named.get(self.input_name)
        return None

    def why_not(self, module: nn.Module, x: Any) -> str:
        """Why the module's own forward must run: what was compared is no longer what stands there."""
        why = between.on_every_module()
        if why != "":
            return why
        if x is None:
            return "it is called with something else than its input"
        why = self.original.why_not(module)
        if why != "":
            return why
        modules = module._modules
        for name in self.linears:
            why = between.on_linear(modules.get(name))
            if why != "":
                return f"{name} {why}"
        for name in self.idle:
            why = _why_not_idle(modules.get(name))
            if why != "":
                return f"{name} {why}"
        if self.original.other_in:
            autocast = isinstance(x, Tensor) and layer.autocast_dtype(x.device.type) is not None
            return self.original.why_another(module, False, autocast)
        return ""

    def see(self, module: nn.Module) -> Optional[between.Seen]:
        """What why_not() reads, but for autocast; None where it must be asked each time."""
        modules = module._modules
        return self.original.see(module, {name: modules[name] for name in self.linears}, [modules[name] for name in self.idle])

    def parameters_of(self, module: nn.Module) -> list[Optional[Tensor]]:
        """The weight and the bias of each linear, as they are now."""
        modules, found = module._modules, []
        for name in self.linears:
            parameters = modules[name]._parameters
            found += (parameters["weight"], parameters["bias"])
        return found

    def tensors_of(self, module: nn.Module) -> tuple[Optional[Tensor], ...]:
        return self.arranged(self.parameters_of(module))

    def arranged(self, parameters: list[Optional[Tensor]]) -> tuple[Optional[Tensor], ...]:
        """gate, up, down and their biases: views where two are in one."""
        if len(parameters) == 6:
            gate, gate_bias, up, up_bias, down, down_bias = parameters
            return gate, up, down, gate_bias, up_bias, down_bias
        weight, bias, down, down_bias = parameters
        first, second = weight.chunk(2)
        # A bias that PyTorch spreads has no halves, and is then one that does not belong to the weights.
        halves = (bias, bias) if bias is None or bias.shape != weight.shape[:1] else bias.chunk(2)
        if self.second_is_gate:
            return second, first, down, halves[1], halves[0], down_bias
        return first, second, down, halves[0], halves[1], down_bias


def _why_not_idle(child: Any) -> str:
    if type(child) not in _IDLE:
        return f"is a {type(child).__name__}"
    if type(child) is nn.Dropout and child.p > 0 and child.training:
        return "drops in training"
    return between.on_module(child, _IDLE[type(child)])


def looks_like_an_mlp(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    if next(module.children(), None) is None:
        return False
    return (any(hasattr(module, part) for part in _LAYOUTS[0])
            or any(all(hasattr(module, part) for part in layout) for layout in _LAYOUTS[1:])
            or name.endswith(("mlp", "glu", "feedforward", "ffn")))


def fit(module: nn.Module, members: Sequence[Member], names: Optional[tuple[str, ...]] = None) -> Union[Fit, str]:
    """`members`: the packages that may have it. `names`: those of its linears; else the known ones are tried. A text says why the module stays as it is."""
    found = Fit()
    found.linears = names or next((layout for layout in _LAYOUTS if all(hasattr(module, n) for n in layout)),
                                  _LAYOUTS[0])
    why = _why_not_linears(module, found.linears) or _why_not_alone(module, found, members)
    if why != "":
        return why
    own = type(module)
    if "forward" in vars(module):
        return "it has a forward of its own, that would no longer run"
    parameters = list(inspect.signature(own.forward).parameters)[1:]
    if not parameters or "residual" in parameters:
        return f"its forward takes {', '.join(parameters) or 'nothing'}"
    found.input_name = parameters[0]
    held = between.Held(module, found.original)
    try:
        with _with_weights(module, found.linears):
            why = _why_not_forward(module, found, members)
    finally:
        written = held.put_back()
    if written != "":
        return f"its forward writes {written}, which would no longer be written"
    if why != "":
        return why
    dropping = any(getattr(module._modules[n], "p", 0) > 0 for n in found.idle)
    other_in = found.original.other_in
    found.note = ""
    if "training" in other_in or dropping:
        found.note = f", in evaluation: in training {'it has dropout' if dropping else 'its forward is another'}"
    if "autocast" in other_in:
        found.note += ", but not under torch.autocast"
    return found


def _why_not_forward(module: nn.Module, found: Fit, members: Sequence[Member]) -> str:
    """By trials. Sets package, version and attributes, and where its forward is another."""
    layer.set_mode(module, False)
    with torch.no_grad():
        chosen = _activation_of(module, found, members)
    if chosen is None:
        return _other_activation(members)
    member, activation = chosen
    found.package, found.version, found.attributes = member.package, member.version, activation.attributes
    dtype = module._modules[found.linears[0]].weight.dtype
    why = _compare(module, found, member, dtype)
    if why != "":
        return why
    other_in = []
    with torch.autocast(*_cast_to(module, found), cache_enabled=False):
        if _compare(module, found, member, torch.float32) != "":
            other_in.append("autocast")
    layer.set_mode(module, True)
    if _compare(module, found, member, dtype) != "":
        other_in.append("training")
    found.original.other_in = tuple(other_in)
    return ""


def _cast_to(module: nn.Module, found: Fit) -> tuple[str, torch.dtype]:
    device = module._modules[found.linears[0]].weight.device.type
    return device, torch.bfloat16 if device == "cpu" else torch.float16


def _why_not_linears(module: nn.Module, names: tuple[str, ...]) -> str:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        return f"has no {', '.join(missing)}; linears= names others"
    for name in names:
        if name not in module._modules:
            return f"{name} is a {type(getattr(module, name)).__name__}, not an nn.Linear"
    linears = [module._modules[name] for name in names]
    for name, linear in zip(names, linears):
        why = between.on_linear(linear)
        if why != "":
            return f"{name} {why}"
    shapes = [list(linear.weight.shape) for linear in linears]
    first = [shapes[0][0] // 2, shapes[0][1]] if len(names) == 2 else shapes[0]
    if (first != shapes[-1][::-1] or shapes[-2] != shapes[0] or (len(names) == 2 and shapes[0][0] % 2)):
        return f"{', '.join(f'{n} {s}' for n, s in zip(names, shapes))} do not belong together"
    where = {(linear.weight.device.type, linear.weight.dtype) for linear in linears}
    device, dtype = next(iter(where))
    if len(where) > 1 or dtype not in _DTYPES or device not in ("cpu", "cuda"):
        return f"its weights are {', '.join(f'{t} on {d}' for d, t in sorted(where, key=str))}"
    return ""


def _other_activation(members: Sequence[Member]) -> str:
    return f"its activation is not a {', '.join(member.gates for member in members)}"


def _why_not_alone(module: nn.Module, found: Fit, members: Sequence[Member]) -> str:
    """Finds the activation's name and the other children."""
    act = next((n for n in _ACTIVATION_NAMES if callable(getattr(module, n, None))), "")
    original = found.original = between.Original(module, act)
    if original.act_learns():
        return _other_activation(members)
    why = original.why_not_act(original.act_is)
    if why != "":
        return why
    own = between.tensor_of(module)
    if own != "":
        return f"it has a tensor beside its linears, {own}"
    others = [n for n in module._modules if n not in found.linears and n != act]
    for name in others:
        child = module._modules[name]
        if type(child) not in _IDLE:
            return f"it has a {type(child).__name__} beside its linears, {name}"
        why = between.on_module(child, _IDLE[type(child)])
        if why != "":
            return f"{name} {why}"
    found.idle = tuple(others)
    return ""


@contextlib.contextmanager
def _with_weights(module: nn.Module, linears: Sequence[str]) -> Iterator[None]:
    """The module stays as it is. Its parameters have others before them meanwhile, of the same memory, which gradients
    reach and no hook is on. Those that are zero, as trainings begin with, have other values: by them every forward
    would be the same."""
    held = {id(own): (own, dict(own)) for own in (module._modules[name]._parameters for name in linears)}
    generator = torch.Generator("cpu").manual_seed(2)  # of all: gate and up are not the same
    device = next(module.parameters()).device
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False), \
            layer.as_it_is(module, device):
        try:
            for own, before in held.values():
                for name in ("weight", "bias"):
                    value = before[name]
                    if value is None:
                        continue
                    data = value.clone() if value.is_inference() else value
                    if not value.any():
                        data = _random(*value.shape, generator=generator) / value.shape[-1] ** 0.5
                    own[name] = nn.Parameter(data.detach().to(value.device, value.dtype))
            yield
        finally:
            for own, before in held.values():
                own.update(before)


def _random(*shape: int, generator: Optional[torch.Generator] = None) -> Tensor:
    """On the CPU and in float32, whatever the program's defaults are."""
    generator = generator or torch.Generator("cpu").manual_seed(1)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float32)


def _rows_for(found: Fit, module: nn.Module, dtype: torch.dtype) -> Tensor:
    gate, up = found.tensors_of(module)[:2]
    x = _random(len(_FEW_ROWS), gate.shape[1]) * torch.tensor(_FEW_ROWS, device="cpu")[:, None]
    x = x.to(gate.device, dtype)
    most = 0.5 * torch.finfo(dtype).max / x.float().abs().amax(1, keepdim=True)[:2]
    rows = [x]
    for weight in (gate, up):
        reached = F.linear(x[:2].to(weight.dtype), weight).float().abs().amax(1, keepdim=True)
        rows.append((x[:2].float() * torch.minimum(_LARGE / reached, most)).to(dtype))
    return torch.cat(rows).detach()


def _compare(module: nn.Module, found: Fit, member: Member, dtype: torch.dtype) -> str:
    """Why the module's forward is not the package's on a few rows of the dtype. Sets second_is_gate. Gradients are
    compared of two dimensions and without autocast, in training that of x alone: a weight's take longest."""
    found.second_is_gate = False
    rows = _rows_for(found, module, dtype)
    inputs = {id(t): t for name in found.linears for t in module._modules[name]._parameters.values() if t is not None}
    for shape in (rows.shape, (2, -1, rows.shape[1])):
        x = rows.reshape(shape).clone().requires_grad_()
        words = "[M, D]" if x.dim() == 2 else "[B, M, D]"
        try:
            y = module.forward(x)
        except Exception as error:  # whatever a foreign forward throws is the reason
            return f"its forward throws for {words}: {type(error).__name__}: {error}"
        if not isinstance(y, Tensor) or y.shape != x.shape:
            return f"its forward gives something else than {words}"
        for second_is_gate in (False, True) if len(found.linears) == 2 else (False,):
            found.second_is_gate = second_is_gate
            own = rows.clone().requires_grad_()
            gate, up, down, *biases = found.tensors_of(module)
            hidden = member.combine(found.attributes, F.linear(own, gate, biases[0]), F.linear(own, up, biases[1]))
            expected = F.linear(hidden, down, biases[2])
            if y.dtype == expected.dtype and layer.agree(
                    y.detach().flatten(0, -2), expected.detach(), _CLOSE[y.dtype], _FACTOR[y.dtype]):
                break
        else:
            if y.dtype != expected.dtype:
                return f"its forward gives {y.dtype} where its linears give {expected.dtype}"
            return _not_the_formula(found)
        if x.dim() == 3 or layer.autocast_dtype(x.device.type) is not None:
            continue
        try:
            others = () if module.training else tuple(inputs.values())
            if not (inputs.keys() <= _leaves_of(y)
                    and _have_same_gradients(y, expected, (x, *others), (own, *others))):
                return "its forward has other gradients than its formula"
        except Exception as error:
            return f"its gradients throw {type(error).__name__}: {error}"
    return ""


def _leaves_of(y: Tensor) -> set[int]:
    """The id() of each tensor that y has a gradient for."""
    found, seen, nodes = set(), set(), [y.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found.add(id(getattr(node, "variable", None)))
            nodes += [each for each, _ in node.next_functions]
    return found


def _gradients(y: Tensor, inputs: Sequence[Tensor]) -> Optional[list[Tensor]]:
    """Of x, and about 64 rows of a weight's: all in float64 would take longer than the trial. None: y has none of one."""
    weights = _random(y.shape[:-1].numel(), y.shape[-1]).to(y).view(y.shape)
    found = torch.autograd.grad(y, inputs, weights, allow_unused=True) if y.requires_grad else (None,)
    if any(gradient is None for gradient in found):
        return None
    x, *others = found
    return [x.flatten(0, -2), *(t[::max(1, len(t) // 64)].reshape(1, -1) if t.dim() > 1 else t[None] for t in others)]


def _have_same_gradients(y: Tensor, expected: Tensor, of_y: Sequence[Tensor], of_expected: Sequence[Tensor]) -> bool:
    all_found, all_meant = _gradients(y, of_y), _gradients(expected, of_expected)
    for one, found, meant in zip(of_y, all_found or [], all_meant):
        finite = torch.isfinite(meant)
        close = 2 * max(_CLOSE[y.dtype], _CLOSE[one.dtype])
        if not torch.equal(finite, torch.isfinite(found)):
            return False
        found, meant = (torch.where(finite, t, 0).double() for t in (found, meant))
        if not bool(((found - meant).norm(dim=1) <= close * meant.norm(dim=1)).all()):
            return False
    return all_found is not None


def _not_the_formula(found: Fit) -> str:
    if len(found.linears) == 2:
        return f"its forward is not {found.linears[1]} of an activated and a plain half of {found.linears[0]}"
    gate, up, down = found.linears
    return f"its forward is not {down}({found.original.act or 'a'}({gate}(x)) * {up}(x))"


def _activation_of(module: nn.Module, found: Fit, members: Sequence[Member]) -> Optional[tuple[Member, Activation]]:
    if found.original.act == "":
        return _called_activation(module, found, members)
    z = torch.linspace(-12, 12, 961, device="cpu", dtype=torch.float32)
    try:
        values = found.original.act_is(z)
    except Exception:  # not a function of a tensor: none that a package has
        return None
    for member, activation in _activations(members):
        # tanh's approximation of GELU differs from it by 4.7e-4.
        if isinstance(values, Tensor) and values.shape == z.shape and (values - activation.function(z)).abs().max() < 2e-6:
            return member, activation
    return None


def _activations(members: Sequence[Member]) -> list[tuple[Member, Activation]]:
    return [(member, activation) for member in members for activation in member.activations]


def _called_activation(module: nn.Module, found: Fit,
                       members: Sequence[Member]) -> Optional[tuple[Member, Activation]]:
    """Of a forward that calls the function by itself: the one operator of it that a package has."""
    try:
        from torch.utils._python_dispatch import TorchDispatchMode
    except ImportError:
        return None
    seen: list[tuple[str, dict[str, Any]]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((function.overloadpacket.__name__, dict(kwargs or {})))
            return function(*args, **(kwargs or {}))

    weight = module._modules[found.linears[0]].weight
    try:
        with Watch():
            module.forward(torch.zeros(1, weight.shape[1], device=weight.device, dtype=weight.dtype))
    except Exception:  # _compare says what it throws where an activation is known
        return None
    known = [(member, activation) for member, activation in _activations(members) if activation.operator in seen]
    return known[0] if len(known) == 1 else None
