"""What the hardware allows: the bound, which limit sets it, and whose limits they are."""

import json
from dataclasses import replace

import pytest

from labkit import device
from labkit._common import paths
from labkit.kernels.ops.elementwise import VECTOR_ADD
from labkit.kernels.ops.matmul import MATMUL
from labkit.measure import roofline
from labkit.measure.roofline import Limits, bound, predict
from tests import made_up

LIMITS = Limits("NVIDIA Imaginary", 1000.0, 10.0, "measured")  # 1 TB/s, 10 TFLOP/s: they meet at 10 flop per byte


def test_vector_add_is_bound_by_bytes():
    found = bound(VECTOR_ADD, {"n": 10**9}, LIMITS)
    assert found.binds == "bytes"
    assert found.time_ms == pytest.approx(12.0)  # 12 GB at 1,000 GB/s
    assert found.intensity == pytest.approx(1 / 12)
    assert found.rate("GB/s") == pytest.approx(1000.0)


def test_large_matmul_is_bound_by_flops():
    found = bound(MATMUL, {"M": 1000, "N": 1000, "K": 1000}, LIMITS)
    assert found.binds == "flops"
    assert found.time_ms == pytest.approx(0.2)  # 2 GFLOP at 10 TFLOP/s
    assert found.rate("TFLOP/s") == pytest.approx(10.0)


def test_thin_matmul_is_bound_by_bytes():
    assert bound(MATMUL, {"M": 1, "N": 4096, "K": 4096}, LIMITS).binds == "bytes"


def test_the_ridge_is_where_both_bind():
    assert LIMITS.ridge == pytest.approx(10.0)
    units = replace(LIMITS, tf32_tflops=40.0, f16_tflops=80.0)
    assert [units.ridge_of(peak) for peak in ("fp32", "tf32", "f16")] == pytest.approx([10.0, 40.0, 80.0])


def test_prediction_says_amounts_bound_and_whose_limits():
    shown = str(predict(VECTOR_ADD, limits=LIMITS, n=10**9))
    for part in ("12,000.0", "MB", "12", "bytes: the kernel waits for memory", "NVIDIA Imaginary", "measured"):
        assert part in shown
    assert predict(VECTOR_ADD).size == VECTOR_ADD.work.timed_gpu
    result = predict(MATMUL, limits=LIMITS, M=64, N=64, K=64).result()
    assert result["kind"] == "prediction"
    json.dumps(result)


@pytest.fixture
def fresh_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "MEASUREMENTS", tmp_path)
    roofline._limits.cache_clear()
    yield tmp_path
    roofline._limits.cache_clear()


def test_without_a_gpu_the_recorded_limits_are_used_and_labelled(fresh_limits):
    if device.on_gpu():
        pytest.skip("this machine has a GPU: limits are measured")
    (fresh_limits / "nvidia-imaginary.json").write_text(json.dumps(made_up.measurements()))
    found = roofline.limits()
    assert found.bandwidth_gbs == made_up.LIMITS["bandwidth_gbs"]
    assert found.source == "recorded on NVIDIA Imaginary, 2026-01-02"


def test_without_a_recording_the_data_sheet_is_named(fresh_limits):
    if device.on_gpu():
        pytest.skip("this machine has a GPU: limits are measured")
    assert roofline.limits().source == "data sheet, not measured"
    assert "data sheet, not measured" in bound(VECTOR_ADD, {"n": 10}).label


def test_a_gpus_limits_are_measured_once_a_day(fresh_limits, monkeypatch):
    asked, measured = [], []
    file = (fresh_limits / "limits.json", "this GPU, today")
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    monkeypatch.setattr(roofline, "_kept_file", lambda: asked.append(1) or file)
    monkeypatch.setattr(roofline, "_measured", lambda: measured.append(1) or LIMITS)
    for _ in range(2):  # a process, and the next one
        roofline._limits.cache_clear()
        assert roofline.limits() == roofline.limits() == LIMITS
    assert (len(asked), len(measured)) == (2, 1)
    file = (file[0], "this GPU, tomorrow")
    roofline._limits.cache_clear()
    assert roofline.limits() == LIMITS and len(measured) == 2


def test_the_units_that_bound_an_op_are_its_own():
    tensor = replace(LIMITS, tf32_tflops=40.0, f16_tflops=80.0)
    half = replace(MATMUL, work=replace(MATMUL.work, peak="f16"))
    size = {"M": 1000, "N": 1000, "K": 1000}
    assert bound(half, size, tensor).time_ms == pytest.approx(0.025)  # 2 GFLOP at 80 TFLOP/s
    assert bound(half, size, tensor).label == "f16 peak of the tensor cores, measured on NVIDIA Imaginary"
    assert "80.0 TFLOP/s in f16 on tensor cores" in str(predict(half, tensor, **size))
    assert tensor.ridge_of("tf32") == pytest.approx(40.0)
    with pytest.raises(ValueError, match="f16 peak of the tensor cores of NVIDIA Imaginary is not known"):
        bound(half, size, LIMITS)
    eighth = bound(replace(MATMUL, work=replace(MATMUL.work, peak="fp8")), size, tensor)
    assert eighth.label == "FP8 peak of the tensor cores, measured on NVIDIA Imaginary"
    assert eighth.time_ms == bound(half, size, tensor).time_ms / 2


def test_an_older_recording_of_an_h200_takes_its_tensor_peaks_from_the_data_sheet():
    old = Limits("NVIDIA H200", 4200.0, 65.0, "recorded on NVIDIA H200, 2026-01-02")
    assert (old.peak("fp32"), old.peak("tf32"), old.peak("f16")) == (65.0, 494.0, 989.0)
    assert old.peak("fp8") == 2 * 989.0 and replace(old, f16_tflops=700.0).peak("fp8") == 1400.0
    assert old.peak_source("fp32").startswith("recorded")
    assert old.peak_source("f16") == "data sheet, not measured"
    half = replace(MATMUL, work=replace(MATMUL.work, peak="f16"))
    assert "data sheet, not measured" in bound(half, {"M": 4096, "N": 4096, "K": 4096}, old).label


@pytest.mark.gpu
def test_tensor_cores_of_this_gpu_are_faster_than_its_float32():
    for _ in range(3):  # other tests use the GPU at the same time
        found = roofline.limits()
        if found.f16_tflops is None:
            pytest.skip("no tensor cores that labkit.ptx can use")
        right = (found.fp32_tflops < found.tf32_tflops < found.f16_tflops
                 and found.mma_f16_tflops <= 1.02 * found.f16_tflops)
        if right:
            break
        roofline._limits.cache_clear()
    assert right, found


@pytest.mark.gpu
def test_limits_of_this_gpu_are_plausible():
    found = roofline.limits()
    assert found.source == "measured"
    assert 50 < found.bandwidth_gbs < 20_000
    assert 1 < found.fp32_tflops < 300
