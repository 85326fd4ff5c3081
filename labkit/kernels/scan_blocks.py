"""A scan by tiles: a block scans each, their totals are scanned in the same way, and a second kernel adds them.

Three ways to scan a tile in a block, the level above it, and the memory for totals. labkit.kernels.scan
defines a scan, and has the operations and the rungs that need fewer passes.
"""

import functools
import threading

import numpy as np
from numba import float32, int32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import check_array
from labkit.kernels.op import rung

BLOCK = 512
ALL_LANES = 0xFFFFFFFF
XOR_OFFSETS = (1, 2, 4, 8, 16)
TYPES = {"int32": int32, "float32": float32}


# --- A tile in one block: three ways ---------------------------------------------------------------------------------


@kernel_factory
def make_scan_hillis_steele(dtype):
    zero = dtype(0)

    @cuda.jit
    def scan_hillis_steele_kernel(x, out, totals, exclusive):
        shared = cuda.shared.array(0, dtype)  # one element per thread
        thread, threads = u32.threadIdx.x, u32.blockDim.x
        i = u32.grid(1)
        value = x[i] if i < u32.size(x) else zero
        shared[thread] = value
        cuda.syncthreads()
        offset = 1
        while offset < threads:
            previous = shared[thread - offset] if thread >= offset else zero
            cuda.syncthreads()  # all have read: neighbours may store
            value = dtype(value + previous)
            shared[thread] = value
            cuda.syncthreads()
            offset = offset << 1
        if thread == threads - 1:
            totals[cuda.blockIdx.x] = value
        if exclusive:
            value = shared[thread - 1] if thread > 0 else zero
        if i < u32.size(out):
            out[i] = value

    return scan_hillis_steele_kernel


@kernel_factory
def make_scan_blelloch(dtype, padded: bool):
    """padded: a gap after every 32 elements, so that elements a power of two apart are in different banks."""
    zero = dtype(0)

    @cuda.jit(device=True)
    def padded_index(i):
        return i + (i >> 5) if padded else i

    @cuda.jit
    def scan_blelloch_kernel(x, out, totals, exclusive):
        shared = cuda.shared.array(0, dtype)  # two elements per thread, and the gaps
        thread, threads = u32.threadIdx.x, u32.blockDim.x
        low = u32.blockIdx.x * 2 * threads + thread
        high, n = low + threads, u32.size(x)
        low_value = x[low] if low < n else zero
        high_value = x[high] if high < n else zero
        shared[padded_index(thread)] = low_value
        shared[padded_index(thread + threads)] = high_value
        # Up-sweep: add pairs, then pairs of pairs, until the last element holds the total.
        offset, pairs = 1, threads
        while pairs > 0:
            cuda.syncthreads()
            if thread < pairs:
                right = 2 * offset * (thread + 1) - 1
                left = right - offset
                shared[padded_index(right)] = dtype(shared[padded_index(right)] + shared[padded_index(left)])
            offset = offset << 1
            pairs = pairs >> 1
        if thread == 0:  # it added the last pair
            last = padded_index(2 * threads - 1)
            totals[cuda.blockIdx.x] = shared[last]
            shared[last] = zero
        # Down-sweep: the left half gets the prefix of the pair, the right half that plus the sum of the left half.
        pairs = 1
        while pairs <= threads:
            offset = offset >> 1
            cuda.syncthreads()
            if thread < pairs:
                right = 2 * offset * (thread + 1) - 1
                left = right - offset
                prefix, left_sum = shared[padded_index(right)], shared[padded_index(left)]
                shared[padded_index(left)] = prefix
                shared[padded_index(right)] = dtype(prefix + left_sum)
            pairs = pairs << 1
        cuda.syncthreads()
        if low < n:
            prefix = shared[padded_index(thread)]
            out[low] = prefix if exclusive else dtype(prefix + low_value)
        if high < n:
            prefix = shared[padded_index(thread + threads)]
            out[high] = prefix if exclusive else dtype(prefix + high_value)

    return scan_blelloch_kernel


