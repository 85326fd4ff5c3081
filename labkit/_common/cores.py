"""The number of cores available."""

import os


def cores() -> int:
    """Those that this process may use: fewer than the machine's in a container or under taskset."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
