"""The site: complete, self-contained, true to the results, and never half-written. No lesson is executed here."""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import asdict, replace
from html.parser import HTMLParser
from urllib.parse import quote

import nbformat
import pytest

from labkit.course import notebooks, passages, search, site
from labkit.course import registry as courses
from labkit.course.lessons import LessonResult, kept_path, show_error, show_time, summarise

PIXEL = base64.b64encode(b"\x89PNG not really").decode()

RESULT = LessonResult(
    name="00_first",
    kernels=("add_naive", "add_tiled"),
    max_error=2.5e-7,
    seconds=3.21,
    passed=True,
    problem="",
    device="labkit CPU device",
    device_kind="cpu",
    date="2026-11-20 12:00",
    source_sha256="",
    versions={"labkit": "0.1.0", "numba": "0.68.1"},
)


def keep(course, chapter, result=RESULT, outputs=(), text=None):
    """Store a lesson as `labkit run` would have, with these outputs in its last cell."""
    if text is not None:
        chapter.source.write_text(text)
    notebook = notebooks.to_notebook(chapter)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if code:
        code[-1].outputs = list(outputs)
    sha = notebooks.sha256(chapter.source_text())
    notebook.metadata["labkit_result"] = asdict(replace(result, name=chapter.name, source_sha256=sha))
    notebooks.write_notebook(notebook, kept_path(course, chapter))


@pytest.fixture
def course(course_dir):
    return courses.load(course_dir)


