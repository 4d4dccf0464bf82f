// Each pass over the images is one kernel, in which a thread keeps a run of channels and walks over pixels:
// what depends on the channel stays in registers. A block sums a tile of pixels; a small kernel sums the
// tiles.
#include <algorithm>
#include <stdexcept>

#include "core/cuda_items.cuh"
#include "core/cuda_launch.cuh"
#include "group_norm.h"

namespace hpcai500 {
namespace {

using namespace cuda_items;

constexpr int threads_of_block = 256;
/// Pixels that a thread has under way at once.
constexpr int pixels_at_once = 4;

/// Channels of a thread: 16 bytes.
template <class Type>
constexpr int run_of = longest_run<typename Type::Item>;

/// How images are divided: a block has a tile of the pixels of an image (blockIdx.y), of `lanes` runs of
/// channels.
struct Walk {
    std::int64_t pixels;
    int channels, group_channels, groups;
    int lanes, rows;    ///< of a block's threads: runs of channels, and pixels side by side
    std::int64_t tile;  ///< pixels of a block; the last one has less
    int tiles, slices;  ///< blocks of an image, along pixels and along channels
};

Walk walk_of(const GroupNormShape& shape) {
    const int run = shape.item == NormItem::float32 ? 4 : 8;
    Walk walk{shape.pixels, shape.channels, shape.channels / shape.groups, shape.groups, 0, 0, 0, 0, 0};
    const int runs = shape.channels / run;
    walk.lanes = std::min(runs, threads_of_block);
    walk.rows = threads_of_block / walk.lanes;
    walk.slices = (runs + walk.lanes - 1) / walk.lanes;
    // As many blocks as fill a large device a few times, and enough pixels in each to be worth its end.
    constexpr std::int64_t enough_blocks = 2048;
    const std::int64_t least = static_cast<std::int64_t>(walk.rows) * pixels_at_once * 2;
    const std::int64_t wanted = std::max<std::int64_t>(1, enough_blocks / (shape.images * walk.slices));
    walk.tile = std::max(least, (shape.pixels + wanted - 1) / wanted);
    walk.tiles = static_cast<int>((shape.pixels + walk.tile - 1) / walk.tile);
    return walk;
}

/// What a thread has of an image.
struct Share {
    std::int64_t begin, end;  ///< pixels of the block's tile
    std::int64_t offset;      ///< of the thread's channels, in values from the first image's begin
    int channel, row;
    bool idle;
};

template <int run>
__device__ inline Share own_share(const Walk& walk) {
    Share share;
    const int lane = static_cast<int>(threadIdx.x) % walk.lanes;
    share.row = static_cast<int>(threadIdx.x) / walk.lanes;
    share.channel = (static_cast<int>(blockIdx.z) * walk.lanes + lane) * run;
    share.idle = share.row >= walk.rows || share.channel >= walk.channels;
    share.begin = blockIdx.x * walk.tile;
    share.end = share.begin + walk.tile < walk.pixels ? share.begin + walk.tile : walk.pixels;
    share.offset = blockIdx.y * walk.pixels * walk.channels + share.channel;
    return share;
}

/// Calls `each(pixel)` for the thread's pixels, a few at once.
template <class Each>
__device__ inline void over_pixels(const Share& share, const Walk& walk, const Each& each) {
#pragma unroll 4
    for (std::int64_t pixel = share.begin + share.row; pixel < share.end; pixel += walk.rows) each(pixel);
}

template <class Type>
__device__ inline void load_run(const typename Type::Item* from, float (&values)[run_of<Type>]) {
    typename Type::Item items[run_of<Type>];
    load<run_of<Type>>(from, items);
#pragma unroll
    for (int i = 0; i < run_of<Type>; ++i) values[i] = Type::widen(items[i]);
}

template <class Type>
__device__ inline void store_run(const float (&values)[run_of<Type>], typename Type::Item* to) {
    typename Type::Item items[run_of<Type>];
#pragma unroll
    for (int i = 0; i < run_of<Type>; ++i) items[i] = Type::narrow(values[i]);
    store<run_of<Type>>(items, to);
}

/// Of each channel of a block two sums over its threads' rows, handed to `take(channel, first, second)`. To
/// be called by all threads of a block.
template <int run, class Take>
__device__ inline void sum_rows(const Walk& walk, const float (&first)[run], const float (&second)[run],
                                const Take& take) {
    __shared__ float sums[2][threads_of_block * run];
    const int own = static_cast<int>(threadIdx.x) * run;
#pragma unroll
    for (int i = 0; i < run; ++i) {
        sums[0][own + i] = first[i];
        sums[1][own + i] = second[i];
    }
    __syncthreads();
    const int width = walk.lanes * run, begin = static_cast<int>(blockIdx.z) * width;
    for (int at = static_cast<int>(threadIdx.x); at < width && begin + at < walk.channels;
         at += threads_of_block) {
        float one = 0, other = 0;
        for (int row = 0; row < walk.rows; ++row) {
            one += sums[0][row * width + at];
            other += sums[1][row * width + at];
        }
        take(begin + at, one, other);
    }
}

/// Where a block writes what it knows of its tile: (images, tiles, 2, channels).
__device__ inline float* tile_sums(float* workspace, const Walk& walk) {
    return workspace + (static_cast<std::int64_t>(blockIdx.y) * walk.tiles + blockIdx.x) * 2 * walk.channels;
}

/// Each tile's mean, and sum of squares about it, of each channel. Values are taken from the tile's first
/// pixel's: a mean far from 0 costs no digits.
template <class Type>
__global__ void __launch_bounds__(threads_of_block)
    moments_of_tiles(const typename Type::Item* __restrict__ images, float* workspace, Walk walk) {
    constexpr int run = run_of<Type>;
    const Share share = own_share<run>(walk);
    float sum[run] = {}, squares[run] = {};
    if (!share.idle) {
        float pilot[run];
        load_run<Type>(images + share.offset + share.begin * walk.channels, pilot);
        over_pixels(share, walk, [&](std::int64_t pixel) {
            float values[run];
            load_run<Type>(images + share.offset + pixel * walk.channels, values);
#pragma unroll
            for (int i = 0; i < run; ++i) {
                const float off = values[i] - pilot[i];
                sum[i] += off;
                squares[i] = fmaf(off, off, squares[i]);
            }
        });
    }
    float* const out = tile_sums(workspace, walk);
    const auto count = static_cast<float>(share.end - share.begin);
    const std::int64_t first = (blockIdx.y * walk.pixels + share.begin) * walk.channels;
    sum_rows<run>(walk, sum, squares, [&](int channel, float total, float total_squares) {
        const float mean = total / count;
        out[channel] = Type::widen(images[first + channel]) + mean;
        out[walk.channels + channel] = total_squares - total * mean;
    });
}

/// The sum of all threads' values, for all of them. To be called by all threads of a block.
__device__ inline double block_sum(double value, double* shared) {
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = threads_of_block / 2; half > 0; half /= 2) {
        if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    return shared[0];
}

/// A group's mean and inverse from its tiles'. A block has a group (blockIdx.x) of an image (blockIdx.y).
__global__ void __launch_bounds__(threads_of_block)
    finish_moments(const float* workspace, float* moments, float epsilon, Walk walk) {
    __shared__ double shared[threads_of_block];
    const std::int64_t image = blockIdx.y;
    const int begin = static_cast<int>(blockIdx.x) * walk.group_channels;
    const int entries = walk.tiles * walk.group_channels;
    const double count = static_cast<double>(walk.pixels) * walk.group_channels;
    const auto each = [&](const auto& add) {
        for (int at = static_cast<int>(threadIdx.x); at < entries; at += threads_of_block) {
            const int tile = at / walk.group_channels;
            const float* const sums = workspace + (image * walk.tiles + tile) * 2 * walk.channels + begin +
                                      at % walk.group_channels;
            const std::int64_t left = walk.pixels - tile * walk.tile;
            add(static_cast<double>(left < walk.tile ? left : walk.tile), sums[0], sums[walk.channels]);
        }
    };
    double sum = 0, squares = 0;
    each([&](double pixels, double mean, double) { sum += pixels * mean; });
    const double mean = block_sum(sum, shared) / count;
    each([&](double pixels, double tile_mean, double tile_squares) {
        squares += tile_squares + pixels * (tile_mean - mean) * (tile_mean - mean);
    });
    const double variance = block_sum(squares, shared) / count;
    if (threadIdx.x != 0) return;
    const std::int64_t at = image * walk.groups + blockIdx.x;
    moments[at] = static_cast<float>(mean);
    moments[static_cast<std::int64_t>(gridDim.y) * walk.groups + at] =
        static_cast<float>(1 / sqrt(variance + static_cast<double>(epsilon)));
}

/// A number of each of the thread's channels' groups, of its image.
template <int run>
__device__ inline void load_of_groups(const float* of_groups, const Walk& walk, const Share& share,
                                      float (&values)[run]) {
#pragma unroll
    for (int i = 0; i < run; ++i)
        values[i] = of_groups[static_cast<std::int64_t>(blockIdx.y) * walk.groups +
                              (share.channel + i) / walk.group_channels];
}

template <class Type>
__global__ void __launch_bounds__(threads_of_block)
    normalise(const typename Type::Item* __restrict__ images, const float* weight, const float* bias,
              const float* moments, typename Type::Item* __restrict__ out, Walk walk) {
    constexpr int run = run_of<Type>;
    const Share share = own_share<run>(walk);
    if (share.idle) return;
    float mean[run], scale[run], shift[run];
    load_of_groups(moments, walk, share, mean);
    load_of_groups(moments + static_cast<std::int64_t>(gridDim.y) * walk.groups, walk, share, scale);
#pragma unroll
    for (int i = 0; i < run; ++i) {
        scale[i] *= weight[share.channel + i];
        shift[i] = bias[share.channel + i];
    }
    over_pixels(share, walk, [&](std::int64_t pixel) {
        const std::int64_t at = share.offset + pixel * walk.channels;
        float values[run];
        load_run<Type>(images + at, values);
#pragma unroll
        for (int i = 0; i < run; ++i) values[i] = fmaf(values[i] - mean[i], scale[i], shift[i]);
        store_run<Type>(values, out + at);
    });
}

/// Each tile's sums of each channel: of the gradient, and of the gradient times the normalised image.
template <class Type>
__global__ void __launch_bounds__(threads_of_block)
    sum_gradient_tiles(const typename Type::Item* __restrict__ images,
                       const typename Type::Item* __restrict__ gradient, const float* moments,
                       float* workspace, Walk walk) {
    constexpr int run = run_of<Type>;
    const Share share = own_share<run>(walk);
    float sum[run] = {}, product[run] = {};
    if (!share.idle) {
        float mean[run], inverse[run];
        load_of_groups(moments, walk, share, mean);
        load_of_groups(moments + static_cast<std::int64_t>(gridDim.y) * walk.groups, walk, share, inverse);
        over_pixels(share, walk, [&](std::int64_t pixel) {
            const std::int64_t at = share.offset + pixel * walk.channels;
            float values[run], slopes[run];
            load_run<Type>(images + at, values);
            load_run<Type>(gradient + at, slopes);
#pragma unroll
            for (int i = 0; i < run; ++i) {
                sum[i] += slopes[i];
                product[i] = fmaf(slopes[i], (values[i] - mean[i]) * inverse[i], product[i]);
            }
        });
    }
    float* const out = tile_sums(workspace, walk);
    sum_rows<run>(walk, sum, product, [&](int channel, float total, float total_product) {
        out[channel] = total;
        out[walk.channels + channel] = total_product;
    });
}

/// Each channel's sums over the tiles, and over the group those that are weighted, as means. A block has a
/// group (blockIdx.x) of an image (blockIdx.y).
__global__ void __launch_bounds__(threads_of_block)
    finish_gradient_sums(const float* workspace, const float* weight, float* sums, float* means, Walk walk) {
    __shared__ float parts[2][threads_of_block];
    __shared__ double shared[threads_of_block];
    const std::int64_t image = blockIdx.y, images = gridDim.y;
    const int begin = static_cast<int>(blockIdx.x) * walk.group_channels;
    const int own = static_cast<int>(threadIdx.x);
    double first = 0, second = 0;
    // As many channels at once as there are threads, and as many threads for each as can be had.
    for (int done = 0; done < walk.group_channels; done += threads_of_block) {
        const int left = walk.group_channels - done;
        const int width = left < threads_of_block ? left : threads_of_block;
        const int rows = threads_of_block / width;
        const int place = own % width, row = own / width, channel = begin + done + place;
        float sum = 0, product = 0;
        if (row < rows)
            for (int tile = row; tile < walk.tiles; tile += rows) {
                const float* const of_tile =
                    workspace + (image * walk.tiles + tile) * 2 * walk.channels + channel;
                sum += of_tile[0];
                product += of_tile[walk.channels];
            }
        parts[0][own] = sum;
        parts[1][own] = product;
        __syncthreads();
        if (own < width) {
            for (int other = 1; other < rows; ++other) {
                sum += parts[0][other * width + own];
                product += parts[1][other * width + own];
            }
            sums[image * walk.channels + channel] = sum;
            sums[(images + image) * walk.channels + channel] = product;
            first += static_cast<double>(sum) * weight[channel];
            second += static_cast<double>(product) * weight[channel];
        }
        __syncthreads();
    }
    const double count = static_cast<double>(walk.pixels) * walk.group_channels;
    const double mean = block_sum(first, shared) / count;
    const double mean_product = block_sum(second, shared) / count;
    if (own != 0) return;
    const std::int64_t at = image * walk.groups + blockIdx.x;
    means[at] = static_cast<float>(mean);
    means[images * walk.groups + at] = static_cast<float>(mean_product);
}

template <class Type>
__global__ void __launch_bounds__(threads_of_block)
    spread_gradient(const typename Type::Item* __restrict__ images,
                    const typename Type::Item* __restrict__ gradient, const float* weight,
                    const float* moments, const float* means, typename Type::Item* __restrict__ out,
                    Walk walk) {
    constexpr int run = run_of<Type>;
    const Share share = own_share<run>(walk);
    if (share.idle) return;
    const std::int64_t second = static_cast<std::int64_t>(gridDim.y) * walk.groups;
    float mean[run], inverse[run], by_value[run], constant[run], by_gradient[run];
    load_of_groups(moments, walk, share, mean);
    load_of_groups(moments + second, walk, share, inverse);
    load_of_groups(means, walk, share, constant);
    load_of_groups(means + second, walk, share, by_value);
#pragma unroll
    for (int i = 0; i < run; ++i) {
        by_gradient[i] = inverse[i] * weight[share.channel + i];
        constant[i] *= -inverse[i];
        by_value[i] *= -inverse[i] * inverse[i];
    }
    over_pixels(share, walk, [&](std::int64_t pixel) {
        const std::int64_t at = share.offset + pixel * walk.channels;
        float values[run], slopes[run];
        load_run<Type>(images + at, values);
        load_run<Type>(gradient + at, slopes);
#pragma unroll
        for (int i = 0; i < run; ++i)
            slopes[i] = fmaf(slopes[i], by_gradient[i], fmaf(values[i] - mean[i], by_value[i], constant[i]));
        store_run<Type>(slopes, out + at);
    });
}

/// The blocks of a kernel that walks, and of one that has a group of an image in each.
struct Grids {
    Walk walk;
    dim3 tiles, groups;
    int device;
    void* stream;

