"""kernel[grid, block, stream, shared_bytes](...): limits, arguments, blocks over cores, faults, Ctrl-C.

A launch is synchronous. Blocks are handed out to a few threads (compiled code holds no interpreter lock) while the
main thread waits, so that Ctrl-C and the time limit reach a running kernel. Kernels with atomics, and kernels that
synchronise the grid, run on one thread, so that their results repeat.
"""

import contextlib
import contextvars
import hashlib
import importlib.util
import os
import queue
import sys
import tempfile
import threading
import time
from functools import cached_property
from pathlib import Path

import numba
import numpy as np
from numba.core import sigutils, types
from numba.core.errors import NumbaError

from labkit.simt import half, lowlevel  # noqa: F401 (half registers float16)
from labkit.simt.arrays import LIMITS, ArgHint, DeviceNDArray, DeviceRecord
from labkit.simt.codegen.emit import Generator, code_name
from labkit.simt.codegen.inference import type_error
from labkit.simt.errors import (
    ArgumentError,
    BarrierError,
    KernelAssertionError,
    KernelError,
    KernelTimeout,
    KernelTypeError,
    LaunchError,
    MisalignedError,
    OutOfBoundsError,
    WarpError,
    place,
)
from labkit.simt.ir import fingerprint_of
from labkit.simt.ptx import TensorMap
from labkit.simt.rewrite import rewrite
from labkit.simt.scope import read_source

JIT_OPTIONS = {"device", "inline", "forceinline", "link", "debug", "opt", "lineinfo", "cache", "launch_bounds", "lto",
               "shared_memory_carveout", "fastmath", "max_registers", "extensions", "nopython", "argtypes", "restype",
               "bind", "boundscheck", "abi", "abi_info", "target"}  # fmt: skip


_TENSOR_MAP = types.Opaque("tensor_map")
MAX_COOPERATIVE_THREADS = 1 << 18  # a large GPU holds about as many at once


def cache_directory():
    """Where compiled kernels are kept: $LABKIT_CACHE_DIR, or labkit-simt in the user's cache directory."""
    if given := os.environ.get("LABKIT_CACHE_DIR"):
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "labkit-simt"


ORDERS = ("forward", "reverse", "scattered")
_ORDER = contextvars.ContextVar("labkit_simt_order", default="forward")
_TIME_LIMIT = contextvars.ContextVar("labkit_simt_time_limit", default=None)


