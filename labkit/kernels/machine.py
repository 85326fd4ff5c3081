"""Microbenchmarks of the machine: branches that split a warp, loads in flight, chains of arithmetic, blocks that queue,
values that do not fit into registers. Each kernel does one thing only, so that its time is the cost of that thing.

Shapes  side, way (n,) uint32; out (n,) float32, or uint32 for what was read; x (2**k,) uint32; a launch has n threads
Work    see the docstrings; the results are integers, which float32 and uint32 hold exactly
Source  V. Volkov, "Understanding Latency Hiding on GPUs" (2016)

Some arguments keep the compiler from computing a result without the work: `scale`, `shift` and `up` are 1, `down` is
-1 and `zero` is 0, and it does not know their values.
"""

import functools

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import check_array, dynamic_shared
from labkit.kernels.wrapping import wrapping_add, wrapping_mul

UNROLL = 16  # multiply-adds of a chain per iteration of its loop
SHARED_WORDS = 4096  # the 16 KB of read_shared
SHARED_LOADS = 4
ONE, ZERO = np.float32(1.0), np.uint32(0)
HASH = 2_654_435_761  # odd, so that no two of 2**32 indices share a value


# --- Branches --------------------------------------------------------------------------------------------------------


@cuda.jit
def two_branches_kernel(side, steps, scale, up, down, out):
    i = u32.grid(1)
    x = float32(cuda.threadIdx.x)
    step = 0
    if side[i] == 0:
        while step < steps:
            x = x * scale + up
            step += 1
    else:
        while step < steps:
            x = x * scale + down
            step += 1
    out[i] = x


