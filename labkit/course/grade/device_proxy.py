"""The CPU device as the process of a student's function sees it: every allocation, copy, launch, graph and call of a
library is asked of the grader, on whose device the work is done and observed.

Here arrays have shapes and no contents: their memory is only there so that slices and views can be described as bytes
of a buffer. Nothing that the student's code does to this module reaches the grader's device by another way.
"""

from __future__ import annotations

import bisect
import contextlib
import sys
import weakref

import numpy as np

from labkit.course.grade import wire

NOT_OBSERVED = ("mapped_array", "mapped_array_like", "managed_array", "mapped", "from_cuda_array_interface")


class DeviceFault(Exception):
    """What was asked for raised an error on the grader's device, which keeps it."""


class NotGraded(Exception):
    """The grader cannot observe this. The message says what, and what to write instead."""


class Proxy:
    """The connection to the grader's device, and which memory here stands for which buffer there."""

    def __init__(self, rpc, namespace: dict):
        self.rpc, self.namespace = rpc, namespace
        self.starts: list[int] = []  # addresses, sorted
        self.buffers: dict[int, tuple[int, int]] = {}  # address -> (end, buffer)
        self.freed: list[int] = []
        self.lazy: dict[int, tuple] = {}  # id of a built kernel -> (kernel, what made it)
        self.capturing = False

    def ask(self, what: str, values: dict | None = None, **head) -> tuple[dict, dict]:
        freed, self.freed = self.freed, []
        wire.send(self.rpc, {"ask": what, "freed": freed, **head}, values)
        reply, changed = wire.receive(self.rpc)
        if "fault" in reply:
            raise DeviceFault(reply["fault"])
        return reply, changed

    # Arrays

    def remember(self, array: np.ndarray, buffer: int) -> None:
        root = _root(array)
        address, size = root.__array_interface__["data"][0], root.nbytes
        bisect.insort(self.starts, address)
        self.buffers[address] = (address + size, buffer, array.__array_interface__["data"][0])
        weakref.finalize(root, self._forget, address, buffer).atexit = False

    def _forget(self, address: int, buffer: int) -> None:
        self.starts.remove(address)
        del self.buffers[address]
        self.freed.append(buffer)

    def known(self, array: np.ndarray):
        """(buffer, offset in it) of an array of the device; None for memory that is new."""
        address = array.__array_interface__["data"][0]
        index = bisect.bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        end, buffer, begin = self.buffers[self.starts[index]]
        return (buffer, address - begin) if address <= end else None

    def handle(self, device_array) -> dict:
        array = device_array._array
        buffer, offset = self.known(array)
        return {"buffer": buffer, "offset": offset, "shape": list(array.shape), "strides": list(array.strides),
                "dtype": array.dtype.str}

    def as_argument(self, described):
        """The device array that the grader passes as an argument."""
        from labkit.simt.allocation import poisoned
        from labkit.simt.arrays import on_device

        array = poisoned(tuple(described["shape"]), np.dtype(described["dtype"]), tuple(described["strides"]))
        self.remember(array, described["buffer"])
        return on_device(array)

    # Kernels

    def kernel(self, kernel) -> dict:
        """How the grader finds the kernel: by its name in the answer's cells, or by what makes it in the library."""
        for name, value in self.namespace.items():
            if value is kernel and kernel.__module__ == "__main__":
                return {"name": name}
        if id(kernel) in self.lazy:
            lazy = self.lazy[id(kernel)][1]
            make = lazy._make.__wrapped__
            return {"module": make.func.__module__, "name": make.func.__name__, "arguments": list(make.args),
                    "keywords": make.keywords, "number": lazy._number}
        module = sys.modules.get(kernel.__module__)
        if getattr(module, kernel.__name__, None) is kernel and kernel.__module__.startswith("labkit.kernels."):
            return {"module": kernel.__module__, "name": kernel.__name__}
        raise NotGraded(f"the kernel `{kernel.__name__}` is made inside a function: define it at the top of a cell, "
                        "so that the grader can read it")

    def arguments(self, args) -> tuple[list, dict]:
        """(description, values) of the arguments of a launch."""
        from labkit.simt.arrays import DeviceNDArray

        values: dict = {}

        def describe(value):
            if isinstance(value, DeviceNDArray):
                return self.handle(value)
            if isinstance(value, tuple):
                return [describe(each) for each in value]
            values[str(len(values))] = value
            return str(len(values) - 1)

        described = [describe(value) for value in args]
        try:
            wire.encode({}, values)
        except TypeError as error:
            raise NotGraded(f"an argument of a launch cannot be sent to the grader's device: {error}") from None
        return described, values


