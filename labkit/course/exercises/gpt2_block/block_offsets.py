"""Where each parameter begins

One flat buffer holds a block's twelve parameters, one after the other, in this order:

| parameter | shape |
|---|---|
| ln_1.weight, ln_1.bias | (C,) each |
| attn.c_attn.weight, attn.c_attn.bias | (C, 3C), (3C,) |
| attn.c_proj.weight, attn.c_proj.bias | (C, C), (C,) |
| ln_2.weight, ln_2.bias | (C,) each |
| mlp.c_fc.weight, mlp.c_fc.bias | (C, I), (I,) |
| mlp.c_proj.weight, mlp.c_proj.bias | (I, C), (C,) |

C is `width`, I is `inner`. Return a list of 13 offsets: where each parameter begins, and finally where the buffer ends.
For GPT-2 small the first are 0, 768 and 1,536, and the last is 7,087,872. Your function should work for any width.
"""

HINTS = ("How many elements does each parameter hold? List the twelve sizes first, in the order of the table.",
         "A parameter begins where the one before it ends. So each offset is the sum of all sizes before it, and the "
         "first is 0.",
         "sizes = [C, C, C * 3 * C, 3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]; then offsets = [0] and for "
         "each size: offsets.append(offsets[-1] + size).")
POINTS = 1

# %%
def block_offsets(width, inner):
    ### BEGIN SOLUTION
    C = width
    sizes = [C, C, C * 3 * C, 3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, FunctionExercise
from labkit.models.gpt2_block import Shape


def _reference_offsets(width, inner):
    shape = Shape(width, 1, inner)
    return np.array([*shape.offsets.values(), shape.size])


EXERCISE = FunctionExercise(
    name="block_offsets",
    reference=_reference_offsets,
    inputs=lambda rng, width, inner: (width, inner),
    sizes=tuple({"width": width, "inner": inner} for width, inner in ((2, 3), (5, 4), (48, 80), (768, 3072))),
    domain="Its inputs are two lengths, and `sizes` has the awkward ones.",
    wrong={"attn.c_attn.weight holds queries, keys and values: it has three times as many columns as rows":
               Edit("C * 3 * C", "C * C"),
           "the biases of the four linear layers are left out":
               Edit("3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]",
                    "0, C * C, 0, C, C, C * inner, 0, inner * C, 0]"),
           "each linear layer's bias comes before its weights":
               Edit("[C, C, C * 3 * C, 3 * C, C * C, C, C, C, C * inner, inner, inner * C, C]",
                    "[C, C, 3 * C, C * 3 * C, C, C * C, C, C, inner, C * inner, C, inner * C]"),
           "these are the ends of the parameters, not their beginnings":
               Edit("return offsets", "return offsets[1:] + offsets[-1:]"),
           "mlp.c_fc.bias has one element per inner column":
               Edit("C * inner, inner, inner", "C * inner, C, inner")},
)
