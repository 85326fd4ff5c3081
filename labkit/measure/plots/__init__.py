"""The plots that more than one lesson, README or `labkit bench` draws, all in one style. Each returns a figure,
which a notebook shows. What one lesson alone draws lies beside it, in notebooks/drawings/.

    ladders            ladder, climbs, crossover, sizes, block_shapes, traffic, curves
    roofline           roofline, every_rung
    drawings           launch_map, warp_addresses, banks
    style              CourseFigure, the colours, the parts of a plot

Further ones, imported by module: engine, lines, matmul, pages, sentences and serve.

Every figure says where its times were measured. Recorded GPU times come first; those of this machine's GPU are beside
them in the same unit. The CPU device's times are not speeds and are not drawn: a line below the figure says so.
"""

from labkit.measure.plots.drawings import banks, launch_map, sectors, warp_addresses
from labkit.measure.plots.ladders import block_shapes, climbs, crossing, crossover, curves, ladder, sizes, traffic
from labkit.measure.plots.roofline import every_rung, roofline
from labkit.measure.plots.style import CourseFigure

__all__ = [
    "CourseFigure", "banks", "block_shapes", "climbs", "crossing", "crossover", "curves", "every_rung", "ladder",
    "launch_map", "roofline", "sectors", "sizes", "traffic", "warp_addresses",
]
