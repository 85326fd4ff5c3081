"""One buffer for all tensors: every number arrives, every tensor begins at a multiple of 16 bytes."""

import json
import struct

import numpy as np
import pytest
from safetensors import numpy as library

from labkit.kernels.arguments import aligned
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.residual_add import residual_add_vectorized
from labkit.models import blob as blobs
from labkit.models.blob import ALIGNMENT, Blob, LazyTensor, layout
from labkit.models.safetensors import read

SHAPES = {"one": (1,), "three": (3,), "matrix": (5, 7), "bytes": (13,), "deep": (2, 3, 4), "scalar": (), "last": (2,)}
DTYPES = {"one": "f4", "three": "f2", "matrix": "f4", "bytes": "u1", "deep": "f8", "scalar": "f4", "last": "i8"}


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {name: (100 * rng.standard_normal(shape)).astype(DTYPES[name]) if shape else np.array(1.5, np.float32)
            for name, shape in SHAPES.items()}


def test_every_tensor_arrives(tensors, tmp_path):
    library.save_file(tensors, tmp_path / "x.safetensors")
    for source in (tensors, read(tmp_path / "x.safetensors")):
        blob = Blob(source)
        assert set(blob) == set(tensors)
        for name, tensor in tensors.items():
            assert blob[name].dtype == tensor.dtype
            assert aligned(blob[name]), name
            np.testing.assert_array_equal(blob[name].copy_to_host().reshape(tensor.shape), tensor, err_msg=name)


def test_views_are_views(tensors):
    blob = Blob(tensors)
    matrix = blob["matrix"]
    residual_add_vectorized(matrix, matrix, matrix)
    place = blob.entries["matrix"]
    part = blob.buffer.copy_to_host()[place.offset : place.offset + place.nbytes].view(np.float32)
    np.testing.assert_array_equal(part.reshape(place.shape), 2 * tensors["matrix"])
    assert blob["matrix"] is matrix


def test_places_do_not_overlap():
    entries, size = layout(SHAPES, {name: np.dtype(dtype) for name, dtype in DTYPES.items()})
    end = 0
    for place in entries.values():
        assert place.offset % ALIGNMENT == 0 and 0 <= place.offset - end < ALIGNMENT
        end = place.offset + place.nbytes
    assert end == size


@pytest.mark.parametrize(("value", "first"), [(np.inf, "inf"), (-np.inf, "-inf"), (np.nan, "nan")])
def test_bfloat16_that_is_no_number_is_found(value, first):
    numbers = np.ones((3, 5), np.float32)
    numbers[1, 2] = value
    with pytest.raises(ValueError, match=f"w: 1 of its 15 numbers are not finite in bfloat16, the first is {first}"):
        Blob({"w": numbers}, dtype=np.uint16, finite=True)
    numbers[1, 2] = np.finfo(np.float32).tiny
    Blob({"w": numbers, "none": numbers[:0]}, dtype=np.uint16, finite=True)


def test_floats_are_converted_and_integers_are_not(tensors):
    blob = Blob(tensors, dtype=np.float32)
    assert {name: str(blob[name].dtype) for name in blob} == {
        "one": "float32", "three": "float32", "matrix": "float32", "bytes": "uint8", "deep": "float32",
        "scalar": "float32", "last": "int64"}  # fmt: skip
    np.testing.assert_array_equal(blob["deep"].copy_to_host(), tensors["deep"].astype(np.float32))


def test_bfloat16_becomes_float32_and_back(tmp_path):
    values = np.array([1.0, -2.5, 3.140625, 1e30], np.float32)
    bits = bfloat16_of(values)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "brain.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bits.tobytes())
    wide = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(Blob(read(path), dtype=np.float32)["x"].copy_to_host(), wide)
    for dtype in (None, np.uint16):
        np.testing.assert_array_equal(Blob(read(path), dtype=dtype)["x"].copy_to_host(), bits)
    np.testing.assert_array_equal(Blob({"x": values}, dtype=np.uint16)["x"].copy_to_host(), bits)


def test_some_of_the_tensors_in_another_order(tensors):
    blob = Blob(tensors, names=["last", "one"])
    assert list(blob) == ["last", "one"] and blob.nbytes == 16 + 4
    with pytest.raises(KeyError, match="1 tensors are not there: two"):
        Blob(tensors, names=["one", "two"])
    with pytest.raises(KeyError, match="no tensor is called 'three'; there are 2, the first are last, one"):
        blob["three"]


def test_no_tensors_and_empty_ones():
    assert len(Blob({})) == 0
    blob = Blob({"empty": np.zeros((0, 3), np.float32), "one": np.ones(1, np.float32)})
    assert blob["one"].copy_to_host() == 1
    with pytest.raises(ValueError, match=r"empty has shape \(0, 3\), no elements"):
        blob["empty"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numbers_that_are_not_finite_are_refused_where_that_is_asked(dtype):
    tensors = {"a": np.array([3e38, 3e38, -3e38], np.float32)[: 3 if dtype == np.float32 else 0],
               "b": np.array([[1, np.nan], [np.inf, 2]], np.float32)}
    with pytest.raises(ValueError, match=f"b: 2 of its 4 numbers are not finite in {dtype.__name__}, the fi"):
        Blob(tensors, dtype=dtype, finite=True)
    assert np.isnan(Blob(tensors, dtype=dtype)["b"].copy_to_host()).sum() == 1
    assert Blob({"a": tensors["a"]}, dtype=dtype, finite=True).entries["a"].dtype == dtype


def test_what_is_made_later_is_made_once_and_checked():
    made = []

    def make():
        made.append(1)
        return np.arange(6, dtype=np.float32).reshape(2, 3)

    later = LazyTensor((2, 3), np.dtype(np.float32), make)
    blob = Blob({"a": np.ones(5, np.float32), "b": later, "c": np.array(7, np.float32)}, dtype=np.uint16, finite=True)
    assert made == [1] and blob.entries["b"].offset == 16 and blob.nbytes == 34
    np.testing.assert_array_equal(blob["b"].copy_to_host(), bfloat16_of(np.arange(6.0).reshape(2, 3)))
    host = blob.buffer.copy_to_host()
    assert (host[10:16] == 0).all() and (host[28:32] == 0).all(), "zeros between the tensors"
    wrong = LazyTensor((2,), np.dtype(np.float32), lambda: np.array([1, np.inf], np.float32))
    with pytest.raises(ValueError, match="b: 1 of its 2 numbers are not finite"):
        Blob({"b": wrong}, finite=True)


def test_a_tensor_of_many_pieces_arrives_and_is_checked_as_one(monkeypatch):
    monkeypatch.setattr(blobs, "PIECE", 64)  # bytes
    values = np.random.default_rng(1).standard_normal((7, 143)).astype(np.float32)
    blob = Blob({"few": values[:1, :3], "many": values}, finite=True)
    np.testing.assert_array_equal(blob["few"].copy_to_host(), values[:1, :3])
    np.testing.assert_array_equal(blob["many"].copy_to_host(), values)
    values[[0, 3, 6], [1, 50, 142]] = np.nan
    with pytest.raises(ValueError, match="many: 3 of its 1,001 numbers are not finite in float32, the first is nan"):
        Blob({"many": values}, finite=True)
