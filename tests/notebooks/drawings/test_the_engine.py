"""The figures of the lesson "The engine": what they say, and what they refuse."""

import pytest

from labkit.course.drawings import the_engine as pictures


@pytest.mark.parametrize("host, device, seconds", [(300, 1000, 5300), (1000, 300, 5300)])
def test_overlapped_steps_take_the_longer_of_the_two(host, device, seconds):
    figure = pictures.host_and_device(host, device)
    assert figure.summary.endswith(f"step n + 1 is prepared while step n runs: 5 steps in {seconds:,} us.")
    assert "one after the other: 5 steps in 6,500 us" in figure.summary and figure.svg()
    with pytest.raises(ValueError, match="host_us is 0"):
        pictures.host_and_device(0, 1)
