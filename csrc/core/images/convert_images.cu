// The twin of convert_images.cpp on a CUDA device: chooses the kernel that moves most bytes at once.
#include <algorithm>
#include <stdexcept>

#include "convert_images.h"
#include "core/cuda_launch.cuh"
#include "image_kernels.cuh"

namespace hpcai500 {
namespace {

using namespace cuda_items;
using namespace image_kernels;

/// A conversion, its memory, and where it is put.
struct Pass {
    const ImageConversion& conversion;
    const void* source;
    void* out;
    void* stream;
};

bool is_aligned(const void* memory, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(memory) % bytes == 0;
}

// Blocks of threads, and how the kernel divides the batch among them.
struct Division {
    Tiling tiling;
    CudaLaunch launch;
};

Division divided(const Pass& pass, std::int64_t units, std::int64_t values, std::int64_t tile) {
    const std::int64_t tiles = (values + tile - 1) / tile;
    constexpr std::int64_t most_blocks = 0x7fffffff;
    if (tiles > most_blocks / units)
        throw std::invalid_argument("a batch of images is too large for one kernel of a CUDA device");
    const Tiling tiling{values, pass.conversion.pixels, static_cast<int>(pass.conversion.channels),
                        static_cast<int>(tile), static_cast<unsigned>(tiles)};
    return {tiling,
            {"convert_images: starting a kernel", dim3(static_cast<unsigned>(units * tiles)),
             threads_of_block, pass.stream}};
}

template <class Kernel, class From, class To>
void run(Kernel kernel, const Pass& pass, const Division& division, const From* source, To* out) {
    start(division.launch, kernel, source, out, division.tiling, pass.conversion.factors);
}

template <class From, class To>
void convert_same_layout(const Pass& pass, const typename From::Item* source, typename To::Item* out) {
    const ImageConversion& shape = pass.conversion;
    if (shape.to_layout == ImageLayout::channels_last) {
        const std::int64_t values = shape.images * shape.channels * shape.pixels;
        const Division division = divided(pass, 1, values, run_tile<From>);
        if (shape.channels == 3) return run(convert_interleaved<From, To, true>, pass, division, source, out);
        return run(convert_interleaved<From, To, false>, pass, division, source, out);
    }
    const std::int64_t planes = shape.images * shape.channels;
    run(convert_planes<From, To>, pass, divided(pass, planes, shape.pixels, run_tile<From>), source, out);
}

template <class From, class To>
void convert_to_last(const Pass& pass, const typename From::Item* source, typename To::Item* out) {
    const ImageConversion& shape = pass.conversion;
    if (shape.channels % group_channels == 0) {
        const std::int64_t groups = shape.channels / group_channels;
        const std::int64_t tile = groups_of_thread * threads_of_block / groups;
        return run(convert_groups<From, To>, pass, divided(pass, shape.images, shape.pixels, tile), source,
                   out);
    }
    constexpr std::int64_t most_pixels = 8 * threads_of_block;
    const auto pixel_bytes = shape.channels * static_cast<std::int64_t>(sizeof(typename To::Item));
    // A multiple of 8 pixels is a whole number of runs, whatever the channels.
    const std::int64_t tile = std::min(tile_bytes / pixel_bytes / 8 * 8, most_pixels);
    run(convert_tiles<From, To>, pass, divided(pass, shape.images, shape.pixels, tile), source, out);
}

// Whether every run that the kernels of this conversion touch is aligned as it must be.
template <class From, class To>
bool in_runs(const Pass& pass, bool same_layout) {
    const ImageConversion& shape = pass.conversion;
    using In = typename From::Item;
    using Out = typename To::Item;
    if (same_layout) {
        constexpr int width = run_values<From>;
        const bool last = shape.to_layout == ImageLayout::channels_last;
        const std::int64_t unit = last ? shape.images * shape.channels * shape.pixels : shape.pixels;
        return unit % width == 0 && is_aligned(pass.source, std::min<std::size_t>(16, width * sizeof(In))) &&
               is_aligned(pass.out, std::min<std::size_t>(16, width * sizeof(Out)));
    }
    return shape.to_layout == ImageLayout::channels_last && is_aligned(pass.out, 16) &&
           shape.pixels * shape.channels % group_channels == 0;
}

template <class From, class To>
void convert_as(const Pass& pass) {
    const ImageConversion& shape = pass.conversion;
    const auto* const source = static_cast<const typename From::Item*>(pass.source);
    auto* const out = static_cast<typename To::Item*>(pass.out);
    const bool same_layout = shape.from_layout == shape.to_layout;
    if (in_runs<From, To>(pass, same_layout)) {
        if (same_layout) return convert_same_layout<From, To>(pass, source, out);
        return convert_to_last<From, To>(pass, source, out);
    }
    const auto steps = [&](ImageLayout layout) {
        return layout == ImageLayout::channels_first ? Steps{shape.pixels, 1} : Steps{1, shape.channels};
    };
    const Division division = divided(pass, shape.images, shape.pixels, threads_of_block);
    start(division.launch, convert_pixels<From, To>, source, out, division.tiling, steps(shape.from_layout),
          steps(shape.to_layout), shape.factors);
}

template <class From>
void convert_from(const Pass& pass) {
    switch (pass.conversion.to) {
        case ImageItem::float32:
            return convert_as<From, Float32>(pass);
        case ImageItem::float16:
            return convert_as<From, Float16>(pass);
        case ImageItem::bfloat16:
            return convert_as<From, BFloat16>(pass);
        case ImageItem::uint8:
            break;
    }
    throw std::invalid_argument("images cannot be converted to uint8");
}

// One channel, or one pixel, lies the same in both layouts: as single values.
ImageConversion plainest(const ImageConversion& conversion) {
    ImageConversion result = conversion;
    if (conversion.channels == 1 || conversion.pixels == 1)
        result.from_layout = result.to_layout = ImageLayout::channels_last;
    return result;
}

}  // namespace

void convert_images_cuda(const ImageConversion& conversion, const void* source, void* out, int device,
                         void* stream) {
    if (conversion.images == 0 || conversion.channels == 0 || conversion.pixels == 0) return;
    const CurrentDevice current(device);
    const ImageConversion plain = plainest(conversion);
    const Pass pass{plain, source, out, stream};
    switch (plain.from) {
        case ImageItem::float32:
            return convert_from<Float32>(pass);
        case ImageItem::float16:
            return convert_from<Float16>(pass);
        case ImageItem::bfloat16:
            return convert_from<BFloat16>(pass);
        case ImageItem::uint8:
            return convert_from<UInt8>(pass);
    }
}

}  // namespace hpcai500
