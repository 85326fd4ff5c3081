"""Figures from times that are given: each is known."""

import json

import pytest

from labkit.measure.serving import results
from labkit.measure.serving.load import Slo


def record(number, sent=0.0, first=0.1, took=1.0, gaps=(), tokens=10, prompt=5, error=None, detail=None):
    return {"number": number, "at": None, "sent": sent, "first": first, "took": took, "gaps": list(gaps),
            "prompt_tokens": prompt, "output_tokens": tokens, "error": error, "detail": detail}


def test_every_figure_of_two_requests():
    records = [record(0, sent=0.0, first=0.1, took=1.0, gaps=[0.9], tokens=10),
               record(1, sent=1.0, first=0.3, took=2.3, gaps=[0.5, 1.5], tokens=5, prompt=7)]
    found = results.summary(records, 4.0, Slo.of("ttft=200,tpot=100"))
    assert {key: found[key] for key in ("completed", "failed", "total_input_tokens", "total_output_tokens")} == {
        "completed": 2, "failed": 0, "total_input_tokens": 12, "total_output_tokens": 15}
    assert found["request_throughput"] == 0.5 and found["output_throughput"] == 3.75
    assert found["total_token_throughput"] == 6.75 and found["request_goodput"] == 0.25
    assert found["mean_ttft_ms"] == pytest.approx(200) and found["median_ttft_ms"] == pytest.approx(200)
    assert found["p95_ttft_ms"] == pytest.approx(290) and found["p99_ttft_ms"] == pytest.approx(298)
    assert found["std_ttft_ms"] == pytest.approx(100)
    assert found["mean_tpot_ms"] == pytest.approx((2000 / 4 + 900 / 9) / 2)  # over tokens, not over pieces
    assert found["mean_itl_ms"] == pytest.approx((500 + 1500 + 900) / 3)  # over all gaps, not over requests
    assert found["mean_e2el_ms"] == pytest.approx(1650)
    assert found["tokens_per_piece"] == 3.0 and found["without_usage"] == 0
    assert found["ttft_curve"][0] == 100 and found["ttft_curve"][-1] == 300
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_failed_ones_count_by_kind():
    records = [record(0), record(1, error="HTTP 429", detail="too many"), record(2, error="timeout", detail="a"),
               record(3, error="HTTP 429", detail="later")]
    found = results.summary(records, 2.0)
    assert (found["completed"], found["failed"], found["request_goodput"]) == (1, 3, None)
    assert found["errors_by_kind"] == {"HTTP 429": {"count": 2, "first": "too many"},
                                       "timeout": {"count": 1, "first": "a"}}
    assert list(found["errors_by_kind"]) == ["HTTP 429", "timeout"]


def test_without_answers_there_are_no_latencies():
    found = results.summary([record(0, error="timeout")], 1.0, Slo.of("ttft=1"))
    assert found["mean_ttft_ms"] is None and found["itl_curve"] is None and found["output_throughput"] == 0
    assert "Median TTFT (ms):                        -" in results.report(found)
    assert results.summary([], 1.0)["max_concurrent_requests"] == 0


def test_a_single_token_has_no_time_per_token():
    found = results.summary([record(0, tokens=1)], 1.0)
    assert found["mean_tpot_ms"] is None and found["mean_itl_ms"] is None and found["mean_e2el_ms"] == 1000


def test_where_the_server_does_not_count_the_pieces_are_the_tokens():
    found = results.summary([record(0, gaps=[0.1] * 4, tokens=None, prompt=None)], 1.0)
    assert found["total_output_tokens"] == 5 and found["without_usage"] == 1
    assert "1 answers came without usage" in results.notes(found)[0]


def test_an_slo_of_gaps_is_about_nearly_the_longest():
    smooth, once = [0.01] * 400, [0.01] * 396 + [1.0] * 4  # 1 % of its gaps are long
    times = [results.of_request(record(0, gaps=gaps))["itl"] for gaps in (smooth, once)]
    assert times[0] == pytest.approx(10) and times[1] > 10


def test_how_many_are_under_way_at_a_time():
    spans = ((0.0, 2.0), (1.0, 3.0), (1.5, 1.9), (2.0, 4.0), (5.0, 6.0))
    assert results.most_at_once([record(0, sent=begin, took=end - begin) for begin, end in spans]) == 3


def test_the_report_is_laid_out_as_vllms():
    found = results.summary([record(0)], 2.0, Slo.of("ttft=200")) | {"request_rate": "inf", "max_concurrency": 4}
    lines = results.report(found).splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1:5] == ["Successful requests:                     1", "Failed requests:                         0",
                          "Maximum request concurrency:             4", "Request rate configured (RPS):           inf"]
    assert "---------------Time to First Token----------------" in lines
    assert "Request goodput (req/s):                 0.50" in lines
    assert "Mean TTFT (ms):                          100.00" in lines and lines[-1] == "=" * 50


def test_what_a_reader_must_know():
    found = results.summary([record(0)], 2.0)
    assert results.notes(found) == ["The server sent 10.0 tokens at a time on average: ITL is the time between these, "
                                    "TPOT between tokens."]
    found |= {"tokens_per_piece": 1.0, "client_lag_ms": {"p99": 44.0}, "stopped": True}
    late, stopped = results.notes(found)
    assert "44 ms late" in late and "stopped before its end" in stopped


def test_columns_have_a_row_for_each_request():
    found = results.columns([record(0, sent=1.0), record(1, sent=2.0, error="timeout")])
    assert found["start_times"] == [1.0, 2.0] and found["errors"] == [None, "timeout"]
    assert {len(values) for values in found.values()} == {2}
