"""The server on the fake model: what is answered, refused, cut off and counted."""

import asyncio
import functools
import json
import logging
import socket
import time

import httpx
import pytest

from labkit.engine import LLM, SamplingParams
from labkit.engine.sequence import Request
from labkit.serve.errors import of_exception
from labkit.serve.protocol import ChatShape, Shape
from labkit.serve.settings import Settings
from labkit.serve.streaming import Choice, ClientGone, EventStream
from tests.engine.fake_model import FakeRunner, logprobs_alone
from tests.engine.test_llm import LETTERS, Letters, expected
from tests.serve.serving import PAGES, Chatting, Encoder, fake_engine, served, until
from tests.serve.test_engine_thread import Faulty

LONG = {"ignore_eos": True, "temperature": 0}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with served(fake_engine(), Settings(max_n=4, max_prompts=3, max_body=4000, max_waiting=8), Encoder()) as found:
        yield found


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=20) as found:
        yield found
    server.thread.resume()
    server.thread.delay_s = 0.0
    until(lambda: server.thread.unfinished == 0)


def text(**fields):
    return {"model": "tiny-llama", "prompt": "abc", "max_tokens": 5} | fields


def chat(**fields):
    return {"model": "tiny-llama", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 5} | fields


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def error_of(response):
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def read_metrics(client):
    lines = [line.split() for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


# --- What is answered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_an_answer_is_that_of_the_prompts_alone(client, stream, n):
    given = {"temperature": 0.7, "ignore_eos": True, "stop": ["de", "k"], "seed": 9}
    params = SamplingParams(n=n, max_tokens=30, **given)
    prompts = ["abc", "cab"] if n == 1 else [[0, 1, 2], [2, 0, 1]]
    response = client.post(TEXT, json=text(prompt=prompts, n=n, max_tokens=30, stream=stream, **given))
    found = {index: ["", None] for index in range(2 * n)}
    for choice in [choice for body in (events(response) if stream else [response.json()])
                   for choice in body["choices"]]:
        one = found[choice["index"]]
        assert one[1] is None, "something came after the end"
        one[0], one[1] = one[0] + choice["text"], choice["finish_reason"]
    for index, (shown, reason) in found.items():
        _, whole, ended, _ = expected(("abc", "cab")[index // n], params, index % n)
        assert (shown, reason) == (whole, ended)


def test_logprobs_are_the_same_in_an_answer_and_in_the_parts_of_a_stream(client):
    params = SamplingParams(max_tokens=6, logprobs=2, **LONG)
    prompt = Letters().encode("abc")
    tokens = expected("abc", params)[0]
    _, found = logprobs_alone(Request("", prompt, params, max_length=64), tokens)
    whole = {"tokens": [LETTERS[token] for token in tokens],
             "token_logprobs": [float(one[token][0]) for token, one in zip(tokens, found, strict=True)],
             "top_logprobs": [{LETTERS[token]: float(logprob) for token, (logprob, _) in one.items()} for one in found],
             "text_offset": list(range(6))}
    body = text(logprobs=2, **LONG) | {"max_tokens": 6}
    (choice,) = client.post(TEXT, json=body).json()["choices"]
    assert choice["logprobs"] == whole
    parts = [each["choices"][0]["logprobs"] for each in events(client.post(TEXT, json=body | {"stream": True}))]
    assert {name: [each for part in parts if part for each in part[name]] for name in whole} == whole
    body = chat(logprobs=True, top_logprobs=2, **LONG)
    (choice,) = client.post(CHAT, json=body).json()["choices"]
    parts = [each["choices"][0]["logprobs"] for each in events(client.post(CHAT, json=body | {"stream": True}))]
    assert [each for part in parts if part for each in part["content"]] == choice["logprobs"]["content"]
    assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [2] * 5


@pytest.mark.parametrize("shape", [Shape("m"), ChatShape("m", top_logprobs=2)], ids=["text", "chat"])
def test_each_part_of_a_stream_has_the_logprobs_that_are_new(shape):
    llm = LLM(FakeRunner(30), Letters(), max_num_seqs=4)
    outputs = [output.outputs[0] for output in llm.stream("abc", SamplingParams(max_tokens=6, logprobs=2, **LONG))]
    choice = Choice(0, shape)
    parts = [delta["logprobs"] for one in outputs for delta in choice.deltas(one) if delta["logprobs"]]
    whole = shape.logprobs(outputs[-1], 0, 0)
    assert len(parts) == 6
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset") if "tokens" in whole else ("content",):
        assert [each for part in parts for each in part[name]] == whole[name] and len(whole[name]) == 6


def test_a_chat_has_a_role_and_usage_where_it_is_asked_for(client):
    body = chat(**LONG, stream=True, stream_options={"include_usage": True})
    first, *middle, last = events(client.post(CHAT, json=body))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""} and first["usage"] is None
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5 and last["usage"]["prompt_tokens"] == 4
    shown = "".join(each["choices"][0]["delta"].get("content", "") for each in middle)
    answer = client.post(CHAT, json=chat(**LONG))
    assert answer.json()["choices"][0]["message"] == {"role": "assistant", "content": shown, "refusal": None}
    assert answer.json()["usage"]["total_tokens"] == 9 and answer.headers["x-request-id"] == answer.json()["id"]
    assert shown == expected("abck", SamplingParams(max_tokens=5, **LONG))[1]
    assert all("usage" not in each for each in events(client.post(CHAT, json=chat(**LONG, stream=True))))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    developer = {"role": "developer", "content": ""}
    same = client.post(CHAT, json=chat(messages=[developer, {"role": "user", "content": parts}], **LONG))
    assert same.json()["choices"] == answer.json()["choices"]


def test_fields_that_ask_for_nothing_are_taken(client):
    nothing = {"user": "u", "logit_bias": {}, "store": False, "metadata": {"a": "b"}, "stop": None, "n": None}
    assert client.post(TEXT, json=text(echo=False, suffix="", best_of=1, **nothing)).status_code == 200
    assert client.post(CHAT, json=chat(tools=[], tool_choice="none", response_format={"type": "text"}, **nothing,
                                       parallel_tool_calls=True)).status_code == 200


def test_health_models_and_paths_that_are_not_there(client):
    assert client.get("/health").json() == {"status": "ok"} and client.get("/ready").json() == {"status": "ready"}
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list" and [one["id"] for one in listed["data"]] == ["tiny-llama", "minilm"]
    assert client.get("/v1/models/tiny-llama").json()["max_model_len"] == 64
    for response, status, code in ((client.get("/v1/models/gpt-5"), 404, "model_not_found"),
                                   (client.get("/v1/nothing"), 404, None), (client.get(TEXT), 405, None)):
        assert response.status_code == status and error_of(response)["code"] == code


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/tiny-llama",
                                  "/v1/models/gpt-5", "/nothing", TEXT])
