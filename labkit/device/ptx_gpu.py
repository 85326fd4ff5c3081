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
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir

from labkit import cuda, device
from labkit.device.quick_launch import kept
from labkit.simt import ptx as cpu_ptx

device.numba_cuda()  # the fixes that numba-cuda needs come before its first import

from numba.cuda import dispatcher, types  # noqa: E402
from numba.cuda.core.errors import TypingError  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402

F32, I32, I64, VOID = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.VoidType()
f32, u32, i32, u64 = types.float32, types.uint32, types.int32, types.uint64
LLVM = {f32: F32, u32: I32, i32: I32, u64: I64}
AMPERE, HOPPER = (8, 0), (9, 0)  # the compute capabilities with which instructions came
LETTERS = {"float": "f", "i32": "r", "i64": "l"}  # of a register, by its LLVM type
POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


# --- Arguments --------------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """An operand that is an array and the index of an element; the instruction takes the element's address."""

    address: Callable
    sizes: tuple[int, ...]  # bytes that an element may have
    allowed: str  # the same in words


TENSOR_MAP, WORD = "tensor map", "word"  # other operands: what tensor_map_2d returns; a word of the array before it


def _check_array(name, parameter, array, itemsizes, allowed):
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


def _check_arity(name, args):
    parameters = cpu_ptx.INTRINSICS[name].params
    if len(args) != len(parameters):
        raise TypingError(f"ptx.{name} takes {len(parameters)} arguments ({', '.join(parameters)}), got {len(args)}")


def _literal(name, parameter, value):
    allowed = cpu_ptx.INTRINSICS[name].constants[parameter]
    actual = value.literal_value if isinstance(value, types.IntegerLiteral) else value
    if actual not in allowed:
        raise TypingError(f"ptx.{name}: {parameter} is {actual}; it must be a constant, {cpu_ptx.words(allowed)}")
    return actual


def _argument_types(name, operands, args) -> list:
    """The types that Numba is to pass: the indices as they are, the rest as the instruction takes it."""
    remaining, result, word = zip(cpu_ptx.INTRINSICS[name].params, args, strict=True), [], None
    for operand in operands:
        parameter, value = next(remaining)
        if isinstance(operand, Memory):
            _check_array(name, parameter, value, operand.sizes, operand.allowed)
            result += [value, _integer(name, *next(remaining))]
            word = _word(value)
        elif operand == TENSOR_MAP:
            if not isinstance(value, types.Array) or value.dtype != u64:
                raise TypingError(f"ptx.{name}: {parameter} is {value}; pass what ptx.tensor_map_2d returns")
            result.append(value)
        else:
            result.append(word if operand == WORD else operand)
    return result


def _word(array):
    """What four 32-bit words of this array are: four elements, or two float16 values in each of four uint32."""
    return array.dtype if array.dtype in (f32, u32, i32) else u32


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


def _registers(context, builder, operands, arg_types, args) -> list:
    """What the line of PTX takes for these arguments: an address for an array and an index."""
    remaining, result = zip(arg_types, args, strict=True), []
    for operand in operands:
        kind, value = next(remaining)
        if isinstance(operand, Memory):
            value = operand.address(context, builder, kind, value, *next(remaining))
        elif operand == TENSOR_MAP:
            value = _global_address(context, builder, kind, value, u64, ir.Constant(I64, 0))
        result.append(value)
    return result


# --- Lines of PTX -----------------------------------------------------------------------------------------------------


def _inline_asm(builder, text, results, operands, constraints, memory=True):
    """Emit a line of PTX. `results` are LLVM types; several are returned as a struct. Return their values as a list."""
    returned = VOID if not results else results[0] if len(results) == 1 else ir.LiteralStructType(results)
    constraints = ",".join([*constraints, *(["~{memory}"] if memory else [])])
    asm = ir.InlineAsm(ir.FunctionType(returned, [o.type for o in operands]), text, constraints, side_effect=memory)
    value = builder.call(asm, operands, attrs=() if memory else ("convergent",))
    return [value] if len(results) == 1 else [builder.extract_value(value, k) for k in range(len(results))]


def _named(name, before=None):
    """An intrinsic called `name`, with the documentation and the CPU device's counterpart from labkit.simt.ptx. before:
    as of _form."""

    def register(typing):
        typing.__name__ = typing.__qualname__ = name
        typing.__doc__ = cpu_ptx.INTRINSICS[name].__doc__
        names = ["typingctx", *cpu_ptx.INTRINSICS[name].params]  # Numba needs them, as typing takes *args
        typing.__signature__ = inspect.Signature([inspect.Parameter(n, POSITIONAL) for n in names])
        result = intrinsic(typing)
        result.cpu_device = cpu_ptx.INTRINSICS[name]
        result.changed_at = before and before[0]
        return result

    return register


