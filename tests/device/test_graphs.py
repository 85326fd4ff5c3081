"""Graphs: what was recorded is replayed, in order, on whatever the arrays hold then."""

import contextlib
import gc
import sys
import types
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from numba import float32

from labkit import cuda
from labkit.device import graphs


@cuda.jit
def scale(values, factor):
    i = cuda.grid(1)
    if i < values.size:
        values[i] *= factor


@cuda.jit
def shift(values, by):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += by


def work_on(values):
    def work(stream):
        scale[1, 64, stream](values, float32(2.0))
        shift[1, 64, stream](values, float32(1.0))

    return work


def test_a_graph_replays_its_launches_in_order():
    values = cuda.to_device(np.arange(50, dtype=np.float32))
    graph = graphs.capture(work_on(values))  # the warm-up runs once, recording does not
    assert graph.nodes == 2
    cuda.synchronize()
    np.testing.assert_array_equal(values.copy_to_host(), np.arange(50) * 2 + 1)
    graph.launch()
    graph.launch()
    cuda.synchronize()
    np.testing.assert_array_equal(values.copy_to_host(), (((np.arange(50) * 2 + 1) * 2 + 1) * 2) + 1)


def test_a_graph_reads_what_its_arrays_hold_when_it_is_launched():
    values = cuda.to_device(np.zeros(50, np.float32))
    graph = graphs.capture(work_on(values))
    values.copy_to_device(np.full(50, 3.0, np.float32))
    stream = cuda.stream()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(values.copy_to_host(), np.full(50, 7.0))


def test_without_warm_up_nothing_runs_before_the_launch():
    values = cuda.to_device(np.ones(50, np.float32))
    work_on(values)(0)  # compiles
    cuda.synchronize()
    graph = graphs.capture(work_on(values), warm_up=False)
    np.testing.assert_array_equal(values.copy_to_host(), np.full(50, 3.0))
    assert "2" in repr(graph)


def test_a_graph_keeps_its_arrays():
    graph = graphs.capture(work_on(cuda.to_device(np.ones(50, np.float32))))
    graph.launch()
    cuda.synchronize()


def test_what_a_launcher_allocates_lives_as_long_as_the_graph():
    """Memory of that kind would otherwise be given to the next array, and a replay would write into it."""
    out = cuda.to_device(np.zeros(50, np.float32))

    def work(stream):
        own = graphs.keep(cuda.device_array(50, np.float32))
        shift[1, 64, stream](own, float32(1.0))
        shift[1, 64, stream](out, float32(1.0))

    graph = graphs.capture(work)
    others = [cuda.to_device(np.full(50, 7.0, np.float32)) for _ in range(50)]
    graph.launch()
    cuda.synchronize()
    assert all((other.copy_to_host() == 7.0).all() for other in others)
    np.testing.assert_array_equal(out.copy_to_host(), np.full(50, 2.0))


def test_keep_outside_a_capture_returns_its_array():
    array = cuda.device_array(3, np.float32)
    assert graphs.keep(array) is array


def test_work_that_ignores_its_stream_is_refused():
    values = cuda.to_device(np.ones(50, np.float32))
    with pytest.raises(ValueError, match="the one it was given|the stream it was given"):
        graphs.capture(lambda stream: scale[1, 64](values, float32(2.0)))


def test_an_error_in_the_work_leaves_nothing_in_capture():
    values = cuda.to_device(np.ones(50, np.float32))

    def broken(stream):
        scale[1, 64, stream](values, float32(2.0))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        graphs.capture(broken, warm_up=False)
    graphs.capture(work_on(values)).launch()
    cuda.synchronize()


def test_work_must_be_a_function():
    with pytest.raises(TypeError, match="work is a int"):
        graphs.capture(3)


# --- A GPU's graph, with a driver that only counts -------------------------------------------------------------------


