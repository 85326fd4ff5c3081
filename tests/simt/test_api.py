"""What numba.cuda offers inside a kernel, item by item, compared with NumPy or with values known from CUDA's manuals.

The same file runs on a GPU with LABKIT_DEVICE=gpu. A kernel compiles for about a second, so one kernel checks what
belongs together: row k of its output is the k-th item.
"""

import math

import numba
import numpy as np
import pytest
from numba import complex64, float32, float64, int32, int64, uint32, void
from numba.types import float16

from labkit import cuda

FULL = 0xFFFFFFFF  # all 32 lanes


# Where am I -----------------------------------------------------------------------------------------------------------


def test_position_in_one_dimension():
    @cuda.jit
    def kernel(out):
        i = cuda.grid(1)
        out[0, i] = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
        out[1, i] = cuda.gridsize(1)
        out[2, i] = cuda.blockDim.x * 1000 + cuda.gridDim.x
        out[3, i] = cuda.laneid
        out[4, i] = cuda.warpsize
        out[5, i] = cuda.threadIdx.y + cuda.threadIdx.z + cuda.blockIdx.y + cuda.blockIdx.z
        out[6, i] = cuda.blockDim.y * cuda.blockDim.z * cuda.gridDim.y * cuda.gridDim.z

    out = np.full((7, 120), -1)
    kernel[3, 40](out)
    i = np.arange(120)
    expected = [i, i * 0 + 120, i * 0 + 40003, i % 40 % 32, i * 0 + 32, i * 0, i * 0 + 1]
    np.testing.assert_array_equal(out, expected)


def test_position_in_two_and_three_dimensions():
    @cuda.jit
    def two(out):
        x, y = cuda.grid(2)
        width, height = cuda.gridsize(2)
        out[y, x] = y * width + x + 1000 * height

    @cuda.jit
    def three(out, lanes):
        x, y, z = cuda.grid(3)
        width, height, depth = cuda.gridsize(3)
        out[z, y, x] = (z * height + y) * width + x + 1000 * depth
        lanes[z, y, x] = cuda.laneid

    out = np.zeros((6, 10), np.int64)
    two[(2, 3), (5, 2)](out)
    np.testing.assert_array_equal(out, 6000 + np.arange(60).reshape(6, 10))
    out, lanes = np.zeros((2, 6, 15), np.int64), np.zeros((2, 6, 15), np.int64)
    three[(3, 2, 1), (5, 3, 2)](out, lanes)
    np.testing.assert_array_equal(out, 2000 + np.arange(180).reshape(2, 6, 15))
    z, y, x = np.indices((2, 6, 15))
    np.testing.assert_array_equal(lanes, (x % 5 + 5 * (y % 3) + 15 * z) % 32)  # x fastest, then y, then z


def test_ways_to_launch():
    @cuda.jit
    def count(out, step):
        cuda.atomic.add(out, cuda.blockIdx.y, step)

    out = np.zeros(4, np.int64)
    for grid, block in [((1, 4), 8), ((2, 4), (2, 2)), ((1, 4, 1), (1, 2, 4)), ((np.int64(1), 4), np.int32(8))]:
        out[:] = 0
        count[grid, block](out, 3)
        np.testing.assert_array_equal(out, 3 * 8)  # eight threads in each row of blocks
    # a device array: with a stream, numba-cuda 0.30 cannot take NumPy >= 2.5's host arrays
    on_device, stream = cuda.to_device(out), cuda.stream()
    launch = count[(1, 4), 8, stream, 0]
    launch(on_device, 1)
    launch(on_device, 1)
    stream.synchronize()
    assert on_device.copy_to_host().tolist() == [24 + 8 + 8] * 4
    assert count.py_func.__name__ == "count"


# Memory spaces --------------------------------------------------------------------------------------------------------


