# %% [markdown]
# # Exercises

# %%
from labkit import check, cuda

# %% [markdown]
# ## Scale a vector

# %%
@cuda.jit
def scale_vector(a, s, out):
    i = cuda.grid(1)
    ### BEGIN SOLUTION
    if i < out.size:
        out[i] = a[i] * s
    ### END SOLUTION


# %%
check("scale_vector", scale_vector)

# %% [markdown]
# ## Count the blocks


# %%
def count_blocks(n, threads):
    ### BEGIN SOLUTION
    return -(-n // threads)
    ### END SOLUTION


# %%
check("count_blocks", count_blocks)

# %% [markdown]
# ## Predict

# %%
idle = None  # threads without an element
blocks = None
### BEGIN SOLUTION
idle, blocks = 24, 8
### END SOLUTION

# %%
check("idle_threads", idle=idle, blocks=blocks)

# %% [markdown]
# ## Find the bug

# %%
@cuda.jit
def scale_again(a, s, out):
    i = cuda.grid(1)
    out[i] = a[i] * s


### BEGIN SOLUTION
@cuda.jit
def scale_again(a, s, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * s


### END SOLUTION

# %%
check("scale_again", scale_again)
