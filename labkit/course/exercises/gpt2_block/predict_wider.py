"""Predict: a wider block

GPT-2 medium is 1,024 wide, or 4,096 between the two layers of its MLP. Work out on paper:

- `numbers`: how many elements does the flat buffer of one of its blocks hold?
- `token_flops`: how many flops do the four linear layers cost for one token? Count a multiplication and an addition per
  element of the four matrices, and nothing for the biases.
- `tokens_equal`: a GPU reads 300 GB/s and computes 30 TFLOP/s in float32. At how many tokens do the flops of the four
  matrices take as long as reading them? Count nothing else.

Now run the block as ten launches, in the order of the lesson. LayerNorm, the product and the addition each have one
kernel, which is launched wherever it is needed.

- `wrong_steps`: the kernel of the addition is wrong, and all others are right. How many of the ten outputs are wrong?
"""

HINTS = ("How many elements does each of the four matrices have? The other eight parameters are 13 rows of 1,024 in "
         "total. And how often does a token use each element of a matrix?",
         "A token multiplies with each element of the four matrices once and adds the product: two flops. So S tokens "
         "cost 2 * matrices * S flops, and the matrices have 4 * matrices bytes. What is left of `matrices` when you "
         "set the two times equal?",
         "matrices = 12 * 1024 * 1024; numbers = matrices + 13 * 1024; token_flops = 2 * matrices. Equal times: 2 * S "
         "/ 30e12 = 4 / 300e9. The first wrong step is the addition after attention, and every step after it is "
         "computed from that.")
POINTS = 2
NEEDS = ("block_offsets",)

# %%
numbers = None
token_flops = None
tokens_equal = None
wrong_steps = None
### BEGIN SOLUTION
numbers = 12 * 1024 * 1024 + 13 * 1024  # twelve squares, and thirteen rows: biases and two LayerNorms
token_flops = 2 * 12 * 1024 * 1024
tokens_equal = 200  # 2 S / 30e12 = 4 / 300e9, at any width
wrong_steps = 6  # from the fifth on
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.models.gpt2_block import Shape, traffic

MEDIUM = Shape(1024, 16, 4096)  # GPT-2 medium
BANDWIDTH, FLOPS = 300e9, 30e12  # of the GPU in the text


def _wider() -> dict:
    matrices = sum(rows * cols for rows, cols in MEDIUM.layers)
    steps = list(traffic(MEDIUM, 1, fused=False))
    return {"numbers": MEDIUM.size, "token_flops": 2 * matrices,
            "tokens_equal": round(4 * matrices / BANDWIDTH / (2 * matrices / FLOPS)),
            "wrong_steps": len(steps) - steps.index("attn.added")}


EXERCISE = PredictionExercise(
    name="predict_wider",
    truth=_wider,
    how={"numbers": "the matrices have 3 + 1 + 4 + 4 times 1,024 x 1,024 elements, the other parameters 13 times 1,024",
         "token_flops": "a multiplication and an addition per element of the four matrices",
         "tokens_equal": "S tokens cost 2 * S flops per element, and an element has 4 bytes: S is twice the flops per "
                         "second over the bytes per second, whatever the width",
         "wrong_steps": "the addition is launched twice; from its first launch on every step is computed from a wrong "
                        "one: attn.added, ln_2, mlp.c_fc, mlp.gelu, mlp.c_proj, out"},
    wrong={"the biases and both LayerNorms are left out": {"numbers": 12 * 1024 * 1024},
           "attn.c_attn is counted once: it holds three layers, for queries, keys and values": {
               "numbers": 10 * 1024 * 1024 + 11 * 1024, "token_flops": 20 * 1024 * 1024},
           "twice the width is not twice the weights: a width of 768 has 7,087,872, and a matrix grows with the square":
               {"numbers": 7_087_872 * 1024 // 768},
           "a multiplication and an addition are two flops": {"token_flops": 12 * 1024 * 1024, "tokens_equal": 400},
           "a weight has four bytes": {"tokens_equal": 50},
           "only what the addition itself wrote is counted: the steps after it are computed from that": {
               "wrong_steps": 2},
           "the addition is launched twice: the first time after attention": {"wrong_steps": 1}},
)

AFTER = """
The width does not occur in the third answer. That depends only on the GPU, and on the bytes per element.
"""
