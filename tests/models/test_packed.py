"""Quantised checkpoints, packed here as the documentation of each format has it, bit by bit, and read by the library;
models of them, launch by launch; and the message for each bad file."""

import re
from dataclasses import replace

import numpy as np
import pytest

from labkit.kernels.dtypes import bfloat16_of, float64_of
from labkit.models.configs import HEAD, Qwen3Config, names_in
from labkit.models.llama import Llama, SingleSequence
from labkit.models.llama_reference import parity, weights_of
from labkit.models.packed import arrays_of, as_bytes, check_quantization, opened, stacked, views
from labkit.models.qwen3 import Qwen3
from labkit.models.safetensors import read, write
from tests.models.test_llama import SMALL, random_prompts, random_tensors

N, K, GROUP = 24, 64, 32
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}


def compressed(bits=4, type="int", strategy="group", symmetric=False, targets=("Linear",), format="pack-quantized"):
    weights = {"num_bits": bits, "type": type, "strategy": strategy, "symmetric": symmetric, "group_size": GROUP}
    return {"quant_method": "compressed-tensors", "format": format,
            "config_groups": {"group_0": {"targets": list(targets), "weights": weights}}}


def words(values: list[list[int]]) -> np.ndarray:
    """Python's integers of up to 32 bits as int32."""
    return np.array(values, np.uint64).astype(np.uint32).view(np.int32)


