"""Lessons in Google Colab: the badge, and the cell that installs.

Both take the address of the repository, which pyproject.toml gives; without one there is neither badge nor cell. A
notebook gets its cell when it is built.
"""

from __future__ import annotations

from labkit.course.notebooks import import_nbformat

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
