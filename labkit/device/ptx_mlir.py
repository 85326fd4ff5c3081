"""labkit.ptx for numba-cuda-mlir: each intrinsic as its typing sees it, and the MLIR that holds its line of PTX.

The lines are those of labkit.device.ptx_lines. `cuda.experimental.inline_ptx` could hold most of them, but takes no
address of an element, writes each result to memory of its own, and turns every % of a text into a $; so the operation
below it is used, `llvm.inline_asm`. It cannot be marked convergent: what a warp executes together is volatile instead.

Importing this needs numba-cuda-mlir but no GPU.
"""

from __future__ import annotations

import functools

from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm, memref
from numba_cuda_mlir.extending import intrinsic, refresh_registries
from numba_cuda_mlir.lowering_utilities import convert, index_of, llvm_ptr_add_bytes, memref_data_pointer
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core.errors import TypingError
from numba_cuda_mlir.tools import parse_compute_capability

from labkit.device import ptx_lines
from labkit.device.ptx_lines import CONSTANT_LINES, F32, LINES, TENSOR_MAP, U64, WGMMA, Memory
from labkit.device.tensor_maps import tensor_map_2d  # noqa: F401  (one of labkit.ptx's names)

checks = ptx_lines.Checks(types, TypingError)
_named = functools.partial(ptx_lines.named, intrinsic=intrinsic)


def _mlir_type(kind: str):
    return ir.F32Type.get() if kind == F32 else ir.IntegerType.get_signless(64 if kind == U64 else 32)


def _constant(kind: str, value: int):
    """A constant of 32 or 64 bits; MLIR takes it as signed."""
    bits = 64 if kind == U64 else 32
    return arith.constant(_mlir_type(kind), value - (1 << bits) if value >> (bits - 1) else value)


# --- Addresses --------------------------------------------------------------------------------------------------------


def _index(builder, variable, bits):
    """An index as an integer of `bits`."""
    kind = types.unliteral(builder.get_numba_type(variable.name))
    return convert(builder.load_var(variable), ir.IntegerType.get_signless(bits), signed=kind.signed)


def _global_address(builder, array, index):
    """The 64-bit address of an element of a C-contiguous array; of its first without an index."""
    pointer = memref_data_pointer(builder.load_var(array))
    if index is not None:
        size = builder.get_numba_type(array.name).dtype.bitwidth // 8
        offset = _index(builder, index, 64)
        pointer = llvm_ptr_add_bytes(pointer, arith.muli(offset, _constant(U64, size)))
    return llvm.ptrtoint(_mlir_type(U64), pointer)


def _shared_address(builder, array, index):
    """The 32-bit address in the shared window, which the instructions for shared memory take. The index is scaled in
    32 bits: so the constants of an unrolled loop become offsets in the instructions, and cost nothing."""
    pointer = memref_data_pointer(builder.load_var(array))
    start = llvm.ptrtoint(_mlir_type("uint32"), llvm.addrspacecast(llvm.PointerType.get(3), pointer))
    size = builder.get_numba_type(array.name).dtype.bitwidth // 8
    return arith.addi(start, arith.muli(_index(builder, index, 32), _constant("uint32", size)))


ADDRESS = {"global": _global_address, "shared": _shared_address}


def _converted(builder, variable, kind: str):
    """An argument in the type that the instruction takes."""
    given, taken = types.unliteral(builder.get_numba_type(variable.name)), checks.of(kind)
    value = builder.load_var(variable)
    if given == taken and getattr(value, "type", None) == _mlir_type(kind):
        return value
    return builder.lower_cast(given, taken, value)


def _capability(builder) -> tuple:
    """The compute capability that is being compiled for."""
    return parse_compute_capability(builder.targetoptions["chip"])


# --- Lines of PTX -----------------------------------------------------------------------------------------------------


