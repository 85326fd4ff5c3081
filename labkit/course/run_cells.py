"""Runs a notebook's code cells in this process, one after the other, whatever fails; writes one JSON line for each.

    python -m labkit.course.run_cells cells.json

labkit.course.workbooks starts it. It is an IPython without a kernel: magics work, and it starts faster than Jupyter.
"""

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path


def in_a_line(error: BaseException) -> str:
    """ "NameError: name 'x' is not defined, line 3": of the cell, where it is known."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename.startswith("<ipython-input")]
    message = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(": ")
    return f"{message}, line {lines[-1]}" if lines else message


def main(job: str) -> None:
    cells = json.loads(Path(job).read_text(encoding="utf-8"))
    # What the cells print goes nowhere; the reports leave through a copy of stdout.
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)

    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    settings = Config()
    settings.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=settings)
    from labkit.course.check.verdict import Verdict

    for index, source in enumerate(cells):
        with open(os.devnull, "w") as sink, contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            outcome = shell.run_cell(source, store_history=False)
        error = outcome.error_before_exec or outcome.error_in_exec
        verdict = outcome.result.result() if isinstance(outcome.result, Verdict) else None
        message = in_a_line(error) if error else ""
        print(json.dumps({"cell": index, "verdict": verdict, "error": message}), file=report, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
