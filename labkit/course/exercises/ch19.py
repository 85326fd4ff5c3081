"""The exercises of lesson 19: the flat buffer, GELU in the epilogue, Pre-LN, bytes and launches of a block, embedding.

Sizes are R (rows) and C (columns); S, C and I for the tokens, the width and the inner width of a block; T tokens.
"""


import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import on_the_device
from labkit.course.exercises.domains import (
    FAR_ABOVE_ZERO,
    FAR_BELOW_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ZEROS,
    in_place,
    of,
)
from labkit.kernels.embedding import embedding_reference
from labkit.kernels.gelu import gelu_tanh_reference
from labkit.kernels.linear.fused import fused_reference, fused_tiled
from labkit.kernels.norm.layernorm import layernorm_block_tree, layernorm_reference
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to
from labkit.models.gpt2_block import GPT2_SMALL, Shape, traffic

# --- Where each parameter begins -----------------------------------------------------------------------------------


def _offsets(sizes):
    return np.cumsum([0, *sizes]).tolist()


def _sizes(C, inner):
    return [C, C, C * 3 * C, 3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]


def _reference_offsets(width, inner):
    shape = Shape(width, 1, inner)
    return np.array([*shape.offsets.values(), shape.size])


def offsets_one_of_three(width, inner):
    sizes = _sizes(width, inner)
    sizes[2] = width * width
    return _offsets(sizes)


def offsets_no_biases(width, inner):
    sizes = _sizes(width, inner)
    sizes[3] = sizes[5] = sizes[9] = sizes[11] = 0
    return _offsets(sizes)


def offsets_biases_first(width, inner):
    sizes = _sizes(width, inner)
    for k in (2, 4, 8, 10):
        sizes[k], sizes[k + 1] = sizes[k + 1], sizes[k]
    return _offsets(sizes)


def offsets_ends(width, inner):
    return np.cumsum([*_sizes(width, inner), 0]).tolist()


def offsets_inner_bias(width, inner):
    sizes = _sizes(width, inner)
    sizes[9] = width
    return _offsets(sizes)


BLOCK_OFFSETS = FunctionExercise(
    name="block_offsets",
    reference=_reference_offsets,
    inputs=lambda rng, width, inner: (width, inner),
    sizes=tuple({"width": width, "inner": inner} for width, inner in ((2, 3), (5, 4), (48, 80), (768, 3072))),
    domain="Its inputs are two lengths, and `sizes` has the awkward ones.",
    wrong={"attn.c_attn.weight holds queries, keys and values: it has three times as many columns as rows":
           offsets_one_of_three,
           "the biases of the four linear layers are left out": offsets_no_biases,
           "each linear layer's bias is laid before its weights": offsets_biases_first,
           "these are the ends of the parameters, not their beginnings": offsets_ends,
           "mlp.c_fc.bias has an element for each of the inner columns": offsets_inner_bias},
)


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


# --- Find the bug: Pre-LN ------------------------------------------------------------------------------------------


def _like(x, columns):
    return cuda.device_array((x.shape[0], columns), np.float32)


