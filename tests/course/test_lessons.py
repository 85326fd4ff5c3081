"""A lesson that uses labkit as the real ones do, executed on this machine's device, down to its result and its page."""

import asyncio
import os
import re
import textwrap
from pathlib import Path

import pytest

from labkit._common.errors import UserError
from labkit.course import execution, notebooks, prose, site
from labkit.course import lessons as run
from labkit.course import registry as courses

LESSON = """\
# %% [markdown]
# # A real one

# %%
from labkit import agree, cuda, device, ladder, plots, show_source
from labkit.measure.ops import HOMES, op

addition = op("vector_add")
show_source(addition.rungs[0])

# %%
agree(addition)

# %%
measured = ladder(addition, addition.awkward[-1], budget_s=0.02)
measured

# %%
plots.ladder(measured)
"""


def test_every_shipped_lesson_has_passed():
    """As `labkit run` would judge what the notebooks hold."""
    for chapter in courses.load().chapters:
        shown = execution.results(notebooks.read_notebook(chapter.built))
        assert run.summarise(shown, "")["problem"] == "", chapter.name


def test_no_lesson_prints_a_number_right_behind_a_digit():
    """"by 256{seconds:.3f}" would be read as another number."""
    for chapter in courses.load().chapters:
        assert not re.search(r"\d\{[^{}]*:[\d,]*\.?\d*[dfg]?\}", chapter.source_text()), chapter.name


