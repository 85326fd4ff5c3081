"""The engine under load, with a tiny model: every run gives each request its tokens, and what is noted adds up."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import device
from labkit.engine.runner import buckets
from labkit.measure import comparisons, validate
from labkit.measure.series import engine as series
from labkit.measure.series.llama import TINY
from labkit.measure.static_batching import StaticScheduler
from labkit.models.load import load
from tests import made_up
from tests.engine.fake_model import FakeRunner

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

ON_CPU = pytest.mark.cpu_device


@pytest.fixture(scope="module")
def taken():
    return json.loads(json.dumps(series.engine(), allow_nan=False))


def test_requests_are_the_same_each_time_and_of_all_lengths():
    work, again = (series.random_requests(128, 100, 1024, 61) for _ in range(2))
    assert all((one.prompt == other.prompt).all() and one.output == other.output
               for one, other in zip(work, again, strict=True))
    for lengths in ([len(one.prompt) for one in work], [one.output for one in work]):
        assert 100 <= min(lengths) < 130 and 990 < max(lengths) <= 1024 and 500 < np.mean(lengths) < 620


@ON_CPU
def test_every_way_to_run_the_requests(taken):
    rows = {row["name"]: row for row in taken["rows"]}
    assert list(rows) == ["all at once", "all at once, larger steps", "contiguous, static", "contiguous, continuous",
                          "pages, static", "pages, continuous"]
    for row in rows.values():
        assert row["tokens_per_second"] == pytest.approx(taken["output_tokens"] / row["seconds"])
        assert 0 < row["mean_sequences"] <= row["most_sequences"] <= row["seats"]
        assert 0 < row["page_use"] <= 1 and 0 < row["filled"] <= 1 and 0 <= row["host_share"] <= 1
        assert row["rows"] >= taken["prompt_tokens"] + taken["output_tokens"] - taken["requests"]
        assert row["first_token_ms"]["p99"] >= row["first_token_ms"]["p50"] > 0
        assert len(row["spans"]["seat"]) == taken["requests"] + row["preemptions"]
        assert set(row["spans"]["request"]) == set(range(taken["requests"]))
        assert len(row["over_time"]["seconds"]) == len(row["over_time"]["held_pages"]) <= series.POINTS
    assert rows["contiguous, static"]["steps"] >= rows["contiguous, continuous"]["steps"]
    assert rows["contiguous, static"]["most_sequences"] == 2


@ON_CPU
def test_a_recording_of_it_is_accepted(taken):
    recording = made_up.recording(engine=taken)
    assert validate.problems(recording) == []
    (one,) = comparisons.compare(recording)
    assert one.ours[1] > 0 and (one.baseline, one.why_not) == (None, "vLLM was not measured")


def test_what_is_noted_of_a_run_written_out():
    """Two seats: in a static batch the second request's seat is empty until the first has ended."""
    work = [series.Work(np.array([2, 3]), 6), series.Work(np.array([4]), 2), series.Work(np.array([5]), 2)]
    rows = [series.serve(FakeRunner(30, 4, 4, 64), work, seats=2, budget=16, num_pages=20, **options)
            for options in ({}, {"scheduler": StaticScheduler})]
    assert [row["spans"]["request"] for row in rows] == [[0, 1, 2], [0, 2, 1]]
    assert [row["spans"]["seat"] for row in rows] == [[0, 1, 1], [0, 0, 1]]
    continuous, static = rows
    assert continuous["pages"] == 20 and continuous["rows"] == 7 + 2 + 2 == static["rows"]
    assert static["steps"] > continuous["steps"] and static["idle_seats"] > continuous["idle_seats"]
    begins, ends = (dict(zip(static["spans"]["request"], static["spans"][key], strict=True)) for key in
                    ("begin", "end"))
    assert begins[2] > ends[0] > ends[1]


def test_a_token_that_is_missing_is_no_measurement():
    work = [series.Work(np.array([2, 3]), 70)]  # more than the model's 64
    with pytest.raises(RuntimeError, match="62 tokens came out; 70 were asked for"):
        series.serve(FakeRunner(30, 4, 4, 64), work, seats=2, budget=16)


def test_every_size_of_step_is_compiled_before_the_run(monkeypatch):
    runner = SimpleNamespace(num_pages=200, page_size=4, max_num_seqs=8, max_model_len=64, steps=[])
    runner.launch = lambda step: runner.steps.append([chunk.length for chunk in step.chunks]) or True
    monkeypatch.setattr(series.launches, "needed", lambda work: work() and [(work, ())])
    monkeypatch.setattr(series.compile_ahead, "prepare", len)
    assert series.ready(runner, 128) == len(runner.steps)
    decoding = [len(lengths) for lengths in runner.steps if set(lengths) == {1}]
    assert decoding == buckets(8)
    assert {sum(lengths) for lengths in runner.steps} >= {2, 16, 17, 33, 64, 128}
    assert [1] * 7 + [2] in runner.steps and max(map(max, runner.steps)) == 32


# --- The start -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_one_that_loads(tmp_path):
    nbytes = series.write_checkpoint(tmp_path, TINY)
    loaded = load("here", path=tmp_path, dtype="bfloat16")
    assert loaded.model.config == TINY and loaded.tokenizer.encode("w3 w60") == [3, 60]
    assert nbytes == 2 * TINY.parameters == (tmp_path / "model.safetensors").stat().st_size - 8 - int.from_bytes(
        (tmp_path / "model.safetensors").read_bytes()[:8], "little")


@pytest.mark.sweep
@ON_CPU
def test_the_start_of_a_process_until_its_first_token():
    taken = json.loads(json.dumps(series.engine_start(), allow_nan=False))
    parts = taken["parts"]
    assert parts["tokens"] == 1 and parts["prompt_tokens"] == 12 == taken["prompt"]
    assert taken["seconds"] > parts["import_s"] + parts["load_s"] + parts["first_token_s"] > 0
    assert taken["first_run_seconds"] > 0
    alone = taken["alone"]
    assert alone["load"] > alone["tokenizer"] + alone["weights"] + alone["runner"] > 0 < alone["kernels"]
    assert validate.problems(made_up.recording(engine_start=taken)) == []


def test_a_process_that_fails_or_hangs_says_so():
    with pytest.raises(RuntimeError, match="ended with 1 after .* no such model"):
        series._started("raise SystemExit('no such model')", [], 20)
    with pytest.raises(RuntimeError, match="no first token; the process ended with -9"):
        series._started("import time; time.sleep(30)", [], 0.3)
    found = series._started("import json, os; print(json.dumps({'device': os.environ['LABKIT_DEVICE']}))", [], 20)
    assert found["device"] == device.kind() and found["seconds"] > 0


def test_the_requests_of_another_engines_benchmark():
    work = series.bench_requests(256, 100, 1024, 128_256)
    assert (sum(one.output for one in work), sum(len(one.prompt) for one in work)) == (133_966, 142_827)


@pytest.mark.sweep
def test_another_engines_benchmark():
    found = json.loads(json.dumps(series.nano_vllm_bench(), allow_nan=False))
    assert found["tokens_per_second"] == pytest.approx(found["output_tokens"] / found["seconds"])


def test_what_logprobs_cost():
    taken = json.loads(json.dumps(series.engine_logprobs(), allow_nan=False))
    assert [row["name"] for row in taken["rows"]][:3] == ["none", "logprobs=5", "logprobs=20"]
    assert len(taken["rows"]) == 6 and taken["rows"][0]["share_of_none"] == 1
    assert 0 <= taken["largest_error"] < 1e-4 and all(row["tokens_per_second"] > 0 for row in taken["rows"])
