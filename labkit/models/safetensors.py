"""Read and write safetensors files: the format in which models are published. Nothing is executed or copied.

    tensors = read("model.safetensors")       # name -> NumPy array, read-only, straight from the file's pages
    tensors["wte.weight"].shape
    write("other.safetensors", {"wte.weight": bits}, dtypes={"wte.weight": "BF16"})

A file is three parts, one after the other:

    8 bytes     the length n of the header, a little-endian unsigned integer
    n bytes     the header, JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
    the rest    the tensors' numbers, little-endian, row by row; data_offsets count from here, end exclusive

The tensors lie side by side: no gaps, no overlaps, no bytes left over. So whoever reads the header knows how long the
file is, and a wrong header is rejected, with a SafetensorsError, before any tensor is read.

Source  https://github.com/huggingface/safetensors, "Format"
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit._common.errors import short
from labkit._common.files import whole_file

LARGEST_HEADER = 100_000_000  # bytes; the library's own limit
MOST_DIMENSIONS = 64  # NumPy's
METADATA = "__metadata__"

# The format's name of a type -> the NumPy type that holds it. NumPy has none for bfloat16 and for numbers of eight
# bits: they arrive as unsigned integers with the same bits.
DTYPES = {
    "BOOL": np.dtype("bool"),
    "U8": np.dtype("u1"), "I8": np.dtype("i1"), "F8_E4M3": np.dtype("u1"), "F8_E5M2": np.dtype("u1"),
    "U16": np.dtype("<u2"), "I16": np.dtype("<i2"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"), "I64": np.dtype("<i8"), "F64": np.dtype("<f8"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in ("BF16", "F8_E4M3", "F8_E5M2")}


class SafetensorsError(ValueError):
    """A file that is damaged, truncated or inconsistent. The message names the tensor and the values."""


@dataclass(frozen=True)
class Entry:
    """The header's entry of one tensor. begin and end are byte offsets from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class Named(Mapping):
    """Tensors by name, as `entries` lists them. Membership tests do not make the tensor."""

    entries: dict

    def __contains__(self, name) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Tensors(Named):
    """The tensors of one file by name. Each is made when asked for: a read-only view of the file, not a copy."""

    def __init__(self, path: Path, entries: dict[str, Entry], metadata: dict[str, str], data: np.ndarray):
        self.path, self.entries, self.metadata = path, entries, metadata
        self._data = data  # the bytes after the header

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.entries:
            raise KeyError(f"{self.path} has no tensor {name!r}; it has {len(self.entries)}, "
                           f"the first are {', '.join(list(self.entries)[:5])}")
        entry = self.entries[name]
        return self._data[entry.begin : entry.end].view(DTYPES[entry.dtype]).reshape(entry.shape)

    def __repr__(self):
        return f"<{len(self)} tensors of {self.path}, {self._data.size:,} bytes>"


def read(path) -> Tensors:
    """Open a file. The whole header is checked here, before any tensor is read."""
    path = Path(path)
    try:
        size = path.stat().st_size
        contents = np.memmap(path, np.uint8, "r") if size and path.is_file() else np.zeros(0, np.uint8)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SafetensorsError(f"{path} cannot be read: {error.strerror or error}") from None
    if not path.is_file():
        raise SafetensorsError(f"{path} is no file")
    try:
        length = int.from_bytes(contents[:8].tobytes(), "little")
        if size < 8:
            raise SafetensorsError(f"{size} bytes; a safetensors file begins with 8 that say how long its header is. "
                                   f"Was the download cut off?")
        if length > LARGEST_HEADER:
            raise SafetensorsError(f"a header of {length:,} bytes is announced, at most {LARGEST_HEADER:,} are "
                                   f"allowed. This is no safetensors file, or a damaged one")
        if 8 + length > size:
            raise SafetensorsError(f"a header of {length:,} bytes is announced, but the file ends after {size - 8:,}. "
                                   f"Was the download cut off?")
        entries, metadata = parse_header(contents[8 : 8 + length].tobytes())
        data = np.asarray(contents)[8 + length :]
        check_layout(entries, data.size)
    except SafetensorsError as error:
        raise SafetensorsError(f"{path}: {error}") from None
    return Tensors(path, entries, metadata, data)


