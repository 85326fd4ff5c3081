"""The learner's own copies, which git ignores: work/lessons/NN_topic.ipynb and work/exercises/NN_topic.ipynb.

A copy begins without outputs, so that no answer is seen before its prediction. When the course changes, the copy is
regenerated and the learner's cells are merged into it. When chapters are renumbered or split, copies under old names
follow their chapters, and each answer moves to the notebook that its exercise is in now. Answers written into
exercises/NN_topic.ipynb are carried over, and that file stays as it is. A replaced file is first copied to
.labkit/backups; each file is written atomically, and the next command completes interrupted work.

The learner's changes are recognized by cell ids: those of cells as given are the digests of their content.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path

from labkit._common.files import locked, read_json, write_text
from labkit.course import notebooks, progress, prose, static_view, workbooks
from labkit.course.answer_cells import checked_name
from labkit.course.notebooks import back_up, cell_digest, cells_sha256, edited, read_notebook, write_notebook
from labkit.course.registry import Chapter, Course, CourseError, shown

CARRIED = "carried.json"  # in .labkit: which answers of exercises/*.ipynb were taken over


def lesson(course: Course, chapter: Chapter, *, clean: bool = False) -> list[str]:
    """Make the learner's copy of a lesson, or bring it up to date. Returns what the learner should know, in sentences.

    clean: begin again. The copy that was there is kept in .labkit/backups.
    """
    path = chapter.own_lesson
    with _writing(course):
        learner_copy = read_notebook(path)
        if learner_copy is not None and progress.was_run(learner_copy):
            progress.note_finished(course, [chapter])
        if path.is_file() and (clean or learner_copy is None):
            removed = _remove_with_backup(course, path)
            _update(course, path, prose.to_notebook(chapter))
            why = "" if clean else ", since yours could not be read"
            return [f"{shown(course, path)} is a clean copy{why}.{_backup_note(course, removed)}"]
        if learner_copy is not None and _is_of(learner_copy, notebooks.sha256(chapter.source_text())):
            return []
        others = [] if path.is_file() else _edited_lessons(course, chapter)
        backup, _ = _update(course, path, prose.to_notebook(chapter), others)
        return _updated(course, path, backup)


def workbook(course: Course, chapter: Chapter) -> list[str]:
    """The same for the chapter's exercises. A copy that cannot be read is left for `labkit reset`."""
    with _writing(course):
        path = chapter.own_workbook
        learner_copy = read_notebook(path)
        if path.is_file() and (learner_copy is None or _is_of(learner_copy, workbooks.digest(course, chapter))):
            return []
        backup, _ = _update(course, path, workbooks.to_notebook(course, chapter, markers=False))
        return _updated(course, path, backup)


def learners(course: Course, chapter: Chapter):
    """The learner's workbook as it is, without changing a file: their copy, else what they wrote into exercises/, else
    the exercises as given. An error in a sentence where it cannot be read."""
    path = chapter.own_workbook
    if not path.is_file():
        if not edited(chapter.workbook):
            return workbooks.to_notebook(course, chapter, markers=False)
        path = chapter.workbook
    notebook = read_notebook(path)
    if notebook is None:
        raise CourseError(f"{shown(course, path)} cannot be read: labkit reset {chapter.number} gives you the "
                          "exercises afresh and keeps that file")
    return notebook


def arrange(course: Course) -> list[str]:
    """Bring copies that have the name of an earlier chapter to where they belong, and take over answers that were
    written into exercises/*.ipynb. Returns what the learner should know, in sentences; none if nothing was to do."""
    names = {chapter.name for chapter in course.chapters}
    work = course.root / "work"
    old = {folder: [path for path in sorted((work / folder).glob("*.ipynb")) if path.stem not in names]
           for folder in ("lessons", "exercises")}
    if not any(old.values()) and not _changed(course, _carried(course)):
        return []
    with _writing(course):
        messages = [sentence for path in old["lessons"] for sentence in _move_lesson(course, path)]
        messages += [sentence for path in old["exercises"] for sentence in _move_workbook(course, path)]
        return messages + _carry_over(course)


# --- Moving and carrying over --------------------------------------------------------------------------------------


def _move_lesson(course: Course, path: Path) -> list[str]:
    """A copy of a lesson whose chapter has another name now."""
    targets, learner_copy = course.called(path.stem), read_notebook(path)
    if not targets or learner_copy is None:
        return []
    if progress.was_run(learner_copy):
        progress.note_finished(course, targets)
    own = targets[0].own_lesson
    _update(course, own, prose.to_notebook(targets[0]), [(learner_copy, _is_newer(path, own))])
    return [f"{shown(course, path)} is now {shown(course, own)}."
            f"{_backup_note(course, _remove_with_backup(course, path))}"]


