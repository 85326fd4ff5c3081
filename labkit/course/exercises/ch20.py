"""The exercises of lesson 20: GPT-2's GELU with its bias, what fusing saves, one graph for many inputs.

Sizes are R (rows) and C (columns); N inputs of S rows and C columns, and I columns of their outputs.
"""


import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import asks, on_the_device
from labkit.course.exercises.domains import (
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    SUMMED,
    ZEROS,
    in_place,
    of,
)
from labkit.device import graphs
from labkit.kernels.gelu import gelu_tanh_reference
from labkit.kernels.linear.fused import fused_reference, fused_tiled
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to
from labkit.models.gpt2_block import GPT2_SMALL, traffic

# --- Bias and GELU, the form with tanh -----------------------------------------------------------------------------


def _some_large(rng, R, C):
    """Every fifth number is so large that the exponential of its cube does not fit into a float32."""
    scale = np.where(np.arange(R * C) % 5 == 4, 20, 2).astype(np.float32)
    return uniform(rng, R, C) * scale.reshape(R, C)


BIAS_GELU_TANH = KernelExercise(
    name="bias_gelu_tanh",
    reference=lambda x, bias: gelu_tanh_reference(x.astype(np.float64) + bias.astype(np.float64)),
    inputs=lambda rng, R, C: (_some_large(rng, R, C), uniform(rng, C)),
    shape=lambda R, C: (R, C),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 5), (8, 32), (5, 33), (17, 40))),
    launch=lambda R, C: ((-(-C // 32), -(-R // 8)), (32, 8)),
    tolerance=relative_to(lambda x, bias: np.abs(x) + np.abs(bias), roundings=8),
    domain=(*of(0, FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, ZEROS), in_place(0)),
    wrong={
        "the exact form, with the error function: close, but not what GPT-2 was trained with":
            Edit("math.tanh(ROOT * (v + CUBIC * v * v * v))", "math.erf(v * float32(0.70710678))"),
        "the bias is added after GELU":
            Edit("v = x[row, col] + bias[col]", "v = x[row, col]",
                 "CUBIC * v * v * v)))", "CUBIC * v * v * v))) + bias[col]"),
        "the bias is read at the row": Edit("v = x[row, col] + bias[col]", "v = x[row, col] + bias[row % bias.size]"),
        "the small term holds the square in place of the cube": Edit("CUBIC * v * v * v", "CUBIC * v * v"),
        "the small term is missing": Edit("(v + CUBIC * v * v * v)", "v"),
        "the root belongs to both terms: ROOT * (v + ...)": Edit("(v + CUBIC * v * v * v)", "v + CUBIC * v * v * v"),
        "the half is missing": Edit("float32(0.5) * v", "v"),
        "the grid's x runs along the columns: `col` comes first":
            Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
        "the quotient of two exponentials, which are infinite for large numbers":
            Edit("out[row, col] = float32(0.5) * v * (float32(1.0) + math.tanh(ROOT * (v + CUBIC * v * v * v)))",
                 "power = math.exp(float32(2.0) * ROOT * (v + CUBIC * v * v * v))\n"
                 "out[row, col] = v * (power / (power + float32(1.0)))"),
        "no guard": Edit("if row < x.shape[0] and col < x.shape[1]:", "if True:"),
    },
)


# --- Predict: what fusing saves ------------------------------------------------------------------------------------

TOKENS = 1024


def _saved() -> dict:
    fused, separate = (traffic(GPT2_SMALL, TOKENS, fused=fused) for fused in (True, False))
    weights = 4 * GPT2_SMALL.size
    one = sum(traffic(GPT2_SMALL, 1).values())
    return {"launches": len(separate) - len(fused), "gelu_bytes": separate["mlp.gelu"],
            "residual_bytes": sum(separate.values()) - sum(fused.values()) - separate["mlp.gelu"],
            "buffer_bytes": 4 * TOKENS * (6 * GPT2_SMALL.width + 3 * GPT2_SMALL.width + GPT2_SMALL.inner),
            "weights_percent": round(100 * weights / one)}


ROW = 4 * 768 * TOKENS  # bytes of a matrix with a row of 768 for each token

PREDICT_BLOCK = PredictionExercise(
    name="predict_block",
    truth=_saved,
    how={"launches": "GELU and two additions lose their kernels",
         "gelu_bytes": "a kernel of its own reads 1,024 x 3,072 numbers and writes as many",
         "residual_bytes": "for each of the two: what is added is not written and not read again, 1,024 x 768 numbers "
                           "twice; the residual itself is read either way",
         "buffer_bytes": "six of 768 columns, one of 2,304, one of 3,072: 9,984 numbers a token",
         "weights_percent": "28.4 MB of weights, and beside them some 80 KB; a whole number of percent"},
    wrong={"counts the reading only, and not the writing": {
               "launches": 3, "gelu_bytes": 4 * ROW, "residual_bytes": 2 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts one addition; there are two": {
               "launches": 3, "gelu_bytes": 8 * ROW, "residual_bytes": 2 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts what is left, seven, and not what is gone": {"launches": 7},
           "takes the residual itself for saved: it has to be read either way": {
               "launches": 3, "gelu_bytes": 8 * ROW, "residual_bytes": 6 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts numbers, not bytes": {
               "launches": 3, "gelu_bytes": 2 * ROW, "residual_bytes": ROW, "buffer_bytes": 13 * ROW // 4,
               "weights_percent": 100}},
)


# --- From a blank page: one graph, many inputs ----------------------------------------------------------------------


def _layer_of_each(batches, weights, bias):
    return np.stack([fused_reference(x, weights, bias, gelu=True) for x in batches])


def _layer_tolerance(batches, weights, bias):
    return 1e-5 * (np.abs(batches) @ np.abs(weights) + np.abs(bias))


@asks("One graph is captured, with one launch in it, and replayed once for each input.")
def _one_graph_replayed(run) -> str | None:
    inputs = run.size["N"]
    if run.captures != 1 or run.replays != inputs:
        return (f"For {inputs} inputs {run.captures} graphs were captured, and there were {run.replays} replays. Asked "
                f"for is one graph, which is captured once and replayed for each input: {inputs} times.")
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


REPLAY_LAYER = FunctionExercise(
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

EXERCISES = (BIAS_GELU_TANH, PREDICT_BLOCK, REPLAY_LAYER)
