#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Runs forward at random shapes and compares every element of y: a check of one library, and no timing.

    tests/random_shapes.py --package geglu-mlp@1 --seconds 600 \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so
    tests/random_shapes.py --package geglu-mlp@1 --device cpu --rows 64 --width 256 --seconds 10 --library <file>

geglu_mlp_check compares sampled rows of a few hundred shapes. A race, a stale buffer or a wrong edge may spoil a few
elements of one shape in thousands. Each shape here has its own seed, dtype, biases and residual. It is called
three times from cold memory, and each call must write the same bits. y is compared with PyTorch in float32, from
an h that is rounded as the library rounds it:

- the relative L2 error is at most that of rounding y;
- each element's error is at most its own rounding, and ELEMENT roundings of the sum's size if nothing in it
  cancelled. A few wrong elements of a large y do not change its L2 error, but are many times that.

One shape in four is called once more with a row of NaNs in x, and another in the residual where there is one. Those
rows of y are NaNs, and the others keep their bits. A failure names its seed: --seed SEED --seconds 0 runs it alone.
"""
import argparse
import json
import math
import pathlib
import random
import sys
import time
import typing

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import gates  # noqa: E402
from library import DEVICES, Library  # noqa: E402

REPEATS = 3
FAILURES_SHOWN = 20
# Relative L2, as in geglu_mlp_check: over fewer values, rounding errors do not average to the expected error.
DTYPES = {torch.bfloat16: 2.5e-3, torch.float16: 3.2e-4}
LARGE = 4096
FEW_FACTOR = 3
GATED_COLUMNS = (96, 128, 160, 192, 224, 256)
PLAIN_COLUMNS = (96, 112, 128, 160, 192, 224, 256)
SWAPPED_TOKENS = range(96, 193, 8)
DECODES = ("64x64", "128x64", "192x128", "144x128")
# The library's h is another one where both sums lie on two sides of a rounding's edge, or where its activation is off
# by as much as a rounding.
ELEMENT = 8
COLD_BYTES = 256 << 20  # several times a GPU's L2 cache


class Case(typing.NamedTuple):
    seed: int
    m: int
    d: int
    h: int
    dtype: torch.dtype
    biases: tuple  # whether gate, up and down have one
    residual: bool
    nan_rows: bool
    kernels: str  # pinned ones (host/pins.h); empty: the plan's

    def __str__(self):
        biases = [name for name, there in zip(("gate", "up", "down"), self.biases) if there]
        parts = [f"M={self.m} D={self.d} H={self.h}", str(self.dtype).removeprefix("torch."),
                 "biases of " + ", ".join(biases) if biases else "", "residual" if self.residual else "", self.kernels]
        return " ".join(filter(None, parts)) + f", seed {self.seed}"


def draw_case(seed, rows, width):
    """A shape of up to `rows` rows, D and H up to `width`; small ones as often as large ones."""
    chance = random.Random(seed)

    def log_uniform(most):
        return min(most, int(2 ** chance.uniform(0, math.log2(most + 1))))

    return Case(seed, log_uniform(rows), 8 * log_uniform(width // 8), 8 * log_uniform(width // 8),
                chance.choice(list(DTYPES)), tuple(chance.random() < 0.5 for _ in range(3)), chance.random() < 0.5,
                chance.random() < 0.25, draw_kernels(chance))


def draw_kernels(chance):
    """Of half of the shapes a kernel for each product that the plan might not take."""
    if chance.random() < 0.5:
        return ""

    def one(tiles):
        if chance.random() < 0.25:
            return f"decode_{chance.choice(DECODES)},{chance.choice((1, 2, 3, 4))}" + chance.choice(("", ",across"))
        if chance.random() < 0.6:
            return f"swapped_{chance.choice(SWAPPED_TOKENS)}x{chance.choice((128, 256))}" + chance.choice(("", ",across"))
        return f"prefill_128x{chance.choice(tiles)}" + chance.choice(("", ",across"))

    return f"gated={one(GATED_COLUMNS)} down={one(PLAIN_COLUMNS)}"


class Inputs(typing.NamedTuple):
    """In the order of the op's schema. A missing one is None."""
    x: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    gate_bias: torch.Tensor
    up_bias: torch.Tensor
    down_bias: torch.Tensor
    residual: torch.Tensor


def make_inputs(case, device):
    generator = torch.Generator(device).manual_seed(case.seed)

    def normal(scale, *shape):
        return (torch.randn(*shape, device=device, generator=generator) * scale).to(case.dtype)

    m, d, h = case.m, case.d, case.h
    return Inputs(normal(1, m, d), normal(d**-0.5, h, d), normal(d**-0.5, h, d), normal(h**-0.5, d, h),
                  *(normal(0.5, n) if there else None for n, there in zip((h, h, d), case.biases)),
                  normal(0.5, m, d) if case.residual else None)


def reference(gate, inputs, rounds_hidden):
    """y, and how large each sum would be if nothing in it cancelled. Both in float32."""
    x, w_gate, w_up, w_down, gate_bias, up_bias, down_bias, residual = (
        None if t is None else t.float() for t in inputs)
    hidden = gate.activate(F.linear(x, w_gate, gate_bias)) * F.linear(x, w_up, up_bias)
    if rounds_hidden:
        hidden = hidden.to(inputs.x.dtype).float()
    y = F.linear(hidden, w_down, down_bias)
    # Sums of positive terms: the storage type of bfloat16 is enough for a size.
    size = F.linear(hidden.square().bfloat16(), w_down.square().bfloat16()).float()
    for added in (down_bias, residual):
        if added is not None:
            size += added.square()
    return y if residual is None else y + residual, size.sqrt()


