"""The product in TF32 on Hopper's tensor cores: the last rung of matmul_tf32.

Shapes  a (M, K), b (K, N), out (M, N); float32, C-contiguous
Sizes   K and N multiples of 4: TMA wants rows of a multiple of 16 bytes. Any M
Needs   compute capability 9.0 exactly (sm_90a)
Source  PTX ISA, "Register Fragments and Shared Memory Matrix Layouts" of wgmma; "Tensors"

In TF32 wgmma reads shared memory K-major only: rows of 32 values along K. A tile of a lies so in memory, a tile of b
does not. But the first factor may come from registers. So the product is computed transposed, out.T = b.T @ a.T, with
b.T in registers: 64 columns of b by 256 rows of a for each warpgroup.
"""

import numpy as np
from numba import float32, int64, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import dynamic_shared, unsigned
from labkit.kernels.matmul.mma import check_product
from labkit.kernels.matmul.wgmma import block_count
from labkit.kernels.matmul.wgmma_tiles import ROW_GROUP, Tile, make_tile_origin
from labkit.kernels.op import rung

TILE = Tile(rows=256, cols=128, stages=4)
DEPTH = 32  # float32 values of K in a stage: a row of 128 bytes, the widest swizzle
B_BOX = DEPTH * 32  # values in a box of b: 32 columns, with a row for each k
SHARED_BYTES = 2 * TILE.stages * TILE.stage_elements  # Tile counts elements of 16 bits: a row has 64


