#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
r"""Times forward against PyTorch and its rivals on one GPU, round robin in one process. `kiln bench` runs it.

    kiln bench --package geglu-mlp@1 --shape 8192,768,3072 --rivals concatenated,compile
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
import datetime
import hashlib
import json
import os
import pathlib
import random
import re
import site
import statistics
import subprocess
import sys
import time
import typing

if "--tune" in sys.argv:  # which of a package's own kernels is the fastest is the loader's to find: without PyTorch
    words = [word for word in sys.argv[1:] if word not in ("--tune", "--package")]
    kiln = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "kiln")
    os.execv(kiln, ["kiln", "tune", *words])

# Options of an earlier `kiln bench`, and what does it instead.
MOVED = {"--trace": "run it under 'nsys profile'", "--plot": "--out has the figures", "--json": "say --out FILE",
         "--dtype": "bfloat16 is timed", "--version-number": "say --package NAME@VERSION"}


def refuse(why):
    print(f"kiln bench: {why}", file=sys.stderr)
    sys.exit(2)  # 1 would be no code of kiln's


def check_has_options(words):
    for word in words:
        if (name := word.partition("=")[0]) in MOVED:
            refuse(f"there is no {name}: {MOVED[name]}")


try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    check_has_options(sys.argv[1:])  # which no PyTorch brings
    refuse(f"import PyTorch in {sys.executable}: {error}, and the times are compared with its own. Install one for CUDA where "
           "this Python finds it")

import gates
from library import Library

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
# A token, a few, a small batch and prefill, of a small model and of a large one.
SHARED = [(1, 768, 3072), (512, 768, 3072), (8192, 768, 3072), (1, 4096, 14336), (16, 4096, 14336),
          (128, 4096, 14336), (512, 4096, 14336), (4096, 4096, 14336)]


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


def quack_layer(activation, x, gate, up, down, concatenated=True, tuned=False):
    """QuACK's MLP with these weights, gate's rows before up's or in turns with them; `tuned` by its own search."""
    from quack.mlp import MLP

    h, d = gate.shape
    layer = MLP(d, h, d, activation=activation, tuned=tuned, concat_layout=concatenated, device="cuda", dtype=x.dtype)
    packed = torch.cat([gate, up]) if concatenated else torch.stack([gate, up], dim=1).reshape(2 * h, d)
    layer.fc1.weight.data, layer.fc2.weight.data = packed, down
    return layer


def bind_quack(gate, concatenated, tuned=False):
    activation = gate.quack

    def bind(x, gate, up, down):
        layer = quack_layer(activation, x, gate, up, down, concatenated, tuned)
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
    "quack_tuned": lambda gate: bind_quack(gate, True, True),
}


def relative_error(found, exact):
    """Relative L2 against what was computed in double precision."""
    return ((found.double() - exact).norm() / exact.norm()).item()


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
    return {name: relative_error(result, exact) for name, result in results.items()}