@pytest.mark.sweep(every=True)
def test_a_lesson_with_real_results(course_dir):
    (course_dir / "notebooks" / "00_first.py").write_text(LESSON)
    course = courses.load(course_dir)
    (result,) = run.run_lessons(course, course.chapters[:1])
    assert result.passed, result.problem
    assert 0 < result.max_error < 1e-5
    assert "vector_add_per_thread_kernel" in result.kernels

    _, notebook = run.kept(course, course.chapters[0])
    assert [shown["kind"] for shown in execution.results(notebook)] == ["agreement", "ladder"]
    # Each cell shows one thing: a table that prints itself as well would be there twice.
    assert [len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"] == [1, 1, 1, 1]

    page = (site.write(course).parent / "00_first.html").read_text()
    assert '<figure class="source"><figcaption>labkit/kernels/elementwise.py:' in page
    assert 'src="images/00_first-1.svg"' in page
    assert str(course_dir) not in page


@pytest.mark.sweep(every=True)
def test_lessons_in_a_row_have_a_process_each_and_the_next_one_is_started_early(course_dir, monkeypatch):
    monkeypatch.setattr(execution, "CORES_FOR_TWO", 1)
    (course_dir / "notebooks" / "00_first.py").write_text(
        "# %% [markdown]\n# # First\n\n# %%\nimport os, sys\n"
        'print(os.getpid(), "labkit.measure.ops" in sys.modules, os.environ["LABKIT_DEVICE"])\n')
    chapter = courses.load(course_dir).chapters[0]
    printed = []

    async def three():
        async with execution.Kernels("cpu", lessons=3) as kernels:
            for _ in range(3):
                notebook = prose.to_notebook(chapter)
                assert (await kernels.run(notebook, chapter)).problem is None
                printed.append(notebook.cells[-1].outputs[0].text.split())
            assert kernels._waiting is None  # three were announced: no fourth

    asyncio.run(three())
    processes = [int(pid) for pid, *_ in printed]
    assert len(set(processes)) == 3
    assert [rest for _, *rest in printed] == [["False", "cpu"], ["True", "cpu"], ["True", "cpu"]]
    assert not any(alive(pid) for pid in processes)


@pytest.mark.sweep(every=True)
def test_a_kernel_that_was_started_early_and_is_not_needed_ends(course_dir, monkeypatch):
    monkeypatch.setattr(execution, "CORES_FOR_TWO", 1)
    (course_dir / "notebooks" / "00_first.py").write_text("# %% [markdown]\n# # First\n\n# %%\n1 / 0\n")
    chapter = courses.load(course_dir).chapters[0]

    async def one_of_two():
        async with execution.Kernels("cpu", lessons=2) as kernels:
            outcome = await kernels.run(prose.to_notebook(chapter), chapter)
            assert "ZeroDivisionError" in outcome.problem.error
            assert kernels._waiting.manager.has_kernel
            return kernels._waiting

    waiting = asyncio.run(one_of_two())
    assert not waiting.manager.has_kernel
    assert not Path(waiting.ipython_dir.name).exists()


@pytest.mark.sweep(every=True)
def test_a_process_that_ends_before_the_first_cell_is_a_sentence(course_dir, monkeypatch):
    """As where its temporary files find no space."""
    made = execution._kernel_manager
    monkeypatch.setattr(execution, "_kernel_manager", lambda folder, module: made(folder, "a_module_that_is_missing"))
    course = courses.load(course_dir)
    with pytest.raises(UserError, match=r"lesson 00 did not begin; its temporary files are in .* MB are free"):
        run.run_lessons(course, course.chapters[:1])


WAITS_FOR_THE_OTHER = """\
    # %% [markdown]
    # # {mine}

    # %%
    import time
    from pathlib import Path
    Path("{mine}").touch()
    begin = time.monotonic()
    while not Path("{other}").exists():
        assert time.monotonic() - begin < 30, "alone"
        time.sleep(0.02)
    1 / {divisor}
    """


def test_lessons_that_run_at_the_same_time(course_dir):
    """Each ends only once the other has begun; one of them fails."""
    for name, mine, other, divisor in (("00_first", "one", "two", 0), ("01_second", "two", "one", 1)):
        lesson = WAITS_FOR_THE_OTHER.format(mine=mine, other=other, divisor=divisor)
        (course_dir / "notebooks" / f"{name}.py").write_text(textwrap.dedent(lesson))
    course = courses.load(course_dir)
    seen, ended = [], []
    results = run.run_lessons(course, course.chapters, at_once=2, on_cell=lambda *step: seen.append(step),
                              on_end=lambda chapter, result: ended.append((chapter, result)))
    assert [result.name for result in results] == ["00_first", "01_second"]
    assert [result.problem for result in results] == [
        "cell 2, line 12 of notebooks/00_first.py: `1 / 0` gave ZeroDivisionError: division by zero",
        "the lesson shows no agreement with NumPy"]
    first, second = course.chapters
    assert [step for step in seen if step[0] == first] == [(first, 0, 2), (first, 1, 2)]
    assert [step for step in seen if step[0] == second] == [(second, done, 2) for done in range(3)]
    assert sorted(ended, key=lambda pair: pair[0].name) == list(zip(course.chapters, results, strict=True))


@pytest.mark.parametrize(("lessons", "kind", "on", "expected"), [
    (38, "cpu", 2, 2), (38, "cpu", 64, execution.MOST_AT_ONCE), (1, "cpu", 8, 1), (38, "cpu", 1, 1), (38, "gpu", 16, 1),
])
def test_how_many_lessons_run_at_once(monkeypatch, lessons, kind, on, expected):
    monkeypatch.setattr(execution, "cores", lambda: on)
    assert execution.at_once(lessons, kind) == expected


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lessons_that_fail_together_give_one_error(monkeypatch, caplog):
    """A full disk: the first lesson ends with it, and so do those that run beside it, when they are cancelled."""
    begun = []

    class Kernels:
        def __init__(self, *args, **kwargs):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *raised):
            return None

    async def run_lesson(*args):
        begun.append(args)
        try:
            await asyncio.sleep(60 if len(begun) == 1 else 0)
        finally:
            raise OSError("no space is left")

    monkeypatch.setattr(execution, "Kernels", Kernels)
    monkeypatch.setattr(run, "_run_lesson", run_lesson)
    course = courses.load()
    with pytest.raises(OSError, match="no space is left"):
        run.run_lessons(course, course.chapters[:2], at_once=2)
    assert len(begun) == 2 and "unhandled" not in caplog.text
