"""Workers that judge one answer at a time: processes of this machine, or of a dask.distributed cluster, where they may
end, and others join, at any time. An answer whose worker ends is judged again."""

from __future__ import annotations

import abc
import faulthandler
import os
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from labkit._common.errors import UserError
from labkit.course.grade.judge import Judge, Settings, plain_result
from labkit.course.grade.tasks import Task, labkit_digest

ATTEMPTS = 3  # until an answer that ends its worker is given up
TASK_S = 900.0  # after which a worker counts as hung, and ends
WORKERS_S = 60.0  # how long to wait for a first worker of a cluster

# --- On a worker ---------------------------------------------------------------------------------------------------

_JUDGES: dict[Settings, Judge] = {}  # one for each run of labkit grade that uses this worker
_ONE_AT_A_TIME = threading.Lock()


def judge_there(settings: Settings, task: Task, is_here: bool, version: str) -> dict:
    """The verdict on an answer. is_here: this process shares the folders of the one that hands out the work. version:
    the labkit_digest there. RuntimeError where this is another labkit, whose verdicts may be others."""
    if labkit_digest() != version:
        raise RuntimeError("this worker has another labkit than the grader: install the same on both")
    with _ONE_AT_A_TIME:
        if settings not in _JUDGES:
            os.environ["LABKIT_DEVICE"] = "cpu"
            hidden = (*settings.hidden, settings.folder)
            local_settings = settings if is_here else replace(settings, folder=own_folder(), hidden=hidden)
            _JUDGES[settings] = Judge(local_settings)
        faulthandler.dump_traceback_later(TASK_S, exit=True)  # even where C code keeps the interpreter
        try:
            return _JUDGES[settings].judge(task.exercise, task.answer)
        except Exception:  # the grader's own fault: another judge tries again
            close_there(settings)
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()


