r"""Wait for the neighbours only

Not every phase needs all results of the previous one. Row 0 of `values` (R + 1, n), float32, is given, and each element
of the following R rows should be the mean of three neighbours in the row before it:

$$\text{values}_{r+1,i} = \frac{\text{values}_{r,i-1} + \text{values}_{r,i} + \text{values}_{r,i+1}}{3}$$

Beyond the edges, elements count as 0. The launch has n / 32 blocks of 32 threads, at most eight, and a thread computes
element `cuda.grid(1)` of every row. So a block needs only what its left and right neighbours have written. `rounds_of`
(8,), uint32, counts the rows that each block has written, and is 0 when the kernel starts. After each row but the last,
a block should add 1 to its own counter, and wait only for those of its neighbours. Block 0 has none on the left, and
the last block none on the right.
"""

HINTS = ("What must a neighbour's counter be before this block may read row r + 1? It arrives as at a join: a "
         "barrier, a fence, an atomic; but on whose counter?",
         "After row r + 1 thread 0 fences, adds 1 to rounds_of[block], and waits first for rounds_of[block - 1] and "
         "then for rounds_of[block + 1], each if there is one, until it is at least r + 1. Then it fences again.",
         "if block > 0: while cuda.atomic.add(rounds_of, block - 1, 0) < r + 1: pass. The same for block + 1 if block "
         "+ 1 < cuda.gridDim.x. Then cuda.threadfence(), and cuda.syncthreads() outside the `if thread == 0`.")
POINTS = 2
NEEDS = ("softmax_joined",)

from numba import float32

from labkit import cuda


# %%
@cuda.jit
def wait_for_neighbours(rounds_of, values):
    block, i, n = cuda.blockIdx.x, cuda.grid(1), values.shape[1]
    rounds = values.shape[0] - 1
    for r in range(rounds):
        left = values[r, i - 1] if i > 0 else float32(0.0)
        right = values[r, i + 1] if i + 1 < n else float32(0.0)
        values[r + 1, i] = (left + values[r, i] + right) / float32(3.0)
        if r + 1 < rounds:
            ### BEGIN SOLUTION
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                cuda.threadfence()
                cuda.atomic.add(rounds_of, block, 1)
                if block > 0:
                    while cuda.atomic.add(rounds_of, block - 1, 0) < r + 1:
                        pass
                if block + 1 < cuda.gridDim.x:
                    while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:
                        pass
                cuda.threadfence()
            cuda.syncthreads()
            ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import EPS32, SUMMED, Edit, KernelExercise, asks, elements_of_argument, of, uniform


def _rows(given):
    rows = [given[0].astype(np.float64)]
    for _ in given[1:]:
        padded = np.pad(rows[-1], 1)
        rows.append((padded[:-2] + padded[1:-1] + padded[2:]) / 3)
    return np.array(rows)


def _tolerance(given):
    """Four roundings in each round, of means that are no larger than the largest number."""
    return 4 * EPS32 * np.arange(len(given))[:, None] * np.abs(given[0]).max() + np.zeros_like(given)


def _inputs(rng, R, B):
    values = np.zeros((R + 1, 32 * B), np.float32)
    values[0] = uniform(rng, 32 * B)
    return (values,)


def _start(given):
    values = given.copy()
    values[1:] = np.nan
    return values


