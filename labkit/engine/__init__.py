"""From prompts to text. A Llama or a Qwen3 serves many requests at a time: LLM and SamplingParams, with vLLM's names.

    from labkit.engine import LLM, SamplingParams

    llm = LLM("tiny-llama")
    llm.generate(["A hacker is", "A kernel is"], SamplingParams(max_tokens=64))
    llm.chat([{"role": "user", "content": "What is a hacker?"}])

llm, llm_engine     requests in, text out, step by step; detokenizer, outputs and sampling_params are what they speak in
checks              refuses bad requests before they are added
vllm                vLLM's other names: without effect, or refused; vllm_page lists them all
scheduler           which tokens run in the next step; sequence and block_manager: whose they are, and the pages of a
                    KV cache with their owners
runner              what the engine asks of a model; model_runner and batch: a step on the device, as a CUDA graph where
                    it can be one; load_runner: a model by its name
texts, text         `labkit generate`; sampler: a GPT-2, one text at a time
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
