"""Attention over sentences: every form against float64, at any padding and packing, with NaN wherever no sentence is;
the same bits in any batch; what is refused, and what it compiles to."""

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import gpus, occupancy
from labkit.kernels.agree import agree, is_poison, poison, same_bits
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention import flash, flash_mma
from labkit.kernels.attention import sentences_flash as module
from labkit.kernels.attention.flash import scale_for_powers_of_two
from labkit.kernels.attention.sentences import attention_sentences, attention_sentences_reference
from labkit.kernels.attention.sentences_flash import (
    attention_sentences_flash,
    attention_sentences_flash_half,
    make_sentences_flash,
    make_sentences_flash_half,
)
from labkit.kernels.attention.sentences_unfused import (
    attention_sentences_three_launches,
    attention_sentences_three_launches_half,
    scores_shape,
)
from labkit.kernels.attention.whole_matrix import attention_sentences_whole_matrix
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention_sentences import ATTENTION_SENTENCES, ATTENTION_SENTENCES_HALF, begins_of
from labkit.measure.ops import op as registered
from tests import spills
from tests.compiled import ptx_of, resources_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

LAUNCHERS = (attention_sentences_three_launches, attention_sentences_flash, attention_sentences_three_launches_half,
             attention_sentences_whole_matrix, attention_sentences_flash_half)
OP_OF = {**dict.fromkeys(LAUNCHERS[:2], ATTENTION_SENTENCES), **dict.fromkeys(LAUNCHERS[2:], ATTENTION_SENTENCES_HALF)}
AWKWARD = (0, 1, 15, 16, 17, 33, 127, 128)
LONG = 130  # an upper bound for which one form of a kernel serves every batch here: a CPU compiles each for seconds
every_launcher = pytest.mark.parametrize("launch", [
    pytest.param(one, id=one.__name__, marks=[] if one is attention_sentences_flash_half else pytest.mark.sweep)
    for one in LAUNCHERS])


def rung_of(launch):
    """The rung of the operation that the launcher is."""
    op = OP_OF[launch]
    form = launch.__name__.removesuffix("_half").removeprefix("attention_sentences")
    return op, op.rung(op.name + form)


def sentence(length: int, width: int, dtype):
    """The same rows each time, whatever batch they come into."""
    return (2 * uniform(np.random.default_rng(length), length, 3 * width)).astype(dtype)


def run(launch, lengths, begins, rows: int, heads: int, size: int, longest=None):
    """(out, the host's arguments) of sentences that lie so in `rows` rows; all other rows are NaN, and are poison in
    out before."""
    dtype, width = OP_OF[launch].dtype, heads * size
    qkv = np.full((rows, 3 * width), np.nan, dtype)
    lengths, begins = np.array(lengths, np.int32), np.array(begins, np.int32)
    for begin, length in zip(begins, lengths, strict=True):
        qkv[begin : begin + length] = sentence(length, width, dtype)
    longest = longest or max(lengths)
    out = cuda.to_device(poison((rows, width), dtype))
    launch(cuda.to_device(qkv), heads, cuda.to_device(begins), cuda.to_device(lengths), int(longest), out)
    return out.copy_to_host(), (qkv, heads, begins, lengths, longest)


def check(launch, lengths, begins, rows, heads=1, size=32, longest=None):
    """Right in the sentences' rows, and nothing written elsewhere."""
    op, rung = rung_of(launch)
    out, arguments = run(launch, lengths, begins, rows, heads, size, longest)
    allowed = (rung.tolerance or op.tolerance)(arguments[0].astype(np.float64), *arguments[1:])
    truth = attention_sentences_reference(*arguments)
    owned = ~np.isnan(truth)
    assert (np.abs(out[owned] - truth[owned]) <= allowed[owned]).all(), (launch.__name__, lengths, heads, size)
    assert same_bits(out[~owned], poison(out[~owned].shape, out.dtype)), "rows of no sentence were written"
    return out


@every_launcher
def test_agrees(launch):
    op, rung = rung_of(launch)
    assert agree(op, [rung], sizes=op.awkward[-1:], seed=1).passed


@every_launcher
def test_a_sentence_has_the_same_bits_alone_padded_and_packed(launch):
    lengths, heads, size = (5, 0, 16, 128), 2, 32
    packed = check(launch, lengths, begins_of(lengths), sum(lengths) + 3, heads, size, LONG)
    padded = check(launch, lengths, LONG * np.arange(4), 4 * LONG, heads, size, LONG)
    backwards = (150, 149, 131, 0)  # the last sentence lies first
    scattered = check(launch, lengths, backwards, 156, heads, size, LONG)
    for number, (length, begin) in enumerate(zip(lengths, begins_of(lengths), strict=True)):
        if length:
            alone, _ = run(launch, [length], [0], LONG, heads, size, LONG)
            for batch, first in ((packed, begin), (padded, LONG * number), (scattered, backwards[number])):
                assert same_bits(batch[first : first + length], alone[:length]), (length, first)


