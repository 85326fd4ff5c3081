"""The exercises of lesson 00: which element is mine, how many blocks, who is idle, and the trip to the device and back.

Sizes name the threads of a block beside the elements: a kernel must be right under any block.
"""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, on_the_device, whole_number
from labkit.course.exercises.domains import at
from labkit.kernels.positions import positions


def _launch(n, threads):
    return -(-n // threads), threads


SIZES = (
    {"n": 1, "threads": 32},
    {"n": 33, "threads": 32},
    {"n": 64, "threads": 32},
    {"n": 65, "threads": 64},
    {"n": 100, "threads": 256},  # one block that is mostly idle
    {"n": 1000, "threads": 96},
    {"n": 4099, "threads": 128},
)
BLOCKS = (  # of any size: nothing in these exercises says that a block is whole warps
    at("a block is no multiple of 32 threads", n=150, threads=48),
    at("a block is smaller than a warp", n=50, threads=7),
)


# --- count_down ----------------------------------------------------------------------------------------------------


COUNT_DOWN = KernelExercise(
    name="count_down",
    reference=lambda n: np.arange(n - 1, -1, -1),
    inputs=lambda rng, n, threads: (n,),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=SIZES,
    launch=_launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "it counts down to 1, and the last element is number 0 from the end":
            Edit("out[i] = out.size - 1 - i", "out[i] = out.size - i"),
        "it counts from the beginning": Edit("out[i] = out.size - 1 - i", "out[i] = i"),
        "it counts down within each block, not over all elements":
            Edit("out[i] = out.size - 1 - i", "out[i] = cuda.blockDim.x - 1 - cuda.threadIdx.x"),
        "it counts down from the number of threads, and some of them have no element":
            Edit("out[i] = out.size - 1 - i", "out[i] = cuda.gridDim.x * cuda.blockDim.x - 1 - i"),
    },
)


# --- blocks_needed -------------------------------------------------------------------------------------------------

