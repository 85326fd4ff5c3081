"""`labkit report`: the whole comparison with the article's fused softmax as one page, with its figures inside.

    page.write(Path("build/report.html"), page_of)                      # what a GPU recorded, and the checks made here
    page.write(path, lambda: page_of(here=measure_here()))              # and this machine's own times beside it

It is an article on a fused masked softmax in GPT-2 (distilgpt2) on an NVIDIA L4. Each of its figures and tables
has a counterpart here, measured by us; its own numbers stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from labkit import cuda, device, measure
from labkit._common.errors import UserError
from labkit._common.tables import PlainTable, number
from labkit.device import occupancy
from labkit.device.launches import record, resources
from labkit.kernels.softmax.masked import (
    masked_softmax_reference,
    masked_softmax_single_read,
    masked_softmax_three_read,
    masked_softmax_unfused,
)
from labkit.measure import CPU_DEVICE, comparisons, plots
from labkit.measure import ncu as counters
from labkit.measure.page import Badge, Folded, Page, Section, written_badge
from labkit.measure.plots import generation as generation_pictures
from labkit.measure.series import generation as experiment
from labkit.measure.series import softmax as softmax_series

SERIES = ("generation", "step_launches", "masked_softmax_sizes", "memory_latency")

# What the article says, NVIDIA L4. Microbenchmark, one matrix: (S, mask) -> p50, p5, p95 in us of its baseline and of
# its fused kernel, GB/s of both, and the ratio in the table and in the log of another run.
MICROBENCHMARK = {
    (512, "none"): ((37, 36, 59), (30, 29, 39), (167.30, 62.80), 1.27, 1.27),
    (512, "causal"): ((141, 133, 163), (30, 29, 37), (47.28, 63.71), 4.78, 4.77),
    (1024, "none"): ((37, 36, 46), (30, 29, 41), (709.32, 251.22), 1.24, 1.22),
    (1024, "causal"): ((139, 135, 159), (30, 29, 41), (190.62, 250.97), 4.65, 4.71),
}
TRAFFIC = {(1, 512): (7_342_080, 2_097_152), (1, 1024): (29_364_224, 8_388_608)}
THEIR_BLOCK = {"multiprocessors": 58, "threads": 1536, "block": 256, "warps": 8, "shared_bytes": 256, "blocks": 6,
               "occupancy": 1.0}


# --- Measured here ---------------------------------------------------------------------------------------------------


def measure_here(model: str | None = None, prompts: Iterable[str] | None = None) -> dict:
    """The series of the page, taken on this machine. prompts: texts in place of the article's three."""
    models = [model] if model or prompts is None else ["tiny"]
    result = {"generation": experiment.generation(models if model or prompts else None, prompts)}
    if prompts is None:
        result["masked_softmax_sizes"] = softmax_series.masked_softmax_sizes()
        result["step_launches"] = experiment.step_launches()
        if device.on_gpu():
            result["memory_latency"] = softmax_series.memory_latency()
    return result


# --- The sections ----------------------------------------------------------------------------------------------------


def page_of(local: dict | None = None) -> Page:
    known = measure.recorded()
    badge = () if known is None else (Badge(f"Ours: {known['machine']['device']}, {known['machine']['date']}", True),)
    return Page("A fused softmax in GPT-2",
                "Figures 1 to 8, 10 and 11 and tables 1 to 4 of a report on a fused masked softmax, each with its "
                "counterpart from this course.",
                (Badge("Theirs: distilgpt2, PyTorch and CUDA C++, NVIDIA L4"), *badge, written_badge()),
                tuple(sections(local)))


def sections(local: dict | None = None) -> list[Section]:
    """All of the page. Sections without their recording say so."""
    local = local or {}
    known = {name: measure.recorded_series(name) for name in SERIES}
    both = {name: [series for series in (known[name], local.get(name)) if series] for name in SERIES}
    return [summary(both), loaded(both), right(), traffic(), alone(both), text(both), vanished(both), memory(both),
            parallel(), block()]


