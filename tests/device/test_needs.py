"""What a kernel needs, found from its instructions."""

import pytest

from labkit import cuda, ptx
from labkit.device import gpus, needs


@cuda.jit(device=True)
def product(a, b, c):
    return ptx.mma_m16n8k16_f32_bf16(a, a, a, a, b, b, c, c, c, c)


def make(tensor, product=product):
    TENSOR, CHUNKS = tensor, 2

    @cuda.jit
    def kernel(words, out):
        if TENSOR:
            out[0] = product(words[0], words[1], out[0])[0]
        elif CHUNKS == 3:
            ptx.wgmma_fence()
        else:
            out[0] = ptx.exp2_approx(out[0])

    return kernel


def test_device_functions_count_and_branches_that_constants_rule_out_do_not():
    assert needs.instructions(make(True)) == {"mma_m16n8k16_f32_bf16"}
    assert needs.of(make(True)) == (8, 0)
    assert needs.instructions(make(False)) == {"exp2_approx"}
    assert needs.of(make(False)) is None
    assert needs.of(make(False), make(True)) == (8, 0)


def test_a_branch_that_only_the_launch_decides_counts():
    @cuda.jit
    def kernel(out, early):
        if early:
            ptx.fence_mbarrier_init()

    assert needs.of(kernel) == (9, 0)


@pytest.mark.parametrize(("capability", "needed", "why"), [
    ((7, 5), None, ""), ((8, 6), (8, 0), ""), ((12, 0), (9, 0), ""), ((9, 0), (9, 0, "a"), ""),
    ((7, 5), (8, 0), "needs compute capability 8.0; this GPU has 7.5"),
    ((10, 0), (9, 0, "a"), "needs compute capability 9.0 exactly; this GPU has 10.0"),
])
def test_what_a_gpu_lacks(capability, needed, why):
    assert needs.lacks(capability, needed) == why


def test_only_compute_capability_9_0_has_every_instruction():
    assert [gpu for gpu in gpus.SUPPORTED if needs.has_all(gpu)] == [(9, 0)]
