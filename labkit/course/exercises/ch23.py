"""The exercises of lesson 23: two bfloat16 in a word, eight in a load, accumulators, the map of one buffer for several
files, the time of a token, and the embedding of a Llama.

Sizes: n numbers; R rows of C columns; T tokens of a vocabulary of V, each C wide; count files of so many tensors.
"""

import json
from math import prod

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import on_the_device, shuffles
from labkit.course.exercises.domains import EQUAL, HUGE_AND_TINY, MOVED, NEGATIVE, ONE_FAR_ABOVE, POSITIVE, ZEROS
from labkit.kernels.dtypes import bfloat16_of, float32_of
from labkit.kernels.elements import bfloat16_number
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import EPS32
from labkit.models.blob import layout
from labkit.models.llama import Config

NAN = 0x7FC0


def of_bfloat16(numbers, *properties):
    """As domains.of, of arrays of uint16 that hold bfloat16."""
    def turn(each):
        return lambda rng, *inputs: tuple(
            bfloat16_of(each.values(rng, value)) if number in numbers else value for number, value in enumerate(inputs))

    return tuple(Reach(each.words, turn(each)) for each in properties)


# --- Two in a word ----------------------------------------------------------------------------------------------------


def _packed(bits):
    values = bits.view(np.float32)
    return np.where(np.isnan(values), np.uint16(NAN), bfloat16_of(values)).view(np.uint32)


def _patterns(*patterns):
    return lambda rng, bits: (np.resize(rng.permutation(np.array(patterns, np.uint32)), bits.shape),)


def _lower_half(low):
    """Any upper half of a finite number, of either sign, and this lower half."""
    def turn(rng, bits):
        upper = rng.integers(0, 0x7F80, bits.size) | rng.integers(0, 2, bits.size) << 15
        return ((upper << 16 | low).astype(np.uint32),)

    return turn


def _loads_each_once(report):
    loads, numbers = report.counts["global_loads"], PACKED["n"]
    if loads <= numbers:
        return None
    return f"It makes {loads:,} loads for {numbers:,} numbers. Load each number once, into a variable."


PACKED = {"n": 200}

