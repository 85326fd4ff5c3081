"""Numbers in prose: rendered from a recording, checked against it, and refused where somebody typed them."""

import copy
import re
from dataclasses import replace

import pytest

from labkit import measure
from labkit._common.paths import REPOSITORY
from labkit.course import build, expressions, passages, prose, readme
from labkit.course import registry as courses
from labkit.course.notebooks import cell_lines, read_notebook
from labkit.course.registry import CourseError

US = "{{ series.launch_overhead.launcher_us:.1f }}"


@pytest.fixture(scope="module")
def course():
    return courses.load(REPOSITORY)


@pytest.fixture
def other_recording(monkeypatch):
    """The recording with a launch that takes 1 us, and with copies to the device at half of their speed."""
    data = copy.deepcopy(measure.recorded(gpu="NVIDIA H200"))
    data["series"]["launch_overhead"]["launcher_us"] = 1.0
    data["series"]["copies"]["h2d_pageable"]["gbs"] /= 2
    monkeypatch.setattr(measure, "recorded", lambda gpu=None: data)


def source(text: str, numbers: str = "") -> str:
    """A lesson with this prose between two cells."""
    lesson = f"# %%\nx = '{{{{ 1 + 1 }}}}'\n\n# %% [markdown]\n# {text}\n\n# %%\ny = '7 us'\n"
    return f"{lesson}\n# %% [numbers]\n# {numbers}\n" if numbers else lesson


def shown(text: str, numbers: str = "") -> str:
    """The line of prose of such a lesson, as a reader sees it."""
    return prose.render(source(text, numbers), "00.py").splitlines()[4].removeprefix("# ")


def problems(text: str, numbers: str = "") -> list[str]:
    lesson, definitions = prose.split(source(text, numbers))
    return prose._problems("00.py", prose._prose(lesson), prose.evaluator(definitions))


# --- The course ------------------------------------------------------------------------------------------------------


def test_prose_says_what_the_recordings_say(course):
    assert prose.problems(course) == []


def test_nothing_waits_to_be_recorded(course):
    """Each of these is stated in prose and in no recording: data/measurements/README.md says how to record it."""
    assert prose.unrecorded(course) == []


def test_every_name_is_used(course):
    for chapter in course.chapters:
        lesson, definitions = prose.split(chapter.source_text())
        texts = [*prose._HOLE.findall(prose._prose(lesson)), *definitions.splitlines()]
        for name in re.findall(r"^(\w+) = ", definitions, re.MULTILINE):
            assert any(re.search(rf"(?<![\w.'])\b{name}\b(?! =)", text) for text in texts), (chapter.name, name)


@pytest.mark.sweep(every=True)
def test_a_reader_sees_no_marks(course):
    for chapter in course.chapters:
        text = "".join(cell.source for cell in prose.to_notebook(chapter).cells if cell.cell_type == "markdown")
        assert "{{ " not in text and "[numbers]" not in text, chapter.name
    assert not any("{{ " in passage.text for passage in passages.passages(course))
    assert "{{ " not in readme.chapters(course)


def test_another_recording_changes_the_sentences_and_contradicts_others(course, other_recording):
    chapter = course.chapters[1]
    assert "The kernel is 0.3% of the trip" in prose.rendered(chapter)
    (found,) = prose.problems_of_lesson(*course.called("13_graphs_and_streams"))
    assert found.startswith("notebooks/13_graphs_and_streams.py, line ") and "this is no longer so" in found
    assert "add more than half of that {{ if checks_add_half }}" in found


# --- Rendering -------------------------------------------------------------------------------------------------------


def test_a_number_from_the_recording():
    us = measure.recorded_series("launch_overhead", gpu="NVIDIA H200")["launcher_us"]
    assert shown(f"The launch takes {US} us.") == f"The launch takes {us:.1f} us."


def test_numbers_of_another_gpu():
    """A row, a counter and the limits of the H100, whose recording holds the grouped product."""
    read = measure.recorded_ladder("matmul", gpu=expressions.H100).row("matmul_tiled_grouped").timing.p50
    assert shown("{{ row('matmul', 'tiled_grouped', H100).ms:.2f }} ms") == f"{read:.2f} ms"
    assert shown("{{ ncu('matmul', 'tiled_grouped', H100).dram_read / 1e9:.1f }} GB") == "0.6 GB"
    assert shown("{{ limits_of(H100).gpu }}, {{ machine_of(H100).sms }}") == "NVIDIA H100 80GB HBM3, 132"
    assert shown("{{ stall('matmul', 'tiled', 'barrier') == stall('matmul', 'tiled', 'barrier', H100) }}") == "False"


