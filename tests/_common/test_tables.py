"""Numbers and sizes in words, and one table in four forms."""

import re

import numpy as np
import pytest

from labkit._common.tables import MIMETYPE, PlainTable, number, size_text, table, to_html, to_markdown

TABLE = PlainTable("a < b", ("name", "ms"), (("x & y|z", "1.5"), ("w", "-")), ("a note <i>",))


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0, "0"), (0.00123456, "0.00123"), (0.00001, "1.0e-05"), (1.2345, "1.23"), (99.94, "99.9"),
    (123.45, "123"), (999.6, "1,000"), (-250.4, "-250"), (1_234_567, "1,234,567"),
])
def test_a_number_has_three_digits_and_no_exponent(value, text):
    assert number(value) == text


def test_powers_of_two_are_written_as_such_from_65536_on():
    assert size_text({"n": 2**16, "M": 37}) == "n=2^16, M=37"
    assert size_text({"n": 2**15, "m": 2**16 + 1, "k": 2**28}) == "n=32,768, m=65,537, k=2^28"


def test_what_a_table_holds_is_text_to_html():
    page = to_html(TABLE.table())
    assert "x &amp; y|z" in page and "a &lt; b" in page and "a note &lt;i&gt;" in page
    assert TABLE._repr_mimebundle_()[MIMETYPE] == {"kind": "table", "title": "a < b"}


def test_a_bar_in_a_cell_does_not_end_it_in_markdown():
    assert to_markdown(TABLE.table()).split("\n") == ["| name | ms |", "| :-- | --: |", r"| x & y\|z | 1.5 |",
                                                      "| w | - |"]


# --- What a lesson shows ---------------------------------------------------------------------------------------------


def test_rows_are_a_table_of_formatted_numbers():
    shown = table([("naive", 4.214, None, 3), ["tiled", np.float32(-1.3), 0.957, np.int64(123456)]],
                  {"kernel": "", "ms": ".1f", "of the bound": ".0%", "loads": ""}, "Times", "Made up.")
    assert shown == PlainTable("Times", ("kernel", "ms", "of the bound", "loads"),
                               (("naive", "4.2", "-", "3"), ("tiled", "-1.3", "96%", "123,456")), ("Made up.",))
    kernel, *numbers = re.findall("text-align:(left|right)", to_html(shown.table()))[:4]
    assert kernel == "left" and set(numbers) == {"right"}


def test_a_table_needs_neither_formats_nor_a_title():
    shown = table({"a": 1.23456, "b": "1.5 or less"}.items(), ["", "ms"])
    assert shown.rows == (("a", "1.23"), ("b", "1.5 or less")) and shown.notes == ()
    assert str(shown).startswith("┏") and "<strong>" not in to_html(shown.table())


@pytest.mark.parametrize(("rows", "columns", "message"), [
    ([(1, 2), (1, 2, 3)], ("a", "b"), "row 2 must have 2 values, one for each column, not 3"),
    ([(1, 2)], ("a", "a"), "columns must have different headings"),
    ([(1,), (1.5,)], {"a": "d"}, r"columns\['a'\] must be the format of a number, .*; 'd' does not fit 1.5 in row 2"),
])
def test_a_wrong_table_names_what_is_wrong(rows, columns, message):
    with pytest.raises(ValueError, match=message):
        table(rows, columns)


def test_square_brackets_are_text_in_a_terminal():
    shown = str(table([("kernel[grid, block]", 1)], ["call [us]", "ms"], "x[i]"))
    assert "kernel[grid, block]" in shown and "call [us]" in shown and "x[i]" in shown
