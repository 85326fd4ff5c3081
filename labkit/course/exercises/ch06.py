"""The exercises of lesson 06: ranges that nest, what a queue of launches costs, a graph that runs once too often, three
kernels made one, and what ncu will read."""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import on_the_device
from labkit.course.exercises.domains import SUMMED, of
from labkit.device import graphs, ptx
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to

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


# --- predict_launches: a queue --------------------------------------------------------------------------------------


def queue(launch_us: float, kernel_us: float, count: int, wait_each: bool = False) -> float:
    """Microseconds from the first launch to the end of the last kernel. Launching takes the host `launch_us`; a kernel
    starts once its launch is done and the kernel before it has ended."""
    host = gpu = 0.0
    for _ in range(count):
        host += launch_us
        gpu = max(gpu, host) + kernel_us
        if wait_each:
            host = gpu
    return gpu


def launches_truth() -> dict[str, int]:
    in_graph = 20 + 1000 * (4 + 1)
    return {
        "short_us": round(queue(30, 4, 1000)),
        "long_us": round(queue(30, 100, 1000)),
        "waiting_us": round(queue(30, 4, 1000, wait_each=True)),
        "graph_us": in_graph,
        "busy_percent": round(100 * 1000 * 4 / queue(30, 4, 1000)),
    }


PREDICT_LAUNCHES = PredictionExercise(
    name="predict_launches",
    truth=launches_truth,
    how={
        "short_us": "draw two rows, host and GPU. The host launches every 30 us. When does the last kernel start?",
        "long_us": "now the GPU is the slow one. After the first launch, when is it ever without work?",
        "waiting_us": "nothing overlaps any more: each round is a launch and then a kernel.",
        "graph_us": "one launch of the graph, then 1,000 kernels with a microsecond between them.",
        "busy_percent": "the GPU computes 4 us of every 30.",
    },
    wrong={
        "launch and kernel are added up, and the host launches on while the GPU computes": {"short_us": 34_000},
        "only the kernels are counted; the GPU waits for each launch": {"short_us": 4_000},
        "the launches are added to the kernels; after the first one they are hidden behind them": {"long_us": 130_000},
        "waiting after each launch costs as much as not waiting": {"waiting_us": 30_004},
        "a graph still pays for each launch": {"graph_us": 34_000},
        "the GPU is taken to be busy all the time": {"busy_percent": 100},
    },
)


# --- run_steps: the warm-up is a run, too ---------------------------------------------------------------------------


