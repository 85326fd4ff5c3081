"""What numba.cuda refuses, the CPU device refuses too, so that a kernel that runs here runs on a GPU; and the reverse.

Each case was compiled for a GPU with numba-cuda 0.30.4 when it was written.
"""

import math

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda

pytestmark = pytest.mark.cpu_device


class Settings:
    tile = 4


SETTINGS = Settings()
EIGHT = 8


@cuda.jit
def ufunc_that_a_gpu_lacks(x, y):
    y[0] = np.sqrt(x[0])


@cuda.jit
def whole_arrays(x, y):
    y[0] = (x + y)[0]


@cuda.jit
def whole_arrays_in_place(x, y):
    y += float32(1)


@cuda.jit
def copied_slices(x, y):
    y[1:3] = x[0:2]


@cuda.jit
def indexed_by_an_array(x, y):
    y[0] = x[x > float32(0)][0]


@cuda.jit
def floored_index(x, y):
    y[0] = x[math.floor(x[0])]


@cuda.jit
def barrier_that_counts_bools(x, y):
    y[0] = cuda.syncthreads_count(x[0] > float32(0))


@cuda.jit
def shuffled_bool(x, y):
    y[0] = cuda.shfl_sync(0xFFFFFFFF, x[0] > float32(0), 0)


@cuda.jit
def vote_on_a_float(x, y):
    y[0] = cuda.any_sync(0xFFFFFFFF, x[0])


@cuda.jit
def selp_of_two_types(x, y):
    y[0] = cuda.selp(True, x[0], 1)


@cuda.jit
def python_float_as_dtype(x, y):
    tile = cuda.shared.array(8, float)
    tile[0] = x[0]
    y[0] = tile[0]


@cuda.jit
def atomic_with_keywords(x, y):
    cuda.atomic.add(ary=y, idx=0, val=x[0])


@cuda.jit
def attribute_of_an_object(x, y):
    y[0] = SETTINGS.tile


@cuda.jit
def cube_root_of_math(x, y):
    y[0] = math.cbrt(x[0])


@cuda.jit
def computed_shape(x, y):
    tile = cuda.shared.array(EIGHT * 2, float32)
    tile[0] = x[0]
    y[0] = tile[0]


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (ufunc_that_a_gpu_lacks, "use math.sqrt"),
        (whole_arrays, "whole arrays"),
        (whole_arrays_in_place, "whole arrays"),
        (copied_slices, "whole arrays"),
        (indexed_by_an_array, "whole arrays|an index must be"),
        (floored_index, "an index must be an integer"),
        (barrier_that_counts_bools, "int32"),
        (shuffled_bool, "value of cuda.shfl_sync is bool"),
        (vote_on_a_float, "predicate of cuda.any_sync"),
        (selp_of_two_types, "one type"),
        (python_float_as_dtype, "not a dtype"),
        (atomic_with_keywords, "keyword"),
        (attribute_of_an_object, "host object"),
        (cube_root_of_math, "cuda.cbrt"),
        (computed_shape, "outside the kernel"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refused_as_on_a_gpu(kernel, words):
    with pytest.raises(TypeError, match=words) as caught:
        kernel[1, 32](np.ones(8, np.float32), np.zeros(8, np.float32))
    assert kernel.__name__ in str(caught.value)
    assert "line" in str(caught.value)


@cuda.jit
def accepted_kernel(x, y, z):
    tile = cuda.shared.array(4 * 8, cuda.float32)
    same = cuda.shared.array(EIGHT, x.dtype)
    t = cuda.threadIdx
    block = cuda.blockDim
    tile[t.x] = x[t.x % x.size]
    same[t.x % EIGHT] = float32(2)
    cuda.syncthreads()
    votes = cuda.syncthreads_count(int32(tile[t.x] > float32(0)))
    part = z.reshape((2, 4))
    y[t.x % y.size] = tile[block.x - 1 - t.x] + same[0] + votes + part[1, 3]
    x[0:2] = 5


def test_accepted_as_on_a_gpu():
    x, y, z = np.arange(8, dtype=np.float32), np.zeros(32, np.float32), np.arange(8, dtype=np.float32)
    before = x.copy()
    accepted_kernel[1, 32](x, y, z)
    expected = before[(31 - np.arange(32)) % 8] + 2 + 28 + 7
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(x[:2], 5)


def test_a_gpu_only_name_says_so():
    with pytest.raises(AttributeError, match="GPU"):
        accepted_kernel.get_regs_per_thread()
    with pytest.raises(AttributeError, match=r"cuda\.codegen is not supported by the CPU device"):
        _ = cuda.codegen


def test_a_device_record_is_an_argument():
    @cuda.jit
    def kernel(y, record):
        y[0] = record.a

    y = np.zeros(4)
    kernel[1, 1](y, cuda.to_device(np.array([(3.0,)], [("a", "f4")]))[0])
    assert y[0] == 3.0
