"""Predictions: numbers compared with the true ones."""

from __future__ import annotations

import numpy as np

from labkit.course.check.diagnose.diagnosis import Diagnosis
from labkit.course.check.words import counted, show_value
from labkit.course.exercises import Exercise

WORKING_AFTER = 3  # wrong tries after which the working is shown


def diagnose_prediction(exercise: Exercise, answer, numbers: dict, tries: int = 0) -> Diagnosis:
    """Which numbers are wrong, and the known mistake that they show.

    tries: the number of wrong ones before. The working is shown from the third on; before, only the mistake.
    """
    truth = exercise.truth()
    if isinstance(answer, dict):
        numbers = {**answer, **numbers}
    elif answer is not None:
        if len(truth) != 1:
            raise ValueError(f"check({exercise.name!r}, ...) needs names: {', '.join(f'{k}=...' for k in truth)}")
        numbers = {**dict.fromkeys(truth, answer), **numbers}
    if unknown := numbers.keys() - truth.keys():
        raise ValueError(f"check({exercise.name!r}, ...) has no {sorted(unknown)[0]!r}; allowed are {', '.join(truth)}")
    missing = [key for key in truth if numbers.get(key) is None or numbers[key] is Ellipsis]
    wrong = [key for key in truth if key not in missing and not _equal(numbers[key], truth[key])]
    if missing and not wrong:
        return Diagnosis("unchanged", f"No prediction yet for {', '.join(f'`{key}`' for key in missing)}.",
                         ("Enter your prediction in the cell above, run that cell, then this one.",))
    rows = [[key, "none yet" if key in missing else show_value(numbers[key]),
             "" if key in missing else "no" if key in wrong else "yes"] for key in truth]
    table = {"columns": ["asked", "your prediction", "right"], "rows": rows}
    if not wrong:
        return Diagnosis("passed", "Every prediction is right.", table=table)
    known = [key for key in wrong if key in exercise.how]
    details = tuple(f"`{key}`: {exercise.how[key]}" for key in known)
    if known and tries + 1 < WORKING_AFTER:
        details = ("Think again, or get a hint. After the third try you will see the working.",)
    head = f"{len(wrong)} of {counted(list(truth), 'prediction')} {'is' if len(wrong) == 1 else 'are'} wrong."
    if missing:
        head += f" No prediction yet for {', '.join(f'`{key}`' for key in missing)}."
    if len(truth) == 1:
        head = "The prediction is wrong."
    mistake = next((mistake_text for mistake_text, values in exercise.wrong.items()
                    if all(_equal(numbers.get(key), value) for key, value in values.items())), "")
    exact = bool(mistake) and set(wrong) <= set(exercise.wrong[mistake])
    return Diagnosis("wrong_result", head, details, table, mistake=mistake, mistake_is_exact=exact)


def written(answer, numbers: dict) -> str:
    """A prediction as text, equal for equal tries."""
    values = {**answer, **numbers} if isinstance(answer, dict) else {"": answer, **numbers}
    return ", ".join(f"{key}={value!r}"[:80] for key, value in sorted(values.items()))


def _equal(predicted, expected) -> bool:
    try:
        a, b = np.asarray(predicted, np.float64), np.asarray(expected, np.float64)
    except (TypeError, ValueError):
        return predicted == expected
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6, atol=0))
