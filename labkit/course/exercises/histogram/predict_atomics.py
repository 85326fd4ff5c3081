"""Predict: how many atomics?

On paper:

- `lost_at_most`: a kernel with `out[x[i]] += 1` and no atomic runs with two blocks of 64 threads. All 128 elements are
  equal, and the lanes of a warp read together and write together. What is the largest value that the bin can end with?
- `global_atomics`: 40 blocks count 1,000,000 random bytes in 256 private bins each. How many atomics on global memory
  do they make at most?
- `shared_atomics`: and how many on shared memory?
- `joined`: now the lanes of a warp join equal values in software before they add, and all 1,000,000 bytes are equal.
  How many atomics on shared memory are left?
"""

HINTS = ("What is the most that one warp can add to the bin, if all of its lanes write the same sum?",
         "A block adds each of its bins to global memory once, however many elements it has counted.",
         "Four warps; 40 times 256; one per element; one per 32 elements.")
POINTS = 1

# %%
lost_at_most = None
global_atomics = None
shared_atomics = None
joined = None
### BEGIN SOLUTION
lost_at_most = 4  # 1 for each of the four warps
global_atomics = 40 * 256  # one for each bin of each block
shared_atomics = 1_000_000  # one for each element
joined = 1_000_000 // 32  # one for each warp's 32 elements
### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import PredictionExercise


def _counted() -> dict:
    """The shares of the atomics are counted by observe, for fewer elements; the rest is arithmetic."""
    from labkit import observe
    from labkit.kernels import histogram

    n, bins = 2048, 256
    equal, every = np.zeros(n, np.uint8), (np.arange(n) % bins).astype(np.uint8)
    private = observe(histogram.histogram_shared_kernel[2, 256, 0, 4 * bins], every, np.zeros(bins, np.int32)).counts
    matched = observe(histogram.histogram_matched_kernel[2, 256, 0, 4 * bins], equal, np.zeros(bins, np.int32),
                      np.uint32(1)).counts
    return {"lost_at_most": 2 * 64 // 32, "global_atomics": 40 * private["global_atomics"] // 2,
            "shared_atomics": 1_000_000 * private["shared_atomics"] // n,
            "joined": 1_000_000 * matched["shared_atomics"] // n}


EXERCISE = PredictionExercise(
    name="predict_atomics",
    truth=_counted,
    how={"lost_at_most": "Lanes that read the same count all write that count plus 1: a warp adds at most 1.",
         "global_atomics": "Each block adds each of its bins once, however many elements it has counted.",
         "shared_atomics": "Each element is counted in the private bins by one atomic.",
         "joined": "The lowest of 32 lanes with equal values adds 32 in one atomic."},
    wrong={"every thread is counted": {"lost_at_most": 128},
           "one atomic on global memory per element": {"global_atomics": 1_000_000},
           "only the bins of one block": {"global_atomics": 256},
           "a block adds its bins to shared memory once": {"shared_atomics": 40 * 256},
           "all lanes add, although they were joined": {"joined": 1_000_000}},
)
