r"""Find the bug: one step too many

A state `y` goes through the same small step many times, $y \leftarrow y/2 + x$. The launcher records one step as a
graph and replays it. When called for three steps it returns the result of four.

Before you run the check: when does `graphs.capture` run the function it is given, and why? Its docstring says how to
prevent that. But what compiles the kernel then? (Here it has already been compiled, by the two lines under the kernel.)
"""

HINTS = ("Print y after the capture and before the first launch. Is it what was passed in?",
         "capture runs the work once before recording it, so that every kernel is compiled. Here that run changes y.",
         "Pass warm_up=False to graphs.capture.")
POINTS = 2
NEEDS = ("predict_launches",)

import numpy as np
from numba import float32

from labkit import cuda, graphs


# %%
@cuda.jit
def step_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = float32(0.5) * y[i] + x[i]


if __name__ == "__main__":
    one = cuda.to_device(np.zeros(1, np.float32))
    step_kernel[1, 32](one, one)

# %%
def run_steps(x, y, steps):
    blocks = -(-y.size // 128)
    graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y))
    for _ in range(steps):
        graph.launch()


### BEGIN SOLUTION
def run_steps(x, y, steps):
    blocks = -(-y.size // 128)
    graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y), warm_up=False)
    for _ in range(steps):
        graph.launch()


### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, FunctionExercise, asks, of, on_the_device, relative_to, uniform


@asks("The step is captured as a graph, and replayed.")
def _replays_a_graph(run) -> str | None:
    replayed = sum(one.in_graph for one in run.launches)
    if run.captures and not run.replays:
        return (f"A graph is captured, but it is never replayed: for {run.size['steps']} steps {len(run.launches)} "
                "kernels were launched one by one. Replay what `graphs.capture` returns, by its `launch()`.")
    if replayed < run.size["steps"] - 1:  # the warm-up may be a step
        return (f"For {run.size['steps']} steps {len(run.launches)} kernels ran, {replayed} of them from a graph. "
                "The step should be captured with `graphs.capture`, and then replayed.")
    return on_the_device(run)


def run_steps_on_the_host(x, y, steps):
    mine, added = y.copy_to_host(), x.copy_to_host()
    for _ in range(steps):
        mine = np.float32(0.5) * mine + added
    y.copy_to_device(mine)


EXERCISE = FunctionExercise(
    name="run_steps",
    reference=lambda x, y, steps: 0.5**steps * y.astype(np.float64) + x * 2 * (1 - 0.5**steps),
    inputs=lambda rng, n, steps: (uniform(rng, n), uniform(rng, n), steps),
    shape=lambda n, steps: (n,),
    start=lambda x, y, steps: y,
    arguments=lambda inputs, out, size: (inputs[0], out, inputs[2]),
    sizes=({"n": 1, "steps": 2}, {"n": 129, "steps": 3}, {"n": 300, "steps": 5}, {"n": 1000, "steps": 4},
           {"n": 131_200, "steps": 2}),  # more than 1,024 blocks of 128: a block of as many threads cannot be
    random_size=lambda rng: {"n": int(rng.integers(2, 500)), "steps": int(rng.integers(2, 7))},
    tolerance=relative_to(lambda x, y, steps: 2 * np.abs(x) + np.abs(y), roundings=8),
    domain=of((0, 1), *SUMMED),
    demand=_replays_a_graph,
    wrong={
        "the warm-up runs the step once more than the launches do": Edit(", warm_up=False", ""),
        "capturing is counted as a run, but it only records the launch": Edit("range(steps)", "range(steps - 1)"),
        "the graph is launched once, but it holds only one step": Edit("for _ in range(steps):", "for _ in range(1):"),
        "the graph holds all the steps, and is launched as many times again":
            Edit("step_kernel[blocks, 128, stream](x, y)",
                 "[step_kernel[blocks, 128, stream](x, y) for _ in range(steps)]"),
        "there is no graph: each step is launched by the host":
            Edit("graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y), warm_up=False)", "",
                 "graph.launch()", "step_kernel[blocks, 128](x, y)"),
        "grid and block are swapped: in the largest case a block would have more than 1,024 threads":
            Edit("[blocks, 128, stream]", "[128, blocks, stream]"),
        "the steps are computed by NumPy, on the host": run_steps_on_the_host,
    },
)

EQUIVALENT = {
    "arithmetic: -y.size // 128 -> -y.size": "More blocks than are needed: the guard stops their threads.",
    "number: 128 -> 127": "The grid holds as many threads as there are elements, or more: the guard stops the others.",
    "number: 128 -> 129 (2)":
        "The grid holds as many threads as there are elements, or more: the guard stops the others.",
    "number: 128 -> 256 (2)":
        "The grid holds as many threads as there are elements, or more: the guard stops the others.",
    "number: 128 -> 64": "The grid holds as many threads as there are elements, or more: the guard stops the others.",
}

AFTER = """
There are at least three fixes, and `check` accepts each. Large programs warm up on a copy of the data, since a step
that changes its input must not be run an extra time.
"""
