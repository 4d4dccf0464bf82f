// Which part of an image a sample shows. Pure mathematics: no pixel is touched here.
#pragma once

#include "core/random.h"
#include "spec.h"

namespace hpcai500 {

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

}  // namespace hpcai500
