#include "spec.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "core/threads.h"

namespace hpcai500 {
namespace {

template <class... Parts>
void require(bool holds, const Parts&... parts) {
    if (holds) return;
    std::ostringstream message;
    (message << ... << parts);
    throw std::invalid_argument(message.str());
}

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

Normalisation normalisation(double mean, double std, std::size_t channel) {
    const DefaultArithmetic arithmetic;
    const Normalisation result{static_cast<float>(1.0 / std), static_cast<float>(-mean / std)};
    require(std > 0 && std::isfinite(result.scale) && std::isfinite(result.bias) && result.scale != 0,
            "mean must be finite and std above 0, and 1 / std and mean / std within float32, got mean ", mean,
            " and std ", std, " for channel ", channel);
    return result;
}

void validate(const DecodeSpec& spec) {
    // 16384 squared times 3 channels of 4 bytes is 3 GiB an image: above it a size is a mistake, not a wish.
    constexpr int largest = 16384;
    require(spec.size >= 1 && spec.size <= largest, "size must be in [1, ", largest, "], got ", spec.size);
    require(spec.resize_shorter >= 1 && spec.resize_shorter <= largest, "resize_shorter must be in [1, ",
            largest, "], got ", spec.resize_shorter);
    require(spec.mode == CropMode::random || spec.size <= spec.resize_shorter,
            "a centre crop needs size <= resize_shorter, got size ", spec.size, " and resize_shorter ",
            spec.resize_shorter);
    require(spec.area[0] > 0 && spec.area[0] <= spec.area[1] && spec.area[1] <= 1,
            "area must satisfy 0 < low <= high <= 1, got (", spec.area[0], ", ", spec.area[1], ")");
    require(spec.ratio[0] > 0 && spec.ratio[0] <= spec.ratio[1] && std::isfinite(spec.ratio[1]),
            "ratio must satisfy 0 < low <= high, both finite, got (", spec.ratio[0], ", ", spec.ratio[1],
            ")");
    require(spec.flip_probability >= 0 && spec.flip_probability <= 1,
            "flip_probability must be in [0, 1], got ", spec.flip_probability);
    for (std::size_t channel = 0; channel < 3; ++channel)
        normalisation(spec.mean[channel], spec.std[channel], channel);
}

CropBox crop_box(const DecodeSpec& spec, int width, int height, const SampleKey& key) {
    if (spec.mode == CropMode::centre) return centre_box(spec, width, height);
    CropBox box = random_box(spec, width, height, key);
    box.flip = unit_interval(draw(key, flip_block)[0]) < spec.flip_probability;
    return box;
}

void validate(const CropBox& box, int width, int height) {
    const double right = box.x + box.width, bottom = box.y + box.height;
    const bool inside = box.x >= 0 && box.y >= 0 && right <= width && bottom <= height;
    // A side may be more than 0 and yet be lost in the sum.
    const bool empty = !(right > box.x && bottom > box.y);
    if (inside && !empty) return;
    std::ostringstream message;
    message << "box must lie inside the image of " << width << " x " << height << " pixels";
    if (empty) message << ", and x + width beyond x, y + height beyond y: make both sides a pixel or more";
    message << "; got x " << box.x << ", y " << box.y << ", width " << box.width << ", height " << box.height;
    throw std::invalid_argument(message.str());
}

}  // namespace hpcai500
