"""A real model behind the engine: each output is that of the request run alone, in any company."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import device
from labkit._common.errors import UserError
from labkit.device import launches
from labkit.engine import LLM, SamplingParams
from labkit.engine.load_runner import runner_of
from labkit.engine.model_runner import ModelRunner
from labkit.measure.series.llama import decoding
from labkit.models import llama
from labkit.models.configs import shapes

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

# Its kernels are those of other tests' models, so that they are compiled once.
CONFIG = llama.Config(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                      num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=128,
                      rms_norm_eps=1e-5, tie_word_embeddings=True)
PROMPTS = [np.random.default_rng(length).integers(0, 97, length).tolist() for length in (3, 20, 40, 1, 17)]
GREEDY = SamplingParams(temperature=0, max_tokens=12)
PARAMS = [
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=20, n=3),
    SamplingParams(temperature=1.0, top_k=7, seed=6, max_tokens=20, presence_penalty=1.5, repetition_penalty=1.3, n=2),
    SamplingParams(temperature=0, max_tokens=25, min_tokens=5, stop_token_ids=list(range(60)), logprobs=3),
    SamplingParams(temperature=1.2, min_p=0.05, seed=9, max_tokens=20, logit_bias={7: 2}, allowed_token_ids=range(40)),
    SamplingParams(temperature=0, max_tokens=20, frequency_penalty=0.5),
]


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    tensors = {name: (0.1 * rng.standard_normal(shape) + (len(shape) == 1)).astype(np.float32)
               for name, shape in shapes(CONFIG).items()}
    return llama.Llama(CONFIG, tensors, dtype="float32")


def served(model, prompts, params, pages=64, seats=8, budget=32, **options):
    runner = ModelRunner(model, num_pages=pages, max_num_seqs=seats, max_num_batched_tokens=budget, max_model_len=96,
                         **options)
    llm = LLM(runner, max_num_seqs=seats, max_num_batched_tokens=budget)
    return [[one.token_ids for one in output.outputs] for output in llm.generate(prompts, params)], llm


@pytest.mark.sampled(0, sweep=10, quick="0.5")
@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_greedy_tokens_are_the_models(model, penalty):
    """Those after the first come from graphs, with penalties from other ones."""
    outputs, llm = served(model, PROMPTS, replace(GREEDY, frequency_penalty=penalty))
    for prompt, (tokens,) in zip(PROMPTS, outputs, strict=True):
        alone, expected = llama.SingleSequence(model, 96), []
        logits = alone(prompt)
        for _ in range(12):
            drawn = np.bincount(np.array(expected, int), minlength=97)
            expected.append(int(np.argmax(logits.copy_to_host()[0] - np.float32(penalty) * drawn)))
            logits = alone(expected[-1:])
        assert tokens == expected
    assert {kind.penalised for kind in llm.engine.runner._graphs} == {penalty > 0}


class Numbers:
    """A text is token ids with spaces between them."""

    stop = ()

    def encode(self, text, marks=True):
        return list(map(int, text.split()))

    def decode(self, ids, marks=False):
        return "".join(f" {token}" for token in ids)


def constrained(logits, output, bias, allowed, words):
    """The logits from which a token may be drawn, as vLLM has them: bad words are looked for in the output."""
    x = np.full_like(logits, -np.inf)
    x[allowed] = logits[allowed]
    for *before, token in words:
        if output[len(output) - len(before) :] == before and len(before) <= len(output):
            x[token] = -np.inf
    for token, value in bias.items():
        x[token] += np.float32(value)
    return x


@pytest.mark.parametrize("overlap", [True, False])
def test_biases_allowed_tokens_and_bad_words(model, overlap):
    """The bad words are what the model writes without them, of one token, of two and of three."""
    bias, allowed, expected, words = {5: 0.3, 40: -100.0, 61: 0.5}, list(range(2, 90)), [], {}
    for prompt in PROMPTS:
        plain = served(model, [prompt], GREEDY)[0][0][0]
        words[len(prompt)] = [plain[:1], plain[1:3], plain[4:7], plain[5:7], plain[7:9]]
        alone, output = llama.SingleSequence(model, 96), []
        logits = alone(prompt)
        for _ in range(12):
            x = constrained(logits.copy_to_host()[0], output, bias, allowed, words[len(prompt)])
            output.append(int(np.argmax(x)))
            logits = alone(output[-1:])
        assert output != plain
        expected.append(output)
    params = [replace(GREEDY, logit_bias=bias, allowed_token_ids=allowed,
                      bad_words=[" ".join(map(str, word)) for word in words[len(prompt)]]) for prompt in PROMPTS]
    runner = ModelRunner(model, num_pages=32, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=96)
    llm = LLM(runner, Numbers(), max_num_seqs=4, max_num_batched_tokens=16, overlap=overlap)
    outputs = llm.generate(PROMPTS, params)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert outputs[0].outputs[0].text == "".join(f" {token}" for token in expected[0])
    (silent,) = llm.generate(PROMPTS[0], replace(params[0], detokenize=False))  # from graphs, and without a text
    assert silent.outputs[0].token_ids == expected[0] and silent.outputs[0].text == ""


def test_biases_alone_are_part_of_the_graphs(model):
    (((token, *rest),),), llm = served(model, PROMPTS[:1], replace(GREEDY, logit_bias={8: 100}))
    assert token == 8 and set(rest) == {8}
    assert all(kind.biased for kind in llm.engine.runner._graphs) and llm.engine.runner._graphs


def test_in_any_company_and_after_preemption_the_output_is_that_of_the_request_alone(model):
    together, llm = served(model, PROMPTS, PARAMS, pages=8, seats=4, budget=16)
    assert llm.stats().preemptions > 0 and llm.stats().free_pages == 8
    for prompt, each, outputs in zip(PROMPTS, PARAMS, together, strict=True):
        assert served(model, [prompt], each, seats=4)[0] == [outputs]
    assert len(set(map(tuple, together[0]))) == 3
    (late,) = together[2]  # no stop token before the sixth, and none but the last
    assert min(late[:-1]) >= 60 > late[-1] and len(late) > 5


def test_graphs_and_plain_launches_give_the_same(model):
    assert served(model, PROMPTS, GREEDY)[0] == served(model, PROMPTS, GREEDY, enforce_eager=True)[0]


def logits_of_steps(model, monkeypatch, params, **options) -> list[np.ndarray]:
    """Of each step, the logits from which tokens were drawn."""
    found = []
    with monkeypatch.context() as watched:
        launch, sample = ModelRunner.launch, ModelRunner._sample

        def kept(self, logits, kind, stream):
            if not launches.imagined():
                found[-1] = logits.copy_to_host()
            sample(self, logits, kind, stream)

        def launched(self, step):
            found.append(None)
            handle = launch(self, step)
            found[-1] = found[-1][[number for number, _ in handle._samples]]
            return handle

        watched.setattr(ModelRunner, "_sample", kept)
        watched.setattr(ModelRunner, "launch", launched)
        served(model, PROMPTS, params, enforce_eager=True, **options)
    return found


@pytest.mark.sweep
def test_padding_changes_no_bit(model, monkeypatch):
    """Chunks of prompts beside single tokens, outputs that share a prompt, penalties, preemption."""
    plain, wide = (logits_of_steps(model, monkeypatch, PARAMS, pages=9, seats=4, budget=24, pad_prompts=pads)
                   for pads in (False, True))
    assert len(plain) == len(wide) > 30 and any(len(each) > 2 for each in plain)
    for one, other in zip(plain, wide, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.sweep
def test_as_many_places_for_sequences_that_decode_as_rows(model):
    """Of 20 seats 16 in a step of 16 rows: the prompts' sequences stand behind them."""
    plain, wide = (served(model, PROMPTS, PARAMS, seats=20, budget=14, pad_prompts=pads, enforce_eager=True)[0]
                   for pads in (False, True))
    assert plain == wide


