// A fuzz target: any bytes, to a crop by our own decoder and by libjpeg-turbo's.
//
//  - Both refuse with the same error, or neither does. Only where the data ends may ours go on alone:
//    libjpeg reads the rest of a row of MCUs, and sometimes the row below, where ours needs neither.
//  - Where both make an image, no level differs by more than libjpeg's roundings add up to. It clamps
//    levels before the resize and we behind it, so colours that leave the range are only compared where
//    no pixel is resized. Blocks that no encoder makes are compared in jpeg_planes_fuzz.cpp.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/jpeg/decode_crop.h"
#include "core/jpeg/resize_kernel.h"
#include "fuzz_input.h"
#include "jpeg_samples.h"

namespace {

using namespace hpcai500;

// libjpeg rounds chroma to whole levels (0.75 at most, times 1.772), then the colour (0.5), then both round
// the output.
constexpr int most_difference = 3;

struct Outcome {
    bool failed = false;
    FailureKind kind{};
    std::string reason;
    std::vector<std::uint8_t> image;
};

Outcome decode(ImageDecoder& decoder, std::span<const std::uint8_t> data, DecodeSpec spec, const CropBox& box,
               JpegDecoder who) {
    spec.decoder = who;
    Outcome outcome;
    // Exactly the image's room: the sanitizer sees a byte written behind it.
    outcome.image.resize(spec.image_bytes());
    try {
        decoder.decode_box(data, spec, box, outcome.image.data());
    } catch (const DecodeError& error) {
        outcome.failed = true;
        outcome.kind = error.kind();
        outcome.reason = error.what();
    }
    return outcome;
}

struct Crop {
    DecodeSpec spec;
    CropBox box;
    bool resized;
};

Crop choose(const JpegHeader& header, Choices& choices) {
    Crop crop;
    crop.spec.dtype = DType::uint8;
    crop.spec.layout = static_cast<Layout>(choices.below(2));
    crop.resized = choices.below(2) == 1;
    crop.box.flip = choices.below(2) == 1;
    if (!crop.resized) {
        crop.spec.size = 1 + choices.below(std::min({header.width, header.height, 64}));
        crop.box.width = crop.box.height = crop.spec.size;
        crop.box.x = choices.below(header.width - crop.spec.size + 1);
        crop.box.y = choices.below(header.height - crop.spec.size + 1);
        return crop;
    }
    crop.spec.size = 1 + choices.below(40);
    crop.spec.mode = static_cast<CropMode>(choices.below(2));
    crop.box.width = 1 + choices.below(header.width);
    crop.box.height = 1 + choices.below(header.height);
    crop.box.x = choices.below(header.width - static_cast<int>(crop.box.width) + 1);
    crop.box.y = choices.below(header.height - static_cast<int>(crop.box.height) + 1);
    if (crop.spec.mode == CropMode::centre) {
        // As it is cut: with fractions.
        crop.box.x += choices.below(8) / 16.0 * (crop.box.width > 1);
        crop.box.width -= crop.box.width > 1 ? 0.5 : 0.0;
    }
    return crop;
}

// Whether a colour of the image reaches the ends of the range, where libjpeg may have clamped it.
bool touches_ends(std::span<const std::uint8_t> data, const JpegHeader& header) {
    static JpegReader reader;
    reader.open(data);
    bool touches = false;
    try {
        reader.begin({0, header.width, 0, header.height}, 8);
        std::vector<std::uint8_t> row(static_cast<std::size_t>(reader.row_pixels() + block_pixels) * 4);
        std::uint8_t* line = row.data();
        for (int i = 0; i < header.height && !touches; ++i) {
            reader.read(&line, 1);
            for (int column = 0; column < header.width; ++column)
                for (int channel = 0; channel < 3; ++channel)
                    touches = touches || row[static_cast<std::size_t>(column * 4 + channel)] % 255 == 0;
        }
    } catch (const DecodeError&) {
        touches = true;
    }
    reader.close();
    return touches;
}

int largest_difference(const std::vector<std::uint8_t>& one, const std::vector<std::uint8_t>& other) {
    int largest = 0;
    for (std::size_t i = 0; i < one.size(); ++i) largest = std::max(largest, std::abs(one[i] - other[i]));
    return largest;
}

// What becomes of an input.
enum class Kind { no_header, foreign, refused, taken_by_ours, taken };
Tally<5>& tally() {
    static Tally<5> made(
        {"without a header", "left to libjpeg", "refused by both", "taken by ours alone", "taken by both"});
    return made;
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    // One decoder for all inputs, as in a loader: a failed image must leave nothing behind.
    static ImageDecoder decoder;
    static RawJpeg rival;
    JpegHeader header;
    bool is_ours = false;
    try {
        header = decoder.probe(data);
        is_ours = rival.open(data).has_value();
    } catch (const DecodeError&) {
        return tally().add(Kind::no_header);
    }
    // What both leave to libjpeg is the target decode_crop's.
    if (std::int64_t{header.width} * header.height > most_fuzzed_pixels || !is_ours)
        return tally().add(Kind::foreign);
    Choices choices(digest(data));
    const Crop crop = choose(header, choices);
    const Outcome ours = decode(decoder, data, crop.spec, crop.box, JpegDecoder::own);
    const Outcome theirs = decode(decoder, data, crop.spec, crop.box, JpegDecoder::libjpeg_turbo);
    if (ours.failed) {
        claim(theirs.failed, "we refuse (%s), libjpeg does not", ours.reason.c_str());
        claim(ours.kind == theirs.kind && ours.reason == theirs.reason,
              "we refuse with '%s', libjpeg with '%s'", ours.reason.c_str(), theirs.reason.c_str());
        return tally().add(Kind::refused);
    }
    if (theirs.failed) {
        claim(theirs.kind == FailureKind::truncated, "libjpeg refuses (%s), we do not",
              theirs.reason.c_str());
        return tally().add(Kind::taken_by_ours);
    }
    tally().add(Kind::taken);
    if (ours.image == theirs.image) return;
    const int difference = largest_difference(ours.image, theirs.image);
    if (difference <= most_difference) return;
    rival.read_coefficients(data);
    if (rival.has_wild_blocks()) return;
    claim(crop.resized && header.components == 3 && touches_ends(data, header),
          "a level differs by %d; size %d, box %g x %g at %g, %g of %d x %d", difference, crop.spec.size,
          crop.box.width, crop.box.height, crop.box.x, crop.box.y, header.width, header.height);
}
