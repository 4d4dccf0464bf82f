// pack and unpack on the device: the twins of cast.cpp. A block of threads has one tile of one tensor.
#include "core/cuda_items.cuh"
#include "cuda_bucket.cuh"
#include "cuda_fours.cuh"
#include "cuda_norms.cuh"

namespace hpcai500 {
namespace {

using cuda_items::BFloat16;
using cuda_items::Float16;
using cuda_items::Float32;

template <class Wire, int capacity>
__global__ void __launch_bounds__(threads_of_block)
    pack_tiles(const __grid_constant__ TensorTable<capacity> table, typename Wire::Item* buffer, float scale,
               NormSums sums) {
    const Tile tile = own_tile(table);
    float values[values_of_thread];
    load_values(values, tile);
    // Before the values are written, which they need no registers after.
    const double squares = sums.norms != nullptr ? sum_of_squares(values) : 0;
    Four<typename Wire::Item> items[fours_of_thread];
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) items[i / 4].item[i % 4] = Wire::narrow(values[i] * scale);
    store_fours(items, buffer + tile.at, tile);
    if (sums.norms != nullptr) add_to_norm(sums, tile, squares);
}

template <class Wire, int capacity>
__global__ void __launch_bounds__(threads_of_block)
    unpack_tiles(const __grid_constant__ TensorTable<capacity> table, const typename Wire::Item* buffer,
                 float scale, NormSums sums) {
    const Tile tile = own_tile(table);
    Four<typename Wire::Item> items[fours_of_thread];
    load_fours(items, buffer + tile.at, tile);
    float values[values_of_thread];
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) values[i] = Wire::widen(items[i / 4].item[i % 4]) * scale;
    store_values(values, tile);
    if (sums.norms != nullptr) add_to_norm(sums, tile, sum_of_squares(values));
}

template <class Wire>
void pack_as(SourceTensors sources, void* out, float scale, double* norms, const CudaPlace& place) {
    using Item = typename Wire::Item;
    with_table(sources, [&]<int capacity>(const TensorTable<capacity>& table) {
        const NormSums sums = norm_sums(norms, sources, place);
        const auto tiles = static_cast<unsigned>(table.tile[table.tensors]);
        if (tiles == 0) return;
        start({"pack: starting pack_tiles", tiles, threads_of_block, place.stream},
              pack_tiles<Wire, capacity>, table, static_cast<Item*>(out), scale, sums);
    });
}

template <class Wire>
void unpack_as(const void* source, TargetTensors targets, float scale, double* norms,
               const CudaPlace& place) {
    using Item = typename Wire::Item;
    with_table(targets, [&]<int capacity>(const TensorTable<capacity>& table) {
        const NormSums sums = norm_sums(norms, targets, place);
        const auto tiles = static_cast<unsigned>(table.tile[table.tensors]);
        if (tiles == 0) return;
        start({"unpack: starting unpack_tiles", tiles, threads_of_block, place.stream},
              unpack_tiles<Wire, capacity>, table, static_cast<const Item*>(source), scale, sums);
    });
}

}  // namespace

std::size_t compression_cuda_workspace(std::int64_t tensors, std::int64_t elements) {
    if (tensors < 0 || elements < 0 || tensors > std::int64_t{1} << 32 || elements > std::int64_t{1} << 48)
        throw std::invalid_argument("tensors must be in [0, 2**32] and elements in [0, 2**48]");
    return norm_workspace(tensors, elements);
}

std::int64_t compression_cuda_most_tensors() {
    return static_cast<std::int64_t>(most_tensors());
}

void pack_cuda(SourceTensors sources, void* out, Wire wire, float scale, double* norms,
               const CudaPlace& place) {
    const CurrentDevice current(place.device);
    if (wire == Wire::float32) return pack_as<Float32>(sources, out, scale, norms, place);
    if (wire == Wire::float16) return pack_as<Float16>(sources, out, scale, norms, place);
    pack_as<BFloat16>(sources, out, scale, norms, place);
}

void unpack_cuda(const void* source, TargetTensors targets, Wire wire, float scale, double* norms,
                 const CudaPlace& place) {
    const CurrentDevice current(place.device);
    if (wire == Wire::float32) return unpack_as<Float32>(source, targets, scale, norms, place);
    if (wire == Wire::float16) return unpack_as<Float16>(source, targets, scale, norms, place);
    unpack_as<BFloat16>(source, targets, scale, norms, place);
}

}  // namespace hpcai500
