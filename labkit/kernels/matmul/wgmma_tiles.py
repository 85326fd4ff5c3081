"""What the products on Hopper's tensor cores share: tiles, the order in which blocks take them, copies of a stage by
TMA, and how a thread's part of a result reaches memory. How a tile lies in shared memory is described in wgmma.py.
"""

from dataclasses import dataclass

from labkit import cuda, u32
from labkit.device import ptx

DEPTH = 64  # 16-bit elements of K in a stage: a row of 128 bytes, the widest swizzle
BOX = 64 * DEPTH  # 16-bit elements in a box of 64 rows, 8 KB
ROW_GROUP = 1024  # bytes from eight rows of a tile to the next eight
BAND = 8  # tiles that neighbouring blocks go down before they go to the next column


@dataclass(frozen=True)
class Tile:
    """What a block computes at a time: 128 rows x cols, in steps of 64 along K, `stages` of them in shared memory."""

    cols: int
    stages: int
    rows: int = 128

    @property
    def stage_elements(self) -> int:
        return (self.rows + self.cols) * DEPTH

    def count(self, rows: int, cols: int) -> int:
        """Tiles that cover rows x cols."""
        return -(-rows // self.rows) * -(-cols // self.cols)

    def out_boxes(self, halved: bool = False) -> int:
        """Boxes of 64 columns that a consumer stores; halved: the output has one column for two of the tile."""
        return self.cols // (128 if halved else 64)

    def shared_bytes(self, halved: bool = False) -> int:
        """The stages, and the finished output of both consumers."""
        return 2 * (self.stages * self.stage_elements + 2 * self.out_boxes(halved) * BOX)

    def __str__(self):
        return f"{self.rows}x{self.cols}x{DEPTH}, {self.stages} stages"


@cuda.jit(device=True)
def unchanged(x):
    return x


@cuda.jit(device=True)
def place_of_bias(col):
    """Where the bias of a tile's column stands: columns 2q, 2q + 1, 2q + 8 and 2q + 9 of 16, which one thread needs,
    next to each other, for a 128-bit load."""
    pair, odd = col // 2 % 4, col % 2
    return col // 16 * 16 + pair * 4 + col // 8 % 2 * 2 + odd


def make_place(tile: Tile):
    """A device function: the first row and column of a tile, from its number."""
    ROWS, COLS = tile.rows, tile.cols

    @cuda.jit(device=True)
    def place(number, rows, cols):
        """Numbers go down BAND tiles, then to the next column: tiles computed at the same time form a rectangle, not a
        line, and find each other's rows and columns in the L2."""
        down = (rows + (ROWS - 1)) // ROWS
        across = (cols + (COLS - 1)) // COLS
        band = number // (BAND * across)
        first = band * BAND
        height = min(down - first, BAND)
        rest = number - first * across
        col = rest // height
        row = first + rest - col * height
        return row * ROWS, col * COLS

    return place


def make_load(tile: Tile, weights: bool):
    """A device function: starts the copies of one stage. One thread calls it, when the stage is free."""
    A_ELEMENTS, STAGE, STAGE_BYTES = tile.rows * DEPTH, tile.stage_elements, 2 * tile.stage_elements
    B_BOXES = tile.cols // 64

    @cuda.jit(device=True)
    def load(tiles, loaded, stage, a_map, b_map, row, col, k):
        a_tile = stage * STAGE
        b_tile = a_tile + A_ELEMENTS
        ptx.mbarrier_expect_tx(loaded, stage, STAGE_BYTES)  # whole boxes count, also beyond an edge
        ptx.tma_load_2d(tiles, a_tile, a_map, k, row, loaded, stage)
        if weights:
            ptx.tma_load_2d(tiles, b_tile, b_map, k, col, loaded, stage)
        else:
            for box in u32.range(B_BOXES):
                ptx.tma_load_2d(tiles, b_tile + box * BOX, b_map, col + box * 64, k, loaded, stage)

    return load


def make_epilogue(activation, residual=False, bf16=False):
    """A device function: writes a thread's accumulators of 64 columns, as float16 or bfloat16, to a box that TMA can
    store. residual: the box holds the residual, which is added."""
    pack, unpack = (ptx.pack_bf162, ptx.unpack_bf162) if bf16 else (ptx.pack_half2, ptx.unpack_half2)

    @cuda.jit(device=True, forceinline=True)
    def epilogue(acc, box, words, word, eighth):
        """`word` is the place of the thread's first two accumulators in box 0, `eighth` its row among eight. A call for
        each box: the compiler unrolls each on its own, and has to, for accumulators that are indexed in a loop leave
        registers."""
        for j in u32.range(8):
            upper = word + box * BOX // 2 + (j ^ eighth) * 4
            lower = upper + 8 * 32  # eight rows below
            s = 32 * box + 4 * j
            if residual:
                p, q = unpack(words[upper])
                r, t = unpack(words[lower])
                words[upper] = pack(activation(acc[s]) + p, activation(acc[s + 1]) + q)
                words[lower] = pack(activation(acc[s + 2]) + r, activation(acc[s + 3]) + t)
            else:
                words[upper] = pack(activation(acc[s]), activation(acc[s + 1]))
                words[lower] = pack(activation(acc[s + 2]), activation(acc[s + 3]))

    return epilogue


def make_pair_epilogue(combine):
    """A device function like make_epilogue's, where columns belong in pairs, 16n + i with 16n + 8 + i: 128 columns of
    accumulators become 64 of the output, combine(first, second) of each pair, rounded to bfloat16.

    A thread holds columns 8j + 2q and the next of every j: so both of a pair are its own, and the pairs of two
    neighbouring columns of the output, which share a word.
    """

    @cuda.jit(device=True, forceinline=True)
    def pair_epilogue(acc, box, words, word, eighth):
        for j in u32.range(8):
            upper = word + box * BOX // 2 + (j ^ eighth) * 4
            lower = upper + 8 * 32  # eight rows below
            s = 64 * box + 8 * j
            words[upper] = ptx.pack_bf162(combine(acc[s], acc[s + 4]), combine(acc[s + 1], acc[s + 5]))
            words[lower] = ptx.pack_bf162(combine(acc[s + 2], acc[s + 6]), combine(acc[s + 3], acc[s + 7]))

    return pair_epilogue


def make_store_part(columns: int):
    """A device function: stores a thread's accumulators of `columns` columns among those of its part of K."""
    COLUMNS = columns

    @cuda.jit(device=True, forceinline=True)
    def store_part(acc, parts, above, row, col, rows, cols):
        """Rows row and row + 8, columns col + 8 * j and the next. A quad of lanes stores 32 bytes of a row."""
        for j in u32.range(COLUMNS // 8):
            near = col + 8 * j
            if near < cols:
                upper = (above + row) * cols + near
                if row < rows:
                    parts[upper] = acc[4 * j]
                    parts[upper + 1] = acc[4 * j + 1]
                if row + 8 < rows:
                    lower = upper + 8 * cols
                    parts[lower] = acc[4 * j + 2]
                    parts[lower + 1] = acc[4 * j + 3]

    return store_part


def b_layout(weights: bool) -> tuple:
    """For wgmma_descriptor: bytes from 64 columns to the next 64 (unused if K-major), and what advances K by 16."""
    return (16, 2) if weights else (2 * BOX, 16 * 128 // 16)


def wgmma_of(cols: int, weights: bool, bf16: bool = False):
    return getattr(ptx, f"wgmma_m64n{cols}k16_f32_{'bf16' if bf16 else 'f16'}" + ("" if weights else "_bmn"))
