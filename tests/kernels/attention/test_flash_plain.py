"""The plain rung of flash attention: awkward sizes, what it reads and shares, what it refuses."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.kernels.attention.flash_plain import KEYS, QUERIES, attention_flash_plain, make_flash_plain
from labkit.kernels.attention.three_pass import attention_reference as reference
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention import ATTENTION, ATTENTION_CACHED, ATTENTION_CAUSAL, tolerance_of
from tests.compiled import ptx_of, resources_of


def attend(qkv, heads: int, causal: bool):
    rows, width = qkv.shape[0], qkv.shape[1] // 3
    out = cuda.to_device(np.full((rows, width), np.nan, np.float32))
    attention_flash_plain(cuda.to_device(qkv), heads, out, causal=causal)
    return out.copy_to_host()


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("S", "H"), [(1, 1), (KEYS, 2), (KEYS + 1, 1), (QUERIES - 1, 1), (QUERIES + 1, 3), (130, 2)])
def test_tiles_that_are_not_full(S, H, causal):
    qkv = 2 * uniform(np.random.default_rng(S), S, 3 * H * 64)
    allowed = tolerance_of(qkv.astype(np.float64), H, causal=causal)
    assert (np.abs(attend(qkv, H, causal) - reference(qkv, H, causal=causal)) <= allowed).all()


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_that_climb_or_fall_from_tile_to_tile_neither_overflow_nor_vanish(sign):
    """Scores from -6,400 to 6,400: every tile has a new maximum, or none after the first; exp of most is 0 or inf."""
    rows = 3 * KEYS
    qkv = np.zeros((rows, 3 * 64), np.float32)
    qkv[:, :64], qkv[:, 64:128] = 40, sign * np.linspace(-20, 20, rows)[:, None]
    qkv[:, 128:] = uniform(np.random.default_rng(0), rows, 64)
    np.testing.assert_allclose(attend(qkv, 1, False), reference(qkv, 1), rtol=1e-3)


def test_no_later_token_is_seen_under_a_causal_mask():
    qkv = uniform(np.random.default_rng(1), 70, 3 * 64)
    before = attend(qkv, 1, True)
    qkv[41:] = np.nan
    np.testing.assert_array_equal(attend(qkv, 1, True)[:32], before[:32])  # another tile than the NaN


def test_it_is_a_rung_of_what_has_no_cache():
    names = [[rung.__name__ for rung in operation.rungs] for operation in (ATTENTION, ATTENTION_CAUSAL)]
    assert [one.index("attention_flash_plain") + 1 for one in names[:1]] == [names[0].index("attention_flash")]
    assert "attention_causal_flash_plain" in names[1]
    assert not any("plain" in rung.__name__ for rung in ATTENTION_CACHED.rungs)


def test_heads_that_are_too_large_are_refused():
    with pytest.raises(ValueError, match="heads of 65 numbers are too large for flash_plain; at most 64 are allowed"):
        attention_flash_plain(cuda.device_array((2, 195), np.float32), 1, cuda.device_array((2, 65), np.float32))


@pytest.mark.sampled(0)
@pytest.mark.cpu_device
@pytest.mark.parametrize("causal", [0, 1])
def test_no_race_and_each_tile_is_loaded_once_for_the_block(causal):
    rows, size = QUERIES + 6, 8
    qkv, out = uniform(np.random.default_rng(0), rows, 3 * size), np.full((rows, size), np.nan, np.float32)
    kernel = make_flash_plain(size)
    report = observe(kernel[(2, 1), QUERIES], qkv, out, np.float32(size**-0.5), np.uint32(causal))
    assert report.ok, str(report)
    seen = (QUERIES if causal else rows) + rows  # of the first block and of the second
    queries = 2 * QUERIES * size  # threads without a query read the last one
    assert report.counts["global_loads"] == queries + 2 * seen * size


def test_query_and_accumulators_stay_in_registers():
    """Compiled for sm_90, where a compiler is installed."""
    text = ptx_of(make_flash_plain(64), "float32 2", "float32 2", "float32", "uint32")
    assert "ld.shared.v4" in text
    assert resources_of(text)["registers"] <= 200
