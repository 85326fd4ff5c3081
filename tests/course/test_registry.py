"""The registry, building, staleness and backups. The lessons here are small ones in a temporary directory."""

import json
import sys
from types import SimpleNamespace

import nbformat
import pytest

from labkit._common import files
from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.course import build, execution, exercises, notebooks, progress, prose, readme
from labkit.course import registry as courses

ROOT = REPOSITORY


def built(root, number="00"):
    course = courses.load(root)
    (chapter,) = course.pick([number])
    return course, chapter, build.build_chapter(course, chapter)


# --- The registry


def test_the_repositorys_registry_is_sound():
    course = courses.load(ROOT)
    assert [c.number for c in course.chapters] == [f"{n:02d}" for n in range(len(course.chapters))]
    assert all(c.title and c.summary for c in course.chapters)


@pytest.mark.sweep
def test_nothing_in_the_repository_is_stale():
    assert build.check(courses.load(ROOT)) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "First"\n', "", "chapter 1: 'title' must be a text"),
        ('summary = "The first one."', 'summary = ""', "chapter 1: 'summary' must be a text"),
        ('name = "01_second"', 'name = "02_second"', "must begin with 01"),
        ('name = "01_second"', 'name = "second"', "must look like 01_vector_add"),
        ('title = "Second"', 'title = "Second"\npoints = 3', "unknown key 'points'"),
        ('title = "Second"', 'title = "Second"\nformerly = ["second"]', "'formerly' must be a list of names such as"),
        ("[course]", "[courses]", "unknown table 'courses'"),
        ("[course]", "[course", "not valid TOML"),
        ("[course]", "course = 3\n[other]", "unknown table 'other'"),
        ("tagline = ", "tagline = 5 # ", r"\[course\] must be a table with a title and a tagline"),
        ('title = "First"\n', 'title = "First"\npart = 1\n', "chapter 1: 'part' must be a text that is not empty"),
        ('title = "Second"\n', 'title = "Second"\npart = "B"\n', "chapter 2: part 'B' begins here, and chapter 1"),
    ],
)
def test_a_mistake_in_the_registry_is_named(course_dir, old, new, words):
    path = course_dir / "course.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(courses.CourseError, match=words):
        courses.load(course_dir)


PATH = """
[[path]]
name = "a_day"
title = "A day"
summary = "One."

[[path.part]]
title = "Morning"
lessons = ["first"]
hand_in = ["every_second"]
"""


def with_path(course_dir, path=PATH):
    toml = course_dir / "course.toml"
    toml.write_text(toml.read_text().replace('name = "00_first"',
                                             'name = "00_first"\nexercises = ["saxpy", "every_second"]') + path)
    return courses.load(course_dir)


def test_a_path_names_lessons_by_topic_and_counts_the_points_that_are_handed_in(course_dir):
    (path,) = with_path(course_dir).paths
    (part,) = path.parts
    assert [chapter.name for chapter in part.chapters] == ["00_first"]
    assert [entry.name for entry in part.exercises] == ["saxpy", "every_second"]
    assert [entry.name for entry in part.hand_in] == ["every_second"]
    assert path.points == part.points == part.hand_in[0].points


@pytest.mark.parametrize(("old", "new", "words"), [
    ('name = "a_day"', "name = 1", "'name' must be a text"),
    ('title = "Morning"', "", "part 1: 'title' must be a text"),
    ('lessons = ["first"]', 'lessons = ["00_first"]', "there is no lesson '00_first'; a path names lessons without"),
    ('lessons = ["first"]', 'lessons = "first"', "'lessons' must be a list of names, not 'first'"),
    ('hand_in = ["every_second"]', 'hand_in = ["add_row"]', "no lesson of this part has the exercise 'add_row'"),
    ('hand_in = ["every_second"]', 'exercises = ["saxpy"]\nhand_in = ["every_second"]',
     "'every_second' is to be handed in, and is not among the exercises"),
    ('hand_in = ["every_second"]', 'exercises = ["every_second"]', "needs 'saxpy', which is in no part before it"),
    ('title = "Morning"', 'title = "Morning"\npoints = 3', "unknown key 'points'"),
    ('summary = "One."', 'summary = "One."\nweeks = 3', "unknown key 'weeks'"),
    (PATH[PATH.index("[[path.part]]"):], "", "has no"),
])
def test_a_mistake_in_a_path_is_named(course_dir, old, new, words):
    with pytest.raises(courses.CourseError, match=words):
        with_path(course_dir, PATH.replace(old, new))


