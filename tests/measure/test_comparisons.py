"""Comparisons: the baseline is the fastest of all that was measured, no workload stands twice, and README's two tables
give one time for one thing."""

import re
from dataclasses import replace

import pytest

from labkit import measure
from labkit._common import paths
from labkit._common.files import read_json
from labkit.kernels.baselines import forms, is_eager
from labkit.measure import Ladder, LadderRow, comparisons
from labkit.measure.comparisons import compare, of_ladder
from labkit.measure.ops import HOMES, op
from tests import made_up

RECORDED = read_json(paths.MEASUREMENTS / "nvidia-h200.json")


def ladder_with(*baselines: tuple[str, float], graph: float | None = None) -> Ladder:
    """The made-up ladder of 30 and 15 ms with these baselines: names and milliseconds. Eager PyTorch is slower."""
    ladder = made_up.ladder()
    if baselines and not any(is_eager(name) for name, _ in baselines):
        baselines += (("PyTorch", 99.0),)
    rows = [replace(row, graph=graph and made_up.timing(graph)) for row in ladder.rungs]
    rows += [LadderRow(name, "", "baseline", made_up.timing(ms)) for name, ms in baselines]
    return replace(ladder, rows=(*rows, ladder.row("NumPy, on the host")))


def test_the_baseline_is_the_fastest_whichever_it_is():
    times = {"PyTorch": 9.0, "PyTorch, compiled": 8.0, "Triton": 7.5, "CuPy (cuBLAS)": 8.5, "CUB": 12.0}
    for fastest in times:
        one = of_ladder(ladder_with(*{**times, fastest: 5.0}.items()))
        assert one.baseline == (fastest, 5.0) and one.ratio == pytest.approx(5 / 15)
        assert one.eager == ("PyTorch", 5.0 if fastest == "PyTorch" else 9.0)
    assert one.ours == ("vector_add_fast", 15.0)


def test_no_ratio_without_a_compiled_pytorch():
    one = of_ladder(ladder_with(("PyTorch (two calls)", 30.0)))
    assert (one.baseline, one.ratio, one.why_not) == (None, None, comparisons.NOT_COMPILED)
    assert one.eager_ratio == pytest.approx(2.0)
    assert of_ladder(ladder_with()).why_not == "no library was measured"


def test_no_ratio_while_a_form_of_a_baseline_waits_to_be_measured():
    """A recording that is older than its strongest baseline says nothing about it; what was tried and failed counts."""
    ladder = ladder_with(("PyTorch, compiled", 10.0))
    ladder = replace(ladder, rows=tuple(row for row in ladder.rows if row.name != "PyTorch"))
    one = of_ladder(ladder)
    assert (one.ratio, one.why_not) == (None, "not measured yet: PyTorch")
    assert of_ladder(replace(ladder, skipped={"PyTorch": "no memory"})).ratio == pytest.approx(10 / 15)


def test_times_in_a_graph_are_the_ones_compared():
    one = of_ladder(ladder_with(("PyTorch", 0.5), ("PyTorch, compiled", 0.4), graph=0.2))
    assert one.ours[1] == 0.2 and one.ratio == pytest.approx(2.0) and one.text(one.ours) == "200 us"


def test_rungs_that_failed_or_compute_less_exactly_are_left_out(monkeypatch):
    ladder = ladder_with(("PyTorch, compiled", 10.0))
    slow, fast, *rest = ladder.rows
    assert of_ladder(replace(ladder, rows=(slow, replace(fast, failed="no"), *rest))).ours[0] == "vector_add_slow"
    rough = replace(op("vector_add").rungs[0], tolerance=lambda *inputs: 1.0)
    object.__setattr__(rough, "__name__", "vector_add_fast")
    monkeypatch.setattr(comparisons, "op", lambda name: op(name).with_rungs(rough))
    assert of_ladder(ladder).ours[0] == "vector_add_slow"


def allowing(error: float):
    return lambda *inputs: error


