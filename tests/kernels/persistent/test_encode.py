"""The persistent encoder's launcher: what it refuses; how its blocks divide rows and tiles; its sizes."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, device
from labkit.device import gpus
from labkit.kernels.elements import BFLOAT16
from labkit.kernels.persistent.encode import COUNTER, KINDS, Buffers, persistent_encode, share
from labkit.kernels.persistent.encoder import LANES_WORDS, TILES, Encoder

SIZES = Encoder(hidden=64, heads=2, inner=128, vocab=11, positions=128, eps=1e-12, stages=3)
MINILM = Encoder(hidden=384, heads=12, inner=1536, vocab=30522, positions=512, eps=1e-12, stages=7)
BASE = Encoder(hidden=768, heads=12, inner=3072, vocab=30522, positions=512, eps=1e-12, stages=2)


@cuda.jit
def shares(tiles, parts, out):
    for part in range(parts):
        out[part, 0], out[part, 1] = share(tiles, part, parts)


@pytest.mark.parametrize(("tiles", "parts"), [(144, 16), (48, 132), (192, 132), (5, 5), (1, 3)])
def test_the_blocks_of_a_row_tile_share_all_tiles_of_weights(tiles, parts):
    out = np.zeros((parts, 2), np.uint32)
    shares[1, 1](np.uint32(tiles), np.uint32(parts), out)
    firsts, counts = out[:, 0], out[:, 1]
    assert firsts[0] == 0 and counts.sum() == tiles and counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(firsts[1:], np.cumsum(counts)[:-1])


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden": 96}, "hidden is 96; it must be a multiple of 64, at most 1024"),
    ({"hidden": 2048}, "hidden is 2048; it must be a multiple of 64, at most 1024"),
    ({"heads": 4}, "hidden is 64 and heads 4; the heads must have 32 or 64 numbers each"),
    ({"inner": 192}, "inner is 192; it must be a multiple of 128"),
    ({"element": BFLOAT16}, "the weights are bfloat16; only float16 is allowed"),
])
def test_sizes_that_it_cannot_compute(change, message):
    assert message in replace(SIZES, **change).problem()


@pytest.mark.parametrize("encoder", [SIZES, MINILM, BASE])
def test_sizes_fit(encoder):
    """Static shared memory has at most 48 KB, and all of it what a block of an H200 has; a warp adds up no tile that
    another one writes."""
    assert not encoder.problem()
    assert encoder.static_bytes <= 48 << 10 and encoder.static_bytes + encoder.ring_bytes <= 227 << 10
    assert encoder.slots % encoder.depth_warps == 0 and encoder.moments == encoder.slots * LANES_WORDS
    assert encoder.slots >= encoder.depth_warps * encoder.stage_tiles


def test_minilms_sizes():
    assert (MINILM.warps, MINILM.depth_warps, MINILM.width_warps, MINILM.inner_groups) == (12, 6, 2, 2)
    assert MINILM.stage_tiles == 4 and MINILM.slots == 72 and MINILM.threads == 416


@pytest.mark.parametrize(("name", "value", "message"), [
    ("weights", np.zeros(64, np.float32), "weights has dtype float32; only float16 is allowed"),
    ("weights", np.zeros((8, 8), np.float16), r"weights has 2 dimensions .shape .8, 8..; it must have 1"),
    ("offsets", np.zeros((1, KINDS), np.uint32), "offsets has shape"),
    ("offsets", np.zeros((2, KINDS), np.int32), "offsets has dtype int32"),
])
def test_an_argument_that_does_not_fit_is_named(name, value, message):
    right = {"weights": np.zeros(64, np.float16), "offsets": np.zeros((2, KINDS), np.uint32)}
    with pytest.raises((TypeError, ValueError), match=message):
        persistent_encode(Buffers(SIZES, 1), **{key: cuda.to_device(array) for key, array in
                                                (right | {name: value}).items()})


def test_weights_that_begin_anywhere():
    weights = cuda.to_device(np.zeros(72, np.float16))[1:]
    with pytest.raises(ValueError, match="weights must begin at a multiple of 16 bytes"):
        persistent_encode(Buffers(SIZES, 1), weights, cuda.to_device(np.zeros((2, KINDS), np.uint32)))


def test_buffers_for_too_few_blocks():
    with pytest.raises(ValueError, match="blocks is 7; there must be at least 8, one for each 16 tokens"):
        Buffers(SIZES, 1, blocks=7)


def test_buffers_of_a_launch():
    """Queries, keys and values alternate between two buffers; a counter has 128 bytes of its own."""
    buffers = Buffers(replace(SIZES, timed=True), 2)
    assert buffers.qkv.size == 2 * 128 * 3 * 64 and buffers.inner.size == 128 * 128
    assert buffers.counters.size == COUNTER * (TILES + 1)
    assert buffers.blocks == (gpus.sm_count() if device.on_gpu() else TILES)
    assert buffers.times.size == buffers.blocks * SIZES.marks(2) and SIZES.marks(2) == 22
