"""Attention over sentences, as an encoder has it: every token of a sentence sees all of its tokens, and no others.

Shapes  qkv (T, 3*H*D): in each row the queries of all heads, then their keys, then their values; out (T, H*D); float32
        or float16. begins, lengths (B,) int32 in device memory: a sentence is the rows begins[b] to begins[b] +
        lengths[b] - 1, in a padded batch or a packed one. longest: no length is larger; it sets the grid. A sentence
        beyond `longest` or the last row comes out as NaN; rows of no sentence are neither read nor written
Work    4*H*D flop and H exponentials for each pair of tokens of a sentence; 16*H*D bytes a token, in float16 8*H*D. By
        count, 64 sentences of 128 tokens, H = 12, D = 32, float16, are 3.4 us of exponentials on an H200: 5 to 8 in all
Source  A. Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762
"""

import numpy as np

from labkit.kernels.attention.sentences_flash import attention_sentences_flash, attention_sentences_flash_half
from labkit.kernels.attention.three_pass import attention_reference


def _of_each_sentence(compute, qkv, heads, begins, lengths):
    """Call compute(rows of qkv, heads) for each sentence and put the results into its rows; the others are NaN."""
    out = np.full((len(qkv), qkv.shape[1] // 3), np.nan)
    for begin, length in zip(begins.astype(int), lengths.astype(int), strict=True):
        if length:
            out[begin : begin + length] = compute(qkv[begin : begin + length], heads)
    return out


def attention_sentences_reference(qkv, heads, begins, lengths, longest):
    return _of_each_sentence(attention_reference, qkv, heads, begins, lengths)


def attention_sentences(qkv, heads, begins, lengths, longest, out, *, stream=0):
    """The rung to use, for float16 or float32. On the CPU device too: there the tiled kernels are the fastest."""
    launch = attention_sentences_flash_half if np.dtype(qkv.dtype) == np.float16 else attention_sentences_flash
    launch(qkv, heads, begins, lengths, longest, out, stream=stream)