@contextlib.contextmanager
def thread_order(order):
    """Launches below this run the threads of a block, and the blocks, in another order: one of ORDERS.

    A kernel whose result depends on it has a race.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it must be one of {', '.join(ORDERS)}")
    token = _ORDER.set(order)
    try:
        yield
    finally:
        _ORDER.reset(token)


@contextlib.contextmanager
def time_limit(seconds):
    """Launches below this are stopped after this many seconds in which no block ended; 0 is no limit."""
    token = _TIME_LIMIT.set(float(seconds))
    try:
        yield
    finally:
        _TIME_LIMIT.reset(token)


def time_limit_s():
    """Seconds that one block may run before the launch is stopped: $LABKIT_TIME_LIMIT, 60 unless set; 0 is no limit."""
    given = _TIME_LIMIT.get()
    return float(os.environ.get("LABKIT_TIME_LIMIT", "60")) if given is None else given


def is_checked():
    """False where $LABKIT_BOUNDS_CHECK is 0: array indices are then not checked, as on a GPU."""
    return os.environ.get("LABKIT_BOUNDS_CHECK", "1") != "0"


def _own_version():
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__}".encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_VERSION = None


def _version():
    global _VERSION
    if _VERSION is None:
        _VERSION = _own_version()
    return _VERSION


# ---------------------------------------------------------------- compiling


class Compiled:
    """A kernel compiled for one set of argument types."""

    def __init__(self, program, argument_types, order, flat):
        constants = [_constant(a) for a in program.constants.values()]
        constant_types = [numba.typeof(a) for a in constants]
        self.program, self.constants, self.order = program, constants, order
        all_types = (*constant_types, *argument_types)
        settings = map(str, (all_types, is_checked(), order, flat))
        fingerprint = "\n".join([_version(), *settings, fingerprint_of(program)])
        name = f"{program.name}_{hashlib.sha256(fingerprint.encode()).hexdigest()[:20]}"

        def source():
            return Generator(program, all_types, is_checked(), order=order, flat=flat).generate()

        try:
            self._load(_load_module(name, source), all_types)
        except (KernelError, NumbaError):
            raise
        except Exception:  # a file of the cache is damaged: unpickling, parsing and importing raise what they like
            _forget(name)
            self._load(_load_module(name, source), all_types)

    def _load(self, module, all_types):
        """Compile the generated module for its one signature, or take what the cache has."""
        program = self.program
        self.function = getattr(module, code_name(program))
        self.sites = module.SITES
        self.static_bytes, self.shared_bytes, self.fixed_bytes, self.thread_bytes = module.SIZES
        int64, triple = types.int64, types.UniTuple(types.int64, 3)
        signature = (int64, int64, triple, triple, int64, types.Array(types.uint8, 1, "C"),
                     types.Array(int64, 1, "C"), *all_types)  # fmt: skip
        try:
            with _quicker_compiles():
                self.function.compile(signature)
        except NumbaError as error:
            raise type_error(program, error, Path(module.__file__).read_text(encoding="utf-8")) from error
        self.entry = self.function.overloads[signature].entry_point
        self.function.disable_compile()

    def max_cooperative_grid_blocks(self, blockdim, dynsmemsize=0):
        """The largest grid that cg.this_grid().sync() can hold together, in blocks."""
        threads = int(np.prod(blockdim))
        return max(1, MAX_COOPERATIVE_THREADS // threads)

    def scratch_bytes(self, threads, blocks, dynamic):
        padded = -(-threads // 32) * 32
        shared = (self.shared_bytes + -(-dynamic // 64) * 64) * blocks
        return shared + self.fixed_bytes + self.thread_bytes * padded * blocks + 64


class Interpreted:
    """A kernel that is interpreted: its warps wait for one another inside their own loops."""

    def __init__(self, program):
        from labkit.simt.interpreter import shared_bytes

        self.program = program
        self.static_bytes = shared_bytes(program)

    max_cooperative_grid_blocks = Compiled.max_cooperative_grid_blocks


@contextlib.contextmanager
def _quicker_compiles():
    """LLVM's -O2: kernels compile in half the time that Numba's -O3 takes, and run as fast."""
    before = numba.core.config.OPT
    numba.core.config.OPT = type(before)(min(int(before), 2))
    try:
        yield
    finally:
        numba.core.config.OPT = before


def _constant(array):
    """A global array as a kernel sees it: host arrays as they were at compile time, device arrays themselves."""
    if isinstance(array, DeviceNDArray):
        return array._array
    frozen = np.array(array, order="C")
    frozen.flags.writeable = False
    return frozen


def _forget(name):
    """Delete what the cache holds of a generated module."""
    for file in [*cache_directory().glob(f"{name}.*"), *cache_directory().glob(f"__pycache__/{name}.*")]:
        with contextlib.suppress(OSError):
            file.unlink()
    importlib.invalidate_caches()


def _load_module(name, make_source):
    """Import the generated module from the cache directory, writing it first if it is not there."""
    directory = cache_directory()
    path = directory / f"{name}.py"
    if not path.exists():
        source = make_source()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=directory, suffix=".tmp", delete=False, encoding="utf-8") as f:
                f.write(source)
            os.replace(f.name, path)
        except OSError:  # no place to cache: compile from a directory that ends with the process
            directory = Path(tempfile.mkdtemp(prefix="labkit-simt-"))
            path = directory / f"{name}.py"
            path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"labkit_simt_cache.{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- kernels


_OF_GPU_CODE = {"get_regs_per_thread", "get_local_mem_per_thread", "get_const_mem_size", "get_max_threads_per_block",
                "get_shared_mem_per_block", "inspect_asm", "inspect_llvm", "inspect_sass", "inspect_types",
                "inspect_lto_ptx", "extensions"}  # fmt: skip


class DeviceFunction:
    """What `@cuda.jit(device=True)` makes on the CPU device: kernels call it, the host cannot."""

    def __init__(self, function):
        read_source(function)
        self.py_func = function
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self.__wrapped__ = function

    def __call__(self, *args, **kwargs):
        raise TypeError(f"{self.__name__} is a device function: only kernels and device functions can call it")

    def __repr__(self):
        return f"<device function {self.__name__}>"


class Kernel:
    """What `@cuda.jit` makes on the CPU device. Launched as `kernel[grid, block, stream, shared_bytes](...)`.

    As with numba.cuda, another kernel may call it as a device function.
    """

    def __init__(self, function, signatures=(), options=None):
        self.py_func = function
        self.options = options or {}
        self.__name__, self.__doc__, self.__module__ = function.__name__, function.__doc__, function.__module__
        self.__qualname__ = function.__qualname__
        self.__wrapped__ = function
        read_source(function)
        self.dynamic_allowed = LIMITS.shared_per_block
        self._compiled = {}
        self._given = [tuple(s) for s in signatures]
        for signature in self._given:
            self._compile(signature)

    def __repr__(self):
        return f"<kernel {self.__name__}>"

    @property
    def overloads(self):
        """The compiled kernels, by argument types."""
        return {types_: compiled for (types_, *_), compiled in self._compiled.items()}

    @property
    def signatures(self):
        """The argument types that the kernel is compiled for."""
        return list(self.overloads)

    def __getattr__(self, name):
        if name in _OF_GPU_CODE:
            raise AttributeError(f"{self.__name__}.{name} tells of GPU code: it needs a GPU")
        raise AttributeError(f"a kernel has no attribute {name!r}")

    @cached_property
    def params(self):
        code = self.py_func.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    def __call__(self, *args, **kwargs):
        raise LaunchError(
            f"{self.__name__} is a kernel: launch it with a grid and a block, {self.__name__}[grid, block](...)"
        )

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                f"{self.__name__}[...] takes [grid, block], or [grid, block, stream], or "
                "[grid, block, stream, shared_bytes]"
            )
        return self.configure(*configuration)

    def configure(self, griddim, blockdim, stream=0, sharedmem=0):
        """The kernel bound to a launch configuration. grid and block are ints or tuples of up to three ints."""
        return Launch(self, _dimensions(self, "grid", griddim), _dimensions(self, "block", blockdim), stream, sharedmem)

    def forall(self, ntasks, tpb=0, stream=0, sharedmem=0):
        """A launch over ntasks threads in one dimension."""
        if ntasks < 0:
            raise LaunchError(f"{self.__name__}.forall: ntasks is {ntasks}, must not be negative")
        block = tpb or min(256, LIMITS.max_threads_per_block)
        return _ForAll(self, -(-ntasks // block), block, stream, sharedmem)

    def specialize(self, *args):
        """A copy of the kernel for the types of these arguments alone."""
        return Kernel(self.py_func, [tuple(numba.typeof(_host_view(a)) for a in args)], self.options)

    def compile(self, signature):
        """Compile for a signature, ahead of the first launch."""
        argument_types, _ = sigutils.normalize_signature(signature)
        return self._compile(argument_types)

    def allow_dynamic_shared(self, nbytes):
        """Allow launches up to nbytes of dynamic shared memory: above 48 KB CUDA wants to be asked."""
        self.dynamic_allowed = max(self.dynamic_allowed, int(nbytes))

    def _compile(self, argument_types, flat=False):
        """flat: for blocks of one dimension alone, whose code is shorter and compiles sooner."""
        order = _ORDER.get()
        key = (argument_types, is_checked(), order, flat)
        compiled = self._compiled.get(key)
        if compiled is None:
            if len(argument_types) != len(self.params):
                raise KernelTypeError(
                    f"{self.__name__} has {len(self.params)} parameters and its signature {len(argument_types)}"
                )
            with _COMPILE_LOCK:
                program = rewrite(self.py_func)
                compiled = (
                    Interpreted(program) if program.interpreted else Compiled(program, argument_types, order, flat)
                )
                self._compiled[key] = compiled
        return compiled

    def compiled_for(self, args, flat=False):
        """The compiled kernel for these (host view) arguments, and the arguments as it takes them."""
        if not self._given:
            return self._compile(tuple(self._typeof(k, a) for k, a in enumerate(args)), flat), args
        fitting = [s for s in self._given if all(_fits(a, ty) for a, ty in zip(args, s, strict=True))]
        if not fitting:
            given = ", ".join(str(self._typeof(k, a)) for k, a in enumerate(args))
            wanted = " or ".join(f"({', '.join(map(str, s))})" for s in self._given)
            raise ArgumentError(f"{self.__name__} is compiled for {wanted}, and was launched with ({given})")
        return self._compile(fitting[0]), [_as_scalar(a, ty) for a, ty in zip(args, fitting[0], strict=True)]

    def _typeof(self, position, value):
        if isinstance(value, TensorMap):
            return _TENSOR_MAP
        try:
            return numba.typeof(value)
        except (ValueError, TypeError, NumbaError) as error:
            raise ArgumentError(
                f"{self.__name__}: argument {self.params[position]!r} has the type {type(value).__name__}, which a "
                f"kernel cannot take ({error})"
            ) from None


class _ForAll:
    def __init__(self, kernel, grid, block, stream, sharedmem):
        self.kernel, self.arguments = kernel, (grid, block, stream, sharedmem)

    def __call__(self, *args):
        if self.arguments[0]:
            self.kernel.configure(*self.arguments)(*args)


def _dimensions(kernel, name, value):
    """(x, y, z) from an int or a tuple of up to three, checked."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    good = 1 <= len(parts) <= 3 and all(isinstance(p, (int, np.integer)) and not isinstance(p, bool) for p in parts)
    if not good:
        raise LaunchError(f"{kernel.__name__}: {name} must be an int or a tuple of up to three ints, not {value!r}")
    parts = tuple(int(p) for p in parts)
    if min(parts) < 1:
        raise LaunchError(f"{kernel.__name__}: {name} is {value!r}; every dimension must be at least 1")
    full = (*parts, 1, 1)[:3]
    limits = LIMITS.max_grid_dim if name == "grid" else LIMITS.max_block_dim
    for size, limit, axis in zip(full, limits, "xyz", strict=True):
        if size > limit:
            raise LaunchError(f"{kernel.__name__}: {name} is {value!r}; {name}Dim.{axis} may be at most {limit:,}")
    threads = full[0] * full[1] * full[2]
    if name == "block" and threads > LIMITS.max_threads_per_block:
        raise LaunchError(
            f"{kernel.__name__}: a block of {value!r} has {threads:,} threads; a block may have at most "
            f"{LIMITS.max_threads_per_block:,}"
        )
    return full