@pytest.mark.sweep
def test_a_step_with_a_prompt_that_comes_again_is_a_graph_and_gives_the_same(model, monkeypatch):
    from labkit.device import graphs
    from labkit.engine import model_runner

    replayed, launch = [], graphs._RecordedGraph.launch if not device.on_gpu() else graphs._GpuGraph.launch
    kind = graphs._GpuGraph if device.on_gpu() else graphs._RecordedGraph
    monkeypatch.setattr(kind, "launch", lambda self, stream=0: replayed.append(self) or launch(self, stream))
    prompts = 4 * PROMPTS
    expected, _ = served(model, prompts, GREEDY, budget=24, pad_prompts=False, enforce_eager=True)
    found, llm = served(model, prompts, GREEDY, budget=24, pad_prompts=True)
    assert found == expected
    made = {shape.shape: graph for shape, graph in llm.engine.runner._graphs.items() if graph is not None}
    of_prompts = [graph for shape, graph in made.items() if shape.decoding < shape.sequences]
    assert any(graph in replayed for graph in of_prompts)
    # A few graphs are enough: those that are not used are made again.
    monkeypatch.setattr(model_runner, "MAX_GRAPHS", 2)
    found, llm = served(model, prompts, GREEDY, budget=24, pad_prompts=True)
    assert found == expected and len(llm.engine.runner._graphs) == 2


