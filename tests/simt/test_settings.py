"""Environment variables of the CPU device: what they may be, and the error that names the one that is wrong."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from labkit import cuda
from labkit.simt import settings, strict_barriers, time_limit
from labkit.simt.errors import SettingError

pytestmark = pytest.mark.cpu_device


@cuda.jit
def one(out):
    out[cuda.grid(1)] = 1


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "1 s"])
def test_a_wrong_time_limit_is_named(text, monkeypatch):
    monkeypatch.setenv("LABKIT_TIME_LIMIT", text)
    with pytest.raises(SettingError, match=f"^LABKIT_TIME_LIMIT is '{text}'; it must be a number of seconds, or 0 for"):
        one[1, 1](np.zeros(1))


def test_a_time_limit_in_the_program_comes_first(monkeypatch):
    monkeypatch.setenv("LABKIT_TIME_LIMIT", "abc")
    with time_limit(3):
        assert settings.time_limit_s() == 3
        one[1, 1](np.zeros(1))


@pytest.mark.parametrize(("text", "seconds"), [("", 60), ("0", 0), ("0.25", 0.25), (" 7 ", 7)])
def test_time_limits(text, seconds, monkeypatch):
    monkeypatch.setenv("LABKIT_TIME_LIMIT", text)
    assert settings.time_limit_s() == seconds


@pytest.mark.parametrize("text", ["abc", "-2", "1.5", "1025", "100000000"])
def test_a_wrong_number_of_workers_is_named(text, monkeypatch):
    monkeypatch.setenv("LABKIT_WORKERS", text)
    with pytest.raises(SettingError, match=f"^LABKIT_WORKERS is '{text}'; it must be a number of threads, or 0 for"):
        settings.worker_count()


@pytest.mark.parametrize("text", ["", "0", "3"])
def test_numbers_of_workers(text, monkeypatch):
    monkeypatch.setenv("LABKIT_WORKERS", text)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert settings.worker_count() == int(text or 0) or settings.worker_count() == cores


@pytest.mark.parametrize("text", ["abc", "no", "2", " "])
def test_a_wrong_bounds_check_is_named(text, monkeypatch):
    monkeypatch.setenv("LABKIT_BOUNDS_CHECK", text)
    with pytest.raises(SettingError, match=f"^LABKIT_BOUNDS_CHECK is '{text}'; it must be 0, .* or 1"):
        one[1, 1](np.zeros(1))


def test_without_numbas_compiler_the_variable_is_named():
    done = subprocess.run([sys.executable, "-c", "from labkit.simt import api"], capture_output=True, text=True,
                          env={**os.environ, "NUMBA_DISABLE_JIT": "1"})
    assert "SettingError: NUMBA_DISABLE_JIT is set, and the CPU device compiles kernels" in done.stderr.splitlines()[-1]


def test_the_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    for variables, expected in (({"LABKIT_CACHE_DIR": "~/kept", "HOME": "/home/a"}, "/home/a/kept"),
                                ({"XDG_CACHE_HOME": "", "HOME": "/home/a"}, "/home/a/.cache/labkit-simt"),
                                ({"XDG_CACHE_HOME": str(tmp_path)}, f"{tmp_path}/labkit-simt")):
        for name in ("LABKIT_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(settings.cache_directory()) == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user of no home
    assert settings.cache_directory() == Path(tempfile.gettempdir()) / ".cache" / "labkit-simt"


def test_barriers_are_strict_where_work_is_checked():
    from labkit.course.check.limits import limited

    assert settings.barrier_rule() == 0
    with strict_barriers():
        assert settings.barrier_rule() == 1
    with limited("forward"):
        assert settings.barrier_rule() == 1
    assert settings.barrier_rule() == 0
