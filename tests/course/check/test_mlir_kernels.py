"""`from numba_cuda_mlir import cuda` in a learner's cell, without a GPU."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda_mlir", reason="numba-cuda-mlir is not installed")
import numba
from numba_cuda_mlir import cuda
from numba_cuda_mlir.cuda import grid
from numba_cuda_mlir.types import float32

from labkit.course.check import examine
from tests.course.check.written import scaling

pytestmark = [pytest.mark.cpu_device, pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaWarning")]


@cuda.jit(device=True)
def product(x, y):
    return x * y


@cuda.jit
def from_the_module(a, s, out):
    tile = cuda.shared.array(128, numba.float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    tile[t] = a[i] if i < out.size else float32(0.0)
    cuda.syncthreads()
    if i < out.size:
        out[i] = product(tile[t], s)


@cuda.jit(fastmath=True)
def with_its_types(a, s, out):
    tile = cuda.shared.array(128, float32)
    i = cuda.grid(1)
    if i < out.size:
        tile[cuda.threadIdx.x] = cuda.float32(s)
        out[i] = a[i] * tile[cuda.threadIdx.x]


@cuda.jit
def by_its_name(a, s, out):
    i = grid(1)
    if i < out.size:
        out[i] = a[i] * s


@cuda.jit
def without_a_guard(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


@pytest.mark.parametrize("answer", [from_the_module, with_its_types, by_its_name], ids=lambda k: k.__name__)
def test_its_kernels_are_checked(examined, answer):
    assert examined(answer).passed


def test_a_wrong_one_is_explained_as_any_other(examined):
    verdict = examined(without_a_guard)
    assert verdict.kind == "out_of_bounds" and verdict.mistake == "no guard at the tail" and verdict.mistake_is_exact


def test_a_function_of_the_host_may_launch_them_and_the_module_is_left_as_it_was():
    def launcher(a, s, out):
        room = cuda.device_array(a.size, np.float32)
        by_its_name[1, 64](a, s, room)
        out.copy_to_device(room)
        cuda.synchronize()

    exercise = scaling("host", wrong={"writes nothing": lambda a, s, out: None,
                                      "writes twice as much": lambda a, s, out: launcher(a, 2 * s, out)})
    before = cuda.device_array, type(by_its_name).__getitem__
    assert examine(exercise, launcher).passed
    assert (cuda.device_array, type(by_its_name).__getitem__) == before
    assert examine(exercise, lambda a, s, out: launcher(a, 2 * s, out)).mistake == "writes twice as much"
