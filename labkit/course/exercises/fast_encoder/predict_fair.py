"""Predict: which PyTorch?

A pass of your model has 12 layers of 6 launches each, and 3 more launches. All its products together have 40 million
weights. With few rows, each launch takes 4 microseconds in a graph. A pass of PyTorch has 105 launches; with few rows,
each takes 4 microseconds in a graph and 12 when called from Python. The tensor cores reach 800 TFLOP/s at best.

How many microseconds does your pass take in a graph with few rows (`graph_us`)? How many times as fast as PyTorch is
it, if yours runs in a graph and PyTorch is called from Python (`unlike`)? And if both run in graphs (`alike`)? With how
many rows would your products take as long at the peak of the tensor cores as all your launches do with few rows
(`even_rows`)? Suppose that a pass takes the longer of these two times. How many sentences of 20 tokens do you compute
per second, with 90 of them in each pass (`sentences_per_second`)?
"""

HINTS = ("How many launches does each side have, and how long does one take in each of the two ways? Do 90 sentences "
         "of 20 tokens have more rows than `even_rows`, or fewer?",
         "A pass takes its launches times the time of one. For `even_rows`, find how long the products of one row "
         "take: two flops per weight, and 800 TFLOP/s are 800 million flops per microsecond. Then see which of "
         "the two times is the longer one for 90 sentences.",
         "75 launches of 4 microseconds; 105 * 12 / 300 and 105 * 4 / 300. The products of a row take 80 million "
         "flops, so ten rows take a microsecond at the peak. 1,800 rows take less than the launches do, so 90 "
         "sentences take 300 microseconds.")
POINTS = 1

# %%
graph_us = None
unlike = None
alike = None
even_rows = None
sentences_per_second = None
### BEGIN SOLUTION
graph_us = (12 * 6 + 3) * 4
unlike = 105 * 12 / graph_us
alike = 105 * 4 / graph_us
even_rows = graph_us * 800_000_000 / (2 * 40_000_000)
sentences_per_second = 90 * 1_000_000 / graph_us  # 1,800 rows are fewer than even_rows
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise


def _fair() -> dict:
    ours, theirs = 12 * 6 + 3, 105  # launches
    in_graph = 4 * ours  # microseconds
    flops_in_us, weights = 800_000_000, 40_000_000
    batch_us = max(in_graph, 90 * 20 * 2 * weights / flops_in_us)
    return {"graph_us": in_graph, "unlike": 12 * theirs / in_graph, "alike": 4 * theirs / in_graph,
            "even_rows": in_graph * flops_in_us // (2 * weights), "sentences_per_second": int(90e6 / batch_us)}


EXERCISE = PredictionExercise(
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
           "only one layer": {"graph_us": 24},
           "PyTorch is called from Python in the second ratio, too": {"alike": 4.2},
           "the times per launch are compared, not those of a pass": {"unlike": 3, "alike": 1},
           "the launches are counted, but not their times": {"unlike": 1.4},
           "a multiplication and an addition are counted as one flop": {"even_rows": 6000},
           "the products' time at the peak, without the launches": {"sentences_per_second": 500_000},
           "launches and products one after the other: 480 microseconds": {"sentences_per_second": 187_500},
           "passes per second, not sentences": {"sentences_per_second": 1e6 / 300},
           "tokens per second, not sentences": {"sentences_per_second": 6_000_000}},
)
