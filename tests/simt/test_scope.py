"""What the names of a kernel mean, and how device functions are told apart."""

import math

import numpy as np
import pytest

from labkit import cuda
from labkit.simt.errors import UnsupportedError
from labkit.simt.scope import Callee, Scope
from tests.simt.helpers import kernel_of

pytestmark = pytest.mark.cpu_device


def staged(count, op):
    tile = cuda.shared.array(count, "float32")
    return op(tile)


def test_each_way_to_call_a_device_function_has_a_key_of_its_own():
    keys = [Scope(Callee(staged, (("count", n), ("op", op)))).key
            for n in (8, np.int64(9), np.dtype("i4")) for op in (abs, cuda.atomic.add)]  # fmt: skip
    assert len(set(keys)) == 6
    again = Scope(Callee(staged, (("count", np.int64(9)), ("op", abs))))
    assert again.key == keys[2] and again.params == []


@pytest.mark.parametrize("source, words", [
    ("x[0] = math.sqroot(x[0])", r"math\.sqroot does not exist"),
    ("x[0] = cuda.gird(1)", r"cuda\.gird is not supported by the CPU device"),  # a later numba.cuda may have it
    ("cuda.atomic.plus(x, 0, 1)", r"cuda\.atomic\.plus is not supported by the CPU device"),
])
def test_a_name_that_a_module_lacks(source, words):
    with pytest.raises(UnsupportedError, match=rf"kernel, line 3: {words}"):
        kernel_of(source, "x", math=math)[1, 1](np.ones(1))


@cuda.jit(device=True)
def countdown_with_barrier(n):
    cuda.syncthreads()
    return 0 if n == 0 else countdown_with_barrier(n - 1)


def test_recursion_with_a_barrier_is_refused_with_the_line():
    @cuda.jit
    def kernel(out):
        out[0] = countdown_with_barrier(3)

    with pytest.raises(UnsupportedError, match=r"countdown_with_barrier, line \d+: .* calls itself and holds"):
        kernel[1, 1](np.zeros(1))
