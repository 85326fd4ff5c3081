"""Tolerances admit what float32 has to miss, and nothing more."""

import numpy as np
import pytest

from labkit.kernels.agree import allowed_error, compare
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.libraries.blas_softmax import BLAS_SOFTMAX
from labkit.kernels.op import uniform
from labkit.kernels.ops.array_sum import ARRAY_SUM
from labkit.kernels.ops.matmul import MATMUL
from labkit.kernels.tolerance import dot_products
from labkit.measure.ops import all_ops


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


# --- The tolerance of each operation ---------------------------------------------------------------------------------

ROUNDING = {"float16": 2.0**-10, "float32": 2.0**-23, "uint16": 2.0**-7}  # uint16 holds bfloat16
# TF32 rounds what goes in; in a block of GPT-2 the roundings of ten steps add up.
COARSER = {"matmul_tf32": 2.0**-10, "gpt2_block": 2.0**-20}
OWNERS = [(op, None) for op in all_ops()] + [
    (op, rung) for op in (*all_ops(), BLAS_SOFTMAX) for rung in op.rungs if rung.tolerance]


def cases(op):
    rng = np.random.default_rng(0)
    for size in op.awkward[:1] if op.name.startswith("gpt2_block") else op.awkward:
        inputs = op.inputs(rng, **size)
        yield size, inputs, np.asarray(op.reference(*inputs))


def stored(op, values):
    """As the operation's output holds them."""
    return bfloat16_of(values) if op.dtype == np.uint16 else np.asarray(values).astype(op.dtype)


def verdict(op, by, inputs, got):
    return compare(stored(op, got), np.asarray(op.reference(*inputs)), allowed_error(op, by, inputs))


@pytest.mark.parametrize(("op", "by"), OWNERS, ids=lambda one: getattr(one, "__name__", getattr(one, "name", "")))
def test_a_tolerance_admits_the_truth_rounded_and_rejects_64_roundings(op, by):
    """So that none is a hundred times too loose: it would admit the second, at every size."""
    rounding = COARSER.get(op.name, ROUNDING.get(op.dtype.name, 0.0))
    rejected = []
    for size, inputs, expected in cases(op):
        assert not verdict(op, by, inputs, expected).problem, size
        off = expected * (1 + 64 * rounding) if rounding else expected + 1
        rejected.append(bool(verdict(op, by, inputs, off).problem))
    assert any(rejected)


@pytest.mark.parametrize("op", [op for op in all_ops() if op is not ARRAY_SUM], ids=lambda op: op.name)  # has one value
def test_a_tolerance_rejects_a_neighbours_value(op):
    _, inputs, expected = max(cases(op), key=lambda case: case[2].size)
    assert expected.size > 1
    assert verdict(op, None, inputs, np.roll(expected.reshape(-1), 1).reshape(expected.shape)).problem


@pytest.mark.parametrize("op", [op for op in all_ops() if "K" in op.awkward[0]], ids=lambda op: op.name)
def test_a_tolerance_rejects_a_sum_without_its_last_product(op):
    for size, inputs, expected in cases(op):
        short = inputs[0].copy()
        short[:, -1] = 0
        assert compare(stored(op, op.reference(short, *inputs[1:])), expected,
                       allowed_error(op, None, inputs)).problem, size
