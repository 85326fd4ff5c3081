"""labkit.fits: what ptxas reports, as a table; each way not to fit; the line of Python; the bound."""

import types as python_types

import pytest
from numba import float32, int32, types

import labkit
from labkit import cuda, ptx
from labkit._common.errors import UserError
from labkit._common.tables import MIMETYPE
from labkit.device import compiling
from labkit.device.gpus import GPUS
from labkit.measure import fits as module
from labkit.measure.fits import Bound, Fit, Fits, Named, fits, gpus_named, python_line
from labkit.measure.ops import op


@pytest.fixture(scope="module", autouse=True)
def compiler():
    try:
        if compiling.resources(compiling.ptx(lambda out: None, types.void(types.float32[::1]))) is None:
            pytest.skip("ptxas is not installed")
    except compiling.NoCompiler as error:
        pytest.skip(str(error))


@cuda.jit
def tile(x, out):
    shared = cuda.shared.array((64, 130), float32)
    i = cuda.threadIdx.x
    shared[i % 64, i] = x[i]
    cuda.syncthreads()
    out[i] = shared[i % 64, i + 1]


@cuda.jit(max_registers=24)
def crowded(x, out):
    values = cuda.local.array(32, float32)
    for k in range(32):
        values[k] = x[32 * cuda.threadIdx.x + k]
    for _ in range(3):
        for k in range(32):
            values[k] = values[k] * values[(k + 5) % 32]
    for k in range(32):
        out[32 * cuda.threadIdx.x + k] = values[k]


@cuda.jit
def rounded(x, out):
    i = cuda.threadIdx.x
    out[i] = ptx.to_tf32(x[i])


def test_a_row_for_each_gpu_with_what_limits_it():
    table = fits(tile, "t4, rtx3060, h100", block=128)
    assert [row.gpu for row in table.rows] == ["t4", "rtx3060", "h100"]
    for row, blocks in zip(table.rows, (1, 2, 6), strict=True):  # of 33,280 bytes, and 1,024 from 8.0 on
        assert (row.static_bytes, row.dynamic_bytes, row.threads, row.short) == (33_280, 0, 128, "fits")
        assert (row.blocks, row.limiter, row.spill_bytes) == (blocks, "shared memory", 0)
        assert row.occupancy == pytest.approx(4 * blocks / GPUS[row.gpu].warps)
        assert 0 < row.registers < 64
    assert table.on("h100").runs and "shared memory" in str(table)
    assert table.result() == {"kind": "fits", "title": table.title,
                              "gpus": {"t4": "fits", "rtx3060": "fits", "h100": "fits"}}
    assert table._repr_mimebundle_()[MIMETYPE] == table.result()
    with pytest.raises(ValueError, match="gpu is 'l4'; the table has t4"):
        table.on("l4")


def test_spills_are_counted():
    row = fits(crowded, "a100").on("a100")
    assert row.registers == 24 and row.spill_bytes > 0 and row.runs
    assert row.short == f"spills {row.spill_bytes} B" and "local memory" in str(row.problems)


def test_a_refused_instruction_is_named_with_its_line_and_its_gpus():
    table = fits(rounded, "t4,rtx2060,a100")
    refused = table.on("t4")
    assert (refused.short, refused.registers, refused.runs) == ("refused: needs 8.0", None, False)
    line = rounded.py_func.__code__.co_firstlineno + 3
    assert len(refused.refused) == 2
    assert refused.refused[0].startswith(f"line {line} of ") and "`out[i] = ptx.to_tf32(x[i])`" in refused.refused[0]
    assert "sm_80" in refused.refused[0] and refused.refused[1] == "ptx.to_tf32 needs compute capability 8.0"
    assert table.on("a100").short == "fits"
    (note,) = [note for note in table.table()["notes"] if "`out[i]" in note]
    assert note.startswith("t4, rtx2060: line ")


def test_dynamic_shared_memory_of_the_launch_counts():
    launch = python_types.SimpleNamespace(kernel=tile, threads=1024, shared_bytes=100_000,
                                          signature=types.void(types.float32[::1], types.float32[::1]))
    t4, h100 = module.inspect(launch, gpus_named("t4,h100"))
    assert (t4.short, t4.blocks, t4.shared_bytes) == ("shared memory", 0, 133_280)
    assert "133,280" in t4.problems[0] and "65,536" in t4.problems[0]
    assert (h100.short, h100.blocks) == ("fits", 1)


def test_a_block_with_too_many_registers():
    one = Fit("t4", "k", 1024, 0)
    taken = {"registers": 128, "spill_bytes": 0, "shared_bytes": 0}
    launch = python_types.SimpleNamespace(kernel=tile, threads=1024, shared_bytes=0)
    found = module._fit(one.gpu, GPUS["t4"], launch, taken, "")
    assert (found.short, found.blocks) == ("no room: registers", 0) and "1,024 threads" in found.problems[0]


def test_the_types_come_from_the_signature_the_argument_or_the_last_launch():
    @cuda.jit("void(int32[::1], float32)")
    def with_signature(out, x):
        out[0] = int32(x)

    @cuda.jit
    def launched(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i]

    assert fits(with_signature, "t4", block=32).title == "with_signature(int32[::1], float32), 32 threads a block"
    assert not fits(with_signature, "t4", block=32).assumed
    assumed = fits(launched, "t4")
    assert len(assumed.assumed) == 2 and "float32[::1], float32[::1]" in assumed.assumed[0]
    assert "256 threads" in assumed.assumed[1] and assumed.bound is None
    import numpy as np

    x = cuda.to_device(np.zeros(1000, np.int32))
    launched[8, 128](x, x)
    table = fits(launched, "t4")
    assert table.title == "launched(int32[::1], int32[::1]), 128 threads a block" and not table.assumed
    other = fits(launched, "t4", types="uint32[::1], uint32[::1]", block=(8, 8))
    assert other.title == "launched(uint32[::1], uint32[::1]), 64 threads a block"


