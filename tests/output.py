"""Let the tests run where standard output is closed or full, for which pytest has no answer: what it prints is then
discarded, and the exit code says how the tests went. pyproject.toml loads this before pytest takes the output over."""

import os
import sys


def takes_output(stream) -> bool:
    """Whether something can be written there: not where it is closed, or on a full disk."""
    try:
        if not stream.isatty():
            stream.write("\n")
            stream.flush()
    except (AttributeError, OSError):
        return False
    return True


if "PYTEST_XDIST_WORKER" not in os.environ and not takes_output(sys.stdout):
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
