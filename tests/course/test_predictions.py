"""What is folded behind a question: everything up to the next heading or question, and nothing of the question."""

import pytest

from labkit.course import notebooks, predictions
from labkit.course.predictions import ANSWER, GUESS, RESULT

LESSON = """\
# %% [markdown]
# # Loads
#
# Two kernels read the same array. Before you run the next cell: which one is faster?

# %%
show_source(wide)

# %%
print("wide")

# %% [markdown]
# The wide one.
#
# Each load is of 16 bytes.

# %%
print("more of the answer")

# %% [markdown]
# So it has fewer instructions.
#
# Now the array is small. Predict the ratio.

# %%
print(1)

# %% [markdown]
# It is 1.
#
# ## Another section
#
# Text.

# %%
print("open")
"""


def kinds(text):
    notebook = notebooks.parse(text, "a.py")
    predictions.fold(notebook)
    return [(predictions.kind(cell), cell.source) for cell in notebook.cells]


def test_all_is_folded_from_a_question_to_the_next_or_to_a_heading():
    room = "\n\n*Your guess (double-click to write it):* "
    details = "<details><summary>Show the answer</summary>\n\n{}\n\n</details>".format
    assert kinds(LESSON) == [
        ("", "# Loads\n\nTwo kernels read the same array."),
        ("", "show_source(wide)"),  # code to read before one predicts
        (GUESS, f"**Predict:** Which one is faster?{room}"),
        (RESULT, 'print("wide")'),
        (ANSWER, details("The wide one.\n\nEach load is of 16 bytes.")),
        (RESULT, 'print("more of the answer")'),
        (ANSWER, details("So it has fewer instructions.")),
        ("", "Now the array is small."),
        (GUESS, f"**Predict** the ratio.{room}"),
        (RESULT, "print(1)"),
        (ANSWER, details("It is 1.")),
        ("", "## Another section\n\nText."),
        ("", 'print("open")'),
    ]


def test_an_answer_and_a_question_in_one_paragraph_are_parted():
    text = "# %% [markdown]\n# Which?\n\n# %%\n1\n\n# %% [markdown]\n# It takes 7 ms. And with\n# `b`?\n\n# %%\n2\n"
    assert [kind for kind, _ in kinds(text)] == [GUESS, RESULT, GUESS, RESULT]
    text = text.replace("And with", "How long with")
    (_, first), (_, answer), (_, second) = [kinds(text)[k] for k in (0, 2, 3)]
    assert "Which?" in first and "It takes 7 ms." in answer and second.startswith("**Predict:** How long with `b`?\n")


@pytest.mark.parametrize(("text", "before", "question"), [
    ("It adds.\n\nBefore you run the next cell: how many\nblocks?", "It adds.", "**Predict:** How many blocks?"),
    ("## A prediction\n\nWhich of the two? And why?", "## A prediction", "**Predict:** Which of the two? And why?"),
    ("It has `a.b`. One more. Predict the shape.", "It has `a.b`. One more.", "**Predict** the shape."),
    ("There are 1.5 MB. *Which one?*", "There are 1.5 MB.", "**Predict:** *Which one?*"),
    ("So: **it waits. For which?**", "", "**Predict:** So: **it waits. For which?**"),
    ("Three:\n\n- one\n- which is two?", "Three:\n\n- one", "**Predict:** Which is two?"),
    ("Predict: which tokens:", "", "**Predict:** Which tokens."),
])
def test_the_last_sentence_asks(text, before, question):
    assert predictions.question(text) == (before, question)


@pytest.mark.parametrize("text", [
    "The prediction said less.", "Where does the sum stop? At 256.", "Where?\n\nAt 256.", "A count predicts it.",
    "## Which one is faster?", "Which?\n\n```\nx = 1\n```", "Which?\n\n| a |\n|---|", "",
])
def test_prose_that_does_not_end_with_a_question(text):
    assert predictions.question(text) is None


def test_a_comment_in_code_is_no_heading():
    text = "# %% [markdown]\n# Which?\n\n# %%\n1\n\n# %% [markdown]\n# ```\n# # a comment\n# ```\n#\n# The end.\n"
    assert [kind for kind, _ in kinds(text)] == [GUESS, RESULT, ANSWER]

