"""The course's plots, all in one style. Each function returns a figure; a notebook shows it.

    ladders            ladder, climbs, crossover, sizes, block_shapes, traffic, curves
    roofline           roofline, every_rung
    where_time_goes    round_trip, timeline, launch_cost, copy_cost
    drawings           launch_map, owners, warp_addresses, banks, broadcast_reads
    matmul             tile_walk, thread_tile, mma_lanes, overlap
    reductions         reductions, masks, quads, launch_floor
    style              CourseFigure, the colours, the parts of a plot

The plots of single lessons are in attention, batches, flash, generation, gpt2_block, libraries, llama_by_hand,
machine, matching, model_bytes, numbers, pages, scans, schedules, sentences, streams and tensor_cores; those of the
engine's series in engine.

Every figure says where its times were measured. Recorded GPU times come first; those of this machine's GPU are beside
them in the same unit. The CPU device's times are not speeds and are not drawn: a line below the figure says so.
"""

from labkit.measure.plots.drawings import banks, broadcast_reads, launch_map, owners, sectors, warp_addresses
from labkit.measure.plots.ladders import block_shapes, climbs, crossing, crossover, curves, ladder, sizes, traffic
from labkit.measure.plots.matmul import mma_lanes, overlap, thread_tile, tile_walk
from labkit.measure.plots.reductions import launch_floor, masks, quads, reductions
from labkit.measure.plots.roofline import every_rung, roofline
from labkit.measure.plots.style import CourseFigure
from labkit.measure.plots.where_time_goes import copy_cost, launch_cost, round_trip, timeline

__all__ = [
    "CourseFigure", "banks", "block_shapes", "broadcast_reads", "climbs", "copy_cost", "crossing", "crossover",
    "curves", "every_rung", "ladder", "launch_cost", "launch_floor", "launch_map", "masks", "mma_lanes", "overlap",
    "owners", "quads", "reductions", "roofline", "round_trip", "sectors", "sizes", "thread_tile", "tile_walk",
    "timeline", "traffic", "warp_addresses",
]
