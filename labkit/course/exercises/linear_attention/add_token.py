r"""A token more

`state` (H, D + 1, D) holds, for each of H heads, the matrix S in its first D rows and z in the last one. `k` and `v`
(H, D) are the keys and values of a new token. Write the new states to `out`, which has the shape of `state`:

$$S_{r,c} + \varphi(k_r)\, v_c \qquad z_c + \varphi(k_c)$$

φ(x) is x + 1 where x is above 0, and exp(x) elsewhere. An example with D = 1: a key of 1 has φ = 2, so with a value of
3, S grows by 6 and z by 2.

Blocks are 32 × 8 × 1, with the grid's x along the columns, y along the rows and z along the heads. All arrays are
float32.
"""

HINTS = ("Which threads have an element of S, and which an element of z? What about the others?",
         "The guard allows rows up to D and columns below D. A row below D belongs to S; row D is z, and needs the "
         "key at its column.",
         "out[head, row, col] = state[head, row, col] + phi(k[head, row]) * v[head, col] if row < D; in row D it is "
         "state[head, row, col] + phi(k[head, col]).")
POINTS = 1

import math

from numba import float32

from labkit import cuda


# %%
@cuda.jit(device=True)
def phi(x):
    return x + float32(1.0) if x > float32(0.0) else math.exp(x)


@cuda.jit
def add_token(state, k, v, out):
    col, row, head = cuda.grid(3)
    ### BEGIN SOLUTION
    size = k.shape[1]
    if row <= size and col < size:
        if row < size:
            out[head, row, col] = state[head, row, col] + phi(k[head, row]) * v[head, col]
        else:
            out[head, row, col] = state[head, row, col] + phi(k[head, col])
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, relative_to, uniform
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, FAR_BELOW_ZERO, HUGE_AND_TINY, NEGATIVE, POSITIVE, ZEROS, of
from labkit.course.exercises.linear_attention import SIZES, random_state
from labkit.kernels.attention.linear_attention import phi_reference


def _added(state, k, v):
    weights = phi_reference(k)
    more = np.concatenate([weights[:, :, None] * v[:, None, :], weights[:, None, :]], axis=1)
    return state.astype(np.float64) + more


def _added_scale(state, k, v):
    return np.abs(state) + _added(np.zeros_like(state), k, np.maximum(np.abs(v), 1e-30))


EXERCISE = KernelExercise(
    name="add_token",
    reference=_added,
    inputs=lambda rng, H, D: (random_state(rng, H, D), 2 * uniform(rng, H, D), uniform(rng, H, D)),
    shape=lambda H, D: (H, D + 1, D),
    sizes=SIZES,
    launch=lambda H, D: ((-(-D // 32), -(-(D + 1) // 8), H), (32, 8, 1)),
    tolerance=relative_to(_added_scale, roundings=8),
    domain=(*of((0, 1), ZEROS), *of(1, NEGATIVE, POSITIVE, FAR_BELOW_ZERO, FAR_ABOVE_ZERO), *of(2, HUGE_AND_TINY)),
    wrong={
        "z is not added to": Edit("if row < size:", "if True:",
                                  "phi(k[head, row]) * v[head, col]", "phi(k[head, row % size]) * v[head, col]"),
        "key and value are swapped": Edit("phi(k[head, row]) * v[head, col]", "phi(k[head, col]) * v[head, row]"),
        "phi is not applied to the key for S": Edit("phi(k[head, row]) *", "k[head, row] *"),
        "phi is not applied to the key for z": Edit("phi(k[head, col])", "k[head, col]"),
        "the new token replaces the state": Edit("state[head, row, col] + phi(k[head, row])", "phi(k[head, row])"),
        "the last row is left out": Edit("row <= size and", "row < size and"),
        "all heads use the first head's key and value": Edit("phi(k[head, row]) * v[head, col]",
                                                             "phi(k[0, row]) * v[0, col]"),
        "no guard for the columns": Edit("if row <= size and col < size:", "if row <= size:"),
    },
)

EQUIVALENT = {
    "guard: x > float32(0.0) -> x >= float32(0.0)": "At 0 both branches of phi give 1.",
}
