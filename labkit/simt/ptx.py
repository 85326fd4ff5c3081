"""The intrinsics of `labkit.ptx`: their names and documentation, and what the host does for them on the CPU device.

INTRINSICS, {name: Function}, is the list that both sides go by: the GPU has a line of PTX for each name,
runtime/ptx_*.py and ptx_interpreted/ have its meaning on the CPU device.

Notation of the layouts below
    lane                         number of a thread in its warp, 0 to 31; g = lane // 4, q = lane % 4
    A is M x K, B is K x N, C and D are M x N; A[row, k], B[k, col], C[row, col]
    word of two float16 values   a uint32: the element with the lower index in the low 16 bits
"""

import inspect
from dataclasses import dataclass

import numpy as np

from labkit.simt.stubs import Function

WGMMA_COLUMNS = (8, 16, 32, 64, 96, 128, 192, 256)
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}  # bytes of a swizzled row -> the layout type in a wgmma descriptor
TENSOR_MAP_DTYPES = ("float16", "uint16", "float32", "uint8")
INTRINSICS = {}


class Intrinsic(Function):
    """`kind` says how the CPU device treats it:

    value      computes with registers
    memory     touches memory: bounds and alignment are checked
    warp       all 32 lanes of a warp do it together
    warpgroup  all 128 threads of a warpgroup do it together
    wait       suspends the thread
    order      orders what the device does anyway in order, or advises it
    interpreted: True if a kernel with it is interpreted on the CPU device, not compiled.
    constants: {parameter: the values that it may have}, of those that must be constants.
    needs: the least compute capability; (9, 0, "a") for what only that variant has; None: every GPU from 7.5 on.
    """

    def __init__(self, name, params, doc, kind, needs, interpreted, constants):
        super().__init__(name, params, doc, module="ptx")
        self.kind, self.needs, self.interpreted, self.constants = kind, needs, interpreted, constants


def words(allowed):
    """What a constant may be, in words."""
    if not isinstance(allowed, range):
        return ", ".join(map(str, sorted(allowed)))
    steps = f" in steps of {allowed.step}" if allowed.step > 1 else ""
    return f"{allowed.start} to {allowed[-1]}{steps}"


def _intrinsic(name, params, kind, needs, section, *parts, interpreted=False, **constants):
    """Register one: its documentation ends with what it needs, and where the PTX ISA describes it."""
    signature = f"{name}({', '.join(params.split())})"
    shown = "\n".join(inspect.cleandoc(part) for part in parts)
    where = "Needs any GPU" if needs is None else f"Needs compute capability {needs[0]}.{needs[1]}"
    if needs is not None and len(needs) > 2:
        where += f" exactly (sm_{needs[0]}{needs[1]}a)"
    full = f'{signature}\n\n{shown}\n\n{where}.\nSource: PTX ISA, "{section}".'
    made = INTRINSICS[name] = globals()[name] = Intrinsic(name, params, full, kind, needs, interpreted, constants)
    return made


# fmt: off
ANY, SM80, SM90, SM90A = None, (8, 0), (9, 0), (9, 0, "a")

# ---------------------------------------------------------------- 128 bits at once

_FOUR = """
Elements of 4 bytes: four of them, as they are. Elements of 2 bytes (float16, or uint16 that holds bfloat16): eight of
them, as four words of two float16 values.
array is C-contiguous, of any rank; i is the flat index of the first element. The address must be a multiple of 16
bytes: for the first element of an array it is, so i must be a multiple of 4 (of 8 for float16). A GPU stops the kernel
with a misaligned address otherwise; the CPU device says which thread, array and index.
"""
_intrinsic("load_global4", "array i", "memory", ANY, "Data Movement and Conversion Instructions: ld",
           "Four consecutive 32-bit words of global memory, as a tuple of four, in one 128-bit load.", _FOUR)
_intrinsic("load_nc4", "array i", "memory", ANY, "Data Movement and Conversion Instructions: ld.global.nc",
           """As load_global4, through the cache that does not see stores: for data that nothing writes while the
           kernel runs. The compiler may move it freely.""", _FOUR)
_intrinsic("store_global4", "array i x y z w", "memory", ANY, "Data Movement and Conversion Instructions: st",
           "Four consecutive 32-bit words to global memory in one 128-bit store.", _FOUR)
_intrinsic("store_global2", "array i x y", "memory", ANY, "Data Movement and Conversion Instructions: st",
           """Two consecutive elements of 4 bytes to global memory in one 64-bit store. i is the flat index of the
           first, and must be even.""")
