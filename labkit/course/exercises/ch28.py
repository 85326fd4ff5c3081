"""The exercises of lesson 28: one buffer for several files, the time of a token, and the embedding of a Llama.

Sizes: count files of so many tensors; T tokens of a vocabulary of V, each C wide.
"""

import json
from collections import Counter
from math import prod

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, on_the_device
from labkit.course.exercises.domains import MOVED, NEGATIVE, ZEROS, of_bfloat16
from labkit.kernels.dtypes import bfloat16_of
from labkit.kernels.op import uniform
from labkit.models.blob import layout
from labkit.models.llama import Config

NAN = 0x7FC0  # of bfloat16

# --- One buffer for several files -------------------------------------------------------------------------------------


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


BUFFER_MAP = FunctionExercise(
    name="buffer_map",
    reference=_map,
    inputs=_files,
    sizes=tuple({"count": count, "tensors": tensors} for count, tensors in ((1, 1), (1, 3), (2, 4), (3, 6))),
    random_size=lambda rng: {"count": int(rng.integers(2, 5)), "tensors": int(rng.integers(2, 8))},
    domain=(Reach("every tensor's bytes are a multiple of 16", _all_like(2, 4, dtypes=("BF16",), shapes=(4, 8))),
            Reach("no tensor's bytes are a multiple of 16", _all_like(2, 4, dtypes=("U8",), shapes=(5,))),
            Reach("every tensor has a byte more than a multiple of 16", _all_like(2, 3, dtypes=("U8",), shapes=(17,))),
            Reach("every tensor has one number and no axis", _all_like(2, 4, dtypes=("BF16",), shapes=())),
            Reach("tensors have no elements", _all_like(2, 3, shapes=(0, 3))),
            Reach("the first file has no tensors", lambda rng, files: ([_file(rng, {}, []), *files],)),
            Reach("there is a single file", _all_like(1, 5)),
            Reach("a tensor has more than 2 GB, and the file ends after its header", _without_numbers)),
    wrong={
        "the 8 bytes of the length are forgotten": Edit("8 + length + begin", "length + begin"),
        "offsets count from the end of the header, not from the file's first byte": Edit("8 + length + begin", "begin"),
        "the length of the header is read with the highest byte first": Edit('"little"', '"big"'),
        "`data_offsets` are taken for a begin and a length": Edit("end - begin", "end"),
        "tensors lie side by side in the buffer, not aligned": Edit("-(-found[name][2] // 16) * 16", "found[name][2]"),
        "16 bytes lie between tensors even where one ends at a multiple of 16":
            Edit("-(-found[name][2] // 16) * 16", "(found[name][2] // 16 + 1) * 16"),
        "rounded down: a tensor begins before the last one ends": Edit("-(-found[name][2] // 16) * 16",
                                                                      "found[name][2] // 16 * 16"),
        "the order is that of the files, not of the names": Edit("sorted(found)", "found"),
        "`__metadata__` counts as a tensor": Edit('if name != "__metadata__":', "if True:"),
        "the length comes from the shape, at two bytes a number": buffer_map_by_shape,
    },
)

# --- Predict: the time of a token -------------------------------------------------------------------------------------

TINY_LLAMA = Config(vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                    num_attention_heads=32, num_key_value_heads=4)


