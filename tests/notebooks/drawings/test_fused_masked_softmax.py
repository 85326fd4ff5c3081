"""The figures of the lesson "Fused masked softmax": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import fused_masked_softmax as pictures


def test_masks_are_drawn():
    assert "the first 3" in pictures.masks(6, 3).summary
    assert pictures.masks(6, 3).svg()


@pytest.mark.parametrize("graphs", [True, False])
def test_the_floor_of_a_launch_is_drawn(graphs):
    def row(S, mask):
        timing = {"p5": 0.9, "p50": 1.0, "p95": 1.1}
        graph = timing if graphs else None
        return {"B": 1, "S": S, "mask": mask, "unfused": timing, "fused": timing, "unfused_graph": graph,
                "fused_graph": graph}

    series = {"rows": [row(S, mask) for S in (512, 1024) for mask in ("none", "causal")], "unfused": "PyTorch",
              "where": "NVIDIA H200", "date": "2026-11-21"}
    assert pictures.launch_floor(series).svg()