@asks("A block waits for its neighbours and for no other block, with a counter for each.")
def _counters_of_neighbours(report) -> str | None:
    """Thread 0 of a block may update its own counter and read two others."""
    name = next(iter(report.arrays))
    (blocks, *_), (threads, *_) = report.grid, report.block
    touched: dict[int, set[int]] = {}
    for (array, _), cells in report.touched.items():
        if array == name:
            for (thread, address), _ in cells.items():
                touched.setdefault(thread // threads, set()).add(address)
    if blocks > 1 and elements_of_argument(report, 1) > 2 * 32 * blocks and not touched:
        return "No counter is touched, so the blocks do not wait for one another."
    if busy := [block for block, addresses in touched.items() if len(addresses) > 3]:
        return (f"Block {busy[0]} touches the counters of {len(touched[busy[0]])} blocks, and three are enough: its "
                "own, and those of its neighbours.")
    return None


EXERCISE = KernelExercise(
    name="wait_for_neighbours",
    reference=_rows,
    inputs=_inputs,
    shape=lambda R, B: (R + 1, 32 * B),
    start=_start,
    sizes=tuple({"R": R, "B": B} for R, B in ((1, 1), (2, 2), (3, 1), (4, 3), (5, 5))),
    random_size=lambda rng: {"R": int(rng.integers(2, 6)), "B": int(rng.integers(2, 6))},
    arguments=lambda inputs, out, size: (np.zeros(8, np.uint32), out),
    launch=lambda R, B: (B, 32),
    tolerance=_tolerance,
    observe_sizes=({"R": 2, "B": 2}, {"R": 5, "B": 5}),
    demand=_counters_of_neighbours,
    benign_races=False,
    domain=of(0, *SUMMED),
    wrong={
        "the first fence is missing":
            Edit("cuda.threadfence()\ncuda.atomic.add(rounds_of, block, 1)", "cuda.atomic.add(rounds_of, block, 1)"),
        "the second fence is missing":
            Edit("if block + 1 < cuda.gridDim.x:\n"
                 "    while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:\n"
                 "        pass\n"
                 "cuda.threadfence()",
                 "if block + 1 < cuda.gridDim.x:\n"
                 "    while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:\n"
                 "        pass"),
        "a block waits for its left neighbour only": Edit("if block + 1 < cuda.gridDim.x:", "if False:"),
        "a block waits for its right neighbour only": Edit("if block > 0:", "if False:"),
        "it waits for a neighbour to reach only the previous round":
            Edit("rounds_of, block - 1, 0) < r + 1", "rounds_of, block - 1, 0) < r"),
        "it waits for a round that no neighbour reaches":
            Edit("rounds_of, block + 1, 0) < r + 1", "rounds_of, block + 1, 0) < r + 2"),
        "it waits for its own counter": Edit("rounds_of, block - 1, 0)", "rounds_of, block, 0)"),
        "a thread arrives before the others of its block have written":
            Edit("cuda.syncthreads()\nif cuda.threadIdx.x == 0:", "if cuda.threadIdx.x == 0:"),
        "the others do not wait for thread 0":
            Edit("if cuda.threadIdx.x == 0:\n"
                 "    cuda.threadfence()\n"
                 "    cuda.atomic.add(rounds_of, block, 1)\n"
                 "    if block > 0:\n"
                 "        while cuda.atomic.add(rounds_of, block - 1, 0) < r + 1:\n"
                 "            pass\n"
                 "    if block + 1 < cuda.gridDim.x:\n"
                 "        while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:\n"
                 "            pass\n"
                 "    cuda.threadfence()\n"
                 "cuda.syncthreads()",
                 "if cuda.threadIdx.x == 0:\n"
                 "    cuda.threadfence()\n"
                 "    cuda.atomic.add(rounds_of, block, 1)\n"
                 "    if block > 0:\n"
                 "        while cuda.atomic.add(rounds_of, block - 1, 0) < r + 1:\n"
                 "            pass\n"
                 "    if block + 1 < cuda.gridDim.x:\n"
                 "        while cuda.atomic.add(rounds_of, block + 1, 0) < r + 1:\n"
                 "            pass\n"
                 "    cuda.threadfence()"),
        "the last block waits for one that does not exist": Edit("if block + 1 < cuda.gridDim.x:", "if block < 7:"),
    },
)

EQUIVALENT = {
    "call: cuda.atomic.add(rounds_of, block + 1, 0) -> cuda.atomic.max(rounds_of, block + 1, 0)":
        "The larger of a counter and 0 is the counter: it is read and not changed.",
    "guard: if r + 1 < rounds: ... -> if True: ...": "The blocks wait once more, after the last row, and all arrive.",
    "guard: r + 1 < rounds -> r + 1 <= rounds": "The blocks wait once more, after the last row, and all arrive.",
}
