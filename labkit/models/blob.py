"""All tensors of a model as one device buffer, with a map of where each begins.

    blob = Blob(read("model.safetensors"), dtype=np.float32)
    blob["wte.weight"]                      # a device array, a view into the buffer
    blob.entries["wte.weight"].offset       # bytes from the start of the buffer

One allocation instead of hundreds. Each tensor begins at a multiple of 16 bytes, so that kernels may load four floats
at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from labkit._common.chunks import made_ahead
from labkit.device.memory import PIECE, copy_pieces, zeros
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.models.safetensors import Named

ALIGNMENT = 16  # bytes: the widest load, ld.global.v4.f32
CHECKED = 1 << 19  # elements that are checked at a time: few enough that the masks made of them fit into a core's cache


@dataclass(frozen=True)
class TensorInfo:
    """The offset in bytes, shape and dtype of one tensor in the buffer."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def layout(shapes: Mapping[str, tuple], dtypes: Mapping[str, np.dtype]) -> tuple[dict[str, TensorInfo], int]:
    """Return the offset of each tensor, in the order given, and the total number of bytes."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        entries[name] = TensorInfo(offset, tuple(shape), np.dtype(dtypes[name]))
        end = offset + entries[name].nbytes
    return entries, end


def is_bfloat16(tensors: Mapping[str, np.ndarray], name: str) -> bool:
    """Whether a uint16 tensor holds bfloat16. Only the header of its file records that."""
    entries = getattr(tensors, "entries", {})
    return name in entries and entries[name].dtype == "BF16"


def converted(tensor: np.ndarray, dtype: np.dtype | None, bfloat16: bool = False) -> np.ndarray:
    """Convert a tensor to `dtype`. bfloat16: its uint16 hold bfloat16. Integers and booleans are returned unchanged."""
    if dtype is None or (tensor.dtype.kind != "f" and not bfloat16):
        return tensor
    if bfloat16:
        if dtype == np.uint16:
            return tensor
        tensor = (tensor.astype(np.uint32) << 16).view(np.float32)
    if dtype == np.uint16:
        return bfloat16_of(tensor.astype(np.float32))
    with np.errstate(over="ignore"):  # the caller checks for infinities
        return tensor.astype(dtype, copy=False)


def _not_finite(part: np.ndarray) -> np.ndarray:
    """Mask of the elements that are infinite or NaN; uint16 holds bfloat16."""
    return part & np.uint16(0x7F80) == 0x7F80 if part.dtype == np.uint16 else ~np.isfinite(part)


def _check_finite(piece: np.ndarray, flat: np.ndarray, name: str) -> None:
    """Raise ValueError if a number of `piece` is not finite; the message counts those of the whole tensor, `flat`."""
    if not any(_not_finite(piece[begin : begin + CHECKED]).any() for begin in range(0, piece.size, CHECKED)):
        return
    nonfinite = flat[_not_finite(flat)]
    first, kind = nonfinite[0], flat.dtype
    if flat.dtype == np.uint16:
        first, kind = float32_of(nonfinite[:1])[0], "bfloat16"
    largest = "; the largest float16 is 65,504" if flat.dtype == np.float16 else ""
    raise ValueError(f"{name}: {nonfinite.size:,} of its {flat.size:,} numbers are not finite in {kind}, the first is "
                     f"{first}{largest}")


@dataclass(frozen=True)
class LazyTensor:
    """An array that is made shortly before it is copied to the device, and then dropped, so that the host never holds a
    second copy of all weights."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]


class Blob(Named):
    """Device arrays by name, views into one buffer.

    tensors: name -> NumPy array, such as read(path) returns, or LazyTensor. dtype: convert floating-point tensors to
    it; None leaves them as they are, uint16 means bfloat16. names: these tensors only, in this order; a dictionary
    also says what the blob calls them: {name here: name in tensors}. finite: a NaN or an infinity among them raises
    ValueError.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], dtype=None, names=None, *, finite=False):
        dtype = None if dtype is None else np.dtype(dtype)
        names = names if isinstance(names, Mapping) else {name: name for name in (tensors if names is None else names)}
        missing = [name for name in names.values() if name not in tensors]
        if missing:
            raise KeyError(f"{len(missing)} tensors are not there: {', '.join(missing[:5])}")
        sources = {alias: (tensors[name], is_bfloat16(tensors, name)) for alias, name in names.items()}
        dtypes = {name: converted(np.zeros(0, source.dtype), dtype, is_bf16).dtype
                  for name, (source, is_bf16) in sources.items()}
        self.entries, self.nbytes = layout({name: source.shape for name, (source, _) in sources.items()}, dtypes)
        self.buffer = zeros(max(self.nbytes, 1), np.uint8)  # the padding between tensors is zero

        def host_array(name: str) -> np.ndarray:
            source, is_bf16 = sources[name]
            array = source.make() if isinstance(source, LazyTensor) else source
            return np.ascontiguousarray(converted(array, dtype, is_bf16), self.entries[name].dtype).reshape(-1)

        def checked(name: str, flat: np.ndarray, begin: int) -> tuple[int, np.ndarray]:
            piece = flat[begin : begin + PIECE // flat.itemsize]
            if finite:
                _check_finite(piece, flat, names[name])
            return self.entries[name].offset + begin * flat.itemsize, piece.view(np.uint8)

        def makers() -> Iterator[Callable]:
            arrays = made_ahead(functools.partial(host_array, name) for name in sources)
            for name, flat in zip(sources, arrays, strict=True):
                for begin in range(0, flat.size, PIECE // flat.itemsize):
                    yield functools.partial(checked, name, flat, begin)

        copy_pieces(self.buffer, makers())
        self._views: dict = {}

    def __getitem__(self, name: str):
        if name not in self.entries:
            raise KeyError(f"no tensor is called {name!r}; there are {len(self.entries)}, "
                           f"the first are {', '.join(list(self.entries)[:5])}")
        if name not in self._views:  # making a view takes microseconds, and a model needs hundreds per token
            entry = self.entries[name]
            if entry.nbytes == 0:
                raise ValueError(f"{name} has shape {entry.shape}, no elements; a kernel could not read it")
            part = self.buffer[entry.offset : entry.offset + entry.nbytes].view(entry.dtype)
            self._views[name] = part.reshape(entry.shape) if entry.shape else part
        return self._views[name]

    def under(self, prefix: str) -> dict:
        """The arrays whose names begin so, by the rest of their names."""
        return {name.removeprefix(prefix): self[name] for name in self if name.startswith(prefix)}

    def __repr__(self):
        return f"<{len(self)} tensors in one device buffer of {self.nbytes:,} bytes>"
