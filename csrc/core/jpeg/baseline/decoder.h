// Samples of a window of a baseline JPEG, MCU row by MCU row. What lies outside is passed over, not decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/grow_buffer.h"
#include "core/jpeg/planar_resize.h"
#include "huffman_table.h"
#include "scan.h"
#include "scan_cursor.h"
#include "seek_points.h"
#include "table_cache.h"

namespace hpcai500::baseline {

/// Decodes one image after the other; one object per thread.
class Decoder final : public PlaneSource {
  public:
    /// Takes a scan, whose data must stay valid until the next one, and points of it where there are any.
    /// False where its codes are not baseline's, or the points not as many as it has.
    bool open(const Scan& scan, const SeekPoints& points = {});

    /// Starts decoding a window. Jumps to the last point before its first row; without points, passes over
    /// all rows above it. Here and in require(), throws Surprise: for data that is not an undamaged image's,
    /// and where what was decoded from one point on does not end at the next one.
    void begin(const SampleWindow& window) override;
    void require(int plane, int row) override;
    const std::uint8_t* row(int plane, int row) const override;
    int first_column(int plane) const override { return left_ * cursor_.component(plane).across * 8; }

    /// Passes over the scan that was opened, and packs points of it, `interval` MCUs apart. Throws Surprise.
    std::vector<std::uint8_t> make_points(int interval);
    int mcus() const { return mcus_across_ * mcus_down_; }

  private:
    void start_stretch();
    void end_stretch();
    void decode_row();

    int mcu_width() const { return 8 * across_; }
    int mcu_height() const { return 8 * down_; }
    int kept_from(int row) const { return row * mcus_across_ + left_; }
    int kept_until(int row) const { return row * mcus_across_ + right_; }
    bool may_hold(int mcus) const;

    TableCache<DifferenceTable> dc_;
    TableCache<CoefficientTable> ac_;
    alignas(64) std::int16_t quantisation_[3][64];
    int across_ = 1, down_ = 1, mcus_across_ = 0, mcus_down_ = 0;
    ScanCursor cursor_;
    SeekPoints points_;

    int left_ = 0, right_ = 0;       ///< MCUs of a row that are kept
    int next_row_ = 0, bottom_ = 0;  ///< MCU rows
    int stretch_bottom_ = 0;         ///< row behind those that are decoded without a jump between them
    int last_point_ = 0;             ///< where these rows end
    std::size_t stretch_end_ = 0;    ///< the file's byte where they do
    std::size_t data_bytes_ = 0;
    int capacity_ = 0;  ///< MCU rows that are held
    GrowBuffer<std::uint8_t> planes_[3];
};

}  // namespace hpcai500::baseline
