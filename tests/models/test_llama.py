"""Llama and Qwen3 against what transformers computed (golden files), against transformers itself where it is installed
with PyTorch, and against NumPy, launch by launch; the cache, memory, and each refusal."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from labkit import cuda
from labkit._common.paths import REPOSITORY
from labkit.device import gpus, graphs
from labkit.device.gpus import GPUS
from labkit.kernels.dtypes import bfloat16_of, float32_of, of_dtype
from labkit.models import llama, qwen3
from labkit.models.configs import EMBEDDING, HEAD, LLAMA_3_2_1B, Qwen3Config, names_in, shapes
from labkit.models.dtypes import DTYPES
from labkit.models.llama import Cache, Config, Kernels, Llama, SingleSequence, Workspace
from labkit.models.llama_reference import activations, parity, weights_of
from labkit.models.load import tensors
from labkit.models.step import Inputs, Piece, Shape
from tests.models.test_llama_reference import SHAPES, golden

MODELS = {"llama": Llama, "qwen3": qwen3.Qwen3}
SMALL = Config(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
               num_key_value_heads=1, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True)
LENGTHS = (7, 1, 33)


def random_tensors(config, prefix="model.", seed=0):
    """Weights about as large as trained ones; norms and biases, too, are not what a fresh model has."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(config).items():
        values = rng.standard_normal(shape)
        if "norm" in name:
            values = 1 + 0.2 * values
        elif len(shape) == 1:
            values *= 0.2
        elif name.startswith("layers"):
            values /= np.sqrt(shape[1])
        found[name if name == HEAD else prefix + name] = values.astype(np.float32)
    return found


def random_prompts(config, lengths=LENGTHS, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, config.vocab_size, count).tolist() for count in lengths]


def made(name: str, dtype: str):
    known = golden(name)
    return known, (qwen3.Qwen3 if known.kind is qwen3 else Llama)(known.config, known.tensors, dtype)


@pytest.fixture(scope="module")
def model():
    return Llama(SMALL, random_tensors(SMALL), "float32")


def greedy(alone, prompt, count):
    logits, tokens = alone(prompt), []
    for _ in range(count):
        tokens.append(int(np.argmax(logits.copy_to_host()[0])))
        if len(tokens) < count:
            logits = alone(tokens[-1:])
    return tokens


# --- Against transformers --------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_64_greedy_tokens_are_transformers(name):
    known, model = made(name, "float32")
    alone = SingleSequence(model, context=96)
    for token, expected in zip(known.prompt, known.logits, strict=True):  # one at a time: the kernels that decode
        logits = alone([token]).copy_to_host()[0]
        assert np.abs(logits - expected).max() < known.least_margin / 2
    alone.reset()
    assert greedy(alone, known.prompt, 64) == known.greedy


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SHAPES)
def test_far_positions_are_transformers(name):
    """The prompt's tokens stand at 0 .. 11, 4000 .. 4005 and 7930 .. 7935, the greedy ones behind them, to 7999."""
    known, model = made(name, "float32")
    pages = list(range(6))
    cache, inputs = Cache(model.config, 6, "float32"), Inputs(24, 1, 6)
    workspace = Workspace(model.config, 24, 1, "float32")
    ids, positions, before, found = known.prompt, known.far_positions, 0, []
    for _ in range(64):
        step = inputs.step([Piece(ids, before, pages)])
        step.positions.copy_to_device(np.array(positions, np.int32))
        logits = model.forward(step, cache, workspace).copy_to_host()[0]
        if not before:
            assert np.abs(logits - known.far_logits[-1]).max() < known.least_far_margin / 2
        before += len(ids)
        ids, positions = [int(np.argmax(logits))], [positions[-1] + 1]
        found += ids
    assert found == known.far_greedy and positions == [7999]


@pytest.mark.sweep
def test_8000_tokens_are_transformers():
    """In steps of 1,000, the last of which look back at 7,000 in 438 pages."""
    known, model = made("llama2", "float32")
    alone = SingleSequence(model, context=8000, tokens=1000)
    for begin, expected in zip(range(0, 8000, 1000), known.long_logits, strict=True):
        found = alone(known.long[begin : begin + 1000]).copy_to_host()[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2)  # their angles are float32


