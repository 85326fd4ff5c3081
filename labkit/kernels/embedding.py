"""Embedding: the first layer of GPT-2. out[t] = tokens[ids[t]] + positions[start + t], two rows gathered and added.
And of Llama, which encodes positions in its attention: out[t] = tokens[ids[t]].

Shapes  ids (T,) int32, tokens (V, C), positions (P, C), start (1,) int32, out (T, C); float32, C-contiguous; any sizes
        token_embedding: tokens and out both float32, float16, or bfloat16 (uint16); ids int32 or uint32
Work    T*C additions; 12*T*C bytes: two rows read, one written. token_embedding: 8*T*C bytes, 4*T*C of 16-bit elements
Source  A. Radford et al., "Language Models are Unsupervised Multitask Learners" (2019)

start, the number of tokens before these, is in device memory, so that a captured graph can be launched again for the
next token. An id or a position that is out of range gives a row of NaN: a launcher cannot read device memory
without a synchronisation.
"""

import numpy as np
from numba import float32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.device.lazy import kernel_factory
from labkit.kernels.arguments import aligned, blocks_for, check_array, check_block
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32, Element, element_of
from labkit.kernels.op import rung
from labkit.kernels.wrapping import wrapping_add

BLOCK = 256
NAN = float32(np.nan)


def embedding_reference(ids, tokens, positions, start):
    pos = np.arange(len(ids)) + int(start[0])
    valid = (ids >= 0) & (ids < len(tokens)) & (pos >= 0) & (pos < len(positions))
    rows = tokens[np.where(valid, ids, 0)] + positions[np.where(valid, pos, 0)]  # in float32: one rounding
    return np.where(valid[:, None], rows, np.float32(np.nan))


@cuda.jit(device=True)
def embedding_element(ids, tokens, positions, start, t, col):
    """One element of row t; NaN where there is no such token or position."""
    token, position = uint32(ids[t]), wrapping_add(uint32(start[0]), t)  # negatives become huge
    if token < u32.shape(tokens)[0] and position < u32.shape(positions)[0]:
        return tokens[token, col] + positions[position, col]
    return NAN


@cuda.jit
def embedding_whole_row_kernel(ids, tokens, positions, start, out):
    t, col = u32.blockIdx.x, u32.threadIdx.x
    out[t, col] = embedding_element(ids, tokens, positions, start, t, col)


@rung(kernel=embedding_whole_row_kernel, idea="one block a token, one thread a column",
      sizes="rows of at most 1,024 columns")
def embedding_whole_row(ids, tokens, positions, start, out, stream=0):
    """One block gathers one row, with a thread for each column: 768 for GPT-2. A model 2,048 wide would need a block of
    2,048 threads, and CUDA refuses to launch that."""
    rows, columns = _check(ids, tokens, positions, start, out)
    check_block("block", (columns,))
    embedding_whole_row_kernel[rows, columns, stream](ids, tokens, positions, start, out)


@cuda.jit
def embedding_strided_kernel(ids, tokens, positions, start, out):
    t = u32.blockIdx.x
    columns = u32.shape(out)[1]
    for col in u32.range(u32.threadIdx.x, columns, BLOCK):
        out[t, col] = embedding_element(ids, tokens, positions, start, t, col)


@rung(kernel=embedding_strided_kernel, idea="one block a token, 256 threads walk along the row")
def embedding_strided(ids, tokens, positions, start, out, stream=0):
    """As whole_row, but the block always has 256 threads and each takes every 256th column: any width."""
    rows, _ = _check(ids, tokens, positions, start, out)
    embedding_strided_kernel[rows, BLOCK, stream](ids, tokens, positions, start, out)


@cuda.jit
def embedding_vectorized_kernel(ids, tokens, positions, start, out):
    i = 4 * u32.grid(1)  # in out; rows are a multiple of four long
    if i < u32.size(out):
        columns = u32.shape(out)[1]
        t, col = i // columns, i % columns
        token, position = uint32(ids[t]), wrapping_add(uint32(start[0]), t)
        if token < u32.shape(tokens)[0] and position < u32.shape(positions)[0]:
            a, b, c, d = ptx.load_nc4(tokens, token * columns + col)
            e, f, g, h = ptx.load_nc4(positions, position * columns + col)
            ptx.store_global4(out, i, a + e, b + f, c + g, d + h)
        else:
            ptx.store_global4(out, i, NAN, NAN, NAN, NAN)


@rung(kernel=(embedding_vectorized_kernel, embedding_strided_kernel),
      idea="four columns a thread in one load, all rows in one line")
