"""The end of a decoder's greedy step: the last norm, logits, and the most likely token, in two launches.

    logits = layernorm(x) @ table.T, and the largest logit of each block of the launch
    ids[0] = the token with the largest logit, the first of equal ones; start[0] += 1

Shapes  x (1, K) float32, norm_weight and norm_bias (K,), table (V, K), all float32 or all float16; logits (1, V)
        float32, best (blocks,) int64, ids and start (1,) int32
Sizes   K a multiple of 8, at most 2,048
Work    2*V*K flop; the bytes of the table, beside which the rest is little
Source  numpy.argmax, whose rules are kept: argmax.py

A warp normalises the row for itself, keeps it in registers, and takes rows of the table in turn, so many at once that
it has 12 loads of 16 bytes a lane in flight; it sees each logit, so that to find the largest costs a comparison and
no pass over the logits.
"""


import numpy as np
from numba import float32, int32, int64, uint32

from labkit import cuda, device, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.argmax import LEAST, key_of, warp_largest_key
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.linear.one_row import make_row_statistics
from labkit.kernels.norm.layernorm import layernorm_reference
from labkit.kernels.pdl import uses_pdl
from labkit.kernels.reduce import ZERO, warp_sum

THREADS, WARPS = 256, 8
WIDEST = 2048  # K at most: the row lies in registers
SIZES = f"K a multiple of 8, at most {WIDEST:,}"
BLOCKS = 2  # that an SM holds


@kernel_factory
def make_row_logits(half: bool, depth: int, early: bool = False):
    """early: as in kernels/pdl.py, the first rows of the table first."""
    EACH = 8 if half else 4
    WORD = uint32 if half else float32
    DEPTH, TURNS = depth, -(-depth // (32 * EACH))
    EXACT = depth % (32 * EACH) == 0
    ROWS = max(1, min(4, 12 // TURNS))  # of the table at once
    NUMBERS, WORDS = EACH * TURNS, 4 * TURNS * ROWS
    EARLY = early
    load_row, statistics = make_row_statistics(depth, EACH)

    @cuda.jit(device=True)
    def place(lane, j):
        """Where this lane's numbers begin; beyond the row, where x is 0, those at its beginning."""
        k = EACH * lane + 32 * EACH * j
        return k if EXACT or k < DEPTH else 0

    @cuda.jit(device=True)
    def numbers_of(words, at, numbers, to):
        for n in range(4):
            if half:
                numbers[to + 2 * n], numbers[to + 2 * n + 1] = ptx.unpack_half2(words[at + n])
            else:
                numbers[to + n] = words[at + n]

    @cuda.jit(device=True)
    def load_four(words, at, array, i):
        words[at], words[at + 1], words[at + 2], words[at + 3] = ptx.load_nc4(array, i)

    @cuda.jit(device=True)
    def load_rows(words, table, first, rows, lane):
        """The warp's next rows of the table; beyond its end, the last one."""
        for n in u32.range(ROWS):
            at = min(first + n, rows - 1) * DEPTH
            for j in u32.range(TURNS):
                load_four(words, 4 * (n * TURNS + j), table, at + place(lane, j))

    @cuda.jit(launch_bounds=(THREADS, BLOCKS))
    def row_logits_kernel(x, norm_weight, norm_bias, table, logits, best):
        keys = cuda.shared.array(WARPS, int64)
        row = cuda.local.array(NUMBERS, float32)
        some = cuda.local.array(EACH, float32)
        words = cuda.local.array(WORDS, WORD)
        four = cuda.local.array(4, WORD)
        totals = cuda.local.array(ROWS, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        rows = u32.shape(table)[0]
        first = (u32.blockIdx.x * WARPS + warp) * ROWS
        if EARLY:
            ptx.griddepcontrol_launch_dependents()
            load_rows(words, table, first, rows, lane)
            ptx.griddepcontrol_wait()
        load_row(row, x, lane)
        if not EARLY:
            load_rows(words, table, first, rows, lane)
        mean, scale = statistics(row, lane)
        for j in u32.range(TURNS):
            inside = EXACT or EACH * lane + 32 * EACH * j < DEPTH
            load_four(four, 0, norm_weight, place(lane, j))
            numbers_of(four, 0, some, 0)
            for i in range(EACH):
                row[EACH * j + i] = (row[EACH * j + i] - mean) * scale * some[i]
            load_four(four, 0, norm_bias, place(lane, j))
            numbers_of(four, 0, some, 0)
            for i in range(EACH):
                row[EACH * j + i] = row[EACH * j + i] + some[i] if inside else ZERO

        largest = LEAST
        while first < rows:  # the same for all lanes of a warp
            for n in u32.range(ROWS):
                total = ZERO
                for j in u32.range(TURNS):
                    numbers_of(words, 4 * (n * TURNS + j), some, 0)
                    for i in range(EACH):
                        total += some[i] * row[EACH * j + i]
                totals[n] = total
            for n in u32.range(ROWS):
                total = warp_sum(totals[n])
                at = first + n
                if at < rows:
                    largest = max(largest, key_of(total, at))
                    if lane == 0:
                        logits[0, at] = total
            first += u32.gridDim.x * (WARPS * ROWS)
            load_rows(words, table, first, rows, lane)
        if lane == 0:
            keys[warp] = largest
        cuda.syncthreads()  # the largest of every warp is there
        if thread == 0:
            for other in range(WARPS):
                largest = max(largest, keys[other])
            best[u32.blockIdx.x] = largest

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
        largest = LEAST
        for i in u32.range(thread, u32.size(best), THREADS):
            largest = max(largest, best[i])
        largest = warp_largest_key(largest)
        if lane == 0:
            keys[warp] = largest
        cuda.syncthreads()  # the largest of every warp is there
        if thread == 0:
            for other in range(WARPS):
                largest = max(largest, keys[other])
            ids[0] = int32(~uint32(largest))
            start[0] += int32(count)

    pick_next_kernel.uses_pdl = early
    return pick_next_kernel


# --- Launchers --------------------------------------------------------------------------------------------------------


def blocks_of() -> int:
    """Blocks of the launch over the vocabulary, and so the size of `best`."""
    return BLOCKS * device.sm_count()


def row_logits(x, norm_weight, norm_bias, table, logits, best, *, stream=0):
    """logits = layernorm(x) @ table.T; best: of each block, its largest logit and where it is, as argmax.key_of."""
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
    """ids[0] = the most likely token, by what row_logits found; start[0] += count."""
    check_array("best", best, shape=(blocks_of(),), dtype=np.int64)
    check_array("ids", ids, shape=(1,), dtype=np.int32)
    check_array("start", start, shape=(1,), dtype=np.int32)
    make_pick_next(uses_pdl(1))[1, THREADS, stream](best, ids, start, np.int32(count))


# --- Reference --------------------------------------------------------------------------------------------------------


def _reference(x, norm_weight, norm_bias, table):
    return layernorm_reference(x, norm_weight, norm_bias) @ table.astype(np.float64).T
