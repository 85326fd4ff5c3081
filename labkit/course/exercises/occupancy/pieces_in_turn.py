r"""From a blank page: pieces in turn

A vector `x` is cut into pieces of 64 elements, and each piece has its own factor, which multiplies all of its elements:

$$\text{out}_i = \text{factors}_p \, x_i, \qquad p = \lfloor i / 64 \rfloor$$

For an `x` of 130 ones and `factors` = (2, 5, 3), `out` is 64 twos, 64 fives and 2 threes. The last piece may be short,
as it is here.

One block per piece would be easy, but then the blocks run in waves, and the last wave may be nearly empty. Use the
second remedy of the lesson: the launch has three blocks of 64 threads, however many pieces there are, and every block
works through one piece after another. Block 0 computes pieces 0, 3, 6, ..., block 1 pieces 1, 4, 7, ... The parameters
are `x`, `factors` and `out`, all float32.
"""

HINTS = ("Which pieces does block 2 of three compute? `cuda.gridDim.x` is the number of blocks in the launch.",
         "Start with piece = cuda.blockIdx.x and go on to the next piece by adding cuda.gridDim.x, as long as there is "
         "one. Within a piece each thread has one element.",
         "while piece < factors.size: i = piece * 64 + cuda.threadIdx.x, then the guard and the store, then piece += "
         "cuda.gridDim.x outside the guard.")
POINTS = 2
NEEDS = ("predict_waves",)

from labkit import cuda

# %%
pieces_in_turn = None  # write the kernel here: @cuda.jit, then def pieces_in_turn(x, factors, out)
### BEGIN SOLUTION
@cuda.jit
def pieces_in_turn(x, factors, out):
    piece = cuda.blockIdx.x
    while piece < factors.size:
        i = piece * 64 + cuda.threadIdx.x
        if i < out.size:
            out[i] = factors[piece] * x[i]
        piece += cuda.gridDim.x


### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, Edit, KernelExercise, of, relative_to, uniform, whole_grid

PIECE = 64


def _scaled(x, factors):
    return np.float64(x) * np.repeat(factors, PIECE)[:len(x)]


SIZES = tuple({"n": n} for n in (1, 63, 64, 65, 128, 192, 193, 448, 1000, 8300))

EXERCISE = KernelExercise(
    name="pieces_in_turn",
    reference=_scaled,
    inputs=lambda rng, n: (uniform(rng, n), uniform(rng, -(-n // PIECE))),
    shape=lambda n: (n,),
    sizes=SIZES,
    random_size=lambda rng: {"n": int(rng.integers(1, 3000))},
    launch=lambda n: (3, PIECE),
    tolerance=relative_to(lambda x, factors: np.abs(_scaled(x, factors)), roundings=1),
    domain=of((0, 1), *SUMMED),
    demand=whole_grid,
    benign_races=False,
    wrong={
        "every block computes its first piece and stops":
            Edit("while piece < factors.size:", "if piece < factors.size:"),
        "a block goes on to the piece right after its own, so pieces are computed more than once":
            Edit("piece += cuda.gridDim.x", "piece += 1"),
        "a block's stride is its number of threads, not the number of blocks": Edit("piece += cuda.gridDim.x",
                                                                                    "piece += cuda.blockDim.x"),
        "all blocks begin with piece 0": Edit("piece = cuda.blockIdx.x", "piece = 0"),
        "the last piece is left out": Edit("while piece < factors.size:", "while piece < factors.size - 1:"),
        "there is no guard for the short piece at the end": Edit("if i < out.size:", "if True:"),
        "the factor is indexed by the block, not by the piece": Edit("factors[piece]", "factors[cuda.blockIdx.x]"),
    },
)

EQUIVALENT = {
    "guard: piece < factors.size -> piece < factors.size + 1":
        "A piece behind the last one has no elements, and the guard stops its threads.",
    "type: piece += cuda.gridDim.x -> piece += int32(cuda.gridDim.x)": "It is an integer already.",
}

AFTER = """
On a GPU one would launch as many blocks as fit on all SMs: `occupancy.blocks(...)` times the number of SMs. Such a
kernel has hardly any tail as long as the pieces far outnumber the blocks, and work that each block does only once, such
as computing an address or loading a table, serves many pieces.
"""
