"""tiny-llama behind the server, asked by clients that others wrote: OpenAI's own, curl and httpx. What comes back is
what LLM gives for the request alone."""

import asyncio
import json
import random
import shutil
import subprocess
import time

import httpx
import numpy as np
import openai
import pytest

from labkit.engine import LLM, LLMEngine, SamplingParams
from labkit.engine.load_runner import runner_of
from labkit.models.load import load
from labkit.serve.settings import Settings
from tests.serve.serving import Chatting, Encoder, fake_engine, served, until

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
QUESTION = [{"role": "user", "content": "What is a hacker?"}]
MODEL = "tiny-llama"
writes = pytest.mark.sweep(every=True)  # its kernels take half a minute to compile


@pytest.fixture(scope="module")
def tiny():
    """(the server, an LLM of the same model with a cache of its own). They never run at the same time."""
    loaded = load(MODEL)
    engine, alone = (LLMEngine(runner_of(loaded.model, num_pages=100, **SIZES), loaded.tokenizer, **SIZES)
                     for _ in range(2))
    llm = LLM(alone.runner, loaded.tokenizer, **SIZES)
    with served(engine, Settings(), Encoder()) as server:
        yield server, llm


@pytest.fixture
def client(tiny):
    with openai.OpenAI(base_url=f"{tiny[0].url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture
def llm(tiny):
    until(lambda: tiny[0].thread.unfinished == 0)
    return tiny[1]


@writes
def test_a_system_message_is_taken_and_left_out(client, llm):
    (here,) = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=8))  # kernels are compiled with it
    given = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    alone, *others = [client.chat.completions.create(**given, messages=[*before, *QUESTION]) for before in (
        [], [{"role": "system", "content": "You are a helpful assistant."}], [{"role": "developer", "content": "Hi"}])]
    assert alone.choices[0].message.content == here.outputs[0].text
    for other in others:
        assert other.choices[0].message.content == alone.choices[0].message.content
        assert other.usage.prompt_tokens == alone.usage.prompt_tokens


@writes
def test_logit_bias_and_words_that_must_not_come(client, llm):
    given = {"model": MODEL, "prompt": "A hacker is", "temperature": 0, "max_tokens": 6}
    llm.generate("A hacker is", SamplingParams(logit_bias={300: 1}, bad_words=["one two", "three"]))
    plain = client.completions.create(**given).choices[0].text
    word = plain.split()[0]
    assert word not in client.completions.create(**given, extra_body={"bad_words": [word]}).choices[0].text.split()
    one = client.completions.create(**given, logit_bias={"300": 100}, extra_body={"ignore_eos": True})
    assert one.choices[0].text == llm.get_tokenizer().decode([300] * 6)


@writes
def test_a_chat_streamed_or_not_is_that_of_the_engine(client, llm):
    (alone,) = llm.chat(QUESTION, SamplingParams(temperature=0, max_tokens=12))
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=12)
    assert whole.choices[0].message.content == alone.outputs[0].text and whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(alone.prompt_token_ids), 12)
    assert whole._request_id == whole.id and whole.object == "chat.completion"
    stream = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=12, stream=True,
                                            stream_options={"include_usage": True})
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == alone.outputs[0].text
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == [] and last.usage.total_tokens == whole.usage.total_tokens
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0, stop=" exploring") as helper:
        final = helper.get_final_completion().choices[0]
        assert alone.outputs[0].text.startswith(final.message.content + " exploring") and final.finish_reason == "stop"


@writes
def test_every_sampling_parameter_comes_to_the_engine(client, llm):
    given = {"temperature": 0.9, "top_p": 0.95, "seed": 11, "presence_penalty": 0.5, "frequency_penalty": 0.3,
             "stop": [" of", "zz"], "n": 2, "max_tokens": 8}
    more = {"top_k": 40, "min_p": 0.01, "repetition_penalty": 1.1}
    (alone,) = llm.generate("A hacker is", SamplingParams(**given, **more))
    found = client.completions.create(model=MODEL, prompt="A hacker is", **given, extra_body=more)
    assert [(one.index, one.text, one.finish_reason) for one in found.choices] == [
        (one.index, one.text, one.finish_reason) for one in alone.outputs]
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(model=MODEL, prompt="A hacker is", stream=True, **given, extra_body=more):
        for one in chunk.choices:
            texts[one.index] += one.text
    assert texts == {one.index: one.text for one in alone.outputs}


@writes
def test_several_prompts_as_texts_or_tokens(client, llm):
    params = {"temperature": 0, "max_tokens": 4}
    prompts = ["A hacker is", "recursion:"]
    alone = [output.outputs[0].text for output in llm.generate(prompts, SamplingParams(**params))]
    ids = [llm.get_tokenizer().encode(prompt) for prompt in prompts]
    for given in (prompts, ids):
        found = client.completions.create(model=MODEL, prompt=given, **params)
        assert [one.text for one in found.choices] == alone and found.usage.completion_tokens == 8


