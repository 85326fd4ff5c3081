"""From a blank page: your CI has no GPU

A kernel `row_sums(x, out)` stores the sum of each row of `x` in `out`. It works with any number of blocks of 64
threads: block b sums row b, then row b + `gridDim.x`, and so on. Other people will change this kernel, and the machine
that runs the project's tests has no GPU.

Write the test they need. `assert_row_sums(row_sums)` takes such a kernel and may launch it any number of times. It
raises an AssertionError if a sum is wrong, and also if the kernel has a bug that shows only on some GPUs, or only now
and then. If the kernel is right, it returns. A few hundred elements are enough for `x`.
"""

HINTS = ("Comparing `out` with NumPy is half of the test. Fill `out` with NaN first, so that a row that is never "
         "summed shows, and compare with a tolerance.",
         "`observe(row_sums[blocks, 64], x, out)` launches the kernel once and returns a report. `report.ok` is False "
         "after a race, an access outside an array, a read of memory that nothing wrote, or a barrier that some "
         "threads miss.",
         "A bug has to be reached before it can be found. Which bugs show only where a row has fewer elements than the "
         "block has threads? Which ones need a block that goes on to a second row, and which ones need two blocks?")
POINTS = 3
NEEDS = ("centre",)

import numpy as np

from labkit import observe

# %%
assert_row_sums = None  # write the function


### BEGIN SOLUTION
def assert_row_sums(row_sums):
    rng = np.random.default_rng(0)
    for rows, columns, blocks in ((3, 130, 2), (2, 5, 2)):  # a second row for a block; rows shorter than a block
        x = rng.random((rows, columns), dtype=np.float32)
        out = np.full(rows, np.nan, np.float32)
        report = observe(row_sums[blocks, 64], x, out)
        assert report.ok, report.findings[0]
        assert np.allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-5)


### END SOLUTION

# %% [check]
from numba import float32, int32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise

ALL = 0xFFFFFFFF


def _tree(last_barrier=True, first_barrier=True, guard=True, clear=True, last_column=0, one_row=False):
    """Make a kernel that sums by a tree in shared memory; each argument that is not the default plants a bug."""
    @cuda.jit
    def row_sums(x, out):
        shared = cuda.shared.array(64, float32)
        thread = cuda.threadIdx.x
        row = cuda.blockIdx.x
        while row < x.shape[0]:
            if clear or thread < x.shape[1]:
                shared[thread] = 0
            col = thread
            while col < x.shape[1] - last_column:
                shared[thread] += x[row, col]
                col += 64
            if not guard and thread >= x.shape[1]:
                shared[thread] += x[row + 1, thread]
            if first_barrier:
                cuda.syncthreads()
            stride = 32
            while stride > 0:
                if thread < stride:
                    shared[thread] += shared[thread + stride]
                cuda.syncthreads()
                stride //= 2
            if thread == 63:
                out[row] = shared[0]
            if last_barrier:
                cuda.syncthreads()
            row += x.shape[0] if one_row else cuda.gridDim.x
    return row_sums


