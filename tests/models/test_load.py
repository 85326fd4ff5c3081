"""Loading: a folder, a folder of several files, the hub (without a network), and text that comes token by token."""

import contextlib
import json
import shutil
import time

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from labkit._common.errors import UserError
from labkit._common.paths import REPOSITORY
from labkit.engine.sampler import generate
from labkit.engine.text import write
from labkit.kernels.dtypes import bfloat16_of
from labkit.models.configs import shapes
from labkit.models.gpt2 import Config
from labkit.models.load import ARCHITECTURES, TINY, TINY_LLAMA, Tokenizer, folder, load

TEXT = ["kludge: a crock that works. “Naïve” users — café", "a kernel is a function, a kernel is a loop"]
SHAPE = {"vocab_size": 320, "n_positions": 32, "n_embd": 8, "n_layer": 2, "n_head": 2}


@pytest.fixture(scope="module")
def parameters():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes(Config(**SHAPE)).items()}


@pytest.fixture
def path(tmp_path, parameters):
    """A folder with a random model and a tokenizer that was trained on two lines."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "gpt2", "eos_token_id": 0}))
    save_file(parameters, path / "model.safetensors")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=320, min_frequency=1, special_tokens=["<|endoftext|>"],
                                  show_progress=False)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def weights_of(loaded):
    return {name: loaded.model.weights[name].copy_to_host() for name in loaded.model.weights}


def test_a_folder(path, parameters):
    loaded = load(str(path))
    assert loaded.model.config == Config(**SHAPE)
    for name, array in weights_of(loaded).items():
        np.testing.assert_array_equal(array, parameters[name])
    assert loaded.tokenizer.stop == (0,)
    assert "2 layers, 8 wide" in loaded.log
    ids = loaded.tokenizer.encode(TEXT[0])
    assert loaded.tokenizer.decode(ids) == TEXT[0]
    assert len(list(generate(loaded.model, ids[:4], 5))) == 5


@pytest.mark.parametrize("missing", [0, 1])
def test_the_model_must_know_each_token_of_the_tokenizer(path, parameters, missing):
    size = len(Tokenizer.of(path)) - missing
    (path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "gpt2", "vocab_size": size}))
    save_file(parameters | {"wte.weight": parameters["wte.weight"][:size]}, path / "model.safetensors")
    if missing:
        with pytest.raises(UserError, match=rf"has tokens up to {size}, the model those below its vocab_size, {size}"):
            load(str(path))
    else:
        assert load(str(path)).model.config.vocab_size == size


def test_several_files_of_which_one_is_bfloat16(path, parameters):
    names = list(parameters)
    index = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(names)}
    (path / "model.safetensors").unlink()
    save_file({name: parameters[name] for name in names[::2]}, path / index[names[0]])
    write_bfloat16({name: parameters[name] for name in names[1::2]}, path / index[names[1]])
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    for name, array in weights_of(load(str(path))).items():
        exact = name in names[::2]
        np.testing.assert_allclose(array, parameters[name], rtol=0 if exact else 2**-8, err_msg=name)

    index[names[1]] = index[names[0]]
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(UserError, match=f"{names[1]} should be in {index[names[0]]}, but is not"):
        load(str(path))


def write_bfloat16(tensors, path):
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + 2 * tensor.size]}
        data += bfloat16_of(tensor).tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_the_older_pair_of_tokenizer_files(path):
    expected = load(str(path)).tokenizer.encode(TEXT[1])
    older_pair(path)
    assert load(str(path)).tokenizer.encode(TEXT[1]) == expected


LLAMA = {"model_type": "llama", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
         "num_attention_heads": 2, "head_dim": 32, "eos_token_id": 0}


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_model_is_chosen_by_its_type(path, kind):
    shape, model = ARCHITECTURES[kind]
    (path / "config.json").write_text(json.dumps(LLAMA | {"model_type": kind}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(size).astype(np.float32)
               for name, size in shapes(shape.read(path / "config.json")).items()}
    save_file(tensors, path / "model.safetensors")
    loaded = load(str(path), dtype="float32")
    assert type(loaded.model) is model and loaded.model.config == shape.read(path / "config.json")
    assert load(str(path)).model.weights.nbytes < loaded.model.weights.nbytes  # bfloat16, if nothing else is asked
    assert "1 layers, 64 wide" in loaded.log
    assert loaded.tokenizer.stop == (0, 7)
    pieces = []
    continuation = write(loaded, "a kernel", pieces.append, tokens=2)
    assert continuation.text == "".join(pieces) and continuation.tokens <= 2 and continuation.ended


def test_a_kind_of_model_that_is_not_known(path):
    edit(path / "config.json", model_type="mamba")
    with pytest.raises(UserError, match="config.json: model_type is 'mamba'; only gpt2, llama, qwen3 can be computed"):
        load(str(path))


def test_a_conversation(path):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ eos_token }}"
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>", "chat_template": template}))
    whole = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    whole.post_processor = tokenizers.processors.TemplateProcessing("<|endoftext|> $A",
                                                                    special_tokens=[("<|endoftext|>", 0)])
    whole.save(str(path / "tokenizer.json"))
    tokenizer = load(str(path)).tokenizer
    assert tokenizer.encode("a kernel")[0] == 0 != tokenizer.encode("a kernel", marks=False)[0]
    ids = tokenizer.chat([{"role": "user", "content": "a kernel"}])
    assert ids == [*tokenizer.encode("user: a kernel\n", marks=False), 0]
    (path / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="this model has no chat template"):
        load(str(path)).tokenizer.chat([{"role": "user", "content": "a kernel"}])


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something(path, missing):
    (path / missing).unlink()
    with pytest.raises(UserError, match=f"no model that can be loaded: .*{missing}"):
        load(str(path))


@pytest.mark.parametrize(("file", "text", "message"), [("config.json", "{", "config.json is no JSON: Expecting"),
                                                       ("tokenizer.json", "{}", "tokenizer.json cannot be read: ")])
def test_a_file_that_cannot_be_read_is_named(path, file, text, message):
    (path / file).write_text(text)
    with pytest.raises(UserError, match=f"^{path}/{message}"):
        load(str(path))


def test_files_that_do_not_fit_together(path):
    whole = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(whole[:-5])
    with pytest.raises(UserError, match="Was the download cut off"):
        load(str(path))
    (path / "model.safetensors").write_bytes(whole)
    (path / "config.json").write_text(json.dumps(SHAPE | {"n_layer": 3}))
    with pytest.raises(UserError, match=r"12 parameters .* 3 layers are not in the file: h.2.ln_1.weight"):
        load(str(path))


def edit(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize(("text", "message"), [
    ("[]", "must hold an object, .* it holds a list"), ("null", "it holds null"), ("3", "it holds a number"),
    ('{"a":' * 100_000, "nested too deeply"), ('{"n_layer": "2"}', "n_layer is '2'; it must be a whole number from 1"),
    ('{"n_layer": 1e3}', "n_layer is 1000.0"), ('{"vocab_size": true}', "vocab_size is True"),
    ('{"n_inner": []}', r"n_inner is \[\]"), ('{"n_positions": 99999999999}', "from 1 to 2,147,483,647"),
    ('{"layer_norm_epsilon": NaN}', "layer_norm_epsilon is nan; only 1e-05 can be computed here"),
    ('{"activation_function": {"a": 1}}', "activation_function is {'a': 1}; only"), (None, "cannot be read: Is a dir"),
    (json.dumps(SHAPE | {"eos_token_id": "the end"}), r"eos_token_id must be a token's number.*\['the end'\]"),
    (json.dumps(SHAPE | {"eos_token_id": [0, -1]}), r"eos_token_id must be .* \[0, -1\]"),
])
def test_a_configuration_that_is_none_is_named(path, text, message):
    (path / "config.json").unlink()
    if text is None:
        (path / "config.json").mkdir()
    else:
        (path / "config.json").write_text(text)
    with pytest.raises(UserError, match=f"^{path}/config.json.*{message}"):
        load(str(path))


def test_sizes_that_the_file_cannot_hold_take_neither_time_nor_memory(path):
    began = time.perf_counter()
    for name, words in (("n_layer", "n_layer is 1,000,000,000, and the file has 28 tensors, fewer than one for"),
                        ("n_positions", "wpe.weight has shape"), ("vocab_size", "wte.weight has shape"),
                        ("n_inner", "mlp.c_fc.weight has shape")):
        (path / "config.json").write_text(json.dumps(SHAPE | {name: 10**9}))
        with pytest.raises(UserError, match=f"^{path}/model.safetensors: .*{words}"):
            load(str(path))
    assert time.perf_counter() - began < 2
    (path / "config.json").write_text(json.dumps(SHAPE | {"n_layer": 29}))
    with pytest.raises(UserError, match="n_layer is 29, and the file has 28 tensors, fewer than one for each layer"):
        load(str(path))
    assert Config(n_layer=10**9).parameters == 7_087_872 * 10**9 + Config(n_layer=1).parameters - 7_087_872


@pytest.mark.parametrize(("name", "value", "message"), [
    ("wte.weight", np.nan, "wte.weight: 1 of its 2,560 numbers are not finite in float32, the first is nan"),
    ("h.1.ln_2.bias", -np.inf, "h.1.ln_2.bias: 1 of its 8 numbers are not finite"),
    ("wpe.weight", 1e300, "wpe.weight: 1 of its 256 numbers are not finite in float32, the first is inf"),
    ("ln_f.weight", np.int16, "ln_f.weight is of type int16; it must be float16, bfloat16, float32 or float64"),
    ("h.0.attn.c_attn.weight", np.bool_, "is of type bool"), ("wte.weight", np.uint16, "is of type uint16"),
])
def test_weights_that_are_no_numbers_to_compute_with_are_named(path, parameters, name, value, message):
    changed = parameters[name].astype(value if isinstance(value, type) else np.float64)
    if not isinstance(value, type):
        changed.flat[-1] = value
    save_file(parameters | {name: changed}, path / "model.safetensors")
    with pytest.raises(UserError, match=f"^{path}/model.safetensors: .*{message}"):
        load(str(path))


def test_large_weights_whose_sum_overflows_are_finite(path, parameters):
    save_file(parameters | {"wte.weight": np.full_like(parameters["wte.weight"], 3e38)}, path / "model.safetensors")
    assert load(str(path)).model.weights["wte.weight"].copy_to_host().max() == np.float32(3e38)


@pytest.mark.parametrize(("text", "message"), [
    ("{}", "weight_map must say .* it is None"), ('{"weight_map": []}', r"it is \[\]"),
    ('{"weight_map": {"wte.weight": 3}}', "it is {'wte.weight': 3}"), ("[]", "must hold an object"),
    ('{"weight_map": {"wte.weight": "../other"}}', "in which file of this folder"),
    ('{"weight_map": {"wte.weight": "a\\u0000"}}', "in which file of this folder"),
    ('{"weight_map": {}}', "n_layer is 2, and the file has 0 tensors, fewer than one for each layer"),
])
def test_an_index_that_is_none_is_named(path, text, message):
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=f"^{path}/model.safetensors.index.json.*{message}"):
        load(str(path))


def older_pair(path):
    """vocab.json and merges.txt in the place of tokenizer.json."""
    words = json.loads((path / "tokenizer.json").read_text())["model"]
    (path / "vocab.json").write_text(json.dumps(words["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in words["merges"]]
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (path / "tokenizer.json").unlink()


@pytest.mark.parametrize(("file", "text"), [("vocab.json", "{"), ("vocab.json", "[]"), ("vocab.json", '{"a": "b"}'),
                                            ("vocab.json", '{"a": -1}'), ("merges.txt", "one two three\nfour\n"),
                                            ("merges.txt", "zz qq\n"), ("merges.txt", b"\xff\xfe")])
def test_a_broken_vocabulary_is_named(path, file, text):
    older_pair(path)
    (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=f"^{path}/vocab.json with merges.txt cannot be read: "):
        load(str(path))


def test_a_token_beyond_the_vocabulary_is_named(path):
    data = json.loads((path / "tokenizer.json").read_text())
    last = max(data["model"]["vocab"], key=data["model"]["vocab"].get)
    data["model"]["vocab"][last] = 4000  # as many tokens as before
    (path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(UserError, match=f"^{path}: the tokenizer has tokens up to 4,000, the model those below .* 320"):
        load(str(path))


def test_a_prompt_that_is_no_text_is_named(path):
    with pytest.raises(UserError, match=r"the prompt is no text: its character 3 is '\\udcff'"):
        Tokenizer.of(path).encode("ab\udcff")


def test_a_tokenizers_padding_and_truncation_are_not_ours(path):
    edit(path / "tokenizer.json", padding={"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": None,
                                           "pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
         truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0})
    tokenizer = Tokenizer.of(path)
    assert tokenizer.decode(tokenizer.encode(TEXT[0])) == TEXT[0]


# --- Damage at random ------------------------------------------------------------------------------------------------

ODD = [None, True, False, 0, -1, 1, 3, 10**9, 10**30, 0.5, float("nan"), float("inf"), "", "x", "\ud800", "\0", [], [1],
       {}, {"a": 1}, [[[[]]]], ["x", None]]


def damaged_json(rng, value, depth=0):
    """The value with one of its parts replaced, left out or put somewhere else."""
    if isinstance(value, dict | list) and value and rng.random() < (0.95 if depth == 0 else 0.75):
        keys = list(value) if isinstance(value, dict) else range(min(len(value), 40))
        key = keys[rng.integers(len(keys))]
        copy = dict(value) if isinstance(value, dict) else list(value)
        if rng.random() < 0.1:
            del copy[key]
        else:
            copy[key] = damaged_json(rng, value[key], depth + 1)
        return copy
    return ODD[rng.integers(len(ODD))]


def damaged_bytes(rng, data):
    data = data or b"{}"
    kind, where = rng.integers(6), int(rng.integers(len(data)))
    if kind == 0:
        return data[:where]
    if kind == 1:
        return data[:where] + rng.bytes(int(rng.integers(1, 9))) + data[where:]
    if kind == 2:
        return data[:where] + data[where + int(rng.integers(1, 9)) :]
    if kind == 3:
        return b"" if rng.random() < 0.3 else rng.bytes(64)
    changed = bytearray(data)
    where = where if kind == 4 else int(rng.integers(min(len(data), 200)))  # where headers are
    changed[where] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def damage(rng, path, parameters):
    """One of the folder's files, or a tensor, is no longer what it was."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    file = files[rng.integers(len(files))]
    if file.suffix == ".safetensors" and rng.random() < 0.6:
        name = list(parameters)[rng.integers(len(parameters))]
        with np.errstate(over="ignore"):
            changed = [parameters[name].astype(np.int16), parameters[name][:-1], np.full_like(parameters[name], np.nan),
                       parameters[name].T.copy(), parameters[name] * np.float32(1e38), parameters[name][..., None],
                       parameters[name].astype(np.float16)]
        save_file(parameters | {name: changed[rng.integers(len(changed))]}, file)
    elif rng.random() < 0.05:
        file.unlink()
        file.mkdir()
    elif file.suffix == ".json" and rng.random() < 0.8:
        with contextlib.suppress(ValueError):  # damaged before
            file.write_text(json.dumps(damaged_json(rng, json.loads(file.read_text()))))
    else:
        file.write_bytes(damaged_bytes(rng, file.read_bytes()))
    return file


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.sweep(every=True)),
                                  *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 21))])
