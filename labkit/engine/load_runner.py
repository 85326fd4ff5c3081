"""A model by its name as a runner for the engine: how many pages of K and V fit beside its weights.

    runner, tokenizer = load_runner("tiny-llama", max_num_seqs=8)
"""

from __future__ import annotations

from labkit import cuda, device
from labkit._common.errors import UserError
from labkit.engine.model_runner import ModelRunner, longest, most_pages
from labkit.engine.options import checked
from labkit.kernels.attention.pages import PAGE, pages_for
from labkit.models.dtypes import DTYPES
from labkit.models.llama import Llama
from labkit.models.load import ARCHITECTURES, folder, load, model_type, reading
from labkit.models.tokenizer import CONFIG, Tokenizer

CPU_CACHE = 1 << 28  # bytes of K and V on the CPU device
WORKING = 2 << 30  # bytes of a GPU's memory that are left for activations, logits and graphs


def load_runner(name: str, *, dtype: str = "auto", one_kernel: bool = False,
                **options) -> tuple[ModelRunner, Tokenizer]:
    """A model by its name, as labkit.models.load takes it, and its tokenizer. one_kernel: of Llama. options: of
    runner_of. Raises UserError for a model that has no pages, or that one kernel cannot compute."""
    checked(dtype=dtype, one_kernel=one_kernel, **options)
    path = folder(name)
    with reading(path, CONFIG):
        _, architecture = ARCHITECTURES[model_type(path)]
    if not issubclass(architecture, Llama):
        raise UserError(f"{name} is a {architecture.__name__}; the engine runs Llama and Qwen3")
    loaded = load(name, path=path, dtype=dtype, one_kernel=one_kernel)
    return runner_of(loaded.model, **options), loaded.tokenizer


def runner_of(model: Llama, *, max_num_seqs: int = 256, max_num_batched_tokens: int = 2048,
              max_model_len: int | None = None, gpu_memory_utilization: float = 0.9, num_pages: int | None = None,
              **options) -> ModelRunner:
    """num_pages: None: what gpu_memory_utilization of the device's memory leaves beside the weights, and no more than
    max_num_seqs sequences of max_model_len tokens can use. options: of ModelRunner."""
    sizes = checked(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    checked(num_pages=num_pages, gpu_memory_utilization=gpu_memory_utilization)
    length = longest(model, max_model_len)
    if num_pages is None:
        # One more for each: the scheduler leaves a page free for every sequence that runs when it admits another.
        num_pages = min(_pages_that_fit(model, gpu_memory_utilization), max_num_seqs * (pages_for(length) + 1))
    return ModelRunner(model, num_pages=num_pages, max_model_len=length, **sizes, **options)


def _pages_that_fit(model: Llama, utilization: float) -> int:
    """Pages of the cache of all layers, in the part of the device's memory that may be used and is free. The CPU
    device's share is CPU_CACHE."""
    config = model.config
    elements = config.num_key_value_heads * PAGE * config.head_dim  # of a layer's keys in a page
    free = CPU_CACHE
    if device.on_gpu():
        available, total = cuda.current_context().get_memory_info()
        free = available - (1 - utilization) * total - WORKING
    num_pages = int(free / (2 * config.num_hidden_layers * elements * DTYPES[model.dtype].itemsize))
    if num_pages < 1:
        raise UserError(f"no page of the KV cache fits into the device's memory beside "
                        f"{model.weights.nbytes / 1e9:.1f} GB of weights")
    return min(num_pages, most_pages(model))
