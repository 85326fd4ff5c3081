"""labkit.ptx for numba-cuda: each intrinsic as Numba sees it, and the LLVM that holds its line of PTX.

Numba has no public call for inline PTX. An `@intrinsic` gives the types of a call and writes LLVM; `ir.InlineAsm` puts
a line of PTX into it, one of labkit.device.ptx_lines. A line with a memory clobber stays in its place among loads and
stores; one that only computes is marked convergent, so that no compiler moves it into a branch that some lanes do not
take.

Importing this needs numba-cuda but no GPU: `labkit.device.compiling` reads the PTX of kernels without one.
"""

from __future__ import annotations

import functools

from llvmlite import ir

from labkit import device
from labkit.device import ptx_lines
from labkit.device.ptx_lines import CONSTANT_LINES, LINES, TENSOR_MAP, U64, WGMMA, Memory
from labkit.device.tensor_maps import tensor_map_2d  # noqa: F401  (one of labkit.ptx's names)

device.numba_cuda()  # the fixes that numba-cuda needs come before its first import

from numba.cuda import dispatcher, types  # noqa: E402
from numba.cuda.core.errors import TypingError  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402

F32, I32, I64, VOID = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.VoidType()
LLVM = {ptx_lines.F32: F32, ptx_lines.U32: I32, ptx_lines.I32: I32, U64: I64}
checks = ptx_lines.Checks(types, TypingError)
_named = functools.partial(ptx_lines.named, intrinsic=intrinsic)


# --- Addresses --------------------------------------------------------------------------------------------------------


def _global_address(context, builder, array_type, array, index_type, index):
    data = context.make_array(array_type)(context, builder, array).data
    if index.type.width < 64:
        index = builder.sext(index, I64) if index_type.signed else builder.zext(index, I64)
    return builder.ptrtoint(builder.gep(data, [index]), I64)


def _shared_address(context, builder, array_type, array, index_type, index):
    """The 32-bit address in the shared window, which the instructions for shared memory take. The index is scaled in
    32 bits: so the constants of an unrolled loop become offsets in the instructions, and cost nothing."""
    data = context.make_array(array_type)(context, builder, array).data
    start = builder.ptrtoint(builder.addrspacecast(data, ir.PointerType(data.type.pointee, 3)), I32)
    if index.type.width > 32:
        index = builder.trunc(index, I32)
    elif index.type.width < 32:
        index = builder.sext(index, I32) if index_type.signed else builder.zext(index, I32)
    return builder.add(start, builder.mul(index, ir.Constant(I32, array_type.dtype.bitwidth // 8)))


ADDRESS = {"global": (_global_address, U64), "shared": (_shared_address, ptx_lines.U32)}


def _registers(context, builder, operands, arg_types, args) -> tuple[list, list[str]]:
    """(what the line of PTX takes for these arguments, their types): an address for an array and an index."""
    remaining, values, kinds = zip(arg_types, args, strict=True), [], []
    for operand in operands:
        kind, value = next(remaining)
        if isinstance(operand, Memory):
            address, register = ADDRESS[operand.space]
            values.append(address(context, builder, kind, value, *next(remaining)))
        elif operand == TENSOR_MAP:
            register = U64
            values.append(_global_address(context, builder, kind, value, types.uint64, ir.Constant(I64, 0)))
        else:
            register = str(kind)
            values.append(value)
        kinds.append(register)
    return values, kinds


def _capability() -> tuple:
    """The compute capability that is being compiled for."""
    return tuple(dispatcher.get_current_device().compute_capability)


# --- Lines of PTX -----------------------------------------------------------------------------------------------------


def _inline_asm(builder, text, results, operands, constraints, in_place=True):
    """Emit a line of PTX. `results` are LLVM types; several are returned as a struct. Return their values as a list."""
    returned = VOID if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    asm = ir.InlineAsm(ir.FunctionType(returned, [o.type for o in operands]), text, constraints, side_effect=in_place)
    value = builder.call(asm, operands, attrs=() if in_place else ("convergent",))
    return [value] if len(results) == 1 else [builder.extract_value(value, k) for k in range(len(results))]


def _line(name):
    """An intrinsic that is a line of PTX."""
    line = LINES[name]

    def typing(typingctx, *args):
        word, results, arguments = checks.call(name, args)

        def codegen(context, builder, sig, args):
            values, kinds = _registers(context, builder, line.operands, sig.args, args)
            text = line.form(_capability()).replace("{type}", word)
            values = _inline_asm(builder, text, [LLVM[result] for result in results], values,
                                 line.constraints(results, kinds), line.in_place)
            if not results:
                return context.get_dummy_value()
            return values[0] if len(values) == 1 else context.make_tuple(builder, sig.return_type, values)

        return checks.returned(results)(*arguments), codegen

    return _named(name, typing)


def _constant_line(name):
    """An intrinsic whose only operand is a constant."""

    def typing(typingctx, *args):
        checks.arity(name, args)
        n = checks.literal(name, "n", args[0])

        def codegen(context, builder, sig, args):
            text = CONSTANT_LINES[name].form(_capability()).format(n=n)
            _inline_asm(builder, text, [], [], "~{memory}")
            return context.get_dummy_value()

        return types.void(args[0]), codegen

    return _named(name, typing)


def _wgmma(name):
    """The accumulators of one thread go in and out through a local array."""
    line = WGMMA[name]

    def typing(typingctx, *args):
        checks.arity(name, args)
        checks.accumulators(name, args[0], line.count)

        def codegen(context, builder, sig, args):
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            pointers = [builder.gep(data, [ir.Constant(I64, k)]) for k in range(line.count)]
            values = _inline_asm(builder, line.text, [F32] * line.count,
                                 [*[builder.load(p) for p in pointers], *args[1:]], line.constraints)
            for pointer, value in zip(pointers, values, strict=True):
                builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(args[0], *map(checks.of, line.a), types.uint64, types.uint32), codegen

    return _named(name, typing)


def _typing_of_descriptor(typingctx, *args):
    name = "wgmma_descriptor"
    checks.arity(name, args)
    i = checks.integer(name, "i", args[1])
    checks.array(name, "shared", args[0], *ptx_lines.SHARED_TILE)
    fixed = ptx_lines.wgmma_descriptor_bits(*(checks.literal(name, parameter, value) for parameter, value in zip(
        ("leading_bytes", "stride_bytes", "swizzle"), args[2:], strict=True)))

    def codegen(context, builder, sig, args):
        start = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        start = builder.lshr(builder.and_(start, ir.Constant(I32, 0x3FFFF)), ir.Constant(I32, 4))
        return builder.or_(builder.zext(start, I64), ir.Constant(I64, fixed))

    return types.uint64(args[0], i, *args[2:]), codegen


globals().update({name: _line(name) for name in LINES})
globals().update({name: _constant_line(name) for name in CONSTANT_LINES})
globals().update({name: _wgmma(name) for name in WGMMA})
wgmma_descriptor = _named("wgmma_descriptor", _typing_of_descriptor)
