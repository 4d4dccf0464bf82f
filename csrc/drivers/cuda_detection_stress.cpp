// NMS and RoIAlign on the device, forward and backward, against their CPU twins, within the bounds of
// tests/workloads/test_detection_cuda.py.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
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

template <class Real>
void stress_nms(Random& random, int count) {
    const auto size = static_cast<std::size_t>(count);
    const std::vector<Real> boxes = some_boxes<Real>(random, count);
    std::vector<Real> scores(size);
    std::vector<std::int64_t> groups(size);
    for (std::size_t i = 0; i < size; ++i) scores[i] = static_cast<Real>(count) - static_cast<Real>(i);
    for (std::int64_t& group : groups) group = below(random, 3) - 1;
    const bool grouped = below(random, 2) == 0;
    const double threshold = below(random, 11) / 10.0;
    std::vector<std::uint8_t> expected(size, 0);
    for (const std::int64_t kept :
         nms(NmsInput<Real>{boxes.data(), scores.data(), grouped ? groups.data() : nullptr, count}, threshold,
             1))
        expected[static_cast<std::size_t>(kept)] = 1;

    const DeviceBuffer<Real> there(boxes);
    const DeviceBuffer<std::int64_t> groups_there(groups);
    const DeviceBuffer<std::uint8_t> keep(size), workspace(nms_cuda_workspace(count));
    nms_cuda(NmsCudaCall<Real>{there.data(), grouped ? groups_there.data() : nullptr, count, threshold,
                               keep.data(), workspace.data(), 0, nullptr});
    if (keep.read() != expected)
        throw std::runtime_error("nms: other boxes stay, of " + std::to_string(count));
}

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

void stress_any_roi_align(Random& random) {
    RoiAlignSpec spec = some_spec(random);
    // Of all those samples a CPU takes one by one what a device takes at once.
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

}  // namespace

void stress_detection(int rounds) {
    Random random(500);
    for (const int count : {0, 1, 63, 64, 65}) stress_nms<float>(random, count);
    // One more than a panel of rows has; the thread sanitizer, which runs few rounds, takes too long over it.
    if (rounds >= 5) stress_nms<double>(random, 4097);
    for (int round = 0; round < rounds; ++round) {
        stress_nms<float>(random, below(random, 400));
        stress_nms<double>(random, below(random, 400));
        for (int i = 0; i < 4; ++i) stress_any_roi_align(random);
        stress_absent_image(random);
    }
}

}  // namespace hpcai500::drivers
