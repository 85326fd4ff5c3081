"""The figures of the lesson "To the limit of the CUDA cores": what they say, and what they refuse."""

from matplotlib.text import Text

from labkit.course.drawings import matmul_to_the_limit as pictures


def test_what_one_thread_keeps_and_reads():
    figure = pictures.thread_tile(threads=4, size=2, thread=(1, 3))
    shown = " | ".join(item.get_text() for item in figure.findobj(Text) if item.get_text())
    for part in ("2 numbers of a,", "2 numbers of b,", "of its 4 accumulators.", "Thread (1, 3)"):
        assert part in shown
