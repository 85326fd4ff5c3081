"""What kernels compile to, for tests that read it. Where the compiler or ptxas is missing, the test is skipped."""

import functools
import re

import pytest
from numba import types

from labkit.device import compiler, compiling

HOPPER = (9, 0, "a")  # the variant that has wgmma

# Of a test on the order of a kernel's instructions, or on how often the compiler unrolls.
numba_cudas_code = pytest.mark.skipif(compiler.is_mlir(), reason="numba-cuda-mlir arranges the code otherwise")


@functools.cache
def ptx_of(kernel, *arguments, cc=(9, 0)) -> str:
    """The PTX of a kernel. arguments: Numba's types, or names of them: "uint32", "float16 2" for a matrix."""
    try:
        return compiling.ptx(kernel, types.void(*map(type_of, arguments)), cc=cc)
    except compiling.NoCompiler as error:
        pytest.skip(str(error))


def type_of(argument):
    if not isinstance(argument, str):
        return argument
    name, _, axes = argument.partition(" ")
    return types.Array(getattr(types, name), int(axes), "C") if axes else getattr(types, name)


def resources_of(text: str, spills: int = 0) -> dict:
    """What ptxas reports on a kernel that has no float64, keeps all in registers and draws no warning. spills: the
    bytes that tests.spills allows it."""
    assert not re.search(r"\.f64\b|\.local\b", text)
    taken = compiling.resources(text)
    if taken is None:
        pytest.skip("ptxas is not installed")
    assert taken["spill_bytes"] <= spills and not taken["warnings"]
    assert spills or taken["stack_bytes"] == 0
    return taken
