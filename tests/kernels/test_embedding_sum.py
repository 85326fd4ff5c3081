"""BERT's embedding: every rung, float32 and float16, BERT's epsilon, indices that do not exist, odd addresses."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels import embedding_sum as es
from labkit.kernels.agree import agree, to_device
from labkit.kernels.ops.embedding_layernorm import (
    EMBEDDING_LAYERNORM,
    EMBEDDING_LAYERNORM_HALF,
    half_tolerance,
    tolerance,
)
from tests.launching import every_rung

OPS = (EMBEDDING_LAYERNORM, EMBEDDING_LAYERNORM_HALF)


@pytest.mark.sampled(0, sweep=2)
@every_rung(*OPS)
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def run(launch, inputs, **more):
    out = cuda.device_array((len(inputs[0]), inputs[3].shape[1]), inputs[3].dtype)
    launch(*to_device(inputs), out, **more)
    return out.copy_to_host()


@pytest.mark.sweep
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_epsilon_of_bert(op):
    """Tables so small that 1e-5 would hide the spread of a row."""
    inputs = list(op.inputs(np.random.default_rng(2), T=3, C=384))
    inputs[3:6] = [(table * np.float32(1e-4)).astype(table.dtype) for table in inputs[3:6]]
    allowed = tolerance if op is EMBEDDING_LAYERNORM else half_tolerance
    expected = es.embedding_layernorm_reference(*inputs, epsilon=1e-12)
    in_float64 = [array if array.dtype == np.int32 else array.astype(np.float64) for array in inputs]
    miss = np.abs(run(es.embedding_layernorm, inputs, epsilon=1e-12) - expected)
    assert (miss <= allowed(*in_float64, epsilon=1e-12)).all()
    assert np.abs(expected - es.embedding_layernorm_reference(*inputs)).max() > 1


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launch", [es.embedding_layernorm, es.embedding_then_layernorm], ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_indices_that_do_not_exist_give_nan(op, launch):
    """97 words, 2 types, 40 positions; one row after the other names one that is not there. The last row is right."""
    inputs = list(op.inputs(np.random.default_rng(3), T=8, C=24))
    inputs[0][:3] = 97, -1, 2**31 - 1
    inputs[1][3:5] = 2, -1
    inputs[2][5:7] = 40, -(2**31)
    got = run(launch, inputs)
    assert np.isnan(got).all(axis=1).tolist() == [True] * 7 + [False]
    np.testing.assert_allclose(got[7], es.embedding_layernorm_reference(*inputs)[7], atol=1e-2)
    assert np.isnan(es.embedding_layernorm_reference(*inputs)[:7]).all()


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_sum_alone(op):
    inputs = op.inputs(np.random.default_rng(4), T=5, C=131)[:6]
    expected = es.embedding_sum_reference(*inputs)
    np.testing.assert_allclose(run(es.embedding_sum, inputs), expected, rtol=2 * np.finfo(op.dtype).eps, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_table_at_an_odd_address(op):
    """To the last bit what the aligned table gives, though its numbers are loaded one by one."""
    inputs = op.inputs(np.random.default_rng(5), T=3, C=384)
    words = inputs[3]
    whole = cuda.to_device(np.concatenate([words.dtype.type([7]), words.reshape(-1)]))
    out = cuda.device_array((3, 384), op.dtype)
    es.embedding_layernorm(*to_device(inputs[:3]), whole[1:].reshape(words.shape), *to_device(inputs[4:]), out)
    np.testing.assert_array_equal(out.copy_to_host(), run(es.embedding_layernorm, inputs))


def test_errors_name_the_argument():
    inputs = EMBEDDING_LAYERNORM.inputs(np.random.default_rng(6), T=3, C=8)
    names = ("ids", "types", "positions", "words", "places", "kinds", "weight", "bias")
    wrong = {"ids": np.zeros(3, np.int64), "types": np.zeros(4, np.int32), "positions": np.zeros((3, 1), np.int32),
             "words": np.zeros((97, 8)), "places": np.zeros((40, 9), np.float32), "kinds": np.zeros((2, 8), np.float16),
             "weight": np.zeros(9, np.float32), "bias": np.zeros(8, np.float16)}
    for launch in (es.embedding_layernorm, es.embedding_then_layernorm):
        for number, name in enumerate(names):
            with pytest.raises((TypeError, ValueError), match=f"^{name} has"):
                run(launch, (*inputs[:number], wrong[name], *inputs[number + 1 :]))
    with pytest.raises(ValueError, match=r"out has shape \(3, 9\); it must be \(3, 8\)"):
        es.embedding_layernorm(*to_device(inputs), cuda.device_array((3, 9), np.float32))
