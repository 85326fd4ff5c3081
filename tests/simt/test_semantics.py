"""Kernels made to break the compiler of the CPU device, each compared with a plain interpreter of the same source.

random_blocks.py draws others at random.
"""

import math

import numpy as np
import pytest
from numba import float32, float64, int32, int64, uint32

from labkit import cuda
from tests.simt.reference import agree, floats, ints

FULL = 0xFFFFFFFF
SIZE = 4
CASES = []


def case(grid, block, *args, slow=False, refused_by_numba_cuda=False, **options):
    def register(function):
        marks = [pytest.mark.slow] * slow  # what compiles for seconds, where a quicker kernel covers most of it
        marks += [pytest.mark.cpu_device] * refused_by_numba_cuda
        CASES.append(pytest.param(cuda.jit(function), grid, block, args, options, id=function.__name__, marks=marks))
        return function

    return register


def out(*shape):
    return np.full(shape, -1, np.int64)


@pytest.mark.sampled(16, sweep=10)
@pytest.mark.parametrize("kernel, grid, block, args, options", CASES)
def test_kernel(kernel, grid, block, args, options):
    agree(kernel, grid, block, *args, **options)


# Variables carried across barriers ------------------------------------------------------------------------------------


@case(2, 40, ints(80), out(80))
def carried_under_if_else(a, out):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    x = a[i]
    if x % 3 == 0:
        y = x + 1
    elif x % 3 == 1:
        y = x * 2
    else:
        y = -x
        x = 7
    s[t] = y
    cuda.syncthreads()
    if t % 2 == 0:
        x += s[(t + 1) % 40]
    else:
        y -= s[(t + 39) % 40]
    cuda.syncthreads()
    s[t] = x
    cuda.syncthreads()
    out[i] = x * 1000 + y + s[39 - t]


