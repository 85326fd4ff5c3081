"""Which kernels are picked on which GPU, without one: their instructions and their shared memory are there, and on an
H200 they are those that were measured."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import cuda
from labkit.device import gpus, launches, needs
from labkit.device.gpus import GPUS, OF_CAPABILITY
from labkit.kernels.arguments import dynamic_shared
from labkit.kernels.attention.flash import FlashTile, flash_form, launch_flash, make_flash
from labkit.kernels.attention.flash_mma import MmaTile, keys_of_tile, mma_form
from labkit.kernels.attention.half import attention_half, make_flash_half
from labkit.kernels.attention.paged import paged_decode
from labkit.kernels.attention.paged_prefill import paged_prefill
from labkit.kernels.attention.sentences import attention_sentences
from labkit.kernels.attention.three_pass import attention, attention_three_pass
from labkit.kernels.elements import BFLOAT16, FLOAT16, FLOAT32
from labkit.kernels.linear import bf16, few_rows
from labkit.kernels.linear.layers import linear_pipelined
from labkit.kernels.matmul.half import matmul_half_three_stage
from labkit.models.minilm import kernels_for
from tests.kernels.attention.test_flash import check

F32, BF16, F16 = FLOAT32.dtype, BFLOAT16.dtype, FLOAT16.dtype
SMALL = replace(GPUS["t4"], shared_per_block=57_344)  # less than any GPU has
TARGETS = {name: GPUS[name] for name in OF_CAPABILITY.values()} | {"small": SMALL}


def arrays(*shapes, dtype):
    return tuple(cuda.device_array(shape, dtype) for shape in shapes)


def integers(*values):
    return cuda.to_device(np.array(values, np.int32))


def attended(launch, rows, size, dtype, heads=12):
    qkv, out = arrays((rows, 3 * heads * size), (rows, heads * size), dtype=dtype)
    return lambda: launch(qkv, heads, out)


def of_sentences(size, dtype, count=64, longest=128):
    qkv, out = arrays((count * longest, 36 * size), (count * longest, 12 * size), dtype=dtype)
    table = integers(*range(count))
    return lambda: attention_sentences(qkv, 12, table, table, longest, out)


def paged(size, dtype, sequences=3, rows=None):
    q, out = arrays(*[(rows or sequences, 8, size)] * 2, dtype=dtype)
    keys, values = arrays(*[(40, 2, 16, size)] * 2, dtype=dtype)
    table, each = cuda.to_device(np.zeros((sequences, 40), np.int32)), integers(*range(sequences))
    if rows is None:
        return lambda: paged_decode(q, keys, values, table, each, out, 0.1, None)
    return lambda: paged_prefill(q, keys, values, table, each, each, each, out, 0.1, rows)


def layer(rows, outputs, depth, dtype):
    x, weights, bias, out = arrays((rows, depth), (depth, outputs), outputs, (rows, outputs), dtype=dtype)
    return lambda: few_rows.linear(x, weights, bias, out)


def of_llama(rows, outputs, depth, dtype):
    x, weights, out = arrays((rows, depth), (outputs, depth), (rows, outputs), dtype=dtype)
    return lambda: bf16.linear(x, weights, out)


def of_minilm(rows, outputs, depth):
    x, weights, bias, out = arrays((rows, depth), (outputs, depth), outputs, (rows, outputs), dtype=F16)
    return lambda: kernels_for(np.float16).linear(x, weights, bias, out)


PICKS = {
    "attention": attended(attention, 300, 64, F32), "attention, one row": attended(attention, 1, 64, F32),
    "attention, heads of 80": attended(attention, 300, 80, F32),
    "attention, heads of 128": attended(attention, 300, 128, F32),
    "attention, heads of 256": attended(attention, 300, 256, F32, heads=2),
    "attention, heads of 20": attended(attention, 30, 20, F32),
    "float16 attention": attended(attention_half, 300, 64, F16),
    "float16 attention, heads of 80": attended(attention_half, 300, 80, F16),
    "float16 attention, heads of 256": attended(attention_half, 300, 256, F16, heads=2),
    "sentences": of_sentences(32, F32), "sentences, heads of 256": of_sentences(256, F32, 2),
    "float16 sentences": of_sentences(32, F16), "float16 sentences, heads of 128": of_sentences(128, F16, 8),
    "float16 sentences, short": of_sentences(128, F16, 64, 16),
    **{f"{kind} {step}, heads of {size}": paged(size, dtype, **options)
       for kind, dtype in (("float32", F32), ("bfloat16", BF16), ("float16", F16))
       for step, options in (("decoding", {}), ("prompt", {"rows": 600})) for size in (64, 128)},
    "layer, few rows": layer(3, 768, 768, F32), "layer": layer(500, 768, 768, F32),
    "float16 layer, few rows": layer(3, 768, 768, F16), "float16 layer": layer(500, 768, 768, F16),
    "float16 layer, odd": layer(500, 767, 768, F16), "MiniLM's layer": of_minilm(8192, 1536, 384),
    **{f"{kind} weights, {rows} rows": of_llama(rows, 2048, 2048, dtype)
       for kind, dtype in (("float32", F32), ("bfloat16", BF16), ("float16", F16)) for rows in (1, 40, 600)},
}


def picked(pick: str, gpu) -> list:
    with gpus.plan_for(gpu):
        return launches.planned(PICKS[pick])


def names(pick: str, gpu) -> list[str]:
    return [one.kernel.__name__.removesuffix("_kernel") for one in picked(pick, gpu)]


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("name", TARGETS)
def test_every_pick_has_a_form_that_the_gpu_can_run(name):
    for pick in PICKS:
        for one in picked(pick, gpu := TARGETS[name]):
            assert not needs.lacks(gpu.capability, needs.of(one.kernel)), pick
            assert one.shared_bytes <= gpu.shared_per_block, (pick, one.kernel.__name__)
            assert one.threads <= 1024, pick


# What is picked on an H200, and where something else is: {pick: (on an H200, {GPU: there})}.
ELSEWHERE = ("t4", "a100", "rtx3060", "l4", "b200", "rtx5090")
EXPECTED = {
    "attention": ("attention_flash", {}),
    "attention, one row": ("attention_flash", {}),
    "attention, heads of 20": ("attention_all_threads", {}),
    "float16 attention": ("attention_flash_wgmma", dict.fromkeys(ELSEWHERE, "attention_flash_half")),
    "float16 attention, heads of 80": ("attention_flash_half", {}),
    "float16 sentences": ("attention_sentences_flash_half", {}),
    "float32 decoding, heads of 64": ("paged_decode", {}),
    "bfloat16 decoding, heads of 64": ("paged_decode_mma", {"t4": "paged_decode"}),
    "bfloat16 decoding, heads of 128": ("paged_decode_mma", {"t4": "paged_decode"}),
    "float16 decoding, heads of 64": ("paged_decode_mma", {}),
    "float16 decoding, heads of 128": ("paged_decode_mma", {"t4": "paged_decode"}),
    "float32 prompt, heads of 128": ("paged_prefill", {}),
    "bfloat16 prompt, heads of 64": ("paged_prefill_mma", {"t4": "paged_prefill_naive"}),
    "float16 prompt, heads of 128": ("paged_prefill_mma", {}),
    "float16 layer, few rows": ("skinny_half", {}),
    "float16 layer, odd": ("fused_tiled", {}),
    "MiniLM's layer": ("wgmma_specialised", dict.fromkeys(ELSEWHERE, "pipelined")),
    "bfloat16 weights, 1 rows": ("streamed_tensor", {"t4": "streamed_wide"}),
    "bfloat16 weights, 40 rows": ("swap_ab", {"t4": "streamed_wide"} | dict.fromkeys(ELSEWHERE[1:], "pipelined")),
    "bfloat16 weights, 600 rows": (
        "wgmma_specialised", {"t4": "streamed_wide"} | dict.fromkeys(ELSEWHERE[1:], "pipelined")),
    "float16 weights, 1 rows": ("streamed_tensor", {}),
    "float16 weights, 600 rows": ("wgmma_specialised", dict.fromkeys(ELSEWHERE, "pipelined")),
    "float32 weights, 600 rows": ("streamed_wide", {}),
}


@pytest.mark.parametrize("pick", EXPECTED)
def test_which_kernel_is_picked_where(pick):
    on_h200, there = EXPECTED[pick]
    found = {name: names(pick, GPUS[name])[0] for name in ("h200", *ELSEWHERE)}
    assert found == {name: there.get(name, on_h200) for name in found}


def test_tiles_on_an_h200_are_as_measured_and_smaller_where_shared_memory_is():
    with gpus.plan_for(GPUS["h200"]):
        assert flash_form(64, 12, 4096) == (4, 8) and flash_form(256, 12, 4096) == (2, 8)
        assert [keys_of_tile(size) for size in (32, 64, 128, 256)] == [64] * 4
    with gpus.plan_for(GPUS["t4"]):
        assert flash_form(64, 12, 4096) == (2, 8) and flash_form(128, 12, 4096) == (2, 4)
        assert flash_form(256, 12, 4096) == (1, 2)
        assert [keys_of_tile(size) for size in (32, 64, 128, 256)] == [64, 64, 32, 16]


@pytest.mark.parametrize("gpu", TARGETS.values(), ids=TARGETS)
def test_which_keys_share_a_tile_depends_on_the_head_alone(gpu):
    """So that a row has the same bits in any company."""
    with gpus.plan_for(gpu):
        for size in range(16, 257, 16):
            forms = {flash_form(size, pairs, rows) for pairs in (1, 40, 4000) for rows in (1, 100, 5000)}
            assert len({keys_each for _, keys_each in forms}) == 1
            if gpu is not SMALL:
                assert all(FlashTile(size, *form).shared_bytes <= gpu.shared_per_block for form in forms)
                assert MmaTile(size, 4, 1, keys_of_tile(size)).shared_bytes <= gpu.shared_per_block
            assert len({mma_form(size, pairs, rows)[2] for pairs in (1, 4000) for rows in (1, 5000)}) == 1


def test_a_rung_that_needs_more_shared_memory_says_so():
    assert matmul_half_three_stage.missing == ""
    with gpus.plan_for(replace(GPUS["t4"], shared_per_block=32_768)):
        needed = matmul_half_three_stage.kernel.shared_bytes
        assert matmul_half_three_stage.missing == (
            f"needs {needed:,} bytes of shared memory a block; this GPU allows 32,768")
    with gpus.plan_for(GPUS["t4"]):
        assert matmul_half_three_stage.missing == linear_pipelined.missing == ""
        with pytest.raises(ValueError, match=r"nbytes is 65,537; pipelined_kernel can have 0 to 65,536 bytes of shared "
                                             r"memory a block on Tesla T4"):
            dynamic_shared(linear_pipelined.kernel[0], 65_537)
        qkv, out = arrays((17_000, 3), (17_000, 1), dtype=F32)
        with pytest.raises(ValueError, match="68,000 bytes of shared memory; a block can have 65,408 bytes"):
            attention_three_pass(qkv, 1, out)


def test_kernels_of_a_factory_are_made_for_each_compute_capability():
    kernel = make_flash(64, 1, 8)
    with gpus.plan_for(GPUS["rtx5090"]):
        there = kernel.build()
    with gpus.plan_for(GPUS["h200"]):
        assert kernel.build() is not there and kernel.build() is kernel.build()
    with gpus.plan_for(replace(GPUS["rtx5090"], multiprocessors=1)):
        assert kernel.build() is there


@pytest.mark.sweep
@pytest.mark.parametrize("keys_each", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_of_fewer_keys_compute_the_same(keys_each, causal):
    def launch(qkv, heads, out, *, cache=None, start=None, causal=False):
        launch_flash(make_flash(64, 2, keys_each), qkv, heads, out, cache, start, causal, 0)

    check(launch, 70, 3, 64, causal)
    check(launch, 5, 2, 64, causal, before=70)


@pytest.mark.sweep
@pytest.mark.parametrize("keys", [32, 16])
def test_tiles_of_fewer_keys_on_tensor_cores_compute_the_same(keys):
    def launch(qkv, heads, out, *, cache=None, start=None, causal=False):
        launch_flash(make_flash_half(64, 1, 1, keys), qkv, heads, out, cache, start, causal, 0)

    for causal in (False, True):
        check(launch, 70, 3, 64, causal, dtype=np.float16)
        check(launch, 5, 2, 64, causal, before=70, dtype=np.float16)
