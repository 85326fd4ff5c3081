"""`labkit doctor`: what this machine has, which device labkit uses and why, and how to fix problems.

facts = collect()            # in facts.py; looks at the machine
findings = diagnose(facts)   # a pure function of the facts, so each fault is tested without having it
"""

import json
from dataclasses import asdict, dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from labkit.device.facts import PACKAGES, Facts, collect
from labkit.device.gpus import SUPPORTED

OLDEST_PYTHON = (3, 11)
OLDEST_DRIVER = (12, 0)  # the oldest CUDA that numba-cuda 0.30 has wheels for
CUDA_13_CAPABILITY = (7, 5)  # the CUDA 13 toolkit compiles for no GPU older than this
NUMBA_CUDA = "0.30."


@dataclass(frozen=True)
class Finding:
    level: str  # "error": labkit or the GPU does not work. "warning": it works, less well. "note": for your information
    what: str
    why: str
    fix: str = ""  # the command that mends it


# ---------------------------------------------------------------------------------------------------------------
# From facts to findings


def diagnose(facts: Facts) -> list[Finding]:
    """Every known fault that the facts show, the root causes first."""
    findings = [*_python_faults(facts), *_gpu_faults(facts), *_choice_faults(facts)]
    rank = {"error": 0, "warning": 1, "note": 2}
    return sorted(findings, key=lambda finding: rank[finding.level])


def _python_faults(facts: Facts):
    if facts.python[:2] < OLDEST_PYTHON:
        yield Finding("error", f"Python {_dots(facts.python)} is too old.",
                      f"labkit needs Python {_dots(OLDEST_PYTHON)} or newer.",
                      "conda env create -f environment.yml && conda activate labkit")
    numba, numpy = facts.packages.get("numba"), facts.packages.get("numpy")
    if numba is None:
        yield Finding("error", "numba is not installed.", "It compiles every kernel.", "pip install -e .")
    elif numpy and facts.numpy_allowed and not _allows(facts.numpy_allowed, numpy):
        yield Finding("error", f"NumPy {numpy} does not fit numba {numba}.",
                      f"This numba accepts NumPy {facts.numpy_allowed}.", f"pip install 'numpy{facts.numpy_allowed}'")
    elif facts.numba_error:
        yield Finding("error", "numba cannot be imported.", facts.numba_error,
                      "pip install --force-reinstall --no-deps numba llvmlite")
    if facts.cudasim not in ("", "0"):
        yield Finding("error", f"NUMBA_ENABLE_CUDASIM is set to {facts.cudasim!r}.",
                      "Numba's own simulator then takes the place of both the GPU and labkit's CPU device.",
                      _unset(facts, "NUMBA_ENABLE_CUDASIM"))
    if not facts.cache_writable:
        yield Finding("warning", f"The cache directory {facts.cache_dir} cannot be written.",
                      "Every kernel for the CPU device is then compiled again in each process.",
                      _export(facts, "LABKIT_CACHE_DIR",
                              "%TEMP%\\labkit" if facts.platform == "Windows" else "/tmp/labkit"))


def _gpu_faults(facts: Facts):
    if facts.platform == "Darwin":
        yield Finding("note", "macOS has no CUDA.", "Kernels run on labkit's CPU device. There is nothing to mend.")
        return
    if not facts.driver_library:
        yield _no_driver(facts)
        return
    if facts.driver_error or not facts.gpus:
        yield _no_gpu(facts)
        return

    extra = fitting_extra(facts)
    install = f"pip install -e '.[{extra}]'"
    if facts.driver_cuda and facts.driver_cuda < OLDEST_DRIVER:
        yield Finding("error", f"The NVIDIA driver is too old: it knows CUDA {_dots(facts.driver_cuda)}.",
                      f"numba-cuda needs a driver for CUDA {_dots(OLDEST_DRIVER)} or newer.", _driver_command(facts))
        return
    oldest = min(SUPPORTED)
    for gpu in facts.gpus:
        if gpu.capability < oldest:
            yield Finding("warning", f"The {gpu.name} is too old: its compute capability is {_dots(gpu.capability)}.",
                          f"labkit's kernels need {_dots(oldest)} or newer; some run on it, others do not.",
                          _export(facts, "LABKIT_DEVICE", "cpu"))
    numba_cuda = facts.packages.get("numba-cuda")
    if numba_cuda is None:
        yield Finding("error", "numba-cuda is not installed.", "It is what compiles kernels for the GPU.", install)
        return
    if not numba_cuda.startswith(NUMBA_CUDA):
        yield Finding("error", f"numba-cuda is {numba_cuda}; labkit works with {NUMBA_CUDA}*.",
                      "Other versions differ in what kernels may use.", install)
    yield from _toolkit_faults(facts, extra, install)


