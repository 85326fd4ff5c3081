"""observe(kernel[grid, block], ...): a launch in plain Python in which every access is seen."""

import numpy as np

from labkit.simt.arguments import argument_value
from labkit.simt.arrays import DeviceNDArray
from labkit.simt.launch import ConfiguredKernel, check_count
from labkit.simt.observer.observation import Observation
from labkit.simt.observer.player import play


def observe(configured, *args):
    """Run a launch in plain Python and report what its threads did.

    Takes `kernel[grid, block]` (also with stream and shared_bytes) and the arguments of the launch; arrays are changed
    as the launch would change them. On a GPU the arrays are copied to the host and back.
    Returns a Report: `races` can change a result, `benign_races` cannot. Raises as a launch does for wrong arguments,
    and KernelTimeout for an endless loop.
    """
    function, grid, block, shared_bytes = _configuration(configured)
    if isinstance(configured, ConfiguredKernel):
        args = as_passed(configured.kernel, args)
    report = Observation(function, grid, block, shared_bytes, args).run()
    report.player = play
    return report


def _configuration(configured):
    if isinstance(configured, ConfiguredKernel):
        return configured.kernel.py_func, configured.grid, configured.block, configured.sharedmem
    dispatcher = getattr(configured, "dispatcher", None)  # numba.cuda's launch configuration
    if dispatcher is not None and hasattr(dispatcher, "py_func"):
        full = [tuple((*np.atleast_1d(d).tolist(), 1, 1)[:3]) for d in (configured.griddim, configured.blockdim)]
        return dispatcher.py_func, *full, int(configured.sharedmem or 0)
    raise TypeError(f"observe takes kernel[grid, block] and the launch's arguments, not {type(configured).__name__}")


def as_passed(kernel, args):
    """The arguments as a launch passes them: arrays as they are, scalars in the types of the kernel's signature."""
    check_count(kernel, args)
    values = [argument_value(kernel, name, a) for name, a in zip(kernel.params, args, strict=True)]
    pairs = zip(args, kernel.converted(values), strict=True)
    return [a if isinstance(a, DeviceNDArray) or isinstance(v, np.ndarray) else v for a, v in pairs]
