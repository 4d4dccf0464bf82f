// The interface between NMS, RoIAlign and their inner loops (detection_kernel.inl), which are compiled for
// each instruction set. Plain pointers and numbers only, as in resize_kernel.h. Every value is computed by
// the same operations in the same order in each of them.
#pragma once

#include <cstdint>

namespace hpcai500 {

/// Boxes are handled in blocks of this many; columns are padded to it.
inline constexpr int box_block = 64;
/// Channels that one pass over a roi handles where channels are the fastest axis.
inline constexpr int channel_block = 64;

/// Boxes by column, sorted, 64-byte aligned, padded to a multiple of box_block with NaN.
template <class Real>
struct BoxColumns {
    const Real *x1, *y1, *x2, *y2, *area;
};

/// Sets marks[j] to -1 for each j in [begin, end) that a keeper overlaps by more than `threshold`. Both ends
/// are multiples of box_block. Marks have the size of a coordinate, so that both fill vectors alike.
template <class Real, class Mark>
using Suppress = void (*)(const BoxColumns<Real>& boxes, const int* keepers, int count, int begin, int end,
                          Real threshold, Mark* marks);

/// Bin b is the sum of weight[t] * pixel index[t] over t in [begin[b], begin[b + 1]).
template <class Real>
struct AxisTapsView {
    const int* begin;
    const int* index;
    const Real* weight;
};

/// One roi: taps of its rows and columns, and how many bins each axis has. All columns that it uses are in
/// [column_begin, column_end).
template <class Real>
struct RoiTaps {
    AxisTapsView<Real> rows, columns;
    int row_bins, column_bins;
    int column_begin, column_end;
};

/// Forward: one roi, `channels` channels.
template <class Real>
struct PoolCall {
    RoiTaps<Real> taps;
    const void* image;  ///< its first element; rows of `width` pixels, channels first or last
    std::int64_t channels, height, width;
    void* pooled;  ///< channels x row_bins x column_bins
    /// 64-byte aligned; width + channel_block + column_bins or column_bins * channel_block values, the
    /// larger.
    Real* workspace;
    void* narrow_workspace;  ///< as many values of the feature type
};

/// Backward: adds one roi's gradient to a tile of `channels` channels and rows [row_begin, row_end).
template <class Real>
struct SpreadCall {
    RoiTaps<Real> taps;
    const void* gradient;  ///< of the tile's first channel: channels x row_bins x column_bins
    int channels, row_begin, row_end;
    std::int64_t width;
    /// Channels first: channels x rows x width. Last: rows x width x channel_block, unused channels at the
    /// end.
    Real* tile;
    Real* workspace;  ///< as in PoolCall
};

/// By feature type and layout. The first index is 0 float32, 1 float16, 2 bfloat16; the second 0 for channels
/// first, 1 for channels last.
struct DetectionKernel {
    Suppress<float, std::int32_t> suppress_float;
    Suppress<double, std::int64_t> suppress_double;
    void (*pool_float[3][2])(const PoolCall<float>&);
    void (*pool_double[2])(const PoolCall<double>&);
    void (*spread_float[3][2])(const SpreadCall<float>&);
    void (*spread_double[2])(const SpreadCall<double>&);
    /// Rounds `count` values to the feature type, to nearest even.
    void (*narrow[3])(const float* from, void* to, std::int64_t count);
};

}  // namespace hpcai500
