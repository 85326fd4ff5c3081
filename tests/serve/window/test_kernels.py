"""Which kernels a step is made of, and the part of its bytes that each moves."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.device.launches import Launch
from labkit.engine import LLMEngine, SamplingParams
from labkit.engine.load_runner import runner_of
from labkit.models.configs import shapes
from labkit.models.llama import Config, Llama
from labkit.serve.window.kernels import SHOWN, Kernels, Launched
from tests.engine.random_llama import SMALL

CONFIG = SimpleNamespace(head_dim=32, num_key_value_heads=2, num_attention_heads=4, hidden_size=128)


def launch(name, *arrays, grid=(1,)):
    return Launch(SimpleNamespace(__name__=f"{name}_kernel"), grid, (128,), 0, arrays)


def bf16(*shape):
    return np.zeros(shape, np.uint16)


def test_bytes_are_those_of_the_arrays_but_of_tables_and_caches_only_what_is_read():
    ids, rows, cache = np.zeros(5, np.int32), bf16(5, 128), bf16(1_000, 2, 16, 32)
    launched = Launched.of([
        launch("token_embedding_vectorized", ids, bf16(50_000, 128), rows),
        launch("linear", rows, bf16(256, 128), bf16(5, 256), grid=(2, 5)),
        launch("linear", rows, bf16(256, 128), bf16(5, 256), grid=(2, 5)),
        launch("rope_split_cache", bf16(5 * 256), bf16(100_000), ids, ids, bf16(5 * 128), cache.ravel(), np.float32(1)),
        launch("paged_decode", bf16(5, 4, 32), cache, bf16(1_000, 2, 16, 32), np.zeros((5, 8), np.int32), ids,
               bf16(5, 4, 32)),
    ], CONFIG, 5)
    rows = {row.name: row for row in launched.rows}
    assert [(row.launches, row.moved, row.per_key) for row in rows.values()] == [
        (1, 2 * 5 * 256, 0),
        (2, 2 * (5 * 256 + 256 * 256 + 5 * 512), 0),
        (1, 2 * 5 * (4 + 2 * 2) * 32 * 2, 0),
        (1, 2 * 5 * 256 + 5 * 8 * 4 + 5 * 4, 2 * 2 * 32 * 2)]
    few, many = launched.shares(100), launched.shares(1_000_000)
    assert few[0] == {"name": "linear", "launches": 2, "grid": "2 x 5", "block": "128", "share": few[0]["share"]}
    assert many[0]["name"] == "paged_decode" and many[0]["share"] > 0.99
    for shares in (few, many):
        assert math.isclose(sum(row["share"] for row in shares), 1, abs_tol=0.005)


def test_many_kernels_are_shown_as_a_few_and_the_rest():
    launched = Launched.of([launch(f"k{number}", bf16(10 * (number + 1))) for number in range(12)], CONFIG, 1)
    shares = launched.shares(0)
    assert len(shares) == SHOWN + 1 and shares[0]["name"] == "k11"
    assert shares[-1]["name"] == "5 others" and shares[-1]["launches"] == 5


def test_steps_that_are_alike_are_looked_at_once_and_not_too_often():
    shape, asked = SimpleNamespace(rows=4, sequences=4, decoding=4, longest=0), []
    runner = SimpleNamespace(last_shape=None, model=SimpleNamespace(config=CONFIG),
                             planned=lambda: asked.append(1) or [launch("linear", bf16(4))])
    kernels = Kernels(pause_s=60)
    assert kernels.of(SimpleNamespace()) is None and kernels.of(runner) is None and not asked
    runner.last_shape = shape
    first = kernels.of(runner)
    assert first and kernels.of(runner) is first
    runner.last_shape = SimpleNamespace(rows=7, sequences=7, decoding=7, longest=0)
    assert kernels.of(runner) is first and len(asked) == 1
    runner.last_shape = SimpleNamespace(rows=300, sequences=3, decoding=0, longest=200)
    assert kernels.of(runner) is None and len(asked) == 1  # it is too early
    kernels.pause_s = 0
    kernels._next = 0
    assert kernels.of(runner) and len(asked) == 2


@pytest.mark.sweep
def test_a_model_runner_says_what_its_last_step_launched_and_goes_on_as_before():
    rng, config = np.random.default_rng(3), Config(**SMALL)
    tensors = {f"model.{name}": (rng.standard_normal(size) / np.sqrt(size[-1]) if len(size) > 1 else np.ones(size))
               .astype(np.float32) for name, size in shapes(config).items()}

    def outputs(look):
        runner = runner_of(Llama(config, tensors, "bfloat16"), max_num_seqs=2, num_pages=20)
        engine, kernels = LLMEngine(runner, max_num_seqs=2), Kernels(pause_s=0)
        assert runner.planned() == [] and runner.last_shape is None
        for number in range(2):
            engine.add_request(str(number), [5, 6, 7 + number], SamplingParams(max_tokens=5, temperature=0))
        found, seen = {}, []
        while engine.has_unfinished_requests():
            found |= {each.request_id: each.outputs[0].token_ids for each in engine.step()}
            if look and engine.scheduler.running:
                seen.append(kernels.of(runner))
        return found, seen

    plain, _ = outputs(look=False)
    watched, seen = outputs(look=True)
    assert watched == plain
    names = {row.name: row for row in seen[-1].rows}
    assert "token_embedding" in " ".join(names) and any("paged" in name and row.per_key for name, row in names.items())
    assert sum(row.launches for row in seen[-1].rows) > 10
