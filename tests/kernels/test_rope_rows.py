"""Rotation of contiguous rows and its gradient: every rung, finite differences, in place, positions outside, errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, to_device
from labkit.kernels.elements import FLOAT16
from labkit.kernels.ops.rope_rows import ROPE_ROWS, ROPE_ROWS_BACKWARD, ROPE_ROWS_BACKWARD_BF16, rope_rows_op
from labkit.kernels.rope import rope_table
from labkit.kernels.rope_rows import rope_rows, rope_rows_backward, rope_rows_per_thread, rope_rows_reference
from tests.launching import check_gradient, every_rung, ones


@every_rung(ROPE_ROWS, ROPE_ROWS_BACKWARD, ROPE_ROWS_BACKWARD_BF16,
            rope_rows_op("rope_rows_backward_f16", FLOAT16, True))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_the_rotation():
    rng = np.random.default_rng(2)
    qkv, dout = rng.uniform(-1, 1, (2, 3, 4, 6))
    table, positions = rope_table(9, 6, 100.0), np.array([0, 8, 3])
    check_gradient(lambda x: (rope_rows_reference(x, table, positions, 3) * dout).sum(), qkv,
                   rope_rows_reference(dout, table, positions, 3, inverse=True))


@pytest.mark.parametrize("launch", [rope_rows, rope_rows_per_thread], ids=lambda launch: launch.__name__)
def test_in_place_and_positions_outside_the_table(launch):
    qkv, table, positions, rotated = ROPE_ROWS.inputs(np.random.default_rng(3), T=5, H=6, D=32)
    positions[1], positions[3] = -1, len(table)
    array = cuda.to_device(qkv)
    launch(array, *to_device((table, positions)), array, rotated)
    np.testing.assert_allclose(array.copy_to_host(), rope_rows_reference(qkv, table, positions, rotated), atol=1e-6)
    assert np.isnan(array.copy_to_host()[[1, 3], :rotated]).all()


def test_the_gradient_rotates_back():
    qkv, table, positions, rotated = ROPE_ROWS.inputs(np.random.default_rng(4), T=5, H=6, D=32)
    array, on_device = cuda.to_device(qkv), to_device((table, positions))
    rope_rows(array, *on_device, array, rotated)
    rope_rows_backward(array, *on_device, array, rotated)
    np.testing.assert_allclose(array.copy_to_host(), qkv, atol=1e-6)


def test_errors_name_the_argument():
    qkv, table, positions = ones(3, 6, 8), ones(9, 8), ones(3, dtype=np.int32)
    with pytest.raises(ValueError, match="table has 6 columns; it must have 8, as the heads of qkv"):
        rope_rows(qkv, ones(9, 6), positions, qkv, 5)
    with pytest.raises(ValueError, match="rotated is 7; it must be 1 to 6, the heads of qkv"):
        rope_rows(qkv, table, positions, qkv, 7)
    with pytest.raises(ValueError, match=r"positions has shape \(2,\); it must be \(3,\)"):
        rope_rows(qkv, table, ones(2, dtype=np.int32), qkv, 5)
    with pytest.raises(ValueError, match="the head dimension is 7; it must be even"):
        rope_rows(ones(3, 6, 7), ones(9, 7), positions, ones(3, 6, 7), 5)
