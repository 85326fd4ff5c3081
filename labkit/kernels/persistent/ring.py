"""A ring of stages in shared memory: one warp copies weights into it, by bulk copies, in the order in which the other
warps multiply them.

Weights depend on nothing that the kernel computes, so the copying warp never waits at a join: while the blocks wait for
one another, the ring fills with the weights of the next phases. full[stage] ends a phase when the bytes have arrived,
empty[stage] when all warps have read them. A few stages are in flight at once: enough for the memory's full rate, and
no more, since everything that the joins read and write waits in the same queues.

Source  B. Spector et al., "Look Ma, No Bubbles! Designing a Low-Latency Megakernel for Llama-1B" (2025)
"""

from numba import uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.persistent.decoder import ROWS, Decoder


def make_stages(decoder: Decoder):
    """Make device functions that count stages in two laps of the ring, 0 to 2 * stages - 1, without a division."""
    STAGES, TWO_LAPS = decoder.stages, 2 * decoder.stages

    @cuda.jit(device=True)
    def stage_of(count):
        """Return (stage, parity of its lap)."""
        lap = uint32(1) if count >= STAGES else uint32(0)
        return count - lap * STAGES, lap

    @cuda.jit(device=True)
    def next_stage(count):
        return count + 1 if count + 1 < TWO_LAPS else uint32(0)

    return stage_of, next_stage


def make_load_matrix(decoder: Decoder):
    """Make the device function of the copying warp: copy this block's tiles of a matrix (rows, columns) that begins at
    weights[base]. A unit is `tiles` tiles of eight rows, the blocks take units in turn. count: as for stage_of."""
    PITCH, STAGE_COLUMNS = decoder.pitch, decoder.stage_columns
    IN_FLIGHT, TWO_LAPS = min(decoder.in_flight, decoder.stages), 2 * decoder.stages
    stage_of, next_stage = make_stages(decoder)
    ITEMSIZE = decoder.element.dtype.itemsize

    @cuda.jit(device=True)
    def load_matrix(ring, weights, base, rows, columns, tiles, count, lane):
        stage_tiles, full, empty = ring
        unit_rows = tiles * ROWS
        for row0 in u32.range(u32.blockIdx.x * unit_rows, rows, u32.gridDim.x * unit_rows):
            for row in u32.range(row0, min(row0 + unit_rows, rows), ROWS):
                num_rows = min(ROWS, rows - row)
                for col in u32.range(0, columns, STAGE_COLUMNS):
                    stage, lap = stage_of(count)
                    nbytes = min(STAGE_COLUMNS, columns - col) * ITEMSIZE
                    ptx.mbarrier_wait_bounded(empty, stage, lap ^ 1)
                    before = count - IN_FLIGHT if count >= IN_FLIGHT else count + (TWO_LAPS - IN_FLIGHT)
                    stage_before, lap_before = stage_of(before)
                    ptx.mbarrier_wait_bounded(full, stage_before, lap_before)
                    if lane == 0:
                        ptx.mbarrier_expect_tx(full, stage, num_rows * nbytes)
                    cuda.syncwarp()
                    if lane < num_rows:
                        start = base + uint64(row + lane) * uint64(columns) + uint64(col)
                        ptx.bulk_load(stage_tiles, (stage * ROWS + lane) * PITCH, weights, start, nbytes, full, stage)
                    count = next_stage(count)
        return count

    return load_matrix
