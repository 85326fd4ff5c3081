"""What the products on Hopper's tensor cores share: tiles and their order, copies of a stage by TMA, and epilogues. The
layout of a tile in shared memory is described in wgmma.py.
"""

from dataclasses import dataclass

from labkit import cuda, u32
from labkit.device import ptx
from labkit.kernels.elements import BFLOAT16, FLOAT16, Element

DEPTH = 64  # 16-bit elements of K in a stage: a row of 128 bytes, the widest swizzle
BOX = 64 * DEPTH  # 16-bit elements in a box of 64 rows, 8 KB
ROW_GROUP = 1024  # bytes from eight rows of a tile to the next eight
BAND = 8  # height in tiles of the bands in which blocks are rasterised


@dataclass(frozen=True)
class Tile:
    """The tile of a block: 128 rows x cols, in steps of 64 along K, `stages` of them in shared memory."""

    cols: int
    stages: int
    rows: int = 128

    @property
    def stage_elements(self) -> int:
        return (self.rows + self.cols) * DEPTH

    def count(self, rows: int, cols: int) -> int:
        """Return how many tiles cover rows x cols."""
        return -(-rows // self.rows) * -(-cols // self.cols)

    def out_boxes(self, halved: bool = False) -> int:
        """Return the boxes of 64 columns that a consumer stores; halved: out has one column for two of the tile."""
        return self.cols // (128 if halved else 64)

    def shared_bytes(self, halved: bool = False) -> int:
        """Return the bytes of the stages and of the output of both consumers."""
        return 2 * (self.stages * self.stage_elements + 2 * self.out_boxes(halved) * BOX)

    def __str__(self):
        return f"{self.rows}x{self.cols}x{DEPTH}, {self.stages} stages"


@cuda.jit(device=True)
def unchanged(x):
    return x


@cuda.jit(device=True)
def bias_index(col):
    """Return the index of a column's bias in shared memory: columns 2q, 2q + 1, 2q + 8 and 2q + 9 of 16, all of one
    thread, are neighbours, for a 128-bit load."""
    pair, odd = col // 2 % 4, col % 2
    return col // 16 * 16 + pair * 4 + col // 8 % 2 * 2 + odd


def make_tile_origin(tile: Tile):
    """A device function: return the first row and column of a tile, from its index."""
    ROWS, COLS = tile.rows, tile.cols

    @cuda.jit(device=True)
    def tile_origin(tile_id, rows, cols):
        """Indices go down BAND tiles, then to the next column: tiles computed at the same time form a rectangle, not a
        line, and share rows and columns in the L2."""
        tiles_m = (rows + (ROWS - 1)) // ROWS
        tiles_n = (cols + (COLS - 1)) // COLS
        band = tile_id // (BAND * tiles_n)
        band_row = band * BAND
        band_height = min(tiles_m - band_row, BAND)
        index_in_band = tile_id - band_row * tiles_n
        col = index_in_band // band_height
        row = band_row + index_in_band - col * band_height
        return row * ROWS, col * COLS

    return tile_origin


def make_load(tile: Tile, weights: bool, transposed: bool = False):
    """A device function: start the copies of one stage. One thread calls it, when the stage is free. transposed: a is
    (K, M), as b (K, N)."""
    A_SIZE, STAGE_SIZE, STAGE_BYTES = tile.rows * DEPTH, tile.stage_elements, 2 * tile.stage_elements
    A_BOXES, B_BOXES = tile.rows // 64, tile.cols // 64

    @cuda.jit(device=True)
    def load(tiles, loaded, stage, a_map, b_map, row, col, k):
        a_offset = stage * STAGE_SIZE
        b_offset = a_offset + A_SIZE
        ptx.mbarrier_expect_tx(loaded, stage, STAGE_BYTES)  # the bytes of whole boxes, also beyond an edge
        if transposed:
            for box in u32.range(A_BOXES):
                ptx.tma_load_2d(tiles, a_offset + box * BOX, a_map, row + box * 64, k, loaded, stage)
        else:
            ptx.tma_load_2d(tiles, a_offset, a_map, k, row, loaded, stage)
        if weights:
            ptx.tma_load_2d(tiles, b_offset, b_map, k, col, loaded, stage)
        else:
            for box in u32.range(B_BOXES):
                ptx.tma_load_2d(tiles, b_offset + box * BOX, b_map, col + box * 64, k, loaded, stage)

    return load


def make_epilogue(activation, residual=False, element: Element = FLOAT16):
    """A device function: write a thread's accumulators of 64 columns, as elements of 16 bits, to a box that TMA
    stores. residual: the box holds the residual, which is added."""
    pack, unpack = element.pack, element.unpack

    @cuda.jit(device=True, forceinline=True)
    def epilogue(acc, box, words, word_base, swizzle_row):
        """word_base: the index of the thread's first two accumulators in box 0. swizzle_row: its row modulo 8. Each box
        has its own call: the compiler unrolls each by itself, and has to, as accumulators that are indexed in a loop
        go to local memory."""
        for j in u32.range(8):
            i0 = word_base + box * BOX // 2 + (j ^ swizzle_row) * 4
            i8 = i0 + 8 * 32  # eight rows below
            n = 32 * box + 4 * j
            if residual:
                p, q = unpack(words[i0])
                r, t = unpack(words[i8])
                words[i0] = pack(activation(acc[n]) + p, activation(acc[n + 1]) + q)
                words[i8] = pack(activation(acc[n + 2]) + r, activation(acc[n + 3]) + t)
            else:
                words[i0] = pack(activation(acc[n]), activation(acc[n + 1]))
                words[i8] = pack(activation(acc[n + 2]), activation(acc[n + 3]))

    return epilogue


def make_pair_epilogue(combine, element: Element):
    """As make_epilogue, where columns form pairs, 16n + i with 16n + 8 + i: 128 columns of accumulators become 64 of
    the output, combine(first, second) of each pair, rounded to the element.

    A thread holds columns 8j + 2q and 8j + 2q + 1 of every j: both columns of a pair, for two neighbouring columns of
    the output, which share a word.
    """
    pack = element.pack

    @cuda.jit(device=True, forceinline=True)
    def pair_epilogue(acc, box, words, word_base, swizzle_row):
        for j in u32.range(8):
            i0 = word_base + box * BOX // 2 + (j ^ swizzle_row) * 4
            i8 = i0 + 8 * 32  # eight rows below
            n = 64 * box + 8 * j
            words[i0] = pack(combine(acc[n], acc[n + 4]), combine(acc[n + 1], acc[n + 5]))
            words[i8] = pack(combine(acc[n + 2], acc[n + 6]), combine(acc[n + 3], acc[n + 7]))

    return pair_epilogue


def make_store_partial(columns: int, accumulate: bool = False):
    """A device function: store a thread's accumulators of `columns` columns as float32, at its split of K, or add them
    to what is there."""
    COLUMNS = columns

    @cuda.jit(device=True)
    def store_pair(partials, i, x, y):
        if accumulate:
            x += partials[i]
            y += partials[i + 1]
        partials[i] = x
        partials[i + 1] = y

    @cuda.jit(device=True, forceinline=True)
    def store_partial(acc, partials, row_offset, row, col, rows, cols):
        """Store rows row and row + 8, columns col + 8 * j and the next. A quad of lanes stores 32 bytes of a row."""
        for j in u32.range(COLUMNS // 8):
            out_col = col + 8 * j
            if out_col < cols:
                i0 = (row_offset + row) * cols + out_col
                if row < rows:
                    store_pair(partials, i0, acc[4 * j], acc[4 * j + 1])
                if row + 8 < rows:
                    store_pair(partials, i0 + 8 * cols, acc[4 * j + 2], acc[4 * j + 3])

    return store_partial


def b_layout(weights: bool) -> tuple:
    """Return, for wgmma_descriptor, the bytes from 64 columns to the next 64 (unused if K-major), and the step of the
    descriptor for 16 along K."""
    return (16, 2) if weights else (2 * BOX, 16 * 128 // 16)


def wgmma_of(cols: int, weights: bool, element: Element = FLOAT16, transposed: bool = False):
    kind = {FLOAT16: "f16", BFLOAT16: "bf16"}[element]
    return getattr(ptx, f"wgmma_m64n{cols}k16_f32_{kind}" + "_amn" * transposed + ("" if weights else "_bmn"))
