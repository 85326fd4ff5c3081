"""Workbooks: cutting answers, building, what is stale, running a learner's notebook, reset."""

import re

import nbformat
import pytest

from labkit._common.errors import UserError
from labkit._common.paths import PACKAGE, REPOSITORY
from labkit.course import copies
from labkit.course import registry as course
from labkit.course import workbooks as workbook
from labkit.course.answer_cells import without_markers
from labkit.course.registry import CourseError
from tests import made_up_exercises


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A course with one chapter of exercises, built."""
    return make_small(tmp_path, monkeypatch)


def make_small(tmp_path, monkeypatch):
    root = tmp_path / "small"
    made_up_exercises.copy_to(root, monkeypatch)
    found = course.load(root)
    workbook.build(found, found.chapters[0])
    return found


def change(small, name: str, old: str, new: str):
    """Change a file of the chapter's exercises. Return the course as it is then."""
    path = small.root / "own" / "first" / f"{name}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return course.load(small.root)


def write(small, path=None, **answers: str) -> None:
    """Fill answers in, as a learner does: in their copy, or in the notebook at `path`."""
    if path is None:
        path = small.chapters[0].own_workbook
        copies.workbook(small, small.chapters[0])
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        about = cell.metadata.get("labkit", {})
        if about.get("role") == "answer" and about["exercise"] in answers:
            cell.source = answers[about["exercise"]]
    nbformat.write(notebook, path)


def test_an_indented_region_becomes_a_stub_between_its_markers():
    source = "def f(x):\n    y = 1\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n"
    cut = "def f(x):\n    y = 1\n    ### BEGIN SOLUTION\n    # Your code here\n    pass\n    ### END SOLUTION"
    assert workbook.cut(source, "x") == (cut, True, True)
    compile(cut, "cut", "exec")
    assert without_markers(source) == "def f(x):\n    y = 1\n    return x"


def test_a_region_at_column_0_goes_and_what_stands_above_stays():
    source = "kernel = None  # write it\n### BEGIN SOLUTION\nkernel = 3\n\n\n### END SOLUTION"
    assert workbook.cut(source, "x") == ("kernel = None  # write it", True, False)
    assert without_markers(source) == "kernel = 3"
    assert workbook.cut("a = 1", "x") == ("a = 1", False, False)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("# only a comment\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION", "cell 3: .* at column 0 with no code above"),
        ("x = 1\n### BEGIN SOLUTION", "BEGIN SOLUTION without END SOLUTION"),
        ("x = 1\n### END SOLUTION", "END SOLUTION without BEGIN SOLUTION"),
        ("x = 1\n### BEGIN SOLUTION\n### BEGIN SOLUTION", "stands inside another one"),
    ],
)
def test_markers_that_do_not_match_are_refused(source, message):
    with pytest.raises(CourseError, match=message):
        workbook.cut(source, "cell 3")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('check("a_b", k)', "a_b"), ("from labkit import check\ncheck('x', k, seed=1)", "x"), ("check(name, k)", None),
        ('# check("a")', None), ('other.check("a")', None), ('%timeit f()\ncheck("a", k)', "a"), ("x = 1", None),
    ],
)
def test_a_test_cell_is_known_by_its_call(source, name):
    assert workbook.checked_name(source) == name


def test_the_built_notebook_carries_nbgraders_metadata(small):
    cells = nbformat.read(small.chapters[0].workbook, as_version=4).cells
    about = {cell.metadata.nbgrader.grade_id: cell for cell in cells if "nbgrader" in cell.metadata}
    assert set(about) == {"scale_vector", "scale_vector_answer", "count_blocks", "count_blocks_answer",
                          "idle_threads", "scale_again"}
    assert about["scale_vector"].metadata.nbgrader == {
        "grade": True, "grade_id": "scale_vector", "locked": True, "points": 2, "schema_version": 3, "solution": False,
        "task": False}
    assert about["scale_vector_answer"].metadata.nbgrader == {
        "grade": False, "grade_id": "scale_vector_answer", "locked": False, "schema_version": 3, "solution": True,
        "task": False}
    text = "\n".join(cell.source for cell in cells)
    assert "out[i] = a[i] * s\n    ### END" not in text and "24" not in text
    assert workbook.stale(small) == []


