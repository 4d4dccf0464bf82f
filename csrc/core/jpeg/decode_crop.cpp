#include "decode_crop.h"

#include <algorithm>
#include <cmath>

#include "resize_kernel.h"

namespace hpcai500 {
namespace {

constexpr int full_size = 8;

// Closes the image on every way out, so that libjpeg's memory for it is not held until the next one.
class OpenImage {
  public:
    OpenImage(JpegReader& reader, std::span<const std::uint8_t> jpeg) : reader_(reader) { reader.open(jpeg); }
    ~OpenImage() { reader_.close(); }
    OpenImage(const OpenImage&) = delete;
    OpenImage& operator=(const OpenImage&) = delete;

  private:
    JpegReader& reader_;
};

// The smallest inverse transform that still leaves the crop at least as large as the output. Only 1/2 and 1/4
// have vector code in libjpeg-turbo.
int choose_eighths(const DecodeSpec& spec, const CropBox& box) {
    if (!spec.dct_scaling) return full_size;
    const double smaller = std::min(box.width, box.height);
    for (const int eighths : {2, 4})
        if (smaller * eighths / full_size >= spec.size) return eighths;
    return full_size;
}

// One axis of a box in an image that was decoded at `scale` and has `limit` pixels there.
Interval interval(CropMode mode, double begin, double length, double scale, int limit) {
    const double from = begin * scale, until = std::min((begin + length) * scale, static_cast<double>(limit));
    if (mode == CropMode::centre) return {from, until, 0, limit};
    return {from, until, static_cast<int>(std::floor(from)),
            std::min(limit, static_cast<int>(std::ceil(until)))};
}

void prepare(Resizer& resizer, const DecodeSpec& spec, const CropBox& box, double scale, int width,
             int height) {
    resizer.prepare(interval(spec.mode, box.x, box.width, scale, width),
                    interval(spec.mode, box.y, box.height, scale, height), spec.size);
}

class PixelRows final : public RowSource {
  public:
    PixelRows(const RgbPixels& pixels, int left, int right, int top)
        : pixels_(pixels), left_(left), columns_(right - left), row_(top) {}

    void read(std::uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i, ++row_) {
            const std::uint8_t* from =
                pixels_.data + (static_cast<std::size_t>(row_) * static_cast<std::size_t>(pixels_.width) +
                                static_cast<std::size_t>(left_)) *
                                   3;
            std::uint8_t* to = rows[i];
            for (int column = 0; column < columns_; ++column, from += 3, to += 4) {
                to[0] = from[0];
                to[1] = from[1];
                to[2] = from[2];
                to[3] = 255;
            }
        }
    }

  private:
    RgbPixels pixels_;
    int left_, columns_, row_;
};

}  // namespace

// False where the image is not one for our own decoder, or not what it seemed: then `image` holds nothing of
// use.
bool ImageDecoder::decode_baseline(const baseline::Scan& scan, const baseline::SeekPoints& points,
                                   const DecodeSpec& spec, const CropBox& box, void* image) {
    if (!baseline_.open(scan, points)) return false;
    const PlaneShape shape{scan.width, scan.height, scan.component_count, scan.across, scan.down};
    try {
        planar_resizer_.resize(baseline_, shape, interval(spec.mode, box.x, box.width, 1.0, shape.width),
                               interval(spec.mode, box.y, box.height, 1.0, shape.height), spec, box.flip,
                               image);
    } catch (const baseline::Surprise&) {
        return false;
    }
    return true;
}

bool ImageDecoder::decode_own(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const CropBox& box,
                              void* image, const SeekIndex* index) {
    const auto scan = reader_.baseline_scan();
    if (!scan) return false;
    if (index != nullptr) {
        baseline::SeekPoints points;
        const SeekIndex::Answer answer = index->find(seek_key(jpeg), seek_room_, points);
        if (answer == SeekIndex::Answer::unknown) last_seek_ = SeekUse::unknown;
        if (answer == SeekIndex::Answer::damaged || points.any()) last_seek_ = SeekUse::false_points;
        if (points.any() && decode_baseline(*scan, points, spec, box, image)) {
            last_seek_ = SeekUse::used;
            return true;
        }
    }
    return decode_baseline(*scan, {}, spec, box, image);
}

