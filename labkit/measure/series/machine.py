"""What lesson 02 plots of a GPU: what a split warp costs, loads in flight and bandwidth, occupancy, waves, spills, and
its memories. `labkit bench machine` records them as one series, each part with percentiles in microseconds.

Every result is compared with NumPy before it is timed. The sizes come from the GPU (labkit.device.occupancy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from labkit import cuda, measure
from labkit.device import launches, occupancy
from labkit.device.occupancy import GPU
from labkit.kernels import machine as kernels
from labkit.measure.series.softmax import latencies, ns_a_step

BUDGET_S = 0.08  # for each point; there are about 120
STEPS = 4096  # multiply-adds of a thread in a branch
ROUNDS = 512  # of loads in a thread: some hundred microseconds where they only wait
SAMPLE = 64  # threads whose result is compared with NumPy
# KB of an SM that L1 and shared memory divide between them, by compute capability: the CUDA C++ Programming Guide's
# "Compute Capabilities". No attribute of a device tells it.
L1_KB = {(7, 0): 128, (7, 5): 96, (8, 0): 192, (8, 6): 128, (8, 7): 192, (8, 9): 128, (9, 0): 256, (10, 0): 256}


def machine(gpu: GPU | None = None, words: int | None = None, steps: int = STEPS, rounds: int = ROUNDS) -> dict | None:
    """Everything that the lesson plots; None on the CPU device, which has none of it. gpu and words, the size of the
    array that is read, are those of the present GPU; whoever gives them wants to see that all of it runs."""
    gpu = gpu or occupancy.of_device()
    if gpu is None:
        return None
    x = hashed(words or memory_words())
    return measure.stamped({
        "gpu": asdict(gpu), "branches": branches(gpu, steps), "ways": ways(gpu, steps=steps),
        "waves": waves(gpu, steps=4 * steps), "spills": spills(gpu, rounds=rounds // 2),
        "in_flight": in_flight(gpu, x, rounds=rounds), "occupancy": occupancies(gpu, x, steps=steps, rounds=rounds),
        "memories": memories(gpu, x, rounds=rounds, steps=steps)})


def memory_words() -> int:
    """Return how many words to read so that none comes from a cache: 1 GiB, or a quarter of the free memory, rounded
    down to a power of 2."""
    free, _ = cuda.current_context().get_memory_info()
    return 2 ** min(28, int(free // 16).bit_length() - 1)


def hashed(words: int):
    """An array of `words` uint32 on the device, filled by fill_hash, and looked at."""
    x = cuda.device_array(words, np.uint32)
    kernels.fill_hash(x)
    head = x[:1024].copy_to_host()
    _same("fill_hash", head, (np.arange(head.size, dtype=np.uint64) * kernels.HASH).astype(np.uint32))
    return x


def _same(label: str, result: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(result, expected):
        wrong = np.flatnonzero(result != expected)
        raise ValueError(f"{label}: {wrong.size:,} of {result.size:,} results are wrong, the first at {wrong[0]}: "
                         f"{result[wrong[0]]}, and NumPy gives {expected[wrong[0]]}")


def timed(label: str, launch: Callable[[], None], out, expected: Callable[[np.ndarray], np.ndarray]) -> dict:
    """{"p5", "p50", "p95"} in microseconds of launch(), whose `out` has to hold expected(numbers of threads)."""
    out.copy_to_device(np.zeros(out.size, out.dtype))
    launch()
    threads = np.unique(np.linspace(0, out.size - 1, min(out.size, SAMPLE)).astype(np.int64))
    _same(label, out.copy_to_host()[threads], expected(threads))
    timing = measure.time_kernel(launch, budget_s=BUDGET_S, max_runs=40)
    return timing.percentiles(1000)


def resources_of(launch: Callable[[], None]) -> dict | None:
    """Registers, bytes of local memory and resident blocks of what launch() launches, which has run before; None on the
    CPU device."""
    (launched,) = launches.planned(launch)
    return launches.resources(launched)


# --- Warps that split ------------------------------------------------------------------------------------------------


def branches(gpu: GPU, steps: int = STEPS, blocks: int | None = None, block: int = 256) -> list[dict]:
    """[{"name", "us"}]: all threads take one branch; half of the warps take the other; half of each warp's lanes do."""
    threads = block * (blocks or gpu.multiprocessors * (gpu.threads // block))
    i = np.arange(threads)
    rows = []
    for name, side in (("one branch", 0 * i), ("two, by warp", i // 32 % 2), ("two, by lane", i % 2)):
        out, d_side = cuda.device_array(threads, np.float32), cuda.to_device(side.astype(np.uint32))
        rows.append({"name": name, "us": timed(
            name, lambda side=d_side, out=out: kernels.two_branches(side, steps, out, block), out,
            lambda t, side=side: (t % block + np.where(side[t], -steps, steps)).astype(np.float32))})
    return rows


def ways(gpu: GPU, counts=(1, 2, 4, 8, 16, 32), steps: int = STEPS, blocks: int | None = None,
         block: int = 256) -> list[dict]:
    """[{"ways", "lanes", "warps"}]: microseconds where so many ways are taken, by the lanes of each warp or by whole
    warps. The loop over the turns is the same in all."""
    threads = block * (blocks or gpu.multiprocessors * (gpu.threads // block))
    i, max_ways = np.arange(threads), max(counts)
    rows = []
    for count in counts:
        row = {"ways": count}
        for name, way in (("lanes", i % count), ("warps", i // 32 % count)):
            out, d_way = cuda.device_array(threads, np.float32), cuda.to_device(way.astype(np.uint32))
            row[name] = timed(f"{count} ways by {name}",
                              lambda way=d_way, out=out: kernels.many_branches(way, max_ways, steps, out, block), out,
                              lambda t: (t % block + steps).astype(np.float32))
        rows.append(row)
    return rows


# --- Bytes in flight -------------------------------------------------------------------------------------------------


def threads_of(gpu: GPU) -> list[int]:
    """Threads of an SM: 32, 64, ... up to what it can hold."""
    counts = [32 * 2**k for k in range(6) if 32 * 2**k <= gpu.threads]
    return counts if counts[-1] == gpu.threads else [*counts, gpu.threads]


def in_flight(gpu: GPU, x, threads=None, loads=(1, 2, 4, 8), rounds: int = ROUNDS) -> list[dict]:
    """[{"threads", "loads", "bytes_in_flight", "blocks_per_sm", "us", "gbs"}]: each SM has so many threads, and each
    thread so many loads of 4 bytes in flight; bytes_in_flight of the whole GPU."""
    rows = []
    for count in measure.steps("bytes in flight", threads or threads_of(gpu)):
        block = count if count <= 1024 else count // 2
        total = gpu.multiprocessors * count
        out = cuda.device_array(total, np.uint32)
        for k in loads:
            iterations = min(rounds, x.size // (total * k))
            rows.append({"threads": count, "loads": k, "bytes_in_flight": 4 * k * total,
                         **_read(f"{count} threads, {k} loads", x, x.size, iterations, out, loads=k, block=block)})
    return rows


def _read(label: str, x, window: int, rounds: int, out, **how) -> dict:
    """{"us", "gbs", "blocks_per_sm"} of kernels.read."""
    def launch():
        kernels.read(x, window, rounds, out, **how)

    shape = {key: how[key] for key in ("loads", "wide", "block", "apart") if key in how}
    us = timed(label, launch, out, lambda i: kernels.read_reference(i, window, rounds, **shape))
    nbytes = out.size * rounds * how.get("loads", 1) * (16 if how.get("wide") else 4)
    known = resources_of(launch)
    return {"us": us, "gbs": nbytes / us["p50"] / 1e3, "blocks_per_sm": known and known["blocks_per_sm"]}


# --- Occupancy -------------------------------------------------------------------------------------------------------


def resident_limits(gpu: GPU, block: int, registers: int) -> list[tuple[int, int]]:
    """[(blocks an SM holds, bytes of dynamic shared memory a block then needs)]: all that fit, a half, a quarter ..."""
    blocks = occupancy.blocks(gpu, block, registers)
    limits = []
    while blocks >= 1:
        each = gpu.shared_bytes // blocks // occupancy.SHARED_AT_ONCE * occupancy.SHARED_AT_ONCE
        nbytes = 0 if not limits else each - occupancy.SHARED_OF_SYSTEM
        if occupancy.blocks(gpu, block, registers, nbytes) == blocks:
            limits.append((blocks, nbytes))
        blocks //= 2
    return limits


def occupancies(gpu: GPU, x, block: int = 64, steps: int = STEPS, rounds: int = ROUNDS) -> list[dict]:
    """[{"work", "each", "blocks_per_sm", "occupancy", "us", "rate", "unit"}]: reading with 1 and with 8 loads a thread,
    and multiply-adds in 1 and in 4 chains, where dynamic shared memory keeps blocks away."""
    rows = []
    for work, each in (("reading", 1), ("reading", 8), ("multiply-adds", 1), ("multiply-adds", 4)):
        threads = gpu.multiprocessors * occupancy.blocks(gpu, block, 32) * block
        iterations = min(rounds, x.size // (threads * each))
        if work == "reading":
            out, unit, amount = cuda.device_array(threads, np.uint32), "GB/s", 4 * each * threads * iterations / 1e3
        else:
            out, unit, amount = cuda.device_array(threads, np.float32), "TFLOP/s", 2 * each * threads * steps / 1e6

        def launch(nbytes, work=work, each=each, out=out, iterations=iterations):
            if work == "reading":
                kernels.read(x, x.size, iterations, out, loads=each, block=block, shared_bytes=nbytes)
            else:
                kernels.run_chains(each, steps, out, block, nbytes)

        def expected(i, work=work, each=each, iterations=iterations):
            if work == "reading":
                return kernels.read_reference(i, x.size, iterations, loads=each, block=block)
            return (each * (i % block + steps)).astype(np.float32)

        launch(0)
        resources = resources_of(lambda launch=launch: launch(0))
        for resident, nbytes in resident_limits(gpu, block, 32 if resources is None else resources["registers"]):
            us = timed(f"{work}, {each}, {resident} blocks", lambda nbytes=nbytes, launch=launch: launch(nbytes), out,
                       expected)
            known = resources_of(lambda nbytes=nbytes, launch=launch: launch(nbytes))
            rows.append({"work": work, "each": each, "blocks_per_sm": resident if known is None else
                         known["blocks_per_sm"], "occupancy": resident * block / gpu.threads, "us": us,
                         "rate": amount / us["p50"], "unit": unit})
    return rows


# --- Waves -----------------------------------------------------------------------------------------------------------


def waves(gpu: GPU, count: int = 4, points: int = 6, steps: int = 4 * STEPS, block: int = 64,
          resident: int = 4) -> dict:
    """Microseconds over the number of blocks, where an SM holds `resident` of them: {"blocks", "us", "p5_us", "p95_us",
    "per_wave", "blocks_per_sm", "block"}."""
    nbytes = gpu.shared_bytes // resident // occupancy.SHARED_AT_ONCE * occupancy.SHARED_AT_ONCE
    nbytes -= occupancy.SHARED_OF_SYSTEM
    wave = gpu.multiprocessors * resident
    block_counts = sorted({1, *(max(1, wave * k // points) for k in range(1, count * points + 1)),
                           *(wave * k + 1 for k in range(1, count))})
    series = {"blocks": block_counts, "us": [], "p5_us": [], "p95_us": [], "per_wave": wave, "block": block}
    for blocks in measure.steps("waves", block_counts):
        out = cuda.device_array(blocks * block, np.float32)
        us = timed(f"{blocks} blocks", lambda out=out: kernels.run_chains(1, steps, out, block, nbytes), out,
                   lambda i: (i % block + steps).astype(np.float32))
        for key, percentile in (("us", "p50"), ("p5_us", "p5"), ("p95_us", "p95")):
            series[key].append(us[percentile])
    known = resources_of(lambda: kernels.run_chains(1, steps, out, block, nbytes))
    return {**series, "blocks_per_sm": resident if known is None else known["blocks_per_sm"]}


# --- Spills ----------------------------------------------------------------------------------------------------------


def spills(gpu: GPU, limits=(None, 64, 48, 40, 32), rounds: int = 256, blocks: int | None = None,
           block: int = 256) -> list[dict]:
    """[{"limit", "registers", "local_bytes", "occupancy", "us"}]: 64 values in each thread, and so many registers."""
    threads = block * (blocks or 8 * gpu.multiprocessors)
    out = cuda.device_array(threads, np.float32)
    rows = []
    for limit in limits:
        def launch(limit=limit):
            kernels.many_values(rounds, out, limit, block)

        us = timed(f"64 values, at most {limit} registers", launch, out,
                   lambda i: (kernels.VALUES * (i % block + rounds) + 2016).astype(np.float32))
        known = resources_of(launch) or dict.fromkeys(("registers", "local_bytes", "occupancy"))
        rows.append({"limit": limit, **{key: known[key] for key in ("registers", "local_bytes", "occupancy")},
                     "us": us})
    return rows


# --- The memories ----------------------------------------------------------------------------------------------------


def fma_ns(steps: int = 16 * STEPS) -> float:
    """Nanoseconds from one multiply-add to the next that needs its result, in one warp."""
    out = cuda.device_array(32, np.float32)

    def time_ms(n: int) -> float:
        return timed("a chain", lambda: kernels.run_chains(1, n, out, 32), out,
                     lambda i: (i + n).astype(np.float32))["p50"] / 1000

    return ns_a_step(time_ms, steps)


def memories(gpu: GPU, x, l2_bytes: int | None = None, passes: int = 128, rounds: int = ROUNDS, steps: int = STEPS,
             places: dict | None = None) -> list[dict]:
    """[{"name", "bytes", "per_sm", "latency_ns", "gbs"}] of registers, shared memory, L1, L2 and memory. bytes: of one
    SM where per_sm; None where no attribute tells. gbs: of all SMs together.

    places: of `latencies`, the chains to follow.
    """
    gpu_device = cuda.get_current_device()
    l2_bytes = l2_bytes or getattr(gpu_device, "L2_CACHE_SIZE", 0) or 2**22
    _, total = cuda.current_context().get_memory_info()
    in_l2 = 2 ** (l2_bytes // 4).bit_length() // 2  # bytes that L2 keeps: a power of 2, at most a quarter of it
    places = places or {"shared memory": (4 * kernels.SHARED_WORDS, 32_768), "L1 cache": (2**14, 32_768),
                        "L2 cache": (min(in_l2, 2**23), 65_536), "memory": (2 * x.size, 8192)}
    latency_ns = {name: entry["ns"] for name, entry in latencies(places).items()}
    l1 = L1_KB.get(tuple(gpu_device.compute_capability))
    threads = 256 * gpu.multiprocessors * (gpu.threads // 256)
    out, sums = cuda.device_array(threads, np.uint32), cuda.device_array(threads, np.float32)

    chains = timed("8 chains", lambda: kernels.run_chains(8, steps, sums, 256), sums,
                   lambda i: (8 * (i % 256 + steps)).astype(np.float32))["p50"]
    shared = timed("shared memory", lambda: kernels.read_shared(rounds, out), out, lambda i: kernels.read_reference(
        i, kernels.SHARED_WORDS, rounds, loads=kernels.SHARED_LOADS, wide=True, apart=False))["p50"]
    moved = 16 * kernels.SHARED_LOADS * threads * rounds / 1e3
    iterations = {"L1 cache": rounds, "L2 cache": max(1, passes * in_l2 // (64 * threads)),
                       "memory": max(1, x.size // (16 * threads))}
    windows = {"L1 cache": 2**13, "L2 cache": min(in_l2 // 4, x.size), "memory": x.size}
    read = {name: _read(name, x, windows[name], count, out, loads=4 if name != "L1 cache" else 2, wide=True,
                        apart=name != "L1 cache")["gbs"] for name, count in iterations.items()}
    # A multiply-add has three operands and a result of 4 bytes each.
    rows = [("registers", 4 * gpu.registers, True, fma_ns(16 * steps), 16 * 8 * threads * steps / 1e3 / chains),
            ("shared memory", gpu.shared_bytes, True, latency_ns["shared memory"], moved / shared),
            ("L1 cache", l1 and 1024 * l1, True, latency_ns["L1 cache"], read["L1 cache"]),
            ("L2 cache", l2_bytes, False, latency_ns["L2 cache"], read["L2 cache"]),
            ("memory", total, False, latency_ns["memory"], read["memory"])]
    return [dict(zip(("name", "bytes", "per_sm", "latency_ns", "gbs"), row, strict=True)) for row in rows]
