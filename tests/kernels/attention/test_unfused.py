"""Attention in separate launches: against the reference in float64, with and without a cache, in tiles and not."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import graphs, launches
from labkit.kernels.attention.three_pass import attention_reference
from labkit.kernels.attention.unfused import LONGEST, AttentionInSteps, scores_kernel
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention import tolerance_of

SIZES = ((1, 1, 1, 0), (5, 2, 3, 0), (1, 3, 16, 7), (17, 2, 64, 0), (70, 1, 80, 0), (3, 1, 250, 4), (9, 2, 20, 131),
         (66, 2, 65, 63))


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_it_is_attention(fused, tiled):
    attention = AttentionInSteps(fused, tiled)
    rng = np.random.default_rng(0)
    for S, H, D, before in SIZES:
        for causal in (False, True):
            qkv = 2 * uniform(rng, S, 3 * H * D)
            given, cached = {}, {}
            keys = np.full((before + S + 3, 2 * H * D), np.nan, np.float32)  # nothing beyond what is in use is read
            if before:
                keys[: before + S] = 2 * uniform(rng, before + S, 2 * H * D)
                keys[before : before + S] = qkv[:, H * D :]
                start = np.array([before], np.int32)
                given = {"cache": keys[: before + S], "start": start}
                cached = {"cache": cuda.to_device(keys), "start": cuda.to_device(start)}
            out = cuda.to_device(np.full((S, H * D), np.nan, np.float32))
            attention(cuda.to_device(qkv), H, out, causal=causal, **cached)
            truth = attention_reference(qkv, H, causal=causal, **given)
            miss = np.abs(out.copy_to_host() - truth)
            assert (miss <= tolerance_of(qkv, H, causal=causal, **given)).all(), (S, H, D, before, causal)


@pytest.mark.sweep(every=True)
def test_the_launches_have_names_and_can_be_captured():
    qkv, out = cuda.to_device(uniform(np.random.default_rng(0), 3, 24)), cuda.device_array((3, 8), np.float32)
    for fused, causal, expected in ((False, True, ["scores", "scale", "mask", "softmax", "values"]),
                                    (False, False, ["scores", "scale", "softmax", "values"]),
                                    (True, True, ["scores", "softmax", "values"])):
        attention = AttentionInSteps(fused)
        assert [name for name, _ in attention.launches(qkv, 2, out, causal=causal)] == expected
        graph = graphs.capture(lambda stream, a=attention, c=causal: a(qkv, 2, out, causal=c, stream=stream))
        assert graph.nodes == len(expected)


def test_what_it_does_not_take_is_named():
    attention = AttentionInSteps(fused=True)
    wide = cuda.device_array((1, 3 * 300), np.float32)
    with pytest.raises(ValueError, match="at most 256"):
        attention(wide, 1, cuda.device_array((1, 300), np.float32))
    long = cuda.device_array((LONGEST + 1, 3), np.float32)
    with pytest.raises(ValueError, match="at most 4,096"):
        attention(long, 1, cuda.device_array((LONGEST + 1, 1), np.float32))


@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_no_race(fused, tiled):
    rng = np.random.default_rng(0)
    S, H, D, before = 3, 1, 20, 2
    qkv, cache = uniform(rng, S, 3 * H * D), uniform(rng, before + S + 1, 2 * H * D)
    arrays = [cuda.to_device(array) for array in (qkv, cache, np.array([before], np.int32))]
    out = cuda.device_array((S, H * D), np.float32)
    with launches.record([scores_kernel]) as made:
        AttentionInSteps(fused, tiled)(arrays[0], H, out, cache=arrays[1], start=arrays[2], causal=True)
    assert len(made) == (3 if fused else 5)
    for one in made:
        host = [arg.copy_to_host() if hasattr(arg, "copy_to_host") else arg for arg in one.args]
        assert not observe(one.kernel[one.grid, one.block], *host).races, one.kernel.__name__
