"""Up to eight rows of activations times a tile of eight rows of weights, by all warps of a block.

A warp multiplies groups of 64 columns. Its part of the rows stays in registers for all tiles of a phase, as fragments
of mma.m16n8k16: lane 4 * g + q has columns 8q to 8q + 7 of both halves of a group of row g, in 16 bytes each, and of
the weights the same columns of row g. In which order the products of a sum are added is free, as long as both agree.
Rows 8 to 15 are zero; with fewer than eight sequences the others repeat the last one. Each half of the groups is added
up on its own, then the warps' sums in the order of the warps: a row's result does not depend on the rows beside it.

The eight lanes of a phase of a 128-bit load read two rows of weights, a multiple of 128 bytes apart. Of the odd row
they load the second half of the group first: its banks are those that the even row leaves free.
"""

from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.linear.normed import make_words
from labkit.kernels.matmul.mma import ADD_PRODUCT
from labkit.kernels.norm.rows import small
from labkit.kernels.persistent.decoder import GROUP, GROUPS, ROWS, Decoder
from labkit.kernels.persistent.ring import make_stages
from labkit.kernels.reduce import ALL_LANES, ZERO

TILE = ROWS * ROWS  # outputs of a tile: thread 8 * row + i adds up row's product with weights i
NOTHING = uint32(0)  # rows 8 to 15
HALF = GROUP // 2


STAGE_WORDS = 8 * GROUPS  # of a lane's part of the columns of a stage


