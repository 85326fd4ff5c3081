"""Attention: every rung, the addresses in qkv, the cache, and scores that do not fit."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus
from labkit.kernels.agree import agree
from labkit.kernels.attention import three_pass as module
from labkit.kernels.attention.half import attention_half
from labkit.kernels.attention.three_pass import append_to_cache, attention, attention_reference, attention_three_pass
from labkit.kernels.attention.whole_matrix import attention_whole_matrix
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention import ATTENTION, ATTENTION_CACHED, ATTENTION_CAUSAL, LAUNCHERS, tolerance_of
from labkit.measure.ops import op

every_operation = pytest.mark.parametrize("operation", [ATTENTION, ATTENTION_CAUSAL, ATTENTION_CACHED],
                                         ids=lambda one: one.name)


@pytest.mark.sampled(0, sweep=2)
@every_operation
def test_every_rung_agrees(operation):
    """attention_flash is another kernel for each size of a head that it allows, of which the usual run has 64."""
    sizes = tuple(size for size in operation.awkward if size["D"] % 16 or size["D"] == 64)
    assert agree(operation, sizes=sizes, seed=1).passed
    assert op(operation.name) is operation


@pytest.mark.sweep
@every_operation
def test_every_rung_agrees_at_every_awkward_size(operation):
    assert agree(operation, seed=1).passed


def test_the_reference_is_written_out():
    """One query of one head by hand, straight from the addresses t*3W + {0, W, 2W} + h*D."""
    rng = np.random.default_rng(0)
    S, H, D = 6, 3, 4
    W = H * D
    qkv = uniform(rng, S, 3 * W)
    flat = qkv.reshape(-1).astype(np.float64)
    for causal in (False, True):
        t, h = 3, 2
        seen = t + 1 if causal else S
        q = flat[t * 3 * W + h * D :][:D]
        keys = [flat[j * 3 * W + W + h * D :][:D] for j in range(seen)]
        values = [flat[j * 3 * W + 2 * W + h * D :][:D] for j in range(seen)]
        exponentials = np.exp([q @ k / 2 for k in keys])
        expected = sum(p * v for p, v in zip(exponentials, values, strict=True)) / exponentials.sum()
        np.testing.assert_allclose(attention_reference(qkv, H, causal=causal)[t, h * D : h * D + D], expected)


def test_the_reference_is_torchs():
    torch = pytest.importorskip("torch")
    qkv = uniform(np.random.default_rng(0), 7, 3 * 2 * 5).astype(np.float64)
    q, k, v = (torch.tensor(part).reshape(7, 2, 5).transpose(0, 1) for part in np.split(qkv, 3, axis=1))
    for causal in (False, True):
        theirs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]
        ours = attention_reference(qkv, 2, causal=causal)
        np.testing.assert_allclose(ours, theirs.transpose(0, 1).reshape(7, 10).numpy(), atol=1e-14)


@pytest.mark.sweep
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda launch: launch.__name__)
def test_token_by_token_with_a_cache_is_all_at_once(launch):
    S, H, D = 9, 2, 16
    qkv = uniform(np.random.default_rng(0), S, 3 * H * D)
    expected, allowed = attention_reference(qkv, H, causal=True), tolerance_of(qkv.astype(float), H, causal=True)
    cache, out = cuda.device_array((S + 2, 2 * H * D), np.float32), cuda.device_array((S, H * D), np.float32)
    d_qkv = cuda.to_device(qkv)
    for first, end in ((0, 4), (4, 5), (5, 6), (6, 9)):
        start = cuda.to_device(np.array([first], np.int32))
        append_to_cache(d_qkv[first:end], start, cache)
        launch(d_qkv[first:end], H, out[first:end], cache=cache, start=start, causal=True)
    assert (np.abs(out.copy_to_host() - expected) <= allowed).all()
    np.testing.assert_array_equal(cache.copy_to_host()[:S], qkv[:, H * D :])


def test_a_full_cache_is_not_overrun():
    qkv, whole = cuda.to_device(np.ones((3, 6), np.float32)), cuda.to_device(np.zeros((4, 4), np.float32))
    append_to_cache(qkv, cuda.to_device(np.array([1], np.int32)), whole[:2])
    np.testing.assert_array_equal(whole.copy_to_host()[:, 0], [0, 1, 0, 0])


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", LAUNCHERS, ids=lambda launch: launch.__name__)
def test_large_scores_do_not_overflow(launch):
    qkv = np.full((5, 3 * 16), 40, np.float32)  # scores of 6,400: exp of that is infinite
    out = cuda.device_array((5, 16), np.float32)
    launch(cuda.to_device(qkv), 1, out)
    np.testing.assert_allclose(out.copy_to_host(), 40, rtol=1e-5)


@pytest.mark.sweep(every=True)
def test_scores_beyond_48_kb_are_asked_for_and_beyond_the_limit_refused():
    rows = 13_000
    qkv = cuda.to_device(uniform(np.random.default_rng(0), rows, 6))
    cache = cuda.to_device(uniform(np.random.default_rng(1), rows, 4))
    out = cuda.device_array((1, 2), np.float32)
    start = cuda.to_device(np.array([rows - 1], np.int32))
    attention_three_pass(qkv[:1], 2, out, cache=cache, start=start, causal=True)
    expected = attention_reference(qkv.copy_to_host()[:1], 2, cache.copy_to_host(), [rows - 1], causal=True)
    np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-5)

    long = cuda.device_array((60_000, 3), np.float32)
    refused = pytest.raises(ValueError, match="scores of 60,000 keys take 240,000 bytes.* 58,080 keys")
    with gpus.plan_for(gpus.GPUS["h200"]), refused:
        attention_three_pass(long, 1, cuda.device_array((60_000, 1), np.float32))


def test_arguments_are_checked():
    qkv, out = cuda.device_array((4, 18), np.float32), cuda.device_array((4, 6), np.float32)
    start = cuda.to_device(np.zeros(1, np.int32))
    cases = [
        ({"heads": 4}, "with 4 heads it must be a multiple of 3 \\* 4"),
        ({"heads": 0}, "heads is 0; it must be"),
        ({"heads": 2, "start": start}, "belong together"),
        ({"heads": 2, "start": start, "cache": cuda.device_array((4, 6), np.float32)}, "must have 12 columns"),
        ({"heads": 2, "start": start, "cache": cuda.device_array((3, 12), np.float32)}, "at least the 4 rows"),
    ]
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            attention(qkv, out=out, **given)
    with pytest.raises(ValueError, match="at most 256 are allowed"):
        wide, narrow = cuda.device_array((1, 900), np.float32), cuda.device_array((1, 300), np.float32)
        module.attention_all_threads(wide, 1, narrow)


@pytest.mark.parametrize(("launch", "dtype"), [(attention, np.float32), (attention_half, np.float16)])
def test_arguments_are_checked_before_a_rung_is_picked(launch, dtype, monkeypatch):
    """On a GPU, too, where the pick depends on the size of a head."""
    qkv, out, flat = (cuda.device_array(shape, dtype) for shape in ((100, 18), (100, 6), (600,)))
    monkeypatch.setattr(gpus, "chosen_on_gpu", lambda: True)
    with pytest.raises(ValueError, match="heads is 0; it must be"):
        launch(qkv, 0, out)
    with pytest.raises(ValueError, match="out has shape"):
        launch(qkv, 2, flat)


@pytest.mark.sweep(every=True)
def test_a_small_launch_takes_nothing_from_the_large_one_after_it():
    """CUDA is asked for shared memory once, and what it allows must never become less."""
    for S in (120, 3, 50, 120):
        qkv, out = uniform(np.random.default_rng(S), S, 3 * 16), cuda.device_array((S, 16), np.float32)
        attention_whole_matrix(cuda.to_device(qkv), 1, out)
        assert (np.abs(out.copy_to_host() - attention_reference(qkv, 1)) <= tolerance_of(qkv.astype(float), 1)).all()


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("launch", [attention_three_pass, module.attention_all_threads], ids=lambda f: f.__name__)
def test_no_key_beyond_the_last_of_a_full_cache_is_read(launch):
    """start lies in device memory, where no launcher can look at it: a query there sees all keys, and no more."""
    rng = np.random.default_rng(2)
    qkv, cache = uniform(rng, 2, 24), uniform(rng, 4, 16)
    out = cuda.to_device(np.full((2, 8), np.nan, np.float32))
    launch(cuda.to_device(qkv), 1, out, cache=cuda.to_device(cache), start=cuda.to_device(np.array([9], np.int32)),
           causal=True)
    scores = qkv[:, :8].astype(np.float64) @ cache[:, :8].T / np.sqrt(8)
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out.copy_to_host(), shares @ cache[:, 8:], rtol=1e-4, atol=1e-5)
