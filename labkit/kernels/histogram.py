"""Histogram: how often each value occurs in an array. One rung for each idea about atomics, slowest first.

Shapes  x (N,), uint8 or int32; bins, an integer; out (bins,) int32; C-contiguous; any sizes
Work    N counts; x.itemsize*N + 4*bins bytes. An atomic for each element, on global or on shared memory
Source  CUDA C++ Programming Guide, "Atomic Functions"; numpy.bincount

Values outside the bins, below 0 or from `bins` on, are not counted. How long a histogram takes depends on the values:
atomics on one address run one after another. So sizes have a third number, S: that many percent of the elements hold
one value. With S=100 all are equal.
"""

import numpy as np
from numba import int32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.op import rung

BLOCK = 256
WARPS = BLOCK // 32
ALL_LANES = 0xFFFFFFFF
MOST_BINS = 12_288  # of one private histogram: 48 KB of shared memory
BLOCKS_PER_SM = 8
ONE = int32(1)


def histogram_reference(x, bins):
    return np.bincount(x[(x >= 0) & (x < bins)], minlength=bins)


@cuda.jit
def clear_kernel(out):
    i = u32.grid(1)
    if i < out.size:
        out[i] = int32(0)


# --- One histogram, in global memory ---------------------------------------------------------------------------------


@cuda.jit
def histogram_global_kernel(x, out):
    i = u32.grid(1)
    if i < x.size:
        value = uint32(x[i])  # negative values become larger than any bin
        if value < out.size:
            cuda.atomic.add(out, value, ONE)


