"""The examples of numba.cuda's documentation, as tests: what a Numba program may rely on has to work here as there.

Each test does what one example does, in code and sizes of its own, and compares with NumPy in float64. The same file
runs on a GPU with LABKIT_DEVICE=gpu. Two examples of the documentation let threads leave before a grid barrier, which
CUDA leaves undefined; here every thread reaches it.
"""

import math

import numba
import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda


def blocks_for(n, threads):
    return (n + threads - 1) // threads


# Writing kernels ------------------------------------------------------------------------------------------------------


@cuda.jit
def vector_sum(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]


@pytest.mark.parametrize("n", [1, 33, 1000, 70_001])
def test_vector_sum(n):
    rng = np.random.default_rng(n)
    a, b = rng.random(n), rng.random(n)
    d_a, d_b = cuda.to_device(a), cuda.to_device(b)
    d_out = cuda.device_array_like(d_a)
    vector_sum.forall(n)(d_a, d_b, d_out)
    np.testing.assert_array_equal(d_out.copy_to_host(), a + b)
    d_out = cuda.device_array_like(d_a)
    vector_sum[blocks_for(n, 256), 256](d_a, d_b, d_out)
    np.testing.assert_array_equal(d_out.copy_to_host(), a + b)


def test_increment_by_one_with_indices_written_out():
    @cuda.jit
    def increment(values):
        i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
        if i < values.size:
            values[i] += 1

    values = np.arange(77, dtype=np.float32)
    increment[blocks_for(values.size, 32), 32](values)  # a host array travels to the device and back
    np.testing.assert_array_equal(values, np.arange(77) + 1)


def test_increment_a_matrix():
    @cuda.jit
    def increment(values):
        row, col = cuda.grid(2)
        if row < values.shape[0] and col < values.shape[1]:
            values[row, col] += 1

    values = np.arange(37 * 21, dtype=np.int32).reshape(37, 21)
    increment[(blocks_for(37, 16), blocks_for(21, 8)), (16, 8)](values)
    np.testing.assert_array_equal(values, np.arange(37 * 21).reshape(37, 21) + 1)


def test_device_function():
    @cuda.jit(device=True)
    def weighted(a, b):
        return 3 * a - b

    @cuda.jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = weighted(a[i], b[i])

    a, b = np.arange(50.0), np.linspace(0, 1, 50)
    out = np.zeros(50)
    kernel[2, 32](a, b, out)
    np.testing.assert_array_equal(out, 3 * a - b)


# Matrix multiplication ------------------------------------------------------------------------------------------------


@cuda.jit
def matrix_product(a, b, c):
    row, col = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        total = 0.0
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        c[row, col] = total


TILE = 16


@cuda.jit
def matrix_product_shared(a, b, c):
    a_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    b_tile = cuda.shared.array(shape=(TILE, TILE), dtype=float32)
    col, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0.0)
    for start in range(0, a.shape[1], TILE):
        a_tile[ty, tx] = 0
        b_tile[ty, tx] = 0
        if row < a.shape[0] and start + tx < a.shape[1]:
            a_tile[ty, tx] = a[row, start + tx]
        if start + ty < b.shape[0] and col < b.shape[1]:
            b_tile[ty, tx] = b[start + ty, col]
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total


@pytest.mark.parametrize("m, k, n", [(16, 16, 16), (5, 23, 7), (1, 1, 1), (37, 50, 33)])
def test_matrix_product(m, k, n):
    rng = np.random.default_rng(m)
    a, b = rng.random((m, k)), rng.random((k, n))
    c = cuda.device_array((m, n))
    d_a, d_b = cuda.to_device(a), cuda.to_device(b)
    matrix_product[(blocks_for(m, 8), blocks_for(n, 16)), (8, 16)](d_a, d_b, c)
    np.testing.assert_allclose(c.copy_to_host(), a @ b, rtol=1e-12)
    c = cuda.device_array((m, n))
    matrix_product_shared[(blocks_for(n, TILE), blocks_for(m, TILE)), (TILE, TILE)](d_a, d_b, c)
    np.testing.assert_allclose(c.copy_to_host(), a @ b, rtol=2e-6)


# The heat equation, sessions of a click stream: barriers across the grid ----------------------------------------------


