"""The exercises of lesson 09: what a queue of launches costs, a graph that runs once too often, three kernels made one,
when chunks end on three engines, and an array in chunks on streams."""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import asks, elements_of_argument, on_the_device
from labkit.course.exercises.domains import SUMMED, of
from labkit.device import graphs
from labkit.kernels.op import uniform
from labkit.kernels.tolerance import relative_to
from labkit.measure.series.streams import ENGINES, makespan

BLOCK = 128


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)


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


@asks("The step is captured as a graph, and replayed.")
def _replays_a_graph(run) -> str | None:
    replayed = sum(one.in_graph for one in run.launches)
    if run.captures and not run.replays:
        return (f"A graph is captured, and it is never replayed: for {run.size['steps']} steps {len(run.launches)} "
                "kernels were launched one by one. What `graphs.capture` returns is replayed by its `launch()`.")
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


@asks("Each thread loads three numbers and stores one.")
def _each_array_once(report):
    elements = elements_of_argument(report, 3)
    loads, stores = report.counts["global_loads"], report.counts["global_stores"]
    if stores > elements:
        return (f"{stores:,} numbers are stored for {elements:,} elements: the result goes through memory on its way. "
                "Each thread should store one number, and keep what lies between in a variable.")
    if loads > 3 * elements:
        return (f"{loads:,} numbers are loaded for {elements:,} elements: each thread should load three, and each of "
                "them once. Keep in a variable what is used a second time.")
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


# --- predict_overlap: three engines ----------------------------------------------------------------------------------


def overlap_truth() -> dict[str, int]:
    parts = dict(zip(ENGINES, (8, 12, 4), strict=True))
    faster = {**parts, "kernel": 4}
    return {
        "one_stream_ms": round(makespan(parts, 4, 1)),
        "four_chunks_ms": round(makespan(parts, 4, 3)),
        "at_best_ms": max(parts.values()),
        "faster_kernel_ms": round(makespan(faster, 4, 3)),
    }


PREDICT_OVERLAP = PredictionExercise(
    name="predict_overlap",
    truth=overlap_truth,
    how={
        "one_stream_ms": "a stream is a queue: nothing in it overlaps.",
        "four_chunks_ms": "a chunk takes 2, 3 and 1 ms. The kernels are the slowest part. When does the first of them "
                          "start, when does the last one end, and what comes after it?",
        "at_best_ms": "the engine with the most work needs all of its time, however small the chunks are.",
        "faster_kernel_ms": "a chunk now takes 2, 1 and 1 ms. Which engine never waits? What is left to do when it has "
                            "ended?",
    },
    wrong={
        "chunks overlap on one stream": {"one_stream_ms": 15},
        "the first copy there and the last copy back are forgotten": {"four_chunks_ms": 12},
        "the first copy there is of the whole array, not of a chunk": {"four_chunks_ms": 21},
        "the parts are added up as if nothing overlapped": {"four_chunks_ms": 24},
        "a third of the whole is given: that holds for parts of equal length": {"at_best_ms": 8},
        "the kernel is taken to set the pace, and the copy there is longer now": {"faster_kernel_ms": 7},
    },
)


# --- waves_in_chunks: an array on streams ----------------------------------------------------------------------------


@cuda.jit
def wave_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(8):
            value = float32(0.5) * value + x[i]
        out[i] = value


@asks("Each chunk that holds something gets one launch, in blocks of 128. Launches and copies are on the chunk's "
      "stream, none on the default one, and chunks on more than one; the function waits before it returns.")
def _on_streams(run):
    """A launch for each chunk, copies and launches on streams, and a wait at the end."""
    if missing := on_the_device(run):
        return missing
    n, chunks = run.size["n"], run.size["chunks"]
    wanted = _blocks(n, _blocks(n, chunks))
    launches = [stream for what, stream in run.order if what == "launch"]
    if len(launches) != wanted:
        return (f"{n:,} elements in {chunks} chunks are {wanted} chunks that hold something, and {len(launches)} "
                "launches were made: one for each is asked for.")
    for one, start in zip(run.launches, range(0, n, _blocks(n, chunks)), strict=True):
        held = min(_blocks(n, chunks), n - start)
        if one.block != (BLOCK, 1, 1) or one.grid != (_blocks(held), 1, 1):
            return (f"A chunk of {held:,} elements was launched with a grid of {one.grid[0]} and blocks of "
                    f"{one.block[0]}; blocks of {BLOCK} are asked for, and {_blocks(held)} of them cover it.")
    for what, stream in run.order:
        if stream == 0 and what != "wait":
            return (f"A {what} was made on the default stream, which waits for all others: pass the chunk's stream to "
                    "the launch and to both copies.")
    if wanted > 1 and len(set(launches)) < 2:
        return "All chunks are on one stream, and in a stream nothing overlaps: take the streams in turn."
    back = [stream for what, stream in run.order if what == "copy back"]
    if back and len(back) == len(launches) and back != launches:
        return "A chunk is copied back on another stream than its kernel's: it may be copied before it is computed."
    if run.order[-1][0] != "wait":
        return ("The function returns while the copies may still be under way: wait for the streams, or for the whole "
                "device, before it does.")
    waited = [stream for what, stream in run.order if what == "wait"]
    if 0 not in waited and not set(launches) <= set(waited):
        return "The function waits for some of its streams, and not for all that it used."
    return None


WAVES_IN_CHUNKS = FunctionExercise(
    name="waves_in_chunks",
    reference=lambda x, chunks: x.astype(np.float64) * (2 - 0.5**8),
    inputs=lambda rng, n, chunks: (uniform(rng, n), chunks),
    sizes=({"n": 1, "chunks": 1}, {"n": 3, "chunks": 5}, {"n": 1000, "chunks": 4}, {"n": 1001, "chunks": 4},
           {"n": 257, "chunks": 3}, {"n": 10, "chunks": 4}),
    random_size=lambda rng: {"n": int(rng.integers(1, 2000)), "chunks": int(rng.integers(1, 9))},
    tolerance=relative_to(lambda x, chunks: 2 * np.abs(x), roundings=10),
    domain=(Reach("there are more chunks than elements", lambda rng, x, chunks: (x, x.size + 2)), *of(0, *SUMMED)),
    demand=_on_streams,
    wrong={
        "the size of a chunk is rounded down, and the last elements are left out":
            Edit("size = -(-x.size // chunks)", "size = max(1, x.size // chunks)"),
        "the launch is made on the default stream":
            Edit("-(-there.size // 128), 128, stream]", "-(-there.size // 128), 128]"),
        "it returns before the work is done": Edit("cuda.synchronize()", "pass"),
        "all chunks are on one stream": Edit("streams[chunk % 3]", "streams[0]"),
        "the copy back is made on the default stream": Edit("(out[part], stream)", "(out[part])"),
        "the copy there is made on the default stream": Edit("(x[part], stream)", "(x[part])"),
        "the blocks are rounded down": Edit("[-(-there.size // 128), 128", "[max(1, there.size // 128), 128"),
        "the copy back is on another stream than the kernel":
            Edit("(out[part], stream)", "(out[part], streams[(chunk + 1) % 3])"),
        "the input is copied back, not the output": Edit("back.copy_to_host", "there.copy_to_host"),
    },
)

EXERCISES = (PREDICT_LAUNCHES, RUN_STEPS, FUSED_TAIL, PREDICT_OVERLAP, WAVES_IN_CHUNKS)