    CudaLaunch walking(const char* what) const { return {what, tiles, threads_of_block, stream}; }
    CudaLaunch finishing(const char* what) const { return {what, groups, threads_of_block, stream}; }
};

Grids grids_of(const GroupNormShape& shape, int device, void* stream) {
    constexpr std::int64_t most_images = 65535;
    if (shape.images > most_images)
        throw std::invalid_argument("a batch of more than 65535 images is too large for group norm");
    const Walk walk = walk_of(shape);
    const auto images = static_cast<unsigned>(shape.images);
    return {walk, dim3(static_cast<unsigned>(walk.tiles), images, static_cast<unsigned>(walk.slices)),
            dim3(static_cast<unsigned>(walk.groups), images), device, stream};
}

std::int64_t floats_of_tiles(const GroupNormShape& shape) {
    return shape.images * walk_of(shape).tiles * 2 * shape.channels;
}

template <class Call>
void with_type(NormItem item, const Call& call) {
    switch (item) {
        case NormItem::float32:
            return call(Float32{});
        case NormItem::float16:
            return call(Float16{});
        case NormItem::bfloat16:
            return call(BFloat16{});
    }
}

bool is_empty(const GroupNormShape& shape) {
    return shape.images == 0 || shape.pixels == 0 || shape.channels == 0;
}

}  // namespace

std::size_t group_norm_cuda_workspace(const GroupNormShape& shape) {
    if (is_empty(shape)) return 0;
    return static_cast<std::size_t>(floats_of_tiles(shape) + 2 * shape.images * shape.groups) * sizeof(float);
}

void group_norm_cuda(const GroupNormShape& shape, float epsilon, const GroupNormMemory& memory,
                     const float* bias, void* out, int device, void* stream) {
    if (is_empty(shape)) return;
    const CurrentDevice current(device);
    const Grids grids = grids_of(shape, device, stream);
    auto* const workspace = static_cast<float*>(memory.workspace);
    with_type(shape.item, [&]<class Type>(Type) {
        using Item = typename Type::Item;
        const auto* const images = static_cast<const Item*>(memory.images);
        start(grids.walking("group norm: starting moments_of_tiles"), moments_of_tiles<Type>, images,
              workspace, grids.walk);
        start(grids.finishing("group norm: starting finish_moments"), finish_moments, workspace,
              memory.moments, epsilon, grids.walk);
        start(grids.walking("group norm: starting normalise"), normalise<Type>, images, memory.weight, bias,
              memory.moments, static_cast<Item*>(out), grids.walk);
    });
}

void group_norm_backward_cuda(const GroupNormShape& shape, const GroupNormMemory& memory,
                              const void* gradient, void* out, float* sums, int device, void* stream) {
    if (is_empty(shape)) return;
    const CurrentDevice current(device);
    const Grids grids = grids_of(shape, device, stream);
    auto* const workspace = static_cast<float*>(memory.workspace);
    float* const means = workspace + floats_of_tiles(shape);
    with_type(shape.item, [&]<class Type>(Type) {
        using Item = typename Type::Item;
        const auto* const images = static_cast<const Item*>(memory.images);
        const auto* const slopes = static_cast<const Item*>(gradient);
        start(grids.walking("group norm: starting sum_gradient_tiles"), sum_gradient_tiles<Type>, images,
              slopes, memory.moments, workspace, grids.walk);
        start(grids.finishing("group norm: starting finish_gradient_sums"), finish_gradient_sums, workspace,
              memory.weight, sums, means, grids.walk);
        start(grids.walking("group norm: starting spread_gradient"), spread_gradient<Type>, images, slopes,
              memory.weight, memory.moments, means, static_cast<Item*>(out), grids.walk);
    });
}

}  // namespace hpcai500
