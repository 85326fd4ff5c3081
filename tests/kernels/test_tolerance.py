"""Tolerances admit what float32 has to miss, and nothing more."""

import numpy as np
import pytest

from labkit.kernels.agree import compare
from labkit.kernels.matmul.float32 import MATMUL
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import dot_products


@pytest.mark.parametrize("length", [1, 2, 19, 256, 4096])
def test_dot_tolerance_admits_float32_sums_in_sequence(length):
    rng = np.random.default_rng(length)
    a, b = uniform(rng, 8, length), uniform(rng, length, 8)
    total = np.zeros((8, 8), np.float32)
    for k in range(length):
        total += a[:, k, None] * b[None, k, :]
    verdict = compare(total, MATMUL.reference(a, b), MATMUL.tolerance(a.astype(np.float64), b.astype(np.float64)))
    assert not verdict.problem
    assert verdict.units < 1


@pytest.mark.parametrize("length", [1, 19, 256, 4096])
def test_dot_tolerance_rejects_zeros_and_a_missing_product(length):
    rng = np.random.default_rng(length)
    a, b = uniform(rng, 32, length), uniform(rng, length, 32)
    allowed = MATMUL.tolerance(a.astype(np.float64), b.astype(np.float64))
    expected = MATMUL.reference(a, b)
    assert compare(np.zeros((32, 32), np.float32), expected, allowed).problem
    short = (a[:, :-1].astype(np.float64) @ b[:-1].astype(np.float64)).astype(np.float32)
    assert compare(short, expected, allowed).problem


def test_tolerance_knows_dtype():
    single = dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1])
    half = dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1], dtype=np.float16)
    ones = np.ones((2, 2))
    assert np.all(half(ones, ones) == 2**13 * single(ones, ones))
