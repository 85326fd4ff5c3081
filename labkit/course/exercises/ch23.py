"""The exercises of lesson 23: WordPiece, what padding costs, and BERT's embedding.

Sizes are T tokens and C columns; a word has `letters`, and its vocabulary longer `pieces`.
"""

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import shuffles
from labkit.course.exercises.domains import FAR_ABOVE_ZERO, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, ZEROS, of
from labkit.kernels.embedding_sum import embedding_layernorm_reference
from labkit.kernels.op import uniform
from labkit.kernels.ops.embedding_layernorm import tolerance as embedding_tolerance
from labkit.models.minilm import packed, padded, padded_to_128

ALL_LANES = 0xFFFFFFFF

# --- WordPiece -----------------------------------------------------------------------------------------------------

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


def word_pieces_shortest(word, vocabulary):
    ids, begin = [], 0
    while begin < len(word):
        for end in range(begin + 1, len(word) + 1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary:
                ids.append(vocabulary.index(piece))
                begin = end
                break
        else:
            return [vocabulary.index("[UNK]")]
    return ids


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


def word_pieces_skips(word, vocabulary):
    ids, begin = [], 0
    while begin < len(word):
        for end in range(len(word), begin, -1):
            piece = ("##" if begin else "") + word[begin:end]
            if piece in vocabulary:
                ids.append(vocabulary.index(piece))
                begin = end
                break
        else:
            ids.append(vocabulary.index("[UNK]"))
            begin += 1
    return ids


WORD_PIECES = FunctionExercise(
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
        "the shortest piece is taken, and the longest is wanted": word_pieces_shortest,
        "another division is looked for where nothing fits; WordPiece never takes a piece back": word_pieces_by_search,
        "a letter that fits nothing becomes [UNK], and the rest goes on; the whole word is [UNK]": word_pieces_skips,
        "the pieces before the gap are kept beside [UNK]":
            Edit('return [vocabulary.index("[UNK]")]', 'return [*ids, vocabulary.index("[UNK]")]'),
        "a word that does not fit gives no ids; it is one [UNK]":
            Edit('return [vocabulary.index("[UNK]")]', "return []"),
        "[UNK] has its own place in the vocabulary, which need not be 0":
            Edit('return [vocabulary.index("[UNK]")]', "return [0]"),
        "pieces inside the word are looked up without ##": Edit('"##" + word[begin:end]', "word[begin:end]"),
        "the first piece is looked up with ##, too": Edit('word[begin:end] if begin == 0 else "##" + word[begin:end]',
                                                          '"##" + word[begin:end]'),
        "the last letter is never part of a piece": Edit("range(len(word), begin, -1)",
                                                         "range(len(word) - 1, begin, -1)"),
    },
)

# --- Predict: what padding costs --------------------------------------------------------------------------------------

LENGTHS = np.array([4, 9, 12, 18, 25, 44])


def _padding() -> dict:
    wide, short, none = (form(LENGTHS)[0] for form in (padded_to_128, padded, packed))
    return {"rows_to_128": wide.rows, "rows_to_longest": short.rows, "rows_packed": none.rows,
            "pairs_to_longest": short.sentences * short.longest**2, "pairs_packed": int((LENGTHS**2).sum())}


PREDICT_PADDING = PredictionExercise(
    name="predict_padding",
    truth=_padding,
    how={"rows_to_128": "Six sentences of 128 rows each.",
         "rows_to_longest": "The longest has 44 tokens, and the next multiple of 16 is 48: six times 48.",
         "rows_packed": "4 + 9 + 12 + 18 + 25 + 44, and no row besides.",
         "pairs_to_longest": "48 queries see 48 keys in each of six sentences.",
         "pairs_packed": "Each sentence has the square of its length: 16 + 81 + 144 + 324 + 625 + 1,936."},
    wrong={"the longest is not rounded up to 16": {
               "rows_to_128": 768, "rows_to_longest": 264, "rows_packed": 112, "pairs_to_longest": 11616,
               "pairs_packed": 3126},
           "each sentence is rounded up by itself, and not the longest for all": {
               "rows_to_128": 768, "rows_to_longest": 160, "rows_packed": 112, "pairs_to_longest": 5120,
               "pairs_packed": 3126},
           "every row sees every row: a token sees its own sentence alone": {
               "rows_to_128": 768, "rows_to_longest": 288, "rows_packed": 112, "pairs_to_longest": 82944,
               "pairs_packed": 12544},
           "each pair is counted once, as if a query saw no later keys": {
               "rows_to_128": 768, "rows_to_longest": 288, "rows_packed": 112, "pairs_to_longest": 7056,
               "pairs_packed": 1619},
           "the rows of padding alone": {
               "rows_to_128": 656, "rows_to_longest": 176, "rows_packed": 0, "pairs_to_longest": 10698,
               "pairs_packed": 0}},
)

# --- From a blank page: BERT's embedding ------------------------------------------------------------------------------

EPSILON = 1e-12


def _embed_inputs(rng, T, C):
    """Positions begin at 0 again with each sentence, and are not the rows."""
    ids, types = rng.integers(0, 50, T), rng.integers(0, 2, T)
    positions = (np.arange(T) + int(rng.integers(1, 9))) % 11
    tables = (uniform(rng, count, C) for count in (50, 11, 2))
    indices = (each.astype(np.int32) for each in (ids, types, positions))
    return *indices, *tables, 1 + uniform(rng, C) / 4, uniform(rng, C)


