"""State that all requests of a server share: the engine once there is one, limits, and readiness."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from labkit._common.errors import short
from labkit.models.weights import MINILM
from labkit.serve.async_engine import AsyncEngine, Busy, Draining
from labkit.serve.errors import SERVER, ApiError
from labkit.serve.metrics import Metrics
from labkit.serve.settings import Settings

READERS = 2  # threads that read bodies and turn texts into tokens
DRAINING = "the server is about to end and takes no more requests"
CHARACTERS_A_TOKEN = 16  # a prompt with more for each token of the context is refused unread


class Service:
    """engine: None until `serve` gives it one.

    doing: what it does while it cannot serve yet. failure: why it never will. lost: why the engine that it had is gone;
    "" unless it is to get another one.
    """

    def __init__(self, engine: AsyncEngine | None, settings: Settings):
        self.settings = settings
        self.engine: AsyncEngine | None = None
        self.model_name = Path(settings.model).name if Path(settings.model).is_dir() else settings.model
        self.doing, self.failure, self.draining = "the model is being loaded", "", False
        self.lost, self._again_at = "", None  # by time.monotonic(), when it is started again; None: it is being started
        self.active = 0  # requests under /v1
        self.began = int(time.time())
        self.metrics = Metrics(lambda: self.engine)
        # Reading a body is pure Python, and a template or a long text takes milliseconds: not in the event loop, which
        # all streams share, and not where the engine makes its steps, for which the device would wait.
        self._readers = ThreadPoolExecutor(READERS, "reader")
        self._being_read = 0
        if engine is not None:
            self.serve(engine)

    def serve(self, engine: AsyncEngine) -> None:
        """From now on it is ready."""
        self.engine, self.lost = engine, ""

    def lose(self, reason: str, again_at: float | None = None) -> None:
        """There is no engine until `serve` gives it another one, which is started at again_at, by time.monotonic();
        None: now."""
        self.lost, self._again_at, self.engine = reason, again_at, None

    def drain(self) -> None:
        """Takes no more requests."""
        self.draining = True
        if self.engine:
            self.engine.drain()

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    # --- Whether it serves -------------------------------------------------------------------------------------------

    @property
    def tokenizer(self):
        return self.ready().tokenizer

    @property
    def condition(self) -> tuple[str, str]:
        """ready, draining, loading, restarting (the engine was lost and is started again) or failed; and the same in
        words."""
        engine, again_at = self.engine, self._again_at  # another thread sets them
        trouble = self.failure or engine is not None and not self.draining and engine.trouble
        if trouble:
            return "failed", trouble
        if self.draining:
            return "draining", DRAINING
        if engine is not None:
            return "ready", "it takes requests"
        if not self.lost:
            return "loading", self.doing
        restart = (f"being started again: {self.doing}" if again_at is None else
                   f"started again in {max(0, math.ceil(again_at - time.monotonic()))} s")
        return "restarting", f"{self.lost}; it is {restart}"

    @property
    def wait_s(self) -> int:
        """Seconds after which it makes sense to ask again, while it is not ready."""
        again_at = self._again_at
        return max(5, math.ceil(again_at - time.monotonic())) if again_at and self.lost else 5

    def ready(self) -> AsyncEngine:
        """Raises ApiError or Draining where it takes no request."""
        engine, (status, message) = self.engine, self.condition
        if status == "draining":
            raise Draining(DRAINING)
        if engine is None or status != "ready":
            raise ApiError(503, f"the server is not ready: {message}", type=SERVER, code=status,
                           headers={"retry-after": str(self.wait_s)})
        return engine

    def ready_or_draining(self) -> AsyncEngine:
        """Return the engine for the rest of an accepted request."""
        return self.engine or self.ready()

    def check_model(self, name: str) -> None:
        if name not in (self.model_name, self.settings.model):
            raise unknown_model(name, self.models)

    @property
    def models(self) -> list[str]:
        return [self.model_name, *([self.encoder_name] if self.embedding_size else [])]

    @property
    def embedding_size(self) -> int | None:
        """None where there is no encoder."""
        return self.engine and self.engine.embedding_size

    @property
    def encoder_name(self) -> str:
        return MINILM.name

    @property
    def encoder_names(self) -> tuple[str, ...]:
        return MINILM.name, MINILM.repository, MINILM.repository.rpartition("/")[2]

    # --- Reading -----------------------------------------------------------------------------------------------------

    async def read(self, function: Callable, *arguments):
        """function(*arguments) in a thread that reads requests. Raises Busy where too many wait for that."""
        if self._being_read >= self.settings.max_waiting:
            raise Busy(f"{self._being_read:,} requests wait to be read, as many as may; try again later")
        self._being_read += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, function, *arguments)
        finally:
            self._being_read -= 1

    def tokens_of(self, prompt: str | list[int], param: str, marks: bool = True) -> dict:
        """A prompt as AsyncEngine.submit takes it, which checks its tokens. marks: with those that the tokenizer sets
        around a text. Raises ApiError for a text that is too long."""
        if isinstance(prompt, list):
            return {"prompt_token_ids": prompt}
        engine = self.ready()
        limit = self.settings.max_prompt_characters or CHARACTERS_A_TOKEN * engine.max_model_len
        if len(prompt) > limit:
            raise too_long(f"{param} has {len(prompt):,} characters; at most {limit:,} are read", param)
        return {"prompt": prompt, "prompt_token_ids": engine.tokenizer.encode(prompt, marks)}

    def check_length(self, ids: list[int], max_tokens: int | None, param: str) -> None:
        """Raises ApiError where the prompt does not fit into the context, or not with what may follow."""
        context = self.ready().max_model_len
        if not ids:
            raise ApiError(400, f"{param} has no token; give it a word to begin with", param=param)
        if len(ids) + (max_tokens or 1) > context:
            detail = "and at least one must follow" if max_tokens is None else f"and max_tokens is {short(max_tokens)}"
            raise too_long(f"the context of this model is {context:,} tokens; {param} has {len(ids):,}, {detail}",
                           param if max_tokens is None or len(ids) >= context else "max_tokens")


def too_long(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def unknown_model(name: str, models: list[str]) -> ApiError:
    return ApiError(404, f"there is no model {short(name)} here; there is {' and '.join(models)}", param="model",
                    code="model_not_found")
