"""The figures of the lesson "Attention": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import attention as pictures


def test_where_a_head_lies():
    figure = pictures.qkv_rows(token=1, head=3)
    assert "Token 1 and head 3" in figure.summary
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="head 12 of 12"):
        pictures.qkv_rows(head=12)


def test_strides_of_a_head():
    figure = pictures.strides(head=0)
    assert "the values of head 0" in figure.summary
    assert figure.svg().startswith("<svg")
    with pytest.raises(ValueError, match="head 2 of 2"):
        pictures.strides(head=2)
