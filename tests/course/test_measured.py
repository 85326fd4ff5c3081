"""The tables of README and data/measured.md, from made-up and from recorded measurements."""

import re

from labkit._common import paths
from labkit._common.files import read_json
from labkit.course import measured
from labkit.measure import comparisons
from labkit.measure.comparisons import compare
from tests import made_up

RECORDED = read_json(paths.MEASUREMENTS / "nvidia-h200.json")


def test_readme_table():
    table = measured.readme_table(made_up.measurements())
    assert table.startswith("Measured on NVIDIA Imaginary, 2026-01-02 (driver 1.2, CUDA 13.0, numba-cuda 0.30.4")
    assert "| **Vector addition**, n=1,000,000,000 | `vector_add_slow` |" in table
    assert "400 GB/s | 40% |" in table
    assert "`matmul_fast`" in table
    assert "PyTorch None" not in table


def test_targets_table():
    assert measured.targets_table({**made_up.measurements(), "ops": {}, "series": {}}) == ""
    data = made_up.measurements()
    table = measured.targets_table(data)
    assert "Nothing was measured beside a library yet." in table and "Without a ratio: 2" in table
    data["ops"]["vector_add"][0]["rows"][3]["name"] = "PyTorch, compiled"
    data["ops"]["vector_add"][0]["skipped"] = {"PyTorch": "no memory"}
    table = measured.targets_table(data)
    assert ("| Vector addition, n=1,000,000,000 | `vector_add_fast` | 15 ms | PyTorch, compiled | 13.3 ms | 0.89 | - | "
            "- |" in table)
    assert table.index("Where a library is faster") < table.index("Without a ratio: 1") < table.index("Goals")
    assert "Measured on NVIDIA Imaginary, 2026-01-02." in table


def test_each_table_names_the_days_of_what_it_shows():
    """Rungs are of the ladders' days alone; comparisons read series, too."""
    data = made_up.measurements()
    engine = {"rows": [{"name": "all at once", "tokens_per_second": 9.0}], "date": "2026-01-01"}
    data["series"] |= {"engine": engine, "copies": {"date": "2025-12-31"}}
    assert measured.readme_table(data).startswith("Measured on NVIDIA Imaginary, 2026-01-02 (")
    assert "Measured on NVIDIA Imaginary, 2026-01-01, 2026-01-02." in measured.targets_table(data)


def _rows(markdown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines()
            if line.startswith("|") and not line.startswith("| :--")]


def test_the_two_tables_agree():
    """README has one time for one thing: what the comparison names stands so in the table of all rungs."""
    every, title = {}, ""
    for first, kernel, time, *_ in _rows(measured.readme_table(RECORDED))[1:]:
        title = first.replace("**", "") or title
        every[title, kernel.strip("`")] = time.removesuffix(" (called)")
    shared = set()
    for work, ours, time, baseline, theirs, *_ in _rows(measured.targets_table(RECORDED)):
        if (work, ours.strip("`")) in every:
            shared.add(work)
            assert every[work, ours.strip("`")] == time, work
            assert theirs == "-" or every[work, baseline.strip("`")] == theirs, work
    assert {title for title, _ in every} - shared == {
        "A linear layer with weights (in, out), M=1, N=3,072, K=768"}, "skinny_linear is faster at the same work"


def test_the_pages_have_these_tables():
    front = (paths.REPOSITORY / "README.md").read_text(encoding="utf-8")
    readme = (paths.REPOSITORY / "data" / "measured.md").read_text(encoding="utf-8")
    assert comparisons.summary(compare(RECORDED)) in readme and comparisons.summary(compare(RECORDED)) in front
    chosen = comparisons.highlights(compare(RECORDED))
    assert len(chosen) == len(comparisons.HIGHLIGHTS) == 10 and all(f"| {one.work} |" in front for one in chosen)
    assert sum(one.ratio < 1 for one in chosen) >= 3, "what is lost is shown, too"
    (engine,) = (one for one in compare(RECORDED) if one.source == "engine")
    rows = [line for line in readme.splitlines() if engine.text(engine.ours) in line]
    assert len(rows) == 2 and all(comparisons.NO_VLLM in row for row in rows), "in the comparison and among the goals"


def test_what_is_lost_comes_first():
    rows = [row for row in _rows(measured.targets_table(RECORDED)) if len(row) == 8]
    ratios = [float(row[5]) for row in rows if re.fullmatch(r"\d+\.\d\d", row[5])]
    assert ratios == sorted(ratios) and ratios[0] < 1
