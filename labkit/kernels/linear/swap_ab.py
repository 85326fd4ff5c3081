"""Linear layers of 17 to 256 rows, out = x @ weight.T, on Hopper's tensor cores with the weights as the left factor.

Shapes  x (T, K), weight (N, K), out (T, N); bfloat16 (uint16) or float16, out may be float32. K a multiple of 8
Work    2*T*N*K flop; 2*N*K bytes of weights; the rest is negligible
Needs   compute capability 9.0 exactly (sm_90a)
Source  as matmul/wgmma.py; for the reduction in the last block: CUDA C++ Programming Guide, "Memory Fence Functions"

With 32 tokens as rows of a tile, as in matmul/wgmma.py, three quarters of the products are of zeros. Here 128 rows of
the weights are the left factor and tokens the columns. The time is that of reading the weights.
"""

import functools
import threading
from typing import NamedTuple

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, dynamic_shared, unsigned
from labkit.kernels.elements import BFLOAT16, ELEMENTS, SWIGLU, Element
from labkit.kernels.matmul.wgmma import block_count
from labkit.kernels.matmul.wgmma_tiles import BOX, DEPTH, ROW_GROUP, Tile, b_layout, wgmma_of

# With 64 columns a stage of 24 KB takes 0.14 us to multiply, and an SM's share of 4.2 TB/s needs 0.5 us to bring the 16
# KB of weights in it; eight stages are 128 KB of weights in flight.
TILES = (Tile(cols=64, stages=8), Tile(cols=128, stages=6), Tile(cols=256, stages=4))  # 192 KB each
MOST_TOKENS = 256
MOST_SHARED = 64  # columns of a tile whose K is split: with more, the last block has too much to reduce
ROWS = 128  # of the weights, in a tile
SMS = 132  # blocks that K is divided for: an H200's SMs, on every GPU, as the result's bits depend on it
HALF_SMS = SMS // 2  # from so many tiles on, K is not split
MAX_SPLITS = 8  # splits of a tile's K
# Splits whose partials a kernel loads, and eights of tokens for which these loads are in flight at once. Each batch is
# a round trip to L2, and some 64 bytes arrive at an SM in a cycle: two splits are not loaded by a kernel for eight.
BATCHES = {2: 8, 5: 4, 8: 4}
ZERO = float32(0.0)
GROUP = 8  # gates, and then their ups, among the rows of a weight that linear_swiglu takes


class Scratch(NamedTuple):
    """Device memory for the partial sums of a tile's blocks, and for how many have arrived. Concurrent launches must
    not share it."""

    partial: object
    arrived: object


