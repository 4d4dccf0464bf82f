#include "axis_taps.h"

#include <algorithm>

namespace hpcai500 {

// Samples come in growing order: a pixel that has a tap already is one of the last two.
template <class Real>
void AxisTaps<Real>::add(std::size_t bin_begin, int index, Real weight) {
    for (std::size_t back = 1; back <= 2 && index_.size() >= bin_begin + back; ++back) {
        if (index_[index_.size() - back] == index) {
            weight_[weight_.size() - back] += weight;
            return;
        }
    }
    index_.push_back(index);
    weight_.push_back(weight);
}

template <class Real>
void AxisTaps<Real>::prepare(const RoiAxis<Real>& axis, int bins, int size) {
    begin_.assign(1, 0);
    index_.clear();
    weight_.clear();
    const Real samples = static_cast<Real>(std::max<std::int64_t>(axis.grid, 1));
    for (int bin = 0; bin < bins; ++bin) {
        const std::size_t first = index_.size();
        const SampleRange range = samples_inside(axis, bin, size);
        for (std::int64_t k = range.begin; k < range.end; ++k) {
            const Between<Real> pixels = between(ascending_sample(axis, bin, k), size);
            add(first, pixels.low, 1 - pixels.fraction);
            if (pixels.high != pixels.low) add(first, pixels.high, pixels.fraction);
        }
        for (std::size_t tap = first; tap < weight_.size(); ++tap) weight_[tap] /= samples;
        begin_.push_back(static_cast<int>(index_.size()));
    }
    const auto [least, most] = std::minmax_element(index_.begin(), index_.end());
    first_ = index_.empty() ? 0 : *least;
    end_ = index_.empty() ? 0 : *most + 1;
}

template class AxisTaps<float>;
template class AxisTaps<double>;

}  // namespace hpcai500
