#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward on one CPU, in bfloat16 and float32, beside the same MLP by libraries: oneDNN of PyTorch, OpenBLAS of numpy.

    bench/cpu.py --package geglu-mlp@1 --variant <variant> --library <file> --out bench/results/<cpu>.json

oneDNN: three products, the gate fused into the first and the product with it into the second; weights as they are and, in
bfloat16, packed beforehand. OpenBLAS, in float32: three products and PyTorch's gate between them; the products alone, too.
The process is pinned to one CPU and makes no other thread. Rounds take turns, and a call's time is the CPU time of the
thread, so that what else the machine does costs a way its caches, and not the time that it waits. Each way is first
compared with double precision.
"""
import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # read when these are imported

import statistics
import time

import numpy
import torch

import cpu_threads
import eager as bench
import gates

SHAPES = [(m, 768, 3072) for m in (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)] + [
    (m, 1024, 4096) for m in (16, 128, 1024)]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
FUSED = {"geglu-mlp": ("gelu", "tanh"), "swiglu-mlp": ("swish", "")}  # the gate, in oneDNN's words
BOUND = 1e-2  # relative L2


def onednn(words, x, gate, up, down):
    product = torch.ops.mkldnn._linear_pointwise

    def call():
        h = product(x, gate, None, words[0], [], words[1])
        return product(product.binary(x, h, up, None, "mul"), down, None, "none", [], "")

    return call


def openblas(activate, x, *weights):
    """The call, and its products alone."""
    source, gate, up, down = (t.numpy() for t in (x, *weights))
    g, u = (torch.empty(len(x), len(gate)) for _ in range(2))
    y = torch.empty_like(x)

    def call(gated=True):
        numpy.matmul(source, gate.T, out=g.numpy())
        numpy.matmul(source, up.T, out=u.numpy())
        if gated:
            torch.mul(activate(g), u, out=g)
        numpy.matmul(g.numpy(), down.T, out=y.numpy())
        return y

    return call, lambda: call(gated=False)


def ways_of(library, package, x, *weights):
    y, words = torch.empty_like(x), FUSED[gates.name_of(package)]
    kiln = library.forward(x, *weights, y)
    ways = {"kiln": lambda: (kiln(), y)[1], "onednn": onednn(words, x, *weights)}
    if x.dtype == torch.bfloat16:
        packed = (torch.ops.mkldnn._reorder_linear_weight(w, len(x)) for w in weights)
        return ways | {"onednn_packed": onednn(words, x, *packed)}
    whole, products = openblas(gates.gate_of(package).activate, x, *weights)
    return ways | {"openblas": whole, "openblas_products": products}


def require_right(ways, exact, what):
    for name, call in ways.items():
        error = bench.relative_error(call()[:64], exact)
        if not error <= BOUND and name != "openblas_products":
            raise RuntimeError(f"{what}: {name} has a relative L2 error of {error}, expected at most {BOUND}")


def compare(arguments, library, shape):
    m, d, h = shape
    result = {"m": m, "d": d, "h": h}
    rounds = arguments.rounds if m <= 1024 else max(3, arguments.rounds // 5)
    for dtype, kind in DTYPES.items():
        tensors = cpu_threads.inputs_of(*shape, kind)
        ways = ways_of(library, arguments.package, *tensors)
        exact = bench.eager_of(gates.gate_of(arguments.package))(*(t.double() for t in (tensors[0][:64], *tensors[1:])))
        require_right(ways, exact, f"{shape} in {dtype}")
        found = {name: [] for name in ways}
        for _ in range(rounds):
            for name, call in ways.items():
                begin = time.thread_time()
                call()
                found[name].append(1e3 * (time.thread_time() - begin))
        for name, times in found.items():
            first, *rest = name.split("_")
            key = "_".join([first, dtype, *rest])
            result |= {f"{key}_ms": round(statistics.median(times), 4), f"{key}_least_ms": round(min(times), 4)}
    print(result, flush=True)
    return result


def main():
    arguments, library, result = bench.begin(__doc__.splitlines()[0], "cpu", device="cpu", threads=1,
                                             regime="CPU time of one pinned thread; rounds take turns")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.manual_seed(7)
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
    result |= {"rounds": arguments.rounds, "openblas": f"{blas['name']} {blas['version']} of numpy {numpy.__version__}",
               "onednn_bf16": f"PyTorch {torch.__version__}", "onednn_f32": f"PyTorch {torch.__version__}"}
    for shape in SHAPES:
        result["shapes"].append(compare(arguments, library, shape))
        bench.write_result(result, arguments.out)


if __name__ == "__main__":
    main()
