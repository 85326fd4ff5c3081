"""Text from tokens one after the other: that of all at once, and stop strings wherever tokens begin and end."""

import random
from functools import partial

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import example, given, settings
from tokenizers import decoders, models, pre_tokenizers

from labkit.engine.detokenizer import Detokenizer
from labkit.models.tokenizer import Tokenizer

TEXT = "a kernel is a loop, über die Wörter; 🙂 und 日本語\n\nThe end.  Two spaces"


@pytest.fixture(scope="module")
def bytes_of_text():
    """A byte-level tokenizer, as GPT-2's and Llama 3's: a character may be spread over several tokens."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["a kernel is a loop, über die Wörter"], vocab_size=290,
                                  special_tokens=["<|endoftext|>"], show_progress=False)
    return Tokenizer(tokenizer, (0,))


@pytest.fixture(scope="module")
def words():
    """A tokenizer as Llama 2's: whether a word begins with a space shows only beside the word before it, and what the
    vocabulary does not have is spelled in bytes."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁a", "▁kernel", "▁is", "▁loop", ",",
              "s", "▁"]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True,
                                                unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(tokenizer, (1,)), {piece: at for at, piece in enumerate(pieces)}


def streamed(decode, ids, prompt=(), **options):
    detokenizer, pieces = Detokenizer(decode, prompt, **options), [""]
    for token in ids:
        stopped = detokenizer.push(token)
        assert detokenizer.text.startswith(pieces[-1])
        pieces.append(detokenizer.safe)
        if stopped is not None:
            return detokenizer
    detokenizer.flush()
    assert detokenizer.text.startswith(pieces[-1])
    return detokenizer


def test_a_character_of_several_tokens_comes_when_it_is_whole(bytes_of_text):
    ids = bytes_of_text.encode("a🙂b")
    assert len(ids) > 4
    detokenizer, seen = Detokenizer(bytes_of_text.decode), []
    for token in ids:
        detokenizer.push(token)
        seen.append(detokenizer.text)
    assert seen == ["a", "a", "a", "a", "a🙂", "a🙂b"]
    half = streamed(bytes_of_text.decode, ids[:3])
    assert half.text == bytes_of_text.decode(ids[:3]) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.sweep(every=True)
@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(ids=st.lists(st.integers(1, 289), max_size=30), split=st.integers(0, 30))
def test_any_tokens_give_the_text_of_all_at_once(bytes_of_text, ids, split):
    assert streamed(bytes_of_text.decode, ids).text == bytes_of_text.decode(ids)
    at_once = Detokenizer(bytes_of_text.decode)
    at_once.push(*ids[:split])
    at_once.push(*ids[split:])
    at_once.flush()
    assert at_once.text == bytes_of_text.decode(ids)
    ids = bytes_of_text.encode(TEXT)
    prompt, rest = ids[:split], ids[split:]
    text = bytes_of_text.decode(prompt).rstrip("\N{REPLACEMENT CHARACTER}")
    assert text + streamed(bytes_of_text.decode, rest, prompt).text == TEXT


def test_a_word_keeps_the_space_before_it(words):
    tokenizer, number = words
    ids = [number[piece] for piece in ("▁a", "▁kernel", "▁is", "▁a", "▁loop", "s", ",", "▁", "<0xE2>", "<0x82>",
                                       "<0xAC>", "▁a")]
    whole = "a kernel is a loops, € a"
    assert tokenizer.decode(ids) == streamed(tokenizer.decode, ids).text == whole
    for split in range(1, 8):
        text = streamed(tokenizer.decode, ids[split:], [number["<s>"], *ids[:split]]).text
        assert tokenizer.decode(ids[:split]) + text == whole
    special = [ids[0], number["</s>"], *ids[1:]]  # a special token leaves no trace, not even of the space after it
    assert streamed(tokenizer.decode, special).text == whole
    marks = streamed(partial(tokenizer.decode, marks=True), special).text
    assert marks == tokenizer.decode(special, marks=True) != whole


def plain(text: str, stops, include: bool) -> tuple[str, str | None]:
    """Character after character, by definition."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@pytest.mark.sweep(every=True)
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(pieces=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=12), include=st.booleans(),
       stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
@example(pieces=["abcd"], stops=["abcd", "c"], include=False)
@example(pieces=["a", "b", "c"], stops=["abc", "bc"], include=False)
def test_stop_strings_are_found_as_if_characters_came_one_by_one(pieces, stops, include):
    """Whatever the tokens are, and nothing of a stop string is shown before it is known to be none."""
    expected, stop = plain("".join(pieces), stops, include)

    def decode(ids):
        return "".join(pieces[number] for number in ids)

    done = streamed(decode, range(len(pieces)), stop=stops, include_stop=include)
    assert (done.text, done.stopped) == (expected, stop)
    shown = Detokenizer(decode, stop=stops, include_stop=include)
    for number in range(len(pieces)):
        shown.push(number)
        assert expected.startswith(shown.safe)
        if shown.stopped is not None:
            break


def test_a_short_text_shows_nothing_of_a_long_stop_string():
    stop = "<|im_end|>"
    shown = Detokenizer(lambda ids: "".join(stop[number] for number in ids), stop=[stop])
    assert [(shown.push(number), shown.safe)[1] for number in range(len(stop))] == [""] * len(stop)
    assert shown.stopped == stop


def test_a_streams_text_only_grows():
    """Texts are made of pieces of the stop strings, so that most of them begin one, and are cut into tokens anywhere.
    At the end nothing is missing that no stop string took."""
    rng, ended = random.Random(3), 0
    for _ in range(1500):
        stops = ["".join(rng.choices("ab🙂", k=rng.choice([1, 2, 5, 12]))) for _ in range(rng.randint(1, 3))]
        parts = [stop[begin : begin + rng.randint(1, 12)] for stop in rng.choices(stops, k=rng.randint(1, 6))
                 for begin in [rng.randint(0, len(stop) - 1)]]
        text = "".join([rng.choice(stops)[:-1] if rng.random() < 0.5 else "", *parts])
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, len(text))))
        tokens = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        include = rng.random() < 0.3
        shown = Detokenizer(lambda ids, tokens=tokens: "".join(tokens[number] for number in ids), stop=stops,
                            include_stop=include)
        seen = [""]
        for number in range(len(tokens)):
            stopped = shown.push(number)
            seen.append(shown.safe)
            if stopped is not None:
                break
        shown.flush()
        assert (shown.text, shown.stopped) == plain(text, stops, include)
        for before, after in zip(seen, [*seen[1:], shown.text], strict=True):
            assert after.startswith(before), (stops, tokens, seen, shown.text)
        ended += shown.stopped is not None
    assert 300 < ended < 1400


@pytest.mark.parametrize("stop", ["b", "bb", "aba"])
def test_before_min_tokens_no_stop_string_counts(stop):
    """Nor one that begins before and ends after."""
    rng = random.Random(0)
    for _ in range(50):
        pieces = [rng.choice(["a", "b", "ab"]) for _ in range(8)]
        done = streamed(lambda ids, pieces=pieces: "".join(pieces[number] for number in ids), range(8), stop=(stop,),
                        min_tokens=4)
        begin = len("".join(pieces[:4]))
        expected, stopped = plain("".join(pieces[4:]), (stop,), False)
        assert (done.text, done.stopped) == ("".join(pieces)[:begin] + expected, stopped)
