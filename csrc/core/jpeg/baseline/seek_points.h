// Places in entropy-coded data where decoding can begin, as they are kept beside a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace hpcai500::baseline {

/// Between two MCUs: where the next one's first code begins, and what the first DC differences behind it are
/// added to.
struct SeekPoint {
    /// From the beginning of the scan's data, as the file has it: stuffing and markers count.
    std::uint32_t bit = 0;
    std::int16_t predictors[3] = {};

    bool operator==(const SeekPoint&) const = default;
    std::size_t byte() const { return bit / 8; }
    int bits_used() const { return static_cast<int>(bit % 8); }
};

/// What bit of a scan's data a point can name.
inline constexpr std::size_t most_seekable_bytes = std::numeric_limits<std::uint32_t>::max() / 8;

/// The points of one scan, every `interval()` MCUs, read where they lie; nothing of them is known to be true.
///
/// Point i stands before MCU i * interval(). Point 0 is the scan's beginning, and not stored; the last one
/// stands behind the last MCU. In a scan with restart markers each of the others stands behind one:
/// predictors begin anew there, so that nothing would tell of false ones before. Packed: the interval in 4
/// bytes; and 10 bytes a point, its bit in 4 and its predictors in 2 each; all with the least byte first.
class SeekPoints {
  public:
    static constexpr std::size_t header_bytes = 4, point_bytes = 10;

    /// The beginning alone, for a scan of which nothing else is known.
    SeekPoints() = default;
    /// `packed` stays where it is as long as the points are used.
    explicit SeekPoints(std::span<const std::uint8_t> packed);

    /// Whether there are points beside the beginning.
    bool any() const { return !stored_.empty(); }
    /// Whether they can be those of a scan of `mcus` MCUs, with `restart_interval` (0: none) between markers.
    bool suit(int mcus, int restart_interval) const;
    int interval() const { return interval_; }
    std::span<const std::uint8_t> packed() const { return packed_; }

    /// Numbers of points: the last one that is not behind an MCU, and the first one that is not before it.
    int at_or_before(int mcu) const { return mcu / interval_; }
    int at_or_behind(int mcu) const { return mcu / interval_ + (mcu % interval_ != 0 ? 1 : 0); }
    SeekPoint operator[](int number) const;

  private:
    std::span<const std::uint8_t> packed_, stored_;
    int interval_ = std::numeric_limits<int>::max();
};

/// How many MCUs there should be from one point to the next in a file of `file_bytes` with `mcus` MCUs: at
/// least 4, and more where an index would have more than a 25th of the file; a multiple of
/// `restart_interval`, where that is not 0.
int seek_interval(std::size_t file_bytes, int mcus, int restart_interval);

/// Packs points as above.
class SeekPointPacker {
  public:
    explicit SeekPointPacker(int interval);
    void add(const SeekPoint& point);
    std::vector<std::uint8_t> take() { return std::move(packed_); }

  private:
    std::vector<std::uint8_t> packed_;
};

}  // namespace hpcai500::baseline
