"""numba-cuda's warnings about launches that cost much on a GPU, and about options that do not go together.

They are off until `switch_on()`, which labkit.simt.stand_in calls. The CPU device knows nothing of a GPU's speed, so a
program has to ask for the warnings about it: with NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS=1 or
NUMBA_CUDA_WARN_ON_IMPLICIT_COPY=1, or by setting these in numba.config once numba.cuda is imported.
"""

import os
import warnings

import numpy as np
from numba import config
from numba.core.errors import NumbaInvalidConfigWarning, NumbaPerformanceWarning

MIN_BLOCKS = 128  # a large GPU has about as many multiprocessors
is_on = False


def switch_on():
    global is_on
    if is_on:  # a later import of a submodule leaves the settings of the program alone
        return
    is_on = True
    for name in ("CUDA_LOW_OCCUPANCY_WARNINGS", "CUDA_WARN_ON_IMPLICIT_COPY"):
        if f"NUMBA_{name}" not in os.environ:
            setattr(config, name, 0)


def on_grid(blocks, stacklevel=5):
    """Warn of a grid of so few blocks that most of a GPU stays idle."""
    if is_on and config.CUDA_LOW_OCCUPANCY_WARNINGS and not config.DISABLE_PERFORMANCE_WARNINGS and blocks < MIN_BLOCKS:
        text = f"Grid size {blocks} will likely result in GPU under-utilization due to low occupancy."
        warnings.warn(NumbaPerformanceWarning(text), stacklevel=stacklevel)


def on_arguments(args):
    """Warn of host arrays, which a launch on a GPU copies there and back."""
    if not is_on or not config.CUDA_WARN_ON_IMPLICIT_COPY or config.DISABLE_PERFORMANCE_WARNINGS:
        return
    if any(type(a) is np.ndarray for a in args):
        text = "Host array used in CUDA kernel will incur copy overhead to/from device."
        warnings.warn(NumbaPerformanceWarning(text), stacklevel=3)


def on_options(debug=None, opt=None, **_):
    """Warn of cuda.jit(debug=True) without opt=False, which may end a GPU's compiler."""
    debug = config.CUDA_DEBUGINFO_DEFAULT if debug is None else debug
    opt = config.OPT != 0 if opt is None else opt
    if is_on and debug and opt:
        text = ("debug=True with opt=True is not supported by CUDA. This may result in a crash - set debug=False or "
                "opt=False.")  # fmt: skip
        warnings.warn(NumbaInvalidConfigWarning(text), stacklevel=3)
