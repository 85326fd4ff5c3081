"""The learner's own copies: what they wrote is kept, to the byte, when the course changes, is numbered anew or split,
and when a move is interrupted anywhere."""

import os
import shutil

import nbformat
import pytest

from labkit.course import copies, notebooks, progress, prose, workbooks
from labkit.course import registry as courses
from labkit.course.registry import CourseError

ANSWERS = {"one": "one = 'mine'  # \t é \\n  \n\n\n", "two": "def two():\n\treturn 2", "three": "three = 3 "}


@pytest.fixture(autouse=True)
def in_the_course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # from elsewhere, paths are shown absolute


EXERCISE = '''\
"""{name}"""

HINTS = ("a", "b", "c")
POINTS = 1

# %%
{name} = None  # write it
### BEGIN SOLUTION
{name} = 1
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise

EXERCISE = PredictionExercise(name="{name}", truth=lambda: {{"x": 1}}, how={{"x": "Count."}},
                              wrong={{"a": {{"x": 2}}, "b": {{"x": 3}}}})
'''


@pytest.fixture(autouse=True)
def exercises_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_EXERCISES", str(tmp_path / "own"))


def change(course, name: str, old: str, new: str):
    """Change the file of an exercise. Return the course as it is then."""
    path = course.exercise(name).file.path
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return courses.load(course.root)


def write_course(root, **chapters):
    """name -> exercises, or (exercises, formerly). What was there of the course, and of it alone, goes."""
    shutil.rmtree(root / "own", ignore_errors=True)
    for folder, suffix in (("notebooks", "py"), ("solutions", "py"), ("exercises", "ipynb")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for path in (root / folder).glob(f"*.{suffix}"):
            path.unlink()
    text = ""
    for name, about in chapters.items():
        names, formerly = about if isinstance(about, tuple) else (about, [])
        text += f'[[chapter]]\nname = "{name}"\ntitle = "T {name}"\nsummary = "s"\nformerly = {formerly!r}\n'
        text += f"exercises = {list(names)!r}\n"
        (root / "notebooks" / f"{name}.py").write_text(f"# %% [markdown]\n# # {name[3:]}\n\n# %%\n1 + 1\n\n# %%\n2\n")
        folder = root / "own" / name[3:]
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text('"""Exercises"""\n\nFIRST_CELL = "from labkit import check"\n')
        for each in names:
            (folder / f"{each}.py").write_text(EXERCISE.format(name=each))
    (root / "course.toml").write_text(text)
    course = courses.load(root)
    for chapter in workbooks.with_exercises(course, course.chapters):
        workbooks.build(course, chapter)
    return course


def before(root):
    return write_course(root, **{"00_start": ["zero"], "01_attention": ["one", "two", "three"]})


def after(root):
    """Numbered anew, and the second chapter split."""
    return write_course(root, **{"00_start": ["zero"], "01_machine": [], "02_attention": ["one", "two"],
                                 "03_flash_attention": ["three"]})


def fill_in(path, own_cells=False, **answers):
    notebook = nbformat.read(path, as_version=4)
    for at in reversed(range(len(notebook.cells))):
        about = notebook.cells[at].metadata.get("labkit", {})
        if about.get("role") == "answer" and about["exercise"] in answers:
            notebook.cells[at].source = answers[about["exercise"]]
            if own_cells:
                notebook.cells.insert(at, nbformat.v4.new_code_cell(f"helper_of_{about['exercise']} = 1"))
    nbformat.write(notebook, path)
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 10_000_000))  # a later save


def answers_of(*chapters) -> dict[str, str]:
    found = {}
    for chapter in chapters:
        for cell in nbformat.read(chapter.own_workbook, as_version=4).cells:
            about = cell.metadata.get("labkit", {})
            if about.get("role") == "answer":
                found[about["exercise"]] = cell.source
    return found