def test_heat_equation():
    @cuda.jit
    def heat(first, second, steps, k):
        i = cuda.grid(1)
        n = first.size
        grid = cuda.cg.this_grid()
        for step in range(steps):
            if step % 2 == 0:
                now, after = first, second
            else:
                now, after = second, first
            if i < n:
                left = now[i - 1] if i > 0 else 0.0
                right = now[i + 1] if i < n - 1 else 0.0
                after[i] = now[i] + k * (left - 2.0 * now[i] + right)
            grid.sync()

    n, steps = 201, 151
    expected = np.zeros(n)
    expected[n // 2] = 1000
    first, second = cuda.to_device(expected), cuda.device_array(n)
    heat[blocks_for(n, 32), 32](first, second, steps, 0.25)
    for _ in range(steps):
        padded = np.pad(expected, 1)
        expected = expected + 0.25 * (padded[:-2] - 2 * expected + padded[2:])
    result = second.copy_to_host()
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    assert result.sum() == pytest.approx(1000)  # no heat has reached the walls


def test_rows_one_after_the_other():
    @cuda.jit
    def rows_in_sequence(m):
        col = cuda.grid(1)
        grid = cuda.cg.this_grid()
        for row in range(1, m.shape[0]):
            m[row, col] = m[row - 1, m.shape[1] - col - 1] + 1  # written by a thread of another block
            grid.sync()

    m = np.zeros((40, 192), np.int32)
    rows_in_sequence[192 // 32, 32](m)
    np.testing.assert_array_equal(m, np.tile(np.arange(40), (192, 1)).T)


def test_sessions():
    timeout = 3600

    @cuda.jit
    def sessionize(user, second, session):
        i = cuda.grid(1)
        n = user.size
        starts = False
        if i < n:
            starts = i == 0
            if not starts:
                starts = user[i] != user[i - 1] or second[i] - second[i - 1] > timeout
            if starts:
                session[i] = i
        cuda.cg.this_grid().sync()
        if starts:
            ahead = i + 1
            while ahead < n and session[ahead] < 0:
                session[ahead] = i
                ahead += 1

    rng = np.random.default_rng(5)
    user = np.sort(rng.integers(0, 9, 130))
    second = rng.integers(0, 40_000, 130)
    second = second[np.lexsort((second, user))]
    session = np.full(130, -1, np.int64)
    sessionize[5, 32](user, second, session)
    expected = np.zeros(130, np.int64)
    for i in range(130):
        starts = i == 0 or user[i] != user[i - 1] or second[i] - second[i - 1] > timeout
        expected[i] = i if starts else expected[i - 1]
    np.testing.assert_array_equal(session, expected)
    assert 9 <= len(set(expected)) < 130


# Shared, local and constant memory ------------------------------------------------------------------------------------


def test_sum_by_a_tree_in_shared_memory():
    threads = 256

    @cuda.jit
    def tree_sum(values, partial):
        shared = cuda.shared.array(threads, int32)
        tid = cuda.threadIdx.x
        i = cuda.grid(1)
        shared[tid] = values[i] if i < values.size else 0
        cuda.syncthreads()
        step = 1
        while step < cuda.blockDim.x:
            if tid % (2 * step) == 0:
                shared[tid] += shared[tid + step]
            step *= 2
            cuda.syncthreads()
        if tid == 0:
            partial[cuda.blockIdx.x] = shared[0]

    for n in (1, 255, 1000, 1025):
        values = np.random.default_rng(n).integers(-1000, 1000, n)
        blocks = blocks_for(n, threads)
        partial = cuda.device_array(blocks, np.int32)
        tree_sum[blocks, threads](cuda.to_device(values), partial)
        padded = np.pad(values, (0, blocks * threads - n))
        np.testing.assert_array_equal(partial.copy_to_host(), padded.reshape(blocks, threads).sum(axis=1))


def test_dynamic_shared_memory():
    @cuda.jit
    def reverse_in_block(values):
        copy = cuda.shared.array(0, dtype=float32)
        i = cuda.grid(1)
        copy[cuda.threadIdx.x] = values[i]
        cuda.syncthreads()
        values[i] = copy[cuda.blockDim.x - 1 - cuda.threadIdx.x]

    values = np.arange(96, dtype=np.float32)
    reverse_in_block[2, 48, 0, 48 * 4](values)
    np.testing.assert_array_equal(values, np.arange(96).reshape(2, 48)[:, ::-1].ravel())


def test_dynamic_shared_arrays_start_at_the_same_address():
    @cuda.jit
    def bits_of(values, bits):
        as_float = cuda.shared.array(0, dtype=float32)
        as_int = cuda.shared.array(0, dtype=int32)
        tid = cuda.threadIdx.x
        as_float[tid] = values[tid]
        cuda.syncthreads()
        bits[tid] = as_int[tid]

    @cuda.jit
    def disjoint(out):
        floats = cuda.shared.array(0, dtype=float32)[:8]
        ints = cuda.shared.array(0, dtype=int32)[8:16]
        tid = cuda.threadIdx.x
        floats[tid] = 0.5
        ints[tid] = tid
        cuda.syncthreads()
        out[tid] = floats[7 - tid] + ints[7 - tid]

    values = np.linspace(-2, 2, 10, dtype=np.float32)
    bits = np.zeros(10, np.int32)
    bits_of[1, 10, 0, 40](values, bits)
    np.testing.assert_array_equal(bits, values.view(np.int32))
    out = np.zeros(8)
    disjoint[1, 8, 0, 64](out)
    np.testing.assert_array_equal(out, 7.5 - np.arange(8))


def test_local_memory():
    terms = 5

    @cuda.jit
    def power_sum(x, out):
        power = cuda.local.array(terms, dtype=numba.float64)
        i = cuda.grid(1)
        if i < x.size:
            power[0] = 1.0
            for k in range(1, terms):
                power[k] = power[k - 1] * x[i]
            total = 0.0
            for k in range(terms):
                total += power[k]
            out[i] = total

    x, out = np.linspace(-1, 1, 45), np.zeros(45)
    power_sum[2, 32](x, out)
    np.testing.assert_allclose(out, sum(x**k for k in range(terms)), rtol=1e-13, atol=1e-15)


WEIGHTS = np.array([[1.0, 2.0, 1.0], [-3.0, 0.5, 4.0]])


def test_constant_memory():
    @cuda.jit
    def weigh(out):
        weights = cuda.const.array_like(WEIGHTS)
        i = cuda.grid(1)
        if i < out.size:
            out[i] = weights[i % 2, i // 2 % 3] + weights.shape[1]

    out = np.zeros(11)
    weigh[1, 32](out)
    i = np.arange(11)
    np.testing.assert_array_equal(out, WEIGHTS[i % 2, i // 2 % 3] + 3)


# Atomics and warps ----------------------------------------------------------------------------------------------------


def test_atomic_maximum_and_histogram():
    @cuda.jit
    def statistics(values, largest, histogram):
        i = cuda.grid(1)
        if i < values.size:
            cuda.atomic.max(largest, 0, values[i])
            cuda.atomic.add(histogram, int(values[i] * histogram.size), 1)

    values = np.random.default_rng(1).random(3001)
    largest, histogram = np.zeros(1), np.zeros(10, np.int32)
    statistics[blocks_for(3001, 128), 128](values, largest, histogram)
    assert largest[0] == values.max()
    np.testing.assert_array_equal(histogram, np.bincount((values * 10).astype(int), minlength=10))


def test_atomic_with_a_tuple_as_index():
    @cuda.jit
    def largest_of_rows(values, largest):
        col, row = cuda.grid(2)
        if row < values.shape[0] and col < values.shape[1]:
            cuda.atomic.max(largest, (row, 0), values[row, col])

    values = np.random.default_rng(2).normal(size=(7, 45))
    largest = np.full((7, 1), -np.inf)
    largest_of_rows[(2, 1), (32, 8)](values, largest)
    np.testing.assert_array_equal(largest[:, 0], values.max(axis=1))


def test_compare_and_swap_elects_one_thread():
    @cuda.jit
    def elect(ticket, winners):
        i = cuda.grid(1)
        if cuda.atomic.compare_and_swap(ticket, -1, i) == -1:
            cuda.atomic.add(winners, 0, 1)

    ticket, winners = np.full(1, -1, np.int32), np.zeros(1, np.int32)
    elect[3, 64](ticket, winners)
    assert winners[0] == 1 and 0 <= ticket[0] < 192


def test_sum_of_a_warp_by_shuffles():
    @cuda.jit
    def warp_sum(values, out):
        i = cuda.grid(1)
        value = values[i]
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
            offset //= 2
        if cuda.laneid == 0:
            out[i // cuda.warpsize] = value

    values = np.random.default_rng(3).random(256)
    out = np.zeros(8)
    warp_sum[2, 128](values, out)
    np.testing.assert_allclose(out, values.reshape(8, 32).sum(axis=1), rtol=1e-14)


def test_votes_compact_a_warp():
    @cuda.jit
    def keep_positive(values, out, counts):
        lane = cuda.laneid
        value = values[cuda.grid(1)]
        ballot = cuda.ballot_sync(0xFFFFFFFF, value > 0)
        if value > 0:
            out[cuda.blockIdx.x, cuda.popc(ballot & ((1 << lane) - 1))] = value
        if lane == 0:
            counts[cuda.blockIdx.x] = cuda.popc(ballot)

    values = np.random.default_rng(4).normal(size=(3, 32))
    out, counts = np.zeros((3, 32)), np.zeros(3, np.int32)
    keep_positive[3, 32](values.ravel(), out, counts)
    for row, kept, count in zip(values, out, counts, strict=True):
        np.testing.assert_array_equal(kept[:count], row[row > 0])
        assert not kept[count:].any()


# Random numbers, reductions -------------------------------------------------------------------------------------------


def test_monte_carlo_integral():
    @numba.njit
    def reciprocal(x):
        return 1.0 / x

    @cuda.jit
    def sample(out, states, low, high):
        i = cuda.grid(1)
        if i < out.size:
            x = cuda.random.xoroshiro128p_uniform_float32(states, i)
            out[i] = reciprocal(x * (high - low) + low)

    @cuda.reduce
    def total(a, b):
        return a + b

    n = 100_000
    for low, high in ((1, 2), (2, 5)):
        out = cuda.device_array(n, np.float32)
        sample.forall(n)(out, cuda.random.create_xoroshiro128p_states(n, seed=42), low, high)
        assert total(out) * (high - low) / n == pytest.approx(math.log(high / low), rel=0.005)


def test_monte_carlo_pi():
    @cuda.jit
    def estimate(states, iterations, out):
        thread = cuda.grid(1)
        inside = 0
        for _ in range(iterations):
            x = cuda.random.xoroshiro128p_uniform_float32(states, thread)
            y = cuda.random.xoroshiro128p_uniform_float32(states, thread)
            if x * x + y * y <= float32(1.0):
                inside += 1
        out[thread] = 4.0 * inside / iterations

    threads, blocks = 64, 24
    states = cuda.random.create_xoroshiro128p_states(threads * blocks, seed=1)
    out = cuda.device_array(threads * blocks, np.float32)
    estimate[blocks, threads](states, 200, out)
    assert out.copy_to_host().mean() == pytest.approx(math.pi, abs=0.02)


def test_random_volume():
    @cuda.jit
    def fill(volume, states):
        x, y, z = cuda.grid(3)
        width, height, depth = cuda.gridsize(3)
        thread = (z * height + y) * width + x
        for i in range(z, volume.shape[0], depth):
            for j in range(y, volume.shape[1], height):
                for k in range(x, volume.shape[2], width):
                    volume[i, j, k] = cuda.random.xoroshiro128p_uniform_float32(states, thread)

    volume = cuda.device_array((17, 31, 23), np.float32)
    states = cuda.random.create_xoroshiro128p_states(4 * 4 * 4 * 8, seed=1)
    fill[(2, 2, 2), (4, 4, 4)](volume, states)
    values = volume.copy_to_host()
    assert values.min() >= 0 and values.max() <= 1
    assert values.mean() == pytest.approx(0.5, abs=0.02) and values.std() == pytest.approx(12**-0.5, abs=0.02)
    assert len(np.unique(values)) > 0.99 * values.size  # every thread has a generator of its own


def test_reduce():
    total = cuda.reduce(lambda a, b: a + b)
    values = np.arange(1234, dtype=np.float64) + 1
    assert total(values) == values.sum()
    assert total(cuda.to_device(values), init=10) == values.sum() + 10
    result = cuda.device_array(1)
    assert total(cuda.to_device(values), res=result) is None and result[0] == values.sum()


# Functions, globals, ufuncs -------------------------------------------------------------------------------------------


def test_a_function_for_cpu_and_gpu():
    @numba.njit
    def revenue(price, sold, tax):
        return 4 * tax * (2 * price - (4 * sold) / 2 * math.pi)

    @cuda.jit
    def kernel(out, price, sold, tax):
        i = cuda.grid(1)
        if i < len(price):
            out[i] = revenue(price[i], sold[i], tax[i])

    price, sold, tax = cuda.to_device([1, 10, 234]), cuda.to_device([2, 2, 4014]), cuda.to_device([3, 14, 2211])
    out = cuda.to_device([0.0, 0.0, 0.0])
    kernel.forall(len(price))(out, price, sold, tax)
    expected = [revenue(1, 2, 3), revenue(10, 2, 14), revenue(234, 4014, 2211)]
    np.testing.assert_allclose(out.copy_to_host(), expected, rtol=1e-14)
    assert expected[0] == pytest.approx(-126.79644737231007)


def test_globals_are_constants():
    rate = 0.25
    prices = np.array([10.0, 25.0, 5.0])

    @cuda.jit
    def totals(count, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = count[i] * prices[i] * (1 + rate)

    count, out = np.array([1.0, 2.0, 3.0]), np.zeros(3)
    totals[1, 32](count, out)
    np.testing.assert_array_equal(out, [12.5, 62.5, 18.75])
    rate = 9.0
    prices[:] = 0
    out[:] = 0
    totals[1, 32](count, out)  # what the kernel was compiled with stays
    np.testing.assert_array_equal(out, [12.5, 62.5, 18.75])


def test_a_captured_device_array_is_not_copied():
    prices = cuda.to_device(np.array([10.0, 25.0, 5.0], np.float32))

    @cuda.jit
    def totals(count, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = count[i] * prices[i]

    count, out = np.array([1, 2, 3], np.float32), np.zeros(3, np.float32)
    totals[1, 32](count, out)
    np.testing.assert_array_equal(out, [10, 50, 15])
    prices.copy_to_device(np.array([1, 2, 3], np.float32))
    totals[1, 32](count, out)
    np.testing.assert_array_equal(out, [1, 4, 9])


def test_ufuncs_on_numbers():
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = np.sin(x[i]) + np.log(np.hypot(x[i], 3.0)) * np.arctan2(x[i], 2.0) - np.maximum(x[i], 0.5)

    x, out = np.linspace(-3, 3, 61), np.zeros(61)
    kernel[2, 32](x, out)
    expected = np.sin(x) + np.log(np.hypot(x, 3)) * np.arctan2(x, 2) - np.maximum(x, 0.5)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-14)


def test_a_ufunc_on_whole_arrays():
    @cuda.jit
    def kernel(x, out):
        np.sin(x, out)

    x = np.arange(10, dtype=np.float32) - 5
    out = np.zeros_like(x)
    kernel[1, 1](x, out)
    np.testing.assert_allclose(out, np.sin(x.astype(np.float64)), rtol=1e-6)


# Memory, streams, events ----------------------------------------------------------------------------------------------


def test_streams_and_events():
    a = np.arange(5000.0)
    stream = cuda.stream()
    start, end = cuda.event(), cuda.event()
    with cuda.pinned(a), stream.auto_synchronize():
        d_a = cuda.to_device(a, stream=stream)
        out = cuda.device_array_like(a, stream=stream)
        start.record(stream)
        vector_sum[blocks_for(5000, 128), 128, stream](d_a, d_a, out)
        end.record(stream)
        back = out.copy_to_host(stream=stream)
    end.synchronize()
    np.testing.assert_array_equal(back, 2 * a)
    assert 0 <= cuda.event_elapsed_time(start, end) < 60_000


def test_mapped_and_managed_memory():
    for make in (cuda.mapped_array, cuda.managed_array):
        x, out = make(100), make(100)
        x[:] = np.arange(100)
        vector_sum[4, 32](x, x, out)
        cuda.synchronize()
        np.testing.assert_array_equal(np.asarray(out), 2 * np.arange(100))
    x, out = np.arange(100.0), np.zeros(100)
    with cuda.mapped(x, out) as (d_x, d_out):
        vector_sum[4, 32](d_x, d_x, d_out)
        cuda.synchronize()
    np.testing.assert_array_equal(out, 2 * x)
