"""What the forms of MiniLM launch, move and compute, counted without a launch."""

import numpy as np
import pytest

from labkit.models.minilm import Config
from labkit.models.minilm_counts import ITEM, launches_of_layer
from labkit.models.minilm_steps import ATTENTIONS, STEPS, Step, step
from tests.models.test_minilm_steps import LAUNCHES

SMALL = Config(hidden_size=64, num_attention_heads=2, intermediate_size=96)
LENGTHS = (20, 0, 5)
TOKENS, PAIRS, WEIGHTS = 25, 425, 3 * 64 * 64 + 64 * 64 + 2 * 64 * 96


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_as_many_launches_as_a_graph_has(one):
    layer = launches_of_layer(one, SMALL, LENGTHS)
    assert LAUNCHES[one.name] - 2 * len(layer) in (2, 3)  # the embedding in one launch or two, and the pooling


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name)
def test_flops_are_those_of_the_rows_and_the_pairs(one):
    rows = {"packed": 32, "padded": 3 * 32, "padded_to_128": 3 * 128}[one.form]
    layer = launches_of_layer(one, SMALL, LENGTHS)
    assert sum(each.flops for each in layer if each.kind == "product") == 2 * rows * WEIGHTS
    assert sum(each.flops for each in layer if each.kind == "attention") == 4 * PAIRS * 64


def test_bytes_of_a_packed_layer_by_hand():
    layer = launches_of_layer(step("packed"), SMALL, LENGTHS)
    T, C, inner = 32, 64, 96
    assert [(each.what, each.bytes // ITEM) for each in layer] == [
        ("product: Q, K, V", T * C + 3 * C * C + 3 * C + 3 * T * C), ("attention", 4 * TOKENS * C),
        ("product", T * C + C * C + C + T * C), ("add, LayerNorm", 3 * T * C + 2 * C),
        ("product, GELU", T * C + C * inner + inner + T * inner), ("product", T * inner + C * inner + C + T * C),
        ("add, LayerNorm", 3 * T * C + 2 * C)]


def test_what_a_step_leaves_out():
    """By what is moved less: copies of heads, a sum between two launches, the numbers before GELU, scores."""
    layers = {one.name: launches_of_layer(one, SMALL, [128, 128]) for one in STEPS[:10]}
    moved = {name: sum(each.bytes for each in layer) for name, layer in layers.items()}
    T, C, inner, heads = 256, 64, 96, 2
    assert moved["simple"] == moved["cp.async"]
    copies = 4 * 2 * T * C
    assert moved["cp.async"] - moved["one product"] == ITEM * (copies + 2 * T * C)  # x is read once, not three times
    assert moved["one product"] - moved["warp LayerNorm"] == 2 * ITEM * 2 * T * C
    assert moved["warp LayerNorm"] - moved["GELU fused"] == ITEM * 2 * T * inner
    assert moved["GELU fused"] == moved["scores in registers"] == moved["float16 accumulators"] == moved["wgmma"]
    assert moved["wgmma"] - moved["tiled attention"] == ITEM * 4 * heads * 2 * 128**2
    assert [each.what for each in layers["GELU fused"]] == [
        "product: Q, K, V", "scores", "softmax", "context", "product", "add, LayerNorm", "product, GELU", "product",
        "add, LayerNorm"]


def test_attention_in_one_launch_moves_the_same_in_tiles_and_as_a_whole_matrix():
    whole, tiles = (launches_of_layer(Step(name, "", ATTENTIONS[name], "packed"), SMALL, LENGTHS)
                    for name in ("whole matrix", "tiles"))
    assert whole == tiles


def test_the_real_sizes():
    layer = launches_of_layer(step("simple"), Config(), np.full(64, 128))
    assert len(layer) == 18 and sum(each.flops for each in layer) == 2 * 8192 * 1_769_472 + 4 * 64 * 128**2 * 384
