#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/eager.py: a graph alone keeps alive what its replay reads and writes. Runs without torch and
without a GPU: torch is replaced by a model in which a tensor is an address until nobody holds it."""
import contextlib
import importlib.util
import itertools
import pathlib
import sys
import types
import weakref

FILE = pathlib.Path(__file__).resolve().parent.parent / "bench/eager.py"
addresses = itertools.count(0x10000, 0x10000)
mapped = weakref.WeakValueDictionary()  # address -> its tensor, while somebody holds it
recorded = None  # addresses that the calls of the capture under way name


class Tensor:
    def __init__(self, *shape, **_):
        self.shape, self.address = shape, next(addresses)
        mapped[self.address] = self

    def dim(self):
        return len(self.shape)

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
    torch.cuda = types.SimpleNamespace(
        synchronize=lambda: None, Stream=Stream, stream=contextlib.nullcontext, CUDAGraph=CUDAGraph,
        graph=capture, current_stream=Stream)
    for name in ("torch.nn", "torch.nn.functional"):
        sys.modules[name] = types.ModuleType(name)
    torch.nn, torch.nn.functional = sys.modules["torch.nn"], sys.modules["torch.nn.functional"]
    sys.modules["torch"] = torch
    spec = importlib.util.spec_from_file_location("eager", FILE)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    return bench


def main():
    sys.dont_write_bytecode = True
    bench = load_bench()
    forward = bench.Forward.__new__(bench.Forward)  # without a library
    forward.op = Op
    sets = 3
    graph = bench.graph_of([
        forward.bind(Tensor(4, 8), Tensor(16, 8), Tensor(16, 8), Tensor(8, 16), Tensor(4, 8))
        for _ in range(sets)])
    assert len(set(graph.recorded)) == 6 * sets, graph.recorded  # five tensors and a workspace a call
    lost = graph.replay()
    assert not lost, f"a replay uses {len(lost)} of {len(graph.recorded)} addresses that nobody holds"
    del graph
    assert not mapped, f"{len(mapped)} tensors outlive the graph"


if __name__ == "__main__":
    main()