def errors_of(y, exact, size):
    """The relative L2 error, and the largest error of an element in roundings of its sum's size, its own rounding
    taken off."""
    rounding = torch.finfo(y.dtype).eps / 2
    difference = (y.float() - exact).abs()
    relative = difference.norm() / torch.maximum(exact.norm(), size.norm())
    own = rounding * exact.abs() + torch.finfo(y.dtype).smallest_normal * rounding
    element = ((difference - own) / (rounding * size)).max()
    return relative.item(), element.item()


def bits(t):
    return t.view(torch.int16)


class Checker:
    def __init__(self, library, gate):
        self.library, self.gate = library, gate
        self.cold = torch.empty(COLD_BYTES if library.device == "cuda" else 1, dtype=torch.uint8, device=library.device)
        self.worst = {}  # by dtype, of errors_of()
        self.pinned = 0  # shapes whose kernels were not the plan's

    def call(self, inputs, kernels):
        """y from cold memory; it and the workspace were NaNs."""
        y = torch.full_like(inputs.x, float("nan"))
        run = self.library.bind("forward", *inputs, y, **({"kernels": kernels} if kernels else {}))
        run.workspace.fill_(255)
        self.cold.fill_(1)
        run()
        return y

    def kernels_of(self, case, inputs):
        """The drawn ones, or none where they cannot compute the shape."""
        try:
            self.call(inputs, case.kernels)
        except RuntimeError as error:
            if "kernels" not in str(error):
                raise
            return ""
        self.pinned += bool(case.kernels)
        return case.kernels

    def failures_of(self, case):
        """What is wrong, in words."""
        inputs = make_inputs(case, self.library.device)
        kernels = self.kernels_of(case, inputs)
        y = self.call(inputs, kernels)
        failures = []
        exact, size = reference(self.gate, inputs, rounds_hidden=self.library.device == "cuda")
        relative, element = errors_of(y, exact, size)
        bound = DTYPES[case.dtype] * (1 if case.m * min(case.d, case.h) >= LARGE else FEW_FACTOR)
        if not relative <= bound:  # true for NaN too
            failures.append(f"relative L2 error {relative:.3g}, at most {bound:.3g}")
        if not element <= ELEMENT:
            failures.append(f"an element is {element:.3g} roundings off, at most {ELEMENT}")
        before = self.worst.get(case.dtype, (0, 0))
        self.worst[case.dtype] = (max(before[0], relative / bound), max(before[1], element))
        again = sum(not torch.equal(bits(self.call(inputs, kernels)), bits(y)) for _ in range(REPEATS - 1))
        if again:
            failures.append(f"{again} of {REPEATS - 1} more calls give other bits")
        if case.nan_rows:
            failures += self.failures_beside_nan_rows(case, inputs, y, kernels)
        return failures

    def failures_beside_nan_rows(self, case, inputs, y, kernels):
        chance = random.Random(case.seed)
        rows = {}
        for name in ("x", "residual") if case.residual else ("x",):
            rows[name] = chance.randrange(case.m)
            dirty = getattr(inputs, name).clone()
            dirty[rows[name]] = float("nan")
            inputs = inputs._replace(**{name: dirty})
        found = self.call(inputs, kernels)
        others = torch.ones(case.m, dtype=torch.bool, device=y.device)
        others[list(rows.values())] = False
        failures = []
        if not torch.equal(bits(found)[others], bits(y)[others]):
            failures.append(f"NaNs in rows {rows} change another row of y")
        if not found[~others].isnan().all():
            failures.append(f"NaNs in rows {rows} give numbers")
        return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--package", required=True, help="NAME@VERSION: says which gate")
    parser.add_argument("--device", choices=list(DEVICES), default="cuda")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the first shape; the next one's is one more")
    parser.add_argument("--every", type=int, default=1, help="or N more: one of N processes that begin at N seeds")
    parser.add_argument("--rows", type=int, default=3000, help="the most")
    parser.add_argument("--width", type=int, default=9000, help="the most of D and H: three weights of its square")
    parser.add_argument("--out", help="a file for the seed, the number of shapes and how many failed")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    checker = Checker(Library(arguments.library, arguments.device), gates.gate_of(arguments.package))
    shapes = failed = 0
    begin = time.monotonic()
    while shapes == 0 or time.monotonic() - begin < arguments.seconds:
        case = draw_case(arguments.seed + shapes * arguments.every, arguments.rows, arguments.width)
        shapes += 1
        failures = checker.failures_of(case)
        failed += bool(failures)
        if failures and failed <= FAILURES_SHOWN:
            print(f"FAILED {case}: " + "; ".join(failures), flush=True)
    for dtype, (relative, element) in checker.worst.items():
        print(f"{dtype}: L2 error at most {relative:.2f} of its bound, an element at most {element:.2f} roundings off")
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"seed": arguments.seed, "shapes": shapes, "with_pinned_kernels": checker.pinned,
                       "failed": failed}, file)
    print(f"{shapes} shapes in {time.monotonic() - begin:.0f} s, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