def test_page_tables_that_grow_change_no_token(model, monkeypatch):
    from labkit.engine import batch

    prompts, params = [PROMPTS[0], PROMPTS[3]], [replace(PARAMS[0], n=1), PARAMS[4]]
    before, llm = served(model, prompts, params)
    monkeypatch.setattr(batch, "NARROWEST", 1)
    after, growing = served(model, prompts, params)
    assert after == before
    widths = [{kind.layout.max_pages for kind in one.engine.runner._graphs} for one in (llm, growing)]
    assert widths == [{6}, {1, 4}]
    graph, logits = growing.engine.runner.captured(2)
    assert logits.shape == (2, 97) and graph.nodes > 10
    with pytest.raises(KeyError):
        growing.engine.runner.captured(8)


def test_what_steps_launch_was_foreseen(model, monkeypatch):
    """Of a request with penalties among others: before the first step and not later."""
    from labkit.device import launches
    from labkit.engine import model_runner
    from labkit.kernels.steps import fill_ids_kernel

    foreseen, steps = set(), []
    monkeypatch.setattr(model_runner.compile_ahead, "prepare",
                        lambda needed, progress: foreseen.update(needed) or steps.append(len(launched)))
    runner = ModelRunner(model, num_pages=64, max_num_seqs=8, max_num_batched_tokens=128, enforce_eager=True)
    llm = LLM(runner, max_num_seqs=8, max_num_batched_tokens=128)
    with launches.record([fill_ids_kernel]) as launched:
        llm.generate(PROMPTS, [GREEDY, PARAMS[4], PARAMS[3], GREEDY, GREEDY])
    assert steps[0] == 0 and len(steps) <= 3
    missing = [one.kernel.__name__ for one in launched if one.kernel not in {kernel for kernel, _ in foreseen}]
    assert launched and not missing


def test_after_prepare_nothing_is_left_to_compile(model, monkeypatch):
    """Whatever requests ask for, in batches of any size."""
    from labkit.engine import model_runner
    from labkit.kernels.steps import fill_ids_kernel

    prepared = set()
    monkeypatch.setattr(model_runner.compile_ahead, "prepare", lambda needed, progress: prepared.update(needed))
    runner = ModelRunner(model, num_pages=64, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=96)
    llm = LLM(runner, tokenizer=Numbers(), max_num_seqs=8, max_num_batched_tokens=64)
    runner.prepare()
    asked = [*PARAMS, replace(GREEDY, prompt_logprobs=2), replace(GREEDY, bad_words=["5 7", "3"], logprobs=2)]
    known = set(prepared)
    with launches.record([fill_ids_kernel]) as launched:
        llm.generate([PROMPTS[i % 5] for i in range(len(asked))], asked)
        for params in asked:
            llm.generate(PROMPTS[2], params)

    def again():
        for one in launched:
            one.kernel[one.grid, one.block, 0, one.shared_bytes](*one.args)

    needed = launches.needed(again)
    assert len(needed) > 15 and prepared == known
    assert [kernel.__name__ for kernel, key in needed if (kernel, key) not in known] == []