def test_a_folder_damaged_at_random_is_an_error_that_names_it_or_a_model_that_writes(path, parameters, seed):
    """150 folders for each seed, each with a fault or two: the tokenizer as one file or as two, the weights as one file
    or with an index."""
    rng = np.random.default_rng(seed)
    refused = 0
    for number in range(150):
        folder = path.parent / f"damaged {number}"
        shutil.copytree(path, folder)
        if rng.random() < 0.5:
            older_pair(folder)
        if rng.random() < 0.3:
            (folder / "model.safetensors").rename(folder / "part.safetensors")
            (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": dict.fromkeys(parameters, "part.safetensors")}))
        done = [damage(rng, folder, parameters).name for _ in range(rng.integers(1, 3))]
        try:
            loaded = load(str(folder))
        except UserError as error:
            assert str(folder) in str(error) and str(error).isprintable(), (number, done)
            refused += 1
        except BaseException as error:
            raise AssertionError(f"folder {number}, damaged in {done}: {type(error).__name__}: {error}") from error
        else:
            assert len(loaded.tokenizer) <= loaded.model.config.vocab_size
            with contextlib.suppress(UserError, ValueError):  # no token, or too many; numbers that overflow
                write(loaded, TEXT[1], str, tokens=2)
        shutil.rmtree(folder)
    assert 50 < refused < 150


def test_the_hub(path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        if name == "nobody/nothing":
            raise ConnectionError("Cannot reach huggingface.co\nand much more")
        if name == "tniy":
            raise LocalEntryNotFoundError("An error happened while trying to locate the files on the Hub")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert load("openai-community/gpt2").folder == path
    with pytest.raises(UserError, match="no folder nobody/nothing here, .* Cannot reach huggingface.co. Is this "):
        load("nobody/nothing")
    with pytest.raises(UserError, match="out of reach, and nothing was downloaded before; did you mean tiny, "):
        load("tniy")
    for name in ("./nothing", "/nothing/at/all", "a/b/c"):
        with pytest.raises(UserError, match=f"there is no folder {name}"):
            folder(name)
    assert asked == ["openai-community/gpt2", "nobody/nothing", "tniy"]


def test_half_a_character_waits_for_its_other_half(path):
    tokenizer = Tokenizer.of(path)
    ids = tokenizer.encode("日本 — naïve 🙂")
    pieces = list(tokenizer.stream(ids))
    assert "".join(pieces) == "日本 — naïve 🙂" and len(pieces) < len(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert list(tokenizer.stream(ids[-1:]))[0] == "\N{REPLACEMENT CHARACTER}"  # nothing more comes: it is shown


@pytest.mark.sweep(every=True)
def test_the_tiny_one():
    try:
        path = folder(TINY)
        assert folder("tiny-gpt2") == path
    except UserError:
        pytest.skip("data/tiny-gpt2 is not there")
    loaded = load()
    ids = loaded.tokenizer.encode("hacker:")
    text = "".join(loaded.tokenizer.stream(generate(loaded.model, ids, 24)))
    assert len(text.split()) > 8
    assert sum(file.stat().st_size for file in path.iterdir()) < 12_000_000


@pytest.mark.parametrize("name", [TINY, TINY_LLAMA])
def test_a_checkout_without_the_tiny_one(tmp_path, monkeypatch, name):
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    with pytest.raises(UserError, match=r"is missing; the first lines of scripts/jargon.py say how to make it"):
        load(name)
    assert (REPOSITORY / "scripts" / "jargon.py").is_file()
