"""A source and its notebook: parsed, labelled with hashes, read, written, cleaned of what belongs to this machine.

People write notebooks/NN_topic.py (jupytext py:percent); notebooks/NN_topic.ipynb carries the sha256 of its source.
"""

import hashlib
import os
import re
import shutil
import sys
from datetime import datetime
from functools import cache
from pathlib import Path

from labkit._common.files import read_json, write_text
from labkit._common.version import __version__
from labkit.course.registry import Course, CourseError

NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDED = "hide-input"  # the tag of a code cell that only plots or lays out, as Jupyter Book has it


@cache
def import_nbformat():
    """Import nbformat without the web-address grammar that jsonschema builds if rfc3987_syntax is installed: it takes
    two seconds, and no notebook schema uses it."""
    grammar = "rfc3987_syntax"
    absent = grammar not in sys.modules
    if absent:
        sys.modules[grammar] = None
    try:
        import nbformat
    finally:
        if absent:
            del sys.modules[grammar]
    return nbformat


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def cells_sha256(notebook) -> str:
    """The hash of what a person can edit: the cells' types and sources, not their outputs."""
    return sha256("\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells))


def cell_digest(cell) -> str:
    """The same of one cell, in 12 digits."""
    return sha256(f"{cell.cell_type}\0{cell.source}")[:12]


def parse(text: str, name: str):
    """A py:percent source as a notebook, with stable cell ids. The code of a cell with the tag FOLDED is collapsed."""
    import_nbformat()  # as jupytext does
    import jupytext

    try:
        notebook = jupytext.reads(text, fmt="py:percent")
    except Exception as error:  # jupytext and nbformat raise what they like
        reason = str(error).splitlines()[0]
        raise CourseError(f"{name} cannot be read as a py:percent source: {reason}") from None
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        if FOLDED in cell.metadata.get("tags", []):
            if "@cuda.jit" in cell.source:
                raise CourseError(f"{name}: a cell tagged {FOLDED} must not define a kernel, which is there to be read")
            cell.metadata["jupyter"] = {"source_hidden": True}
    name_cells(notebook)
    return notebook


def name_cells(notebook) -> None:
    """Ids made from the cells' content, so that a cell inserted above changes no other cell's id."""
    seen: dict[str, int] = {}
    for cell in notebook.cells:
        digest = cell_digest(cell)
        seen[digest] = seen.get(digest, 0) + 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def label(notebook, source: str, digest: str) -> None:
    """Write into the metadata what the notebook was built from."""
    notebook.metadata.clear()
    notebook.metadata.update(
        NOTEBOOK_METADATA,
        labkit={
            "source": source,
            "source_sha256": digest,
            "cells_sha256": cells_sha256(notebook),
            "labkit_version": __version__,
        },
    )


def cell_lines(source_text: str) -> list[int]:
    """The line numbers (from 1) of the `# %%` markers of code: the notebook's n-th code cell starts below the n-th."""
    return [number for number, line in enumerate(source_text.splitlines(), 1)
            if re.match(r"# ?%%(\s|$)", line) and not re.search(r"\[(markdown|md|raw)\]", line)]


def read_notebook(path: Path):
    """The notebook at `path`, or None where there is none that can be read."""
    nbformat = import_nbformat()
    try:
        read_json(path)  # half of a surrogate pair, too: nbformat lets it pass, and nothing can write it
        notebook = nbformat.read(path, as_version=4)
        return notebook if _is_well_formed(notebook) else None
    except Exception:  # nbformat raises whatever its JSON and schema layers raise
        return None


def _is_well_formed(notebook) -> bool:
    """Whether everything that is read of a notebook here is there, and of its type. Not the whole of nbformat's schema:
    a notebook that breaks it somewhere else is still the learner's work."""

    def is_own(metadata) -> bool:
        own = metadata.get("labkit", {})
        return isinstance(own, dict) and all(isinstance(own.get(name, {}), dict) for name in ("kernels", "recordings"))

    def is_output(output) -> bool:
        return isinstance(output, dict) and isinstance(output.get("output_type"), str)

    def is_cell(cell) -> bool:
        return (isinstance(cell.cell_type, str) and isinstance(cell.source, str) and isinstance(cell.metadata, dict)
                and isinstance(cell.metadata.get("tags", []), list) and is_own(cell.metadata)
                and isinstance(cell.get("id", ""), str)
                and (cell.cell_type != "code" or ("execution_count" in cell and all(map(is_output, cell.outputs)))))

    return (isinstance(notebook.metadata, dict) and is_own(notebook.metadata) and isinstance(notebook.cells, list)
            and all(map(is_cell, notebook.cells)))


def write_notebook(notebook, path: Path) -> None:
    """Write atomically: a reader sees the old file or the new one, never half of one."""
    nbformat = import_nbformat()
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise CourseError(f"{path.name} is no notebook that Jupyter would open: {str(error).splitlines()[0]}") from None
    write_text(path, nbformat.writes(notebook) + "\n")


def scrub(notebook, root: Path) -> None:
    """Take out of the outputs what belongs to this machine and this run: paths, addresses, execution counts."""
    prefixes = sorted({f"{root}{os.sep}", f"{sys.prefix}{os.sep}", f"{Path.home()}{os.sep}"}, key=len, reverse=True)

    def clean(text: str) -> str:
        for prefix in prefixes:
            text = text.replace(prefix, "")
        text = re.sub(r"(/[^\s'\"<>]*)?/ipykernel_\d+/\d+\.py", "cell.py", text)
        return re.sub(r"\bat 0x[0-9a-fA-F]+", "at 0x...", text)

    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        cell["execution_count"] = None
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output["execution_count"] = None
            if output.output_type == "stream":
                output["text"] = clean(output["text"])
            if output.output_type == "error":
                output["traceback"] = [clean(line) for line in output["traceback"]]
                output["evalue"] = clean(output["evalue"])
            for mime, value in output.get("data", {}).items():
                if isinstance(value, str) and (mime.startswith("text/") or mime == "image/svg+xml"):
                    output["data"][mime] = clean(value)


def clear_outputs(notebook) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell["outputs"], cell["execution_count"] = [], None


def edited(path: Path) -> bool:
    """Whether the notebook's cells are not the ones `labkit build` wrote: a learner has worked in it."""
    notebook = read_notebook(path)
    if notebook is None:
        return path.is_file()  # there, but unreadable: keep it
    return notebook.metadata.get("labkit", {}).get("cells_sha256") != cells_sha256(notebook)


def back_up(course: Course, path: Path) -> Path:
    """Copy the notebook to .labkit/backups, under a name that no earlier copy has."""
    copy = backup_path(course, path)
    shutil.copy2(path, copy)
    return copy


def backup_path(course: Course, path: Path) -> Path:
    """A name in .labkit/backups that no earlier copy of the file has."""
    folder = course.state_dir / "backups"
    if path.parent.name not in ("notebooks", course.state_dir.name):
        folder /= path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    copy, suffix = folder / f"{path.stem}-{stamp}{path.suffix}", 1
    while copy.exists():
        suffix += 1
        copy = folder / f"{path.stem}-{stamp}-{suffix}{path.suffix}"
    return copy
