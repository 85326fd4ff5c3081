"""Sampling: every rung draws the reference's token, the reference means what the parameters say, and a row's draw
depends on the row alone."""

import numpy as np
import pytest

from labkit import cuda
from labkit.device import graphs
from labkit.engine.sampler import Sampler
from labkit.kernels import sampling
from labkit.kernels.agree import agree
from labkit.kernels.ops.sampling import SAMPLE, SAMPLE_TOP_P
from labkit.kernels.philox import philox_reference, seed_words
from labkit.kernels.sampling import Parameters, Scratch, sample
from labkit.kernels.sampling_reference import (
    drawn_reference,
    kept_reference,
    probabilities_reference,
    sample_reference,
    weights_reference,
)
from labkit.kernels.sampling_search import EMPTY_ROW, NAN_ROW, load_narrow, load_wide
from labkit.measure.ops import op

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

INF = np.inf
V = 4095  # of the tests in the usual run: one chunk, read as the models of other tests are, one number at a time


def drawn(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, step=0, parts=None):
    """(tokens, logprobs, scratch) of one launch; each parameter is a number for all rows, or one for each."""
    logits = np.ascontiguousarray(logits, np.float32)
    rows, cols = logits.shape
    every = [np.broadcast_to(value, rows) for value in (temperature, top_k, top_p, min_p)]
    seeds = [seed_words(int(one)) for one in np.broadcast_to(seed, rows)]
    parameters = Parameters.to_device(*every, seeds, np.broadcast_to(step, rows))
    tokens, logprobs = cuda.device_array(rows, np.int32), cuda.device_array(rows, np.float32)
    scratch = Scratch.allocate(rows, cols)
    sampling._launch_split(cuda.to_device(logits), parameters.arrays, tokens, logprobs, scratch, 0, parts)
    return tokens.copy_to_host(), logprobs.copy_to_host(), scratch


@pytest.mark.sweep
def test_the_best_rung_agrees():
    assert agree(SAMPLE, ("sample_split",), sizes=({"R": 24, "V": 33}, {"R": 12, "V": V}), seed=1).passed
    assert op("sample") is SAMPLE and op("sample_top_p") is SAMPLE_TOP_P


@pytest.mark.sampled(0, sweep=3)
@pytest.mark.parametrize("launcher", SAMPLE.rungs, ids=lambda launcher: launcher.__name__)
@pytest.mark.parametrize("operation", [SAMPLE, SAMPLE_TOP_P], ids=lambda operation: operation.name)
def test_every_rung_agrees_at_every_size(operation, launcher):
    assert agree(operation, (launcher,), seed=2).passed


@cuda.jit
def copy_wide_kernel(logits, out):
    row, col = cuda.blockIdx.x, 4 * cuda.threadIdx.x
    out[row, col], out[row, col + 1], out[row, col + 2], out[row, col + 3] = load_wide(
        logits, np.uint32(row), np.uint32(col), np.uint32(logits.shape[1]))


@cuda.jit
def copy_narrow_kernel(logits, out):
    row, col = cuda.blockIdx.x, 4 * cuda.threadIdx.x
    out[row, col], out[row, col + 1], out[row, col + 2], out[row, col + 3] = load_narrow(
        logits, np.uint32(row), np.uint32(col), np.uint32(logits.shape[1]))


@pytest.mark.parametrize(("kernel", "cols"), [(copy_wide_kernel, 8), *((copy_narrow_kernel, n) for n in (5, 6, 7, 8))])
def test_both_loads_give_four_neighbours_and_what_weighs_nothing_beyond_the_row(kernel, cols):
    """All that the two forms of a kernel differ by."""
    logits, out = np.random.default_rng(3).random((2, cols), np.float32), cuda.device_array((2, 12), np.float32)
    kernel[2, 3](cuda.to_device(logits), out)
    np.testing.assert_array_equal(out.copy_to_host()[:, :cols], logits)
    assert (out.copy_to_host()[:, cols:] == -INF).all()


# --- The reference ---------------------------------------------------------------------------------------------------


