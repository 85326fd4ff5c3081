"""The persistent kernel's launcher: what it refuses, the times that it records, and other numbers of warps."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.elements import FLOAT16
from labkit.kernels.persistent.decode import Buffers, persistent_decode
from labkit.kernels.persistent.decoder import Decoder
from labkit.kernels.rope import rope_table

SIZES = Decoder(hidden=64, heads=2, kv_heads=1, head_dim=32, mlp=64, vocab=11, eps=1e-5, scale=0.25, element=FLOAT16,
                warps=1, stages=3)
KINDS = {"norm": SIZES.hidden, "qkv": SIZES.qkv_rows * SIZES.hidden, "o": SIZES.hidden * SIZES.attended,
         "post_norm": SIZES.hidden, "gate_up": SIZES.gate_up_rows * SIZES.hidden, "down": SIZES.hidden * SIZES.mlp}
TOP = SIZES.vocab * SIZES.hidden


def arguments(rows=2, seed=0):
    """Of a layer of random weights, by the names of persistent_decode's parameters."""
    rng = np.random.default_rng(seed)
    sizes = [*KINDS.values(), -(-TOP // 8) * 8, SIZES.hidden]
    begins = np.cumsum([0, *sizes])
    weights = (rng.standard_normal(begins[-1]) * 0.2).astype(np.float16)
    offsets = np.array([begins[:6], [begins[7], begins[6], begins[6], 0, 0, 0]], np.uint32) // 8
    ints = {"ids": rng.integers(0, 11, rows), "positions": np.arange(rows), "slots": 16 * np.arange(rows) + np.arange(
        rows), "contexts": 1 + np.arange(rows), "page_table": np.arange(rows)[:, None]}
    host = {"weights": weights, "offsets": offsets, "table": rope_table(32, 32, 10000.0),
            **{name: values.astype(np.int32) for name, values in ints.items()},
            "cache": np.zeros((2, rows * 16 * 32), np.float16), "logits": np.full((rows, 11), np.nan, np.float32)}
    return {name: cuda.to_device(values) for name, values in host.items()}


@pytest.fixture(scope="module")
def buffers():
    return Buffers(SIZES, 1, 2)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("ids", np.zeros(9, np.int32), "ids has shape .9,.; 1 to 8 are allowed"),
    ("weights", np.zeros(64, np.float32), "weights has dtype float32; only float16 is allowed"),
    ("offsets", np.zeros((1, 6), np.uint32), "offsets has shape"),
    ("positions", np.zeros(3, np.int32), "positions has shape .3,.; it must be .2,."),
    ("page_table", np.zeros((2, 3), np.int32), "page_table has shape .2, 3.; 2 rows are needed, of at most 2 pages"),
    ("cache", np.zeros((2, 100), np.float16), "cache has shape .2, 100.; it must be .2, a multiple of 512."),
    ("logits", np.zeros((2, 12), np.float32), "logits has shape"),
])
def test_an_argument_that_does_not_fit_is_named(buffers, name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        persistent_decode(buffers, **arguments() | {name: cuda.to_device(value)})


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden": 96}, "hidden is 96; it must be a multiple of 64"), ({"head_dim": 16, "heads": 8},
                                                                  "head_dim is 16; 32, 64, 128, 256 are allowed"),
    ({"kv_heads": 4}, "heads is 2 and kv_heads 4"), ({"heads": 18}, "at most 8 times it")])
def test_sizes_that_it_cannot_compute(change, message):
    assert message in replace(SIZES, **change).problem()


@pytest.mark.sweep(every=True)
def test_a_page_table_that_is_too_short_gives_nan(buffers):
    given = arguments()
    given["contexts"] = cuda.to_device(np.array([1, 17], np.int32))  # and one page each
    persistent_decode(buffers, **given)
    logits = given["logits"].copy_to_host()
    assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()
    assert buffers.tokens.copy_to_host()[:2].tolist() == [logits[0].argmax(), -1]


@pytest.mark.sweep(every=True)
def test_times_of_phases_and_the_same_tokens_without_them(buffers):
    """A block's times never go back; a phase begins after every block has ended the one before."""
    given = arguments()
    persistent_decode(buffers, **given)
    logits = given["logits"].copy_to_host()
    timed = Buffers(replace(SIZES, timed=True), 1, 2)
    persistent_decode(timed, **given)
    np.testing.assert_array_equal(given["logits"].copy_to_host(), logits)
    times = timed.times.copy_to_host().astype(np.int64).reshape(timed.blocks, -1)
    assert times.shape[1] == 12 and (np.diff(times, axis=1) >= 0).all() and times.min() > 0
    assert (times[:, 2::2].min(axis=0) >= times[:, 1:-1:2].max(axis=0)).all()