@kernel_factory
def make_wgmma_tf32():
    """As make_wgmma_specialised: one producer, two consumers, a block for each SM. What differs:

    A consumer loads the fragments of a stage from the tile of b, 16 registers a thread, while its products of the stage
    before are running: there are two sets of registers. In the swizzled tile the 32 lanes, eight columns by four k,
    would hit only half of the banks, so lanes with an odd k load their two values in the other order.

    Eight lanes hold eight neighbours of a row of out, a sector of 32 bytes, and store them as they are.

    TMA rounds to TF32 as it copies; wgmma ignores the low 13 bits.

    Shared memory: four stages, each 32 KB of a and 16 KB of b, which keep the tensor cores busy for 1,024 cycles. The
    512 tiles of 4096 x 4096 are 3.9 rounds of 132 blocks: 324 us at the peak of an H200, and about 15 for stores that
    no product overlaps.
    """
    ROWS, COLS, STAGES = TILE.rows, TILE.cols, TILE.stages
    A_SIZE, STAGE_SIZE, STAGE_BYTES = ROWS * DEPTH, (ROWS + COLS) * DEPTH, 4 * (ROWS + COLS) * DEPTH
    DESC_STEP, BOXES = STAGE_BYTES // 16, COLS // 32
    PRODUCTS, FRAGMENTS, ACCUMULATORS = DEPTH // 8, DEPTH // 2, ROWS // 2
    tile_origin, wgmma = make_tile_origin(TILE), getattr(ptx, f"wgmma_m64n{ROWS}k8_f32_tf32_ra")

    @cuda.jit(device=True)
    def load(tiles, loaded, stage, a_map, b_map, row, col, k):
        offset = stage * STAGE_SIZE
        ptx.mbarrier_expect_tx(loaded, stage, STAGE_BYTES)  # the bytes of whole boxes, also beyond an edge
        ptx.tma_load_2d(tiles, offset, a_map, k, row, loaded, stage)
        for box in u32.range(BOXES):
            ptx.tma_load_2d(tiles, offset + A_SIZE + box * B_BOX, b_map, col + box * 32, k, loaded, stage)

    @cuda.jit(device=True, forceinline=True)
    def start_products(acc, frag, tiles, stage, b_offset, is_odd, a_desc0, scale_d):
        """Load the fragments of a stage, then start its products, as one group."""
        for i in range(PRODUCTS):
            for down in range(2):  # rows group_id and group_id + 8 of b.T
                near = int64(stage * STAGE_SIZE + (b_offset ^ 8 * down)) + 8 * DEPTH * i
                far = int64(stage * STAGE_SIZE + (b_offset ^ 8 * down ^ 144)) + 8 * DEPTH * i  # four steps of K away
                x, y = tiles[near], tiles[far]
                frag[4 * i + down] = y if is_odd else x
                frag[4 * i + 2 + down] = x if is_odd else y
        a_desc = a_desc0 + uint64(stage * DESC_STEP)
        ptx.wgmma_fence()
        for i in range(PRODUCTS):
            wgmma(acc, frag[4 * i], frag[4 * i + 1], frag[4 * i + 2], frag[4 * i + 3], a_desc + uint64(2 * i),
                  1 if i > 0 else scale_d)
        ptx.wgmma_commit()

    @cuda.jit(device=True, forceinline=True)
    def store(acc, out, row, col, rows, cols):
        """Store rows row + 8 * j and the next, columns col and col + 8."""
        for j in u32.range(ROWS // 8):
            for odd in u32.range(2):
                out_row = row + 8 * j + odd
                if out_row < rows:
                    i = out_row * cols + col
                    if col < cols:
                        out[i] = acc[4 * j + odd]
                    if col + 8 < cols:
                        out[i + 8] = acc[4 * j + 2 + odd]

    @cuda.jit(launch_bounds=(384, 1))  # so that setmaxnreg has registers to move: 168 a thread
    def wgmma_tf32_kernel(a_map, b_map, out, rows, cols, depth):
        tiles = cuda.shared.array(0, uint32, alignment=1024)
        loaded = cuda.shared.array(STAGES, np.uint64)
        freed = cuda.shared.array(STAGES, np.uint64)
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
                ptx.mbarrier_init(freed, stage, 8)  # every warp reads the tile of b
            ptx.fence_mbarrier_init()
        cuda.syncthreads()

        num_tiles = (rows + (ROWS - 1)) // ROWS * ((cols + (COLS - 1)) // COLS)
        pairs = (depth + (2 * DEPTH - 1)) // (2 * DEPTH)  # of stages; one beyond K holds zeros
        tile_id = u32.blockIdx.x
        stage, parity = 0, 0

        if warpgroup == 2:
            ptx.setmaxnreg_decrease(24)
            if wg_thread == 0:
                while tile_id < num_tiles:
                    row, col = tile_origin(tile_id, rows, cols)
                    for step in u32.range(2 * pairs):
                        ptx.mbarrier_wait(freed, stage, 1 - parity)  # passes at once in the first round
                        load(tiles, loaded, stage, a_map, b_map, row, col, step * DEPTH)
                        stage += 1
                        if stage == STAGES:
                            stage, parity = 0, 1 - parity
                    tile_id = tile_id + u32.gridDim.x
        else:
            ptx.setmaxnreg_increase(240)
            acc = cuda.local.array(ACCUMULATORS, float32)
            even_frag, odd_frag = cuda.local.array(FRAGMENTS, uint32), cuda.local.array(FRAGMENTS, uint32)
            a_desc0 = ptx.wgmma_descriptor(tiles, 0, 16, ROW_GROUP, 128)
            lane, warp = wg_thread % 32, wg_thread // 32
            group_id, quad_lane = lane // 4, lane % 4
            is_odd = quad_lane % 2 == 1
            k = quad_lane ^ quad_lane % 2 * 4  # 0, 5, 2, 7: with two chunks of columns each, eight groups of banks
            chunk = warp % 2 * 4 + group_id // 4
            b_offset = (A_SIZE + (warpgroup * 2 + warp // 2) * B_BOX) + k * 32 + (chunk ^ k) * 4 + group_id % 4
            thread_col = warpgroup * 64 + warp * 16 + group_id

            while tile_id < num_tiles:
                row, col = tile_origin(tile_id, rows, cols)
                for pair in u32.range(pairs):
                    ptx.mbarrier_wait(loaded, stage, parity)
                    start_products(acc, even_frag, tiles, stage, b_offset, is_odd, a_desc0, uint32(pair > 0))
                    ptx.wgmma_wait(1)  # the stage before has been multiplied
                    if pair > 0 and lane == 0:
                        ptx.mbarrier_arrive(freed, (stage if stage > 0 else STAGES) - 1)
                    ptx.mbarrier_wait(loaded, stage + 1, parity)
                    start_products(acc, odd_frag, tiles, stage + 1, b_offset, is_odd, a_desc0, 1)
                    ptx.wgmma_wait(1)
                    if lane == 0:
                        ptx.mbarrier_arrive(freed, stage)
                    stage += 2
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity
                ptx.wgmma_wait(0)
                if lane == 0:
                    ptx.mbarrier_arrive(freed, (stage if stage > 0 else STAGES) - 1)
                store(acc, out, row + 2 * quad_lane, col + thread_col, rows, cols)
                tile_id = tile_id + u32.gridDim.x

    wgmma_tf32_kernel.shared_bytes = SHARED_BYTES
    return wgmma_tf32_kernel


WGMMA_TF32 = make_wgmma_tf32()


@rung(kernel=WGMMA_TF32, sizes="K and N multiples of 4",
      idea="wgmma on the transposed product: b from registers, a from tiles that TMA copies and rounds")
def matmul_tf32_wgmma(a, b, out, stream=0):
    """wgmma in place of mma.sync, by a producer and two consumers that multiply 256 x 64 each."""
    rows, cols, depth = check_product(a, b, None, None, out, weights=False, dtype=np.float32, out_dtype=np.float32,
                                      multiple=4)
    arguments = (ptx.tensor_map_2d(a, TILE.rows, DEPTH, tf32=True), ptx.tensor_map_2d(b, DEPTH, 32, tf32=True),
                 out.reshape(-1), *unsigned(rows, cols, depth))
    dynamic_shared(WGMMA_TF32, SHARED_BYTES, *arguments)
    WGMMA_TF32[min(block_count(), TILE.count(rows, cols)), 384, stream, SHARED_BYTES](*arguments)
