// quantise on the device: the twin of quantise.cpp. A block of threads has a chunk, a warp two of its blocks
// of 256 values, a lane eight values of each.
#include "cuda_bucket.cuh"
#include "cuda_fours.cuh"
#include "cuda_norms.cuh"
#include "quantise.h"
#include "quantised_layout.h"

namespace hpcai500 {
namespace {

static_assert(quantised_chunk == tile_values, "a block of threads has as much of a bucket as of a tensor");
constexpr int chunk_values = tile_values;
constexpr int block_values = static_cast<int>(quantised_block);
constexpr int values_of_lane = block_values / warp_lanes;

// In its chunk, where a thread's values lie: two blocks of two rows, and of each four values.
__device__ int place_of(int i) {
    const int block = static_cast<int>(threadIdx.x) / warp_lanes + i / values_of_lane * warps_of_block;
    return block * block_values + i % values_of_lane / 4 * row_of_warp + 4 * lane_of_thread() + i % 4;
}

// Values of a chunk that are all there.
__device__ void load_chunk(float (&values)[values_of_thread], const float* chunk) {
    if (aligned_to_four(chunk)) {
#pragma unroll
        for (int i = 0; i < values_of_thread; i += 4) {
            const auto four = *reinterpret_cast<const Four<float>*>(chunk + place_of(i));
#pragma unroll
            for (int k = 0; k < 4; ++k) values[i + k] = four.item[k];
        }
    } else {
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i) values[i] = chunk[place_of(i)];
    }
}

// Values of a chunk that only has the first `count`; zeros for the rest.
__device__ void load_some(float (&values)[values_of_thread], const float* chunk, int count) {
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) values[i] = place_of(i) < count ? chunk[place_of(i)] : 0.0f;
}

// Values of a chunk that several tensors meet in, from `tensor` on.
template <int capacity>
__device__ void gather(float (&values)[values_of_thread], const TensorTable<capacity>& table, int tensor,
                       std::int64_t chunk, int count) {
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) {
        values[i] = 0.0f;
        if (place_of(i) >= count) continue;
        const std::int64_t at = chunk + place_of(i);
        while (at >= table.at[tensor + 1]) ++tensor;
        values[i] = table.data[tensor][at - table.at[tensor]];
    }
}

__device__ void store_residual(const float (&values)[values_of_thread], float* chunk, int count) {
    if (count == chunk_values && aligned_to_four(chunk)) {
#pragma unroll
        for (int i = 0; i < values_of_thread; i += 4)
            *reinterpret_cast<Four<float>*>(chunk + place_of(i)) = {values[i], values[i + 1], values[i + 2],
                                                                    values[i + 3]};
    } else {
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i)
            if (place_of(i) < count) chunk[place_of(i)] = values[i];
    }
}

__device__ unsigned largest_of_warp(unsigned bits) {
#pragma unroll
    for (int distance = warp_lanes / 2; distance > 0; distance /= 2)
        bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, distance));
    return bits;
}

// The lane's part of one block, as in compression_kernel.inl: codes at and behind `codes`, and what rounding
// takes away in the values' place. Returns the block's scale.
__device__ float quantise_part(float* values, std::uint8_t* codes) {
    constexpr unsigned largest_float = 0x7f7fffffu, smallest_peak = 0x04000000u, quiet_nan = 0x7fc00000u;
    // No bits are left behind the point, and the lowest byte is the code.
    constexpr float shift = 12582912.0f;
    unsigned peak = 0;
#pragma unroll
    for (int i = 0; i < values_of_lane; ++i) peak = max(peak, __float_as_uint(values[i]) & 0x7fffffffu);
    peak = largest_of_warp(peak);
    const bool finite = peak < largest_float, codable = finite && peak >= smallest_peak;
    const float largest = codable ? __uint_as_float(peak) : 127.0f;
    const float scale = __fdiv_rn(largest, 127.0f), inverse = __fdiv_rn(127.0f, largest);
#pragma unroll
    for (int row = 0; row < values_of_lane / 4; ++row) {
        Four<std::uint8_t> four;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            float& value = values[4 * row + k];
            const float shifted = value * inverse + shift;
            four.item[k] = codable ? static_cast<std::uint8_t>(__float_as_uint(shifted)) : std::uint8_t{0};
            if (codable) value = value - (shifted - shift) * scale;
            if (!finite) value = 0.0f;
        }
        *reinterpret_cast<Four<std::uint8_t>*>(codes + row * row_of_warp) = four;
    }
    if (!finite) return __uint_as_float(quiet_nan);
    return codable ? scale : 0.0f;
}

// To be called by all threads of a chunk's block, of which thread 0 has the sum of `tensor`'s squares there.
template <int capacity>
__device__ void add_chunk(const TensorTable<capacity>& table, const NormSums& sums, int tensor, double sum) {
    const std::int64_t chunk = blockIdx.x, first = table.at[tensor] / chunk_values;
    const std::int64_t chunks = (table.at[tensor + 1] - 1) / chunk_values - first + 1;
    // Of two chunks or of two tensors, the later one has the larger sum of both numbers: no two pieces meet.
    add_to_norm(sums, tensor, first + tensor, chunks, chunk - first, sum);
}

