"""From a blank page: a linear layer on the tensor cores

`x @ w.T` again, now in float16: `x` is (16 T, 16 S), `w` is (8 C, 16 S), `out` is (16 T, 8 C) in float32. A block is
one warp and computes 16 × 8 elements of `out`: rows from 16 · blockIdx.y, columns from 8 · blockIdx.x. It goes along K
in steps of 16 and passes the four accumulators of one product to the next.

Look at what the instruction needs from `b`: two neighbours in a column. In `w`, whose rows are the columns of `b`, they
are side by side. So the weights need not be transposed, which is why libraries store them this way.
"""

HINTS = ("b[k, n] of the instruction is w[n, k]. Where in w are its two neighbours in a column?",
         "It is one_mma in a loop over k in steps of 16. The four accumulators start at zero, go into each product and "
         "come out of it, and are stored once, after the loop.",
         "b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + 1])) with n = 8 * blockIdx.x + g; c0, c1, c2, c3 = "
         "ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3).")
POINTS = 5
NEEDS = ("one_mma",)

from numba import float32

from labkit import cuda, ptx

# %%
linear_mma = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def linear_mma(x, w, out):
    lane = cuda.threadIdx.x
    g, pair = lane // 4, lane % 4 * 2
    row = cuda.blockIdx.y * 16 + g
    left = cuda.blockIdx.x * 8
    n = left + g
    c0, c1, c2, c3 = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    for start in range(0, x.shape[1], 16):
        k = start + pair
        a0 = ptx.pack_half2(float32(x[row, k]), float32(x[row, k + 1]))
        a1 = ptx.pack_half2(float32(x[row + 8, k]), float32(x[row + 8, k + 1]))
        a2 = ptx.pack_half2(float32(x[row, k + 8]), float32(x[row, k + 9]))
        a3 = ptx.pack_half2(float32(x[row + 8, k + 8]), float32(x[row + 8, k + 9]))
        b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + 1]))
        b1 = ptx.pack_half2(float32(w[n, k + 8]), float32(w[n, k + 9]))
        c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
    col = left + pair
    out[row, col], out[row, col + 1] = c0, c1
    out[row + 8, col], out[row + 8, col + 1] = c2, c3


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, KernelExercise, dot_products, of
from labkit.course.exercises.tensor_cores import ZERO, float16, products_in_float16, products_of_warps


def _make_linear_mma(backwards=False, keeps=True, whole=True):
    step = 16 if whole else 8

    @cuda.jit
    def linear_mma(x, w, out):
        lane = cuda.threadIdx.x
        g, q = lane // 4, lane % 4
        row = cuda.blockIdx.y * 16 + g
        col = cuda.blockIdx.x * 8
        depth, one, eight = x.shape[1], 1, 8
        c0, c1, c2, c3 = ZERO, ZERO, ZERO, ZERO
        start = 0
        while start + 16 <= depth:
            k = start + 2 * q
            a0 = ptx.pack_half2(float32(x[row, k]), float32(x[row, k + one]))
            a1 = ptx.pack_half2(float32(x[row + eight, k]), float32(x[row + eight, k + one]))
            a2 = ptx.pack_half2(float32(x[row, k + eight]), float32(x[row, k + eight + one]))
            a3 = ptx.pack_half2(float32(x[row + eight, k + eight]), float32(x[row + eight, k + eight + one]))
            n = col + g
            if backwards:
                n = col + eight - one - g
            b0 = ptx.pack_half2(float32(w[n, k]), float32(w[n, k + one]))
            b1 = ptx.pack_half2(float32(w[n, k + eight]), float32(w[n, k + eight + one]))
            if keeps:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
            else:
                c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
            start += step
        left = col + 2 * q
        out[row, left], out[row, left + one] = c0, c1
        out[row + eight, left], out[row + eight, left + one] = c2, c3

    return linear_mma


@cuda.jit
def linear_mma_by_a_loop(x, w, out):
    top, left, lane = cuda.blockIdx.y * 16, cuda.blockIdx.x * 8, cuda.threadIdx.x
    for place in range(lane, 128, 32):
        row, col = top + place // 8, left + place % 8
        total = ZERO
        for k in range(x.shape[1]):
            total += float32(x[row, k]) * float32(w[col, k])
        out[row, col] = total


MMA_OBSERVED = {"T": 1, "C": 2, "K": 3}

EXERCISE = KernelExercise(
    name="linear_mma",
    reference=lambda x, w: products_in_float16(x, w.T),
    inputs=lambda rng, T, C, K: (float16(rng, 16 * T, 16 * K), float16(rng, 8 * C, 16 * K)),
    shape=lambda T, C, K: (16 * T, 8 * C),
    sizes=({"T": 1, "C": 1, "K": 1}, MMA_OBSERVED, {"T": 3, "C": 1, "K": 2}),
    observe_sizes=(MMA_OBSERVED,),
    demand=products_of_warps(MMA_OBSERVED["K"]),
    random_size=lambda rng: {"T": int(rng.integers(1, 4)), "C": int(rng.integers(1, 4)), "K": int(rng.integers(1, 5))},
    launch=lambda T, C, K: ((C, T), 32),
    tolerance=dot_products(lambda x, w: np.abs(x) @ np.abs(w).T, length=lambda x, w: x.shape[1]),
    domain=of((0, 1), *SUMMED),
    wrong={"the columns of a tile are reversed": _make_linear_mma(backwards=True),
           "every step starts from zero: only the last 16 products are left": _make_linear_mma(keeps=False),
           "k moves on by 8, and 8 products are added twice": _make_linear_mma(whole=False),
           "no tensor cores: each lane loops over its dot products": linear_mma_by_a_loop},
)

EQUIVALENT = {
    "arithmetic: start + pair -> start - pair":
        "With -2, -4 and -6 in place of 2, 4 and 6 the lanes of a step still read 16 neighbouring columns, the same "
        "ones of x and w; the first six wrap around, and over all steps each column is read once.",
    "loop: for start in range(0, x.shape[1], 16): ... -> for start in range(0, x.shape[1] - 1, 16)":
        "The depth is a multiple of 16: the last step is the same.",
}