def loaded(both: dict) -> Section:
    from labkit.models.load import load

    rows = [("theirs, NVIDIA L4", "distilgpt2 from the hub: model.safetensors, 353 MB, on the GPU")]
    rows += [(series["where"].split(":")[0], one["log"]) for series in both["generation"] for one in series["models"]]
    try:
        rows.append((f"{measure.where().split(':')[0]}, now", load("tiny").log))
    except UserError as error:
        rows.append(("here", str(error)))
    return Section("A model is loaded", "Figure 1", (
        PlainTable("", ("where", "the log's line"), tuple(rows)),
        "distilgpt2 has 81.9 million parameters, 328 MB in float32. Six causal masks of 1,024 × 1,024 numbers, which "
        "its file carries along, make up the rest of the 353 MB."))


def right() -> Section:
    """The article's two checks, made on the device at hand."""
    scores = np.random.default_rng(0).standard_normal((1, 64, 64), dtype=np.float32)
    results = {}
    for name, launch in (("unfused", masked_softmax_unfused), ("three_read", masked_softmax_three_read),
                         ("single_read", masked_softmax_single_read)):
        out = cuda.device_array(scores.shape, np.float32)
        launch(cuda.to_device(scores), out, causal=True, scale=0.125)
        results[name] = out.copy_to_host().astype(np.float64)
    sums = results["unfused"].sum(axis=-1)
    truth = masked_softmax_reference(scores, causal=True)
    rows = [("sum of a row, unfused", "1.000000 (1.000000 to 1.000000)",
             f"{sums.mean():.6f} ({sums.min():.9f} to {sums.max():.9f})")]
    difference = np.abs(results["three_read"] - results["unfused"])
    rows += [("fused and unfused, largest difference", "0.000000", f"{difference.max():.1e}"),
             ("mean difference", "0.000000", f"{difference.mean():.1e}"),
             ("relative", "0.000000", f"{difference.max() / results['unfused'].max():.1e}")]
    rows += [(f"{name} and NumPy in float64", "-", f"{np.abs(result - truth).max():.1e}")
             for name, result in results.items()]
    return Section("The result is right", "Figures 2 and 3", (
        PlainTable("A matrix of 64 × 64, causal, scale 0.125", ("", "theirs", "ours"), tuple(rows),
                   (f"Computed now, {measure.where()}.",)),
        "Six digits after the point show zeros for what is below half a millionth. And two kernels that agree may "
        "both be wrong: the comparison that counts is the one with float64."))


def traffic() -> Section:
    rows = []
    for B, S in ((1, 512), (1, 1024), (64, 1024)):
        moved = 4 * (7 * B * S * S + B * S), 8 * B * S * S
        article = TRAFFIC.get((B, S))
        rows.append((f"{B} × {S:,} × {S:,}", *(f"{n:,}" for n in moved), f"{1 - moved[1] / moved[0]:.1%}",
                     *("-" if article is None else f"{n:,}" for n in article or (0, 0)),
                     "-" if article is None else f"{1 - article[1] / article[0]:.1%}"))
    parts: list = [PlainTable(
        "Bytes by the article's model", ("", "unfused", "fused", "saved", "theirs: unfused", "fused", "saved"),
        tuple(rows), ("Unfused: seven passes over the array and a number for each row; fused: one reading and one "
                      "writing. The article's summary says about 75%, and its headings count four passes against one; "
                      "its bytes are those of seven against two.",))]
    counters_recorded = counters.recorded()
    if counters_recorded and "masked_softmax_causal" in counters_recorded["ops"]:
        moved = {}
        for row in counters_recorded["ops"]["masked_softmax_causal"]["rows"]:
            name = row["name"].split(" (")[0]
            read, written = moved.get(name, (0.0, 0.0))
            moved[name] = read + row["dram_read"] / 2**28, written + row["dram_write"] / 2**28
        parts += [plots.traffic(moved, "What memory delivers, causal, 64 × 1,024 × 1,024", "passes over the array",
                                place="Measured on an H200 by Nsight Compute"),
                  "A row of 4 KB stays in a cache while its block reads it again, so the kernel of three loops reads "
                  "memory once. What is hidden by the mask is not read at all by bounded and single_read."]
    return Section("The bytes", "Figure 4, Table 2", tuple(parts))