class CountingDriver:
    """The calls of cuda.bindings.driver that a graph makes, each answered with success."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append(name)
            return (0, None, 2) if name == "cuGraphGetNodes" else (0, name)

        return call


@pytest.fixture
def driver(monkeypatch):
    counting, package, bindings = CountingDriver(), types.ModuleType("cuda"), types.ModuleType("cuda.bindings")
    bindings.driver = counting
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(graphs, "cuda", SimpleNamespace(stream=lambda: SimpleNamespace(handle=7),
                                                        synchronize=lambda: None))
    monkeypatch.setattr(graphs, "device", SimpleNamespace(on_gpu=lambda: True))
    return counting


class Array:
    """Something that can be watched: is it still alive?"""


@pytest.mark.sweep
def test_a_gpus_graph_holds_what_was_kept_while_it_was_captured_and_nothing_else(driver):
    own, before = [], Array()
    graphs.keep(before)

    def work(stream):
        own.append(weakref.ref(graphs.keep(Array())))

    graph = graphs.capture(work)
    gc.collect()
    warmed_up, captured = own
    assert warmed_up() is None and captured() is not None
    before = weakref.ref(graphs.keep(before))
    gc.collect()
    assert before() is None  # the capture has ended: nothing is kept any more
    del graph
    gc.collect()
    assert captured() is None
    assert driver.calls == ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphGetNodes", "cuGraphInstantiate",
                            "cuGraphExecDestroy", "cuGraphDestroy"]


@pytest.mark.parametrize(("message", "kind"),
                         [("mine", KeyError), ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", ValueError)])
def test_an_error_in_the_work_ends_a_gpus_capture(driver, message, kind):
    def broken(stream):
        raise KeyError(message)

    with pytest.raises(kind):
        graphs.capture(broken, warm_up=False)
    assert driver.calls == ["cuStreamBeginCapture", "cuStreamEndCapture"]
    assert graphs._live_arrays is None


# --- Kernels that begin early ----------------------------------------------------------------------------------------


class Chain(CountingDriver):
    """A driver whose graph has these nodes, "kernel" or "copy", one after the other: numbered 10, 20, ..."""

    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_KERNEL="kernel")
    CUgraphEdgeData = CUkernelNodeAttrValue = SimpleNamespace
    CUlaunchAttributeID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT="carveout")

    def __init__(self, kinds, refuses=()):
        super().__init__()
        self.kinds = {10 * (number + 1): kind for number, kind in enumerate(kinds)}
        nodes = list(self.kinds)
        self.edges = dict.fromkeys(zip(nodes, nodes[1:], strict=False), "full")
        self.refuses, self.carved = refuses, set()

    def __getattr__(self, name):
        if name.endswith("_v2"):
            raise AttributeError(name)
        return super().__getattr__(name)

    def cuGraphGetNodes(self, graph, count):
        return 0, None, len(self.kinds)

    def cuGraphGetEdges(self, graph, count):
        edges = list(reversed(self.edges.items()))[:count]
        return 0, [edge[0] for edge, _ in edges], [edge[1] for edge, _ in edges], [kind for _, kind in edges], len(
            self.edges)

    def cuGraphNodeGetType(self, node):
        return 0, self.kinds[node]

    def cuGraphKernelNodeSetAttribute(self, node, attribute, value):
        assert attribute == "carveout" and value.sharedMemCarveout == 50
        self.carved.add(node)
        return (0,)

    def cuGraphRemoveDependencies(self, graph, begins, ends, data, count):
        for edge in zip(begins, ends, strict=True):
            del self.edges[edge]
        return (0,)

    def cuGraphAddDependencies(self, graph, begins, ends, data, count):
        kinds = ["full" if one == "full" else "programmatic" for one in data]
        if set(kinds) & set(self.refuses):
            return (1,)
        assert all(one == "full" or (one.from_port, one.type) == (1, 1) for one in data)
        self.edges |= dict(zip(zip(begins, ends, strict=True), kinds, strict=True))
        return (0,)


def edges_after(monkeypatch, kinds, early, **options):
    """The kinds of a graph's edges, in order, and how many nodes it says begin early. early: of each kernel."""
    chain = Chain(kinds, **options)
    kernels = [SimpleNamespace(uses_pdl=one, carveout=50 if one else None) for one in early]

    @contextlib.contextmanager
    def launched():
        yield kernels

    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = chain
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(graphs, "launches", SimpleNamespace(kernels_launched=launched))
    monkeypatch.setattr(graphs, "cuda", SimpleNamespace(stream=lambda: SimpleNamespace(handle=7)))
    graph = graphs._GpuGraph(lambda stream: None)
    overlapping = {node for edge, kind in chain.edges.items() if kind == "programmatic" for node in edge}
    assert chain.carved == overlapping
    return [chain.edges[edge] for edge in sorted(chain.edges)], graph.early


def test_kernels_that_wait_inside_begin_before_the_one_before_them_ends(monkeypatch):
    assert edges_after(monkeypatch, ["kernel"] * 4, [True, False, True, True]) == (
        ["full", "programmatic", "programmatic"], 2)
    # What a copy writes is there before the kernel after it begins.
    assert edges_after(monkeypatch, ["kernel", "copy", "kernel", "kernel"], [True, True, True]) == (
        ["full", "full", "programmatic"], 1)


@pytest.mark.parametrize(("kinds", "early", "options"), [
    (["kernel"] * 3, [False] * 3, {}), (["kernel"] * 3, [True] * 2, {}), (["kernel"], [True], {}),
    (["kernel"] * 3, [True] * 3, {"refuses": ("programmatic",)})],
    ids=["none waits", "one was launched otherwise", "one node", "an old driver"])
def test_all_other_graphs_stay_as_they_are(monkeypatch, kinds, early, options):
    edges, count = edges_after(monkeypatch, kinds, early, **options)
    assert set(edges) <= {"full"} and len(edges) == len(kinds) - 1 and count == 0


def test_a_chain_is_found_by_its_edges():
    assert graphs.chain_of([5, 1, 3], [7, 3, 5]) == [1, 3, 5, 7]
    assert graphs.chain_of([1, 1], [2, 3]) is None and graphs.chain_of([1, 2], [3, 3]) is None
    assert graphs.chain_of([1, 3], [2, 4]) is None and graphs.chain_of([1, 2], [2, 1]) is None
    assert graphs.chain_of([1, 2, 4], [2, 3, 4]) is None