def _move_workbook(course: Course, path: Path) -> list[str]:
    """A copy of exercises that are in a chapter of another name now, or in several."""
    learner_copy = read_notebook(path)
    if learner_copy is None:
        return []
    homes = {entry.name: entry.chapter for entry in course.exercises}
    chapters = list(dict.fromkeys(homes[name] for name in _zones(learner_copy) if name in homes))
    if not chapters:
        return []
    _distribute(course, path, learner_copy, chapters, homes)
    new_paths = " and ".join(shown(course, chapter.own_workbook) for chapter in chapters)
    return [f"{shown(course, path)} is now {new_paths}.{_backup_note(course, _remove_with_backup(course, path))}"]


def _distribute(course: Course, path: Path, learner_copy, chapters: Iterable[Chapter], only: Iterable[str]
                ) -> list[str]:
    """Put what the learner wrote in `learner_copy`, the notebook at `path`, for the exercises `only`,
    into the copies of these chapters. Return the exercises that have a newer answer there."""
    not_replaced = []
    for chapter in chapters:
        own = {entry.name for entry in course.exercises_of(chapter)}
        not_replaced += _update(course, chapter.own_workbook, workbooks.to_notebook(course, chapter, markers=False),
                                [(learner_copy, _is_newer(path, chapter.own_workbook))],
                                takes=lambda zone, shared, own=own: (shared or zone in own) and zone in only)[1]
    return not_replaced


def _carry_over(course: Course) -> list[str]:
    """Take over what was written into exercises/*.ipynb since the last time."""
    known, messages = _carried(course), []
    homes = {entry.name: entry.chapter for entry in course.exercises}
    for path in _changed(course, known):
        stamp, learner_copy = _stamp(path), read_notebook(path) if edited(path) else None
        previous = known.get(path.name, {}).get("answers", {})
        answers = {}
        if learner_copy is not None:
            answers = {name: digest for name, digest in written(learner_copy).items() if name in homes}
            new = [name for name, digest in answers.items() if previous.get(name) != digest]
            chapters = list(dict.fromkeys(homes[name] for name in new))
            not_replaced = _distribute(course, path, learner_copy, chapters, new)
            if moved := [name for name in new if name not in not_replaced]:
                new_paths = " and ".join(dict.fromkeys(shown(course, homes[name].own_workbook) for name in moved))
                messages.append(f"What you wrote in exercises/{path.name} ({', '.join(moved)}) is now in "
                                f"{new_paths}, which is the copy that is checked.")
            if not_replaced:
                messages.append(f"exercises/{path.name} has an older answer to {', '.join(not_replaced)} than your "
                                "copy in work/, which stays.")
        known[path.name] = {"stamp": stamp, "answers": {**previous, **answers}}
        if answers:
            _remember(course, known)
    _remember(course, known)
    return messages


def _remember(course: Course, known: dict) -> None:
    write_text(course.state_dir / CARRIED, json.dumps(known, indent=2) + "\n")


def _carried(course: Course) -> dict:
    try:
        known = read_json(course.state_dir / CARRIED)
    except (OSError, ValueError):
        return {}
    return {name: about for name, about in known.items()
            if isinstance(about, dict) and isinstance(about.get("answers"), dict)}


def _changed(course: Course, known: dict) -> list[Path]:
    """The notebooks of exercises/ that were saved since they were last looked at."""
    return [path for path in sorted((course.root / "exercises").glob("*.ipynb"))
            if known.get(path.name, {}).get("stamp") != _stamp(path)]


def _stamp(path: Path) -> list[int]:
    state = path.stat()
    return [state.st_mtime_ns, state.st_size]


def _edited_lessons(course: Course, chapter: Chapter) -> list:
    """notebooks/NN_topic.ipynb, under this name or an earlier one, where the learner has worked in it. The outputs that
    the course ships with it are left out."""
    found = []
    for path in sorted((course.root / "notebooks").glob("*.ipynb")):
        if chapter in course.called(path.stem) and edited(path) and (notebook := read_notebook(path)) is not None:
            if not static_view.was_run_since(path):
                notebooks.clear_outputs(notebook)
            found.append((notebook, False))
    return found


# --- One copy ------------------------------------------------------------------------------------------------------


