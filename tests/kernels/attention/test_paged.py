"""Attention of one token over pages: every rung against float64 at awkward lengths, with NaN and numbers of no page
wherever no token is; the same bits in any batch; joined parts; what is refused, and what it compiles to."""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, observe
from labkit.device import gpus, occupancy
from labkit.kernels.agree import agree, allowed_error, compare, poison, same_bits, to_device
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention.paged import (
    _launch_decode,
    blocks_of_sequence,
    decode_parts,
    paged_decode,
    paged_decode_mma,
    paged_decode_naive,
    paged_decode_one_block,
    paged_decode_reference,
    paged_decode_split,
)
from labkit.kernels.attention.paged_split import (
    MOST,
    MOST_MMA,
    SPLITS,
    blocks_of_group,
    find_parts,
    make_paged_decode,
    make_paged_decode_mma,
    split_range,
)
from labkit.kernels.attention.pages import LOG2_E, PAGE, as_matrix, gather, page_table_of, pages_for, place
from labkit.kernels.dtypes import float64_of, of_dtype
from labkit.kernels.elements import BFLOAT16, ELEMENTS, FLOAT16, FLOAT32
from labkit.kernels.op import uniform
from labkit.kernels.ops.paged_decode import PAGED_DECODE, PAGED_DECODE_BF16, tolerance_decode
from labkit.kernels.ops.pages import paged_inputs
from tests import spills
from tests.compiled import ptx_of, resources_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

AWKWARD = (0, 1, 15, 16, 17, 128, 129, 1003)
F32, BF16, F16 = FLOAT32.dtype, BFLOAT16.dtype, FLOAT16.dtype
RUNGS = [(paged_decode_naive, F32), (paged_decode_naive, BF16), (paged_decode_one_block, F32),
         (paged_decode_one_block, BF16), (paged_decode_split, F32), (paged_decode_split, BF16),
         (paged_decode_mma, BF16), (paged_decode_naive, F16), (paged_decode_split, F16), (paged_decode_mma, F16)]
# Each of these takes minutes to compile; the others are slow.
SWEPT = [(paged_decode_split, F32), (paged_decode_mma, BF16), (paged_decode_mma, F16)]
every_rung = pytest.mark.parametrize(("launch", "dtype"), [
    pytest.param(launch, dtype, id=f"{launch.__name__}-{dtype.name}",
                 marks=() if launch is paged_decode_naive else
                 pytest.mark.sweep if (launch, dtype) in SWEPT else pytest.mark.slow) for launch, dtype in RUNGS])
SHAPES = ((32, 1), (64, 4), (80, 3), (96, 7), (128, 4))  # numbers of a head, query heads that share keys and values


