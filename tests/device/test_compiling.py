"""What kernels become for a GPU, read without one. Skipped, with the reason, where the compiler is not installed."""

import re

import pytest
from numba import float32, uint32

from labkit import cuda
from labkit.device import compiling, ptx
from labkit.device.ptx import exp2_approx

types = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed").types
VECTOR = types.Array(types.float32, 1, "C")


def ptx_of(kernel, *arguments, **options):
    try:
        return compiling.ptx(kernel, types.void(*arguments), **options)
    except compiling.NoCompiler as error:
        pytest.skip(str(error))


@cuda.jit(device=True)
def scaled(x, factor):
    return exp2_approx(x * factor)


def make(words):
    @cuda.jit
    def kernel(a, out):
        i = uint32(cuda.grid(1)) * uint32(words)
        if i < uint32(out.size):  # uint32 * uint32 is uint64, and uint64 < int64 would be compared in float64
            x, y, z, w = ptx.load_nc4(a, i)
            ptx.store_global4(out, i, scaled(x, float32(2.0)), y, z, w)

    return kernel


def test_intrinsics_device_functions_and_closures_reach_the_ptx():
    text = ptx_of(make(4), VECTOR, VECTOR)
    assert text.count("ld.global.nc.v4.f32") == text.count("st.global.v4.f32") == 1
    assert "ex2.approx.ftz.f32" in text
    assert ".f64" not in text


def test_every_intrinsic_has_its_ptx():
    from labkit.device import ptx_gpu

    for name, meaning in compiling.INTRINSICS.items():
        assert getattr(ptx_gpu, name).cpu_device is meaning
        assert getattr(ptx_gpu, name).__doc__ == meaning.__doc__


@pytest.mark.parametrize(("call", "message"), [
    (lambda a: ptx.cp_async_wait(40), "n is 40; it must be a constant, 0 to 32"),
    (lambda a: ptx.load_nc4(a), "takes 2 arguments|missing"),
    (lambda a: ptx.load_nc4(uint32(3), uint32(0)), "array is uint32; it must be an array"),
    (lambda a: ptx.setmaxnreg_increase(100), "24 to 256 in steps of 8"),
    (lambda a: ptx.mbarrier_arrive(a, uint32(0)), "bars is an array of float32; allowed are uint64"),
])
def test_a_wrong_call_is_named(call, message):
    ptx_of(make(4), VECTOR, VECTOR)  # skips where nothing can be compiled
    with pytest.raises(Exception, match=message):
        ptx_of(call, VECTOR)


def test_resources_come_from_ptxas():
    found = compiling.resources(ptx_of(make(4), VECTOR, VECTOR))
    if found is None:
        pytest.skip("ptxas is not installed, or too old")
    assert 8 <= found["registers"] <= 64
    assert found["spill_bytes"] == found["stack_bytes"] == found["shared_bytes"] == 0


def test_a_spill_is_counted():
    count = 64

    @cuda.jit
    def hungry(a, out):
        held = cuda.local.array(count, float32)
        for k in range(count):
            held[k] = a[k]
        cuda.syncthreads()
        for k in range(count):
            out[k] = held[k] + held[count - 1 - k]

    text = ptx_of(hungry, VECTOR, VECTOR)
    if compiling.resources(text) is None:
        pytest.skip("ptxas is not installed, or too old")
    assert compiling.resources(text)["spill_bytes"] == 0
    assert compiling.resources(text, max_registers=32)["spill_bytes"] > 0


def test_the_target_is_the_one_asked_for():
    assert re.search(r"^\.target sm_80", ptx_of(make(4), VECTOR, VECTOR, cc=(8, 0)), re.MULTILINE)


def test_shared_arrays_begin_where_128_bit_accesses_may():
    @cuda.jit
    def kernel(out):
        flag, sums, dynamic = (cuda.shared.array(1, float32), cuda.shared.array((2, 3), float32),
                               cuda.shared.array(0, float32))
        flag[0] = sums[0, 0] = dynamic[0] = out[0]
        cuda.syncthreads()
        out[0] = flag[0] + sums[0, 0] + dynamic[0]

    text = ptx_of(kernel, VECTOR)
    assert sorted(re.findall(r"\.shared \.align (\d+) \.b8 \w+\[(\d*)\]", text)) == [("16", ""), ("16", "24"),
                                                                                    ("4", "4")]
