"""Compiled kernels as files: found again, never damaged ones, whatever happens to the directory."""

import os
import warnings

import pytest

from labkit.simt import store as files
from labkit.simt.store import SUFFIX, Store


def test_what_was_saved_is_loaded(tmp_path):
    store = Store(tmp_path / "new" / "folder")
    assert store.load("a") is None
    assert store.save("a", b"kernel") and store.load("a") == b"kernel"
    assert store.load("b") is None


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:10], lambda data: b"",
                                    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
                                    lambda data: b"labkit kernel 0\n" + data[16:]])
def test_a_damaged_file_is_deleted(tmp_path, damage):
    store = Store(tmp_path)
    store.save("a", b"kernel" * 100)
    store.path("a").write_bytes(damage(store.path("a").read_bytes()))
    damaged = "a compiled kernel on disk was damaged and is being recompiled: .*a.kernel"
    with pytest.warns(RuntimeWarning, match=damaged):
        assert store.load("a") is None and not store.path("a").exists()
    assert store.save("a", b"again") and store.load("a") == b"again"


def test_a_disk_that_takes_nothing_warns_once(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="compiled kernels are not kept: .*No space left"):
        assert not store.save("a", b"kernel")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.save("b", b"kernel")
    assert list(tmp_path.iterdir()) == []  # no half file is left
    monkeypatch.undo()
    assert store.save("a", b"kernel")


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="LABKIT_CACHE_DIR names another directory"):
        assert not Store(tmp_path / "file" / "below", named_by="LABKIT_CACHE_DIR").save("a", b"")


def test_the_least_recently_used_go_first(tmp_path):
    store = Store(tmp_path, limit=10_000)
    for age, name in enumerate("abcd"):
        store.save(name, bytes(2000))
        os.utime(store.path(name), (1000 + age, 1000 + age))
    store.load("a")  # used now
    old = tmp_path / "left behind.tmp"
    old.write_bytes(b"half")
    os.utime(old, (1000, 1000))
    store.save("e", bytes(2000))
    kept = {path.name.removesuffix(SUFFIX) for path in tmp_path.iterdir()}
    assert kept == {"a", "d", "e", "c"} - ({"c"} if len(kept) == 3 else set()) and "b" not in kept