def test_another_recording_changes_a_sentence(other_recording):
    assert shown(f"The launch takes {US} us.") == "The launch takes 1.0 us."


@pytest.mark.parametrize("text, expected", [
    ("{{ 8191 // 256 + 8 }} steps", "39 steps"),
    ("{{ 16 * 1024:, }} floats, {{ 1 / 3:.0% }}", "16,384 floats, 33%"),
    ("worth {{ words(swap) }}, {{ swap:.2f }}", "worth four, 4.25"),
    ("faster{{ if swap > 4 }}, by far", "faster, by far"),
    ("at 1.98 GHz{{ hardware }}, it says", "at 1.98 GHz, it says"),
    ("$\\frac{{1}}{{2}}$ {{x}}", "$\\frac{{1}}{{2}}$ {{x}}"),
])
def test_what_a_reader_sees(text, expected):
    assert shown(text, "swap = 17 / 4") == expected
    assert problems(text, "swap = 17 / 4") == []


def test_code_stays_as_it_is_and_lines_keep_their_numbers():
    text = source("{{ swap }}", "swap = 17 / 4")
    lesson = prose.render(text, "00.py")
    assert "x = '{{ 1 + 1 }}'" in lesson and "swap" not in lesson
    assert text.splitlines()[: len(lesson.splitlines())][5:] == lesson.splitlines()[5:]
    assert cell_lines(lesson) == [1, 7]


def test_definitions_may_take_several_lines_and_each_other():
    assert shown("{{ double }}", "double = (swap *\n#           2)\n# swap = 17 / 4  # of the count") == "8.5"
    with pytest.raises(CourseError, match="more than assignments"):
        shown("{{ double }}", "double = swap *")


def test_numbers_in_words():
    from labkit.course.expressions import near, words

    found = [words(value) for value in (0.5, 0.34, 0.74, 2, 7.06, 12.4, 50.5, 97, 0.12)]
    assert found == ["half", "a third", "three quarters", "two", "seven", "twelve", "fifty", "a hundred", "0.12"]
    assert near(0.53, 0.5) and not near(0.6, 0.5) and near(0.6, 0.5, 0.3)


# --- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text, numbers, reason", [
    ("{{ 1 / 0:.0f }}", "", "ZeroDivisionError: division by zero"),
    ("{{ series.no_such_series.us }}", "", "no recording has 'no_such_series'"),
    ("{{ swap }}", "", "NameError: name 'swap' is not defined"),
    ("{{ swap }}", "swap = row('matmul', 'no_rung').ms", "swap = row('matmul', 'no_rung').ms: no recording has"),
    ("{{ swap }}", "swap = swap + 1", "swap = swap + 1: NameError"),
])
def test_an_expression_that_fails_is_named_with_its_sentence(text, numbers, reason):
    with pytest.raises(CourseError) as error:
        shown(f"The swap is worth {text} of it.", numbers)
    for message in (str(error.value), *problems(f"The swap is worth {text} of it.", numbers)):
        assert message.startswith("00.py, line 5: ") and reason in message
        assert f"The swap is worth {text} of it." in message


def test_words_that_are_no_longer_so():
    (found,) = problems("It is faster{{ if slow < 1 }}.", "slow = 2")
    assert found == "00.py, line 5: this is no longer so: ...It is faster {{ if slow < 1 }}...."
    assert shown("It is faster{{ if slow < 1 }}.", "slow = 2") == "It is faster."


def test_a_mark_over_two_lines():
    assert "a mark stands on one line" in problems("It takes {{ swap\n# * 2 }}.", "swap = 2")[0]


def test_what_is_to_be_recorded_is_listed_and_not_a_problem_yet(course):
    text = "It waits for 9.1 us{{ later series.no_such_series.us:.1f }}."
    assert problems(text) == [] and shown(text) == "It waits for 9.1 us."
    (found,) = problems(f"It waits for 9.1 us{US.replace('{{ ', '{{ later ')}.")
    assert "it is recorded now: " in found
    chapter = replace(course.chapters[0], summary=text)
    (found,) = prose.unrecorded(replace(course, chapters=(chapter,)))
    assert found.startswith("course.toml, chapter 00") and "It waits for 9.1 us" in found