@writes
def test_logprobs_in_the_format_of_each_api(client, llm):
    params = {"temperature": 0, "max_tokens": 5}
    (alone,) = llm.generate("A hacker is", SamplingParams(logprobs=3, **params))
    (expected,) = alone.outputs
    (found,) = client.completions.create(model=MODEL, prompt="A hacker is", logprobs=3, **params).choices
    own = [listed[token] for token, listed in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert found.logprobs.tokens == [one.decoded_token for one in own] and "".join(found.logprobs.tokens) == found.text
    np.testing.assert_allclose(found.logprobs.token_logprobs, [one.logprob for one in own], atol=1e-3)
    assert [len(each) for each in found.logprobs.top_logprobs] == [3] * 5 and found.logprobs.text_offset[0] == 0
    streamed = [chunk.choices[0].logprobs for chunk in client.completions.create(
        model=MODEL, prompt="A hacker is", logprobs=3, stream=True, **params)]
    for name in ("tokens", "text_offset"):
        assert [each for one in streamed if one for each in getattr(one, name)] == getattr(found.logprobs, name)

    (chat,) = client.chat.completions.create(model=MODEL, messages=QUESTION, logprobs=True, top_logprobs=2,
                                             **params).choices
    entries = chat.logprobs.content
    assert "".join(entry.token for entry in entries) == chat.message.content and len(entries) == 5
    for entry in entries:
        assert len(entry.top_logprobs) == 2 and bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].logprob == max(each.logprob for each in entry.top_logprobs) == entry.logprob
    (plain,) = client.chat.completions.create(model=MODEL, messages=QUESTION, logprobs=True, max_tokens=1).choices
    assert plain.logprobs.content[0].top_logprobs == []


def test_embeddings_as_numbers_and_in_base64(client):
    texts = [f"{'a' * (count % 7)}b" for count in range(20)]
    plain = client.embeddings.create(model="minilm", input=texts, encoding_format="float")
    packed = client.embeddings.create(model="minilm", input=texts)  # the client asks for base64
    assert [one.embedding for one in plain.data] == [one.embedding for one in packed.data] == [
        [len(text), 1, 0, 0] for text in texts]
    assert [one.index for one in plain.data] == list(range(20)) and plain.usage.prompt_tokens == len("".join(texts))
    assert client.embeddings.create(model="all-MiniLM-L6-v2", input="abc").data[0].embedding == [3, 1, 0, 0]


def test_errors_are_the_clients_own_exceptions(client):
    assert [model.id for model in client.models.list()] == [MODEL, "minilm"]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as found:
        client.chat.completions.create(model="gpt-5", messages=QUESTION)
    assert found.value.code == "model_not_found" and found.value.param == "model"
    with pytest.raises(openai.BadRequestError) as found:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    assert found.value.param == "temperature" and "must be" in found.value.message
    with pytest.raises(openai.BadRequestError) as found:
        client.completions.create(model=MODEL, prompt="a hacker " * 1000)
    assert found.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="message 0 has the role 'tool'"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "tool", "content": "a"}])


@writes
def test_extremes_that_are_allowed_break_no_step(tiny, client):
    """Numbers at the ends of their ranges, in float32 and int32."""
    extremes = [{"repetition_penalty": 0.01}, {"repetition_penalty": 100}, {"temperature": 2}, {"min_p": 1},
                {"temperature": 1.01e-5}, {"top_k": 2**31 - 1}, {"top_p": 1e-30}, {"stop_token_ids": [4095]},
                {"presence_penalty": -2, "frequency_penalty": 2}]
    for more in extremes:
        client.completions.create(model=MODEL, prompt="A", max_tokens=2, extra_body=more | {"min_tokens": 1})
    for seed in (-(2**63), 2**63 - 1):
        client.completions.create(model=MODEL, prompt="A", max_tokens=1, seed=seed)
    assert tiny[0].thread.faults == 0


