// What an image becomes: the crop's rule, the output's size, type and layout.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hpcai500 {

enum class CropMode { random, centre };
enum class DType { float32, float16, bfloat16, uint8 };
enum class Layout { nchw, nhwc };
/// Who decodes: ours what it knows, and libjpeg-turbo the rest; or libjpeg-turbo all.
enum class JpegDecoder { own, libjpeg_turbo };

constexpr std::size_t item_size(DType dtype) {
    return dtype == DType::float32 ? 4 : dtype == DType::uint8 ? 1 : 2;
}

/// Settings of one image pipeline. `mean` and `std` are in levels (0-255), in the order R, G, B; uint8 output
/// keeps the levels as they are and ignores both.
struct DecodeSpec {
    int size = 224;
    CropMode mode = CropMode::random;
    std::array<double, 2> area = {0.05, 1.0};
    std::array<double, 2> ratio = {3.0 / 4.0, 4.0 / 3.0};
    double flip_probability = 0.5;
    int resize_shorter = 256;
    std::array<double, 3> mean = {123.675, 116.28, 103.53};
    std::array<double, 3> std = {58.395, 57.12, 57.375};
    DType dtype = DType::float32;
    Layout layout = Layout::nchw;
    bool dct_scaling = false;
    JpegDecoder decoder = JpegDecoder::own;

    std::size_t image_bytes() const {
        return std::size_t{3} * static_cast<std::size_t>(size) * static_cast<std::size_t>(size) *
               item_size(dtype);
    }
};

/// Throws std::invalid_argument, naming the setting, what is allowed and what was given.
void validate(const DecodeSpec& spec);

}  // namespace hpcai500
