"""Find the bug: text that is taken back

A text comes as `tokens`, a tuple of strings, and ends where one of the strings in `stops` is complete. `stops` may be
empty. After each token, how many characters of the text so far may a client see? Nothing of a stop string may be shown,
not even its first character, and nothing that can still become part of one. Everything else must be shown. If several
stop strings occur, the one that is complete first ends the text; if two are complete with the same character, the
longer one does. From there on the count stays the same: the characters before the stop string.

With the stop string `STOP` and the tokens `"Hi"`, `" S"`, `"TOP"` the counts are 2, 3 and 3. This function returns
exactly that. And yet a user complains: in the chat `ST` appeared and vanished again. Find out which tokens cause that,
and fix the function.
"""

HINTS = ('Cut the word STOP into other tokens and print the counts: "S", "T", "O", "P". After which token is '
         "a count too large?",
         "The search for a complete stop string is right. To decide what is held back, the code compares the "
         "beginnings of the stop strings with the end of something. Of what?",
         'After "S" and "T" the text ends with ST, the beginning of STOP. The last token is only T, which is not a '
         "beginning of STOP.")
POINTS = 2

import numpy as np


# %%
def shown_after(tokens, stops):
    text, end, counts = "", None, []
    for token in tokens:
        begin = len(text)
        if end is None:
            text += token
            found = []
            for stop in stops:
                at = text.find(stop, max(0, begin - len(stop) + 1))
                if at >= 0:
                    found.append((at + len(stop), at))
            if found:
                end = min(found)[1]
        if end is not None:
            counts.append(end)
            continue
        held = 0
        for stop in stops:
            for size in range(1, len(stop)):
                if token.endswith(stop[:size]):
                    held = max(held, size)
        counts.append(len(text) - held)
    return np.array(counts)


### BEGIN SOLUTION
def shown_after(tokens, stops):
    text, end, counts = "", None, []
    for token in tokens:
        begin = len(text)
        if end is None:
            text += token
            found = []
            for stop in stops:
                at = text.find(stop, max(0, begin - len(stop) + 1))
                if at >= 0:
                    found.append((at + len(stop), at))
            if found:
                end = min(found)[1]
        if end is not None:
            counts.append(end)
            continue
        held = 0
        for stop in stops:
            for size in range(1, len(stop)):
                if text.endswith(stop[:size]):  # of the text, not of its last token: a stop string may be in several
                    held = max(held, size)
        counts.append(len(text) - held)
    return np.array(counts)


### END SOLUTION

# %% [check]
from labkit.course.exercises import Edit, FunctionExercise, Reach


def _shown(tokens, stops):
    """Character after character, and where a character may not be shown yet is found by trying every beginning."""
    text, end, counts = "", None, []
    for token in tokens:
        for character in token:
            if end is None:
                text += character
                ends = [len(text) - len(stop) for stop in stops if text.endswith(stop)]
                end = min(ends, default=None)
        begins = [at for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in stops)]
        counts.append(end if end is not None else min(begins, default=len(text)))
    return np.array(counts)


def _cut(rng, text, longest):
    """The text in tokens of 1 to `longest` characters."""
    tokens, at = [], 0
    while at < len(text):
        size = int(rng.integers(1, longest + 1))
        tokens.append(text[at : at + size])
        at += size
    return tuple(tokens)


def _text_inputs(rng, n, longest):
    """Of two letters, so that stop strings occur and nearly occur. n: characters."""
    stops = {"".join(rng.choice(["a", "b"], int(rng.integers(3, 8)))) for _ in range(int(rng.integers(1, 4)))}
    text = "".join(rng.choice(["a", "b"], n))
    return _cut(rng, text, longest), tuple(sorted(stops))


def _texts(words, tokens, *stops):
    return Reach(words, lambda rng, *_: (tuple(tokens), stops), {"n": len("".join(tokens)), "longest": 1})


