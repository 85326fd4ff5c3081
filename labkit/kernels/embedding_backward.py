"""The gradients of the embeddings: rows of dout added up by token, and by position.

Shapes  ids (T,) int32, dout (T, C): float32, float16, or uint16, which holds bfloat16; dtokens (V, C) float32, or
        dout's type. dpositions (S, C), as dtokens, of dout (B*S, C): B sequences of S tokens. C-contiguous
Work    T*C additions; dout is read once, and the rows of dtokens that occur are written once
Source  llm.c, `encoder_backward`, https://github.com/karpathy/llm.c

Without atomics: the block of a token's first occurrence finds all others and adds up their rows in a fixed order, so
that every run gives the same bits. It reads the ids, T*T*4 bytes in all, from the cache: 268 MB for 8,192 tokens. An
id outside the vocabulary is left out, as is a row of padding whose id is below 0.
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import blocks_for, check_array, unsigned
from labkit.kernels.dtypes import float64_of
from labkit.kernels.eights import ACCESS, in_eights
from labkit.kernels.elements import BFLOAT16, FLOAT32, Element, element_of
from labkit.kernels.norm.rows import flat
from labkit.kernels.op import rung

BLOCK, WARPS = 256, 8
TILE = 256  # columns of a block: eight a lane
ALL_LANES = 0xFFFFFFFF
ZERO = float32(0.0)


def token_embedding_backward_reference(ids, dout, vocabulary: int):
    dtokens = np.zeros((vocabulary, dout.shape[1]))
    valid = (ids >= 0) & (ids < vocabulary)
    np.add.at(dtokens, ids[valid], float64_of(dout)[valid])
    return dtokens


# --- One thread for an element of dtokens -----------------------------------------------------------------------------


@kernel_factory
def make_embedding_backward_naive(element: Element, grad: Element, accumulate: bool):
    load, load_grad, store_grad = ACCESS[element].load, ACCESS[grad].load, ACCESS[grad].store

    @cuda.jit
    def embedding_backward_naive_kernel(ids, dout, dtokens, columns):  # dout and dtokens are flat, here and below
        i = u32.grid(1)
        if i < dtokens.size:
            token, col = int32(i // columns), i % columns
            total = load_grad(dtokens, i) if accumulate else ZERO
            for t in u32.range(u32.size(ids)):
                if ids[t] == token:
                    total += load(dout, t * columns + col)
            store_grad(dtokens, i, total)

    return embedding_backward_naive_kernel


@rung(kernel=make_embedding_backward_naive(FLOAT32, FLOAT32, False), idea="one thread an element, all ids read by each")
def token_embedding_backward_naive(ids, dout, dtokens, accumulate=False, stream=0):
    """One thread goes through all ids for one element of dtokens: V*C*T comparisons."""
    element, grad = _check(ids, dout, dtokens)
    kernel = make_embedding_backward_naive(element, grad, accumulate)
    grid = blocks_for((dtokens.size,), (BLOCK,))
    kernel[grid, BLOCK, stream](ids, flat(dout), flat(dtokens), *unsigned(dout.shape[1]))


# --- One block for a token that occurs --------------------------------------------------------------------------------


@kernel_factory
def make_fill_zero(grad: Element):
    store = ACCESS[grad].store

    @cuda.jit
    def fill_zero_kernel(out):
        for i in u32.range(u32.grid(1), u32.size(out), u32.gridsize(1)):
            store(out, i, ZERO)

    return fill_zero_kernel


@kernel_factory
def make_embedding_backward(element: Element, grad: Element, vectorized: bool):
    """vectorized: rows are multiples of eight, aligned to 16 bytes."""
    (load, _), load_grad, store_grad = ACCESS[element].neighbours(vectorized), ACCESS[grad].load, ACCESS[grad].store

    @cuda.jit(launch_bounds=BLOCK)
    def embedding_backward_by_token_kernel(ids, dout, dtokens, vocabulary, columns):
        """Add the rows of dout whose id is that of row blockIdx.x, unless an earlier row has it."""
        sums, earlier = cuda.shared.array((WARPS, TILE), float32), cuda.shared.array(WARPS, uint32)
        row, thread, count = u32.blockIdx.x, u32.threadIdx.x, u32.size(ids)
        lane, warp, token = thread & 31, thread >> 5, ids[row]
        found = False
        for t in u32.range(thread, row, BLOCK):
            found |= ids[t] == token
        mask = uint32(cuda.ballot_sync(ALL_LANES, found))
        if lane == 0:
            earlier[warp] = mask
        cuda.syncthreads()
        mask = uint32(0)
        for w in u32.range(WARPS):
            mask |= earlier[w]
        if mask == 0 and uint32(token) < vocabulary:  # the same for the whole block
            col = TILE * u32.blockIdx.y + 8 * lane
            remaining = int32(columns) - int32(col)
            v, total = cuda.local.array(8, float32), cuda.local.array(8, float32)
            for e in range(8):
                total[e] = ZERO
            for base in u32.range(row + 32 * warp, count, BLOCK):  # a warp has every eighth group of 32 ids
                t = base + lane
                matches = uint32(cuda.ballot_sync(ALL_LANES, t < count and ids[min(t, count - 1)] == token))
                while matches != 0:
                    match = uint32(cuda.ffs(matches)) - 1
                    load(v, 0, dout, (base + match) * columns + col, remaining)
                    for e in range(8):
                        total[e] += v[e]
                    matches &= matches - 1
            for e in u32.range(8):
                sums[warp, 32 * e + lane] = total[e]
            cuda.syncthreads()
            # Thread i adds up column 8 * (i % 32) + i / 32 of the tile.
            col = TILE * u32.blockIdx.y + 8 * lane + warp
            if col < columns:
                i = uint32(token) * columns + col
                result = load_grad(dtokens, i)
                for w in u32.range(WARPS):
                    result += sums[w, thread]
                store_grad(dtokens, i, result)

    return embedding_backward_by_token_kernel


@rung(kernel=(make_fill_zero(FLOAT32), make_embedding_backward(FLOAT32, FLOAT32, True)),
      idea="one block a token: the first occurrence adds up all of its rows")
def token_embedding_backward_by_token(ids, dout, dtokens, accumulate=False, stream=0):
    """A block for each row of dout and 256 columns. It looks for its id among the earlier ones and ends if it is there;
    otherwise its eight warps share the later ids, add up the rows that match, and one sum over the warps follows."""
    token_embedding_backward(ids, dout, dtokens, accumulate=accumulate, stream=stream)


def token_embedding_backward(ids, dout, dtokens, accumulate=False, stream=0):
    """The launcher to use: token_embedding_backward_by_token. accumulate: add to dtokens; otherwise all of it is
    overwritten."""
    element, grad = _check(ids, dout, dtokens)
    rows, columns = dout.shape
    if not accumulate:
        make_fill_zero(grad)[min(4096, -(-dtokens.size // BLOCK)), BLOCK, stream](flat(dtokens))
    kernel = make_embedding_backward(element, grad, in_eights(columns, dout))
    kernel[(rows, -(-columns // TILE)), BLOCK, stream](ids, flat(dout), flat(dtokens),
                                                       *unsigned(dtokens.shape[0], columns))


def _check(ids, dout, dtokens) -> tuple[Element, Element]:
    element, grad = element_of("dout", dout), element_of("dtokens", dtokens)
    check_array("dout", dout, ndim=2, dtype=element.dtype)
    check_array("ids", ids, shape=dout.shape[:1], dtype=np.int32)
    if grad not in (element, FLOAT32):
        raise TypeError(f"dtokens has dtype {dtokens.dtype}; float32 and dout's {element.dtype.name} are allowed")
    check_array("dtokens", dtokens, ndim=2, dtype=grad.dtype)
    if dtokens.shape[1] != dout.shape[1]:
        raise ValueError(f"dtokens has {dtokens.shape[1]:,} columns; it must have as many as dout, {dout.shape[1]:,}")
    return element, grad


# --- Positions --------------------------------------------------------------------------------------------------------


def position_embedding_backward_reference(dout, positions: int):
    return float64_of(dout).reshape(-1, positions, dout.shape[1]).sum(axis=0)


@kernel_factory
def make_position_backward(element: Element, grad: Element, accumulate: bool):
    load, load_grad, store_grad = ACCESS[element].load, ACCESS[grad].load, ACCESS[grad].store

    @cuda.jit
    def position_embedding_backward_kernel(dout, dpositions):
        i, size = u32.grid(1), u32.size(dpositions)
        if i < size:
            total = load_grad(dpositions, i) if accumulate else ZERO
            for j in u32.range(i, u32.size(dout), size):
                total += load(dout, j)
            store_grad(dpositions, i, total)

    return position_embedding_backward_kernel


@rung(kernel=make_position_backward(BFLOAT16, FLOAT32, False), idea="one thread an element, a sequence after the other")
def position_embedding_backward(dout, dpositions, accumulate=False, stream=0):
    """One thread adds up one element of all sequences: neighbours read neighbours."""
    element, grad = element_of("dout", dout), element_of("dpositions", dpositions)
    check_array("dout", dout, ndim=2, dtype=element.dtype)
    if grad not in (element, FLOAT32):
        raise TypeError(f"dpositions has dtype {dpositions.dtype}; float32 and dout's {element.dtype.name} are allowed")
    check_array("dpositions", dpositions, ndim=2, dtype=grad.dtype)
    (rows, columns), (length, width) = dout.shape, dpositions.shape
    if width != columns or rows % length:
        raise ValueError(f"dpositions has shape {tuple(dpositions.shape)} and dout {tuple(dout.shape)}; they must have "
                         f"as many columns, and dout a whole number of sequences")
    kernel = make_position_backward(element, grad, accumulate)
    kernel[blocks_for((dpositions.size,), (BLOCK,)), BLOCK, stream](flat(dout), flat(dpositions))
