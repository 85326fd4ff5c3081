"""The CPU device's kernels are compiled by forks, loaded here, and found again by the next process."""

import os
import time

import numpy as np
import pytest

from labkit import cuda
from labkit.device import compile_ahead, launches
from labkit.simt.kernel import Kernel

pytestmark = [pytest.mark.cpu_device,
              pytest.mark.skipif(not compile_ahead.FORKS, reason="this system has no fork that can be used")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def scale_by(factor: int):
    def scale_kernel(x):
        at = cuda.grid(1)
        if at < x.size:
            x[at] *= factor

    return cuda.jit(scale_kernel)


def needed_of(kernels, x):
    return launches.needed(lambda: [kernel[1, 32](x) for kernel in kernels])


def test_forks_leave_in_the_cache_what_a_launch_takes(monkeypatch):
    x, steps = cuda.to_device(np.arange(32, dtype=np.float32)), []
    needed = needed_of([scale_by(factor) for factor in (2, 3, 5)], x)
    assert len(needed) == 3 and x.copy_to_host()[1] == 1  # none has run
    assert compile_ahead.prepare(needed, workers=2, progress=lambda *step: steps.append(step)) == 3
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]

    again = needed_of([scale_by(factor) for factor in (2, 3, 5)], x)
    monkeypatch.setattr(compile_ahead, "_Fork", lambda compile_job: 1 / 0)
    assert compile_ahead.prepare(again, workers=2) == 0
    compiled = [kernel._compiled.copy() for kernel, _ in again]
    for kernel, _ in again:
        kernel[1, 32](x)
    assert [kernel._compiled for kernel, _ in again] == compiled and all(map(len, compiled))
    assert np.array_equal(x.copy_to_host(), 30 * np.arange(32))


def test_blocks_and_types_that_compile_apart_are_needed_apart():
    kernel = scale_by(7)

    def work():
        for block in (32, 64, (4, 8)):
            for dtype in (np.float32, np.int32, np.float32):
                kernel[1, block](cuda.device_array(32, dtype))

    assert len(launches.needed(work)) == 4
    typed = cuda.jit("void(float32[:])")(scale_by(7).py_func)
    (one,) = launches.needed(lambda: typed[1, 32](cuda.device_array(32, np.float32)))
    assert typed.load(*one[1])


def test_what_fails_in_a_fork_raises_at_its_launch(monkeypatch):
    @cuda.jit
    def wrong_kernel(x):
        x[0] = x.nonsense

    x = cuda.to_device(np.zeros(4, np.float32))
    needed = needed_of([wrong_kernel, scale_by(11)], x)
    assert compile_ahead.prepare(needed, workers=1) == 2 and needed[1][0].load(*needed[1][1])
    with pytest.raises(Exception, match="nonsense"):
        wrong_kernel[1, 1](x)


def test_jobs_of_a_worker_that_was_killed_are_compiled_here(monkeypatch):
    here, whole = os.getpid(), Kernel.compile_for

    def killed_there(self, *key):
        if os.getpid() != here:
            os._exit(9)
        whole(self, *key)

    monkeypatch.setattr(Kernel, "compile_for", killed_there)
    x, steps = cuda.to_device(np.ones(4, np.float32)), []
    needed = needed_of([scale_by(factor) for factor in (17, 19)], x)
    assert compile_ahead.prepare(needed, workers=2, progress=lambda *step: steps.append(step)) == 2
    assert steps[-1] == (2, 2) and all(kernel.load(*key) for kernel, key in needed)


def test_ctrl_c_leaves_no_worker(monkeypatch):
    pids, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: pids.append(fork()) or pids[-1])

    def interrupt(done, of):
        if done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Kernel, "compile_for", lambda *key: time.sleep(0.01))
    needed = needed_of([scale_by(factor) for factor in range(29, 37)], cuda.to_device(np.ones(4, np.float32)))
    with pytest.raises(KeyboardInterrupt):
        compile_ahead.prepare(needed, workers=2, progress=interrupt)
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def test_few_kernels_and_systems_without_forks_take_none(monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: 1 / 0)
    monkeypatch.setattr(Kernel, "compile_for", lambda *key: None)
    x = cuda.to_device(np.ones(4, np.float32))
    assert compile_ahead.prepare(needed_of([scale_by(41), scale_by(43)], x)) == 2
    monkeypatch.setattr(compile_ahead, "FORKS", False)
    assert compile_ahead.prepare(needed_of([scale_by(factor) for factor in (47, 53, 59)], x), workers=2) == 3
