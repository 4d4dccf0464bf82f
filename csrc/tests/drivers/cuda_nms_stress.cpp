// NMS on the device, of one segment and of many, against its CPU twin.
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/detection/nms.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "detection_inputs.h"

namespace hpcai500::drivers {
namespace {

// Boxes in clusters, so that many go, and some of any coordinates.
template <class Real>
std::vector<Real> some_boxes(Random& random, int count) {
    std::vector<Real> boxes;
    for (int i = 0; i < count; ++i) {
        const Real x = static_cast<Real>(below(random, 40)), y = static_cast<Real>(below(random, 40));
        const Real corners[] = {x, y, x + static_cast<Real>(1 + below(random, 30)),
                                y + static_cast<Real>(1 + below(random, 30))};
        const bool any = below(random, 10) == 0;
        for (const Real corner : corners) boxes.push_back(any ? coordinate<Real>(random) : corner);
    }
    return boxes;
}

// Marks those boxes of a segment that the CPU keeps.
template <class Real>
void keep_on_cpu(const Real* boxes, const std::int64_t* groups, std::int64_t count, double threshold,
                 std::uint8_t* keep) {
    std::vector<Real> scores(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < scores.size(); ++i)
        scores[i] = static_cast<Real>(count) - static_cast<Real>(i);
    for (const std::int64_t kept : nms(NmsInput<Real>{boxes, scores.data(), groups, count}, threshold, 1))
        keep[kept] = 1;
}

// Segments of any boxes, which one call thins out and the CPU one after the other.
template <class Real>
void stress_nms(Random& random, const std::vector<std::int64_t>& segments) {
    const std::int64_t count = std::accumulate(segments.begin(), segments.end(), std::int64_t{0});
    const auto size = static_cast<std::size_t>(count);
    const std::vector<Real> boxes = some_boxes<Real>(random, static_cast<int>(count));
    std::vector<std::int64_t> groups(size);
    for (std::int64_t& group : groups) group = below(random, 3) - 1;
    const bool grouped = below(random, 2) == 0;
    const double threshold = below(random, 11) / 10.0;
    std::vector<std::uint8_t> expected(size, 0);
    std::int64_t first = 0;
    for (const std::int64_t of_segment : segments) {
        keep_on_cpu(boxes.data() + 4 * first, grouped ? groups.data() + first : nullptr, of_segment,
                    threshold, expected.data() + first);
        first += of_segment;
    }

    const DeviceBuffer<Real> there(boxes);
    const DeviceBuffer<std::int64_t> groups_there(groups);
    const DeviceBuffer<std::uint8_t> keep(size), workspace(nms_cuda_workspace(segments));
    nms_cuda(NmsCudaCall<Real>{there.data(), grouped ? groups_there.data() : nullptr, segments, threshold,
                               keep.data(), workspace.data(), 0, nullptr});
    if (keep.read() != expected)
        throw std::runtime_error("nms: other boxes stay, of " + std::to_string(count) + " in " +
                                 std::to_string(segments.size()) + " segments");
}

// Mostly small ones; sometimes more than one launch takes.
std::vector<std::int64_t> some_segments(Random& random) {
    const bool many = below(random, 4) == 0;
    std::vector<std::int64_t> segments(many ? 260 : 1 + static_cast<std::size_t>(below(random, 6)));
    for (std::int64_t& count : segments) count = below(random, 4) == 0 ? 0 : below(random, many ? 4 : 150);
    return segments;
}

}  // namespace

void stress_nms(int rounds) {
    Random random(501);
    for (const int count : {0, 1, 63, 64, 65}) stress_nms<float>(random, {count});
    stress_nms<float>(random, {});
    // One more than a panel of rows has; the thread sanitizer, which runs few rounds, takes too long over it.
    if (rounds >= 5) stress_nms<double>(random, {70, 4097, 0, 3});
    for (int round = 0; round < rounds; ++round) {
        stress_nms<float>(random, {below(random, 400)});
        stress_nms<double>(random, {below(random, 400)});
        stress_nms<float>(random, some_segments(random));
    }
}

}  // namespace hpcai500::drivers
