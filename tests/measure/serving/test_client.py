"""Events out of pieces, and what the events of an answer come to: moments are given, so every figure is exact."""

import json

import pytest

from labkit.measure.serving.client import DETAIL, Answer, Events, message_of


def event(found) -> bytes:
    return json.dumps(found).encode()


def text(of: str, reason=None) -> bytes:
    return event({"choices": [{"index": 0, "text": of, "finish_reason": reason}]})


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_events_are_the_same_however_they_are_cut(size, end):
    data = end.join([b": a comment", b"data: {\"a\": 1}", b"event: x\ndata:{\"b\": 2}", b"data: [DONE]", b""])
    events = Events()
    found = [one for at in range(0, len(data), size) for one in events.feed(data[at : at + size])]
    assert found == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def test_gaps_are_between_texts_and_tokens_are_those_of_usage():
    answer = Answer(3, 0.5, 10.0)
    moments = ((text(" w1 w2"), 10.25), (text(" w3"), 10.5), (text(""), 10.6), (text(" w4 w5"), 11.0),
               (text("", "length"), 11.01),
               (event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}), 11.02))
    assert [answer.read(data, now) for data, now in moments] == [1, 1, 0, 1, 0, 0]
    assert not answer.ended
    assert answer.read(b"[DONE]", 11.03) == 0 and answer.ended
    assert answer.record(11.5) == {"number": 3, "at": 0.5, "sent": 10.0, "took": 1.5, "first": 0.25,
                                   "gaps": [0.25, 0.5], "prompt_tokens": 7, "output_tokens": 5, "error": None,
                                   "detail": None}


def test_usage_in_every_chunk_counts_once():
    answer = Answer(0, None, 0.0)
    for tokens in (1, 2, 3):
        answer.read(event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 4, "completion_tokens": tokens}}),
                    0.1 * tokens)
    assert answer.record(1.0)["output_tokens"] == 3


def test_an_error_in_the_stream_is_kept_and_the_first_one_counts():
    answer = Answer(0, None, 0.0)
    answer.read(event({"error": {"message": "a step failed", "type": "server_error"}}), 0.1)
    answer.fail("cut short", "later")
    record = answer.record(1.0)
    assert (record["error"], record["detail"]) == ("error in the stream", "a step failed")
    assert record["first"] is None and record["output_tokens"] is None


@pytest.mark.parametrize("given, message", [
    ('{"error": {"message": "too long"}}', "too long"), ({"message": "no"}, "no"), ("<html>", "<html>"),
    ('{"detail": 4}', '{"detail": 4}'), ('["a"]', '["a"]'), (None, "None"), ("x" * 999, "x" * DETAIL)])
def test_the_message_of_an_error(given, message):
    assert message_of(given) == message
