"""cuda.reduce against NumPy, in float64 where that is the truth."""

import numpy as np
import pytest

from labkit.simt import api as cuda
from labkit.simt.reduction import Reduce

total = Reduce(lambda a, b: a + b)


@pytest.mark.parametrize("n", [1, 2, 129, 8191, 8192, 8193, 30_011])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
def test_sum(n, dtype):
    host = np.random.default_rng(n).integers(0, 100, n).astype(dtype)
    expected = host.astype(np.float64).sum()
    for array in (host, cuda.to_device(host)):
        result = total(array)
        assert result == expected and result.dtype == host.dtype
    assert total(host, init=5) == expected + 5
    assert total(host, size=n // 2 + 1) == host[: n // 2 + 1].astype(np.float64).sum()


def test_result_in_device_memory():
    result = cuda.device_array(2, np.float32)
    assert total(np.arange(300, dtype=np.float32), res=result) is None
    assert result[0] == 300 * 299 / 2 and np.isnan(result[1])


def test_other_functions_and_views():
    @Reduce
    def largest(a, b):
        return a if a > b else b

    host = np.random.default_rng(0).random((7, 301)) - 2
    assert largest(cuda.to_device(host)[:, 5], init=-10) == host[:, 5].max()
    assert largest(host[3, ::2], init=-10) == host[3, ::2].max()
    assert largest(host[0]) == 0  # init is 0 unless given


def test_the_input_stays_as_it_is():
    host = np.ones(1000)
    total(host)
    assert (host == 1).all()


def test_long_sums_stay_accurate():
    host = np.full(2_000_000, 0.1, np.float32)
    assert abs(total(host) / (np.float32(0.1) * 2e6) - 1) < 1e-5


def test_empty_and_wrong_shapes():
    assert total(np.zeros(0, np.int32), init=4) == 4
    with pytest.raises(TypeError, match="1 dimension, this one has 2"):
        total(np.zeros((2, 2)))