// The tensors that meet in a chunk: of a long one every thread has a part, of the short ones each warp takes
// one at a time.
template <int capacity>
__device__ void add_meeting(const TensorTable<capacity>& table, const NormSums& sums, int first_tensor,
                            std::int64_t chunk, int count, const float (&values)[values_of_thread]) {
    constexpr int short_tensor = 8 * warp_lanes;
    __shared__ double of_edge[2];
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes, lane = lane_of_thread();
    const int last_tensor = found(table.at, table.tensors, chunk + count - 1);
    const auto begin = [&](int tensor) { return static_cast<int>(max(table.at[tensor], chunk) - chunk); };
    const auto end = [&](int tensor) {
        return static_cast<int>(min(table.at[tensor + 1] - chunk, static_cast<std::int64_t>(count)));
    };
    for (int tensor = first_tensor; tensor <= last_tensor; ++tensor) {
        if (end(tensor) - begin(tensor) <= short_tensor) continue;
        float own[values_of_thread];
#pragma unroll
        for (int i = 0; i < values_of_thread; ++i)
            own[i] = place_of(i) >= begin(tensor) && place_of(i) < end(tensor) ? values[i] : 0.0f;
        add_chunk(table, sums, tensor, sum_of_block(sum_of_squares(own)));
    }
    for (int tensor = first_tensor + warp; tensor <= last_tensor; tensor += warps_of_block) {
        if (end(tensor) - begin(tensor) > short_tensor) continue;
        double sum = 0;
#pragma unroll
        for (int i = 0; i < short_tensor; i += warp_lanes) {
            const int place = begin(tensor) + i + lane;
            if (place < end(tensor)) sum += square(table.data[tensor][chunk - table.at[tensor] + place]);
        }
        sum = sum_of_warp(sum);
        if (lane != 0) continue;
        // Others may have a part of the first and of the last one.
        if (tensor == first_tensor)
            of_edge[0] = sum;
        else if (tensor == last_tensor)
            of_edge[1] = sum;
        else
            sums.norms[tensor] = sqrt(sum);
    }
    __syncthreads();
    if (end(first_tensor) - begin(first_tensor) <= short_tensor)
        add_chunk(table, sums, first_tensor, of_edge[0]);
    if (last_tensor != first_tensor && end(last_tensor) - begin(last_tensor) <= short_tensor)
        add_chunk(table, sums, last_tensor, of_edge[1]);
}

template <int capacity>
__global__ void __launch_bounds__(threads_of_block)
    quantise_chunks(const __grid_constant__ TensorTable<capacity> table, std::uint8_t* buffer,
                    float* residual, float scale, NormSums sums) {
    const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * chunk_values;
    const int tensor = found(table.at, table.tensors, chunk);
    const std::int64_t left = table.at[table.tensors] - chunk;
    const int count = left < chunk_values ? static_cast<int>(left) : chunk_values;
    const bool of_one = table.at[tensor + 1] - chunk >= count, full = count == chunk_values;
    float values[values_of_thread], carried[values_of_thread] = {};
    const float* const source = table.data[tensor] + (chunk - table.at[tensor]);
    if (of_one && full)
        load_chunk(values, source);
    else
        gather(values, table, tensor, chunk, count);
    if (residual != nullptr && full)
        load_chunk(carried, residual + chunk);
    else if (residual != nullptr)
        load_some(carried, residual + chunk, count);
    double squares = 0;
    if (sums.norms != nullptr && of_one)
        squares = sum_of_squares(values);
    else if (sums.norms != nullptr)
        add_meeting(table, sums, tensor, chunk, count, values);
#pragma unroll
    for (int i = 0; i < values_of_thread; ++i) {
        values[i] = values[i] * scale;
        if (residual != nullptr) values[i] = values[i] + carried[i];
    }
    std::uint8_t* const memory = buffer + static_cast<std::int64_t>(blockIdx.x) * quantised_chunk_bytes;
    std::uint8_t* const codes = memory + quantised_chunk_blocks * sizeof(float);
#pragma unroll
    for (int i = 0; i < values_of_thread; i += values_of_lane) {
        const float block_scale = quantise_part(values + i, codes + place_of(i));
        if (lane_of_thread() == 0) reinterpret_cast<float*>(memory)[place_of(i) / block_values] = block_scale;
    }
    if (residual != nullptr) store_residual(values, residual + chunk, count);
    if (sums.norms != nullptr && of_one) add_chunk(table, sums, tensor, sum_of_block(squares));
}

}  // namespace

void quantise_cuda(SourceTensors sources, std::uint8_t* buffer, float* residual, float scale, double* norms,
                   const CudaPlace& place) {
    const CurrentDevice current(place.device);
    with_table(sources, [&]<int capacity>(const TensorTable<capacity>& table) {
        const NormSums sums = norm_sums(norms, sources, place);
        const std::int64_t chunks = (table.at[table.tensors] + chunk_values - 1) / chunk_values;
        if (chunks == 0) return;
        start({"quantise: starting quantise_chunks", static_cast<unsigned>(chunks), threads_of_block,
               place.stream},
              quantise_chunks<capacity>, table, buffer, residual, scale, sums);
    });
}

}  // namespace hpcai500
