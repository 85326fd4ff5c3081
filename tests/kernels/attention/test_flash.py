"""Attention in tiles: every form of the kernels at awkward sizes, keys that are not there, what launchers refuse."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import gpus
from labkit.device.gpus import GPUS
from labkit.kernels.agree import agree
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention import flash as module
from labkit.kernels.attention.decode import attention_decode, decode_workspace_numbers
from labkit.kernels.attention.flash import attention_flash, launch_flash, make_flash
from labkit.kernels.attention.flash_mma import FORMS, mma_form
from labkit.kernels.attention.half import (
    attention_decode_half,
    attention_flash_half,
    attention_half,
    make_flash_half,
)
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.attention.whole_matrix import attention_whole_matrix
from labkit.kernels.dtypes import float64_of
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention import tolerance_of
from labkit.kernels.ops.attention_half import (
    ATTENTION_HALF,
    ATTENTION_HALF_CACHED,
    ATTENTION_HALF_CAUSAL,
    tolerance_half,
)
from labkit.measure.ops import op


def check(launch, S, H, D, causal, before=None, dtype=np.float32):
    """Runs on fresh data and compares with the reference. With `before`, the rest of the cache is NaN."""
    rng = np.random.default_rng(S + D)
    qkv = (2 * uniform(rng, S, 3 * H * D)).astype(dtype)
    out = cuda.to_device(np.full((S, H * D), np.nan, dtype))
    arguments, options = (qkv, H), {}
    if before is not None:
        cache = np.full((before + S + 70, 2 * H * D), np.nan, dtype)
        cache[:before] = 2 * uniform(rng, before, 2 * H * D)
        cache[before : before + S] = qkv[:, H * D :]
        start = np.array([before], np.int32)
        options = {"cache": cuda.to_device(cache), "start": cuda.to_device(start)}
        arguments = (qkv, H, cache[: before + S], start)
    launch(cuda.to_device(qkv), H, out, causal=causal, **options)
    tolerance = tolerance_half if dtype == np.float16 else tolerance_of
    allowed = tolerance(*(float64_of(value) for value in arguments), causal=causal)
    error = np.abs(out.copy_to_host().astype(np.float64) - attention_reference(*arguments, causal=causal))
    assert (error <= allowed).all(), (S, H, D, causal, before, np.nanmax(error / allowed))


def every_size(launch, **more):
    for S, H in ((1, 1), (17, 3), (64, 1), (65, 1), (130, 3)):
        for causal in (False, True):
            check(launch, S, H, 64, causal, **more)
    check(launch, 5, 2, 64, True, before=70, **more)
    check(launch, 5, 2, 64, False, before=70, **more)


@pytest.mark.sweep
@pytest.mark.parametrize("down", [2, 8])
def test_flash_at_awkward_sizes(down):
    def launch(qkv, heads, out, *, cache=None, start=None, causal=False):
        launch_flash(make_flash(64, down), qkv, heads, out, cache, start, causal, 0)

    every_size(launch)


@pytest.mark.sweep
@pytest.mark.parametrize(("warps", "down"), [FORMS[0], *(pytest.param(*form, marks=pytest.mark.sweep)
                                                        for form in (FORMS[1], FORMS[-1]))])
def test_flash_half_at_awkward_sizes(warps, down):
    def launch(qkv, heads, out, *, cache=None, start=None, causal=False):
        launch_flash(make_flash_half(64, warps, down), qkv, heads, out, cache, start, causal, 0)

    every_size(launch, dtype=np.float16)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [48, 128])
@pytest.mark.parametrize("launch", [attention_flash, attention_flash_half, attention_decode, attention_decode_half])
def test_other_heads(launch, size):
    dtype = np.float16 if launch.__name__.endswith("half") else np.float32
    for S, before in ((33, None), (3, 65)):
        check(launch, S, 2, size, True, before, dtype=dtype)


@pytest.mark.sweep(every=True)
def test_one_query_over_a_cache():
    """The smallest case of the rung that a GPU uses for few queries, where GPT-2 has no kernels for one row."""
    check(attention_decode, 1, 1, 64, True, 17)


@pytest.mark.sweep
@pytest.mark.parametrize("causal", [False, True])
def test_decode_with_slices_that_are_full_partly_full_and_empty(causal):
    for S, before in ((1, 0), (1, 57), (1, 127), (1, 128), (4, 254), (3, None)):
        check(attention_decode, S, 2, 64, causal, before)
        check(attention_decode_half, S, 2, 64, causal, before, dtype=np.float16)
        check(attention_half, S, 2, 64, causal, before, dtype=np.float16)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("causal", [False, True])
def test_whole_matrix(causal):
    for S, H, D, before in ((17, 3, 5, None), (65, 1, 64, None), (3, 2, 8, 40)):
        check(attention_whole_matrix, S, H, D, causal, before)


every_operation = pytest.mark.parametrize("operation", [ATTENTION_HALF, ATTENTION_HALF_CAUSAL, ATTENTION_HALF_CACHED],
                                         ids=lambda one: one.name)


@pytest.mark.sweep
@every_operation
def test_float16_agree(operation):
    """In heads of 64: another size is another kernel, which compiles for seconds."""
    assert agree(operation, sizes=tuple(size for size in operation.awkward if size["D"] == 64), seed=1).passed
    assert op(operation.name) is operation


@pytest.mark.sweep
@every_operation
def test_float16_agree_at_every_awkward_size(operation):
    assert agree(operation, seed=1).passed


def test_the_float16_tolerance_tells_a_key_left_out():
    qkv, heads = ATTENTION_HALF.inputs(np.random.default_rng(0), 65, 1, 64)
    allowed = tolerance_half(qkv.astype(np.float64), heads)
    missed = np.abs(attention_reference(qkv[:, :], heads)[:64] - attention_reference(qkv[:64], heads))
    assert (missed > allowed[:64]).mean() > 0.2


@pytest.mark.sweep
def test_large_float16_do_not_overflow():
    qkv = cuda.to_device(np.full((70, 3 * 64), 100, np.float16))  # scores of 80,000: no half is so large
    out = cuda.device_array((70, 64), np.float16)
    attention_flash_half(qkv, 1, out)
    np.testing.assert_array_equal(out.copy_to_host(), 100)


@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize(("make", "form", "dtype"), [(make_flash, (64, 4), np.float32),
                                                     (make_flash_half, (64, 4, 1), np.float16)])
def test_no_race_and_no_bank_conflict(make, form, dtype):
    kernel, rows = make(*form), 65
    qkv = cuda.to_device(uniform(np.random.default_rng(0), rows, 3 * 64).astype(dtype))
    arguments = (qkv, qkv, cuda.to_device(np.zeros(1, np.int32)), cuda.device_array((rows, 64), dtype), np.uint32(64),
                 module.scale_for_powers_of_two(64), np.uint32(1))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    report = observe(kernel[(1, -(-rows // kernel.rows)), kernel.threads, 0, kernel.shared_bytes], *arguments)
    assert report.ok, str(report)
    assert report.counts.get("bank_conflicts", 0) == 0, str(report)


@pytest.mark.sweep(every=True)
def test_neighbouring_heads_are_not_mixed():
    """Head 1 alone is what head 1 among three is."""
    qkv = uniform(np.random.default_rng(0), 20, 3 * 3 * 64)
    alone = np.ascontiguousarray(qkv.reshape(20, 3, 3, 64)[:, :, 1].reshape(20, 3 * 64))
    outs = []
    for rows, heads in ((qkv, 3), (alone, 1)):
        outs.append(cuda.device_array((20, heads * 64), np.float32))
        attention_flash(cuda.to_device(rows), heads, outs[-1])
    np.testing.assert_array_equal(outs[0].copy_to_host()[:, 64:128], outs[1].copy_to_host())


def test_what_launchers_refuse():
    qkv, out = cuda.device_array((242, 3 * 8), np.float32), cuda.device_array((242, 8), np.float32)
    for launch in (attention_flash, attention_decode):
        with pytest.raises(ValueError, match="a head has 8 numbers; it must be a multiple of 16, at most 256"):
            launch(qkv, 1, out)
    refused = pytest.raises(ValueError, match="242 queries and 242 keys take 234,256 bytes.* 241 x 241")
    with gpus.plan_for(gpus.GPUS["h200"]), refused:
        attention_whole_matrix(qkv, 1, out)
    with pytest.raises(TypeError, match="only float16 is allowed"):
        attention_flash_half(qkv, 1, out)
    flat = cuda.device_array(2 * 48 + 1, np.float32)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        attention_flash(flat[1:].reshape((2, 48)), 1, cuda.device_array((2, 16), np.float32))


@pytest.mark.sweep
def test_decode_takes_a_workspace():
    qkv = cuda.to_device(uniform(np.random.default_rng(0), 2, 3 * 64))
    out = cuda.device_array((2, 64), np.float32)
    numbers = decode_workspace_numbers(2, 2, 1, 64)
    attention_decode(qkv, 1, out, workspace=cuda.device_array(numbers, np.float32))
    expected = attention_reference(qkv.copy_to_host(), 1)
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-5)
    with pytest.raises(ValueError, match=f"must have {numbers} of float32"):
        attention_decode(qkv, 1, out, workspace=cuda.device_array(numbers - 1, np.float32))


def test_the_form_leaves_no_multiprocessor_without_a_block():
    with gpus.plan_for(GPUS["h200"]):
        assert [module.flash_form(64, 12, rows) for rows in (16, 128, 1024, 4096)] == [(1, 8), (1, 8), (4, 8), (4, 8)]
        assert [mma_form(64, 12, rows)[:2] for rows in (16, 128, 1024, 4096)] == [(1, 1), (1, 1), (4, 1), (4, 2)]
