"""Workers of a dask.distributed cluster that judge. They may die, and others join.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from labkit._common.errors import UserError
from labkit.course.grade.judge import Judge, Settings
from labkit.course.grade.tasks import Task
from labkit.course.grade.workers import ATTEMPTS, chunks, given_up

_JUDGE: list[Judge] = []
_ONE_AT_A_TIME = threading.Lock()


def judge_there(settings: Settings, tasks: list[Task], is_here: bool) -> list[dict]:
    """On a worker of a dask cluster: the verdicts on these answers. is_here: it shares this machine's folders."""
    with _ONE_AT_A_TIME:
        if not _JUDGE:
            import tempfile

            os.environ["LABKIT_DEVICE"] = "cpu"
            if not is_here:
                settings = replace(settings, folder=Path(tempfile.mkdtemp(prefix="labkit-grade-")))
            _JUDGE.append(Judge(settings, slot=os.getpid() % 100_000))
        return [_JUDGE[0].judge(task.student, task.exercise, task.answer) for task in tasks]


def close_there() -> None:
    while _JUDGE:
        _JUDGE.pop().close()


def judge_with_dask(settings: Settings, tasks: list[Task], workers: int, address: str | None
                    ) -> Iterator[tuple[Task, dict]]:
    """As judge_locally, on the dask.distributed cluster at `address`, or on one of this machine."""
    from dask.distributed import Client, LocalCluster, as_completed

    cluster = None if address else LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    try:
        client = Client(address or cluster, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError(f"--scheduler {address}: no dask scheduler answers there: {error}") from None
    try:
        held, attempts = {}, {}
        for chunk in chunks(tasks):
            held[client.submit(judge_there, settings, chunk, cluster is not None, pure=False)] = chunk
        pending = as_completed(list(held))
        for future in pending:
            chunk = held.pop(future)
            if future.status == "finished":
                yield from zip(chunk, future.result(), strict=True)
                continue
            for task in chunk:  # its worker died, or the task failed there: each alone, so that one stops no other
                attempts[task.key] = attempts.get(task.key, 0) + 1
                if attempts[task.key] >= ATTEMPTS:
                    yield task, given_up(task, "its worker ended or failed")
                else:
                    again = client.submit(judge_there, settings, [task], cluster is not None, pure=False)
                    held[again] = [task]
                    pending.add(again)
    finally:
        with suppress(Exception):  # a worker that has ended needs no closing
            client.run(close_there)
        client.close()
        if cluster is not None:
            cluster.close()
