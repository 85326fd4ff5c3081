"""From a blank page: who is next?

Write a policy. Whenever the scheduler can admit a request, it calls `choose_next(prompts, waited)` with two NumPy
arrays. They have one element per waiting request, in the order of arrival: the number of tokens in its prompt, and the
milliseconds that it has waited so far. Return the index of the request to admit next, from 0 on. At least one request
is waiting.

An example: with `prompts` [900, 30, 60] and `waited` [80, 20, 5], first come, first served (FIFO) returns 0, and
shortest prompt first returns 1.

The policy runs in a simulator, on traces of 150 requests or more: most prompts have 20 to 200 tokens, one in seven has
2,000 to 4,000, and for a while more requests arrive than the server can serve. A thousand prompt tokens need 4 ms, and
FIFO keeps requests waiting for 50 to 150 ms. On such traces

- the *mean* time to the first token must be at most 85% of FIFO's, and
- *no* request may wait for its first token more than 1.5 times as long as the longest wait with FIFO.

If all prompts are equally long, or hardly any request waits, no policy can be better than FIFO. Then the mean must not
be worse.
"""

HINTS = ("Serve the shortest prompt first: why does the mean fall? Which request waits longest then, and what would "
         "make sure that it is served in the end?",
         "Give each request a score that combines the two arrays: it grows with the length of the prompt, and falls "
         "while the request waits. Then even a long prompt is ahead of newer requests in the end. The smallest score "
         "is next.",
         "np.argmin(weight * prompts - waited), with weight in milliseconds per token. With 0 it is FIFO, and with a "
         "very large weight only the length counts. 3,000 tokens at 0.01 are 30 ms, a fraction of FIFO's longest wait.")
POINTS = 3

import numpy as np

# %%
choose_next = None  # write the function


### BEGIN SOLUTION
def choose_next(prompts, waited):
    return np.argmin(0.01 * prompts - waited)  # a thousand tokens more are worth ten milliseconds of waiting


### END SOLUTION

# %% [check]
from functools import partial

from labkit.course.exercises import Edit, FunctionExercise, Reach
from labkit.measure.simulation import ChoosingScheduler, Served, StepCost, Work, serve_trace

COST = StepCost(step_ms=1.0, row_ms=0.004, cached_ms=1e-5)
LONGEST = 1.5  # times as long as with FIFO one request may wait at most


class _Missed(Exception):
    """What the answer returned is no choice."""


def _serve(arrivals, prompts, outputs, choose=None) -> Served:
    work = [Work(*each) for each in zip(prompts.tolist(), outputs.tolist(), arrivals.tolist(), strict=True)]
    scheduler = {} if choose is None else {"scheduler": partial(ChoosingScheduler, choose=choose)}
    return serve_trace(work, COST, max_num_seqs=8, max_num_batched_tokens=256, **scheduler)


def _in_order(arrivals, prompts, outputs, share):
    """The times to the first token with first come, first served."""
    return _serve(arrivals, prompts, outputs).first_ms


def _goal_missed(answer, in_order, arrivals, prompts, outputs, share) -> str | None:
    """share: of the mean time with FIFO, that the mean must not exceed."""
    def choose(lengths, waited):
        value = answer(lengths, waited)
        number = np.asarray(value)
        if number.ndim or number.dtype.kind not in "iu":
            raise _Missed(f"With {len(lengths)} waiting it returned {value!r}; it must return one integer.")
        if not 0 <= number < len(lengths):
            raise _Missed(f"With {len(lengths)} waiting it returned {int(number)}; they are numbered from 0 to "
                          f"{len(lengths) - 1}.")
        return int(number)

    try:
        first = _serve(arrivals, prompts, outputs, choose).first_ms
    except _Missed as missed:
        return str(missed)
    worst, most = int(first.argmax()), LONGEST * in_order.max()
    if first[worst] > most:
        return (f"Of {len(first)} requests, number {worst} with a prompt of {prompts[worst]:,} tokens waits "
                f"{first[worst]:.1f} ms for its first token. With FIFO the longest wait is {in_order.max():.1f} ms, so "
                f"at most {most:.1f} ms are allowed.")
    if first.mean() > share * in_order.mean():
        return (f"The mean time to the first token of {len(first)} requests is {first.mean():.1f} ms. With FIFO it is "
                f"{in_order.mean():.1f} ms; it must be at most {share:.0%} of that, {share * in_order.mean():.1f} ms.")
    return None


def _trace(rng, n, load):
    """Short prompts, and one in seven long. load: in percent of what the server can do."""
    prompts = np.where(rng.random(n) < 0.15, rng.integers(2000, 4000, n), rng.integers(20, 200, n))
    between = 100 * COST.row_ms * prompts.mean() / load
    return np.cumsum(rng.exponential(between, n)), prompts, rng.integers(1, 9, n), 0.85


def _traces(words, turn, n=150, load=150):
    return Reach(words, turn, {"n": n, "load": load})


def _equal_prompts(rng, arrivals, prompts, outputs, share):
    return np.cumsum(rng.exponential(0.8, len(prompts))), np.full(len(prompts), 300), outputs, 1.02


def _regular(rng, arrivals, prompts, outputs, share):
    n = len(prompts)
    prompts = rng.integers(20, 200, n)
    prompts[3::12] = 1500
    return 0.7 * np.arange(n), prompts, np.full(n, 2), share


EXERCISE = FunctionExercise(
    name="choose_next",
    reference=_in_order,
    inputs=_trace,
    judge=_goal_missed,
    sizes=({"n": 150, "load": 150}, {"n": 170, "load": 160}, {"n": 200, "load": 145}),
    random_size=lambda rng: {"n": int(rng.integers(150, 220)), "load": int(rng.integers(145, 165))},
    domain=(_traces("there is one request", lambda rng, *given: (*given[:3], 1.0), n=1),
            _traces("the load is low, and most requests find an empty queue", lambda rng, *given: (*given[:3], 1.02),
                    n=60, load=5),
            _traces("all prompts are equally long", _equal_prompts),
            _traces("all requests arrive at the same time",
                    lambda rng, arrivals, *rest: (np.zeros(len(arrivals)), *rest)),
            _traces("every twelfth prompt is long, and requests arrive evenly", _regular),
            _traces("requests arrive in groups, in the same millisecond", lambda rng, arrivals, *rest: (
                arrivals[np.arange(len(arrivals)) // 4 * 4], *rest))),
    wrong={
        "first come, first served": Edit("np.argmin(0.01 * prompts - waited)", "0"),
        "the shortest prompt is next: a long one waits for as long as shorter ones arrive": Edit(
            "np.argmin(0.01 * prompts - waited)", "np.argmin(prompts)"),
        "the longest prompt is next": Edit("np.argmin(0.01 * prompts - waited)", "np.argmax(prompts)"),
        "the request that arrived last is next": Edit("np.argmin(0.01 * prompts - waited)", "len(prompts) - 1"),
        "the request that has waited least is preferred: the sign is wrong": Edit("prompts - waited",
                                                                                  "prompts + waited"),
        "waiting counts for next to nothing": Edit("0.01 * prompts", "10 * prompts"),
        "the length counts for next to nothing: it is nearly FIFO": Edit("0.01 * prompts", "0.0005 * prompts"),
        "the smallest value is returned, not its index": Edit("np.argmin(", "np.min("),
    },
)

EQUIVALENT = {
    "number: 0.01 -> 0.02": "Another weight that is good enough: the text asks for a policy, not for this one.",
}

AFTER = """
To see your policy in the lesson's simulator, pass `partial(ChoosingScheduler, choose=choose_next)` as the scheduler.
"""