def _form(text: str, before: tuple | None) -> str:
    """The text for the GPU that is being compiled for. before: (compute capability, the text for earlier ones)."""
    is_earlier = before and tuple(dispatcher.get_current_device().compute_capability)[:2] < before[0]
    return before[1] if is_earlier else text


def _line(name, text, results=(), operands=(), before=None):
    """An intrinsic that is a line of PTX. `text` numbers the results first, then the operands; {type} in it is that of
    a WORD. Without a result and without memory it orders others, and stays in its place, too. before: as of _form."""
    in_place = not results or any(isinstance(operand, Memory) for operand in operands)

    @_named(name, before)
    def typing(typingctx, *args):
        _check_arity(name, args)
        arg_types = _argument_types(name, operands, args)
        word = _word(arg_types[0]) if "{type}" in text else None
        result_types = [word if result == WORD else result for result in results]
        returned = types.void if not results else result_types[0] if len(results) == 1 else types.UniTuple(
            result_types[0], len(results))

        def codegen(context, builder, sig, args):
            values = _registers(context, builder, operands, sig.args, args)
            llvm_types = [LLVM[result] for result in result_types]
            constraints = [f"={LETTERS[str(result)]}" for result in llvm_types]
            constraints += [LETTERS[str(value.type)] for value in values]
            # Here, not above: Numba keeps what typing returned, for every GPU that it compiles for.
            line = _form(text, before).replace("{type}", "f32" if word == f32 else "b32")
            values = _inline_asm(builder, line, llvm_types, values, constraints, in_place)
            if not results:
                return context.get_dummy_value()
            return values[0] if len(values) == 1 else context.make_tuple(builder, sig.return_type, values)

        return returned(*arg_types), codegen

    return typing


def _constant_line(name, text, before=None):
    """An intrinsic whose only operand is a constant, written {n} in the text. before: as of _form."""

    @_named(name, before)
    def typing(typingctx, *args):
        _check_arity(name, args)
        n = _literal(name, "n", args[0])

        def codegen(context, builder, sig, args):
            _inline_asm(builder, _form(text, before).format(n=n), [], [], [])
            return context.get_dummy_value()

        return types.void(args[0]), codegen

    return typing


# --- 128 bits ---------------------------------------------------------------------------------------------------------

FOUR_OR_TWO = ((4, 2), "4-byte types, and 2-byte types, which travel as four uint32 words")
GLOBAL4, SHARED4 = Memory(_global_address, *FOUR_OR_TWO), Memory(_shared_address, *FOUR_OR_TWO)

for _name, _ptx, _memory in (("load_global4", "ld.global", GLOBAL4), ("load_nc4", "ld.global.nc", GLOBAL4),
                             ("load_shared4", "ld.shared", SHARED4)):
    globals()[_name] = _line(_name, f"{_ptx}.v4.{{type}} {{$0, $1, $2, $3}}, [$4];", [WORD] * 4, [_memory])
for _name, _ptx, _memory in (("store_global4", "st.global", GLOBAL4), ("store_shared4", "st.shared", SHARED4)):
    globals()[_name] = _line(_name, f"{_ptx}.v4.{{type}} [$0], {{$1, $2, $3, $4}};", [], [_memory, *[WORD] * 4])

# --- Packing, and arithmetic that Numba does not offer ----------------------------------------------------------------


def _pack_half2(pair, low, high):
    """PTX that packs two float32 as float16 without cvt.f16x2, which came with compute capability 8.0."""
    return (f"{{ .reg .b16 lo, hi; cvt.rn.f16.f32 lo, {low}; cvt.rn.f16.f32 hi, {high}; mov.b32 {pair}, {{lo, hi}}; }}")


def _pack_bf162(pair, low, high):
    """PTX that packs two float32 as bfloat16, rounding with integers: half a unit is added, less one if the last bit
    is 0, and the upper 16 bits are kept."""
    rounded = "".join(f"mov.b32 {r}, {x}; shr.u32 t, {r}, 16; and.b32 t, t, 1; add.u32 {r}, {r}, t; "
                      f"add.u32 {r}, {r}, 0x7fff; setp.nan.f32 p, {x}, {x}; @p mov.b32 {r}, 0x7fff0000; "
                      for r, x in (("lo", low), ("hi", high)))
    return f"{{ .reg .pred p; .reg .b32 lo, hi, t; {rounded}prmt.b32 {pair}, lo, hi, 0x7632; }}"


