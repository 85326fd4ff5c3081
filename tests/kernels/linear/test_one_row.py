"""Linear layers of one row: each operation, the cache, what is refused, and what they compile to."""

import re

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.attention.one_query import make_one_query
from labkit.kernels.linear import one_row
from labkit.kernels.linear.next_token import make_row_logits
from labkit.kernels.linear.one_row import GELU, JOIN, NORM, PLAIN, QKV, RESIDUAL, make_one_row, plan
from labkit.kernels.ops.one_row import layer, norm_row
from labkit.kernels.ops.one_row_attended import ONE_ROW_ATTENDED, ONE_ROW_ATTENDED_HALF
from labkit.kernels.ops.one_row_logits import ONE_ROW_LOGITS, ONE_ROW_LOGITS_HALF
from labkit.measure.ops import op as registered
from tests.compiled import numba_cudas_code, ptx_of, resources_of

OPS = [registered(f"one_row_{name}{half}") for half in ("", "_half") for name in ("gelu", "residual", "qkv")]
OPS += [ONE_ROW_ATTENDED, ONE_ROW_LOGITS, ONE_ROW_ATTENDED_HALF, ONE_ROW_LOGITS_HALF]
USED = ("gelu", "residual", "qkv", "attended")  # by GPT-2 on a GPU, for logits: test_next_token.py
FIRST = [(op, op.awkward[0]) for op in OPS]  # the sizes of the small model in test_gpt2_step.py: compiled once for both
REST = [(op, size) for op in OPS for size in op.awkward[1:]]


def named(cases, quick=()):
    """Compiling such a kernel for a CPU takes seconds: those that no GPU uses by default are for the sweep."""
    return [pytest.param(op, size, id=f"{op.name}-{'x'.join(map(str, size.values()))}",
                         marks=() if op.name in quick else pytest.mark.sweep) for op, size in cases]


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("op", "size"), named(FIRST, quick=[f"one_row_{name}" for name in USED]))
def test_operation_agrees(op, size):
    assert agree(op, sizes=(size,), seed=3).passed


@pytest.mark.sampled(0, sweep=8)
@pytest.mark.parametrize(("op", "size"), named(REST, quick={op.name for op in OPS}))
def test_operation_agrees_at_more_sizes(op, size):
    """Columns beyond the edge of a block, K that fills no turn, 512 threads, more than one round, wide lanes."""
    assert agree(op, sizes=(size,), seed=4).passed


def arrays(K=48, dtype=np.float32, rows=5):
    rng = np.random.default_rng(0)
    x, weight, bias = norm_row(rng, K, dtype)
    found = (x, weight, bias, *layer(rng, K, 3 * K, dtype))
    return [*map(cuda.to_device, found), cuda.device_array((1, K), dtype),
            cuda.to_device(np.full((rows, 2 * K), 7, dtype))]


@pytest.mark.sweep(every=True)
def test_only_the_row_at_start_is_written_and_none_of_a_full_cache():
    *given, q, cache = arrays()
    for start in (2, 5):
        one_row.one_row_qkv(*given, q, cache, cuda.to_device(np.array([start], np.int32)))
        found = cache.copy_to_host()
        assert (found[[0, 1, 3, 4]] == 7).all() and (found[2] != 7).all()


def test_what_no_kernel_takes_is_refused_by_name():
    *given, q, cache = arrays()
    start = cuda.to_device(np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="cache has 95 columns; keys and values of 48 numbers need 96"):
        one_row.one_row_qkv(*given, q, cuda.device_array((5, 95), np.float32), start)
    with pytest.raises(ValueError, match="queries, keys and values need 3 columns a row"):
        one_row.one_row_qkv(*given[:3], cuda.device_array((48, 96), np.float32), cuda.device_array(96, np.float32), q,
                            cache, start)
    with pytest.raises(ValueError, match="weights has shape 50 x 48; allowed are K and N multiples of 8"):
        one_row.one_row_gelu(q, q, q, cuda.device_array((50, 48), np.float32), q, q)
    with pytest.raises(TypeError, match="weights has dtype float64; float32 and float16 are allowed"):
        one_row.one_row_gelu(q, q, q, cuda.device_array((48, 48), np.float64), q, q)
    flat = cuda.device_array(48 * 48 + 1, np.float32)[1:].reshape(48, 48)
    with pytest.raises(ValueError, match="must begin at multiples of 16 bytes"):
        one_row.one_row_residual(q, flat, cuda.device_array(48, np.float32), q, q)


