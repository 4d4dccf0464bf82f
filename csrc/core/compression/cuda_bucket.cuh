// What the kernels of a bucket share: the table of its tensors, which is an argument of each kernel, and the
// sum of squares over all blocks of threads.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "compression_cuda.h"
#include "core/cuda_call.h"

namespace hpcai500 {

inline constexpr int threads_of_block = 256;
inline constexpr int values_of_thread = 16;
/// Values of one tensor that a block of threads takes; tensors begin with a tile of their own.
inline constexpr std::int64_t tile_values = threads_of_block * values_of_thread;

/// Kernels have 4 KiB of arguments; from CUDA 12.1 on nearly 32.
inline constexpr int small_table = 192;
#if CUDART_VERSION >= 12010
inline constexpr int large_table = 1600;
#else
inline constexpr int large_table = small_table;
#endif

template <int capacity>
struct TensorTable {
    float* data[capacity];
    std::int64_t at[capacity + 1];  ///< where each tensor lies in the buffer, and the bucket's end
    int tile[capacity + 1];         ///< each tensor's first tile, and the end
    int tensors;
};

/// Where sums of squares go; norms is nullptr where none are wanted.
struct NormSums {
    double* norms;
    double* partial;         ///< one for each tile
    unsigned int* finished;  ///< blocks of threads that have written theirs: 0 before and after
};

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
        tile += (count + tile_values - 1) / tile_values;
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
    if (tensors.size() <= large_table) return launch(table_of<large_table>(tensors));
    throw std::invalid_argument("a bucket on a CUDA device has at most " + std::to_string(large_table) +
                                " tensors in this build, got " + std::to_string(tensors.size()));
}

/// Makes the workspace ready for one kernel.
inline NormSums norm_sums(double* norms, std::size_t tensors, const CudaPlace& place) {
    if (norms == nullptr) return {nullptr, nullptr, nullptr};
    const auto stream = static_cast<cudaStream_t>(place.stream);
    // Norms of empty tensors, too, where no kernel is started.
    check_cuda(cudaMemsetAsync(norms, 0, tensors * sizeof(double), stream), "norms: clearing");
    check_cuda(cudaMemsetAsync(place.workspace, 0, sizeof(double), stream), "norms: clearing the workspace");
    auto* const memory = static_cast<double*>(place.workspace);
    return {norms, memory + 1, static_cast<unsigned int*>(place.workspace)};
}

#ifdef __CUDACC__

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

__device__ inline double sum_of_warp(double value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xffffffffu, value, distance);
    return value;
}

/// To be called by all threads of the block of each tile, with their own sums. The block that comes last adds
/// the tiles of each tensor, in the same order whichever block it is.
template <int capacity>
__device__ void finish_norms(const TensorTable<capacity>& table, const NormSums& sums, double own) {
    constexpr int warps = threads_of_block / 32;
    __shared__ double of_warp[warps];
    __shared__ bool last;
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    own = sum_of_warp(own);
    if (lane == 0) of_warp[warp] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < warps; ++i) sum += of_warp[i];
        sums.partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(sums.finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int tensor = warp; tensor < table.tensors; tensor += warps) {
        double sum = 0;
        for (int tile = table.tile[tensor] + lane; tile < table.tile[tensor + 1]; tile += 32)
            sum += __ldcg(sums.partial + tile);
        sum = sum_of_warp(sum);
        if (lane == 0) sums.norms[tensor] = sqrt(sum);
    }
    if (threadIdx.x == 0) *sums.finished = 0;
}

__device__ inline double square(float value) {
    return static_cast<double>(value) * static_cast<double>(value);
}

#endif

}  // namespace hpcai500