for _end, _type, _earlier in (("half2", "f16x2", _pack_half2), ("bf162", "bf16x2", _pack_bf162)):
    globals()[f"store_global_{_end}"] = _line(
        f"store_global_{_end}",
        f"{{ .reg .b32 pair; cvt.rn.{_type}.f32 pair, $2, $1; st.global.b32 [$0], pair; }}", [],
        [Memory(_global_address, (2,), "2-byte types"), f32, f32],
        (AMPERE, f"{{ .reg .b32 pair; {_earlier('pair', '$1', '$2')} st.global.b32 [$0], pair; }}"))
    globals()[f"pack_{_end}"] = _line(f"pack_{_end}", f"cvt.rn.{_type}.f32 $0, $2, $1;", [u32], [f32, f32],
                                      (AMPERE, _earlier("$0", "$1", "$2")))
unpack_half2 = _line(
    "unpack_half2",
    "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }", [f32, f32], [u32])
unpack_bf162 = _line(
    "unpack_bf162",
    "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
    [f32, f32], [u32])
float_bits = _line("float_bits", "mov.b32 $0, $1;", [u32], [f32])
bits_float = _line("bits_float", "mov.b32 $0, $1;", [f32], [u32])
to_tf32 = _line("to_tf32", "cvt.rna.tf32.f32 $0, $1;", [u32], [f32])
tanh_approx = _line("tanh_approx", "tanh.approx.f32 $0, $1;", [f32], [f32])
exp2_approx = _line("exp2_approx", "ex2.approx.ftz.f32 $0, $1;", [f32], [f32])
rcp_approx = _line("rcp_approx", "rcp.approx.ftz.f32 $0, $1;", [f32], [f32])

# --- cp.async ---------------------------------------------------------------------------------------------------------

TWO_OR_FOUR = ((2, 4), "2-byte and 4-byte types")

# Before compute capability 8.0: loads and a store. Where not all bytes are valid, two at a time.
_pairs = "".join(f"mov.b16 h{k}, 0; setp.gt.u32 q, $2, {2 * k}; @q ld.global.b16 h{k}, [$1+{2 * k}]; "
                 for k in range(8))
_COPIES = {
    16: "{ .reg .pred all, q; .reg .b16 h<8>; .reg .b32 r<4>; setp.ge.u32 all, $2, 16; "
        "@all ld.global.v4.b32 {r0, r1, r2, r3}, [$1]; @all bra COPY; " + _pairs +
        "".join(f"mov.b32 r{k}, {{h{2 * k}, h{2 * k + 1}}}; " for k in range(4)) +
        "COPY: st.shared.v4.b32 [$0], {r0, r1, r2, r3}; }",
    4: "{ .reg .pred all, q; .reg .b16 h; .reg .b32 r; mov.b32 r, 0; setp.ge.u32 all, $2, 4; setp.eq.u32 q, $2, 2; "
       "@all ld.global.b32 r, [$1]; @q ld.global.b16 h, [$1]; @q cvt.u32.u16 r, h; st.shared.b32 [$0], r; }",
}
for _nbytes, _cache in ((16, "cg"), (4, "ca")):
    _name = f"cp_async_{_nbytes}"
    globals()[_name] = _line(
        _name, f"cp.async.{_cache}.shared.global [$0], [$1], {_nbytes}, $2;", [],
        [Memory(_shared_address, *TWO_OR_FOUR), Memory(_global_address, *TWO_OR_FOUR), u32], (AMPERE, _COPIES[_nbytes]))
cp_async_commit = _line("cp_async_commit", "cp.async.commit_group;", before=(AMPERE, ""))
cp_async_wait = _constant_line("cp_async_wait", "cp.async.wait_group {n};", (AMPERE, ""))

# --- ldmatrix and mma.sync --------------------------------------------------------------------------------------------

MATRICES = Memory(_shared_address, (2, 4), "2-byte types (4-byte types: each half of an element counts as one)")
for _count in (2, 4):
    for _trans in ("", "_trans"):
        _name, _registers_text = f"ldmatrix_x{_count}{_trans}", ", ".join(f"${k}" for k in range(_count))
        globals()[_name] = _line(
            _name, f"ldmatrix.sync.aligned.m8n8.x{_count}{_trans.replace('_', '.')}.shared.b16 {{{_registers_text}}}, "
            f"[${_count}];", [u32] * _count, [MATRICES])


def _mma(name, shape, types_text, accumulator, count, of_a=4):
    """mma.sync with `count` accumulator registers, of_a registers of A and half as many of B. m16n8k16 of float16 is
    two products m16n8k8, one after the other, before compute capability 8.0."""
    of_b = of_a // 2
    d, a, b, c = ([f"${k}" for k in range(start, start + n)] for start, n in
                  ((0, count), (count, of_a), (count + of_a, of_b), (count + of_a + of_b, count)))

    def line(shape, *registers):
        listed = ", ".join(f"{{{', '.join(each)}}}" for each in registers)
        return f"mma.sync.aligned.{shape}.row.col.{types_text} {listed};"

    before = None
    if shape == "m16n8k16" and "bf16" not in types_text:
        half = [f"t{k}" for k in range(count)]
        before = AMPERE, (f"{{ .reg .{'f32' if accumulator == f32 else 'b32'} t<{count}>; "
                          f"{line('m16n8k8', half, a[:2], b[:1], c)} {line('m16n8k8', d, a[2:], b[1:], half)} }}")
    operands = [*[u32] * (of_a + of_b), *[accumulator] * count]
    return _line(name, line(shape, d, a, b, c), [accumulator] * count, operands, before)


