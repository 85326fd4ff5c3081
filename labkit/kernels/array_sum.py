"""Sum one large array. Seven rungs, each with one change, slowest first.

Shapes  x (N,), out (1,); float32, C-contiguous; any N
Work    N - 1 additions; 4*N bytes: the limit is memory
Source  M. Harris, "Optimizing Parallel Reduction in CUDA"

Blocks cannot wait for each other, so a launch leaves one sum per block, and the same kernel sums those. With 256
elements a block, 2^27 elements take four launches. The first four rungs differ only in who adds what to whom.
"""

from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, ptx
from labkit.kernels.arguments import aligned, check_array
from labkit.kernels.op import rung
from labkit.kernels.reduce import ZERO, warp_sum
from labkit.kernels.scan_blocks import scratch_for, tiles_per_level

BLOCK = 256
BLOCKS_PER_SM = 8  # 8 blocks of 256 threads: as many threads as an SM holds


def array_sum_reference(x):
    return x.sum(dtype="float64").reshape(1)


# --- The sum of a block: every thread brings a value, and thread 0 gets the total -----------------------------------


@cuda.jit(device=True)
def sum_divergent(value, shared):
    """Thread t adds its neighbour if t is a multiple of 2, then of 4, then of 8."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = uint32(1)
    while stride < BLOCK:
        if thread % (2 * stride) == 0:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride = uint32(2 * stride)
    return shared[0]


@cuda.jit(device=True)
def sum_strided(value, shared):
    """The same additions, made by the first threads of the block."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = uint32(1)
    while stride < BLOCK:
        left = 2 * stride * thread
        if left < BLOCK:
            shared[left] += shared[left + stride]
        cuda.syncthreads()
        stride = uint32(2 * stride)
    return shared[0]


