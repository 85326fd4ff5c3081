"""/v1/completions and /v1/chat/completions: a body becomes prompts and parameters, and outputs become an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

import fastapi
from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from labkit._common.errors import UserError
from labkit.engine.outputs import RequestOutput
from labkit.engine.sampling_params import SamplingParams
from labkit.engine.sequence import Request
from labkit.serve.async_engine import Stream
from labkit.serve.errors import ApiError
from labkit.serve.metrics import Clock
from labkit.serve.protocol import ChatBody, ChatShape, CompletionBody, Generation, Shape, usage
from labkit.serve.service import Service
from labkit.serve.streaming import Choice, EventStream, event, merged, unless_gone

router = APIRouter()


@dataclass
class Job:
    """A body that was read. requests: one for each of its prompts."""

    body: Generation
    requests: list[Request]
    n: int
    shape: Shape
    streams: list[Stream] = field(default_factory=list)

    def submit(self, service: Service) -> None:
        """All of the prompts, or none."""
        deadline = min(self.body.deadline_s or service.settings.deadline_s, service.settings.deadline_s)
        try:
            for request in self.requests:
                self.streams.append(service.ready().submit(request, deadline_s=deadline,
                                                           final_only=not self.body.stream))
        except BaseException:
            self.cancel()
            raise
        service.metrics.prompt_tokens.inc(sum(len(request.prompt) for request in self.requests))

    def cancel(self) -> None:
        for stream in self.streams:
            stream.cancel()  # one that has ended passes it over


def read_completion(service: Service, raw: bytes) -> Job:
    body = CompletionBody.model_validate_json(raw)
    service.check_model(body.model)
    body.check(service.settings)
    params = body.params()
    if len(body.prompts) > service.settings.max_prompts:
        raise ApiError(400, f"prompt has {len(body.prompts):,} prompts; at most {service.settings.max_prompts} are "
                            f"allowed", param="prompt")
    prompts = [service.tokens_of(prompt, "prompt") for prompt in body.prompts]
    return job_of(service, body, prompts, params, "prompt", Shape(body.model, body.include_usage), body.max_tokens)


def read_chat(service: Service, raw: bytes) -> Job:
    body = ChatBody.model_validate_json(raw)
    service.check_model(body.model)
    body.check(service.settings)
    params, tokenizer = body.params(), service.tokenizer
    if getattr(tokenizer, "template", None) is None:
        raise ApiError(400, f"{service.model_name} has no chat template: it goes on with a text, and answers no "
                            f"questions. /v1/completions takes a text", param="messages", code="no_chat_template")
    try:
        text = tokenizer.template.render([message.plain for message in body.messages])
    except UserError as error:
        # Where the template lies is not for clients.
        raise ApiError(400, str(error).replace(f"{tokenizer.template.path}: ", ""), param="messages") from None
    prompt = service.tokens_of(text, "messages", marks=False)  # the template sets them itself
    shape = ChatShape(body.model, body.include_usage, body.top_logprobs or 0)
    return job_of(service, body, [prompt], params, "messages", shape, params.max_tokens)


def job_of(service: Service, body: Generation, prompts: list[dict], params: SamplingParams, param: str, shape: Shape,
           max_tokens: int | None) -> Job:
    """max_tokens: the client's limit, if it sets one. Raises ApiError or ValueError for what cannot run."""
    engine = service.ready()
    for prompt in prompts:
        service.check_length(prompt["prompt_token_ids"], max_tokens, param)
    return Job(body, [engine.request_of(prompt, params) for prompt in prompts], params.n, shape)


@router.post("/v1/completions")
async def completions(request: fastapi.Request) -> Response:
    return await answer(request, read_completion)


@router.post("/v1/chat/completions")
async def chat_completions(request: fastapi.Request) -> Response:
    return await answer(request, read_chat)


async def answer(request: fastapi.Request, read) -> Response:
    service: Service = request.app.state.service
    service.ready()
    clock = Clock(service.metrics)
    job: Job = await service.read(read, service, await request.body())
    job.submit(service)
    headers = {"x-request-id": job.shape.id}
    events = None
    try:
        if not job.body.stream:
            outputs = await unless_gone(request, last_of_each(job, clock))
            choices = [job.shape.choice(index * job.n + completion.index, completion)
                       for index, output in enumerate(outputs) for completion in output.outputs]
            return JSONResponse(job.shape.answer(choices, usage(outputs)), headers=headers)
        events = event_chunks(job, clock)
        first = await unless_gone(request, anext(events))
    except BaseException:
        job.cancel()
        if events:
            await events.aclose()
        raise
    return EventStream(first, events, service.settings.write_s, headers)


async def last_of_each(job: Job, clock: Clock) -> list[RequestOutput]:
    outputs: list[RequestOutput | None] = [None] * len(job.streams)
    async for index, output in merged(job.streams):
        clock.saw(longest(output))
        outputs[index] = output
    clock.ended()
    return outputs


async def event_chunks(job: Job, clock: Clock) -> AsyncIterator[bytes]:
    """The answer's events. When it is closed, so are the streams."""
    n, latest = job.n, {}
    choices = [Choice(index, job.shape) for index in range(n * len(job.streams))]
    try:
        async with aclosing(merged(job.streams)) as outputs:
            async for prompt_index, output in outputs:
                clock.saw(longest(output))
                latest[prompt_index] = output
                deltas = [delta for completion in output.outputs
                          for delta in choices[prompt_index * n + completion.index].deltas(completion)]
                if deltas:
                    yield b"".join(event(job.shape.part([delta])) for delta in deltas)
        clock.ended()
        if job.body.include_usage:
            yield event(job.shape.part([], usage(list(latest.values()))))
        yield b"data: [DONE]\n\n"
    finally:
        job.cancel()


def longest(output: RequestOutput) -> int:
    return max(len(completion.token_ids) for completion in output.outputs)
