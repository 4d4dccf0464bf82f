// Samples of a window of a baseline JPEG, MCU row by MCU row. What lies outside is passed over, not decoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/grow_buffer.h"
#include "core/jpeg/planar_resize.h"
#include "core/jpeg/seek_index.h"
#include "huffman_table.h"
#include "kernel.h"

namespace hpcai500::baseline {

struct ScanComponent {
    HuffmanCode dc, ac;
    std::int16_t quantisation[64];  ///< in the order of a block's rows
};

/// One scan of 8-bit grey, or of Y, Cb and Cr, whose chroma has all samples of a line or every second: what
/// the header said of it, and its data.
struct Scan {
    int width, height;     ///< pixels
    int component_count;   ///< 1 or 3
    int across, down;      ///< luma samples to one of chroma: 1 x 1, 2 x 1 or 2 x 2
    int restart_interval;  ///< MCUs; 0 for none
    ScanComponent components[3];
    std::span<const std::uint8_t> data;  ///< behind the scan's header
};

struct Unstuffed {
    std::size_t read;     ///< bytes of the file; a marker, or the file's end, follows them
    std::size_t written;  ///< bytes without stuffing
};

/// Copies entropy-coded data until the next marker, without the zeros that stand behind each 0xFF (T.81,
/// F.1.2.3), and padding_bytes zeros behind it. `out` has room for data.size() + padding_bytes.
Unstuffed unstuff(std::span<const std::uint8_t> data, std::uint8_t* out);

/// Thrown where data is not what an undamaged baseline image has. libjpeg-turbo decides what becomes of it.
struct Surprise {};

/// A place in a scan that moves from MCU to MCU: through restart markers, and from seek point to seek point.
class ScanCursor {
  public:
    /// Takes the data of a scan, which must stay valid, and the MCUs between two restart markers (0: there
    /// are none). Each component() is to be filled, and start() called.
    void open(std::span<const std::uint8_t> data, int component_count, int restart_interval);
    Component& component(int number) { return scan_.components[number]; }
    const Component& component(int number) const { return scan_.components[number]; }
    int component_count() const { return scan_.component_count; }
    std::size_t data_bytes() const { return data_.size(); }

    /// Goes to `point`, before MCU `mcu`. Data from `end` on is not looked at. A point that is wrong leads to
    /// wrong samples or to a Surprise, and never out of the data. In a scan with restart markers it stands
    /// behind one.
    void start(int mcu, const SeekPoint& point, std::size_t end);
    void start() { start(0, {}, data_.size()); }
    /// The end for start(), of what is decoded up to `point`.
    std::size_t end_before(const SeekPoint& point) const;

    int mcu() const { return mcu_; }
    /// Passes over `mcus` MCUs, or decodes them to Component::samples; both throw Surprise.
    void pass(int mcus) { run(mcus, -1); }
    void decode(int mcus) { run(mcus, 0); }

    /// Goes over a restart marker that comes next. An MCU must follow; throws Surprise.
    void cross_restart();
    /// Whether this place is `point`, having started for end_before(point).
    bool is_at(const SeekPoint& point) const;
    /// This place, having started at the beginning.
    SeekPoint here();

  private:
    bool follows_marker() const;
    void run(int mcus, int column);
    void read_interval();

    std::span<const std::uint8_t> data_;
    int restart_interval_ = 0;

    std::span<const std::uint8_t> unread_;  ///< what was not unstuffed yet
    GrowBuffer<std::uint8_t> unstuffed_;
    ScanState scan_{};
    int mcu_ = 0, until_restart_ = 0;

    // Bytes of the interval that here() has looked through, and where in data_ the byte behind them is.
    std::size_t looked_through_ = 0, byte_ = 0;
};

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

    TableCache dc_{CodeKind::differences};
    TableCache ac_{CodeKind::coefficients};
    alignas(64) std::int16_t quantisation_[3][64];
    int across_ = 1, down_ = 1, mcus_across_ = 0, mcus_down_ = 0;
    ScanCursor cursor_;
    SeekPoints points_;

    int left_ = 0, right_ = 0;       ///< MCUs of a row that are kept
    int next_row_ = 0, bottom_ = 0;  ///< MCU rows
    int stretch_bottom_ = 0;         ///< row behind those that are decoded without a jump between them
    int last_point_ = 0;             ///< where these rows end
    std::size_t stretch_end_ = 0;    ///< the file's byte where they do
    int capacity_ = 0;               ///< MCU rows that are held
    GrowBuffer<std::uint8_t> planes_[3];
};

}  // namespace hpcai500::baseline
