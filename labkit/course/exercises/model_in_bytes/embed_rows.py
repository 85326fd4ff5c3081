"""From a blank page: the first launch of a Llama

Row t of `out` (T, C) should be row `ids[t]` of `table` (V, C). Both are uint16 and hold bfloat16; `ids` (T,) is int32.
An id without a row in the table, such as a negative one, gives a row of NaN, which is 0x7FC0 in bfloat16. With
`ids = [2, 0, 7]` and a table of four rows, `out` has rows 2 and 0 of the table, then a row of NaN.

This time you write the launcher as well, and choose the grid and the block. The first idea is one block per token and
one thread per column. It fails: C may be up to 4,096, and the 2,048 columns of a Llama are already more than the
threads a block may have. Try it once, to see the error.

Write the kernel, and `embed_rows(ids, table, out)`, a function that launches it.
"""

HINTS = ("How many threads may a block have, and how did your embed_tokens of lesson 26 copy a row that is longer than "
         "that?",
         "One block of 256 threads per token; its threads walk along the row in steps of 256. Check the id before you "
         "use it as an index: it must be at least 0 and less than table.shape[0]. The launcher is one line.",
         "out[t, col] = table[ids[t], col] if known else 0x7FC0, for col in range(cuda.threadIdx.x, out.shape[1], "
         "256); and embed_rows_kernel[ids.size, 256](ids, table, out).")
POINTS = 3
NEEDS = ("embed_tokens",)

from labkit import cuda

# %%
embed_rows = None  # write the kernel and the function


### BEGIN SOLUTION
@cuda.jit
def embed_rows_kernel(ids, table, out):
    t = cuda.blockIdx.x
    token = ids[t]
    known = token >= 0 and token < table.shape[0]
    for col in range(cuda.threadIdx.x, out.shape[1], 256):
        out[t, col] = table[token, col] if known else 0x7FC0


def embed_rows(ids, table, out):
    embed_rows_kernel[ids.size, 256](ids, table, out)


### END SOLUTION

# %% [check]
from collections import Counter
from math import prod

import numpy as np

from labkit.course.exercises import Edit, FunctionExercise, Reach, asks, on_the_device, uniform
from labkit.course.exercises.domains import MOVED, NEGATIVE, ZEROS, of_bfloat16
from labkit.kernels.dtypes import bfloat16_of

NAN = 0x7FC0  # of bfloat16


def _rows(ids, table):
    known = (ids >= 0) & (ids < len(table))
    return np.where(known[:, None], table[np.where(known, ids, 0)], np.uint16(NAN))


def _embed_inputs(rng, T, V, C):
    """Some ids are not rows of the table; none is V, which has a case of its own."""
    ids = rng.integers(-2, V + 3, T)
    return np.where(ids == V, V + 3, ids).astype(np.int32), bfloat16_of(uniform(rng, V, C))


def _ids(choose):
    return lambda rng, ids, table: (choose(rng, ids.size, len(table)).astype(np.int32), table)


@asks("There is one launch, and a thread copies at most 64 values.")
def _one_launch(run):
    """On the device, in one launch, with at most 64 numbers for each thread."""
    if fault := on_the_device(run):
        return fault
    if len(run.launches) > 1:
        return f"There are {len(run.launches)} launches, and one is enough for all tokens."
    threads = prod(run.launches[0].grid) * prod(run.launches[0].block)
    numbers = run.size["T"] * run.size["C"]
    if threads * 64 < numbers:
        return (f"{threads:,} threads move {numbers:,} values. Spread the work over more threads: at most 64 "
                f"values per thread.")
    if run.size["C"] <= 64:
        return None
    stores = Counter(thread for cells in run.launches[0].observed().touched.values()
                     for (thread, _), kinds in cells.items() if "store" in kinds)
    if (most := max(stores.values(), default=0)) > 64:
        return (f"A thread stores {most:,} values, and at most 64 are allowed. Does each thread begin with its own "
                "value?")
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


EXERCISE = FunctionExercise(
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
        "one thread per column: 2,048 are more than a block may have": embed_rows_thread_a_column,
        "1,024 threads and no loop: further columns are never written": embed_rows_first_1024,
        "negative ids are not checked": Edit("token >= 0 and token < table.shape[0]", "token < table.shape[0]"),
        "the id one past the last row counts as a row": Edit("token < table.shape[0]", "token <= table.shape[0]"),
        "ids past the last row are not checked": Edit("token >= 0 and token < table.shape[0]", "token >= 0"),
        "the row of an unknown id is left unchanged": Edit(
            "out[t, col] = table[token, col] if known else 0x7FC0",
            "if known:\n"
            "    out[t, col] = table[token, col]"),
        "an unknown id gives zeros": Edit("0x7FC0", "0"),
        "an unknown id gives float16's NaN, which in bfloat16 is a number": Edit("0x7FC0", "0x7E00"),
        "row t of the table, not row ids[t]": Edit("token = ids[t]", "token = t"),
        "the stride is one more than the block size, and columns are left out":
            Edit("out.shape[1], 256)", "out.shape[1], 257)"),
        "one thread copies everything": embed_rows_alone,
        "one launch per token": embed_rows_a_launch_each,
        "the host gathers the rows": embed_rows_on_the_host,
    },
)

EQUIVALENT = {
    "number: 256 -> 512 (2)": "Threads 256 to 511 store what threads 0 to 255 store in the same elements: the same "
                              "rows.",
}

AFTER = """
Your launch fits into the model. Here is the lesson's small Llama, once with its own embedding and once with yours.

# %%
from labkit.models.llama import Config, Kernels, Llama, SingleSequence
from labkit.models.load import tensors

folder = find_root() / "tests" / "golden" / "llama" / "llama3"
model = Llama(Config.read(folder / "config.json"), tensors(folder), "bfloat16")
if embed_rows is not None:
    mine = model.with_kernels(Kernels(embedding=lambda ids, table, out, stream=0: embed_rows(ids, table, out)))
    logits = [SingleSequence(each, 16)([3, 1, 4, 1, 5]).copy_to_host() for each in (model, mine)]
    print("the same logits:", np.array_equal(*logits))
"""
