"""Targets: which rows are compared, when one is met, and that each names a size that its operation is timed at."""

import json
from dataclasses import replace

import pytest

from labkit.measure import targets
from labkit.measure.ops import HOMES, op
from labkit.measure.targets import SERIES_TARGETS, TARGETS, Target, evaluate
from tests import made_up

SIZE = {"n": 10**9}
RATE = Target("addition", "vector_add", SIZE, "GB/s", "PyTorch", ratio=0.85)


def one(target, ladder=None):
    ladder = made_up.ladder() if ladder is None else ladder
    (row,) = evaluate({"ops": {"vector_add": [ladder.to_json()]}}, (target,))
    return row


def test_the_fastest_rung_is_held_against_the_baseline():
    row = one(RATE)
    assert (row.rung, row.baseline) == ("vector_add_fast", "PyTorch")
    assert row.value == pytest.approx(800.0)
    assert row.baseline_value == pytest.approx(900.0)
    assert row.ratio == pytest.approx(8 / 9)
    assert row.met is True
    assert one(replace(RATE, ratio=0.9)).met is False


def test_a_figure_is_a_floor_for_rates_and_a_ceiling_for_times():
    assert one(replace(RATE, ratio=None, figure=790.0)).met is True
    assert one(replace(RATE, ratio=None, figure=810.0)).met is False
    ms = Target("addition", "vector_add", SIZE, "ms", "PyTorch", figure=15.1)
    assert one(ms).value == pytest.approx(15.0)
    assert one(ms).met is True
    assert one(ms).ratio == pytest.approx(8 / 9), "a ratio of speeds, not of times"
    assert one(replace(ms, figure=14.9)).met is False


def test_times_in_a_graph_need_a_graph():
    graphs = Target("addition", "vector_add", SIZE, "us in a graph", "PyTorch", ratio=0.5)
    assert one(graphs).met is None
    ladder = made_up.ladder()
    rows = tuple(replace(row, graph=made_up.timing(0.010 if row.kind == "rung" else 0.020)) for row in ladder.rows)
    row = one(graphs, replace(ladder, rows=rows))
    assert row.value == pytest.approx(10.0)
    assert row.ratio == pytest.approx(2.0)


def test_failed_compiled_and_other_rungs_are_left_out():
    ladder = made_up.ladder()
    slow, fast, host, baseline = ladder.rows
    failed = replace(ladder, rows=(slow, replace(fast, failed="too slow"), host, baseline))
    assert one(RATE, failed).rung == "vector_add_slow"
    assert one(replace(RATE, only="slow")).rung == "vector_add_slow"
    assert one(replace(RATE, without=("fast",))).rung == "vector_add_slow"
    compiled = replace(baseline, name="PyTorch, torch.compile", gbs=5000.0)
    assert one(RATE, replace(ladder, rows=(*ladder.rows, compiled))).baseline == "PyTorch"


def test_what_was_not_measured_is_named():
    row = one(replace(RATE, size={"n": 5}))
    assert (row.met, row.value, row.baseline_value) == (None, None, None)
    shown = str(targets.table([row, one(RATE), one(replace(RATE, ratio=0.9, why="the tail of the grid."))]))
    for part in ("not measured", "yes", "no", "1 of 2 met", "0.85 of its speed", "the tail of the grid"):
        assert part in shown
    json.dumps(targets.to_json([row]), allow_nan=False)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.work)
def test_each_target_names_an_operation_and_its_axes(target):
    if target.op not in HOMES:
        pytest.skip(f"{target.op} is not among the operations yet")
    one = op(target.op)
    assert target.size.keys() == one.work.timed_gpu.keys()
    assert (target.ratio is None) != (target.figure is None)
    named = [r.__name__ for r in one.rungs if not r.failed and target.only in r.__name__
             and not any(part in r.__name__ for part in target.without)]
    assert named, f"no rung of {target.op} can meet it"


# --- What series answer ----------------------------------------------------------------------------------------------

MINILM = {"rows": [
    {"sentences": 64, "tokens": 16, "ours": {"packed": {"us_a_sentence": 1.8}, "padded": {"us_a_sentence": 2.5}},
     "torch": {"eager": 9.0, "SDPA, in a graph": 5.4, "compiled": None, "compiled: why not": "no compiler"}},
    {"sentences": 1, "tokens": 128, "ours": {"few rows": {"us_a_sentence": 76.0}}, "torch": None}]}
CORPUS = {"ours": [
    {"form": "packed", "batch": 256, "sentences_per_second": 390_000.0},
    {"form": "packed", "batch": 1024, "sentences_per_second": 410_000.0},
    {"form": "padded", "batch": 64, "sentences_per_second": 200_000.0}],
    "torch": [{"batch": 64, "called_sentences_per_second": 30_000.0, "graph_sentences_per_second": None}],
    "text": {"ours_seconds_256": 0.03, "ours_seconds_2000": 0.02, "tokenizing_seconds": 0.01,
             "library_seconds_32": 0.5, "library_seconds_256": 0.09}}


def of_series(series):
    return {row.work.removeprefix("MiniLM, f16, "): row for row in
            evaluate({"ops": {}, "series": series}, [one for one in SERIES_TARGETS if one.work.startswith("MiniLM")])}


