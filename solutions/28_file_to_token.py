# %% [markdown]
# # 28 · From a file to a token: exercises
#
# Three exercises. Read a tensor from a file by hand, work out where tensors begin in a file and on the device, and
# find the likeliest token, from a blank page. `hint("read_tensor")` gives a hint, and a second call a better one.

# %%
import json
import math

import numpy as np
from numba import float32, int32

from labkit import check, cuda, hint

# %% [markdown]
# ## 1 · A tensor of a file
#
# `raw` is a safetensors file, byte by byte: an array of `uint8`. Its first 8 bytes are the size of the header, lowest
# byte first. Then come the header in JSON and the data. Return the tensor called `name` as an array of float32 with its
# shape. All tensors here are F32. `data_offsets` are counted from the end of the header, and the data need not be in the
# order of the header. `raw[a:b].tobytes()` gives bytes, which `json.loads`, `int.from_bytes` and `np.frombuffer` accept.


# %%
def read_tensor(raw, name):
    ### BEGIN SOLUTION
    length = int.from_bytes(raw[:8].tobytes(), "little")
    entry = json.loads(raw[8 : 8 + length].tobytes())[name]
    begin, end = entry["data_offsets"]
    data = raw[8 + length :]
    return np.frombuffer(data[begin:end].tobytes(), np.float32).reshape(entry["shape"])
    ### END SOLUTION


# %%
check("read_tensor", read_tensor)

# %% [markdown]
# ## 2 · Predict: where a tensor begins
#
# A safetensors file has a header of 248 bytes. Its three tensors are float16 and follow one another in this order: `bias`
# with 77 elements, `weight` with 77 × 50, and `scale` with 5. At which byte of the file does `weight` begin, counted from
# 0 at the first byte of the file? And how long is the file, in bytes?
#
# On the device the tensors are in one buffer, in the same order but as float32, and each begins at a multiple of 16
# bytes, as in the lesson. At which byte of the buffer does `weight` begin?
#
# Last, the embedding. A block of 256 threads copies a row of 1,000 columns, and each thread copies every 256th column,
# beginning with its index. How many columns does thread 250 copy?

# %%
file_begin = None  # where weight begins in the file
file_bytes = None
buffer_begin = None  # where weight begins on the device
columns = None  # of thread 250
### BEGIN SOLUTION
file_begin = 8 + 248 + 2 * 77
file_bytes = 410 + 2 * (77 * 50 + 5)
buffer_begin = 320  # 4 * 77 = 308, and the next multiple of 16
columns = 3  # 250, 506, 762
### END SOLUTION

# %%
check("predict_places", file_begin=file_begin, file_bytes=file_bytes, buffer_begin=buffer_begin, columns=columns)

# %% [markdown]
# ## 3 · From a blank page: the likeliest token
#
# `out[row]` is the column of the largest element of the row, the first of them if several are equal. A block is one warp
# of 32 threads, and there are as many blocks as rows. A lane goes through the columns lane, lane + 32, ... and keeps the
# largest element and its column. Then the lanes compare their results in five exchanges, each of an element and its
# column. All elements of a row may be negative. Columns fit into int32.
#
# Write `first_largest(x, out)` from the decorator down.

# %%
first_largest = None  # write the kernel


### BEGIN SOLUTION
@cuda.jit
def first_largest(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest, at = float32(-np.inf), int32(0x7FFFFFFF)  # loses against every element
    for col in range(lane, x.shape[1], 32):
        if x[row, col] > largest:  # not >=: the first of equals stays
            largest, at = x[row, col], int32(col)
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)
        other_at = cuda.shfl_xor_sync(0xFFFFFFFF, at, distance)
        if other > largest or (other == largest and other_at < at):
            largest, at = other, other_at
    if lane == 0:
        out[row] = at


### END SOLUTION

# %%
check("first_largest", first_largest)