@pytest.mark.sweep
@pytest.mark.parametrize("op", [ATTENTION_SENTENCES, ATTENTION_SENTENCES_HALF], ids=lambda one: one.name)
def test_agree(op):
    assert agree(op, seed=1).passed
    assert registered(op.name) is op


@pytest.mark.sweep
@every_launcher
def test_awkward_lengths_at_any_padding_and_in_other_heads(launch):
    for heads, size in ((1, 32), (3, 16), (1, 64), (2, 80), (1, 128)):
        check(launch, AWKWARD, begins_of(AWKWARD), sum(AWKWARD) + 1, heads, size)
        check(launch, AWKWARD, 144 * np.arange(8), 8 * 144, heads, size, longest=144)
    check(launch, (200, 64, 65, 257), begins_of((200, 64, 65, 257)), 600)  # more tiles than are kept at once


@pytest.mark.sweep
@every_launcher
def test_every_form_gives_the_same_bits(launch, monkeypatch):
    lengths = (1, 15, 16, 17, 33, 48, 50, 64, 65, 127, 128, 200)
    alone = {length: run(launch, [length], [0], length, 4, 32)[0] for length in lengths}
    for sms in (1, 2, 50, 200, 10_000):  # the more SMs, the smaller the tiles of queries
        for one in (module, flash, flash_mma):
            monkeypatch.setattr(one, "multiprocessors", lambda sms=sms: sms)
        for longest in lengths:
            batch = [length for length in lengths if length <= longest]
            out, _ = run(launch, batch, begins_of(batch), sum(batch), 4, 32)
            for length, begin in zip(batch, begins_of(batch), strict=True):
                assert same_bits(out[begin : begin + length], alone[length]), (sms, longest, length)


@every_launcher
def test_what_cannot_be_computed_whole_is_not_a_number(launch):
    """A length above `longest`, one that reaches beyond the last row, and one below 0; the sentences beside them are
    what they are elsewhere."""
    dtype, good, rows = OP_OF[launch].dtype, 16, LONG + 30
    expected, _ = run(launch, [good], [0], LONG, 2, 32, LONG)
    qkv = np.zeros((rows, 3 * 64), dtype)
    qkv[:good] = sentence(good, 64, dtype)
    for begin, length, written in ((16, LONG + 1, LONG), (rows - 5, 6, 5), (20, -1, LONG), (-5, 3, 0), (rows, 2, 0)):
        out = cuda.to_device(poison((rows, 64), dtype))
        launch(cuda.to_device(qkv), 2, cuda.to_device(np.array([0, begin], np.int32)),
               cuda.to_device(np.array([good, length], np.int32)), LONG, out)
        got = out.copy_to_host()
        assert same_bits(got[:good], expected[:good])
        assert np.isnan(got[good:]).all(), (begin, length)
        assert (~is_poison(got[good:])).any(axis=1).sum() == written, (begin, length)


@pytest.mark.sweep
def test_the_rung_to_use_goes_by_dtype():
    for launch in (attention_sentences_flash, attention_sentences_flash_half):
        expected, (qkv, *rest) = run(launch, [16], [0], 16, 4, 32)
        heads, begins, lengths, longest = rest
        out = cuda.to_device(poison((16, 128), qkv.dtype))
        attention_sentences(cuda.to_device(qkv), heads, cuda.to_device(begins), cuda.to_device(lengths), longest, out)
        assert same_bits(out.copy_to_host(), expected)


def test_large_float16_do_not_overflow_in_tiles():
    """Scores of 56,569, and of 320,000 before they are scaled: no float16 is so large."""
    qkv = cuda.to_device(np.full((70, 3 * 64), 100, np.float16))
    begins, lengths = (cuda.to_device(np.array([n], np.int32)) for n in (0, 70))
    out = cuda.device_array((70, 64), np.float16)
    attention_sentences_flash_half(qkv, 2, begins, lengths, 70, out)
    np.testing.assert_array_equal(out.copy_to_host(), 100)


