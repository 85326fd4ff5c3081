"""Work on large arrays in several threads: NumPy lets other threads run while it computes."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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


def made_ahead(makers: Iterable[Callable[[], object]], threads: int = 4) -> Iterator:
    """Yield what each maker returns, in order, while threads run the next ones: at most `threads` results wait. An
    error of a maker is raised in its turn."""
    with ThreadPoolExecutor(threads, thread_name_prefix="labkit-ahead") as executor:
        pending = deque()
        try:
            for maker in makers:
                pending.append(executor.submit(maker))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            executor.shutdown(cancel_futures=True)
