"""What the models launch on each GPU, for labkit.measure.gpu_matrix: a model of the size that people run, with one
layer and weights of zeros, and the one that the course ships.

    plans_of("GPT-2 in float16")["7.5"].uses
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from labkit._common.paths import REPOSITORY
from labkit.device import gpus
from labkit.measure.gpu_plans import TARGETS, Plan
from labkit.models import gpt2, llama, minilm, qwen3
from labkit.models.configs import BertConfig, GPT2Config, LlamaConfig, Qwen3Config, shapes
from labkit.models.dtypes import OF_LLAMA

GPT2_SMALL = GPT2Config(n_layer=1)
ALL_MINILM = BertConfig(num_hidden_layers=1)
# Llama 3.2 1B and Qwen3 0.6B with a smaller vocabulary; the operation lm_head has the launches of a large one.
LLAMA_1B = LlamaConfig(vocab_size=8192, hidden_size=2048, intermediate_size=8192, num_hidden_layers=1,
                       num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=4096,
                       tie_word_embeddings=True)
QWEN3 = Qwen3Config(vocab_size=8192, hidden_size=1024, intermediate_size=3072, num_hidden_layers=1,
                    num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=4096,
                    tie_word_embeddings=True)
PROMPTS = (1, 5, 16, 100, 700)  # tokens


def _shipped(folder: str, kind: type):
    return kind.read(REPOSITORY / "data" / folder / "config.json")


def _zeros(config) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float16) for name, shape in shapes(config).items()}


def _gpt2(config: GPT2Config, dtype) -> Iterator[tuple[str, Callable]]:
    model = gpt2.GPT2(config, _zeros(config), dtype=dtype)
    ws = gpt2.Workspace(config, dtype=dtype)
    for count in PROMPTS:
        if count <= ws.tokens:
            yield f"{count} tokens", functools.partial(model.forward, ws, count)
    yield "a step", functools.partial(model.step, ws)


def _minilm(config: BertConfig, dtype) -> Iterator[tuple[str, Callable]]:
    model = minilm.MiniLM(config, _zeros(config), dtype)
    for count, length in ((1, 5), (1, 100), (8, 16), (64, 128)):
        for form in minilm.FORMS:
            shape, _ = minilm.lay_out([[0] * length] * count, form)
            batch = model._workspace_for(shape).batch(shape)
            for normalize in (True, False):
                yield f"{count} sentences of {length}", functools.partial(model.forward, batch, normalize)


def _llama(config, model_of: type, dtype: str) -> Iterator[tuple[str, Callable]]:
    from labkit.engine.llm import LLM
    from labkit.engine.load_runner import runner_of
    from labkit.engine.sampling_params import SamplingParams

    model = model_of(config, _zeros(config), dtype)
    llm = LLM(runner_of(model, max_num_seqs=64, max_num_batched_tokens=1024, num_pages=256, max_model_len=1000),
              max_num_seqs=64, max_num_batched_tokens=1024)
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    drawn = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, presence_penalty=0.5, logit_bias={3: 1.0}, logprobs=2,
                           max_tokens=3, min_tokens=2, ignore_eos=True, seed=1, n=2)
    for count, length, how in ((1, 5, greedy), (1, 700, greedy), (4, 100, drawn), (40, 20, drawn)):
        prompts = [{"prompt_token_ids": [3 + row] * length} for row in range(count)]
        yield f"{count} prompts of {length}", functools.partial(llm.generate, prompts, how)


def _models() -> dict[str, list[Callable]]:
    """{a row of the table: functions, each of which yields what is to be planned of a model, and its size in words}."""
    rows = {}
    for dtype in (np.float32, np.float16):
        name = np.dtype(dtype).name
        rows[f"GPT-2 in {name}"] = [functools.partial(_gpt2, config, dtype)
                                    for config in (GPT2_SMALL, replace(_shipped("tiny-gpt2", GPT2Config), n_layer=1))]
        rows[f"MiniLM in {name}"] = [functools.partial(_minilm, ALL_MINILM, dtype)]
    for name in OF_LLAMA:
        tiny = replace(_shipped("tiny-llama", LlamaConfig), num_hidden_layers=1)
        rows[f"Llama in {name}"] = [functools.partial(_llama, config, llama.Llama, name) for config in (LLAMA_1B, tiny)]
        rows[f"Qwen3 in {name}"] = [functools.partial(_llama, QWEN3, qwen3.Qwen3, name)]
    return dict(sorted(rows.items()))


MODELS = _models()


def plans_of(name: str) -> dict[str, Plan]:
    """{target: Plan} of a model."""
    plans = {}
    gc.freeze()  # else each collection below goes through the kernels of all plans before
    try:
        for target, gpu in TARGETS.items():
            plan = plans[target] = Plan()
            with gpus.plan_for(gpu):
                for yielded in MODELS[name]:
                    for size, work in yielded():
                        plan.add(size, work)
                gc.collect()  # a model and its memory refer to each other
    finally:
        gc.unfreeze()
    return plans
