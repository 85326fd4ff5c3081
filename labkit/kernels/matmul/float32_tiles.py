"""What the float32 products with large tiles share: loads and stores of four elements, copies of tiles to shared
memory, and products of register fragments.

A block computes BLOCK_TILE x BLOCK_TILE elements of out. Shared memory holds pairs of tiles, the tile of a transposed.
"""

from numba import float32

from labkit import cuda, u32
from labkit.device import ptx

BLOCK_TILE = 128  # a block computes BLOCK_TILE x BLOCK_TILE elements
A_STRIDE = BLOCK_TILE + 4  # the tile of a is transposed; 4 of padding, so that a warp writes to 32 different banks


@cuda.jit(device=True)
def load_four(array, row, col):
    """Return array[row, col : col + 4] in one load, zeros beyond an edge. col and cols are multiples of 4."""
    rows, cols = u32.shape(array)
    x, y, z, w = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
    if row < rows and col < cols:
        x, y, z, w = ptx.load_nc4(array, row * cols + col)
    return x, y, z, w


@cuda.jit(device=True)
def load_four_scalar(array, row, col):
    """Do the same in four loads, for rows of any length."""
    inside, cols = row < array.shape[0], u32.shape(array)[1]
    x = array[row, col] if inside and col < cols else float32(0.0)
    y = array[row, col + 1] if inside and col + 1 < cols else float32(0.0)
    z = array[row, col + 2] if inside and col + 2 < cols else float32(0.0)
    w = array[row, col + 3] if inside and col + 3 < cols else float32(0.0)
    return x, y, z, w


@cuda.jit(device=True)
def store_four(out, row, col, x, y, z, w):
    """Store x, y, z, w to out[row, col : col + 4] at once, unless that is beyond an edge."""
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
def read_eight(shared, offset, stride, frag):
    """Load four elements from shared[offset] and four from shared[offset + stride]: a thread tile is four quarters of
    4 x 4 elements."""
    frag[0], frag[1], frag[2], frag[3] = ptx.load_shared4(shared, offset)
    frag[4], frag[5], frag[6], frag[7] = ptx.load_shared4(shared, offset + stride)


@cuda.jit(device=True)
def add_products(acc, a_frag, b_frag):
    """acc[i, j] += a_frag[i] * b_frag[j]: 64 multiply-adds on 16 elements."""
    for i in range(8):
        for j in range(8):
            acc[i * 8 + j] += a_frag[i] * b_frag[j]


BLOCK_K = 16  # columns of a, and rows of b, in one tile
STAGES = 3  # pairs of tiles: one is read, two are in flight
IN_FLIGHT = STAGES - 2  # groups of copies that may be unfinished when the next pair is needed
STRIDE = A_STRIDE + BLOCK_TILE  # one step of K in shared memory: a column of the tile of a, then a row of the tile of b
PAIR = BLOCK_K * STRIDE
RING = STAGES * PAIR


@cuda.jit(device=True)
def copy_pair(shared, fill, a, a_row, a_col, b, b_row, b_col):
    """Start this thread's copies of a pair of tiles: 8 elements of a, 16 rows apart; twice 4 of b, 8 rows apart."""
    depth, cols = u32.shape(a)[1], u32.shape(b)[1]
    a_dst = fill + a_col % BLOCK_K * STRIDE + a_row % BLOCK_TILE
    b_dst = fill + b_row % BLOCK_K * STRIDE + A_STRIDE + b_col % BLOCK_TILE
    a_src, b_src = a_row * depth + a_col, b_row * cols + b_col
    for i in u32.range(8):
        ptx.cp_async_4(shared, a_dst + 16 * i, a, a_src + 16 * i * depth, 4)
    for i in u32.range(2):
        ptx.cp_async_16(shared, b_dst + 8 * i * STRIDE, b, b_src + 8 * i * cols, 16)


