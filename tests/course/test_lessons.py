"""A lesson that uses labkit as the real ones do, executed on this machine's device, down to its result and its page."""

from labkit.course import execution, site
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


def test_a_lesson_with_real_results(course_dir):
    (course_dir / "notebooks" / "00_first.py").write_text(LESSON)
    course = courses.load(course_dir)
    result = run.run_lesson(course, course.chapters[0])
    assert result.passed, result.problem
    assert 0 < result.max_error < 1e-5
    assert "vector_add_per_thread_kernel" in result.kernels

    _, notebook = run.kept(course, course.chapters[0])
    assert [shown["kind"] for shown in execution.results(notebook)] == ["agreement", "ladder"]
    # Each cell shows one thing: a table that prints itself as well would be there twice.
    assert [len(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"] == [1, 1, 1, 1]

    page = (site.write(course).parent / "00_first.html").read_text()
    assert '<div class="labkit-source">' in page
    assert 'src="images/00_first-1.png"' in page
    assert str(course_dir) not in page