_intrinsic("load_shared4", "shared i", "memory", ANY, "Data Movement and Conversion Instructions: ld",
           """Four consecutive 32-bit words of shared memory in one 128-bit load. A warp's 512 bytes go in four steps,
           eight lanes at a time: conflict-free where the 8 lanes of each step touch 32 different banks.""", _FOUR)
_intrinsic("store_shared4", "shared i x y z w", "memory", ANY, "Data Movement and Conversion Instructions: st",
           "Four consecutive 32-bit words to shared memory in one 128-bit store, eight lanes at a time.", _FOUR)
_intrinsic("store_global_half2", "array i x y", "memory", ANY, "Data Movement and Conversion Instructions: cvt, st",
           """Rounds the float32 x and y to float16 (nearest, ties to even) and stores them as array[i] and array[i + 1]
           in one 32-bit store. array is float16; i must be even.""")
_intrinsic("store_global_bf162", "array i x y", "memory", ANY, "Data Movement and Conversion Instructions: cvt, st",
           """Rounds the float32 x and y to bfloat16 (nearest, ties to even) and stores their bits as array[i] and
           array[i + 1] in one 32-bit store. array is uint16; i must be even.""")

# ---------------------------------------------------------------- packing, conversions, approximations

_CVT = "Data Movement and Conversion Instructions: cvt"
_MOV = "Data Movement and Conversion Instructions: mov"
_intrinsic("pack_half2", "x y", "value", ANY, _CVT,
           "A uint32 of two float16: x in the low 16 bits, y in the high ones; each rounded to nearest, ties to even.")
_intrinsic("unpack_half2", "word", "value", ANY, _CVT, "The two float16 in a uint32 as float32: (low, high). Exact.")
_intrinsic("pack_bf162", "x y", "value", ANY, _CVT,
           "A uint32 of two bfloat16: x in the low 16 bits, y in the high ones; each rounded to nearest, ties to even.")
_intrinsic("unpack_bf162", "word", "value", ANY, _MOV,
           "The two bfloat16 in a uint32 as float32: (low, high). Exact: a bfloat16 is the upper half of a float32.")
_intrinsic("float_bits", "x", "value", ANY, _MOV, "The bits of a float32 as a uint32.")
_intrinsic("bits_float", "u", "value", ANY, _MOV, "The float32 that has these 32 bits.")
_FMA = """a * b + c of two float16 at once, each a word of two, rounded once to nearest, ties to even: a word of two."""
_intrinsic("fma_half2", "a b c", "value", ANY, "Half Precision Floating Point Instructions: fma", _FMA)
_intrinsic("fma_bf162", "a b c", "value", SM80, "Half Precision Floating Point Instructions: fma",
           _FMA.replace("float16", "bfloat16"))
_intrinsic("to_tf32", "x", "value", SM80, _CVT,
           """The float32 x as tf32: 8 bits of exponent, 10 of mantissa, rounded to nearest with ties away from zero.
           Returns a uint32, a float32's bits with the low 13 at zero: what mma_m16n8k8_f32_tf32 takes.""")
_intrinsic("mul_hi", "a b", "value", ANY, "Integer Arithmetic Instructions: mul",
           """The upper 32 bits of the 64-bit product of two uint32, in one instruction. A product of two uint64 and a
           shift can cost more: the compiler may widen the arithmetic before them to 64 bits.""")
_intrinsic("tanh_approx", "x", "value", ANY, "Floating Point Instructions: tanh",
           """tanh of a float32, relative error up to 2^-11 on a GPU: one instruction. The CPU device computes it to
           float32 accuracy.""")
_intrinsic("exp2_approx", "x", "value", ANY, "Floating Point Instructions: ex2",
           """2 ** x of a float32, relative error up to 2^-22; subnormal inputs count as 0, subnormal results become 0.
           exp(x) is exp2_approx(x * log2(e)).""")
_intrinsic("rcp_approx", "x", "value", ANY, "Floating Point Instructions: rcp",
           "1 / x of a float32, to within 1 ulp; subnormal inputs count as 0, subnormal results become 0.")

# ---------------------------------------------------------------- cp.async

