"""A tensor of a file

`raw` is a safetensors file, byte by byte: an array of `uint8`. Its first 8 bytes are the size of the header, lowest
byte first. Then come the header in JSON and the data. Return the tensor called `name` as an array of float32 with its
shape. All tensors here are F32. `data_offsets` are counted from the end of the header, and the data need not be in the
order of the header. `raw[a:b].tobytes()` gives bytes, which `json.loads`, `int.from_bytes` and `np.frombuffer` accept.
"""

HINTS = ("Where does the header end, counted from the first byte of the file? The offsets are counted from there.",
         'length = int.from_bytes(raw[:8].tobytes(), "little"). The header is raw[8 : 8 + length], the data begin at '
         "8 + length. JSON gives a dictionary: look up the name.",
         'begin, end = entry["data_offsets"]; then np.frombuffer(raw[8 + length + begin : 8 + length + '
         'end].tobytes(), np.float32).reshape(entry["shape"]).')
POINTS = 2

import json

import numpy as np


# %%
def read_tensor(raw, name):
    ### BEGIN SOLUTION
    length = int.from_bytes(raw[:8].tobytes(), "little")
    entry = json.loads(raw[8 : 8 + length].tobytes())[name]
    begin, end = entry["data_offsets"]
    data = raw[8 + length :]
    return np.frombuffer(data[begin:end].tobytes(), np.float32).reshape(entry["shape"])
    ### END SOLUTION

# %% [check]
import math

from labkit.course.exercises import Edit, FunctionExercise, Reach


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


EXERCISE = FunctionExercise(
    name="read_tensor",
    reference=_tensor,
    inputs=_file,
    sizes=tuple({"tensors": n, "rows": r, "cols": c} for n, r, c in ((2, 1, 3), (3, 2, 5), (5, 1, 1), (9, 4, 7))),
    domain=(*(Reach(f"the {words} of three tensors is asked for", _named(number), {"tensors": 3, "rows": 2, "cols": 5})
              for words, number in (("first", 0), ("second", 1), ("last", 2))),
            Reach("the header ends with spaces, which belong to it", _with_spaces)),
    wrong={"the offsets are counted from the first byte of the file": Edit("raw[8 + length :]", "raw"),
           "the 8 bytes before the header are not counted": Edit("raw[8 + length :]", "raw[length:]"),
           "the elements are right, but the shape is missing": Edit('.reshape(entry["shape"])', ""),
           "np.frombuffer reads float64 unless it is given np.float32": Edit(", np.float32)", ")"),
           "the data are read in the order of the header": tensor_in_the_headers_order,
           "the header's size is read with its highest byte first": Edit('"little"', '"big"'),
           "data_offsets are read as begin and length; they are begin and end":
               Edit("data[begin:end]", "data[begin : begin + end]"),
           "the data are read from the end of the header's text, but spaces may follow it":
               Edit("raw[8 + length :]", "raw[8 + len(raw[8 : 8 + length].tobytes().rstrip()) :]")},
)
