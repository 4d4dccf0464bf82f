// The kernels of convert_images_cuda: one for each way that memory is walked. All but convert_pixels read and
// write whole runs (cuda_items.cuh), and ask for memory that is aligned to them.
#pragma once

#include "convert_images.h"
#include "core/cuda_items.cuh"

namespace hpcai500::image_kernels {

using cuda_items::load;
using cuda_items::store;

inline constexpr int threads_of_block = 256;

/// A batch as blocks of threads divide it: into units (an image, a channel of one, or all of the batch), and
/// each unit into tiles.
struct Tiling {
    std::int64_t values;  ///< of a unit: pixels, or where channels are last and stay so, single values
    std::int64_t pixels;  ///< of an image
    int channels;
    int tile;        ///< values of a unit that a block takes; the last one has less
    unsigned tiles;  ///< of a unit
};

/// Runs that a thread has under way at once in convert_planes and convert_interleaved.
inline constexpr int runs_of_thread = 4;
/// Values of a run there: 16 bytes on the wider side, but no more than 8.
template <class From>
inline constexpr int run_values = sizeof(typename From::Item) == 4 ? 4 : 8;
template <class From>
inline constexpr int run_tile = threads_of_block * runs_of_thread * run_values<From>;

/// Of one channel; read by one instruction.
struct alignas(8) Factor {
    float scale, bias;
};

__device__ inline Factor factor_of(const ChannelFactors& factors, unsigned channel) {
    return {factors.scale[channel], factors.bias[channel]};
}

__device__ inline float converted(float value, const Factor& factor) {
    return fmaf(value, factor.scale, factor.bias);
}

/// For threads that need factors of several channels: to be called by all threads of a block.
__device__ inline void share(const ChannelFactors& factors, int channels, Factor* shared) {
    for (int channel = static_cast<int>(threadIdx.x); channel < channels; channel += threads_of_block)
        shared[channel] = factor_of(factors, static_cast<unsigned>(channel));
    __syncthreads();
}

/// Channels first, and to stay so: a unit is a channel of an image.
template <class From, class To>
__global__ void __launch_bounds__(threads_of_block)
    convert_planes(const typename From::Item* __restrict__ source, typename To::Item* __restrict__ out,
                   Tiling tiling, const __grid_constant__ ChannelFactors factors) {
    constexpr int width = run_values<From>;
    const unsigned plane = blockIdx.x / tiling.tiles, tile = blockIdx.x % tiling.tiles;
    const unsigned channel = plane % static_cast<unsigned>(tiling.channels);
    const Factor factor = factor_of(factors, channel);
    const std::int64_t begin = plane * tiling.values;
    const std::int64_t first = static_cast<std::int64_t>(tile) * tiling.tile + threadIdx.x * width;
    typename From::Item values[runs_of_thread][width];
#pragma unroll
    for (int run = 0; run < runs_of_thread; ++run) {
        const std::int64_t at = first + run * threads_of_block * width;
        if (at < tiling.values) load<width>(source + begin + at, values[run]);
    }
#pragma unroll
    for (int run = 0; run < runs_of_thread; ++run) {
        const std::int64_t at = first + run * threads_of_block * width;
        if (at >= tiling.values) return;
        typename To::Item items[width];
#pragma unroll
        for (int i = 0; i < width; ++i) items[i] = To::narrow(converted(From::widen(values[run][i]), factor));
        store<width>(items, out + begin + at);
    }
}

/// Factors by which values that follow one another, channels last, are converted: three channels' are kept in
/// registers, more in shared memory.
template <bool three>
class FactorCycle;

template <>
class FactorCycle<true> {
  public:
    __device__ FactorCycle(const ChannelFactors& factors, int, Factor*)
        : first_{factor_of(factors, 0)}, second_{factor_of(factors, 1)}, third_{factor_of(factors, 2)} {}
    /// Calls `convert(i, factor)` for each of `count` values, of which the first is of `channel`.
    template <int count, class Convert>
    __device__ void each(int channel, const Convert& convert) const {
        const Factor turned[] = {channel == 0   ? first_
                                 : channel == 1 ? second_
                                                : third_,
                                 channel == 0   ? second_
                                 : channel == 1 ? third_
                                                : first_,
                                 channel == 0   ? third_
                                 : channel == 1 ? first_
                                                : second_};
#pragma unroll
        for (int i = 0; i < count; ++i) convert(i, turned[i % 3]);
    }

  private:
    Factor first_, second_, third_;
};

template <>
class FactorCycle<false> {
  public:
    __device__ FactorCycle(const ChannelFactors& factors, int channels, Factor* shared)
        : shared_(shared), channels_(channels) {
        share(factors, channels, shared);
    }
    template <int count, class Convert>
    __device__ void each(int channel, const Convert& convert) const {
#pragma unroll
        for (int i = 0; i < count; ++i) {
            convert(i, shared_[channel]);
            if (++channel == channels_) channel = 0;
        }
    }

