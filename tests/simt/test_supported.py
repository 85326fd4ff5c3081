"""data/cpu-device.md is what labkit.simt.supported makes, and says what is true."""

import re

import numpy as np
import pytest
from numba import float32

from labkit import cuda
from labkit._common.paths import REPOSITORY
from labkit.simt import api, resolve, stubs, supported
from labkit.simt.errors import UnsupportedError

PAGE = REPOSITORY / "data" / "cpu-device.md"


def test_the_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == supported.page(), "stale: run labkit build --readme"


def test_what_is_listed_is_there():
    text = supported.page()
    _, _, host = text.partition("**Names of `cuda`**")
    for name in re.findall(r"`(\w+)`", host.partition("**Types**")[0]):
        assert hasattr(api, name), name
    for name in re.findall(r"`(\w+)`", text.partition("**Refused, because")[2].partition("##")[0]):
        with pytest.raises(AttributeError, match=rf"cuda\.{name} needs a GPU: "):
            getattr(api, name)


def test_what_stubs_hold_is_listed():
    text = supported.page()
    for name, value in vars(stubs).items():
        if isinstance(value, stubs.Function) and not name.startswith("_"):
            assert f"`{name}`" in text, name


def test_what_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"cuda\.no_such_name is not supported by the CPU device"):
        _ = api.no_such_name


def test_the_ufuncs_are_those_that_numba_cuda_can_compile():
    """Its typing knows more, np.sqrt among them; a kernel with one ends in a KeyError of this table."""
    ufuncs = pytest.importorskip("numba.cuda.ufuncs", reason="numba-cuda is not installed")
    names = {name for ufunc in ufuncs.ufunc_db() for name in (ufunc.__name__,)}
    assert {getattr(np, name).__name__ for name in resolve.UFUNCS} == names
    assert not set(resolve._INSTEAD_OF_UFUNCS) & names


@pytest.mark.cpu_device
@pytest.mark.parametrize("name, instead", [("sqrt", "math.sqrt"), ("exp", "math.exp"), ("abs", "abs()"),
                                           ("add", "+"), ("cbrt", "cuda.cbrt"), ("signbit", "")])  # fmt: skip
def test_a_ufunc_that_a_gpu_would_refuse_says_what_to_write(name, instead):
    function = getattr(np, name)

    @cuda.jit
    def uses(x):
        x[0] = function(x[0])

    with pytest.raises(UnsupportedError, match="numba.cuda does not compile function in a kernel") as caught:
        uses.compile((float32[:],))
    assert (f"use {instead}" in str(caught.value)) == bool(instead)
