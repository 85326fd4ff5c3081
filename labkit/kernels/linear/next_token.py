"""The end of a decoder's greedy step: the last norm, logits, and the most likely token, in two launches.

Shapes  x (1, K) float32, norm_weight and norm_bias (K,), table (V, K), all float32 or all float16; logits (1, V)
        float32, best (blocks,) int64, ids and start (1,) int32
Sizes   K a multiple of 8, at most 2,048
Work    2*V*K flop; the bytes of the table; the rest is negligible
Source  numpy.argmax, with the same rules: argmax.py
"""

import numpy as np
from numba import float32, int32, int64, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of, warp_largest_key
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.linear.one_row import make_row_statistics
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import ZERO, warp_sum

THREADS, WARPS = 256, 8
WIDEST = 2048  # K at most: the row is in registers
SIZES = f"K a multiple of 8, at most {WIDEST:,}"
BLOCKS = 2  # that an SM holds


@kernel_factory
def make_row_logits(half: bool, depth: int, early: bool = False):
    """Every warp normalises the row, keeps it in registers, and takes rows of the table in turn, enough at once for 12
    loads of 16 bytes a lane in flight; it compares each logit as it is computed, so that none is read again. early: as
    in kernels/pdl.py, the first rows of the table first."""
    VEC = 8 if half else 4
    WORD = uint32 if half else float32
    DEPTH, VECS = depth, -(-depth // (32 * VEC))
    EXACT = depth % (32 * VEC) == 0
    ROWS = max(1, min(4, 12 // VECS))  # of the table at once
    ROW_REGS, WORDS = VEC * VECS, 4 * VECS * ROWS
    EARLY = early
    load_row, statistics = make_row_statistics(depth, VEC)

    @cuda.jit(device=True)
    def lane_offset(lane, j):
        """Return the offset of this lane's elements in the row; 0 beyond its end, where x is 0."""
        k = VEC * lane + 32 * VEC * j
        return k if EXACT or k < DEPTH else 0

    @cuda.jit(device=True)
    def unpack_words(words, index, values, dst):
        for n in range(4):
            if half:
                values[dst + 2 * n], values[dst + 2 * n + 1] = ptx.unpack_half2(words[index + n])
            else:
                values[dst + n] = words[index + n]

    @cuda.jit(device=True)
    def load_vec(words, index, array, i):
        words[index], words[index + 1], words[index + 2], words[index + 3] = ptx.load_nc4(array, i)

    @cuda.jit(device=True)
    def load_rows(words, table, row0, rows, lane):
        """Load the warp's next rows of the table; beyond its end, the last one."""
        for n in u32.range(ROWS):
            index = min(row0 + n, rows - 1) * DEPTH
            for j in u32.range(VECS):
                load_vec(words, 4 * (n * VECS + j), table, index + lane_offset(lane, j))

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def row_logits_kernel(x, norm_weight, norm_bias, table, logits, best):
        keys = cuda.shared.array(WARPS, int64)
        row = cuda.local.array(ROW_REGS, float32)
        unpacked = cuda.local.array(VEC, float32)
        words = cuda.local.array(WORDS, WORD)
        vec = cuda.local.array(4, WORD)
        totals = cuda.local.array(ROWS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows = u32.shape(table)[0]
        row0 = (u32.blockIdx.x * WARPS + warp) * ROWS
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_rows(words, table, row0, rows, lane)
            ptx.griddepcontrol_wait()
        load_row(row, x, lane)
        if not EARLY:
            load_rows(words, table, row0, rows, lane)
        mean, scale = statistics(row, lane)
        for j in u32.range(VECS):
            inside = EXACT or VEC * lane + 32 * VEC * j < DEPTH
            load_vec(vec, 0, norm_weight, lane_offset(lane, j))
            unpack_words(vec, 0, unpacked, 0)
            for i in range(VEC):
                row[VEC * j + i] = (row[VEC * j + i] - mean) * scale * unpacked[i]
            load_vec(vec, 0, norm_bias, lane_offset(lane, j))
            unpack_words(vec, 0, unpacked, 0)
            for i in range(VEC):
                row[VEC * j + i] = row[VEC * j + i] + unpacked[i] if inside else ZERO

        max_key = LEAST
        while row0 < rows:  # the same for all lanes of a warp
            for n in u32.range(ROWS):
                total = ZERO
                for j in u32.range(VECS):
                    unpack_words(words, 4 * (n * VECS + j), unpacked, 0)
                    for i in range(VEC):
                        total += unpacked[i] * row[VEC * j + i]
                totals[n] = total
            for n in u32.range(ROWS):
                total = warp_sum(totals[n])
                index = row0 + n
                if index < rows:
                    max_key = max(max_key, key_of(total, index))
                    if lane == 0:
                        logits[0, index] = total
            row0 += u32.gridDim.x * (WARPS * ROWS)
            load_rows(words, table, row0, rows, lane)
        if lane == 0:
            keys[warp] = max_key
        cuda.syncthreads()  # the keys of all warps are written
        if thread == 0:
            for other_warp in range(WARPS):
                max_key = max(max_key, keys[other_warp])
            best[u32.blockIdx.x] = max_key

    row_logits_kernel.uses_pdl = early
    return row_logits_kernel


@kernel_factory
def make_pick_next(early: bool):
    EARLY = early

    @cuda.jit
    def pick_next_kernel(best, ids, start, count):
        keys = cuda.shared.array(WARPS, int64)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            ptx.griddepcontrol_wait()
        max_key = LEAST
        for i in u32.range(thread, u32.size(best), THREADS):
            max_key = max(max_key, best[i])
        max_key = warp_largest_key(max_key)
        if lane == 0:
            keys[warp] = max_key
        cuda.syncthreads()  # the keys of all warps are written
        if thread == 0:
            for other_warp in range(WARPS):
                max_key = max(max_key, keys[other_warp])
            ids[0] = int32(~uint32(max_key))
            start[0] += int32(count)

    pick_next_kernel.uses_pdl = early
    return pick_next_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


def blocks_of() -> int:
    """Return the blocks of the launch over the vocabulary, which is the size of `best`."""
    return BLOCKS * gpus.sm_count()


def row_logits(x, norm_weight, norm_bias, table, logits, best, *, stream=0):
    """logits = layernorm(x) @ table.T; best: for each block, the key of its largest logit, as of argmax.key_of."""
    dtype = np.dtype(getattr(table, "dtype", np.float32))
    if dtype not in (np.float32, np.float16):
        raise TypeError(f"table has dtype {dtype}; float32 and float16 are allowed")
    check_array("table", table, ndim=2, dtype=dtype)
    rows, depth = table.shape
    if depth % 8 or depth > WIDEST:
        raise ValueError(f"table has rows of {depth}; allowed are {SIZES}")
    check_array("x", x, shape=(1, depth))
    check_array("norm_weight", norm_weight, shape=(depth,), dtype=dtype)
    check_array("norm_bias", norm_bias, shape=(depth,), dtype=dtype)
    check_array("logits", logits, shape=(1, rows))
    check_array("best", best, shape=(blocks_of(),), dtype=np.int64)
    if not aligned(x, norm_weight, norm_bias, table):
        raise ValueError("x, norm_weight, norm_bias and table must begin at multiples of 16 bytes; pass a copy of a "
                         "view that does not")
    kernel = make_row_logits(dtype == np.float16, depth, uses_pdl(1))
    kernel[blocks_of(), THREADS, stream](x, norm_weight, norm_bias, table, logits, best)


def pick_next(best, ids, start, count=1, *, stream=0):
    """ids[0] = the most likely token, from the keys of row_logits; start[0] += count."""
    check_array("best", best, shape=(blocks_of(),), dtype=np.int64)
    check_array("ids", ids, shape=(1,), dtype=np.int32)
    check_array("start", start, shape=(1,), dtype=np.int32)
    make_pick_next(uses_pdl(1))[1, THREADS, stream](best, ids, start, np.int32(count))


# --- Reference --------------------------------------------------------------------------------------------------------


def _reference(x, norm_weight, norm_bias, table):
    return layernorm_reference(x, norm_weight, norm_bias) @ table.astype(np.float64).T