def test_a_learners_cell_without_an_answer_is_refused(small):
    answer = "    ### BEGIN SOLUTION\n    return -(-n // threads)\n    ### END SOLUTION\n"
    small = change(small, "count_blocks", answer, "    return 1\n")
    with pytest.raises(UserError, match="count_blocks.py: BEGIN SOLUTION is missing in the learner's cell"):
        workbook.to_notebook(small, small.chapters[0])
    assert len(workbook.stale(small)) == 1
    assert workbook.stale(small, small.chapters[1:]) == [], "of the other chapter nothing is stale"


@pytest.mark.parametrize(("marker", "message"), [
    ("BEGIN", "END SOLUTION without BEGIN SOLUTION"), ("END", "BEGIN SOLUTION without END SOLUTION")])
def test_a_missing_marker_is_named_with_the_file_of_its_exercise(small, marker, message):
    small = change(small, "count_blocks", f"    ### {marker} SOLUTION\n", "")
    with pytest.raises(UserError, match=rf"first/count_blocks.py: {message}"):
        workbook.to_notebook(small, small.chapters[0])


def test_the_solutions_are_written_whole_and_an_edited_or_missing_file_is_named(small):
    (chapter,) = workbook.with_exercises(small, small.chapters)
    text = chapter.solutions.read_text()
    assert text.startswith("# %% [markdown]\n# # 00 · First: exercises\n#\n# Four exercises for tests")
    assert "# ## 3 · Predict the idle threads" in text and "EXERCISE" not in text
    assert text.endswith('# %%\ncheck("scale_again", scale_again)\n')
    chapter.solutions.write_text(text + "# mine\n")
    (problem,) = workbook.stale(small)
    assert "solutions/00_first.py is stale: run labkit build --exercises 00, which" in problem
    chapter.solutions.unlink()
    assert "solutions/00_first.py is missing" in workbook.stale(small)[0]
    workbook.build(small, chapter)
    assert chapter.solutions.read_text() == text and workbook.stale(small) == []


def test_what_a_killed_build_left_is_no_exercise_and_goes_with_the_next(small):
    folder = small.chapters[0].workbook.parent
    for name in (".00_first.ipynb.a1b2c3d4", ".00_first.ipynb.labkit-a1b2c3d4"):
        (folder / name).write_text("{")
    assert workbook.stale(small) == [] and copies.arrange(small) is not None
    assert [path.name for path in (small.root / "work" / "exercises").glob("*")] in ([], ["00_first.ipynb"])
    workbook.build(small, small.chapters[0])
    assert [path.name for path in folder.iterdir()] == ["00_first.ipynb"]


def test_what_is_stale_edited_missing_or_unlisted_is_named(small, monkeypatch):
    monkeypatch.chdir(small.root)
    (chapter,) = workbook.with_exercises(small, small.chapters)
    write(small, chapter.workbook, count_blocks="def count_blocks(n, threads):\n    return 1\n")
    (problem,) = workbook.stale(small)
    assert problem.startswith("exercises/00_first.ipynb was edited by hand")
    backup = workbook.build(small, chapter)
    assert "return 1" in backup.read_text() and workbook.stale(small) == []
    assert workbook.build(small, chapter) is None

    small = change(small, "count_blocks", "Count the blocks", "Count blocks")
    assert [problem.split(":")[0] for problem in workbook.stale(small)] == [
        "solutions/00_first.py is stale", "exercises/00_first.ipynb is stale"]
    workbook.build(small, chapter)
    small = change(small, "scale_again", "POINTS = 3", "POINTS = 4")
    (problem,) = workbook.stale(small)
    assert "exercises/00_first.ipynb is stale: an exercise in it has changed" in problem

    chapter.workbook.unlink()
    (small.root / "solutions" / "01_second.py").write_text("")
    problems = workbook.stale(small)
    assert "exercises/00_first.ipynb is missing: run labkit build --exercises 00" in problems
    assert "solutions/01_second.py belongs to no chapter with exercises in course.toml" in problems
    monkeypatch.chdir(small.root.parent)  # from elsewhere, in full
    assert all(problem.startswith(f"{small.root}/") for problem in workbook.stale(small))


