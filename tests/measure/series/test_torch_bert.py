"""PyTorch's side of MiniLM's series, on the host: every form computes what the reference does, and what fails says why.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.measure import Timing
from labkit.measure.series import beside_torch, torch_bert
from labkit.measure.series import minilm as series
from labkit.models.minilm import HALF, MiniLM
from labkit.models.minilm_reference import embeddings, weights_of
from labkit.models.tokenizer import SentenceTokenizer
from tests.models.test_sentences import word_pieces

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

LENGTHS = 3, 5, 16, 16, 2
LATER = 1e12  # on time.monotonic's clock


@pytest.fixture
def model():
    return MiniLM(series.TINY, series.random_tensors(series.TINY), np.float16, HALF)


@pytest.fixture
def bert(model):
    with torch.no_grad():
        yield torch_bert.TorchBert(torch, model, "cpu")


@pytest.fixture
def timed(monkeypatch):
    """The times that a GPU would take, and a compiler that compiles nothing."""
    compiled = []

    def compile(function, **options):
        compiled.append((getattr(function, "__name__", None), options))
        return function

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "compile", compile)
    for module in (torch_bert, beside_torch):
        monkeypatch.setattr(module, "time_torch_graph", lambda call, launches: Timing.of([2.0], "a GPU"))
    return compiled


def reference(model, sentences):
    return embeddings(model.config, weights_of(model.tensors, model.config), sentences)


def as_json(found):
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("lengths", [(5, 16, 3), (16, 16)])
def test_what_runs_beside_it_computes_the_same(model, bert, lengths):
    """PyTorch's own functions in each form, and transformers' model, on the host."""
    sentences = series.sentences_of(lengths, 61)
    expected = reference(model, sentences)
    inputs = bert.inputs(sentences, 16)
    assert (inputs[1] is None) == (lengths == (16, 16))
    calls = [lambda sdpa=sdpa: bert.forward(*inputs, sdpa=sdpa) for sdpa in (True, False)]
    for call in (*calls, torch_bert.transformers_call(bert, *inputs, compiled=False)):
        assert torch_bert.smallest_cosine(expected, call()) > 0.9999


@pytest.mark.sweep(every=True)
def test_ways_to_run_torch_that_fail_say_why(bert, monkeypatch):
    """On the host, with the clock of the wall in place of CUDA's: each way has a time, or the reason why not."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no compiler here")))
    found = as_json(torch_bert.torch_rows(bert, series.sentences_of((16,), 61), 16))
    late = torch_bert.torch_rows(bert, series.sentences_of((16,), 61), 16, compile_until=0.0)
    assert all(found[way] > 0 for way in ("eager", "SDPA", "transformers"))
    assert found["compiled"] is None and "no compiler here" in found["compiled: why not"]
    assert late["three lines"] is None and "used up" in late["three lines: why not"]


