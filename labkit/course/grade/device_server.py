"""The device on which a student's function runs its launches: the grader's own, where check observes them.

The function's process asks for memory, copies, launches, graphs and products (device_proxy.py). Memory lies here; a
kernel runs from its vetted source in a process of its own; so which launches were made, and what they computed, is what
happened, and not what the function's process says.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re

import numpy as np

from labkit import cuda
from labkit.course.grade import wire
from labkit.course.grade.answers import Program, Refused
from labkit.course.grade.remote import ProcessEnded, RemoteKernel, RemoteTiles
from labkit.device import graphs
from labkit.kernels.libraries import blas
from labkit.kernels.libraries import column_major as model
from labkit.kernels.libraries import cutile_model as tiles
from labkit.simt.allocation import poisoned
from labkit.simt.arrays import DeviceNDArray, on_device
from labkit.simt.launch import ConfiguredKernel, dimensions
from labkit.simt.streams import Stream

MAX_MEMORY = 128 << 20  # bytes of all arrays of a function
MAX_GRAPHS = 1_000
PRODUCTS = ("gemm_column_major", "gemm_strided_batched")
LIBRARY = re.compile(r"labkit\.kernels(\.[a-z][a-z0-9_]*)+")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class DeviceServer:
    """Answers what one function's process asks of the device.

    open_kernel(kind, program) gives the RemoteKernel or RemoteTiles of a kernel or tile program, in its own process.
    """

    def __init__(self, program: Program, open_kernel):
        self.program, self.open_kernel = program, open_kernel
        self.memory: dict[int, np.ndarray] = {}  # buffer -> its bytes
        self.buffer_ids = itertools.count()
        self.graphs: list = []
        self.kernels: dict[str, object] = {}
        self.recorder = None
        self.connection = None  # of the function's process
        self.fault: Exception | None = None  # the last error of the device
        self.refused = ""  # why something cannot be graded
        self._replies = {
            "allocate": self._allocate, "copy to host": self._copy_to_host, "copy to device": self._copy_to_device,
            "copy": self._copy, "upload": self._upload, "get": self._get, "set": self._set, "launch": self._launch,
            "capture": self._capture, "replay": self._replay, "product": self._product, "tile": self._tile,
            "wait": self._wait, "wait for all": self._wait_for_all}

    def reply(self, head: dict, values: dict) -> tuple[dict, dict]:
        """Serve a request. Return the reply's head and values; an error is kept, and named in the reply."""
        try:
            for buffer in head["freed"]:
                self.memory.pop(buffer, None)
            return self._replies[head["ask"]](head, values)
        except wire.WireError:
            raise
        except Refused as error:
            self.refused, self.fault = str(error), error
        except Exception as error:  # of the student's launch; or what was asked makes no sense
            self.fault = error
        return {"fault": type(self.fault).__name__}, {}

    # Memory

    def describe(self, array: DeviceNDArray) -> dict:
        """An argument of the function, as it is described to its process."""
        memory = array._array
        if not (memory.flags.c_contiguous or memory.flags.f_contiguous):
            raise ValueError("an exercise passes a device array with gaps to a function; the grader takes none")
        flat = memory if memory.flags.c_contiguous else memory.T
        return {"buffer": self._keep(np.ndarray(memory.nbytes, np.uint8, flat)), "shape": list(memory.shape),
                "strides": list(memory.strides), "dtype": memory.dtype.str}

    def array(self, described) -> DeviceNDArray:
        """The array of the device that the function returns."""
        try:
            return self._view(described)
        except (KeyError, TypeError, ValueError):
            raise ProcessEnded("it returned an array that there is not") from None

    def _keep(self, data: np.ndarray) -> int:
        buffer = next(self.buffer_ids)
        self.memory[buffer] = data
        return buffer

    def _allocate(self, head, values):
        shape, dtype = _integers(head["shape"]), wire.DTYPES[head["dtype"]]
        strides = _integers(head["strides"])
        if len(shape) != len(strides) or min((*shape, *strides), default=0) < 0:
            raise ValueError("no array")
        nbytes = dtype.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if 0 in shape:
            nbytes = 0
        if nbytes + sum(data.nbytes for data in self.memory.values()) > MAX_MEMORY:
            raise MemoryError(f"a function may have {MAX_MEMORY >> 20} MiB in arrays on the grader's device")
        return {"buffer": self._keep(poisoned(nbytes, np.uint8))}, {}

    def _view(self, described) -> DeviceNDArray:
        """The part of a buffer that is described; ValueError where it is none."""
        data, dtype = self.memory[described["buffer"]], wire.DTYPES[described["dtype"]]
        shape, strides = _integers(described["shape"]), _integers(described["strides"])
        offset, = _integers([described["offset"]])
        if len(shape) != len(strides) or any(n < 0 for n in shape):
            raise ValueError("no array")
        if math.prod(shape) == 0:
            return on_device(np.empty(shape, dtype))
        reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
        start = offset + sum(min(0, each) for each in reach)
        end = offset + sum(max(0, each) for each in reach) + dtype.itemsize
        if start < 0 or end > data.nbytes:
            raise ValueError("a part of no array")
        return on_device(np.ndarray(shape, dtype, data, offset, strides))

    # Copies

    def _copy_to_host(self, head, values):
        return {}, {"array": self._view(head["source"]).copy_to_host(None, int(head["stream"]))}

    def _copy_to_device(self, head, values):
        self._view(head["target"]).copy_to_device(values["array"], int(head["stream"]))
        return {}, {}

    def _copy(self, head, values):
        self._view(head["target"]).copy_to_device(self._view(head["source"]), int(head["stream"]))
        return {}, {}

    def _upload(self, head, values):
        self._view(head["target"])._array[...] = values["array"]
        return {}, {}

    def _get(self, head, values):
        return {}, {"array": self._view(head["source"])._array.copy()}

    def _set(self, head, values):
        source = self._view(head["source"])._array if "source" in head else values["array"]
        self._view(head["target"])._array[...] = source
        return {}, {}

    # Launches

    def _launch(self, head, values):
        kernel = self._kernel(head["kernel"])
        grid, block = (dimensions(kernel, name, _integers(head[name])) for name in ("grid", "block"))
        arguments = self._arguments(head["arguments"], values)
        stream = self.recorder if head["recorded"] else int(head["stream"])
        if stream is None:
            raise ValueError("nothing is being captured")
        ConfiguredKernel(kernel, grid, block, stream, int(head["shared"]))(*arguments)
        return {}, {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def _arguments(self, described, values: dict):
        return tuple(self._view(entry) if isinstance(entry, dict) else
                     self._arguments(entry, values) if isinstance(entry, list) else values[entry]
                     for entry in described)

    def _kernel(self, request: dict):
        """The kernel that is named, of the answer or of the library."""
        key = repr(request)
        if key not in self.kernels:
            name = request["name"]
            if not NAME.fullmatch(name):
                raise ValueError("no name")
            if "module" in request:
                self.kernels[key] = self.open_kernel("library", Program("kernel", "", _library_source(request)))
            else:
                self.kernels[key] = self.open_kernel("kernel", Program(name, self.program.above, self.program.answer))
        return self.kernels[key]

    def _tile(self, head, values):
        key = f"tile {head['name']}"
        if key not in self.kernels:
            self.kernels[key] = self.open_kernel(
                "tiles", Program(head["name"], self.program.above, self.program.answer))
        tiles.launch(None, _integers(head["grid"]), self.kernels[key], self._arguments(head["arguments"], values))
        return {}, {}

    def _capture(self, head, values):
        if self.recorder is not None or len(self.graphs) >= MAX_GRAPHS:
            raise ValueError("a graph is being captured, or there are too many")
        graph = graphs._RecordedGraph(self._recorded)
        self.graphs.append(graph)
        return {"graph": len(self.graphs) - 1, "nodes": graph.nodes}, {}

    def _recorded(self, recorder) -> None:
        """Answer requests until the capture has ended; the reply to that is the graph."""
        self.recorder = recorder
        try:
            self.connection.answer_until({}, {}, "captured")
        finally:
            self.recorder = None

    def _replay(self, head, values):
        self.graphs[_integers([head["graph"]])[0]].launch(int(head["stream"]))
        return {}, {}

    def _product(self, head, values):
        if head["name"] not in PRODUCTS:
            raise ValueError("no product")

        def memory(entry):
            return blas.At(self._view(entry["array"]), _integers([entry["offset"]])[0])

        inputs = tuple((memory(entry), *numbers)
                       for entry, numbers in zip(head["inputs"], values["numbers"], strict=True))
        blas._on_host(getattr(model, head["name"]), values["before"], inputs, values["beta"],
                      (memory(head["output"]), *values["rest"]), **head["options"])
        return {}, {}

    def _wait(self, head, values):
        Stream(int(head["stream"])).synchronize()
        return {}, {}

    def _wait_for_all(self, head, values):
        cuda.synchronize()
        return {}, {}


def _integers(values) -> tuple[int, ...]:
    if not isinstance(values, list) or len(values) > 16 or not all(
            type(each) is int and abs(each) < 1 << 40 for each in values):
        raise ValueError("no whole numbers")
    return tuple(values)


def _library_source(request: dict) -> str:
    """The line that makes a kernel of the library: an import, and a call of its factory with plain values."""
    if not LIBRARY.fullmatch(request["module"]):
        raise ValueError("no module of the library")
    text = f"from {request['module']} import {request['name']} as kernel\n"
    if "arguments" not in request:
        return text
    arguments = [*request["arguments"], *request["keywords"].values()]
    if not request["name"].startswith("make_") or not all(map(NAME.fullmatch, request["keywords"])) or not all(
            value is None or isinstance(value, bool | int | float | str) for value in arguments):
        raise Refused(f"what `{request['name']}` makes of these arguments cannot be launched on the grader's device")
    call = ", ".join([*map(repr, request["arguments"]), *(f"{k}={v!r}" for k, v in request["keywords"].items())])
    return f"{text}kernel = kernel({call})\nkernel = kernel[{int(request['number'])}] if isinstance(kernel, tuple) " \
           "else kernel\nkernel = kernel.build()\n"


# --- Kernels elsewhere, on the memory here --------------------------------------------------------------------------


@contextlib.contextmanager
def launched_elsewhere():
    """Within the block, a RemoteKernel that is launched on arrays of this device runs in its own process."""
    run, tile = ConfiguredKernel.run, tiles.launch

    def run_remotely(configured, *arguments):
        if isinstance(configured.kernel, RemoteKernel):
            configured.kernel.run_on((configured.grid, configured.block, 0, configured.sharedmem), arguments)
        else:
            run(configured, *arguments)

    def launch_tiles_remotely(stream, grid, program, arguments):
        if isinstance(program, RemoteTiles):
            program.run_on(tuple(grid), arguments)
        else:
            tile(stream, grid, program, arguments)

    ConfiguredKernel.run, tiles.launch = run_remotely, launch_tiles_remotely
    try:
        yield
    finally:
        ConfiguredKernel.run, tiles.launch = run, tile
