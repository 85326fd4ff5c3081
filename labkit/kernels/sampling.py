"""Sample the next token of each row of logits; every row has its own parameters.

Shapes  logits (R, V) float32; temperature, top_p, min_p (R,) float32; top_k, steps (R,) int32; seeds (R, 2) uint32, low
        word first; tokens (R,) int32, logprobs (R,) float32; C-contiguous; V up to 2**19. A row with a NaN gives
        NAN_ROW instead of a token, one of -inf alone EMPTY_ROW; if there are logits of +inf, only they are likely
Work    a row is read three times, with few rows twice from the L2 cache: 4*R*V bytes from memory; nothing is sorted.
        Sums are of integers (token_weights.py): a draw has the same bits in any batch, on any device
Source  vLLM, `vllm/v1/sample`, for the parameters and their order; J. Salmon et al., "Parallel Random Numbers: As Easy
        as 1, 2, 3" (2011); D. Merrill and A. Grimshaw, "High Performance and Scalable Radix Sorting" (2011), for digits
"""

import functools
from dataclasses import dataclass

import numpy as np

from labkit import cuda
from labkit.device import gpus
from labkit.kernels.arguments import check_array
from labkit.kernels.op import rung
from labkit.kernels.sampling_rows import PARAMETER_DTYPES, check_sampling
from labkit.kernels.sampling_search import BINS, CANDIDATES, CHUNK, THREADS, WARPS, check_rows, load_narrow, load_wide
from labkit.kernels.sampling_split import BLOCKS_PER_SM, SECTION, make_split
from labkit.kernels.sampling_stats import BOUND_CHUNKS


@dataclass(frozen=True, eq=False)
class Scratch:
    """The memory by which the kernels pass on results, for up to `rows` rows of `cols` logits; for one stream at a
    time. After a launch stats[:, 0] is each row's maximum and stats[:, 1] the logarithm of the sum of
    exp(x - maximum), so that x - stats[row, 0] - stats[row, 1] is a token's logprob."""

    rows: int
    cols: int
    chunk_stats: object
    chunk_argmax: object
    section_masses: object
    warp_maxima: object
    histogram: object
    stats: object
    least_weights: object
    filters: object
    plan: object
    gathered: object
    candidates: object
    thresholds: object

    @classmethod
    def allocate(cls, rows: int, cols: int) -> "Scratch":
        """About 40 KB for each row."""
        check_rows(rows, cols)
        chunks, sections = -(-cols // CHUNK), -(-cols // SECTION)

        def per_row(dtype, *shape):
            return cuda.device_array((rows, *shape), dtype)

        return cls(rows, cols, per_row(np.float32, chunks, 4), per_row(np.int32, chunks),
                   per_row(np.int64, sections, 2), per_row(np.float32, WARPS * min(chunks, BOUND_CHUNKS)),
                   per_row(np.uint32, BINS), per_row(np.float32, 4), per_row(np.int64), per_row(np.uint32),
                   per_row(np.uint32, 3), per_row(np.uint32), per_row(np.int64, CANDIDATES), per_row(np.int64))


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of each row, in device arrays: a captured graph reads their current contents.

    temperature: what logits are divided by; 0 takes the most likely token. min_p: keeps the tokens at least min_p times
    as likely as the most likely one; 0 keeps all. top_k: of these keeps the k most likely; 0, or V and more, keeps all.
    top_p: of these keeps the fewest most likely ones whose mass reaches the fraction p; 1 keeps all. "Most likely" is
    by logit, of equal logits the lower index: exactly k are kept. (vLLM keeps all that equal the k-th.)
    """

    temperature: object
    top_k: object
    top_p: object
    min_p: object
    seeds: object
    steps: object

    @classmethod
    def allocate(cls, rows: int) -> "Parameters":
        """For `rows` rows, all of them greedy."""
        return cls.to_device(np.zeros(rows), np.zeros(rows), np.ones(rows), np.zeros(rows), np.zeros((rows, 2)),
                             np.zeros(rows))

    @classmethod
    def to_device(cls, temperature, top_k, top_p, min_p, seeds, steps) -> "Parameters":
        """From arrays or lists on the host; seeds (rows, 2), as philox.seed_words makes them."""
        pairs = zip((temperature, top_k, top_p, min_p, seeds, steps), PARAMETER_DTYPES, strict=True)
        return cls(*(cuda.to_device(np.ascontiguousarray(values, dtype)) for values, dtype in pairs))

    @property
    def arrays(self) -> tuple:
        return self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.steps

    def first(self, rows: int) -> "Parameters":
        """Views of the first rows: for a smaller batch, or a graph of one."""
        return Parameters(*(array[:rows] for array in self.arrays))


def sample(logits, parameters: Parameters, tokens, logprobs, scratch: Scratch, stream=0):
    """A token for each row into tokens, and its logprob into logprobs: that of these logits, at a temperature of 1.

    Four launches, whatever the parameters are. scratch: for at least as many rows, of this length.
    """
    _launch_split(logits, parameters.arrays, tokens, logprobs, scratch, stream)


def _launch_split(logits, parameters, tokens, logprobs, scratch, stream, splits=None) -> None:
    rows, load = check_sampling(logits, parameters, tokens, scratch)
    check_array("logprobs", logprobs, shape=(rows,))
    temperature, top_k, top_p, min_p, seeds, steps = parameters
    s, chunks = scratch, -(-scratch.cols // CHUNK)
    find_max, weigh, gather, draw = make_split(load)
    find_max[(chunks, rows), THREADS, stream](logits, temperature, top_k, top_p, min_p, s.chunk_stats, s.chunk_argmax,
                                              s.warp_maxima, s.histogram, s.gathered)
    # With many rows a block takes several chunks: it adds its histogram to the row's.
    span = CHUNK * -(-chunks // min(chunks, splits or max(1, BLOCKS_PER_SM * gpus.sm_count() // rows)))
    blocks = (-(-scratch.cols // span), rows)
    weigh[blocks, THREADS, stream](logits, temperature, top_k, top_p, min_p, s.chunk_stats, s.chunk_argmax,
                                   s.warp_maxima, s.histogram, s.stats, s.least_weights, s.filters, tokens, logprobs,
                                   np.uint32(span))
    gather[blocks, THREADS, stream](logits, top_k, top_p, min_p, s.filters, s.stats, s.least_weights, s.histogram,
                                    s.plan, s.section_masses, s.gathered, s.candidates, np.uint32(span))
    draw[rows, THREADS, stream](logits, top_k, top_p, seeds, steps, s.filters, s.stats, s.least_weights, s.plan,
                                s.section_masses, s.gathered, s.candidates, s.thresholds, tokens, logprobs)


@functools.cache
def _cached_scratch(rows: int, cols: int):
    return Scratch.allocate(rows, cols), cuda.device_array(rows, np.float32)


@rung(kernel=(*make_split(load_wide), *make_split(load_narrow)), idea="a row split over blocks: four kernels")
def sample_split(logits, temperature, top_k, top_p, min_p, seeds, steps, out, stream=0):
    """As histogram, but each pass over the rows is a kernel in which many blocks share a row. The first histogram is of
    float32 weights and only picks a bin; exact sums are computed once, while that bin's tokens are gathered. Tokens
    that cannot matter enter no histogram: with top_p alone the too unlikely ones, with top_k those below the maxima of
    enough warps. `sample` is this rung with scratch of its own; here one is cached for each size, which two streams
    must not share."""
    scratch, logprobs = _cached_scratch(*logits.shape)
    _launch_split(logits, (temperature, top_k, top_p, min_p, seeds, steps), out, logprobs, scratch, stream)
