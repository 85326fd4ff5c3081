"""play: an observed launch as a page element that shows it step by step, made of one document with nothing to fetch."""

import contextlib
import functools
import glob
import html
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from labkit.simt.observer.kept_launch import KEPT_BYTES
from labkit.simt.observer.race_orders import orders
from labkit.simt.observer.recorder import Recording
from labkit.simt.observer.trace import encoded
from labkit.simt.store import ABANDONED

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("steps.js", "cells.js", "words.js", "player.js")
MARK = "labkit-"  # in the name of a file that is being written, as of all that labkit writes
ALL_BLOCKS, ALL_THREADS = 16, 2_048  # a launch of no more is recorded whole


def play(report, block=None):
    """The Player of a report's launch; Report.play says more."""
    launch = report.launch
    if launch.nbytes is not None:
        raise ValueError(
            f"{report.kernel}: the arrays of this launch are {launch.nbytes:,} bytes, and play takes up to "
            f"{KEPT_BYTES:,}: observe it at a smaller size"
        )
    recording = Recording(launch, _blocks(report, block)).record()
    trace = encoded(recording, report)
    trace["orders"] = [{"name": name, "text": text, **encoded(other, report, wrong)}
                       for name, text, other, wrong in orders(recording)]
    return Player(trace, report)


def _blocks(report, asked):
    """The blocks to record, the one to be shown first at the front."""
    gx, gy, gz = report.grid
    count = gx * gy * gz
    if asked is None:
        first = next((f.block for f in report.findings if f.block is not None), 0)
    else:
        parts = asked if isinstance(asked, (tuple, list)) else (asked,)
        are_integers = all(isinstance(p, (int, np.integer)) and not isinstance(p, bool) for p in parts)
        if not are_integers or not 1 <= len(parts) <= 3:
            raise TypeError(f"block must be the number of a block, or its (x, y, z), not {asked!r}")
        x, y, z = (*parts, 0, 0)[:3]
        first = x if len(parts) == 1 else x + gx * (y + gy * z)
        inside = 0 <= first < count if len(parts) == 1 else 0 <= x < gx and 0 <= y < gy and 0 <= z < gz
        if not inside:
            raise ValueError(f"block is {asked!r}, and the grid of this launch is {report.grid}: {count:,} blocks")
    threads = report.block[0] * report.block[1] * report.block[2]
    others = range(count) if count <= ALL_BLOCKS and count * threads <= ALL_THREADS else ()
    return [int(first), *(b for b in others if b != first)]


class Player:
    """A launch to be played: a notebook shows it, `save` writes it as one HTML file."""

    def __init__(self, trace, report):
        self.trace, self._title = trace, f"{report.kernel}, grid {report.grid}, block {report.block}"

    def document(self):
        """The whole page, as HTML."""
        page, style, script = _assets()
        data = json.dumps(self.trace, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for character in "<>&'\u2028\u2029":  # nothing that HTML, or an attribute in single quotes, would read
            data = data.replace(character, f"\\u{ord(character):04x}")
        for mark, text in (("TITLE", html.escape(self._title)), ("STYLE", style), ("DATA", data), ("SCRIPT", script)):
            page = page.replace(f"%{mark}%", text, 1)
        return page

    def save(self, path):
        """Write the page as one HTML file, whole or not at all. Returns its path."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(f"path is {str(path)!r}; it must end in .html")
        if path.is_dir():
            raise ValueError(f"path is {str(path)!r}, which is a folder; it must be a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_left_over(path)
        file, temporary = _temporary(path)
        try:
            with file:
                file.write(self.document().encode())
            os.chmod(temporary, 0o644)  # mkstemp makes it private
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return path

    def __repr__(self):
        blocks = self.trace["blocks"]
        steps = blocks[self.trace["first"]]["steps"] if blocks else 0
        notes = "".join(f" {note}" for note in self.trace["notes"])
        return (f"{self._title}: {steps:,} steps to play. A notebook shows them; .save('player.html') writes a page."
                f"{notes}")

    def _repr_html_(self):
        document = self.document().replace("&", "&amp;").replace("'", "&#39;")
        return (
            f"<iframe class='labkit-player' title='{html.escape(self._title, quote=True)}, step by step' "
            "style='width:100%;height:760px;border:0;display:block' "
            f"srcdoc='{document}'></iframe>"
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def _delete_left_over(path):
    """Delete what killed writers of this page left beside it: their locks are free. Where there are no locks, it is
    kept for an hour."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{MARK}????????"):
        with contextlib.suppress(OSError):  # locked, or another process deletes it, too
            with open(left, "rb") as file:
                is_free = _lock(file) or time.time() - os.fstat(file.fileno()).st_mtime > ABANDONED
            if is_free:
                left.unlink()


def _temporary(path):
    """A file to write beside `path`, locked while it is open, and its name."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{MARK}")
        file = os.fdopen(handle, "wb")
        with contextlib.suppress(BlockingIOError):
            _lock(file)
            if os.fstat(handle).st_nlink:
                return file, name
        file.close()  # another took it for left over before it was locked


def _lock(file):
    """Lock a file until it is closed. False where there are no locks; BlockingIOError where another has it."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        return False
    return True


@functools.cache
def _assets():
    """(page, style, script), without the comments and the indentation of their sources."""
    texts = {name: (PAGE / name).read_text(encoding="utf-8") for name in ("player.html", "player.css", *SCRIPTS)}
    lines = (line.strip() for name in SCRIPTS for line in texts[name].splitlines())
    script = "\n".join(line for line in lines if line and not line.startswith("//"))
    style = "\n".join(line.strip() for line in texts["player.css"].splitlines() if line.strip())
    return texts["player.html"], style, f'"use strict";\n(() => {{\n{script}\n}})();'
