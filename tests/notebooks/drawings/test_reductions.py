"""The figures of the lesson "Reductions and softmax": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import reductions as pictures


@pytest.mark.parametrize("threads", [4, 8, 16])
def test_a_reduction_of_any_allowed_width_is_drawn(threads):
    assert f"{threads} threads in {threads.bit_length() - 1} steps" in pictures.reductions(threads).summary
    assert pictures.reductions(threads).svg()


def test_a_reduction_of_another_width_is_refused():
    with pytest.raises(ValueError, match="threads is 6"):
        pictures.reductions(6)
