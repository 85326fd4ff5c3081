"""libdevice, fp16, cmath and the vector types in kernels: values against NumPy, compiled and interpreted; refusals."""

import cmath
import math
from fractions import Fraction

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda
from labkit.cuda import libdevice
from labkit.simt import libraries, observe
from labkit.simt.errors import KernelTypeError, UnsupportedError
from labkit.simt.runtime import fp16 as half_functions
from labkit.simt.runtime import libdevice as device_functions
from tests.simt.helpers import kernel_of

pytestmark = pytest.mark.cpu_device
HALF_ROOT = math.sqrt(0.5)
VALUES = np.array([-3.5, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 0.49999999999999994, 1.0, 2.5, 7.25])


@cuda.jit
def many(out, x):
    i = cuda.grid(1)
    sine, cosine = libdevice.sincosf(x[i])
    mantissa, exponent = libdevice.frexp(x[i])
    fraction, whole = libdevice.modf(x[i])
    out[i, 0], out[i, 1], out[i, 2], out[i, 3] = sine, cosine, mantissa, exponent
    out[i, 4], out[i, 5] = fraction, whole
    out[i, 6] = libdevice.fma(x[i], x[i], 1.0)
    out[i, 7] = libdevice.popc(int32(i)) + libdevice.clzll(i + 1)
    out[i, 8] = libdevice.sad(3, i, 2)
    out[i, 9] = libdevice.double2int_rn(x[i]) + libdevice.mulhi(1 << 30, 1 << 30)


def test_libdevice_in_a_kernel_compiled_and_observed():
    x, single = VALUES, VALUES.astype(np.float32)
    want = np.zeros((x.size, 10))
    want[:, 0], want[:, 1] = np.sin(single), np.cos(single)
    want[:, 2], want[:, 3] = np.frexp(x)
    want[:, 4], want[:, 5] = np.modf(x)
    want[:, 6] = x * x + 1
    want[:, 7] = [i.bit_count() + 64 - (i + 1).bit_length() for i in range(x.size)]
    want[:, 8] = [abs(3 - i) + 2 for i in range(x.size)]
    want[:, 9] = np.rint(x) + (1 << 28)
    out = np.zeros_like(want)
    many[1, x.size](out, x)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    seen = np.zeros_like(want)
    assert observe(many[1, x.size], seen, x).ok
    np.testing.assert_allclose(seen, out, rtol=1e-6)


@pytest.mark.parametrize(
    "name, want",
    {
        "round": [-4, -3, -1, -1, 0, 0, 0, 1, 0, 1, 3, 7],
        "rint": np.rint(VALUES), "sinpi": [1, -1, 0, -1, 0, 0, math.sin(0.3 * math.pi), 1, 1, 0, 1, -HALF_ROOT],
        "cospi": [0, 0, -1, 0, 1, 1, math.cos(0.3 * math.pi), 0, 0, -1, 0, -HALF_ROOT],
        "llround": [-4, -3, -1, -1, 0, 0, 0, 1, 0, 1, 3, 7], "double2int_rd": np.floor(VALUES),
        "double2int_ru": np.ceil(VALUES), "saturatef": np.clip(VALUES, 0, 1), "exp10": 10.0**VALUES,
        "normcdf": [0.5 * math.erfc(-v / math.sqrt(2)) for v in VALUES],
        "erf": [math.erf(v) for v in VALUES], "signbitd": np.signbit(VALUES), "llabs": [3, 2, 1] + [0] * 6 + [1, 2, 7],
        "abs": [3, 2, 1] + [0] * 6 + [1, 2, 7],
    }.items(),
)  # fmt: skip
def test_functions_of_libdevice(name, want):
    got = [getattr(device_functions, name)(v) for v in VALUES]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("x", [0, 1, -1, 6, -(2**31), 2**31 - 1, 0xFFFFFFFF])
def test_bits_of_libdevice(x):
    bits = f"{x & 0xFFFFFFFF:032b}"
    assert device_functions.clz(x) == len(bits) - len(bits.lstrip("0"))
    assert device_functions.popc(x) == bits.count("1")
    assert device_functions.ffs(x) == bits[::-1].find("1") + 1
    assert int(device_functions.brev(x)) & 0xFFFFFFFF == int(bits[::-1], 2)
    assert device_functions.clzll(x) == (0 if x < 0 else 64 - x.bit_length())
    assert device_functions.mulhi(x, 1 << 30) == (int(np.int32(np.int64(x))) << 30) >> 32


