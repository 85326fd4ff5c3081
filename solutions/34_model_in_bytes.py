# %% [markdown]
# # 34 · A model in bytes: exercises
#
# Three exercises: lay out one buffer for several files, predict the time of a token, and write the first launch of a
# Llama from a blank page. `hint("buffer_map")` gives a hint, and a second call a better one.

# %%
import json

import numpy as np
from numba import float32

from labkit import check, cuda, hint
from labkit._common.paths import find_root

# %% [markdown]
# ## 1 · One buffer for several files
#
# `files` is a list of safetensors files, each as bytes: 8 bytes with the length of the header, lowest byte first, the
# header in JSON, and then the values. All tensors of all files are to be copied into one buffer, in the order of their
# names, as `sorted` gives it. The first begins at 0, and each of the others where the one before ends, rounded up to a
# multiple of 16.
#
# Return an array with one row of four integers per tensor, in that order: the index of its file, its first byte in that
# file (counted from the start of the file), its length in bytes, and its offset in the buffer. For example, if file 0 has
# a header of 100 bytes with `"b"` at the `data_offsets` [0, 20], and file 1 a header of 60 bytes with `"a"` at [0, 6],
# the result is
#
# ```
# [[1,  68,  6,  0],
#  [0, 108, 20, 16]]
# ```
#
# A header may list its tensors in any order, a tensor may have no elements, and `__metadata__` is not a tensor. Read only
# the headers: in one of the checks the tensors have billions of bytes, and the file ends after its header.


# %%
def buffer_map(files):
    ### BEGIN SOLUTION
    found = {}
    for number, file in enumerate(files):
        length = int.from_bytes(file[:8], "little")
        for name, entry in json.loads(file[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (number, 8 + length + begin, end - begin)
    rows, offset = [], 0
    for name in sorted(found):
        rows.append((*found[name], offset))
        offset += -(-found[name][2] // 16) * 16
    return np.array(rows)
    ### END SOLUTION


# %%
check("buffer_map", buffer_map)

# %% [markdown]
# ## 2 · Predict: the time of a token
#
# TinyLlama has 22 layers and a width of 2,048: 32 query heads and 4 heads of keys and values, 64 values each, an MLP
# 5,632 wide, and a vocabulary of 32,000. As in every Llama a layer has seven weight matrices without biases, and two
# norms of 2,048 weights each; a last norm comes before the head. The head is a separate matrix, not the embedding table.
# Everything is bfloat16.
#
# How many parameters does a layer have, and how many the model? How many bytes of parameters are read for one token, if
# every parameter needed is read once, and only one row of the embedding table is needed? How many bytes does a token add
# to the cache, over all layers? And how many microseconds does it take to read the bytes of the parameters at 4,000 GB/s,
# rounded down?

# %%
layer_parameters = None
parameters = None
bytes_read = None
cache_bytes = None
microseconds = None
### BEGIN SOLUTION
layer_parameters = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048
parameters = 22 * layer_parameters + 2 * 32_000 * 2048 + 2048
bytes_read = 2 * (parameters - 32_000 * 2048 + 2048)
cache_bytes = 2 * 22 * 2 * 4 * 64
microseconds = bytes_read // 4_000_000
### END SOLUTION

# %%
check("predict_token", layer_parameters=layer_parameters, parameters=parameters, bytes_read=bytes_read,
      cache_bytes=cache_bytes, microseconds=microseconds)


# %% [markdown]
# ## 3 · From a blank page: the first launch of a Llama
#
# Row t of `out` (T, C) should be row `ids[t]` of `table` (V, C). Both are uint16 and hold bfloat16; `ids` (T,) is int32.
# An id without a row in the table, such as a negative one, gives a row of NaN, which is 0x7FC0 in bfloat16. With
# `ids = [2, 0, 7]` and a table of four rows, `out` has rows 2 and 0 of the table, then a row of NaN.
#
# This time you write the launcher as well, and choose the grid and the block. The first idea is one block per token and
# one thread per column. It fails: C may be up to 4,096, and the 2,048 columns of a Llama are already more than the
# threads a block may have. Try it once, to see the error.
#
# Write the kernel, and `embed_rows(ids, table, out)`, a function that launches it.

# %%
embed_rows = None  # write the kernel and the function


### BEGIN SOLUTION
@cuda.jit
def embed_rows_kernel(ids, table, out):
    t = cuda.blockIdx.x
    token = ids[t]
    known = token >= 0 and token < table.shape[0]
    for col in range(cuda.threadIdx.x, out.shape[1], 256):
        out[t, col] = table[token, col] if known else 0x7FC0


def embed_rows(ids, table, out):
    embed_rows_kernel[ids.size, 256](ids, table, out)


### END SOLUTION

# %%
check("embed_rows", embed_rows)

# %% [markdown]
# Your launch fits into the model. Here is the lesson's small Llama, once with its own embedding and once with yours.

# %%
from labkit.models.llama import Config, Kernels, Llama, SingleSequence
from labkit.models.load import tensors

folder = find_root() / "tests" / "golden" / "llama" / "llama3"
model = Llama(Config.read(folder / "config.json"), tensors(folder), "bfloat16")
if embed_rows is not None:
    mine = model.with_kernels(Kernels(embedding=lambda ids, table, out, stream=0: embed_rows(ids, table, out)))
    logits = [SingleSequence(each, 16)([3, 1, 4, 1, 5]).copy_to_host() for each in (model, mine)]
    print("the same logits:", np.array_equal(*logits))
