"""Ranges around kernels, as ncu's CSV names them; a stand-in for ncu prints what it would."""

import json
import stat
import sys
import types

import pytest

from labkit.measure import ncu_ranges, nvtx

HEADER = ('"ID","Process ID","Process Name","Host Name",'
          '"thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg",'
          '"Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg","Kernel Name","Context","Stream",'
          '"Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"')


def line(number, kernel, *ranges, us=2.5):
    cell = "1  " + "  ".join(f'""<default domain>:{name}:none:none:none:none:none:none""' for name in ranges) + " "
    return (f'"{number}","7","python","127.0.0.1","{cell if ranges else ""}","","{kernel}","1","7","(16, 16, 1)",'
            f'"(2, 2, 1)","0","9.0","Command line profiler metrics","{ncu_ranges.TIME}","nsecond","{1000 * us:,.0f}"')


OUTPUT = "\n".join(("==PROF== Connected to process 7", HEADER, line(0, "matmul_naive_kernel", "program",
                                                                   "matrix product", "kernel"),
                    line(1, "void at::fill<float>(float *)"), line(2, "softmax_naive_kernel", "program", us=1234.5)))


def test_each_kernel_has_its_ranges_from_the_outermost():
    assert ncu_ranges.parse(OUTPUT) == [
        {"kernel": "matmul_naive_kernel", "ranges": ["program", "matrix product", "kernel"], "us": 2.5},
        {"kernel": "fill", "ranges": [], "us": 2.5},
        {"kernel": "softmax_naive_kernel", "ranges": ["program"], "us": 1234.5}]


def test_output_without_ranges_or_kernels_is_refused():
    with pytest.raises(ValueError, match="no column Push/Pop_Range: ==ERROR== no permission"):
        ncu_ranges.parse("==ERROR== no permission")
    with pytest.raises(ValueError, match="no kernel"):
        ncu_ranges.parse(HEADER)


def test_the_recorded_trace_has_ranges_within_ranges_and_names_of_kernels():
    rows = ncu_ranges.recorded()["rows"]
    assert [row["ranges"][0] for row in rows] == ["program"] * 3
    assert ["program", "matrix product", "kernel"] in [row["ranges"] for row in rows]
    assert [row[0] for row in ncu_ranges.table().rows] == [
        "matmul_naive_kernel", "softmax_naive_kernel", "softmax_vectorized_kernel"]


@pytest.mark.sweep(every=True)
@pytest.mark.cpu_device
def test_the_workload_nests_its_ranges(monkeypatch):
    calls = []
    fake = types.SimpleNamespace(push_range=calls.append, pop_range=lambda: calls.append("end"))
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    nvtx.nvtx.cache_clear()
    try:
        ncu_ranges.workload(rows=2, cols=8)
    finally:
        nvtx.nvtx.cache_clear()
    parts = ("allocate", "copy to the device", "kernel", "copy to the host", "free")
    trip = ["matrix product", *(one for part in parts for one in (part, "end")), "end"]
    assert calls[: len(trip) + 1] == ["program", *trip]
    assert calls[len(trip) + 1] == "softmax" and calls[-2:] == ["end", "end"]
    assert calls.count("end") == len(calls) / 2


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A program called ncu that prints these lines, and notes its arguments."""
    def install(output):
        (tmp_path / "output").write_text(output)
        program = tmp_path / "ncu"
        program.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path}/arguments\ncat {tmp_path}/output\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_a_trace_is_written_and_shown(ncu, tmp_path, monkeypatch, capsys):
    ncu(OUTPUT)
    monkeypatch.setattr(sys, "argv", ["ncu_ranges", "--out", str(tmp_path / "out")])
    monkeypatch.setattr("labkit.measure.machine", lambda: {"device": "NVIDIA Imaginary", "date": "2026-01-02"})
    ncu_ranges.main()
    (path,) = (tmp_path / "out").iterdir()
    data = json.loads(path.read_text())
    assert path.name == "nvidia-imaginary-ranges.json" and len(data["rows"]) == 3 and data["csv"][0] == HEADER
    assert "--nvtx" in (tmp_path / "arguments").read_text()
    shown = capsys.readouterr().out
    for part in ("program / matrix product / kernel", "softmax_naive_kernel", "ncu on NVIDIA Imaginary, 2026-01-02",
                 "ncu --clock-control none --nvtx"):
        assert part in shown


def test_without_ranges_without_ncu_and_without_a_recording(ncu, monkeypatch):
    ncu("\n".join((HEADER, line(0, "a_kernel"))))
    with pytest.raises(RuntimeError, match="1 kernels and no range around them"):
        ncu_ranges.traced()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="not on the PATH"):
        ncu_ranges.traced()
    assert ncu_ranges.recorded("nvidia-none") is None
    if ncu_ranges.recorded() is None:
        assert "Not measured yet" in str(ncu_ranges.table())
