"""The values of one head

`flat` is the memory of qkv, one element after another. Each token has one row: the queries of all heads, then the keys
of all heads, then the values of all heads. A head has as many elements as `out` has columns. Copy the values of `head`
into `out`, one row per token. Blocks are 32 × 8, with the grid's x along the columns.

For example, with 2 heads of 2 elements a row has 12. The values of head 1 are elements 10 and 11 of token 0, then 22
and 23 of token 1, and so on.
"""

HINTS = ("How long is the row of one token, if there are 3 heads of 2 elements? Where in it do the values of head "
         "0 begin?",
         "The address has four parts: token, third, head and element. With width = heads * size, a "
         "token's row is 3 * width long, and the values are its last third.",
         "Under a guard for both t and i: out[t, i] = flat[t * 3 * width + 2 * width + ... + i].")
POINTS = 1

from labkit import cuda


# %%
@cuda.jit
def head_values(flat, heads, head, out):
    i, t = cuda.grid(2)
    size = out.shape[1]
    ### BEGIN SOLUTION
    if t < out.shape[0] and i < size:
        width = heads * size
        out[t, i] = flat[t * 3 * width + 2 * width + head * size + i]
    ### END SOLUTION

# %% [check]
from labkit.course.exercises import MOVED, Edit, KernelExercise, Reach, of, uniform
from labkit.course.exercises.attention import sizes_of


def _values_of(flat, heads, head, size):
    return flat.reshape(-1, 3, heads, size)[:, 2, head]


EXERCISE = KernelExercise(
    name="head_values",
    reference=_values_of,
    inputs=lambda rng, S, H, D: (uniform(rng, S * 3 * H * D), H, H - 2, D),
    arguments=lambda inputs, out, size: (*inputs[:3], out),
    shape=lambda S, H, D: (S, D),
    sizes=sizes_of("SHD", (2, 3, 2), (1, 4, 8), (5, 3, 16), (20, 4, 33)),
    launch=lambda S, H, D: ((-(-D // 32), -(-S // 8)), (32, 8)),
    domain=(*of(0, MOVED), Reach("the head is the first", lambda rng, flat, heads, head, size: (flat, heads, 0, size)),
            Reach("the head is the last", lambda rng, flat, heads, head, size: (flat, heads, heads - 1, size))),
    wrong={
        "those are the keys: the values are another heads * size elements further on": Edit("2 * width", "width"),
        "it assumes that all queries come first, then all keys, then all values":
            Edit("t * 3 * width + 2 * width", "(2 * out.shape[0] + t) * width"),
        "it assumes that the query, key and value of a head are side by side":
            Edit("2 * width + head * size", "head * 3 * size + 2 * size"),
        "the elements of a head are neighbours, not `heads` apart": Edit("head * size + i", "i * heads + head"),
        "before the values come the queries and the keys of all heads: 2 * heads * size, then head * size":
            Edit("2 * width + head * size", "2 * head * size"),
        "the grid's x runs along the columns: `i` comes first": Edit("i, t = cuda.grid(2)", "t, i = cuda.grid(2)"),
        "a token's row is three times as long: it holds queries, keys and values": Edit("t * 3 * width", "t * width"),
    },
)