def _host_view(value):
    """What compiled code works on: the NumPy array behind a device array, other values as they are."""
    if isinstance(value, DeviceRecord):
        return value._array[()]
    if type(value) is tuple:
        return tuple(_host_view(v) for v in value)
    return value._array if isinstance(value, DeviceNDArray) else value


def _fits(value, ty):
    if isinstance(value, TensorMap):
        return True
    if isinstance(ty, types.Array):
        if not isinstance(value, np.ndarray) or value.ndim != ty.ndim:
            return False
        given = numba.typeof(value)
        return given.dtype == ty.dtype and (ty.layout in ("A", given.layout) or value.size == 1) and (
            given.mutable or not ty.mutable
        )  # fmt: skip
    return not isinstance(value, np.ndarray)


def _as_scalar(value, ty):
    if isinstance(ty, (types.Integer, types.Float, types.Complex, types.Boolean)):
        return numba.np.numpy_support.as_dtype(ty).type(value)
    return value


class Launch:
    """A kernel with its launch configuration: call it with the kernel's arguments."""

    def __init__(self, kernel, grid, block, stream, sharedmem):
        self.kernel, self.grid, self.block, self.stream = kernel, grid, block, stream
        if not isinstance(sharedmem, (int, np.integer)) or sharedmem < 0:
            raise LaunchError(f"{kernel.__name__}: shared_bytes must be an int of at least 0, not {sharedmem!r}")
        self.sharedmem = int(sharedmem)

    def __repr__(self):
        return f"<kernel {self.kernel.__name__}[{self.grid}, {self.block}]>"

    def __call__(self, *args):
        """Runs the kernel; a stream that records (it has `record`) is given the launch instead."""
        record = getattr(self.stream, "record", None)
        if record is None:
            self.run(*args)
        else:
            record(self, args)

    def run(self, *args):
        kernel = self.kernel
        if len(args) != len(kernel.params):
            raise ArgumentError(
                f"{kernel.__name__} takes {len(kernel.params)} arguments ({', '.join(kernel.params)}), "
                f"{len(args)} given"
            )
        afterwards = []  # copies back to the host, for cuda.Out and cuda.InOut
        args = [a.to_device(afterwards, self.stream) if isinstance(a, ArgHint) else a for a in args]
        values = [self._argument(kernel.params[k], a) for k, a in enumerate(args)]
        compiled, values = kernel.compiled_for(values, flat=self.block[1] == self.block[2] == 1)
        self._check_shared(compiled)
        self._check_cooperative(compiled)
        if isinstance(compiled, Interpreted):
            _interpret(compiled, self.grid, self.block, self.sharedmem, values)
        else:
            _run(kernel, compiled, self.grid, self.block, self.sharedmem, values)
        for copy_back in afterwards:
            copy_back()

    def _argument(self, name, value):
        who = f"{self.kernel.__name__}: argument {name!r}"
        value = _host_view(value)
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject or value.dtype.kind in "SUOmM":
                raise ArgumentError(f"{who} is an array of {value.dtype}; a kernel takes numbers")
            return value
        if isinstance(value, np.float16):
            return np.float32(value)
        if isinstance(value, (bool, int, float, complex, np.generic, tuple, TensorMap)):
            if isinstance(value, int) and not -(2**63) <= value < 2**64:
                raise ArgumentError(f"{who} is {value}, which does not fit in 64 bits")
            return value
        if isinstance(value, (list, str, dict, set)) or value is None or callable(value):
            raise ArgumentError(
                f"{who} is a host object ({type(value).__name__}); a kernel takes numbers, tuples of numbers and arrays"
            )
        if hasattr(value, "__array__"):  # a torch tensor on the CPU, say
            return np.asarray(value)
        raise ArgumentError(f"{who} has the type {type(value).__name__}; a kernel takes numbers, tuples and arrays")

    def _check_shared(self, compiled):
        static, limit, most = compiled.static_bytes, LIMITS.shared_per_block, LIMITS.shared_per_block_optin
        total, allowed = static + self.sharedmem, self.kernel.dynamic_allowed
        if total <= limit or (static <= limit and self.sharedmem <= allowed and total <= most and allowed > limit):
            return
        dynamic = f" and {self.sharedmem:,} at launch" if self.sharedmem else ""
        end = f"a block has {limit:,}"
        if self.sharedmem and static <= limit:
            end = f"a block has {most:,}"
            if total <= most:
                end = (
                    f"a block has {limit:,}, and up to {most:,} where launching.dynamic_shared(kernel, nbytes, *args) "
                    "allowed the kernel so much dynamic shared memory before"
                )
                if allowed > limit:
                    end += f"; it was allowed {allowed:,}"
        raise LaunchError(
            f"{self.kernel.__name__} uses too much shared memory: {static:,} bytes in shared.array{dynamic}; {end}"
        )

    def _check_cooperative(self, compiled):
        if not compiled.program.cooperative:
            return
        blocks, most = int(np.prod(self.grid)), compiled.max_cooperative_grid_blocks(self.block)
        if blocks > most:
            raise LaunchError(
                f"{self.kernel.__name__} synchronises the grid, and a grid of {blocks:,} blocks of {self.block} is too "
                f"large for that: at most {most:,}"
            )


