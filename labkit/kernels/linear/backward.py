"""The gradients of a linear layer, y = x @ weight.T + bias: of its input, its weight and its bias.

Shapes  x, grad_x (T, K), weight, grad_weight (N, K), grad_out (T, N), grad_bias (N,). float32, float16 or bfloat16 (in
        arrays of uint16), all of one type; the gradients of weight and bias may be float32. Accumulators in float32
Work    grad_x = grad_out @ weight and grad_weight = grad_out.T @ x: 2*T*N*K flop each. grad_bias: T*N additions
Source  torch.nn.functional.linear, whose weights are (out, in). Files that keep a weight (in, out), as GPT-2's do, are
        transposed once, when they are read

Nothing is added atomically: K or T is split only into parts that a second launch adds up in a fixed order. So the bits
are the same in every run on one kind of GPU.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import gpus, graphs, ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import (
    MAX_GRID_YZ,
    aligned,
    blocks_for,
    check_array,
    dynamic_shared,
    product_sizes,
    resident,
    unsigned,
)
from labkit.kernels.attention.heads import make_load_chunk
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT16, FLOAT32, Element, element_of
from labkit.kernels.linear.fused import seconds_between
from labkit.kernels.matmul import wgmma
from labkit.kernels.matmul.float32 import make_store_tile, matmul_pipelined
from labkit.kernels.matmul.float32_tiles import (
    BLOCK_K,
    BLOCK_TILE,
    RING,
    make_copy_transposed_pair,
    make_pipeline,
    quarters_apart,
)
from labkit.kernels.matmul.half import PIPELINED_TILES, pipelined_tile
from labkit.kernels.matmul.mma import CHUNK, launch, make_pipelined, unchanged, usable
from labkit.kernels.matmul.wgmma_tiles import DEPTH
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung
from labkit.kernels.partial_sums import sum_partials
from labkit.kernels.reduce import ZERO

BLOCK = 256
SIZES = "N and K multiples of 8"


# --- References -------------------------------------------------------------------------------------------------------


def linear_backward_input_reference(grad_out, weight):
    return grad_out.astype(np.float64) @ weight.astype(np.float64)


def linear_backward_weight_reference(grad_out, x):
    return grad_out.astype(np.float64).T @ x.astype(np.float64)


def linear_backward_bias_reference(grad_out):
    return grad_out.astype(np.float64).sum(axis=0)


# --- Partial sums -----------------------------------------------------------------------------------------------------


def partials_in(workspace, splits: int, size: int):
    """Return `splits` rows of `size` float32: the beginning of the workspace, or new memory if it is None."""
    if workspace is None:
        return graphs.keep(cuda.device_array((splits, size), np.float32))
    check_array("workspace", workspace, ndim=1)
    if workspace.size < splits * size:
        raise ValueError(f"workspace has {workspace.size:,} elements; {splits} partial sums of {size:,} elements need "
                         f"{splits * size:,}")
    return workspace[: splits * size].reshape(splits, size)


OVERHEAD_TOKENS = 128  # of a tile: filling its pipeline, and storing it
TILED_FLOPS, MMA_FLOPS = 0.38e12, 2.1e12  # a second, of one SM of an H200
# Measured: tiles of 64 columns are slower than the rest.
WGMMA_FORMS = {tile: 4.2e12 if tile.cols == 64 else 6.2e12 for tile in wgmma.TILES}


def plan_splits(rows: int, cols: int, tokens: int, tile: tuple, step: int, flops: float) -> tuple[float, int]:
    """Return (seconds, splits of the tokens) with which a product in tiles of (rows, columns) is done first. step:
    tokens of a stage; no split has a part of one, and none is empty."""
    tiles, steps, blocks = -(-rows // tile[0]) * -(-cols // tile[1]), -(-tokens // step), wgmma.block_count()
    token_seconds = 2 * tile[0] * tile[1] / (flops * gpus.of_an_h200("fp32_tflops", per_sm=True))

    def seconds(splits):
        tokens_each = -(-steps // splits) * step
        return (-(-tiles * splits // blocks) * (tokens_each + OVERHEAD_TOKENS) * token_seconds
                + seconds_between(splits, rows, cols))

    best = min(range(1, min(steps, 16) + 1), key=seconds)
    return seconds(best), -(-steps // -(-steps // best))


# --- The gradient of the input ----------------------------------------------------------------------------------------


@kernel_factory
def make_input_naive(element: Element):
    to_float, to_element = element.number, element.element

    @cuda.jit
    def linear_backward_input_kernel(grad_out, weight, grad_x):
        i = u32.grid(1)
        if i < u32.size(grad_x):
            cols = u32.shape(weight)[1]
            row = i // cols
            col = i - row * cols
            total = ZERO
            for n in u32.range(u32.shape(weight)[0]):
                total += to_float(grad_out[row, n]) * to_float(weight[n, col])
            grad_x[row, col] = to_element(total)

    return linear_backward_input_kernel


@rung(kernel=make_input_naive(FLOAT32), idea="one thread an element")
def linear_backward_input_naive(grad_out, weight, grad_x, stream=0):
    """One thread computes one element; neighbours read neighbouring weights."""
    element, *_ = _check_input(grad_out, weight, grad_x)
    make_input_naive(element)[-(-grad_x.size // BLOCK), BLOCK, stream](grad_out, weight, grad_x)


@rung(kernel=matmul_pipelined.kernel, idea="the product of float32 in tiles: the weight is its second factor as it is")
def linear_backward_input_tiled(grad_out, weight, grad_x, stream=0):
    """A product of two matrices in rows: matmul_pipelined, float32 only."""
    _check_input(grad_out, weight, grad_x, FLOAT32)
    matmul_pipelined(grad_out, weight, grad_x, stream=stream)


@rung(kernel=tuple(make_pipelined(tile, element=BFLOAT16) for tile in PIPELINED_TILES), sizes=SIZES,
      idea="mma.sync: tiles in a pipeline of four stages")
def linear_backward_input_pipelined(grad_out, weight, grad_x, stream=0):
    """As tiled, on tensor cores, for elements of 16 bits."""
    element, *sizes = _check_input(grad_out, weight, grad_x, BFLOAT16, FLOAT16)
    _check_chunks(grad_out=grad_out, weight=weight, grad_x=grad_x)
    launch(make_pipelined(pipelined_tile(*sizes), element=element), grad_out, weight, None, None, grad_x, stream)


@rung(kernel=tuple(wgmma.make_wgmma_specialised(tile, weights=False, bias=False, activation=unchanged, element=BFLOAT16)
                   for tile in wgmma.TILES), sizes=SIZES, idea="wgmma reads the weight's rows as columns")
def linear_backward_input_wgmma(grad_out, weight, grad_x, stream=0):
    """As pipelined, on Hopper's tensor cores."""
    _check_input(grad_out, weight, grad_x, BFLOAT16, FLOAT16)
    wgmma.multiply_specialised(grad_out, weight, None, grad_x, weights=False, stream=stream)