def test_the_course_has_a_path_of_twelve_weeks_and_one_of_two_days():
    paths = {path.name: path for path in courses.load(ROOT).paths}
    assert len(paths["twelve_weeks"].parts) == 12 and len(paths["two_days"].parts) == 4
    for path in paths.values():
        assert all(part.chapters and part.hand_in for part in path.parts)
        points = [part.points for part in path.parts]
        assert max(points) <= 2 * min(points), "the parts are about equally large"


def test_a_part_goes_on_until_the_next_one_begins(course_dir):
    path = course_dir / "course.toml"
    (only,) = courses.load(course_dir).parts
    assert (only.name, len(only.chapters)) == ("Lessons", 2)
    third = '\n[[chapter]]\nname = "02_third"\ntitle = "Third"\nsummary = "The third one."\n'
    text = path.read_text().replace('name = "00_first"', 'name = "00_first"\npart = "A"') + third
    path.write_text(text.replace('name = "02_third"', 'name = "02_third"\npart = "B"'))
    course = courses.load(course_dir)
    assert [(part.name, [c.number for c in part.chapters]) for part in course.parts] == [
        ("A", ["00", "01"]), ("B", ["02"])]
    assert "| | **B** | |\n| 02 | [Third]" in readme.chapters(course)
    path.write_text(text.replace('name = "02_third"', 'name = "02_third"\npart = "A"'))
    with pytest.raises(courses.CourseError, match="chapter 3: part 'A' has begun before"):
        courses.load(course_dir)


def test_three_names_are_like_another_one():
    """Those with a word of it, and those spelled like it; of names that have nothing to do with it there are three as
    well."""
    course = courses.load()
    with pytest.raises(courses.CourseError, match=r"did you mean (\w+, )?16_softmax"):
        course.pick(["softmax"])
    with pytest.raises(courses.CourseError, match="did you mean 18_histogram, "):
        course.pick(["histogram"], or_exercise=True)
    with pytest.raises(courses.CourseError, match=r"\w+, \w+ or \w+\? \(labkit imported from .*labkit\)"):
        course.exercise("zzzzqqq")
    with pytest.raises(KeyError, match=r"'\w+', '\w+' or '\w+'\? \(labkit imported from .*labkit\)"):
        exercises.find("zzzzqqq")


def test_the_repositorys_address_stands_in_pyproject_and_nowhere_else(course_dir):
    pyproject = course_dir / "pyproject.toml"
    assert courses.load(course_dir).repository == ""
    pyproject.write_text('[project.urls]\nRepository = "https://github.com/owner/name"\n')
    assert courses.load(course_dir).repository == "https://github.com/owner/name"
    for wrong in ('"https://example.org/x"', '"https://github.com/owner"', "3", '"https://github.com/a/b/c"'):
        pyproject.write_text(f"[project.urls]\nRepository = {wrong}\n")
        with pytest.raises(courses.CourseError, match=r"Repository must look like https://github.com/owner/name, not"):
            _ = courses.load(course_dir).repository
    pyproject.write_text("[project\n")
    with pytest.raises(courses.CourseError, match="pyproject.toml is not valid TOML"):
        _ = courses.load(course_dir).repository


