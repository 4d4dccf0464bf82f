// RoIAlign on the device, of one level and of many, forward and backward, against its CPU twin, within the
// bounds of tests/workloads/test_detection_cuda.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "core/detection/roi_align.h"
#include "cuda_buffer.h"
#include "cuda_stress.h"
#include "detection_inputs.h"

namespace hpcai500::drivers {
namespace {

double value_of(__half item) {
    return static_cast<double>(__half2float(item));
}
double value_of(__nv_bfloat16 item) {
    return static_cast<double>(__bfloat162float(item));
}
double value_of(float item) {
    return static_cast<double>(item);
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

// One element behind an address that allows wide accesses, sometimes, as a tensor's view may be.
template <class Value>
class Shifted {
  public:
    Shifted(Random& random, const std::vector<Value>& values) : shift_(below(random, 3) == 0 ? 1 : 0) {
        std::vector<Value> behind(shift_);
        behind.insert(behind.end(), values.begin(), values.end());
        memory_ = std::make_unique<DeviceBuffer<Value>>(behind);
    }
    Value* data() const { return memory_->data() + shift_; }
    std::vector<Value> read() const {
        const std::vector<Value> all = memory_->read();
        return {all.begin() + static_cast<std::ptrdiff_t>(shift_), all.end()};
    }

  private:
    std::size_t shift_;
    std::unique_ptr<DeviceBuffer<Value>> memory_;
};

template <class Element, class Real>
void stress_roi_align(Random& random, const RoiAlignSpec& spec) {
    const std::int64_t pixels = spec.images * spec.channels * spec.height * spec.width;
    const std::int64_t bins = spec.rois * spec.channels * spec.pooled_height * spec.pooled_width;
    const auto features = some_values<Element>(random, pixels), gradient = some_values<Element>(random, bins);
    const auto rois = some_rois<Real>(random, spec);
    std::vector<Element> pooled(gradient.size()), spread(features.size());
    roi_align(spec, features.data(), rois.data(), pooled.data(), 1);
    roi_align_backward(spec, gradient.data(), rois.data(), spread.data(), 1);

    const DeviceBuffer<Real> rois_there(rois);
    const Shifted<Element> features_there(random, features), gradient_there(random, gradient);
    const Shifted<Element> pooled_there(random, std::vector<Element>(pooled.size()));
    roi_align_cuda(spec, features_there.data(), rois_there.data(), pooled_there.data(), 0, nullptr);
    compare("roi_align", spec, pooled_there.read(), pooled);
    const Shifted<Real> spread_there(random, std::vector<Real>(spread.size()));
    roi_align_backward_cuda(spec, gradient_there.data(), rois_there.data(), spread_there.data(), 0, nullptr);
    compare("roi_align_backward", spec, spread_there.read(), spread);
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

// A pyramid, its rois, and what is known of them.
template <class Element, class Real>
struct Pyramid {
    std::vector<RoiAlignSpec> specs;
    std::vector<std::vector<Element>> features;
    std::vector<Real> rois;
    std::vector<std::int64_t> level_of;

    Pyramid(Random& random, RoiAlignSpec spec) {
        spec.rois = 1 + below(random, 12);
        rois = some_rois<Real>(random, spec);
        const int levels = 1 + below(random, most_levels);
        for (int i = 0; i < levels; ++i) {
            spec.height = 1 + below(random, 20);
            spec.width = 1 + below(random, 20);
            spec.spatial_scale = 1.0 / (1 << i);
            specs.push_back(spec);
            features.push_back(
                some_values<Element>(random, spec.images * spec.channels * spec.height * spec.width));
        }
        // Also levels that do not exist.
        for (std::int64_t i = 0; i < spec.rois; ++i) level_of.push_back(below(random, levels + 2) - 1);
        const std::int64_t odd[] = {0, -2, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::min()};
        level_of[0] = odd[below(random, 4)];
    }

    std::vector<std::size_t> rows_of(std::size_t level) const {
        std::vector<std::size_t> rows;
        for (std::size_t i = 0; i < level_of.size(); ++i)
            if (level_of[i] == static_cast<std::int64_t>(level)) rows.push_back(i);
        return rows;
    }
    bool exists(std::size_t roi) const {
        return level_of[roi] >= 0 && level_of[roi] < static_cast<std::int64_t>(specs.size());
    }
};

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
std::vector<std::unique_ptr<Shifted<Value>>> on_device(Random& random,
                                                       const std::vector<std::vector<Value>>& levels) {
    std::vector<std::unique_ptr<Shifted<Value>>> there;
    for (const auto& level : levels) there.push_back(std::make_unique<Shifted<Value>>(random, level));
    return there;
}

template <class Value>
std::vector<RoiLevel> levels_of(const std::vector<RoiAlignSpec>& specs,
                                const std::vector<std::unique_ptr<Shifted<Value>>>& there) {
    std::vector<RoiLevel> levels;
    for (std::size_t i = 0; i < specs.size(); ++i) levels.push_back({specs[i], there[i]->data()});
    return levels;
}

// The rois of each level as the CPU pools them, and to the bit as a call for that level alone does.
template <class Element, class Real>
void stress_pooled_levels(Random& random, const Pyramid<Element, Real>& pyramid) {
    const RoiAlignSpec& shared = pyramid.specs[0];
    const auto width = static_cast<std::size_t>(shared.channels * shared.pooled_height * shared.pooled_width);
    const auto features = on_device(random, pyramid.features);
    const DeviceBuffer<Real> rois(pyramid.rois);
    const DeviceBuffer<std::int64_t> level_of(pyramid.level_of);
    const Shifted<Element> out(random, std::vector<Element>(pyramid.level_of.size() * width));
    roi_align_levels_cuda(levels_of(pyramid.specs, features), rois.data(), level_of.data(), out.data(), 0,
                          nullptr);
    const std::vector<Element> pooled = out.read();
    for (std::size_t i = 0; i < pooled.size(); ++i)
        if (!pyramid.exists(i / width) && !std::isnan(value_of(pooled[i])))
            throw std::runtime_error("roi_align_levels: a roi of no level gives no NaN");
    for (std::size_t level = 0; level < pyramid.specs.size(); ++level) {
        const auto rows = pyramid.rows_of(level);
        RoiAlignSpec spec = pyramid.specs[level];
        spec.rois = static_cast<std::int64_t>(rows.size());
        const auto of_level = rows_in(pooled, rows, width);
        const auto own_rois = rows_in(pyramid.rois, rows, 5);
        std::vector<Element> expected(of_level.size());
        roi_align(spec, pyramid.features[level].data(), own_rois.data(), expected.data(), 1);
        compare("roi_align_levels", spec, of_level, expected);
        const DeviceBuffer<Real> own_there(own_rois);
        const DeviceBuffer<Element> alone(of_level.size());
        roi_align_cuda(spec, features[level]->data(), own_there.data(), alone.data(), 0, nullptr);
        const auto alone_here = alone.read();
        if (!of_level.empty() &&
            std::memcmp(alone_here.data(), of_level.data(), of_level.size() * sizeof(Element)) != 0)
            throw std::runtime_error("roi_align_levels: other bits than of the level alone (" +
                                     described(spec) + ")");
    }
}

template <class Element, class Real>
void stress_spread_levels(Random& random, const Pyramid<Element, Real>& pyramid) {
    const RoiAlignSpec& shared = pyramid.specs[0];
    const std::int64_t width = shared.channels * shared.pooled_height * shared.pooled_width;
    const auto gradient = some_values<Element>(random, shared.rois * width);
    std::vector<std::vector<Real>> garbage;
    for (const auto& level : pyramid.features) garbage.emplace_back(level.size(), static_cast<Real>(7));
    const auto spread = on_device(random, garbage);
    const DeviceBuffer<Real> rois(pyramid.rois);
    const DeviceBuffer<std::int64_t> level_of(pyramid.level_of);
    const Shifted<Element> gradient_there(random, gradient);
    roi_align_levels_backward_cuda(levels_of(pyramid.specs, spread), gradient_there.data(), rois.data(),
                                   level_of.data(), 0, nullptr);
    for (std::size_t level = 0; level < pyramid.specs.size(); ++level) {
        const auto rows = pyramid.rows_of(level);
        RoiAlignSpec spec = pyramid.specs[level];
        spec.rois = static_cast<std::int64_t>(rows.size());
        std::vector<Element> expected(pyramid.features[level].size());
        roi_align_backward(spec, rows_in(gradient, rows, static_cast<std::size_t>(width)).data(),
                           rows_in(pyramid.rois, rows, 5).data(), expected.data(), 1);
        compare("roi_align_levels_backward", spec, spread[level]->read(), expected);
    }
}

// Of most_samples a CPU takes one by one what a device takes at once.
RoiAlignSpec affordable_spec(Random& random) {
    RoiAlignSpec spec = some_spec(random);
    if (spec.sampling_ratio == most_samples) {
        spec.channels = below(random, 3);
        spec.pooled_height = spec.pooled_width = 2;
    }
    return spec;
}

template <class Element, class Real>
void stress_types(Random& random, const RoiAlignSpec& spec) {
    stress_roi_align<Element, Real>(random, spec);
    const Pyramid<Element, Real> pyramid(random, spec);
    stress_pooled_levels(random, pyramid);
    stress_spread_levels(random, pyramid);
}

void stress_any_roi_align(Random& random) {
    const RoiAlignSpec spec = affordable_spec(random);
    switch (spec.type) {
        case FeatureType::float32:
            return stress_types<float, float>(random, spec);
        case FeatureType::float16:
            return stress_types<__half, float>(random, spec);
        case FeatureType::bfloat16:
            return stress_types<__nv_bfloat16, float>(random, spec);
        case FeatureType::float64:
            return stress_types<double, double>(random, spec);
    }
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