@pytest.mark.cpu_device
def test_the_bound_is_that_of_the_arrays():
    import numpy as np

    @cuda.jit
    def copied(x, out):
        out[cuda.grid(1)] = x[cuda.grid(1)]

    table = fits(copied, "t4", size={"x": 8_000_000, "out": (8_000_000,)})
    assert table.bound == Bound(64_000_000) and table.bound.text(GPUS["t4"]) == "0.2 (bytes)"
    x = cuda.to_device(np.zeros(256, np.float32))
    copied[1, 256](x, x)
    assert fits(copied, "t4").bound == Bound(2048)


@pytest.mark.parametrize(("size", "words"), [
    ({"y": 3}, "y is no array of tile; its arrays are x, out"), ({"x": 3}, "out is missing"),
    ({"x": (3, 3), "out": 3}, "x has 1 axes, and 2 lengths are given")])
def test_sizes_that_a_kernel_cannot_have(size, words):
    with pytest.raises(UserError, match=words):
        fits(tile, "t4", size=size)


def test_an_operations_bound():
    matmul = op("matmul")
    bound = Bound.of(matmul, {"M": 1000, "N": 1000, "K": 1000})
    assert (bound.bytes, bound.flops) == (12_000_000, 2_000_000_000)
    assert bound.text(GPUS["t4"]) == "0.247 (flops)"  # 2 GFLOP at 8.1 TFLOP/s
    assert Bound(320_000_000).text(GPUS["t4"]) == "1 (bytes)"
    assert Bound(1, 1, "tf32").text(GPUS["t4"]) == "-"  # it has no such type
    with pytest.raises(UserError, match="matmul takes M=4,096, N=4,096, K=4,096, not M=3"):
        Bound.of(matmul, {"M": 3})


@pytest.mark.sweep(every=True)
def test_a_rung_an_operation_and_a_kernel_by_name():
    small = {"R": 64, "C": 128}
    rung = fits("softmax_online", "t4,h100", size=small)
    assert isinstance(rung, Fits) and rung.title == "softmax_online, R=64, C=128"
    assert [row.short for row in rung.rows] == ["fits", "fits"] and rung.bound is not None
    kernel = fits("softmax_online_kernel", "t4", size=small)
    assert {row.kernel for row in kernel.rows} == {"softmax_online_kernel"}
    matrix = fits("transpose", "t4,h100", size=op("transpose").awkward[-1])
    table = matrix.table()
    assert [row[0] for row in table["rows"]] == [rung.__name__ for rung in op("transpose").rungs]
    assert table["columns"] == ["rung", "t4 (7.5)", "h100 (9.0)"]


def test_a_rung_that_a_gpu_cannot_run():
    table = fits("matmul_half_wgmma", "t4,b200", size={"M": 256, "N": 256, "K": 64})
    assert [row.short for row in table.rows] == ["refused: needs 9.0"] * 2
    assert "needs compute capability 9.0 exactly; this GPU has 7.5" in table.rows[0].problems[0]


@pytest.mark.sweep(every=True)
@pytest.mark.parametrize(("call", "words"), [
    (lambda: fits("softmax_onlin"), "did you mean softmax_online"),
    (lambda: fits(tile, "t5"), "gpu: 't5' is no GPU known here; allowed are t4"),
    (lambda: fits("softmax", types="float32"), "types: softmax is the course's"),
    (lambda: fits(len), "kernel is a builtin_function_or_method; it must be what @cuda.jit makes"),
])
def test_what_cannot_be_asked(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_names():
    assert Named.of("matmul").rung is None and Named.of("matmul_naive").op.name == "matmul"
    found = Named.of("matmul_naive_kernel")
    assert (found.rung.__name__, found.kernel) == ("matmul_naive", "matmul_naive_kernel")
    assert list(gpus_named(["T4", " 9.0"])) == ["t4", "9.0"] and tuple(gpus_named(None)) == module.USUAL
    assert labkit.fits is fits


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiling, "ptxas", lambda: None)
    monkeypatch.setattr(module.sys, "platform", "linux")
    empty = fits(tile, "t4")
    with pytest.raises(UserError, match=r"needs NVIDIA's compiler.*Install it: pip install -e '\.\[fits\]'"):
        module.of_kernel(tile, gpus_named("t4"))
    assert "Install it: pip install -e '.[fits]'." in " ".join(str(empty).split()) and empty.result()["gpus"] == {}
    with pytest.raises(ValueError, match="Install it"):
        empty.on("t4")
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(UserError, match="does not exist for macOS"):
        module.of_kernel(tile, gpus_named("t4"))


def test_a_line_of_ptx():
    text = '.file 1 "a.py"\n.file\t2 "b.py"\n.loc 1 7 0\nadd;\n.loc\t2 9 1\nmul;\n'
    assert python_line(text, 4) == ("a.py", 7) and python_line(text, 6) == ("b.py", 9)
    assert python_line(text, 2) is None


def test_every_gpu_is_listed():
    listed = str(module.known_gpus())
    assert all(name in listed for name in GPUS)
