"""Executes a lesson, cell by cell, in a kernel of its own, and reports in plain words what went wrong.

The kernel is this very interpreter: no kernelspec has to be installed. It ends with the lesson. Where lessons run one
after the other, `Kernels` starts the next one while a lesson runs: see labkit.course.lesson_kernel.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit._common import paths
from labkit._common.cores import cores
from labkit._common.errors import UserError
from labkit._common.files import temporary_space
from labkit.course import prose
from labkit.course.notebooks import cell_lines, import_nbformat
from labkit.course.registry import Chapter

RESULT = "application/vnd.labkit.result+json"
CELL_TIMEOUT_S = 600
DEVICES = ("auto", "gpu", "cpu")
CORES_FOR_TWO = 4  # a lesson that times something and the imports of the next one beside it
MOST_AT_ONCE = 4  # lessons: each takes up to 1 GB of memory


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


def at_once(lessons: int, kind: str) -> int:
    """How many of so many lessons run at the same time. kind: "gpu" or "cpu". On a GPU it is one: lessons time kernels
    there."""
    return 1 if kind == "gpu" else max(1, min(lessons, cores(), MOST_AT_ONCE))


class Kernels:
    """The kernels of lessons that run one after the other, `lessons` in all, with the same device and environment.

        async with Kernels("cpu", lessons=2) as kernels:
            await kernels.run(first, chapter)
            await kernels.run(second, another)        its kernel was started while the first one ran

    device: auto, gpu or cpu, or None for what LABKIT_DEVICE says. env: variables of the kernels, beside those of this
    process. lessons: left out, no kernel is started early; nor is one on a machine with few cores, where its imports
    would disturb what a lesson times.
    """

    def __init__(self, device: str | None = None, *, lessons: int = 1, env: dict[str, str] | None = None):
        if device is not None and device not in DEVICES:
            raise UserError(f"device {device!r} is not known; allowed are {', '.join(DEVICES)}")
        self._env = {**(env or {}), **({} if device is None else {"LABKIT_DEVICE": device})}
        self._remaining = lessons
        self._prestart = cores() >= CORES_FOR_TWO
        self._waiting: _Kernel | None = None  # of the next lesson
        self._ended: _Kernel | None = None  # of the lesson before: it ends while the next one begins

    async def __aenter__(self) -> "Kernels":
        return self

    async def __aexit__(self, *_) -> None:
        for kernel in (self._waiting, self._ended):
            if kernel is not None:
                await kernel.stop()

    async def run(self, notebook, chapter: Chapter, *, on_cell: Callable | None = None) -> Outcome:
        """Execute every cell of `notebook` in place. `on_cell(done, total)` is called after each cell.

        Stops at the first failing cell.
        """
        start = time.perf_counter()
        self._remaining -= 1
        problem = await self._run(notebook, chapter, on_cell)
        return Outcome(time.perf_counter() - start, problem)

    async def _run(self, notebook, chapter: Chapter, on_cell: Callable | None) -> Problem | None:
        folder = chapter.source.parent
        kernel, self._waiting = self._waiting, None
        if kernel is None or kernel.works_in != folder:
            if kernel is not None:
                await kernel.stop()
            kernel = await _Kernel.start(folder, self._env)
        ended, self._ended = self._ended, kernel
        ending = asyncio.create_task(ended.stop()) if ended else None
        try:
            if self._remaining > 0 and self._prestart:
                self._waiting = await _Kernel.start(folder, self._env, imported=True)
            return await _execute(notebook, chapter, kernel.manager, on_cell)
        finally:
            if ending is not None:
                await ending


def run(notebook, chapter: Chapter, *, device: str | None = None, on_cell: Callable | None = None,
        env: dict[str, str] | None = None) -> Outcome:
    """Execute one lesson in a kernel of its own: see Kernels. Ctrl-C ends the kernel and raises KeyboardInterrupt."""
    async def run_alone() -> Outcome:
        async with Kernels(device, env=env) as kernels:
            return await kernels.run(notebook, chapter, on_cell=on_cell)

    return asyncio.run(run_alone())


def results(notebook) -> list[dict]:
    """The labkit results that the notebook's outputs carry, in order."""
    return [
        output.data[RESULT]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if RESULT in output.get("data", {})
    ]


@dataclass(frozen=True)
class _Kernel:
    """A process in which one lesson runs, and the folder in which that lies which is its own."""

    manager: object
    ipython_dir: tempfile.TemporaryDirectory
    works_in: Path

    @classmethod
    async def start(cls, works_in: Path, env: dict[str, str], *, imported: bool = False) -> "_Kernel":
        """imported: with what lessons import already imported."""
        ipython_dir = tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True)
        module = "labkit.course.lesson_kernel" if imported else "ipykernel_launcher"
        manager = _kernel_manager(ipython_dir.name, module)
        # A profile of its own: the reader's IPython start-up files take no part in a lesson.
        env = dict(os.environ, IPYTHONDIR=ipython_dir.name, PYDEVD_DISABLE_FILE_VALIDATION="1", **env)
        if imported:  # the package is found wherever this process found it
            env["PYTHONPATH"] = os.pathsep.join([str(paths.PACKAGE.parent), *filter(None, [env.get("PYTHONPATH")])])
        await manager.start_kernel(cwd=str(works_in), env=env)
        return cls(manager, ipython_dir, works_in)

    async def stop(self) -> None:
        try:
            if self.manager.has_kernel:
                await self.manager.shutdown_kernel(now=True)
        finally:
            self.ipython_dir.cleanup()


def _kernel_manager(folder: str, module: str):
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    class ThisInterpreter(KernelSpecManager):
        def get_kernel_spec(self, kernel_name):
            argv = [sys.executable, "-Xfrozen_modules=off", "-m", module, "-f", "{connection_file}"]
            return KernelSpec(argv=[*argv, "--log-level=ERROR"], display_name="Python 3", language="python")

    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=ThisInterpreter(),
        connection_file=os.path.join(folder, "kernel.json"),
        transport="tcp" if sys.platform == "win32" else "ipc",
    )


async def _execute(notebook, chapter: Chapter, manager, on_cell: Callable | None) -> Problem | None:
    """Every cell in the kernel of `manager`, which goes on when this returns."""
    import_nbformat()  # as nbclient does
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    client = NotebookClient(notebook, km=manager, record_timing=False, timeout=CELL_TIMEOUT_S)
    index = 0
    try:
        try:
            await client.async_start_new_kernel_client()
        except RuntimeError:  # it ended, or does not answer
            raise UserError(f"the Python process of lesson {chapter.number} did not begin; {temporary_space()}"
                            ) from None
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


def _problem(chapter: Chapter, notebook, index: int, error: str) -> Problem:
    cell = notebook.cells[index]
    starts = cell_lines(prose.split(chapter.source_text())[0])
    is_code = [each.cell_type == "code" for each in notebook.cells]
    offset = _line_in_cell(cell)
    line = starts[sum(is_code[:index])] + offset if offset and len(starts) == sum(is_code) else 0
    code = cell.source.splitlines()[offset - 1].strip() if 0 < offset <= len(cell.source.splitlines()) else ""
    return Problem(index + 1, line, code, error)


def _line_in_cell(cell) -> int:
    """The line of the cell (from 1) that the traceback starts in, or 0."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
            match = re.search(r"^(?:Cell|File|Input).*?In\s?\[\d+\].*?line:? (\d+)", text, re.MULTILINE)
            if match:
                return int(match.group(1))
    return 0
