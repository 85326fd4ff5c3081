"""The GPU's half of labkit.ptx: each intrinsic as Numba sees it, and the PTX it becomes.

Numba has no public call for inline PTX. An `@intrinsic` gives the types of a call and writes LLVM; `ir.InlineAsm` puts
a line of PTX into it. A line with a memory clobber stays in its place among loads and stores; one that only computes is
marked convergent, so that no compiler moves it into a branch that some lanes do not take.

Importing this needs numba-cuda but no GPU: `labkit.device.compiling` reads the PTX of kernels without one.
labkit.simt.ptx documents each intrinsic, next to its CPU implementation.
"""

from __future__ import annotations

import functools
import inspect

import numpy as np
from llvmlite import ir

from labkit import cuda, device
from labkit.device.quick_launch import kept
from labkit.simt import ptx as cpu_ptx

device.numba_cuda()  # the fixes that numba-cuda needs come before its first import

from numba.cuda import types  # noqa: E402
from numba.cuda.core.errors import TypingError  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402

F32, I32, I64, VOID = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.VoidType()
f32, u32, i32, u64 = types.float32, types.uint32, types.int32, types.uint64
LLVM = {f32: F32, u32: I32, i32: I32, u64: I64}
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
LETTER = {f32: "f", u32: "r", i32: "r", u64: "l"}


# --- Addresses, and lines of PTX --------------------------------------------------------------------------------------


def _array(name, parameter, array, itemsizes, allowed):
    """Raise an error that names the argument unless it is a contiguous array of an allowed element size."""
    if not isinstance(array, types.Array):
        raise TypingError(f"ptx.{name}: {parameter} is {array}; it must be an array")
    if array.layout != "C":
        raise TypingError(f"ptx.{name}: {parameter} is not C-contiguous; pass the whole array and a flat index")
    if array.dtype.bitwidth // 8 not in itemsizes:
        raise TypingError(f"ptx.{name}: {parameter} is an array of {array.dtype}; allowed are {allowed}")


def _integer(name, parameter, value):
    value = types.unliteral(value)
    if not isinstance(value, types.Integer):
        raise TypingError(f"ptx.{name}: {parameter} is {value}; it must be an integer")
    return value


def _arity(name, args, parameters):
    if len(args) != len(parameters):
        raise TypingError(f"ptx.{name} takes {len(parameters)} arguments ({', '.join(parameters)}), got {len(args)}")


def _literal(name, parameter, value, allowed):
    if not isinstance(value, types.IntegerLiteral) or value.literal_value not in allowed:
        actual = value.literal_value if isinstance(value, types.IntegerLiteral) else value
        raise TypingError(f"ptx.{name}: {parameter} is {actual}; it must be a constant, {allowed.start} to "
                          f"{allowed.stop - 1}" + (f" in steps of {allowed.step}" if allowed.step > 1 else ""))
    return value.literal_value


def _pointer(context, builder, array_type, array, index_type, index):
    data = context.make_array(array_type)(context, builder, array).data
    if index.type.width < 64:
        index = builder.sext(index, I64) if index_type.signed else builder.zext(index, I64)
    return builder.gep(data, [index])


def _global_address(*location):
    builder = location[1]
    return builder.ptrtoint(_pointer(*location), I64)


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


def _inline_asm(builder, text, results, operands, constraints, memory=True):
    """Emit a line of PTX. `results` are LLVM types; several are returned as a struct. Return their values as a list."""
    returned = VOID if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    constraints = ",".join([*constraints, *(["~{memory}"] if memory else [])])
    asm = ir.InlineAsm(ir.FunctionType(returned, [o.type for o in operands]), text, constraints, side_effect=memory)
    value = builder.call(asm, operands, attrs=() if memory else ("convergent",))
    return [value] if len(results) == 1 else [builder.extract_value(value, k) for k in range(len(results))]


def _return_value(context, builder, sig, values):
    if sig.return_type == types.void:
        return context.get_dummy_value()
    if isinstance(sig.return_type, types.UniTuple):
        return context.make_tuple(builder, sig.return_type, values)
    return values[0]


