"""The pictures of lessons 12 and 14."""

import pytest

from labkit.measure import plots


@pytest.mark.parametrize("threads", [4, 8, 16])
def test_a_reduction_of_any_allowed_width_is_drawn(threads):
    assert f"{threads} threads in {threads.bit_length() - 1} steps" in plots.reductions(threads).summary
    assert plots.reductions(threads).svg()


def test_a_reduction_of_another_width_is_refused():
    with pytest.raises(ValueError, match="threads is 6"):
        plots.reductions(6)


def test_masks_are_drawn():
    assert "the first 3" in plots.masks(6, 3).summary
    assert plots.masks(6, 3).svg()


def test_traffic_is_drawn():
    figure = plots.traffic({"unfused": (4.0, 3.5), "fused": (0.5, 1.0)}, "Passes", "passes", least=1.5)
    assert figure.summary == "Passes: unfused 4 and 3.5 passes; fused 0.5 and 1 passes."
    assert figure.svg()


@pytest.mark.parametrize("graphs", [True, False])
def test_the_floor_of_a_launch_is_drawn(graphs):
    def row(S, mask):
        timing = {"p5": 0.9, "p50": 1.0, "p95": 1.1}
        graph = timing if graphs else None
        return {"B": 1, "S": S, "mask": mask, "unfused": timing, "fused": timing, "unfused_graph": graph,
                "fused_graph": graph}

    series = {"rows": [row(S, mask) for S in (512, 1024) for mask in ("none", "causal")], "unfused": "PyTorch",
              "where": "NVIDIA H200", "date": "2026-11-21"}
    assert plots.launch_floor(series).svg()