def test_conversions_saturate_as_on_a_gpu():
    for value, want in ((1e30, 2**31 - 1), (-1e30, -(2**31)), (math.nan, 0), (2.0**31 - 1, 2**31 - 1)):
        assert device_functions.double2int_rz(value) == want
    assert device_functions.double2ll_rz(1e300) == 2**63 - 1 and device_functions.double2ll_rz(-1e300) == -(2**63)


def test_libdevice_has_the_names_of_numba_cuda():
    """Each function that is listed exists there, with as many arguments."""
    functions = pytest.importorskip("numba.cuda.libdevicefuncs").functions
    for name, stub in vars(libraries.libdevice).items():
        if not name.startswith("_"):
            _, arguments = functions[f"__nv_{name}"]
            assert len(stub.params) == sum(not a.is_ptr for a in arguments), name


def test_what_libdevice_lacks_is_named_with_the_line():
    @cuda.jit
    def inverse(out):
        out[0] = libdevice.erfinv(0.5)

    with pytest.raises(UnsupportedError, match=r"inverse, line \d+: libdevice.erfinv is not supported by the CPU dev"):
        inverse[1, 1](np.zeros(1))
    with pytest.raises(AttributeError, match=r"cuda\.libdevice\.erfinv is not supported"):
        _ = libdevice.erfinv


# ---------------------------------------------------------------- float16


def nearest_half(exact):
    """The float16 nearest to a fraction, ties to even."""
    near = np.float16(float(exact))
    candidates = [near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))]
    finite = [c for c in candidates if np.isfinite(c)]
    return min(finite, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint16)) & 1))


def test_half_arithmetic_is_rounded_once():
    rng = np.random.default_rng(7)
    a, b, c = (rng.uniform(-4, 4, 400).astype(np.float16) for _ in range(3))
    c[:200] = (rng.uniform(-1, 1, 200) * 2.0**-12).astype(np.float16)  # where a second rounding would show
    for x, y, z in zip(a, b, c, strict=True):
        p, q, r = (Fraction(float(v)) for v in (x, y, z))
        assert half_functions.hadd(x, y) == nearest_half(p + q)
        assert half_functions.hmul(x, y) == nearest_half(p * q)
        assert half_functions.hfma(x, y, z) == nearest_half(p * q + r)
        assert half_functions.hdiv(x, y) == nearest_half(p / q)


@cuda.jit
def fused(out, a, b, c):
    out[0] = cuda.fp16.hfma(a[0], b[0], c[0])


def test_a_sum_just_above_a_tie_is_rounded_up():
    """1.5 * 683/1024 is the tie between 1 and the next float16; rounded to float32 first, the rest would be lost."""
    a, b, c = (np.array([v], np.float16) for v in (1.5, 683 / 1024, 2.0**-24))
    out = np.zeros(1, np.float16)
    fused[1, 1](out, a, b, c)
    assert out[0] == half_functions.hfma(a[0], b[0], c[0]) == 1 + 2.0**-10
    assert half_functions.hfma(a[0], b[0], -c[0]) == half_functions.hfma(a[0], b[0], 0 * c[0]) == 1


@cuda.jit
def half_functions_in_turn(out, tests, a, b):
    i = cuda.grid(1)
    out[i] = cuda.fp16.hfma(a[i], b[i], cuda.fp16.hsub(a[i], cuda.fp16.hsqrt(b[i])))
    tests[i] = cuda.fp16.hlt(a[i], b[i]) + 2 * cuda.fp16.hne(a[i], b[i])


def test_half_functions_in_a_kernel_compiled_and_observed():
    a, b = np.arange(8).astype(np.float16) / 3, np.full(8, 1.7, np.float16)
    b[3] = a[3]
    fma, minus, root = half_functions.hfma, half_functions.hsub, half_functions.hsqrt
    want = [fma(x, y, minus(x, root(y))) for x, y in zip(a, b, strict=True)]
    out, tests = np.zeros(8, np.float16), np.zeros(8, np.int64)
    half_functions_in_turn[1, 8](out, tests, a, b)
    assert out.tolist() == want and tests.tolist() == ((a < b) + 2 * (a != b)).tolist()
    seen = np.zeros_like(out)
    observe(half_functions_in_turn[1, 8], seen, tests, a, b)
    assert seen.tolist() == want


