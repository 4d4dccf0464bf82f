// Greedy non-maximum suppression: of boxes that overlap, the one with the highest score stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hpcai500 {

/// Boxes x1 y1 x2 y2 and their scores, as they come. With `groups`, a box suppresses only boxes of its own.
template <class Real>
struct NmsInput {
    const Real* boxes;
    const Real* scores;
    const std::int64_t* groups;  ///< or nullptr: all are one group
    std::int64_t count;
};

/// Most boxes that one call takes.
inline constexpr std::int64_t most_boxes = 1 << 30;

/// Throws std::invalid_argument unless `threshold` is in [0, 1] and `count` in [0, most_boxes].
void validate_nms(std::int64_t count, double threshold);

/// The largest Real that is not above `threshold`: what is above one is above the other.
template <class Real>
Real threshold_in(double threshold);

/// Indices of the boxes that stay, in falling order of score, of equal scores the earlier first; a NaN counts
/// as the highest score. The same boxes as torchvision's nms: a box goes when its intersection over union
/// with a box that stays is above `threshold`. A ratio of 0 / 0 (two boxes without area) or with a NaN or
/// infinite coordinate in it is not above anything: such boxes stay and suppress nothing.
///
/// Takes time in proportion to the boxes that stay times all boxes of a group, at most. The result does not
/// depend on `threads`. Throws std::invalid_argument as validate_nms does.
template <class Real>
std::vector<std::int64_t> nms(const NmsInput<Real>& input, double threshold, int threads);

/// The same on a CUDA device, for many segments at once, whose boxes lie one segment after the other, each in
/// falling order of score already: sets keep[i] to 1 or 0. Boxes suppress only boxes of their segment, and
/// with `groups` only those of their group. `workspace` is nms_cuda_workspace(segments) bytes of the device;
/// all pointers but the segments' are the device's, `stream` is a cudaStream_t. Returns before the device is
/// done. Throws std::runtime_error with CUDA's message, std::invalid_argument as validate_nms does.
template <class Real>
struct NmsCudaCall {
    const Real* boxes;
    const std::int64_t* groups;              ///< or nullptr
    std::span<const std::int64_t> segments;  ///< how many boxes each has, none below 0
    double threshold;
    std::uint8_t* keep;
    void* workspace;
    int device;
    void* stream;
};
template <class Real>
void nms_cuda(const NmsCudaCall<Real>& call);

/// Half a kilobyte a box, or less, of as many segments as are worked on at once: those of up to 256 MiB, or
/// one.
std::size_t nms_cuda_workspace(std::span<const std::int64_t> segments);

}  // namespace hpcai500