def _update(course: Course, path: Path, fresh, others: Iterable = (), takes: Callable = lambda zone, shared: True
            ) -> tuple[Path | None, list[str]]:
    """Write `fresh` to `path` with what the learner wrote there, and what they wrote in `others`, notebooks each with
    whether it is newer. Returns the backup, if one was made, and the exercises of whose answers the one there stays."""
    learner_copy, not_replaced = read_notebook(path), []
    result = copy.deepcopy(fresh)
    given = {cell_digest(cell) for cell in fresh.cells if _has_first_id(cell)}
    result.metadata.setdefault("labkit", {})["given"] = sorted(given)
    if learner_copy is not None:
        _merge(result, learner_copy, given, takes=lambda zone, shared: True, replace=True)
        result.metadata.update({name: value for name, value in learner_copy.metadata.items() if name != "labkit"})
    for other, newer in others:
        not_replaced += _merge(result, other, given, takes=takes, replace=newer)
    if learner_copy is not None and _contents(learner_copy) == _contents(result):
        if learner_copy.metadata.get("labkit") != result.metadata["labkit"]:
            learner_copy.metadata["labkit"] = result.metadata["labkit"]
            write_notebook(learner_copy, path)
        return None, not_replaced
    backup = back_up(course, path) if path.is_file() and (learner_copy is None or _has_work(learner_copy)) else None
    write_notebook(result, path)
    return backup, not_replaced


def _merge(result, learner_copy, given: set[str], *, takes: Callable, replace: bool) -> list[str]:
    """Put the cells that the learner wrote in `learner_copy` into `result`: an answer in its exercise's place, a
    changed cell in place of the original, any other after the cell that it follows.

    given: digests of the cells of `result` as the course gives them. takes(exercise, shared): whether cells of its part
    are wanted; `shared` ones stand above every answer, as imports do. replace: whether an answer takes the place of
    another one of the learner's. Returns the exercises for which it did not.
    """
    by_part = {_part(cell): cell for cell in result.cells if _part(cell)[0]}
    by_id = {cell.get("id"): cell for cell in result.cells if not _part(cell)[0]}
    by_digest = {cell_digest(cell): cell for cell in result.cells}
    known = given | by_digest.keys() | set(learner_copy.metadata.get("labkit", {}).get("given", []))
    parts = [_part(cell) if _part(cell)[0] else _guessed_part(learner_copy, cell) for cell in learner_copy.cells]
    first_answer = next((k for k, (_, role) in enumerate(parts) if role), 0)
    not_replaced, anchor, last_zone, above_answer = [], None, "", True
    for k, (cell, part, zone) in enumerate(zip(learner_copy.cells, parts, _zones(learner_copy), strict=True)):
        name, role = part
        if zone != last_zone:
            anchor = anchor if (last_zone, "check") in by_part else None
            last_zone, above_answer = zone, (zone, "answer") in by_part
        above_answer = above_answer and role != "answer"
        target = by_part.get(part) or by_id.get(cell.get("id")) or by_digest.get(cell_digest(cell))
        if role == "check" or _as_given(cell, known):
            if target is not None and role != "check" and _is_same(cell, target):
                _keep_outputs(target, cell)
            elif target is None and above_answer:  # such as a changed heading: the cells below it stay there
                anchor = None
        elif not takes(name or zone, k < first_answer and cell.cell_type == "code"):
            continue
        elif role == "answer":
            if target is None:
                continue
            if not replace and cell_digest(target) not in given:
                not_replaced.append(name)
            else:
                _replace(target, cell)
        elif target is not None and cell_digest(target) in given:
            _replace(target, cell)
        else:
            below = target if target is not None else anchor
            target = _insert(result, cell, below, by_part.get((zone, "answer")))
        anchor = target if target is not None else anchor
    return not_replaced


def _is_same(cell, other) -> bool:
    return (cell.cell_type, cell.source) == (other.cell_type, other.source)


def _keep_outputs(target, cell) -> None:
    if cell.cell_type == "code":
        target["outputs"], target["execution_count"] = cell.outputs, cell.execution_count


def _replace(target, cell) -> None:
    """Make the cell `place` of a notebook the learner's `cell`. What the course notes about it stays."""
    cell_id, metadata = target["id"], target.metadata
    target.clear()
    target.update(copy.deepcopy(cell))
    target["id"] = cell_id
    target.metadata.update(metadata)