@case(3, 33, ints(99), out(99))
def assigned_in_one_branch_only(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    best = 5
    if a[i] > 50:
        best = a[i]
        extra = a[i] * 2
    cuda.syncthreads()
    if a[i] > 50:
        out[i] = best + extra
    else:
        out[i] = best
    if t == 3:
        best = 0
    cuda.syncthreads()
    out[i] += best


@case(2, 32, out(64), 5, 2)
def parameters_reassigned(out, n, step):
    i = cuda.grid(1)
    total = 0
    while n > 0:
        n -= step
        step = step if n > 2 else 1
        cuda.syncthreads()
        total = total * 10 + n
    if i % 2:
        step += 100
    cuda.syncthreads()
    out[i] = total + step * 7 + n


@case(2, (8, 2, 3), out(96), ints(4))
def block_of_three_axes(out, a):
    s = cuda.shared.array((3, 2, 8), int64)
    x, y, z = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    t = (z * 2 + y) * 8 + x
    s[z, y, x] = t * t + a[z]
    cuda.syncthreads()
    v = s[2 - z, 1 - y, 7 - x]
    w = cuda.shfl_xor_sync(FULL if t < 32 else 0xFFFF, v, 1)
    cuda.syncthreads()
    s[z, y, x] = v - w
    cuda.syncthreads()
    out[cuda.blockIdx.x * 48 + t] = s[z, y, (x + 1) % 8] * 1000 + w


@case(1, 64, floats(64), ints(64), np.zeros(64, np.float32), out(64))
def int_then_float(f, a, fout, out):
    s = cuda.shared.array(64, float32)
    k = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    x = a[t] % 64
    k[t] = x
    cuda.syncthreads()
    out[t] = k[x]  # x is an index here
    cuda.syncthreads()
    x = f[t] * float32(0.5)
    s[t] = x
    cuda.syncthreads()
    fout[t] = x + s[63 - t]


@case(1, 32, np.array([2**60 + 1, 2**61 + 3], np.int64), np.zeros(32, np.float64), out(32))
def large_int_then_float(a, fout, out):
    t = cuda.threadIdx.x
    x = a[t % 2]
    cuda.syncthreads()
    out[t] = x
    x = 0.5 + t
    cuda.syncthreads()
    fout[t] = x


@cuda.jit(device=True)
def next_of(source, shared, i):
    x, offset, _ = source
    shared[i] = x[i] + offset
    cuda.syncthreads()
    y, first, other = source
    return shared[(i + 1) % 32] + y[i] + first - other


@case(1, 32, ints(32), out(32))
def tuple_with_an_array_for_a_function_with_a_barrier(a, out):
    s = cuda.shared.array(32, int64)
    i = cuda.threadIdx.x
    out[i] = next_of((a, 3, a[i] * 2), s, i)


@case(2, 32, ints(64), out(64))
def tuples_and_swaps(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    pair = (a[i], a[i] + 1)
    x, y = pair
    cuda.syncthreads()
    x, y = y, x
    cuda.syncthreads()
    if t % 3:
        x, y = y, x + y
    pair = (x, pair[0])
    cuda.syncthreads()
    x, y, z = y, pair[1], x
    p, q = divmod(x, 7)
    cuda.syncthreads()
    x = y = z + p
    cuda.syncthreads()
    out[i] = x + 10 * y + 100 * z + 1000 * pair[0] + q


@case(2, 32, out(64), ints(64), 3)
def names_that_shadow(out, a, n):
    u_v = 3
    _v = a[cuda.grid(1)]
    min = 4
    sum = 0
    cuda.syncthreads()
    for k in range(n):
        cuda.syncthreads()
        sum += _v * min + k
    u_v += 1
    n += 1
    n_given = 5  # a name that a compiler might have made for a parameter
    cuda.syncthreads()
    out[cuda.grid(1)] = u_v * 1000 + sum + n_given * n


# Loops ----------------------------------------------------------------------------------------------------------------


@case(3, 32, ints(96), out(96))
def loops_at_each_depth(a, out):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = a[i]
    for outer in range(4):
        s[t] = total
        cuda.syncthreads()
        if outer == 1:
            cuda.syncthreads()
            continue
        inner = 0
        while True:
            inner += 1
            cuda.syncthreads()
            if inner == 2:
                continue
            total += s[(t + inner) % 32]
            for k in range(3):
                if k == 1 and total % 2 == 0:
                    continue
                total = (total * 3 + k) % 1009
                if total % 5 == 0:
                    break
            if inner > outer:
                break
        cuda.syncthreads()
        if outer == 2 and cuda.blockIdx.x == 1:
            out[i] = total
            return
    out[i] = total * 10 + outer


@case((2, 2), 64, ints(64), out(4, 64))
def trip_counts_by_warp_and_block(a, out):
    t = cuda.threadIdx.x
    block = cuda.blockIdx.y * 2 + cuda.blockIdx.x
    v = a[t]
    for k in range(t // 32 + 1 + block):
        v += cuda.shfl_down_sync(FULL, v, 1) + k
    while cuda.any_sync(FULL, v % 7 != 0):
        v += 1 if v % 7 else 0
    for _ in range(block):
        cuda.syncthreads()
        v = (v * 5) % 1009
    out[block, t] = v


@case(2, 64, ints(128), out(128))
def loop_variable_after_warps_left_early(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    for k in range(10):
        v = cuda.shfl_sync(FULL, a[i], k)
        if k > t // 32 * 3 + 1:
            break
    for j in range(6):
        if cuda.all_sync(FULL, j > t // 32 + 1):
            break
        if t // 32 == 1 and j == 0:
            continue
        v += j
    out[i] = k * 1000 + v + 100000 * j


@case(1, 64, out(64), 0, 3)
def trips_of_zero_and_negative_steps(out, none, n):
    t = cuda.threadIdx.x
    k = 77
    total = 0
    for k in range(none):  # noqa: B007
        cuda.syncthreads()
        total += 1000
    for j in range(n, -n, -2):
        cuda.syncthreads()
        total = total * 3 + j
    for _j2 in range(5, 5):
        cuda.syncthreads()
        total += 10000
    for w in range(t // 32 * 4, -1, -1 - t // 32):
        total += cuda.popc(cuda.ballot_sync(FULL, total % 2)) + w
    while none > 0:
        cuda.syncthreads()
    out[t] = total + 100000 * k + j


@case(1, 32, out(32), ints(32), 4, slow=True)
def loop_variables_changed(out, a, n):
    t = cuda.threadIdx.x
    total = 0
    for k in range(n):
        cuda.syncthreads()
        k = k * 2 + a[t]  # does not change the next trip
        total += k
    m = n
    for j in range(m):
        m = 1  # the range was made before
        cuda.syncthreads()
        total = total * 2 + j
    for q in range(3):
        for q in range(2):
            cuda.syncthreads()
            total += q
        total += 10 * q
    out[t] = total * 10 + k + j + m


@case(2, 32, out(64), ints(64))
def loop_else(out, a):
    i = cuda.grid(1)
    total = 0
    for k in range(4):
        cuda.syncthreads()
        if k == 2 and cuda.blockIdx.x == 1:
            break
    else:
        total += 100
        cuda.syncthreads()
    for j in range(5):
        if a[i] % 5 == j + 2:
            break
    else:
        total += 1000
    n = 0
    while n < 3:
        n += 1
        if cuda.any_sync(FULL, a[i] + n == 55):
            break
    else:
        total += 10000
    out[i] = total + j + k * 7


@case(2, 48, ints(96), out(96))
def partial_warps(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v = a[i]
    mask = FULL if t < 32 else 0xFFFF
    for d in (1, 2, 4, 8):
        v += cuda.shfl_xor_sync(mask, v, d)
    v += cuda.popc(cuda.ballot_sync(FULL, v % 2 == 0))
    cuda.syncwarp()
    if t % 32 < 16:
        v += cuda.shfl_up_sync(0xFFFF, v, 3)
    cuda.syncthreads()
    if t >= 32:
        v += cuda.shfl_sync(mask, v, t % 16)
        cuda.syncwarp(mask)
        v *= 2
    else:
        cuda.syncwarp()
        v -= 1
    out[i] = v


@case(2, 64, out(128), ints(128), np.arange(5))
def loops_over_other_things(out, a, steps):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = a[i]
    for d in (16, 8, 4):
        total += cuda.shfl_down_sync(FULL, total, d)
    for step in steps:
        cuda.syncthreads()
        total = total * 2 + step
    for k, step in enumerate(steps):
        total += k * step
    for x, y in zip(steps, steps):  # noqa: B905
        total += x * y
    offset = 32
    while offset:
        cuda.syncthreads()
        total += offset
        offset >>= 1
    out[i] = total + offset + t


# Barriers in branches, early returns ----------------------------------------------------------------------------------


@case(4, 64, ints(64), out(4, 64), 2)
def barriers_in_both_arms(a, out, n):
    s = cuda.shared.array(64, int64)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    s[t] = a[t]
    if b >= n:
        if b == 3:
            cuda.syncthreads()
            s[63 - t] += 100
            cuda.syncthreads()
            v = s[t]
        else:
            v = 1
    else:
        cuda.syncthreads()
        v = s[(t + b) % 64]
        cuda.syncthreads()
        if b == 0:
            out[b, t] = v
            return
        s[t] = v * 2
        cuda.syncthreads()
        v += s[63 - t]
    cuda.syncthreads()
    out[b, t] = v


@case(3, 64, ints(192), out(192))
def warps_apart(a, out):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    lane, warp = t % 32, t // 32
    v = a[i]
    if warp == 0:
        for d in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(FULL, v, d)
        if lane == 0:
            s[0] = v
            v = -5
    elif lane < 8:
        v = cuda.match_any_sync(0xFF, v % 3)
    else:
        v = cuda.shfl_xor_sync(0xFFFF0000, v, 8) if lane >= 16 else cuda.shfl_sync(0xFF00, v, 9)
    cuda.syncthreads()
    v += s[0]
    same, agreed = cuda.match_all_sync(FULL, warp)
    if cuda.syncthreads_or(int32(v == 12345)):
        v = 0
    v += cuda.syncthreads_count(v % 2) * 10000 + cuda.syncthreads_and(v + 10**9)
    if warp == 1:
        return
    out[i] = v + (same if agreed else 0)


@case(2, 64, ints(128), out(128))
def returns_after_the_last_barrier(a, out):
    i = cuda.grid(1)
    t = cuda.threadIdx.x
    v = cuda.shfl_sync(FULL, a[i], 3)
    cuda.syncthreads()
    if t % 4 == 1:
        return
    out[i] = v
    for k in range(10):
        for j in range(k):
            if (a[i] + j) % 7 == 3:
                out[i] += 100 * j + k
                return
            if j == 5:
                break
        else:
            out[i] += 1
            continue
        out[i] += 10**6
    while True:
        v += 1
        if v % 11 == 0:
            return
        out[i] += 10**7


@case(2, 32, ints(64), out(64))
def return_within_loops_without_barriers(a, out):
    i = cuda.grid(1)
    for k in range(10):
        j = 0
        while j < k:
            if a[i] % 10 == j:
                if k == 5:
                    out[i] = k * 10 + j
                    return
                elif k == 6:
                    break
            j += 1
        if j == 7:
            out[i] = -7
            return
    out[i] = -2


# Collectives and device functions within expressions ------------------------------------------------------------------


@cuda.jit(device=True)
def warp_sum(v, mask):
    for d in (16, 8, 4, 2, 1):
        v += cuda.shfl_xor_sync(mask, v, d)
    return v


@cuda.jit(device=True)
def block_sum(v, s, t):
    s[t] = v
    cuda.syncthreads()
    total = 0
    for k in range(cuda.blockDim.x):
        total += s[k]
    cuda.syncthreads()
    return total


@cuda.jit(device=True)
def find(v, limit):
    """Returns from several places, within loops with collectives."""
    if limit < 0:
        return -1
    for k in range(limit):
        if cuda.any_sync(FULL, v == k):
            return k
        while True:
            v += 1
            if cuda.all_sync(FULL, v > 40 + k):
                if k > 3:
                    return v
                break
    return 1000 + v


@cuda.jit(device=True)
def double(v):
    return v * 2


@cuda.jit(device=True)
def bump(s, t):
    """Counts its calls; holds a barrier."""
    s[t] += 1
    cuda.syncthreads()
    return s[t]


@case(2, 64, ints(128), out(128), slow=True)
def collectives_in_expressions(a, out):
    i = cuda.grid(1)
    v = a[i]
    x = v + cuda.shfl_xor_sync(FULL, v, 1) * 2 - cuda.shfl_down_sync(FULL, v + 1, 2)
    x += cuda.shfl_sync(FULL, x, 0) if cuda.any_sync(FULL, x > 300) else cuda.shfl_sync(FULL, v, 1)
    if cuda.all_sync(FULL, v < 100) and cuda.shfl_sync(FULL, v, 5) > 3 or cuda.shfl_sync(FULL, v, 6) == 4:
        x += 1000
    elif cuda.popc(cuda.ballot_sync(FULL, v > 50)) > 15:
        x += 2000
    out[i] = x


@case(2, 64, ints(128), out(128))
def collectives_within_conditions(a, out):
    i = cuda.grid(1)
    v = a[i]
    while cuda.shfl_sync(FULL, v, 7) < 120 and not cuda.all_sync(FULL, v > 200):
        v += 13
    most = max(cuda.shfl_up_sync(FULL, v, 1), v, cuda.shfl_up_sync(FULL, v, 2))
    out[i] = most * 10000 + (cuda.shfl_sync(FULL, v, 3), 5)[0]
    out[i] += cuda.shfl_xor_sync(FULL, v, 4)
    y = 0 < cuda.shfl_sync(FULL, v, 9) < 150
    out[cuda.grid(1)] -= -(not y) * int64(cuda.shfl_sync(FULL, v, 8)) ** 2


USE_WARPS, MODE = False, 2


@case(1, 32, ints(32), out(32))
def constant_conditions(a, out):
    """What is never taken may hold collectives, and need not even compile."""
    t = cuda.threadIdx.x
    v = a[t]
    if USE_WARPS:
        w = cuda.shfl_xor_sync(FULL, v, 1)
        cuda.syncwarp()
        v += w
    if MODE == 2 and not USE_WARPS:
        v += cuda.shfl_xor_sync(FULL, v, 1)
    else:
        w = cuda.shfl_xor_sync(FULL, v, 1)
        cuda.syncwarp()
        v += w
    if 5 % MODE == 0 and cuda.any_sync(FULL, v):
        v += cuda.shfl_xor_sync(FULL, v, 2)
    if a.ndim == 2:
        x = a[t, 0]
        cuda.syncthreads()
        out[t] = x
    else:
        x = a[t]
        cuda.syncthreads()
        out[t] = x + v


@case(2, 64, ints(128), out(128))
def device_functions_in_expressions(a, out):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v = a[i]
    if block_sum(v, s, t) > 3200 and block_sum(v % 5, s, t) > 10 or i < 64:
        v += double(double(block_sum(v * 2, s, t))) // 2
    w = warp_sum(v % 9, FULL) if v > 2015 else double(v)
    v = block_sum(warp_sum(w, FULL), s, t)
    while block_sum(v % 3, s, t) > 20:
        v = v // 2
    out[i] = v + w * 100000


@case(1, 64, ints(64), out(64), refused_by_numba_cuda=True)  # pytest rewrites the asserts that it would compile
def returns_from_several_places(a, out):
    t = cuda.threadIdx.x
    assert find(a[t], -t // 64 - 1) == -1
    v = 0
    for k in range(3):
        v = v * 100 + find(a[t] % 32 + k * 2, t // 32 * 5 - k % 2)
    out[t] = v


@case(1, 64, ints(64), out(64), out(64), out(64))
def order_of_evaluation(a, out, first, second):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    s[t] = 10
    x = 5
    first[t] = s[t] + bump(s, t) * s[t] + bump(s, t)  # 10 + 11*11 + 12
    s[t] += bump(s, t)  # 12 + 13
    second[t] = s[t]
    x += bump(s, t) * 3
    s[t] = 0
    out[t * bump(s, t) // 2] = 100 * bump(s, t) + x  # the value comes first
    if s[t] == bump(s, t) - 1 < bump(s, t):
        second[t] += 1000
    if 100 < s[t] < bump(s, t):  # the second is not called
        second[t] += 5000
    second[t] += 10000 * s[t]


@cuda.jit(device=True)
def pair_of(v, s, t):
    s[t] = v
    cuda.syncthreads()
    low = s[t // 2 * 2]
    high = s[t // 2 * 2 + 1]
    cuda.syncthreads()
    if cuda.blockIdx.x == 1:
        return high, low
    return low, high


@cuda.jit(device=True)
def scratch_sum(v):
    """Has a shared array and a local array of its own, both used across barriers."""
    mine = cuda.shared.array(64, int64)
    kept = cuda.local.array(2, int64)
    t = cuda.threadIdx.x
    mine[t] = v
    kept[0] = v
    cuda.syncthreads()
    kept[1] = mine[(t + 1) % 64]
    cuda.syncthreads()
    mine[t] = kept[0] * kept[1]
    cuda.syncthreads()
    result = mine[(t + 2) % 64] + kept[0]
    cuda.syncthreads()
    return result


@cuda.jit(device=True)
def store_twice(target, t, v):
    """No return value; assigns its parameters."""
    target[t] = v
    cuda.syncthreads()
    t = 63 - t
    v = v * 2
    cuda.syncthreads()
    if v < 0:
        return
    target[t] += v
    cuda.syncthreads()


@case(2, 64, ints(128), out(128))
def device_functions_with_memory(a, out):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    low, high = pair_of(a[i], s, t)
    v = scratch_sum(low) + scratch_sum(high % 3)
    v = pair_of(v, s, t)[1] + low * 3 - high
    store_twice(s, t, v % 50)
    x = v
    for k in range(2):
        v = scratch_sum(v % 11 + k)
        store_twice(s, t, v + k)
    out[i] = v + s[t] + x


@cuda.jit(device=True)
def depth_three(v):
    cuda.syncwarp()
    if v % 2:
        return v + 1
    return cuda.shfl_xor_sync(FULL, v, 2)


@cuda.jit(device=True)
def depth_two(v, n):
    for k in range(n):
        v = depth_two_step(v, k)
        if cuda.all_sync(FULL, v > 300):
            return v
    return -v


@cuda.jit(device=True)
def depth_two_step(v, k):
    if k == 1:
        return double(v)
    w = cuda.shfl_down_sync(FULL, v, k + 1)
    return w + depth_three_even(v)


@cuda.jit(device=True)
def depth_three_even(v):
    cuda.syncwarp()
    return cuda.shfl_xor_sync(FULL, v, 2) if cuda.any_sync(FULL, v > 5) else depth_three(v * 2)


@case(1, 64, ints(64), out(64), slow=True)
def nested_device_functions(a, out):
    t = cuda.threadIdx.x
    v = 0
    for n in range(0, 5, 2):
        v = depth_two(a[t] - v, n)
    if t < 32:
        v += depth_three(v * 2)
    out[t] = v


@cuda.jit(device=True)
def collatz(n, most):
    steps = 0
    while n != 1:
        if steps == most:
            return -steps
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    for k in range(3):
        for j in range(3):
            if k * j == steps:
                return 500 + k
    return steps


@cuda.jit(device=True)
def with_local(v, n=4, *, scale=2):
    work = cuda.local.array(4, int64)
    for k in range(n):
        work[k] = v + k * scale
    work[0] += work[n - 1]
    return work[0], work[1]


@case(2, 32, ints(64, high=30), out(64), refused_by_numba_cuda=True)
def plain_device_functions(a, out):
    i = cuda.grid(1)
    v = collatz(a[i] + 1, 20)
    x, y = with_local(v)
    cuda.syncthreads()
    z = with_local(x, scale=y, n=3)[1]
    if collatz(3, 100) == 7 and collatz(i + 1, 5) < 0 or double(i) > 100:
        z += 1
    out[i] = v + x * 100 + y + z * 1000


def make_pair(op, dtype, size):
    @cuda.jit(device=True)
    def reduce(v, t):
        s = cuda.shared.array(size, dtype)
        s[t % size] = v
        cuda.syncthreads()
        r = op(s[(t + 1) % size], s[t % size])
        cuda.syncthreads()
        return r

    return reduce


@cuda.jit(device=True)
def plus(a, b):
    return a + b


@cuda.jit(device=True)
def plus_swapped(a, b):
    cuda.syncwarp()
    return cuda.shfl_xor_sync(FULL, a, 1) + b


reduce_float = make_pair(plus, float32, 32)
reduce_int = make_pair(plus_swapped, int64, 32)


def compose(f):
    @cuda.jit(device=True)
    def composed(v, t):
        return f(v, t) + 1

    return composed


composed_once = compose(reduce_int)
composed_twice = compose(composed_once)


@case(1, 32, floats(32), ints(32), np.zeros(32, np.float32), out(32))
def closures_of_one_source(f, a, fout, out):
    t = cuda.threadIdx.x
    fout[t] = reduce_float(f[t], t) + reduce_float(float32(t) * float32(0.25), t)
    out[t] = reduce_int(a[t], t)


@case(1, 32, ints(32), out(32))
def closures_that_call_each_other(a, out):
    t = cuda.threadIdx.x
    out[t] = composed_twice(a[t], t)


@case(1, 32, ints(32), out(32))
def closure_plain_then_with_a_barrier(a, out):
    t = cuda.threadIdx.x
    v = compose_plain(a[t], t)
    out[t] = compose_barrier(v, t)


compose_plain, compose_barrier = compose(plus), compose(plus_swapped)

# Memory ---------------------------------------------------------------------------------------------------------------


@case(2, 32, ints(64), out(64))
def local_arrays(a, out):
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    acc = cuda.local.array((2, SIZE), int64)
    one_region = cuda.local.array(3, int32)
    for k in range(SIZE):
        acc[0, k] = a[i] + k
        acc[1, k] = k
    cuda.syncthreads()
    for k in range(SIZE):
        acc[1, k] += cuda.shfl_xor_sync(FULL, acc[0, k], 1)
        cuda.syncthreads()
        acc[0, (k + 1) % SIZE] += 1
    one_region[0] = 3
    one_region[1] = t
    one_region[2] = one_region[0] * one_region[1]
    v = one_region[2]
    cuda.syncthreads()
    row = acc[1]
    total = 0
    for k in range(SIZE):
        total = total * 3 + row[k] + acc[0, k]
    out[i] = total + v


@cuda.jit(device=True)
def rotate(values, n):
    first = values[0]
    for k in range(n - 1):
        values[k] = values[k + 1]
        cuda.syncwarp()
    values[n - 1] = first
    return values[0]


@cuda.jit(device=True)
def rotate_alias(given, n):
    values = given
    cuda.syncwarp()
    return rotate(values, n) + values[1]


@case(1, 32, ints(32), out(32))
def local_arrays_by_other_names(a, out):
    t = cuda.threadIdx.x
    mine = cuda.local.array(4, int64)
    for k in range(4):
        mine[k] = a[t] * (k + 1)
    same = mine
    x = same[cuda.shfl_sync(FULL, t, 3) % 4]
    cuda.syncthreads()
    x += rotate(mine, 4)
    x = x * 10 + rotate_alias(same, 4)
    cuda.syncthreads()
    out[t] = x + mine[0] + same[3] * 1000


@case(1, 32, ints(32), out(32))
def local_arrays_that_change_roles(a, out):
    p = cuda.local.array(2, int64)
    q = cuda.local.array(2, int64)
    t = cuda.threadIdx.x
    p[0], q[0] = a[t], t
    for _k in range(3):
        p, q = q, p
        p[0] += cuda.shfl_xor_sync(FULL, q[0], 1)
    out[t] = p[0] * 1000 + q[0]


@case(2, 8, ints(5, 8), ints(8, 5), out(2, 8))
def views_of_several_layouts(a, b, out):
    s = cuda.shared.array((2, 8), int64)
    t = cuda.threadIdx.x
    line = a[:, t] if t % 2 else b[t]
    now = s[0]
    total = 0
    for k in range(4):
        now[t] = line[k] + cuda.blockIdx.x
        cuda.syncthreads()
        total = total * 7 + now[7 - t]
        now = s[(k + 1) % 2]
    part = line[1:]
    cuda.syncthreads()
    out[cuda.blockIdx.x, t] = total * 100 + part[3] + part.shape[0]


@case(1, 64, floats(64), ints(64), np.zeros(64, np.float32), out(64))
def several_shared_arrays(f, a, fout, out):
    s, k = cuda.shared.array(64, float32), cuda.shared.array((4, 16), int32)
    flags = cuda.shared.array(64, np.bool_)
    tiny = cuda.shared.array(3, "int8")
    wide = cuda.shared.array(64, dtype=float64)
    t = cuda.threadIdx.x
    s[t] = f[t]
    k[t // 16, t % 16] = a[t]
    flags[t] = a[t] > 50
    wide[t] = f[t] * 2.0
    if t < 3:
        tiny[t] = t * 50 - 60
    alias = s
    cuda.syncthreads()
    alias2 = alias
    total = s[63 - t] + alias[(t + 1) % 64]
    cuda.syncthreads()
    s[t] = total
    cuda.syncthreads()
    fout[t] = alias2[(t + 3) % 64] + wide[63 - t]
    out[t] = k[t % 4, t // 4] + (1000 if flags[63 - t] else 0) + tiny[t % 3] * 10000


@case(2, 32, floats(64), np.zeros(64, np.float32), out(64), shared_bytes=32 * 4 + 32 * 8)
def dynamic_shared_memory(f, fout, out):
    whole = cuda.shared.array(0, float32)
    numbers = cuda.shared.array(0, int64)[16:]
    fixed = cuda.shared.array(32, int64)
    head = whole[:32]
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    head[t] = f[i]
    numbers[t] = t * 3
    fixed[t] = -t
    cuda.syncthreads()
    fout[i] = whole[31 - t] + head[(t + 1) % 32]
    cuda.syncthreads()
    numbers[31 - t] += fixed[t]
    cuda.syncthreads()
    out[i] = numbers[(t + 1) % 32] + numbers.shape[0] * 1000


@case(2, 32, ints(64, 4), out(64), ints(6, 32), 50)
def views_across_barriers(a, out, g, n):
    s = cuda.shared.array((2, 32), int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    row = a[i]
    part = a[i, 1:3]
    column = g[:, t]
    front = s[0]
    back = s[1, :16]
    front[t] = row[0]
    if t < 16:
        back[t] = row[3]
    cuda.syncthreads()
    total = front[31 - t] + part[1] * 10 + back[t // 2]
    cuda.syncthreads()
    total += row[1] + column[2] + len(part)
    front[t] = total
    cuda.syncthreads()
    out[i] = total + front[(t + 1) % 32] * 100 + row.shape[0] * n


@case(2, 32, ints(50, 4), out(64), 50)
def views_of_some_threads(a, out, n):
    i = cuda.grid(1)
    v = 0
    if i < n:
        row = a[i]
        v = row[0]
    cuda.syncthreads()
    if i < n:
        v += row[1] * 10
    out[i] = v


@case(2, 32, ints(3, 64), out(64))
def views_that_change(a, out):
    s = cuda.shared.array((2, 32), int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = 0
    for k in range(3):
        s[k % 2, t] = a[k, i]
        cuda.syncthreads()
        now = s[k % 2]
        total += now[31 - t]
        before = s[(k + 1) % 2]
        if k > 0:
            total += before[t]
    out[i] = total


@case(1, 64, out(64), np.zeros(4, np.int64), np.zeros((2, 2), np.float32))
def atomics_across_barriers(out, counts, sums):
    hist = cuda.shared.array(4, int64)
    t = cuda.threadIdx.x
    if t < 4:
        hist[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(hist, t % 4, t)
    cuda.syncthreads()
    most = cuda.atomic.max(counts, t % 3, hist[t % 4]) * 0
    cuda.atomic.add(sums, (t % 2, t // 32), 0.5)
    cuda.syncthreads()
    out[t] = hist[t % 4] + counts[t % 3] + most


@case(3, 32, ints(96), out(96), out(3), cooperative=True)
def cooperative_grid(a, out, parts):
    s = cuda.shared.array(32, int64)
    both = cuda.shared.array((2, 32), int64)
    mine = cuda.local.array(2, int64)
    row = both[1]
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    s[t] = a[i]
    mine[0] = a[i] * 2
    row[t] = t + b
    cuda.syncthreads()
    if t == 0:
        total = 0
        for k in range(32):
            total += s[k]
        parts[b] = total
    grid.sync()
    everything = 0
    for k in range(cuda.gridDim.x):
        everything += parts[k]
    mine[1] = everything
    for k in range(b + 1):
        cuda.syncthreads()
        everything += k
    grid.sync()
    if t == 0:
        parts[b] = -everything
    cuda.cg.this_grid().sync()
    out[i] = mine[0] + mine[1] + s[31 - t] + parts[2 - b] * 1000 + row[31 - t]


@cuda.jit(device=True)
def grid_turn(parts, v):
    cuda.cg.this_grid().sync()
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] += v
    cuda.cg.this_grid().sync()
    return parts[(cuda.blockIdx.x + 1) % 3]


@case(3, 32, ints(96), out(96), np.zeros(3, np.int64), cooperative=True, slow=True)
def cooperative_device_functions(a, out, parts):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    v = grid_turn(parts, b + 1)
    w = grid_turn(parts, v)
    v = cuda.shfl_xor_sync(FULL, v + t, 1)
    v += cooperative_scratch(v) + cooperative_scratch(w)
    out[cuda.grid(1)] = v * 1000 + w + cuda.syncthreads_count(max(b - t, 0))


@cuda.jit(device=True)
def cooperative_scratch(v):
    mine = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    mine[t] = v
    cuda.syncthreads()
    result = mine[31 - t] * 2
    cuda.syncthreads()
    return result


@case(3, 5, out(3, 5), shared_bytes=20, cooperative=True)
def cooperative_dynamic_memory(out):
    """20 bytes: five int32, or two int64 over the first four of them."""
    narrow, wide = cuda.shared.array(0, int32), cuda.shared.array(0, int64)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    narrow[t] = t
    cuda.cg.this_grid().sync()
    if t == 0:
        wide[1] = b + (b << 33)
    cuda.cg.this_grid().sync()
    out[b, t] = narrow[t]


@case(2, 32, ints(64), out(64))
def ping_pong(a, out):
    """A running sum in two shared arrays that change roles."""
    read = cuda.shared.array(32, int64)
    write = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    write[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = 1
    while step < 32:
        read, write = write, read
        write[t] = read[t] + (read[t - step] if t >= step else 0)
        cuda.syncthreads()
        step *= 2
    out[cuda.grid(1)] = write[t]


@case(2, 32, ints(5, 64), out(64))
def view_of_a_stage(a, out):
    stages = cuda.shared.array((2, 32), int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = 0
    stages[0, t] = a[0, i]
    for k in range(4):
        now, after = stages[k % 2], stages[(k + 1) % 2]
        after[t] = a[k + 1, i]
        cuda.syncthreads()
        total = total * 3 + now[31 - t]
        cuda.syncthreads()
    out[i] = total


# Numbers --------------------------------------------------------------------------------------------------------------


@case(1, 64, floats(64), np.zeros((6, 64), np.float32), out(4, 64))
def types_that_are_kept(f, fout, out):
    t = cuda.threadIdx.x
    single, wide, flag, whole, small = f[t], float64(f[t]), f[t] > 0, uint32(t * 1000000), int32(-t)
    state = (flag, single, t)
    cuda.syncthreads()
    single = cuda.shfl_xor_sync(FULL, single, 1) + single
    wide += 1.0
    flag = not flag
    whole += uint32(7)
    cuda.syncthreads()
    small = int32(small - 5)
    flag = cuda.any_sync(FULL, flag) and t > 40 or flag and wide > 0
    fout[0, t], fout[1, t] = single, wide
    fout[2, t] = math.sqrt(abs(single)) if flag else -1.0
    cuda.syncthreads()
    fout[3, t] = state[1]
    out[0, t] = whole
    out[1, t] = small
    out[2, t] = flag + 2 * state[0]
    out[3, t] = state[2]


@case(2, 64, floats(128), np.zeros(128, np.float32), 3, slow=True)
def accumulators(f, fout, n):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    total = 0
    best = -math.inf
    low = float32(0)
    for k in range(n):
        s[t] = f[(i + k) % 128]
        cuda.syncthreads()
        for j in range(t % 5):
            total += s[(t + j) % 64]
            best = max(best, s[j])
        low = min(low, s[63 - t])
        cuda.syncthreads()
    fout[i] = total + low + (best if best > -100 else 0)


def test_a_local_of_a_function_with_a_barrier_is_named_result():
    @cuda.jit(device=True)
    def next_of(value, s, i):
        result = (value, i)
        s[i] = result[0] + result[1]
        cuda.syncthreads()
        return s[(i + 1) % 32]

    @cuda.jit
    def kernel(a, out):
        s = cuda.shared.array(32, int64)
        i = cuda.threadIdx.x
        out[i] = next_of(a[i], s, i)

    a, found = np.arange(32) * 7, np.zeros(32, np.int64)
    kernel[1, 32](a, found)
    np.testing.assert_array_equal(found, np.roll(a + np.arange(32), -1))
