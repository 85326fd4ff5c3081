"""The first kernels of the ladders, by the rule of 32-bit arithmetic and with Numba's types."""

import json

import pytest

from labkit import measure
from labkit.measure.series import index_types

pytestmark = pytest.mark.sweep(every=True)


def test_each_ladder_is_timed_both_ways():
    found = index_types.index_types(("vector_add", "transpose"), quick=True)
    assert [(row["op"], row["rung"]) for row in found["rows"]] == [
        ("vector_add", "vector_add_per_thread"), ("transpose", "transpose_naive")]
    for row in found["rows"]:
        for times in (row["us"], row["numba_us"]):
            assert len(times) == index_types.PLACES
            assert min(times) > 0
    assert found["where"] == measure.where()
    json.dumps(found, allow_nan=False)


def test_a_rung_that_fails_in_the_other_process_leaves_its_message(monkeypatch):
    failing = "index_types.time_us = lambda *_: sorted(unsigned.HOMES) or 1 / 0\nindex_types.answer()"
    monkeypatch.setattr(index_types, "WITH_NUMBAS_TYPES",
                        index_types.WITH_NUMBAS_TYPES.replace("index_types.answer()", failing))
    [row] = index_types.index_types(("vector_add",), quick=True)["rows"]
    assert row["numba_us"] == "ZeroDivisionError: division by zero"
