"""Vector addition and softmax in cuTile (the package cuda-tile): a block loads tiles, computes, stores tiles.

Shapes  vector_add: a, b, out (n,).  softmax: x, out (rows, cols); float32, C-contiguous
Source  cuTile Python documentation, "Quickstart"

cuTile compiles by tileiras, a compiler that comes with CUDA 13.1 and later (13.3 for compute capability 9.x), and runs
on a driver of version 580 or later. The package finds tileiras on the PATH. (The wheels of `cuda-tile[tileiras]` bring
it, too, but with an NVVM of the same age, which numba-cuda would find and which may be too new for the driver.)
why_not() names the missing part. Without these the same functions run on tile_model; and translate() shows how cuTile
compiles them, if the package is installed: its front end needs no GPU.
"""

import functools
import io

from labkit import device
from labkit.kernels.libraries import cutile_model as tile_model
from labkit.kernels.op import rung


def _import_tile():
    try:
        import cuda.tile

        return cuda.tile, ""
    except Exception as error:  # a broken install of a baseline must not stop a lesson
        reason = "is not installed" if isinstance(error, ImportError) else f"does not import: {error}"
        return tile_model, f"cuda-tile {reason}. On Linux or Windows: pip install cuda-tile"


ct, _missing = _import_tile()


def vector_add_tiles(a, b, out, tile: ct.Constant[int]):
    i = ct.bid(0)
    a_tile = ct.load(a, index=(i,), shape=(tile,))
    b_tile = ct.load(b, index=(i,), shape=(tile,))
    ct.store(out, index=(i,), tile=a_tile + b_tile)


def softmax_tiles(x, out, tile: ct.Constant[int]):
    row = ct.bid(0)
    x_tile = ct.load(x, index=(row, 0), shape=(1, tile), padding_mode=ct.PaddingMode.NEG_INF)
    e = ct.exp(x_tile - ct.max(x_tile, axis=1, keepdims=True))
    ct.store(out, index=(row, 0), tile=e / ct.sum(e, axis=1, keepdims=True))


@rung(kernel=vector_add_tiles, idea="a block for a tile of 1,024 elements")
def vector_add_cutile(a, b, out, tile: int = 1024) -> None:
    """out = a + b. One block for `tile` elements, a power of two."""
    (n,) = a.shape
    _launch(vector_add_tiles, (ct.cdiv(n, tile), 1, 1), (a, b, out), tile)


@rung(kernel=softmax_tiles, idea="a block for a row, which is one tile")
def softmax_cutile(x, out, **hints) -> None:
    """Softmax of each row. One block for a row, which is one tile. hints for the compiler, such as occupancy=4."""
    rows, cols = x.shape
    _launch(softmax_tiles, (rows, 1, 1), (x, out), 1 << (cols - 1).bit_length(), **hints)


def why_not() -> str:
    """Why cuTile cannot run here, as a sentence; "" if it can."""
    if _missing:
        return _missing
    if not device.on_gpu():
        return "cuda-tile is installed, but there is no GPU."
    try:
        return _tried()
    except Exception as error:  # whatever the compiler or the driver says is the reason
        return f"cuda-tile is installed, but {_first_line(error)}"


@functools.cache
def _tried() -> str:
    """Compile and run sixteen additions."""
    import numpy as np

    from labkit import cuda

    a, out = cuda.to_device(np.ones(16, np.float32)), cuda.to_device(np.zeros(16, np.float32))
    _launch_on_gpu(vector_add_tiles, (1, 1, 1), (a, a, out), 16)
    cuda.synchronize()
    return "" if (out.copy_to_host() == 2).all() else "cuda-tile ran and its result is wrong."


def where() -> str:
    """What runs the programs: the GPU's name, or the model in NumPy."""
    return "a model of cuTile in NumPy" if why_not() else device.name()


def translate(function, *, tile: int, arrays: int = 3, axes: int = 1, gpu: str = "sm_90", output="tileir_bytecode"):
    """Compile a kernel over float32 arrays with cuTile, without a GPU: to Tile IR, or with output="cubin" to a cubin.

    A cubin needs tileiras. An invalid program raises one of cuda.tile's errors.
    """
    if _missing:
        raise ImportError(_missing)
    from cuda.tile import compilation as c

    array = c.ArrayConstraint(ct.float32, axes, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
                              may_alias_internally=False, stride_constant=(*(None,) * (axes - 1), 1),
                              base_addr_divisible_by=16)
    signature = c.KernelSignature([array] * arrays + [c.ConstantConstraint(tile)],
                                  c.CallingConvention.cutile_python_v1())
    file = io.BytesIO()
    version = {"bytecode_version": "13.1"} if output == "tileir_bytecode" else {}
    c.export_kernel(ct.kernel(function), [signature], file, gpu_code=gpu, output_format=output, **version)
    return file.getvalue()


def _launch(function, grid, arrays, tile: int, **hints) -> None:
    if why_not():
        tile_model.launch(None, grid, function, (*arrays, tile))
    else:
        _launch_on_gpu(function, grid, arrays, tile, **hints)


def _launch_on_gpu(function, grid, arrays, tile: int, **hints) -> None:
    ct.launch(_stream(), grid, _compiled(function, **hints), (*arrays, tile))


@functools.cache
def _compiled(function, **hints):
    return ct.kernel(function, **hints)


def _stream():
    """The current stream of PyTorch or CuPy; cuTile accepts only these."""
    try:
        import torch

        return torch.cuda.current_stream()
    except ImportError:
        import cupy

        return cupy.cuda.get_current_stream()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    return next(line for line in lines if line)
