"""Training: the loss falls, a resumed run has the same bits, and what goes wrong is named."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from labkit import cuda
from labkit._common.errors import UserError
from labkit.kernels.dtypes import float64_of
from labkit.models.load import load as load_model
from labkit.train import checkpoint
from labkit.train.parameters import initial
from labkit.train.trainer import NotFinite, Trainer
from tests.train.tiny import settings_of, texts_of

pytestmark = pytest.mark.sweep(every=True)  # what they compile takes ten seconds and more

GOLDEN = Path(__file__).with_name("golden_curve.json")


def tokenizer():
    import tokenizers

    return tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))


def trained(kind="llama", until=None, **train) -> Trainer:
    settings = settings_of(kind, **train)
    trainer = Trainer(settings, texts_of(settings, tokenizer()))
    for _ in trainer.run(until):
        pass
    return trainer


def state(trainer) -> list:
    return [getattr(trainer.buffer, name).copy_to_host() for name in ("master", "m", "v", "copy")]


@pytest.mark.sampled(0, sweep=10)
@pytest.mark.parametrize(("kind", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("gpt2", "bfloat16")])
def test_a_resumed_run_has_the_same_bits(tmp_path, kind, dtype):
    whole = trained(kind, dtype=dtype)
    assert [entry["step"] for entry in whole.log] == [1, 2, 3, 4, 5, 6]
    assert [entry["step"] for entry in whole.log if "held_out" in entry] == [3, 6]

    stopped = trained(kind, dtype=dtype, until=3)
    checkpoint.save(tmp_path / "run", stopped)
    settings = settings_of(kind, dtype=dtype)
    resumed = Trainer(settings, texts_of(settings, tokenizer()), **checkpoint.load(tmp_path / "run", settings))
    for _ in resumed.run():
        pass
    for expected, found in zip(state(whole), state(resumed), strict=True):
        assert np.array_equal(expected.view(np.uint8), found.view(np.uint8))
    assert resumed.log == whole.log


def test_the_loss_falls_as_in_pytorch():
    """golden_curve.json: by scripts/torch_curve.py, from the same start on the same batches."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    for kind, losses in golden["losses"].items():
        found = [entry["loss"] for entry in trained(kind, **golden["train"]).log]
        assert len(losses) == 100 and losses[-1] < losses[0] - 1
        assert np.abs(np.array(found) - losses).max() < 1e-3, kind


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_bfloat16_trains_as_float32_does(kind):
    """A rounding to bfloat16 is at most 2^-9 of a number. A loss is the mean of many; it stays within a percent."""
    exact, rounded = (np.array([entry["loss"] for entry in trained(kind, dtype=dtype, steps=20).log])
                      for dtype in ("float32", "bfloat16"))
    assert exact[-1] < exact[0] - 0.2 and (np.abs(rounded - exact) < 0.01 * exact).all()


@pytest.mark.sampled(1, sweep=99, quick="tied llama-float32")
@pytest.mark.parametrize(("kind", "dtype"), [("gpt2", "float32"), ("gpt2", "bfloat16"), ("tied llama", "float32"),
                                             ("llama", "float32")])
def test_the_checkpoint_loads_with_the_same_weights(tmp_path, kind, dtype):
    settings = settings_of(kind, dtype=dtype)
    trainer = Trainer(settings, texts_of(settings, tokenizer()))
    drawn = []
    checkpoint.save(tmp_path / "run", trainer, lambda folder, log: drawn.append(folder))
    assert drawn and not list(tmp_path.glob(".*"))
    loaded = load_model(str(tmp_path / "run"), dtype="float32")
    assert loaded.model.config == settings.model
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run", dtype=torch.float32)
    ids = np.arange(16)[None]
    with torch.no_grad():
        logits = theirs(torch.from_numpy(ids)).logits.numpy()[0]
    trainer.model.forward(cuda.to_device(np.tile(ids[0], 2).astype(np.int32)))
    found = float64_of(trainer.model.logits.copy_to_host()[:16])
    assert np.abs(found - logits).max() < (1e-5 if dtype == "float32" else 1e-2)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    settings = settings_of("llama")
    trainer = Trainer(settings, texts_of(settings, tokenizer()))
    checkpoint.save(tmp_path / "run", trainer)
    trainer.step = 5

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        checkpoint.save(tmp_path / "run", trainer)
    assert str(tmp_path / "run") in str(caught.value.filename)
    assert checkpoint.load(tmp_path / "run", settings)["step"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_other_settings_do_not_continue_a_run(tmp_path):
    settings = settings_of("llama")
    checkpoint.save(tmp_path / "run", Trainer(settings, texts_of(settings, tokenizer())))
    with pytest.raises(UserError, match="train.seed is 3; the run in .* began with None"):
        checkpoint.load(tmp_path / "run", settings_of("llama", seed=3))
    checkpoint.load(tmp_path / "run", settings_of("llama", save_every=1))
    with pytest.raises(UserError, match="holds no checkpoint to resume: training.json is missing"):
        checkpoint.load(tmp_path / "other", settings)


def test_a_loss_that_is_not_finite_names_the_tensor():
    settings = settings_of("llama")
    trainer = Trainer(settings, texts_of(settings, tokenizer()))
    flat = initial(settings.model, 0)
    tensor = next(one for one in trainer.buffer.layout if one.name == "layers.1.self_attn.o_proj.weight")
    flat[tensor.offset + 5] = np.inf
    trainer.buffer.load(flat)
    with pytest.raises(NotFinite, match="the first tensor that is not finite is layers.1.self_attn.o_proj.weight"):
        trainer.one_step()
    flat[tensor.offset + 5] = 1e38  # finite, but its products are not
    flat[tensor.offset + 6] = 1e38
    trainer.buffer.load(flat * np.float32(3))
    with pytest.raises(NotFinite, match="the first tensor that is not finite is [a-z0-9]+ of layer 1"):
        trainer.one_step()
    assert trainer.step == 0


@pytest.mark.sweep
def test_two_processes_train_as_one_with_twice_the_batch(tmp_path):
    torch = pytest.importorskip("torch")
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path / "store"), str(tmp_path)), nprocs=2)
    first, second = (np.load(tmp_path / f"{rank}.npy") for rank in range(2))
    alone = trained(until=2, batch=2).buffer.master.copy_to_host()
    assert np.array_equal(first, second) and np.abs(first - alone).max() < 1e-5
    assert np.abs(alone - initial(settings_of("llama").model, 0)).max() > 1e-3


def one_of_two(rank: int, store: str, folder: str) -> None:
    import torch.distributed as distributed

    from labkit.train.trainer import mean_over_processes

    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    settings = settings_of("llama", batch=1)
    trainer = Trainer(settings, texts_of(settings, process=rank, processes=2), all_reduce=mean_over_processes)
    list(trainer.run(until=2))
    np.save(f"{folder}/{rank}.npy", trainer.buffer.master.copy_to_host())
    distributed.destroy_process_group()


def test_gradients_go_through_all_reduce_before_they_are_clipped():
    settings, calls = settings_of("llama"), []

    def all_reduce(gradients):
        calls.append(gradients.size)
        gradients.copy_to_device(np.zeros(gradients.size, np.float32))

    trainer = Trainer(settings, texts_of(settings, tokenizer()), all_reduce=all_reduce)
    trainer.one_step()
    assert calls == [trainer.buffer.gradient.size] and trainer.norm.copy_to_host()[0] == 0
    assert not trainer.buffer.m.copy_to_host().any()