def test_head_is_answered_as_get_without_a_body(client, path):
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code and head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":  # its numbers grow
        assert head.headers["content-length"] == get.headers["content-length"]
    assert client.get("/health").status_code == 200  # on the same connection


def test_head_of_a_stream_of_events_ends(server, client):
    response = client.head("/window/events")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    assert response.content == b"" and client.get("/health").status_code == 200
    until(lambda: server.app.state.window.watchers == 0)


@pytest.mark.parametrize("length", [3, 8, 20])
def test_what_a_stream_has_shown_stays(client, length):
    """The text becomes a stop string while it is shorter than the stop string."""
    whole = expected("abc", SamplingParams(max_tokens=40, **LONG))[1]
    for begin in (0, 2):
        stop = whole[begin : begin + length]
        body = text(max_tokens=40, stop=[stop, "never seen"], stream=True, **LONG)
        shown = "".join(each["choices"][0]["text"] for each in events(client.post(TEXT, json=body)))
        assert shown == whole[: whole.find(stop)]


# --- What is refused -------------------------------------------------------------------------------------------------

WRONG = [
    (TEXT, text(model="gpt-5"), 404, "model", "there is no model 'gpt-5' here"),
    (TEXT, {"prompt": "a"}, 400, "model", "model is missing"),
    (TEXT, {"model": "tiny-llama"}, 400, "prompt", "prompt is missing"),
    (TEXT, text(colour=1), 400, "colour", "colour is not a field that this server knows"),
    (TEXT, text(temperature="hot"), 400, "temperature", "temperature is 'hot'"),
    (TEXT, text(temperature=-1), 400, "temperature", "temperature is -1"),
    (TEXT, text(temperature=1e30), 400, "temperature", "temperature is 1e+30; it must be from 0 to 2"),
    (TEXT, text(temperature=2.01), 400, "temperature", "temperature is 2.01; it must be from 0 to 2"),
    (CHAT, chat(temperature=2.01), 400, "temperature", "temperature is 2.01; it must be from 0 to 2"),
    (TEXT, text(top_p=2), 400, "top_p", "top_p is 2.0; it must be more than 0 and at most 1"),
    (TEXT, text(min_p=-1), 400, "min_p", "min_p is -1.0; it must be from 0 to 1"),
    (TEXT, text(top_k=-2), 400, "top_k", "top_k is -2; it must be from -1 to"),
    (TEXT, text(top_k=2**31), 400, "top_k", "it must be from -1 to 2,147,483,647"),
    (TEXT, text(frequency_penalty=3), 400, "frequency_penalty", "it must be from -2 to 2"),
    (TEXT, text(presence_penalty=-3), 400, "presence_penalty", "it must be from -2 to 2"),
    (TEXT, text(repetition_penalty=1e-30), 400, "repetition_penalty", "it must be from 0.01 to 100"),
    (TEXT, text(seed=2**64), 400, "seed", "seed is 18446744073709551616"),
    (TEXT, text(n=0), 400, "n", "n is 0; it must be from 1 to 1,024"),
    (TEXT, text(n=5), 400, "n", "n is 5; at most 4 are allowed"),
    (TEXT, text(n=2, temperature=0), 400, "n", "n is 2; with temperature 0"),
    (TEXT, text(n=True), 400, "n", "n is True"),
    (TEXT, text(max_tokens=0), 400, "max_tokens", "max_tokens is 0; it must be 1 or more"),
    (TEXT, text(max_tokens=62), 400, "max_tokens", "the context of this model is 64 tokens; prompt has 3, and "
                                                   "max_tokens is 62"),
    (TEXT, text(max_tokens=10**40), 400, "max_tokens", "the context of this model is 64 tokens"),
    (TEXT, text(prompt="a" * 64), 400, "prompt", "prompt has 64"),
    (TEXT, text(prompt="a" * 1025), 400, "prompt", "prompt has 1,025 characters; at most 1,024 are read"),
    (TEXT, text(prompt=""), 400, "prompt", "prompt has no token"),
    (TEXT, text(prompt=[]), 400, "prompt", "prompt has no token"),
    (TEXT, text(prompt="xyz"), 400, None, "letters that are not from a to k"),
    (TEXT, text(prompt=[1, 11]), 400, "prompt", "prompt has the token 11; tokens of this model are from 0 to 10"),
    (TEXT, text(prompt=[-1]), 400, "prompt", "prompt has the token -1"),
    (TEXT, text(prompt=["a"] * 4), 400, "prompt", "prompt has 4 prompts; at most 3 are allowed"),
    (TEXT, text(prompt=["a", 1]), 400, "prompt[1]", "prompt[1] is 1"),
    (TEXT, text(stop=["a"] * 17), 400, "stop", "stop has 17 strings; at most 16 are allowed"),
    (TEXT, text(stop=[""]), 400, "stop", "stop is ['']"),
    (TEXT, text(stop_token_ids=[11]), 400, "stop_token_ids", "tokens of this model are from 0 to 10"),
    (TEXT, text(min_tokens=60, max_tokens=None), 400, "min_tokens", "min_tokens is 60, more than max_tokens"),
    (CHAT, chat(min_tokens=61, max_tokens=None), 400, "min_tokens", "min_tokens is 61; after a prompt of 4 tokens at "
                                                                    "most 60 fit"),
    (TEXT, text(logprobs=21), 400, "logprobs", "logprobs is 21; it must be from 0 to 20"),
    (TEXT, text(echo=True), 400, "echo", "echo is True; this server cannot do that"),
    (TEXT, text(best_of=2), 400, "best_of", "this server cannot do that"),
    (TEXT, text(suffix="x"), 400, "suffix", "this server cannot do that"),
    (TEXT, text(logit_bias={"1": 101}), 400, "logit_bias", "has 101.0 for the token 1; it must be from -100 to 100"),
    (TEXT, text(logit_bias={"a": 1}), 400, "logit_bias", "a token id must be a whole number"),
    (TEXT, text(logit_bias={"99": 1}), 400, "logit_bias", "has the token 99; tokens of this model"),
    (TEXT, text(allowed_token_ids=[]), 400, "allowed_token_ids", "is empty"),
    (TEXT, text(bad_words=["", "a"]), 400, "bad_words", "none of them may be empty"),
    (TEXT, text(stream_options={"include_usage": True}), 400, "stream_options", "stream is not true"),
    (TEXT, text(stream_options={"other": True}, stream=True), 400, "stream_options.other", "not a field"),
    (TEXT, text(deadline_s=0), 400, "deadline_s", "deadline_s is 0"),
    (CHAT, chat(messages=[]), 400, "messages", "messages"),
    (CHAT, chat(messages="hi"), 400, "messages", "messages is 'hi'"),
    (CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content", "messages[0].content is missing"),
    (CHAT, chat(messages=[{"role": "robot", "content": "a"}]), 400, "messages", "the chat template fails: roles"),
    (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]), 400, None, "type"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools", "this server cannot do that"),
    (CHAT, chat(response_format={"type": "json_object"}), 400, "response_format", "this server cannot do that"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs", "logprobs is not true"),
    (CHAT, chat(top_logprobs=21, logprobs=True), 400, "top_logprobs", "it must be from 0 to 20"),
    (CHAT, chat(max_completion_tokens=6), 400, "max_tokens", "they mean the same"),
    ("/v1/embeddings", {"model": "tiny-llama", "input": "a"}, 404, "model", "there is minilm"),
    ("/v1/embeddings", {"model": "minilm", "input": []}, 400, "input", "input has 0 texts"),
    ("/v1/embeddings", {"model": "minilm", "input": ["a", ""]}, 400, "input[1]", "input[1] is an empty text"),
    ("/v1/embeddings", {"model": "minilm", "input": [1, 2]}, 400, None, "input"),
    ("/v1/embeddings", {"model": "minilm", "input": "a", "dimensions": 7}, 400, "dimensions", "have 4"),
    ("/v1/embeddings", {"model": "minilm", "input": "a", "encoding_format": "hex"}, 400, "encoding_format", "hex"),
]


@pytest.mark.sweep(every=True)
def test_what_is_wrong_is_named(server, client):
    before = server.thread.stats
    for path, body, status, param, words in WRONG:
        response = client.post(path, json=body)
        error = error_of(response)
        assert response.status_code == status and words in error["message"], (body, error)
        assert error["type"] == "invalid_request_error" and (param is None or error["param"] == param), (body, error)
        assert "/a/path" not in error["message"]
    for raw in (b"", b"{", b"[1]", b"null", b'"' + b"[" * 3000, b"\xff\xfe", b'{"model": "\\ud800"}', b"[" * 3000,
                b'{"model": "tiny-llama", "prompt": "a", "temperature": NaN}'):
        response = client.post(TEXT, content=raw)
        assert response.status_code == 400 and error_of(response)["type"] == "invalid_request_error", raw
    assert server.thread.stats == before and server.thread.unfinished == 0  # none of it came to the engine


def test_what_is_too_large_is_refused_however_it_is_sent(server, client):
    assert error_of(client.post(TEXT, content=b"x" * 4001))["code"] == "body_too_large"
    assert client.post(TEXT, content=(b"x" * 500 for _ in range(20))).status_code == 413  # chunked, without a length
    assert client.post(TEXT, content=b" " * 3000 + json.dumps(text()).encode()).status_code == 200
    response = client.get("/v1/models", headers={"x-long": "y" * 17_000})
    assert response.status_code == 431 and error_of(response)["code"] == "headers_too_large"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"y" * 40_000)
        answer = b""
        while piece := raw.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 431 ") and b'"code": "headers_too_large"' in answer
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"this is not HTTP\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")