@pytest.mark.parametrize(("own", "ours"), [
    ({"fast": allowing(0.2)}, "slow"), ({"fast": allowing(0.2), "PyTorch": allowing(0.2)}, "fast"),
    ({"fast": allowing(0.2), "PyTorch": allowing(0.3)}, "fast"),
    ({"fast": allowing(0.2), "PyTorch": allowing(0.1)}, "slow"),
    ({"fast": allowing(0.2), "CuPy": allowing(0.2)}, "slow"),  # not the fastest baseline
    ({"PyTorch": allowing(0.2)}, "fast")])
def test_a_rung_with_a_tolerance_of_its_own_is_compared_with_a_baseline_that_is_allowed_as_much(monkeypatch, own, ours):
    tolerances(monkeypatch, own)
    one = of_ladder(ladder_with(("PyTorch", 9.0), ("PyTorch, compiled", 8.0), ("CuPy", 20.0)))
    assert one.ours[0] == f"vector_add_{ours}"
    assert (one.baseline, one.eager) == (("PyTorch, compiled", 8.0), ("PyTorch", 9.0))


def test_a_rung_with_a_tolerance_of_its_own_is_not_compared_with_more_exact_ones(monkeypatch):
    tolerances(monkeypatch, {"fast": allowing(0.2), "CuPy": allowing(0.2)})
    one = of_ladder(ladder_with(("PyTorch", 9.0), ("PyTorch, compiled", 8.0), ("CuPy", 5.0)))
    assert (one.ours[0], one.baseline, one.eager) == ("vector_add_fast", ("CuPy", 5.0), None)
    assert of_ladder(ladder_with()).ours[0] == "vector_add_slow", "there is no baseline"


def tolerances(monkeypatch, own: dict) -> None:
    """Give the made-up ladder's operation these tolerances, of rungs and of baselines, by their names."""
    one, names = op("vector_add"), ("slow", "fast")
    rungs = [replace(one.rungs[0], tolerance=own.get(name)) for name in names]
    for rung, name in zip(rungs, names, strict=True):
        object.__setattr__(rung, "__name__", f"vector_add_{name}")
    baselines = tuple(replace(each, tolerance=own.get(each.name)) for each in one.baselines)
    monkeypatch.setattr(comparisons, "op", lambda name: replace(one.with_rungs(*rungs), baselines=baselines))


def test_one_workload_has_one_row():
    slower, faster = ladder_with(("PyTorch, compiled", 9.0)), ladder_with(("PyTorch, compiled", 9.0), graph=0.1)
    (one,) = compare({"ops": {"vector_add": [slower.to_json(), faster.to_json()]}})
    assert one.ours[1] == 0.1
    other = ladder_with(("PyTorch, compiled", 4.0))
    merged = comparisons._merged(of_ladder(faster), of_ladder(other))
    assert (merged.ours[1], merged.baseline[1]) == (0.1, 4.0), "each side has its fastest"


def test_which_operations_do_the_same_work():
    """All others are apart: of other types, or of another formula."""
    alike = {}
    for name in HOMES:
        alike.setdefault(comparisons.workload(name), []).append(name)
    assert [found for found in alike.values() if len(found) > 1] == [
        ["fused_linear", "skinny_linear", "projection"], ["fused_linear_residual", "one_row_residual"],
        ["streamed_linear", "linear_bf16"]]


# --- The recording ---------------------------------------------------------------------------------------------------


def test_every_baseline_that_was_recorded_is_in_the_comparison():
    """No row of a ladder is faster than what its comparison names, and no ladder with a baseline is left out."""
    found = compare(RECORDED)
    by_workload = {(one.source, str(one.size)): one for one in found}
    for name, entries in RECORDED["ops"].items():
        for ladder in map(Ladder.from_json, entries):
            others = [row for row in ladder.rows if row.kind == "baseline"]
            one = by_workload.get((name, str(ladder.size)))
            if one is None:  # the same work as another operation's
                one = next(each for each in found if each.source in HOMES and each.size == ladder.size
                           and comparisons.workload(each.source) == comparisons.workload(name))
            if one.baseline is not None:
                assert one.baseline[1] <= min(row.ms for row in others)