def two_branches(side, steps, out, block=256, stream=0):
    """`steps` multiply-adds in each thread: those with side[i] = 0 count up from their index in the block, the others
    down."""
    _check_threads("side", side, out, block)
    two_branches_kernel[out.size // block, block, stream](side, np.uint32(steps), ONE, ONE, -ONE, out)


@cuda.jit
def many_branches_kernel(way, ways, steps, scale, shift, out):
    i = u32.grid(1)
    x = float32(cuda.threadIdx.x)
    for w in u32.range(ways):
        if way[i] == w:  # a warp enters if any of its lanes does; the others wait
            for _ in u32.range(steps):
                x = x * scale + shift
    out[i] = x


def many_branches(way, ways, steps, out, block=256, stream=0):
    """As two_branches, with any number of ways: thread i does its `steps` multiply-adds in branch way[i]."""
    _check_threads("way", way, out, block)
    many_branches_kernel[out.size // block, block, stream](way, np.uint32(ways), np.uint32(steps), ONE, ONE, out)


def _check_threads(name: str, array, out, block: int) -> None:
    check_array(name, array, ndim=1, dtype=np.uint32)
    check_array("out", out, shape=array.shape)
    if array.size % block:
        raise ValueError(f"{name} has {array.size:,} elements; it must have a multiple of the block's {block}")


# --- Chains of multiply-adds -----------------------------------------------------------------------------------------


@functools.cache
def make_chains_kernel(chains: int):
    """Each thread has `chains` values; every multiply-add needs the one before it in its own chain, and no other."""
    CHAINS = chains

    @cuda.jit
    def chains_kernel(steps, scale, shift, out):
        x = cuda.local.array(CHAINS, float32)
        for k in range(CHAINS):
            x[k] = float32(cuda.threadIdx.x)
        for _ in u32.range(0, steps, UNROLL):
            for _ in u32.range(UNROLL):
                for k in range(CHAINS):
                    x[k] = x[k] * scale + shift
        acc = float32(0.0)
        for k in range(CHAINS):
            acc += x[k]
        out[u32.grid(1)] = acc

    return chains_kernel


def run_chains(chains, steps, out, block=64, shared_bytes=0, stream=0):
    """`steps` multiply-adds, a multiple of 16, in each of a thread's chains: out is chains * (threadIdx.x + steps).

    shared_bytes: dynamic shared memory that a block takes and does not use, so that fewer blocks are resident.
    """
    check_array("out", out, ndim=1)
    if steps % UNROLL:
        raise ValueError(f"steps is {steps}; it must be a multiple of {UNROLL}")
    kernel, args = make_chains_kernel(chains), (np.uint32(steps), ONE, ONE, out)
    if shared_bytes:
        dynamic_shared(kernel, shared_bytes, *args)
    kernel[out.size // block, block, stream, shared_bytes](*args)


# --- Reading ---------------------------------------------------------------------------------------------------------


@cuda.jit
def fill_hash_kernel(x):
    stride = u32.gridsize(1)
    n = u32.size(x)
    for i in u32.range(u32.grid(1), n, stride):
        x[i] = wrapping_mul(i, HASH)


def fill_hash(x, stream=0):
    """x[i] = i * HASH modulo 2**32, which a reference can compute from the index alone."""
    check_array("x", x, ndim=1, dtype=np.uint32)
    fill_hash_kernel[min(-(-x.size // 256), 4096), 256, stream](x)


@functools.cache
def make_read_kernel(loads: int):
    """Each thread issues `loads` loads, waits for all of them, adds up the values and goes on."""
    LOADS = loads

    @cuda.jit
    def read_kernel(x, mask, span, rounds, zero, out):
        width = u32.blockDim.x
        i = (wrapping_mul(u32.blockIdx.x, span) & mask) + u32.threadIdx.x
        values = cuda.local.array(LOADS, uint32)
        acc = 0
        for _ in u32.range(rounds):
            for k in u32.range(LOADS):
                values[k] = x[(i + k * width) & mask]
            for k in u32.range(LOADS):
                acc = wrapping_add(acc, values[k])
            # zero is 0, but the next addresses depend on these values
            i = (i & mask) + LOADS * width + (acc & zero)
        out[u32.grid(1)] = acc

    return read_kernel


@functools.cache
def make_read_wide_kernel(loads: int):
    """As make_read_kernel, with loads of 16 bytes."""
    LOADS = loads

    @cuda.jit
    def read_wide_kernel(x, mask, span, rounds, zero, out):
        width = 4 * u32.blockDim.x
        i = (wrapping_mul(u32.blockIdx.x, span) & mask) + 4 * u32.threadIdx.x
        values = cuda.local.array((LOADS, 4), uint32)
        acc = 0
        for _ in u32.range(rounds):
            base = i & mask
            for k in u32.range(LOADS):
                values[k, 0], values[k, 1], values[k, 2], values[k, 3] = ptx.load_nc4(x, base + k * width)
            for k in u32.range(LOADS):
                for j in range(4):
                    acc = wrapping_add(acc, values[k, j])
            i = (i & mask) + LOADS * width + (acc & zero)
        out[u32.grid(1)] = acc

    return read_wide_kernel


def read(x, window, rounds, out, *, loads=1, wide=False, block=256, shared_bytes=0, apart=True, stream=0):
    """`rounds` rounds of `loads` loads in each thread, of 4 bytes or, `wide`, of 16; out is each thread's sum, modulo
    2**32.

    Each block reads a range of its own, one after the other, modulo the first `window` elements of x, a power of 2 up
    to its size; with apart=False all blocks read the same range.
    """
    check_array("x", x, ndim=1, dtype=np.uint32)
    check_array("out", out, ndim=1, dtype=np.uint32)
    if not 4 <= window <= x.size or window & (window - 1):
        raise ValueError(f"window is {window:,}; it must be a power of 2 from 4 to the {x.size:,} elements of x")
    round_size = loads * block * (4 if wide else 1)
    if wide and window % round_size:
        raise ValueError(f"window is {window:,}; it must be a multiple of the {round_size:,} elements that a block "
                         f"reads in a round of {loads} wide loads")
    kernel = (make_read_wide_kernel if wide else make_read_kernel)(loads)
    span = rounds * round_size if apart else 0
    args = x, np.uint32(window - 1), np.uint32(span & 0xFFFFFFFF), np.uint32(rounds), ZERO, out
    if shared_bytes:
        dynamic_shared(kernel, shared_bytes, *args)
    kernel[out.size // block, block, stream, shared_bytes](*args)


def read_reference(threads, window, rounds, loads=1, wide=False, block=256, apart=True) -> np.ndarray:
    """What `read` writes in the threads with these indices in the grid, from x as fill_hash fills it."""
    threads = np.asarray(threads, np.uint64)
    vec = 4 if wide else 1
    span = rounds * loads * block * vec if apart else 0
    base = threads // np.uint64(block) * np.uint64(span) + threads % np.uint64(block) * np.uint64(vec)
    offsets = np.arange(rounds * loads, dtype=np.uint64) * np.uint64(block * vec)
    lanes = np.arange(vec, dtype=np.uint64)
    index = (base[:, None, None] + offsets[None, :, None] + lanes) & np.uint64(window - 1)
    return (index * np.uint64(HASH) & np.uint64(0xFFFFFFFF)).sum(axis=(1, 2), dtype=np.uint64).astype(np.uint32)


@cuda.jit
def read_shared_kernel(rounds, zero, out):
    words = cuda.shared.array(SHARED_WORDS, uint32)
    width = u32.blockDim.x
    for i in u32.range(u32.threadIdx.x, SHARED_WORDS, width):
        words[i] = wrapping_mul(i, HASH)
    cuda.syncthreads()
    i = 4 * u32.threadIdx.x
    values = cuda.local.array((SHARED_LOADS, 4), uint32)
    acc = 0
    for _ in u32.range(rounds):
        base = i & SHARED_WORDS - 1
        for k in u32.range(SHARED_LOADS):
            values[k, 0], values[k, 1], values[k, 2], values[k, 3] = ptx.load_shared4(words, base + 4 * k * width)
        for k in u32.range(SHARED_LOADS):
            for j in range(4):
                acc = wrapping_add(acc, values[k, j])
        i = i + 4 * SHARED_LOADS * width + (acc & zero)
    out[u32.grid(1)] = acc


def read_shared(rounds, out, block=256, stream=0):
    """`rounds` rounds of 4 loads of 16 bytes from 16 KB of shared memory in each thread: what `read` gives with
    a window of SHARED_WORDS, 4 wide loads, and apart=False."""
    check_array("out", out, ndim=1, dtype=np.uint32)
    if SHARED_WORDS % (4 * SHARED_LOADS * block):
        raise ValueError(f"block is {block}; {SHARED_WORDS // SHARED_LOADS // 4} must be a multiple of it")
    read_shared_kernel[out.size // block, block, stream](np.uint32(rounds), ZERO, out)


# --- Values that do not fit ------------------------------------------------------------------------------------------

VALUES = 64


@functools.cache
def make_many_values_kernel(registers: int | None = None):
    """64 values in each thread, all of which every round needs again. registers: the most that a thread may have; None
    leaves it to the compiler."""
    options = {} if registers is None else {"max_registers": registers}

    @cuda.jit(**options)
    def many_values_kernel(rounds, scale, shift, out):
        values = cuda.local.array(VALUES, float32)
        for k in range(VALUES):
            values[k] = float32(cuda.threadIdx.x) + float32(k)
        for _ in u32.range(rounds):
            for k in range(VALUES):
                values[k] = values[k] * scale + shift
        acc = float32(0.0)
        for k in range(VALUES):
            acc += values[k]
        out[u32.grid(1)] = acc

    return many_values_kernel


def many_values(rounds, out, registers=None, block=256, stream=0):
    """out is 64 * (threadIdx.x + rounds) + 2016, whatever `registers` allows."""
    check_array("out", out, ndim=1)
    make_many_values_kernel(registers)[out.size // block, block, stream](np.uint32(rounds), ONE, ONE, out)
