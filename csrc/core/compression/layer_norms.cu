// The L2 norms of many tensors on the device: the twin of layer_norms.cpp.
#include "cuda_bucket.cuh"

namespace hpcai500 {
namespace {

template <int capacity>
__global__ void __launch_bounds__(threads_of_block)
    sum_tiles(const __grid_constant__ TensorTable<capacity> table, NormSums sums) {
    const int tile = static_cast<int>(blockIdx.x);
    const int tensor = found(table.tile, table.tensors, tile);
    const float* const values = table.data[tensor];
    const std::int64_t count = table.at[tensor + 1] - table.at[tensor];
    const std::int64_t first = (tile - table.tile[tensor]) * tile_values + threadIdx.x;
    double own = 0;
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) {
        const std::int64_t at = first + i * threads_of_block;
        if (at < count) own += square(values[at]);
    }
    finish_norms(table, sums, own);
}

}  // namespace

void layer_norms_cuda(SourceTensors tensors, double* norms, const CudaPlace& place) {
    const CurrentDevice current(place.device);
    with_table(tensors, [&](const auto& table) {
        const NormSums sums = norm_sums(norms, tensors.size(), place);
        const int tiles = table.tile[table.tensors];
        if (tiles == 0) return;
        sum_tiles<<<static_cast<unsigned>(tiles), threads_of_block, 0,
                    static_cast<cudaStream_t>(place.stream)>>>(table, sums);
        check_cuda(cudaGetLastError(), "layer_norms: starting sum_tiles");
    });
}

}  // namespace hpcai500
