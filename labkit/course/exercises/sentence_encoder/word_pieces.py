"""A word in pieces

`vocabulary` is a list of pieces, and the index of a piece in it is its id. A piece that continues a word begins with
`##`, as in `##ing`. Cut `word` as WordPiece does: take the longest piece that fits at the beginning, then the longest
that continues it there, and so on. Return the list of ids. WordPiece never takes a piece back. If nothing fits, however
late in the word, the result is only the id of `[UNK]`. `word` has at least one letter.
"""

HINTS = ("Where does the next piece begin, and which ends do you try, in which order? When can you stop trying?",
         "Two loops: while begin < len(word), and inside it the ends from len(word) down to begin + 1. Inside the "
         "word, put ## before the letters. If the inner loop finds nothing, the answer is [UNK] alone.",
         'for end in range(len(word), begin, -1): piece = word[begin:end] if begin == 0 else "##" + word[begin:end]; '
         "if piece in vocabulary: append vocabulary.index(piece), set begin = end, break. The for's else returns "
         '[vocabulary.index("[UNK]")].')
POINTS = 2

# %%
def word_pieces(word, vocabulary):
    ### BEGIN SOLUTION
    ids, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):  # the longest first
            piece = word[begin:end] if begin == 0 else "##" + word[begin:end]
            if piece in vocabulary:
                ids.append(vocabulary.index(piece))
                begin = end
                break
        else:
            return [vocabulary.index("[UNK]")]
    return ids
    ### END SOLUTION

# %% [check]
import numpy as np

from labkit.course.exercises import Edit, FunctionExercise, Reach

UNKNOWN, GOES_ON = "[UNK]", "##"


def _pieces(word, vocabulary):
    """The ids, or None where nothing fits."""
    ids, begin = [], 0
    while begin < len(word):
        mark = GOES_ON if begin else ""
        fits = [end for end in range(begin + 1, len(word) + 1) if mark + word[begin:end] in vocabulary]
        if not fits:
            return None
        ids.append(vocabulary.index(mark + word[begin : max(fits)]))
        begin = max(fits)
    return ids


def _word_pieces(word, vocabulary):
    ids = _pieces(word, vocabulary)
    return np.array([vocabulary.index(UNKNOWN)] if ids is None else ids)


def _word_inputs(rng, letters, pieces):
    """A word of pieces of a vocabulary that has each letter, with and without ##, and `pieces` longer ones."""
    alphabet = list("abcd")

    def text(count):
        return "".join(rng.choice(alphabet, count))

    longer = [text(int(rng.integers(2, 5))) for _ in range(pieces)]
    known = {*alphabet, *(GOES_ON + letter for letter in alphabet), UNKNOWN, "[CLS]", "[SEP]"}
    known |= {GOES_ON * int(rng.integers(2)) + each for each in longer}
    vocabulary = [str(each) for each in rng.permutation(sorted(known))]
    word = "".join(rng.permutation(longer)) + text(letters)
    return word[:letters], vocabulary


def _word(word, *vocabulary):
    """This word, and a vocabulary of these pieces among others."""
    def turn(rng, *inputs):
        return word, [str(each) for each in rng.permutation(["[CLS]", "zz", "##zz", UNKNOWN, *vocabulary])]

    return turn


def word_pieces_by_search(word, vocabulary):
    def rest(begin):
        if begin == len(word):
            return []
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary and (others := rest(end)) is not None:
                return [vocabulary.index(piece), *others]
        return None

    ids = rest(0)
    return [vocabulary.index("[UNK]")] if ids is None else ids


EXERCISE = FunctionExercise(
    name="word_pieces",
    reference=_word_pieces,
    inputs=_word_inputs,
    sizes=tuple({"letters": n, "pieces": p} for n, p in ((1, 2), (4, 3), (9, 12), (150, 60))),
    domain=(Reach("no piece fits a letter in the middle of the word", _word("abxab", "ab", "##ab", "##b")),
            Reach("no piece fits the last letter", _word("abx", "a", "ab", "##b")),
            Reach("no piece fits the first letter", _word("xab", "ab", "##ab", "##a", "##b")),
            Reach("the whole word is a piece", _word("abab", "a", "ab", "abab", "##ab", "##bab")),
            Reach("the word is a single letter", _word("a", "a", "##a")),
            Reach("the longest piece leads to an end where nothing fits, and a shorter one would not",
                  _word("abcd", "ab", "abc", "##cd", "##c")),
            Reach("a longer piece would fit, but it is only for the inside of words",
                  _word("abc", "a", "##ab", "##abc", "##b", "##c")),
            Reach("a longer piece would fit, but it is only for the beginning of words",
                  _word("abcd", "ab", "cd", "##c", "##d"))),
    wrong={
        "the shortest piece is taken, not the longest":
            Edit("range(len(word), begin, -1)", "range(begin + 1, len(word) + 1)"),
        "another split is tried where nothing fits; WordPiece never takes a piece back": word_pieces_by_search,
        "only the letter that fits nothing becomes [UNK], not the whole word":
            Edit('return [vocabulary.index("[UNK]")]',
                 'ids.append(vocabulary.index("[UNK]"))\n'
                 "begin += 1"),
        "the pieces before the gap are kept, with [UNK] after them":
            Edit('return [vocabulary.index("[UNK]")]', 'return [*ids, vocabulary.index("[UNK]")]'),
        "a word that does not fit gives no ids, but it is one [UNK]":
            Edit('return [vocabulary.index("[UNK]")]', "return []"),
        "0 is returned, but [UNK] need not be the first of the vocabulary":
            Edit('return [vocabulary.index("[UNK]")]', "return [0]"),
        "pieces inside the word are looked up without ##": Edit('"##" + word[begin:end]', "word[begin:end]"),
        "the first piece is looked up with ##, too": Edit('word[begin:end] if begin == 0 else "##" + word[begin:end]',
                                                          '"##" + word[begin:end]'),
        "the last letter is never part of a piece": Edit("range(len(word), begin, -1)",
                                                         "range(len(word) - 1, begin, -1)"),
    },
)

EQUIVALENT = {
    "loop: for end in range(len(word), begin, -1): ... -> for end in range(len(word), begin - 1, -1)":
        "The last piece that is tried has no letters, and no vocabulary has such a piece.",
}
