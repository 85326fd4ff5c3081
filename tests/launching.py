"""What tests of kernels share: each rung of several operations, arrays on the device, a launch between guards."""

from collections import Counter

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import poisoned, to_device


def every_rung(*ops):
    """Parametrise a test by `op` and `launcher`; a case has the name of its rung, and that of the operation where
    several have a rung of this name."""
    names = Counter(launcher.__name__ for op in ops for launcher in op.rungs)
    return pytest.mark.parametrize(("op", "launcher"), [
        pytest.param(op, launcher, id=f"{op.name}-" * (names[launcher.__name__] > 1) + launcher.__name__)
        for op in ops for launcher in op.rungs])


def ones(*shape, dtype=np.float32):
    return cuda.to_device(np.ones(shape, dtype))


def run(launch, shape, dtype, *inputs, **options) -> np.ndarray:
    """What launch(*inputs, out) writes into an output of this shape, which was poisoned before, and nowhere else."""
    out = poisoned(shape, dtype)
    launch(*to_device(inputs), out.array, **options)
    cuda.synchronize()
    found, outside = out.read()
    assert not outside.size, "wrote outside the output"
    return found


def check_gradient(value, x, gradient) -> None:
    """Compare the gradient of a scalar function at x, all in float64, with central differences along random lines."""
    for direction in np.random.default_rng(7).standard_normal((3, *x.shape)):
        numeric = (value(x + 1e-6 * direction) - value(x - 1e-6 * direction)) / 2e-6
        np.testing.assert_allclose((gradient * direction).sum(), numeric, rtol=1e-6, atol=1e-7)
