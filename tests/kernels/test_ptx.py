"""What the kernels compile to for a GPU, read without one: no float64, no 64-bit division, no wraparound test,
no spilled register.

Argument types come from launches at awkward sizes, so that none has to be written down.
"""

import functools
import re

import numpy as np
import pytest
from numba import float32, types

from labkit import cuda
from labkit.device import compiling, launches
from labkit.device.launches import kernels_of
from labkit.kernels import steps
from labkit.kernels.agree import to_device
from labkit.measure.ops import all_ops
from tests import spills
from tests.compiled import numba_cudas_code, ptx_of

pytest.importorskip("numba.cuda", reason="numba-cuda is not installed")


# Kernels that are there to be read first, with indices as Python has them.
SIGNED = ("attention_flash_plain_kernel",)


@functools.cache
def launched(launcher, op):
    """[(kernel, argument types)] of what this rung would launch at awkward sizes, until each kernel that it names was
    seen. Where a launcher has one for each width, that is some of them."""
    if launcher.missing:
        pytest.skip(f"needs a GPU: {launcher.missing}")
    rng = np.random.default_rng(0)
    found = {}
    for size in reversed(op.awkward):  # the larger ones reach the general kernels
        if {kernel.__name__ for kernel in kernels_of(launcher)} <= {kernel.__name__ for kernel, _ in found.values()}:
            break
        arguments = (*to_device(op.inputs(rng, **size)), cuda.device_array(op.shape(**size), op.dtype))
        try:
            for one in launches.planned(functools.partial(launcher, *arguments)):
                found[id(one.kernel), str(one.signature)] = (one.kernel, one.signature)
        except ValueError:  # a size that the launcher refuses
            continue
    assert found, f"no awkward size of {op.name} is one that {launcher.__name__} allows"
    return list(found.values())


@pytest.fixture(scope="module")
def compiler():
    """Skips a test before it plans launches for a compiler that is not there."""
    kernel, given = next(iter(AROUND_A_STEP.items()))
    ptx_of(kernel, *given)


def capability(launcher):
    """What to compile for: 9.0a where a rung asks for Hopper, whose wgmma exists in that variant only."""
    return (9, 0, "a") if launcher.needs and tuple(launcher.needs[:2]) >= (9, 0) else (9, 0)


# A rung that is made of other operations' launchers names no kernel.
PAIRS = [(launcher, op) for op in all_ops() for launcher in op.rungs if launcher.kernel != ()]
CASES = [pytest.param(*pair, id=pair[0].__name__) for pair in PAIRS]


def check_types(kernel, ptx):
    assert not re.search(r"\.f64\b", ptx), kernel.__name__
    assert not re.search(r"\b(div|rem)\.[su]64", ptx), f"{kernel.__name__}: a 64-bit division"
    if kernel.__name__ in SIGNED:
        return
    # Numba's wraparound test of a signed index is a shift by 63 and a mask.
    assert not re.search(r"shr\.s64\s+%rd\d+, %rd\d+, 63", ptx), f"{kernel.__name__}: a signed index"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("launcher", "op"), CASES)
def test_float32_kernels_compute_in_float32(compiler, launcher, op):
    for kernel, signature in launched(launcher, op):
        check_types(kernel, ptx_of(kernel, *signature.args, cc=capability(launcher)))


IDS, PAIRS_OF_IDS, LOGITS = types.int32[::1], types.int32[:, ::1], types.float32[:, ::1]
AROUND_A_STEP = {
    steps.fill_ids_kernel: (IDS, IDS),
    steps.keep_tokens_kernel: (IDS, IDS, IDS),
    steps.copy_pages_kernel: (types.float32[:, :, ::1], PAIRS_OF_IDS),
    steps.ban_tokens_kernel: (LOGITS, PAIRS_OF_IDS),
    steps.ban_tokens_after_kernel: (LOGITS, PAIRS_OF_IDS, IDS),
    steps.add_biases_kernel: (LOGITS, LOGITS, IDS),
}


@pytest.mark.parametrize("kernel", AROUND_A_STEP, ids=lambda kernel: kernel.__name__)
def test_the_kernels_around_a_step(kernel):
    """They are no operations: no rung launches them."""
    ptx = ptx_of(kernel, *AROUND_A_STEP[kernel])
    check_types(kernel, ptx)
    taken = compiling.resources(ptx)
    assert taken is None or taken["spill_bytes"] == 0


def test_each_kernel_around_a_step_is_read():
    assert {kernel.__name__ for kernel in AROUND_A_STEP} == {name for name in vars(steps) if name.endswith("_kernel")}


@pytest.mark.sweep
def test_every_kernel_is_read(compiler):
    """An operation may leave out a kernel that it shares with another, but some operation has to launch it."""
    named = {kernel.__name__ for launcher, _ in PAIRS for kernel in kernels_of(launcher)}
    assert named <= {kernel.__name__ for launcher, op in PAIRS for kernel, _ in launched(launcher, op)}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("launcher", "op"), CASES)
def test_kernels_keep_to_their_registers(compiler, launcher, op):
    """A spilled register is a load from memory that the source does not have. Rungs that failed may show it."""
    for kernel, signature in launched(launcher, op):
        taken = compiling.resources(ptx_of(kernel, *signature.args, cc=capability(launcher)))
        if taken is None:
            pytest.skip("ptxas is not installed")
        assert taken["registers"] <= 255
        if not launcher.failed:
            most = spills.allowed(kernel.__name__, capability(launcher))
            assert taken["spill_bytes"] <= most, f"{kernel.__name__} spills, with {taken['registers']} registers"


@numba_cudas_code
def test_the_inner_loop_of_the_naive_product_is_short():
    """Of four multiply-adds, unrolled by the compiler: Numba's range(K) would take 87 instructions."""
    (op,) = [op for op in all_ops() if op.name == "matmul"]
    ((kernel, signature),) = launched(op.rungs[0], op)
    ptx = ptx_of(kernel, *signature.args)
    blocks = re.split(r"\n(?=\$L__)", ptx)
    (inner,) = [block for block in blocks if block.count("fma.rn.f32") == 4]
    lines = [line for line in inner.splitlines() if line.strip() and not line.startswith("$")]
    assert len(lines) <= 27


def test_the_check_finds_a_float64():
    def leaky(a, out):
        out[0] = a[0] * 0.1 + float32(1.0)

    assert re.search(r"\.f64\b", ptx_of(leaky, "float32 1", "float32 1"))