@cuda.jit
def step_kernel(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = float32(0.5) * y[i] + x[i]


def _step(x, y, stream=0):
    step_kernel[_blocks(y.size), BLOCK, stream](x, y)


def _replays_a_graph(run) -> str | None:
    replayed = sum(one.in_graph for one in run.launches)
    if replayed < run.size["steps"] - 1:  # the warm-up may be a step
        return (f"For {run.size['steps']} steps {len(run.launches)} kernels ran, {replayed} of them out of a graph. "
                "Asked for is a step that is captured with `graphs.capture`, and then replayed.")
    return on_the_device(run)


def run_steps_on_the_host(x, y, steps):
    mine, added = y.copy_to_host(), x.copy_to_host()
    for _ in range(steps):
        mine = np.float32(0.5) * mine + added
    y.copy_to_device(mine)


def run_steps_warmed(x, y, steps):
    graph = graphs.capture(lambda stream: _step(x, y, stream))
    for _ in range(steps):
        graph.launch()


def run_steps_captured_is_run(x, y, steps):
    graph = graphs.capture(lambda stream: _step(x, y, stream), warm_up=False)
    for _ in range(steps - 1):
        graph.launch()


def run_steps_once(x, y, steps):
    graphs.capture(lambda stream: _step(x, y, stream), warm_up=False).launch()


def run_steps_squared(x, y, steps):
    def work(stream):
        for _ in range(steps):
            _step(x, y, stream)

    graph = graphs.capture(work, warm_up=False)
    for _ in range(steps):
        graph.launch()


RUN_STEPS = FunctionExercise(
    name="run_steps",
    reference=lambda x, y, steps: 0.5**steps * y.astype(np.float64) + x * 2 * (1 - 0.5**steps),
    inputs=lambda rng, n, steps: (uniform(rng, n), uniform(rng, n), steps),
    shape=lambda n, steps: (n,),
    start=lambda x, y, steps: y,
    arguments=lambda inputs, out, size: (inputs[0], out, inputs[2]),
    sizes=({"n": 1, "steps": 2}, {"n": 129, "steps": 3}, {"n": 300, "steps": 5}, {"n": 1000, "steps": 4},
           {"n": 131_200, "steps": 2}),  # more than 1,024 blocks of 128: a block of as many threads cannot be
    random_size=lambda rng: {"n": int(rng.integers(2, 500)), "steps": int(rng.integers(2, 7))},
    tolerance=relative_to(lambda x, y, steps: 2 * np.abs(x) + np.abs(y), roundings=8),
    domain=of((0, 1), *SUMMED),
    demand=_replays_a_graph,
    wrong={
        "the warm-up runs the step once more than the launches do": run_steps_warmed,
        "capturing is counted as a run, and it only writes the launch down": run_steps_captured_is_run,
        "the graph is launched once, and it holds one step": run_steps_once,
        "the graph holds all the steps, and is launched as many times again": run_steps_squared,
        "there is no graph: each step is launched by the host":
            Edit("graph = graphs.capture(lambda stream: step_kernel[blocks, 128, stream](x, y), warm_up=False)", "",
                 "graph.launch()", "step_kernel[blocks, 128](x, y)"),
        "grid and block are exchanged: in the largest case a block would have more than 1,024 threads":
            Edit("[blocks, 128, stream]", "[128, blocks, stream]"),
        "the steps are computed by NumPy, on the host": run_steps_on_the_host,
    },
)


# --- fused_tail: three kernels made one ------------------------------------------------------------------------------


def _each_array_once(report):
    if report.counts["global_loads"] != 3 * report.counts["global_stores"]:
        return ("The result is right, but it goes through memory on its way: each thread should load three numbers, "
                "store one, and keep what lies between in a variable.")
    return None


FUSED_TAIL = KernelExercise(
    name="fused_tail",
    reference=lambda x, bias, residual: np.maximum(
        x.astype(np.float64) + np.resize(bias, x.size), 0) + residual,
    inputs=lambda rng, rows, width: (uniform(rng, rows * width), uniform(rng, width), uniform(rng, rows * width)),
    shape=lambda rows, width: (rows * width,),
    sizes=tuple({"rows": rows, "width": width} for rows, width in ((1, 1), (3, 5), (2, 64), (7, 33), (40, 50))),
    launch=lambda rows, width: (_blocks(rows * width), BLOCK),
    tolerance=relative_to(lambda x, bias, residual: np.abs(x) + np.abs(np.resize(bias, x.size)) + np.abs(residual),
                          roundings=2),
    demand=_each_array_once,
    domain=of((0, 1, 2), *SUMMED),
    wrong={
        "the result so far is kept in out, and goes to memory and back between the steps":
            Edit("out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]",
                 "out[i] = x[i] + bias[i % bias.size]\n"
                 "out[i] = max(out[i], float32(0.0))\n"
                 "out[i] += residual[i]"),
        "the residual is added before the maximum, not after it":
            Edit("out[i] = max(x[i] + bias[i % bias.size], float32(0.0)) + residual[i]",
                 "out[i] = max(x[i] + bias[i % bias.size] + residual[i], float32(0.0))"),
        "the bias is taken by the row, and there is one for each column":
            Edit("i % bias.size", "(i // bias.size) % bias.size"),
        "the bias is added after the maximum":
            Edit("(x[i] + bias[i % bias.size], float32(0.0))", "(x[i], float32(0.0)) + bias[i % bias.size]"),
        "there is no guard": Edit("if i < out.size:", "if True:"),
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

EXERCISES = (OWN_TIME, PREDICT_LAUNCHES, RUN_STEPS, FUSED_TAIL, PREDICT_REQUESTS)
