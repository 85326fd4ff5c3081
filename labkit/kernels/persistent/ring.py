"""A ring of stages in shared memory: one warp copies weights into it, and the keys and values of older tokens, by bulk
copies, in the order in which the other warps use them.

They depend on nothing that the kernel computes, so the copying warp never waits at a join: while the blocks wait for
one another, the ring fills with the weights of the next phases. full[stage] ends a phase when the bytes have arrived,
empty[stage] when all warps have read them. As many stages are in flight at once as the sizes say (in_flight), enough
for the memory's full rate; where a kernel sets at_join, one while a block is at a join, since everything that a join
reads and writes waits in the same queues.

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


def make_claim(decoder: Decoder):
    """Make the device function by which the copying warp takes the next stage."""
    IN_FLIGHT, TWO_LAPS = min(decoder.in_flight, decoder.stages), 2 * decoder.stages
    stage_of, _ = make_stages(decoder)

    @cuda.jit(device=True)
    def claim(ring, count, nbytes, lane):
        """Return a stage once it is empty and few enough others are in flight: one, while this block is at a join.
        nbytes: announced at the stage."""
        _, full, empty, at_join = ring
        stage, lap = stage_of(count)
        ptx.mbarrier_wait_bounded(empty, stage, lap ^ 1)
        in_flight = uint32(IN_FLIGHT) if cuda.atomic.add(at_join, 0, 0) == 0 else uint32(1)
        before = count - in_flight if count >= in_flight else count + (TWO_LAPS - in_flight)
        stage_before, lap_before = stage_of(before)
        ptx.mbarrier_wait_bounded(full, stage_before, lap_before)
        if lane == 0:
            ptx.mbarrier_expect_tx(full, stage, nbytes)
        cuda.syncwarp()
        return stage

    return claim


def make_load_matrix(decoder: Decoder):
    """Make the device function of the copying warp: copy this block's tiles of a matrix (rows, columns) that begins at
    weights[base]. A unit is `tiles` tiles of eight rows, copied column range by column range; the blocks take units in
    turn. count: as for stage_of."""
    STAGE, STAGE_COLUMNS = decoder.stage, decoder.stage_columns
    claim, (_, next_stage) = make_claim(decoder), make_stages(decoder)
    ITEMSIZE = decoder.element.dtype.itemsize

    @cuda.jit(device=True)
    def load_matrix(ring, weights, base, rows, columns, tiles, count, lane):
        stage_tiles, full, _, _ = ring
        for unit in u32.range(u32.blockIdx.x * tiles * ROWS, rows, u32.gridDim.x * tiles * ROWS):
            for col in u32.range(0, columns, STAGE_COLUMNS):
                for row in u32.range(unit, min(unit + tiles * ROWS, rows), ROWS):
                    num_rows = min(ROWS, rows - row)
                    # Rows that fill a stage's are neighbours in memory: one copy.
                    copies = num_rows if columns > STAGE_COLUMNS else 1
                    nbytes = num_rows * min(STAGE_COLUMNS, columns - col) * ITEMSIZE
                    stage = claim(ring, count, nbytes, lane)
                    if lane < copies:
                        start = base + uint64(row + lane) * uint64(columns) + uint64(col)
                        ptx.bulk_load(stage_tiles, stage * STAGE + lane * STAGE_COLUMNS, weights, start,
                                      nbytes // copies, full, stage)
                    count = next_stage(count)
        return count

    return load_matrix
