"""The product on Hopper's tensor cores with copies by cp.async: the rung between mma.sync and TMA.

Shapes, sizes, needs and the layout of tiles as in wgmma.py. Threads write the 128-byte swizzle that TMA would write.
"""

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import dynamic_shared, unsigned
from labkit.kernels.matmul.mma import check_product, make_copy
from labkit.kernels.matmul.wgmma import SIMPLE, SIZES
from labkit.kernels.matmul.wgmma_tiles import (
    BOX,
    DEPTH,
    ROW_GROUP,
    b_layout,
    make_epilogue,
    make_tile_origin,
    unchanged,
    wgmma_of,
)
from labkit.kernels.op import rung

THREADS = 256  # two warpgroups


@kernel_factory
def make_wgmma_cp_async():
    """As make_wgmma, but all threads copy their share of a stage, and one barrier a step is enough."""
    COLS, STAGES, STAGE_SIZE = SIMPLE.cols, SIMPLE.stages, SIMPLE.stage_elements
    PENDING = STAGES - 2
    A_SIZE, DESC_STEP = SIMPLE.rows * DEPTH, STAGE_SIZE * 2 // 16
    ACCUMULATORS, BOXES = COLS // 2, COLS // 64
    B_LEADING, B_STEP = b_layout(weights=False)
    tile_origin, wgmma, epilogue = make_tile_origin(SIMPLE), wgmma_of(COLS, weights=False), make_epilogue(unchanged)
    copy_a = make_copy(SIMPLE.rows, DEPTH, THREADS, DEPTH, swizzled=True)
    copy_box = make_copy(DEPTH, 64, THREADS, 64, swizzled=True)  # 64 columns of b

    @cuda.jit(device=True)
    def copy_stage(tiles, stage, a, b, row, col, k, thread):
        start = stage * STAGE_SIZE
        copy_a(tiles, start, a, row, k, thread)
        for box in u32.range(BOXES):
            copy_box(tiles, start + A_SIZE + box * BOX, b, k, col + box * 64, thread)

    @cuda.jit(launch_bounds=(THREADS, 2))
    def wgmma_cp_async_kernel(a, b, out_map, rows, cols, depth):
        tiles = cuda.shared.array(0, np.float16, alignment=1024)
        words = cuda.shared.array(0, np.uint32, alignment=1024)  # the same memory, two float16 values at a time
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        row, col = tile_origin(u32.blockIdx.x, rows, cols)
        for stage in u32.range(STAGES - 1):
            copy_stage(tiles, stage, a, b, row, col, stage * DEPTH, thread)
            ptx.cp_async_commit()

        acc = cuda.local.array(ACCUMULATORS, float32)
        a_desc0 = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
        b_desc0 = ptx.wgmma_descriptor(tiles, A_SIZE, B_LEADING, ROW_GROUP, 128)
        full, empty, k = 0, STAGES - 1, 0  # the stages to multiply and to fill next
        while k < depth:
            ptx.cp_async_wait(PENDING)
            ptx.fence_proxy_async()  # the tensor cores may read what this thread copied
            cuda.syncthreads()  # stage `full` has landed; `empty`, the previous one, has been multiplied
            copy_stage(tiles, empty, a, b, row, col, k + (STAGES - 1) * DEPTH, thread)
            ptx.cp_async_commit()
            a_desc = a_desc0 + uint64(full * DESC_STEP)
            b_desc = b_desc0 + uint64(full * DESC_STEP)
            ptx.wgmma_fence()
            for i in range(DEPTH // 16):
                scale_d = 1 if i > 0 else uint32(k > 0)
                wgmma(acc, a_desc + uint64(2 * i), b_desc + uint64(B_STEP * i), scale_d)
            ptx.wgmma_commit()
            ptx.wgmma_wait(0)
            k += DEPTH
            full = full + 1 if full < STAGES - 1 else 0
            empty = empty + 1 if empty < STAGES - 1 else 0

        ptx.cp_async_wait(0)
        cuda.syncthreads()  # every stage is free: the first ones hold the float16 output
        lane, quad_lane = wg_thread % 32, wg_thread % 4
        swizzle_row = lane // 4
        out_offset = warpgroup * (BOXES * BOX)
        word_base = out_offset // 2 + (wg_thread // 32 * 16 + swizzle_row) * 32 + quad_lane
        epilogue(acc, 0, words, word_base, swizzle_row)
        epilogue(acc, 1, words, word_base, swizzle_row)
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if wg_thread == 0:
            for box in u32.range(BOXES):
                ptx.tma_store_2d(out_map, col + box * 64, row + warpgroup * 64, tiles, out_offset + box * BOX)
            ptx.tma_store_commit()
            ptx.tma_store_wait(0)

    return wgmma_cp_async_kernel


@rung(kernel=make_wgmma_cp_async(), sizes=SIZES,
      idea="wgmma: tensor cores read shared memory, four warps together; copies by cp.async")
def matmul_half_wgmma_cp_async(a, b, out, stream=0):
    """wgmma instead of mma.sync: 128 threads multiply 64 x 128 together, without fragments of a and b in registers. As
    in pipelined, all threads copy with cp.async into swizzled tiles."""
    rows, cols, depth = check_product(a, b, None, None, out, weights=False)
    kernel = make_wgmma_cp_async()
    arguments = (a, b, ptx.tensor_map_2d(out, 64, 64), *unsigned(rows, cols, depth))
    shared = 2 * SIMPLE.stages * SIMPLE.stage_elements
    dynamic_shared(kernel, shared, *arguments)
    kernel[SIMPLE.count(rows, cols), THREADS, stream, shared](*arguments)
