"""What streams, events and the host order, and what they do not: a race between streams is named, though the CPU device
does one thing after the other."""

import numpy as np
import pytest

from labkit import cuda
from labkit.course import exercise_files, exercises
from labkit.course.check import examine
from labkit.course.check.host_runs import HostRun, recording
from labkit.device import graphs
from tests.course.check.written import function_exercise

pytestmark = pytest.mark.cpu_device
N = 64


@cuda.jit
def add_one(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i] + np.float32(1)


@cuda.jit
def add_at(x, start):
    i = cuda.grid(1)
    if i < 8:
        x[start + i] += np.float32(1)


@cuda.jit
def add_counted(x, n, out):
    i = cuda.grid(1)
    if i < n:
        out[i] = x[i] + np.float32(1)


@cuda.jit
def add_in_rounds(x, n, out):
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        out[i] = x[i] + np.float32(1)


@cuda.jit
def add_by_another_name(x, out):
    o, i = out, cuda.grid(1)
    if i < x.size:
        o[i] = x[i] + np.float32(1)


@cuda.jit
def add_to_a_row(x, out):
    row = out[0]
    row[cuda.threadIdx.x] = x[cuda.threadIdx.x]


def unordered(work) -> list[str]:
    """What is not ordered in work(first stream, second stream, x, y), where x and y are arrays of the device."""
    run, x, y = HostRun({}), cuda.to_device(np.zeros(N, np.float32)), cuda.to_device(np.zeros(N, np.float32))
    with recording(run):
        work(cuda.stream(), cuda.stream(), x, y)
    return run.streams.unordered


def two_streams(a, b, x, y):
    add_one[2, 32, a](x, y)
    add_one[2, 32, b](x, y)


def copy_on_another_stream(a, b, x, y):
    add_one[2, 32, a](x, y)
    y.copy_to_host(stream=b)


def event_recorded_before_the_work(a, b, x, y):
    event = cuda.event()
    event.record(a)
    add_one[2, 32, a](x, y)
    event.wait(b)
    y.copy_to_host(stream=b)


def event_waited_for_too_late(a, b, x, y):
    event = cuda.event()
    add_one[2, 32, a](x, y)
    event.record(a)
    y.copy_to_host(stream=b)
    event.wait(b)


def the_other_stream_is_waited_for(a, b, x, y):
    add_one[2, 32, a](x, y)
    b.synchronize()
    y.copy_to_host(stream=b)


def sent_on_another_stream(a, b, x, y):
    sent = cuda.to_device(np.zeros(N, np.float32), stream=a)
    add_one[2, 32, b](sent, y)


def counted(a, b, x, y):
    add_counted[2, 32, a](x, N, y)
    y.copy_to_host(stream=b)


def counted_in_rounds(a, b, x, y):
    add_in_rounds[1, 32, a](x, N, y)
    add_in_rounds[1, 32, b](x, N, y)


def the_same_part(a, b, x, y):
    add_at[1, 8, a](x, 8)
    add_at[1, 8, b](x, 8)


def a_part_and_the_whole(a, b, x, y):
    add_at[1, 8, a](x, 8)
    x.copy_to_host(stream=b)


def another_name(a, b, x, y):
    add_by_another_name[2, 32, a](x, y)
    y.copy_to_host(stream=b)


def a_row(a, b, x, y):
    rows = y.reshape(2, 32)
    add_to_a_row[1, 32, a](x, rows)
    rows.copy_to_host(stream=b)


def a_replayed_graph(a, b, x, y):
    graph = graphs.capture(lambda stream: add_one[2, 32, stream](x, y))
    graph.launch(a)
    y.copy_to_host(stream=b)


@pytest.mark.parametrize("work", [counted, counted_in_rounds, the_same_part, a_part_and_the_whole, another_name, a_row,
                                  a_replayed_graph,
                                  two_streams, copy_on_another_stream, event_recorded_before_the_work,
                                  event_waited_for_too_late, the_other_stream_is_waited_for, sent_on_another_stream])
def test_what_nothing_orders_is_named(work):
    text, = unordered(work)
    assert "stream 1" in text and "stream 2" in text and "record an event on stream 1" in text


def an_event(a, b, x, y):
    event = cuda.event()
    add_one[2, 32, a](x, y)
    event.record(a)
    event.wait(b)
    y.copy_to_host(stream=b)


def an_event_of_an_event(a, b, x, y):
    third, one, two = cuda.stream(), cuda.event(), cuda.event()
    add_one[2, 32, a](x, y)
    one.record(a)
    one.wait(third)
    two.record(third)
    two.wait(b)
    y.copy_to_host(stream=b)


def the_host_waits(a, b, x, y):
    add_one[2, 32, a](x, y)
    a.synchronize()
    add_one[2, 32, b](x, y)
    cuda.synchronize()
    add_one[2, 32, a](y, x)