def test_the_fastest_of_a_series_is_held_against_the_fastest_baseline():
    rows = of_series({"minilm": MINILM, "minilm_corpus": CORPUS})
    batch = rows["64 sentences of 16 tokens"]
    assert (batch.rung, batch.value, batch.baseline, batch.baseline_value) == (
        "packed", 1.8, "PyTorch, SDPA, in a graph", 5.4)
    assert batch.ratio == pytest.approx(3.0) and batch.met is True
    alone = rows["1 sentence of 128 tokens"]
    assert alone.met is False and alone.ratio is None and alone.baseline_value is None
    assert rows["64 sentences of 128 tokens"].met is None, "the series has no such row"
    packed, padded = (rows[f"2,000 sentences by length, {form}"] for form in ("packed", "padded"))
    assert (packed.rung, packed.value, packed.met) == ("packed, 1,024 a batch", 410_000, True)
    assert packed.baseline == "PyTorch, called, 64 a batch" and packed.ratio == pytest.approx(410 / 30)
    assert padded.met is False
    texts = rows["2,000 texts to embeddings"]
    assert texts.ratio == pytest.approx(4.5) and texts.met is False and "2000 a batch" in texts.rung
    json.dumps(targets.to_json(list(rows.values())), allow_nan=False)


def test_a_token_is_held_against_its_figure_and_a_launch_for_each_operation():
    series = {"rows": [{"form": form, "position": position, "us": us} for form, position, us in (
        ("a launch for each operation, float32", 1023, 600.0), ("five a layer, float32", 1023, 290.0),
        ("five a layer, float32", 16, 200.0), ("five a layer, float16", 1023, 210.0))]}
    wide, half = (row for row in evaluate({"ops": {}, "series": {"token_times": series}}, SERIES_TARGETS)
                  if row.op == "token_times")
    assert (wide.value, wide.baseline_value, wide.ratio, wide.met) == (290.0, 600.0, pytest.approx(600 / 290), True)
    assert half.rung == "five a layer, float16" and half.met is False and half.asked == "at most 200 us"


def test_what_no_series_answers_is_not_measured_yet():
    rows = of_series({"minilm_corpus": {**CORPUS, "torch": [], "text": {"why_not": "UserError: no weights"}}})
    assert [row.met for row in rows.values()] == [None] * 5 + [False, True, None]
    texts = targets.table(list(rows.values())).rows[-1]
    assert texts[0].endswith("2,000 texts to embeddings") and texts[-2:] == ("5 times as fast", "not measured yet")


DECODE = {"rows": [
    {"sequences": 1, "ms": {"p50": 0.75}, "torch": {"eager, in a graph": 2.1, "compiled, in a graph": 1.15}},
    {"sequences": 32, "ms": {"p50": 1.3}, "torch": {"eager, in a graph": None, "eager: why not": "no memory"}},
    {"sequences": 64, "ms": {"p50": 1.5}, "torch": None}]}
LOAD = {"rows": [
    {"name": "all at once", "tokens_per_second": 14_000.0},
    {"name": "all at once, larger steps", "tokens_per_second": 16_000.0},
    {"name": "contiguous, static", "tokens_per_second": 5_000.0},
    {"name": "pages, continuous", "tokens_per_second": 12_000.0}]}


def test_the_engines_series_are_held_against_their_goals():
    rows = evaluate({"ops": {}, "series": {
        "llama_decode": DECODE, "llama_prefill": {"rows": [{"tokens": 4096, "ms": {"p50": 16.0}, "torch": None}]},
        "engine": LOAD, "engine_start": {"seconds": 13.0}}}, [one for one in SERIES_TARGETS if "Llama" in one.work])
    found = [(row.value, row.baseline, row.baseline_value, row.met) for row in rows]
    assert found == [
        (0.75, "PyTorch, compiled, in a graph", 1.15, True), (1.3, "PyTorch", None, False),
        (None, "PyTorch", None, None), (None, "PyTorch", None, None), (16.0, "PyTorch", None, True),
        (16_000.0, "-", None, True), (16_000.0, "-", None, False),
        (12_000.0, "contiguous, static", 5_000.0, True), (13.0, "-", None, False)]
    assert rows[0].ratio == pytest.approx(1.15 / 0.75) and rows[7].ratio == pytest.approx(2.4)
    assert [row[-2] for row in targets.table(rows).rows][:6:5] == ["at most 0.8 ms", "at least 15,000 tokens/s"]


def test_the_server_is_held_against_the_engine_alone():
    series = {"closed": {"output_throughput": 20_000.0}, "alone": {"tokens_per_second": 25_000.0},
              "half_load": {"median_ttft_ms": 90.0}, "loop_lag": {"closed": {"p50": 1.0, "p99": 21.0}}}

    def judged(found):
        about = [one for one in SERIES_TARGETS if one.series == "serve"]
        rows = evaluate({"ops": {}, "series": {"serve": found}}, about)
        return [(row.value, row.baseline_value, row.met) for row in rows]

    assert judged(series) == [(20_000.0, 25_000.0, False), (90.0, None, True), (21.0, None, False)]
    series["closed"]["output_throughput"], series["loop_lag"]["closed"] = 21_300.0, None
    assert judged(series) == [(21_300.0, 25_000.0, True), (90.0, None, True), (None, None, None)]
