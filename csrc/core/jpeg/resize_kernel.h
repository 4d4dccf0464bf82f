// The interface between the resize and its kernels (resize_kernel.inl, planar_kernel.inl), which are compiled
// for each instruction set (core/vectors); which one runs is decided once, at run time.
#pragma once

#include <cstdint>

#include "planar_kernel.h"

namespace hpcai500 {

/// Output rows that are made together: 4 rows of 4 channels are 16 floats, one AVX-512 register.
inline constexpr int group_rows = 4;
/// Floats a source column takes in the workspace between the vertical and the horizontal pass.
inline constexpr int column_floats = 16;
/// Kernels read whole blocks of this many pixels: rows and workspace are padded to it.
inline constexpr int block_pixels = 16;

/// One group of output rows. Plain pointers and numbers only: the kernels' translation units are compiled for
/// newer processors, so they must not instantiate inline functions that the linker could pick for the rest of
/// the program.
struct RowGroup {
    // Vertical pass. Row r is the weighted sum of source rows source_rows[first_row[r] + k], k <
    // row_count[r].
    const std::uint8_t* const*
        source_rows;  ///< RGBX, 4 bytes a pixel, readable up to a multiple of block_pixels
    int first_row[group_rows];
    int row_count[group_rows];
    const float* row_weights[group_rows];

    // Horizontal pass. Tables over output columns; weights of column i start at column_weights + i *
    // weight_stride.
    int columns;  ///< source pixels of a row that are used
    const int* column_start;
    const int* column_count;
    const float* column_weights;
    int weight_stride;
    bool flip;

    float* workspace;  ///< columns, padded to block_pixels, times column_floats; 64-byte aligned

    // Output.
    float scale[3], bias[3];  ///< output = level * scale + bias, for R, G, B
    void* image;              ///< first element of the image
    int size;                 ///< width and height of the image
    int row;                  ///< output row of the group's first row
    int rows;                 ///< rows of the group that exist; the last group may be short
};

struct ResizeKernel {
    /// One function per output type and layout: [DType][Layout].
    void (*resize_rows[4][2])(const RowGroup&);
    void (*resize_planes[4][2])(const PlaneGroup&);
    /// To be called after an image's last group: stores that bypass the cache are not ordered by a mutex.
    void (*publish)();
};

}  // namespace hpcai500