_ASYNC = "Data Movement and Conversion Instructions: cp.async"
_COPY = """
The copy runs in the background and bypasses the registers; before compute capability 8.0, which brought the
instruction, it is a load and a store, and done at once. This thread can read the data after a cp_async_wait that covers
its group, the other threads after a barrier that follows this wait.
valid is the number of bytes that are actually read; the rest of shared is filled with zeros, and with valid = 0 array
is not touched: so tails need no branch. Both addresses must be multiples of the size.
i and j are flat indices of elements of shared and array, which need not have one dtype.

On the CPU device the bytes arrive in shared memory at the cp_async_wait and not before, so a missing wait shows: the
block computes with what was there. observe says which copy was still under way, and where the wait is missing.
"""
_intrinsic("cp_async_16", "shared i array j valid", "memory", ANY, _ASYNC,
           "Starts a copy of 16 bytes from array[j] on to shared[i] on, bypassing L1. valid: 0 to 16.", _COPY)
_intrinsic("cp_async_4", "shared i array j valid", "memory", ANY, _ASYNC,
           "Starts a copy of 4 bytes from array[j] on to shared[i] on. valid: 0 or 4 (or 2, for one half).", _COPY)
_intrinsic("cp_async_commit", "", "memory", ANY, "cp.async.commit_group",
           """Closes a group: the copies that this thread has started since its last commit. A group may be empty, and
           counts; so a loop that commits in every turn can wait by counting.""")
_intrinsic("cp_async_wait", "n", "memory", ANY, "cp.async.wait_group",
           """Waits until at most the n newest groups of this thread are still under way; 0 waits for all that were
           committed. n is a constant, 0 to 32. Waits for this thread's copies only: a barrier makes their data visible
           to the other threads.""", n=range(33))

# ---------------------------------------------------------------- ldmatrix and mma.sync

_WARP = """
All 32 lanes of the warp must be here: within a branch, all of the warp or none.
"""
_LDMATRIX = """
shared is a shared array of 2-byte (or 4-byte) elements and i a flat index; the address must be a multiple of 16 bytes.
Lane 8 * m + r passes where row r of matrix m begins: 8 float16 values in a row, rows anywhere (lanes beyond the last
matrix pass anything). Conflict-free where the 8 rows of a matrix lie in different banks: rows padded by 8 float16
values, or swizzled."""
_PLAIN = """
Register m of a lane: row g of matrix m, columns 2q and 2q + 1, a word of two float16 values."""
_TRANS = """
Register m of a lane: rows 2q and 2q + 1 of column g of matrix m: what ldmatrix gives for the transposed matrix."""
_FRAGMENT = """
For mma_m16n8k16: A in shared memory as rows of k: matrices 0 to 3 are rows 0-7 and rows 8-15 at k 0-7, then the same at
k 8-15, so lane L passes row L % 16, k = 8 * (L // 16). B stored as rows of k (N x K) gives its two registers from
matrices k 0-7 and k 8-15 without trans; B stored as K x N with trans."""
_LDM = "Warp-Level Matrix Instructions: ldmatrix"
for _count in (4, 2):
    for _trans in (False, True):
        _intrinsic(
            f"ldmatrix_x{_count}{'_trans' if _trans else ''}", "shared i", "warp", ANY, _LDM,
            f"Loads {_count} matrices of 8 x 8 float16 from shared memory into fragments: {_count} uint32 for a lane.",
            _LDMATRIX, _TRANS if _trans else _PLAIN, _FRAGMENT, _WARP,
        )

_MMA = "Warp-Level Matrix Instructions: mma"
_A16 = """
A, 16 x 16 (four uint32, words of two):
    a0  A[g, 2q], A[g, 2q + 1]              a1  A[g + 8, 2q], A[g + 8, 2q + 1]
    a2  A[g, 2q + 8], A[g, 2q + 9]          a3  A[g + 8, 2q + 8], A[g + 8, 2q + 9]
B, 16 x 8 (two uint32):
    b0  B[2q, g], B[2q + 1, g]              b1  B[2q + 8, g], B[2q + 9, g]
"""
_C32 = """
C and D, 16 x 8 (four float32):
    c0, c1  C[g, 2q], C[g, 2q + 1]          c2, c3  C[g + 8, 2q], C[g + 8, 2q + 1]
"""
_F32 = """The products are exact; they and C are summed in float32 (a GPU cuts off a few of the lowest bits, the CPU
device rounds: the last bits differ)."""
_intrinsic("mma_m16n8k16_f32_f16", "a0 a1 a2 a3 b0 b1 c0 c1 c2 c3", "warp", ANY, _MMA,
           "D = A @ B + C with float16 A and B and float32 C and D: the four float32 of D.", _A16, _C32, _F32, _WARP)
