"""The block as an operation: right on this device, and registered where labkit bench and the targets find it."""

import numpy as np
import pytest

from labkit import device
from labkit.kernels.agree import agree
from labkit.measure import targets
from labkit.measure.ops import op
from labkit.measure.series import gpt2_block as block_series
from labkit.models import gpt2_block_op as block_op
from labkit.models.gpt2_block import GPT2_SMALL


@pytest.mark.sampled(0, sweep=3, quick="block_fused")
@pytest.mark.parametrize("launcher", [pytest.param(launcher, id=launcher.__name__) for launcher in (
    *block_op.GPT2_BLOCK.rungs, *block_op.GPT2_BLOCK_HALF.rungs)])
def test_rung_agrees(launcher):
    if launcher.missing:
        pytest.skip(launcher.missing)
    in_float16 = launcher is block_op.block_half
    one = op("gpt2_block_half" if in_float16 else "gpt2_block")
    assert agree(one, [launcher], sizes=({"S": 1}, {"S": device.pick(gpu=130, cpu=3)})).passed


def test_work_is_that_of_its_products_and_its_attention():
    S, (weights, C) = 100, (sum(a * b for a, b in GPT2_SMALL.layers), 768)
    assert op("gpt2_block").work.flops(S=S) == 2 * S * weights + 2 * 2 * S * S * C


def test_there_is_a_goal_for_each_length_and_type():
    for name in ("gpt2_block", "gpt2_block_half"):
        assert [goal.size for goal in targets.GOALS if goal.source == name] == list(block_op.SIZES)


@pytest.mark.sweep
def test_calls_from_python_are_timed():
    taken = block_series.block_calls(1)
    assert taken["tokens"] == 1 and all(taken[key] > 0 for key in taken if key.endswith("_us"))


def test_a_workspace_serves_every_call_of_a_length():
    assert block_op.workspace_for(3, np.dtype(np.float32)) is block_op.workspace_for(3, np.dtype(np.float32))
