// Planes of Y, Cb and Cr in, finished image out: chroma is brought to the output's size in one step, colours
// are converted there, and only the rows that the next sixteen output rows need are held.
#pragma once

#include <cstdint>

#include "core/grow_buffer.h"
#include "planar_kernel.h"
#include "resize.h"
#include "spec.h"
#include "taps.h"

namespace hpcai500 {

/// Samples that a resize will use, in those of luma, and how many rows of them it holds at a time.
struct SampleWindow {
    int left, right, top, bottom;
    int held_rows;
};

/// Hands out the rows of one plane or three, from top to bottom.
class PlaneSource {
  public:
    virtual void begin(const SampleWindow& window) = 0;
    /// Makes rows up to `row`, which is one of the plane's own, and forgets what is held_rows above it.
    virtual void require(int plane, int row) = 0;
    /// A row that was required last. Column 0 is first_column(); readable up to the window's right edge and
    /// 16 bytes on.
    virtual const std::uint8_t* row(int plane, int row) const = 0;
    virtual int first_column(int plane) const = 0;

  protected:
    ~PlaneSource() = default;
};

/// What the planes of an image look like. Grey has one.
struct PlaneShape {
    int width, height;  ///< of luma
    int planes;
    int across, down;  ///< luma samples to one of chroma, 1 or 2
};

/// Antialiased bilinear resize, as Resizer does it, of planes. Chroma is what libjpeg's triangle filter
/// ("fancy upsampling") makes of it before it is resized, without that step's rounding: both are sums, and
/// one sum does both. Levels are cut to 0 to 255 once, at the output's size.
class PlanarResizer {
  public:
    void resize(PlaneSource& source, const PlaneShape& shape, const Interval& columns, const Interval& rows,
                const DecodeSpec& spec, bool flip, void* image);

  private:
    /// Taps of one plane on one axis, and where their place 0 is.
    struct Axis {
        const Taps* taps = nullptr;
        int origin = 0;
        int first() const { return origin + taps->first(); }
        int last() const { return origin + taps->last(); }
    };

    void prepare(const PlaneShape& shape, const Interval& columns, const Interval& rows, int size);
    SampleWindow window(const PlaneShape& shape, int size) const;
    void set_columns(PlaneGroup& group, const PlaneSource& source, int planes, int size, bool flip);
    void set_rows(PlaneGroup& group, PlaneSource& source, int planes);

    Taps column_taps_, row_taps_, chroma_column_taps_, chroma_row_taps_;
    Axis columns_[3], rows_[3];
    int skipped_[3];
    GrowBuffer<int> starts_[3];
    GrowBuffer<float> column_weights_[3], row_weights_[3], workspace_[3];
    GrowBuffer<const std::uint8_t*> window_[3];
};

}  // namespace hpcai500
