"""Four kernels that are mostly index arithmetic, for tests of the rule of 32 bits."""

from numba import float32, uint32

from labkit import cuda, u32


@cuda.jit
def row_maximum(x, out):
    row, lane = u32.blockIdx.x * 8 + u32.threadIdx.x // 32, u32.threadIdx.x % 32
    if row < x.shape[0]:
        m, cols, col = float32(-3e38), uint32(x.shape[1]), lane
        while col < cols:
            m = max(m, x[row, col])
            col += 32
        out[row, lane] = m


@cuda.jit
def row_maximum_range(x, out):
    row, lane = u32.blockIdx.x * 8 + u32.threadIdx.x // 32, u32.threadIdx.x % 32
    if row < x.shape[0]:
        m = float32(-3e38)
        for col in u32.range(lane, x.shape[1], 32):
            m = max(m, x[row, col])
        out[row, lane] = m


@cuda.jit
def tiled_product(a, b, out):
    a_tile, b_tile = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
    x, y = u32.threadIdx.x, u32.threadIdx.y
    col, row = u32.blockIdx.x * 16 + x, u32.blockIdx.y * 16 + y
    total, start, depth = float32(0.0), uint32(0), uint32(a.shape[1])
    while start < depth:
        a_tile[y, x], b_tile[y, x] = a[row, start + x], b[start + y, col]
        cuda.syncthreads()
        for k in range(16):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
        start += 16
    out[row, col] = total


@cuda.jit
def block_indices(a, b, out):
    t, tile = u32.threadIdx.x, cuda.shared.array(4096, float32)
    a_row, a_col, b_row, b_col = t // 2, t % 2 * 4, t // 32, t % 32 * 4
    b_to = 8 * 132 + b_row * 128 + b_col
    for i in range(4):
        tile[(a_col + i) * 132 + a_row] = a[u32.blockIdx.y * 128 + a_row, a_col + i]
    for i in range(4):
        tile[b_to + i] = b[b_row, u32.blockIdx.x * 128 + b_col + i]
    cuda.syncthreads()
    total, ty, tx = float32(0.0), t // 16 * 8, t % 16 * 8
    for k in range(8):
        for i in range(8):
            total += tile[k * 132 + ty + i] * tile[8 * 132 + k * 128 + tx + i]
    out[u32.blockIdx.y * 128 + ty, u32.blockIdx.x * 128 + tx] = total