def _named(name):
    """An intrinsic called `name`, with the documentation and the CPU device's counterpart from labkit.simt.ptx."""

    def register(typing):
        typing.__name__ = typing.__qualname__ = name
        typing.__doc__ = cpu_ptx.INTRINSICS[name].__doc__
        names = ["typingctx", *cpu_ptx.INTRINSICS[name].params]  # Numba needs them, as typing takes *args
        typing.__signature__ = inspect.Signature([inspect.Parameter(n, POSITIONAL) for n in names])
        result = intrinsic(typing)
        result.cpu_device = cpu_ptx.INTRINSICS[name]
        return result

    return register


def _registers(name, text, results, operands, memory=False):
    """An intrinsic from registers to registers: `text` numbers the results first, then the operands."""
    constraints = [f"={LETTER[t]}" for t in results] + [LETTER[t] for t in operands]
    returned = types.void if not results else results[0] if len(results) == 1 else types.UniTuple(results[0],
                                                                                                 len(results))
    parameters = cpu_ptx.INTRINSICS[name].params

    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, parameters)
        sig = returned(*operands)

        def codegen(context, builder, sig, args):
            values = _inline_asm(builder, text, [LLVM[t] for t in results], list(args), constraints, memory)
            return _return_value(context, builder, sig, values)

        return sig, codegen

    return typing


def _constant_line(name, text, allowed):
    """Return an intrinsic whose only operand is a constant, written {n} in the text."""

    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("n",))
        n = _literal(name, "n", args[0], allowed)

        def codegen(context, builder, sig, args):
            _inline_asm(builder, text.format(n=n), [], [], [])
            return context.get_dummy_value()

        return types.void(args[0]), codegen

    return typing


# --- 128 bits ---------------------------------------------------------------------------------------------------------

FOUR_OR_TWO = ((4, 2), "4-byte types, and 2-byte types, which travel as four uint32 words")


def _words(array):
    """What four 32-bit words of this array are: four elements, or two float16 values in each of four uint32."""
    return array.dtype if array.dtype in (f32, u32, i32) else u32


def _load4(name, text, address):
    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("array", "i"))
        array, i = args[0], _integer(name, "i", args[1])
        _array(name, "array", array, *FOUR_OR_TWO)
        word = _words(array)

        def codegen(context, builder, sig, args):
            pointer = address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            letter = LETTER[word]
            values = _inline_asm(builder, text.format(type="f32" if word == f32 else "b32"), [LLVM[word]] * 4,
                                 [pointer], [f"={letter}"] * 4 + ["l" if pointer.type.width == 64 else "r"])
            return _return_value(context, builder, sig, values)

        return types.UniTuple(word, 4)(array, i), codegen

    return typing


def _store4(name, text, address):
    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("array", "i", "x", "y", "z", "w"))
        array, i = args[0], _integer(name, "i", args[1])
        _array(name, "array", array, *FOUR_OR_TWO)
        word = _words(array)

        def codegen(context, builder, sig, args):
            pointer = address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            _inline_asm(builder, text.format(type="f32" if word == f32 else "b32"), [], [pointer, *args[2:]],
                        ["l" if pointer.type.width == 64 else "r", *[LETTER[word]] * 4])
            return context.get_dummy_value()

        return types.void(array, i, *[word] * 4), codegen

    return typing


load_global4 = _load4("load_global4", "ld.global.v4.{type} {{$0, $1, $2, $3}}, [$4];", _global_address)
load_nc4 = _load4("load_nc4", "ld.global.nc.v4.{type} {{$0, $1, $2, $3}}, [$4];", _global_address)
load_shared4 = _load4("load_shared4", "ld.shared.v4.{type} {{$0, $1, $2, $3}}, [$4];", _shared_address)
store_global4 = _store4("store_global4", "st.global.v4.{type} [$0], {{$1, $2, $3, $4}};", _global_address)
store_shared4 = _store4("store_shared4", "st.shared.v4.{type} [$0], {{$1, $2, $3, $4}};", _shared_address)


def _store_pair(name, convert):
    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("array", "i", "x", "y"))
        array, i = args[0], _integer(name, "i", args[1])
        _array(name, "array", array, (2,), "2-byte types")

        def codegen(context, builder, sig, args):
            address = _global_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            text = f"{{ .reg .b32 pair; {convert} pair, $2, $1; st.global.b32 [$0], pair; }}"
            _inline_asm(builder, text, [], [address, args[2], args[3]], ["l", "f", "f"])
            return context.get_dummy_value()

        return types.void(array, i, f32, f32), codegen

    return typing


