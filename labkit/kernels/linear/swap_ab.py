"""Linear layers of 17 to 256 rows, out = x @ weight.T, on Hopper's tensor cores with the weights as the left factor.

Shapes  x (T, K), weight (N, K), out (T, N); bfloat16 in arrays of uint16, out may be float32. K a multiple of 8
Work    2*T*N*K flop; 2*N*K bytes of weights, beside which the rest is little
Needs   compute capability 9.0 exactly (sm_90a)
Source  as matmul/wgmma.py; for the join in the last block: CUDA C++ Programming Guide, "Memory Fence Functions"

A decoder's step has tens of rows, and its time is that of reading the weights. wgmma multiplies 64 rows at a time, and
a block of matmul/wgmma.py 128: with 32 tokens as rows, three quarters of the products are of zeros, and the
tensor cores keep the copies waiting. Here 128 rows of the weights are the left factor and tokens the columns, 64, 128
or 256 of them. With 64 columns a stage of 24 KB takes 0.14 us to multiply, and an SM's share of 4.2 TB/s needs 0.5 us
to bring the 16 KB of weights in it; eight stages are 128 KB of weights in flight.

A layer of 2,048 outputs is only 16 such tiles. Where tiles are few, several blocks share the K of one, so that about
132 blocks work: the block that ends last adds up what all have written, in their order. How K is divided depends on the
shape of the weights and on how many tiles of 64 tokens lie side by side, and with it the order of additions in an
output: it has the same bits for any number of tokens up to 64, and then in each further 64. (Between one kernel and
another they differ, too; see bf16.py.)

It begins while the kernel before it ends (kernels/pdl.py): all stages' weights are under way before x is there.
"""

import functools
import threading
from typing import NamedTuple

import numpy as np
from numba import float32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, dynamic_shared
from labkit.kernels.elements import bfloat16_bits, swiglu_bfloat16
from labkit.kernels.matmul.wgmma import block_count
from labkit.kernels.matmul.wgmma_tiles import BOX, DEPTH, ROW_GROUP, Tile, b_layout, wgmma_of

TILES = (Tile(cols=64, stages=8), Tile(cols=128, stages=6), Tile(cols=256, stages=4))  # 192 KB each
MOST_TOKENS = 256
MOST_SHARED = 64  # columns of a tile whose K is shared: with more, the block that adds up the parts has too many
ROWS = 128  # of the weights, in a tile
SMS = 132  # blocks that K is divided for: an H200's SMs, on every GPU, for the bits depend on it
HALF = SMS // 2  # from so many tiles on, each has its K alone
MOST_PARTS = 8  # of a tile's K: a thread asks for all of them at once
ZERO = float32(0.0)
GROUP = 8  # gates, and then their ups, among the rows of a weight that linear_swiglu takes


class Scratch(NamedTuple):
    """Device memory for what the blocks of a tile have found, and for how many have come. Launches that run at the same
    time must not share it."""

    partial: object
    arrived: object


