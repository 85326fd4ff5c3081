"""The gradients of the embeddings: every rung, frequent tokens, accumulation, ids outside, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.elements import BFLOAT16, FLOAT16
from labkit.kernels.embedding_backward import (
    position_embedding_backward,
    position_embedding_backward_reference,
    token_embedding_backward,
    token_embedding_backward_reference,
)
from labkit.kernels.ops.embedding_backward import (
    POSITION_EMBEDDING_BACKWARD,
    TOKEN_EMBEDDING_BACKWARD,
    TOKEN_EMBEDDING_BACKWARD_BF16,
    token_embedding_backward_op,
)
from tests.launching import check_gradient, every_rung, ones


@pytest.mark.sweep(every=True)
@every_rung(TOKEN_EMBEDDING_BACKWARD, TOKEN_EMBEDDING_BACKWARD_BF16, POSITION_EMBEDDING_BACKWARD,
            token_embedding_backward_op("token_embedding_backward_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_references_are_the_gradients_of_gathered_rows():
    rng = np.random.default_rng(2)
    ids, dout, tokens, positions = np.array([3, 0, 3, 1]), *rng.uniform(-1, 1, (3, 4, 5))
    check_gradient(lambda x: (x[ids] * dout).sum(), tokens, token_embedding_backward_reference(ids, dout, 4))
    check_gradient(lambda x: (np.concatenate([x, x]) * dout).sum(), positions[:2],
                   position_embedding_backward_reference(dout, 2))


@pytest.mark.sweep(every=True)
def test_one_token_alone_and_ids_outside_the_vocabulary():
    """600 rows of one token, but for two outside; what dtokens held is kept."""
    dout = np.random.default_rng(3).uniform(-1, 1, (600, 40)).astype(np.float32)
    ids = np.full(600, 2, np.int32)
    ids[[5, 77]] = -1, 4
    dtokens = ones(4, 40)
    token_embedding_backward(cuda.to_device(ids), cuda.to_device(dout), dtokens, accumulate=True)
    np.testing.assert_allclose(dtokens.copy_to_host(), 1 + token_embedding_backward_reference(ids, dout, 4),
                               rtol=1e-5, atol=1e-5)


@pytest.mark.sweep(every=True)
def test_float32_gradients_of_bfloat16_rows_and_positions_that_accumulate():
    dout = BFLOAT16.array_of(np.random.default_rng(4).uniform(-1, 1, (6, 40)))
    ids = np.int32([0, 1, 0, 2, 0, 0])
    dtokens, dpositions = ones(3, 40), ones(2, 40)
    token_embedding_backward(cuda.to_device(ids), cuda.to_device(dout), dtokens)
    position_embedding_backward(cuda.to_device(dout), dpositions, accumulate=True)
    np.testing.assert_allclose(dtokens.copy_to_host(), token_embedding_backward_reference(ids, dout, 3), atol=1e-6)
    np.testing.assert_allclose(dpositions.copy_to_host(), 1 + position_embedding_backward_reference(dout, 2),
                               atol=1e-6)


def test_errors_name_the_argument():
    ids = ones(4, dtype=np.int32)
    with pytest.raises(ValueError, match=r"ids has shape \(4,\); it must be \(3,\)"):
        token_embedding_backward(ids, ones(3, 8), ones(5, 8))
    with pytest.raises(TypeError, match="dtokens has dtype float16; float32 and dout's uint16 are allowed"):
        token_embedding_backward(ids, ones(4, 8, dtype=np.uint16), ones(5, 8, dtype=np.float16))
    with pytest.raises(ValueError, match="dtokens has 7 columns; it must have as many as dout, 8"):
        token_embedding_backward(ids, ones(4, 8), ones(5, 7))
    with pytest.raises(ValueError, match=r"dpositions has shape \(3, 8\) and dout \(4, 8\); they must have"):
        position_embedding_backward(ones(4, 8), ones(3, 8))