store_global_half2 = _store_pair("store_global_half2", "cvt.rn.f16x2.f32")
store_global_bf162 = _store_pair("store_global_bf162", "cvt.rn.bf16x2.f32")

# --- Packing, and arithmetic that Numba does not offer ----------------------------------------------------------------

pack_half2 = _registers("pack_half2", "cvt.rn.f16x2.f32 $0, $2, $1;", [u32], [f32, f32])
pack_bf162 = _registers("pack_bf162", "cvt.rn.bf16x2.f32 $0, $2, $1;", [u32], [f32, f32])
unpack_half2 = _registers(
    "unpack_half2",
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }", [f32, f32], [u32])
unpack_bf162 = _registers(
    "unpack_bf162",
    "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
    [f32, f32], [u32])
float_bits = _registers("float_bits", "mov.b32 $0, $1;", [u32], [f32])
bits_float = _registers("bits_float", "mov.b32 $0, $1;", [f32], [u32])
to_tf32 = _registers("to_tf32", "cvt.rna.tf32.f32 $0, $1;", [u32], [f32])
tanh_approx = _registers("tanh_approx", "tanh.approx.f32 $0, $1;", [f32], [f32])
exp2_approx = _registers("exp2_approx", "ex2.approx.ftz.f32 $0, $1;", [f32], [f32])
rcp_approx = _registers("rcp_approx", "rcp.approx.ftz.f32 $0, $1;", [f32], [f32])

# --- cp.async ---------------------------------------------------------------------------------------------------------


def _cp_async(name, nbytes, cache):
    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("shared", "i", "array", "j", "valid"))
        shared, array = args[0], args[2]
        i, j, valid = (_integer(name, p, a) for p, a in (("i", args[1]), ("j", args[3]), ("valid", args[4])))
        _array(name, "shared", shared, (2, 4), "2-byte and 4-byte types")
        _array(name, "array", array, (2, 4), "2-byte and 4-byte types")

        def codegen(context, builder, sig, args):
            target = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            source = _global_address(context, builder, sig.args[2], args[2], sig.args[3], args[3])
            _inline_asm(builder, f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, $2;", [],
                        [target, source, args[4]], ["r", "l", "r"])
            return context.get_dummy_value()

        return types.void(shared, i, array, j, u32), codegen

    return typing


cp_async_16 = _cp_async("cp_async_16", 16, "cg")
cp_async_4 = _cp_async("cp_async_4", 4, "ca")
cp_async_commit = _registers("cp_async_commit", "cp.async.commit_group;", [], [], memory=True)
cp_async_wait = _constant_line("cp_async_wait", "cp.async.wait_group {n};", range(0, 33))

# --- ldmatrix and mma.sync --------------------------------------------------------------------------------------------


def _ldmatrix(name, count, trans):
    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, ("shared", "i"))
        shared, i = args[0], _integer(name, "i", args[1])
        _array(name, "shared", shared, (2, 4), "2-byte types (4-byte types: each half of an element counts as one)")
        registers = ", ".join(f"${k}" for k in range(count))
        text = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [${count}];"

        def codegen(context, builder, sig, args):
            address = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            values = _inline_asm(builder, text, [I32] * count, [address], ["=r"] * count + ["r"])
            return _return_value(context, builder, sig, values)

        return types.UniTuple(u32, count)(shared, i), codegen

    return typing


ldmatrix_x2 = _ldmatrix("ldmatrix_x2", 2, "")
ldmatrix_x4 = _ldmatrix("ldmatrix_x4", 4, "")
ldmatrix_x2_trans = _ldmatrix("ldmatrix_x2_trans", 2, ".trans")
ldmatrix_x4_trans = _ldmatrix("ldmatrix_x4_trans", 4, ".trans")


def _mma(name, shape, types_text, accumulator, count):
    """mma.sync with `count` accumulator registers, four registers of A and two of B."""
    d, a, b, c = (", ".join(f"${k}" for k in range(start, start + n))
                  for start, n in ((0, count), (count, 4), (count + 4, 2), (count + 6, count)))
    return _registers(name, f"mma.sync.aligned.{shape}.row.col.{types_text} {{{d}}}, {{{a}}}, {{{b}}}, {{{c}}};",
                      [accumulator] * count, [*[u32] * 6, *[accumulator] * count])


