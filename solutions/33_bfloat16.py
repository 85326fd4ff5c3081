# %% [markdown]
# # 33 · bfloat16, bit by bit: exercises
#
# Four exercises. Round to bfloat16 with integers, predict what survives rounding, repair a sum that loses what is added
# to it, and write a kernel with 128-bit loads from a blank page. `hint("pack_bfloat16")` gives a hint, and a second call
# a better one.

# %%
import numpy as np
from numba import float32

from labkit import check, cuda, hint, ptx
from labkit.kernels.elements import bfloat16_number, bfloat16_rounded

# %% [markdown]
# ## 1 · Two in a word
#
# `bits` (n,) uint32 holds the bits of float32 numbers, and n is even. Round each number to the nearest bfloat16, a tie to
# the one whose last bit is 0, and pack two neighbours into one word of `words` (n / 2,) uint32, the first of them in the
# low half. A number that rounds to more than the largest bfloat16 becomes infinity, and a NaN of either sign becomes
# 0x7FC0. Integer operations are enough: shifts, masks and additions.
#
# (In Numba a literal is an int64, and adding one to a uint32 gives an int64, so nothing overflows here. But shifting a
# uint32 gives a uint64, and a variable that is assigned both a uint64 and an int64 becomes a float64. If the check
# complains about a float64, begin with `np.int64(bits[...])`.)


# %%
@cuda.jit
def pack_bfloat16(bits, words):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < words.size:
        word = 0
        for k in range(2):
            u = bits[2 * i + k]
            rounded = (u + 0x7FFF + (u >> 16 & 1)) >> 16
            if u & 0x7FFFFFFF > 0x7F800000:
                rounded = 0x7FC0
            word |= rounded << 16 * k
        words[i] = word
    ### END SOLUTION


# %%
check("pack_bfloat16", pack_bfloat16)

# %% [markdown]
# ## 2 · Predict: what survives rounding
#
# On paper: bfloat16 has 8 significant bits and float16 has 11, the leading 1 included. Which whole number does 1,006
# become in bfloat16? If 0.5 is added to 0 again and again in bfloat16, rounded to nearest after each addition, where does
# the sum stop growing? Where does it stop if 3 is added each time, in bfloat16 and in float16? And how many load
# requests, each for a whole warp, does it take to read a row of 4,096 bfloat16 numbers with eight per load?

# %%
nearest = None  # 1,006 in bfloat16
by_half = None  # 0.5 + 0.5 + ... in bfloat16
by_three = None  # 3 + 3 + ... in bfloat16
float16_by_three = None  # 3 + 3 + ... in float16
requests = None  # for 4,096 numbers, eight per load
### BEGIN SOLUTION
nearest = 1008
by_half = 128
by_three = 1024
float16_by_three = 8192
requests = 16
### END SOLUTION

# %%
check("predict_rounding", nearest=nearest, by_half=by_half, by_three=by_three, float16_by_three=float16_by_three,
      requests=requests)


# %% [markdown]
# ## 3 · Find the bug: a sum that loses what is added
#
# `out[r]` (R,) float32 should be the dot product of row r of `w` (R, C) with `x` (C,); both are uint16 and hold bfloat16
# numbers. Each warp computes one row, in blocks of `(32, 4)` threads, and `bfloat16_number` converts an element to
# float32. For small whole numbers the result is right. For the weights of a model it has two correct digits, or fewer. A
# product of two bfloat16 numbers is exact in float32, and the sum should be as accurate as a float32 sum.


# %%
@cuda.jit
def dot_rows(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0]:
        acc = float32(0.0)
        for col in range(lane, x.size, 32):
            product = bfloat16_rounded(bfloat16_number(w[r, col]) * bfloat16_number(x[col]))
            acc = bfloat16_rounded(acc + product)
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### BEGIN SOLUTION
@cuda.jit
def dot_rows(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0]:
        acc = float32(0.0)
        for col in range(lane, x.size, 32):
            acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])
        for distance in (16, 8, 4, 2, 1):
            acc += cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)
        if lane == 0:
            out[r] = acc


### END SOLUTION

# %%
check("dot_rows", dot_rows)

# %% [markdown]
# ## 4 · From a blank page: eight numbers in a load
#
# `x` (n,) uint16 holds bfloat16 numbers, and n is a multiple of 8. Write the same numbers as float32 to `out` (n,). A
# thread converts eight neighbours. `ptx.load_global4(x, i)` returns the eight numbers from `x[i]` on as four words,
# `ptx.unpack_bf162(word)` returns the two numbers of a word as float32, the one in the low half first, and
# `ptx.store_global4(out, i, a, b, c, d)` stores four float32 numbers from `out[i]` on.
#
# Write the kernel `widen_eight(x, out)`. It is launched with a one-dimensional grid of blocks of 64 threads, with at
# least one thread per eight numbers.

# %%
widen_eight = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def widen_eight(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        p, q, r, s = ptx.load_global4(x, i)
        a, b = ptx.unpack_bf162(p)
        c, d = ptx.unpack_bf162(q)
        ptx.store_global4(out, i, a, b, c, d)
        a, b = ptx.unpack_bf162(r)
        c, d = ptx.unpack_bf162(s)
        ptx.store_global4(out, i + 4, a, b, c, d)


### END SOLUTION

# %%
check("widen_eight", widen_eight)
