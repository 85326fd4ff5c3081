"""How many blocks fit?

This is the arithmetic behind every occupancy in the course, for compute capability 9.0. A block has `threads` threads,
each with `registers` registers, and `shared` bytes of shared memory. An SM holds as many blocks as its scarcest
resource allows:

- 64 warps. A block consists of whole warps, so 33 threads count as two warps.
- 32 blocks.
- 65,536 registers. A warp needs 32 times `registers`, rounded up to a multiple of 256. Each scheduler has a quarter of
  the registers, and a warp cannot use those of another scheduler, so the number of warps that fit is a multiple of
  four.
- 233,472 bytes of shared memory. A block uses `shared` bytes and another 1,024, rounded up to a multiple of 128.

For 256 threads with 33 registers and no shared memory, a warp needs 1,280 registers; 51 fit, so 48 count, which is 6
blocks. If not even one block fits, the answer is 0.
"""

HINTS = ("There are four limits, and each of them alone allows some number of blocks. Which of the four decides?",
         "Warps: 64 // warps. Blocks: 32. Registers: first the warps that fit, a multiple of four, then the blocks. "
         "Shared memory: 233,472 divided by what a block uses.",
         "per_warp = -(-32 * registers // 256) * 256, and 65_536 // per_warp // 4 * 4 warps fit. A block needs "
         "-(-(shared + 1024) // 128) * 128 bytes. The smallest of the four is the answer.")
POINTS = 3

# %%
def resident_blocks(threads, registers, shared):
    warps = -(-threads // 32)
    ### BEGIN SOLUTION
    per_warp = -(-32 * registers // 256) * 256
    by_registers = 65_536 // per_warp // 4 * 4 // warps
    by_shared = 233_472 // (-(-(shared + 1024) // 128) * 128)
    return min(64 // warps, 32, by_registers, by_shared)
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, whole_number
from labkit.device import occupancy


def _resident(threads, registers, shared):
    return occupancy.blocks(occupancy.H200, threads, registers, shared)


def _small_sum(threads, registers, shared):
    warps = -(-threads // 32)
    return min(64 // warps, 32, 65_536 // (threads * registers), 233_472 // (shared + 1024))


EXERCISE = FunctionExercise(
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
        "registers are counted per thread, but they are allocated to whole warps, 256 at a time": _small_sum,
        "the registers of all four schedulers are counted as one pool":
            Edit("65_536 // per_warp // 4 * 4 // warps", "65_536 // per_warp // warps"),
        "the limit of 32 blocks is left out": Edit("min(64 // warps, 32, by_registers, by_shared)",
                                                   "min(64 // warps, by_registers, by_shared)"),
        "the extra kilobyte of every block is left out": Edit("shared + 1024", "shared"),
        "shared memory is not rounded up to 128 bytes": Edit("-(-(shared + 1024) // 128) * 128", "shared + 1024"),
        "threads are not rounded up to whole warps": Edit("-(-threads // 32)", "max(1, threads // 32)"),
        "the most that any resource allows is returned, but the scarcest one decides":
            Edit("min(64 // warps, 32, by_registers, by_shared)", "max(64 // warps, 32, by_registers, by_shared)"),
        "registers are left out": Edit("min(64 // warps, 32, by_registers, by_shared)",
                                       "min(64 // warps, 32, by_shared)"),
    },
)

EQUIVALENT = {
    "number: 256 -> 255 (2)":
        "65,536 registers over any multiple of 255 up to 32 of them allow the same multiple of four as over that of "
        "256.",
}

AFTER = """
Occupancy is the number of resident warps divided by the 64 that an SM can hold: `resident_blocks(...) * warps / 64`.
"""
