#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times quantized-mlp on a GPU beside a bare read of the packed bytes, Kiln's and PyTorch's bfloat16, int4 and FP8
products.

    decode.py --commit HASH --out FILE [--rows 1,2,4] [--shapes 4096x14336,…] [--only int4,w8a8,…]
              [--norm] [--variant cu11.8-compute_80-x86_64] [--registry FOLDER] [--marlin FILE]

A contender's calls, on three sets of weights that together do not fit the L2 cache, are one CUDA graph: see
packages/rows/bench/timing.py. `read` is the share of the time that a kernel takes which reads the same packed bytes and
does nothing else. kiln bfloat16: swiglu-mlp@1. tinygemm: torch._weight_int4pack_mm thrice, beside silu and product,
up to 64 tokens. scaled_mm: torch._scaled_mm thrice, of FP8 with a scale for each row of the weights and of x, which
PyTorch's operators round, as they do h; compiled: those operators by torch.compile; alone: without them. deep_gemm: the
same by DeepGEMM, with scales of 128 x 128 and 1 x 128, gate and up in one product. w8a8: weights as e4m3, x and h
rounded to FP8 by Kiln. quack: QuACK's gemm_w4a16 twice, gate and up in one product, silu and product compiled between
them. marlin: the same by Marlin, of float16, whose kernel --marlin names, a cubin of this GPU.

--norm: y = x + mlp(norm(x)) instead, of each kind of weights: `norm`, by one call of quantized-mlp; `rms-norm`, by
rms-norm@1's kernel and a call without a norm, whose residual is x; and `alone`, that call alone, of x as it is. `saved` is
the second's time less the first's, `cost` the first's less the third's.

--variant takes that variant of quantized-mlp and not the best that fits, --registry takes it of that folder; swiglu-mlp
stays the best of KILN_REGISTRY. Prefill is --rows 512,1024,2048,4096.
"""

import pathlib
import sys

import numpy as np
import torch
import triton
import triton.language as tl

import kiln

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "rows/bench"))
import timing
from timing import normal

SHAPES = ((2048, 8192), (3072, 8192), (3584, 14336), (4096, 14336), (5120, 17408), (8192, 28672))
ROWS = (1, 2, 4, 8, 16, 32, 64)
SETS = 3
FEW = 64  # tokens, up to which what is for few takes part
GROUP = 128


@triton.jit
def bare_read(source, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(source + at, mask=at < count, other=0), axis=0)
    if total == 123456789:
        tl.store(out, total)


def random_bytes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")


def random_float8(*shape):
    codes = random_bytes(*shape)
    return torch.where((codes & 127) == 127, 0, codes).view(torch.float8_e4m3fn)


class Packed:
    """Random codes in the packed form: it needs no pack to be timed."""

    def __init__(self, bits, group, is_float8, rows, columns):
        shape = (rows // 16, columns // 64, 128 * bits)
        self.codes = random_float8(*shape) if is_float8 else random_bytes(*shape)
        scale = 1.0 / (2 ** bits * columns ** 0.5)
        self.scales = torch.full((rows // 16, columns // group if group else 1, 16), scale,
                                 dtype=torch.float32 if is_float8 else torch.bfloat16, device="cuda")
        self.bytes = self.codes.nbytes + self.scales.nbytes


class Quantized:
    def __init__(self, kernel, bits, width, hidden, group=GROUP, is_float8=False, input_dtype="x"):
        self.kernel = kernel
        self.input_dtype = input_dtype
        self.matrices = [Packed(bits, group, is_float8, *shape)
                         for shape in ((hidden, width), (hidden, width), (width, hidden))]
        self.bytes = sum(matrix.bytes for matrix in self.matrices)

    def __call__(self, x, y, **more):
        gate, up, down = self.matrices
        self.kernel.forward(x, gate.codes, gate.scales, None, up.codes, up.scales, None, down.codes, down.scales, None,
                            y=y, input_dtype=self.input_dtype, **more)


class Read:
    """The same bytes in one buffer."""

    def __init__(self, size):
        self.data = random_bytes(size // 4 * 4).view(torch.int32)
        self.out = torch.zeros(1, dtype=torch.int32, device="cuda")

    def __call__(self, x, y):
        count = self.data.numel()
        bare_read[(triton.cdiv(count, 8192),)](self.data, self.out, count, BLOCK=8192, num_warps=8)


class W8A8(Quantized):
    """FP8 activations too."""

    def __init__(self, kernel, width, hidden, group):
        super().__init__(kernel, 8, width, hidden, group, True, "float8_e4m3fn")


class WithNorm:
    """y = x + mlp(norm(x)) in one call."""

    def __init__(self, mlp, width):
        self.mlp, self.weight = mlp, normal(width)

    def __call__(self, x, y):
        self.mlp(x, y, residual=x, norm_weight=self.weight)


class AfterRmsNorm(WithNorm):
    """The same by two kernels' calls."""

    def __init__(self, mlp, width):
        super().__init__(mlp, width)
        self.norm, self.normed = kiln.get_kernel("rms-norm", 1, device="cuda"), {}

    def __call__(self, x, y):
        if len(x) not in self.normed:
            self.normed[len(x)] = torch.empty_like(x)
        self.norm.forward(x, self.weight, y=self.normed[len(x)])
        self.mlp(self.normed[len(x)], y, residual=x)


