"""Signals and other threads while a kernel runs in the thread that launched it."""

import signal
import threading

import numpy as np
import pytest

from labkit import cuda
from labkit.simt import time_limit, workers
from labkit.simt.errors import OutOfBoundsError

pytestmark = [pytest.mark.cpu_device,
              pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an alarm")]  # fmt: skip


class Enough(Exception):
    pass


@cuda.jit
def endless(out, go):
    t = cuda.threadIdx.x
    while go:
        cuda.syncthreads()
        out[t] += 1


@cuda.jit
def doubled(a, out):
    tile = cuda.shared.array(64, np.int64)
    t = cuda.threadIdx.x
    tile[t] = 2 * a[t]
    cuda.syncthreads()
    out[t] = tile[63 - t]


@pytest.fixture
def alarm():
    """Set the handler of alarms, which come every tenth of a second from then on."""
    before = signal.getsignal(signal.SIGALRM)

    def every_tenth(handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)

    yield every_tenth
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("blocks", [1, 64])
def test_what_the_handler_of_a_signal_raises_stops_the_kernel(alarm, blocks):
    calls = []

    def handler(*_):
        calls.append(1)
        if len(calls) == 2:  # after the first, the kernel goes on
            raise Enough

    out = np.zeros(32, np.int64)
    endless[blocks, 32](out, False)
    alarm(handler)
    with pytest.raises(Enough), time_limit(60):
        endless[blocks, 32](out, True)
    assert calls == [1, 1] and out[0] > 0


def test_it_stops_the_threads_that_help_too(alarm, monkeypatch):
    """Whichever of the endless blocks each of them runs. The first is not endless: then other threads take part."""
    monkeypatch.setattr(workers, "LONG_S", 0.0)

    @cuda.jit
    def endless_later(out, go):
        while go and cuda.blockIdx.x > 0:
            out[cuda.blockIdx.x] += 1

    out = np.zeros(64, np.int64)
    endless_later[64, 1](out, False)

    def handler(*_):
        raise Enough

    alarm(handler)
    with pytest.raises(Enough), time_limit(60):
        endless_later[64, 1](out, True)
    assert out[0] == 0 and (out > 0).any()


def test_the_handler_of_a_signal_may_launch(alarm):
    """It has scratch memory of its own."""
    a, out = np.arange(64), np.zeros(64, np.int64)
    doubled[1, 64](a, out)
    launched = []

    def handler(*_):
        out[:] = 0
        doubled[1, 64](a, out)
        launched.append(out.copy())
        if len(launched) == 2:
            raise Enough

    alarm(handler)
    with pytest.raises(Enough), time_limit(60):
        endless[1, 32](np.zeros(32, np.int64), True)
    assert all((each == 2 * a[::-1]).all() for each in launched)


def test_a_launch_in_another_thread_is_right_too():
    a, out = np.arange(64), np.zeros(64, np.int64)
    thread = threading.Thread(target=lambda: doubled[1, 64](a, out))
    thread.start()
    thread.join()
    assert (out == 2 * a[::-1]).all()


@pytest.mark.parametrize("limit_s", [0.0, 1e9])
def test_the_first_faulty_block_is_reported_whoever_runs_it(limit_s, monkeypatch):
    """0: other threads take part as soon as they can; 1e9: never."""
    monkeypatch.setattr(workers, "LONG_S", limit_s)

    @cuda.jit
    def beyond(out):
        i = cuda.grid(1)
        if cuda.blockIdx.x >= 700:
            out[i + out.size] = 1
        out[i] = i

    for _ in range(5):
        with pytest.raises(OutOfBoundsError) as caught:
            beyond[1000, 32](np.zeros(32_000, np.int64))
        assert caught.value.block == (700, 0, 0)


def test_a_short_launch_needs_no_other_thread(monkeypatch):
    monkeypatch.setattr(workers, "LONG_S", 1e9)
    monkeypatch.setattr(workers.RunningLaunch, "_get_help", lambda _: pytest.fail("another thread was asked"))
    out = np.zeros(64, np.int64)
    doubled[1, 64](np.arange(64), out)
    assert out[0] == 126