# --- Shuffles --------------------------------------------------------------------------------------------------------


@functools.cache
def scan_functions(dtype):
    """(warp_scan, across_warps): device functions for values of this type."""
    zero = dtype(0)

    @cuda.jit(device=True)
    def warp_scan(value):
        """The inclusive scan over the 32 lanes of a warp, in five steps."""
        lane = u32.threadIdx.x & 31
        for offset in XOR_OFFSETS:
            prefix = cuda.shfl_up_sync(ALL_LANES, value, offset)
            if lane >= offset:
                value = dtype(value + prefix)
        return value

    @cuda.jit(device=True)
    def across_warps(warp_total, partial):
        """Return (the sum of the preceding warps, the sum of the block): every warp scans the totals of all warps.
        partial: shared, 32 elements."""
        thread = u32.threadIdx.x
        lane, warp = thread & 31, thread >> 5
        if lane == 0:
            partial[warp] = warp_total
        cuda.syncthreads()
        inclusive = warp_scan(partial[lane] if lane < u32.blockDim.x >> 5 else zero)
        cuda.syncthreads()  # all have read: partial is free to overwrite
        prefix = cuda.shfl_sync(ALL_LANES, inclusive, (warp - 1) & 31)
        return prefix if warp > 0 else zero, cuda.shfl_sync(ALL_LANES, inclusive, 31)

    return warp_scan, across_warps


@kernel_factory
def make_scan_warps(dtype):
    zero, (warp_scan, across_warps) = dtype(0), scan_functions(dtype)

    @cuda.jit
    def scan_warps_kernel(x, out, totals, exclusive):
        partial = cuda.shared.array(32, dtype)
        i, lane = u32.grid(1), u32.threadIdx.x & 31
        value = x[i] if i < u32.size(x) else zero
        inclusive = warp_scan(value)
        prefix, total = across_warps(cuda.shfl_sync(ALL_LANES, inclusive, 31), partial)
        lane_prefix = cuda.shfl_up_sync(ALL_LANES, inclusive, 1)
        if lane > 0:
            prefix = dtype(prefix + lane_prefix)
        if cuda.threadIdx.x == 0:
            totals[cuda.blockIdx.x] = total
        if i < u32.size(out):
            out[i] = prefix if exclusive else dtype(prefix + value)

    return scan_warps_kernel


# --- Many blocks, level by level -------------------------------------------------------------------------------------


@kernel_factory
def make_add_prefixes(dtype):
    @cuda.jit
    def add_prefixes_kernel(out, prefixes, tile_bits):
        """Add to each element the prefix of its tile of 2^tile_bits elements."""
        i = u32.grid(1)
        if i < u32.size(out):
            out[i] = dtype(out[i] + prefixes[i >> tile_bits])

    return add_prefixes_kernel


def level_kernels(make, *options) -> tuple:
    """The kernels of a rung that works level by level, for both types."""
    return tuple(kernel for dtype in (int32, float32) for kernel in (make(dtype, *options), make_add_prefixes(dtype)))


@rung(kernel=level_kernels(make_scan_hillis_steele), idea="log2(n) steps, and in each almost all threads add")
def scan_hillis_steele(x, out, exclusive=False, stream=0, scratch=None):
    """Scan 512 elements in each block: in step k each adds the one 2^k before it. The totals of the blocks are scanned
    in the same way, and a second kernel adds to each element the prefix of its block."""
    numba_type = check_scan(x, out)
    _by_levels(make_scan_hillis_steele(numba_type), BLOCK, 4 * BLOCK, x, out, exclusive, stream, scratch)


@rung(kernel=level_kernels(make_scan_blelloch, False), idea="a tree: half of the threads stop in each step",
      failed="1,533 us for 2^27 numbers on an H200, where hillis_steele took 1,314: its bank conflicts cost more than "
      "the additions that it saves")
