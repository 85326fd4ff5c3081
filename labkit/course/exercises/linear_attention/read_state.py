r"""From a blank page: read from the state

Write the kernel `read_state(q, state, out)`. `q` (H, D) holds one query per head, `state` is as above, and `out` (H, D)
should hold the output of linear attention:

$$\text{out}_c = \frac{\sum_r \varphi(q_r)\, S_{r,c}}{\sum_r \varphi(q_r)\, z_r}$$

z is positive. An example with D = 1: S = 6 and z = 2 give 3, whatever the query is.

The grid has one block of 32 threads per head; D may be more than 32, or less. Let neighbouring threads read
neighbouring elements of the state.
"""

HINTS = ("Which elements of the state does element 5 of the output need, and which do all elements need?",
         "A thread takes the columns threadIdx.x, threadIdx.x + 32 and so on. For each it goes down the rows with two "
         "sums: of phi(q) times S, and of phi(q) times z.",
         "for col in range(cuda.threadIdx.x, D, 32): for row in range(D): above += phi(q[head, row]) * state[head, "
         "row, col]; below += phi(q[head, row]) * state[head, D, row]; then out[head, col] = above / below.")
POINTS = 2
NEEDS = ("add_token",)

from numba import float32

from labkit import cuda
from labkit.kernels.attention.linear_attention import phi

# %%
read_state = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def read_state(q, state, out):
    head, size = cuda.blockIdx.x, q.shape[1]
    for col in range(cuda.threadIdx.x, size, 32):
        above, below = float32(0.0), float32(0.0)
        for row in range(size):
            weight = phi(q[head, row])
            above += weight * state[head, row, col]
            below += weight * state[head, size, row]
        out[head, col] = above / below


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, FAR_ABOVE_ZERO, NEGATIVE, POSITIVE, ZEROS, Edit, KernelExercise, of, uniform
from labkit.course.exercises.linear_attention import SIZES, random_state
from labkit.kernels.attention.linear_attention import phi_reference


def _read(q, state):
    weights, state = phi_reference(q)[:, None, :], state.astype(np.float64)
    return (weights @ state[:, :-1])[:, 0] / (weights @ state[:, -1, :, None])[:, 0]


def _read_tolerance(q, state):
    weights = phi_reference(q)[:, None, :]
    mean = (weights @ np.abs(state[:, :-1]))[:, 0] / (weights @ state[:, -1, :, None])[:, 0]
    return 2 * EPS32 * (4 + np.sqrt(q.shape[1])) * mean


EXERCISE = KernelExercise(
    name="read_state",
    reference=_read,
    inputs=lambda rng, H, D: (2 * uniform(rng, H, D), random_state(rng, H, D)),
    shape=lambda H, D: (H, D),
    sizes=SIZES,
    launch=lambda H, D: (H, 32),
    tolerance=_read_tolerance,
    benign_races=False,  # each number is computed by one thread
    domain=of(0, NEGATIVE, POSITIVE, ZEROS, FAR_ABOVE_ZERO),
    wrong={
        "not divided by the sum of the weights": Edit("above / below", "above"),
        "divided by the sum of phi(q), without z": Edit("weight * state[head, size, row]", "weight"),
        "z is indexed by the column": Edit("state[head, size, row]", "state[head, size, col]"),
        "phi is not applied to the query": Edit("phi(q[head, row])", "q[head, row]"),
        "S is read transposed": Edit("state[head, row, col]", "state[head, col, row]"),
        "all heads read the first head's state": Edit("state[head, row, col]", "state[0, row, col]"),
        "only the first 32 columns are computed": Edit("size, 32)", "min(size, 32), 32)"),
    },
)
