"""Launches on a GPU in a few microseconds instead of some tens, by less work in Python.

numba-cuda finds out the type of every argument at every launch and wraps each number that a kernel takes on its own,
dozens where arrays are passed. Here a device array keeps its type and its numbers as bytes from its first launch on,
and a kernel keeps, for the types of its arguments, the function that Numba launched for them the first time:

    kernel[grid, block](a, b, np.float32(2))      # the first time by Numba, which compiles; from then on from here

A view by the same shape or the same slice, x.reshape(n) or x[:n], is made once and kept: Numba takes some 20 us for
one, and a step of a model needs dozens.

A launch is left to Numba where anything is unusual: arguments other than Numba's device arrays and single numbers, a
kernel that is compiled for a debugger, for one launch configuration, for a cooperative launch or with extensions; and
where the driver refuses the launch, so that errors are Numba's own.

`labkit.device` installs it when it imports the compiler's `cuda`. The values cached for an array are stored on it.
"""

from __future__ import annotations

import ctypes
import functools
import struct

from labkit.device import compiler, gpu_kernels

CONFIGURATIONS = 1024  # of all kernels, kept at a time; Numba keeps 128, fewer than a step of a model has
MAX_VIEWS = 64  # of an array, kept
SLOT = 8  # bytes; every number that a kernel takes has as many in a cell, whatever its own size
SLOTS = 512

# --- Values cached on an array ---------------------------------------------------------------------------------------


def kept(array) -> dict:
    """Return the cache of facts about a device array, whose address, shape and type never change. It starts empty, and
    stays empty for anything but Numba's device arrays."""
    cache = getattr(array, "_labkit_kept", None)
    return {} if cache is None else cache


_type_ids: dict[object, int] = {}  # argument type -> id, so that a tuple of types is hashed quickly


def _type_id(numba_type) -> int:
    return _type_ids.setdefault(numba_type, len(_type_ids))


