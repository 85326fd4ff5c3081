"""From a blank page: the profiler's counter

Write the counter behind *sectors per request*. `sectors_touched(addresses, width)` gets the byte addresses that the
lanes of a warp load from, as a NumPy array of integers, and the `width` in bytes of each load, 4, 8 or 16. Return how
many different sectors of 32 bytes these loads touch together. A lane that does not take part has the address -1.

For example, `sectors_touched(np.array([0, 4, 8, 28, 32, -1]), 4)` is 2: the first four lanes share a sector, the
fifth needs the next one, and the last loads nothing. An address is a multiple of the width, so no load crosses the
end of a sector.
"""

HINTS = ("Which sector is the byte at address 100 in, if sectors have 32 bytes and the first begins at 0?",
         "Byte 100 is in sector 100 // 32 = 3. Two lanes with the same quotient share a sector. How do you count the "
         "different values of an array?",
         "np.unique(addresses[addresses >= 0] // 32).size")
POINTS = 1
NEEDS = ("predict_requests",)

import numpy as np

# %%
sectors_touched = None  # write the function here: def sectors_touched(addresses, width)
### BEGIN SOLUTION
def sectors_touched(addresses, width):
    taking_part = addresses[addresses >= 0]
    return np.unique(taking_part // 32).size  # an aligned load is inside one sector, whatever its width


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise


def _addresses(rng, lanes, width, step, idle, first):
    """Lanes `step` loads apart, in a random order, from load `first` on; `idle` of them do not take part."""
    addresses = width * (first + step * rng.permutation(lanes))
    addresses[rng.permutation(lanes)[:idle]] = -1
    return addresses.astype(np.int64), width


EXERCISE = FunctionExercise(
    name="sectors_touched",
    reference=lambda addresses, width: len({int(address) // 32 for address in addresses if address >= 0}),
    inputs=_addresses,
    sizes=tuple(dict(zip(("lanes", "width", "step", "idle", "first"), size, strict=True)) for size in (
        (32, 4, 1, 0, 0), (32, 4, 0, 0, 9), (32, 4, 3, 0, 5), (32, 4, 64, 0, 0), (32, 16, 1, 0, 1), (32, 8, 2, 5, 3),
        (32, 4, 1, 31, 2), (32, 4, 5, 8, 7), (32, 4, 1, 32, 0))),
    domain="Its inputs are addresses, and `sizes` has lanes that share a sector, lanes that do not, and idle lanes.",
    wrong={
        "idle lanes are counted, as if -1 were an address": Edit("addresses[addresses >= 0]", "addresses"),
        "the lane at address 0 is left out, as if it were idle": Edit("addresses >= 0", "addresses > 0"),
        "every lane is counted, though lanes share sectors": Edit("np.unique(taking_part // 32).size",
                                                                  "taking_part.size"),
        "addresses are counted, but a sector holds several": Edit("taking_part // 32", "taking_part"),
        "lines of 128 bytes are counted; a sector has 32": Edit("// 32", "// 128"),
        "the bytes are divided by 32, as if the lanes loaded from neighbouring addresses":
            Edit("np.unique(taking_part // 32).size", "-(-taking_part.size * width // 32)"),
        "the sectors from the first to the last are counted, but some between them may not be touched":
            Edit("np.unique(taking_part // 32).size",
                 "0 if not taking_part.size else int(taking_part.max() // 32 - taking_part.min() // 32 + 1)"),
    },
)

AFTER = """
`observe(...)` counts sectors in exactly this way, with the addresses of every load of every warp.

Next: the exercises of **13 · Graphs and streams**.
"""
