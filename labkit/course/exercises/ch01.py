"""The exercises of lesson 01: elementwise kernels, in place and with a step, the grid-stride loop, what bytes cost."""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import asks, whole_grid
from labkit.course.exercises.domains import MOVED, SUMMED, of, parameter
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import dot_products, relative_to

BLOCK = 128


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)


# --- saxpy: in place -----------------------------------------------------------------------------------------------


@cuda.jit
def saxpy_by_one_thread(s, x, y):
    if cuda.grid(1) == 0:
        for i in range(y.size):
            y[i] = s * x[i] + y[i]


SAXPY = KernelExercise(
    name="saxpy",
    reference=lambda s, x, y: np.float64(s) * x + y,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n), uniform(rng, n)),
    shape=lambda n: (n,),
    start=lambda s, x, y: y,
    arguments=lambda inputs, out, size: (inputs[0], inputs[1], out),
    sizes=tuple({"n": n} for n in (1, 127, 128, 129, 1000, 70_001)),
    launch=lambda n: (_blocks(n), BLOCK),
    tolerance=relative_to(lambda s, x, y: np.abs(s * x) + np.abs(y), roundings=2),
    domain=(*of((1, 2), *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    wrong={
        "what stood in y is overwritten, not added to": Edit("y[i] = s * x[i] + y[i]", "y[i] = s * x[i]"),
        "s multiplies y where it should multiply x": Edit("y[i] = s * x[i] + y[i]", "y[i] = x[i] + s * y[i]"),
        "s is left out": Edit("y[i] = s * x[i] + y[i]", "y[i] = x[i] + y[i]"),
        "the first thread goes through the whole vector, and the others wait": saxpy_by_one_thread,
        "there is no guard": Edit("if i < y.size:", "if True:"),
    },
)


# --- every_second --------------------------------------------------------------------------------------------------


def _every_second(xp, x, out):
    out[:] = x[::2]


EVERY_SECOND = KernelExercise(
    name="every_second",
    reference=lambda x: x[::2],
    inputs=lambda rng, n: (uniform(rng, n),),
    shape=lambda n: ((n + 1) // 2,),
    sizes=tuple({"n": n} for n in (1, 2, 65, 256, 513, 1000, 70_001)),
    launch=lambda n: (_blocks((n + 1) // 2), BLOCK),
    timed_gpu={"n": 2**27},
    baseline=_every_second,
    domain=of(0, MOVED),
    wrong={
        "the guard compares with the length of x, and out is half as long": Edit("if i < out.size:", "if i < x.size:"),
        "it takes elements 1, 3, 5, ... where 0, 2, 4, ... are asked for":
            Edit("out[i] = x[2 * i]", "out[i] = x[2 * i + 1]"),
        "it copies the first half of x": Edit("out[i] = x[2 * i]", "out[i] = x[i]"),
        "half of an odd length is rounded down, and the last element is left out":
            Edit("if i < out.size:", "if i < x.size // 2:"),
    },
)


# --- predict_every_second ------------------------------------------------------------------------------------------


@cuda.jit
def touched_kernel(touched, visits, n, step):
    i = cuda.grid(1)
    if i < n:
        touched[i] = step * i
        cuda.atomic.add(visits, 0, 1)


def what_it_moves(n: int = 500_000, block: int = 256) -> dict[str, int]:
    """Counted from the addresses that the threads of a launch wrote down; x and out begin at a multiple of 32 bytes."""
    touched, visits = cuda.to_device(np.full(n, -1, np.int64)), cuda.to_device(np.zeros(1, np.int32))
    touched_kernel[_blocks(n, block), block](touched, visits, n, 2)
    read = touched.copy_to_host() * 4  # byte addresses in x
    written = np.arange(n) * 4
    return {
        "idle": _blocks(n, block) * block - int(visits.copy_to_host()[0]),
        "deliveries": len(np.unique(read[:32] // 32)),
        "bytes_used": 4 * len(np.unique(read)) + 4 * len(written),
        "bytes_moved": 32 * (len(np.unique(read // 32)) + len(np.unique(written // 32))),
    }


PREDICT_EVERY_SECOND = PredictionExercise(
    name="predict_every_second",
    truth=what_it_moves,
    how={
        "idle": "count the threads of all blocks, and take away the elements of out.",
        "deliveries": "write down the first and the last element of x that lanes 0 to 31 load. How many pieces of "
                      "eight floats lie between?",
        "bytes_used": "each element of out is one number read and one number written, four bytes each.",
        "bytes_moved": "memory delivers whole pieces of 32 bytes. Which pieces of x does no thread use? Then add out.",
    },
    wrong={
        "one thread is counted for each element of x, and there is one for each element of out": {"idle": 192},
        "these are the deliveries for 32 floats in a row": {"deliveries": 4},
        "a delivery for each lane would be right only if no two lanes shared one": {"deliveries": 32},
        "only the reading is counted": {"bytes_used": 2_000_000},
        "only the bytes that are used are counted, and the other half of each piece travels along":
            {"bytes_moved": 4_000_000},
    },
)


# --- scale_grid_stride: the last round is left out -----------------------------------------------------------------


@cuda.jit
def scale_only_first(s, x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = s * x[i]


SCALE_GRID_STRIDE = KernelExercise(
    name="scale_grid_stride",
    reference=lambda s, x: np.float64(s) * x,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 95, 96, 97, 193, 1000, 9_999)),
    launch=lambda n: (3, 32),
    tolerance=relative_to(lambda s, x: np.abs(s * x), roundings=1),
    domain=(*of(1, *SUMMED), *parameter(0, "s", 1, 0, -2.5)),
    demand=whole_grid,
    wrong={
        "half of the blocks do the work of all":
            Edit("i = cuda.grid(1)", "i = cuda.grid(1) if cuda.blockIdx.x < 2 else out.size",
                 "stride = cuda.gridsize(1)", "stride = 2 * cuda.blockDim.x"),
        "a thread stops one round early, and never does its last element":
            Edit("while i < out.size:", "while i + stride < out.size:"),
        "the loop says `<=`, which lets a thread go one element too far":
            Edit("while i < out.size:", "while i <= out.size:"),
        "there is no loop: each thread does its first element and stops": scale_only_first,
        "the stride is one more than the threads of the grid":
            Edit("stride = cuda.gridsize(1)", "stride = cuda.gridsize(1) + 1"),
    },
)


# --- partial_sums --------------------------------------------------------------------------------------------------


def _rows(x, threads):
    """x as one row for each round of the grid, zeros behind its end. (rounds, threads)"""
    rounds = _blocks(len(x), threads)
    rows = np.zeros(rounds * threads)
    rows[: len(x)] = x
    return rows.reshape(rounds, threads)


@asks("Each thread stores one number.")
def _one_store_each(report):
    threads = int(np.prod(report.grid) * np.prod(report.block))
    stores = report.counts["global_stores"]
    if stores <= threads:
        return None
    return (f"{threads:,} threads make {stores:,} stores in global memory. Asked for is one number each, at the end: "
            "add up in a variable of the thread's own.")


PARTIAL_SUMS = KernelExercise(
    name="partial_sums",
    reference=lambda x, threads: _rows(x, threads).sum(axis=0),
    inputs=lambda rng, n, blocks, threads: (uniform(rng, n), blocks * threads),
    shape=lambda n, blocks, threads: (blocks * threads,),
    arguments=lambda inputs, out, size: (inputs[0], out),
    sizes=(
        {"n": 1, "blocks": 1, "threads": 8},
        {"n": 64, "blocks": 2, "threads": 32},
        {"n": 65, "blocks": 2, "threads": 32},
        {"n": 1000, "blocks": 3, "threads": 32},
        {"n": 20_011, "blocks": 4, "threads": 96},
    ),
    launch=lambda n, blocks, threads: (blocks, threads),
    tolerance=dot_products(lambda x, threads: _rows(np.abs(x), threads).sum(axis=0),
                           lambda x, threads: _blocks(len(x), threads)),
    domain=of(0, *SUMMED),
    demand=_one_store_each,
    in_float32=True,
    wrong={
        "the stride is a block, not the grid, so blocks add elements of each other":
            Edit("i += cuda.gridsize(1)", "i += cuda.blockDim.x"),
        "each thread begins one round late and misses its first element": Edit("i = me", "i = me + cuda.gridsize(1)"),
        "the total is replaced, not added to": Edit("total += x[i]", "total = x[i]"),
        "the sum so far is kept in out, and goes to memory and back at each step":
            Edit("out[me] = total", "",
                 "i = me\n"
                 "while i < x.size:\n"
                 "    total += x[i]",
                 "i = me\n"
                 "out[me] = total\n"
                 "while i < x.size:\n"
                 "    out[me] += x[i]"),
        "a thread without an element writes nothing, and its sum should be 0":
            Edit("out[me] = total",
                 "if me < x.size:\n"
                 "    out[me] = total"),
    },
)


# --- reverse_in_place ----------------------------------------------------------------------------------------------


@cuda.jit
def reverse_all_swap(x):
    i = cuda.grid(1)
    if i < x.size:
        mine = x[i]
        x[i] = x[x.size - 1 - i]
        x[x.size - 1 - i] = mine


@cuda.jit
def reverse_all_copy(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[x.size - 1 - i]


@cuda.jit
def reverse_by_one_thread(x):
    if cuda.grid(1) == 0:
        for i in range(x.size // 2):
            mine = x[i]
            x[i] = x[x.size - 1 - i]
            x[x.size - 1 - i] = mine


@cuda.jit
def reverse_lost(x):
    i = cuda.grid(1)
    if i < x.size // 2:
        x[i] = x[x.size - 1 - i]
        x[x.size - 1 - i] = x[i]


REVERSE_IN_PLACE = KernelExercise(
    name="reverse_in_place",
    reference=lambda x: x[::-1],
    inputs=lambda rng, n: (uniform(rng, n),),
    shape=lambda n: (n,),
    start=lambda x: x,
    arguments=lambda inputs, out, size: (out,),
    # Wrong kernels race, and between blocks a race has no certain outcome: enough sizes fit into one block.
    sizes=tuple({"n": n} for n in (1, 2, 33, 64, 101, 127, 1001, 9_999)),
    launch=lambda n: (_blocks(n), BLOCK),
    domain=of(0, MOVED),
    wrong={
        "all threads swap, so each pair is swapped by two threads": reverse_all_swap,
        "all threads copy without a variable in between, and read what others have overwritten": reverse_all_copy,
        "the first of the two stores destroys what the second was to move": reverse_lost,
        "the partner of i is taken to be size - i, which is one too far":
            Edit("x[i] = x[partner]", "x[i] = x[x.size - i]",
                 "x[partner] = mine", "x[x.size - i] = mine"),
        "the first thread goes through the whole vector, and the others wait": reverse_by_one_thread,
    },
)

EXERCISES = (SAXPY, EVERY_SECOND, PREDICT_EVERY_SECOND, SCALE_GRID_STRIDE, PARTIAL_SUMS, REVERSE_IN_PLACE)
