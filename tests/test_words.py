"""The advice on words: what it finds, and where a word is right."""

import pytest

from tests.scripts import loaded


@pytest.fixture(scope="module")
def problems_in():
    with loaded("words") as script:
        yield script.problems_in


def test_names_docstrings_comments_and_strings_are_read(problems_in):
    source = (
        "def make_rivals(dear):\n"
        '    """Of two\n    halves, or of powers of two.\n    """\n'
        "    # what takes\n    # place\n"
        "    patch, text = dear, f'{dear} told'\n"
    )
    assert problems_in("labkit/engine/made_up.py", source) == [
        "labkit/engine/made_up.py:1: 'dear': say 'expensive'",
        "labkit/engine/made_up.py:1: 'rivals': say 'baseline'",
        "labkit/engine/made_up.py:3: 'halves': say 'float16 or half precision'",
        "labkit/engine/made_up.py:5: 'takes place': say 'run'",
        "labkit/engine/made_up.py:7: 'patch': say 'thread tile'",
        "labkit/engine/made_up.py:7: 'told': say 'message, or the name of what is given'",
    ]


def test_where_a_word_is_right(problems_in):
    elsewhere = "largest = total = 0  # threads finish; both halves; powers of two\n"
    assert problems_in("labkit/kernels/argmax.py", elsewhere) == []
    assert problems_in("labkit/kernels/softmax/made_up.py", "largest = 0\n") == [
        "labkit/kernels/softmax/made_up.py:1: 'largest': say 'row_max, in a sentence the maximum'"]
    assert problems_in("labkit/kernels/matmul/sums.py", "")  # a file's name, too
    assert problems_in("tests/made_up.py", "nobody = 'nobody'\n") == [  # a string of a test is what it quotes
        "tests/made_up.py:1: 'nobody': say 'none, or no thread'"]
