"""Every figure of the course, drawn from the shipped recordings, by name: for tests of how figures look."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from labkit import measure
from labkit.course.drawings import (
    attention,
    batches,
    bfloat16,
    broadcast,
    fast_encoder,
    faster_block,
    file_to_token,
    first_token,
    flash_attention,
    fused_masked_softmax,
    gpt2_block,
    gpt2_writes,
    gradients,
    graphs_and_streams,
    histogram,
    hopper,
    keep_or_recompute,
    kv_cache,
    layernorm,
    libraries,
    linear_attention,
    llama_by_hand,
    matmul,
    matmul_to_the_limit,
    model_in_bytes,
    one_kernel,
    other_ways,
    paged_attention,
    reductions,
    scan,
    sentence_encoder,
    serving,
    softmax,
    tensor_cores,
    the_engine,
    the_machine,
    the_scheduler,
    vector_add,
    where_time_goes,
)
from labkit.course.readme import CLIMBED
from labkit.engine.block_manager import BlockManager
from labkit.engine.recording import Part, Recorded
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.scheduler import Scheduler
from labkit.engine.sequence import Request
from labkit.kernels.persistent.decoder import Decoder
from labkit.kernels.rope import frequencies
from labkit.measure import CPU_DEVICE, plots
from labkit.measure.plots import engine, pages, sentences, serve, training
from labkit.measure.plots import matmul as matmul_plots
from labkit.measure.series.streams import ENGINES, schedule
from labkit.measure.simulation import Work, simulate
from labkit.measure.static_batching import StaticScheduler
from labkit.models.blob import layout
from labkit.models.buffers import first_fit, liveness, llama_launches
from labkit.models.configs import LLAMA_3_2_1B
from labkit.models.minilm import Config
from labkit.models.minilm_counts import launches_of_layer
from labkit.models.minilm_steps import STEPS
from labkit.models.safetensors import read

ROOT = Path(__file__).parents[3]
LANES = np.arange(32)


def here(series: dict) -> dict:
    """As if the CPU device had measured it."""
    return {**series, "where": CPU_DEVICE}


def theirs(series: dict) -> dict:
    """As if another GPU had."""
    return {**series, "where": "NVIDIA L4", "date": "2026-11-30"}


def recorded(name: str) -> dict:
    return measure.recorded_series(name, gpu="NVIDIA H200")


def ladder_of(name: str):
    return measure.recorded_ladder(name, gpu="NVIDIA H200")


def on_cpu(name: str):
    return replace(ladder_of(name), where=CPU_DEVICE)


def on_another(name: str):
    one = ladder_of(name)
    rows = tuple(replace(row, gbs=row.gbs and row.gbs / 14, tflops=row.tflops and row.tflops / 3) for row in one.rows)
    return replace(one, where="NVIDIA L4", rows=rows, limit=one.limit / (14 if one.unit == "GB/s" else 3))


def _trip(title: str) -> dict:
    return {"steps": {"a to the device": 2.65, "b to the device": 2.65, "kernel": 0.0417, "sum to the host": 2.06},
            "numpy_ms": 4.06, "title": title}


def _timeline():
    return where_time_goes.timeline(where_time_goes.trace_panel())


def _page_table():
    blocks, prompt, served = BlockManager(24), list(range(40)), {}
    for name, extra in (("request 0", 6), ("request 1", 24), ("request 2", 3)):
        sequence = Request(name, [*prompt, *range(100, 100 + extra)], SamplingParams(max_tokens=8),
                           max_length=200).sequences[0]
        blocks.take(sequence, blocks.cached_prefix(sequence))
        blocks.grow(sequence, len(sequence.tokens) - sequence.computed if hasattr(sequence, "tokens")
                    else 40 + extra - sequence.computed)
        sequence.computed = 40 + extra
        blocks.register(sequence)
        served[name] = sequence
    return pages.page_table(blocks, served)


def _history():
    names = [(f"request {number}", 0) for number in range(5)]
    steps = [Recorded(tuple(Part(name, "prefill", 9) for name in names[:3]), (), tuple(names[3:]), 4)]
    steps += [Recorded(tuple(Part(name, "decode", 1) for name in names[:3]), (names[2],) if step == 6 else (),
                       tuple(names[3:]), 5 + step // 2) for step in range(10)]
    steps += [Recorded((Part(names[2], "again", 15), Part(names[3], "prefill", 9), Part(names[4], "decode", 1)), (), (),
                       6)] * 4
    return the_scheduler.requests_over_steps(steps, pages=10)


def _simulated(**settings):
    random = np.random.default_rng(0)
    work = [Work(int(p), int(o)) for p, o in zip(random.integers(3, 40, 10), random.integers(2, 18, 10), strict=True)]
    return simulate(work, **settings)


def _slots():
    return batches.slots({name: _simulated(scheduler=kind, max_num_seqs=4) for name, kind in (
        ("Static batching", StaticScheduler), ("Continuous batching", Scheduler))}, "Ten requests, four slots")


def _buffers():
    launches = llama_launches(1)
    live = liveness(launches)
    sizes = dict.fromkeys(sorted(set().union(*live)), 4000000) | {"gated": 33_000_000, "logits": 50_000_000}
    sizes = {name: size for name, size in sizes.items() if any(name in these for these in live)}
    return kv_cache.buffer_plan([launch.name for launch in launches], first_fit(sizes, live), sizes, live,
                               "Buffers that share memory")


def _shards():
    folder = ROOT / "data" / "tiny-llama"
    entries = read(folder / "model.safetensors").entries
    places, nbytes = layout({name: one.shape for name, one in entries.items()},
                            dict.fromkeys(entries, np.dtype(np.uint16)))
    return model_in_bytes.shards_and_blob({"model-00001-of-00001": entries}, places, nbytes)


def _layer_with_a_ring():
    decoder = Decoder(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256, eps=1e-5, scale=0.125)
    return one_kernel.with_and_without(one_kernel.decode_phases(decoder, 132, 4.0), 203.0, (0, 120, 131),
                                       kb_per_us=32.0, join_us=1.5, start_us=0.8, speed=3.0)


def _recorded_layer():
    """Made-up times of 132 blocks."""
    rng, marks = np.random.default_rng(0), [np.zeros(132)]
    for us in (2, 4, 1, 10, 6):
        marks.append(marks[-1] + 1000 * us * rng.uniform(0.8, 1, 132))
        marks.append(np.full(132, marks[-1].max() + 1500))
    panel = {"middle_layer_ns": np.array(marks).T.tolist()}
    return one_kernel.recorded_layer({"where": "NVIDIA H200", "date": "2026-11-29", "timelines": [
        {"sequences": 1, **panel}, {"sequences": 8, **panel}]})


def _file_layout():
    found = read(ROOT / "data" / "tiny-gpt2" / "model.safetensors").entries
    return file_to_token.file_layout(found, 7392, list(found)[:6])


def _layers():
    return fast_encoder.layer_of_each_step({one.name: launches_of_layer(one, Config(), [9, 30]) for one in STEPS})


def _cosines():
    texts = ["The kernel reads each row of the matrix twice.", "Each row of the matrix is read two times.",
             "A cat sat on the mat.", "On the mat there was a cat, asleep.", "Shared memory has 32 banks.",
             "Paris is the capital of France.", "The capital of France is Paris, is it not?"]
    rows = np.random.default_rng(1).standard_normal((7, 5)) + 0.8
    return sentences.cosines(texts, rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _launches():
    return sentence_encoder.layer_launches(Config(), 4096)


def _head_weights():
    weights = np.tril(np.random.default_rng(0).random((8, 9, 9)) ** 4)
    weights /= weights.sum(axis=2, keepdims=True)
    words = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    return first_token.head_weights(words, weights, 2)


def _wavelengths():
    return llama_by_hand.wavelengths(frequencies(64, 500_000.0), frequencies(64, 500_000.0, LLAMA_3_2_1B.rope_scaling),
                                     8192, 1, 4)


def _rotations():
    return llama_by_hand.rotations(frequencies(32, 10_000.0), (0, 2, 4, 8))


def _next_token():
    words = [" good", " bad", " test", " very", " great", " nice", " new", " big", " small", " long", " fine", " joke",
             " dog", " cat", " man", "."]
    shares = np.sort(np.random.default_rng(3).dirichlet(np.full(16, 0.5)))[::-1]
    top = np.where(np.arange(16) < 5, shares, 0)
    return gpt2_writes.next_token(words, {"as the model says": shares, "temperature 0.5": shares**2 / (shares**2).sum(),
                                         "top_k 5": top / top.sum()}, 'After "This is a": the 16 likeliest tokens')


def _waits():
    random = np.random.default_rng(0)
    arrivals, long = np.sort(random.random(300)) * 9000, random.random(300) < 0.1
    return serving.waits({name: (arrivals, random.exponential(mean, 300), long)
                         for name, mean in (("FIFO", 45.0), ("Shortest first", 20.0))})


def _running_maximum():
    rng = np.random.default_rng(2)
    query, (keys, _) = 3 * rng.standard_normal(64), rng.standard_normal((2, 96, 64))
    return flash_attention.running_maximum(keys @ query / 8, tile=16)


def _engines():
    parts = dict.fromkeys(ENGINES, 6.0)
    return graphs_and_streams.engines({"title": "One stream: a calculation", "events": schedule(parts, 6, 1)},
                           {"title": "Three streams: a calculation", "events": schedule(parts, 6, 3)})


def _engines_seen():
    trace, names = recorded("streams_trace"), {1: "One stream", 3: "Three streams"}
    taken = f"Measured on {trace['where']}, {trace['date']}"
    return graphs_and_streams.engines(*({"title": f"{names[panel['streams']]}. {taken}", "events": panel["events"]}
                                        for panel in trace["panels"]))


ALL_LADDERS = ("vector_add", "broadcast_add", "reduce_sum", "softmax", "bias_gelu_add", "layernorm", "gelu", "linear",
               "attention", "matmul", "matmul_half", "logits", "attention_cached", "masked_softmax_causal",
               "skinny_linear")
PRODUCTS = ("matmul", "matmul_tf32", "matmul_half")
LAYOUT_LENGTHS = [5, 9, 33, 16, 12, 48, 7, 20, 15, 29, 11, 8] * 5

FIGURES = {
    "launch_map": lambda: plots.launch_map(10, 4),
    "round_trip": lambda: vector_add.round_trip(
        {**_trip("Here"), "where": CPU_DEVICE},
        _trip("NVIDIA H200, 2026-11-21; n=10,000,000; copies from the recorded rates")),
    "owners": lambda: vector_add.owners(n=29, block=4, rungs=("per_thread", "grid_stride", "four_loads")),
    "ladder_vector_add": lambda: plots.ladder(on_cpu("vector_add")),
    "ladder_matmul_half": lambda: plots.ladder(ladder_of("matmul_half"), None),
    "ladder_masked_softmax": lambda: plots.ladder(on_cpu("masked_softmax_causal")),
    "ladder_two_gpus": lambda: plots.ladder(on_another("softmax")),
    "ladder_unrecorded": lambda: plots.ladder(on_cpu("softmax"), None),
    "climbs": lambda: plots.climbs([ladder_of(name) for name in CLIMBED]),
    "crossover": lambda: plots.crossover(here(recorded("vector_add_sizes"))),
    "crossover_two_gpus": lambda: plots.crossover(theirs(recorded("vector_add_sizes"))),
    "block_shapes": lambda: plots.block_shapes(here(recorded("volume_add_block_shapes"))),
    "sizes": lambda: plots.sizes(here(recorded("matmul_sizes"))),
    "traffic": lambda: plots.traffic({"causal_unfused": (2.01, 2.24), "causal_bounded": (0.508, 0.906),
                                      "PyTorch": (3.06, 2.76)}, "What memory delivers", "passes over the array",
                                     least=1.5, place="Measured on an H200 by ncu"),
    "curves": lambda: plots.curves((16, 128, 1024, 4096), {"CUDA C++, ten kernels": (150, 160, 400, 1600),
                                   "PyTorch, float32": (140, 150, 380, 1500), "seven, float32": (120, 130, 370, 1480)},
                                   "One block, over the tokens", "tokens", "microseconds", log_x=True, log_y=True,
                                   place="Measured on NVIDIA H200", marks=True),
    "curves_one": lambda: plots.curves(np.linspace(-4, 4, 50), {"apart": np.linspace(-4, 4, 50) ** 2},
                                       "GELU: the tanh form less the exact one", "x", "difference"),
    "broadcast_reads": lambda: broadcast.broadcast_reads((2, 3, 4), mark=(1, 2, 3)),
    "warp_addresses": lambda: plots.warp_addresses({
        "naive: a[row, k]": 4096 * (LANES // 2), "naive: b[k, col]": LANES % 2, "naive: out[row, col]":
        4096 * (LANES % 16) + LANES // 16, "coalesced: a[row, k]": 4096 * (LANES // 16), "coalesced: b[k, col]":
        LANES % 16, "coalesced: out[row, col]": LANES}, "What one warp touches"),
    "warp_addresses_two": lambda: plots.warp_addresses({"1024 \u00d7 1 \u00d7 1": LANES, "4 \u00d7 4 \u00d7 64":
                                                        LANES % 4 + 512 * (LANES // 4)}),
    "banks": lambda: plots.banks({"rows of 8": lambda row, col: 8 * row + col,
                                  "rows of 9": lambda row, col: 9 * row + col,
                                  "col ^ row": lambda row, col: 8 * row + (col ^ row)}),
    "tile_walk": lambda: matmul.tile_walk(M=7, N=11, K=10, tile=4, block=(2, 1)),
    "block_orders": matmul.block_orders,
    "warp_tile": matmul_to_the_limit.warp_tile,
    "reading_ahead": matmul_to_the_limit.reading_ahead,
    "product_order": matmul_to_the_limit.product_order,
    "thread_tile": lambda: matmul_to_the_limit.thread_tile(threads=4, size=4),
    "mma_lanes": lambda: tensor_cores.mma_lanes(lane=13),
    "overlap": matmul_plots.overlap,
    "roofline": lambda: plots.roofline([ladder_of("broadcast_add"), ladder_of("matmul")]),
    "roofline_attention": lambda: plots.roofline([ladder_of("attention"), ladder_of("attention_cached")]),
    "roofline_products": lambda: plots.roofline([ladder_of(name) for name in ("matmul", "matmul_half")]),
    "every_rung": lambda: plots.every_rung([ladder_of(name) for name in ALL_LADDERS if ladder_of(name)]),
    "every_rung_products": lambda: plots.every_rung([ladder_of(name) for name in PRODUCTS if ladder_of(name)],
                                                    "The products of this lesson"),
    "timeline": _timeline,
    "copy_cost": lambda: where_time_goes.copy_cost(here(recorded("copy_sizes"))),
    "remembered": graphs_and_streams.remembered,
    "launch_cost": lambda: graphs_and_streams.launch_cost(here(recorded("launch_sizes"))),
    "two_readings": lambda: libraries.two_readings(2, 3),
    "libraries_masks": lambda: other_ways.masks(n=19, block=8),
    "over_rows": lambda: other_ways.over_rows(here(recorded("softmax_rows"))),
    "languages": other_ways.languages,
    "over_tiles": other_ways.over_tiles,
    **{f"tree_{kind}": lambda kind=kind: reductions.tree(kind) for kind in reductions.TITLES},
    "grid_stride": reductions.grid_stride,
    "wide_loads": reductions.wide,
    "join": softmax.join,
    "private_bins": histogram.private_bins,
    "masks": fused_masked_softmax.masks,
    "quads": lambda: layernorm.quads(columns=27, lanes=4),
    "launch_floor": lambda: fused_masked_softmax.launch_floor(recorded("masked_softmax_sizes")),
    "qkv_rows": attention.qkv_rows,
    "tiles": flash_attention.tiles,
    "over_lengths": lambda: flash_attention.over_lengths(here(recorded("attention_sizes"))),
    "over_caches": lambda: flash_attention.over_caches(here(recorded("attention_keys"))),
    "over_linear": lambda: linear_attention.over_linear(recorded("linear_attention_lengths")),
    "linear_costs": linear_attention.linear_costs,
    "layer_with_a_ring": _layer_with_a_ring,
    "recorded_layer": _recorded_layer,
    "seven_launches": faster_block.seven_launches,
    "ten_launches": lambda: gpt2_block.ten_launches(tokens=1024),
    "two_orders": gpt2_block.two_orders,
    "file_layout": _file_layout,
    "cache_curve": lambda: gpt2_writes.cache_curve(here(recorded("cache_curve"))),
    "next_token": _next_token,
    "step_shares": lambda: gpt2_writes.step_shares(recorded("step_launches")),
    "generation_rates": lambda: gpt2_writes.rates(recorded("generation")),
    "cosines": _cosines,
    "layer_launches": _launches,
    "layouts": lambda: sentence_encoder.layouts(LAYOUT_LENGTHS),
    "layer_of_each_step": _layers,
    "step_times": lambda: fast_encoder.step_times(recorded("minilm_ladder")),
    "score_matrices": lambda: fast_encoder.score_matrices([8, 12, 15, 12, 20, 23, 29, 35]),
    "bits_of": lambda: bfloat16.bits_of(12.34),
    "spacing": bfloat16.spacing,
    "strips": keep_or_recompute.strips,
    "linear_products": gradients.linear_products,
    "step_sizes": lambda: gradients.step_sizes(np.logspace(0, -12, 25), {"float64": np.logspace(0, -10, 25),
                                                                         "float32": np.logspace(-4, 0, 25)}),
    "shards_and_blob": _shards,
    "bytes_of_a_token": lambda: model_in_bytes.bytes_of_a_token({
        "attention weights": 335_500_000, "MLP weights": 1_610_600_000, "head: the embedding again": 525_000_000,
        "keys and values": 33_000_000, "norms": 135_000}, 4230.0),
    "rotations": _rotations,
    "wavelengths": _wavelengths,
    "head_weights": _head_weights,
    "rows_on_roofline": lambda: kv_cache.rows_on_roofline(
        {rows: (2e9 * rows, 2e9 + 6e5 * rows) for rows in (1, 8, 64, 512, 4096)}, 4230.0, 868.0, "an H200"),
    "over_positions": lambda: kv_cache.over_positions(
        list(range(20)), {"MFLOP for a token": [11.2] * 20, "ms of CPU time": [2.0] * 20},
        {"MFLOP for a token": [18.0 * t + 11 for t in range(20)], "ms of CPU time": [3.0 * t + 2 for t in range(20)]},
        "Here"),
    "buffer_plan": _buffers,
    "slots": _slots,
    "page_table": _page_table,
    "page_reads": lambda: paged_attention.page_reads(64),
    "paged_rates": lambda: paged_attention.rates((1, 32, 256), {"one_block": (133, 2448, 3313), "SDPA": (
        382, 3556, 4398)}, 4497.0),
    "rows_and_keys": lambda: paged_attention.rows_and_keys([20, 7, 1], [20, 23, 40]),
    "tokens_of_steps": lambda: the_scheduler.tokens_of_steps({
        f"a budget of {budget:,}": _simulated(max_num_batched_tokens=budget) for budget in (2048, 24)}),
    "requests_over_steps": _history,
    "host_and_device": lambda: the_engine.host_and_device(1013.0, 2500.0),
    "decode_steps": lambda: engine.decode_steps(recorded("llama_decode")),
    "seats": lambda: engine.seats(recorded("engine")),
    "queues_curves": lambda: serving.curves([64, 128, 256, 512, 1024, 2048], {
        "time to first token, ms": {"p50": [34, 12, 6, 4, 3, 2.2], "p99": [159, 120, 90, 80, 70, 64]},
        "between two tokens, ms": {"p50": [2, 2.2, 2.5, 3, 3.5, 4], "p99": [4, 5, 8, 13, 20, 28]}},
        "What a budget costs", "tokens of a step, at most", doubling=True),
    "waits": _waits,
    "serve": lambda: serve.load(recorded("serve")),
    "training": lambda: training.loss_curve([
        {"step": step, "loss": 2 + 4 / step} | ({"held_out": 2.5 + 3 / step} if step % 10 == 0 else {})
        for step in range(1, 51)]),
    "serve_distributions": lambda: serve.distributions(recorded("serve")),
    "serve_against_rate": lambda: serve.against_rate(recorded("serve")),
    "split": lambda: the_machine.split([lane % 2 for lane in range(32)]),
    "split_in_a_part": lambda: the_machine.split([lane < 20 for lane in range(32)]),
    "hidden": lambda: the_machine.hidden(warps=(1, 3, 6), wait=5),
    "schedule": lambda: the_machine.schedule(blocks=14, places=6),
    "branches": lambda: the_machine.branches(recorded("machine")),
    "bytes_in_flight": lambda: the_machine.bytes_in_flight(recorded("machine")),
    "occupancy": lambda: the_machine.occupancy(recorded("machine")),
    "waves": lambda: the_machine.waves(recorded("machine")),
    "spills": lambda: the_machine.spills(recorded("machine")),
    "memories": lambda: the_machine.memories(recorded("machine")),
    "four_steps": attention.four_steps,
    "strides": attention.strides,
    "running_maximum": _running_maximum,
    "plain_block": flash_attention.plain_block,
    "register_tiles": flash_attention.register_tiles,
    "factor_in_place": lambda: flash_attention.factor_in_place(lane=13),
    "warpgroup_in_time": flash_attention.schedules,
    "scan_steps": scan.steps,
    "scan_tree": scan.tree,
    "scan_tree_of_sixteen": lambda: scan.tree((1,) * 16),
    "look_back": scan.look_back,
    "compaction": scan.compaction,
    "engines": _engines,
    "engines_seen": _engines_seen,
    "chunks": lambda: graphs_and_streams.chunks(recorded("streams")),
    "climb": lambda: matmul_plots.climb(ladder_of("matmul"), "pipelined"),
    "climb_half": lambda: matmul_plots.climb(ladder_of("matmul_half"), "f16_accumulators", against="double_buffered"),
    "ldmatrix": lambda: tensor_cores.ldmatrix(lane=13),
    "swizzle": tensor_cores.swizzle,
    "warpgroup": lambda: hopper.warpgroup(columns=128),
    "tma": hopper.tma,
    "specialised": hopper.specialised,
    "specialised_slow_loads": lambda: hopper.specialised(load=3.0),
}
