"""Random models and requests in too little memory: every output is what the model alone would have written.

A case is drawn from its seed. Each token is judged by the float64 reference where its margin is clear: a greedy one by
the largest logit, a drawn one by what the reference draws. On the CPU device, where company rounds nothing otherwise,
drawn tokens are also those of the same request run alone. At the end the engine must hold nothing.
"""

import contextlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import device
from labkit.engine import LLM, SamplingParams
from labkit.engine.model_runner import ModelRunner
from labkit.kernels.attention.pages import pages_for
from labkit.kernels.penalties import penalise_reference, prompt_row
from labkit.kernels.philox import seed_words
from labkit.kernels.sampling_reference import sample_reference
from labkit.models import llama
from labkit.models.configs import shapes
from labkit.models.llama_reference import activations, weights_of

SUITE = 1374  # of the small case, the suite's own: in it are preemptions, cached prefixes and aborts in the middle
SEEDS = range(1, 13)  # of larger cases
LONGEST = 96  # tokens of a sequence
CLEAR = 1e-3  # of the logits' spread: tokens that are nearer to the best one may be taken for it in float32
NEIGHBOURS = 8  # rows of logits so near: where all draw the same token, rounding cannot make it another one
# The small case's model: its kernels are those of tests/engine/test_model_runner.py.
USUAL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 128,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
SCALINGS = (None, {"rope_type": "linear", "factor": 4.0},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 32})


@dataclass(frozen=True)
class Asked:
    """arrival: the step before which it comes. abort: how many tokens its outputs have when it is aborted; None: it is
    not."""

    prompt: list[int]
    params: SamplingParams
    arrival: int = 0
    abort: int | None = None


def drawn_config(rng) -> llama.Config:
    shared = int(rng.integers(1, 4))
    return llama.Config(
        vocab_size=int(rng.integers(40, 160)), hidden_size=int(rng.integers(24, 130)),
        intermediate_size=int(rng.integers(20, 150)), num_hidden_layers=int(rng.integers(1, 4)),
        num_key_value_heads=shared, num_attention_heads=shared * int(rng.integers(1, 4)),
        head_dim=int(rng.choice([16, 48, 80, 112])), max_position_embeddings=128,
        rope_theta=float(rng.choice([500.0, 10_000.0])), rope_scaling=SCALINGS[rng.integers(3)],
        tie_word_embeddings=bool(rng.integers(2)))


def drawn_model(config: llama.Config, rng) -> llama.Llama:
    """Its layers have as much to say as its embedding: else it would repeat the token before."""
    tensors = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape)
        tensors[name] = (1 + 0.1 * values if len(shape) == 1 else 2 * values / np.sqrt(shape[-1])).astype(np.float32)
    return llama.Llama(config, tensors, dtype="float32")


def drawn_params(rng, vocab: int, most: int) -> SamplingParams:
    tokens = int(rng.integers(1, most + 1))
    common = {"max_tokens": tokens, "logprobs": 2 if rng.random() < 0.2 else None,
              "stop_token_ids": rng.integers(0, vocab, 4).tolist() if rng.random() < 0.4 else None,
              "frequency_penalty": 0.5 if rng.random() < 0.3 else 0.0,
              "logit_bias": {int(rng.integers(vocab)): 3.0} if rng.random() < 0.2 else None}
    if rng.random() < 0.5:
        return SamplingParams(temperature=0, **common)
    return SamplingParams(temperature=float(rng.choice([0.7, 1.0, 2.0])), seed=int(rng.integers(1000)),
                          n=int(rng.integers(1, 4)), top_k=int(rng.choice([0, 5, 20])),
                          top_p=float(rng.choice([1.0, 0.9])), min_p=float(rng.choice([0.0, 0.05])),
                          repetition_penalty=float(rng.choice([1.0, 1.3])), **common)


def drawn_requests(rng, vocab: int, count: int, most: int) -> list[Asked]:
    """Half of the prompts begin alike, for a page or two."""
    beginning, found = rng.integers(0, vocab, 34).tolist(), []
    for _ in range(count):
        own = rng.integers(0, vocab, int(rng.choice([1, 3, 15, 16, 17, 30]))).tolist()
        shared = beginning[: int(rng.integers(16, 35))] if rng.random() < 0.5 else []
        arrival = int(rng.integers(0, 12)) * int(rng.random() < 0.5)
        abort = int(rng.integers(0, most)) if rng.random() < 0.3 else None
        found.append(Asked(shared + own, drawn_params(rng, vocab, most), arrival, abort))
    return found


