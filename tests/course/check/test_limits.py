"""Limits on time end with their block, and compiling is announced."""

import io
import sys
import threading
import time

import pytest

from labkit.course.check import limits
from labkit.course.check.limits import HostTimeout, announced_compiling, host_limit


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_nothing_is_raised_after_the_block():
    stopped = 0
    for _ in range(60):  # the limit and the end of the block fall together
        try:
            with host_limit(0.003):
                spin(0.003)
        except HostTimeout:
            stopped += 1
        spin(0.001)  # HostTimeout would fail the test here
    assert stopped < 60


def test_a_function_that_catches_exceptions_is_stopped_all_the_same(monkeypatch):
    monkeypatch.setattr(limits, "AGAIN_S", 0.05)
    caught = []

    def stubborn():
        while True:
            try:
                spin(10)
            except BaseException as error:
                caught.append(error)
                if len(caught) > 1:
                    raise

    with pytest.raises(HostTimeout), host_limit(0.05):
        stubborn()


def test_a_busy_machine_stops_nothing_and_a_sleeper_is_stopped():
    with host_limit(0.2):
        time.sleep(0.35)  # as if other processes had the CPU
    with pytest.raises(HostTimeout), host_limit(0.1):
        for _ in range(200):
            time.sleep(0.02)


def test_compiling_does_not_count():
    from numba.core import event

    with host_limit(0.1):
        with event.trigger_event("numba:compile"):
            spin(0.3)
        spin(0.01)
    with pytest.raises(HostTimeout), host_limit(0.1):
        spin(5)


@pytest.mark.parametrize(("seconds", "nbgrader", "shown"),
                         [(0.4, "", True), (0.0, "", False), (0.4, "autograde", False)])
def test_long_compiling_is_announced_on_stderr(monkeypatch, seconds, nbgrader, shown):
    from numba.core import event

    monkeypatch.setattr(limits, "QUIET_S", 0.1)
    monkeypatch.setenv("NBGRADER_EXECUTION", nbgrader)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with announced_compiling(), event.trigger_event("numba:compile"):
        time.sleep(seconds)
    assert ("Compiling the kernels" in stream.getvalue()) == shown


def test_nothing_is_raised_while_a_thread_starts():
    """It would end the new thread instead, and the one that starts it would wait for ever."""
    reached = False
    with pytest.raises(HostTimeout), host_limit(0.05):
        threading._limbo[None] = None  # as Thread.start does before there is a thread
        try:
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                pass
            reached = True
        finally:
            del threading._limbo[None]
        while True:
            pass
    assert reached
