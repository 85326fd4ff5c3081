"""Processes of this machine that judge. One that ends, or hangs, is replaced, and its answer judged again."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait

from labkit.course.grade.judge import Judge, Settings, plain_result
from labkit.course.grade.tasks import Task

ATTEMPTS = 3  # until an answer that ends its worker is given up
TASK_S = 900.0  # after which a worker counts as hung


def given_up(task: Task, reason: str) -> dict:
    return plain_result(task.exercise, "not_graded", "The grader failed on it; a teacher must look at it.",
                        f"It was tried {ATTEMPTS} times: {reason}.")


def _work(connection, settings: Settings) -> None:
    """A worker's process: tasks in, verdicts out."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the dispatching process handles Ctrl-C
    os.environ["LABKIT_DEVICE"] = "cpu"
    judge = Judge(settings)
    try:
        while True:
            task = connection.recv()
            if task is None:
                return
            try:
                connection.send(judge.judge(task.exercise, task.answer))
            except Exception as error:  # the grader's own fault: the worker that takes its place tries again
                connection.send(f"{type(error).__name__}: {error}")
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        judge.close()


class Worker:
    """A worker's process, and what it is busy with."""

    def __init__(self, settings: Settings):
        context = multiprocessing.get_context("spawn")
        self.connection, child_connection = context.Pipe()
        self.process = context.Process(target=_work, args=(child_connection, settings), daemon=True)
        self.process.start()
        child_connection.close()
        self.task: Task | None = None
        self.started = 0.0

    def begin(self, task: Task) -> None:
        self.task, self.started = task, time.monotonic()
        with suppress(OSError):  # it has ended; wait() will show it
            self.connection.send(task)

    def stop(self) -> None:
        if self.task is not None:
            self.process.kill()
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def judge_locally(settings: Settings, tasks: list[Task], workers: int) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come. An answer whose worker ends is tried ATTEMPTS times, the last times behind all
    others, and then given up."""
    pending, attempts = deque(tasks), Counter()
    crew = [Worker(settings) for _ in range(min(workers, max(len(pending), 1)))]
    try:
        while pending or any(worker.task for worker in crew):
            for worker in crew:
                if worker.task is None and pending:
                    worker.begin(pending.popleft())
            busy = [worker for worker in crew if worker.task is not None]
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                task, result = worker.task, "its worker took too long"
                if worker.connection in ready:
                    result = "its worker ended"
                    with suppress(EOFError, OSError):
                        result = worker.connection.recv()
                elif time.monotonic() - worker.started < TASK_S:
                    continue
                if isinstance(result, dict):
                    worker.task = None
                    yield task, result
                    continue
                worker.stop()
                crew[crew.index(worker)] = Worker(settings)
                attempts[task.key] += 1
                if attempts[task.key] < ATTEMPTS:
                    pending.append(task)
                else:
                    yield task, given_up(task, result)
    finally:
        for worker in crew:
            worker.stop()
