"""Exercises whose answers take seconds to compile: what tries many variants of an answer tries theirs in the sweep."""

import pytest

EXPENSIVE = {"attend_packed", "attend_slots", "attend_warp", "best_scores", "first_largest", "linear_patch",
             "matmul_ahead", "matmul_at", "paged_attention"}


def marks_of(exercise: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.sweep] if exercise in EXPENSIVE else []
