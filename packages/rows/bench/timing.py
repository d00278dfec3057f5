# SPDX-License-Identifier: Apache-2.0
"""What the benches of packages share: contenders that take turns, each in a CUDA graph, and the file of results.

A result is a case: {"case": "forward 8192 x 4096", "us": {"kiln": 46.3, "eager": 62.5}, "errors": …, "failed": …}. A time
is the median over rounds of a batch of replays between two events, the first round left out; an error is the relative L2
against double precision. The contender "copy" moves as many bytes as the case must at least. A rival that fails is named,
and one that cannot be imported is left out and named; Kiln's own failure ends the bench. Wants KILN_LIBRARY and
KILN_REGISTRY; device "cuda" where PyTorch has one, else "cpu".
"""
import argparse
import datetime
import functools
import importlib
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import time

import torch

import kiln

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDS, BATCH_US = 7, 10000
RIVALS, LEFT_OUT = {}, {}  # of rivals that are modules: name -> version, name -> why not


def normal(*shape, dtype=torch.bfloat16, **options):
    return torch.randn(*shape, device=DEVICE, dtype=dtype, **options)


def replay_of(call):
    """The call as the replay of a CUDA graph: what the GPU does, without what the host does for it."""
    if DEVICE == "cpu":
        return call
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        call()

    def replay():
        graph.replay()

    replay.reads = call  # whose tensors live as long
    return replay


def seconds_of_batch(call, count):
    if DEVICE == "cpu":
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - begin
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def microseconds(call):
    once = 1e6 * seconds_of_batch(call, 2) / 2
    count = max(1, min(200, int(BATCH_US / once)))
    return 1e6 * seconds_of_batch(call, count) / count


def first_line(error):
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


@functools.cache
def imported(name):
    """A rival's module; None where it cannot be imported, which the results say."""
    root = name.split(".", maxsplit=1)[0]
    try:
        module = importlib.import_module(name)
        RIVALS[root] = getattr(sys.modules[root], "__version__", None) or importlib.metadata.version(root)
        return module
    except Exception as error:  # pylint: disable=broad-exception-caught  # a rival fails in any way
        LEFT_OUT[root] = first_line(error)
        return None


def prepared(contenders, prepare=replay_of):
    """Name -> what is timed, and name -> why a rival cannot be. A contender that is None is not there."""
    calls, failed = {}, {}
    for name, call in contenders.items():
        if call is None:
            continue
        try:
            calls[name] = prepare(call)
        except Exception as error:  # pylint: disable=broad-exception-caught  # a rival fails in any way
            if name.startswith("kiln"):
                raise
            failed[name] = first_line(error)
    return calls, failed


def times_of(calls, parts=1):
    """Name -> microseconds of a part, where a call has several equal ones."""
    times = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(microseconds(call) / parts)
    return {name: round(statistics.median(values[1:] or values), 2) for name, values in times.items()}


def measure(contenders, prepare=replay_of, parts=1):
    calls, failed = prepared(contenders, prepare)
    return {"us": times_of(calls, parts), **({"failed": failed} if failed else {})}


def copy_of(size):
    """A contender that reads and writes this many bytes in all."""
    source = torch.empty(max(1, size // 2), device=DEVICE, dtype=torch.uint8)
    return lambda source=source, other=torch.empty_like(source): other.copy_(source)


def tensors_of(outputs):
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def errors_of(contenders, exact):
    """Name -> the largest relative L2 of its outputs; of those with outputs of the exact ones' shapes."""
    errors = {}
    for name, call in contenders.items():
        try:
            found = tensors_of(call()) if call is not None else ()
        except Exception as error:  # pylint: disable=broad-exception-caught  # as prepared() will say
            if name.startswith("kiln"):
                raise error
            continue
        if [t.shape for t in found] != [t.shape for t in exact]:
            continue
        worst = max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact))
        if name.startswith("kiln") and not worst < 2e-2:
            raise ArithmeticError(f"{name} is off by {worst}")
        errors[name] = float(f"{worst:.2g}")
    return errors


def driver_version():
    if DEVICE == "cpu":
        return None
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


class Results:
    """The file of a package's results, written anew with each case."""

    def __init__(self, package, arguments, dtype="bfloat16", version=1):
        self.path = arguments.out
        self.head = {"schema": "package.bench/1", "package": package,
                     "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None, "driver": driver_version(),
                     "variant": kiln.get_kernel(package, version, device=DEVICE).variant, "dtype": dtype,
                     "torch": torch.__version__, "date": datetime.date.today().isoformat(),
                     "commit": arguments.commit}
        self.results = []

    def add(self, case, **facts):
        self.results.append({"case": case, **facts})
        print(json.dumps(self.results[-1]), flush=True)
        modules = {key: value for key, value in (("rivals", RIVALS), ("left_out", LEFT_OUT)) if value}
        self.path.write_text(json.dumps({**self.head, **modules, "results": self.results}, indent=1) + "\n", encoding="utf-8")


def arguments_of(documentation, add=lambda parser: None):
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--once", action="store_true", help="one short round, to see that all runs, and to compile")
    add(parser)
    arguments = parser.parse_args()
    if arguments.once:
        global ROUNDS, BATCH_US  # pylint: disable=global-statement
        ROUNDS, BATCH_US = 1, 0
    return arguments


def own_stream():
    """Of a case, so that what is captured is on one stream."""
    return torch.cuda.stream(torch.cuda.Stream() if DEVICE == "cuda" else None)
