"""The exercises of lesson 19: the flat buffer, Pre-LN, a wider block in numbers, embedding.

Sizes are S, C and I for the tokens, the width and the inner width of a block; T tokens.
"""


import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import on_the_device
from labkit.course.exercises.domains import (
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    ZEROS,
    of,
)
from labkit.kernels.embedding import embedding_reference
from labkit.kernels.linear.fused import fused_reference, fused_tiled
from labkit.kernels.norm.layernorm import layernorm_block_tree, layernorm_reference
from labkit.kernels.op import uniform
from labkit.models.gpt2_block import Shape, traffic

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


# --- Predict: a wider block -----------------------------------------------------------------------------------------

MEDIUM = Shape(1024, 16, 4096)  # GPT-2 medium
BANDWIDTH, FLOPS = 300e9, 30e12  # of the GPU in the text


def _wider() -> dict:
    matrices = sum(rows * cols for rows, cols in MEDIUM.layers)
    steps = list(traffic(MEDIUM, 1, fused=False))
    return {"numbers": MEDIUM.size, "token_flops": 2 * matrices,
            "tokens_equal": round(4 * matrices / BANDWIDTH / (2 * matrices / FLOPS)),
            "wrong_steps": len(steps) - steps.index("attn.added")}


PREDICT_WIDER = PredictionExercise(
    name="predict_wider",
    truth=_wider,
    how={"numbers": "the matrices have 3 + 1 + 4 + 4 times 1,024 x 1,024 numbers, the other parameters 13 times 1,024",
         "token_flops": "a multiplication and an addition for each number of the four matrices",
         "tokens_equal": "S tokens are 2 flops times S for each number, and a number has 4 bytes: S is twice the flops "
                         "over the bytes a second, whatever the width",
         "wrong_steps": "the addition is launched twice; from its first launch on every step is computed from a wrong "
                        "one: attn.added, ln_2, mlp.c_fc, mlp.gelu, mlp.c_proj, out"},
    wrong={"the biases and both LayerNorms are left out": {"numbers": 12 * 1024 * 1024},
           "attn.c_attn is counted once: it holds three layers, for queries, keys and values": {
               "numbers": 10 * 1024 * 1024 + 11 * 1024, "token_flops": 20 * 1024 * 1024},
           "twice the width is not twice the weights: a width of 768 has 7,087,872, and a matrix grows with the square":
               {"numbers": 7_087_872 * 1024 // 768},
           "a multiplication and an addition are two flops": {"token_flops": 12 * 1024 * 1024, "tokens_equal": 400},
           "a weight has four bytes": {"tokens_equal": 50},
           "only what the addition itself wrote is counted: the steps after it are computed from that": {
               "wrong_steps": 2},
           "the addition is launched twice: the first time after attention": {"wrong_steps": 1}},
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
    benign_races=False,  # each number is copied by one thread
    domain=(*of((1, 2), HUGE_AND_TINY, NEGATIVE),
            Reach("all tokens are the first of the table", lambda rng, ids, *others: (0 * ids, *others)),
            Reach("all tokens are the last of the table",
                  lambda rng, ids, tokens, *others: (0 * ids + np.int32(len(tokens) - 1), tokens, *others)),
            Reach("the table of positions goes on behind the last token",
                  lambda rng, ids, tokens, positions, start: (ids, tokens, positions, start // 2),
                  {"T": 3, "C": 5, "before": 4})),
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

EXERCISES = (BLOCK_OFFSETS, MLP_HALF, PREDICT_WIDER, EMBED_TOKENS)
