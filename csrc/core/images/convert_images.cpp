#include "convert_images.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "core/jpeg/spec.h"
#include "core/threads.h"
#include "core/vectors/short_floats.h"

namespace hpcai500 {
namespace {

struct Float32 {
    using Item = float;
    static float widen(Item item) { return item; }
    static Item narrow(float value) { return value; }
};
struct Float16 {
    using Item = std::uint16_t;
    static float widen(Item item) { return from_float16<float>(std::int32_t{item}); }
    static Item narrow(float value) { return static_cast<Item>(to_float16<std::int32_t>(value)); }
};
struct BFloat16 {
    using Item = std::uint16_t;
    static float widen(Item item) { return std::bit_cast<float>(static_cast<std::uint32_t>(item) << 16); }
    static Item narrow(float value) { return to_bfloat16(value); }
};
struct UInt8 {
    using Item = std::uint8_t;
    static float widen(Item item) { return static_cast<float>(item); }
};

// From a value to the next of each axis.
struct Steps {
    std::int64_t image, channel, pixel;
};

Steps steps_of(const ImageConversion& conversion, ImageLayout layout) {
    const std::int64_t image = conversion.channels * conversion.pixels;
    if (layout == ImageLayout::channels_first) return {image, conversion.pixels, 1};
    return {image, 1, conversion.channels};
}

// Pixels of one image that a thread takes at a time.
constexpr std::int64_t piece_pixels = 4096;

template <class From, class To>
void convert_as(const ImageConversion& conversion, const void* source, void* out, int threads) {
    const Steps in = steps_of(conversion, conversion.from_layout);
    const Steps to = steps_of(conversion, conversion.to_layout);
    const std::int64_t pieces = (conversion.pixels + piece_pixels - 1) / piece_pixels;
    parallel_for(conversion.images * pieces, threads, [&](std::int64_t piece) {
        const std::int64_t image = piece / pieces, first = piece % pieces * piece_pixels;
        const std::int64_t last = std::min(first + piece_pixels, conversion.pixels);
        for (std::int64_t channel = 0; channel < conversion.channels; ++channel) {
            const auto* const from =
                static_cast<const typename From::Item*>(source) + image * in.image + channel * in.channel;
            auto* const into = static_cast<typename To::Item*>(out) + image * to.image + channel * to.channel;
            const float scale = conversion.factors.scale[channel], bias = conversion.factors.bias[channel];
            for (std::int64_t pixel = first; pixel < last; ++pixel)
                into[pixel * to.pixel] =
                    To::narrow(std::fma(From::widen(from[pixel * in.pixel]), scale, bias));
        }
    });
}

template <class From>
void convert_from(const ImageConversion& conversion, const void* source, void* out, int threads) {
    switch (conversion.to) {
        case ImageItem::float32:
            return convert_as<From, Float32>(conversion, source, out, threads);
        case ImageItem::float16:
            return convert_as<From, Float16>(conversion, source, out, threads);
        case ImageItem::bfloat16:
            return convert_as<From, BFloat16>(conversion, source, out, threads);
        case ImageItem::uint8:
            break;
    }
    throw std::invalid_argument("images cannot be converted to uint8");
}

}  // namespace

std::int64_t item_bytes(ImageItem item) {
    switch (item) {
        case ImageItem::float32:
            return 4;
        case ImageItem::uint8:
            return 1;
        default:
            return 2;
    }
}

void set_factors(ImageConversion& conversion, std::span<const double> mean, std::span<const double> std) {
    const std::int64_t channels = conversion.channels;
    if (channels > most_image_channels)
        throw std::invalid_argument("images can have at most " + std::to_string(most_image_channels) +
                                    " channels, got " + std::to_string(channels));
    const bool normalised = !mean.empty() || !std.empty();
    if (normalised && (std::ssize(mean) != channels || std::ssize(std) != channels))
        throw std::invalid_argument("mean and std must both have a value for each of the " +
                                    std::to_string(channels) + " channels, got " +
                                    std::to_string(mean.size()) + " and " + std::to_string(std.size()));
    for (std::size_t channel = 0; channel < static_cast<std::size_t>(channels); ++channel) {
        // Adding -0 changes no number, adding +0 would change -0.
        const auto factors =
            normalised ? normalisation(mean[channel], std[channel], channel) : Normalisation{1, -0.0f};
        conversion.factors.scale[channel] = factors.scale;
        conversion.factors.bias[channel] = factors.bias;
    }
}

void convert_images(const ImageConversion& conversion, const void* source, void* out, int threads) {
    switch (conversion.from) {
        case ImageItem::float32:
            return convert_from<Float32>(conversion, source, out, threads);
        case ImageItem::float16:
            return convert_from<Float16>(conversion, source, out, threads);
        case ImageItem::bfloat16:
            return convert_from<BFloat16>(conversion, source, out, threads);
        case ImageItem::uint8:
            return convert_from<UInt8>(conversion, source, out, threads);
    }
}

}  // namespace hpcai500
