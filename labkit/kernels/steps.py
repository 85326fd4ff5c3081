"""The engine's work around a model's step, without waiting for the host: tokens go from step to step on the device,
shared pages are copied before they are written, and banned tokens are masked.

Shapes  ids (T,) int32; tokens, seats (B,) int32; last (seats,) int32; memory (layers, pages, elements) of any type;
        copies (n, 2) int32; logits (B, V) float32; banned (n, 2), conditions (n, 4), slots (B,) int32;
        biases (S, V) float32; C-contiguous
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.kernels.arguments import check_array

BLOCK = 256
NEG_INF = float32(-np.inf)


@cuda.jit
def fill_ids_kernel(ids, last):
    row = u32.grid(1)
    if row < ids.shape[0] and ids[row] < int32(0):
        ids[row] = last[uint32(int32(-1) - ids[row])]


def fill_ids(ids, last, stream=0):
    """ids[t] = last[-1 - ids[t]] where ids[t] is below 0: the token that a seat's sequence sampled last."""
    check_array("ids", ids, ndim=1, dtype=np.int32)
    check_array("last", last, ndim=1, dtype=np.int32)
    fill_ids_kernel[-(-ids.shape[0] // BLOCK), BLOCK, stream](ids, last)


@cuda.jit
def keep_tokens_kernel(tokens, seats, last):
    row = u32.grid(1)
    if row < tokens.shape[0]:
        last[uint32(seats[row])] = max(tokens[row], int32(0))  # below 0 is an error, which the host raises later


def keep_tokens(tokens, seats, last, stream=0):
    """last[seats[b]] = tokens[b], for the next step. Only padding rows share a seat: any of them may win."""
    check_array("tokens", tokens, ndim=1, dtype=np.int32)
    check_array("seats", seats, shape=tokens.shape, dtype=np.int32)
    check_array("last", last, ndim=1, dtype=np.int32)
    keep_tokens_kernel[-(-tokens.shape[0] // BLOCK), BLOCK, stream](tokens, seats, last)


@cuda.jit
def copy_pages_kernel(memory, copies):
    i, layer = u32.grid(1), u32.blockIdx.y
    if i < memory.shape[2]:
        # One thread for an element of all pages: a destination may be the source of a later copy.
        for step in u32.range(copies.shape[0]):
            copy = step
            memory[layer, uint32(copies[copy, 1]), i] = memory[layer, uint32(copies[copy, 0]), i]


def copy_pages(memory, copies, stream=0):
    """memory[:, to] = memory[:, from] for each (from, to) of copies, one after the other."""
    # All layers of a large cache have more than 2**31 elements; an index of three axes is computed in 64 bits.
    check_array("memory", memory, ndim=3, dtype=memory.dtype, most=2**48)
    check_array("copies", copies, ndim=2, dtype=np.int32)
    layers, _, elements = memory.shape
    copy_pages_kernel[(-(-elements // BLOCK), layers), BLOCK, stream](memory, copies)


@cuda.jit
def ban_tokens_kernel(logits, banned):
    i = u32.grid(1)
    if i < banned.shape[0]:
        token = uint32(banned[i, 1])
        if token < logits.shape[1]:
            logits[uint32(banned[i, 0]), token] = NEG_INF


def ban_tokens(logits, banned, stream=0):
    """logits[row, token] = -inf for each (row, token) of banned; a token outside the vocabulary is ignored."""
    check_array("logits", logits, ndim=2)
    check_array("banned", banned, shape=(banned.shape[0], 2), dtype=np.int32)
    ban_tokens_kernel[-(-banned.shape[0] // BLOCK), BLOCK, stream](logits, banned)


@cuda.jit
def ban_tokens_after_kernel(logits, conditions, last):
    i = u32.grid(1)
    if i < conditions.shape[0] and last[uint32(conditions[i, 1])] == conditions[i, 2]:
        token = uint32(conditions[i, 3])
        if token < logits.shape[1]:
            logits[uint32(conditions[i, 0]), token] = NEG_INF


def ban_tokens_after(logits, conditions, last, stream=0):
    """logits[row, token] = -inf for each (row, seat, before, token) of conditions with last[seat] == before; a token
    outside the vocabulary is ignored."""
    check_array("logits", logits, ndim=2)
    check_array("conditions", conditions, shape=(conditions.shape[0], 4), dtype=np.int32)
    check_array("last", last, ndim=1, dtype=np.int32)
    ban_tokens_after_kernel[-(-conditions.shape[0] // BLOCK), BLOCK, stream](logits, conditions, last)


@cuda.jit
def add_biases_kernel(logits, biases, slots):
    col, row = u32.grid(1), u32.blockIdx.y
    if col < logits.shape[1]:
        slot = uint32(slots[row])  # negatives become larger than any slot
        if slot < biases.shape[0]:
            logits[row, col] += biases[slot, col]


def add_biases(logits, biases, slots, stream=0):
    """logits[row] += biases[slots[row]] where biases have that slot; -1 is none. A bias of -inf forbids a token."""
    check_array("logits", logits, ndim=2)
    check_array("biases", biases, shape=(biases.shape[0], logits.shape[1]))
    check_array("slots", slots, shape=(logits.shape[0],), dtype=np.int32)
    add_biases_kernel[(-(-logits.shape[1] // BLOCK), logits.shape[0]), BLOCK, stream](logits, biases, slots)
