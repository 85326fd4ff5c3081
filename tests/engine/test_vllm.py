"""vLLM's names: each does the same, has no effect and says so, or is refused in a sentence; none is forgotten."""

import inspect
import warnings

import pytest

from labkit._common.files import read_text
from labkit._common.paths import REPOSITORY
from labkit.engine import LLM, SamplingParams, vllm, vllm_page


def test_the_page_is_that_of_the_code():
    assert read_text(REPOSITORY / "data" / "vllm.md") == vllm_page.table()


@pytest.mark.parametrize("cls", [SamplingParams, LLM])
def test_no_name_is_a_bare_error(cls):
    own = inspect.signature(cls).parameters
    others = [name for name in vllm.names(cls.__name__) if name not in own]
    assert len(others) > 10
    for name in others:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            vllm.check_other(cls.__name__, name, None, [])
            try:
                vllm.check_other(cls.__name__, name, object(), [])
            except ValueError as error:
                assert str(error).startswith(f"{name} is <object")
            else:
                assert f"{name} has no effect here" in str(heard[0].message)
    for name in vllm.NO_EFFECT[cls.__name__]:
        assert name in others
    assert set(vllm.ONLY) <= {*vllm.names("LLM"), *vllm.names("SamplingParams")}


def test_through_the_constructors():
    with pytest.warns(UserWarning, match="skip_clone has no effect here: parameters are immutable"):
        assert SamplingParams(1, skip_clone=True, best_of=1, structured_outputs=None).n == 1
    with pytest.raises(ValueError, match="best_of is 2; that is not supported here: it may be 1"):
        SamplingParams(best_of=2)
    with pytest.raises(TypeError, match="temperture is no parameter of SamplingParams; did you mean temperature?"):
        SamplingParams(temperture=1)
    for given, words in (({"tensor_parallel_size": 2}, "tensor_parallel_size is 2; that is not supported here: it may"),
                         ({"quantization": "awq"}, "quantization is 'awq'; that is not supported here: leave it out")):
        with pytest.raises(ValueError, match=words):
            LLM("no/such/folder", **given)
    with pytest.warns(UserWarning, match="trust_remote_code has no effect"), pytest.raises(Exception, match="no/such"):
        LLM("no/such/folder", trust_remote_code=True, tensor_parallel_size=1)