mma_m16n8k16_f32_f16 = _mma("mma_m16n8k16_f32_f16", "m16n8k16", "f32.f16.f16.f32", f32, 4)
mma_m16n8k8_f32_f16 = _mma("mma_m16n8k8_f32_f16", "m16n8k8", "f32.f16.f16.f32", f32, 4, of_a=2)
mma_m16n8k16_f32_bf16 = _mma("mma_m16n8k16_f32_bf16", "m16n8k16", "f32.bf16.bf16.f32", f32, 4)
mma_m16n8k16_f16_f16 = _mma("mma_m16n8k16_f16_f16", "m16n8k16", "f16.f16.f16.f16", u32, 2)
mma_m16n8k8_f32_tf32 = _mma("mma_m16n8k8_f32_tf32", "m16n8k8", "f32.tf32.tf32.f32", f32, 4)

# --- wgmma ------------------------------------------------------------------------------------------------------------


SHARED_TILE = ((1, 2, 4), "1-, 2- and 4-byte types")


@_named("wgmma_descriptor")
def wgmma_descriptor(typingctx, *args):
    name = "wgmma_descriptor"
    _check_arity(name, args)
    shared, i = args[0], _integer(name, "i", args[1])
    _check_array(name, "shared", shared, *SHARED_TILE)
    leading, stride, swizzle = map(functools.partial(_literal, name), ("leading_bytes", "stride_bytes", "swizzle"),
                                   args[2:])
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
    a_types, a_letters = ([u32] * 4, ["r"] * 4) if a_in_registers else ([u64], ["l"])
    constraints = ["=f"] * count + [str(k) for k in range(count)] + [*a_letters, "l", "r"]

    @_named(name)
    def typing(typingctx, *args):
        _check_arity(name, args)
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

wgmma_fence = _line("wgmma_fence", "wgmma.fence.sync.aligned;")
wgmma_commit = _line("wgmma_commit", "wgmma.commit_group.sync.aligned;")
wgmma_wait = _constant_line("wgmma_wait", "wgmma.wait_group.sync.aligned {n};")
fence_proxy_async = _line("fence_proxy_async", "fence.proxy.async.shared::cta;")

# --- mbarrier, TMA, registers -----------------------------------------------------------------------------------------

BARRIER, TILE = Memory(_shared_address, (8,), "uint64, in shared memory"), Memory(_shared_address, *SHARED_TILE)

mbarrier_init = _line("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", [], [BARRIER, u32])
mbarrier_arrive = _line("mbarrier_arrive", "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [$0]; }", [],
                        [BARRIER])
mbarrier_expect_tx = _line(
    "mbarrier_expect_tx", "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }", [],
    [BARRIER, u32])
mbarrier_wait = _line(
    "mbarrier_wait",
    "{ .reg .pred done; TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra GO; bra TRY; GO: }",
    [], [BARRIER, u32])
fence_mbarrier_init = _line("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;")
tma_load_2d = _line(
    "tma_load_2d", "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[$0], [$1, {$2, $3}], [$4];", [], [TILE, TENSOR_MAP, i32, i32, BARRIER])
tma_store_2d = _line(
    "tma_store_2d", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];", [],
    [TENSOR_MAP, i32, i32, TILE])
tma_store_commit = _line("tma_store_commit", "cp.async.bulk.commit_group;")
tma_store_wait = _constant_line("tma_store_wait", "cp.async.bulk.wait_group.read {n};")
prefetch_tensor_map = _line("prefetch_tensor_map", "prefetch.tensormap [$0];", [], [TENSOR_MAP])
prefetch_l2 = _line("prefetch_l2", "cp.async.bulk.prefetch.L2.global [$0], $1;", [], [GLOBAL4, u32], (HOPPER, ""))
griddepcontrol_wait = _line("griddepcontrol_wait", "griddepcontrol.wait;", before=(HOPPER, ""))
griddepcontrol_launch_dependents = _line(
    "griddepcontrol_launch_dependents", "griddepcontrol.launch_dependents;", before=(HOPPER, ""))
setmaxnreg_increase = _constant_line("setmaxnreg_increase", "setmaxnreg.inc.sync.aligned.u32 {n};")
setmaxnreg_decrease = _constant_line("setmaxnreg_decrease", "setmaxnreg.dec.sync.aligned.u32 {n};")
named_barrier_sync = _line("named_barrier_sync", "bar.sync $0, $1;", [], [u32, u32])


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
