"""The exercises of lesson 01: elementwise kernels, in place and with a step, the grid-stride loop, what bytes cost."""

import numpy as np

from labkit import cuda
from labkit.course.exercises import KernelExercise, PredictionExercise
from labkit.kernels.op import dot_products, relative_to, uniform

BLOCK = 128


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)


# --- saxpy: in place -----------------------------------------------------------------------------------------------


@cuda.jit
def saxpy_overwrites(s, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = s * x[i]


@cuda.jit
def saxpy_scales_y(s, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] + s * y[i]


@cuda.jit
def saxpy_adds(s, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] + y[i]


@cuda.jit
def saxpy_unguarded(s, x, y):
    i = cuda.grid(1)
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
    wrong={
        "what stood in y is overwritten, not added to": saxpy_overwrites,
        "s multiplies y where it should multiply x": saxpy_scales_y,
        "s is left out": saxpy_adds,
        "there is no guard": saxpy_unguarded,
    },
)


# --- every_second --------------------------------------------------------------------------------------------------


@cuda.jit
def every_second_guards_x(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[2 * i]


@cuda.jit
def every_second_from_one(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[2 * i + 1]


@cuda.jit
def every_second_copies(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


@cuda.jit
def every_second_rounds_down(x, out):
    i = cuda.grid(1)
    if i < x.size // 2:
        out[i] = x[2 * i]


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
    rival=_every_second,
    wrong={
        "the guard compares with the length of x, and out is half as long": every_second_guards_x,
        "it takes elements 1, 3, 5, ... where 0, 2, 4, ... are asked for": every_second_from_one,
        "it copies the first half of x": every_second_copies,
        "half of an odd length is rounded down, and the last element is left out": every_second_rounds_down,
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
        "bytes_moved": "memory delivers whole pieces of 32 bytes. Which pieces of x does nobody ask for? Then add out.",
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
def scale_last_round_left_out(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i + stride < out.size:
        out[i] = s * x[i]
        i += stride


@cuda.jit
def scale_one_too_far(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i <= out.size:
        out[i] = s * x[i]
        i += stride


@cuda.jit
def scale_only_first(s, x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = s * x[i]


@cuda.jit
def scale_stride_too_long(s, x, out):
    i = cuda.grid(1)
    stride = cuda.gridsize(1) + 1
    while i < out.size:
        out[i] = s * x[i]
        i += stride


SCALE_GRID_STRIDE = KernelExercise(
    name="scale_grid_stride",
    reference=lambda s, x: np.float64(s) * x,
    inputs=lambda rng, n: (np.float32(rng.uniform(1.5, 3)), uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=tuple({"n": n} for n in (1, 95, 96, 97, 193, 1000, 9_999)),
    launch=lambda n: (3, 32),
    tolerance=relative_to(lambda s, x: np.abs(s * x), roundings=1),
    wrong={
        "a thread stops one round early, and never does its last element": scale_last_round_left_out,
        "the loop says `<=`, which lets a thread go one element too far": scale_one_too_far,
        "there is no loop: each thread does its first element and stops": scale_only_first,
        "the stride is one more than the threads of the grid": scale_stride_too_long,
    },
)


# --- partial_sums --------------------------------------------------------------------------------------------------


@cuda.jit
def partial_steps_by_block(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    i = me
    while i < x.size:
        total += x[i]
        i += cuda.blockDim.x
    out[me] = total


@cuda.jit
def partial_skips_first(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    i = me + cuda.gridsize(1)
    while i < x.size:
        total += x[i]
        i += cuda.gridsize(1)
    out[me] = total


@cuda.jit
def partial_keeps_last(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    i = me
    while i < x.size:
        total = x[i]
        i += cuda.gridsize(1)
    out[me] = total


@cuda.jit
def partial_only_busy(x, out):
    me = cuda.grid(1)
    total = np.float32(0)
    i = me
    while i < x.size:
        total += x[i]
        i += cuda.gridsize(1)
    if me < x.size:
        out[me] = total


def _rows(x, threads):
    """x as one row for each round of the grid, zeros behind its end. (rounds, threads)"""
    rounds = _blocks(len(x), threads)
    rows = np.zeros(rounds * threads)
    rows[: len(x)] = x
    return rows.reshape(rounds, threads)


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
    wrong={
        "the stride is a block, not the grid, so blocks add elements of each other": partial_steps_by_block,
        "each thread begins one round late and misses its first element": partial_skips_first,
        "the total is replaced, not added to": partial_keeps_last,
        "a thread without an element writes nothing, and its sum should be 0": partial_only_busy,
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
def reverse_lost(x):
    i = cuda.grid(1)
    if i < x.size // 2:
        x[i] = x[x.size - 1 - i]
        x[x.size - 1 - i] = x[i]


@cuda.jit
def reverse_one_off(x):
    i = cuda.grid(1)
    if i < x.size // 2:
        mine = x[i]
        x[i] = x[x.size - i]
        x[x.size - i] = mine


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
    wrong={
        "all threads swap, so each pair is swapped by two threads": reverse_all_swap,
        "all threads copy without a variable in between, and read what others have overwritten": reverse_all_copy,
        "the first of the two stores destroys what the second was to move": reverse_lost,
        "the partner of i is taken to be size - i, which is one too far": reverse_one_off,
    },
)

EXERCISES = (SAXPY, EVERY_SECOND, PREDICT_EVERY_SECOND, SCALE_GRID_STRIDE, PARTIAL_SUMS, REVERSE_IN_PLACE)
