"""Your own kernels in the model: what you wrote in the exercises does the work of a block, of a whole GPT-2, of a
sentence encoder, or of a Llama, or trains one.

    from labkit.course import yours

    mine = yours.answers()                    # reads work/exercises/: which have a place in the model, which are done
    yours.one_by_one(mine)                    # each alone in a block, then all together, every step against float64
    yours.block_parity(mine)                  # one run, step by step; .first is the first step that differs
    yours.one_by_one(mine, model, ids)        # the same in a GPT-2
    yours.with_kernels(model, mine)           # that GPT-2, to write text with
    yours.one_by_one(mine, yours.small_encoder(), sentences)      # in a sentence encoder; a MiniLM of one's own, too
    yours.one_by_one(mine, yours.small_llama(), prompts)          # in a Llama; in any that computes in float32
    Trainer(settings, texts, kernels=mine.training_kernels())     # labkit.train; labkit train --yours

An exercise that is not done, or not right yet, leaves its place to the model's own kernel, and the table says so.
yours.answers(add_row=my_kernel) takes a kernel at hand instead of the notebook's, yours.answers(solutions=True) the
course's answers.
"""

from labkit.course.yours.launchers import kernels
from labkit.course.yours.places import PARTS, PLACES, Place, place_of
from labkit.course.yours.steps import (
    SMALL,
    OneByOne,
    Steps,
    block_parity,
    model_parity,
    one_by_one,
    small_encoder,
    small_llama,
    with_kernels,
)
from labkit.course.yours.written import BROKEN, GIVEN_ANSWER, TO_DO, WRONG, YOURS, Answer, Answers, answers, read

__all__ = ["BROKEN", "GIVEN_ANSWER", "PARTS", "PLACES", "SMALL", "TO_DO", "WRONG", "YOURS", "Answer", "Answers",
           "OneByOne", "Place", "Steps", "answers", "block_parity", "kernels", "model_parity", "one_by_one", "place_of",
           "read", "small_encoder", "small_llama", "with_kernels"]
