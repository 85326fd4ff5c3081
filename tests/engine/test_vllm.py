"""vLLM's names: each does the same, has no effect and says so, or is refused in a sentence; none is forgotten."""

import inspect
import warnings

import pytest

from labkit._common.files import read_text
from labkit._common.paths import REPOSITORY
from labkit.engine import LLM, SamplingParams, vllm, vllm_page
from tests.engine.test_llm import Chatting, engine


def test_the_page_is_that_of_the_code():
    assert read_text(REPOSITORY / "data" / "vllm.md") == vllm_page.table()


@pytest.mark.parametrize("of", vllm_page.TAKE)
def test_no_name_is_a_bare_error(of):
    own = inspect.signature(vllm_page.TAKE[of]).parameters
    others = [name for name in vllm.names(of) if name not in own]
    assert len(others) > 5
    for name in others:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            vllm.check_other(of, name, None, [])
            try:
                vllm.check_other(of, name, object(), [])
            except ValueError as error:
                assert str(error).startswith(f"{name} is <object")
            else:
                assert f"{name} has no effect here" in str(heard[0].message)
    for name in vllm.NO_EFFECT[of]:
        assert name in others


def test_every_name_of_the_tables_is_one_of_vllms():
    every = {name for of in vllm_page.TAKE for name in vllm.names(of)}
    assert {*vllm.ONLY, *vllm.INSTEAD} <= every and set(vllm.NO_EFFECT) == set(vllm.OLDER) == set(vllm_page.TAKE)


def test_through_the_constructors():
    with pytest.warns(UserWarning, match="skip_clone has no effect here: parameters are immutable") as heard:
        assert SamplingParams(1, skip_clone=True, best_of=1, structured_outputs=None).n == 1
    assert heard[0].filename == __file__  # where the name is written
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


FIRST = [{"role": "user", "content": "abc"}]


def test_through_the_methods():
    llm, params = engine(tokenizer=Chatting()), SamplingParams(temperature=0, max_tokens=4)
    (plain,), (chat,) = llm.generate("abc", params), llm.chat(FIRST, params)
    (same,) = llm.generate(prompts="abc", sampling_params=params, use_tqdm=False, lora_request=None, priority=None,
                           tokenization_kwargs={}, mm_processor_kwargs=None, prompt_token_ids=None)
    (whole,) = llm.chat(messages=FIRST, sampling_params=params, use_tqdm=False, lora_request=None, priority=0, tools=[],
                       chat_template=None, chat_template_content_format="auto", add_generation_prompt=True,
                       continue_final_message=False, chat_template_kwargs=None)
    assert same.outputs == plain.outputs and whole.outputs == chat.outputs
    for call, given, words in (
            (llm.generate, {"lora_request": "mine"}, "lora_request is 'mine'; that is not supported here: leave"),
            (llm.generate, {"priority": [1]}, r"priority is \[1\]; that is not supported here: it may be 0"),
            (llm.generate, {"prompt_token_ids": [[1]]}, "prompt_token_ids .*: prompts may be lists of token ids"),
            (llm.chat, {"add_generation_prompt": False}, "add_generation_prompt is False; .* it may be True"),
            (llm.chat, {"continue_final_message": True}, "continue_final_message is True; .* leave it out"),
            (llm.chat, {"tools": [{}]}, "tools is .* not supported here")):
        with pytest.raises(ValueError, match=words):
            call(**given)
    with pytest.raises(TypeError, match="sampling_parms is no parameter of LLM.generate; did you mean sampling_p"):
        llm.generate("abc", sampling_parms=params)
    with pytest.raises(TypeError, match="use_tqdm is 'no'; it must be True or False"):
        llm.generate("abc", use_tqdm="no")
    assert not llm.engine.has_unfinished_requests()


def test_a_clone_is_equal_and_shares_nothing():
    params = SamplingParams(temperature=0.5, seed=3, stop=["a"], logit_bias={3: 1}, bad_words=["b"])
    clone = params.clone()
    assert clone == params and clone is not params and clone.logit_bias is not params.logit_bias
