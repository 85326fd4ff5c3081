"""transformers' continuous batching on the requests that the engine serves, as its baseline.

    served_by_transformers(config, work, seconds=25.0)

Its model has the same shape, bfloat16 and random weights of its own, which take as long to multiply. All requests come
at once; tokens generated before the time is up count, so that a slow one costs no minutes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

import numpy as np

from labkit import measure
from labkit.models.llama import Config


class Request(Protocol):
    prompt: np.ndarray
    output: int  # tokens


def served_by_transformers(config: Config, work: Sequence[Request], seconds: float, device: str = "cuda") -> dict:
    """{"tokens_per_second", "tokens", "seconds", "ended", "version"}; with "why not" instead of a rate where it does
    not run. ended: how many requests came to their end in that time."""
    torch, transformers = measure.import_library("torch"), measure.import_library("transformers")
    if torch is None or transformers is None:
        return {"why not": "torch and transformers are needed"}
    result = {"version": transformers.__version__}
    try:
        return result | _served(torch, transformers, config, work, seconds, device)
    except Exception as error:  # a baseline must not cost the series its own rows
        return result | {"why not": f"{type(error).__name__}: {error}"[:300]}
    finally:  # its cache takes what memory there is, and PyTorch keeps that for itself
        gc.collect()
        torch.cuda.empty_cache()


def _served(torch, transformers, config: Config, work: Sequence[Request], seconds: float, device: str) -> dict:
    entries = {name: value for name, value in asdict(config).items() if name != "rope_scaling"}
    if config.rope_scaling is not None:
        entries["rope_scaling"] = dict(config.rope_scaling)
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**entries)).eval()
    finally:
        torch.set_default_dtype(default_dtype)
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=max(one.output for one in work),
                                               eos_token_id=-1)
    # Its own choices but for the cache: what the engine before has allocated is not free.
    manager = model.init_continuous_batching(generation_config=generation)
    manager.start()
    try:
        manager.add_request(work[0].prompt.tolist(), max_new_tokens=4)  # it warms up with the first
        _wait(manager, 1, 120.0)
        began, counts = time.perf_counter(), {}
        for i, one in enumerate(work):
            manager.add_request(one.prompt.tolist(), request_id=str(i), max_new_tokens=one.output, streaming=True)
        ended: set[str] = set()
        while len(ended) < len(work) and time.perf_counter() - began < seconds:
            output = manager.get_result(timeout=0.1)
            if output is None:
                continue
            counts[output.request_id] = len(output.generated_tokens)
            if output.is_finished():
                if output.error:
                    raise RuntimeError(output.error)
                ended.add(output.request_id)
        took = time.perf_counter() - began
    finally:
        manager.stop(block=True, timeout=10.0, hard_stop=True)
    tokens = sum(counts.values())
    return {"tokens_per_second": tokens / took, "tokens": tokens, "seconds": took, "ended": len(ended)}


def _wait(manager, count: int, seconds: float) -> None:
    until = time.perf_counter() + seconds
    while count and time.perf_counter() < until:
        output = manager.get_result(timeout=0.5)
        if output is not None and output.is_finished():
            if output.error:
                raise RuntimeError(output.error)
            count -= 1
    if count:
        raise TimeoutError(f"its first request had not ended after {seconds:.0f} s")