def _pack(array) -> tuple[int, bytes]:
    """(the id of its type, what a kernel takes in its place).

    From numba-cuda: two pointers that are null, the number of elements, their size, the address, the shape and the
    strides. From numba-cuda-mlir: the address twice, an offset, the shape, and the strides in elements.
    """
    address, itemsize = array.device_ctypes_pointer.value or 0, array.dtype.itemsize
    if compiler.is_mlir():
        strides = (stride // itemsize for stride in array.strides)
        content = struct.pack(f"<2Q{1 + 2 * array.ndim}q", address, address, 0, *array.shape, *strides)
    else:
        content = struct.pack(f"<4qQ{2 * array.ndim}q", 0, 0, array.size, itemsize, address, *array.shape,
                              *array.strides)
    packed = kept(array)["packed"] = _type_id(array._numba_type_), content
    return packed


@functools.cache
def _scalars() -> dict[type, tuple]:
    """Python type -> (the id of Numba's type, how to pack a value)."""
    import numpy as np

    types = gpu_kernels.types()
    formats = {int: (types.int64, "q"), float: (types.float64, "d"), bool: (types.boolean, "?7x"),
               np.float32: (types.float32, "f4x"), np.float64: (types.float64, "d"), np.bool_: (types.boolean, "?7x"),
               np.int64: (types.int64, "q"), np.uint64: (types.uint64, "Q"), np.int32: (types.int32, "i4x"),
               np.uint32: (types.uint32, "I4x"), np.int16: (types.int16, "h6x"), np.uint16: (types.uint16, "H6x"),
               np.int8: (types.int8, "b7x"), np.uint8: (types.uint8, "B7x")}
    return {kind: (_type_id(numba_type), struct.Struct("<" + code).pack)
            for kind, (numba_type, code) in formats.items()}


def packed(args: tuple) -> tuple[tuple, list]:
    """(the ids of the arguments' types, the arguments as bytes). Raises KeyError for an argument that only Numba
    can pass, struct.error for a Python number that does not fit into 64 bits."""
    array_type, scalars = gpu_kernels.array_type(), _scalars()
    type_ids, parts = [], []
    for value in args:
        if type(value) is array_type:
            try:
                type_id, part = value._labkit_kept["packed"]
            except KeyError:
                type_id, part = _pack(value)
        else:
            type_id, pack = scalars[type(value)]
            part = pack(value)
        type_ids.append(type_id)
        parts.append(part)
    return tuple(type_ids), parts


def types_key(args: tuple) -> tuple | None:
    """Equal for arguments of the same types; None where only Numba can say what these are."""
    try:
        return packed(args)[0]
    except (KeyError, struct.error):
        return None


# --- A launch ---------------------------------------------------------------------------------------------------------


class Cell:
    """Memory for the arguments of a launch that is being made, and the addresses of its slots as the driver takes
    them. It copies the arguments before it returns."""

    def __init__(self):
        self._memory = (ctypes.c_char * (SLOT * SLOTS))()
        base = ctypes.addressof(self._memory)
        self._table = (ctypes.c_void_p * SLOTS)(*range(base, base + SLOT * SLOTS, SLOT))
        self.content, self.address = memoryview(self._memory).cast("B"), ctypes.addressof(self._table)


_free: list[Cell] = [Cell()]  # one for each thread that is launching: the driver is called without Python's lock


def function_of(dispatcher, args: tuple):
    """What the driver launches for these arguments, after Numba has launched it once; None where Numba does more than
    to pass the arguments."""
    types = gpu_kernels.argument_types(dispatcher, args)
    kernel = dispatcher.overloads.get(types)
    if kernel is None or tuple(kernel.argument_types) != types:
        return None
    if kernel.debug or kernel.cooperative or kernel.extensions or getattr(kernel, "launch_config_sensitive", False):
        return None
    return gpu_kernels.function(dispatcher, types)


def _launched(function, shape: tuple, parts: list) -> bool:
    """Ask the driver for a launch; True if it takes it. shape: the driver's seven numbers of it, and the stream."""
    content = b"".join(parts)
    try:
        cell = _free.pop()
    except IndexError:
        cell = Cell()
    cell.content[: len(content)] = content
    driver, success = _driver()
    (error,) = driver.cuLaunchKernel(function, *shape, cell.address, 0)
    _free.append(cell)
    return error == success


@functools.cache
def _driver() -> tuple:
    from cuda.bindings import driver

    return driver, driver.CUresult.CUDA_SUCCESS


@functools.cache
def _configuration_type():
    """Numba's launch configuration with a shorter way to the driver."""
    from numba.cuda.dispatcher import _LaunchConfiguration

    class QuickLaunch(_LaunchConfiguration):
        pre_launch_callbacks = ()  # before numba-cuda has them

        def __init__(self, dispatcher, griddim, blockdim, stream, sharedmem):
            super().__init__(dispatcher, griddim, blockdim, stream, sharedmem)
            self._functions = dispatcher.__dict__.setdefault("_labkit_functions", {})
            self._shape = *griddim, *blockdim, sharedmem, int(self.stream.handle)

        def __call__(self, *args):
            try:
                types, parts = packed(args)
            except (KeyError, struct.error):
                return super().__call__(*args)
            self._functions["last"] = self._shape  # for labkit fits
            function = self._functions.get(types)
            if function is not None and not self.pre_launch_callbacks and _launched(function, self._shape, parts):
                return
            super().__call__(*args)
            if types not in self._functions:
                self._functions[types] = function_of(self.dispatcher, args) if _fits(parts) else None

        def __reduce__(self):
            state = self.__getstate__()  # raises PicklingError where something cannot be sent
            return _configured, tuple(state[name] for name in ("dispatcher", "griddim", "blockdim", "stream",
                                                               "sharedmem"))

    return QuickLaunch


def _configured(dispatcher, griddim, blockdim, stream, sharedmem):
    from cuda.core import Stream

    return _configuration_type()(dispatcher, griddim, blockdim, Stream.from_handle(stream), sharedmem)


def _fits(parts: list) -> bool:
    return sum(map(len, parts)) <= SLOT * SLOTS


class MlirLaunch:
    """A launch configuration of numba-cuda-mlir. It compiles for the types of its arguments, and loads the kernel:
    what the compiler's own launcher loads is another copy, to which no attribute of this one applies. `original()` is
    the compiler's own configuration, for arguments that only it can pass."""

    def __init__(self, dispatcher, original, griddim, blockdim, stream, sharedmem):
        self.dispatcher, self.griddim, self.blockdim = dispatcher, griddim, blockdim
        self.stream, self.sharedmem = stream, sharedmem
        self._original, self._shape = original, (*griddim, *blockdim, sharedmem, stream_handle(stream))
        self._functions = dispatcher.__dict__.setdefault("_labkit_functions", {})

    def __call__(self, *args):
        try:
            types, parts = packed(args)
        except (KeyError, struct.error):
            return self._original()(*args)
        function = self._functions.get(types)
        if function is None:
            if not _fits(parts) or _is_special(self.dispatcher):
                return self._original()(*args)
            function = gpu_kernels.function(self.dispatcher, gpu_kernels.argument_types(self.dispatcher, args))
            self._functions[types] = function
        if not _launched(function, self._shape, parts):
            _require_context()
            if not _launched(function, self._shape, parts):
                self._original()(*args)  # so that errors are the compiler's own


def _is_special(dispatcher) -> bool:
    """Whether a launch of numba-cuda-mlir does more than to pass the arguments."""
    return bool(dispatcher.targetoptions.get("debug") or dispatcher.extensions or dispatcher._requires_launch_config
                or dispatcher._literal_arg_positions or dispatcher._module_setup_callbacks
                or any(compiled.metadata.get("use_cooperative") for compiled in dispatcher.overloads.values()))


def _require_context() -> None:
    """Make the GPU's context that of this thread."""
    from numba_cuda_mlir.numba_cuda.cudadrv import devices

    devices.get_context()


def stream_handle(stream) -> int:
    """The driver's number for a stream: an int, a stream of the compiler or of cuda.core, or one of another library."""
    if stream is None or isinstance(stream, int):
        return stream or 0
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    return int(stream.handle)


# --- Patching Numba ---------------------------------------------------------------------------------------------------


def install() -> None:
    """Give every kernel of numba-cuda the faster launch, and device arrays a cache of their views. Where another
    version of numba-cuda has no hook for it, nothing changes."""
    try:
        from cuda.bindings import driver
        from numba.cuda.cudadrv.driver import _to_core_stream
        from numba.cuda.dispatcher import CUDADispatcher, _Kernel, _LaunchConfiguration
        from numba.cuda.errors import normalize_kernel_dimensions

        driver.cuLaunchKernel, _to_core_stream, _Kernel.argument_types, _LaunchConfiguration.__call__  # noqa: B018
        reset = CUDADispatcher._reset_overloads
    except (ImportError, AttributeError):
        return
    if getattr(CUDADispatcher, "_labkit_quick", False):
        return

    @functools.lru_cache(maxsize=CONFIGURATIONS)
    def configure(self, griddim, blockdim, stream=0, sharedmem=0):
        griddim, blockdim = normalize_kernel_dimensions(griddim, blockdim)
        return _configuration_type()(self, griddim, blockdim, stream, sharedmem)

    CUDADispatcher.configure, CUDADispatcher._reset_overloads = configure, _forgetting(reset)
    keep_views(gpu_kernels.array_type())
    CUDADispatcher._labkit_quick = True


def install_for_mlir() -> None:
    """As `install`, for numba-cuda-mlir."""
    from numba_cuda_mlir.numba_cuda.errors import normalize_kernel_dimensions

    kind = gpu_kernels.dispatcher_type()
    if getattr(kind, "_labkit_quick", False):
        return
    original = kind.configure

    @functools.lru_cache(maxsize=CONFIGURATIONS)
    def configure(self, griddim, blockdim, stream=0, sharedmem=0, cluster=None):
        own = functools.partial(original, self, griddim, blockdim, stream or None, sharedmem or None, cluster)
        if cluster is not None:
            return own()
        griddim, blockdim = normalize_kernel_dimensions(griddim, blockdim)
        return MlirLaunch(self, own, griddim, blockdim, stream, sharedmem or 0)

    kind.configure, kind.recompile = configure, _forgetting(kind.recompile)
    keep_views(gpu_kernels.array_type())
    kind._labkit_quick = True


def _forgetting(reset):
    """A dispatcher's method that also forgets which functions the driver has for it."""

    @functools.wraps(reset)
    def forget(self):
        self.__dict__.get("_labkit_functions", {}).clear()
        reset(self)

    return forget


def keep_views(arrays: type) -> None:
    """Return the same view of a device array for the same key, so that its cached facts are reused."""
    reshape, getitem = arrays.reshape, arrays.__getitem__

    def view_of(array, key, make):
        views = kept(array).setdefault("views", {})
        try:
            if key in views:
                return views[key]
        except TypeError:  # a list, which a dictionary cannot have as key
            return make()
        view = make()
        if len(views) < MAX_VIEWS:
            views[key] = view
        return view

    @functools.wraps(reshape)
    def reshape_once(self, *newshape, **options):
        if options:
            return reshape(self, *newshape, **options)
        return view_of(self, newshape, lambda: reshape(self, *newshape))

    @functools.wraps(getitem)
    def slice_once(self, item):
        if type(item) is not slice:  # an element is read anew each time
            return getitem(self, item)
        return view_of(self, ("slice", item.start, item.stop, item.step), lambda: getitem(self, item))

    arrays._labkit_kept = functools.cached_property(lambda self: {})
    arrays._labkit_kept.__set_name__(arrays, "_labkit_kept")
    arrays.reshape, arrays.__getitem__ = reshape_once, slice_once
