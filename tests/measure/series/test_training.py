"""Training steps with a tiny model: ours is timed, and PyTorch's on the CPU has the same losses."""

import json

import numpy as np
import pytest

from labkit.measure import comparisons
from labkit.measure.series import training as series
from labkit.train.trainer import Trainer


@pytest.mark.cpu_device
@pytest.mark.sweep
def test_a_step_without_a_gpu():
    found = json.loads(json.dumps(series.train_step(), allow_nan=False))
    (row,) = found["rows"]
    assert row["ms"]["p50"] > 0 and row["torch"] is None and row["peak"] is None and row["parameters"] > 10_000
    (one,) = comparisons.of_training(found)
    assert one.ours[1] == row["ms"]["p50"] and one.baseline is None and one.unit == "ms"


def test_the_fastest_compiled_way_is_the_baseline():
    row = {"run": "made up", "batch": 1, "length": 2, "ms": {"p50": 3.0}, "torch": {
        "eager": 2.0, "compiled": 6.0, "compiled, in CUDA graphs": None}}
    (one,) = comparisons.of_training({"rows": [row]})
    assert one.baseline == ("PyTorch, eager", 2.0) and one.ratio == pytest.approx(2 / 3)
    row["torch"]["compiled"] = None
    (one,) = comparisons.of_training({"rows": [row]})
    assert one.baseline is None and one.eager == ("PyTorch, eager", 2.0) and one.why_not


@pytest.mark.cpu_device
@pytest.mark.sweep
def test_losses_are_pytorchs():
    torch = pytest.importorskip("torch")
    settings = series.settings_of(series.ON_CPU, 2, 32)
    texts = series.random_texts(settings)
    ours, theirs = Trainer(settings, texts), series.TorchTrainer(torch, settings, texts, None, "cpu")
    losses = np.array([(ours.one_step(), theirs.one_step().item()) for _ in range(20)])
    assert losses[-1, 1] < losses[0, 1] - 0.05
    np.testing.assert_allclose(losses[:, 0], losses[:, 1], rtol=2e-3)  # bfloat16 rounds by 2^-9, and a loss is a mean
