"""Predict: queues

A server gets 40 requests per second. A request stays for 1,500 ms on average, from its arrival to its last token: first
it waits in the queue for 300 ms, and then it runs. A step takes 2 ms, and every running request gets one token in each
step. How many requests are inside on average, how many of them are queued, and how many tokens per second does the
server write?

Another server handles one request at a time, in 10 ms on average. Both the times between arrivals and the service times
are exponentially distributed. At 50 arrivals per second, for example, the load is 0.5 and a request stays for 20 ms.
How many milliseconds does it stay on average, waiting and service together, at 75 arrivals per second? At 95? And at 75
again, if the server needs 20% less time, 8 ms?
"""

HINTS = ("If 40 requests arrive per second and each stays for a second, how many are inside at any moment? And if "
         "each stays for one and a half?",
         "Little's law, number = rate x time, holds for the whole server and for its queue alone. With one server the "
         "mean stay is the service time divided by 1 - load, where the load is the arrivals per second times the "
         "service time in seconds.",
         "inside = 40 x 1.5; queued = 40 x 0.3; the others run, and each of them gets a token in each of the 500 steps "
         "of a second. 10 / (1 - 0.75), 10 / (1 - 0.95), and 8 / (1 - 75 x 0.008).")
POINTS = 2

# %%
inside = None  # requests
queued = None  # of these
tokens_per_second = None
ms_at_75 = None  # 75 arrivals a second
ms_at_95 = None
ms_faster = None  # 75 arrivals a second, 8 ms of service
### BEGIN SOLUTION
inside = 60
queued = 12
tokens_per_second = 24_000
ms_at_75 = 40
ms_at_95 = 200
ms_faster = 20
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _queue() -> dict:
    arrivals, stay_ms, queue_ms, step_ms = 40, 1500, 300, 2
    running = arrivals * (stay_ms - queue_ms) // 1000
    return {"inside": arrivals * stay_ms // 1000, "queued": arrivals * queue_ms // 1000,
            "tokens_per_second": running * 1000 // step_ms, "ms_at_75": _stay_ms(10, 75), "ms_at_95": _stay_ms(10, 95),
            "ms_faster": _stay_ms(8, 75)}


def _stay_ms(service_ms: int, arrivals: int) -> int:
    """Service over what the load leaves: with one server, and arrivals and service times that are exponential."""
    return service_ms * 1000 // (1000 - service_ms * arrivals)


TRUE_QUEUE = {"inside": 60, "queued": 12, "tokens_per_second": 24_000, "ms_at_75": 40, "ms_at_95": 200, "ms_faster": 20}

EXERCISE = PredictionExercise(
    name="predict_waiting",
    truth=_queue,
    how={"inside": "Little's law: 40 requests a second, each there for 1.5 seconds.",
         "queued": "The law holds for the queue alone as well: 40 a second, each in it for 0.3 seconds.",
         "tokens_per_second": "60 - 12 = 48 are running. Each gets a token in every step, and there are 500 steps "
                              "per second.",
         "ms_at_75": "The load is 75 times 0.010 s = 0.75, and 10 ms / (1 - 0.75) = 40 ms.",
         "ms_at_95": "The load is 0.95, and 10 ms / 0.05 = 200 ms.",
         "ms_faster": "The load falls to 75 times 0.008 s = 0.6, and 8 ms / 0.4 = 20 ms."},
    wrong={"waiting requests are counted as running": {**TRUE_QUEUE, "tokens_per_second": 30_000},
           "the time in the queue is added to the 1.5 seconds": {**TRUE_QUEUE, "inside": 72,
                                                                     "tokens_per_second": 30_000},
           "one token per step, not one per running request": {**TRUE_QUEUE, "tokens_per_second": 500},
           "waiting grows in proportion to the load": {**TRUE_QUEUE, "ms_at_75": 7.5, "ms_at_95": 9.5,
                                                       "ms_faster": 6},
           "the time in the queue alone, without the service": {**TRUE_QUEUE, "ms_at_75": 30, "ms_at_95": 190,
                                                                "ms_faster": 12},
           "the service gets shorter, but the load stays the same": {**TRUE_QUEUE, "ms_faster": 32}},
)
