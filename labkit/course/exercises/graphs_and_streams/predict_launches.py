"""Predict: a queue of launches

A launch costs the host 30 µs. The GPU starts a kernel as soon as its launch is done and the previous kernel has
finished. While the GPU computes, the host goes on launching. A program makes 1,000 launches. How many microseconds pass
from the first launch to the end of the last kernel,

- if a kernel takes 4 µs,
- if a kernel takes 100 µs,
- if a kernel takes 4 µs and the program waits for each before it launches the next?

Then put the 1,000 kernels of 4 µs into a graph. Launching the graph costs 20 µs, once, and each kernel inside it 1 µs
on top of its 4. Finally: in the first case, for what percentage of the time does the GPU compute? Round to whole
numbers.
"""

HINTS = ("Draw two rows, the host above and the GPU below, and the first three launches with their kernels. Which row "
         "has gaps?",
         "The slower of the two sets the pace. To its 1,000 rounds add what cannot overlap: the last kernel in one "
         "case, the first launch in the other.",
         "1000 * 30 + 4; 30 + 1000 * 100; 1000 * (30 + 4); 20 + 1000 * (4 + 1); and 4 of every 30 microseconds as a "
         "percentage.")
POINTS = 2

# %%
short_us = None  # 1,000 kernels of 4 us
long_us = None  # 1,000 kernels of 100 us
waiting_us = None  # 4 us, and a synchronize after each
graph_us = None  # 4 us, in one graph
busy_percent = None  # of the first case
### BEGIN SOLUTION
short_us = 1000 * 30 + 4  # the last kernel starts when the last launch is done
long_us = 30 + 1000 * 100  # from the second launch on they hide behind the kernels
waiting_us = 1000 * (30 + 4)  # nothing overlaps
graph_us = 20 + 1000 * (4 + 1)
busy_percent = round(100 * 4 / 30)  # 13
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def queue(launch_us: float, kernel_us: float, count: int, wait_each: bool = False) -> float:
    """Microseconds from the first launch to the end of the last kernel. Launching takes the host `launch_us`; a kernel
    starts once its launch is done and the kernel before it has ended."""
    host = gpu = 0.0
    for _ in range(count):
        host += launch_us
        gpu = max(gpu, host) + kernel_us
        if wait_each:
            host = gpu
    return gpu


def launches_truth() -> dict[str, int]:
    in_graph = 20 + 1000 * (4 + 1)
    return {
        "short_us": round(queue(30, 4, 1000)),
        "long_us": round(queue(30, 100, 1000)),
        "waiting_us": round(queue(30, 4, 1000, wait_each=True)),
        "graph_us": in_graph,
        "busy_percent": round(100 * 1000 * 4 / queue(30, 4, 1000)),
    }


EXERCISE = PredictionExercise(
    name="predict_launches",
    truth=launches_truth,
    how={
        "short_us": "draw two rows, host and GPU. The host launches every 30 us. When does the last kernel start?",
        "long_us": "now the GPU is the slower one. After the first launch, is it ever without work?",
        "waiting_us": "nothing overlaps any more: each round is a launch and then a kernel.",
        "graph_us": "one launch of the graph, then 1,000 kernels of 4 us, each with one microsecond on top.",
        "busy_percent": "the GPU computes 4 us of every 30.",
    },
    wrong={
        "launch and kernel were added up, but the host goes on launching while the GPU computes": {"short_us": 34_000},
        "only the kernels were counted, but the GPU waits for each launch": {"short_us": 4_000},
        "the launches were added to the kernels, but all except the first are hidden behind them":
            {"long_us": 130_000},
        "waiting after each launch was taken to cost nothing": {"waiting_us": 30_004},
        "each launch in the graph was charged in full": {"graph_us": 34_000},
        "the GPU was taken to be busy all the time": {"busy_percent": 100},
    },
)

AFTER = """
For a kernel shorter than its launch the host sets the pace. Making such a kernel faster changes nothing.
"""
