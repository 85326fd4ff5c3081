"""Processes of this machine that judge. One that dies is replaced.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait

from labkit.course.grade.judge import Judge, Settings, plain_result
from labkit.course.grade.tasks import Task

ATTEMPTS = 3  # until an answer that ends its worker is given up
TASK_S = 900.0  # after which a worker counts as hung


def chunks(tasks: list[Task], most: int = 8) -> list[list[Task]]:
    """Equal programs together, so that one worker judges them one after the other; not so many that another waits."""
    groups: dict[tuple[str, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.exercise, task.alike), []).append(task)
    return [group[k : k + most] for group in groups.values() for k in range(0, len(group), most)]


def given_up(task: Task, reason: str) -> dict:
    return plain_result(task.exercise, "not_graded", "The grader failed on it; a teacher must look at it.",
                        f"It was tried {ATTEMPTS} times: {reason}.")


def _work(connection, settings: Settings, slot: int) -> None:
    """A worker's process: tasks in, verdicts out."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the work
    os.environ["LABKIT_DEVICE"] = "cpu"
    judge = Judge(settings, slot)
    try:
        while True:
            task = connection.recv()
            if task is None:
                return
            try:
                connection.send(judge.judge(task.student, task.exercise, task.answer))
            except Exception as error:  # the grader's own fault: the worker that takes its place tries again
                connection.send(f"{type(error).__name__}: {error}")
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        judge.close()


class Worker:
    """A worker's process, and what it is busy with."""

    def __init__(self, settings: Settings, slot: int):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, settings, slot), daemon=True)
        self.process.start()
        theirs.close()
        self.slot = slot
        self.queue: list[Task] = []
        self.began = 0.0

    def next(self) -> None:
        """Begin the first task of the queue."""
        self.began = time.monotonic()
        with suppress(OSError):  # it has ended; wait() will say so
            self.connection.send(self.queue[0])

    def stop(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def judge_locally(settings: Settings, tasks: list[Task], workers: int) -> Iterator[tuple[Task, dict]]:
    """(task, verdict) as they come, from processes of this machine. A worker that dies is replaced, and its answer
    judged again; one that does so ATTEMPTS times is given up."""
    waiting = chunks(tasks)[::-1]
    attempts: dict[str, int] = {}
    crew = [Worker(settings, slot) for slot in range(min(workers, max(len(waiting), 1)))]
    try:
        while waiting or any(worker.queue for worker in crew):
            for worker in crew:
                if not worker.queue and waiting:
                    worker.queue = waiting.pop()
                    worker.next()
            busy = [worker for worker in crew if worker.queue]
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                result = None
                if worker.connection in ready:
                    with suppress(EOFError, OSError):
                        result = worker.connection.recv()
                elif time.monotonic() - worker.began < TASK_S:
                    continue
                task = worker.queue[0]
                if not isinstance(result, dict):
                    reason = result or "its worker ended"
                    attempts[task.key] = attempts.get(task.key, 0) + 1
                    rest = worker.queue[1:]
                    worker.process.kill()
                    worker.stop()
                    crew[crew.index(worker)] = Worker(settings, worker.slot)
                    if rest:
                        waiting.append(rest)
                    if attempts[task.key] < ATTEMPTS:
                        waiting.insert(0, [task])  # behind all others
                    else:
                        yield task, given_up(task, reason)
                    continue
                worker.queue.pop(0)
                if worker.queue:
                    worker.next()
                yield task, result
    finally:
        for worker in crew:
            if worker.queue:
                worker.process.kill()
        for worker in crew:
            worker.stop()
