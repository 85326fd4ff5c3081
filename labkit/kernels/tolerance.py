"""Tolerances: the largest error allowed for each element, from the inputs in float64 and the number of roundings."""

from collections.abc import Callable

import numpy as np

# The gap between 1 and the next number: twice the largest relative rounding error. And float16's smallest number.
EPS32, EPS16 = float(np.finfo(np.float32).eps), float(np.finfo(np.float16).eps)
SMALLEST16 = float(np.finfo(np.float16).smallest_subnormal)
EPS_BF16 = 2.0**-7  # bfloat16 has eight significant bits


def relative_to(scale: Callable, roundings: int, dtype=np.float32) -> Callable:
    """For a fixed number of roundings: each is at most eps/2 of a value no larger than `scale`; allowed is twice that.

    Zeros or a neighbour's value are wrong by about `scale`, some ten million times too much.
    """
    eps = float(np.finfo(dtype).eps)
    return lambda *inputs: roundings * eps * scale(*inputs)


def dot_products(scale: Callable, length: Callable, dtype=np.float32) -> Callable:
    """For sums of K products, added in any order: 2 * eps * sqrt(K) * (|a| @ |b|).

    In the worst case all K roundings, each at most eps/2, have the same sign: K * eps/2 * (|a| @ |b|). In practice
    independent roundings add up like a random walk, as sqrt(K) * eps/2 (Higham and Mary, 2019). Allowed is four times
    that, which for K up to 16 is the worst case itself. Leaving one product out of the sum costs 1/K of the scale on
    average, far outside for any K below 100,000.
    """
    eps = float(np.finfo(dtype).eps)
    return lambda *inputs: 2 * eps * np.sqrt(length(*inputs)) * scale(*inputs)