@pytest.mark.sweep
@pytest.mark.parametrize("name", SHAPES)
def test_layers_in_bfloat16_are_transformers(name):
    """Layer by layer as far from theirs as theirs is from float64, at most twice."""
    known, model = made(name, "bfloat16")
    seen = {}
    SingleSequence(model, context=32)(known.prompt,
                                      watch=lambda name, array: seen.setdefault(name, array.copy_to_host()))
    exact = activations(known.config, weights_of(known.tensors, known.config), known.prompt)
    for layer, expected in enumerate(known.layers_bfloat16):
        found = float32_of(seen[f"layers.{layer}.out"])[list(known.at)]
        theirs = np.abs(expected - exact[f"layers.{layer}.out"][list(known.at)]).mean()
        assert np.abs(found - expected).mean() < 2 * theirs, layer


@pytest.mark.sampled(1, sweep=99, quick="llama")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_any_shape_live(kind, tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the golden files stand for it")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "initializer_range": 0.3}
    configs = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}
    theirs = transformers.AutoModelForCausalLM.from_config(configs[kind](**shape)).eval()
    theirs.save_pretrained(tmp_path)
    config = {"llama": Config, "qwen3": Qwen3Config}[kind]
    alone = SingleSequence(MODELS[kind](config.read(tmp_path / "config.json"), tensors(tmp_path), "float32"),
                           context=32)
    ids = np.random.default_rng(0).integers(0, 61, 9).tolist()
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0, -1].numpy()
        generated = theirs.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, pad_token_id=0)
    np.testing.assert_allclose(alone(ids).copy_to_host()[0], expected, rtol=0, atol=1e-4)
    alone.reset()
    assert greedy(alone, ids, 16) == generated[0, 9:].tolist()


# --- Against NumPy ---------------------------------------------------------------------------------------------------

LAUNCHES = ("input_norm", "qkv", "q", "keys", "values", "attended", "projected", "added", "post_norm", "gated", "down",
            "out")


@pytest.mark.sampled(0, sweep=2)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_launch_is_right(name, dtype):
    """Sequences of different lengths in one step, some of their tokens in the cache before, one with one token left."""
    _, model = made(name, dtype)
    prompts = random_prompts(model.config, (18, 7, 33, 1))
    table = parity(model, prompts, before=(17, 0, 16, 0)).check()
    assert [row.name for row in table.rows] == [
        "embedding", *(f"layers.{layer}.{launch}" for layer in range(2) for launch in LAUNCHES), "norm", "logits"]


@pytest.mark.sampled(1, quick="float32")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_first_launch_that_differs_is_named(dtype):
    def forgets_the_weight_once(x, residual, weight, out, eps, stream=0):
        calls.append(0)
        if len(calls) == 3:
            ones = np.ones(weight.shape, np.float32)
            weight = cuda.to_device(of_dtype(ones, DTYPES[dtype]))
        Kernels().add_rmsnorm(x, residual, weight, out, eps, stream=stream)

    calls = []
    # Two a layer: the third is the one before layer 1's MLP.
    model = Llama(SMALL, random_tensors(SMALL), dtype, Kernels(add_rmsnorm=forgets_the_weight_once))
    table = parity(model, random_prompts(SMALL))
    assert not table.passed and table.first.name == "layers.1.post_norm"
    assert [row.name for row in table.rows if not row.passed] == ["layers.1.post_norm"]  # those after it are right
    with pytest.raises(AssertionError, match=r"first activation that differs is layers\.1\.post_norm"):
        table.check()