def mlp_normed_last(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    hidden, added = _like(x, w_fc.shape[1]), _like(x, x.shape[1])
    fused_tiled(x, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, added, residual=x)
    layernorm_block_tree(added, weight, bias, out)


def mlp_adds_the_normed(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    normed, hidden = _like(x, x.shape[1]), _like(x, w_fc.shape[1])
    layernorm_block_tree(x, weight, bias, normed)
    fused_tiled(normed, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, out, residual=normed)


def mlp_without_residual(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    normed, hidden = _like(x, x.shape[1]), _like(x, w_fc.shape[1])
    layernorm_block_tree(x, weight, bias, normed)
    fused_tiled(normed, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, out)


def mlp_norm_not_used(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    normed, hidden = _like(x, x.shape[1]), _like(x, w_fc.shape[1])
    layernorm_block_tree(x, weight, bias, normed)
    fused_tiled(x, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, out, residual=x)


def mlp_gelu_last(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    normed, hidden = _like(x, x.shape[1]), _like(x, w_fc.shape[1])
    layernorm_block_tree(x, weight, bias, normed)
    fused_tiled(normed, w_fc, b_fc, hidden)
    fused_tiled(hidden, w_proj, b_proj, out, gelu=True, residual=x)


def _mlp_reference(x, weight, bias, w_fc, b_fc, w_proj, b_proj):
    hidden = fused_reference(layernorm_reference(x, weight, bias), w_fc, b_fc, gelu=True)
    return fused_reference(hidden, w_proj, b_proj, residual=x)


def _mlp_tolerance(x, weight, bias, w_fc, b_fc, w_proj, b_proj):
    hidden = np.abs(layernorm_reference(x, weight, bias)) @ np.abs(w_fc) + np.abs(b_fc)
    return 1e-5 * (np.abs(x) + hidden @ np.abs(w_proj) + np.abs(b_proj))


def _mlp_inputs(rng, S, C, I):  # noqa: E741
    return (3 * uniform(rng, S, C), 1 + uniform(rng, C) / 4, uniform(rng, C), uniform(rng, C, I), uniform(rng, I),
            uniform(rng, I, C), uniform(rng, C))


def mlp_on_the_host(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    arrays = (array.copy_to_host() for array in (x, weight, bias, w_fc, b_fc, w_proj, b_proj))
    out.copy_to_device(_mlp_reference(*arrays).astype(np.float32))


MLP_HALF = FunctionExercise(
    name="mlp_half",
    reference=_mlp_reference,
    inputs=_mlp_inputs,
    shape=lambda S, C, I: (S, C),  # noqa: E741
    sizes=tuple({"S": S, "C": C, "I": inner} for S, C, inner in ((1, 4, 5), (3, 8, 12), (5, 17, 33), (9, 48, 80))),
    tolerance=_mlp_tolerance,
    domain=of(0, ONE_FAR_ABOVE, NEGATIVE, ZEROS),
    demand=on_the_device,
    wrong={"LayerNorm comes last, over the sum: that is Post-LN": mlp_normed_last,
           "what is added at the end is the normalised row, not the row itself": mlp_adds_the_normed,
           "the row itself is never added": mlp_without_residual,
           "LayerNorm is computed and not used": mlp_norm_not_used,
           "GELU stands behind the second product: it belongs between the two": mlp_gelu_last,
           "NumPy computes it all, on the host": mlp_on_the_host},
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


# --- From a blank page: tokens become rows --------------------------------------------------------------------------


def _embedding_inputs(rng, T, C, before):
    ids = rng.integers(0, 50, T).astype(np.int32)
    return ids, uniform(rng, 50, C), uniform(rng, before + T + 3, C), np.array([before], np.int32)


@cuda.jit
def embed_by_thread_0(ids, tokens, positions, start, out):
    t = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        for col in range(out.shape[1]):
            out[t, col] = tokens[ids[t], col] + positions[start[0] + t, col]


EMBED_TOKENS = KernelExercise(
    name="embed_tokens",
    reference=embedding_reference,
    inputs=_embedding_inputs,
    shape=lambda T, C, before: (T, C),
    sizes=tuple({"T": T, "C": C, "before": before} for T, C, before in
                ((1, 1, 2), (2, 3, 0), (3, 5, 4), (4, 128, 1), (3, 129, 7), (5, 300, 2))),
    launch=lambda T, C, **_: (T, 128),
    observe_sizes=({"T": 4, "C": 128, "before": 1}, {"T": 3, "C": 129, "before": 7}),
    domain=(*of((1, 2), HUGE_AND_TINY, NEGATIVE),
            Reach("all tokens are the first of the table", lambda rng, ids, *others: (0 * ids, *others)),
            Reach("all tokens are the last of the table",
                  lambda rng, ids, tokens, *others: (0 * ids + np.int32(len(tokens) - 1), tokens, *others))),
    wrong={
        "positions count from 0: those before `start[0]` are tokens of an earlier call": Edit("start[0] + t", "t"),
        "the row of `tokens` is taken at the place, not at the id": Edit("ids[t], col", "t % tokens.shape[0], col"),
        "the position is never added": Edit("[ids[t], col] + positions[start[0] + t, col]", "[ids[t], col]"),
        "every token gets the position of the first one": Edit("[0] + t, col", "[0], col"),
        "one element a thread: rows longer than 128 are left unfinished":
            Edit("for col in range(cuda.threadIdx.x, out.shape[1], 128):",
                 "col = cuda.threadIdx.x\n"
                 "if col < out.shape[1]:"),
        "no guard: the last round of a row goes on beyond it":
            Edit("for col in range(cuda.threadIdx.x, out.shape[1], 128):",
                 "for first in range(0, out.shape[1], 128):\n"
                 "    col = first + cuda.threadIdx.x"),
        "the first thread of each block does the work of all 128": embed_by_thread_0,
    },
)

EXERCISES = (BLOCK_OFFSETS, BIAS_GELU_TANH, MLP_HALF, PREDICT_BLOCK, EMBED_TOKENS)
