"""Workers of a dask.distributed cluster that judge. They may end, and others join, at any time.

Each process of the cluster judges one answer at a time, and gets the next when it has given its verdict: so a slow
answer holds no other, and one that joins has work at once.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from labkit._common.errors import UserError
from labkit.course.grade.judge import Judge, Settings
from labkit.course.grade.tasks import Task, labkit_digest
from labkit.course.grade.workers import ATTEMPTS, TASK_S, given_up

WORKERS_S = 60.0  # how long to wait for a first worker
RESULT_S = 30.0  # within which a verdict that is there can be fetched

# --- On a worker of the cluster ------------------------------------------------------------------------------------

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
        return _JUDGES[settings].judge(task.exercise, task.answer)


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


def judge_with_dask(settings: Settings, tasks: list[Task], workers: int, address: str | None,
                    judge: Callable = judge_there) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come, from the cluster at `address`, or from one of `workers` processes of this machine.

    An answer whose worker ends, or whose judge raises, is tried ATTEMPTS times and given up. UserError where there is
    no scheduler or no worker.
    """
    from dask.distributed import Client, LocalCluster

    cluster = None
    if address is None:
        with _ctrl_c_ignored():
            cluster = LocalCluster(n_workers=workers, threads_per_worker=1, silence_logs="ERROR",
                                   dashboard_address="127.0.0.1:0")
    try:
        client = Client(address or cluster, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {address}: no dask scheduler answers there: {error}") from None
    try:
        yield from _Dispatcher(client, tasks, (settings, cluster is not None, judge)).verdicts()
    except OSError as error:
        raise UserError(f"the connection to the dask scheduler was lost: {error}. No verdict is lost: run the same "
                        "command again") from None
    finally:
        if cluster is None:
            with suppress(Exception):  # a worker that has ended needs no closing
                client.run(close_there, settings)
        client.close()
        if cluster is not None:
            cluster.close()


@contextmanager
def _ctrl_c_ignored():
    """Ignore Ctrl-C within the block, also in processes started there: only the dispatching process handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


class _Dispatcher:
    """Waiting tasks, and which worker runs which."""

    def __init__(self, client, tasks: list[Task], context: tuple):
        self.client = client
        self.settings, self.is_here, self.judge = context
        self.version = labkit_digest()
        self.waiting = deque(tasks)
        self.busy: dict = {}  # future -> (task, the worker's address, when it was given out)
        self.attempts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()  # of a worker's address, in a row
        self.last_error = ""
        self.workers: list[str] = []  # addresses of the workers
        self.last_worker_s = time.monotonic()  # when there was a worker last

    def verdicts(self) -> Iterator[tuple[Task, dict]]:
        try:
            while self.waiting or self.busy:
                self._dispatch()
                for future in self._ended():
                    task, worker, _ = self.busy.pop(future)
                    result = self._result(future)
                    if isinstance(result, dict):
                        self.faults[worker] = 0
                        yield task, result
                        continue
                    self.faults[worker] += 1
                    self.last_error = result
                    self.attempts[task.key] += 1
                    if self.attempts[task.key] < ATTEMPTS:
                        self.waiting.append(task)
                    else:
                        yield task, given_up(task, result)
        finally:
            if self.busy:
                with suppress(Exception):
                    self.client.cancel(list(self.busy), force=True)

    def _dispatch(self) -> None:
        """Submit a task to each idle worker. One that failed ATTEMPTS times in a row gets no more."""
        occupied = {worker for _, worker, _ in self.busy.values()}
        self.workers = list(self.client.nthreads())
        usable = [worker for worker in self.workers if self.faults[worker] < ATTEMPTS]
        if usable or self.busy:
            self.last_worker_s = time.monotonic()
        elif self.workers:
            raise UserError(f"no worker of the dask cluster can grade. The last failed with: {self.last_error}")
        elif time.monotonic() - self.last_worker_s > WORKERS_S:
            raise UserError("the dask cluster has no workers. Start one for each core: "
                            "dask worker ADDRESS --nworkers -1 --nthreads 1")
        for worker in usable:
            if worker not in occupied and self.waiting:
                task = self.waiting.popleft()
                future = self.client.submit(self.judge, self.settings, task, self.is_here, self.version, pure=False,
                                            workers=[worker])
                self.busy[future] = task, worker, time.monotonic()

    def _ended(self) -> list:
        """Return the futures that have ended, after a second at most. Cancel those that hang, or whose worker is gone
        (dask would wait for it to come back)."""
        from dask.distributed import wait

        if not self.busy:
            time.sleep(0.2)
            return []
        with suppress(TimeoutError):
            return list(wait(list(self.busy), timeout=1.0, return_when="FIRST_COMPLETED").done)
        lost = [future for future, (_, worker, _) in self.busy.items() if worker not in self.workers]
        if lost:
            self.client.cancel(lost, force=True)
            return lost
        hung = [future for future, (_, _, started) in self.busy.items() if time.monotonic() - started > TASK_S]
        for future in hung:
            with suppress(Exception):
                self.client.restart_workers([self.busy[future][1]], timeout=30, raise_for_error=False)
            self.client.cancel([future], force=True)
        return hung

    def _result(self, future) -> dict | str:
        """The verdict, or why there is none."""
        if future.status == "finished":
            try:
                return future.result(timeout=RESULT_S)
            except TimeoutError:  # its worker was lost with the verdict
                self.client.cancel([future], force=True)
                return "its worker was lost"
        if future.status != "error":
            if self.client.status != "running":
                raise OSError("it has ended")
            return "its worker took too long or was lost"
        error = future.exception()
        return f"{type(error).__name__}: {error}"
