"""Penalties for tokens that already occur in a row's text, as vLLM and transformers define them, in this order. Of the
tokens of prompt and output, repetition divides the logits above 0 and multiplies the others; 1 is off. frequency is
subtracted once for each occurrence of the token in the output, presence once if it occurs there; 0 is off.

Shapes  logits, out (R, V) float32; repetition, frequency, presence (R,) float32; slots (R,) int32: a row's index in the
        table, -1 for a row without penalties, which is left unchanged. table (S, V) uint32, for S requests with
        penalties at once: a token's count in the output, and in the highest bit whether it occurs in the prompt. So its
        memory, 0.5 MB a slot for 128,256 tokens, does not grow with the text; `count_tokens` counts what was drawn
Work    4*R*V bytes of the table; 8*R*V more where out is another array than logits
Source  vLLM, `apply_penalties`; N. Keskar et al., "CTRL" (2019), section 4.1, for repetition
"""

import numpy as np
from numba import float32, int32, uint32

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.arguments import MAX_GRID_YZ, aligned, blocks_for, check_array
from labkit.kernels.op import rung

BLOCK = 256
IN_PROMPT = uint32(0x80000000)
ZERO = float32(0.0)


def penalise_reference(logits, table, slots, repetition, frequency, presence):
    result = logits.astype(np.float64)
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        occurred, count = table[slot] != 0, (table[slot] & 0x7FFFFFFF).astype(np.float64)
        x = result[row]
        with np.errstate(invalid="ignore"):
            x = np.where(occurred, np.where(x > 0, x / float(repetition[row]), x * float(repetition[row])), x)
        result[row] = x - float(frequency[row]) * count - float(presence[row]) * (count > 0)
    return result


def prompt_row(prompt, vocabulary: int) -> np.ndarray:
    """The table's row of a new request: its prompt, and no output. After a preemption, np.add.at(row, outputs, 1) adds
    the `outputs`."""
    row = np.zeros(vocabulary, np.uint32)
    row[np.asarray(prompt, np.int64)] = IN_PROMPT
    return row


@cuda.jit(device=True)
def penalised(x, word, repetition, frequency, presence):
    """Return the logit of a token that has this word in the table."""
    count = uint32(word & ~IN_PROMPT)
    result = x / repetition if x > ZERO else x * repetition
    # fma: the same roundings on every device, and so the same token
    result = cuda.fma(-frequency, float32(count), result)
    if count != 0:
        result -= presence
    return result if word != 0 else x


@cuda.jit
def penalise_kernel(logits, table, slots, repetition, frequency, presence, out, in_place):
    col, row = u32.grid(1), u32.blockIdx.y
    if col < logits.shape[1]:
        slot, word = slots[row], 0
        if slot >= int32(0):
            word = table[uint32(slot), col]
        if word != 0 or not in_place:
            out[row, col] = penalised(logits[row, col], word, repetition[row], frequency[row], presence[row])


@cuda.jit
def penalise_vectorized_kernel(logits, table, slots, repetition, frequency, presence, out, in_place):
    col, row = 4 * u32.grid(1), u32.blockIdx.y
    cols = u32.shape(logits)[1]
    if col < cols:
        slot, i = slots[row], row * cols + col
        word0, word1, word2, word3 = 0, 0, 0, 0
        if slot >= int32(0):
            word0, word1, word2, word3 = ptx.load_nc4(table, uint32(slot) * cols + col)
        if (word0 | word1 | word2 | word3) != 0 or not in_place:
            a, b, c, d = ptx.load_global4(logits, i)  # not load_nc4: in place, logits are written in this kernel
            penalties = repetition[row], frequency[row], presence[row]
            ptx.store_global4(out, i, penalised(a, word0, *penalties), penalised(b, word1, *penalties),
                              penalised(c, word2, *penalties), penalised(d, word3, *penalties))


@rung(kernel=(penalise_vectorized_kernel, penalise_kernel),
      idea="a thread for every four logits; in place, four that were not seen are not touched")
def penalise(logits, table, slots, repetition, frequency, presence, out, stream=0):
    """out may be logits. Where rows are not multiples of 16 bytes, or a view is not aligned, a thread has one logit."""
    check_array("logits", logits, ndim=2)
    rows, cols = logits.shape
    check_array("table", table, ndim=2, dtype=np.uint32)
    if table.shape[1] != cols:
        raise ValueError(f"table has rows of {table.shape[1]:,} tokens; the logits have {cols:,}")
    check_array("slots", slots, shape=(rows,), dtype=np.int32)
    for name, array in (("repetition", repetition), ("frequency", frequency), ("presence", presence)):
        check_array(name, array, shape=(rows,))
    check_array("out", out, shape=(rows, cols))
    if rows > MAX_GRID_YZ:
        raise ValueError(f"logits has {rows:,} rows; at most {MAX_GRID_YZ:,} are allowed")
    wide = cols % 4 == 0 and aligned(logits, table, out)
    kernel = penalise_vectorized_kernel if wide else penalise_kernel
    grid = blocks_for((cols // 4 if wide else cols, rows), (BLOCK, 1))
    kernel[grid, BLOCK, stream](logits, table, slots, repetition, frequency, presence, out, np.uint32(out is logits))


@cuda.jit
def count_tokens_kernel(table, slots, tokens):
    row = u32.grid(1)
    if row < tokens.shape[0]:
        slot, token = slots[row], tokens[row]
        if slot >= int32(0) and token >= int32(0):
            table[uint32(slot), uint32(token)] += uint32(1)


def count_tokens(table, slots, tokens, stream=0):
    """Count each row's token in its row of the table, as part of its output. No two rows share a slot."""
    check_array("table", table, ndim=2, dtype=np.uint32)
    check_array("tokens", tokens, ndim=1, dtype=np.int32)
    check_array("slots", slots, shape=tokens.shape, dtype=np.int32)
    count_tokens_kernel[-(-tokens.shape[0] // BLOCK), BLOCK, stream](table, slots, tokens)
