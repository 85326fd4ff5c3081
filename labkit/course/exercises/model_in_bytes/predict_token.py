"""Predict: the time of a token

TinyLlama has 22 layers and a width of 2,048: 32 query heads and 4 heads of keys and values, 64 values each, an MLP
5,632 wide, and a vocabulary of 32,000. As in every Llama a layer has seven weight matrices without biases, and two
norms of 2,048 weights each; a last norm comes before the head. The head is a separate matrix, not the embedding table.
Everything is bfloat16.

How many parameters does a layer have, and how many the model? How many bytes of parameters are read for one token, if
every parameter needed is read once, and only one row of the embedding table is needed? How many bytes does a token add
to the cache, over all layers? And how many microseconds does it take to read the bytes of the parameters at 4,000 GB/s,
rounded down?
"""

HINTS = ("Which seven matrices does a layer have? Two of them are smaller here than in a model with 32 heads of keys "
         "and values.",
         "Keys and values are 4 times 64 wide. All of the head is read, and only one row of the embedding table. A "
         "token adds a key and a value of 4 times 64 elements in each layer.",
         "2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048 in a layer; 22 of these, twice 32,000 * 2048 "
         "and 2048; two bytes for each, less 31,999 rows of the table; 2 * 22 * 2 * 256 bytes; and the bytes divided "
         "by 4,000,000.")
POINTS = 1

# %%
layer_parameters = None
parameters = None
bytes_read = None
cache_bytes = None
microseconds = None
### BEGIN SOLUTION
layer_parameters = 2 * 2048 * 2048 + 2 * 256 * 2048 + 3 * 5632 * 2048 + 2 * 2048
parameters = 22 * layer_parameters + 2 * 32_000 * 2048 + 2048
bytes_read = 2 * (parameters - 32_000 * 2048 + 2048)
cache_bytes = 2 * 22 * 2 * 4 * 64
microseconds = bytes_read // 4_000_000
### END SOLUTION

# %% [check]
from math import prod

from labkit.course.exercises import PredictionExercise
from labkit.models.llama import Config

TINY_LLAMA = Config(vocab_size=32_000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
                    num_attention_heads=32, num_key_value_heads=4)


def _token(config=TINY_LLAMA) -> dict:
    table = config.vocab_size * config.hidden_size
    read = 2 * (config.parameters - table + config.hidden_size)
    return {"layer_parameters": sum(map(prod, config.layer_parameters.values())), "parameters": config.parameters,
            "bytes_read": read,
            "cache_bytes": 2 * config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim,
            "microseconds": read // 4_000_000}


EXERCISE = PredictionExercise(
    name="predict_token",
    truth=_token,
    how={"layer_parameters": "Queries and the projection back are 2,048 by 2,048, keys and values 256 by 2,048, the "
                             "three matrices of the MLP 5,632 by 2,048. Then two norms.",
         "parameters": "22 layers, the embedding table and the head of 32,000 by 2,048 each, and the last norm.",
         "bytes_read": "All parameters except the embedding table, plus one row of it; two bytes each.",
         "cache_bytes": "In each layer a key and a value for each of the 4 heads, 64 values of two bytes.",
         "microseconds": "4,000 GB per second is 4 billion bytes per millisecond, 4 million per microsecond."},
    wrong={"keys and values were counted for 32 heads; there are only 4": {
               "layer_parameters": 51384320, "parameters": 1261529088, "bytes_read": 2391990272, "cache_bytes": 180224,
               "microseconds": 597},
           "the MLP was counted with two matrices; gate, up and down are three": {
               "layer_parameters": 32509952, "parameters": 846292992, "bytes_read": 1561518080, "microseconds": 390},
           "the head was taken to be the embedding table: here they are separate": {
               "parameters": 1034512384, "bytes_read": 2069024768},
           "the row of the embedding was left out": {"bytes_read": 2069024768},
           "the whole embedding table was counted as read": {"bytes_read": 2200096768, "microseconds": 550},
           "four bytes per value were counted": {
               "bytes_read": 4138057728, "cache_bytes": 45056, "microseconds": 1034},
           "only keys were counted for the cache, not values": {"cache_bytes": 11264},
           "only one layer's cache was counted": {"cache_bytes": 1024}},
)
