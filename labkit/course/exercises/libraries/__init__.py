"""Four exercises: the sizes and leading dimensions of a call, and three products, each in a single call of cuBLAS.
Without a GPU the calls go to the model in NumPy, which accepts and refuses the same arguments.

One method works for all the products. Write down the transpose of what you want. Under each operand, write what
cuBLAS sees in its memory. Where the two differ, the flag is `OP_T`. The leading dimension is the length of a row of
the array in memory.
"""

import numpy as np

from labkit.course.exercises import asks, on_the_device

FIRST_CELL = """import numpy as np

from labkit import check, hint
from labkit.kernels.libraries.blas import OP_N, OP_T, at, gemm, gemm_strided_batched
"""

# The calls go to cuBLAS on a GPU with CuPy, and to its NumPy model elsewhere. No call here leaves the memory of an
# array.


def wide(*arrays):
    return (array.astype(np.float64) for array in arrays)


def one_call(*allowed: str):
    """A single call of cuBLAS, of one of these functions, that computes the result."""
    asked = " or ".join(f"`{name}`" for name in allowed)

    @asks(f"A single call of {asked} computes the result.")
    def demand(run) -> str | None:
        if run.calls and (len(run.calls) > 1 or run.calls[0] not in allowed):
            made = " and ".join(f"{run.calls.count(name)} of `{name}`" for name in dict.fromkeys(run.calls))
            return f"The calls of cuBLAS are {made}; it should be a single call, of {asked}."
        if not run.calls:
            return f"cuBLAS is not called; it should be one call of {asked}."
        return on_the_device(run)

    return demand
