"""Every known fault, from facts that show it: no GPU is needed to see that each is named with what mends it."""

import json
from dataclasses import replace

import pytest

from labkit.device import doctor
from labkit.device import facts as machine_facts
from labkit.device.doctor import Finding, diagnose
from labkit.device.facts import Facts, Gpu, Library, collect

H200 = Gpu("NVIDIA H200", (9, 0), 140 * 2**30, 130 * 2**30, 132, 1024)
V100 = Gpu("Tesla V100", (7, 0), 16 * 2**30, None, 80, 1024)
PACKAGES = {"labkit": "0.1.0", "numba": "0.68.1", "numba-cuda": "0.30.4", "numpy": "2.4.6", "nvidia-nvvm": "13.0.88"}


def library(*version: int) -> Library:
    return Library("/x/lib.so", "site-packages", version or None)


def machine(**changes) -> Facts:
    """A healthy machine with an H200 and a driver for CUDA 13, changed."""
    healthy = Facts(
        packages=dict(PACKAGES),
        numpy_allowed="<2.6,>=1.22",
        nvidia_hardware=True,
        driver_library=True,
        driver_cuda=(13, 0),
        gpus=[H200],
        libraries={"nvvm": library(), "nvrtc": library(13, 0), "nvJitLink": library(13, 0)},
        smoke="ok",
        chosen="gpu",
        device_name="NVIDIA H200",
        reason="numba.cuda found a GPU that works.",
    )
    return replace(healthy, **changes)


def without(name: str) -> dict:
    return {**PACKAGES, name: None}


def libraries(**changes) -> dict:
    return {**machine().libraries, **changes}


CUDA12 = {"packages": without("nvidia-nvvm"), "libraries": libraries(nvrtc=library(12, 9), nvJitLink=library(12, 9))}
PTX = "CudaAPIError: [222] Call to cuLinkAddData results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
NO_GPU = {"gpus": [], "smoke": "", "chosen": "cpu", "device_name": "labkit CPU device"}
NO_DRIVER = {**NO_GPU, "driver_library": False, "nvidia_hardware": False, "driver_cuda": None}


def test_a_healthy_machine_has_no_finding():
    assert diagnose(machine()) == []


def test_the_oldest_that_is_allowed_is_no_fault():
    assert diagnose(machine(python=(3, 11, 0))) == []
    assert diagnose(machine(**CUDA12, driver_cuda=(12, 0))) == []


def test_no_gpu_at_all_is_a_note_and_no_fault():
    (finding,) = diagnose(machine(**NO_GPU, driver_library=False, nvidia_hardware=False, driver_cuda=None))
    assert finding.level == "note" and finding.fix == ""
    assert "nothing to mend" in finding.why


def test_a_mac_gets_the_message_that_there_is_nothing_to_mend():
    facts = Facts(platform="Darwin", machine="arm64", packages=without("numba-cuda"))
    (finding,) = diagnose(facts)
    assert finding.level == "note" and finding.what == "macOS has no CUDA."


