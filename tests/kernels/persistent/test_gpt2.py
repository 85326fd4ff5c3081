"""GPT-2's persistent kernel: what its launcher refuses, how blocks gather words, and the times that it records."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, u32
from labkit.kernels.elements import FLOAT16
from labkit.kernels.persistent.gpt2 import Buffers, Sizes, make_gather, persistent_gpt2, publish
from labkit.simt.errors import DeadlockError

SIZES = Sizes(hidden=16, heads=2, inner=32, vocab=11, element=FLOAT16, blocks=2, splits=2, warps=2, stages=5)
THREADS, COUNT, RUN, STRIDE = 32, 84, 6, 10  # more pairs than threads, and an odd number of them
gather_values = make_gather(COUNT, THREADS)


@cuda.jit
def publish_and_gather(words, epoch, published_until, out):
    """Every block publishes a part of the values, and gathers all."""
    gathered = cuda.shared.array(COUNT, np.float32)
    block, blocks, thread = u32.blockIdx.x, u32.gridDim.x, u32.threadIdx.x
    for i in u32.range(block * THREADS + thread, published_until, blocks * THREADS):
        publish(words, i // RUN * STRIDE + i % RUN, np.float32(i) / np.float32(2.0), epoch)
    gather_values(words, u32.shape(words)[0] * 0, RUN, STRIDE, epoch, gathered, thread)
    for i in u32.range(thread, COUNT, THREADS):
        out[block, i] = gathered[i]


def test_every_block_gathers_what_all_published_in_an_epoch():
    words, out = cuda.to_device(np.zeros(140, np.uint64)), cuda.to_device(np.full((3, COUNT), np.nan, np.float32))
    for epoch in (1, 2, 2**32 - 1):
        publish_and_gather[3, THREADS](words, np.uint32(epoch), np.uint32(COUNT), out)
        np.testing.assert_array_equal(out.copy_to_host(), np.tile(np.arange(COUNT) / 2, (3, 1)))
    between = words.copy_to_host().reshape(-1, STRIDE)[:, RUN:]
    assert not between.any()  # the words between the runs


@pytest.mark.cpu_device
def test_a_word_that_no_block_publishes_is_a_deadlock():
    words, out = cuda.to_device(np.zeros(140, np.uint64)), cuda.to_device(np.zeros((2, COUNT), np.float32))
    with pytest.raises(DeadlockError, match=r"spins at line \d+.*No thread is left"):
        publish_and_gather[2, THREADS](words, np.uint32(1), np.uint32(COUNT - 1), out)


# --- The launcher ----------------------------------------------------------------------------------------------------


def arguments(seed=0):
    """Of one layer of random weights, by the names of persistent_gpt2's parameters."""
    rng, C = np.random.default_rng(seed), SIZES.hidden
    host = {"weights": 0.2 * rng.standard_normal(SIZES.layer["end"] + 2 * C), "table": rng.standard_normal((11, C)),
            "positions": rng.standard_normal((8, C)), "head": rng.standard_normal((11, C)),
            "cache": rng.standard_normal((1, 8, 2 * C))}
    given = {name: cuda.to_device(values.astype(np.float16)) for name, values in host.items()}
    given |= {name: cuda.to_device(np.array([value], np.int32)) for name, value in (("ids", 3), ("start", 5))}
    return given | {"logits": cuda.to_device(np.full((1, 11), np.nan, np.float32))}


@pytest.fixture(scope="module")
def buffers():
    return Buffers(SIZES, 1)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("weights", np.zeros(64, np.float16), "weights has shape"), ("table", np.zeros((11, 8), np.float16), "table has"),
    ("head", np.zeros((11, 16), np.float32), "head has dtype float32"),
    ("positions", np.zeros((8, 8), np.float16), "positions has shape"), ("ids", np.zeros(2, np.int32), "ids has shape"),
    ("start", np.zeros(1, np.int64), "start has dtype"),
    ("cache", np.zeros((2, 8, 32), np.float16), "cache has shape .2, 8, 32.; it must be .1, tokens, 32."),
    ("logits", np.zeros((1, 12), np.float32), "logits has shape")])
def test_an_argument_that_does_not_fit_is_named(buffers, name, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        persistent_gpt2(buffers, **arguments() | {name: cuda.to_device(value)})


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden": 20}, "n_embd is 20; multiples of 8 up to 1,280"), ({"hidden": 1288}, "n_embd is 1288"),
    ({"heads": 4}, "heads have 4 numbers; multiples of 8 up to 128")])
def test_sizes_that_it_cannot_compute(change, message):
    assert message in replace(SIZES, **change).problem()


@pytest.mark.sweep(every=True)
def test_times_of_phases_and_the_same_bits_without_them(buffers):
    """A block's times never go back; no block begins a phase that needs all results of another before all blocks have
    begun that one."""
    given = arguments()
    persistent_gpt2(buffers, **given)
    logits = given["logits"].copy_to_host()
    timed = Buffers(replace(SIZES, timed=True), 1)
    persistent_gpt2(timed, **given)
    np.testing.assert_array_equal(given["logits"].copy_to_host(), logits)
    times = timed.times.copy_to_host().astype(np.int64).reshape(timed.blocks, -1)
    assert times.shape[1] == 12 and (np.diff(times, axis=1) >= 0).all() and times.min() > 0
    assert (times[:, 4::2].min(axis=0) >= times[:, 2:-2:2].max(axis=0)).all()
