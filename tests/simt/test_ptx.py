"""labkit.ptx on the CPU device: each intrinsic against NumPy, compiled and interpreted; what goes wrong is named."""

import numpy as np
import pytest
from numba import float32, int32, uint32, uint64
from numba.core.types import float16, uint16

from labkit import cuda, observe
from labkit.device import ptx
from labkit.kernels import arguments as launching
from labkit.kernels.linear.quantized import e4m3_value
from labkit.simt import errors, show, thread_order
from labkit.simt.ptx import INTRINSICS
from labkit.simt.ptx_interpreted.values import to_bf16
from tests.simt.helpers import WAYS, kernel_of, line_of, run

pytestmark = pytest.mark.cpu_device

LANES = np.arange(32)
G, Q = LANES // 4, LANES % 4


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ---------------------------------------------------------------- names


def test_every_intrinsic_says_what_it_needs_and_where_it_is_described():
    for name, stub in INTRINSICS.items():
        assert getattr(ptx, name) is stub
        assert stub.__doc__.startswith(f"{name}(") and "Needs " in stub.__doc__ and "PTX ISA" in stub.__doc__
        assert repr(stub).startswith(f"<ptx.{name}:")
    with pytest.raises(TypeError, match=r"ptx.load_nc4\(\) can be called only inside a kernel"):
        ptx.load_nc4(1, 2)


class OnGPU:
    """As an intrinsic looks on a GPU: an object that names its counterpart."""

    cpu_device = ptx.float_bits


float_bits_on_gpu = OnGPU()


@cuda.jit
def by_counterpart(a, out):
    out[0] = float_bits_on_gpu(a[0])


def test_an_intrinsic_of_the_gpu_is_read_as_its_counterpart():
    out = cuda.device_array(1, np.uint32)
    observe(by_counterpart[1, 1], cuda.to_device(np.array([1.5], np.float32)), out)
    assert out.copy_to_host()[0] == 0x3FC00000


# ---------------------------------------------------------------- 128 bits at once


@cuda.jit
def quads(a, out):
    tile = cuda.shared.array(256, a.dtype, 16)
    words = uint32(16 // a.itemsize)
    i = uint32(cuda.grid(1)) * words
    at = uint32(cuda.threadIdx.x) * words
    if i < uint32(a.size):
        x, y, z, w = ptx.load_nc4(a, i)
        ptx.store_shared4(tile, at, w, z, y, x)
        x, y, z, w = ptx.load_shared4(tile, at)
        ptx.store_global4(out, i, x, y, z, w)


@WAYS
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32, np.float16, np.uint16])
def test_four_words_at_once(rng, dtype, way):
    a = rng.integers(0, 60_000, (3, 40)).astype(dtype)
    if dtype == np.int32:
        a -= 30_000
    out = cuda.device_array(a.shape, dtype)
    run(way, quads[2, 32], cuda.to_device(a), out)
    words = a.reshape(-1).view(np.uint32).reshape(-1, 4)[:, ::-1]
    assert np.array_equal(out.copy_to_host().reshape(-1).view(np.uint32).reshape(-1, 4), words)


@cuda.jit
def load_at(a, i, out):
    x, y, z, w = ptx.load_global4(a, i)
    out[0] = x + y + z + w


@pytest.mark.parametrize("index", [np.uint32(12), -4, np.uint32(2**32 - 4), 2**40])
def test_beyond_the_array(index):
    a, out = cuda.to_device(np.zeros((3, 5), np.float32)), cuda.device_array(1, np.float32)
    with pytest.raises(errors.OutOfBoundsError) as found:
        load_at[1, 1](a, index, out)
    message = f"thread 0 uses elements {index} to {int(index) + 3} of a with ptx.load_global4"
    assert message in str(found.value) and "(3, 5) has 15 elements" in str(found.value)
    assert (found.value.array, found.value.index, found.value.shape) == ("a", (index,), (3, 5))
    report = observe(load_at[1, 1], a, index, out)
    assert "elements" in str(report.out_of_bounds[0]) and report.out_of_bounds_reads[0].array == "a"


@WAYS
def test_misaligned(way):
    a, out = cuda.to_device(np.zeros(16, np.float32)), cuda.device_array(1, np.float32)
    with pytest.raises(errors.MisalignedError, match=r"uses a from element 6 on with ptx.load_global4.* 16 bytes"):
        run(way, load_at[1, 1], a, np.uint32(6), out)


def test_views_are_aligned_by_where_they_begin():
    a, out = cuda.to_device(np.arange(16, dtype=np.float32)), cuda.device_array(1, np.float32)
    with pytest.raises(errors.MisalignedError):
        load_at[1, 1](a[2:], np.uint32(0), out)
    load_at[1, 1](a[2:], np.uint32(2), out)
    assert out.copy_to_host()[0] == 4 + 5 + 6 + 7


def test_only_contiguous_arrays_of_the_right_size():
    out = cuda.device_array(1, np.float32)
    with pytest.raises(errors.KernelTypeError, match="not C-contiguous"):
        load_at[1, 1](cuda.to_device(np.zeros((8, 8), np.float32))[:, :4], np.uint32(0), out)
    with pytest.raises(errors.KernelTypeError, match="array of float64 .1D. cannot be used|an array of float64"):
        load_at[1, 1](cuda.to_device(np.zeros(8)), np.uint32(0), out)


@cuda.jit
def scaled_in_place(a):
    i = uint32(4) * uint32(cuda.grid(1))
    x, y, z, w = ptx.load_nc4(a, i)  # read
    ptx.store_global4(a, i, x + x, y + y, z + z, w + w)  # write


def test_observe_sees_load_nc4_of_what_is_written():
    a = cuda.to_device(np.ones(64, np.float32))
    (race,) = observe(scaled_in_place[1, 16], a).races
    assert race.lines == [line_of(scaled_in_place, "read"), line_of(scaled_in_place, "write")]
    assert "with ptx.load_nc4" in str(race) and "Use ptx.load_global4" in str(race)


@cuda.jit
def copy_quads(a, out):
    i = uint32(4) * uint32(cuda.grid(1))
    x, y, z, w = ptx.load_global4(a, i)  # read
    ptx.store_global4(out, i, x, y, z, w)


def test_counts_of_wide_accesses():
    a, out = cuda.to_device(np.ones(256, np.float32)), cuda.device_array(256, np.float32)
    report = observe(copy_quads[1, 64], a, out)
    counts = report.lines[line_of(copy_quads, "read")]
    assert (counts["global_loads"], counts["global_requests"], counts["sectors"]) == (64, 2, 32)
    assert report.coalescing == 1 and counts["bytes_loaded"] == 1024
    assert report.ok and (out.copy_to_host() == 1).all()


@cuda.jit
def pairs(x, in_float16, in_bfloat16, i):
    k = uint32(2) * uint32(cuda.threadIdx.x) + uint32(i)
    ptx.store_global_half2(in_float16, k, x[k], x[k + uint32(1)])
    ptx.store_global_bf162(in_bfloat16, k, x[k], x[k + uint32(1)])


AWKWARD = np.array(
    [0, -0.0, 1, -1.5, 65504, 65520, 1e6, -1e9, 2.0**-24, 2.0**-25, 3e-8, 1e-30, np.inf, -np.inf, np.nan, 1 + 2.0**-11,
     1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-9, 3.3895314e38, 1e-40, 1 + 2.0**-12, 1 + 2.0**-11 + 2.0**-23, 0.1],
    np.float32,
)  # fmt: skip


def same(ours, expected):
    """Equal, NaN where NaN."""
    assert np.array_equal(np.isnan(ours), np.isnan(expected))
    assert np.array_equal(ours[~np.isnan(ours)], expected[~np.isnan(expected)])


@cuda.jit
def swapped_pairs(x, out, i):
    k = uint32(2) * uint32(cuda.threadIdx.x) + uint32(i)
    ptx.store_global2(out, k, x[k + uint32(1)], x[k])


