"""The model where the engine runs, in its process or the server's: it is loaded and warmed up, and embeds texts.

Nothing here imports the web framework, so that an engine's process begins without it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np

from labkit._common.errors import UserError
from labkit.serve.engine_thread import EngineThread
from labkit.serve.settings import Settings


def load_model(settings: Settings, doing: Callable[[str], None]) -> EngineThread:
    """The model in an engine whose kernels are compiled, with MiniLM if its weights are on this machine."""
    from labkit import device

    device.begin_context()
    from labkit.engine.llm_engine import LLMEngine
    from labkit.engine.load_runner import load_runner
    from labkit.models import weights

    # On the CPU device a step takes about 10 ms for each token of it, whatever their number.
    slots = settings.max_num_seqs or (256 if device.on_gpu() else 16)
    token_budget = settings.max_num_batched_tokens or (2048 if device.on_gpu() else 128)
    doing(f"{settings.model} is being loaded")
    try:
        runner, tokenizer = load_runner(
            settings.model, dtype=settings.dtype, one_kernel=settings.one_kernel, max_num_seqs=slots,
            max_num_batched_tokens=token_budget, max_model_len=settings.max_model_len, compiling=lambda done, of: doing(
                f"kernels are being compiled, {done} of {of}; they are kept"))
    except ValueError as error:  # of an option, such as more tokens than the model has positions
        raise UserError(str(error)) from None
    engine = LLMEngine(runner, tokenizer, max_num_seqs=slots, max_num_batched_tokens=token_budget)
    thread = EngineThread(engine)
    thread.start()
    doing("kernels are being compiled and the first steps run")
    thread.ask(lambda thread: warm_up(thread.engine, slots)).result()
    if getattr(tokenizer, "template", None):
        tokenizer.chat([{"role": "user", "content": "a"}])  # imports what runs templates
    if weights.is_there(weights.MINILM):
        from labkit.models.sentences import Encoder

        doing("MiniLM is being loaded and its kernels compiled")
        thread.encoder = Encoder.from_pretrained()
        thread.ask(embed, ["a"]).result()
    exempt_from_collections()
    return thread


def exempt_from_collections() -> None:
    """Let no garbage collection traverse what this process holds by now: it stays, and a traversal of all that Numba
    imports and compiles stops every stream for 0.3 s."""
    gc.collect()
    gc.freeze()


def warm_up(engine, slots: int) -> None:
    """Compile what any request may launch, and on a GPU capture the graph of each size of batch."""
    from labkit import device
    from labkit.engine.runner import buckets
    from labkit.engine.sampling_params import SamplingParams

    engine.runner.prepare()
    for count in buckets(slots) if device.on_gpu() else (1,):
        for index in range(count):
            engine.add_request(f"warm-up {index}", [1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step(final_only=True)
    engine.blocks.forget()


def embed(thread: EngineThread, batch: list[str]) -> tuple[np.ndarray, int]:
    """In the engine's thread: the rows, and the tokens of all texts."""
    return thread.encoder.encode(batch), sum(map(len, thread.encoder.tokenizer.encode(batch)))