mma_m16n8k16_f32_f16 = _mma("mma_m16n8k16_f32_f16", "m16n8k16", "f32.f16.f16.f32", f32, 4)
mma_m16n8k16_f32_bf16 = _mma("mma_m16n8k16_f32_bf16", "m16n8k16", "f32.bf16.bf16.f32", f32, 4)
mma_m16n8k16_f16_f16 = _mma("mma_m16n8k16_f16_f16", "m16n8k16", "f16.f16.f16.f16", u32, 2)
mma_m16n8k8_f32_tf32 = _mma("mma_m16n8k8_f32_tf32", "m16n8k8", "f32.tf32.tf32.f32", f32, 4)

# --- wgmma ------------------------------------------------------------------------------------------------------------


@_named("wgmma_descriptor")
def wgmma_descriptor(typingctx, *args):
    name = "wgmma_descriptor"
    _arity(name, args, ("shared", "i", "leading_bytes", "stride_bytes", "swizzle"))
    shared, i = args[0], _integer(name, "i", args[1])
    _array(name, "shared", shared, (1, 2, 4), "1-, 2- and 4-byte types")
    leading = _literal(name, "leading_bytes", args[2], range(0, 2**18, 16))
    stride = _literal(name, "stride_bytes", args[3], range(0, 2**18, 16))
    swizzle = _literal(name, "swizzle", args[4], range(0, 129, 32))
    if swizzle not in cpu_ptx.SWIZZLES:
        raise TypingError(f"ptx.{name}: swizzle is {swizzle}; allowed are {', '.join(map(str, cpu_ptx.SWIZZLES))}")
    fixed = leading >> 4 << 16 | stride >> 4 << 32 | cpu_ptx.SWIZZLES[swizzle] << 62

    def codegen(context, builder, sig, args):
        start = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        start = builder.lshr(builder.and_(start, ir.Constant(I32, 0x3FFFF)), ir.Constant(I32, 4))
        return builder.or_(builder.zext(start, I64), ir.Constant(I64, fixed))

    return u64(shared, i, *args[2:]), codegen


def _wgmma(name, columns, inputs, transpose_b, a_in_registers):
    """m64nNk16: the accumulators of one thread, N/2 of them, go in and out through a local array."""
    count = columns // 2
    registers = ", ".join(f"${k}" for k in range(count))
    operands = [f"${k}" for k in range(2 * count, 2 * count + (6 if a_in_registers else 3))]
    if a_in_registers:
        a, transpose = f"{{{', '.join(operands[:4])}}}", f"{int(transpose_b)}"
    else:
        a, transpose = operands[0], f"0, {int(transpose_b)}"
    text = (f"{{ .reg .pred p; setp.ne.b32 p, {operands[-1]}, 0; "
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{inputs}.{inputs} {{{registers}}}, "
            f"{a}, {operands[-2]}, p, 1, 1, {transpose}; }}")
    a_types = [u32] * 4 if a_in_registers else [u64]
    constraints = ["=f"] * count + [str(k) for k in range(count)] + [LETTER[t] for t in a_types] + ["l", "r"]

    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, cpu_ptx.INTRINSICS[name].params)
        acc = args[0]
        if not isinstance(acc, types.Array) or acc.dtype != f32:
            raise TypingError(f"ptx.{name}: acc is {acc}; it must be a cuda.local.array of {count} float32")

        def codegen(context, builder, sig, args):
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            pointers = [builder.gep(data, [ir.Constant(I64, k)]) for k in range(count)]
            values = _inline_asm(builder, text, [F32] * count, [*[builder.load(p) for p in pointers], *args[1:]],
                                 constraints)
            for pointer, value in zip(pointers, values, strict=True):
                builder.store(value, pointer)
            return context.get_dummy_value()

        return types.void(acc, *a_types, u64, u32), codegen

    return typing


