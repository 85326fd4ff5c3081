"""The exercises of lesson 21: a safetensors file by hand, where tensors lie in a file and on the device, and the first
of the largest.

Sizes are the numbers of tensors, rows and columns of a file; R rows and C columns.
"""

import json
import math

import numpy as np
from numba import float32, int32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, shuffles
from labkit.course.exercises.domains import (
    EQUAL,
    FAR_ABOVE_ZERO,
    LARGEST_APART,
    LOWEST,
    ONE_FAR_ABOVE,
    TIES,
    ZEROS,
    largest_at,
    of,
)
from labkit.kernels.argmax import argmax_reference

# --- A tensor of a file --------------------------------------------------------------------------------------------


def _file(rng, tensors, rows, cols):
    """A safetensors file in which the last tensor of the header lies first; and the name of one of its tensors."""
    names = [f"h.{k}.weight" for k in range(tensors)]
    arrays = {name: rng.standard_normal((rows + k, cols), np.float32) for k, name in enumerate(names)}
    places, end = {}, 0
    for name in reversed(names):
        places[name] = [end, end + arrays[name].nbytes]
        end += arrays[name].nbytes
    header = {"__metadata__": {"format": "pt"}}
    header |= {name: {"dtype": "F32", "shape": list(arrays[name].shape), "data_offsets": places[name]}
               for name in names}
    text = json.dumps(header).encode()
    data = b"".join(arrays[name].tobytes() for name in reversed(names))
    raw = np.frombuffer(len(text).to_bytes(8, "little") + text + data, np.uint8)
    return raw, names[int(rng.integers(tensors))]


def _header(raw):
    length = int.from_bytes(raw[:8].tobytes(), "little")
    return length, json.loads(raw[8 : 8 + length].tobytes())


def _part(raw, begin, end, shape):
    return np.frombuffer(raw[begin:end].tobytes(), np.float32).reshape(shape)


def _tensor(raw, name):
    length, header = _header(raw)
    begin, end = header[name]["data_offsets"]
    return _part(raw, 8 + length + begin, 8 + length + end, header[name]["shape"])


def _named(number):
    return lambda rng, raw, name: (raw, f"h.{number}.weight")


def _with_spaces(rng, raw, name):
    """As the writers of files fill a header up to a multiple of 8."""
    length = int.from_bytes(raw[:8].tobytes(), "little")
    header, data = raw[8 : 8 + length].tobytes() + 5 * b" ", raw[8 + length :].tobytes()
    return np.frombuffer(len(header).to_bytes(8, "little") + header + data, np.uint8), name


def tensor_of_begin_and_length(raw, name):
    length, header = _header(raw)
    begin, count = header[name]["data_offsets"]
    return _part(raw, 8 + length + begin, 8 + length + begin + count, header[name]["shape"])


def tensor_behind_the_text(raw, name):
    length, header = _header(raw)
    begin, end = header[name]["data_offsets"]
    start = 8 + len(raw[8 : 8 + length].tobytes().rstrip())
    return _part(raw, start + begin, start + end, header[name]["shape"])


def tensor_from_the_files_start(raw, name):
    _, header = _header(raw)
    return _part(raw, *header[name]["data_offsets"], header[name]["shape"])


def tensor_without_the_eight(raw, name):
    length, header = _header(raw)
    begin, end = header[name]["data_offsets"]
    return _part(raw, length + begin, length + end, header[name]["shape"])


def tensor_flat(raw, name):
    return _tensor(raw, name).reshape(-1)


def tensor_of_doubles(raw, name):
    length, header = _header(raw)
    begin, end = header[name]["data_offsets"]
    return np.frombuffer(raw[8 + length + begin : 8 + length + end].tobytes()).reshape(header[name]["shape"])


def tensor_in_the_headers_order(raw, name):
    length, header = _header(raw)
    begin = 8 + length
    for other, entry in header.items():
        if other == "__metadata__":
            continue
        end = begin + 4 * math.prod(entry["shape"])
        if other == name:
            return _part(raw, begin, end, entry["shape"])
        begin = end


def tensor_high_byte_first(raw, name):
    length = int.from_bytes(raw[:8].tobytes(), "big")
    header = json.loads(raw[8 : 8 + length].tobytes())
    begin, end = header[name]["data_offsets"]
    return _part(raw, 8 + length + begin, 8 + length + end, header[name]["shape"])


READ_TENSOR = FunctionExercise(
    name="read_tensor",
    reference=_tensor,
    inputs=_file,
    sizes=tuple({"tensors": n, "rows": r, "cols": c} for n, r, c in ((2, 1, 3), (3, 2, 5), (5, 1, 1), (9, 4, 7))),
    domain=(*(Reach(f"the {words} of three tensors is asked for", _named(number), {"tensors": 3, "rows": 2, "cols": 5})
              for words, number in (("first", 0), ("second", 1), ("last", 2))),
            Reach("the header ends with spaces, which belong to it", _with_spaces)),
    wrong={"the offsets are counted from the first byte of the file": tensor_from_the_files_start,
           "the 8 bytes before the header are not counted": tensor_without_the_eight,
           "the numbers are right, but the shape is missing": tensor_flat,
           "np.frombuffer takes float64 unless it is given np.float32": tensor_of_doubles,
           "the header's order is taken for the order of the data": tensor_in_the_headers_order,
           "the header's size is read with its highest byte first": tensor_high_byte_first,
           "data_offsets are taken for begin and length; they are begin and end": tensor_of_begin_and_length,
           "the data are taken to begin behind the header's text, and spaces may follow it": tensor_behind_the_text},
)