# --- Packed ----------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("lengths", [LENGTHS, (16,) * 8, (20,) * 9], ids=["short", "a full block", "two blocks"])
@pytest.mark.parametrize("attention", ["varlen", "flex"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_packed_is_padded(model, bert, lengths, attention):
    sentences = series.sentences_of(lengths, 61)
    packed = bert.packed(sentences)
    assert len(packed.ids) % torch_bert.BLOCK == 0 and packed.begins[-1] == sum(lengths) <= len(packed.ids)
    attend = bert.varlen if attention == "varlen" else bert.flex(packed, lambda function: function)
    found = bert.forward_packed(packed, attend)
    assert torch_bert.smallest_cosine(reference(model, sentences), found) > 0.9999
    torch.testing.assert_close(found, bert.forward(*bert.inputs(sentences, 24)), atol=4e-3, rtol=0)


def test_a_sentence_of_a_pack_is_alone_in_it(bert):
    """Neither its neighbours nor the rows of no sentence reach it."""
    one, *others = series.sentences_of(LENGTHS, 61)
    alone, together = (bert.packed(sentences) for sentences in ([one], [one, *others]))
    together.ids[together.begins[-1] :] = 7
    torch.testing.assert_close(bert.forward_packed(alone, bert.varlen)[0],
                               bert.forward_packed(together, bert.varlen)[0], atol=2e-3, rtol=0)


def test_the_layout_of_a_pack():
    host = torch_bert.lay_out_packed(np.array([9, 8, 7, 6, 5]), np.array([2, 3]), 8)
    assert host.dtype == np.int32
    assert host.tolist() == [9, 8, 7, 6, 5, 0, 0, 0] + [0, 1, 0, 1, 2, 0, 0, 0] + [0, 2, 5]


@pytest.mark.slow
def test_compiled_parts_take_any_number_of_rows(bert, model):
    """By the compiler for the host. The second shape is the last that compiles anything anew."""
    parts = bert.compiled()
    for lengths in (LENGTHS, LENGTHS * 9, LENGTHS * 30):
        sentences = series.sentences_of(lengths, 61)
        expected = reference(model, sentences)
        found = bert.forward_packed(bert.packed(sentences), bert.varlen, parts)
        assert torch_bert.smallest_cosine(expected, found) > 0.9999
        frames = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        if len(sentences) == len(LENGTHS) * 9:
            after_two = frames
    assert frames == after_two


# --- A corpus --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_rows_of_a_corpus(model, bert, timed):
    sentences = series.sentences_of(sorted(LENGTHS), 61)
    found = as_json(torch_bert.corpus_rows(bert, sentences, (2, 5), reference(model, sentences), LATER))
    assert [(row["form"], row["batch"]) for row in found] == [("padded", 2), ("padded", 5), ("packed", 5)]
    for row in found:
        assert row["graph_sentences_per_second"] == row["compiled_graph_sentences_per_second"] == 2500.0
        assert row["called_sentences_per_second"] > 0 and "why_not" not in row and row["cosine"] > 0.9999
    assert list(found[0]["compiled_ways"]) == ["compiled"]
    assert set(found[2]["compiled_ways"]) == {f"{one}{how}" for one in ("varlen", "FlexAttention")
                                              for how in ("", ", autotuned")}
    parts = [name for name, _ in timed if name in torch_bert.COMPILED]
    assert parts == 3 * list(torch_bert.COMPILED), "once for all padded rows, once for each mode of packed ones"
    assert [options["mode"] for name, options in timed if name == "flex_attention"] == ["default", torch_bert.AUTOTUNED]


def test_the_truth_is_float64(model):
    sentences = series.sentences_of(LENGTHS, 61)
    expected = embeddings(model.config, weights_of(model.tensors, model.config), sentences)
    np.testing.assert_allclose(torch_bert.truth_of(model, sentences, size=2), expected, atol=1e-12)


def test_a_way_that_fails_costs_only_itself(model, bert, timed, monkeypatch):
    def broken(*args):
        raise RuntimeError("no FlashAttention here")

    sentences = series.sentences_of(LENGTHS, 61)
    ours = reference(model, sentences)
    monkeypatch.setattr(bert, "varlen", broken)
    padded, packed = as_json(torch_bert.corpus_rows(bert, sentences, (5,), ours, compile_until=0.0))
    assert padded["graph_sentences_per_second"] == 2500.0 and padded["compiled_graph_sentences_per_second"] is None
    assert "used up" in padded["compiled_ways"]["compiled: why not"]
    assert packed["graph_sentences_per_second"] is None and "no FlashAttention here" in packed["why_not"]
    assert packed["compiled_ways"]["FlexAttention"] is None

    other = torch_bert.rates(bert, lambda: bert.forward(*bert.inputs(sentences, 16)), {}, ours[::-1], LATER)
    assert "its embeddings are wrong" in other["why_not"] and other["graph_sentences_per_second"] is None

    monkeypatch.setattr(beside_torch, "time_torch_graph", lambda call, launches: None)
    (ungraphed, _) = torch_bert.corpus_rows(bert, sentences, (5,), ours, compile_until=0.0)
    assert ungraphed["called_sentences_per_second"] > 0 and "captured" in ungraphed["why_not"]


# --- Texts -----------------------------------------------------------------------------------------------------------

TEXTS = ["a kernel loops over each row", "", "Warps wait.", "the matrix " * 9, "a kernel loops over each row"]


@pytest.fixture
def tokenizers(tmp_path):
    """Ours, and the baseline's: of one file, cut at 12 tokens."""
    word_pieces().save(str(tmp_path / "tokenizer.json"))
    return SentenceTokenizer.of(tmp_path, 12), torch_bert.rust_tokenizer(tmp_path, 12)


def test_both_tokenizers_give_the_same_ids(tokenizers, bert):
    ours, plain = tokenizers
    found = torch_bert.TorchTexts(bert, plain).tokenize(TEXTS)
    assert found == [one.tolist() for one in ours.encode(TEXTS)] and max(map(len, found)) == 12


@pytest.fixture
def worded(tokenizers):
    """A model whose vocabulary is the tokenizer's."""
    config = series.replace(series.TINY, vocab_size=tokenizers[1].get_vocab_size())
    return MiniLM(config, series.random_tensors(config), np.float16, HALF)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_embeddings_of_texts_are_in_their_order(worded, tokenizers, batch_size):
    ours, plain = tokenizers
    expected = reference(worded, ours.encode(TEXTS))
    with torch.no_grad():
        baseline = torch_bert.TorchTexts(torch_bert.TorchBert(torch, worded, "cpu"), plain)
        first, again = baseline.encode(TEXTS, batch_size), baseline.encode(TEXTS[::-1], batch_size)
    assert first.dtype == np.float32 and torch_bert.cosines(expected, first).min() > 0.9999
    np.testing.assert_allclose(again, first[::-1], atol=2e-3)


def test_a_shape_of_a_batch_is_one_pass(worded, tokenizers):
    with torch.no_grad():
        baseline = torch_bert.TorchTexts(torch_bert.TorchBert(torch, worded, "cpu"), tokenizers[1])
        for _ in range(2):
            baseline.encode(TEXTS, 2)
    assert sorted(baseline.passes) == [(128, 1, 16), (128, 2, 16)]


@pytest.mark.cpu_device
def test_seconds_from_texts(worded, tokenizers):
    ours, plain = tokenizers
    expected = reference(worded, ours.encode(TEXTS))
    found = as_json(torch_bert.torch_texts(worded, plain, TEXTS, expected))
    assert found["torch_seconds_256"] > 0 and found["torch_seconds_2000"] > 0 and found["torch_way"] == "packed"
    assert found["torch_tokenizing_seconds"] > 0 and "torch_why_not" not in found
    wrong = torch_bert.torch_texts(worded, plain, TEXTS, expected[::-1])
    assert wrong["torch_seconds_2000"] is None and "its embeddings are wrong" in wrong["torch_why_not"]


@pytest.mark.cpu_device
def test_texts_fall_back_to_a_way_that_runs(worded, tokenizers, monkeypatch):
    """As a GPU without a compiler would."""
    on_gpu = SimpleNamespace(pick=lambda gpu, cpu: cpu if gpu == "cuda" else gpu)
    monkeypatch.setattr(torch_bert, "device", on_gpu)
    monkeypatch.setattr(torch_bert.TorchBert, "compiled", lambda self: (_ for _ in ()).throw(OSError("no compiler")))
    ours, plain = tokenizers
    found = torch_bert.torch_texts(worded, plain, TEXTS, reference(worded, ours.encode(TEXTS)))
    assert found["torch_way"] == "packed" and found["torch_why_not"] == "packed, compiled: OSError: no compiler"
