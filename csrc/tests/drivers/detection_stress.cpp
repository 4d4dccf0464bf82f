// NMS and RoIAlign, forward and backward, on seeded hostile boxes and rois:
//   detection_stress ROUNDS THREADS
// Every array is exactly as large as it must be, so that a sanitizer sees an element touched behind it. Ends
// by a sanitizer, or with failure where a result depends on the number of threads. Prints the number of
// calls.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/detection/nms.h"
#include "core/detection/roi_align.h"
#include "core/threads.h"
#include "detection_inputs.h"
#include "stress.h"

namespace hpcai500::drivers {
namespace {

long calls = 0;

void same(const void* first, const void* second, std::size_t bytes, const char* what) {
    ++calls;
    if (bytes > 0 && std::memcmp(first, second, bytes) != 0)
        throw std::runtime_error(std::string(what) + " depends on the number of threads");
}

template <class Real>
void stress_nms(Random& random, int threads) {
    const int count = below(random, 20) == 0 ? 5000 : below(random, 200);
    std::vector<Real> boxes(static_cast<std::size_t>(count) * 4), scores(static_cast<std::size_t>(count));
    std::vector<std::int64_t> groups(scores.size());
    for (Real& value : boxes) value = coordinate<Real>(random);
    for (Real& value : scores) value = coordinate<Real>(random);
    for (std::int64_t& group : groups)
        group = below(random, 3) == 0 ? static_cast<std::int64_t>(random()) : 1;
    const double threshold = below(random, 11) / 10.0;
    const std::int64_t* const choice = below(random, 2) == 0 ? groups.data() : nullptr;
    const NmsInput<Real> input{boxes.data(), scores.data(), choice, count};
    const auto one = nms(input, threshold, 1), many = nms(input, threshold, threads);
    if (one.size() != many.size()) throw std::runtime_error("nms depends on the number of threads");
    same(one.data(), many.data(), one.size() * sizeof(std::int64_t), "nms");
}

template <class Real>
void stress_roi_align(Random& random, const RoiAlignSpec& spec, int threads) {
    std::vector<Real> rois = some_rois<Real>(random, spec);
    if (!rois.empty() && below(random, 10) == 0) rois[0] = coordinate<Real>(random);
    const std::size_t size = item_size(spec.type);
    const auto pixels = static_cast<std::size_t>(spec.images * spec.channels * spec.height * spec.width);
    const auto bins =
        static_cast<std::size_t>(spec.rois * spec.channels * spec.pooled_height * spec.pooled_width);
    std::vector<char> features(pixels * size), gradient(pixels * size), again(pixels * size);
    std::vector<char> pooled(bins * size), pooled_again(bins * size);
    for (char& byte : features) byte = static_cast<char>(random());
    try {
        roi_align(spec, features.data(), rois.data(), pooled.data(), 1);
        roi_align(spec, features.data(), rois.data(), pooled_again.data(), threads);
        same(pooled.data(), pooled_again.data(), pooled.size(), "roi_align");
        roi_align_backward(spec, pooled.data(), rois.data(), gradient.data(), 1);
        roi_align_backward(spec, pooled.data(), rois.data(), again.data(), threads);
        same(gradient.data(), again.data(), gradient.size(), "roi_align_backward");
    } catch (const std::invalid_argument&) {
        // A roi of an image that does not exist.
        ++calls;
    }
}

// Work inside work, from two callers at once, with an exception.
void stress_parallel_for(int threads) {
    std::vector<int> counts(1000, 0);
    parallel_for(10, threads, [&](std::int64_t outer) {
        parallel_for(100, threads,
                     [&](std::int64_t inner) { ++counts[static_cast<std::size_t>(outer * 100 + inner)]; });
    });
    if (std::any_of(counts.begin(), counts.end(), [](int count) { return count != 1; }))
        throw std::runtime_error("parallel_for left out an index or did it twice");
    bool thrown = false;
    try {
        parallel_for(100, threads, [](std::int64_t index) {
            if (index == 50) throw std::domain_error("50");
        });
    } catch (const std::domain_error&) {
        thrown = true;
    }
    if (!thrown) throw std::runtime_error("parallel_for swallowed an exception");
    ++calls;
}

}  // namespace

std::string stress_boxes(const Words& words) {
    const int rounds = std::stoi(words[0]), threads = std::stoi(words[1]);
    Random random(500);
    for (int round = 0; round < rounds; ++round) {
        stress_nms<float>(random, threads);
        stress_nms<double>(random, threads);
        const RoiAlignSpec spec = some_spec(random);
        if (spec.type == FeatureType::float64)
            stress_roi_align<double>(random, spec, threads);
        else
            stress_roi_align<float>(random, spec, threads);
        stress_parallel_for(threads);
    }
    if (calls < 1) throw std::runtime_error("nothing was done");
    return std::to_string(calls) + " calls";
}

}  // namespace hpcai500::drivers