@pytest.mark.sweep(every=True)
def test_answers_pass_and_skeletons_fail(small):
    assert workbook.verify_chapter(small, small.chapters[0]) == []


@pytest.mark.sweep
def test_verify_names_a_solution_that_fails_and_an_exercise_that_passes(small):
    change(small, "count_blocks", "    return -(-n // threads)", "    return n // threads")
    change(small, "idle_threads", "blocks = None", "idle, blocks = 24, 8")
    small = change(small, "scale_again", "# %%\n", '# %%\nassert __name__ != "__main__"\n\n\n')
    problems = workbook.verify(small, small.chapters)
    assert any(p.startswith("the solution of count_blocks fails: The value is wrong.") for p in problems)
    assert "the exercise idle_threads passes before anything is done" in problems
    assert any(p.startswith("the skeleton of scale_again does not run: in the cell above: Asser") for p in problems)


@pytest.mark.sweep(every=True)
def test_verify_remembers_what_was_well_until_it_changes(small, monkeypatch):
    runs = []
    monkeypatch.setattr(workbook, "verify_chapter", lambda course, chapter: runs.append(chapter.name) or [])
    for _ in range(2):
        assert workbook.verify(small, small.chapters) == []
    assert runs == ["00_first"]
    small = change(small, "count_blocks", "Count the blocks", "Count blocks")
    workbook.verify(small, small.chapters)
    assert runs == ["00_first", "00_first"]


@pytest.mark.sweep(every=True)
def test_a_kernel_that_a_solution_imports_is_looked_at_again_when_it_changes(small, monkeypatch):
    import_cuda = "from labkit import cuda"
    small = change(small, "scale_again", import_cuda, f"{import_cuda}\nfrom labkit.kernels import gelu")
    read, gelu = type(REPOSITORY).read_text, PACKAGE / "kernels" / "gelu.py"
    before = workbook._state(small, small.chapters[0])
    assert workbook._state(small, small.chapters[0]) == before
    with monkeypatch.context() as patched:
        patched.setattr(type(gelu), "read_text",
                        lambda path, *rest, **options: read(path, *rest, **options) + "# changed" * (path == gelu))
        assert workbook._state(small, small.chapters[0]) != before
    small = change(small, "scale_again", "\nfrom labkit.kernels import gelu", "")
    changed = []
    monkeypatch.setattr(type(gelu), "read_text",
                        lambda path, *rest, **options: changed.append(path) or read(path, *rest, **options))
    workbook._state(small, small.chapters[0])
    assert gelu not in changed and PACKAGE / "course" / "check" / "run.py" in changed


