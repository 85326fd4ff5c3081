"""Causal attention of several sequences over pages: every rung against float64 at awkward lengths and contexts, with
NaN and numbers of no page wherever no token is; a prompt in parts as a whole, bit for bit; what is refused, and what it
compiles to."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import gpus, occupancy
from labkit.kernels.agree import agree, allowed_error, differences, is_poison, poison, same_bits
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention import flash_mma
from labkit.kernels.attention import paged_prefill as module
from labkit.kernels.attention.flash_mma import mma_form
from labkit.kernels.attention.paged import paged_decode_reference
from labkit.kernels.attention.paged_prefill import (
    paged_prefill,
    paged_prefill_flash,
    paged_prefill_mma,
    paged_prefill_naive,
    paged_prefill_reference,
)
from labkit.kernels.attention.paged_tiles import make_paged_prefill, make_paged_prefill_mma
from labkit.kernels.attention.pages import LOG2_E, as_matrix
from labkit.kernels.dtypes import float64_of, of_dtype
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT16, FLOAT32
from labkit.kernels.op import uniform
from labkit.kernels.ops.attention_sentences import begins_of
from labkit.kernels.ops.paged_prefill import PAGED_PREFILL, PAGED_PREFILL_BF16, tolerance_prefill
from labkit.kernels.ops.pages import paged_inputs
from tests.compiled import ptx_of, resources_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

F32, BF16, F16 = FLOAT32.dtype, BFLOAT16.dtype, FLOAT16.dtype
RUNGS = [(paged_prefill_naive, F32), (paged_prefill_naive, BF16), (paged_prefill_flash, F32),
         (paged_prefill_mma, BF16), (paged_prefill_mma, F16), (paged_prefill_naive, F16)]
every_rung = pytest.mark.parametrize(("launch", "dtype"), [
    pytest.param(launch, dtype, id=f"{launch.__name__}-{dtype.name}",
                 marks=() if launch is paged_prefill_naive else pytest.mark.sweep) for launch, dtype in RUNGS])
SHAPES = ((32, 1), (64, 4), (80, 3), (96, 7), (128, 4))  # numbers of a head, query heads that share keys and values
LENGTHS, CONTEXTS = (17, 0, 1, 70, 1, 15, 128), (17, 40, 1, 70, 300, 31, 1003)  # prompts, their ends, single tokens
LONG = 130  # an upper bound for which one form of a kernel serves every batch here: a CPU compiles each for seconds


def inputs_of(lengths, contexts, size: int, ratio: int, dtype, kv_heads: int = 2, seed: int = 0, longest=LONG):
    """In rows with a gap behind each sequence, whose numbers are NaN."""
    rng = np.random.default_rng(seed)
    keys, values, table = paged_inputs(rng, contexts, kv_heads, size, dtype)
    begins = begins_of(np.array(lengths) + 1)
    rows = max(int(begins[-1] + lengths[-1] + 1), longest)
    q = np.full((rows, kv_heads * ratio, size), np.nan, np.float32)
    for begin, length in zip(begins, lengths, strict=True):
        q[begin : begin + length] = 2 * uniform(rng, length, kv_heads * ratio, size)
    return (of_dtype(q, dtype), keys, values, table, begins, np.array(lengths, np.int32), np.array(contexts, np.int32),
            1 / math.sqrt(size), longest)


def run(launch, inputs):
    q, *arrays, scale, longest = inputs
    out = cuda.to_device(poison(q.shape, q.dtype))
    launch(cuda.to_device(q), *(cuda.to_device(each) for each in arrays), out, scale, longest)
    return out.copy_to_host()


def check(launch, inputs):
    """Right in the sequences' rows, and nothing written elsewhere."""
    tolerance = functools.partial(tolerance_prefill, element=ELEMENTS[inputs[0].dtype])
    op, out = replace(PAGED_PREFILL, tolerance=tolerance, dtype=inputs[0].dtype), run(launch, inputs)
    truth = op.reference(*inputs)
    owned = ~np.isnan(truth)
    found = differences(out[owned], truth[owned], allowed_error(op, None, inputs)[owned])
    assert not found.wrong.any(), (launch.__name__, found.error, found.units)
    assert is_poison(out[~owned]).all(), "rows of no sequence were written"
    return out


@every_rung
def test_prompts_their_ends_and_single_tokens_in_one_launch(launch, dtype):
    for size, ratio in SHAPES[:1] if launch is paged_prefill_naive else SHAPES:
        check(launch, inputs_of(LENGTHS, CONTEXTS, size, ratio, dtype))