# Without nvvm nothing compiles; without the other two only some things do not.
LIBRARIES = {
    "nvvm": ("error", "It compiles every kernel for the GPU."),
    "nvJitLink": ("warning", "Without it kernels are linked by the driver: no link-time optimisation, older PTX."),
    "nvrtc": ("warning", "It compiles CUDA C++ that kernels link, float16 helpers among it."),
}


def _toolkit_faults(facts: Facts, extra: str, install: str):
    """Find mismatches of driver and toolkit. If the test kernel ran, a mismatch is at most a warning."""
    kernel_ran = facts.smoke == "ok"
    level = "warning" if kernel_ran else "error"
    toolkit, driver = _toolkit_version(facts), facts.driver_cuda
    old = [gpu for gpu in facts.gpus if gpu.capability < CUDA_13_CAPABILITY]
    explained = True
    if toolkit and driver and toolkit[0] > driver[0]:
        yield Finding(level, f"The toolkit is CUDA {_dots(toolkit)}, the driver knows CUDA {_dots(driver)}.",
                      f"The wrong extra is installed: this driver takes {extra}.", _clean_install(facts, install))
    elif toolkit and toolkit[0] >= 13 and old:
        yield Finding(level, f"CUDA {_dots(toolkit)} has no compiler for the {old[0].name} (compute capability "
                             f"{_dots(old[0].capability)}).",
                      f"CUDA 13 begins at compute capability {_dots(CUDA_13_CAPABILITY)}; this GPU takes cu12.",
                      _clean_install(facts, install))
    elif "UNSUPPORTED_PTX_VERSION" in facts.smoke:
        reads = f"knows CUDA {_dots(driver) if driver else '?'} and reads no newer PTX."
        newer = toolkit and driver and toolkit > driver
        limit = toolkit_limit(facts, extra)
        yield Finding("error", "Kernels compile, but the driver refuses them: CUDA_ERROR_UNSUPPORTED_PTX_VERSION.",
                      f"The toolkit is CUDA {_dots(toolkit)}, the driver {reads}" if newer else f"The driver {reads}",
                      f"{install} '{limit}'" if limit else install)
    else:
        explained = False

    for name, (worst_level, why) in LIBRARIES.items():
        if name in facts.libraries and facts.libraries[name] is None:
            explained = explained or name == "nvvm"
            yield Finding("warning" if kernel_ran else worst_level, f"{name} of the CUDA toolkit was not found.", why,
                          install)

    if facts.smoke and not kernel_ran and not explained:
        yield Finding("error", "The GPU is there, but a small kernel failed on it.", facts.smoke,
                      _clean_install(facts, install))


def _choice_faults(facts: Facts):
    usable = bool(facts.gpus) and facts.smoke in ("", "ok") and facts.packages.get("numba-cuda") is not None
    if facts.requested not in ("auto", "gpu", "cpu"):
        yield Finding("error", f"LABKIT_DEVICE is {facts.requested!r}.", "Allowed are auto, gpu and cpu.",
                      _unset(facts, "LABKIT_DEVICE"))
    elif facts.requested == "gpu" and not usable:
        yield Finding("error", "LABKIT_DEVICE=gpu, but no GPU can be used.",
                      "labkit does not fall back to the CPU device when the GPU was asked for.",
                      _export(facts, "LABKIT_DEVICE", "auto"))
    elif facts.requested == "cpu" and usable:
        yield Finding("note", "LABKIT_DEVICE=cpu: the GPU is left alone.",
                      "Kernels run on labkit's CPU device because you asked for it.", _unset(facts, "LABKIT_DEVICE"))
    elif facts.choice_error:
        yield Finding("error", "labkit could not choose a device.", facts.choice_error)


