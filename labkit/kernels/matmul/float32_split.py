"""The last rung of matmul: K is split where a product has fewer tiles than the GPU has SMs.

Shapes, sizes and work as in float32.py. The kernels are those of GPT-2's linear layers, without bias.
Source  NVIDIA CUTLASS, "Efficient GEMM in CUDA", Parallelized Reductions: Split K
"""

from labkit.kernels.arguments import check_array, product_sizes
from labkit.kernels.linear.fused import launch_pipelined, make_add_parts, make_fused_pipelined, parts_of
from labkit.kernels.matmul.float32 import matmul_pipelined
from labkit.kernels.op import rung


@rung(kernel=(*matmul_pipelined.kernel, make_fused_pipelined(True, True, False, False),
              make_fused_pipelined(False, True, False, False), make_add_parts(2, False, False, False)),
      idea="where tiles are fewer than SMs, several blocks share the K of a tile")
def matmul_split(a, b, out, stream=0):
    """As pipelined, but where a tile for each block would leave SMs idle, several blocks compute its product, each over
    a part of K. A second kernel adds their partial sums, in the order of K.

    1024 x 1024 has 64 tiles for the 132 SMs of an H200, where pipelined takes 104 us. In two parts, 128 blocks:
    about 52 us, and 7 for 8 MB of partial sums and the second launch. From 2048 x 2048 on it is pipelined.
    """
    rows, cols, depth = product_sizes(a, b)
    check_array("out", out, shape=(rows, cols))
    split = parts_of(rows, cols, depth)
    if split[0] == 1:
        matmul_pipelined(a, b, out, stream=stream)
    else:
        launch_pipelined(split, a, b, None, None, out, stream=stream)