def bind_rivals(rivals, sets, fewest=1, facts_of=lambda call: {}):
    """The graph of each rival that works here, the result of its first call, and notes: how long that call took and
    `facts_of` a later one, or why the rival failed. Eager must work, because Kiln's error is compared with eager's."""
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
            facts = {f"{name}_{fact}": value for fact, value in facts_of(bound[0]).items()}
            graphs[name] = graph_of(bound, fewest)
        except Exception as error:  # pylint: disable=broad-except; a rival's compiler may raise anything
            if name == "eager":
                raise
            notes[f"{name}_failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            continue
        results[name], notes = result, notes | {f"{name}_first_call_s": round(took, 2)} | facts
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


def normal(rows, columns, scale):
    return (torch.randn(rows, columns, device="cuda") * scale).bfloat16()


def inputs_of(m, d, h):
    """x, gate, up, down."""
    return normal(m, d, 1), normal(h, d, d**-0.5), normal(h, d, d**-0.5), normal(d, h, h**-0.5)


def compare(gate, libraries, rivals, m, d, h, rounds, close_rounds, regime, clocked):
    set_bytes = 2 * (3 * d * h + m * (2 * d + h))
    count = min(32, 1 + ROTATED_BYTES // set_bytes)
    sets = [inputs_of(m, d, h) for _ in range(count)]
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
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # the one that PyTorch calls 0
    return ["nvidia-smi", f"--query-gpu={fields}", f"--format=csv,{form}", f"--id={gpu}"]


def existing_folder(path):
    if not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path} is no folder")
    return path


def shape_of(text):
    shape = tuple(map(int, text.split(",")))
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < 8 or shape[1] % 8 or shape[2] % 8:
        raise argparse.ArgumentTypeError(f"'{text}', expected M,D,H with M from 1, D and H multiples of 8")
    return shape


def add_shapes(parser):
    parser.add_argument("--shape", action="append", type=shape_of, metavar="M,D,H", help="repeatable")


def add_common_options(parser, rivals):
    parser.add_argument("--package", default="geglu-mlp@1", metavar="NAME@VERSION", help="default: %(default)s")
    parser.add_argument("--registry", help="of the package; default: $KILN_REGISTRY")
    parser.add_argument("--variant", help="default: the one that this machine gets")
    parser.add_argument("--library", help="a file of that variant, which is in no registry; default: the installed one")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--rivals", default="", help="beside eager, separated by commas: " + ",".join(rivals))
    parser.add_argument("--site", action="append", default=[], type=existing_folder, metavar="DIR",
                        help="a folder of installed wheels, as pip install --target makes it; QuACK wants it to be "
                             "named site-packages")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender; default: %(default)s")
    parser.add_argument("--out", metavar="FILE", help="gets the figures as JSON")


def find_library(arguments, device="cuda"):
    """Installs the package where no library is named."""
    if arguments.library:
        return
    beside = pathlib.Path(sys.argv[0]).with_name("kiln")  # where this is bin/kiln-bench
    command = [str(beside) if beside.exists() else "kiln", "install", "--json", "--quiet", arguments.package]
    if device == "cpu":
        command += ["--device", "cpu"]
    for name in ("registry", "variant"):
        if getattr(arguments, name):
            command += [f"--{name}", getattr(arguments, name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)  # it has said why
    [installed] = json.loads(done.stdout)["installed"]
    arguments.library, arguments.variant = installed["library"], installed["variant"]


def chosen_rivals(arguments, rivals):
    """By name, each a function without arguments that makes what binds a set of inputs."""
    # Not PYTHONPATH: QuACK's CuTe DSL puts its modules on the path by a .pth file. Python reads those
    # in site folders only.
    for folder in arguments.site:
        site.addsitedir(folder)
    names = ["eager"] + [name for name in arguments.rivals.split(",") if name]
    gate = gates.gate_of(arguments.package)
    return {name: lambda make=rivals[name]: make(gate) for name in dict.fromkeys(names)}


def provenance(arguments, kind, device="cuda"):
    with open(arguments.library, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"schema": f"{gates.name_of(arguments.package)}.{kind}/1", **(cpu_facts() if device == "cpu" else gpu_facts()),
            "torch": torch.__version__, "date": datetime.date.today().isoformat(), "commit": arguments.commit,
            "package": arguments.package, "variant": arguments.variant, "library": f"sha256:{digest}"}


def gpu_facts():
    driver = subprocess.check_output(smi_command("driver_version", "noheader"), text=True).strip()
    return {"gpu": torch.cuda.get_device_name(0), "driver": driver, "cuda": torch.version.cuda, "dtype": "bfloat16"}


def cpu_facts():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    onednn = next(word for line in torch.__config__.show().splitlines() if "oneDNN" in line or "MKL-DNN" in line
                  for word in line.split() if word.startswith("v") and word[1:2].isdigit())
    return {"cpu": cpu, "cpus": os.cpu_count(), "onednn": onednn}


def begin(description, kind, add_options=lambda parser: None, rivals=(), device="cuda", **more):
    """A script's options, the library that it times, and what its result begins with. kind: None, where an option `what`
    says it."""
    parser = argparse.ArgumentParser(description=description)
    add_common_options(parser, rivals)
    add_options(parser)
    arguments = parser.parse_args()
    find_library(arguments, device)
    torch.set_grad_enabled(False)
    library = Library(arguments.library, device)
    kind = kind or arguments.what.replace("-", "_")
    return arguments, library, provenance(arguments, kind, device) | more | {"shapes": []}


def regime_line(name, regime, rounds):
    return f"graph replays, round robin, {name}: {regime_text(regime)}; {rounds}"


def write_result(result, path, lines="shapes"):
    """One shape a line, or whatever `lines` names a list of."""
    if not path:
        return
    each = ",\n  ".join(json.dumps(one) for one in result[lines])
    head = json.dumps({key: value for key, value in result.items() if key != lines}, indent=1)[:-2]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{head},\n "{lines}": [\n  {each}\n ]\n}}\n')


