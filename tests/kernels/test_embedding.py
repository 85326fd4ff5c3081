"""Embedding: every rung, the block that is too wide, ids and positions that do not exist."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, poisoned
from labkit.kernels.elements import FLOAT16
from labkit.kernels.embedding import (
    embedding_reference,
    embedding_strided,
    embedding_vectorized,
    embedding_whole_row,
    token_embedding,
)
from labkit.kernels.op import uniform
from labkit.kernels.ops.embedding import EMBEDDING, TOKEN_EMBEDDING, TOKEN_EMBEDDING_BF16, token_op
from labkit.measure.ops import op
from tests.launching import every_rung, run


def test_every_rung_agrees():
    table = agree(EMBEDDING, seed=1)
    assert table.passed
    assert [row.refused for row in table.rows] == [3, 0, 0]
    assert op("embedding") is EMBEDDING


def arguments(T, C, *, ids=None, start=0, V=11, P=16):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, V, T) if ids is None else np.array(ids)
    return ids.astype(np.int32), uniform(rng, V, C), uniform(rng, P, C), np.array([start], np.int32)


def embedded(launch, *inputs):
    return run(launch, (len(inputs[0]), inputs[1].shape[1]), np.float32, *inputs)


def test_a_block_of_2048_threads_is_refused_with_a_message():
    with pytest.raises(ValueError, match="2048 threads; a block has 1 to 1024"):
        embedded(embedding_whole_row, *arguments(2, 2048))


@pytest.mark.parametrize("launch", EMBEDDING.rungs, ids=lambda launch: launch.__name__)
@pytest.mark.parametrize("columns", [12, 13])
def test_ids_and_positions_that_do_not_exist_give_nan(launch, columns):
    inputs = arguments(5, columns, ids=[3, 11, -1, 2**31 - 1, 10], start=12)  # 16 positions: the last token has none
    expected = embedding_reference(*inputs)
    assert [bool(np.isnan(row).all()) for row in expected] == [False, True, True, True, True]
    np.testing.assert_array_equal(embedded(launch, *inputs), expected)


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


# --- Rows alone: Llama's ----------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@every_rung(TOKEN_EMBEDDING, TOKEN_EMBEDDING_BF16, token_op("token_embedding_f16", FLOAT16))
def test_every_rung_of_token_embedding_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


@pytest.mark.parametrize("launch", TOKEN_EMBEDDING_BF16.rungs, ids=lambda launch: launch.__name__)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32], ids=lambda dtype: dtype.__name__)
def test_an_id_that_is_no_token_gives_nan(launch, dtype):
    """A NaN in the table is copied as it is; ids 2^31 and up are negative in int32, and no tokens either."""
    _, tokens = TOKEN_EMBEDDING_BF16.inputs(np.random.default_rng(3), T=1, C=24)
    tokens[5, 3] = 0xFFC1
    halves = token_op("token_embedding_f16", FLOAT16).inputs(np.random.default_rng(3), T=1, C=24)[1]
    ids = np.array([4, 97, 2**31, 5, 2**32 - 1], np.uint32).view(dtype)
    got = run(launch, (5, 24), np.uint16, ids, tokens)
    np.testing.assert_array_equal(got[[0, 3]], tokens[[4, 5]])
    assert (got[[1, 2, 4]] == 0x7FC0).all()
    got = run(launch, (5, 24), np.float16, ids, halves)
    np.testing.assert_array_equal(got[[0, 3]], halves[[4, 5]])
    assert np.isnan(got[[1, 2, 4]]).all()


def test_token_embedding_of_a_view_at_an_odd_address():
    ids, tokens = TOKEN_EMBEDDING_BF16.inputs(np.random.default_rng(4), T=5, C=24)
    whole = cuda.to_device(np.concatenate([np.zeros(1, np.uint16), tokens.reshape(-1)]))
    out = poisoned((5, 24), np.uint16)
    token_embedding(cuda.to_device(ids), whole[1:].reshape(tokens.shape), out.array)
    np.testing.assert_array_equal(out.read()[0], tokens[ids])


def test_errors_of_token_embedding_name_the_argument():
    ids, tokens = TOKEN_EMBEDDING.inputs(np.random.default_rng(5), T=5, C=8)
    d_ids, d_tokens, out = cuda.to_device(ids), cuda.to_device(tokens), cuda.device_array((5, 8), np.float32)
    with pytest.raises(TypeError, match="ids has dtype int64; only int32"):
        token_embedding(cuda.to_device(ids.astype(np.int64)), d_tokens, out)
    with pytest.raises(TypeError, match="tokens has dtype float64; float32, float16, and uint16"):
        token_embedding(d_ids, cuda.to_device(tokens.astype(np.float64)), out)
    with pytest.raises(TypeError, match="out has dtype uint16; only float32"):
        token_embedding(d_ids, d_tokens, cuda.device_array((5, 8), np.uint16))
    with pytest.raises(ValueError, match=r"out has shape \(4, 8\); it must be \(5, 8\)"):
        token_embedding(d_ids, d_tokens, cuda.device_array((4, 8), np.float32))
