#include "crop.h"

#include <algorithm>
#include <cmath>

namespace hpcai500 {
namespace {

constexpr std::uint32_t tries = 10;
constexpr std::uint32_t flip_block = tries;

// std::nearbyint rounds halves to even, as Python's round() does: the tests' twin must find the same box.
double round_half_even(double value) {
    return std::nearbyint(value);
}

CropBox central_fallback(const DecodeSpec& spec, int width, int height) {
    const double image_ratio = static_cast<double>(width) / height;
    double crop_width = width, crop_height = height;
    if (image_ratio < spec.ratio[0]) {
        crop_height = round_half_even(crop_width / spec.ratio[0]);
    } else if (image_ratio > spec.ratio[1]) {
        crop_width = round_half_even(crop_height * spec.ratio[1]);
    }
    // A ratio range that excludes every whole-pixel box (1 x 5000 pixels, ratio at most 1/10000) rounds to
    // nothing.
    crop_width = std::clamp(crop_width, 1.0, static_cast<double>(width));
    crop_height = std::clamp(crop_height, 1.0, static_cast<double>(height));
    return {std::floor((width - crop_width) / 2), std::floor((height - crop_height) / 2), crop_width,
            crop_height, false};
}

CropBox random_box(const DecodeSpec& spec, int width, int height, const SampleKey& key) {
    const double image_area = static_cast<double>(width) * height;
    const double log_low = std::log(spec.ratio[0]), log_high = std::log(spec.ratio[1]);
    for (std::uint32_t attempt = 0; attempt < tries; ++attempt) {
        const PhiloxBlock words = draw(key, attempt);
        const double area =
            image_area * (spec.area[0] + (spec.area[1] - spec.area[0]) * unit_interval(words[0]));
        const double ratio = std::exp(log_low + (log_high - log_low) * unit_interval(words[1]));
        const double crop_width = round_half_even(std::sqrt(area * ratio));
        const double crop_height = round_half_even(std::sqrt(area / ratio));
        if (crop_width < 1 || crop_width > width || crop_height < 1 || crop_height > height) continue;
        const auto columns = static_cast<std::uint32_t>(width - crop_width) + 1;
        const auto rows = static_cast<std::uint32_t>(height - crop_height) + 1;
        return {static_cast<double>(below(words[2], columns)), static_cast<double>(below(words[3], rows)),
                crop_width, crop_height, false};
    }
    return central_fallback(spec, width, height);
}

CropBox centre_box(const DecodeSpec& spec, int width, int height) {
    // Multiplied before divided: exact where size equals resize_shorter, so the box can't leave the image.
    const double side = static_cast<double>(std::min(width, height)) * spec.size / spec.resize_shorter;
    return {(width - side) / 2, (height - side) / 2, side, side, false};
}

}  // namespace

CropBox crop_box(const DecodeSpec& spec, int width, int height, const SampleKey& key) {
    if (spec.mode == CropMode::centre) return centre_box(spec, width, height);
    CropBox box = random_box(spec, width, height, key);
    box.flip = unit_interval(draw(key, flip_block)[0]) < spec.flip_probability;
    return box;
}

}  // namespace hpcai500