_intrinsic("mma_m16n8k8_f32_f16", "a0 a1 b0 c0 c1 c2 c3", "warp", ANY, _MMA,
           """D = A @ B + C with float16 A and B and float32 C and D: the four float32 of D. Compute capability 7.5 has
           no larger product: mma_m16n8k16_f32_f16 is two of these there.
           A, 16 x 8 (two uint32, words of two):
               a0  A[g, 2q], A[g, 2q + 1]              a1  A[g + 8, 2q], A[g + 8, 2q + 1]
           B, 8 x 8 (one uint32):
               b0  B[2q, g], B[2q + 1, g]
           """, _C32, _F32, _WARP)
_intrinsic("mma_m16n8k16_f32_bf16", "a0 a1 a2 a3 b0 b1 c0 c1 c2 c3", "warp", SM80, _MMA,
           "D = A @ B + C with bfloat16 A and B and float32 C and D: the four float32 of D.", _A16, _C32, _F32, _WARP)
_intrinsic("mma_m16n8k16_f16_f16", "a0 a1 a2 a3 b0 b1 c0 c1", "warp", ANY, _MMA,
           "D = A @ B + C, all of it float16: the two words of D.", _A16,
           """C and D, 16 x 8 (two uint32, words of two):
               c0  C[g, 2q], C[g, 2q + 1]              c1  C[g + 8, 2q], C[g + 8, 2q + 1]
           The result is rounded to float16 in every call: sums over many k lose accuracy, and beyond 65,504 are
           infinite.
           """, _WARP)
_intrinsic("mma_m16n8k8_f32_tf32", "a0 a1 a2 a3 b0 b1 c0 c1 c2 c3", "warp", SM80, _MMA,
           """D = A @ B + C with tf32 A and B (uint32, from to_tf32; the low 13 bits are ignored) and float32 C and D.
           A, 16 x 8 (four uint32):
               a0  A[g, q]        a1  A[g + 8, q]        a2  A[g, q + 4]        a3  A[g + 8, q + 4]
           B, 8 x 8 (two uint32):
               b0  B[q, g]        b1  B[q + 4, g]
           """, _C32, _F32, _WARP)

# ---------------------------------------------------------------- wgmma

_WG = """
All 128 threads of the warpgroup (threads 128 * n to 128 * n + 127 of the block) must be here.
"""
_GM = "Asynchronous Warpgroup Level Matrix Instructions"
_intrinsic("wgmma_descriptor", "shared i leading_bytes stride_bytes swizzle", "memory", SM90A,
           f"{_GM}: Matrix Descriptor Format",
           """Where an operand of wgmma lies: a float16 tile in shared memory from shared[i] on, as a uint64.
           Bits 0-13 hold the start address / 16, 16-29 leading_bytes / 16, 32-45 stride_bytes / 16, 62-63 the swizzle
           (0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes). So d + uint64(2) begins 32 bytes later.
           leading_bytes, stride_bytes and swizzle (0 or 128, also 64 and 32) are constants.

           K-major (A without _amn; B without _bmn), swizzle 128: rows of 64 float16 values, 128 bytes, one after the
           other; stride_bytes is from 8 rows to the next 8, 1024 in a tile without gaps; leading_bytes is not used. d +
           uint64(2) advances k by 16 within the 64.
           K-major, no swizzle: blocks of 8 rows x 8 float16, 128 bytes each; leading_bytes is from one block to the
           next along k, stride_bytes along the rows.
           MN-major (A with _amn; B with _bmn), swizzle 128: rows of k with 64 columns, 128 bytes; stride_bytes is from
           8 rows of k to the next 8 (1024), leading_bytes from 64 columns to the next 64. d + uint64(128) advances k
           by 16.
           MN-major, no swizzle: blocks of 8 k x 8 columns, 128 bytes each, a row for each k; leading_bytes is from one
           block to the next along k, stride_bytes along the columns.

           The 128-byte swizzle exchanges 16-byte chunks within a row: address bits 4-6 are xored with bits 7-9, in
           which the row % 8 stands if the tile begins at a multiple of 1024 bytes (alignment=1024). tma_load_2d writes
           it so; threads that fill a tile put chunk c of row r at c ^ (r % 8).""", interpreted=True,
           leading_bytes=range(0, 2**18, 16), stride_bytes=range(0, 2**18, 16), swizzle=SWIZZLES)
