"""`labkit generate` with a Llama: the engine's tokens as text, whole after Ctrl-C, and what it took."""

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit import cli
from labkit._common.errors import UserError
from labkit.engine import LLM, SamplingParams
from labkit.engine import texts as texts_module
from labkit.engine.sampler import Sampler
from labkit.engine.text import write
from labkit.engine.texts import Texts
from labkit.models.llama import SingleSequence
from labkit.models.load import load
from tests.engine.random_llama import write_folder

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PARAMS = SamplingParams(temperature=1.0, top_k=40, seed=3, max_tokens=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(folder):
    return load(str(folder))


def greedy_tokens(loaded, ids, count: int) -> list[int]:
    """The likeliest tokens by the model alone, up to an end of text."""
    alone, tokens = SingleSequence(loaded.model, 64), []
    logits = alone(ids)
    while len(tokens) < count:
        tokens.append(int(np.argmax(logits.copy_to_host()[0])))
        if tokens[-1] in loaded.tokenizer.stop:
            break
        logits = alone(tokens[-1:])
    return tokens


@pytest.mark.sweep
@pytest.mark.parametrize("raw", [True, False])
def test_the_pieces_are_what_the_model_says_after_the_prompt_or_the_question(loaded, raw):
    texts = Texts(loaded, ["a kernel"], GREEDY, raw=raw)
    mark = loaded.tokenizer.encode("a kernel") if raw else loaded.tokenizer.encode(
        "<|endoftext|><|user|>a kernel<|end|><|assistant|>", marks=False)
    assert texts.ids == [mark] and texts.chat is not raw
    text, tokens = "".join(texts.pieces()), greedy_tokens(loaded, mark, 6)
    ended = tokens[-1] in loaded.tokenizer.stop
    assert text == loaded.tokenizer.decode(tokens) and texts.tokens(0) == len(tokens) - ended > 0
    assert f"{texts.tokens(0)} tokens, {texts.continuation.ended}; the first after" in texts.report
    assert f"{len(mark)} tokens of prompts computed, 0 more found" in texts.report


def test_several_prompts_get_what_each_gets_alone_and_share_what_is_alike(loaded, monkeypatch):
    monkeypatch.setattr(texts_module, "SLOTS", 2)  # so that the later ones find the prefix of the first
    long = "a kernel is a loop, and a loop is a kernel"
    prompts = [long, "a loop", long, "kernel"]
    texts = Texts(loaded, prompts, PARAMS)
    assert {number for number, _ in texts.run()} == {0, 1, 2, 3}
    for number, prompt in enumerate(prompts):
        alone = Texts(loaded, [prompt], PARAMS)
        assert "".join(alone.pieces()) == texts.outputs[number].outputs[0].text
        assert alone.ended(0) == texts.ended(number) != ""
    report, cached = texts.report, texts.outputs[2].num_cached_tokens
    assert cached > 0 and f", {cached} more found in the prefix cache" in report
    total, stats = sum(map(texts.tokens, range(4))), texts.llm.stats()
    assert f"4 prompts of {sum(map(len, texts.ids))} tokens: {total} tokens in " in report
    assert f"at most {stats.most_pages} of {stats.pages} pages" in report and stats.free_pages == stats.pages


def test_why_a_text_ended(loaded):
    def ended(**options):
        texts = Texts(loaded, ["a kernel"], SamplingParams(temperature=0, **options), raw=True)
        text = "".join(texts.pieces())
        is_full = len(texts.ids[0]) + texts.tokens(0) >= 128
        return text, texts.ended(0), is_full

    whole, why, is_full = ended(max_tokens=200)
    assert why == ("then the context of 128 was full" if is_full else "then the model ended its text")
    assert ended(max_tokens=2)[1] == "as many as were asked for"
    stop = whole[1:3]
    assert ended(max_tokens=20, stop=[stop])[:2] == (whole[: whole.index(stop)], f"then it came to {stop!r}")


def test_write_goes_on_with_any_model(loaded):
    pieces = []
    continuation = write(loaded, "a loop", pieces.append, tokens=5, sampler=Sampler(temperature=0))
    expected = greedy_tokens(loaded, loaded.tokenizer.encode("a loop"), 5)
    assert continuation.text == "".join(pieces) == loaded.tokenizer.decode(expected) and continuation.per_second > 0

    def stop_at_once(piece):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        write(loaded, "a loop", stop_at_once, tokens=5)
    assert stopped.value.continuation.tokens >= 1 and stopped.value.continuation.text


def test_after_ctrl_c_there_are_the_texts_so_far(loaded):
    texts = Texts(loaded, ["a kernel", "a loop"], PARAMS, raw=True)
    running = texts.run()
    for _ in range(3):
        next(running)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert [texts.tokens(0), texts.tokens(1)] == [2, 1] and texts.ended(0) == ""
    assert "2 prompts of" in texts.report and ", 0 of them to the end: 3 tokens in" in texts.report
    assert not texts.llm.engine._requests and len(texts.llm.generate("a", GREEDY)) == 1


@pytest.mark.parametrize(("prompt", "message"), [("", "line 7 has no token"),
                                                 ("abcdefgh" * 30, r"line 7 has \d+ tokens; .* has a context of 128")])
def test_a_prompt_that_cannot_be_gone_on_from_is_named(tmp_path, prompt, message):
    import json

    folder = write_folder(tmp_path / "other", template=None)
    tokenizer = json.loads((folder / "tokenizer.json").read_text()) | {"post_processor": None}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=message):
        Texts(load(str(folder)), ["a", prompt], GREEDY, names=["line 6", "line 7"])


