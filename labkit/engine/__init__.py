"""From a model to text: the engine, which serves many requests at a time, and what it is made of.

    from labkit.engine import LLM, SamplingParams
"""

import importlib

# Name -> the module that defines it, imported when the name is first used.
_HOMES = {
    "LLM": "labkit.engine.llm",
    "LLMEngine": "labkit.engine.llm_engine",
    "SamplingParams": "labkit.engine.sampling_params",
    "RequestOutput": "labkit.engine.outputs",
    "CompletionOutput": "labkit.engine.outputs",
}

__all__ = [*_HOMES]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"labkit.engine has no {name!r}; it offers {', '.join(sorted(_HOMES))}")
    globals()[name] = value = getattr(importlib.import_module(_HOMES[name]), name)
    return value
