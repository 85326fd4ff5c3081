"""The block of GPT-2: its flat buffer, any length, causal and not, every step against float64, and no library."""

import math
import subprocess
import sys
import time

import numpy as np
import pytest

from labkit import cuda, device
from labkit.device import compiler, graphs
from labkit.models import gpt2_block as block
from labkit.models.gpt2_block import FUSED, GPT2_SMALL, KERNEL_FOR_EACH_STEP, Kernels, Shape, Workspace, solve

SMALL = Shape(width=48, heads=3, inner=80)
ODD = Shape(width=21, heads=3, inner=13)  # a head of seven numbers, an inner width that no tile divides


def case(shape, tokens, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((tokens, shape.width), np.float32).astype(dtype), shape.random(rng, dtype)


def truth(x, weights, shape, **options):
    return block.block_steps(x, {name: part.astype(np.float64) for name, part in shape.split(weights).items()},
                             shape.heads, **options)


def solved(x, weights, **options):
    out = cuda.device_array(x.shape, x.dtype)
    solve(cuda.to_device(x), out, cuda.to_device(weights), len(x), **options)
    return out.copy_to_host()


def close(got, expected, shape, launches=7, dtype=np.float32):
    allowed = block.allowed_error(shape, expected, launches, dtype)
    assert np.abs(got.astype(np.float64) - expected).max() <= allowed
    return allowed


# --- The flat buffer --------------------------------------------------------------------------------------------------


def test_the_offsets_of_gpt2_small():
    assert GPT2_SMALL.size == 7_087_872
    assert list(GPT2_SMALL.offsets.values()) == [
        0, 768, 1_536, 1_771_008, 1_773_312, 2_363_136, 2_363_904, 2_364_672, 2_365_440, 4_724_736, 4_727_808,
        7_087_104]
    assert 12 * GPT2_SMALL.size == 85_054_464


@pytest.mark.parametrize("shape", [GPT2_SMALL, SMALL, ODD, Shape(1024, 16, 4096)])
def test_parameters_follow_one_another(shape):
    at = 0
    for name, dims in shape.parameters.items():
        assert shape.offsets[name] == at
        at += math.prod(dims)
    assert at == shape.size
    flat = np.arange(shape.size, dtype=np.int64)
    parts = shape.split(flat)
    assert [part.shape for part in parts.values()] == list(shape.parameters.values())
    np.testing.assert_array_equal(np.concatenate([part.reshape(-1) for part in parts.values()]), flat)


# --- Right ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1, sweep=99, quick="shape0-1-each_step-False")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernels", [FUSED, KERNEL_FOR_EACH_STEP], ids=["fused", "each_step"])
@pytest.mark.parametrize(("shape", "tokens"), [(SMALL, 1), (SMALL, 19), (ODD, 5)])
def test_every_step_against_float64(shape, tokens, kernels, causal):
    x, weights = case(shape, tokens)
    expected = truth(x, weights, shape, causal=causal)
    seen = {}
    out = cuda.to_device(np.full((tokens, shape.width), np.nan, np.float32))
    solve(cuda.to_device(x), out, cuda.to_device(weights), tokens, shape=shape, causal=causal, kernels=kernels,
          watch=lambda name, array: seen.__setitem__(name, array.copy_to_host()))
    assert list(seen) == list(expected)
    for number, (name, values) in enumerate(expected.items()):
        close(seen[name], values, shape, launches=number + 1)
    np.testing.assert_array_equal(out.copy_to_host(), seen["out"])


@pytest.mark.sweep
def test_gpt2_small_with_16_tokens_quickly():
    """1e-3 is asked for; what is allowed here knows the depth, and is a tenth of it."""
    x, weights = case(GPT2_SMALL, 16)
    d_x, d_weights, out = cuda.to_device(x), cuda.to_device(weights), cuda.device_array(x.shape, np.float32)
    workspace = Workspace(GPT2_SMALL, 16)
    for causal in (False, True):
        expected = truth(x, weights, GPT2_SMALL, causal=causal)["out"]
        solve(d_x, out, d_weights, 16, workspace=workspace, causal=causal)
        assert close(out.copy_to_host(), expected, GPT2_SMALL) < 2e-4
        np.testing.assert_allclose(out.copy_to_host(), expected, atol=1e-3, rtol=1e-3)
    start = time.perf_counter()
    solve(d_x, out, d_weights, 16, workspace=workspace)
    cuda.synchronize()
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("tokens", [300, pytest.param(4096, marks=pytest.mark.slow)])
def test_long_sequences(tokens):
    shape = Shape(width=16, heads=1, inner=16)
    x, weights = case(shape, tokens)
    close(solved(x, weights, shape=shape), truth(x, weights, shape)["out"], shape)


def test_in_place_and_fewer_rows_than_there_are():
    x, weights = case(SMALL, 6)
    d_x = cuda.to_device(x)
    workspace = Workspace(SMALL, 9)
    solve(d_x, d_x, cuda.to_device(weights), 4, shape=SMALL, workspace=workspace)
    got = d_x.copy_to_host()
    close(got[:4], truth(x[:4], weights, SMALL)["out"], SMALL)
    np.testing.assert_array_equal(got[4:], x[4:])
    flat = cuda.to_device(x.reshape(-1))
    out = cuda.device_array(6 * 48, np.float32)
    solve(flat, out, cuda.to_device(weights), 6, shape=SMALL, workspace=workspace)
    close(out.copy_to_host().reshape(6, 48), truth(x, weights, SMALL)["out"], SMALL)


@pytest.mark.sweep
def test_float16():
    shape = Shape(width=64, heads=4, inner=96)
    x, weights = case(shape, 17, np.float16)
    for causal in (False, True):
        close(solved(x, weights, shape=shape, causal=causal), truth(x, weights, shape, causal=causal)["out"], shape,
              dtype=np.float16)


@pytest.mark.parametrize("kernels", [FUSED, KERNEL_FOR_EACH_STEP], ids=["fused", "each_step"])
def test_post_ln_is_another_block(kernels):
    x, weights = case(SMALL, 7)
    expected = truth(x, weights, SMALL, post_ln=True)["out"]
    close(solved(x, weights, shape=SMALL, post_ln=True, kernels=kernels), expected, SMALL)
    assert np.abs(expected - truth(x, weights, SMALL)["out"]).max() > 0.5


def test_a_kernel_of_ones_own_and_the_step_that_it_breaks():
    def lazy_gelu(x, out, stream=0):
        """Does nothing: what a learner may start from."""

    x, weights = case(SMALL, 3)
    expected, wrong = truth(x, weights, SMALL), []

    def watch(name, array):
        if np.abs(array.copy_to_host() - expected[name]).max() > 1e-3:
            wrong.append(name)

    solved(x, weights, shape=SMALL, watch=watch, kernels=Kernels(linear=block.separately(gelu=lazy_gelu)))
    assert wrong[0] == "mlp.gelu"


def test_pytorch_agrees():
    torch = pytest.importorskip("torch")
    x, weights = case(SMALL, 7)
    w = {name: torch.as_tensor(part.astype(np.float64)) for name, part in SMALL.split(weights).items()}
    F = torch.nn.functional

    def heads(t):
        return t.reshape(7, SMALL.heads, -1).swapaxes(0, 1)

    y = torch.as_tensor(x.astype(np.float64))
    for causal in (False, True):
        q, k, v = (F.layer_norm(y, (48,), w["ln_1.weight"], w["ln_1.bias"]) @ w["attn.c_attn.weight"]
                   + w["attn.c_attn.bias"]).split(48, dim=1)
        attended = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=causal)
        z = y + attended.swapaxes(0, 1).reshape(7, 48) @ w["attn.c_proj.weight"] + w["attn.c_proj.bias"]
        hidden = F.layer_norm(z, (48,), w["ln_2.weight"], w["ln_2.bias"]) @ w["mlp.c_fc.weight"] + w["mlp.c_fc.bias"]
        expected = z + F.gelu(hidden, approximate="tanh") @ w["mlp.c_proj.weight"] + w["mlp.c_proj.bias"]
        np.testing.assert_allclose(truth(x, weights, SMALL, causal=causal)["out"], expected.numpy(), rtol=1e-10,
                                   atol=1e-10)


