"""The lines of PTX behind labkit.ptx, written once for every compiler, and the checks of their arguments.

`LINES` says what each intrinsic becomes: its text, which numbers the results first and then the operands, and the
types of both. labkit.device.ptx_gpu gives the table to numba-cuda, labkit.device.ptx_mlir to numba-cuda-mlir.
labkit.simt.ptx documents each intrinsic, next to its CPU implementation.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import NamedTuple

from labkit.simt import ptx as cpu_ptx

POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
F32, U32, I32, U64 = "float32", "uint32", "int32", "uint64"
LETTERS = {F32: "f", U32: "r", I32: "r", U64: "l"}  # of a register, in the constraints of inline PTX
TENSOR_MAP, WORD = "tensor map", "word"  # other operands: what tensor_map_2d returns; a word of the array before it


class Memory(NamedTuple):
    """An operand that is an array and the index of an element; the instruction takes the element's address."""

    space: str  # "global": an address of 64 bits; "shared": one of 32 bits in the shared window
    sizes: tuple[int, ...]  # bytes that an element may have
    allowed: str  # the same in words


class Line(NamedTuple):
    """An intrinsic that is a line of PTX. {type} in its text is that of a WORD, {n} its only operand, a constant."""

    text: str
    results: tuple = ()
    operands: tuple = ()
    before: tuple | None = None  # (compute capability, the text for earlier ones)
    aligned: bool = False  # all lanes of a warp execute it together: it must not move into a branch

    def form(self, capability: tuple) -> str:
        """The text for the GPU that is being compiled for."""
        is_earlier = self.before and tuple(capability[:2]) < self.before[0]
        return self.before[1] if is_earlier else self.text

    @property
    def in_place(self) -> bool:
        """It stays among loads and stores: without a result and without memory it orders others, too."""
        return not self.results or any(isinstance(operand, Memory) for operand in self.operands)

    def constraints(self, results, operands) -> str:
        """The constraints of inline PTX for registers of these types."""
        return ",".join([f"={LETTERS[kind]}" for kind in results] + [LETTERS[kind] for kind in operands]
                        + ["~{memory}"] * self.in_place)


LINES: dict[str, Line] = {}
CONSTANT_LINES: dict[str, Line] = {}  # whose only operand is a constant
WGMMA: dict[str, Wgmma] = {}
AMPERE, HOPPER = (8, 0), (9, 0)  # the compute capabilities with which instructions came


def _line(name, text, results=(), operands=(), before=None, aligned=False):
    LINES[name] = Line(text, tuple(results), tuple(operands), before, aligned)


def _constant_line(name, text, before=None):
    CONSTANT_LINES[name] = Line(text, before=before)


# --- 128 bits ---------------------------------------------------------------------------------------------------------

FOUR_OR_TWO = ((4, 2), "4-byte types, and 2-byte types, which travel as four uint32 words")
GLOBAL4, SHARED4 = Memory("global", *FOUR_OR_TWO), Memory("shared", *FOUR_OR_TWO)

for _name, _ptx, _memory in (("load_global4", "ld.global", GLOBAL4), ("load_nc4", "ld.global.nc", GLOBAL4),
                             ("load_shared4", "ld.shared", SHARED4)):
    _line(_name, f"{_ptx}.v4.{{type}} {{$0, $1, $2, $3}}, [$4];", [WORD] * 4, [_memory])
for _name, _ptx, _memory in (("store_global4", "st.global", GLOBAL4), ("store_shared4", "st.shared", SHARED4)):
    _line(_name, f"{_ptx}.v4.{{type}} [$0], {{$1, $2, $3, $4}};", [], [_memory, *[WORD] * 4])