for _columns in WGMMA_COLUMNS:
    for _inputs, _dtype in (("f16", "float16"), ("bf16", "bfloat16")):
        for _suffix, _order in (("", "A is K-major, B K-major (N x K in memory): x @ W.T"),
                                ("_bmn", "A is K-major, B MN-major (K x N in memory)"),
                                ("_amn_bmn", "A is MN-major (K x M in memory), B too (K x N): A.T @ B of both")):
            _intrinsic(
                f"wgmma_m64n{_columns}k16_f32_{_inputs}{_suffix}", "acc da db accumulate", "warpgroup", SM90A,
                f"{_GM}: wgmma.mma_async",
                f"""Starts D = A @ B + D * accumulate for one warpgroup: A is 64 x 16, B is 16 x {_columns}, both
                {_dtype} in shared memory, D is float32 in registers. {_order}.
                acc: a cuda.local.array of {_columns // 2} float32; da, db: from wgmma_descriptor; accumulate: uint32,
                0 to overwrite acc, 1 to add to it.
                With w the warp's number in its warpgroup, acc[j] holds the element of D in
                    row 16 * w + g + 8 * (j // 2 % 2), column 8 * (j // 4) + 2 * q + j % 2.
                wgmma_fence() comes before the first of a series, or after acc was written by other code. The result is
                in acc, and the tiles may be overwritten, after a wgmma_wait that covers it: on the CPU device the
                product is computed at that wait, with what then stands in shared memory.""", _WG, interpreted=True,
            )
for _columns in WGMMA_COLUMNS:
    for _inputs, _dtype in (("f16", "float16"), ("bf16", "bfloat16")):
        for _suffix, _order in (("", "K-major (N x K in memory)"), ("_bmn", "MN-major (K x N in memory)")):
            _intrinsic(
                f"wgmma_m64n{_columns}k16_f32_{_inputs}_ra{_suffix}", "acc a0 a1 a2 a3 db accumulate", "warpgroup",
                SM90A, f"{_GM}: wgmma.mma_async",
                f"""As wgmma_m64n{_columns}k16_f32_{_inputs}{_suffix}, with A from registers: starts
                D = A @ B + D * accumulate, A 64 x 16 {_dtype} in registers, B 16 x {_columns} in shared memory,
                {_order}.
                a0 to a3: uint32, words of two. With w the warp's number in its warpgroup, g its lane // 4 and q its
                lane % 4, and row = 16 * w + g:
                    a0  A[row, 2q], A[row, 2q + 1]              a1  A[row + 8, 2q], A[row + 8, 2q + 1]
                    a2  A[row, 2q + 8], A[row, 2q + 9]          a3  A[row + 8, 2q + 8], A[row + 8, 2q + 9]
                So the sums acc[8 * k] to acc[8 * k + 7] of another product, rounded and packed two by two, are a0 to a3
                of its columns 16 * k to 16 * k + 15. Other code must not write these registers before a wgmma_wait
                that covers the product.""", _WG, interpreted=True,
            )
for _columns in WGMMA_COLUMNS:
    _intrinsic(
        f"wgmma_m64n{_columns}k8_f32_tf32_ra", "acc a0 a1 a2 a3 db accumulate", "warpgroup", SM90A,
        f"{_GM}: wgmma.mma_async",
        f"""As wgmma_m64n{_columns}k16_f32_f16_ra, in TF32: A 64 x 8 in registers, B 8 x {_columns} in shared memory,
        K-major, the only order that TF32 has. Of both the low 13 bits are ignored.
        a0 to a3: uint32. With w the warp's number in its warpgroup and row = 16 * w + g:
            a0  A[row, q]        a1  A[row + 8, q]        a2  A[row, q + 4]        a3  A[row + 8, q + 4]
        """, _WG, interpreted=True,
    )
for _columns in WGMMA_COLUMNS:
    _intrinsic(
        f"wgmma_m64n{_columns}k32_f32_e4m3", "acc da db accumulate", "warpgroup", SM90A, f"{_GM}: wgmma.mma_async",
        f"""As wgmma_m64n{_columns}k16_f32_f16, of E4M3, an FP8 number: A is 64 x 32, B is 32 x {_columns}, both in
        shared memory, a byte an element, K-major, the only order that FP8 has. In the 128-byte swizzle a row has 128
        values of K, and da + uint64(2) advances k by 32.
        D is float32, but a GPU adds the products with about 14 significant bits, those of the largest: the CPU device
        adds them in float32, so only a GPU shows this error.""", _WG, interpreted=True,
    )
_intrinsic("wgmma_fence", "", "order", SM90A, f"{_GM}: wgmma.fence",
           """Orders what the warpgroup wrote to registers (acc) and shared memory before the wgmma that follow. Needed
           before the first one, and whenever other code has written acc. Nothing to do on the CPU device.""",
           interpreted=True)
_intrinsic("wgmma_commit", "", "memory", SM90A, f"{_GM}: wgmma.commit_group",
           "Closes a group: the wgmma that this warpgroup has started since its last commit.", interpreted=True)
