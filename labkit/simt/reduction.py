"""cuda.reduce: make a reduction over an array from a function of two numbers.

    @cuda.reduce
    def largest(a, b):
        return a if a > b else b

Shapes  arr (n,), on the host or the device; the result is one number of its dtype
Work    n - 1 calls of the function, in LANES chains that are joined at the end, so that rounding errors stay as small
        as on a GPU. The function must be associative and commutative: the order is not that of the array.
"""

from numba import njit

from labkit.simt.arrays import DeviceNDArray, as_cuda_array, is_cuda_array

LANES = 64 * 128  # the threads that numba.cuda reduces with: 64 blocks of 128


@njit
def _fold(function, values, lanes, init):
    """init and all of values joined by function; lanes holds the first values, one for each chain."""
    width = lanes.size
    for start in range(width, values.size, width):
        for lane in range(min(width, values.size - start)):
            lanes[lane] = function(lanes[lane], values[start + lane])
    while width > 1:
        half = (width + 1) // 2
        for lane in range(width - half):
            lanes[lane] = function(lanes[lane], lanes[lane + half])
        width = half
    lanes[0] = function(lanes[0], init)
    return lanes[0]


class Reduce:
    """A reduction by `function(a, b)`, compiled at its first call for each dtype."""

    def __init__(self, function):
        self._function = njit(function)

    def __call__(self, arr, size=None, res: DeviceNDArray | None = None, init=0, stream=0):
        """Reduce arr[:size], starting from `init`. The result is returned, or written to res[0] if `res` is given."""
        if arr.ndim != 1:
            raise TypeError(f"reduce: arr must have 1 dimension, this one has {arr.ndim}")
        values = (as_cuda_array(arr)._array if is_cuda_array(arr) else arr)[:size]
        init = values.dtype.type(init)
        result = _fold(self._function, values, values[:LANES].copy(), init) if values.size else init
        if res is None:
            return values.dtype.type(result)
        res[0] = result
