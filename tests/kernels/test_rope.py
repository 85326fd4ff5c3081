"""RoPE: angles to position 8,000 with every scaling, heads of every size, what must not be written in the cache, the
norms of Qwen3, views at odd addresses, errors."""

import functools

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels import rope
from labkit.kernels.agree import agree, guarded, is_poison, poisoned
from labkit.kernels.dtypes import float64_of, of_dtype
from labkit.kernels.elements import FLOAT16, element_of
from labkit.kernels.op import uniform
from labkit.kernels.ops.rope import (
    ROPE_NORM_SPLIT_CACHE_BF16,
    ROPE_SPLIT_CACHE,
    ROPE_SPLIT_CACHE_BF16,
    head_tolerance,
    rope_op,
)
from labkit.kernels.rope import frequencies, rope_split_cache, rope_split_cache_three_launches, rope_table
from tests.launching import every_rung

LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
SCALINGS = {"none": None, "linear": {"type": "linear", "factor": 2.5}, "llama3": LLAMA3}


@pytest.mark.sampled(1)
@every_rung(ROPE_SPLIT_CACHE, ROPE_SPLIT_CACHE_BF16, ROPE_NORM_SPLIT_CACHE_BF16, rope_op("rope_f16", FLOAT16),
            rope_op("rope_norm_f16", FLOAT16, with_norms=True))
def test_every_rung_agrees(op, launcher):
    assert agree(op, [launcher], seed=1).passed


# --- The table --------------------------------------------------------------------------------------------------------

# Of transformers 5.23, ROPE_INIT_FUNCTIONS with Llama 3.2 1B's settings, in float32.
GOLDEN_LLAMA3 = {0: 1.0, 5: 0.12868738174438477, 10: 0.016560440883040428, 14: 0.0032114461064338684,
                 15: 0.0012905480107292533, 16: 0.000429556705057621, 17: 9.708286233944818e-05,
                 18: 1.9461638657958247e-05, 20: 8.570255886297673e-06, 25: 1.1028836297555245e-06,
                 31: 9.418306490260875e-08}  # fmt: skip
GOLDEN_LINEAR = {0: 0.4, 1: 0.2999576926231384, 16: 0.004, 31: 5.3340860176831484e-05}


@pytest.mark.parametrize(("golden", "theta", "scaling"), [(GOLDEN_LLAMA3, 500_000.0, LLAMA3),
                                                          (GOLDEN_LINEAR, 10_000.0, SCALINGS["linear"])])
def test_frequencies_are_those_of_transformers(golden, theta, scaling):
    found = frequencies(64, theta, scaling)
    assert found.shape == (32,)
    np.testing.assert_allclose(found[list(golden)], list(golden.values()), rtol=2e-6)
    assert np.abs(found / frequencies(64, theta) - 1).max() > 0.5  # the scaling does something


@pytest.mark.sweep(every=True)
def test_transformers_has_the_same_frequencies():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for dim, theta in ((64, 500_000.0), (128, 10_000.0), (80, 1_000_000.0)):
        config = transformers.LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim,
                                          rope_parameters={"rope_theta": theta, **LLAMA3})
        theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        assert factor == 1
        np.testing.assert_allclose(frequencies(dim, theta, LLAMA3), theirs.numpy(), rtol=3e-6)


def test_the_table_is_cosines_then_sines():
    table = rope_table(8192, 64, 500_000.0, LLAMA3)
    assert table.shape == (8192, 64) and table.dtype == np.float32
    angles = np.array([0, 1, 5000, 8191])[:, None] * frequencies(64, 500_000.0, LLAMA3)
    np.testing.assert_allclose(table[[0, 1, 5000, 8191]], np.concatenate([np.cos(angles), np.sin(angles)], axis=1),
                               atol=6e-8)
    default = rope_table(3, 8, 10_000.0, {"rope_type": "default", "rope_theta": 10_000.0})
    np.testing.assert_array_equal(default, rope_table(3, 8, 10_000.0))
    np.testing.assert_allclose(default[2, :4], np.cos([2, 0.2, 0.02, 0.002]), rtol=1e-6)