_line("store_global2", "st.global.v2.{type} [$0], {$1, $2};", [],
      [Memory("global", (4,), "4-byte types"), WORD, WORD])

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
    _line(f"store_global_{_end}", f"{{ .reg .b32 pair; cvt.rn.{_type}.f32 pair, $2, $1; st.global.b32 [$0], pair; }}",
          [], [Memory("global", (2,), "2-byte types"), F32, F32],
          (AMPERE, f"{{ .reg .b32 pair; {_earlier('pair', '$1', '$2')} st.global.b32 [$0], pair; }}"))
    _line(f"pack_{_end}", f"cvt.rn.{_type}.f32 $0, $2, $1;", [U32], [F32, F32],
          (AMPERE, _earlier("$0", "$1", "$2")))
_line("unpack_half2", "{ .reg .b16 lo, hi; mov.b32 {lo, hi}, $2; cvt.f32.f16 $0, lo; cvt.f32.f16 $1, hi; }",
      [F32, F32], [U32])
_line("unpack_bf162",
      "{ .reg .b32 lo, hi; shl.b32 lo, $2, 16; and.b32 hi, $2, 0xffff0000; mov.b32 $0, lo; mov.b32 $1, hi; }",
      [F32, F32], [U32])
for _end, _type in (("half2", "f16x2"), ("bf162", "bf16x2")):
    _line(f"fma_{_end}", f"fma.rn.{_type} $0, $1, $2, $3;", [U32], [U32, U32, U32])
_line("float_bits", "mov.b32 $0, $1;", [U32], [F32])
_line("bits_float", "mov.b32 $0, $1;", [F32], [U32])
_line("to_tf32", "cvt.rna.tf32.f32 $0, $1;", [U32], [F32])
_line("mul_hi", "mul.hi.u32 $0, $1, $2;", [U32], [U32, U32])
_line("tanh_approx", "tanh.approx.f32 $0, $1;", [F32], [F32])
_line("exp2_approx", "ex2.approx.ftz.f32 $0, $1;", [F32], [F32])
_line("rcp_approx", "rcp.approx.ftz.f32 $0, $1;", [F32], [F32])

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
    _line(f"cp_async_{_nbytes}", f"cp.async.{_cache}.shared.global [$0], [$1], {_nbytes}, $2;", [],
          [Memory("shared", *TWO_OR_FOUR), Memory("global", *TWO_OR_FOUR), U32], (AMPERE, _COPIES[_nbytes]))
_line("cp_async_commit", "cp.async.commit_group;", before=(AMPERE, ""))
_constant_line("cp_async_wait", "cp.async.wait_group {n};", (AMPERE, ""))

# --- ldmatrix and mma.sync --------------------------------------------------------------------------------------------

MATRICES = Memory("shared", (2, 4), "2-byte types (4-byte types: each half of an element counts as one)")
for _count in (2, 4):
    for _trans in ("", "_trans"):
        _registers_text = ", ".join(f"${k}" for k in range(_count))
        _line(f"ldmatrix_x{_count}{_trans}",
              f"ldmatrix.sync.aligned.m8n8.x{_count}{_trans.replace('_', '.')}.shared.b16 {{{_registers_text}}}, "
              f"[${_count}];", [U32] * _count, [MATRICES], aligned=True)


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
        before = AMPERE, (f"{{ .reg .{'f32' if accumulator == F32 else 'b32'} t<{count}>; "
                          f"{line('m16n8k8', half, a[:2], b[:1], c)} {line('m16n8k8', d, a[2:], b[1:], half)} }}")
    operands = [*[U32] * (of_a + of_b), *[accumulator] * count]
    _line(name, line(shape, d, a, b, c), [accumulator] * count, operands, before, aligned=True)


_mma("mma_m16n8k16_f32_f16", "m16n8k16", "f32.f16.f16.f32", F32, 4)
_mma("mma_m16n8k8_f32_f16", "m16n8k8", "f32.f16.f16.f32", F32, 4, of_a=2)
_mma("mma_m16n8k16_f32_bf16", "m16n8k16", "f32.bf16.bf16.f32", F32, 4)
_mma("mma_m16n8k16_f16_f16", "m16n8k16", "f16.f16.f16.f16", U32, 2)
_mma("mma_m16n8k8_f32_tf32", "m16n8k8", "f32.tf32.tf32.f32", F32, 4)

