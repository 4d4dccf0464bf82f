// pack and unpack on the device: the twins of cast.cpp.
#include <cuda_fp16.h>

#include "cuda_bucket.cuh"

namespace hpcai500 {
namespace {

struct Float32 {
    using Item = float;
    static __device__ float widen(Item item) { return item; }
    static __device__ Item narrow(float value) { return value; }
};
struct Float16 {
    using Item = __half;
    static __device__ float widen(Item item) { return __half2float(item); }
    static __device__ Item narrow(float value) { return __float2half_rn(value); }
};
// As on the processor: rounded by the addition, which would carry some NaN into infinity.
struct BFloat16 {
    using Item = std::uint16_t;
    static __device__ float widen(Item item) { return __uint_as_float(static_cast<unsigned>(item) << 16); }
    static __device__ Item narrow(float value) {
        const unsigned bits = __float_as_uint(value);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        return static_cast<Item>((nan ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

// One tile of one tensor for each block of threads.
template <class Wire, bool packing, int capacity>
__global__ void __launch_bounds__(threads_of_block)
    cast_tiles(const __grid_constant__ TensorTable<capacity> table, typename Wire::Item* wire, float scale,
               NormSums sums) {
    const int tile = static_cast<int>(blockIdx.x);
    const int tensor = found(table.tile, table.tensors, tile);
    float* const values = table.data[tensor];
    typename Wire::Item* const items = wire + table.at[tensor];
    const std::int64_t count = table.at[tensor + 1] - table.at[tensor];
    const std::int64_t first = (tile - table.tile[tensor]) * tile_values + threadIdx.x;
    double own = 0;
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) {
        const std::int64_t at = first + i * threads_of_block;
        if (at >= count) break;
        if constexpr (packing) {
            const float value = values[at];
            items[at] = Wire::narrow(value * scale);
            own += square(value);
        } else {
            const float value = Wire::widen(items[at]) * scale;
            values[at] = value;
            own += square(value);
        }
    }
    if (sums.norms != nullptr) finish_norms(table, sums, own);
}

template <class Wire, bool packing, class Tensors>
void cast(Tensors tensors, void* wire, float scale, double* norms, const CudaPlace& place) {
    const CurrentDevice current(place.device);
    with_table(tensors, [&](const auto& table) {
        const NormSums sums = norm_sums(norms, tensors.size(), place);
        const int tiles = table.tile[table.tensors];
        if (tiles == 0) return;
        cast_tiles<Wire, packing>
            <<<static_cast<unsigned>(tiles), threads_of_block, 0, static_cast<cudaStream_t>(place.stream)>>>(
                table, static_cast<typename Wire::Item*>(wire), scale, sums);
        check_cuda(cudaGetLastError(), packing ? "pack: starting cast_tiles" : "unpack: starting cast_tiles");
    });
}

template <bool packing, class Tensors>
void cast_as(Wire type, Tensors tensors, void* wire, float scale, double* norms, const CudaPlace& place) {
    if (type == Wire::float32) return cast<Float32, packing>(tensors, wire, scale, norms, place);
    if (type == Wire::float16) return cast<Float16, packing>(tensors, wire, scale, norms, place);
    cast<BFloat16, packing>(tensors, wire, scale, norms, place);
}

}  // namespace

std::size_t compression_cuda_workspace(std::int64_t tensors, std::int64_t elements) {
    if (tensors < 0 || elements < 0 || tensors > std::int64_t{1} << 32 || elements > std::int64_t{1} << 48)
        throw std::invalid_argument("tensors must be in [0, 2**32] and elements in [0, 2**48]");
    return static_cast<std::size_t>(1 + tensors + elements / tile_values) * sizeof(double);
}

std::int64_t compression_cuda_most_tensors() {
    return large_table;
}

void pack_cuda(SourceTensors sources, void* out, Wire wire, float scale, double* norms,
               const CudaPlace& place) {
    cast_as<true>(wire, sources, out, scale, norms, place);
}

void unpack_cuda(const void* source, TargetTensors targets, Wire wire, float scale, double* norms,
                 const CudaPlace& place) {
    cast_as<false>(wire, targets, const_cast<void*>(source), scale, norms, place);
}

}  // namespace hpcai500
