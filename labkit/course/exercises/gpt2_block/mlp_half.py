r"""Find the bug: the order of things

The second half of GPT-2's block, as three launches: $\text{out} = x + \text{mlp}(\text{layernorm}(x))$. The launcher
below computes something plausible that could even be trained. But it is not GPT-2.

This is a host function, not a kernel: it allocates what it needs, and calls launchers of the course.
`fused_tiled(x, weights, bias, out, gelu=True)` is a linear layer followed by GELU; `residual=r` adds `r` at the end.
"""

HINTS = ("Follow x through the formula from the inside out. What happens to it first?",
         "The norm has to come before the first product, and needs an array for its result. The residual of the second "
         "product is x itself, not the normalised row.",
         "layernorm(x, weight, bias, normed), then fused_tiled(normed, w_fc, b_fc, hidden, gelu=True), then "
         "fused_tiled(hidden, w_proj, b_proj, out, residual=x).")
POINTS = 2

import numpy as np

from labkit import cuda
from labkit.kernels.linear.fused import fused_tiled
from labkit.kernels.norm.layernorm import layernorm


# %%
def mlp_half(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    tokens, width = x.shape
    hidden = cuda.device_array((tokens, w_fc.shape[1]), np.float32)
    added = cuda.device_array((tokens, width), np.float32)
    fused_tiled(x, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, added, residual=x)
    layernorm(added, weight, bias, out)


### BEGIN SOLUTION
def mlp_half(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    tokens, width = x.shape
    normed = cuda.device_array((tokens, width), np.float32)
    hidden = cuda.device_array((tokens, w_fc.shape[1]), np.float32)
    layernorm(x, weight, bias, normed)
    fused_tiled(normed, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, out, residual=x)  # x as it came: nothing normalises what runs past


### END SOLUTION

# %% [check]
from labkit.course.exercises import NEGATIVE, ONE_FAR_ABOVE, ZEROS, Edit, FunctionExercise, of, on_the_device, uniform
from labkit.kernels.linear.fused import fused_reference
from labkit.kernels.norm.layernorm import layernorm_block_tree, layernorm_reference


def _like(x, columns):
    return cuda.device_array((x.shape[0], columns), np.float32)


def mlp_normed_last(x, weight, bias, w_fc, b_fc, w_proj, b_proj, out):
    hidden, added = _like(x, w_fc.shape[1]), _like(x, x.shape[1])
    fused_tiled(x, w_fc, b_fc, hidden, gelu=True)
    fused_tiled(hidden, w_proj, b_proj, added, residual=x)
    layernorm_block_tree(added, weight, bias, out)


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


EXERCISE = FunctionExercise(
    name="mlp_half",
    reference=_mlp_reference,
    inputs=_mlp_inputs,
    shape=lambda S, C, I: (S, C),  # noqa: E741
    sizes=tuple({"S": S, "C": C, "I": inner} for S, C, inner in ((1, 4, 5), (3, 8, 12), (5, 17, 33), (9, 48, 80))),
    tolerance=_mlp_tolerance,
    domain=of(0, ONE_FAR_ABOVE, NEGATIVE, ZEROS),
    demand=on_the_device,
    wrong={"LayerNorm comes last, over the sum: that is Post-LN": mlp_normed_last,
           "what is added at the end is the normalised row, not the row itself": Edit("residual=x", "residual=normed"),
           "the row itself is never added": Edit(", residual=x", ""),
           "LayerNorm is computed but not used": Edit("fused_tiled(normed, w_fc", "fused_tiled(x, w_fc"),
           "GELU comes after the second product: it belongs between the two":
               Edit("hidden, gelu=True)", "hidden)", "residual=x", "gelu=True, residual=x"),
           "NumPy computes it all, on the host": mlp_on_the_host},
)