def scratch_for(*layers: tuple[int, int]) -> Scratch:
    """Return the scratch of these layers, (N, K) each, for up to MOST_TOKENS rows; consecutive launches share it."""
    slots = [(tiles_of(rows, tiles_n), parts_of(rows, depth, tiles_n)[0])
             for rows, depth in layers for tiles_n in range(1, MOST_TOKENS // TILES[0].cols + 1)]
    num_partials = max((tiles * splits * ROWS * MOST_SHARED for tiles, splits in slots if splits > 1), default=1)
    arrived = np.zeros(max((tiles for tiles, _ in slots), default=1), np.uint32)
    return Scratch(cuda.device_array(num_partials, np.float32), cuda.to_device(arrived))


def tiles_of(rows: int, tiles_n: int = 1) -> int:
    return -(-rows // ROWS) * tiles_n


def parts_of(rows: int, depth: int, tiles_n: int = 1) -> tuple[int, int]:
    """Return (splits of the K of a tile, K of each) for weights (rows, depth), with `tiles_n` tiles side by side. The
    order of additions follows, so an output has the same bits for any number of tokens up to 64, and within each 64
    more."""
    tiles, steps = tiles_of(rows, tiles_n), -(-depth // DEPTH)
    splits = 1 if tiles >= HALF_SMS else min(SMS // tiles, steps, MAX_SPLITS)
    slice_ = -(-steps // splits) * DEPTH
    return -(-depth // slice_), slice_


def loaded_splits(splits: int) -> int:
    """Return for how many splits of K the kernel is compiled that reduces `splits`; 1: K is not split."""
    return 1 if splits == 1 else next(most for most in BATCHES if splits <= most)


def make_store_transposed(swiglu: bool, floats: bool, element: Element):
    """A device function: store a thread's accumulators of 64 tokens, rows `row` and row + 8 of the weights' product, as
    columns of out. Eight lanes store 16 contiguous bytes. There is a call for each 64 tokens, here and below: in a
    longer loop the compiler leaves the accumulators in local memory."""
    combine, to_element = SWIGLU[element], element.element

    @cuda.jit(device=True, forceinline=True)
    def store_transposed(acc, box, out, row, token, tokens, outputs):
        for j in u32.range(8 * box, 8 * box + 8):
            for odd in u32.range(2):
                out_token = token + (8 * j + odd)
                offset = out_token * outputs
                if swiglu:
                    col = row // (2 * GROUP) * GROUP + row % GROUP
                    if out_token < tokens and col < outputs:
                        out[offset + col] = to_element(combine(acc[4 * j + odd], acc[4 * j + odd + 2]))
                else:
                    for row_half in u32.range(2):
                        col = row + 8 * row_half
                        if out_token < tokens and col < outputs:
                            value = acc[4 * j + odd + 2 * row_half]
                            out[offset + col] = value if floats else to_element(value)

    return store_transposed


def make_loads(tile: Tile):
    """Two device functions, which one thread calls when a stage is free: load_weights starts the copy of its weights
    and sets the bytes that its mbarrier expects; load_x starts the copy of its tokens."""
    STAGE_SIZE, STAGE_BYTES, A_SIZE = tile.stage_elements, 2 * tile.stage_elements, ROWS * DEPTH

    @cuda.jit(device=True)
    def load_weights(tiles, loaded, stage, weight_map, row, k):
        ptx.mbarrier_expect_tx(loaded, stage, STAGE_BYTES)  # the bytes of whole boxes, also beyond an edge
        ptx.tma_load_2d(tiles, stage * STAGE_SIZE, weight_map, k, row, loaded, stage)

    @cuda.jit(device=True)
    def load_x(tiles, loaded, stage, x_map, token, k):
        ptx.tma_load_2d(tiles, stage * STAGE_SIZE + A_SIZE, x_map, k, token, loaded, stage)

    return load_weights, load_x


@kernel_factory
def make_swap_ab(tile: Tile, *, most_splits: int, swiglu: bool = False, floats: bool = False,
                 element: Element = BFLOAT16):
    """One block for each SM, which computes one tile after another: a producer copies, two consumers multiply, as in
    make_wgmma_specialised. most_splits: 1, or a key of BATCHES for split-K: up to so many blocks, `splits`, for each
    tile, of which the last to arrive reduces the partial sums of all, in order. out: flat. All stages' weights are in
    flight before the kernel before it has ended (kernels/pdl.py)."""
    COLS, STAGES, STAGE_SIZE = tile.cols, tile.stages, tile.stage_elements
    A_SIZE, DESC_STEP = ROWS * DEPTH, STAGE_SIZE * 2 // 16
    shared_k, MOST_SPLITS, BATCH = most_splits > 1, most_splits, BATCHES.get(most_splits, 1)
    ACCUMULATORS, BUF_SIZE = COLS // 2, 4 * BATCH * most_splits
    B_LEADING, B_STEP = b_layout(True)
    (load_weights, load_x), wgmma = make_loads(tile), wgmma_of(COLS, True, element)
    store_transposed, ELEMENT = make_store_transposed(swiglu, floats, element), element.dtype.type

    # The workspace is laid out by thread, four accumulators for every eight tokens: it is read as it was written, 128
    # bits at a time, coalesced.

    @cuda.jit(device=True, forceinline=True)
    def store_partial(acc, workspace, offset, thread, tokens):
        for j in u32.range(8):
            if 8 * j // 16 * 16 < tokens:
                ptx.store_global4(workspace, offset + (256 * j + thread) * 4,
                                  acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3])

    @cuda.jit(device=True, forceinline=True)
    def reduce_partials(acc, workspace, offset, thread, tokens, splits):
        """acc = the sum of the partials of all splits, in order. No branches: the loads of all splits of a batch are in
        flight at once, and a missing split adds zero."""
        buf = cuda.local.array(BUF_SIZE, float32)
        for batch in u32.range(8 // BATCH):
            if 8 * BATCH * batch < tokens:
                for n in u32.range(BATCH):
                    thread_base = offset + (256 * (BATCH * batch + n) + thread) * 4
                    for split_idx in u32.range(MOST_SPLITS):
                        src = thread_base + min(split_idx, splits - 1) * (ROWS * COLS)
                        dst = 4 * (MOST_SPLITS * n + split_idx)
                        buf[dst], buf[dst + 1], buf[dst + 2], buf[dst + 3] = ptx.load_global4(workspace, src)
                for n in u32.range(BATCH):
                    for i in range(4):
                        total = ZERO
                        for split_idx in u32.range(MOST_SPLITS):
                            total += buf[4 * (MOST_SPLITS * n + split_idx) + i] if split_idx < splits else ZERO
                        acc[4 * (BATCH * batch + n) + i] = total

    @cuda.jit(device=True, forceinline=True)
    def store_all(acc, out, row, token, tokens, outputs):
        store_transposed(acc, 0, out, row, token, tokens, outputs)
        if COLS > 64:
            store_transposed(acc, 1, out, row, token, tokens, outputs)
        if COLS > 128:
            store_transposed(acc, 2, out, row, token, tokens, outputs)
            store_transposed(acc, 3, out, row, token, tokens, outputs)

    @cuda.jit(launch_bounds=(384, 1))
    def swap_ab_kernel(weight_map, x_map, out, workspace, arrived, rows, outputs, tokens, depth, splits, k_per_split):
        ptx.griddepcontrol_launch_dependents()
        tiles = cuda.shared.array(0, ELEMENT, alignment=1024)
        loaded = cuda.shared.array(STAGES, np.uint64)
        freed = cuda.shared.array(STAGES, np.uint64)
        is_last = cuda.shared.array(1, np.uint32)
        thread = u32.threadIdx.x
        warpgroup, wg_thread = thread // 128, thread % 128
        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
                ptx.mbarrier_init(freed, stage, 2)
            ptx.fence_mbarrier_init()
        if thread == 256:
            ptx.prefetch_tensor_map(weight_map)
            ptx.prefetch_tensor_map(x_map)
        cuda.syncthreads()

        tiles_n = (tokens + (COLS - 1)) // COLS  # neighbouring tiles share weights
        num_tiles = (rows + (ROWS - 1)) // ROWS * tiles_n
        num_work = num_tiles * splits if shared_k else num_tiles
        work_id = u32.blockIdx.x
        stage, parity = 0, 0
        if warpgroup == 2:
            ptx.setmaxnreg_decrease(24)
            if wg_thread == 0:
                first_fill = True
                while work_id < num_work:
                    split_idx = work_id // num_tiles if shared_k else 0
                    k = split_idx * k_per_split
                    k_end = min(k + k_per_split, depth)
                    tile_id = work_id - split_idx * num_tiles
                    row, token = tile_id // tiles_n * ROWS, tile_id % tiles_n * COLS
                    if first_fill:  # the ring is empty: load weights while the previous kernel ends
                        for s in u32.range(STAGES):
                            if k + s * DEPTH < k_end:
                                load_weights(tiles, loaded, s, weight_map, row, k + s * DEPTH)
                        ptx.griddepcontrol_wait()
                    while k < k_end:
                        if not first_fill:
                            ptx.mbarrier_wait(freed, stage, 1 - parity)  # passes at once in the first round
                            load_weights(tiles, loaded, stage, weight_map, row, k)
                        load_x(tiles, loaded, stage, x_map, token, k)
                        k += DEPTH
                        stage += 1
                        if stage == STAGES:
                            stage, parity, first_fill = 0, 1 - parity, False
                    first_fill = False
                    work_id += u32.gridDim.x
        else:
            ptx.setmaxnreg_increase(240)
            ptx.griddepcontrol_wait()  # out and workspace may still be read
            acc = cuda.local.array(ACCUMULATORS, float32)
            a_desc0 = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            b_desc0 = ptx.wgmma_descriptor(tiles, A_SIZE, B_LEADING, ROW_GROUP, 128)
            # A thread's accumulators: rows thread_base and thread_base + 8 of the tile, columns 8 * j + thread_token
            # and the next.
            thread_base = warpgroup * 64 + wg_thread // 32 * 16 + wg_thread % 32 // 4
            thread_token = wg_thread % 4 * 2
            while work_id < num_work:
                split_idx = work_id // num_tiles if shared_k else 0
                k_begin = split_idx * k_per_split
                k_end = min(k_begin + k_per_split, depth)
                tile_id = work_id - split_idx * num_tiles
                k = k_begin
                while k < k_end:
                    ptx.mbarrier_wait(loaded, stage, parity)
                    a_desc = a_desc0 + uint64(stage * DESC_STEP)
                    b_desc = b_desc0 + uint64(stage * DESC_STEP)
                    ptx.wgmma_fence()
                    for i in range(DEPTH // 16):
                        scale_d = 1 if i > 0 else uint32(k > k_begin)
                        wgmma(acc, a_desc + uint64(2 * i), b_desc + uint64(B_STEP * i), scale_d)
                    ptx.wgmma_commit()
                    ptx.wgmma_wait(0)  # the other consumer's products keep the tensor cores busy meanwhile
                    if wg_thread == 0:
                        ptx.mbarrier_arrive(freed, stage)
                    k += DEPTH
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                row, token = tile_id // tiles_n * ROWS + thread_base, tile_id % tiles_n * COLS
                remaining = tokens - token  # tokens of this tile and of those to its right
                if shared_k:
                    tile_base = tile_id * splits * (ROWS * COLS)
                    store_partial(acc, workspace, tile_base + split_idx * (ROWS * COLS), thread, remaining)
                    ptx.named_barrier_sync(1, 256)  # both consumers have written
                    if thread == 0:
                        cuda.threadfence()  # the partials are visible before the count is
                        # The last block resets the count to 0 for the next launch.
                        arrival = uint32(cuda.atomic.inc(arrived, tile_id, splits - 1))
                        is_last[0] = 1 if arrival == splits - 1 else 0
                        cuda.threadfence()
                    ptx.named_barrier_sync(1, 256)
                    if is_last[0] == 1:
                        reduce_partials(acc, workspace, tile_base, thread, remaining, splits)
                        store_all(acc, out, row, token + thread_token, tokens, outputs)
                    ptx.named_barrier_sync(1, 256)  # `is_last` has been read
                else:
                    store_all(acc, out, row, token + thread_token, tokens, outputs)
                work_id += u32.gridDim.x

    swap_ab_kernel.uses_pdl = True
    return swap_ab_kernel


@functools.cache  # never freed: a captured graph may use it
def _cached_scratch(rows: int, depth: int, thread: int) -> Scratch:
    return scratch_for((rows, depth))


def multiply_swap_ab(x, weight, out, *, swiglu: bool = False, scratch: Scratch | None = None, tile: Tile | None = None,
                     stream=0) -> None:
    """out = x @ weight.T, or with swiglu, of weights as arrange_gate_up makes them, silu of the gates times the ups.

    The arguments are checked by the caller. out float32: not rounded. scratch: of scratch_for; None: memory that is
    kept for weights of this shape and for this thread, which must then launch on one stream. tile: one of TILES, of at
    most MOST_SHARED columns where K is split; more rows of x than it has columns take several side by side.
    """
    (tokens, depth), rows = x.shape, weight.shape[0]
    tile = tile or tile_for(tokens, rows, depth)
    tiles_n = -(-tokens // tile.cols)
    parts, slice_ = parts_of(rows, depth, tiles_n)
    partial, arrived = scratch or _cached_scratch(rows, depth, threading.get_ident())
    kernel = make_swap_ab(tile, most_splits=loaded_splits(parts), swiglu=swiglu,
                          floats=np.dtype(out.dtype) == np.float32, element=ELEMENTS[np.dtype(x.dtype)])
    arguments = (ptx.tensor_map_2d(weight, ROWS, DEPTH), ptx.tensor_map_2d(x, tile.cols, DEPTH), out.reshape(-1),
                 partial, arrived, *unsigned(rows, out.shape[1], tokens, depth, parts, slice_))
    shared = 2 * tile.stages * tile.stage_elements
    dynamic_shared(kernel, shared, *arguments)
    kernel[min(block_count(), parts * tiles_of(rows, tiles_n)), 384, stream, shared](*arguments)


def tile_for(tokens: int, rows: int, depth: int) -> Tile:
    """Return a tile as wide as there are tokens, or at most MOST_SHARED wide if its K is split."""
    tile = next((one for one in TILES if one.cols >= tokens), TILES[-1])
    if parts_of(rows, depth, -(-tokens // tile.cols))[0] > 1 and tile.cols > MOST_SHARED:
        tile = next(one for one in TILES if one.cols == MOST_SHARED)
    return tile


def swap_ab_kernels(**options) -> tuple:
    """Return the kernels that multiply_swap_ab may launch."""
    return tuple(make_swap_ab(tile, most_splits=splits, **options) for tile in TILES for splits in (1, *BATCHES)
                 if splits == 1 or tile.cols <= MOST_SHARED)


IDEA = "wgmma with the weights as the left factor: tokens are columns, K is shared where tiles are few"
SIZES = f"K a multiple of 8, at most {MOST_TOKENS} rows"


def check_swap_ab(x, weight) -> None:
    """Raise ValueError for what multiply_swap_ab does not take."""
    if x.shape[0] > MOST_TOKENS:
        raise ValueError(f"x has {x.shape[0]:,} rows; at most {MOST_TOKENS} are allowed")
    if weight.shape[1] % 8 or not aligned(x, weight):
        raise ValueError(f"K is {weight.shape[1]}; TMA takes rows of a multiple of 16 bytes that begin at one")