def read_options(words):
    parser = argparse.ArgumentParser(prog="kiln bench" if sys.argv[0].endswith("kiln-bench") else None,
                                     description=__doc__.splitlines()[0])
    add_common_options(parser, RIVALS)
    parser.add_argument("--portable", metavar="LIBRARY", help="one without kernels for this GPU alone, as a contender")
    shapes = parser.add_mutually_exclusive_group()
    add_shapes(shapes)
    shapes.add_argument("--sweep", action="store_true", help="many shapes of real models")
    shapes.add_argument("--share", action="store_true",
                        help="eight shapes, into GPU-shared.json: send it in, and the package's card has this GPU")
    parser.add_argument("--regime", choices=REGIMES, default="sustained",
                        help="burst rests before each turn, so that the power limit does not lower the clock")
    parser.add_argument("--close", type=int, default=0, metavar="ROUNDS",
                        help=f"rounds more for ours and whoever takes at most {CLOSE} times our time")
    check_has_options(words)
    return parser.parse_args(words)


def main():
    if sys.argv[1:2] == ["__complete"]:  # of a shell
        return
    arguments = read_options(sys.argv[1:])
    gate = gates.gate_of(arguments.package)
    find_library(arguments)
    if not torch.cuda.is_available():
        refuse(f"PyTorch {torch.__version__} sees no GPU of CUDA; run it where there is one")
    regime = REGIMES[arguments.regime]
    clocked = arguments.regime == "sustained" and not arguments.sweep
    torch.set_grad_enabled(False)
    rivals = chosen_rivals(arguments, RIVALS)
    libraries = {"kiln": Library(arguments.library)}
    if arguments.portable:
        libraries["portable"] = Library(arguments.portable)
    shapes = arguments.shape or (SWEEP if arguments.sweep else SHARED if arguments.share else SHAPES)
    rounds = f"{arguments.rounds} rounds"
    if arguments.close:
        rounds += f", {arguments.close} more of whoever takes at most {CLOSE} times our time"
    result = provenance(arguments, "eager") | {
        "regime": regime_line(arguments.regime, regime, rounds),
        "shapes": []}
    if arguments.share and not arguments.out:
        arguments.out = "-".join([*re.findall("[a-z0-9]+", result["gpu"].lower()), "shared.json"])
    for shape in shapes:
        result["shapes"].append(
            compare(gate, libraries, rivals, *shape, arguments.rounds, arguments.close, regime, clocked))
        write_result(result, arguments.out)  # each time: a long run may be cut off
    if arguments.share:
        print(f"Wrote {arguments.out}: the figures, the names of the GPU, of PyTorch and of the kernels, and nothing "
              f"else of this machine.\nA pull request that adds it to packages/{gates.name_of(arguments.package)}/bench/"
              "results brings this GPU into the card.")


if __name__ == "__main__":
    main()
