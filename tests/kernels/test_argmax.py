"""Argmax: every rung, ties, NaN, zeros of both signs, rows of minus infinity."""

import numpy as np
import pytest

from labkit import cuda
from labkit.kernels.agree import agree
from labkit.kernels.ops.argmax import ARGMAX
from labkit.measure.ops import op

INF, NAN = np.inf, np.nan


def run(launch, x):
    out = cuda.device_array(len(x), np.int32)
    launch(cuda.to_device(np.array(x, np.float32)), out)
    return out.copy_to_host()


def test_every_rung_agrees():
    assert agree(ARGMAX, seed=1).passed
    assert op("argmax") is ARGMAX


@pytest.mark.parametrize("launch", ARGMAX.rungs, ids=lambda launch: launch.__name__)
def test_ties_nan_and_the_ends_of_the_range(launch):
    rows = {
        0: [[5, 5, 5, 5], [-INF, -INF, -INF, -INF], [0.0, -0.0, 0.0, -0.0], [NAN, NAN, NAN, NAN], [NAN, INF, 3, 4],
            [-0.0, 0.0, -1, -2]],
        1: [[1, 2, 2, 1], [-INF, -3e38, -INF, -INF], [INF, NAN, INF, NAN], [-1, -1e-45, -1, -1], [0, 1e-45, 0, 0]],
        2: [[-INF, 1, INF, INF], [-5, -4, -3, -3]],
        3: [[1, 2, 3, 4], [INF, INF, INF, -NAN]],
    }
    for expected, cases in rows.items():
        np.testing.assert_array_equal(run(launch, cases), [expected] * len(cases))


@pytest.mark.parametrize("launch", ARGMAX.rungs, ids=lambda launch: launch.__name__)
def test_wherever_the_largest_stands(launch):
    rng = np.random.default_rng(0)
    columns = 1_337
    x = rng.standard_normal((200, columns)).astype(np.float32)
    at = rng.integers(0, columns, 200)
    x[np.arange(200), at] = 10
    x[np.arange(0, 200, 2), np.maximum(at[::2], columns - 5)] = 10  # a tie further along
    np.testing.assert_array_equal(run(launch, x), at)


def test_it_is_torchs():
    torch = pytest.importorskip("torch")
    x = torch.randint(0, 4, (50, 97)).float()
    x[3, 7] = x[3, 9] = float("nan")
    # torch promises no order of ties; on the CPU it takes the first
    for launch in ARGMAX.rungs:
        np.testing.assert_array_equal(run(launch, x.numpy()), torch.argmax(x, dim=1).numpy())
