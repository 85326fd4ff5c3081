r"""From a blank page: one graph, many inputs

`batches` holds N inputs, one after another: its shape is (N, S, C). Each goes through the same linear layer with a
GELU, $\text{out}_n = \text{gelu}(\text{batches}_n \cdot \text{weights} + \text{bias})$, and `out` has the shape
(N, S, I). Everything is on the device.

Write `replay_layer(batches, weights, bias, out)`, a host function. It captures one graph, whose only launch is
`fused_tiled(x, weights, bias, y, gelu=True, stream=stream)`, and replays it N times. The graph should also work for
inputs that do not exist yet when it is captured, so it must not hold all N launches.

`graphs.capture(work)` calls `work(stream)` and returns the graph, and `graph.launch()` replays it.
`cuda.device_array(shape, np.float32)` allocates, `batches[n]` is a part of an array, and `a.copy_to_device(b)` copies
the device array `b` into `a`. Copies belong outside the graph.
"""

HINTS = ("A graph holds the addresses that were passed when it was captured. So which arrays must fused_tiled be "
         "captured with, if it is to read another input in each replay?",
         "Allocate one array for an input and one for an output, and capture the layer between these two. For each "
         "input: copy it into the first array, launch the graph, copy the second array into `out`.",
         "x, y = cuda.device_array(batches.shape[1:], np.float32), cuda.device_array(out.shape[1:], np.float32); graph "
         "= graphs.capture(lambda stream: fused_tiled(x, weights, bias, y, gelu=True, stream=stream)); in the loop "
         "x.copy_to_device(batches[number]), graph.launch(), out[number].copy_to_device(y).")
POINTS = 3
NEEDS = ("run_steps",)

import numpy as np

from labkit import cuda, graphs
from labkit.kernels.linear.fused import fused_tiled

# %%
replay_layer = None  # write the function


### BEGIN SOLUTION
def replay_layer(batches, weights, bias, out):
    x, y = cuda.device_array(batches.shape[1:], np.float32), cuda.device_array(out.shape[1:], np.float32)
    graph = graphs.capture(lambda stream: fused_tiled(x, weights, bias, y, gelu=True, stream=stream))
    for number in range(batches.shape[0]):
        x.copy_to_device(batches[number])
        graph.launch()
        out[number].copy_to_device(y)


### END SOLUTION

# %% [check]
from labkit.course.exercises import SUMMED, Edit, FunctionExercise, asks, of, on_the_device, uniform
from labkit.kernels.linear.fused import fused_reference


def _layer_of_each(batches, weights, bias):
    return np.stack([fused_reference(x, weights, bias, gelu=True) for x in batches])


def _layer_tolerance(batches, weights, bias):
    return 1e-5 * (np.abs(batches) @ np.abs(weights) + np.abs(bias))


@asks("One graph is captured, with one launch in it, and replayed once per input.")
def _one_graph_replayed(run) -> str | None:
    inputs = run.size["N"]
    if run.captures != 1 or run.replays != inputs:
        return (f"For {inputs} inputs {run.captures} graphs were captured, and there were {run.replays} replays. "
                f"Capture one graph, once, and replay it for each input: {inputs} times.")
    return on_the_device(run)


def replay_rebound(batches, weights, bias, out):
    x, y = batches[0], out[0]
    graph = graphs.capture(lambda stream: fused_tiled(x, weights, bias, y, gelu=True, stream=stream))
    for number in range(batches.shape[0]):
        x, y = batches[number], out[number]
        graph.launch()


def replay_first_input(batches, weights, bias, out):
    y = cuda.device_array(out.shape[1:], np.float32)
    graph = graphs.capture(lambda stream: fused_tiled(batches[0], weights, bias, y, gelu=True, stream=stream))
    for number in range(batches.shape[0]):
        graph.launch()
        out[number].copy_to_device(y)


def replay_captured_each_time(batches, weights, bias, out):
    for number in range(batches.shape[0]):
        x, y = batches[number], out[number]
        graphs.capture(lambda stream, x=x, y=y: fused_tiled(x, weights, bias, y, gelu=True, stream=stream)).launch()


def replay_all_in_one(batches, weights, bias, out):
    def work(stream):
        for number in range(batches.shape[0]):
            fused_tiled(batches[number], weights, bias, out[number], gelu=True, stream=stream)

    graphs.capture(work).launch()


def replay_without_graph(batches, weights, bias, out):
    for number in range(batches.shape[0]):
        fused_tiled(batches[number], weights, bias, out[number], gelu=True)


def replay_on_the_host(batches, weights, bias, out):
    arrays = (array.copy_to_host() for array in (batches, weights, bias))
    out.copy_to_device(_layer_of_each(*arrays).astype(np.float32))


EXERCISE = FunctionExercise(
    name="replay_layer",
    reference=_layer_of_each,
    inputs=lambda rng, N, S, C, I: (uniform(rng, N, S, C), uniform(rng, C, I), uniform(rng, I)),  # noqa: E741
    shape=lambda N, S, C, I: (N, S, I),  # noqa: E741
    sizes=tuple({"N": N, "S": S, "C": C, "I": inner} for N, S, C, inner in
                ((1, 1, 4, 5), (3, 2, 8, 12), (4, 5, 17, 33), (2, 9, 48, 80))),
    tolerance=_layer_tolerance,
    domain=of(0, *SUMMED),
    demand=_one_graph_replayed,
    wrong={
        "a graph holds the arrays it was captured with: giving the names x and y to other arrays changes nothing in it":
            replay_rebound,
        "the graph always reads the first input": replay_first_input,
        "the results stay in the array that the graph writes": Edit("out[number].copy_to_device(y)", ""),
        "the result is copied before the graph has computed it": Edit(
            "graph.launch()\nout[number].copy_to_device(y)", "out[number].copy_to_device(y)\ngraph.launch()"),
        "the inputs are never copied to where the graph reads": Edit("x.copy_to_device(batches[number])", ""),
        "the layer has no GELU": Edit(", gelu=True", ""),
        "the layer is not launched on the stream of the capture: nothing is recorded": Edit(", stream=stream", ""),
        "a graph is captured for each input": replay_captured_each_time,
        "one graph holds all inputs, and is launched once": replay_all_in_one,
        "there is no graph: each layer is launched by the host": replay_without_graph,
        "NumPy computes it all, on the host": replay_on_the_host,
    },
)

AFTER = """
`capture` ran the layer once before there was an input in `x`, to compile its kernel. Why does that do no harm here,
when it did in the exercise `run_steps` of lesson 13?
"""
