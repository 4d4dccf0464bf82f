// Where RoIAlign samples, the same on processor and device: the rule of torchvision's roi_align, step by step
// in the same arithmetic, with bounds on what a hostile roi can demand.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HPCAI500_HOST_DEVICE __host__ __device__
#else
#define HPCAI500_HOST_DEVICE
#endif

namespace hpcai500 {

/// Coordinates beyond this, in feature pixels, are no places in any image: whole numbers end here in float.
inline constexpr double farthest_pixel = 16777216.0;  // 2^24

/// One axis of one roi: `bins` bins of size `bin` from `start`, each with `grid` samples.
template <class Real>
struct RoiAxis {
    Real start, bin;
    std::int64_t grid;

    /// Place of sample `i` of bin `b`, in feature pixels; grows with `i` where bin > 0 and falls where bin <
    /// 0.
    HPCAI500_HOST_DEVICE Real sample(std::int64_t b, std::int64_t i) const {
        return start + static_cast<Real>(b) * bin +
               (static_cast<Real>(i) + static_cast<Real>(0.5)) * bin / static_cast<Real>(grid);
    }
};

/// Whether a scaled coordinate is a place that can be sampled around (false for NaN).
template <class Real>
HPCAI500_HOST_DEVICE inline bool is_place(Real value) {
    return value >= static_cast<Real>(-farthest_pixel) && value <= static_cast<Real>(farthest_pixel);
}

/// The axis from `low` to `high` of a roi. Returns false where either is no place.
template <class Real>
HPCAI500_HOST_DEVICE inline bool roi_axis(Real low, Real high, Real scale, int bins, int sampling_ratio,
                                          bool aligned, RoiAxis<Real>& axis) {
    const Real offset = aligned ? static_cast<Real>(0.5) : static_cast<Real>(0);
    const Real start = low * scale - offset, end = high * scale - offset;
    if (!is_place(start) || !is_place(end)) return false;
    Real length = end - start;
    if (!aligned && length < 1) length = 1;
    axis.start = start;
    axis.bin = length / static_cast<Real>(bins);
    if (sampling_ratio > 0) {
        axis.grid = sampling_ratio;
    } else {
        // ceil(bin), and no sample at all for a bin of no or negative size.
        const auto whole = static_cast<std::int64_t>(axis.bin);
        axis.grid = axis.bin > 0 ? whole + (static_cast<Real>(whole) < axis.bin ? 1 : 0) : 0;
    }
    return true;
}

/// Samples of a bin that are inside, [-1, size], counted along growing coordinates.
struct SampleRange {
    std::int64_t begin, end;
};

/// The k-th sample of bin `b` along growing coordinates.
template <class Real>
HPCAI500_HOST_DEVICE inline Real ascending_sample(const RoiAxis<Real>& axis, std::int64_t b, std::int64_t k) {
    return axis.sample(b, axis.bin < 0 ? axis.grid - 1 - k : k);
}

/// Found by bisection: a roi of millions of pixels costs no more than the image that it covers.
template <class Real>
HPCAI500_HOST_DEVICE inline SampleRange samples_inside(const RoiAxis<Real>& axis, std::int64_t b, int size) {
    const Real lowest = -1, highest = static_cast<Real>(size);
    std::int64_t begin = 0, end = axis.grid;
    if (end == 0) return {0, 0};
    if (ascending_sample(axis, b, 0) < lowest) {
        std::int64_t outside = 0, inside = axis.grid;
        while (inside - outside > 1) {
            const std::int64_t middle = outside + (inside - outside) / 2;
            (ascending_sample(axis, b, middle) < lowest ? outside : inside) = middle;
        }
        begin = inside;
    }
    if (ascending_sample(axis, b, axis.grid - 1) > highest) {
        std::int64_t inside = -1, outside = axis.grid - 1;
        while (outside - inside > 1) {
            const std::int64_t middle = inside + (outside - inside) / 2;
            (ascending_sample(axis, b, middle) > highest ? outside : inside) = middle;
        }
        end = outside;
    }
    return {begin, end > begin ? end : begin};
}

/// The two pixels that a sample inside [-1, size] lies between, and the weight of the second.
template <class Real>
struct Between {
    int low, high;
    Real fraction;
};

template <class Real>
HPCAI500_HOST_DEVICE inline Between<Real> between(Real place, int size) {
    if (place <= 0) place = 0;
    const int low = static_cast<int>(place);
    if (low >= size - 1) return {size - 1, size - 1, static_cast<Real>(0)};
    return {low, low + 1, place - static_cast<Real>(low)};
}

}  // namespace hpcai500
