"""LLM and its engine on the fake model: whoever asks, in whatever company, gets what the request alone would give."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest

from labkit._common.errors import UserError
from labkit.engine import LLM, SamplingParams
from labkit.engine.outputs import with_logprobs
from labkit.engine.sequence import Request
from labkit.kernels.logprobs import COLUMNS, LOGPROB, RANK, TOKENS, TOP
from tests.engine.fake_model import END, VOCABULARY, FakeRunner, alone, as_pairs, logprobs_alone
from tests.engine.test_detokenizer import plain

LETTERS = "abcdefghijk"
LONG = {"ignore_eos": True, "temperature": 0.0}


class Letters:
    """A tokenizer: one letter for each token."""

    stop = (END,)

    def encode(self, text):
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids, marks=False):
        return "".join(LETTERS[token] for token in ids if marks or token != END)


def engine(num_pages=30, tokenizer=None, **options):
    seats = options.setdefault("max_num_seqs", 4)
    return LLM(FakeRunner(num_pages, 4, seats, 64), tokenizer or Letters(), **{"max_num_batched_tokens": 16} | options)


def expected(prompt: str, params: SamplingParams, index: int = 0):
    """(tokens, text, finish_reason, stop_reason) of the request alone."""
    request = Request("", Letters().encode(prompt), params, seed=params.seed or 0, stop_ids=(END,), max_length=64)
    tokens = alone(request, index)
    reason, stop_reason = "length", None
    if tokens[-1] in request.ending and len(tokens) > params.min_tokens:
        reason, stop_reason = "stop", tokens[-1] if tokens[-1] in params.stop_token_ids else None
    shown = tokens[:-1] if reason == "stop" and not params.include_stop_str_in_output else tokens
    # Stop strings end the text after the first token with which one is complete.
    for count in range(params.min_tokens + 1, len(shown) + 1):
        counted = Letters().decode(shown[params.min_tokens : count])
        text, stop = plain(counted, params.stop, params.include_stop_str_in_output)
        if stop is not None:
            return tokens[:count], Letters().decode(shown[: params.min_tokens]) + text, "stop", stop
    return tokens, Letters().decode(shown), reason, stop_reason


def seen(output):
    return output.token_ids, output.text, output.finish_reason, output.stop_reason


def requests(count: int, seed: int):
    rng = random.Random(seed)
    for _ in range(count):
        prompt = "ghijkghijkghijk"[: rng.randint(0, 14)] + "".join(rng.choices(LETTERS, k=rng.randint(1, 5)))
        greedy, least = rng.random() < 0.5, rng.choice([0, 0, 3])
        yield prompt, SamplingParams(
            temperature=0.0 if greedy else 0.7, seed=rng.randint(0, 2**40), max_tokens=rng.randint(3, 25),
            n=1 if greedy else rng.randint(1, 3), min_tokens=least, ignore_eos=rng.random() < 0.7,
            stop=rng.choice([None, None, "c", ["de", "hi", "kk"], ["abc", "g"]]),
            stop_token_ids=rng.choice([None, [3]]), include_stop_str_in_output=rng.random() < 0.3)


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"enable_prefix_caching": False}, {"num_pages": 17},
                                     {"max_num_seqs": 1, "max_num_batched_tokens": 3}],
                         ids=lambda options: " ".join(options) or "default")
def test_generate_gives_each_prompt_what_it_gets_alone(options):
    llm = engine(**options)
    for seed in range(3):
        prompts, params = zip(*requests(25, seed), strict=True)
        outputs = llm.generate(list(prompts), list(params))
        assert [output.prompt for output in outputs] == list(prompts)
        for output, prompt, each in zip(outputs, prompts, params, strict=True):
            assert output.finished and output.prompt_token_ids == Letters().encode(prompt)
            assert [one.index for one in output.outputs] == list(range(each.n))
            assert [seen(one) for one in output.outputs] == [expected(prompt, each, at) for at in range(each.n)]
        assert llm.stats().free_pages == llm.stats().pages
        assert not llm.engine._requests and not llm.engine._outputs and not llm._new_outputs


def test_a_stream_shows_every_token_and_no_part_of_a_stop_string():
    llm, shown = engine(), {}
    prompts, params = zip(*requests(12, 7), strict=True)
    for output in llm.stream(list(prompts), list(params)):
        for one in output.outputs:
            before = shown.get((output.request_id, one.index))
            if before:
                assert one.text.startswith(before.text) and one.token_ids[: len(before.token_ids)] == before.token_ids
                assert len(one.token_ids) <= len(before.token_ids) + 1
            shown[output.request_id, one.index] = one
    for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        for index in range(each.n):
            assert seen(shown[str(number), index]) == expected(prompt, each, index)


def test_the_beginning_of_a_stop_string_is_held_back():
    whole = expected("abc", SamplingParams(max_tokens=20, **LONG))[1]
    for at in range(3, 15):
        stop = whole[at : at + 3]
        texts = [output.outputs[0].text for output in engine().stream("abc", SamplingParams(
            max_tokens=20, stop=stop, **LONG))]
        assert texts[-1] == whole[: whole.find(stop)]
        assert all(texts[-1].startswith(text) for text in texts)


def test_what_prompts_and_parameters_may_be():
    llm, params = engine(), SamplingParams(temperature=0, max_tokens=4)
    (text,), (ids,), (named,) = (llm.generate(prompt, params) for prompt in ("abc", [0, 1, 2], {"prompt": "abc"}))
    (listed,), two = llm.generate([{"prompt_token_ids": [0, 1, 2]}], [params]), llm.generate([[0, 1, 2], "abc"], params)
    assert {tuple(output.outputs[0].token_ids) for output in (text, ids, named, listed, *two)} == {
        tuple(expected("abc", params)[0])}
    assert (text.prompt, ids.prompt, ids.prompt_token_ids) == ("abc", None, [0, 1, 2])
    assert llm.generate([], params) == [] and len(llm.generate("abc")[0].outputs[0].token_ids) <= 16
    with pytest.raises(ValueError, match="sampling_params has 1 entries for 2 prompts"):
        llm.generate(["abc", "abd"], [params])


class Chatting(Letters):
    """Its template: the contents one after the other, and a k where the answer begins."""

    def chat(self, messages):
        if not all(isinstance(message, dict) for message in messages):
            raise UserError("this is no conversation")
        return self.encode("".join(message["content"] for message in messages) + "k")


def test_a_chat_is_what_generate_makes_of_the_templates_prompt():
    llm, params = engine(tokenizer=Chatting()), SamplingParams(temperature=0, max_tokens=6)
    first = [{"role": "user", "content": "abc"}]
    second = [*first, {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}]
    (one,), several = llm.chat(first, params), llm.chat([first, second], [params] * 2)
    assert [(output.prompt, output.prompt_token_ids) for output in several] == [
        ("abck", Letters().encode("abck")), ("abcdek", Letters().encode("abcdek"))]
    assert [seen(output.outputs[0]) for output in several] == [expected(output.prompt, params) for output in several]
    assert seen(one.outputs[0]) == seen(several[0].outputs[0]) and llm.chat([], params) == []
    last = list(llm.stream(llm.prompt_of(second), params))[-1]
    assert seen(last.outputs[0]) == seen(several[1].outputs[0])


def test_what_is_no_conversation_leaves_no_request(capsys):
    llm = engine(tokenizer=Chatting())
    first = [{"role": "user", "content": "abc"}]
    for messages in (["abc"], [first, ["abc"]], [*first, "abc"]):
        with pytest.raises(UserError, match="no conversation"):
            llm.chat(messages)
    with pytest.raises(ValueError, match="without a tokenizer there is no chat template"):
        LLM(FakeRunner(30)).chat(first)
    assert not llm.engine._requests
    llm.chat([first, first], SamplingParams(max_tokens=2), use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


def test_without_a_tokenizer_there_are_tokens_but_no_text():
    llm = LLM(FakeRunner(30), max_num_seqs=4)
    (output,) = llm.generate([[3, 4]], SamplingParams(max_tokens=5, ignore_eos=True, temperature=0))
    assert len(output.outputs[0].token_ids) == 5 and output.outputs[0].text == ""
    with pytest.raises(ValueError, match="without a tokenizer it must be token ids"):
        llm.generate("abc")
    with pytest.raises(ValueError, match="without a tokenizer there is no text to find it in"):
        llm.generate([[3]], SamplingParams(stop="c"))


def test_a_prompt_that_is_refused_leaves_none_of_the_others_behind():
    llm = engine(num_pages=4)
    with pytest.raises(ValueError, match="need 5 pages"):
        llm.generate(["abc", "abcdefgh"], SamplingParams(max_tokens=12))
    with pytest.raises(ValueError, match="the prompt has 64 tokens; at most 63 fit"):
        llm.generate(["abc", "a" * 64], SamplingParams(max_tokens=3))
    llm.abort("0")  # there is none of this name
    assert not llm.engine._requests and not llm._new_outputs
    assert len(llm.generate(["abc"], SamplingParams(max_tokens=3, **LONG))[0].outputs[0].token_ids) == 3


NO_PROMPT = [
    ([[-3]], ValueError, "prompt has the token -3; tokens of this model are from 0 to 10"),
    ([[10**12]], ValueError, "prompt has the token 1000000000000; tokens of this model are from 0 to 10"),
    ([[VOCABULARY]], ValueError, "prompt has the token 11; tokens of this model are from 0 to 10"),
    ([0, VOCABULARY], ValueError, "prompt has the token 11"),
    ([{"prompt_token_ids": [2, -1]}], ValueError, "prompt has the token -1"),
    (np.array([[1, 2], [3, 11]]), ValueError, "prompt has the token 11"),
    ([[1.5, 2]], TypeError, "prompt has 1.5; a token id must be a whole number"),
    ([[2, True]], TypeError, "prompt has True; a token id must be a whole number"),
    ([[2, None]], TypeError, "prompt has None"), ([[[1, 2]]], TypeError, r"prompt has \[1, 2\]"),
    ([["abc"]], TypeError, "prompt has 'abc'"), ([np.array([1.0, 2.0])], TypeError, "prompt has 1.0"),
    ([np.array([[1, 2]])], TypeError, "it must be a list of token ids"),
    ([None], TypeError, "prompt is None; it must be a text, a list of token ids, "),
    ([1.5, 2], TypeError, "prompt is 1.5; it must be a text"),
    ([b"abc"], TypeError, "prompt is b'abc'"), ([True], TypeError, "prompt has True"),
    ({"text": "x"}, ValueError, "its keys must be prompt, prompt_token_ids or both"),
    ({"prompt": "a", "text": "x"}, ValueError, "its keys must be"), ([{}], ValueError, "its keys must be"),
    ({"prompt": [1]}, TypeError, "the value of its key prompt must be a text"),
    ({"prompt": None}, TypeError, "prompt is None"),
    ({"prompt_token_ids": None}, TypeError, "prompt is None; it must be a list of token ids"),
    ({"prompt_token_ids": "abc"}, TypeError, "prompt is 'abc'; it must be a list of token ids"),
    (None, TypeError, "prompts is None; it must be a prompt or a list of prompts"), (5, TypeError, "prompts is 5"),
    (b"abc", TypeError, "prompts is b'abc'"), (memoryview(b"abc"), TypeError, "prompts is <memory"),
    ([memoryview(b"abc")], TypeError, "prompt is <memory"),
    ({"prompt_token_ids": memoryview(b"abc")}, TypeError, "prompt is <memory"),
    ([""], ValueError, "the prompt has no token"), ([[]], ValueError, "the prompt has no token"),
    (["a" * 64], ValueError, "at most 63 fit"),
]  # fmt: skip
NO_PARAMS = [
    (SamplingParams(stop_token_ids=[VOCABULARY], min_tokens=2), ValueError,
     "stop_token_ids has the token 11; tokens of this model are from 0 to 10"),
    (SamplingParams(stop_token_ids=range(VOCABULARY), min_tokens=2), ValueError, "all tokens of the model end the"),
    (SamplingParams(stop_token_ids=[token for token in range(VOCABULARY) if token != END], min_tokens=2), ValueError,
     "all tokens of the model end the output"),
    (SamplingParams(max_tokens=None, min_tokens=62), ValueError, "min_tokens is 62; after a prompt of 3 tokens at "
                                                                 "most 61 fit"),
    ({"temperature": 1}, TypeError, r"sampling_params is \{'temperature': 1\}; it must be"),
    ([{"temperature": 1}], TypeError, r"sampling_params is \{'temperature': 1\}; it must be a SamplingParams"),
    ([None], TypeError, "sampling_params is None"), (5, TypeError, "sampling_params is 5"),
]  # fmt: skip
REFUSED = [*((prompt, None, *error) for prompt, *error in NO_PROMPT), *(("abc", *rest) for rest in NO_PARAMS)]


@pytest.mark.parametrize("alone", [True, False])
def test_a_bad_request_ends_alone(alone):
    """The others run on as if it had never been there; alone: none of the others comes with it."""
    llm, params = engine(), SamplingParams(max_tokens=50, **LONG)
    running = llm.stream(["kab", "cab"], params)
    last = {output.request_id: output for output in [next(running) for _ in range(4)]}
    before, pages, requests = llm.stats(), llm.engine.blocks.num_free, list(llm.engine._requests)
    for prompts, each, kind, message in REFUSED:
        if not alone:
            if not isinstance(prompts, list | str) or isinstance(each, list | dict | int):
                continue
            many = prompts if isinstance(prompts, list) and not isinstance(prompts[0], int) else [prompts]
            prompts = ["abc", *many, "abc"]
        with pytest.raises(kind, match=message):
            llm.generate(prompts, each)
        assert list(llm.engine._requests) == requests == list(llm._new_outputs) and not llm.engine._aborted
        assert llm.stats() == before and llm.engine.blocks.num_free == pages
    last |= {output.request_id: output for output in running}
    assert [seen(last[number].outputs[0]) for number in "01"] == [expected(each, params) for each in ("kab", "cab")]
    assert llm.stats().steps == 50  # as many as without the others' errors
    assert seen(llm.generate("abc", params)[0].outputs[0]) == expected("abc", params)


def test_an_id_that_no_tokenizer_guards_is_refused_too():
    llm, params = LLM(FakeRunner(30), max_num_seqs=4), SamplingParams(max_tokens=5, **LONG)
    for prompts, kind, message in NO_PROMPT:
        if message != "the prompt has no token" and not (isinstance(prompts, list) and isinstance(prompts[0], str)):
            with pytest.raises(kind, match=message):
                llm.generate(prompts, params)
    assert not llm.engine._requests and len(llm.generate([[3]], params)[0].outputs[0].token_ids) == 5


def test_integers_of_numpy_are_token_ids():
    llm, params = engine(), SamplingParams(max_tokens=4, **LONG)
    arrays = [np.array([0, 1, 2]), np.array([0, 1, 2], np.uint8), [np.int64(0), 1, np.int32(2)], (0, 1, 2), range(3),
              {"prompt_token_ids": np.array([0, 1, 2])}]
    outputs = [llm.generate(each, params) for each in arrays]
    outputs += [llm.generate([each], params) for each in arrays] + [llm.generate(np.array([[0, 1, 2]]), params)]
    for (output,) in outputs:
        assert output.prompt_token_ids == [0, 1, 2] and set(map(type, output.prompt_token_ids)) == {int}
        assert seen(output.outputs[0]) == expected("abc", params)
    assert len(llm.generate(np.array([[0, 1], [2, 3]]), params)) == 2


def test_a_request_that_cannot_be_entered_is_not_registered(monkeypatch):
    llm, params = engine(), SamplingParams(max_tokens=4, **LONG)
    with monkeypatch.context() as broken, pytest.raises(OverflowError):
        broken.setattr(llm.engine.tokenizer, "decode", lambda ids, marks: (300).to_bytes(1))
        llm.generate("abc", params)
    assert not llm.engine._requests and not llm.engine.scheduler.has_unfinished()
    assert seen(llm.generate("abc", params)[0].outputs[0]) == expected("abc", params)


def test_a_name_that_is_taken_already_harms_no_one():
    llm, params = engine(), SamplingParams(max_tokens=20, **LONG)
    mine = llm.engine.add_request("1", "cab", params)
    with pytest.raises(ValueError, match="request_id is '1', and the request of this name has not ended yet"):
        llm.generate(["abc", "kab"], params)
    assert llm.engine._requests == {"1": mine}
    assert seen(llm.generate("kab", params)[0].outputs[0]) == expected("kab", params) and mine.finished
    assert mine.sequences[0].output == expected("cab", params)[0]


def test_top_k_of_minus_one_is_all_tokens():
    for top_k in (-1, 0, 5):
        params = SamplingParams(max_tokens=20, top_k=top_k, seed=4, ignore_eos=True)
        assert seen(engine().generate("abc", params)[0].outputs[0]) == expected("abc", params)
    everything, all_ = (SamplingParams(max_tokens=20, top_k=top_k, seed=4) for top_k in (-1, 0))
    assert expected("abc", everything) == expected("abc", all_)


def test_the_context_ends_what_max_tokens_does_not():
    (output,) = engine().generate("abc", SamplingParams(max_tokens=None, **LONG))
    assert len(output.outputs[0].token_ids) == 64 - 3 and output.outputs[0].finish_reason == "length"
    (output,) = engine().generate("abc", SamplingParams(max_tokens=1000, **LONG))
    assert len(output.outputs[0].token_ids) == 64 - 3


def test_a_request_is_aborted_in_the_middle_of_a_stream():
    llm, params = engine(), SamplingParams(max_tokens=20, **LONG)
    last = {}
    for output in llm.stream(["abc", "cab"], params):
        last[output.request_id] = output
        if output.request_id == "0" and len(output.outputs[0].token_ids) == 5:
            llm.abort("0")
    assert last["0"].finished and last["0"].outputs[0].finish_reason == "abort"
    assert last["0"].outputs[0].token_ids == expected("abc", params)[0][:5]
    assert seen(last["1"].outputs[0]) == expected("cab", params)
    assert llm.stats().free_pages == 30 and llm.stats().discarded == 1


def test_closing_a_stream_aborts_its_requests_and_no_others():
    llm, params = engine(), SamplingParams(max_tokens=20, **LONG)
    kept, closed = llm.stream("abc", params), llm.stream(["cab", "bca"], params)
    next(kept), next(closed), next(closed)
    closed.close()
    assert list(llm.engine._requests) == ["0"]
    assert seen(list(kept)[-1].outputs[0]) == expected("abc", params)
    assert not llm.engine.has_unfinished_requests() or llm.engine.step() and not llm.engine.has_unfinished_requests()


def test_streams_and_generate_beside_each_other_lose_nothing():
    llm, params = engine(), SamplingParams(max_tokens=20, **LONG)
    one, other = llm.stream("abc", params), llm.stream(["cab", "bca"], params)
    last = {}
    for _ in range(4):
        for stream in (one, other):
            output = next(stream)
            last[output.request_id] = output
    assert seen(llm.generate("kkk", params)[0].outputs[0]) == expected("kkk", params)
    for stream in (other, one):
        last |= {output.request_id: output for output in stream}
    assert [seen(last[number].outputs[0]) for number in ("0", "1", "2")] == [
        expected(prompt, params) for prompt in ("abc", "cab", "bca")]


@pytest.mark.parametrize("where", ["launch", "tokens"])
def test_after_a_failure_or_ctrl_c_the_engine_begins_anew(where, monkeypatch):
    llm, params = engine(num_pages=17), SamplingParams(max_tokens=20, **LONG)
    calls = 0

    def failing(original):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt
            return original(*arguments)
        return call

    waiting = llm.stream("abck", params)
    next(waiting)
    runner = llm.engine.runner
    if where == "launch":
        monkeypatch.setattr(runner, "launch", failing(runner.launch))
    else:
        launch = runner.launch

        def launch_with_failing_handle(step):
            handle = launch(step)
            handle.tokens = failing(handle.tokens)
            return handle

        monkeypatch.setattr(runner, "launch", launch_with_failing_handle)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "cab", "abcabcabc"], params)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="the engine was stopped before requests 0 had ended"):
        list(waiting)
    runner.received = runner.launched  # steps whose tokens were never asked for
    assert llm.stats().free_pages == 17 and llm.stats().cached_pages == 0
    assert [seen(output.outputs[0]) for output in llm.generate(["abc", "abck"], params)] == [
        expected(prompt, params) for prompt in ("abc", "abck")]


def test_the_first_tokens_are_launched_before_those_before_them_are_asked_for():
    """The order of calls: launch n + 1, then wait for n."""
    calls = []

    class Recording(FakeRunner):
        def launch(self, step):
            number, handle = self.launched, super().launch(step)
            calls.append(("launch", number))
            tokens = handle.tokens
            handle.tokens = lambda: calls.append(("tokens", number)) or tokens()
            return handle

    for overlap in (True, False):
        calls.clear()
        llm = LLM(Recording(30), Letters(), max_num_seqs=4, overlap=overlap)
        llm.generate("abc", SamplingParams(max_tokens=3, **LONG))
        launches, waits = [("launch", n) for n in range(3)], [("tokens", n) for n in range(3)]
        assert calls == ([launches[0], launches[1], waits[0], launches[2], waits[1], waits[2]] if overlap else
                         [launches[0], waits[0], launches[1], waits[1], launches[2], waits[2]])


def test_requests_without_a_seed_differ_and_come_again_with_the_engines_seed():
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    first, again, other = ([output.outputs[0].token_ids for output in engine(seed=seed).generate(["abc"] * 3, params)]
                           for seed in (0, 0, 1))
    assert first == again and len({tuple(tokens) for tokens in [*first, *other]}) == 6


def test_logprobs_are_of_the_token_and_of_the_most_likely():
    class WithLogprobs(FakeRunner):
        def launch(self, step):
            handle = super().launch(step)
            rows = np.full((len(handle._sampled), COLUMNS), -1, np.float32)
            rows[:, LOGPROB], rows[:, RANK] = -2.5, 3
            rows[:, TOP : TOP + 2] = -0.5, -1.0
            rows[:, TOKENS : TOKENS + 2] = [(4, one.token if at % 2 else 5) for at, one in enumerate(handle._sampled)]
            handle._sampled = with_logprobs([one.token for one in handle._sampled], rows)
            return handle

    llm = LLM(WithLogprobs(30), Letters(), max_num_seqs=4)
    one, none = llm.generate(["abc", "abd"], [SamplingParams(max_tokens=3, logprobs=2, **LONG),
                                              SamplingParams(max_tokens=3, **LONG)])
    (one,), (none,) = one.outputs, none.outputs
    assert one.cumulative_logprob == -7.5 and none.cumulative_logprob is None and none.logprobs is None
    assert len(one.logprobs) == 3
    for token, found in zip(one.token_ids, one.logprobs, strict=True):
        assert found[token].logprob == -2.5 and found[token].rank == 3
        assert found[token].decoded_token == LETTERS[token]
        if token != 4:
            assert found[4].logprob == -0.5 and found[4].rank == 1 and found[4].decoded_token == "e"


WANTED = [{"logprobs": 2, "prompt_logprobs": 1}, {}, {"logprobs": 0}, {"prompt_logprobs": 20}, {"logprobs": 20}]


def with_and_without_logprobs():
    for at, (prompt, params) in enumerate(requests(20, 5)):
        yield prompt, replace(params, **WANTED[at % len(WANTED)])


@pytest.mark.parametrize("options", [{}, {"num_pages": 14}, {"max_num_seqs": 1, "max_num_batched_tokens": 3}],
                         ids=lambda options: " ".join(options) or "default")
def test_logprobs_are_those_of_each_request_alone_and_stay_as_they_were_given_out(options):
    llm = engine(**options)
    prompts, params = zip(*with_and_without_logprobs(), strict=True)
    last, given, texts = {}, [], 0
    for output in llm.stream(list(prompts), list(params)):
        given += [(each, copy.deepcopy(each)) for each in (output.prompt_logprobs, *(one.logprobs for one in
                                                                                     output.outputs))]
        before = last.setdefault(int(output.request_id), output)
        assert output.prompt_token_ids is before.prompt_token_ids  # no copy for each output
        last[int(output.request_id)] = output
    for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
        for one in last[number].outputs:
            of_prompt, found = logprobs_alone(Request("", Letters().encode(prompt), each, max_length=64),
                                              one.token_ids)
            if each.logprobs is None:
                assert one.logprobs is None and one.cumulative_logprob is None
            else:
                assert as_pairs(one.logprobs) == found
                own = [listed[token].logprob for token, listed in zip(one.token_ids, one.logprobs, strict=True)]
                assert one.cumulative_logprob == sum(own)
                texts += sum(each.decoded_token == LETTERS[token] for listed in one.logprobs
                             for token, each in listed.items())
            of_prompts = last[number].prompt_logprobs
            assert of_prompts is None if each.prompt_logprobs is None else as_pairs(of_prompts) == of_prompt
    assert all(now == then for now, then in given) and texts > 500
    assert llm.stats().preemptions > 0 or "num_pages" not in options


def test_logprobs_are_made_only_when_they_are_read(monkeypatch):
    monkeypatch.setattr("labkit.engine.outputs.Logprob", None)
    params = SamplingParams(max_tokens=8, logprobs=20, prompt_logprobs=5, **LONG)
    outputs = list(engine().stream(["abc", "abd"], params))
    assert len(outputs[-1].outputs[0].logprobs) == 8 and len(outputs[-1].prompt_logprobs) == 3
    with pytest.raises(TypeError):
        outputs[-1].outputs[0].logprobs[0]


def test_logprobs_without_texts_where_none_are_wanted():
    (output,) = engine().generate("abc", SamplingParams(max_tokens=3, logprobs=1, detokenize=False, **LONG))
    assert {one.decoded_token for listed in output.outputs[0].logprobs for one in listed.values()} == {None}


@pytest.mark.parametrize(("every", "kind"), [("x", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError),
                                             (float("nan"), ValueError)])
def test_how_often_a_stream_is_looked_at_is_0_seconds_or_more(every, kind):
    llm = engine()
    with pytest.raises(kind, match=f"^every is {every!r}; it must be .*0 or more"):
        next(llm.stream("abc", every=every))
    assert not llm.engine.has_unfinished_requests()


def test_statistics():
    llm = engine(max_num_seqs=2)
    llm.generate(["abcdefgh", "abcdefgh"], SamplingParams(max_tokens=4, **LONG))
    stats = llm.stats()
    assert (stats.prompt_tokens, stats.cached_tokens) == (16, 4)
    assert (stats.steps, stats.tokens, stats.generated, stats.discarded) == (4, 8 + 4 + 2 * 3, 8, 0)
    assert stats.most_pages == 5 and stats.pages == stats.free_pages == 30 and stats.page_use == 0
    stream = llm.stream("kkkkk", SamplingParams(max_tokens=4, **LONG))
    next(stream)
    assert llm.stats().page_use == 2 / 30
    stream.close()


def test_the_bar_of_prompts_is_shown_when_wanted(capsys):
    engine().generate(["abc", "abd"], SamplingParams(max_tokens=2), use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


def test_the_door_of_the_engine():
    import labkit.engine

    for name in labkit.engine.__all__:
        assert getattr(labkit.engine, name).__name__ == name
    with pytest.raises(AttributeError, match="labkit.engine has no 'AsyncLLM'; it offers CompletionOutput"):
        labkit.engine.AsyncLLM  # noqa: B018
    assert len(LETTERS) == VOCABULARY
