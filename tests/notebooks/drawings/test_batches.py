"""The figures of the lesson "Batches": what they say, and what they refuse."""

from labkit.course.drawings import batches as pictures
from labkit.engine.scheduler import Scheduler
from labkit.measure.simulation import Work, simulate
from labkit.measure.static_batching import StaticScheduler
from tests.measure.plots.layout import drawn


def test_slots_over_time():
    work = [Work(3, 6), Work(4, 1), Work(5, 2), Work(2, 3)]
    timelines = {name: simulate(work, kind, max_num_seqs=2) for name, kind in
                 (("Static", StaticScheduler), ("Continuous", Scheduler))}
    figure = pictures.slots(timelines)
    assert figure.summary == "Static: 9 steps, 33% of the slots idle; Continuous: 6 steps, 0% of the slots idle."
    assert drawn(figure).count("slot 1") == 2
    assert figure.svg().startswith("<svg")
