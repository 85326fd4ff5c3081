"""The same jobs through libraries: cuBLAS (through CuPy), Triton and cuTile. Each is imported when it is first used.

    blas          cuBLAS's calls: gemm, isamax, asum. Without CuPy and a GPU, a NumPy model that reads memory as it does
    column_major  that model
    blas_softmax  softmax from BLAS reductions and two small kernels
    triton, cutile    vector addition (and softmax) in Triton and in cuTile
    cutile_model  a NumPy model of the few names of cuda.tile that the course uses
    nvcc          CUDA C++ of ours, compiled by nvcc: CUB's histogram

The rest of labkit needs none of the libraries.
"""


def triton_vector_add(triton, a, b, out) -> None:
    """out = a + b by Triton, for PyTorch's tensors. Called as a baseline is, with the module as first argument."""
    from labkit.kernels.libraries import triton as triton_kernels

    triton_kernels.vector_add_triton(a, b, out)


def triton_softmax(triton, x, out) -> None:
    """out = softmax of each row of x by Triton, for PyTorch's tensors; the call of a baseline."""
    from labkit.kernels.libraries import triton as triton_kernels

    triton_kernels.softmax_triton(x, out)