@pytest.mark.parametrize(("content", "words"), [
    ("chapter = 3", r"'chapter' must be tables, each beginning with \[\[chapter\]\], not 3"),
    ("chapter = [3]", "'chapter' must be tables"),
    ("[chapter]\nname = 'x'", "'chapter' must be tables"),
    ("course = 3\n[[chapter]]\nname = '00_a'\ntitle = 'A'\nsummary = 'A'", r"\[course\] must be a table"),
    ("exercise = 'x'\n[[chapter]]\nname = '00_a'\ntitle = 'A'\nsummary = 'A'", r"an \[\[exercise\]\] table"),
    ("a = " + "[" * 100_000, "not valid TOML: it is nested too deeply"),
    ("a = '\0'", "not valid TOML"),
    ("", r"lists no \[\[chapter\]\]"),
    (b"title = '\xff'", "course.toml is no text in UTF-8: the byte at 9 is 0xff"),
])
def test_a_registry_of_another_shape_is_named(tmp_path, content, words):
    (tmp_path / "course.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=words):
        courses.load(tmp_path)


def test_a_directory_in_the_place_of_a_file_is_named(course_dir):
    source = courses.load(course_dir).chapters[0].source
    source.write_bytes(b"\xfe")
    with pytest.raises(UserError, match=f"{source.name} is no text in UTF-8"):
        courses.load(course_dir).chapters[0].source_text()
    (course_dir / "course.toml").unlink()
    (course_dir / "course.toml").mkdir()
    with pytest.raises(UserError, match="course.toml cannot be read: Is a directory"):
        courses.load(course_dir)


def test_chapters_are_picked_by_number_or_name_in_the_courses_order(course_dir):
    course = courses.load(course_dir)
    first, second = course.chapters
    assert course.pick([]) == (first, second)
    assert course.pick(["1"]) == course.pick(["01"]) == course.pick(["notebooks/01_second.ipynb"]) == (second,)
    assert course.pick(["01", "00"]) == (first, second)
    with pytest.raises(courses.CourseError, match="no chapter '7'; the chapters are 00, 01"):
        course.pick(["7"])


# --- Building


def test_a_built_notebook_is_executed_and_says_what_it_was_made_from(course_dir):
    _, chapter, (outcome, backup) = built(course_dir)
    assert outcome.problem is None and backup is None
    notebook = nbformat.read(chapter.built, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert notebook.metadata.labkit.source_sha256 == notebooks.sha256(chapter.source_text())
    assert notebook.cells[2].outputs[0].text == "hello\n"
    assert execution.RESULT in notebook.cells[3].outputs[0].data
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_building_twice_gives_the_same_bytes_and_no_path_of_this_machine(course_dir):
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(
        source.read_text() + "\n# %%\nimport os, sys, warnings\nprint(os.getcwd(), sys.prefix + '/lib')\n"
        "warnings.warn('careful')\nobject()\n"
    )
    _, chapter, _ = built(course_dir)
    first = chapter.built.read_bytes()
    built(course_dir)
    assert chapter.built.read_bytes() == first
    text = first.decode()
    assert str(course_dir.parent) not in text
    assert "at 0x..." in text and "ipykernel" not in text
    assert not list((course_dir / ".labkit").glob("backups/*"))  # an untouched notebook is not worth a copy


def test_cell_ids_survive_an_inserted_cell_and_stay_unique(course_dir):
    course = courses.load(course_dir)
    chapter = course.chapters[0]
    before = {cell.source: cell.id for cell in prose.to_notebook(chapter).cells}
    chapter.source.write_text("# %%\n1 + 1\n\n# %%\n1 + 1\n\n" + chapter.source.read_text())
    after = prose.to_notebook(chapter).cells
    assert {cell.source: cell.id for cell in after}.items() >= before.items()
    assert len({cell.id for cell in after}) == len(after)


def test_a_failing_lesson_writes_nothing_and_says_where(course_dir):
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %%\ndef halve(x):\n    return x / 0\n\nhalve(3)\n")
    _, chapter, (outcome, _) = built(course_dir)
    assert not chapter.built.exists()
    problem = outcome.problem
    assert problem.error == "ZeroDivisionError: division by zero"
    assert problem.code == "halve(3)"
    lines = chapter.source_text().splitlines()
    assert lines[problem.line - 1] == "halve(3)"
    assert problem.where(chapter) == f"cell 5, line {problem.line} of notebooks/00_first.py"


@pytest.mark.sweep(every=True)
def test_a_lesson_whose_process_dies_is_a_failure_and_not_a_hang(course_dir):
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %%\nimport os\nos._exit(1)\n")
    _, _, (outcome, _) = built(course_dir)
    assert "died" in outcome.problem.error


@pytest.mark.sweep(every=True)
def test_an_edited_notebook_is_kept_before_it_is_built_again(course_dir):
    _, chapter, _ = built(course_dir)
    notebook = nbformat.read(chapter.built, as_version=4)
    notebook.cells[2].source = "print('mine')"
    nbformat.write(notebook, chapter.built)
    edited = chapter.built.read_bytes()
    _, _, (_, backup) = built(course_dir)
    assert backup.parent == course_dir / ".labkit" / "backups"
    assert backup.read_bytes() == edited
    assert "mine" not in chapter.built.read_text()
    chapter.built.write_text("{ broken")
    _, _, (_, second) = built(course_dir)
    assert second != backup and second.read_text() == "{ broken"


def test_no_half_written_notebook_is_left(course_dir, monkeypatch):
    target = course_dir / "notebooks" / "x.ipynb"
    target.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir() if p.name.startswith(".")] == []


# --- Staleness


@pytest.fixture
def fresh(course_dir, monkeypatch):
    """The small course as `labkit build` leaves it, without executing anything."""
    course = courses.load(course_dir)
    for chapter in course.chapters:
        notebooks.write_notebook(prose.to_notebook(chapter), chapter.built)
    readme.write(course)
    monkeypatch.chdir(course_dir)
    assert build.check(course) == []
    return course


def test_check_names_a_stale_notebook(fresh):
    chapter = fresh.chapters[1]
    chapter.source.write_text(chapter.source.read_text() + "\n# one more line\n")
    assert build.check(fresh) == ["notebooks/01_second.ipynb is stale: its source has changed; run labkit build 01"]


def test_from_elsewhere_what_is_stale_is_named_in_full(fresh, monkeypatch):
    monkeypatch.chdir(fresh.root.parent)
    first, second = fresh.chapters
    first.built.unlink()
    second.source.write_text(second.source.read_text() + "\n# one more line\n")
    (fresh.root / "README.md").write_text((fresh.root / "README.md").read_text().replace("The second one.", "x"))
    (fresh.root / "notebooks" / "99_stray.ipynb").write_text("{}")
    named = [problem.split(" is ")[0] for problem in build.check(fresh)]
    assert sorted(named) == sorted(map(str, (first.built, second.built, fresh.root / "README.md",
                                             fresh.root / "notebooks" / "99_stray.ipynb")))


def test_check_names_missing_and_unlisted_files(fresh):
    fresh.chapters[0].built.unlink()
    fresh.chapters[1].source.unlink()
    (fresh.root / "notebooks" / "99_stray.ipynb").write_text("{}")
    problems = "\n".join(build.check(fresh))
    assert "00_first.ipynb is missing" in problems
    assert "01_second.py is missing" in problems
    assert "99_stray.ipynb is not listed in course.toml" in problems


def test_check_names_a_notebook_edited_by_hand(fresh):
    path = fresh.chapters[0].built
    path.write_text(path.read_text().replace("hello", "goodbye"))
    (problem,) = build.check(fresh)
    assert "was edited by hand" in problem


def test_line_endings_do_not_make_a_notebook_stale(fresh):
    source = fresh.chapters[0].source
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    assert build.check(fresh) == []


def test_check_names_a_stale_readme(fresh):
    toml = fresh.root / "course.toml"
    toml.write_text(toml.read_text().replace("The second one.", "Another summary."))
    assert build.check(courses.load(fresh.root)) == [
        "README.md is stale: its generated parts have changed; run labkit build --readme"
    ]
    (fresh.root / "README.md").write_text("# no markers\n")
    (problem,) = build.check(fresh)
    assert "lacks the markers of 'chapters'" in problem


def test_what_was_measured_on_a_gpu_is_shown(fresh, monkeypatch):
    folder = fresh.root / "data" / "measurements"
    folder.mkdir(parents=True)
    (folder / "gpu-b.json").write_text('{"machine": "b"}')
    (folder / "gpu-a.json").write_text('{"machine": "a", "ops": ["matmul"]}')
    fake = SimpleNamespace(readme_table=lambda data: f"table of {data['machine']}",
                           targets_table=lambda data: "" if data["machine"] == "a" else "targets of b",
                           highlights_table=lambda data: f"highlights of {data['machine']}")
    monkeypatch.setitem(sys.modules, "labkit.course.measured", fake)
    assert "\n\ntable of a\n\ntable of b\n\n</details>" in readme.measured(fresh)
    assert readme.targets(fresh) == "targets of b"
    assert readme.highlights(fresh).startswith("highlights of a\n\n![") and "of b" not in readme.highlights(fresh)
    (problem,) = build.check(fresh)
    assert "README.md is stale" in problem
    page = fresh.root / "data" / "measured.md"
    page.write_text("# Measured\n")
    (problem,) = build.check(fresh)
    assert "data/measured.md lacks the markers of 'targets'" in problem
    page.write_text("".join(f"<!-- {name}: made by labkit build -->\n<!-- end of {name} -->\n"
                            for name in ("targets", "measured")))
    assert sorted(map(str, readme.write(fresh))) == ["README.md", "data/measured.md"] and build.check(fresh) == []
    (folder / "gpu-b.json").write_text("{}")
    with pytest.raises(courses.CourseError, match="gpu-b.json is not what labkit bench writes: KeyError"):
        readme.measured(fresh)


def test_the_picture_of_the_ladders_is_drawn_again_when_their_times_change(fresh):
    assert readme.picture(fresh) == ""
    folder = fresh.root / "data" / "measurements"
    folder.mkdir(parents=True)
    recording = json.loads((REPOSITORY / "data" / "measurements" / "nvidia-h200.json").read_text(encoding="utf-8"))
    recording = {"ops": {name: recording["ops"][name][:1] for name in readme.CLIMBED}}
    (folder / "gpu.json").write_text(json.dumps(recording))
    drawn = readme.picture(fresh)
    assert drawn.startswith("<svg") and "paged_decode_bf16" in drawn
    other = drawn.replace("<svg", "<svg data-drawn='by another matplotlib'")
    (fresh.root / readme.PICTURE).write_text(other)
    assert readme.picture(fresh) == other
    recording["ops"]["matmul"][0]["rows"][0]["timing"]["p50"] *= 2
    (folder / "gpu.json").write_text(json.dumps(recording))
    assert readme.picture(fresh) not in (drawn, other)


def test_readme_can_be_read_in_one_go():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) < 250


