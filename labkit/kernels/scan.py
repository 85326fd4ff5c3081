"""Scan, the running sum of an array. One rung for each idea, slowest first.

Shapes  x (N,), out (N,); int32 or float32, both alike; C-contiguous; any size; out may be x. Inclusive: out[i] = x[0] +
        ... + x[i]; exclusive=True: out[i] = x[0] + ... + x[i - 1]. Sums of int32 wrap around, as NumPy's do; those of
        float32 depend on the order of the additions, which in the look-back may differ from launch to launch
        scratch: scratch_size(N) elements of uint64 for totals of tiles, a tile being what one block scans; if left out,
        it is cached for each host thread, whose launches must then be on one stream
Work    N - 1 additions; 8*N bytes. The first four rungs move 16*N bytes and more, reduce_first 12*N
Source  G. Blelloch, "Prefix Sums and Their Applications"; M. Harris et al., "Parallel Prefix Sum (Scan) with CUDA", GPU
        Gems 3; D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back"
"""

import functools

import numpy as np
from numba import float32, int32, uint32, uint64

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned
from labkit.kernels.op import rung
from labkit.kernels.scan_blocks import (
    ALL_LANES,
    BLOCK,
    XOR_OFFSETS,
    check_scan,
    level_kernels,
    make_scan_warps,
    scan_functions,
    scan_level,
    scratch_for,
    tiles_per_level,
)

# A warp scans ROUNDS times 128 neighbours, four per lane.
ROUNDS = 4
ITEMS = 4 * ROUNDS  # per thread
THREADS = 256
WARP_ITEMS = 32 * ITEMS
TILE = THREADS * ITEMS


def scan_reference(x):
    """Sums of integers in int64; as int32 they wrap around."""
    if x.dtype.kind == "i":
        return np.cumsum(x, dtype=np.int64).astype(np.int32)
    return np.cumsum(x, dtype=np.float64)


# --- Sixteen elements a thread ---------------------------------------------------------------------------------------


@functools.cache
def tile_functions(dtype):
    """(load_tile, scan_tile, store_tile): device functions that read, scan and write a tile of 4,096 elements.

    values: the 16 elements of a thread, in registers. base: the index of the first of them; three neighbours follow,
    and each round is 128 elements after the previous one. wide: whether x and out begin at multiples of 16 bytes.
    """
    zero, (warp_scan, across_warps) = dtype(0), scan_functions(dtype)

    @cuda.jit(device=True)
    def load_tile(x, base, wide, values):
        n = u32.size(x)
        for r in u32.range(ROUNDS):
            i = base + 128 * r
            if wide and i + 3 < n:
                values[4 * r], values[4 * r + 1], values[4 * r + 2], values[4 * r + 3] = ptx.load_global4(x, i)
            else:
                for k in u32.range(4):
                    values[4 * r + k] = x[i + k] if i + k < n else zero

    @cuda.jit(device=True)
    def scan_tile(values, prefixes, partial):
        """Store each round's exclusive prefix within the tile in prefixes; return the tile's total."""
        lane = u32.threadIdx.x & 31
        warp_total = zero
        for r in range(ROUNDS):
            quad = dtype(dtype(values[4 * r] + values[4 * r + 1]) + dtype(values[4 * r + 2] + values[4 * r + 3]))
            inclusive = warp_scan(quad)
            lane_prefix = cuda.shfl_up_sync(ALL_LANES, inclusive, 1)
            prefixes[r] = dtype(warp_total + lane_prefix) if lane > 0 else warp_total
            warp_total = dtype(warp_total + cuda.shfl_sync(ALL_LANES, inclusive, 31))
        warp_prefix, total = across_warps(warp_total, partial)
        for r in range(ROUNDS):
            prefixes[r] = dtype(prefixes[r] + warp_prefix)
        return total

    @cuda.jit(device=True)
    def store_tile(out, base, wide, exclusive, values, prefixes, tile_prefix):
        n = u32.size(out)
        for r in u32.range(ROUNDS):
            i = base + 128 * r
            running = dtype(prefixes[r] + tile_prefix)
            for k in u32.range(4):
                inclusive = dtype(running + values[4 * r + k])
                values[4 * r + k] = running if exclusive else inclusive
                running = inclusive
            if wide and i + 3 < n:
                ptx.store_global4(out, i, values[4 * r], values[4 * r + 1], values[4 * r + 2], values[4 * r + 3])
            else:
                for k in u32.range(4):
                    if i + k < n:
                        out[i + k] = values[4 * r + k]

    return load_tile, scan_tile, store_tile


@cuda.jit(device=True)
def thread_base(tile):
    """The index of a thread's first element in this tile."""
    thread = u32.threadIdx.x
    return tile * TILE + (thread >> 5) * WARP_ITEMS + (thread & 31) * 4


