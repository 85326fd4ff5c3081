"""An exercise's file: what is read of it, what is refused, and the source of a notebook."""

import pytest

from labkit._common.errors import UserError
from labkit.course import exercise_files, exercises, workbooks
from labkit.course import registry as courses
from tests import made_up_exercises


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The made-up exercises, to be changed."""
    return made_up_exercises.copy_to(tmp_path, monkeypatch)


def change(path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def source(folder) -> str:
    course = courses.load(folder.parents[1])
    return workbooks.source_text(course, course.chapters[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Round up."', '" "', "count_blocks.py: HINTS must be a tuple of three texts, each telling more"),
        ('"Round up.", ', "", "HINTS must be a tuple of three texts"),
        ("HINTS", "HINT", "HINTS must be a tuple of three texts.* not None"),
        ("POINTS = 1", "POINTS = 0", "POINTS must be a whole number, 1 or more, not 0"),
        ('("scale_vector",)', '"scale_vector"', "NEEDS must be a tuple of names"),
        ('("scale_vector",)', '("later",)', "needs 'later', which is not the name of an exercise before it"),
        ("# %% [check]", "", r"the line # %% \[check\] is missing, and below it EXERCISE"),
        ("# %%\n", "", "the line # %% is missing, and below it the learner's cell"),
        ('"""Count the blocks"""', "", "the docstring is missing"),
        ("POINTS = 1", "POINTS = sum(1)", "POINTS must be written out"),
        ("POINTS = 1", "POINTS = = 1", "count_blocks.py is not valid Python"),
    ],
)
def test_a_file_is_checked(folder, old, new, message):
    change(folder / "count_blocks.py", old, new)
    with pytest.raises(UserError, match=message):
        courses.load(folder.parents[1])


def test_what_follows_a_check_and_what_only_a_notebook_runs(folder):
    after = 'AFTER = """\nWas it?\n\n# %%\nprint(1)\n\n# %% [markdown]\nIt was.\n"""\n'
    change(folder / "count_blocks.py", "\nEXERCISE", f"\n{after}\nEXERCISE")
    change(folder / "idle_threads.py", "### END SOLUTION\n",
           '### END SOLUTION\n\n# %%\nx = 1\nif __name__ == "__main__":\n    print(x)\n')
    text = source(folder)
    assert ("# %% [markdown]\n# Was it?\n\n# %%\nprint(1)\n\n# %% [markdown]\n# It was.\n#\n"
            "# ## 3 · Predict the idle threads\n") in text
    assert "# %%\nx = 1\nprint(x)\n" in text


def test_a_check_is_called_with_the_answer_or_with_the_numbers_that_are_predicted(folder):
    names = [f"a_number_with_a_long_name_{k}" for k in range(4)]
    start = "".join(f"{name} = None\n" for name in names)
    change(folder / "idle_threads.py", "idle = None  # threads without an element\nblocks = None\n", start)
    text = source(folder)
    assert '# %%\ncheck("count_blocks", count_blocks)\n' in text
    assert '# %%\ncheck("idle_threads", ' + ", ".join(f"{name}={name}" for name in names[:1]) in text
    assert "\n      a_number_with_a_long_name_" in text and max(map(len, text.split("\n"))) <= 120


def test_two_exercises_of_one_name_are_refused(folder):
    (folder.parent / "second").mkdir()
    (folder.parent / "second" / "count_blocks.py").write_text((folder / "count_blocks.py").read_text())
    with pytest.raises(UserError, match="two exercises are named 'count_blocks'"):
        exercise_files.by_name()


@pytest.mark.parametrize(("old", "new", "message"), [
    ("FIRST_CELL", "FIRST", "__init__.py: FIRST_CELL is missing, the text of the notebook's first cell"),
    ('"""Four', "Four", "__init__.py is not valid Python"),
])
def test_what_a_chapters_exercises_share_is_checked(folder, old, new, message):
    change(folder / "__init__.py", old, new)
    with pytest.raises(UserError, match=message):
        source(folder)


def test_every_file_of_the_course_reads_as_it_was_written():
    """What is read without running a file is what running it says."""
    for name, path in exercise_files.by_name(own=True).items():
        file, module = exercise_files.read(path), exercises._module(path)
        assert (file.hints, file.points) == (module.HINTS, module.POINTS), name
        assert file.needs == getattr(module, "NEEDS", ()) and file.after == getattr(module, "AFTER", ""), name