@cuda.jit(device=True)
def copy_pair_guarded(shared, fill, a, a_row, a_col, b, b_row, b_col):
    """As copy_pair, but element by element, with zeros beyond the edges: there 0 bytes are copied."""
    rows, depth, cols = u32.shape(a)[0], u32.shape(a)[1], u32.shape(b)[1]
    a_dst = fill + a_col % BLOCK_K * STRIDE + a_row % BLOCK_TILE
    b_dst = fill + b_row % BLOCK_K * STRIDE + A_STRIDE + b_col % BLOCK_TILE
    for i in u32.range(8):
        row = a_row + 16 * i
        inside = row < rows and a_col < depth
        ptx.cp_async_4(shared, a_dst + 16 * i, a, row * depth + a_col if inside else 0, 4 if inside else 0)
    for i in u32.range(8):
        row, col = b_row + i // 4 * 8, b_col + i % 4
        inside = row < depth and col < cols
        ptx.cp_async_4(shared, b_dst + (i // 4 * 8 * STRIDE + i % 4),
                       b, row * cols + col if inside else 0, 4 if inside else 0)


def make_copy_transposed_pair(vec4: bool):
    """As copy_pair_guarded, for a (K, M): both tiles are rows of k. vec4: 16 bytes at a time, where M and N are
    multiples of 4 and both matrices begin at multiples of 16 bytes."""
    @cuda.jit(device=True)
    def copy_four(shared, dst, matrix, row, col):
        rows, cols = u32.shape(matrix)
        if vec4:
            inside = row < rows and col < cols
            ptx.cp_async_16(shared, dst, matrix, row * cols + col if inside else 0, 16 if inside else 0)
        else:
            for i in u32.range(4):
                inside = row < rows and col + i < cols
                ptx.cp_async_4(shared, dst + i, matrix, row * cols + col + i if inside else 0, 4 if inside else 0)

    @cuda.jit(device=True)
    def copy_transposed_pair(shared, fill, a, a_row, a_col, b, b_row, b_col):
        col = u32.threadIdx.x % 32 * 4  # in either tile
        a_row = a_row - u32.threadIdx.x // BLOCK_K + col  # a_row is for a that is not transposed
        dst = fill + b_row % BLOCK_K * STRIDE + col
        for i in u32.range(0, 16, 8):
            copy_four(shared, dst + i * STRIDE, a, b_row + i, a_row)
            copy_four(shared, dst + i * STRIDE + A_STRIDE, b, b_row + i, b_col)

    return copy_transposed_pair


@cuda.jit(device=True)
def add_products_serpentine(acc, a_frag, b_frag):
    """As add_products, in an order in which each product shares a factor with the previous one: a register that is read
    twice in a row is fetched once."""
    for j in range(8):
        for n in range(8):
            i = n if j % 2 == 0 else 7 - n
            acc[i * 8 + j] += a_frag[i] * b_frag[j]


def quarters_apart(warp_tiles: bool) -> tuple[int, int]:
    """Return the rows and the columns from a quarter of a thread tile to the next."""
    return (32, 16) if warp_tiles else (64, 64)


def make_two_steps(A_GAP: int, B_GAP: int, add):
    @cuda.jit(device=True)
    def two_steps(shared, a_offset, b_offset, step, acc, even, odd):
        """Add the products of `step`, an even one, and of the next. Fragments, pairs of a's and b's, are read one step
        ahead."""
        (a_even, b_even), (a_odd, b_odd) = even, odd
        next_offset = (step + 1) * STRIDE
        read_eight(shared, a_offset + next_offset, A_GAP, a_odd)
        read_eight(shared, b_offset + next_offset, B_GAP, b_odd)
        add(acc, a_even, b_even)
        next_offset = (step + 2) * STRIDE
        read_eight(shared, a_offset + next_offset, A_GAP, a_even)
        read_eight(shared, b_offset + next_offset, B_GAP, b_even)
        add(acc, a_odd, b_odd)

    return two_steps


def make_pipeline(copy, *, warp_tiles: bool = True, reads_ahead: bool = True, serpentine: bool = True):
    """A device function: acc += a[its rows, start:end] @ b[start:end, its columns] for the tile of a block at
    (row0, col0), from a ring of RING elements of dynamic shared memory. Return the first row and column of the thread
    tile in that of the block. `quarters_apart` says how far apart its quarters are.

    warp_tiles: the 32 thread tiles of a warp form a tile of 64 x 32; without, two rows of 16 thread tiles.
    reads_ahead: the fragments of a step of K are read during the products of the one before.
    serpentine: the order of the products of a step.
    """
    A_GAP, B_GAP = quarters_apart(warp_tiles)
    add = add_products_serpentine if serpentine else add_products
    two_steps = make_two_steps(A_GAP, B_GAP, add)

    @cuda.jit(device=True)
    def multiply(acc, a, b, row0, col0, start, end):
        shared = cuda.shared.array(0, float32)  # more than 48 KB, so the launch requests them
        even = a_even, b_even = cuda.local.array(8, float32), cuda.local.array(8, float32)
        odd = a_odd, b_odd = cuda.local.array(8, float32), cuda.local.array(8, float32)
        thread = u32.threadIdx.x
        lane, warp = thread % 32, thread // 32
        if warp_tiles:  # 2 x 4 warps, each with a tile of 64 x 32, made of 8 x 4 lanes
            row = warp // 4 * 64 + lane // 4 * 4
            col = warp % 4 * 32 + lane % 4 * 4
        else:
            row, col = thread // 16 * 4, thread % 16 * 4
        # What this thread copies.
        a_row, a_col = row0 + thread // BLOCK_K, start + thread % BLOCK_K
        b_row, b_col = start + thread // 32, col0 + thread % 32 * 4
        for i in u32.range(64):
            acc[i] = float32(0.0)

        next_k, fill = start, 0  # where the next copies begin, in K and in the ring
        for _ in u32.range(STAGES - 1):
            if next_k < end:
                copy(shared, fill, a, a_row, a_col, b, b_row, b_col)
            ptx.cp_async_commit()  # a group may be empty: what counts is that there is one for each pair
            next_k, fill = next_k + BLOCK_K, fill + PAIR
            a_col, b_row = a_col + BLOCK_K, b_row + BLOCK_K
        ptx.cp_async_wait(IN_FLIGHT)
        cuda.syncthreads()  # the first pair is complete
        a_offset, b_offset = row, A_STRIDE + col
        if reads_ahead:
            read_eight(shared, a_offset, A_GAP, a_even)
            read_eight(shared, b_offset, B_GAP, b_even)

        for _ in u32.range(start, end, BLOCK_K):
            if next_k < end:
                copy(shared, fill, a, a_row, a_col, b, b_row, b_col)
            ptx.cp_async_commit()
            next_k, fill = next_k + BLOCK_K, fill + PAIR
            a_col, b_row = a_col + BLOCK_K, b_row + BLOCK_K
            if fill == RING:
                fill = 0

            if reads_ahead:
                # Written out, as the compiler would not unroll a loop of this size: with one it took a fifth longer.
                two_steps(shared, a_offset, b_offset, 0, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 2, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 4, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 6, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 8, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 10, acc, even, odd)
                two_steps(shared, a_offset, b_offset, 12, acc, even, odd)
                read_eight(shared, a_offset + 15 * STRIDE, A_GAP, a_odd)
                read_eight(shared, b_offset + 15 * STRIDE, B_GAP, b_odd)
                add(acc, a_even, b_even)
            else:
                pair_end = a_offset + PAIR
                a_step, b_step = a_offset, b_offset
                while a_step < pair_end:
                    read_eight(shared, a_step, A_GAP, a_even)
                    read_eight(shared, b_step, B_GAP, b_even)
                    add(acc, a_even, b_even)
                    a_step, b_step = a_step + STRIDE, b_step + STRIDE

            ptx.cp_async_wait(IN_FLIGHT)
            cuda.syncthreads()  # the next pair is complete; and this one has been read by all, and may be filled again
            a_offset, b_offset = a_offset + PAIR, b_offset + PAIR
            if a_offset >= RING:
                a_offset, b_offset = row, A_STRIDE + col
            if reads_ahead:
                read_eight(shared, a_offset, A_GAP, a_even)
                read_eight(shared, b_offset, B_GAP, b_even)
                add(acc, a_odd, b_odd)
        return row, col

    return multiply