for _columns in cpu_ptx.WGMMA_COLUMNS:
    for _inputs in ("f16", "bf16"):
        for _a in ("", "_ra"):
            for _suffix in ("", "_bmn"):
                _name = f"wgmma_m64n{_columns}k16_f32_{_inputs}{_a}{_suffix}"
                globals()[_name] = _wgmma(_name, _columns, _inputs, bool(_suffix), bool(_a))

wgmma_fence = _registers("wgmma_fence", "wgmma.fence.sync.aligned;", [], [], memory=True)
wgmma_commit = _registers("wgmma_commit", "wgmma.commit_group.sync.aligned;", [], [], memory=True)
wgmma_wait = _constant_line("wgmma_wait", "wgmma.wait_group.sync.aligned {n};", range(0, 8))
fence_proxy_async = _registers("fence_proxy_async", "fence.proxy.async.shared::cta;", [], [], memory=True)

# --- mbarrier, TMA, registers -----------------------------------------------------------------------------------------


def _mbarrier(name, text, extra=()):
    parameters = cpu_ptx.INTRINSICS[name].params

    @_named(name)
    def typing(typingctx, *args):
        _arity(name, args, parameters)
        bars, i = args[0], _integer(name, "i", args[1])
        _array(name, "bars", bars, (8,), "uint64, in shared memory")

        def codegen(context, builder, sig, args):
            address = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
            _inline_asm(builder, text, [], [address, *args[2:]], ["r"] * (1 + len(extra)))
            return context.get_dummy_value()

        return types.void(bars, i, *extra), codegen

    return typing


mbarrier_init = _mbarrier("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", (u32,))
mbarrier_arrive = _mbarrier("mbarrier_arrive", "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [$0]; }")
mbarrier_expect_tx = _mbarrier(
    "mbarrier_expect_tx", "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }", (u32,))
mbarrier_wait = _mbarrier(
    "mbarrier_wait",
    "{ .reg .pred done; TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra GO; bra TRY; GO: }",
    (u32,))
fence_mbarrier_init = _registers("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", [], [], memory=True)


def _is_tensor_map(name, array):
    if not isinstance(array, types.Array) or array.dtype != u64:
        raise TypingError(f"ptx.{name}: tensor_map is {array}; pass what ptx.tensor_map_2d returns")


@_named("tma_load_2d")
def tma_load_2d(typingctx, *args):
    name = "tma_load_2d"
    _arity(name, args, ("shared", "i", "tensor_map", "col", "row", "bars", "b"))
    shared, tensor_map, bars = args[0], args[2], args[5]
    i, b = _integer(name, "i", args[1]), _integer(name, "b", args[6])
    _array(name, "shared", shared, (1, 2, 4), "1-, 2- and 4-byte types")
    _array(name, "bars", bars, (8,), "uint64, in shared memory")
    _is_tensor_map(name, tensor_map)

    def codegen(context, builder, sig, args):
        target = _shared_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        source = _global_address(context, builder, sig.args[2], args[2], types.uint64, ir.Constant(I64, 0))
        bar = _shared_address(context, builder, sig.args[5], args[5], sig.args[6], args[6])
        _inline_asm(builder, "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[$0], [$1, {$2, $3}], [$4];", [], [target, source, args[3], args[4], bar],
                    ["r", "l", "r", "r", "r"])
        return context.get_dummy_value()

    return types.void(shared, i, tensor_map, i32, i32, bars, b), codegen


@_named("tma_store_2d")
def tma_store_2d(typingctx, *args):
    name = "tma_store_2d"
    _arity(name, args, ("tensor_map", "col", "row", "shared", "i"))
    tensor_map, shared, i = args[0], args[3], _integer(name, "i", args[4])
    _array(name, "shared", shared, (1, 2, 4), "1-, 2- and 4-byte types")
    _is_tensor_map(name, tensor_map)

    def codegen(context, builder, sig, args):
        target = _global_address(context, builder, sig.args[0], args[0], types.uint64, ir.Constant(I64, 0))
        source = _shared_address(context, builder, sig.args[3], args[3], sig.args[4], args[4])
        _inline_asm(builder, "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];", [],
                    [target, args[1], args[2], source], ["l", "r", "r", "r"])
        return context.get_dummy_value()

    return types.void(tensor_map, i32, i32, shared, i), codegen


