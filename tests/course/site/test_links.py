"""The checker of links finds each kind of broken one, and nothing else."""

import pytest

from labkit.course.site.links import broken_links


@pytest.mark.parametrize(("body", "problem"), [
    ('<a href="b.html#there">x</a> <a href="#here">y</a> <a href="https://example.org/z">z</a>', ""),
    ('<a href="c.html">x</a>', "the link to c.html leads to no file of the site"),
    ('<img src="images/d.png">', "the link to images/d.png leads to no file of the site"),
    ('<a href="b.html#gone">x</a>', "the link to b.html#gone leads to no anchor of that page"),
    ('<a href="#gone">x</a>', "the link to #gone leads to no anchor of that page"),
    ('<a href="#here" aria-describedby="gone">x</a>', "the link to #gone leads to no anchor of that page"),
    ('<p id="here">x</p>', "2 elements have the id 'here'"),
])
def test_links(tmp_path, body, problem):
    (tmp_path / "a.html").write_text(f'<p id="here">{body}</p>')
    (tmp_path / "b.html").write_text('<p id="there"></p>')
    assert broken_links(tmp_path) == ([f"a.html: {problem}"] if problem else [])
