// What an image becomes: which part of it a sample shows, and the output's size, type and layout. No pixel is
// touched here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/random.h"

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

/// What a value of a channel becomes: value * scale + bias.
struct Normalisation {
    float scale, bias;
};

/// 1 / std and -mean / std, each rounded to float32. Throws std::invalid_argument unless mean is finite, std
/// above 0 and both results are finite, the scale not 0.
Normalisation normalisation(double mean, double std, std::size_t channel);

/// Throws std::invalid_argument, naming the setting, what is allowed and what was given.
void validate(const DecodeSpec& spec);

/// A rectangle in pixels of the source image, origin at its upper left corner. Whole numbers for a random
/// crop, fractions for a centre crop.
struct CropBox {
    double x = 0, y = 0, width = 0, height = 0;
    bool flip = false;
};

/// The box for one sample of an image of width x height pixels (both at least 1).
///
/// Random mode repeats torchvision's RandomResizedCrop. Try t (0-9) reads block t of the sample's draws: word
/// 0 is the area, word 1 the aspect ratio (log-uniform), word 2 the column, word 3 the row. Block 10, word 0
/// is the flip. Ten misses end in the largest central crop whose ratio is allowed.
///
/// Centre mode is "resize the shorter side to resize_shorter, cut size x size from the middle" as one
/// rectangle; it is never flipped.
CropBox crop_box(const DecodeSpec& spec, int width, int height, const SampleKey& key);

/// Throws std::invalid_argument when `box` leaves an image of width x height pixels, or is empty: also where
/// a side is less than an ulp of its place, so that x + width == x.
void validate(const CropBox& box, int width, int height);

}  // namespace hpcai500