# ---------------------------------------------------------------- running

_COMPILE_LOCK = threading.RLock()
_LAUNCH_LOCK = threading.RLock()


def _after_fork():
    """A child process has none of its parent's threads, and must not wait for the locks that they held."""
    global _COMPILE_LOCK, _LAUNCH_LOCK, _WORKERS
    _COMPILE_LOCK, _LAUNCH_LOCK, _WORKERS = threading.RLock(), threading.RLock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Workers:
    """A few threads that run compiled code. Started at the first launch; they end with the process."""

    def __init__(self):
        self.count = max(1, int(os.environ.get("LABKIT_WORKERS", 0)) or len(_cores()))
        self.queue = queue.SimpleQueue()
        self.scratch = threading.local()
        for k in range(self.count):
            threading.Thread(target=self._work, name=f"labkit-simt-{k}", daemon=True).start()

    def _work(self):
        while True:
            self.queue.get()()

    def memory(self, size):
        """This thread's scratch memory, 64-byte aligned, grown when needed."""
        held = getattr(self.scratch, "array", None)
        if held is None or held.size < size:
            raw = np.empty(max(size, 1 << 16) + 64, np.uint8)
            start = -raw.ctypes.data % 64
            held = self.scratch.array = raw[start : start + max(size, 1 << 16)]
        return held


