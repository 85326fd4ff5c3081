"""There and back, with something done in between

The lesson sent a list of tokens to the device and fetched it back unchanged. This time a kernel works on it in between.
Suppose that a language model keeps eight values per token in one long table, so that the values of token 5 begin at
index 40. The kernel turns each token into the index at which its values begin: (5, 0, 7) becomes (40, 0, 56).

Write the host code. `tokens` is a Python list of one or more integers. Turn it into an int32 array, send it to the
device, allocate room for the result there, launch the kernel in blocks of 64 threads, and return the result as a NumPy
array.
"""

HINTS = ("Which two arrays does the kernel need before it can start, and where do they have to be?",
         "Five steps: np.array with dtype=np.int32, cuda.to_device, cuda.device_array for the result, the launch with "
         "enough blocks, copy_to_host of the result.",
         "row_starts_kernel[-(-len(tokens) // 64), 64](on_device, out), where out = cuda.device_array(len(tokens), "
         "dtype=np.int32); then return out.copy_to_host().")
POINTS = 3
NEEDS = ("blocks_needed",)

import numpy as np

from labkit import cuda


# %%
@cuda.jit
def row_starts_kernel(tokens, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = tokens[i] * 8

# %%
def row_starts(tokens):
    ### BEGIN SOLUTION
    on_device = cuda.to_device(np.array(tokens, dtype=np.int32))
    out = cuda.device_array(len(tokens), dtype=np.int32)
    row_starts_kernel[-(-len(tokens) // 64), 64](on_device, out)
    return out.copy_to_host()
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach, asks, on_the_device


def starts_in_one_block(tokens):
    on_device = cuda.to_device(np.array(tokens, np.int32))
    out = cuda.to_device(np.zeros(len(tokens), np.int32))
    row_starts_kernel[1, 64](on_device, out)
    return out.copy_to_host()


def starts_never_launched(tokens):
    return cuda.to_device(np.zeros(len(tokens), np.int32)).copy_to_host()


@asks("The tokens are sent to the device as int32, and one launch in blocks of 64 threads computes what comes back; "
      "the result is a NumPy array of integers.")
def _in_blocks_of_64(run):
    """A launch in blocks of 64 computes what comes back to the host."""
    if missing := on_the_device(run):
        return missing
    for one in run.launches:
        if one.block != (64, 1, 1):
            return (f"The launch has a grid of {one.grid[0]} and blocks of {one.block[0]} threads, but blocks should "
                    "have 64. The grid is the first number in the brackets, the block the second.")
        if one.host_arrays:
            return (f"Of the arrays passed to the launch, {one.host_arrays} are on the host: these are copied to the "
                    "device and back at each launch. Copy the tokens to the device first, and allocate the result "
                    "there.")
        if one.types[:1] != ("int32",):
            return (f"The tokens on the device are {one.types[0] if one.types else 'no array'}, but should be an int32 "
                    "array: NumPy turns integers into int64 unless you give the dtype.")
    if hasattr(run.returned, "copy_to_host"):
        return "The result is still on the device: return a NumPy array, which `copy_to_host` gives you."
    if not isinstance(run.returned, np.ndarray):
        return f"The function returns a {type(run.returned).__name__}; it should return a NumPy array."
    if run.returned.dtype.kind not in "iu":
        return (f"The array returned holds {run.returned.dtype}, but indices are integers: allocate the result on the "
                "device with a dtype, int32 as for the tokens.")
    return None


EXERCISE = FunctionExercise(
    name="row_starts",
    reference=lambda tokens: np.array(tokens) * 8,
    inputs=lambda rng, n: (rng.integers(1, 128_000, n).tolist(),),
    sizes=({"n": 1}, {"n": 5}, {"n": 64}, {"n": 65}, {"n": 1000}),
    domain=(Reach("all tokens are 0", lambda rng, tokens: ([0] * len(tokens),)),
            Reach("tokens are as large as int32 allows", lambda rng, tokens: ([2**28 - 1] * len(tokens),))),
    demand=_in_blocks_of_64,
    wrong={
        "the number of blocks is rounded down": Edit("-(-len(tokens) // 64)", "len(tokens) // 64"),
        "one block is launched, however many tokens there are": starts_in_one_block,
        "what comes back is the input, not the output":
            Edit("return out.copy_to_host()", "return on_device.copy_to_host()"),
        "the tokens are sent as int64, NumPy's default for integers":
            Edit("np.array(tokens, dtype=np.int32)", "np.array(tokens)"),
        "the output comes back without a launch": starts_never_launched,
        "grid and block are swapped": Edit("[-(-len(tokens) // 64), 64]", "[64, -(-len(tokens) // 64)]"),
        "the result stays on the device": Edit("return out.copy_to_host()", "return out"),
        "the array for the result has no dtype, and holds float64": Edit("len(tokens), dtype=np.int32", "len(tokens)"),
        "NumPy computes what the kernel should": Edit("return out.copy_to_host()",
                                                      "return np.array(tokens, dtype=np.int32) * 8"),
    },
)

EQUIVALENT = {
    "arithmetic: -len(tokens) // 64 -> -len(tokens)": "More blocks than are needed: the guard stops their threads.",
    "number: 64 -> 32": "The grid holds as many threads as there are elements, or more: the guard stops the others.",
    "number: 64 -> 63": "The grid holds as many threads as there are elements, or more: the guard stops the others.",
}

AFTER = """
Why does nothing in this function wait for the kernel? Because `copy_to_host` does.

`labkit progress` in a terminal shows how far you are. Next: the exercises of **01 · Vector addition**.
"""
