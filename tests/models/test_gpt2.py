"""GPT-2 against what transformers computed (golden files), against transformers itself where it is installed with
PyTorch, and against NumPy, launch by launch."""

import json

import numpy as np
import pytest

from labkit import cuda
from labkit._common.paths import REPOSITORY
from labkit.kernels.gelu import gelu_erf_vectorized
from labkit.kernels.linear.projection import projection
from labkit.models.configs import HEAD, names_in, shapes
from labkit.models.gpt2 import GPT2, Config, Decoder, Kernels, Workspace
from labkit.models.gpt2_block import separately
from labkit.models.gpt2_reference import activations, allowed_error, parity
from labkit.models.safetensors import read

GOLDEN = REPOSITORY / "tests" / "golden" / "gpt2-random"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
PROMPT = EXPECTED["prompt"]
SMALL = Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=2, n_head=2)


@pytest.fixture(scope="module")
def config():
    return Config.read(GOLDEN / "config.json")


@pytest.fixture(scope="module")
def tensors():
    return read(GOLDEN / "model.safetensors")


@pytest.fixture(scope="module")
def model(config, tensors):
    return GPT2(config, tensors)


def random_tensors(config, prefix="", head=False, seed=0):
    rng = np.random.default_rng(seed)
    result = {prefix + name: rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
              for name, shape in shapes(config).items()}
    if head:
        result[HEAD] = rng.standard_normal((config.vocab_size, config.n_embd)).astype(np.float32)
    return result


def greedy(model, workspace, prompt, count):
    logits, tokens = model.prefill(prompt, workspace), []
    for _ in range(count):
        tokens.append(int(np.argmax(logits.copy_to_host())))
        if len(tokens) < count:
            logits = model.decode(tokens[-1], workspace)
    return tokens


def launches_of(config):
    """How many activations there are, the logits included."""
    return 1 + 7 * config.n_layer + 2


def all_logits(model, ids):
    """Logits after each of the tokens, (T, V)."""
    workspace = Workspace(model.config, context=len(ids), tokens=1, dtype=model.dtype)
    return np.array([model.decode(token, workspace).copy_to_host()[0] for token in ids])


# --- Against transformers --------------------------------------------------------------------------------------------


def test_logits_are_transformers(model, config):
    expected = np.load(GOLDEN / "logits.npy")  # float64
    miss = np.abs(all_logits(model, PROMPT) - expected).max()
    assert miss <= allowed_error(config, expected, launches_of(config))
    assert miss < EXPECTED["least_margin"] / 100  # far too little to decide between two tokens


def test_64_greedy_tokens_are_transformers(model, config):
    assert greedy(model, Workspace(config), PROMPT, 64) == EXPECTED["greedy"]


