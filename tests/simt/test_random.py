"""Random numbers of the CPU device: the states and the sequences are numba.cuda's, bit for bit."""

import time

import numpy as np
import pytest

from labkit.simt import api as cuda
from labkit.simt import random
from labkit.simt.errors import OutOfBoundsError


def test_states_known_by_value():
    states = random.create_xoroshiro128p_states(2, seed=1).copy_to_host()
    assert states.dtype == random.xoroshiro128p_dtype and states["s0"][0] == states["s1"][0] == 0x910A2DEC89025CC1
    assert (states["s0"][1], states["s1"][1]) == (0x73C19A5348FC9098, 0x6C96C932F21D71EE)


@pytest.mark.parametrize(
    "n, seed, start", [(1, 1, 0), (5, 42, 0), (40, 2**63 + 7, 3), (4, 0, 1), (3, -1, 0), (0, 5, 0)]
)
def test_states_are_numbas(n, seed, start):
    theirs = pytest.importorskip("numba.cuda.random")
    expected = np.empty(n, theirs.xoroshiro128p_dtype)
    theirs.init_xoroshiro128p_states_cpu(expected, np.uint64(seed % 2**64), start)
    states = random.create_xoroshiro128p_states(n, seed, subsequence_start=start)
    np.testing.assert_array_equal(states.copy_to_host(), expected)
    random.init_xoroshiro128p_states(states, seed + 1)
    assert n == 0 or (states.copy_to_host() != expected).all()


def test_every_function_is_numbas():
    theirs = pytest.importorskip("numba.cuda.random")

    @cuda.jit
    def draw(states, integers, numbers):
        i = cuda.grid(1)
        random.init_xoroshiro128p_state(states, i, 100 + i)
        random.xoroshiro128p_jump(states, i)
        integers[i] = random.xoroshiro128p_next(states, i)
        numbers[i, 0] = random.xoroshiro128p_uniform_float32(states, i)
        numbers[i, 1] = random.xoroshiro128p_uniform_float64(states, i)
        numbers[i, 2] = random.xoroshiro128p_normal_float32(states, i)
        numbers[i, 3] = random.xoroshiro128p_normal_float64(states, i)

    states = cuda.device_array(64, random.xoroshiro128p_dtype)
    integers, numbers = np.zeros(64, np.uint64), np.zeros((64, 4))
    draw[2, 32](states, integers, numbers)
    host = np.zeros(64, random.xoroshiro128p_dtype)
    for i in range(64):
        theirs.init_xoroshiro128p_state(host, i, 100 + i)
        theirs.xoroshiro128p_jump(host, i)
        assert integers[i] == theirs.xoroshiro128p_next(host, i)
        assert numbers[i, 0] == theirs.xoroshiro128p_uniform_float32(host, i)
        assert numbers[i, 1] == theirs.xoroshiro128p_uniform_float64(host, i)
        assert numbers[i, 2] == pytest.approx(theirs.xoroshiro128p_normal_float32(host, i), rel=1e-6)
        assert numbers[i, 3] == pytest.approx(theirs.xoroshiro128p_normal_float64(host, i), rel=1e-14)
    np.testing.assert_array_equal(states.copy_to_host(), host)


def test_normal_numbers_are_normal():
    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        for k in range(out.shape[1]):
            out[i, k] = random.xoroshiro128p_normal_float32(states, i)

    out = np.zeros((256, 400), np.float32)
    draw[2, 128](random.create_xoroshiro128p_states(256, seed=3), out)
    assert np.isfinite(out).all()
    assert abs(out.mean()) < 0.01 and out.std() == pytest.approx(1, abs=0.01)
    assert (np.abs(out) < 1.96).mean() == pytest.approx(0.95, abs=0.005)


def test_more_threads_than_generators_is_an_error():
    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = random.xoroshiro128p_uniform_float32(states, i)

    with pytest.raises(OutOfBoundsError, match=r"states\[40\], outside its shape \(40,\)"):
        draw[2, 32](random.create_xoroshiro128p_states(40, seed=1), np.zeros(64))


def test_a_million_states_are_made_quickly():
    random.create_xoroshiro128p_states(1, seed=1)
    start = time.process_time()  # which other processes do not lengthen
    random.create_xoroshiro128p_states(2**20, seed=1)
    assert time.process_time() - start < 4
