"""LABKIT_SIMT: the CPU device in programs whose command cannot be changed, and in the processes that a program starts.

Python runs the lines of .pth files in site-packages as it starts. Ours looks whether LABKIT_SIMT is set, to anything
but 0, and does nothing if not.
"""

import os
import sysconfig
from pathlib import Path

STARTUP = Path(__file__).resolve().parent / "startup"
LINE = (
    'import os; os.environ.get("LABKIT_SIMT", "0") in ("", "0") or '
    '__import__("runpy").run_path({path!r}, run_name="labkit_simt")\n'
)


def pth():
    """The file in this environment's site-packages."""
    return Path(sysconfig.get_path("purelib")) / "labkit_simt.pth"


def enable():
    """Write the file. Raises OSError where site-packages cannot be written."""
    pth().write_text(LINE.format(path=str(STARTUP / "sitecustomize.py")), encoding="utf-8")


def disable():
    """Remove the file; True if it was there."""
    there = pth().exists()
    pth().unlink(missing_ok=True)
    return there


def for_children():
    """Let the Python processes that this one starts do as it does."""
    os.environ["LABKIT_SIMT"] = "1"
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(STARTUP) not in entries:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *filter(None, entries)])
