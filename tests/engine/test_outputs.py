"""Logprobs: reads return what was written, at any time; objects are made only when they are read."""

import copy
import pickle

import numpy as np
import pytest

from labkit.engine import outputs
from labkit.engine.outputs import Logprob, Logprobs, Sampled, unpack, with_logprobs
from labkit.kernels.logprobs import COLUMNS, logprobs_reference

V = 7  # less than may be asked for
TEXTS = dict(enumerate("abcdefg"))
COUNTS = [3, 0, 20, 7, 1]


def made(seed: int, counts) -> tuple[list[Sampled], list[dict[int, Logprob]]]:
    """A token for each count, as a step returns it, and what is to be read of it."""
    rng = np.random.default_rng(seed)
    logits, tokens = rng.standard_normal((len(counts), V)).astype(np.float32), rng.integers(0, V, len(counts)).tolist()
    rows = logprobs_reference(logits, tokens, counts).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    expected = []
    for x, token, count in zip(exact, tokens, counts, strict=True):
        order = np.argsort(-x).tolist()
        shown = list(dict.fromkeys([token, *order[: min(count, V)]]))
        expected.append({each: Logprob(float(np.float32(x[each])), order.index(each) + 1, TEXTS[each])
                         for each in shown})
    return with_logprobs(tokens, rows), expected


def test_they_are_read_as_a_list_is():
    entries, expected = made(1, COUNTS)
    found = Logprobs(entries, TEXTS)
    assert [list(one) for one in found] == [list(one) for one in expected]  # the token itself first
    assert [type(one.logprob) for each in found for one in each.values()] == [float] * sum(map(len, expected))
    assert len(found) == 5 and list(found) == expected and list(reversed(found)) == expected[::-1]
    assert found[1] == expected[1] and found[-5] == expected[0] and found[np.int64(2)] == expected[2]
    for part in (slice(1, 3), slice(None, None, -2), slice(-2, None), slice(9, None)):
        assert type(found[part]) is Logprobs and found[part] == expected[part]
    assert expected[2] in found and found.index(expected[2]) == 2 and {} not in found
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"index is {wrong}; there are logprobs of 5 tokens"):
            found[wrong]
    with pytest.raises(TypeError):
        found["a"]


def test_they_equal_a_list_of_the_same_and_nothing_else():
    entries, expected = made(2, COUNTS)
    found = Logprobs(entries, TEXTS)
    assert found == expected and expected == found and found == Logprobs(list(entries), TEXTS)
    assert found != expected[:-1] and found != [*expected[:-1], {}] and found != Logprobs(entries[1:], TEXTS)
    assert found != "abcde" and found is not None and Logprobs([], TEXTS) == [] != Logprobs([None], TEXTS) == [None]
    assert repr(found) == f"Logprobs({expected!r})"


def test_they_cannot_be_changed():
    entries, expected = made(3, COUNTS)
    found = Logprobs(entries, TEXTS)
    with pytest.raises(TypeError):
        found[0] = {}
    with pytest.raises(TypeError):
        hash(found)
    assert not hasattr(found, "append")
    found[0].clear()  # it is the reader's own
    assert found == expected


def test_what_was_given_out_does_not_grow():
    entries, expected = made(4, COUNTS)
    growing, given = [], []
    for entry in entries:
        given.append(Logprobs(growing, TEXTS))
        growing.append(entry)
    assert given == [expected[:count] for count in range(5)]
    assert given[3][-1] == expected[2] and given[3][1:] == expected[1:3] and given[3][::-1] == expected[2::-1]
    with pytest.raises(IndexError):
        given[3][3]


def test_a_step_makes_as_much_for_twenty_as_for_one_and_keeps_only_what_was_asked_for(monkeypatch):
    monkeypatch.setattr(outputs, "Logprob", None)
    for count in (0, 20):
        entries, _ = made(5, [count] * 8)
        assert all(each.rows is entries[0].rows and each.row == at for at, each in enumerate(entries))
    rows = np.zeros((6, COLUMNS), np.float32)
    rows[[1, 4], :2] = [[-1.5, 3], [-0.5, 1]]
    found = with_logprobs([5, 6, 7, 8, 9, 10], rows)
    assert [each.token for each in found] == [5, 6, 7, 8, 9, 10]
    assert [each.logprob for each in found] == [None, -1.5, None, None, -0.5, None]
    assert found[1].rows is found[4].rows and found[1].rows.shape == (2, COLUMNS) and found[4].row == 1
    assert all(each.rows is None for each in found if each.logprob is None)


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy],
                         ids=["pickle", "copy", "deepcopy"])
def test_a_copy_needs_neither_the_tokenizer_nor_the_rows_of_others(copied):
    class Texts(dict):
        def __missing__(self, token):
            return TEXTS[token]

        __reduce__ = __deepcopy__ = None

    entries, expected = made(6, COUNTS * 50)
    for chosen in ([None, *entries[2:4]], []):
        found = copied(Logprobs(chosen, Texts()))
        assert type(found) is Logprobs and found == [each and expected[entries.index(each)] for each in chosen]
        assert copied(found[1:]) == found[1:]
        assert all(each is None or each.rows.shape == (2, COLUMNS) for each in found._entries)


def test_parts_make_the_whole():
    entries, expected = made(7, COUNTS)
    entries, expected = [None, *entries], [None, *expected]
    for cut in range(7):
        first, second = Logprobs(entries[:cut], TEXTS), Logprobs(entries, TEXTS)
        tokens, rows = second.packed(cut)
        assert len(tokens) == 6 - cut and len(rows) == 6 - max(cut, 1)
        assert Logprobs(unpack(*first.packed()) + unpack(tokens, rows), TEXTS) == expected
