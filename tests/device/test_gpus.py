import re
import subprocess
import sys

import pytest

from labkit import device
from labkit._common.paths import REPOSITORY
from labkit.device import gpus, occupancy
from labkit.device.gpus import GPUS, OF_CAPABILITY, SUPPORTED


def test_every_supported_compute_capability_has_a_gpu_that_stands_for_it():
    assert tuple(GPUS[name].capability for name in OF_CAPABILITY.values()) == SUPPORTED
    assert {gpu.capability for gpu in GPUS.values()} == set(SUPPORTED)


def test_readme_names_every_gpu_with_its_compute_capability():
    text = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    named = {tuple(map(int, numbers.split("."))): {name.lower().replace(" ", "") for name in names.split(", ")}
             for numbers, names in re.findall(r"`(\d+\.\d)` \(([^)]+)\)", text)}
    assert named == {capability: {name for name, gpu in GPUS.items() if gpu.capability == capability}
                     for capability in SUPPORTED}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_data_sheet_is_consistent(gpu):
    assert gpu.threads % 32 == 0 and 0 < gpu.shared_per_block <= gpu.shared_bytes
    assert gpus.sheet_of(gpu.name) is gpu
    assert 5 < gpu.bandwidth_gbs / gpu.fp32_tflops < 120  # bytes a kiloflop: a slipped digit leaves this range
    assert (gpu.tf32_tflops is None) == (gpu.capability < (8, 0))  # TF32 came with Ampere
    assert 1.9 < gpu.f16_tflops / (gpu.tf32_tflops or gpu.f16_tflops / 2) < 2.1


def test_a_gpu_is_named_or_given_by_its_compute_capability():
    assert gpus.named("T4") is gpus.named("7.5") is gpus.named("sm_7.5") is GPUS["t4"]
    assert gpus.named("RTX 5090") is GPUS["rtx5090"]
    with pytest.raises(ValueError, match=r"'rtx1080' is no GPU known here; allowed are t4, .*rtx5090, and the"):
        gpus.named("rtx1080")


def ask(pretend, code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**__import__("os").environ, "LABKIT_PRETEND": pretend, "LABKIT_DEVICE": "cpu"})


@pytest.mark.sweep(every=True)
def test_pretending_changes_what_kernels_are_chosen_for():
    code = ("from labkit import cuda, device\nfrom labkit.device import gpus\n"
            "print(gpus.target().name, gpus.sm_count(), gpus.target().shared_per_block)")
    assert ask("7.5", code).stdout == "Tesla T4 40 65536\n"
    assert ask("", code).stdout.startswith("NVIDIA H200 132")
    refused = ask("9.5", code)
    assert refused.returncode == 1 and "LABKIT_PRETEND: '9.5' is no GPU known here" in refused.stderr


@pytest.mark.skipif(device.on_gpu(), reason="about the CPU device")
def test_the_cpu_device_stands_for_an_h200():
    if gpus.pretended() is None:
        assert gpus.target() is GPUS["h200"]


def test_turing_keeps_no_shared_memory_for_the_system():
    assert occupancy.blocks(GPUS["t4"], 128, 32, 16_384) == 4
    assert occupancy.blocks(GPUS["rtx3060"], 128, 32, 25_600) == 3  # 1 KB each beside it: not the 4 that 100 KB hold