@cuda.jit(device=True)
def sum_sequential(value, shared):
    """The first half of the sums adds the second half, element by element: neighbours read neighbours."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = uint32(BLOCK // 2)
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride >>= 1
    return shared[0]


@cuda.jit(device=True)
def sum_last_warp(value, shared):
    """As sum_sequential until 64 sums are left: one warp adds those by shuffles, without a barrier."""
    thread = u32.threadIdx.x
    shared[thread] = value
    cuda.syncthreads()
    stride = uint32(BLOCK // 2)
    while stride > 32:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride >>= 1
    if thread < 32:
        value = warp_sum(shared[thread] + shared[thread + 32])
    return value


# --- The ladder ----------------------------------------------------------------------------------------------------


@cuda.jit
def array_sum_divergent_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    i = u32.grid(1)
    total = sum_divergent(x[i] if i < u32.size(x) else ZERO, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_divergent_kernel, idea="a tree: every second thread, every fourth, every eighth adds")
def array_sum_divergent(x, out, stream=0):
    """One element a thread, and a tree in shared memory whose active threads are spread over all warps."""
    _launch(array_sum_divergent_kernel, BLOCK, x, out, stream)


@cuda.jit
def array_sum_strided_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    i = u32.grid(1)
    total = sum_strided(x[i] if i < u32.size(x) else ZERO, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_strided_kernel, idea="the first threads add: whole warps work or rest")
def array_sum_strided(x, out, stream=0):
    """As divergent, but consecutive threads make the additions, so that no warp splits before its last ones."""
    _launch(array_sum_strided_kernel, BLOCK, x, out, stream)


@cuda.jit
def array_sum_sequential_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    i = u32.grid(1)
    total = sum_sequential(x[i] if i < u32.size(x) else ZERO, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_sequential_kernel, idea="consecutive threads read consecutive sums: no bank conflicts")
def array_sum_sequential(x, out, stream=0):
    """As strided, but the partner is half of the block away at first, then a quarter, and so on."""
    _launch(array_sum_sequential_kernel, BLOCK, x, out, stream)


@cuda.jit
def array_sum_first_add_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    n, i = u32.size(x), 2 * BLOCK * u32.blockIdx.x + u32.threadIdx.x
    value = ZERO
    if i + BLOCK < n:
        value = x[i] + x[i + BLOCK]
    elif i < n:
        value = x[i]
    total = sum_sequential(value, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_first_add_kernel, idea="two elements a thread, added as they are loaded")
def array_sum_first_add(x, out, stream=0):
    """As sequential, but each thread loads two elements and adds them first: half as many blocks and trees."""
    _launch(array_sum_first_add_kernel, 2 * BLOCK, x, out, stream)


@cuda.jit
def array_sum_last_warp_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    n, i = u32.size(x), 2 * BLOCK * u32.blockIdx.x + u32.threadIdx.x
    value = ZERO
    if i + BLOCK < n:
        value = x[i] + x[i + BLOCK]
    elif i < n:
        value = x[i]
    total = sum_last_warp(value, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_last_warp_kernel, idea="the last warp adds by shuffles")
def array_sum_last_warp(x, out, stream=0):
    """As first_add, but the last six steps belong to one warp: five of them are shuffles, and no barrier follows."""
    _launch(array_sum_last_warp_kernel, 2 * BLOCK, x, out, stream)


@cuda.jit
def array_sum_grid_stride_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    n, i = u32.size(x), 2 * BLOCK * u32.blockIdx.x + u32.threadIdx.x
    value = ZERO
    while i + BLOCK < n:
        value += x[i] + x[i + BLOCK]
        i += 2 * u32.gridsize(1)
    if i < n:
        value += x[i]
    total = sum_last_warp(value, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=array_sum_grid_stride_kernel, idea="many elements a thread: one tree for each block that fits the GPU")
def array_sum_grid_stride(x, out, stream=0):
    """As last_warp, but there are only as many blocks as the GPU holds, and each goes through the array in steps of the
    whole grid. Two launches are enough."""
    _launch_twice(array_sum_grid_stride_kernel, 2 * BLOCK, x, out, stream)


@cuda.jit
def array_sum_wide_kernel(x, sums):
    shared = cuda.shared.array(BLOCK, float32)
    n, i, step = u32.size(x), 4 * u32.grid(1), 4 * u32.gridsize(1)
    value = ZERO
    while i + 3 * step + 3 < n:  # four loads before the first use: 64 bytes a thread in flight
        a, b, c, d = ptx.load_nc4(x, i)
        e, f, g, h = ptx.load_nc4(x, i + step)
        j, k, l, m = ptx.load_nc4(x, i + 2 * step)  # noqa: E741
        o, p, q, r = ptx.load_nc4(x, i + 3 * step)
        left = ((a + b) + (c + d)) + ((e + f) + (g + h))
        value += left + (((j + k) + (l + m)) + ((o + p) + (q + r)))
        i += 4 * step
    while i < n:  # less than four rounds are left, and the last four neighbours may be fewer
        for k in u32.range(i, min(i + 4, n)):
            value += x[k]
        i += step
    total = sum_last_warp(value, shared)
    if u32.threadIdx.x == 0:
        sums[u32.blockIdx.x] = total


@rung(kernel=(array_sum_wide_kernel, array_sum_grid_stride_kernel), idea="four loads of 128 bits in flight")
def array_sum_wide(x, out, stream=0):
    """As grid_stride, but a thread loads four neighbours with one instruction, and four times before it adds. A view
    that does not begin at a multiple of 16 bytes is left to grid_stride."""
    if aligned(x):
        _launch_twice(array_sum_wide_kernel, 4 * BLOCK, x, out, stream)
    else:
        array_sum_grid_stride(x, out, stream=stream)


def _launch(kernel, per_block: int, x, out, stream) -> None:
    """Launch the kernel on x, then on the sums of its blocks, until one block is enough."""
    _check(x, out)
    workspace = scratch_for(None, sum(tiles_per_level(x.size, per_block)), x.dtype)
    blocks = 0
    while blocks != 1:
        blocks = -(-x.size // per_block)
        sums = out if blocks == 1 else workspace[:blocks]
        kernel[blocks, BLOCK, stream](x, sums)
        x, workspace = sums, workspace[blocks:]


def _launch_twice(kernel, per_block: int, x, out, stream) -> None:
    """Launch as many blocks as the GPU holds at a time, and one block on their sums."""
    _check(x, out)
    blocks = min(-(-x.size // per_block), BLOCKS_PER_SM * gpus.sm_count())
    sums = scratch_for(None, blocks, x.dtype)
    kernel[blocks, BLOCK, stream](x, sums)
    kernel[1, BLOCK, stream](sums, out)


def _check(x, out) -> None:
    check_array("x", x, ndim=1)
    check_array("out", out, shape=(1,))
