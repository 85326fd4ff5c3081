"""One table, four forms: a terminal (rich), plain text, HTML for notebooks, Markdown for the README."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass

MIMETYPE = "application/vnd.labkit.result+json"


def size_text(size: dict) -> str:
    """{"M": 37, "N": 23} -> "M=37, N=23"; a power of two from 2**16 on is written as such."""
    return ", ".join(f"{name}={_count(value)}" for name, value in size.items())


def _count(value: int) -> str:
    if value >= 2**16 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits without an exponent; a dash for what was not measured."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 else f"{value:.1e}"


def rich_table(spec: dict):
    """The table and, below it, its notes, which are not wrapped to the table's width."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=spec["title"], title_justify="left", title_style="bold")
    for position, column in enumerate(spec["columns"]):
        table.add_column(column, justify="left" if _is_text(spec, position) else "right")
    for row in spec["rows"]:
        table.add_row(*row)
    return Group(table, *(Text(note) for note in spec["notes"]))


def text(spec: dict, width: int = 120) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    # In a notebook rich would display the table beside writing it.
    console = Console(file=buffer, width=width, color_system=None, highlight=False, force_jupyter=False)
    console.print(rich_table(spec))
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().split("\n"))


def to_html(spec: dict) -> str:
    escape = html.escape
    pad = "padding:.2em .7em .2em 0;"
    align = [f"{pad}text-align:left" if _is_text(spec, position) else f"{pad}text-align:right"
             for position in range(len(spec["columns"]))]
    head = "".join(f'<th style="{a}">{escape(c)}</th>' for a, c in zip(align, spec["columns"], strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td style="{a}">{escape(cell)}</td>' for a, cell in zip(align, row, strict=True))
        + "</tr>" for row in spec["rows"])
    notes = "".join(f"<div><small>{escape(note)}</small></div>" for note in spec["notes"])
    return (f'<div class="labkit-table" style="margin-bottom:1em"><div><strong>{escape(spec["title"])}</strong></div>'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>")


def to_markdown(spec: dict) -> str:
    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = [":--" if _is_text(spec, position) else "--:" for position in range(len(spec["columns"]))]
    return "\n".join([line(spec["columns"]), line(rule), *(line(row) for row in spec["rows"])])


def _is_text(spec: dict, position: int) -> bool:
    """A column is text unless each of its cells begins like a number."""
    cells = [row[position] for row in spec["rows"]]
    return not all(cell[:1].isdigit() or cell in ("-", "") or cell.startswith(("inf", "nan")) for cell in cells)


class ResultTable:
    """A result that prints as a table everywhere. Subclasses give table() and result()."""

    def table(self) -> dict:
        raise NotImplementedError

    def result(self) -> dict:
        """What `labkit run` reads from the notebook's output."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text(self.table())

    __repr__ = __str__

    def __rich__(self):
        return rich_table(self.table())

    def _repr_mimebundle_(self, include=None, exclude=None):
        spec = self.table()
        return {"text/plain": text(spec), "text/html": to_html(spec), MIMETYPE: self.result()}


@dataclass(frozen=True, repr=False)
class PlainTable(ResultTable):
    """Rows of text, shown as every other result is."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    kind: str = "table"

    def table(self) -> dict:
        return {"title": self.title, "columns": list(self.columns), "rows": [list(row) for row in self.rows],
                "notes": list(self.notes)}

    def result(self) -> dict:
        return {"kind": self.kind, "title": self.title}
