// quantise and dequantise on the device: the twins of quantise.cpp. A block of threads has a chunk, a warp
// two of its blocks of 256 values, a lane eight values of each.
#include <vector>

#include "cuda_bucket.cuh"
#include "quantise.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

constexpr int lane_values = static_cast<int>(quantised_block) / 32;
constexpr int warps = threads_of_block / 32;

__device__ std::uint8_t* chunk_of(std::uint8_t* buffer) {
    return buffer + blockIdx.x * quantised_chunk_bytes;
}

// Goes through a bucket's values in rising order.
template <int capacity>
class Cursor {
  public:
    __device__ Cursor(const TensorTable<capacity>& table, std::int64_t place)
        : table_(table), tensor_(found(table.at, table.tensors, place)) {}
    /// The value at `place`, which is not behind the bucket's end.
    __device__ float& value(std::int64_t place) {
        while (place >= table_.at[tensor_ + 1]) ++tensor_;
        return table_.data[tensor_][place - table_.at[tensor_]];
    }

  private:
    const TensorTable<capacity>& table_;
    int tensor_;
};

__device__ unsigned largest_of_warp(unsigned bits) {
    for (int distance = 16; distance > 0; distance /= 2)
        bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
    return bits;
}

// The lane's part of a block whose largest magnitude is `peak`, as in quantise_kernel.inl; returns the scale.
__device__ float quantise_part(float* values, unsigned peak, std::uint8_t* codes) {
    constexpr unsigned largest_float = 0x7f7fffffu, smallest_peak = 0x04000000u, quiet_nan = 0x7fc00000u;
    const bool finite = peak < largest_float, codable = finite && peak >= smallest_peak;
    const float largest = __uint_as_float(peak);
    const float scale = codable ? __fdiv_rn(largest, 127.0f) : 0.0f;
    const float inverse = codable ? __fdiv_rn(127.0f, largest) : 0.0f;
#pragma unroll
    for (int i = 0; i < lane_values; ++i) {
        const int code = codable ? __float2int_rn(values[i] * inverse) : 0;
        codes[32 * i] = static_cast<std::uint8_t>(code);
        if (codable) values[i] = values[i] - static_cast<float>(code) * scale;
        if (!finite) values[i] = 0.0f;
    }
    return finite ? scale : __uint_as_float(quiet_nan);
}

template <int capacity>
__global__ void __launch_bounds__(threads_of_block)
    quantise_chunks(const __grid_constant__ TensorTable<capacity> table, std::uint8_t* buffer,
                    float* residual, float scale) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t end = table.at[table.tensors];
    for (std::int64_t block = threadIdx.x / 32; block < quantised_chunk_blocks; block += warps) {
        const std::int64_t first = blockIdx.x * quantised_chunk + block * quantised_block + lane;
        Cursor<capacity> cursor(table, first);
        float values[lane_values];
        unsigned peak = 0;
#pragma unroll
        for (int i = 0; i < lane_values; ++i) {
            const std::int64_t place = first + 32 * i;
            values[i] = 0.0f;
            if (place >= end) continue;
            values[i] = cursor.value(place) * scale;
            if (residual != nullptr) values[i] = values[i] + residual[place];
            peak = max(peak, __float_as_uint(values[i]) & 0x7fffffffu);
        }
        std::uint8_t* const codes =
            chunk_of(buffer) + quantised_chunk_blocks * 4 + block * quantised_block + lane;
        const float block_scale = quantise_part(values, largest_of_warp(peak), codes);
        if (lane == 0) reinterpret_cast<float*>(chunk_of(buffer))[block] = block_scale;
        if (residual == nullptr) continue;
#pragma unroll
        for (int i = 0; i < lane_values; ++i)
            if (first + 32 * i < end) residual[first + 32 * i] = values[i];
    }
}

template <int capacity, bool accumulate>
__global__ void __launch_bounds__(threads_of_block)
    dequantise_chunks(const __grid_constant__ TensorTable<capacity> table, std::uint8_t* buffer,
                      float scale) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t end = table.at[table.tensors];
    for (std::int64_t block = threadIdx.x / 32; block < quantised_chunk_blocks; block += warps) {
        const std::int64_t first = blockIdx.x * quantised_chunk + block * quantised_block + lane;
        if (first >= end) return;
        Cursor<capacity> cursor(table, first);
        const float block_scale = reinterpret_cast<const float*>(chunk_of(buffer))[block];
        const std::uint8_t* const codes =
            chunk_of(buffer) + quantised_chunk_blocks * 4 + block * quantised_block + lane;
#pragma unroll
        for (int i = 0; i < lane_values; ++i) {
            const std::int64_t place = first + 32 * i;
            if (place >= end) break;
            const float value =
                static_cast<float>(static_cast<std::int8_t>(codes[32 * i])) * block_scale * scale;
            float& target = cursor.value(place);
            target = accumulate ? target + value : value;
        }
    }
}

template <int capacity>
unsigned chunks_of(const TensorTable<capacity>& table) {
    const std::int64_t chunks = (table.at[table.tensors] + quantised_chunk - 1) / quantised_chunk;
    return static_cast<unsigned>(chunks);
}

template <bool accumulate>
void dequantise_to(const std::uint8_t* buffer, TargetTensors targets, float scale, const CudaPlace& place) {
    with_table(targets, [&]<int capacity>(const TensorTable<capacity>& table) {
        if (chunks_of(table) == 0) return;
        dequantise_chunks<capacity, accumulate>
            <<<chunks_of(table), threads_of_block, 0, static_cast<cudaStream_t>(place.stream)>>>(
                table, const_cast<std::uint8_t*>(buffer), scale);
        check_cuda(cudaGetLastError(), "dequantise: starting dequantise_chunks");
    });
}

}  // namespace

void quantise_cuda(SourceTensors sources, std::uint8_t* buffer, float* residual, float scale, double* norms,
                   const CudaPlace& place) {
    const CurrentDevice current(place.device);
    if (norms != nullptr) layer_norms_cuda(sources, norms, place);
    with_table(sources, [&](const auto& table) {
        if (chunks_of(table) == 0) return;
        quantise_chunks<<<chunks_of(table), threads_of_block, 0, static_cast<cudaStream_t>(place.stream)>>>(
            table, buffer, residual, scale);
        check_cuda(cudaGetLastError(), "quantise: starting quantise_chunks");
    });
}

void dequantise_cuda(const std::uint8_t* buffer, TargetTensors targets, float scale, bool accumulate,
                     double* norms, const CudaPlace& place) {
    const CurrentDevice current(place.device);
    if (accumulate)
        dequantise_to<true>(buffer, targets, scale, place);
    else
        dequantise_to<false>(buffer, targets, scale, place);
    if (norms == nullptr) return;
    const std::vector<std::span<const float>> written(targets.begin(), targets.end());
    layer_norms_cuda(written, norms, place);
}

}  // namespace hpcai500
