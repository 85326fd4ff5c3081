"""Numbers, counts, indices and lines of source as a verdict writes them."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap

import numpy as np


def show_value(value) -> str:
    if isinstance(value, (float, np.floating)) and np.isnan(value):
        return "NaN"
    if isinstance(value, np.unsignedinteger):  # the exercises that have these are about bits
        return f"0x{int(value):0{2 * value.itemsize}X}"
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def counted(things, noun: str) -> str:
    count = things if isinstance(things, int) else len(things)
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


NOUNS = {f"{noun}s": noun for noun in (
    "thread", "number", "element", "load", "store", "block", "argument", "row", "column", "lane", "warp", "key", "head",
    "token", "part", "weight", "array", "graph", "replay", "request", "sector", "step", "time", "input", "kernel",
    "chunk", "atomic", "barrier", "call", "parameter", "size", "conflict", "copy", "round", "counter", "output",
    "product", "length", "bin", "value", "turn", "shuffle", "read", "block", "line", "score", "page", "slot", "count",
    "bit", "word", "expert", "difference", "mistake", "event", "stream", "place", "tile", "sum", "result")} | {
    "launches": "launch", "passes": "pass", "bytes": "byte", "queries": "query", "copies": "copy", "axes": "axis",
    "indices": "index", "branches": "branch"}  # fmt: skip
VERBS = {"are": "is", "were": "was", "have": "has", "make": "makes", "move": "moves", "load": "loads", "take": "takes",
         "store": "stores", "do": "does", "idle": "idles", "compute": "computes", "need": "needs"}
_ONE_OF_MANY = re.compile(rf"(?<![\w.,:=\[(*/+-])(?<![*/+-] )1 ((?:\w+ly |different |wrong |more )?)"
                          rf"({'|'.join(NOUNS)})\b(?: (that ))?(?: ?\b({'|'.join(VERBS)})\b)?")


def in_the_singular(text: str) -> str:
    """The sentence with "1 thread makes" where it says "1 threads make": counts are put into sentences of many."""
    parts = text.split("`")  # code stays as it is
    return "`".join(part if k % 2 else _ONE_OF_MANY.sub(_singular, part) for k, part in enumerate(parts))


def _singular(match: re.Match) -> str:
    before, noun, that, verb = match.groups()
    return f"1 {before}{NOUNS[noun]}" + (" that " if that else " " * bool(verb)) + (VERBS[verb] if verb else "")


def show_index(index: tuple) -> str:
    return str(index[0]) if len(index) == 1 else f"[{', '.join(map(str, index))}]"


def table_of(expected: np.ndarray, got: np.ndarray, wrong: np.ndarray, unwritten: np.ndarray, around: int = 3) -> dict:
    """Expected against got, from a little before the first wrong element to a little after it, in memory order."""
    first = int(np.argmax(wrong.reshape(-1)))
    start, stop = max(0, first - around), min(wrong.size, first + 2 * around)
    rows = []
    for flat in range(start, stop):
        index = tuple(int(i) for i in np.unravel_index(flat, wrong.shape)) if wrong.ndim else ()
        value = "not written" if unwritten.reshape(-1)[flat] else show_value(got.reshape(-1)[flat])
        rows.append([show_index(index) if index else "value", show_value(expected.reshape(-1)[flat]), value,
                     "wrong" if wrong.reshape(-1)[flat] else ""])
    return {"columns": ["index", "expected", "got", ""], "rows": rows}


# --- Errors --------------------------------------------------------------------------------------------------------


def source_line(filename: str, line: int) -> str:
    return linecache.getline(filename, line).strip() if filename and line else ""


def bare_code(filename: str, line: int) -> str:
    """A line without its spaces: equal where two answers have the same line."""
    return "".join(source_line(filename, line).split("#")[0].split())


def quote_line(filename: str, line: int) -> str:
    code = source_line(filename, line)
    return f"Line {line}: `{code}`" if code else f"Line {line}."


def parsed(function):
    """The source of a function or kernel as a tree, and the line in its file at which it starts; (None, 0) if there is
    none to be read."""
    function = getattr(function, "py_func", function)
    try:
        lines, first_line = inspect.getsourcelines(function)
        return ast.parse(textwrap.dedent("".join(lines))), first_line
    except (OSError, TypeError, SyntaxError):
        return None, 0


def coordinates(position: tuple) -> str:
    """(96, 0, 0) -> "96"; (3, 1, 0) -> "(3, 1)"."""
    if position[1] == position[2] == 0:
        return str(position[0])
    return str(tuple(position[:2])) if position[2] == 0 else str(tuple(position))