def test_the_reference_is_transformers(model, config):
    weights = {name: model.weights[name].copy_to_host() for name in model.weights}
    np.testing.assert_allclose(activations(config, weights, PROMPT)["logits"], np.load(GOLDEN / "logits.npy"),
                               atol=1e-11)


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("shape", [
    {"n_embd": 48, "n_head": 3, "n_layer": 3}, {"n_embd": 40, "n_head": 1, "n_layer": 1, "n_inner": 56},
])  # fmt: skip
def test_any_shape_live(shape, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the golden files stand for it")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_positions=32, **shape, initializer_range=0.3)).eval()
    theirs.save_pretrained(tmp_path)
    config = Config.read(tmp_path / "config.json")
    ours = GPT2(config, read(tmp_path / "model.safetensors"))
    ids = np.random.default_rng(0).integers(0, 61, 9).tolist()
    with torch.no_grad():
        generated = theirs.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, pad_token_id=0)
        expected = theirs.double()(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(all_logits(ours, ids) - expected).max() <= allowed_error(config, expected, launches_of(config))
    assert greedy(ours, Workspace(config), ids, 16) == generated[0, 9:].tolist()


# --- Against NumPy ---------------------------------------------------------------------------------------------------


def test_every_activation_is_right(model, config):
    table = parity(model, PROMPT).check()
    assert len(table.rows) == launches_of(config)
    assert [row.name for row in table.rows][:3] == ["embedding", "h.0.ln_1", "h.0.attn.c_attn"]


def test_the_first_activation_that_differs_is_named(config, tensors):
    other = Kernels(linear=separately(gelu=gelu_erf_vectorized))  # the other GELU: 0.0005 apart
    table = parity(GPT2(config, tensors, other), PROMPT)
    assert not table.passed and table.first.name == "h.0.mlp.gelu"
    with pytest.raises(AssertionError, match="first activation that differs is h.0.mlp.gelu"):
        table.check()

    calls = []

    def forgets_the_bias_once(x, weights, bias, out, stream=0):
        calls.append(0)
        bias = cuda.to_device(np.zeros(bias.shape, np.float32)) if len(calls) == 6 else bias
        projection(x, weights, bias, out, stream=stream)

    # Four projections a layer: the sixth is the second one of layer 1.
    forgetful = Kernels(linear=separately(projection=forgets_the_bias_once))
    assert parity(GPT2(config, tensors, forgetful), PROMPT).first.name == "h.1.attn.added"


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_names_with_and_without_prefix_and_a_head_of_its_own(prefix, head):
    tensors = random_tensors(SMALL, prefix, head) | {prefix + "h.0.attn.bias": np.ones((1, 1, 16, 16), np.float32)}
    model = GPT2(SMALL, tensors)
    assert parity(model, [1, 2, 3]).check()
    expected = tensors[HEAD] if head else tensors[prefix + "wte.weight"]
    np.testing.assert_array_equal(model.head.copy_to_host(), expected)


def test_float16_become_float32(config, tensors):
    in_float16 = {name: tensors[name].astype(np.float16) for name in tensors}
    assert parity(GPT2(config, in_float16), PROMPT).passed


# --- The cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 24])
def test_a_prompt_in_pieces_gives_the_same_tokens(model, config, tokens):
    assert greedy(model, Workspace(config, context=48, tokens=tokens), PROMPT, 24) == EXPECTED["greedy"][:24]


def test_without_a_cache_the_tokens_are_the_same(model, config):
    """Every token from the beginning: what the cache saves."""
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(int(np.argmax(model.prefill(ids, Workspace(config)).copy_to_host())))
    assert ids[len(PROMPT):] == EXPECTED["greedy"][:6]


def test_going_back_to_an_earlier_token(model, config):
    workspace = Workspace(config)
    greedy(model, workspace, PROMPT, 5)
    workspace.reset(10)
    logits = model.prefill(PROMPT[10:], workspace)
    assert int(np.argmax(logits.copy_to_host())) == EXPECTED["greedy"][0]
    workspace.reset()
    assert greedy(model, workspace, PROMPT, 3) == EXPECTED["greedy"][:3]
    with pytest.raises(ValueError, match="the cache holds 26 tokens"):
        workspace.reset(27)


def test_a_decoder_needs_no_host(model, config):
    """Its graph is captured in the middle of a sequence, and changes nothing of it."""
    workspace = Workspace(config, context=len(PROMPT) + 15)
    first = int(np.argmax(model.prefill(PROMPT, workspace).copy_to_host()))
    decoder = Decoder(model, workspace)
    decoder(first)
    tokens = [first, decoder.likeliest()]
    for _ in range(14):
        decoder()
        tokens.append(decoder.likeliest())
    assert tokens == EXPECTED["greedy"][:16]
    assert int(workspace.start.copy_to_host()[0]) == workspace.length == len(PROMPT) + 15
    with pytest.raises(ValueError, match="1 token does not fit: 39 of 39 places"):
        decoder()


def test_a_token_allocates_nothing(model, config, monkeypatch):
    workspace = Workspace(config)
    model.decode(3, workspace)

    def refuse(*_, **__):
        raise AssertionError("memory was allocated")

    for name in ("device_array", "device_array_like"):
        monkeypatch.setattr(cuda, name, refuse)
    model.decode(5, workspace)
    assert workspace.length == 2


def test_the_memory_is_what_the_shapes_say(config):
    workspace = Workspace(config, context=32, tokens=8)
    C, T, N = 48, 8, 32
    parts = 0 if workspace.block.parts is None else workspace.block.parts.nbytes
    parts += workspace.one_row.nbytes  # of a single token's launches
    assert workspace.nbytes - parts == 4 * (T + 1 + T * (C + C + 3 * C + C + C + 4 * C) + 97 + 2 * N * 2 * C)


# --- What is refused -------------------------------------------------------------------------------------------------


def test_ids_are_checked(model, config):
    workspace = Workspace(config, context=4)
    for ids, message in (([97], "token 97 is not in the vocabulary, which has 97"), ([3, -1], "token -1"),
                         ([], "one or more"), ([1.5], "one or more"),
                         ([1] * 5, "5 tokens do not fit: 0 of 4 places")):
        with pytest.raises(ValueError, match=message):
            model.prefill(ids, workspace)
    model.prefill([1] * 4, workspace)
    with pytest.raises(ValueError, match="1 tokens do not fit: 4 of 4 places"):
        model.decode(1, workspace)


def test_a_workspace_that_cannot_be(config):
    with pytest.raises(ValueError, match="context is 129; the model has 128 positions"):
        Workspace(config, context=129)
    with pytest.raises(ValueError, match="tokens is 9; at least 1 and at most the context, 8"):
        Workspace(config, context=8, tokens=9)


@pytest.mark.parametrize(("entries", "message"), [
    ({"activation_function": "relu"}, "activation_function is 'relu'; only 'gelu_new' and 'gelu_pytorch_tanh'"),
    ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"), ({"model_type": "llama"}, "model_type is 'llama'"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by"), ({"n_head": 5}, "768, which 5 heads"),
    ({"n_layer": 0}, "n_layer is 0"), ({"n_embd": "768"}, "n_embd is '768'"),
])  # fmt: skip
def test_a_configuration_that_would_be_computed_wrongly_is_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        Config.of(entries)


def test_parameters_that_are_missing_or_of_another_shape():
    tensors = random_tensors(SMALL, "transformer.")
    wrong = tensors | {"transformer.h.1.mlp.c_fc.weight": np.ones((32, 8), np.float32)}
    with pytest.raises(ValueError, match=r"transformer.h.1.mlp.c_fc.weight has shape \(32, 8\).* \(8, 32\)"):
        names_in(wrong, SMALL)
    del tensors["transformer.h.1.ln_2.bias"]
    with pytest.raises(ValueError, match="1 parameters .* 2 layers are not in the file: transformer.h.1.ln_2.bias"):
        GPT2(SMALL, tensors)


def test_gpt2_small_has_124_million_parameters():
    config = Config()
    assert config.parameters == 124_439_808
    assert config.parameters - sum(np.prod(shapes(config)[name]) for name in ("wte.weight", "wpe.weight")) - 2 * 768 \
        == 12 * 7_087_872
    assert shapes(config)["h.11.mlp.c_proj.weight"] == (3072, 768)
