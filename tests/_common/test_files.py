"""A file is written whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from labkit._common.files import write_text


def test_the_old_text_stays_until_the_new_one_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "file.txt"
    write_text(path, "old\n")
    seen = []
    real = os.replace

    def replace(source, target):
        seen.append((Path(source).read_bytes(), path.read_text(), Path(source).parent))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_text(path, "neu: ü\n")
    assert seen == [("neu: ü\n".encode(), "old\n", path.parent)]  # a rename within a folder is one step
    assert path.read_bytes() == "neu: ü\n".encode()
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_others_may_read_it(tmp_path):
    write_text(tmp_path / "file", "text")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text(path, "old")

    def full(source, target):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="full"):
        write_text(path, "new")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