# --- Memory and launches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernels", "launches"), [(FUSED, 7), (KERNEL_FOR_EACH_STEP, 10)])
def test_launches_and_the_graph(kernels, launches):
    x, weights = case(SMALL, 5)
    d_x, d_weights, out = cuda.to_device(x), cuda.to_device(weights), cuda.device_array(x.shape, np.float32)
    workspace = Workspace(SMALL, 5)
    graph = graphs.capture(lambda stream: solve(d_x, out, d_weights, 5, shape=SMALL, workspace=workspace,
                                                kernels=kernels, stream=stream))
    if not device.on_gpu():
        assert graph.nodes == launches
    other, _ = case(SMALL, 5, seed=9)
    d_x.copy_to_device(other)
    graph.launch()
    close(out.copy_to_host(), truth(other, weights, SMALL)["out"], SMALL)


def test_a_workspace_is_allocated_once(monkeypatch):
    x, weights = case(SMALL, 5)
    d_x, d_weights, out = cuda.to_device(x), cuda.to_device(weights), cuda.device_array(x.shape, np.float32)
    workspace = Workspace(SMALL, 5)
    allocate, count = cuda.device_array, []
    monkeypatch.setattr(cuda, "device_array", lambda *args, **named: count.append(args) or allocate(*args, **named))
    solve(d_x, out, d_weights, 5, shape=SMALL, workspace=workspace)
    assert len(count) == 0
    solve(d_x, out, d_weights, 5, shape=SMALL)
    assert len(count) == 5 + (workspace.parts is not None)
    count.clear()
    solve(d_x, out, d_weights, 5, shape=SMALL, memory=block.eight_buffers)
    assert len(count) == 8