# --- wgmma ------------------------------------------------------------------------------------------------------------

SHARED_TILE = ((1, 2, 4), "1-, 2- and 4-byte types")


WGMMA_DEPTH = {"tf32": 8, "e4m3": 32}  # 32 bytes of K, as 16 elements of 16 bits


class Wgmma(NamedTuple):
    """m64nNk16, k8 in TF32 or k32 in E4M3: the accumulators of one thread, `count` of them, go in and out through a
    local array. `a`: the types of the operands of A, a descriptor or four registers; then come the descriptor of B and
    whether C is added."""

    text: str
    count: int
    a: tuple

    @property
    def constraints(self) -> str:
        return ",".join(["=f"] * self.count + [str(k) for k in range(self.count)] + [LETTERS[kind] for kind in self.a]
                        + ["l", "r", "~{memory}"])


def _wgmma(columns, inputs, transpose_a, transpose_b, a_in_registers) -> Wgmma:
    count = columns // 2
    registers = ", ".join(f"${k}" for k in range(count))
    operands = [f"${k}" for k in range(2 * count, 2 * count + (6 if a_in_registers else 3))]
    if a_in_registers:
        a, transpose = f"{{{', '.join(operands[:4])}}}", f"{int(transpose_b)}"
    else:
        a, transpose = operands[0], f"{int(transpose_a)}, {int(transpose_b)}"
    k = WGMMA_DEPTH.get(inputs, 16)
    transpose = f", {transpose}" if k == 16 else ""  # TF32 and FP8 are K-major, with no flag to say so
    return Wgmma(f"{{ .reg .pred p; setp.ne.b32 p, {operands[-1]}, 0; "
                 f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{inputs}.{inputs} {{{registers}}}, "
                 f"{a}, {operands[-2]}, p, 1, 1{transpose}; }}", count, (U32,) * 4 if a_in_registers else (U64,))


for _columns in cpu_ptx.WGMMA_COLUMNS:
    for _inputs in ("f16", "bf16"):
        for _a, _b in itertools.product(("", "_ra", "_amn"), ("", "_bmn")):
            if (_a, _b) != ("_amn", ""):
                WGMMA[f"wgmma_m64n{_columns}k16_f32_{_inputs}{_a}{_b}"] = _wgmma(
                    _columns, _inputs, _a == "_amn", bool(_b), _a == "_ra")
    WGMMA[f"wgmma_m64n{_columns}k8_f32_tf32_ra"] = _wgmma(_columns, "tf32", False, False, a_in_registers=True)
    WGMMA[f"wgmma_m64n{_columns}k32_f32_e4m3"] = _wgmma(_columns, "e4m3", False, False, a_in_registers=False)

_line("wgmma_fence", "wgmma.fence.sync.aligned;")
_line("wgmma_commit", "wgmma.commit_group.sync.aligned;")
_constant_line("wgmma_wait", "wgmma.wait_group.sync.aligned {n};")
_line("fence_proxy_async", "fence.proxy.async.shared::cta;")


def wgmma_descriptor_bits(leading, stride, swizzle) -> int:
    """A descriptor of a tile without its address, which fills the lowest 14 bits."""
    return leading >> 4 << 16 | stride >> 4 << 32 | cpu_ptx.SWIZZLES[swizzle] << 62


# --- mbarrier, TMA, registers -----------------------------------------------------------------------------------------

BARRIER, TILE = Memory("shared", (8,), "uint64, in shared memory"), Memory("shared", *SHARED_TILE)
LONGEST_WAIT_NS = 2_000_000_000  # of a bounded wait

