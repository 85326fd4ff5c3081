"""A file is written whole or not at all, and one that cannot be read is named."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from labkit._common import files
from labkit._common.errors import UserError, refusal, short
from labkit._common.files import FileError, locked, read_json, whole_file, whole_folder, write_text


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


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
def test_a_file_that_is_stopped_half_way_is_as_if_nothing_had_begun(tmp_path, stop):
    path = tmp_path / "deep" / "out.npy"
    for before in (None, b"old"):
        if before:
            path.write_bytes(before)
        with pytest.raises(stop), whole_file(path) as file:
            file.write(b"half of it")
            raise stop
        assert [file.name for file in path.parent.iterdir()] == ([path.name] if before else [])
    assert path.read_bytes() == b"old"


def test_a_folder_comes_whole_or_not_at_all(tmp_path):
    path = tmp_path / "models" / "one"
    with whole_folder(path) as fresh:
        (fresh / "a").write_text("first")
        assert not path.exists() and fresh.parent == path.parent
    with pytest.raises(KeyboardInterrupt), whole_folder(path) as fresh:
        (fresh / "a").write_text("half")
        raise KeyboardInterrupt
    assert (path / "a").read_text() == "first"
    with whole_folder(path) as fresh:
        (fresh / "b").write_text("second")
    assert [file.name for file in path.iterdir()] == ["b"]
    assert [folder.name for folder in path.parent.iterdir()] == ["one"]
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o755


# --- Reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "message"), [
    (b"\xff{}", "no text in UTF-8: the byte at 0 is 0xff"), (b"", "no JSON: Expecting value"), (b"[1]", "must hold an "
     r"object, {...}; it holds a list"), (b"null", "it holds null"), (b"3", "it holds a number"),
    (b'{"a":' * 100_000, "nested too deeply"), (b'{"a": ' + b"1" * 5000 + b"}", "no JSON: Exceeds the limit"),
    (b'{"a": "\\ud83d"}', "half of a surrogate pair"), (b'{"\\uDE00": 1}', "half of a surrogate pair"),
])
def test_json_that_is_none_is_a_sentence_that_names_the_file(tmp_path, content, message):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message) as raised:
        read_json(path)
    assert str(raised.value).startswith(str(path)) and isinstance(raised.value, UserError | ValueError)


def test_json_that_is_right_is_read(tmp_path):
    path = tmp_path / "some.json"
    path.write_bytes('\ufeff{"a": "\\ud83d\\ude00 ü"}'.encode())
    assert read_json(path) == {"a": "😀 ü"}
    path.write_text("[1]")
    assert read_json(path, list) == read_json(path, None) == [1]
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "other.json")
    with pytest.raises(FileError, match=f"{tmp_path} cannot be read: Is a directory"):
        read_json(tmp_path)


def test_only_one_at_a_time_holds_a_lock(tmp_path, monkeypatch):
    inside, most = [], []

    def work():
        for _ in range(5):
            with locked(tmp_path / "file"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.002)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 20
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.05)
    with locked(tmp_path / "file"), locked(tmp_path / "file"):  # the other has stopped: it goes on without
        pass


def test_long_values_are_cut_off_in_messages():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert short("x" * 100) == repr("x" * 100)[:77] + "..."
    assert short(3) == "3" and short(10**5000) == "a int too large to show" and "list" in short(deep)


# --- What writers that were killed left ------------------------------------------------------------------------------

WRITER = """
import pathlib, sys, time
from labkit._common.files import whole_file
with whole_file(pathlib.Path(sys.argv[1])) as file:
    print("open", flush=True)
    time.sleep(60)
"""


def writer(path: Path) -> subprocess.Popen:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_the_next_write_deletes_what_a_killed_one_left_and_nothing_else(tmp_path):
    others = {".bashrc.original", ".x.npy.abcdefgh", "x.ipynb.abcdefgh", ".x.ipynb", ".x.labkit-notes"}
    for name in (*others, ".00_first.ipynb.ab_d1234"):  # the last as earlier versions named it
        (tmp_path / name).write_text("x")
    killed, alive = writer(tmp_path / "00_first.ipynb"), writer(tmp_path / "01_second.ipynb")
    try:
        killed.kill()
        killed.wait()
        before = {path.name for path in tmp_path.iterdir()}
        write_text(tmp_path / "out.txt", "text")
        after = {path.name for path in tmp_path.iterdir()}
    finally:
        alive.kill()
        alive.wait()
        killed.stdout.close()
        alive.stdout.close()
    assert any(name.startswith(".00_first.ipynb.labkit-") for name in before)
    (held,) = [name for name in after if name.startswith(".01_second.ipynb.labkit-")]
    assert after == {*others, held, "out.txt"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_the_next_folder_deletes_what_killed_ones_left_and_nothing_else(tmp_path):
    others = [".x-old-settings", ".y-labkit-notes", "site-labkit-abcdefgh"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".z-labkit-abcdefgh").write_text("a file")
    (tmp_path / ".deep-labkit-ab_d1234" / "more").mkdir(parents=True)
    (tmp_path / ".gone-labkit-old-ab_d1234" / "old").mkdir(parents=True)
    (tmp_path / ".gone-labkit-old-ab_d1234" / "old" / "page").write_text("of before")
    code = WRITER.replace("whole_file", "whole_folder").replace("as file:", "as fresh:\n    (fresh / 'a').touch()")
    killed, alive = (subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)], stdout=subprocess.PIPE,
                                      text=True) for name in ("first", "second"))
    try:
        for process in (killed, alive):
            assert process.stdout.readline() == "open\n"
        killed.kill()
        killed.wait()
        with whole_folder(tmp_path / "third") as fresh:
            (fresh / "a").touch()
        after = {path.name for path in tmp_path.iterdir()}
    finally:
        alive.kill()
        alive.wait()
        killed.stdout.close()
        alive.stdout.close()
    (held,) = [name for name in after if name.startswith(".second-labkit-")]
    assert after == {*others, ".z-labkit-abcdefgh", held, "third", "gone"}
    assert (tmp_path / "gone" / "page").read_text() == "of before"  # killed between the two steps


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_without_locks_what_is_old_is_left_over(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_try_lock", lambda handle: None)
    new, old = tmp_path / ".a.txt.labkit-abcdefgh", tmp_path / ".a.txt.labkit-12345678"
    new.touch()
    old.touch()
    os.utime(old, (1e9, 1e9))
    write_text(tmp_path / "b.txt", "text")
    assert new.exists() and not old.exists()


@pytest.mark.parametrize("errno_", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("make", [whole_file, whole_folder])
def test_errors_of_the_disk_name_the_file(tmp_path, make, errno_):
    with pytest.raises(OSError, match="out") as raised, make(tmp_path / "out"):
        raise OSError(errno_, os.strerror(errno_))
    assert raised.value.filename == str(tmp_path / "out")
    assert str(tmp_path / "out") in refusal(raised.value)
    assert refusal(FileNotFoundError(errno.ENOENT, "a bug", "x")) is None