@pytest.mark.parametrize(("launch", "dtype"), [
    (paged_prefill_flash, F32), (paged_prefill_mma, BF16),
    pytest.param(paged_prefill_mma, F16, marks=pytest.mark.sweep)])
def test_a_prompt_of_seventeen_tokens(launch, dtype):
    """The rungs that a GPU uses, at their smallest: a second page of keys, and a query that sees all of them."""
    if launch.missing:
        pytest.skip(f"needs a GPU: {launch.missing}")
    check(launch, inputs_of((17,), (17,), 32, 1, dtype, kv_heads=1, longest=17))


@every_rung
def test_a_prompt_in_parts_has_the_same_bits_as_whole(launch, dtype):
    """And so it has beside others: the parts stand between other sequences."""
    whole = inputs_of((100,), (100,), 32, 4, dtype)
    q, keys, values, table, _, _, _, scale, _ = whole
    expected = run(launch, whole)[:100]
    other = inputs_of((9, 30), (9, 64), 32, 4, dtype, seed=1)
    for ends in ((1, 100), (16, 17, 100), (50, 64, 65, 100)):
        got, before = [], 0
        for end in ends:
            length = end - before
            rows = np.concatenate([other[0][:9], q[before:end], other[0][10:40], np.zeros((LONG, *q.shape[1:]), dtype)])
            tables = np.full((3, max(table.shape[1], other[3].shape[1])), -1, np.int32)
            tables[0, : other[3].shape[1]] = other[3][0] + len(keys)
            tables[1, : table.shape[1]] = table[0]
            tables[2, : other[3].shape[1]] = other[3][1] + len(keys)
            beside = (rows, np.concatenate([keys, other[1]]), np.concatenate([values, other[2]]), tables,
                      np.array([0, 9, 9 + length], np.int32), np.array([9, length, 30], np.int32),
                      np.array([9, end, 64], np.int32), scale, LONG)
            got.append(run(launch, beside)[9 : 9 + length])
            before = end
        assert same_bits(np.concatenate(got), expected), ends


@every_rung
def test_large_scores(launch, dtype):
    *rest, _, longest = inputs_of((5, 70, 3), (5, 70, 77), 32, 4, dtype, seed=1)
    check(launch, (*rest, 2000.0, longest))


@every_rung
def test_what_cannot_be_computed_whole_is_not_a_number(launch, dtype):
    """A context without pages, or shorter than its rows; a length above `longest`, and one beyond the last row."""
    q, keys, values, table, begins, lengths, contexts, scale, longest = inputs_of((16, 40), (16, 40), 32, 4, dtype)
    keys, values, table = np.zeros_like(keys), np.zeros_like(values), np.zeros_like(table)
    for length, context in ((40, 16 * table.shape[1] + 1), (40, 39), (40, -5), (LONG + 1, LONG + 1), (-1, 5)):
        lengths, contexts = np.array([16, length], np.int32), np.array([16, context], np.int32)
        out = run(launch, (q, keys, values, table, begins, lengths, contexts, scale, longest))
        numbers = float64_of(out)
        assert not numbers[:16].any() and np.isnan(numbers[17:]).all() and not is_poison(out[17:57]).any()


@pytest.mark.sweep
@pytest.mark.parametrize("op", [PAGED_PREFILL, PAGED_PREFILL_BF16], ids=lambda op: op.name)
def test_agree(op):
    assert agree(op, seed=1).passed


@pytest.mark.sweep
@pytest.mark.parametrize(("launch", "dtype"), RUNGS[2:5], ids=lambda one: getattr(one, "__name__", ""))
def test_every_form_gives_the_same_bits(launch, dtype, monkeypatch):
    inputs = inputs_of((1, 16, 17, 64, 65, 129), (1, 50, 17, 100, 65, 129), 32, 2, dtype)
    expected = check(launch, inputs)
    for sms, down in ((2, 4), (50, 2), (10_000, 1)):  # the more SMs, the smaller the tiles of queries
        monkeypatch.setattr(flash_mma, "multiprocessors", lambda sms=sms: sms)
        monkeypatch.setattr(module, "flash_form", lambda *size, down=down: (down, 8))
        assert same_bits(run(launch, inputs), expected), sms