# ---------------------------------------------------------------- cmath


@cuda.jit
def complex_functions(out, x):
    i = cuda.grid(1)
    out[i] = cmath.sqrt(x[i]) + cmath.exp(x[i]) * cmath.phase(x[i])


def test_cmath():
    x = np.array([1 + 2j, -4 + 0j, 3j])
    out = np.zeros_like(x)
    complex_functions[1, 3](out, x)
    np.testing.assert_allclose(out, [cmath.sqrt(v) + cmath.exp(v) * cmath.phase(v) for v in x])


# ---------------------------------------------------------------- vector types


@cuda.jit(device=True)
def length(v):
    return math.sqrt(v.x * v.x + v.y * v.y)


@cuda.jit
def vectors(out, x):
    i = cuda.grid(1)
    pair = cuda.float2(x[i], 2)
    all_four = cuda.float32x4(pair, i, cuda.float32x1(7.9))
    whole = cuda.int3(all_four.w, 300, 1)
    cuda.syncthreads()  # a vector is kept across it
    if i % 2:
        pair = cuda.float2(0, all_four.z)
    cuda.syncthreads()
    out[i] = all_four.x + 10 * all_four.y + 100 * all_four.z + whole.x + whole.y + length(pair)


def test_vectors_compiled_and_observed():
    x = np.linspace(0, 1, 6).astype(np.float32)
    want = [v + 20 + 100 * i + 307 + (i if i % 2 else math.hypot(v, 2)) for i, v in enumerate(x)]
    out, seen = np.zeros(6), np.zeros(6)
    vectors[1, 6](out, x)
    np.testing.assert_allclose(out, want, rtol=1e-6)
    observe(vectors[1, 6], seen, x)
    np.testing.assert_allclose(seen, want, rtol=1e-6)


@pytest.mark.parametrize("source, message", [
    ("out[0] = (cuda.float2(1, 2) + cuda.float2(1, 2)).x", "add does not take"),
    ("v = cuda.float2(1, 2); out[0] = v[0]", "no index"),
    ("out[0] = cuda.float32x4(1, 2, 3).x", "takes 4 numbers, 3 given"),
])
def test_vectors_are_no_tuples(source, message):
    with pytest.raises(KernelTypeError, match=message):
        kernel_of(source, "out")[1, 1](np.zeros(1))


def test_vectors_are_made_in_kernels():
    with pytest.raises(TypeError, match="only inside a kernel"):
        cuda.float2(1, 2)


# ---------------------------------------------------------------- arguments of device functions; cache hints


@cuda.jit(device=True)
def applied(ary, op, convert, count, ary_dtype):
    tile = cuda.shared.array(count, ary_dtype)
    t = cuda.threadIdx.x
    tile[t] = convert(ary[t])
    cuda.syncthreads()
    op(ary, 0, tile[count - 1 - t])


@cuda.jit(device=True)
def doubled(x):
    return x * 2


@cuda.jit
def with_add(ary):
    applied(ary, cuda.atomic.add, doubled, 8, float32)


@cuda.jit
def with_max(ary):
    applied(ary, cuda.atomic.max, abs, 8, int32)


def test_functions_types_and_shapes_as_arguments():
    """Each call has its own: two kernels, one device function."""
    ary = np.arange(1.0, 9.0, dtype=np.float32)
    with_add[1, 8](ary)
    assert ary[0] == 1 + 2 * 36
    other = np.arange(-9, -1).astype(np.int32)
    with_max[1, 8](other)
    assert other[0] == 9


@cuda.jit
def hinted(out, x):
    i = cuda.grid(1)
    cuda.stcs(out, i, cuda.ldcg(x, i) + cuda.ldca(x, 0) + int(i).bit_count())


def test_cache_hints_change_no_value():
    out = np.zeros(8, np.int64)
    hinted[1, 8](out, np.arange(8))
    assert out.tolist() == [i + i.bit_count() for i in range(8)]
    with pytest.raises(IndexError, match="outside its shape"):
        hinted[1, 9](out, np.arange(8))