@rung(kernel=(clear_kernel, histogram_global_kernel), idea="one atomic on global memory for each element")
def histogram_global(x, bins, out, stream=0):
    """One thread for each element adds 1 to its bin, and the bins lie in global memory."""
    n = _check(x, bins, out)
    _clear(out, stream)
    histogram_global_kernel[-(-n // BLOCK), BLOCK, stream](x, out)


# --- Private histograms, in shared memory ----------------------------------------------------------------------------


@cuda.jit(device=True)
def clear_counts(counts, size):
    """Zero the block's counts; ends with a barrier."""
    for i in u32.range(u32.threadIdx.x, size, u32.blockDim.x):
        counts[i] = int32(0)
    cuda.syncthreads()


@cuda.jit(device=True)
def add_counts(counts, copies, out):
    """Add the block's private histograms, `copies` of them one after another, to the one in global memory."""
    cuda.syncthreads()  # all have counted
    bins = u32.size(out)
    for value in u32.range(u32.threadIdx.x, bins, u32.blockDim.x):
        total = int32(0)
        i = value
        for _ in range(copies):
            total = int32(total + counts[i])
            i += bins
        if total != int32(0):
            cuda.atomic.add(out, value, total)


@cuda.jit
def histogram_shared_kernel(x, out):
    counts = cuda.shared.array(0, int32)  # one per bin: the size is set at launch
    n, bins = u32.size(x), u32.size(out)
    clear_counts(counts, bins)
    for i in u32.range(u32.grid(1), n, u32.gridsize(1)):
        value = uint32(x[i])
        if value < bins:
            cuda.atomic.add(counts, value, ONE)
    add_counts(counts, 1, out)


@rung(kernel=(clear_kernel, histogram_shared_kernel), idea="a private histogram for each block, in shared memory",
      sizes="at most 12,288 bins")
def histogram_shared(x, bins, out, stream=0):
    """As global, but a block counts in shared memory, and adds its counts to global memory once, at its end. There are
    as many blocks as the SMs hold, and each takes many elements: fewer blocks, fewer atomics on global memory."""
    n = _check(x, bins, out)
    _check_bins(bins)
    _clear(out, stream)
    histogram_shared_kernel[_blocks(n), BLOCK, stream, 4 * bins](x, out)


@cuda.jit
def histogram_copies_kernel(x, out, copies):
    counts = cuda.shared.array(0, int32)  # copies * bins
    n, bins = u32.size(x), u32.size(out)
    clear_counts(counts, copies * bins)
    warp_offset = (u32.threadIdx.x >> 5) % copies * bins  # of this warp's histogram
    for i in u32.range(u32.grid(1), n, u32.gridsize(1)):
        value = uint32(x[i])
        if value < bins:
            cuda.atomic.add(counts, warp_offset + value, ONE)
    add_counts(counts, copies, out)


@rung(kernel=(clear_kernel, histogram_copies_kernel), idea="a private histogram for each warp",
      sizes="at most 12,288 bins", failed="on an H200 2^28 bytes took 398 us where one private histogram took 393, and "
      "with 1,024 bins 213 us where that took 124: the hardware adds equal lanes of a warp at once, other warps are "
      "seldom in the way, and there are eight times as many bins to clear and to add up")
def histogram_copies(x, bins, out, stream=0):
    """As shared, but a block has a histogram for each of its warps, or as many as 48 KB hold: two warps that count the
    same value do not wait for each other."""
    n = _check(x, bins, out)
    copies = _copies(bins)
    _clear(out, stream)
    histogram_copies_kernel[_blocks(n), BLOCK, stream, 4 * bins * copies](x, out, np.uint32(copies))


@cuda.jit
def histogram_matched_kernel(x, out, copies):
    counts = cuda.shared.array(0, int32)
    n, bins = u32.size(x), u32.size(out)
    clear_counts(counts, copies * bins)
    thread = u32.threadIdx.x
    lane = thread & 31
    warp_offset = (thread >> 5) % copies * bins
    base = u32.grid(1) - lane  # of the warp: all its lanes make the same number of rounds
    while base < n:
        i = base + lane
        value = uint32(x[i]) if i < n else bins
        if value > bins:
            value = bins
        peers = uint32(cuda.match_any_sync(ALL_LANES, value))  # a bit for each lane with the same value
        if value < bins and (peers & (1 << lane) - 1) == 0:  # the lowest of these lanes
            cuda.atomic.add(counts, warp_offset + value, int32(cuda.popc(peers)))
        base += u32.gridsize(1)
    add_counts(counts, copies, out)


@rung(kernel=(clear_kernel, histogram_matched_kernel), idea="lanes with the same value make one atomic",
      sizes="at most 12,288 bins", failed="on an H200 2^28 random bytes took 3,990 us where plain atomics took 398, "
      "and equal ones 468: ATOMS.POPC.INC, to which an atomic addition of 1 is compiled, joins equal lanes by itself, "
      "and match_any_sync goes through the values one after another")
def histogram_matched(x, bins, out, stream=0):
    """As copies, but the lanes of a warp first find out which of them hold the same value, and the lowest of those adds
    them all. Equal values cost one atomic for a warp, different ones cost the search as well."""
    n = _check(x, bins, out)
    copies = _copies(bins)
    _clear(out, stream)
    histogram_matched_kernel[_blocks(n), BLOCK, stream, 4 * bins * copies](x, out, np.uint32(copies))


# --- 128-bit loads ---------------------------------------------------------------------------------------------------


@kernel_factory
def make_histogram_vectorized(packed: bool):
    """packed: a word holds four elements of one byte; otherwise a word is one element."""

    @cuda.jit(device=True)
    def count(counts, bins, value):
        if value < bins:
            cuda.atomic.add(counts, value, ONE)

    @cuda.jit(device=True)
    def count_word(counts, bins, word):
        if packed:
            count(counts, bins, word & 255)
            count(counts, bins, (word >> 8) & 255)
            count(counts, bins, (word >> 16) & 255)
            count(counts, bins, word >> 24)
        else:
            count(counts, bins, word)

    @cuda.jit
    def histogram_vectorized_kernel(words, x, words_end, out):
        counts = cuda.shared.array(0, int32)
        bins = u32.size(out)
        clear_counts(counts, bins)
        i = u32.grid(1)
        if words_end + i < u32.size(x):  # the tail after the words: fewer elements than threads
            count(counts, bins, uint32(x[words_end + i]))
        n, stride = u32.size(words), 4 * u32.gridsize(1)
        i = 4 * i
        while i + stride < n:  # two loads before the first atomic
            a, b, c, d = ptx.load_nc4(words, i)
            e, f, g, h = ptx.load_nc4(words, i + stride)
            count_word(counts, bins, a)
            count_word(counts, bins, b)
            count_word(counts, bins, c)
            count_word(counts, bins, d)
            count_word(counts, bins, e)
            count_word(counts, bins, f)
            count_word(counts, bins, g)
            count_word(counts, bins, h)
            i += 2 * stride
        if i < n:
            a, b, c, d = ptx.load_nc4(words, i)
            count_word(counts, bins, a)
            count_word(counts, bins, b)
            count_word(counts, bins, c)
            count_word(counts, bins, d)
        add_counts(counts, 1, out)

    return histogram_vectorized_kernel


@rung(kernel=(clear_kernel, make_histogram_vectorized(True), make_histogram_vectorized(False), histogram_shared_kernel),
      idea="128-bit loads: 16 bytes of x at a time", sizes="at most 12,288 bins")
def histogram_vectorized(x, bins, out, stream=0):
    """As shared, but a thread loads 16 bytes at once, sixteen elements of uint8 or four of int32, and two such words
    before it counts. A view that does not begin at a multiple of 16 bytes is left to shared."""
    n = _check(x, bins, out)
    per_load = 16 // x.dtype.itemsize
    if not aligned(x) or n < per_load:
        histogram_shared(x, bins, out, stream)
        return
    _check_bins(bins)
    words_end = n // per_load * per_load
    _clear(out, stream)
    words = x[:words_end].view(np.uint32)
    kernel = make_histogram_vectorized(per_load == 16)
    kernel[_blocks(n // per_load), BLOCK, stream, 4 * bins](words, x, np.uint32(words_end), out)


def histogram(x, bins, out, stream=0):
    """The rung to use."""
    (histogram_vectorized if bins <= MOST_BINS else histogram_global)(x, bins, out, stream=stream)


def _clear(out, stream) -> None:
    clear_kernel[-(-out.size // BLOCK), BLOCK, stream](out)


def _blocks(work: int) -> int:
    """Enough for every SM, and no more than there is work for."""
    return min(-(-work // BLOCK), BLOCKS_PER_SM * gpus.sm_count())


def _copies(bins: int) -> int:
    """Private histograms of a block: one for each warp if they fit into 48 KB."""
    _check_bins(bins)
    return min(WARPS, MOST_BINS // bins)


def _check_bins(bins: int) -> None:
    if bins > MOST_BINS:
        raise ValueError(f"bins is {bins:,}; a histogram in shared memory has at most {MOST_BINS:,}")


def _check(x, bins, out) -> int:
    check_array("x", x, ndim=1, dtype=np.uint8 if np.dtype(getattr(x, "dtype", np.int32)) == np.uint8 else np.int32)
    check_array("out", out, shape=(bins,), dtype=np.int32)
    return x.shape[0]
