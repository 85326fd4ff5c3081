"""Products on Hopper's tensor cores: wgmma fed by TMA. The kernels behind the last rungs of matmul_half and linear.

Shapes  a (M, K), b (K, N), or as the weights of a linear layer (N, K); bias (N,); residual and out (M, N). float16,
        accumulators in float32; the bias may be float16 or float32
Sizes   K and N multiples of 8: TMA wants rows of a multiple of 16 bytes. Any M
Needs   compute capability 9.0 exactly (sm_90a)
Source  PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensors", "mbarrier"; NVIDIA CUTLASS, "Efficient
        GEMM in CUDA: Hopper Warp Specialization"; P. Shankhdhar, "Outperforming cuBLAS on H100" (2024)
It is longer than other files for one kernel of many roles, and for the measurements that led to it.
"""

import functools

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array, dynamic_shared, product_sizes, unsigned
from labkit.kernels.elements import ELEMENTS, FLOAT16, SWIGLU, Element
from labkit.kernels.linear.fused import seconds_between
from labkit.kernels.matmul.wgmma_tiles import (
    BOX,
    DEPTH,
    ROW_GROUP,
    Tile,
    b_layout,
    bias_index,
    make_epilogue,
    make_load,
    make_pair_epilogue,
    make_store_partial,
    make_tile_origin,
    unchanged,
    wgmma_of,
)
from labkit.kernels.op import missing, rung

# TMA copies boxes of a matrix to shared memory: one thread starts a copy, with the box's coordinates and the mbarrier
# that counts its bytes; outside the matrix it fills in zeros. wgmma multiplies asynchronously, both operands from
# shared memory, and adds to accumulators in the registers of 128 threads, a warpgroup: 64 rows x up to 256 columns.
#
# The layout of a tile: rows of 64 float16 values are 128 bytes, all 32 banks. TMA writes 16-byte piece c of row r to
# position c ^ (r % 8), the 128-byte swizzle, so that the same piece of eight rows lies in eight different groups of
# banks. wgmma's descriptor encodes it, and code that writes a tile for TMA to store has to follow it.
#     a, and weights (N, K)   a box has 64 float16 values of K and a row for each row of the tile: "K-major"
#     b (K, N)                boxes of 64 columns, with a row for each k: "MN-major". wgmma transposes as it reads

CPU_BLOCKS = 2  # persistent blocks on the CPU device: few, so that each has several tiles


# --- One role for all warps ------------------------------------------------------------------------------------------

SIMPLE = Tile(cols=128, stages=3)


