"""Executes a lesson, cell by cell, in a kernel of its own, and reports in plain words what went wrong.

The kernel is this very interpreter: no kernelspec has to be installed. It ends with the lesson.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from labkit._common.errors import UserError
from labkit.course.notebooks import cell_lines
from labkit.course.registry import Chapter

RESULT = "application/vnd.labkit.result+json"
CELL_TIMEOUT_S = 600
DEVICES = ("auto", "gpu", "cpu")


@dataclass(frozen=True)
class Problem:
    """Where a lesson stopped. `line` counts in notebooks/NN_topic.py; 0 where it is not known."""

    cell: int  # from 1, markdown cells included
    line: int
    code: str  # the source line
    error: str  # "ValueError: ..."

    def where(self, chapter: Chapter) -> str:
        line = f", line {self.line} of notebooks/{chapter.name}.py" if self.line else ""
        return f"cell {self.cell}{line}"


@dataclass(frozen=True)
class Outcome:
    seconds: float
    problem: Problem | None


def run(notebook, chapter: Chapter, *, device: str | None = None, on_cell: Callable | None = None,
        env: dict[str, str] | None = None) -> Outcome:
    """Execute every cell of `notebook` in place. `on_cell(done, total)` is called after each cell.
    env: variables of the kernel, beside those of this process.

    Stops at the first failing cell. Ctrl-C shuts the kernel down and raises KeyboardInterrupt.
    """
    if device is not None and device not in DEVICES:
        raise UserError(f"device {device!r} is not known; allowed are {', '.join(DEVICES)}")
    start = time.perf_counter()
    problem = asyncio.run(_run(notebook, chapter, device, on_cell, env or {}))
    return Outcome(time.perf_counter() - start, problem)


def results(notebook) -> list[dict]:
    """The labkit results that the notebook's outputs carry, in order."""
    return [
        output.data[RESULT]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if RESULT in output.get("data", {})
    ]


def _kernel_manager(folder: str):
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    class ThisInterpreter(KernelSpecManager):
        def get_kernel_spec(self, kernel_name):
            argv = [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=[*argv, "--log-level=ERROR"], display_name="Python 3", language="python")

    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=ThisInterpreter(),
        connection_file=os.path.join(folder, "kernel.json"),
        transport="tcp" if sys.platform == "win32" else "ipc",
    )


async def _run(notebook, chapter: Chapter, device: str | None, on_cell: Callable | None,
               more: dict[str, str]) -> Problem | None:
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as folder:
        # A profile of its own: the reader's IPython start-up files take no part in a lesson.
        env = dict(os.environ, IPYTHONDIR=folder, PYDEVD_DISABLE_FILE_VALIDATION="1", **more)
        if device is not None:
            env["LABKIT_DEVICE"] = device
        manager = _kernel_manager(folder)
        client = NotebookClient(notebook, km=manager, record_timing=False, timeout=CELL_TIMEOUT_S)
        index = 0
        try:
            await client.async_start_new_kernel(cwd=str(chapter.source.parent), env=env)
            await client.async_start_new_kernel_client()
            for index, cell in enumerate(notebook.cells):
                await client.async_execute_cell(cell, index)
                if on_cell:
                    on_cell(index + 1, len(notebook.cells))
            return None
        except CellExecutionError as error:
            return _problem(chapter, notebook, index, f"{error.ename}: {error.evalue}".strip().rstrip(":"))
        except CellTimeoutError:
            return _problem(chapter, notebook, index, f"the cell took longer than {CELL_TIMEOUT_S} s")
        except DeadKernelError:
            if asyncio.current_task().cancelling():  # nbclient takes a cancelled wait for a dead kernel
                raise asyncio.CancelledError from None
            return _problem(chapter, notebook, index, "the Python process of the lesson died (out of memory?)")
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)


def _problem(chapter: Chapter, notebook, index: int, error: str) -> Problem:
    cell = notebook.cells[index]
    starts = cell_lines(chapter.source_text())
    inside = _line_in_cell(cell)
    line = starts[index] + inside if inside and len(starts) == len(notebook.cells) else 0
    code = cell.source.splitlines()[inside - 1].strip() if 0 < inside <= len(cell.source.splitlines()) else ""
    return Problem(index + 1, line, code, error)


def _line_in_cell(cell) -> int:
    """The line of the cell (from 1) that the traceback starts in, or 0."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
            found = re.search(r"^(?:Cell|File|Input).*?In\s?\[\d+\].*?line:? (\d+)", text, re.MULTILINE)
            if found:
                return int(found.group(1))
    return 0
