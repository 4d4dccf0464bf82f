// What the kernels of a bucket share: the table of its tensors, which is an argument of each kernel, and how
// a tensor is cut into tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "compression_cuda.h"
#include "core/cuda_launch.cuh"

namespace hpcai500 {

inline constexpr int warp_lanes = 32;
inline constexpr int threads_of_block = 256;
inline constexpr int warps_of_block = threads_of_block / warp_lanes;
/// A thread has 64 bytes of float32 on their way at once. With 1024 threads of a multiprocessor that is 64
/// KiB; the fastest memory (8 TB/s among 148 multiprocessors, answering within 0.8 us) is busy with 43.
inline constexpr int values_of_thread = 16;
/// Values of one tensor that a block of threads takes; tensors begin with a tile of their own.
inline constexpr int tile_values = threads_of_block * values_of_thread;

/// Kernels have 4 KiB of arguments; from CUDA 12.1 on nearly 32.
inline constexpr int small_table = 192;
#if CUDART_VERSION >= 12010
inline constexpr int large_table = 1600;
#else
inline constexpr int large_table = small_table;
#endif

/// Tensors of the largest table that the driver takes as an argument: drivers older than CUDA 12.1 also have
/// 4 KiB.
inline std::size_t most_tensors() {
    int driver = 0;
    check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
    return driver >= 12010 ? large_table : small_table;
}

template <int capacity>
struct TensorTable {
    float* data[capacity];
    std::int64_t at[capacity + 1];  ///< where each tensor lies in the buffer, and the bucket's end
    int tile[capacity + 1];         ///< each tensor's first tile, and the end
    int tensors;
};

/// How far behind a multiple of 16 a tensor begins. Its tiles are counted from there, so that each begins
/// where 16 bytes are read at once.
__host__ __device__ inline std::uintptr_t bytes_past_vector(const float* tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor) % 16;
}

template <int capacity, class Tensors>
TensorTable<capacity> table_of(Tensors tensors) {
    TensorTable<capacity> table;
    std::int64_t at = 0, tile = 0;
    table.tensors = static_cast<int>(tensors.size());
    for (int i = 0; i < table.tensors; ++i) {
        const auto& tensor = tensors[static_cast<std::size_t>(i)];
        const auto count = static_cast<std::int64_t>(tensor.size());
        table.data[i] = const_cast<float*>(tensor.data());
        table.at[i] = at;
        table.tile[i] = static_cast<int>(tile);
        at += count;
        const auto past = static_cast<std::int64_t>(bytes_past_vector(tensor.data()) / sizeof(float));
        if (count > 0) tile += (past + count + tile_values - 1) / tile_values;
        if (tile > 0x7fffffff)
            throw std::invalid_argument("a bucket on a CUDA device has at most 2**43 values");
    }
    table.at[table.tensors] = at;
    table.tile[table.tensors] = static_cast<int>(tile);
    return table;
}

/// Calls launch(table) with the smallest table that has room.
template <class Tensors, class Launch>
void with_table(Tensors tensors, const Launch& launch) {
    if (tensors.size() <= small_table) return launch(table_of<small_table>(tensors));
    const std::size_t most = most_tensors();
    if (tensors.size() <= most) return launch(table_of<large_table>(tensors));
    throw std::invalid_argument("a bucket on a CUDA device has at most " + std::to_string(most) +
                                " tensors with this build and driver, got " + std::to_string(tensors.size()));
}

/// The last i with begin[i] <= place: empty tensors begin where the next one does.
template <class Number>
__device__ inline int found(const Number* begin, int count, Number place) {
    int low = 0, high = count;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (begin[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/// What a block of threads has of a tensor: tile_values from a multiple of 16 bytes on, of which the first
/// and the last few may not be the tensor's.
struct Tile {
    int tensor, first_tile, tiles;  ///< the tensor's
    float* values;
    std::int64_t at;  ///< where values[0] lies, or would lie, in the buffer
    int begin, end;   ///< those from values[begin] to values[end] exist

    __device__ bool whole() const { return begin == 0 && end == tile_values; }
};

/// The tile of this block of threads.
template <int capacity>
__device__ inline Tile own_tile(const TensorTable<capacity>& table) {
    const int index = static_cast<int>(blockIdx.x);
    const int tensor = found(table.tile, table.tensors, index), first_tile = table.tile[tensor];
    float* const data = table.data[tensor];
    const std::int64_t at = table.at[tensor], count = table.at[tensor + 1] - at;
    const auto past = static_cast<int>(bytes_past_vector(data) / sizeof(float));
    const std::int64_t first = static_cast<std::int64_t>(index - first_tile) * tile_values;
    const std::int64_t left = past + count - first;
    // In bytes: of a pointer that it knows as some floats past another one, nvcc reads and writes no vectors.
    auto* const vector = reinterpret_cast<float*>(reinterpret_cast<char*>(data) - bytes_past_vector(data));
    return {tensor,
            first_tile,
            table.tile[tensor + 1] - first_tile,
            vector + first,
            at + first - past,
            first == 0 ? past : 0,
            left < tile_values ? static_cast<int>(left) : tile_values};
}

}  // namespace hpcai500