@pytest.mark.sweep(every=True)
def test_a_connection_too_many_is_refused_and_a_silent_one_closed():
    with served(fake_engine(), Settings(max_connections=3, body_s=1.0)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        connect = functools.partial(socket.create_connection, (host, int(port)), timeout=10)
        with httpx.Client(base_url=server.url, timeout=20) as client, connect() as silent, connect():
            assert client.get("/health").status_code == 200
            late = httpx.get(f"{server.url}/health", timeout=20)
            assert late.status_code == 503 and error_of(late)["code"] == "too_many_connections"
            assert late.headers["retry-after"] == "1" and "4 connections are open" in error_of(late)["message"]
            assert silent.recv(1) == b""  # closed
            until(lambda: httpx.get(f"{server.url}/health", timeout=20).status_code == 200)
            assert client.post(TEXT, json=text()).status_code == 200


def test_pages_of_other_sites_and_other_names_of_this_machine_are_refused(server, client):
    for headers, code in (({"origin": "http://evil.example"}, "wrong_origin"), ({"origin": "null"}, "wrong_origin"),
                          ({"host": "evil.example"}, "wrong_host")):
        response = client.post(TEXT, json=text(), headers=headers)
        assert response.status_code == 403 and error_of(response)["code"] == code
    assert client.post(TEXT, json=text(), headers={"origin": server.url}).status_code == 200


@pytest.mark.sweep(every=True)
def test_a_key_is_asked_for_on_every_path_but_those_without_data():
    with served(fake_engine(), Settings(api_key="s3cret", allow_origins=("http://page.example",))) as found, \
            httpx.Client(base_url=found.url) as client:
        for key in (None, "wrong", "s3cre", "s3cret2"):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                response = client.get(path, headers=headers)
                assert response.status_code == 401 and error_of(response)["code"] == "invalid_api_key"
            assert client.post(TEXT, json=text(), headers=headers).status_code == 401
        right = {"authorization": "bearer s3cret"}
        assert client.post(TEXT, json=text(), headers=right).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/health").status_code == client.get("/ready").status_code == 200
        allowed = client.options(TEXT, headers={"origin": "http://page.example", "access-control-request-method":
                                                "POST", "access-control-request-headers": "authorization"})
        assert allowed.headers["access-control-allow-origin"] == "http://page.example"
        page = client.post(TEXT, json=text(), headers={**right, "origin": "http://page.example"})
        assert page.status_code == 200 and page.headers["access-control-allow-origin"] == "http://page.example"


@pytest.mark.parametrize("given", [{"max_n": 0}, {"deadline_s": float("inf")}, {"port": 70_000}, {"api_key": ""},
                                   {"api_key": "é"}, {"api_key": " a"}, {"max_num_seqs": -1}])
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(ValueError, match=next(iter(given)).replace("api_key", "the API key")):
        Settings(**given)


def test_a_model_without_a_template_answers_no_chat():
    class Plain(Chatting):
        template = None

    with served(fake_engine(tokenizer=Plain())) as found:
        response = httpx.post(found.url + CHAT, json=chat())
        assert response.status_code == 400 and error_of(response)["code"] == "no_chat_template"
        assert httpx.post(found.url + TEXT, json=text()).status_code == 200
        response = httpx.post(found.url + "/v1/embeddings", json={"model": "minilm", "input": "a"})
        assert response.status_code == 404 and "labkit weights minilm" in error_of(response)["message"]


# --- Who waits, goes away, or comes too late -------------------------------------------------------------------------


def test_too_many_that_wait_are_asked_to_come_again(server, client):
    async def ask():
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as many:
            tasks = [asyncio.create_task(many.post(TEXT, json=text())) for _ in range(8)]
            await asyncio.to_thread(until, lambda: server.thread.waiting == 8)
            refused = await many.post(TEXT, json=text())
            whole = await many.post(TEXT, json=text(prompt=["a", "b"]))  # all of its prompts or none
            server.thread.resume()
            return refused, whole, [await task for task in tasks]

    server.thread.pause()
    refused, whole, answered = asyncio.run(ask())
    assert refused.status_code == whole.status_code == 429 and refused.headers["retry-after"] == "1"
    assert error_of(refused)["type"] == "rate_limit_error"
    assert [response.status_code for response in answered] == [200] * 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", ["running", "waiting"])
def test_a_client_that_goes_away_frees_its_pages_within_a_step(server, client, stream, state):
    thread, gone = server.thread, read_metrics(client)["labkit_disconnects_total"]
    thread.pause() if state == "waiting" else setattr(thread, "delay_s", 0.1)
    body = text(max_tokens=60, n=3, stream=stream, ignore_eos=True, temperature=1)
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    sent = json.dumps(body).encode()
    raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(sent) + sent)
    if state == "running":
        until(lambda: thread.stats.free_pages < PAGES - 2)
        if stream:
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
    else:
        until(lambda: thread.unfinished == 1)
    steps = thread.steps
    raw.close()
    until(lambda: thread.unfinished == 0)
    thread.ask(lambda there: None).result(5)
    assert thread.stats.free_pages == PAGES and thread.steps <= steps + 2
    until(lambda: read_metrics(client)["labkit_disconnects_total"] == gone + 1)