def test_after_ctrl_c_nothing_of_the_requests_before_is_left(model, monkeypatch):
    runner = ModelRunner(model, num_pages=64, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=96)
    llm = LLM(runner, max_num_seqs=8, max_num_batched_tokens=32)
    running = llm.stream(PROMPTS[2], SamplingParams(temperature=5.0, seed=1, max_tokens=20))
    for _ in range(2):
        next(running)
    with monkeypatch.context() as stopped:
        stopped.setattr(runner, "launch", lambda step: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            next(running)
    for prompt, each in zip(PROMPTS, (GREEDY, PARAMS[4], GREEDY, *PARAMS[:1]), strict=False):
        assert [[one.token_ids for one in output.outputs] for output in llm.generate(prompt, each)] == served(
            model, [prompt], each)[0]


def test_logits_that_are_no_numbers_are_named(model):
    def linear(x, weight, out, bias=None, stream=0):
        out.copy_to_device(np.full(out.shape, np.nan, np.float32))

    broken = model.with_kernels(replace(model.kernels, linear=linear))
    with pytest.raises(ValueError, match="request 0: the model's logits are NaN"):
        served(broken, PROMPTS[:1], GREEDY, enforce_eager=True)


def test_ids_that_the_model_does_not_have_reach_no_kernel(model, monkeypatch):
    """Of a tokenizer with more ends of text than the model has tokens: none is written into the row behind."""
    from labkit.engine import model_runner

    banned, ban = [], model_runner.ban_tokens
    monkeypatch.setattr(model_runner, "ban_tokens",
                        lambda logits, pairs, **how: banned.append(pairs.copy_to_host()) or ban(logits, pairs, **how))
    runner = ModelRunner(model, num_pages=64, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=96)
    words = SimpleNamespace(stop=(5, 97, 4096), encode=str.split, decode=lambda ids, marks: f" {len(ids)}")
    llm = LLM(runner, words, max_num_seqs=8, max_num_batched_tokens=32)
    others = [replace(GREEDY, ignore_eos=True)] * 4
    outputs = llm.generate(PROMPTS, [replace(GREEDY, min_tokens=4), *others])
    assert banned and all(0 <= token < 97 for pairs in banned for token in pairs[:, 1])
    expected = served(model, PROMPTS[1:], GREEDY)[0]
    assert [[one.token_ids for one in output.outputs] for output in outputs[1:]] == expected
    words.encode = lambda text, special: [97] if len(text.strip()) == 1 else [5, 97]  # bad words
    outputs = llm.generate(PROMPTS, replace(GREEDY, ignore_eos=True, bad_words=["x", "yz"]))
    assert [[one.token_ids for one in output.outputs] for output in outputs] == served(model, PROMPTS, GREEDY)[0]
    words.stop = (97,)
    assert len(llm.generate(PROMPTS[:1], replace(GREEDY, min_tokens=4))[0].outputs[0].token_ids) == 12
    with pytest.raises(ValueError, match="stop_token_ids has the token 4096; tokens of this model are from 0 to 96"):
        llm.generate(PROMPTS[:1], replace(GREEDY, min_tokens=2, stop_token_ids=[4096]))


@pytest.mark.parametrize("wrong", [[[-3]], [[10**12]], [[97]], [[1.5, 2]], [None], {"text": "x"}])
def test_a_bad_request_ends_alone(model, wrong):
    runner = ModelRunner(model, num_pages=64, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=96)
    llm = LLM(runner, max_num_seqs=8, max_num_batched_tokens=32)
    running = llm.stream(PROMPTS[1], GREEDY)
    next(running)
    with pytest.raises((ValueError, TypeError), match="prompt "):
        llm.generate(wrong, GREEDY)
    assert list(running)[-1].outputs[0].token_ids == served(model, PROMPTS[1:2], GREEDY)[0][0][0]
    assert [output.outputs[0].token_ids for output in llm.generate(PROMPTS[0], GREEDY)] == served(
        model, PROMPTS[:1], GREEDY)[0][0]


@pytest.mark.parametrize(("wrong", "kind"), [(0, ValueError), (1, ValueError), (-5, ValueError), (1.5, TypeError),
                                             (True, TypeError), (CONFIG.max_position_embeddings + 1, ValueError)])
@pytest.mark.parametrize("build", [ModelRunner, runner_of])
def test_a_longest_sequence_that_cannot_be_is_refused(model, build, wrong, kind):
    with pytest.raises(kind, match=f"max_model_len is {wrong}; it must be "):
        build(model, num_pages=8, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=wrong)


@pytest.mark.parametrize("name", ["num_pages", "max_num_seqs", "max_num_batched_tokens"])
def test_sizes_are_one_or_more(model, name):
    sizes = {"num_pages": 8, "max_num_seqs": 2, "max_num_batched_tokens": 8}
    for wrong, kind in ((0, ValueError), (2.0, TypeError), (10**9, ValueError)):
        with pytest.raises(kind, match=f"{name} is {wrong}; it must be "):
            ModelRunner(model, **sizes | {name: wrong})


def log_softmax(logits) -> np.ndarray:
    x = logits.copy_to_host()[0].astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0, max_tokens=12, logprobs=4),
    SamplingParams(temperature=0, max_tokens=12, logprobs=4, frequency_penalty=2.0, repetition_penalty=1.5),
    SamplingParams(temperature=3.0, seed=2, max_tokens=12, logprobs=4, min_tokens=12, stop_token_ids=[1, 2, 3]),
], ids=["greedy", "penalties", "drawn"])  # fmt: skip
def test_logprobs_are_the_models_whatever_is_drawn_from(model, params):
    """Before penalties, the temperature and what is banned; ranks begin with 1."""
    _, llm = served(model, [], GREEDY)
    (one,) = llm.generate(PROMPTS[1], params)[0].outputs
    alone, ranks = llama.SingleSequence(model, 96), []
    logits = alone(PROMPTS[1])
    for token, found in zip(one.token_ids, one.logprobs, strict=True):
        expected = log_softmax(logits)
        order = np.argsort(-expected, kind="stable")
        ranks.append(found[token].rank)
        assert found[token].rank == order.tolist().index(token) + 1
        assert {each for each in found if found[each].rank <= 4} == set(order[:4].tolist())
        for each, listed in found.items():
            assert listed.logprob == pytest.approx(expected[each], abs=1e-4)
            assert listed.rank == order.tolist().index(each) + 1
        logits = alone([token])
    assert ranks == [1] * 12 if params.greedy and not params.penalized else max(ranks) > 1


