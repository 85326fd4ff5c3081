"""The pages of exercises: whole, with nothing given away before it is asked for, and linked both ways."""

import re

import numpy as np
import pytest

from labkit._common.paths import REPOSITORY
from labkit.course import exercises, site
from labkit.course import registry as courses
from labkit.course.site import exercise_page
from labkit.course.site.links import broken_links
from tests.course.site.pages import strict

NAMES = ("saxpy", "every_second", "predict_every_second", "add_row", "outer_difference")


@pytest.fixture
def folder(course):
    path = course.root / "course.toml"
    path.write_text(path.read_text().replace('name = "00_first"', f'name = "00_first"\nexercises = {list(NAMES)}'))
    return site.write(courses.load(course.root)).parent


def test_a_page_has_the_task_the_starter_an_example_and_how_to_run_it(folder):
    text = (folder / "exercises" / "every_second.html").read_text(encoding="utf-8")
    strict(text)
    order = ["<h1>Every second element</h1>", "The two arrays now have different lengths",
             "# Your code here", "labkit check every_second", ">Hint 1<", ">Hint 3<", "Show the answer",
             "Known mistakes", "The guard compares with the length of x"]
    assert sorted(order, key=text.index) == order
    assert "BEGIN SOLUTION" not in text


def test_a_worked_example_is_computed_by_the_reference(folder):
    text = (folder / "exercises" / "outer_difference.html").read_text(encoding="utf-8")
    shown = re.search(r'class="example">(.*?)</pre>', text, re.S)[1]
    arrays = {name: np.array([float(number) for number in re.findall(r"-?[\d.]+", numbers)])
              for name, numbers in re.findall(r"(\w+) +?= ([^=]*?)(?=\n\w|$)", shown)}
    *inputs, (output, result) = arrays.items()
    (_, a), (_, b) = inputs
    np.testing.assert_allclose(result, np.subtract.outer(a, b).ravel(), atol=0.011)
    assert output == "out" and result.size > 1


def test_what_gives_the_answer_away_is_folded_without_a_script(folder):
    for name in NAMES:
        text = (folder / "exercises" / f"{name}.html").read_text(encoding="utf-8")
        open_parts = re.sub(r"<details class=\"result\">.*?</details>", "", text, flags=re.S)
        entry = next(each for each in courses.load(REPOSITORY).exercises if each.name == name)
        assert text.count("<details class=\"result\">") == 5 and "<details open" not in text
        last_line = entry.file.solution.answer.splitlines()[-1].split("#")[0].strip().split()[-1]
        assert last_line in re.sub("<[^>]+>", "", text)
        assert re.sub(r"\s", "", entry.file.solution.answer) not in re.sub(r"<[^>]+>|\s", "", open_parts)
        for mistake in exercises.find(name).wrong:
            assert mistake[1:25] not in open_parts


def test_a_mistake_is_shown_as_what_it_changes(folder):
    text = (folder / "exercises" / "saxpy.html").read_text(encoding="utf-8")
    assert '<pre class="change"><del>- ' in text and "<ins>+ " in text
    shown = str(exercise_page._difference("a = 1\nif a < n:", "if a < n:\n    b = 2"))
    assert shown == "<del>- a = 1</del><span>  if a &lt; n:</span><ins>+     b = 2</ins>"


def test_lesson_and_exercises_lead_to_one_another(folder):
    lesson = (folder / "00_first.html").read_text(encoding="utf-8")
    for name in NAMES:
        assert f'href="exercises/{name}.html"' in lesson
        assert 'href="../00_first.html"' in (folder / "exercises" / f"{name}.html").read_text(encoding="utf-8")
    text = (folder / "exercises" / "every_second.html").read_text(encoding="utf-8")
    assert 'rel="prev" href="saxpy.html"' in text and 'rel="next" href="predict_every_second.html"' in text
    assert '<a href="saxpy.html">' in text  # what is needed first
    assert 'href="every_second.html"' in (folder / "exercises" / "index.html").read_text(encoding="utf-8")
    assert broken_links(folder) == []


@pytest.mark.sweep(every=True)
def test_every_exercise_of_the_course_has_a_page():
    course = courses.load(REPOSITORY)
    with_example = 0
    for entry in course.exercises:
        page = exercise_page.page_of(course, entry)
        assert page.task and page.starter and page.answer and page.call and page.summary, entry.name
        assert len(page.hints) == 3 and len(page.mistakes) >= 2, entry.name
        with_example += bool(page.example)
    assert with_example > 40


def test_a_class_finds_its_paths_and_what_is_difficult(course):
    path = course.root / "course.toml"
    path.write_text(path.read_text().replace('name = "00_first"', f'name = "00_first"\nexercises = {list(NAMES)}') + """
[[path]]
name = "a_day"
title = "A day"
summary = "One."
[[path.part]]
title = "Morning"
lessons = ["first"]
hand_in = ["every_second", "add_row"]
""")
    folder = site.write(courses.load(course.root)).parent
    text = (folder / "classes.html").read_text(encoding="utf-8")
    strict(text)
    row = re.search(r'<th scope="row">Morning</th>(.*?)</tr>', text, re.S)[1]
    lessons, todo, handed_in, points = re.findall("<td.*?</td>", row, re.S)
    assert "00_first.html" in lessons and points == '<td class="number">2</td>'
    assert [name for name in NAMES if f"exercises/{name}.html" in handed_in] == ["every_second", "add_row"]
    assert [name for name in NAMES if f"exercises/{name}.html" in todo] == [
        "saxpy", "predict_every_second", "outer_difference"]
    text = (folder / "difficulties.html").read_text(encoding="utf-8")
    strict(text)
    assert "not counted from students" in text
    for name in NAMES:
        assert text.count("<li>") == sum(len(exercises.find(each).wrong) for each in NAMES) + nav_items(text)
        assert f'href="exercises/{name}.html"' in text
    assert 'href="classes.html"' in (folder / "index.html").read_text(encoding="utf-8")
    assert 'href="#lesson_00" title="First"' in text and 'id="lesson_00"' in text
    found = (folder / "passages.js").read_text(encoding="utf-8")
    assert "classes.html#a_day" in found and "difficulties.html" in found
    assert broken_links(folder) == []


def nav_items(text: str) -> int:
    """The lessons in the menu."""
    return text.partition("</nav>")[0].count("<li>")
