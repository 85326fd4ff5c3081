"""Up to eight rows of activations times a tile of eight rows of weights, by all warps of a block.

A warp multiplies groups of 32 columns. Its part of the rows stays in registers for all tiles of a phase, as fragments
of mma.m16n8k16: lane 4 * g + q has columns 8q to 8q + 7 of row g, in 16 bytes, and of the weights the same columns of
row g. In which order the products of a sum are added is free, as long as both agree. Rows 8 to 15 are zero; with fewer
than eight sequences the others repeat the last one. The warps' sums are added in the order of the warps: a row's result
does not depend on the rows beside it.
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


def fragment_size(decoder: Decoder, columns: int) -> int:
    """Return the words of a lane's part of rows with so many columns."""
    return 4 * GROUPS * -(-columns // decoder.stage_columns)


def make_product(decoder: Decoder, columns: int):
    """Make the device functions for rows of so many columns: load_rows, normalise and multiply."""
    COLUMNS, WARPS, PITCH = columns, decoder.warps, decoder.pitch
    ROUNDS = -(-columns // decoder.stage_columns)
    NUM_GROUPS, FRAGMENT, THREADS = GROUPS * ROUNDS, fragment_size(decoder, columns), 32 * decoder.warps
    WHOLE = columns % decoder.stage_columns == 0
    SMALL, INV_COLUMNS = small(decoder.eps), float32(1.0 / columns)
    SQUARES = WARPS * 4 * TILE  # where in scratch
    stage_of, next_stage = make_stages(decoder)
    add_product, (_, add_squares, scale_pair) = ADD_PRODUCT[decoder.element], make_words(decoder.element)

    @cuda.jit(device=True)
    def load_rows(fragment, array, start, warp, lane):
        """Load this lane's part of its row, which begins at array[start]; zeros behind the last column."""
        for n in range(NUM_GROUPS):
            col = (n * WARPS + warp) * GROUP + lane % 4 * 8
            words = ptx.load_global4(array, start + uint64(col if WHOLE or col < COLUMNS else 0))
            for i in range(4):
                fragment[4 * n + i] = words[i] if WHOLE or col < COLUMNS else NOTHING

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
    def multiply(fragment, ring, scratch, buffer, count, warp, lane):
        """Write this warp's sums of the next tile of the ring to a buffer of scratch. Return the next count."""
        tiles, full, empty = ring
        acc = cuda.local.array(4, float32)
        for i in range(4):
            acc[i] = ZERO
        offset = lane // 4 * PITCH + warp * GROUP + lane % 4 * 8  # of this lane in a stage
        for r in range(ROUNDS):
            stage, lap = stage_of(count)
            ptx.mbarrier_wait_bounded(full, stage, lap)
            start = stage * (ROWS * PITCH) + offset
            for i in range(GROUPS):
                n = GROUPS * r + i
                if WHOLE or (n * WARPS + warp) * GROUP < COLUMNS:
                    w = ptx.load_shared4(tiles, start + i * (WARPS * GROUP))
                    add_product(acc, 0, fragment[4 * n], NOTHING, fragment[4 * n + 1], NOTHING, w[0], w[1])
                    add_product(acc, 0, fragment[4 * n + 2], NOTHING, fragment[4 * n + 3], NOTHING, w[2], w[3])
            cuda.syncwarp()  # all lanes have read the stage
            if lane == 0:
                ptx.mbarrier_arrive(empty, stage)
            count = next_stage(count)
        # Lane 4 * g + q has row g, weights 2q and 2q + 1; the other two accumulators are of rows 8 to 15.
        i = buffer * (WARPS * TILE) + 2 * u32.threadIdx.x
        scratch[i], scratch[i + 1] = acc[0], acc[1]
        return count

    return load_rows, normalise, multiply


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
