"""One table, four forms: a terminal (rich), plain text, HTML for notebooks, Markdown for the README.

A lesson shows rows with table(rows, columns).
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

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

    # As Text: in a string rich would take kernel[grid, block] for markup.
    table = Table(title=Text(spec["title"]) if spec["title"] else None, title_justify="left", title_style="bold")
    for position, column in enumerate(spec["columns"]):
        table.add_column(Text(column), justify="left" if _is_text(spec, position) else "right")
    for row in spec["rows"]:
        table.add_row(*map(Text, row))
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
    title = f'<div><strong>{escape(spec["title"])}</strong></div>' if spec["title"] else ""
    notes = "".join(f"<div><small>{escape(note)}</small></div>" for note in spec["notes"])
    return (f'<div class="labkit-table" style="margin-bottom:1em">{title}'
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>")


def to_markdown(spec: dict) -> str:
    def line(cells):
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = [":--" if _is_text(spec, position) else "--:" for position in range(len(spec["columns"]))]
    return "\n".join([line(spec["columns"]), line(rule), *(line(row) for row in spec["rows"])])


def _is_text(spec: dict, position: int) -> bool:
    """A column is text unless each of its cells begins like a number."""
    return not all(re.match(r"[-+]?(\d|inf|nan)|-?$", row[position]) for row in spec["rows"])


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


def table(rows: Iterable[Sequence], columns: Mapping[str, str] | Sequence[str], title: str = "", note: str = ""
          ) -> PlainTable:
    """Return a table to be the last line of a cell, or for display() or print().

        table([("naive", 4.21, None), ("tiled", 1.3, 0.96)], {"kernel": "", "ms": ".2f", "of the bound": ".0%"})
        table(ms.items(), ["kernel", "ms"], note=measure.where())

    rows: one sequence a row, with a value for each column. columns: the headings, or headings with the format of the
    column's numbers, as in an f-string. Without one, a number has three significant digits, an integer all of its own.
    Text is shown as it is, and None as a dash. Numbers are aligned to the right.
    """
    formats = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    if len(formats) != len(columns):
        raise ValueError(f"table: columns must have different headings, not {list(columns)}")
    shown = []
    for count, row in enumerate(rows, 1):
        row = tuple(row)
        if len(row) != len(formats):
            raise ValueError(f"table: row {count} must have {len(formats)} values, one for each column, not {len(row)}")
        shown.append(tuple(_cell(value, form, heading, count)
                           for value, (heading, form) in zip(row, formats.items(), strict=True)))
    return PlainTable(title, tuple(formats), tuple(shown), (note,) if note else ())


def _cell(value: object, form: str, heading: str, row: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    if not form:
        return f"{value:,}" if isinstance(value, Integral) else number(float(value))
    try:
        return format(value, form)
    except ValueError:
        raise ValueError(f"table: columns[{heading!r}] must be the format of a number, such as ',.1f'; {form!r} does "
                         f"not fit {value!r} in row {row}") from None