def cases(rng, cols):
    """Rows that are hard to cut: (name, logits)."""
    yield "normal", rng.standard_normal(cols) * 3
    yield "few different values", np.round(rng.standard_normal(cols))
    yield "all equal", np.full(cols, -7.25)
    yield "one far above", np.where(np.arange(cols) == cols // 2, 1e30, rng.standard_normal(cols))
    yield "very flat", rng.standard_normal(cols) * 1e-6
    yield "the ends of float32", rng.choice([3.4e38, -3.4e38, 1e-45, 0.0, -0.0], cols)
    yield "forbidden but one", np.where(np.arange(cols) == cols - 1, 2.0, -INF)
    yield "several infinite", np.where(rng.random(cols) < 0.3, INF, rng.standard_normal(cols))
    yield "neighbouring floats", np.nextafter(np.float32(1), np.float32(2)) ** rng.integers(0, 4, cols)


PARAMETERS = ({}, {"temperature": 0.3}, {"temperature": 30.0}, {"top_k": 1}, {"top_k": 7}, {"top_p": 0.01},
              {"top_p": 0.5}, {"top_p": 0.95}, {"min_p": 0.2}, {"min_p": 1.0},
              {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
              {"temperature": 1.3, "top_k": 9, "top_p": 0.4, "min_p": 0.05})


def test_weights_are_probabilities():
    """The integers against float64, for each choice alone and together: the same tokens are kept, and they are as
    likely."""
    rng = np.random.default_rng(4)
    for cols in (1, 2, 33, 500):
        for name, logits in cases(rng, cols):
            x = logits.astype(np.float32)
            if np.abs(x).max() > 1e38 or name == "one far above":
                continue  # only the maximum weighs anything: the kept ones of float64 are others, of probability 0
            for parameters in PARAMETERS:
                values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | parameters
                kept = kept_reference(x, **values)
                expected = probabilities_reference(x, **{k: float(np.float32(v)) if k != "top_k" else v
                                                         for k, v in values.items()})
                shares = kept / kept.sum()
                # Those too unlikely to weigh anything are 0 on one side alone.
                different = ((kept > 0) != (expected > 0)) & (shares + expected > 1e-10)
                assert not different.any(), (name, cols, parameters)
                np.testing.assert_allclose(shares, expected, rtol=2e-5, atol=1e-12,
                                           err_msg=f"{name}, {cols}, {parameters}")


def test_the_weights_fall_with_the_logits_and_are_as_exact_as_float32():
    x = -np.arange(0, 20, 1e-3, np.float32)
    weights = weights_reference(x, 1.0)
    assert weights[0] == 2**43 and (np.diff(weights) <= 0).all()
    np.testing.assert_allclose(weights / 2**43, np.exp(x.astype(np.float64)), rtol=3e-6, atol=2**-43)


@pytest.mark.parametrize("parameters", PARAMETERS[:9], ids=str)
def test_it_is_what_the_host_samples(parameters):
    """Where the two overlap, with min_p left out."""
    if "min_p" in parameters:
        return
    logits = np.random.default_rng(5).standard_normal(300).astype(np.float32) * 2
    host = Sampler(**{"top_k": None, "top_p": None} | parameters).probabilities(logits)
    np.testing.assert_allclose(probabilities_reference(logits, **parameters), host, rtol=1e-12, atol=0)


def test_a_draw_is_the_inverse_of_the_distribution():
    kept = np.array([0, 3, 0, 1, 4], np.int64)
    below = [(0, 1), (2**64 * 3 // 8 - 1, 1), (2**64 * 3 // 8 + 1, 3), (2**63, 4), (2**64 - 1, 4)]
    for number, token in below:
        assert drawn_reference(kept, (number & 0xFFFFFFFF, number >> 32)) == token


def test_a_draw_lies_where_float64_has_it():
    """Every draw, those at a boundary too: its number lies between the sums of probabilities before and after the
    token, each of which is right to within 1e-6."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        x = (rng.standard_normal(700) * 3).astype(np.float32)
        after = np.cumsum(probabilities_reference(x, 0.8, top_k=300))
        kept = kept_reference(x, 0.8, 300, 1.0, 0.0)
        edges = np.clip(np.concatenate([after, after + 1e-15, after - 1e-15]), 0, 1 - 2**-53)
        for number in np.concatenate([rng.random(100), edges]):
            whole = int(number * 2**64)
            token = drawn_reference(kept, (whole & 0xFFFFFFFF, whole >> 32))
            assert kept[token] > 0
            assert (after[token - 1] if token else 0) - 1e-6 <= number <= after[token] + 1e-6


# --- Kept tokens and draws -------------------------------------------------------------------------------------------


def kept_on_device(logits, scratch):
    """Which tokens of each row the device keeps, from the threshold and the least weight that it found."""
    keys = np.where(logits == 0, np.float32(0), logits).astype(np.float32).view(np.int32).astype(np.int64)
    keys = np.where(keys < 0, keys ^ 0x7FFFFFFF, keys) << 32 | (~np.arange(logits.shape[1]) & 0xFFFFFFFF)
    thresholds, least = scratch.thresholds.copy_to_host(), scratch.least_weights.copy_to_host()
    return keys >= thresholds[: len(logits), None], least[: len(logits)]


@pytest.mark.sweep
@pytest.mark.parametrize("cols", [V, 1, 2, 31, 32, 33, 4096, 4099, 20_000, 128_256])
def test_hard_rows_keep_the_same_tokens(cols):
    """Each hard row with each choice of parameters in one batch: the kept set, token for token, and the draw."""
    rng = np.random.default_rng(cols)
    rows = [row.astype(np.float32) for _, row in cases(rng, cols)]
    chosen = PARAMETERS if cols < 100_000 else PARAMETERS[3:]
    logits = np.concatenate([np.stack(rows)] * len(chosen))
    given = {name: np.repeat([one.get(name, default) for one in chosen], len(rows))
             for name, default in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))}
    steps = np.arange(len(logits))
    tokens, _, scratch = drawn(logits, **given, seed=cols, step=steps)
    above, least = kept_on_device(logits, scratch)
    for row, x in enumerate(logits):
        values = {name: array[row] for name, array in given.items()}
        kept = kept_reference(x, values["temperature"], int(values["top_k"]), values["top_p"], values["min_p"])
        weights = weights_reference(x, values["temperature"])
        np.testing.assert_array_equal(above[row] & (weights >= least[row]), kept > 0, err_msg=str((row, values)))
        assert tokens[row] == drawn_reference(kept, philox_reference((row, 0, 0, 0), seed_words(cols))), (row, values)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["all equal", "few different values", "normal"])
def test_more_candidates_than_fit_and_two_chunks(kind):
    cols = 8192 + 36
    x = dict(cases(np.random.default_rng(12), cols))[kind].astype(np.float32)
    given = ({"top_p": 0.6}, {"top_k": 5000}, {"top_k": 6000, "top_p": 0.7}, {"top_k": 200},
             {"top_p": 0.9, "min_p": 0.1})
    values = [{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | one for one in given]
    tokens, _, scratch = drawn(np.tile(x, (len(given), 1)), seed=3, step=np.arange(len(given)),
                               **{name: [one[name] for one in values] for name in values[0]})
    above, least = kept_on_device(np.tile(x, (len(given), 1)), scratch)
    for row, one in enumerate(values):
        kept = kept_reference(x, **one)
        enough = weights_reference(x, 1.0) >= least[row]
        np.testing.assert_array_equal(above[row] & enough, kept > 0, err_msg=str(one))
        assert tokens[row] == drawn_reference(kept, philox_reference((row, 0, 0, 0), seed_words(3))), one


@pytest.mark.sweep
def test_few_tokens_are_left_to_choose_from():
    """Of logits as a language model has them: otherwise the row is read again and again, by one block."""
    logits = (2.5 * np.random.default_rng(14).standard_normal((5, 8192 + 36))).astype(np.float32)
    _, _, scratch = drawn(logits, 0.8, top_k=[0, 50, 50, 3000, 0], top_p=[0.9, 1, 0.9, 1, 0.99])
    gathered = scratch.gathered.copy_to_host()
    assert (gathered >= 1).all() and (gathered <= [100, 20, 100, 100, 100]).all(), gathered


@pytest.mark.sweep
def test_a_histogram_that_is_wrong_costs_only_time(monkeypatch):
    """It names the bins, in float32; the sums that decide are exact, and show where it was wrong."""

    class Spoiled:
        def __init__(self, kernel, amounts):
            self.kernel, self.amounts = kernel, amounts

        def __getitem__(self, configuration):
            def launch(*arguments):
                arguments[7].copy_to_device(self.amounts)
                self.kernel[configuration](*arguments)

            return launch

    make, rng = sampling.make_split, np.random.default_rng(13)
    logits = (2 * rng.standard_normal((4, V))).astype(np.float32)
    right, _, _ = drawn(logits, top_p=0.8, seed=5)
    for bin_of_all in (0, 3, 400):
        amounts = np.zeros((4, 512), np.uint32)
        amounts[:, bin_of_all] = 2**31

        def made(load, amounts=amounts):
            find_max, weigh, gather, draw = make(load)
            return find_max, weigh, Spoiled(gather, amounts), draw

        monkeypatch.setattr(sampling, "make_split", made)
        np.testing.assert_array_equal(drawn(logits, top_p=0.8, seed=5)[0], right)


def test_greedy_is_argmax_and_odd_rows_are_named():
    rng = np.random.default_rng(6)
    logits = np.round(rng.standard_normal((8, V)) * 2).astype(np.float32)  # ties
    logits[1, 5] = INF
    logits[2, 7] = np.nan
    logits[3] = -INF
    logits[4], logits[4, 9] = -INF, -3e38
    for temperature in (0.0, 1.0):
        tokens, logprobs, _ = drawn(logits, temperature)
        assert tokens[2] == NAN_ROW and tokens[3] == EMPTY_ROW and np.isnan(logprobs[2:4]).all()
        assert tokens[1] == 5 and tokens[4] == 9  # nothing else can be drawn
        np.testing.assert_array_equal(logprobs[[1, 4]], 0)
        if temperature == 0:
            np.testing.assert_array_equal(np.delete(tokens, [2, 3]), np.argmax(np.delete(logits, [2, 3], 0), axis=1))
    np.testing.assert_array_equal(drawn(logits[5:], 1.0, top_k=1)[0], np.argmax(logits[5:], axis=1))
    np.testing.assert_array_equal(drawn(logits[5:], 1.0, top_p=1e-9)[0], np.argmax(logits[5:], axis=1))


def test_logprobs_are_of_the_logits_as_given():
    logits = np.random.default_rng(7).standard_normal((6, V)).astype(np.float32) * 4
    top_k, top_p = [0, 0, 0, 3, 0, 0], [1, 1, 1, 1, 0.5, 1]
    tokens, logprobs, scratch = drawn(logits, [0, 0.5, 1, 2, 1, 1], top_k, top_p)
    x = logits.astype(np.float64)
    row_max = x.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(x - row_max).sum(axis=1))
    expected = x[np.arange(6), tokens] - row_max[:, 0] - log_sum
    np.testing.assert_allclose(logprobs, expected, rtol=1e-5, atol=1e-5)
    stats = scratch.stats.copy_to_host()
    np.testing.assert_array_equal(stats[:, 0], row_max[:, 0])
    np.testing.assert_allclose(stats[:, 1], log_sum, rtol=1e-5, atol=1e-5)


def test_a_draw_depends_on_its_row_seed_and_step_alone():
    """Bit for bit, the logprob too: alone or in a batch, in any place, however many parts a row is split into."""
    rng = np.random.default_rng(8)
    logits = rng.standard_normal((9, V)).astype(np.float32)
    given = {"temperature": rng.choice([0.7, 1.0], 9), "top_k": rng.choice([0, 30], 9),
             "top_p": rng.choice([0.9, 1.0], 9), "seed": rng.integers(0, 2**62, 9), "step": rng.integers(0, 99, 9)}
    tokens, logprobs, _ = drawn(logits, **given)
    order = rng.permutation(9)
    again, logprobs_again, _ = drawn(logits[order], **{name: value[order] for name, value in given.items()})
    np.testing.assert_array_equal(again, tokens[order])
    np.testing.assert_array_equal(logprobs_again.view(np.int32), logprobs[order].view(np.int32))
    for row in (0, 4, 8):
        alone = drawn(logits[row : row + 1], **{name: value[row : row + 1] for name, value in given.items()}, parts=1)
        assert alone[0][0] == tokens[row] and alone[1][0] == logprobs[row]
    for other in ({"seed": given["seed"] + 1}, {"step": given["step"] + 1}):
        assert (drawn(logits, **given | other)[0] != tokens).sum() > 4


def chi_square(kept, counts):
    """(statistic, degrees of freedom) of tokens drawn against their weights; rare ones are taken together."""
    expected = kept / kept.sum() * counts.sum()
    assert counts[kept == 0].sum() == 0
    rare = (expected < 8) & (kept > 0)
    groups = [(counts[i], expected[i]) for i in np.flatnonzero(~rare & (kept > 0))]
    if rare.any():
        groups.append((counts[rare].sum(), expected[rare].sum()))
    return sum((seen - wanted) ** 2 / wanted for seen, wanted in groups), len(groups) - 1


@pytest.mark.parametrize("parameters", [
    {}, *(pytest.param(one, marks=pytest.mark.slow if number % 3 else pytest.mark.sweep)
          for number, one in enumerate(PARAMETERS[1:]))], ids=str)
def test_tokens_come_as_often_as_they_should(parameters):
    """Fixed seeds, so the result is fixed: within four deviations of what chi-square is on average."""
    draws = 1000 if not parameters else 4000
    x = np.random.default_rng(9).standard_normal(63).astype(np.float32) * 2
    tokens, _, _ = drawn(np.tile(x, (draws, 1)), **parameters, seed=123, step=np.arange(draws))
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | parameters
    statistic, freedom = chi_square(kept_reference(x, **values), np.bincount(tokens, minlength=63))
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 1e-9


def test_one_graph_serves_any_parameters():
    rng = np.random.default_rng(10)
    inputs = [np.ascontiguousarray(array) for array in SAMPLE.inputs(rng, R=12, V=V)]
    logits, parameters = cuda.to_device(inputs[0]), Parameters.allocate(16).first(12)
    tokens, logprobs = cuda.device_array(12, np.int32), cuda.device_array(12, np.float32)
    scratch = Scratch.allocate(16, V)  # for more rows than these
    graph = graphs.capture(lambda stream: sample(logits, parameters, tokens, logprobs, scratch, stream=stream))
    np.testing.assert_array_equal(tokens.copy_to_host(), np.argmax(inputs[0], axis=1))  # all greedy
    for seed in range(2):
        given = SAMPLE.inputs(np.random.default_rng(seed), R=12, V=V)[1:]
        for array, values in zip(parameters.arrays, given, strict=True):
            array.copy_to_device(np.ascontiguousarray(values))
        graph.launch()
        np.testing.assert_array_equal(tokens.copy_to_host(), sample_reference(inputs[0], *given))


def test_wrong_arguments_are_named():
    logits, *parameters = (cuda.to_device(array) for array in SAMPLE.inputs(np.random.default_rng(0), R=2, V=8))
    tokens, logprobs = cuda.device_array(2, np.int32), cuda.device_array(2, np.float32)
    scratch = Scratch.allocate(2, 8)
    with pytest.raises(ValueError, match="scratch is for 1 rows of 8"):
        sample(logits, Parameters(*parameters), tokens, logprobs, Scratch.allocate(1, 8))
    with pytest.raises(TypeError, match="top_k has dtype float32"):
        sample(logits, Parameters(parameters[0], parameters[0], *parameters[2:]), tokens, logprobs, scratch)
    three = cuda.device_array((3, 2), np.uint32)
    with pytest.raises(ValueError, match="seeds has shape"):
        sample(logits, Parameters(*parameters[:4], three, parameters[5]), tokens, logprobs, scratch)
    with pytest.raises(ValueError, match="a row may have 1 to 524,288"):
        Scratch.allocate(1, 2**20)
