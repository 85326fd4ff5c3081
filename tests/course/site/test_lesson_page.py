"""A lesson as a page: its prose, its code and its outputs, what is folded away, and words that are explained."""

import base64
import re
import struct
from html import unescape

import nbformat
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import registry as courses
from labkit.course import site
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
    assert 'src="images/00_first-2.svg" alt="Plot 2 of First" width="400" height="200"' in text


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


@pytest.mark.parametrize("text", [
    "## A prediction\n\nWhich of the two will it wait for?",
    "It adds.\n\nBefore you run the next cell: how many\nblocks?",
    "Write down three numbers.\n\nThe table has them.",
    "How far? Guess, then look.",
    "One more. Predict the shape of the curve.",
    "It sums the row in bfloat16. Where does\nthe sum stop growing?",
])
def test_prose_that_asks_for_a_prediction(text):
    assert lesson_page.asks(text)


@pytest.mark.parametrize("text", [
    "The prediction said less.",
    "Before you run it, write it down.\n\n## The next section\n\nHere is a table.",
    "Before you run it, guess.\n\nOne paragraph.\n\nAnother one.",
    "A count predicts it. A guess does not.",
    "Where does the sum stop?\n\nAt 256, since 257 has no bfloat16.",
])
def test_prose_that_does_not(text):
    assert not lesson_page.asks(text)


ASKING = """\
# %% [markdown]
# Before you run the next cell: what is 6 times 7?

# %%
print(6 * 7)
"""


def test_the_result_of_a_prediction_waits_to_be_asked_for(course):
    answer = v4.new_output("stream", text="42")
    text = page_of(course, [answer], ASKING)
    assert re.search(r'<details class="result"><summary>.*Show the result.*</summary><div class="outputs">.*42', text)
    assert "Show all results" in text
    plain = page_of(course, [answer], ASKING.replace("Before you run the next cell: what is 6 times 7?", "Six sevens."))
    assert "42" in plain and "<details class=\"result\">" not in plain and "Show all results" not in plain
    source = v4.new_output("display_data", data={"text/html": '<div class="labkit-source"><pre>x = 1</pre></div>'})
    assert "<details class=\"result\">" not in page_of(course, [source], ASKING)  # code to read before one predicts


def test_every_lesson_waits_with_at_least_one_result():
    """Lessons ask for predictions in several ways: that the page knows some of each lesson's."""
    for chapter in courses.load(REPOSITORY).chapters:
        cells = chapter.source_text().split("\n# %%")
        prose = ["\n".join(line[1:].removeprefix(" ") for line in cell.splitlines()[1:])
                 for cell, below in zip(cells, cells[1:], strict=False)
                 if "[markdown]" in cell.splitlines()[0] and "[markdown]" not in below.splitlines()[0]]
        assert any(map(lesson_page.asks, prose)), f"{chapter.name} asks for no prediction"


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