EXERCISE = FunctionExercise(
    name="shown_after",
    reference=_shown,
    inputs=_text_inputs,
    sizes=tuple({"n": n, "longest": longest} for n, longest in ((1, 1), (6, 2), (12, 1), (12, 5), (30, 3), (40, 12))),
    random_size=lambda rng: {"n": int(rng.integers(10, 40)), "longest": int(rng.integers(1, 6))},
    domain=(_texts("a stop string is spread over several tokens", ["Hi", " S", "T", "O", "P", " x"], "STOP"),
            _texts("a stop string begins the text, and is spread over two tokens", ["S", "TOP x"], "STOP"),
            _texts("a stop string nearly occurs, twice", ["a ST", "O", "x S", "T", "a"], "STOP"),
            _texts("a stop string is within one token", ["one", " two STOP three", " four"], "STOP"),
            _texts("there is no stop string", ["Hi", " there"]),
            _texts("one stop string begins with the end of another", ["x\n", "\nUs", "er:", " y"], "\n\n",
                   "\nUser:"),
            _texts("a stop string of one character", ["a", "b.", "c"], "."),
            _texts("two stop strings end with the same character", ["ab", "cd", "e"], "cd", "bcd"),
            _texts("the first of several stop strings ends last in the text", ["one", " two", " three"], "three",
                   "tw"),
            _texts("in one token a stop string is complete before one that began earlier", ["a", "bcdef"], "bcde",
                   "cd"),
            _texts("a stop string repeats its own beginning", ["a", "a", "a", "b", "a"], "aab"),
            _texts("the text ends with the beginning of a stop string", ["we", " ST"], "STOP", "Ex"),
            _texts("the text ends with the beginnings of two stop strings, one longer than the other", ["ab", "a"],
                   "abab", "bax")),
    wrong={
        "the beginning of a stop string is looked for in the last token alone": Edit(
            "text.endswith(stop[:size])", "token.endswith(stop[:size])"),
        "a stop string is looked for in the last token alone": Edit(
            "at = text.find(stop, max(0, begin - len(stop) + 1))", "at = text.find(stop, begin)"),
        "as many characters as a stop string has, less one, are always held": Edit(
            "if text.endswith(stop[:size]):\n    held = max(held, size)", "held = max(held, size)"),
        "the last of several stop strings decides how many are held": Edit("held = max(held, size)", "held = size"),
        "the shortest beginning is held, not the longest": Edit(
            "held = max(held, size)", "held = size if held == 0 else min(held, size)"),
        "a stop string that lacks only its last character is shown": Edit("range(1, len(stop))",
                                                                      "range(1, len(stop) - 1)"),
        "the stop string stays in the text": Edit("end = min(found)[1]", "end = min(found)[0]"),
        "the stop string that begins first ends the text, not the one that ends first": Edit(
            "found.append((at + len(stop), at))", "found.append((at, at))"),
        "what comes after the stop string is shown": Edit(
            "counts.append(end)\ncontinue",
            "text += token if begin == len(text) else ''\ncounts.append(len(text))\ncontinue"),
        "nothing is held": Edit("held = max(held, size)", "pass"),
    },
)

EQUIVALENT = {
    "arithmetic: begin - len(stop) + 1 -> begin - len(stop)":
        "A stop string that ends where the token begins would have been found with the token before.",
    "index: min(found)[1] -> min(found)[-1]": "There are two numbers.",
    "loop: for size in range(1, len(stop)): ... -> for size in range(1, len(stop) + 1)":
        "A whole stop string cannot be the end of a text in which none was found.",
    "shape: len(stop) -> 128": "A whole stop string cannot be the end of a text in which none was found.",
    "shape: len(stop) -> 128 (3)": "A whole stop string cannot be the end of a text in which none was found.",
}

AFTER = """
The engine's detokenizer always holds back as many characters as the longest stop string has, less one, whatever they
are. That is simpler, and a client sees each character a little later.
"""
