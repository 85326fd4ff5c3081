"""Which buffers of a step are in use at the same time, and where each may lie so that none overwrites another.

    live = liveness(llama_launches(layers=16))        # of each launch, the buffers whose contents count while it runs
    sizes = sizes_of(workspace)                       # name -> bytes
    offsets = first_fit(sizes, live)                  # name -> its first byte in one stretch of memory
    overlaps(offsets, sizes, live)                    # []: none overwrites another one
    smaller = placed(workspace, offsets)              # a workspace that lies there

Source  liveness analysis: A. Aho et al., "Compilers" (2006), section 9.2.5; first fit, the largest first: Y. Pisarchyk
        and J. Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), "greedy by size"
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from labkit import cuda
from labkit.models.llama import Workspace

ALIGNMENT = 256  # bytes; loads of 16 bytes need it, and a GPU's own allocations begin at such addresses
BUFFERS = ("x", "normed", "qkv", "q", "attended", "projected", "gated", "last", "logits")  # of a Workspace


class Launch(NamedTuple):
    """A launch, with the buffers it reads and writes; it may write in place."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def llama_launches(layers: int) -> list[Launch]:
    """The launches of Llama.forward, without the weights, the inputs, the cache and the scratch of attention."""
    result = [Launch("embedding", (), ("x",))]
    for layer in range(layers):
        result += [
            Launch("input norm", ("projected", "x") if layer else ("x",), ("x", "normed") if layer else ("normed",)),
            Launch("q, k, v", ("normed",), ("qkv",)),
            Launch("rope, to cache", ("qkv",), ("q",)),
            Launch("attention", ("q",), ("attended",)),
            Launch("o", ("attended",), ("projected",)),
            Launch("post norm", ("projected", "x"), ("x", "normed")),
            Launch("gate, up, SwiGLU", ("normed",), ("gated",)),
            Launch("down", ("gated",), ("projected",)),
        ]
    # The head takes the rows in `last`, or all of `normed` where each row is the last one of its sequence.
    return [*result, Launch("last norm", ("projected", "x"), ("x", "normed")),
            Launch("last rows", ("normed",), ("last",)), Launch("head", ("last", "normed"), ("logits",))]


def liveness(launches: Sequence[Launch], kept: Collection[str] = ("logits",)) -> list[frozenset[str]]:
    """Return, for each launch, the buffers that it reads or writes and those that a later launch reads. kept: buffers
    read after the last launch."""
    live, needed = [], set(kept)
    for launch in reversed(launches):
        live.append(frozenset(needed.union(launch.reads, launch.writes)))
        needed = needed.difference(launch.writes).union(launch.reads)
    return live[::-1]


def first_fit(sizes: Mapping[str, int], live: Sequence[Collection[str]], alignment: int = ALIGNMENT) -> dict[str, int]:
    """name -> its first byte. The largest buffer is placed first; each goes to the lowest address at which it overlaps
    with none of those placed before it that are live in the same launch."""
    offsets: dict[str, int] = {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        offset = 0
        for other in sorted(offsets, key=offsets.get):
            conflict = any(name in names and other in names for names in live)
            if conflict and offset < offsets[other] + sizes[other] and offsets[other] < offset + sizes[name]:
                offset = -(-(offsets[other] + sizes[other]) // alignment) * alignment
        offsets[name] = offset
    return offsets


def overlaps(offsets: Mapping[str, int], sizes: Mapping[str, int],
             live: Sequence[Collection[str]]) -> list[tuple[int, str, str]]:
    """(launch, one, another) wherever two buffers have bytes in common and both are live."""
    result = []
    for index, names in enumerate(live):
        ordered = sorted((name for name in names if name in offsets), key=lambda name: (offsets[name], name))
        result += [(index, one, other) for i, one in enumerate(ordered) for other in ordered[i + 1 :]
                   if offsets[other] < offsets[one] + sizes[one]]
    return result


def extent(offsets: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """How many bytes a plan takes."""
    return max(offsets[name] + sizes[name] for name in offsets)


def least(sizes: Mapping[str, int], live: Sequence[Collection[str]]) -> int:
    """The most bytes that are live in one launch: no plan takes fewer."""
    return max(sum(sizes[name] for name in names) for names in live)


def sizes_of(workspace: Workspace) -> dict[str, int]:
    return {name: getattr(workspace, name).nbytes for name in BUFFERS}


def placed(workspace: Workspace, offsets: Mapping[str, int]) -> Workspace:
    """A workspace of the same size whose buffers lie in one new stretch of memory, at these offsets."""
    memory = cuda.to_device(np.zeros(extent(offsets, sizes_of(workspace)), np.uint8))
    other = copy.copy(workspace)
    for name, offset in offsets.items():
        array = getattr(workspace, name)
        setattr(other, name, memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape))
    other.rows = functools.lru_cache(maxsize=256)(other._rows)
    return other