class Links(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.links, self.ids, self.open = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        if tag not in {"meta", "link", "img", "br", "hr", "input", "rect", "col"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_site_is_whole_and_makes_no_requests(course):
    plot = nbformat.v4.new_output("display_data", data={"image/png": PIXEL, "text/plain": "Bandwidth\nover size"})
    for chapter in course.chapters:
        keep(course, chapter, outputs=[plot])
    index = site.write(course)
    pages = sorted(index.parent.glob("*.html"))
    assert [page.name for page in pages] == ["00_first.html", "01_second.html", "index.html"]
    for page in pages:
        text = page.read_text()
        parsed = Links(text)
        assert parsed.open == []  # every tag is closed
        assert re.findall("<script[^>]*>", text) == ['<script src="search.js" defer>']
        for link in parsed.links:
            if link.startswith("#"):
                assert link[1:] in parsed.ids
            elif not link.startswith("data:"):
                assert not link.startswith(("/", "http")), link
                assert (index.parent / link.split("#")[0]).is_file(), link
    assert "url(" not in (index.parent / "site.css").read_text()
    assert not re.search("https?:|fetch|XMLHttp|import", (index.parent / "search.js").read_text())
    assert (index.parent / "images" / "00_first-1.png").read_bytes() == base64.b64decode(PIXEL)
    assert 'alt="Bandwidth over size"' in (index.parent / "00_first.html").read_text()


def test_the_index_says_what_ran_where_and_how_well(course):
    keep(course, course.chapters[0])
    bad = replace(RESULT, passed=False, problem="cell 3: `1 / 0` gave ZeroDivisionError", max_error=None, kernels=())
    keep(course, course.chapters[1], bad)
    text = site.write(course).read_text()
    assert "labkit CPU device" in text and "shows work, not GPU speed" in text
    assert "1 of 2" in text
    assert "2.5e-07" in text and "3.2 s" in text
    assert "<code>add_naive</code>" in text
    assert "cell 3: `1 / 0` gave ZeroDivisionError" in text
    assert "numba 0.68.1" in text and "2026-11-20 12:00" in text


def test_on_a_gpu_nothing_speaks_of_the_cpu_device(course):
    keep(course, course.chapters[0], replace(RESULT, device="NVIDIA H200", device_kind="gpu"))
    index = site.write(course)
    both = index.read_text() + (index.parent / "00_first.html").read_text()
    assert "NVIDIA H200" in both
    assert "not GPU speed" not in both


def test_a_lesson_that_was_not_run_or_has_changed_since_is_shown_as_not_run(course):
    for chapter in course.chapters:
        keep(course, chapter)
    course.chapters[1].source.write_text("# %%\n1 + 1\n")
    index = site.write(course)
    assert not (index.parent / "01_second.html").exists()
    assert "Not run yet" in index.read_text()
    assert "1 of 1" in index.read_text()


def test_a_site_can_be_written_before_anything_was_run(course):
    assert "No lesson has been run yet" in site.write(course).read_text()


LESSON = """\
# %% [markdown]
# # Title that the header shows
#
# ## Tiles & blocks
#
# With $n$ bytes: see [the second](01_second.ipynb#the-problem) and `a < b`.
#
# $$t = \\frac{12 n}{B}$$
#
# ## Tiles & blocks
#
# | a | b |
# |---|--:|
# | 1 | 2 |

# %%
x = "<script>"
"""


def page_of(course, outputs=()):
    keep(course, course.chapters[0], outputs=outputs, text=LESSON)
    keep(course, course.chapters[1])
    return (site.write(course).parent / "00_first.html").read_text()


def test_headings_make_the_contents_and_formulas_become_mathml(course):
    text = page_of(course)
    assert "Title that the header shows" not in text
    assert 'id="tiles-blocks"' in text and 'id="tiles-blocks-2"' in text
    assert text.count('href="#tiles-blocks"') == 3  # contents at the left, contents on a phone, and its own anchor
    assert "<mfrac>" in text and "$" not in text
    assert 'href="01_second.html#the-problem"' in text
    assert "<code>a &lt; b</code>" in text
    assert re.search(r'<div class="scroll"><table>.*<td style="text-align:\s*right">2</td>', text, re.DOTALL)
    assert "&lt;script&gt;" in text


def test_outputs_keep_their_text_and_their_errors(course):
    v4 = nbformat.v4
    outputs = [
        v4.new_output("stream", name="stdout", text="one < "),
        v4.new_output("stream", name="stdout", text="\x1b[31mtwo\x1b[0m"),
        v4.new_output("execute_result", data={"text/plain": "<matrix>"}),
        v4.new_output("display_data", data={"text/plain": "plain", "text/html": "<table><tr><td>7</td></tr></table>"}),
        v4.new_output("error", ename="E", evalue="", traceback=["\x1b[31mE\x1b[0m: 1 < 2"]),
    ]
    text = page_of(course, outputs)
    assert '<pre class="stream stdout">one &lt; <span class="ansi-red-fg">two</span></pre>' in text
    assert "<pre>&lt;matrix&gt;</pre>" in text
    assert "<td>7</td>" in text and "plain" not in text
    assert '<pre class="error"><span class="ansi-red-fg">E</span>: 1 &lt; 2</pre>' in text


def test_the_old_site_stays_until_the_new_one_is_complete(course, monkeypatch):
    keep(course, course.chapters[0])
    index = site.write(course)
    before = index.read_text()
    monkeypatch.setattr(site.shutil, "copyfile", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        site.write(course)
    assert index.read_text() == before
    monkeypatch.undo()
    site.write(course)
    assert sorted(path.name for path in index.parent.parent.iterdir()) == ["lessons", "site"]


def test_the_search_has_the_passages_of_the_pages_that_are_there(course, monkeypatch):
    kernel = passages.Passage("softmax_online", "one pass </script> \u2028", "labkit/kernels/softmax/rows.py", 211)
    monkeypatch.setattr(passages, "of_kernels", lambda path: [kernel] if path.match("softmax/rows.py") else [])
    keep(course, course.chapters[0], text=LESSON)
    index = site.write(course)
    script = (index.parent / "passages.js").read_text(encoding="utf-8")
    common, found = json.loads(script.removeprefix("labkitPassages(").removesuffix(");\n"))
    assert "why" in common
    assert [(title, where, link) for title, where, link, _ in found] == [
        ("First: Tiles & blocks", "Lesson 00", "00_first.html#tiles-blocks"),
        ("First: Tiles & blocks", "Lesson 00", "00_first.html#tiles-blocks-2"),
        ("softmax_online", "labkit/kernels/softmax/rows.py:211", "")]
    ids = Links((index.parent / "00_first.html").read_text()).ids
    assert {link.partition("#")[2] for _, _, link, _ in found if link} <= ids
    assert 'class="search" hidden' in index.read_text()  # until search.js has run


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Found(HTMLParser):
    """The titles in the search's list, and whether its box is shown."""

    def __init__(self, text: str):
        super().__init__()
        self.titles, self.in_title, self.is_shown = [], False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.is_shown |= tag == "search" and "hidden" not in dict(attributes)
        self.in_title = tag == "strong"

    def handle_data(self, data):
        if self.in_title:
            self.titles.append(data)
        self.in_title = False


@pytest.mark.sweep
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed: Chromium would run search.js")
def test_a_browser_finds_what_the_command_finds(course, tmp_path):
    for chapter in course.chapters:
        keep(course, chapter, text=LESSON if chapter.number == "00" else None)
    index = site.write(course)
    found = passages.passages(course)
    for query in ("why is my kernel slow", "bank conflicts", "softmax_online", "tiles and block", "the", "transp",
                  "zebra"):
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
             f"--user-data-dir={tmp_path / 'profile'}", f"{index.as_uri()}?q={quote(query)}"],
            capture_output=True, text=True, timeout=60, check=True)
        shown = Found(done.stdout)
        assert shown.is_shown
        assert shown.titles == [hit.passage.title for hit in search.by_words(found, query)[:12]], query


def agreement(**changes):
    return {"kind": "agreement", "op": "add", "kernels": ["k"], "max_error": 1e-7, "passed": True} | changes


def test_a_lesson_passes_only_when_it_ran_and_showed_agreement():
    assert summarise([agreement(), agreement(max_error=3e-7)], "")["max_error"] == 3e-7
    assert summarise([agreement()], "")["passed"]
    assert not summarise([agreement()], "cell 3 failed")["passed"]
    assert summarise([], "")["problem"] == "the lesson shows no agreement with NumPy"
    assert summarise([{"kind": "ladder", "kernels": ["k"]}], "")["passed"] is False
    assert summarise([agreement(), agreement(op="mul", passed=False)], "")["problem"] == "disagrees with NumPy: mul"
    assert summarise([agreement(kernels=["b", "a"]), agreement(kernels=["a"])], "")["kernels"] == ("b", "a")


def test_a_nan_is_the_largest_error():
    for errors in ([float("nan"), 1.0], [1.0, float("nan")]):
        summary = summarise([agreement(max_error=error) for error in errors], "")
        assert show_error(summary["max_error"]) == "NaN"


def test_numbers_in_words():
    assert [show_error(v) for v in (None, 0.0, 1.234e-7)] == ["–", "0", "1.2e-07"]
    assert [show_time(v) for v in (0.04, 59.9, 61)] == ["0.0 s", "59.9 s", "1 min 1 s"]
