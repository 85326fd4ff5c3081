"""CUDA graphs: a sequence of launches recorded once and replayed as one, without Python between the kernels.

    graph = graphs.capture(lambda stream: (add(a, b, c, stream=stream), scale(c, d, stream=stream)))
    graph.launch()                       # both kernels, in order

A launch from Python costs six to ten microseconds, one inside a graph about one. A graph holds the arguments that
were passed when it was captured: replaying reads their contents at that time, and writes to the same outputs. On a GPU
it holds addresses: the arrays must live as long as the graph. Those that `work` closes over do, and those that a
launcher allocates for itself if it hands them to `keep`.
On the CPU device a graph is the recorded list of launches; replaying runs them in order.

A kernel with the attribute uses_pdl waits inside for the one before it (ptx.griddepcontrol_wait). Where one follows
another kernel, the edge between them becomes a programmatic one: its blocks may start while the other ends.

Source  CUDA Driver API, "Graph Management": cuStreamBeginCapture, cuGraphInstantiate, cuGraphLaunch; CUDA C++
        Programming Guide, "Programmatic Dependent Launch and Synchronization": use in CUDA graphs
"""

from __future__ import annotations

from collections.abc import Callable

from labkit import cuda, device
from labkit.device import launches

_live_arrays: list | None = None  # kept alive by the graph that is being captured; None: none is
PROGRAMMATIC = 1  # the port of a kernel node that opens at griddepcontrol.launch_dependents, and the edge's type
overlapping = True  # whether kernels of graphs captured from now on may overlap: False to measure what that gains


def keep(array):
    """Returns `array`, which a launcher has allocated for itself. If a graph is being captured, it holds the array: its
    replays use that memory."""
    if _live_arrays is not None:
        _live_arrays.append(array)
    return array


def capture(work: Callable, *, warm_up: bool = True):
    """Record what `work(stream)` launches on that stream. Returns a graph with .launch(stream=0) and .nodes.

    work: launches kernels on the stream it is given, and on no other; no copies, no host arrays, no synchronize.
    warm_up: run `work` once before recording, so that every kernel is compiled and allowed its shared memory: a compile
    cannot be captured. Pass False where it has run already and a second run would change its inputs.
    Raises ValueError if nothing was launched on the stream, or something on another one; RuntimeError naming the CUDA
    error if the work cannot be captured.
    """
    if not callable(work):
        raise TypeError(f"work is a {type(work).__name__}; pass a function that takes a stream and launches on it")
    if warm_up:
        work(cuda.stream() if device.on_gpu() else 0)
        cuda.synchronize()
    graph = _GpuGraph(work) if device.on_gpu() else _RecordedGraph(work)
    if graph.nodes == 0:
        raise ValueError("work launched nothing on the stream it was given; pass stream=stream to every launcher")
    return graph


class _RecordedGraph:
    """The CPU device's graph: launches and their arguments, in order."""

    def __init__(self, work):
        recorder = _Recorder()
        work(recorder)
        self._launches = recorder.launches

    @property
    def nodes(self) -> int:
        return len(self._launches)

    def launch(self, stream=0) -> None:
        for launch, args in self._launches:
            launch.run(*args)

    def __repr__(self):
        return f"<graph of {self.nodes} launches, recorded on the CPU device>"


class _Recorder:
    """Stands for a stream: the CPU device hands it each launch instead of running it."""

    handle = 0

    def __init__(self):
        self.launches = []

    def record(self, launch, args) -> None:
        self.launches.append((launch, args))

    def synchronize(self) -> None:
        raise RuntimeError("a stream that is being captured cannot be synchronized: nothing has run on it yet")


