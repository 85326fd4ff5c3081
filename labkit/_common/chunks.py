"""Work on a large array in pieces, one thread for each core: NumPy lets other threads run while it computes."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from labkit._common.cores import cores

CHUNK = 2**22  # elements: large beside what a call costs, small beside a cache of the last level


@functools.cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="labkit-chunk")


def in_chunks(count: int, work: Callable[[int, int], object], chunk: int = CHUNK) -> list:
    """[work(begin, end), ...] for the pieces of 0 .. count, of `chunk` at most, in order. What fits one piece runs in
    this thread."""
    if count <= chunk:
        return [work(0, count)]
    begins = range(0, count, chunk)
    return list(_executor().map(lambda begin: work(begin, min(begin + chunk, count)), begins))
