// dequantise on the device: the twin of quantise.cpp's. A block of threads has one tile of one tensor, as
// where it unpacks, for it is the tensor that is written.
#include "cuda_bucket.cuh"
#include "cuda_fours.cuh"
#include "cuda_norms.cuh"
#include "quantise.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

// Where a buffer has what belongs to a tile: its values are counted from the begin of a chunk, and reach into
// the next one at most.
class CodedTile {
  public:
    __device__ CodedTile(const std::uint8_t* buffer, const Tile& tile) {
        // Rounded down: a tile may begin before the buffer does, by values that do not exist.
        const std::int64_t chunk = tile.at >> chunk_bits;
        chunk_ = buffer + chunk * quantised_chunk_bytes;
        first_ = static_cast<int>(tile.at - (chunk << chunk_bits));
    }
    __device__ bool has_fours() const { return first_ % 4 == 0; }
    __device__ const std::uint8_t* code(int place) const {
        const int at = first_ + place;
        return chunk_ + at + (1 + (at >> chunk_bits)) * scales_bytes;
    }
    __device__ float scale(int place) const {
        const int at = first_ + place, chunk = at >> chunk_bits;
        const int block = (at >> block_bits) % static_cast<int>(quantised_chunk_blocks);
        return *reinterpret_cast<const float*>(chunk_ + chunk * static_cast<int>(quantised_chunk_bytes) +
                                               block * 4);
    }

  private:
    static constexpr int chunk_bits = 12, block_bits = 8;
    static constexpr int scales_bytes = static_cast<int>(quantised_chunk_blocks) * 4;
    static_assert(quantised_chunk == 1 << chunk_bits && quantised_block == 1 << block_bits);

    const std::uint8_t* chunk_;
    int first_;
};

__device__ float widen(std::uint8_t code) {
    return static_cast<float>(static_cast<std::int8_t>(code));
}

// The thread's part of a tile, as load_fours() would have it; zeros for what does not exist.
__device__ void load_coded(float (&values)[values_of_thread], const CodedTile& coded, const Tile& tile) {
    const int first = first_of_lane();
    if (tile.whole() && coded.has_fours()) {
#pragma unroll
        for (int i = 0; i < fours_of_thread; ++i) {
            const int place = first + i * row_of_warp;
            const auto four = *reinterpret_cast<const Four<std::uint8_t>*>(coded.code(place));
            const float scale = coded.scale(place);
#pragma unroll
            for (int k = 0; k < 4; ++k) values[4 * i + k] = widen(four.item[k]) * scale;
        }
    } else {
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i) {
            const int place = first + i / 4 * row_of_warp + i % 4;
            const bool exists = place >= tile.begin && place < tile.end;
            values[i] = exists ? widen(*coded.code(place)) * coded.scale(place) : 0.0f;
        }
    }
}

template <int capacity, bool accumulate>
__global__ void __launch_bounds__(threads_of_block)
    dequantise_tiles(const __grid_constant__ TensorTable<capacity> table, const std::uint8_t* buffer,
                     float scale, NormSums sums) {
    const Tile tile = own_tile(table);
    float values[values_of_thread];
    float held[values_of_thread] = {};
    if constexpr (accumulate) load_values(held, tile);
    load_coded(values, CodedTile(buffer, tile), tile);
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) {
        values[i] = values[i] * scale;
        if constexpr (accumulate) values[i] = held[i] + values[i];
    }
    store_values(values, tile);
    if (sums.norms != nullptr) add_to_norm(sums, tile, sum_of_squares(values));
}

template <bool accumulate>
void dequantise_to(const std::uint8_t* buffer, TargetTensors targets, float scale, double* norms,
                   const CudaPlace& place) {
    with_table(targets, [&]<int capacity>(const TensorTable<capacity>& table) {
        const NormSums sums = norm_sums(norms, targets, place);
        const auto tiles = static_cast<unsigned>(table.tile[table.tensors]);
        if (tiles == 0) return;
        start({"dequantise: starting dequantise_tiles", tiles, threads_of_block, place.stream},
              dequantise_tiles<capacity, accumulate>, table, buffer, scale, sums);
    });
}

}  // namespace

void dequantise_cuda(const std::uint8_t* buffer, TargetTensors targets, float scale, bool accumulate,
                     double* norms, const CudaPlace& place) {
    const CurrentDevice current(place.device);
    if (accumulate)
        dequantise_to<true>(buffer, targets, scale, norms, place);
    else
        dequantise_to<false>(buffer, targets, scale, norms, place);
}

}  // namespace hpcai500