def test_the_rung_to_use_and_a_single_token_is_what_decoding_gives():
    for dtype in (F32, BF16, F16):
        inputs = inputs_of((1, 1), (20, 3), 32, 1, dtype)
        q, keys, values, table, begins, lengths, contexts, scale, longest = inputs
        out = run(paged_prefill, inputs)[begins]
        expected = paged_decode_reference(q[begins], keys, values, table, contexts, scale)
        np.testing.assert_allclose(float64_of(out), expected, atol={F32: 1e-5, BF16: 0.03, F16: 0.004}[dtype])


def test_the_reference_leaves_rows_of_no_sequence_alone():
    out = paged_prefill_reference(*inputs_of((2, 0, 3), (5, 4, 3), 4, 2, F32, longest=3))
    assert np.isnan(out[[2, 3, 7]]).all() and not np.isnan(out[[0, 1, 4, 5, 6]]).any()


def test_what_is_refused():
    q, keys, values, table, begins, lengths, contexts, scale, longest = (
        cuda.to_device(each) if isinstance(each, np.ndarray) else each
        for each in inputs_of((5, 20), (5, 20), 32, 2, F32))
    out, few = cuda.device_array(q.shape, F32), cuda.device_array(1, np.int32)
    with pytest.raises(ValueError, match=r"contexts has shape \(1,\); it must be \(2,\)"):
        paged_prefill(q, keys, values, table, begins, lengths, few, out, scale, longest)
    with pytest.raises(ValueError, match=r"page_table has shape \(2, 3\); it must be \(1, 3\)"):
        paged_prefill(q, keys, values, table, few, few, few, out, scale, longest)
    with pytest.raises(ValueError, match="longest is 0; it must be a whole number from 1 to the 130 rows of q"):
        paged_prefill(q, keys, values, table, begins, lengths, contexts, out, scale, 0)
    with pytest.raises(ValueError, match="on tensor cores uint16, which holds bfloat16, and float16"):
        paged_prefill_mma(q, keys, values, table, begins, lengths, contexts, out, scale, longest)


# --- How it is launched, and what it compiles to ----------------------------------------------------------------------


def test_the_form_suits_the_sequences_and_leaves_no_sm_without_a_block(monkeypatch):
    monkeypatch.setattr(flash_mma, "multiprocessors", lambda: 132)
    with gpus.plan_for(gpus.GPUS["h200"]):
        assert mma_form(64, 32, 4096) == (4, 2, 64)
        assert mma_form(64, 32, 300) == (4, 1, 64)
        assert mma_form(64, 256, 1) == (1, 1, 64)
        assert mma_form(128, 32, 4096) == (4, 1, 64)


@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize(("kernel", "dtype"), [(make_paged_prefill(32, 1), F32),
                                               (make_paged_prefill_mma(32, 2, 1), BF16)], ids=["float32", "mma"])
def test_no_race_and_no_bank_conflict(kernel, dtype):
    q, keys, values, table, begins, lengths, contexts, scale, longest = (
        cuda.to_device(each) if isinstance(each, np.ndarray) else each
        for each in inputs_of((33, 3), (33, 70), 32, 2, dtype, kv_heads=1, longest=33))
    out = cuda.device_array((q.shape[0], 64), dtype)
    arguments = (q.reshape(q.shape[0], 64), as_matrix(keys), as_matrix(values), table, begins, lengths, contexts, out,
                 np.float32(scale * LOG2_E), np.uint32(longest), np.uint32(1))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    report = observe(kernel[(2, -(-33 // kernel.rows), 2), kernel.threads, 0, kernel.shared_bytes], *arguments)
    assert report.ok, str(report)
    assert report.counts.get("bank_conflicts", 0) == 0, str(report)


@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "dtype", "blocks"), [
    (make_paged_prefill_mma(64, 4, 2), "uint16", 2), (make_paged_prefill_mma(64, 1, 1), "uint16", 6),
    (make_paged_prefill_mma(128, 4, 1), "uint16", 2), (make_paged_prefill(64, 4), "float32", 3),
    (make_paged_prefill_mma(64, 4, 2, element=FLOAT16), "float16", 2)])
def test_scores_and_accumulators_stay_in_registers(kernel, dtype, blocks):
    matrix = f"{dtype} 2"
    taken = resources_of(ptx_of(kernel, matrix, matrix, matrix, "int32 2", *["int32 1"] * 3, matrix, "float32",
                                "uint32", "uint32"))
    assert occupancy.blocks(occupancy.H200, kernel.threads, taken["registers"], kernel.shared_bytes) >= blocks