def test_a_step_that_was_forgotten_is_named(small):
    assert workbook.unmatched(small) == []
    toml, folder = small.root / "course.toml", small.root / "own" / "first"
    (folder / "later.py").write_text((folder / "idle_threads.py").read_text())
    toml.write_text(toml.read_text().replace('"scale_again"', '"scale_again", "later"'))
    (problem,) = workbook.unmatched(course.load(small.root))
    assert "later.py: EXERCISE is named 'idle_threads'; it must have the name of its file" in problem
    (folder / "last.py").write_text((folder / "idle_threads.py").read_text().replace("EXERCISE = ", "EXAMPLE = "))
    toml.write_text(toml.read_text().replace('"later"', '"last"'))
    (folder / "later.py").unlink()
    (problem,) = workbook.unmatched(course.load(small.root))
    assert "last.py: EXERCISE is missing below # %% [check]" in problem
    toml.write_text(toml.read_text().replace(', "last"', ""))
    (folder / "last.py").unlink()
    toml.write_text(toml.read_text().replace('"count_blocks", ', ""))
    unlisted = course.load(small.root)
    (problem,) = workbook.unmatched(unlisted)
    assert problem.endswith("count_blocks.py: course.toml does not list it; add 'count_blocks' to the `exercises` of "
                            "its chapter")
    assert workbook.misplaced(unlisted) == [problem]
    with pytest.raises(CourseError, match=re.escape(problem)):
        unlisted.exercise("count_blocks")
    toml.write_text(toml.read_text().replace('"scale_vector", ', '"scale_vector", "count_rows", '))
    with pytest.raises(CourseError, match="exercise 'count_rows' has no file: write labkit/course/exercises/first/"
                                          "count_rows.py, or let LABKIT_EXERCISES name"):
        course.load(small.root)
    toml.write_text(toml.read_text().replace('"count_rows"', '"count_blocks"'))
    small = course.load(small.root)
    (folder / "__init__.py").unlink()
    assert "__init__.py is missing: its docstring is the text" in workbook.stale(small)[0]


def test_an_answer_that_has_not_the_name_of_its_file_is_refused(small):
    small = change(small, "count_blocks", "def count_blocks", "def blocks")
    (problem,) = workbook.stale(small)
    assert problem.endswith("count_blocks.py: the learner's cell must define count_blocks, which is the name of the "
                            "file, or assign the numbers to predict above BEGIN SOLUTION")


@pytest.mark.parametrize(("old", "new", "message"), [
    ("wrong={", "wrong={} and {", "ValueError: exercise 'last': `wrong` needs two known wrong answers"),
    ("    domain=", "    domain=() and ", "ValueError: exercise 'last': domain names the properties"),
    ("EXERCISE = ", "EXERCISE = nothing", r"NameError: name 'nothing\w+' is not defined"),
])
def test_a_file_that_cannot_be_imported_is_named(small, old, new, message):
    toml, folder = small.root / "course.toml", small.root / "own" / "first"
    text = (folder / "count_blocks.py").read_text().replace("count_blocks", "last")  # a new one: not imported before
    assert old in text
    (folder / "last.py").write_text(text.replace(old, new))
    toml.write_text(toml.read_text().replace('"scale_again"', '"scale_again", "last"'))
    small = course.load(small.root)
    (problem,) = workbook.unmatched(small)
    assert re.search(rf"first/last.py, line \d+ cannot be imported: {message}", problem)
    assert workbook.stale(small) == [problem]


@pytest.mark.sweep(every=True)
def test_a_learners_notebook_is_run_whatever_fails_in_it(small):
    write(small, scale_vector="x = 1\ndef (:", count_blocks="%time 1\ncount_blocks = lambda n, t: -(-n // t)",
          idle_threads="import os; os._exit(3)")
    notebook = copies.learners(small, small.chapters[0])
    got = {r.exercise: r for r in workbook.run_cells(small, small.chapters[0], notebook, env={"LABKIT_PROGRESS": "0"})}
    assert got["scale_vector"].problem.startswith("in the cell above: SyntaxError: invalid syntax, line 2")
    assert got["count_blocks"].passed
    assert re.fullmatch(r".*the Python process ended; its temporary files are in /.*, where [\d,.]+ MB are free",
                        got["idle_threads"].problem)
    (only,) = workbook.run_cells(small, small.chapters[0], notebook, only=("count_blocks",),
                                 env={"LABKIT_PROGRESS": "0"})
    assert only.passed


@pytest.mark.sweep
def test_a_cell_that_never_ends_and_a_deleted_test_cell_are_named(small, monkeypatch):
    monkeypatch.setattr(workbook, "CELL_LIMIT_S", 4)
    write(small, idle_threads="while True: pass")
    notebook = copies.learners(small, small.chapters[0])
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith('check("count_blocks"')]
    results = workbook.run_cells(small, small.chapters[0], notebook, env={"LABKIT_PROGRESS": "0"})
    got = {result.exercise: result.message for result in results}
    assert got["count_blocks"] == "its test cell, check(...), is not in the notebook: labkit reset puts it back"
    assert got["idle_threads"] == "a cell did not end within 4 s and was stopped"