def _us(timing: dict) -> str:
    p5, p50, p95 = (1000 * timing[name] for name in ("p5", "p50", "p95"))
    return f"{p50:.1f} ({p5:.1f}–{p95:.1f})"


def _rates(S: int, B: int, slow: float, fast: float) -> str:
    """GB/s of both by the article's count of bytes, seven passes and two, from times in ms."""
    return f"{4 * (7 * B * S * S + B * S) / slow / 1e6:,.0f}, {8 * B * S * S / fast / 1e6:,.0f}"


def microbenchmark_table(series: dict) -> PlainTable:
    """The article's four cases, ours and its own."""
    rows = []
    for row in _article_sizes(series):
        S, slow, fast = row["S"], row["unfused"]["p50"], row["fused"]["p50"]
        (one, other, rates, ratio, logged) = MICROBENCHMARK[S, row["mask"]]
        article = (f"{p50} ({p5}–{p95})" for p50, p5, p95 in (one, other))
        rows.append((f"1 × {S:,}, {row['mask']}", "ours", _us(row["unfused"]), _us(row["fused"]),
                     _rates(S, 1, slow, fast), f"{slow / fast:.2f}"))
        rows.append(("", "theirs", *article, "{:.0f}, {:.0f}".format(*rates), f"{ratio:.2f} (log: {logged:.2f})"))
    return PlainTable(f"Masked softmax called from Python, us: p50 (p5–p95); unfused by {series['unfused']}",
                      ("", "", "unfused", "fused", "GB/s", "ratio"), tuple(rows),
                      (f"Ours: {series['where']}, {series['date']}; {series['warm_up']} calls to warm up, then "
                       f"{series['runs']}. Theirs: NVIDIA L4; the log is that of another run.",
                       "GB/s by the article's count of bytes: seven passes and two."))


def further_sizes_table(series: dict) -> PlainTable:
    def graphs(row):
        timings = [row[key] for key in ("unfused_graph", "fused_graph")]
        if not all(timings):
            return "-", "-", "-"
        unfused, fused = (1000 * timing["p50"] for timing in timings)
        return f"{unfused:.1f}", f"{fused:.1f}", f"{unfused / fused:.2f}"

    rows = tuple((f"{row['B']} × {row['S']:,}, {row['mask']}", _us(row["unfused"]), _us(row["fused"]),
                  f"{row['unfused']['p50'] / row['fused']['p50']:.2f}", *graphs(row)) for row in series["rows"])
    return PlainTable("All sizes, us: called from Python, and in a graph",
                      ("", "unfused, called", "fused, called", "ratio", "unfused, graph", "fused, graph", "ratio"),
                      rows,
                      (f"{series['where']}, {series['date']}.",))


def _article_sizes(series: dict) -> list[dict]:
    return [row for row in series["rows"] if row["B"] == 1 and (row["S"], row["mask"]) in MICROBENCHMARK]


def _speedups(series: dict) -> dict[str, list[float]]:
    """The speed-up of the fused kernel in the article's four cases, called from Python and in a graph."""
    cases = _article_sizes(series)
    return {how: [row[f"unfused{key}"]["p50"] / row[f"fused{key}"]["p50"] for row in cases if row[f"fused{key}"]]
            for how, key in (("called", ""), ("graph", "_graph"))}


def _ratios(series: dict) -> tuple[float, float] | None:
    """The mean speed-up of the fused kernel over the article's four cases, and that of the rate in GB/s."""
    cases = _article_sizes(series)
    if len(cases) < 4:
        return None
    ratios = _speedups(series)["called"]
    rates = [2 * row["S"] / (7 * row["S"] + 1) * ratio for row, ratio in zip(cases, ratios, strict=True)]
    return float(np.mean(ratios)), float(np.mean(rates))


def _beside_the_fastest(where: str) -> tuple[float, str] | None:
    """Our speed over that of the fastest baseline in the article's four cases, in a graph: the mean, and what those
    baselines are. None where they were not all recorded."""
    rated = []
    for S, mask in MICROBENCHMARK:
        ladder = measure.recorded_ladder(f"masked_softmax_{mask}", {"B": 1, "S": S})
        if ladder is not None and ladder.where == where:
            rated.append(comparisons.of_ladder(ladder))
    if len(rated) < len(MICROBENCHMARK) or any(one.ratio is None for one in rated):
        return None
    return float(np.mean([one.ratio for one in rated])), " or ".join(dict.fromkeys(one.baseline[0] for one in rated))


