# %% [markdown]
# # 04 · Indexing in three dimensions: exercises
#
# Six exercises on coordinates, addresses and the way from one to the other. A volume has the shape `(nz, ny, nx)`, a
# thread is `(x, y, z)`, and a flat array holds element `(x, y, z)` at `x + y * nx + z * nx * ny`. The checks use volumes
# whose three sides differ: on a cube, half of the mistakes that you can make here do not show. `hint("layer_above")`
# gives a hint, and a better one when you ask again.

# %%
import numpy as np

from labkit import check, cuda, hint, plots

# %% [markdown]
# ## 1 · The element above
#
# Each thread writes the address of the element one layer above its own: same x, same y, the next z. Kernels that smooth
# an image, simulate heat or look for edges do this all the time. In the top layer there is nothing above, and the answer
# is -1. In the little volume of the lesson, the element at address 7 gets 22, and the one at 22 gets -1.
#
# `out` is a flat int32 array. The index and the guards are given.


# %%
@cuda.jit
def layer_above(out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz:
        i = x + y * nx + z * nx * ny
        ### BEGIN SOLUTION
        if z + 1 < nz:
            out[i] = i + nx * ny
        else:
            out[i] = -1
        ### END SOLUTION


# %%
check("layer_above", layer_above)

# %% [markdown]
# ## 2 · Upside down
#
# Each layer of a volume is an image with its rows along y. Turn every image upside down: the first row becomes the
# last. Nothing moves along x or z. In NumPy this is `v[:, ::-1, :]`.
#
# This time `v` and `out` have three axes, so `v[z, y, x]` works out the address for you. Write the guards and the
# store. Blocks are 32 × 4 × 2 and hang over on all sides.


# %%
@cuda.jit
def flip_y(v, out):
    x, y, z = cuda.grid(3)
    nz, ny, nx = out.shape
    ### BEGIN SOLUTION
    if x < nx and y < ny and z < nz:
        out[z, y, x] = v[z, ny - 1 - y, x]
    ### END SOLUTION


# %%
check("flip_y", flip_y)

# %% [markdown]
# ## 3 · A cut through the volume
#
# A scanner delivers a volume in layers, and the doctor wants to see it cut the other way: all elements with a given `y`,
# as an image with rows along z. In NumPy this is `v[:, y, :]`.
#
# `v` is flat here and `out` has the shape `(nz, nx)`. The grid has two axes, x along the columns of `out` and z along
# its rows, in blocks of 32 × 4. You need both coordinates, their guards, and one address.


# %%
@cuda.jit
def cut_plane(v, y, out, nx, ny):
    ### BEGIN SOLUTION
    x, z = cuda.grid(2)
    if z < out.shape[0] and x < out.shape[1]:
        out[z, x] = v[x + y * nx + z * nx * ny]
    ### END SOLUTION


# %%
check("cut_plane", cut_plane)

# %% [markdown]
# ## 4 · Predict: the sectors of a warp
#
# In blocks of 1,024 threads, each thread loads the float at its own coordinates, from a volume that begins at a sector
# boundary. How many sectors of 32 bytes does one warp touch?
#
# - the first warp of a block of 8 × 32 × 4, in a volume of 512 × 512 × 512
# - the first warp of a block of 2 × 128 × 4, in the same volume
# - the *second* warp of a block of 32 × 8 × 4, in a volume of 513 × 512 × 512
#
# The last one is in row y = 1.

# %%
rows_of_8 = None  # sectors, 8 × 32 × 4
rows_of_2 = None  # sectors, 2 × 128 × 4
second_warp = None  # sectors, second warp of 32 × 8 × 4, nx = 513
### BEGIN SOLUTION
rows_of_8 = 4  # four rows of 32 bytes, each a whole sector
rows_of_2 = 16  # sixteen rows of 8 bytes, each in a sector of its own
second_warp = 5  # floats 513 to 544: sectors 64 to 68
### END SOLUTION

# %%
check("predict_sectors", rows_of_8=rows_of_8, rows_of_2=rows_of_2, second_warp=second_warp)

# %% [markdown]
# Now observe: the threads of those warps record their addresses.


# %%
@cuda.jit
def touched_kernel(touched, warp, nx, ny):
    x, y, z = cuda.grid(3)
    row = cuda.threadIdx.y + cuda.threadIdx.z * cuda.blockDim.y
    lane = cuda.threadIdx.x + row * cuda.blockDim.x - 32 * warp
    if 0 <= lane < 32:
        touched[lane] = x + y * nx + z * nx * ny


def touched_by(block, warp=0, nx=512, ny=512):
    touched = cuda.to_device(np.full(32, -1, np.int64))
    touched_kernel[1, block](touched, warp, nx, ny)
    return touched.copy_to_host()


plots.warp_addresses({
    "8 × 32 × 4": touched_by((8, 32, 4)),
    "2 × 128 × 4": touched_by((2, 128, 4)),
    "second warp, nx = 513": touched_by((32, 8, 4), warp=1, nx=513),
})

# %% [markdown]
# A row of 513 floats costs the warp a fifth sector. That is why arrays are often *padded*: their rows are made a little
# longer than needed, so that each begins at a sector boundary.
#
# ## 5 · Find the bug: right on a cube
#
# This kernel computes the difference between each layer and the next, `v[z + 1, y, x] - v[z, y, x]`. `v` and `out` are
# flat. `out` has one layer fewer than `v`, hence the third guard. On a volume of 64 × 64 × 64 the kernel is right to the
# last bit.
#
# Check it, and repair it. What would a test on cubes alone have shown you?


# %%
@cuda.jit
def layer_difference(v, out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz - 1:
        i = x + y * ny + z * nx * ny
        out[i] = v[i + nx * ny] - v[i]


### BEGIN SOLUTION
@cuda.jit
def layer_difference(v, out, nx, ny, nz):
    x, y, z = cuda.grid(3)
    if x < nx and y < ny and z < nz - 1:
        i = x + y * nx + z * nx * ny  # a row has nx elements, and one step along y jumps over it
        out[i] = v[i + nx * ny] - v[i]


### END SOLUTION

# %%
check("layer_difference", layer_difference)

# %% [markdown]
# ## 6 · From a blank page: x comes first
#
# A camera stores its pictures with the colours running fastest, `(nz, ny, nx)` with x for the colour; a neural network
# wants them slowest. Move the last axis to the front and keep the other two in order:
#
# $$\text{out}_{x,z,y} = v_{z,y,x}$$
#
# In NumPy this is `np.moveaxis(v, 2, 0)`: a `v` of shape (2, 3, 5) becomes an `out` of shape (5, 2, 3), and `v[1, 2, 4]`
# becomes `out[4, 1, 2]`. The parameters are `v` and `out`, both with three axes. The grid covers `v`, with its x along
# v's last axis, in blocks of 32 × 4 × 2. Each element of `out` has one owner; which thread is it?

# %%
x_to_front = None  # write the kernel here: def x_to_front(v, out)
### BEGIN SOLUTION
@cuda.jit
def x_to_front(v, out):
    x, y, z = cuda.grid(3)
    nz, ny, nx = v.shape
    if x < nx and y < ny and z < nz:
        out[x, z, y] = v[z, y, x]


### END SOLUTION

# %%
check("x_to_front", x_to_front)

# %% [markdown]
# One question to think about: a warp runs along x, so it reads neighbours, but where does it write? Count the sectors of
# its store. Lesson 06 introduces the memory that cures this.
#
# Next: the exercises of **05 · Broadcasting**.
