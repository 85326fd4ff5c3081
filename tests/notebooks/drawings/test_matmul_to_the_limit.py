"""The figures of the lesson "To the limit of the CUDA cores": what they say, and what they refuse."""

from matplotlib.text import Text

from labkit.course.drawings import matmul_to_the_limit as pictures


def test_what_one_thread_keeps_and_reads():
    figure = pictures.thread_tile(threads=4, size=2, thread=(1, 3))
    shown = " | ".join(item.get_text() for item in figure.findobj(Text) if item.get_text())
    for part in ("2 numbers of a,", "2 numbers of b,", "of its 4 accumulators.", "Thread (1, 3)"):
        assert part in shown


def test_a_warp_tile_reads_less():
    assert pictures.warp_tile().summary == ("two rows of 16 thread tiles: 144 elements; 8 rows of 4 thread tiles: 96 "
                                            "elements")


def test_reading_ahead_waits_for_the_first_read_only():
    assert "8.0 one after the other, 5.6 one step ahead" in pictures.reading_ahead(5, 0.6, 1.0).summary


def test_an_order_that_turns_around_shares_a_factor_every_time():
    assert pictures.product_order(8).summary == ("64 products: row by row, both factors change 7 times; turning "
                                                 "around, both factors change 0 times")
