// The fuzz target: any bytes, as one image. libFuzzer calls it, and so does decode_crop_corpus
// (run_corpus.cpp).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/jpeg/decode_crop.h"
#include "fuzz_input.h"

namespace {

using namespace hpcai500;

DecodeSpec settings(std::uint64_t hash) {
    DecodeSpec spec;
    spec.size = 1 + static_cast<int>(hash % 40);
    spec.resize_shorter = spec.size + static_cast<int>((hash >> 8) % 8);
    spec.mode = (hash >> 16) & 1 ? CropMode::random : CropMode::centre;
    spec.dtype = static_cast<DType>((hash >> 17) & 3);
    spec.layout = static_cast<Layout>((hash >> 19) & 1);
    spec.dct_scaling = ((hash >> 20) & 1) != 0;
    spec.decoder = static_cast<JpegDecoder>((hash >> 21) & 1);
    return spec;
}

}  // namespace

void hpcai500::run_input(std::span<const std::uint8_t> data) {
    // One decoder for all inputs, as in a loader: a failed image must leave nothing behind.
    static ImageDecoder decoder;
    // A few bytes can claim 65,500 x 4,000 grey pixels, which are legal and slow: time better spent on other
    // inputs.
    constexpr std::int64_t most_pixels = 1 << 20;
    const std::uint64_t hash = digest(data);
    const DecodeSpec spec = settings(hash);
    // Exactly the image's room: the sanitizer sees a byte written behind it.
    std::vector<std::uint8_t> image(spec.image_bytes());
    try {
        const JpegHeader header = decoder.probe(data);
        if (std::int64_t{header.width} * header.height > most_pixels) return;
        decoder.decode_crop(data, spec, {hash, 0, hash >> 32}, image.data());
        const auto checked = decoder.check(data);
        if (checked.width != header.width || checked.height != header.height) std::abort();
    } catch (const DecodeError&) {
        // What damaged data is for.
    }
}
