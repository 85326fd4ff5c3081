"""The sizes of a decoder that one kernel computes, and how its blocks divide shared memory.

A stage of the ring holds eight rows of weights, `stage_columns` of each, two groups of 64 for each warp; or the pages
of keys and values of an item of attention.
"""

from dataclasses import dataclass

from labkit.kernels.attention.pages import PAGE
from labkit.kernels.elements import BFLOAT16, Element

ROWS = 8  # sequences, at most; also the rows of weights in a tile
JOINS = 5  # of a layer: after qkv, attention, o, gate and up, down
GROUP = 64  # columns that a warp loads at a time: 32 bytes of each of eight rows by four lanes
GROUPS = 2  # of a warp in a stage
HEAD_DIMS = 32, 64, 128, 256
MOST_PAGES = 16  # of a split: 32 lanes copy their keys and their values


@dataclass(frozen=True)
class Decoder:
    """Llama's sizes; qkv_rows etc. are rows of weights. warps: of a block that compute, each with every warps-th group
    of columns; one more copies. in_flight: stages that an SM copies at once, of 32 KB; the memory's 4.2 TB/s times the
    microsecond that a copy takes are one for each of 132 SMs. timed: record when each block begins and ends each
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
    stages: int = 6
    in_flight: int = 2
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
    def stage(self) -> int:
        """Elements of a stage: at least a page of keys and one of values."""
        return max(ROWS * self.stage_columns, 2 * self.page)

    @property
    def ring_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.stages * self.stage * self.element.dtype.itemsize

    @property
    def page(self) -> int:
        """Elements of a page of keys, or of values, of one head."""
        return PAGE * self.head_dim

    @property
    def pairs(self) -> int:
        """Pairs of a head's elements that a lane rotates."""
        return -(-self.head_dim // 2 // 32)

    @property
    def split_pages(self) -> int:
        """Pages of a split: those whose keys and values fill a stage."""
        return min(MOST_PAGES, self.stage // (2 * self.page))

    @property
    def scratch(self) -> int:
        """float32 in shared memory: the warps' partial sums of four tiles and of squares, or the results of attention
        of an item's pages, in two buffers."""
        products = self.warps * (4 * ROWS * ROWS + ROWS)
        return max(products, 2 * self.split_pages * self.group_heads * (self.head_dim + 1))

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
        if self.head_dim not in HEAD_DIMS:
            return f"head_dim is {self.head_dim}; {', '.join(map(str, HEAD_DIMS))} are allowed"
        if self.heads % self.kv_heads or self.group_heads > ROWS:
            return (f"heads is {self.heads} and kv_heads {self.kv_heads}; the first must be a multiple of the second, "
                    f"at most {ROWS} times it")
        if self.element.pack is None:
            return f"the weights are {self.element.name}; bfloat16 and float16 are allowed"
        return ""