def test_the_fp8_product_on_tensor_cores_is_compared_with_pytorchs():
    """Both have the tolerance of tensor cores, which cut sums short."""
    found = [one for one in compare(RECORDED) if one.source == "linear_fp8"]
    assert found and all(one.ours[0] == "linear_fp8_wgmma" and one.ratio > 0.5 for one in found)


def _of_libraries(one: comparisons.Comparison) -> list:
    """What was recorded of other libraries at this work of a series, in its unit; None where a way did not run."""
    series = RECORDED["series"][one.source]
    if one.source == "engine":
        return []  # transformers' batching is no baseline
    if one.source == "minilm_corpus":
        if one.unit == "s":
            return [value for key, value in series["text"].items() if re.match("(torch|library)_seconds_", key)]
        return [value for row in series["torch"] for key, value in [*row.items(), *row["compiled_ways"].items()]
                if key.endswith("sentences_per_second") or key in row["compiled_ways"]]
    if one.source == "token_times":
        return [row["us"] and row["us"] / 1000 for row in series["torch"]
                if {"dtype": row["dtype"], "position": row["position"]} == one.size]
    (row,) = (row for row in series["rows"] if one.size.items() <= row.items())
    return list(row["torch"].values())


def test_no_recorded_way_of_a_library_is_left_out_of_a_series():
    """The fastest of all of them is the baseline, whatever it is called."""
    found = [one for one in compare(RECORDED) if one.source in comparisons.SERIES]
    assert {one.source for one in found} == set(comparisons.SERIES)
    for one in found:
        numbers = [value for value in _of_libraries(one) if isinstance(value, int | float)]
        if numbers:
            fastest = max(numbers) if one.unit.endswith("/s") else min(numbers)
            assert one.baseline is not None and one.baseline[1] == fastest, one.work
        else:
            assert one.baseline is None, one.work


# Operations whose recording is older than their strongest baseline.
OLDER = ("linear_attention", "paged_decode", "paged_prefill", "attention_sentences_half")
# Recorded before cuBLAS's product was compiled as well.
EAGER = ("linear_int4", "linear_int8", "linear_fp8_weights")


def test_every_other_operation_was_recorded_beside_a_compiled_pytorch():
    without = {one.source for one in compare(RECORDED) if one.ratio is None and one.source in HOMES}
    assert without == {*OLDER, *EAGER}
    for name in set(HOMES) - {*OLDER, *EAGER}:
        wanted = {form.title for one in op(name).baselines for form in forms(one)}
        for ladder in map(Ladder.from_json, RECORDED["ops"].get(name, ())):
            assert wanted <= {row.name for row in ladder.rows} | ladder.skipped.keys(), name


def test_a_baseline_of_pytorch_says_so():
    """A row is eager by its name."""
    for name in HOMES:
        for one in op(name).baselines:
            if one.library == "torch" and one.compile is not False:
                assert is_eager(one.title)


# --- What series answer ----------------------------------------------------------------------------------------------

MINILM = {"rows": [
    {"sentences": 64, "tokens": 16, "ours": {"packed": {"us_a_sentence": 1.8}, "padded": {"us_a_sentence": 2.5}},
     "torch": {"eager": 9.0, "SDPA, in a graph": 5.4, "compiled, in a graph": 4.5, "compiled: why not": "no"}},
    {"sentences": 1, "tokens": 128, "ours": {"few rows": {"us_a_sentence": 76.0}}, "torch": None}]}
CORPUS = {"sentences": 2000, "ours": [
    {"form": "packed", "batch": 256, "sentences_per_second": 390_000.0},
    {"form": "packed", "batch": 1024, "sentences_per_second": 410_000.0},
    {"form": "padded", "batch": 64, "sentences_per_second": 200_000.0}],
    "torch": [{"batch": 64, "called_sentences_per_second": 30_000.0, "graph_sentences_per_second": None,
               "compiled_ways": {"FlexAttention": 205_000.0, "varlen": None, "varlen: why not": "no"}}],
    "text": {"ours_seconds_256": 0.03, "ours_seconds_2000": 0.02, "library_seconds_32": 0.5,
             "torch_seconds_256": 0.03, "torch_seconds_2000": None}}


def of_series(**series) -> list:
    return compare({"ops": {}, "series": series})


