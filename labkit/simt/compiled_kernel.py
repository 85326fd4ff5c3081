"""A kernel compiled for one set of argument types, or prepared for the interpreter."""

import hashlib

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError

from labkit.simt.arrays import DeviceNDArray
from labkit.simt.cache import is_code_cached, kept_kernel, load_module, own_version
from labkit.simt.codegen.emit import Generator, code_name
from labkit.simt.codegen.inference import KernelCompiler, type_error
from labkit.simt.codegen.liveness import replaced
from labkit.simt.codegen.native import HEAD, Packing, compile_kernel
from labkit.simt.errors import UnsupportedError
from labkit.simt.interpreter import shared_bytes
from labkit.simt.ir import fingerprint_of
from labkit.simt.runtime import float16  # noqa: F401 (float16 is registered by its import)
from labkit.simt.settings import LIMITS, MAX_COOPERATIVE_THREADS, is_checked

HIGHEST_OPT = 2


# What numba.cuda's compiled kernels have on a GPU alone.
_OF_GPU_CODE = {"_codelibrary", "NRT_functions", "argument_types", "bind", "codegen", "const_mem_size",
                "initialize_once", "inspect_asm", "inspect_llvm", "inspect_lto_ptx", "inspect_sass", "inspect_sass_cfg",
                "inspect_types", "launch", "library", "local_mem_per_thread", "maybe_link_nrt", "regs_per_thread",
                "type_annotation"}  # fmt: skip


class _Overload:
    """What numba.cuda tells of a kernel that is compiled for one set of argument types."""

    max_threads_per_block = LIMITS.max_threads_per_block
    shared_mem_per_block = property(lambda self: self.static_bytes)
    cooperative = property(lambda self: self.program.cooperative)  # it holds a barrier of the grid

    def __getattr__(self, name):
        if name in _OF_GPU_CODE:
            raise AttributeError(f"{name} of a compiled kernel describes GPU code: it needs a GPU")
        raise AttributeError(f"a compiled kernel has no attribute {name!r}")

    def max_cooperative_grid_blocks(self, blockdim, dynsmemsize=0):
        """The largest grid that cg.this_grid().sync() can hold together, in blocks."""
        threads = int(np.prod(blockdim))
        return max(1, MAX_COOPERATIVE_THREADS // threads)


class CompiledKernel(_Overload):
    """A kernel compiled for one set of argument types."""

    def __init__(self, program, argument_types, ordered, flat):
        self.program, self.constants, self.ordered = program, _constants(program), ordered
        name, all_types = _named(program, argument_types, ordered, flat)

        def source():
            return Generator(program, all_types, is_checked(), ordered=ordered, flat=flat).generate()

        self._load(name, load_module(name, source, program.objects), all_types)

    def _load(self, name, module, all_types):
        """Compile the generated module for its one signature, or take what the cache has."""
        program = self.program
        self.sites = module.SITES
        self.static_bytes, self.shared_bytes, self.fixed_bytes, self.thread_bytes = module.SIZES
        signature, function = _signature(all_types), getattr(module, code_name(program))

        def compiled():
            return compile_kernel(function, signature, KernelCompiler, counts_references=bool(program.devices))

        try:
            with _quicker_compiles():
                self.native = (kept_kernel(name, function.__name__, signature, compiled) if module.IS_KEPT
                               else compiled())
        except (NumbaError, NotImplementedError) as error:
            raise type_error(program, error, module.SOURCE) from error
        except UnsupportedError as error:  # of an intrinsic, as it makes its code
            raise UnsupportedError.at(program.name, program.filename, program.line, error.sentence) from error
        given = signature[-len(all_types) :] if all_types else ()
        count = len(self.constants)
        self._constant_bytes = Packing(given[:count])(self.constants)
        self._packing = Packing(given[count:])

    def bound(self, grid, block, dynamic, arguments):
        """A function that runs blocks `first` to `last` with these arguments: called with those two, and with where the
        scratch memory and the record are, as `array_words` has them."""
        given = self._constant_bytes + self._packing(arguments)
        launch, run = (*grid, *block, dynamic), self.native.run
        return lambda first, last, memory, record: run(HEAD.pack(first, last, *launch, *memory, *record) + given)

    def scratch_bytes(self, threads, blocks, dynamic):
        padded = -(-threads // 32) * 32
        shared = (self.shared_bytes + -(-dynamic // 64) * 64) * blocks
        return shared + self.fixed_bytes + self.thread_bytes * padded * blocks + 64


class InterpretedKernel(_Overload):
    """A kernel that is interpreted: its warps wait for one another inside their own loops."""

    def __init__(self, program):
        self.program = program
        self.static_bytes = shared_bytes(program)


def is_cached(program, argument_types, ordered, flat):
    """Whether an earlier process has compiled this and the cache on disk still has it."""
    name, all_types = _named(program, argument_types, ordered, flat)
    with _quicker_compiles():
        return is_code_cached(name, code_name(program), _signature(all_types))


def _constants(program):
    return [frozen_constant(a) for a in program.constants.values()]


def _named(program, argument_types, ordered, flat):
    """(name in the cache, types of constants and arguments)."""
    for ty in argument_types:  # the code makes such tuples anew where it keeps them across a barrier
        made = getattr(ty, "instance_class", None)
        if made is not None and made not in program.objects.values():
            program.objects[f"_object{len(program.objects)}"] = made
    all_types = (*map(numba.typeof, _constants(program)), *argument_types)
    settings = map(str, (all_types, is_checked(), ordered, flat))
    fingerprint = "\n".join([own_version(), *settings, fingerprint_of(program)])
    return f"{program.name}_{hashlib.sha256(fingerprint.encode()).hexdigest()[:20]}", all_types


def _signature(all_types):
    int64, triple = types.int64, types.UniTuple(types.int64, 3)
    return (int64, int64, triple, triple, int64, types.Array(types.uint8, 1, "C"), types.Array(int64, 1, "C"),
            *all_types)


def _quicker_compiles():
    """LLVM's -O2: kernels compile in half the time that Numba's -O3 takes, and run as fast."""
    level = numba.core.config.OPT
    return replaced(numba.core.config, "OPT", type(level)(min(int(level), HIGHEST_OPT)))


def frozen_constant(array):
    """A global array as a kernel sees it: host arrays as they were at compile time, device arrays themselves."""
    if isinstance(array, DeviceNDArray):
        return array._array
    frozen = np.array(array, order="C")
    frozen.flags.writeable = False
    return frozen
