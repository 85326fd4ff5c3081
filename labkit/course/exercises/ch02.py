"""The exercises of lesson 02: which warps split, how many waves, how many loads, how many blocks, and a warp that stays
together."""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise
from labkit.course.exercises.demands import asks, whole_number
from labkit.course.exercises.domains import SUMMED, of
from labkit.device import occupancy
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to

# --- predict_branches ------------------------------------------------------------------------------------------------


def split_warps(condition, n: int = 250, threads: int = 64, guarded: bool = True) -> int:
    """How many warps have lanes on both sides of a condition on i; guarded: only lanes with i < n come to it."""
    split = 0
    for block in range(-(-n // threads)):
        for first in range(0, threads, 32):
            i = block * threads + np.arange(first, min(first + 32, threads))
            i = i[i < n] if guarded else i
            split += len(set(condition(i).tolist())) == 2
    return split


PREDICT_BRANCHES = PredictionExercise(
    name="predict_branches",
    truth=lambda: {
        "guard": split_warps(lambda i: i < 250, guarded=False),
        "by_lane": split_warps(lambda i: i % 2 == 0),
        "by_warp": split_warps(lambda i: i // 32 % 2 == 0),
        "first_48": split_warps(lambda i: i < 48),
        "blocks_of_48": split_warps(lambda i: i // 32 % 2 == 0, threads=48),
    },
    how={
        "guard": "eight warps hold i = 0 to 31, 32 to 63 and so on. In which of them do some lanes have i < 250, and "
                 "others not?",
        "by_lane": "a warp holds 32 numbers in a row, even and odd ones.",
        "by_warp": "write down i // 32 for the 32 lanes of one warp.",
        "first_48": "48 lies in the middle of one warp, and in no other.",
        "blocks_of_48": "a warp never has lanes of two blocks: a block of 48 has a warp of 32 and one of 16. Write "
                        "down the first and the last i of each.",
    },
    wrong={
        "the last warp was counted as split by the guard, and one with no element at all is not split":
            {"guard": 2},
        "only the last warp's lanes were looked at, and every warp has even and odd elements": {"by_lane": 1},
        "i // 32 is the same for all lanes of a warp, and a warp does not split over what its lanes agree on":
            {"by_warp": 8},
        "both warps that begin before 48 were counted, and in the first all lanes agree": {"first_48": 2},
        "blocks of 48 were counted as if warps went on from block to block": {"blocks_of_48": 0},
        "every block of 48 was taken to have a warp that splits": {"blocks_of_48": 6},
    },
)

# --- predict_waves ---------------------------------------------------------------------------------------------------


def what_waves_take(sms: int = 132, resident: int = 4, blocks: int = 1000, us: int = 10) -> dict[str, int]:
    wave = sms * resident
    return {"per_wave": wave, "waves": -(-blocks // wave), "last": blocks - blocks // wave * wave,
            "microseconds": us * -(-blocks // wave), "one_more": us * -(-(2 * wave + 1) // wave)}


PREDICT_WAVES = PredictionExercise(
    name="predict_waves",
    truth=what_waves_take,
    how={
        "per_wave": "132 SMs, and each holds 4 blocks at a time.",
        "waves": "the blocks over those of a wave, rounded up.",
        "last": "what the full waves leave.",
        "microseconds": "all blocks of a wave begin together and take equally long: a wave takes as long as one block.",
        "one_more": "1,056 blocks are two full waves. Where does block number 1,057 run, and when can it begin?",
    },
    wrong={
        "an SM was taken to hold one block at a time": {"per_wave": 132, "waves": 8, "last": 76, "microseconds": 80,
                                                        "one_more": 90},
        "the waves were rounded down, and the rest of the blocks runs, too": {"waves": 1, "microseconds": 10,
                                                                              "one_more": 20},
        "a wave that is not full was taken to be shorter, and it takes as long as one block": {"microseconds": 19},
        "a single block more was taken to cost nothing": {"one_more": 20},
        "these are the places of the last wave that stay empty": {"last": 56},
    },
)

# --- loads_a_thread --------------------------------------------------------------------------------------------------


LOADS_A_THREAD = FunctionExercise(
    name="loads_a_thread",
    reference=lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (sms * threads * each)),
    inputs=lambda rng, gbs, ns, sms, threads, each: (gbs, ns, sms, threads, each),
    sizes=tuple(dict(zip(("gbs", "ns", "sms", "threads", "each"), size, strict=True)) for size in (
        (100, 100, 10, 1000, 1),
        (100, 100, 10, 999, 1),
        (100, 100, 10, 1000, 4),
        (4800, 600, 132, 2048, 4),
        (4800, 600, 132, 64, 16),
        (320, 450, 40, 256, 8),
        (1000, 512, 80, 100, 64),
    )),
    domain="Its inputs are five counts, and `sizes` has divisions that come out even and others that do not.",
    demand=whole_number,
    wrong={
        "the division rounds down, and too few bytes are on their way":
            lambda gbs, ns, sms, threads, each: gbs * ns // (sms * threads * each),
        "it adds a load even where the division comes out even":
            lambda gbs, ns, sms, threads, each: gbs * ns // (sms * threads * each) + 1,
        "the bytes of a load are left out": lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (sms * threads)),
        "the threads of one SM are taken for those of the GPU":
            lambda gbs, ns, sms, threads, each: -(-(gbs * ns) // (threads * each)),
        "bandwidth is divided by latency, and the two have to be multiplied":
            lambda gbs, ns, sms, threads, each: -(-gbs // (ns * sms * threads * each)),
        "it is rounded up as a float, and stays one":
            lambda gbs, ns, sms, threads, each: np.ceil(gbs * ns / (sms * threads * each)),
    },
)

# --- resident_blocks -------------------------------------------------------------------------------------------------


def _resident(threads, registers, shared):
    return occupancy.blocks(occupancy.H200, threads, registers, shared)


def _small_sum(threads, registers, shared):
    warps = -(-threads // 32)
    return min(64 // warps, 32, 65_536 // (threads * registers), 233_472 // (shared + 1024))


RESIDENT_BLOCKS = FunctionExercise(
    name="resident_blocks",
    reference=_resident,
    inputs=lambda rng, threads, registers, shared: (threads, registers, shared),
    sizes=tuple({"threads": t, "registers": r, "shared": s} for t, r, s in (
        (256, 32, 0), (32, 16, 0), (256, 33, 0), (128, 40, 0), (1024, 64, 0), (1024, 72, 0), (100, 24, 0),
        (33, 32, 0), (128, 128, 0), (64, 160, 0), (256, 24, 57_344), (128, 24, 57_345), (64, 24, 7_168),
        (32, 24, 6_272), (96, 48, 1), (64, 40, 232_448), (32, 16, 22_323),  # the last by 77 bytes of rounding
    )),
    random_size=lambda rng: {"threads": int(rng.integers(1, 1025)), "registers": int(rng.integers(16, 256)),
                             "shared": int(rng.integers(0, 65_536))},
    domain="Its inputs are three counts, and `sizes` has for each resource launches in which it is the scarce one.",
    demand=whole_number,
    wrong={
        "registers are counted for each thread, and they are given to whole warps, 256 at a time": _small_sum,
        "the registers of all four schedulers are counted as one heap":
            Edit("65_536 // per_warp // 4 * 4 // warps", "65_536 // per_warp // warps"),
        "the limit of 32 blocks is left out": Edit("min(64 // warps, 32, by_registers, by_shared)",
                                                   "min(64 // warps, by_registers, by_shared)"),
        "the kilobyte that every block takes for itself is left out": Edit("shared + 1024", "shared"),
        "shared memory is not rounded up to 128 bytes": Edit("-(-(shared + 1024) // 128) * 128", "shared + 1024"),
        "threads are not rounded up to whole warps": Edit("-(-threads // 32)", "max(1, threads // 32)"),
        "the most that some resource allows, and the scarcest one decides":
            Edit("min(64 // warps, 32, by_registers, by_shared)", "max(64 // warps, 32, by_registers, by_shared)"),
        "registers are left out": Edit("min(64 // warps, 32, by_registers, by_shared)",
                                       "min(64 // warps, 32, by_shared)"),
    },
)

# --- two_polynomials -------------------------------------------------------------------------------------------------

BLOCK = 64


def _values(x, even, odd):
    rows = x.astype(np.float64)[:, None] ** np.arange(max(len(even), len(odd)))
    at = np.arange(len(x)) % 2
    return np.where(at == 0, rows[:, : len(even)] @ even, rows[:, : len(odd)] @ odd)


@asks("Only the guard may split a warp, in the last block; each thread loads its `x` once, and the coefficients "
      "of one polynomial once.")
def _together(report):
    """No warp may split over which polynomial, and no thread may compute both. report: of observe."""
    (n,), (even,), (odd,) = (shape for _, shape, _ in list(report.arrays.values())[:3])
    allowed, split = 4, report.counts["divergent_branches"]  # a guard, or a loop's bound, in the last block
    if split > allowed:
        return (f"Warps split {split} times. Asked for is a warp whose lanes all take the same polynomial; only the "
                f"guard may split one, in the last block.")
    enough, loads = n + (n + 1) // 2 * even + n // 2 * odd, report.counts["global_loads"]
    if loads > enough:
        of_even, of_odd = ({thread for (array, _), cells in report.touched.items() if array == name
                            for thread, _ in cells} for name in list(report.arrays)[1:3])
        why = "threads load the coefficients of both polynomials, and need those of one" if of_even & of_odd else (
            "each thread's x once, into a variable, and each coefficient of its polynomial once")
        return f"{loads:,} numbers are loaded, and {enough:,} are enough: {why}."
    return None


@cuda.jit
def two_polynomials_by_lane(x, even, odd, out):
    i = cuda.grid(1)
    if i < x.size:
        value = np.float32(0.0)
        if i % 2 == 0:
            for k in range(even.size):
                value = value * x[i] + even[even.size - 1 - k]
        else:
            for k in range(odd.size):
                value = value * x[i] + odd[odd.size - 1 - k]
        out[i] = value


@cuda.jit
def two_polynomials_both(x, even, odd, out):
    i = cuda.grid(1)
    if i < x.size:
        mine, first, second = x[i], np.float32(0.0), np.float32(0.0)
        for k in range(even.size):
            first = first * mine + even[even.size - 1 - k]
        for k in range(odd.size):
            second = second * mine + odd[odd.size - 1 - k]
        which = np.float32(i % 2)
        out[i] = first * (np.float32(1.0) - which) + second * which


@cuda.jit
def two_polynomials_without_moving(x, even, odd, out):
    i = cuda.grid(1)
    if i < x.size:
        mine, value = x[i], np.float32(0.0)
        if cuda.threadIdx.x < 32:
            for k in range(even.size):
                value = value * mine + even[even.size - 1 - k]
        else:
            for k in range(odd.size):
                value = value * mine + odd[odd.size - 1 - k]
        out[i] = value


SIZES = tuple({"n": n, "even": even, "odd": odd} for n, even, odd in (
    (1, 1, 1), (2, 3, 1), (63, 5, 4), (64, 3, 6), (65, 4, 4), (320, 2, 7), (1000, 6, 3)))

TWO_POLYNOMIALS = KernelExercise(
    name="two_polynomials",
    reference=_values,
    inputs=lambda rng, n, even, odd: (uniform(rng, n), uniform(rng, even), uniform(rng, odd)),
    shape=lambda n, even, odd: (n,),
    sizes=SIZES,
    observe_sizes=SIZES[-3:],
    random_size=lambda rng: {"n": int(rng.integers(1, 500)), "even": int(rng.integers(1, 8)),
                             "odd": int(rng.integers(1, 8))},
    launch=lambda n, even, odd: (-(-n // BLOCK), BLOCK),
    tolerance=relative_to(lambda x, even, odd: _values(np.abs(x), np.abs(even), np.abs(odd)), roundings=14),
    domain=of((0, 1, 2), *SUMMED),
    demand=_together,
    wrong={
        "even and odd elements are neighbours in every warp, so every warp splits": two_polynomials_by_lane,
        "every thread computes both polynomials and keeps one": two_polynomials_both,
        "the first warp takes one polynomial for all its elements, and they are still neighbours":
            two_polynomials_without_moving,
        "the second warp of a block begins at the block's first element, too":
            Edit("2 * lane + warp", "2 * lane"),
        "the elements of a block begin where those of the block before begin":
            Edit("cuda.blockIdx.x * 64 + ", ""),
        "the coefficients are taken with the highest power first":
            Edit("even[even.size - 1 - k]", "even[k]"),
        "the constant of the odd polynomial is left out":
            Edit("range(odd.size)", "range(odd.size - 1)"),
        "there is no guard": Edit("if i < x.size:", "if True:"),
    },
)

EXERCISES = (PREDICT_BRANCHES, PREDICT_WAVES, LOADS_A_THREAD, RESIDENT_BLOCKS, TWO_POLYNOMIALS)
