"""What this machine has, for `labkit doctor`: packages, driver, GPUs, the CUDA toolkit, and whether a kernel runs.

facts = collect()   # looks at the machine; never raises
"""

import contextlib
import ctypes
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("labkit", "numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings", "cuda-core")
TOOLKIT_PACKAGES = ("cuda-toolkit", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-nvvm",
                    "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink", "nvidia-nvjitlink-cu12")
BASELINES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "cupy", "triton", "cuda-tile")
SMOKE_TIMEOUT_S = 120
DRIVER_ERRORS = {
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    999: "CUDA_ERROR_UNKNOWN",
}


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    memory_total: int  # bytes
    memory_free: int | None  # bytes; None where no context could be made
    multiprocessors: int
    max_threads_per_block: int


@dataclass(frozen=True)
class Library:
    """A piece of the CUDA toolkit. `version` is (major, minor) where it could be asked."""

    path: str
    found_via: str
    version: tuple[int, int] | None = None


@dataclass
class Facts:
    """What was found. The defaults are a healthy machine without a GPU."""

    python: tuple[int, int, int] = (3, 12, 0)
    platform: str = "Linux"
    machine: str = "x86_64"
    container: bool = False
    wsl: int = 0  # the version of the Windows Subsystem for Linux, 1 or 2; 0 anywhere else
    packages: dict[str, str | None] = field(default_factory=dict)
    baselines: dict[str, str] = field(default_factory=dict)
    numpy_allowed: str = ""  # what the installed numba accepts, such as "<2.6,>=1.22"
    numba_error: str = ""  # importing numba raised this
    cudasim: str = ""  # NUMBA_ENABLE_CUDASIM
    cache_dir: str = ""
    cache_writable: bool = True
    nvidia_hardware: bool | None = None  # None: this platform does not tell
    visible_devices: str | None = None  # CUDA_VISIBLE_DEVICES
    driver_library: bool = False  # libcuda could be loaded
    driver_error: str = ""  # the error of cuInit
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver knows
    driver_release: str = ""  # "580.95.05"
    gpus: list[Gpu] = field(default_factory=list)
    libraries: dict[str, Library | None] = field(default_factory=dict)  # nvvm, nvrtc, nvJitLink
    smoke: str = ""  # "ok", an error, or empty: not tried
    requested: str = "auto"
    chosen: str = "cpu"
    device_name: str = ""
    reason: str = ""
    choice_error: str = ""


def collect() -> Facts:
    """Look at the machine. Each step may fail; what it would have found then keeps its default."""
    facts = without_imports()
    for look in (_look_at_numba, _look_at_cache, _look_at_toolkit, _look_at_choice):
        with contextlib.suppress(Exception):
            look(facts)
    if facts.gpus and facts.packages.get("numba-cuda"):
        facts.smoke = _run_smoke()
    return facts


def without_imports() -> Facts:
    """Return what can be found out before labkit's dependencies are installed: driver, GPUs and installed versions."""
    facts = Facts(
        python=sys.version_info[:3],
        platform=platform.system(),
        machine=platform.machine(),
        container=Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        wsl=_wsl_version(platform.release()),
        packages={name: _installed(name) for name in (*PACKAGES, *TOOLKIT_PACKAGES)},
        baselines={name: version for name in BASELINES if (version := _installed(name))},
        numpy_allowed=_numpy_allowed(),
        cudasim=os.environ.get("NUMBA_ENABLE_CUDASIM", ""),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        requested=os.environ.get("LABKIT_DEVICE", "").strip().lower() or "auto",
    )
    for look in (_look_at_hardware, _look_at_driver):
        with contextlib.suppress(Exception):
            look(facts)
    return facts


def _wsl_version(release: str) -> int:
    """By the kernel's release: "4.4.0-19041-Microsoft" is WSL 1, "6.6.87.2-microsoft-standard-WSL2" is WSL 2."""
    if "microsoft" not in release.lower():
        return 0
    return 1 if release.endswith("-Microsoft") else 2


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numpy_allowed() -> str:
    try:
        requirements = importlib.metadata.requires("numba") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    return next((r[5:].split(";")[0].strip(" ()") for r in requirements if r.startswith("numpy")), "")


def _look_at_numba(facts: Facts) -> None:
    try:
        importlib.import_module("numba")
    except Exception as error:
        facts.numba_error = f"{type(error).__name__}: {error}"