def parse_header(text: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    """Parse the header into entries and metadata. check_layout compares them with the file's size."""
    if not text.startswith(b"{"):
        raise SafetensorsError(f"the header must begin with '{{'; it begins with {text[:8]!r}")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except SafetensorsError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, JSON nested without end
        raise SafetensorsError(f"the header is not JSON: {error}") from None
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SafetensorsError(f"{METADATA} must be a dictionary of strings; it is {short(metadata)}")
    return {name: _entry(name, header_entry) for name, header_entry in header.items()}, metadata


def _without_duplicates(pairs: list) -> dict:
    """json.loads keeps the last of two equal names, unnoticed."""
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise SafetensorsError(f"the header names {repeated!r} twice")
    return result


def _entry(name: str, header_entry) -> Entry:
    def bad(problem: str) -> SafetensorsError:
        return SafetensorsError(f"tensor {name!r}: {problem}")

    if not isinstance(header_entry, dict) or set(header_entry) != {"dtype", "shape", "data_offsets"}:
        raise bad(f"must have dtype, shape and data_offsets, and nothing else; the header says {short(header_entry)}")
    dtype, shape, offsets = header_entry["dtype"], header_entry["shape"], header_entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise bad(f"dtype {short(dtype)} is unknown; known are {', '.join(DTYPES)}")
    if not _counts(shape) or len(shape) > MOST_DIMENSIONS:
        raise bad(f"shape must be a list of at most {MOST_DIMENSIONS} whole numbers, none negative; "
                  f"it is {short(shape)}")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad(f"data_offsets must be [begin, end] with begin <= end; they are {short(offsets)}")
    itemsize = DTYPES[dtype].itemsize
    if math.prod(n for n in shape if n) * itemsize >= 2**63:  # zeros left out: NumPy multiplies the others all the same
        raise bad(f"shape {short(shape)} is larger than any memory")
    begin, end = offsets
    if end - begin != math.prod(shape) * itemsize:
        raise bad(f"shape {shape} of {dtype} needs {math.prod(shape) * itemsize:,} bytes; "
                  f"data_offsets {offsets} span {end - begin:,}")
    return Entry(name, dtype, tuple(shape), begin, end)


def _counts(value) -> bool:
    """A list of whole numbers >= 0. True is an int to Python, but not to the format."""
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def check_layout(entries: Mapping[str, Entry], size: int) -> None:
    """Raise SafetensorsError unless the tensors fill the `size` bytes after the header, side by side."""
    position, previous = 0, "the header"
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        span = f"tensor {entry.name!r}: data_offsets [{entry.begin:,}, {entry.end:,}]"
        if entry.end > size:
            raise SafetensorsError(f"{span}, but only {size:,} bytes follow the header. Was the download cut off?")
        if entry.begin < position:
            raise SafetensorsError(f"{span} overlap {previous}, which ends at {position:,}")
        if entry.begin > position:
            raise SafetensorsError(f"{span} leave a gap of {entry.begin - position:,} bytes after {previous}, which "
                                   f"ends at {position:,}")
        position, previous = entry.end, f"tensor {entry.name!r}"
    if position != size:
        raise SafetensorsError(f"{size - position:,} bytes at the end belong to no tensor: {previous} ends at "
                               f"{position:,} of {size:,}")


def write(path: Path, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> None:
    """Write a file, whole or not at all. Each array is looked up twice, and written before the next one.

    dtypes: the format's name of a tensor's type where NumPy's does not say it: "BF16" or "F8_E4M3".
    """
    header, end = {METADATA: {"format": "pt"}}, 0  # as PyTorch's files: transformers reads no others
    for name, array in tensors.items():
        dtype = (dtypes or {}).get(name) or NAMES.get(array.dtype)
        if dtype is None or DTYPES[dtype] != array.dtype:
            raise TypeError(f"{name} is of type {array.dtype}, which cannot be written as {dtype or 'a tensor'}")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of 8 bytes
    with whole_file(Path(path)) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in tensors:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