def pages_wanted(asked: Asked) -> int:
    """By all outputs, if they shared none. The last token's keys and values are never needed."""
    return asked.params.n * pages_for(len(asked.prompt) + asked.params.max_tokens - 1)


def answered(engine, requests: list[Asked]) -> tuple[dict, set[int]]:
    """(the last output of each request, those that were aborted before they had ended), by number."""
    found, aborted, step = {}, set(), 0
    while engine.has_unfinished_requests() or any(each.arrival >= step for each in requests):
        for number, each in enumerate(requests):
            if each.arrival == step:
                engine.add_request(str(number), each.prompt, each.params)
            output = found.get(number)
            tokens = sum(len(one.token_ids) for one in output.outputs) if output else 0
            ended = number in aborted or output and output.finished
            if each.arrival <= step and not ended and each.abort is not None and tokens >= each.abort:
                aborted.add(number)
                engine.abort_request(str(number))
        if engine.has_unfinished_requests():
            found |= {int(output.request_id): output for output in engine.step()}
        step += 1
        assert step < 5000, "requests that never end"
    return found, aborted


def check_end(one, params: SamplingParams) -> None:
    ends = [token in params.stop_token_ids for token in one.token_ids]
    assert not any(ends[:-1]), "tokens after one that ends the output"
    if one.finish_reason == "stop":
        assert ends[-1] and one.stop_reason == one.token_ids[-1]
    elif one.finish_reason == "length":
        assert len(one.token_ids) == params.max_tokens and not ends[-1]
    else:
        assert one.finish_reason == "abort" and not any(ends) and len(one.token_ids) < params.max_tokens


def check_against_reference(config, weights, asked: Asked, one) -> None:
    """Each token is judged by the tokens before it as the engine wrote them, so that an unclear one hides no later."""
    tokens, params = one.token_ids, asked.params
    if not tokens:
        return
    logits = activations(config, weights, asked.prompt + tokens[:-1])["logits"][len(asked.prompt) - 1 :]
    if one.logprobs is not None:
        for row, token, listed in zip(logits, tokens, one.logprobs, strict=True):
            expected = row[token] - row.max() - np.log(np.exp(row - row.max()).sum())
            assert listed[token].logprob == pytest.approx(expected, abs=1e-3)
    rng = np.random.default_rng(0)
    for place, token in enumerate(tokens):
        row = changed(logits[place], asked, tokens[:place])
        if params.greedy:
            assert row[token] >= row.max() - CLEAR * np.ptp(row), (
                f"token {place} is {token}; the reference says {row.argmax()}, by {row.max() - row[token]:.3g} of "
                f"{np.ptp(row):.3g}")
        else:
            near = row + CLEAR * np.ptp(row) * rng.uniform(-1, 1, (NEIGHBOURS, row.size))
            expected = {drawn(each, params, one.index, len(asked.prompt) + place) for each in (row, *near)}
            assert len(expected) > 1 or token in expected, (
                f"token {place} of output {one.index} is {token}; the reference draws {expected}")


def changed(logits: np.ndarray, asked: Asked, before: list[int]) -> np.ndarray:
    """What the token after these of the output is drawn from."""
    params, row = asked.params, logits.copy()
    for token, bias in (params.logit_bias or {}).items():
        row[token] += bias
    counts = prompt_row(asked.prompt, row.size)
    np.add.at(counts, np.array(before, int), np.uint32(1))
    return penalise_reference(row[None], counts[None], [0], [params.repetition_penalty], [params.frequency_penalty],
                              [params.presence_penalty])[0]


def drawn(row: np.ndarray, params: SamplingParams, index: int, position: int) -> int:
    """The token that the kernel draws for output `index` there, to the bit: a function of the logits."""
    return int(sample_reference(row[None].astype(np.float32), [params.temperature], [params.top_k], [params.top_p],
                                [params.min_p], [seed_words(params.seed + index)], [position])[0])


