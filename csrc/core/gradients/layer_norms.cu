// The L2 norms of many tensors on the device: the twin of layer_norms.cpp.
#include <algorithm>
#include <cstddef>

#include "cuda_bucket.cuh"
#include "cuda_fours.cuh"
#include "cuda_norms.cuh"

namespace hpcai500 {
namespace {

template <int capacity>
__global__ void __launch_bounds__(threads_of_block)
    sum_tiles(const __grid_constant__ TensorTable<capacity> table, NormSums sums) {
    const Tile tile = own_tile(table);
    float values[values_of_thread];
    load_values(values, tile);
    add_to_norm(sums, tile, sum_of_squares(values));
}

}  // namespace

void layer_norms_cuda(SourceTensors tensors, double* norms, const CudaPlace& place) {
    const CurrentDevice current(place.device);
    // Kernels of one stream run one after another, so that they share the workspace.
    const std::size_t most = most_tensors();
    for (std::size_t first = 0; first < tensors.size(); first += most) {
        const SourceTensors some = tensors.subspan(first, std::min(most, tensors.size() - first));
        with_table(some, [&]<int capacity>(const TensorTable<capacity>& table) {
            const NormSums sums = norm_sums(norms + first, some, place);
            const auto tiles = static_cast<unsigned>(table.tile[table.tensors]);
            if (tiles == 0) return;
            start({"layer_norms: starting sum_tiles", tiles, threads_of_block, place.stream},
                  sum_tiles<capacity>, table, sums);
        });
    }
}

}  // namespace hpcai500