def test_reset_puts_one_exercise_back_and_keeps_the_others(small):
    (chapter,) = workbook.with_exercises(small, small.chapters)
    write(small, scale_vector="mine = 1", count_blocks="mine = 2")
    backup = workbook.reset(small, chapter, small.exercise("scale_vector"))
    assert "mine = 1" in backup.read_text()
    text = chapter.own_workbook.read_text()
    assert "mine = 1" not in text and "mine = 2" in text and "def scale_vector" in text
    workbook.reset(small, chapter)
    given = [cell.source for cell in workbook.to_notebook(small, chapter, markers=False).cells]
    assert [cell.source for cell in nbformat.read(chapter.own_workbook, as_version=4).cells] == given
    chapter.own_workbook.unlink()
    assert workbook.reset(small, chapter, small.exercise("scale_vector")) is None
    assert [cell.source for cell in nbformat.read(chapter.own_workbook, as_version=4).cells] == given
    assert workbook.stale(small) == []  # what is shipped was never touched


@pytest.mark.sweep(every=True)
def test_a_learners_copy_has_no_markers_and_what_nbgrader_releases_has(small):
    (chapter,) = workbook.with_exercises(small, small.chapters)
    copies.workbook(small, chapter)
    mine, shipped = (nbformat.read(path, as_version=4) for path in (chapter.own_workbook, chapter.workbook))
    (answer,) = [cell for cell in mine.cells if cell.metadata.get("labkit") == {
        "exercise": "scale_vector", "role": "answer"}]
    assert answer.source.endswith("i = cuda.grid(1)\n    # Your code here\n    pass")
    assert "SOLUTION" in chapter.workbook.read_text() and "SOLUTION" not in chapter.own_workbook.read_text()
    assert [cell.metadata for cell in mine.cells] == [cell.metadata for cell in shipped.cells]  # to be graded by
    assert [cell.source for cell in mine.cells] == [
        "\n".join(line for line in cell.source.split("\n") if "SOLUTION" not in line) for cell in shipped.cells]
    assert not any(result.passed for result in workbook.run_cells(small, chapter, mine, env={"LABKIT_PROGRESS": "0"}))
    answer.source = answer.source.replace("pass", "if i < out.size:\n        out[i] = a[i] * s")
    right, *_ = workbook.run_cells(small, chapter, mine, ["scale_vector"], env={"LABKIT_PROGRESS": "0"})
    assert right.passed


def test_reset_puts_back_cells_that_were_deleted(small):
    (chapter,) = workbook.with_exercises(small, small.chapters)
    copies.workbook(small, chapter)
    notebook = nbformat.read(chapter.own_workbook, as_version=4)
    notebook.cells = notebook.cells[:3]
    nbformat.write(notebook, chapter.own_workbook)
    workbook.reset(small, chapter, small.exercise("count_blocks"))
    sources = [cell.source for cell in nbformat.read(chapter.own_workbook, as_version=4).cells]
    assert sources[-1] == 'check("count_blocks", count_blocks)' and sources[-2].startswith("def count_blocks")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"idle_threads"', '"Idle"', "'exercises' must be a list of names such as scale_vector"),
        ('"idle_threads"', '"count_blocks"', "exercise 'count_blocks' is listed twice"),
        ("[[chapter]]", '[[exercise]]\nname = "one"\n\n[[chapter]]',
         r"an \[\[exercise\]\] table. An exercise is a file of its own now, such as labkit/course/exercises/broadcast"),
    ],
)
def test_the_registry_is_checked(small, old, new, message):
    path = small.root / "course.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CourseError, match=message):
        course.load(small.root)
