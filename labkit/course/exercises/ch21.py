"""The exercises of lesson 21: WordPiece, the mean of a sentence, what padding costs, padding that takes part in
attention, a search by cosine, and BERT's embedding.

Sizes are B sentences of at most S tokens, T tokens in all, and C columns; N passages, of which k are wanted.
"""

import math

import numpy as np
from numba import float32

from labkit import cuda
from labkit.course.exercises import Edit, FunctionExercise, KernelExercise, PredictionExercise, Reach
from labkit.course.exercises.demands import shuffles
from labkit.course.exercises.domains import (
    FAR_ABOVE_ZERO,
    HUGE_AND_TINY,
    NEGATIVE,
    ONE_FAR_ABOVE,
    SUMMED,
    ZEROS,
    of,
)
from labkit.kernels.embedding_sum import embedding_layernorm_reference
from labkit.kernels.embedding_sum import tolerance as embedding_tolerance
from labkit.kernels.op import uniform
from labkit.kernels.pooling import mean_pool_reference, mean_tolerance
from labkit.kernels.tolerance import EPS32
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

# --- The mean of a sentence ------------------------------------------------------------------------------------------


def _lengths(rng, B, S):
    """One of them is S; the others may be 0."""
    lengths = rng.integers(0, S + 1, B).astype(np.int32)
    lengths[rng.integers(B)] = S
    return lengths


GAP = 3  # rows of no sentence after each, at most


def _laid_out(rng, rows, lengths, C, gaps):
    """Sentences of these lengths in any order, with `gaps` rows after each. In rows of no sentence there is NaN."""
    begins, end = np.zeros(len(lengths), np.int32), 0
    x = np.full((rows, C), np.nan, np.float32)
    for sentence, gap in zip(rng.permutation(len(lengths)), gaps, strict=True):
        begins[sentence], length = end, int(lengths[sentence])
        x[end : end + length] = uniform(rng, length, C)
        end += length + int(gap)
    return x, begins, lengths


def _pool_inputs(rng, B, S, C):
    return _laid_out(rng, B * (S + GAP), _lengths(rng, B, S), C, rng.integers(0, GAP + 1, B))


def _pooled_with(words, lengths, gap=None):
    """Sentences of the lengths that `lengths` makes of theirs."""
    def turn(rng, x, begins, old):
        new = lengths(old).astype(np.int32)
        gaps = rng.integers(0, GAP + 1, len(new)) if gap is None else np.full(len(new), gap)
        return _laid_out(rng, len(x), new, x.shape[1], gaps)

    return Reach(words, turn, {"B": 4, "S": 9, "C": 33})


@cuda.jit
def mean_pool_by_thread_0(x, begins, lengths, out):
    b = cuda.blockIdx.y
    if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 0:
        for col in range(x.shape[1]):
            total = float32(0.0)
            for row in range(begins[b], begins[b] + lengths[b]):
                total += x[row, col]
            out[b, col] = total / float32(max(lengths[b], 1))


