"""MiniLM: every launch against NumPy on random weights, the same bits in any batch, memory, and each refusal; what
transformers makes of the real weights where they are in the cache, and of random ones where it is installed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda, device
from labkit._common.paths import REPOSITORY
from labkit.kernels.gelu import gelu_vectorized
from labkit.models import minilm
from labkit.models.blob import Blob
from labkit.models.configs import BertConfig, names_in, shapes
from labkit.models.minilm import (
    FEW_ROWS,
    FLOAT32,
    HALF,
    Config,
    MiniLM,
    Shape,
    Workspace,
    arranged,
    few_values,
    lay_out,
)
from labkit.models.minilm_reference import cosines, embeddings, parity, weights_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

# Heads of 32 and one sentence of more than 64 tokens: the form of attention that its own tests have compiled.
SMALL = Config(vocab_size=61, max_position_embeddings=96, type_vocab_size=2, hidden_size=64, num_hidden_layers=2,
               num_attention_heads=2, intermediate_size=96)
LENGTHS = (5, 0, 70, 1, 16, 33)
COSINE = {np.float32: 0.99999, np.float16: 0.9999}
GOLDEN = REPOSITORY / "tests" / "golden" / "minilm"


def random_tensors(config, prefix="", seed=0):
    """Weights about as large as trained ones; LayerNorms and biases too are not what a fresh model has."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("LayerNorm.weight"):
            values = 1 + 0.2 * values
        elif len(shape) == 1:
            values *= 0.2
        elif name.startswith("encoder"):
            values /= np.sqrt(shape[1])
        found[prefix + name] = values.astype(np.float32)
    return found


def random_sentences(config, lengths=LENGTHS, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, config.vocab_size, count).tolist() for count in lengths]


@pytest.fixture(scope="module")
def tensors():
    return random_tensors(SMALL)


@pytest.fixture(scope="module", params=[np.float32, np.float16], ids=["float32", "float16"])
def either(request, tensors):
    return MiniLM(SMALL, tensors, request.param)


@pytest.fixture(scope="module")
def model(tensors):
    return MiniLM(SMALL, tensors, np.float32)


SENTENCES = random_sentences(SMALL)


# --- Against NumPy ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("form", ["packed", "padded"])
def test_every_launch_is_right(either, form):
    table = parity(either, SENTENCES, form).check()
    assert [row.name for row in table.rows] == [
        "embedding", *(f"layer.{layer}.{name}" for layer in range(2) for name in
                       ("qkv", "attended", "attention.projected", "attention.normed", "gelu", "projected", "out")),
        "pooled"]


@pytest.mark.sweep
def test_every_launch_of_the_kernels_for_a_gpu_is_right(tensors):
    parity(MiniLM(SMALL, tensors, np.float16, HALF), SENTENCES).check()


@pytest.mark.sampled(0, sweep=2, quick="float32")
def test_embeddings_and_means(either, tensors):
    model, w = either, weights_of(tensors, SMALL)
    for normalize in (True, False):
        expected = embeddings(SMALL, w, SENTENCES, normalize)
        found = model.embed(SENTENCES, normalize=normalize)
        assert found.shape == (len(SENTENCES), 64) and found.dtype == np.float32
        assert cosines(found, expected).min() >= COSINE[model.dtype.type]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 if model.dtype == np.float32 else 1e-2)
    assert not found[1].any()  # the sentence without tokens


def test_the_first_activation_that_differs_is_named(tensors):
    def tanh_gelu(x, weights, bias, out, *, gelu=False, parts=None, stream=0):
        FLOAT32.linear(x, weights, bias, out, stream=stream)
        if gelu:
            gelu_vectorized(out, out, stream=stream)

    table = parity(MiniLM(SMALL, tensors, np.float32, replace(FLOAT32, linear=tanh_gelu)), SENTENCES)
    assert not table.passed and table.first.name == "layer.0.gelu"


