// What our JPEG decoder makes of a scan, for the fuzz targets: the samples of a window, as the resize asks
// for them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/jpeg/baseline/decoder.h"
#include "fuzz_input.h"

namespace hpcai500 {

// A few bytes can claim 65,500 x 4,000 pixels, which are legal and slow.
inline constexpr int most_fuzzed_pixels = 1 << 16;

constexpr int divide_up(int value, int by) {
    return (value + by - 1) / by;
}

struct ScanShape {
    explicit ScanShape(const baseline::Scan& scan)
        : width(scan.width),
          height(scan.height),
          planes(scan.component_count),
          scan_across(scan.across),
          scan_down(scan.down) {}
    int across(int plane) const { return plane == 0 ? scan_across : 1; }
    int down(int plane) const { return plane == 0 ? scan_down : 1; }
    int mcu_width() const { return 8 * scan_across; }
    int mcu_height() const { return 8 * scan_down; }
    int mcu_rows() const { return divide_up(height, mcu_height()); }

    int width, height, planes, scan_across, scan_down;
};

/// Whole MCUs of the rows that were taken, and how many MCU rows that were.
struct Taken {
    int rows = 0;
    std::vector<std::vector<std::uint8_t>> planes;
    bool operator==(const Taken&) const = default;
};

/// Decodes a scan up to pixel column `right` and row `bottom`.
Taken take(baseline::Decoder& decoder, const baseline::Scan& scan, int right, int bottom);

/// A window's samples, row by row of each group of held rows; and where the scan was refused, none from that
/// group on.
struct TakenWindow {
    bool refused = false;
    int rows = 0;  ///< of pixels
    std::vector<std::uint8_t> samples;
    bool operator==(const TakenWindow&) const = default;
};

/// Decodes a window; nothing where the points are no points of such a scan.
std::optional<TakenWindow> take_window(baseline::Decoder& decoder, const baseline::Scan& scan,
                                       const baseline::SeekPoints& points, const SampleWindow& window);

/// The same part of what was taken without a window.
std::vector<std::uint8_t> part_of(const Taken& taken, const ScanShape& shape, const SampleWindow& window,
                                  int rows);

SampleWindow choose_window(const ScanShape& shape, Choices& choices);

}  // namespace hpcai500