def test_static_shared_memory():
    @cuda.jit
    def kernel(out):
        line, plane = cuda.shared.array(64, float32), cuda.shared.array((4, 16), dtype=int32)
        pairs = cuda.shared.array(shape=(2, 4, 8), dtype=complex64, alignment=16)
        t = cuda.threadIdx.x
        line[t] = t + 0.5
        plane[t // 16, t % 16] = -t
        pairs[t // 32, t // 8 % 4, t % 8] = complex(t, 1)
        cuda.syncthreads()
        back = 63 - t
        out[0, t] = line[back]
        out[1, t] = plane[back // 16, back % 16]
        out[2, t] = pairs[back // 32, back // 8 % 4, back % 8].real
        out[3, t] = line.size + plane.shape[1] * pairs.ndim

    out = np.zeros((4, 64))
    kernel[1, 64](out)
    back = 63.0 - np.arange(64)
    np.testing.assert_array_equal(out, [back + 0.5, -back, back, back * 0 + 64 + 16 * 3])


def test_each_block_has_its_own_shared_memory():
    @cuda.jit
    def kernel(out):
        total = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, cuda.blockIdx.x + 1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = total[0]

    out = np.zeros(13, np.int32)
    kernel[13, 50](out)
    np.testing.assert_array_equal(out, 50 * (np.arange(13) + 1))


def test_dynamic_shared_memory_takes_what_the_launch_gives():
    @cuda.jit
    def kernel(values, out):
        shared = cuda.shared.array(0, dtype=float64)
        t = cuda.threadIdx.x
        shared[t] = values[cuda.blockIdx.x, t]
        cuda.syncthreads()
        out[cuda.blockIdx.x, t] = shared[(t + 1) % cuda.blockDim.x] + shared.size

    values = np.random.default_rng(0).random((3, 37))
    out = np.zeros((3, 37))
    kernel[3, 37, 0, 37 * 8](values, out)
    np.testing.assert_array_equal(out, np.roll(values, -1, axis=1) + 37)


TABLE = np.arange(12, dtype=np.float32).reshape(3, 4) ** 2
SIZE = 3


def test_local_and_constant_memory():
    @cuda.jit
    def kernel(out):
        scratch = cuda.local.array((SIZE, 4), float32)
        queue = cuda.local.array(shape=2, dtype=int64)
        table = cuda.const.array_like(TABLE)
        t = cuda.grid(1)
        for row in range(SIZE):
            for col in range(4):
                scratch[row, col] = table[row, col] + t
        queue[0] = t
        queue[1] = queue[0] * t
        cuda.syncthreads()  # no other thread has touched it
        total = float32(0)
        for row in range(SIZE):
            for col in range(4):
                total += scratch[row, col]
        out[t] = total + queue[1]

    out = np.zeros(70)
    kernel[2, 35](out)
    t = np.arange(70)
    np.testing.assert_array_equal(out, TABLE.sum() + 12 * t + t * t)


# Barriers and fences --------------------------------------------------------------------------------------------------


def test_barriers_that_count():
    @cuda.jit
    def kernel(values, out):
        t = cuda.threadIdx.x
        value = values[cuda.blockIdx.x, t]
        positive = int32(value > 0)
        out[cuda.blockIdx.x, 0, t] = cuda.syncthreads_count(positive)
        out[cuda.blockIdx.x, 1, t] = cuda.syncthreads_and(positive)
        out[cuda.blockIdx.x, 2, t] = cuda.syncthreads_or(positive)
        if cuda.syncthreads_or(int32(value > 1)):
            out[cuda.blockIdx.x, 3, t] = 7

    values = np.random.default_rng(3).normal(size=(4, 50)) * 0.3
    values[1], values[2] = -1, 0.5
    values[3, 20] = 2
    out = np.zeros((4, 4, 50), np.int32)
    kernel[4, 50](values, out)
    positive = values > 0
    expected = [positive.sum(1), positive.all(1), positive.any(1), 7 * (values > 1).any(1)]
    np.testing.assert_array_equal(out, np.transpose(expected)[:, :, None].repeat(50, axis=2))


def test_fences_and_warp_barriers():
    @cuda.jit
    def kernel(values):
        shared = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        shared[t] = values[t]
        cuda.threadfence_block()
        cuda.syncwarp()
        value = shared[t ^ 1]
        cuda.syncwarp(0xFFFFFFFF)
        cuda.threadfence()
        cuda.threadfence_system()
        cuda.nanosleep(1)
        if t % 32 < 8:
            shared[t] = value * 2
            cuda.syncwarp(0xFF)
            value = shared[t ^ 7]
        values[t] = value

    values = np.arange(64, dtype=np.float32)
    kernel[1, 64](values)
    t = np.arange(64)
    np.testing.assert_array_equal(values, np.where(t % 32 < 8, 2 * (t ^ 7 ^ 1), t ^ 1))


def test_barriers_in_loops_that_end_together():
    @cuda.jit
    def halve_until_small(values, rounds):
        shared = cuda.shared.array(40, float32)
        t = cuda.threadIdx.x
        shared[t] = values[t]
        n = 0
        while True:
            cuda.syncthreads()
            large = cuda.syncthreads_count(int32(shared[t] > 1))
            if large == 0:
                break
            n += 1
            if n % 2:
                cuda.syncthreads()
                continue
            shared[t] /= 4
        values[t] = shared[t]
        rounds[t] = n

    values, rounds = np.linspace(0, 100, 40, dtype=np.float32), np.zeros(40, np.int32)
    halve_until_small[1, 40](values, rounds)
    np.testing.assert_array_equal(rounds, 8)
    np.testing.assert_allclose(values, np.linspace(0, 100, 40) / 4**4, rtol=1e-6)


def test_a_whole_block_may_return_early():
    @cuda.jit
    def kernel(out):
        shared = cuda.shared.array(32, int32)
        if cuda.blockIdx.x % 2:
            return
        shared[cuda.threadIdx.x] = cuda.threadIdx.x
        cuda.syncthreads()
        out[cuda.blockIdx.x, cuda.threadIdx.x] = shared[31 - cuda.threadIdx.x]

    out = np.full((5, 32), -1)
    kernel[5, 32](out)
    assert (out[1::2] == -1).all()
    np.testing.assert_array_equal(out[::2], np.tile(31 - np.arange(32), (3, 1)))


def test_grid_barrier_keeps_shared_memory_and_locals():
    @cuda.jit
    def kernel(values, out):
        shared = cuda.shared.array(32, int32)
        grid = cuda.cg.this_grid()
        t, i = cuda.threadIdx.x, cuda.grid(1)
        shared[t] = i
        mine = i * 10
        for step in range(3):
            values[i] = mine + step
            grid.sync()
            mine = values[(i + 32) % values.size]  # of the same thread of the next block
            grid.sync()
        out[i] = mine + shared[31 - t] * 100_000

    values, out = np.zeros(96, np.int64), np.zeros(96, np.int64)
    kernel[3, 32](values, out)
    i = np.arange(96)
    mine = i * 10
    for step in range(3):
        mine = np.roll(mine + step, -32)
    np.testing.assert_array_equal(out, mine + (i // 32 * 32 + 31 - i % 32) * 100_000)


# Warps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_shuffles(dtype):
    @cuda.jit
    def kernel(values, out):
        i, lane = cuda.grid(1), cuda.laneid
        value = values[i]
        out[0, i] = cuda.shfl_sync(0xFFFFFFFF, value, 3)
        out[1, i] = cuda.shfl_sync(0xFFFFFFFF, value, (lane * 7 + 1) % 32)
        out[2, i] = cuda.shfl_up_sync(0xFFFFFFFF, value, 5)
        out[3, i] = cuda.shfl_down_sync(0xFFFFFFFF, value, 9)
        out[4, i] = cuda.shfl_xor_sync(0xFFFFFFFF, value, 21)
        out[5, i] = cuda.shfl_sync(0xFFFFFFFF, value, 33)

    values = np.random.default_rng(1).integers(-(2**31), 2**31, 64).astype(dtype)
    if dtype == "i8":
        values *= 2**31  # both halves of 64 bits travel
    out = np.zeros((6, 64), dtype)
    kernel[1, 64](values, out)
    lane, warp = np.arange(64) % 32, np.arange(64) // 32 * 32
    source = [lane * 0 + 3, (lane * 7 + 1) % 32, np.where(lane < 5, lane, lane - 5)]
    source += [np.where(lane > 22, lane, lane + 9), lane ^ 21, lane * 0 + 1]
    np.testing.assert_array_equal(out, values[warp + np.array(source)])


def test_shuffle_within_a_part_of_the_warp():
    @cuda.jit
    def kernel(values, out):
        t = cuda.threadIdx.x
        value = values[t]
        if t < 8:
            for offset in (4, 2, 1):
                value += cuda.shfl_xor_sync(0xFF, value, offset)
        out[t] = value

    values, out = np.arange(20, dtype=np.float32), np.zeros(20)
    kernel[1, 20](values, out)  # a block that does not fill its warp
    np.testing.assert_array_equal(out, np.where(values < 8, values[:8].sum(), values))


def test_votes():
    @cuda.jit
    def kernel(values, out):
        i = cuda.grid(1)
        value = values[i]
        out[0, i] = cuda.all_sync(0xFFFFFFFF, value > 0)
        out[1, i] = cuda.any_sync(0xFFFFFFFF, value > 0)
        out[2, i] = cuda.eq_sync(0xFFFFFFFF, value > 0)
        out[3, i] = uint32(cuda.ballot_sync(0xFFFFFFFF, value > 0))
        out[4, i] = cuda.lanemask_lt()
        out[5, i] = cuda.activemask()
        out[6, i] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, value > 0) & cuda.lanemask_lt())  # positives to my left

    values = np.random.default_rng(2).normal(size=(4, 32))
    values[1], values[2] = 1, -1
    out = np.zeros((7, 128), np.int64)
    kernel[2, 64](values.ravel(), out)
    yes = values > 0
    lane = np.arange(32)
    ballot = (yes * 2**lane).sum(axis=1)
    expected = [yes.all(1), yes.any(1), yes.all(1) | ~yes.any(1), ballot]
    np.testing.assert_array_equal(out[:4], np.repeat(np.array(expected, np.int64), 32, axis=1))
    np.testing.assert_array_equal(out[4], np.tile(2**lane - 1, 4))
    np.testing.assert_array_equal(out[5], FULL)
    np.testing.assert_array_equal(out[6], (yes.cumsum(axis=1) - yes).ravel())


def test_a_ballot_is_a_signed_number():
    @cuda.jit
    def kernel(out):
        out[0] = cuda.ballot_sync(0xFFFFFFFF, True)
        out[1] = cuda.popc(cuda.ballot_sync(0xFFFFFFFF, cuda.laneid != 4))

    out = np.zeros(2, np.int64)
    kernel[1, 32](out)
    assert out.tolist() == [-1, 31]


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4", "f8"])
def test_matches(dtype):
    @cuda.jit
    def kernel(values, out):
        i = cuda.grid(1)
        out[0, i] = uint32(cuda.match_any_sync(0xFFFFFFFF, values[i]))
        mask, same = cuda.match_all_sync(0xFFFFFFFF, values[i])
        out[1, i] = uint32(mask)
        out[2, i] = same

    values = np.random.default_rng(5).integers(0, 4, (2, 32)).astype(dtype)
    values[1] = 3
    out = np.zeros((3, 64), np.int64)
    kernel[1, 64](values.ravel(), out)
    equal = values[:, :, None] == values[:, None, :]
    np.testing.assert_array_equal(out[0].reshape(2, 32), (equal * 2 ** np.arange(32)).sum(axis=2))
    np.testing.assert_array_equal(out[1], [0] * 32 + [FULL] * 32)
    np.testing.assert_array_equal(out[2], [0] * 32 + [1] * 32)


# Atomics: they change the element and return what was there before ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8", "f4", "f8"])
def test_atomic_arithmetic(dtype):
    @cuda.jit
    def kernel(values, cells, tickets):
        i = cuda.grid(1)
        tickets[i] = cuda.atomic.add(cells, 0, values[0])
        cuda.atomic.add(cells, 1, values[i])
        cuda.atomic.sub(cells, 2, values[i])
        cuda.atomic.max(cells, 3, values[i])
        cuda.atomic.min(cells, 4, values[i])
        cuda.atomic.nanmax(cells, 5, values[i])
        cuda.atomic.nanmin(cells, 6, values[i])

    values = np.random.default_rng(6).integers(1, 100, 96).astype(dtype)
    values[0] = 1
    cells = np.array([0, 0, 20_000, 5, 99, 5, 99], dtype)
    tickets = np.zeros(96, dtype)
    kernel[3, 32](values, cells, tickets)
    total = values.astype(np.int64).sum()
    assert cells.tolist() == [96, total, 20_000 - total, values.max(), 1, values.max(), 1]
    assert sorted(tickets.tolist()) == list(range(96))  # every thread got another old value


def test_atomics_return_the_old_value():
    @cuda.jit
    def kernel(cells, old):
        old[0] = cuda.atomic.add(cells, 0, 5)
        old[1] = cuda.atomic.sub(cells, 0, 3)
        old[2] = cuda.atomic.max(cells, 0, 50)
        old[3] = cuda.atomic.max(cells, 0, 20)
        old[4] = cuda.atomic.min(cells, 0, 30)
        old[5] = cuda.atomic.and_(cells, 0, 28)
        old[6] = cuda.atomic.or_(cells, 0, 3)
        old[7] = cuda.atomic.xor(cells, 0, 6)
        old[8] = cuda.atomic.exch(cells, 0, 77)
        old[9] = cuda.atomic.cas(cells, 0, 77, 78)
        old[10] = cuda.atomic.cas(cells, 0, 77, 79)
        old[11] = cuda.atomic.compare_and_swap(cells, 78, 80)
        old[12] = cells[0]

    for dtype in (np.int32, np.uint64):
        cells, old = np.array([10], dtype), np.zeros(13, dtype)
        kernel[1, 1](cells, old)
        assert old.tolist() == [10, 15, 12, 50, 50, 30, 28, 31, 25, 77, 78, 78, 80]


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
def test_atomic_bits(dtype):
    @cuda.jit
    def kernel(values, cells, exchanged):
        i = cuda.grid(1)
        cuda.atomic.and_(cells, 0, values[i])
        cuda.atomic.or_(cells, 1, values[i])
        cuda.atomic.xor(cells, 2, values[i])
        exchanged[i] = cuda.atomic.exch(cells, 3, values[i])

    values = np.random.default_rng(7).integers(0, 2**31, 64).astype(dtype) | 5
    cells, exchanged = np.array([-1, 0, 0, 9]).astype(dtype), np.zeros(64, dtype)
    kernel[2, 32](values, cells, exchanged)
    reduced = [np.bitwise_and.reduce(values), np.bitwise_or.reduce(values), np.bitwise_xor.reduce(values)]
    assert cells[:3].tolist() == reduced
    assert sorted([*exchanged.tolist(), cells[3]]) == sorted([9, *values.tolist()])  # nothing is lost


@pytest.mark.parametrize("dtype", ["u4", "u8"])
def test_atomic_counters_wrap(dtype):
    @cuda.jit
    def kernel(cells, old):
        i = cuda.grid(1)
        old[0, i] = cuda.atomic.inc(cells, 0, 6)  # 0 ... 6, then 0 again
        old[1, i] = cuda.atomic.dec(cells, 1, 6)  # 6 ... 0, then 6 again

    cells, old = np.array([0, 6], dtype), np.zeros((2, 35), dtype)
    kernel[1, 35](cells, old)
    assert cells.tolist() == [0, 6]
    assert np.bincount(old[0].astype(int)).tolist() == [5] * 7 == np.bincount(old[1].astype(int)).tolist()
    cells[:] = 100  # beyond the limit
    kernel[1, 1](cells, old)
    assert cells.tolist() == [0, 6] and old[:, 0].tolist() == [100, 100]


def test_atomics_in_shared_memory_and_several_dimensions():
    @cuda.jit
    def kernel(keys, histogram, grid):
        local = cuda.shared.array((2, 8), int32)
        t = cuda.threadIdx.x
        if t < 16:
            local[t // 8, t % 8] = 0
        cuda.syncthreads()
        key = keys[cuda.grid(1)]
        cuda.atomic.add(local, (t % 2, key), 1)
        cuda.atomic.add(grid, (cuda.blockIdx.x, t % 2, int64(key)), 1)
        cuda.syncthreads()
        if t < 16:
            cuda.atomic.add(histogram, t % 8, local[t // 8, t % 8])

    keys = np.random.default_rng(8).integers(0, 8, 200).astype(np.int32)
    histogram, grid = np.zeros(8, np.int32), np.zeros((4, 2, 8), np.float64)
    kernel[4, 50](keys, histogram, grid)
    np.testing.assert_array_equal(histogram, np.bincount(keys, minlength=8))
    expected = [[np.bincount(block[half::2], minlength=8) for half in (0, 1)] for block in keys.reshape(4, 50)]
    np.testing.assert_array_equal(grid, expected)


def test_atomic_with_not_a_number():
    @cuda.jit
    def kernel(cells):
        cuda.atomic.nanmax(cells, 0, float32(3))
        cuda.atomic.nanmin(cells, 1, float32(3))
        cuda.atomic.nanmax(cells, 2, float32(math.nan))
        cuda.atomic.add(cells, 3, float32(1))

    cells = np.array([np.nan, np.nan, 2, np.nan], np.float32)
    kernel[1, 1](cells)
    np.testing.assert_array_equal(cells, np.array([3, 3, 2, np.nan], np.float32))


def test_a_lock_by_compare_and_swap():
    @cuda.jit
    def kernel(best, values):
        value = values[cuda.grid(1)]
        seen = best[0]
        while value > seen:
            before = cuda.atomic.cas(best, 0, seen, value)
            if before == seen:
                break
            seen = before

    values = np.random.default_rng(9).integers(0, 10**9, 256).astype(np.int32)
    best = np.zeros(1, np.int32)
    kernel[2, 128](best, values)
    assert best[0] == values.max()


# Numbers --------------------------------------------------------------------------------------------------------------


def test_bits():
    @cuda.jit
    def kernel(i4, u4, i8, u8, out):
        i = cuda.grid(1)
        a, b, c, d = i4[i], u4[i], i8[i], u8[i]
        out[0, i], out[1, i], out[2, i], out[3, i] = cuda.popc(a), cuda.popc(b), cuda.popc(c), cuda.popc(d)
        out[4, i], out[5, i], out[6, i], out[7, i] = cuda.clz(a), cuda.clz(b), cuda.clz(c), cuda.clz(d)
        out[8, i], out[9, i], out[10, i], out[11, i] = cuda.ffs(a), cuda.ffs(b), cuda.ffs(c), cuda.ffs(d)
        out[12, i] = cuda.brev(u4[i])
        out[13, i] = cuda.brev(u8[i]) >> 1

    u8 = np.array([0, 1, 2, 3, 40, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x123456789ABCDEF0], np.uint64)
    arrays = u8.astype(np.int32), u8.astype(np.uint32), u8.astype(np.int64), u8
    out = np.zeros((14, u8.size), np.int64)
    kernel[1, u8.size](*arrays, out)
    bits = [[f"{int(x) % 2**n:0{n}b}" for x in a] for a, n in zip(arrays, (32, 32, 64, 64), strict=True)]
    np.testing.assert_array_equal(out[:4], [[b.count("1") for b in row] for row in bits])
    np.testing.assert_array_equal(out[4:8], [[len(b) - len(b.lstrip("0")) for b in row] for row in bits])
    np.testing.assert_array_equal(out[8:12], [[b[::-1].find("1") + 1 for b in row] for row in bits])
    np.testing.assert_array_equal(out[12], [int(b[::-1], 2) for b in bits[1]])
    np.testing.assert_array_equal(out[13], [int(b[::-1], 2) >> 1 for b in bits[3]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fused_select_and_roots(dtype):
    one = dtype(1)

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[0, i] = cuda.fma(x[i], x[i], -(x[i] * x[i]))  # the rounding error of the product
        out[1, i] = cuda.cbrt(x[i])
        out[2, i] = cuda.selp(x[i] > one, x[i], one)

    x = np.random.default_rng(10).normal(size=40).astype(dtype)
    x[0] = 0
    out = np.zeros((3, 40), dtype)
    kernel[1, 40](x, out)
    if dtype is np.float32:
        np.testing.assert_array_equal(out[0], x.astype(np.float64) ** 2 - (x * x).astype(np.float64))
        assert out[0].any()
    np.testing.assert_allclose(out[1], np.cbrt(x), rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(out[2], np.maximum(x, 1))


UNARY = [
    math.acos, math.asin, math.atan, math.atanh, math.cosh, math.sinh, math.tanh, math.sin, math.cos, math.tan,
    math.degrees, math.radians, math.erf, math.erfc, math.exp, math.exp2, math.expm1, math.fabs, math.gamma,
    math.lgamma, math.log, math.log10, math.log1p, math.log2, math.sqrt, math.asinh, math.ceil, math.floor, math.trunc,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_math_of_one_number(dtype):
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        v = x[i]
        out[0, i], out[1, i], out[2, i], out[3, i] = math.acos(v), math.asin(v), math.atan(v), math.atanh(v)
        out[4, i], out[5, i], out[6, i], out[7, i] = math.cosh(v), math.sinh(v), math.tanh(v), math.sin(v)
        out[8, i], out[9, i], out[10, i], out[11, i] = math.cos(v), math.tan(v), math.degrees(v), math.radians(v)
        out[12, i], out[13, i], out[14, i], out[15, i] = math.erf(v), math.erfc(v), math.exp(v), math.exp2(v)
        out[16, i], out[17, i], out[18, i], out[19, i] = math.expm1(v), math.fabs(v), math.gamma(v), math.lgamma(v)
        out[20, i], out[21, i], out[22, i], out[23, i] = math.log(v), math.log10(v), math.log1p(v), math.log2(v)
        out[24, i], out[25, i], out[26, i], out[27, i] = math.sqrt(v), math.asinh(v), math.ceil(v), math.floor(v)
        out[28, i], out[29, i] = math.trunc(v), math.acosh(1 / v)

    x = np.random.default_rng(11).uniform(0.05, 0.95, 50).astype(dtype)
    out = np.zeros((30, 50), dtype)
    kernel[1, 50](x, out)
    tolerance = 40 * np.finfo(dtype).eps
    for function, row in zip(UNARY, out, strict=False):
        expected = [function(v) for v in x.tolist()]
        np.testing.assert_allclose(row, expected, rtol=tolerance, atol=tolerance, err_msg=function.__name__)
    np.testing.assert_allclose(out[29], [math.acosh(1 / v) for v in x.tolist()], rtol=tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_math_of_two_numbers(dtype):
    @cuda.jit
    def kernel(x, y, out, flags):
        i = cuda.grid(1)
        a, b = x[i], y[i]
        out[0, i], out[1, i], out[2, i] = math.atan2(a, b), math.hypot(a, b), math.copysign(a, b)
        out[3, i], out[4, i], out[5, i] = math.fmod(a, b), math.remainder(a, b), math.pow(math.fabs(a), b)
        out[6, i] = math.nextafter(a, b)
        mantissa, exponent = math.frexp(a)
        out[7, i], out[8, i], out[9, i] = mantissa, exponent, math.ldexp(a, int32(i % 5 - 2))
        fraction, whole = math.modf(a)
        out[10, i], out[11, i], out[12, i] = fraction, whole, math.pow(b, 3)
        flags[0, i] = math.isnan(a / (a - a)) or math.isnan((b - b) / (a - a))
        flags[1, i] = math.isinf(a / (b - b)) and not math.isinf(a)
        flags[2, i] = math.isfinite(a) and not math.isfinite(a / (b - b))

    rng = np.random.default_rng(12)
    x, y = (rng.normal(size=60) * 5).astype(dtype), (rng.normal(size=60) * 2).astype(dtype)
    out, flags = np.zeros((13, 60), dtype), np.zeros((3, 60), np.bool_)
    kernel[1, 60](x, y, out, flags)
    a, b = x.astype(np.float64), y.astype(np.float64)
    remainder = [math.remainder(p, q) for p, q in zip(a, b, strict=True)]
    expected = [np.arctan2(a, b), np.hypot(a, b), np.copysign(a, b), np.fmod(a, b), remainder, np.abs(a) ** b]
    expected += [np.nextafter(x, y), *np.frexp(a), a * 2.0 ** (np.arange(60) % 5 - 2), *np.modf(a), b**3]
    for row, want in zip(out, expected, strict=True):
        np.testing.assert_allclose(row, want, rtol=40 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(out[6], expected[6])
    assert flags.all()


def test_integers_divide_as_in_python():
    @cuda.jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i] = a[i] // b[i], a[i] % b[i], a[i] ** 2
        out[3, i], out[4, i], out[5, i] = a[i] << 2, a[i] >> 1, a[i] & b[i]
        out[6, i], out[7, i], out[8, i] = a[i] | b[i], a[i] ^ b[i], ~a[i]
        out[9, i], out[10, i], out[11, i] = -a[i], abs(a[i]), min(a[i], b[i], 2)
        out[12, i], out[13, i] = max(a[i], b[i]), int(a[i] / b[i])
        out[14, i] = (a[i] > b[i]) + (a[i] == b[i]) * 2 + (a[i] != 0 and b[i] > 0) * 4 + (not a[i] < 3) * 8

    rng = np.random.default_rng(13)
    a, b = rng.integers(-50, 50, 80), rng.integers(-9, 9, 80)
    b[b == 0] = 5
    a[:4] = b[:4]
    out = np.zeros((15, 80), np.int64)
    kernel[1, 80](a, b, out)
    expected = [a // b, a % b, a**2, a << 2, a >> 1, a & b, a | b, a ^ b, ~a, -a, abs(a)]
    expected += [np.minimum(np.minimum(a, b), 2), np.maximum(a, b), np.trunc(a / b)]
    expected += [(a > b) + (a == b) * 2 + ((a != 0) & (b > 0)) * 4 + ~(a < 3) * 8]
    np.testing.assert_array_equal(out, expected)


def test_floats_divide_as_in_python():
    @cuda.jit
    def kernel(a, b, out):
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i], out[3, i] = a[i] / b[i], a[i] // b[i], a[i] % b[i], abs(a[i]) ** b[i]
        out[4, i], out[5, i], out[6, i], out[7, i] = min(a[i], b[i]), max(a[i], b[i]), int(a[i]), a[i] ** 3

    rng = np.random.default_rng(14)
    a, b = rng.normal(size=50) * 10, rng.normal(size=50)
    out = np.zeros((8, 50))
    kernel[1, 50](a, b, out)
    expected = [a / b, a // b, a % b, np.abs(a) ** b, np.minimum(a, b), np.maximum(a, b), np.trunc(a), a**3]
    np.testing.assert_allclose(out, expected, rtol=1e-13, atol=1e-13)


def test_integer_types_keep_their_width():
    @cuda.jit
    def kernel(i1, i2, i4, i8, u1, u2, u4, u8):
        i = cuda.grid(1)
        i1[i] = i1[i] * i1[i] - i1[i]
        i2[i] = i2[i] * i2[i] - i2[i]
        i4[i] = i4[i] * i4[i] - i4[i]
        i8[i] = i8[i] * i8[i] - i8[i]
        u1[i] = u1[i] * u1[i] - u1[i]
        u2[i] = u2[i] * u2[i] - u2[i]
        u4[i] = u4[i] * u4[i] - u4[i]
        u8[i] = u8[i] * u8[i] - u8[i]

    wide = np.random.default_rng(15).integers(-(2**62), 2**62, 64)
    arrays = [wide.astype(dtype) for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
    expected = [a * a - a for a in arrays]  # NumPy's arrays wrap around, too
    kernel[2, 32](*arrays)
    for array, want in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, want)


def test_float32_stays_float32():
    @cuda.jit
    def kernel(x, out):
        total = float32(0)
        for i in range(x.size):
            total += x[i] * x[i]
        out[0] = total
        out[1] = math.sqrt(x[1]) + x[2] / x[3]

    x, out = np.random.default_rng(16).random(3000).astype(np.float32), np.zeros(2, np.float64)
    kernel[1, 1](x, out)
    assert out[0] == np.float32(out[0]) and out[1] == np.float32(out[1])
    assert out[0] == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-4)


def test_float16():
    @cuda.jit
    def kernel(a, b, out, single):
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i], out[3, i] = a[i] + b[i], a[i] - b[i], a[i] * b[i], a[i] / b[i]
        out[4, i], out[5, i], out[6, i] = -a[i], abs(a[i]), a[i] * float16(0.5)
        out[7, i] = float32(a[i]) * float32(3)  # rounded on the way back
        single[i] = float32(a[i]) + (1 if a[i] > b[i] else 0)

    rng = np.random.default_rng(17)
    a, b = rng.normal(size=90).astype(np.float16), (rng.random(90) + 0.5).astype(np.float16)
    a[:3] = 65504, 6e-8, -0.0
    out, single = np.zeros((8, 90), np.float16), np.zeros(90, np.float32)
    kernel[3, 30](a, b, out, single)
    with np.errstate(over="ignore"):
        exact = [a + b, a - b, a * b, -a, abs(a), a * np.float16(0.5), (a.astype(np.float32) * 3).astype(np.float16)]
        quotient = a / b
    np.testing.assert_array_equal(out[[0, 1, 2, 4, 5, 6, 7]], exact)
    np.testing.assert_allclose(out[3], quotient, rtol=1e-3)  # a GPU's division in float16 may be off by one place
    np.testing.assert_array_equal(single, a.astype(np.float32) + (a > b))


def test_float16_in_shared_memory_and_loops():
    @cuda.jit
    def kernel(a, out):
        tile = cuda.shared.array(32, float16)
        t = cuda.threadIdx.x
        tile[t] = a[t]
        cuda.syncthreads()
        total = float32(0)
        for k in range(32):
            total += float32(tile[k])
        out[t] = total

    a = np.random.default_rng(18).random(32).astype(np.float16)
    out = np.zeros(32, np.float32)
    kernel[1, 32](a, out)
    np.testing.assert_allclose(out, a.astype(np.float64).sum(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype):
    @cuda.jit
    def kernel(a, b, out, real):
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i], out[3, i] = a[i] + b[i], a[i] * b[i], a[i] / b[i], a[i].conjugate() - b[i]
        out[4, i] = complex(a[i].imag, b[i].real)
        real[0, i], real[1, i] = abs(a[i]), a[i].real * a[i].imag

    rng = np.random.default_rng(19)
    a, b = ((rng.normal(size=40) + 1j * rng.normal(size=40)).astype(dtype) for _ in range(2))
    out, real = np.zeros((5, 40), dtype), np.zeros((2, 40), a.real.dtype)
    kernel[1, 40](a, b, out, real)
    tolerance = 8 * np.finfo(dtype).eps
    expected = [a + b, a * b, a / b, a.conj() - b, a.imag + 1j * b.real]
    np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(real, [np.abs(a), a.real * a.imag], rtol=tolerance)


# Python inside a kernel -----------------------------------------------------------------------------------------------


def test_control_flow():
    @cuda.jit
    def kernel(n, out):
        i = cuda.grid(1)
        if i >= out.shape[1]:
            return
        steps, x = 0, n[i]
        while x != 1:
            x = x // 2 if x % 2 == 0 else 3 * x + 1
            steps += 1
            if steps > 200:
                break
        else:
            out[1, i] = 1
        out[0, i] = steps
        total = 0
        for k in range(n[i], 0, -2):
            if k % 3 == 0:
                continue
            if k < 5:
                break
            total += k
        out[2, i] = total
        found = -1
        for row in range(5):
            for col in range(5):
                if row * col == n[i]:
                    found = row
                    break
            if found >= 0:
                break
        out[3, i] = found
        if not 3 <= n[i] < 20:
            return
        out[4, i] = 1

    n = np.arange(1, 61)
    out = np.zeros((5, 60), np.int64)
    kernel[3, 32](n, out)

    def collatz(x, steps=0):
        return steps if x == 1 else collatz(x // 2 if x % 2 == 0 else 3 * x + 1, steps + 1)

    rows = {row * col: row for row in range(4, -1, -1) for col in range(5)}
    np.testing.assert_array_equal(out[0], [collatz(x) for x in n.tolist()])
    np.testing.assert_array_equal(out[1], 1)
    np.testing.assert_array_equal(out[2], [sum(k for k in range(x, 0, -2) if k % 3 and k >= 5) for x in n])
    np.testing.assert_array_equal(out[3], [rows.get(x, -1) for x in n.tolist()])
    np.testing.assert_array_equal(out[4], (n >= 3) & (n < 20))


def test_tuples_and_iteration():
    @cuda.jit(device=True)
    def smallest_and_sum(a, b, c):
        return min(a, b, c), a + b + c

    @cuda.jit
    def kernel(a, out):
        i = cuda.grid(1)
        low, (total, doubled) = smallest_and_sum(a[i, 0], a[i, 1], a[i, 2])[0], (0.0, 0.0)
        for k, value in enumerate(a[i]):
            total += value * k
        for left, right in zip(a[i], a[i, ::-1]):  # noqa: B905
            doubled += left * right
        weights = (1, 2, 4)
        weighted = 0.0
        for k in range(len(weights)):
            weighted += a[i, k] * weights[k]
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = low, total, doubled, weighted
        out[i, 4] = smallest_and_sum(a[i, 0], a[i, 1], a[i, 2])[1]

    a = np.random.default_rng(20).normal(size=(33, 3))
    out = np.zeros((33, 5))
    kernel[1, 33](a, out)
    expected = [a.min(axis=1), a @ [0, 1, 2], (a * a[:, ::-1]).sum(axis=1), a @ [1, 2, 4], a.sum(axis=1)]
    np.testing.assert_allclose(out, np.transpose(expected), rtol=1e-13, atol=1e-14)


def test_array_views():
    @cuda.jit
    def kernel(a, f, s, zero, target, out):
        i = cuda.grid(1)
        row, corner = a[i], a[1:, 2:]
        out[0, i] = row[-1] + a[-1, i]
        out[1, i] = corner[0, 1] + corner.shape[0] * 10 + corner.shape[1]
        out[2, i] = f[i, 1] + s[i] + zero[()]
        out[3, i] = a.shape[0] * 100 + a.ndim * 10 + len(a) + a.size
        mine = target[i]
        mine[0] = -i
        mine[3:] = 9
        target[i, 1:3] = 7

    a = np.random.default_rng(27).random((4, 5))
    f, s = np.asfortranarray(a + 100), cuda.to_device(a.ravel() * 3)[::4]
    target, out = np.zeros((4, 5)), np.zeros((4, 4))
    kernel[1, 4](a, f, s, cuda.to_device(np.array(0.5)), target, out)
    expected = [a[:, -1] + a[-1, :4], [a[1, 3] + 33] * 4, a[:, 1] + 100 + 3 * a.ravel()[:16:4] + 0.5, [444] * 4]
    np.testing.assert_allclose(out, expected, rtol=1e-15)
    np.testing.assert_array_equal(target, np.column_stack([-np.arange(4), [7] * 4, [7] * 4, [9] * 4, [9] * 4]))


def test_index_types():
    @cuda.jit
    def kernel(a, order, out):
        i = uint32(cuda.grid(1))
        out[i] = a[order[i]] * 10 + a[uint32(i ^ uint32(1))]

    a, out = np.arange(16.0), np.zeros(16)
    order = np.random.default_rng(21).permutation(16)
    for dtype in (np.int32, np.uint8):
        kernel[1, 16](a, order.astype(dtype), out)
        np.testing.assert_array_equal(out, order * 10 + (np.arange(16) ^ 1))


def test_records():
    body = np.dtype([("mass", np.float32), ("position", np.float32, 3), ("hits", np.int32)], align=True)

    @cuda.jit
    def kernel(bodies, out):
        i = cuda.grid(1)
        bodies[i].hits += 2
        bodies[i]["position"][1] = bodies[i].mass * i
        out[i] = bodies[i].position[0]

    bodies = np.zeros(20, body)
    bodies["mass"], bodies["position"] = np.arange(20) + 1, np.random.default_rng(22).random((20, 3))
    first, out = bodies["position"][:, 0].copy(), np.zeros(20, np.float32)
    kernel[1, 20](bodies, out)
    assert (bodies["hits"] == 2).all()
    np.testing.assert_array_equal(bodies["position"][:, 1], (np.arange(20) + 1) * np.arange(20))
    np.testing.assert_array_equal(out, first)


def test_kinds_of_arguments():
    @cuda.jit
    def kernel(integer, real, flag, single, z, pair, arrays, out):
        if cuda.grid(1) == 0:
            out[0], out[1], out[2], out[3] = integer, real, flag, single
            out[4], out[5], out[6] = z.imag, pair[0] + pair[1], arrays[0][1] + arrays[1][2]

    out = np.zeros(7)
    arrays = cuda.to_device(np.arange(3.0)), cuda.to_device(np.arange(3.0) * 10)
    kernel[1, 32](-5, 2.5, True, np.float32(0.1), 1 + 4j, (3, 4), arrays, out)
    np.testing.assert_array_equal(out, [-5, 2.5, 1, np.float32(0.1), 4, 7, 21])


def test_argument_hints():
    @cuda.jit
    def kernel(a, b, c):
        i = cuda.grid(1)
        c[i] = a[i] + b[i]
        b[i] = -1
        a[i] = -1

    a, b, c = np.arange(8.0), np.ones(8), np.full(8, 99.0)
    kernel[1, 8](cuda.In(a), cuda.InOut(b), cuda.Out(c))
    np.testing.assert_array_equal(c, np.arange(8) + 1)
    np.testing.assert_array_equal(b, -1)
    np.testing.assert_array_equal(a, np.arange(8))  # what a kernel writes to an In stays on the device


# Device functions -----------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def warp_total(value):
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, offset)
        offset //= 2
    return value


@cuda.jit(device=True)
def block_total(value, scratch):
    total = warp_total(value)
    t = cuda.threadIdx.x
    if t % 32 == 0:
        scratch[t // 32] = total
    cuda.syncthreads()
    total = scratch[t] if t < cuda.blockDim.x // 32 else float32(0)
    if t < 32:
        total = warp_total(total)
        if t == 0:
            scratch[0] = total
    cuda.syncthreads()
    total = scratch[0]
    cuda.syncthreads()  # scratch may be used again
    return total


def test_device_functions_with_barriers_and_shuffles():
    @cuda.jit
    def normalize(x, out):
        scratch = cuda.shared.array(32, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        mean = block_total(x[row, t], scratch) / cuda.blockDim.x
        centred = x[row, t] - mean
        variance = block_total(centred * centred, scratch) / cuda.blockDim.x
        out[row, t] = centred / math.sqrt(variance)

    x = np.random.default_rng(23).normal(3, 2, (5, 96)).astype(np.float32)
    out = np.zeros((5, 96), np.float32)
    normalize[5, 96](x, out)
    x = x.astype(np.float64)
    np.testing.assert_allclose(out, (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True), rtol=1e-4, atol=1e-5)


def test_device_functions_that_return_early_and_call_others():
    @cuda.jit(device=True)
    def root(x, eps):
        if x <= 0:
            return 0.0
        guess = x
        for _ in range(100):
            better = 0.5 * (guess + x / guess)
            if abs(better - guess) < eps:
                return better
            guess = better
        return guess

    @cuda.jit(device=True, inline="always")
    def store(out, i, value=0.0):
        out[i] = value

    @cuda.jit(device=True)
    def twice(out, i, value):
        store(out, i, value=value)
        out[i] *= 2

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < x.size:
            twice(out, i, root(x[i], eps=1e-14))

    x, out = np.linspace(-2, 20, 45), np.zeros(45)
    kernel[2, 32](x, out)
    np.testing.assert_allclose(out, 2 * np.sqrt(np.maximum(x, 0)), rtol=1e-13)


def make_stencil(radius, weight):
    @cuda.jit(device=True)
    def inside(i, n):
        return radius <= i < n - radius

    @cuda.jit
    def stencil(x, out):
        i = cuda.grid(1)
        if inside(i, x.size):
            total = 0.0
            for offset in range(-radius, radius + 1):
                total += weight * x[i + offset]
            out[i] = total

    return stencil


def test_closures_are_constants_of_their_own_kernel():
    x = np.random.default_rng(24).random(50)
    for radius, weight in ((1, 2.0), (3, 0.5)):
        out = np.zeros(50)
        make_stencil(radius, weight)[2, 32](x, out)
        expected = np.convolve(x, np.full(2 * radius + 1, weight), mode="valid")
        np.testing.assert_allclose(out[radius:-radius], expected, rtol=1e-13)
        assert not out[:radius].any() and not out[-radius:].any()


SCALE, SHIFTS = 2.5, (1, 2, 3)


@numba.njit
def host_and_device(x):
    return x * SCALE - 1


def test_globals_and_functions_of_the_host():
    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = host_and_device(x[i]) + SHIFTS[i % len(SHIFTS)] + math.pi

    x, out = np.random.default_rng(25).random(30), np.zeros(30)
    kernel[1, 30](x, out)
    np.testing.assert_allclose(out, x * 2.5 - 1 + 1 + np.arange(30) % 3 + math.pi, rtol=1e-14)
    assert host_and_device(2.0) == 4


# Signatures and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [
        "void(float32[:], float32)",
        "(float32[:], float32)",
        void(float32[:], float32),
        (float32[:], float32),
        ["void(float32[:], float32)", void(float64[:], float64)],
    ],
)
def test_signatures(signature):
    @cuda.jit(signature)
    def scale(x, factor):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= factor

    for dtype in (np.float32, np.float64) if isinstance(signature, list) else (np.float32,):
        x = np.arange(40, dtype=dtype)
        scale[2, 32](x, dtype(3))
        np.testing.assert_array_equal(x, 3 * np.arange(40))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fastmath": True},
        {"max_registers": 32},
        {"launch_bounds": 64},
        {"launch_bounds": (64, 2)},
        {"lineinfo": True},
        {"debug": True, "opt": False},
        {"opt": True},
        {"link": []},
        {"shared_memory_carveout": 50},
        {"lto": False},
        {"extensions": []},
    ],
    ids=lambda options: " ".join(options) or "none",
)
def test_options(options):
    @cuda.jit(**options)
    def reciprocal(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = 1 / x[i] + math.exp(-x[i])

    x, out = np.random.default_rng(26).uniform(1, 2, 50).astype(np.float32), np.zeros(50, np.float32)
    reciprocal[1, 64](x, out)
    np.testing.assert_allclose(out, 1 / x + np.exp(-x), rtol=1e-5)


def test_device_function_options():
    @cuda.jit("float32(float32, float32)", device=True, inline="never", fastmath=True)
    def product(a, b):
        return a * b

    @cuda.jit(device=True, forceinline=True)
    def square(a):
        return product(a, a)

    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = square(x[i])

    x = np.arange(20, dtype=np.float32)
    kernel[1, 20](x)
    np.testing.assert_array_equal(x, np.arange(20) ** 2)


@pytest.mark.cpu_device  # pytest rewrites the assert, and numba.cuda compiles what it finds there
def test_assertions_stop_a_kernel_in_debug_mode():
    @cuda.jit(debug=True, opt=False)
    def kernel(x):
        i = cuda.grid(1)
        assert x[i] < 7

    kernel[1, 7](np.arange(7))
    with pytest.raises(AssertionError):
        kernel[1, 8](np.arange(8))


def test_print(capfd):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        if i < 2:
            print("thread", i, "has", x[i])

    kernel[1, 4](np.arange(4) * 11)
    cuda.synchronize()
    assert sorted(capfd.readouterr().out.split("\n"))[-2:] == ["thread 0 has 0", "thread 1 has 11"]


def test_print_of_an_index_is_a_tuple(capfd):
    @cuda.jit
    def kernel():
        print(cuda.threadIdx, cuda.blockDim)

    kernel[1, (1, 2)]()
    assert sorted(capfd.readouterr().out.split("\n"))[-2:] == ["(0, 0, 0) (1, 2, 1)", "(0, 1, 0) (1, 2, 1)"]


def test_one_kernel_for_several_types():
    @cuda.jit
    def double(x):
        i = cuda.grid(1)
        x[i] = x[i] + x[i]

    for dtype in ("f4", "i2", "c16", "f8", "f4"):
        x = np.arange(10).astype(dtype)
        double[1, 10](x)
        np.testing.assert_array_equal(x, 2 * np.arange(10))


def test_a_function_of_numba_jit_becomes_a_device_function():
    doubled = cuda.jit(device=True)(numba.njit(_doubled))

    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] = doubled(x[cuda.threadIdx.x])

    x = np.arange(4.0)
    kernel[1, 4](x)
    assert x.tolist() == [0, 2, 4, 6]


def _doubled(value):
    return 2 * value
