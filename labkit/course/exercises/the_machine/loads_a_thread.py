"""Enough loads

By Little's law, memory is kept busy if the bytes in flight are its bandwidth times its latency. Write a function that
returns how many loads each thread must have in flight for that, rounded up.

`gbs` is the bandwidth in GB/s and `ns` the latency in nanoseconds. Each of `sms` SMs runs `threads` threads, and one
load brings `each` bytes. All five are integers, and so is the result. A GB is 10^9 bytes here, so GB/s times ns gives
bytes.
"""

HINTS = ("How many bytes must be in flight? And how many are, if every thread of the GPU has one load in flight?",
         "gbs * ns bytes are needed. One load per thread is sms * threads * each bytes. Divide, and round up.",
         "return -(-(gbs * ns) // (...)), with the bytes of one load per thread in the parentheses.")
POINTS = 2

# %%
def loads_a_thread(gbs, ns, sms, threads, each):
    ### BEGIN SOLUTION
    needed = gbs * ns  # bytes
    one_load_each = sms * threads * each
    return -(-needed // one_load_each)
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import FunctionExercise, whole_number

EXERCISE = FunctionExercise(
    name="loads_a_thread",
    reference=lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (sms * threads * each)),
    inputs=lambda rng, gbs, ns, sms, threads, each: (gbs, ns, sms, threads, each),
    sizes=tuple(dict(zip(("gbs", "ns", "sms", "threads", "each"), size, strict=True)) for size in (
        (100, 100, 10, 1000, 1),
        (100, 100, 10, 999, 1),
        (100, 100, 10, 1000, 4),
        (4800, 600, 132, 2048, 4),
        (4800, 600, 132, 64, 16),
        (320, 450, 40, 256, 8),
        (1000, 512, 80, 100, 64),
    )),
    domain="Its inputs are five counts, and `sizes` has divisions that come out even and others that do not.",
    demand=whole_number,
    wrong={
        "the division rounds down, and too few bytes are in flight":
            lambda gbs, ns, sms, threads, each: gbs * ns // (sms * threads * each),
        "it adds a load even where the division comes out even":
            lambda gbs, ns, sms, threads, each: gbs * ns // (sms * threads * each) + 1,
        "the bytes of a load are left out": lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (sms * threads)),
        "the threads of one SM are used instead of those of the whole GPU":
            lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (threads * each)),
        "bandwidth is divided by latency, but the two have to be multiplied":
            lambda gbs, ns, sms, threads, each: -(-gbs // (ns * sms * threads * each)),
        "the result is rounded up as a float, and stays a float":
            lambda gbs, ns, sms, threads, each: np.ceil(gbs * ns / (sms * threads * each)),
    },
)
