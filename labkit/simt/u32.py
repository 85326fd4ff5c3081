"""Indices as unsigned 32-bit integers: the names of labkit.u32 on the CPU device, and what each means.

    col, row = u32.grid(2)
    rows, cols = u32.shape(out)
    for k in u32.range(depth): ...

`cuda.threadIdx.x` is an int32 in Numba, `cuda.grid` and `a.shape` are int64, and a negative index counts from the end
of an array. A uint32 needs no test for that, and one register where an int64 takes two.
"""

from labkit.simt.stubs import Dim3, Function

threadIdx, blockIdx = Dim3("threadIdx", "t", module="u32"), Dim3("blockIdx", "b", module="u32")
blockDim, gridDim = Dim3("blockDim", "bd", module="u32"), Dim3("gridDim", "gd", module="u32")

grid = Function("grid", "ndim", "cuda.grid(ndim) as uint32: the position of this thread in the whole grid.",
                module="u32")
gridsize = Function("gridsize", "ndim", "cuda.gridsize(ndim) as uint32: the threads of the grid along each axis.",
                    module="u32")
shape = Function("shape", "array", "array.shape as a tuple of uint32.", module="u32")
size = Function("size", "array", "array.size as a uint32.", module="u32")
range = Function("range", "start stop step", "Python's range over uint32, with a step above 0. The number after the "
                 "last must be less than 2**32: observe() says where it is not.", module="u32")  # fmt: skip

NAMES = ("threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize", "shape", "size", "range")