# --- Predict: where a tensor lies ------------------------------------------------------------------------------------


def _places():
    bias, weight, scale = 77, 77 * 50, 5
    begin = 8 + 248 + 2 * bias
    return {"file_begin": begin, "file_bytes": begin + 2 * (weight + scale), "buffer_begin": -(-4 * bias // 16) * 16,
            "columns": len(range(250, 1000, 256))}


PREDICT_PLACES = PredictionExercise(
    name="predict_places",
    truth=_places,
    how={"file_begin": "8 bytes, 248 of header, and 77 numbers of the bias at 2 bytes each: 8 + 248 + 154.",
         "file_bytes": "The weight has 3,850 numbers and the scale 5, 2 bytes each: 410 + 7,700 + 10, and no gaps.",
         "buffer_begin": "The bias takes 77 * 4 = 308 bytes on the device; the next multiple of 16 is 320.",
         "columns": "Columns 250, 506 and 762; the next one would be 1,018, and the last column is 999."},
    wrong={"the 8 bytes before the header are not counted": {"file_begin": 402, "file_bytes": 8112},
           "the offsets are counted from the first byte of the file": {"file_begin": 154, "file_bytes": 7864},
           "4 bytes a number in the file; float16 has 2": {"file_begin": 564, "file_bytes": 15984},
           "the weight is put directly behind the bias, not at a multiple of 16": {"buffer_begin": 308},
           "the bias keeps its 2 bytes a number on the device": {"buffer_begin": 160},
           "the row is not a multiple of 256 long: the last round has no column for this thread": {"columns": 4}},
)

# --- From a blank page: the first of the largest ----------------------------------------------------------------------


def _few_values(rng, R, C):
    """Negative whole numbers, few of them, so that the largest of a row comes several times."""
    return (rng.integers(-9, -4, (R, C)).astype(np.float32),)


@cuda.jit
def largest_by_one_lane(x, out):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    if lane == 0:
        at = int32(0)
        for col in range(1, x.shape[1]):
            if x[row, col] > x[row, at]:
                at = int32(col)
        out[row] = at


@cuda.jit
def largest_without_shuffles(x, out):
    found = cuda.shared.array((32, 2), float32)
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    largest, at = float32(-np.inf), int32(0x7FFFFFF)
    for col in range(lane, x.shape[1], 32):
        if x[row, col] > largest:
            largest, at = x[row, col], int32(col)
    found[lane, 0], found[lane, 1] = largest, float32(at)
    cuda.syncwarp()
    if lane == 0:
        for other in range(1, 32):
            if found[other, 0] > largest or (found[other, 0] == largest and int32(found[other, 1]) < at):
                largest, at = found[other, 0], int32(found[other, 1])
        out[row] = at


@asks("All lanes of a warp look through its row.", shuffles)
def _all_lanes_look(report) -> str | None:
    requests = report.counts["global_requests"]
    if requests <= 12 * 12:  # 3 for 70 columns, with room for those who read a column again
        return None
    return (f"The launch asks memory {requests} times for 12 rows of 70. If each of the 32 "
            "lanes takes every 32nd column, 3 times are enough for a row.")


FIRST_LARGEST = KernelExercise(
    name="first_largest",
    reference=argmax_reference,
    inputs=_few_values,
    shape=lambda R, C: (R,),
    dtype=np.int32,
    sizes=tuple({"R": R, "C": C} for R, C in ((12, 70), (14, 33), (13, 1), (16, 260), (20, 31))),
    random_size=lambda rng: {"R": int(rng.integers(15, 25)), "C": int(rng.integers(2, 300))},
    observe_sizes=({"R": 12, "C": 70},),
    launch=lambda R, C: (R, 32),
    demand=_all_lanes_look,
    domain=(*of(0, EQUAL, LOWEST, TIES, ZEROS, ONE_FAR_ABOVE, FAR_ABOVE_ZERO),
            *of(0, largest_at(32), LARGEST_APART, at={"R": 12, "C": 70})),
    wrong={
        "of equal numbers the last is taken":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(-np.inf), int32(-1)",
                 "if x[row, col] > largest:", "if x[row, col] >= largest:",
                 "other_at < at", "other_at > at"),
        "the search begins at 0, and all of these are less":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(0.0), int32(0)"),
        "the lanes exchange the values, but not where they were":
            Edit("other = cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance)\n"
                 "other_at = cuda.shfl_xor_sync(0xFFFFFFFF, at, distance)\n"
                 "if other > largest or (other == largest and other_at < at):\n"
                 "    largest, at = other, other_at",
                 "largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, distance))"),
        "between lanes, equal numbers are decided by the lane and not by the column":
            Edit("if other > largest or (other == largest and other_at < at):", "if other > largest:"),
        "between lanes, the other lane's column is taken when the numbers are equal":
            Edit("largest, at = float32(-np.inf), int32(0x7FFFFFFF)", "largest, at = float32(-np.inf), int32(0)",
                 "if other > largest or (other == largest and other_at < at):", "if other >= largest:"),
        "one lane goes through the whole row, and 31 wait": largest_by_one_lane,
        "the lanes' results are joined by one lane, through shared memory": largest_without_shuffles,
        "the last shuffle, with the neighbour, is missing":
            Edit("for distance in (16, 8, 4, 2, 1):", "for distance in (16, 8, 4, 2):"),
    },
)

EXERCISES = (READ_TENSOR, PREDICT_PLACES, FIRST_LARGEST)
