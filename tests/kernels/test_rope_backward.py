"""RoPE's gradient: every rung, finite differences, positions outside the table, what it undoes, and errors."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree, to_device
from labkit.kernels.elements import FLOAT16
from labkit.kernels.ops.rope_backward import ROPE_SPLIT_BACKWARD, ROPE_SPLIT_BACKWARD_BF16, rope_split_backward_op
from labkit.kernels.rope import rope_split_cache, rope_table, rotated_reference
from labkit.kernels.rope_backward import (
    rope_split_backward,
    rope_split_backward_per_thread,
    rope_split_backward_reference,
)
from tests.launching import check_gradient, every_rung, ones


@pytest.mark.sweep(every=True)
@every_rung(ROPE_SPLIT_BACKWARD, ROPE_SPLIT_BACKWARD_BF16,
            rope_split_backward_op("rope_split_backward_f16", FLOAT16))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


def test_the_reference_is_the_gradient_of_the_rotation():
    rng = np.random.default_rng(2)
    qkv, dq = rng.uniform(-1, 1, (2, 3, 4, 6))
    dk, dv = rng.uniform(-1, 1, (2, 3, 1, 6))
    table, positions = rope_table(9, 6, 100.0), np.array([0, 8, 3])

    def loss(x):
        heads = x.reshape(3, 6, 6)
        rotated = [rotated_reference(one, table, positions) for one in (heads[:, :4], heads[:, 4:5])]
        return sum((one * grad).sum() for one, grad in zip((*rotated, heads[:, 5:]), (dq, dk, dv), strict=True))

    x = np.concatenate([qkv, rng.uniform(-1, 1, (3, 2, 6))], axis=1).reshape(3, -1)
    check_gradient(loss, x, rope_split_backward_reference(dq, dk, dv, table, positions))


@pytest.mark.parametrize("launch", [rope_split_backward, rope_split_backward_per_thread], ids=lambda one: one.__name__)
def test_positions_outside_the_table_give_nan(launch):
    *grads, table, positions = ROPE_SPLIT_BACKWARD.inputs(np.random.default_rng(3), T=5, H=4, KV=1, D=32)
    positions[1], positions[3] = -1, len(table)
    out = cuda.device_array((5, 6 * 32), np.float32)
    launch(*to_device((*grads, table, positions)), out)
    found = out.copy_to_host()
    np.testing.assert_allclose(found, rope_split_backward_reference(*grads, table, positions), atol=1e-6)
    assert np.isnan(found[[1, 3], : 5 * 32]).all()


def test_it_undoes_the_rotation():
    rng, (T, H, KV, D) = np.random.default_rng(4), (5, 4, 1, 32)
    qkv, table = rng.uniform(-1, 1, (T, (H + 2 * KV) * D)).astype(np.float32), rope_table(9, D, 100.0)
    positions = rng.integers(0, 9, T).astype(np.int32)
    q, k, v = (cuda.device_array(shape, np.float32) for shape in ((T, H, D), (T, KV, 1, D), (T, KV, 1, D)))
    out = cuda.device_array(qkv.shape, np.float32)
    on_device = to_device((qkv, table, positions, np.arange(T, dtype=np.int32)))
    rope_split_cache(*on_device, q, k, v)
    rope_split_backward(q, k.reshape(T, KV, D), v.reshape(T, KV, D), *on_device[1:3], out)
    np.testing.assert_allclose(out.copy_to_host(), qkv, atol=1e-6)


def test_errors_name_the_argument():
    dq, dk, table, positions, out = ones(3, 4, 8), ones(3, 1, 8), ones(9, 8), ones(3, dtype=np.int32), ones(3, 48)
    with pytest.raises(ValueError, match="table has 6 columns; it must have 8, as the heads of dq"):
        rope_split_backward(dq, dk, dk, ones(9, 6), positions, out)
    with pytest.raises(ValueError, match=r"dv has shape \(3, 2, 8\); it must be \(3, 1, 8\)"):
        rope_split_backward(dq, dk, ones(3, 2, 8), table, positions, out)
    with pytest.raises(ValueError, match=r"positions has shape \(2,\); it must be \(3,\)"):
        rope_split_backward(dq, dk, dk, table, ones(2, dtype=np.int32), out)
    with pytest.raises(ValueError, match="the head dimension is 7; it must be even"):
        rope_split_backward(ones(3, 4, 7), ones(3, 1, 7), ones(3, 1, 7), ones(9, 7), positions, ones(3, 42))
