"""An engine whose decoding steps are one launch: the tokens are those of a greedy model in float64."""

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit.engine import LLM, SamplingParams
from labkit.engine.load_runner import load_runner
from labkit.engine.model_runner import ModelRunner
from labkit.models.llama_reference import activations, weights_of
from tests.models.test_llama import random_prompts
from tests.models.test_one_kernel import SMALL, one_kernel_model


def greedy_reference(model, prompt, count):
    """(tokens, the smallest lead of one over the runner-up, as a part of the largest logit)."""
    weights, ids, lead = weights_of(model.tensors, model.config, model.dtype), list(prompt), np.inf
    for _ in range(count):
        logits = activations(model.config, weights, ids)["logits"][-1]
        second, first = np.sort(logits)[-2:]
        lead = min(lead, (first - second) / np.abs(logits).max())
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :], lead


def generated(model, prompts, count):
    runner = ModelRunner(model, num_pages=16, max_num_seqs=len(prompts), max_num_batched_tokens=64, max_model_len=64)
    llm = LLM(runner, max_num_seqs=len(prompts), max_num_batched_tokens=64)
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.mark.sweep
def test_the_engine_writes_what_the_reference_writes():
    """Three sequences in a bucket of four, so that a row of the launch is padding; one of them enters a new page."""
    model, prompts = one_kernel_model("float16"), random_prompts(SMALL, (14, 1, 20), seed=6)
    expected = [greedy_reference(model, prompt, 3) for prompt in prompts]
    assert min(lead for _, lead in expected) > 0.01  # else rounding could choose another token
    assert generated(model, prompts, 3) == [tokens for tokens, _ in expected]


@pytest.mark.sweep(every=True)
def test_a_model_by_its_name_in_one_kernel():
    runner, _ = load_runner("tiny-llama", one_kernel=True, num_pages=8, max_model_len=64)
    assert runner.model.one_kernel is not None
    with pytest.raises(UserError, match=r"one_kernel: the weights are float32; bfloat16 and float16 are allowed"):
        load_runner("tiny-llama", dtype="float32", one_kernel=True)