def alone(both: dict) -> Section:
    parts: list = []
    for series in both["masked_softmax_sizes"]:
        if series["rows"][0]["fused_graph"]:
            parts.append(plots.launch_floor(series))
        if _article_sizes(series):
            parts.append(microbenchmark_table(series))
        parts.append(Folded(f"All sizes, {series['where'].split(':')[0]}", (further_sizes_table(series),)))
    article = [case[3] for case in MICROBENCHMARK.values()]
    measured = [f"ours {number(ratios[0])} and {number(ratios[1])} ({series['where']})"
                for series in both["masked_softmax_sizes"] if (ratios := _ratios(series))]
    parts.append(f"Mean speed-up over the four cases, and mean ratio of the rates in GB/s: theirs "
                 f"{np.mean(article):.2f} and 0.85{'; ' if measured else ''}{'; '.join(measured)}. Two sizes that "
                 "differ by a factor of four in work take the same time in the article: what was timed is the launch. "
                 "It is the same with ours. Called from Python, a kernel launched by numba-cuda costs some tens of "
                 "microseconds, since Numba looks at every argument in Python, and PyTorch in C++. In a recording "
                 "from before labkit packed arguments itself, ours is the slower call at these sizes, whatever the "
                 "kernel does. "
                 "In a graph, where no launch waits for Python, every size has a time of its own.")
    return Section("The kernel alone", "Figures 5 and 6, Table 1", tuple(parts))


def _missing(name: str) -> str:
    return (f"No GPU has recorded this yet: labkit bench {name} does, and labkit report --measure takes it on the "
            "machine at hand.")


def text(both: dict) -> Section:
    parts: list = []
    for series in both["generation"]:
        tables = {(one["name"], how): experiment.generation_table(series, one["name"], how) for one in series["models"]
                  for how in dict.fromkeys(row["how"] for row in one["prompts"][0]["rows"])}
        if not tables:
            continue
        table = tables.pop(next((key for key in tables if key[0].startswith("distilgpt2")), next(iter(tables))))
        parts += [generation_pictures.rates(series), table]
        if tables:
            parts.append(Folded(f"{len(tables)} more tables: " + "; ".join(
                f"{name}, {experiment.HOWS[how]}" for name, how in tables), tuple(tables.values())))
    if not parts:
        rows = tuple((prompt if name == "unfused" else "", name, f"{rate:.2f}", f"{ms:.3f}", f"{s:.3f}")
                     for prompt, pair in experiment.SOURCE.items()
                     for name, (rate, ms, s) in zip(("unfused", "fused"), pair, strict=True))
        parts = [PlainTable("Theirs, distilgpt2 on an NVIDIA L4",
                            ("prompt", "softmax", "tokens/s", "ms/token", "p50, s"), rows), _missing("generation")]
    return Section("Text is generated", "Figures 7 and 8, Table 3", tuple(parts))


def vanished(both: dict) -> Section:
    parts: list = [
        "The article finds a kernel that is three times as fast in the mean, and a program as fast as before. Amdahl's "
        "law says why: if a part takes the share p of the time and becomes s times as fast, the whole becomes "
        "1 / (1 - p + p / s) times as fast, and never more than 1 / (1 - p). With a cache, a step of generation has "
        "one row of scores for each head, not a square; the softmax of one row is a small part of it."]
    for series in both["generation"]:
        if not series["models"]:
            continue
        parts += [generation_pictures.gains(series), experiment.amdahl_table(series)]
        errors = experiment.apart(series)
        if "graph" in errors and "called" in errors:
            parts.append(f"Share and speed-up were measured apart from the whole. In a graph the whole does what the "
                         f"law says, to {errors['graph']:.1%}. Called from Python it is {errors['called']:.1%}: there "
                         "the softmax's launches were timed one after the other, and among all the others each "
                         "takes longer, I suppose. A measured gain may then be above "
                         "the table's \"at most\".")
    for series in both["step_launches"]:
        if series["where"] != CPU_DEVICE:
            parts.append("What else there is in a step, launch by launch. Most take much longer than their bytes need: "
                         "each has one row to work on, and waits most of its time.")
        parts.append(generation_pictures.step_shares(series))
    if len(parts) == 1:
        parts.append(_missing("generation"))
    return Section("Where the gain went", "Figures 7, 8 and 11: 1.00×", tuple(parts))