def _inline_asm(text, results, operands, constraints, in_place):
    """Emit a line of PTX. `results` are names of types. Return their values as a list."""
    kinds = [_mlir_type(result) for result in results]
    returned = None if not kinds else kinds[0] if len(kinds) == 1 else llvm.StructType.get_literal(kinds)
    value = llvm.inline_asm(returned, operands, text, constraints, has_side_effects=in_place)
    if len(kinds) < 2:
        return [value] if kinds else []
    return [llvm.extractvalue(kind, value, [k]) for k, kind in enumerate(kinds)]


def _line(name):
    """An intrinsic that is a line of PTX."""
    line = LINES[name]

    def typing(typingctx, *args):
        word, results, arguments = checks.call(name, args)

        def codegen(builder, target, args, kwargs):
            remaining, operands, letters = zip(arguments, args, strict=True), [], []
            for operand in line.operands:
                kind, variable = next(remaining)
                if isinstance(operand, Memory):
                    _, index = next(remaining)
                    operands.append(ADDRESS[operand.space](builder, variable, index))
                    letters.append(U64 if operand.space == "global" else "uint32")
                elif operand == TENSOR_MAP:
                    operands.append(_global_address(builder, variable, None))
                    letters.append(U64)
                else:
                    operands.append(_converted(builder, variable, str(kind)))
                    letters.append(str(kind))
            text = line.form(_capability(builder)).replace("{type}", word)
            values = _inline_asm(text, results, operands, line.constraints(results, letters),
                                 line.in_place or line.aligned)
            builder.store_var(target, None if not values else values[0] if len(values) == 1 else tuple(values))

        return checks.returned(results)(*arguments), codegen

    return _named(name, typing)


def _constant_line(name):
    """An intrinsic whose only operand is a constant."""

    def typing(typingctx, *args):
        checks.arity(name, args)
        n = checks.literal(name, "n", args[0])

        def codegen(builder, target, args, kwargs):
            text = CONSTANT_LINES[name].form(_capability(builder)).format(n=n)
            _inline_asm(text, [], [], "~{memory}", True)
            builder.store_var(target, None)

        return types.void(args[0]), codegen

    return _named(name, typing)


def _wgmma(name):
    """The accumulators of one thread go in and out through a local array."""
    line = WGMMA[name]

    def typing(typingctx, *args):
        checks.arity(name, args)
        checks.accumulators(name, args[0], line.count)
        kinds = [*line.a, U64, "uint32"]

        def codegen(builder, target, args, kwargs):
            acc, places = builder.load_var(args[0]), [index_of(k) for k in range(line.count)]
            operands = [memref.load(acc, [place]) for place in places]
            operands += [_converted(builder, variable, kind) for variable, kind in zip(args[1:], kinds, strict=True)]
            values = _inline_asm(line.text, [F32] * line.count, operands, line.constraints, True)
            for place, value in zip(places, values, strict=True):
                memref.store(value, acc, [place])
            builder.store_var(target, None)

        return types.void(args[0], *[checks.of(kind) for kind in kinds]), codegen

    return _named(name, typing)


def _typing_of_descriptor(typingctx, *args):
    name = "wgmma_descriptor"
    checks.arity(name, args)
    i = checks.integer(name, "i", args[1])
    checks.array(name, "shared", args[0], *ptx_lines.SHARED_TILE)
    fixed = ptx_lines.wgmma_descriptor_bits(*(checks.literal(name, parameter, value) for parameter, value in zip(
        ("leading_bytes", "stride_bytes", "swizzle"), args[2:], strict=True)))

    def codegen(builder, target, args, kwargs):
        start = arith.andi(_shared_address(builder, *args[:2]), _constant("uint32", 0x3FFFF))
        start = arith.shrui(start, _constant("uint32", 4))
        wide = arith.extui(_mlir_type(U64), start)
        builder.store_var(target, arith.ori(wide, _constant(U64, fixed)))

    return types.uint64(args[0], i, *args[2:]), codegen


globals().update({name: _line(name) for name in LINES})
globals().update({name: _constant_line(name) for name in CONSTANT_LINES})
globals().update({name: _wgmma(name) for name in WGMMA})
wgmma_descriptor = _named("wgmma_descriptor", _typing_of_descriptor)
refresh_registries(include_uninitialized_cuda=False)  # the compiler may have read them already