def test_queries_keys_and_values_are_in_this_order_in_one_product(tensors):
    found = arranged(tensors, SMALL, np.float32, in_out=False)
    at = "encoder.layer.1.attention.self."
    for number, part in enumerate(("query", "key", "value")):
        rows = slice(64 * number, 64 * (number + 1))
        np.testing.assert_array_equal(found[f"{at}qkv.weight"][rows], tensors[f"{at}{part}.weight"])
        np.testing.assert_array_equal(found[f"{at}qkv.bias"][rows], tensors[f"{at}{part}.bias"])
    transposed = arranged(tensors, SMALL, np.float32, in_out=True)
    np.testing.assert_array_equal(transposed["encoder.layer.0.intermediate.dense.weight"],
                                  tensors["encoder.layer.0.intermediate.dense.weight"].T)
    assert transposed["embeddings.word_embeddings.weight"].shape == (61, 64)


# --- The same bits everywhere ----------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("kernels", [None, pytest.param(HALF, marks=pytest.mark.sweep)], ids=["default", "of a GPU"])
def test_the_same_bits_at_any_padding_and_in_any_batch(either, kernels):
    model = either
    if kernels is not None:
        if model.dtype != np.float16:
            pytest.skip("these kernels are float16's")
        model = model.with_kernels(kernels)
    elif device.on_gpu() and model.dtype == np.float32:
        pytest.skip("on a GPU float32 products pick their kernel by the number of rows")
    together = model.embed(SENTENCES)
    np.testing.assert_array_equal(model.embed(SENTENCES, "padded"), together)
    backwards = model.embed(SENTENCES[::-1])[::-1]
    np.testing.assert_array_equal(backwards, together)
    np.testing.assert_array_equal(model.embed(SENTENCES[1:3])[1], together[2])


@pytest.mark.cpu_device
def test_the_same_bits_alone(model):
    together = model.embed(SENTENCES)
    for one in (0, 2, 4):
        np.testing.assert_array_equal(model.embed([SENTENCES[one]])[0], together[one])


@pytest.mark.sweep
@pytest.mark.parametrize("kernels", [None, HALF], ids=["default", "of a GPU"])
def test_the_same_bits_in_every_form_of_attention(tensors, kernels):
    """Each length that stands alone has tiles of its own size, and so has padding to 128."""
    model = MiniLM(SMALL, tensors, np.float16, kernels)
    together = model.embed(SENTENCES)
    np.testing.assert_array_equal(model.embed(SENTENCES, "padded_to_128"), together)
    for one in (0, 4, 5):
        np.testing.assert_array_equal(model.embed([SENTENCES[one]])[0], together[one])


@pytest.mark.sampled(1, quick="float32")
def test_rows_of_no_sentence_reach_no_result(either):
    """Every buffer is full of NaN before, and shapes are rounded up so that some of it is read by every launch."""
    model, some = either, SENTENCES[:3]
    ws = Workspace(SMALL, Shape(256, 16, 128), model.dtype, model.kernels)

    def embed_after(value, form):
        for array in (ws.ping, ws.pong, ws.attended, ws.projected, ws.qkv, ws.inner, ws.pooled, *ws.scratch.values()):
            array.copy_to_device(np.full(array.shape, value, array.dtype))
        return model.embed(some, form, workspace=ws)

    for form in ("packed", "padded"):
        found = embed_after(np.nan, form)
        np.testing.assert_array_equal(found, embed_after(0, form))
        # In another workspace, whose rows are others, a GPU may divide K otherwise.
        np.testing.assert_allclose(found, model.embed(some), atol=1e-6 if model.dtype == np.float32 else 1e-3)


# --- Memory and graphs -----------------------------------------------------------------------------------------------


def test_a_batch_allocates_nothing(model, monkeypatch):
    model.embed(SENTENCES)
    ws, count = model.workspace, []
    for name in ("device_array", "device_array_like", "to_device"):
        real = getattr(cuda, name)
        monkeypatch.setattr(cuda, name, lambda *args, real=real, **named: count.append(0) or real(*args, **named))
    model.embed(SENTENCES)  # a graph
    model.embed(SENTENCES[:3])  # another shape
    model.embed(SENTENCES[:3], normalize=False)
    assert not count and model.workspace is ws


def test_a_larger_batch_gets_a_larger_workspace(tensors):
    model = MiniLM(SMALL, tensors, np.float32)
    model.embed(SENTENCES[:1])
    small = model.workspace
    model.embed(SENTENCES, "padded_to_128")
    assert small.shape == (16, 1, 16)
    assert model.workspace is not small and model.workspace.fits(Shape(6 * 128, 6, 128))
    assert model.workspace.fits(small.shape)


