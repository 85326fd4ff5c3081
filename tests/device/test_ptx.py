"""Each intrinsic of labkit.ptx against NumPy, on the device at hand: the GPU's instruction or the CPU device's meaning.

The kernels lay out fragments and tiles as the PTX ISA describes them, element by element, so that a wrong lane layout
cannot cancel out. Values are small multiples of 1/8: every product and sum is exact in float32.
"""

import functools

import numpy as np
import pytest
from numba import float32, uint32, uint64

from labkit import cuda, device
from labkit.device import ptx
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.linear.quantized import e4m3_codes, e4m3_value
from labkit.simt.errors import KernelAssertionError

LANES = np.arange(32)


def needs(major: int, minor: int = 0):
    if device.on_gpu() and tuple(cuda.get_current_device().compute_capability) < (major, minor):
        pytest.skip(f"needs compute capability {major}.{minor}")


def exact(rng, *shape, dtype=np.float16):
    return (rng.integers(-16, 17, shape) / 8).astype(dtype)


def bf16_bits(values):
    """float32 -> the upper half of its bits; exact for the values used here."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# --- 128 bits ---------------------------------------------------------------------------------------------------------


@cuda.jit
def reverse_words(source, out):
    i = uint32(cuda.grid(1)) * uint32(4)
    if i < out.size:
        x, y, z, w = ptx.load_nc4(source, i)
        ptx.store_global4(out, i, w, z, y, x)


@cuda.jit
def through_shared(source, out):
    tile = cuda.shared.array(128, float32, 16)
    t = uint32(cuda.threadIdx.x)
    x, y, z, w = ptx.load_global4(source, t * uint32(4))
    ptx.store_shared4(tile, t * uint32(4), x, y, z, w)
    cuda.syncthreads()
    x, y, z, w = ptx.load_shared4(tile, (uint32(31) - t) * uint32(4))
    ptx.store_global4(out, t * uint32(4), x, y, z, w)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
def test_four_elements_in_one_access(dtype, rng):
    source = (rng.standard_normal(96) * 1000).astype(dtype)
    out = cuda.to_device(np.zeros(96, dtype))
    reverse_words[1, 32](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source.reshape(-1, 4)[:, ::-1].reshape(-1))


@cuda.jit
def swap_pairs(source, out):
    i = uint32(cuda.grid(1)) * uint32(2)
    if i < out.size:
        ptx.store_global2(out, i, source[i + uint32(1)], source[i])


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_two_elements_in_one_store(dtype, rng):
    source = (rng.random(64) * 1000).astype(dtype)
    out = cuda.to_device(np.zeros(64, dtype))
    swap_pairs[1, 32](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source.reshape(-1, 2)[:, ::-1].reshape(-1))


@cuda.jit
def copy_eight_float16(source, out):
    i = uint32(cuda.grid(1)) * uint32(8)
    if i < out.size:
        x, y, z, w = ptx.load_nc4(source, i)
        ptx.store_global4(out, i, x, y, z, w)


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_eight_float16_in_one_access(dtype, rng):
    source = (rng.integers(0, 1000, 80)).astype(dtype)
    out = cuda.to_device(np.zeros(80, dtype))
    copy_eight_float16[1, 32](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source)


def test_shared_memory_in_four_words(rng):
    source = rng.standard_normal(128).astype(np.float32)
    out = cuda.to_device(np.zeros(128, np.float32))
    through_shared[1, 32](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source.reshape(32, 4)[::-1].reshape(-1))


@cuda.jit
def convert(x, y, words, in_float16, bf16s, floats):
    i = uint32(cuda.grid(1))
    if i < x.size:
        words[i, 0] = ptx.pack_half2(x[i], y[i])
        words[i, 1] = ptx.pack_bf162(x[i], y[i])
        words[i, 2] = ptx.float_bits(x[i])
        words[i, 3] = ptx.to_tf32(x[i])
        words[i, 4] = ptx.mul_hi(ptx.float_bits(x[i]), ptx.float_bits(y[i]))
        ptx.store_global_half2(in_float16, uint32(2) * i, x[i], y[i])
        ptx.store_global_bf162(bf16s, uint32(2) * i, x[i], y[i])
        a, b = ptx.unpack_half2(words[i, 0])
        c, d = ptx.unpack_bf162(words[i, 1])
        floats[i, 0], floats[i, 1], floats[i, 2], floats[i, 3] = a, b, c, d
        floats[i, 4] = ptx.bits_float(words[i, 2])


def nearest_even_bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32)


def test_conversions_round_as_their_formats_say(rng):
    needs(8)
    n = 64
    x, y = (rng.standard_normal((2, n)) * 10.0 ** rng.integers(-3, 4, (2, n))).astype(np.float32)
    words = cuda.to_device(np.zeros((n, 5), np.uint32))
    in_float16, bf16s = cuda.to_device(np.zeros(2 * n, np.float16)), cuda.to_device(np.zeros(2 * n, np.uint16))
    floats = cuda.to_device(np.zeros((n, 5), np.float32))
    convert[2, 32](cuda.to_device(x), cuda.to_device(y), words, in_float16, bf16s, floats)
    both = np.stack([x, y], axis=1)
    as_half, as_bf16 = both.astype(np.float16), nearest_even_bf16(both)
    words, floats = words.copy_to_host(), floats.copy_to_host()
    np.testing.assert_array_equal(words[:, 0], as_half.view(np.uint32).reshape(-1))
    np.testing.assert_array_equal(words[:, 1], as_bf16[:, 0] | as_bf16[:, 1] << 16)
    np.testing.assert_array_equal(words[:, 2], x.view(np.uint32))
    products = x.view(np.uint32).astype(np.uint64) * y.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(words[:, 4], products >> np.uint64(32))
    np.testing.assert_array_equal(words[:, 3] & 0xFFFFE000, x.view(np.uint32) + 0x1000 & 0xFFFFE000)
    np.testing.assert_array_equal(in_float16.copy_to_host(), as_half.reshape(-1))
    np.testing.assert_array_equal(bf16s.copy_to_host(), as_bf16.reshape(-1))
    np.testing.assert_array_equal(floats[:, :2], as_half.astype(np.float32))
    np.testing.assert_array_equal(floats[:, 2:4], (as_bf16 << 16).astype(np.uint32).view(np.float32).reshape(n, 2))
    np.testing.assert_array_equal(floats[:, 4], x)


@cuda.jit
def fuse(x, y, words):
    i = uint32(cuda.grid(1))
    if i < x.size:
        a, b = ptx.pack_half2(x[i], y[i]), ptx.pack_half2(y[i], x[i])
        words[i, 0] = ptx.fma_half2(a, b, a)
        a, b = ptx.pack_bf162(x[i], y[i]), ptx.pack_bf162(y[i], x[i])
        words[i, 1] = ptx.fma_bf162(a, b, a)


def test_fma_rounds_once(rng):
    needs(8)
    n = 64
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    words = cuda.to_device(np.zeros((n, 2), np.uint32))
    fuse[2, 32](cuda.to_device(x), cuda.to_device(y), words)
    words, both = words.copy_to_host(), np.stack([x, y], axis=1)
    a = both.astype(np.float16).astype(np.float64)
    expected = (a * a[:, ::-1] + a).astype(np.float16)
    np.testing.assert_array_equal(words[:, 0], expected.view(np.uint32).reshape(-1))
    a = (nearest_even_bf16(both) << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    expected = nearest_even_bf16((a * a[:, ::-1] + a).astype(np.float32))
    np.testing.assert_array_equal(words[:, 1], expected[:, 0] | expected[:, 1] << 16)


@cuda.jit
def approximate(x, out):
    i = uint32(cuda.grid(1))
    if i < x.size:
        out[i, 0] = ptx.tanh_approx(x[i])
        out[i, 1] = ptx.exp2_approx(x[i])
        out[i, 2] = ptx.rcp_approx(x[i])


def test_approximations_are_as_near_as_the_manual_says(rng):
    needs(7, 5)
    x = np.concatenate([np.linspace(-6, 6, 61)[1::2], rng.standard_normal(34)]).astype(np.float32)
    out = cuda.to_device(np.zeros((x.size, 3), np.float32))
    approximate[2, 32](cuda.to_device(x), out)
    exact_x = x.astype(np.float64)
    got = out.copy_to_host()
    np.testing.assert_allclose(got[:, 0], np.tanh(exact_x), rtol=2**-10.9, atol=1e-7)
    np.testing.assert_allclose(got[:, 1], np.exp2(exact_x), rtol=2**-22)
    np.testing.assert_allclose(got[:, 2], 1 / exact_x, rtol=2**-22)


# --- cp.async ---------------------------------------------------------------------------------------------------------


@cuda.jit
def copy_async(source, valid16, valid4, out):
    tile = cuda.shared.array(160, float32, 16)
    t = uint32(cuda.threadIdx.x)
    ptx.cp_async_16(tile, t * uint32(4), source, t * uint32(4), valid16[t])
    ptx.cp_async_commit()
    ptx.cp_async_4(tile, uint32(128) + t, source, uint32(128) + t, valid4[t])
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    cuda.syncthreads()
    k = t
    while k < uint32(160):
        out[k] = tile[k]
        k += uint32(32)


def test_cp_async_copies_and_fills_with_zeros(rng):
    needs(8)
    source = rng.standard_normal(160).astype(np.float32)
    valid16, valid4 = rng.integers(0, 5, 32).astype(np.uint32) * 4, rng.integers(0, 2, 32).astype(np.uint32) * 4
    out = cuda.to_device(np.full(160, np.nan, np.float32))
    copy_async[1, 32](cuda.to_device(source), cuda.to_device(valid16), cuda.to_device(valid4), out)
    kept = np.concatenate([(np.arange(4) * 4 < valid16[:, None]).reshape(-1), valid4 > 0])
    np.testing.assert_array_equal(out.copy_to_host(), np.where(kept, source, 0))


# --- ldmatrix ---------------------------------------------------------------------------------------------------------

LD = 24  # float16 values from one row of the tile to the next: 48 bytes, so that every row is 16-byte aligned


@cuda.jit
def load_matrices(source, out):
    tile = cuda.shared.array(32 * 24, np.float16, 16)
    lane = uint32(cuda.threadIdx.x)
    k = lane
    while k < uint32(32 * 24):
        tile[k] = source[k]
        k += uint32(32)
    cuda.syncthreads()
    row = lane * uint32(24)
    out[lane, 0], out[lane, 1], out[lane, 2], out[lane, 3] = ptx.ldmatrix_x4(tile, row)
    out[lane, 4], out[lane, 5], out[lane, 6], out[lane, 7] = ptx.ldmatrix_x4_trans(tile, row)
    out[lane, 8], out[lane, 9] = ptx.ldmatrix_x2(tile, row + uint32(8))
    out[lane, 10], out[lane, 11] = ptx.ldmatrix_x2_trans(tile, row + uint32(8))


def test_ldmatrix_hands_each_lane_its_pair():
    needs(7, 5)
    source = np.arange(32 * LD, dtype=np.float16)
    out = cuda.to_device(np.zeros((32, 12), np.uint32))
    load_matrices[1, 32](cuda.to_device(source), out)
    tile = source.reshape(32, LD)
    row, pair = LANES // 4, LANES % 4 * 2
    got = np.ascontiguousarray(out.copy_to_host()).view(np.float16).reshape(32, 12, 2)
    for k in range(4):
        for half in range(2):
            np.testing.assert_array_equal(got[:, k, half], tile[8 * k + row, pair + half])
            np.testing.assert_array_equal(got[:, 4 + k, half], tile[8 * k + pair + half, row])
    for k in range(2):
        for half in range(2):
            np.testing.assert_array_equal(got[:, 8 + k, half], tile[8 * k + row, 8 + pair + half])
            np.testing.assert_array_equal(got[:, 10 + k, half], tile[8 * k + pair + half, 8 + row])


# --- mma.sync ---------------------------------------------------------------------------------------------------------


def make_mma(instruction):
    @cuda.jit
    def multiply(a, b, c, out):
        lane = uint32(cuda.threadIdx.x)
        (out[lane, 0], out[lane, 1], out[lane, 2], out[lane, 3]) = instruction(
            a[lane, 0], a[lane, 1], a[lane, 2], a[lane, 3], b[lane, 0], b[lane, 1], c[lane, 0], c[lane, 1], c[lane, 2],
            c[lane, 3])

    return multiply


def pairs(low, high):
    """Two columns of 16-bit values -> words, the first in the low half."""
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << 16


def fragments_16(a, b):
    """A (16, 16) and B (16, 8) of 16-bit values as lanes hold them: (32, 4) and (32, 2) words."""
    g, t = LANES // 4, LANES % 4 * 2
    a_words = [pairs(a[g + dr, t + dk], a[g + dr, t + dk + 1]) for dr, dk in ((0, 0), (8, 0), (0, 8), (8, 8))]
    b_words = [pairs(b[t + dk, g], b[t + dk + 1, g]) for dk in (0, 8)]
    return np.stack(a_words, axis=1), np.stack(b_words, axis=1)


def accumulators(c):
    """C (16, 8) as lanes hold it: (32, 4)."""
    g, t = LANES // 4, LANES % 4 * 2
    return np.stack([c[g, t], c[g, t + 1], c[g + 8, t], c[g + 8, t + 1]], axis=1)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_mma_multiplies_float16(kind, rng):
    needs(8)
    a, b, c = exact(rng, 16, 16), exact(rng, 16, 8), exact(rng, 16, 8, dtype=np.float32)
    stored = (a, b) if kind == "f16" else (bf16_bits(a), bf16_bits(b))
    kernel = make_mma(getattr(ptx, f"mma_m16n8k16_f32_{kind}"))
    out = cuda.to_device(np.zeros((32, 4), np.float32))
    kernel[1, 32](*(cuda.to_device(x) for x in fragments_16(*stored)), cuda.to_device(accumulators(c)), out)
    expected = a.astype(np.float64) @ b.astype(np.float64) + c
    np.testing.assert_array_equal(out.copy_to_host(), accumulators(expected))


@cuda.jit
def multiply_short(a, b, c, out):
    lane = uint32(cuda.threadIdx.x)
    out[lane, 0], out[lane, 1], out[lane, 2], out[lane, 3] = ptx.mma_m16n8k8_f32_f16(
        a[lane, 0], a[lane, 1], b[lane, 0], c[lane, 0], c[lane, 1], c[lane, 2], c[lane, 3])


def test_a_short_mma_multiplies_eight_steps_of_k(rng):
    a, b, c = exact(rng, 16, 16), exact(rng, 16, 8), exact(rng, 16, 8, dtype=np.float32)
    words_a, words_b = fragments_16(a, b)
    out = cuda.to_device(np.zeros((32, 4), np.float32))
    multiply_short[1, 32](*(cuda.to_device(x) for x in (words_a, words_b, accumulators(c))), out)
    expected = a[:, :8].astype(np.float64) @ b[:8].astype(np.float64) + c
    np.testing.assert_array_equal(out.copy_to_host(), accumulators(expected))


@cuda.jit
def multiply_f16(a, b, c, out):
    lane = uint32(cuda.threadIdx.x)
    out[lane, 0], out[lane, 1] = ptx.mma_m16n8k16_f16_f16(a[lane, 0], a[lane, 1], a[lane, 2], a[lane, 3], b[lane, 0],
                                                          b[lane, 1], c[lane, 0], c[lane, 1])


def test_mma_with_half_accumulators_rounds_to_float16(rng):
    needs(8)
    a, b, c = exact(rng, 16, 16), exact(rng, 16, 8), (exact(rng, 16, 8) * 64).astype(np.float16)
    held = accumulators(c)
    words = np.stack([pairs(held[:, 0], held[:, 1]), pairs(held[:, 2], held[:, 3])], axis=1)
    out = cuda.to_device(np.zeros((32, 2), np.uint32))
    multiply_f16[1, 32](*(cuda.to_device(x) for x in fragments_16(a, b)), cuda.to_device(words), out)
    got = np.ascontiguousarray(out.copy_to_host()).view(np.float16).reshape(32, 4)
    expected = accumulators(a.astype(np.float64) @ b.astype(np.float64) + c)
    # One half is 1/16 at 100: rounded to the nearest on the CPU device, possibly truncated on a GPU.
    np.testing.assert_allclose(got, expected, rtol=2**-10)
    assert not np.array_equal(got, expected)


def test_mma_multiplies_tf32(rng):
    needs(8)
    a, b, c = (exact(rng, *shape, dtype=np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
    g, t = LANES // 4, LANES % 4
    a_words = np.stack([a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]], axis=1).view(np.uint32)
    b_words = np.stack([b[t, g], b[t + 4, g]], axis=1).view(np.uint32)
    out = cuda.to_device(np.zeros((32, 4), np.float32))
    make_mma(ptx.mma_m16n8k8_f32_tf32)[1, 32](cuda.to_device(a_words), cuda.to_device(b_words),
                                              cuda.to_device(accumulators(c)), out)
    np.testing.assert_array_equal(out.copy_to_host(), accumulators(a.astype(np.float64) @ b.astype(np.float64) + c))


# --- wgmma ------------------------------------------------------------------------------------------------------------


def swizzled(matrix):
    """A (rows, 64) matrix in float16 in the 128-byte swizzle: 16-byte chunk c of row r lies in chunk c ^ r % 8."""
    rows = matrix.shape[0]
    chunks = matrix.reshape(rows, 8, 8)
    placed = np.empty_like(chunks)
    for chunk in range(8):
        placed[np.arange(rows), chunk ^ np.arange(rows) % 8] = chunks[:, chunk]
    return placed.reshape(-1)


@functools.cache
def make_wgmma(instruction, columns, k_step, leading):
    count = columns // 2

    @cuda.jit
    def multiply(a, b, start, out):
        tiles = cuda.shared.array(0, np.float16, 1024)
        t = uint32(cuda.threadIdx.x)
        k = t
        while k < a.size:
            tiles[k] = a[k]
            k += uint32(128)
        k = t
        while k < b.size:
            tiles[uint32(4096) + k] = b[k]
            k += uint32(128)
        ptx.fence_proxy_async()
        cuda.syncthreads()
        acc = cuda.local.array(count, float32)
        for j in range(count):
            acc[j] = start
        da = ptx.wgmma_descriptor(tiles, uint32(0), 16, 1024, 128)
        db = ptx.wgmma_descriptor(tiles, uint32(4096), leading, 1024, 128)
        ptx.wgmma_fence()
        for step in range(4):
            instruction(acc, da + uint64(2 * step), db + uint64(k_step * step), uint32(1))
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        row = t // uint32(32) * uint32(16) + t % uint32(32) // uint32(4)
        col = t % uint32(4) * uint32(2)
        for j in range(count // 4):
            out[row, col + uint32(8 * j)] = acc[4 * j]
            out[row, col + uint32(8 * j + 1)] = acc[4 * j + 1]
            out[row + uint32(8), col + uint32(8 * j)] = acc[4 * j + 2]
            out[row + uint32(8), col + uint32(8 * j + 1)] = acc[4 * j + 3]

    return multiply


@pytest.mark.parametrize("columns", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize(("kind", "b_major"), [("f16", "k"), ("f16", "mn"), ("bf16", "k")])
def test_wgmma_multiplies_tiles_in_shared_memory(columns, kind, b_major, rng):
    needs(9)
    if b_major == "mn" and columns % 64:
        pytest.skip("a 128-byte row of B holds 64 columns")
    a, b = exact(rng, 64, 64), exact(rng, 64, columns)
    if b_major == "k":
        b_stored, k_step, leading, suffix = swizzled(np.ascontiguousarray(b.T)), 2, 16, ""
    else:  # blocks of 64 columns, each 64 rows of 128 bytes
        blocks = [swizzled(np.ascontiguousarray(b[:, n : n + 64])) for n in range(0, columns, 64)]
        b_stored, k_step, leading, suffix = np.concatenate(blocks), 128, 8192, "_bmn"
    a_stored = swizzled(a)
    if kind == "bf16":
        a_stored, b_stored = (bf16_bits(x).view(np.float16) for x in (a_stored, b_stored))
    kernel = make_wgmma(getattr(ptx, f"wgmma_m64n{columns}k16_f32_{kind}{suffix}"), columns, k_step, leading)
    out = cuda.to_device(np.full((64, columns), np.nan, np.float32))
    arguments = (cuda.to_device(a_stored), cuda.to_device(b_stored), float32(3.0), out)
    nbytes = 2 * (a.size + b.size)
    dynamic_shared(kernel, nbytes, *arguments)
    kernel[1, 128, 0, nbytes](*arguments)
    np.testing.assert_array_equal(out.copy_to_host(), a.astype(np.float64) @ b.astype(np.float64) + 3)


@pytest.mark.parametrize("columns", [8, 64, 256])
def test_wgmma_multiplies_tiles_of_e4m3(columns, rng):
    """Integers up to 8 are exact, and so are their sums."""
    needs(9)
    a, b = (e4m3_codes(rng.integers(-8, 9, (rows, 128)).astype(np.float64)) for rows in (64, columns))
    a_stored, b_stored = (swizzled(codes.view(np.float16)) for codes in (a, b))
    kernel = make_wgmma(getattr(ptx, f"wgmma_m64n{columns}k32_f32_e4m3"), columns, 2, 16)
    out = cuda.to_device(np.full((64, columns), np.nan, np.float32))
    arguments = (cuda.to_device(a_stored), cuda.to_device(b_stored), float32(3.0), out)
    nbytes = a.size + b.size
    dynamic_shared(kernel, nbytes, *arguments)
    kernel[1, 128, 0, nbytes](*arguments)
    np.testing.assert_array_equal(out.copy_to_host(), e4m3_value(a) @ e4m3_value(b).T + 3)


def words_of_a(a):
    """A (64, 16) of 16-bit values as the 128 threads of a warpgroup hold it: (128, 4) words."""
    t = np.arange(128)
    g, q = t // 32 * 16 + t % 32 // 4, t % 4 * 2
    return np.stack([pairs(a[g + down, q + right], a[g + down, q + right + 1])
                     for down, right in ((0, 0), (8, 0), (0, 8), (8, 8))], axis=1)


@functools.cache
def make_wgmma_from_registers(instruction, columns, k_step, leading):
    count = columns // 2

    @cuda.jit
    def multiply(a, b, out):
        tiles = cuda.shared.array(0, np.float16, 1024)
        t = uint32(cuda.threadIdx.x)
        k = t
        while k < b.size:
            tiles[k] = b[k]
            k += uint32(128)
        ptx.fence_proxy_async()
        cuda.syncthreads()
        acc = cuda.local.array(count, float32)
        db = ptx.wgmma_descriptor(tiles, uint32(0), leading, 1024, 128)
        x, y = a[0, t, 0], a[0, t, 1]
        z, w = a[0, t, 2], a[0, t, 3]
        ptx.wgmma_fence()
        instruction(acc, x, y, z, w, db, uint32(0))
        instruction(acc, a[1, t, 0], a[1, t, 1], a[1, t, 2], a[1, t, 3], db + uint64(k_step), uint32(1))
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        for j in range(count):
            out[t, j] = acc[j]

    return multiply


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize(("kind", "b_major"), [("f16", "k"), ("f16", "mn"), ("bf16", "mn")])
def test_wgmma_takes_its_first_factor_from_registers(columns, kind, b_major, rng):
    needs(9)
    a, b = exact(rng, 64, 32), exact(rng, 64, columns)
    b[32:] = np.nan  # not read
    if b_major == "k":
        b_stored, k_step, leading, suffix = swizzled(np.ascontiguousarray(b.T)), 2, 16, ""
    else:
        blocks = [swizzled(np.ascontiguousarray(b[:, n : n + 64])) for n in range(0, columns, 64)]
        b_stored, k_step, leading, suffix = np.concatenate(blocks), 128, 8192, "_bmn"
    a_stored = a
    if kind == "bf16":
        a_stored, b_stored = bf16_bits(a), bf16_bits(b_stored).view(np.float16)
    words = np.stack([words_of_a(a_stored[:, :16]), words_of_a(a_stored[:, 16:])])
    check_from_registers(f"wgmma_m64n{columns}k16_f32_{kind}_ra{suffix}", columns, k_step, leading, words, b_stored,
                         a.astype(np.float64) @ b[:32].astype(np.float64))


@pytest.mark.parametrize("columns", [64, 256])
def test_wgmma_in_tf32_takes_its_first_factor_from_registers(columns, rng):
    needs(9)
    a, b = exact(rng, 64, 16).astype(np.float32), exact(rng, 32, columns).astype(np.float32)
    b[16:] = np.nan  # not read
    b_stored = swizzled(np.ascontiguousarray(b.T).view(np.float16))
    t = np.arange(128)
    g, q = t // 32 * 16 + t % 32 // 4, t % 4
    words = np.stack([np.stack([a[g + down, k + q + right] for down, right in ((0, 0), (8, 0), (0, 4), (8, 4))], axis=1)
                      for k in (0, 8)]).view(np.uint32)
    check_from_registers(f"wgmma_m64n{columns}k8_f32_tf32_ra", columns, 2, 16, words, b_stored,
                         a.astype(np.float64) @ b[:16].astype(np.float64))


def check_from_registers(name, columns, k_step, leading, words, b_stored, expected):
    kernel = make_wgmma_from_registers(getattr(ptx, name), columns, k_step, leading)
    out = cuda.to_device(np.full((128, columns // 2), np.nan, np.float32))
    arguments = (cuda.to_device(words), cuda.to_device(b_stored), out)
    dynamic_shared(kernel, b_stored.nbytes, *arguments)
    kernel[1, 128, 0, b_stored.nbytes](*arguments)
    t, j = np.arange(128)[:, None], np.arange(columns // 2)
    places = t // 32 * 16 + t % 32 // 4 + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * (t % 4) + j % 2
    np.testing.assert_array_equal(out.copy_to_host(), expected[places])


# --- TMA and mbarriers ------------------------------------------------------------------------------------------------


@cuda.jit
def copy_what_was_fetched(a, out):
    i = uint32(cuda.grid(1))
    if i == uint32(0):
        ptx.prefetch_l2(a, uint32(8), uint32(64))
    out[i] = a[i]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fetching_ahead_changes_nothing(dtype):
    needs(9, 0)
    a, out = np.arange(64).astype(dtype), cuda.device_array(64, dtype)
    copy_what_was_fetched[2, 32](cuda.to_device(a), out)
    np.testing.assert_array_equal(out.copy_to_host(), a)


@cuda.jit
def load_box(tensor_map, col, row, out):
    tile = cuda.shared.array(16 * 64, np.float16, 1024)
    bars = cuda.shared.array(1, np.uint64)
    t = uint32(cuda.threadIdx.x)
    if t == uint32(0):
        ptx.prefetch_tensor_map(tensor_map)
        ptx.mbarrier_init(bars, uint32(0), uint32(1))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if t == uint32(0):
        ptx.mbarrier_expect_tx(bars, uint32(0), uint32(2048))
        ptx.tma_load_2d(tile, uint32(0), tensor_map, col, row, bars, uint32(0))
    ptx.mbarrier_wait(bars, uint32(0), uint32(0))
    k = t
    while k < uint32(16 * 64):
        out[k] = tile[k]
        k += uint32(64)


@pytest.mark.parametrize(("row", "col"), [(0, 0), (8, 64), (24, 32), (33, 80)])
@pytest.mark.parametrize("swizzle", [0, 128])
def test_tma_loads_a_box_and_zeros_beyond_the_edge(row, col, swizzle, rng):
    needs(9)
    matrix = exact(rng, 37, 104)
    d_matrix = cuda.to_device(matrix)
    out = cuda.to_device(np.full(16 * 64, np.nan, np.float16))
    load_box[1, 64](ptx.tensor_map_2d(d_matrix, 16, 64, swizzle), np.int32(col), np.int32(row), out)
    padded = np.zeros((37 + 16, 104 + 64), np.float16)
    padded[:37, :104] = matrix
    box = np.ascontiguousarray(padded[row : row + 16, col : col + 64])
    np.testing.assert_array_equal(out.copy_to_host(), swizzled(box) if swizzle else box.reshape(-1))


@cuda.jit
def copy_boxes(source_map, target_map, boxes):
    """A producer warp fills a ring of two buffers by TMA; a consumer warp doubles each and stores it by TMA."""
    tiles = cuda.shared.array(2 * 512, np.float16, 1024)
    full = cuda.shared.array(2, np.uint64)
    empty = cuda.shared.array(2, np.uint64)
    t = uint32(cuda.threadIdx.x)
    if t == uint32(0):
        for stage in range(2):
            ptx.mbarrier_init(full, uint32(stage), uint32(1))
            ptx.mbarrier_init(empty, uint32(stage), uint32(32))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if t < uint32(32):  # the producer
        if t == uint32(0):
            box = uint32(0)
            while box < boxes:
                stage, lap = box & uint32(1), box >> uint32(1)
                ptx.mbarrier_wait(empty, stage, (lap & uint32(1)) ^ uint32(1))
                ptx.mbarrier_expect_tx(full, stage, uint32(1024))
                ptx.tma_load_2d(tiles, stage * uint32(512), source_map, 0, box * uint32(8), full, stage)
                box += uint32(1)
    else:
        lane = t - uint32(32)
        box = uint32(0)
        while box < boxes:
            stage, lap = box & uint32(1), box >> uint32(1)
            ptx.mbarrier_wait(full, stage, lap & uint32(1))
            k = lane
            while k < uint32(512):
                place = stage * uint32(512) + k
                tiles[place] = tiles[place] + tiles[place]
                k += uint32(32)
            ptx.fence_proxy_async()
            ptx.named_barrier_sync(uint32(1), uint32(32))
            if lane == uint32(0):
                ptx.tma_store_2d(target_map, 0, box * uint32(8), tiles, stage * uint32(512))
                ptx.tma_store_commit()
                ptx.tma_store_wait(0)
            ptx.named_barrier_sync(uint32(1), uint32(32))
            ptx.mbarrier_arrive(empty, stage)
            box += uint32(1)


def test_a_ring_of_mbarriers_between_two_warps(rng):
    needs(9)
    source = exact(rng, 50, 64)
    d_source, d_out = cuda.to_device(source), cuda.to_device(np.full((50, 64), np.nan, np.float16))
    copy_boxes[1, 64](ptx.tensor_map_2d(d_source, 8, 64, 0), ptx.tensor_map_2d(d_out, 8, 64, 0), np.uint32(7))
    np.testing.assert_array_equal(d_out.copy_to_host(), 2 * source)


@cuda.jit
def load_rows(source, out):
    """A bulk copy of each of two rows of 48 elements, to two barriers; a bounded wait for each."""
    rows = cuda.shared.array(2 * 64, np.float16, 16)
    bars = cuda.shared.array(2, np.uint64)
    t = uint32(cuda.threadIdx.x)
    if t < uint32(2):
        ptx.mbarrier_init(bars, t, uint32(1))
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if t < uint32(2):
        ptx.mbarrier_expect_tx(bars, t, uint32(96))
        ptx.bulk_load(rows, t * uint32(64), source, uint64(t) * uint64(200) + uint64(8), uint32(96), bars, t)
    for row in range(2):
        ptx.mbarrier_wait_bounded(bars, uint32(row), uint32(0))
        if t < uint32(48):
            out[row, t] = rows[uint32(row) * uint32(64) + t]


def test_bulk_copies_bring_contiguous_bytes(rng):
    needs(9)
    source = exact(rng, 2, 200)
    out = cuda.to_device(np.full((2, 48), np.nan, np.float16))
    load_rows[1, 64](cuda.to_device(source), out)
    np.testing.assert_array_equal(out.copy_to_host(), source[:, 8:56])


@cuda.jit
def one_after_the_other(counter, values, times):
    """Block b waits for the blocks before it, and adds its number to what the last of them wrote."""
    b, t = uint32(cuda.blockIdx.x), uint32(cuda.threadIdx.x)
    if t == uint32(0):
        ptx.store_timer(times, uint32(2) * b)
        while ptx.load_acquire(counter, uint32(0)) < b:
            pass
        values[b + uint32(1)] = values[b] + b + uint32(1)
        ptx.add_release(counter, uint32(0), uint32(1))
        ptx.store_timer(times, uint32(2) * b + uint32(1))


def test_blocks_wait_for_a_counter_and_see_what_was_written_before():
    needs(9)
    counter, values, times = (cuda.to_device(np.zeros(count, dtype)) for count, dtype in (
        (1, np.uint32), (6, np.uint32), (10, np.uint64)))
    one_after_the_other[5, 32](counter, values, times)
    np.testing.assert_array_equal(values.copy_to_host(), np.cumsum(np.arange(6)))
    assert counter.copy_to_host()[0] == 5
    begins, ends = times.copy_to_host().astype(np.int64).reshape(5, 2).T
    assert (ends >= begins).all() and (np.diff(ends) >= 0).all() and begins.min() > 0


@cuda.jit
def add_neighbours_words(words, out):
    """A block tells b and b + 1, with the epoch 1 above them, and adds up its neighbour's."""
    b, blocks, t = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), uint32(cuda.threadIdx.x)
    epoch = uint64(1) << uint64(32)
    if t < uint32(2):
        ptx.store_relaxed(words, uint32(2) * b + t, epoch | uint64(b + t))
    first, second = uint64(0), uint64(0)
    while first < epoch or second < epoch:
        first, second = ptx.load_relaxed2(words, uint32(2) * ((b + uint32(1)) % blocks))
    out[b, t] = uint32(first) + uint32(second)