def scratch_for(*layers: tuple[int, int]) -> Scratch:
    """What these layers need, (N, K) each, for up to MOST_TOKENS rows; launches one after the other share it."""
    slots = [(tiles_of(rows, across), parts_of(rows, depth, across)[0])
             for rows, depth in layers for across in range(1, MOST_TOKENS // TILES[0].cols + 1)]
    numbers = max((tiles * parts * ROWS * MOST_SHARED for tiles, parts in slots if parts > 1), default=1)
    arrived = np.zeros(max((tiles for tiles, _ in slots), default=1), np.uint32)
    return Scratch(cuda.device_array(numbers, np.float32), cuda.to_device(arrived))


def tiles_of(rows: int, across: int = 1) -> int:
    return -(-rows // ROWS) * across


def parts_of(rows: int, depth: int, across: int = 1) -> tuple[int, int]:
    """(blocks that share the K of a tile, K of each) of weights (rows, depth), with so many tiles side by side for the
    tokens."""
    tiles, steps = tiles_of(rows, across), -(-depth // DEPTH)
    wanted = 1 if tiles >= HALF else min(SMS // tiles, steps, MOST_PARTS)
    slice_ = -(-steps // wanted) * DEPTH
    return -(-depth // slice_), slice_


def make_store_transposed(swiglu: bool, floats: bool):
    """A device function: stores a thread's accumulators of 64 tokens, rows `row` and row + 8 of the weights' product,
    as columns of out. Eight lanes store 16 bytes side by side. A call for each 64 tokens, here and below: in a longer
    loop the compiler leaves the accumulators in memory."""

    @cuda.jit(device=True, forceinline=True)
    def store_transposed(acc, box, out, row, token, tokens, outputs):
        for j in u32.range(8 * box, 8 * box + 8):
            for odd in u32.range(2):
                near = token + (8 * j + odd)
                at = near * outputs
                if swiglu:
                    col = row // (2 * GROUP) * GROUP + row % GROUP
                    if near < tokens and col < outputs:
                        out[at + col] = bfloat16_bits(swiglu_bfloat16(acc[4 * j + odd], acc[4 * j + odd + 2]))
                else:
                    for down in u32.range(2):
                        col = row + 8 * down
                        if near < tokens and col < outputs:
                            value = acc[4 * j + odd + 2 * down]
                            out[at + col] = value if floats else bfloat16_bits(value)

    return store_transposed


def make_loads(tile: Tile):
    """Two device functions, which one thread calls when a stage is free: load_weights starts the copy of its weights,
    and says how many bytes the stage waits for; load_x that of its tokens."""
    STAGE, STAGE_BYTES, A_ELEMENTS = tile.stage_elements, 2 * tile.stage_elements, ROWS * DEPTH

    @cuda.jit(device=True)
    def load_weights(tiles, loaded, stage, weight_map, row, k):
        ptx.mbarrier_expect_tx(loaded, stage, STAGE_BYTES)  # whole boxes count, also beyond an edge
        ptx.tma_load_2d(tiles, stage * STAGE, weight_map, k, row, loaded, stage)

    @cuda.jit(device=True)
    def load_x(tiles, loaded, stage, x_map, token, k):
        ptx.tma_load_2d(tiles, stage * STAGE + A_ELEMENTS, x_map, k, token, loaded, stage)

    return load_weights, load_x


@kernel_factory
def make_swap_ab(tile: Tile, *, shared_k: bool, swiglu: bool = False, floats: bool = False):
    """One block for each SM, which computes one tile after another: a producer copies, two consumers multiply, as in
    make_wgmma_specialised. shared_k: `parts` blocks have a part of a tile's K each. out: flat."""
    COLS, STAGES, STAGE = tile.cols, tile.stages, tile.stage_elements
    A_ELEMENTS, STAGE_STEP = ROWS * DEPTH, STAGE * 2 // 16
    ACCUMULATORS, FOUND = COLS // 2, 8 * MOST_PARTS
    B_LEADING, B_STEP = b_layout(True)
    (load_weights, load_x), wgmma = make_loads(tile), wgmma_of(COLS, True, True)
    store_transposed = make_store_transposed(swiglu, floats)

    # A thread's part of a tile, four accumulators for every eight tokens, lies as the threads do: whoever adds up what
    # a block has found reads it as the block wrote it, 128 bits at a time, neighbours side by side.

    @cuda.jit(device=True, forceinline=True)
    def write_part(acc, partial, at, thread, tokens):
        for j in u32.range(8):
            if 8 * j // 16 * 16 < tokens:
                ptx.store_global4(partial, at + (256 * j + thread) * 4,
                                  acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3])

    @cuda.jit(device=True, forceinline=True)
    def add_parts(acc, partial, at, thread, tokens, parts):
        """acc = the sum of all parts, in their order. No branches: the loads of all parts of 16 tokens are under way at
        once, and a part that is not there adds zero."""
        found = cuda.local.array(FOUND, float32)
        for pair in u32.range(4):
            if 16 * pair < tokens:
                for n in u32.range(2):
                    own = at + (256 * (2 * pair + n) + thread) * 4
                    for part in u32.range(MOST_PARTS):
                        of = own + min(part, parts - 1) * (ROWS * COLS)
                        to = 4 * (MOST_PARTS * n + part)
                        found[to], found[to + 1], found[to + 2], found[to + 3] = ptx.load_global4(partial, of)
                for n in u32.range(2):
                    for i in range(4):
                        total = ZERO
                        for part in u32.range(MOST_PARTS):
                            total += found[4 * (MOST_PARTS * n + part) + i] if part < parts else ZERO
                        acc[4 * (2 * pair + n) + i] = total

    @cuda.jit(device=True, forceinline=True)
    def store_all(acc, out, row, token, tokens, outputs):
        store_transposed(acc, 0, out, row, token, tokens, outputs)
        if COLS > 64:
            store_transposed(acc, 1, out, row, token, tokens, outputs)
        if COLS > 128:
            store_transposed(acc, 2, out, row, token, tokens, outputs)
            store_transposed(acc, 3, out, row, token, tokens, outputs)

    @cuda.jit(launch_bounds=(384, 1))
    def swap_ab_kernel(weight_map, x_map, out, partial, arrived, rows, outputs, tokens, depth, parts,
                       depth_of_part):
        ptx.griddepcontrol_launch_dependents()
        tiles = cuda.shared.array(0, np.uint16, alignment=1024)
        loaded = cuda.shared.array(STAGES, np.uint64)
        freed = cuda.shared.array(STAGES, np.uint64)
        last = cuda.shared.array(1, np.uint32)
        thread = u32.threadIdx.x
        warpgroup, member = thread // 128, thread % 128
        if thread == 0:
            for stage in u32.range(STAGES):
                ptx.mbarrier_init(loaded, stage, 1)
                ptx.mbarrier_init(freed, stage, 2)
            ptx.fence_mbarrier_init()
        if thread == 256:
            ptx.prefetch_tensor_map(weight_map)
            ptx.prefetch_tensor_map(x_map)
        cuda.syncthreads()

        across = (tokens + (COLS - 1)) // COLS  # neighbours have the same weights
        count = (rows + (ROWS - 1)) // ROWS * across
        items = count * parts if shared_k else count
        number = u32.blockIdx.x
        stage, parity = 0, 0
        if warpgroup == 2:
            ptx.setmaxnreg_decrease(24)
            if member == 0:
                ahead = True
                while number < items:
                    part = number // count if shared_k else 0
                    k = part * depth_of_part
                    end = min(k + depth_of_part, depth)
                    at_tile = number - part * count
                    row, token = at_tile // across * ROWS, at_tile % across * COLS
                    if ahead:  # the ring is empty: weights come while the kernel before this one ends
                        for s in u32.range(STAGES):
                            if k + s * DEPTH < end:
                                load_weights(tiles, loaded, s, weight_map, row, k + s * DEPTH)
                        ptx.griddepcontrol_wait()
                    while k < end:
                        if not ahead:
                            ptx.mbarrier_wait(freed, stage, 1 - parity)  # passes at once in the first lap
                            load_weights(tiles, loaded, stage, weight_map, row, k)
                        load_x(tiles, loaded, stage, x_map, token, k)
                        k += DEPTH
                        stage += 1
                        if stage == STAGES:
                            stage, parity, ahead = 0, 1 - parity, False
                    ahead = False
                    number += u32.gridDim.x
        else:
            ptx.setmaxnreg_increase(240)
            ptx.griddepcontrol_wait()  # out and partial may still be read
            acc = cuda.local.array(ACCUMULATORS, float32)
            a_first = ptx.wgmma_descriptor(tiles, warpgroup * BOX, 16, ROW_GROUP, 128)
            b_first = ptx.wgmma_descriptor(tiles, A_ELEMENTS, B_LEADING, ROW_GROUP, 128)
            # A thread's accumulators: rows `own` and own + 8 of the tile, columns 8 * j + token and the next.
            own = warpgroup * 64 + member // 32 * 16 + member % 32 // 4
            own_token = member % 4 * 2
            while number < items:
                part = number // count if shared_k else 0
                first_k = part * depth_of_part
                end = min(first_k + depth_of_part, depth)
                at_tile = number - part * count
                k = first_k
                while k < end:
                    ptx.mbarrier_wait(loaded, stage, parity)
                    a_tile = a_first + uint64(stage * STAGE_STEP)
                    b_tile = b_first + uint64(stage * STAGE_STEP)
                    ptx.wgmma_fence()
                    for i in range(DEPTH // 16):
                        add = 1 if i > 0 else uint32(k > first_k)
                        wgmma(acc, a_tile + uint64(2 * i), b_tile + uint64(B_STEP * i), add)
                    ptx.wgmma_commit()
                    ptx.wgmma_wait(0)  # the other consumer's products keep the tensor cores busy meanwhile
                    if member == 0:
                        ptx.mbarrier_arrive(freed, stage)
                    k += DEPTH
                    stage += 1
                    if stage == STAGES:
                        stage, parity = 0, 1 - parity

                row, token = at_tile // across * ROWS + own, at_tile % across * COLS
                left = tokens - token  # tokens of this tile and of those beside it
                if shared_k:
                    first = at_tile * parts * (ROWS * COLS)
                    write_part(acc, partial, first + part * (ROWS * COLS), thread, left)
                    ptx.named_barrier_sync(1, 256)  # both consumers have written
                    if thread == 0:
                        cuda.threadfence()  # and every block sees it before it sees the count
                        # The count is 0 again after the last block: the next launch needs nothing.
                        order = uint32(cuda.atomic.inc(arrived, at_tile, parts - 1))
                        last[0] = 1 if order == parts - 1 else 0
                        cuda.threadfence()
                    ptx.named_barrier_sync(1, 256)
                    if last[0] == 1:
                        add_parts(acc, partial, first, thread, left, parts)
                        store_all(acc, out, row, token + own_token, tokens, outputs)
                    ptx.named_barrier_sync(1, 256)  # `last` has been read
                else:
                    store_all(acc, out, row, token + own_token, tokens, outputs)
                number += u32.gridDim.x

    swap_ab_kernel.uses_pdl = True
    return swap_ab_kernel


@functools.cache  # never given up: a captured graph may use it
def _kept_scratch(rows: int, depth: int, thread: int) -> Scratch:
    return scratch_for((rows, depth))


def multiply_swap_ab(x, weight, out, *, swiglu: bool = False, scratch: Scratch | None = None, tile: Tile | None = None,
                     stream=0) -> None:
    """out = x @ weight.T, or with swiglu, of weights as arrange_gate_up makes them, silu of the gates times the ups.

    The arguments are checked by the caller. out float32: not rounded. scratch: of scratch_for; None: memory that is
    kept for weights of this shape and for this thread, which must then launch on one stream. tile: one of TILES, of at
    most MOST_SHARED columns where K is shared; more rows of x than it has columns take several side by side.
    """
    (tokens, depth), rows = x.shape, weight.shape[0]
    tile = tile or tile_for(tokens, rows, depth)
    across = -(-tokens // tile.cols)
    parts, slice_ = parts_of(rows, depth, across)
    partial, arrived = scratch or _kept_scratch(rows, depth, threading.get_ident())
    kernel = make_swap_ab(tile, shared_k=parts > 1, swiglu=swiglu, floats=np.dtype(out.dtype) == np.float32)
    arguments = (ptx.tensor_map_2d(weight, ROWS, DEPTH), ptx.tensor_map_2d(x, tile.cols, DEPTH), out.reshape(-1),
                 partial, arrived, np.uint32(rows), np.uint32(out.shape[1]), np.uint32(tokens), np.uint32(depth),
                 np.uint32(parts), np.uint32(slice_))
    shared = 2 * tile.stages * tile.stage_elements
    dynamic_shared(kernel, shared, *arguments)
    kernel[min(block_count(), parts * tiles_of(rows, across)), 384, stream, shared](*arguments)


def tile_for(tokens: int, rows: int, depth: int) -> Tile:
    """As wide as there are tokens, if a block has the K of its tile alone; else at most MOST_SHARED wide."""
    tile = next((one for one in TILES if one.cols >= tokens), TILES[-1])
    if parts_of(rows, depth, -(-tokens // tile.cols))[0] > 1 and tile.cols > MOST_SHARED:
        tile = next(one for one in TILES if one.cols == MOST_SHARED)
    return tile


def swap_ab_kernels(**options) -> tuple:
    """What multiply_swap_ab may launch."""
    return tuple(make_swap_ab(tile, shared_k=shared, **options) for tile in TILES for shared in (False, True)
                 if not shared or tile.cols <= MOST_SHARED)


IDEA = "wgmma with the weights as the left factor: tokens are columns, K is shared where tiles are few"
SIZES = f"K a multiple of 8, at most {MOST_TOKENS} rows"


def check_swap_ab(x, weight) -> None:
    """Raise ValueError for what multiply_swap_ab does not take."""
    if x.shape[0] > MOST_TOKENS:
        raise ValueError(f"x has {x.shape[0]:,} rows; at most {MOST_TOKENS} are allowed")
    if weight.shape[1] % 8 or not aligned(x, weight):
        raise ValueError(f"K is {weight.shape[1]}; TMA takes rows of a multiple of 16 bytes that begin at one")
