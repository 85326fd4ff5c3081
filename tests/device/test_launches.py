"""What a launcher launches is seen without changing it."""

import numpy as np
import pytest
from numba import types

from labkit import cuda, device
from labkit.device import launches
from labkit.kernels.elementwise import volume_add_3d
from labkit.kernels.matmul.float32 import matmul_tiled, matmul_tiled_kernel
from labkit.kernels.op import rung


def arrays(*shapes):
    return [cuda.to_device(np.ones(shape, np.float32)) for shape in shapes]


@pytest.mark.sweep(every=True)
def test_the_configuration_and_the_types_of_a_launch():
    (one,) = launches.of(matmul_tiled, *arrays((5, 7), (7, 40), (5, 40)))
    assert one.kernel is matmul_tiled_kernel
    assert (one.grid, one.block, one.threads, one.shared_bytes) == ((3, 1), (16, 16), 256, 0)
    assert one.signature == types.void(*[types.float32[:, ::1]] * 3)
    (volume,) = launches.of(volume_add_3d, *arrays(*[(2, 3, 4)] * 3))
    assert volume.signature.args[3:] == (types.uint32,) * 3


def test_the_kernel_is_left_as_it_was_even_after_an_error():
    with pytest.raises(ValueError, match="must equal"):
        launches.of(matmul_tiled, *arrays((5, 7), (6, 40), (5, 40)))
    assert vars(type(matmul_tiled_kernel))["configure"].__name__ == "configure"


def test_several_kernels_are_seen_each_once():
    @cuda.jit
    def one_kernel(out):
        out[cuda.grid(1)] = 1

    @cuda.jit
    def two_kernel(out):
        out[cuda.grid(1)] += 2

    @rung(kernel=(one_kernel, two_kernel), idea="two kernels")
    def both(out, stream=0):
        one_kernel[1, 32, stream](out)
        two_kernel[1, 32, stream](out)
        two_kernel[1, 32, stream, 64](out)
        two_kernel[1, 32, stream](out)

    (out,) = arrays(32)
    found = launches.of(both, out)
    assert [(one.kernel.__name__, one.shared_bytes) for one in found] == [
        ("one_kernel", 0), ("two_kernel", 0), ("two_kernel", 64)]
    np.testing.assert_array_equal(out.copy_to_host(), 7)


def test_a_kernel_that_the_launcher_chooses_is_seen():
    @cuda.jit
    def named_kernel(out):
        out[cuda.grid(1)] = 1

    @cuda.jit
    def chosen_kernel(out):
        out[cuda.grid(1)] = 2

    @rung(kernel=named_kernel, idea="chooses")
    def chooses(out, stream=0):
        chosen_kernel[1, 32, stream](out)

    (one,) = launches.of(chooses, *arrays(32))
    assert one.kernel is chosen_kernel


@pytest.mark.sweep(every=True)
def test_the_cpu_device_has_no_registers():
    if device.on_gpu():
        pytest.skip("this machine has a GPU")
    (one,) = launches.of(matmul_tiled, *arrays((5, 7), (7, 40), (5, 40)))
    assert launches.resources(one) is None


def test_a_plan_names_every_launch_and_runs_none():
    a, b, out = arrays((5, 7), (7, 40), (5, 40))
    seen = []

    def work():
        matmul_tiled(a, b, out)
        seen.append(len(found))
        matmul_tiled(a, b, out)
        assert launches.imagined()

    found = []
    assert launches.planned(work, found) is found and seen == [1] and not launches.imagined()
    assert [(one.kernel, one.grid, one.block) for one in found] == [(matmul_tiled_kernel, (3, 1), (16, 16))] * 2
    assert (out.copy_to_host() == 1).all()
    with pytest.raises(ZeroDivisionError):
        launches.planned(lambda: 1 / 0)
    assert not launches.imagined()
    matmul_tiled(a, b, out)
    assert (out.copy_to_host() == 7).all()
