"""Room for two

This kernel reverses a vector piece by piece. A block copies its piece of 5,000 elements into shared memory, waits until
all of it is there, and stores it backwards. It works, but on a T4 it is slow. An SM of a T4 has 64 KB of shared memory,
so only one of these blocks fits, and while it waits at the barrier the SM has nothing else to do.

Predict how many blocks of 256 threads fit into an SM of a T4, an RTX 3060 and an H100. Then look at the table:

    from labkit import fits
    fits(room_for_two, gpu="t4,rtx3060,h100", types="float32[::1], float32[::1]", block=256)

and change one line so that at least two fit on the T4. Pieces must stay 5,000 elements long, and go through shared
memory.
"""

HINTS = ("How many bytes of shared memory does a block use? The table says so. How many may it use if two are to fit "
         "into 65,536?",
         "5,000 elements take 40,000 bytes, so each takes 8. Of which type are the elements of `x`?",
         "A float64 takes eight bytes and a float32 four. `x` holds float32, so nothing is lost if `piece` does, too.")
POINTS = 2
NEEDS = ("resident_blocks",)

from numba import float32, float64

from labkit import cuda


# %%
@cuda.jit
def room_for_two(x, out):
    piece = cuda.shared.array(5000, float64)
    begin = cuda.blockIdx.x * 5000
    count = min(5000, x.size - begin)
    i = cuda.threadIdx.x
    while i < count:
        piece[i] = x[begin + i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < count:
        out[begin + i] = piece[count - 1 - i]
        i += cuda.blockDim.x


### BEGIN SOLUTION
@cuda.jit
def room_for_two(x, out):
    piece = cuda.shared.array(5000, float32)  # half the bytes: three blocks fit
    begin = cuda.blockIdx.x * 5000
    count = min(5000, x.size - begin)
    i = cuda.threadIdx.x
    while i < count:
        piece[i] = x[begin + i]
        i += cuda.blockDim.x
    cuda.syncthreads()
    i = cuda.threadIdx.x
    while i < count:
        out[begin + i] = piece[count - 1 - i]
        i += cuda.blockDim.x


### END SOLUTION

# %% [check]
import functools

import numpy as np
from numba import types

from labkit._common.errors import UserError
from labkit.course.check.numba_kernels import numba_itself
from labkit.course.exercises import MOVED, Edit, KernelExercise, asks, of, uniform

PIECE, THREADS = 5000, 256


def _reversed(x):
    return np.concatenate([x[begin:begin + PIECE][::-1] for begin in range(0, len(x), PIECE)])


@functools.lru_cache(maxsize=4)
def _on_a_t4(function):
    """What ptxas says of a block on a T4."""
    from labkit.measure import fits, own_kernel

    form = own_kernel.Form(cuda.jit(function), types.void(types.float32[::1], types.float32[::1]), THREADS)
    with numba_itself():
        (found,) = fits.inspect(form, fits.gpus_named("t4"))
    return found


@asks("The pieces go through shared memory, and at least two blocks of 256 threads fit into an SM of a T4, without "
      "spilled registers.")
def _two_fit(report) -> str | None:
    if report.counts["shared_stores"] < report.counts["global_stores"]:
        return (f"{report.counts['global_stores']:,} elements are stored to `out`, and "
                f"{report.counts['shared_stores']:,} to shared memory: let every element of a piece go through it.")
    try:
        found = _on_a_t4(report.launch.function)
    except UserError as error:
        return f"{error}. Whether two blocks fit on a T4 is known once ptxas has assembled your kernel for one."
    if found.blocks < 2:
        return (f"Only {found.blocks} of your blocks fits into an SM of a T4: it takes {found.shared_bytes:,} bytes of "
                "shared memory, and the SM has 65,536.")
    return found.problems[0] if found.spill_bytes else None


EXERCISE = KernelExercise(
    name="room_for_two",
    reference=_reversed,
    inputs=lambda rng, n: (uniform(rng, n),),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 255, 257, 4999, 5000, 5001, 12_345)),
    random_size=lambda rng: {"n": int(rng.integers(1, 16_000))},
    launch=lambda n: (-(-n // PIECE), THREADS),
    observe_sizes=({"n": 257}, {"n": 5001}),
    domain=of(0, MOVED),
    demand=_two_fit,
    benign_races=False,
    wrong={
        "the elements in shared memory are still float64": Edit("5000, float32)", "5000, float64)"),
        "the piece has room for 2,500 elements, but 5,000 are stored into it": Edit("(5000, float32)",
                                                                                    "(2500, float32)"),
        "room for twice as many elements as a piece has is reserved": Edit("(5000, float32)", "(10000, float32)"),
        "there is no barrier between the loads and the stores": Edit("    cuda.syncthreads()\n", ""),
        "the piece is stored in the order in which it was loaded": Edit("piece[count - 1 - i]", "piece[i]"),
        "a short last piece is read from its unwritten end": Edit("piece[count - 1 - i]", "piece[4999 - i]"),
    },
)

EQUIVALENT = {
    "barrier moved: room_for_two -> cuda.syncthreads() behind i = cuda.threadIdx.x":
        "Setting i reads and writes nothing that threads share.",
    "type: i += cuda.blockDim.x -> i += int32(cuda.blockDim.x)": "It is an integer already.",
    "type: i += cuda.blockDim.x -> i += int32(cuda.blockDim.x) (2)": "It is an integer already.",
}

AFTER = """
On an RTX 3060 two blocks fitted from the beginning, and on an H100 five; with float32 it is four and eight. A type that
is wider than its values costs resident warps on all three GPUs, and the table shows how many before anybody has to own
one.
"""