def _insert(notebook, cell, below, answer):
    """Insert the learner's cell below the cell `below`; else above the cell `answer`; else at the top."""
    new = copy.deepcopy(cell)
    ids = {each.get("id") for each in notebook.cells}
    base, suffix = new.get("id") or f"own-{cell_digest(new)}", 1
    new["id"] = base
    while new["id"] in ids:
        suffix += 1
        new["id"] = f"{base}-{suffix}"
    index = _index(notebook, below) + 1 if below is not None else _index(notebook, answer) if answer is not None else 0
    notebook.cells.insert(index, new)
    return new


def _index(notebook, cell) -> int:
    return next(k for k, each in enumerate(notebook.cells) if each is cell)


def _part(cell) -> tuple[str, str]:
    """(exercise, role), or ("", "")."""
    about = cell.metadata.get("labkit", {})
    return (about["exercise"], about["role"]) if {"exercise", "role"} <= about.keys() else ("", "")


def _guessed_part(notebook, cell) -> tuple[str, str]:
    """The part of a cell that has lost its metadata in another editor: the one with check(...), and the last code cell
    above it where no cell is marked as the answer."""
    if cell.cell_type != "code":
        return "", ""
    if name := checked_name(cell.source):
        return name, "check"
    code = [each for each in notebook.cells if each.cell_type == "code" and each.source.strip()]
    if not any(each is cell for each in code) or code[-1] is cell:
        return "", ""
    below = code[next(k for k, each in enumerate(code) if each is cell) + 1]
    name = checked_name(below.source)
    if name and not any(_part(each) == (name, "answer") for each in notebook.cells):
        return name, "answer"
    return "", ""


def _zones(notebook) -> list[str]:
    """Return the exercise of each cell: that of the next check(...) at or below it, or of the last one for cells
    below it; "" where there is none."""
    zones: list[str] = []
    last = ""
    for cell in notebook.cells:
        name = checked_name(cell.source) if cell.cell_type == "code" else None
        zones.append("")
        if name:
            zones = [zone or name for zone in zones]
            last = name
    return [zone or last for zone in zones]


def written(notebook) -> dict[str, str]:
    """Exercise -> the digest of what the learner wrote for it, where there is something."""
    given = set(notebook.metadata.get("labkit", {}).get("given", []))
    parts: dict[str, list[str]] = {}
    for cell, zone in zip(notebook.cells, _zones(notebook), strict=True):
        name, role = _part(cell)
        if zone and role != "check" and not _as_given(cell, given):
            parts.setdefault(name or zone, []).append(cell_digest(cell))
    return {name: notebooks.sha256("\0".join(digests))[:12] for name, digests in parts.items()}


def _has_first_id(cell) -> bool:
    return cell.get("id", "").partition("-")[0] == cell_digest(cell)


def _as_given(cell, given: set[str]) -> bool:
    return not cell.source.strip() or _has_first_id(cell) or cell_digest(cell) in given


def _contents(notebook) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells if cell.source.strip()]


def _has_work(notebook) -> bool:
    """Whether the learner has changed a cell, or run one."""
    about = notebook.metadata.get("labkit", {})
    return about.get("cells_sha256") != cells_sha256(notebook) or any(
        cell.execution_count is not None for cell in notebook.cells if cell.cell_type == "code")


def _is_of(notebook, digest: str) -> bool:
    return notebook.metadata.get("labkit", {}).get("source_sha256") == digest


def _is_newer(path: Path, other: Path) -> bool:
    return not other.is_file() or path.stat().st_mtime_ns > other.stat().st_mtime_ns


def _remove_with_backup(course: Course, path: Path) -> Path | None:
    """Take a copy away. It is kept in .labkit/backups unless it is as it was given."""
    notebook = read_notebook(path)
    backup = back_up(course, path) if notebook is None or _has_work(notebook) else None
    path.unlink()
    return backup


@contextmanager
def _writing(course: Course):
    """One process at a time, and an error in a sentence where the disk refuses."""
    try:
        with locked(course.state_dir / "copies"):
            yield
    except OSError as error:
        raise CourseError(f"{error.filename or course.root / 'work'} cannot be written: {error.strerror or error}. "
                          "Your copies are kept in work/ and .labkit/: both must be folders that you may write to"
                          ) from None


def _backup_note(course: Course, backup: Path | None) -> str:
    return f" What was there is kept as {shown(course, backup)}." if backup else ""


def _updated(course: Course, path: Path, backup: Path | None) -> list[str]:
    if backup is None:
        return []
    return [f"The course has a newer {shown(course, path)}: what you wrote is in it.{_backup_note(course, backup)}"]
