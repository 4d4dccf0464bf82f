#include "taps.h"

#include <algorithm>
#include <cmath>

namespace hpcai500 {

void Taps::prepare(double begin, double end, int limit, int outputs) {
    const double scale = (end - begin) / outputs;
    const double support = std::max(scale, 1.0);
    const double inverse_support = 1.0 / support;
    outputs_ = outputs;
    stride_ = static_cast<int>(std::ceil(support)) * 2 + 1;
    int* starts = starts_.reserve(static_cast<std::size_t>(outputs));
    int* counts = counts_.reserve(static_cast<std::size_t>(outputs));
    float* weights = weights_.reserve(static_cast<std::size_t>(outputs) * static_cast<std::size_t>(stride_));

    for (int output = 0; output < outputs; ++output, weights += stride_) {
        const double centre = begin + (output + 0.5) * scale;
        // Truncation towards zero is Pillow's: it differs from floor only where the clamp to 0 mends it.
        const int from = std::clamp(static_cast<int>(centre - support + 0.5), 0, limit - 1);
        const int until = std::clamp(static_cast<int>(centre + support + 0.5), from + 1, limit);
        const int taps = until - from;
        double sum = 0;
        for (int tap = 0; tap < taps; ++tap) {
            const double distance = std::abs((from + tap - centre + 0.5) * inverse_support);
            const double weight = std::max(0.0, 1.0 - distance);
            weights[tap] = static_cast<float>(weight);
            sum += weight;
        }
        const auto normaliser = static_cast<float>(1.0 / sum);
        for (int tap = 0; tap < taps; ++tap) weights[tap] *= normaliser;
        starts[output] = from;
        counts[output] = taps;
    }
}

void Taps::prepare_halved(const Taps& full, int origin, int limit) {
    outputs_ = full.outputs_;
    // n pixels lie in n / 2 + 1 samples at most, and reach one further on both sides.
    stride_ = full.stride_ / 2 + 3;
    int* starts = starts_.reserve(static_cast<std::size_t>(outputs_));
    int* counts = counts_.reserve(static_cast<std::size_t>(outputs_));
    float* weights = weights_.reserve(static_cast<std::size_t>(outputs_) * static_cast<std::size_t>(stride_));
    std::fill_n(weights, static_cast<std::size_t>(outputs_) * static_cast<std::size_t>(stride_), 0.0f);
    for (int output = 0; output < outputs_; ++output, weights += stride_) {
        const int from = origin + full.start(output), pixels = full.count(output);
        const auto next = [limit](int pixel) {
            return std::clamp(pixel / 2 + (pixel % 2 ? 1 : -1), 0, limit - 1);
        };
        const int first = std::min(from / 2, next(from));
        const int last = std::max((from + pixels - 1) / 2, next(from + pixels - 1));
        for (int tap = 0; tap < pixels; ++tap) {
            const int pixel = from + tap;
            const float weight = full.weights(output)[tap];
            weights[pixel / 2 - first] += 0.75f * weight;
            weights[next(pixel) - first] += 0.25f * weight;
        }
        starts[output] = first;
        counts[output] = last - first + 1;
    }
}

int Taps::most(int begin, int end) const {
    return *std::max_element(counts_.data() + begin, counts_.data() + end);
}

int Taps::widest_span(int group) const {
    int widest = 0;
    for (int output = 0; output < outputs_; output += group) {
        const int last = std::min(output + group, outputs_) - 1;
        widest = std::max(widest, start(last) + count(last) - start(output));
    }
    return widest;
}

}  // namespace hpcai500