def test_the_memory_is_what_the_shapes_say():
    workspace = Workspace(SMALL, Shape(48, 3, 16), np.float16, HALF)
    assert workspace.nbytes == 4 * (3 * 48 + 2 * 3) + 2 * 48 * (4 * 64 + 3 * 64 + 96) + 4 * 3 * 64


def test_two_buffers_in_turns_give_what_fresh_ones_give(model):
    seen = []
    model.embed(SENTENCES, watch=lambda name, array: seen.append((name, array.copy_to_host())))
    ws = Workspace(SMALL, lay_out([np.array(one, np.int32) for one in SENTENCES], "packed")[0], model.dtype,
                   model.kernels)
    shape, host = lay_out([np.array(one, np.int32) for one in SENTENCES], "packed")
    b = ws.batch(shape)
    b.inputs.copy_to_device(host)
    expected, x = dict(seen), cuda.to_device(dict(seen)["embedding"])
    rows = sum(LENGTHS)
    for number in range(SMALL.num_hidden_layers):
        out = cuda.to_device(np.full(x.shape, np.nan, x.dtype))
        model.layer(number, x, out, b)
        np.testing.assert_array_equal(out.copy_to_host()[:rows], expected[f"layer.{number}.out"][:rows])
        x = out


def test_a_shape_is_one_graph_and_takes_another_batch(model):
    first, other = SENTENCES, random_sentences(SMALL, LENGTHS[::-1], seed=5)
    expected = model.embed(other, watch=lambda *_: None)  # launch by launch
    model.workspace.graphs.clear()
    model.embed(first)
    assert [key[1] for key in model.workspace.graphs] == [lay_out([np.array(s) for s in first], "packed")[0]]
    np.testing.assert_array_equal(model.embed(other), expected)
    assert len(model.workspace.graphs) == 1
    graph = next(iter(model.workspace.graphs.values()))
    # A GPU shares a float32 product of few rows among more blocks than it has tiles, and adds up in another launch.
    assert graph.nodes >= 1 + 7 * SMALL.num_hidden_layers + 1
    assert device.on_gpu() or graph.nodes == 1 + 7 * SMALL.num_hidden_layers + 1


def test_old_graphs_make_room(tensors, monkeypatch):
    monkeypatch.setattr(minilm, "MAX_GRAPHS", 2)
    model = MiniLM(SMALL, tensors, np.float32)
    model.embed(random_sentences(SMALL, (40,)))
    for count in (1, 17, 40):
        model.embed(random_sentences(SMALL, (count,)))
    assert len(model.workspace.graphs) == 2


# --- Batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_one_array_with_positions_that_begin_anew():
    sentences = [np.array(one, np.int32) for one in ([7, 8, 9], [], [4])]
    shape, host = lay_out(sentences, "packed")
    assert shape == (16, 3, 16)
    ids, types, positions, begins, lengths = np.split(host, (16, 32, 48, 51))
    assert ids[:4].tolist() == [7, 8, 9, 4] and not ids[4:].any() and not types.any()
    assert positions[:4].tolist() == [0, 1, 2, 0] and not positions[4:].any()
    assert begins.tolist() == [0, 3, 3] and lengths.tolist() == [3, 0, 1]
    shape, host = lay_out(sentences, "padded")
    assert shape == (48, 3, 16) and host[[0, 1, 2, 32]].tolist() == [7, 8, 9, 4]
    assert host[3 * 48 : 3 * 48 + 3].tolist() == [0, 16, 32]
    assert lay_out(sentences, "padded_to_128")[0] == (384, 3, 128)
    assert lay_out([np.zeros(130, np.int32)], "padded_to_128")[0] == (144, 1, 144)


def test_few_shapes_occur_and_little_is_added():
    rows = [few_values(count, 16) for count in range(1, 20_000)]
    assert all(0 <= found - count < max(16, count / 15) for count, found in enumerate(rows, 1))
    assert all(found % 16 == 0 for found in rows) and len(set(rows)) < 150
    assert [few_values(count) for count in (1, 16, 31, 32, 33, 64, 65)] == [1, 16, 31, 32, 34, 64, 68]


def test_no_sentences_and_only_empty_ones(model):
    assert model.embed([]).shape == (0, 64)
    assert not model.embed([[], []]).any()


