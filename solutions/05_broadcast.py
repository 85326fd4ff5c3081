# %% [markdown]
# # 05 · Broadcasting: exercises
#
# Six exercises about one question: which element of the small array belongs to this thread? They go from a single line
# to a kernel from a blank page. Write your answer, run its cell, then run the `check` below it. If you are stuck,
# `hint("add_row")` gives a hint, and a better one when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, plots

# %% [markdown]
# ## 1 · A row for every row
#
# $$\text{out}_{r,c} = a_{r,c} + v_c$$
#
# `a` and `out` have R rows and C columns, `v` has C elements. In NumPy this is `a + v`, with no `None` anywhere: the
# shapes line up on the right. It is how a layer of a neural network adds its bias. With rows (1, 2) and (3, 4) and
# `v` = (10, 20), `out` has the rows (11, 22) and (13, 24).
#
# The grid's x runs along the columns, in blocks of 32 × 8. Everything is there except the line that does the work.


# %%
@cuda.jit
def add_row(a, v, out):
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        ### BEGIN SOLUTION
        out[row, col] = a[row, col] + v[col]
        ### END SOLUTION


# %%
check("add_row", add_row)

# %% [markdown]
# ## 2 · Each against each
#
# Two vectors make a matrix: `a[:, None] - b[None, :]` holds the difference of every pair.
#
# $$\text{out}_{r,c} = a_r - b_c$$
#
# The grid is as before, with its x along the columns. This time the whole body of the kernel is yours: the names, the
# guard and the store.


# %%
@cuda.jit
def outer_difference(a, b, out):
    ### BEGIN SOLUTION
    col, row = cuda.grid(2)
    if row < out.shape[0] and col < out.shape[1]:
        out[row, col] = a[row] - b[col]
    ### END SOLUTION


# %%
check("outer_difference", outer_difference)

# %% [markdown]
# ## 3 · The way back
#
# The lesson went from coordinates to a flat index. Now go the other way. `a` and `out` are volumes of shape (X, Y, Z),
# flattened; `g` has Y elements and enters as `g[None, :, None]`, with shape (1, Y, 1).
#
# $$\text{out}_{xyz} = a_{xyz} \, g_y$$
#
# The grid has one axis, in blocks of 128, and all that a thread has is its index `i`. Recover y from it. The kernel is
# given `ny` and `nz`, the lengths of the axes y and z. With `ny` = 3 and `nz` = 5, for example, `i` = 22 has y = 1.


# %%
@cuda.jit
def scale_middle(a, g, out, ny, nz):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        y = i // nz % ny
        out[i] = a[i] * g[y]
    ### END SOLUTION


# %%
check("scale_middle", scale_middle)

# %% [markdown]
# ## 4 · Find the bug: it agrees on every cube
#
# Here the shapes line up on the right, as NumPy likes them: `a + b + c` with (X, Y, Z), (Y, Z) and (Z,), all flattened.
#
# $$\text{out}_{xyz} = a_{xyz} + b_{yz} + c_z$$
#
# I adapted the lesson's kernel one evening and tried it on 64 × 64 × 64. It agreed with NumPy to the last bit. Run
# `check` on it, read what it says, and repair the kernel.


# %%
@cuda.jit
def add_aligned(a, b, c, out, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        pair = y * ny + z
        i = (x * ny + y) * nz + z
        out[i] = a[i] + b[pair] + c[z]


### BEGIN SOLUTION
@cuda.jit
def add_aligned(a, b, c, out, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        pair = y * nz + z  # a row of b is nz long
        i = (x * ny + y) * nz + z
        out[i] = a[i] + b[pair] + c[z]


### END SOLUTION

# %%
check("add_aligned", add_aligned)

# %% [markdown]
# ## 5 · Predict, then observe: reads and sectors
#
# The repaired kernel of exercise 4 runs on X = 6, Y = 10, Z = 8 in blocks of 8 × 2 × 2: eight threads along z, two along
# y, two along x. Work out on paper:
#
# - `reads_b`, `reads_c`: how many times is each element of `b` read, and each element of `c`?
# - `sectors_a`, `sectors_b`: the first warp of the first block loads its 32 elements of `a`. How many sectors of 32
#   bytes is that? And how many when it loads from `b`?

# %%
reads_b = None  # times each element of b is read
reads_c = None  # times each element of c is read
sectors_a = None  # of one warp, in a
sectors_b = None  # of one warp, in b
### BEGIN SOLUTION
reads_b = 6  # once for each x
reads_c = 60  # once for each pair of x and y
sectors_a = 4  # two runs of 16 elements: the two x lie a whole Y * Z apart
sectors_b = 2  # one run of 16: both x want the same
### END SOLUTION

# %%
check("predict_reads", reads_b=reads_b, reads_c=reads_c, sectors_a=sectors_a, sectors_b=sectors_b)

# %% [markdown]
# Then observe. The next kernel has the same indices, but instead of reading an element it counts the read, with an atomic
# addition, because many threads add to the same count. The picture shows what the warp touches.


# %%
@cuda.jit
def count_reads(count_b, count_c, nx, ny, nz):
    z, y, x = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        cuda.atomic.add(count_b, y * nz + z, 1)
        cuda.atomic.add(count_c, z, 1)


X, Y, Z = 6, 10, 8
count_b, count_c = (cuda.to_device(np.zeros(size, np.int32)) for size in (Y * Z, Z))
count_reads[(1, 5, 3), (8, 2, 2)](count_b, count_c, X, Y, Z)
print("reads of each element of b:", np.unique(count_b.copy_to_host()))
print("reads of each element of c:", np.unique(count_c.copy_to_host()))

lane = np.arange(32)
z, y, x = lane % 8, lane // 8 % 2, lane // 16
plots.warp_addresses({"a[x, y, z]": (x * Y + y) * Z + z, "b[y, z]": y * Z + z, "c[z]": z})

# %% [markdown]
# ## 6 · One kernel for every broadcast
#
# "Broadcasting is a step of zero", says the lesson. Take that literally, and one kernel serves all shapes. `a` and `out`
# have three axes. `b` is flattened and comes with three steps, counted in elements: how far its index moves for one more
# x, one more y, one more z.
#
# | shape of `b` for `a` of (5, 3, 7) | x_step | y_step | z_step |
# |---|---|---|---|
# | (5, 3, 7) | 21 | 7 | 1 |
# | (1, 3, 7), one bias for the whole batch | 0 | 7 | 1 |
# | (5, 1, 7) | 7 | 0 | 1 |
# | (1, 1, 1) | 0 | 0 | 0 |
#
# Write `add_broadcast(a, b, out, x_step, y_step, z_step)` from the decorator down. The grid has three axes, with its x
# along z, its y along y and its z along x, in blocks of 32 × 4 × 2.

# %%
add_broadcast = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def add_broadcast(a, b, out, x_step, y_step, z_step):
    z, y, x = cuda.grid(3)
    if x < out.shape[0] and y < out.shape[1] and z < out.shape[2]:
        out[x, y, z] = a[x, y, z] + b[x * x_step + y * y_step + z * z_step]


### END SOLUTION

# %%
check("add_broadcast", add_broadcast)

# %% [markdown]
# This is what NumPy does, too. Its arrays carry their steps with them, in bytes, as `np.broadcast_to(b, a.shape).strides`
# shows, and one loop serves all shapes.
