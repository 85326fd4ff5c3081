"""What the options of an engine and of its runner may be. LLM, LLMEngine, runner_of and ModelRunner all ask here.

    checked(max_num_seqs=8, seed=None)     # {"max_num_seqs": 8, "seed": 0}, or TypeError or ValueError
"""

from __future__ import annotations

import os
from functools import partial

from labkit._common.errors import short
from labkit.engine.checks import boolean, integer, number
from labkit.engine.scheduler import Scheduler

# Of a step, at most. Memory is allocated for the largest step, so a typo could ask for all of it.
MAX_SEQS, MAX_TOKENS = 1 << 14, 1 << 20


def _or_none(check, default=None):
    return lambda name, value: default if value is None else check(name, value)


def _check_callable(name: str, value):
    if not callable(value):
        raise TypeError(f"{name} is {short(value)}; it must be a function, or a class")
    return value


def _check_scheduler(name: str, value) -> type[Scheduler]:
    if not isinstance(value, type) or not issubclass(value, Scheduler):
        raise TypeError(f"{name} is {short(value)}; it must be Scheduler or a class derived from it")
    return value


def _check_dtype(name: str, value) -> str:
    from labkit.models.dtypes import chosen

    chosen(value, "Llama")
    return value


def _check_model(name: str, value):
    """A runner is recognised by the attributes that LLMEngine uses."""
    is_runner = callable(getattr(value, "launch", None)) and hasattr(value, "num_pages")
    if not is_runner and not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is {short(value)}; it must be a model's name or folder, or a runner that has one")
    return value


def _check_tokenizer(name: str, value):
    if not all(callable(getattr(value, method, None)) for method in ("encode", "decode")):
        raise TypeError(f"{name} is {short(value)}; it must be a tokenizer, which has `encode` and `decode`, or None "
                        f"for that in the model's folder")
    return value


CHECKS = {
    "model": _check_model,
    "tokenizer": _or_none(_check_tokenizer),
    "dtype": _check_dtype,
    "max_num_seqs": partial(integer, minimum=1, maximum=MAX_SEQS),
    "max_num_batched_tokens": partial(integer, minimum=1, maximum=MAX_TOKENS),
    "max_model_len": _or_none(partial(integer, minimum=2)),
    "gpu_memory_utilization": partial(number, is_allowed=lambda value: 0 < value <= 1,
                                      allowed="more than 0 and at most 1"),
    "num_pages": _or_none(partial(integer, minimum=1, maximum=2**31 - 1)),
    "enforce_eager": boolean,
    "one_kernel": boolean,
    "compiling": _or_none(_check_callable),
    "pad_prompts": _or_none(boolean),
    "enable_prefix_caching": _or_none(boolean, True),
    "seed": _or_none(integer, 0),
    "overlap": boolean,
    "scheduler": _check_scheduler,
    "blocks": _check_callable,
}


def checked(**options) -> dict:
    """Return options as they are used, NumPy's numbers as Python's. Raise TypeError for one of the wrong type,
    ValueError for one that is out of range; the error begins with its name."""
    return {name: CHECKS[name](name, value) for name, value in options.items()}