def test_readme_says_how_long_a_class_took_and_what_was_simulated(fresh):
    assert readme.grading(fresh) == "No class has been timed yet."
    run = {"wall_s": 600.0, "cpu_s": 900.0, "load_before": 0.2, "load_after": 2.0}
    point = {"workers": 4, "answers_per_s": 12.34, "verdicts": 3000}
    held = {
        "classes": {"04": {"students": 300, "answers": 2400, "programs": 700, "cores": 2, "cold": run,
                           "warm": {**run, "wall_s": 240.0}, "date": "2026-01-02"}},
        "killed": {"00": {"students": 30, "answers": 180, "kept_when_killed": 90, "judged_again": 0,
                          "same_scores": True}},
        "simulated": {"dask": {"answers": 3000, "mean_s": 0.4, "faster": 15.0, "points": [point]}},
    }
    path = fresh.root / "data" / "grading.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held))
    text = readme.grading(fresh)
    assert "10.0 min (15.0 min of CPU) with empty caches, 4.0 min" in text and "other work" not in text
    assert "90 of 180 verdicts kept" in text and "judged 0 of those again" in text
    assert "Simulated, nothing graded" in text and "12.3 with 4 workers" in text
    held["classes"]["04"]["warm"]["load_before"] = 9.0
    path.write_text(json.dumps(held))
    assert "while the machine did other work, too" in readme.grading(fresh)
    path.write_text('{"classes": {"04": {}}}')
    with pytest.raises(courses.CourseError, match="data/grading.json is not what"):
        readme.grading(fresh)