def packed_along(values: np.ndarray, axis: int, order=range(8)) -> np.ndarray:
    """Eight nibbles a word along an axis; the nibble i of a word is number order[i] of its eight."""
    values = np.moveaxis(values, axis, -1).astype(object)
    rows = [[sum(int(row[8 * word + place]) << 4 * i for i, place in enumerate(order))
             for word in range(len(row) // 8)] for row in values]
    return np.ascontiguousarray(np.moveaxis(words(rows), -1, axis))


class Made:
    """Random codes (N, K), scales and zeros (N, groups), and the weights that they mean, in float64."""

    def __init__(self, rows=N, columns=K, group=GROUP, symmetric=False, seed=0, largest=0.1):
        rng = np.random.default_rng(seed)
        self.codes = rng.integers(0, 16, (rows, columns))
        shape = (rows, columns // group)
        self.zeros = np.full(shape, 8) if symmetric else rng.integers(1, 16, shape)
        self.scales = rng.uniform(largest / 10, largest, shape).astype(np.float16)
        self.weights = np.empty((rows, columns))
        for column in range(columns):
            zeros, scales = self.zeros[:, column // group], self.scales[:, column // group].astype(np.float64)
            self.weights[:, column] = (self.codes[:, column] - zeros) * scales
        self.group = group

    def awq(self) -> dict:
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {"qweight": packed_along(self.codes.T, 1, order), "qzeros": packed_along(self.zeros.T, 1, order),
                "scales": np.ascontiguousarray(self.scales.T)}

    def gptq(self, less=1) -> dict:
        return {"qweight": packed_along(self.codes.T, 0), "qzeros": packed_along(self.zeros.T - less, 1),
                "scales": np.ascontiguousarray(self.scales.T),
                "g_idx": np.arange(self.codes.shape[1], dtype=np.int32) // self.group}

    def compressed(self) -> dict:
        return {"weight_packed": packed_along(self.codes, 1), "weight_scale": self.scales,
                "weight_zero_point": packed_along(self.zeros, 0),
                "weight_shape": np.array(self.codes.shape, np.int64)}


LAYOUTS = {"awq": (AWQ, Made.awq), "gptq": (GPTQ, Made.gptq),
           "gptq_v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, lambda made: made.gptq(0)),
           "compressed": (compressed(), Made.compressed)}


def layer(tmp_path, parts: dict, quantization: dict, dtypes=None, base="model.layers.0.mlp.down_proj"):
    """The layer of a file that holds these parts of it."""
    write(tmp_path / "x.safetensors", {f"{base}.{part}": array for part, array in parts.items()},
          {f"{base}.{part}": dtype for part, dtype in (dtypes or {}).items()})
    check_quantization(quantization)
    tensors = opened(read(tmp_path / "x.safetensors"), quantization)
    assert list(tensors) == [f"{base}.weight"]
    return tensors[f"{base}.weight"]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_what_is_read_is_what_was_packed(tmp_path, name, symmetric):
    quantization, pack = LAYOUTS[name]
    made = Made(symmetric=symmetric)
    found = layer(tmp_path, pack(made), quantization)
    assert (found.shape, found.group, found.zeros) == ((N, K), GROUP, not symmetric)
    np.testing.assert_array_equal(found.read().dequantize(), made.weights)


def test_known_words(tmp_path):
    """One word of each layout, from the digits of its columns: column j holds the code j."""
    for name, expected in (("awq", 0x75316420), ("gptq", 0x76543210), ("compressed", 0x76543210)):
        quantization, pack = LAYOUTS[name]
        made = Made(rows=8, columns=32)
        made.codes = np.tile(np.arange(8)[:, None], (1, 32)) if name == "awq" else np.tile(np.arange(8), (8, 4))
        parts = pack(made)
        assert parts["weight_packed" if name == "compressed" else "qweight"].view(np.uint32)[0, 0] == expected
        np.testing.assert_array_equal(layer(tmp_path, parts, quantization).read().codes, made.codes)


@pytest.mark.parametrize("width", [64, 192, 256])
def test_larger_groups_are_several_with_the_same_scale(tmp_path, width):
    made = Made(columns=2 * width, group=width)
    found = layer(tmp_path, made.awq(), AWQ | {"group_size": width})
    assert found.group == (128 if width == 256 else 64)
    np.testing.assert_array_equal(found.read().dequantize(), made.weights)


def test_zero_points_of_int8_and_symmetric_files_have_none(tmp_path):
    made = Made()
    parts = made.compressed() | {"weight_zero_point": (made.zeros - 8).astype(np.int8)}
    np.testing.assert_array_equal(layer(tmp_path, parts, compressed()).read().dequantize(), made.weights)
    made = Made(symmetric=True)
    parts = made.compressed()
    del parts["weight_zero_point"]
    found = layer(tmp_path, parts, compressed(symmetric=True))
    np.testing.assert_array_equal(found.read().dequantize(), made.weights)


def test_bytes(tmp_path):
    """int8 in words and under its own name, and FP8 with a scale for each row or for all."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (N, K)).astype(np.int8)
    scales = rng.uniform(0.01, 0.1, (N, 1)).astype(np.float32)
    rows = [[sum((int(code) + 128) << 8 * i for i, code in enumerate(row[4 * word : 4 * word + 4]))
             for word in range(K // 4)] for row in codes]
    expected = codes.astype(np.float64) * scales
    found = layer(tmp_path, {"weight_packed": words(rows), "weight_scale": scales,
                             "weight_shape": np.array([N, K])}, compressed(8, strategy="channel", symmetric=True))
    np.testing.assert_array_equal(found.read().dequantize(), expected)
    found = layer(tmp_path, {"weight": codes, "weight_scale": scales},
                  compressed(8, strategy="channel", symmetric=True, format="int-quantized"))
    np.testing.assert_array_equal(found.read().dequantize(), expected)

    known = {0x00: 0.0, 0x01: 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x3C: 1.5, 0x7E: 448.0, 0xB8: -1.0, 0xFE: -448.0}
    fp8 = np.tile(np.array(list(known), np.uint8), (N, K // 8))
    expected = np.tile(list(known.values()), (N, K // 8))
    for shape in ((N, 1), (N,), (1,), ()):
        scale = np.full(shape, 0.5, np.float32)
        found = layer(tmp_path, {"weight": fp8, "weight_scale": scale},
                      compressed(8, "float", "channel", True, format="float-quantized"), {"weight": "F8_E4M3"})
        np.testing.assert_array_equal(found.read().dequantize(), expected / 2)


def test_scales_of_bfloat16(tmp_path):
    made = Made()
    bits = bfloat16_of(made.scales)
    parts = made.compressed() | {"weight_scale": bits}
    found = layer(tmp_path, parts, compressed(), {"weight_scale": "BF16"}).read()
    np.testing.assert_array_equal(found.scales, bits)


# --- Bad files --------------------------------------------------------------------------------------------------------


def change(parts: dict, **changed) -> dict:
    return {name: array for name, array in (parts | changed).items() if array is not None}


BAD_FILES = {
    "a missing part": (GPTQ, lambda made: change(made.gptq(), qzeros=None), r"down_proj\.qzeros is missing"),
    "another shape": (GPTQ, lambda made: change(made.gptq(), qzeros=made.gptq()["qzeros"][:1]),
                      r"down_proj\.qzeros has shape \(1, 3\); it must be \(2, 3\)"),
    "another type": (AWQ, lambda made: change(made.awq(), qweight=made.awq()["qweight"].astype(np.int64)),
                     r"down_proj\.qweight is of type int64; it must be int32"),
    "scales": (AWQ, lambda made: change(made.awq(), scales=made.awq()["scales"].astype(np.int32)),
               r"down_proj\.scales is of type int32"),
    "infinite scales": (AWQ, lambda made: change(made.awq(), scales=made.awq()["scales"] * np.float16(np.inf)),
                        r"down_proj\.scales holds numbers that are not finite"),
    "columns out of order": (GPTQ, lambda made: change(made.gptq(), g_idx=made.gptq()["g_idx"][::-1].copy()),
                             r"down_proj\.g_idx puts columns into groups out of their order"),
    "small groups": (AWQ, lambda made: Made(group=16).awq(), r"down_proj\.scales makes 4 groups of 64 columns"),
    "scales of groups in int8": (compressed(8, symmetric=True, strategy="channel"),
                                 lambda made: {"weight": np.ones((N, K), np.int8),
                                               "weight_scale": np.ones((N, 2), np.float32)},
                                 r"down_proj\.weight_scale has shape \(24, 2\)"),
    "int8 instead of FP8": (compressed(8, "float", "channel", True),
                                lambda made: {"weight": np.ones((N, K), np.int8)},
                                r"down_proj\.weight is int8; quantization_config says float"),
    "no group": (compressed(targets=["q_proj"]), Made.compressed, "down_proj is quantised, but no group"),
    "nothing quantised": (AWQ, lambda made: {"weight": made.scales}, "none of the 1 tensors is quantised"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_the_error_for_a_bad_file_names_the_tensor(tmp_path, name):
    quantization, parts, message = BAD_FILES[name]
    with pytest.raises(ValueError, match=message):
        layer(tmp_path, parts(Made()), quantization)


def test_nan_of_fp8(tmp_path):
    for code in (0x7F, 0xFF):
        codes = np.zeros((N, K), np.uint8)
        codes[3, 5] = code
        with pytest.raises(ValueError, match=r"down_proj\.weight holds NaN"):
            layer(tmp_path, {"weight": codes, "weight_scale": np.ones(1, np.float32)},
                  compressed(8, "float", "tensor", True), {"weight": "F8_E4M3"})


BAD_SETTINGS = [
    ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; only 'awq' and 'gptq' and"),
    (AWQ | {"bits": 3}, "bits is 3; only 4"),
    (AWQ | {"version": "gemv"}, "version is 'gemv'; only 'gemm'"),
    (AWQ | {"zero_point": False}, "zero_point is False"),
    (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    (compressed() | {"config_groups": {}}, "config_groups is {}"),
    (compressed() | {"config_groups": {"a": {"weights": {}}}}, "it must have targets"),
    (compressed(bits=2), "num_bits 2"),
    (compressed(bits=4, type="float"), "type 'float' with num_bits 4"),
    (compressed(8, strategy="group"), "strategy is 'group'"),
    (compressed(8, strategy="channel"), "symmetric is False"),
]


@pytest.mark.parametrize("quantization, message", BAD_SETTINGS)
def test_a_configuration_that_cannot_be_computed_is_refused(quantization, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(SMALL, quantization_config=quantization)


# --- Models -----------------------------------------------------------------------------------------------------------


def checkpoint(path, name: str, config=SMALL, keep=()):
    """Write a model's file in one of the layouts. Return its tensors and the weights, (N, K) by name. keep: parts of
    names of linear layers that are not quantised."""
    quantization, pack = LAYOUTS[name]
    arrays, dtypes, truth = {}, {}, {}
    for seed, (tensor_name, values) in enumerate(random_tensors(config).items()):
        param = tensor_name.removeprefix("model.")
        if "_proj" in param and param.endswith("weight") and not any(part in param for part in keep):
            made = Made(*values.shape, seed=seed, largest=0.02)
            truth[param] = made.weights
            arrays |= {f"{tensor_name.removesuffix('weight')}{part}": array for part, array in pack(made).items()}
        else:
            arrays[tensor_name], dtypes[tensor_name] = bfloat16_of(values), "BF16"
            truth[param] = float64_of(arrays[tensor_name])
    write(path, arrays, dtypes)
    return replace(config, quantization_config=quantization), read(path), truth


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize("name, dtype", [*((name, "bfloat16") for name in LAYOUTS), ("gptq", "float16")])
def test_every_launch_of_a_model_agrees_with_the_weights_that_were_packed(tmp_path, name, dtype):
    config, tensors, truth = checkpoint(tmp_path / "model.safetensors", name)
    model = Llama(config, tensors, dtype)
    w = weights_of(model.tensors, config)
    assert sorted(w) == sorted(truth)
    for param, expected in truth.items():
        np.testing.assert_array_equal(w[param], expected)
    found = parity(model, random_prompts(config), before=(0, 0, 9))
    assert found.passed and len(found.rows) == 3 + 12 * config.num_hidden_layers
    assert model.weights.nbytes < 0.7 * Llama(SMALL, random_tensors(SMALL), "bfloat16").weights.nbytes


def test_some_layers_and_the_head_may_stay_as_they_are(tmp_path):
    config = replace(SMALL, tie_word_embeddings=False)
    config, tensors, truth = checkpoint(tmp_path / "model.safetensors", "awq", config, keep=("layers.0.", "down"))
    assert parity(Llama(config, tensors, "bfloat16"), random_prompts(config)).passed
    made = Made(config.vocab_size + 3, config.hidden_size, largest=0.02)  # words are of eight rows
    config = replace(config, vocab_size=made.codes.shape[0])
    arrays = {name: tensors[name] for name in tensors if name != HEAD}
    arrays["model.embed_tokens.weight"] = bfloat16_of(np.ones((config.vocab_size, config.hidden_size)))
    arrays |= {f"lm_head.{part}": array for part, array in made.awq().items()}
    write(tmp_path / "head.safetensors", arrays, {name: "BF16" for name in arrays if arrays[name].dtype == np.uint16})
    model = Llama(config, read(tmp_path / "head.safetensors"), "bfloat16")
    np.testing.assert_array_equal(weights_of(model.tensors, config)[HEAD], made.weights)
    assert parity(model, random_prompts(config)).passed


@pytest.mark.sweep(every=True)
def test_qwen3_with_biases(tmp_path):
    config = Qwen3Config(vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=1, head_dim=32, attention_bias=True,
                         max_position_embeddings=128)
    config, tensors, truth = checkpoint(tmp_path / "model.safetensors", "compressed", config)
    model = Qwen3(config, tensors, "bfloat16")
    assert truth["layers.0.self_attn.q_proj.bias"].any()
    assert parity(model, random_prompts(config)).passed


def test_a_sequence_has_the_same_bits_alone_and_among_others(tmp_path):
    config, tensors, _ = checkpoint(tmp_path / "model.safetensors", "gptq")
    model = Llama(config, tensors, "bfloat16")
    prompts, logits = random_prompts(config, (9, 9, 9, 9)), []
    together = SingleSequence(model, context=64)
    for prompt in prompts:
        logits.append(SingleSequence(model, context=64)(prompt).copy_to_host()[0])
        for begin in range(0, 9, 3):  # in steps of another number of rows
            last = together(prompt[begin : begin + 3])
        np.testing.assert_array_equal(last.copy_to_host()[0], logits[-1])
        together.reset()


def test_layers_with_the_same_input_must_be_quantised_alike(tmp_path):
    config, tensors, _ = checkpoint(tmp_path / "model.safetensors", "awq", keep=("k_proj",))
    with pytest.raises(ValueError, match="k_proj.weight and .*v_proj.weight are not quantised alike"):
        Llama(config, tensors, "bfloat16")


def test_float32_is_refused(tmp_path):
    config, tensors, _ = checkpoint(tmp_path / "model.safetensors", "awq")
    with pytest.raises(ValueError, match="dtype is 'float32'; with quantised weights it must be"):
        Llama(config, tensors, "float32")


def test_a_wrong_shape_is_named_as_for_any_weight(tmp_path):
    config, tensors, _ = checkpoint(tmp_path / "model.safetensors", "awq")
    config = replace(config, intermediate_size=64)
    with pytest.raises(ValueError, match=r"gate_proj.weight has shape \(96, 64\); the configuration says \(64, 64\)"):
        names_in(opened(tensors, config.quantization_config), config)


def test_stacked_layers_and_bytes_hold_what_their_parts_hold(tmp_path):
    """One with zeros and one without, whose zeros are 8 then."""
    with_zeros, without = Made(seed=1), Made(rows=16, symmetric=True, seed=2)
    parts = [layer(tmp_path, made.awq(), AWQ) for made in (with_zeros, without)]
    both = stacked(parts)
    assert both.shape == (N + 16, K) and both.zeros
    expected = np.concatenate([with_zeros.weights, without.weights])
    np.testing.assert_array_equal(both.read().dequantize(), expected)
    memory = as_bytes(both)
    assert memory.size == arrays_of(both)[1]
    packed, viewed = both.read().pack(), views(both, memory)
    for name in ("words", "scales", "zeros"):
        np.testing.assert_array_equal(getattr(viewed, name), getattr(packed, name))
    assert viewed.scale_dtype == packed.scale_dtype and viewed[:4] == packed[:4]