def test_a_token_or_position_that_does_not_exist_gives_nan():
    table = cuda.to_device(np.ones((4, 8), np.float16))
    out = cuda.device_array((1, 8), np.float32)
    for token, start, expected in ((3, 0, 2.0), (4, 0, np.nan), (-1, 0, np.nan), (0, 4, np.nan)):
        one_row.one_row_embedding(*(cuda.to_device(np.array([n], np.int32)) for n in (token,)), table, table,
                                  cuda.to_device(np.array([start], np.int32)), out)
        np.testing.assert_array_equal(out.copy_to_host(), np.full((1, 8), expected, np.float32))


# --- What they compile to ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("source", "after", "depth", "cols"), [
    (NORM, QKV, 768, 2304), (NORM, GELU, 768, 3072), (JOIN, RESIDUAL, 768, 768), (PLAIN, RESIDUAL, 3072, 768)])
def test_all_weights_are_asked_for_before_anything_is_waited_for(source, after, depth, cols, half, early):
    """GPT-2 small's layers: a thread's loads of weights stand before the first shuffle and the first barrier, and
    before the kernel waits for the one before it."""
    number = "float16" if half else "float32"
    lanes, threads = plan(depth, cols, half)
    heads, splits = (12, 11) if source == JOIN else (0, 0)
    row, norm = ("float32 1", "float32 1") if source == JOIN else ("float32 2", f"{number} 1")
    kernel = make_one_row(half, source, after, depth, lanes, threads, True, heads=heads, splits=splits, early=early)
    text = ptx_of(kernel, row, norm, norm, f"{number} 2", f"{number} 1", "float32 2",
                  f"{number} 2" if after == QKV else "float32 2", f"{number} 2", "int32 1", f"{number} 1", "uint32")
    before = re.split(r"shfl\.sync|bar\.sync", text)[0]
    if early:
        before = check_begins_early(before)
    loads = depth // (threads // lanes)
    assert len(re.findall(r"ld\.global\.nc\.v4", before)) == len(re.findall(r"ld\.global\.nc\.v4", text)) == loads
    assert "cp.async.bulk.prefetch.L2.global" in before
    assert resources_of(text)["registers"] <= 128


def check_begins_early(text: str) -> str:
    """The kernel's text up to where it waits for the one before it; it has written nothing by then."""
    before, after = text.split("griddepcontrol.wait", 1)
    assert "griddepcontrol.launch_dependents" in before and "st.global" not in before
    assert "griddepcontrol" not in after
    return before


@pytest.mark.sampled(1)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_keys_and_values_are_asked_for_together(half, early):
    number = "float16" if half else "float32"
    text = ptx_of(make_one_query(half, 64, 11, True, early), f"{number} 2", f"{number} 2", "int32 1", "float32 1",
                  "float32 1", "float32", f"{number} 1", "uint32")
    before = text[: text.index("shfl.sync")]
    if early:
        assert "ld.global" not in check_begins_early(text)
    assert len(re.findall(r"ld\.global\.v4", before)) == 1 + 2 * (3 if half else 6)  # 96 keys of a block
    assert resources_of(text)["registers"] <= 128


@numba_cudas_code
@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_rows_of_the_table_are_asked_for_together(half, early):
    number = "float16" if half else "float32"
    text = ptx_of(make_row_logits(half, 768, early), "float32 2", f"{number} 1", f"{number} 1", f"{number} 2",
                  "float32 2", "int64 1")
    before = check_begins_early(text) if early else text[: text.index("shfl.sync")]
    assert len(re.findall(r"ld\.global\.nc\.v4", before)) == 12  # and as many again for each later turn
    assert len(re.findall(r"ld\.global\.nc\.v4", text[text.rindex("shfl.sync"):])) == 12
    assert resources_of(text)["registers"] <= 128