_intrinsic("wgmma_wait", "n", "warpgroup", SM90A, f"{_GM}: wgmma.wait_group",
           """Waits until at most the n newest groups of this warpgroup are still running. n is a constant, 0 to 7. acc
           must not be read, nor the tiles overwritten, before.""", _WG, interpreted=True, n=range(8))
_intrinsic("fence_proxy_async", "", "memory", SM90, "Parallel Synchronization and Communication: membar / fence",
           """Makes what threads wrote to shared memory by ordinary stores (or cp.async) visible to wgmma and TMA: each
           writing thread calls it, then comes a barrier, then the wgmma or the TMA store. Nothing to do on the CPU
           device; observe says where it is missing.""", interpreted=True)

# ---------------------------------------------------------------- mbarriers and TMA

_MB = "Parallel Synchronization and Communication: mbarrier"
_BARS = """
bars is a shared array of uint64 and i the number of the barrier in it.
"""
_intrinsic("mbarrier_init", "bars i count", "memory", SM80, f"{_MB}.init",
           """Makes bars[i] a barrier whose phases end after count arrivals (and after the bytes that it expects).
           One thread does it, then fence_mbarrier_init() and a barrier of the block.""", _BARS, interpreted=True)
_intrinsic("fence_mbarrier_init", "", "order", SM90, "Parallel Synchronization and Communication: fence.mbarrier_init",
           "Shows fresh barriers to the TMA unit. Nothing to do on the CPU device.", interpreted=True)
_intrinsic("mbarrier_arrive", "bars i", "memory", SM80, f"{_MB}.arrive",
           "This thread arrives: one of the count that ends the phase. Does not wait.", _BARS, interpreted=True)
_intrinsic("mbarrier_expect_tx", "bars i bytes", "memory", SM90, f"{_MB}.arrive.expect_tx",
           """The phase will also need this many bytes from TMA, and this thread arrives. bytes is that of whole boxes,
           out-of-bounds parts included.""", _BARS, interpreted=True)
_intrinsic("mbarrier_wait", "bars i parity", "wait", SM90, f"{_MB}.try_wait",
           """Waits until the phase of this parity has ended. Phases count from 0: the first has parity 0, the next 1,
           then 0 again. A wait for the parity before the running phase returns at once, so on a fresh barrier a wait
           for parity 1 passes: a ring of buffers is empty to begin with.
           The CPU device stops with a deadlock error, which names the barriers and the lines, where no thread can go
           on.
           """, _BARS, interpreted=True)
_intrinsic("mbarrier_wait_bounded", "bars i parity", "wait", SM90, f"{_MB}.try_wait",
           """As mbarrier_wait, but a wait of more than two seconds traps on a GPU, so that a mistake is no hang. The
           CPU device needs no bound.""", _BARS, interpreted=True)
_TMA = "Data Movement and Conversion Instructions: cp.async.bulk.tensor"
_TMAP = """
tensor_map is what ptx.tensor_map_2d(array, box_rows, box_cols, swizzle) made on the host, passed as an argument of the
kernel. col and row are of the box's first element, in elements of the array; they may lie outside.
shared[i] must lie at a multiple of 128 bytes (with the 128-byte swizzle the tile belongs at a multiple of 1024).
"""
_intrinsic("tma_load_2d", "shared i tensor_map col row bars b", "memory", SM90, _TMA,
           """Starts the copy of a box of a matrix into shared memory, rows one after the other, swizzled. One thread
           calls it; the barrier bars[b] counts the bytes of the whole box when they have arrived. Elements outside the
           matrix come as zeros.
           The CPU device fills the tile with 0xFF bytes at once and delivers as late as it can, so that a missing
           mbarrier_wait shows.""", _TMAP, interpreted=True)
_intrinsic("bulk_load", "shared i array j nbytes bars b", "memory", SM90,
           "Data Movement and Conversion Instructions: cp.async.bulk",
           """Starts a copy of nbytes contiguous bytes, a multiple of 16, from array[j] on to shared[i] on, both at
           multiples of 16. One thread calls it; the barrier bars[b] counts the bytes when they have arrived. i
           and j are flat indices of elements. Needs no tensor map. The CPU device fills the bytes with 0xFF at once and
           delivers as late as it can, so that a missing wait shows.""", interpreted=True)
_intrinsic("tma_store_2d", "tensor_map col row shared i", "memory", SM90, _TMA,
           """Starts the copy of a box from shared memory (swizzled) to the matrix; elements outside it are not stored.
           One thread calls it, after fence_proxy_async() by the threads that wrote the tile and a barrier.""",
           _TMAP, interpreted=True)
