"""Partial sums are added up in one order, whether threads or warps do it."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import poison
from labkit.kernels.dtypes import float64_of
from labkit.kernels.elements import BFLOAT16, FLOAT32
from labkit.kernels.partial_sums import MANY, sum_partials


@pytest.mark.sampled(1, sweep=99, quick="1-1-1-False-float32")
@pytest.mark.parametrize("element", [FLOAT32, BFLOAT16], ids=lambda one: one.name)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("splits", "parts", "columns"),
                         [(1, 1, 1), (3, 2, 40), (3, 1, 41), (MANY, 2, 33), (70, 1, 64)])
def test_sums(element, accumulate, splits, parts, columns):
    rng = np.random.default_rng(splits)
    partials = rng.standard_normal((splits, parts, columns)).astype(np.float32)
    before = element.array_of(rng.standard_normal((parts, columns))) if accumulate else poison(
        (parts, columns), element.dtype)
    outs = tuple(map(cuda.to_device, before))
    sum_partials(cuda.to_device(partials), outs, accumulate)
    expected = partials.astype(np.float64).sum(axis=0) + (float64_of(before) if accumulate else 0)
    found = float64_of(np.stack([out.copy_to_host() for out in outs]))
    allowed = 2**-23 * (splits + 1) * (np.abs(partials).sum(axis=0) + 4) + element.rounding_error(expected)
    assert (np.abs(found - expected) <= allowed).all()
