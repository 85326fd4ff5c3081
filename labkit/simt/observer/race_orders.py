"""A race played in both orders: one warp runs ahead and the result is wrong; then each waits for the others first."""

import math

from labkit.simt.errors import shown_index
from labkit.simt.observer.recorder import Recording


def orders(recording):
    """[(name, sentence, recording, wrong)] of the bad order and the good one of a recording's first race between warps
    of a block; empty if there is none, or if no order gives another result.

    wrong: {index of a step: {array: elements}} of what was written there and is never written in the good order.
    """
    for race in recording.report.races:
        sides = sorted(race.sides, key=lambda side: (side.step is None, side.step))
        if len({(side.block, side.thread // 32) for side in sides}) < 2 or len({side.block for side in sides}) > 1:
            continue  # of one warp, or of several blocks
        first, second = sides
        blocks = [first.block]
        good = Recording(recording.launch, blocks, held=second.line).record()
        for side, other in ((second, first), (first, second)):
            warp = side.thread // 32
            bad = Recording(recording.launch, blocks, ahead=warp).record()
            wrong = _wrong(bad, good)
            if wrong and not good.stopped:
                late = f"warp {other.thread // 32} has" + f" passed line {other.line}" * (other.line != side.line)
                return [
                    (f"Bad order: warp {warp} runs ahead",
                     f"Warp {warp} passes line {side.line} before {late}. {_result(bad, good)}", bad, wrong),
                    ("Good order: after a barrier",
                     f"Each warp waits for the others before line {second.line}, as at cuda.syncthreads(). "
                     f"{_right(bad, good)}", good, {}),
                ]
    return []


def _wrong(bad, good):
    """What the bad order writes, and the good one never has in that element."""
    usual = {}
    for trace in good.traces.values():
        for step in trace.steps:
            for array, values in step.values.items():
                for element, value in values:
                    usual.setdefault((array, element), set()).add(_key(value))
    wrong = {}
    for trace in bad.traces.values():
        for number, step in enumerate(trace.steps):
            for array, values in step.values.items():
                elements = [element for element, value in values if _key(value) not in usual.get((array, element), ())]
                if elements:
                    wrong.setdefault(number, {})[array] = elements
    return wrong


def _key(value):
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _differing(bad, good):
    """(array, element, its value in the bad order, and in the good one) of the first result that differs."""
    for name, known in bad.arrays.items():
        if known.space != "global":
            continue
        pairs = zip(bad.live[name].reshape(-1).tolist(), good.live[name].reshape(-1).tolist(), strict=True)
        for element, (got, right) in enumerate(pairs):
            if _key(got) != _key(right):
                return name, shown_index(_index(element, known.shape)), got, right
    return None


def _index(element, shape):
    index = []
    for length in reversed(shape):
        index.insert(0, element % length)
        element //= length
    return tuple(index)


def _result(bad, good):
    if not (found := _differing(bad, good)):
        return ""
    name, index, got, right = found
    return f"{name}[{index}] becomes {_number(got)}; it should be {_number(right)}."


def _right(bad, good):
    if not (found := _differing(bad, good)):
        return ""
    name, index, _, right = found
    return f"{name}[{index}] becomes {_number(right)}, as it should."


def _number(value):
    return "NaN" if _key(value) == "nan" else f"{value:.6g}"
