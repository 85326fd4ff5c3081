import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.positions import positions


@pytest.mark.parametrize(("n", "threads"), [(1, 1), (10, 4), (33, 32), (1000, 256)])
def test_every_thread_knows_its_place(n, threads):
    block, thread = (cuda.to_device(np.full(n, -1, np.int32)) for _ in range(2))
    positions(block, thread, threads)
    np.testing.assert_array_equal(block.copy_to_host(), np.arange(n) // threads)
    np.testing.assert_array_equal(thread.copy_to_host(), np.arange(n) % threads)


def test_a_wrong_dtype_is_named():
    with pytest.raises((TypeError, ValueError), match="thread"):
        positions(cuda.device_array(4, np.int32), cuda.device_array(4, np.float32), 4)
