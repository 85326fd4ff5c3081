"""What vLLM's SamplingParams and LLM take, and LLM's generate and chat: which names do the same here, have no effect,
or are refused.

    check_other("LLM", "swap_space", 4, own=["model"])     # warns: it has no effect here

data/vllm.json has the names of one version of vLLM. One that is neither in the signature here nor in NO_EFFECT is
accepted with a value that asks for nothing (None, False, an empty list, or what ONLY has), and refused with any other.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from collections.abc import Callable

from labkit._common.errors import did_you_mean, names_like, short
from labkit._common.files import read_text
from labkit._common.paths import REPOSITORY

RECORD = REPOSITORY / "data" / "vllm.json"
# Why a name has no effect: an error would only make a script fail that runs rightly without it.
NO_EFFECT = {
    "SamplingParams": {
        "spaces_between_special_tokens": "the tokenizer decides",
        "output_kind": "generate returns whole outputs, and stream all of an output so far",
        "stream_interval": "stream has `every`",
        "skip_clone": "parameters are immutable and never copied",
        "output_text_buffer_length": "it follows from the stop strings",
        "flat_logprobs": "they are always stored flat, and read as dictionaries",
        "extra_args": "nothing here reads them",
    },
    "LLM": {
        "trust_remote_code": "no code of a model is ever run",
        "swap_space": "a preempted sequence is recomputed",
        "disable_log_stats": "LLM.stats() returns them, and nothing is logged",
        "disable_custom_all_reduce": "there is one GPU",
        "enable_chunked_prefill": "long prompts are always read in chunks",
        "max_seq_len_to_capture": "graphs are captured for every length",
        "compilation_config": "the kernels come from this repository",
        "use_tqdm_on_load": "`compiling` reports progress",
        "async_scheduling": "a step is always scheduled while another one runs",
        "distributed_executor_backend": "there is one GPU",
        "max_parallel_loading_workers": "there is one GPU",
        "served_model_name": "labkit serve names its models",
        "block_size": "a page always has 16 tokens",
    },
    "LLM.generate": {},
    "LLM.chat": {},
}
# Values that ask for the fixed behaviour here, besides those without an effect.
ONLY = {
    "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1, "nnodes": 1,
    "prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, "cpu_offload_gb": 0,
    "load_format": ("auto", "safetensors"), "tokenizer_mode": "auto", "runner": ("auto", "generate"),
    "convert": ("auto", "none"), "kv_cache_dtype": "auto", "config_format": "auto", "task": ("auto", "generate"),
    "generation_config": ("auto", "vllm"), "model_impl": "auto", "scheduling_policy": "fcfs", "best_of": 1,
    "routed_experts_prompt_start": 0, "priority": 0, "add_generation_prompt": True,
    "chat_template_content_format": ("auto", "string"),
}
# Alternatives to unsupported options, where leaving them out is not enough.
INSTEAD = {"prompt_token_ids": "prompts may be lists of token ids"}
# Of versions before the recorded one.
OLDER = {"SamplingParams": ("best_of", "logits_processors", "truncate_prompt_tokens", "guided_decoding"),
         "LLM": ("swap_space", "max_seq_len_to_capture", "task"),
         "LLM.generate": ("prompt_token_ids", "prompt_adapter_request", "guided_options_request"), "LLM.chat": ()}


@functools.cache
def record() -> dict:
    return json.loads(read_text(RECORD))


def names(of: str) -> list[str]:
    """Those of vLLM, the older ones last."""
    return [*record()[of], *(name for name in OLDER[of] if name not in record()[of])]


def check_other(of: str, name: str, value, own: list[str]) -> None:
    """A name that is no parameter here. Warn where it has no effect. Raise TypeError for one that vLLM does not have
    either, ValueError for one that would have to do something."""
    if name in NO_EFFECT[of]:
        if value is not None:
            warnings.warn(f"{name} has no effect here: {NO_EFFECT[of][name]}", stacklevel=3)
        return
    if name not in names(of):
        suggestion = did_you_mean(names_like(name, own))
        raise TypeError(f"{name} is no parameter of {of}{'; ' + suggestion if suggestion else ''}")
    allowed = ONLY.get(name)
    allowed = allowed if isinstance(allowed, tuple) else () if allowed is None else (allowed,)
    is_default = value is None or not allowed and (value is False
                                                   or isinstance(value, list | tuple | dict) and not value)
    if not (is_default or isinstance(value, int | float | str) and value in allowed):
        hint = (f"it may be {' or '.join(map(repr, allowed))}" if allowed else INSTEAD.get(name, "leave it out"))
        raise ValueError(f"{name} is {short(value)}; that is not supported here: {hint}")


def takes_names_of(of: str) -> Callable:
    """For a class, whose constructor then takes vLLM's other names as `check_other` does, or for a method."""
    def decorate(target):
        original = target.__init__ if isinstance(target, type) else target
        own = list(inspect.signature(original).parameters)[1:]

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            others = [name for name in kwargs if name not in own]
            for name in others:
                check_other(of, name, kwargs.pop(name), own)
            return original(*args, **kwargs)

        if not isinstance(target, type):
            return wrapper
        target.__init__ = wrapper
        return target
    return decorate