@contextlib.contextmanager
def noted(text: str):
    try:
        yield
    except BaseException as error:
        error.add_note(text)
        raise


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [SUITE, *SEEDS])
def test_outputs_are_the_models_in_too_little_memory(seed):
    rng = np.random.default_rng(seed)
    small = seed == SUITE
    config = llama.Config(**USUAL, rope_scaling=SCALINGS[2]) if small else drawn_config(rng)
    requests = drawn_requests(rng, config.vocab_size, 10 if small else 24, 12 if small else 24)
    wanted = [pages_wanted(each) for each in requests]
    seats = int(rng.integers(2, 9))
    sizes = {"max_num_seqs": seats, "max_num_batched_tokens": int(rng.integers(seats, 48))}
    longest = max(len(each.prompt) + each.params.max_tokens for each in requests)
    pages = max(sum(wanted) // 10, pages_for(longest) + 2)  # 2: so that of a few requests, too, several run at a time
    options = {"enable_prefix_caching": bool(rng.integers(2)), "overlap": bool(rng.integers(2))}
    runs = {"num_pages": pages, "max_model_len": LONGEST, "enforce_eager": bool(rng.integers(2)),
            "pad_prompts": bool(rng.integers(2))}
    model = drawn_model(config, rng)
    with noted(f"seed {seed}: {config}, {sizes}, {options}, {runs}"):
        engine = LLM(ModelRunner(model, **sizes, **runs), **sizes, **options).engine
        found, aborted = answered(engine, requests)
        assert sorted(found) == list(range(len(requests))) and all(each.finished for each in found.values())
        engine.blocks.forget()
        stats = engine.stats()
        assert stats.free_pages == stats.pages == pages and stats.cached_pages == 0
        assert not any(map(engine.blocks.references, range(pages)))
        assert not engine.scheduler.has_unfinished() and not engine._requests and not engine._outputs
        assert sorted(engine.scheduler._free_slots) == list(range(seats))
        if small:  # if what is drawn has changed, look for a seed that still has all of these
            assert stats.preemptions and stats.cached_tokens and any(each.params.greedy for each in requests)
            assert any(found[number].outputs[0].token_ids for number in aborted)
            assert any(found[number].outputs[1:] for number in aborted)

        weights = weights_of(model.tensors, config)
        lone = {"max_num_seqs": 3, "max_num_batched_tokens": LONGEST}
        alone = LLM(ModelRunner(model, num_pages=3 * pages_for(LONGEST), max_model_len=LONGEST, enforce_eager=True,
                                **lone), **lone, enable_prefix_caching=False)
        for number, asked in enumerate(requests):
            with noted(f"request {number}: {asked}"):
                outputs = found[number].outputs
                assert (number in aborted) == any(one.finish_reason == "abort" for one in outputs)
                assert len(outputs) == asked.params.n
                for one in outputs:
                    check_end(one, asked.params)
                    check_against_reference(config, weights, asked, one)
                longest = max(len(one.token_ids) for one in outputs)
                if asked.params.greedy or not longest or device.on_gpu():  # on a GPU other company rounds otherwise
                    continue
                params = replace(asked.params, max_tokens=longest) if number in aborted else asked.params
                (expected,) = alone.generate([asked.prompt], params)
                for one, other in zip(outputs, expected.outputs, strict=True):
                    whole = len(one.token_ids) if one.finish_reason == "abort" else None
                    assert one.token_ids == other.token_ids[:whole]


def test_a_drawn_token_that_is_wrong_is_noticed():
    config = llama.Config(**USUAL)
    weights = weights_of(drawn_model(config, np.random.default_rng(0)).tensors, config)
    params = SamplingParams(temperature=0.7, top_k=20, seed=3, repetition_penalty=1.3, logit_bias={5: 3.0})
    asked, tokens = Asked([1, 2, 3], params), []
    while len(tokens) < 8:
        logits = activations(config, weights, asked.prompt + tokens)["logits"][-1]
        tokens.append(drawn(changed(logits, asked, tokens), params, 0, len(asked.prompt) + len(tokens)))
    check_against_reference(config, weights, asked, SimpleNamespace(token_ids=tokens, logprobs=None, index=0))
    noticed = 0
    for place, token in enumerate(tokens):
        one = SimpleNamespace(token_ids=[*tokens[:place], (token + 1) % config.vocab_size], logprobs=None, index=0)
        try:
            check_against_reference(config, weights, asked, one)
        except AssertionError:
            noticed += 1
    assert noticed >= 6, "of 8; elsewhere the margin is not clear"
