"""What 32-bit index arithmetic is worth: the first kernel of every ladder, compiled by the course's rule and with the
types that Numba gives. The series of lesson 06."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import numpy as np

from labkit import cuda, measure
from labkit._common import paths
from labkit.kernels.agree import to_device
from labkit.measure.ops import all_ops, op

PLACES = 3
WITH_NUMBAS_TYPES = """\
from labkit.simt import unsigned
unsigned.applies_to = lambda package: None
from labkit.measure.series import index_types
index_types.answer()
"""


def first_rung(name: str):
    """Return the first launcher of a ladder that runs a kernel of ours on this device; None if there is none."""
    return next((rung for rung in op(name).rungs if rung.kernel and not rung.missing), None)


def inputs_of(name: str) -> tuple:
    """Return the arguments of a ladder on the host, at the size it is timed at."""
    operation = op(name)
    return operation.inputs(np.random.default_rng(0), **operation.work.timed)


def time_us(name: str, inputs: tuple, quick: bool = False) -> list[float]:
    """Return the median times, in microseconds, of a ladder's first rung, with its arrays in a few places of memory:
    atomics and weights that just fit into L2 take up to twice as long in one as in another."""
    operation, rung, rng = op(name), first_rung(name), np.random.default_rng(1)
    times = []
    for _ in range(PLACES):
        gap = cuda.device_array(int(rng.integers(1, 1 << (12 if quick else 26))), np.uint8)
        arrays = to_device(inputs)
        out = cuda.to_device(np.zeros(operation.shape(**operation.work.timed), operation.dtype))
        launch = functools.partial(rung, *arrays, out)
        times.append(1000 * measure.time_kernel(launch, budget_s=0.001 if quick else 0.03).p50)
        del gap
    return times


def answer() -> None:
    """Time the ladders that the standard input names: a line of JSON for each, and one more when the GPU is free."""
    for line in sys.stdin:
        name, quick = json.loads(line)
        inputs = inputs_of(name)
        sys.stdin.readline()
        try:
            found = time_us(name, inputs, quick)
        except Exception as error:  # one that does not compile must not cost the measurements of the others
            found = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(found), flush=True)


def index_types(names=None, quick: bool = False) -> dict:
    """Time the first rungs by the rule, in this process, and with Numba's types, in another, in turns.

    names: of operations; all if left out. Returns {"rows": [{"op", "rung", "us", "numba_us"}]}, each time a list with
    one median for each place; `numba_us` is text where the rung failed.
    """
    command = [sys.executable, "-c", WITH_NUMBAS_TYPES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          cwd=paths.REPOSITORY) as other:
        rows = []
        for name in measure.steps("index types", names or [operation.name for operation in all_ops()]):
            rung = first_rung(name)
            if rung is None:
                continue
            print(json.dumps([name, quick]), file=other.stdin, flush=True)  # it makes its inputs meanwhile
            ours = time_us(name, inputs_of(name), quick)
            print(file=other.stdin, flush=True)
            line = other.stdout.readline()
            if not line:
                raise RuntimeError(f"the process that times {name} with Numba's types ended with {other.wait()}")
            rows.append({"op": name, "rung": rung.__name__, "us": ours, "numba_us": json.loads(line)})
        other.stdin.close()
    return measure.stamped({"rows": rows})
