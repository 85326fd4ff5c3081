"""The exercises of lesson 08: ranges that nest, what copies cost, and what ncu will read."""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, PredictionExercise, Reach
from labkit.device import ptx

BLOCK = 128


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)


# --- own_time: ranges that nest ------------------------------------------------------------------------------------


def _own_time(parent, total):
    own = np.array(total, np.float64)
    for child, at in enumerate(parent):
        if at >= 0:
            own[at] -= total[child]
    return own


def own_time_is_total(parent, total):
    return np.array(total, np.float64)


def own_time_takes_all_below(parent, total):
    own = np.array(total, np.float64)
    for child, at in enumerate(parent):
        while at >= 0:
            own[at] -= total[child]
            at = parent[at]
    return own


def _tree(rng, n):
    """Ranges in the order in which they begin: each one's parent stands before it, and its children fit into it."""
    parent = np.array([-1] + [int(rng.integers(0, k)) for k in range(1, n)], np.int64)
    total = rng.uniform(1, 50, n)
    for child in range(n - 1, 0, -1):
        total[parent[child]] += total[child]
    return parent, total


def _within(parent_of):
    """Ranges that lie in one another as parent_of says, each longer than its children together."""
    def turn(rng, parent, total):
        parent = np.array([parent_of(k) for k in range(len(parent))], np.int64)
        total = rng.uniform(1, 50, len(parent))
        for child in range(len(parent) - 1, 0, -1):
            if parent[child] >= 0:
                total[parent[child]] += total[child]
        return parent, total

    return turn


OWN_TIME = FunctionExercise(
    name="own_time",
    reference=_own_time,
    inputs=_tree,
    sizes=tuple({"n": n} for n in (1, 2, 3, 6, 20, 100)),
    tolerance=lambda parent, total: np.full(len(total), 1e-6),
    domain=(Reach("no range lies in another", _within(lambda k: -1)),
            Reach("each range lies in the one before it", _within(lambda k: k - 1)),
            Reach("all ranges lie in the first", _within(lambda k: 0 if k else -1))),
    wrong={
        "nothing is taken away: an outer range is counted with all that lies in it": own_time_is_total,
        "grandchildren are taken away from their grandparent as well, and they lie in a child already":
            own_time_takes_all_below,
        "the outer range is taken away from the inner one":
            Edit("own[outer] -= total[child]", "own[child] -= total[outer]"),
        "only the outermost range loses what lies in it": Edit("if outer >= 0:", "if outer == 0:"),
    },
)


# --- predict_copies: a price for the start, a price for each byte ----------------------------------------------------

START_US, BYTES_PER_US = 10, 50_000


def copy_us(nbytes: int) -> float:
    """Microseconds of one copy."""
    return START_US + nbytes / BYTES_PER_US


def copies_truth() -> dict[str, int]:
    return {
        "tiny_us": round(copy_us(4)),
        "large_us": round(copy_us(2_000_000)),
        "even_bytes": START_US * BYTES_PER_US,
        "apart_us": round(1000 * copy_us(2000)),
        "together_us": round(copy_us(1000 * 2000)),
    }


PREDICT_COPIES = PredictionExercise(
    name="predict_copies",
    truth=copies_truth,
    how={
        "tiny_us": "the copy has to start, and then there are four bytes. How long do four bytes take?",
        "large_us": "the start, and 2,000,000 bytes at 50,000 bytes in a microsecond.",
        "even_bytes": "in the time that a start takes, how many bytes could have been copied?",
        "apart_us": "one of them first: its start, and its 2,000 bytes. Then a thousand times that.",
        "together_us": "one start, and as many bytes as all of them have.",
    },
    wrong={
        "the start is left out, and only bytes are counted": {"large_us": 40, "tiny_us": 0},
        "only the start is counted, and the bytes take time as well": {"large_us": 10},
        "a microsecond's bytes are given; the start takes ten of them": {"even_bytes": 50_000},
        "all copies share one start, and each has its own": {"apart_us": 50},
        "one copy pays a start for each array in it": {"together_us": 10_040},
        "the bytes of small copies are counted as if they cost nothing at all": {"apart_us": 10_000},
    },
)


# --- predict_requests: what ncu will read ----------------------------------------------------------------------------


@cuda.jit
def read_row_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[i]


@cuda.jit
def read_third_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[3 * i]


@cuda.jit
def read_column_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[64 * i]


@cuda.jit
def read_one_kernel(x, out):
    i = cuda.grid(1)
    out[i] = x[i // 32]


@cuda.jit
def read_four_kernel(x, out):
    i = cuda.grid(1)
    a, b, c, d = ptx.load_global4(x, 4 * i)
    out[i] = a + b + c + d


def requests_truth() -> dict[str, int]:
    """Sectors per load, by observe: one warp, so one request."""
    from labkit import observe

    found = {}
    for name, kernel in (("row", read_row_kernel), ("third", read_third_kernel), ("column", read_column_kernel),
                         ("one", read_one_kernel), ("four", read_four_kernel)):
        x, out = cuda.to_device(np.zeros(64 * 32, np.float32)), cuda.to_device(np.zeros(32, np.float32))
        stores = 4  # 32 floats in a row
        found[name] = observe(kernel[1, 32], x, out).counts["sectors"] - stores
    return found


PREDICT_REQUESTS = PredictionExercise(
    name="predict_requests",
    truth=requests_truth,
    how={
        "row": "32 floats in a row are 128 bytes.",
        "third": "the lanes span 3 * 31 + 1 floats. Is there a sector of eight floats without one of them?",
        "column": "two neighbours lie 64 floats apart, and a sector holds eight.",
        "one": "all lanes ask for the same address.",
        "four": "a lane asks for 16 bytes. How many lanes share a sector, and how many sectors do 32 lanes need?",
    },
    wrong={
        "there is a request for each lane, and a warp makes one request": {"row": 32},
        "this counts only the floats that are used, and a sector travels whole": {"third": 4},
        "lines of 128 bytes are counted; ncu's sectors have 32": {"row": 1},
        "lanes that ask for the same float share its sector": {"one": 32},
        "a load of four floats moves four times as much as a load of one": {"four": 4},
        "no two lanes share a sector here": {"column": 8},
    },
)

EXERCISES = (OWN_TIME, PREDICT_COPIES, PREDICT_REQUESTS)
