"""Kernels that begin before the one before them ends: programmatic dependent launch.

A kernel's first microsecond goes to starting blocks, computing indices and waiting for its first loads, while the one
before it waits for its last blocks. In a graph the two may overlap (labkit.device.graphs puts in the edges), if the
later kernel says where it begins to depend on the earlier one. A factory with early=True makes such a kernel:

    if EARLY:
        ptx.griddepcontrol_launch_dependents()    # the kernel after this one may begin
    ...                                           # indices, weights on their way to L2: nothing that a kernel writes
    if EARLY:
        ptx.griddepcontrol_wait()                 # every block passes here
    ...                                           # all else, and every store

    kernel.uses_pdl = early                   # for labkit.device.graphs

Loads to registers must have arrived before the wait; what travels to L2 or to shared memory need not. With overlap a
decode step of Llama 3.2 1B takes, on an H200, 0.93 ms for one sequence, 1.16 for 16, 1.32 for 32 and 3.56 for 256 (the
recorded series llama_decode). It is not always a gain: blocks that begin early crowd on the SMs that are free, and for
two to eight sequences the step was slower. To let the next kernel begin only when the work is nearly done was slower
for all.

Launched without a graph, or without such an edge, it runs as any other: there is nothing to wait for.

Activations are then loaded by ld.global: ld.global.nc is for what no kernel writes while the kernel runs, and an early
kernel runs while its inputs are written.

Source  CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"
"""

from labkit.device import gpus, ptx

NEEDS = (9, 0)
# Percent of an SM's memory that kernels which load weights to registers leave to be shared: loads that are in flight
# have their places in L1, the rest. All kernels of a graph that overlap then ask for the same (labkit.device.graphs).
CARVEOUT = 50


def uses_pdl(rows: int) -> bool:
    """Whether the kernels of a step with so many rows should be made so on the present device. Not on the CPU device,
    where it would change nothing."""
    return (rows == 1 or rows > 8) and gpus.chosen_on_gpu() and gpus.target().capability >= NEEDS


def load_of(early: bool):
    """The 128-bit load of what an earlier kernel wrote."""
    return ptx.load_global4 if early else ptx.load_nc4
