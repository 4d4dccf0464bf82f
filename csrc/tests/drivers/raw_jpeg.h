// libjpeg-turbo's samples of an image as its inverse transform leaves them: before chroma is upsampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/jpeg/libjpeg.h"

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

}  // namespace hpcai500
