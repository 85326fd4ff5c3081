"""The sizes of an encoder that one kernel computes, and how its blocks divide shared memory.

A block has a tile of 16 rows, and of each product a share of the columns of that tile. `depth_warps` warps have 64
columns each of a row of the hidden size, so that a residual is added by the warp that multiplied it; `width_warps` of
each take turns at the tiles of eight weights. Of rows of the inner size, all warps share the columns.
"""

from dataclasses import dataclass

from labkit.kernels.elements import FLOAT16, Element

ROWS = 16  # of a tile
TILES = 8  # of rows, at most
MOST_TOKENS = ROWS * TILES
WEIGHTS = 8  # in a tile of weights
GROUP = 64  # columns that a warp loads at a time: 16 bytes of both halves by each lane
WORDS = 16  # a lane's part of a group of 16 rows
JOINS = 5  # of a layer, at most: after qkv, attention, the first projection, inner, the second projection
HEAD_DIMS = 32, 64
MOST_WARPS = 16
PAIRED_WARPS = 8  # up to so many depth_warps, two of each
LANES_WORDS = 4 * 32  # float32 of a warp's product of a tile of rows and a tile of weights
MOST_SLOTS = 72  # such products in shared memory, 36 KB, unless a stage has more


@dataclass(frozen=True)
class Encoder:
    """BERT's sizes. stages: of the ring, each eight rows of `inner` columns, or as many of `hidden` as fit, and their
    biases; in_flight: those that an SM copies at once. timed: record when each block begins and ends each phase."""

    hidden: int
    heads: int
    inner: int
    vocab: int
    positions: int
    eps: float
    element: Element = FLOAT16
    stages: int = 8
    in_flight: int = 3
    timed: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def depth_warps(self) -> int:
        return self.hidden // GROUP

    @property
    def width_warps(self) -> int:
        return 2 if self.depth_warps <= PAIRED_WARPS else 1

    @property
    def warps(self) -> int:
        """Of a block, that compute; one more copies."""
        return self.depth_warps * self.width_warps

    @property
    def threads(self) -> int:
        return 32 * (self.warps + 1)

    @property
    def inner_groups(self) -> int:
        """Groups of columns of a row of the inner size that a warp has."""
        return self.inner // (GROUP * self.warps)

    @property
    def stage_tiles(self) -> int:
        """Tiles of weights of the hidden size in a stage."""
        return min(self.inner // self.hidden, self.warps)

    @property
    def biases(self) -> int:
        """Where in a stage the biases of its tiles begin."""
        return WEIGHTS * self.inner

    @property
    def stage(self) -> int:
        """Elements of a stage."""
        return self.biases + WEIGHTS * self.stage_tiles

    @property
    def ring_bytes(self) -> int:
        """Dynamic shared memory: the stages, and the residual of the block's rows."""
        return (self.stages * self.stage + ROWS * self.hidden) * self.element.dtype.itemsize

    @property
    def slots(self) -> int:
        """Products of a tile of rows and a tile of weights by one warp each, between two barriers: for each warp a tile
        to add up, where they fit."""
        stages = max(1, min(self.warps, MOST_SLOTS // self.depth_warps) // self.stage_tiles)
        return max(self.depth_warps * self.stage_tiles * stages, self.warps)

    @property
    def moments(self) -> int:
        """Where in scratch the warps' sums for LayerNorm begin."""
        return self.slots * LANES_WORDS

    @property
    def attended_pitch(self) -> int:
        """float32 from a row of a warp's partial attention to the next: those of a phase lie in different banks."""
        return self.head_dim + 4

    @property
    def scratch(self) -> int:
        """float32 in shared memory: the warps' products and then their sums for LayerNorm, or the attention of each
        tile of keys with the largest scores and the sums of its rows, or an embedding."""
        attention = TILES * ROWS * (self.attended_pitch + 2)
        return max(self.moments + 4 * 8 * self.depth_warps, attention, self.hidden + self.warps)

    @property
    def static_bytes(self) -> int:
        """Shared memory beside the ring, rounded up."""
        return 4 * self.scratch + 16 * self.stages + 64

    def marks(self, layers: int) -> int:
        """Return the times that a block records: the begin and the end of each phase, and of pooling."""
        return 2 * (JOINS * layers + 1)

    def problem(self) -> str:
        """Why the kernel cannot compute such an encoder; empty if it can."""
        if self.hidden % GROUP or not GROUP <= self.hidden <= GROUP * MOST_WARPS:
            return f"hidden is {self.hidden}; it must be a multiple of {GROUP}, at most {GROUP * MOST_WARPS}"
        if self.hidden % self.heads or self.head_dim not in HEAD_DIMS:
            return (f"hidden is {self.hidden} and heads {self.heads}; the heads must have "
                    f"{' or '.join(map(str, HEAD_DIMS))} numbers each")
        if self.inner % (GROUP * self.warps):
            return f"inner is {self.inner}; it must be a multiple of {GROUP * self.warps}"
        if self.element is not FLOAT16:
            return f"the weights are {self.element.name}; only float16 is allowed"
        return ""
