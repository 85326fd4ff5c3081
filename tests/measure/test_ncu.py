"""Profiles by ncu: each launch is that of its rung, and the recorded ones are read as tables."""

import pytest

from labkit.measure import ncu as counters
from labkit.measure.ops import HOMES, op


def ncu_line(number, kernel, metric, value):
    return f'"{number}","1","python","{kernel}","{metric}","unit","{value}"'


NCU = "\n".join([
    "==PROF== Connected to process 1", '"ID","Process ID","Process Name","Kernel Name","Metric Name","Metric Unit",'
    '"Metric Value"',
    *[ncu_line(number, kernel, metric, value)
      for number, kernel, scale in ((0, "first", 1), (1, "second", 2),
                                    (2, "void at::native::(anonymous namespace)::softmax<float, 4>(float*, int)", 3))
      for metric, value in ((counters.VALUES["time_us"], f"{1500 * scale:,}"),
                            (counters.VALUES["dram_read"], f"{2_000_000 * scale:,}"),
                            (counters.VALUES["dram_write"], "n/a" if scale == 3 else "1,000,000"),
                            (counters.STALL.format("long_scoreboard"), "7.5"),
                            (counters.STALL.format("selected"), "1.0"))]])


def test_a_profile_gives_each_launch_to_the_rung_that_made_it():
    launched = {"done": [{"name": "two", "kind": "rung", "kernels": ["a_kernel", "b_kernel"]},
                         {"name": "PyTorch", "kind": "baseline", "kernels": None}]}
    rows = counters._assign(counters._launches(NCU), launched)
    assert [(row["name"], row["kernel"]) for row in rows] == [
        ("two", "a_kernel"), ("two", "b_kernel"), ("PyTorch", "softmax")]
    assert [row["time_us"] for row in rows] == [1.5, 3.0, 4.5]
    assert rows[2]["dram_write"] is None
    assert rows[0]["stalls"] == {"long_scoreboard": 7.5, "selected": 1.0}
    data = {"machine": {"device": "NVIDIA Imaginary", "date": "2026-01-02"},
            "ops": {"softmax": {"size": {"R": 8, "C": 4}, "bytes": 3_000_000, "rows": rows}}}
    shown = str(counters.profile("softmax", data))
    for part in ("two: a", "long_scoreboard 7.5", "long_scoreboard: data from global or local memory.",
                 "has to move 3 MB", "NVIDIA Imaginary", "R=8, C=4"):
        assert part in shown
    assert "selected" not in shown, "an issued warp does not wait"


@pytest.mark.parametrize("kernel, name", [
    ("void at::native::<unnamed>::softmax_warp_forward<float, float, float, (int)10, (bool)0, (bool)0>(float *, "
     "const float *, int, int, int, const bool *, int, bool)", "softmax_warp_forward"),
    ("void at::native::(anonymous namespace)::softmax<float, 4>(float*, int)", "softmax"),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float, float, "
     "at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)",
     "vectorized_elementwise_kernel"),
    ("void <unnamed>::plain(float *)", "plain"),
    ("std::enable_if<!(bool)0, void>::type internal::gemvNSP_kernel<float>(T1)", "gemvNSP_kernel"),
    ("nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT", "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"),
    ("matmul_tiled_kernel[v1,cw51cXTLSUwv1sDUaKthqaNgoKmjg_3d](Array<float, 2, C, mutable>)", "matmul_tiled_kernel"),
    ("matmul_tiled_kernel", "matmul_tiled_kernel")])
def test_a_kernel_has_a_readable_name(kernel, name):
    assert counters.function_name(kernel) == name


def test_a_kernel_whose_name_was_not_recorded_says_so():
    names = [row[0] for row in counters.profile("masked_softmax_causal").table()["rows"]]
    assert "PyTorch (scale, mask, softmax): name not recorded" in names


def test_an_operation_without_a_profile_says_how_to_take_one():
    assert "--profile" in str(counters.profile("fft", {"ops": {}}))


def test_profiled_operations_and_rungs_exist():
    for name, rungs in counters.PROFILED.items():
        for rung in rungs if name in HOMES else ():
            op(name).rung(rung)


def test_a_profile_may_have_a_size_of_its_own():
    for name, (operation, rungs, size) in counters.AT_SIZE.items():
        assert counters._job(name) == (operation, rungs, size)
        assert size.keys() == op(operation).work.timed_gpu.keys() and all(op(operation).rung(one) for one in rungs)
    assert counters._job("layernorm") == ("layernorm", counters.PROFILED["layernorm"], None)
    assert counters._job("gelu") == ("gelu", (), None)
