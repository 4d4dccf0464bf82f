// Samples of a JPEG file's scan, for the fuzz targets: what libjpeg-turbo makes of it before chroma is
// upsampled, and what our decoder does, in the window that the resize asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/jpeg/baseline/decoder.h"
#include "core/jpeg/libjpeg.h"
#include "fuzz_input.h"

namespace hpcai500 {

/// Samples of an image, in whole blocks.
struct RawPlane {
    int width = 0, height = 0;  ///< samples that libjpeg makes: whole blocks
    std::ptrdiff_t stride = 0;  ///< whole MCUs
    std::vector<std::uint8_t> samples;

    const std::uint8_t* row(int row) const { return samples.data() + row * stride; }
};

/// One image after the other: open(), then decode() or coefficients().
class RawJpeg {
  public:
    RawJpeg();
    ~RawJpeg();
    RawJpeg(const RawJpeg&) = delete;
    RawJpeg& operator=(const RawJpeg&) = delete;

    /// The scan, where the header is one that our decoder takes. Throws DecodeError.
    std::optional<baseline::Scan> open(std::span<const std::uint8_t> data);

    /// Decodes until libjpeg complains. Returns the MCU rows before that.
    int decode(std::vector<RawPlane>& planes);

    /// Reads coefficients instead of samples, of damaged data, too; valid until the next open().
    void read_coefficients(std::span<const std::uint8_t> data);
    /// Whether the samples of a block depend on the order in which sums are cut to 16 bits. Places in blocks.
    bool is_wild(int plane, int row, int column);
    bool has_wild_blocks();

  private:
    void create();
    const JCOEF* block(int plane, int row, int column);
    void decode_rows(std::vector<RawPlane>& planes, int rows, int& clean);

    JpegErrors errors_;
    jpeg_decompress_struct decompressor_;
    jpeg_source_mgr source_;
    std::vector<std::uint8_t> ended_;
    jvirt_barray_ptr* coefficients_ = nullptr;
};

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