_line("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", [], [BARRIER, U32])
_line("mbarrier_arrive", "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [$0]; }", [], [BARRIER])
_line("mbarrier_expect_tx",
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [$0], $1; }", [], [BARRIER, U32])
_line("mbarrier_wait",
      "{ .reg .pred done; TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; @done bra GO; bra TRY; GO: }",
      [], [BARRIER, U32])
_line("mbarrier_wait_bounded",
      "{ .reg .pred done, late; .reg .b64 begin, now; mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
      "@done bra GO; mov.u64 begin, %globaltimer; TRY: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
      "@done bra GO; mov.u64 now, %globaltimer; sub.u64 now, now, begin; "
      f"setp.gt.u64 late, now, {LONGEST_WAIT_NS}; @late trap; bra TRY; GO: }}", [], [BARRIER, U32])
_line("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;")
_line("tma_load_2d", "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[$0], [$1, {$2, $3}], [$4];", [], [TILE, TENSOR_MAP, I32, I32, BARRIER])
_line("bulk_load", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", [],
      [TILE, Memory("global", *TWO_OR_FOUR), U32, BARRIER])
_line("tma_store_2d", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$1, $2}], [$3];", [],
      [TENSOR_MAP, I32, I32, TILE])
_line("tma_store_commit", "cp.async.bulk.commit_group;")
_constant_line("tma_store_wait", "cp.async.bulk.wait_group.read {n};")
_line("prefetch_tensor_map", "prefetch.tensormap [$0];", [], [TENSOR_MAP])
_line("prefetch_l2", "cp.async.bulk.prefetch.L2.global [$0], $1;", [], [GLOBAL4, U32], (HOPPER, ""))
_line("griddepcontrol_wait", "griddepcontrol.wait;", before=(HOPPER, ""))
_line("griddepcontrol_launch_dependents", "griddepcontrol.launch_dependents;", before=(HOPPER, ""))
_constant_line("setmaxnreg_increase", "setmaxnreg.inc.sync.aligned.u32 {n};")
_constant_line("setmaxnreg_decrease", "setmaxnreg.dec.sync.aligned.u32 {n};")
_line("named_barrier_sync", "bar.sync $0, $1;", [], [U32, U32])

# --- Blocks that wait for one another ---------------------------------------------------------------------------------

COUNTER = Memory("global", (4,), "uint32")

_line("load_acquire", "ld.acquire.gpu.global.u32 $0, [$1];", [U32], [COUNTER])
_line("add_release", "red.release.gpu.global.add.u32 [$0], $1;", [], [COUNTER, U32])
WORD64 = Memory("global", (8,), "uint64")

_line("load_relaxed2", "ld.relaxed.gpu.global.v2.u64 {$0, $1}, [$2];", [U64, U64], [WORD64])
_line("store_relaxed", "st.relaxed.gpu.global.u64 [$0], $1;", [], [WORD64, U64])
_line("trap", "trap;")
_line("store_timer", "{ .reg .b64 now; mov.u64 now, %globaltimer; st.global.u64 [$0], now; }", [], [WORD64])

_missing = set(cpu_ptx.INTRINSICS) - {*LINES, *CONSTANT_LINES, *WGMMA, "wgmma_descriptor"}
assert not _missing, f"labkit.simt.ptx names intrinsics that have no PTX here: {sorted(_missing)}"


def changed_at(name: str) -> tuple | None:
    """The compute capability from which an instruction is another text; None if it is one for all."""
    line = LINES.get(name) or CONSTANT_LINES.get(name)
    return line.before[0] if line and line.before else None


# --- The types of a call ----------------------------------------------------------------------------------------------