@cuda.jit
def _by_shuffles(x, out):
    sums = cuda.shared.array(2, float32)
    thread = cuda.threadIdx.x
    row = cuda.blockIdx.x
    while row < x.shape[0]:
        total = float32(0.0)
        for col in range(thread, x.shape[1], 64):
            total += x[row, col]
        offset = int32(16)
        while offset > 0:
            total += cuda.shfl_down_sync(ALL, total, offset)
            offset //= 2
        if thread % 32 == 0:
            sums[thread // 32] = total
        cuda.syncthreads()
        if thread == 0:
            out[row] = sums[0] + sums[1]
        cuda.syncthreads()
        row += cuda.gridDim.x


@cuda.jit
def _warps_without_syncwarp(x, out):
    shared = cuda.shared.array(64, float32)
    thread = cuda.threadIdx.x
    row = cuda.blockIdx.x
    while row < x.shape[0]:
        total = float32(0.0)
        for col in range(thread, x.shape[1], 64):
            total += x[row, col]
        shared[thread] = total
        cuda.syncthreads()
        if thread < 32:
            shared[thread] += shared[thread + 32]
            stride = 16
            while stride > 0:
                if thread < stride:
                    shared[thread] += shared[thread + stride]
                stride //= 2
        if thread == 0:
            out[row] = shared[0]
        cuda.syncthreads()
        row += cuda.gridDim.x


@cuda.jit
def _through_out(x, out):
    thread = cuda.threadIdx.x
    row = cuda.blockIdx.x
    while row < x.shape[0]:
        if thread == 0:
            out[row] = 0
            if row + 1 < x.shape[0]:
                out[row + 1] = 0
        cuda.syncthreads()
        total = float32(0.0)
        for col in range(thread, x.shape[1], 64):
            total += x[row, col]
        cuda.atomic.add(out, row, total)
        cuda.syncthreads()
        row += cuda.gridDim.x


# (kernel, its bug): the test has to reject those with a bug and accept the others.
KERNELS = (
    (_tree(), ""),
    (_by_shuffles, ""),
    (_tree(last_barrier=False), "no barrier separates the read of a row's sum from the stores of the block's next row, "
     "so a block that sums a second row races"),
    (_tree(first_barrier=False), "there is no barrier between the loads and the tree, so threads read what others may "
     "not have stored yet"),
    (_warps_without_syncwarp, "the last steps of the tree are those of one warp, without cuda.syncwarp()"),
    (_through_out, "a block sets the sum of the next row to zero, but that row is another block's"),
    (_tree(clear=False), "where a row has fewer than 64 elements, shared memory is read that nothing has written"),
    (_tree(guard=False), "where a row has fewer than 64 elements, threads read beyond it, in the last row outside x"),
    (_tree(last_column=1), "the last element of each row is left out"),
    (_tree(one_row=True), "a block sums its first row only, so with fewer blocks than rows some sums are missing"),
)


def _mistaken(answer, expected, which) -> str | None:
    kernel, bug = KERNELS[which]
    try:
        answer(kernel)
    except AssertionError as error:
        return None if bug else f"It fails for a right kernel: {str(error).strip() or 'an assert without a message'}."
    return f"It passes a kernel with a bug: {bug}." if bug else None


EXERCISE = FunctionExercise(
    name="assert_row_sums",
    reference=lambda which: np.array(not KERNELS[which][1]),
    inputs=lambda rng, which: (which,),
    judge=_mistaken,
    sizes=tuple({"which": which} for which in range(len(KERNELS))),
    random_size=lambda rng: {"which": int(rng.integers(len(KERNELS)))},
    domain="The kernels are a fixed list: right ones, and one per bug that a test has to catch.",
    wrong={
        "only the sums are compared": Edit("        assert report.ok, report.findings[0]\n", ""),
        "only the findings are checked, so a wrong sum passes": Edit(
            "        assert np.allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-5)\n", ""),
        "each block sums one row, so no block goes on to a second": Edit("(3, 130, 2)", "(3, 130, 3)"),
        "one block sums all rows, so no two blocks meet": Edit("((3, 130, 2), (2, 5, 2))", "((3, 130, 1), (2, 5, 1))"),
        "no row is shorter than the block": Edit(", (2, 5, 2)", ""),
        "the sums must be equal to the last bit, so right kernels fail": Edit(
            "np.allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-5)", "(out == x.sum(axis=1)).all()"),
        "the assertion is the wrong way round": Edit("assert report.ok", "assert not report.ok"),
    },
)

EQUIVALENT = {
    "number: 2 -> 1 (3)": "The second launch is there for short rows; one of them is enough.",
    "number: 5 -> 10": "Ten elements are also fewer than 64.",
    "number: 130 -> 129": "129 elements are also more than 64 and no multiple of it.",
    "number: 0 -> 1": "Another seed of the random numbers.",
    "call: np.allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-05) -> np.allclose(x.sum(axis=1, "
    "dtype=np.float64), out, rtol=1e-05)": "The tolerance refers to the other value; both are nearly equal.",
    "index: report.findings[0] -> report.findings[-1]": "It changes only the message.",
    "index: report.findings[0] -> report.findings[0 * 2]": "The index is 0, as before.",
}

AFTER = """
In a project that already has tests, `pytest -p labkit.simt.pytest --cuda-on-cpu --cuda-observe` runs them without a GPU
and observes every launch. The project needs no other change.
"""
