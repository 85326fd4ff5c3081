// CUB's DeviceHistogram::HistogramEven, a bin for each of the values 0 to bins - 1; values outside are left out.
#include <cub/device/device_histogram.cuh>

template <typename Value>
static int even(void* scratch, size_t* bytes, const Value* x, int* out, int bins, int count, cudaStream_t stream) {
    return cub::DeviceHistogram::HistogramEven(scratch, *bytes, x, out, bins + 1, 0, bins, count, stream);
}

// Without scratch memory each says in `bytes` how much it needs, and does nothing else.
extern "C" int histogram_uint8(void* scratch, size_t* bytes, const unsigned char* x, int* out, int bins, int count,
                               cudaStream_t stream) {
    return even(scratch, bytes, x, out, bins, count, stream);
}

extern "C" int histogram_int32(void* scratch, size_t* bytes, const int* x, int* out, int bins, int count,
                               cudaStream_t stream) {
    return even(scratch, bytes, x, out, bins, count, stream);
}
