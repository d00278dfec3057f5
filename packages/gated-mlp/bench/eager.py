#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward against PyTorch and its rivals on one GPU, round robin in one process.

    bench/eager.py --package geglu-mlp@1 --variant <variant> --out bench/results/<gpu>.json \
        --library build/kernels/geglu-mlp/<variant>/libgeglu_mlp.so

Eager is what a user writes: F.linear(F.gelu(F.linear(x, gate), approximate="tanh") * F.linear(x, up), down), with
the gate of the package: gates.py has those of all packages that this script times.
ctypes calls Kiln's libraries through their C table. Each shape is first compared with fp64. A wrong result of
Kiln's ends the run.

Every contender is timed as a CUDA graph over several sets of random buffers. Together the sets are larger than
the L2 cache. A graph has at least eight forwards if they take at most two milliseconds: forwards follow each
other in a model too, and a graph launch takes 3 us. A figure is the median of the rounds. Each round has a
random order.

The power limit slows a large shape down in the sustained regime, and not in bursts. A GPU takes up to a second
to find its clock at the power limit. Each contender therefore runs for a second before it is timed. Otherwise
it would run at the clock of the contender before it. One run differs from another by a percent or two, so
--close gives more rounds to Kiln and to the contenders that are about as fast.

--rivals adds contenders: torch.compile, with separate and with concatenated weights, in its default and its
max-autotune mode, Liger and QuACK. Each compiles for the exact shape before it is timed. The result says how
long its first call took. A rival that is missing, fails or is wrong at a shape is left out there, and the
result says why.
"""
import argparse
import ctypes
import datetime
import hashlib
import json
import os
import random
import site
import statistics
import subprocess
import time
import typing

import torch
import torch.nn.functional as F

import gates

SHAPES = [
    (8192, 768, 3072), (1024, 1024, 4096), (4096, 2304, 9216), (8192, 3584, 14336),
    (4096, 4096, 14336), (1, 3584, 14336), (16, 3584, 14336), (64, 3584, 14336),
    (1, 768, 3072), (256, 3584, 14336),
]
# D and H of real models, with M as in decode, between, and in prefill.
SWEEP = [(m, d, h) for d, h in [(768, 3072), (1024, 4096), (2048, 8192), (2304, 9216), (3584, 14336),
                                (4096, 14336)]
         for m in (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)] + [
    (1000, 1152, 6912), (77, 640, 2560), (3001, 896, 4864), (192, 3584, 14336), (384, 3584, 14336),
    (700, 2304, 9216), (300, 2048, 8192), (288, 3584, 14336), (320, 4096, 14336)]


class Regime(typing.NamedTuple):
    """What one contender does in one round: rest, run a load of its own, then be timed."""
    timed: float  # milliseconds
    load: float  # milliseconds
    rest: float  # seconds


REGIMES = {"sustained": Regime(timed=40, load=1000, rest=0), "burst": Regime(timed=2, load=0, rest=0.1)}
CLOSE = 1.03  # times Kiln's time: up to there, few rounds do not tell which of the two is faster
POWER_ROWS = 256  # with fewer rows, memory limits a forward more than power does
ROTATED_BYTES = 200 << 20
BOUND = 2.5e-3  # relative L2 of bfloat16: what CARD.md promises
# As in geglu_mlp_check: over fewer values, rounding errors do not average to the expected error.
LARGE = 1024
FEW_FACTOR = 3
RIVAL_BOUND = 1e-2  # three times eager's rounding error: a larger error means another function
FEWEST_CALLS = 8  # of a graph
MOST_OPERATIONS = 1.2e12  # of a graph that repeats its sets: about 2 ms, as a burst
OURS = ("kiln", "portable", "kiln_recompute")
ALIGNMENT = 256  # of a workspace; torch has less on a CPU
DEVICES = {"cpu": 1, "cuda": 2}  # kDLCPU, kDLCUDA
STRING = 3  # KILN_ATTRIBUTE_STRING
CODES = {torch.float16: 2, torch.float32: 2, torch.bfloat16: 4}  # kDLFloat, kDLBfloat


class DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", DLDevice), ("ndim", ctypes.c_int32),
                ("dtype", DLDataType), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("text", ctypes.c_char * 508)]


class Attribute(ctypes.Structure):
    """Of a string. Zeros: the schema's default."""
    _fields_ = [("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("word", ctypes.c_char_p)]


class Call(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("tensor_count", ctypes.c_uint32),
                ("tensors", ctypes.POINTER(ctypes.POINTER(DLTensor))),
                ("attribute_count", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("attributes", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)]


class Op(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("name", ctypes.c_char_p), ("schema", ctypes.c_char_p),
                ("workspace_bytes", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call),
                                                     ctypes.POINTER(ctypes.c_size_t),
                                                     ctypes.POINTER(Error))),
                ("run", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Call),
                                         ctypes.POINTER(Error)))]