_intrinsic("tma_store_commit", "", "memory", SM90, "cp.async.bulk.commit_group",
           "Closes a group: the tma_store_2d that this thread has started since its last commit.",
           interpreted=True)
_intrinsic("tma_store_wait", "n", "memory", SM90, "cp.async.bulk.wait_group",
           """Waits until at most the n newest groups of this thread still read shared memory. n is a constant, 0 to 7.
           Needed before the tile is written again, and before the block ends.""", interpreted=True, n=range(8))
_intrinsic("prefetch_tensor_map", "tensor_map", "order", SM90, "Data Movement and Conversion Instructions: prefetch",
           "Brings a tensor map into the cache before its first use. Nothing to do on the CPU device.",
           interpreted=True)

_intrinsic("prefetch_l2", "array i nbytes", "order", ANY,
           "Data Movement and Conversion Instructions: cp.async.bulk.prefetch.L2",
           """Brings nbytes of an array, from array[i] on, from memory to the L2 cache, and waits for nothing: for
           what a later kernel reads. The address and nbytes must be multiples of 16. Nothing to do on the CPU
           device, and before compute capability 9.0.""")

# ---------------------------------------------------------------- blocks that wait for one another

_COUNTER = """
array is of uint32, in global memory, and i a flat index.
"""
_intrinsic("load_acquire", "array i", "memory", SM90, "Data Movement and Conversion Instructions: ld.acquire",
           """array[i], as it is now. What other blocks wrote before they raised the counter with add_release can be
           read after it, also by the block's other threads behind a barrier. A loop that waits with it is a form that
           the CPU device knows: while all threads of a block wait, the other blocks run, and a wait that no block can
           end is a deadlock error.""", _COUNTER, interpreted=True)
_intrinsic("add_release", "array i value", "memory", SM90,
           "Parallel Synchronization and Communication Instructions: red.release",
           """Adds a uint32 to array[i] atomically, after all that this thread and, before a barrier, its block wrote.
           """,
           _COUNTER, interpreted=True)
_WORDS = """
array is of uint64, in global memory, and i a flat index. A word that holds a value and, in its other half, the number
of the phase that wrote it needs no counter: whoever reads the number has the value as well.
"""
_intrinsic("load_relaxed2", "array i", "memory", SM90, "Data Movement and Conversion Instructions: ld.relaxed",
           """(array[i], array[i + 1]), as they are now, in one 128-bit load; each is read whole. i must be even. What
           else their writers wrote may not be there yet. In a loop that waits, the CPU device lets other threads and
           blocks run, as for load_acquire.""", _WORDS, interpreted=True)
_intrinsic("store_relaxed", "array i word", "memory", SM90, "Data Movement and Conversion Instructions: st.relaxed",
           "Writes a uint64 to array[i], whole, so that the other blocks can read it while the kernel runs.", _WORDS,
           interpreted=True)
_intrinsic("trap", "", "memory", ANY, "Miscellaneous Instructions: trap",
           """Stops the launch with an error: the end of a wait that has lasted too long, so that a mistake is no hang.
           """, interpreted=True)
_intrinsic("store_timer", "array i", "memory", ANY, "Special Registers: %globaltimer",
           """Writes the time in nanoseconds to array[i], an array of uint64 in global memory: on one clock for all SMs
           of a GPU.""", interpreted=True)

# ---------------------------------------------------------------- a kernel that begins before the one before it ends

_PDL = "Parallel Synchronization and Communication: griddepcontrol"
_intrinsic("griddepcontrol_wait", "", "order", ANY, _PDL,
           """Waits until the kernels that this one depends on have ended and what they wrote can be read. Only a kernel
           that a programmatic edge of a CUDA graph lets begin early has anything to wait for. Before
           it a thread may compute indices and read what no kernel before writes, weights above all; it must write
           nothing. Every block passes it, for the kernel after this one relies on that. Nothing to do where kernels run
           one after the other: before compute capability 9.0, and on the CPU device.""")
_intrinsic("griddepcontrol_launch_dependents", "", "order", ANY, _PDL,
           """Says that the kernel after this one may begin: it does when all blocks have come here or ended, as far
           as SMs have space for its blocks. What this kernel writes is seen there after griddepcontrol_wait() only.
           Nothing to do before compute capability 9.0 and on the CPU device.""")

# ---------------------------------------------------------------- warp specialisation

