"""What the window shows of an engine, collected where the engine is: functions for `ask` of an EngineThread or another
process's.

    looked = engine.ask(look, True).result()     # the first time: the whole state
    looked = engine.ask(look).result()           # changes since then
    engine.ask(look_no_more)
"""

from __future__ import annotations

import time
from typing import NamedTuple

from labkit.serve.engine_thread import EngineThread, StepReport
from labkit.serve.window.kernels import Kernels, Launched
from labkit.serve.window.state import Change, Changes
from labkit.serve.window.steps import Steps


class Looked(NamedTuple):
    """steps: as Steps.take returns them. launched: None where the runner has no kernels. seconds: what it took."""

    change: Change
    steps: dict
    launched: Launched | None
    seconds: float


class Look:
    """An observer of the steps that keeps the state last reported."""

    def __init__(self, thread: EngineThread):
        self.changes, self.kernels, self.steps = Changes(), Kernels(), Steps(thread.arrived)

    def __call__(self, report: StepReport) -> None:
        self.steps(report)


def look(thread: EngineThread, reset: bool = False) -> Looked:
    """In the engine's thread. reset: report the whole state."""
    began = time.perf_counter()
    if reset:
        look_no_more(thread)
    observer = next((each for each in thread.observers if isinstance(each, Look)), None)
    if observer is None:
        observer = Look(thread)
        thread.observers.append(observer)
    change = observer.changes.since(thread.engine)
    seconds = time.perf_counter() - began
    return Looked(change, observer.steps.take(), observer.kernels.of(thread.engine.runner), seconds)


def look_no_more(thread: EngineThread) -> None:
    thread.observers[:] = [each for each in thread.observers if not isinstance(each, Look)]
