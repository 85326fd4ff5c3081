"""Names, defaults and checks of vLLM's SamplingParams."""

import pytest

from labkit.engine.sampling_params import SamplingParams


def test_defaults_and_spellings():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p, params.max_tokens) == (
        1, 1.0, 1.0, 0, 0.0, 16)
    assert params.stop == () and params.stop_token_ids == () and not params.greedy and not params.penalized
    assert SamplingParams(stop="end").stop == ("end",) and SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)
    assert SamplingParams(temperature=0).greedy and SamplingParams(temperature=1e-6).greedy
    assert SamplingParams(max_tokens=None, min_tokens=50, top_k=-1, logprobs=0, seed=-1).min_tokens == 50
    for penalty in ({"presence_penalty": 0.5}, {"frequency_penalty": -0.5}, {"repetition_penalty": 1.2}):
        assert SamplingParams(**penalty).penalized


@pytest.mark.parametrize(("wrong", "message"), [
    ({"n": 0}, "n is 0; it must be 1 or more"), ({"n": 2, "temperature": 0}, "n is 2; with temperature 0"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2"),
    ({"frequency_penalty": -3}, "frequency_penalty is -3"), ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ({"temperature": -0.1}, "temperature is -0.1; it must be 0 or more"),
    ({"temperature": float("nan")}, "temperature is nan"), ({"temperature": float("inf")}, "temperature is inf"),
    ({"temperature": "hot"}, "temperature is 'hot'"),
    ({"top_p": 0}, "top_p is 0; it must be more than 0 and at most 1"), ({"top_p": 1.1}, "top_p is 1.1"),
    ({"top_k": -2}, "top_k is -2; it must be -1 or 0, for all tokens, or 1 or more"),
    ({"min_p": -0.1}, "min_p is -0.1; it must be from 0 to 1"), ({"min_p": 1.5}, "min_p is 1.5"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
    ({"min_tokens": -1}, "min_tokens is -1; it must be 0 or more"),
    ({"min_tokens": 17}, "min_tokens is 17, more than max_tokens, which is 16"),
    ({"logprobs": -1}, "logprobs is -1; it must be 0 or more"), ({"logprobs": 21}, "logprobs is 21; at most 20"),
    ({"stop": ""}, "stop is ''; .* none of them empty"), ({"stop": ["a", ""]}, "none of them empty"),
    ({"stop": [1]}, "stop is "), ({"stop_token_ids": [-1]}, "stop_token_ids is "),
    ({"stop_token_ids": ["a"]}, "stop_token_ids is "),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**wrong)


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs"])
def test_a_fraction_is_refused_where_a_whole_number_belongs(name):
    with pytest.raises(TypeError, match=f"{name} is 1.5; it must be a whole number"):
        SamplingParams(**{name: 1.5})