def sources(path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def backups(course) -> list:
    return sorted((course.state_dir / "backups").rglob("*.ipynb"))


def state(root) -> dict:
    return {path.relative_to(root): path.read_bytes() for folder in ("work", ".labkit")
            for path in (root / folder).rglob("*") if path.is_file()}


@pytest.fixture
def split(tmp_path):
    """A learner has answered three exercises of a chapter, run its lesson, and then updates the course."""
    old = before(tmp_path)
    chapter = old.chapters[1]
    copies.workbook(old, chapter)
    copies.lesson(old, chapter)
    fill_in(chapter.own_workbook, own_cells=True, **ANSWERS)
    notebook = nbformat.read(chapter.own_lesson, as_version=4)
    for cell in notebook.cells[1:]:
        cell.execution_count = 1
    notebook.cells.append(nbformat.v4.new_markdown_cell("my note"))
    nbformat.write(notebook, chapter.own_lesson)
    return after(tmp_path)


def assert_arrived(new):
    attention, flash = new.chapters[2:]
    assert answers_of(attention, flash) == ANSWERS
    assert sources(attention.own_workbook).count("helper_of_two = 1") == 1
    at = sources(flash.own_workbook)
    assert at.index("helper_of_three = 1") < at.index(ANSWERS["three"]) and at.count("helper_of_three = 1") == 1
    assert sources(attention.own_lesson)[-1] == "my note"
    assert sorted(path.name for path in attention.own_workbook.parent.iterdir()) == [
        "02_attention.ipynb", "03_flash_attention.ipynb"]


def test_a_clean_copy_has_the_cells_and_no_outputs(tmp_path):
    course = before(tmp_path)
    assert copies.lesson(course, course.chapters[1]) == copies.workbook(course, course.chapters[1]) == []
    notebook = nbformat.read(course.chapters[1].own_lesson, as_version=4)
    assert [cell.source for cell in notebook.cells] == ["# attention", "1 + 1", "2"]
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert answers_of(course.chapters[1])["one"] == "one = None  # write it"
    assert backups(course) == []
    stamp = state(tmp_path)
    copies.lesson(course, course.chapters[1])
    copies.workbook(course, course.chapters[1])
    assert state(tmp_path) == stamp


def test_answers_follow_their_exercises_when_chapters_are_numbered_anew_and_split(split):
    before_ = {path.name: path.read_bytes() for path in (split.root / "work" / "exercises").iterdir()}
    news = copies.arrange(split)
    assert_arrived(split)
    assert any("01_attention.ipynb is now work/exercises/02_attention.ipynb and work/exercises/03_flash_attention.ipynb"
               in sentence and "kept as .labkit/backups/exercises/01_attention-" in sentence for sentence in news)
    (kept,) = [path for path in backups(split) if path.parent.name == "exercises"]
    assert kept.read_bytes() == before_["01_attention.ipynb"]
    assert list(progress.finished(split)) == ["02_attention"]  # the lesson was run under its old name
    first = state(split.root)
    assert copies.arrange(split) == [] and state(split.root) == first


@pytest.mark.parametrize("stop", range(12))
def test_a_move_that_is_interrupted_is_completed_by_the_next_command(split, monkeypatch, stop):
    """Ctrl-C before the n-th change of a file."""
    left = stop
    with monkeypatch.context() as patched:
        for module, name in ((copies, "write_notebook"), (copies, "back_up"), (copies, "write_text"),
                             (progress, "write_text"), (type(split.root), "unlink")):
            do = getattr(module, name)

            def interrupted(*arguments, do=do, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return do(*arguments, **options)

            patched.setattr(module, name, interrupted)
        try:
            copies.arrange(split)
        except KeyboardInterrupt:
            assert left == -1
        else:
            assert stop > 8
    copies.arrange(split)
    assert_arrived(split)
    assert list(progress.finished(split)) == ["02_attention"]


def test_a_chapter_that_says_what_it_was_called_has_that_ones_progress(tmp_path):
    old = write_course(tmp_path, **{"00_norm_and_fusion": ["one"], "01_other": []})
    copies.lesson(old, old.chapters[0])
    progress.note_finished(old, old.chapters)
    new = write_course(tmp_path, **{"00_other": [], "01_layernorm": (["one"], ["00_norm_and_fusion"]),
                                    "02_fusion": ([], ["07_norm_and_fusion"])})
    assert sorted(progress.finished(new)) == ["00_other", "01_layernorm", "02_fusion"]
    copies.arrange(new)
    assert new.chapters[1].own_lesson.is_file() and len(list(new.chapters[1].own_lesson.parent.iterdir())) == 1
    assert [chapter.name for chapter in new.pick(["00_norm_and_fusion"])] == ["01_layernorm", "02_fusion"]


def test_an_update_of_the_exercises_keeps_answers_and_makes_a_backup(tmp_path):
    course = before(tmp_path)
    chapter = course.chapters[1]
    copies.workbook(course, chapter)
    fill_in(chapter.own_workbook, own_cells=True, two=ANSWERS["two"])
    mine = chapter.own_workbook.read_bytes()
    change(course, "two", '"""two"""', '"""Two, better asked"""')
    course = change(course, "three", "three = None", "three = 0")
    (sentence,) = copies.workbook(course, chapter)
    assert "The course has a newer work/exercises/01_attention.ipynb: what you wrote is in it" in sentence
    (backup,) = backups(course)
    assert backup.read_bytes() == mine and backup.name in sentence
    got = sources(chapter.own_workbook)
    assert "## 2 · Two, better asked" in got and "## 2 · two" not in got
    assert got[got.index(ANSWERS["two"]) - 1] == "helper_of_two = 1"
    assert answers_of(chapter) == {"one": "one = None  # write it", "two": ANSWERS["two"],
                                   "three": "three = 0  # write it"}
    cells = nbformat.read(chapter.own_workbook, as_version=4).cells
    assert all("nbgrader" in cell.metadata for cell in cells if cell.source.startswith("check("))
    # An update of the answers alone, which a learner does not see, changes nothing of theirs.
    course = change(course, "two", "two = 1", "two = 2")
    assert copies.workbook(course, chapter) == [] and sources(chapter.own_workbook) == got
    assert backups(course) == [backup]


def test_an_update_of_a_lesson_keeps_what_was_changed_and_run(tmp_path):
    course = before(tmp_path)
    chapter = course.chapters[0]
    copies.lesson(course, chapter)
    notebook = nbformat.read(chapter.own_lesson, as_version=4)
    notebook.cells[1].source = "1 + 100"
    notebook.cells[2].update(execution_count=1, outputs=[nbformat.v4.new_output("stream", text="2")])
    notebook.cells.insert(2, nbformat.v4.new_code_cell("mine"))
    nbformat.write(notebook, chapter.own_lesson)
    source = chapter.source.read_text()
    chapter.source.write_text(source.replace("# # start", "# # Begin") + "\n# %%\n3\n")
    assert len(copies.lesson(course, chapter)) == len(backups(course)) == 1
    cells = nbformat.read(chapter.own_lesson, as_version=4).cells
    assert [cell.source for cell in cells] == ["# Begin", "1 + 100", "mine", "2", "3"]
    assert cells[3].outputs and not cells[4].outputs
    # The cell that the learner changed has changed in the course as well: both are there.
    chapter.source.write_text(chapter.source.read_text().replace("1 + 1", "1 + 2"))
    copies.lesson(course, chapter)
    assert sources(chapter.own_lesson) == ["# Begin", "1 + 100", "mine", "1 + 2", "2", "3"]
    (sentence,) = copies.lesson(course, chapter, clean=True)
    assert "is a clean copy. What was there is kept as .labkit/backups/lessons/00_start-" in sentence
    assert sources(chapter.own_lesson) == ["# Begin", "1 + 2", "2", "3"] and len(backups(course)) == 3


def test_answers_in_the_shipped_notebook_are_taken_over_and_stay_there(tmp_path):
    course = before(tmp_path)
    chapter = course.chapters[1]
    assert copies.arrange(course) == [] and not (tmp_path / "work").exists()
    fill_in(chapter.workbook, one=ANSWERS["one"])
    shipped = chapter.workbook.read_bytes()
    (sentence,) = copies.arrange(course)
    assert "exercises/01_attention.ipynb (one) is now in work/exercises/01_attention.ipynb" in sentence
    assert answers_of(chapter)["one"] == ANSWERS["one"] and chapter.workbook.read_bytes() == shipped
    assert copies.arrange(course) == []
    # From now on the copy counts: what was taken over is not taken again, and only what is newer comes in.
    fill_in(chapter.own_workbook, one="one = 'better'", two="two = 'better'")
    fill_in(chapter.workbook, three="three = 'late'")
    copies.arrange(course)
    assert answers_of(chapter) == {"one": "one = 'better'", "two": "two = 'better'", "three": "three = 'late'"}
    fill_in(chapter.workbook, two="two = 'old'")
    os.utime(chapter.workbook, (1, 1))
    (sentence,) = copies.arrange(course)
    assert "an older answer to two than your copy in work/, which stays" in sentence
    assert answers_of(chapter)["two"] == "two = 'better'"
    fill_in(chapter.workbook, two="two = 'new'")
    os.utime(chapter.workbook, (2**33, 2**33))
    copies.arrange(course)
    assert answers_of(chapter)["two"] == "two = 'new'" and b"better" in backups(course)[-1].read_bytes()


def test_a_shipped_notebook_of_an_earlier_name_is_found(tmp_path):
    old = before(tmp_path)
    fill_in(old.chapters[1].workbook, **ANSWERS)
    mine = old.chapters[1].workbook.read_bytes()
    new = after(tmp_path)
    (tmp_path / "exercises" / "01_attention.ipynb").write_bytes(mine)
    copies.arrange(new)
    assert answers_of(*new.chapters[2:]) == ANSWERS


def test_a_lesson_that_was_changed_in_notebooks_is_taken_over_at_first(tmp_path):
    course = before(tmp_path)
    chapter = course.chapters[0]
    notebook = prose.to_notebook(chapter)
    notebook.cells[1].source = "mine"
    notebooks.write_notebook(notebook, chapter.built)
    copies.lesson(course, chapter)
    assert sources(chapter.own_lesson) == ["# start", "mine", "2"]


def test_without_answers_the_exercises_are_those_that_were_given_out(tmp_path):
    course = change(before(tmp_path), "two", "two = 1\n", "")
    chapter = course.chapters[1]
    copies.workbook(course, chapter)
    assert answers_of(chapter)["two"] == "two = None  # write it"


def test_cells_that_lost_their_ids_and_metadata_are_known_by_what_they_hold(tmp_path):
    """Other editors write notebooks, too."""
    course = before(tmp_path)
    chapter = course.chapters[1]
    copies.workbook(course, chapter)
    fill_in(chapter.own_workbook, **ANSWERS)
    notebook = nbformat.read(chapter.own_workbook, as_version=4)
    for cell in notebook.cells:
        cell.metadata.clear()
        cell["id"] = nbformat.v4.new_code_cell().id
    nbformat.write(notebook, chapter.own_workbook)
    course = change(course, "one", '"""one"""', '"""First"""')
    copies.workbook(course, chapter)
    assert answers_of(chapter) == ANSWERS and len(sources(chapter.own_workbook)) == len(notebook.cells)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path):
    course = before(tmp_path)
    (tmp_path / "work").write_text("a file where the folder should be")
    with pytest.raises(CourseError, match="work.* cannot be written: .*both must be folders that you may write to"):
        copies.lesson(course, course.chapters[0])


def test_a_copy_of_another_course_is_left_alone(tmp_path):
    course = before(tmp_path)
    other = course.chapters[0].own_lesson.with_name("44_elsewhere.ipynb")
    other.parent.mkdir(parents=True)
    other.write_text("{ not even a notebook")
    assert copies.arrange(course) == [] and other.read_text() == "{ not even a notebook"


# --- Predictions -----------------------------------------------------------------------------------------------------

ASKED = "# %% [markdown]\n# # One\n#\n# Which is faster?\n\n# %%\nprint(1)\n\n# %% [markdown]\n# The first, by 7 ms.\n"


def test_a_lessons_copy_folds_its_answers_and_keeps_a_guess(tmp_path):
    course = before(tmp_path)
    chapter = course.chapters[0]
    chapter.source.write_text(ASKED)
    copies.lesson(course, chapter)
    _, guess, _, answer = sources(chapter.own_lesson)
    assert guess.startswith("**Predict:** Which is faster?") and answer.startswith("<details>") and "7 ms" in answer
    notebook = nbformat.read(chapter.own_lesson, as_version=4)
    notebook.cells[1].source += "the second"
    nbformat.write(notebook, chapter.own_lesson)
    chapter.source.write_text(ASKED.replace("print(1)", "print(2)").replace("7 ms", "8 ms"))
    copies.lesson(course, chapter)
    assert sources(chapter.own_lesson) == [
        "# One", f"{guess}the second", "print(2)", answer.replace("7 ms", "8 ms")]
