"""Predict: a score matrix in shared memory

A block computes attention for one head of one sentence: 128 tokens, a head of width 32, all in float16. It keeps the
whole matrix of scores in shared memory, together with the head's queries, keys and values. An SM of an RTX 3090 has
102,400 bytes of shared memory and room for 48 warps and 16 blocks, an SM of an H200 has 233,472 bytes and room for 64
warps and 32 blocks; every block occupies 1,024 bytes more than it requests. How many bytes are the scores? How many
does the block request in all? How many such blocks of 256 threads does an SM of each GPU hold? And how many *warps*
does an SM of the RTX 3090 hold if a block has 128 threads and keeps only 64 queries, 64 keys and 64 values? Registers
are never the limit here.
"""

HINTS = ("How many scores does a head have for 128 tokens, and how many bytes is one in float16?",
         "Add three matrices of 128 times 32 elements. Then divide the SM's bytes by the block's, with its 1,024 more, "
         "and round down. A block of 256 threads is 8 warps: check that they fit as well.",
         "32,768 bytes of scores and 24,576 for the rest. 102,400 // 58,368, 233,472 // 58,368, and 102,400 // 13,312 "
         "blocks of four warps.")
POINTS = 1

# %%
score_bytes = None
block_bytes = None  # scores, queries, keys and values
blocks_3090 = None
blocks_h200 = None
tiled_warps_3090 = None
### BEGIN SOLUTION
score_bytes = 128 * 128 * 2
block_bytes = score_bytes + 3 * 128 * 32 * 2
blocks_3090 = 102_400 // (block_bytes + 1024)
blocks_h200 = 233_472 // (block_bytes + 1024)
tiled_warps_3090 = 4 * (102_400 // (3 * 64 * 32 * 2 + 1024))
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.device import occupancy

RTX_3090 = occupancy.GPU("RTX 3090", 82, 1536, 16, 65_536, 102_400)  # compute capability 8.6


def _whole_matrix() -> dict:
    scores = 128 * 128 * 2
    block = scores + 3 * 128 * 32 * 2
    tiles = 3 * 64 * 32 * 2
    few = 32  # registers a thread, which leave the limit to shared memory
    return {"score_bytes": scores, "block_bytes": block,
            "blocks_3090": occupancy.blocks(RTX_3090, 256, few, block),
            "blocks_h200": occupancy.blocks(occupancy.H200, 256, few, block),
            "tiled_warps_3090": 4 * occupancy.blocks(RTX_3090, 128, few, tiles)}


EXERCISE = PredictionExercise(
    name="predict_whole_matrix",
    truth=_whole_matrix,
    how={"score_bytes": "128 times 128 scores of 2 bytes.",
         "block_bytes": "Queries, keys and values are 128 times 32 elements each: three times 8,192 bytes more.",
         "blocks_3090": "57,344 plus 1,024 bytes fit into 102,400 once, not twice.",
         "blocks_h200": "58,368 goes into 233,472 four times, without a remainder. Four blocks are 32 warps of 64.",
         "tiled_warps_3090": "3 times 64 times 32 elements are 12,288 bytes, or 13,312 with the 1,024: seven blocks. "
                             "The warps would allow twelve. Seven blocks have four warps each."},
    wrong={"the elements have four bytes, but they are float16": {
               "score_bytes": 65536, "block_bytes": 114688, "blocks_3090": 0, "blocks_h200": 2,
               "tiled_warps_3090": 16},
           "only the scores are counted, without queries, keys and values": {
               "score_bytes": 32768, "block_bytes": 32768, "blocks_3090": 3, "blocks_h200": 6,
               "tiled_warps_3090": 28},
           "the extra 1,024 bytes of each block are left out": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 1, "blocks_h200": 4,
               "tiled_warps_3090": 32},
           "blocks instead of warps": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 1, "blocks_h200": 4, "tiled_warps_3090": 7},
           "only the warps are counted, not the shared memory": {
               "score_bytes": 32768, "block_bytes": 57344, "blocks_3090": 6, "blocks_h200": 8,
               "tiled_warps_3090": 48}},
)