# --- Progress


def test_a_lesson_is_finished_once_the_learner_has_run_it_all(fresh):
    first, second = fresh.chapters
    assert progress.next_lesson(fresh) == first
    notebook = nbformat.read(first.built, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.metadata.language_info |= {"pygments_lexer": "ipython3", "version": "3.11.7"}  # as Jupyter saves it
    for cell in code[:-1]:
        cell.execution_count = 1
    nbformat.write(notebook, first.built)
    assert progress.next_lesson(fresh) == first  # one cell not run yet
    code[-1].execution_count = 9
    code[-1].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    nbformat.write(notebook, first.built)
    assert progress.next_lesson(fresh) == first  # it failed
    code[-1].outputs = []
    nbformat.write(notebook, first.built)
    assert progress.next_lesson(fresh) == second
    # A rebuilt notebook takes nothing away, and neither does a damaged file of progress.
    notebooks.write_notebook(prose.to_notebook(first), first.built)
    assert progress.next_lesson(fresh) == second
    (fresh.state_dir / "progress.json").write_text("{")
    with pytest.warns(UserWarning, match="progress.json is no JSON"):
        assert progress.finished(fresh) == {}


@pytest.mark.sweep(every=True)
def test_a_page_is_stale_when_a_recording_that_it_quotes_changes(course_dir, monkeypatch):
    monkeypatch.chdir(course_dir)
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %%\nfrom labkit import measure\n\n"
                      'print(measure.recorded_ladder("softmax", gpu="NVIDIA H200").title)\n')
    course, chapter, (outcome, _) = built(course_dir)
    assert outcome.problem is None
    about = notebooks.read_notebook(chapter.built).metadata["labkit"]
    assert list(about["recordings"]) == ["nvidia-h200.json ops.softmax"]
    first = [problem for problem in build.check(course) if "00_first.ipynb" in problem]
    assert first == []
    data = course_dir / "data" / "measurements"
    data.mkdir(parents=True)
    (data / "nvidia-h200.json").write_text('{"ops": {"softmax": [], "matmul": []}}')
    (problem,) = [problem for problem in build.check(course) if "00_first.ipynb" in problem]
    assert problem == ("notebooks/00_first.ipynb is stale: it quotes a recording that has changed, data/measurements/"
                       "nvidia-h200.json ops.softmax; run labkit build 00")


@pytest.mark.sweep(every=True)
def test_a_page_is_stale_when_a_kernel_that_it_shows_changes(course_dir, monkeypatch):
    monkeypatch.chdir(course_dir)
    source = course_dir / "notebooks" / "00_first.py"
    source.write_text(source.read_text() + "\n# %%\nfrom labkit.kernels import elementwise\n")
    course, chapter, (outcome, _) = built(course_dir)
    assert outcome.problem is None
    about = notebooks.read_notebook(chapter.built).metadata["labkit"]
    assert "labkit/kernels/elementwise.py" in about["kernels"] and "labkit/kernels/op.py" in about["kernels"]
    assert not any(name.startswith("labkit/measure") for name in about["kernels"])
    assert [problem for problem in build.check(course) if "00_first.ipynb" in problem] == []
    changed = {**about["kernels"], "labkit/kernels/elementwise.py": "0" * 16}
    monkeypatch.setattr(build, "kernels_sha256", lambda source: changed)
    (problem,) = [problem for problem in build.check(course) if "00_first.ipynb" in problem]
    assert problem == ("notebooks/00_first.ipynb is stale: it shows labkit/kernels/elementwise.py, which has changed; "
                       "run labkit build 00")
