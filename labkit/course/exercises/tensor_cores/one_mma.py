"""One product on the tensor cores

In float16, `a` is 16 T × 16 and `b` is 16 × 8; `out` is 16 T × 8 in float32. Each block is one warp, and computes 16
rows of `out` with a single instruction:

`c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)`

What is missing is what each lane loads into a0 to a3, b0 and b1, and where it stores the four accumulators. They start
at `float32(0.0)`. `ptx.pack_half2(x, y)` puts two float32 values into one register as float16, the first into the low
half.
"""

HINTS = ("Which row of a belongs to this lane's a0, and which two columns? Which of these are different for a1, a2 and "
         "a3?",
         "The two values in a register are neighbours along k: side by side in a, one above the other in b. a1 is 8 "
         "rows below a0, a2 is 8 columns to its right, a3 is both.",
         "a0 = ptx.pack_half2(float32(a[top + g, 2 * q]), float32(a[top + g, 2 * q + 1])); b0 = "
         "ptx.pack_half2(float32(b[2 * q, g]), float32(b[2 * q + 1, g])); c0 goes to out[top + g, 2 * q].")
POINTS = 3
NEEDS = ("predict_lanes",)

from numba import float32

from labkit import cuda, ptx


# %%
@cuda.jit
def one_mma(a, b, out):
    lane = cuda.threadIdx.x
    g, q = lane // 4, lane % 4
    top = cuda.blockIdx.x * 16  # the first of this block's rows of a and out
    ### BEGIN SOLUTION
    row, col = top + g, 2 * q
    a0 = ptx.pack_half2(float32(a[row, col]), float32(a[row, col + 1]))
    a1 = ptx.pack_half2(float32(a[row + 8, col]), float32(a[row + 8, col + 1]))
    a2 = ptx.pack_half2(float32(a[row, col + 8]), float32(a[row, col + 9]))
    a3 = ptx.pack_half2(float32(a[row + 8, col + 8]), float32(a[row + 8, col + 9]))
    b0 = ptx.pack_half2(float32(b[col, g]), float32(b[col + 1, g]))  # col counts the rows of b here: both are k
    b1 = ptx.pack_half2(float32(b[col + 8, g]), float32(b[col + 9, g]))
    zero = float32(0.0)
    c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, zero, zero, zero, zero)
    out[row, col], out[row, col + 1] = c0, c1
    out[row + 8, col], out[row + 8, col + 1] = c2, c3
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, KernelExercise, dot_products, of
from labkit.course.exercises.tensor_cores import ZERO, float16, products_in_float16, products_of_warps


def _make_one_mma(a1_down=8, a1_right=0, b_transposed=False, swapped=False, c1_down=0, c1_right=1):
    a2_down, a2_right, c2_down, c2_right = a1_right, a1_down, c1_right * 8, c1_down // 8

    @cuda.jit
    def one_mma(a, b, out):
        lane = cuda.threadIdx.x
        g, q = lane // 4, lane % 4
        if swapped:
            g, q = lane % 8, lane // 8
        top = cuda.blockIdx.x * 16
        row, col = top + g, 2 * q
        one = 1
        r, c = row + a1_down, col + a1_right
        a0 = ptx.pack_half2(float32(a[row, col]), float32(a[row, col + one]))
        a1 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = row + a2_down, col + a2_right
        a2 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        r, c = row + 8, col + 8
        a3 = ptx.pack_half2(float32(a[r, c]), float32(a[r, c + one]))
        k = 2 * q
        if b_transposed:
            b0 = ptx.pack_half2(float32(b[g, k]), float32(b[g, k + one]))
            b1 = ptx.pack_half2(float32(b[g + 8, k]), float32(b[g + 8, k + one]))
        else:
            b0 = ptx.pack_half2(float32(b[k, g]), float32(b[k + one, g]))
            b1 = ptx.pack_half2(float32(b[k + 8, g]), float32(b[k + 9, g]))
        c0, c1, c2, c3 = ptx.mma_m16n8k16_f32_f16(a0, a1, a2, a3, b0, b1, ZERO, ZERO, ZERO, ZERO)
        out[row, col] = c0
        out[row + c1_down, col + c1_right] = c1
        out[row + c2_down, col + c2_right] = c2
        out[row + 8, col + one] = c3

    return one_mma


@cuda.jit
def one_mma_by_a_loop(a, b, out):
    top, lane = cuda.blockIdx.x * 16, cuda.threadIdx.x
    for place in range(lane, 128, 32):
        row, col = top + place // 8, place % 8
        total = ZERO
        for k in range(16):
            total += float32(a[row, k]) * float32(b[k, col])
        out[row, col] = total


EXERCISE = KernelExercise(
    name="one_mma",
    reference=products_in_float16,
    inputs=lambda rng, T: (float16(rng, 16 * T, 16), float16(rng, 16, 8)),
    shape=lambda T: (16 * T, 8),
    sizes=({"T": 1}, {"T": 3}),
    launch=lambda T: (T, 32),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=products_of_warps(1),
    wrong={"a1 and a2 are swapped: a1 is below a0, not to its right": _make_one_mma(a1_down=0, a1_right=8),
           "b is read along a row, as a is": _make_one_mma(b_transposed=True),
           "g and q are computed from the lane the other way round": _make_one_mma(swapped=True),
           "c1 and c2 are swapped: c1 is to the right of c0, not below it": _make_one_mma(c1_down=8, c1_right=0),
           "no tensor cores: each lane loops over its dot products": one_mma_by_a_loop},
)