def _root(array: np.ndarray) -> np.ndarray:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def install(rpc, namespace: dict) -> Proxy:
    """Put the grader's device in the place of this process's own."""
    from labkit import cuda
    from labkit.device import graphs, lazy
    from labkit.kernels.libraries import blas
    from labkit.kernels.libraries import cutile_model as tiles
    from labkit.simt import arrays, streams
    from labkit.simt.arguments import ArgHint
    from labkit.simt.arrays import DeviceNDArray
    from labkit.simt.launch import ConfiguredKernel, check_count

    proxy = Proxy(rpc, namespace)
    original_hold = DeviceNDArray._hold

    def hold(self, array, stream):
        if proxy.known(array) is None:
            if array.dtype.str not in wire.DTYPES:
                raise NotGraded(f"arrays of {array.dtype} are not observed")
            reply, _ = proxy.ask("allocate", shape=list(array.shape), strides=list(array.strides),
                                 dtype=array.dtype.str)
            proxy.remember(array, reply["buffer"])
        original_hold(self, array, stream)

    def copy_to_host(self, ary=None, stream=0):
        if any(stride < 0 for stride in self.strides):
            raise NotImplementedError(f"D->H copy not implemented for negative strides: {self.strides}")
        if ary is None:
            ary = np.ndarray(self.shape, self.dtype, np.empty(self.alloc_size, np.uint8), strides=self.strides)
        elif not isinstance(ary, np.ndarray):
            raise TypeError(f"copy_to_host: ary must be a NumPy array, not {type(ary).__name__}")
        else:
            arrays._check_same_layout(self._array, ary)
        _, values = proxy.ask("copy to host", source=proxy.handle(self), stream=_stream_handle(stream))
        ary[...] = values["array"].reshape(ary.shape)
        return ary

    def copy_to_device(self, ary, stream=0):
        if not hasattr(ary, "dtype"):
            raise TypeError(f"copy_to_device: ary must be an array, not {type(ary).__name__}; use np.array(ary, dtype)")
        if ary.size == 0:
            return
        if isinstance(ary, DeviceNDArray):
            proxy.ask("copy", target=proxy.handle(self), source=proxy.handle(ary), stream=_stream_handle(stream))
            return
        arrays._check_contiguous(self._array)
        host = np.asarray(ary, order="C" if self._array.flags.c_contiguous else "F")
        arrays._check_same_layout(self._array, host)
        proxy.ask("copy to device", {"array": host}, target=proxy.handle(self), stream=_stream_handle(stream))

    def to_device(obj, stream=0, copy=True, to=None):
        if to is not None:
            if copy:
                to.copy_to_device(obj, stream)
            return to
        if isinstance(obj, DeviceNDArray):
            return obj
        host = np.asarray(obj)
        arrays._check_contiguous(host)
        order = "C" if host.flags.c_contiguous else "F"
        device_array = arrays.on_device(arrays.poisoned(host.shape, host.dtype, order=order), stream)
        if copy and host.size:
            proxy.ask("upload", {"array": host}, target=proxy.handle(device_array))
        return device_array

    def get_item(self, item):
        part = self._array[(*arrays._basic_index(item), ...)]
        view = arrays.on_device(part, self.stream)
        return view if part.ndim else proxy.ask("get", source=proxy.handle(view))[1]["array"][()]

    def set_item(self, item, value, stream=0):
        target = arrays.on_device(self._array[(*arrays._basic_index(item), ...)])
        if isinstance(value, DeviceNDArray):
            proxy.ask("set", target=proxy.handle(target), source=proxy.handle(value))
            return
        value = np.asarray(value)
        if value.ndim > target.ndim:
            raise ValueError(f"Can't assign {value.ndim}-D array to {target.ndim}-D self")
        proxy.ask("set", {"array": np.broadcast_to(value.astype(target.dtype), target.shape).copy()},
                  target=proxy.handle(target))

    def transpose(self, axes=None):
        raise NotGraded("a transposed copy of a device array is not observed: pass the array as it is")

    def launch(configured, args, recorded: bool):
        described, values = proxy.arguments(args)
        _, changed = proxy.ask("launch", values, kernel=proxy.kernel(configured.kernel), arguments=described,
                               grid=list(configured.grid), block=list(configured.block),
                               shared=configured.sharedmem, stream=_stream_handle(configured.stream), recorded=recorded)
        for index, array in changed.items():
            values[index][...] = array

    def run(configured, *args):
        check_count(configured.kernel, args)
        copies_back: list = []
        launch(configured, [a.to_device(copies_back, configured.stream) if isinstance(a, ArgHint) else a
                            for a in args], False)
        for copy_back in copies_back:
            copy_back()

    def record(self, configured, args):
        if not proxy.capturing:
            raise NotGraded("a launch on the stream of a graph whose capture has ended")
        check_count(configured.kernel, args)
        launch(configured, args, True)

    def capture(self, work):
        proxy.ask("capture")
        proxy.capturing = True
        try:
            work(graphs._Recorder())
        finally:
            proxy.capturing = False
            reply, _ = proxy.ask("captured")
        self._launches = [None] * reply["nodes"]
        self._number = reply["graph"]

    def replay(self, stream=0):
        proxy.ask("replay", graph=self._number, stream=_stream_handle(stream))

    def product(call, leading, inputs, beta, output, **options):
        def memory(operand):
            array, offset = (operand.array, operand.offset) if isinstance(operand, blas.At) else (operand, 0)
            if isinstance(array, np.ndarray):
                raise TypeError("the array is on the host; cuda.to_device(...) copies it to the device")
            return {"array": proxy.handle(array), "offset": offset}

        proxy.ask("product", {"before": tuple(leading), "beta": beta,
                              "numbers": tuple(tuple(numbers) for _, *numbers in inputs), "rest": tuple(output[1:])},
                  name=call.__name__, inputs=[memory(operand) for operand, *_ in inputs], output=memory(output[0]),
                  options=options)

    def tile_launch(stream, grid, function, args):
        names = [name for name, value in namespace.items() if value is function]
        if not names:
            raise NotGraded("the tile program is made inside a function: define it at the top of a cell, so that the "
                            "grader can read it")
        described, values = proxy.arguments(args)
        proxy.ask("tile", values, name=names[0], arguments=described, grid=[int(extent) for extent in grid])

    def build(self):
        kernel = original_build(self)
        proxy.lazy[id(kernel)] = kernel, self
        return kernel

    def wait_for_stream(self):
        proxy.ask("wait", stream=self.handle)

    def wait():
        proxy.ask("wait for all")

    original_build = lazy.LazyKernel.build
    _replace_everywhere(arrays.to_device, to_device)
    _replace_everywhere(streams.synchronize, wait)
    _replace_everywhere(cuda.synchronize, wait)
    for name in NOT_OBSERVED:
        _replace_everywhere(getattr(arrays, name), _refuse(name))
    for owner, name, function in (
            (DeviceNDArray, "_hold", hold), (DeviceNDArray, "copy_to_host", copy_to_host),
            (DeviceNDArray, "copy_to_device", copy_to_device), (DeviceNDArray, "__getitem__", get_item),
            (DeviceNDArray, "__setitem__", set_item), (DeviceNDArray, "setitem", set_item),
            (DeviceNDArray, "transpose", transpose),
            (ConfiguredKernel, "run", run), (graphs._Recorder, "record", record),
            (graphs._RecordedGraph, "__init__", capture), (graphs._RecordedGraph, "launch", replay),
            (blas, "_on_host", product), (tiles, "launch", tile_launch), (lazy.LazyKernel, "build", build),
            (streams.Stream, "synchronize", wait_for_stream)):
        setattr(owner, name, function)
    return proxy


def _stream_handle(stream) -> int:
    return int(getattr(stream, "handle", stream) or 0)


def _refuse(name: str):
    def refuse(*arguments, **keywords):
        raise NotGraded(f"the grader does not observe cuda.{name}: use cuda.to_device and cuda.device_array")

    return refuse


def _replace_everywhere(original, replacement) -> None:
    """Replace a function wherever labkit has imported it."""
    for name, module in list(sys.modules.items()):
        if name == "labkit" or name.startswith("labkit."):
            with contextlib.suppress(AttributeError, TypeError):
                for key in [key for key, value in vars(module).items() if value is original]:
                    setattr(module, key, replacement)
