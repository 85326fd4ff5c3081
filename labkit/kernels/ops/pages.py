"""What the operations on the paged KV cache share: inputs, tolerance and baselines."""

import math
from dataclasses import replace

import numpy as np

from labkit.kernels.attention.pages import PAGE, cache_shape, page_table_of, pages_for
from labkit.kernels.baselines import Baseline, sdpa
from labkit.kernels.dtypes import of_dtype
from labkit.kernels.elements import Element
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32


def paged_inputs(rng: np.random.Generator, contexts, kv_heads: int, size: int, dtype) -> tuple:
    """Make (keys, values, page_table) for sequences of these lengths in shuffled pages, one of them unused. Elements of
    no token are NaN, and table entries past a sequence's last page are indices of no page."""
    contexts = [int(tokens) for tokens in contexts]
    counts = [pages_for(tokens) for tokens in contexts]
    order = rng.permutation(sum(counts) + 1)
    ends = np.cumsum(counts)
    lists = [order[end - count : end] for end, count in zip(ends, counts, strict=True)]
    shape = cache_shape(len(order), kv_heads, size)
    keys, values = 2 * uniform(rng, *shape), 2 * uniform(rng, *shape)
    for cache in (keys, values):
        for tokens, pages in zip(contexts, lists, strict=True):
            if tokens % PAGE:
                cache[pages[-1], :, tokens % PAGE :] = np.nan
        cache[order[-1]] = np.nan
    keys, values = of_dtype(keys, dtype), of_dtype(values, dtype)
    table = page_table_of(lists, max_pages=max(1, *counts) + 1)
    unused = np.arange(table.shape[1]) >= np.array(counts)[:, None]
    table[unused] = rng.choice(np.array([-1, -(2**31), 2**31 - 1], np.int32), int(unused.sum()))
    return keys, values, table


def rounding_errors(element: Element, size: int):
    """Make the tolerance that attend_reference takes. A score is a sum of `size` products; its error is followed by the
    roundings of the difference from row_max and of the exponential. An error e of score j changes the result by w_j e
    (v_j - result), nothing for a single key; then the sums are rounded. In 16 bits each exponential and the result
    are, too, of which twice is allowed."""
    def errors(weights, scores, magnitudes, values):
        diff_bound = np.abs(scores).max(axis=1, keepdims=True) + np.abs(scores)
        score_error = weights * (2 * math.sqrt(size) * magnitudes + diff_bound + 4)
        sums = weights @ np.abs(values)
        # |v_j - result| <= (1 - w_j) |v_j| + sum of w_i |v_i| over the others
        error = (score_error * (1 - 2 * weights)) @ np.abs(values) + score_error.sum(axis=1, keepdims=True) * sums
        error = EPS32 * (error + (8 + 2 * math.sqrt(len(values))) * sums)
        exponentials = element.eps * sums + element.smallest * np.abs(values).sum(axis=0)
        return error + exponentials + element.rounding_error(weights @ values)

    return errors


def contiguous_by_torch(keys, values, page_table, contexts) -> tuple:
    """Gather (B, K, tokens, D) keys and values of sequences of one length from pages in PyTorch tensors."""
    count = int(contexts[0])
    chosen = page_table[:, : pages_for(count)].long()
    return tuple(  # (B, pages, K, PAGE, D) -> (B, K, pages * PAGE, D)
        cache[chosen].transpose(1, 2).flatten(2, 3)[:, :, :count].contiguous() for cache in (keys, values))


def on_contiguous(call, prepare, bf16: bool, name: str = "contiguous", unfused=None) -> tuple:
    """Make baselines of SDPA on contiguous keys and values, with each of its kernels; gathering is not timed. unfused:
    the same as two products and a softmax."""
    backends = ("FLASH_ATTENTION", "CUDNN_ATTENTION") if bf16 else ("EFFICIENT_ATTENTION",)
    baselines = tuple(replace(baseline, name=baseline.name.replace("fused", name))
                      for baseline in sdpa(call, backends, prepare=prepare))
    if unfused is not None:
        baselines += (Baseline(f"PyTorch, {name}, unfused", "torch", unfused, "two products and a softmax",
                               prepare=prepare, autotune=True),)
    return baselines
