"""Attention over sentences, as an encoder has it: every token of a sentence sees all of its tokens, and no others.

    out[t, h] = sum over the tokens j of t's sentence of softmax_j(q[t, h] . k[j, h] / sqrt(D)) * v[j, h]

Shapes  qkv (T, 3*H*D): in each row the queries of all heads, then their keys, then their values; out (T, H*D); float32
        or float16. begins, lengths (B,) int32 in device memory: a sentence is the rows begins[b] to begins[b] +
        lengths[b] - 1; a length may be 0. longest: no length is larger; it sets the grid
Work    4*H*D flop and H exponentials for each pair of tokens of a sentence; 16*H*D bytes a token, in float16 8*H*D
Source  A. Vaswani et al., "Attention Is All You Need" (2017), https://arxiv.org/abs/1706.03762; J. Devlin et al.,
        "BERT" (2018), https://arxiv.org/abs/1810.04805

A padded batch and a packed one differ in `begins` alone: padded to S, begins = S * arange(B); packed, the sum of the
preceding lengths. Rows of no sentence may hold anything, NaN too: none is read, and their rows of out are not written.
A sentence longer than `longest`, or beyond the last row, comes out as NaN: the host does not see the lengths.

A sentence's result depends on its own rows alone, and so do its bits.

What it should cost
    On an H200, in float16, 12 heads of 32 elements, by count and not measured. An SM's share of 64 sentences of 128
    tokens is 5.8 pairs of a sentence and a head, and a pair takes, in clocks of an SM

        exponentials                128 x 128, 16 a clock                                       1,024
        the rest of the softmax     scale, maximum, sum, rounding, and issuing the products:      900
                                    about 3,600 instructions of a warp, four a clock
        tensor cores                two products of 128 x 128 x 32, 4,096 operations a clock      512
        memory                      32 KB once, from L2 at about 64 bytes a clock                 512

    Exponentials alone are 3.4 us; with nothing overlapped it is 9.8; several blocks of an SM overlap some of it: 5 to 8
    are expected. The 25 MB are 5 us of DRAM, but the layer before has just written qkv, most of which L2 still has.
    64 sentences of 16 tokens move 3 MB and are a chain of latencies: the launch, then begins and lengths, then rows,
    then a few hundred clocks of arithmetic: 2 to 3 us, of which the launch is the larger part. Three launches have
    the chain three times; and at 128 tokens they move another 100 MB of scores and weights through L2.
"""

import numpy as np

from labkit.kernels.attention.sentences_flash import attention_sentences_flash, attention_sentences_flash_half
from labkit.kernels.attention.sentences_unfused import (
    attention_sentences_three_launches,
    attention_sentences_three_launches_half,
    attention_sentences_whole_matrix,
    scores_shape,
)
from labkit.kernels.attention.three_pass import attention_reference

__all__ = ["attention_sentences", "attention_sentences_flash",
           "attention_sentences_flash_half", "attention_sentences_reference", "attention_sentences_three_launches",
           "attention_sentences_three_launches_half", "attention_sentences_whole_matrix", "scores_shape"]


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
