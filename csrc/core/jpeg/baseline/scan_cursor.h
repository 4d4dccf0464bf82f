// A place in a scan that moves from MCU to MCU: through restart markers, and from seek point to seek point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/grow_buffer.h"
#include "kernel.h"
#include "seek_points.h"

namespace hpcai500::baseline {

/// Thrown where data is not what an undamaged baseline image has. libjpeg-turbo decides what becomes of it.
struct Surprise {};

class ScanCursor {
  public:
    /// Takes the data of a scan, which must stay valid, and the MCUs between two restart markers (0: there
    /// are none). Each component() is to be filled, and start() called.
    void open(std::span<const std::uint8_t> data, int component_count, int restart_interval);
    Component& component(int number) { return scan_.components[number]; }
    const Component& component(int number) const { return scan_.components[number]; }
    int component_count() const { return scan_.component_count; }

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

}  // namespace hpcai500::baseline
