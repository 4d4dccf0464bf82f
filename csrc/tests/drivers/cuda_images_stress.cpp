// Conversion of images on the device against its CPU twin, to the bit: all types, layouts and ways that
// memory is walked, odd sizes and addresses, any bits.
#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "core/images/convert_images.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "made_inputs.h"

namespace hpcai500::drivers {
namespace {

std::int64_t some_pixels(Random& random) {
    switch (below(random, 5)) {
        case 0:
            return 1 + below(random, 40);
        case 1:
            return 8 * (1 + below(random, 300));
        case 2:
        case 3:
            return 16 * 260;  // more than a tile of every kernel, where channels are few
        default:
            return 1 + below(random, 1500);
    }
}

ImageLayout some_layout(Random& random) {
    return below(random, 2) == 0 ? ImageLayout::channels_first : ImageLayout::channels_last;
}

ImageConversion some_conversion(Random& random, ImageItem from, ImageItem to) {
    ImageConversion conversion;
    conversion.from = from;
    conversion.to = to;
    conversion.from_layout = some_layout(random);
    conversion.to_layout = some_layout(random);
    conversion.pixels = some_pixels(random);
    constexpr std::int64_t usual[] = {1, 3, 8, 16};
    conversion.channels = below(random, 2) == 0 ? usual[below(random, 4)] : 1 + below(random, 40);
    if (below(random, 40) == 0) conversion.channels = most_image_channels - below(random, 2);
    conversion.images = 1 + below(random, 3);
    if (conversion.pixels * conversion.channels > 30'000) conversion.pixels = 1 + conversion.pixels % 100;
    std::vector<double> mean, std;
    const bool cast_only = below(random, 4) == 0;
    for (std::int64_t channel = 0; channel < (cast_only ? 0 : conversion.channels); ++channel) {
        mean.push_back(static_cast<double>(below(random, 2001) - 1000) / 7);
        std.push_back(static_cast<double>(1 + below(random, 1000)) / 13);
    }
    set_factors(conversion, mean, std);
    return conversion;
}

std::string described(const ImageConversion& shape) {
    std::ostringstream text;
    text << "types " << static_cast<int>(shape.from) << " to " << static_cast<int>(shape.to) << ", layouts "
         << static_cast<int>(shape.from_layout) << " to " << static_cast<int>(shape.to_layout) << ", "
         << shape.images << " x " << shape.channels << " x " << shape.pixels;
    return text.str();
}

void compare(const ImageConversion& shape, const Bytes& device, const Bytes& cpu) {
    const auto item = static_cast<std::size_t>(item_bytes(shape.to));
    const std::uint32_t infinity = shape.to == ImageItem::float32   ? infinite_float
                                   : shape.to == ImageItem::float16 ? infinite_half
                                                                    : infinite_bfloat;
    for (std::size_t at = 0; at < cpu.size(); at += item) {
        const std::uint32_t mine = bits_at(device.data() + at, item, infinity),
                            theirs = bits_at(cpu.data() + at, item, infinity);
        if (mine == theirs) continue;
        std::ostringstream message;
        message << "images: " << described(shape) << ": value " << at / item << " is " << std::hex << mine
                << " on the device, " << theirs << " on the CPU";
        throw std::runtime_error(message.str());
    }
}

// Any bits for floats: small and large, NaN, infinite and subnormal numbers; more of those that are usual.
Bytes some_values(Random& random, const ImageConversion& shape, std::size_t count) {
    Bytes bytes(count * static_cast<std::size_t>(item_bytes(shape.from)));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    if (shape.from != ImageItem::float32 || below(random, 3) == 0) return bytes;
    for (std::size_t at = 0; at < count; ++at) {
        const float value = static_cast<float>(below(random, 200'001) - 100'000) / 64.0f;
        std::memcpy(bytes.data() + 4 * at, &value, 4);
    }
    return bytes;
}

void stress(Random& random, ImageItem from, ImageItem to) {
    const ImageConversion shape = some_conversion(random, from, to);
    const auto count = static_cast<std::size_t>(shape.images * shape.channels * shape.pixels);
    const auto out_item = static_cast<std::size_t>(item_bytes(to));
    const Bytes values = some_values(random, shape, count);
    Bytes expected(count * out_item);
    convert_images(shape, values.data(), expected.data(), 2);

    // An address that is no more than aligned to its items, now and then.
    const auto begin = [&](std::size_t item) { return below(random, 6) == 0 ? item : 0; };
    const Guarded<std::uint8_t> source(begin(static_cast<std::size_t>(item_bytes(from))), values);
    const Guarded<std::uint8_t> out(begin(out_item), expected.size());
    convert_images_cuda(shape, source.data(), out.data(), 0, nullptr);
    compare(shape, out.read(), expected);
}

}  // namespace

void stress_images(int rounds) {
    Random random(16);
    for (int round = 0; round < rounds; ++round)
        for (const ImageItem from :
             {ImageItem::float32, ImageItem::float16, ImageItem::bfloat16, ImageItem::uint8})
            for (const ImageItem to : {ImageItem::float32, ImageItem::float16, ImageItem::bfloat16})
                stress(random, from, to);
}

}  // namespace hpcai500::drivers
