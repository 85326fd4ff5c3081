"""Lessons in Google Colab: the badge, the cell that installs, and what its GPU can run.

Both take the address of the repository, which pyproject.toml gives; without one there is neither badge nor cell. A
notebook gets its cell when it is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.course.notebooks import import_nbformat
from labkit.course.registry import Chapter, Course

GPU, CAPABILITY = "Tesla T4", (7, 5)  # what Colab gives for nothing
BRANCH = "main"
SETUP = "install-on-colab"  # the id of the cell that add_setup adds


def notebook_url(repository: str, path: str) -> str:
    """Where Colab opens a notebook of the repository. path: such as notebooks/01_vector_add.ipynb."""
    return f"{repository.replace('https://github.com/', 'https://colab.research.google.com/github/')}/blob/{BRANCH}/{path}"


def setup_source(repository: str) -> str:
    """The first cell of a notebook. It is plain Python: what reads notebooks here parses their cells."""
    return (
        "# Google Colab and Kaggle only: fetches the course and installs it. Anywhere else this cell does nothing.\n"
        "import os\n"
        "import sys\n"
        "\n"
        'if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:\n'
        "    import subprocess\n"
        "\n"
        '    course = "/content/course" if os.path.isdir("/content") else "/tmp/course"\n'
        "    if not os.path.isdir(course):\n"
        '        print("Fetching the course ...")\n'
        f'        clone = ["git", "clone", "-q", "--depth", "1", "{repository}", course]\n'
        "        git = subprocess.run(clone, capture_output=True, text=True)\n"
        "        if git.returncode:\n"
        '            raise RuntimeError(f"The course could not be fetched. {git.stderr}")\n'
        "    sys.path.insert(0, course)  # an editable install is seen by the next Python process only\n"
        "    from labkit.course import hosted\n"
        "\n"
        "    hosted.install(course)"
    )


def add_setup(notebook, repository: str) -> None:
    """Put the cell that installs before the others; without an address the notebook stays as it is."""
    if not repository:
        return
    cell = import_nbformat().v4.new_code_cell(setup_source(repository))
    cell["id"] = SETUP
    notebook.cells.insert(0, cell)


# --- What a GPU of that compute capability can run --------------------------------------------------------------------


@dataclass(frozen=True)
class LeftOut:
    """A rung that the GPU cannot run. needs: "8.0", "9.0 exactly"."""

    operation: str
    rung: str
    needs: str


@dataclass(frozen=True)
class Ability:
    """What a lesson's operations are, and which of their rungs need a newer GPU."""

    chapter: Chapter
    rungs: int
    left_out: tuple[LeftOut, ...]


def operations(chapter: Chapter) -> tuple[str, ...]:
    """The operations that a lesson names in its code: MATMUL_HALF is the operation matmul_half."""
    code = "\n".join(line for line in chapter.source_text().splitlines() if not line.startswith("#"))
    if not re.search(r"\b(?:from|import) labkit\b", code):
        return ()
    from labkit.measure import ops

    words = set(re.findall(r"\b[A-Z][A-Z0-9_]*\b", code))
    return tuple(name for name in ops.HOMES if name.upper() in words)


def ability(chapter: Chapter, capability: tuple[int, int] = CAPABILITY) -> Ability:
    """By what the rungs declare (`needs`)."""
    names = operations(chapter)
    if not names:
        return Ability(chapter, 0, ())
    from labkit.measure import ops

    rungs = [(name, rung) for name in names for rung in ops.op(name).rungs]
    left_out = tuple(LeftOut(name, rung.__name__, needs_text(rung.needs)) for name, rung in rungs
                     if not runs(rung.needs, capability))
    return Ability(chapter, len(rungs), left_out)


def runs(needs: tuple | None, capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability runs what needs that one; (9, 0, "a") exists on 9.0 alone."""
    if needs is None:
        return True
    return capability == tuple(needs[:2]) or (len(needs) == 2 and capability > tuple(needs))


def needs_text(needs: tuple) -> str:
    return f"{needs[0]}.{needs[1]}{' exactly' if len(needs) > 2 else ''}"


def abilities(course: Course) -> tuple[Ability, ...]:
    """Those of the lessons that name operations."""
    results = (ability(chapter) for chapter in course.chapters if chapter.source.is_file())
    return tuple(each for each in results if each.rungs)
