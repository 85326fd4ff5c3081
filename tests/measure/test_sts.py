"""Pairs with scores: every layout of a file that is around, bad lines by their number, and Spearman's correlation."""

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit.measure import sts

PAIRS = (("A cat sits.", "A cat is sitting."), ('He said "no".', "He refused, flatly."), ("Rain.", "A loop."))
SCORES = (4.8, 3.0, 0.25)


def lines(*rows, separator="\t"):
    return "\n".join(separator.join(map(str, row)) for row in rows) + "\n"


def quoted(text):
    return '"' + str(text).replace('"', '""') + '"'


LAYOUTS = {
    "score first": lines(*((score, *two) for score, two in zip(SCORES, PAIRS, strict=True))),
    "score last": lines(*((*two, score) for score, two in zip(SCORES, PAIRS, strict=True))),
    "official": lines(*(("main-news", "MSRvid", "2012test", "0024", score, *two)
                        for score, two in zip(SCORES, PAIRS, strict=True))),
    "official, with sources": lines(*(("main-news", "MSRvid", "2012test", "0024", score, *two, "a source", "another")
                                      for score, two in zip(SCORES, PAIRS, strict=True))),
    "header": lines(("id", "Sentence2", "score", "sentence1"),
                    *((7, two[1], score, two[0]) for score, two in zip(SCORES, PAIRS, strict=True))),
    "commas": lines(*((score, *map(quoted, two)) for score, two in zip(SCORES, PAIRS, strict=True)), separator=","),
    "commas, header": lines(("sentence1", "sentence2", "label"),
                            *((*map(quoted, two), score) for score, two in zip(SCORES, PAIRS, strict=True)),
                            separator=","),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", [str, lambda text: "\ufeff" + text.replace("\n", "\r\n") + "\r\n"],
                         ids=["plain", "as Windows writes it"])
def test_every_layout_gives_the_same_pairs(tmp_path, layout, change):
    path = tmp_path / "sts.csv"
    path.write_bytes(change(LAYOUTS[layout]).encode())
    found = sts.read(path)
    assert found.problems == () and found.scores.tolist() == list(SCORES) and found.sentences == PAIRS


def test_bad_lines_are_left_out_and_named(tmp_path):
    path = tmp_path / "sts.tsv"
    path.write_text("1.0\ta\tb\n\nbest\tc\td\n2.0\te\nnan\tg\th\n3.0\t \tj\n4.5\tk\tl\n5,0\tm\tn\n")
    found = sts.read(path)
    assert found.sentences == (("a", "b"), ("k", "l")) and found.scores.tolist() == [1.0, 4.5]
    assert found.problems == (
        "line 3: the score is 'best', which is no number", "line 4: it has 2 columns, not 3 or 7",
        "line 5: the score is 'nan', which is no number", "line 6: a sentence is empty",
        "line 8: the score is '5,0', which is no number")


def test_a_sentence_in_quotes_may_have_lines_and_the_number_is_that_of_its_first(tmp_path):
    path = tmp_path / "sts.csv"
    path.write_text('1.0,"two\nlines","b, and more"\nx,c,d\n2.0,e,f\n')
    found = sts.read(path)
    assert found.sentences[0] == ("two\nlines", "b, and more") and found.problems[0].startswith("line 3: the score")


@pytest.mark.parametrize("text, message", [
    ("", "is empty"), ("\n \n", "is empty"), ("1.0\ta\tb\n", "has 1 lines that can be used; two at least"),
    ("nothing here\nnor here\n", "line 1: it has 1 column, not 3 or 7"),
    ('1.0,a,b\n2.0,"c,d\n' + "3.0,e,f\n" * 20, "begins in line 2 is no CSV: a quote is not closed"),
    ("1.0\ta\tb\n2.0\tc\n", "has 1 lines")])
def test_a_file_without_pairs_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "sts.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        sts.read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="none.csv is not there"):
        sts.read(tmp_path / "none.csv")
    with pytest.raises(UserError, match="cannot be read"):
        sts.read(tmp_path)
    (tmp_path / "latin").write_bytes("1.0\tcafé\tb\n".encode("latin-1"))
    with pytest.raises(UserError, match="no text in UTF-8"):
        sts.read(tmp_path / "latin")


# --- Spearman --------------------------------------------------------------------------------------------------------


def test_equal_values_share_their_ranks():
    assert sts.ranks(np.array([20.0, 10.0, 30.0, 20.0])).tolist() == [2.5, 1.0, 4.0, 2.5]
    assert sts.ranks(np.array([7.0, 7.0, 7.0])).tolist() == [2.0, 2.0, 2.0]


def test_without_ties_it_is_the_formula_of_squared_differences():
    rng = np.random.default_rng(0)
    one, other = rng.permutation(30), rng.permutation(30)
    difference = (one - other).astype(float)
    assert sts.spearman(one, other) == pytest.approx(1 - 6 * (difference @ difference) / (30 * (900 - 1)))
    assert sts.spearman(one, np.exp(one)) == pytest.approx(1.0) and sts.spearman(one, -one) == pytest.approx(-1.0)


def test_with_ties_it_is_scipys():
    one, other = [1, 2, 2, 3, 5, 5, 5, 8], [2.0, 1.0, 4.0, 4.0, 4.0, 9.0, 7.0, 7.0]
    assert sts.spearman(one, other) == pytest.approx(0.79746835443038)


def test_it_is_not_defined_where_all_are_equal():
    assert sts.spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


def test_each_sentence_is_embedded_once():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return np.array([[len(text), 1.0] for text in texts])

    pairs = sts.Pairs(np.array([5.0, 1.0, 1.0]), (("a", "a"), ("a", "bbbb"), ("bbbb", "a")))
    found = sts.judged(pairs, encode)
    assert asked == ["a", "bbbb"]
    assert found.cosines[0] == pytest.approx(1.0) and found.cosines[1] == found.cosines[2] < 1
    assert found.spearman == pytest.approx(1.0)