def _look_at_cache(facts: Facts) -> None:
    from labkit.simt.settings import cache_directory

    folder = cache_directory()
    facts.cache_dir = str(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        facts.cache_writable = False


def _look_at_hardware(facts: Facts) -> None:
    if facts.platform == "Linux":
        # 0x10de is NVIDIA; class 0x03.... is a display or 3D controller, not the card's sound.
        facts.nvidia_hardware = any(
            (d / "vendor").read_text().strip() == "0x10de" and (d / "class").read_text().startswith("0x03")
            for d in Path("/sys/bus/pci/devices").glob("*"))
        release = Path("/proc/driver/nvidia/version")
        if release.exists():
            words = release.read_text().split()
            facts.driver_release = next((w for w in words if w[0].isdigit() and w.count(".") >= 1), "")


def _look_at_driver(facts: Facts) -> None:
    """Ask libcuda itself, through ctypes: this works even where the Python packages are broken."""
    cuda = _load_driver()
    if cuda is None:
        return
    facts.driver_library = True
    value = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(value)) == 0:
        facts.driver_cuda = (value.value // 1000, value.value % 1000 // 10)
    status = cuda.cuInit(0)
    if status != 0:
        facts.driver_error = DRIVER_ERRORS.get(status, f"CUDA error {status}")
        return
    cuda.cuDeviceGetCount(ctypes.byref(value))
    for index in range(value.value):
        facts.gpus.append(_gpu(cuda, index))


def _load_driver():
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _gpu(cuda, index: int) -> Gpu:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGetName(name, len(name), device)
    total = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)

    def attribute(attribute_id: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute_id, device)
        return value.value

    return Gpu(name.value.decode(), (attribute(75), attribute(76)), total.value, _free_memory(cuda, device),
               multiprocessors=attribute(16), max_threads_per_block=attribute(1))


def _free_memory(cuda, device) -> int | None:
    context = ctypes.c_void_p()
    if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        return None
    try:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if cuda.cuCtxPushCurrent_v2(context) != 0:
            return None
        status = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return free.value if status == 0 else None
    finally:
        cuda.cuDevicePrimaryCtxRelease_v2(device)


def _look_at_toolkit(facts: Facts) -> None:
    """Where cuda.pathfinder, which numba-cuda asks, finds the toolkit's libraries."""
    if not facts.packages.get("numba-cuda"):
        return
    from cuda import pathfinder

    from labkit.device import cuda_12

    cuda_12.prefer_on_old_driver()
    for name in ("nvvm", "nvrtc", "nvJitLink"):
        facts.libraries[name] = None
        with contextlib.suppress(Exception):
            library = pathfinder.load_nvidia_dynamic_lib(name)
            facts.libraries[name] = Library(library.abs_path, library.found_via or "", _library_version(name))


def _library_version(name: str) -> tuple[int, int] | None:
    with contextlib.suppress(Exception):
        if name == "nvrtc":
            from cuda.bindings import nvrtc

            status, major, minor = nvrtc.nvrtcVersion()
            return (major, minor)
        if name == "nvJitLink":
            from cuda.bindings import nvjitlink

            return tuple(nvjitlink.version())
    return None


def _look_at_choice(facts: Facts) -> None:
    try:
        from labkit import device

        choice = device.choice()
        facts.chosen, facts.reason = choice.kind, choice.reason
        facts.device_name = device.name()
    except Exception as error:
        facts.choice_error = f"{type(error).__name__}: {error}"


def smoke() -> None:
    """Compile a kernel, run it on the GPU and look at what it wrote. Runs in a process of its own."""
    import numpy as np

    from labkit import cuda

    @cuda.jit
    def add_one(values):
        position = cuda.grid(1)
        if position < values.size:
            values[position] += 1

    values = cuda.to_device(np.arange(100, dtype=np.int32))
    add_one[2, 64](values)
    if not np.array_equal(values.copy_to_host(), np.arange(1, 101)):
        raise RuntimeError("the kernel ran, but its result is wrong")
    print("smoke ok")


def _run_smoke() -> str:
    """ "ok", or the last line of what went wrong."""
    env = dict(os.environ, LABKIT_DEVICE="gpu")
    command = [sys.executable, "-c", "from labkit.device.facts import smoke; smoke()"]
    try:
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SMOKE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"a kernel of one line did not end within {SMOKE_TIMEOUT_S} s"
    if process.returncode == 0 and "smoke ok" in process.stdout:
        return "ok"
    lines = [line for line in process.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "CUDA_ERROR" in line or "UNSUPPORTED" in line]
    return (errors or lines or [f"the process ended with code {process.returncode}"])[-1].strip()
