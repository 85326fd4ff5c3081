"""`from numba import cuda` in a learner's cell, without a GPU."""

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")
import numba
import numba.cuda
from numba import cuda
from numba.cuda import grid

from labkit.course.check import examine, numba_kernels
from tests.course.check.written import scaling

pytestmark = [pytest.mark.cpu_device, pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaWarning")]


@cuda.jit(device=True)
def product(x, y):
    return x * y


@cuda.jit
def from_the_module(a, s, out):
    tile = cuda.shared.array(128, numba.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = a[i] if i < out.size else numba.float32(0.0)
    cuda.syncthreads()
    if i < out.size:
        out[i] = product(tile[t], s)


@numba.cuda.jit(fastmath=True)
def from_the_package(a, s, out):
    i = numba.cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * s


@cuda.jit
def by_its_name(a, s, out):
    i = grid(1)
    if i < out.size:
        out[i] = a[i] * s


@cuda.jit
def without_a_guard(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("answer", [from_the_module, from_the_package, by_its_name], ids=lambda k: k.__name__)
def test_kernels_of_numba_are_checked(examined, answer):
    assert examined(answer).passed


def test_a_wrong_one_is_explained_as_any_other(examined):
    verdict = examined(without_a_guard)
    assert verdict.kind == "out_of_bounds" and verdict.mistake == "no guard at the tail" and verdict.mistake_is_exact


def test_a_function_of_the_host_may_launch_them_and_numba_is_left_as_it_was():
    def launcher(a, s, out):
        room = cuda.device_array(a.size, np.float32)
        from_the_package[1, 64](a, s, room)
        out.copy_to_device(room)
        cuda.synchronize()

    exercise = scaling("host", wrong={"writes nothing": lambda a, s, out: None,
                                      "writes twice as much": lambda a, s, out: launcher(a, 2 * s, out)})
    before = cuda.device_array, type(from_the_package).__getitem__
    assert examine(exercise, launcher).passed
    assert (cuda.device_array, type(from_the_package).__getitem__) == before
    assert examine(exercise, lambda a, s, out: launcher(a, 2 * s, out)).mistake == "writes twice as much"


def test_numba_is_itself_again_where_a_check_compiles_for_a_gpu():
    before = cuda.device_array
    with numba_kernels.numba_on_cpu():
        assert cuda.device_array is not before
        with numba_kernels.numba_itself():
            assert cuda.device_array is before
        assert cuda.device_array is not before
    with numba_kernels.numba_itself():
        assert cuda.device_array is before
