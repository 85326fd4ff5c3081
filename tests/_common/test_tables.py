"""Numbers and sizes in words, and one table in four forms."""

import pytest

from labkit._common.tables import MIMETYPE, PlainTable, number, size_text, to_html, to_markdown

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