@kernel_factory
def make_reduce_first(dtype):
    zero, (_, across_warps), (load_tile, scan_tile, store_tile) = dtype(0), scan_functions(dtype), tile_functions(dtype)

    @cuda.jit
    def tile_totals_kernel(x, totals, wide):
        partial, values = cuda.shared.array(32, dtype), cuda.local.array(ITEMS, dtype)
        load_tile(x, thread_base(u32.blockIdx.x), wide, values)
        total = zero
        for k in range(ITEMS):
            total = dtype(total + values[k])
        for offset in XOR_OFFSETS:
            total = dtype(total + cuda.shfl_xor_sync(ALL_LANES, total, offset))
        _, total = across_warps(total, partial)
        if cuda.threadIdx.x == 0:
            totals[cuda.blockIdx.x] = total

    @cuda.jit
    def scan_tiles_kernel(x, out, tile_prefixes, wide, exclusive):
        partial = cuda.shared.array(32, dtype)
        values, prefixes = cuda.local.array(ITEMS, dtype), cuda.local.array(ROUNDS, dtype)
        base = thread_base(u32.blockIdx.x)
        load_tile(x, base, wide, values)
        scan_tile(values, prefixes, partial)
        store_tile(out, base, wide, exclusive, values, prefixes, tile_prefixes[cuda.blockIdx.x])

    return tile_totals_kernel, scan_tiles_kernel


@rung(kernel=(*make_reduce_first(int32), *make_reduce_first(float32), *level_kernels(make_scan_warps)),
      idea="reduce, scan the totals, scan with them: x read twice, out written once")
