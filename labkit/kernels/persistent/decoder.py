"""The sizes of a decoder that one kernel computes, and how its blocks divide shared memory.

A stage of the ring holds eight rows of weights: `stage_columns` of each, two groups of 32 for each warp. A row is
padded by 64 bytes, so that the eight lanes of a 128-bit load touch 32 different banks.
"""

from dataclasses import dataclass

from labkit.kernels.attention.pages import PAGE
from labkit.kernels.elements import BFLOAT16, Element

ROWS = 8  # sequences, at most; also the rows of weights in a tile
JOINS = 5  # of a layer: after qkv, attention, o, gate and up, down
GROUP = 32  # columns that a warp loads at a time: 16 bytes of each of eight rows by four lanes
GROUPS = 2  # of a warp in a stage
PAD = 32  # elements behind each row of a stage
QUERY_PAD = 4  # float32 between the two parts of a query in shared memory, which two lanes read at once


@dataclass(frozen=True)
class Decoder:
    """Llama's sizes; qkv_rows etc. are rows of weights. warps: of a block that compute, each with every warps-th group
    of columns; one more copies. in_flight: stages that an SM copies at once, of 16 KB; the memory's 4.2 TB/s times the
    microsecond that a copy takes are two for each of 132 SMs. timed: record when each block begins and ends each
    phase."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    eps: float
    scale: float
    element: Element = BFLOAT16
    warps: int = 16
    stages: int = 12
    in_flight: int = 4
    timed: bool = False

    @property
    def attended(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv_rows(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def gate_up_rows(self) -> int:
        return 2 * ROWS * -(-self.mlp // ROWS)

    @property
    def group_heads(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def threads(self) -> int:
        return 32 * (self.warps + 1)

    @property
    def stage_columns(self) -> int:
        return self.warps * GROUPS * GROUP

    @property
    def pitch(self) -> int:
        return self.stage_columns + PAD

    @property
    def ring_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.stages * ROWS * self.pitch * self.element.dtype.itemsize

    @property
    def page_words(self) -> int:
        """Words of a page's keys, or of its values, that a lane holds."""
        return PAGE * self.head_dim // 2 // 32

    @property
    def pairs(self) -> int:
        """Pairs of a head's elements that a lane rotates."""
        return -(-self.head_dim // 2 // 32)

    @property
    def warp_heads(self) -> int:
        """Query heads of a warp in attention: one, where a block has a warp for each."""
        return -(-self.group_heads // self.warps)

    @property
    def page_warps(self) -> int:
        """Warps that share a page of keys and values."""
        return -(-self.group_heads // self.warp_heads)

    @property
    def split_pages(self) -> int:
        """Pages of a split: as many as a block's warps take at once."""
        return self.warps // self.page_warps

    @property
    def scratch(self) -> int:
        """float32 in shared memory: the warps' partial sums of four tiles and of squares, or the queries of an item of
        attention, for each of its pages, and its warps' results, in two buffers."""
        products = self.warps * (4 * ROWS * ROWS + ROWS)
        return max(products, self.split_pages * self.group_heads * (3 * self.head_dim + QUERY_PAD + 2))

    def splits(self, pages: int) -> int:
        """Return the splits of a sequence with so many pages."""
        return -(-pages // self.split_pages)

    def partial_size(self, pages: int) -> int:
        """Return the float32 that attention's partial results take, for sequences of at most so many pages."""
        return ROWS * self.heads * self.splits(pages) * (self.head_dim + 1)

    def marks(self, layers: int) -> int:
        """Return the times that a block records: the begin and the end of each phase."""
        return 2 * (JOINS * layers + 1)

    def problem(self) -> str:
        """Why the kernel cannot compute such a decoder; empty if it can."""
        for name in ("hidden", "attended", "mlp"):
            if getattr(self, name) % GROUP:
                return f"{name} is {getattr(self, name)}; it must be a multiple of {GROUP}"
        if self.head_dim < PAGE or self.head_dim > 256 or self.head_dim & (self.head_dim - 1):
            return f"head_dim is {self.head_dim}; 16, 32, 64, 128 and 256 are allowed"
        if self.heads % self.kv_heads:
            return f"heads is {self.heads} and kv_heads {self.kv_heads}; the first must be a multiple of the second"
        if self.element.pack is None:
            return f"the weights are {self.element.name}; bfloat16 and float16 are allowed"
        return ""
