"""What the options of an engine and of its runner may be. LLM, LLMEngine, runner_of and ModelRunner all ask here.

    checked(max_num_seqs=8, seed=None)     # {"max_num_seqs": 8, "seed": 0}, or TypeError or ValueError
"""

from __future__ import annotations

import os
from functools import partial

from labkit._common.errors import short
from labkit.engine.checks import number, switch, whole
from labkit.engine.scheduler import Scheduler

# Of a step, at most. Memory is allocated for the largest step, so that a slip of the keyboard would ask for all of it.
MOST_SEQS, MOST_TOKENS = 1 << 14, 1 << 20


def _or_none(check, default=None):
    return lambda name, value: default if value is None else check(name, value)


def _called(name: str, value):
    if not callable(value):
        raise TypeError(f"{name} is {short(value)}; it must be a function, or a class")
    return value


def _scheduler(name: str, value) -> type[Scheduler]:
    if not isinstance(value, type) or not issubclass(value, Scheduler):
        raise TypeError(f"{name} is {short(value)}; it must be Scheduler or a class derived from it")
    return value


def _dtype(name: str, value) -> str:
    from labkit.models.llama import DTYPES

    allowed = ("auto", *DTYPES)
    if not isinstance(value, str) or value not in allowed:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{name} is {short(value)}; it must be {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}")
    return value


def _model(name: str, value):
    """A runner is known by what LLMEngine needs of it."""
    is_runner = callable(getattr(value, "launch", None)) and hasattr(value, "num_pages")
    if not is_runner and not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is {short(value)}; it must be a model's name or folder, or a runner that has one")
    return value


def _tokenizer(name: str, value):
    if not all(callable(getattr(value, method, None)) for method in ("encode", "decode")):
        raise TypeError(f"{name} is {short(value)}; it must be a tokenizer, which has `encode` and `decode`, or None "
                        f"for that in the model's folder")
    return value


CHECKS = {
    "model": _model,
    "tokenizer": _or_none(_tokenizer),
    "dtype": _dtype,
    "max_num_seqs": partial(whole, least=1, most=MOST_SEQS),
    "max_num_batched_tokens": partial(whole, least=1, most=MOST_TOKENS),
    "max_model_len": _or_none(partial(whole, least=2)),
    "gpu_memory_utilization": partial(number, right=lambda value: 0 < value <= 1, allowed="more than 0 and at most 1"),
    "num_pages": _or_none(partial(whole, least=1, most=2**31 - 1)),
    "enforce_eager": switch,
    "compiling": _or_none(_called),
    "pad_prompts": _or_none(switch),
    "enable_prefix_caching": _or_none(switch, True),
    "seed": _or_none(whole, 0),
    "overlap": switch,
    "scheduler": _scheduler,
    "blocks": _called,
}


def checked(**given) -> dict:
    """Return options as they are used, NumPy's numbers as Python's. Raise TypeError for one of the wrong type,
    ValueError for one that is out of range; the error begins with its name."""
    return {name: CHECKS[name](name, value) for name, value in given.items()}
