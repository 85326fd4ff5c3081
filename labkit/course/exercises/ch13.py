"""The exercises of lesson 13: private bins, a segmented scan, a barrier in a tree, counted work, a compaction."""

import numpy as np
from numba import int32

from labkit import cuda
from labkit.course.exercises import Edit, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_argument, one_reads_for_all, whole_grid
from labkit.course.exercises.domains import ODD_INTEGERS, ODD_SUMS, of

# --- Private bins for another key ------------------------------------------------------------------------------------

BINS = 33


@asks("A block makes at most one atomic on global memory for each bin.", whole_grid)
def _private_bins(report) -> str | None:
    made, blocks = report.counts["global_atomics"], int(np.prod(report.grid))
    if made > BINS * blocks:
        return (f"It makes {made:,} atomics on global memory. {blocks} blocks with {BINS} bins need {BINS * blocks} at "
                f"most: count in shared memory, and add each bin once.")
    return None


@cuda.jit
def count_bits_in_global_memory(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.add(out, cuda.popc(x[i]), 1)


@cuda.jit
def count_bits_one_round(x, out):
    counts = cuda.shared.array(33, int32)
    thread = cuda.threadIdx.x
    if thread < 33:
        counts[thread] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(counts, cuda.popc(x[i]), 1)
    cuda.syncthreads()
    if thread < 33:
        cuda.atomic.add(out, thread, counts[thread])


def _numbers(value):
    return lambda rng, x: (np.full(x.shape, value, np.uint32),)


def _any_bits(rng, n):
    """Numbers with few bits and with many: a mask of as many bits as a random number says, and of random places."""
    kept = rng.integers(0, 2**32, n, dtype=np.uint32)
    return (kept >> rng.integers(0, 32, n).astype(np.uint32),)


COUNT_BITS = KernelExercise(
    name="count_bits",
    reference=lambda x: np.bincount([int(number).bit_count() for number in x], minlength=BINS).astype(np.int32),
    inputs=_any_bits,
    shape=lambda n: (BINS,),
    dtype=np.int32,
    start=lambda x: np.zeros(BINS, np.int32),
    sizes=tuple({"n": n} for n in (1, 5, 63, 64, 129, 300)),
    observe_sizes=({"n": 5}, {"n": 300}),
    launch=lambda n: (2, 64),
    demand=_private_bins,
    domain=(Reach("all numbers are 0, and no bit is set", _numbers(0)),
            Reach("all numbers have all 32 bits set", _numbers(2**32 - 1)),
            Reach("all numbers have the same bits", _numbers(0x80000001), {"n": 300})),
    wrong={
        "the bins are not cleared: shared memory holds whatever was there":
            Edit("if thread < 33:\n    counts[thread] = 0\ncuda.syncthreads()", "cuda.syncthreads()"),
        "a thread counts before another one has cleared the bin":
            Edit("cuda.syncthreads()\n"
                 "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):",
                 "for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):"),
        "the bins are added before all threads have counted":
            Edit("cuda.syncthreads()\nif thread < 33:", "if thread < 33:"),
        "threads of a block add to a bin without an atomic": Edit("cuda.atomic.add(counts, cuda.popc(x[i]), 1)",
                                                                  "counts[cuda.popc(x[i])] += 1"),
        "blocks add to global memory without an atomic": Edit("cuda.atomic.add(out, thread, counts[thread])",
                                                              "out[thread] += counts[thread]"),
        "one atomic on global memory for each number": count_bits_in_global_memory,
        "each thread takes one number, and numbers from the 129th on are left out": count_bits_one_round,
        "the number itself is the bin": Edit("cuda.popc(x[i])", "x[i] % 33"),
    },
)


# --- A sum that begins anew ------------------------------------------------------------------------------------------

SCANNED = 128  # elements of a block, a thread each


def _in_steps(loads_a_step: int):
    """Seven steps with so many loads from shared memory, and each element of global memory loaded twice at most."""
    enough = loads_a_step * 7 * SCANNED

    @asks("Each number is loaded from global memory twice at most, and sums are made of sums, in seven steps, with no "
          f"more than {loads_a_step} loads from shared memory in a step of a thread.")
    def demand(report) -> str | None:
        arrays = len(report.arrays) - 1
        most = 2 * arrays * elements_of_argument(report, 0)
        loads, shared = report.counts["global_loads"], report.counts["shared_loads"]
        if loads > most:
            return (f"It loads {loads:,} numbers from global memory, and {most:,} are enough: each thread loads its "
                    f"own. What it needs of the others is in shared memory, as sums.")
        if shared > enough:
            return (f"It loads {shared:,} numbers from shared memory; seven steps take {enough:,} at most. Add sums of "
                    f"sums, with twice the distance in each step.")
        return one_reads_for_all(report, loads_a_step * 7)

    return demand


@cuda.jit
def sums_since_each_alone(x, heads, out):
    values, headed = cuda.shared.array(128, int32), cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    values[i] = x[i] if i < x.size else 0
    headed[i] = heads[i] if i < x.size else 0
    cuda.syncthreads()
    if i < x.size:
        total = 0
        for j in range(i + 1):
            if headed[j] == 1:
                total = 0
            total += values[j]
        out[i] = total


@cuda.jit
def sums_since_from_global_memory(x, heads, out):
    i = cuda.threadIdx.x
    if i < x.size:
        total, j = 0, i
        while j >= 0:
            total += x[j]
            if heads[j] == 1:
                break
            j -= 1
        out[i] = total


def _since_reference(x, heads):
    sums, running = np.zeros_like(x), 0
    for i in range(x.size):
        running = int(x[i]) + (0 if heads[i] else running)
        sums[i] = running
    return sums


def _since_inputs(rng, n):
    return rng.integers(-99, 100, n).astype(np.int32), (rng.random(n) < 0.15).astype(np.int32)


def _heads(flags):
    return lambda rng, x, heads: (x, flags(np.arange(heads.size)).astype(np.int32))


SUMS_SINCE = KernelExercise(
    name="sums_since",
    reference=_since_reference,
    inputs=_since_inputs,
    shape=lambda n: (n,),
    dtype=np.int32,
    sizes=tuple({"n": n} for n in (1, 2, 31, 33, 100, 128)),
    random_size=lambda rng: {"n": int(rng.integers(40, 128))},
    observe_sizes=({"n": 33}, {"n": 100}),
    launch=lambda n: (1, SCANNED),
    demand=_in_steps(8),
    domain=(Reach("there is no head", _heads(lambda i: i < 0), {"n": 128}),
            Reach("every element is a head", _heads(lambda i: i >= 0)),
            Reach("only the first element is a head", _heads(lambda i: i == 0), {"n": 128}),
            Reach("one element in the middle is a head", _heads(lambda i: i == 64), {"n": 128}),
            Reach("two elements next to each other are heads", _heads(lambda i: (i == 20) | (i == 21)), {"n": 100}),
            *of(0, ODD_SUMS, at={"n": 128})),
    wrong={
        "a sum is changed while others read it: a barrier is missing after the reading":
            Edit("cuda.syncthreads()\nsums[i] += before", "sums[i] += before"),
        "the next step reads sums that are not yet written: a barrier is missing after the writing":
            Edit("headed[i] += head_before\ncuda.syncthreads()", "headed[i] += head_before"),
        "heads are ignored: a plain running sum": Edit("if i >= distance and headed[i] == 0:", "if i >= distance:"),
        "a head stops its own sum alone: that a head has come into the sum is not kept":
            Edit("headed[i] += head_before\n", ""),
        "the sum stops before it takes in the head":
            Edit("if i >= distance and headed[i] == 0:",
                 "if i >= distance and headed[i] == 0 and headed[i - distance] == 0:"),
        "every thread adds up all elements before its own, from shared memory": sums_since_each_alone,
        "every thread goes back to its head, in global memory": sums_since_from_global_memory,
    },
)


# --- Find the bug: the way down --------------------------------------------------------------------------------------

TREE_SCAN = KernelExercise(
    name="tree_scan",
    reference=lambda x: (np.cumsum(x, axis=1) - x).astype(np.int32),
    inputs=lambda rng, R: (rng.integers(-99, 100, (R, SCANNED)).astype(np.int32),),
    shape=lambda R: (R, SCANNED),
    dtype=np.int32,
    sizes=tuple({"R": R} for R in (1, 2, 5)),
    observe_sizes=({"R": 1},),
    launch=lambda R: (R, 64),
    domain=(Reach("all numbers are 1", lambda rng, x: (np.ones_like(x),)),
            Reach("all numbers are 0 but one", lambda rng, x: ((np.arange(SCANNED) == 77).astype(np.int32) + 0 * x,)),
            Reach("sums are beyond a million", lambda rng, x: (1_000_000 + x,))),
    wrong={
        "no barrier between two steps on the way down":
            Edit("distance //= 2\ncuda.syncthreads()", "distance //= 2"),
        "the barrier stands in a branch that not all threads take":
            Edit("cuda.syncthreads()\n"
                 "right = 2 * distance * (thread + 1) - 1\n"
                 "if right < 128:\n"
                 "    before = shared[right]",
                 "right = 2 * distance * (thread + 1) - 1\n"
                 "if right < 128:\n"
                 "    cuda.syncthreads()\n"
                 "    before = shared[right]"),
        "the total is not replaced by 0 before the way down": Edit("if thread == 0:\n    shared[127] = 0", ""),
        "the left half gets the sum, and the right half what stood before":
            Edit("shared[right] += shared[right - distance]\nshared[right - distance] = before",
                 "shared[right - distance] += before"),
    },
)


# --- Predict ---------------------------------------------------------------------------------------------------------


def _counted() -> dict:
    """What can be counted is counted from the kernels of the lesson, run by observe."""
    from numba import float32

    from labkit import observe
    from labkit.kernels.scan_blocks import make_scan_hillis_steele

    n, false = 512, np.bool_(False)
    x, out, total = np.ones(n, np.float32), np.zeros(n, np.float32), np.zeros(1, np.float32)
    counts = observe(make_scan_hillis_steele(float32)[1, n, 0, 4 * n], x, out, total, false).counts
    return {"hillis_additions": counts["shared_loads"], "blelloch_additions": 2 * (n - 1),
            "global_atomics": 40 * 256, "look_back_mb": 8, "reduce_first_mb": 12, "rounds": -(-70 // 32)}


PREDICT_SCAN = PredictionExercise(
    name="predict_scan",
    truth=_counted,
    how={"hillis_additions": "Nine steps; in the step with distance d all threads but the first d add.",
         "blelloch_additions": "A tree over n elements has n - 1 inner nodes, and each adds once on the way up and "
                               "once on the way down.",
         "global_atomics": "Each block adds each of its bins once, however many elements it has counted.",
         "look_back_mb": "Each number is read once and written once, 4 bytes each.",
         "reduce_first_mb": "The first kernel reads, the last one reads again and writes.",
         "rounds": "The first look covers the 32 tiles just before its own, the next the 32 before those."},
    wrong={"all threads add in every step": {"hillis_additions": 9 * 512},
           "only the way up is counted": {"blelloch_additions": 511},
           "one atomic for each element": {"global_atomics": 1_000_000},
           "a scan by levels, which writes twice": {"reduce_first_mb": 16},
           "70 tiles are two times 32, and the rest is left out": {"rounds": 2}},
)


# --- Compaction ------------------------------------------------------------------------------------------------------


@cuda.jit
def pack_in_any_order(x, out):
    count = cuda.shared.array(1, int32)
    i = cuda.threadIdx.x
    if i == 0:
        count[0] = 0
    cuda.syncthreads()
    j = cuda.blockDim.x - 1 - i  # as likely as any other order of the threads
    if j < x.size and x[j] > 0:
        out[cuda.atomic.add(count, 0, 1)] = x[j]


@cuda.jit
def pack_counts_alone(x, out):
    flags = cuda.shared.array(128, int32)
    i = cuda.threadIdx.x
    flags[i] = 1 if i < x.size and x[i] > 0 else 0
    cuda.syncthreads()
    if flags[i] == 1:
        place = 0
        for j in range(i):
            place += flags[j]
        out[place] = x[i]


@cuda.jit
def pack_by_one_thread(x, out):
    if cuda.threadIdx.x == 0:
        place = 0
        for i in range(x.size):
            if x[i] > 0:
                out[place] = x[i]
                place += 1


def _packed(x):
    kept = x[x > 0]
    return np.concatenate([kept, np.full(x.size - kept.size, -1, np.int32)])


def _kept(where):
    return lambda rng, x: (np.where(where(np.arange(x.size)), 1 + np.arange(x.size), -5).astype(np.int32),)


PACK_POSITIVE = KernelExercise(
    name="pack_positive",
    reference=_packed,
    inputs=lambda rng, n: (rng.integers(-99, 100, n).astype(np.int32),),
    shape=lambda n: (n,),
    dtype=np.int32,
    start=lambda x: np.full(x.size, -1, np.int32),
    sizes=tuple({"n": n} for n in (1, 2, 31, 33, 100, 128)),
    random_size=lambda rng: {"n": int(rng.integers(40, 128))},
    observe_sizes=({"n": 33}, {"n": 128}),
    launch=lambda n: (1, SCANNED),
    demand=_in_steps(4),
    domain=(Reach("all numbers are positive", _kept(lambda i: i >= 0), {"n": 128}),
            Reach("no number is positive", _kept(lambda i: i < 0)),
            Reach("some numbers are 0, which is not positive",
                  lambda rng, x: (rng.integers(0, 2, x.size).astype(np.int32),)),
            Reach("only the last number is positive", _kept(lambda i: i == i.size - 1), {"n": 128}),
            Reach("every second number is positive", _kept(lambda i: i % 2 == 1), {"n": 100}),
            *of(0, ODD_INTEGERS, at={"n": 100})),
    wrong={
        "places come from an atomic, and the order is lost": pack_in_any_order,
        "each thread counts all flags before its own": pack_counts_alone,
        "one thread does everything": pack_by_one_thread,
        "the inclusive sum is taken for the place: everything lands one too far":
            Edit("out[places[i] - 1] = value", "out[places[i]] = value"),
        "0 is kept": Edit("places[i] = 1 if value > 0 else 0", "places[i] = 1 if value >= 0 else 0",
                          "if value > 0:", "if value >= 0:"),
        "a barrier is missing after the reading":
            Edit("cuda.syncthreads()\nplaces[i] += before", "places[i] += before"),
        "a step too few: flags of the first 64 never reach the last 64": Edit("while distance < 128:",
                                                                        "while distance < 64:"),
    },
)

EXERCISES = (COUNT_BITS, SUMS_SINCE, TREE_SCAN, PREDICT_SCAN, PACK_POSITIVE)