def scan_blelloch(x, out, exclusive=False, stream=0, scratch=None):
    """As hillis_steele, but a tree goes up and down over 1,024 elements: about two additions for each instead of
    nine. The elements that a step adds lie 2, 4, 8, ... apart, in fewer and fewer banks."""
    numba_type = check_scan(x, out)
    _by_levels(make_scan_blelloch(numba_type, False), 2 * BLOCK, 8 * BLOCK, x, out, exclusive, stream, scratch)


@rung(kernel=level_kernels(make_scan_blelloch, True), idea="the tree, with a gap after every 32 elements")
def scan_padded(x, out, exclusive=False, stream=0, scratch=None):
    """As blelloch, but a gap after every 32 elements of shared memory spreads what a step adds over the banks."""
    numba_type, padded = check_scan(x, out), 2 * BLOCK + 2 * BLOCK // 32
    _by_levels(make_scan_blelloch(numba_type, True), 2 * BLOCK, 4 * padded, x, out, exclusive, stream, scratch)


@rung(kernel=level_kernels(make_scan_warps), idea="shuffles within warps, then across warps")
def scan_warps(x, out, exclusive=False, stream=0, scratch=None):
    """As hillis_steele, but the lanes of a warp pass their sums by shuffles, and the warps' sums take a second level:
    two barriers instead of nineteen."""
    _by_levels(make_scan_warps(check_scan(x, out)), BLOCK, 0, x, out, exclusive, stream, scratch)


def _by_levels(kernel, tile, shared_bytes, x, out, exclusive, stream, scratch) -> None:
    totals = scratch_for(scratch, sum(tiles_per_level(x.size, tile)), x.dtype)
    scan_level(kernel, tile, shared_bytes, x, out, np.bool_(exclusive), stream, totals)


def scan_level(kernel, tile, shared_bytes, x, out, exclusive, stream, workspace) -> None:
    """workspace: memory for the totals of this level and the levels above."""
    tiles = -(-x.size // tile)
    totals = workspace[:tiles]
    kernel[tiles, BLOCK, stream, shared_bytes](x, out, totals, exclusive)
    if tiles > 1:
        scan_level(kernel, tile, shared_bytes, totals, totals, np.bool_(True), stream, workspace[tiles:])
        add = make_add_prefixes(TYPES[out.dtype.name])
        add[-(-out.size // BLOCK), BLOCK, stream](out, totals, np.uint32(tile.bit_length() - 1))


def tiles_per_level(n: int, tile: int) -> list[int]:
    """The number of tiles of each level."""
    counts = []
    while not counts or counts[-1] > 1:
        n = -(-n // tile)
        counts.append(n)
    return counts


# --- Arguments and scratch -------------------------------------------------------------------------------------------


def scratch_size(n: int) -> int:
    """The number of uint64 elements with which any rung can scan n elements."""
    return sum(tiles_per_level(n, BLOCK)) + 2


def scratch_for(scratch, count: int, dtype):
    """`count` elements of this type: of `scratch`, or of cached memory."""
    needed = -(-count * np.dtype(dtype).itemsize // 8)
    if scratch is None:
        scratch = _cached_scratch(1 << (needed - 1).bit_length(), threading.get_ident())
    check_array("scratch", scratch, ndim=1, dtype=np.uint64)
    if scratch.size < needed:
        raise ValueError(f"scratch has {scratch.size:,} elements; this scan needs {needed:,}")
    return scratch.view(dtype)[:count]


@functools.cache  # never freed: a captured graph may use it
def _cached_scratch(size: int, thread: int):
    return cuda.device_array(size, np.uint64)


def check_scan(x, out):
    """Check the arrays; return Numba's type of an element."""
    name = np.dtype(getattr(x, "dtype", np.float32)).name
    check_array("x", x, ndim=1, dtype=name if name in TYPES else np.float32)
    check_array("out", out, shape=x.shape, dtype=name)
    return TYPES[name]