def scan_reduce_first(x, out, exclusive=False, stream=0, scratch=None):
    """As warps, but the totals come first: one kernel only reduces each tile of 4,096 elements, the totals are scanned,
    and one kernel reads the tiles again and writes the result. out is not read. A thread has 16 elements, in four
    loads of 128 bits."""
    numba_type = check_scan(x, out)
    tiles = -(-x.size // TILE)
    reduce, scan = make_reduce_first(numba_type)
    workspace = scratch_for(scratch, tiles + sum(tiles_per_level(tiles, BLOCK)), x.dtype)
    totals, wide = workspace[:tiles], np.bool_(aligned(x, out))
    reduce[tiles, THREADS, stream](x, totals, wide)
    scan_level(make_scan_warps(numba_type), BLOCK, 0, totals, totals, np.bool_(True), stream, workspace[tiles:])
    scan[tiles, THREADS, stream](x, out, totals, wide, np.bool_(exclusive))


# --- A single pass ---------------------------------------------------------------------------------------------------
# A tile has a state of 64 bits, which are read and written as one: the status in the upper half, the value in the
# lower. So a thread that sees the new status sees the value, too, and no fence is needed.

UNKNOWN, TOTAL, THROUGH = 0, 1, 2  # nothing; the sum of the tile; the sum of all elements up to its end


@cuda.jit
def clear_states_kernel(states):
    i = u32.grid(1)
    if i < u32.size(states):
        states[i] = uint64(UNKNOWN)


@cuda.jit(device=True)
def read_state(states, tile):
    """The current state: an atomic bypasses the L1 cache, and no compiler moves it out of a loop."""
    return uint64(cuda.atomic.add(states, tile, uint64(0)))


@functools.cache
def state_functions(dtype):
    """(publish, value_of) for values of this type."""
    to_bits, from_bits = (ptx.float_bits, ptx.bits_float) if dtype == float32 else (uint32, int32)

    @cuda.jit(device=True)
    def publish(states, tile, status, value):
        cuda.atomic.exch(states, tile, uint64((uint64(status) << uint64(32)) | uint64(to_bits(value))))

    @cuda.jit(device=True)
    def value_of(state):
        return from_bits(uint32(state & uint64(0xFFFFFFFF)))

    return publish, value_of


@functools.cache
def look_back_functions(dtype):
    """(look_back_by_thread, look_back_by_warp): the sum of all elements before a tile, from earlier tiles' states.

    Both walk back over tiles with a known total, to tile 0 or to a tile whose inclusive sum is known, and wait at tiles
    that have published nothing.
    """
    zero, (_, value_of) = dtype(0), state_functions(dtype)

    @cuda.jit(device=True)
    def look_back_by_thread(states, tile):
        """One thread walks back, tile by tile."""
        prefix = zero
        searching = tile > 0
        while searching:
            tile -= 1
            state = read_state(states, tile)
            while state >> uint64(32) == uint64(UNKNOWN):
                state = read_state(states, tile)
            prefix = dtype(value_of(state) + prefix)
            searching = tile > 0 and state >> uint64(32) != uint64(THROUGH)
        return prefix

    @cuda.jit(device=True)
    def look_back_by_warp(states, tile, lane):
        """The 32 lanes of a warp read 32 tiles at a time. Lane 0 reads the nearest one."""
        prefix, end = zero, tile
        searching = tile > 0
        while searching:  # the same for all lanes
            valid = lane < end
            status, value = uint64(UNKNOWN), zero
            waiting = True
            while waiting:
                state = read_state(states, end - 1 - lane) if valid else uint64(0)
                status, value = state >> uint64(32), value_of(state)
                waiting = cuda.any_sync(ALL_LANES, valid and status == uint64(UNKNOWN)) != 0
            prefix_mask = uint32(cuda.ballot_sync(ALL_LANES, valid and status == uint64(THROUGH)))
            nearest = uint32(cuda.ffs(prefix_mask) - 1) if prefix_mask != 0 else 31
            partial = value if valid and lane <= nearest else zero
            for offset in XOR_OFFSETS:
                partial = dtype(partial + cuda.shfl_xor_sync(ALL_LANES, partial, offset))
            prefix = dtype(partial + prefix)
            searching = prefix_mask == 0 and end > 32
            end -= 32
        return prefix

    return look_back_by_thread, look_back_by_warp


@kernel_factory
def make_look_back(dtype, window: bool):
    """window: a warp reads 32 tiles at a time, instead of one thread a single tile."""
    zero, (publish, _) = dtype(0), state_functions(dtype)
    load_tile, scan_tile, store_tile = tile_functions(dtype)
    look_back_by_thread, look_back_by_warp = look_back_functions(dtype)

    @cuda.jit
    def look_back_kernel(x, out, states, wide, exclusive):
        ticket, tile_prefix = cuda.shared.array(1, uint32), cuda.shared.array(1, dtype)
        partial = cuda.shared.array(32, dtype)
        values, prefixes = cuda.local.array(ITEMS, dtype), cuda.local.array(ROUNDS, dtype)
        thread, tiles = u32.threadIdx.x, u32.gridDim.x
        if thread == 0:
            # Blocks take tiles in the order in which they start: earlier tiles belong to blocks that run or have ended.
            ticket[0] = uint32(cuda.atomic.add(states, tiles, uint64(1)))
        cuda.syncthreads()
        tile = ticket[0]
        base = thread_base(tile)
        load_tile(x, base, wide, values)
        total = scan_tile(values, prefixes, partial)
        if thread < 32:
            if thread == 0:
                publish(states, tile, TOTAL, total)
            prefix = zero
            if window:
                prefix = look_back_by_warp(states, tile, thread)
            elif thread == 0:
                prefix = look_back_by_thread(states, tile)
            if thread == 0:
                publish(states, tile, THROUGH, dtype(prefix + total))
                tile_prefix[0] = prefix
        cuda.syncthreads()
        store_tile(out, base, wide, exclusive, values, prefixes, tile_prefix[0])

    return look_back_kernel


@rung(kernel=(clear_states_kernel, make_look_back(int32, False), make_look_back(float32, False)),
      idea="a single pass: each block looks back for what stands before its tile",
      failed="458 us for 2^27 numbers on an H200, where reduce_first took 395: a thread that looks at one tile after "
      "another keeps its block waiting for longer than the bytes take that are saved")
def scan_look_back(x, out, exclusive=False, stream=0, scratch=None):
    """As reduce_first, but one kernel reads x once and writes out once. A block publishes the total of its tile at
    once; then its thread 0 walks back, tile by tile, to one that has published its inclusive sum."""
    _look_back(False, x, out, exclusive, stream, scratch)


@rung(kernel=(clear_states_kernel, make_look_back(int32, True), make_look_back(float32, True)),
      idea="a single pass; a warp looks back at 32 tiles at a time")
def scan_look_back_warp(x, out, exclusive=False, stream=0, scratch=None):
    """As look_back, but 32 lanes read 32 tiles at once: one round of loads instead of up to 32."""
    _look_back(True, x, out, exclusive, stream, scratch)


def _look_back(window, x, out, exclusive, stream, scratch) -> None:
    kernel = make_look_back(check_scan(x, out), window)
    tiles = -(-x.size // TILE)
    states = scratch_for(scratch, tiles + 1, np.uint64)  # the last element is the ticket counter
    clear_states_kernel[-(-states.size // BLOCK), BLOCK, stream](states)
    kernel[tiles, THREADS, stream](x, out, states, np.bool_(aligned(x, out)), np.bool_(exclusive))


def scan(x, out, exclusive=False, stream=0, scratch=None):
    """The rung to use."""
    scan_look_back_warp(x, out, exclusive, stream=stream, scratch=scratch)