  private:
    const Factor* shared_;
    int channels_;
};

/// Channels last, and to stay so: the batch is one unit of single values.
template <class From, class To, bool three>
__global__ void __launch_bounds__(threads_of_block)
    convert_interleaved(const typename From::Item* __restrict__ source, typename To::Item* __restrict__ out,
                        Tiling tiling, const __grid_constant__ ChannelFactors factors) {
    constexpr int width = run_values<From>;
    __shared__ Factor shared[three ? 1 : most_image_channels];
    const int channels = three ? 3 : tiling.channels;
    const FactorCycle<three> cycle(factors, channels, shared);
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * tiling.tile;
    const int begin_channel = static_cast<int>(begin % channels);
    const int first = static_cast<int>(threadIdx.x) * width;
    typename From::Item values[runs_of_thread][width];
#pragma unroll
    for (int run = 0; run < runs_of_thread; ++run) {
        const std::int64_t at = begin + first + run * threads_of_block * width;
        if (at < tiling.values) load<width>(source + at, values[run]);
    }
#pragma unroll
    for (int run = 0; run < runs_of_thread; ++run) {
        const int ahead = first + run * threads_of_block * width;
        if (begin + ahead >= tiling.values) return;
        typename To::Item items[width];
        cycle.template each<width>((begin_channel + ahead) % channels, [&](int i, const Factor& factor) {
            items[i] = To::narrow(converted(From::widen(values[run][i]), factor));
        });
        store<width>(items, out + begin + ahead);
    }
}

/// Channels that are written together by a thread of convert_groups.
inline constexpr int group_channels = 8;
/// Groups that a thread of it takes.
inline constexpr int groups_of_thread = 2;

/// Channels first to channels last, where there is a multiple of 8 of them: a unit is an image. Neighbouring
/// threads write the groups of one pixel and then those of the next, so that a warp writes one stretch of
/// memory, and reads a stretch of a few channels at a time.
template <class From, class To>
__global__ void __launch_bounds__(threads_of_block)
    convert_groups(const typename From::Item* __restrict__ source, typename To::Item* __restrict__ out,
                   Tiling tiling, const __grid_constant__ ChannelFactors factors) {
    __shared__ Factor shared[most_image_channels];
    share(factors, tiling.channels, shared);
    const std::int64_t image = blockIdx.x / tiling.tiles;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % tiling.tiles) * tiling.tile;
    const int groups = tiling.channels / group_channels;
    const typename From::Item* const from = source + image * tiling.channels * tiling.pixels;
    typename To::Item* const to = out + image * tiling.channels * tiling.pixels;
#pragma unroll
    for (int step = 0; step < groups_of_thread; ++step) {
        const int item = static_cast<int>(threadIdx.x) + step * threads_of_block;
        const int pixel_of_tile = item / groups;
        const int channel = (item - pixel_of_tile * groups) * group_channels;
        const std::int64_t pixel = first + pixel_of_tile;
        if (pixel_of_tile >= tiling.tile || pixel >= tiling.pixels) return;
        typename From::Item values[group_channels];
#pragma unroll
        for (int i = 0; i < group_channels; ++i) values[i] = from[(channel + i) * tiling.pixels + pixel];
        typename To::Item items[group_channels];
#pragma unroll
        for (int i = 0; i < group_channels; ++i)
            items[i] = To::narrow(converted(From::widen(values[i]), shared[channel + i]));
        store<group_channels>(items, to + pixel * tiling.channels + channel);
    }
}

/// Bytes of a tile of convert_tiles: 8 pixels of the most channels have room in it.
inline constexpr int tile_bytes = 12 * 1024;

/// Channels first to channels last, any number of them: a unit is an image. A tile is laid out in shared
/// memory as it will lie in the output, where it is one stretch, and then written from there.
template <class From, class To>
__global__ void __launch_bounds__(threads_of_block)
    convert_tiles(const typename From::Item* __restrict__ source, typename To::Item* __restrict__ out,
                  Tiling tiling, const __grid_constant__ ChannelFactors factors) {
    using Item = typename To::Item;
    constexpr int width = cuda_items::longest_run<Item>;
    __shared__ cuda_items::Run<Item, width> memory[tile_bytes / 16];
    Item* const items = memory[0].item;
    const std::int64_t image = blockIdx.x / tiling.tiles;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x % tiling.tiles) * tiling.tile;
    const std::int64_t left = tiling.pixels - first;
    const int count = left < tiling.tile ? static_cast<int>(left) : tiling.tile;
    const std::int64_t begin = image * tiling.channels * tiling.pixels;
    for (int channel = 0; channel < tiling.channels; ++channel) {
        const Factor factor = factor_of(factors, static_cast<unsigned>(channel));
        const typename From::Item* const from = source + begin + channel * tiling.pixels + first;
#pragma unroll 4
        for (int pixel = static_cast<int>(threadIdx.x); pixel < count; pixel += threads_of_block)
            items[pixel * tiling.channels + channel] =
                To::narrow(converted(From::widen(from[pixel]), factor));
    }
    __syncthreads();
    Item* const to = out + begin + first * tiling.channels;
    const int values = count * tiling.channels;
    for (int at = static_cast<int>(threadIdx.x) * width; at < values; at += threads_of_block * width) {
        Item run[width];
        load<width>(items + at, run);
        store<width>(run, to + at);
    }
}

/// From a value to the next of each axis.
struct Steps {
    std::int64_t channel, pixel;
};

/// Any layout, any alignment: a unit is an image, and a thread takes one pixel of it.
template <class From, class To>
__global__ void __launch_bounds__(threads_of_block)
    convert_pixels(const typename From::Item* __restrict__ source, typename To::Item* __restrict__ out,
                   Tiling tiling, Steps in, Steps to, const __grid_constant__ ChannelFactors factors) {
    const std::int64_t image = blockIdx.x / tiling.tiles;
    const std::int64_t pixel =
        static_cast<std::int64_t>(blockIdx.x % tiling.tiles) * tiling.tile + threadIdx.x;
    if (pixel >= tiling.pixels) return;
    const std::int64_t begin = image * tiling.channels * tiling.pixels;
    const typename From::Item* const from = source + begin + pixel * in.pixel;
    typename To::Item* const into = out + begin + pixel * to.pixel;
#pragma unroll 4
    for (int channel = 0; channel < tiling.channels; ++channel) {
        const Factor factor = factor_of(factors, static_cast<unsigned>(channel));
        into[channel * to.channel] = To::narrow(converted(From::widen(from[channel * in.channel]), factor));
    }
}

}  // namespace hpcai500::image_kernels
