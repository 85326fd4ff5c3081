"""Embedding: every rung, the block that is too wide, ids and positions that do not exist."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.embedding import (
    EMBEDDING,
    embedding_reference,
    embedding_strided,
    embedding_vectorized,
    embedding_whole_row,
)
from labkit.kernels.op import uniform
from labkit.measure.ops import op


def test_every_rung_agrees():
    table = agree(EMBEDDING, seed=1)
    assert table.passed
    assert [row.refused for row in table.rows] == [3, 0, 0]
    assert op("embedding") is EMBEDDING


def arguments(T, C, *, ids=None, start=0, V=11, P=16):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, V, T) if ids is None else np.array(ids)
    return ids.astype(np.int32), uniform(rng, V, C), uniform(rng, P, C), np.array([start], np.int32)


def run(launch, *inputs):
    out = cuda.device_array((len(inputs[0]), inputs[1].shape[1]), np.float32)
    launch(*(cuda.to_device(array) for array in inputs), out)
    return out.copy_to_host()


def test_a_block_of_2048_threads_is_refused_with_a_message():
    with pytest.raises(ValueError, match="2048 threads; a block has 1 to 1024"):
        run(embedding_whole_row, *arguments(2, 2048))


@pytest.mark.parametrize("launch", EMBEDDING.rungs, ids=lambda launch: launch.__name__)
@pytest.mark.parametrize("columns", [12, 13])
def test_ids_and_positions_that_do_not_exist_give_nan(launch, columns):
    inputs = arguments(5, columns, ids=[3, 11, -1, 2**31 - 1, 10], start=12)  # 16 positions: the last token has none
    expected = embedding_reference(*inputs)
    assert [bool(np.isnan(row).all()) for row in expected] == [False, True, True, True, True]
    np.testing.assert_array_equal(run(launch, *inputs), expected)


def test_misaligned_tables_go_the_slow_way():
    ids, tokens, positions, start = (cuda.to_device(array) for array in arguments(3, 8))
    flat = cuda.to_device(np.arange(89, dtype=np.float32))
    out = cuda.device_array((3, 8), np.float32)
    embedding_vectorized(ids, flat[1:].reshape((11, 8)), positions, start, out)
    expected = cuda.device_array((3, 8), np.float32)
    whole = cuda.to_device(np.arange(1, 89, dtype=np.float32).reshape(11, 8))
    embedding_strided(ids, whole, positions, start, expected)
    np.testing.assert_array_equal(out.copy_to_host(), expected.copy_to_host())


def test_arguments_are_checked():
    ids, tokens, positions, start = (cuda.to_device(array) for array in arguments(3, 8))
    out = cuda.device_array((3, 8), np.float32)
    with pytest.raises(ValueError, match="as many columns"):
        embedding_strided(ids, tokens, cuda.to_device(np.zeros((16, 9), np.float32)), start, out)
    with pytest.raises(TypeError, match="ids has dtype int64; only int32 is allowed"):
        embedding_strided(cuda.to_device(np.zeros(3, np.int64)), tokens, positions, start, out)
    with pytest.raises(ValueError, match="start has shape"):
        embedding_strided(ids, tokens, positions, cuda.to_device(np.zeros(2, np.int32)), out)
