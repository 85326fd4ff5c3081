"""Notebooks that students might hand in."""

import json
import os
import signal
import time
from pathlib import Path

FIRST = "from labkit import check, cuda, hint"
RIGHT_FUNCTION = "def blocks_needed(n, each, threads):\n    return -(-n // (each * threads))"
RIGHT_KERNEL = (
    "@cuda.jit\n"
    "def saxpy(s, x, y):\n"
    "    i = cuda.grid(1)\n"
    "    if i < y.size:\n"
    "        y[i] = s * x[i] + y[i]"
)
UNGUARDED = RIGHT_KERNEL.replace("if i < y.size:", "if True:")


def notebook(*cells: str, **metadata) -> str:
    return json.dumps({
        "cells": [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": None}
                  for cell in cells],
        "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def hand_in(path: Path, *cells: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(notebook(*cells), encoding="utf-8")
    return path


def function_cells(answer: str = RIGHT_FUNCTION) -> tuple[str, ...]:
    return FIRST, answer, 'check("blocks_needed", blocks_needed)'


def kernel_cells(answer: str = RIGHT_KERNEL, above: str = FIRST) -> tuple[str, ...]:
    return above, answer, 'check("saxpy", saxpy)'


# --- Judges that judge nothing, for tests of how answers are handed out ---------------------------------------------


def stand_in(settings, task, is_here: bool, version: str) -> dict:
    """Passes every answer, and says which process did. What the student's name begins with happens before."""
    limit = time.monotonic() + 60
    while task.student.startswith("slow") and not (settings.folder / "go on").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    if task.student.startswith("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    if task.student.startswith("broken") or os.environ.get("LABKIT_TEST_BROKEN"):
        raise OSError("no namespaces here")
    time.sleep(0.05)
    return {"verdict": "passed", "passed": True, "details": [str(os.getpid())]}
