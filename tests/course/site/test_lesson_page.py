"""A lesson as a page: its prose, its code and its outputs, what is folded away, and words that are explained."""

import base64
import re
import struct
from html import unescape
from html.parser import HTMLParser

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import glossary, site
from labkit.course import registry as courses
from labkit.course.site import code, lesson_page
from tests.course.site.pages import add_term, keep

v4 = nbformat.v4
LESSON = """\
# %% [markdown]
# # Title that the header shows
#
# ## Tiles & blocks
#
# With $n$ bytes: see [the second](01_second.ipynb#the-problem) and `a < b`.
# Of cublas<t>gemm and 2<sup>3</sup>.
#
# $$t = \\frac{12 n}{B}$$
#
# ## Tiles & blocks
#
# | | b |
# |---|--:|
# | 1 | 2 |

# %%
x = "<script>"
"""


def page_of(course, outputs=(), text=LESSON):
    keep(course, course.chapters[0], outputs=outputs, text=text)
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
    assert "cublas&lt;t&gt;gemm and 2<sup>3</sup>" in text
    assert "<td></td>" in text and "<th></th>" not in text
    assert re.search(r'<div class="scroll"><table>.*<td style="text-align:\s*right">2</td>', text, re.DOTALL)
    assert "&lt;script&gt;" in text


def test_outputs_keep_their_text_and_their_errors(course):
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
    assert "<td>7</td>" in text and "plain" not in text.replace('class="plain', "")
    assert '<pre class="error"><span class="ansi-red-fg">E</span>: 1 &lt; 2</pre>' in text


def test_pictures_have_their_size_and_lead_to_themselves(course):
    png = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 2000, 800)
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="300pt" height="150pt"></svg>'
    text = page_of(course, [
        v4.new_output("display_data", data={"image/png": base64.b64encode(png).decode(), "text/plain": "Time"},
                      metadata={"image/png": {"width": 1000}}),
        v4.new_output("display_data", data={"image/svg+xml": svg, "image/png": "", "text/plain": "<Figure>"})])
    assert ('<a class="enlarge" href="images/00_first-1.png"><img src="images/00_first-1.png" alt="Time" width="1000" '
            'height="400" loading="lazy">') in text
    for kind, name in (("light", "00_first-2.svg"), ("dark", "00_first-2-dark.svg")):
        assert f'class="in-{kind}" src="images/{name}" alt="Plot 2 of First" width="400" height="200"' in text
        assert (course.root / "build" / "site" / "images" / name).is_file()


# --- Code ------------------------------------------------------------------------------------------------------------


def test_code_is_in_lines_that_know_their_indent_and_copies_as_it_was():
    source = 'def f(x):\n    """Of two\n    lines: a < b."""\n\n    return x  # why\n'
    html = code.python(source)
    lines = re.findall(r'<span class="line"(?: style="--indent:(\d+)")?>', html)
    assert lines == ["", "4", "4", "", "4"]
    text = re.sub(r"<[^>]+>", "", html)
    assert unescape(text) == source


def test_the_code_of_a_tagged_cell_waits_behind_a_summary_and_its_output_does_not(course):
    text = page_of(course, [v4.new_output("stream", name="stdout", text="drawn")],
                   text='# %% [markdown]\n# # First\n\n# %% tags=["hide-input"]\nplot(1)\n')
    folded, _, below = text.partition('<details class="code"><summary>Code</summary>')[2].partition("</details>")
    assert "plot" in folded and "drawn" in below and "drawn" not in folded
    assert '<details class="code">' not in page_of(course, text="# %%\nplot(1)\n")


def test_the_source_that_a_lesson_shows_is_code_under_its_place():
    from labkit.course.show import show_source

    source = show_source(code.hanging)
    html = f"<p>{source._repr_mimebundle_()['text/html']}</p>"
    shown = code.sources(html)
    assert shown.startswith('<p><figure class="source"><figcaption>labkit/course/site/code.py:')
    assert "<style>" not in shown and shown.endswith("</figure></p>")
    assert re.sub(r"<[^>]+>", "", shown.partition("</figcaption>")[2]).count("\n") == source.code.count("\n")
    linked = code.sources(html, "https://github.com/owner/name")
    assert re.search(r'<a href="https://github.com/owner/name/blob/HEAD/labkit/course/site/code.py#L\d+">', linked)


# --- Predictions -----------------------------------------------------------------------------------------------------


ASKING = """\
# %% [markdown]
# Before you run the next cell: what is 6 times 7?

# %%
print(6 * 7)
"""


def test_the_result_of_a_prediction_waits_to_be_asked_for(course):
    answer = v4.new_output("stream", text="42")
    text = page_of(course, [answer], ASKING)
    asked, _, folded = text.partition('<details class="result">')
    assert '<div class="prediction" id="predict-what-is-6-times-7">' in asked and "What is 6 times 7?</p>" in asked
    assert '<label class="guess">Your guess <input type="text"' in asked and "print" in asked and "42" not in asked
    assert re.match(r'<summary>.*Show the result.*</summary><div class="outputs">.*42', folded)
    assert "Show all results" in text
    plain = page_of(course, [answer], ASKING.replace("Before you run the next cell: what is 6 times 7?", "Six sevens."))
    assert "42" in plain and "<details class=\"result\">" not in plain and "Show all results" not in plain