def _no_driver(facts: Facts) -> Finding:
    if facts.wsl == 1:
        return Finding("note", "This is WSL 1, which cannot use a GPU; WSL 2 can.",
                       "Kernels run on labkit's CPU device.",
                       "wsl --set-version <distribution> 2   (in PowerShell; wsl -l names the distributions)")
    if facts.wsl == 2:
        return Finding("note", "WSL has no NVIDIA driver, so no GPU is used.",
                       "If this computer has an NVIDIA GPU, then its driver for Windows, which puts libcuda into "
                       "/usr/lib/wsl/lib, is missing or too old, or WSL is.", _driver_command(facts))
    if facts.nvidia_hardware:
        return Finding("error", "An NVIDIA GPU is in this machine, but its driver was not found.",
                       "libcuda, which comes with the driver, could not be loaded.",
                       "docker run --gpus all ..." if facts.container else _driver_command(facts))
    return Finding("note", "No NVIDIA driver was found, so no GPU is used.",
                   "Kernels run on labkit's CPU device. There is nothing to mend.")


NO_GPU = {  # the driver's error -> what, why, and what mends it
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": (
        "The driver's library and its kernel module differ.",
        "This is so after a driver update, until the machine is restarted (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH).",
        "sudo reboot"),
    "CUDA_ERROR_SYSTEM_NOT_READY": (
        "The driver waits for the NVSwitch fabric manager.", "CUDA_ERROR_SYSTEM_NOT_READY",
        "sudo systemctl start nvidia-fabricmanager"),
    "CUDA_ERROR_UNKNOWN": (
        "The driver could not start (CUDA_ERROR_UNKNOWN).",
        "Its module for unified memory is often not loaded after a suspend.",
        "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"),
}


def _no_gpu(facts: Facts) -> Finding:
    if facts.visible_devices is not None and facts.driver_error in ("", "CUDA_ERROR_NO_DEVICE"):
        return Finding("error", f"The driver is there, but CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides every "
                                "GPU.",
                       "Only the GPUs that this variable lists can be seen.", _unset(facts, "CUDA_VISIBLE_DEVICES"))
    if facts.driver_error in NO_GPU:
        return Finding("error", *NO_GPU[facts.driver_error])
    if facts.wsl:
        return Finding("error", "WSL has a driver, but it sees no GPU.",
                       "The driver belongs on Windows only; a Linux driver installed in WSL hides it.",
                       "sudo apt purge 'libnvidia-compute-*'   (then in PowerShell: wsl --shutdown)")
    message = f"cuInit reports {facts.driver_error}." if facts.driver_error else "It lists no device."
    return Finding("error", "The driver is there, but sees no GPU.", message,
                   "docker run --gpus all ..." if facts.container else "nvidia-smi")


CUDA_12_WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12")
CUDA_13_WHEELS = ("nvidia-cuda-nvrtc", "nvidia-nvvm", "nvidia-nvjitlink")


def fitting_extra(facts: Facts) -> str:
    """cu12 or cu13, whichever driver and GPUs can use; if they can use both, the one whose wheels are installed."""
    new_driver = facts.driver_cuda is not None and facts.driver_cuda >= (13, 0)
    new_gpus = all(gpu.capability >= CUDA_13_CAPABILITY for gpu in facts.gpus)
    if not (new_driver and new_gpus):
        return "cu12"
    return "cu12" if _any_installed(facts, CUDA_12_WHEELS) and not _any_installed(facts, CUDA_13_WHEELS) else "cu13"


def _any_installed(facts: Facts, names: tuple[str, ...]) -> bool:
    return any(facts.packages.get(name) for name in names)


def toolkit_limit(facts: Facts, extra: str) -> str:
    """A requirement for pip that keeps the toolkit from being newer than the driver; "" where none is needed."""
    major, minor = facts.driver_cuda or (0, 0)
    return f"cuda-toolkit<{major}.{minor + 1}" if extra == f"cu{major}" else ""


