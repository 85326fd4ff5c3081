"""Linear attention: every rung, other widths of a head, what is causal about it, and its refusals."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.attention.linear_attention import (
    CHUNK,
    linear_attention_chunked,
    linear_attention_reference,
    linear_attention_running,
    phi_reference,
    state_shape,
)
from labkit.kernels.ops.linear_attention import LINEAR_ATTENTION


@pytest.mark.sweep(every=True)
def test_every_rung_agrees():
    assert agree(LINEAR_ATTENTION, seed=1).passed


@pytest.mark.sweep
@pytest.mark.parametrize("D", [1, 5, 40, 128])
def test_other_widths(D):
    sizes = tuple({"H": 2, "N": N, "D": D} for N in (1, CHUNK, CHUNK + 1, 3 * CHUNK - 1))
    assert agree(LINEAR_ATTENTION, sizes=sizes).passed


def test_the_reference_is_a_recurrence():
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 7, 5))
    S, z, found = np.zeros((2, 5, 5)), np.zeros((2, 5)), np.empty_like(v)
    for i in range(7):
        one, other = phi_reference(q[:, i]), phi_reference(k[:, i])
        S += other[:, :, None] * v[:, i, None, :]
        z += other
        found[:, i] = np.einsum("hn,hnd->hd", one, S) / np.einsum("hn,hn->h", one, z)[:, None]
    np.testing.assert_allclose(linear_attention_reference(q, k, v), found, rtol=1e-12)


@pytest.mark.sweep(every=True)
def test_a_token_sees_none_after_it():
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 70, 64)).astype(np.float32) for _ in range(3))
    results = []
    for _ in range(2):
        out = cuda.to_device(np.full(q.shape, np.nan, np.float32))
        linear_attention_chunked(*map(cuda.to_device, (q, k, v)), out)
        results.append(out.copy_to_host())
        k[:, 40:], v[:, 40:] = 3, 100
    np.testing.assert_array_equal(results[0][:, :40], results[1][:, :40])
    assert (results[0][:, 40:] != results[1][:, 40:]).all()


@pytest.mark.sweep(every=True)
def test_memory_of_ones_own_may_hold_anything():
    arrays = [cuda.to_device(array) for array in LINEAR_ATTENTION.inputs(np.random.default_rng(3), H=2, N=33, D=64)]
    out, states = cuda.device_array((2, 33, 64), np.float32), np.full(state_shape(2, 33, 64), np.nan, np.float32)
    linear_attention_chunked(*arrays, out, states=cuda.to_device(states))
    assert np.isfinite(out.copy_to_host()).all()


def test_errors_name_the_argument():
    def zeros(*shape):
        return cuda.to_device(np.zeros(shape, np.float32))

    for launch in LINEAR_ATTENTION.rungs:
        with pytest.raises(ValueError, match=r"k has shape \(1, 3, 4\); it must be \(1, 2, 4\)"):
            launch(zeros(1, 2, 4), zeros(1, 3, 4), zeros(1, 2, 4), zeros(1, 2, 4))
        with pytest.raises(ValueError, match="heads of 129 numbers; at most 128 are allowed"):
            launch(*(zeros(1, 2, 129) for _ in range(4)))
    with pytest.raises(ValueError, match="q has 2 dimensions"):
        linear_attention_running(*(zeros(2, 4) for _ in range(4)))
    with pytest.raises(ValueError, match="states has shape"):
        linear_attention_chunked(*(zeros(1, 2, 4) for _ in range(4)), states=zeros(1, 1, 4, 4))