def embedding_vectorized(ids, tokens, positions, start, out, stream=0):
    """As strided, but a thread takes four neighbours, 128 bits at a time, and blocks do not end with a row. Rows that
    are no multiple of four, and views that do not begin at a multiple of 16 bytes, take the strided kernel."""
    rows, columns = _check(ids, tokens, positions, start, out)
    if columns % 4 or not aligned(tokens, positions, out):
        embedding_strided(ids, tokens, positions, start, out, stream=stream)
        return
    grid = blocks_for((rows * columns // 4,), (BLOCK,))
    embedding_vectorized_kernel[grid, BLOCK, stream](ids, tokens, positions, start, out)


def _check(ids, tokens, positions, start, out) -> tuple:
    check_array("ids", ids, ndim=1, dtype=np.int32)
    check_array("tokens", tokens, ndim=2)
    check_array("positions", positions, ndim=2)
    check_array("start", start, shape=(1,), dtype=np.int32)
    if positions.shape[1] != tokens.shape[1]:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)} and positions {tuple(positions.shape)}; "
                         f"they must have as many columns")
    check_array("out", out, shape=(ids.shape[0], tokens.shape[1]))
    return out.shape


# --- Tokens alone: Llama ----------------------------------------------------------------------------------------------

NANS = {FLOAT32: NAN, FLOAT16: NAN, BFLOAT16: np.uint16(0x7FC0)}
NAN_WORDS = {FLOAT32: NAN, FLOAT16: uint32(0x7E007E00), BFLOAT16: uint32(0x7FC07FC0)}  # 32 bits: one element, or two


def token_embedding_reference(ids, tokens):
    valid = (ids >= 0) & (ids < len(tokens))
    return np.where(valid[:, None], float64_of(tokens[np.where(valid, ids, 0)]), np.nan)


@kernel_factory
def make_token_embedding_strided(element: Element):
    NAN_VALUE = NANS[element]

    @cuda.jit
    def token_embedding_strided_kernel(ids, tokens, out):
        t = u32.blockIdx.x
        columns, token = u32.shape(out)[1], uint32(ids[t])  # negatives become huge
        valid = token < u32.shape(tokens)[0]
        for col in u32.range(u32.threadIdx.x, columns, BLOCK):
            out[t, col] = tokens[token, col] if valid else NAN_VALUE

    return token_embedding_strided_kernel


@rung(kernel=make_token_embedding_strided(BFLOAT16), idea="one block a token, 256 threads walk along the row")
def token_embedding_strided(ids, tokens, out, stream=0):
    """One block copies one row, element by element. Any width."""
    element = _check_tokens(ids, tokens, out)
    make_token_embedding_strided(element)[ids.shape[0], BLOCK, stream](ids, tokens, out)


@kernel_factory
def make_token_embedding(element: Element):
    VEC, NAN_VALUE = element.per_load, NAN_WORDS[element]

    @cuda.jit
    def token_embedding_vectorized_kernel(ids, tokens, out):
        i = VEC * u32.grid(1)  # in out; rows are a multiple of VEC long
        if i < u32.size(out):
            columns = u32.shape(out)[1]
            token = uint32(ids[i // columns])
            a, b, c, d = NAN_VALUE, NAN_VALUE, NAN_VALUE, NAN_VALUE
            if token < u32.shape(tokens)[0]:
                a, b, c, d = ptx.load_nc4(tokens, token * columns + i % columns)
            ptx.store_global4(out, i, a, b, c, d)

    return token_embedding_vectorized_kernel


@rung(kernel=(make_token_embedding(BFLOAT16), make_token_embedding_strided(BFLOAT16)),
      idea="128 bits a thread, all rows in one line")
def token_embedding_vectorized(ids, tokens, out, stream=0):
    """As strided, but a thread copies 128 bits, as they are, and blocks do not end with a row. Rows that are no
    multiple of 128 bits, and views that do not begin at a multiple of 16 bytes, take the strided kernel."""
    token_embedding(ids, tokens, out, stream=stream)


def token_embedding(ids, tokens, out, stream=0):
    """The launcher to use: token_embedding_vectorized. An id that is out of range gives a row of NaN."""
    element = _check_tokens(ids, tokens, out)
    rows, columns = out.shape
    vec = element.per_load
    if columns % vec or not aligned(tokens, out):
        token_embedding_strided(ids, tokens, out, stream=stream)
        return
    threads = rows * columns // vec
    block = min(BLOCK, -(-threads // 32) * 32)
    make_token_embedding(element)[blocks_for((threads,), (block,)), block, stream](ids, tokens, out)


def _check_tokens(ids, tokens, out) -> Element:
    element = element_of("tokens", tokens)
    check_array("ids", ids, ndim=1, dtype=np.uint32 if getattr(ids, "dtype", None) == np.uint32 else np.int32)
    check_array("tokens", tokens, ndim=2, dtype=element.dtype)
    check_array("out", out, shape=(ids.shape[0], tokens.shape[1]), dtype=element.dtype)
    return element
