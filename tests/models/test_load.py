"""Loading: a folder, a folder of several files, the hub (without a network), and text that comes token by token."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from labkit._common.errors import UserError
from labkit.engine.sampler import generate
from labkit.kernels.dtypes import bfloat16_of
from labkit.models.gpt2 import Config, shapes
from labkit.models.load import TINY, Tokenizer, folder, load

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
        with pytest.raises(UserError, match=rf"the tokenizer knows {size + 1} tokens, the model {size}"):
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
    words = json.loads((path / "tokenizer.json").read_text())["model"]
    (path / "vocab.json").write_text(json.dumps(words["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in words["merges"]]
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (path / "tokenizer.json").unlink()
    assert load(str(path)).tokenizer.encode(TEXT[1]) == expected


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_something(path, missing):
    (path / missing).unlink()
    with pytest.raises(UserError, match=f"no model that can be loaded: .*{missing}"):
        load(str(path))


@pytest.mark.parametrize(("file", "text", "message"), [("config.json", "{", "config.json is no JSON: Expecting"),
                                                       ("tokenizer.json", "{}", "tokenizer.json cannot be read: ")])
def test_a_file_that_cannot_be_read_is_named(path, file, text, message):
    (path / file).write_text(text)
    with pytest.raises(UserError, match=f"{path}: {message}"):
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


def test_the_hub(path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked = []

    def snapshot(name, allow_patterns):
        asked.append(name)
        if name == "nobody/nothing":
            raise ConnectionError("Cannot reach huggingface.co\nand much more")
        if name == "unknown":
            raise LocalEntryNotFoundError("An error happened while trying to locate the files on the Hub")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert load("openai-community/gpt2").folder == path
    with pytest.raises(UserError, match="no folder nobody/nothing here, .* Cannot reach huggingface.co. Is this "):
        load("nobody/nothing")
    with pytest.raises(UserError, match="the hub is out of reach, and nothing was downloaded before$"):
        load("unknown")
    for name in ("./nothing", "/nothing/at/all", "a/b/c"):
        with pytest.raises(UserError, match=f"there is no folder {name}"):
            folder(name)
    assert asked == ["openai-community/gpt2", "nobody/nothing", "unknown"]


def test_half_a_character_waits_for_its_other_half(path):
    tokenizer = Tokenizer.of(path)
    ids = tokenizer.encode("日本 — naïve 🙂")
    pieces = list(tokenizer.stream(ids))
    assert "".join(pieces) == "日本 — naïve 🙂" and len(pieces) < len(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert list(tokenizer.stream(ids[-1:]))[0] == "\N{REPLACEMENT CHARACTER}"  # nothing more comes: it is shown


def test_the_tiny_one():
    try:
        path = folder(TINY)
    except UserError:
        pytest.skip("data/tiny-gpt2 is not there")
    loaded = load()
    ids = loaded.tokenizer.encode("hacker:")
    text = "".join(loaded.tokenizer.stream(generate(loaded.model, ids, 24)))
    assert len(text.split()) > 8
    assert sum(file.stat().st_size for file in path.iterdir()) < 12_000_000


def test_a_checkout_without_the_tiny_one(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_COURSE", str(tmp_path))
    with pytest.raises(UserError, match="scripts/train_tiny_gpt2.py makes it"):
        load(TINY)