# --- Files, and what is refused --------------------------------------------------------------------------------------


def test_names_with_a_prefix_and_tensors_besides():
    tensors = random_tensors(SMALL, BertConfig.prefix) | {"bert.pooler.dense.weight": np.ones((64, 64), np.float32)}
    assert names_in(tensors, SMALL)["encoder.layer.0.output.dense.bias"] == "bert.encoder.layer.0.output.dense.bias"
    parity(MiniLM(SMALL, tensors, np.float32), SENTENCES[:1]).check()


def test_other_kernels_get_the_weights_as_they_take_them(tensors):
    model = MiniLM(SMALL, tensors, np.float16, FEW_ROWS)
    assert model.with_kernels(replace(FEW_ROWS, in_out=True)).weights is model.weights
    assert model.with_kernels(HALF).layers[0]["intermediate.dense.weight"].shape == (96, 64)
    assert model.layers[0]["intermediate.dense.weight"].shape == (64, 96)


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'; only 'gelu' can be computed here"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"model_type": "roberta"}, "model_type is 'roberta'; only 'bert'"),
    ({"is_decoder": True}, "is_decoder is True"),
    ({"hidden_size": 385}, "hidden_size is 385, which 12 heads cannot share equally"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be a whole number from 1"),
    ({"vocab_size": 1.5}, "vocab_size is 1.5"),
    ({"layer_norm_eps": 0}, "layer_norm_eps is 0; it must be a number between 0 and 1"),
    ({"layer_norm_eps": "small"}, "layer_norm_eps is 'small'"),
])  # fmt: skip
def test_configurations_that_would_be_computed_wrongly(change, message):
    with pytest.raises(ValueError, match=f"config: {message}"):
        Config.of({"model_type": "bert", "hidden_act": "gelu", **change})


def test_files_that_do_not_fit(tensors):
    name = "encoder.layer.1.output.dense.weight"
    for change, message in (({name: None}, f"1 parameters of a BERT with 2 layers are not in the file: {name}"),
                            ({name: np.ones((64, 64), np.float32)}, r"has shape \(64, 64\); the configuration says"),
                            ({name: np.ones((64, 96), np.int32)}, "is of type int32"),
                            ({name: np.full((64, 96), np.nan, np.float32)}, "6,144 of its 6,144 numbers are not")):
        changed = {key: value for key, value in (tensors | change).items() if value is not None}
        with pytest.raises(ValueError, match=message):
            MiniLM(SMALL, changed, np.float32)
    with pytest.raises(ValueError, match="num_hidden_layers is 1,000"):
        names_in(tensors, replace(SMALL, num_hidden_layers=1000))
    with pytest.raises(TypeError, match="dtype is .*float64.*; for a BERT it must be 'auto', 'float16' or 'float32'"):
        MiniLM(SMALL, tensors, np.float64)


def test_sentences_are_checked(model):
    for sentences, message in (([[61]], "sentence 0: token 61 is not in the vocabulary, which has 61"),
                               ([[1], [-1]], "sentence 1: token -1"), ([[1.5]], "sentence 0 must be a list of token"),
                               ([[[1]]], r"it has shape \(1, 1\)"), ([[2], "hello"], "sentence 1 must be a list"),
                               ([[2], 7], r"sentence 1 must be a list of token ids, one or more; it has shape \(\)"),
                               ([np.array([1]), np.array([[2]])], "sentence 1 must be a list of token ids"),
                               ([[1] * 97], "sentence 0 has 97 tokens; the model has 96 positions")):
        with pytest.raises(ValueError, match=message):
            model.embed(sentences)
    with pytest.raises(TypeError, match="sentences is a text"):
        model.embed("hello")
    with pytest.raises(ValueError, match="form is 'loose'; 'packed', 'padded', 'padded_to_128' are allowed"):
        model.embed([[1]], "loose")
    with pytest.raises(ValueError, match="the workspace's capacity is"):
        model.embed([[1] * 20], workspace=Workspace(SMALL, Shape(16, 1, 16), model.dtype, model.kernels))
    with pytest.raises(ValueError, match="must be at least 1"):
        Workspace(SMALL, Shape(16, 0, 16))


# --- Against transformers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 56},
                                   {"hidden_size": 32, "num_attention_heads": 1, "layer_norm_eps": 1e-3}])
