"""What a server may be set to, with every limit and its default."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """model, dtype, one_kernel: as labkit.engine.load_runner takes them. host: 127.0.0.1 is this machine alone. port:
        0: any that is free. api_key: None: no key is asked for. allow_origins: of web pages that may call it, beside
        its own. window_control: whether its own page may pause and step the engine even where other machines reach it.

    Of the engine; None: by the device.
    max_num_seqs: sequences that run at a time. max_num_batched_tokens: of a step; a request that is cancelled frees its
        pages before the next one. max_model_len: tokens of a prompt and its output; None: as many as the model has
        positions. engine_process: it has a process of its own, so its steps and HTTP do not take turns in one
        interpreter; None: on a GPU, with more than one core. On the CPU device the kernels themselves take the cores,
        and outside the interpreter. restart_s: a process that died, or whose last steps all failed, is started again,
        so many seconds after its start or later.

    Limits. What exceeds one is refused, and the limit named.
    max_waiting: requests that wait for their first step, and as many whose texts are being read.
    max_connections: open at a time, those of clients that keep them for later as well.
    max_body, max_headers: bytes of a request. max_prompt_characters: of a text, before it is made into tokens; None:
        16 for each token of the context. max_n: outputs of a prompt. max_prompts: of a request. max_stop: stop strings
        of a request. max_inputs: texts of a request for embeddings.
    deadline_s: from a request's arrival to its last token; a request may ask for less. body_s: for its body to arrive,
        and for the first request of a connection.
    write_s: a reader that takes nothing for so long is given up. drain_s: for what runs, after SIGTERM.
    retry_after_s: what a client is asked to wait for where too many wait.
    """

    model: str = "tiny-llama"
    dtype: str = "auto"
    one_kernel: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allow_origins: tuple[str, ...] = ()
    window_control: bool = False

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    engine_process: bool | None = None
    restart_s: float = 60.0

    max_waiting: int = 256
    max_connections: int = 1_000
    max_body: int = 4 << 20
    max_headers: int = 16 << 10
    max_prompt_characters: int | None = None
    max_n: int = 16
    max_prompts: int = 32
    max_stop: int = 16
    max_inputs: int = 256
    deadline_s: float = 600.0
    body_s: float = 30.0
    write_s: float = 60.0
    drain_s: float = 30.0
    retry_after_s: int = 1

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            positive = field.name.startswith("max_") or field.name.endswith("_s")
            if positive and value is not None and not 0 < value < math.inf:
                raise ValueError(f"{field.name} is {value}; it must be more than 0")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be from 0 to 65535")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and
                                             self.api_key.strip() == self.api_key != ""):
            raise ValueError("the API key must be printable ASCII, not empty, without spaces around it")