class Package(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("abi_major", ctypes.c_uint16),
                ("abi_minor", ctypes.c_uint16), ("name", ctypes.c_char_p),
                ("build_id", ctypes.c_char_p), ("version", ctypes.c_int32),
                ("op_count", ctypes.c_uint32), ("ops", ctypes.c_void_p),
                ("op_stride", ctypes.c_uint32), ("device_type", ctypes.c_int32),
                ("prepare", ctypes.CFUNCTYPE(ctypes.c_int32, DLDevice, ctypes.POINTER(Error)))]


class Library:
    """The ops of one library, through its C table."""
    device = "cuda"

    def __init__(self, path, device="cuda"):
        self.device = device
        library = ctypes.CDLL(path)
        library.kiln_package_v1.restype = ctypes.POINTER(Package)
        package = library.kiln_package_v1().contents
        ops = [Op.from_address(package.ops + i * package.op_stride) for i in range(package.op_count)]
        self.ops = {op.name.decode(): op for op in ops}
        error = Error()
        if package.prepare and package.prepare(DLDevice(DEVICES[device], 0), ctypes.byref(error)) != 0:
            raise RuntimeError(error.text.decode())

    def bind(self, name, *tensors, **words):
        """A call without arguments, which keeps alive everything that it points to. The tensors come in the
        schema's order. None leaves an optional one out. `words`: attributes, each a string of the schema's."""
        op = self.ops[name]
        keep = [None if t is None else tensor_of(t) for t in tensors]
        pointers = (ctypes.POINTER(DLTensor) * len(keep))(
            *[ctypes.pointer(t[0]) if t else None for t in keep])
        call = Call(ctypes.sizeof(Call), len(keep), pointers)
        attributes = attributes_of(op, words) if words else (Attribute * 0)()
        call.attribute_count, call.attributes = len(attributes), ctypes.addressof(attributes)
        error = Error()
        size = ctypes.c_size_t()
        if op.workspace_bytes(ctypes.byref(call), ctypes.byref(size), ctypes.byref(error)):
            raise RuntimeError(error.text.decode())
        workspace = torch.empty(size.value + ALIGNMENT, dtype=torch.uint8, device=self.device)
        call.workspace = workspace.data_ptr() + -workspace.data_ptr() % ALIGNMENT
        call.workspace_bytes = size.value

        def run():
            call.stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None
            if op.run(ctypes.byref(call), ctypes.byref(error)) != 0:
                raise RuntimeError(error.text.decode())

        run.keep = (tensors, keep, pointers, attributes)
        run.workspace = workspace
        return run

    def forward(self, x, gate, up, down, y, residual=None, **words):
        return self.bind("forward", x, gate, up, down, None, None, None, residual, y, **words)


def attributes_of(op, words):
    names = [attribute["name"] for attribute in json.loads(op.schema)["attributes"]]
    attributes = (Attribute * len(names))()
    for name, word in words.items():
        attributes[names.index(name)] = Attribute(STRING, 0, word.encode())
    return attributes


def tensor_of(t):
    shape = (ctypes.c_int64 * t.dim())(*t.shape)
    strides = None if t.is_contiguous() else (ctypes.c_int64 * t.dim())(*t.stride())
    device, dtype = DLDevice(DEVICES[t.device.type], 0), DLDataType(CODES[t.dtype], 8 * t.element_size(), 1)
    return DLTensor(t.data_ptr(), device, t.dim(), dtype, shape, strides), shape, strides


