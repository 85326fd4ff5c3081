"""The site: complete, self-contained, true to the results, and never half-written. No lesson is executed here."""

import base64
import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import quote

import nbformat
import pytest

from labkit.course import abilities, passages, search, site
from labkit.course import registry as courses
from labkit.course.lessons import show_error, show_time, summarise
from labkit.measure import gpu_survey
from labkit.measure.gpu_plans import TARGETS
from labkit.measure.gpu_survey import Outcome, Survey
from labkit.measure.recorded import recorded_series
from tests import browser
from tests.course.site.pages import RESULT, add_term, keep, ship, strict

OF_KERNELS = passages.of_kernels
PIXEL = base64.b64encode(b"\x89PNG not really").decode()


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


class Page(HTMLParser):
    """What a page refers to, and the ids in it."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("href", "src") if attributes.get(name)]
        self.ids += [attributes["id"]] if "id" in attributes else []


def test_the_site_is_whole_and_makes_no_requests(course):
    plot = nbformat.v4.new_output("display_data", data={"image/png": PIXEL, "text/plain": "Bandwidth\nover size"})
    add_term(course, "byte", "Eight bits.")
    add_term(course, "heading", "A word that no lesson uses.")
    first, second = course.chapters
    keep(course, first, outputs=[plot], text=LESSON)
    ship(second, outputs=[plot])
    index = site.write(course)
    pages = sorted(index.parent.glob("*.html"))
    assert [page.name for page in pages] == ["00_first.html", "01_second.html", "compilers.html", "glossary.html",
                                             "index.html", "results.html"]
    for page in pages:
        text = page.read_text()
        strict(text)
        assert re.findall("<script[^>]*>", text) == [
            "<script>", '<script src="site.js" defer>', '<script src="search.js" defer>']
        assert [link for link in Page(text).links if link.startswith(("/", "http"))] == []
    assert site.broken_links(index.parent) == []
    assert "heading" not in (index.parent / "glossary.html").read_text()
    css = (index.parent / "site.css").read_text()
    assert re.findall(r"url\((?!#)|@import", css) == []
    for script in ("search.js", "site.js"):
        assert not re.search("https?:|fetch|XMLHttp|import", (index.parent / script).read_text())
    assert (index.parent / "images" / "00_first-1.png").read_bytes() == base64.b64decode(PIXEL)
    assert 'alt="Bandwidth over size"' in (index.parent / "00_first.html").read_text()
    assert (index.parent / ".nojekyll").read_text() == ""


def test_a_page_says_what_a_link_to_it_shows(course):
    for chapter in course.chapters:
        keep(course, chapter)
    folder = site.write(course, repository="https://github.com/Some/course").parent
    text = (folder / "01_second.html").read_text(encoding="utf-8")
    about = dict(re.findall(r'<meta (?:property|name)="([^"]+)" content="([^"]*)">', text))
    assert about["og:title"] == "01 Second · small" and about["og:description"] == "The second one."
    assert about["og:url"] == "https://some.github.io/course/01_second.html"
    assert about["og:image"] == "https://some.github.io/course/previews/01_second.png"
    for path in folder.glob("*.html"):
        picture = re.search(r'og:image" content="https://some.github.io/course/(previews/[^"]+)"', path.read_text())[1]
        content = (folder / picture).read_bytes()
        assert content.startswith(b"\x89PNG") and content[16:24] == (1200).to_bytes(4) + (630).to_bytes(4), path
    text = (site.write(course, repository="").parent / "01_second.html").read_text(encoding="utf-8")
    assert 'og:image" content="previews/01_second.png"' in text and "og:url" not in text


def test_what_runs_on_which_gpu_is_in_the_header_of_every_page(course, monkeypatch):
    all_run = abilities.Ability(course.chapters[0], (), (), {target: abilities.Cell(3, ()) for target in TARGETS})
    monkeypatch.setattr(site.abilities, "abilities", lambda course, survey: (all_run,))
    folder = site.write(course).parent
    for path in folder.glob("*.html"):
        header = path.read_text(encoding="utf-8").partition('<header class="bar">')[2].partition("</header>")[0]
        assert 'href="gpus.html"' in header, path.name


def test_the_page_of_gpus_says_what_was_assembled_and_what_was_run(course, monkeypatch):
    lacks, spills = Outcome("needs compute capability 9.0 exactly"), Outcome(spills=8)
    survey = Survey({"ptxas": "13.5"}, "2026-11-28", {},
                    {"add": {"add_wgmma": dict.fromkeys(TARGETS, lacks) | {"9.0": Outcome()},
                             "add_naive": dict.fromkeys(TARGETS, Outcome()) | {"7.5": spills}}},
                    {"GPT-2 in float32": dict.fromkeys(TARGETS, Outcome())})
    monkeypatch.setattr(gpu_survey, "read", lambda: survey)
    monkeypatch.setattr(abilities, "uses", lambda chapter: (("add",), ()))
    ran = {"7.5": {"kernels": {"gpu": "NVIDIA H100", "date": "2026-11-29", "passed": 99, "failed": 1, "skipped": 2}}}
    monkeypatch.setattr(abilities, "pretended", lambda: ran)
    folder = site.write(course).parent
    text = (folder / "gpus.html").read_text(encoding="utf-8")
    strict(text)
    assert not site.broken_links(folder)
    plain = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", text))
    assert "T4, RTX 20 (7.5): 1 of 2 rungs run. Of the others, 1 needs compute capability 9.0 exactly" in plain
    assert "H100, H200 (9.0): all 2 rungs run. All models run, in every type" in plain
    assert "1 of 2" in plain and "Not on 7.5, 8.0, 8.6, 8.9, 10.0, 12.0 : add_wgmma" in plain
    assert "add_naive runs, but" in plain and "8 bytes on 7.5" in plain
    assert "assembled by NVIDIA’s ptxas on 2026-11-28 (version 13.5)" in plain
    assert "T4, RTX 20 (7.5) tests of the kernels 99 1 2 NVIDIA H100 2026-11-29" in plain


def test_the_page_of_compilers_has_every_rung_that_was_timed_by_both(course):
    folder = site.write(course).parent
    text = (folder / "compilers.html").read_text(encoding="utf-8")
    strict(text)
    series = recorded_series("compilers")
    both = [row["rung"] for row in series["rows"] if all(row["us"].values())]
    rows = text.partition('id="rungs"')[2]
    assert rows.count('<th scope="row"><code>') == len(both) > 250
    assert f"measured in one run on an {series['where']}, {series['date']}" in text


def test_the_results_say_what_ran_where_and_how_well(course):
    keep(course, course.chapters[0])
    bad = replace(RESULT, passed=False, problem="cell 3: `1 / 0` gave ZeroDivisionError", max_error=None, kernels=())
    keep(course, course.chapters[1], bad)
    index = site.write(course)
    assert "1 of 2 lessons passed on this machine (labkit CPU device)" in index.read_text()
    text = (index.parent / "results.html").read_text()
    assert "labkit CPU device" in text and "shows work, not GPU speed" in text
    assert "1 of 2" in text
    assert "2.5e-07" in text and "3.2 s" in text
    assert "<code>add_naive</code>" in text
    assert "cell 3: `1 / 0` gave ZeroDivisionError" in text
    assert "numba 0.68.1" in text and "2026-11-20 12:00" in text


def test_on_a_gpu_nothing_speaks_of_the_cpu_devices_speed(course):
    keep(course, course.chapters[0], replace(RESULT, device="NVIDIA H200", device_kind="gpu"))
    index = site.write(course)
    both = (index.parent / "results.html").read_text() + (index.parent / "00_first.html").read_text()
    assert "NVIDIA H200" in both
    assert "not GPU speed" not in both


def test_a_page_has_this_machines_results_or_the_courses_or_none(course):
    first, second = course.chapters
    mine, theirs = (nbformat.v4.new_output("stream", text=text) for text in ("MINE", "THEIRS"))
    ship(first, outputs=[theirs])
    ship(second, outputs=[theirs])
    keep(course, first, outputs=[mine])

    def pages(**how):
        folder = site.write(course, **how).parent
        return (folder / "00_first.html").read_text(), (folder / "01_second.html").read_text(), folder

    one, other, folder = pages()
    assert "MINE" in one and "THEIRS" not in one and "Agrees with NumPy" in one
    assert "THEIRS" in other and "came with the course" in other
    one, other, folder = pages(from_here=False)
    assert "THEIRS" in one and "MINE" not in one and not (folder / "results.html").exists()
    # Stale, or somebody's own: the page is there, with what the lesson says now and without results.
    first.source.write_text(first.source.read_text() + "\n# %% [markdown]\n# NEW\n")
    second.built.write_text(second.built.read_text().replace("Agreement(", "Mine("))
    one, other, _ = pages()
    assert "NEW" in one and "THEIRS" not in one + other and "MINE" not in one
    assert "Not run yet" in one and "Not run yet" in other and "Mine(" not in other


def test_a_site_can_be_written_before_anything_was_run(course):
    text = site.write(course).read_text()
    assert "passed on this machine" not in text
    assert re.search(r'<a class="start" href="00_first.html">Start with lesson 00</a>', text)


def test_the_pages_follow_one_another_and_the_parts(course):
    toml = course.root / "course.toml"
    text = toml.read_text().replace('name = "00_first"', 'name = "00_first"\npart = "A"')
    toml.write_text(text.replace('name = "01_second"', 'name = "01_second"\npart = "B & C"'))
    folder = site.write(courses.load(course.root)).parent
    one, other = ((folder / f"{name}.html").read_text() for name in ("00_first", "01_second"))
    assert '<a class="after" rel="next" href="01_second.html">' in one and 'rel="prev"' not in one
    assert '<a class="before" rel="prev" href="00_first.html">' in other and 'rel="next"' not in other
    assert "B &amp; C · Lesson 01" in other
    for page in (one, other, (folder / "index.html").read_text()):
        assert page.index("A</") < page.index('href="00_first.html"') < page.index("B &amp; C</")


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
    kernel = passages.Passage("softmax_online", "one pass </script> \u2028", "labkit/kernels/softmax/rows.py", 211,
                              kind="kernel")
    monkeypatch.setattr(passages, "of_kernels", lambda path: [kernel] if path.match("softmax/rows.py") else [])
    keep(course, course.chapters[0], text=LESSON)
    course.chapters[1].source.unlink()
    add_term(course, "byte", "Eight bits.", variants=["octet"])
    index = site.write(course)
    script = (index.parent / "passages.js").read_text(encoding="utf-8")
    common, found, terms = json.loads(script.removeprefix("labkitPassages(").removesuffix(");\n"))
    assert "why" in common
    assert [tuple(row[:3]) for row in found] == [
        ("First: Tiles & blocks", "Lesson 00", "00_first.html#tiles-blocks"),
        ("First: Tiles & blocks", "Lesson 00", "00_first.html#tiles-blocks-2"),
        ("softmax_online", "labkit/kernels/softmax/rows.py:211", "")]
    assert terms == [[["byte", "octet"], "glossary.html#byte", "Eight bits."]]
    for link in (found[0][2], found[1][2], terms[0][1]):
        name, _, anchor = link.partition("#")
        assert anchor in Page((index.parent / name).read_text()).ids
    assert 'class="search" hidden' in index.read_text()  # until search.js has run


class Found(HTMLParser):
    """The titles in the search's list, and whether its box is shown."""

    def __init__(self, text: str):
        super().__init__()
        self.titles, self.in_search, self.in_title, self.is_shown = [], False, False, False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.is_shown |= tag == "search" and "hidden" not in dict(attributes)
        self.in_search |= tag == "search"
        self.in_title = self.in_search and tag == "strong"

    def handle_endtag(self, tag):
        self.in_search &= tag != "search"

    def handle_data(self, data):
        if self.in_title:
            self.titles.append(data)
        self.in_title = False


