"""GPT-2's linear layers and its logits: every rung, and the one that is picked."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.linear.projection import logits, logits_warp, projection, projection_few_rows
from labkit.kernels.ops.projection import LOGITS, PROJECTION
from labkit.measure.ops import op


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("operation", [PROJECTION, LOGITS], ids=lambda operation: operation.name)
def test_every_rung_agrees(operation):
    assert agree(operation, seed=1).passed
    assert op(operation.name) is operation


@pytest.mark.parametrize("rows", [1, 7, 8, 40])
def test_the_one_that_is_picked_is_right(rows):
    rng = np.random.default_rng(0)
    for operation, launch in ((PROJECTION, projection), (LOGITS, logits)):
        inputs = operation.inputs(rng, M=rows, N=70, K=48)
        out = cuda.device_array((rows, 70), np.float32)
        launch(*(cuda.to_device(array) for array in inputs), out)
        miss = np.abs(out.copy_to_host() - operation.reference(*inputs))
        assert (miss <= operation.tolerance(*(array.astype(np.float64) for array in inputs))).all()


def test_shapes_that_do_not_fit_are_named():
    x, weights, bias = (cuda.to_device(np.ones(shape, np.float32)) for shape in ((2, 3), (4, 5), (5,)))
    out = cuda.device_array((2, 5), np.float32)
    with pytest.raises(ValueError, match=r"columns of x \(3\) must equal the rows of weights \(4\)"):
        projection_few_rows(x, weights, bias, out)
    with pytest.raises(ValueError, match=r"columns of x \(3\) must equal the columns of table \(5\)"):
        logits_warp(x, weights, out)
