"""Time limits for tests that hold on a busy or slow machine as well: measured with a yardstick of known length."""

import time

import numpy as np

IDLE_S = 0.01  # what the yardstick takes on an idle core of a server of 2024


def allowed(seconds: float) -> float:
    """A limit meant for an idle machine, made longer by as much as this one is slower at the moment."""
    return seconds * max(1.0, yardstick() / IDLE_S)


def yardstick() -> float:
    """Seconds that a fixed loop over NumPy calls takes now, on one core: the slowest of three."""
    values = np.arange(4096, dtype=np.float32)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(4000):
            values = np.sqrt(values + 1)
        times.append(time.perf_counter() - begin)
    return max(times)
