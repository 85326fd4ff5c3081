"""What a Llama writes after some prompts, all of them in one continuous batch, and what that took.

    texts = Texts(load("tiny-llama"), ["What is a hacker?", "What is a kernel?"], SamplingParams(max_tokens=64))
    for number, output in texts.run(): ...       # as `LLM.stream` has them: every request that a step brought on
    texts.outputs                                # the last of each prompt; after Ctrl-C, as far as they had come
    print(texts.report)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from labkit import device
from labkit._common.errors import UserError
from labkit.engine.llm import LLM
from labkit.engine.load_runner import runner_of
from labkit.engine.outputs import RequestOutput
from labkit.engine.sampling_params import SamplingParams
from labkit.models.load import Loaded

SLOTS = 256  # texts that are written at a time
ROWS = 2048  # tokens of a step


@dataclass
class Continuation:
    """What was generated, and its times in seconds. prefill_s ends with the first token, decode_s with the last.

    ended: why there is no more of it; "" if it was stopped.
    """

    prompt_tokens: int
    text: str = ""
    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    ended: str = ""

    @property
    def per_second(self) -> float | None:
        """Tokens a second after the first; None if there was no second."""
        return (self.tokens - 1) / self.decode_s if self.tokens > 1 else None

    def __str__(self) -> str:
        ended = f", {self.ended}" if self.ended else ""
        rate = "" if self.per_second is None else f", then {self.per_second:,.1f} a second"
        return (f"{counted(self.tokens, 'token')}{ended}; the first after {self.prefill_s:.2f} s (prompt: "
                f"{counted(self.prompt_tokens, 'token')}){rate}. {device.where()}")


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Texts:
    """loaded: a Llama or a Qwen3. params: for each of the prompts; their max_tokens is given.

    raw: the text goes on from the prompt; otherwise the prompt is what a user says in the model's chat template, if the
    model has one, and the text is the answer. names: of the prompts, for messages. compiling(done, of): called while
    kernels are compiled that are not kept from an earlier run; their time is part of the time to the first token.
    Raises UserError for a prompt that has no token or does not fit.
    """

    def __init__(self, loaded: Loaded, prompts: Sequence[str], params: SamplingParams, *, raw: bool = False,
                 names: Sequence[str] = (), compiling: Callable[[int, int], None] | None = None):
        tokenizer, context = loaded.tokenizer, loaded.model.positions
        self.params, self.context, self.ending = params, context, (*params.stop_token_ids, *tokenizer.stop)
        self.chat = not raw and tokenizer.template is not None
        self.ids = [tokenizer.chat([{"role": "user", "content": prompt}]) if self.chat else tokenizer.encode(prompt)
                    for prompt in prompts]
        for ids, name in zip(self.ids, names or ["the prompt"] * len(prompts), strict=True):
            if not ids:
                raise UserError(f"{name} has no token; give it a word to begin with")
            if len(ids) >= context:
                raise UserError(f"{name} has {len(ids):,} tokens; {loaded.name} has a context of {context:,}, and at "
                                f"least one place must be left for what follows")
        slots = min(len(self.ids), SLOTS)
        rows = max(slots, min(sum(map(len, self.ids)), ROWS))
        runner = runner_of(loaded.model, max_num_seqs=slots, max_num_batched_tokens=rows,
                           max_model_len=min(max(map(len, self.ids)) + params.max_tokens, context), compiling=compiling)
        self.llm = LLM(runner, tokenizer, max_num_seqs=slots, max_num_batched_tokens=rows)
        self.outputs: list[RequestOutput | None] = [None] * len(self.ids)
        self.first_s = self.seconds = 0.0  # up to the first output that was seen, and up to the last

    def run(self, every: float = 0.0) -> Iterator[tuple[int, RequestOutput]]:
        """(index of the prompt, its output so far). every: see LLM.stream."""
        began = time.perf_counter()
        for output in self.llm.stream([{"prompt_token_ids": ids} for ids in self.ids], self.params, every=every):
            index = int(output.request_id)  # a new LLM counts its requests from 0
            self.outputs[index] = output
            self.seconds = time.perf_counter() - began
            self.first_s = self.first_s or self.seconds
            yield index, output

    def pieces(self) -> Iterator[str]:
        """What each step adds to the text of the only prompt; nothing where a character is still incomplete."""
        shown = 0
        for _, output in self.run():
            text = output.outputs[0].text
            yield text[shown:]
            shown = len(text)

    @property
    def continuation(self) -> Continuation:
        """Of the only prompt."""
        (output,) = self.outputs
        return Continuation(len(self.ids[0]), output.outputs[0].text if output else "", self.tokens(0), self.first_s,
                            self.seconds - self.first_s, self.ended(0))

    def tokens(self, index: int) -> int:
        """How many tokens of text follow a prompt, without the one that ended it."""
        output = self.outputs[index]
        ids = output.outputs[0].token_ids if output else []
        return len(ids) - bool(ids and ids[-1] in self.ending and output.outputs[0].finish_reason == "stop")

    def ended(self, index: int) -> str:
        """Why there is no more of it; "" if it was stopped."""
        output = self.outputs[index]
        last = output.outputs[0] if output else None
        if last is None or last.finish_reason not in ("stop", "length"):
            return ""
        if last.finish_reason == "length":
            full = len(last.token_ids) < self.params.max_tokens
            return f"then the context of {self.context:,} was full" if full else "as many as were asked for"
        return "then the model ended its text" if last.stop_reason is None else f"then it came to {last.stop_reason!r}"

    @property
    def report(self) -> str:
        """Two lines: how much was written and how fast; what was computed, and how much memory was held for it."""
        if len(self.ids) == 1:
            return f"{self.continuation}\n{self._memory}"
        total = sum(map(self.tokens, range(len(self.ids))))
        done = sum(output is not None and output.finished for output in self.outputs)
        ended = "" if done == len(self.ids) else f", {done:,} of them to the end"
        rate = f", {total / self.seconds:,.1f} a second" if total else ""
        return (f"{len(self.ids):,} prompts of {counted(sum(map(len, self.ids)), 'token')}{ended}: "
                f"{counted(total, 'token')} in {self.seconds:.2f} s{rate}. {device.where()}\n{self._memory}")

    @property
    def _memory(self) -> str:
        stats = self.llm.stats()
        begun = [output for output in self.outputs if output and output.num_cached_tokens is not None]
        cached = sum(output.num_cached_tokens for output in begun)
        prefill = sum(len(output.prompt_token_ids) for output in begun) - cached
        return (f"{counted(stats.steps, 'step')}; {counted(prefill, 'token')} of prompts computed, {cached:,} more "
                f"found in the prefix cache; at most {stats.most_pages:,} of {counted(stats.pages, 'page')} of K and V "
                f"held at a time; {counted(stats.preemptions, 'preemption')}")