def memory(both: dict) -> Section:
    parts: list = ["What the article says of memory, in numbers: the steps of the unfused way hand an array of "
                   "scores over through global memory, the fused kernel keeps a row on the chip. So long takes a load "
                   "that waits for the one before it:"]
    for series in both["memory_latency"]:
        rows = tuple((name, f"{one['ns']:,.0f}", f"{one['ns'] / series['places']['shared memory']['ns']:.1f}")
                     for name, one in series["places"].items())
        parts.append(PlainTable("One load after another", ("from", "ns", "times shared memory"), rows,
                                (f"Measured on {series['where']}, {series['date']}.",)))
    return Section("Memory hierarchy", "Figure 8, end", tuple(parts))


def parallel() -> Section:
    return Section("Parallel work", "Figure 10", (
        plots.reductions(),
        "The maximum of a row of scores and the sum of its exponentials are found in two levels: shuffles inside a "
        "warp, five steps for 32 lanes, then one number of each warp through shared memory. single_read goes "
        "further where a row fits into the registers of one warp: there is no second level, and no barrier. (The "
        "article has no Figure 9.)"))


def block() -> Section:
    t = THEIR_BLOCK
    L4 = occupancy.L4
    rows = [("theirs", "L4", str(t["multiprocessors"]), f"{t['threads']:,}", str(t["block"]),
             str(t["warps"]), "-", str(t["shared_bytes"]), str(t["blocks"]), f"{t['occupancy']:.0%}"),
            ("theirs, computed", "L4", str(L4.multiprocessors), f"{L4.threads:,}", "256", "8", "32 assumed", "256",
             str(occupancy.blocks(L4, 256, 32, 256)), f"{occupancy.occupancy(L4, 256, 32, 256):.0%}")]
    gpu = occupancy.H200
    ladder = measure.recorded_ladder("masked_softmax_causal")
    resources = [one for row in ladder.rungs for one in row.resources] if ladder else []
    if device.on_gpu():
        gpu, resources = occupancy.of_device(), _now()
    for one in resources:
        threads = int(np.prod(one["block"]))
        need = threads, one["registers"], one["shared_bytes"]
        rows.append((one["kernel"].removesuffix("_kernel"), gpu.name.removeprefix("NVIDIA "), str(gpu.multiprocessors),
                     f"{gpu.threads:,}", str(threads), str(-(-threads // 32)), str(one["registers"]),
                     f"{one['shared_bytes']:,}", str(occupancy.blocks(gpu, *need)),
                     f"{occupancy.occupancy(gpu, *need):.0%}"))
    return Section("What a block takes", "Table 4", (
        PlainTable("Resources and occupancy", ("kernel", "GPU", "SMs", "threads/SM", "block", "warps", "registers",
                                               "shared bytes", "blocks/SM", "occupancy"), tuple(rows)),
        "A kernel takes no silicon, as the article says under Silicon Area; it takes registers and shared memory, and "
        "those limit how many blocks a multiprocessor holds. The fastest kernel, masked_softmax_warp_row, has the "
        "lowest occupancy: it has many loads in flight in each warp, and no need of many warps."))


def _now() -> list[dict]:
    scores = cuda.to_device(np.zeros((1, 512, 512), np.float32))
    out = cuda.device_array(scores.shape, np.float32)
    with record(masked_softmax_single_read.kernel) as launched:
        masked_softmax_single_read(scores, out, causal=True)
    return [resources(one) for one in launched]


def summary(both: dict) -> Section:
    """The question, and the article's Figure 11: the kernel's speed-up beside the program's."""
    kernel = float(np.mean([case[3] for case in MICROBENCHMARK.values()]))
    program = float(np.mean([rates[1][0] / rates[0][0] for rates in experiment.SOURCE.values()]))
    rows = [("NVIDIA L4 (theirs)", "distilgpt2, from PyTorch", f"{kernel:.2f}", "-", f"{program:.3f}")]
    cases = [("NVIDIA L4, called from PyTorch:\nthe article's", kernel, program, None)]
    pairs_of: dict[tuple[str, str], list] = {}  # (GPU, how it was launched) -> (the kernel, the program) of each model
    kernels = {(series["where"], how): float(np.mean(ratios)) for series in both["masked_softmax_sizes"]
               for how, ratios in _speedups(series).items() if ratios}
    for series in both["generation"]:
        gpu = series["where"].split(":")[0]
        for one in series["models"]:
            for how in dict.fromkeys(row["how"] for row in one["prompts"][0]["rows"]):
                rates = [{row["attention"]: row["tokens_per_second"] for row in prompt["rows"] if row["how"] == how}
                         for prompt in one["prompts"]]
                gain = float(np.mean([rate["fused"] / rate["unfused"] for rate in rates]))
                part = kernels.get((series["where"], how))
                fastest = _beside_the_fastest(series["where"]) if how == "graph" else None
                rows.append((gpu, f"{one['name']}, {experiment.HOWS[how]}", "-" if part is None else f"{part:.2f}",
                             "-" if fastest is None else f"{fastest[0]:.2f}", f"{gain:.3f}"))
                if part is not None:
                    pairs_of.setdefault((gpu, how), []).append((part, gain))
                    cases.append((f"{gpu.removeprefix('NVIDIA ')}, {experiment.HOWS[how]}: "
                                  f"{generation_pictures.labelled(one['name'])}", part, gain, None))
    parts: list = [
        "An article presents a softmax that scales, masks and normalises in one kernel, in place of PyTorch's separate "
        "steps. Its authors put it into distilgpt2 and let it write. The kernel alone was "
        f"{kernel:.2f} times as fast, in the mean. The program was {program:.2f} times as fast. This page asks the "
        "same questions of the kernels of this course, figure by figure and table by table. Theirs are the article's "
        "numbers, ours are measured."]
    parts += [_headline(*key, pairs) for key, pairs in sorted(pairs_of.items())]
    parts += [generation_pictures.both_speedups(
        cases, "The softmax alone (grey) and the text written with it (blue)",
        "Theirs, and ours launched in both ways" if pairs_of else "Theirs", "times as fast by fusing"),
        PlainTable("Mean speed-up by fusing", ("where", "model", "the kernel", "beside the fastest", "tokens a second"),
                   tuple(rows), (
            "The kernel: masked softmax of one matrix of 512 and 1,024, with and without a mask, over a library's "
            "separate steps, launched as the model's kernels are. Beside the fastest: over the fastest baseline that "
            "was measured. Tokens a second: softmax in one launch over softmax in three, all of them ours.",
            *(("Below 1: at these sizes one call of ours from Python costs more than a library's calls. See: The "
               "kernel alone.",) if any(value < 1 for value in kernels.values()) else ())))]
    return Section("The question and the answer", "Figure 11", tuple(parts))


def _headline(where: str, how: str, pairs: list[tuple[float, float]]) -> str:
    """The kernel and the program, both launched in the same way: on both sides, ours and PyTorch's."""
    part, gains = pairs[0][0], [gain for _, gain in pairs]
    both = {"called": "launched from Python on both sides, as theirs was,", "graph": "in a graph on both sides,"}[how]
    slower = " A call of ours costs more than the three of PyTorch, whatever the kernel does."
    why = {"called": slower if part < 1 else "",
           "graph": " There the GPU's time counts and nothing else."}[how]
    kernel = f"{part:.2f} times as fast as PyTorch's separate steps"
    fastest = _beside_the_fastest(where) if how == "graph" else None
    if fastest is not None:
        kernel = f"{fastest[0]:.2f} times as fast as the fastest baseline ({fastest[1]}) and {kernel}"
    elif how == "called":
        kernel += " (not compiled)"
    return (f"On {where}, {both} our fused kernel is {kernel}, in the mean of the article's four cases. With softmax "
            f"in one launch in place of three, text comes {min(gains):.2f} to {max(gains):.2f} times as fast.{why}")
