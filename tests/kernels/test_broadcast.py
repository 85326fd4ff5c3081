"""Broadcast addition: every rung, any block, errors that name the argument."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.broadcast import broadcast_add_coalesced, broadcast_add_reference, broadcast_add_strided
from labkit.kernels.op import rung
from labkit.kernels.ops.broadcast import BROADCAST_ADD
from tests.launching import ones


def test_every_rung_agrees():
    assert agree(BROADCAST_ADD, seed=1).passed


def test_reference_is_numpy_broadcasting():
    rng = np.random.default_rng(0)
    a, b, c = BROADCAST_ADD.inputs(rng, X=2, Y=3, Z=4)
    expected = np.empty((2, 3, 4))
    for x in range(2):
        for y in range(3):
            for z in range(4):
                expected[x, y, z] = float(a[x, y, z]) + float(b[x, y]) + float(c[x])
    np.testing.assert_array_equal(broadcast_add_reference(a, b, c), expected)


@pytest.mark.parametrize("launch", [broadcast_add_strided, broadcast_add_coalesced], ids=lambda f: f.__name__)
@pytest.mark.parametrize("block", [(4, 4, 4), (1, 2, 3), (32, 8, 4)])
def test_any_block(launch, block):
    @rung(kernel=launch.kernel, idea="another block")
    def shaped(a, b, c, out, stream=0):
        launch(a, b, c, out, stream=stream, block=block)

    assert agree(BROADCAST_ADD, [shaped], sizes=({"X": 5, "Y": 3, "Z": 7}, {"X": 1, "Y": 9, "Z": 33})).passed


def test_a_swapped_pair_of_axes_is_rejected():
    @rung(kernel=broadcast_add_strided.kernel, idea="b transposed")
    def swapped(a, b, c, out, stream=0):
        rows = cuda.to_device(np.ascontiguousarray(b.copy_to_host().T).reshape(b.shape))
        broadcast_add_strided(a, rows, c, out, stream=stream)

    with pytest.raises(AssertionError, match="swapped at X=5, Y=3, Z=7"):
        agree(BROADCAST_ADD, [swapped], sizes=({"X": 5, "Y": 3, "Z": 7},))


def test_errors_name_the_argument():
    a, b, c, out = ones(2, 3, 4), ones(2, 3), ones(2), ones(2, 3, 4)
    with pytest.raises(ValueError, match=r"b has shape \(3, 2\); it must be \(2, 3\)"):
        broadcast_add_strided(a, ones(3, 2), c, out)
    with pytest.raises(ValueError, match=r"c has shape \(3,\); it must be \(2,\)"):
        broadcast_add_strided(a, b, ones(3), out)
    with pytest.raises(ValueError, match="block is"):
        broadcast_add_strided(a, b, c, out, block=(64, 64, 1))
    with pytest.raises(ValueError, match="blocks along z; CUDA allows 65,535"):
        tall = ones(65_536, 1, 1)
        broadcast_add_coalesced(tall, ones(65_536, 1), ones(65_536), tall, block=(1, 1, 1))
