// Source rows in, finished image out: one pass that holds only the rows that the next four output rows need.
#pragma once

#include <cstdint>

#include "core/grow_buffer.h"
#include "spec.h"
#include "taps.h"

namespace hpcai500 {

/// Hands out the rows of a region from top to bottom, once.
class RowSource {
  public:
    /// Writes the next `count` rows to rows[0..count), RGBX. Every row has room for row_pixels() rounded up
    /// to 16.
    virtual void read(std::uint8_t* const* rows, int count) = 0;

  protected:
    ~RowSource() = default;
};

/// A part of an image's line or column, and where its pixels may come from: [begin, end) is what fills the
/// output, pixels outside [low, high) do not exist for the filter.
struct Interval {
    double begin, end;
    int low, high;
};

/// What makes a level an output value, for R, G and B: level * scale + bias.
void set_normalisation(const DecodeSpec& spec, float* scale, float* bias);

/// Antialiased bilinear resize with flip, normalisation and conversion; one object per thread, reused for all
/// images.
class Resizer {
  public:
    /// Prepares both axes. Afterwards the region's edges say which source pixels resize() will use.
    void prepare(const Interval& columns, const Interval& rows, int size);

    int left() const { return column_origin_ + column_taps_.first(); }
    int right() const { return column_origin_ + column_taps_.last(); }
    int top() const { return row_origin_ + row_taps_.first(); }
    int bottom() const { return row_origin_ + row_taps_.last(); }

    /// Makes the image. `source` delivers rows top()..bottom(); its first column is image column
    /// `source_left` (at most left()) and a row has `row_pixels` pixels (reaching at least right()).
    void resize(RowSource& source, int source_left, int row_pixels, const DecodeSpec& spec, bool flip,
                void* image);

  private:
    Taps column_taps_, row_taps_;
    int column_origin_ = 0, row_origin_ = 0;
    GrowBuffer<std::uint8_t> ring_;
    GrowBuffer<std::uint8_t*> slots_;
    GrowBuffer<const std::uint8_t*> window_;
    GrowBuffer<int> column_starts_, column_counts_;
    GrowBuffer<float> workspace_;
};

}  // namespace hpcai500
