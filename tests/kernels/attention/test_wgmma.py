"""Attention by wgmma and TMA: every kernel at sizes that are no multiple of its tiles, caches, what is refused, what
they compile to."""

import re

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.attention import wgmma as module
from labkit.kernels.attention.wgmma import (
    CONSUMERS_OF,
    attention_flash_wgmma,
    consumers_for,
    launch_flash_wgmma,
    make_flash_wgmma,
)
from tests.compiled import HOPPER, ptx_of, resources_of
from tests.kernels.attention.test_flash import check

pytestmark = pytest.mark.skipif(bool(attention_flash_wgmma.missing), reason=attention_flash_wgmma.missing)


def launcher_of(size, consumers):
    kernel = make_flash_wgmma(size, consumers)

    def launch(qkv, heads, out, *, cache=None, start=None, causal=False):
        launch_flash_wgmma(kernel, qkv, heads, out, cache, start, causal, 0)

    return launch


ALL = [(size, consumers) for size, times in CONSUMERS_OF.items() for consumers in times]


@pytest.mark.sampled(0, sweep=2, quick="True-64-1")
@pytest.mark.parametrize(("size", "consumers"), ALL)
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_at_awkward_sizes(size, consumers, causal):
    launch = launcher_of(size, consumers)
    for S, H in ((1, 1), (17, 2), (65, 1), (270, 1)):  # 270: three tiles of keys, the ring goes round
        check(launch, S, H, size, causal, dtype=np.float16)


@pytest.mark.sampled(0, sweep=2, quick="64-1")
@pytest.mark.parametrize(("size", "consumers"), ALL)
def test_a_cache_of_which_the_rest_is_not_a_number(size, consumers):
    launch = launcher_of(size, consumers)
    for S, before, causal in ((5, 0, True), (1, 127, True), (3, 140, False), (70, 64, True)):
        check(launch, S, 2, size, causal, before, dtype=np.float16)


def test_large_float16_do_not_overflow():
    qkv = cuda.to_device(np.full((70, 3 * 64), 100, np.float16))  # scores of 80,000: no half is so large
    out = cuda.device_array((70, 64), np.float16)
    attention_flash_wgmma(qkv, 1, out)
    np.testing.assert_array_equal(out.copy_to_host(), 100)


@pytest.mark.sweep(every=True)
def test_neighbouring_heads_are_not_mixed():
    """Head 1 alone is what head 1 among three is."""
    qkv = np.random.default_rng(0).uniform(-1, 1, (20, 3 * 3 * 64)).astype(np.float16)
    alone = np.ascontiguousarray(qkv.reshape(20, 3, 3, 64)[:, :, 1].reshape(20, 3 * 64))
    outs = []
    for rows, heads in ((qkv, 3), (alone, 1)):
        outs.append(cuda.device_array((20, heads * 64), np.float16))
        attention_flash_wgmma(cuda.to_device(rows), heads, outs[-1])
    np.testing.assert_array_equal(outs[0].copy_to_host()[:, 64:128], outs[1].copy_to_host())


def test_the_consumers_are_those_that_are_done_first(monkeypatch):
    monkeypatch.setattr(module.gpus, "chosen_on_gpu", lambda: True)
    monkeypatch.setattr(module.gpus, "sm_count", lambda: 132)
    for causal, few, many in ((False, (64, 1024), (1536, 2048, 3072, 4096)), (True, (64, 1024, 2048), (4096, 8192))):
        assert {consumers_for(64, rows, 12, causal) for rows in few} == {1}
        assert {consumers_for(64, rows, 12, causal) for rows in many} == {3}


def test_what_is_refused():
    qkv, out = cuda.device_array((5, 3 * 96), np.float16), cuda.device_array((5, 96), np.float16)
    with pytest.raises(ValueError, match="a head has 96 numbers; it must have 64 or 128"):
        attention_flash_wgmma(qkv, 1, out)
    with pytest.raises(TypeError, match="only float16 is allowed"):
        attention_flash_wgmma(cuda.device_array((5, 192), np.float32), 1, cuda.device_array((5, 64), np.float32))


# --- What they compile to ---------------------------------------------------------------------------------------------

ARGUMENTS = (*["uint64 1"] * 3, "int32 1", *["uint32"] * 4, "float32", "uint32")


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("size", "consumers"), ALL)
def test_accumulators_stay_in_registers_and_exponentials_are_taken_while_products_run(size, consumers):
    kernel = make_flash_wgmma(size, consumers)
    text = ptx_of(kernel, *ARGUMENTS, cc=HOPPER)
    found = re.findall(r"wgmma\.mma_async|wgmma\.wait_group\.sync\.aligned (\d)|(ex2)\.", text)
    order = "".join(waited or ("p" if power else "m") for waited, power in found)
    assert re.search(r"m1p{60,}0", order), f"in the loop, exponentials stand between the two waits: {order}"
    assert resources_of(text)["registers"] == 65_536 // (kernel.threads * kernel.blocks) // 8 * 8
