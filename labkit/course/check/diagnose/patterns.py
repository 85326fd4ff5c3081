"""What the wrong elements of an output have in common: which they are, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.course.check.words import show_value

BLOCKS = "blocks"  # the number of them, among the lengths


def pattern(expected, got, wrong, unwritten, inputs: tuple = (), block: tuple = (), size: dict | None = None,
            blocks: int = 0) -> str:
    """What the wrong elements have in common, in one or two sentences; "" where nothing stands out. block,
    blocks: of the launch; size: the lengths, by name."""
    if unwritten.all():
        return "No element was written."
    with np.errstate(all="ignore"):  # any bits may stand there, also a NaN that signals
        where = _which(expected, got, wrong, unwritten, inputs, block, {**(size or {}), BLOCKS: blocks})
        what = "" if unwritten[wrong].any() or "The output is" in where or "Every element is" in where else _values(
            expected, got, wrong)
    return " ".join(filter(None, (where, what)))


def _which(expected, got, wrong, unwritten, inputs, block: tuple, size: dict) -> str:
    count, total = int(wrong.sum()), wrong.size
    flat = np.flatnonzero(wrong)
    near = 1e-4 if expected.dtype.kind == "f" else 0.0  # of bits and of counts, nothing but equality says anything
    bits = expected.dtype.kind == "u"
    verb = "were never written" if unwritten.reshape(-1)[flat].all() else "are wrong"
    if count == total and total > 1 and not unwritten.any():
        return _whole_output(expected.astype(np.float64), got.astype(np.float64), inputs, near, bits)
    if count == 1:
        position = "first" if flat[0] == 0 else "last" if flat[0] == total - 1 else ""
        return f"Only the {position} element {verb.replace('are', 'is').replace('were', 'was')}." if position else ""
    if wrong.ndim >= 2 and (text := _along_an_axis(wrong, verb, block, size)):
        return text
    first, last = int(flat[0]), int(flat[-1])
    threads = int(np.prod(block)) if block and wrong.ndim == 1 else 0
    if count == last - first + 1:  # one run without a gap
        if last == total - 1 and threads and first == total // threads * threads:
            return f"They are all in the last block: elements {first} to {last} {verb}."
        if last == total - 1 and threads and first == threads:
            return f"Only the first {threads:,} elements are right, as many as a block has threads."
        begin = _called(first, block, size) if last == total - 1 and wrong.ndim == 1 else ""
        return f"They are contiguous: elements {first} to {last} (in memory order) {verb}{begin}."
    steps = np.unique(np.diff(flat))
    if steps.size == 1 and count >= 3:
        ordinal = {2: "second", 3: "third", 4: "fourth"}.get(int(steps[0]), f"{steps[0]}th")
        return f"Starting at {first}, every {ordinal} element {verb.replace('are', 'is').replace('were', 'was')}."
    if wrong.ndim == 2 and (text := _whole_output(expected.astype(np.float64), got.astype(np.float64), (), near, bits)):
        return text
    return _shifted(expected.reshape(-1).astype(np.float64), got.reshape(-1).astype(np.float64), near)


def _along_an_axis(wrong, verb: str, block: tuple, size: dict) -> str:
    """Where the index along one axis decides which elements are wrong."""
    for axis in range(wrong.ndim):
        lines = np.moveaxis(wrong, axis, 0).reshape(wrong.shape[axis], -1)
        mask = lines.all(axis=1)
        if not mask.any() or mask.all() or not np.array_equal(mask, lines.any(axis=1)):
            continue
        indices = np.flatnonzero(mask)
        from_here_on = indices[-1] == mask.size - 1 and indices.size == mask.size - indices[0]
        begin = _called(int(indices[0]), block, size) if from_here_on else ""
        if wrong.ndim == 2:
            return f"Whole {'columns' if axis else 'rows'} {verb}: {_listed(indices)}{begin}."
        place = ", ".join(":" * (k != axis) or "k" for k in range(wrong.ndim))
        return f"All elements [{place}] with k = {_listed(indices)} {verb}, and no others{begin}."
    if wrong.ndim == 2 and wrong.all(axis=1).any() and wrong.all():
        return f"Whole rows {verb}: 0 to {len(wrong) - 1}."
    return ""


def _called(number: int, block: tuple, size: dict) -> str:
    """Which length this number is, where it is one only: "; 16 is K". Of 1 and 2, too many are."""
    names = [name for name, value in size.items() if value == number]
    if names == [BLOCKS] and number > 1:
        return f"; the launch has {number} blocks"
    names = [name for name in names if name != BLOCKS]
    block_lengths = {int(length) for length in block if length > 1} | ({int(np.prod(block))} if block else set())
    if number < 3 or len(names) + (number in block_lengths) != 1:
        return ""
    return f"; {number} is {names[0]}" if names else f"; a block has {number} threads" + (
        "" if number == int(np.prod(block)) else " along one axis")


def _values(expected, got, wrong) -> str:
    """What the wrong elements hold, where it is one thing for all of several."""
    right, held = expected[wrong].astype(np.float64), got[wrong].astype(np.float64)
    if held.size < 2 or expected.dtype.kind not in "fi":
        return ""
    if np.isnan(held).all():
        return "All of these are NaN." if not wrong.all() else "Every element is NaN."
    if not np.isfinite(held).all() or not np.isfinite(right).all():
        return ""
    if (held == held[0]).all():
        return "" if wrong.all() else f"All of these hold {_number(held[0])}."
    near = 1e-4 if expected.dtype.kind == "f" else 0.0
    if np.allclose(np.sort(held), np.sort(right), rtol=near, atol=near / 100):
        return "These are the right values in another order."
    for value in _repeated(expected):
        if (got == value).any() and not ((got == value) & (expected == value)).any():
            return f"{_number(value)} is at {_some(got == value)}, but belongs at {_some(expected == value)}."
    offset = held - right
    if np.allclose(offset, offset[0], rtol=near, atol=near / 100) and abs(offset[0]) > 1e-3 and not wrong.all():
        return f"Each of these is {_number(abs(offset[0]))} too {'large' if offset[0] > 0 else 'small'}."
    ratio = held / right
    if np.isfinite(ratio).all() and np.allclose(ratio, ratio[0], rtol=max(near, 1e-9)) and not wrong.all():
        return f"Each of these is {ratio[0]:.4g} times what it should be."
    if (right < 0).all() and (expected[~wrong] >= 0).all() and not wrong.all():
        return "They are exactly the elements that should be negative."
    return ""


def _repeated(expected) -> Iterator:
    """A value that several elements should hold, and the others not."""
    values, counts = np.unique(expected, return_counts=True)
    if 1 < int(counts.max()) < expected.size and np.sort(counts)[-2:][0] == 1:
        yield values[np.argmax(counts)]


def _some(mask) -> str:
    flat = np.flatnonzero(mask)
    if flat.size > 1 and flat[-1] - flat[0] == flat.size - 1:
        return f"elements {flat[0]} to {flat[-1]}"
    return f"element {_listed(flat)}" if flat.size == 1 else f"elements {_listed(flat)}"


def _number(value) -> str:
    return show_value(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _listed(indices) -> str:
    indices = [int(n) for n in indices]
    if len(indices) > 2 and indices == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices[:6])) + (", ..." if len(indices) > 6 else "")


def _whole_output(expected, got, inputs, near: float, bits: bool) -> str:
    """Something that holds for the whole output."""
    if got.ndim == 2 and min(got.shape) > 1:
        side = min(got.shape)
        if _close(got[:side, :side], expected[:side, :side].T, near):
            return "The output is transposed: what belongs at [row, col] is at [col, row]."
    for index, array in enumerate(inputs):
        if isinstance(array, np.ndarray) and array.shape == got.shape and array.size > 1 and _close(got, array, near):
            return f"The output is a copy of input number {index + 1}."
    if not got.any():
        return "Every element is 0."
    if got.size > 2 and (got == got.flat[0]).all() and not (expected == expected.flat[0]).all():
        return f"Every element holds {show_value(got.flat[0].item() if got.flat[0] % 1 else int(got.flat[0]))}."
    if text := _shifted(expected.reshape(-1), got.reshape(-1), near):
        return text
    if bits:
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = got / expected
    if np.isfinite(ratio).all() and ratio.size > 2 and abs(ratio.flat[0]) > 1e-12:
        factor = float(np.median(ratio))
        if np.allclose(ratio, factor, rtol=near, atol=near / 100) and abs(factor - 1) > 1e-3:
            return f"Every element is {factor:.4g} times what it should be."
    if got.size > 2 and np.isfinite(got).all():
        offset = got - expected
        if np.allclose(offset, offset.flat[0], rtol=near, atol=near / 100) and abs(offset.flat[0]) > 1e-3:
            amount = abs(offset.flat[0])
            shown = f"{amount:,.0f}" if amount == int(amount) else f"{amount:.4g}"
            return f"Every element is {shown} too {'large' if offset.flat[0] > 0 else 'small'}."
    return ""


def _shifted(expected, got, near: float) -> str:
    if got.size < 4:
        return ""
    if _close(got[1:], expected[:-1], near):
        return "The output is shifted by one: element i holds what belongs at i - 1."
    if _close(got[:-1], expected[1:], near):
        return "The output is shifted by one: element i holds what belongs at i + 1."
    return ""


def _close(a, b, near: float) -> bool:
    return bool(np.allclose(a, b, rtol=near, atol=near / 100)) and not bool(
        np.allclose(b, np.ravel(b)[0], rtol=near / 10, atol=near / 1e4))