BLOCKS_NEEDED = FunctionExercise(
    name="blocks_needed",
    reference=lambda n, each, threads: -(-n // (each * threads)),
    inputs=lambda rng, n, each, threads: (n, each, threads),
    sizes=(
        {"n": 1, "each": 4, "threads": 32},
        {"n": 128, "each": 4, "threads": 32},
        {"n": 129, "each": 4, "threads": 32},
        {"n": 1000, "each": 3, "threads": 64},
        {"n": 1536, "each": 3, "threads": 64},
        {"n": 1537, "each": 3, "threads": 64},
        {"n": 10_000_003, "each": 8, "threads": 256},
    ),
    domain="Its inputs are three lengths, and `sizes` has the awkward ones.",
    demand=whole_number,
    wrong={
        "the division rounds down, and the rest of the elements gets no block":
            lambda n, each, threads: n // (each * threads),
        "it adds a block even where the division comes out even": lambda n, each, threads: n // (each * threads) + 1,
        "each thread is given one element, not several": lambda n, each, threads: -(-n // threads),
        "the number of threads is rounded down before the blocks are counted":
            lambda n, each, threads: -(-(n // each) // threads),
        "it is rounded up as a float, and stays one": lambda n, each, threads: np.ceil(n / (each * threads)),
    },
)


# --- predict_last_block --------------------------------------------------------------------------------------------


def who_is_last(n: int = 1000, threads: int = 96) -> dict[str, int]:
    """Not worked out: read from what the threads of a launch wrote down."""
    block, thread = (cuda.to_device(np.full(n, -1, np.int32)) for _ in range(2))
    positions(block, thread, threads)
    last_block, last_thread = int(block.copy_to_host()[-1]), int(thread.copy_to_host()[-1])
    blocks = last_block + 1
    return {"blocks": blocks, "idle": blocks * threads - n, "last_block": last_block, "last_thread": last_thread}


PREDICT_LAST_BLOCK = PredictionExercise(
    name="predict_last_block",
    truth=who_is_last,
    how={
        "blocks": "how many blocks of 96 does it take until 1,000 elements are covered? Whole blocks only.",
        "idle": "multiply blocks by threads in a block; what is left over when each element has its thread?",
        "last_block": "element 999 is the last one. Skip whole blocks of 96 until it lies in the block at hand; the "
                      "first block has the number 0.",
        "last_thread": "take from 999 the elements of all blocks before. The first thread of a block has the number 0.",
    },
    wrong={
        "the division rounds down, and 40 elements are left without a thread": {"blocks": 10},
        "these are the busy threads of the last block, not the idle ones": {"idle": 40},
        "blocks are counted from 1 here, and CUDA counts them from 0": {"last_block": 11},
        "threads are counted from 1 here, and CUDA counts them from 0": {"last_thread": 40},
    },
)


# --- lane_numbers --------------------------------------------------------------------------------------------------


LANE_NUMBERS = KernelExercise(
    name="lane_numbers",
    reference=lambda n, threads: np.arange(n) % threads % 32,
    inputs=lambda rng, n, threads: (n, threads),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=SIZES,
    launch=_launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "the guard looks at the thread's number within its block, and that says nothing about the element":
            Edit("if i < out.size:", "if cuda.threadIdx.x < out.size:"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
        "the guard says `<=`, which lets one thread too many through": Edit("if i < out.size:", "if i <= out.size:"),
        "the guard stops one element too early": Edit("if i < out.size:", "if i < out.size - 1:"),
        "lanes are counted from the first element, and each block begins anew at lane 0":
            Edit("cuda.threadIdx.x % 32", "i % 32"),
    },
)


# --- stripes -------------------------------------------------------------------------------------------------------


STRIPES = KernelExercise(
    name="stripes",
    reference=lambda n, threads: np.arange(n) // threads % 2,
    inputs=lambda rng, n, threads: (n, threads),
    shape=lambda n, threads: (n,),
    dtype=np.int32,
    sizes=(*SIZES, {"n": 333, "threads": 7}),
    launch=_launch,
    arguments=lambda inputs, out, size: (out,),
    domain=BLOCKS,
    wrong={
        "the stripes follow the threads of a block, not the blocks":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = cuda.threadIdx.x % 2"),
        "the stripes are the other way round: block 0 writes 0":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = 1 - cuda.blockIdx.x % 2"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
        "the stripes are 32 elements wide, whatever the size of a block":
            Edit("out[i] = cuda.blockIdx.x % 2", "out[i] = i // 32 % 2"),
    },
)


# --- row_starts: a host function -----------------------------------------------------------------------------------


@cuda.jit
def row_starts_kernel(tokens, out):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.size:
        out[i] = tokens[i] * 8


def starts_rounded_down(tokens):
    on_device, out = cuda.to_device(np.array(tokens, np.int32)), cuda.device_array(len(tokens), np.int32)
    row_starts_kernel[len(tokens) // 64, 64](on_device, out)
    return out.copy_to_host()


def starts_in_one_block(tokens):
    on_device = cuda.to_device(np.array(tokens, np.int32))
    out = cuda.to_device(np.zeros(len(tokens), np.int32))
    row_starts_kernel[1, 64](on_device, out)
    return out.copy_to_host()


def starts_returns_input(tokens):
    on_device, out = cuda.to_device(np.array(tokens, np.int32)), cuda.device_array(len(tokens), np.int32)
    row_starts_kernel[-(-len(tokens) // 64), 64](on_device, out)
    return on_device.copy_to_host()


def starts_in_int64(tokens):
    on_device, out = cuda.to_device(np.array(tokens)), cuda.device_array(len(tokens), np.int32)
    row_starts_kernel[-(-len(tokens) // 64), 64](on_device, out)
    return out.copy_to_host()


def starts_never_launched(tokens):
    return cuda.to_device(np.zeros(len(tokens), np.int32)).copy_to_host()


@asks("The tokens travel to the device as int32, and one launch in blocks of 64 threads computes what comes "
      "back; what is returned is a NumPy array of whole numbers.")
def _in_blocks_of_64(run):
    """A launch in blocks of 64 computes what comes back to the host."""
    if missing := on_the_device(run):
        return missing
    for one in run.launches:
        if one.block != (64, 1, 1):
            return (f"The launch has a grid of {one.grid[0]} and blocks of {one.block[0]} threads; asked for are "
                    "blocks of 64. The grid is the first number in the brackets, the block the second.")
        if one.host_arrays:
            return (f"The launch is given {one.host_arrays} array(s) of the host, which travel to the device and back "
                    "with each launch. Asked for is an array that was sent there before, and room for the result.")
        if one.types[:1] != ("int32",):
            return (f"The tokens on the device are {one.types[0] if one.types else 'no array'}, and an int32 array is "
                    "asked for: NumPy makes int64 of whole numbers, unless it is told the dtype.")
    if hasattr(run.returned, "copy_to_host"):
        return "What is returned still lies on the device, and asked for is a NumPy array: `copy_to_host` makes one."
    if not isinstance(run.returned, np.ndarray):
        return f"What is returned is a {type(run.returned).__name__}, and asked for is a NumPy array."
    if run.returned.dtype.kind not in "iu":
        return (f"What is returned holds {run.returned.dtype}, and places are whole numbers: make room on the device "
                "with a dtype, int32 as for the tokens.")
    return None


ROW_STARTS = FunctionExercise(
    name="row_starts",
    reference=lambda tokens: np.array(tokens) * 8,
    inputs=lambda rng, n: (rng.integers(1, 128_000, n).tolist(),),
    sizes=({"n": 1}, {"n": 5}, {"n": 64}, {"n": 65}, {"n": 1000}),
    domain=(Reach("all tokens are 0", lambda rng, tokens: ([0] * len(tokens),)),
            Reach("tokens are as large as int32 allows", lambda rng, tokens: ([2**28 - 1] * len(tokens),))),
    demand=_in_blocks_of_64,
    wrong={
        "the number of blocks is rounded down": starts_rounded_down,
        "one block is launched, however many tokens there are": starts_in_one_block,
        "what comes back is the input, not the output": starts_returns_input,
        "the tokens are sent as int64, which NumPy makes of whole numbers": starts_in_int64,
        "the output comes back without a launch": starts_never_launched,
        "grid and block are exchanged": Edit("[-(-len(tokens) // 64), 64]", "[64, -(-len(tokens) // 64)]"),
        "the result stays on the device": Edit("return out.copy_to_host()", "return out"),
        "the room for the result has no dtype, and holds float64": Edit("len(tokens), dtype=np.int32", "len(tokens)"),
        "NumPy computes what the kernel should": Edit("return out.copy_to_host()",
                                                      "return np.array(tokens, dtype=np.int32) * 8"),
    },
)

EXERCISES = (COUNT_DOWN, BLOCKS_NEEDED, PREDICT_LAST_BLOCK, LANE_NUMBERS, STRIPES, ROW_STARTS)