class _GpuGraph:
    """A CUDA graph, captured from a stream of its own, instantiated once."""

    def __init__(self, work):
        global _live_arrays
        from cuda.bindings import driver

        self._driver = driver
        self._stream = cuda.stream()
        handle = int(self._stream.handle)
        self._call(driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        outer, _live_arrays = _live_arrays, []
        try:
            self._work = work  # its closure holds the arrays, whose memory the graph uses
            self._arrays = _live_arrays
            with launches.kernels_launched() as launched:
                work(self._stream)
        except BaseException as error:
            driver.cuStreamEndCapture(handle)  # the stream must not stay in capture; what it recorded is dropped
            if "STREAM_CAPTURE" in str(error):
                raise ValueError("work launched on another stream than the one it was given, or waited for the device; "
                                 "pass stream=stream to every launcher, and copy before or after") from error
            raise
        finally:
            _live_arrays = outer
        self._graph = self._call(driver.cuStreamEndCapture(handle))
        _, self.nodes = self._call(driver.cuGraphGetNodes(self._graph, 0))
        self.early = 0  # nodes that may begin before the node before them has ended
        if overlapping and any(getattr(kernel, "uses_pdl", False) for kernel in launched):
            self._overlap(launched)
        self._executable = self._call(driver.cuGraphInstantiate(self._graph, 0)) if self.nodes else None

    def _overlap(self, launched: list) -> None:
        """Puts programmatic edges before the kernels that begin early. They are found by their order, in a graph that
        is one chain; any other graph, and one of a driver or bindings that know no such edges, stays as it is."""
        driver = self._driver
        if not hasattr(driver, "CUgraphEdgeData"):
            return
        get, remove, add = (getattr(driver, f"{name}_v2", None) or getattr(driver, name) for name in (
            "cuGraphGetEdges", "cuGraphRemoveDependencies", "cuGraphAddDependencies"))
        *_, count = self._call(get(self._graph, 0))
        if count != self.nodes - 1:
            return
        begins, ends, data, _ = self._call(get(self._graph, count))
        chain = chain_of([int(node) for node in begins], [int(node) for node in ends])
        if chain is None or len(chain) != self.nodes:
            return
        kernel_type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        kinds = {int(node): self._call(driver.cuGraphNodeGetType(node)) for node in (*begins, *ends)}
        kernels = [node for node in chain if kinds[node] == kernel_type]
        if len(kernels) != len(launched):
            return
        early = {node for node, kernel in zip(kernels, launched, strict=True)
                 if getattr(kernel, "uses_pdl", False)}
        changed = [index for index, (begin, end) in enumerate(zip(begins, ends, strict=True))
                   if int(end) in early and kinds[int(begin)] == kernel_type]
        begins, ends, data = ([items[index] for index in changed] for items in (begins, ends, data))
        programmatic = [driver.CUgraphEdgeData() for _ in changed]
        for edge in programmatic:
            edge.from_port = edge.type = PROGRAMMATIC
        self._call(remove(self._graph, begins, ends, data, len(changed)))
        error, = add(self._graph, begins, ends, programmatic, len(changed))
        if int(error) != 0:  # restore the edges: all later blocks wait for all earlier ones
            self._call(add(self._graph, begins, ends, data, len(changed)))
            return
        self.early = len(changed)
        carveouts = [kernel.carveout for kernel in launched if getattr(kernel, "carveout", None) is not None]
        if carveouts and hasattr(driver, "CUkernelNodeAttrValue"):
            for node in {int(node): node for node in (*begins, *ends)}.values():
                self._carve(node, min(carveouts))

    def _carve(self, node, percent: int) -> None:
        """An SM changes its split between shared memory and L1 only while it is idle, and an early kernel begins on SMs
        that are busy: it would have to use the split of the kernel before it. So all that overlap request the carveout
        of the one that needs most L1. It is a hint: kernels that need more shared memory get it."""
        driver = self._driver
        value = driver.CUkernelNodeAttrValue()
        value.sharedMemCarveout = percent
        driver.cuGraphKernelNodeSetAttribute(
            node, driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, value)

    @staticmethod
    def _call(result):
        error, *values = result
        if int(error) != 0:
            raise RuntimeError(f"the work could not be captured in a CUDA graph: {error.name}. Every launch must be on "
                               f"the stream that `work` is given, and every kernel compiled before")
        return values[0] if len(values) == 1 else values

    def launch(self, stream=0) -> None:
        """Enqueue the whole graph on `stream`; returns at once."""
        handle = stream if isinstance(stream, int) else int(stream.handle)
        self._call(self._driver.cuGraphLaunch(self._executable, handle))

    def __repr__(self):
        return f"<CUDA graph of {self.nodes} nodes>"

    def __del__(self):
        if getattr(self, "_executable", None) is not None:
            self._driver.cuGraphExecDestroy(self._executable)
            self._driver.cuGraphDestroy(self._graph)


def chain_of(begins: list[int], ends: list[int]) -> list[int] | None:
    """The nodes of a graph with these edges, if it is one chain, in its order; else None."""
    successor = dict(zip(begins, ends, strict=True))
    heads = set(begins) - set(ends)
    if len(successor) != len(begins) or len(set(ends)) != len(ends) or len(heads) != 1:
        return None
    chain = [heads.pop()]
    while chain[-1] in successor:
        chain.append(successor[chain[-1]])
    return chain if len(chain) == len(begins) + 1 else None