def fragment_size(decoder: Decoder, columns: int) -> int:
    """Return the words of a lane's part of rows with so many columns."""
    return STAGE_WORDS * -(-columns // decoder.stage_columns)


@cuda.jit(device=True)
def load_halves(tiles, start, lane):
    """Load this lane's 16 bytes of each half of a group, which begin at tiles[start] and HALF elements behind it."""
    is_odd = lane // 4 % 2 == 1
    first = uint32(HALF) if is_odd else uint32(0)
    a, b = ptx.load_shared4(tiles, start + first), ptx.load_shared4(tiles, start + (HALF - first))
    return (b, a) if is_odd else (a, b)


def make_product(decoder: Decoder, columns: int):
    """Make the device functions for rows of so many columns: load_rows, normalise, multiply, and multiply_long."""
    COLUMNS, WARPS, STAGE, PITCH = columns, decoder.warps, decoder.stage, min(columns, decoder.stage_columns)
    ROUNDS = -(-columns // decoder.stage_columns)
    FRAGMENT, THREADS = fragment_size(decoder, columns), 32 * decoder.warps
    WHOLE = columns % decoder.stage_columns == 0
    SMALL, INV_COLUMNS = small(decoder.eps), float32(1.0 / columns)
    SQUARES = WARPS * 4 * TILE  # where in scratch
    stage_of, next_stage = make_stages(decoder)
    add_product, (_, add_squares, scale_pair) = ADD_PRODUCT[decoder.element], make_words(decoder.element)

    @cuda.jit(device=True)
    def load_stage(fragment, j, array, start, r, warp, lane):
        """Load this lane's part of the columns of stage r of its row, which begins at array[start], to fragment[j] and
        on; zeros behind the last column."""
        for n in range(GROUPS):
            col = ((GROUPS * r + n) * WARPS + warp) * GROUP + lane % 4 * 8
            i = start + uint64(col if WHOLE or col < COLUMNS else 0)
            low, high = ptx.load_global4(array, i), ptx.load_global4(array, i + uint64(HALF))
            for k in range(4):
                fragment[j + 8 * n + k] = low[k] if WHOLE or col < COLUMNS else NOTHING
                fragment[j + 8 * n + 4 + k] = high[k] if WHOLE or col < COLUMNS else NOTHING

    @cuda.jit(device=True)
    def load_rows(fragment, array, start, warp, lane):
        for r in range(ROUNDS):
            load_stage(fragment, STAGE_WORDS * r, array, start, r, warp, lane)

    @cuda.jit(device=True)
    def normalise(fragment, norm, scratch, warp, lane):
        """RMSNorm of the rows, by all warps. norm: its weight, as loaded by load_rows."""
        squares = ZERO
        for i in range(FRAGMENT):
            squares = add_squares(squares, fragment[i])
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, 1)
        squares += cuda.shfl_xor_sync(ALL_LANES, squares, 2)
        if lane % 4 == 0:
            scratch[SQUARES + warp * ROWS + lane // 4] = squares
        ptx.named_barrier_sync(1, THREADS)
        squares = ZERO
        for other in u32.range(WARPS):
            squares += scratch[SQUARES + other * ROWS + lane // 4]
        rstd = cuda.rsqrt(squares * INV_COLUMNS + SMALL)
        for i in range(FRAGMENT):
            fragment[i] = scale_pair(fragment[i], rstd, norm[i])

    @cuda.jit(device=True)
    def multiply_stage(fragment, j, acc, t, ring, r, count, warp, lane):
        """acc[t : t + 8] += the product of the rows, from fragment[j] on, and of the next stage of the ring, which has
        the columns of stage r."""
        tiles, full, empty, _ = ring
        stage, lap = stage_of(count)
        ptx.mbarrier_wait_bounded(full, stage, lap)
        for n in range(GROUPS):
            if WHOLE or ((GROUPS * r + n) * WARPS + warp) * GROUP < COLUMNS:
                start = stage * STAGE + lane // 4 * PITCH + (n * WARPS + warp) * GROUP + lane % 4 * 8
                low, high = load_halves(tiles, start, lane)
                for k in range(2):
                    i = j + 8 * n + 2 * k
                    add_product(acc, t, fragment[i], NOTHING, fragment[i + 1], NOTHING, low[2 * k], low[2 * k + 1])
                    add_product(acc, t + 4, fragment[i + 4], NOTHING, fragment[i + 5], NOTHING, high[2 * k],
                                high[2 * k + 1])
        cuda.syncwarp()  # all lanes have read the stage
        if lane == 0:
            ptx.mbarrier_arrive(empty, stage)
        return next_stage(count)

    @cuda.jit(device=True)
    def store_sums(acc, t, scratch, buffer):
        """Lane 4 * g + q has row g, weights 2q and 2q + 1; the other accumulators are of rows 8 to 15."""
        i = buffer * (WARPS * TILE) + 2 * u32.threadIdx.x
        scratch[i], scratch[i + 1] = acc[t] + acc[t + 4], acc[t + 1] + acc[t + 5]

    @cuda.jit(device=True)
    def multiply(fragment, num_tiles, ring, scratch, buffer, count, warp, lane):
        """Write this warp's sums of the next one or two tiles of the ring to as many buffers of scratch. Return the
        next count."""
        acc = cuda.local.array(16, float32)  # for each half of the groups: chains of products half as long
        for i in range(16):
            acc[i] = ZERO
        for r in range(ROUNDS):
            for t in range(num_tiles):
                count = multiply_stage(fragment, STAGE_WORDS * r, acc, 8 * t, ring, r, count, warp, lane)
        for t in range(num_tiles):
            store_sums(acc, 8 * t, scratch, buffer + t)
        return count

    @cuda.jit(device=True)
    def multiply_long(array, start, ring, scratch, buffer, count, warp, lane):
        """The same for two tiles and rows that are too long for registers, which hold the columns of two stages at a
        time. This lane's row begins at array[start]."""
        acc = cuda.local.array(16, float32)
        fragment = cuda.local.array(STAGE_WORDS, uint32)
        following = cuda.local.array(STAGE_WORDS, uint32)
        for i in range(16):
            acc[i] = ZERO
        load_stage(fragment, 0, array, start, uint32(0), warp, lane)
        for r in u32.range(ROUNDS):
            if r + 1 < ROUNDS:
                load_stage(following, 0, array, start, r + 1, warp, lane)
            for t in range(2):
                count = multiply_stage(fragment, 0, acc, 8 * t, ring, r, count, warp, lane)
            for i in range(STAGE_WORDS):
                fragment[i] = following[i]
        for t in range(2):
            store_sums(acc, 8 * t, scratch, buffer + t)
        return count

    return load_rows, normalise, multiply, multiply_long


def make_sum_warps(decoder: Decoder):
    """Make the device function that adds up what multiply wrote."""
    WARPS = decoder.warps

    @cuda.jit(device=True)
    def sum_warps(scratch, buffer, thread):
        """Add up an output of the tile, in the order of the warps."""
        total = ZERO
        for warp in u32.range(WARPS):
            total += scratch[(buffer * WARPS + warp) * TILE + thread]
        return total

    return sum_warps