@kernel_factory
def make_wgmma(*, weights: bool, bias: bool):
    """A block of two warpgroups computes 128 x 128 elements, 64 rows each: 64 accumulators a thread.

    Shared memory: three stages, each 16 KB of a and 16 KB of b. Two blocks fit on an SM: while one waits for
    its tensor cores or stores its accumulators, the other multiplies.
    """
    COLS, STAGES, STAGE_SIZE = SIMPLE.cols, SIMPLE.stages, SIMPLE.stage_elements
    A_SIZE, DESC_STEP = SIMPLE.rows * DEPTH, STAGE_SIZE * 2 // 16
    ACCUMULATORS, BOXES = COLS // 2, COLS // 64
    B_LEADING, B_STEP = b_layout(weights)
    tile_origin, load, wgmma = make_tile_origin(SIMPLE), make_load(SIMPLE, weights), wgmma_of(COLS, weights)
    epilogue = make_epilogue(unchanged)

    @cuda.jit(launch_bounds=(256, 2))
    def wgmma_kernel(a_map, b_map, out_map, bias_of, rows, cols, depth):
        tiles = cuda.shared.array(0, np.float16, alignment=1024)
        words = cuda.shared.array(0, np.uint32, alignment=1024)  # the same memory, two float16 values at a time
        loaded = cuda.shared.array(STAGES, np.uint64)
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        row, col = tile_origin(u32.blockIdx.x, rows, cols)

        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
            ptx.fence_mbarrier_init()
            for stage in u32.range(STAGES):
                if stage * DEPTH < depth:
                    load(tiles, loaded, stage, a_map, b_map, row, col, stage * DEPTH)
        cuda.syncthreads()  # the mbarriers are initialised

        acc = cuda.local.array(ACCUMULATORS, float32)
        a_desc0 = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
        b_desc0 = ptx.wgmma_descriptor(tiles, A_SIZE, B_LEADING, ROW_GROUP, 128)
        stage, parity, k = 0, 0, 0
        while k < depth:
            ptx.mbarrier_wait(loaded, stage, parity)
            a_desc = a_desc0 + uint64(stage * DESC_STEP)
            b_desc = b_desc0 + uint64(stage * DESC_STEP)
            ptx.wgmma_fence()
            for i in range(DEPTH // 16):
                scale_d = 1 if i > 0 else uint32(k > 0)
                wgmma(acc, a_desc + uint64(2 * i), b_desc + uint64(B_STEP * i), scale_d)
            ptx.wgmma_commit()
            ptx.wgmma_wait(0)
            cuda.syncthreads()  # both warpgroups have read the stage: it is free to overwrite
            k += DEPTH
            next_k = k + (STAGES - 1) * DEPTH
            if thread == 0 and next_k < depth:
                load(tiles, loaded, stage, a_map, b_map, row, col, next_k)
            stage += 1
            if stage == STAGES:  # the ring wraps: the mbarriers are in their next phase
                stage, parity = 0, 1 - parity

        # A thread's accumulators: rows thread_row and thread_row + 8 of its warpgroup's 64, columns
        # 8 * j + 2 * quad_lane and the next.
        lane, quad_lane = wg_thread % 32, wg_thread % 4
        swizzle_row = lane // 4  # row % 8, for the swizzle
        thread_row = wg_thread // 32 * 16 + swizzle_row
        if bias:
            for j in u32.range(COLS // 8):
                bias_col = min(col + 8 * j + quad_lane * 2, cols - 2)
                x, y = float32(bias_of[bias_col]), float32(bias_of[bias_col + 1])
                acc[4 * j] += x
                acc[4 * j + 1] += y
                acc[4 * j + 2] += x
                acc[4 * j + 3] += y
        out_offset = warpgroup * (BOXES * BOX)  # the first stage is free by now: it holds the float16 output
        word_base = out_offset // 2 + thread_row * 32 + quad_lane
        epilogue(acc, 0, words, word_base, swizzle_row)
        epilogue(acc, 1, words, word_base, swizzle_row)
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if wg_thread == 0:
            for box in u32.range(BOXES):
                ptx.tma_store_2d(out_map, col + box * 64, row + warpgroup * 64, tiles, out_offset + box * BOX)
            ptx.tma_store_commit()
            ptx.tma_store_wait(0)

    return wgmma_kernel


# --- Warp specialisation ---------------------------------------------------------------------------------------------

TILES = (Tile(cols=256, stages=3), Tile(cols=192, stages=4), Tile(cols=128, stages=5), Tile(cols=64, stages=8))
SWIGLU_TILES = (Tile(cols=256, stages=4), Tile(cols=128, stages=6))  # half the output leaves memory for another stage
DEEP = 1024  # from this K on the widest tile has the highest throughput, below it the one with four stages


@kernel_factory
def make_wgmma_specialised(tile: Tile, *, weights: bool, bias: bool, activation, residual: bool = False,
                           split: bool = False, element: Element = FLOAT16, swiglu: bool = False,
                           floats: bool = False, transposed: bool = False, accumulate: bool = False):
    """One block for each SM; each computes one tile after another until none is left.

    Warpgroups 0 and 1, the consumers, multiply 64 rows each: a thread has one accumulator for every two columns, 128
    registers for 256 columns. Warpgroup 2, the producer, releases registers, and one thread of it starts every copy, up
    to `stages` steps ahead, also those of the next tile while the consumers store this one.

    Two barriers for each stage of the ring. `loaded`: its bytes are in shared memory (the producer arrives once, with
    the number of bytes to expect). `freed`: it may be overwritten (each consumer arrives once).

        producer                               consumer
        wait for freed[stage]                  wait for loaded[stage]
        expect bytes on loaded[stage], copy    multiply, wait for the products
        next stage                             arrive at freed[stage], next stage

    Shared memory, for 256 columns:
             0  three stages, each 16 KB of a and 32 KB of b
        147456  128 x 256 float16 outputs, 64 KB, as boxes of 64 x 64 that TMA stores; four for each consumer
    and the mbarriers, and a tile's bias for each consumer. A residual is copied to the memory of the outputs before
    the products begin.

    split: split-K. Where tiles are fewer than SMs, several blocks share the K of a tile. `bias_of` is then memory for
    their partial sums, (splits, M, N) in float32, which a second kernel adds up; `k_per_split` is a multiple of 64.

    element: of a, b, bias, residual and out. floats: `bias_of` is out, (M, N) in float32, and takes the
    accumulators unrounded. swiglu: out has half as many columns, silu(gate) * up; eight rows of b with gates
    alternate with the eight of their ups, so that a thread holds both (no bias, no residual). transposed: a is (K, M),
    and wgmma reads both operands MN-major. accumulate: float32 accumulators are added to what `bias_of` holds.

    Measured on an H200, 4096 x 4096 x 4096, relative to cuBLAS in the same run; 0.985 as it is here:
        float16 outputs are stored in four parts, through two buffers of 64 columns instead of four                0.96
        the same, and a stage is freed one step later: two steps of products in flight, one stage less to fill  0.95
        clusters of two blocks, which load b once for both (TMA multicast): L2 traffic falls by a third, but
        each block waits for both                                                                               0.96
    and of 8192 x 1152, K 384, with bias, where it took 14.9 us in the same run:
        the accumulators are initialised with the bias: no product runs while its loads are in flight        16.6 us
        each consumer has a tile of its own, one multiplies while the other stores ("ping-pong"); at 384
        columns, where a block has one tile only, it is slower: 7.9 instead of 7.3 us                        14.9 us
        programmatic dependent launch, which lets a kernel begin while the one before it ends: would take
        another 0.4 to 0.8 us off each of the four products of MiniLM
    At 4096 and beyond the limit is power: the clock falls from 1,980 to about 1,460 MHz, for cuBLAS as for this.
    """
    ROWS, COLS, STAGES, STAGE_SIZE = tile.rows, tile.cols, tile.stages, tile.stage_elements
    A_SIZE, DESC_STEP = ROWS * DEPTH, STAGE_SIZE * 2 // 16
    ACCUMULATORS = COLS // 2
    BOXES = tile.out_boxes(swiglu)
    BIAS_SIZE = 2 * COLS if not swiglu else 4  # without a bias the memory is better used for a stage
    ELEMENT, to_float = element.dtype.type, element.number
    OUT_OFFSET = STAGES * STAGE_SIZE  # where the float16 output begins
    B_LEADING, B_STEP = b_layout(weights)
    _, A_STEP = b_layout(not transposed)
    tile_origin, load = make_tile_origin(tile), make_load(tile, weights, transposed)
    wgmma = wgmma_of(COLS, weights, element, transposed)
    RESIDUAL_BYTES = 2 * BOXES * BOX
    epilogue = (make_pair_epilogue(SWIGLU[element], element) if swiglu else
                make_epilogue(activation, residual, element))
    store_partial = make_store_partial(COLS, accumulate)

    @cuda.jit(launch_bounds=(384, 1))  # so that setmaxnreg has registers to move: 168 a thread
    def wgmma_specialised_kernel(a_map, b_map, out_map, bias_of, residual_map, rows, cols, depth, k_per_split):
        tiles = cuda.shared.array(0, ELEMENT, alignment=1024)
        words = cuda.shared.array(0, np.uint32, alignment=1024)  # the same memory, two float16 values at a time
        loaded = cuda.shared.array(STAGES, np.uint64)
        freed = cuda.shared.array(STAGES, np.uint64)
        residual_loaded = cuda.shared.array(2, np.uint64)  # the residual, for each consumer
        bias_tile = cuda.shared.array(BIAS_SIZE, float32, alignment=16)
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        is_leader = wg_thread == 0

        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
                ptx.mbarrier_init(freed, stage, 2)
            for consumer in u32.range(2):
                ptx.mbarrier_init(residual_loaded, consumer, 1)
            ptx.fence_mbarrier_init()
        if thread == 256:
            ptx.prefetch_tensor_map(a_map)
            ptx.prefetch_tensor_map(b_map)
            ptx.prefetch_tensor_map(out_map)
        cuda.syncthreads()

        num_tiles = (rows + (ROWS - 1)) // ROWS * ((cols + (COLS - 1)) // COLS)
        tile_id = u32.blockIdx.x
        k_begin, k_end, split_idx = 0, depth, 0
        if split:  # one tile a block, and one split of its K
            split_idx = tile_id // num_tiles
            tile_id -= split_idx * num_tiles
            k_begin = split_idx * k_per_split
            k_end = min(k_begin + k_per_split, depth)
        stage, parity = 0, 0

        if warpgroup == 2:
            ptx.setmaxnreg_decrease(24)
            if is_leader:
                while tile_id < num_tiles:
                    row, col = tile_origin(tile_id, rows, cols)
                    k = k_begin
                    while k < k_end:
                        ptx.mbarrier_wait(freed, stage, 1 - parity)  # passes at once in the first round
                        load(tiles, loaded, stage, a_map, b_map, row, col, k)
                        k += DEPTH
                        stage += 1
                        if stage == STAGES:
                            stage, parity = 0, 1 - parity
                    tile_id = tile_id + (num_tiles if split else u32.gridDim.x)
        else:
            ptx.setmaxnreg_increase(240)
            acc = cuda.local.array(ACCUMULATORS, float32)
            a_desc0 = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            b_desc0 = ptx.wgmma_descriptor(tiles, A_SIZE, B_LEADING, ROW_GROUP, 128)

            # A thread's accumulators: rows thread_row and thread_row + 8 of its consumer's 64, columns
            # 8 * j + 2 * quad_lane and the next.
            lane, quad_lane = wg_thread % 32, wg_thread % 4
            swizzle_row = lane // 4  # row % 8, for the swizzle
            thread_row = wg_thread // 32 * 16 + swizzle_row
            out_offset = OUT_OFFSET + warpgroup * (BOXES * BOX)
            word_base = out_offset // 2 + thread_row * 32 + quad_lane
            bias_base = warpgroup * COLS
            residual_parity = 0

            while tile_id < num_tiles:
                row, col = tile_origin(tile_id, rows, cols)
                row += warpgroup * 64
                if residual and is_leader:
                    ptx.tma_store_wait(0)  # the last tile has left shared memory
                    ptx.mbarrier_expect_tx(residual_loaded, warpgroup, RESIDUAL_BYTES)
                    for box in u32.range(BOXES):
                        ptx.tma_load_2d(tiles, out_offset + box * BOX, residual_map, col + box * 64, row,
                                        residual_loaded, warpgroup)
                if bias:  # used after the products: the loads are in flight meanwhile
                    bias_col = min(col + wg_thread, cols - 1)
                    bias_lo = bias_of[bias_col]
                    bias_hi = bias_of[min(bias_col + 128, cols - 1)]

                k = k_begin
                while k < k_end:
                    ptx.mbarrier_wait(loaded, stage, parity)
                    a_desc = a_desc0 + uint64(stage * DESC_STEP)
                    b_desc = b_desc0 + uint64(stage * DESC_STEP)
                    ptx.wgmma_fence()
                    for i in range(DEPTH // 16):
                        scale_d = 1 if i > 0 else uint32(k > k_begin)
                        wgmma(acc, a_desc + uint64(A_STEP * i), b_desc + uint64(B_STEP * i), scale_d)
                    ptx.wgmma_commit()
                    ptx.wgmma_wait(0)  # the other consumer's products keep the tensor cores busy meanwhile
                    if is_leader:
                        ptx.mbarrier_arrive(freed, stage)
                    k += DEPTH
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                if split or floats:
                    store_partial(acc, bias_of, split_idx * rows, row + thread_row, col + 2 * quad_lane, rows, cols)
                else:
                    if bias:
                        if COLS >= 128 or wg_thread < COLS:
                            bias_tile[bias_base + bias_index(wg_thread)] = to_float(bias_lo)
                        if COLS > 128 and wg_thread < COLS - 128:
                            bias_tile[bias_base + bias_index(wg_thread + 128)] = to_float(bias_hi)
                    if is_leader:
                        ptx.tma_store_wait(0)  # the last tile has left shared memory
                    ptx.named_barrier_sync(warpgroup + 1, 128)
                    if bias:
                        for j in u32.range(COLS // 16):
                            x, y, z, w = ptx.load_shared4(bias_tile, bias_base + 16 * j + quad_lane * 4)
                            for row_half in range(2):
                                acc[8 * j + 2 * row_half] += x
                                acc[8 * j + 2 * row_half + 1] += y
                                acc[8 * j + 2 * row_half + 4] += z
                                acc[8 * j + 2 * row_half + 5] += w
                    if residual:
                        ptx.mbarrier_wait(residual_loaded, warpgroup, residual_parity)
                        residual_parity = 1 - residual_parity
                    epilogue(acc, 0, words, word_base, swizzle_row)
                    if BOXES > 1:
                        epilogue(acc, 1, words, word_base, swizzle_row)
                    if BOXES > 2:
                        epilogue(acc, 2, words, word_base, swizzle_row)
                    if BOXES > 3:
                        epilogue(acc, 3, words, word_base, swizzle_row)
                    ptx.fence_proxy_async()
                    ptx.named_barrier_sync(warpgroup + 1, 128)
                    if swiglu:
                        col = col // 2
                    if is_leader:
                        for box in u32.range(BOXES):
                            ptx.tma_store_2d(out_map, col + box * 64, row, tiles, out_offset + box * BOX)
                        ptx.tma_store_commit()
                tile_id = tile_id + (num_tiles if split else u32.gridDim.x)
            if is_leader:
                ptx.tma_store_wait(0)

    return wgmma_specialised_kernel


# --- Launchers -------------------------------------------------------------------------------------------------------


TILE_OVERHEAD_COLS = 8  # overhead of a tile, as the time of so many columns


@functools.lru_cache(maxsize=4096)
def choose_tile(rows: int, cols: int, depth: int, blocks: int, among: tuple = TILES) -> Tile:
    """Return the tile with which `blocks` blocks finish first.

    The time of a tile is proportional to its columns, so the cost is the number of columns of all tiles of the busiest
    block. Where two are within 5%, the depth decides.
    """
    tiles = sorted(among, key=lambda tile: tile.cols != (256 if depth >= DEEP else 192))
    cost = {tile: -(-tile.count(rows, cols) // blocks) * (tile.cols + TILE_OVERHEAD_COLS) for tile in tiles}
    return next(tile for tile in tiles if cost[tile] <= 1.05 * min(cost.values()))


STEP_SECONDS = 2.2e-9  # of a step of 64 along K, for each column of a tile


@gpus.cached_by_target
def parts_of(rows: int, cols: int, depth: int, blocks: int) -> tuple[int, int]:
    """Return (splits, K of each) with which a product finishes first, by a model like fused.py's: more than one split
    only where all of them run at the same time."""
    tile = choose_tile(rows, cols, depth, blocks)
    tiles, steps = tile.count(rows, cols), -(-depth // DEPTH)

    def cost(parts):
        return -(-steps // parts) * tile.cols * STEP_SECONDS + seconds_between(parts, rows, cols)

    best = min(range(1, max(1, min(steps, blocks // tiles)) + 1), key=cost)
    slice_ = -(-steps // best) * DEPTH
    return -(-depth // slice_), slice_


def block_count() -> int:
    """Return how many blocks run at the same time."""
    return gpus.sm_count() if gpus.chosen_on_gpu() else CPU_BLOCKS


def multiply(a, b, bias, out, *, weights: bool, stream=0) -> None:
    """out = a @ b, or a @ b.T + bias with weights: two warpgroups that copy, then multiply."""
    _check(a, b, bias, out, weights, dtype=np.float16)
    kernel = make_wgmma(weights=weights, bias=bias is not None)
    arguments = _arguments(a, b, bias, out, SIMPLE, weights)
    shared = 2 * SIMPLE.stages * SIMPLE.stage_elements
    dynamic_shared(kernel, shared, *arguments)
    kernel[SIMPLE.count(*out.shape), 256, stream, shared](*arguments)


def multiply_specialised(a, b, bias, out, *, weights: bool, activation=unchanged, residual=None,
                         tile: Tile | None = None, persistent: bool = True, stream=0) -> None:
    """out = activation(a @ b + bias) + residual, with b (N, K) if it holds weights: a producer and two consumers.

    All float16, or all bfloat16 (uint16). activation: a device function of one float32. residual: an array like out, or
    out itself. tile: one of TILES; without it the one that suits the sizes. persistent: False launches a block for
    each tile, which is slower.
    """
    _check(a, b, bias, out, weights, residual)
    _multiply_specialised(a, b, bias, out, tile, TILES, stream, persistent, weights=weights, activation=activation,
                          residual=residual)


def multiply_floats(a, weights, out, *, tile: Tile | None = None, stream=0) -> None:
    """out = a @ weights.T in float32, not rounded: logits. The K of a tile is never split."""
    _check(a, weights, None, out, True, out_dtype=np.float32)
    _multiply_specialised(a, weights, None, out, tile, TILES, stream, weights=True, floats=True)


def multiply_swiglu(a, weights, out, *, tile: Tile | None = None, stream=0) -> None:
    """out = silu(gate) * up, where a @ weights.T has eight columns of gates, then the eight of
    their ups, and so on. tile: one of SWIGLU_TILES."""
    _check(a, weights, None, out, True, columns_each=2)
    _multiply_specialised(a, weights, None, out, tile, SWIGLU_TILES, stream, weights=True, swiglu=True)


def _multiply_specialised(a, b, bias, out, tile, tiles, stream, persistent=True, *, weights, activation=unchanged,
                          residual=None, **options) -> None:
    (rows, depth), cols = a.shape, b.shape[0 if weights else 1]
    tile = tile or choose_tile(rows, cols, depth, block_count(), tiles)
    options["element"] = ELEMENTS[np.dtype(a.dtype)]
    kernel = make_wgmma_specialised(tile, weights=weights, bias=bias is not None, activation=activation,
                                    residual=residual is not None, **{name: on for name, on in options.items() if on})
    *maps, rows_, cols_, depth_ = _arguments(a, b, bias, out, tile, weights)
    last_map = ptx.tensor_map_2d(residual, 64, 64) if residual is not None else maps[2]
    count = tile.count(rows, cols)
    _launch_specialised(kernel, tile, min(block_count(), count) if persistent else count,
                        (*maps, last_map, rows_, cols_, depth_, depth_), stream, options.get("swiglu", False))


def multiply_parts(a, b, out, parts, count: int, slice_: int, *, weights: bool, stream=0) -> None:
    """parts[p] = a[:, P] @ b[P], or b[:, P].T, where P is the p-th `slice_` of K: their sum is out.

    parts: (count, M, N) float32, flat. count, slice_: as parts_of returns them.
    """
    _check(a, b, None, out, weights, dtype=np.float16)
    check_array("parts", parts, shape=(count * out.size,), dtype=np.float32)
    if slice_ % DEPTH or not (count - 1) * slice_ < a.shape[1] <= count * slice_:
        raise ValueError(f"slice_ is {slice_}; it must be a multiple of {DEPTH} of which {count} cover K, "
                         f"{a.shape[1]}")
    tile = choose_tile(*out.shape, a.shape[1], block_count())
    kernel = make_wgmma_specialised(tile, weights=weights, bias=False, activation=unchanged, split=True)
    a_map, b_map, out_map, _, rows, cols, depth = _arguments(a, b, None, out, tile, weights)
    arguments = (a_map, b_map, out_map, parts, out_map, rows, cols, depth, *unsigned(slice_))
    _launch_specialised(kernel, tile, count * tile.count(*out.shape), arguments, stream)


def multiply_transposed(a, b, out, *, tile: Tile, splits: int = 1, accumulate: bool = False, stream=0) -> None:
    """out = a.T @ b of a (K, M) and b (K, N), of 16 bits, with M and N multiples of 8. The caller has checked them.

    out: (M, N) of their type, or (splits * M, N) float32: the partial sums of each split of K, whole steps of DEPTH of
    which none is empty. accumulate: float32 is added to what is there, of one split.
    """
    depth, rows, cols = *a.shape, b.shape[1]
    floats = np.dtype(out.dtype) == np.float32
    stored = {"split": True} if splits > 1 else {"floats": True, "accumulate": accumulate} if floats else {}
    kernel = make_wgmma_specialised(tile, weights=False, bias=False, activation=unchanged, transposed=True,
                                    element=ELEMENTS[np.dtype(a.dtype)], **stored)
    a_map, b_map = (ptx.tensor_map_2d(array, DEPTH, 64) for array in (a, b))
    out_map = a_map if floats else ptx.tensor_map_2d(out, 64, 64)  # float32 is stored by the threads
    steps = -(-depth // (splits * DEPTH))
    arguments = (a_map, b_map, out_map, out.reshape(-1) if floats else out, out_map,
                 *unsigned(rows, cols, depth, steps * DEPTH))
    tiles = tile.count(rows, cols)
    _launch_specialised(kernel, tile, splits * tiles if splits > 1 else min(block_count(), tiles), arguments, stream)


def _launch_specialised(kernel, tile: Tile, blocks: int, arguments: tuple, stream, halved: bool = False) -> None:
    shared = tile.shared_bytes(halved)
    dynamic_shared(kernel, shared, *arguments)
    kernel[blocks, 384, stream, shared](*arguments)


def _arguments(a, b, bias, out, tile: Tile, weights: bool) -> tuple:
    """Return the kernels' arguments: the tensor maps of the matrices, then the sizes."""
    a_map = ptx.tensor_map_2d(a, tile.rows, DEPTH)
    b_map = ptx.tensor_map_2d(b, *((tile.cols, DEPTH) if weights else (DEPTH, 64)))
    sizes = unsigned(a.shape[0], b.shape[0 if weights else 1], a.shape[1])
    if np.dtype(out.dtype) == np.float32:  # stored by the threads
        return a_map, b_map, a_map, out.reshape(-1), *sizes
    return a_map, b_map, ptx.tensor_map_2d(out, 64, 64), out if bias is None else bias, *sizes


def _check(a, b, bias, out, weights: bool, residual=None, *, dtype=None, out_dtype=None, columns_each=1) -> None:
    """Raise an error that names what does not fit. columns_each: of the product, for each column of out."""
    dtype = dtype or (np.uint16 if getattr(a, "dtype", None) == np.uint16 else np.float16)
    rows, cols, depth = product_sizes(a, b, weights=weights, dtype=dtype)
    for name, size, multiple in (("K", depth, 8), ("N", cols, 8 * columns_each)):
        if size % multiple:
            raise ValueError(f"{name} is {size}; it must be a multiple of {multiple}: TMA takes rows of a multiple of "
                             f"16 bytes")
    check_array("out", out, shape=(rows, cols // columns_each), dtype=out_dtype or dtype)
    if bias is not None:
        float32_too = dtype == np.float16 and bias.dtype == np.float32
        check_array("bias", bias, shape=(cols,), dtype=np.float32 if float32_too else dtype)
    if residual is not None:
        check_array("residual", residual, shape=(rows, cols), dtype=dtype)
    if not aligned(a, b, out, out if residual is None else residual):
        raise ValueError("a, b, out and residual must begin at multiples of 16 bytes, for TMA; one is a view that does "
                         "not")


def specialised_kernels(*, weights: bool, bias: bool, activation=unchanged) -> tuple:
    """Return the kernels that multiply_specialised may launch, one for each tile."""
    return tuple(make_wgmma_specialised(tile, weights=weights, bias=bias, activation=activation) for tile in TILES)


IDEA = "wgmma reads tiles that TMA copies: one thread requests them"
IDEA_SPECIALISED = "one warpgroup copies, two multiply, tiles follow without a pause"
SIZES = "K and N multiples of 8"
PRODUCER_CONSUMERS = make_wgmma_specialised(TILES[2], weights=False, bias=False, activation=unchanged)


def has_wgmma() -> bool:
    """Whether the GPU that kernels are chosen for runs the kernels of this file."""
    return not missing(PRODUCER_CONSUMERS)


@rung(kernel=make_wgmma(weights=False, bias=False), idea=IDEA, sizes=SIZES)
def matmul_half_wgmma(a, b, out, stream=0):
    """As wgmma_cp_async, but TMA copies: one thread requests a box, and the others wait for its bytes."""
    multiply(a, b, None, out, weights=False, stream=stream)


@rung(kernel=PRODUCER_CONSUMERS, idea="one warpgroup copies, two multiply", sizes=SIZES)
def matmul_half_wgmma_roles(a, b, out, stream=0):
    """As wgmma, also 128 x 128, but a third warpgroup, the producer, copies for two consumers. Five stages, so there is
    one block on an SM."""
    multiply_specialised(a, b, None, out, weights=False, tile=TILES[2], persistent=False, stream=stream)


@rung(kernel=PRODUCER_CONSUMERS, idea="a block for each SM computes one tile after another", sizes=SIZES)
def matmul_half_wgmma_persistent(a, b, out, stream=0):
    """As wgmma_roles, but persistent: a block for each SM, which stores a tile while the next one is already coming."""
    multiply_specialised(a, b, None, out, weights=False, tile=TILES[2], stream=stream)


@rung(kernel=specialised_kernels(weights=False, bias=False), sizes=SIZES,
      idea="tiles of 128 x 256, or as suits the sizes")
def matmul_half_wgmma_specialised(a, b, out, stream=0):
    """As wgmma_persistent, but with the tile that suits the sizes: 128 x 256 for large products."""
    multiply_specialised(a, b, None, out, weights=False, stream=stream)


@rung(kernel=make_wgmma(weights=True, bias=True), idea=IDEA, sizes=SIZES)
def linear_wgmma(x, weights, bias, out, stream=0):
    """wgmma in place of mma.sync: 128 threads multiply 64 x 128 at once, without fragments in registers; TMA copies."""
    multiply(x, weights, bias, out, weights=True, stream=stream)


@rung(kernel=specialised_kernels(weights=True, bias=True), idea=IDEA_SPECIALISED, sizes=SIZES)
def linear_wgmma_specialised(x, weights, bias, out, stream=0):
    """As wgmma, but a producer copies ahead while two consumers multiply 128 x 192 or so, as suits the sizes, and
    persistent blocks store a tile while the next one is already coming."""
    multiply_specialised(x, weights, bias, out, weights=True, stream=stream)
