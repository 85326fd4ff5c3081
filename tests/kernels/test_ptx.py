"""What the kernels compile to for a GPU, read without one: no float64, no 64-bit division, no wraparound test."""

import re
import types

import pytest

from labkit.kernels import all_ops

numba_cuda = pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")


def parameters(launcher, op):
    """The kernel's argument types, from its number of arguments: arrays first, then sizes."""
    from numba import types as t

    count = launcher.kernel.py_func.__code__.co_argcount
    rank = 2 if op.name == "matmul" else 1
    arrays = {"vector_add": 3, "volume_add": 3, "broadcast_add": 4, "matmul": 3}[op.name]
    return t.void(*[t.Array(t.float32, rank, "C")] * arrays, *[t.uint32] * (count - arrays))


def for_gpu(function):
    """The same function with `cuda` bound to numba.cuda, whichever device labkit runs on."""
    names = {**function.__globals__, "cuda": numba_cuda}
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def ptx_of(function, signature) -> str:
    try:
        return numba_cuda.compile_ptx(for_gpu(function), signature, cc=(9, 0))[0]
    except Exception as error:
        if type(error).__name__ == "DynamicLibNotFoundError" or "libnvvm" in str(error) or "NVVM" in str(error):
            pytest.skip(f"the CUDA toolkit's compiler is not installed (pip install labkit[cu13]): {error!s:.80}")
        raise


CASES = [pytest.param(launcher, op, id=launcher.__name__) for op in all_ops() for launcher in op.rungs]


@pytest.mark.parametrize(("launcher", "op"), CASES)
def test_float32_kernels_compute_in_float32(launcher, op):
    ptx = ptx_of(launcher.kernel.py_func, parameters(launcher, op))
    assert not re.search(r"\.f64\b", ptx)
    assert not re.search(r"\b(div|rem)\.[su]64", ptx), "a 64-bit division"
    # Numba's wraparound test of a signed index is a shift by 63 and a mask.
    assert not re.search(r"shr\.s64\s+%rd\d+, %rd\d+, 63", ptx), "a signed index"


def test_the_inner_loop_of_the_naive_product_is_short():
    """matmul.py states 21 instructions for four multiply-adds; range(K) would cost 67."""
    (op,) = [op for op in all_ops() if op.name == "matmul"]
    ptx = ptx_of(op.rungs[0].kernel.py_func, parameters(op.rungs[0], op))
    blocks = re.split(r"\n(?=\$L__)", ptx)
    (inner,) = [block for block in blocks if block.count("fma.rn.f32") == 4]
    lines = [line for line in inner.splitlines() if line.strip() and not line.startswith("$")]
    assert len(lines) <= 21


def test_the_check_finds_a_float64():
    from numba import float32

    numba_types = pytest.importorskip("numba").types

    def leaky(a, out):
        out[0] = a[0] * 0.1 + float32(1.0)

    array = numba_types.Array(numba_types.float32, 1, "C")
    assert re.search(r"\.f64\b", ptx_of(leaky, numba_types.void(array, array)))
