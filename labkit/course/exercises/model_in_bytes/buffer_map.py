"""One buffer for several files

`files` is a list of safetensors files, each as bytes: 8 bytes with the length of the header, lowest byte first, the
header in JSON, and then the values. All tensors of all files are to be copied into one buffer, in the order of their
names, as `sorted` gives it. The first begins at 0, and each of the others where the one before ends, rounded up to a
multiple of 16.

Return an array with one row of four integers per tensor, in that order: the index of its file, its first byte in that
file (counted from the start of the file), its length in bytes, and its offset in the buffer. For example, if file 0 has
a header of 100 bytes with `"b"` at the `data_offsets` [0, 20], and file 1 a header of 60 bytes with `"a"` at [0, 6],
the result is

```
[[1,  68,  6,  0],
 [0, 108, 20, 16]]
```

A header may list its tensors in any order, a tensor may have no elements, and `__metadata__` is not a tensor. Read only
the headers: in one of the checks the tensors have billions of bytes, and the file ends after its header.
"""

HINTS = ("For one tensor of one file: which of the four integers follow from that file alone, and which one depends on "
         "the tensors before it in the buffer?",
         "Collect the headers in one dictionary from names to (file, first byte, length); data_offsets count from the "
         "end of the header. Then go through the sorted names, and advance the offset by each length, rounded up to a "
         "multiple of 16.",
         "found[name] = (number, 8 + length + begin, end - begin); then for name in sorted(found): the row is "
         "(*found[name], offset), and offset += -(-found[name][2] // 16) * 16.")
POINTS = 2
NEEDS = ("read_tensor",)

import json

import numpy as np


# %%
def buffer_map(files):
    ### BEGIN SOLUTION
    found = {}
    for number, file in enumerate(files):
        length = int.from_bytes(file[:8], "little")
        for name, entry in json.loads(file[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = (number, 8 + length + begin, end - begin)
    rows, offset = [], 0
    for name in sorted(found):
        rows.append((*found[name], offset))
        offset += -(-found[name][2] // 16) * 16
    return np.array(rows)
    ### END SOLUTION

# %% [check]
from math import prod

from labkit.course.exercises import Edit, FunctionExercise, Reach
from labkit.models.blob import layout


def _file(rng, tensors: dict, order) -> bytes:
    """A safetensors file. tensors: name -> (dtype, shape); their data lie in `order`."""
    sizes = {name: prod(shape) * {"BF16": 2, "F32": 4, "U8": 1}[dtype] for name, (dtype, shape) in tensors.items()}
    places, end = {}, 0
    for name in order:
        places[name] = [end, end + sizes[name]]
        end += sizes[name]
    header = {"__metadata__": {"format": "pt"}} if rng.integers(2) else {}
    header |= {name: {"dtype": dtype, "shape": list(shape), "data_offsets": places[name]}
               for name, (dtype, shape) in tensors.items()}
    text = json.dumps(header).encode() + b" " * int(rng.integers(0, 8))
    return len(text).to_bytes(8, "little") + text + b"." * end  # dots, because a verdict shows the file


def _files(rng, count, tensors, dtypes=("BF16", "F32", "U8"), shapes=None, names=None):
    """`count` files with `tensors` tensors each; those of a layer may lie in different files."""
    numbers = rng.permutation(count * tensors)
    files = []
    for file in range(count):
        found = {}
        for number in numbers[file * tensors : (file + 1) * tensors]:
            shape = tuple(int(n) for n in rng.integers(1, 8, rng.integers(0, 3))) if shapes is None else shapes
            found[f"layers.{number}.weight"] = str(rng.choice(dtypes)), shape
        files.append(_file(rng, found, rng.permutation(list(found))))
    return (files,)


def _entries(file: bytes) -> tuple[int, dict]:
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    header.pop("__metadata__", None)
    return 8 + length, header


def _map(files):
    found = {}
    for number, file in enumerate(files):
        start, header = _entries(file)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            found[name] = number, start + begin, end - begin
    names = sorted(found)
    places, _ = layout({name: (found[name][2],) for name in names}, dict.fromkeys(names, np.dtype(np.uint8)))
    return np.array([(*found[name], places[name].offset) for name in names])


def _all_like(count, tensors, **options):
    return lambda rng, files: _files(rng, count, tensors, **options)


def _without_numbers(rng, files):
    """Tensors of some GB each, in files that end after their headers."""
    large = {f"layers.{k}.weight": {"dtype": "BF16", "shape": [40_000, 40_000 + k], "data_offsets": [
        80_000 * (40_000 * k + k * (k - 1) // 2), 80_000 * (40_000 * (k + 1) + k * (k + 1) // 2)]} for k in range(3)}
    text = json.dumps(large).encode()
    return ([len(text).to_bytes(8, "little") + text],)


def buffer_map_by_shape(files):
    rows, offset, found = [], 0, {}
    for number, file in enumerate(files):
        start, header = _entries(file)
        for name, entry in header.items():
            found[name] = number, start + entry["data_offsets"][0], 2 * prod(entry["shape"])
    for name in sorted(found):
        rows.append((*found[name], offset))
        offset += -(-found[name][2] // 16) * 16
    return np.array(rows)


EXERCISE = FunctionExercise(
    name="buffer_map",
    reference=_map,
    inputs=_files,
    sizes=tuple({"count": count, "tensors": tensors} for count, tensors in ((1, 1), (1, 3), (2, 4), (3, 6))),
    random_size=lambda rng: {"count": int(rng.integers(2, 5)), "tensors": int(rng.integers(2, 8))},
    domain=(Reach("every tensor's size in bytes is a multiple of 16", _all_like(2, 4, dtypes=("BF16",), shapes=(4, 8))),
            Reach("no tensor's size in bytes is a multiple of 16", _all_like(2, 4, dtypes=("U8",), shapes=(5,))),
            Reach("every tensor has one byte more than a multiple of 16",
                  _all_like(2, 3, dtypes=("U8",), shapes=(17,))),
            Reach("every tensor has a single element and no axes", _all_like(2, 4, dtypes=("BF16",), shapes=())),
            Reach("tensors have no elements", _all_like(2, 3, shapes=(0, 3))),
            Reach("the first file has no tensors", lambda rng, files: ([_file(rng, {}, []), *files],)),
            Reach("there is a single file", _all_like(1, 5)),
            Reach("a tensor has more than 2 GB, and the file ends after its header", _without_numbers)),
    wrong={
        "the 8 bytes of the length are forgotten": Edit("8 + length + begin", "length + begin"),
        "offsets count from the end of the header, not from the file's first byte": Edit("8 + length + begin", "begin"),
        "the length of the header is read with the highest byte first": Edit('"little"', '"big"'),
        "`data_offsets` are taken for a beginning and a length": Edit("end - begin", "end"),
        "tensors follow each other in the buffer without alignment":
            Edit("-(-found[name][2] // 16) * 16", "found[name][2]"),
        "16 bytes are skipped even where a tensor ends at a multiple of 16":
            Edit("-(-found[name][2] // 16) * 16", "(found[name][2] // 16 + 1) * 16"),
        "rounded down: a tensor begins before the previous one ends": Edit("-(-found[name][2] // 16) * 16",
                                                                           "found[name][2] // 16 * 16"),
        "the order is that of the files, not of the names": Edit("sorted(found)", "found"),
        "`__metadata__` counts as a tensor": Edit('if name != "__metadata__":', "if True:"),
        "the length comes from the shape, at two bytes per value": buffer_map_by_shape,
    },
)