def _toolkit_version(facts: Facts) -> tuple[int, int] | None:
    """The CUDA version of the compiler in use: what NVRTC says, else what the wheels are called."""
    nvrtc = facts.libraries.get("nvrtc")
    if nvrtc and nvrtc.version:
        return nvrtc.version
    for name in ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12", "cuda-toolkit"):
        if facts.packages.get(name):
            release = Version(facts.packages[name]).release
            return (release[0], release[1] if len(release) > 1 else 0)
    return None


def _clean_install(facts: Facts, install: str) -> str:
    """The install command; the compiler of the other CUDA would be found first, so it is removed before."""
    if "cu12" in install and facts.packages.get("nvidia-nvvm"):
        return f"pip uninstall -y nvidia-nvvm && {install}"
    return install


def _driver_command(facts: Facts) -> str:
    if facts.platform == "Windows":
        return "start https://www.nvidia.com/drivers"
    if facts.wsl:
        return "wsl --update   (in PowerShell; and install the driver on Windows: https://www.nvidia.com/drivers)"
    return "sudo ubuntu-drivers install   (other systems: https://www.nvidia.com/drivers)"


def _unset(facts: Facts, name: str) -> str:
    return f"set {name}=" if facts.platform == "Windows" else f"unset {name}"


def _export(facts: Facts, name: str, value: str) -> str:
    return f"set {name}={value}" if facts.platform == "Windows" else f"export {name}={value}"


def _dots(version: tuple) -> str:
    return ".".join(str(part) for part in version)


def _allows(specifier: str, version: str) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)


# ---------------------------------------------------------------------------------------------------------------
# The report


def main(console, *, as_json: bool = False) -> int:
    """Print the report. Returns the exit code: 1 when there is an error to mend."""
    facts = collect()
    findings = diagnose(facts)
    if as_json:
        print(json.dumps({"facts": asdict(facts), "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        report(console, facts, findings)
    return int(any(finding.level == "error" for finding in findings))


def report(console, facts: Facts, findings: list[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()

    def row(name: str, value: str) -> None:
        table.add_row(name, escape(value))

    wsl = f" (WSL {facts.wsl})" if facts.wsl else ""
    row("Python", f"{_dots(facts.python)} on {facts.platform} {facts.machine}{wsl}")
    for name in PACKAGES:
        row(name, facts.packages.get(name) or "not installed")
    row("baselines", ", ".join(f"{name} {version}" for name, version in facts.baselines.items()) or "none installed")
    if facts.driver_library:
        known = f", knows CUDA {_dots(facts.driver_cuda)}" if facts.driver_cuda else ""
        row("driver", (facts.driver_release or "present") + known)
    else:
        row("driver", "not found")
    for gpu in facts.gpus:
        free = f", {_gib(gpu.memory_free)} free" if gpu.memory_free is not None else ""
        row("GPU", f"{gpu.name}, compute capability {_dots(gpu.capability)}, {_gib(gpu.memory_total)}{free}, "
                   f"{gpu.multiprocessors} multiprocessors, at most {gpu.max_threads_per_block:,} threads a block")
    for name, library in facts.libraries.items():
        if library is None:
            row(name, "not found")
        else:
            version = f"CUDA {_dots(library.version)}, " if library.version else ""
            row(name, f"{version}{library.path} ({library.found_via})")
    if facts.smoke:
        row("test kernel", "ran on the GPU" if facts.smoke == "ok" else facts.smoke)
    console.print(table)
    console.print()
    if facts.device_name:
        console.print(f"Device: [bold]{escape(facts.device_name)}[/]. {escape(facts.reason)}")

    words = {"error": "[bold red]fault[/]", "warning": "[yellow]warning[/]", "note": "[cyan]note[/]"}
    for finding in findings:
        console.print(f"\n{words[finding.level]}  {escape(finding.what)} {escape(finding.why)}")
        if finding.fix:
            console.print(f"  mend it with:  [bold]{escape(finding.fix)}[/]", soft_wrap=True)
    if not any(finding.level == "error" for finding in findings):
        console.print("\n[green]No fault found.[/]")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