@WAYS
def test_two_words_are_stored_at_once(way, rng):
    x, out = rng.standard_normal(16).astype(np.float32), cuda.device_array(16, np.float32)
    run(way, swapped_pairs[1, 8], cuda.to_device(x), out, 0)
    np.testing.assert_array_equal(out.copy_to_host(), x.reshape(8, 2)[:, ::-1].reshape(-1))
    with pytest.raises(errors.MisalignedError, match="element 1 on with ptx.store_global2.* 8 bytes"):
        swapped_pairs[1, 1](cuda.to_device(x), out, 1)


@WAYS
def test_pairs_are_rounded_and_stored(way):
    in_float16, in_bfloat16 = cuda.device_array(AWKWARD.size, np.float16), cuda.device_array(AWKWARD.size, np.uint16)
    run(way, pairs[1, AWKWARD.size // 2], cuda.to_device(AWKWARD), in_float16, in_bfloat16, 0)
    with np.errstate(over="ignore"):
        same(in_float16.copy_to_host(), AWKWARD.astype(np.float16))
    given = in_bfloat16.copy_to_host().astype(np.uint32) << 16
    exact = np.where(np.isfinite(AWKWARD), AWKWARD, 0).astype(np.float64)
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126))) - 7)
    nearest = np.where(np.isfinite(AWKWARD), np.round(exact / ulp) * ulp, AWKWARD)
    with np.errstate(over="ignore"):
        same(given.view(np.float32), nearest.astype(np.float32))
    with pytest.raises(errors.MisalignedError, match="element 1 on with ptx.store_global_half2.* 4 bytes"):
        pairs[1, 1](cuda.to_device(AWKWARD), in_float16, in_bfloat16, 1)


# ---------------------------------------------------------------- values


@cuda.jit
def values(x, words, floats):
    i = uint32(cuda.grid(1))
    if i < uint32(x.size):
        j = (i + uint32(1)) % uint32(x.size)
        words[0, i] = ptx.float_bits(x[i])
        words[1, i] = ptx.to_tf32(x[i])
        words[2, i] = ptx.pack_half2(x[i], x[j])
        words[3, i] = ptx.pack_bf162(x[i], x[j])
        words[4, i] = ptx.mul_hi(words[0, i], ptx.float_bits(x[j]))
        floats[0, i] = ptx.bits_float(words[0, i])
        floats[1, i], floats[2, i] = ptx.unpack_half2(words[2, i])
        floats[3, i], floats[4, i] = ptx.unpack_bf162(words[3, i])
        floats[5, i] = ptx.tanh_approx(x[i])
        floats[6, i] = ptx.exp2_approx(x[i])
        floats[7, i] = ptx.rcp_approx(x[i])


@pytest.fixture(scope="module")
def computed():
    """values() by a launch and observed, of awkward and ordinary numbers."""
    x = np.concatenate([AWKWARD, np.random.default_rng(3).standard_normal(100).astype(np.float32) * 4])
    results = []
    for way in ("compiled", "observed"):
        words, floats = cuda.device_array((5, x.size), np.uint32), cuda.device_array((8, x.size), np.float32)
        run(way, values[2, 64], cuda.to_device(x), words, floats)
        results.append((words.copy_to_host(), floats.copy_to_host()))
    return x, results


def test_values_of_the_two_forms_agree(computed):
    _, ((words, floats), (observed_words, observed_floats)) = computed
    for ours, theirs in zip(floats, observed_floats, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)
    nan = np.isnan(floats[0])
    assert np.array_equal(words[:, ~nan][:2], observed_words[:, ~nan][:2])
    assert np.array_equal(floats[1:5], observed_floats[1:5], equal_nan=True)


@pytest.mark.parametrize("form", [0, 1])
def test_values(computed, form):
    x, results = computed
    words, floats = results[form]
    after = np.roll(x, -1)
    assert np.array_equal(words[0], x.view(np.uint32))
    products = x.view(np.uint32).astype(np.uint64) * after.view(np.uint32).astype(np.uint64)
    assert np.array_equal(words[4], products >> np.uint64(32))
    assert np.array_equal(floats[0].view(np.uint32), x.view(np.uint32))
    with np.errstate(all="ignore"):
        same(floats[1], x.astype(np.float16).astype(np.float32))
        same(floats[2], after.astype(np.float16).astype(np.float32))
        low, high = (y.astype(np.float16).view(np.uint16).astype(np.uint32) for y in (x, after))
        numbers = ~np.isnan(x) & ~np.isnan(after)
        assert np.array_equal(words[2][numbers], (low | high << 16)[numbers])
        assert np.array_equal(words[3][numbers], (to_bf16(x) | to_bf16(after).astype(np.uint32) << 16)[numbers])
        same(floats[3], np.where(np.isnan(x), x, (to_bf16(x).astype(np.uint32) << 16).view(np.float32)))
        # tf32: to the nearest of 10 bits, ties away from zero; computed in float64, where the scaling is exact
        exact = x.astype(np.float64)
        unit = 2.0 ** (np.floor(np.log2(np.abs(exact))) - 10)
        nearest = np.sign(exact) * np.floor(np.abs(exact) / unit + 0.5) * unit
        usual = np.isfinite(x) & (np.abs(x) > 1e-37)
        assert np.array_equal(words[1].view(np.float32)[usual], nearest.astype(np.float32)[usual])
        assert not (words[1][~np.isnan(x)] & 0x1FFF).any()
        assert np.allclose(floats[5], np.tanh(exact), rtol=2e-6, atol=1e-44, equal_nan=True)
        tiny = np.finfo(np.float32).tiny
        exponentials = np.exp2(exact).astype(np.float32)
        exponentials[exponentials < tiny] = 0
        exponentials[np.abs(x) < tiny] = 1
        assert np.allclose(floats[6], exponentials, rtol=1e-6, atol=0, equal_nan=True)
        inverse = (1 / np.where(np.abs(x) < tiny, np.copysign(0, x), x)).astype(np.float32)
        inverse[np.abs(inverse) < tiny] *= 0
        assert np.allclose(floats[7], inverse, rtol=1e-6, atol=0, equal_nan=True)


@cuda.jit
def fused(half, bf16, out):
    i = uint32(cuda.grid(1))
    out[0, i] = ptx.fma_half2(half[0, i], half[1, i], half[2, i])
    out[1, i] = ptx.fma_bf162(bf16[0, i], bf16[1, i], bf16[2, i])