@pytest.mark.sweep
@browser.needed_to("run search.js")
def test_a_browser_finds_what_the_command_finds(course, tmp_path, monkeypatch):
    monkeypatch.setattr(passages, "of_kernels", OF_KERNELS)
    for chapter in course.chapters:
        keep(course, chapter, text=LESSON if chapter.number == "00" else None)
    index = site.write(course)
    found = passages.passages(course)
    for query in ("why is my kernel slow", "bank conflicts", "softmax_online", "tiles and block", "the", "transp",
                  "zebra", "swizzled tiling of caches", "what is flash attention"):
        done = subprocess.run(
            [browser.BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom",
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
    wrong, right = ({"kind": "parity", "passed": passed} for passed in (False, True))  # of a model's steps
    assert summarise([wrong, right], "")["passed"] and not summarise([wrong], "")["passed"]
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


def test_files_in_data_are_pages_whose_links_lead_to_the_repository(course):
    (course.root / "data").mkdir()
    (course.root / "data" / "measured.md").write_text(
        "# Measured\n\n[How](measurements/README.md) it was done.\n\n`k[1, 64](x)` launches.\n\n"
        "<!-- targets: made by labkit build -->\n\n"
        "<details>\n<summary>All</summary>\n\n| work | ratio |\n|---|--:|\n| softmax | 1.00 |\n\n</details>\n\n"
        "<!-- end of targets -->\n\n![A picture](ladders.svg)\n")
    folder = site.write(course, repository="https://example.com/labkit").parent
    text = (folder / "measured.html").read_text(encoding="utf-8")
    assert "<h1>Measured</h1>" in text and "<td>softmax</td>" in text and "<summary>All</summary>" in text
    assert "made by labkit build" not in text and "ladders.svg" not in text
    assert 'href="https://example.com/labkit/blob/HEAD/data/measurements/README.md"' in text
    assert "<code>k[1, 64](x)</code> launches" in text
    assert 'href="measured.html"' in (folder / "index.html").read_text(encoding="utf-8")
    assert not site.broken_links(folder)
    found = (folder / "passages.js").read_text(encoding="utf-8")
    assert '["Measured","Page","measured.html","How it was done.' in found
    text = (site.write(course, repository="").parent / "measured.html").read_text(encoding="utf-8")
    assert "How it was done." in text and not (folder / "teaching.html").exists()