def test_bytes_are_counted():
    fused, separate = (block.traffic(GPT2_SMALL, 1024, fused=fused) for fused in (True, False))
    assert (len(fused), len(separate)) == (7, 10)
    rows = 4 * 1024  # bytes of a column
    # Saved: GELU's reading and writing, and of each residual the writing and reading of what is added to it.
    assert sum(separate.values()) - sum(fused.values()) == rows * (2 * 3072 + 2 * 2 * 768)
    weights = 4 * (GPT2_SMALL.size)
    assert sum(block.traffic(GPT2_SMALL, 1).values()) == pytest.approx(weights, rel=0.01)  # one token: the weights
    assert sum(block.traffic(GPT2_SMALL, 1, itemsize=2).values()) * 2 == sum(block.traffic(GPT2_SMALL, 1).values())


# --- Errors -----------------------------------------------------------------------------------------------------------


def test_refusals_say_what_is_allowed():
    x, weights = case(SMALL, 5)
    d_x, d_weights, out = cuda.to_device(x), cuda.to_device(weights), cuda.device_array(x.shape, np.float32)

    def run(x=d_x, out=out, weights=d_weights, count=5, **options):
        solve(x, out, weights, count, **{"shape": SMALL, **options})

    for count in (0, 4097, -1, 2.0, True):
        with pytest.raises(ValueError, match="seq_len is .*; it must be a whole number from 1 to 4,096"):
            run(count=count)
    with pytest.raises(ValueError, match="x has 240 numbers; 6 tokens of 48 need 288"):
        run(count=6)
    with pytest.raises(ValueError, match="out has 96 numbers; 5 tokens of 48 need 240"):
        run(out=cuda.device_array((2, 48), np.float32))
    with pytest.raises(ValueError, match=r"x has shape \(48, 5\); its rows must have 48 numbers"):
        run(x=cuda.to_device(np.ascontiguousarray(x.T)))
    with pytest.raises(ValueError, match=f"weights has {SMALL.size:,} numbers; a block 768 wide.* has 7,087,872"):
        run(shape=GPT2_SMALL)
    with pytest.raises(TypeError, match="weights has dtype float64; float32 and float16 are allowed"):
        run(weights=cuda.to_device(weights.astype(np.float64)))
    with pytest.raises(TypeError, match="x has dtype float16; only float32 is allowed"):
        run(x=cuda.to_device(x.astype(np.float16)))
    with pytest.raises(TypeError, match="weights is a NumPy array on the host"):
        run(weights=weights)
    with pytest.raises(ValueError, match="the workspace's capacity is 3 tokens; 5 were asked for"):
        run(workspace=Workspace(SMALL, 3))
    with pytest.raises(ValueError, match="the workspace is for"):
        run(workspace=Workspace(ODD, 5))
    with pytest.raises(ValueError, match="width is 10, which 3 heads cannot share"):
        Shape(10, 3, 4)
    with pytest.raises(ValueError, match="inner is 0"):
        Shape(12, 3, 0)


@pytest.mark.sweep(every=True)
@pytest.mark.skipif(compiler.is_mlir(), reason="numba-cuda-mlir imports PyTorch and CuPy where they are installed")
def test_no_library_computes_a_part_of_it():
    """Neither CuPy nor PyTorch is even imported by a run of the block. Numba looks whether SciPy is there."""
    program = """
import sys, numba, numpy as np
before = set(sys.modules)
from labkit import cuda
from labkit.models.gpt2_block import Shape, solve
shape = Shape(16, 2, 16)
x = cuda.to_device(np.ones((3, 16), np.float32))
solve(x, x, cuda.to_device(shape.random(np.random.default_rng(0))), 3, shape=shape)
x.copy_to_host()
print([name for name in ("torch", "cupy", "triton", "scipy", "cuda.tile") if name in set(sys.modules) - before])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