def test_what_is_refused():
    qkv, out = cuda.device_array((40, 3 * 64), np.float16), cuda.device_array((40, 64), np.float16)
    begins = lengths = cuda.to_device(np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="longest is 41; it must be a whole number from 1 to the 40 rows of qkv"):
        attention_sentences(qkv, 2, begins, lengths, 41, out)
    with pytest.raises(ValueError, match="longest is 0"):
        attention_sentences(qkv, 2, begins, lengths, 0, out)
    with pytest.raises(ValueError, match=r"begins has shape \(1,\); it must be \(2,\)"):
        attention_sentences(qkv, 2, cuda.device_array(1, np.int32), lengths, 8, out)
    with pytest.raises(TypeError, match="lengths has dtype int64; only int32 is allowed"):
        attention_sentences(qkv, 2, begins, cuda.device_array(2, np.int64), 8, out)
    with pytest.raises(ValueError, match="a head has 8 numbers; it must be a multiple of 16, at most 128"):
        attention_sentences(qkv, 8, begins, lengths, 8, out)
    with pytest.raises(ValueError, match=r"scores has shape \(4, 16, 8\); it must be \(4, 16, 16\)"):
        attention_sentences_three_launches_half(qkv, 2, begins, lengths, 8, out,
                                                scores=cuda.device_array((4, 16, 8), np.float16))
    assert scores_shape(2, 2, 8) == (4, 16, 16)
    long = cuda.device_array((1025, 96), np.float16), cuda.device_array((1025, 32), np.float16)
    with pytest.raises(ValueError, match="longest is 1,025; in three launches at most 1,024 tokens are allowed"):
        attention_sentences_three_launches_half(long[0], 1, begins, lengths, 1025, long[1])
    refused = pytest.raises(ValueError, match="take 248,064 bytes of shared memory, and a block can have 232,448, 288 ")
    with gpus.plan_for(gpus.GPUS["h200"]), refused:
        attention_sentences_whole_matrix(long[0], 1, begins, lengths, 289, long[1])


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.cpu_device
@pytest.mark.parametrize(("kernel", "lengths", "dtype"), [
    (make_sentences_flash_half(32, 1, 1, 16, 1, 4), (9, 16), np.float16),
    (make_sentences_flash_half(32, 4, 2, 64, 2, 1), (150,), np.float16),
    (make_sentences_flash(32, 2), (70,), np.float32)], ids=["short", "long", "float32"])
def test_no_race_and_no_bank_conflict(kernel, lengths, dtype):
    lengths = np.array(lengths, np.int32)
    heads = kernel.teams
    qkv = cuda.to_device(uniform(np.random.default_rng(0), sum(lengths), 3 * 32 * heads).astype(dtype))
    out = cuda.device_array((sum(lengths), 32 * heads), dtype)
    arguments = (qkv, cuda.to_device(begins_of(lengths)), cuda.to_device(lengths), out, np.uint32(max(lengths)),
                 scale_for_powers_of_two(32))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    grid = (1, -(-max(lengths) // kernel.rows), len(lengths))
    report = observe(kernel[grid, kernel.threads, 0, kernel.shared_bytes], *arguments)
    assert report.ok, str(report)
    assert report.counts.get("bank_conflicts", 0) == 0, str(report)


# --- How it is launched, and what it compiles to ----------------------------------------------------------------------


def test_the_form_suits_the_sentences_and_leaves_no_sm_without_a_block():
    form = module.sentences_half_form
    with gpus.plan_for(gpus.GPUS["h200"]):
        assert form(32, 12, 64, 128) == (4, 2, 64, 2, 1)  # keys and values are loaded once
        assert form(32, 12, 1, 128) == (1, 1, 64, 2, 1)
        assert form(32, 12, 64, 16) == (1, 1, 16, 1, 4)
        assert form(32, 12, 512, 16) == (1, 1, 16, 1, 4)
        assert form(32, 12, 1, 16) == (1, 1, 16, 1, 1)
        assert form(32, 12, 64, 17) == (2, 1, 32, 1, 1)
        assert form(64, 12, 64, 40) == (4, 1, 48, 1, 1)
        assert form(128, 12, 64, 128) == (4, 1, 64, 2, 1)


LONG_FORM = make_sentences_flash_half(32, 4, 2, 64, 2, 1)


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize(("kernel", "dtype", "blocks"), [
    (LONG_FORM, "float16", 3),  # two rounds of 396 hold 64 sentences of 12 heads
    (make_sentences_flash_half(32, 1, 1, 16, 1, 4), "float16", 4),
    (make_sentences_flash_half(128, 4, 1, 64, 2, 1), "float16", 2),
    (make_sentences_flash(32, 4), "float32", 3)], ids=["long", "short", "wide", "float32"])
def test_scores_and_accumulators_stay_in_registers(kernel, dtype, blocks):
    taken = resources_of(ptx_of(kernel, f"{dtype} 2", "int32 1", "int32 1", f"{dtype} 2", "uint32", "float32"),
                         spills.allowed(kernel.__name__, (9, 0)) if kernel is LONG_FORM else 0)
    assert occupancy.blocks(occupancy.H200, kernel.threads, taken["registers"], kernel.shared_bytes) >= blocks
