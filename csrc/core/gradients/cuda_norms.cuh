// Norms beside a kernel's work: squares of a thread, their sum over a block of threads, and over the blocks
// of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda_bucket.cuh"

namespace hpcai500 {

/// Where sums of squares go; norms is nullptr where none are wanted.
struct NormSums {
    double* norms;
    double* partial;         ///< one for each piece of a tensor
    unsigned int* finished;  ///< of each tensor, pieces whose sum is written
};

/// Bytes for NormSums: `finished`, then `partial`. A tensor has a piece for each tile (its own begin may cost
/// it three values more), or for each chunk of the buffer that it touches.
inline std::size_t norm_workspace(std::int64_t tensors, std::int64_t elements) {
    const std::int64_t pieces = 1 + tensors + (elements + 3 * tensors) / tile_values;
    return static_cast<std::size_t>((tensors + 1) / 2 + pieces) * sizeof(double);
}

/// Makes the workspace ready for one kernel, on its stream.
template <class Tensors>
NormSums norm_sums(double* norms, Tensors tensors, const CudaPlace& place) {
    if (norms == nullptr) return {nullptr, nullptr, nullptr};
    const auto stream = static_cast<cudaStream_t>(place.stream);
    bool empty = false;
    for (const auto& tensor : tensors) empty |= tensor.size() == 0;
    // No block of threads comes by a tensor without values.
    if (empty)
        check_cuda(cudaMemsetAsync(norms, 0, tensors.size() * sizeof(double), stream), "norms: clearing");
    auto* const finished = static_cast<unsigned int*>(place.workspace);
    check_cuda(cudaMemsetAsync(finished, 0, tensors.size() * sizeof(unsigned int), stream),
               "norms: clearing the workspace");
    return {norms, static_cast<double*>(place.workspace) + (tensors.size() + 1) / 2, finished};
}

__device__ inline double square(float value) {
    return static_cast<double>(value) * static_cast<double>(value);
}

/// Within 2^-39.8 of the sum of squares, with five operations of float32 for each value: many devices have
/// a 64th as many units for double as memory would feed.
///
/// `sum` begins with the largest square, so that each addition at most doubles it: what an addition added is
/// then exact (Sterbenz), and so is what it left out, but for its own rounding, 2^-48 of the sum. `rest` has
/// the parts left out, k * 2^-24 of the sum after k values, and its 16 additions err by 136 * 2^-48. All is
/// relative to at most twice the true sum. Numbers whose squares float32 does not hold go the long way.
template <int count>
__device__ inline double sum_of_squares(const float (&values)[count]) {
    static_assert(count <= 16, "the error grows with the square of it");
    float largest = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) largest = fmaxf(largest, fabsf(values[i]));
    if (largest > 0x1p60f || (largest < 0x1p-50f && largest > 0)) {
        double sum = 0;
#pragma unroll
        for (int i = 0; i < count; ++i) sum += square(values[i]);
        return sum;
    }
    const float first = largest * largest;
    float sum = first, rest = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float next = fmaf(values[i], values[i], sum);
        rest += fmaf(values[i], values[i], -(next - sum));
        sum = next;
    }
    // Without the first, of which nothing is lost either.
    const float kept = sum - first;
    rest += sum - kept - first;
    return static_cast<double>(kept) + static_cast<double>(rest);
}

/// To be called by all lanes; the lowest one has the sum.
__device__ inline double sum_of_warp(double value) {
#pragma unroll
    for (int distance = warp_lanes / 2; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xffffffffu, value, static_cast<unsigned>(distance));
    return value;
}

/// To be called by all threads of a block; thread 0 has the sum.
__device__ inline double sum_of_block(double own) {
    __shared__ double of_thread[threads_of_block];
    const int thread = static_cast<int>(threadIdx.x);
    of_thread[thread] = own;
    __syncthreads();
    double sum = 0;
    if (thread < warp_lanes) {
#pragma unroll
        for (int i = 0; i < warps_of_block; ++i) sum += of_thread[thread + i * warp_lanes];
        sum = sum_of_warp(sum);
    }
    // For whoever comes next.
    __syncthreads();
    return sum;
}

/// To be called by all threads of a block, of which thread 0 has the sum of squares of piece `piece` of
/// `pieces` of a tensor, whose sums begin at partial[first]. The block that comes last adds them, in the same
/// order whichever block it is: no tensor waits for another one, nor for the kernel's end.
__device__ inline void add_to_norm(const NormSums& sums, int tensor, std::int64_t first, std::int64_t pieces,
                                   std::int64_t piece, double sum) {
    __shared__ bool last;
    const int thread = static_cast<int>(threadIdx.x);
    if (pieces == 1) {
        if (thread == 0) sums.norms[tensor] = sqrt(sum);
        return;
    }
    if (thread == 0) {
        sums.partial[first + piece] = sum;
        __threadfence();
        last = atomicAdd(sums.finished + tensor, 1u) == pieces - 1;
    }
    __syncthreads();
    const bool finish = last;
    // `last` may be another tensor's next.
    __syncthreads();
    if (!finish) return;
    __threadfence();
    double total = 0;
    for (std::int64_t i = thread; i < pieces; i += threads_of_block)
        total += __ldcg(sums.partial + first + i);
    total = sum_of_block(total);
    if (thread == 0) sums.norms[tensor] = sqrt(total);
}

/// The same for a tile and the sum of squares of each thread.
__device__ inline void add_to_norm(const NormSums& sums, const Tile& tile, double own) {
    const double sum = sum_of_block(own);
    add_to_norm(sums, tile.tensor, tile.first_tile, tile.tiles,
                static_cast<int>(blockIdx.x) - tile.first_tile, sum);
}

}  // namespace hpcai500
