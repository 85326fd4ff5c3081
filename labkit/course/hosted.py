"""Install the course on Google Colab or Kaggle, whose images come with PyTorch and, for a GPU, a CUDA toolkit.

    install("/content/course")  # a notebook's first cell calls this, once it has fetched the course

PyTorch, NumPy and what the session runs on keep their versions. This runs before labkit's dependencies are installed,
so this module imports the standard library and labkit.device only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labkit._common.errors import UserError
from labkit.device import doctor
from labkit.device import facts as machine
from labkit.device.gpus import SUPPORTED

# What stays as it is. Replacing NumPy or the packages of Jupyter takes a restart; PyTorch needs its own CUDA libraries.
TOOLKIT = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-nvjitlink-cu12",
           "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-nvjitlink")
KEPT = ("numpy", "torch", "cuda-bindings", *TOOLKIT, "ipykernel", "ipython", "jupyter-server", "tornado")
# numba-cuda loads this module when Python starts. It is the same in 0.22, which Colab has, and 0.30.
LOADED_AT_START = "_numba_cuda_redirector"


@dataclass(frozen=True)
class Plan:
    """What is installed. extra: "cu12", "cu13", or "" where no GPU is used; constraints: pip's; why: for the user."""

    extra: str
    constraints: tuple[str, ...]
    why: str


def plan(facts: machine.Facts, installed: dict[str, str]) -> Plan:
    """Choose the extra that fits the driver and the toolkit that is installed. installed: as versions() returns it."""
    kept = [f"{name}=={installed[name]}" for name in KEPT if name in installed]
    if not facts.gpus:
        return Plan("", tuple(kept), "This session has no GPU, so kernels run on labkit's CPU device. To use a GPU, "
                                     "choose one as the session's accelerator, such as a T4, and run this cell again.")
    gpu = facts.gpus[0]
    if gpu.capability < min(SUPPORTED):
        return Plan("", tuple(kept), f"The {gpu.name} has compute capability {_dots(gpu.capability)}, and labkit needs "
                                     f"{_dots(min(SUPPORTED))}: kernels run on labkit's CPU device. A T4 would do.")
    extra = doctor.fitting_extra(facts)
    limit = doctor.toolkit_limit(facts, extra)
    if limit and not any(name in installed for name in TOOLKIT):
        kept.append(limit)
    return Plan(extra, tuple(kept), f"{gpu.name}, with a driver for CUDA {_dots(facts.driver_cuda)}: the extra {extra} "
                                    "fits what is installed here.")


def install(course: str | Path) -> None:
    """Install the checkout `course` into this Python, tell what happens, and run a kernel.

    Raises UserError, with the message of pip or `labkit doctor`, if that fails.
    """
    before = versions()
    facts = machine.without_imports()
    planned = plan(facts, before)
    print(planned.why)
    print("Installing labkit, which takes a minute or two ...")
    conflicts = _pip(f"{course}[{planned.extra}]" if planned.extra else str(course), planned.constraints)
    after = versions()
    changed = [name for name in sorted(before) if after.get(name, before[name]) != before[name]]
    print(f"Added {len(after.keys() - before.keys())} packages; changed "
          + (", ".join(f"{name} {before[name]} to {after[name]}" for name in changed) or "none") + ".")
    if conflicts:
        print(f"Made for other versions, so they may fail in this session: {', '.join(conflicts)}.")
    in_use = [name for name in changed if _in_use(name)]
    if in_use:
        print(f"RESTART NEEDED: {', '.join(in_use)} had been imported before. Restart the session (in Colab: Runtime, "
              "Restart session), then run this cell again.")
        return
    if facts.gpus and not planned.extra:
        os.environ["LABKIT_DEVICE"] = "cpu"
    if LOADED_AT_START not in sys.modules:  # as Python does when it starts with numba-cuda installed
        importlib.import_module(LOADED_AT_START)
    print(_checked(course))


def versions() -> dict[str, str]:
    """{name: version} of every installed package; names as pip compares them."""
    importlib.invalidate_caches()
    found = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    # The first directory of sys.path comes first and is the one that counts.
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in reversed(found) if name}


def _pip(requirement: str, constraints: tuple[str, ...]) -> list[str]:
    """Run pip, showing on one line what it does. Return the packages that ask for other versions than there are now."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text("\n".join(constraints), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", "--disable-pip-version-check",
                   "-c", str(file), "-e", requirement]
        lines = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout:
                lines.append(line.rstrip())
                if line.lstrip().startswith(("Collecting", "Downloading", "Installing")):
                    print(f"\r  {line.strip()[:76]:76}", end="", flush=True)
    print(f"\r{'':78}\r", end="")
    if process.returncode:
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise UserError("pip could not install labkit here. Start a new session (in Colab: Runtime, Disconnect and "
                        "delete runtime) and run this cell first. The error of pip:\n" + "\n".join(errors))
    return sorted({line.split()[0] for line in lines if " requires " in line and "but you have" in line})


def _in_use(name: str) -> bool:
    """Whether this process has imported a module of an installed package."""
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__")
               for file in importlib.metadata.files(name) or () if file.suffix == ".py"}
    return bool(modules & sys.modules.keys() - {LOADED_AT_START})


def _checked(course: str | Path) -> str:
    """What `labkit doctor` found, in a process of its own, as a sentence. Raises UserError if it found a fault."""
    command = [sys.executable, "-m", "labkit", "doctor", "--json"]
    process = subprocess.run(command, cwd=course, capture_output=True, text=True)
    try:
        report = json.loads(process.stdout)
    except json.JSONDecodeError:
        raise UserError(f"labkit is installed, but does not start:\n{process.stderr[-2000:]}") from None
    faults = [finding for finding in report["findings"] if finding["level"] == "error"]
    if faults:
        raise UserError("labkit is installed, but\n" + "\n".join(
            f"{fault['what']} {fault['why']}\n  To fix it, run in a cell: !{fault['fix']}" for fault in faults))
    ran = " A test kernel ran on it." if report["facts"]["smoke"] == "ok" else ""
    return f"The course is ready. Device: {report['facts']['device_name']}.{ran}"


def _dots(version: tuple | None) -> str:
    return ".".join(map(str, version or ("?",)))