@WAYS
def test_two_multiply_adds_at_once(rng, way):
    values = rng.standard_normal((3, 64)).astype(np.float32) * 8
    half, bf16 = values.astype(np.float16), to_bf16(values)
    out = cuda.device_array((2, 32), np.uint32)
    run(way, fused[1, 32], *(cuda.to_device(array.view(np.uint32)) for array in (half, bf16)), out)
    out = out.copy_to_host()
    a, b, c = half.astype(np.float64)
    assert np.array_equal(out[0].view(np.float16), (a * b + c).astype(np.float16))
    a, b, c = (bf16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert np.array_equal(out[1].view(np.uint16), to_bf16((a * b + c).astype(np.float32)))


# ---------------------------------------------------------------- cp.async


@cuda.jit(device=True)
def start(tile, t, a, i, valid):
    ptx.cp_async_16(tile, uint32(8) * t, a, uint32(8) * i, valid)


@cuda.jit
def copied(a, valid, out):
    tile = cuda.shared.array((32, 8), float16, 16)
    t = uint32(cuda.threadIdx.x)
    start(tile, t, a, uint32(cuda.grid(1)), uint32(valid[t]))
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    cuda.syncthreads()
    for k in range(8):
        out[cuda.grid(1), k] = tile[31 - t, k]


@WAYS
def test_copies_and_fills_with_zeros(rng, way):
    a = rng.standard_normal((64, 8)).astype(np.float16)
    valid = rng.integers(0, 9, 32).astype(np.int32) * 2
    valid[:3] = 16, 0, 2
    out = cuda.device_array((64, 8), np.float16)
    run(way, copied[2, 32], cuda.to_device(a), cuda.to_device(valid), out)
    expected = np.where(np.arange(8) < valid[:, None] // 2, a.reshape(2, 32, 8), 0)[:, ::-1]
    assert np.array_equal(out.copy_to_host().reshape(2, 32, 8), expected)


def test_a_copy_of_nothing_reads_nothing():
    out = cuda.device_array((64, 8), np.float16)
    run("compiled", copied[2, 32], cuda.to_device(np.ones(16, np.float16)), cuda.to_device(np.zeros(32, np.int32)), out)
    assert not out.copy_to_host().any()


@WAYS
@pytest.mark.parametrize("amount", [18, -2])
def test_no_more_than_16_bytes(way, amount):
    args = cuda.to_device(np.ones((64, 8), np.float16)), cuda.to_device(np.full(32, amount, np.int32))
    with pytest.raises(errors.DeviceFault, match="to ptx.cp_async_16; it must be 0 to 16 bytes"):
        run(way, copied[2, 32], *args, cuda.device_array((64, 8), np.float16))


@cuda.jit
def copied_from(a, i, j, out):
    tile = cuda.shared.array(8, float32, 16)
    ptx.cp_async_16(tile, i, a, j, 16)
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    out[0] = tile[i]


@pytest.mark.parametrize(("i", "j", "kind", "message"), [
    (0, 2, errors.MisalignedError, "uses a from element 2 on"),
    (1, 4, errors.MisalignedError, "uses tile from element 1 on"),
    (0, 16, errors.OutOfBoundsError, "uses elements 16 to 19 of a with ptx.cp_async_16"),
    (8, 0, errors.OutOfBoundsError, "uses elements 8 to 11 of tile with ptx.cp_async_16"),
])  # fmt: skip
def test_faults_of_copies_name_the_array(i, j, kind, message):
    a, out = cuda.to_device(np.ones(16, np.float32)), cuda.device_array(1, np.float32)
    with pytest.raises(kind, match=message):
        copied_from[1, 1](a, i, j, out)


@cuda.jit
def staged(a, out, waits):
    tile = cuda.shared.array((3, 4), float32, 16)
    for k in range(3):
        ptx.cp_async_4(tile, uint32(4 * k), a, uint32(k), 4)
        ptx.cp_async_commit()
    if waits == 2:
        ptx.cp_async_wait(2)
    elif waits == 1:
        ptx.cp_async_wait(1)
    elif waits == 0:
        ptx.cp_async_wait(0)
    for k in range(3):
        out[k] = tile[k, 0]


@pytest.mark.parametrize("waits", [0, 1, 2, 3])
def test_data_are_not_there_before_the_wait(waits):
    a, out = np.array([1, 2, 3], np.float32), cuda.device_array(3, np.float32)
    staged[1, 1](cuda.to_device(a), out, waits)
    expected = a.copy()
    expected[3 - waits :] = np.nan  # the newest groups are under way: what the tile held before
    assert np.array_equal(out.copy_to_host(), expected, equal_nan=True)
    report = observe(staged[1, 1], cuda.to_device(a), out, waits)
    assert np.array_equal(out.copy_to_host(), expected, equal_nan=True)
    assert len(report.races) == (waits > 0) and not report.uninitialized_reads, str(report)


@cuda.jit
def many(a, out):
    tile = cuda.shared.array((100, 4), float32, 16)
    for k in range(100):
        ptx.cp_async_16(tile, 4 * k, a, 4 * k, 16)
    ptx.cp_async_commit()
    ptx.cp_async_wait(0)
    for k in range(100):
        out[k] = tile[k, 3]


def test_more_copies_than_a_queue_holds(rng):
    a, out = rng.standard_normal((100, 4)).astype(np.float32), cuda.device_array(100, np.float32)
    many[1, 1](cuda.to_device(a), out)
    assert np.array_equal(out.copy_to_host(), a[:, 3])


@cuda.jit
def shifted(a, out, mistake):
    tile = cuda.shared.array((2, 128), float32, 16)
    t = uint32(cuda.threadIdx.x)
    turns = uint32(a.shape[0])
    ptx.cp_async_16(tile, uint32(4) * t, a, uint32(4) * t, 16)
    ptx.cp_async_commit()
    k = uint32(0)
    while k < turns:
        after = k + uint32(1)
        if after < turns:
            at = uint32(4) * t
            ptx.cp_async_16(tile, after % uint32(2) * uint32(128) + at, a, after * uint32(128) + at, 16)  # copy
        if mistake != 1:
            ptx.cp_async_commit()
        if mistake == 2:
            ptx.cp_async_wait(2)  # weak
        elif mistake != 3:
            ptx.cp_async_wait(1)  # wait
        if mistake != 4:
            cuda.syncthreads()
        out[k, t] = tile[k % uint32(2), (uint32(4) * t + uint32(5)) % uint32(128)]  # read
        if mistake != 5:
            cuda.syncthreads()
        k = after


@pytest.mark.parametrize("mistake", range(6))
def test_observe_says_which_wait_or_barrier_is_missing(rng, mistake):
    a, out = rng.standard_normal((4, 128)).astype(np.float32), cuda.device_array((4, 32), np.float32)
    report = observe(shifted[1, 32], cuda.to_device(a), out, mistake)
    if mistake == 0:
        assert report.ok, str(report)
        shifted[1, 32](cuda.to_device(a), out, mistake)
        assert np.array_equal(out.copy_to_host(), a[:, (4 * LANES + 5) % 128])
        return
    copy, weak, wait, read = (line_of(shifted, mark) for mark in ("copy", "weak", "wait", "read"))
    message = "\n".join(map(str, report.races))
    assert report.races and report.findings == report.races
    expected = {
        1: [f"(ptx.cp_async_16) may still be under way: ptx.cp_async_wait(1) at line {wait} leaves it under way"],
        2: [f"into it at line {copy} (ptx.cp_async_16)", f"ptx.cp_async_wait(2) at line {weak} leaves it under way",
            f"Put ptx.cp_async_wait(0) and cuda.syncthreads() before line {read}"],
        3: [f"into it at line {copy} (ptx.cp_async_16)", "no ptx.cp_async_wait follows it"],
        4: [f"at line {wait}, and", f"reads it at line {read}", "with no barrier between them"],
        5: [f"at line {read}, and", f"writes it at line {copy}", "with no barrier between them"],
    }[mistake]  # fmt: skip
    assert all(part in message for part in expected), message


def test_a_missing_wait_shows_in_the_result(rng):
    a, out = rng.standard_normal((4, 128)).astype(np.float32), cuda.device_array((4, 32), np.float32)
    shifted[1, 32](cuda.to_device(a), out, 3)
    assert np.isnan(out.copy_to_host()).all()


# ---------------------------------------------------------------- ldmatrix


def _ldmatrix_kernel(function, count):
    @cuda.jit
    def kernel(a, rows, out):
        tile = cuda.shared.array((32, 24), uint16, 16)
        t = uint32(cuda.threadIdx.x)
        lane = t % uint32(32)
        if t < uint32(32):
            for k in range(24):
                tile[t, k] = a[t, k]
        cuda.syncthreads()
        words = function(tile, uint32(rows[lane]))
        for k in range(count):
            out[t, k] = words[k]

    return kernel


LDMATRIX = {(4, False): ptx.ldmatrix_x4, (2, False): ptx.ldmatrix_x2, (4, True): ptx.ldmatrix_x4_trans,
            (2, True): ptx.ldmatrix_x2_trans}  # fmt: skip


@pytest.mark.parametrize(("count", "trans"), LDMATRIX)
def test_ldmatrix(rng, count, trans):
    kernel = _ldmatrix_kernel(LDMATRIX[count, trans], count)
    a = rng.integers(0, 2**16, (32, 24)).astype(np.uint16)
    place = rng.permutation(32), 8 * rng.integers(0, 3, 32)  # any rows, at any multiple of 16 bytes
    rows = (place[0] * 24 + place[1]).astype(np.int32)
    if count == 2:
        rows[16:] = 10**6 + 1  # lanes beyond the last matrix pass anything
    out = cuda.device_array((64, count), np.uint32)
    kernel[1, 64](cuda.to_device(a), cuda.to_device(rows), out)
    matrices = np.array([a[r, c : c + 8] for r, c in zip(*place, strict=True)]).reshape(4, 8, 8).astype(np.uint32)
    expected = np.empty((32, count), np.uint32)
    for lane in range(32):
        for m in range(count):
            low, high = 2 * Q[lane], 2 * Q[lane] + 1
            if trans:
                expected[lane, m] = matrices[m, low, G[lane]] | matrices[m, high, G[lane]] << 16
            else:
                expected[lane, m] = matrices[m, G[lane], low] | matrices[m, G[lane], high] << 16
    assert np.array_equal(out.copy_to_host(), np.tile(expected, (2, 1)))
    report = observe(kernel[1, 64], cuda.to_device(a), cuda.to_device(rows), out)
    assert report.ok, str(report)
    assert np.array_equal(out.copy_to_host(), np.tile(expected, (2, 1)))


@cuda.jit
def columns_of(out, stride):
    tile = cuda.shared.array(32 * 64, float16, 16)
    t = uint32(cuda.threadIdx.x)
    for k in range(64):
        tile[t * uint32(64) + uint32(k)] = float16(k)
    cuda.syncthreads()
    a, b, c, d = ptx.ldmatrix_x4(tile, (t % uint32(32)) * uint32(stride))  # rows
    out[t] = a + b + c + d


def test_ldmatrix_counts_conflicts_by_matrix():
    out = cuda.device_array(32, np.uint32)
    for stride, conflicts in ((64, 4 * 7), (40, 0), (8, 0), (32, 4 * 3)):
        report = observe(columns_of[1, 32], out, stride)
        assert report.lines[line_of(columns_of, "rows")]["bank_conflicts"] == conflicts


def test_ldmatrix_faults():
    out = cuda.device_array(32, np.uint32)
    with pytest.raises(errors.MisalignedError, match="thread 1 uses tile from element 4 on with ptx.ldmatrix_x4"):
        columns_of[1, 32](out, 4)
    with pytest.raises(errors.OutOfBoundsError, match="of tile with ptx.ldmatrix_x4"):
        columns_of[1, 32](out, 72)
    with pytest.raises(errors.WarpError, match="lanes 16 to 31 of its warp do not; all 32 lanes must"):
        columns_of[1, 16](out, 8)


# ---------------------------------------------------------------- mma.sync


def _mma_kernel(function, results, short=False):
    @cuda.jit
    def kernel(a, b, c, out):
        t = uint32(cuda.grid(1))
        if cuda.blockIdx.x % uint32(3) < uint32(2):  # whole warps in a branch
            if results == 4 and short:
                out[t, 0], out[t, 1], out[t, 2], out[t, 3] = function(a[t, 0], a[t, 1], b[t, 0], c[t, 0], c[t, 1],
                                                                      c[t, 2], c[t, 3])
            elif results == 4:
                d = function(a[t, 0], a[t, 1], a[t, 2], a[t, 3], b[t, 0], b[t, 1], c[t, 0], c[t, 1], c[t, 2], c[t, 3])
                out[t, 0], out[t, 1], out[t, 2], out[t, 3] = d
            else:
                out[t, 0], out[t, 1] = function(
                    a[t, 0], a[t, 1], a[t, 2], a[t, 3], b[t, 0], b[t, 1], c[t, 0], c[t, 1]
                )

    return kernel


def _word(low, high):
    return low.astype(np.uint32) | high.astype(np.uint32) << 16


def fragments16(a, b):
    """The registers of A (16 x 16) and B (16 x 8), uint16, for each lane: (32, 4) and (32, 2)."""
    rows = np.stack([G, G + 8, G, G + 8], 1)
    k = np.stack([2 * Q, 2 * Q, 2 * Q + 8, 2 * Q + 8], 1)
    kb = np.stack([2 * Q, 2 * Q + 8], 1)
    return _word(a[rows, k], a[rows, k + 1]), _word(b[kb, G[:, None]], b[kb + 1, G[:, None]])


C_ROWS, C_COLS = np.stack([G, G, G + 8, G + 8], 1), np.stack([2 * Q, 2 * Q + 1] * 2, 1)
KINDS = {"f16": "mma_m16n8k16_f32_f16", "bf16": "mma_m16n8k16_f32_bf16", "f16_accumulators": "mma_m16n8k16_f16_f16",
         "tf32": "mma_m16n8k8_f32_tf32", "f16_short": "mma_m16n8k8_f32_f16"}  # fmt: skip


def _operands(rng, kind):
    """(A, B, C as float64; their registers for a warp)."""
    if kind == "tf32":
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 8)))
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
        ra = a[np.stack([G, G + 8] * 2, 1), np.stack([Q, Q, Q + 4, Q + 4], 1)].view(np.uint32)
        rb = b[np.stack([Q, Q + 4], 1), G[:, None]].view(np.uint32)
        ra = ra | rng.integers(0, 2**13, ra.shape).astype(np.uint32)  # the low 13 bits are ignored
    else:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 16), (16, 8)))
        bits = [to_bf16(x) if kind == "bf16" else x.astype(np.float16).view(np.uint16) for x in (a, b)]
        ra, rb = fragments16(*bits)
        if kind == "f16_short":  # a half of k: a2, a3 and b1 are left out
            bits, ra, rb = [bits[0][:, :8], bits[1][:8]], ra[:, :2], rb[:, :1]
        a, b = ((x.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else x.view(np.float16) for x in bits)
    c = rng.standard_normal((16, 8)).astype(np.float32)
    rc = c[C_ROWS, C_COLS]
    if kind == "f16_accumulators":
        c = c.astype(np.float16)
        in_float16 = c.view(np.uint16)[C_ROWS, C_COLS]
        rc = np.stack([_word(in_float16[:, 0], in_float16[:, 1]), _word(in_float16[:, 2], in_float16[:, 3])], 1)
    return [x.astype(np.float64) for x in (a, b, c)], [ra, rb, rc]


@pytest.mark.parametrize("kind", KINDS)
def test_mma(rng, kind):
    width = 2 if kind == "f16_accumulators" else 4
    kernel = _mma_kernel(getattr(ptx, KINDS[kind]), width, short=kind == "f16_short")
    warps = [_operands(rng, kind) for _ in range(6)]  # three blocks of two warps; the third block does nothing
    registers = [cuda.to_device(np.concatenate([w[1][k] for w in warps])) for k in range(3)]
    results = []
    for way in ("compiled", "observed"):
        out = cuda.to_device(np.zeros((192, width), np.uint32 if width == 2 else np.float32))
        run(way, kernel[3, 64], *registers, out)
        results.append(out.copy_to_host())
    assert np.array_equal(*results)  # the two forms add up in one order
    for w, ((a, b, c), _) in enumerate(warps[:4]):
        d, exact = results[0][32 * w : 32 * w + 32], (a @ b + c)[C_ROWS, C_COLS]
        if kind == "f16_accumulators":
            d = d.view(np.uint16).view(np.float16).reshape(32, 4)
            assert (np.abs(d.astype(np.float64) - exact) <= np.spacing(np.abs(exact).astype(np.float16))).all()
        else:
            assert np.abs(d - exact).max() < 1e-5
    assert not results[0][128:].any()


@cuda.jit
def divergent_mma(out):
    zero, one = uint32(0), float32(1)
    t = uint32(cuda.threadIdx.x)
    if t != uint32(37):
        d0, d1, d2, d3 = ptx.mma_m16n8k16_f32_f16(zero, zero, zero, zero, zero, zero, one, one, one, one)  # product
        out[t] = d0 + d1 + d2 + d3


def test_a_divergent_product_is_refused():
    out = cuda.device_array(64, np.float32)
    with pytest.raises(errors.WarpError, match="mma_m16n8k16_f32_f16 under divergence.*lane 5 of its warp does not"):
        divergent_mma[1, 64](out)
    report = observe(divergent_mma[1, 64], out)
    (found,) = report.divergent_barriers
    assert "ptx.mma_m16n8k16_f32_f16() was reached by 31 of the 32 lanes of warp 1" in str(found)
    assert "All 32 must make the same call" in str(found) and line_of(divergent_mma, "product") in found.lines


BM, BN, BK, LD = 64, 32, 32, 40
STAGE = (BM + BN) * LD
BOTH_STAGES = 2 * STAGE


@cuda.jit(device=True)
def load_tile(tile, at, a, row0, rows, k0, k_size, count):
    """count rows of BK float16 values from row0 on, column k0; zeros beyond the matrix."""
    c = uint32(cuda.threadIdx.x)
    while c < uint32(count * 4):
        r, q = c // uint32(4), c % uint32(4) * uint32(8)
        inside = row0 + r < rows and k0 + q < k_size
        valid = uint32(16) if inside else uint32(0)
        ptx.cp_async_16(tile, at + r * uint32(LD) + q, a, (row0 + r) * k_size + k0 + q, valid)
        c += uint32(cuda.blockDim.x)


@cuda.jit
def product(a, w, out):
    """out = a @ w.T: blocks of 64 x 32, four warps of 16 rows each; two stages of cp.async."""
    tile = cuda.shared.array(BOTH_STAGES, float16, 16)
    acc = cuda.local.array((4, 4), float32)
    rows, columns, depth = uint32(a.shape[0]), uint32(w.shape[0]), uint32(a.shape[1])
    row0, col0 = uint32(cuda.blockIdx.y) * uint32(BM), uint32(cuda.blockIdx.x) * uint32(BN)
    lane, warp = uint32(cuda.threadIdx.x) % uint32(32), uint32(cuda.threadIdx.x) // uint32(32)
    for n in range(4):
        for j in range(4):
            acc[n, j] = float32(0)
    stage = uint32(STAGE)
    load_tile(tile, uint32(0), a, row0, rows, uint32(0), depth, BM)
    load_tile(tile, uint32(BM * LD), w, col0, columns, uint32(0), depth, BN)
    ptx.cp_async_commit()
    k0 = uint32(0)
    turn = uint32(0)
    while k0 < depth:
        other = (turn + uint32(1)) % uint32(2) * stage
        if k0 + uint32(BK) < depth:
            load_tile(tile, other, a, row0, rows, k0 + uint32(BK), depth, BM)
            load_tile(tile, other + uint32(BM * LD), w, col0, columns, k0 + uint32(BK), depth, BN)
        ptx.cp_async_commit()
        ptx.cp_async_wait(1)
        cuda.syncthreads()
        base = turn % uint32(2) * stage
        for k in range(BK // 16):
            at = base + (uint32(16) * warp + lane % uint32(16)) * uint32(LD) + uint32(16 * k)
            a0, a1, a2, a3 = ptx.ldmatrix_x4(tile, at + lane // uint32(16) * uint32(8))
            for n in range(4):
                at = base + (uint32(BM + 8 * n) + lane % uint32(8)) * uint32(LD) + uint32(16 * k)
                b0, b1 = ptx.ldmatrix_x2(tile, at + lane // uint32(8) % uint32(2) * uint32(8))
                acc[n, 0], acc[n, 1], acc[n, 2], acc[n, 3] = ptx.mma_m16n8k16_f32_f16(
                    a0, a1, a2, a3, b0, b1, acc[n, 0], acc[n, 1], acc[n, 2], acc[n, 3]
                )
        cuda.syncthreads()
        k0 += uint32(BK)
        turn += uint32(1)
    for n in range(4):
        for h in range(2):
            row = row0 + uint32(16) * warp + lane // uint32(4) + uint32(8 * h)
            col = col0 + uint32(8 * n) + lane % uint32(4) * uint32(2)
            if row < rows and col < columns:
                ptx.store_global_half2(out, row * columns + col, acc[n, 2 * h], acc[n, 2 * h + 1])


def check_product(rng, way, rows, columns, depth):
    a, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((rows, depth), (columns, depth)))
    out = cuda.to_device(np.full((rows, columns), np.nan, np.float16))
    run(way, product[(-(-columns // BN), -(-rows // BM)), 128], cuda.to_device(a), cuda.to_device(w), out)
    exact = a.astype(np.float64) @ w.astype(np.float64).T
    assert np.abs(out.copy_to_host() - exact).max() < 1e-3 * np.abs(exact).max() + 1e-3


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("shape", [(1, 2, 8), (64, 32, 32), (70, 38, 72), (130, 66, 136), (256, 128, 256)])
def test_a_tensor_core_product(rng, shape):
    check_product(rng, "compiled", *shape)


def test_a_tensor_core_product_observed(rng):
    check_product(rng, "observed", 70, 6, 40)


@pytest.mark.sweep
def test_a_tensor_core_product_in_other_orders(rng):
    with thread_order("scattered"):
        check_product(rng, "compiled", 70, 38, 72)


def test_show(rng):
    a = np.zeros((64, 64), np.float16)
    text = show(product, a, a, a)
    assert "ptx_mma_f32" in text and "_poll" not in text
    assert "yield" in show(pipeline)


# ---------------------------------------------------------------- what is refused when a kernel is read


REFUSED = {  # what stands in the kernel: what the error says
    "ptx.cp_async_wait(n)": "n of ptx.cp_async_wait is n; it must be a constant, 0 to 32",
    "tile = cuda.shared.array(8, float32); ptx.cp_async_16(a, 0, tile, 0, 16)":
        "shared of ptx.cp_async_16 must be in shared memory, and a is in global",
    "ptx.load_nc4(a)": r"ptx.load_nc4 takes \(array, i\), 1 given",
    "ptx.setmaxnreg_increase(100)":
        "n of ptx.setmaxnreg_increase is 100; it must be a constant, 24 to 256 in steps of 8",
    "x, u = float32(1), uint32(0)\na[0] = ptx.mma_m16n8k16_f32_f16(x, u, u, u, u, u, x, x, x, x)[0]":
        "register of a fragment of ptx.mma_m16n8k16_f32_f16 is float32; a uint32 is needed",
}  # fmt: skip


@pytest.mark.parametrize("source", REFUSED)
def test_refused(source):
    kernel = kernel_of(source, "a, n", ptx=ptx, float32=float32, uint32=uint32)
    with pytest.raises(errors.KernelError, match=REFUSED[source]):
        kernel[1, 32](np.zeros(8, np.float32), 1)


# ---------------------------------------------------------------- dynamic shared memory


@cuda.jit
def fill_dynamic(out):
    floats = cuda.shared.array(0, float32, alignment=1024)
    in_float16 = cuda.shared.array(0, float16)
    floats[floats.size - 1] = float32(1)
    out[0] = floats.size
    out[1] = int32(in_float16[2 * floats.size - 1] == float16(1.875))


def test_dynamic_shared_memory_above_48_kb():
    out = cuda.to_device(np.zeros(2, np.int32))
    fill_dynamic[1, 1, 0, 49_152](out)
    assert list(out.copy_to_host()) == [12_288, 1]
    with pytest.raises(errors.LaunchError, match="100,000 at launch; a block has 49,152, and up to 232,448 where"):
        fill_dynamic[1, 1, 0, 100_000](out)
    launching.dynamic_shared(fill_dynamic, 100_000, out)
    fill_dynamic[1, 1, 0, 100_000](out)
    assert list(out.copy_to_host()) == [25_000, 1]
    with pytest.raises(errors.LaunchError, match="it was allowed 100,000"):
        fill_dynamic[1, 1, 0, 100_004](out)
    with pytest.raises(ValueError, match="232,448"):
        launching.dynamic_shared(fill_dynamic, 300_000, out)
    with pytest.raises(errors.LaunchError, match="a block has 232,448"):
        fill_dynamic[1, 1, 0, 300_000](out)


# ---------------------------------------------------------------- wgmma


def _wgmma_kernel(function, columns, transposed, swizzle):
    """D = A @ B with tiles that the threads lay out themselves, and a second product added to it."""
    count = columns // 2
    k_rows = 64 if swizzle else 16
    a_size = 64 * k_rows
    leading = 8192 if transposed else 16  # of B; from 64 columns to the next 64
    b_leading = leading if swizzle else 128
    b_stride = 1024 if swizzle else 256
    step = (128 if transposed else 2) if swizzle else 0

    @cuda.jit
    def kernel(a_tile, b_tile, out):
        tile = cuda.shared.array(0, uint16, alignment=1024)
        acc = cuda.local.array(count, float32)
        t = uint32(cuda.threadIdx.x)
        i = t
        while i < uint32(a_tile.size):
            tile[i] = a_tile[i]
            i += uint32(128)
        i = t
        while i < uint32(b_tile.size):
            tile[uint32(a_size) + i] = b_tile[i]
            i += uint32(128)
        ptx.fence_proxy_async()
        cuda.syncthreads()
        da = ptx.wgmma_descriptor(tile, 0, 128, b_stride, swizzle)
        db = ptx.wgmma_descriptor(tile, a_size, b_leading, b_stride, swizzle)
        ptx.wgmma_fence()
        function(acc, da, db, uint32(0))
        function(acc, da + uint64(2 if step else 0), db + uint64(step), uint32(1))
        ptx.wgmma_commit()
        ptx.wgmma_wait(0)
        for j in range(count):
            out[t, j] = acc[j]

    return kernel


def laid_out(matrix, swizzle, mn_major):
    """The uint16 elements of a tile (rows x k) as a descriptor with the strides above finds them."""
    rows, depth = matrix.shape
    tile = np.zeros(rows * depth, np.uint16)
    for r in range(rows):
        for k in range(depth):
            if not swizzle:  # blocks of 8 x 8, two of them along k side by side
                inner = k % 8 * 8 + r % 8 if mn_major else r % 8 * 8 + k % 8
                tile[r // 8 * 128 + k // 8 * 64 + inner] = matrix[r, k]
            elif mn_major:  # panels of 64 columns; a row for each k
                chunk = (r % 64 // 8) ^ (k % 8)
                tile[r // 64 * 4096 + k * 64 + chunk * 8 + r % 8] = matrix[r, k]
            else:
                chunk = (k // 8) ^ (r % 8)
                tile[r * 64 + chunk * 8 + k % 8] = matrix[r, k]
    return tile


@pytest.mark.parametrize(("columns", "inputs", "transposed", "swizzle"), [
    (64, "f16", False, 128), (64, "f16", True, 128), (128, "bf16", True, 128), (256, "f16", False, 128),
    (32, "f16", False, 0), (96, "bf16", False, 0), (64, "f16", True, 0),
])  # fmt: skip
def test_wgmma(rng, columns, inputs, transposed, swizzle):
    name = f"wgmma_m64n{columns}k16_f32_{inputs}{'_bmn' if transposed else ''}"
    depth = 64 if swizzle else 16
    a, b = (rng.standard_normal((rows, depth)).astype(np.float32) for rows in (64, columns))
    a_bits, b_bits = (to_bf16(x) if inputs == "bf16" else x.astype(np.float16).view(np.uint16) for x in (a, b))
    a, b = ((x.astype(np.uint32) << 16).view(np.float32) if inputs == "bf16" else x.view(np.float16).astype(np.float64)
            for x in (a_bits, b_bits))  # fmt: skip
    kernel = _wgmma_kernel(getattr(ptx, name), columns, transposed, swizzle)
    tiles = laid_out(a_bits, swizzle, False), laid_out(b_bits, swizzle, transposed)
    out = cuda.device_array((128, columns // 2), np.float32)
    nbytes = 2 * sum(t.size for t in tiles)
    kernel[1, 128, 0, nbytes](*map(cuda.to_device, tiles), out)
    second = slice(16, 32) if swizzle else slice(0, 16)
    exact = a[:, :16] @ b[:, :16].T + a[:, second] @ b[:, second].T
    t, j = np.arange(128)[:, None], np.arange(columns // 2)
    rows = 16 * (t // 32) + t % 32 // 4 + 8 * (j // 2 % 2)
    assert np.abs(out.copy_to_host() - exact[rows, 8 * (j // 4) + 2 * (t % 4) + j % 2]).max() < 1e-4


@pytest.mark.parametrize(("columns", "swizzle"), [(8, 128), (96, 128), (32, 0)])
def test_wgmma_of_e4m3(rng, columns, swizzle):
    """Two codes are an element of 16 bits to the kernel and the layout; NaN where only other products read."""
    depth = 128 if swizzle else 32
    a, b = (rng.integers(0, 0x7F, (rows, depth), np.uint8) | rng.integers(0, 2, (rows, depth), np.uint8) << 7
            for rows in (64, columns))  # fmt: skip
    a[:, 64:] = b[:, 64:] = 0xFF
    kernel = _wgmma_kernel(getattr(ptx, f"wgmma_m64n{columns}k32_f32_e4m3"), columns, False, swizzle)
    tiles = [laid_out(codes.view(np.uint16), swizzle, False) for codes in (a, b)]
    out = cuda.device_array((128, columns // 2), np.float32)
    kernel[1, 128, 0, a.size + b.size](*map(cuda.to_device, tiles), out)
    a, b = e4m3_value(a), e4m3_value(b)
    parts = slice(0, 32), slice(32, 64) if swizzle else slice(0, 32)
    exact, scale = (sum(each[0][:, part] @ each[1][:, part].T for part in parts)
                    for each in ((a, b), (np.abs(a), np.abs(b))))  # fmt: skip
    t, j = np.arange(128)[:, None], np.arange(columns // 2)
    where = 16 * (t // 32) + t % 32 // 4 + 8 * (j // 2 % 2), 8 * (j // 4) + 2 * (t % 4) + j % 2
    assert (np.abs(out.copy_to_host() - exact[where]) <= 2.0**-22 * scale[where]).all()


def test_nan_of_e4m3_reaches_its_row_alone(rng):
    a, b = np.full((64, 32), 0x38, np.uint8), np.full((8, 32), 0x38, np.uint8)  # ones
    a[5, 7] = 0x7F
    kernel = _wgmma_kernel(ptx.wgmma_m64n8k32_f32_e4m3, 8, False, 0)
    out = cuda.device_array((128, 4), np.float32)
    kernel[1, 128, 0, a.size + b.size](*(cuda.to_device(laid_out(codes.view(np.uint16), 0, False)) for codes in (a, b)),
                                       out)
    found = out.copy_to_host()
    assert np.isnan(found[20:24, :2]).all() and np.isnan(found).sum() == 8  # row 5: lanes 20 to 23, two columns each
    assert (found[~np.isnan(found)] == 64).all()


@cuda.jit
def careless(out, mistake):
    tile = cuda.shared.array(3072, float16, alignment=1024)
    acc = cuda.local.array(16, float32)
    t = uint32(cuda.threadIdx.x)
    for k in range(24):
        tile[t + uint32(128 * k)] = float16(1)  # fill
    if mistake != 1:
        ptx.fence_proxy_async()
    cuda.syncthreads()
    da = ptx.wgmma_descriptor(tile, 0, 128, 256, 0)
    db = ptx.wgmma_descriptor(tile, 1024, 128, 256, 0)
    ptx.wgmma_fence()
    ptx.wgmma_m64n32k16_f32_f16(acc, da, db, uint32(0))  # multiply
    ptx.wgmma_commit()
    if mistake != 2:
        ptx.wgmma_wait(0)
    tile[t] = float16(2)  # again
    ptx.wgmma_wait(0)
    out[t] = acc[5]


@pytest.mark.parametrize("mistake", range(3))
def test_observe_sees_what_wgmma_reads(mistake):
    out = cuda.device_array(128, np.float32)
    report = observe(careless[1, 128], out, mistake)
    fill, multiply, again = (line_of(careless, mark) for mark in ("fill", "multiply", "again"))
    if not mistake:
        assert report.ok, str(report)
        assert (out.copy_to_host() == 16).all()
        return
    (race,) = report.races
    assert race.array == "tile" and race.lines == ([fill, multiply] if mistake == 1 else [multiply, again])
    assert ("ptx.fence_proxy_async()" if mistake == 1 else "no ptx.wgmma_wait has covered it") in str(race)


# ---------------------------------------------------------------- TMA, mbarriers, warp specialisation


@cuda.jit
def move_box(source, target, out, col, row):
    tile = cuda.shared.array((16, 64), float16, alignment=1024)
    bar = cuda.shared.array(1, uint64)
    t = uint32(cuda.threadIdx.x)
    if t == uint32(0):
        ptx.mbarrier_init(bar, 0, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    if t == uint32(0):
        ptx.mbarrier_expect_tx(bar, 0, 16 * 64 * 2)
        ptx.tma_load_2d(tile, 0, source, col, row, bar, 0)
    ptx.mbarrier_wait(bar, 0, 0)
    for k in range(64):
        out[t, k] = tile[t, k]
    cuda.syncthreads()
    if t == uint32(0):
        ptx.tma_store_2d(target, col, row, tile, 0)  # what TMA wrote needs no fence
        ptx.tma_store_commit()
        ptx.tma_store_wait(0)


@WAYS
@pytest.mark.parametrize("swizzle", [0, 128])
@pytest.mark.parametrize(("col", "row"), [(0, 0), (16, 5), (56, 30), (-8, -3), (100, 0)])
def test_boxes(rng, way, swizzle, col, row):
    a = rng.standard_normal((37, 96)).astype(np.float16)
    d_a, target = cuda.to_device(a), cuda.to_device(np.full((37, 96), 9, np.float16))
    maps = [ptx.tensor_map_2d(x, 16, 64, swizzle) for x in (d_a, target)]
    out = cuda.device_array((16, 64), np.float16)
    run(way, move_box[1, 16], *maps, out, col, row)
    padded = np.zeros((37 + 60, 96 + 300), np.float16)
    padded[30 : 30 + 37, 100 : 100 + 96] = a
    box = padded[30 + row : 46 + row, 100 + col : 164 + col]
    chunk, line = np.arange(64) // 8, np.arange(16)[:, None]
    where = (chunk ^ (line % 8)) * 8 + np.arange(64) % 8 if swizzle else np.arange(64)[None]
    tile = np.empty((16, 64), np.float16)
    np.put_along_axis(tile, np.broadcast_to(where, (16, 64)), box, 1)
    assert np.array_equal(out.copy_to_host(), tile)
    inside = np.zeros((37, 96), bool)
    inside[max(row, 0) : max(row + 16, 0), max(col, 0) : max(col + 64, 0)] = True
    assert np.array_equal(target.copy_to_host(), np.where(inside, a, np.float16(9)))


def test_tensor_maps_that_tma_cannot_describe():
    good = cuda.to_device(np.zeros((8, 64), np.float16))
    for args, message in [
        ((np.zeros(8, np.float16), 8, 64), "rank 2"),
        ((cuda.to_device(np.zeros((8, 64))), 8, 64), "dtype float64; allowed are float16, uint16, float32, uint8"),
        ((cuda.to_device(np.zeros((8, 24), np.uint8)), 8, 16), "24 elements, 24 bytes"),
        ((cuda.to_device(np.zeros((8, 256), np.uint8)), 8, 144), "144 bytes; with swizzle=128"),
        ((cuda.to_device(np.zeros((8, 9), np.float16)), 8, 8), "9 elements, 18 bytes"),
        ((good, 300, 64), "box_rows is 300"),
        ((good, 8, 12), "box_cols is 12, 24 bytes"),
        ((good, 8, 128), "at most 128"),
        ((good, 8, 64, 100), "swizzle is 100"),
        ((good, 8, 64, 128, True), "with tf32 it must be float32"),
    ]:
        with pytest.raises(ValueError, match=message):
            ptx.tensor_map_2d(*args)


TILE_M, TILE_N, TILE_K, STAGES = 64, 64, 64, 2
STAGE_ELEMENTS = (TILE_M + TILE_N) * TILE_K
SUMS = TILE_N // 2


@cuda.jit
def pipeline(a_map, b_map, out, rows, columns, depth, mistake):
    """out = a @ b.T: a producer warp loads tiles with TMA, a warpgroup multiplies them."""
    tile = cuda.shared.array(0, float16, alignment=1024)
    full = cuda.shared.array(STAGES, uint64)
    empty = cuda.shared.array(STAGES, uint64)
    t = uint32(cuda.threadIdx.x)
    row0, col0 = uint32(cuda.blockIdx.y) * uint32(TILE_M), uint32(cuda.blockIdx.x) * uint32(TILE_N)
    turns = (uint32(depth) + uint32(TILE_K - 1)) // uint32(TILE_K)
    if t == uint32(0):
        for s in range(STAGES):
            ptx.mbarrier_init(full, s, 1)
            ptx.mbarrier_init(empty, s, 1)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    k = uint32(0)
    if t >= uint32(128):
        if t == uint32(128):
            while k < turns:
                s, phase = k % uint32(STAGES), k // uint32(STAGES) % uint32(2)
                ptx.mbarrier_wait(empty, s, phase ^ uint32(1))  # for an empty stage
                ptx.mbarrier_expect_tx(full, s, 2 * STAGE_ELEMENTS)
                ptx.tma_load_2d(tile, s * uint32(STAGE_ELEMENTS), a_map, k * uint32(TILE_K), row0, full, s)
                if mistake != 1 or k == uint32(0):
                    ptx.tma_load_2d(tile, s * uint32(STAGE_ELEMENTS) + uint32(TILE_M * TILE_K), b_map,
                                    k * uint32(TILE_K), col0, full, s)  # fmt: skip
                k += uint32(1)
        return
    acc = cuda.local.array(SUMS, float32)
    while k < turns:
        s, phase = k % uint32(STAGES), k // uint32(STAGES) % uint32(2)
        if mistake != 2:
            ptx.mbarrier_wait(full, s, phase)  # for a full stage
        da = ptx.wgmma_descriptor(tile, s * uint32(STAGE_ELEMENTS), 16, 1024, 128)
        db = ptx.wgmma_descriptor(tile, s * uint32(STAGE_ELEMENTS) + uint32(TILE_M * TILE_K), 16, 1024, 128)
        ptx.wgmma_fence()
        for j in range(TILE_K // 16):
            ptx.wgmma_m64n64k16_f32_f16(acc, da + uint64(2 * j), db + uint64(2 * j), uint32(k > 0 or j > 0))  # product
        if mistake != 3:
            ptx.wgmma_commit()
        if mistake != 4:
            ptx.wgmma_wait(0)
        if t == uint32(0):
            ptx.mbarrier_arrive(empty, s)
        k += uint32(1)
    warp, lane = t // uint32(32), t % uint32(32)
    for j in range(SUMS):
        row = row0 + uint32(16) * warp + lane // uint32(4) + uint32(8 * (j // 2 % 2))
        col = col0 + uint32(8 * (j // 4)) + lane % uint32(4) * uint32(2) + uint32(j % 2)
        if row < uint32(rows) and col < uint32(columns):
            out[row, col] = acc[j]


def run_pipeline(rng, rows, columns, depth, mistake=0, launch=lambda configured, *args: configured(*args)):
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((rows, depth), (columns, depth)))
    out = cuda.device_array((rows, columns), np.float32)
    maps = ptx.tensor_map_2d(cuda.to_device(a), TILE_M, TILE_K), ptx.tensor_map_2d(cuda.to_device(b), TILE_N, TILE_K)
    args = *maps, out, rows, columns, depth, mistake
    nbytes = STAGES * STAGE_ELEMENTS * 2
    launching.dynamic_shared(pipeline, nbytes, *args)
    configured = pipeline[(-(-columns // TILE_N), -(-rows // TILE_M)), 160, 0, nbytes]
    report = launch(configured, *args)
    return np.abs(out.copy_to_host() - a.astype(np.float64) @ b.astype(np.float64).T).max(), report


@pytest.mark.parametrize("shape", [(1, 3, 8), (64, 64, 64), (70, 90, 200)])
def test_a_pipeline(rng, shape):
    error, _ = run_pipeline(rng, *shape)
    assert error < 1e-4


def test_a_pipeline_observed(rng):
    error, report = run_pipeline(rng, 64, 64, 192, launch=observe)
    assert error < 1e-4 and report.ok, str(report)


def test_a_missing_load_is_a_deadlock(rng):
    with pytest.raises(errors.DeadlockError) as found:
        run_pipeline(rng, 64, 64, 192, mistake=1)
    message = str(found.value)
    assert "deadlock in block 0: no thread can go on" in message
    assert f"threads 0 to 127 wait at line {line_of(pipeline, 'for a full stage')} for full[1], parity 0" in message
    assert "(full[1]: in phase 0 (parity 0), 0 of 1 arrived" not in message and "8,192 bytes expected" in message
    report = run_pipeline(rng, 64, 64, 192, mistake=1, launch=observe)[1]
    assert "deadlock" in str(report.divergent_barriers[0])


def test_a_missing_wait_for_tma_shows(rng):
    assert np.isnan(run_pipeline(rng, 64, 64, 128, mistake=2)[0])


@pytest.mark.parametrize("mistake", [3, 4])
def test_a_product_that_no_thread_waits_for(rng, mistake):
    with pytest.raises(errors.DeviceFault, match="started ptx.wgmma_m64n64k16_f32_f16, and no ptx.wgmma_wait covered"):
        run_pipeline(rng, 64, 64, 64, mistake=mistake)


@cuda.jit
def misuse(what, tensor_map, out):
    tile = cuda.shared.array(4096, float16, alignment=1024)
    bars = cuda.shared.array(2, uint64)
    acc = cuda.local.array(16, float32)
    t = uint32(cuda.threadIdx.x)
    if what == 0:
        ptx.mbarrier_arrive(bars, 0)
    if what == 1:
        ptx.mbarrier_init(bars, 2, 1)
    if t == uint32(0):
        ptx.mbarrier_init(bars, 0, 1)
    cuda.syncthreads()
    if what == 2:
        ptx.tma_load_2d(tile, 8, tensor_map, 0, 0, bars, 0)
    if what == 3:
        ptx.tma_load_2d(tile, 4096 - 64, tensor_map, 0, 0, bars, 0)
    if what == 4:
        ptx.tma_store_2d(tensor_map, 0, 0, tile, 0)
    if what == 5 and t < uint32(100):
        ptx.wgmma_m64n32k16_f32_f16(acc, uint64(0), uint64(0), uint32(0))
    if what == 6:
        ptx.wgmma_m64n64k16_f32_f16(acc, uint64(0), uint64(0), uint32(0))
    if what == 7:
        ptx.wgmma_m64n32k16_f32_f16(acc, uint64(t), uint64(0), uint32(0))
    if what == 8:
        ptx.named_barrier_sync(1, 96)
    if what == 9:
        out[4] = float32(1)
    if what == 10:
        ptx.mbarrier_wait(bars, 0, 0)


@pytest.mark.parametrize(("what", "kind", "message"), [
    (0, errors.DeviceFault, r"uses bars\[0\] with ptx.mbarrier_arrive before any ptx.mbarrier_init"),
    (1, errors.OutOfBoundsError, r"uses bars\[2\] with ptx.mbarrier_init, and there are 2 barriers"),
    (2, errors.MisalignedError, "tile from element 8 on to ptx.tma_load_2d, which is not at a multiple of 128"),
    (3, errors.OutOfBoundsError, "the box of 1,024 bytes does not fit"),
    (4, errors.DeviceFault, "started ptx.tma_store_2d, and no ptx.tma_store_wait covered it"),
    (5, errors.WarpError, "was reached by 100 of the 128 threads of warpgroup 0"),
    (6, errors.DeviceFault, "passes 16 float32 to ptx.wgmma_m64n64k16_f32_f16 as acc; it takes 32 float32"),
    (7, errors.DeviceFault, "pass other descriptors"),
    (8, errors.DeviceFault, "waits at named barrier 1 for 96 threads, and 128 are there"),
    (9, errors.OutOfBoundsError, r"block 0, thread 0 uses out\[4\], outside its shape \(4,\)"),
    (10, errors.DeadlockError, r"threads 0 to 127 wait at line .* for bars\[0\], parity 0 .*0 of 1 arrived"),
])  # fmt: skip
def test_misuse(what, kind, message):
    tensor_map = ptx.tensor_map_2d(cuda.to_device(np.zeros((8, 64), np.float16)), 8, 64)
    with pytest.raises(kind, match=message):
        misuse[1, 128](what, tensor_map, cuda.device_array(4, np.float32))


@cuda.jit
def two_teams(out, mistake):
    """Warps 0 and 1 exchange through shared memory with a barrier of their own; warp 2 does not come."""
    s = cuda.shared.array(96, float32)
    t = uint32(cuda.threadIdx.x)
    if t < uint32(64):
        s[t] = float32(t)  # write
        if mistake == 0:
            ptx.named_barrier_sync(1, 64)
        else:
            ptx.setmaxnreg_increase(64)
        out[t] = s[uint32(63) - t]  # read
    else:
        out[t] = float32(-1)


def test_named_barriers():
    out = cuda.device_array(96, np.float32)
    run("compiled", two_teams[1, 96], out, 0)
    assert list(out.copy_to_host()) == [*range(63, -1, -1), *[-1] * 32]
    run("observed", two_teams[1, 96], out, 0)
    (race,) = observe(two_teams[1, 96], out, 1).races
    assert race.lines == [line_of(two_teams, "write"), line_of(two_teams, "read")]


@cuda.jit
def integers(a, out, bars_wanted):
    bars = cuda.shared.array(1, uint64)
    if bars_wanted:
        ptx.mbarrier_init(bars, 0, 1)
    i = uint32(cuda.threadIdx.x)
    out[i] = a[i] * 3 - 7
    out[i] += a[-1]
    cuda.atomic.add(out, 0, 5)
    view = out.view(uint32)
    view[1] = uint32(2**32 - 1)
    x = uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(i), 1))
    out[i + 32] = int32(x)


def test_ordinary_code_in_an_interpreted_kernel():
    a = np.arange(-16, 16, dtype=np.int32)
    out = cuda.to_device(np.zeros(64, np.int32))
    integers[1, 32](cuda.to_device(a), out, True)
    expected = np.concatenate([a * 3 - 7 + 15, np.arange(32) ^ 1])
    expected[0] += 5 * 32
    expected[1] = -1
    result = out.copy_to_host()
    assert np.array_equal(result[1:], expected[1:])
