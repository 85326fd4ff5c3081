"""What describes an operation: an Op, its rungs, its work and its baselines."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from labkit._common.tables import MIMETYPE, size_text, to_markdown
from labkit.kernels.agree import agree
from labkit.kernels.baselines import Baseline, numpy_cupy_torch
from labkit.kernels.norm import layernorm
from labkit.kernels.op import rungs_of, sizes, uniform
from labkit.kernels.ops.elementwise import VECTOR_ADD
from labkit.kernels.ops.matmul import MATMUL
from labkit.kernels.residual_add import residual_add_vectorized


def test_an_op_rejects_a_launcher_without_a_kernel():
    def bare(a, b, out, stream=0):
        pass

    with pytest.raises(ValueError, match="bare names no kernel"):
        VECTOR_ADD.with_rungs(bare)


def test_unknown_rung_and_unit_are_named():
    with pytest.raises(ValueError, match="no rung 'fast'.*vector_add_per_thread"):
        VECTOR_ADD.rung("fast")
    with pytest.raises(ValueError, match="MB/s"):
        replace(VECTOR_ADD.work, unit="MB/s")
    with pytest.raises(ValueError, match="rungs is empty"):
        agree(VECTOR_ADD, [])


def test_size_text_and_markdown():
    assert size_text({"n": 2**28}) == "n=2^28"
    assert size_text({"M": 4096, "N": 23}) == "M=4,096, N=23"
    assert to_markdown({"columns": ["a", "ms"], "rows": [["x", "1"]]}) == "| a | ms |\n| :-- | --: |\n| x | 1 |"


def test_an_op_shows_its_rungs_ideas():
    shown = str(MATMUL)
    assert "matmul_tiled" in shown
    assert "16 x 16 tiles in shared memory" in shown
    assert MATMUL._repr_mimebundle_()[MIMETYPE]["kind"] == "op"


def test_peaks_and_baselines():
    with pytest.raises(ValueError, match="peak is 'fp4'"):
        replace(VECTOR_ADD.work, peak="fp4")
    assert Baseline("PyTorch", "torch", max, note="unfused").title == "PyTorch (unfused)"
    assert VECTOR_ADD.work.also_gpu == ({"n": 10_000_000},)


def test_uniform_fills_the_mantissa():
    values = uniform(np.random.default_rng(0), 10_000)
    assert values.dtype == np.float32
    assert -1.5 <= values.min() < -1.4
    assert 1.4 < values.max() < 1.5
    # A multiple of 2**-22 would add without rounding.
    assert np.any(values * 2.0**22 % 1 != 0)


def test_a_rung_is_called_named_and_read_as_its_launcher():
    one = VECTOR_ADD.rungs[0]
    assert one.__name__ == one.launcher.__name__ == "vector_add_per_thread"
    assert (one.__doc__, one.__module__) == (one.launcher.__doc__, "labkit.kernels.elementwise")
    assert str(inspect.signature(one)) == "(a, b, out, stream=0, block=256)"
    assert inspect.getsource(one).startswith("@rung(")
    assert one.kernel_names == ("vector_add_per_thread_kernel",)
    assert "one thread for each element" in repr(one)
    assert replace(one, launcher=max).__name__ == "max"


def test_baselines_with_numpy_cupy_and_torch():
    assert [one.title for one in numpy_cupy_torch(max, note="cuBLAS")] == [
        "NumPy, on the host", "CuPy (cuBLAS)", "PyTorch (cuBLAS)"]


def test_the_rungs_of_a_module_are_those_that_it_defines_in_its_order():
    assert [one.__name__ for one in rungs_of(layernorm, "add_layernorm")] == ["add_layernorm_unfused",
                                                                              "add_layernorm_fused"]
    assert residual_add_vectorized in vars(layernorm).values() and residual_add_vectorized not in rungs_of(layernorm)


def test_sizes_by_the_lengths_of_their_axes():
    assert sizes("R C", (1, 3), (2, 5)) == ({"R": 1, "C": 3}, {"R": 2, "C": 5})
    with pytest.raises(ValueError, match="shorter"):
        sizes("R C", (1,))
