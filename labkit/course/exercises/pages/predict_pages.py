"""Predict: pages and slots

A model has 16 layers with 8 heads of keys and values, each of 64 values in bfloat16. It serves four sequences, of
1,000, 17, 512 and 3 tokens, in pages of 16 tokens, none of them shared. How many entries of the page table are in use?
How many bytes of the last pages are unused, over all layers? In which slot is token 37 of a sequence whose table begins
with 5, 12, 7, 9? Tokens are counted from 0.

Two other sequences begin with the same 40 tokens and share what they can. One has 50 tokens, the other 70. How many
pages do they hold together?
"""

HINTS = ("How many pages do 17 tokens need, and how much of the last one is empty? And 512 tokens?",
         "Room for a token is room for its keys and values in all 16 layers. The page of token 37 is in entry "
         "37 // 16 of the table. Two sequences share the pages whose tokens are all equal.",
         "63 + 2 + 32 + 1 pages and room for 8 + 15 + 0 + 13 more tokens, of 2 * 16 * 8 * 64 * 2 bytes each. Entry 2 "
         "of the table is page 7, and the offset is 5. 50 and 70 tokens need 4 and 5 pages, and 40 // 16 of them are "
         "the same.")
POINTS = 1

# %%
pages_used = None
empty_bytes = None
slot = None
held_by_two = None
### BEGIN SOLUTION
pages_used = 63 + 2 + 32 + 1
empty_bytes = (8 + 15 + 0 + 13) * 2 * 16 * 8 * 64 * 2  # keys and values, layers, heads, numbers, bytes
slot = 7 * 16 + 5
held_by_two = 4 + 5 - 40 // 16
### END SOLUTION

# %% [check]
from labkit.course.exercises import PredictionExercise
from labkit.kernels.attention.pages import PAGE, pages_for


def _pages_predicted() -> dict:
    lengths, token = (1000, 17, 512, 3), 2 * 16 * 8 * 64 * 2
    used = sum(map(pages_for, lengths))
    return {"pages_used": used, "empty_bytes": (used * PAGE - sum(lengths)) * token, "slot": 7 * PAGE + 5,
            "held_by_two": pages_for(50) + pages_for(70) - 40 // PAGE}


EXERCISE = PredictionExercise(
    name="predict_pages",
    truth=_pages_predicted,
    how={"pages_used": "1,000 tokens fill 62 and a half pages, so they need 63. The others need 2, 32 and 1.",
         "empty_bytes": "There is room for 8, 15, 0 and 13 more tokens. A token has keys and values, 8 heads of 64 "
                        "values of 2 bytes each, in 16 layers: 32,768 bytes.",
         "slot": "Token 37 is token 5 of the third page, which is page 7: 7 times 16, plus 5.",
         "held_by_two": "50 tokens need 4 pages and 70 need 5. The first 32 of the 40 equal tokens fill two pages, "
                        "which are shared; the third page of each also has tokens of its own."},
    wrong={"pages are rounded down": {"pages_used": 95},
           "a full last page is followed by an empty one": {"pages_used": 99, "empty_bytes": 1_703_936},
           "a token has keys or values, not both": {"empty_bytes": 589_824},
           "one layer instead of 16": {"empty_bytes": 73_728},
           "the slot without the table: token 37 is in slot 37": {"slot": 37},
           "the pages of the table are counted from 1": {"slot": 197},
           "no page is shared": {"held_by_two": 9},
           "a page that is only partly equal is shared, too": {"held_by_two": 6}},
)