PACK_BFLOAT16 = KernelExercise(
    name="pack_bfloat16",
    reference=_packed,
    inputs=lambda rng, n: uniform(rng, n).view(np.uint32),
    shape=lambda n: (n // 2,),
    dtype=np.uint32,
    sizes=({"n": 2}, {"n": 6}, {"n": 64}, PACKED, {"n": 514}),
    random_size=lambda rng: {"n": 2 * int(rng.integers(10, 200))},
    launch=lambda n: (-(-n // 256), 128),
    observe_sizes=(PACKED,),
    demand=_loads_each_once,
    domain=(Reach("the bits are random", lambda rng, bits: (
                rng.integers(0, 2**32, bits.size, dtype=np.uint32),), PACKED),
            Reach("each number lies in the middle between two bfloat16", _lower_half(0x8000)),
            Reach("each number lies just above the middle", _lower_half(0x8001)),
            Reach("each number lies just below the middle", _lower_half(0x7FFF)),
            Reach("each number is a bfloat16 already", _lower_half(0)),
            Reach("numbers are infinite, 0, -0 or beyond the largest bfloat16", _patterns(
                0x7F800000, 0xFF800000, 0, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF)),
            Reach("numbers are NaN, some with a fraction in the lower half only", _patterns(
                0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F80FFFF, 0x7F808000)),
            Reach("numbers are subnormal", lambda rng, bits: (
                rng.integers(1, 1 << 23, bits.size, dtype=np.uint32),))),
    wrong={
        "truncated: the lower half is cut off": Edit("(u + 0x7FFF + (u >> 16 & 1)) >> 16", "u >> 16"),
        "a tie is always rounded up in magnitude": Edit("0x7FFF + (u >> 16 & 1)", "0x8000"),
        "a tie is always rounded down in magnitude": Edit("0x7FFF + (u >> 16 & 1)", "0x7FFF"),
        "NaN is rounded like a number, and some become infinite or 0": Edit("rounded = 0x7FC0", "pass"),
        "infinity counts as NaN": Edit("> 0x7F800000", ">= 0x7F800000"),
        "a negative NaN is missed: the sign was not masked": Edit("u & 0x7FFFFFFF > 0x7F800000",
                                                                    "u > 0x7F800000 and u < 0x80000000"),
        "negative numbers count as NaN: the sign was not masked": Edit("u & 0x7FFFFFFF", "u"),
        "the first number of a pair is in the high half": Edit("16 * k", "16 * (1 - k)"),
        "numbers half an array apart share a word": Edit("bits[2 * i + k]", "bits[i + k * words.size]"),
    },
)

# --- Eight in a load --------------------------------------------------------------------------------------------------

EIGHTS = {"n": 1024}


def _wide(report):
    """Three requests for a warp: the load and two stores."""
    warps, requests = EIGHTS["n"] // 256, report.counts["global_requests"]
    if requests <= 3 * warps:
        return None
    return (f"At {EIGHTS['n']:,} numbers the {warps} warps make {requests:,} memory requests, and {3 * warps} are "
            f"enough: each thread makes one load of 128 bits and two stores of 128 bits.")


@cuda.jit
def widen_one_by_one(x, out):
    i = 8 * cuda.grid(1)
    if i < x.size:
        for k in range(8):
            out[i + k] = bfloat16_number(x[i + k])


WIDEN_EIGHT = KernelExercise(
    name="widen_eight",
    reference=float32_of,
    inputs=lambda rng, n: bfloat16_of(uniform(rng, n)),
    shape=lambda n: (n,),
    sizes=({"n": 8}, {"n": 24}, {"n": 520}, EIGHTS),
    random_size=lambda rng: {"n": 8 * int(rng.integers(3, 150))},
    launch=lambda n: (-(-n // 512), 64),
    observe_sizes=(EIGHTS,),
    demand=_wide,
    domain=(Reach("the bits are random", lambda rng, x: (rng.integers(0, 2**16, x.size).astype(np.uint16),)),
            *of_bfloat16((0,), MOVED, HUGE_AND_TINY, NEGATIVE, ZEROS)),
    wrong={
        "the two numbers of each word are exchanged": Edit("a, b = ptx.unpack_bf162(p)", "b, a = ptx.unpack_bf162(p)"),
        "the words of the second half are exchanged": Edit("ptx.unpack_bf162(r)", "ptx.unpack_bf162(s)",
                                                           "c, d = ptx.unpack_bf162(s)", "c, d = ptx.unpack_bf162(r)"),
        "the first four numbers are stored twice": Edit("ptx.unpack_bf162(r)", "ptx.unpack_bf162(p)",
                                                        "ptx.unpack_bf162(s)", "ptx.unpack_bf162(q)"),
        "the second store overwrites the first": Edit("i + 4", "i"),
        "the second store begins eight numbers on, not four": Edit("i + 4", "i + 8"),
        "the guard is too large, and threads beyond the end load": Edit("i < x.size", "i < 8 * x.size"),
        "the words hold bfloat16, and are unpacked as float16": Edit("ptx.unpack_bf162(p)", "ptx.unpack_half2(p)"),
        "one number at a time: eight loads and eight stores": widen_one_by_one,
    },
)

# --- A sum in float32 -------------------------------------------------------------------------------------------------

ALL_LANES = 0xFFFFFFFF


def _dots(w, x):
    return float32_of(w).astype(np.float64) @ float32_of(x)


def _dot_tolerance(w, x):
    """That of a float32 sum in any order; the constant covers sums that are subnormal."""
    return x.size * EPS32 * (np.abs(float32_of(w)).astype(np.float64) @ np.abs(float32_of(x))) + 1e-40


def _whole_numbers(rng, w, x):
    return bfloat16_of(rng.integers(-3, 4, w.shape)), bfloat16_of(rng.integers(-3, 4, x.shape))


def _ones(rng, w, x):
    return bfloat16_of(np.ones(w.shape)), bfloat16_of(np.ones(x.shape))


@cuda.jit
def dot_rows_alone(w, x, out):
    lane, r = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if r < w.shape[0] and lane == 0:
        acc = float32(0.0)
        for col in range(x.size):
            acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])
        out[r] = acc


LONG = {"R": 2, "C": 12_000}

DOT_ROWS = KernelExercise(
    name="dot_rows",
    reference=_dots,
    inputs=lambda rng, R, C: (bfloat16_of(uniform(rng, R, C)), bfloat16_of(uniform(rng, C))),
    shape=lambda R, C: (R,),
    sizes=tuple({"R": R, "C": C} for R, C in ((1, 1), (2, 3), (4, 32), (5, 33), (3, 100), (9, 384))),
    random_size=lambda rng: {"R": int(rng.integers(2, 12)), "C": int(rng.integers(30, 400))},
    launch=lambda R, C: (-(-R // 4), (32, 4)),
    tolerance=_dot_tolerance,
    observe_sizes=({"R": 3, "C": 100},),
    demand=shuffles,
    domain=(Reach("all numbers are small whole numbers", _whole_numbers),
            Reach("12,000 ones are added", _ones, LONG),
            *of_bfloat16((0, 1), POSITIVE, NEGATIVE, HUGE_AND_TINY, ZEROS, EQUAL),
            *of_bfloat16((0,), ONE_FAR_ABOVE)),
    wrong={
        "the accumulator is a bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                              "acc = bfloat16_rounded(acc + bfloat16_number(w[r, col]) * "
                                              "bfloat16_number(x[col]))"),
        "each product is rounded to bfloat16": Edit("acc += bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                    "acc += bfloat16_rounded(bfloat16_number(w[r, col]) * "
                                                    "bfloat16_number(x[col]))"),
        "the lanes' sums are rounded before they are added": Edit("cuda.shfl_xor_sync(0xFFFFFFFF, acc, distance)",
                                                                   "bfloat16_rounded(cuda.shfl_xor_sync(0xFFFFFFFF, "
                                                                   "acc, distance))"),
        "the result is rounded to bfloat16": Edit("out[r] = acc", "out[r] = bfloat16_rounded(acc)"),
        "the bits are multiplied as whole numbers": Edit("bfloat16_number(w[r, col]) * bfloat16_number(x[col])",
                                                         "float32(w[r, col]) * float32(x[col])"),
        "a round of the shuffles is missing": Edit("(16, 8, 4, 2, 1)", "(16, 8, 4, 2)"),
        "every row gets the result of the block's first row": Edit("cuda.blockIdx.x * 4 + cuda.threadIdx.y",
                                                               "cuda.blockIdx.x * 4"),
        "one lane adds up the whole row": dot_rows_alone,
    },
)

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

EXERCISES = (PACK_BFLOAT16, WIDEN_EIGHT, DOT_ROWS, BUFFER_MAP, PREDICT_TOKEN, EMBED_ROWS)