MEAN_POOL = KernelExercise(
    name="mean_pool",
    reference=mean_pool_reference,
    inputs=_pool_inputs,
    shape=lambda B, S, C: (B, C),
    sizes=tuple({"B": B, "S": S, "C": C} for B, S, C in ((1, 1, 3), (2, 3, 5), (3, 4, 64), (5, 9, 65), (4, 40, 130))),
    launch=lambda B, S, C: ((-(-C // 64), B), 64),
    tolerance=mean_tolerance,
    domain=(_pooled_with("all sentences are empty", lambda old: 0 * old),
            _pooled_with("every sentence has a single token", lambda old: 0 * old + 1),
            _pooled_with("the first sentence is empty", lambda old: np.where(np.arange(len(old)) == 0, 0, 5)),
            _pooled_with("the last sentence is empty", lambda old: np.where(np.arange(len(old)) == len(old) - 1, 0, 5)),
            _pooled_with("sentences lie end to end, with no row between them", lambda old: old, gap=0),
            _pooled_with("every sentence is followed by rows of padding", lambda old: old, gap=GAP),
            _pooled_with("the last row of x is a token", lambda old: 0 * old + 9 + GAP, gap=0),
            *of(0, *SUMMED)),
    wrong={
        "an empty sentence is divided by 0, or left unwritten; its mean is to be 0":
            Edit("float32(max(lengths[b], 1))", "float32(lengths[b])"),
        "the sum is not divided": Edit("total / float32(max(lengths[b], 1))", "total"),
        "the sum is divided by one number for all sentences, the rows of the batch over their count":
            Edit("float32(max(lengths[b], 1))", "float32(max(x.shape[0] // lengths.size, 1))"),
        "every sentence is read from the first row on": Edit("range(begins[b], begins[b] + lengths[b])",
                                                            "range(lengths[b])"),
        "the length is taken for the end": Edit("begins[b] + lengths[b]", "lengths[b]"),
        "the last token is left out": Edit("begins[b] + lengths[b]", "begins[b] + lengths[b] - 1"),
        "no guard: the last block of columns is not full": Edit("if col < x.shape[1]:", "if True:"),
        "columns are counted within a block: those after 64 are never written":
            Edit("cuda.blockIdx.x * 64 + cuda.threadIdx.x", "cuda.threadIdx.x"),
        "the first thread of each block does the work of all 64": mean_pool_by_thread_0,
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

# --- Find the bug: padding that takes part ----------------------------------------------------------------------------

WIDE = 32


def _weights(queries, keys):
    scores = queries @ keys.T / math.sqrt(WIDE)
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _of_sentences(compute, queries, keys, values, lengths):
    """compute(queries, keys, values) of each sentence; 0 in the rows of padding."""
    out = np.zeros(queries.shape)
    padded = len(queries) // len(lengths)
    for sentence, length in enumerate(lengths):
        rows = slice(sentence * padded, sentence * padded + length)
        if length:
            out[rows] = compute(*(part[rows].astype(np.float64) for part in (queries, keys, values)))
    return out


def _attended(queries, keys, values, lengths):
    return _of_sentences(lambda q, k, v: _weights(q, k) @ v, queries, keys, values, lengths)


def _attended_tolerance(queries, keys, values, lengths):
    def of_one(q, k, v):
        sizes = np.abs(q) @ np.abs(k).T / math.sqrt(WIDE)
        each = 16 + 4 * np.sqrt(len(k)) + 4 * sizes.max(axis=1, keepdims=True)
        return EPS32 * (_weights(q, k) * each) @ np.abs(v)

    return _of_sentences(of_one, queries, keys, values, lengths)


def _attend_inputs(rng, B, S):
    return *(uniform(rng, B * S, WIDE) for _ in range(3)), _lengths(rng, B, S)


def _padding_holds(value, *which):
    """Sentences that all have padding; there these of the three arrays hold this number."""
    def turn(rng, *inputs):
        *parts, lengths = inputs
        S = len(parts[0]) // len(lengths)
        lengths = (S - 1 - np.arange(len(lengths)) % S).astype(np.int32)
        return *_with_padding(parts, lengths, value, which), lengths

    return turn


def _with_padding(parts, lengths, value, which):
    is_padding = (np.arange(len(parts[0]) // len(lengths)) >= lengths[:, None]).reshape(-1, 1)
    return (np.where(is_padding, np.float32(value), part) if number in which else part
            for number, part in enumerate(parts))


def _attended_with(words, lengths):
    """NaN in all padding, and the lengths that `lengths` makes of those that were drawn and S."""
    def turn(rng, *inputs):
        *parts, old = inputs
        new = lengths(old, len(parts[0]) // len(old)).astype(np.int32)
        return *_with_padding(parts, new, np.nan, (0, 1, 2)), new

    return Reach(words, turn, PADDED)


def _far_below(rng, queries, keys, values, lengths):
    return _padding_holds(0, 0, 1)(rng, -np.abs(queries) - 9, np.abs(keys) + 9, values, lengths)


PADDED = {"B": 3, "S": 5}
SCALED = "score *= float32(0.17677669)"


def _padding_scored(score: str) -> Edit:
    """All S rows are read, and those of padding have this score."""
    return Edit("for j in range(seen):", "for j in range(S):",
                SCALED, f"{SCALED}\nif j >= seen:\n    score = {score}")


ATTEND_PADDED = KernelExercise(
    name="attend_padded",
    reference=_attended,
    inputs=_attend_inputs,
    shape=lambda B, S: (B * S, WIDE),
    sizes=tuple({"B": B, "S": S} for B, S in ((1, 1), (2, 3), (3, 5), (2, 16), (1, 40))),
    launch=lambda B, S: (B * S, WIDE),
    tolerance=_attended_tolerance,
    observe_sizes=(PADDED,),
    domain=(Reach("keys of padding are far above the others", _padding_holds(100, 1), PADDED),
            Reach("values of padding are NaN", _padding_holds(np.nan, 2), PADDED),
            Reach("all scores are far below 0, except those of padding", _far_below, PADDED),
            Reach("all that padding holds is NaN", _padding_holds(np.nan, 0, 1, 2), PADDED),
            _attended_with("no sentence has padding", lambda old, S: 0 * old + S),
            _attended_with("every sentence has a single token", lambda old, S: 0 * old + 1),
            _attended_with("all sentences are empty", lambda old, S: 0 * old),
            _attended_with("the first sentence is empty", lambda old, S: np.minimum(np.arange(len(old)) * S, S - 1)),
            Reach("scores are thousands apart", lambda rng, queries, *others: (200 * queries, *others)),
            *of(2, HUGE_AND_TINY), *of((0, 1), ZEROS)),
    wrong={
        "the score of padding is 0, and the exponential of 0 is not": _padding_scored("float32(0.0)"),
        "the score of padding is -10000: its weight is 0, but 0 times NaN is NaN": _padding_scored("float32(-10000.0)"),
        "padding is left out of the sum of the weights, but its values are added":
            Edit("for j in range(seen):", "for j in range(S):",
                 "row_sum = row_sum * factor + weight",
                 "row_sum = row_sum * factor + (weight if j < seen else float32(0.0))"),
        "all rows of the batch are keys of every token":
            Edit("for j in range(seen):", "for j in range(-first, queries.shape[0] - first):"),
        "the keys are those of the first sentence, for all of them":
            Edit("queries[t, lane] * keys[first + j, lane]", "queries[t, lane] * keys[j, lane]"),
        "the values are those of the first sentence, for all of them":
            Edit("weight * values[first + j, lane]", "weight * values[j, lane]"),
        "a token sees no later ones, as in a GPT": Edit("for j in range(seen):", "for j in range(t - first + 1):"),
        "the last token is left out": Edit("for j in range(seen):", "for j in range(seen - 1):"),
        "rows of padding get a result, too: they are to be 0":
            Edit("acc / row_sum if t - first < seen else float32(0.0)", "acc / row_sum"),
        "the scores are not divided by the root of 32": Edit(SCALED, ""),
    },
)

# --- A search by cosine -----------------------------------------------------------------------------------------------


def _cosines(query, passages):
    query, passages = query.astype(np.float64), passages.astype(np.float64)
    lengths = np.linalg.norm(passages, axis=1) * np.linalg.norm(query)
    return passages @ query / np.where(lengths > 0, lengths, 1.0)


def _nearest(query, passages, k):
    return np.argsort(-_cosines(query, passages), kind="stable")[:k]


def _cosines_of(places, query, passages, k):
    """The cosines of the places that were returned; numbers that are none where a place is there twice or is none."""
    places = np.asarray(places)
    right = places.dtype.kind in "iu" and len(set(places.tolist())) == k
    if not right or places.min() < 0 or places.max() >= len(passages):
        return np.full(k, 9.0)
    return _cosines(query, passages)[places]


def _passages(rng, N, C, k):
    """Rows of very different lengths."""
    return uniform(rng, C), uniform(rng, N, C) * (10.0 ** rng.uniform(-2, 2, (N, 1))).astype(np.float32), k


def _one_empty_among_opposites(rng, query, passages, k):
    """Two have a cosine above 0, one is zeros, and the others are below 0."""
    signs = np.where(np.arange(len(passages)) < 2, 1, -1)[:, None]
    passages = signs * np.sign(query) * np.abs(passages)
    passages[2] = 0
    return query, rng.permutation(passages).astype(np.float32), k


def nearest_not_sorted(query, passages, k):
    return np.sort(_nearest(query, passages, k))


def nearest_by_distance(query, passages, k):
    return np.argsort(((passages - query) ** 2).sum(axis=1))[:k]


def nearest_divides_by_nothing(query, passages, k):
    with np.errstate(all="ignore"):
        return np.argsort(-(passages @ query) / np.linalg.norm(passages, axis=1))[:k]


NEAREST = FunctionExercise(
    name="nearest",
    reference=_nearest,
    inputs=_passages,
    sizes=tuple({"N": N, "C": C, "k": k} for N, C, k in  # np.argpartition happens to sort up to 256 of them
                ((1, 1, 1), (5, 3, 2), (9, 8, 9), (60, 17, 5), (300, 64, 10), (1500, 8, 700))),
    random_size=lambda rng: {"N": int(rng.integers(20, 90)), "C": int(rng.integers(4, 40)),
                             "k": int(rng.integers(2, 15))},
    tolerance=lambda query, passages, k: np.full(k, 4 * EPS32 * (np.sqrt(query.size) + 4)),
    alike=_cosines_of,
    domain=(Reach("one passage is all zeros, and some point the other way", _one_empty_among_opposites,
                  {"N": 8, "C": 6, "k": 5}),
            Reach("some passages are the same", lambda rng, query, passages, k: (
                query, passages[rng.integers(0, 3, len(passages))], k), {"N": 9, "C": 8, "k": 6}),
            Reach("all passages point the other way", lambda rng, query, passages, k: (
                query, -np.sign(query) * np.abs(passages), k), {"N": 9, "C": 8, "k": 4}),
            *of(1, HUGE_AND_TINY, NEGATIVE, ONE_FAR_ABOVE, at={"N": 60, "C": 17, "k": 5})),
    wrong={
        "the products are compared, and longer passages win":
            Edit("(passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)", "passages @ query"),
        "the products are divided by the squares of the lengths":
            Edit("np.maximum(np.linalg.norm(passages, axis=1), 1e-12)",
                 "np.maximum(np.linalg.norm(passages, axis=1) ** 2, 1e-12)"),
        "the columns are divided by their lengths, not the rows by theirs":
            Edit("(passages @ query) / np.maximum(np.linalg.norm(passages, axis=1), 1e-12)",
                 "(passages / np.maximum(np.linalg.norm(passages, axis=0), 1e-12)) @ query"),
        "the farthest come first": Edit("np.argsort(-cosines", "np.argsort(cosines"),
        "the sign is lost: what points the other way counts as near":
            Edit("np.argsort(-cosines", "np.argsort(-np.abs(cosines)"),
        "one too many is returned": Edit("[:k]", "[: k + 1]"),
        "the cosines are returned, not the places": Edit('np.argsort(-cosines, kind="stable")[:k]',
                                                         "np.sort(cosines)[::-1][:k]"),
        "the right k, in the order of the passages": nearest_not_sorted,
        "the distance is compared, which depends on the lengths": nearest_by_distance,
        "a passage of zeros has the cosine NaN, which is sorted behind all others": nearest_divides_by_nothing,
    },
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

EXERCISES = (WORD_PIECES, MEAN_POOL, PREDICT_PADDING, ATTEND_PADDED, NEAREST, EMBED_NORM)