class Checks:
    """The types of a call, and its refusals, for a compiler with these `types` and this TypingError."""

    def __init__(self, types, error):
        self.types, self.error = types, error

    def of(self, name: str):
        """The type that the table names."""
        return getattr(self.types, name)

    def arity(self, name, args):
        parameters = cpu_ptx.INTRINSICS[name].params
        if len(args) != len(parameters):
            raise self.error(f"ptx.{name} takes {len(parameters)} arguments ({', '.join(parameters)}), got {len(args)}")

    def array(self, name, parameter, array, itemsizes, allowed):
        """Raise an error that names the argument unless it is a contiguous array of an allowed element size."""
        if not isinstance(array, self.types.Array):
            raise self.error(f"ptx.{name}: {parameter} is {array}; it must be an array")
        if array.layout != "C":
            raise self.error(f"ptx.{name}: {parameter} is not C-contiguous; pass the whole array and a flat index")
        if array.dtype.bitwidth // 8 not in itemsizes:
            raise self.error(f"ptx.{name}: {parameter} is an array of {array.dtype}; allowed are {allowed}")

    def integer(self, name, parameter, value):
        value = self.types.unliteral(value)
        if not isinstance(value, self.types.Integer):
            raise self.error(f"ptx.{name}: {parameter} is {value}; it must be an integer")
        return value

    def literal(self, name, parameter, value):
        allowed = cpu_ptx.INTRINSICS[name].constants[parameter]
        actual = value.literal_value if isinstance(value, self.types.IntegerLiteral) else value
        if actual not in allowed:
            raise self.error(f"ptx.{name}: {parameter} is {actual}; it must be a constant, {cpu_ptx.words(allowed)}")
        return actual

    def accumulators(self, name, acc, count):
        if not isinstance(acc, self.types.Array) or acc.dtype != self.types.float32:
            raise self.error(f"ptx.{name}: acc is {acc}; it must be a cuda.local.array of {count} float32")

    def word(self, array) -> str:
        """What four 32-bit words of this array are: four elements, or two float16 values in each of four uint32."""
        return str(array.dtype) if str(array.dtype) in (F32, U32, I32) else U32

    def call(self, name, args) -> tuple[str, list[str], list]:
        """(the PTX type of a WORD, the types of the results, those of the arguments) of a call of a line for these
        argument types: the indices as they are, the rest as the instruction takes it."""
        line = LINES[name]
        self.arity(name, args)
        remaining, arguments, word = zip(cpu_ptx.INTRINSICS[name].params, args, strict=True), [], None
        for operand in line.operands:
            parameter, value = next(remaining)
            if isinstance(operand, Memory):
                self.array(name, parameter, value, operand.sizes, operand.allowed)
                arguments += [value, self.integer(name, *next(remaining))]
                word = self.word(value)
            elif operand == TENSOR_MAP:
                if not isinstance(value, self.types.Array) or value.dtype != self.types.uint64:
                    raise self.error(f"ptx.{name}: {parameter} is {value}; pass what ptx.tensor_map_2d returns")
                arguments.append(value)
            else:
                arguments.append(self.of(word if operand == WORD else operand))
        results = [word if result == WORD else result for result in line.results]
        return "f32" if word == F32 else "b32", results, arguments

    def returned(self, results: list[str]):
        """The type of the value that a call returns."""
        kinds = [self.of(result) for result in results]
        return self.types.void if not kinds else kinds[0] if len(kinds) == 1 else self.types.UniTuple(
            kinds[0], len(kinds))


def named(name: str, typing: Callable, intrinsic: Callable):
    """An intrinsic called `name`, with the documentation and the CPU device's counterpart from labkit.simt.ptx."""
    typing.__name__ = typing.__qualname__ = name
    typing.__doc__ = cpu_ptx.INTRINSICS[name].__doc__
    names = ["typingctx", *cpu_ptx.INTRINSICS[name].params]  # Numba needs them, as typing takes *args
    typing.__signature__ = inspect.Signature([inspect.Parameter(n, POSITIONAL) for n in names])
    result = intrinsic(typing)
    result.cpu_device = cpu_ptx.INTRINSICS[name]
    return result