int ImageDecoder::decode_open_image(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec,
                                    const CropBox& box, void* image, const SeekIndex* index) {
    const int eighths = choose_eighths(spec, box);
    last_seek_ = SeekUse::without;
    const bool own = spec.decoder == JpegDecoder::own && eighths == full_size;
    if (own && decode_own(jpeg, spec, box, image, index)) return reader_.warnings();
    const JpegReader::Size decoded = reader_.scaled_size(eighths);
    prepare(resizer_, spec, box, static_cast<double>(eighths) / full_size, decoded.width, decoded.height);
    reader_.begin({resizer_.left(), resizer_.right(), resizer_.top(), resizer_.bottom()}, eighths);
    resizer_.resize(reader_, reader_.left(), reader_.row_pixels(), spec, box.flip, image);
    return reader_.warnings();
}

int ImageDecoder::decode_crop(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec,
                              const SampleKey& key, void* image, const SeekIndex* index) {
    const OpenImage open(reader_, jpeg);
    return decode_open_image(jpeg, spec, crop_box(spec, reader_.width(), reader_.height(), key), image,
                             index);
}

int ImageDecoder::decode_box(std::span<const std::uint8_t> jpeg, const DecodeSpec& spec, const CropBox& box,
                             void* image, const SeekIndex* index) {
    const OpenImage open(reader_, jpeg);
    validate(box, reader_.width(), reader_.height());
    return decode_open_image(jpeg, spec, box, image, index);
}

std::optional<std::vector<std::uint8_t>> ImageDecoder::seek_points(std::span<const std::uint8_t> jpeg) {
    try {
        const OpenImage open(reader_, jpeg);
        const auto scan = reader_.baseline_scan();
        if (!scan || !baseline_.open(*scan)) return std::nullopt;
        const int mcus = baseline_.mcus();
        const int interval = baseline::seek_interval(jpeg.size(), mcus, scan->restart_interval);
        std::vector<std::uint8_t> points = baseline_.make_points(interval);
        // The only one would be the scan's end: nothing is saved by going on to it.
        if (interval >= mcus) points.clear();
        return points;
    } catch (const DecodeError&) {
        return std::nullopt;
    } catch (const baseline::Surprise&) {
        return std::nullopt;
    }
}

void ImageDecoder::crop_pixels(const RgbPixels& pixels, const DecodeSpec& spec, const SampleKey& key,
                               void* image) {
    const CropBox box = crop_box(spec, pixels.width, pixels.height, key);
    prepare(resizer_, spec, box, 1.0, pixels.width, pixels.height);
    PixelRows rows(pixels, resizer_.left(), resizer_.right(), resizer_.top());
    resizer_.resize(rows, resizer_.left(), resizer_.right() - resizer_.left(), spec, box.flip, image);
}

ImageDecoder::Checked ImageDecoder::check(std::span<const std::uint8_t> jpeg) {
    const OpenImage open(reader_, jpeg);
    const int width = reader_.width(), height = reader_.height();
    reader_.begin({0, width, 0, height}, full_size);
    std::uint8_t* row = row_.reserve(static_cast<std::size_t>(reader_.row_pixels() + block_pixels) * 4);
    for (int i = 0; i < height; ++i) reader_.read(&row, 1);
    reader_.finish();
    return {width, height, reader_.warnings()};
}

JpegHeader ImageDecoder::probe(std::span<const std::uint8_t> jpeg) {
    const OpenImage open(reader_, jpeg);
    return reader_.header();
}

}  // namespace hpcai500
