"""The kernels of the current step, and the share of its bytes that each moves.

    kernels = Kernels()
    launched = kernels.of(engine.runner)     # in the engine's thread; None for a runner without kernels
    launched.shares(keys=12_000)             # [{"name": "linear", "launches": 24, "share": 0.41, ...}, ...]

No kernel is timed: on a GPU the launches of a step run as one graph. The numbers are shares of the bytes that the
launches read and write; for a decode step they are close to shares of the time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from labkit.device.launches import Launch

NOTE = "by their part of the bytes that the step's launches move: counted, not timed"
SHOWN = 7  # kernels; the rest are one row


@dataclass
class Row:
    """A kernel of a step. moved: bytes of all its launches, without cached keys and values; per_key: bytes for each
    token of a context, where it reads those."""

    name: str
    launches: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    moved: int
    per_key: int


class Kernels:
    """A cache of the launches by size of step. Planning takes about 25 us for each launch, so it is done once for all
    steps within a factor of two, as the engine compiles them, and at most once in `pause_s` seconds."""

    def __init__(self, pause_s: float = 0.5):
        self.pause_s = pause_s
        self._cache: dict[tuple, Launched] = {}
        self._next = 0.0

    def of(self, runner) -> Launched | None:
        shape = getattr(runner, "last_shape", None)
        if shape is None:
            return None
        key = shape.rows.bit_length(), shape.sequences.bit_length(), shape.decoding > 0, shape.longest > 0
        if key not in self._cache and time.monotonic() >= self._next:
            self._cache[key] = Launched.of(runner.planned(), runner.model.config, shape.rows)
            self._next = time.monotonic() + self.pause_s
        return self._cache.get(key)


@dataclass
class Launched:
    """Of a step, in the order in which they first come."""

    rows: list[Row]

    @classmethod
    def of(cls, launches: list[Launch], config, tokens: int) -> Launched:
        rows: dict[str, Row] = {}
        for launch in launches:
            name = launch.kernel.__name__.removesuffix("_kernel")
            row = rows.setdefault(name, Row(name, 0, launch.grid, launch.block, 0, 0))
            moved, per_key = _bytes(launch, name, config, tokens)
            row.launches, row.moved, row.per_key = row.launches + 1, row.moved + moved, row.per_key + per_key
        return cls(list(rows.values()))

    def shares(self, keys: int) -> list[dict]:
        """The largest first. keys: tokens in the contexts of the step's sequences."""
        moved = sorted(((row.moved + keys * row.per_key, row) for row in self.rows), key=lambda pair: -pair[0])
        total = sum(nbytes for nbytes, _ in moved) or 1
        shown = [{"name": row.name, "launches": row.launches, "grid": " x ".join(map(str, row.grid)),
                  "block": " x ".join(map(str, row.block)), "share": round(nbytes / total, 3)}
                 for nbytes, row in moved[:SHOWN]]
        others = moved[SHOWN:]
        if others:
            shown.append({"name": f"{len(others)} others", "launches": sum(row.launches for _, row in others),
                          "grid": "", "block": "", "share": round(sum(nbytes for nbytes, _ in others) / total, 3)})
        return shown


def _bytes(launch: Launch, name: str, config, tokens: int) -> tuple[int, int]:
    """Of a launch: bytes, and bytes for each key of a context. All of the arrays that it is given, but of tables only
    what its tokens need, and of the cache only the contexts."""
    arrays = list({id(arg): arg for arg in launch.args if getattr(arg, "shape", ())}.values())
    width = config.head_dim * config.num_key_value_heads
    if name.startswith("token_embedding"):  # tokens, table, output
        return 2 * arrays[-1].nbytes, 0
    if name.startswith("rope"):
        return 2 * tokens * (config.num_attention_heads * config.head_dim + 2 * width) * arrays[0].dtype.itemsize, 0
    if name.startswith("paged"):
        cached = [array for array in arrays if array.ndim == 4]
        return (sum(array.nbytes for array in arrays if array.ndim < 4),
                sum(width * array.dtype.itemsize for array in cached))
    return sum(array.nbytes for array in arrays), 0