# --- Numbers that were typed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "12 us", "40 µs", "1.2 ms", "350 ns", "4,233 GB/s", "49 TFLOP/s", "12 MB", "80%", "90 %", "7 times as fast",
    "0.96 of its speed", "255 registers", "20 clocks", "40 instructions", "15\n# percent", "16.5 MB of 32",
])
def test_a_typed_number_needs_a_mark(text):
    (found,) = problems(f"We saw that {text} and more.")
    assert "00.py, line 5: a number was typed" in found


@pytest.mark.parametrize("text", [
    "in 256 threads of 8 blocks", "lesson 07 and Llama 3.2", "ptxas 13.0", "`float32(0.0)` and `--factor 0.5`",
    "three loops, ten times", "at 2^28 elements", "$0.5$ and $$7 us$$", "[here](https://a.b/9.5)", "\n#\n# | 7 us |\n#",
    "{{ 7 }} us", "2.5 ms{{ quoted }}, 7 and 8 ms{{ compiled }}", "below 4 ms{{ if 1 < 2 }}", "2% to 4%{{ example }}",
])
def test_what_needs_none(text):
    assert problems(f"We saw {text} and more.") == []


# --- Pages and notebooks ---------------------------------------------------------------------------------------------


def test_a_page_keeps_its_numbers_and_the_build_refreshes_them(course_dir):
    page = course_dir / "README.md"
    page.write_text(page.read_text() + "It takes 7<!-- = 8191 // 256 + 8 --> steps at 1.98 GHz<!-- hardware -->.\n")
    small = courses.load(course_dir)
    assert readme.stale(small) and prose.problems(small) == []
    readme.write(small)
    assert "It takes 39<!-- = 8191 // 256 + 8 --> steps at 1.98 GHz<!-- hardware -->." in page.read_text()
    assert readme.stale(small) == []
    page.write_text(page.read_text() + "Typed: 12 us. Wrong<!-- if 1 > 2 -->: 3<!-- = 1 / 0 -->.\n")
    found = prose.problems(small)
    assert [any(part in one for one in found) for part in ("typed", "no longer so", "ZeroDivision")] == [True] * 3
    assert "ZeroDivisionError" in readme.stale(small)[0]


@pytest.fixture
def built(course_dir):
    """A course whose first lesson has a number in its prose, built."""
    path = course_dir / "notebooks" / "00_first.py"
    path.write_text(path.read_text().replace("# ## The problem", f"# ## The problem\n#\n# It takes {US} us."))
    small = courses.load(course_dir)
    for chapter in small.chapters:
        assert not build.build_chapter(small, chapter, device="cpu")[0].problem
    readme.write(small)
    assert build.check(small) == []
    return small


@pytest.mark.sweep(every=True)
def test_another_recording_makes_a_notebook_stale_and_rendering_it_keeps_its_outputs(built, request):
    request.getfixturevalue("other_recording")
    (found,) = build.check(built)
    assert found.endswith("00_first.ipynb is stale: a number in its prose has changed; run labkit build --prose 00")
    chapter = built.chapters[0]
    before = read_notebook(chapter.built)
    assert build.rebuild_prose(built, chapter)
    after = read_notebook(chapter.built)
    assert "It takes 1.0 us." in after.cells[0].source
    assert [c.outputs for c in after.cells[1:]] == [c.outputs for c in before.cells[1:]] and build.check(built) == []


@pytest.mark.sweep(every=True)
def test_outputs_of_other_code_are_not_kept(built):
    chapter = built.chapters[0]
    chapter.source.write_text(chapter.source_text().replace("print('hello')", "print('bye')"))
    assert not build.rebuild_prose(built, chapter)
    assert "print('hello')" in chapter.built.read_text()


@pytest.mark.sweep(every=True)
def test_a_lesson_with_wrong_prose_is_not_built(built):
    chapter = built.chapters[0]
    chapter.source.write_text(chapter.source_text().replace(f"{US} us", "12 us"))
    with pytest.raises(CourseError, match="line 6: a number was typed.*It takes 12 us"):
        build.build_chapter(built, chapter, device="cpu")