def _cores():
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


_WORKERS = None


def _workers():
    global _WORKERS
    if _WORKERS is None:
        _WORKERS = _Workers()
    return _WORKERS


class _Run:
    """One launch under way: hands out ranges of blocks, collects the first fault."""

    def __init__(self, compiled, grid, block, dynamic, arguments):
        self.compiled, self.grid, self.block, self.dynamic = compiled, grid, block, dynamic
        self.arguments = (*compiled.constants, *arguments)
        self.blocks = grid[0] * grid[1] * grid[2]
        self.threads = block[0] * block[1] * block[2]
        self.whole = compiled.program.cooperative
        workers = _workers()
        ordered = compiled.order != "forward"
        serial = self.whole or ordered or compiled.program.has_atomics
        self.shares = 1 if serial else min(workers.count, self.blocks)
        self.chunk = self.blocks if self.whole or ordered else max(1, min(self.blocks // (self.shares * 8), 1 << 14))
        self.records = np.zeros((self.shares, lowlevel.RECORD_SIZE), np.int64)
        self.lock = threading.Lock()
        self.next, self.running, self.fault = 0, self.shares, None
        self.finished = threading.Event()
        scratch = compiled.scratch_bytes(self.threads, self.blocks if self.whole else 1, dynamic)
        for k in range(self.shares):
            workers.queue.put(lambda k=k: self._share(workers, scratch, self.records[k]))

    def _share(self, workers, scratch, record):
        try:
            memory = workers.memory(scratch)
            while self.fault is None:
                with self.lock:
                    first = self.next
                    self.next = last = min(first + self.chunk, self.blocks)
                if first >= last:
                    break
                self.compiled.entry(first, last, self.grid, self.block, self.dynamic, memory, record, *self.arguments)
        except BaseException as error:  # reported by the thread that waits
            with self.lock:
                if self.fault is None or isinstance(self.fault[0], lowlevel.Stop) and record[lowlevel.CODE] == 0:
                    self.fault = (error, record.copy())
            self.stop()
        finally:
            with self.lock:
                self.running -= 1
                if not self.running:
                    self.finished.set()

    def stop(self):
        self.records[:, lowlevel.ABORT] = 1

    def progress(self):
        return int(self.records[:, lowlevel.DONE].sum()), self.next

    def wait(self):
        """Until the last block is done; a limit on the time without any block done. Returns the limit if it was hit."""
        if self.finished.wait(0.05):
            return None
        limit = time_limit_s()
        seen, since = self.progress(), time.monotonic()
        while not self.finished.wait(0.05):
            now = self.progress()
            if now != seen:
                seen, since = now, time.monotonic()
            elif limit and time.monotonic() - since > limit:
                self.stop()
                self.finished.wait()
                return limit
        return None


def _interpret(compiled, grid, block, dynamic, arguments):
    from labkit.simt.interpreter import Interpreter

    with _LAUNCH_LOCK:
        Interpreter(compiled.program, grid, block, dynamic, arguments).run()


def _run(kernel, compiled, grid, block, dynamic, arguments):
    with _LAUNCH_LOCK:
        run = _Run(compiled, grid, block, dynamic, arguments)
        try:
            limit = run.wait()
        except BaseException:  # Ctrl-C: the kernel stops at its next loop or block, then the exception goes on
            run.stop()
            run.finished.wait()
            raise
    if run.fault is not None:
        error, record = run.fault
        if isinstance(error, lowlevel.Stop):
            raise _describe(kernel, compiled, run, record, limit) from None
        raise error


def _coordinates(linear, shape):
    x, y, _ = shape
    return (int(linear % x), int(linear // x % y), int(linear // (x * y)))


def _describe(kernel, compiled, run, record, limit):
    """The error for a fault record."""
    _, filename, line, text = compiled.sites[int(record[lowlevel.SITE])]
    padded = -(-run.threads // 32) * 32
    thread = _coordinates(int(record[lowlevel.THREAD]) % padded, run.block)
    block = _coordinates(int(record[lowlevel.BLOCK]), run.grid)
    name = kernel.__name__
    where = {"kernel": name, "filename": filename, "line": line, "block": block, "thread": thread}
    spot = f"block {_short(block, run.grid)}, thread {_short(thread, run.block)}"
    at = f"{name}, line {line}"
    tail = f" ({place(filename)})"
    code = int(record[lowlevel.CODE])
    n0, n1, n2 = (int(record[k]) for k in (lowlevel.COUNT, lowlevel.INDEX, lowlevel.INDEX + 1))
    if code == lowlevel.OUT_OF_BOUNDS:
        dims, axes = divmod(n0, 16)
        index = tuple(int(v) for v in record[lowlevel.INDEX : lowlevel.INDEX + axes])
        shape = tuple(int(v) for v in record[lowlevel.SHAPE : lowlevel.SHAPE + dims])
        shown = index[0] if len(index) == 1 else index
        told = f"{at}: {spot} uses {text}[{_plain(shown)}], outside its shape {shape}{tail}"
        error = OutOfBoundsError(told, **where)
        error.array, error.index, error.shape = text, index, shape
        return error
    if code in (lowlevel.WIDE_BOUNDS, lowlevel.MISALIGNED, lowlevel.COPY_SIZE):
        intrinsic, _, array = text.partition("|")
        if code == lowlevel.COPY_SIZE:
            return KernelAssertionError(
                f"{at}: {spot} passes valid = {n0} to {intrinsic}; it must be 0 to {n1} bytes{tail}", **where
            )
        if code == lowlevel.MISALIGNED:
            return misaligned(at, spot, intrinsic, array, n1, n0, tail, where)
        dims, count = divmod(n0, 256)
        shape = tuple(int(v) for v in record[lowlevel.SHAPE : lowlevel.SHAPE + dims])
        return out_of_row(at, spot, intrinsic, array, n1, count, shape, tail, where)
    if code == lowlevel.WARP_PART:
        absent = [lane for lane in range(32) if not n0 >> lane & 1]
        return WarpError(
            f"{at}: {text} under divergence: {spot} calls it, and {_lanes(absent)} of its warp "
            f"{'does' if len(absent) == 1 else 'do'} not; all 32 lanes must{tail}",
            **where,
        )
    if code == lowlevel.BARRIER:
        if text == "grid_sync":
            spot = f"thread {_short(thread, run.block)} of block {_short(block, run.grid)}"
            why = "is elsewhere in the kernel" if n2 else "has returned"
            return BarrierError(
                f"{at}: cg.this_grid().sync() was reached by {n0} of the {n1} threads of the grid; {spot} {why}. Every "
                f"thread of the grid must reach it{tail}",
                **where,
            )
        why = "is elsewhere in the kernel" if n2 else "has returned"
        return BarrierError(
            f"{at}: cuda.{text}() was reached by {n0} of the {n1} threads of block {_short(block, run.grid)}; "
            f"thread {_short(thread, run.block)} {why}. Every thread of a block must reach a barrier{tail}",
            **where,
        )
    if code == lowlevel.WARP_MASK:
        absent = [lane for lane in range(32) if n2 >> lane & 1]
        return WarpError(
            f"{at}: cuda.{text} under divergence: {spot} calls it with the mask {n0 & 0xFFFFFFFF:#010x}, and "
            f"{_lanes(absent)} of its warp, named by the mask, {'is' if len(absent) == 1 else 'are'} not there{tail}",
            **where,
        )
    if code == lowlevel.WARP_SELF:
        lane = int(record[lowlevel.THREAD]) & 31
        return WarpError(
            f"{at}: {spot} calls cuda.{text} with the mask {n0 & 0xFFFFFFFF:#010x}, which leaves out its own lane, "
            f"{lane}{tail}",
            **where,
        )
    if code == lowlevel.WARP_SOURCE:
        return WarpError(
            f"{at}: {spot} reads lane {n0} with cuda.{text}, and that lane takes no part in it: it has returned, does "
            f"not exist, or is not in the mask{tail}",
            **where,
        )
    if code == lowlevel.ASSERTION:
        return KernelAssertionError(f"{at}: an assertion failed in {spot}{tail}", **where)
    seconds = f"{limit:g} s" if limit else "the time limit"
    return KernelTimeout(
        f"{at}: stopped after {seconds} in which no block ended: a loop that never ends? It was {spot} "
        f"that ran. LABKIT_TIME_LIMIT sets the limit in seconds{tail}",
        **where,
    )


def out_of_row(at, spot, intrinsic, array, index, count, shape, tail, where):
    """The error for elements index to index + count - 1, counted flat, of an array of this shape."""
    size = int(np.prod(shape))
    span = f"element {index}" if count == 1 else f"elements {index} to {index + count - 1}"
    error = OutOfBoundsError(
        f"{at}: {spot} uses {span} of {array} with {intrinsic}, and its shape {shape} has {size:,} elements{tail}",
        **where,
    )
    error.array, error.index, error.shape = array, (index,), shape
    return error


def misaligned(at, spot, intrinsic, array, index, alignment, tail, where):
    """The error for an address that is not a multiple of what the intrinsic needs."""
    error = MisalignedError(
        f"{at}: {spot} uses {array} from element {index} on with {intrinsic}, and that address is not a multiple of "
        f"{alignment} bytes{tail}",
        **where,
    )
    error.array, error.index = array, (index,)
    return error


def _lanes(lanes):
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"


def _plain(index):
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _short(position, shape):
    """x alone for a one-dimensional block or grid, else the tuple."""
    if shape[1] == shape[2] == 1:
        return str(position[0])
    return str(position[:2] if shape[2] == 1 else position)


def show(kernel, *args):
    """The source that the CPU device runs for a kernel, without its bounds checks, as text.

    Takes a kernel and the arguments of a launch (their types decide what is kept for each thread).
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"show takes a kernel of the CPU device, not {kernel!r}")
    program = rewrite(kernel.py_func)
    if program.interpreted:
        from labkit.simt.interpreted_source import source

        return source(program)
    if kernel._given and not args:
        argument_types = kernel._given[0]
    elif len(args) != len(kernel.params):
        raise ArgumentError(f"show({kernel.__name__}, ...) needs the arguments of a launch: {', '.join(kernel.params)}")
    else:
        argument_types = tuple(numba.typeof(_host_view(a)) for a in args)
    constants = [numba.typeof(_constant(a)) for a in program.constants.values()]
    return Generator(program, (*constants, *argument_types), pretty=True).generate()



