"""The reader against the library's writer, and against files that lie."""

import json
import struct
import time

import numpy as np
import pytest
import safetensors
from safetensors import numpy as library

from labkit.models import safetensors as ours
from labkit.models.safetensors import SafetensorsError, read

NUMPY_DTYPES = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]
SHAPES = [(), (0,), (1,), (7,), (3, 5), (2, 0, 3), (2, 3, 4, 5)]


def random_tensor(rng, dtype, shape):
    """Random bits: NaN, infinity and denormals are among them. Booleans are 0 or 1."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape)


def write(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


def test_every_dtype_and_shape_is_read_as_the_library_reads_it(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {f"{dtype}/{shape}": random_tensor(rng, dtype, shape) for dtype in NUMPY_DTYPES for shape in SHAPES}
    path = tmp_path / "all.safetensors"
    library.save_file(tensors, path, metadata={"format": "np"})
    found, expected = read(path), library.load_file(path)
    assert set(found) == set(expected) == set(tensors)
    assert found.metadata == {"format": "np"}
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert found[name].tobytes() == tensor.tobytes() == tensors[name].tobytes(), name


def test_what_is_written_the_library_reads(tmp_path):
    rng = np.random.default_rng(1)
    tensors = {f"{dtype}/{shape}": random_tensor(rng, dtype, shape) for dtype in NUMPY_DTYPES for shape in SHAPES}
    tensors |= {"turned": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))}
    path = tmp_path / "all.safetensors"
    ours.write(path, tensors)
    found = library.load_file(path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert found[name].tobytes() == tensor.tobytes(), name
    bits = {"brain": np.array([[0x3F80], [0xC000]], np.uint16), "eight": np.array([0x38], np.uint8)}
    ours.write(path, bits, dtypes={"brain": "BF16", "eight": "F8_E4M3"})
    entries = read(path).entries
    assert {name: (one.dtype, one.shape) for name, one in entries.items()} == {
        "brain": ("BF16", (2, 1)), "eight": ("F8_E4M3", (1,))}
    safetensors.safe_open(path, "np")


@pytest.mark.parametrize(("array", "dtype"), [(np.zeros(2, np.complex64), None), (np.zeros(2, np.float32), "BF16")])
def test_what_cannot_be_written_is_named_and_leaves_the_file(tmp_path, array, dtype):
    path = tmp_path / "x.safetensors"
    ours.write(path, {"a": np.ones(1, np.float32)})
    refused = f"x is of type {array.dtype}, which cannot be written as {dtype or 'a tensor'}"
    with pytest.raises(TypeError, match=refused):
        ours.write(path, {"x": array}, dtypes={"x": dtype} if dtype else None)
    assert list(read(path)) == ["a"] and len(list(tmp_path.iterdir())) == 1


def test_types_that_numpy_lacks_keep_their_bits(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7FC0], np.uint16)
    path = write(tmp_path / "half.safetensors", {"brain": entry("BF16", (3,), (0, 6)),
                                                 "eight": entry("F8_E4M3", (2,), (6, 8))}, bits.tobytes() + b"\x38\xc0")
    safetensors.safe_open(path, "np")  # the library takes it, too
    found = read(path)
    assert found.entries["brain"].dtype == "BF16"
    np.testing.assert_array_equal(found["brain"], bits)
    np.testing.assert_array_equal(found["eight"], np.array([0x38, 0xC0], np.uint8))


def test_no_tensors_and_a_padded_header_are_right(tmp_path):
    assert len(read(write(tmp_path / "a", {}))) == 0
    padded = read(write(tmp_path / "b", json.dumps({"x": entry()}).encode() + b"   ", b"\0" * 8))
    np.testing.assert_array_equal(padded["x"], [0, 0])


def test_an_unaligned_tensor_is_read(tmp_path):
    values = np.array([1.5, -2.5], "<f4")
    found = read(write(tmp_path / "a", {"one": entry("U8", (1,), (0, 1)), "x": entry(offsets=(1, 9))},
                       b"\7" + values.tobytes()))
    np.testing.assert_array_equal(found["x"], values)


def test_what_is_read_cannot_be_written(tmp_path):
    found = read(write(tmp_path / "a", {"x": entry()}, b"\0" * 8))
    with pytest.raises(ValueError, match="read-only"):
        found["x"][0] = 1


def test_a_name_that_is_not_there(tmp_path):
    with pytest.raises(KeyError, match="no tensor 'y'; it has 1, the first are x"):
        read(write(tmp_path / "a", {"x": entry()}, b"\0" * 8))["y"]


X = {"x": entry()}
EIGHT = b"\0" * 8
LIES = {
    "cut off": (X, b"\0" * 7, r"tensor 'x': data_offsets \[0, 8\], but only 7 bytes follow the header"),
    "no data": (X, b"", "only 0 bytes follow"),
    "left over": (X, b"\0" * 9, "1 bytes at the end belong to no tensor: tensor 'x' ends at 8 of 9"),
    "data of nothing": ({}, b"\0", "1 bytes at the end"),
    "gap": (X | {"y": entry(offsets=(12, 20))}, b"\0" * 20, r"tensor 'y'.* a gap of 4 bytes after tensor 'x'"),
    "gap at the start": ({"x": entry(offsets=(4, 12))}, b"\0" * 12, "a gap of 4 bytes after the header"),
    "overlap": (X | {"y": entry(offsets=(4, 12))}, b"\0" * 12, r"tensor 'y'.*overlap tensor 'x', which ends at 8"),
    "twice the same bytes": (X | {"y": entry()}, EIGHT, "overlap tensor"),
    "empty inside another": (X | {"y": entry(shape=(0,), offsets=(4, 4))}, EIGHT, "'y'.*overlap tensor 'x'"),
    "beyond the end": ({"x": entry(offsets=(2**62, 2**62 + 8))}, EIGHT, "but only 8 bytes"),
    "backwards": ({"x": entry(offsets=(8, 0))}, EIGHT, r"data_offsets must be \[begin, end\].*\[8, 0\]"),
    "negative offset": ({"x": entry(offsets=(-8, 0))}, EIGHT, "data_offsets must be"),
    "three offsets": ({"x": entry(offsets=(0, 4, 8))}, EIGHT, "data_offsets must be"),
    "offsets as text": ({"x": entry() | {"data_offsets": "08"}}, EIGHT, "data_offsets must be"),
    "fractional offset": ({"x": entry(offsets=(0, 8.0))}, EIGHT, "data_offsets must be"),
    "true as an offset": ({"x": entry("U8", (1,), (0, True))}, b"\0", "data_offsets must be"),
    "wrong size": ({"x": entry(shape=(3,))}, EIGHT, r"tensor 'x': shape \[3\] of F32 needs 12 bytes.*span 8"),
    "wrong size of type": ({"x": entry("F64")}, EIGHT, "of F64 needs 16 bytes"),
    "negative dimension": ({"x": entry(shape=(-2, -1))}, EIGHT, "none negative"),
    "endless dimensions": ({"x": entry(shape=(1,) * 65, offsets=(0, 4))}, b"\0" * 4, "at most 64"),
    "overflow to nothing": ({"x": entry(shape=(2**62, 4), offsets=(0, 0))}, b"", "larger than any memory"),
    "overflow of an empty one": ({"x": entry(shape=(2**62, 4, 0), offsets=(0, 0))}, b"", "larger than any memory"),
    "unknown dtype": ({"x": entry("F33")}, EIGHT, "dtype 'F33' is unknown; known are BOOL"),
    "a list as dtype": ({"x": entry(["F32"])}, EIGHT, "is unknown"),
    "no shape": ({"x": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT, "must have dtype, shape and data_offsets"),
    "one thing more": ({"x": entry(order="C")}, EIGHT, "and nothing else"),
    "no dictionary": ({"x": 5}, EIGHT, "the header says 5"),
    "metadata of numbers": ({"__metadata__": {"epoch": 5}}, b"", "must be a dictionary of strings"),
    "not JSON": (b"{'x': 1}", b"", "the header is not JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "the header is not JSON"),
    "nested without end": (b'{"x":' + b"[" * 200_000, b"", "the header is not JSON"),
    "endless number": (b'{"x":' + b"1" * 5_000 + b"}", b"", "the header is not JSON"),
    "a list": (b"[]", b"", "must begin with '{'"),
    "begins with a space": (b" {}", b"", "must begin with '{'"),
    "empty header": (b"", b"", "must begin with '{'"),
    "a name twice": (b'{"x": 1, "x": 2}', b"", "names 'x' twice"),
    "a key twice": (b'{"x": {"dtype": "F32", "dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}', b"\0" * 4,
                    "names 'dtype' twice"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_found_out(lie, tmp_path):
    header, data, message = LIES[lie]
    path = write(tmp_path / "lie.safetensors", header, data)
    with pytest.raises(SafetensorsError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "0 bytes; a safetensors file begins with 8"),
    (b"\2\0\0\0\0\0\0", "7 bytes"),
    (struct.pack("<Q", 3) + b"{}", "a header of 3 bytes is announced, but the file ends after 2"),
    (struct.pack("<Q", 2**64 - 1) + b"{}", "at most 100,000,000 are allowed"),
    (struct.pack("<Q", 100_000_001) + b"{}", "at most 100,000,000 are allowed"),
    (struct.pack("<Q", 100_000_000) + b"{}", "announced, but the file ends after 2"),
    (b"<!DOCTYPE html>", "no safetensors file"),
])  # fmt: skip
def test_a_file_cut_off_in_or_before_its_header(content, message, tmp_path):
    path = tmp_path / "short"
    path.write_bytes(content)
    with pytest.raises(SafetensorsError, match=message):
        read(path)


def test_a_real_file_cut_off_anywhere_is_found_out(tmp_path):
    path = tmp_path / "whole"
    library.save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}, path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SafetensorsError):
            read(path)


def test_a_header_changed_in_any_byte_is_an_error_or_still_inside_the_file(tmp_path):
    """What still parses must lie within the file and have the size that it says: never a bad read."""
    path = tmp_path / "changed"
    library.save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}, path)
    whole = bytearray(path.read_bytes())
    rng = np.random.default_rng(1)
    length = int.from_bytes(whole[:8], "little")
    for position in range(8 + length):
        changed = bytearray(whole)
        changed[position] = rng.integers(256)
        path.write_bytes(changed)
        try:
            found = read(path)
        except SafetensorsError:
            continue
        for name, one in found.entries.items():
            assert 0 <= one.begin <= one.end <= len(whole) - 8
            assert found[name].nbytes == one.nbytes


def test_every_dtype_of_the_format_has_a_size():
    assert {name: dtype.itemsize for name, dtype in ours.DTYPES.items()} == {
        "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
        "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
    }  # fmt: skip


@pytest.mark.parametrize("repeated", [0, 39_999])
def test_a_name_twice_among_very_many_is_found_at_once(tmp_path, repeated):
    """The search takes each name once: two seconds would be a search that compares each with each other."""
    names = [f"h.{n}.weight" for n in range(40_000)] + [f"h.{repeated}.weight"]
    header = "{" + ", ".join(f'"{name}": 1' for name in names) + "}"
    began = time.perf_counter()
    with pytest.raises(SafetensorsError, match=f"the header names 'h.{repeated}.weight' twice"):
        read(write(tmp_path / "many", header.encode()))
    assert time.perf_counter() - began < 2


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(SafetensorsError, match=f"{tmp_path} is no file"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")
    with pytest.raises(SafetensorsError, match="cannot be read: File name too long"):
        read(tmp_path / ("x" * 300))