# name, what the machine has, level, words of the finding, the command
FAULTS = [
    ("python too old", {"python": (3, 10, 4)}, "error", "Python 3.10.4 is too old", "conda env create"),
    ("numba missing", {"packages": without("numba")}, "error", "numba is not installed", "pip install -e ."),
    ("numpy too new", {"packages": {**PACKAGES, "numpy": "2.6.1"}}, "error", "NumPy 2.6.1 does not fit numba 0.68.1",
     "pip install 'numpy<2.6,>=1.22'"),
    ("numba broken", {"numba_error": "OSError: libLLVM"}, "error", "libLLVM", "--force-reinstall"),
    ("simulator", {"cudasim": "1"}, "error", "NUMBA_ENABLE_CUDASIM", "unset NUMBA_ENABLE_CUDASIM"),
    ("cache not writable", {"cache_dir": "/ro", "cache_writable": False}, "warning", "/ro cannot be written",
     "export LABKIT_CACHE_DIR=/tmp/labkit"),
    ("no driver", {**NO_GPU, "driver_library": False}, "error", "driver was not found", "ubuntu-drivers install"),
    ("no driver in a container", {**NO_GPU, "driver_library": False, "container": True}, "error",
     "driver was not found", "docker run --gpus all"),
    ("GPUs hidden", {**NO_GPU, "driver_error": "CUDA_ERROR_NO_DEVICE", "visible_devices": ""}, "error",
     "CUDA_VISIBLE_DEVICES=''", "unset CUDA_VISIBLE_DEVICES"),
    ("driver without GPU", {**NO_GPU, "driver_error": "CUDA_ERROR_NO_DEVICE"}, "error",
     "sees no GPU. cuInit reports CUDA_ERROR_NO_DEVICE", "nvidia-smi"),
    ("driver half updated", {**NO_GPU, "driver_error": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, "error",
     "kernel module differ", "sudo reboot"),
    ("fabric manager", {**NO_GPU, "driver_error": "CUDA_ERROR_SYSTEM_NOT_READY"}, "error", "fabric manager",
     "systemctl start nvidia-fabricmanager"),
    ("uvm", {**NO_GPU, "driver_error": "CUDA_ERROR_UNKNOWN"}, "error", "CUDA_ERROR_UNKNOWN", "modprobe nvidia_uvm"),
    ("driver too old", {"driver_cuda": (11, 4), "smoke": "x"}, "error", "knows CUDA 11.4", "nvidia.com/drivers"),
    ("numba-cuda missing", {"packages": without("numba-cuda"), "smoke": ""}, "error", "numba-cuda is not installed",
     "pip install -e '.[cu13]'"),
    ("numba-cuda of another version", {"packages": {**PACKAGES, "numba-cuda": "0.22.2"}}, "error",
     "numba-cuda is 0.22.2; labkit works with 0.30.*", "pip install -e '.[cu13]'"),
    ("cu13 on a driver for CUDA 12", {"driver_cuda": (12, 8), "smoke": PTX}, "error",
     "The toolkit is CUDA 13.0, the driver knows CUDA 12.8. The wrong extra",
     "pip uninstall -y nvidia-nvvm && pip install -e '.[cu12]'"),
    ("CUDA 13 on an old GPU", {"gpus": [V100], "smoke": "NvvmError: unsupported arch"}, "error",
     "no compiler for the Tesla V100 (compute capability 7.0)", "pip install -e '.[cu12]'"),
    ("PTX newer than the driver, CUDA 12", {**CUDA12, "driver_cuda": (12, 4), "smoke": PTX}, "error",
     "CUDA_ERROR_UNSUPPORTED_PTX_VERSION. The toolkit is CUDA 12.9, the driver knows CUDA 12.4",
     "pip install -e '.[cu12]' 'cuda-toolkit<12.5'"),
    ("PTX newer than the driver, CUDA 13", {"libraries": libraries(nvrtc=library(13, 2)), "smoke": PTX}, "error",
     "CUDA_ERROR_UNSUPPORTED_PTX_VERSION. The toolkit is CUDA 13.2, the driver knows CUDA 13.0",
     "pip install -e '.[cu13]' 'cuda-toolkit<13.1'"),
    ("no libNVVM", {"libraries": libraries(nvvm=None), "smoke": "NvvmSupportError"}, "error",
     "nvvm of the CUDA toolkit was not found", "pip install -e '.[cu13]'"),
    ("no nvJitLink", {"libraries": libraries(nvJitLink=None)}, "warning",
     "nvJitLink of the CUDA toolkit was not found", "pip install -e '.[cu13]'"),
    ("no NVRTC", {"libraries": libraries(nvrtc=None)}, "warning", "nvrtc of the CUDA toolkit was not found",
     "pip install -e '.[cu13]'"),
    ("kernel fails for a reason of its own", {"smoke": "CudaAPIError: [2] CUDA_ERROR_OUT_OF_MEMORY"}, "error",
     "a small kernel failed on it. CudaAPIError: [2] CUDA_ERROR_OUT_OF_MEMORY", "pip install -e '.[cu13]'"),
    ("an older GPU than is supported", {**CUDA12, "gpus": [V100]}, "warning",
     "The Tesla V100 is too old: its compute capability is 7.0. labkit's kernels need 7.5",
     "export LABKIT_DEVICE=cpu"),
    ("WSL 1", {**NO_DRIVER, "wsl": 1}, "note", "WSL 1, which cannot use a GPU", "wsl --set-version <distribution> 2"),
    ("WSL 2 without a driver", {**NO_DRIVER, "wsl": 2}, "note",
     "its driver for Windows, which puts libcuda into /usr/lib/wsl/lib, is missing or too old", "wsl --update"),
    ("WSL 2 with an old driver", {"wsl": 2, "driver_cuda": (11, 4), "smoke": "x"}, "error", "knows CUDA 11.4",
     "install the driver on Windows: https://www.nvidia.com/drivers"),
    ("WSL 2 with a driver for Linux", {**NO_GPU, "wsl": 2, "driver_error": "CUDA_ERROR_NO_DEVICE"}, "error",
     "a Linux driver installed in WSL hides it", "sudo apt purge 'libnvidia-compute-*'"),
    ("GPU asked for where there is none",
     {**NO_GPU, "driver_library": False, "nvidia_hardware": False, "requested": "gpu"}, "error",
     "LABKIT_DEVICE=gpu, but no GPU can be used", "export LABKIT_DEVICE=auto"),
    ("device misspelt", {"requested": "cuda"}, "error", "LABKIT_DEVICE is 'cuda'", "unset LABKIT_DEVICE"),
    ("GPU left alone", {"requested": "cpu"}, "note", "the GPU is left alone", "unset LABKIT_DEVICE"),
]


@pytest.mark.parametrize(("changes", "level", "words", "command"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_named_first_with_the_command_that_mends_it(changes, level, words, command):
    findings = diagnose(machine(**changes))
    # The root cause comes first among those of its level; what follows from it may stand below.
    first = next(finding for finding in findings if finding.level == level)
    assert words in f"{first.what} {first.why}"
    assert command in first.fix
    assert all(finding.level != "error" for finding in findings) or level == "error"


def test_a_mismatch_that_does_no_harm_is_only_a_warning():
    # nvJitLink makes machine code, so that a newer toolkit of the same CUDA often works.
    assert diagnose(machine(libraries=libraries(nvrtc=library(13, 2)))) == []
    (finding,) = diagnose(machine(driver_cuda=(12, 8)))
    assert finding.level == "warning"


def test_one_cause_is_reported_once():
    findings = diagnose(machine(driver_cuda=(12, 8), smoke=PTX))
    assert [finding.level for finding in findings] == ["error"]


@pytest.mark.parametrize(("driver", "gpu", "wheels", "extra"), [
    ((13, 0), H200, {}, "cu13"), ((12, 8), H200, {}, "cu12"), (None, H200, {}, "cu12"), ((13, 0), V100, {}, "cu12"),
    ((13, 0), H200, {"nvidia-cuda-nvrtc-cu12": "12.8.93"}, "cu12"),
    ((13, 0), H200, {"nvidia-cuda-nvrtc-cu12": "12.8.93", "nvidia-nvvm": "13.0.88"}, "cu13")])
def test_the_extra_is_one_that_driver_and_gpu_can_use_and_that_is_there_already(driver, gpu, wheels, extra):
    facts = machine(packages={**without("nvidia-nvvm"), **wheels}, driver_cuda=driver, gpus=[gpu])
    assert doctor.fitting_extra(facts) == extra


def test_the_toolkit_is_limited_only_where_its_cuda_is_the_drivers():
    assert doctor.toolkit_limit(machine(driver_cuda=(12, 9)), "cu12") == "cuda-toolkit<12.10"
    assert doctor.toolkit_limit(machine(driver_cuda=(13, 0)), "cu12") == ""
    assert doctor.toolkit_limit(machine(driver_cuda=None), "cu12") == ""


@pytest.mark.parametrize(("release", "version"), [
    ("4.4.0-19041-Microsoft", 1), ("6.6.87.2-microsoft-standard-WSL2", 2), ("5.15.90.1-microsoft-custom", 2),
    ("6.8.0-90-generic", 0)])
def test_wsl_is_known_by_the_kernels_release(monkeypatch, release, version):
    monkeypatch.setattr(machine_facts.platform, "release", lambda: release)
    assert machine_facts.without_imports().wsl == version


def test_in_wsl_libcuda_is_found_where_windows_puts_it(monkeypatch):
    asked = []

    def load(name):
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(machine_facts.ctypes, "CDLL", load)
    monkeypatch.setattr(machine_facts.sys, "platform", "linux")
    assert machine_facts._load_driver() is None
    assert asked == ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"]


def test_commands_fit_windows():
    (finding,) = diagnose(machine(platform="Windows", cudasim="1"))
    assert finding.fix == "set NUMBA_ENABLE_CUDASIM="


def test_no_fault_leaves_its_reader_without_a_command():
    for _, changes, *_ in FAULTS:
        for finding in diagnose(machine(**changes)):
            assert finding.what and finding.why and (finding.fix or finding.level == "note")


def test_collecting_never_raises(monkeypatch):
    def explode(*_, **__):
        raise RuntimeError("broken machine")

    for name in ("_look_at_numba", "_look_at_cache", "_look_at_hardware", "_look_at_driver", "_look_at_toolkit"):
        monkeypatch.setattr(machine_facts, name, explode)
    assert isinstance(collect(), Facts)
    assert collect().gpus == []


def test_the_cards_on_the_bus_and_a_missing_libcuda(monkeypatch):
    monkeypatch.setattr(machine_facts, "_load_driver", lambda: None)
    facts = collect()
    assert not facts.driver_library and facts.gpus == [] and facts.smoke == ""


def test_the_report_reads_and_the_json_parses(monkeypatch, capsys):
    from rich.console import Console

    facts = machine(driver_cuda=(12, 8), smoke=PTX, baselines={"torch": "2.11"}, wsl=2)
    monkeypatch.setattr(doctor, "collect", lambda: facts)
    assert doctor.main(Console(width=200, highlight=False)) == 1
    text = capsys.readouterr().out
    assert "NVIDIA H200, compute capability 9.0, 140.0 GiB, 130.0 GiB free, 132 multiprocessors" in text
    assert "at most 1,024 threads a block" in text and "(WSL 2)" in text
    assert "mend it with:  pip uninstall -y nvidia-nvvm && pip install -e '.[cu12]'" in text
    assert doctor.main(Console(), as_json=True) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["facts"]["gpus"][0]["multiprocessors"] == 132
    assert Finding(**data["findings"][0]).level == "error"

    a_note = machine(**NO_GPU, driver_library=False, nvidia_hardware=False, driver_cuda=None)
    monkeypatch.setattr(doctor, "collect", lambda: a_note)
    assert doctor.main(Console(width=200)) == 0  # a machine without a GPU has no fault
    assert "There is nothing to mend." in capsys.readouterr().out

    monkeypatch.setattr(doctor, "collect", machine)
    assert doctor.main(Console(width=200)) == 0
    assert "No fault found." in capsys.readouterr().out


@pytest.mark.gpu
def test_the_small_kernel_runs_on_this_gpu():
    assert machine_facts._run_smoke() == "ok"