def test_any_shape_live(shape, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the golden files stand for it")
    transformers = pytest.importorskip("transformers")
    from labkit.models.safetensors import read

    torch.manual_seed(0)
    theirs = transformers.BertModel(transformers.BertConfig(
        vocab_size=61, max_position_embeddings=96, num_hidden_layers=2, initializer_range=0.3,
        **{"intermediate_size": 64, **shape}), add_pooling_layer=False).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    sentences = [one for one in SENTENCES if one]
    with torch.no_grad():
        theirs = theirs.double()
        means = [theirs(torch.tensor([one])).last_hidden_state[0].mean(0).numpy() for one in sentences]
    expected = np.array([mean / np.linalg.norm(mean) for mean in means])
    config, tensors = Config.read(tmp_path / "config.json"), read(tmp_path / "model.safetensors")
    np.testing.assert_allclose(embeddings(config, weights_of(tensors, config), sentences), expected, atol=1e-10)
    for dtype, least in COSINE.items():
        assert cosines(MiniLM(config, tensors, dtype).embed(sentences), expected).min() >= least


# --- The real weights ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    """(config, tensors) of all-MiniLM-L6-v2."""
    weights = pytest.importorskip("labkit.models.weights")
    from labkit.models.safetensors import read

    if not weights.is_there(weights.MINILM):
        pytest.skip("the weights of MiniLM are not in the cache: `labkit weights minilm` fetches them")
    folder = weights.folder(weights.MINILM)
    return Config.read(folder / "config.json"), read(folder / "model.safetensors")


def golden():
    known = json.loads((GOLDEN / "sentences.json").read_text())
    return [one["ids"] for one in known["sentences"]], np.load(GOLDEN / "embeddings.npy")


def test_goldens_are_what_they_should_be():
    ids, expected = golden()
    lengths = [len(one) for one in ids]
    assert len(ids) == len(expected) == 48 and min(lengths) == 2 and max(lengths) == 256
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    assert (np.sort(expected @ expected.T, axis=1)[:, 0] < 0.3).all()  # not all alike


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", COSINE)
def test_short_goldens_on_the_real_weights(real, dtype):
    ids, expected = golden()
    some = [i for i, one in enumerate(ids) if len(one) <= 8][:6]
    found = MiniLM(*real, dtype).embed([ids[i] for i in some])
    assert cosines(found, expected[some]).min() >= COSINE[dtype]


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", COSINE)
def test_goldens_of_every_length_on_the_real_weights(real, dtype):
    """On a GPU all of them, on the CPU device every twelfth."""
    ids, expected = (one[:: device.pick(gpu=1, cpu=12)] for one in golden())
    model = MiniLM(*real, dtype)
    found = {form: model.embed(ids, form) for form in ("packed", "padded")}
    assert cosines(found["packed"], expected).min() >= COSINE[dtype]
    np.testing.assert_allclose(found["packed"], expected, atol=2e-6 if dtype == np.float32 else 2e-3)
    np.testing.assert_array_equal(found["padded"], found["packed"])


@pytest.mark.sweep
def test_2000_sentences_on_the_real_weights(real):
    """Of mixed lengths, against NumPy in float64: on a GPU all of them, on the CPU device every five hundredth."""
    config, tensors = real
    w = weights_of(tensors, config)
    rng = np.random.default_rng(0)
    lengths = np.minimum(np.rint(rng.exponential(24, 2000)) + 1, 256).astype(int)
    sentences = random_sentences(config, lengths, seed=2)[:: device.pick(gpu=1, cpu=500)]
    models = {dtype: MiniLM(config, tensors, dtype) for dtype in COSINE}
    for first in range(0, len(sentences), 64):
        batch = sentences[first : first + 64]
        expected = embeddings(config, w, batch)
        for dtype, model in models.items():
            found = model.embed(batch)
            assert cosines(found, expected).min() >= COSINE[dtype]
            np.testing.assert_array_equal(model.embed(batch, "padded"), found)


def test_a_blob_takes_the_arranged_parameters(tensors):
    blob = Blob(arranged(tensors, SMALL, np.float16, in_out=True))
    assert blob["encoder.layer.0.attention.self.qkv.weight"].shape == (64, 192)