def the_host_waits_for_an_event(a, b, x, y):
    event = cuda.event()
    add_one[2, 32, a](x, y)
    event.record(a)
    event.synchronize()
    add_one[2, 32, b](x, y)


def the_default_stream_between(a, b, x, y):
    add_one[2, 32, a](x, y)
    add_one[2, 32](y, x)
    add_one[2, 32, b](x, y)


def both_read(a, b, x, y):
    add_one[2, 32, a](x[:32], y[:32])
    add_one[2, 32, b](x[:32], y[32:])


def parts_by_an_offset(a, b, x, y):
    add_at[1, 8, a](x, 0)
    add_at[1, 8, b](x, 8)


def asked_until_it_is_done(a, b, x, y):
    event = cuda.event()
    add_one[2, 32, a](x, y)
    event.record(a)
    while not event.query():
        pass
    add_one[2, 32, b](x, y)


def a_graph_and_its_stream(a, b, x, y):
    graph = graphs.capture(lambda stream: add_one[2, 32, stream](x, y))
    graph.launch(a)
    y.copy_to_host(stream=a)
    a.synchronize()
    graph.launch(b)


@pytest.mark.parametrize("work", [asked_until_it_is_done, a_graph_and_its_stream,
                                  an_event, an_event_of_an_event, the_host_waits, the_host_waits_for_an_event,
                                  the_default_stream_between, both_read, parts_by_an_offset])
def test_what_is_ordered_or_apart_is_no_race(work):
    assert unordered(work) == []


@pytest.mark.sweep(every=True)
def test_check_names_one_buffer_of_three_streams():
    exercise = exercises.find("waves_in_chunks")
    solution = exercise_files.solution("waves_in_chunks")
    shared = solution.answer.replace("cuda.device_array(x.size,", "cuda.device_array(size,").replace(
        "on_device[0][part], on_device[1][part]", "on_device[0][:x[part].size], on_device[1][:x[part].size]")
    lines = shared.split("\n")
    size = next(line for line in lines if "size = -(-x.size" in line)
    lines.remove(size)
    lines.insert(next(k for k, line in enumerate(lines) if "on_device =" in line), size)
    verdict = examine(exercise, solution.run("\n".join(lines), "<shared by three streams>"), seed=3)
    assert verdict.kind == "race" and "separate memory" in str(verdict).replace("\n", " ")
    assert verdict.mistake == "" and not verdict.mistake_is_exact


@pytest.mark.sweep(every=True)
def test_the_known_race_is_recognised():
    exercise = exercises.find("waves_in_chunks")
    mistake = "the copy back is on another stream than the kernel"
    verdict = examine(exercise, exercise.wrong[mistake], seed=3)
    assert (verdict.mistake, verdict.mistake_is_exact) == (mistake, False)


@pytest.mark.sweep(every=True)
def test_check_names_one_buffer_of_three_streams_whose_length_is_given():
    """A whole number among the arguments, which only guards, hides nothing."""
    solution = exercise_files.solution("waves_in_chunks")
    wave = "\n\n".join([
        "@cuda.jit\ndef my_wave(x, n, out):\n    i = cuda.grid(1)\n    if i < n:\n        total = x[i]\n"
        "        term = x[i]\n        for _ in range(8):\n            term *= np.float32(0.5)\n"
        "            total += term\n        out[i] = total",
        "def waves_in_chunks(x, chunks):\n    out, size = np.empty_like(x), -(-x.size // chunks)\n"
        "    streams = [cuda.stream() for _ in range(3)]\n    back = cuda.device_array(size, np.float32)\n"
        "    for chunk in range(-(-x.size // size)):\n        part = slice(chunk * size, (chunk + 1) * size)\n"
        "        stream = streams[chunk % 3]\n        there = cuda.to_device(x[part], stream)\n"
        "        my_wave[-(-there.size // 128), 128, stream](there, there.size, back)\n"
        "        back[:there.size].copy_to_host(out[part], stream)\n    cuda.synchronize()\n    return out"])
    verdict = examine(exercises.find("waves_in_chunks"), solution.run(wave, "<given a length>"), seed=3)
    assert verdict.kind == "race" and "launch of `my_wave`" in str(verdict).replace("\n", " ")


def test_an_exercise_without_a_demand_is_looked_at_too():
    def racing(x, out):
        a, b = cuda.stream(), cuda.stream()
        add_one[2, 32, a](x, out)
        add_one[2, 32, b](x, out)
        cuda.synchronize()

    def right(x, out):
        add_one[2, 32](x, out)

    exercise = function_exercise("made_here", lambda x: x + 1, lambda rng, n: (np.ones(n, np.float32),), ({"n": 40},),
                                 shape=lambda n: (n,), wrong={"a": racing, "b": racing})
    assert examine(exercise, right, seed=1).passed
    assert examine(exercise, racing, seed=1).kind == "race"