def graph_of(calls, fewest=1):
    """A graph whose replay makes all calls, repeated until there are at least `fewest`. The graph holds the
    calls and so their workspaces. Torch does not know that the kernels write there, and before the next
    capture it gives unheld memory back to the driver."""
    calls = calls * max(1, -(-fewest // len(calls)))
    torch.cuda.synchronize()  # the inputs were made on another stream
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.calls = calls
    return graph


def milliseconds(graph, times):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        graph.replay()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / times


def eager_of(gate):
    activate = gate.activate
    return lambda x, gate, up, down: F.linear(activate(F.linear(x, gate)) * F.linear(x, up), down)


def concatenated_of(gate):
    activate = gate.activate

    def both(x, gate_up, down):
        gate, up = F.linear(x, gate_up).chunk(2, dim=-1)
        return F.linear(activate(gate) * up, down)

    return both


# Each takes one set of inputs and returns a function without arguments, which enqueues the forward and returns y.
def bind_eager(gate):
    eager = eager_of(gate)
    return lambda *one: lambda: eager(*one)


def bind_compiled(gate, mode):
    function = torch.compile(eager_of(gate), mode=mode, dynamic=False)
    return lambda *one: lambda: function(*one)


def bind_concatenated(gate, mode):
    function = torch.compile(concatenated_of(gate), mode=mode, dynamic=False)

    def bind(x, gate, up, down):
        gate_up = torch.cat([gate, up])
        return lambda: function(x, gate_up, down)

    return bind


def bind_liger(gate):
    fused = gate.liger_function()

    def bind(x, gate, up, down):
        return lambda: F.linear(fused.apply(F.linear(x, gate), F.linear(x, up)), down)

    return bind


def quack_layer(activation, x, gate, up, down, concatenated=True):
    """QuACK's MLP with these weights, gate's rows before up's or in turns with them."""
    from quack.mlp import MLP

    h, d = gate.shape
    layer = MLP(d, h, d, activation=activation, tuned=False, concat_layout=concatenated, device="cuda", dtype=x.dtype)
    packed = torch.cat([gate, up]) if concatenated else torch.stack([gate, up], dim=1).reshape(2 * h, d)
    layer.fc1.weight.data, layer.fc2.weight.data = packed, down
    return layer


def bind_quack(gate, concatenated):
    activation = gate.quack

    def bind(x, gate, up, down):
        layer = quack_layer(activation, x, gate, up, down, concatenated)
        return lambda: layer(x)

    return bind


# By name, each of the gate.
RIVALS = {
    "eager": bind_eager,
    "compile": lambda gate: bind_compiled(gate, None),
    "autotune": lambda gate: bind_compiled(gate, "max-autotune-no-cudagraphs"),
    "concatenated": lambda gate: bind_concatenated(gate, None),
    "concatenated_autotune": lambda gate: bind_concatenated(gate, "max-autotune-no-cudagraphs"),
    "liger": bind_liger,
    "quack": lambda gate: bind_quack(gate, True),
    "quack_interleaved": lambda gate: bind_quack(gate, False),
}


def errors_of(gate, inputs, output, graphs, results):
    """The relative L2 error against fp64 over the first rows. A library is judged by what its replay writes, a
    rival by what its first call returned."""
    x, *weights = (t.double() for t in inputs)
    exact = eager_of(gate)(x[:64], *weights)
    results = {name: result[:64] for name, (result,) in results.items()}
    for name in graphs.keys() - results.keys():
        output.fill_(float("nan"))
        graphs[name].replay()
        results[name] = output[:64].clone()
    return {k: ((v.double() - exact).norm() / exact.norm()).item() for k, v in results.items()}


def bind_rivals(rivals, sets, fewest=1):
    """The graph of each rival that works here, the result of its first call, and notes: how long that call
    took, or why the rival failed. Eager must work, because Kiln's error is compared with eager's."""
    graphs, results, notes = {}, {}, {}
    for name, make in rivals.items():
        torch._dynamo.reset()  # else earlier shapes make it compile for any shape
        begin = time.monotonic()
        try:
            bind = make()
            bound = [bind(*one) for one in sets]
            first = bound[0]()
            torch.cuda.synchronize()
            took = time.monotonic() - begin
            # Copies, because the next call may overwrite the result.
            result = tuple(t.clone() for t in (first if isinstance(first, tuple) else (first,)))
            graphs[name] = graph_of(bound, fewest)
        except Exception as error:  # pylint: disable=broad-except; a rival's compiler may raise anything
            if name == "eager":
                raise
            notes[f"{name}_failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            continue
        results[name], notes[f"{name}_first_call_s"] = result, round(took, 2)
    return graphs, results, notes


def drop_wrong(errors, graphs, notes):
    """Drops each rival that computes something else. NaN is dropped too: the comparison is false."""
    for name in [name for name in errors if name not in OURS and not errors[name] <= RIVAL_BOUND]:
        notes[f"{name}_failed"] = f"relative L2 error {errors[name]:.2e}"
        del graphs[name], errors[name]


def require_right(errors, values, what):
    bound = BOUND if values >= LARGE else FEW_FACTOR * BOUND
    if not errors["kiln"] <= min(bound, errors["eager"]):  # false for NaN too
        raise RuntimeError(f"{what}: relative L2 errors {errors}, expected at most {bound}")


def round_robin(graphs, rounds, regime):
    """Microseconds per call of each graph, in each round."""
    one = {name: milliseconds(graph, 3) for name, graph in graphs.items()}
    figures = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in random.sample(list(graphs.items()), len(graphs)):
            time.sleep(regime.rest)
            # At least one replay, because the first one after a rest wakes the GPU.
            milliseconds(graph, max(1, int(regime.load / one[name])))
            times = max(1, int(regime.timed / one[name]))
            figures[name].append(1e3 * milliseconds(graph, times) / len(graph.calls))
    return figures


def close_names(figures):
    """Kiln and the rivals that take at most CLOSE times as long. Empty if there is no such rival."""
    most = CLOSE * statistics.median(figures["kiln"])
    names = [name for name, values in figures.items() if name == "kiln" or
             name not in OURS and statistics.median(values) <= most]
    return names if len(names) > 1 else []


def summary(figures, errors):
    """Medians, 20th and 80th percentiles, and the best rival."""
    result = {}
    for name, values in figures.items():
        values = sorted(values)
        result[f"{name}_us"] = round(statistics.median(values), 2)
        result[f"{name}_us_20"] = round(values[int(0.2 * (len(values) - 1))], 2)
        result[f"{name}_us_80"] = round(values[int(0.8 * (len(values) - 1))], 2)
        result[f"{name}_error"] = errors[name]
    best = min((name for name in figures if name not in OURS), key=lambda name: result[f"{name}_us"])
    result["best_rival"] = best
    result["best_rival_over_kiln"] = round(result[f"{best}_us"] / result["kiln_us"], 3)
    return result


def line_of(result, names):
    """The result of one shape, as text for the terminal."""
    times = ", ".join(f"{name} {result[f'{name}_us']}" for name in names)
    lines = [f"{times}; best rival {result['best_rival']}, {result['best_rival_over_kiln']:.2f} times kiln's"]
    lines += [f"  {key.removesuffix('_failed')} failed: {value}" for key, value in result.items()
              if key.endswith("_failed")]
    return "\n".join(lines)


def clock_and_power(graph):
    """The GPU's clock and power while it replays this graph alone. They are read after a second of replays:
    from Ampere on, the driver reports the mean power of the last second."""
    times = max(1, int(20 / milliseconds(graph, 3)))
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        milliseconds(graph, times)
    command = smi_command("clocks.sm,power.draw", "noheader,nounits")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as smi_process:
        while smi_process.poll() is None:
            milliseconds(graph, times)
        clock, power = smi_process.stdout.read().split(",")
    return {"sm_mhz": float(clock), "watts": float(power)}


def compare(gate, libraries, rivals, m, d, h, rounds, close_rounds, regime, clocked):
    def normal(rows, columns, scale):
        return (torch.randn(rows, columns, device="cuda") * scale).bfloat16()

    set_bytes = 2 * (3 * d * h + m * (2 * d + h))
    count = min(32, 1 + ROTATED_BYTES // set_bytes)
    sets = [(normal(m, d, 1), normal(h, d, d**-0.5), normal(h, d, d**-0.5), normal(d, h, h**-0.5))
            for _ in range(count)]
    outputs = [torch.empty(m, d, dtype=torch.bfloat16, device="cuda") for _ in sets]
    fewest = min(FEWEST_CALLS, int(MOST_OPERATIONS / (6 * m * d * h)))
    graphs = {name: graph_of([library.forward(*one, y) for one, y in zip(sets, outputs)], fewest)
              for name, library in libraries.items()}
    rival_graphs, results, notes = bind_rivals(rivals, sets, fewest)
    graphs |= rival_graphs
    errors = errors_of(gate, sets[0], outputs[0], graphs, results)
    drop_wrong(errors, graphs, notes)
    require_right(errors, m * min(d, h), f"{m}, {d}, {h}")
    if m < POWER_ROWS:
        regime = regime._replace(load=0)
    figures = round_robin(graphs, rounds, regime)
    close = close_names(figures) if close_rounds else []
    for name, values in round_robin({name: graphs[name] for name in close}, close_rounds, regime).items():
        figures[name] += values
    result = {"m": m, "d": d, "h": h, "sets": count, "close": close} | notes
    if clocked:
        result |= clock_and_power(graphs["kiln"])
    result |= summary(figures, errors)
    print(f"{m}, {d}, {h}: " + line_of(result, graphs), flush=True)
    return result


def regime_text(regime):
    text = f"{regime.timed} ms of each timed"
    if regime.load:
        text += f", after {regime.load} ms of the same contender where M is {POWER_ROWS} or more"
    if regime.rest:
        text += f", after {regime.rest} s of rest"
    return text


def smi_command(fields, form):
    return ["nvidia-smi", f"--query-gpu={fields}", f"--format=csv,{form}", "--id=0"]


def existing_folder(path):
    if not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is no folder")
    return path


def add_common_options(parser, rivals):
    parser.add_argument("--library", required=True)
    parser.add_argument("--package", required=True, help="NAME@VERSION: says which gate, and for the record")
    parser.add_argument("--variant", required=True, help="its id, for the record")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rivals", default="", help="beside eager, separated by commas: " + ",".join(rivals))
    parser.add_argument("--site", action="append", default=[], type=existing_folder, metavar="DIR",
                        help="a folder of installed wheels, as pip install --target makes it; QuACK wants it to be "
                             "named site-packages")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", required=True)


def chosen_rivals(arguments, rivals):
    """By name, each a function without arguments that makes what binds a set of inputs."""
    # Not PYTHONPATH: QuACK's CuTe DSL puts its modules on the path by a .pth file. Python reads those
    # in site folders only.
    for folder in arguments.site:
        site.addsitedir(folder)
    names = ["eager"] + [name for name in arguments.rivals.split(",") if name]
    gate = gates.gate_of(arguments.package)
    return {name: lambda make=rivals[name]: make(gate) for name in dict.fromkeys(names)}


def provenance(arguments, kind):
    driver = subprocess.check_output(smi_command("driver_version", "noheader"), text=True).strip()
    with open(arguments.library, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {
        "schema": f"{gates.name_of(arguments.package)}.{kind}/1", "gpu": torch.cuda.get_device_name(0),
        "driver": driver, "torch": torch.__version__, "cuda": torch.version.cuda,
        "date": datetime.date.today().isoformat(), "commit": arguments.commit,
        "package": arguments.package, "variant": arguments.variant,
        "library": f"sha256:{digest}", "dtype": "bfloat16",
    }


def begin(description, kind, add_options=lambda parser: None, **more):
    """For a script that times one library alone: its options, the library, and what its result begins with."""
    parser = argparse.ArgumentParser(description=description)
    add_common_options(parser, {})
    add_options(parser)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    return arguments, Library(arguments.library), provenance(arguments, kind) | more | {"shapes": []}


def burst_text(rounds, regime=REGIMES["burst"]):
    return f"graph replays, round robin, burst: {regime_text(regime)}; {rounds} rounds"


def write_result(result, path):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=2)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_common_options(parser, RIVALS)
    parser.add_argument("--portable", help="a library without kernels for this GPU alone, as a contender")
    parser.add_argument("--shapes", help="M,D,H and more of them, separated by spaces")
    parser.add_argument("--sweep", action="store_true", help="many shapes instead of the named ones")
    parser.add_argument("--regime", choices=REGIMES, default="sustained")
    parser.add_argument("--close", type=int, default=0, metavar="ROUNDS",
                        help=f"rounds more for ours and whoever takes at most {CLOSE} times our time")
    arguments = parser.parse_args()
    regime = REGIMES[arguments.regime]
    clocked = arguments.regime == "sustained" and not arguments.sweep
    torch.set_grad_enabled(False)
    rivals = chosen_rivals(arguments, RIVALS)
    libraries = {"kiln": Library(arguments.library)}
    if arguments.portable:
        libraries["portable"] = Library(arguments.portable)
    gate = gates.gate_of(arguments.package)
    shapes = SWEEP if arguments.sweep else SHAPES
    if arguments.shapes:
        shapes = [tuple(map(int, text.split(","))) for text in arguments.shapes.split()]
    rounds = f"{arguments.rounds} rounds"
    if arguments.close:
        rounds += f", {arguments.close} more of whoever takes at most {CLOSE} times our time"
    result = provenance(arguments, "eager") | {
        "regime": f"graph replays, round robin, {arguments.regime}: {regime_text(regime)}; {rounds}",
        "shapes": []}
    for shape in shapes:
        result["shapes"].append(
            compare(gate, libraries, rivals, *shape, arguments.rounds, arguments.close, regime, clocked))
        write_result(result, arguments.out)  # each time: a long run may be cut off


if __name__ == "__main__":
    main()