class WithoutNorm(WithNorm):
    def __call__(self, x, y):
        self.mlp(x, y, residual=x)


class Eager:
    def __init__(self, width, hidden):
        self.gate, self.up, self.down = (normal(*shape) * shape[1] ** -0.5
                                         for shape in ((hidden, width), (hidden, width), (width, hidden)))

    def __call__(self, x, y):
        linear = torch.nn.functional.linear
        y.copy_(linear(silu_product(linear(x, self.gate), linear(x, self.up)), self.down))


class Kiln16(Eager):
    """The same by swiglu-mlp."""

    def __init__(self, kernel, width, hidden):
        super().__init__(width, hidden)
        self.kernel = kernel

    def __call__(self, x, y):
        self.kernel.forward(x, self.gate, self.up, self.down, y=y)


class Tinygemm:
    def __init__(self, width, hidden):
        self.weights = []
        for rows, columns in ((hidden, width), (hidden, width), (width, hidden)):
            packed = torch._convert_weight_to_int4pack(random_bytes(rows, columns // 2), 8)
            scales = torch.full((columns // GROUP, rows, 2), 0.01, dtype=torch.bfloat16, device="cuda")
            self.weights.append((packed, scales))

    def product(self, x, number):
        packed, scales = self.weights[number]
        return torch._weight_int4pack_mm(x, packed, GROUP, scales)

    def __call__(self, x, y):
        y.copy_(self.product(silu_product(self.product(x, 0), self.product(x, 1)), 2))


class GateUpInOne:
    """Of a rival with products alone: gate and up in one, silu and product compiled, down."""

    def __init__(self, width, hidden):
        self.hidden, self.gated = hidden, compiled(product_of_halves)
        self.weights = [self.weight(*shape) for shape in ((2 * hidden, width), (width, hidden))]

    def __call__(self, x, y):
        gate_up = torch.empty(len(x), 2 * self.hidden, dtype=x.dtype, device="cuda")
        self.product(x, self.weights[0], gate_up)
        self.product(self.gated(gate_up), self.weights[1], y)


class QuackInt4(GateUpInOne):
    def weight(self, rows, columns):
        scales = torch.full((rows, columns // GROUP), 0.01, dtype=torch.bfloat16, device="cuda")
        return timing.imported("quack.gemm_w4").prepare_w4_weight(random_bytes(rows, columns // 2), scales, "int4")

    def product(self, x, weight, y):
        timing.imported("quack.gemm_w4").gemm_w4a16(x, *weight, out=y, wformat="int4")


class Marlin(GateUpInOne):
    """x and y are read as float16, which is all that it has, whatever their bits say."""

    file = None  # --marlin

    def __init__(self, width, hidden):
        super().__init__(width, hidden)
        self.module = timing.imported("cupy").RawModule(path=self.file)
        self.locks = torch.zeros(2 * hidden // 128 * 16, dtype=torch.int32, device="cuda")

    def weight(self, rows, columns):
        scales = torch.full((columns // GROUP, rows), 0.01, dtype=torch.float16, device="cuda")
        return random_bytes(columns // 16, rows * 8), scales

    def __call__(self, x, y):
        super().__call__(x.view(torch.float16), y.view(torch.float16))

    def product(self, x, weight, y):
        blocks = (1, 8, 8) if len(x) <= 16 else (-(-len(x) // 16), 16, 4)  # as Marlin chooses: of rows, of columns, of k
        kernel = self.module.get_function("_Z6MarlinILi256ELi{}ELi{}ELi{}ELi4ELi8EEvPK4int4S2_PS0_S2_iiiPi".format(*blocks))
        kernel.max_dynamic_shared_size_bytes = shared = 96 * 1024
        ctas = torch.cuda.get_device_properties(x.device).multi_processor_count
        sizes = map(np.int32, (len(x), y.shape[1], x.shape[1]))
        codes, scales = weight
        stream = timing.imported("cupy").cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        kernel((ctas,), (256,), (x.data_ptr(), codes.data_ptr(), y.data_ptr(), scales.data_ptr(), *sizes,
                                 self.locks.data_ptr()), shared_mem=shared, stream=stream)


def silu_product(gate, up):
    return torch.nn.functional.silu(gate) * up


def product_of_halves(gate_up):
    return silu_product(*gate_up.chunk(2, 1))


def rounded(x, group):
    """x in FP8, and the scales of each `group` columns of a row, 0: of a row; a token's lie a column apart."""
    blocks = x.unflatten(1, (-1, group or x.shape[1]))
    most = blocks.abs().amax(2, keepdim=True).float() / 448
    return (blocks / most).to(torch.float8_e4m3fn).flatten(1), most.squeeze(2).t().contiguous().t()


def gated(gate, up, group):
    return rounded(silu_product(gate, up), group)


def compiled(function):
    return torch.compile(function, dynamic=True)


class Scaled:
    """FP8 with a scale for each row, of x and h too."""

    group = 0

    def __init__(self, width, hidden, around=lambda function: function):
        self.hidden, self.rounded, self.gated = hidden, around(rounded), around(gated)
        self.weights = [self.weight(*shape) for shape in self.shapes(width, hidden)]
        self.inputs = {}

    def shapes(self, width, hidden):
        return (hidden, width), (hidden, width), (width, hidden)

    def weight(self, rows, columns):
        return random_float8(rows, columns).t(), torch.full((1, rows), 1 / (256 * columns ** 0.5), device="cuda")

    def product(self, x, scale, number):
        weight, scales = self.weights[number]
        return torch._scaled_mm(x, weight, scale_a=scale, scale_b=scales, out_dtype=torch.bfloat16, use_fast_accum=True)

    def of_x(self, x8):
        return self.product(*x8, 0), self.product(*x8, 1)

    def last(self, h8, y):
        y.copy_(self.product(*h8, len(self.weights) - 1))

    def __call__(self, x, y):
        self.last(self.gated(*self.of_x(self.rounded(x, self.group)), self.group), y)

    def alone(self, x, y):
        """Its products alone, of numbers that were rounded before."""
        if len(x) not in self.inputs:
            self.inputs = {len(x): [self.rounded(t, self.group) for t in (x, normal(len(x), self.hidden))]}
        x8, h8 = self.inputs[len(x)]
        self.of_x(x8)
        self.last(h8, y)


class DeepGemm(Scaled):
    """FP8 in blocks of 128 x 128, and of 1 x 128 of x and h. Gate and up are one matrix."""

    group = GROUP

    def shapes(self, width, hidden):
        return (2 * hidden, width), (width, hidden)

    def weight(self, rows, columns):
        scales = torch.full((rows // GROUP, columns // GROUP), 1 / (256 * columns ** 0.5), device="cuda")
        return random_float8(rows, columns), scales

    def of_x(self, x8):
        y = torch.empty(len(x8[0]), len(self.weights[0][0]), dtype=torch.bfloat16, device="cuda")
        timing.imported("deep_gemm").fp8_gemm_nt(x8, self.weights[0], y)
        return y.chunk(2, 1)

    def last(self, h8, y):
        timing.imported("deep_gemm").fp8_gemm_nt(h8, self.weights[1], y)


class Alone:
    def __init__(self, of):
        self.alone = of.alone

    def __call__(self, x, y):
        self.alone(x, y)


def is_there(kind):
    if kind == "marlin":
        return Marlin.file
    module = {"deep_gemm": "deep_gemm", "quack": "quack.gemm_w4"}.get(kind)
    return not module or timing.imported(module)


def makers_of(kernel, width, hidden, only):
    def fp8(kind, name):
        return {name: lambda: kind(width, hidden), f"{name} compiled": lambda: kind(width, hidden, compiled),
                f"{name} alone": lambda: Alone(kind(width, hidden))}

    makers = {"int4": lambda: Quantized(kernel, 4, width, hidden), "int8": lambda: Quantized(kernel, 8, width, hidden),
              "e4m3": lambda: Quantized(kernel, 8, width, hidden, 0, True),
              "e4m3 blocks": lambda: Quantized(kernel, 8, width, hidden, GROUP, True),
              "w8a8": lambda: W8A8(kernel, width, hidden, 0), "w8a8 blocks": lambda: W8A8(kernel, width, hidden, GROUP),
              "kiln bfloat16": lambda: Kiln16(kiln.get_kernel("swiglu-mlp", 1, device="cuda"), width, hidden),
              "bfloat16": lambda: Eager(width, hidden), "tinygemm": lambda: Tinygemm(width, hidden),
              "quack": lambda: QuackInt4(width, hidden), "marlin": lambda: Marlin(width, hidden),
              **fp8(Scaled, "scaled_mm"), **fp8(DeepGemm, "deep_gemm")}
    return {name: makers[name] for name in only or makers if is_there(name.split()[0])}


NORMS = {"norm": WithNorm, "rms-norm": AfterRmsNorm, "alone": WithoutNorm}


def measure_norms(kernel, width, hidden, rows, only):
    kinds = {name: make for name, make in makers_of(kernel, width, hidden, only).items()
             if name.startswith(("int", "e4m3", "w8a8"))}
    for kind, make in kinds.items():
        mlps = [make() for _ in range(SETS)]
        contenders = {name: [way(mlp, width) for mlp in mlps] for name, way in NORMS.items()}
        for count in rows:
            x = normal(count, width)
            y = torch.empty_like(x)
            outputs = {name: torch.empty_like(x) for name in NORMS}
            for name, calls in contenders.items():
                calls[0].weight = contenders["norm"][0].weight
                calls[0](x, outputs[name])
            error = (outputs["norm"].double() - outputs["rms-norm"].double()).norm() / outputs["rms-norm"].double().norm()
            facts = timing.measure({name: lambda calls=calls: [call(x, y) for call in calls]
                                    for name, calls in contenders.items()}, parts=SETS)
            us = facts["us"]
            yield [count, width, hidden], {"kind": kind, **facts, "saved": round(us["rms-norm"] - us["norm"], 2),
                                           "cost": round(us["norm"] - us["alone"], 2), "differ": float(f"{error:.2g}")}
        del mlps, contenders
        torch.cuda.empty_cache()


def measure(kernel, width, hidden, rows, only):
    contenders, failed = timing.prepared(makers_of(kernel, width, hidden, only),
                                         lambda make: [make() for _ in range(SETS)])
    ours = [name for name, calls in contenders.items() if isinstance(calls[0], Quantized)]
    for name in ours:
        contenders[f"read {name}"] = [Read(contenders[name][0].bytes) for _ in range(SETS)]
    for count in rows:
        x = normal(count, width)
        y = torch.empty_like(x)
        taking_part = {name: lambda calls=calls: [call(x, y) for call in calls] for name, calls in contenders.items()
                       if count <= FEW or name.split()[0] not in ("tinygemm", "marlin", "read")}
        facts = timing.measure(taking_part, parts=SETS)
        us = facts["us"]
        if count <= FEW:
            facts["read"] = {name: round(us[f"read {name}"] / us[name], 3) for name in ours}
        if failed := failed | facts.pop("failed", {}):
            facts["failed"] = failed
        yield [count, width, hidden], facts


def main():
    def options(parser):
        parser.add_argument("--rows", default=",".join(map(str, ROWS)))
        parser.add_argument("--shapes", default=",".join(f"{width}x{hidden}" for width, hidden in SHAPES))
        parser.add_argument("--only", help="contenders, with commas between; default: all")
        parser.add_argument("--norm", action="store_true", help="with a norm in front, beside rms-norm's kernel")
        parser.add_argument("--variant", help="of quantized-mlp; default: the best that fits")
        parser.add_argument("--registry", help="of quantized-mlp; default: KILN_REGISTRY")
        parser.add_argument("--marlin", metavar="FILE", help="Marlin's kernel for this GPU, a cubin; default: without it")

    arguments = timing.arguments_of(__doc__, options)
    Marlin.file = arguments.marlin
    only = arguments.only.split(",") if arguments.only else None
    results = timing.Results("quantized-mlp", arguments)
    kernel = kiln.get_kernel("quantized-mlp", 1, device="cuda", variant=arguments.variant, registry=arguments.registry)
    results.head.update(variant=kernel.variant, group=GROUP)
    with timing.own_stream():
        for each in arguments.shapes.split(","):
            width, hidden = map(int, each.split("x"))
            way = measure_norms if arguments.norm else measure
            for shape, facts in way(kernel, width, hidden, [int(rows) for rows in arguments.rows.split(",")], only):
                results.add("{} tokens, {} x {}".format(*shape), shape=shape, **facts)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
