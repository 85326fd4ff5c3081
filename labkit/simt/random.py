"""Random numbers in kernels: numba.cuda.random's functions, which give the same sequences here as on a GPU.

One generator per thread, xoroshiro128+: 128 bits of state, period 2**128 - 1. Generator i starts i * 2**64 steps into
the one sequence of a seed, so threads never meet. SplitMix64 spreads the bits of the seed.

Shapes  states (n,) of xoroshiro128p_dtype, in device memory
Work    about 5 integer operations a number; starting n generators 128 steps each
Source  Blackman and Vigna, https://prng.di.unimi.it: xoroshiro128plus.c (the 2016 constants), splitmix64.c
"""

import math

import numpy as np
from numba import float32, float64, njit, uint32, uint64

from labkit.simt.arrays import DeviceNDArray, device_array
from labkit.simt.cache import keep_beside, own_version
from labkit.simt.jit import jit

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)

# The polynomial of a jump over 2**64 steps, low word first.
JUMP_LOW, JUMP_HIGH = np.uint64(0xBEAC0467EBA5FACB), np.uint64(0xD86B048B86AA9922)
TWO_PI_FLOAT32 = np.float32(2 * math.pi)
TWO_PI_FLOAT64 = np.float64(2 * math.pi)


def _compiled(function):
    return keep_beside(njit(function), own_version())


# On two numbers: called by the host and by the device functions below -------------------------------------------------


@_compiled
def _rotate_left(x, k):
    return (x << uint32(k)) | (x >> uint32(64 - k))


@_compiled
def _step(s0, s1):
    """The state after (s0, s1)."""
    s1 ^= s0
    return _rotate_left(s0, 55) ^ s1 ^ (s1 << uint32(14)), _rotate_left(s1, 36)


@_compiled
def _jump(s0, s1):
    """The state 2**64 steps after (s0, s1)."""
    jumped0, jumped1 = uint64(0), uint64(0)
    for bit in range(128):
        word = JUMP_LOW if bit < 64 else JUMP_HIGH
        if word & (uint64(1) << uint32(bit & 63)):
            jumped0 ^= s0
            jumped1 ^= s1
        s0, s1 = _step(s0, s1)
    return jumped0, jumped1


@_compiled
def _split_mix(seed):
    z = seed + uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> uint32(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint32(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint32(31))


@_compiled
def init_xoroshiro128p_states_cpu(states, seed, subsequence_start):
    """Fill a host array with generators that start 2**64 steps apart."""
    s0 = s1 = _split_mix(uint64(seed))
    for _ in range(subsequence_start):
        s0, s1 = _jump(s0, s1)
    for i in range(states.size):
        states[i]["s0"] = s0
        states[i]["s1"] = s1
        s0, s1 = _jump(s0, s1)


# On the host ----------------------------------------------------------------------------------------------------------


def init_xoroshiro128p_states(states: DeviceNDArray, seed, subsequence_start=0, stream=0) -> None:
    """Start all generators of `states` anew from `seed`, the first one subsequence_start * 2**64 steps in."""
    host = np.empty(states.shape, xoroshiro128p_dtype)
    init_xoroshiro128p_states_cpu(host, np.uint64(seed % 2**64), np.uint64(subsequence_start))
    states.copy_to_device(host, stream=stream)


def create_xoroshiro128p_states(n, seed, subsequence_start=0, stream=0) -> DeviceNDArray:
    """`n` generators in device memory: one for each thread that draws."""
    states = device_array(n, xoroshiro128p_dtype, stream=stream)
    init_xoroshiro128p_states(states, seed, subsequence_start, stream)
    return states


# In kernels -----------------------------------------------------------------------------------------------------------


@jit(device=True)
def init_xoroshiro128p_state(states, index, seed):
    """Start generator `index` from a 64-bit seed."""
    z = _split_mix(uint64(seed))
    states[index]["s0"] = z
    states[index]["s1"] = z


@jit(device=True)
def xoroshiro128p_next(states, index):
    """The next uint64 of generator `index`."""
    s0 = states[index]["s0"]
    s1 = states[index]["s1"]
    next0, next1 = _step(s0, s1)
    states[index]["s0"] = next0
    states[index]["s1"] = next1
    return s0 + s1


@jit(device=True)
def xoroshiro128p_jump(states, index):
    """Move generator `index` on by 2**64 steps."""
    s0, s1 = _jump(states[index]["s0"], states[index]["s1"])
    states[index]["s0"] = s0
    states[index]["s1"] = s1


@jit(device=True)
def uint64_to_unit_float64(x):
    """The upper 53 bits of x as a float64 in [0, 1)."""
    return (x >> uint32(11)) * (float64(1) / (uint64(1) << uint32(53)))


@jit(device=True)
def uint64_to_unit_float32(x):
    """x as a float32 in [0, 1]; rounding reaches 1 once in 2**25 numbers."""
    return float32(uint64_to_unit_float64(x))


@jit(device=True)
def xoroshiro128p_uniform_float32(states, index):
    """The next float32 of generator `index`, uniform in [0, 1]."""
    return uint64_to_unit_float32(xoroshiro128p_next(states, index))


@jit(device=True)
def xoroshiro128p_uniform_float64(states, index):
    """The next float64 of generator `index`, uniform in [0, 1)."""
    return uint64_to_unit_float64(xoroshiro128p_next(states, index))


@jit(device=True)
def xoroshiro128p_normal_float32(states, index):
    """The next float32 of generator `index`, normal with mean 0 and deviation 1 (Box-Muller: two steps)."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float32(2.0) * math.log(u1)) * math.cos(TWO_PI_FLOAT32 * u2)


@jit(device=True)
def xoroshiro128p_normal_float64(states, index):
    """As above in float64, from two float32 numbers, as numba.cuda draws it."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float64(2.0) * math.log(u1)) * math.cos(TWO_PI_FLOAT64 * u2)