def test_words_carry_values_from_block_to_block():
    needs(9)
    words, out = cuda.to_device(np.zeros(6, np.uint64)), cuda.to_device(np.zeros((3, 32), np.uint32))
    add_neighbours_words[3, 32](words, out)
    np.testing.assert_array_equal(out.copy_to_host(), np.repeat([[3], [5], [1]], 32, axis=1))


@pytest.mark.cpu_device
@pytest.mark.parametrize("i", [1, 5])
def test_words_that_are_no_pair_are_refused(i):
    @cuda.jit
    def load(words, i, out):
        out[0], out[1] = ptx.load_relaxed2(words, i)

    with pytest.raises(KernelAssertionError, match=f"reads words {i} and {i + 1} of 6 .*must be even, and both inside"):
        load[1, 1](cuda.to_device(np.zeros(6, np.uint64)), np.uint32(i), cuda.to_device(np.zeros(2, np.uint64)))


@pytest.mark.cpu_device
@pytest.mark.parametrize("nbytes", [0, 24])
def test_a_bulk_copy_of_other_sizes_is_refused(nbytes):
    @cuda.jit
    def load(source, count):
        row = cuda.shared.array(64, np.float16, 16)
        bars = cuda.shared.array(1, np.uint64)
        ptx.mbarrier_init(bars, 0, 1)
        ptx.bulk_load(row, 0, source, 0, count, bars, 0)

    with pytest.raises(KernelAssertionError, match=rf"passes nbytes = {nbytes} to ptx.bulk_load"):
        load[1, 1](cuda.to_device(np.zeros(64, np.float16)), np.uint32(nbytes))


@pytest.mark.cpu_device
def test_a_trap_ends_the_launch():
    @cuda.jit
    def stop(values):
        if values[0] == 0:
            ptx.trap()

    stop[1, 1](np.ones(1, np.int32))
    with pytest.raises(KernelAssertionError, match=r"reaches ptx.trap\(\)"):
        stop[1, 1](np.zeros(1, np.int32))


@pytest.mark.parametrize(("rows", "cols", "swizzle", "message"), [
    (300, 64, 128, "box_rows is 300"), (8, 128, 128, "swizzle"), (8, 60, 0, "box_cols"), (8, 64, 48, "swizzle is 48")])
def test_a_box_that_tma_cannot_describe_is_refused(rows, cols, swizzle, message):
    matrix = cuda.to_device(np.zeros((32, 128), np.float16))
    with pytest.raises(ValueError, match=message):
        ptx.tensor_map_2d(matrix, rows, cols, swizzle)
