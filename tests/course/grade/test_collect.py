"""Submissions as platforms export them; zips that are traps; the roster."""

import io
import os
import zipfile

import pytest

from labkit._common.errors import UserError
from labkit.course.grade.collect import collect
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
    zipped(tmp_path / "outer.zip", [f"week 1/{name}" for name in names])
    for given in ("class", "class.zip", *(["outer.zip"] if layout != "files" else [])):
        found = collect(tmp_path / given)
        assert found.students.keys() == students, given
        assert not any("solutions" in str(each.path) for files in found.files.values() for each in files)


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
    assert any("mallory" in note and "not in the roster" in note for note in found.notes)


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
