"""What the float32 products with large tiles share: loads and stores of four numbers, copies of tiles to shared memory,
and products of what a thread holds in registers.

A block computes WIDE x WIDE elements of out. Shared memory holds pairs of tiles, the tile of a transposed.
"""

from numba import float32

from labkit import cuda, u32
from labkit.device import ptx

WIDE = 128  # a block computes WIDE x WIDE elements
A_STRIDE = WIDE + 4  # the tile of a is transposed; 4 more, and what a warp writes into it lies in 32 different banks


@cuda.jit(device=True)
def load_four(array, row, col):
    """array[row, col : col + 4] in one load, or zeros beyond an edge. Rows are a multiple of 4 long, and so is col."""
    rows, cols = u32.shape(array)
    x, y, z, w = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    if row < rows and col < cols:
        x, y, z, w = ptx.load_nc4(array, row * cols + col)
    return x, y, z, w


@cuda.jit(device=True)
def load_four_scalar(array, row, col):
    """The same in four loads, for rows of any length."""
    inside, cols = row < array.shape[0], u32.shape(array)[1]
    x = array[row, col] if inside and col < cols else float32(0.0)
    y = array[row, col + 1] if inside and col + 1 < cols else float32(0.0)
    z = array[row, col + 2] if inside and col + 2 < cols else float32(0.0)
    w = array[row, col + 3] if inside and col + 3 < cols else float32(0.0)
    return x, y, z, w


@cuda.jit(device=True)
def store_four(out, row, col, x, y, z, w):
    """out[row, col : col + 4] = x, y, z, w in one store, unless it is beyond an edge."""
    rows, cols = u32.shape(out)
    if row < rows and col < cols:
        ptx.store_global4(out, row * cols + col, x, y, z, w)


@cuda.jit(device=True)
def store_four_scalar(out, row, col, x, y, z, w):
    inside, cols = row < out.shape[0], u32.shape(out)[1]
    if inside and col < cols:
        out[row, col] = x
    if inside and col + 1 < cols:
        out[row, col + 1] = y
    if inside and col + 2 < cols:
        out[row, col + 2] = z
    if inside and col + 3 < cols:
        out[row, col + 3] = w


@cuda.jit(device=True)
def read_eight(shared, at, further, part):
    """Four numbers from shared[at] on, and four from `further` behind: a thread tile is four quarters of 4 x 4
    elements."""
    part[0], part[1], part[2], part[3] = ptx.load_shared4(shared, at)
    part[4], part[5], part[6], part[7] = ptx.load_shared4(shared, at + further)


@cuda.jit(device=True)
def add_products(acc, a_part, b_part):
    """acc[i, j] += a_part[i] * b_part[j]: 64 multiply-adds on 16 numbers."""
    for i in range(8):
        for j in range(8):
            acc[i * 8 + j] += a_part[i] * b_part[j]


STEPS = 16  # columns of a, and rows of b, in one tile
STAGES = 3  # pairs of tiles: one is read, two are in flight
IN_FLIGHT = STAGES - 2  # groups of copies that may be unfinished when the next pair is wanted
STRIDE = A_STRIDE + WIDE  # a line of shared memory is one step: a column of the tile of a, then a row of the tile of b
PAIR = STEPS * STRIDE
RING = STAGES * PAIR


@cuda.jit(device=True)
def copy_pair(shared, fill, a, a_row, a_col, b, b_row, b_col):
    """Starts this thread's share of a pair of tiles: of a 8 numbers, 16 rows apart; of b twice 4, 8 rows apart."""
    depth, cols = u32.shape(a)[1], u32.shape(b)[1]
    a_to = fill + a_col % STEPS * STRIDE + a_row % WIDE
    b_to = fill + b_row % STEPS * STRIDE + A_STRIDE + b_col % WIDE
    a_from, b_from = a_row * depth + a_col, b_row * cols + b_col
    for i in u32.range(8):
        ptx.cp_async_4(shared, a_to + 16 * i, a, a_from + 16 * i * depth, 4)
    for i in u32.range(2):
        ptx.cp_async_16(shared, b_to + 8 * i * STRIDE, b, b_from + 8 * i * cols, 16)


@cuda.jit(device=True)
def copy_pair_guarded(shared, fill, a, a_row, a_col, b, b_row, b_col):
    """As copy_pair, but number by number, and zeros beyond the edges: there 0 bytes are copied."""
    rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
    a_to = fill + a_col % STEPS * STRIDE + a_row % WIDE
    b_to = fill + b_row % STEPS * STRIDE + A_STRIDE + b_col % WIDE
    for i in u32.range(8):
        row = a_row + 16 * i
        inside = row < rows and a_col < depth
        ptx.cp_async_4(shared, a_to + 16 * i,
                       a, row * depth + a_col if inside else 0, 4 if inside else 0)
    for i in u32.range(8):
        row, col = b_row + i // 4 * 8, b_col + i % 4
        inside = row < depth and col < cols
        ptx.cp_async_4(shared, b_to + (i // 4 * 8 * STRIDE + i % 4),
                       b, row * cols + col if inside else 0, 4 if inside else 0)


@cuda.jit(device=True)
def add_products_serpentine(acc, a_part, b_part):
    """As add_products, in an order in which each product shares a factor with the one before: a register that is read
    twice in a row is fetched once."""
    for j in range(8):
        for n in range(8):
            i = n if j % 2 == 0 else 7 - n
            acc[i * 8 + j] += a_part[i] * b_part[j]


@cuda.jit(device=True)
def two_steps(shared, a_at, b_at, step, acc, a_even, b_even, a_odd, b_odd):
    """The products of `step`, an even one, and of the next. Each step's numbers are read one step ahead."""
    ahead = (step + 1) * STRIDE
    read_eight(shared, a_at + ahead, 32, a_odd)
    read_eight(shared, b_at + ahead, 16, b_odd)
    add_products_serpentine(acc, a_even, b_even)
    ahead = (step + 2) * STRIDE
    read_eight(shared, a_at + ahead, 32, a_even)
    read_eight(shared, b_at + ahead, 16, b_even)
    add_products_serpentine(acc, a_odd, b_odd)
