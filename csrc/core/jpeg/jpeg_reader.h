// libjpeg-turbo behind a class: headers, and the rows of a window, as RGBX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/failure.h"
#include "core/jpeg/baseline/decoder.h"
#include "resize.h"

namespace hpcai500 {

/// What the header says. `sampling` lists each component's factors, "2x2,1x1,1x1" for 4:2:0.
struct JpegHeader {
    int width = 0, height = 0, components = 0;
    std::string colour_space;
    bool progressive = false;
    std::string sampling;
};

/// Pixel columns [left, right) and rows [top, bottom) of the decoded (perhaps scaled) image.
struct PixelWindow {
    int left, right, top, bottom;
};

/// Decodes JPEG images one after the other; one object per thread. libjpeg-turbo's own object is created
/// once, its processor detection and tables with it.
///
/// An image goes open() -> begin() -> read()... -> close(). Every function that reads data throws
/// DecodeError; the object can be used for another image afterwards.
class JpegReader final : public RowSource {
  public:
    /// A decoder may be told to hold this many pixels at most; more is an attack or a mistake.
    static constexpr std::int64_t most_pixels = std::int64_t{1} << 28;

    JpegReader();
    ~JpegReader();
    JpegReader(const JpegReader&) = delete;
    JpegReader& operator=(const JpegReader&) = delete;

    /// Reads the header; `data` must stay valid until close().
    void open(std::span<const std::uint8_t> data);
    int width() const;
    int height() const;
    JpegHeader header() const;

    /// The image's only scan, where it is one that our own decoder takes; reading it changes nothing here.
    std::optional<baseline::Scan> baseline_scan() const;

    /// Size of the image when decoded at eighths/8 of its size; eighths is 8, 4 or 2.
    struct Size {
        int width, height;
    };
    Size scaled_size(int eighths) const;

    /// Starts decoding the window of the image at eighths/8 of its size.
    void begin(const PixelWindow& window, int eighths);
    /// The first image column that read() delivers: at most window.left, as libjpeg cuts at block edges.
    int left() const { return left_; }
    int row_pixels() const { return row_pixels_; }
    void read(std::uint8_t* const* rows, int count) override;

    /// Reads on from the last row to the end marker. Damage there costs no pixel: it is one more warning.
    void finish();

    /// Non-fatal complaints of libjpeg about the current image: damage that it worked around.
    int warnings() const;
    void close() noexcept;

  private:
    struct State;
    std::unique_ptr<State> state_;
    int left_ = 0, row_pixels_ = 0;
};

}  // namespace hpcai500