def _tables_times(factor):
    def turn(rng, ids, types, positions, words, places, kinds, weight, bias):
        words, places, kinds = (np.float32(factor) * table for table in (words, places, kinds))
        return ids, types, positions, words, places, kinds, weight, bias

    return turn


def _indices(choose):
    """choose(indices, rows of their table)."""
    def turn(rng, ids, types, positions, words, places, kinds, weight, bias):
        chosen = (choose(each, len(table)).astype(np.int32)
                  for each, table in ((ids, words), (types, kinds), (positions, places)))
        return *chosen, words, places, kinds, weight, bias

    return turn


@cuda.jit
def embed_norm_without_shuffles(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        word, kind, place = ids[t], types[t], positions[t]
        total, squares = float32(0.0), float32(0.0)
        for col in range(out.shape[1]):
            total += words[word, col] + kinds[kind, col] + places[place, col]
        mean = total / float32(out.shape[1])
        for col in range(out.shape[1]):
            v = words[word, col] + kinds[kind, col] + places[place, col] - mean
            squares += v * v
        scale = cuda.rsqrt(squares / float32(out.shape[1]) + float32(1e-12))
        for col in range(lane, out.shape[1], 32):
            v = words[word, col] + kinds[kind, col] + places[place, col] - mean
            out[t, col] = v * scale * weight[col] + bias[col]


@cuda.jit
def embed_norm_in_one_pass(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        total, squares = float32(0.0), float32(0.0)
        for col in range(lane, out.shape[1], 32):
            v = words[ids[t], col] + kinds[types[t], col] + places[positions[t], col]
            out[t, col] = v
            total += v
            squares += v * v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        mean = total / float32(out.shape[1])
        scale = cuda.rsqrt(squares / float32(out.shape[1]) - mean * mean + float32(1e-12))
        for col in range(lane, out.shape[1], 32):
            out[t, col] = (out[t, col] - mean) * scale * weight[col] + bias[col]


@cuda.jit
def embed_norm_one_element_a_lane(ids, types, positions, words, places, kinds, weight, bias, out):
    lane, t = cuda.threadIdx.x, cuda.blockIdx.x * 4 + cuda.threadIdx.y
    if t < out.shape[0]:
        inside = lane < out.shape[1]
        v = float32(0.0)
        if inside:
            v = words[ids[t], lane] + kinds[types[t], lane] + places[positions[t], lane]
        total = v
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, distance)
        v -= total / float32(out.shape[1])
        squares = v * v if inside else float32(0.0)
        for distance in (16, 8, 4, 2, 1):
            squares += cuda.shfl_xor_sync(ALL_LANES, squares, distance)
        if inside:
            scale = cuda.rsqrt(squares / float32(out.shape[1]) + float32(1e-12))
            out[t, lane] = v * scale * weight[lane] + bias[lane]


EMBED_NORM = KernelExercise(
    name="embed_norm",
    reference=lambda *inputs: embedding_layernorm_reference(*inputs, epsilon=EPSILON),
    inputs=_embed_inputs,
    shape=lambda T, C: (T, C),
    sizes=tuple({"T": T, "C": C} for T, C in ((1, 1), (2, 3), (4, 32), (5, 31), (3, 33), (7, 100), (9, 260))),
    launch=lambda T, C: (-(-T // 4), (32, 4)),
    tolerance=lambda *inputs: embedding_tolerance(*inputs, epsilon=EPSILON),
    observe_sizes=({"T": 5, "C": 31}, {"T": 3, "C": 33}),
    demand=shuffles,
    domain=(Reach("the three rows are small, and epsilon must be smaller", _tables_times(1e-4)),
            Reach("all tokens, types and positions are the first of their tables",
                  _indices(lambda each, rows: 0 * each)),
            Reach("all tokens, types and positions are the last of their tables",
                  _indices(lambda each, rows: 0 * each + rows - 1)),
            *of((3, 4, 5), ZEROS, HUGE_AND_TINY), *of(3, FAR_ABOVE_ZERO, ONE_FAR_ABOVE), *of((6, 7), NEGATIVE)),
    wrong={
        "the position is the row; in a batch each sentence begins at 0 again": Edit("positions[t]", "t"),
        "the type is never added": Edit(" + kinds[kind, col]", ""),
        "epsilon is GPT-2's 1e-5, and BERT's is 1e-12": Edit("float32(1e-12)", "float32(1e-5)"),
        "no epsilon: a row without variance is divided by 0": Edit(" + float32(1e-12)", ""),
        "the last shuffle of the mean, with the neighbour, is missing":
            Edit("for distance in (16, 8, 4, 2, 1):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "for distance in (16, 8, 4, 2):\n"
                 "    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)"),
        "`shfl_down_sync`: only lane 0 has the sum of the row":
            Edit("total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)",
                 "total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)"),
        "no guard: the last block has warps without a row": Edit("if t < out.shape[0]:", "if True:"),
        "one pass for both sums: the variance is the difference of two large numbers": embed_norm_in_one_pass,
        "one element a lane: rows longer than 32 are left unfinished": embed_norm_one_element_a_lane,
        "every lane adds up the whole row, and nothing is exchanged": embed_norm_without_shuffles,
    },
)

EXERCISES = (WORD_PIECES, PREDICT_PADDING, EMBED_NORM)
