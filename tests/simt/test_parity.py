"""What numba.cuda refuses, the CPU device refuses too, so that a kernel that runs here runs on a GPU; and the reverse.

Each case was compiled for a GPU with numba-cuda 0.30.4 when it was written.
"""

import math
import types

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda
from tests.simt.helpers import kernel_of

pytestmark = pytest.mark.cpu_device


SETTINGS = types.SimpleNamespace(tile=4)
EIGHT = 8


REFUSED = {  # what stands in the kernel: what the error says
    "y[0] = np.sqrt(x[0])": "use math.sqrt",
    "y[0] = (x + y)[0]": "whole arrays",
    "y += float32(1)": "whole arrays",
    "y[1:3] = x[0:2]": "whole arrays",
    "y[0] = x[x > float32(0)][0]": "whole arrays|an index must be",
    "y[0] = x[math.floor(x[0])]": "an index must be an integer",
    "y[0] = cuda.syncthreads_count(x[0] > float32(0))": "int32",
    "y[0] = cuda.shfl_sync(0xFFFFFFFF, x[0] > float32(0), 0)": "value of cuda.shfl_sync is bool",
    "y[0] = cuda.any_sync(0xFFFFFFFF, x[0])": "predicate of cuda.any_sync",
    "y[0] = cuda.selp(True, x[0], 1)": "one type",
    "tile = cuda.shared.array(8, float); tile[0] = x[0]; y[0] = tile[0]": "not a dtype",
    "cuda.atomic.add(ary=y, idx=0, val=x[0])": "keyword",
    "y[0] = SETTINGS.tile": "host object",
    "y[0] = math.cbrt(x[0])": "cuda.cbrt",
    "tile = cuda.shared.array(EIGHT * 2, float32); tile[0] = x[0]; y[0] = tile[0]": "outside the kernel",
}


@pytest.mark.parametrize("source", REFUSED)
def test_refused_as_on_a_gpu(source):
    kernel = kernel_of(source, np=np, math=math, float32=float32, SETTINGS=SETTINGS, EIGHT=EIGHT)
    with pytest.raises(TypeError, match=REFUSED[source]) as caught:
        kernel[1, 32](np.ones(8, np.float32), np.zeros(8, np.float32))
    assert "kernel, line 3: " in str(caught.value)


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
