// Group norm on the device against its definition in double precision: all types, odd numbers of pixels, few
// and many channels and groups, means far from 0.
#include <cmath>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/norms/group_norm.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "made_inputs.h"

namespace hpcai500::drivers {
namespace {

struct Case {
    GroupNormShape shape;
    float epsilon = 1e-5f;

    std::int64_t values() const { return shape.images * shape.pixels * shape.channels; }
    std::size_t item() const { return shape.item == NormItem::float32 ? 4 : 2; }
    /// Largest relative error of a value that is rounded to the type.
    double step() const {
        return shape.item == NormItem::float32 ? 1e-6 : shape.item == NormItem::float16 ? 0x1p-11 : 0x1p-8;
    }
    /// The group of a value, counted over all images.
    std::int64_t group(std::int64_t at) const {
        const std::int64_t image = at / shape.channels / shape.pixels;
        return image * shape.groups + at % shape.channels / (shape.channels / shape.groups);
    }
};

Case some_case(Random& random, NormItem item) {
    GroupNormShape shape{item, 1 + below(random, 2), 1, 8 * (1 + below(random, 32)), 1};
    // More runs of channels than a block has threads, now and then.
    if (below(random, 6) == 0) shape.channels = 8 * (250 + below(random, 20));
    shape.pixels = 1 + below(random, 16'000 / shape.channels);
    constexpr int usual[] = {1, 2, 4, 8};
    shape.groups = shape.channels <= 16 ? shape.channels : usual[below(random, 4)];
    return {shape};
}

// By way of the type, so that both sides see the same number. float16 and bfloat16 by their definitions.
float as_float(const Bytes& bytes, std::int64_t at, NormItem item) {
    if (item == NormItem::float32) {
        float value;
        std::memcpy(&value, bytes.data() + 4 * at, 4);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * at, 2);
    if (item == NormItem::bfloat16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                     : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return bits >> 15 != 0 ? -size : size;
}

/// Finite numbers of some size about `centre`.
Bytes some_values(Random& random, const Case& one, double centre) {
    Bytes bytes(static_cast<std::size_t>(one.values()) * one.item());
    for (std::int64_t at = 0; at < one.values(); ++at) {
        const auto value = static_cast<float>(centre + static_cast<double>(below(random, 4001) - 2000) / 700);
        const auto bits = std::bit_cast<std::uint32_t>(value);
        if (one.shape.item == NormItem::float32) {
            std::memcpy(bytes.data() + 4 * at, &bits, 4);
            continue;
        }
        auto bits_of_type = static_cast<std::uint16_t>(bits >> 16);
        if (one.shape.item == NormItem::float16) {
            const int exponent = static_cast<int>(bits >> 23 & 255) - 112;
            const std::uint32_t sign = bits >> 16 & 0x8000;
            bits_of_type = static_cast<std::uint16_t>(
                exponent < 1 ? sign
                             : sign | static_cast<std::uint32_t>(exponent) << 10 | (bits >> 13 & 1023));
        }
        std::memcpy(bytes.data() + 2 * at, &bits_of_type, 2);
    }
    return bytes;
}

std::vector<float> some_floats(Random& random, std::int64_t count) {
    std::vector<float> values;
    for (std::int64_t at = 0; at < count; ++at)
        values.push_back(static_cast<float>(below(random, 401) - 200) / 100);
    return values;
}

struct Expected {
    std::vector<double> out, gradient, sums, mean, inverse;
};

Expected expected_of(const Case& one, const Bytes& images, const Bytes& slopes,
                     const std::vector<float>& weight, const std::vector<float>& bias) {
    const GroupNormShape& shape = one.shape;
    const auto groups = static_cast<std::size_t>(shape.images * shape.groups);
    const double count = static_cast<double>(shape.pixels) * (shape.channels / shape.groups);
    const auto channels = static_cast<std::size_t>(shape.channels);
    Expected result{{},
                    {},
                    std::vector<double>(2 * static_cast<std::size_t>(shape.images) * channels),
                    std::vector<double>(groups),
                    std::vector<double>(groups)};
    std::vector<double> variance(groups), first(groups), second(groups);
    const auto value = [&](std::int64_t at) { return static_cast<double>(as_float(images, at, shape.item)); };
    const auto slope = [&](std::int64_t at) { return static_cast<double>(as_float(slopes, at, shape.item)); };
    const auto group = [&](std::int64_t at) { return static_cast<std::size_t>(one.group(at)); };
    const auto channel = [&](std::int64_t at) { return static_cast<std::size_t>(at % shape.channels); };
    for (std::int64_t at = 0; at < one.values(); ++at) result.mean[group(at)] += value(at) / count;
    for (std::int64_t at = 0; at < one.values(); ++at) {
        const double off = value(at) - result.mean[group(at)];
        variance[group(at)] += off * off / count;
    }
    for (std::size_t at = 0; at < groups; ++at)
        result.inverse[at] = 1 / std::sqrt(variance[at] + static_cast<double>(one.epsilon));
    const auto normal = [&](std::int64_t at) {
        return (value(at) - result.mean[group(at)]) * result.inverse[group(at)];
    };
    for (std::int64_t at = 0; at < one.values(); ++at) {
        const auto w = static_cast<double>(weight[channel(at)]);
        result.out.push_back(normal(at) * w + static_cast<double>(bias[channel(at)]));
        first[group(at)] += w * slope(at) / count;
        second[group(at)] += w * slope(at) * normal(at) / count;
        const auto image = static_cast<std::size_t>(at / shape.channels / shape.pixels);
        result.sums[image * channels + channel(at)] += slope(at);
        result.sums[(static_cast<std::size_t>(shape.images) + image) * channels + channel(at)] +=
            slope(at) * normal(at);
    }
    for (std::int64_t at = 0; at < one.values(); ++at)
        result.gradient.push_back(result.inverse[group(at)] *
                                  (static_cast<double>(weight[channel(at)]) * slope(at) - first[group(at)] -
                                   normal(at) * second[group(at)]));
    return result;
}

void compare(const Case& one, const char* what, double found, double expected, double tolerance,
             std::size_t at) {
    if (std::abs(found - expected) <= tolerance) return;
    std::ostringstream message;
    message << "norms: " << what << ' ' << at << " of " << one.shape.images << " x " << one.shape.pixels
            << " x " << one.shape.channels << " in " << one.shape.groups << " groups, type "
            << static_cast<int>(one.shape.item) << ", is " << found << " on the device, not " << expected;
    throw std::runtime_error(message.str());
}

void stress(Random& random, NormItem item) {
    const Case one = some_case(random, item);
    const GroupNormShape& shape = one.shape;
    const auto count = static_cast<std::size_t>(one.values());
    // A float16 has 11 bits for the distance from 0 and the spread together.
    const double centre = below(random, 3) == 0 ? (item == NormItem::float32 ? 1000.0 : 8.0) : 0.25;
    const Bytes images = some_values(random, one, centre), slopes = some_values(random, one, 0.1);
    const std::vector<float> weight = some_floats(random, shape.channels),
                             bias = some_floats(random, shape.channels);
    const Expected expected = expected_of(one, images, slopes, weight, bias);

    const DeviceBuffer<std::uint8_t> x(images), dy(slopes), y(images.size()), dx(images.size());
    const DeviceBuffer<float> w(weight), b(bias);
    const auto groups = static_cast<std::size_t>(shape.images * shape.groups);
    const DeviceBuffer<float> moments(2 * groups), sums(expected.sums.size());
    const DeviceBuffer<std::uint8_t> workspace(group_norm_cuda_workspace(shape));
    const GroupNormMemory memory{x.data(), w.data(), moments.data(), workspace.data()};
    group_norm_cuda(shape, one.epsilon, memory, b.data(), y.data(), 0, nullptr);
    group_norm_backward_cuda(shape, memory, dy.data(), dx.data(), sums.data(), 0, nullptr);

    const std::vector<float> found_moments = moments.read(), found_sums = sums.read();
    double largest = 0;
    for (std::size_t at = 0; at < groups; ++at) {
        compare(one, "mean", static_cast<double>(found_moments[at]), expected.mean[at],
                1e-6 * (1 + std::abs(expected.mean[at])), at);
        compare(one, "inverse", static_cast<double>(found_moments[groups + at]), expected.inverse[at],
                1e-4 * expected.inverse[at], at);
        largest = std::max(largest, expected.inverse[at]);
    }
    // What float32 loses of a value that is far from 0 grows with the inverse.
    const double lost = 2e-6 * (1 + std::abs(centre)) * (1 + largest);
    const Bytes out = y.read(), gradient = dx.read();
    for (std::size_t at = 0; at < count; ++at) {
        const auto place = static_cast<std::int64_t>(at);
        compare(one, "output", static_cast<double>(as_float(out, place, item)), expected.out[at],
                one.step() * std::abs(expected.out[at]) + 2 * lost + 1e-4, at);
        compare(one, "gradient", static_cast<double>(as_float(gradient, place, item)), expected.gradient[at],
                one.step() * std::abs(expected.gradient[at]) + 10 * lost * (1 + largest) + 1e-4, at);
    }
    for (std::size_t at = 0; at < expected.sums.size(); ++at)
        compare(one, "sum", static_cast<double>(found_sums[at]), expected.sums[at],
                static_cast<double>(shape.pixels) * (1e-5 + 3 * lost), at);
}

}  // namespace

void stress_norms(int rounds) {
    Random random(1803);
    for (int round = 0; round < rounds; ++round)
        for (const NormItem item : {NormItem::float32, NormItem::float16, NormItem::bfloat16})
            stress(random, item);
}

}  // namespace hpcai500::drivers
