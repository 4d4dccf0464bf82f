#include "spec.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

namespace hpcai500 {
namespace {

template <class... Parts>
void require(bool holds, const Parts&... parts) {
    if (holds) return;
    std::ostringstream message;
    (message << ... << parts);
    throw std::invalid_argument(message.str());
}

}  // namespace

void validate(const DecodeSpec& spec) {
    // 16384 squared times 3 channels of 4 bytes is 3 GiB an image: above it a size is a mistake, not a wish.
    constexpr int largest = 16384;
    require(spec.size >= 1 && spec.size <= largest, "size must be in [1, ", largest, "], got ", spec.size);
    require(spec.resize_shorter >= 1 && spec.resize_shorter <= largest, "resize_shorter must be in [1, ",
            largest, "], got ", spec.resize_shorter);
    require(spec.mode == CropMode::random || spec.size <= spec.resize_shorter,
            "a centre crop needs size <= resize_shorter, got size ", spec.size, " and resize_shorter ",
            spec.resize_shorter);
    require(spec.area[0] > 0 && spec.area[0] <= spec.area[1] && spec.area[1] <= 1,
            "area must satisfy 0 < low <= high <= 1, got (", spec.area[0], ", ", spec.area[1], ")");
    require(spec.ratio[0] > 0 && spec.ratio[0] <= spec.ratio[1] && std::isfinite(spec.ratio[1]),
            "ratio must satisfy 0 < low <= high, both finite, got (", spec.ratio[0], ", ", spec.ratio[1],
            ")");
    require(spec.flip_probability >= 0 && spec.flip_probability <= 1,
            "flip_probability must be in [0, 1], got ", spec.flip_probability);
    for (std::size_t channel = 0; channel < 3; ++channel) {
        require(std::isfinite(spec.mean[channel]), "mean must be finite, got ", spec.mean[channel],
                " for channel ", channel);
        require(std::isfinite(spec.std[channel]) && spec.std[channel] > 0,
                "std must be finite and above 0, got ", spec.std[channel], " for channel ", channel);
    }
}

}  // namespace hpcai500
