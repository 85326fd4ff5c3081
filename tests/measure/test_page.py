"""A page: where it goes, and that what was there stays if it cannot be made."""

import pytest

from labkit._common.errors import UserError
from labkit._common.tables import PlainTable
from labkit.measure import page
from labkit.measure.page import Badge, Folded, Page, Section

SMALL = Page("A & B", "what it is", (Badge("here", True),), (
    Section("First < second", "above", ("a > b", PlainTable("t", ("x",), (("1",),)),
                                        Folded("more", (PlainTable("u", ("y",), (("2",),)),)))),))


def test_everything_is_escaped_and_nothing_is_fetched():
    text = page.render(SMALL)
    for part in ("<h1>A &amp; B</h1>", "First &lt; second", "a &gt; b", 'class="badge good">here', 'id="first-second"',
                 "<summary>more</summary>"):
        assert part in text, part
    assert "<script" not in text and "<link" not in text


def test_where_the_page_goes(tmp_path):
    assert page.write(tmp_path, lambda: SMALL) == tmp_path / "report.html"
    assert page.write(tmp_path / "deep" / "one.html", lambda: SMALL).read_text().startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        page.write(tmp_path / "file" / "report.html", lambda: SMALL)
    with pytest.raises(UserError, match="no file that could be replaced"):
        page.write(tmp_path.__class__("/dev/null"), lambda: SMALL)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_there_stays_if_the_making_ends_early(tmp_path, error):
    path = tmp_path / "page.html"
    path.write_text("before")

    def make():
        raise error

    with pytest.raises(error):
        page.write(path, make)
    assert path.read_text() == "before" and [one.name for one in tmp_path.iterdir()] == ["page.html"]
