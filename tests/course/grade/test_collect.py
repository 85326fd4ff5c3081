"""Submissions as platforms export them; zips that are traps; the roster."""

import io
import os
import zipfile
from pathlib import PurePosixPath

import pytest

from labkit._common.errors import UserError
from labkit.course import registry
from labkit.course.grade.collect import collect, ids_of
from labkit.course.grade.notes import KINDS, Note, lines
from labkit.course.grade.tasks import plan
from tests.course.grade.made_up import function_cells, hand_in, notebook

CELLS = function_cells()


def zipped(path, names, **more) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, more.get("data", notebook(*CELLS)))


LAYOUTS = {
    "nbgrader": (["submitted/alice/00_start_here/00_start_here.ipynb", "submitted/bob/00_start_here/x.ipynb"],
                 {"alice", "bob"}),
    "Moodle, folders": (["Alice A._123_assignsubmission_file_/x.ipynb", "Bob_124_assignsubmission_file_/x.ipynb"],
                        {"123", "124"}),
    "Moodle, files": (["Alice A._123_assignsubmission_file_x.ipynb", "Bob_124_assignsubmission_file_x.ipynb"],
                      {"123", "124"}),
    "Canvas": (["liddellalice_11_900_x.ipynb", "buildersbob_LATE_12_901_x-1.ipynb"], {"11", "12"}),
    "GitHub Classroom": ([f"vectors-{who}/{where}" for who in ("alice", "bob-2") for where in
                          ("exercises/00_start_here.ipynb", "solutions/00_start_here.py", "notebooks/00_x.ipynb")],
                         {"alice", "bob-2"}),
    "folders": (["alice/x.ipynb", "alice/y.py", "bob/deep/er/x.ipynb", "alice/.ipynb_checkpoints/x.ipynb"],
                {"alice", "bob"}),
    "files": (["alice.ipynb", "bob.py"], {"alice", "bob"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_its_students(layout, tmp_path):
    names, students = LAYOUTS[layout]
    for name in names:
        hand_in(tmp_path / "class" / name, *CELLS)
    zipped(tmp_path / "class.zip", names)
    zipped(tmp_path / "week 1.zip", [f"week 1/{name}" for name in names])
    for given in ("class", "class.zip", *(["week 1.zip"] if layout != "files" else [])):
        found = collect(tmp_path / given)
        assert found.students.keys() == students, given
        assert not any("solutions" in str(each.path) for files in found.files.values() for each in files)


# --- Whose a file is -----------------------------------------------------------------------------------------------

# Of each layout: where the files of Mallory, who is first in each, and of Bob are, and their ids.
PLACES = {
    "nbgrader": ("submitted/mallory/00_start_here/{}", "submitted/bob/00_start_here/{}", "mallory", "bob"),
    "Moodle, folders": ("Mallory M._123_assignsubmission_file_/{}", "Bob_124_assignsubmission_file_/{}", "123", "124"),
    "Moodle, files": ("Mallory M._123_assignsubmission_file_{}", "Bob_124_assignsubmission_file_{}", "123", "124"),
    "Canvas": ("mallory_123_900_{}", "bob_124_901_{}", "123", "124"),
    "GitHub Classroom": ("vectors-mallory/exercises/{}", "vectors-bob/exercises/{}", "mallory", "bob"),
    "folders": ("mallory/{}", "bob/{}", "mallory", "bob"),
}
# What names a file of Bob's, in any of them.
FORGED = ["Bob_124_assignsubmission_file_/x.ipynb", "Mallory M._124_assignsubmission_file_/x.ipynb",
          "Bob_124_assignsubmission_file_x.ipynb", "bob_124_901_x.ipynb", "bob/x.ipynb", "bob.ipynb",
          "vectors-bob/exercises/x.ipynb", "submitted/bob/00_start_here/x.ipynb",
          "work/exercises/Bob_124_assignsubmission_file_x.ipynb", "e\u0301\U0001f600_1_2_/bob_124_901_x.ipynb",
          "a\x1bb\u202e/Bob_124_assignsubmission_file_\n.ipynb"]
FUTURE = (2100, 1, 1, 0, 0, 0)


def forged_archive(names) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name, FUTURE), notebook(*CELLS))
    return data.getvalue()


@pytest.mark.parametrize("wrapped", ["", "week 1/"])
@pytest.mark.parametrize("forged", [*FORGED, "all of them in a zip"])
@pytest.mark.parametrize("layout", PLACES)
def test_a_files_name_and_time_give_it_to_no_other_student(layout, forged, wrapped, tmp_path):
    """In a directory, in a zip, and in a zip within either; a file that is newer than all others."""
    mallorys, bobs, mallory, bob = PLACES[layout]
    inside = forged_archive(FORGED) if forged not in FORGED else notebook(*CELLS).encode()
    name = wrapped + mallorys.format(forged if forged in FORGED else "Bob_124_assignsubmission_file_.zip")
    names = {wrapped + mallorys.format("x.ipynb"): notebook(*CELLS).encode(), name: inside,
             wrapped + bobs.format("x.ipynb"): notebook(*CELLS).encode()}
    archive_name, directory = ("week 1.zip", "class/week 1") if wrapped else ("class.zip", "class")
    with zipfile.ZipFile(tmp_path / archive_name, "w") as archive:
        for each, data in names.items():
            archive.writestr(zipfile.ZipInfo(each, FUTURE if each == name else (2026, 1, 1, 0, 0, 0)), data)
            path = tmp_path / "class" / each
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    future = 4e9
    os.utime(tmp_path / "class" / name, (future, future))
    top = PurePosixPath(name).parts[bool(wrapped)]
    shown = "".join("?" if c in "\x1b\u202e\n" else c for c in top.removesuffix(".zip"))
    apart = {shown} if len(ids_of(top)) > 1 else set()
    for given in (directory, archive_name):
        found = collect(tmp_path / given)
        assert found.students.keys() == {mallory, bob} | apart
        assert len(found.files[bob]) == 1 and found.files[bob][0].changed < 3e9
        assert len(found.files[mallory]) == 1 + (0 if apart else 1 if forged in FORGED else len(FORGED))
        notes = [note for note in found.notes if note.kind == "another student"]
        assert notes and {note.student for note in notes} == (apart or {found.students[mallory].shown})


# An only folder of the other layouts may be that of the class: see the test below.
@pytest.mark.parametrize("layout", ["nbgrader", "Moodle, folders", "Moodle, files", "Canvas"])
def test_a_single_student_forges_no_other(layout, tmp_path):
    """One hand-in, all of whose files are named as another's."""
    mallorys, _, mallory, _ = PLACES[layout]
    names = [mallorys.format(f"{who}_assignsubmission_file_/x.ipynb") for who in ("Bob_124", "Carol_125")]
    zipped(tmp_path / "class.zip", names)
    students = {name.split("/")[0] for name in names} if layout == "Moodle, files" else {mallory}
    assert collect(tmp_path / "class.zip").students.keys() == students


@pytest.mark.parametrize("name", ["Bob_124_assignsubmission_file__123_assignsubmission_file_/x.ipynb",
                                  "Bob_124_assignsubmission_file__123_assignsubmission_file_x.ipynb"])
def test_a_name_that_moodle_shows_is_not_believed_to_be_an_id(name, tmp_path):
    """Eve, whose id is 123, calls herself Bob_124_assignsubmission_file_."""
    others = ["Bob_124_assignsubmission_file_/x.ipynb", "Carol_125_assignsubmission_file_/x.ipynb"]
    zipped(tmp_path / "class.zip", [name, *others])
    found = collect(tmp_path / "class.zip")
    assert found.students.keys() == {"124", "125", name.split("/")[0]} and len(found.files["124"]) == 1
    (note,) = found.notes
    assert note.kind == "another student" and "123 and 124" in note.text
    zipped(tmp_path / "own.zip", ["Bob_124_assignsubmission_file_Bob_124_assignsubmission_file_x.ipynb", *others[1:]])
    assert collect(tmp_path / "own.zip").students.keys() == {"124", "125"}  # handed in once more, as it was downloaded


def test_an_only_folder_with_folders_is_a_class_only_if_something_says_so(tmp_path):
    names = ["alice/bob/x.ipynb", "alice/carol/x.ipynb"]
    zipped(tmp_path / "class.zip", names)
    with pytest.raises(UserError, match="holds one folder, alice.*name the archive alice.zip.*submitted.*--roster"):
        collect(tmp_path / "class.zip")
    for name in names:
        hand_in(tmp_path / "class" / name, *CELLS)
    with pytest.raises(UserError, match="give .*class.alice"):
        collect(tmp_path / "class")
    assert collect(tmp_path / "class" / "alice").students.keys() == {"bob", "carol"}
    zipped(tmp_path / "alice.zip", names)
    found = collect(tmp_path / "alice.zip")
    assert found.students.keys() == {"bob", "carol"} and [note.kind for note in found.notes] == ["root"]
    zipped(tmp_path / "sent.zip", [f"submitted/{name}" for name in names])
    assert collect(tmp_path / "sent.zip").students.keys() == {"alice"}
    roster = tmp_path / "roster.csv"
    for ids, students in (("alice", {"alice"}), ("bob", {"bob", "carol"}), ("alice\nbob", {"alice"})):
        roster.write_text(f"id\n{ids}\n")
        assert collect(tmp_path / "class.zip", roster).students.keys() == students
    zipped(tmp_path / "one.zip", ["alice/Bob_124_assignsubmission_file_x.ipynb"])
    assert collect(tmp_path / "one.zip").students.keys() == {"alice"}


# What an only folder, eve, may hold: a class in a folder of its own, or what Eve made to look like one.
LIKE_A_CLASS = {
    "nbgrader": ["submitted/ada/00_start_here/x.ipynb", "submitted/bob/00_start_here/x.ipynb"],
    "nbgrader, one student": ["submitted/ada/00_start_here/x.ipynb"],
    "Moodle, folders": ["Ada_124_assignsubmission_file_/x.ipynb", "Bob_125_assignsubmission_file_/x.ipynb"],
    "Moodle, files": ["Ada_124_assignsubmission_file_x.ipynb", "Bob_125_assignsubmission_file_x.ipynb"],
    "Canvas": ["ada_124_900_x.ipynb", "bob_125_901_x.ipynb"],
    "GitHub Classroom": ["vectors-ada/exercises/x.ipynb", "vectors-bob/exercises/x.ipynb"],
    "folders": ["ada/week1/x.ipynb", "bob/week1/x.ipynb"],
}


@pytest.mark.parametrize("layout", LIKE_A_CLASS)
def test_an_only_folder_is_one_students_whatever_layout_it_holds(layout, tmp_path):
    names = [f"eve/{name}" for name in LIKE_A_CLASS[layout]]
    for archive in ("class", "eve"):
        zipped(tmp_path / f"{archive}.zip", names)
    with pytest.raises(UserError, match="holds one folder, eve, and that holds .*(?i:ada)"):
        collect(tmp_path / "class.zip")
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name\neve,Eve\nada,Ada\nbob,Bob\n")
    found = collect(tmp_path / "class.zip", roster)
    assert found.files.keys() == {"eve"} and {student.id for student in found.missing} == {"ada", "bob"}
    assert {(note.kind, note.student) for note in found.notes} == {("another student", "Eve (eve)")}
    roster.write_text("id,name\nada,Ada\nbob,Bob\n")
    for given in ((tmp_path / "class.zip", roster), (tmp_path / "eve.zip",)):
        found = collect(*given)
        assert len(found.files) == len(names) and "eve" not in found.files
        assert [(note.kind, note.student) for note in found.notes] == [("root", "")]
    zipped(tmp_path / "class.zip", [*names, "carol/x.ipynb"])
    assert collect(tmp_path / "class.zip").files.keys() == {"eve", "carol"}


def test_one_students_folders_do_not_make_a_classroom_of_all(tmp_path):
    zipped(tmp_path / "class.zip", ["cs-alice/x.ipynb", "cs-bob/x.ipynb", "cs-mallory/exercises/x.ipynb"])
    assert collect(tmp_path / "class.zip").students.keys() == {"cs-alice", "cs-bob", "cs-mallory"}


def test_a_stray_file_changes_no_layout(tmp_path):
    for name in ("Alice_123_assignsubmission_file_/x.ipynb", "Bob_124_assignsubmission_file_/x.ipynb", "stray.ipynb"):
        hand_in(tmp_path / name, *CELLS)
    found = collect(tmp_path)
    assert found.students.keys() == {"123", "124", "stray"}
    assert [(note.kind, note.student) for note in found.notes] == [("layout", "stray")]


def test_folders_that_are_shown_alike_stay_apart(tmp_path):
    for name in ("bob", "ev\x1bil", "ev\x02il", os.fsdecode(b"Andr\xe9"), os.fsdecode(b"Andr\xe8")):
        hand_in(tmp_path / name / "x.ipynb", *CELLS)
    found = collect(tmp_path)
    assert found.students.keys() == {"bob", "ev?il", "ev?il [2]", "Andr?", "Andr? [2]"}
    assert all(files[0].path.parts[0] == name and files[0].read() for name, files in found.files.items())


def test_a_name_that_was_chosen_takes_no_place_in_the_roster(tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,name\nm1,Alice\nm2,Bob\n13,Carol\n")
    for name in ("Bob_124_assignsubmission_file_", "Bob_666_assignsubmission_file_", "Alice_1_assignsubmission_file_",
                 "Carol_13_assignsubmission_file_", "Carol_667_assignsubmission_file_"):
        hand_in(tmp_path / "class" / name / "x.ipynb", *CELLS)
    found = collect(tmp_path / "class", roster)
    assert found.students.keys() == {"m1", "13", "124", "666", "667"}
    assert all(len(files) == 1 for files in found.files.values())
    assert sorted(note.student for note in found.notes if note.kind == "same name") == [
        "Bob (124)", "Bob (666)", "Carol (667)"]


# --- Notes ---------------------------------------------------------------------------------------------------------


def test_notes_are_one_line_a_kind_and_student_and_identity_comes_first(tmp_path):
    """An archive with 400 notebooks made 2,400 notes."""
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        for number in range(100):
            archive.writestr(f"alice/{number}.ipynb", notebook(*CELLS))
            archive.writestr(f"bob/{number}.ipynb", "{")
            archive.writestr(f"bob/{number}/Alice_{number}_assignsubmission_file_x.ipynb", notebook(*CELLS))
        archive.writestr("carol/x.ipynb", notebook(*CELLS))
    notes = lines(plan(registry.load(), collect(tmp_path / "class.zip"), b"a secret of the tests").notes)
    assert [note.partition(":")[0] for note in notes] == ["bob", "bob", "alice", "bob"]
    assert "named as another student's file;" in notes[0] and notes[0].endswith("(and 99 more like this)")
    assert "counts, not" in notes[2] and notes[2].endswith("(and 98 more like this)")


def test_lines_say_each_kind_once_for_each_student():
    notes = [Note(kind, f"{number}", student) for number in range(3) for student in ("a", "b") for kind in KINDS[::-1]]
    found = lines(notes)
    assert len(found) == 2 * len(KINDS) and lines(notes[:1]) == ["a: 0"]
    assert found[0] == "a: 0 (and 2 more like this)"


def test_a_chapters_notebook_alone_is_that_of_the_folder(tmp_path):
    hand_in(tmp_path / "alice" / "00_start_here.ipynb", *CELLS)
    assert collect(tmp_path / "alice").students.keys() == {"alice"}


def test_a_students_folder_may_hold_a_zip(tmp_path):
    (tmp_path / "class" / "alice").mkdir(parents=True)
    zipped(tmp_path / "class" / "alice" / "mine.zip", ["exercises/x.ipynb"])
    hand_in(tmp_path / "class" / "bob" / "x.ipynb", *CELLS)
    found = collect(tmp_path / "class")
    assert found.students.keys() == {"alice", "bob"} and found.files["alice"][0].read()


def test_the_newest_file_is_last(tmp_path):
    for name, changed in (("new", 2_000_000_000), ("old", 1_000_000_000)):
        os.utime(hand_in(tmp_path / "alice" / f"{name}.ipynb", *CELLS), (changed, changed))
    assert [each.path.stem for each in collect(tmp_path).files["alice"]] == ["old", "new"]


def trap(path, kind: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("alice/x.ipynb", notebook(*CELLS))
        if kind == "out of it":
            archive.writestr("../../evil.ipynb", notebook(*CELLS))
            archive.writestr("/tmp/evil.ipynb", notebook(*CELLS))
            archive.writestr("..\\evil.ipynb", notebook(*CELLS))
        if kind == "a link":
            link = zipfile.ZipInfo("bob/link.ipynb")
            link.external_attr = 0o120777 << 16
            archive.writestr(link, "/etc/passwd")
        if kind == "a bomb":
            archive.writestr("bob/x.ipynb", b"0" * (20 << 20))
        if kind == "a zip in a zip in a zip":
            inner = b""
            for name in ("x.ipynb", "a.zip", "b.zip"):
                data = io.BytesIO()
                with zipfile.ZipFile(data, "w") as again:
                    again.writestr(name, inner or notebook(*CELLS))
                inner = data.getvalue()
            archive.writestr("bob/c.zip", inner)
        if kind == "no zip":
            archive.writestr("bob/c.zip", b"PK\x03\x04 nonsense")


@pytest.mark.parametrize("kind", ["out of it", "a link", "a bomb", "a zip in a zip in a zip", "no zip"])
def test_a_trap_is_left_out_and_named(kind, tmp_path):
    trap(tmp_path / "class.zip", kind)
    found = collect(tmp_path / "class.zip")
    assert found.students.keys() == {"alice"} and found.notes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["class.zip"]


def test_links_are_not_followed(tmp_path):
    hand_in(tmp_path / "class" / "alice" / "x.ipynb", *CELLS)
    hand_in(tmp_path / "elsewhere" / "x.ipynb", *CELLS)
    (tmp_path / "class" / "bob").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "class" / "alice" / "y.ipynb").symlink_to(tmp_path / "elsewhere" / "x.ipynb")
    os.mkfifo(tmp_path / "class" / "alice" / "z.ipynb")
    found = collect(tmp_path / "class")
    assert [len(files) for files in found.files.values()] == [1] and len(found.notes) == 3


def test_a_name_cannot_hold_what_cannot_be_shown(tmp_path):
    hand_in(tmp_path / "ev\x1b[2Jil\u202e" / "x.ipynb", *CELLS)
    hand_in(tmp_path / "bob" / "x.ipynb", *CELLS)
    assert collect(tmp_path).students.keys() == {"ev?[2Jil?", "bob"}


def test_the_roster_gives_ids_and_finds_who_is_missing(tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("\ufeffID,Name,Email\nm1,Alice Liddell,a@x.org\nm2,Bob,bob@x.org\nm3,Carol,c@x.org\n")
    hand_in(tmp_path / "class" / "liddellalice_11_900_x.ipynb", *CELLS)
    hand_in(tmp_path / "class" / "bob_12_901_x.ipynb", *CELLS)
    hand_in(tmp_path / "class" / "mallory_13_902_x.ipynb", *CELLS)
    found = collect(tmp_path / "class", roster)
    assert found.students.keys() == {"m1", "m2", "13"}
    assert [student.id for student in found.missing] == ["m3"]
    assert any("mallory" in note and "not in the roster" in note for note in lines(found.notes))


@pytest.mark.parametrize(("text", "message"), [
    ("name\nalice\n", "no column 'id'"), ("id\n1\n1\n", "an id twice"), (b"id\n\xff\n", "not UTF-8")])
def test_a_wrong_roster_is_named(text, message, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_bytes(text if isinstance(text, bytes) else text.encode())
    hand_in(tmp_path / "class" / "a.ipynb", *CELLS)
    with pytest.raises(UserError, match=message):
        collect(tmp_path / "class", roster)


def test_a_folder_without_submissions_is_named(tmp_path):
    with pytest.raises(UserError, match="not there"):
        collect(tmp_path / "nothing")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UserError, match="holds no submissions"):
        collect(tmp_path)
    with pytest.raises(UserError, match="neither a folder nor a .zip"):
        collect(tmp_path / "x.txt")
