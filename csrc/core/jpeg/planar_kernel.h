// The interface between the resize of planes and its kernels; as that of the other resize (resize_kernel.h).
#pragma once

#include <cstdint>

namespace hpcai500 {

/// Output rows that are made together: one AVX-512 register of floats.
inline constexpr int plane_rows = 16;
/// Samples that are read at a time; the padding behind a row is as long.
inline constexpr int sample_block = 16;

/// One plane of a group of output rows. All its output rows have as many taps, and so have all its output
/// columns, which are in the order of the image and rounded up to 16: weights that are missing are 0.
struct PlanePart {
    const std::uint8_t* const* source_rows;
    int row_taps;
    int first_row[plane_rows];  ///< in source_rows, of output row r
    const float* row_weights;   ///< row_weights[r * row_taps + tap]
    int columns;                ///< of the source
    int column_taps;
    const int* column_start;      ///< in the source, of each output column
    const float* column_weights;  ///< column_weights[column * column_taps + tap]
    float* workspace;             ///< columns, rounded up to sample_block, times plane_rows; 64-byte aligned
};

struct PlaneGroup {
    PlanePart planes[3];
    int plane_count;  ///< 1: grey; 3: Y, Cb, Cr
    float scale[3], bias[3];
    void* image;
    int size, row, rows;
};

}  // namespace hpcai500
