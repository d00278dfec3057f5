#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/eager.py: a graph alone keeps alive what its replay reads and writes, a rival that fails is left out with
its reason, and its command line, which `kiln bench` is. Runs without torch and without a GPU: torch is replaced by a model in which a
tensor is an address until nobody holds it."""
import contextlib
import importlib.util
import io
import itertools
import pathlib
import subprocess
import sys
import tempfile
import types
import weakref

FILE = pathlib.Path(__file__).resolve().parent.parent / "bench/eager.py"
addresses = itertools.count(0x10000, 0x10000)
mapped = weakref.WeakValueDictionary()  # address -> its tensor, while somebody holds it
recorded = None  # addresses that the calls of the capture under way name


class Tensor:
    device, dtype = types.SimpleNamespace(type="cuda"), "bfloat16"

    def __init__(self, *shape, **_):
        self.shape, self.address = shape, next(addresses)
        mapped[self.address] = self

    def element_size(self):
        return 2

    def dim(self):
        return len(self.shape)

    def is_contiguous(self):
        return True

    def data_ptr(self):
        return self.address


class Stream:
    cuda_stream = 0

    def synchronize(self):
        pass


class CUDAGraph:
    def replay(self):
        return [address for address in self.recorded if address not in mapped]


@contextlib.contextmanager
def capture(graph, stream):
    global recorded
    recorded = graph.recorded = []
    yield
    recorded = None


class Op:
    """An op whose workspace is 64 bytes, and whose run only notes what it was given."""

    @staticmethod
    def workspace_bytes(_, size, __):
        size._obj.value = 64
        return 0

    @staticmethod
    def run(call, _):
        if recorded is not None:
            tensors = (call._obj.tensors[i] for i in range(call._obj.tensor_count))
            recorded.extend(tensor.contents.data for tensor in tensors if tensor)
            recorded.append(call._obj.workspace)
        return 0


def load_bench():
    torch = types.ModuleType("torch")
    torch.empty, torch.uint8 = Tensor, None
    torch.float16, torch.float32, torch.bfloat16 = "float16", "float32", "bfloat16"
    torch._dynamo = types.SimpleNamespace(reset=lambda: None)
    torch.cuda = types.SimpleNamespace(
        synchronize=lambda: None, Stream=Stream, stream=contextlib.nullcontext, CUDAGraph=CUDAGraph,
        graph=capture, current_stream=Stream)
    for name in ("torch.nn", "torch.nn.functional"):
        sys.modules[name] = types.ModuleType(name)
    torch.nn, torch.nn.functional = sys.modules["torch.nn"], sys.modules["torch.nn.functional"]
    sys.modules["torch"] = torch
    sys.path.insert(0, str(FILE.parent))  # what it imports
    spec = importlib.util.spec_from_file_location("eager", FILE)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    return bench


def graphs_hold_their_calls(bench):
    library = bench.Library.__new__(bench.Library)  # without a file
    library.ops = {"forward": Op}
    sets = 3
    graph = bench.graph_of([
        library.forward(Tensor(4, 8), Tensor(16, 8), Tensor(16, 8), Tensor(8, 16), Tensor(4, 8))
        for _ in range(sets)], 8)
    assert len(graph.calls) == 9, f"{len(graph.calls)} calls of 3 sets, and of at least 8"
    assert len(bench.graph_of([lambda: None], 0).calls) == 1
    assert len(graph.recorded) == 6 * 9, graph.recorded
    assert len(set(graph.recorded)) == 6 * sets, graph.recorded  # five tensors and a workspace a call
    lost = graph.replay()
    assert not lost, f"a replay uses {len(lost)} of {len(graph.recorded)} addresses that nobody holds"
    del graph
    assert not mapped, f"{len(mapped)} tensors outlive the graph"


def failing_rivals_are_left_out(bench):
    def missing():
        raise ImportError("No module named 'quack'\nand more")

    def refusing():
        def bind(_):
            raise ValueError
        return bind

    result = types.SimpleNamespace(clone=lambda: "copied")
    working = lambda: lambda _: lambda: result
    rivals = {"eager": working, "quack": missing, "compile": refusing, "liger": working}
    graphs, results, notes = bench.bind_rivals(rivals, [(1,), (2,)])
    assert list(graphs) == ["eager", "liger"], graphs
    assert results == {"eager": ("copied",), "liger": ("copied",)}, results
    assert notes["quack_failed"] == "ImportError: No module named 'quack'", notes
    assert notes["compile_failed"] == "ValueError: ", notes
    assert notes["liger_first_call_s"] >= 0 and "quack_first_call_s" not in notes, notes
    try:
        bench.bind_rivals({"eager": missing}, [(1,)])
        raise AssertionError("a run without eager went on")
    except ImportError:
        pass


def wrong_rivals_are_left_out(bench):
    errors = {"kiln": 1.0, "eager": 4e-3, "quack": float("nan"), "liger": 2e-2}
    graphs, notes = dict.fromkeys(errors), {}
    bench.drop_wrong(errors, graphs, notes)
    assert list(graphs) == list(errors) == ["kiln", "eager"], errors  # a wrong Kiln is not dropped
    assert notes == {"quack_failed": "relative L2 error nan", "liger_failed": "relative L2 error 2.00e-02"}


def the_best_rival_is_named(bench):
    figures = {"kiln": [10, 30, 20], "portable": [1, 1, 1], "eager": [40, 40, 41], "liger": [25, 24, 26]}
    result = bench.summary(figures, dict.fromkeys(figures, 1e-3))
    assert (result["kiln_us"], result["kiln_us_20"], result["eager_us"]) == (20, 10, 40), result
    assert (result["best_rival"], result["best_rival_over_kiln"]) == ("liger", 1.25), result
    line = bench.line_of(result | {"quack_failed": "ImportError: none"}, figures)
    assert line.endswith("best rival liger, 1.25 times kiln's\n  quack failed: ImportError: none"), line


def only_close_contenders_run_on(bench):
    figures = {"kiln": [100, 90, 110], "portable": [101], "eager": [150], "quack": [103, 200, 1], "liger": [60]}
    assert bench.close_names(figures) == ["kiln", "quack", "liger"]  # the faster one is close, too
    assert bench.close_names({"kiln": [100], "portable": [100], "eager": [104]}) == []


def a_command_line_is_read(bench):
    given = bench.read_options(["--shape", "1,768,3072", "--shape", "8,8,16", "--package", "swiglu-mlp@1"])
    assert given.shape == [(1, 768, 3072), (8, 8, 16)] and given.package == "swiglu-mlp@1", given
    assert bench.read_options([]).package == "geglu-mlp@1"
    for words, said in ((["--shape", "0,8,8"], "expected M,D,H"), (["--shape", "1,12,8"], "expected M,D,H"),
                        (["--sweep", "--share"], "not allowed with"), (["--trace=t.json"], "nsys profile")):
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                bench.read_options(words)
            raise AssertionError(f"{words} is taken")
        except SystemExit as ended:
            assert ended.code == 2 and said in told.getvalue(), told.getvalue()


def the_library_is_the_installed_one(bench):
    asked = []

    def run(command, **_):
        asked.append(command[1:])
        return types.SimpleNamespace(returncode=0, stdout='{"installed": [{"library": "/l.so", "variant": "v"}]}')

    bench.subprocess, before = types.SimpleNamespace(run=run, PIPE=-1), bench.subprocess
    given = bench.read_options(["--variant", "w"])
    bench.find_library(given)
    assert (given.library, given.variant) == ("/l.so", "v"), given
    bench.find_library(bench.read_options(["--library", "/mine.so"]))
    assert asked == [["install", "--json", "--quiet", "geglu-mlp@1", "--variant", "w"]], asked
    bench.subprocess = before


def without_pytorch_it_says_so():
    """Of an option that no PyTorch brings, that comes first."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "torch.py").write_text("raise ImportError(\"No module named 'torch'\")\n")
        for words, said in (([], f"kiln bench: import PyTorch in {sys.executable}: No module named 'torch', and the times are "
                                 "compared with its own. Install one for CUDA where this Python finds it\n"),
                            (["--json"], "kiln bench: there is no --json: say --out FILE\n")):
            done = subprocess.run([sys.executable, "-B", FILE, *words], env={"PYTHONPATH": folder}, capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (2, "", said), done


def main():
    sys.dont_write_bytecode = True
    bench = load_bench()
    graphs_hold_their_calls(bench)
    failing_rivals_are_left_out(bench)
    wrong_rivals_are_left_out(bench)
    the_best_rival_is_named(bench)
    only_close_contenders_run_on(bench)
    a_command_line_is_read(bench)
    the_library_is_the_installed_one(bench)
    without_pytorch_it_says_so()


if __name__ == "__main__":
    main()
