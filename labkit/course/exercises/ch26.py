"""The exercises of lesson 26: a fair comparison, a padded batch packed, its offsets by a scan, shapes for few graphs.

Sizes are B sentences of at most S tokens.
"""

import numpy as np

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.ch25 import LENGTHS, UNTOUCHED, rows_for, some_begins, some_lengths
from labkit.course.exercises.demands import asks, elements_of_argument, one_reads_for_all
from labkit.models.minilm import few_values

# --- Predict: which PyTorch? ------------------------------------------------------------------------------------------


def _fair() -> dict:
    ours, theirs = 12 * 6 + 3, 105  # launches
    in_graph = 4 * ours  # microseconds
    flops_in_us, weights = 800_000_000, 40_000_000
    batch_us = max(in_graph, 90 * 20 * 2 * weights / flops_in_us)
    return {"graph_us": in_graph, "unlike": 12 * theirs / in_graph, "alike": 4 * theirs / in_graph,
            "even_rows": in_graph * flops_in_us // (2 * weights), "sentences_per_second": int(90e6 / batch_us)}


PREDICT_FAIR = PredictionExercise(
    name="predict_fair",
    truth=_fair,
    how={"graph_us": "12 times 6 launches and 3 more are 75, and each takes 4 microseconds.",
         "unlike": "105 launches of 12 microseconds are 1,260, and 1,260 / 300 is 4.2.",
         "alike": "105 launches of 4 microseconds are 420, and 420 / 300 is 1.4.",
         "even_rows": "A row takes two flops for each of 40 million weights, which at 800 TFLOP/s is a tenth of a "
                      "microsecond. In 300 microseconds that makes 3,000 rows.",
         "sentences_per_second": "1,800 rows take 180 microseconds at the peak, less than the launches: the pass still "
                                 "takes 300, and computes 90 sentences."},
    wrong={"the 3 launches outside of the layers are left out": {
               "graph_us": 288, "unlike": 4.375, "even_rows": 2880, "sentences_per_second": 312_500},
           "one layer alone": {"graph_us": 24},
           "PyTorch is called in the second ratio, too": {"alike": 4.2},
           "the times of a launch are compared, and not their numbers": {"unlike": 3, "alike": 1},
           "the launches are counted, and not their times": {"unlike": 1.4},
           "a multiplication and an addition are counted as one flop": {"even_rows": 6000},
           "the products' time at the peak, and the launches are forgotten": {"sentences_per_second": 500_000},
           "launches and products one after the other: 480 microseconds": {"sentences_per_second": 187_500},
           "passes in a second, not sentences": {"sentences_per_second": 1e6 / 300},
           "tokens in a second, not sentences": {"sentences_per_second": 6_000_000}},
)

# --- From padded to packed --------------------------------------------------------------------------------------------


def _packed_ids(ids, begins, lengths):
    out = _untouched(ids)
    for row, begin, length in zip(ids, begins, lengths, strict=True):
        out[begin : begin + length] = row[:length]
    return out


def _untouched(ids, *_):
    """What out holds before, and keeps where there is no token."""
    return np.full(rows_for(*ids.shape), UNTOUCHED, np.int32)


def _id_inputs(rng, B, S):
    lengths = some_lengths(rng, B, S)
    return rng.integers(1, 30_000, (B, S)).astype(np.int32), some_begins(rng, lengths), lengths


def _ids_with(words, lengths, gap):
    def turn(rng, ids, begins, old):
        new = lengths(old, ids.shape[1]).astype(np.int32)
        return ids, some_begins(rng, new, gap), new

    return Reach(words, turn, {"B": 4, "S": 9})


@cuda.jit
def pack_ids_one_round(ids, begins, lengths, out):
    b, place = cuda.blockIdx.x, cuda.threadIdx.x
    if place < lengths[b]:
        out[begins[b] + place] = ids[b, place]


PACK_IDS = KernelExercise(
    name="pack_ids",
    reference=_packed_ids,
    inputs=_id_inputs,
    shape=lambda B, S: (rows_for(B, S),),
    dtype=np.int32,
    start=_untouched,
    sizes=tuple({"B": B, "S": S} for B, S in ((1, 1), (2, 3), (4, 9), (3, 33), (2, 100))),
    launch=lambda B, S: (B, 32),
    benign_races=False,  # each id is copied by one thread
    domain=tuple(_ids_with(*each) for each in LENGTHS),
    wrong={
        "sentences are put where padded ones would begin": Edit("begins[b] + place", "b * ids.shape[1] + place"),
        "the tokens are those of the first sentence, for all of them": Edit("ids[b, place]", "ids[0, place]"),
        "32 tokens a sentence, and the rest is left out": pack_ids_one_round,
        "the last token is left out": Edit("lengths[b]", "lengths[b] - 1"),
        "the length is taken for the end": Edit("range(cuda.threadIdx.x, lengths[b], 32)",
                                                "range(cuda.threadIdx.x, lengths[b] - begins[b], 32)"),
        "the first token is left out: places begin at 0": Edit("range(cuda.threadIdx.x, lengths[b], 32)",
                                                               "range(cuda.threadIdx.x + 1, lengths[b], 32)"),
    },
)

# --- Where each sentence begins ---------------------------------------------------------------------------------------

SCANNED = 128  # sentences of a block, a thread each


@asks("Each length is loaded from global memory twice at most; sums are made of sums, in seven rounds, with no more "
      "than four loads from shared memory in a round of a thread.")
def _scan_loads(report) -> str | None:
    """Not every thread over all lengths before its own, be they in global or in shared memory."""
    lengths, enough = elements_of_argument(report, 0), 4 * 7 * SCANNED
    loads, shared = report.counts["global_loads"], report.counts["shared_loads"]
    if loads > 2 * lengths:
        return (f"It loads {loads:,} lengths from global memory, and {2 * lengths:,} are enough: each thread loads its "
                f"own. The others' are in shared memory, as sums.")
    if shared > enough:
        return (f"It loads {shared:,} numbers from shared memory; seven rounds with up to four loads a thread take "
                f"{enough:,} at most. Add sums of sums, with twice the distance in each round.")
    return one_reads_for_all(report, 4 * 7)


@cuda.jit
def begins_each_alone(lengths, begins):
    i = cuda.threadIdx.x
    if i < lengths.size:
        total = 0
        for before in range(i):
            total += lengths[before]
        begins[i] = total


@cuda.jit
def begins_each_alone_in_shared(lengths, begins):
    own = cuda.shared.array(128, np.int32)
    i = cuda.threadIdx.x
    own[i] = lengths[i] if i < lengths.size else 0
    cuda.syncthreads()
    if i < lengths.size:
        total = 0
        for before in range(i):
            total += own[before]
        begins[i] = total


SENTENCE_BEGINS = KernelExercise(
    name="sentence_begins",
    reference=lambda lengths: (np.cumsum(lengths) - lengths).astype(np.int32),
    inputs=lambda rng, B: rng.integers(0, 200, B).astype(np.int32),
    shape=lambda B: (B,),
    dtype=np.int32,
    sizes=tuple({"B": B} for B in (1, 3, 32, 33, 100, 128)),
    random_size=lambda rng: {"B": int(rng.integers(40, 128))},
    observe_sizes=({"B": 100},),
    launch=lambda B: (1, SCANNED),
    demand=_scan_loads,
    domain=(Reach("all sentences are empty", lambda rng, lengths: (0 * lengths,)),
            Reach("every sentence has a single token", lambda rng, lengths: (0 * lengths + 1,)),
            Reach("only the first sentence has tokens", lambda rng, lengths: (
                np.where(np.arange(lengths.size) == 0, np.int32(77), np.int32(0)),)),
            Reach("there are millions of tokens", lambda rng, lengths: (10_000_000 + lengths,), {"B": 128})),
    wrong={
        "a sum is changed while others read it: a barrier is missing after the reading":
            Edit("cuda.syncthreads()\nsums[i] += before", "sums[i] += before"),
        "the next round reads sums that are not yet written: a barrier is missing after the writing":
            Edit("sums[i] += before\ncuda.syncthreads()", "sums[i] += before"),
        "the own length is in the sum: that is where each sentence ends": Edit("sums[i] - lengths[i]", "sums[i]"),
        "the distance grows by one in each round: far lengths are added many times":
            Edit("distance *= 2", "distance += 1"),
        "a round too few: the first 64 lengths never reach the last 64": Edit("while distance < 128:",
                                                                         "while distance < 64:"),
        "only one round: a sentence begins where the one before it began, plus its length":
            Edit("while distance < 128:", "while distance < 2:"),
        "every thread adds up all lengths before its own, from global memory": begins_each_alone,
        "every thread adds up all lengths before its own, from shared memory": begins_each_alone_in_shared,
    },
)

# --- Few shapes, few graphs -------------------------------------------------------------------------------------------


def _rows_of_graphs(counts):
    return np.array([few_values(max(1, int(count)), 16) for count in counts])


def _counts(rng, n, most):
    return rng.integers(0, most + 1, n)


def _near_doubles(distance):
    return lambda rng, counts: (2 ** (5 + np.arange(len(counts)) % 25) + distance,)


def graph_rows_power_of_two(counts):
    return np.maximum(16, 2 ** np.ceil(np.log2(np.maximum(counts, 1)))).astype(int)


GRAPH_ROWS = FunctionExercise(
    name="graph_rows",
    reference=_rows_of_graphs,
    inputs=_counts,
    sizes=tuple({"n": n, "most": most} for n, most in ((1, 40), (9, 300), (40, 3000), (30, 10**9))),
    random_size=lambda rng: {"n": int(rng.integers(20, 60)), "most": int(rng.integers(2000, 100_000))},
    domain=(Reach("a batch has no tokens", lambda rng, counts: (0 * counts,)),
            Reach("the counts are allowed numbers already", lambda rng, counts: (_rows_of_graphs(counts),),
                  {"n": 40, "most": 3000}),
            Reach("the counts are powers of two", _near_doubles(0), {"n": 30, "most": 10**9}),
            Reach("the counts are one less than powers of two", _near_doubles(-1), {"n": 30, "most": 10**9}),
            Reach("the counts are one more than powers of two", _near_doubles(1), {"n": 30, "most": 10**9})),
    wrong={
        "multiples of 16 at any size: thousands of shapes": Edit("max(16, power // 16)", "16"),
        "multiples of p / 16 below 256 tokens, too: fewer than 16 rows apart": Edit("max(16, power // 16)",
                                                                        "max(1, power // 16)"),
        "the next power of two: up to half of the rows are empty": graph_rows_power_of_two,
        "p is the next power of two, and the steps are twice as wide":
            Edit("1 << max(count.bit_length() - 1, 0)", "1 << count.bit_length()"),
        "rounded down: the last tokens have no row": Edit("-(-max(count, 1) // step) * step",
                                                         "max(count // step, 1) * step"),
        "a number that is allowed already is rounded up to the next": Edit("-(-max(count, 1) // step) * step",
                                                                           "(count // step + 1) * step"),
        "no rows for no tokens": Edit("max(count, 1)", "count"),
    },
)

EXERCISES = (PREDICT_FAIR, PACK_IDS, SENTENCE_BEGINS, GRAPH_ROWS)