def own_folder() -> Path:
    """A folder that this user's workers on this machine share, and so the kernels that they compile."""
    folder = Path(tempfile.gettempdir(), f"labkit-grade-{os.getuid() if hasattr(os, 'getuid') else ''}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    is_private = not hasattr(os, "getuid") or state.st_uid == os.getuid() and state.st_mode & 0o77 == 0
    return folder if is_private and folder.is_dir() and not folder.is_symlink() else Path(
        tempfile.mkdtemp(prefix="labkit-grade-"))  # another user made one of that name


def close_there(settings: Settings) -> None:
    """End what judge_there has started for this run. An answer that is being judged is broken off."""
    judge = _JUDGES.pop(settings, None)
    if judge is not None:
        judge.close()


# --- In the process that hands out the work ------------------------------------------------------------------------


class _Workers(abc.ABC):
    """A slow answer holds no other, for none waits behind it; nor is another blamed when a worker ends."""

    def __init__(self, settings: Settings, judge: Callable):
        self.settings, self.judge = settings, judge
        self.busy: dict[Future, tuple] = {}  # -> (worker, task)
        self.faults: Counter = Counter()  # of a worker, in a row
        self.last_error = ""

    @abc.abstractmethod
    def usable(self) -> Iterable:
        """The workers that may get an answer when they are idle."""

    @abc.abstractmethod
    def submit(self, worker, task: Task) -> Future: ...

    def verdicts(self, tasks: list[Task]) -> Iterator[tuple[Task, dict]]:
        """(task, verdict) as they come. An answer without one is tried ATTEMPTS times, the last times behind all
        others, and then given up."""
        waiting, attempts = deque(tasks), Counter()
        while waiting or self.busy:
            usable, occupied = self.usable(), {worker for worker, _ in self.busy.values()}
            for worker in [worker for worker in usable if worker not in occupied][: len(waiting)]:
                task = waiting.popleft()
                self.busy[self.submit(worker, task)] = worker, task
            for future in wait(self.busy, timeout=1.0, return_when=FIRST_COMPLETED).done:
                worker, task = self.busy.pop(future)
                try:
                    verdict, self.faults[worker] = future.result(), 0
                except Exception as error:
                    self.faults[worker] += 1
                    self.last_error = f"{type(error).__name__}: {error}" if str(error) else "its worker was lost"
                    attempts[task.key] += 1
                    if attempts[task.key] < ATTEMPTS:
                        waiting.append(task)
                        continue
                    verdict = plain_result(
                        task.exercise, "not_graded", "The grader failed on it; a teacher must look at it.",
                        f"It was tried {ATTEMPTS} times: {self.last_error}.")
                yield task, verdict


# --- Processes of this machine -------------------------------------------------------------------------------------


def judge_locally(settings: Settings, tasks: list[Task], workers: int, judge: Callable = judge_there
                  ) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come, from so many processes."""
    with closing(_Processes(settings, judge, workers)) as processes:
        yield from processes.verdicts(tasks)


class _Processes(_Workers):
    """Each started with its first answer, and anew when it has ended."""

    def __init__(self, settings: Settings, judge: Callable, count: int):
        super().__init__(settings, judge)
        self.count, self.pools = count, {}  # worker -> a pool of one process
        self.lifeline, self.lifeline_there = get_context("spawn").Pipe()

    def usable(self) -> range:
        return range(self.count)

    def submit(self, worker: int, task: Task) -> Future:
        call = self.judge, self.settings, task, True, labkit_digest()
        try:
            return self.pools[worker].submit(*call)
        except (KeyError, BrokenExecutor):
            self.pools[worker] = ProcessPoolExecutor(1, get_context("spawn"), _begin, (self.lifeline_there,))
            return self.pools[worker].submit(*call)

    def close(self) -> None:
        """Break off the answers that are being judged."""
        for worker in self.pools.keys() - {worker for worker, _ in self.busy.values()}:
            with suppress(BrokenExecutor, TimeoutError):
                self.pools[worker].submit(close_there, self.settings).result(timeout=3)
        self.lifeline.close()
        self.lifeline_there.close()
        for pool in self.pools.values():
            pool.shutdown()


def _begin(lifeline: Connection) -> None:
    """In a process that judges: end with the one that hands out the work, which alone handles Ctrl-C."""
    def watch() -> None:
        lifeline.poll(None)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


# --- A cluster -----------------------------------------------------------------------------------------------------


def judge_with_dask(settings: Settings, tasks: list[Task], address: str, judge: Callable = judge_there
                    ) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come, from the cluster. UserError where there is no scheduler or no worker."""
    from dask.distributed import Client

    try:
        client = Client(address, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {address}: no dask scheduler answers there: {error}") from None
    with closing(client):
        try:
            yield from _Cluster(settings, judge, client).verdicts(tasks)
        except OSError as error:
            raise UserError(f"the connection to the dask scheduler was lost: {error}. No verdict is lost: run the same "
                            "command again") from None
        finally:
            with suppress(Exception):  # a worker that has ended needs no closing
                client.run(close_there, settings)


class _Cluster(_Workers):
    """Workers by their addresses. One that fails ATTEMPTS times in a row gets no more."""

    def __init__(self, settings: Settings, judge: Callable, client):
        super().__init__(settings, judge)
        self.client, self.last_worker_s = client, time.monotonic()  # when there was a worker last

    def usable(self) -> list[str]:
        present = self.client.nthreads()
        for future, (worker, _) in self.busy.items():
            if worker not in present:
                future.cancel()  # dask would wait for it to come back
        usable = [worker for worker in present if self.faults[worker] < ATTEMPTS]
        if usable or self.busy:
            self.last_worker_s = time.monotonic()
        elif present:
            raise UserError(f"no worker of the dask cluster can grade. The last failed with: {self.last_error}")
        elif time.monotonic() - self.last_worker_s > WORKERS_S:
            raise UserError("the dask cluster has no workers. Start one for each core: "
                            "dask worker ADDRESS --nworkers -1 --nthreads 1")
        else:
            time.sleep(0.2)
        return usable

    def submit(self, worker: str, task: Task) -> Future:
        executor = self.client.get_executor(workers=[worker], pure=False)
        return executor.submit(self.judge, self.settings, task, False, labkit_digest())
