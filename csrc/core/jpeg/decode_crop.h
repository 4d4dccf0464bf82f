// One image: JPEG bytes (or pixels) -> crop -> antialiased resize -> flip -> normalise -> the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/jpeg/baseline/decoder.h"
#include "jpeg_reader.h"
#include "planar_resize.h"
#include "seek_index.h"

namespace hpcai500 {

/// Pixels that something else has decoded: rows of RGB, 3 bytes a pixel, without padding.
struct RgbPixels {
    const std::uint8_t* data;
    int width, height;
};

/// What one thread needs to make images, reused from one to the next.
///
/// `image` is room for spec.image_bytes() bytes. Pixels outside a random crop do not exist for the filter, as
/// in Pillow's crop().resize(); around a centre crop (a box with fractions) they do, as in Pillow's
/// resize(box=...).
///
/// With an `index`, our own decoder jumps over what the image does not show. Pixels are the same; an
/// index that is damaged, or of other files, is not used, which last_seek() tells. Points forged to agree
/// with each other make other pixels of the same data, and no more (docs/input.md).
class ImageDecoder {
  public:
    /// Makes the image of one sample. Returns the number of libjpeg's warnings; throws DecodeError.
    int decode_crop(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const SampleKey& key,
                    void* image, const SeekIndex* index = nullptr);

    /// The same for a box of the caller's. Throws as validate(), too.
    int decode_box(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const CropBox& box,
                   void* image, const SeekIndex* index = nullptr);

    /// Of the last image that was decoded; `without` where no index was given.
    SeekUse last_seek() const { return last_seek_; }

    /// Packed seek points (baseline::SeekPoints) of an image; no bytes where it is so small, or its restart
    /// markers so far apart, that no point is worth keeping; nothing where our own decoder leaves it to
    /// libjpeg-turbo.
    std::optional<std::vector<std::uint8_t>> seek_points(std::span<const std::uint8_t> jpeg);

    /// The same crop for decoded pixels.
    void crop_pixels(const RgbPixels& pixels, const DecodeSpec& spec, const SampleKey& key, void* image);

    /// Decodes every row at full size and drops it, and reads on to the end marker. Returns size and
    /// warnings, which are 0 for what libjpeg-turbo's strict mode takes; throws DecodeError.
    struct Checked {
        int width, height, warnings;
    };
    Checked check(std::span<const std::uint8_t> jpeg);

    /// Reads the header only; throws DecodeError.
    JpegHeader probe(std::span<const std::uint8_t> jpeg);

  private:
    int decode_open_image(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const CropBox& box,
                          void* image, const SeekIndex* index);
    bool decode_own(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const CropBox& box,
                    void* image, const SeekIndex* index);
    bool decode_baseline(const baseline::Scan& scan, const baseline::SeekPoints& points,
                         const DecodeSpec& spec, const CropBox& box, void* image);

    JpegReader reader_;
    Resizer resizer_;
    baseline::Decoder baseline_;
    PlanarResizer planar_resizer_;
    GrowBuffer<std::uint8_t> row_, seek_room_;
    SeekUse last_seek_ = SeekUse::without;
};

}  // namespace hpcai500
