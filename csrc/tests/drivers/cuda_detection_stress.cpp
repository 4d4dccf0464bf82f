// NMS, of one segment and of many, and RoIAlign, of one level and of many, forward and backward, on the
// device against their CPU twins, within the bounds of tests/workloads/test_detection_cuda.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/detection/nms.h"
#include "core/detection/roi_align.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "detection_inputs.h"

namespace hpcai500::drivers {
namespace {

// Boxes in clusters, so that many go, and some of any coordinates.
template <class Real>
std::vector<Real> some_boxes(Random& random, std::int64_t count) {
    std::vector<Real> boxes;
    for (std::int64_t i = 0; i < count; ++i) {
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
    const std::vector<Real> boxes = some_boxes<Real>(random, count);
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
    std::vector<std::int64_t> segments(many ? 260 : 1 + below(random, std::size_t{6}));
    for (std::int64_t& count : segments) count = below(random, 4) == 0 ? 0 : below(random, many ? 4 : 150);
    return segments;
}

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

double value_of(__half item) {
    return static_cast<double>(__half2float(item));
}
double value_of(__nv_bfloat16 item) {
    return static_cast<double>(__bfloat162float(item));
}
double value_of(double item) {
    return item;
}

std::string described(const RoiAlignSpec& spec) {
    std::ostringstream text;
    text << "type " << static_cast<int>(spec.type) << ", layout " << static_cast<int>(spec.layout) << ", "
         << spec.images << " x " << spec.channels << " x " << spec.height << " x " << spec.width << ", "
         << spec.rois << " rois, " << spec.pooled_height << " x " << spec.pooled_width << " bins, scale "
         << spec.spatial_scale << ", ratio " << spec.sampling_ratio << ", aligned " << spec.aligned;
    return text.str();
}

template <class Mine, class Theirs>
void compare(const char* what, const RoiAlignSpec& spec, const std::vector<Mine>& device,
             const std::vector<Theirs>& cpu) {
    const double bound = spec.type == FeatureType::float64   ? 1e-12
                         : spec.type == FeatureType::float32 ? 1e-4
                                                             : 5e-2;
    for (std::size_t i = 0; i < cpu.size(); ++i) {
        const double mine = value_of(device[i]), theirs = value_of(cpu[i]);
        if (std::isnan(mine) && std::isnan(theirs)) continue;
        if (mine == theirs || std::abs(mine - theirs) <= bound + bound * std::abs(theirs)) continue;
        std::ostringstream message;
        message << what << ": value " << i << " is " << mine << ", on the CPU " << theirs << " ("
                << described(spec) << ")";
        throw std::runtime_error(message.str());
    }
}

// A few are no numbers, where the rest can be told from them.
template <class Element>
std::vector<Element> some_values(Random& random, std::int64_t count) {
    std::vector<Element> values(static_cast<std::size_t>(count));
    const bool odd = below(random, 4) == 0;
    for (Element& value : values) {
        const float number = static_cast<float>(below(random, 4001) - 2000) / 1000.0f;
        const float none = below(random, 2) == 0 ? HUGE_VALF : NAN;
        value = static_cast<Element>(odd && below(random, 50) == 0 ? none : number);
    }
    return values;
}

// Sometimes one element behind an address that allows wide accesses, as a tensor's view may be.
std::size_t shift(Random& random) {
    return below(random, 3) == 0 ? 1 : 0;
}

// Some rows, of `width` values each, one after the other.
template <class Value>
std::vector<Value> rows_in(const std::vector<Value>& values, const std::vector<std::size_t>& rows,
                           std::size_t width) {
    std::vector<Value> chosen;
    for (const std::size_t row : rows)
        for (std::size_t i = 0; i < width; ++i) chosen.push_back(values[row * width + i]);
    return chosen;
}

template <class Value>
std::vector<RoiLevel> levels_of(const std::vector<RoiAlignSpec>& specs,
                                const std::vector<Guarded<Value>>& there) {
    std::vector<RoiLevel> levels;
    for (std::size_t i = 0; i < specs.size(); ++i) levels.push_back({specs[i], there[i].data()});
    return levels;
}

// A pyramid, its rois, and all calls on them.
template <class Element, class Real>
class Pyramid {
  public:
    Pyramid(Random& random, RoiAlignSpec spec) : random_(random) {
        spec.rois = 1 + below(random, 12);
        rois_ = some_rois<Real>(random, spec);
        const int levels = 1 + below(random, most_levels);
        const double scale = spec.spatial_scale;
        for (int i = 0; i < levels; ++i) {
            spec.height = 1 + below(random, 20);
            spec.width = 1 + below(random, 30);
            spec.spatial_scale = scale / (1 << i);
            specs_.push_back(spec);
            features_.push_back(
                some_values<Element>(random, spec.images * spec.channels * spec.height * spec.width));
        }
        width_ = static_cast<std::size_t>(spec.channels * spec.pooled_height * spec.pooled_width);
        // Also levels that do not exist.
        for (std::int64_t i = 0; i < spec.rois; ++i) level_of_.push_back(below(random, levels + 2) - 1);
        const std::int64_t odd[] = {0, -2, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::min()};
        level_of_[0] = odd[below(random, 4)];
    }

    // The rois of each level as the CPU pools them, and to the bit as a call for that level alone does.
    void pool() {
        std::vector<Guarded<Element>> features;
        for (const auto& level : features_) features.emplace_back(shift(random_), level);
        const DeviceBuffer<Real> rois(rois_);
        const DeviceBuffer<std::int64_t> level_of(level_of_);
        const Guarded<Element> out(shift(random_), level_of_.size() * width_);
        roi_align_levels_cuda(levels_of(specs_, features), rois.data(), level_of.data(), out.data(), 0,
                              nullptr);
        const std::vector<Element> pooled = out.read();
        for (std::size_t i = 0; i < pooled.size(); ++i)
            if (!exists(i / width_) && !std::isnan(value_of(pooled[i])))
                throw std::runtime_error("roi_align_levels: a roi of no level gives no NaN");
        for (std::size_t level = 0; level < specs_.size(); ++level) {
            const auto rows = rows_of(level);
            const RoiAlignSpec spec = alone(level, rows);
            const auto of_level = rows_in(pooled, rows, width_);
            const auto own_rois = rows_in(rois_, rows, 5);
            std::vector<Element> expected(of_level.size());
            roi_align(spec, features_[level].data(), own_rois.data(), expected.data(), 1);
            compare("roi_align_levels", spec, of_level, expected);
            const DeviceBuffer<Real> own_there(own_rois);
            const Guarded<Element> again(shift(random_), of_level.size());
            roi_align_cuda(spec, features[level].data(), own_there.data(), again.data(), 0, nullptr);
            const auto again_here = again.read();
            if (!of_level.empty() &&
                std::memcmp(again_here.data(), of_level.data(), of_level.size() * sizeof(Element)) != 0)
                throw std::runtime_error("roi_align_levels: other bits than of the level alone (" +
                                         described(spec) + ")");
        }
    }

    void spread() {
        const auto gradient = some_values<Element>(random_, specs_[0].rois * static_cast<int>(width_));
        std::vector<Guarded<Real>> spread;
        for (const auto& level : features_) spread.emplace_back(shift(random_), level.size());
        const DeviceBuffer<Real> rois(rois_);
        const DeviceBuffer<std::int64_t> level_of(level_of_);
        const Guarded<Element> gradient_there(shift(random_), gradient);
        roi_align_levels_backward_cuda(levels_of(specs_, spread), gradient_there.data(), rois.data(),
                                       level_of.data(), 0, nullptr);
        for (std::size_t level = 0; level < specs_.size(); ++level) {
            const auto rows = rows_of(level);
            const RoiAlignSpec spec = alone(level, rows);
            const auto own_rois = rows_in(rois_, rows, 5);
            const auto own_gradient = rows_in(gradient, rows, width_);
            std::vector<Element> expected(features_[level].size());
            roi_align_backward(spec, own_gradient.data(), own_rois.data(), expected.data(), 1);
            compare("roi_align_levels_backward", spec, spread[level].read(), expected);
            const DeviceBuffer<Real> own_there(own_rois);
            const Guarded<Element> own_gradient_there(shift(random_), own_gradient);
            const Guarded<Real> again(shift(random_), expected.size());
            roi_align_backward_cuda(spec, own_gradient_there.data(), own_there.data(), again.data(), 0,
                                    nullptr);
            compare("roi_align_backward", spec, again.read(), expected);
        }
    }

  private:
    std::vector<std::size_t> rows_of(std::size_t level) const {
        std::vector<std::size_t> rows;
        for (std::size_t i = 0; i < level_of_.size(); ++i)
            if (level_of_[i] == static_cast<std::int64_t>(level)) rows.push_back(i);
        return rows;
    }
    bool exists(std::size_t roi) const {
        return level_of_[roi] >= 0 && level_of_[roi] < static_cast<std::int64_t>(specs_.size());
    }
    RoiAlignSpec alone(std::size_t level, const std::vector<std::size_t>& rows) const {
        RoiAlignSpec spec = specs_[level];
        spec.rois = static_cast<std::int64_t>(rows.size());
        return spec;
    }

    Random& random_;
    std::vector<RoiAlignSpec> specs_;
    std::vector<std::vector<Element>> features_;
    std::vector<Real> rois_;
    std::vector<std::int64_t> level_of_;
    std::size_t width_ = 0;
};

template <class Element, class Real>
void stress_roi_align(Random& random, const RoiAlignSpec& spec) {
    Pyramid<Element, Real> pyramid(random, spec);
    pyramid.pool();
    pyramid.spread();
}

void stress_any_roi_align(Random& random) {
    RoiAlignSpec spec = some_spec(random);
    // Of most_samples a CPU takes one by one what a device takes at once.
    if (spec.sampling_ratio == most_samples) {
        spec.channels = below(random, 3);
        spec.pooled_height = spec.pooled_width = 2;
    }
    switch (spec.type) {
        case FeatureType::float32:
            return stress_roi_align<float, float>(random, spec);
        case FeatureType::float16:
            return stress_roi_align<__half, float>(random, spec);
        case FeatureType::bfloat16:
            return stress_roi_align<__nv_bfloat16, float>(random, spec);
        case FeatureType::float64:
            return stress_roi_align<double, double>(random, spec);
    }
}

// Twins differ on purpose: the device, which is not waited for, gives NaN.
void stress_absent_image(Random& random) {
    RoiAlignSpec spec = some_spec(random);
    spec.type = FeatureType::float32;
    spec.rois = 1;
    const DeviceBuffer<float> features(
        some_values<float>(random, spec.images * spec.channels * spec.height * spec.width));
    const DeviceBuffer<float> rois(std::vector<float>{static_cast<float>(spec.images), 0, 0, 3, 3});
    const DeviceBuffer<float> pooled(
        static_cast<std::size_t>(spec.channels * spec.pooled_height * spec.pooled_width));
    roi_align_cuda(spec, features.data(), rois.data(), pooled.data(), 0, nullptr);
    for (const float value : pooled.read())
        if (!std::isnan(value)) throw std::runtime_error("roi_align: a roi of no image gives no NaN");
}

}  // namespace

void stress_detection(int rounds) {
    stress_nms(rounds);
    Random random(500);
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < 4; ++i) stress_any_roi_align(random);
        stress_absent_image(random);
    }
}

}  // namespace hpcai500::drivers
