"""`labkit generate`: text that follows a prompt, piece by piece as it is made, and how fast that went.

    continuation = write(load("path/to/folder"), "A hacker is", print_piece)
    print(continuation)          # 64 tokens, as many as were asked for; the first after 0.31 s ..., then 49.0 a second
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from labkit._common.errors import UserError
from labkit.device import compile_ahead
from labkit.engine.sampler import GREEDY, Sampler, generate
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.texts import Continuation, Texts
from labkit.models.gpt2 import GPT2, Workspace
from labkit.models.load import Loaded


def write(loaded: Loaded, prompt: str, show: Callable[[str], None], *, tokens: int = 64, sampler: Sampler = GREEDY,
          seed: int = 0, compiling: Callable[[int, int], None] | None = None) -> Continuation:
    """Generates up to `tokens` tokens after `prompt` and hands `show` each piece of text as soon as it is whole.

    compiling(done, of): called while kernels are compiled that are not kept from an earlier run. Their time is part of
    the time to the first token.
    Ends early where the model ends its text, or when its context is full. Stopped by Ctrl-C, what came so far is in the
    exception's `continuation`. Raises UserError for a prompt that has no token or does not fit.
    """
    write_text = _write_gpt2 if isinstance(loaded.model, GPT2) else _write_llama
    return write_text(loaded, prompt, show, tokens, sampler, seed, compiling)


def _write_llama(loaded: Loaded, prompt: str, show, tokens: int, sampler: Sampler, seed: int, compiling):
    """By the engine; a Qwen3, too."""
    params = SamplingParams(temperature=sampler.temperature, top_k=sampler.top_k or 0, top_p=sampler.top_p or 1.0,
                            seed=seed, max_tokens=tokens)
    texts = Texts(loaded, [prompt], params, raw=True, compiling=compiling)
    try:
        for piece in texts.pieces():
            if piece:
                show(piece)
    except KeyboardInterrupt as stopped:
        stopped.continuation = texts.continuation
        raise
    return texts.continuation


def _write_gpt2(loaded: Loaded, prompt: str, show, tokens: int, sampler: Sampler, seed: int, compiling):
    ids = loaded.tokenizer.encode(prompt)
    context = loaded.model.config.n_positions
    if not ids:
        raise UserError("the prompt has no token; give it a word to begin with")
    if len(ids) >= context:
        raise UserError(f"the prompt has {len(ids):,} tokens; {loaded.name} has a context of {context:,}, and at least "
                        f"one place must be left for what follows")
    continuation = Continuation(len(ids))

    def timed() -> Iterator[int]:
        last = time.perf_counter()
        workspace = Workspace(loaded.model.config, dtype=loaded.model.dtype)
        compile_ahead.prepare(loaded.model.needed(workspace, len(ids)), progress=compiling)
        for token in generate(loaded.model, ids, tokens, sampler, seed=seed, stop=loaded.tokenizer.stop,
                              workspace=workspace):
            now = time.perf_counter()
            if continuation.tokens:
                continuation.decode_s += now - last
            else:
                continuation.prefill_s = now - last
            last = now
            if token in loaded.tokenizer.stop:
                continuation.ended = "then the model ended its text"
            else:
                continuation.tokens += 1
                yield token

    try:
        for piece in loaded.tokenizer.stream(timed()):
            continuation.text += piece
            show(piece)
        continuation.ended = continuation.ended or ("as many as were asked for" if continuation.tokens == tokens
                                    else f"then the context of {context:,} was full")
    except KeyboardInterrupt as stopped:
        stopped.continuation = continuation
        raise
    return continuation
