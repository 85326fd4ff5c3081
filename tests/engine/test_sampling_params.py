"""Names, defaults and checks of vLLM's SamplingParams."""

import re

import numpy as np
import pytest

from labkit.engine.sampling_params import NUMBERS, OPTIONAL, SWITCHES, WHOLE, SamplingParams


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
    ({"n": 0}, "n is 0; it must be from 1 to 1,024"), ({"n": 2, "temperature": 0}, "n is 2; with temperature 0"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5; it must be from -2 to 2"),
    ({"frequency_penalty": -3}, "frequency_penalty is -3"), ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ({"temperature": -0.1}, "temperature is -0.1; it must be from 0 to 100"),
    ({"temperature": float("nan")}, "temperature is nan"), ({"temperature": float("inf")}, "temperature is inf"),
    ({"top_p": 0}, "top_p is 0; it must be more than 0 and at most 1"), ({"top_p": 1.1}, "top_p is 1.1"),
    ({"top_k": -2}, "top_k is -2; it must be from -1 to 2,147,483,647"),
    ({"min_p": -0.1}, "min_p is -0.1; it must be from 0 to 1"), ({"min_p": 1.5}, "min_p is 1.5"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be 1 or more"),
    ({"min_tokens": -1}, "min_tokens is -1; it must be 0 or more"),
    ({"min_tokens": 17}, "min_tokens is 17, more than max_tokens, which is 16"),
    ({"logprobs": -1}, "logprobs is -1; it must be from 0 to 20"),
    ({"logprobs": 21}, "logprobs is 21; it must be from 0 to 20"),
    ({"stop": ""}, "stop is ''; .* none of them empty"), ({"stop": ["a", ""]}, "none of them empty"),
    ({"stop_token_ids": [3, -1]}, "stop_token_ids has the token -1; token ids are 0 or more"),
    ({"n": 1025}, "n is 1025; it must be from 1 to 1,024"), ({"n": 10**12}, "n is 1000000000000; it must be from 1"),
    ({"top_k": 2**31}, "top_k is 2147483648; it must be from -1 to 2,147,483,647"),
    ({"temperature": 101}, "temperature is 101; it must be from 0 to 100"),
    ({"repetition_penalty": 1e-30}, "repetition_penalty is 1e-30; it must be from 0.01 to 100"),
    ({"repetition_penalty": 1e30}, "repetition_penalty is 1e.30"),
    ({"min_tokens": 10**5000}, "min_tokens is a int too large to show, more than max_tokens"),
])  # fmt: skip
def test_what_cannot_be_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**wrong)


@pytest.mark.parametrize("name", ["n", "top_k", "max_tokens", "min_tokens", "seed", "logprobs"])
def test_a_fraction_is_refused_where_a_whole_number_belongs(name):
    with pytest.raises(TypeError, match=f"{name} is 1.5; it must be a whole number"):
        SamplingParams(**{name: 1.5})


@pytest.mark.parametrize(("wrong", "message"), [
    *(({name: value}, f"{name} is {value!r}; it must be a number, ") for value in ("hot", None, True, [1.0])
      for name in NUMBERS),
    *(({name: value}, f"{name} is {value!r}; it must be a whole number") for value in ("1", True, [1], 1.0)
      for name in (*WHOLE, *OPTIONAL)),
    *(({name: value}, f"{name} is {value!r}; it must be True or False") for value in (1, None, "no")
      for name in SWITCHES),
    *(({"stop": value}, f"stop is {value!r}; it must be a text or a list of texts") for value in (5, [1], ["a", None],
                                                                                                b"a", True, {"a": 1})),
    *(({"stop_token_ids": value}, f"stop_token_ids is {value!r}; it must be a list of token ids") for value in (
        5, "a", b"a", {"a": 1}, 0)),
    *(({"stop_token_ids": [3, value]}, f"stop_token_ids has {value!r}; a token id must be a whole number")
      for value in ("a", None, 1.5, True, [1])),
])  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused(wrong, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        SamplingParams(**wrong)


def test_numbers_of_numpy_are_those_of_python():
    params = SamplingParams(n=np.int64(2), temperature=np.float32(0.5), top_k=np.uint8(7), ignore_eos=np.True_,
                            stop_token_ids=np.array([3, 4]), seed=np.int32(5))
    same = SamplingParams(n=2, temperature=0.5, top_k=7, stop_token_ids=[3, 4], ignore_eos=True, seed=5)
    assert params == same and repr(params) == repr(same)


@pytest.mark.parametrize(("name", "value", "kind", "words"), [
    ("logit_bias", [1], TypeError, "it must be a dictionary"),
    ("logit_bias", {1.5: 2}, TypeError, "has 1.5; a token id"), ("logit_bias", {True: 1}, TypeError, "has True"),
    ("logit_bias", {-1: 1}, ValueError, "has the token -1"),
    ("logit_bias", {1: "2"}, TypeError, "has '2' for the token"),
    ("logit_bias", {1: float("nan")}, ValueError, "has nan for the token 1; it must be from -100 to 100"),
    ("logit_bias", {1: 10**400}, ValueError, "from -100 to 100"), ("logit_bias", {1: 1, "1": 2}, ValueError, "twice"),
    ("allowed_token_ids", [], ValueError, "is empty"), ("allowed_token_ids", {1}, TypeError, "must be a list"),
    ("bad_words", "abc", TypeError, "must be a list of texts"), ("bad_words", [" "], ValueError, "may be empty"),
    ("detokenize", 0, TypeError, "must be True or False"),
])  # fmt: skip
def test_what_is_no_constraint_is_named(name, value, kind, words):
    with pytest.raises(kind, match=f"{name} .*{words}"):
        SamplingParams(**{name: value})


def test_constraints_become_pythons_numbers():
    params = SamplingParams(logit_bias={"3": 1, 4: -2.5}, allowed_token_ids=range(3), bad_words=["a"])
    assert params.logit_bias == {3: 1.0, 4: -2.5} and params.allowed_token_ids == (0, 1, 2)
    assert params.bad_words == ("a",)
    with pytest.raises(ValueError, match="stop is .*detokenize is False"):
        SamplingParams(stop="a", detokenize=False)