def inputs_of(contexts, size: int, ratio: int, dtype, kv_heads: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    keys, values, table = paged_inputs(rng, contexts, kv_heads, size, dtype)
    q = 2 * uniform(rng, len(contexts), kv_heads * ratio, size)
    return of_dtype(q, dtype), keys, values, table, np.array(contexts, np.int32), 1 / math.sqrt(size)


def run(launch, inputs, parts=None):
    q, *arrays, scale = inputs
    out = cuda.to_device(poison(q.shape, q.dtype))
    launch(cuda.to_device(q), *(cuda.to_device(each) for each in arrays), out, scale, parts)
    return out.copy_to_host()


def check(launch, inputs, parts=None):
    op, out = PAGED_DECODE, run(launch, inputs, parts)
    tolerance = functools.partial(tolerance_decode, element=ELEMENTS[inputs[0].dtype])
    allowed = allowed_error(replace(op, tolerance=tolerance, dtype=inputs[0].dtype), None, inputs)
    assert not (problem := compare(out, op.reference(*inputs), allowed).problem), problem
    return out


def alone(inputs, s: int):
    """Sequence s in a cache and a table of its own: its pages lie elsewhere, in another order."""
    q, keys, values, table, lengths, scale = inputs
    count = pages_for(lengths[s])
    own = page_table_of([range(count + 2, 2, -1)], max_pages=count + 5, fill=2**30)
    caches = []
    for cache in (keys, values):
        one = np.full((count + 4, *cache.shape[1:]), 0x7FC1 if cache.dtype == BF16 else np.nan, cache.dtype)
        place(one, own[0], gather(cache, table[s], lengths[s]))
        caches.append(one)
    return q[s : s + 1], *caches, own, lengths[s : s + 1], scale


@every_rung
def test_awkward_lengths(launch, dtype):
    for size, ratio in SHAPES[:1] if launch is paged_decode_naive else SHAPES:
        out = check(launch, inputs_of(AWKWARD, size, ratio, dtype))
        assert not out[0].any()  # an empty slot


@pytest.mark.parametrize(("launch", "dtype"), [(paged_decode_split, F32), (paged_decode_mma, BF16),
                                               pytest.param(paged_decode_mma, F16, marks=pytest.mark.sweep)])
def test_no_key_beyond_the_last_counts(launch, dtype):
    """The rungs that a GPU uses, at their smallest."""
    if launch.missing:
        pytest.skip(f"needs a GPU: {launch.missing}")
    check(launch, inputs_of((1, 17), 32, 1, dtype, kv_heads=1))


@every_rung
def test_a_sequence_has_the_same_bits_alone_and_in_any_batch(launch, dtype):
    inputs = inputs_of((17, 0, 300, 1003, 1), 32, 4, dtype)
    batch = run(launch, inputs)
    for s in range(5):
        assert same_bits(run(launch, alone(inputs, s))[0], batch[s]), inputs[4][s]


@every_rung
def test_large_scores_and_equal_ones(launch, dtype):
    """Scores up to 40,000 apart; then all the same, where each token counts as much as any other."""
    q, keys, values, table, lengths, scale = inputs_of((5, 200, 77), 32, 4, dtype, seed=1)
    check(launch, (q, keys, values, table, lengths, 2000.0))
    out = run(launch, (np.zeros_like(q), keys, values, table, lengths, scale))
    for s, tokens in enumerate(lengths):
        rows = gather(values, table[s], tokens)
        mean = float64_of(rows).mean(axis=0).repeat(4, axis=0)
        np.testing.assert_allclose(float64_of(out[s]), mean, atol={F32: 1e-6, BF16: 0.02, F16: 0.0025}[dtype])


@every_rung
def test_a_length_without_pages_is_not_a_number(launch, dtype):
    q, keys, values, table, lengths, scale = inputs_of((20, 16, 33), 32, 4, dtype)
    keys, values = (np.zeros_like(each) for each in (keys, values))
    lengths, table = np.array([20, table.shape[1] * PAGE + 1, -1], np.int32), np.zeros_like(table)
    out = run(launch, (q, keys, values, table, lengths, scale))
    numbers = float64_of(out)
    assert not numbers[0].any() and np.isnan(numbers[1:]).all()


@pytest.mark.sweep
@pytest.mark.parametrize("op", [PAGED_DECODE, PAGED_DECODE_BF16], ids=lambda op: op.name)
def test_agree(op):
    assert agree(op, seed=1).passed


@pytest.mark.sweep
@pytest.mark.parametrize(("launch", "dtype"), [(paged_decode_split, F32), (paged_decode_mma, BF16)],
                         ids=lambda one: getattr(one, "__name__", ""))
def test_however_a_sequence_is_split_the_parts_join(launch, dtype):
    """Online softmax: lengths at random give parts of every size; values spread over many orders of magnitude, so that
    some part has the maximum and most have next to nothing."""
    rng = np.random.default_rng(3)
    for seed in range(4):
        contexts = rng.integers(1, [40, 200, 1500, 3000, 260], 5)
        q, *rest, scale = inputs_of(contexts, 32, 4, dtype, seed=seed)
        check(launch, (q, *rest, scale * float(10.0 ** rng.uniform(-2, 2))))


@pytest.mark.sweep
@pytest.mark.parametrize(("launch", "dtype", "ratio"), [(paged_decode_split, F32, 11), (paged_decode_mma, BF16, 17)])
def test_more_query_heads_than_a_block_has(launch, dtype, ratio):
    """A second block takes the rest, which is one head fewer."""
    check(launch, inputs_of((5, 140), 32, ratio, dtype), decode_parts(2, 2 * ratio, 32))


@pytest.mark.sweep
@pytest.mark.parametrize(("launch", "dtype"), [(paged_decode_split, F32), (paged_decode_mma, BF16)])
def test_parts_serve_one_launch_after_the_other(launch, dtype):
    parts = decode_parts(6, 8, 32)
    for contexts in ((300, 17, 1003), (129, 2000, 5, 0, 64, 1), (300, 17, 1003)):
        check(launch, inputs_of(contexts, 32, 4, dtype), parts)
        assert not parts.arrived.copy_to_host().any()
    with pytest.raises(ValueError, match="parts are too small for 7 sequences of 8 heads of 32 numbers"):
        run(launch, inputs_of((1,) * 7, 32, 4, dtype), parts)


def test_the_rung_to_use_goes_by_device_and_dtype():
    for dtype in (F32, BF16, F16):
        inputs = inputs_of((20, 3), 32, 1, dtype)
        check(functools.partial(paged_decode), inputs, decode_parts(2, 2, 32, dtype))


def test_how_many_parts_a_sequence_has_depends_on_its_length_alone():
    @cuda.jit
    def ask_kernel(tokens, found):
        block = cuda.blockIdx.x
        pages, share, parts = find_parts(np.uint32(tokens), SPLITS)
        first, last, blocks = split_range(parts, np.uint32(block), np.uint32(cuda.gridDim.x))
        found[block, 0], found[block, 1], found[block, 2] = pages, share, parts
        found[block, 3], found[block, 4], found[block, 5] = first, last, blocks

    for tokens in (1, 128, 129, 1000, 1024, 2048, 2049, 4096, 100_000):
        for grid in (1, 2, 3, SPLITS):
            found = cuda.device_array((grid, 6), np.int32)
            ask_kernel[grid, 1](tokens, found)
            pages, share, parts, first, last, blocks = found.copy_to_host().T
            assert (pages == pages_for(tokens)).all() and (share == share[0]).all() and (parts == parts[0]).all()
            assert share[0] % 4 == 0 and share[0] >= 8 and 1 <= parts[0] <= SPLITS
            assert (parts[0] - 1) * share[0] < pages[0] <= parts[0] * share[0]
            taken = [part for a, b in zip(first, last, strict=True) for part in range(a, b)]
            assert taken == list(range(parts[0]))  # every part once
            assert (last > first).sum() == blocks[0]


@pytest.mark.sweep
@pytest.mark.parametrize(("launcher", "dtype"), [("split", F32), pytest.param("split", BF16, marks=pytest.mark.sweep),
                                                 pytest.param("mma", BF16, marks=pytest.mark.sweep)])
def test_a_result_has_the_same_bits_however_many_blocks_share_a_sequence(launcher, dtype):
    factory, most = (make_paged_decode_mma, MOST_MMA) if launcher == "mma" else (make_paged_decode, MOST)
    q, keys, values, table, lengths, scale = to_device(inputs_of((420, 130, 31), 32, 2, dtype, kv_heads=1))
    found = []
    for grid_x in (1, 2, 3, SPLITS):
        out = cuda.to_device(poison(q.shape, dtype))
        _launch_decode(factory, most, SPLITS, (q, keys, values, table, lengths, out, scale), None, 0, grid_x)
        found.append(out.copy_to_host())
        np.testing.assert_array_equal(found[0], found[-1])


def test_few_sequences_are_shared_among_blocks(monkeypatch):
    monkeypatch.setattr(gpus, "sm_count", lambda: 132)
    assert [blocks_of_sequence(8 * count, 256) for count in (1, 2, 8, 16, 17, 32, 256)] == [16, 16, 4, 2, 1, 1, 1]
    assert [blocks_of_sequence(8 * count, 256, 4) for count in (8, 16, 17, 32, 33)] == [8, 4, 3, 2, 2]
    assert blocks_of_sequence(8, 64) == 8 and blocks_of_sequence(8, 1) == 1


def test_query_heads_are_shared_out_in_equal_parts():
    assert [blocks_of_group(group, 8) for group in (1, 7, 8, 9, 16, 17, 71)] == [
        (1, 1), (1, 7), (1, 8), (2, 5), (2, 8), (3, 6), (9, 8)]


def test_what_is_refused():
    q, keys, values, table, lengths, scale = to_device(inputs_of((5, 20), 32, 2, F32))
    out, parts = cuda.device_array(q.shape, F32), decode_parts(2, 4, 32)
    with pytest.raises(ValueError, match=r"lengths has shape \(1,\); it must be \(2,\)"):
        paged_decode(q, keys, values, table, cuda.device_array(1, np.int32), out, scale, parts)
    with pytest.raises(ValueError, match=r"page_table has shape \(3, 2\); it must be \(2, 2\)"):
        paged_decode(q, keys, values, cuda.device_array((3, 2), np.int32), lengths, out, scale, parts)
    with pytest.raises(ValueError, match="on tensor cores uint16, which holds bfloat16, and float16"):
        paged_decode_mma(q, keys, values, table, lengths, out, scale, parts)


def test_the_reference_of_an_empty_slot_is_zeros():
    out = paged_decode_reference(*inputs_of((0, 3), 4, 2, F32))
    assert not out[0].any() and out[1].all()


# --- How it runs, and what it compiles to -----------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.cpu_device
@pytest.mark.parametrize(("kernel", "dtype"), [(make_paged_decode(32, 2, FLOAT32, SPLITS), F32),
                                               (make_paged_decode_mma(32, 2), BF16)], ids=["split", "mma"])
def test_no_race(kernel, dtype):
    q, keys, values, table, lengths, scale = to_device(inputs_of((140, 20), 32, 2, dtype, kv_heads=1))
    out = cuda.device_array(q.shape, dtype)
    arguments = (as_matrix(q), as_matrix(keys), as_matrix(values), table, lengths, as_matrix(out),
                 np.float32(scale * LOG2_E), np.uint32(2), np.uint32(1), *decode_parts(2, 2, 32))
    dynamic_shared(kernel, kernel.shared_bytes, *arguments)
    report = observe(kernel[(2, 1, 2), kernel.threads, 0, kernel.shared_bytes], *arguments)
    assert report.ok, str(report)


SIXTEEN_HEADS = make_paged_decode_mma(64, 16)


@pytest.mark.sweep
@pytest.mark.parametrize(("kernel", "dtype", "blocks"), [
    (make_paged_decode(64, 4, FLOAT32, SPLITS), "float32", 4),
    (make_paged_decode(64, 8, BFLOAT16, SPLITS), "uint16", 2), (make_paged_decode_mma(64, 4), "uint16", 4),
    (SIXTEEN_HEADS, "uint16", 4), (make_paged_decode_mma(128, 8), "uint16", 2),
    (make_paged_decode_mma(64, 4, element=FLOAT16), "float16", 4)])
def test_what_a_lane_has_stays_in_registers(kernel, dtype, blocks):
    matrix = f"{dtype} 2"
    taken = resources_of(ptx_of(kernel, matrix, matrix, matrix, "int32 2", "int32 1", matrix, "float32", "uint32",
                                "uint32", "float32 1", "uint32 1"),
                         spills.allowed(kernel.__name__, (9, 0)) if kernel is SIXTEEN_HEADS else 0)
    shared = kernel.shared_bytes + taken["shared_bytes"]
    assert occupancy.blocks(occupancy.H200, kernel.threads, taken["registers"], shared) >= blocks
