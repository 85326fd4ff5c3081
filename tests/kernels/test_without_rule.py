"""Kernels as they are where someone copies them to: without the rule of labkit.simt.unsigned, with Numba's types."""

import subprocess
import sys

import pytest

from labkit.measure.ops import all_ops

SCRIPT = """
import math, sys
from labkit.simt import unsigned
unsigned.applies_to = lambda package: None
from labkit import agree
from labkit.measure.ops import op
assert not unsigned.HOMES
operation = op(sys.argv[1])
sizes = sorted(operation.awkward, key=lambda size: math.prod(operation.shape(**size)))
for rung in operation.rungs:
    for size in sizes:
        try:
            agree(operation, [rung], sizes=(size,), seed=1)
        except AssertionError as error:
            if "refuses every size" in str(error) and size is not sizes[-1]:
                continue
            raise
        break
"""


@pytest.mark.sampled(0, sweep=4)
@pytest.mark.parametrize("name", [op.name for op in all_ops() if any(rung.kernel for rung in op.rungs)])
def test_all_rungs_agree_without_the_rule(name):
    run = subprocess.run([sys.executable, "-c", SCRIPT, name], capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-3000:]