@pytest.mark.sweep
def test_many_at_once_each_get_their_own_answer_and_those_who_leave_harm_none(tiny, llm):
    """httpx under load: a third goes away in the middle, a third sends what is wrong."""
    server, rng = tiny[0], random.Random(5)
    words = ["recursion:", "A hacker is", "hack:", "kluge:", "The jargon file"]
    asked = [(rng.choice(words), SamplingParams(temperature=0.8, seed=seed, max_tokens=rng.randint(2, 6)))
             for seed in range(12)]
    expected = llm.generate([prompt for prompt, _ in asked], [params for _, params in asked])

    async def whole(http, prompt, params):
        body = {"model": MODEL, "prompt": prompt, "temperature": 0.8, "seed": params.seed,
                "max_tokens": params.max_tokens}
        if params.seed % 2:
            return (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        async with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            chunks = [json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: {")]
        return "".join(chunk["choices"][0]["text"] for chunk in chunks)

    async def leaves(http, number):
        body = {"model": MODEL, "prompt": "kluge:", "max_tokens": 200, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as stream:
            async for _ in stream.aiter_lines():
                if number % 2:
                    return

    async def garbage(http, number):
        body = [b"{", b'{"model": 1}', b'{"model": "tiny-llama", "prompt": [1e9]}'][number % 3]
        assert (await http.post("/v1/completions", content=body)).status_code == 400

    async def everyone():
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            leaving = [asyncio.create_task(leaves(http, number)) for number in range(4)]
            rest = [garbage(http, number) for number in range(4)] + [whole(http, *one) for one in asked]
            found = await asyncio.gather(*rest)
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)
            return found[4:]

    assert asyncio.run(everyone()) == [output.outputs[0].text for output in expected]
    until(lambda: server.thread.unfinished == 0)


@writes
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_curl(tiny):
    def curl(path, *options, **given):
        done = subprocess.run(["curl", "-sS", "-N", "-w", "\n%{http_code}", f"{tiny[0].url}{path}", *options],
                              capture_output=True, timeout=60, **given)
        body, _, status = done.stdout.decode().rpartition("\n")
        return int(status), body

    body = json.dumps({"model": MODEL, "messages": QUESTION, "max_tokens": 3, "temperature": 0})
    status, answer = curl("/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body)
    assert status == 200 and json.loads(answer)["choices"][0]["message"]["content"]
    status, answer = curl("/v1/chat/completions", "-d", body.replace("{", '{"stream": true, ', 1))
    assert status == 200 and answer.endswith("data: [DONE]\n\n") and answer.count("data: ") >= 4
    assert curl("/health")[0] == 200 and "labkit_kv_pages" in curl("/metrics")[1]
    large = b"x" * (5 << 20)
    for how in ((), ("-H", "Transfer-Encoding: chunked")):
        status, answer = curl("/v1/completions", *how, "--data-binary", "@-", input=large)
        assert status == 413 and json.loads(answer)["error"]["code"] == "body_too_large"
    assert curl("/v1/completions", "-d", "{")[0] == 400


# --- Of OpenAI's client on the fake model: keys, retries, timeouts ---------------------------------------------------


def test_a_wrong_key_and_the_right_one():
    with served(fake_engine(), Settings(api_key="right")) as server:
        for key, raised in (("right", None), ("wrong", openai.AuthenticationError)):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
                if raised:
                    with pytest.raises(raised):
                        client.models.list()
                else:
                    assert client.models.list().data[0].id == MODEL


@pytest.mark.sweep(every=True)
def test_the_client_waits_as_long_as_it_is_asked_to_and_tries_again():
    with served(fake_engine(), Settings(max_waiting=1, retry_after_s=1)) as server, \
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        server.thread.pause()
        with httpx.Client(base_url=server.url) as other:
            with pytest.raises(httpx.ReadTimeout):
                other.post("/v1/completions", json={"model": MODEL, "prompt": "a"}, timeout=0.2)
            until(lambda: server.thread.unfinished == 0)  # who stops waiting leaves nothing

            async def both():
                async with httpx.AsyncClient(base_url=server.url, timeout=20) as first:
                    waiting = asyncio.create_task(first.post("/v1/completions", json={"model": MODEL, "prompt": "a"}))
                    await asyncio.to_thread(until, lambda: server.thread.waiting == 1)
                    with pytest.raises(openai.RateLimitError) as found:
                        await asyncio.to_thread(client.completions.create, model=MODEL, prompt="b")
                    assert found.value.response.headers["retry-after"] == "1"
                    began = time.monotonic()
                    patient = asyncio.create_task(asyncio.to_thread(
                        client.with_options(max_retries=2).completions.create, model=MODEL, prompt="b"))
                    await asyncio.sleep(0.3)
                    server.thread.resume()
                    assert (await patient).choices[0].text is not None and (await waiting).status_code == 200
                    assert 1 <= time.monotonic() - began < 5

            asyncio.run(both())


def test_the_clients_timeout_frees_the_request():
    with served(fake_engine()) as server, \
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=0.2) as client:
        server.thread.pause()
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "abc"}])
        until(lambda: server.thread.unfinished == 0)
        server.thread.resume()
        with pytest.raises(openai.InternalServerError) as found:  # 504, which the client does not try again
            server.thread.delay_s = 0.05
            client.with_options(max_retries=3, timeout=10).completions.create(
                model=MODEL, prompt="abc", max_tokens=50, extra_body={"deadline_s": 0.1, "ignore_eos": True})
        assert found.value.code == "deadline_exceeded"
        server.thread.delay_s = 0.0
        until(lambda: server.service.metrics.requests.labels("/v1/completions", "504")._value.get() == 1)


def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client():
    with served(fake_engine(tokenizer=Chatting())) as server, \
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        server.thread.delay_s = 0.02
        stream = client.completions.create(model=MODEL, prompt="abc", max_tokens=60, stream=True,
                                           extra_body={"deadline_s": 0.2, "ignore_eos": True})
        with pytest.raises(openai.APIError, match="did not end in the time"):
            list(stream)