def test_looked_at_now_and_then_a_stream_loses_no_text(folder):
    llm = LLM(folder, max_num_seqs=2, max_num_batched_tokens=32, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    each = [output.outputs[0].text for output in llm.stream("a kernel", params)]
    few = [output.outputs[0].text for output in llm.stream("a kernel", params, every=1000.0)]
    assert len(each) == 12 and few == each[-1:]


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    return lambda *arguments: CliRunner().invoke(cli.app, ["generate", *map(str, arguments)])


def test_the_command_answers_or_goes_on(run, folder, loaded):
    options = ("--model", folder, "--temperature", "1", "--seed", "3", "--max-tokens", "8")
    answer, raw = run("a kernel", *options), run("a kernel", *options, "--raw")
    assert answer.exit_code == raw.exit_code == 0, answer.output
    assert answer.stdout == "".join(Texts(loaded, ["a kernel"], PARAMS).pieces()) + "\n"
    assert raw.stdout == "a kernel" + "".join(Texts(loaded, ["a kernel"], PARAMS, raw=True).pieces()) + "\n"
    assert "2 layers, 64 wide" in answer.stderr and " of K and V held at a time; 0 preemptions" in answer.stderr


def test_prompts_of_a_file_are_answered_in_its_order(run, folder, loaded, tmp_path):
    (tmp_path / "prompts.txt").write_text("a kernel\n\n  a loop \nis\n")
    done = run("--prompts", tmp_path / "prompts.txt", "--model", folder, "--temperature", "1", "--seed", "3",
               "--tokens", "8")
    assert done.exit_code == 0, done.output
    answers = ["".join(Texts(loaded, [prompt], PARAMS).pieces()) for prompt in ("a kernel", "a loop", "is")]
    assert done.stdout == "a kernel\n{}\n\na loop\n{}\n\nis\n{}\n\n".format(*answers)
    assert "3 prompts of" in done.stderr and "a second" in done.stderr


def test_ctrl_c_prints_what_there_is(run, folder, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("a kernel\na loop\n")
    whole = Texts.run

    def stopped(self, every=0.0):
        for count, pair in enumerate(whole(self)):
            yield pair
            if count == 5:
                raise KeyboardInterrupt

    monkeypatch.setattr(Texts, "run", stopped)
    options = ("--model", folder, "--tokens", "20", "--stop", "never", "--top-k", "0", "--min-p", "0.001")
    done = run("--prompts", tmp_path / "prompts.txt", *options)
    assert done.exit_code == 130 and done.stdout.startswith("a kernel\n") and "\n\na loop\n" in done.stdout
    assert ", 0 of them to the end: 6 tokens in" in done.stderr and done.stderr.endswith("labkit: Stopped.\n")
    done = run("a kernel", *options)
    assert done.exit_code == 130 and done.stdout.endswith("\n") and "6 tokens; the first after" in done.stderr


def test_wrong_use_is_named(run, folder, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "bytes.txt").write_bytes(b"a\xff")
    (tmp_path / "long.txt").write_text("a\n" + "abcdefgh" * 30)
    of_file = [("none.txt", "none.txt does not exist"), ("empty.txt", "empty.txt contains no prompts"),
               ("bytes.txt", "bytes.txt is no text in UTF-8"), ("long.txt", "long.txt: line 2 has")]
    for arguments, words in (
            ((), "give one prompt, or a file of them with --prompts"),
            (("a", "--prompts", tmp_path / "long.txt"), "use either a prompt or --prompts, not both"),
            (("a", "--min-p", "2"), "min_p is 2.0; it must be from 0 to 1"), (("a", "--stop", ""), "stop is ['']"),
            (("a", "--yours"), "--yours is not for"), (("a", "--temperature", "-1"), "temperature is -1"),
            (("a", "--model", "tiny", "--min-p", "0.1"), "--min-p is not for tiny, which is a GPT2"),
            (("a", "--model", "tiny", "--stop", "b"), "--stop is not for tiny"),
            (("a", "--model", "tiny", "--raw"), "--raw is not for tiny"),
            (("--prompts", tmp_path / "long.txt", "--model", "tiny"), "--prompts is not for tiny"),
            *((("--prompts", tmp_path / name), words) for name, words in of_file)):
        done = run(*arguments, *(() if "--model" in arguments else ("--model", folder)))
        assert done.exit_code == 2 and not done.stdout, done.output
        assert words in " ".join(done.stderr.split()), done.stderr