@_named("prefetch_tensor_map")
def prefetch_tensor_map(typingctx, *args):
    _arity("prefetch_tensor_map", args, ("tensor_map",))
    _is_tensor_map("prefetch_tensor_map", args[0])

    def codegen(context, builder, sig, args):
        address = _global_address(context, builder, sig.args[0], args[0], types.uint64, ir.Constant(I64, 0))
        _inline_asm(builder, "prefetch.tensormap [$0];", [], [address], ["l"])
        return context.get_dummy_value()

    return types.void(args[0]), codegen


@_named("prefetch_l2")
def prefetch_l2(typingctx, *args):
    _arity("prefetch_l2", args, ("array", "i", "nbytes"))
    i = _integer("prefetch_l2", "i", args[1])
    _integer("prefetch_l2", "nbytes", args[2])
    _array("prefetch_l2", "array", args[0], *FOUR_OR_TWO)

    def codegen(context, builder, sig, args):
        address = _global_address(context, builder, sig.args[0], args[0], sig.args[1], args[1])
        _inline_asm(builder, "cp.async.bulk.prefetch.L2.global [$0], $1;", [], [address, args[2]], ["l", "r"])
        return context.get_dummy_value()

    return types.void(args[0], i, u32), codegen


tma_store_commit = _registers("tma_store_commit", "cp.async.bulk.commit_group;", [], [], memory=True)
tma_store_wait = _constant_line("tma_store_wait", "cp.async.bulk.wait_group.read {n};", range(0, 8))
griddepcontrol_wait = _registers("griddepcontrol_wait", "griddepcontrol.wait;", [], [], memory=True)
griddepcontrol_launch_dependents = _registers(
    "griddepcontrol_launch_dependents", "griddepcontrol.launch_dependents;", [], [], memory=True)
setmaxnreg_increase = _constant_line("setmaxnreg_increase", "setmaxnreg.inc.sync.aligned.u32 {n};", range(24, 257, 8))
setmaxnreg_decrease = _constant_line("setmaxnreg_decrease", "setmaxnreg.dec.sync.aligned.u32 {n};", range(24, 257, 8))
named_barrier_sync = _registers("named_barrier_sync", "bar.sync $0, $1;", [], [u32, u32], memory=True)


def tensor_map_2d(array, box_rows, box_cols, swizzle=128):
    """Describes a matrix for TMA: boxes of box_rows x box_cols elements, written to shared memory with this swizzle.

    array: a C-contiguous device array of rank 2, float16, uint16 (bf16 bits) or float32. Returns a device array of 128
    bytes to pass to a kernel, the same one for the same matrix: it holds the address of `array` and nothing else of it.
    Raises ValueError for what TMA cannot describe.
    """
    cache, key = kept(array), ("tensor map", box_rows, box_cols, swizzle)
    if key not in cache:
        cpu_ptx.check_tensor_map(array, box_rows, box_cols, swizzle)
        cache[key] = _encode(int(array.device_ctypes_pointer.value), tuple(array.shape), str(array.dtype), box_rows,
                             box_cols, swizzle)
    return cache[key]


@functools.lru_cache(maxsize=4096)  # a launch must not pay for a copy to the device, nor may a captured graph hold one
def _encode(address, shape, dtype, box_rows, box_cols, swizzle):
    from cuda.bindings import driver

    kind = {"float16": "FLOAT16", "uint16": "UINT16", "float32": "FLOAT32"}[dtype]
    (rows, cols), itemsize = shape, np.dtype(dtype).itemsize
    error, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"), 2, address,
        [driver.cuuint64_t(cols), driver.cuuint64_t(rows)], [driver.cuuint64_t(cols * itemsize)],
        [driver.cuuint32_t(box_cols), driver.cuuint32_t(box_rows)], [driver.cuuint32_t(1)] * 2,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise ValueError(f"array of shape {shape} with boxes of ({box_rows}, {box_cols}), swizzle {swizzle}: "
                         f"cuTensorMapEncodeTiled says {error.name}")
    return cuda.to_device(np.array([int(word) for word in encoded.opaque], np.uint64))


missing = set(cpu_ptx.INTRINSICS) - set(globals())
assert not missing, f"labkit.simt.ptx names intrinsics that have no PTX here: {sorted(missing)}"
