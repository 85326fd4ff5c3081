"""A product in tiles

`out = a @ b`, written as in cuTile. The launcher is there: one block per 16 × 16 tile of `out`, and `steps` is the
number of tiles along a row of `a`. Write what a block does. You have

- `ct.bid(0)` and `ct.bid(1)`: which row and which column of tiles
- `ct.full((16, 16), 0, ct.float32)`: a tile of zeros
- `ct.load(array, (i, j), (16, 16), padding_mode=ct.PaddingMode.ZERO)`: tile i, j of an array
- `ct.mma(left, right, total)`: left @ right + total, as a new tile
- `ct.store(array, (i, j), tile)`

`ct` is labkit's model of cuTile here. With a GPU that runs cuTile, the same program is a kernel of `cuda.tile`.
"""

HINTS = ("On which tiles of a and of b does the tile (row, col) of out depend?",
         "Those along row `row` of tiles of a and down column `col` of tiles of b. Begin with a tile of zeros, go "
         "through them in steps, and keep what mma returns. At the edges a tile must be filled with something that "
         "adds nothing.",
         "for k in range(steps): total = ct.mma(ct.load(a, (row, k), ...), ct.load(b, (k, col), ...), total), both "
         "loads with padding_mode=ct.PaddingMode.ZERO.")
POINTS = 3
NEEDS = ("padded_softmax",)

from labkit.kernels.libraries import cutile_model as ct


# %%
def product_of_a_block(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    ### BEGIN SOLUTION
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        right = ct.load(b, (k, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, total)
    ct.store(out, (row, col), total)
    ### END SOLUTION


def tile_product(a, b, out):
    grid = (ct.cdiv(out.shape[0], 16), ct.cdiv(out.shape[1], 16), 1)
    ct.launch(None, grid, product_of_a_block, (a, b, out, ct.cdiv(a.shape[1], 16)))

# %% [check]
import numpy as np

from labkit.course.exercises import SUMMED, FunctionExercise, dot_products, of, on_the_device, uniform
from labkit.course.exercises.other_ways import wide


def _over_tiles(program):
    """The launcher that the learner has, around another program."""
    def launcher(a, b, out):
        steps = ct.cdiv(a.shape[1], 16)
        ct.launch(None, (ct.cdiv(out.shape[0], 16), ct.cdiv(out.shape[1], 16), 1), program, (a, b, out, steps))

    return launcher


def _product_without_padding(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        total = ct.mma(ct.load(a, (row, k), (16, 16)), ct.load(b, (k, col), (16, 16)), total)
    ct.store(out, (row, col), total)


def _product_last_step_only(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        right = ct.load(b, (k, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, ct.full((16, 16), 0, ct.float32))
    ct.store(out, (row, col), total)


def _product_first_tiles(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for _ in range(steps):
        left = ct.load(a, (row, 0), (16, 16), padding_mode=zero)
        right = ct.load(b, (0, col), (16, 16), padding_mode=zero)
        total = ct.mma(left, right, total)
    ct.store(out, (row, col), total)


def _product_counts_elements(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, 16 * k), (16, 16), padding_mode=zero)
        total = ct.mma(left, ct.load(b, (16 * k, col), (16, 16), padding_mode=zero), total)
    ct.store(out, (row, col), total)


def _product_tile_not_moved(a, b, out, steps):
    row, col = ct.bid(0), ct.bid(1)
    zero = ct.PaddingMode.ZERO
    total = ct.full((16, 16), 0, ct.float32)
    for k in range(steps):
        left = ct.load(a, (row, k), (16, 16), padding_mode=zero)
        total = ct.mma(left, ct.load(b, (k, 0), (16, 16), padding_mode=zero), total)
    ct.store(out, (row, col), total)


def _product_reference(a, b):
    a, b = wide(a, b)
    return a @ b


def product_on_the_host(a, b, out):
    out.copy_to_device(a.copy_to_host() @ b.copy_to_host())


EXERCISE = FunctionExercise(
    name="tile_product",
    reference=_product_reference,
    inputs=lambda rng, M, N, K: (uniform(rng, M, K), uniform(rng, K, N)),
    shape=lambda M, N, K: (M, N),
    sizes=tuple({"M": M, "N": N, "K": K} for M, N, K in ((1, 1, 1), (3, 5, 2), (16, 16, 16), (17, 18, 1), (1, 33, 17),
                                                         (33, 1, 31), (37, 23, 19), (20, 35, 50))),
    tolerance=dot_products(lambda a, b: np.abs(a) @ np.abs(b), length=lambda a, b: a.shape[1]),
    domain=of((0, 1), *SUMMED),
    demand=on_the_device,
    wrong={"beyond the edges of `a` and `b` the tiles hold whatever a load puts there: padding_mode is left out":
           _over_tiles(_product_without_padding),
           "the sum begins again at every step: only the last product is left": _over_tiles(_product_last_step_only),
           "every step multiplies the first tiles again": _over_tiles(_product_first_tiles),
           "the index counts elements, where a load counts tiles": _over_tiles(_product_counts_elements),
           "the column of tiles of `b` is always the first": _over_tiles(_product_tile_not_moved),
           "NumPy computes the whole product, on the host": product_on_the_host},
)

AFTER = """
Compare it with the tiled kernel of lesson 06. The compiler now handles the two barriers, the guards and the shared
memory.
"""
