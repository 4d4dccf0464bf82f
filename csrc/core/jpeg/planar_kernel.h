// The interface between the resize of planes and its kernels; as that of the other resize (resize_kernel.h).
#pragma once

#include <cstdint>

namespace hpcai500 {

/// Output rows that are made together: one AVX-512 register of floats.
inline constexpr int plane_rows = 16;
/// Samples that are read at a time; the padding behind a row is as long.
inline constexpr int sample_block = 16;

/// One plane of a group of output rows. Fields as in RowGroup.
struct PlanePart {
    const std::uint8_t* const* source_rows;
    int first_row[plane_rows];
    int row_count[plane_rows];
    const float* row_weights[plane_rows];
    int columns;
    const int* column_start;
    const int* column_count;
    const float* column_weights;
    int weight_stride;
    float* workspace;  ///< columns, rounded up to sample_block, times plane_rows; 64-byte aligned
};

struct PlaneGroup {
    PlanePart planes[3];
    int plane_count;  ///< 1: grey; 3: Y, Cb, Cr
    bool flip;
    float scale[3], bias[3];
    void* image;
    int size, row, rows;
};

}  // namespace hpcai500