def test_a_deadline_is_an_error_with_a_status_and_in_a_stream_an_event(server, client):
    server.thread.delay_s = 0.05
    late = text(max_tokens=60, deadline_s=0.2, **LONG)
    response = client.post(TEXT, json=late)
    assert response.status_code == 504 and error_of(response)["code"] == "deadline_exceeded"
    assert response.headers["x-should-retry"] == "false"
    response = client.post(TEXT, json=late | {"stream": True})
    *shown, last = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]
    assert response.status_code == 200 and shown and last["error"]["code"] == "deadline_exceeded"


def test_a_body_that_does_not_arrive_is_not_waited_for():
    with served(fake_engine(), Settings(body_s=0.1)) as found:
        host, port = found.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
            assert raw.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_fault_is_answered_with_500_and_the_server_goes_on():
    runner = Faulty(PAGES, 4, 4, 64)
    runner.poison, runner.at_tokens = 10, True
    with served(fake_engine(runner)) as found, httpx.Client(base_url=found.url) as client:
        response = client.post(TEXT, json=text(prompt="kab"))
        assert response.status_code == 500 and error_of(response)["code"] == "step_failed"
        assert "on fire" not in response.text
        assert client.post(TEXT, json=text(prompt="kab", stream=True)).status_code == 500  # before the first token
        found.thread.delay_s = 0.05
        with client.stream("POST", TEXT, json=text(max_tokens=50, stream=True, **LONG)) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: {")
            assert client.post(TEXT, json=text(prompt="kab")).status_code == 500
            assert json.loads([line for line in lines if line][-1][6:])["error"]["code"] == "step_failed"
        found.thread.delay_s = 0
        for _ in range(2):
            assert client.get("/health").status_code == 200
            assert client.post(TEXT, json=text(prompt="kab")).status_code == 500
        assert "the engine's last 3 steps all failed" in error_of(client.get("/health"))["message"]
        assert client.post(TEXT, json=text()).status_code == 503
        found.thread.ask(lambda there: None).result(5)
        assert read_metrics(client)["labkit_step_faults_total"] == 5


def test_draining_is_503_and_what_runs_ends(server):
    with served(fake_engine()) as found, httpx.Client(base_url=found.url) as client:
        found.thread.delay_s = 0.03
        with client.stream("POST", TEXT, json=text(max_tokens=20, stream=True, **LONG)) as stream:
            lines = stream.iter_lines()
            next(lines)
            found.service.drain()
            for path in ("/v1/models", "/ready"):
                response = client.get(path)
                assert response.status_code == 503 and error_of(response)["code"] == "draining"
            assert client.post(TEXT, json=text()).status_code == 503 and client.get("/health").status_code == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_a_client_that_reads_nothing_is_given_up():
    async def ask():
        closed, written = [], []

        async def events():
            try:
                while True:
                    yield b"data: 1\n\n"
            finally:
                closed.append(True)

        async def send(message):
            written.append(message)
            if len(written) > 3:
                await asyncio.sleep(60)

        async def receive():
            await asyncio.sleep(60)

        began = time.monotonic()
        with pytest.raises(ClientGone):
            await EventStream(b"data: 0\n\n", events(), 0.05, {})({}, receive, send)
        assert closed and time.monotonic() - began < 5 and b"".join(
            one.get("body", b"") for one in written[:3]) == b"data: 0\n\ndata: 1\n\n"

    asyncio.run(ask())


# --- What is counted, and what is not written down -------------------------------------------------------------------


def test_metrics_count_what_was_done(server, client):
    before = read_metrics(client)
    client.post(TEXT, json=text(n=2, temperature=1, ignore_eos=True))
    client.post(TEXT, json=text(colour=1))
    client.get("/v1/secret-words")
    after = read_metrics(client)
    new = {name: value - before.get(name, 0) for name, value in after.items()}
    assert new["labkit_prompt_tokens_total"] == 3 and new["labkit_generated_tokens_total"] == 10
    assert new["labkit_time_to_first_token_seconds_count"] == new["labkit_request_seconds_count"] == 1
    assert new['labkit_requests_total{path="/v1/completions",status="200"}'] == 1
    assert new['labkit_requests_total{path="/v1/completions",status="400"}'] == 1
    assert after["labkit_kv_pages"] == PAGES and after["labkit_kv_pages_held"] == after["labkit_waiting"] == 0
    assert after["labkit_event_loop_lag_seconds_count"] > 0 and "labkit_event_loop_lag_p99_seconds" in after
    assert "secret" not in client.get("/metrics").text


def test_no_text_of_a_request_is_logged(server, client, monkeypatch):
    lines = []

    class Listening(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    handler, failing = Listening(), {"on": True}
    loggers = [logging.getLogger(name) for name in ("labkit", "labkit.serve", "uvicorn", "uvicorn.error")]
    encode = Chatting.encode

    def broken(self, prompt, marks=True):
        if failing["on"]:
            raise KeyError(f"a fault that quotes {prompt}")
        return encode(self, prompt, marks)

    monkeypatch.setattr(Chatting, "encode", broken)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        response = client.post(TEXT, json=text(prompt="abcabcabc"))
        assert response.status_code == 500 and "abcabcabc" not in response.text
        failing["on"] = False
        client.post(TEXT, json=text(prompt="abcabcabc"))
        client.post(TEXT, json=text(prompt="abcabcabc", colour=1))
        client.get("/abcabcabc?prompt=abcabcabc", headers={"x": "abcabcabc"})
        until(lambda: len(lines) >= 5)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert any("KeyError at " in line for line in lines) and any("/v1/completions 200" in line for line in lines)
    assert not any("abcabcabc" in line for line in lines)


def test_an_error_of_the_server_keeps_its_words():
    found = of_exception(RuntimeError("the words of a prompt"))
    assert found.status == 500 and "prompt" not in found.message


def test_the_fake_model_is_what_it_should_be():
    """Else the tests above would compare nothing."""
    (output,) = LLM(FakeRunner(30), Letters(), max_num_seqs=4).generate("abc", SamplingParams(max_tokens=5, **LONG))
    assert output.outputs[0].text == expected("abc", SamplingParams(max_tokens=5, **LONG))[1] != ""
