"""Kernels that begin early: what they do before they wait, and that they compute the same."""

import re

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus
from labkit.device.gpus import GPUS
from labkit.kernels import pdl, rope
from labkit.kernels.attention import paged
from labkit.kernels.attention.paged_split import make_paged_decode_mma
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.linear import normed, streamed, swap_ab
from labkit.kernels.norm import rmsnorm
from labkit.kernels.ops.linear_bf16 import layer
from tests.compiled import HOPPER, ptx_of

WAIT, BEGIN = "griddepcontrol.wait", "griddepcontrol.launch_dependents"


def kernels(early: bool) -> dict:
    """name -> (kernel, its argument types)."""
    vector, matrix = "uint16 1", "uint16 2"
    found = {
        "product": (streamed.make_tensor(1, 1, early=early), [matrix] * 4),
        "norm": (rmsnorm.make_rmsnorm(BFLOAT16, False, 1, True, True, 1e-5, early), [vector] * 5),
        "rope": (rope.make_rope_split_cache(BFLOAT16, True, True, 1e-6, early),
                 [vector, "float32 1", "int32 1", "int32 1", *[vector] * 5, *["uint32"] * 6]),
        "attention": (make_paged_decode_mma(64, 4, early),
                      [*[matrix] * 3, "int32 2", "int32 1", matrix, "float32", "uint32", "uint32", "float32 1",
                       "uint32 1"]),
        "norm and product": (normed.make_normed(512, 8, 1e-5, early=early), [matrix, matrix, vector, *[matrix] * 3]),
    }
    if early:
        found["weights left"] = (swap_ab.make_swap_ab(swap_ab.TILES[0], most_splits=8),
                                 ["uint64 1", "uint64 1", vector, "float32 1", "uint32 1", *["uint32"] * 6])
    return found


NAMES = ("product", "norm", "rope", "attention", "norm and product", "weights left")


@pytest.mark.sampled(1, sweep=2, quick="norm")
@pytest.mark.parametrize("name", NAMES)
def test_an_early_kernel_writes_nothing_before_it_waits(name):
    kernel, arguments = kernels(True)[name]
    assert kernel.uses_pdl
    text = ptx_of(kernel, *arguments, cc=HOPPER)
    before = text[: text.index(WAIT)]
    assert BEGIN in text
    assert not re.search(r"\b(st\.global|atom|red\.|cp\.async\.bulk\.tensor\.2d\.global)", before)
    # What it reads by then are weights, or what the host wrote: never an activation.
    assert len(re.findall(r"mma\.sync|wgmma\.mma_async", before)) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES[:5])
def test_other_kernels_run_on_any_gpu(name):
    kernel, arguments = kernels(False)[name]
    assert not kernel.uses_pdl and "griddepcontrol" not in ptx_of(kernel, *arguments, cc=HOPPER)


def test_only_gpus_from_hopper_on_are_asked_for_it(monkeypatch):
    for name in ("h200", "b200", "rtx5090"):
        with gpus.plan_for(GPUS[name]):
            assert pdl.uses_pdl(1) and pdl.uses_pdl(9) and not pdl.uses_pdl(8)
    with gpus.plan_for(GPUS["l4"]):
        assert not pdl.uses_pdl(1)
    monkeypatch.setattr(gpus, "chosen_on_gpu", lambda: False)
    assert not pdl.uses_pdl(1)


def both(monkeypatch, module, launch) -> list:
    """What launch() returns with kernels that begin late and with those that begin early."""
    found = []
    for early in (False, True):
        monkeypatch.setattr(module, "uses_pdl", lambda rows, early=early: early)
        found.append(launch())
    return found


def random(seed, *shape):
    return bfloat16_of(np.random.default_rng(seed).standard_normal(shape, np.float32))


@pytest.mark.sweep
def test_a_product_is_the_same(monkeypatch):
    x, weight = (cuda.to_device(array) for array in layer(np.random.default_rng(1), 3, 24, 2120))

    def launch():
        out = cuda.to_device(np.zeros((3, 24), np.uint16))
        streamed.by_tensor_cores(x, weight, None, out, streamed.check_linear(x, weight, None, out))
        return out.copy_to_host()

    late, early = both(monkeypatch, streamed, launch)
    assert late.any()
    np.testing.assert_array_equal(late, early)


@pytest.mark.sweep(every=True)
def test_a_norm_is_the_same(monkeypatch):
    x, residual, weight = random(2, 5, 72), random(3, 5, 72), random(4, 72)

    def launch():
        total, out = cuda.to_device(residual), cuda.to_device(np.zeros((5, 72), np.uint16))
        rmsnorm.add_rmsnorm(cuda.to_device(x), total, cuda.to_device(weight), out)
        return np.stack([total.copy_to_host(), out.copy_to_host()])

    np.testing.assert_array_equal(*both(monkeypatch, rmsnorm, launch))


@pytest.mark.sweep
def test_rotation_is_the_same(monkeypatch):
    T, H, K, D = 3, 2, 1, 32
    qkv, norm = cuda.to_device(random(5, T, (H + 2 * K) * D)), cuda.to_device(random(6, D))
    table = cuda.to_device(rope.rope_table(8, D, 10_000.0))
    positions, slots = (cuda.to_device(np.array(values, np.int32)) for values in ([7, 0, 9], [3, -1, 17]))

    def launch():
        q = cuda.to_device(np.zeros((T, H, D), np.uint16))
        keys, values = (cuda.to_device(np.zeros((2, K, 16, D), np.uint16)) for _ in range(2))
        rope.rope_split_cache(qkv, table, positions, slots, q, keys, values, norm, norm)
        return np.concatenate([array.copy_to_host().reshape(-1) for array in (q, keys, values)])

    np.testing.assert_array_equal(*both(monkeypatch, rope, launch))


@pytest.mark.sweep  # compiles two kernels
def test_attention_is_the_same_also_of_empty_slots(monkeypatch):
    rng = np.random.default_rng(7)
    B, H, K, D, pages = 3, 2, 1, 32, 12
    q, keys, values = random(8, B, H, D), random(9, pages, K, 16, D), random(10, pages, K, 16, D)
    table, lengths = rng.permutation(pages).reshape(B, 4).astype(np.int32), np.array([33, 0, 7], np.int32)
    arrays = [cuda.to_device(array) for array in (q, keys, values, table, lengths)]

    def launch():
        out = cuda.to_device(np.full((B, H, D), 0x7FC1, np.uint16))
        paged.paged_decode_mma(*arrays, out, D**-0.5)
        return out.copy_to_host()

    late, early = both(monkeypatch, paged, launch)
    assert not late[1].any() and (late != 0x7FC1).all()
    np.testing.assert_array_equal(late, early)