def test_logprobs_of_prompts_are_the_models(model):
    """In chunks, with a prefix that is cached, after preemption, of all outputs of a prompt; one's company has none."""
    prompts = [PROMPTS[2], PROMPTS[2], PROMPTS[3], PROMPTS[4]]
    wanted = [None, 3, 2, 0]
    params = [SamplingParams(temperature=1.0, seed=4, max_tokens=14, prompt_logprobs=count, n=2) for count in wanted]
    runner = ModelRunner(model, num_pages=9, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=96)
    llm = LLM(runner, max_num_seqs=4, max_num_batched_tokens=16)
    llm.generate(PROMPTS[2], GREEDY)
    outputs = llm.generate(prompts, params)
    assert llm.stats().preemptions > 0
    assert outputs[0].prompt_logprobs is None and outputs[0].num_cached_tokens == 32
    assert all(output.num_cached_tokens == 0 for output in outputs[1:])
    for prompt, count, output in zip(prompts[1:], wanted[1:], outputs[1:], strict=True):
        alone = llama.SingleSequence(model, 96)
        assert len(output.prompt_logprobs) == len(prompt) and output.prompt_logprobs[0] is None
        for before, token, found in zip(prompt[:-1], prompt[1:], output.prompt_logprobs[1:], strict=True):
            expected = log_softmax(alone([before]))
            order = np.argsort(-expected, kind="stable").tolist()
            assert set(found) == {token, *order[:count]} and found[token].rank == order.index(token) + 1
            for each, listed in found.items():
                assert listed.logprob == pytest.approx(expected[each], abs=1e-4)


def test_a_model_is_loaded_by_the_name_of_its_folder(model, tmp_path):
    import json

    import tokenizers
    from safetensors.numpy import save_file

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 0} | {
        name: getattr(CONFIG, name) for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                                 "num_attention_heads", "num_key_value_heads", "head_dim",
                                                 "max_position_embeddings", "tie_word_embeddings")}))
    save_file({f"model.{name}": tensor for name, tensor in model.tensors.items()}, tmp_path / "model.safetensors")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{number}": number for number in range(97)}, "w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    llm = LLM(tmp_path, dtype="float32", max_num_seqs=8, max_num_batched_tokens=32, max_model_len=96)
    (output,) = llm.generate(" ".join(f"w{token}" for token in PROMPTS[1]), GREEDY)
    expected = served(model, PROMPTS[1:2], GREEDY)[0][0][0]
    assert output.outputs[0].token_ids == expected[: expected.index(0) + 1 if 0 in expected else None]
    assert llm.stats().pages == 8 * (6 + 1)
    with pytest.raises(ValueError, match="gpu_memory_utilization is 2"):
        LLM(tmp_path, dtype="float32", gpu_memory_utilization=2)
    with pytest.raises(UserError, match="tiny is a GPT2; the engine runs Llama and Qwen3"):
        LLM("tiny")


def test_a_graph_runs_again_and_is_never_made_of_launches_that_were_only_looked_at(model):
    runner = ModelRunner(model, num_pages=8, max_num_seqs=2, max_num_batched_tokens=8, max_model_len=96)
    step = decoding(runner, 2, 20)
    assert launches.planned(lambda: runner.launch(step))
    with pytest.raises(KeyError):
        runner.captured(2)
    rng = np.random.default_rng(0)
    runner.fill_cache(rng.standard_normal((8, 1, 16, 32)).astype(np.float32))
    tokens = [sampled.token for sampled in runner.launch(step).tokens()]
    graph, logits = runner.captured(2)
    expected = logits.copy_to_host()
    assert expected.argmax(axis=1).tolist() == tokens
    logits.copy_to_device(np.zeros_like(expected))
    graph.launch()
    np.testing.assert_array_equal(logits.copy_to_host(), expected)
