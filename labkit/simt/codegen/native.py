"""Native code of a kernel: LLVM's passes over it, what it is linked with, and how Python calls it.

Numba's own way is made for functions that allocate, are called by others and take Python objects. A kernel does none of
that, so its code is optimised once, for a short compile; device functions are handed to LLVM with the kernel alone;
shared functions of the runtime are called by their addresses in this process; and the arguments of a launch are packed
into memory in the layout that the code reads, so no wrapper has to unpack Python objects.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import struct

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import cgutils, codegen, compiler, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

from labkit.simt.codegen.liveness import replaced

OPT_LEVEL = 2  # at most: $NUMBA_OPT may say less
_I64 = ir.IntType(64)
_FLAGS = {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": None}


def bind(call):
    """Tell LLVM the address of a shared function; compile it, or take it from the disk, where that is yet to be done.

    call: (module, name, argument types, its symbol in the kernel's code), as the runtime's shared_function.py has it.
    """
    module, name, argument_types, symbol = call
    dispatcher = getattr(importlib.import_module(module), name)
    dispatcher.compile(argument_types)
    result = dispatcher.overloads[argument_types]
    llvm.add_symbol(symbol, result.library.get_pointer_to_function(result.fndesc.llvm_func_name))


class DeviceLibrary(codegen.JITCodeLibrary):
    """The code of a device function: no machine code is made of it, only of the kernel that it is linked into."""

    def __init__(self, owner, name):
        super().__init__(owner, name)
        self.calls = {}

    def add_linking_library(self, library):
        if isinstance(library, DeviceLibrary):
            self.calls.update(library.calls)
        call = getattr(library, "shared_call", None)
        if call is None:
            super().add_linking_library(library)
        elif call[-1] not in self.calls:
            self.calls[call[-1]] = call
            bind(call)

    def _optimize_functions(self, ll_module):
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True


class KernelLibrary(DeviceLibrary):
    """The code of a kernel. counts_references: whether it may hold arrays of counted memory, a device function's."""

    def __init__(self, owner, name, counts_references):
        super().__init__(owner, name)
        self.counts_references = counts_references
        self.enable_object_caching()

    _finalize_final_module = codegen.JITCodeLibrary._finalize_final_module

    def _optimize_final_module(self):
        manager, builder = self._codegen.passes(self.counts_references)
        manager.run(self._final_module, builder)


class _Codegen(codegen.JITCPUCodegen):
    _library_class = KernelLibrary

    def passes(self, counts_references):
        """LLVM's for a kernel: no vectors, which its masked loops over threads gain little from."""
        settings = {"opt": min(int(compiler.config.OPT), OPT_LEVEL), "loop_vectorize": False, "slp_vectorize": False}
        if counts_references:
            return self._module_pass_manager(**settings)
        builder = self._pass_builder(**settings)
        return builder.getModulePassManager(), builder


@functools.cache
def own_codegen():
    """What makes code of kernels: beside Numba's own, since its machine code is optimised less."""
    level = compiler.config.OPT
    with replaced(compiler.config, "OPT", type(level)(min(int(level), OPT_LEVEL))):
        return _Codegen("labkit.simt")


class NativeKernel:
    """A compiled kernel. `run(buffer)` runs it; the bytes of the buffer are HEAD's, then those of `Packing`."""

    def __init__(self, library, entry, environments):
        self.library, self.entry, self.environments = library, entry, environments
        engine = library.codegen._engine
        address = engine.get_function_address(entry)
        for environment in environments:
            library.codegen.set_env(environment.env_name, environment)
        self.run = ctypes.PYFUNCTYPE(None, ctypes.c_char_p)(address)

    @classmethod
    def made(cls, library, fndesc):
        library._ensure_finalized()
        names = [each.name for each in library._final_module.global_variables]
        environments = [lookup_environment(name) for name in names if name.startswith("_ZN08NumbaEnv")]
        return cls(library, fndesc.llvm_cpython_wrapper_name, [each for each in environments if each is not None])

    def state(self):
        """Return what `from_state` rebuilds it from in another process; None if it holds addresses of this one."""
        library = self.library
        names = [each.name for each in library._final_module.global_variables]
        # Functions that call each other do so through addresses that Numba fills in as it compiles them.
        if (library.has_dynamic_globals or not all(each.can_cache() for each in self.environments)
                or any(name.startswith(codegen.RuntimeLinker.PREFIX) for name in names)):
            return None
        return (library.name, library._get_compiled_object(), self.entry, self.environments, (*library.calls.values(),),
                (*library._reload_init,))

    @classmethod
    def from_state(cls, state):
        name, code, entry, environments, calls, reload_init = state
        cpu_target.target_context.refresh()
        for each in reload_init:
            each()
        for call in calls:
            bind(call)
        library = KernelLibrary(own_codegen(), name, False)
        library._set_compiled_object(code)
        library._finalize_final_module()
        return cls(library, entry, environments)


class _Flags(compiler.Flags):
    """Settings of Numba that never change, compared by identity: it looks them up with each operation's type."""

    __hash__, __eq__ = object.__hash__, object.__eq__

    def copy(self):
        return self


@functools.cache
def _flags():
    flags = _Flags()
    cpu_target.options.parse_as_flags(flags, _FLAGS)
    return flags


@contextlib.contextmanager
def _no_collection():
    """Python's collector of cycles does not run: it would look at all of Numba's objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_compiler(function, argument_types, pipeline_class, library=None):
    """What the last pass of the pipeline leaves of a generated function."""
    cpu_target.target_context.refresh()
    cpu_target.typing_context.refresh()
    with global_compiler_lock, _no_collection():
        return compiler.compile_extra(
            cpu_target.typing_context, cpu_target.target_context, function, argument_types, None, _flags(), {},
            library=library, pipeline_class=pipeline_class,
        )  # fmt: skip


def compile_kernel(function, argument_types, pipeline_class, counts_references):
    """The NativeKernel of a generated function."""
    library = KernelLibrary(own_codegen(), function.__qualname__, counts_references)
    return run_compiler(function, argument_types, pipeline_class, library)


# ---------------------------------------------------------------- the arguments of a launch, in memory


HEAD = struct.Struct("=9q7q7q")  # first and last block, grid, block, dynamic bytes; scratch memory; record


def array_words(array):
    """An array as compiled code has it: two addresses of an owner, elements, bytes of each, address, shape, strides."""
    return (0, 0, array.size, array.itemsize, array.__array_interface__["data"][0], *array.shape, *array.strides)


class Packing:
    """Called with values of these types, gives the bytes that hold them."""

    def __init__(self, argument_types):
        self.words = [words(ty) for ty in argument_types]
        self.pack = struct.Struct(f"={''.join(map(slots, argument_types))}").pack

    def __call__(self, values):
        return self.pack(*[word for give, value in zip(self.words, values, strict=True) for word in give(value)])


def slots(ty):
    """The format of an argument in memory, for the module struct: 8 bytes for each number in it."""
    if isinstance(ty, types.Array):
        return "q" * (5 + 2 * ty.ndim)
    if isinstance(ty, types.BaseTuple):
        return "".join(map(slots, ty.types))
    if isinstance(ty, types.EnumMember):
        return slots(ty.dtype)
    if isinstance(ty, types.Complex):
        return "dd"
    if isinstance(ty, types.Float):
        return "d"
    return "Q" if isinstance(ty, types.Integer) and not ty.signed else "q"


def words(ty):
    """A function that gives the values of an argument of this type, in the order of `slots`."""
    if isinstance(ty, types.Array):
        return array_words
    if isinstance(ty, types.BaseTuple):
        parts = [words(part) for part in ty.types]
        return lambda value: [word for give, part in zip(parts, value, strict=True) for word in give(part)]
    if isinstance(ty, types.Complex):
        return lambda value: (value.real, value.imag)
    if isinstance(ty, types.Record):
        return lambda value: (_address(value),)
    if isinstance(ty, types.EnumMember):
        of_member = words(ty.dtype)
        return lambda member: of_member(member.value)
    if isinstance(ty, (types.NPDatetime, types.NPTimedelta)):
        return lambda value: (int(value.astype(np.int64)),)
    if isinstance(ty, (types.Float, types.Integer)):
        return lambda value: (value,)
    return lambda value: (int(value),)


def _address(record):
    """Where the bytes of a record are."""
    return np.frombuffer(record, np.uint8).__array_interface__["data"][0]


def write_entry(context, library, fndesc):
    """The function that Python calls: it reads the arguments of the kernel from memory, and runs it without the lock
    of the interpreter."""
    module = library.create_ir_module("entry")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64.as_pointer()]),
                           fndesc.llvm_cpython_wrapper_name)
    builder = ir.IRBuilder(function.append_basic_block())
    position = iter(range(1 << 20))

    def next_word(count=1):
        start = next(position)
        for _ in range(count - 1):
            next(position)
        return builder.gep(function.args[0], [ir.Constant(_I64, start)])

    def value(ty):
        if isinstance(ty, types.EnumMember):
            return value(ty.dtype)
        if isinstance(ty, types.BaseTuple):
            return context.make_tuple(builder, ty, [value(part) for part in ty.types])
        if isinstance(ty, types.Complex):
            number = context.make_complex(builder, ty)
            number.real, number.imag = value(ty.underlying_float), value(ty.underlying_float)
            return number._getvalue()
        form = context.get_value_type(ty)
        if isinstance(ty, types.Array):
            return builder.load(builder.bitcast(next_word(5 + 2 * ty.ndim), form.as_pointer()))
        if isinstance(ty, types.Float):
            number = builder.load(builder.bitcast(next_word(), ir.DoubleType().as_pointer()))
            return number if ty == types.float64 else builder.fptrunc(number, form)
        word = builder.load(next_word())
        if isinstance(form, ir.PointerType):
            return builder.inttoptr(word, form)
        return word if form == _I64 else builder.trunc(word, form)

    arguments = [value(ty) for ty in fndesc.argtypes]
    api = context.get_python_api(builder)
    callee = ir.Function(module, context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes),
                         fndesc.llvm_func_name)
    thread = api.save_thread()
    status, _ = context.call_conv.call_function(builder, callee, fndesc.restype, fndesc.argtypes, arguments,
                                                attrs=("noinline",))  # fmt: skip
    api.restore_thread(thread)
    with builder.if_then(status.is_error, likely=False):
        handled = cgutils.is_not_null(builder, api.err_occurred())  # the exception of a signal's handler
        with builder.if_then(builder.not_(handled)):
            context.call_conv.raise_error(builder, api, status)
    builder.ret_void()
    library.add_ir_module(module)
