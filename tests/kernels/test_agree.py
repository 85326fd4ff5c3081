"""agree() accepts right rungs and rejects wrong ones, for the right reason."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from numba import float32, int32

from labkit import cuda, device, ptx
from labkit._common.tables import MIMETYPE
from labkit.device import gpus
from labkit.device.gpus import GPUS
from labkit.kernels import op as op_module
from labkit.kernels.agree import (
    GUARD,
    Sample,
    agree,
    compare,
    differences,
    guarded,
    is_poison,
    poison,
    poison_of,
    sentinel_of,
)
from labkit.kernels.dtypes import bfloat16_of, float64_of
from labkit.kernels.elementwise import vector_add_per_thread
from labkit.kernels.op import Op, Work, rung, uniform
from labkit.kernels.ops.elementwise import VECTOR_ADD
from labkit.kernels.ops.matmul import MATMUL
from labkit.kernels.tolerance import relative_to


def check_sample(op, inputs, out, by=None, **budget):
    return Sample(op, inputs, shape=out.shape, **budget).check(out, by)


ADD_SIZES = ({"n": 1}, {"n": 31}, {"n": 256}, {"n": 257})
MATMUL_SIZES = ({"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 9, "K": 7}, {"M": 37, "N": 23, "K": 19})


# --- Wrong kernels. Each has one mistake that a weaker comparison lets pass. -----------------------------------------


@cuda.jit
def no_guard_kernel(a, b, out):
    i = cuda.grid(1)
    out[i] = a[i] + b[i]


@cuda.jit
def zeros_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = float32(0.0)


@cuda.jit
def nothing_kernel(a, b, out):
    i = cuda.grid(1)
    if i > 1_000_000:
        out[0] = a[0]


@cuda.jit
def last_missing_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size - 1:
        out[i] = a[i] + b[i]


@cuda.jit
def neighbour_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[max(i - 1, 0)]


@cuda.jit
def writes_input_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        a[i] += b[i]
        out[i] = a[i]


@cuda.jit
def nearly_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = (a[i] + b[i]) * float32(1.000001)


@cuda.jit
def whole_blocks_kernel(a, b, out):
    i = cuda.grid(1)
    if cuda.blockIdx.x * cuda.blockDim.x + cuda.blockDim.x <= out.size:
        out[i] = a[i] + b[i]


WRONG = {
    no_guard_kernel: "n=1",
    zeros_kernel: "expected",
    nothing_kernel: "never written",
    last_missing_kernel: "never written",
    neighbour_kernel: "expected",
    writes_input_kernel: "changed its input number 0",
    nearly_kernel: "allowed error",
    whole_blocks_kernel: "never written",
}


def launcher_of(kernel, name="mine"):
    def launch(a, b, out, stream=0):
        kernel[-(-out.size // 256), 256, stream](a, b, out)

    launch.__name__ = name
    return rung(kernel=kernel, idea="wrong")(launch)


@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.__name__)
def test_wrong_addition_is_rejected(kernel):
    with pytest.raises(AssertionError, match="mine at n=") as caught:
        agree(VECTOR_ADD, [launcher_of(kernel)], sizes=ADD_SIZES)
    assert WRONG[kernel] in str(caught.value)


@cuda.jit
def last_product_missing_kernel(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1] - 1):
            total += a[row, k] * b[k, col]
        out[row, col] = total


@cuda.jit
def transposed_kernel(a, b, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, col]
        flat = col * out.shape[0] + row
        out[flat // out.shape[1], flat % out.shape[1]] = total


@cuda.jit
def coarse_kernel(a, b, out):
    """Cuts each product to a multiple of 2**-12, about the loss of TF32. Through an integer: a GPU's compiler fuses
    multiplications with additions, and so undoes a rounding that is made of them."""
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        total = float32(0.0)
        for k in range(a.shape[1]):
            steps = int32(a[row, k] * b[k, col] * float32(4096.0))
            total += float32(steps) * float32(1 / 4096)
        out[row, col] = total


@pytest.mark.parametrize("kernel", [last_product_missing_kernel, transposed_kernel, coarse_kernel],
                         ids=lambda kernel: kernel.__name__)
def test_wrong_product_is_rejected(kernel):
    @rung(kernel=kernel, idea="wrong")
    def mine(a, b, out, stream=0):
        kernel[(-(-out.shape[1] // 16), -(-out.shape[0] // 16)), (16, 16), stream](a, b, out)

    with pytest.raises(AssertionError, match="mine at M="):
        agree(MATMUL, [mine], sizes=MATMUL_SIZES[1:])


def test_message_names_rung_size_index_and_values():
    with pytest.raises(AssertionError) as caught:
        agree(VECTOR_ADD, [launcher_of(last_missing_kernel, "add_all_but_one")], sizes=({"n": 257},))
    message = str(caught.value)
    assert "add_all_but_one at n=257" in message
    assert "1 of 257 elements are wrong, the first at index 256: expected" in message
    assert "got nan (never written)" in message


def test_check_false_returns_the_table():
    agreement = agree(VECTOR_ADD, [vector_add_per_thread, launcher_of(zeros_kernel, "zeros")], sizes=ADD_SIZES,
                      check=False)
    assert not agreement.passed
    assert [row.name for row in agreement.rows] == ["vector_add_per_thread", "zeros"]
    assert not agreement.rows[0].problem
    with pytest.raises(AssertionError, match="zeros at n=1"):
        agreement.check()


def test_agreement_shows_itself_everywhere():
    agreement = agree(VECTOR_ADD, sizes=ADD_SIZES, rungs=["vector_add_per_thread"])
    bundle = agreement._repr_mimebundle_()
    assert "vector_add_per_thread" in bundle["text/plain"]
    assert "<table>" in bundle["text/html"]
    result = bundle[MIMETYPE]
    assert result["kind"] == "agreement"
    assert result["op"] == "vector_add"
    assert result["kernels"] == ["vector_add_per_thread_kernel"]
    assert result["passed"] is True
    assert 0 <= result["max_error"] <= result["tolerance"]
    assert device.name() in repr(agreement)


def test_a_failed_agreement_is_valid_json():
    agreement = agree(VECTOR_ADD, [launcher_of(nothing_kernel)], sizes=({"n": 5},), check=False)
    result = agreement.result()
    assert result["max_error"] is None
    json.dumps(result, allow_nan=False)


def test_the_largest_error_is_over_all_sizes():
    sizes = ({"M": 5, "N": 9, "K": 7}, {"M": 20, "N": 30, "K": 400})
    each = [agree(MATMUL, ["matmul_naive"], sizes=(size,)).rows[0] for size in sizes]
    both = agree(MATMUL, ["matmul_naive"], sizes=sizes).rows[0]
    assert both.error > each[0].error
    assert both.tolerance >= each[1].tolerance > each[0].tolerance


# --- Samples of large results ----------------------------------------------------------------------------------------


def test_sample_finds_an_unwritten_element_anywhere():
    rng = np.random.default_rng(0)
    inputs = VECTOR_ADD.inputs(rng, n=100_000)
    out = (inputs[0] + inputs[1]).astype(np.float32)
    assert not check_sample(VECTOR_ADD, inputs, out, budget=1000).problem
    out[54_321] = poison_of(np.float32)
    assert "1 elements were never written" in check_sample(VECTOR_ADD, inputs, out, budget=1000).problem


def test_sample_finds_a_computed_nan_anywhere():
    inputs = VECTOR_ADD.inputs(np.random.default_rng(0), n=100_000)
    out = (inputs[0] + inputs[1]).astype(np.float32)
    out[54_321] = np.nan
    assert "1 elements are NaN, the first at flat index 54321" in check_sample(VECTOR_ADD, inputs, out).problem


def test_sample_includes_first_and_last_row():
    inputs = MATMUL.inputs(np.random.default_rng(0), M=500, N=20, K=3)
    right = MATMUL.reference(*inputs).astype(np.float32)
    for row in (0, 499):
        out = right.copy()
        out[row, 7] += 1
        assert "expected" in check_sample(MATMUL, inputs, out, budget=200).problem


# --- float16, mixed types, numbers among the inputs ------------------------------------------------------------------


@cuda.jit
def scale_half_kernel(a, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor


def scale_op(*rungs, **changes) -> Op:
    """out = a * factor: float16 in, float32 out, and a number that is no array."""
    fields = {
        "title": "Scaled float16 values", "reference": lambda a, factor: a.astype(np.float64) * factor, "rungs": rungs,
        "inputs": lambda rng, n: (uniform(rng, n).astype(np.float16), np.float32(3.0)), "shape": lambda n: (n,),
        "awkward": ({"n": 1}, {"n": 300}), "by_row": (0,),
        "work": Work(flops=lambda n: n, bytes=lambda n: 6 * n, timed_gpu={"n": 300}, timed_cpu={"n": 300}),
        "tolerance": relative_to(lambda a, factor: np.abs(a * factor), roundings=1)}
    return Op("scale", **{**fields, **changes})


def scale_rung(name="scale", kernel=scale_half_kernel, **marks):
    def launch(a, factor, out, stream=0):
        kernel[-(-out.size // 256), 256, stream](a, factor, out)

    launch.__name__ = name
    return rung(kernel=kernel, idea="one thread an element", **marks)(launch)


def test_float16_in_numbers_among_the_inputs():
    op = scale_op(scale_rung())
    assert agree(op).passed
    inputs = op.inputs(np.random.default_rng(0), n=300)
    assert not check_sample(op, inputs, op.reference(*inputs).astype(np.float32), budget=20).problem


@pytest.mark.parametrize(("at", "flat"), [(GUARD - 1, -1), (GUARD + 300, 300)])
def test_one_element_written_beside_the_output_is_enough(monkeypatch, at, flat):
    """As a GPU lets a kernel do it: the CPU device stops it first."""
    home, outputs = importlib.import_module("labkit.kernels.agree"), []
    poisoned = home.poisoned
    monkeypatch.setattr(home, "poisoned", lambda *args: outputs.append(poisoned(*args)) or outputs[-1])

    @rung(kernel=vector_add_per_thread.kernel, idea="right, and one element more")
    def stray(a, b, out, stream=0):
        vector_add_per_thread(a, b, out, stream=stream)
        whole = outputs[-1].whole
        host = whole.copy_to_host()
        host[at] = 0.5
        whole.copy_to_device(host)

    with pytest.raises(AssertionError, match=f"wrote outside the output: flat index {flat} of 300 elements"):
        agree(VECTOR_ADD, [stray], sizes=({"n": 300},))


def test_float16_out_are_poisoned_and_compared():
    tolerance = relative_to(lambda a, factor: np.abs(a * factor), roundings=1, dtype=np.float16)
    op = scale_op(scale_rung(), dtype=np.float16, tolerance=tolerance)
    assert agree(op).passed
    with pytest.raises(AssertionError, match="never written"):
        agree(op, rungs=[scale_rung("nothing", half_nothing_kernel)])
    with pytest.raises(AssertionError, match="wrote outside the output|OutOfBoundsError"):
        agree(op, [scale_rung("no_guard", half_no_guard_kernel)], sizes=({"n": 300},))


@cuda.jit
def half_nothing_kernel(a, factor, out):
    i = cuda.grid(1)
    if i > 1_000_000:
        out[0] = a[0] * factor


@cuda.jit
def half_no_guard_kernel(a, factor, out):
    i = cuda.grid(1)
    out[i] = a[min(i, a.size - 1)] * factor


@cuda.jit
def copy_bits_kernel(a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i]


def test_uint16_holds_bfloat16():
    values = uniform(np.random.default_rng(0), 1000)
    bits = bfloat16_of(values)
    assert np.all(np.abs(float64_of(bits) - values) <= 2.0**-8 * np.abs(values))
    assert np.isnan(float64_of(np.array([poison_of(np.uint16)])))[0]
    assert float64_of(np.arange(3)).dtype == np.int64, "an index is no number to round"

    @rung(kernel=copy_bits_kernel, idea="copies")
    def copy(a, out, stream=0):
        copy_bits_kernel[-(-out.size // 256), 256, stream](a, out)

    op = scale_op(copy, reference=float64_of, inputs=lambda rng, n: (bfloat16_of(uniform(rng, n)),), dtype=np.uint16,
                  tolerance=lambda a: 0.0 * a)
    assert agree(op).passed
    wrong = agree(op.with_rungs(launcher_of_one(half_nothing_copy_kernel)), check=False)
    assert "never written" in wrong.rows[0].problem


def launcher_of_one(kernel):
    @rung(kernel=kernel, idea="wrong")
    def mine(a, out, stream=0):
        kernel[-(-out.size // 256), 256, stream](a, out)

    return mine


@cuda.jit
def half_nothing_copy_kernel(a, out):
    i = cuda.grid(1)
    if i > 1_000_000:
        out[0] = a[0]


# --- Rungs with limits of their own ----------------------------------------------------------------------------------


@cuda.jit
def rough_kernel(a, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor * float32(1.0001)


def test_a_rung_may_have_a_tolerance_of_its_own():
    coarse = relative_to(lambda a, factor: np.abs(a * factor), roundings=1, dtype=np.float16)
    op = scale_op(scale_rung())
    assert not agree(op, [scale_rung("rough", rough_kernel)], check=False).passed
    rough = scale_rung("rough", rough_kernel, tolerance=coarse)
    assert agree(op, [rough]).passed
    inputs = op.inputs(np.random.default_rng(0), n=300)
    out = (op.reference(*inputs) * 1.0001).astype(np.float32)
    assert check_sample(op, inputs, out).problem
    assert not check_sample(op, inputs, out, by=rough).problem


def even_only(name, **marks):
    inner = scale_rung(name)

    def launch(a, factor, out, stream=0):
        if out.size % 2:
            raise ValueError(f"out has {out.size} elements; an even number is allowed")
        inner(a, factor, out, stream=stream)

    launch.__name__ = name
    return rung(kernel=scale_half_kernel, idea="pairs", **marks)(launch)


def test_a_rung_that_refuses_sizes_says_which_it_allows():
    op = scale_op(even_only("pairs", sizes="even n"))
    found = agree(op)
    assert (found.rows[0].sizes, found.rows[0].refused) == (2, 1)
    assert "pairs allows even n; it refused 1 of 2 sizes" in str(found)
    with pytest.raises(AssertionError, match="refuses every size: out has 1 elements"):
        agree(op, sizes=({"n": 1},))
    with pytest.raises(AssertionError, match="@rung.*sizes="):
        agree(op, [even_only("pairs")])


@cuda.jit
def needs_hopper_kernel(a, factor, out):
    ptx.fence_mbarrier_init()


@cuda.jit
def needs_wgmma_kernel(a, factor, out):
    ptx.wgmma_fence()


def test_a_rung_for_newer_gpus_is_left_out_on_older_ones(monkeypatch):
    future, only = scale_rung("future", needs_hopper_kernel), scale_rung("only", needs_wgmma_kernel)
    if not gpus.limited():
        assert future.missing == only.missing == ""  # the CPU device has all

    def pretend(gpu):
        monkeypatch.setattr(op_module.gpus, "pretended", lambda: GPUS[gpu])

    pretend("t4")
    found = agree(scale_op(future))
    assert found.rows[0].skipped == "needs compute capability 9.0; this GPU has 7.5"
    assert "future was not run" in str(found)
    assert found.passed

    pretend("b200")
    assert future.missing == ""
    assert only.missing == "needs compute capability 9.0 exactly; this GPU has 10.0"
    pretend("h100")
    assert only.missing == ""


# --- Never written, or computed --------------------------------------------------------------------------------------

DTYPES = (np.float16, np.float32, np.float64, np.uint16, np.int8, np.uint8, np.int32, np.uint32, np.int64, np.bool_,
          np.complex64)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_poison_is_known_again(dtype):
    whole = poison((3, 4), dtype)
    assert whole.dtype == dtype and is_poison(whole).all() and is_poison(whole[:, 1:3].T).all()
    assert is_poison(cuda.to_device(whole).copy_to_host()).all()
    assert not is_poison(np.zeros(5, dtype)).any()
    assert is_poison(np.array([poison_of(dtype)])).all()


def test_a_computed_nan_is_not_poison():
    for dtype in (np.float16, np.float32, np.float64):
        with np.errstate(invalid="ignore"):
            computed = np.array([np.nan, -np.nan, dtype(np.inf) - dtype(np.inf)], dtype)
        assert not is_poison(computed).any()
    assert not is_poison(np.array([0x7FC0, 0xFFC0, 0x7FFF], np.uint16)).any()  # of bfloat16


INFINITY = float32(np.inf)


@cuda.jit
def infinities_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * INFINITY - a[i] * INFINITY + b[i]


def test_a_computed_nan_is_wrong_and_was_written():
    with pytest.raises(AssertionError, match="5 of 5 elements are wrong.*got nan; allowed"):
        agree(VECTOR_ADD, [launcher_of(infinities_kernel)], sizes=({"n": 5},))


def test_infinities_and_nans_that_are_expected_agree():
    expected = np.array([np.inf, -np.inf, np.nan, 1.0])
    assert not compare(expected.astype(np.float32), expected, 0.0).problem
    for index, wrong in ((0, np.nan), (0, -np.inf), (1, 3e38), (2, 1.0), (3, np.nan), (3, np.inf)):
        got = expected.astype(np.float32)
        got[index] = wrong
        assert differences(got, expected, 1.0).first == (index,)
    got = expected.astype(np.float32)
    got[2] = poison_of(np.float32)
    assert differences(got, expected, 1.0).unwritten.tolist() == [False, False, True, False]
    assert not differences(got, expected, 1.0, unwritten=np.zeros(4, bool)).wrong.any()


def test_differences_of_integers_do_not_wrap():
    found = differences(np.array([3, 250], np.uint8), np.array([5, 2], np.uint8), 2)
    assert found.miss.tolist() == [2, 248] and found.wrong.tolist() == [False, True]
    lowest, highest = np.array([np.iinfo(np.int32).min]), np.array([np.iinfo(np.int32).max])
    assert differences(lowest, highest, 1).error == 2.0**32 - 1
    assert differences(np.array([True, False]), np.array([True, True]), 0).first == (1,)


def test_a_tolerance_holds_up_to_its_edge_and_not_beyond():
    expected = np.array([[1.0, 2.0], [3.0, 4.0]])
    allowed = np.array([[0.5, 0.0], [0.25, 0.0]])
    assert not differences(expected + allowed, expected, allowed).wrong.any()
    found = differences(expected + 1.001 * allowed, expected, allowed)
    assert found.wrong.tolist() == [[True, False], [True, False]]
    assert found.first == (0, 0) and found.error == pytest.approx(0.5005) and found.units == pytest.approx(1.001)
    assert differences(expected + 1, expected, allowed).units == np.inf


def test_uint16_is_bfloat16_beside_fractions_and_a_number_beside_integers():
    got = bfloat16_of(np.array([1.5, -2.0], np.float32))
    assert not compare(got, np.array([1.5, -2.0]), 0.0).problem
    assert not compare(got, got.astype(np.int64), 0.0).problem


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_a_write_beside_an_array_is_found(dtype):
    if dtype == np.bool_:
        pytest.skip("one of its two values must be the sentinel")
    content = np.arange(6).reshape(2, 3).astype(dtype)
    one = guarded(content, sentinel_of(dtype))
    got, outside = one.read()
    assert np.array_equal(got, content) and not outside.size
    for at, index in ((GUARD - 1, -1), (GUARD + 6, 6), (0, -GUARD), (2 * GUARD + 5, GUARD + 5)):
        host = one.whole.copy_to_host()
        host[at] = 1
        assert replace(one, whole=cuda.to_device(host)).read()[1].tolist() == [index]


def test_an_input_lies_between_values_that_are_noticed():
    host = guarded(np.ones(3, np.float32)).whole.copy_to_host()
    assert np.isnan(host).sum() == 2 * GUARD
    assert not is_poison(host).any(), "a sum with what lies beside an input was written"
    assert is_poison(guarded(np.ones(3, np.int32)).whole.copy_to_host()).sum() == 2 * GUARD


@cuda.jit
def nan_of_its_own_kernel(a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] + b[i]
        if a[i] != a[i]:
            a[i] = b[i] * INFINITY - b[i] * INFINITY


def test_an_input_that_holds_nan_may_be_kept_and_not_replaced():
    def inputs(rng, n):
        a = uniform(rng, n)
        a[0] = np.nan
        return a, uniform(rng, n)

    op = replace(VECTOR_ADD, inputs=inputs, awkward=({"n": 3},))
    assert agree(op, [vector_add_per_thread]).passed
    with pytest.raises(AssertionError, match="changed its input number 0"):
        agree(op, [launcher_of(nan_of_its_own_kernel)])
