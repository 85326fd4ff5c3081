"""Predict: what fusing saves

GPT-2 small in float32: a width of 768, an inner width of 3,072. First ten launches, a kernel for each step. Then GELU
moves into the epilogue of the product before it, and so do both additions. Work out on paper, for 1,024 tokens:

- `launches`: how many fewer launches is that?
- `gelu_bytes`: how many bytes did the separate kernel for GELU move?
- `residual_bytes`: how many fewer bytes do the two additions move? The separate kernel reads two matrices and writes
  one; which of these does the epilogue still have to touch?
- `buffer_bytes`: the design in CUDA C++ allocates eight arrays in each call, with one row per token: six with 768
  columns, one with 2,304, one with 3,072. How many bytes?

And for a single token, fused:

- `weights_percent`: what percentage of all bytes that the block moves are its weights? Round to a whole number.
"""

HINTS = ("A float32 has four bytes. A separate kernel for GELU reads a matrix and writes one: how large?",
         "A separate addition reads two matrices and writes one, and the product before it writes one. Fused, the "
         "product reads the residual and writes the sum. The difference is two matrices of 1,024 x 768.",
         "gelu_bytes: 2 * 1024 * 3072 * 4. residual_bytes: 2 * 2 * 1024 * 768 * 4. buffer_bytes: 1024 * (6 * 768 + "
         "2304 + 3072) * 4. One token has some 20,000 elements, next to 7 million weights.")
POINTS = 2
NEEDS = ("block_offsets",)

# %%
launches = None
gelu_bytes = None
residual_bytes = None
buffer_bytes = None
weights_percent = None
### BEGIN SOLUTION
launches = 10 - 7
gelu_bytes = 2 * 1024 * 3072 * 4  # in and out
residual_bytes = 2 * (2 * 1024 * 768 * 4)  # for each: what is added is neither written nor read again
buffer_bytes = 1024 * (6 * 768 + 2304 + 3072) * 4
weights_percent = 100  # 28,351,488 bytes of weights; the token's rows are some 80 KB beside them
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.models.gpt2_block import GPT2_SMALL, traffic

TOKENS = 1024


def _saved() -> dict:
    fused, separate = (traffic(GPT2_SMALL, TOKENS, fused=fused) for fused in (True, False))
    weights = 4 * GPT2_SMALL.size
    one = sum(traffic(GPT2_SMALL, 1).values())
    return {"launches": len(separate) - len(fused), "gelu_bytes": separate["mlp.gelu"],
            "residual_bytes": sum(separate.values()) - sum(fused.values()) - separate["mlp.gelu"],
            "buffer_bytes": 4 * TOKENS * (6 * GPT2_SMALL.width + 3 * GPT2_SMALL.width + GPT2_SMALL.inner),
            "weights_percent": round(100 * weights / one)}


ROW = 4 * 768 * TOKENS  # bytes of a matrix with a row of 768 for each token

EXERCISE = PredictionExercise(
    name="predict_block",
    truth=_saved,
    how={"launches": "GELU and two additions lose their kernels",
         "gelu_bytes": "a separate kernel reads 1,024 x 3,072 elements and writes as many",
         "residual_bytes": "for each of the two: what is added is not written and not read again, 1,024 x 768 elements "
                           "twice; the residual itself is read either way",
         "buffer_bytes": "six of 768 columns, one of 2,304, one of 3,072: 9,984 elements per token",
         "weights_percent": "28.4 MB of weights, and some 80 KB besides; round to a whole percentage"},
    wrong={"counts only the reading, not the writing": {
               "launches": 3, "gelu_bytes": 4 * ROW, "residual_bytes": 2 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts one addition; there are two": {
               "launches": 3, "gelu_bytes": 8 * ROW, "residual_bytes": 2 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts the seven that are left, not those that were removed": {"launches": 7},
           "counts the residual itself as saved: it has to be read either way": {
               "launches": 3, "gelu_bytes": 8 * ROW, "residual_bytes": 6 * ROW, "buffer_bytes": 13 * ROW,
               "weights_percent": 100},
           "counts elements, not bytes": {
               "launches": 3, "gelu_bytes": 2 * ROW, "residual_bytes": ROW, "buffer_bytes": 13 * ROW // 4,
               "weights_percent": 100}},
)

AFTER = """
The last number shows which bytes a GPT-2 moves while it writes text one token at a time: nearly all are its weights. No
token can take less time than reading them. That is one reason why the weights of language models are stored in fewer
and fewer bits.
"""
