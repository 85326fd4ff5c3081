"""Eight codes of a word

Each word of `words` (R, W), uint32, holds eight 4-bit codes, as AWQ packs them: from the lowest bits up, those of
columns 0, 2, 4, 6, 1, 3, 5 and 7 of its eight. `out` (R, 8 W), float32, should hold every code as a number from 0 to
15, with the columns in order. The launch has at least one thread per word, in blocks of `(32, 4)`: threads along x are
neighbours in a row.
"""

HINTS = ("Shift the word right by another 4 bits for each code, and keep the lowest 4: `& 15`. To which column does "
         "code 4 go, the first in the upper half of the word?",
         "Code i goes to column 2 * i for i from 0 to 3, and to column 2 * i - 7 for i from 4 to 7.",
         "column = 2 * i if i < 4 else 2 * i - 7; out[row, 8 * col + column] = words[row, col] >> 4 * i & 15.")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def unpack_awq(words, out):
    ### BEGIN SOLUTION
    col, row = cuda.grid(2)
    if row < words.shape[0] and col < words.shape[1]:
        word = words[row, col]
        for i in range(8):
            column = 2 * i if i < 4 else 2 * i - 7
            out[row, 8 * col + column] = word >> 4 * i & 15
    ### END SOLUTION


# %% [check]
import numpy as np

from labkit.course.exercises import Edit, KernelExercise, Reach

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def _codes(words):
    out = np.empty((words.shape[0], 8 * words.shape[1]))
    for i, column in enumerate(ORDER):
        out[:, column::8] = words >> np.uint32(4 * i) & np.uint32(15)
    return out


def _words(rng, R, W):
    return (rng.integers(0, 2**32, (R, W), np.uint32),)


EXERCISE = KernelExercise(
    name="unpack_awq",
    reference=_codes,
    inputs=_words,
    shape=lambda R, W: (R, 8 * W),
    sizes=tuple({"R": R, "W": W} for R, W in ((1, 1), (3, 2), (4, 32), (5, 33), (9, 40))),
    random_size=lambda rng: {"R": int(rng.integers(2, 12)), "W": int(rng.integers(2, 70))},
    launch=lambda R, W: ((-(-W // 32), -(-R // 4)), (32, 4)),
    observe_sizes=({"R": 3, "W": 2},),
    domain=(Reach("all bits of the words are set", lambda rng, words: (np.full_like(words, 2**32 - 1),)),
            Reach("only the code in the highest bits is not 0", lambda rng, words: (np.full_like(words, 15 << 28),)),
            Reach("all codes are 0", lambda rng, words: (np.zeros_like(words),))),
    wrong={
        "the codes are stored in the order of their bits": Edit("2 * i if i < 4 else 2 * i - 7", "i"),
        "the codes of odd columns go one column too far": Edit("2 * i - 7", "2 * i - 6", "8 * col + column",
                                                                "8 * col + min(column, 7)"),
        "the first code is taken from the highest bits": Edit("word >> 4 * i & 15", "word >> 28 - 4 * i & 15"),
        "three bits of each code are kept": Edit("& 15", "& 7"),
        "codes are shifted by one bit each, not by four": Edit("word >> 4 * i", "word >> i"),
        "the upper bits are not masked: a code includes those above it": Edit(" & 15", ""),
        "the tail guard of the columns is missing": Edit(" and col < words.shape[1]", ""),
        "the tail guard of the rows is missing": Edit("row < words.shape[0] and ", ""),
        "rows and columns are swapped": Edit("col, row = cuda.grid(2)", "row, col = cuda.grid(2)"),
    },
)