_SMN = "Miscellaneous Instructions: setmaxnreg"
_REGS = """
n is a constant, a multiple of 8 from 24 to 256. All warps of a warpgroup must do it. The CPU device has registers
enough.
"""
_intrinsic("setmaxnreg_increase", "n", "order", SM90A, _SMN,
           "Takes registers from the block's pool until each thread of this warpgroup has n: for warps that compute.",
           _REGS, interpreted=True, n=range(24, 257, 8))
_intrinsic("setmaxnreg_decrease", "n", "order", SM90A, _SMN,
           "Gives registers back until each thread of this warpgroup has n: for warps that only copy.",
           _REGS, interpreted=True, n=range(24, 257, 8))
_intrinsic("named_barrier_sync", "id threads", "wait", ANY, "Parallel Synchronization and Communication: bar.sync",
           """A barrier for some warps of the block: waits until `threads` threads (a multiple of 32) have come to
           barrier `id`, 0 to 15. 0 is the one that cuda.syncthreads() uses.""", interpreted=True)
# fmt: on


# ---------------------------------------------------------------- tensor maps


@dataclass(frozen=True)
class TensorMap:
    """What tensor_map_2d makes on the CPU device: the matrix itself, and the boxes that TMA moves."""

    array: object  # a device array
    box_rows: int
    box_cols: int
    swizzle: int
    tf32: bool = False

    @property
    def box_bytes(self):
        return self.box_rows * self.box_cols * np.dtype(self.array.dtype).itemsize


def check_tensor_map(array, box_rows, box_cols, swizzle, tf32):
    """Raise a ValueError, which names the argument, for what the TMA unit cannot describe."""
    if getattr(array, "ndim", None) != 2:
        raise ValueError(f"tensor_map_2d: array must be a device array of rank 2, not {type(array).__name__}"
                         f"{'' if not hasattr(array, 'shape') else f' of shape {tuple(array.shape)}'}")  # fmt: skip
    dtype = np.dtype(array.dtype)
    if dtype.name not in TENSOR_MAP_DTYPES:
        raise ValueError(f"tensor_map_2d: array has dtype {dtype}; allowed are {', '.join(TENSOR_MAP_DTYPES)}")
    if tf32 and dtype != np.float32:
        raise ValueError(f"tensor_map_2d: array has dtype {dtype}; with tf32 it must be float32")
    if not array.is_c_contiguous():
        raise ValueError("tensor_map_2d: array is not C-contiguous")
    rows, cols = array.shape
    if rows < 1 or cols < 1:
        raise ValueError(f"tensor_map_2d: array has shape {tuple(array.shape)}, no elements")
    if cols * dtype.itemsize % 16:
        raise ValueError(f"tensor_map_2d: a row of array has {cols} elements, {cols * dtype.itemsize} bytes; it must "
                         "be a multiple of 16 bytes")  # fmt: skip
    if swizzle not in SWIZZLES:
        raise ValueError(f"tensor_map_2d: swizzle is {swizzle!r}; allowed are {', '.join(map(str, sorted(SWIZZLES)))}")
    for name, size in (("box_rows", box_rows), ("box_cols", box_cols)):
        if not isinstance(size, (int, np.integer)) or not 1 <= size <= 256:
            raise ValueError(f"tensor_map_2d: {name} is {size!r}; it must be 1 to 256")
    width = int(box_cols) * dtype.itemsize
    if width % 16:
        raise ValueError(f"tensor_map_2d: box_cols is {box_cols}, {width} bytes; it must be a multiple of 16 bytes")
    if swizzle and width > swizzle:
        raise ValueError(f"tensor_map_2d: box_cols is {box_cols}, {width} bytes; with swizzle={swizzle} a row of a box "
                         f"may have at most {swizzle}")  # fmt: skip


def tensor_map_2d(array, box_rows, box_cols, swizzle=128, tf32=False):
    """Describes a matrix for TMA: boxes of box_rows x box_cols elements, written to shared memory with this swizzle.

    array: a C-contiguous device array of rank 2, float16, uint16 (bf16 bits), float32 or uint8 (FP8), with rows of a
    multiple of 16 bytes. swizzle: 0, 32, 64 or 128 bytes, at least those of a row of the box. tf32: loads round
    float32 values to TF32. Returns what a kernel takes as its tensor_map argument. Raises ValueError, naming the
    argument, for what TMA cannot describe.
    """
    check_tensor_map(array, box_rows, box_cols, swizzle, tf32)
    return TensorMap(array, int(box_rows), int(box_cols), int(swizzle), bool(tf32))


__all__ = ["INTRINSICS", "tensor_map_2d", *INTRINSICS]