def linear_backward_input(grad_out, weight, grad_x, stream=0):
    """grad_x = grad_out @ weight, by the rung to use for these arguments on this device."""
    element, *_ = _check_input(grad_out, weight, grad_x)
    pick = _pick(element, (linear_backward_input_naive, linear_backward_input_tiled, linear_backward_input_pipelined,
                           linear_backward_input_wgmma), grad_out, weight, grad_x)
    pick(grad_out, weight, grad_x, stream=stream)


def _pick(element: Element, rungs: tuple, *arrays):
    """Return the rung to use: on a GPU the fastest that it has, where rows are as its copies need them; on the CPU
    device a thread for each element."""
    naive, tiled, pipelined, specialised = rungs
    if not gpus.chosen_on_gpu():
        return naive
    if element is FLOAT32:
        return tiled
    if any(array.shape[1] % CHUNK for array in arrays) or not aligned(*arrays):
        return naive
    return next(one for one in (specialised, pipelined, naive) if not one.missing)


# --- The gradient of the weight: the first factor is transposed -------------------------------------------------------


@kernel_factory
def make_weight_naive(element: Element, out_element: Element, accumulate: bool):
    to_float, from_out, to_out = element.number, out_element.number, out_element.element

    @cuda.jit
    def linear_backward_weight_kernel(grad_out, x, grad_weight):
        i = u32.grid(1)
        if i < u32.size(grad_weight):
            cols = u32.shape(x)[1]
            row = i // cols
            col = i - row * cols
            total = from_out(grad_weight[row, col]) if accumulate else ZERO
            for t in u32.range(u32.shape(x)[0]):
                total += to_float(grad_out[t, row]) * to_float(x[t, col])
            grad_weight[row, col] = to_out(total)

    return linear_backward_weight_kernel