@pytest.mark.parametrize(("change", "message"), [
    ({"max_positions": 0}, "max_positions is 0"),
    ({"head_dim": 7}, "the head dimension is 7; it must be even, 2 to 512"),
    ({"head_dim": 1024}, "the head dimension is 1024"),
    ({"theta": -1.0}, "theta is -1.0"),
    ({"scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'; 'default', 'linear', 'llama3' are known"),
    ({"scaling": {"type": "linear"}}, "the rope scaling has no 'factor'"),
    ({"scaling": {"type": "linear", "factor": 0}}, "the rope scaling has factor 0; it must be a number above 0"),
    ({"scaling": {**LLAMA3, "low_freq_factor": "1"}}, "the rope scaling has low_freq_factor '1'"),
    ({"scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "low_freq_factor is 1.0 and high_freq_factor 1.0"),
    ({"scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
])
def test_a_table_that_would_be_wrong_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        rope_table(**{"max_positions": 4, "head_dim": 8, "theta": 10_000.0} | change)


# --- The kernels ------------------------------------------------------------------------------------------------------


def made(dtype, count, heads, shared, dim, positions=64, seed=2):
    """(qkv, table, positions, slots), of three pages in which every fourth token has no slot; the last one's is beyond
    the cache."""
    rng = np.random.default_rng(seed)
    stored = functools.partial(of_dtype, dtype=dtype)
    slots = rng.permutation(48)[:count].astype(np.int32)
    slots[3::4], slots[-1] = -1, 48 if count > 1 else slots[-1]
    return (stored(uniform(rng, count, (heads + 2 * shared) * dim)), rope_table(positions, dim, 500_000.0, LLAMA3),
            rng.integers(0, positions, count).astype(np.int32), slots)


def check(launch, inputs, heads, shared, dim, norms=(None, None), eps=1e-6):
    """Every number that is to be written agrees, and no other was touched. Returns q, keys, values."""
    qkv, table, positions, slots = inputs
    shape = (3, shared, 16, dim)
    outputs = [poisoned(of, qkv.dtype) for of in ((len(slots), heads, dim), shape, shape)]
    given = [None if array is None else guarded(array).array for array in (*inputs, *norms)]
    launch(*given[:4], *(output.array for output in outputs), *given[4:], eps=eps)
    expected = rope.rope_split_cache_reference(*inputs, heads, shape, *norms, eps=eps)
    rows = float64_of(qkv).reshape(len(slots), -1, dim)
    element = element_of("qkv", qkv)
    weights = [None if weight is None else float64_of(weight) for weight in norms]
    queries, keys = rows[:, :heads], rows[:, heads : heads + shared]
    allowed = (head_tolerance(queries, weights[0], element),
               rope.in_pages(head_tolerance(keys, weights[1], element), slots, shape), 0)
    found = []
    for output, truth, most in zip(outputs, expected, allowed, strict=True):
        got, outside = output.read()
        untouched = np.isnan(truth)
        assert not outside.size
        np.testing.assert_array_equal(is_poison(got), untouched)
        assert (untouched | (np.abs(float64_of(got) - truth) <= most)).all()
        found.append(got)
    return found


SHAPES = [(1, 4, 4, 32), (7, 3, 1, 64), (9, 8, 2, 80), (5, 7, 1, 96), (6, 6, 2, 128), (18, 2, 2, 36), (3, 9, 3, 6)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("launch", [rope_split_cache, rope_split_cache_three_launches], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_and_only_the_slots_of_the_tokens(launch, dtype, shape):
    check(launch, made(dtype, *shape), *shape[1:])


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("launch", [rope_split_cache, rope_split_cache_three_launches], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.float16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_norms_of_queries_and_keys(launch, dtype, shape):
    rng = np.random.default_rng(3)
    norms = [of_dtype(uniform(rng, shape[3]), dtype) for _ in range(2)]
    check(launch, made(dtype, *shape), *shape[1:], norms=norms, eps=1e-5)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_far_positions_against_complex_numbers(scaling):
    """A pair is a complex number, which is multiplied by exp(i * angle): computed here in float64, from the formula."""
    heads, shared, dim = 3, 1, 64
    qkv, _, _, slots = made(np.float32, 6, heads, shared, dim)
    positions = np.int32([5000, 0, 8000, 1, 7999, 4096])
    slots = np.arange(6, dtype=np.int32)
    angles = positions[:, None] * frequencies(dim, 500_000.0, SCALINGS[scaling])
    rows = qkv.astype(np.float64).reshape(6, heads + 2 * shared, dim)
    pairs = (rows[..., :32] + 1j * rows[..., 32:]) * np.exp(1j * angles)[:, None]
    expected = np.concatenate([pairs.real, pairs.imag], axis=2)
    table = rope_table(8001, dim, 500_000.0, SCALINGS[scaling])
    q, keys, _ = check(rope_split_cache, (qkv, table, positions, slots), heads, shared, dim)
    assert np.abs(q - expected[:, :heads]).max() < 1e-5
    assert np.abs(keys[0, 0, :6] - expected[:, heads]).max() < 1e-5


def test_a_score_depends_on_the_distance_alone():
    """The same query and key, 7 apart, at the beginning and 4,000 tokens later."""
    rng, dim = np.random.default_rng(4), 64
    qkv = np.tile(uniform(rng, 1, 3 * dim), (4, 1))
    table = rope_table(4096, dim, 10_000.0)
    q, keys, _ = check(rope_split_cache, (qkv, table, np.int32([0, 7, 4000, 4007]), np.arange(4, dtype=np.int32)), 1, 1,
                       dim)
    near, far = (float(q[late, 0].astype(np.float64) @ keys[0, 0, early]) for early, late in ((0, 1), (2, 3)))
    other = float(q[3, 0].astype(np.float64) @ keys[0, 0, 1])
    assert abs(near - far) < 1e-4 < abs(near - other)


def test_a_position_beyond_the_table_gives_nan():
    qkv, table, _, _ = made(np.float32, 3, 2, 1, 32)
    inputs = (qkv, table, np.int32([64, -1, 63]), np.int32([4, 5, 6]))
    arrays = [cuda.to_device(array) for array in inputs]
    q, keys, values = (poisoned(of) for of in ((3, 2, 32), (3, 1, 16, 32), (3, 1, 16, 32)))
    rope_split_cache(*arrays, q.array, keys.array, values.array)
    assert np.isnan(q.read()[0][:2]).all() and not is_poison(q.read()[0]).any() and np.isfinite(q.read()[0][2]).all()
    assert np.isnan(keys.read()[0][0, 0, 4:6]).all() and np.isfinite(keys.read()[0][0, 0, 6]).all()
    np.testing.assert_array_equal(values.read()[0][0, 0, 4:7], qkv.reshape(3, 4, 32)[:, 3])


@pytest.mark.sweep
def test_a_view_at_an_odd_address():
    inputs = made(np.uint16, 5, 4, 2, 32)
    even = check(rope_split_cache, inputs, 4, 2, 32)

    def from_a_view(qkv, *rest, **more):
        whole = cuda.to_device(np.concatenate([np.ones(1, np.uint16), inputs[0].reshape(-1)]))
        rope_split_cache(whole[1:].reshape(qkv.shape), *rest, **more)

    for one, other in zip(even, check(from_a_view, inputs, 4, 2, 32), strict=True):
        np.testing.assert_array_equal(one, other)


def test_errors_name_the_argument():
    def zeros(*shape, dtype=np.float32):
        return cuda.to_device(np.zeros(shape, dtype))

    good = {"qkv": zeros(5, 128), "table": zeros(64, 16), "positions": zeros(5, dtype=np.int32),
            "slots": zeros(5, dtype=np.int32), "q": zeros(5, 4, 16), "keys": zeros(3, 2, 16, 16),
            "values": zeros(3, 2, 16, 16)}  # fmt: skip
    for change, error, message in (
            ({"qkv": zeros(5, 128, dtype=np.float64)}, TypeError, "qkv has dtype float64; float32, float16, and uint"),
            ({"qkv": zeros(5, 112)}, ValueError, r"qkv has shape \(5, 112\); it must be \(5, 128\)"),
            ({"q": zeros(5, 4, 16, dtype=np.uint16)}, TypeError, "q has dtype uint16; only float32"),
            ({"keys": zeros(3, 2, 16, 8)}, ValueError, "keys has shape .*, heads of 8; those of q have 16"),
            ({"values": zeros(2, 2, 16, 16)}, ValueError, r"values has shape \(2, 2, 16, 16\); it must be"),
            ({"table": zeros(64, 8)}, ValueError, "table has shape .*; a row must have 16 numbers"),
            ({"positions": zeros(5, dtype=np.int64)}, TypeError, "positions has dtype int64; only int32"),
            ({"slots": zeros(4, dtype=np.int32)}, ValueError, r"slots has shape \(4,\); it must be \(5,\)"),
            ({"q_norm": zeros(16)}, ValueError, "q_norm and k_norm must both be given, or neither"),
            ({"q_norm": zeros(8), "k_norm": zeros(16)}, ValueError, r"q_norm has shape \(8,\); it must be \(16,\)")):
        for launch in (rope_split_cache, rope_split_cache_three_launches):
            with pytest.raises(error, match=message):
                launch(**good | change)