def test_the_prose_below_a_result_waits_too(course):
    """Up to the next heading; and where there are no results, as on the page of a stale notebook, the prose alone."""
    text = ASKING + "\n# %% [markdown]\n# It is 42.\n\n# %%\nx = 1\n\n# %% [markdown]\n# Six *sevens*.\n#\n# ## Next\n"
    keep(course, course.chapters[0], text=text)
    page = (site.write(course).parent / "00_first.html").read_text()
    _, _, rest = page.partition('<details class="result">')
    folded, _, below = rest.partition("</details></div>")
    assert "It is 42." in folded and "<em>sevens</em>" in folded and 'class="n">x' in folded
    assert 'id="next"' in below and "42" not in below and "Show the answer" not in page


def test_a_question_that_nothing_answers_stays_and_equal_ones_have_names_of_their_own(course):
    text = page_of(course, text=ASKING)
    assert "<strong>Predict:</strong> What is 6 times 7?" in text and '<div class="prediction"' not in text
    twice = ASKING + "\n# %% [markdown]\n# 42.\n#\n# What is 6 times 7?\n\n# %%\nprint(42)\n"
    text = page_of(course, [v4.new_output("stream", text="42")], twice)
    assert re.findall(r'<div class="prediction" id="(.*?)">', text) == [
        "predict-what-is-6-times-7", "predict-what-is-6-times-7-2"]


class Reader(HTMLParser):
    """What a page says, in order: (kind, text), where kind is heading, open, asked, code, folded, or result for
    the outputs in what is folded."""

    def __init__(self, page: str):
        super().__init__()
        self.parts, self.within = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("input", "img", "br", "hr", "wbr"):
            return
        name = dict(attributes).get("class") or ""
        kind = self.within[-1][1] if self.within else "open"
        if kind in ("folded", "result"):
            begins = "result" if name == "outputs" else ""
        else:
            begins = {"result": "folded", "asked": "asked", "highlight": "code"}.get(name, "")
            begins = begins or ("heading" if re.match(r"h\d$", tag) else "")
        if begins:
            kind = begins
            self.parts.append((kind, ""))
        self.within.append((tag, kind))

    def handle_endtag(self, tag):
        while self.within and self.within.pop()[0] != tag:
            pass

    def handle_data(self, data):
        kind = self.within[-1][1] if self.within else "open"
        if not self.parts or self.parts[-1][0] != kind:
            self.parts.append((kind, ""))
        self.parts[-1] = kind, f"{self.parts[-1][1]} {data}".strip()


POWERS_OF_TWO = "16|32|64|128|256|512|1,?024|2,?048|4,?096|8,?192"


def given_away(page: str) -> list[tuple[str, set[str]]]:
    """Open texts between a folded result and the next heading, with the numbers of the result that they tell and that
    were not known before. What a question says is known, and so is code; a power of two is a size."""
    found, folded, known = [], set(), set()
    for kind, text in Reader(page).parts:
        numbers = set(re.findall(r"(?<![\w.,])\d[\d,]*\.?\d(?!\w)", text))
        if kind == "result":
            folded |= {number for number in numbers - known if not re.fullmatch(POWERS_OF_TWO, number)}
        if kind in ("folded", "result"):
            continue
        if kind == "heading":
            folded = set()
        if kind == "open" and numbers & folded:
            found.append((text, numbers & folded))
        known |= numbers
    return found


def test_an_open_paragraph_that_tells_a_folded_number_is_found():
    page = ('<div class="asked"><p>How many of 64?</p></div><details class="result"><summary>Show</summary>'
            '<div class="outputs"><p>64 of 1,025 by 32<br>rows.</p></div></details><p>So it is {}, not 64 or 32.</p>'
            "<h2>Next</h2><p>1,025 rows</p>")
    assert given_away(page.format("1,025")) == [("So it is 1,025, not 64 or 32.", {"1,025"})]
    assert given_away(page.format("many")) == []


@pytest.mark.parametrize("chapter", courses.load(REPOSITORY).chapters, ids=lambda chapter: chapter.number)
def test_no_lesson_tells_a_result_before_it_is_asked_for(chapter):
    course = courses.load(REPOSITORY)
    page = lesson_page.page_of(course, chapter, glossary.load(course), from_here=False)
    assert page.folded, f"{chapter.name} asks for no prediction"
    assert given_away(page.body) == []


# --- Words -----------------------------------------------------------------------------------------------------------

WORDS = """\
# %% [markdown]
# Two warps, and `warp`, and [a warp](https://example.org).
#
# ## The warp
#
# A *warp* has 32 lanes & more. SM or sm?
"""


def test_the_first_use_of_a_word_is_linked_and_described(course):
    add_term(course, "warp", 'Thirty-two "threads" < 64.')
    add_term(course, "multiprocessor", "Runs blocks.", variants=["SM"])
    text = page_of(course, text=WORDS)
    assert text.count('href="glossary.html#warp"') == 1
    assert '<a class="term" href="glossary.html#warp" aria-describedby="tip_warp">warps</a>' in text
    assert '<p role="tooltip" id="tip_warp">Thirty-two &quot;threads&quot; &lt; 64.</p>' in text
    assert ">SM</a> or sm?" in text
    glossary = (course.root / "build" / "site" / "glossary.html").read_text()
    assert '<a href="00_first.html#the-warp">00 First: The warp</a>' in glossary  # where it is emphasised
    assert '<div id="warp">' in glossary and '<div id="multiprocessor">' in glossary
