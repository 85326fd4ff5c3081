"""Predict: a cache and a wide row

Llama 3.1 8B has 32 layers, 32 query heads, 8 heads of keys and values, heads of 128 values, and an MLP with 14,336
values in gate and as many in up, all in bfloat16. How many bytes does a token add to the cache? How many whole tokens
fit into 16,000,000,000 bytes, and how many would fit with as many heads of keys and values as query heads?

Last, suppose that one launch wrote gate and up to memory, and a second one read both and wrote their gated product. How
many bytes per token and layer are saved by a single launch that writes the gated product directly?
"""

HINTS = ("What does the cache hold for a token in one layer, in one head? And which rows would one launch write and "
         "the next one read, if SiLU and the product had a launch of their own?",
         "A key and a value of 128 elements for each of 8 heads in each of 32 layers. Gate and up have 14,336 values "
         "each: with two launches both rows are written once and read once.",
         "2 * 32 * 8 * 128 * 2 bytes; 16,000,000,000 divided by that, and by four times that, rounded down; and (1 + "
         "1) * 2 * 14,336 * 2 bytes.")
POINTS = 1

# %%
token_bytes = None
tokens_grouped = None
tokens_ungrouped = None
saved_bytes = None
### BEGIN SOLUTION
token_bytes = 2 * 32 * 8 * 128 * 2
tokens_grouped = 16_000_000_000 // token_bytes
tokens_ungrouped = 16_000_000_000 // (4 * token_bytes)
saved_bytes = (1 + 1) * 2 * 14_336 * 2  # both rows, written and read
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.course.exercises.llama_by_hand import LLAMA_3_1_8B


def _cache_and_row() -> dict:
    c = LLAMA_3_1_8B
    a_token = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 2
    wide = c.intermediate_size * 2  # bytes of gate, and of up
    return {"token_bytes": a_token, "tokens_grouped": 16_000_000_000 // a_token,
            "tokens_ungrouped": 16_000_000_000 // (a_token * c.num_attention_heads // c.num_key_value_heads),
            "saved_bytes": 2 * wide + 2 * wide}


EXERCISE = PredictionExercise(
    name="predict_cache",
    truth=_cache_and_row,
    how={"token_bytes": "Keys and values, 32 layers, 8 heads of 128 values, 2 bytes each.",
         "tokens_grouped": "16,000,000,000 divided by 131,072, rounded down.",
         "tokens_ungrouped": "With 32 heads of keys and values a token takes four times the bytes.",
         "saved_bytes": "Two rows of 14,336 values, 2 bytes each, which are written once and read once."},
    wrong={"the values are forgotten: a token adds keys and values": {
               "token_bytes": 65536, "tokens_grouped": 244140, "tokens_ungrouped": 61035},
           "float32: four bytes per value": {"token_bytes": 262144, "tokens_grouped": 61035, "tokens_ungrouped": 15258,
                                            "saved_bytes": 229376},
           "the cache has one head per query head": {
               "token_bytes": 524288, "tokens_grouped": 30517, "tokens_ungrouped": 7629},
           "the cache of one layer": {"token_bytes": 4096, "tokens_grouped": 3906250, "tokens_ungrouped": 976562},
           "the rows are written, but the next launch does not read them": {"saved_bytes": 57344},
           "the result is counted, but it is written either way": {"saved_bytes": 143360}},
)