def test_other_kernels_on_the_same_weights(model):
    def mine(x, weight, out, eps, stream=0):
        calls.append(eps)
        Kernels().rmsnorm(x, weight, out, eps, stream=stream)

    calls = []
    other = model.with_kernels(Kernels(rmsnorm=mine))
    found = SingleSequence(other, context=16)([1, 2]).copy_to_host()
    assert calls == [1e-5] and other.weights is model.weights
    np.testing.assert_array_equal(found, SingleSequence(model, context=16)([1, 2]).copy_to_host())
    rearranged = model.with_kernels(Kernels(arrange_gate_up=lambda gate, up: np.concatenate([gate, up])))
    name = "layers.0.mlp.gate_up_proj.weight"
    assert not np.array_equal(rearranged.weights[name].copy_to_host(), model.weights[name].copy_to_host())


class Fused(Llama):
    """As on a GPU, but for up to eight rows: the products normalise them."""

    def _fused_rows(self):
        return 8


@pytest.mark.sweep  # compiles two kernels for tensor cores
def test_norms_that_products_compute_are_the_same():
    config = replace(SMALL, hidden_size=256, head_dim=32, num_hidden_layers=3)
    tensors, found = random_tensors(config), []
    for kind in (Llama, Fused):
        alone = SingleSequence(kind(config, tensors), context=32)
        found.append([alone(ids).copy_to_host() for ids in ([5, 4, 3], [7], list(range(9)), [8])])
    for apart, fused in zip(*found, strict=True):
        np.testing.assert_allclose(fused, apart, atol=0.03 * np.abs(apart).max())


@pytest.mark.sweep(every=True)
def test_norms_stay_apart_where_other_kernels_are_given_or_activations_are_watched(model, monkeypatch):
    config = replace(SMALL, hidden_size=256, head_dim=32)
    tensors = random_tensors(config)
    monkeypatch.setattr(llama, "gpus", SimpleNamespace(chosen_on_gpu=lambda: False))
    assert Llama(config, tensors).fused_rows == 0
    monkeypatch.setattr(llama, "gpus", SimpleNamespace(chosen_on_gpu=lambda: True))
    half = Llama(config, tensors)
    assert half.fused_rows == 1 and Llama(SMALL, random_tensors(SMALL), "float32").fused_rows == 0

    def mine(*arguments, **options):
        raise AssertionError("is not launched")

    for name in ("add_rmsnorm", "linear", "linear_swiglu"):
        assert half.with_kernels(Kernels(**{name: mine})).fused_rows == 0
    monkeypatch.setattr(Llama, "layer_of_one_row", mine)
    watched = []
    SingleSequence(half, context=16)([5], watch=lambda name, array: watched.append(name))
    assert "layers.0.post_norm" in watched


def test_names_with_and_without_prefix_and_other_types(model):
    """Of float64, too, and a head that is the table once more."""
    plain = {name: values.astype(np.float64) for name, values in random_tensors(SMALL, prefix="").items()}
    plain[HEAD] = plain[EMBEDDING]
    other = Llama(SMALL, plain, "float32")
    for name in model.weights:
        np.testing.assert_array_equal(model.weights[name].copy_to_host(), other.weights[name].copy_to_host())
    plain[HEAD] = plain[EMBEDDING] + 1
    with pytest.raises(ValueError, match="tie_word_embeddings is true, but the file's lm_head.weight is another table"):
        names_in(plain, SMALL)


