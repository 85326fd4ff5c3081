"""Predictions: what a reader is asked before a cell, and what is folded away until they have answered.

A question is the last sentence of the markdown directly above a code cell, if it ends with a question mark or begins
with "Predict". All that follows, up to the next heading or the next question, is folded: the outputs of cells, and the
prose. The code right below the question stays open, and so does the source of a kernel that is shown there.

fold() makes three kinds of cells, named in their metadata: GUESS, the question and room for the reader's guess; RESULT,
a code cell; ANSWER, prose in <details>.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from labkit.course.notebooks import name_cells

GUESS, RESULT, ANSWER = "guess", "result", "answer"

_OPENED, _CLOSED = "<details><summary>Show the answer</summary>\n\n", "\n\n</details>"
_ROOM = "\n\n*Your guess (double-click to write it):* "
_SENTENCE = re.compile(r"(?<=[.?!])[*_)\"”’]*\s+(?=[A-Z`*_$(\[\d])")
_BLOCK = re.compile(r"(?m)(?:\A|\n[ \t]*\n|^)(?=[ \t]*(?:[-*+]|\d+\.)[ \t])|\A|\n[ \t]*\n")  # a paragraph or an item
_NO_TEXT = re.compile(r"\s*(?:#|\||```|\$\$|>|<)")
_LEAD = re.compile(r"(?:Before you (?:run|look|read|go|open|turn)\b[^:,.?]*(?:, (?:guess|write down))?|Predict): ")


def fold(notebook) -> None:
    """Fold what follows each question of a lesson's notebook, in place."""
    cells, asked, folding = [], None, False  # asked: a question whose GUESS has not been placed yet
    for index, cell in enumerate(notebook.cells):
        above_code = index + 1 < len(notebook.cells) and notebook.cells[index + 1].cell_type == "code"
        if cell.cell_type == "code":
            if asked and not _only_shows_source(cell):
                cells.append(_markdown(asked + _ROOM, GUESS))
                asked, folding = None, True
            if folding:
                cell.metadata["labkit"] = {"fold": RESULT}
            cells.append(cell)
        elif cell.cell_type == "markdown":
            if asked:
                cells.append(_markdown(asked + _ROOM, GUESS))
                asked, folding = None, True
            answer, text = _parted(cell.source, above_code) if folding else ("", cell.source)
            if answer:
                cells.append(_markdown(f"{_OPENED}{answer}{_CLOSED}", ANSWER))
            folding = folding and not text
            if above_code and (found := question(text)):
                text, asked = found
            if text:
                cells.append(_markdown(text))
        else:
            cells.append(cell)
    notebook.cells = cells
    name_cells(notebook)


def kind(cell) -> str:
    """GUESS, RESULT or ANSWER; "" for a cell that nothing asks about."""
    return cell.metadata.get("labkit", {}).get("fold", "")


def line(cell) -> str:
    """The question of a GUESS cell, in Markdown."""
    return cell.source.removesuffix(_ROOM)


def prose(cell) -> str:
    """The text of an ANSWER cell."""
    return cell.source.removeprefix(_OPENED).removesuffix(_CLOSED)


def question(markdown: str) -> tuple[str, str] | None:
    """(the text above the question, the question as one line) of prose that ends with one; None if it does not."""
    start = _last_block(markdown)
    block = markdown[start:]
    if _NO_TEXT.match(block):
        return None
    starts = [0, *(match.end() for match in _SENTENCE.finditer(block))]
    first = len(starts)
    while first and _asks(block[starts[first - 1] : starts[first] if first < len(starts) else None]):
        first -= 1
    if first == len(starts):
        return None
    while first and _is_cut(block[starts[first] :]):
        first -= 1
    before = (markdown[:start] + block[: starts[first]]).rstrip()
    return before, _as_line(block[starts[first] :])


def _asks(sentence: str) -> bool:
    return sentence.rstrip(" *_)\"”’\n").endswith("?") or bool(re.match(r"[\s*_(-]*Predict\b", sentence))


def _is_cut(text: str) -> bool:
    """Whether the text begins within something, or goes on from the sentence before."""
    return text.count("**") % 2 == 1 or text.count("`") % 2 == 1 or text.startswith("And") or (
        text.count(")") > text.count("("))


def _as_line(text: str) -> str:
    words = re.sub(r"^(?:[-*+]|\d+\.) ", "", " ".join(text.split()))
    words = re.sub(r":$", ".", words[lead.end() :] if (lead := _LEAD.match(words)) else words)
    if words.startswith("Predict "):
        return f"**Predict** {words.removeprefix('Predict ')}"
    return f"**Predict:** {words[:1].upper()}{words[1:]}"


def _parted(markdown: str, above_code: bool) -> tuple[str, str]:
    """(what answers the question before it, the rest: from the first heading on, or the next question)."""
    heading = next(_headings(markdown), None)
    if heading is not None:
        return markdown[:heading].strip(), markdown[heading:]
    if above_code and (found := question(markdown)):
        start = _last_block(markdown)
        if markdown[:start].strip():
            return markdown[:start].strip(), markdown[start:].strip()
        return found[0], markdown[len(found[0]) :].strip()
    return markdown.strip(), ""


def _headings(markdown: str) -> Iterator[int]:
    """Where headings begin; a comment in a block of code is none."""
    position, in_fence = 0, False
    for text in markdown.splitlines(keepends=True):
        in_fence ^= text.lstrip().startswith("```")
        if not in_fence and re.match(r"#{1,6} ", text):
            yield position
        position += len(text)


def _last_block(markdown: str) -> int:
    """Where the last paragraph, or the last item of a list, begins."""
    return [match.end() for match in _BLOCK.finditer(markdown.rstrip())][-1]


def _only_shows_source(cell) -> bool:
    return bool(re.search(r"^show_source\(", cell.source, re.M)) and "print(" not in cell.source


def _markdown(source: str, fold: str = ""):
    from nbformat.v4 import new_markdown_cell

    return new_markdown_cell(source, metadata={"labkit": {"fold": fold}} if fold else {})
