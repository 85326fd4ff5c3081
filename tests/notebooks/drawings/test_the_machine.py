"""The figures of the lesson "The machine": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import the_machine as pictures


def us(p50: float) -> dict:
    return {"p5": 0.9 * p50, "p50": p50, "p95": 1.2 * p50}


GPU = {"name": "a GPU", "multiprocessors": 10, "threads": 1024, "blocks": 16, "registers": 65_536,
       "shared_bytes": 65_536}
MADE_UP = {
    "where": "a made-up GPU", "date": "2026-01-02", "gpu": GPU,
    "branches": [{"name": name, "us": us(time)} for name, time in (("one branch", 50.0), ("two, by warp", 51.0),
                                                                   ("two, by lane", 99.0))],
    "ways": [{"ways": n, "lanes": us(50.0 * n), "warps": us(52.0)} for n in (1, 2, 4, 8, 16, 32)],
    "in_flight": [{"threads": threads, "loads": loads, "bytes_in_flight": 40 * threads * loads, "blocks_per_sm": 1,
                   "us": us(300.0), "gbs": min(40 * threads * loads / 450, 800.0)}
                  for threads in (32, 128, 512, 1024) for loads in (1, 2, 4, 8)],
    "occupancy": [{"work": work, "each": each, "blocks_per_sm": 4, "occupancy": share, "us": us(100.0),
                   "rate": 100 * min(1, each * share), "unit": unit}
                  for work, unit in (("reading", "GB/s"), ("multiply-adds", "TFLOP/s")) for each in (1, 8)
                  for share in (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)],
    "waves": {"blocks": [1, 20, 40, 41, 60, 80, 81, 120], "us": [30, 30, 31, 61, 61, 62, 92, 93], "p5_us": [30] * 8,
              "p95_us": [99] * 8, "per_wave": 40, "block": 64, "blocks_per_sm": 4},
    "spills": [{"limit": limit, "registers": limit or 70, "local_bytes": nbytes, "occupancy": share, "us": us(time)}
               for limit, nbytes, share, time in ((None, 0, 0.375, 100.0), (48, 168, 0.625, 190.0),
                                                  (32, 264, 1.0, 410.0))],
    "memories": [
        {"name": name, "bytes": nbytes, "per_sm": per_sm, "latency_ns": ns, "gbs": gbs} for
        name, nbytes, per_sm, ns, gbs in (
            ("registers", 262_144, True, 2.5, 400_000.0), ("shared memory", 65_536, True, 15.0, 30_000.0),
            ("L1 cache", None, True, 20.0, 25_000.0), ("L2 cache", 2**22, False, 140.0, 6000.0),
            ("memory", 2**34, False, 450.0, 800.0))],
}
FIGURES = ("branches", "bytes_in_flight", "occupancy", "waves", "spills", "memories")


def drawn(figure) -> str:
    return " ".join(text.get_text() for text in [*figure.texts, *(text for ax in figure.axes for text in ax.texts)])


def test_the_figures_in_words():
    assert pictures.branches(MADE_UP).summary.startswith("one branch: 50 us; two, by warp: 51 us; two, by lane: 99 us")
    assert "the line bends at 360 KB" in pictures.bytes_in_flight(MADE_UP).summary
    assert "40 at once: 30 us for 1, 31 us for one full wave, 93 us for 120" in pictures.waves(MADE_UP).summary
    assert "32 registers, 264 bytes spilled: 410 us" in pictures.spills(MADE_UP).summary
    summary = pictures.memories(MADE_UP).summary
    assert "registers: 2 MiB in all, 2.5 ns" in summary and "L1 cache: size unknown in all" in summary
    assert "1.98 times" in drawn(pictures.branches(MADE_UP))
    shown = drawn(pictures.spills(MADE_UP))
    assert "410 \u00b5s, 4.1 times" in shown and "264" in shown and "100%" in shown
    shown = drawn(pictures.memories(MADE_UP))
    assert "256 KiB in each SM" in shown and "2 MiB" in shown and "size unknown" in shown


def test_littles_law_until_the_memory_gives_no_more():
    assert pictures.predicted_gbs(45_000, 450, 800) == 100
    assert pictures.predicted_gbs(4_500_000, 450, 800) == 800


def test_lanes_that_are_masked():
    figure = pictures.split([lane % 4 == 0 for lane in range(32)])
    assert figure.summary == ("branch 0: 24 lanes work, 8 are masked; branch 1: 8 lanes work, 24 are masked.")
    assert pictures.split([1] * 32).summary == "branch 1: 32 lanes work, 0 are masked."
    assert figure.png(dpi=40).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="each of the 32 lanes"):
        pictures.split([0, 1])


def test_a_scheduler_is_busy_once_enough_warps_wait():
    assert pictures.issued(1, 2, 7) == [0, None, None, 0, None, None, 0]
    assert pictures.issued(3, 2, 6) == [0, 1, 2, 0, 1, 2]
    assert pictures.issued(5, 2, 7) == [0, 1, 2, 3, 4, 0, 1]
    figure = pictures.hidden((1, 4), wait=3, clocks=8)
    assert figure.summary == "1 warp: an instruction in 2 of 8 clocks; 4 warps: an instruction in 8 of 8 clocks."
    assert figure.png(dpi=40).startswith(b"\x89PNG")


def test_places_that_the_last_wave_leaves_empty():
    figure = pictures.schedule(14, 6)
    assert figure.summary.endswith("14 of 18 slots are used, and 4 in the last wave stay empty.")
    assert "wave 3" in drawn(figure) and "block 13" in drawn(figure)
    assert "block 14" not in drawn(figure) and figure.png(dpi=40).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_where_it_was_taken_and_without_a_recording_that_there_is_none(name):
    figure = getattr(pictures, name)(MADE_UP)
    assert "Measured on a made-up GPU, 2026-01-02" in drawn(figure)
    assert figure.png(dpi=40).startswith(b"\x89PNG")
    assert "not recorded yet" in repr(getattr(pictures, name)(None))