def test_series_of_minilm():
    batch, alone = of_series(minilm=MINILM)
    assert batch.ours == ("packed", 1.8) and batch.baseline == ("PyTorch, compiled, in a graph", 4.5)
    assert batch.ratio == pytest.approx(2.5) and batch.eager_ratio == pytest.approx(3.0)
    assert alone.ratio is None and alone.why_not == comparisons.NOT_COMPILED
    corpus, texts = of_series(minilm_corpus=CORPUS)
    assert corpus.ours == ("packed, 1,024 a batch", 410_000) and corpus.ratio == pytest.approx(2.0)
    assert "FlexAttention" in corpus.baseline[0] and corpus.eager[1] == 30_000
    assert texts.ratio == pytest.approx(1.5) and "fast tokenizer" in texts.baseline[0]
    text = {key: value for key, value in CORPUS["text"].items() if "torch" not in key}
    _, texts = of_series(minilm_corpus={**CORPUS, "text": text})
    assert (texts.ratio, texts.eager, texts.why_not) == (None, None, comparisons.NOT_COMPILED)
    assert len(of_series(minilm_corpus={**CORPUS, "text": {"why_not": "no weights"}})) == 1


def test_a_token_is_compared_within_its_type():
    rows = [{"form": f"{form}, {dtype}", "position": position, "us": us} for form, dtype, position, us in (
        ("a launch for each operation", "float32", 1023, 600.0), ("five a layer", "float32", 1023, 290.0),
        ("five a layer", "float32", 16, 200.0), ("five a layer", "float16", 1023, 210.0))]
    theirs = [{"dtype": dtype, "position": 1023, "way": way, "us": us} for dtype, way, us in (
        ("float32", "eager, in a graph", 900.0), ("float32", "compiled, in a graph", 580.0),
        ("float16", "eager, in a graph", 400.0), ("float16", "compiled, in a graph", None))]
    wide, half = of_series(token_times={"rows": rows, "torch": theirs})
    assert wide.ours == ("five a layer, float32", 0.29) and wide.ratio == pytest.approx(2.0)
    assert half.ratio is None and half.eager_ratio == pytest.approx(400 / 210)
    assert [one.ratio for one in of_series(token_times={"rows": rows})] == [None, None]


def test_series_of_the_engine():
    decode = {"rows": [
        {"sequences": 1, "ms": {"p50": 0.75}, "torch": {"eager, in a graph": 2.1, "compiled, in a graph": 1.15}},
        {"sequences": 2, "ms": {"p50": 0.8}, "torch": None},
        {"sequences": 32, "ms": {"p50": 1.3}, "torch": {"eager, in a graph": 2.6, "compiled: why not": "no memory"}}]}
    one, many = of_series(llama_decode=decode)
    assert one.ratio == pytest.approx(1.15 / 0.75) and one.eager_ratio == pytest.approx(2.8)
    assert many.ratio is None and many.eager_ratio == pytest.approx(2.0)
    load = {"rows": [{"name": "all at once", "tokens_per_second": 14_000.0},
                     {"name": "all at once, larger steps", "tokens_per_second": 16_000.0},
                     {"name": "contiguous, static", "tokens_per_second": 5_000.0}]}
    (engine,) = of_series(engine=load)
    assert engine.ours[1] == 16_000 and engine.baseline is None, "no ratio to a slower form of our own"
    (engine,) = of_series(engine={**load, "transformers": {"tokens_per_second": 1000.0}})
    assert engine.ratio is None and engine.why_not == "vLLM was not measured; transformers' batching: 1,000 tokens/s"


def test_the_summary_counts():
    three = [of_ladder(ladder_with(("PyTorch, compiled", ms))) for ms in (7.5, 15.0, 60.0)]
    assert comparisons.summary([*three, of_ladder(ladder_with())]) == (
        "Of 3 workloads a library is faster in 1, within 5% of us in 1, and slower in 1; the geometric mean of the "
        "ratios is 1.26. 1 more workload has no ratio.")
    assert "yet" in comparisons.summary([])
    assert measure.recorded_ladder("softmax") is not None
