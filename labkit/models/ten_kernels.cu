// A block of GPT-2 in plain CUDA C++, ten launches: what the block in Python is timed beside (labkit.models.gpt2_block_op).
// Nothing here is tuned: 16 x 16 tiles, attention in three passes, one float a thread. All sums are float32.
//
//     block(x, out, weights, S, buffers, stream)    buffers: eight device arrays, of S times the numbers in `widths`
//     solve(x, out, weights, S, stream)             allocates and frees the eight in each call
//
// x, out (S, 768); weights: the flat buffer of 7,087,872 floats. S * 4 bytes of dynamic shared memory must fit 48 KB.
#include <cuda_runtime.h>
#include <math.h>

namespace {

constexpr int C = 768, HEADS = 12, HEAD = 64, INNER = 3072, THREADS = 256, TILE = 16;
constexpr int widths[8] = {C, 3 * C, C, C, C, C, INNER, C};

// Where each parameter begins in the flat buffer.
constexpr int LN_1 = 0, LN_1_BIAS = LN_1 + C;
constexpr int QKV = LN_1_BIAS + C, QKV_BIAS = QKV + C * 3 * C;
constexpr int PROJ = QKV_BIAS + 3 * C, PROJ_BIAS = PROJ + C * C;
constexpr int LN_2 = PROJ_BIAS + C, LN_2_BIAS = LN_2 + C;
constexpr int FC = LN_2_BIAS + C, FC_BIAS = FC + C * INNER;
constexpr int DOWN = FC_BIAS + INNER, DOWN_BIAS = DOWN + INNER * C;
static_assert(DOWN_BIAS + C == 7087872, "the flat buffer");

template <bool Max>
__device__ float reduce(float mine) {
  __shared__ float all[THREADS];
  const int t = threadIdx.x;
  __syncthreads();  // what was reduced before has been read
  all[t] = mine;
  __syncthreads();
  for (int half = THREADS / 2; half; half /= 2) {
    if (t < half) all[t] = Max ? fmaxf(all[t], all[t + half]) : all[t] + all[t + half];
    __syncthreads();
  }
  return all[0];
}

__global__ void norm(const float* x, const float* weight, const float* bias, float* out) {
  const float* row = x + size_t(blockIdx.x) * C;
  float* to = out + size_t(blockIdx.x) * C;
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < C; i += THREADS) sum += row[i];
  const float mean = reduce<false>(sum) / C;
  for (int i = threadIdx.x; i < C; i += THREADS) squares += (row[i] - mean) * (row[i] - mean);
  const float scale = rsqrtf(reduce<false>(squares) / C + 1e-5f);
  for (int i = threadIdx.x; i < C; i += THREADS) to[i] = (row[i] - mean) * scale * weight[i] + bias[i];
}

__global__ void product(const float* a, const float* b, const float* bias, float* out, int M, int K, int N) {
  __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
  const int x = threadIdx.x, y = threadIdx.y, col = blockIdx.x * TILE + x, row = blockIdx.y * TILE + y;
  float total = 0;
  for (int k = 0; k < K; k += TILE) {
    a_tile[y][x] = row < M && k + x < K ? a[size_t(row) * K + k + x] : 0.f;
    b_tile[y][x] = col < N && k + y < K ? b[size_t(k + y) * N + col] : 0.f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; ++i) total += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  if (row < M && col < N) out[size_t(row) * N + col] = total + bias[col];
}

__global__ void attend(const float* qkv, float* out, int S) {  // a block for each token and head
  extern __shared__ float score[];
  const int t = blockIdx.x, h = blockIdx.y;
  const float* q = qkv + size_t(t) * 3 * C + h * HEAD;
  float top = -INFINITY, sum = 0;
  for (int s = threadIdx.x; s < S; s += THREADS) {
    const float* k = qkv + size_t(s) * 3 * C + C + h * HEAD;
    float dot = 0;
    for (int i = 0; i < HEAD; ++i) dot += q[i] * k[i];
    score[s] = dot * 0.125f;
    top = fmaxf(top, score[s]);
  }
  top = reduce<true>(top);
  for (int s = threadIdx.x; s < S; s += THREADS) sum += score[s] = expf(score[s] - top);
  const float share = 1.f / reduce<false>(sum);
  if (threadIdx.x < HEAD) {
    float mixed = 0;
    for (int s = 0; s < S; ++s) mixed += score[s] * share * qkv[size_t(s) * 3 * C + 2 * C + h * HEAD + threadIdx.x];
    out[size_t(t) * C + h * HEAD + threadIdx.x] = mixed;
  }
}

__global__ void gelu(float* x, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) {
    const float v = x[i];
    x[i] = 0.5f * v * (1.f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
  }
}

__global__ void add(const float* a, const float* b, float* out, int n) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}

void multiply(const float* a, const float* b, const float* bias, float* out, int M, int K, int N, cudaStream_t s) {
  const dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
  product<<<grid, dim3(TILE, TILE), 0, s>>>(a, b, bias, out, M, K, N);
}

int blocks(int n) { return (n + THREADS - 1) / THREADS; }

}  // namespace

extern "C" void block(const float* x, float* out, const float* w, int S, float** m, cudaStream_t s) {
  const int n = S * C;
  norm<<<S, THREADS, 0, s>>>(x, w + LN_1, w + LN_1_BIAS, m[0]);
  multiply(m[0], w + QKV, w + QKV_BIAS, m[1], S, C, 3 * C, s);
  attend<<<dim3(S, HEADS), THREADS, S * sizeof(float), s>>>(m[1], m[2], S);
  multiply(m[2], w + PROJ, w + PROJ_BIAS, m[3], S, C, C, s);
  add<<<blocks(n), THREADS, 0, s>>>(x, m[3], m[4], n);
  norm<<<S, THREADS, 0, s>>>(m[4], w + LN_2, w + LN_2_BIAS, m[5]);
  multiply(m[5], w + FC, w + FC_BIAS, m[6], S, C, INNER, s);
  gelu<<<blocks(S * INNER), THREADS, 0, s>>>(m[6], S * INNER);
  multiply(m[6], w + DOWN, w + DOWN_BIAS, m[7], S, INNER, C, s);
  add<<<blocks(n), THREADS, 0, s>>>(m[4], m[7], out, n);
}

extern "C" int solve(const float* x, float* out, const float* w, int S, cudaStream_t s) {
  cudaStreamCaptureStatus capture;  // a graph would hold addresses that are free when it is replayed
  cudaError_t error = cudaStreamIsCapturing(s, &capture);
  if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone) error = cudaErrorStreamCaptureUnsupported;
  float* m[8] = {};
  for (int i = 0; i < 8 && error == cudaSuccess; ++i) error = cudaMalloc(&m[i], size_t(S) * widths[i] * sizeof(float));
  if (error == cudaSuccess) block(x, out, w, S, m, s);
  for (int i = 0; i < 8; ++i) cudaFree(m[i]);
  return error;
}