@rung(kernel=make_weight_naive(FLOAT32, FLOAT32, False), idea="one thread an element")
def linear_backward_weight_naive(grad_out, x, grad_weight, *, accumulate=False, workspace=None, stream=0):
    """One thread computes one element; neighbours read neighbouring inputs. It needs no workspace."""
    element, out_element, *_ = _check_weight(grad_out, x, grad_weight)
    kernel = make_weight_naive(element, out_element, accumulate)
    kernel[-(-grad_weight.size // BLOCK), BLOCK, stream](grad_out, x, grad_weight)


@kernel_factory
def make_weight_tiled(vec4: bool, accumulate: bool):
    """vec4: N and K are multiples of 4, and the matrices begin at multiples of 16 bytes. out is (splits, N, K)."""
    multiply = make_pipeline(make_copy_transposed_pair(vec4))

    @cuda.jit(device=True)
    def store(out, row, col, x, y, z, w):
        split, rows, cols = u32.blockIdx.z, u32.shape(out)[1], u32.shape(out)[2]
        four = x, y, z, w
        if row < rows:
            for i in range(4):
                if col + i < cols:
                    out[split, row, col + i] = four[i] + out[split, row, col + i] if accumulate else four[i]

    store_tile = make_store_tile(store, *quarters_apart(True))

    @cuda.jit(launch_bounds=(256, resident(2, 256, 4 * RING)))
    def linear_backward_weight_tiled_kernel(grad_out, x, out, rows_per_split):
        acc = cuda.local.array(64, float32)
        row0 = u32.blockIdx.y * BLOCK_TILE
        col0 = u32.blockIdx.x * BLOCK_TILE
        start = uint32(u32.blockIdx.z * rows_per_split)
        end = min(start + rows_per_split, u32.shape(x)[0])
        row, col = multiply(acc, grad_out, x, row0, col0, start, end)
        store_tile(acc, out, row0 + row, col0 + col)

    return linear_backward_weight_tiled_kernel


@rung(kernel=tuple(make_weight_tiled(vec4, False) for vec4 in (True, False)),
      idea="the product of float32 in tiles: both factors are copied as rows of one token; tokens split among blocks")
def linear_backward_weight_tiled(grad_out, x, grad_weight, *, accumulate=False, workspace=None, stream=0):
    """As naive, with the pipeline of matmul_pipelined, float32 only. A tile of the transposed factor is copied 16 bytes
    at a time, since its rows are those of grad_out. Where tiles are few, blocks share their tokens."""
    _, _, rows, cols, depth = _check_weight(grad_out, x, grad_weight, FLOAT32)
    _, splits = plan_splits(rows, cols, depth, (BLOCK_TILE, BLOCK_TILE), BLOCK_K, TILED_FLOPS)
    target = grad_weight if splits == 1 else partials_in(workspace, splits, grad_weight.size)
    vec4 = rows % 4 == 0 and cols % 4 == 0 and aligned(grad_out, x)
    kernel = make_weight_tiled(vec4, accumulate and splits == 1)
    rows_per_split = -(-depth // (splits * BLOCK_K)) * BLOCK_K
    arguments = grad_out, x, target.reshape(splits, rows, cols), *unsigned(rows_per_split)
    dynamic_shared(kernel, 4 * RING, *arguments)
    grid = *blocks_for((cols, rows), (BLOCK_TILE, BLOCK_TILE)), splits
    kernel[grid, 256, stream, 4 * RING](*arguments)
    if splits > 1:
        sum_partials(target.reshape(splits, 1, grad_weight.size), (flat(grad_weight),), accumulate, stream)


# The tiles whose rows, which lie along a row of grad_out, are a power of two: threads copy them in equal parts.
TRANSPOSED_TILES = tuple(tile for tile in PIPELINED_TILES if tile.rows == 128)


def best_form(forms: dict, step: int, rows: int, cols: int, tokens: int) -> tuple:
    """Return (tile, splits of the tokens), of these tiles, each with its flop a second, the one that is done first."""
    plans = {tile: plan_splits(rows, cols, tokens, (tile.rows, tile.cols), step, flops)
             for tile, flops in forms.items()}
    tile = min(plans, key=plans.get)
    return tile, plans[tile][1]


def _target(grad_weight, splits: int, accumulate: bool, workspace):
    """Return (the array that the kernel writes, whether a second launch has to add up partial sums): one split is
    stored at once, where float32 is to be added to or elements are to be overwritten."""
    if splits == 1 and (grad_weight.dtype == np.float32 or not accumulate):
        return grad_weight, False
    partials = partials_in(workspace, splits, grad_weight.size)
    return partials.reshape(splits * grad_weight.shape[0], grad_weight.shape[1]), True


def _launch_transposed(multiply, form, grad_out, x, grad_weight, accumulate, workspace, stream):
    """Launch multiply(grad_out, x, target, tile, splits, accumulate, stream), and sum_partials where it is needed."""
    tile, splits = form
    target, partial = _target(grad_weight, splits, accumulate, workspace)
    multiply(grad_out, x, target, tile, splits, accumulate and not partial, stream)
    if partial:
        sum_partials(target.reshape(splits, 1, grad_weight.size), (flat(grad_weight),), accumulate, stream)


def _multiply_pipelined(grad_out, x, target, tile, splits, accumulate, stream):
    kernel = make_pipelined(tile, element=ELEMENTS[np.dtype(x.dtype)], floats=target.dtype == np.float32,
                            transposed=True, accumulate=accumulate)
    arguments = grad_out, x, target, target, target
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    grid = tile.count(grad_out.shape[1], x.shape[1]), splits
    kernel[grid, tile.threads, stream, kernel.shared_bytes](*arguments)


@rung(kernel=tuple(make_pipelined(tile, element=BFLOAT16, transposed=True) for tile in TRANSPOSED_TILES), sizes=SIZES,
      idea="mma.sync: ldmatrix transposes both factors as it reads")
def linear_backward_weight_pipelined(grad_out, x, grad_weight, *, accumulate=False, workspace=None, stream=0):
    """As tiled, on tensor cores, for elements of 16 bits: both tiles are rows of tokens in shared memory."""
    _, _, *sizes = _check_weight(grad_out, x, grad_weight, BFLOAT16, FLOAT16)
    _check_chunks(grad_out=grad_out, x=x, grad_weight=grad_weight)
    tiles = usable(TRANSPOSED_TILES) if gpus.chosen_on_gpu() else TRANSPOSED_TILES[:1]
    form = best_form(dict.fromkeys(tiles, MMA_FLOPS), tiles[0].depth, *sizes)
    _launch_transposed(_multiply_pipelined, form, grad_out, x, grad_weight, accumulate, workspace, stream)


def _multiply_wgmma(grad_out, x, target, tile, splits, accumulate, stream):
    wgmma.multiply_transposed(grad_out, x, target, tile=tile, splits=splits, accumulate=accumulate, stream=stream)


@rung(kernel=tuple(wgmma.make_wgmma_specialised(tile, weights=False, bias=False, activation=unchanged, element=BFLOAT16,
                                                transposed=True) for tile in wgmma.TILES), sizes=SIZES,
      idea="wgmma transposes both factors as it reads")
def linear_backward_weight_wgmma(grad_out, x, grad_weight, *, accumulate=False, workspace=None, stream=0):
    """As pipelined, on Hopper's tensor cores: a flag of the instruction transposes a factor."""
    _, _, *sizes = _check_weight(grad_out, x, grad_weight, BFLOAT16, FLOAT16)
    _check_chunks(grad_out=grad_out, x=x, grad_weight=grad_weight)
    form = best_form(WGMMA_FORMS, DEPTH, *sizes)
    _launch_transposed(_multiply_wgmma, form, grad_out, x, grad_weight, accumulate, workspace, stream)


WEIGHT_RUNGS = (linear_backward_weight_naive, linear_backward_weight_tiled, linear_backward_weight_pipelined,
                linear_backward_weight_wgmma)


def linear_backward_weight(grad_out, x, grad_weight, *, accumulate=False, workspace=None, stream=0):
    """Compute grad_weight = grad_out.T @ x, or add it to grad_weight with accumulate=True, by the fastest rung for
    these arguments on this device. grad_weight: of the type of x, or float32. workspace: see linear_backward_workspace;
    without one, memory is allocated at each call that needs it."""
    element, *_ = _check_weight(grad_out, x, grad_weight)
    pick = _pick(element, WEIGHT_RUNGS, grad_out, x, grad_weight)
    pick(grad_out, x, grad_weight, accumulate=accumulate, workspace=workspace, stream=stream)


def linear_backward_workspace(tokens: int, out_features: int, in_features: int) -> int:
    """Return how many float32 elements of workspace serve the gradients of the weight and the bias of any type, one
    after the other."""
    sizes = out_features, in_features, tokens
    _, tiled = plan_splits(*sizes, (BLOCK_TILE, BLOCK_TILE), BLOCK_K, TILED_FLOPS)
    _, pipelined = best_form(dict.fromkeys(usable(TRANSPOSED_TILES), MMA_FLOPS), TRANSPOSED_TILES[0].depth, *sizes)
    _, specialised = best_form(WGMMA_FORMS, DEPTH, *sizes)
    return max(max(tiled, pipelined, specialised) * in_features, max_bias_splits(tokens)) * out_features


# --- The gradient of the bias -----------------------------------------------------------------------------------------


@kernel_factory
def make_bias_naive(element: Element, out_element: Element, accumulate: bool):
    to_float, from_out, to_out = element.number, out_element.number, out_element.element

    @cuda.jit
    def linear_backward_bias_kernel(grad_out, grad_bias):
        rows, cols = u32.shape(grad_out)
        col = u32.grid(1)
        if col < cols:
            total = from_out(grad_bias[col]) if accumulate else ZERO
            for row in u32.range(rows):
                total += to_float(grad_out[row, col])
            grad_bias[col] = to_out(total)

    return linear_backward_bias_kernel


@rung(kernel=make_bias_naive(FLOAT32, FLOAT32, False), idea="one thread a column")
def linear_backward_bias_naive(grad_out, grad_bias, *, accumulate=False, workspace=None, stream=0):
    """One thread adds up one column; neighbours read neighbours. It needs no workspace."""
    element, out_element = _check_bias(grad_out, grad_bias)
    kernel = make_bias_naive(element, out_element, accumulate)
    kernel[-(-grad_bias.size // BLOCK), BLOCK, stream](grad_out, grad_bias)


WARPS = BLOCK // 32
BLOCKS_PER_SM = 8
ROWS_PER_WARP = 4  # at least


@kernel_factory
def make_bias_split(element: Element):
    """A warp reads 512 bytes of a row; the eight warps of a block read every eighth row of a split."""
    PER_LOAD, WIDTH, SUMS = element.per_load, 32 * element.per_load, BLOCK * element.per_load
    load_chunk = make_load_chunk(element is not FLOAT32, element.unpack or ptx.unpack_half2)

    @cuda.jit
    def linear_backward_bias_split_kernel(grad_out, partials, rows_per_split):
        sums = cuda.shared.array(SUMS, float32)
        acc, values = cuda.local.array(PER_LOAD, float32), cuda.local.array(PER_LOAD, float32)
        rows, cols = u32.shape(grad_out)
        thread, col0 = u32.threadIdx.x, u32.blockIdx.x * WIDTH
        lane, warp = thread % 32, thread // 32
        col = col0 + lane * PER_LOAD
        start = uint32(u32.blockIdx.y * rows_per_split)
        end = min(start + rows_per_split, rows)
        for i in u32.range(PER_LOAD):
            acc[i] = ZERO
        if col < cols:
            for row in u32.range(start + warp, end, WARPS):
                load_chunk(values, 0, grad_out, row * cols + col)
                for i in u32.range(PER_LOAD):
                    acc[i] += values[i]
        for i in u32.range(PER_LOAD):
            sums[thread * PER_LOAD + i] = acc[i]
        cuda.syncthreads()  # the sums of all warps are in shared memory
        for i in u32.range(thread, WIDTH, BLOCK):
            total = ZERO
            for n in u32.range(WARPS):
                total += sums[n * WIDTH + i]
            if col0 + i < cols:
                partials[u32.blockIdx.y, col0 + i] = total

    return linear_backward_bias_split_kernel


def max_bias_splits(tokens: int) -> int:
    return max(1, min(BLOCKS_PER_SM * wgmma.block_count(), tokens // (WARPS * ROWS_PER_WARP), MAX_GRID_YZ))


@rung(kernel=make_bias_split(FLOAT32), idea="rows are split among warps and blocks; a second launch adds up",
      sizes="N a multiple of the elements in 16 bytes")
def linear_backward_bias_split(grad_out, grad_bias, *, accumulate=False, workspace=None, stream=0):
    """As naive, but a thread loads 16 bytes, and blocks share the rows of a column."""
    element, _ = _check_bias(grad_out, grad_bias)
    _check_chunks(grad_out=grad_out)
    rows, cols = grad_out.shape
    col_blocks = -(-cols // (32 * element.per_load))
    splits = min(max_bias_splits(rows), -(-BLOCKS_PER_SM * wgmma.block_count() // col_blocks))
    partials, rows_per_split = partials_in(workspace, splits, cols), -(-rows // splits)
    make_bias_split(element)[(col_blocks, splits), BLOCK, stream](grad_out, partials, *unsigned(rows_per_split))
    sum_partials(partials.reshape(splits, 1, cols), (grad_bias,), accumulate, stream)


def linear_backward_bias(grad_out, grad_bias, *, accumulate=False, workspace=None, stream=0):
    """Compute grad_bias, the column sums of grad_out, or add them to grad_bias with accumulate=True. grad_bias: of the
    type of grad_out, or float32. workspace: as for linear_backward_weight."""
    element, _ = _check_bias(grad_out, grad_bias)
    split = gpus.chosen_on_gpu() and grad_out.shape[1] % element.per_load == 0 and aligned(grad_out)
    pick = linear_backward_bias_split if split else linear_backward_bias_naive
    pick(grad_out, grad_bias, accumulate=accumulate, workspace=workspace, stream=stream)


# --- Checks -----------------------------------------------------------------------------------------------------------


def _check_element(name: str, array, allowed: tuple) -> Element:
    element = element_of(name, array)
    if allowed and element not in allowed:
        raise TypeError(f"{name} has dtype {array.dtype}; this form allows "
                        f"{' and '.join(one.dtype.name for one in allowed)} only (uint16 holds bfloat16)")
    return element


def _check_gradient(name: str, array, shape: tuple, element: Element) -> Element:
    """Return the element of a gradient that may be float32."""
    check_array(name, array, shape=shape,
                dtype=np.float32 if getattr(array, "dtype", None) == np.float32 else element.dtype)
    return ELEMENTS[np.dtype(array.dtype)]


def _check_input(grad_out, weight, grad_x, *allowed: Element) -> tuple:
    """Return (element, rows, columns and depth of the product), or raise an error that names the argument."""
    element = _check_element("grad_out", grad_out, allowed)
    rows, cols, depth = product_sizes(grad_out, weight, names=("grad_out", "weight"), dtype=element.dtype)
    check_array("grad_x", grad_x, shape=(rows, cols), dtype=element.dtype)
    return element, rows, cols, depth


def _check_weight(grad_out, x, grad_weight, *allowed: Element) -> tuple:
    """Return (element, that of the gradient, rows, columns and depth of the product), or raise an error."""
    element = _check_element("x", x, allowed)
    check_array("x", x, ndim=2, dtype=element.dtype)
    check_array("grad_out", grad_out, ndim=2, dtype=element.dtype)
    (tokens, cols), rows = x.shape, grad_out.shape[1]
    check_array("grad_out", grad_out, shape=(tokens, rows), dtype=element.dtype)
    return element, _check_gradient("grad_weight", grad_weight, (rows, cols), element), rows, cols, tokens


def _check_bias(grad_out, grad_bias) -> tuple:
    """Return the elements of grad_out and of grad_bias, or raise an error."""
    element = element_of("grad_out", grad_out)
    check_array("grad_out", grad_out, ndim=2, dtype=element.dtype)
    return element, _check_gradient("grad_bias", grad_bias, grad_out.shape[1:], element)


def _check_chunks(**arrays) -> None:
    """Raise an error unless rows begin at multiples of 16 bytes."""
    for name, array in arrays.items():
        per_load = 16 // np.dtype(array.dtype).itemsize
        if array.shape[1] % per_load:
            raise ValueError(f"{name} has {array.shape[1]} columns; it must be a multiple of {per_load}, so that every "
                             f"row begins at a multiple of 16 bytes")
        if not aligned(array):
            raise ValueError(f"{name} must begin at a multiple of 16 bytes; it is a view that does not")