def _token(config=TINY_LLAMA) -> dict:
    table = config.vocab_size * config.hidden_size
    read = 2 * (config.parameters - table + config.hidden_size)
    return {"layer_parameters": sum(map(prod, config.layer_parameters.values())), "parameters": config.parameters,
            "bytes_read": read,
            "cache_bytes": 2 * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim,
            "microseconds": read // 4_000_000}


PREDICT_TOKEN = PredictionExercise(
    name="predict_token",
    truth=_token,
    how={"layer_parameters": "Queries and the projection back are 2,048 by 2,048, keys and values 256 by 2,048, the "
                             "three matrices of the MLP 5,632 by 2,048. Then two norms.",
         "parameters": "22 layers, the embedding table and the head of 32,000 by 2,048 each, and the last norm.",
         "bytes_read": "All parameters except the embedding table, plus one row of it; two bytes each.",
         "cache_bytes": "In each layer a key and a value for each of the 4 heads, 64 numbers of two bytes.",
         "microseconds": "4,000 GB a second are four million bytes a microsecond."},
    wrong={"keys and values were counted for 32 heads; 4 are shared by all": {
               "layer_parameters": 51384320, "parameters": 1261529088, "bytes_read": 2391990272, "cache_bytes": 180224,
               "microseconds": 597},
           "the MLP was counted with two matrices; gate, up and down are three": {
               "layer_parameters": 32509952, "parameters": 846292992, "bytes_read": 1561518080, "microseconds": 390},
           "the head was taken for the embedding table: here they are two": {
               "parameters": 1034512384, "bytes_read": 2069024768},
           "the row of the embedding was left out": {"bytes_read": 2069024768},
           "the embedding table was read whole": {"bytes_read": 2200096768, "microseconds": 550},
           "four bytes were counted for a number": {
               "bytes_read": 4138057728, "cache_bytes": 45056, "microseconds": 1034},
           "keys were counted for the cache, and values left out": {"cache_bytes": 11264},
           "the cache of one layer alone was counted": {"cache_bytes": 1024}},
)

# --- From a blank page: rows of a table -------------------------------------------------------------------------------


def _rows(ids, table):
    known = (ids >= 0) & (ids < len(table))
    return np.where(known[:, None], table[np.where(known, ids, 0)], np.uint16(NAN))


def _embed_inputs(rng, T, V, C):
    """Some ids are not rows of the table; none is V, which has a case of its own."""
    ids = rng.integers(-2, V + 3, T)
    return np.where(ids == V, V + 3, ids).astype(np.int32), bfloat16_of(uniform(rng, V, C))


def _ids(choose):
    return lambda rng, ids, table: (choose(rng, ids.size, len(table)).astype(np.int32), table)


@asks("There is one launch, and a thread copies 64 numbers at most.")
def _one_launch(run):
    """On the device, in one launch, with at most 64 numbers for each thread."""
    if fault := on_the_device(run):
        return fault
    if len(run.launches) > 1:
        return f"There are {len(run.launches)} launches, and one is enough for all tokens."
    threads = prod(run.launches[0].grid) * prod(run.launches[0].block)
    numbers = run.size["T"] * run.size["C"]
    if threads * 64 < numbers:
        return (f"{threads:,} threads move {numbers:,} numbers. Spread the work over more threads: at most 64 "
                f"numbers for each.")
    if run.size["C"] <= 64:
        return None
    stores = Counter(thread for cells in run.launches[0].observed().touched.values()
                     for (thread, _), kinds in cells.items() if "store" in kinds)
    if (most := max(stores.values(), default=0)) > 64:
        return (f"A thread stores {most:,} numbers, and asked for are 64 at most. Does each thread begin with its own "
                "number?")
    return None


@cuda.jit
def embed_column_kernel(ids, table, out):
    t, col, token = cuda.blockIdx.x, cuda.threadIdx.x, ids[cuda.blockIdx.x]
    out[t, col] = table[token, col] if token >= 0 and token < table.shape[0] else NAN


def embed_rows_thread_a_column(ids, table, out):
    embed_column_kernel[ids.size, out.shape[1]](ids, table, out)


def embed_rows_first_1024(ids, table, out):
    embed_column_kernel[ids.size, min(out.shape[1], 1024)](ids, table, out)


@cuda.jit
def embed_alone_kernel(ids, table, out):
    for t in range(ids.size):
        for col in range(out.shape[1]):
            token = ids[t]
            out[t, col] = table[token, col] if token >= 0 and token < table.shape[0] else NAN


def embed_rows_alone(ids, table, out):
    embed_alone_kernel[1, 1](ids, table, out)


def embed_rows_on_the_host(ids, table, out):
    out.copy_to_device(_rows(ids.copy_to_host(), table.copy_to_host()))


@cuda.jit
def embed_one_row_kernel(token, t, table, out):
    for col in range(cuda.threadIdx.x, out.shape[1], 256):
        out[t, col] = table[token, col] if token >= 0 and token < table.shape[0] else NAN


def embed_rows_a_launch_each(ids, table, out):
    for t, token in enumerate(ids.copy_to_host()):
        embed_one_row_kernel[1, 256](token, t, table, out)


EMBED_ROWS = FunctionExercise(
    name="embed_rows",
    reference=_rows,
    inputs=_embed_inputs,
    shape=lambda T, V, C: (T, C),
    dtype=np.uint16,
    sizes=tuple({"T": T, "V": V, "C": C} for T, V, C in (
        (1, 3, 1), (3, 5, 13), (40, 9, 33), (2, 7, 256), (3, 4, 1025), (2, 4, 2048), (2, 3, 4096))),
    random_size=lambda rng: {"T": int(rng.integers(2, 20)), "V": int(rng.integers(2, 30)),
                             "C": int(rng.integers(200, 600))},
    demand=_one_launch,
    domain=(Reach("every id is a row of the table", _ids(lambda rng, T, V: rng.integers(0, V, T))),
            Reach("all ids are the table's first row", _ids(lambda rng, T, V: np.zeros(T))),
            Reach("all ids are the table's last row", _ids(lambda rng, T, V: np.full(T, V - 1))),
            Reach("all ids are one more than the table's last row", _ids(lambda rng, T, V: np.full(T, V))),
            Reach("all ids are negative", _ids(lambda rng, T, V: -rng.integers(1, V + 1, T))),
            Reach("ids are the largest and the smallest int32", _ids(lambda rng, T, V: np.resize(
                [2**31 - 1, -(2**31)], T))),
            *of_bfloat16((1,), MOVED, NEGATIVE, ZEROS)),
    wrong={
        "each warp of a block copies the whole row":
            Edit("cuda.threadIdx.x, out.shape[1], 256", "cuda.threadIdx.x % 32, out.shape[1], 32"),
        "a thread for each column: 2,048 are more than a block may have": embed_rows_thread_a_column,
        "1,024 threads and no loop: further columns are never written": embed_rows_first_1024,
        "negative ids are not checked": Edit("token >= 0 and token < table.shape[0]", "token < table.shape[0]"),
        "the id one past the last row counts as a row": Edit("token < table.shape[0]", "token <= table.shape[0]"),
        "ids past the last row are not checked": Edit("token >= 0 and token < table.shape[0]", "token >= 0"),
        "an unknown id leaves its row as it was": Edit(
            "out[t, col] = table[token, col] if known else 0x7FC0",
            "if known:\n"
            "    out[t, col] = table[token, col]"),
        "an unknown id gives zeros": Edit("0x7FC0", "0"),
        "an unknown id gives float16's NaN, and in bfloat16 that is a number": Edit("0x7FC0", "0x7E00"),
        "row t of the table, not row ids[t]": Edit("token = ids[t]", "token = t"),
        "the stride is one more than the block has threads, and columns are left out":
            Edit("out.shape[1], 256)", "out.shape[1], 257)"),
        "one thread copies everything": embed_rows_alone,
        "a launch for each token": embed_rows_a_launch_each,
        "the host gathers the rows": embed_rows_on_the_host,
    },
)

EXERCISES = (BUFFER_MAP, PREDICT_TOKEN, EMBED_ROWS)