# --- The cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_prompt_in_pieces_gives_the_same_logits(model, tokens):
    prompt = random_prompts(SMALL, (40,))[0]
    expected = activations(SMALL, weights_of(model.tensors, SMALL), prompt)["logits"][-1]
    found = SingleSequence(model, context=48, tokens=tokens)(prompt).copy_to_host()[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_shape_that_is_too_large_changes_nothing(model):
    """Rows and sequences of padding, as a graph for more of them has: not a bit of what is asked for."""
    prompts = random_prompts(SMALL, (20, 20, 20))
    pages = [[4, 0], [2, 5], [1, 3]]
    found = []
    for shape in (None, Shape(8, 8, 8, 0)):
        cache, inputs = Cache(SMALL, 6, "float32"), Inputs(60, 8, 2)
        workspace = Workspace(SMALL, 60, 8, "float32")
        model.forward(inputs.step([Piece(prompt[:19], 0, own) for prompt, own in zip(prompts, pages, strict=True)]),
                      cache, workspace)
        pieces = [Piece(prompt[19:], 19, own) for prompt, own in zip(prompts, pages, strict=True)]
        logits = model.forward(inputs.step(pieces, shape), cache, workspace).copy_to_host()
        found.append((logits[:3], cache.memory.copy_to_host()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_graph_of_a_step(model):
    """Captured once for a shape, it computes whatever the inputs say."""
    prompts = random_prompts(SMALL, (18, 5))
    pages, shape = [[3, 1], [0, 2]], Shape(4, 4, 4, 0)
    cache, inputs = Cache(SMALL, 4, "float32"), Inputs(32, 4, 2)
    workspace = Workspace(SMALL, 32, 4, "float32")
    model.forward(inputs.step([Piece(prompt, 0, own) for prompt, own in zip(prompts, pages, strict=True)]), cache,
                  workspace)

    def next_step(token):
        count = token - 40
        return inputs.step([Piece([token], len(prompt) + count, own)
                            for prompt, own in zip(prompts, pages, strict=True)], shape)

    step = next_step(40)
    graph = graphs.capture(lambda stream: model.forward(step, cache, workspace, stream))
    for token in (40, 41, 42):
        assert next_step(token) is step
        graph.launch()
    for row, prompt in enumerate(prompts):
        expected = activations(SMALL, weights_of(model.tensors, SMALL), [*prompt, 40, 41, 42])["logits"][-1]
        np.testing.assert_allclose(workspace.logits.copy_to_host()[row], expected, rtol=0, atol=1e-4)


def test_pages_that_are_shared(model):
    """Two sequences with the same first 16 tokens read them from one page."""
    prompt = random_prompts(SMALL, (24,))[0]
    cache, inputs = Cache(SMALL, 4, "float32"), Inputs(24, 2, 2)
    workspace = Workspace(SMALL, 24, 2, "float32")
    model.forward(inputs.step([Piece(prompt[:16], 0, [2])]), cache, workspace)
    logits = model.forward(inputs.step([Piece(prompt[16:], 16, [2, 0]), Piece(prompt[16:20], 16, [2, 3])]), cache,
                           workspace).copy_to_host()
    expected = activations(SMALL, weights_of(model.tensors, SMALL), prompt)["logits"]
    np.testing.assert_allclose(logits, expected[[23, 19]], rtol=0, atol=1e-4)


@pytest.mark.sweep(every=True)
def test_keys_and_values_outlive_the_process(model, tmp_path):
    """Saved with the last token, a new process computes the same next one."""
    from safetensors.numpy import save_file

    prompt = random_prompts(SMALL, (21,))[0]
    alone = SingleSequence(model, context=32)
    alone(prompt[:-1])
    save_file(model.tensors, tmp_path / "model.safetensors")
    np.savez(tmp_path / "state.npz", cache=alone.cache.memory.copy_to_host(), length=alone.length, last=prompt[-1])
    expected = alone(prompt[-1:]).copy_to_host()[0]
    script = """if True:
        import json, sys
        import numpy as np
        from labkit.models.llama import Config, Llama, SingleSequence
        from labkit.models.safetensors import read

        folder = sys.argv[1]
        config = Config(**json.loads(sys.argv[2]))
        alone = SingleSequence(Llama(config, read(folder + "/model.safetensors"), "float32"), context=32)
        with np.load(folder + "/state.npz") as state:
            alone.cache.memory.copy_to_device(state["cache"])
            alone.length = int(state["length"])
            logits = alone([int(state["last"])]).copy_to_host()[0]
        np.save(folder + "/logits.npy", logits)
        """
    subprocess.run([sys.executable, "-c", script, str(tmp_path), json.dumps(asdict(SMALL))], check=True, cwd=REPOSITORY,
                   timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "logits.npy"), expected)


def test_going_back_to_an_earlier_token(model):
    prompt = random_prompts(SMALL, (20,))[0]
    alone = SingleSequence(model, context=32)
    first = alone(prompt).copy_to_host()
    alone([3, 4, 5])
    alone.reset(17)
    np.testing.assert_allclose(alone(prompt[17:]).copy_to_host(), first, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="the cache holds 20 tokens"):
        alone.reset(21)


# --- Memory ----------------------------------------------------------------------------------------------------------


def test_a_step_allocates_nothing(model, monkeypatch):
    alone = SingleSequence(model, context=32)
    alone([3, 7])
    alone([3])

    def refuse(*_, **__):
        raise AssertionError("memory was allocated")

    for name in ("device_array", "device_array_like", "to_device"):
        monkeypatch.setattr(cuda, name, refuse)
    alone([5])
    alone([6, 7])
    assert alone.length == 6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_memory_is_what_the_shapes_say(dtype):
    size = 4 if dtype == "float32" else 2
    assert Cache(SMALL, 5, dtype).nbytes == size * 2 * 2 * 5 * 1 * 16 * 32
    workspace = Workspace(SMALL, 8, 3, dtype)
    parts = sum(array.nbytes for array in workspace.parts)
    assert workspace.nbytes - parts == size * (8 * (6 * 64 + 4 * 32 + 96) + 3 * 64) + 4 * 3 * 61


# --- What is refused -------------------------------------------------------------------------------------------------

LLAMA = {"model_type": "llama", "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 2}


@pytest.mark.parametrize(("entries", "message"), [
    ({"model_type": "mistral"}, "config: model_type is 'mistral'; only 'llama'"), ({"hidden_act": "gelu"}, "'gelu'"),
    ({"attention_bias": True}, "attention_bias is True"), ({"mlp_bias": True}, "mlp_bias is True"),
    ({"sliding_window": 4096}, "sliding_window is 4096; only None"), ({"partial_rotary_factor": 0.5}, "partial_rot"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"), ({"rope_interleaved": True}, "rope_interleaved"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is .* only 'full_attention'"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"), ({"vocab_size": "61"}, "vocab_size is '61'"),
    ({"num_attention_heads": 3}, "64, which 3 heads"), ({"num_key_value_heads": 3}, "2, which 3 heads of keys"),
    ({"head_dim": 31}, "head_dim is 31; .* even"),
    ({"head_dim": 0}, "head_dim is 0; it must be a whole"), ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    ({"rope_theta": "1e4"}, "rope_theta is '1e4'"), ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'; 'default', "),
    ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"), ({"rope_scaling": 2.0}, "rope_scaling is 2.0"),
    ({"rope_scaling": {"type": "linear"}}, "rope scaling has no 'factor'"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
     "low_freq_factor is 4.0 and high_freq_factor 4.0"),
])  # fmt: skip
def test_a_configuration_that_would_be_computed_wrongly_is_refused(entries, message):
    Config.of(LLAMA)
    with pytest.raises(ValueError, match=message):
        Config.of(LLAMA | entries)


def test_what_a_configuration_leaves_out():
    with pytest.raises(ValueError, match="config: intermediate_size is missing"):
        Config.of({name: value for name, value in LLAMA.items() if name != "intermediate_size"})
    config = Config.of(LLAMA)
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta, config.rope_scaling) == (2, 32, 1e4, None)
    assert Qwen3Config.of(LLAMA | {"model_type": "qwen3"}).head_dim == 128
    with pytest.raises(ValueError, match="use_sliding_window is True"):
        Qwen3Config.of(LLAMA | {"model_type": "qwen3", "use_sliding_window": True})


def test_old_and_new_keys_of_the_rotary_angles():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
    old = Config.of(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})
    new = Config.of(LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    assert old == new and new.rope_theta == 5e5 and new.rope_scaling == {"rope_type": "llama3", **scaling}
    oldest = Config.of(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert oldest.rope_scaling == {"rope_type": "linear", "factor": 2.0} and oldest.rope_theta == 1e4
    assert Config.of(LLAMA | {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}).rope_scaling is None


def test_parameters_that_are_missing_or_of_another_shape():
    found = random_tensors(SMALL)
    wrong = found | {"model.layers.1.mlp.up_proj.weight": np.ones((64, 96), np.float32)}
    with pytest.raises(ValueError, match=r"model.layers.1.mlp.up_proj.weight has shape \(64, 96\).* \(96, 64\)"):
        names_in(wrong, SMALL)
    with pytest.raises(ValueError, match=r"the file has model.layers.0.self_attn.q_proj.bias, a bias that the config"):
        names_in(found | {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}, SMALL)
    with pytest.raises(ValueError, match="1 parameters .* 2 layers are not in the file: lm_head.weight"):
        names_in(found, replace(SMALL, tie_word_embeddings=False))
    with pytest.raises(ValueError, match="model.norm.weight is of type int64"):
        names_in(found | {"model.norm.weight": np.ones(64, np.int64)}, SMALL)
    with pytest.raises(ValueError, match="num_hidden_layers is 1,000,000, and the file has 20"):
        names_in(found, replace(SMALL, num_hidden_layers=1_000_000))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_numbers_that_are_none(dtype):
    found = random_tensors(SMALL)
    found["model.layers.1.mlp.down_proj.weight"][3, 5] = np.inf
    with pytest.raises(ValueError, match=f"layers.1.mlp.down_proj.weight: 1 of its 6,144 numbers are not finite in "
                                         f"{dtype}, the first is inf"):
        Llama(SMALL, found, dtype)


def test_numbers_that_float16_does_not_hold(tmp_path):
    """Of a file in bfloat16: those beyond the largest are refused by the tensor's name; the smallest lose digits."""
    class FromFile(dict):
        """As labkit.models.safetensors has them."""

        @property
        def entries(self):
            return {name: SimpleNamespace(dtype="BF16") for name in self}

    found = FromFile({name: np.full(shape, bfloat16_of(np.float32([3e-6]))[0])
                      for name, shape in shapes(SMALL).items()})
    model = Llama(SMALL, found, "float16")
    row = model.weights["layers.0.input_layernorm.weight"].copy_to_host()
    assert row.dtype == np.float16 and np.abs(row - 3e-6).max() < 2.0**-25 + 2.0**-9 * 3e-6
    found["layers.1.mlp.down_proj.weight"][3, 5] = bfloat16_of(np.float32([70_000]))[0]
    with pytest.raises(ValueError, match="layers.1.mlp.down_proj.weight: 1 of its 6,144 numbers are not finite in "
                                         "float16, the first is inf; the largest float16 is 65,504"):
        Llama(SMALL, found, "float16")
    assert Llama(SMALL, found, "bfloat16").dtype == "bfloat16"


def test_what_auto_is_goes_by_the_gpu():
    found = random_tensors(SMALL)
    for gpu, dtype in (("t4", "float16"), ("a100", "bfloat16"), ("h200", "bfloat16")):
        with gpus.plan_for(GPUS[gpu]):
            model = Llama(SMALL, found)
            assert model.dtype == dtype
            arrays = model.head, Cache(SMALL, 1).memory, Workspace(SMALL, 4, 1).x
            assert {array.dtype for array in arrays} == {DTYPES[dtype]}


def test_what_a_single_sequence_refuses(model):
    alone = SingleSequence(model, context=4)
    for ids, message in (([61], "token 61 is not in the vocabulary, which has 61"), ([3, -1], "token -1"),
                         ([], "one or more"), ([1.5], "one or more"),
                         ([1] * 5, "5 tokens do not fit: 0 of 4 places")):
        with pytest.raises(ValueError, match=message):
            alone(ids)
    with pytest.raises(ValueError, match="context is 129; the model has 128 positions"):
        SingleSequence(model, context=129)
    with pytest.raises(ValueError, match="dtype is 'int8'; for a Llama it must be 'auto', 'bfloat16', 'float16' or "):
        Llama(SMALL, model.tensors, "int8")
    with pytest.raises(ValueError, match="pages is 0"):
        Cache(SMALL, 0)


def test_llama_3_2_1b_has_1236_million_parameters():
    assert LLAMA_3_2_1B.parameters == 1_235_814_400
    assert json.loads(json.dumps(LLAMA_3_2_1B.rope_scaling))["factor"] == 32.0
